//! What a store promises about jobs that run: claims, fences, lost nodes, checkpoints, releases, and machine slots.
//! Run by every store through `conformance_tests!`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use windlass_core::store::{
    Beat, CancelReply, Claim, Fence, Finish, Finished, NewNode, NodeId, Note, Noted, Recovered, Silent, Transition,
    suspect_queue,
};
use windlass_core::suspect::Loss;
use windlass_core::{ClaimedJob, JobError, JobId, MachineSlot, Priority, Progress, Status, Timestamp};

use super::rig::*;

/// RUN-3: nothing but the submit is needed before a worker gets the job.
pub(super) async fn a_submitted_job_can_be_claimed_at_once(rig: Rig) {
    let id = rig.submit(rig.job()).await;
    let claimed = rig.claim_one().await;
    assert_eq!((claimed.id, claimed.attempt(), claimed.failed, claimed.recoveries), (id, 1, 0, 0));
    assert!(claimed.ready_at >= claimed.created_at || claimed.ready_at.since(claimed.created_at).is_zero());
    let record = rig.record(id).await;
    assert_eq!((record.status, record.attempt, record.node), (Status::Running, 1, Some(rig.node)));
    assert!(record.started_at.is_some());
    assert!(rig.claim(5).await.is_empty(), "a running job is not ready");
}

/// RUN-5: claimed and born, until they end or are given back; what others hold is not told. So a node finds jobs again
/// whose claim was never answered.
pub(super) async fn a_node_can_ask_what_it_holds(rig: Rig) {
    let held = async |node| {
        let fences = rig.store().held(node).await.expect("held");
        let mut fences: Vec<_> = fences.into_iter().map(|fence| (fence.job, fence.lease)).collect();
        fences.sort();
        fences
    };
    assert!(held(rig.node).await.is_empty());
    rig.submit_all(rig.jobs(3)).await;
    let claimed = rig.claim(3).await;
    let other = rig.another_node().await;
    assert!(held(other).await.is_empty(), "another node holds nothing");
    let mut expected: Vec<_> = claimed.iter().map(|job| (job.id, job.lease)).collect();
    expected.sort();
    assert_eq!(held(rig.node).await, expected);
    rig.end(&claimed[0], succeed()).await;
    rig.end(&claimed[1], Transition::Release).await;
    assert_eq!(held(rig.node).await, [(claimed[2].id, claimed[2].lease)]);
}

/// RUN-3, RUN-11: `max` and the limit of each queue are both kept, and a queue's limit does not starve the next queue.
pub(super) async fn a_claim_takes_no_more_than_asked_for_in_all_or_per_queue(rig: Rig) {
    for queue in ["one", "two"] {
        let jobs = rig.jobs(20).into_iter().map(|job| job.queue(queue)).collect();
        rig.submit_all(jobs).await;
    }
    let per_queue = async |limits: [usize; 2], max| {
        let queues = vec![("one".to_owned(), limits[0]), ("two".to_owned(), limits[1])];
        let jobs = rig.claim_with(rig.node, queues, max, [0; 4]).await.jobs;
        ["one", "two"].map(|queue| jobs.iter().filter(|job| job.queue == queue).count())
    };
    assert_eq!(per_queue([0, 0], 10).await, [0, 0]);
    assert_eq!(per_queue([5, 5], 0).await, [0, 0]);
    assert_eq!(per_queue([3, 100], 10).await, [3, 7]);
    let [one, two] = per_queue([100, 2], 10).await;
    assert!(one + two == 10 && two <= 2, "{one} and {two}");
    assert_eq!(per_queue([2, 3], 100).await, [2, 3]);
    let mixed = [20, 10, 0, -10].map(Priority);
    rig.submit_all(
        mixed.iter().flat_map(|p| rig.jobs(3).into_iter().map(|job| job.priority(*p).queue("mixed"))).collect(),
    )
    .await;
    let claimed = rig.claim_with(rig.node, vec![("mixed".into(), 5)], 10, [1, 1, 1, 1]).await;
    assert_eq!(claimed.jobs.len(), 5, "a queue's limit holds for all bands together");
}

/// RUN-3: "as many as there are" can be said with the largest number.
pub(super) async fn limits_without_end_take_all_there_is(rig: Rig) {
    const NO_LIMIT: usize = usize::MAX;
    let submitted = submitted_ids(&rig.submit_all(rig.jobs(10)).await);
    let soon = rig.submit(rig.job().after(SOON)).await;
    let claimed = rig.claim_with(rig.node, vec![(QUEUE.into(), NO_LIMIT)], NO_LIMIT, [NO_LIMIT; 4]).await;
    assert_eq!(ids(&claimed.jobs), submitted);
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.store().promote(NO_LIMIT).await.expect("promote").jobs, 1);
    assert_eq!(rig.store().open_gates(NO_LIMIT).await.expect("open_gates"), 0);
    assert_eq!(rig.store().expire(NO_LIMIT).await.expect("expire"), 0);
    assert_eq!(rig.store().clean(NO_LIMIT).await.expect("clean"), 0);
    assert_eq!(rig.claim_one().await.id, soon);
    let recovered = rig.recover(std::time::Duration::MAX).await;
    assert!(recovered.nodes.is_empty());
    assert_eq!(rig.store().promote(0).await.expect("promote").jobs, 0);
}

/// RUN-3: a node gets only what it asked for.
pub(super) async fn a_claim_leaves_other_queues_alone(rig: Rig) {
    let ours = rig.submit(rig.job().queue("ours")).await;
    let theirs = rig.submit(rig.job().queue("theirs")).await;
    assert!(rig.claim(5).await.is_empty());
    assert_eq!(ids(&rig.claim_from(rig.node, &["ours"], 5).await), [ours]);
    assert_eq!(rig.status(theirs).await, Status::Pending);
    assert!(rig.claim_from(rig.node, &[], 5).await.is_empty(), "no queue, no jobs");
}

/// RUN-3, SUB-4: jobs of one bulk are taken piece by piece, oldest first, none twice and none lost.
pub(super) async fn a_claim_of_part_of_a_chunk_leaves_the_rest_in_order(rig: Rig) {
    let submitted = submitted_ids(&rig.submit_all(rig.jobs(100)).await);
    let mut claimed = Vec::new();
    for _ in 0..10 {
        claimed.extend(ids(&rig.claim(10).await));
    }
    assert_eq!(claimed, submitted);
    assert!(rig.claim(10).await.is_empty());
}

/// RUN-4: however many nodes claim at once, no job goes to two and none is forgotten.
pub(super) async fn claimers_at_once_take_every_job_exactly_once(rig: Rig) {
    const CLAIMERS: usize = 8;
    let mut submitted = submitted_ids(&rig.submit_all(rig.jobs(300)).await);
    for _ in 0..100 {
        submitted.push(rig.submit(rig.job()).await);
    }
    let mut nodes = Vec::new();
    for _ in 0..CLAIMERS {
        nodes.push(rig.another_node().await);
    }
    let claimed = at_once(CLAIMERS, |n| {
        let (rig, node) = (rig.clone(), nodes[n]);
        async move {
            let mut mine = Vec::new();
            // Several empty answers in a row: a claimer may find what others hold just now.
            let mut empty = 0;
            while empty < 5 {
                let jobs = rig.claim_as(node, 7).await;
                empty = if jobs.is_empty() { empty + 1 } else { 0 };
                mine.extend(ids(&jobs));
            }
            mine
        }
    })
    .await;
    let mut claimed: Vec<JobId> = claimed.into_iter().flatten().collect();
    claimed.extend(ids(&rig.claim(ALL).await));
    assert_eq!(sorted(claimed), submitted);
}

/// RUN-4: after a takeover nothing the old attempt writes is kept, and it is told so.
pub(super) async fn a_write_under_a_lost_lease_is_refused(rig: Rig) {
    let lost = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    assert_eq!(rig.lose_node(&[other]).await, [lost.id]);
    for transition in [succeed(), retry(1, SOON), dead("validation"), Transition::Release] {
        assert_eq!(rig.finish(&lost, transition).await, Finished::Fenced);
    }
    let progress = Progress { sequence: 9, percent: 99.0, message: "late".into(), updated_at: Timestamp::default() };
    let report = Note { fence: fence(&lost), what: Noted::Progress(progress) };
    assert_eq!(rig.store().note(rig.node, vec![report]).await.expect("progress"), [false]);
    assert!(!rig.save_checkpoint(rig.node, fence(&lost), payload("9")).await);
    let record = rig.record(lost.id).await;
    assert_eq!((record.status, record.progress, record.recoveries), (Status::Pending, None, 1));

    let taken = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 1).await.remove(0);
    assert_eq!((taken.id, taken.checkpoint.is_none()), (lost.id, true));
    assert_eq!(rig.finish(&lost, succeed()).await, Finished::Fenced, "also while the next attempt runs");
    assert_eq!(rig.finish_as(other, finish(&taken, succeed())).await, Finished::Accepted(Status::Succeeded));
    assert_eq!(rig.finish(&lost, dead("validation")).await, Finished::Fenced, "also after it has ended");
    assert_eq!(rig.status(lost.id).await, Status::Succeeded);
}

/// RUN-4: the second of two finishes is refused, in one call or in two, and the outcome stays.
pub(super) async fn a_job_ends_only_once(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let twice = vec![finish(&job, succeed()), finish(&job, dead("validation"))];
    let answers = rig.store().finish(rig.node, twice).await.expect("finish");
    assert_eq!(answers, [Finished::Accepted(Status::Succeeded), Finished::Fenced]);
    assert_eq!(rig.finish(&job, dead("validation")).await, Finished::Fenced);
    assert_eq!(rig.status(job.id).await, Status::Succeeded);

    let job = rig.running(rig.job()).await;
    assert_eq!(rig.finish(&job, retry(1, HOUR)).await, Finished::Accepted(Status::Retrying));
    assert_eq!(rig.finish(&job, succeed()).await, Finished::Fenced);
    assert_eq!(rig.status(job.id).await, Status::Retrying);

    let job = rig.running(rig.job()).await;
    assert_eq!(rig.finish(&job, Transition::Release).await, Finished::Accepted(Status::Pending));
    let again = rig.claim_one().await;
    assert_eq!(rig.finish(&job, succeed()).await, Finished::Fenced, "the same node, yet under another lease");
    assert_eq!(rig.finish(&again, succeed()).await, Finished::Accepted(Status::Succeeded));
}

/// RUN-4: a fence is node, lease and job; with any of them wrong nothing is written.
pub(super) async fn only_the_node_and_lease_that_hold_a_job_can_end_it(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let neighbour = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    assert_eq!(rig.finish_as(other, finish(&job, succeed())).await, Finished::Fenced);
    let wrong = |job, lease| Finish { fence: Fence { job, lease }, ..finish(&neighbour, succeed()) };
    assert_eq!(rig.finish_as(rig.node, wrong(job.id, neighbour.lease)).await, Finished::Fenced);
    assert_eq!(rig.finish_as(rig.node, wrong(job.id, rig.new_lease())).await, Finished::Fenced);
    assert_eq!(rig.finish_as(rig.node, wrong(rig.job().id(), job.lease)).await, Finished::Fenced);
    let waiting = rig.submit(rig.job()).await;
    assert_eq!(rig.finish_as(rig.node, wrong(waiting, job.lease)).await, Finished::Fenced, "a waiting job");
    let progress = Progress { sequence: 1, percent: 1.0, message: String::new(), updated_at: Timestamp::default() };
    let report = Note { fence: fence(&job), what: Noted::Progress(progress) };
    assert_eq!(rig.store().note(other, vec![report]).await.expect("progress"), [false]);
    assert!(!rig.save_checkpoint(other, fence(&job), payload("1")).await);
    assert_eq!(rig.status(job.id).await, Status::Running);
    assert_eq!(rig.status(waiting).await, Status::Pending);
    assert_eq!(rig.finish(&job, succeed()).await, Finished::Accepted(Status::Succeeded));
}

/// RUN-4: a call with good and stale fences answers for each in its place and carries out the good ones.
pub(super) async fn answers_to_finishes_come_in_their_order(rig: Rig) {
    rig.submit_all(rig.jobs(5)).await;
    let jobs = rig.claim(5).await;
    rig.end(&jobs[1], succeed()).await;
    let finishes = vec![
        finish(&jobs[0], succeed()),
        finish(&jobs[1], succeed()),
        finish(&jobs[2], retry(1, HOUR)),
        Finish { fence: Fence { job: jobs[3].id, lease: rig.new_lease() }, ..finish(&jobs[3], succeed()) },
        finish(&jobs[4], dead("validation")),
    ];
    let answers = rig.store().finish(rig.node, finishes).await.expect("finish");
    use Finished::*;
    use Status::*;
    assert_eq!(answers, [Accepted(Succeeded), Fenced, Accepted(Retrying), Fenced, Accepted(DeadLettered)]);
    let statuses = [Succeeded, Succeeded, Retrying, Running, DeadLettered];
    for (job, status) in jobs.iter().zip(statuses) {
        assert_eq!(rig.status(job.id).await, status);
    }
}

/// RUN-4: several leases' worth of jobs end in one call.
pub(super) async fn many_finishes_fit_in_one_call(rig: Rig) {
    rig.submit_all(rig.jobs(300)).await;
    let mut jobs = Vec::new();
    while jobs.len() < 300 {
        let more = rig.claim(64).await;
        assert!(!more.is_empty());
        jobs.extend(more);
    }
    let finishes = jobs.iter().map(|job| finish(job, succeed())).collect();
    let answers = rig.store().finish(rig.node, finishes).await.expect("finish");
    assert!(answers.len() == 300 && answers.iter().all(|a| *a == Finished::Accepted(Status::Succeeded)));
    assert_eq!(rig.counts().await.get(Status::Succeeded), 300);
    assert_eq!(rig.counts().await.unfinished(), 0);
}

/// RUN-4: a big claim may end piece by piece, whole or with failures between, in any order; each job ends once, and a
/// cancel that was asked for meanwhile is kept to.
pub(super) async fn jobs_of_one_lease_end_in_any_order_each_once(rig: Rig) {
    const JOBS: usize = 300;
    rig.submit_all(rig.jobs(JOBS)).await;
    let mut claimed = rig.claim(JOBS).await;
    assert_eq!(claimed.len(), JOBS);
    claimed.reverse();
    let (canceled, failing) = (claimed[70].id, claimed[200].id);
    rig.cancel(canceled).await;
    let transition = |job: &ClaimedJob| if job.id == failing { retry(1, HOUR) } else { succeed() };
    let expected = |job: &ClaimedJob| match job.id {
        id if id == canceled => Finished::Accepted(Status::Canceled),
        id if id == failing => Finished::Accepted(Status::Retrying),
        _ => Finished::Accepted(Status::Succeeded),
    };
    // Every other job, then the rest together with those that have ended before.
    let odd: Vec<&ClaimedJob> = claimed.iter().skip(1).step_by(2).collect();
    let finishes = odd.iter().map(|job| finish(job, transition(job))).collect();
    let answers = rig.store().finish(rig.node, finishes).await.expect("finish");
    assert_eq!(answers, odd.iter().map(|job| expected(job)).collect::<Vec<_>>());
    let finishes = claimed.iter().map(|job| finish(job, transition(job))).collect();
    let answers = rig.store().finish(rig.node, finishes).await.expect("finish");
    for (n, (job, answer)) in claimed.iter().zip(answers).enumerate() {
        assert_eq!(answer, if n % 2 == 1 { Finished::Fenced } else { expected(job) }, "job {n}");
    }
    let counts = rig.counts().await;
    assert_eq!([counts.get(Status::Running), counts.get(Status::Succeeded)], [0, JOBS as u64 - 2]);
}

/// RUN-4: two writers that both believe to hold the job cannot both end it.
pub(super) async fn of_two_finishes_at_once_one_is_accepted(rig: Rig) {
    for _ in 0..20 {
        let job = rig.running(rig.job()).await;
        let answers = at_once(2, |n| {
            let (rig, job) = (rig.clone(), job.clone());
            async move { rig.finish(&job, if n == 0 { succeed() } else { dead("validation") }).await }
        })
        .await;
        let accepted: Vec<&Finished> = answers.iter().filter(|a| **a != Finished::Fenced).collect();
        assert_eq!(accepted.len(), 1, "{answers:?}");
        assert_eq!(*accepted[0], Finished::Accepted(rig.status(job.id).await));
    }
}

/// RUN-5: after the lease the job is ready again as the next attempt, apart from jobs that never killed a node.
pub(super) async fn a_lost_nodes_job_is_the_next_attempt_in_the_suspect_queue(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    assert_eq!(rig.lose_node(&[other]).await, [job.id]);
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.recoveries, record.failed, record.attempt), (Status::Pending, 1, 0, 1));
    assert!(rig.claim_as(other, 5).await.is_empty(), "it is not in the usual queue");
    let again = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 5).await;
    assert_eq!(ids(&again), [job.id]);
    assert_eq!((again[0].attempt(), again[0].recoveries, again[0].failed), (2, 1, 0));
}

/// RUN-5: every lost node counts, and no way back leads a suspect among other jobs.
pub(super) async fn recoveries_are_counted_and_a_suspect_stays_suspect(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let mut nodes = vec![rig.node];
    for lost in 1..=3 {
        rig.advance(PAST_LEASE).await;
        let next = rig.another_node().await;
        let recovered = rig.recover(LEASE).await;
        assert!(recovered.nodes.contains(nodes.last().expect("there is one")), "the silent node is dead");
        nodes.push(next);
        let again = rig.claim_from(next, &[&suspect_queue(QUEUE, lost)], 5).await;
        assert_eq!((ids(&again), again[0].recoveries, again[0].attempt()), (vec![job.id], lost, lost + 1));
    }
    let suspects = suspect_queue(QUEUE, 4);
    let node = rig.another_node().await;
    rig.advance(PAST_LEASE).await;
    rig.store().heartbeat(node, 0).await.expect("heartbeat");
    rig.recover(LEASE).await;
    let ways_back = [Transition::Release, retry(1, SOON), Transition::Snooze { delay: SOON }];
    for transition in ways_back {
        let again = rig.claim_from(node, &[&suspects], 5).await;
        assert_eq!(ids(&again), [job.id], "waits among the suspects");
        rig.finish_as(node, finish(&again[0], transition)).await;
        rig.advance(PAST_SOON).await;
        rig.promote().await;
        assert!(rig.claim_as(node, 5).await.is_empty(), "it never comes back among the others");
    }
    let again = rig.claim_from(node, &[&suspects], 5).await.remove(0);
    assert_eq!((again.recoveries, again.failed, again.attempt()), (4, 1, 6));
}

/// RUN-5, ERR-4: with every lost job it is noted how long it had run and how many may have been the cause. One that runs
/// longer than before its last loss was not.
pub(super) async fn a_loss_tells_who_may_have_been_the_cause(rig: Rig) {
    let watcher = rig.another_node().await;
    let lose = async |node: NodeId, ran: Duration| {
        rig.advance(ran).await;
        rig.store().heartbeat(node, 0).await.expect("heartbeat");
        rig.advance(PAST_LEASE).await;
        rig.store().heartbeat(watcher, 0).await.expect("heartbeat");
        assert_eq!(rig.recover(LEASE).await.nodes, [node]);
    };
    let noted = async |id: JobId| {
        let record = rig.record(id).await;
        let in_history = rig.history(id).await.into_iter().rev().find_map(|entry| entry.error);
        assert_eq!(record.error, in_history, "the last attempt says it");
        Loss::of(&record.error.expect("it was lost")).expect("the loss is noted")
    };
    let submitted: Vec<JobId> = rig.submit_all(rig.jobs(3)).await.iter().map(|submitted| submitted.id).collect();
    assert_eq!(rig.claim(3).await.len(), 3);
    lose(rig.node, Duration::from_millis(20)).await;
    for id in &submitted {
        let loss = noted(*id).await;
        assert!(loss.suspects == 3 && !loss.outlived && loss.ran_ms < 1_000, "{loss:?}");
    }
    let second = rig.another_node().await;
    let again = rig.claim_from(second, &[&suspect_queue(QUEUE, 1)], 2).await;
    assert_eq!(again.len(), 2);
    lose(second, Duration::ZERO).await;
    let third = rig.another_node().await;
    let last = rig.claim_from(third, &[&suspect_queue(QUEUE, 2)], 1).await.remove(0);
    assert_eq!(noted(last.id).await.suspects, 2, "two were lost together for the second time");
    rig.advance(LEASE).await;
    // Its cohort has outlived what killed the last node when the next one starts.
    let next = rig.claim_from(third, &[&suspect_queue(QUEUE, 2)], 1).await.remove(0);
    let fresh = rig.claim_from(third, &[&suspect_queue(QUEUE, 1)], 1).await.remove(0);
    lose(third, Duration::ZERO).await;
    let (last, next, fresh) = (noted(last.id).await, noted(next.id).await, noted(fresh.id).await);
    assert!(last.outlived && last.suspects == 2, "{last:?}");
    assert!(!next.outlived && next.suspects == 1, "it alone may be the cause: {next:?}");
    assert!(!fresh.outlived && fresh.suspects == 2, "or so it looks from here: {fresh:?}");
}

/// RUN-5, RUN-4: a node that comes back after it was declared dead is told so and changes nothing.
pub(super) async fn a_dead_node_is_fenced_everywhere(rig: Rig) {
    let other = rig.another_node().await;
    let waiting = rig.submit(rig.job()).await;
    rig.lose_node(&[other]).await;
    assert_eq!(rig.store().heartbeat(rig.node, 0).await.expect("heartbeat"), Beat::Fenced);
    let claim = Claim {
        node: rig.node,
        lease: rig.new_lease(),
        queues: vec![(QUEUE.into(), 5)],
        max: 5,
        quota: [0; 4],
        tenant: None,
    };
    let claimed = rig.store().claim(claim).await;
    assert!(claimed.map_or(true, |claimed| claimed.jobs.is_empty()), "a dead node gets no jobs");
    assert_eq!(ids(&rig.claim_as(other, 5).await), [waiting]);
    assert_eq!(rig.store().heartbeat(rig.node, 0).await.expect("heartbeat"), Beat::Fenced, "for ever");
    assert!(rig.store().nodes().await.expect("nodes").iter().all(|node| node.node != rig.node));
}

/// RUN-5: several nodes may notice a death at once; each job comes back once, with one recovery.
pub(super) async fn recovery_happens_once_however_many_nodes_ask(rig: Rig) {
    rig.submit_all(rig.jobs(20)).await;
    let held = sorted(ids(&rig.claim(20).await));
    rig.advance(PAST_LEASE).await;
    let other = rig.another_node().await;
    let recovered = at_once(8, |_| {
        let rig = rig.clone();
        async move { rig.recover(LEASE).await }
    })
    .await;
    let jobs: Vec<JobId> = recovered.iter().flat_map(|r| r.jobs.clone()).collect();
    assert_eq!(sorted(jobs), held);
    assert_eq!(recovered.iter().filter(|r| r.nodes.contains(&rig.node)).count(), 1);
    assert!(recovered.iter().all(|r| !r.nodes.contains(&other)));
    let again = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 50).await;
    assert_eq!(sorted(ids(&again)), held);
    assert!(again.iter().all(|job| job.recoveries == 1));
    let idle = rig.recover(HOUR).await;
    assert!(idle.nodes.is_empty() && idle.jobs.is_empty());
}

/// RUN-5: a node is declared dead only with the heartbeat that an observer has seen for long, whatever the store's clock
/// says: after an outage, or a jump of that clock, all nodes look silent.
pub(super) async fn only_a_node_that_was_seen_silent_is_declared_dead(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    rig.advance(PAST_LEASE).await;
    let silent = async |node: NodeId| {
        let silent = rig.store().survey(LEASE, &[]).await.expect("survey").silent;
        silent.into_iter().find(|silent| silent.node == node).expect("it has been silent")
    };
    let declare = async |lease: Duration, silent: &[Silent]| rig.store().recover(lease, silent).await.expect("recover");
    assert_eq!(declare(LEASE, &[]).await, Recovered::default(), "nobody has seen them silent");
    let seen = silent(rig.node).await;
    rig.store().heartbeat(rig.node, 1).await.expect("heartbeat");
    rig.advance(PAST_LEASE).await;
    assert_eq!(declare(LEASE, &[seen]).await, Recovered::default(), "it has been renewed since");
    assert_eq!(declare(LEASE, &[silent(other).await]).await.nodes, [other], "not the one that was not seen");
    let seen = silent(rig.node).await;
    assert_eq!(declare(HOUR, &[seen]).await, Recovered::default(), "its lease is not over");
    let recovered = declare(LEASE, &[seen]).await;
    assert_eq!((recovered.nodes, recovered.jobs), (vec![rig.node], vec![job.id]));
}

/// RUN-4, RUN-5: a node that was silent for too long ends its jobs just while it is declared dead. Each job ended, or
/// comes back; never both, never neither.
pub(super) async fn a_finish_and_a_recovery_at_once_have_one_winner(rig: Rig) {
    const JOBS: usize = 20;
    for _ in 0..3 {
        let lost = rig.another_node().await;
        rig.submit_all(rig.jobs(JOBS)).await;
        let held = rig.claim_as(lost, JOBS).await;
        assert_eq!(held.len(), JOBS);
        rig.advance(PAST_LEASE).await;
        rig.store().heartbeat(rig.node, 0).await.expect("heartbeat");
        let answers = at_once(JOBS + 1, |n| {
            let (rig, job) = (rig.clone(), held.get(n).cloned());
            async move {
                match job {
                    Some(job) => Ok((job.id, rig.finish_as(lost, finish(&job, succeed())).await)),
                    None => Err(rig.recover(LEASE).await.jobs),
                }
            }
        })
        .await;
        let (finished, recovered): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let recovered: HashSet<JobId> = recovered.into_iter().filter_map(Result::err).flatten().collect();
        for (id, answer) in finished.into_iter().flatten() {
            let expected =
                if recovered.contains(&id) { Finished::Fenced } else { Finished::Accepted(Status::Succeeded) };
            assert_eq!(answer, expected);
            let status = if recovered.contains(&id) { Status::Pending } else { Status::Succeeded };
            assert_eq!(rig.status(id).await, status);
        }
        for job in rig.claim_from(rig.node, &[&suspect_queue(QUEUE, 1)], JOBS).await {
            assert!(recovered.contains(&job.id) && job.recoveries == 1);
            rig.end(&job, succeed()).await;
        }
        assert_eq!(rig.counts().await.unfinished(), 0);
    }
}

/// RUN-4, RUN-5, ORD-4: submitters, workers, an operator and maintenance all at once. Every job ends once, none runs in
/// two places, and the counts add up.
pub(super) async fn a_busy_store_loses_and_doubles_nothing(rig: Rig) {
    const SUBMITTERS: usize = 4;
    const BATCHES: usize = 8;
    const WORKERS: usize = 4;
    let yard = Arc::new(Yard::default());
    at_once(SUBMITTERS + WORKERS + 1, |n| {
        let (rig, yard) = (rig.clone(), Arc::clone(&yard));
        async move {
            match n {
                n if n < SUBMITTERS => {
                    for batch in 0..BATCHES {
                        yard.submit(&rig, n, batch).await;
                    }
                    yard.submitters_done.fetch_add(1, Ordering::SeqCst);
                }
                n if n < SUBMITTERS + WORKERS => {
                    let node = rig.another_node().await;
                    while !yard.is_over(&rig, SUBMITTERS).await {
                        yard.work(&rig, node).await;
                    }
                }
                _ => {
                    while !yard.is_over(&rig, SUBMITTERS).await {
                        rig.advance(std::time::Duration::from_millis(2)).await;
                        rig.promote().await;
                        rig.open_gates().await;
                        rig.expire().await;
                        rig.clean().await;
                        rig.recover(HOUR).await;
                        yard.cancel_some(&rig).await;
                        // Calls on a store in memory never wait: without this the task would keep its thread for itself.
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    })
    .await;
    let submitted = yard.submitted.lock().clone();
    let counts = rig.counts().await;
    let ended: u64 = [Status::Succeeded, Status::Canceled, Status::DeadLettered].iter().map(|s| counts.get(*s)).sum();
    assert_eq!((ended, counts.unfinished()), (submitted.len() as u64, 0));
    for id in submitted {
        assert!(rig.status(id).await.is_terminal());
    }
}

/// What the actors of the case above share.
#[derive(Default)]
struct Yard {
    submitted: Mutex<Vec<JobId>>,
    running: Mutex<HashSet<JobId>>,
    ended: Mutex<HashSet<JobId>>,
    submitters_done: AtomicUsize,
}

impl Yard {
    /// Plain, keyed, ordered, delayed and repeated jobs of two tenants.
    async fn submit(&self, rig: &Rig, submitter: usize, batch: usize) {
        let key = format!("{submitter}-{batch}");
        let jobs = vec![
            rig.job(),
            rig.job().key(&key),
            rig.job().key(&key),
            rig.job().ordered(["x", "y"][batch % 2]),
            rig.job().tenant(B).ordered("x"),
            rig.job().tenant(B).priority(Priority::LOW).after(std::time::Duration::from_millis(3)),
        ];
        let answers = rig.submit_all(jobs).await;
        assert_eq!(answers.iter().map(|a| a.duplicate).collect::<Vec<_>>(), [false, false, true, false, false, false]);
        self.submitted.lock().extend(answers.iter().filter(|a| !a.duplicate).map(|a| a.id));
    }

    /// Takes a few jobs and ends them: most succeed, some fail first, some are handed back, some die.
    async fn work(&self, rig: &Rig, node: NodeId) {
        let jobs = rig.claim_as(node, 3).await;
        for job in &jobs {
            assert!(self.running.lock().insert(job.id), "job {} runs in two places", job.id);
            assert!(!self.ended.lock().contains(&job.id), "job {} had ended", job.id);
        }
        for job in &jobs {
            let brief = std::time::Duration::from_millis(1);
            let transition = match (job.id.sequence() % 8, job.failed) {
                (0, 0) => retry(1, brief),
                (1, 0) => Transition::Retry { failed: 1, delay: brief, error: JobError::retryable("once") },
                (2, _) => dead("max_retries"),
                _ => succeed(),
            };
            self.running.lock().remove(&job.id);
            match rig.finish_as(node, finish(job, transition)).await {
                Finished::Accepted(status) if status.is_terminal() => assert!(self.ended.lock().insert(job.id)),
                Finished::Accepted(_) => {}
                Finished::Fenced => panic!("job {} was taken from a living node", job.id),
            }
        }
        tokio::task::yield_now().await;
    }

    /// Every seventh job is not wanted any more.
    async fn cancel_some(&self, rig: &Rig) {
        let unwanted: Vec<JobId> = self.submitted.lock().iter().copied().skip(3).step_by(7).collect();
        for id in unwanted {
            if rig.cancel(id).await == CancelReply::Canceled {
                assert!(self.ended.lock().insert(id), "job {id} had ended before it was canceled");
            }
        }
    }

    async fn is_over(&self, rig: &Rig, submitters: usize) -> bool {
        self.submitters_done.load(Ordering::SeqCst) == submitters && rig.counts().await.unfinished() == 0
    }
}

/// RUN-13: as long as its node is heard of, a job is not taken from it, however long it runs.
pub(super) async fn heartbeats_keep_a_long_job_where_it_is(rig: Rig) {
    let job = rig.running(rig.job()).await;
    for _ in 0..3 {
        rig.advance(LEASE / 2).await;
        let beat = rig.store().heartbeat(rig.node, 1).await.expect("heartbeat");
        assert_eq!(beat, Beat::Alive { cancels: Vec::new() });
        let recovered = rig.recover(LEASE).await;
        assert!(recovered.nodes.is_empty() && recovered.jobs.is_empty());
    }
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.attempt, record.node), (Status::Running, 1, Some(rig.node)));
    assert_eq!(rig.finish(&job, succeed()).await, Finished::Accepted(Status::Succeeded));
}

/// RUN-8: what an attempt saved is there for the next one, whether it failed, was released or lost its node.
pub(super) async fn a_checkpoint_comes_back_with_the_next_attempt(rig: Rig) {
    let save = async |node, job: &_, text| {
        assert!(rig.save_checkpoint(node, fence(job), payload(text)).await);
    };
    let job = rig.running(rig.job()).await;
    save(rig.node, &job, "1").await;
    save(rig.node, &job, "2").await;
    rig.end(&job, retry(1, SOON)).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let job = rig.claim_one().await;
    assert_eq!(job.checkpoint, Some(payload("2")), "after a retry");
    rig.end(&job, Transition::Release).await;
    let job = rig.claim_one().await;
    assert_eq!(job.checkpoint, Some(payload("2")), "after a release, with nothing new");
    save(rig.node, &job, "3").await;
    let other = rig.another_node().await;
    rig.lose_node(&[other]).await;
    let job = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 5).await.remove(0);
    assert_eq!(job.checkpoint, Some(payload("3")), "after its node was lost");
    save(other, &job, "4").await;
    rig.finish_as(other, finish(&job, Transition::Snooze { delay: SOON })).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let job = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 5).await.remove(0);
    assert_eq!(job.checkpoint, Some(payload("4")), "after a snooze");
}

/// RUN-10: a job handed back is ready at once, with the same attempt number, before jobs that never ran.
pub(super) async fn a_released_job_costs_nothing_and_comes_first(rig: Rig) {
    let first = rig.running(rig.job()).await;
    rig.submit_all(rig.jobs(10)).await;
    assert_eq!(rig.finish(&first, Transition::Release).await, Finished::Accepted(Status::Pending));
    let record = rig.record(first.id).await;
    assert_eq!((record.status, record.attempt, record.failed, record.recoveries), (Status::Pending, 0, 0, 0));
    let again = rig.claim(1).await.remove(0);
    assert_eq!((again.id, again.attempt()), (first.id, 1));
}

/// RUN-10: a node that hands back much does not turn it around.
pub(super) async fn released_jobs_keep_their_order(rig: Rig) {
    let submitted = submitted_ids(&rig.submit_all(rig.jobs(12)).await);
    let jobs = rig.claim(6).await;
    let releases = jobs.iter().map(|job| finish(job, Transition::Release)).collect();
    rig.store().finish(rig.node, releases).await.expect("finish");
    assert_eq!(ids(&rig.claim(12).await), submitted);
}

/// RUN-10: leaving hands everything back without cost and in front; the node is gone.
pub(super) async fn a_node_that_leaves_releases_what_it_holds(rig: Rig) {
    rig.submit_all(rig.jobs(3)).await;
    let held = rig.claim(3).await;
    rig.submit_all(rig.jobs(5)).await;
    let other = rig.another_node().await;
    rig.store().deregister(rig.node).await.expect("deregister");
    assert_eq!(rig.finish(&held[0], succeed()).await, Finished::Fenced);
    assert_eq!(rig.store().heartbeat(rig.node, 0).await.expect("heartbeat"), Beat::Fenced);
    let again = rig.claim_as(other, 3).await;
    assert_eq!(sorted(ids(&again)), sorted(ids(&held)), "they come first, in the usual queue");
    assert!(again.iter().all(|job| job.attempt() == 1 && job.recoveries == 0));
    assert_eq!(rig.claim_as(other, 10).await.len(), 5);
    rig.store().deregister(rig.node).await.expect("leaving twice is the same as once");
}

/// RUN-12: a node without the handler puts the job where nodes that have it look; it costs nothing.
pub(super) async fn a_routed_job_waits_in_the_other_queue(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let route = Transition::Route { queue: "missing:reports".into() };
    assert_eq!(rig.finish(&job, route).await, Finished::Accepted(Status::Pending));
    assert!(rig.claim(5).await.is_empty(), "it left its queue");
    assert_eq!(rig.status(job.id).await, Status::Pending);
    let again = rig.claim_from(rig.node, &["missing:reports"], 5).await;
    assert_eq!((ids(&again), again[0].attempt()), (vec![job.id], 1));
    assert_eq!(rig.end(&again[0], succeed()).await, Status::Succeeded);
}

/// ERR-10: a store knows since when nobody has a handler, also after it was opened again, and what was noted.
pub(super) async fn a_handler_is_served_until_its_last_node_is_gone(rig: Rig) {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let served = async |rig: &Rig, asked: &str| rig.store().last_served(&[], &names(&[asked])).await.expect("looks")[0];
    let node = |handlers: &[&str]| NewNode { handlers: names(handlers), ..NewNode::default() };
    assert_eq!(served(&rig, "a").await, None, "nobody has ever had it");
    let first = rig.store().register(node(&["a", "b"])).await.expect("register").node;
    let second = rig.store().register(node(&["a"])).await.expect("register").node;
    rig.advance(Duration::from_millis(50)).await;
    let now = rig.now().await;
    assert!(served(&rig, "a").await >= Some(now), "a live node has it");
    rig.store().deregister(first).await.expect("leaves");
    let left = rig.now().await;
    rig.advance(Duration::from_millis(50)).await;
    assert!(served(&rig, "a").await > Some(left), "the other one still has it");
    let gone = served(&rig, "b").await.expect("it was served");
    assert!(gone >= now && gone <= left, "{gone:?} is when its node left, in {now:?} to {left:?}");
    let beat = rig.now().await;
    rig.store().heartbeat(second, 0).await.expect("beats");
    rig.advance(Duration::from_millis(300)).await;
    rig.store().heartbeat(rig.node, 0).await.expect("beats");
    let recovered = rig.recover(Duration::from_millis(200)).await;
    assert_eq!(recovered.nodes, [second]);
    let lost = served(&rig, "a").await.expect("it was served");
    assert!(
        lost >= beat && lost.since(beat) < Duration::from_millis(300),
        "it was last heard of at {beat:?}, not {lost:?}"
    );
    assert_eq!(
        rig.store().last_served(&names(&["q"]), &names(&["q", "b", "x"])).await.expect("notes")[1..],
        [Some(gone), None]
    );
    let rig = rig.restart().await;
    assert_eq!(served(&rig, "b").await, Some(gone), "it is kept");
    assert!(served(&rig, "q").await > Some(lost), "and so is what was noted");
}

/// OPS-10: a worker outside the process enqueues, takes one job, and marks it as done or failed.
pub(super) async fn a_worker_outside_can_claim_and_report_by_hand(rig: Rig) {
    let outside = rig.store().register(NewNode::default()).await.expect("register").node;
    let done = rig.submit(rig.job()).await;
    let job = rig.claim_as(outside, 1).await.remove(0);
    assert_eq!(rig.finish_as(outside, finish(&job, succeed())).await, Finished::Accepted(Status::Succeeded));
    assert_eq!(rig.record(done).await.node, Some(outside));
    let failed = rig.submit(rig.job()).await;
    let job = rig.claim_as(outside, 1).await.remove(0);
    assert_eq!(rig.finish_as(outside, finish(&job, retry(1, HOUR))).await, Finished::Accepted(Status::Retrying));
    assert_eq!(rig.record(failed).await.failed, 1);
}

/// SUB-1, CLU-10: two live processes never share a slot, or their ids could meet.
pub(super) async fn nodes_that_register_at_once_get_slots_of_their_own(rig: Rig) {
    let leases = at_once(64, |_| {
        let rig = rig.clone();
        async move { rig.register().await }
    })
    .await;
    let slots: HashSet<MachineSlot> = leases.iter().map(|lease| lease.slot).collect();
    let nodes: HashSet<_> = leases.iter().map(|lease| lease.node).collect();
    assert_eq!((slots.len(), nodes.len()), (64, 64));
    assert!(slots.iter().all(|slot| *slot < MachineSlot::DATABASE), "the last slot is the database's own");
}

/// SUB-1, CLU-10: ids of a gone process may lie a little ahead of time, so its slot rests.
pub(super) async fn the_slot_of_a_gone_node_is_not_given_out_again_soon(rig: Rig) {
    let left = rig.register().await;
    rig.store().deregister(left.node).await.expect("deregister");
    let silent = rig.register().await;
    rig.advance(PAST_LEASE).await;
    rig.store().heartbeat(rig.node, 0).await.expect("heartbeat");
    let recovered = rig.recover(LEASE).await;
    assert_eq!(recovered.nodes, [silent.node]);
    assert_ne!(left.slot, silent.slot);
    for _ in 0..20 {
        let fresh = rig.register().await;
        assert!(fresh.slot != left.slot && fresh.slot != silent.slot, "{:?} rests", fresh.slot);
        assert!(fresh.node != left.node && fresh.node != silent.node, "identities are never reused");
    }
}

/// CLU-10, API-8: what a node said of itself, what it runs and when it was last heard of.
pub(super) async fn nodes_read_back_newest_first(rig: Rig) {
    let info = NewNode { host: "höst".into(), pid: u32::MAX, capacity: 3, ..a_node() };
    rig.advance(SOON).await;
    let lease = rig.store().register(info.clone()).await.expect("register");
    rig.advance(SOON).await;
    rig.store().heartbeat(lease.node, 2).await.expect("heartbeat");
    let nodes = rig.store().nodes().await.expect("nodes");
    let order: Vec<_> = nodes.iter().map(|node| node.node).collect();
    assert_eq!(order, [lease.node, rig.node]);
    assert_eq!((&nodes[0].info, nodes[0].slot, nodes[0].running), (&info, lease.slot, 2));
    assert!(nodes[0].heartbeat_at > nodes[0].started_at);
    assert!(nodes[0].started_at > nodes[1].started_at);
    rig.store().deregister(lease.node).await.expect("deregister");
    let left: BTreeMap<_, _> =
        rig.store().nodes().await.expect("nodes").into_iter().map(|node| (node.node, node.slot)).collect();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [rig.node]);
    let counts = rig.store().counts(EVERYONE).await.expect("counts");
    assert_eq!(counts.unfinished(), 0);
}
