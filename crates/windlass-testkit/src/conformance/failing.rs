//! What a store promises about jobs that fail: retries, history, dead letters, follow-ups, snoozes.
//! Run by every store through `conformance_tests!`.

use std::time::Duration;

use serde_json::json;
use windlass_core::store::{CancelReply, Error, Finish, Finished, ReplayReply, ReplayedAs, Transition, suspect_queue};
use windlass_core::{Callback, JobError, JobFilter, JobId, Quota, Scope, Status, notes};

use super::rig::*;

/// ERR-1: a failed job waits for its delay by the store's clock and comes back with one failure more.
pub(super) async fn a_retry_waits_for_its_delay_and_counts_the_failure(rig: Rig) {
    let slow = rig.running(rig.job()).await;
    assert_eq!(rig.end(&slow, retry(1, HOUR)).await, Status::Retrying);
    let job = rig.running(rig.job()).await;
    let failed_at = rig.now().await;
    assert_eq!(rig.end(&job, retry(1, SOON)).await, Status::Retrying);
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.failed, record.attempt), (Status::Retrying, 1, 1));
    assert_eq!(record.error, Some(JobError::retryable("no luck")));
    assert!(record.run_at.expect("it has a time") >= failed_at + SOON);
    assert!(rig.claim(5).await.is_empty(), "it waits");

    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 1);
    assert_eq!(rig.status(job.id).await, Status::Pending);
    let again = rig.claim_one().await;
    assert_eq!((again.id, again.failed, again.attempt()), (job.id, 1, 2));
    // The policy may start the count anew; the store keeps what it is told.
    rig.end(&again, retry(1, SOON)).await;
    assert_eq!(rig.record(job.id).await.failed, 1);
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_one().await;
    assert_eq!(rig.end(&again, succeed()).await, Status::Succeeded);
    assert_eq!(rig.status(slow.id).await, Status::Retrying, "an hour has not passed");
}

/// ERR-1: a policy may allow many attempts; counts and waits have room for them.
pub(super) async fn a_long_row_of_failures_is_counted(rig: Rig) {
    const CENTURIES: Duration = Duration::from_secs(300 * 365 * 86_400);
    let job = rig.running(rig.job()).await;
    rig.end(&job, retry(40_000, SOON)).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_one().await;
    assert_eq!((again.failed, again.attempt()), (40_000, 40_001));
    rig.end(&again, retry(40_001, CENTURIES)).await;
    let record = rig.record(job.id).await;
    assert_eq!((record.failed, record.attempt, record.status), (40_001, 40_001, Status::Retrying));
    let kept = rig.ended(rig.job(), Transition::Succeed { output: None, keep: CENTURIES }).await;
    assert_eq!(rig.clean().await, 0);
    assert!(rig.exists(kept).await);
}

/// ERR-2, ERR-3: each attempt is a line with its node, its start, its end and its error.
pub(super) async fn the_history_has_every_attempt_with_its_node_times_and_error(rig: Rig) {
    let ran = Duration::from_millis(10);
    let id = rig.submit(rig.job()).await;
    let errors = ["first", "second"].map(|message| JobError::retryable(message).with_details(json!({"at": message})));
    let fail = |n: usize| Transition::Retry { failed: n as u16 + 1, delay: SOON, error: errors[n].clone() };
    for n in 0..2 {
        let job = rig.claim_one().await;
        rig.advance(Duration::from_millis(20)).await;
        rig.finish_as(rig.node, Finish { ran, ..finish(&job, fail(n)) }).await;
        rig.advance(PAST_SOON).await;
        rig.promote().await;
    }
    let job = rig.claim_one().await;
    rig.advance(Duration::from_millis(20)).await;
    let last = JobError::terminal("validation", "third");
    let over = Transition::DeadLetter { failed: 3, reason: "validation".into(), error: last.clone(), keep: None };
    rig.finish_as(rig.node, Finish { ran, ..finish(&job, over) }).await;

    let history = rig.history(id).await;
    let lines: Vec<_> = history.iter().map(|entry| (entry.status, entry.attempt)).collect();
    use Status::*;
    assert_eq!(lines, [(Pending, 0), (Retrying, 1), (Retrying, 2), (DeadLettered, 3)], "{history:#?}");
    assert!(history.is_sorted_by_key(|entry| entry.at));
    assert_eq!((history[0].node, &history[0].error, history[0].started_at), (None, &None, None));
    for (entry, error) in history[1..].iter().zip([&errors[0], &errors[1], &last]) {
        assert_eq!((entry.node, entry.error.as_ref()), (Some(rig.node), Some(error)));
        let took = entry.at.since(entry.started_at.expect("an attempt has a start"));
        let off = took.max(ran) - took.min(ran);
        assert!(off <= Duration::from_millis(2), "the attempt ran {ran:?}, the history says {took:?}");
    }
}

/// ERR-3, RUN-5: a lost node, a snooze, a replay and the attempt under way are lines too.
pub(super) async fn the_history_tells_of_lost_nodes_and_running_attempts(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let last = rig.history(job.id).await.pop().expect("there is a history");
    assert_eq!((last.status, last.attempt, last.node), (Status::Running, 1, Some(rig.node)));

    let other = rig.another_node().await;
    rig.lose_node(&[other]).await;
    let last = rig.history(job.id).await.pop().expect("there is a history");
    assert_eq!((last.status, last.attempt, last.node), (Status::Pending, 1, Some(rig.node)));
    assert_eq!(last.error.expect("the attempt ended badly").code, "node_unavailable");

    let queue = suspect_queue(QUEUE, 1);
    let again = rig.claim_from(other, &[&queue], 5).await.remove(0);
    rig.finish_as(other, finish(&again, Transition::Snooze { delay: SOON })).await;
    let last = rig.history(job.id).await.pop().expect("there is a history");
    assert!(last.status == Status::Scheduled && last.note.is_some(), "{last:?}");
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_from(other, &[&queue], 5).await.remove(0);
    assert_eq!(again.attempt(), 2, "the snooze cost nothing");
    rig.finish_as(other, finish(&again, dead("validation"))).await;
    rig.store().replay(EVERYONE, job.id, "operator").await.expect("replay");
    let history = rig.history(job.id).await;
    let last = history.last().expect("there is a history");
    assert!(last.status == Status::Pending && last.note.is_some(), "{last:?}");
    let dead = history.iter().filter(|entry| entry.status == Status::DeadLettered).count();
    assert_eq!(dead, 1, "the replay does not wipe out what happened: {history:#?}");
    assert!(history.iter().any(|e| e.error.as_ref().is_some_and(|error| error.code == "node_unavailable")));
}

/// ERR-2: code, message, details and what follows are kept as the handler gave them.
pub(super) async fn an_error_reads_back_whole(rig: Rig) {
    let error = JobError::retryable("größer als 2⁵³\n\tzweite Zeile")
        .with_code("bad_address")
        .with_details(json!({"big": 9_007_199_254_740_993_i64, "list": [null, true, "x"]}))
        .retry_after(Duration::from_millis(1_234));
    let job = rig.running(rig.job()).await;
    rig.end(&job, Transition::Retry { failed: 1, delay: HOUR, error: error.clone() }).await;
    assert_eq!(rig.record(job.id).await.error, Some(error.clone()));
    let in_history = rig.history(job.id).await.into_iter().find_map(|entry| entry.error);
    assert_eq!(in_history, Some(error.clone()));
    let job = rig.running(rig.job()).await;
    rig.end(&job, Transition::DeadLetter { failed: 1, reason: "max_retries".into(), error: error.clone(), keep: None })
        .await;
    let record = rig.record(job.id).await;
    assert_eq!((record.error, record.reason.as_deref()), (Some(error), Some("max_retries")));
}

/// ERR-4: dead letters can be picked out by handler, by reason and by the time of their submit.
pub(super) async fn dead_letters_are_listed_by_handler_reason_and_time(rig: Rig) {
    let mail = rig.ended(rig.job().handler("mail"), dead("validation")).await;
    rig.advance(SOON).await;
    let spent = rig.ended(rig.job().handler("mail"), dead("max_retries")).await;
    rig.advance(SOON).await;
    let report = rig.ended(rig.job().handler("report"), dead("max_retries")).await;
    rig.ended(rig.job().handler("mail"), succeed()).await;
    rig.submit(rig.job().handler("mail")).await;
    let letters = || JobFilter::all().status(Status::DeadLettered);
    assert_eq!(rig.list(letters()).await, [report, spent, mail]);
    assert_eq!(rig.list(letters().handler("mail")).await, [spent, mail]);
    let because = |reason: &str| {
        let mut filter = letters();
        filter.reason = Some(reason.into());
        filter
    };
    assert_eq!(rig.list(because("max_retries")).await, [report, spent]);
    assert_eq!(rig.list(because("max_retries").handler("mail")).await, [spent]);
    assert!(rig.list(because("expired")).await.is_empty());
    let mut since = letters();
    since.created_after = Some(rig.record(spent).await.created_at);
    assert_eq!(rig.list(since.clone()).await, [report, spent]);
    since.created_before = Some(rig.record(report).await.created_at);
    assert_eq!(rig.list(since).await, [spent]);
}

/// ERR-4, OPS-7: no retention removes a dead letter; a purge does.
pub(super) async fn a_dead_letter_is_kept_until_replayed_or_purged(rig: Rig) {
    let job = rig.job().with(|job| job.spec.retention = Some(SOON));
    let letter = rig.ended(job, dead("validation")).await;
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.clean().await, 0);
    let record = rig.record(letter).await;
    assert_eq!((record.status, record.replayed), (Status::DeadLettered, None));
    assert!(rig.store().input(EVERYONE, letter).await.expect("input").is_some(), "with its input");
    assert!(rig.store().purge(Scope::Tenant(A), letter, "operator").await.expect("purge"));
    assert!(!rig.exists(letter).await);
    assert!(rig.history(letter).await.is_empty());
    assert!(rig.list(JobFilter::all()).await.is_empty());
    assert!(!rig.store().purge(Scope::Tenant(A), letter, "operator").await.expect("purge"), "once");
}

/// OPS-13: a dead letter with a time of its own is gone when that is over, like other ended jobs: from lists and counts at
/// once, and cleaned. Its audit entry stays. A replay in place ends its time.
pub(super) async fn a_dead_letter_may_have_a_time_to_live(rig: Rig) {
    let keep = |time| Transition::DeadLetter {
        failed: 1,
        reason: "validation".into(),
        error: JobError::terminal("validation", "it is over"),
        keep: Some(time),
    };
    let brief = rig.ended(rig.job(), keep(SOON)).await;
    let replayed = rig.ended(rig.job(), keep(SOON)).await;
    rig.store().replay(EVERYONE, replayed, "op").await.expect("replays");
    let again = rig.claim(1).await.remove(0);
    assert_eq!(again.id, replayed);
    let long = rig.ended(rig.job(), keep(HOUR)).await;
    let canceled = rig.running(rig.job()).await;
    assert_eq!(rig.cancel(canceled.id).await, CancelReply::Requested);
    assert_eq!(rig.end(&canceled, keep(SOON)).await, Status::Canceled);
    rig.advance(PAST_SOON).await;
    assert!(!rig.exists(brief).await, "its time is over");
    assert!(rig.exists(canceled.id).await, "it ended as another: it is kept as long as it asks");
    assert_eq!(rig.list(JobFilter::all().status(Status::DeadLettered)).await, [long]);
    let counts = async || rig.store().counts(EVERYONE).await.expect("counts").get(Status::DeadLettered);
    assert_eq!(counts().await, 1);
    assert_eq!(rig.clean().await, 1);
    assert_eq!(counts().await, 1);
    assert_eq!(rig.record(replayed).await.status, Status::Running);
    let audited: Vec<_> = rig.audit(EVERYONE, "JOB_FAILED").await.into_iter().map(|entry| entry.target).collect();
    assert!(audited.contains(&brief.to_string()), "{audited:?}");
}

/// ERR-4: a replay in place is the same job, with its id and input, with no failures and no lost nodes counted.
pub(super) async fn a_replay_in_place_starts_the_job_anew(rig: Rig) {
    let job = rig.running(rig.job().with(|job| job.payload = payload("[7]"))).await;
    let other = rig.another_node().await;
    rig.lose_node(&[other]).await;
    let again = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 5).await.remove(0);
    rig.finish_as(other, finish(&again, retry(1, SOON))).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_from(other, &[&suspect_queue(QUEUE, 1)], 5).await.remove(0);
    assert_eq!(again.attempt(), 3);
    rig.finish_as(other, finish(&again, dead("max_retries"))).await;
    assert_eq!(rig.record(job.id).await.attempt, 3);

    assert_eq!(rig.store().replay(Scope::Tenant(A), job.id, "op").await.expect("replay"), ReplayReply::Replayed);
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.failed, record.recoveries), (Status::Pending, 0, 0));
    assert_eq!((record.finished_at, record.reason), (None, None));
    assert_eq!(rig.finish_as(other, finish(&again, succeed())).await, Finished::Fenced, "the old attempt is over");
    let fresh = rig.claim_as(other, 5).await.remove(0);
    assert_eq!((fresh.id, fresh.attempt(), fresh.payload.as_str()), (job.id, 1, "[7]"));
    assert_eq!(rig.finish_as(other, finish(&fresh, succeed())).await, Finished::Accepted(Status::Succeeded));
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.reason), (Status::Succeeded, None));
}

/// ERR-4: every other job is left as it is.
pub(super) async fn only_dead_letters_can_be_replayed(rig: Rig) {
    let done = rig.ended(rig.job(), succeed()).await;
    let running = rig.running(rig.job()).await;
    let waiting = rig.submit(rig.job().after(HOUR)).await;
    let store = rig.store();
    for (id, status) in [(done, Status::Succeeded), (running.id, Status::Running), (waiting, Status::Scheduled)] {
        assert_eq!(store.replay(EVERYONE, id, "op").await.expect("replay"), ReplayReply::NotDead(status));
        assert_eq!(rig.replay_as(EVERYONE, id, HOUR).await, ReplayedAs::NotDead(status));
        assert_eq!(rig.status(id).await, status);
    }
    let unknown = rig.job().id();
    assert_eq!(store.replay(EVERYONE, unknown, "op").await.expect("replay"), ReplayReply::NotFound);
    assert_eq!(rig.replay_as(EVERYONE, unknown, HOUR).await, ReplayedAs::NotFound);
    assert!(rig.claim(5).await.is_empty());
    assert_eq!(rig.list(JobFilter::all()).await.len(), 3, "nothing was stored");
}

/// ERR-4: a bulk replay that is sent twice runs each job once.
pub(super) async fn of_replays_at_once_one_counts(rig: Rig) {
    let letter = rig.ended(rig.job(), dead("validation")).await;
    let replies = at_once(8, |_| {
        let rig = rig.clone();
        async move { rig.store().replay(EVERYONE, letter, "op").await.expect("replay") }
    })
    .await;
    assert_eq!(replies.iter().filter(|reply| **reply == ReplayReply::Replayed).count(), 1, "{replies:?}");
    assert_eq!(ids(&rig.claim(5).await), [letter]);
    assert_eq!(rig.counts().await.get(Status::DeadLettered), 0);
}

/// ERR-4: the letter says by whom, when and as what it was replayed, can be listed by that, and goes when its time comes.
pub(super) async fn a_letter_replayed_as_another_job_is_marked_and_kept_a_while(rig: Rig) {
    let letter = rig.ended(rig.job().key("k"), dead("validation")).await;
    let other = rig.ended(rig.job(), dead("validation")).await;
    let before = rig.now().await;
    let ReplayedAs::New(replay) = rig.replay_as(Scope::Tenant(A), letter, A_WHILE).await else { panic!("replayed") };
    assert_eq!(rig.record(replay).await.spec.parent, Some(letter));
    let replayed = rig.record(letter).await.replayed.expect("marked");
    assert_eq!((replayed.by.as_str(), replayed.as_job), ("op", replay));
    assert!(replayed.at >= before);
    assert_eq!(rig.status(letter).await, Status::DeadLettered);
    let with = |replayed| {
        let mut filter = JobFilter::all().status(Status::DeadLettered);
        filter.replayed = Some(replayed);
        filter
    };
    assert_eq!(rig.list(with(true)).await, [letter]);
    assert_eq!(rig.list(with(false)).await, [other]);
    rig.advance(PAST_A_WHILE).await;
    assert!(!rig.exists(letter).await, "its time is over");
    assert_eq!(rig.clean().await, 1);
    assert!(rig.exists(other).await && rig.exists(replay).await);
    assert!(!rig.try_submit(rig.job().key("k")).await.duplicate, "its key is free");
}

/// ERR-9: a dead letter is replayed as another job once, however many ask, and all get that job's id.
pub(super) async fn a_letter_is_replayed_as_another_job_once(rig: Rig) {
    let letter = rig.ended(rig.job(), dead("validation")).await;
    let replies = at_once(8, |_| {
        let rig = rig.clone();
        async move { rig.replay_as(EVERYONE, letter, HOUR).await }
    })
    .await;
    let new = |reply: &ReplayedAs| match reply {
        ReplayedAs::New(id) => Some(*id),
        _ => None,
    };
    let made: Vec<JobId> = replies.iter().filter_map(new).collect();
    assert_eq!(made.len(), 1, "{replies:?}");
    assert!(replies.iter().all(|reply| [ReplayedAs::New(made[0]), ReplayedAs::Before(made[0])].contains(reply)));
    assert_eq!(rig.replay_as(EVERYONE, letter, HOUR).await, ReplayedAs::Before(made[0]), "also later");
    assert_eq!(rig.list(JobFilter::all()).await.len(), 2, "the letter and one job");
    assert_eq!(rig.audit(EVERYONE, "JOB_REPLAYED").await.len(), 1);
    assert_eq!(rig.claim_from(rig.node, &["later"], 9).await.len(), 1);
}

/// ERR-9, BEY-8: a replay that a quota refuses leaves the dead letter as it was.
pub(super) async fn a_refused_replay_as_another_job_marks_nothing(rig: Rig) {
    let letter = rig.ended(rig.job(), dead("validation")).await;
    let mut quota = Quota::default();
    quota.queued = Some(0);
    rig.store().set_quota(Some(A), Some(&quota), "op").await.expect("set");
    let replay = rig.store().replay_as(EVERYONE, letter, "op", rig.job().0, HOUR).await;
    assert!(matches!(replay, Err(Error::QuotaExceeded(_))), "{replay:?}");
    assert_eq!(rig.record(letter).await.replayed, None);
    rig.store().set_quota(Some(A), None, "op").await.expect("cleared");
    assert!(matches!(rig.replay_as(EVERYONE, letter, HOUR).await, ReplayedAs::New(_)));
}

/// ERR-4: a purge never removes work that is not over.
pub(super) async fn only_ended_jobs_can_be_purged(rig: Rig) {
    let running = rig.running(rig.job()).await;
    let waiting = rig.submit(rig.job().ordered("k")).await;
    let blocked = rig.submit(rig.job().ordered("k")).await;
    let scheduled = rig.submit(rig.job().after(HOUR)).await;
    for id in [running.id, waiting, blocked, scheduled, rig.job().id()] {
        assert!(!rig.store().purge(EVERYONE, id, "op").await.expect("purge"));
    }
    for id in [running.id, waiting, blocked, scheduled] {
        assert!(rig.exists(id).await);
    }
    assert_eq!(rig.cancel(scheduled).await, CancelReply::Canceled);
    assert!(rig.store().purge(EVERYONE, scheduled, "op").await.expect("purge"));
    rig.end(&running, succeed()).await;
    assert!(rig.store().purge(EVERYONE, running.id, "op").await.expect("purge"));
    assert!(!rig.exists(scheduled).await && !rig.exists(running.id).await);
}

/// ERR-5: the callback's job is there with the outcome, once, and like any other job.
pub(super) async fn a_follow_up_is_stored_with_the_finish_it_belongs_to(rig: Rig) {
    for (transition, callback) in [(succeed(), Callback::OnSuccess), (dead("validation"), Callback::OnFailure)] {
        let parent = rig.running(rig.job()).await;
        let follow_up = rig.job().with(|job| {
            job.spec.parent = Some(parent.id);
            job.spec.callback = Some(callback);
            job.payload = payload(r#"{"of":"parent"}"#);
        });
        let id = follow_up.id();
        let end = Finish { follow_up: Some(Box::new(follow_up.0)), ..finish(&parent, transition) };
        assert_ne!(rig.finish_as(rig.node, end.clone()).await, Finished::Fenced);
        assert_eq!(rig.status(id).await, Status::Pending);
        assert_eq!(rig.finish_as(rig.node, end).await, Finished::Fenced, "a repeat changes nothing");
        let callback_job = rig.claim_one().await;
        assert_eq!((callback_job.id, callback_job.payload.as_str()), (id, r#"{"of":"parent"}"#));
        assert_eq!((callback_job.spec.parent, callback_job.spec.callback), (Some(parent.id), Some(callback)));
        rig.end(&callback_job, succeed()).await;
    }
    assert_eq!(rig.list(JobFilter::all()).await.len(), 4);
}

/// ERR-5: an attempt that was refused, or whose job was canceled, has no callback.
pub(super) async fn a_follow_up_of_a_refused_or_canceled_finish_is_not_stored(rig: Rig) {
    let canceled = rig.running(rig.job()).await;
    assert_eq!(rig.cancel(canceled.id).await, CancelReply::Requested);
    let follow_up = rig.job();
    let id = follow_up.id();
    let end = Finish { follow_up: Some(Box::new(follow_up.0)), ..finish(&canceled, succeed()) };
    assert_eq!(rig.finish_as(rig.node, end).await, Finished::Accepted(Status::Canceled));
    assert!(!rig.exists(id).await);

    let lost = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    rig.lose_node(&[other]).await;
    let follow_up = rig.job();
    let id = follow_up.id();
    let end = Finish { follow_up: Some(Box::new(follow_up.0)), ..finish(&lost, succeed()) };
    assert_eq!(rig.finish_as(rig.node, end).await, Finished::Fenced);
    assert!(!rig.exists(id).await);
    assert!(rig.claim_as(other, 5).await.is_empty());
}

/// ERR-5, SUB-6, ORD-4: a follow-up has keys like any other job: a taken one stores nothing, an ordering key that its
/// parent held goes to it.
pub(super) async fn a_follow_up_respects_its_keys(rig: Rig) {
    let taken = rig.submit(rig.job().key("k").after(HOUR)).await;
    let parent = rig.running(rig.job()).await;
    let follow_up = Some(Box::new(rig.job().key("k").0));
    let end = Finish { follow_up, ..finish(&parent, succeed()) };
    assert_eq!(rig.finish_as(rig.node, end).await, Finished::Accepted(Status::Succeeded));
    assert_eq!(rig.list(JobFilter::all()).await, [parent.id, taken]);

    let parent = rig.running(rig.job().ordered("line")).await;
    let follow_up = rig.job().ordered("line");
    let id = follow_up.id();
    let end = Finish { follow_up: Some(Box::new(follow_up.0)), ..finish(&parent, succeed()) };
    assert_eq!(rig.finish_as(rig.node, end).await, Finished::Accepted(Status::Succeeded));
    rig.open_gates().await;
    assert_eq!(rig.claim_one().await.id, id);
}

/// ERR-7: a handler may postpone itself as often as it likes.
pub(super) async fn a_snooze_costs_no_attempt(rig: Rig) {
    let id = rig.submit(rig.job()).await;
    for _ in 0..3 {
        let job = rig.claim_one().await;
        assert_eq!((job.id, job.attempt()), (id, 1));
        let before = rig.now().await;
        assert_eq!(rig.end(&job, Transition::Snooze { delay: SOON }).await, Status::Scheduled);
        let record = rig.record(id).await;
        assert_eq!((record.status, record.failed, record.attempt), (Status::Scheduled, 0, 0));
        assert!(record.run_at.expect("it has a time") >= before + SOON);
        rig.advance(PAST_SOON).await;
        assert_eq!(rig.promote().await, 1);
    }
    let job = rig.claim_one().await;
    rig.end(&job, Transition::Snooze { delay: HOUR }).await;
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 0, "not before its time");
}

/// ERR-7: giving up for good is an end without a dead letter.
pub(super) async fn a_discarded_job_ends_as_canceled(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let discard = Transition::Cancel { reason: "discarded".into(), keep: A_WHILE };
    assert_eq!(rig.end(&job, discard).await, Status::Canceled);
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("discarded")));
    assert_eq!((record.attempt, record.node), (1, Some(rig.node)));
    assert!(record.finished_at.is_some());
    assert!(rig.list(JobFilter::all().status(Status::DeadLettered)).await.is_empty());
    rig.advance(PAST_A_WHILE).await;
    assert!(!rig.exists(job.id).await, "kept as long as the transition said");
}

/// ERR-1, ERR-4: the last failure of a dead letter is counted like those before it, as the transition says.
pub(super) async fn a_dead_letter_has_as_many_failures_as_its_last_attempt_says(rig: Rig) {
    let job = rig.running(rig.job()).await;
    rig.end(&job, retry(1, SOON)).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_one().await;
    rig.end(&again, dead_after(2, "max_retries")).await;
    let record = rig.record(job.id).await;
    assert_eq!((record.attempt, record.failed), (2, 2));
    // One that is turned away before its attempt has not failed again.
    let late = rig.ended(rig.job(), dead_after(0, "timeout")).await;
    let record = rig.record(late).await;
    assert_eq!((record.attempt, record.failed), (1, 0));
}

/// RUN-5, ERR-3: jobs of lost nodes fail with one and the same error, whichever node it was.
pub(super) async fn a_lost_node_is_the_same_error_whichever_it_was(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    rig.lose_node(&[other]).await;
    let mut error = rig.history(job.id).await.into_iter().find_map(|entry| entry.error).expect("its node was lost");
    // The details tell of this loss alone; failures are grouped by the rest.
    error.details = None;
    assert_eq!(error, notes::node_lost());
}
