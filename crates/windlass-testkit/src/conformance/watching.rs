//! What a store promises about watching and steering: lists, progress, cancels, pauses, the audit log, retention, counts,
//! whereabouts. Run by every store through `conformance_tests!`.

use windlass_core::store::{
    AuditEntry, AuditFilter, Beat, CancelReply, Finish, Finished, Gate, NodeId, Note, Noted, PauseTarget, Transition,
    suspect_queue,
};
use windlass_core::{
    BatchId, ClaimedJob, JobError, JobFilter, JobId, Page, Priority, Progress, Scope, Status, TenantId, Timestamp,
};

use super::rig::*;

/// OPS-1: handler, status, time, batch, label, correlation and reason, one at a time.
pub(super) async fn each_filter_of_a_list_works_alone(rig: Rig) {
    let batch = BatchId(rig.job().id());
    let letter = rig.ended(rig.job().handler("dead"), dead("validation")).await;
    let canceled = rig.submit(rig.job().after(HOUR)).await;
    rig.cancel(canceled).await;
    let done = rig.ended(rig.job().tag("x").tag("y"), succeed()).await;
    rig.advance(SOON).await;
    let retrying = rig.running(rig.job()).await;
    rig.end(&retrying, retry(1, HOUR)).await;
    let running = rig.running(rig.job().batch(batch)).await.id;
    rig.advance(SOON).await;
    let waiting = rig.submit(rig.job().with(|job| job.correlation_id = Some("req".into()))).await;
    let holder = rig.submit(rig.job().ordered("k").tag("y").tenant(B)).await;
    let blocked = rig.submit(rig.job().ordered("k").tenant(B)).await;
    let scheduled = rig.submit(rig.job().after(HOUR).batch(batch)).await;
    let retrying = retrying.id;
    let all = [letter, canceled, done, retrying, running, waiting, holder, blocked, scheduled];
    assert_eq!(rig.list(JobFilter::all()).await, newest_first(all.to_vec()));

    use Status::*;
    let by_status = [
        (Pending, vec![holder, waiting]),
        (Scheduled, vec![scheduled]),
        (Retrying, vec![retrying]),
        (Blocked, vec![blocked]),
        (Suspended, vec![]),
        (Running, vec![running]),
        (Succeeded, vec![done]),
        (Canceled, vec![canceled]),
        (DeadLettered, vec![letter]),
    ];
    for (status, expected) in by_status {
        assert_eq!(rig.list(JobFilter::all().status(status)).await, expected, "{status}");
    }
    let several = JobFilter::all().status(Blocked).status(DeadLettered).status(Running);
    assert_eq!(rig.list(several).await, [blocked, running, letter]);
    assert_eq!(rig.list(JobFilter::all().handler("dead")).await, [letter]);
    assert!(rig.list(JobFilter::all().handler("dea%")).await.is_empty(), "a handler is not a pattern");
    assert_eq!(rig.list(JobFilter::all().tag("y")).await, [holder, done]);
    assert_eq!(rig.list(JobFilter::all().tag("x")).await, [done]);
    assert!(rig.list(JobFilter::all().tag("X")).await.is_empty());
    let with = |change: fn(&mut JobFilter)| {
        let mut filter = JobFilter::all();
        change(&mut filter);
        filter
    };
    let mut of_batch = JobFilter::all();
    of_batch.batch = Some(batch);
    assert_eq!(rig.list(of_batch).await, [scheduled, running]);
    assert_eq!(rig.list(with(|f| f.correlation_id = Some("req".into()))).await, [waiting]);
    assert_eq!(rig.list(with(|f| f.reason = Some("validation".into()))).await, [letter]);
    assert_eq!(rig.list(with(|f| f.reason = Some("not needed".into()))).await, [canceled]);
    let mut since = JobFilter::all();
    since.created_after = Some(rig.record(retrying).await.created_at);
    assert_eq!(rig.list(since).await, newest_first(vec![retrying, running, waiting, holder, blocked, scheduled]));
    let mut until = JobFilter::all();
    until.created_before = Some(rig.record(retrying).await.created_at);
    assert_eq!(rig.list(until).await, newest_first(vec![letter, canceled, done]));
    assert!(rig.list(with(|f| f.created_after = Some(Timestamp::from_millis(i64::MAX / 1_000)))).await.is_empty());
    let theirs = rig.store().find(Scope::Tenant(B), &JobFilter::all(), Page::default(), None).await.expect("list").jobs;
    assert_eq!(theirs.iter().map(|record| record.id).collect::<Vec<_>>(), [blocked, holder]);
}

/// OPS-1: a job must pass every part of the filter.
pub(super) async fn filters_of_a_list_combine(rig: Rig) {
    let batch = BatchId(rig.job().id());
    let full =
        || rig.job().handler("h").tag("t").batch(batch).with(|job| job.correlation_id = Some("c".into())).after(HOUR);
    let hit = rig.submit(full()).await;
    let misses = vec![
        full().handler("g"),
        full().with(|job| job.tags.clear()),
        full().with(|job| job.batch = None),
        full().with(|job| job.correlation_id = None),
        full().with(|job| job.start = windlass_core::Start::Now),
    ];
    let misses = submitted_ids(&rig.submit_all(misses).await);
    let mut filter = JobFilter::all().handler("h").tag("t").status(Status::Scheduled);
    filter.batch = Some(batch);
    filter.correlation_id = Some("c".into());
    filter.created_after = Some(rig.record(hit).await.created_at);
    assert_eq!(rig.list(filter.clone()).await, [hit]);
    filter.statuses.push(Status::Pending);
    assert_eq!(rig.list(filter).await, [misses[4], hit]);
}

/// OPS-1: jobs that arrive between two pages do not shift the second.
pub(super) async fn a_list_is_newest_first_and_pages_by_keyset_while_jobs_arrive(rig: Rig) {
    let mut submitted = submitted_ids(&rig.submit_all(rig.jobs(25)).await);
    submitted.reverse();
    let mut read = Vec::new();
    let mut page = Page::first(10);
    loop {
        let ids = rig.page(JobFilter::all(), page).await;
        rig.submit_all(rig.jobs(3)).await;
        let Some(last) = ids.last() else { break };
        page = page.after(*last);
        read.extend(ids);
    }
    assert_eq!(read, submitted, "each once, newest first");
}

/// OPS-1: offsets count within the filter, also from a fixed job on, and no page is longer than asked.
pub(super) async fn a_list_pages_by_offset_and_keeps_its_limit(rig: Rig) {
    let jobs = (0..210).map(|n| if n % 2 == 0 { rig.job().tag("even") } else { rig.job() }).collect();
    let submitted = newest_first(submitted_ids(&rig.submit_all(jobs).await));
    for limit in [1, 7, 50, Page::MAX] {
        assert_eq!(rig.page(JobFilter::all(), Page::first(limit)).await, submitted[..limit]);
    }
    assert_eq!(rig.page(JobFilter::all(), Page { offset: 205, ..Page::first(50) }).await, submitted[205..]);
    assert!(rig.page(JobFilter::all(), Page { offset: 210, ..Page::first(50) }).await.is_empty());
    let even: Vec<JobId> = submitted.iter().copied().skip(1).step_by(2).collect();
    let page = Page { offset: 10, ..Page::first(10) };
    assert_eq!(rig.page(JobFilter::all().tag("even"), page).await, even[10..20]);

    let fixed = Page { limit: 5, before: Some(submitted[9]), offset: 5 };
    let before = rig.page(JobFilter::all(), fixed).await;
    assert_eq!(before, submitted[15..20]);
    rig.submit_all(rig.jobs(4)).await;
    assert_eq!(rig.page(JobFilter::all(), fixed).await, before, "new jobs do not shift it");
}

/// OPS-1: one query for many look-ups; unknown and repeated ids do no harm.
pub(super) async fn a_get_of_many_ids_answers_for_those_that_exist(rig: Rig) {
    let submitted = submitted_ids(&rig.submit_all(rig.jobs(150)).await);
    let mut asked = submitted.clone();
    asked.extend((0..50).map(|_| rig.job().id()));
    let records = rig.store().get(EVERYONE, &asked).await.expect("get");
    assert_eq!(sorted(records.iter().map(|record| record.id).collect()), submitted);
    let records = rig.store().get(EVERYONE, &[submitted[0], JobId::from_i64(-1), JobId::from_i64(0)]).await;
    assert_eq!(records.expect("get").len(), 1);
}

/// When a report was made: not a time at which any test runs.
const AT: Timestamp = Timestamp::from_micros(1_700_000_000_123_456);

/// OPS-2, RUN-16: the last report of the holder stays, also after the end; others' reports do not count.
pub(super) async fn the_latest_progress_is_kept_and_fenced(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let other = rig.running(rig.job()).await;
    assert_eq!(rig.record(job.id).await.progress, None);
    let report = |job: &_, sequence, percent, message: &str| Note {
        fence: fence(job),
        what: Noted::Progress(Progress { sequence, percent, message: message.into(), updated_at: AT }),
    };
    let reports = vec![report(&job, 1, 10.0, "läuft"), report(&other, 1, 50.0, "b"), report(&job, 2, 12.5, "weiter")];
    assert_eq!(rig.store().note(rig.node, reports).await.expect("progress"), [true, true, true]);
    let progress = rig.record(job.id).await.progress;
    assert_eq!(progress, Some(Progress { sequence: 2, percent: 12.5, message: "weiter".into(), updated_at: AT }));
    assert_eq!(rig.record(other.id).await.progress.expect("kept").percent, 50.0);

    let late = vec![report(&job, 3, 99.5, "fast")];
    assert_eq!(rig.store().note(rig.node, late).await.expect("progress"), [true]);
    rig.end(&other, succeed()).await;
    let mixed = vec![report(&other, 2, 100.0, "late"), report(&job, 4, 99.9, "")];
    assert_eq!(rig.store().note(rig.node, mixed).await.expect("progress"), [false, true]);
    assert_eq!(rig.record(job.id).await.progress.expect("kept").sequence, 4);
    rig.end(&job, retry(1, SOON)).await;
    rig.advance(PAST_SOON).await;
    rig.promote().await;
    let again = rig.claim_one().await;
    let stale = vec![report(&job, 5, 1.0, "stale")];
    assert_eq!(rig.store().note(rig.node, stale).await.expect("progress"), [false]);
    assert_ne!(rig.record(again.id).await.progress.map(|p| p.sequence), Some(5));
}

/// OPS-3: ready, scheduled, waiting for a retry, behind a key or parked: canceled on the spot, and it never runs.
pub(super) async fn a_waiting_job_is_canceled_at_once_wherever_it_waits(rig: Rig) {
    let ready = rig.submit(rig.job()).await;
    let scheduled = rig.submit(rig.job().after(SOON)).await;
    let holder = rig.submit(rig.job().ordered("k").queue("aside")).await;
    let blocked = rig.submit(rig.job().ordered("k")).await;
    let retrying = rig.running(rig.job().queue("busy")).await;
    rig.end(&retrying, retry(1, SOON)).await;
    let target = PauseTarget::Handler(HANDLER.into());
    rig.store().pause(&target, "op", "").await.expect("pause");
    let parked = rig.running(rig.job().queue("busy")).await;
    rig.end(&parked, Transition::Park { gate: Gate::Pause(target.clone()) }).await;
    for id in [ready, scheduled, blocked, retrying.id, parked.id] {
        let before = rig.now().await;
        assert!(!rig.status(id).await.is_terminal());
        assert_eq!(rig.cancel(id).await, CancelReply::Canceled);
        let record = rig.record(id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("not needed")));
        assert!(record.finished_at.expect("it has ended") >= before && !record.cancel_requested);
        assert_eq!(rig.cancel(id).await, CancelReply::AlreadyFinished(Status::Canceled), "twice is the same as once");
        assert_eq!(rig.history(id).await.last().map(|entry| entry.status), Some(Status::Canceled));
    }
    rig.store().resume(&target, "op").await.expect("resume");
    rig.advance(PAST_SOON).await;
    assert_eq!((rig.promote().await, rig.open_gates().await), (0, 0));
    assert!(rig.claim(10).await.is_empty());
    assert_eq!(rig.status(holder).await, Status::Pending);
    assert_eq!(rig.counts().await.get(Status::Canceled), 5);
}

/// OPS-3, SUB-4: one job out of the middle of a bulk is gone, the others are not touched.
pub(super) async fn a_canceled_job_of_a_bulk_is_never_claimed(rig: Rig) {
    let mut submitted = submitted_ids(&rig.submit_all(rig.jobs(20)).await);
    for at in [19, 7, 0] {
        assert_eq!(rig.cancel(submitted.remove(at)).await, CancelReply::Canceled);
    }
    let mut claimed = ids(&rig.claim(5).await);
    assert_eq!(rig.cancel(submitted.remove(10)).await, CancelReply::Canceled);
    claimed.extend(ids(&rig.claim(20).await));
    assert_eq!(claimed, submitted);
    assert_eq!(rig.counts().await.get(Status::Canceled), 4);
    assert_eq!(rig.counts().await.get(Status::Pending), 0);
}

/// OPS-3: the node learns of it with every heartbeat until the job has ended, and the job ends as canceled.
pub(super) async fn a_running_job_is_asked_to_cancel_and_never_succeeds(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let quiet = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    assert_eq!(rig.cancel(job.id).await, CancelReply::Requested);
    assert_eq!(rig.cancel(job.id).await, CancelReply::Requested, "twice is the same as once");
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.cancel_requested), (Status::Running, true));
    assert!(!rig.record(quiet.id).await.cancel_requested);
    for _ in 0..2 {
        let beat = rig.store().heartbeat(rig.node, 2).await.expect("heartbeat");
        assert_eq!(beat, Beat::Alive { cancels: vec![fence(&job)] });
    }
    let beat = rig.store().heartbeat(other, 0).await.expect("heartbeat");
    assert_eq!(beat, Beat::Alive { cancels: Vec::new() }, "others are not bothered");
    let done = Transition::Succeed { output: Some(payload("1")), keep: HOUR };
    assert_eq!(rig.finish(&job, done).await, Finished::Accepted(Status::Canceled));
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("not needed")));
    assert!(!record.cancel_requested);
    assert_eq!(rig.cancel(job.id).await, CancelReply::AlreadyFinished(Status::Canceled));
    let beat = rig.store().heartbeat(rig.node, 1).await.expect("heartbeat");
    assert_eq!(beat, Beat::Alive { cancels: Vec::new() });
    assert_eq!(rig.end(&quiet, succeed()).await, Status::Succeeded);
}

/// OPS-3: also a retry, a dead letter, a snooze, a release, a park or a route ends as canceled once it was asked for.
pub(super) async fn a_requested_cancel_wins_over_every_transition(rig: Rig) {
    let transitions = [
        succeed(),
        retry(1, SOON),
        dead("max_retries"),
        Transition::Cancel { reason: "canceled".into(), keep: HOUR },
        Transition::Snooze { delay: SOON },
        Transition::Release,
        Transition::Park { gate: Gate::Pause(PauseTarget::All) },
        Transition::Route { queue: "elsewhere".into() },
    ];
    for transition in transitions {
        let job = rig.running(rig.job()).await;
        assert_eq!(rig.cancel(job.id).await, CancelReply::Requested);
        assert_eq!(rig.end(&job, transition.clone()).await, Status::Canceled, "{transition:?}");
        let record = rig.record(job.id).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("not needed")));
    }
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 0);
    assert!(rig.claim_from(rig.node, &[QUEUE, "elsewhere"], 10).await.is_empty());
    let counts = rig.counts().await;
    assert_eq!((counts.get(Status::Canceled), counts.get(Status::DeadLettered), counts.unfinished()), (8, 0, 0));
    assert!(rig.audit(EVERYONE, "JOB_EXHAUSTED_RETRIES").await.is_empty());
    assert!(rig.audit(EVERYONE, "JOB_FAILED").await.is_empty());
}

/// OPS-3, RUN-5: the request outlives the node: its job is canceled, not run again.
pub(super) async fn a_requested_cancel_survives_a_lost_node(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let healthy = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    assert_eq!(rig.cancel(job.id).await, CancelReply::Requested);
    assert_eq!(rig.lose_node(&[other]).await, [healthy.id], "only what is ready again");
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("not needed")));
    assert_eq!(ids(&rig.claim_from(other, &[QUEUE, &suspect_queue(QUEUE, 1)], 5).await), [healthy.id]);
    assert_eq!(rig.finish(&job, succeed()).await, Finished::Fenced);
}

/// OPS-3, RUN-10: the same when the node leaves in good order.
pub(super) async fn a_requested_cancel_survives_a_node_that_leaves(rig: Rig) {
    let job = rig.running(rig.job()).await;
    let other = rig.another_node().await;
    assert_eq!(rig.cancel(job.id).await, CancelReply::Requested);
    rig.store().deregister(rig.node).await.expect("deregister");
    let record = rig.record(job.id).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Canceled, Some("not needed")));
    assert!(rig.claim_as(other, 5).await.is_empty());
}

/// OPS-3: a finished job answers with how it ended, an unknown one that it is not there.
pub(super) async fn a_cancel_of_an_ended_or_unknown_job_changes_nothing(rig: Rig) {
    let done = rig.ended(rig.job(), succeed()).await;
    let letter = rig.ended(rig.job(), dead("validation")).await;
    assert_eq!(rig.cancel(done).await, CancelReply::AlreadyFinished(Status::Succeeded));
    assert_eq!(rig.cancel(letter).await, CancelReply::AlreadyFinished(Status::DeadLettered));
    assert_eq!(rig.cancel(rig.job().id()).await, CancelReply::NotFound);
    assert_eq!((rig.status(done).await, rig.status(letter).await), (Status::Succeeded, Status::DeadLettered));
    let brief = rig.ended(rig.job(), succeed_briefly()).await;
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.cancel(brief).await, CancelReply::NotFound, "its time is over");
    assert!(rig.audit(EVERYONE, "JOB_CANCELED").await.is_empty());
}

/// OPS-3: whoever comes first wins, and both callers are told the same story.
pub(super) async fn a_cancel_and_a_finish_at_once_have_one_winner(rig: Rig) {
    for _ in 0..50 {
        let job = rig.running(rig.job()).await;
        let (canceler, finisher) = (rig.clone(), rig.clone());
        let id = job.id;
        let cancel = tokio::spawn(async move { canceler.cancel(id).await });
        let finish = tokio::spawn(async move { finisher.finish(&job, succeed()).await });
        let (cancel, finish) = (cancel.await.expect("no panic"), finish.await.expect("no panic"));
        match (cancel, finish) {
            (CancelReply::Requested, Finished::Accepted(Status::Canceled)) => {}
            (CancelReply::AlreadyFinished(Status::Succeeded), Finished::Accepted(Status::Succeeded)) => {}
            other => panic!("two winners: {other:?}"),
        }
        let expected = if cancel == CancelReply::Requested { Status::Canceled } else { Status::Succeeded };
        assert_eq!(rig.status(id).await, expected);
    }
}

/// OPS-3: a job that was canceled while it waited is in nobody's claim.
pub(super) async fn a_cancel_and_a_claim_at_once_have_one_winner(rig: Rig) {
    for _ in 0..50 {
        let submitted = submitted_ids(&rig.submit_all(rig.jobs(3)).await);
        let (canceler, claimer) = (rig.clone(), rig.clone());
        let id = submitted[1];
        let cancel = tokio::spawn(async move { canceler.cancel(id).await });
        let claim = tokio::spawn(async move { claimer.claim(3).await });
        let (cancel, mut claimed) = (cancel.await.expect("no panic"), claim.await.expect("no panic"));
        claimed.extend(rig.claim(3).await);
        let expected = if cancel == CancelReply::Canceled { vec![submitted[0], submitted[2]] } else { submitted };
        assert_eq!(sorted(ids(&claimed)), expected, "the cancel was told {cancel:?}");
        for job in &claimed {
            let status = rig.end(job, succeed()).await;
            assert_eq!(status == Status::Canceled, job.id == id, "{cancel:?}");
        }
    }
}

/// OPS-4: everything, a handler or a tenant; the first pause stays, with by whom and why.
pub(super) async fn a_pause_is_kept_until_resumed(rig: Rig) {
    let store = rig.store();
    let targets = [PauseTarget::All, PauseTarget::Handler("mail: send".into()), PauseTarget::Tenant(B)];
    let before = rig.now().await;
    for target in &targets {
        store.pause(target, "ann", "upgrade").await.expect("pause");
        store.pause(target, "bob", "again").await.expect("pause");
    }
    let mut pauses = store.pauses().await.expect("pauses");
    pauses.sort_by(|a, b| a.target.cmp(&b.target));
    assert_eq!(pauses.iter().map(|pause| pause.target.clone()).collect::<Vec<_>>(), targets);
    for pause in &pauses {
        assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("ann", "upgrade"));
        assert!(pause.at >= before);
    }
    assert!(store.resume(&targets[1], "bob").await.expect("resume"));
    assert!(!store.resume(&targets[1], "bob").await.expect("resume"), "there is none any more");
    assert!(!store.resume(&PauseTarget::Tenant(A), "bob").await.expect("resume"), "there never was one");
    assert_eq!(store.pauses().await.expect("pauses").len(), 2);
    store.pause(&targets[1], "bob", "anew").await.expect("pause");
    let pauses = store.pauses().await.expect("pauses");
    assert!(pauses.iter().any(|pause| pause.target == targets[1] && pause.by == "bob"));
}

/// OPS-4: parked jobs are blocked with the pause's name, cost nothing, and run in their order afterwards.
pub(super) async fn parked_jobs_come_back_in_order_when_resumed(rig: Rig) {
    for target in [PauseTarget::All, PauseTarget::Handler(HANDLER.into()), PauseTarget::Tenant(A)] {
        let submitted = submitted_ids(&rig.submit_all(rig.jobs(6)).await);
        let jobs = rig.claim(6).await;
        rig.store().pause(&target, "op", "").await.expect("pause");
        for part in jobs.chunks(4) {
            park(&rig, part, &target).await;
        }
        rig.open_gates().await;
        for id in &submitted {
            let record = rig.record(*id).await;
            let reason = Gate::Pause(target.clone()).name();
            assert_eq!((record.status, record.reason), (Status::Blocked, Some(reason)));
        }
        assert!(rig.claim(10).await.is_empty());
        assert!(rig.store().resume(&target, "op").await.expect("resume"));
        rig.open_gates().await;
        let again = rig.claim(10).await;
        assert_eq!(ids(&again), submitted);
        for job in &again {
            assert_eq!(job.attempt(), 1);
            rig.end(job, succeed()).await;
        }
    }
}

/// OPS-4: jobs parked by other pauses stay parked.
pub(super) async fn a_resume_lets_go_only_what_it_paused(rig: Rig) {
    let targets = [PauseTarget::Handler("one".into()), PauseTarget::Handler("two".into()), PauseTarget::Tenant(B)];
    let mut parked = Vec::new();
    for target in &targets {
        rig.store().pause(target, "op", "").await.expect("pause");
        let job = rig.running(rig.job().tenant(B)).await;
        park(&rig, std::slice::from_ref(&job), target).await;
        parked.push(job.id);
    }
    rig.store().resume(&targets[1], "op").await.expect("resume");
    rig.open_gates().await;
    assert_eq!(ids(&rig.claim(10).await), [parked[1]]);
    assert_eq!(rig.status(parked[0]).await, Status::Blocked);
    assert_eq!(rig.status(parked[2]).await, Status::Blocked);
}

/// OPS-4: a node may park a job for a pause that was ended in the meantime; the job does not stay behind.
pub(super) async fn a_job_parked_after_the_pause_ended_is_let_go(rig: Rig) {
    let target = PauseTarget::Handler(HANDLER.into());
    rig.store().pause(&target, "op", "").await.expect("pause");
    rig.store().pause(&PauseTarget::All, "op", "").await.expect("pause");
    let stays = rig.running(rig.job()).await;
    park(&rig, std::slice::from_ref(&stays), &PauseTarget::All).await;
    let job = rig.running(rig.job()).await;
    rig.store().resume(&target, "op").await.expect("resume");
    rig.finish(&job, Transition::Park { gate: Gate::Pause(target) }).await;
    rig.open_gates().await;
    assert_eq!(rig.claim_one().await.id, job.id);
    assert_eq!(rig.status(stays.id).await, Status::Blocked, "another pause is still in force");
}

/// OPS-4, OPS-3: a restarted process finds pauses, requests, keys, leases and lines as they were. (The memory store has
/// nothing that outlives it, and goes on with the same data.)
pub(super) async fn pauses_and_waiting_jobs_survive_a_restart(rig: Rig) {
    let running = rig.running(rig.job().with(|job| job.payload = payload("[1]"))).await;
    assert!(rig.save_checkpoint(rig.node, fence(&running), payload("7")).await);
    let canceling = rig.running(rig.job()).await;
    assert_eq!(rig.cancel(canceling.id).await, CancelReply::Requested);
    let ready = submitted_ids(&rig.submit_all(rig.jobs(5)).await);
    let light = rig.submit(rig.job().tenant(B).key("k")).await;
    let scheduled = rig.submit(rig.job().after(SOON)).await;
    let holder = rig.submit(rig.job().ordered("o").queue("aside")).await;
    let blocked = rig.submit(rig.job().ordered("o").queue("aside")).await;
    let target = PauseTarget::Tenant(B);
    rig.store().pause(&target, "op", "why").await.expect("pause");
    let counts = rig.counts().await;

    let rig = rig.restart().await;
    assert_eq!(rig.counts().await, counts);
    let pauses = rig.store().pauses().await.expect("pauses");
    assert_eq!(
        pauses.iter().map(|pause| (&pause.target, pause.reason.as_str())).collect::<Vec<_>>(),
        [(&target, "why")]
    );
    assert_eq!(rig.try_submit(rig.job().tenant(B).key("k")).await.id, light);
    let beat = rig.store().heartbeat(rig.node, 2).await.expect("heartbeat");
    assert_eq!(beat, Beat::Alive { cancels: vec![fence(&canceling)] });
    assert_eq!(rig.end(&canceling, succeed()).await, Status::Canceled);
    rig.end(&running, Transition::Release).await;
    let claimed = rig.claim(10).await;
    assert_eq!(claimed[0].checkpoint, Some(payload("7")));
    assert_eq!(claimed[0].payload.as_str(), "[1]");
    let of_a: Vec<JobId> = claimed.iter().filter(|job| job.tenant == A).map(|job| job.id).collect();
    assert_eq!(of_a[1..], ready);
    assert!(claimed.iter().any(|job| job.id == light));
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 1);
    assert_eq!(rig.claim_one().await.id, scheduled);
    let next = rig.claim_from(rig.node, &["aside"], 5).await;
    assert_eq!(ids(&next), [holder]);
    rig.end(&next[0], succeed()).await;
    assert_eq!(ids(&rig.claim_from(rig.node, &["aside"], 5).await), [blocked]);
}

/// OPS-5, OPS-11: who canceled, paused, resumed, replayed and purged what, and which jobs failed for good.
pub(super) async fn steering_writes_the_audit_log(rig: Rig) {
    let before = rig.now().await;
    let store = rig.store();
    let waiting = rig.submit(rig.job().after(HOUR)).await;
    let running = rig.running(rig.job()).await;
    for id in [waiting, running.id, running.id] {
        rig.cancel(id).await;
    }
    rig.end(&running, succeed()).await;
    let canceled = rig.audit(EVERYONE, "JOB_CANCELED").await;
    let lines: Vec<_> = canceled.iter().map(|e| (e.target.clone(), e.detail.clone().unwrap_or_default())).collect();
    let expected =
        [(running.id.to_string(), "requested: not needed".to_owned()), (waiting.to_string(), "not needed".to_owned())];
    assert_eq!(lines, expected, "newest first, and asking twice is one entry");
    assert!(canceled.iter().all(|e| e.actor == "operator" && e.tenant == Some(A) && e.at >= before));

    let spent = rig.ended(rig.job(), dead("max_retries")).await;
    let bad = rig.ended(rig.job(), dead("validation")).await;
    let exhausted = rig.audit(EVERYONE, "JOB_EXHAUSTED_RETRIES").await;
    assert_eq!(exhausted.len(), 1, "only for the reason max_retries");
    assert_eq!((exhausted[0].actor.as_str(), &exhausted[0].target), ("windlass", &spent.to_string()));
    let failed = rig.audit(EVERYONE, "JOB_FAILED").await;
    assert_eq!(failed.len(), 1, "and every other permanent failure");
    assert_eq!((failed[0].actor.as_str(), &failed[0].target), ("windlass", &bad.to_string()));

    store.replay(EVERYONE, spent, "ann").await.expect("replay");
    store.replay_as(EVERYONE, bad, "ann", rig.job().queue("later").0, HOUR).await.expect("replay_as");
    let replayed = rig.audit(EVERYONE, "JOB_REPLAYED").await;
    let targets: Vec<_> = replayed.iter().map(|e| (e.actor.as_str(), e.target.clone(), e.tenant)).collect();
    assert_eq!(targets, [("ann", bad.to_string(), Some(A)), ("ann", spent.to_string(), Some(A))]);
    store.purge(EVERYONE, bad, "bob").await.expect("purge");
    let purged = rig.audit(EVERYONE, "JOB_PURGED").await;
    assert_eq!((purged.len(), purged[0].actor.as_str(), &purged[0].target), (1, "bob", &bad.to_string()));
    assert_eq!(rig.audit(EVERYONE, "JOB_FAILED").await, failed, "it outlives the job's row (OPS-11)");

    let target = PauseTarget::Handler("mail".into());
    store.pause(&target, "ann", "upgrade").await.expect("pause");
    store.resume(&target, "bob").await.expect("resume");
    store.resume(&target, "bob").await.expect("resume");
    for (action, actor) in [("PAUSED", "ann"), ("RESUMED", "bob")] {
        let entries = rig.audit(EVERYONE, action).await;
        assert_eq!(entries.len(), 1, "{action}");
        assert_eq!((entries[0].actor.as_str(), entries[0].target.as_str()), (actor, "handler:mail"));
    }
    let again = rig.claim_one().await;
    rig.end(&again, succeed()).await;
    let succeeded = rig.audit(EVERYONE, "JOB_SUCCEEDED").await;
    assert_eq!((succeeded.len(), &succeeded[0].target), (1, &spent.to_string()));
}

/// OPS-5, SEC-1: entries are found by action and target, newest first, and a tenant reads only its own.
pub(super) async fn the_audit_log_filters_and_keeps_to_its_scope(rig: Rig) {
    let write = async |tenant: Option<TenantId>, action: &str, target: &str| {
        let entry = AuditEntry {
            sequence: 0,
            at: Timestamp::default(),
            actor: "ann".into(),
            tenant,
            action: action.into(),
            target: target.into(),
            detail: Some("süß".into()),
        };
        rig.store().audit(entry).await.expect("audit");
        rig.advance(std::time::Duration::from_millis(2)).await;
    };
    let before = rig.now().await;
    write(Some(A), "JOB_SUBMITTED", "1").await;
    write(Some(B), "JOB_SUBMITTED", "2").await;
    write(None, "PAUSED", "all").await;
    write(Some(A), "JOB_PURGED", "1").await;
    let read = async |scope, change: fn(&mut AuditFilter)| {
        let mut filter = AuditFilter::default();
        change(&mut filter);
        let entries = rig.store().audit_log(scope, &filter).await.expect("audit_log");
        assert!(entries.iter().all(|entry| entry.at >= before), "the store sets the time");
        assert!(entries.is_sorted_by(|a, b| a.at >= b.at), "newest first");
        entries.into_iter().map(|entry| (entry.action, entry.target)).collect::<Vec<_>>()
    };
    let line = |action: &str, target: &str| (action.to_owned(), target.to_owned());
    let all = [line("JOB_PURGED", "1"), line("PAUSED", "all"), line("JOB_SUBMITTED", "2"), line("JOB_SUBMITTED", "1")];
    assert_eq!(read(EVERYONE, |_| {}).await, all);
    assert_eq!(read(EVERYONE, |f| f.limit = 2).await, all[..2]);
    assert_eq!(read(EVERYONE, |f| f.action = Some("JOB_SUBMITTED".into())).await, all[2..]);
    assert_eq!(read(EVERYONE, |f| f.target = Some("1".into())).await, [all[0].clone(), all[3].clone()]);
    assert_eq!(read(Scope::Tenant(A), |_| {}).await, [all[0].clone(), all[3].clone()]);
    assert_eq!(read(Scope::Tenant(B), |_| {}).await, [all[2].clone()]);
    // Page by page, one entry at a time; successes too, which have no entries of their own.
    let (first, second) = (rig.ended(rig.job(), succeed()).await, rig.ended(rig.job(), succeed()).await);
    let successes = [line("JOB_SUCCEEDED", &second.to_string()), line("JOB_SUCCEEDED", &first.to_string())];
    for (action, expected) in [(None, &all[..]), (Some("JOB_SUCCEEDED"), &successes[..])] {
        let mut filter = AuditFilter::default();
        filter.action = action.map(str::to_owned);
        filter.limit = 1;
        let mut found = Vec::new();
        while let Some(entry) = rig.store().audit_log(EVERYONE, &filter).await.expect("audit_log").pop() {
            filter.before = Some(entry.sequence);
            found.push((entry.action, entry.target));
        }
        assert_eq!(found, expected);
    }
}

/// OPS-11: a success has an entry of its own where it is asked for, written with its end: found when the job is long gone,
/// once while it is not, by its tenant alone. A job that does not end well, or not by this attempt, has none.
pub(super) async fn a_success_is_audited_where_it_is_asked_for(rig: Rig) {
    let audited = |job: &ClaimedJob| Finish { audit: true, ..finish(job, succeed_briefly()) };
    let jobs = [rig.job(), rig.job(), rig.job().tenant(B), rig.job(), rig.job()];
    rig.submit_all(jobs.into()).await;
    let mut jobs = rig.claim(5).await;
    jobs.sort_by_key(|job| job.id);
    let [first, plain, theirs, canceled, retried] = &jobs[..] else { panic!("five are claimed") };
    assert_eq!(rig.cancel(canceled.id).await, CancelReply::Requested);
    let again = Finish { audit: true, ..finish(retried, retry(1, HOUR)) };
    let unasked = finish(plain, succeed_briefly());
    let all = vec![audited(first), unasked, audited(theirs), audited(canceled), again];
    rig.store().finish(rig.node, all).await.expect("finishes");
    assert_eq!(rig.finish_as(rig.node, audited(first)).await, Finished::Fenced);

    let successes = async |scope| {
        let found = rig.audit(scope, AuditEntry::SUCCEEDED).await;
        found.into_iter().map(|entry| (entry.target, entry.tenant, entry.actor)).collect::<Vec<_>>()
    };
    let line = |job: &ClaimedJob| (job.id.to_string(), Some(job.tenant), "windlass".to_owned());
    let own = async || {
        let log = rig.store().audit_log(EVERYONE, &AuditFilter::default()).await.expect("audit_log");
        let own = log.into_iter().filter(|entry| entry.action == AuditEntry::SUCCEEDED);
        sorted(own.map(|entry| entry.target.parse().expect("an id")).collect())
    };
    assert_eq!(successes(EVERYONE).await, [line(theirs), line(plain), line(first)], "each once");
    assert_eq!(own().await, [first.id, theirs.id]);
    rig.advance(PAST_SOON).await;
    for cleaned in [false, true] {
        if cleaned {
            assert_eq!(rig.clean().await, 4);
        }
        assert_eq!(successes(EVERYONE).await, [line(theirs), line(first)]);
        assert_eq!(successes(Scope::Tenant(A)).await, [line(first)]);
        assert_eq!(own().await, [first.id, theirs.id]);
        let mut filter = AuditFilter::default();
        (filter.action, filter.limit) = (Some(AuditEntry::SUCCEEDED.to_owned()), 1);
        let page = rig.store().audit_log(EVERYONE, &filter).await.expect("audit_log");
        (filter.before, filter.target) = (Some(page[0].sequence), Some(first.id.to_string()));
        let page = rig.store().audit_log(EVERYONE, &filter).await.expect("audit_log");
        assert_eq!(page.iter().map(|entry| entry.target.clone()).collect::<Vec<_>>(), [first.id.to_string()]);
    }
}

/// OPS-7: an ended job is kept as long as its transition says, then nobody sees it, cleaned or not.
pub(super) async fn ended_jobs_disappear_when_their_time_is_over(rig: Rig) {
    let kept = rig.ended(rig.job(), succeed()).await;
    let brief = rig.ended(rig.job().tag("t"), succeed_briefly()).await;
    rig.advance(PAST_SOON).await;
    for cleaned in [false, true] {
        if cleaned {
            assert_eq!(rig.clean().await, 1);
        }
        assert!(!rig.exists(brief).await);
        assert_eq!(rig.store().input(EVERYONE, brief).await.expect("input"), None);
        assert!(rig.history(brief).await.is_empty());
        assert!(rig.store().whereabouts(EVERYONE, brief).await.expect("whereabouts").is_none());
        assert!(rig.list(JobFilter::all().tag("t")).await.is_empty());
        assert_eq!(rig.list(JobFilter::all()).await, [kept]);
        assert!(!rig.store().purge(EVERYONE, brief, "op").await.expect("purge"));
        assert_eq!(rig.counts().await.get(Status::Succeeded), 1, "counted is what can be seen");
    }
    assert_eq!(rig.clean().await, 0);
}

/// OPS-7: a step of cleaning removes at most what it is allowed, and says how much.
pub(super) async fn cleaning_is_bounded_and_counts(rig: Rig) {
    rig.submit_all(rig.jobs(25)).await;
    let jobs = rig.claim(25).await;
    let finishes = jobs.iter().map(|job| finish(job, succeed_briefly())).collect();
    rig.store().finish(rig.node, finishes).await.expect("finish");
    let living = rig.submit(rig.job()).await;
    assert!(rig.clean().await <= 25, "whatever is over by now");
    rig.submit_all(rig.jobs(25)).await;
    let jobs: Vec<_> = rig.claim(30).await.into_iter().filter(|job| job.id != living).collect();
    let finishes = jobs.iter().map(|job| finish(job, succeed_briefly())).collect();
    rig.store().finish(rig.node, finishes).await.expect("finish");
    rig.advance(PAST_SOON).await;
    let mut cleaned = Vec::new();
    loop {
        let n = rig.store().clean(10).await.expect("clean");
        assert!(n <= 10, "{n} cleaned, 10 allowed");
        if n == 0 {
            break;
        }
        cleaned.push(n);
    }
    assert!((25..=50).contains(&cleaned.iter().sum::<usize>()), "{cleaned:?}");
    assert_eq!(rig.list(JobFilter::all()).await, [living]);
}

/// OPS-1, API-8: after a bit of everything the numbers are those of the jobs, per tenant and in all.
pub(super) async fn counts_are_right_after_a_mix_of_everything(rig: Rig) {
    let done = rig.ended(rig.job(), succeed()).await;
    rig.ended(rig.job(), succeed()).await;
    let letter = rig.ended(rig.job(), dead("validation")).await;
    let spent = rig.ended(rig.job(), dead("max_retries")).await;
    let failed = rig.running(rig.job()).await;
    rig.end(&failed, retry(1, HOUR)).await;
    let discarded = rig.running(rig.job()).await;
    rig.end(&discarded, Transition::Cancel { reason: "discarded".into(), keep: HOUR }).await;
    let snoozed = rig.running(rig.job()).await;
    rig.end(&snoozed, Transition::Snooze { delay: HOUR }).await;
    rig.ended(rig.job().tenant(B), succeed()).await;
    let scheduled = rig.submit(rig.job().after(HOUR)).await;
    rig.cancel(scheduled).await;
    let expiring = rig.now().await + SOON;
    rig.submit(rig.job().expires_at(expiring).after(HOUR)).await;
    rig.advance(PAST_SOON).await;
    assert_eq!(rig.expire().await, 1);
    rig.submit_all((0..3).map(|_| rig.job().ordered("k")).collect()).await;
    rig.submit_all(rig.jobs(6)).await;
    rig.submit_leased(rig.jobs(2), rig.node, rig.new_lease()).await;
    rig.submit(rig.job().tenant(B)).await;
    let in_hand = rig.claim(2).await.len() as u64;
    assert_eq!(in_hand, 2);
    rig.store().replay(EVERYONE, spent, "op").await.expect("replay");
    rig.store().purge(EVERYONE, letter, "op").await.expect("purge");
    rig.store().purge(EVERYONE, done, "op").await.expect("purge");

    use Status::*;
    let counts = rig.counts().await;
    let expected = [
        (Pending, 1 + 6 + 1 + 1 - 2), // the key's holder, plain ones, B's, the replayed one, less those in hand
        (Scheduled, 1),
        (Retrying, 1),
        (Blocked, 2),
        (Suspended, 0),
        (Running, 2 + in_hand),
        (Succeeded, 2),
        (Canceled, 3),
        (DeadLettered, 0),
    ];
    for (status, n) in expected {
        assert_eq!(counts.get(status), n, "{status}");
    }
    assert_eq!(counts.unfinished(), 7 + 1 + 1 + 2 + 4);
    let theirs = rig.store().counts(Scope::Tenant(B)).await.expect("counts");
    assert_eq!((theirs.get(Succeeded), theirs.get(Pending) + theirs.get(Running)), (1, 1));
    assert_eq!(theirs.get(Blocked) + theirs.get(Canceled) + theirs.get(DeadLettered) + theirs.get(Scheduled), 0);
    let ours = rig.store().counts(Scope::Tenant(A)).await.expect("counts");
    for status in Status::ALL {
        assert_eq!(ours.get(status) + theirs.get(status), counts.get(status), "{status}");
    }
}

/// BEY-1: for each place what decides when the job runs: who is ahead, who holds the key, what is paused, which nodes
/// there are.
pub(super) async fn whereabouts_tell_why_a_job_is_not_running(rig: Rig) {
    let whereabouts =
        async |id| rig.store().whereabouts(Scope::Tenant(A), id).await.expect("whereabouts").expect("there");
    let mut ready = Vec::new();
    for _ in 0..5 {
        ready.push(rig.submit(rig.job()).await);
    }
    assert_eq!(whereabouts(ready[0]).await.ahead, Some(0));
    let third = whereabouts(ready[2]).await;
    assert!((2..5).contains(&third.ahead.expect("it is ready")), "two are before it: {:?}", third.ahead);
    assert_eq!((third.record.id, third.record.status, third.key_holder), (ready[2], Status::Pending, None));
    assert_eq!(third.nodes.iter().map(|node| node.node).collect::<Vec<_>>(), [rig.node]);
    assert!(third.pauses.is_empty() && third.now >= third.record.created_at);
    for _ in 0..3 {
        rig.submit(rig.job().priority(Priority::HIGH)).await;
    }
    assert!(whereabouts(ready[0]).await.ahead.expect("it is ready") >= 3, "more urgent ones come before it");

    let holder = rig.submit(rig.job().ordered("k")).await;
    let blocked = rig.submit(rig.job().ordered("k")).await;
    let behind = whereabouts(blocked).await;
    assert_eq!((behind.record.status, behind.key_holder), (Status::Blocked, Some(holder)));
    assert_eq!(behind.ahead, None);

    let target = PauseTarget::Tenant(A);
    rig.store().pause(&target, "ann", "upgrade").await.expect("pause");
    let pauses = whereabouts(blocked).await.pauses;
    assert_eq!((pauses.len(), &pauses[0].target, pauses[0].by.as_str()), (1, &target, "ann"));

    let parked = rig.running(rig.job().queue("busy")).await;
    park(&rig, std::slice::from_ref(&parked), &target).await;
    let parked = whereabouts(parked.id).await;
    assert_eq!((parked.record.status, parked.ahead, parked.key_holder), (Status::Blocked, None, None));
    assert_eq!(parked.record.reason, Some(Gate::Pause(target.clone()).name()));

    let scheduled = rig.submit(rig.job().after(HOUR)).await;
    let due = whereabouts(scheduled).await;
    assert_eq!((due.record.status, due.ahead, due.key_holder), (Status::Scheduled, None, None));
    assert!(due.record.run_at.expect("it has a time") > due.now);
    let running = rig.claim(1).await.remove(0);
    let held = whereabouts(running.id).await;
    assert_eq!((held.record.status, held.record.node, held.ahead), (Status::Running, Some(rig.node), None));
    rig.end(&running, dead("validation")).await;
    let ended = whereabouts(running.id).await;
    assert_eq!((ended.record.status, ended.ahead), (Status::DeadLettered, None));
}

/// Parks jobs behind a pause, in one call.
async fn park(rig: &Rig, jobs: &[windlass_core::ClaimedJob], target: &PauseTarget) {
    let gate = || Gate::Pause(target.clone());
    let finishes: Vec<Finish> = jobs.iter().map(|job| finish(job, Transition::Park { gate: gate() })).collect();
    let answers = rig.store().finish(rig.node, finishes).await.expect("finish");
    assert!(answers.iter().all(|answer| *answer == Finished::Accepted(Status::Blocked)), "{answers:?}");
}

/// RUN-3, RUN-5, TIM-1, OPS-4, BEY-4: whatever there is to do, one look says so. It may say yes too often.
pub(super) async fn a_survey_misses_nothing_there_is_to_do(rig: Rig) {
    let look = || async { rig.store().survey(LEASE, &[QUEUE.to_owned()]).await.expect("survey") };
    assert!(look().await.pauses.is_empty());
    rig.submit(rig.job()).await;
    assert!(look().await.ready);
    assert!(!rig.store().survey(LEASE, &[]).await.expect("survey").ready, "nobody waits for anything");

    rig.submit(rig.job().after(SOON)).await;
    rig.submit(rig.job().expires_at(rig.now().await + SOON)).await;
    rig.advance(PAST_SOON).await;
    let survey = look().await;
    assert!(survey.due && survey.untidy);

    let target = PauseTarget::Handler(HANDLER.into());
    rig.store().pause(&target, "op", "why not").await.expect("pause");
    let pauses = look().await.pauses;
    assert_eq!(
        pauses.iter().map(|p| (&p.target, &*p.by, &*p.reason)).collect::<Vec<_>>(),
        [(&target, "op", "why not")]
    );

    rig.advance(PAST_LEASE).await;
    let silent: Vec<NodeId> = look().await.silent.iter().map(|silent| silent.node).collect();
    assert_eq!(silent, [rig.node], "it has not been heard of");
}

/// OPS-3, OPS-7: a job that is canceled while its attempt fails is kept as long as it asks, like any other.
pub(super) async fn a_canceled_job_whose_attempt_fails_is_kept_as_long_as_it_asks(rig: Rig) {
    for transition in [retry(1, HOUR), dead("validation"), Transition::Release] {
        let job = rig.running(rig.job().with(|job| job.spec.retention = Some(SOON))).await;
        assert_eq!(rig.cancel(job.id).await, CancelReply::Requested);
        assert_eq!(rig.end(&job, transition).await, Status::Canceled);
        rig.advance(PAST_SOON).await;
        assert!(!rig.exists(job.id).await, "its time is over");
    }
}

/// OPS-3, OPS-5: the history says who canceled a job and why, once, in the same words everywhere.
pub(super) async fn notes_say_who_canceled_what_and_why(rig: Rig) {
    let last_notes = async |id| {
        let history = rig.history(id).await;
        history.into_iter().filter_map(|entry| entry.note).collect::<Vec<_>>()
    };
    let cancel = async |id, reason: &str| rig.store().cancel(EVERYONE, id, "ann", reason).await.expect("cancel");
    let waiting = rig.submit(rig.job()).await;
    cancel(waiting, "sent twice").await;
    assert_eq!(last_notes(waiting).await, ["canceled by ann: sent twice"]);
    let waiting = rig.submit(rig.job()).await;
    cancel(waiting, "").await;
    assert_eq!(last_notes(waiting).await, ["canceled by ann"]);
    for (reason, note) in [("sent twice", "cancel requested by ann: sent twice"), ("", "cancel requested by ann")] {
        let running = rig.running(rig.job()).await;
        cancel(running.id, reason).await;
        rig.end(&running, retry(1, HOUR)).await;
        assert_eq!(last_notes(running.id).await, [note]);
    }
    let expired = rig.submit(rig.job().with(|job| job.spec.expires_at = Some(job.id.created()))).await;
    assert_eq!(rig.expire().await, 1);
    let discarded = Transition::Cancel { reason: "discarded".into(), keep: HOUR };
    let discarded = rig.ended(rig.job(), discarded).await;
    let letter = rig.ended(rig.job(), dead("max_retries")).await;
    for id in [expired, discarded, letter] {
        assert!(last_notes(id).await.is_empty(), "its reason says it");
    }
}

/// OPS-5, SEC-2: the audit log names the code of the last error and repeats nothing of its text.
pub(super) async fn an_exhausted_job_is_audited_by_its_code(rig: Rig) {
    let error = JobError::retryable("card 4111 was refused").with_code("refused");
    let id = rig
        .ended(rig.job(), Transition::DeadLetter { failed: 1, reason: "max_retries".into(), error, keep: None })
        .await;
    let entries = rig.audit(EVERYONE, "JOB_EXHAUSTED_RETRIES").await;
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].target.clone(), entries[0].detail.as_deref()), (id.to_string(), Some("refused")));
}

/// OPS-1, OPS-7, API-8: counts are what the lists show, at all times: when jobs end, when their time is over, when they are
/// removed, purged, replayed, and when a replayed dead letter's time is over.
pub(super) async fn counts_are_what_the_lists_show(rig: Rig) {
    let agree = async |when: &str| {
        for scope in [EVERYONE, Scope::Tenant(A), Scope::Tenant(B)] {
            for status in Status::ALL {
                let filter = JobFilter::all().status(status);
                let count = async || rig.store().counts(scope).await.expect("counts").get(status);
                let (counted, listed) = loop {
                    let before = count().await;
                    let listed =
                        rig.store().find(scope, &filter, Page::first(Page::MAX), None).await.expect("list").jobs.len();
                    let after = count().await;
                    // Where time really passes, a job's may be over between two looks.
                    if before == after {
                        break (before, listed as u64);
                    }
                };
                assert_eq!(counted, listed, "{status} {when}");
            }
        }
    };
    rig.ended(rig.job(), succeed_briefly()).await;
    rig.ended(rig.job().tenant(B), succeed()).await;
    let canceled = rig.submit(rig.job().with(|job| job.spec.retention = Some(SOON)).after(HOUR)).await;
    rig.cancel(canceled).await;
    let mut letters = Vec::new();
    for tenant in [A, A, A, B] {
        letters.push(rig.ended(rig.job().tenant(tenant), dead("validation")).await);
    }
    agree("when they have ended").await;
    rig.replay_as(EVERYONE, letters[0], SOON).await;
    agree("when one is marked").await;
    rig.advance(PAST_SOON).await;
    agree("when the time of some is over").await;
    assert_eq!(rig.clean().await, 3);
    agree("when these are removed").await;
    rig.replay_as(EVERYONE, letters[1], HOUR).await;
    for letter in &letters[1..3] {
        assert!(rig.store().purge(EVERYONE, *letter, "op").await.expect("purges"));
        agree("when one is purged").await;
    }
    rig.store().replay(EVERYONE, letters[3], "op").await.expect("replays");
    agree("when one is replayed").await;
    // Folding, where there is such a thing, changes nothing.
    rig.advance(PAST_SOON).await;
    rig.clean().await;
    agree("at the end").await;
}
