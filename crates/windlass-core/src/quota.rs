//! What a tenant may use: its share of the capacity, and how many jobs and bytes it may have waiting, submit and run.
//! Policies and decisions only, pure; stores keep the policies, count what is in use, and ask here. Budgets on
//! cost are not among them: Windlass does not know what a job costs.

use std::fmt;
use std::time::Duration;

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use crate::model::clock::Timestamp;
use crate::model::error::InvalidInput;
use crate::model::tenant::TenantId;

/// The limits of a tenant. A field that is not set is not limited.
///
/// ```
/// use windlass_core::Quota;
/// let quota = Quota::new().weight(4).queued(10_000).submit_rate(500.0, 1_000).running(50).bytes(64 << 20);
/// assert!(quota.check().is_ok());
/// assert_eq!(Quota::new().submit_rate(0.0, 1).check().unwrap_err().field, "submit_rate");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Quota {
    /// Scheduling weight relative to other tenants; 1 by default. Applies to jobs that the library submits from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The maximum number of unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// The maximum submit rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submit_rate: Option<SubmitRate>,
    /// The maximum number of running jobs, on all nodes together. Further jobs wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// The maximum payload bytes of unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A bucket of tokens: each submitted job takes one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubmitRate {
    /// Tokens that come in each second.
    pub per_second: f64,
    /// Tokens it holds, which is also the largest batch that can be submitted.
    pub burst: u64,
}

/// The largest weight: one tenant may get a thousand turns for another's one, not starve it.
pub const WEIGHT_MAX: u32 = 1_000;

impl Quota {
    /// No limits.
    pub fn new() -> Self {
        Quota::default()
    }

    /// Sets the share.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// Limits unfinished jobs.
    #[must_use]
    pub fn queued(mut self, jobs: u64) -> Self {
        self.queued = Some(jobs);
        self
    }

    /// Limits submits over time.
    #[must_use]
    pub fn submit_rate(mut self, per_second: f64, burst: u64) -> Self {
        self.submit_rate = Some(SubmitRate { per_second, burst });
        self
    }

    /// Limits jobs running at once.
    #[must_use]
    pub fn running(mut self, jobs: u64) -> Self {
        self.running = Some(jobs);
        self
    }

    /// Limits payload bytes of unfinished jobs.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Rejects invalid values. A limit of 0 is valid: nothing is accepted, or nothing is started.
    pub fn check(&self) -> Result<(), InvalidInput> {
        /// Counts are kept in signed 64 bits.
        const MOST: u64 = i64::MAX as u64;
        if self.weight.is_some_and(|weight| !(1..=WEIGHT_MAX).contains(&weight)) {
            return Err(InvalidInput::new("weight", format!("must be 1 to {WEIGHT_MAX}")));
        }
        if let Some(rate) = self.submit_rate {
            if !(rate.per_second > 0.0 && rate.per_second <= 1e9) {
                return Err(InvalidInput::new("submit_rate", "must be above 0 and at most 1,000,000,000 a second"));
            }
            if rate.burst == 0 || rate.burst > MOST {
                return Err(InvalidInput::new("burst", "must be at least 1"));
            }
        }
        let counts = [("queued", self.queued), ("running", self.running), ("bytes", self.bytes)];
        match counts.into_iter().find(|(_, count)| count.is_some_and(|count| count > MOST)) {
            Some((field, _)) => Err(InvalidInput::new(field, "is too large")),
            None => Ok(()),
        }
    }

    /// Whether a submit has to be counted.
    pub fn limits_submits(&self) -> bool {
        self.queued.is_some() || self.submit_rate.is_some() || self.bytes.is_some()
    }
}

/// The policies of an installation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quotas {
    /// The policy of every tenant without its own.
    pub default: Option<Quota>,
    /// The policies of single tenants. Each replaces the default as a whole.
    pub own: HashMap<TenantId, Quota>,
}

impl Quotas {
    /// The policy that holds for a tenant.
    pub fn of(&self, tenant: TenantId) -> Option<&Quota> {
        self.own.get(&tenant).or(self.default.as_ref())
    }

    /// Whether no limits are set at all.
    pub fn is_empty(&self) -> bool {
        self.default.is_none() && self.own.is_empty()
    }

    /// The policy that limits a tenant's submits, if one does.
    pub fn limiting(&self, tenant: TenantId) -> Option<&Quota> {
        self.of(tenant).filter(|quota| quota.limits_submits())
    }

    /// How many jobs of a tenant may run at once, where that is limited.
    pub fn cap(&self, tenant: TenantId) -> Option<u64> {
        self.of(tenant)?.running
    }

    /// Whether any tenant's running jobs are limited.
    pub fn has_caps(&self) -> bool {
        self.default.iter().chain(self.own.values()).any(|quota| quota.running.is_some())
    }
}

/// Which limit of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuotaKind {
    /// Unfinished jobs.
    Queued,
    /// Jobs submitted over time.
    SubmitRate,
    /// Payload bytes of unfinished jobs.
    Bytes,
}

impl QuotaKind {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            QuotaKind::Queued => "queued",
            QuotaKind::SubmitRate => "submit_rate",
            QuotaKind::Bytes => "bytes",
        }
    }
}

/// A submit that would exceed a tenant's quota. Nothing of the batch was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuotaExceeded {
    /// Whose quota.
    pub tenant: TenantId,
    /// Which one.
    pub quota: QuotaKind,
    /// How much is allowed: jobs, tokens or bytes.
    pub limit: u64,
    /// How much would still have been accepted.
    pub room: u64,
    /// When the same batch can be accepted, where that is known.
    pub retry_after: Option<Duration>,
}

impl QuotaExceeded {
    /// `tenant` is at its `quota`.
    pub fn new(tenant: TenantId, quota: QuotaKind, limit: u64, room: u64, retry_after: Option<Duration>) -> Self {
        QuotaExceeded { tenant, quota, limit, room, retry_after }
    }
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuotaExceeded { tenant, limit, room, .. } = self;
        match self.quota {
            QuotaKind::Queued => write!(f, "tenant {tenant} may have {limit} unfinished jobs, {room} more fit now")?,
            QuotaKind::SubmitRate => write!(f, "tenant {tenant} may submit {limit} jobs at once, {room} now")?,
            QuotaKind::Bytes => {
                write!(f, "tenant {tenant} may have {limit} bytes of unfinished payloads, {room} more fit now")?;
            }
        }
        match self.retry_after {
            Some(after) => write!(f, "; try again after {:.3} seconds", after.as_secs_f64()),
            None => Ok(()),
        }
    }
}

/// What a tenant uses, and its limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TenantUse {
    /// The tenant.
    pub tenant: TenantId,
    /// The policy that holds for it, if any.
    pub quota: Option<Quota>,
    /// Whether the policy is its own, not the default.
    pub own: bool,
    /// Unfinished jobs.
    pub queued: u64,
    /// Jobs running now.
    pub running: u64,
    /// Payload bytes of unfinished jobs; counted only where they are limited.
    pub bytes: Option<u64>,
}

impl TenantUse {
    /// A tenant with the policy that holds for it.
    pub fn new(tenant: TenantId, quotas: &Quotas) -> Self {
        let own = quotas.own.contains_key(&tenant);
        TenantUse { tenant, quota: quotas.of(tenant).cloned(), own, queued: 0, running: 0, bytes: None }
    }

    /// Whether its payload bytes are limited, and so worth counting.
    pub fn limits_bytes(&self) -> bool {
        self.quota.as_ref().is_some_and(|quota| quota.bytes.is_some())
    }
}

/// Jobs and bytes: in use, or wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Jobs.
    pub jobs: u64,
    /// Their payloads' bytes.
    pub bytes: u64,
}

impl Amount {
    /// One more job.
    pub fn add(&mut self, payload_bytes: usize) {
        self.jobs += 1;
        self.bytes += payload_bytes as u64;
    }
}

/// Tokens that are left for submits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    tokens: f64,
    at: Timestamp,
}

/// Tokens closer to a whole number than this are as good as whole: refilling adds up fractions.
const TOKEN_ROUNDING: f64 = 1e-6;

impl Bucket {
    /// A full one.
    pub fn full(rate: SubmitRate, now: Timestamp) -> Self {
        Bucket { tokens: rate.burst as f64, at: now }
    }

    /// One that was kept.
    pub fn of(tokens: f64, at: Timestamp) -> Self {
        Bucket { tokens, at }
    }

    /// The tokens in it and when they were counted, to be kept.
    pub fn parts(&self) -> (f64, Timestamp) {
        (self.tokens, self.at)
    }

    fn refill(&mut self, rate: SubmitRate, now: Timestamp) {
        let came = now.since(self.at).as_secs_f64() * rate.per_second;
        self.tokens = (self.tokens + came).min(rate.burst as f64);
        self.at = self.at.max(now);
    }

    /// Takes tokens for jobs that have been stored. A debt is paid by waiting.
    pub fn take(&mut self, jobs: u64) {
        self.tokens -= jobs as f64;
    }
}

/// Whether a tenant that has `in_use` may submit `wanted` more. Takes no tokens: that is for when the jobs are stored.
pub fn admit(
    tenant: TenantId,
    quota: &Quota,
    in_use: Amount,
    bucket: Option<&mut Bucket>,
    wanted: Amount,
    now: Timestamp,
) -> Result<(), QuotaExceeded> {
    let refuse = |quota, limit, room, after| Err(QuotaExceeded::new(tenant, quota, limit, room, after));
    if wanted.jobs == 0 {
        return Ok(());
    }
    if let Some(limit) = quota.queued
        && in_use.jobs + wanted.jobs > limit
    {
        return refuse(QuotaKind::Queued, limit, limit.saturating_sub(in_use.jobs), None);
    }
    if let Some(limit) = quota.bytes
        && in_use.bytes + wanted.bytes > limit
    {
        return refuse(QuotaKind::Bytes, limit, limit.saturating_sub(in_use.bytes), None);
    }
    if let (Some(rate), Some(bucket)) = (quota.submit_rate, bucket) {
        bucket.refill(rate, now);
        let missing = wanted.jobs as f64 - bucket.tokens;
        if missing > TOKEN_ROUNDING {
            let possible = wanted.jobs <= rate.burst;
            let after = possible.then(|| Duration::from_secs_f64(missing / rate.per_second));
            let room = (bucket.tokens + TOKEN_ROUNDING).max(0.0) as u64;
            return refuse(QuotaKind::SubmitRate, rate.burst, room, after);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const A: TenantId = TenantId::ROOT;

    fn jobs(jobs: u64) -> Amount {
        Amount { jobs, bytes: jobs * 10 }
    }

    #[test]
    fn a_quota_is_allowed_to_the_last_job_and_byte() {
        let quota = Quota::new().queued(10).bytes(95);
        assert_eq!(admit(A, &quota, jobs(3), None, jobs(6), NOW), Ok(()));
        let over = admit(A, &quota, jobs(3), None, jobs(8), NOW).expect_err("refused");
        assert_eq!((over.quota, over.limit, over.room), (QuotaKind::Queued, 10, 7));
        let over = admit(A, &quota, jobs(3), None, jobs(7), NOW).expect_err("refused");
        assert_eq!((over.quota, over.limit, over.room), (QuotaKind::Bytes, 95, 65));
    }

    #[test]
    fn tokens_come_back_over_time_and_never_exceed_the_burst() {
        let quota = Quota::new().submit_rate(2.0, 10);
        let mut bucket = Bucket::full(quota.submit_rate.expect("set"), NOW);
        let mut ask = |n: u64, after_ms: u64| {
            let now = NOW + Duration::from_millis(after_ms);
            let answer = admit(A, &quota, Amount::default(), Some(&mut bucket), jobs(n), now);
            if answer.is_ok() {
                bucket.take(n);
            }
            answer.map_err(|over| (over.room, over.retry_after))
        };
        assert_eq!(ask(10, 0), Ok(()));
        assert_eq!(ask(1, 0), Err((0, Some(Duration::from_millis(500)))));
        assert_eq!(ask(1, 500), Ok(()));
        assert_eq!(ask(11, 60_000), Err((10, None)), "more than the bucket holds is never possible");
        assert_eq!(ask(10, 60_000), Ok(()));
        assert_eq!(ask(1, 1), Err((0, Some(Duration::from_millis(500)))), "a clock that steps back gives nothing");
    }

    #[test]
    fn a_policy_of_its_own_replaces_the_default_as_a_whole() {
        let mut quotas = Quotas { default: Some(Quota::new().queued(5)), own: HashMap::default() };
        quotas.own.insert(A, Quota::new().running(2));
        assert_eq!(quotas.limiting(A), None);
        assert_eq!(quotas.cap(A), Some(2));
        assert!(quotas.has_caps() && !quotas.is_empty());
    }
}
