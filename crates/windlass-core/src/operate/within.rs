//! The service within a scope: one tenant, or all of them for who has an `OperatorRight`. Every read, and what is done to
//! more than one tenant, exists once, here and in the files that add to [`Within`]. The calls of [`JobService`] that take a
//! caller are short for it.

use std::sync::Arc;

use crate::config::Limits;
use crate::model::clock::Timestamp;
use crate::model::error::Error;
use crate::model::id::JobId;
use crate::model::tenant::{OperatorRight, Scope, SecurityContext, TenantId};
use crate::node::Worker;
use crate::service::JobService;
use crate::store::Store;

/// The jobs of one scope: [`JobService::within`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use std::sync::Arc;
/// use windlass_core::{JobService, MemoryStore, OperatorRight, Scope, SubmitOptions, TenantId};
/// # let jobs = JobService::builder(Arc::new(MemoryStore::new())).remote_handler("mail").start().await?;
/// # let ctx = windlass_core::SecurityContext::new(TenantId::ROOT);
/// # jobs.submit_named(&ctx, "mail", &(), SubmitOptions::new()).await?;
/// let mine = jobs.within(Scope::Tenant(TenantId::ROOT)).counts().await?;
/// let everyones = jobs.within(Scope::All(OperatorRight::assume())).counts().await?;
/// assert_eq!(mine, everyones);
/// # jobs.shutdown().await;
/// # Ok::<_, windlass_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Within {
    service: JobService,
    scope: Scope,
}

impl JobService {
    /// Reads and acts within a scope: of one tenant, or of all.
    pub fn within(&self, scope: Scope) -> Within {
        Within { service: self.clone(), scope }
    }

    /// Reads and acts on every tenant's jobs, for who has the right to.
    pub fn operator(&self, right: OperatorRight) -> Within {
        self.within(Scope::All(right))
    }
}

impl Within {
    /// The scope.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The caller in the tenant of a job of the scope: what is done to a job is done in its tenant, also by who operates
    /// all of them.
    pub async fn caller_of(&self, by: &SecurityContext, id: JobId) -> Result<SecurityContext, Error> {
        Ok(SecurityContext { tenant: self.tenant_of(id).await?, ..by.clone() })
    }

    /// The tenant of a job; not looked for where the scope has only one.
    pub(crate) async fn tenant_of(&self, id: JobId) -> Result<TenantId, Error> {
        match self.scope {
            Scope::Tenant(tenant) => Ok(tenant),
            Scope::All(_) => Ok(self.get(id).await?.tenant),
        }
    }

    /// Refuses what is done to the whole installation, unless the scope has all tenants.
    pub(crate) fn check_all(&self, what: &str) -> Result<(), Error> {
        match self.scope {
            Scope::All(_) => Ok(()),
            Scope::Tenant(_) => Err(Error::Forbidden(format!("{what} needs the right of an operator"))),
        }
    }

    pub(crate) fn service(&self) -> &JobService {
        &self.service
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        self.service.worker()
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        self.service.store()
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.service.limits()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.service.now()
    }
}
