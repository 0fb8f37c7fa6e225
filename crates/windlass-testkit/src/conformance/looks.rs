//! Every look at a store, for tests that spoil rows of it. Called by the tests of SQLite and PostgreSQL that change what
//! is stored behind the store's back. Never spoils anything itself, and never changes a job.

use std::time::Duration;

use windlass_core::activity::{Addition, Resolution};
use windlass_core::health::Checkup;
use windlass_core::store::{
    ApiKeyRecord, AuditEntry, AuditFilter, BatchAsk, Dependents, Error, NodeId, ScheduleAsk, Store,
};
use windlass_core::{
    ApiKey, Cost, JobFilter, JobId, Right, Rights, Scope, SecretHash, Status, Sums, TenantId, Timestamp,
};

use super::rig::EVERYONE;

/// What must be readable although rows beside it are not.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// A job of the root tenant whose rows nobody has touched, and which has succeeded.
    pub job: JobId,
    /// A node that is alive.
    pub node: NodeId,
}

/// How many rows a look asks for: more than such a test makes.
const MANY: usize = 1_000;

macro_rules! must {
    ($call:expr) => {
        $call.await.map_err(|error| format!("{}: {error}", stringify!($call)))?
    };
}

/// Looks at everything there is, and expects to find what belongs to `whole`. What belongs to the jobs that are `spoilt` may
/// be unreadable, as an error. Says which look failed.
pub async fn look_at_everything(store: &dyn Store, whole: Whole, spoilt: &[JobId]) -> Result<(), String> {
    look_at_jobs(store, whole, spoilt).await?;
    look_at_books(store, whole).await?;
    must!(store.schedules(EVERYONE, ScheduleAsk::page(MANY)));
    must!(store.due_schedules(MANY));
    must!(store.batches(EVERYONE, &BatchAsk { limit: MANY, ..BatchAsk::default() }));
    must!(store.fold_batches(&[], MANY));
    must!(store.dependents(&Dependents::After(JobId::from_i64(0)), MANY));
    must!(store.edges(spoilt, MANY));
    look_at_the_past(store).await?;
    look_at_keys(store).await?;
    look_at_the_engine(store, whole).await
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// A look at something that is spoilt: nothing, or an error that says so.
fn allowed<T>(what: &str, look: Result<T, Error>) -> Result<(), String> {
    match look {
        Ok(_) | Err(Error::Unreadable { .. } | Error::Internal(_)) => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

async fn look_at_jobs(store: &dyn Store, whole: Whole, spoilt: &[JobId]) -> Result<(), String> {
    let together: Vec<JobId> = spoilt.iter().copied().chain([whole.job]).collect();
    let records = must!(store.get(EVERYONE, &together));
    let found = records.iter().any(|record| record.id == whole.job && record.status == Status::Succeeded);
    ensure(found, "a job is not read beside others")?;
    ensure(!must!(store.history(EVERYONE, whole.job)).is_empty(), "a job has no history")?;
    ensure(must!(store.whereabouts(EVERYONE, whole.job)).is_some(), "a job is nowhere")?;
    must!(store.logs(EVERYONE, whole.job, 0));
    must!(store.input(EVERYONE, whole.job));
    for id in spoilt {
        allowed("history", store.history(EVERYONE, *id).await)?;
        allowed("whereabouts", store.whereabouts(EVERYONE, *id).await)?;
        allowed("logs", store.logs(EVERYONE, *id, 0).await)?;
        allowed("input", store.input(EVERYONE, *id).await)?;
    }
    must!(store.failing(EVERYONE, &JobFilter::all(), MANY));
    must!(store.count(EVERYONE, &JobFilter::all(), MANY));
    must!(store.counts(EVERYONE));
    must!(store.backlog(EVERYONE));
    Ok(())
}

/// The audit log, and what jobs cost.
async fn look_at_books(store: &dyn Store, whole: Whole) -> Result<(), String> {
    let target = whole.job.to_string();
    must!(store.audit(AuditEntry {
        sequence: 0,
        at: Timestamp::MIN,
        actor: "ann".into(),
        tenant: Some(TenantId::ROOT),
        action: "LOOKED".into(),
        target: target.clone(),
        detail: None,
    }));
    let mut filter = AuditFilter::default();
    filter.limit = MANY;
    let log = must!(store.audit_log(EVERYONE, &filter));
    ensure(log.iter().any(|entry| entry.target == target), "an entry is not in the audit log")?;
    filter.action = Some(AuditEntry::SUCCEEDED.into());
    must!(store.audit_log(EVERYONE, &filter));
    ensure(must!(store.record_cost(EVERYONE, whole.job, "ann", Cost { cents: 1, units: 2 })), "no cost is recorded")?;
    let days = must!(store.usage_by_day(EVERYONE, "2020-01-01", "2199-12-31"));
    ensure(days.iter().any(|row| row.tenant == TenantId::ROOT && row.cents >= 1), "a cost is in no day")?;
    let events = must!(store.usage_events(EVERYONE, 0, MANY));
    ensure(events.iter().any(|event| event.job == whole.job), "a cost has no event")?;
    Ok(())
}

async fn look_at_the_past(store: &dyn Store) -> Result<(), String> {
    let now = must!(store.now());
    let mut sums = Sums::default();
    sums.wait.record(Duration::from_millis(5));
    let tenants = [None, Some(TenantId::ROOT)];
    let additions = tenants.map(|tenant| Addition { tenant, handler: "whole".into(), sums: sums.clone() });
    must!(store.add_activity(now, additions.to_vec()));
    must!(store.sample_depth());
    for resolution in Resolution::ALL {
        for scope in [EVERYONE, Scope::Tenant(TenantId::ROOT)] {
            let slices = must!(store.activity(scope, resolution, now - Duration::from_secs(3_600)));
            ensure(slices.iter().any(|slice| slice.handler == "whole"), "what happened is in no chart")?;
        }
        must!(store.depths(resolution, now - Duration::from_secs(3_600)));
    }
    must!(store.clean_activity(MANY));
    Ok(())
}

async fn look_at_keys(store: &dyn Store) -> Result<(), String> {
    let find = async || store.find_api_keys(&["whole".to_owned(), "p".to_owned()]).await;
    if !must!(find()).iter().any(|record| record.key.id == "whole") {
        let mut key = ApiKey::new("whole", "whole", TenantId::ROOT);
        key.rights = Rights::of([Right::Read]);
        must!(store.add_api_key(ApiKeyRecord { key, hash: SecretHash::of("whole") }));
    }
    ensure(must!(find()).iter().any(|record| record.key.id == "whole"), "a key is not found")?;
    ensure(must!(store.api_keys(EVERYONE)).iter().any(|key| key.id == "whole"), "a key is not listed")?;
    must!(store.data_keys(EVERYONE));
    must!(store.settings("", 10));
    must!(store.webhooks(EVERYONE));
    Ok(())
}

async fn look_at_the_engine(store: &dyn Store, whole: Whole) -> Result<(), String> {
    ensure(must!(store.nodes()).iter().any(|node| node.node == whole.node), "a node is not listed")?;
    must!(store.held(whole.node));
    must!(store.waiting_queues());
    must!(store.last_served(&["h".to_owned()], &["p".to_owned(), "q".to_owned()]));
    must!(store.pauses());
    must!(store.quotas());
    must!(store.tenant_uses(EVERYONE));
    ensure(must!(store.hold("whole", whole.node, Duration::from_secs(60))).is_some(), "nobody holds a free lease")?;
    allowed("hold", store.hold("p", whole.node, Duration::from_secs(60)).await)?;
    allowed("holders", store.holders("").await)?;
    must!(store.vitals());
    must!(store.held_snapshots(Duration::from_secs(60)));
    must!(store.examine(&Checkup::default()));
    Ok(())
}
