//! Who the caller is: tenants, callers, and the scope every read and write of jobs carries.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::error::InvalidInput;

/// The owner of a job. System jobs belong to [`TenantId::ROOT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub Uuid);

impl TenantId {
    /// The nil UUID: the tenant of system jobs.
    pub const ROOT: TenantId = TenantId(Uuid::nil());

    /// Reads a UUID in any of its usual spellings.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        Uuid::parse_str(text)
            .map(TenantId)
            .map_err(|_| InvalidInput::new("tenant", format!("`{}` is not a UUID", text.escape_debug())))
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The authenticated caller. The tenant of a job comes from here and from nowhere else.
///
/// ```
/// use windlass_core::SecurityContext;
/// let ctx = SecurityContext::parse("0190b3a2-7c1e-7000-8000-000000000001", "user-7").unwrap();
/// assert!(SecurityContext::parse("not-a-uuid", "user-7").is_err());
/// # let _ = ctx;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SecurityContext {
    /// The tenant the caller acts for.
    pub tenant: TenantId,
    /// The caller: a user, a service or an operator.
    pub user: Option<String>,
    /// The service it calls from; that of [`Config::service_id`](crate::Config::service_id) if absent.
    pub service: Option<String>,
    /// Ties together everything that happens for one request.
    pub correlation_id: Option<String>,
}

impl From<TenantId> for SecurityContext {
    fn from(tenant: TenantId) -> Self {
        SecurityContext::new(tenant)
    }
}

impl From<&SecurityContext> for SecurityContext {
    fn from(ctx: &SecurityContext) -> Self {
        ctx.clone()
    }
}

impl SecurityContext {
    /// A caller of `tenant`.
    pub fn new(tenant: TenantId) -> Self {
        SecurityContext { tenant, user: None, service: None, correlation_id: None }
    }

    /// The system itself, in the root tenant.
    pub fn system() -> Self {
        SecurityContext::new(TenantId::ROOT).with_user("system")
    }

    /// From text, as a token or a command line carries it.
    pub fn parse(tenant: &str, user: &str) -> Result<Self, InvalidInput> {
        Ok(SecurityContext::new(TenantId::parse(tenant)?).with_user(user))
    }

    /// Names the caller.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Names the service that calls.
    #[must_use]
    pub fn with_service(mut self, service: impl Into<String>) -> Self {
        self.service = Some(service.into());
        self
    }

    /// Sets the id that jobs submitted by this caller carry on.
    #[must_use]
    pub fn with_correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// The scope of this caller's reads and writes.
    pub fn scope(&self) -> Scope {
        Scope::Tenant(self.tenant)
    }

    /// The caller's name for audit entries.
    pub fn actor(&self) -> &str {
        self.user.as_deref().unwrap_or("anonymous")
    }
}

/// The right to act on every tenant's jobs. No caller of a tenant has it: a program takes it explicitly, where it has
/// verified that the caller operates the whole installation.
///
/// Without it, the only scope is one tenant:
///
/// ```compile_fail,E0308
/// use windlass_core::Scope;
/// let everyone: Scope = Scope::All;
/// ```
///
/// ```compile_fail,E0423
/// use windlass_core::{OperatorRight, Scope};
/// let everyone = Scope::All(OperatorRight(()));
/// ```
///
/// and every read needs a scope:
///
/// ```compile_fail,E0061
/// use windlass_core::{MemoryStore, store::Store};
/// # async fn read() {
/// let counts = MemoryStore::new().counts().await;
/// # }
/// ```
///
/// A program for operators takes it:
///
/// ```
/// use windlass_core::{OperatorRight, Scope, TenantId};
/// let everyone = Scope::All(OperatorRight::assume());
/// assert!(everyone.covers(TenantId::ROOT));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorRight(());

impl OperatorRight {
    /// Takes the right. For commands on the machine itself and for routes with their own authorization; never derive it
    /// from the content of a request.
    pub const fn assume() -> Self {
        OperatorRight(())
    }
}

/// Which jobs a read or write may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The jobs of one tenant.
    Tenant(TenantId),
    /// Every tenant's jobs: for the engine and for operators of the whole installation.
    All(OperatorRight),
}

impl Scope {
    /// The scope of the engine, which runs the jobs of all tenants.
    pub(crate) const ENGINE: Scope = Scope::All(OperatorRight(()));

    /// Whether jobs of `tenant` are inside.
    pub fn covers(self, tenant: TenantId) -> bool {
        match self {
            Scope::Tenant(own) => own == tenant,
            Scope::All(_) => true,
        }
    }

    /// The one tenant, if it is limited to one.
    pub fn tenant(self) -> Option<TenantId> {
        match self {
            Scope::Tenant(tenant) => Some(tenant),
            Scope::All(_) => None,
        }
    }
}
