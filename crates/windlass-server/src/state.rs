//! What all requests of a server share. Made once by `Server` or `router`; holds no request's data.

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use windlass_core::{JobService, TenantId};

use crate::auth::{Attempts, AuthMethod, Issuer, Principal, Sessions};
use crate::config::Config;
use crate::metrics::Names;
use crate::places::{Place, Places};
use crate::problem::Problem;
use crate::streams::Streams;

/// The server behind the routes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) service: JobService,
    pub(crate) config: Config,
    pub(crate) sessions: Sessions,
    pub(crate) attempts: Attempts,
    pub(crate) streams: Streams,
    /// Places for requests that may change something.
    changes: Places,
    /// Those requests, until they have been carried out.
    pub(crate) tasks: TaskTracker,
    /// What metrics are named by.
    pub(crate) names: Mutex<Names>,
    issuers: Vec<Issuer>,
    /// Cancelled when the server ends: streams say goodbye, and `/readyz` sends callers elsewhere.
    pub(crate) ending: CancellationToken,
}

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl App {
    pub(crate) fn new(service: JobService, config: Config) -> Result<Self, crate::Error> {
        config.check()?;
        let issuers = config.jwt.iter().map(|issuer| Issuer::new(issuer, &config)).collect::<Result<_, _>>()?;
        Ok(App(Arc::new(Inner {
            sessions: Sessions::new(),
            attempts: Attempts::new(&config.limits),
            streams: Streams::new(&config.limits),
            changes: Places::new(config.limits.connections),
            tasks: TaskTracker::new(),
            names: Mutex::default(),
            issuers,
            ending: CancellationToken::new(),
            service,
            config,
        })))
    }

    /// Takes a place for a request that may change something, of the share of `tenant`, or of all places for a caller who
    /// operates all tenants.
    pub(crate) fn enter(&self, tenant: Option<TenantId>) -> Result<Place, Problem> {
        self.changes.enter(tenant).ok_or_else(Problem::crowded)
    }

    /// Carries out what may change something on a task of its own, to its end: a caller who goes away, or whose time is
    /// over, cannot leave it half done. The task keeps the place, and counts its own panic: there may be nobody else.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        place: Place,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let supervisor = self.service.supervisor().clone();
        let task = async move {
            let _place = place;
            AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| {
                supervisor.note_panic("request", &*panic);
                Problem::internal()
            })
        };
        self.tasks.spawn(task.in_current_span()).await.unwrap_or_else(|_| Err(Problem::internal()))
    }

    /// Who a bearer token belongs to; nobody if it is not good.
    pub(crate) async fn principal_of(&self, token: &str) -> Result<Option<Principal>, Problem> {
        if let Some(local) = self.config.local_key.as_ref().and_then(|key| key.principal(token)) {
            return Ok(Some(local));
        }
        if token.starts_with(KEY_PREFIX) {
            let key = self.service.check_key(token).await?;
            return Ok(key.map(|key| Principal {
                tenant: key.tenant,
                all_tenants: key.all_tenants,
                user: key.user,
                rights: key.rights,
                method: AuthMethod::Key,
                key: Some(key.id),
                session: None,
                expires_at: key.expires_at,
            }));
        }
        match self.issuers.iter().find(|issuer| issuer.is_named_in(token)) {
            Some(issuer) => Ok(issuer.principal(token).await),
            None => Ok(None),
        }
    }

    /// Whether what a caller has shown is still worth something: its time is not over, its key and its session are good.
    pub(crate) async fn still_good(&self, principal: &Principal) -> Result<bool, Problem> {
        let over = principal.expires_at.is_some_and(|at| at <= self.service.now());
        Ok(!over
            && self.sessions.is_open(self, principal.session.as_deref()).await?
            && self.sessions.key_is_good(self, principal.key.as_deref()).await?)
    }

    /// Whether a key can still be used.
    pub(crate) async fn key_is_good(&self, key: &str) -> Result<bool, Problem> {
        let found = self.service.store().find_api_keys(&[key.to_owned()]).await?;
        Ok(found.iter().any(|record| record.key.is_valid(self.service.now())))
    }

    /// What signs sessions: one secret for all nodes, made by the first that needs it.
    pub(crate) async fn session_secret(&self) -> Result<[u8; 32], Problem> {
        let store = self.service.store();
        let made = STANDARD.encode(rand::random::<[u8; 32]>());
        let kept = match store.setting(SESSION_SECRET).await? {
            Some(kept) => kept,
            None => store.set_setting_if_absent(SESSION_SECRET, &made).await?,
        };
        let secret = STANDARD.decode(kept).ok().and_then(|secret| secret.try_into().ok());
        secret.ok_or_else(|| {
            tracing::error!("the setting `{SESSION_SECRET}` is not a secret of 32 bytes");
            Problem::internal()
        })
    }
}

/// How API keys begin.
const KEY_PREFIX: &str = "wl_";

/// The name of the setting that holds the secret of sessions.
const SESSION_SECRET: &str = "server.session_secret";
