//! What all requests of a server share. Made once by `Server` or `router`; holds no request's data.

use std::ops::Deref;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use windlass_core::{JobService, TenantId};

use crate::auth::{Attempts, Principal, Sessions};
use crate::config::Config;
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
        Ok(App(Arc::new(Inner {
            sessions: Sessions::new(),
            attempts: Attempts::new(&config.limits),
            streams: Streams::new(&config.limits),
            ending: CancellationToken::new(),
            service,
            config,
        })))
    }

    /// Who a bearer token belongs to; nobody if it is not good.
    pub(crate) async fn principal_of(&self, _token: &str) -> Result<Option<Principal>, Problem> {
        Ok(None)
    }

    /// Whether a key of a tenant can still be used.
    pub(crate) async fn key_is_good(&self, _tenant: TenantId, _key: &str) -> Result<bool, Problem> {
        Ok(false)
    }

    /// What signs sessions.
    pub(crate) async fn session_secret(&self) -> Result<[u8; 32], Problem> {
        Ok(rand::random())
    }
}
