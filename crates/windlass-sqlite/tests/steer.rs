//! What people do to jobs in a SQLite file: cancel, expire, replay, purge, pause, and what is left behind.

mod common;

use std::time::Duration;

use common::{Bench, KEEP, die, retry, succeed, tenant};
use windlass_core::store::{AuditEntry, CancelReply, Finished, PauseTarget, ReplayReply, Store};
use windlass_core::{Reason, Scope, Start, Status};

/// Everything: tests look at all that there is.
const ALL: Scope = Scope::All(windlass_core::OperatorRight::assume());

#[tokio::test]
async fn a_waiting_job_is_canceled_at_once_wherever_it_waits() {
    let b = Bench::new().await;
    let (ready, mut scheduled, mut holder, mut gated) = (b.job(), b.job(), b.job(), b.job());
    scheduled.start = Start::After(Duration::from_secs(5));
    holder.ordering_key = Some("k".into());
    gated.ordering_key = Some("k".into());
    let ids = [ready.id, scheduled.id, gated.id, holder.id];
    b.submit(vec![ready, scheduled, holder, gated]).await;
    for id in ids {
        assert_eq!(b.store.cancel(ALL, id, "ann", "why").await.expect("cancels"), CancelReply::Canceled);
        let record = b.the(id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("why")));
        let again = b.store.cancel(ALL, id, "ann", "why").await.expect("cancels");
        assert_eq!(again, CancelReply::AlreadyFinished(Status::Canceled));
    }
    b.advance(Duration::from_secs(5));
    assert_eq!(b.store.promote(10).await.expect("promotes").jobs, 0);
    let counts = b.store.counts(ALL).await.expect("counts");
    assert_eq!((counts.get(Status::Canceled), counts.unfinished()), (4, 0));
    assert!(b.claim(10).await.is_empty());
    assert_eq!(b.store.counts(ALL).await.expect("counts").unfinished(), 0, "also after the claim met them");
    let log = b.store.audit_log(ALL, &Default::default()).await.expect("reads");
    assert_eq!(log.len(), 4);
    assert_eq!((log[0].action.as_str(), log[0].actor.as_str()), ("JOB_CANCELED", "ann"));
    assert_eq!((log[0].detail.as_deref(), &log[0].target), (Some("why"), &ids[3].to_string()));
    let other = b.store.cancel(Scope::Tenant(tenant(4)), ids[0], "eve", "").await.expect("cancels");
    assert_eq!(other, CancelReply::NotFound);
}

#[tokio::test]
async fn a_running_job_is_asked_and_never_succeeds() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    for _ in 0..2 {
        let reply = b.store.cancel(ALL, id, "ann", "wrong input").await.expect("cancels");
        assert_eq!(reply, CancelReply::Requested);
    }
    assert!(b.the(id).await.cancel_requested);
    let log = b.store.audit_log(ALL, &Default::default()).await.expect("reads");
    assert_eq!((log.len(), log[0].detail.as_deref()), (1, Some("requested: wrong input")), "twice is once");
    assert_eq!(b.finish(&job, succeed()).await, Finished::Accepted(Status::Canceled));
    let record = b.the(id).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("wrong input")));
    assert!(!record.cancel_requested && record.output.is_none());
}

#[tokio::test]
async fn a_requested_cancel_wins_over_a_retry_and_a_clean_shutdown() {
    let b = Bench::new().await;
    b.submit(vec![b.job(), b.job()]).await;
    let jobs = b.claim(2).await;
    for job in &jobs {
        b.store.cancel(ALL, job.id, "ann", "").await.expect("cancels");
    }
    assert_eq!(b.finish(&jobs[0], retry(1, 0)).await, Finished::Accepted(Status::Canceled));
    b.store.deregister(b.node).await.expect("deregisters");
    assert_eq!(b.the(jobs[1].id).await.status, Status::Canceled);
}

#[tokio::test]
async fn a_job_that_was_not_started_in_time_expires() {
    let b = Bench::new().await;
    let expiring = || {
        let mut job = b.job();
        job.spec.expires_at = Some(common::NOW + Duration::from_secs(10));
        job
    };
    let (mut keyed, mut behind) = (expiring(), b.job());
    (keyed.ordering_key, behind.ordering_key) = (Some("k".into()), Some("k".into()));
    let (keyed_id, behind_id) = (keyed.id, behind.id);
    let started = b.submit_one(expiring()).await;
    let job = b.claim_one().await;
    b.submit(vec![keyed, behind]).await;
    b.finish(&job, retry(1, 60)).await;
    assert_eq!(b.store.expire(10).await.expect("expires"), 0);
    b.advance(Duration::from_secs(10));
    assert_eq!(b.store.expire(10).await.expect("expires"), 1);
    let record = b.the(keyed_id).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some(Reason::Expired.as_str())));
    assert_eq!(b.the(started).await.status, Status::Retrying, "it has started once");
    assert_eq!(b.claim_one().await.id, behind_id, "its key went on");
}

#[tokio::test]
async fn a_dead_letter_is_replayed_in_place() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    assert_eq!(b.store.replay(ALL, id, "ann").await.expect("replays"), ReplayReply::NotDead(Status::Pending));
    let job = b.claim_one().await;
    b.finish(&job, die()).await;
    assert_eq!(b.store.counts(ALL).await.expect("counts").get(Status::DeadLettered), 1);
    assert_eq!(b.store.replay(ALL, id, "ann").await.expect("replays"), ReplayReply::Replayed);
    let record = b.the(id).await;
    assert_eq!((record.status, record.failed, record.attempt), (Status::Pending, 0, 0));
    assert!(record.finished_at.is_none() && record.reason.is_none() && record.replayed.is_none());
    assert_eq!(b.store.counts(ALL).await.expect("counts").get(Status::DeadLettered), 0);
    let job = b.claim_one().await;
    assert_eq!((job.id, job.attempt()), (id, 1));
    b.finish(&job, succeed()).await;
    let history = b.store.history(ALL, id).await.expect("reads");
    let seen: Vec<_> = history.iter().map(|entry| entry.status).collect();
    assert_eq!(seen, [Status::Pending, Status::DeadLettered, Status::Pending, Status::Succeeded]);
    assert_eq!(history[2].note.as_deref(), Some("replayed by ann"));
    assert!(history[1].error.is_some());
    assert!(b.the(id).await.error.is_none());
}

#[tokio::test]
async fn a_replay_waits_behind_its_ordering_key() {
    let b = Bench::new().await;
    let (mut first, mut second) = (b.job(), b.job());
    (first.ordering_key, second.ordering_key) = (Some("k".into()), Some("k".into()));
    let (first_id, second_id) = (first.id, second.id);
    b.submit(vec![first, second]).await;
    let job = b.claim_one().await;
    b.finish(&job, die()).await;
    b.store.replay(ALL, first_id, "ann").await.expect("replays");
    assert_eq!(b.the(first_id).await.status, Status::Blocked);
    let job = b.claim_one().await;
    assert_eq!(job.id, second_id);
    b.finish(&job, succeed()).await;
    assert_eq!(b.claim_one().await.id, first_id);
}

#[tokio::test]
async fn a_dead_letter_replayed_as_another_job_is_purged_later() {
    let b = Bench::new().await;
    let id = b.submit_one(b.job()).await;
    let job = b.claim_one().await;
    assert!(!b.store.mark_replayed(ALL, id, "ann", b.job().id, KEEP).await.expect("marks"), "it runs");
    b.finish(&job, die()).await;
    let copy = b.submit_one(b.job()).await;
    assert!(b.store.mark_replayed(ALL, id, "ann", copy, KEEP).await.expect("marks"));
    let replayed = b.the(id).await.replayed.expect("marked");
    assert_eq!((replayed.by.as_str(), replayed.as_job), ("ann", copy));
    b.advance(KEEP);
    assert!(b.record(id).await.is_none());
    assert_eq!(b.store.clean(10).await.expect("cleans"), 1);
}

#[tokio::test]
async fn only_an_ended_job_is_purged() {
    let b = Bench::new().await;
    let mut job = b.job();
    job.idempotency_key = Some("k".into());
    let id = b.submit_one(job.clone()).await;
    assert!(!b.store.purge(ALL, id, "ann").await.expect("purges"));
    let claimed = b.claim_one().await;
    assert!(!b.store.purge(ALL, id, "ann").await.expect("purges"));
    b.finish(&claimed, succeed()).await;
    assert!(!b.store.purge(Scope::Tenant(tenant(3)), id, "eve").await.expect("purges"));
    assert!(b.store.purge(ALL, id, "ann").await.expect("purges"));
    assert!(b.record(id).await.is_none() && b.store.history(ALL, id).await.expect("reads").is_empty());
    job.id = b.job().id;
    b.submit_one(job).await;
    let lease = b.store.register(common::new_node()).await.expect("registers");
    assert!(lease.now > id.created(), "new ids start after every id there ever was");
}

#[tokio::test]
async fn cleaning_is_bounded_and_leaves_what_still_has_time() {
    let b = Bench::new().await;
    b.submit((0..10).map(|_| b.job()).collect()).await;
    for job in b.claim(10).await {
        b.finish(&job, succeed()).await;
    }
    let kept = b.submit_one(b.job()).await;
    assert_eq!(b.store.clean(100).await.expect("cleans"), 0);
    b.advance(KEEP);
    assert_eq!(b.store.clean(7).await.expect("cleans"), 7);
    assert_eq!(b.store.clean(7).await.expect("cleans"), 3);
    assert_eq!(b.claim_one().await.id, kept);
}

#[tokio::test]
async fn pauses_are_kept_and_the_first_one_counts() {
    let b = Bench::new().await;
    b.store.pause(&PauseTarget::All, "ann", "deploy").await.expect("pauses");
    b.store.pause(&PauseTarget::All, "bob", "again").await.expect("pauses");
    let pauses = b.store.pauses().await.expect("reads");
    assert_eq!((pauses.len(), pauses[0].by.as_str(), pauses[0].reason.as_str()), (1, "ann", "deploy"));
    assert!(b.store.resume(&PauseTarget::All, "bob").await.expect("resumes"));
    let log = b.store.audit_log(ALL, &Default::default()).await.expect("reads");
    let actions: Vec<_> = log.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["RESUMED", "PAUSED"]);
}

#[tokio::test]
async fn the_audit_log_is_filtered_and_knows_successes() {
    let b = Bench::new().await;
    let mut job = b.job();
    job.tenant = tenant(1);
    let id = b.submit_one(job).await;
    let claimed = b.claim_one().await;
    b.finish(&claimed, succeed()).await;
    for n in 0..3 {
        let entry = AuditEntry {
            sequence: 0,
            at: common::NOW,
            actor: "ann".into(),
            tenant: None,
            action: "JOB_SUBMITTED".into(),
            target: n.to_string(),
            detail: None,
        };
        b.store.audit(entry).await.expect("writes");
    }
    let mut filter = windlass_core::store::AuditFilter::default();
    filter.limit = 2;
    let log = b.store.audit_log(ALL, &filter).await.expect("reads");
    assert_eq!([log[0].target.as_str(), log[1].target.as_str()], ["2", "1"]);
    filter.target = Some("0".into());
    assert_eq!(b.store.audit_log(ALL, &filter).await.expect("reads").len(), 1);
    assert!(b.store.audit_log(Scope::Tenant(tenant(1)), &filter).await.expect("reads").is_empty());
    filter.target = None;
    filter.action = Some("JOB_SUCCEEDED".into());
    let log = b.store.audit_log(Scope::Tenant(tenant(1)), &filter).await.expect("reads");
    assert_eq!((log.len(), &log[0].target), (1, &id.to_string()));
}
