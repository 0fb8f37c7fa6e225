//! What is easy to get wrong in a store, on the memory store: keys, gates, fences, recovery and the order of claims.
//! Time moves only when a test moves it.

use std::cell::Cell;

use uuid::Uuid;

use super::*;
use crate::clock::ManualClock;
use crate::job::{JobSpec, Progress, Start, Unique};
use crate::priority::Priority;
use crate::store::suspect_queue;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const A: TenantId = TenantId(Uuid::from_u128(0xa));
const B: TenantId = TenantId(Uuid::from_u128(0xb));

/// A store with one node and a clock that stands still.
struct Fixture {
    store: MemoryStore,
    clock: ManualClock,
    node: NodeId,
    leases: Cell<i64>,
    ids: Cell<u64>,
}

impl Fixture {
    async fn new() -> Self {
        let clock = ManualClock::at(NOW);
        let store = MemoryStore::with_clock(Arc::new(clock.clone()));
        let node = store.register(NewNode::default()).await.expect("slots are free").node;
        Fixture { store, clock, node, leases: Cell::new(0), ids: Cell::new(0) }
    }

    fn job(&self) -> NewJob {
        let n = self.ids.replace(self.ids.get() + 1);
        let created = NOW + Duration::from_millis(n / 4096);
        NewJob {
            id: JobId::from_parts(created, MachineSlot(0), (n % 4096) as u16),
            tenant: A,
            handler: "h".into(),
            queue: "q".into(),
            priority: Priority::NORMAL,
            start: Start::Now,
            payload: Payload::null(),
            idempotency_key: None,
            unique: None,
            ordering_key: None,
            batch: None,
            tags: Vec::new(),
            correlation_id: None,
            spec: JobSpec::default(),
        }
    }

    fn keyed(&self, key: &str) -> NewJob {
        NewJob { ordering_key: Some(key.into()), ..self.job() }
    }

    async fn submit(&self, job: NewJob) -> JobId {
        let replies = self.submit_all(vec![job]).await;
        assert!(!replies[0].duplicate, "no other job has its key");
        replies[0].id
    }

    async fn submit_all(&self, jobs: Vec<NewJob>) -> Vec<Submitted> {
        self.store.submit(Submit { jobs, lease: None }).await.expect("memory accepts")
    }

    async fn is_duplicate_of(&self, job: NewJob) -> Option<JobId> {
        let reply = self.submit_all(vec![job]).await[0];
        reply.duplicate.then_some(reply.id)
    }

    fn lease(&self) -> LeaseId {
        LeaseId(self.leases.replace(self.leases.get() + 1))
    }

    async fn claim_with(&self, node: NodeId, queues: &[(&str, usize)], max: usize, quota: [usize; 4]) -> Claimed {
        let queues = queues.iter().map(|(queue, limit)| ((*queue).to_owned(), *limit)).collect();
        let claim = Claim { node, lease: self.lease(), queues, max, quota };
        self.store.claim(claim).await.expect("memory answers")
    }

    /// Claims from the usual queue, in order of urgency.
    async fn claim(&self, max: usize) -> Vec<Fence> {
        let claimed = self.claim_with(self.node, &[("q", usize::MAX)], max, [0; 4]).await;
        claimed.jobs.iter().map(|job| Fence { job: job.id, lease: job.lease }).collect()
    }

    async fn claim_one(&self) -> Fence {
        *self.claim(1).await.first().expect("a job is ready")
    }

    async fn ready(&self) -> Vec<JobId> {
        let fences = self.claim(usize::MAX).await;
        for fence in &fences {
            self.finish(*fence, Transition::Release).await;
        }
        fences.iter().map(|fence| fence.job).collect()
    }

    async fn finish(&self, fence: Fence, transition: Transition) -> Finished {
        self.finish_and(fence, transition, None).await
    }

    async fn finish_and(&self, fence: Fence, transition: Transition, follow_up: Option<NewJob>) -> Finished {
        let finish =
            Finish { fence, attempt: 1, ran: SECOND, transition, follow_up: follow_up.map(Box::new), cost: None };
        self.store.finish(self.node, vec![finish]).await.expect("memory answers")[0].clone()
    }

    async fn record(&self, id: JobId) -> JobRecord {
        self.find(id).await.expect("the job is visible")
    }

    async fn find(&self, id: JobId) -> Option<JobRecord> {
        self.store.get(Scope::ENGINE, &[id]).await.expect("memory answers").pop()
    }

    async fn status(&self, id: JobId) -> Status {
        self.record(id).await.status
    }

    async fn cancel(&self, id: JobId) -> CancelReply {
        self.store.cancel(Scope::ENGINE, id, "op", "not needed").await.expect("memory answers")
    }

    async fn count(&self, status: Status) -> u64 {
        self.store.counts(Scope::ENGINE).await.expect("memory answers").get(status)
    }

    async fn actions(&self) -> Vec<(String, Option<String>)> {
        let log = self.store.audit_log(Scope::ENGINE, &AuditFilter::default()).await.expect("memory answers");
        log.into_iter().rev().map(|entry| (entry.action, entry.detail)).collect()
    }
}

fn succeed() -> Transition {
    Transition::Succeed { output: None, keep: DAY }
}

fn retry(failed: u16) -> Transition {
    Transition::Retry { failed, delay: SECOND, error: JobError::retryable("io") }
}

fn die() -> Transition {
    Transition::DeadLetter { reason: "max_retries".into(), error: JobError::retryable("io") }
}

// ---- nodes

#[tokio::test]
async fn a_slot_is_leased_to_one_node_and_rests_before_the_next() {
    let f = Fixture::new().await;
    let second = f.store.register(NewNode::default()).await.unwrap();
    assert_eq!(second.slot, MachineSlot(1));
    f.store.deregister(f.node).await.unwrap();
    assert_eq!(f.store.register(NewNode::default()).await.unwrap().slot, MachineSlot(2), "slot 0 is in quarantine");
    f.clock.advance(SLOT_QUARANTINE);
    let third = f.store.register(NewNode::default()).await.unwrap();
    assert_eq!(third.slot, MachineSlot(0));
    assert!(third.node > second.node);
}

#[tokio::test]
async fn a_slot_starts_after_every_id_it_made_before() {
    let f = Fixture::new().await;
    let borrowed = JobId::from_parts(NOW + DAY, MachineSlot(0), 7);
    f.submit(NewJob { id: borrowed, ..f.job() }).await;
    f.store.deregister(f.node).await.unwrap();
    f.clock.advance(SLOT_QUARANTINE);
    let lease = f.store.register(NewNode::default()).await.unwrap();
    assert_eq!(lease.slot, MachineSlot(0));
    assert!(lease.now > borrowed.created());
}

#[tokio::test]
async fn the_database_slot_is_never_leased() {
    let f = Fixture::new().await;
    for slot in 1..1023 {
        assert_eq!(f.store.register(NewNode::default()).await.unwrap().slot, MachineSlot(slot));
    }
    assert!(matches!(f.store.register(NewNode::default()).await, Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn a_node_that_left_is_fenced_everywhere_and_its_jobs_cost_nothing() {
    let f = Fixture::new().await;
    let id = f.submit(f.job()).await;
    let fence = f.claim_one().await;
    f.store.deregister(f.node).await.unwrap();
    let record = f.record(id).await;
    assert_eq!((record.status, record.failed, record.recoveries), (Status::Pending, 0, 0));
    assert_eq!(f.store.heartbeat(f.node, 0).await.unwrap(), Beat::Fenced);
    assert_eq!(f.finish(fence, succeed()).await, Finished::Fenced);
    assert!(f.claim(1).await.is_empty());
    let born = Submit { jobs: vec![f.job()], lease: Some((f.node, f.lease())) };
    let born = f.store.submit(born).await.unwrap()[0].id;
    assert_eq!(f.status(born).await, Status::Pending, "kept for others");
}

#[tokio::test]
async fn a_lost_node_costs_a_recovery_and_its_fence() {
    let f = Fixture::new().await;
    let (id, canceled) = (f.submit(f.job()).await, f.submit(f.job()).await);
    let fences = f.claim(2).await;
    f.cancel(canceled).await;
    f.clock.advance(SECOND);
    assert_eq!(f.store.recover(SECOND).await.unwrap(), Recovered::default(), "just in time");
    f.clock.advance(Duration::from_micros(1));
    let recovered = f.store.recover(SECOND).await.unwrap();
    assert_eq!(recovered, Recovered { nodes: vec![f.node], jobs: vec![id] });
    assert_eq!(f.status(canceled).await, Status::Canceled);
    assert_eq!(f.finish(fences[0], succeed()).await, Finished::Fenced);
    let report =
        ProgressReport { fence: fences[0], progress: Progress { sequence: 1, percent: 1.0, message: String::new() } };
    assert_eq!(f.store.report_progress(f.node, vec![report]).await.unwrap(), [false]);
    assert!(!f.store.save_checkpoint(f.node, fences[0], Payload::null()).await.unwrap());

    let other = f.store.register(NewNode::default()).await.unwrap().node;
    assert!(f.claim_with(other, &[("q", 9)], 9, [0; 4]).await.jobs.is_empty(), "suspects have their own queue");
    let suspects = f.claim_with(other, &[(&suspect_queue("q"), 1)], 9, [0; 4]).await;
    assert_eq!((suspects.jobs[0].id, suspects.jobs[0].recoveries, suspects.jobs[0].attempt()), (id, 1, 2));
    assert_eq!(suspects.jobs[0].queue, suspect_queue("q"));
    let history = f.store.history(Scope::ENGINE, id).await.unwrap();
    assert_eq!(
        history.iter().map(|h| h.status).collect::<Vec<_>>(),
        [Status::Pending, Status::Pending, Status::Running]
    );
    assert_eq!(history[1].error.as_ref().unwrap().code, "node_unavailable");
    assert_eq!((history[1].node, history[1].attempt), (Some(f.node), 1));
}

#[tokio::test]
async fn a_suspect_goes_back_to_the_suspects() {
    let f = Fixture::new().await;
    let id = f.submit(f.job()).await;
    f.claim_one().await;
    f.clock.advance(SECOND * 2);
    f.store.recover(SECOND).await.unwrap();
    let node = f.store.register(NewNode::default()).await.unwrap().node;
    let suspects = suspect_queue("q");
    for transition in [Transition::Release, retry(1)] {
        let claimed = f.claim_with(node, &[(&suspects, 9)], 9, [0; 4]).await;
        let fence = Fence { job: claimed.jobs[0].id, lease: claimed.jobs[0].lease };
        let finish = Finish { fence, attempt: 2, ran: SECOND, transition, follow_up: None, cost: None };
        f.store.finish(node, vec![finish]).await.unwrap();
    }
    f.clock.advance(SECOND);
    assert_eq!(f.store.promote(9).await.unwrap().jobs, 1);
    let claimed = f.claim_with(node, &[("q", 9), (&suspects, 9)], 9, [0; 4]).await;
    assert_eq!(claimed.jobs[0].id, id);
    assert_eq!((claimed.jobs[0].failed, claimed.jobs[0].recoveries), (1, 1));
}

// ---- submit

#[tokio::test]
async fn a_plain_job_is_born_leased_and_others_are_not() {
    let f = Fixture::new().await;
    let later = NewJob { start: Start::After(SECOND), ..f.job() };
    let jobs = vec![f.job(), f.keyed("k"), later];
    let lease = f.lease();
    let replies = f.store.submit(Submit { jobs, lease: Some((f.node, lease)) }).await.unwrap();
    let mut statuses = Vec::new();
    for reply in &replies {
        statuses.push(f.status(reply.id).await);
    }
    assert_eq!(statuses, [Status::Running, Status::Pending, Status::Scheduled]);
    let fence = Fence { job: replies[0].id, lease };
    assert_eq!(f.finish(fence, succeed()).await, Finished::Accepted(Status::Succeeded));
    assert_eq!(f.finish(fence, succeed()).await, Finished::Fenced, "a second finish is not accepted");
}

#[tokio::test]
async fn an_idempotency_key_holds_until_its_job_is_gone() {
    let f = Fixture::new().await;
    let keyed = || NewJob { idempotency_key: Some("once".into()), ..f.job() };
    let replies = f.submit_all(vec![keyed(), keyed()]).await;
    let first = replies[0].id;
    assert_eq!(replies[1], Submitted { id: first, duplicate: true }, "also inside one batch");
    let fence = f.claim_one().await;
    f.finish(fence, succeed()).await;
    assert_eq!(f.is_duplicate_of(keyed()).await, Some(first), "an ended job keeps its key");
    assert_eq!(f.is_duplicate_of(NewJob { tenant: B, ..keyed() }).await, None);
    assert_eq!(f.is_duplicate_of(NewJob { handler: "other".into(), ..keyed() }).await, None);

    f.clock.advance(DAY);
    let second = f.submit(keyed()).await;
    assert_eq!(f.store.clean(10).await.unwrap(), 1);
    assert_eq!(f.is_duplicate_of(keyed()).await, Some(second), "cleaning the first leaves the second's key alone");
    f.cancel(second).await;
    assert!(f.store.purge(Scope::ENGINE, second, "op").await.unwrap());
    assert_eq!(f.is_duplicate_of(keyed()).await, None);
}

#[tokio::test]
async fn a_unique_key_holds_until_the_job_ends_or_the_window_passes() {
    let f = Fixture::new().await;
    let unique = |within| NewJob { unique: Some(Unique { key: Some("u".into()), within }), ..f.job() };
    let first = f.submit(unique(UniqueWithin::Unfinished)).await;
    assert_eq!(f.is_duplicate_of(unique(UniqueWithin::Unfinished)).await, Some(first));
    f.cancel(first).await;
    let second = f.submit(unique(UniqueWithin::Window(SECOND * 10))).await;
    f.cancel(second).await;
    assert!(f.store.purge(Scope::ENGINE, second, "op").await.unwrap());
    f.clock.advance(SECOND * 9);
    f.store.clean(10).await.unwrap();
    assert_eq!(f.is_duplicate_of(unique(UniqueWithin::Unfinished)).await, Some(second), "whatever became of it");
    f.clock.advance(SECOND);
    f.store.clean(10).await.unwrap();
    f.submit(unique(UniqueWithin::Unfinished)).await;
}

#[tokio::test]
async fn an_id_in_use_refuses_the_whole_batch() {
    let f = Fixture::new().await;
    let id = f.submit(f.job()).await;
    let jobs = vec![f.job(), NewJob { id, ..f.job() }];
    assert!(matches!(f.store.submit(Submit { jobs, lease: None }).await, Err(Error::Internal(_))));
    assert_eq!(f.count(Status::Pending).await, 1);
}

// ---- claim

#[tokio::test]
async fn a_light_tenant_does_not_wait_for_a_heavy_one() {
    let f = Fixture::new().await;
    f.submit_all((0..1_000).map(|_| f.job()).collect()).await;
    f.claim(100).await;
    let light = f.submit(NewJob { tenant: B, ..f.job() }).await;
    assert!(f.claim(5).await.iter().any(|fence| fence.job == light));
}

#[tokio::test]
async fn bands_get_their_part_then_the_most_urgent_fill_up() {
    let f = Fixture::new().await;
    for priority in [Priority::LOW, Priority::NORMAL, Priority::HIGH, Priority::CRITICAL] {
        f.submit_all((0..10).map(|_| NewJob { priority, ..f.job() }).collect()).await;
    }
    let claimed = f.claim_with(f.node, &[("q", 99)], 12, [4, 3, 2, 1]).await;
    let mut parts = [0; 4];
    claimed.jobs.iter().for_each(|job| parts[job.priority.band().index()] += 1);
    assert_eq!(parts, [6, 3, 2, 1]);
    assert!(claimed.jobs.is_sorted_by_key(|job| std::cmp::Reverse(job.priority)), "most urgent first");
    assert_eq!(claimed.more, [true; 4]);
    let claimed = f.claim_with(f.node, &[("q", 99)], 4, [0; 4]).await;
    assert_eq!(claimed.more, [false, true, true, true]);
    assert_eq!(f.claim_with(f.node, &[("elsewhere", 99)], 4, [1; 4]).await.more, [false; 4]);
}

#[tokio::test]
async fn a_queue_gives_no_more_than_its_limit_and_the_first_comes_first() {
    let f = Fixture::new().await;
    let jobs = (0..6).map(|n| NewJob { queue: if n < 3 { "slow".into() } else { "q".into() }, ..f.job() }).collect();
    f.submit_all(jobs).await;
    let claimed = f.claim_with(f.node, &[("q", 2), ("slow", 9)], 4, [0, 0, 3, 0]).await;
    assert_eq!(claimed.jobs.iter().map(|job| job.queue.as_str()).collect::<Vec<_>>(), ["q", "q", "slow", "slow"]);
}

#[tokio::test]
async fn priority_then_age_orders_a_band_and_a_released_job_is_in_front() {
    let f = Fixture::new().await;
    let plain = [f.submit(f.job()).await, f.submit(f.job()).await, f.submit(f.job()).await];
    let better = f.submit(NewJob { priority: Priority(5), ..f.job() }).await;
    assert_eq!(f.ready().await, [better, plain[0], plain[1], plain[2]]);
    let fence = f.claim(2).await[1];
    f.finish(fence, Transition::Release).await;
    assert_eq!(f.ready().await, plain);
}

// ---- ordering keys

#[tokio::test]
async fn an_ordering_key_stays_with_its_holder_through_retries_and_snoozes() {
    let f = Fixture::new().await;
    let (first, second) = (f.submit(f.keyed("k")).await, f.submit(f.keyed("k")).await);
    let other = f.submit(NewJob { tenant: B, ..f.keyed("k") }).await;
    assert_eq!(f.status(second).await, Status::Blocked);
    assert_eq!(f.record(second).await.reason.as_deref(), Some("key:k"));
    assert_eq!(f.ready().await, [first, other], "keys are per tenant");
    for transition in [retry(1), Transition::Snooze { delay: SECOND }, Transition::Release] {
        let fence = f.claim_one().await;
        assert_eq!(fence.job, first);
        f.finish(fence, transition).await;
        f.clock.advance(SECOND);
        f.store.promote(10).await.unwrap();
        assert_eq!(f.status(second).await, Status::Blocked);
        f.cancel(other).await;
    }
    let fence = f.claim_one().await;
    f.finish(fence, die()).await;
    assert_eq!(f.ready().await, [second]);
}

#[tokio::test]
async fn a_canceled_holder_passes_its_key_on_and_a_canceled_waiter_keeps_the_line() {
    let f = Fixture::new().await;
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(f.submit(f.keyed("k")).await);
    }
    let where_is = f.store.whereabouts(Scope::ENGINE, jobs[1]).await.unwrap().unwrap();
    assert_eq!(where_is.key_holder, Some(jobs[0]));
    assert_eq!(f.cancel(jobs[1]).await, CancelReply::Canceled);
    assert_eq!(f.cancel(jobs[0]).await, CancelReply::Canceled);
    assert_eq!(f.ready().await, [jobs[2]]);
    assert_eq!(f.status(jobs[3]).await, Status::Blocked);
}

#[tokio::test]
async fn a_scheduled_holder_holds_its_key_and_a_waiter_keeps_its_time() {
    let f = Fixture::new().await;
    let first = f.submit(NewJob { start: Start::After(SECOND * 5), ..f.keyed("k") }).await;
    let second = f.submit(NewJob { start: Start::After(SECOND * 9), ..f.keyed("k") }).await;
    assert_eq!((f.status(first).await, f.status(second).await), (Status::Scheduled, Status::Blocked));
    f.cancel(first).await;
    assert_eq!(f.status(second).await, Status::Scheduled);
    let promoted = f.store.promote(10).await.unwrap();
    assert_eq!(promoted, Promoted { jobs: 0, next_in: Some(SECOND * 9) });
    f.clock.advance(SECOND * 9);
    assert_eq!(f.store.promote(10).await.unwrap(), Promoted { jobs: 1, next_in: None });
    assert_eq!(f.ready().await, [second]);
}

#[tokio::test]
async fn a_replayed_dead_letter_waits_for_its_key_again() {
    let f = Fixture::new().await;
    let (first, second) = (f.submit(f.keyed("k")).await, f.submit(f.keyed("k")).await);
    let fence = f.claim_one().await;
    f.finish(fence, die()).await;
    assert_eq!(f.count(Status::DeadLettered).await, 1);
    assert_eq!(f.store.replay(Scope::ENGINE, second, "op").await.unwrap(), ReplayReply::NotDead(Status::Pending));
    assert_eq!(f.store.replay(Scope::ENGINE, first, "op").await.unwrap(), ReplayReply::Replayed);
    assert_eq!((f.status(first).await, f.count(Status::DeadLettered).await), (Status::Blocked, 0));
    f.cancel(second).await;
    assert_eq!(f.ready().await, [first]);
    let record = f.record(first).await;
    assert_eq!((record.failed, record.recoveries, record.error, record.replayed), (0, 0, None, None));
    let notes: Vec<_> =
        f.store.history(Scope::ENGINE, first).await.unwrap().into_iter().map(|h| (h.status, h.note)).collect();
    assert_eq!(
        notes,
        [(Status::Pending, None), (Status::DeadLettered, None), (Status::Blocked, Some("replayed by op".into()))]
    );
}

// ---- cancel, expiry, pauses

#[tokio::test]
async fn a_waiting_job_is_canceled_wherever_it_waits() {
    let f = Fixture::new().await;
    let ready = f.submit(f.keyed("k")).await;
    let gated = f.submit(f.keyed("k")).await;
    let scheduled = f.submit(NewJob { start: Start::At(NOW + DAY), ..f.job() }).await;
    let retrying = f.submit(f.job()).await;
    let parked = f.submit(f.job()).await;
    let fences = f.claim(3).await;
    f.finish(fences[0], Transition::Release).await;
    f.finish(fences[1], retry(1)).await;
    f.finish(fences[2], Transition::Park { gate: Gate::Pause(PauseTarget::All) }).await;
    for id in [gated, scheduled, retrying, parked, ready] {
        assert_eq!(f.cancel(id).await, CancelReply::Canceled);
        assert_eq!(f.cancel(id).await, CancelReply::AlreadyFinished(Status::Canceled));
        let record = f.record(id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("not needed")));
    }
    assert!(f.claim(9).await.is_empty());
    f.clock.advance(DAY);
    assert_eq!(f.store.promote(9).await.unwrap(), Promoted { jobs: 0, next_in: None });
    assert_eq!((f.count(Status::Canceled).await, f.count(Status::Blocked).await), (5, 0));
    assert_eq!(f.actions().await.len(), 5);
}

#[tokio::test]
async fn a_running_job_is_asked_and_never_succeeds_afterwards() {
    let f = Fixture::new().await;
    let id = f.submit(f.job()).await;
    let fence = f.claim_one().await;
    assert_eq!(f.store.cancel(Scope::Tenant(B), id, "spy", "").await.unwrap(), CancelReply::NotFound);
    assert_eq!(f.cancel(id).await, CancelReply::Requested);
    assert_eq!(f.cancel(id).await, CancelReply::Requested);
    assert_eq!(f.actions().await, [("JOB_CANCELED".into(), Some("requested: not needed".into()))]);
    assert!(f.record(id).await.cancel_requested);
    assert_eq!(f.store.heartbeat(f.node, 1).await.unwrap(), Beat::Alive { cancels: vec![fence] });
    let callback = f.job();
    let callback_id = callback.id;
    let finished = f.finish_and(fence, succeed(), Some(callback)).await;
    assert_eq!(finished, Finished::Accepted(Status::Canceled));
    assert_eq!(f.find(callback_id).await, None, "no callback of a success that was not");
    let record = f.record(id).await;
    assert_eq!((record.reason.as_deref(), record.cancel_requested), (Some("not needed"), false));
    assert_eq!(f.store.heartbeat(f.node, 0).await.unwrap(), Beat::Alive { cancels: vec![] });
}

#[tokio::test]
async fn a_follow_up_is_stored_with_an_accepted_finish_only() {
    let f = Fixture::new().await;
    f.submit(f.job()).await;
    let fence = f.claim_one().await;
    let (follow_up, late) = (f.job(), f.job());
    let (id, late_id) = (follow_up.id, late.id);
    f.finish_and(fence, succeed(), Some(follow_up)).await;
    assert_eq!(f.status(id).await, Status::Pending);
    assert_eq!(f.finish_and(fence, succeed(), Some(late)).await, Finished::Fenced);
    assert_eq!(f.find(late_id).await, None);
}

#[tokio::test]
async fn a_job_expires_only_while_it_has_not_started() {
    let f = Fixture::new().await;
    let expiring = || {
        let spec = JobSpec { expires_at: Some(NOW + SECOND), ..JobSpec::default() };
        NewJob { spec, ..f.job() }
    };
    let (tried, running) = (f.submit(expiring()).await, f.submit(expiring()).await);
    let fences = f.claim(2).await;
    f.finish(fences[0], retry(1)).await;
    let (waiting, later) =
        (f.submit(expiring()).await, f.submit(NewJob { start: Start::At(NOW + DAY), ..expiring() }).await);
    assert_eq!(f.store.expire(9).await.unwrap(), 0);
    f.clock.advance(SECOND);
    assert_eq!(f.store.expire(9).await.unwrap(), 2);
    for id in [waiting, later] {
        let record = f.record(id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("expired")));
    }
    assert_eq!((f.status(tried).await, f.status(running).await), (Status::Retrying, Status::Running));
}

#[tokio::test]
async fn jobs_parked_by_a_pause_are_ready_once_it_is_over() {
    let f = Fixture::new().await;
    let target = PauseTarget::Handler("h".into());
    f.store.pause(&target, "op", "deploy").await.unwrap();
    f.store.pause(&target, "someone else", "again").await.unwrap();
    assert_eq!(f.store.pauses().await.unwrap()[0].by, "op", "the first one stays");
    let id = f.submit(f.job()).await;
    let park = || Transition::Park { gate: Gate::Pause(PauseTarget::Handler("h".into())) };
    let fence = f.claim_one().await;
    assert_eq!(f.finish(fence, park()).await, Finished::Accepted(Status::Blocked));
    assert_eq!(f.record(id).await.reason.as_deref(), Some("pause:handler:h"));
    assert_eq!(f.store.open_gates(9).await.unwrap(), 0);
    assert!(f.store.resume(&target, "op").await.unwrap());
    assert!(!f.store.resume(&target, "op").await.unwrap());
    let fence = f.claim_one().await;
    f.finish(fence, park()).await;
    assert_eq!(f.store.open_gates(9).await.unwrap(), 1, "parked just after the pause was over");
    assert_eq!(f.ready().await, [id]);
    let actions: Vec<String> = f.actions().await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["PAUSED", "RESUMED"]);
}

#[tokio::test]
async fn a_routed_job_waits_in_the_other_queue_until_it_is_put_back() {
    let f = Fixture::new().await;
    let id = f.submit(f.job()).await;
    let fence = f.claim_one().await;
    f.finish(fence, Transition::Route { queue: "handler:h".into() }).await;
    assert!(f.claim(1).await.is_empty());
    let claimed = f.claim_with(f.node, &[("handler:h", 1)], 1, [0; 4]).await;
    f.finish(Fence { job: id, lease: claimed.jobs[0].lease }, Transition::Release).await;
    assert_eq!(f.ready().await, [id]);
}

// ---- reading, retention

#[tokio::test]
async fn a_job_whose_time_is_over_is_hidden_at_once_and_removed_later() {
    let f = Fixture::new().await;
    let (done, dead) = (f.submit(f.job()).await, f.submit(f.job()).await);
    let fences = f.claim(2).await;
    f.finish(fences[0], succeed()).await;
    f.finish(fences[1], die()).await;
    f.clock.advance(DAY);
    assert_eq!(f.find(done).await, None);
    assert_eq!(f.store.input(Scope::ENGINE, done).await.unwrap(), None);
    assert!(f.store.history(Scope::ENGINE, done).await.unwrap().is_empty());
    assert_eq!(f.cancel(done).await, CancelReply::NotFound);
    assert!(!f.store.purge(Scope::ENGINE, done, "op").await.unwrap());
    let listed = f.store.list(Scope::ENGINE, &JobFilter::all(), Page::default()).await.unwrap();
    assert_eq!(listed.iter().map(|record| record.id).collect::<Vec<_>>(), [dead]);
    assert_eq!(f.store.clean(9).await.unwrap(), 1);
    assert_eq!(f.store.clean(9).await.unwrap(), 0);

    let as_job = f.submit(f.job()).await;
    assert!(f.store.mark_replayed(Scope::ENGINE, dead, "op", as_job, DAY).await.unwrap());
    assert_eq!(f.record(dead).await.replayed.unwrap().as_job, as_job);
    f.clock.advance(DAY);
    assert_eq!(f.find(dead).await, None);
    assert_eq!(f.store.clean(9).await.unwrap(), 1);
    assert_eq!((f.count(Status::Succeeded).await, f.count(Status::DeadLettered).await), (1, 1), "still counted");
    let actions: Vec<String> = f.actions().await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["JOB_EXHAUSTED_RETRIES", "JOB_REPLAYED"]);
}

#[tokio::test]
async fn pages_go_from_new_to_old_without_gaps() {
    let f = Fixture::new().await;
    let mut ids: Vec<JobId> = f.submit_all((0..7).map(|_| f.job()).collect()).await.iter().map(|s| s.id).collect();
    f.submit(NewJob { tenant: B, ..f.job() }).await;
    ids.reverse();
    let scope = Scope::Tenant(A);
    let list = async |page| {
        let records = f.store.list(scope, &JobFilter::all().handler("h"), page).await.unwrap();
        records.into_iter().map(|record| record.id).collect::<Vec<_>>()
    };
    assert_eq!(list(Page::first(3)).await, ids[..3]);
    assert_eq!(list(Page::first(3).after(ids[2])).await, ids[3..6]);
    assert_eq!(list(Page { offset: 5, ..Page::first(3) }).await, ids[5..]);
}

#[tokio::test]
async fn the_history_tells_every_attempt() {
    let f = Fixture::new().await;
    let id = f.submit(f.job()).await;
    f.clock.advance(SECOND * 5);
    let fence = f.claim_one().await;
    f.finish(fence, retry(1)).await;
    f.clock.advance(SECOND);
    f.store.promote(9).await.unwrap();
    let fence = f.claim_one().await;
    let finish = Finish { fence, attempt: 2, ran: SECOND, transition: succeed(), follow_up: None, cost: None };
    f.store.finish(f.node, vec![finish]).await.unwrap();
    let history = f.store.history(Scope::ENGINE, id).await.unwrap();
    let lines: Vec<_> = history.iter().map(|h| (h.status, h.attempt, h.started_at, h.error.is_some())).collect();
    assert_eq!(
        lines,
        [
            (Status::Pending, 0, None, false),
            (Status::Retrying, 1, Some(NOW + SECOND * 4), true),
            (Status::Succeeded, 2, Some(NOW + SECOND * 5), false),
        ]
    );
    let record = f.record(id).await;
    assert_eq!((record.attempt, record.node, record.finished_at), (2, Some(f.node), Some(NOW + SECOND * 6)));
    let succeeded = AuditFilter { action: Some("JOB_SUCCEEDED".into()), ..AuditFilter::default() };
    assert_eq!(f.store.audit_log(Scope::Tenant(A), &succeeded).await.unwrap()[0].target, id.to_string());
    assert!(f.store.audit_log(Scope::Tenant(B), &succeeded).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_place_in_line_is_counted_over_priorities() {
    let f = Fixture::new().await;
    f.submit_all((0..3).map(|_| f.job()).collect()).await;
    f.submit(NewJob { priority: Priority::HIGH, ..f.job() }).await;
    let last = f.submit(f.job()).await;
    f.store.pause(&PauseTarget::Tenant(B), "op", "").await.unwrap();
    f.store.pause(&PauseTarget::Tenant(A), "op", "").await.unwrap();
    let found = f.store.whereabouts(Scope::Tenant(A), last).await.unwrap().unwrap();
    assert_eq!((found.ahead, found.nodes.len(), found.pauses.len()), (Some(4), 1, 1));
    assert!(f.store.whereabouts(Scope::Tenant(B), last).await.unwrap().is_none());
}

// ---- everything at once

/// Checks that every way to find a job agrees with where the jobs are.
fn check_index(state: &State) {
    let mut counted: HashMap<TenantId, Counts> = HashMap::default();
    let (mut ready, mut scheduled, mut parked, mut waiting, mut held) = (0, 0, 0, 0, 0);
    for entry in state.jobs.values() {
        let (id, tenant) = (entry.job.id, entry.job.tenant);
        counted.entry(tenant).or_default().add(entry.status(), 1);
        match &entry.place {
            Place::Ready { .. } => ready += 1,
            Place::Scheduled { at, .. } => {
                assert!(state.index.scheduled.contains(&(*at, id)));
                scheduled += 1;
            }
            Place::Gated(gate) => match gate.as_ref() {
                Gate::Pause(target) => {
                    assert!(state.index.parked[target].contains(&id));
                    parked += 1;
                }
                Gate::OrderingKey(key) => {
                    assert!(state.index.ordering[&(tenant, key.clone())].waiting.contains(&(entry.created_at, id)));
                    waiting += 1;
                }
            },
            Place::Leased { lease, node, .. } => {
                assert_eq!(state.index.leases[lease].node, *node);
                assert!(state.index.nodes[node].leases.contains(lease));
                held += 1;
            }
            Place::Ended(_) => {}
        }
    }
    assert_eq!(state.index.ready.len(), ready);
    assert_eq!(state.index.scheduled.len(), scheduled);
    assert_eq!(state.index.parked.values().map(|jobs| jobs.len()).sum::<usize>(), parked);
    assert_eq!(state.index.ordering.values().map(|key| key.waiting.len()).sum::<usize>(), waiting);
    assert_eq!(state.index.leases.values().map(|lease| lease.held).sum::<usize>(), held);
    for ((tenant, key), line) in &state.index.ordering {
        let holder = &state.jobs[&line.holder];
        assert!(!holder.status().is_terminal(), "{key} of {tenant} is held by an ended job");
    }
    for (tenant, counts) in counted {
        let kept = state.index.counts(Scope::Tenant(tenant));
        for status in Status::ALL {
            // Ended jobs stay counted when they are removed.
            let agrees = kept.get(status) == counts.get(status)
                || status.is_terminal() && kept.get(status) >= counts.get(status);
            assert!(agrees, "{status}: {} counted, {} there", kept.get(status), counts.get(status));
        }
    }
}

/// One random step; `pick` chooses among what there is.
async fn random_step(f: &Fixture, node: &mut NodeId, held: &mut Vec<Fence>, step: u8, pick: usize) {
    let ids: Vec<JobId> = f.store.state.lock().jobs.keys().copied().collect();
    let id = ids.get(pick % ids.len().max(1)).copied();
    let gate = Gate::Pause(PauseTarget::Tenant([A, B][pick % 2]));
    match step {
        0..=3 => {
            let job = NewJob {
                tenant: [A, B][pick % 2],
                priority: Priority((pick % 50) as i16 - 20),
                start: if pick.is_multiple_of(5) { Start::After(SECOND) } else { Start::Now },
                ordering_key: pick.is_multiple_of(3).then(|| format!("k{}", pick % 4)),
                spec: JobSpec { expires_at: pick.is_multiple_of(7).then_some(NOW + SECOND * 9), ..JobSpec::default() },
                ..f.job()
            };
            let lease = pick.is_multiple_of(11).then(|| (*node, f.lease()));
            f.store.submit(Submit { jobs: vec![job], lease }).await.unwrap();
        }
        4 | 5 => {
            let claimed = f.claim_with(*node, &[("q", 9), ("suspect:q", 1)], pick % 6, [1; 4]).await;
            held.extend(claimed.jobs.iter().map(|job| Fence { job: job.id, lease: job.lease }));
        }
        6..=9 if !held.is_empty() => {
            let fence = held.swap_remove(pick % held.len());
            let transition = match pick % 8 {
                0 => retry(1),
                1 => die(),
                2 => Transition::Snooze { delay: SECOND },
                3 => Transition::Release,
                4 => Transition::Park { gate },
                5 => Transition::Route { queue: "suspect:q".into() },
                6 => Transition::Park { gate: Gate::OrderingKey(format!("k{}", pick % 4)) },
                _ => succeed(),
            };
            let finish = Finish { fence, attempt: 1, ran: SECOND, transition, follow_up: None, cost: None };
            let finished = f.store.finish(*node, vec![finish.clone()]).await.unwrap();
            assert_ne!(finished, [Finished::Fenced]);
            assert_eq!(f.store.finish(*node, vec![finish]).await.unwrap(), [Finished::Fenced]);
        }
        10 => f.clock.advance(SECOND),
        11 => drop(f.store.promote(pick % 5).await),
        12 => drop(f.store.open_gates(pick % 5).await),
        13 => drop(f.store.expire(pick % 5).await),
        14 => {
            f.clock.advance(DAY);
            f.store.clean(pick % 5).await.unwrap();
            f.store.heartbeat(*node, 0).await.unwrap();
        }
        15 => {
            if pick.is_multiple_of(2) {
                f.store.deregister(*node).await.unwrap();
            } else {
                f.clock.advance(SECOND);
                f.store.recover(Duration::ZERO).await.unwrap();
            }
            held.clear();
            *node = f.store.register(NewNode::default()).await.unwrap().node;
        }
        _ => {
            let Some(id) = id else { return };
            f.cancel(id).await;
            f.store.replay(Scope::ENGINE, id, "op").await.unwrap();
            if pick.is_multiple_of(3) {
                f.store.purge(Scope::ENGINE, id, "op").await.unwrap();
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_job_is_ever_lost_or_in_two_places(steps in proptest::collection::vec((0u8..18, 0usize..10_000), 1..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let f = Fixture::new().await;
            let (mut node, mut held) = (f.node, Vec::new());
            for (step, pick) in steps {
                random_step(&f, &mut node, &mut held, step, pick).await;
                check_index(&f.store.state.lock());
            }
        });
    }
}
