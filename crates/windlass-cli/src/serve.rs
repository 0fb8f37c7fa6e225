//! `windlass serve`: the API and the dashboard of a store, with no handlers but those that `--handlers` turns on. Called by
//! `commands::run`. Keeps the store in order and calls webhooks; other jobs run in the processes that have their handlers.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use windlass::store::Store;
use windlass::{JobService, OperatorRight};
use windlass_server::{Auth, Config, JwtConfig, JwtKeys, LocalKey, Server};

use crate::args::{AuthKind, Global, ServeArgs};
use crate::backend;
use crate::beside;
use crate::connect::{Place, actor, with_keys};
use crate::error::{CliError, Result};
use crate::output::Out;

/// Calls of webhooks at once: each waits for somebody else's server, and costs next to nothing meanwhile.
const WEBHOOKS: usize = 16;

/// Serves until it is told to stop.
pub(crate) async fn run(global: &Global, args: &ServeArgs, out: &Out) -> Result {
    let config = config(args)?;
    let place = backend::place(global, "serve")?;
    let store = open(&place, args.migrate).await?;
    place.warn_if_exposed(out);
    let service = start(global, args, store).await?;
    // Whatever ends the serving: the node leaves in good order.
    let served = serve(&service, &place, config, out).await;
    service.shutdown().await;
    served
}

async fn open(place: &Place, migrate: bool) -> Result<Arc<dyn Store>> {
    match place {
        Place::Memory => {
            Err(CliError::invalid("db", "memory: exists only in its own process, so only `up` can use it"))
        }
        place if migrate => place.make().await,
        place => place.write().await,
    }
}

async fn start(global: &Global, args: &ServeArgs, store: Arc<dyn Store>) -> Result<JobService> {
    // Without a file of handlers, the only jobs it runs are calls of webhooks.
    let builder = windlass_server::webhooks::register(JobService::builder(store).concurrency(WEBHOOKS));
    let builder = crate::handlers::register(builder, args.handlers.as_deref())?;
    Ok(with_keys(builder, global)?.start().await?)
}

async fn serve(service: &JobService, place: &Place, mut config: Config, out: &Out) -> Result {
    let local = LocalKey::generate(actor());
    config.local_key = Some(local.clone());
    let required = config.auth == Auth::Required;
    let tokens = !config.jwt.is_empty();
    let base = config.base_path.clone();
    let server = bind(service, config).await?;
    let url = format!("http://{}{base}", server.address());
    let _announced = beside::announce(place, &url, &local)?;
    if out.wants_json() {
        out.json(&json!({ "address": url, "database": place.describe(), "login": server.login_link() }))?;
    } else {
        out.line(format_args!("windlass {} serves {} at {url}", env!("CARGO_PKG_VERSION"), place.describe()))?;
        if let Some(link) = server.login_link() {
            out.line(format_args!("log in once: {link}"))?;
        }
    }
    if required && !tokens && !has_keys(service).await? {
        out.warn("there is no API key yet; create one with `windlass api-key create NAME --rights admin`");
    }
    server.run(crate::up::asked_to_stop()).await;
    out.say("stopped");
    Ok(())
}

/// Whether anyone could come in. The key that commands on this machine use does not count: no one knows it.
async fn has_keys(service: &JobService) -> Result<bool> {
    let now = service.now();
    let keys = service.operator(OperatorRight::assume()).api_keys().await?;
    Ok(keys.iter().any(|key| key.is_valid(now)))
}

/// Listens; an address that cannot be had is named with the reason.
pub(crate) async fn bind(service: &JobService, config: Config) -> Result<Server> {
    Server::bind(service.clone(), config).await.map_err(|error| match error {
        windlass_server::Error::Listen { address, source } => {
            CliError::Unavailable(format!("cannot listen on {address}: {source}"))
        }
        error @ windlass_server::Error::NotLoopback(_) => CliError::invalid("listen", error.to_string()),
        error => CliError::Usage(error.to_string()),
    })
}

fn config(args: &ServeArgs) -> Result<Config> {
    let listen = listen(args.listen)?;
    let mut config = Config::listen(listen);
    config.auth = match args.auth {
        AuthKind::Required => Auth::Required,
        AuthKind::Local => Auth::Local,
    };
    config.base_path = base_path(args.base_path.clone());
    config.read_only = args.read_only;
    config.dashboard = !args.no_dashboard;
    config.https = args.behind_https.then_some(true);
    config.trust_forwarded = args.trust_forwarded;
    config.open_metrics = args.open_metrics;
    config.jwt = jwt(args)?.into_iter().collect();
    if config.auth == Auth::Local && !listen.ip().is_loopback() {
        let message = format!("cannot listen on {listen} with --auth local, which allows only 127.0.0.1 and [::1]");
        return Err(CliError::invalid("listen", message));
    }
    Ok(config)
}

/// What tokens are accepted, where any are.
fn jwt(args: &ServeArgs) -> Result<Option<JwtConfig>> {
    let Some(jwks) = &args.jwks else { return Ok(None) };
    let keys = match jwks.starts_with("https://") || jwks.starts_with("http://") {
        true => JwtKeys::Url(jwks.clone()),
        false => JwtKeys::File(jwks.into()),
    };
    if let JwtKeys::File(path) = &keys
        && !path.is_file()
    {
        return Err(CliError::invalid("jwks", format!("{} is not a file", path.display())));
    }
    let (Some(issuer), Some(audience)) = (&args.issuer, &args.audience) else {
        return Err(CliError::Usage(
            "--jwks needs --issuer and --audience, so that only tokens for this server are accepted".to_owned(),
        ));
    };
    let algorithms: Vec<&str> = args.jwt_algorithms.iter().map(String::as_str).collect();
    let mut jwt = JwtConfig::new(issuer, audience, &algorithms, keys);
    if let Some(claim) = &args.tenant_claim {
        jwt.tenant_claim.clone_from(claim);
    }
    Ok(Some(jwt))
}

/// Where `up` and `serve` listen where nothing else is said.
pub(crate) const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7878);

/// The path a server is mounted at: as the command line says, else WINDLASS_BASE_PATH, else none.
pub(crate) fn base_path(given: Option<String>) -> String {
    let path = given.or_else(|| std::env::var("WINDLASS_BASE_PATH").ok()).unwrap_or_default();
    path.trim_end_matches('/').to_owned()
}

/// Where a server listens: as the command line says, else WINDLASS_LISTEN, else on this machine.
pub(crate) fn listen(given: Option<SocketAddr>) -> Result<SocketAddr> {
    let set = std::env::var("WINDLASS_LISTEN").ok().filter(|set| !set.is_empty());
    match (given, set) {
        (Some(given), _) => Ok(given),
        (None, None) => Ok(LISTEN),
        (None, Some(set)) => set.parse().map_err(|_| {
            CliError::invalid("listen", "WINDLASS_LISTEN is not an address with a port; write it like 127.0.0.1:7878")
        }),
    }
}
