//! What a store promises about time: starts, promotions, expiry, all by the store's own clock.
//! Run by every store through `conformance_tests!`.

use std::time::Duration;

use windlass_core::store::{Finish, Finished, Gate, PauseTarget, Transition};
use windlass_core::{ClaimedJob, JobId, Scope, Start, Status, Timestamp};

use super::rig::*;

/// TIM-1: a start ahead is waited for, by delay or by time; a promotion before changes nothing.
pub(super) async fn a_scheduled_job_is_promoted_when_due_and_not_before(rig: Rig) {
    let at = rig.now().await + SOON;
    let timed = rig.submit(rig.job().with(|job| job.start = Start::At(at))).await;
    let delayed = rig.submit(rig.job().after(SOON)).await;
    let late = rig.submit(rig.job().after(HOUR)).await;
    assert_eq!(rig.record(late).await.status, Status::Scheduled);
    assert!(rig.claim(5).await.is_empty());
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 2);
    assert_eq!(rig.promote().await, 0);
    let claimed = rig.claim(5).await;
    assert_eq!(sorted(ids(&claimed)), [timed, delayed]);
    for job in &claimed {
        assert!(job.ready_at >= at, "it could not run before its start");
    }
    assert_eq!(rig.record(timed).await.run_at, Some(at), "when it was due can still be read");
    assert_eq!(rig.status(late).await, Status::Scheduled);
}

/// TIM-1: the sleeper learns how long it may sleep, also when what is next is a retry.
pub(super) async fn a_promotion_tells_when_the_next_job_is_due(rig: Rig) {
    let promote = async || rig.store().promote(ALL).await.expect("promote");
    assert_eq!(promote().await.next_in, None);
    rig.submit(rig.job().after(2 * HOUR)).await;
    let next = promote().await.next_in.expect("a job is scheduled");
    assert!(next <= 2 * HOUR && next > HOUR, "{next:?}");
    rig.submit(rig.job().after(HOUR)).await;
    let next = promote().await.next_in.expect("two jobs are scheduled");
    assert!(next <= HOUR && next > HOUR / 2, "{next:?}");
    let job = rig.running(rig.job()).await;
    rig.end(&job, retry(1, HOUR / 2)).await;
    let next = promote().await.next_in.expect("a retry is due first");
    assert!(next <= HOUR / 2 && next > HOUR / 4, "{next:?}");
    let job = rig.running(rig.job()).await;
    rig.end(&job, Transition::Snooze { delay: HOUR / 4 }).await;
    let next = promote().await.next_in.expect("a snooze is over first");
    assert!(next <= HOUR / 4 && next > HOUR / 8, "{next:?}");
    rig.cancel(job.id).await;
    let next = promote().await.next_in.expect("the retry is next again");
    assert!(next > HOUR / 4, "{next:?}");
}

/// TIM-1: a burst of due jobs is made ready step by step, oldest due first, and none is forgotten.
pub(super) async fn a_promotion_is_bounded(rig: Rig) {
    let jobs = rig.jobs(25).into_iter().map(|job| job.after(SOON)).collect();
    let submitted = submitted_ids(&rig.submit_all(jobs).await);
    rig.advance(PAST_SOON).await;
    let mut steps = Vec::new();
    loop {
        let promoted = rig.store().promote(10).await.expect("promote");
        if promoted.jobs == 0 {
            assert_eq!(promoted.next_in, None);
            break;
        }
        assert!(promoted.jobs <= 10);
        if steps.is_empty() {
            assert!(promoted.next_in.is_some_and(|next| next.is_zero()), "more are due now: {:?}", promoted.next_in);
        }
        steps.push(promoted.jobs);
    }
    assert_eq!(steps.iter().sum::<usize>(), 25);
    assert_eq!(sorted(ids(&rig.claim(50).await)), submitted);
}

/// TIM-1: several nodes promote at once; each job is ready once.
pub(super) async fn promotions_at_once_make_each_job_ready_once(rig: Rig) {
    let jobs = rig.jobs(50).into_iter().map(|job| job.after(SOON)).collect();
    let submitted = submitted_ids(&rig.submit_all(jobs).await);
    rig.advance(PAST_SOON).await;
    let promoted = at_once(8, |_| {
        let rig = rig.clone();
        async move { rig.store().promote(20).await.expect("promote").jobs }
    })
    .await;
    let rest = rig.promote().await;
    assert_eq!(promoted.iter().sum::<usize>() + rest, 50);
    let mut claimed: Vec<JobId> = ids(&rig.claim(100).await);
    claimed.extend(ids(&rig.claim(100).await));
    assert_eq!(sorted(claimed), submitted);
}

/// TIM-1: a start that is not ahead means at once.
pub(super) async fn a_start_in_the_past_is_now(rig: Rig) {
    let now = rig.now().await;
    let starts = [Start::At(now - HOUR), Start::At(Timestamp::from_micros(0)), Start::After(Duration::ZERO)];
    for start in starts {
        let id = rig.submit(rig.job().with(|job| job.start = start)).await;
        assert_eq!(rig.status(id).await, Status::Pending, "{start:?}");
        let claimed = rig.claim_one().await;
        assert_eq!(claimed.id, id);
        rig.end(&claimed, succeed()).await;
    }
    let far = rig.submit(rig.job().after(Duration::from_secs(200 * 365 * 86_400))).await;
    assert_eq!(rig.status(far).await, Status::Scheduled, "centuries ahead is no trouble");
}

/// TIM-3: what the caller's clock says plays no part: times in answers are the store's, and delays count from them.
pub(super) async fn delays_count_from_the_stores_clock(rig: Rig) {
    let slack = Duration::from_secs(5);
    let now = rig.now().await;
    let delayed = rig.submit(rig.job().after(HOUR)).await;
    let run_at = rig.record(delayed).await.run_at.expect("it has a time");
    assert!(run_at >= now + HOUR && run_at < now + HOUR + slack);
    let job = rig.running(rig.job()).await;
    // A node that claims to have run for longer than the store has known the job does not bend the times of others.
    let finish = windlass_core::store::Finish { ran: HOUR, ..finish(&job, retry(1, HOUR)) };
    rig.finish_as(rig.node, finish).await;
    let run_at = rig.record(job.id).await.run_at.expect("it has a time");
    assert!(run_at >= now + HOUR && run_at < now + HOUR + slack);
    let claimed = rig.claim_with(rig.node, vec![(QUEUE.into(), 1)], 1, [0; 4]).await;
    assert!(claimed.now >= now && claimed.now < now + slack);
    let beat = rig.store().register(a_node()).await.expect("register").now;
    assert!(beat >= now && beat < now + slack);
    rig.advance(PAST_SOON).await;
    assert!(rig.now().await >= now + PAST_SOON);
}

/// BEY-4: ready, scheduled and blocked jobs that have not started by then are canceled as `expired`; others are not.
pub(super) async fn waiting_jobs_expire_with_their_reason(rig: Rig) {
    let soon = rig.now().await + SOON;
    let ready = rig.submit(rig.job().expires_at(soon)).await;
    let scheduled = rig.submit(rig.job().expires_at(soon).after(HOUR)).await;
    let holder = rig.submit(rig.job().expires_at(soon).ordered("k").queue("aside")).await;
    let blocked = rig.submit(rig.job().expires_at(soon).ordered("k").queue("aside")).await;
    let heir = rig.submit(rig.job().ordered("k").queue("aside")).await;
    let patient = rig.submit(rig.job().expires_at(soon + HOUR)).await;
    rig.advance(PAST_SOON).await;
    let first = rig.store().expire(2).await.expect("expire");
    assert!(first <= 2, "bounded");
    assert_eq!(first + rig.expire().await, 4);
    assert_eq!(rig.expire().await, 0);
    for id in [ready, scheduled, holder, blocked] {
        let record = rig.record(id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("expired")));
        assert!(record.finished_at.is_some());
    }
    rig.open_gates().await;
    assert_eq!(rig.status(heir).await, Status::Pending, "the key goes to the next who still wants it");
    assert_eq!(ids(&rig.claim(5).await), [patient]);
    assert_eq!(ids(&rig.claim_from(rig.node, &["aside"], 5).await), [heir]);
    assert_eq!(rig.store().counts(Scope::Tenant(A)).await.expect("counts").get(Status::Canceled), 4);
}

/// BEY-4: expiry is about the first start: a running job goes on, and so does one that has failed, was snoozed, was
/// released by a node that left, or was replayed.
pub(super) async fn a_job_that_has_started_does_not_expire(rig: Rig) {
    let soon = rig.now().await + SOON;
    let running = rig.running(rig.job().expires_at(soon)).await;
    let failed = rig.running(rig.job().expires_at(soon)).await;
    rig.end(&failed, retry(1, HOUR)).await;
    let snoozed = rig.running(rig.job().expires_at(soon)).await;
    rig.end(&snoozed, Transition::Snooze { delay: HOUR }).await;
    let released = rig.running(rig.job().expires_at(soon)).await;
    let replayed = rig.running(rig.job().expires_at(soon).queue("aside")).await;
    rig.end(&replayed, dead("gone")).await;
    rig.store().replay(EVERYONE, replayed.id, "op").await.expect("replays");
    rig.end(&released, Transition::Release).await;
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.expire().await, 0);
    assert_eq!(rig.status(replayed.id).await, Status::Pending);
    assert_eq!(rig.status(running.id).await, Status::Running);
    assert_eq!(rig.status(failed.id).await, Status::Retrying);
    assert_eq!(rig.status(snoozed.id).await, Status::Scheduled);
    let again = rig.claim_one().await;
    assert_eq!((again.id, again.attempt(), again.resumed), (released.id, 1, true), "it says that it has started");
    assert_eq!(rig.end(&running, succeed()).await, Status::Succeeded);
}

/// BEY-4: a job that was claimed and turned away before it began has not started.
pub(super) async fn a_job_that_was_turned_away_expires(rig: Rig) {
    let soon = rig.now().await + SOON;
    for (n, transition) in turned_away(&rig).await.into_iter().enumerate() {
        let queue = format!("q{n}");
        rig.submit(rig.job().expires_at(soon).queue(&queue)).await;
        turn_away(&rig, &rig.claim_from(rig.node, &[&queue], 1).await[0], transition).await;
        for again in rig.claim_from(rig.node, &[&queue, "elsewhere"], 1).await {
            turn_away(&rig, &again, Transition::Release).await;
        }
    }
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.expire().await, 4);
    assert_eq!(rig.expire().await, 0, "each ends once");
}

/// BEY-4: a job whose time passes while a node has it goes on; turned away after that, it expires where it waits.
pub(super) async fn a_job_that_is_turned_away_late_expires(rig: Rig) {
    let soon = rig.now().await + SOON;
    let mut held = Vec::new();
    for (n, transition) in turned_away(&rig).await.into_iter().enumerate() {
        let queue = format!("q{n}");
        rig.submit(rig.job().expires_at(soon).queue(&queue)).await;
        held.push((rig.claim_from(rig.node, &[&queue], 1).await.remove(0), transition));
    }
    let began = rig.running(rig.job().expires_at(soon)).await;
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.expire().await, 0, "all are held");
    for (job, transition) in held {
        let what = format!("{transition:?}");
        turn_away(&rig, &job, transition).await;
        assert_eq!(rig.expire().await, 1, "{what}");
        let record = rig.record(job.id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("expired")), "{what}");
    }
    rig.end(&began, Transition::Release).await;
    assert_eq!(rig.expire().await, 0, "an attempt at it has begun");
}

/// The ways in which a node gives a job back that it has not begun.
async fn turned_away(rig: &Rig) -> [Transition; 4] {
    let target = PauseTarget::Handler(HANDLER.into());
    rig.store().pause(&target, "op", "").await.expect("pause");
    [
        Transition::Release,
        Transition::Snooze { delay: HOUR },
        Transition::Park { gate: Gate::Pause(target) },
        Transition::Route { queue: "elsewhere".into() },
    ]
}

async fn turn_away(rig: &Rig, job: &ClaimedJob, transition: Transition) {
    assert!(!job.resumed, "no attempt has begun");
    let finish = Finish { ran: Duration::ZERO, resumed: false, ..finish(job, transition) };
    assert!(matches!(rig.finish_as(rig.node, finish).await, Finished::Accepted(_)));
}
