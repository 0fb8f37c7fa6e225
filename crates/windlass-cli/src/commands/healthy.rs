//! `windlass healthy`: whether a server answers, for places that can ask in no other way, such as an image without a shell.
//! Called by `commands::run`. Needs no key: it asks what probes of clusters ask.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::StatusCode;
use serde_json::json;

use crate::args::{Global, HealthyArgs};
use crate::backend;
use crate::error::{CliError, Result};
use crate::output::Out;

/// The server of this machine, as its own environment says where it listens.
fn here() -> Result<String> {
    let mut address = crate::serve::listen(None)?;
    // A server that listens everywhere is asked here.
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Ok(format!("http://{address}{}", crate::serve::base_path(None)))
}

/// Succeeds if the server is ready, or, with `--live`, if its process answers.
pub(crate) async fn run(global: &Global, args: &HealthyArgs, out: &Out) -> Result {
    let mut url = match &global.url {
        Some(url) => backend::read_url(url)?,
        None => backend::read_url(&here()?)?,
    };
    let server = url.to_string();
    let (path, good) = if args.live { ("healthz", "alive") } else { ("readyz", "ready") };
    url.path_segments_mut().expect("http URLs have paths").pop_if_empty().push(path);
    let unavailable = |what: String| CliError::Unavailable(format!("{server} {what}"));
    // A proxy has no business between a server and the machine it runs on.
    let client = reqwest::Client::builder().no_proxy().timeout(args.timeout).build();
    let client = client.map_err(|error| CliError::Failed(format!("cannot create an HTTP client: {error}")))?;
    let answer = client.get(url).send().await.map_err(|error| match error.is_timeout() {
        true => unavailable(format!("does not respond within {:?}", args.timeout)),
        false => unavailable("cannot be reached".to_owned()),
    })?;
    if answer.status() != StatusCode::OK {
        return Err(unavailable(format!("is not {good} ({})", answer.status())));
    }
    match out.wants_json() {
        true => out.json(&json!({ "server": server, "status": good })),
        false => out.line(format_args!("{good}")),
    }
}
