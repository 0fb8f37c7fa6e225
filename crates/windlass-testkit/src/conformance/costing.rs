//! What a store promises about what jobs cost (OPS-6): recorded with the finish they come with, each once, added up by
//! day, and read one by one without missing any. Run by every store through `conformance_tests!`.

use windlass_core::store::{Finish, Finished, Transition};
use windlass_core::{ClaimedJob, Cost, JobId, Scope, Status, Timestamp, UsageEvent, UsageRow, day_of};

use super::rig::*;

/// OPS-6, OPS-14, RUN-4: a cost is recorded exactly if its finish is accepted, whatever becomes of the job.
pub(super) async fn a_cost_is_recorded_with_its_finish(rig: Rig) {
    let since = rig.now().await;
    let plain = rig.running(rig.job()).await;
    let costly = costed(&plain, succeed(), 3, 5);
    assert_eq!(rig.finish_as(rig.node, costly.clone()).await, Finished::Accepted(Status::Succeeded));
    assert_eq!(rig.finish_as(rig.node, costly).await, Finished::Fenced, "and only once");
    let free = rig.ended(rig.job(), succeed()).await;
    assert_eq!(sums(&rig, EVERYONE, since).await, [(HANDLER.into(), 1, 3, 5)], "who says nothing costs nothing");

    let failing = rig.running(rig.job()).await;
    rig.finish_as(rig.node, costed(&failing, retry(1, SOON), 10, 0)).await;
    assert_eq!(sums(&rig, EVERYONE, since).await, [(HANDLER.into(), 1, 13, 5)], "an attempt that failed has its cost");
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_one().await;
    rig.finish_as(rig.node, costed(&again, dead("max_retries"), 10, 1)).await;
    let canceled = rig.running(rig.job()).await;
    rig.cancel(canceled.id).await;
    let answer = rig.finish_as(rig.node, costed(&canceled, succeed(), -2, 0)).await;
    assert_eq!(answer, Finished::Accepted(Status::Canceled));
    let released = rig.running(rig.job()).await;
    rig.finish_as(rig.node, costed(&released, Transition::Release, 1, 0)).await;
    assert_eq!(sums(&rig, EVERYONE, since).await, [(HANDLER.into(), 3, 22, 6)]);
    // OPS-14: each job shows its own.
    for (job, cents, units) in [(&plain, 3, 5), (&failing, 20, 1), (&canceled, -2, 0), (&released, 1, 0)] {
        assert_eq!(rig.record(job.id).await.cost, Some(Cost { cents, units }), "job {}", job.id);
    }
    assert_eq!(rig.record(free).await.cost, None);
    let costs: Vec<(JobId, i64)> = events(&rig, EVERYONE, 0).await.iter().map(|e| (e.job, e.cents)).collect();
    let expected = [(plain.id, 3), (failing.id, 10), (failing.id, 10), (canceled.id, -2), (released.id, 1)];
    assert_eq!(costs, expected);
}

/// OPS-6, RUN-4: in one call with others, each with its own answer.
pub(super) async fn costs_of_many_finishes_in_one_call(rig: Rig) {
    let since = rig.now().await;
    rig.submit_all(rig.jobs(200)).await;
    let jobs = rig.claim(200).await;
    let end = |(n, job): (usize, &ClaimedJob)| match n % 2 {
        0 => costed(job, succeed(), n as i64, 1),
        _ => finish(job, succeed()),
    };
    let mut finishes: Vec<Finish> = jobs.iter().enumerate().map(end).collect();
    let stale = Finish {
        fence: windlass_core::store::Fence { job: jobs[0].id, lease: rig.new_lease() },
        ..finishes[0].clone()
    };
    finishes.push(stale);
    let answers = rig.store().finish(rig.node, finishes).await.expect("finish");
    assert_eq!(answers[..200], vec![Finished::Accepted(Status::Succeeded); 200]);
    assert_eq!(answers[200], Finished::Fenced);
    assert_eq!(sums(&rig, EVERYONE, since).await, [(HANDLER.into(), 100, (0..200).step_by(2).sum(), 100)]);
    assert_eq!(events(&rig, EVERYONE, 0).await.len(), 100);
}

/// OPS-6, SEC-1: by tenant and handler; each sees its own.
pub(super) async fn usage_keeps_to_its_scope(rig: Rig) {
    let since = rig.now().await;
    for (tenant, handler, cents) in [(A, "mail", 1), (A, "report", 10), (B, "mail", 100), (A, "mail", 1_000)] {
        let job = rig.running(rig.job().tenant(tenant).handler(handler)).await;
        rig.finish_as(rig.node, costed(&job, succeed(), cents, 1)).await;
    }
    let of_a = [("mail".into(), 2, 1_001, 2), ("report".into(), 1, 10, 1)];
    assert_eq!(sums(&rig, Scope::Tenant(A), since).await, of_a);
    assert_eq!(sums(&rig, Scope::Tenant(B), since).await, [("mail".into(), 1, 100, 1)]);
    let all = rows(&rig, EVERYONE, since).await;
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|row| row.day == day_of(since) || row.day == day_of(since + HOUR)));
    let before = (since - 48 * HOUR, since - 30 * HOUR);
    let none = rig.store().usage_by_day(EVERYONE, &day_of(before.0), &day_of(before.1)).await.expect("usage");
    assert!(none.is_empty(), "there was nothing on the days before");
    let seen: Vec<i64> = events(&rig, Scope::Tenant(A), 0).await.iter().map(|event| event.cents).collect();
    assert_eq!(seen, [1, 10, 1_000]);
    assert_eq!(events(&rig, Scope::Tenant(B), 0).await.len(), 1);
}

/// OPS-6, OPS-5, OPS-14: an operator records a cost of a job in any status, and the audit log says so.
pub(super) async fn an_operators_cost_is_audited(rig: Rig) {
    let since = rig.now().await;
    let ended = rig.ended(rig.job(), succeed()).await;
    let waiting = rig.submit(rig.job()).await;
    let record = async |scope: Scope, id: JobId, cost: Cost| {
        rig.store().record_cost(scope, id, "ann", cost).await.expect("record_cost")
    };
    assert!(record(EVERYONE, ended, Cost::new(7, 0)).await);
    assert!(record(Scope::Tenant(A), waiting, Cost::new(0, -4)).await);
    assert!(!record(Scope::Tenant(B), waiting, Cost::new(1, 1)).await);
    assert!(!record(EVERYONE, rig.job().id(), Cost::new(1, 1)).await);
    assert_eq!(sums(&rig, EVERYONE, since).await, [(HANDLER.into(), 0, 7, -4)], "no job has ended with a cost");
    assert_eq!(rig.record(ended).await.cost, Some(Cost { cents: 7, units: 0 }));
    assert_eq!(rig.record(waiting).await.cost, Some(Cost { cents: 0, units: -4 }));
    let audit = rig.audit(Scope::Tenant(A), "COST_RECORDED").await;
    assert_eq!(audit.len(), 2);
    assert_eq!((audit[1].actor.as_str(), audit[1].detail.as_deref()), ("ann", Some("7 cents, 0 units")));
    assert_eq!(audit[1].target, ended.to_string());
}

/// OPS-6: whoever reads the feed while costs are recorded misses none and sees none twice.
pub(super) async fn a_reader_of_usage_events_misses_none(rig: Rig) {
    const WRITERS: usize = 4;
    const EACH: usize = 25;
    let since = rig.now().await;
    let handlers = ["a", "b", "c", "d"];
    let job = |n: usize| rig.job().handler(handlers[n % 4]).tenant(if n.is_multiple_of(3) { A } else { B });
    rig.submit_all((0..WRITERS * EACH).map(job).collect()).await;
    let mut batches = Vec::new();
    for _ in 0..WRITERS {
        batches.push(rig.claim(EACH).await);
    }
    let written = at_once(WRITERS + 1, |i| {
        let rig = rig.clone();
        let mut batch = batches.get(i).cloned().unwrap_or_default();
        // In different orders, so that writers would wait for each other if they took rows as they come.
        if i % 2 == 1 {
            batch.reverse();
        }
        async move {
            let mut seen: Vec<UsageEvent> = Vec::new();
            for pair in batch.chunks(5) {
                let finishes = pair.iter().map(|job| costed(job, succeed(), 1, 0)).collect();
                let answers = rig.store().finish(rig.node, finishes).await.expect("finish");
                assert!(answers.iter().all(|answer| *answer == Finished::Accepted(Status::Succeeded)));
            }
            while i == WRITERS && seen.len() < WRITERS * EACH {
                let after = seen.last().map_or(0, |event| event.sequence);
                seen.extend(rig.store().usage_events(EVERYONE, after, 7).await.expect("events"));
                tokio::task::yield_now().await;
            }
            seen
        }
    })
    .await;
    let seen: Vec<UsageEvent> = written.into_iter().flatten().collect();
    assert!(seen.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "in order");
    let jobs: Vec<JobId> = sorted(seen.iter().map(|event| event.job).collect());
    assert_eq!(jobs, sorted(batches.iter().flatten().map(|job| job.id).collect()), "each once");
    let counted: u64 = rows(&rig, EVERYONE, since).await.iter().map(|row| row.jobs).sum();
    assert_eq!(counted, (WRITERS * EACH) as u64);
}

// ---- words of these cases

fn costed(job: &ClaimedJob, transition: Transition, cents: i64, units: i64) -> Finish {
    Finish { cost: Some(Cost::new(cents, units)), ..finish(job, transition) }
}

/// The costs since a time; the day may have changed meanwhile.
async fn rows(rig: &Rig, scope: Scope, since: Timestamp) -> Vec<UsageRow> {
    let to = day_of(rig.now().await);
    rig.store().usage_by_day(scope, &day_of(since), &to).await.expect("usage")
}

/// Handler, jobs, cents and units, whatever the day.
async fn sums(rig: &Rig, scope: Scope, since: Timestamp) -> Vec<(String, u64, i64, i64)> {
    let mut sums = std::collections::BTreeMap::<String, (u64, i64, i64)>::new();
    for row in rows(rig, scope, since).await {
        let sum = sums.entry(row.handler).or_default();
        *sum = (sum.0 + row.jobs, sum.1 + row.cents, sum.2 + row.units);
    }
    sums.into_iter().map(|(handler, (jobs, cents, units))| (handler, jobs, cents, units)).collect()
}

async fn events(rig: &Rig, scope: Scope, after: u64) -> Vec<UsageEvent> {
    rig.store().usage_events(scope, after, 1_000).await.expect("events")
}
