//! The keys of sealed jobs: rotate, destroy, wrap anew, list. Called by administrators; `seal/crypt` has the keys
//! themselves.

use crate::model::error::Error;
use crate::model::tenant::SecurityContext;
use crate::operate::within::Within;
use crate::service::JobService;
use crate::store::{AuditEntry, DataKeyRecord};

impl JobService {
    /// Creates a new version of the tenant's data key, which encrypts from now on; on other nodes within
    /// [`refresh_after`](crate::Encryption::refresh_after). Older versions still decrypt what they encrypted. Returns the
    /// new version.
    pub async fn rotate_keys(&self, ctx: &SecurityContext) -> Result<u32, Error> {
        let version = self.worker().seals.vault()?.rotate(ctx.tenant).await?;
        self.audit(ctx, "KEYS_ROTATED", &ctx.tenant.to_string(), Some(format!("version {version}"))).await?;
        Ok(version)
    }

    /// Destroys the tenant's data keys: the data of its jobs can never be read again, here at once and on other nodes within
    /// [`refresh_after`](crate::Encryption::refresh_after). Jobs that have not run become dead letters with the reason
    /// `key_destroyed`; new jobs get a new key. Returns the number of destroyed keys.
    pub async fn destroy_keys(&self, ctx: &SecurityContext) -> Result<usize, Error> {
        let worker = self.worker();
        let destroyed = worker.store.destroy_data_keys(ctx.tenant).await?;
        if let Ok(vault) = worker.seals.vault() {
            vault.forget(ctx.tenant);
        }
        self.audit(ctx, "KEYS_DESTROYED", &ctx.tenant.to_string(), Some(format!("{destroyed} keys"))).await?;
        Ok(destroyed)
    }

    /// The versions of the tenant's data key, with the keys that wrap them.
    pub async fn keys(&self, ctx: &SecurityContext) -> Result<Vec<DataKeyRecord>, Error> {
        self.within(ctx.scope()).keys().await
    }
}

impl Within {
    /// Wraps every tenant's data keys anew that are not wrapped by the provider's current key, without touching a job.
    /// Needs the scope of all tenants.
    /// When it has returned without an error, older key-encryption keys are no longer needed. Answers how many.
    pub async fn rewrap_keys(&self, ctx: &SecurityContext) -> Result<usize, Error> {
        self.check_all("wrapping the data keys of all tenants anew")?;
        let worker = self.worker();
        let rewrapped = worker.seals.vault()?.rewrap().await?;
        let entry = AuditEntry {
            sequence: 0,
            at: worker.now(),
            actor: ctx.actor().to_owned(),
            tenant: None,
            action: "KEYS_REWRAPPED".to_owned(),
            target: "all".to_owned(),
            detail: Some(format!("{rewrapped} keys")),
        };
        worker.store.audit(entry).await?;
        Ok(rewrapped)
    }

    /// The data keys of the scope, with what wraps them.
    pub async fn keys(&self) -> Result<Vec<DataKeyRecord>, Error> {
        Ok(self.store().data_keys(self.scope()).await?)
    }
}
