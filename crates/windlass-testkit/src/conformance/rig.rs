//! What the cases are written with: jobs in a line, claims and finishes in a word. Hides the store's API so that a case
//! reads as data in, data out. Panics where the store answers with an error, because no case expects one unnamed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use uuid::Uuid;
use windlass_core::store::{
    AuditEntry, AuditFilter, CancelReply, Claim, Claimed, Counts, Fence, Finish, Finished, LeaseId, NewNode, NodeId,
    NodeLease, Note, Noted, Recovered, ReplayedAs, Store, Submit, Submitted, Transition,
};
use windlass_core::{
    BatchId, ClaimedJob, HistoryEntry, ID_EPOCH, JobError, JobFilter, JobId, JobRecord, JobSpec, MachineSlot, NewJob,
    Page, Payload, Priority, Scope, Start, Status, TenantId, Timestamp, Unique, UniqueWithin,
};

use super::TestStore;

/// The tenant of jobs that do not say otherwise.
pub(super) const A: TenantId = TenantId(Uuid::from_u128(0xA));
/// Another tenant.
pub(super) const B: TenantId = TenantId(Uuid::from_u128(0xB));
/// The queue of jobs that do not say otherwise.
pub(super) const QUEUE: &str = "default";
/// The handler of jobs that do not say otherwise.
pub(super) const HANDLER: &str = "reports.generate";
/// Longer than any test: for what must not happen by itself.
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
/// A wait that a case goes through; [`PAST_SOON`] is longer. Where time really passes, on a busy machine, a case must be
/// able to look at what is to happen before it does.
pub(super) const SOON: Duration = Duration::from_millis(400);
/// After this much time everything that was to happen [`SOON`] is due.
pub(super) const PAST_SOON: Duration = Duration::from_millis(450);
/// A wait with room for a few reads before it is over, also on a busy database; [`PAST_A_WHILE`] is longer.
pub(super) const A_WHILE: Duration = Duration::from_millis(400);
/// After this much time everything that was to happen after [`A_WHILE`] is due.
pub(super) const PAST_A_WHILE: Duration = Duration::from_millis(450);
/// The lease of nodes; long enough for a heartbeat and the next call on a busy database.
pub(super) const LEASE: Duration = Duration::from_millis(400);
/// After this much time a node that was silent is dead.
pub(super) const PAST_LEASE: Duration = Duration::from_millis(500);
/// How long the attempts of the rig ran.
pub(super) const RAN: Duration = Duration::from_millis(5);
/// The scope of cases that look at all that there is.
pub(super) const EVERYONE: Scope = Scope::All(windlass_core::OperatorRight::assume());
/// More than any case has: for maintenance steps that shall do all there is.
pub(super) const ALL: usize = 10_000;

/// A store under test, a node registered in it, and a maker of ids.
#[derive(Clone, Debug)]
pub struct Rig {
    test: Arc<TestStore>,
    ids: Arc<Ids>,
    /// The node that claims and finishes where a case names no other.
    pub node: NodeId,
}

impl Rig {
    /// Registers a first node.
    pub async fn new(test: TestStore) -> Rig {
        let lease = test.store.register(a_node()).await.expect("a fresh store has free slots");
        let ids = Arc::new(Ids { slot: lease.slot, last: AtomicI64::new(0) });
        ids.reach(lease.now);
        Rig { test: Arc::new(test), ids, node: lease.node }
    }

    /// Drops the store and opens its data again, as a restarted process does; the same rig where nothing can be
    /// reopened.
    pub async fn restart(self) -> Rig {
        let mut test = Arc::try_unwrap(self.test).expect("a case restarts a rig that nobody else holds");
        if let Some(reopen) = test.reopen.take() {
            drop(test.store);
            test.store = reopen().await;
            test.reopen = Some(reopen);
        }
        Rig { test: Arc::new(test), ids: self.ids, node: self.node }
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        self.test.store.as_ref()
    }

    /// Moves the store's time.
    pub async fn advance(&self, by: Duration) {
        (self.test.advance)(by).await;
        self.ids.reach(self.now().await);
    }

    /// The store's time.
    pub async fn now(&self) -> Timestamp {
        self.store().now().await.expect("now")
    }

    // ---- nodes

    /// Saves a checkpoint under a fence. False if the fence is lost.
    pub async fn save_checkpoint(&self, node: NodeId, fence: Fence, data: Payload) -> bool {
        let note = Note { fence, what: Noted::Checkpoint(data) };
        self.store().note(node, vec![note]).await.expect("noted") == [true]
    }

    /// Registers another node.
    pub async fn another_node(&self) -> NodeId {
        self.register().await.node
    }

    /// Registers another node, with its slot.
    pub async fn register(&self) -> NodeLease {
        self.store().register(a_node()).await.expect("register")
    }

    /// A lease id that was never used.
    pub fn new_lease(&self) -> LeaseId {
        LeaseId(self.ids.next().as_i64())
    }

    /// Lets the rig's node die: time passes, others are heard of, it is not.
    pub async fn lose_node(&self, others: &[NodeId]) -> Vec<JobId> {
        self.advance(PAST_LEASE).await;
        for node in others {
            self.store().heartbeat(*node, 0).await.expect("heartbeat");
        }
        let recovered = self.recover(LEASE).await;
        assert!(recovered.nodes.contains(&self.node), "the silent node is declared dead");
        recovered.jobs
    }

    /// Declares everyone dead who has been silent for the lease, as an observer does that has long seen them so.
    pub async fn recover(&self, lease: Duration) -> Recovered {
        let silent = self.store().survey(lease, &[]).await.expect("survey").silent;
        self.store().recover(lease, &silent).await.expect("recover")
    }

    // ---- submitting

    /// A job of tenant `A` with a new id.
    pub fn job(&self) -> Job {
        Job(NewJob {
            id: self.ids.next(),
            tenant: A,
            handler: HANDLER.into(),
            queue: QUEUE.into(),
            priority: Priority::NORMAL,
            start: Start::Now,
            payload: payload("null"),
            idempotency_key: None,
            unique: None,
            ordering_key: None,
            batch: None,
            tags: Vec::new(),
            correlation_id: None,
            spec: JobSpec::default(),
        })
    }

    /// `n` plain jobs.
    pub fn jobs(&self, n: usize) -> Vec<Job> {
        (0..n).map(|_| self.job()).collect()
    }

    /// Submits in one call.
    pub async fn submit_all(&self, jobs: Vec<Job>) -> Vec<Submitted> {
        let jobs = jobs.into_iter().map(|job| job.0).collect();
        self.store().submit(Submit { jobs, lease: None }).await.expect("submit")
    }

    /// Submits one job that is not a duplicate.
    pub async fn submit(&self, job: Job) -> JobId {
        let submitted = self.try_submit(job).await;
        assert!(!submitted.duplicate, "the job is new");
        submitted.id
    }

    /// Submits one job that may be a duplicate.
    pub async fn try_submit(&self, job: Job) -> Submitted {
        self.submit_all(vec![job]).await[0]
    }

    /// Submits plain jobs, born leased to `node`.
    pub async fn submit_leased(&self, jobs: Vec<Job>, node: NodeId, lease: LeaseId) -> Vec<Submitted> {
        let jobs = jobs.into_iter().map(|job| job.0).collect();
        self.store().submit(Submit { jobs, lease: Some((node, lease)) }).await.expect("submit")
    }

    // ---- running

    /// The rig's node takes up to `max` jobs of the usual queue, most urgent first.
    pub async fn claim(&self, max: usize) -> Vec<ClaimedJob> {
        self.claim_as(self.node, max).await
    }

    /// `node` takes up to `max` jobs of the usual queue, most urgent first.
    pub async fn claim_as(&self, node: NodeId, max: usize) -> Vec<ClaimedJob> {
        self.claim_from(node, &[QUEUE], max).await
    }

    /// `node` takes up to `max` jobs of these queues, most urgent first.
    pub async fn claim_from(&self, node: NodeId, queues: &[&str], max: usize) -> Vec<ClaimedJob> {
        let queues = queues.iter().map(|queue| (queue.to_string(), max)).collect();
        self.claim_with(node, queues, max, [0; 4]).await.jobs
    }

    /// A claim with everything said.
    pub async fn claim_with(
        &self,
        node: NodeId,
        queues: Vec<(String, usize)>,
        max: usize,
        quota: [usize; 4],
    ) -> Claimed {
        let claim = Claim { node, lease: self.new_lease(), queues, max, quota, tenant: None };
        let claimed = self.store().claim(claim.clone()).await.expect("claim");
        assert!(claimed.jobs.len() <= max, "{} jobs claimed, {max} asked for", claimed.jobs.len());
        assert!(claimed.jobs.iter().all(|job| job.lease == claim.lease), "jobs are held under the claim's lease");
        claimed
    }

    /// Takes the one job that is ready.
    pub async fn claim_one(&self) -> ClaimedJob {
        let mut jobs = self.claim(2).await;
        assert_eq!(jobs.len(), 1, "one job is ready");
        jobs.remove(0)
    }

    /// Submits a job and takes it; nothing else is ready in its queue.
    pub async fn running(&self, job: Job) -> ClaimedJob {
        let queue = job.0.queue.clone();
        let id = self.submit(job).await;
        let mut claimed = self.claim_from(self.node, &[&queue], 2).await;
        assert_eq!(ids(&claimed), [id]);
        claimed.remove(0)
    }

    /// Ends an attempt of the rig's node.
    pub async fn finish(&self, job: &ClaimedJob, transition: Transition) -> Finished {
        self.finish_as(self.node, finish(job, transition)).await
    }

    /// Ends an attempt in the name of `node`.
    pub async fn finish_as(&self, node: NodeId, finish: Finish) -> Finished {
        let mut answers = self.store().finish(node, vec![finish]).await.expect("finish");
        assert_eq!(answers.len(), 1, "one answer for one finish");
        answers.remove(0)
    }

    /// Ends an attempt that the store must accept, and lets gates open.
    pub async fn end(&self, job: &ClaimedJob, transition: Transition) -> Status {
        let answer = self.finish(job, transition).await;
        self.open_gates().await;
        match answer {
            Finished::Accepted(status) => status,
            Finished::Fenced => panic!("job {} is held by the rig's node, yet its finish was refused", job.id),
        }
    }

    /// Submits a job and brings it to its end.
    pub async fn ended(&self, job: Job, transition: Transition) -> JobId {
        let claimed = self.running(job).await;
        self.end(&claimed, transition).await;
        claimed.id
    }

    // ---- maintenance

    /// Makes everything ready that is due.
    pub async fn promote(&self) -> usize {
        self.store().promote(ALL).await.expect("promote").jobs
    }

    /// Opens every gate that can be opened. Stores may have opened it with the finish or the resume already.
    pub async fn open_gates(&self) -> usize {
        self.store().open_gates(ALL).await.expect("open_gates")
    }

    /// Cancels everything that has expired.
    pub async fn expire(&self) -> usize {
        self.store().expire(ALL).await.expect("expire")
    }

    /// Removes everything whose time is over.
    pub async fn clean(&self) -> usize {
        self.store().clean(ALL).await.expect("clean")
    }

    // ---- reading and steering

    /// The job in the scope, if it is there.
    pub async fn find(&self, scope: Scope, id: JobId) -> Option<JobRecord> {
        let mut records = self.store().get(scope, &[id]).await.expect("get");
        assert!(records.len() <= 1, "one id, one job");
        records.pop()
    }

    /// The job, which is there.
    pub async fn record(&self, id: JobId) -> JobRecord {
        self.find(EVERYONE, id).await.unwrap_or_else(|| panic!("job {id} is there"))
    }

    /// The job's status, which is there.
    pub async fn status(&self, id: JobId) -> Status {
        self.record(id).await.status
    }

    /// Whether the job can be seen.
    pub async fn exists(&self, id: JobId) -> bool {
        self.find(EVERYONE, id).await.is_some()
    }

    /// The ids of a list.
    pub async fn list(&self, filter: JobFilter) -> Vec<JobId> {
        self.page(filter, Page::first(Page::MAX)).await
    }

    /// The ids of a page of a list.
    pub async fn page(&self, filter: JobFilter, page: Page) -> Vec<JobId> {
        let records = self.store().find(EVERYONE, &filter, page, None).await.expect("list").jobs;
        assert!(records.iter().all(|record| filter.matches(record)), "a list holds only what the filter passes");
        records.iter().map(|record| record.id).collect()
    }

    /// Everything that happened to a job.
    pub async fn history(&self, id: JobId) -> Vec<HistoryEntry> {
        self.store().history(EVERYONE, id).await.expect("history")
    }

    /// How many jobs there are in each status, of all tenants.
    pub async fn counts(&self) -> Counts {
        self.store().counts(EVERYONE).await.expect("counts")
    }

    /// Cancels as an operator.
    pub async fn cancel(&self, id: JobId) -> CancelReply {
        let reply = self.store().cancel(EVERYONE, id, "operator", "not needed").await.expect("cancel");
        self.open_gates().await;
        reply
    }

    /// Replays a dead letter as another job, which waits where no claim of the rig looks.
    pub async fn replay_as(&self, scope: Scope, id: JobId, keep: Duration) -> ReplayedAs {
        let job = self.job().queue("later").with(|job| job.spec.parent = Some(id));
        self.store().replay_as(scope, id, "op", job.0, keep).await.expect("replay_as")
    }

    /// The audit log, newest first.
    pub async fn audit(&self, scope: Scope, action: &str) -> Vec<AuditEntry> {
        let mut filter = AuditFilter::default();
        filter.action = Some(action.to_owned());
        filter.limit = Page::MAX;
        self.store().audit_log(scope, &filter).await.expect("audit_log")
    }
}

/// A job on its way into the store.
#[derive(Clone, Debug)]
pub struct Job(pub NewJob);

impl Job {
    /// Its id.
    pub fn id(&self) -> JobId {
        self.0.id
    }

    /// Changes anything.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut NewJob)) -> Job {
        change(&mut self.0);
        self
    }

    /// Gives it to another tenant.
    #[must_use]
    pub fn tenant(self, tenant: TenantId) -> Job {
        self.with(|job| job.tenant = tenant)
    }

    /// Names the handler.
    #[must_use]
    pub fn handler(self, handler: &str) -> Job {
        self.with(|job| job.handler = handler.into())
    }

    /// Names the queue.
    #[must_use]
    pub fn queue(self, queue: &str) -> Job {
        self.with(|job| job.queue = queue.into())
    }

    /// Sets the priority.
    #[must_use]
    pub fn priority(self, priority: Priority) -> Job {
        self.with(|job| job.priority = priority)
    }

    /// Starts it this long after the submit.
    #[must_use]
    pub fn after(self, delay: Duration) -> Job {
        self.with(|job| job.start = Start::After(delay))
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn key(self, key: &str) -> Job {
        self.with(|job| job.idempotency_key = Some(key.into()))
    }

    /// Sets the unique key.
    #[must_use]
    pub fn unique(self, key: &str, within: UniqueWithin) -> Job {
        self.with(|job| job.unique = Some(Unique { key: Some(key.into()), within }))
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn ordered(self, key: &str) -> Job {
        self.with(|job| job.ordering_key = Some(key.into()))
    }

    /// Sets the batch.
    #[must_use]
    pub fn batch(self, batch: BatchId) -> Job {
        self.with(|job| job.batch = Some(batch))
    }

    /// Adds a label.
    #[must_use]
    pub fn tag(self, tag: &str) -> Job {
        self.with(|job| job.tags.push(tag.into()))
    }

    /// Sets when it expires.
    #[must_use]
    pub fn expires_at(self, at: Timestamp) -> Job {
        self.with(|job| job.spec.expires_at = Some(at))
    }
}

/// Makes ids that follow the store's time, also a manual one, so that the time in an id is when it was submitted.
#[derive(Debug)]
struct Ids {
    slot: MachineSlot,
    /// Milliseconds since [`ID_EPOCH`] and a sequence, as one number.
    last: AtomicI64,
}

/// Bits of the sequence within a millisecond.
const SEQUENCE_BITS: u32 = 12;

impl Ids {
    /// Ids from now on are not before `now`.
    fn reach(&self, now: Timestamp) {
        let tick = (now.as_millis() - ID_EPOCH.as_millis()) << SEQUENCE_BITS;
        self.last.fetch_max(tick, Ordering::SeqCst);
    }

    fn next(&self) -> JobId {
        let tick = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        let created = ID_EPOCH + Duration::from_millis((tick >> SEQUENCE_BITS) as u64);
        JobId::from_parts(created, self.slot, (tick & ((1 << SEQUENCE_BITS) - 1)) as u16)
    }
}

/// A node that can run a few jobs.
pub(super) fn a_node() -> NewNode {
    NewNode {
        host: "rig".into(),
        pid: 7,
        version: env!("CARGO_PKG_VERSION").into(),
        handlers: vec![HANDLER.into()],
        capacity: 16,
    }
}

/// JSON that the case knows to be JSON.
pub(super) fn payload(json: &str) -> Payload {
    Payload::check("input", json, 1 << 20).expect("the case writes JSON")
}

/// The end of an attempt.
pub(super) fn finish(job: &ClaimedJob, transition: Transition) -> Finish {
    Finish {
        fence: fence(job),
        attempt: job.attempt(),
        ran: RAN,
        transition,
        follow_up: None,
        cost: None,
        audit: false,
        batch: job.counted_batch(),
        resumed: true,
    }
}

/// What a write to a claimed job names.
pub(super) fn fence(job: &ClaimedJob) -> Fence {
    Fence { job: job.id, lease: job.lease }
}

/// Success without output, kept for long.
pub(super) fn succeed() -> Transition {
    Transition::Succeed { output: None, keep: HOUR }
}

/// Success without output, kept for a moment.
pub(super) fn succeed_briefly() -> Transition {
    Transition::Succeed { output: None, keep: SOON }
}

/// The `failed`th failure, tried again after `delay`.
pub(super) fn retry(failed: u16, delay: Duration) -> Transition {
    Transition::Retry { failed, delay, error: JobError::retryable("no luck") }
}

/// A dead letter for `reason`, after one failure.
pub(super) fn dead(reason: &str) -> Transition {
    dead_after(1, reason)
}

/// A dead letter for `reason`, after `failed` failures.
pub(super) fn dead_after(failed: u16, reason: &str) -> Transition {
    Transition::DeadLetter {
        failed,
        reason: reason.into(),
        error: JobError::terminal(reason, "it is over"),
        keep: None,
    }
}

/// The ids of claimed jobs, in their order.
pub(super) fn ids(jobs: &[ClaimedJob]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

/// The ids of submitted jobs, in their order.
pub(super) fn submitted_ids(submitted: &[Submitted]) -> Vec<JobId> {
    submitted.iter().map(|s| s.id).collect()
}

/// Ids in order, to compare what has none.
pub(super) fn sorted(mut ids: Vec<JobId>) -> Vec<JobId> {
    ids.sort_unstable();
    ids
}

/// Newest first, as lists are.
pub(super) fn newest_first(ids: Vec<JobId>) -> Vec<JobId> {
    let mut ids = sorted(ids);
    ids.reverse();
    ids
}

/// Runs `n` calls on tasks of their own, so that they truly meet, and collects the answers.
pub(super) async fn at_once<T, F>(n: usize, call: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(tokio::sync::Barrier::new(n));
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..n {
        let (start, call) = (Arc::clone(&start), call(i));
        calls.spawn(async move {
            start.wait().await;
            call.await
        });
    }
    calls.join_all().await
}
