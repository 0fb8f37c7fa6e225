//! The life of a job in a SQLite file: submit, keys, claim, finish, and what is read back at each step.

mod common;

use std::time::Duration;

use common::{Bench, KEEP, NOW, die, finish, retry, succeed, tenant};
use windlass_core::store::{
    Beat, Claim, Fence, Finished, Gate, PauseTarget, ProgressReport, Store, Submit, Transition, suspect_queue,
};
use windlass_core::{
    BatchId, JobError, JobFilter, Page, Payload, Priority, Progress, Scope, Start, Status, Unique, UniqueWithin,
};

/// Everything: tests look at all that there is.
const ALL: Scope = Scope::All(windlass_core::OperatorRight::assume());

#[tokio::test]
async fn a_job_is_submitted_claimed_and_succeeds() {
    let b = Bench::new().await;
    let mut job = b.job();
    job.tags = vec!["billing".into()];
    job.correlation_id = Some("r-1".into());
    job.spec.timeout = Some(Duration::from_secs(9));
    let id = b.submit_one(job.clone()).await;
    let waiting = b.the(id).await;
    assert_eq!((waiting.status, waiting.attempt, waiting.created_at), (Status::Pending, 0, NOW));

    let claimed = b.claim_one().await;
    assert_eq!((claimed.id, claimed.attempt(), claimed.ready_at), (id, 1, NOW));
    assert_eq!((&claimed.payload, &claimed.tags, &claimed.spec), (&job.payload, &job.tags, &job.spec));
    assert_eq!(claimed.correlation_id.as_deref(), Some("r-1"));
    let running = b.the(id).await;
    assert_eq!((running.status, running.attempt, running.node), (Status::Running, 1, Some(b.node)));
    assert!(b.claim(10).await.is_empty(), "claimed once");

    b.advance(Duration::from_secs(5));
    assert_eq!(b.finish(&claimed, succeed()).await, Finished::Accepted(Status::Succeeded));
    assert_eq!(b.finish(&claimed, succeed()).await, Finished::Fenced, "a second finish");
    let ended = b.the(id).await;
    assert_eq!((ended.status, ended.attempt, ended.failed), (Status::Succeeded, 1, 0));
    assert_eq!(ended.output, Some(Payload::from_store("42")));
    assert_eq!(ended.started_at, Some(NOW + Duration::from_secs(3)), "it ran two of the five seconds");
    assert_eq!(b.store.input(ALL, id).await.expect("reads"), Some(job.payload));
    assert_eq!(b.store.input(Scope::Tenant(tenant(9)), id).await.expect("reads"), None, "another tenant's");
    let counts = b.store.counts(ALL).await.expect("counts");
    assert_eq!((counts.get(Status::Succeeded), counts.unfinished()), (1, 0));
}

#[tokio::test]
async fn a_job_submitted_twice_under_its_id_is_stored_once() {
    let b = Bench::new().await;
    let job = b.job();
    let answers = b.submit(vec![job.clone(), job.clone()]).await;
    assert_eq!([answers[0].duplicate, answers[1].duplicate], [false, true]);
    assert_eq!(b.claim(10).await.len(), 1);
}

#[tokio::test]
async fn a_plain_job_can_be_born_leased() {
    let b = Bench::new().await;
    let (plain, mut later, mut keyed) = (b.job(), b.job(), b.job());
    later.start = Start::After(Duration::from_secs(1));
    keyed.idempotency_key = Some("k".into());
    let lease = b.lease();
    let submit = Submit { jobs: vec![plain.clone(), later.clone(), keyed.clone()], lease: Some((b.node, lease)) };
    b.store.submit(submit).await.expect("submits");
    let running = b.the(plain.id).await;
    assert_eq!((running.status, running.attempt), (Status::Running, 1));
    assert_eq!(b.the(later.id).await.status, Status::Scheduled);
    assert_eq!(b.the(keyed.id).await.status, Status::Pending);
    let fence = Fence { job: plain.id, lease };
    let done = windlass_core::store::Finish {
        fence,
        attempt: 1,
        ran: Duration::ZERO,
        transition: succeed(),
        follow_up: Some(Box::new(b.job())),
        cost: None,
    };
    let follow_up = done.follow_up.as_ref().expect("set").id;
    let answer = b.store.finish(b.node, vec![done]).await.expect("finishes");
    assert_eq!(answer, [Finished::Accepted(Status::Succeeded)]);
    assert_eq!(b.the(follow_up).await.status, Status::Pending);
}

#[tokio::test]
async fn an_idempotency_key_holds_until_the_job_is_gone() {
    let b = Bench::new().await;
    let keyed = || {
        let mut job = b.job();
        job.idempotency_key = Some("invoice-7".into());
        job
    };
    let answers = b.submit(vec![keyed(), keyed()]).await;
    assert!(answers[1].duplicate && answers[1].id == answers[0].id, "also inside one batch");
    let mut other = keyed();
    other.tenant = tenant(1);
    assert!(!b.submit(vec![other]).await[0].duplicate, "another tenant's key is another key");
    let mut other = keyed();
    other.handler = "mail.receive".into();
    assert!(!b.submit(vec![other]).await[0].duplicate, "another handler's, too");

    let jobs = b.claim(10).await;
    let first = jobs.iter().find(|job| job.id == answers[0].id).expect("claimed");
    b.finish(first, succeed()).await;
    assert!(b.submit(vec![keyed()]).await[0].duplicate, "an ended job keeps its key");
    b.advance(KEEP);
    assert!(b.record(first.id).await.is_none(), "hidden when its time is over");
    let again = b.submit(vec![keyed()]).await[0];
    assert!(!again.duplicate, "and its key is free");
    assert_eq!(b.store.clean(100).await.expect("cleans"), 1);
    assert!(b.submit(vec![keyed()]).await[0].duplicate, "cleaning the old job leaves the new one its key");
}

#[tokio::test]
async fn a_unique_key_holds_while_unfinished_or_for_its_window() {
    let b = Bench::new().await;
    let unique = |key: &str, within| {
        let mut job = b.job();
        job.unique = Some(Unique { key: Some(key.into()), within });
        job
    };
    let first = b.submit(vec![unique("u", UniqueWithin::Unfinished)]).await[0];
    assert_eq!(b.submit(vec![unique("u", UniqueWithin::Unfinished)]).await[0].id, first.id);
    let job = b.claim_one().await;
    b.finish(&job, succeed()).await;
    assert!(!b.submit(vec![unique("u", UniqueWithin::Unfinished)]).await[0].duplicate, "free when it has ended");

    let window = UniqueWithin::Window(Duration::from_secs(60));
    let second = b.submit_one(unique("w", window)).await;
    for job in b.claim(10).await {
        b.finish(&job, succeed()).await;
    }
    assert_eq!(b.submit(vec![unique("w", window)]).await[0].id, second, "held though it has ended");
    b.advance(Duration::from_secs(60));
    assert!(!b.submit(vec![unique("w", window)]).await[0].duplicate);
}

#[tokio::test]
async fn a_delayed_job_waits_for_its_time() {
    let b = Bench::new().await;
    let mut job = b.job();
    job.start = Start::After(Duration::from_secs(10));
    let id = b.submit_one(job).await;
    let record = b.the(id).await;
    assert_eq!((record.status, record.run_at), (Status::Scheduled, Some(NOW + Duration::from_secs(10))));
    let promoted = b.store.promote(10).await.expect("promotes");
    assert_eq!((promoted.jobs, promoted.next_in), (0, Some(Duration::from_secs(10))));
    b.advance(Duration::from_secs(10));
    let promoted = b.store.promote(10).await.expect("promotes");
    assert_eq!((promoted.jobs, promoted.next_in), (1, None));
    assert_eq!(b.claim_one().await.id, id);
}

#[tokio::test]
async fn a_retry_waits_and_then_counts() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    let fence = Fence { job: id, lease: job.lease };
    let checkpoint = Payload::from_store("{\"at\":7}");
    assert!(b.store.save_checkpoint(b.node, fence, checkpoint.clone()).await.expect("saves"));
    assert_eq!(b.finish(&job, retry(1, 5)).await, Finished::Accepted(Status::Retrying));
    assert!(!b.store.save_checkpoint(b.node, fence, checkpoint.clone()).await.expect("refuses"), "the fence is lost");
    let record = b.the(id).await;
    assert_eq!((record.status, record.attempt, record.failed), (Status::Retrying, 1, 1));
    assert_eq!(record.error, Some(JobError::retryable("io")));
    b.advance(Duration::from_secs(5));
    b.store.promote(10).await.expect("promotes");
    assert_eq!((b.the(id).await.status, b.the(id).await.failed), (Status::Pending, 1));
    let job = b.claim_one().await;
    assert_eq!((job.failed, job.attempt(), job.checkpoint.as_ref()), (1, 2, Some(&checkpoint)));
    b.finish(&job, succeed()).await;
    let history = b.store.history(ALL, id).await.expect("reads");
    let seen: Vec<_> = history.iter().map(|entry| (entry.status, entry.attempt)).collect();
    assert_eq!(seen, [(Status::Pending, 0), (Status::Retrying, 1), (Status::Succeeded, 2)]);
    assert_eq!((history[1].node, &history[1].error), (Some(b.node), &Some(JobError::retryable("io"))));
}

#[tokio::test]
async fn snooze_release_route_and_park_cost_nothing() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    let snooze = Transition::Snooze { delay: Duration::from_secs(1) };
    assert_eq!(b.finish(&job, snooze).await, Finished::Accepted(Status::Scheduled));
    b.advance(Duration::from_secs(1));
    b.store.promote(10).await.expect("promotes");

    let other = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    assert_eq!((job.id, job.attempt()), (id, 1));
    assert_eq!(b.finish(&job, Transition::Release).await, Finished::Accepted(Status::Pending));
    let jobs = b.claim(2).await;
    assert_eq!([jobs[0].id, jobs[1].id], [id, other], "a released job goes in front");

    let elsewhere = Transition::Route { queue: "elsewhere".into() };
    assert_eq!(b.finish(&jobs[0], elsewhere).await, Finished::Accepted(Status::Pending));
    assert!(b.claim(10).await.is_empty());
    let ahead = b.store.whereabouts(ALL, id).await.expect("reads").expect("there").ahead;
    assert_eq!(ahead, Some(0), "found in the queue it was routed to");
    let routed = b.claim_from("elsewhere", 1).await.remove(0);
    let target = PauseTarget::Handler("mail.send".into());
    b.store.pause(&target, "ops", "mail is down").await.expect("pauses");
    let park = Transition::Park { gate: Gate::Pause(target.clone()) };
    assert_eq!(b.finish(&routed, park).await, Finished::Accepted(Status::Blocked));
    assert_eq!(b.the(id).await.reason.as_deref(), Some("pause:handler:mail.send"));
    assert_eq!(b.store.open_gates(10).await.expect("opens"), 0);
    assert!(b.store.resume(&target, "ops").await.expect("resumes"));
    assert!(!b.store.resume(&target, "ops").await.expect("resumes"), "there is no pause any more");
    let job = b.claim_one().await;
    assert_eq!((job.id, job.attempt()), (id, 1), "back in its own queue");
}

#[tokio::test]
async fn jobs_with_one_ordering_key_run_one_after_the_other() {
    let b = Bench::new().await;
    let keyed = || {
        let mut job = b.job();
        job.ordering_key = Some("customer-1".into());
        job
    };
    let (a, mut second, c) = (keyed(), keyed(), keyed());
    second.start = Start::After(Duration::from_secs(60));
    let (first, second, third) = (a.id, second.id, c.id);
    let mut delayed = keyed();
    (delayed.id, delayed.start) = (second, Start::After(Duration::from_secs(60)));
    b.submit(vec![a, delayed, c]).await;
    assert_eq!(b.the(second).await.reason.as_deref(), Some("key:customer-1"));
    let job = b.claim_one().await;
    assert_eq!(job.id, first);
    assert!(b.claim(10).await.is_empty());
    b.finish(&job, retry(1, 1)).await;
    assert_eq!(b.the(second).await.status, Status::Blocked, "the holder keeps the key through a retry");
    let whereabouts = b.store.whereabouts(ALL, third).await.expect("reads").expect("there");
    assert_eq!(whereabouts.key_holder, Some(first));
    b.store.cancel(ALL, first, "ops", "stop").await.expect("cancels");
    assert_eq!(b.the(second).await.status, Status::Scheduled, "it has the key, and its start lies ahead");
    assert_eq!(b.the(third).await.status, Status::Blocked);
    b.advance(Duration::from_secs(60));
    b.store.promote(10).await.expect("promotes");
    let job = b.claim_one().await;
    assert_eq!(job.id, second);
    b.finish(&job, succeed()).await;
    assert_eq!(b.claim_one().await.id, third);
}

#[tokio::test]
async fn urgent_jobs_go_first_and_bands_get_their_quota() {
    let b = Bench::new().await;
    let with = |priority| {
        let mut job = b.job();
        job.priority = Priority(priority);
        job
    };
    let jobs: Vec<_> = [-10, 0, 10, 20, 25].into_iter().map(with).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    b.submit(jobs).await;
    let claim = |max, quota| Claim {
        node: b.node,
        lease: b.lease(),
        queues: vec![("default".into(), 100), ("other".into(), 5)],
        max,
        quota,
    };
    let claimed = b.store.claim(claim(2, [1, 0, 0, 1])).await.expect("claims");
    let order: Vec<_> = claimed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(order, [ids[4], ids[0]], "each band's quota, the higher priority first within a band");
    assert_eq!(claimed.more, [true, true, true, false]);
    let claimed = b.store.claim(claim(10, [0; 4])).await.expect("claims");
    let order: Vec<_> = claimed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(order, [ids[3], ids[2], ids[1]], "then from the most urgent band on");
    assert_eq!(claimed.more, [false; 4]);
}

#[tokio::test]
async fn a_queue_gives_no_more_than_its_limit() {
    let b = Bench::new().await;
    b.submit((0..5).map(|_| b.job()).collect()).await;
    let mut other = b.job();
    other.queue = "other".into();
    let other = b.submit_one(other).await;
    let queues = vec![("default".into(), 2), ("other".into(), 10)];
    let claim = Claim { node: b.node, lease: b.lease(), queues, max: 10, quota: [0, 0, 10, 0] };
    let claimed = b.store.claim(claim).await.expect("claims");
    assert_eq!((claimed.jobs.len(), claimed.jobs[2].id, claimed.more), (3, other, [false, false, true, false]));
}

#[tokio::test]
async fn a_light_tenant_does_not_wait_for_a_heavy_one() {
    let b = Bench::new().await;
    b.submit((0..1_000).map(|_| b.job()).collect()).await;
    assert_eq!(b.claim(100).await.len(), 100);
    let mut light = b.job();
    light.tenant = tenant(2);
    let light = b.submit_one(light).await;
    assert_eq!(b.claim_one().await.id, light);
    let order: Vec<_> = b.claim(2_000).await.iter().map(|job| job.id).collect();
    assert_eq!(order.len(), 900);
    assert!(order.is_sorted(), "and the heavy one's jobs stay in order");
}

#[tokio::test]
async fn a_lost_node_costs_its_jobs_a_recovery() {
    let b = Bench::new().await;
    let (kept, canceled) = (b.submit_one(b.job()).await, b.submit_one(b.job()).await);
    let jobs = b.claim(2).await;
    b.store.cancel(ALL, canceled, "ops", "stop").await.expect("cancels");
    let lease = Duration::from_secs(15);
    b.advance(Duration::from_secs(10));
    let beat = b.store.heartbeat(b.node, 2).await.expect("beats");
    assert_eq!(beat, Beat::Alive { cancels: vec![Fence { job: canceled, lease: jobs[1].lease }] });
    b.advance(Duration::from_secs(14));
    assert!(b.store.recover(lease).await.expect("recovers").nodes.is_empty());
    b.advance(Duration::from_secs(1));
    let recovered = b.store.recover(lease).await.expect("recovers");
    assert_eq!((recovered.nodes, recovered.jobs), (vec![b.node], vec![kept]));
    assert_eq!(b.store.heartbeat(b.node, 2).await.expect("beats"), Beat::Fenced);
    assert_eq!(b.finish(&jobs[0], succeed()).await, Finished::Fenced);
    assert!(b.claim(10).await.is_empty(), "a dead node gets nothing");
    assert_eq!(b.the(canceled).await.status, Status::Canceled);

    let node = b.store.register(common::new_node()).await.expect("registers").node;
    let claim = |queue: String| Claim { node, lease: b.lease(), queues: vec![(queue, 5)], max: 5, quota: [0; 4] };
    assert!(b.store.claim(claim("default".into())).await.expect("claims").jobs.is_empty());
    let suspects = b.store.claim(claim(suspect_queue("default"))).await.expect("claims").jobs;
    assert_eq!((suspects[0].id, suspects[0].recoveries, suspects[0].attempt()), (kept, 1, 2));
    let history = b.store.history(ALL, kept).await.expect("reads");
    assert_eq!((history[1].status, history[1].attempt), (Status::Pending, 1));
    assert_eq!(history[1].error.as_ref().map(|e| e.code.as_str()), Some("node_unavailable"));
    assert_eq!(history[2].status, Status::Running);
    b.finish_as(node, &suspects[0], retry(1, 0)).await;
    b.store.promote(10).await.expect("promotes");
    let suspects = b.store.claim(claim(suspect_queue("default"))).await.expect("claims").jobs;
    assert_eq!((suspects[0].failed, suspects[0].recoveries), (1, 1), "once a suspect, always one");
}

#[tokio::test]
async fn a_clean_end_of_a_node_costs_nothing_and_rests_its_slot() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    let before = b.store.nodes().await.expect("reads")[0].slot;
    b.store.deregister(b.node).await.expect("deregisters");
    assert_eq!(b.finish(&job, succeed()).await, Finished::Fenced);
    let next = b.store.register(common::new_node()).await.expect("registers");
    assert!(next.slot != before && next.node != b.node, "neither comes back at once");
    let claim = Claim { node: next.node, lease: b.lease(), queues: vec![("default".into(), 1)], max: 1, quota: [0; 4] };
    let job = b.store.claim(claim).await.expect("claims").jobs.remove(0);
    assert_eq!((job.id, job.attempt()), (id, 1));
    b.advance(windlass_core::store::SLOT_QUARANTINE);
    assert_eq!(b.store.register(common::new_node()).await.expect("registers").slot, before);
}

#[tokio::test]
async fn progress_is_kept_for_the_holder_only() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    let progress = Progress { sequence: 3, percent: 12.5, message: "an eighth".into() };
    let mine = ProgressReport { fence: Fence { job: id, lease: job.lease }, progress: progress.clone() };
    let mut stale = mine.clone();
    stale.fence.lease = b.lease();
    let answers = b.store.report_progress(b.node, vec![mine, stale]).await.expect("reports");
    assert_eq!(answers, [true, false]);
    assert_eq!(b.the(id).await.progress, Some(progress));
}

#[tokio::test]
async fn a_dead_letter_is_kept_counted_and_audited() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    assert_eq!(b.finish(&job, die()).await, Finished::Accepted(Status::DeadLettered));
    b.advance(Duration::from_secs(365 * 86_400));
    let record = b.the(id).await;
    assert_eq!((record.status, record.failed), (Status::DeadLettered, 1));
    assert_eq!((record.reason.as_deref(), &record.error), (Some("max_retries"), &Some(JobError::retryable("io"))));
    let log = b.store.audit_log(ALL, &Default::default()).await.expect("reads");
    assert_eq!((log[0].action.as_str(), &log[0].target), ("JOB_EXHAUSTED_RETRIES", &id.to_string()));
}

#[tokio::test]
async fn lists_filter_and_page() {
    let b = Bench::new().await;
    let batch = BatchId(b.job().id);
    let mut ids = Vec::new();
    for n in 0..6_u32 {
        let mut job = b.job();
        job.handler = if n % 2 == 0 { "even".into() } else { "odd".into() };
        job.tenant = tenant(u128::from(n / 3));
        job.batch = (n == 1).then_some(batch);
        job.correlation_id = (n == 2).then(|| "c".into());
        job.tags = if n < 2 { vec!["small".into()] } else { Vec::new() };
        job.start = if n == 5 { Start::After(KEEP) } else { Start::Now };
        ids.push(b.submit_one(job).await);
    }
    let list = |scope, filter: JobFilter, page| {
        let store = &b.store;
        async move {
            let records = store.list(scope, &filter, page).await.expect("lists");
            assert!(records.iter().all(|record| filter.matches(record)));
            records.into_iter().map(|record| record.id).collect::<Vec<_>>()
        }
    };
    let all: Vec<_> = ids.iter().rev().copied().collect();
    assert_eq!(list(ALL, JobFilter::all(), Page::default()).await, all);
    assert_eq!(list(ALL, JobFilter::all(), Page::first(2).after(ids[4])).await, all[2..4]);
    assert_eq!(list(ALL, JobFilter::all(), Page { offset: 3, ..Page::default() }).await, all[3..]);
    assert_eq!(list(Scope::Tenant(tenant(0)), JobFilter::all(), Page::default()).await, all[3..]);
    assert_eq!(list(ALL, JobFilter::all().handler("odd"), Page::default()).await, [ids[5], ids[3], ids[1]]);
    assert_eq!(list(ALL, JobFilter::all().tag("small"), Page::default()).await, [ids[1], ids[0]]);
    let mut filter = JobFilter::all();
    filter.batch = Some(batch);
    assert_eq!(list(ALL, filter, Page::default()).await, [ids[1]]);
    let mut filter = JobFilter::all();
    filter.correlation_id = Some("c".into());
    assert_eq!(list(ALL, filter, Page::default()).await, [ids[2]]);
    let mut filter = JobFilter::all();
    filter.created_before = Some(NOW);
    assert!(list(ALL, filter, Page::default()).await.is_empty());

    let jobs = b.claim(2).await;
    b.finish(&jobs[0], die()).await;
    let statuses = [
        (Status::Running, vec![jobs[1].id]),
        (Status::Scheduled, vec![ids[5]]),
        (Status::DeadLettered, vec![jobs[0].id]),
        (Status::Blocked, vec![]),
        (Status::Succeeded, vec![]),
    ];
    for (status, expected) in statuses {
        assert_eq!(list(ALL, JobFilter::all().status(status), Page::default()).await, expected, "{status}");
    }
    let pending = list(ALL, JobFilter::all().status(Status::Pending), Page::default()).await;
    assert_eq!(pending.len(), 3);
    let both = JobFilter::all().status(Status::Running).status(Status::DeadLettered);
    assert_eq!(list(ALL, both, Page::default()).await.len(), 2);
    let mut filter = JobFilter::all();
    filter.reason = Some("max_retries".into());
    assert_eq!(list(ALL, filter, Page::default()).await, [jobs[0].id]);
    let mut filter = JobFilter::all();
    filter.replayed = Some(true);
    assert!(list(ALL, filter, Page::default()).await.is_empty());
}

#[tokio::test]
async fn counts_tell_every_status_of_a_tenant() {
    let b = Bench::new().await;
    for n in 0..2 {
        let jobs = (0..3).map(|_| {
            let mut job = b.job();
            job.tenant = tenant(n);
            job
        });
        b.submit(jobs.collect()).await;
    }
    let jobs = b.claim(4).await;
    let done: Vec<_> = jobs.iter().take(2).map(|job| finish(job, succeed())).collect();
    b.store.finish(b.node, done).await.expect("finishes");
    let counts = b.store.counts(ALL).await.expect("counts");
    let seen = [Status::Pending, Status::Running, Status::Succeeded].map(|status| counts.get(status));
    assert_eq!(seen, [2, 2, 2]);
    let of = |n| b.store.counts(Scope::Tenant(tenant(n)));
    let (first, second) = (of(0).await.expect("counts"), of(1).await.expect("counts"));
    for status in Status::ALL {
        assert_eq!(first.get(status) + second.get(status), counts.get(status), "{status}");
    }
    b.advance(KEEP);
    b.store.clean(100).await.expect("cleans");
    assert_eq!(b.store.counts(ALL).await.expect("counts").get(Status::Succeeded), 2, "also after they are gone");
}
