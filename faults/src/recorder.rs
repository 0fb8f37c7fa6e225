//! A store that writes down what a node asks of it and what it answers, and changes nothing. Wrapped around the real
//! store in every process of a run, so that the checker sees the store's own words and not the runtime's reading of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use windlass::activity::{Addition, Resolution, Slice, Waiting};
use windlass::health::{Checkup, Finding, HeldSnapshot, Vitals};
use windlass::store::{
    AuditEntry, AuditFilter, Beat, CancelReply, Claim, Claimed, Counts, DataKeyRecord, EditReply, Error, FeedAsk,
    FeedRow, Fence, Finish, Finished, Limited, LogReport, NewNode, NodeId, NodeLease, NodeRecord, Pause, PauseTarget,
    ProgressReport, Promoted, Recovered, ReplayReply, Result, Store, Submit, Submitted, Survey, Transition,
    WaitingQueue, Whereabouts, WrappedKey,
};
use windlass::{
    Cost, Edit, HistoryEntry, JobFilter, JobId, JobRecord, LogLine, NewJob, Page, Payload, Quota, Quotas, Scope, Start,
    TenantId, TenantUse, Timestamp, UsageEvent, UsageRow,
};

use crate::event::{FinishEnd, Held, What};
use crate::log::{Log, mono};

/// The recording store.
pub struct Recorder {
    store: Arc<dyn Store>,
    log: Log,
    batches: AtomicU64,
}

impl Recorder {
    /// Records what happens to `store`.
    pub fn new(store: Arc<dyn Store>, log: Log) -> Recorder {
        Recorder { store, log, batches: AtomicU64::new(0) }
    }

    fn wrote(&self, what: &str, fence: Fence, asked_at: u64, accepted: bool) {
        let (job, lease) = (fence.job.as_i64(), fence.lease.0);
        self.log.note(What::Write { what: what.into(), job, lease, asked_at, accepted });
    }
}

#[async_trait]
impl Store for Recorder {
    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        let asked_at = mono();
        let Some((node, lease)) = submit.lease else { return self.store.submit(submit).await };
        let born: Vec<Held> = submit.jobs.iter().filter(|job| is_born_leased(job)).map(newborn).collect();
        let max = submit.jobs.len();
        let submitted = self.store.submit(submit).await?;
        let (node, lease) = (node.0, lease.0);
        self.log.note(What::Claim { node, lease, asked_at, born: true, max, jobs: born });
        Ok(submitted)
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        let (node, lease, max, asked_at) = (claim.node.0, claim.lease.0, claim.max, mono());
        let claimed = self.store.claim(claim).await?;
        if !claimed.jobs.is_empty() {
            let held = |job: &windlass::ClaimedJob| Held {
                job: job.id.as_i64(),
                attempt: job.attempt(),
                failed: job.failed,
                recoveries: job.recoveries,
                queue: job.queue.clone(),
                priority: job.priority.0,
            };
            let jobs = claimed.jobs.iter().map(held).collect();
            self.log.note(What::Claim { node, lease, asked_at, born: false, max, jobs });
        }
        Ok(claimed)
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let end = |finish: &Finish| FinishEnd {
            job: finish.fence.job.as_i64(),
            lease: finish.fence.lease.0,
            attempt: finish.attempt,
            transition: name(&finish.transition).into(),
        };
        self.log.note(What::FinishCall { batch, ends: finishes.iter().map(end).collect() });
        let answer = self.store.finish(node, finishes).await;
        match &answer {
            Ok(finished) => {
                let reply = |finished: &Finished| match finished {
                    Finished::Accepted(status) => Some(status.to_string()),
                    Finished::Fenced => None,
                };
                self.log.note(What::FinishReply { batch, replies: finished.iter().map(reply).collect() });
            }
            Err(error) => {
                let nothing_written = matches!(
                    error,
                    Error::Unavailable(_) | Error::Full(_) | Error::InvalidInput(_) | Error::Refused(_)
                );
                let unknown = !nothing_written;
                self.log.note(What::FinishFailed { batch, code: error.code().into(), unknown });
            }
        }
        answer
    }

    async fn report_progress(&self, node: NodeId, reports: Vec<ProgressReport>) -> Result<Vec<bool>> {
        let asked_at = mono();
        let fences: Vec<Fence> = reports.iter().map(|report| report.fence).collect();
        let kept = self.store.report_progress(node, reports).await?;
        for (fence, kept) in fences.into_iter().zip(&kept) {
            self.wrote("progress", fence, asked_at, *kept);
        }
        Ok(kept)
    }

    async fn add_logs(&self, node: NodeId, reports: Vec<LogReport>) -> Result<Vec<bool>> {
        let asked_at = mono();
        let fences: Vec<Fence> = reports.iter().map(|report| report.fence).collect();
        let kept = self.store.add_logs(node, reports).await?;
        for (fence, kept) in fences.into_iter().zip(&kept) {
            self.wrote("logs", fence, asked_at, *kept);
        }
        Ok(kept)
    }

    async fn save_checkpoint(&self, node: NodeId, fence: Fence, data: Payload) -> Result<bool> {
        let asked_at = mono();
        let kept = self.store.save_checkpoint(node, fence, data).await?;
        self.wrote("checkpoint", fence, asked_at, kept);
        Ok(kept)
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        let beat = self.store.heartbeat(node, running).await?;
        self.log.note(What::Beat { node: node.0, alive: matches!(beat, Beat::Alive { .. }) });
        Ok(beat)
    }

    async fn recover(&self, lease: Duration) -> Result<Recovered> {
        let recovered = self.store.recover(lease).await?;
        if !recovered.nodes.is_empty() {
            let nodes = recovered.nodes.iter().map(|node| node.0).collect();
            let jobs = recovered.jobs.iter().map(|job| job.as_i64()).collect();
            self.log.note(What::Recovered { nodes, jobs });
        }
        Ok(recovered)
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        self.store.deregister(node).await?;
        self.log.note(What::Deregistered { node: node.0 });
        Ok(())
    }

    // ---- passed on as they are

    fn name(&self) -> &'static str {
        self.store.name()
    }
    async fn now(&self) -> Result<Timestamp> {
        self.store.now().await
    }
    fn deadline(&self) -> Duration {
        self.store.deadline()
    }
    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        self.store.held(node).await
    }
    fn writers(&self) -> usize {
        self.store.writers()
    }
    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        self.store.register(node).await
    }
    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.store.nodes().await
    }
    async fn get(&self, scope: Scope, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        self.store.get(scope, ids).await
    }
    async fn input(&self, scope: Scope, id: JobId) -> Result<Option<Payload>> {
        self.store.input(scope, id).await
    }
    async fn list(&self, scope: Scope, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
        self.store.list(scope, filter, page).await
    }
    async fn history(&self, scope: Scope, id: JobId) -> Result<Vec<HistoryEntry>> {
        self.store.history(scope, id).await
    }
    async fn logs(&self, scope: Scope, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        self.store.logs(scope, id, after).await
    }
    async fn counts(&self, scope: Scope) -> Result<Counts> {
        self.store.counts(scope).await
    }
    async fn whereabouts(&self, scope: Scope, id: JobId) -> Result<Option<Whereabouts>> {
        self.store.whereabouts(scope, id).await
    }
    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        self.store.waiting_queues().await
    }
    async fn cancel(&self, scope: Scope, id: JobId, by: &str, reason: &str) -> Result<CancelReply> {
        self.store.cancel(scope, id, by, reason).await
    }
    async fn replay(&self, scope: Scope, id: JobId, by: &str) -> Result<ReplayReply> {
        self.store.replay(scope, id, by).await
    }
    async fn mark_replayed(&self, scope: Scope, id: JobId, by: &str, as_job: JobId, keep: Duration) -> Result<bool> {
        self.store.mark_replayed(scope, id, by, as_job, keep).await
    }
    async fn edit(&self, scope: Scope, id: JobId, by: &str, edit: &Edit) -> Result<EditReply> {
        self.store.edit(scope, id, by, edit).await
    }
    async fn purge(&self, scope: Scope, id: JobId, by: &str) -> Result<bool> {
        self.store.purge(scope, id, by).await
    }
    async fn pause(&self, target: &PauseTarget, by: &str, reason: &str) -> Result<()> {
        self.store.pause(target, by, reason).await
    }
    async fn resume(&self, target: &PauseTarget, by: &str) -> Result<bool> {
        self.store.resume(target, by).await
    }
    async fn pauses(&self) -> Result<Vec<Pause>> {
        self.store.pauses().await
    }
    async fn audit(&self, entry: AuditEntry) -> Result<()> {
        self.store.audit(entry).await
    }
    async fn audit_log(&self, scope: Scope, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        self.store.audit_log(scope, filter).await
    }
    async fn held_snapshots(&self, longer_than: Duration) -> Result<Vec<HeldSnapshot>> {
        self.store.held_snapshots(longer_than).await
    }
    async fn examine(&self, checkup: &Checkup) -> Result<Vec<Finding>> {
        self.store.examine(checkup).await
    }
    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>, by: &str) -> Result<()> {
        self.store.set_quota(of, quota, by).await
    }
    async fn quotas(&self) -> Result<Quotas> {
        self.store.quotas().await
    }
    async fn tenant_uses(&self, scope: Scope) -> Result<Vec<TenantUse>> {
        self.store.tenant_uses(scope).await
    }
    fn limited(&self, tenant: TenantId) -> Limited {
        self.store.limited(tenant)
    }
    async fn record_cost(&self, scope: Scope, id: JobId, by: &str, cost: Cost) -> Result<bool> {
        self.store.record_cost(scope, id, by, cost).await
    }
    async fn usage_by_day(&self, scope: Scope, from: &str, to: &str) -> Result<Vec<UsageRow>> {
        self.store.usage_by_day(scope, from, to).await
    }
    async fn usage_events(&self, scope: Scope, after: u64, limit: usize) -> Result<Vec<UsageEvent>> {
        self.store.usage_events(scope, after, limit).await
    }
    async fn data_keys(&self, scope: Scope) -> Result<Vec<DataKeyRecord>> {
        self.store.data_keys(scope).await
    }
    async fn add_data_key(&self, tenant: TenantId, version: u32, wrapped: WrappedKey) -> Result<bool> {
        self.store.add_data_key(tenant, version, wrapped).await
    }
    async fn rewrap_data_key(&self, tenant: TenantId, version: u32, old: &WrappedKey, new: WrappedKey) -> Result<bool> {
        self.store.rewrap_data_key(tenant, version, old, new).await
    }
    async fn destroy_data_keys(&self, tenant: TenantId) -> Result<usize> {
        self.store.destroy_data_keys(tenant).await
    }
    async fn want_feed(&self, time: Duration) -> Result<()> {
        self.store.want_feed(time).await
    }
    async fn feed_end(&self) -> Result<u64> {
        self.store.feed_end().await
    }
    async fn read_feed(&self, ask: &FeedAsk, limit: usize) -> Result<Vec<FeedRow>> {
        self.store.read_feed(ask, limit).await
    }
    async fn survey(&self, lease: Duration, queues: &[String]) -> Result<Survey> {
        self.store.survey(lease, queues).await
    }
    async fn promote(&self, limit: usize) -> Result<Promoted> {
        self.store.promote(limit).await
    }
    async fn expire(&self, limit: usize) -> Result<usize> {
        self.store.expire(limit).await
    }
    async fn open_gates(&self, limit: usize) -> Result<usize> {
        self.store.open_gates(limit).await
    }
    async fn clean(&self, limit: usize) -> Result<usize> {
        self.store.clean(limit).await
    }
    async fn add_activity(&self, at: Timestamp, additions: Vec<Addition>) -> Result<()> {
        self.store.add_activity(at, additions).await
    }
    async fn activity(&self, scope: Scope, resolution: Resolution, from: Timestamp) -> Result<Vec<Slice>> {
        self.store.activity(scope, resolution, from).await
    }
    async fn sample_depth(&self) -> Result<()> {
        self.store.sample_depth().await
    }
    async fn depths(&self, resolution: Resolution, from: Timestamp) -> Result<Vec<(Timestamp, Counts)>> {
        self.store.depths(resolution, from).await
    }
    async fn clean_activity(&self, limit: usize) -> Result<usize> {
        self.store.clean_activity(limit).await
    }
    async fn backlog(&self, scope: Scope) -> Result<Vec<Waiting>> {
        self.store.backlog(scope).await
    }
    async fn vitals(&self) -> Result<Vitals> {
        self.store.vitals().await
    }
    async fn wait_for_wake(&self) {
        self.store.wait_for_wake().await;
    }
    fn wake_others(&self) {
        self.store.wake_others();
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self.store.as_any()
    }
}

/// Which jobs of a leased submit run when it returns.
fn is_born_leased(job: &NewJob) -> bool {
    job.is_plain() && job.start == Start::Now
}

fn newborn(job: &NewJob) -> Held {
    Held {
        job: job.id.as_i64(),
        attempt: 1,
        failed: 0,
        recoveries: 0,
        queue: job.queue.clone(),
        priority: job.priority.0,
    }
}

fn name(transition: &Transition) -> &'static str {
    match transition {
        Transition::Succeed { .. } => "succeed",
        Transition::Retry { .. } => "retry",
        Transition::DeadLetter { .. } => "dead_letter",
        Transition::Cancel { .. } => "cancel",
        Transition::Snooze { .. } => "snooze",
        Transition::Release => "release",
        Transition::Park { .. } => "park",
        Transition::Route { .. } => "route",
    }
}
