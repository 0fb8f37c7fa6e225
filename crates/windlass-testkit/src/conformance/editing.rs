//! What a store promises about edits of waiting jobs (BEY-5): wherever the job waits, all of it or nothing, and a claim
//! sees the job before or after, never between. Run by every store through `conformance_tests!`.

use windlass_core::store::{EditReply, Error, Gate, PauseTarget, Submit, Transition};
use windlass_core::{Edit, JobId, Priority, Quota, Scope, Start, Status};

use super::rig::*;

/// BEY-5, OPS-5: input and priority change wherever the job waits, and history and audit log say so; its neighbours
/// stay as they are.
pub(super) async fn a_waiting_job_can_be_edited_wherever_it_waits(rig: Rig) {
    let bulk = submitted_ids(&rig.submit_all(rig.jobs(3)).await);
    let scheduled = rig.submit(rig.job().after(HOUR)).await;
    let retrying = rig.ended(rig.job().queue("retries"), retry(1, HOUR)).await;
    rig.submit(rig.job().queue("keyed").ordered("k")).await;
    let blocked = rig.submit(rig.job().queue("keyed").ordered("k")).await;
    let parked = parked(&rig).await;
    let counts = rig.counts().await;
    let waiting = [
        (bulk[1], Status::Pending),
        (scheduled, Status::Scheduled),
        (retrying, Status::Retrying),
        (blocked, Status::Blocked),
        (parked, Status::Blocked),
    ];
    for (id, status) in waiting {
        let before = (rig.record(id).await, rig.history(id).await);
        let change = Edit::new().input(payload("\"new\"")).priority(Priority(7));
        assert_eq!(edit(&rig, id, change).await, EditReply::Edited(status));
        let record = rig.record(id).await;
        assert_eq!((record.status, record.priority), (status, Priority(7)), "{status}");
        let same = (record.failed, record.attempt, record.run_at, &record.reason, &record.error);
        let was = (before.0.failed, before.0.attempt, before.0.run_at, &before.0.reason, &before.0.error);
        assert_eq!(same, was, "{status}: nothing else changes");
        assert_eq!(input(&rig, id).await, "\"new\"");
        let history = rig.history(id).await;
        assert_eq!(history[..before.1.len()], before.1, "what happened before stays");
        let last = history.last().expect("an edit is an entry");
        assert_eq!(history.len(), before.1.len() + 1);
        assert_eq!(last.note.as_deref(), Some("edited by operator: input, priority 7"));
        assert_eq!((last.status, last.attempt), (status, record.attempt));
    }
    assert_eq!(rig.counts().await, counts, "nothing is lost or doubled");
    let audit = rig.audit(Scope::Tenant(A), "JOB_EDITED").await;
    assert_eq!(audit.len(), waiting.len());
    assert_eq!((audit[0].actor.as_str(), audit[0].detail.as_deref()), ("operator", Some("input, priority 7")));
    assert_eq!(audit[0].target, parked.to_string());
    let claimed = rig.claim(5).await;
    assert_eq!(ids(&claimed), [bulk[1], bulk[0], bulk[2]], "the more urgent one comes first now");
    assert_eq!((claimed[0].payload.as_str(), claimed[0].priority), ("\"new\"", Priority(7)));
    assert_eq!((claimed[1].payload.as_str(), claimed[1].priority), ("null", Priority::NORMAL));
    assert_eq!(rig.end(&claimed[0], Transition::Release).await, Status::Pending);
    assert_eq!(rig.claim_one().await.priority, Priority(7), "it keeps its priority");
}

/// BEY-5, TIM-1: a start is moved away and back, and what has failed stays counted.
pub(super) async fn a_start_can_be_moved_both_ways(rig: Rig) {
    let id = rig.submit(rig.job()).await;
    let later = rig.now().await + HOUR;
    assert_eq!(start(&rig, id, Start::At(later)).await, EditReply::Edited(Status::Scheduled));
    let record = rig.record(id).await;
    assert_eq!((record.status, record.run_at), (Status::Scheduled, Some(later)));
    assert!(rig.claim(1).await.is_empty(), "it is not due");
    assert_eq!(start(&rig, id, Start::After(SOON)).await, EditReply::Edited(Status::Scheduled));
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 1);
    let claimed = rig.claim_one().await;
    assert_eq!(rig.end(&claimed, retry(1, HOUR)).await, Status::Retrying);
    assert_eq!(start(&rig, id, Start::After(2 * HOUR)).await, EditReply::Edited(Status::Retrying));
    assert_eq!(rig.promote().await, 0);
    assert_eq!(start(&rig, id, Start::Now).await, EditReply::Edited(Status::Pending));
    let record = rig.record(id).await;
    assert_eq!((record.status, record.failed, record.attempt), (Status::Pending, 1, 1));
    assert!(record.error.is_some(), "why it failed stays known");
    assert!(record.run_at.expect("it was due when it was edited") <= rig.now().await);
    let claimed = rig.claim_one().await;
    assert_eq!((claimed.id, claimed.attempt()), (id, 2));
    let statuses: Vec<Status> = rig.history(id).await.iter().map(|entry| entry.status).collect();
    use Status::*;
    assert_eq!(statuses, [Pending, Scheduled, Scheduled, Retrying, Retrying, Pending, Running]);
    rig.end(&claimed, succeed()).await;

    let id = rig.submit(rig.job().after(HOUR)).await;
    let past = rig.now().await - HOUR;
    assert_eq!(start(&rig, id, Start::At(past)).await, EditReply::Edited(Status::Pending));
    assert_eq!(rig.history(id).await[0].status, Scheduled, "it was born so");
    assert_eq!(start(&rig, id, Start::Now).await, EditReply::Edited(Status::Pending), "now is what it was");
    let claimed = rig.claim_one().await;
    rig.end(&claimed, dead("max_retries")).await;
    rig.store().replay(EVERYONE, id, "ann").await.expect("replay");
    assert_eq!(rig.claim_one().await.id, id, "a replay does not wait for the time that was edited away");
}

/// BEY-5, ORD-4, OPS-4: no edit opens a gate, and a job behind an ordering key keeps its place in the line.
pub(super) async fn an_edit_opens_no_gate_and_keeps_the_line(rig: Rig) {
    let ordered = |rig: &Rig| rig.job().ordered("k");
    let first = rig.submit(ordered(&rig)).await;
    let second = rig.submit(ordered(&rig)).await;
    let third = rig.submit(ordered(&rig)).await;
    let history = rig.history(second).await;
    assert_eq!(start(&rig, second, Start::Now).await, EditReply::Blocked(Gate::OrderingKey("k".into())));
    assert_eq!(rig.history(second).await, history, "nothing was written");
    assert_eq!(edit(&rig, third, Edit::new().priority(Priority(20))).await, EditReply::Edited(Status::Blocked));
    assert_eq!(start(&rig, second, Start::After(HOUR)).await, EditReply::Edited(Status::Blocked));
    assert_eq!(rig.history(second).await[0].status, Status::Blocked, "it was born so");
    let claimed = rig.claim_one().await;
    assert_eq!(claimed.id, first);
    rig.end(&claimed, succeed()).await;
    assert_eq!(rig.status(second).await, Status::Scheduled, "it is the next, and waits for its time");
    assert_eq!(rig.status(third).await, Status::Blocked);
    // The holder of a key keeps it when it is moved.
    assert_eq!(start(&rig, second, Start::Now).await, EditReply::Edited(Status::Pending));
    assert_eq!(start(&rig, second, Start::After(HOUR)).await, EditReply::Edited(Status::Scheduled));
    assert_eq!(rig.open_gates().await, 0);
    assert_eq!(rig.status(third).await, Status::Blocked);
    assert_eq!(start(&rig, second, Start::Now).await, EditReply::Edited(Status::Pending));
    let claimed = rig.claim_one().await;
    assert_eq!(claimed.id, second);
    rig.end(&claimed, succeed()).await;
    let claimed = rig.claim_one().await;
    assert_eq!((claimed.id, claimed.priority), (third, Priority(20)));
    rig.end(&claimed, succeed()).await;

    let parked = parked(&rig).await;
    assert_eq!(start(&rig, parked, Start::Now).await, EditReply::Blocked(Gate::Pause(PauseTarget::All)));
    assert_eq!(start(&rig, parked, Start::After(HOUR)).await, EditReply::Edited(Status::Scheduled));
    rig.store().resume(&PauseTarget::All, "ann").await.expect("resume");
    rig.open_gates().await;
    assert_eq!(rig.status(parked).await, Status::Scheduled, "a resume does not start what was put off");
}

/// BEY-5, SEC-1: what runs, has ended or is another tenant's is not touched.
pub(super) async fn only_waiting_jobs_of_the_scope_are_edited(rig: Rig) {
    let change = || Edit::new().input(payload("\"new\"")).priority(Priority(7)).run_now();
    let ended = rig.ended(rig.job(), succeed()).await;
    let gone = rig.ended(rig.job(), succeed_briefly()).await;
    let running = rig.running(rig.job()).await.id;
    let waiting = rig.submit(rig.job()).await;
    rig.advance(PAST_SOON).await;
    let before = [rig.record(ended).await, rig.record(running).await, rig.record(waiting).await];
    assert_eq!(edit(&rig, ended, change()).await, EditReply::NotWaiting(Status::Succeeded));
    assert_eq!(edit(&rig, gone, change()).await, EditReply::NotFound);
    assert_eq!(edit(&rig, running, change()).await, EditReply::NotWaiting(Status::Running));
    assert_eq!(edit(&rig, rig.job().id(), change()).await, EditReply::NotFound);
    let hidden = rig.store().edit(Scope::Tenant(B), waiting, "eve", &change()).await.expect("edit");
    assert_eq!(hidden, EditReply::NotFound);
    assert_eq!([rig.record(ended).await, rig.record(running).await, rig.record(waiting).await], before);
    for id in [ended, running, waiting] {
        assert_eq!(input(&rig, id).await, "null");
    }
    assert!(rig.audit(EVERYONE, "JOB_EDITED").await.is_empty());
}

/// BEY-5: whoever claims a job has it as it was, and the edit is refused; or has all of the edit.
pub(super) async fn an_edit_and_a_claim_at_once_have_one_winner(rig: Rig) {
    for round in 0..50 {
        let submitted = submitted_ids(&rig.submit_all(rig.jobs(3)).await);
        let (editor, claimer) = (rig.clone(), rig.clone());
        let id = submitted[round % 3];
        let change = Edit::new().input(payload("\"new\"")).priority(Priority(7));
        let edited = tokio::spawn(async move { edit(&editor, id, change).await });
        let claim = tokio::spawn(async move { claimer.claim(3).await });
        let (edited, mut claimed) = (edited.await.expect("no panic"), claim.await.expect("no panic"));
        claimed.extend(rig.claim(3).await);
        assert_eq!(sorted(ids(&claimed)), sorted(submitted), "each job is claimed once, whoever came first");
        let job = claimed.iter().find(|job| job.id == id).expect("it is claimed");
        let expected = match edited {
            EditReply::Edited(Status::Pending) => ("\"new\"", Priority(7)),
            EditReply::NotWaiting(Status::Running) => ("null", Priority::NORMAL),
            other => panic!("an edit of a job that waits or runs was told {other:?}"),
        };
        assert_eq!((job.payload.as_str(), job.priority), expected, "{edited:?}");
        assert_eq!((input(&rig, id).await.as_str(), rig.record(id).await.priority), expected, "{edited:?}");
        for job in &claimed {
            assert_eq!(rig.end(job, succeed()).await, Status::Succeeded);
        }
    }
}

/// BEY-5: edits at once come one after the other, each whole, wherever they move the job.
pub(super) async fn edits_at_once_are_each_whole(rig: Rig) {
    const EDITS: usize = 12;
    let id = submitted_ids(&rig.submit_all(rig.jobs(3)).await)[1];
    let replies = at_once(EDITS, |i| {
        let rig = rig.clone();
        async move {
            let starts = if i % 2 == 0 { Start::Now } else { Start::After(HOUR) };
            let change = Edit::new().input(payload(&i.to_string())).priority(Priority(i as i16)).start(starts);
            edit(&rig, id, change).await
        }
    });
    for reply in replies.await {
        assert!(matches!(reply, EditReply::Edited(_)), "{reply:?}");
    }
    let record = rig.record(id).await;
    let last = record.priority.0;
    assert_eq!(input(&rig, id).await, last.to_string(), "input and priority are of one edit");
    assert_eq!(record.status, if last % 2 == 0 { Status::Pending } else { Status::Scheduled });
    let noted = rig.history(id).await.iter().filter(|entry| entry.note.is_some()).count();
    assert_eq!(noted, EDITS);
    assert_eq!(rig.counts().await.unfinished(), 3);
    edit(&rig, id, Edit::new().run_now()).await;
    assert_eq!(rig.claim(10).await.len(), 3, "it is there once");
}

/// BEY-5, BEY-8: input that has grown is counted, and never refused.
pub(super) async fn an_edited_input_counts_against_the_quota(rig: Rig) {
    rig.store().set_quota(Some(A), Some(&Quota::new().bytes(100)), "ann").await.expect("set");
    let bytes = |n: usize| payload(&format!("\"{}\"", "x".repeat(n - 2)));
    let submit = async |n: usize| {
        let job = rig.job().with(|job| job.payload = bytes(n)).0;
        rig.store().submit(Submit { jobs: vec![job], lease: None }).await
    };
    let id = submit(40).await.expect("it fits")[0].id;
    assert_eq!(edit(&rig, id, Edit::new().input(bytes(90))).await, EditReply::Edited(Status::Pending));
    assert!(matches!(submit(11).await, Err(Error::QuotaExceeded(over)) if over.room == 10));
    submit(10).await.expect("it fits");
    assert_eq!(edit(&rig, id, Edit::new().input(bytes(200))).await, EditReply::Edited(Status::Pending));
    assert!(matches!(submit(2).await, Err(Error::QuotaExceeded(_))));
    assert_eq!(edit(&rig, id, Edit::new().input(bytes(10))).await, EditReply::Edited(Status::Pending));
    // What has become less is noticed when a store counts anew, which it does not do all the time.
    let mut stored = submit(80).await;
    for _ in 0..20 {
        if stored.is_ok() {
            break;
        }
        rig.advance(PAST_SOON).await;
        stored = submit(80).await;
    }
    stored.expect("there is room again");
}

/// BEY-5: what was edited is as durable as what was submitted.
pub(super) async fn edits_survive_a_restart(rig: Rig) {
    let bulk = submitted_ids(&rig.submit_all(rig.jobs(3)).await);
    let scheduled = rig.submit(rig.job().after(HOUR)).await;
    edit(&rig, bulk[2], Edit::new().input(payload("\"new\"")).priority(Priority(5))).await;
    edit(&rig, bulk[0], Edit::new().start(Start::After(HOUR))).await;
    edit(&rig, scheduled, Edit::new().run_now()).await;
    let rig = rig.restart().await;
    let node = rig.another_node().await;
    let claimed = rig.claim_as(node, 10).await;
    assert_eq!(ids(&claimed)[0], bulk[2], "the more urgent one comes first");
    assert_eq!(sorted(ids(&claimed)), sorted(vec![bulk[1], bulk[2], scheduled]));
    assert_eq!(claimed[0].payload.as_str(), "\"new\"");
    assert_eq!(rig.status(bulk[0]).await, Status::Scheduled);
}

// ---- words of these cases

async fn edit(rig: &Rig, id: JobId, edit: Edit) -> EditReply {
    rig.store().edit(EVERYONE, id, "operator", &edit).await.expect("edit")
}

async fn start(rig: &Rig, id: JobId, start: Start) -> EditReply {
    edit(rig, id, Edit::new().start(start)).await
}

async fn input(rig: &Rig, id: JobId) -> String {
    rig.store().input(EVERYONE, id).await.expect("input").expect("it is there").as_str().to_owned()
}

/// A job that a pause of everything has parked.
async fn parked(rig: &Rig) -> JobId {
    rig.store().pause(&PauseTarget::All, "ann", "upgrade").await.expect("pause");
    rig.ended(rig.job().queue("parked"), Transition::Park { gate: Gate::Pause(PauseTarget::All) }).await
}
