//! What a store promises about who goes first: priorities and bands, fairness between tenants, ordering keys.
//! Run by every store through `conformance_tests!`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use windlass_core::store::{CancelReply, Claim, ReplayReply, Transition, suspect_queue};
use windlass_core::{Band, ClaimedJob, JobId, Priority, Start, Status, TenantId};

use super::rig::*;

/// "Among the first few": a light tenant's job may stand behind what one claim takes, and a little more.
const FIRST_FEW: usize = 30;

/// ORD-1, ORD-2: any number is a priority; equals go oldest first.
pub(super) async fn higher_priority_goes_first_and_equals_keep_their_order(rig: Rig) {
    let priorities = [0, -10, 20, 5, 10, 0, -100, 32_767, 20, -32_768, 5];
    let mut submitted = Vec::new();
    for priority in priorities {
        submitted.push((Priority(priority), rig.submit(rig.job().priority(Priority(priority))).await));
    }
    let bulk: Vec<Job> = priorities.iter().map(|p| rig.job().priority(Priority(*p))).collect();
    submitted.extend(bulk.iter().map(|job| (job.0.priority, job.id())));
    rig.submit_all(bulk).await;
    submitted.sort_by_key(|(priority, id)| (std::cmp::Reverse(*priority), *id));
    let mut claimed = Vec::new();
    for _ in 0..submitted.len() {
        claimed.extend(ids(&rig.claim(1).await));
    }
    assert_eq!(claimed, submitted.iter().map(|(_, id)| *id).collect::<Vec<_>>());
}

/// ORD-2: with work in every band each gets its part of a claim, so that low work goes on beside critical work.
pub(super) async fn each_band_gets_its_quota(rig: Rig) {
    submit_bands(&rig, [30; 4]).await;
    assert_eq!(claim_bands(&rig, 10, [4, 3, 2, 1]).await, [4, 3, 2, 1]);
    assert_eq!(claim_bands(&rig, 10, [1, 1, 1, 7]).await, [1, 1, 1, 7]);
    assert_eq!(claim_bands(&rig, 1, [0, 0, 0, 1]).await, [0, 0, 0, 1], "low work never starves");
    let beyond = claim_bands(&rig, 5, [5, 5, 5, 5]).await;
    assert_eq!(beyond.iter().sum::<usize>(), 5, "quotas beyond the claim do not widen it: {beyond:?}");
}

/// ORD-2: what a band cannot use goes to the others, most urgent first, so that no capacity is left idle.
pub(super) async fn what_one_band_leaves_goes_to_the_most_urgent_waiting(rig: Rig) {
    submit_bands(&rig, [1, 0, 20, 20]).await;
    assert_eq!(claim_bands(&rig, 10, [4, 3, 2, 1]).await, [1, 0, 8, 1]);
    assert_eq!(claim_bands(&rig, 10, [4, 3, 2, 1]).await, [0, 0, 9, 1]);
    assert_eq!(claim_bands(&rig, 30, [12, 9, 6, 3]).await, [0, 0, 3, 18], "all that is left");
}

/// ORD-2: the strict policy is a claim without quotas.
pub(super) async fn without_quotas_the_most_urgent_band_takes_all(rig: Rig) {
    submit_bands(&rig, [3, 3, 3, 3]).await;
    assert_eq!(claim_bands(&rig, 5, [0; 4]).await, [3, 2, 0, 0]);
    assert_eq!(claim_bands(&rig, 5, [0; 4]).await, [0, 1, 3, 1]);
}

/// ORD-2: the claimer learns where work is left, which it needs for the next split.
pub(super) async fn a_claim_tells_which_bands_have_more(rig: Rig) {
    submit_bands(&rig, [5, 0, 0, 5]).await;
    let claimed = rig.claim_with(rig.node, vec![(QUEUE.into(), 2)], 2, [1, 0, 0, 1]).await;
    assert_eq!(claimed.jobs.len(), 2);
    assert!(claimed.more[Band::Critical.index()] && claimed.more[Band::Low.index()], "{:?}", claimed.more);
    let claimed = rig.claim_with(rig.node, vec![(QUEUE.into(), 100)], 100, [0; 4]).await;
    assert_eq!(claimed.jobs.len(), 8);
}

/// ORD-3: a thousand jobs of one tenant in one bulk, then one job of another: it is among the first few.
pub(super) async fn one_job_does_not_wait_for_another_tenants_bulk(rig: Rig) {
    rig.submit_all(rig.jobs(1_000)).await;
    let light = rig.submit(rig.job().tenant(B)).await;
    let place = place_in_claims(&rig, light, 10).await;
    assert!(place < FIRST_FEW, "the light tenant's job came as number {place}");
}

/// ORD-3: the same when the heavy tenant comes with many small submits.
pub(super) async fn one_job_does_not_wait_for_another_tenants_many_submits(rig: Rig) {
    for _ in 0..100 {
        rig.submit_all(rig.jobs(10)).await;
    }
    let light = rig.submit(rig.job().tenant(B)).await;
    let place = place_in_claims(&rig, light, 10).await;
    assert!(place < FIRST_FEW, "the light tenant's job came as number {place}");
}

/// OPS-10, ORD-3: a claim for one tenant passes over the jobs of others, which keep their places and their turns.
pub(super) async fn a_claim_for_one_tenant_leaves_the_others_their_turn(rig: Rig) {
    let before = rig.submit_all(rig.jobs(300)).await;
    let own = rig.submit_all(rig.jobs(20).into_iter().map(|job| job.tenant(B)).collect()).await;
    let only = |tenant, max| Claim {
        node: rig.node,
        lease: rig.new_lease(),
        queues: vec![(QUEUE.into(), max)],
        max,
        quota: [0; 4],
        tenant: Some(tenant),
    };
    let claimed = rig.store().claim(only(B, 5)).await.expect("claims");
    let ids: Vec<JobId> = claimed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(ids, own[..5].iter().map(|job| job.id).collect::<Vec<_>>(), "in their own order");
    assert_eq!(claimed.more, [false, false, true, false]);
    let claimed = rig.store().claim(only(B, 50)).await.expect("claims");
    assert_eq!((claimed.jobs.len(), claimed.more), (15, [false; 4]), "of the others' nothing is said");
    assert!(rig.store().claim(only(TenantId::ROOT, 5)).await.expect("claims").jobs.is_empty());
    let first: Vec<JobId> = rig.claim(3).await.iter().map(|job| job.id).collect();
    assert_eq!(first, before[..3].iter().map(|job| job.id).collect::<Vec<_>>(), "they were not passed for good");
}

/// ORD-3: after much service of one tenant a newcomer is neither behind its backlog nor ahead for ever: both go on.
pub(super) async fn a_tenant_that_comes_late_starts_where_service_is(rig: Rig) {
    rig.submit_all(rig.jobs(600)).await;
    for _ in 0..20 {
        assert_eq!(rig.claim(10).await.len(), 10);
    }
    let bulk = rig.jobs(300).into_iter().map(|job| job.tenant(B)).collect();
    rig.submit_all(bulk).await;
    let mut served = [0_usize, 0];
    for _ in 0..30 {
        for job in rig.claim(10).await {
            served[usize::from(job.tenant == B)] += 1;
        }
    }
    // A chunk is the unit of turns, so a share may be off by one.
    let fair = 150 - windlass_core::store::CHUNK_JOBS;
    assert_eq!(served[0] + served[1], 300);
    assert!(served[0] >= fair && served[1] >= fair, "of 300 jobs {} were A's, {} B's", served[0], served[1]);
}

/// ORD-4: later jobs with the key are blocked, and each gets its turn when the one before has ended.
pub(super) async fn an_ordering_key_runs_its_jobs_one_by_one_in_order(rig: Rig) {
    let mut submitted = Vec::new();
    for _ in 0..4 {
        submitted.push(rig.submit(rig.job().ordered("k")).await);
    }
    let free = rig.submit(rig.job().ordered("other")).await;
    assert_eq!(rig.status(submitted[0]).await, Status::Pending);
    for id in &submitted[1..] {
        let record = rig.record(*id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Blocked, Some("key:k")));
        assert_eq!(record.ordering_key.as_deref(), Some("k"));
    }
    let mut jobs = rig.claim(10).await;
    assert_eq!(ids(&jobs), [submitted[0], free]);
    rig.end(&jobs.remove(1), succeed()).await;
    let mut ran = Vec::new();
    let mut holder = jobs.remove(0);
    loop {
        ran.push(holder.id);
        assert!(rig.claim(10).await.is_empty(), "one at a time");
        rig.end(&holder, if ran.len() % 2 == 0 { dead("validation") } else { succeed() }).await;
        match rig.claim(10).await.pop() {
            Some(next) => holder = next,
            None => break,
        }
    }
    assert_eq!(ran, submitted);
    let after = rig.submit(rig.job().ordered("k")).await;
    assert_eq!(rig.status(after).await, Status::Pending, "the key is free again");
}

/// ORD-4, SUB-4: the order of the input counts, also for thousands of keys' jobs in one call.
pub(super) async fn an_ordering_key_of_one_submit_keeps_its_order(rig: Rig) {
    let jobs: Vec<Job> = (0..30).map(|n| rig.job().ordered(["x", "y", "z"][n % 3])).collect();
    let made: Vec<JobId> = jobs.iter().map(Job::id).collect();
    rig.submit_all(jobs).await;
    for turn in made.chunks(3) {
        let ready = rig.claim(30).await;
        assert_eq!(sorted(ids(&ready)), turn);
        for job in &ready {
            rig.end(job, succeed()).await;
        }
    }
    assert_eq!(rig.counts().await.get(Status::Succeeded), 30);
}

/// ORD-4: whatever brings the holder back, nobody overtakes it.
pub(super) async fn a_holder_keeps_its_key_through_retry_snooze_and_release(rig: Rig) {
    let first = rig.submit(rig.job().ordered("k")).await;
    let second = rig.submit(rig.job().ordered("k")).await;
    for transition in [Transition::Release, retry(1, SOON), Transition::Snooze { delay: SOON }] {
        let holder = rig.claim_one().await;
        assert_eq!(holder.id, first);
        rig.end(&holder, transition).await;
        assert_eq!(rig.status(second).await, Status::Blocked);
        rig.advance(PAST_SOON).await;
        rig.promote().await;
    }
    let route = Transition::Route { queue: "elsewhere".into() };
    let holder = rig.claim_one().await;
    rig.end(&holder, route).await;
    assert!(rig.claim(5).await.is_empty(), "nor while it waits in another queue");
    let holder = rig.claim_from(rig.node, &["elsewhere"], 5).await.remove(0);
    assert_eq!(holder.id, first);
    rig.end(&holder, succeed()).await;
    assert_eq!(rig.claim_one().await.id, second);
}

/// ORD-4, RUN-5: a lost node does not let the next job overtake.
pub(super) async fn a_holder_keeps_its_key_when_its_node_is_lost(rig: Rig) {
    let first = rig.running(rig.job().ordered("k")).await;
    let second = rig.submit(rig.job().ordered("k")).await;
    let other = rig.another_node().await;
    assert_eq!(rig.lose_node(&[other]).await, [first.id]);
    rig.open_gates().await;
    assert_eq!(rig.status(second).await, Status::Blocked);
    assert!(rig.claim_as(other, 5).await.is_empty());
    let again = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 5).await.remove(0);
    assert_eq!(again.id, first.id);
    rig.finish_as(other, finish(&again, succeed())).await;
    rig.open_gates().await;
    assert_eq!(ids(&rig.claim_as(other, 5).await), [second]);
}

/// ORD-4, OPS-3: a cancel of the holder, waiting or running, ends its hold.
pub(super) async fn a_canceled_holder_hands_its_key_on(rig: Rig) {
    let waiting = rig.submit(rig.job().ordered("k")).await;
    let second = rig.submit(rig.job().ordered("k")).await;
    let third = rig.submit(rig.job().ordered("k")).await;
    assert_eq!(rig.cancel(waiting).await, CancelReply::Canceled);
    assert_eq!(rig.status(second).await, Status::Pending);
    let running = rig.claim_one().await;
    assert_eq!(running.id, second);
    assert_eq!(rig.cancel(second).await, CancelReply::Requested);
    assert_eq!(rig.status(third).await, Status::Blocked, "a running job holds its key until it has ended");
    assert_eq!(rig.end(&running, succeed()).await, Status::Canceled);
    assert_eq!(rig.claim_one().await.id, third);
}

/// ORD-4, OPS-3: the line closes up behind a waiter that was canceled.
pub(super) async fn a_canceled_waiter_leaves_the_line(rig: Rig) {
    let mut submitted = Vec::new();
    for _ in 0..3 {
        submitted.push(rig.submit(rig.job().ordered("k")).await);
    }
    assert_eq!(rig.cancel(submitted[1]).await, CancelReply::Canceled);
    let record = rig.record(submitted[1]).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("not needed")));
    assert_eq!(rig.status(submitted[2]).await, Status::Blocked);
    let holder = rig.claim_one().await;
    assert_eq!(holder.id, submitted[0]);
    rig.end(&holder, succeed()).await;
    assert_eq!(rig.claim_one().await.id, submitted[2]);
}

/// ORD-4, ERR-4: a dead letter does not hold up its key; replayed in place it queues for it, ahead of younger ones.
pub(super) async fn a_dead_holder_hands_its_key_on_and_queues_again_when_replayed(rig: Rig) {
    let mut submitted = Vec::new();
    for _ in 0..3 {
        submitted.push(rig.submit(rig.job().ordered("k")).await);
    }
    let first = rig.claim_one().await;
    rig.end(&first, dead("validation")).await;
    let second = rig.claim_one().await;
    assert_eq!(second.id, submitted[1]);
    assert_eq!(rig.store().replay(EVERYONE, first.id, "operator").await.expect("replay"), ReplayReply::Replayed);
    let record = rig.record(first.id).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Blocked, Some("key:k")));
    rig.end(&second, succeed()).await;
    let again = rig.claim_one().await;
    assert_eq!(again.id, first.id, "the oldest of the line");
    rig.end(&again, dead("validation")).await;
    let third = rig.claim_one().await;
    rig.end(&third, succeed()).await;
    assert_eq!(rig.store().replay(EVERYONE, first.id, "operator").await.expect("replay"), ReplayReply::Replayed);
    assert_eq!(rig.status(first.id).await, Status::Pending, "nobody holds the key");
    let later = rig.submit(rig.job().ordered("k")).await;
    assert_eq!(rig.status(later).await, Status::Blocked, "the replayed one does");
}

/// ORD-4, TIM-1: order of submission goes before time of start.
pub(super) async fn a_scheduled_holder_keeps_later_jobs_waiting(rig: Rig) {
    let first = rig.submit(rig.job().ordered("k").after(SOON)).await;
    let second = rig.submit(rig.job().ordered("k")).await;
    assert_eq!(rig.status(first).await, Status::Scheduled);
    assert_eq!(rig.status(second).await, Status::Blocked);
    assert!(rig.claim(5).await.is_empty());
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 1);
    let holder = rig.claim_one().await;
    assert_eq!(holder.id, first);
    rig.end(&holder, succeed()).await;
    assert_eq!(rig.claim_one().await.id, second);
}

/// ORD-4, TIM-1: getting the key does not make a job start before its time.
pub(super) async fn a_waiter_whose_start_is_ahead_becomes_scheduled(rig: Rig) {
    let first = rig.running(rig.job().ordered("k")).await;
    let at = rig.now().await + HOUR;
    let late = rig.submit(rig.job().ordered("k").with(|job| job.start = Start::At(at))).await;
    let soon = rig.submit(rig.job().ordered("k").after(SOON)).await;
    assert_eq!(rig.status(late).await, Status::Blocked);
    rig.end(&first, succeed()).await;
    let record = rig.record(late).await;
    assert_eq!((record.status, record.run_at), (Status::Scheduled, Some(at)));
    assert!(rig.claim(5).await.is_empty());
    assert_eq!(rig.cancel(late).await, CancelReply::Canceled);
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    assert_eq!(rig.claim_one().await.id, soon);
}

/// ORD-4, SEC-1: two tenants that use the same key do not wait for one another.
pub(super) async fn ordering_keys_of_tenants_are_independent(rig: Rig) {
    let ours = rig.submit(rig.job().ordered("k")).await;
    let theirs = rig.submit(rig.job().ordered("k").tenant(B)).await;
    let waits = rig.submit(rig.job().ordered("k").tenant(B)).await;
    let running = rig.claim(10).await;
    assert_eq!(sorted(ids(&running)), [ours, theirs]);
    let ours = running.iter().find(|job| job.id == ours).expect("claimed");
    rig.end(ours, succeed()).await;
    assert_eq!(rig.status(waits).await, Status::Blocked, "the other tenant's key is still held");
}

/// ORD-4: many workers, several keys, failures in between: never two of a key at once, never out of order.
pub(super) async fn claimers_at_once_never_run_a_key_twice(rig: Rig) {
    const KEYS: usize = 5;
    const PER_KEY: usize = 8;
    let jobs: Vec<Job> = (0..KEYS * PER_KEY).map(|n| rig.job().ordered(&format!("key-{}", n % KEYS))).collect();
    let mut expected: BTreeMap<String, Vec<JobId>> = BTreeMap::new();
    for job in &jobs {
        expected.entry(job.0.ordering_key.clone().expect("set")).or_default().push(job.id());
    }
    rig.submit_all(jobs).await;
    let watch = Arc::new(Mutex::new(Watch::default()));
    let left = Arc::new(AtomicUsize::new(KEYS * PER_KEY));
    at_once(6, |_| {
        let (rig, watch, left) = (rig.clone(), Arc::clone(&watch), Arc::clone(&left));
        async move {
            let node = rig.another_node().await;
            while left.load(Ordering::SeqCst) > 0 {
                let jobs = rig.claim_as(node, 2).await;
                for job in &jobs {
                    let key = job.ordering_key.clone().expect("every job has a key");
                    assert!(watch.lock().running.insert(key.clone()), "two jobs of {key} at once");
                }
                for job in &jobs {
                    work_one(&rig, node, job, &watch, &left).await;
                }
                if jobs.is_empty() {
                    rig.open_gates().await;
                    tokio::task::yield_now().await;
                }
            }
        }
    })
    .await;
    assert_eq!(watch.lock().ended, expected);
}

/// ORD-4: submits that meet on a new key agree on who holds it.
pub(super) async fn submits_at_once_with_one_ordering_key_have_one_holder(rig: Rig) {
    let submitted = at_once(32, |_| {
        let rig = rig.clone();
        async move { rig.submit(rig.job().ordered("k")).await }
    })
    .await;
    let counts = rig.counts().await;
    assert_eq!((counts.get(Status::Pending), counts.get(Status::Blocked)), (1, 31));
    let mut ran = Vec::new();
    for _ in 0..submitted.len() {
        let holder = rig.claim_one().await;
        ran.push(holder.id);
        rig.end(&holder, succeed()).await;
    }
    assert_eq!(sorted(ran.clone()), sorted(submitted));
    let mut arrived = Vec::new();
    for id in &ran {
        arrived.push((rig.record(*id).await.created_at, *id));
    }
    assert!(arrived[1..].is_sorted(), "whoever came first, the others follow by arrival");
}

/// ORD-4, OPS-3: holders and waiters are canceled while others run. The line moves on whoever leaves it, and nobody is
/// left behind.
pub(super) async fn a_line_moves_on_while_its_jobs_are_canceled(rig: Rig) {
    let submitted = submitted_ids(&rig.submit_all((0..24).map(|_| rig.job().ordered("k")).collect()).await);
    let unwanted: Vec<JobId> = submitted.iter().copied().filter(|id| !id.sequence().is_multiple_of(3)).collect();
    let worker = {
        let rig = rig.clone();
        tokio::spawn(async move {
            let mut ran = Vec::new();
            while rig.counts().await.unfinished() > 0 {
                for job in rig.claim(2).await {
                    ran.push(job.id);
                    rig.end(&job, succeed()).await;
                }
                tokio::task::yield_now().await;
            }
            ran
        })
    };
    let replies = at_once(unwanted.len(), |n| {
        let (rig, id) = (rig.clone(), unwanted[n]);
        async move { (id, rig.cancel(id).await) }
    })
    .await;
    let ran = worker.await.expect("the line moves on");
    assert!(ran.is_sorted(), "in order of submission");
    for (id, reply) in replies {
        let expected = match reply {
            CancelReply::AlreadyFinished(status) => status,
            _ => Status::Canceled,
        };
        assert_eq!((rig.status(id).await, ran.contains(&id)), (expected, reply != CancelReply::Canceled));
    }
    let wanted = submitted.iter().filter(|id| !unwanted.contains(id));
    for id in wanted {
        assert_eq!(rig.status(*id).await, Status::Succeeded);
    }
}

/// What the workers of `claimers_at_once_never_run_a_key_twice` see.
#[derive(Default)]
struct Watch {
    /// Keys with a job in hand.
    running: HashSet<String>,
    /// The jobs of each key, in the order of their ends.
    ended: BTreeMap<String, Vec<JobId>>,
}

/// Ends one job of `claimers_at_once_never_run_a_key_twice`; every third one fails once, and comes back.
async fn work_one(
    rig: &Rig,
    node: windlass_core::store::NodeId,
    job: &ClaimedJob,
    watch: &Mutex<Watch>,
    left: &AtomicUsize,
) {
    let key = job.ordering_key.clone().expect("every job has a key");
    let again = job.failed == 0 && job.id.sequence().is_multiple_of(3);
    {
        let mut watch = watch.lock();
        watch.running.remove(&key);
        if !again {
            watch.ended.entry(key).or_default().push(job.id);
        }
    }
    if again {
        // One failure and a moment's delay: the key stays held while the holder is away.
        rig.finish_as(node, finish(job, retry(1, std::time::Duration::from_millis(1)))).await;
        rig.advance(std::time::Duration::from_millis(2)).await;
        rig.promote().await;
    } else {
        rig.finish_as(node, finish(job, succeed())).await;
        left.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn submit_bands(rig: &Rig, jobs: [usize; 4]) {
    let named = [Priority::CRITICAL, Priority::HIGH, Priority::NORMAL, Priority::LOW];
    for (priority, n) in named.into_iter().zip(jobs) {
        let jobs = rig.jobs(n).into_iter().map(|job| job.priority(priority)).collect();
        rig.submit_all(jobs).await;
    }
}

/// How many jobs of each band one claim returned.
async fn claim_bands(rig: &Rig, max: usize, quota: [usize; 4]) -> [usize; 4] {
    let claimed = rig.claim_with(rig.node, vec![(QUEUE.into(), max)], max, quota).await;
    let mut bands = [0; 4];
    for job in claimed.jobs {
        bands[job.priority.band().index()] += 1;
    }
    bands
}

/// As which number `id` comes when jobs are claimed `size` at a time.
async fn place_in_claims(rig: &Rig, id: JobId, size: usize) -> usize {
    let mut seen = 0;
    loop {
        let jobs = rig.claim(size).await;
        assert!(!jobs.is_empty(), "the job is claimed some time");
        if let Some(at) = jobs.iter().position(|job| job.id == id) {
            return seen + at;
        }
        seen += jobs.len();
    }
}
