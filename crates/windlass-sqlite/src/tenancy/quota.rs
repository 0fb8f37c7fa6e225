//! What tenants may use and use: policies, counts for tenants whose submits are limited, and how many of their
//! jobs run. Called by `submit` and `claim` in the writer's transaction, and by the store's methods about quotas. Whether
//! a submit fits is decided in the core.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};
use windlass_core::quota::{Amount, Bucket, admit};
use windlass_core::store::Error;
use windlass_core::{NewJob, Quota, QuotaExceeded, QuotaKind, Quotas, Scope, Status, TenantId, TenantUse, Timestamp};

use crate::ground::place::{self, Audit};
use crate::ground::rows::{Columns, Done, as_i64, from_json, readable, tenant_bytes, unpack_ids, unreadable};
use crate::ground::writer::State;
use crate::reads::{self, Reader};

/// Counting bytes may take this part of the time: 1 in 20. Until it is due again, what was counted last decides, which
/// refuses too much rather than too little.
const COUNT_SHARE: u32 = 20;

/// A count that takes less is repeated whenever it is wanted.
const QUICK_COUNT: Duration = Duration::from_millis(5);

/// The key of the default policy.
const DEFAULT: &[u8] = &[];

/// The policies in the file.
pub(crate) fn load(conn: &Connection) -> Done<Quotas> {
    let mut quotas = Quotas::default();
    let mut select = conn.prepare_cached("SELECT tenant, policy FROM windlass_quota")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let of = || Ok((if row.blob(0)?.is_empty() { None } else { Some(row.tenant(0)?) }, policy_of(&row.text(1)?)?));
        // One that cannot be read limits nobody; it must not keep the file from being opened.
        match readable(of())? {
            Some((None, policy)) => quotas.default = Some(policy),
            Some((Some(tenant), policy)) => drop(quotas.own.insert(tenant, policy)),
            None => {}
        }
    }
    Ok(quotas)
}

/// A policy as it is stored, if it is one that may be set.
fn policy_of(stored: &str) -> Done<Quota> {
    let policy: Quota = from_json(stored)?;
    policy.check().map_err(|bad| unreadable("policy", bad.to_string()))?;
    Ok(policy)
}

/// Sets or clears a policy. The caller makes the new ones known when this has been committed.
pub(crate) fn set(
    conn: &Connection,
    now: Timestamp,
    of: Option<TenantId>,
    quota: Option<&Quota>,
    by: &str,
) -> Done<Quotas> {
    let key: &[u8] = of.as_ref().map_or(DEFAULT, tenant_bytes);
    let detail = quota.map(crate::ground::rows::to_json).transpose()?;
    match &detail {
        Some(policy) => {
            let sql = "INSERT INTO windlass_quota (tenant, policy) VALUES (?1, ?2) \
                       ON CONFLICT (tenant) DO UPDATE SET policy = excluded.policy";
            conn.execute(sql, params![key, policy])?;
        }
        None => drop(conn.execute("DELETE FROM windlass_quota WHERE tenant = ?1", [key])?),
    }
    // What was not limited was not counted: the next submit counts anew.
    match of {
        Some(_) => conn.execute("DELETE FROM windlass_tenant_use WHERE tenant = ?1", [key])?,
        None => conn.execute("DELETE FROM windlass_tenant_use", [])?,
    };
    let target = of.map_or_else(|| "default".to_owned(), |tenant| format!("tenant:{tenant}"));
    let action = if quota.is_some() { "QUOTA_SET" } else { "QUOTA_CLEARED" };
    let entry = Audit { actor: by, tenant: of, action, target: &target, detail: detail.as_deref() };
    place::audit(conn, now, &entry)?;
    load(conn)
}

/// What a submit wants, by tenant whose submits are limited.
pub(crate) type Wanted = BTreeMap<TenantId, Amount>;

/// Adds up jobs of limited tenants.
pub(crate) fn wanted<'a>(quotas: &Quotas, jobs: impl Iterator<Item = &'a NewJob>) -> Wanted {
    let mut wanted = Wanted::new();
    for job in jobs.filter(|job| quotas.limiting(job.tenant).is_some()) {
        wanted.entry(job.tenant).or_default().add(job.payload.as_str().len());
    }
    wanted
}

/// Refuses what a quota does not allow. Changes nothing but what is known of the counts.
pub(crate) fn check(conn: &Connection, state: &mut State, wanted: &Wanted) -> Done<()> {
    let quotas = state.quotas.clone();
    for (tenant, wanted) in wanted {
        let Some(quota) = quotas.limiting(*tenant) else { continue };
        let mut counted = counted(conn, *tenant, quota, state.now)?;
        let ask = |counted: &mut Counted| {
            let in_use = Amount { jobs: counted.unfinished, bytes: counted.bytes };
            admit(*tenant, quota, in_use, Some(&mut counted.bucket), *wanted, state.now)
        };
        match ask(&mut counted) {
            Ok(()) => {}
            Err(QuotaExceeded { quota: QuotaKind::Bytes, .. }) if state.bytes_counts.is_due(*tenant) => {
                let began = Instant::now();
                counted.bytes = unfinished_bytes(conn, state.now, *tenant)?;
                state.bytes_counts.took(*tenant, began);
                let sql = "UPDATE windlass_tenant_use SET bytes = ?2 WHERE tenant = ?1";
                conn.prepare_cached(sql)?.execute(params![tenant_bytes(tenant), counted.bytes as i64])?;
                ask(&mut counted).map_err(Error::from)?;
            }
            Err(over) => return Err(Error::from(over).into()),
        }
    }
    Ok(())
}

/// Counts what has been stored.
pub(crate) fn count(conn: &Connection, state: &State, stored: &Wanted) -> Done<()> {
    for (tenant, stored) in stored {
        let Some(quota) = state.quotas.limiting(*tenant) else { continue };
        let Counted { mut bucket, bytes, submitted, .. } = counted(conn, *tenant, quota, state.now)?;
        bucket.take(stored.jobs);
        let (tokens, filled_at) = bucket.parts();
        let sql =
            "UPDATE windlass_tenant_use SET submitted = ?2, bytes = ?3, tokens = ?4, filled_at = ?5 WHERE tenant = ?1";
        conn.prepare_cached(sql)?.execute(params![
            tenant_bytes(tenant),
            submitted.saturating_add(stored.jobs as i64),
            bytes.saturating_add(stored.bytes).min(i64::MAX as u64) as i64,
            tokens,
            filled_at.as_micros()
        ])?;
    }
    Ok(())
}

/// Counts input that has grown by an edit. What is not counted yet is counted whole, when the first submit comes.
pub(crate) fn grow(conn: &Connection, tenant: TenantId, bytes: usize) -> Done<()> {
    let sql = "UPDATE windlass_tenant_use SET bytes = bytes + ?2 WHERE tenant = ?1";
    conn.prepare_cached(sql)?.execute(params![tenant_bytes(&tenant), as_i64(bytes)])?;
    Ok(())
}

/// When the bytes of tenants were last counted, and how long that took.
#[derive(Default)]
pub(crate) struct BytesCounts(HashMap<TenantId, (Instant, Duration)>);

impl BytesCounts {
    fn is_due(&self, tenant: TenantId) -> bool {
        self.0.get(&tenant).is_none_or(|(at, cost)| *cost < QUICK_COUNT || at.elapsed() >= *cost * COUNT_SHARE)
    }

    fn took(&mut self, tenant: TenantId, began: Instant) {
        self.0.insert(tenant, (Instant::now(), began.elapsed()));
    }
}

struct Counted {
    submitted: i64,
    unfinished: u64,
    bytes: u64,
    bucket: Bucket,
}

/// What is counted for a tenant; counts it if nobody has yet.
fn counted(conn: &Connection, tenant: TenantId, quota: &Quota, now: Timestamp) -> Done<Counted> {
    let key = tenant_bytes(&tenant);
    let ended: f64 = conn
        .prepare_cached("SELECT total(jobs) FROM windlass_counter WHERE tenant = ?1")?
        .query_row([key], |row| row.get(0))?;
    let ended = ended as i64;
    let mut find =
        conn.prepare_cached("SELECT submitted, bytes, tokens, filled_at FROM windlass_tenant_use WHERE tenant = ?1")?;
    let found = find
        .query_row([key], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, f64>(2)?, row.get::<_, i64>(3)?)))
        .optional()?;
    let (submitted, bytes, bucket) = match found {
        Some((submitted, bytes, tokens, at)) => (submitted, bytes, Bucket::of(tokens, Timestamp::from_micros(at))),
        None => {
            let unfinished = reads::counts(conn, now, Scope::Tenant(tenant))?.unfinished();
            let bytes = if quota.bytes.is_some() { unfinished_bytes(conn, now, tenant)? } else { 0 };
            let bucket = quota.submit_rate.map_or(Bucket::of(0.0, now), |rate| Bucket::full(rate, now));
            let (submitted, bytes) = (unfinished as i64 + ended, bytes as i64);
            let sql = "INSERT INTO windlass_tenant_use (tenant, submitted, bytes, tokens, filled_at) \
                       VALUES (?1, ?2, ?3, ?4, ?5)";
            let (tokens, at) = bucket.parts();
            conn.prepare_cached(sql)?.execute(params![key, submitted, bytes, tokens, at.as_micros()])?;
            (submitted, bytes, bucket)
        }
    };
    let unfinished = submitted.saturating_sub(ended).max(0) as u64;
    Ok(Counted { submitted, unfinished, bytes: bytes.max(0) as u64, bucket })
}

/// Payload bytes of a tenant's unfinished jobs. Reads all of them.
fn unfinished_bytes(conn: &Connection, now: Timestamp, tenant: TenantId) -> Done<u64> {
    let key = tenant_bytes(&tenant);
    let mut ids: Vec<i64> = Reader::new(conn, now)?.running_ids();
    let mut chunks = conn.prepare_cached("SELECT ids FROM windlass_ready WHERE tenant = ?1")?;
    let mut rows = chunks.query([key])?;
    while let Some(row) = rows.next()? {
        ids.extend(unpack_ids(row.blob(0)?));
    }
    for sql in
        ["SELECT job FROM windlass_scheduled WHERE tenant = ?1", "SELECT job FROM windlass_gated WHERE tenant = ?1"]
    {
        let mut select = conn.prepare_cached(sql)?;
        let mut rows = select.query([key])?;
        while let Some(row) = rows.next()? {
            ids.push(row.get(0)?);
        }
    }
    // Withdrawn jobs are still in their chunks but have ended.
    let sql = "SELECT length(CAST(payload AS BLOB)) FROM windlass_job WHERE id = ?1 AND tenant = ?2 \
               AND NOT EXISTS (SELECT 1 FROM windlass_withdrawn WHERE job = ?1)";
    let mut length = conn.prepare_cached(sql)?;
    let mut bytes = 0;
    for id in ids {
        let found: Option<i64> = length.query_row(params![id, key], |row| row.get(0)).optional()?;
        bytes += found.unwrap_or(0).max(0) as u64;
    }
    Ok(bytes)
}

/// How many jobs of each tenant run that may only have so many.
pub(crate) fn running(conn: &Connection, quotas: &Quotas, now: Timestamp) -> Done<HashMap<TenantId, u64>> {
    let mut running = HashMap::new();
    let mut select = conn.prepare_cached("SELECT tenant FROM windlass_job WHERE id = ?1")?;
    for id in Reader::new(conn, now)?.running_ids() {
        let mut rows = select.query([id])?;
        let Some(row) = rows.next()? else { continue };
        let Some(tenant) = readable(row.tenant(0))? else { continue };
        if quotas.cap(tenant).is_some() {
            *running.entry(tenant).or_default() += 1;
        }
    }
    Ok(running)
}

/// What is left of the caps while a claim takes jobs. Without caps it allows everything.
#[derive(Default)]
pub(crate) struct Caps {
    quotas: Option<Arc<Quotas>>,
    running: HashMap<TenantId, u64>,
}

impl Caps {
    pub(crate) fn look(conn: &Connection, state: &State) -> Done<Caps> {
        match state.quotas.has_caps() {
            true => Ok(Caps { running: running(conn, &state.quotas, state.now)?, quotas: Some(state.quotas.clone()) }),
            false => Ok(Caps::default()),
        }
    }

    /// How many more jobs of a tenant may start.
    pub(crate) fn of(&self, tenant: TenantId) -> usize {
        let Some(cap) = self.quotas.as_ref().and_then(|quotas| quotas.cap(tenant)) else { return usize::MAX };
        let room = cap.saturating_sub(self.running.get(&tenant).copied().unwrap_or(0));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    pub(crate) fn take(&mut self, tenant: TenantId, jobs: usize) {
        if self.quotas.is_some() {
            *self.running.entry(tenant).or_default() += jobs as u64;
        }
    }

    /// Whether it allows everything.
    pub(crate) fn is_endless(&self) -> bool {
        self.quotas.is_none()
    }
}

/// What the scope's tenants use.
pub(crate) fn uses(conn: &Connection, now: Timestamp, scope: Scope) -> Done<Vec<TenantUse>> {
    let quotas = load(conn)?;
    let mut tenants: Vec<TenantId> = quotas.own.keys().copied().collect();
    let sql = "SELECT DISTINCT tenant FROM windlass_ready UNION SELECT DISTINCT tenant FROM windlass_scheduled \
               UNION SELECT DISTINCT tenant FROM windlass_gated";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        tenants.extend(readable(row.tenant(0))?);
    }
    let reader = Reader::new(conn, now)?;
    let mut of_running = conn.prepare_cached("SELECT tenant FROM windlass_job WHERE id = ?1")?;
    for id in reader.running_ids() {
        let mut rows = of_running.query([id])?;
        if let Some(row) = rows.next()? {
            tenants.extend(readable(row.tenant(0))?);
        }
    }
    tenants.retain(|tenant| scope.covers(*tenant));
    tenants.sort_unstable();
    tenants.dedup();
    let mut uses = Vec::new();
    for tenant in tenants {
        let counts = reads::counts(conn, now, Scope::Tenant(tenant))?;
        let mut used = TenantUse::new(tenant, &quotas);
        used.queued = counts.unfinished();
        used.running = counts.get(Status::Running);
        if used.limits_bytes() {
            used.bytes = Some(unfinished_bytes(conn, now, tenant)?);
        }
        if used.own || used.queued > 0 {
            uses.push(used);
        }
    }
    Ok(uses)
}
