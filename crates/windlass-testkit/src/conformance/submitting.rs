//! What a store promises about jobs on their way in: ids, options, keys, scopes, and jobs that are born leased.
//! Run by every store through `conformance_tests!`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use windlass_core::store::{
    CancelReply, Error, Finished, Gate, PauseTarget, ReplayReply, ReplayedAs, Submit, Submitted, Transition,
};
use windlass_core::{
    BatchId, Callback, JobError, JobFilter, JobId, NewJob, Page, Priority, RetryPolicy, Scope, Start, Status,
    UniqueWithin,
};

use super::rig::*;

/// How many callers come at once in the cases about races.
const CALLERS: usize = 64;

/// SUB-1: the id the submitter made is the job's id, ids sort as they were made, and their time is the submit's.
pub(super) async fn submitted_ids_keep_their_order_and_read_back(rig: Rig) {
    let jobs = rig.jobs(5);
    let made: Vec<JobId> = jobs.iter().map(Job::id).collect();
    let submitted = rig.submit_all(jobs).await;
    assert_eq!(submitted_ids(&submitted), made);
    assert!(submitted.iter().all(|s| !s.duplicate));
    assert!(made.is_sorted());
    for id in made {
        let record = rig.record(id).await;
        assert_eq!(record.id, id);
        let apart = record.created_at.since(id.created()).max(id.created().since(record.created_at));
        assert!(
            apart < Duration::from_secs(5),
            "created_at {} is the time in the id {}",
            record.created_at,
            id.created()
        );
    }
}

/// SUB-2: whatever a job was submitted with is there when it is read and when it is claimed.
pub(super) async fn every_option_of_a_submit_reads_back(rig: Rig) {
    let now = rig.now().await;
    let parent = rig.submit(rig.job().queue("elsewhere")).await;
    let batch = BatchId(rig.job().id());
    let job = rig
        .job()
        .handler("mail.send")
        .queue("mail")
        .priority(Priority(13))
        .key("invoice-7")
        .unique("mail.send::u::7", UniqueWithin::Unfinished)
        .ordered("customer-9")
        .batch(batch)
        .tag("billing")
        .tag("süß")
        .expires_at(now + HOUR)
        .after(SOON)
        .with(|job| {
            job.correlation_id = Some("req-1".into());
            job.payload = payload(r#"{"to":"you"}"#);
            job.spec.timeout = Some(Duration::from_millis(1_500));
            job.spec.retry = Some(RetryPolicy::fixed(7, Duration::from_millis(250)));
            job.spec.deadline_at = Some(now + HOUR + HOUR);
            job.spec.retention = Some(Duration::from_secs(90));
            job.spec.headers = BTreeMap::from([("traceparent".into(), "00-ab".into()), ("x".into(), "ü \"q\"".into())]);
            job.spec.user = Some("user-1".into());
            job.spec.idempotency_key = Some("invoice-7".into());
            job.spec.parent = Some(parent);
            job.spec.callback = Some(Callback::OnFailure);
        });
    let sent = job.0.clone();
    let id = rig.submit(job).await;

    let read = rig.record(id).await;
    assert_eq!((read.tenant, read.handler.as_str(), read.queue.as_str()), (A, "mail.send", "mail"));
    assert_eq!((read.status, read.priority), (Status::Scheduled, Priority(13)));
    assert_eq!((read.attempt, read.failed, read.recoveries), (0, 0, 0));
    assert_eq!(read.batch, sent.batch);
    assert_eq!(sorted_text(&read.tags), sorted_text(&sent.tags));
    assert_eq!(read.correlation_id, sent.correlation_id);
    assert_eq!(read.ordering_key, sent.ordering_key);
    assert_eq!(read.spec, sent.spec);
    let run_at = read.run_at.expect("its start lay ahead");
    assert!(run_at >= now + SOON && run_at <= rig.now().await + SOON, "the delay counts from the submit");
    assert_eq!(rig.store().input(EVERYONE, id).await.expect("input"), Some(sent.payload.clone()));

    rig.advance(PAST_SOON).await;
    assert_eq!(rig.promote().await, 1);
    let claimed = rig.claim_from(rig.node, &["mail"], 5).await.remove(0);
    assert_eq!((claimed.id, claimed.tenant, claimed.handler.as_str()), (id, A, "mail.send"));
    assert_eq!((claimed.queue.as_str(), claimed.priority), ("mail", Priority(13)));
    assert_eq!((claimed.failed, claimed.recoveries, claimed.attempt()), (0, 0, 1));
    assert_eq!(claimed.payload, sent.payload);
    assert_eq!(claimed.ordering_key, sent.ordering_key);
    assert_eq!((claimed.batch, claimed.correlation_id), (sent.batch, sent.correlation_id));
    assert_eq!(sorted_text(&claimed.tags), sorted_text(&sent.tags));
    assert_eq!(claimed.spec, sent.spec);
    assert_eq!(claimed.checkpoint, None);
    assert_eq!(claimed.created_at, read.created_at);
    assert!(claimed.ready_at >= run_at, "it could not run before its start");
}

/// SUB-2: what was not asked for is absent, and the job waits for a worker.
pub(super) async fn a_plain_job_reads_back_with_nothing_set(rig: Rig) {
    let id = rig.submit(rig.job()).await;
    let read = rig.record(id).await;
    assert_eq!((read.status, read.priority, read.attempt), (Status::Pending, Priority::NORMAL, 0));
    assert_eq!((read.run_at, read.started_at, read.finished_at, read.node), (None, None, None, None));
    assert_eq!((read.output, read.error, read.reason, read.progress), (None, None, None, None));
    assert_eq!((read.batch, read.correlation_id, read.ordering_key, read.replayed), (None, None, None, None));
    assert!(read.tags.is_empty() && read.spec.is_default() && !read.cancel_requested);
}

/// SUB-4: a call with more jobs than a chunk holds stores all of them and answers in the order of the input.
pub(super) async fn many_jobs_are_stored_by_one_call_in_input_order(rig: Rig) {
    let batch = BatchId(rig.job().id());
    let jobs: Vec<Job> = (0..500)
        .map(|n| rig.job().batch(batch).with(|job| job.payload = payload(&n.to_string())))
        .map(|job| if job.id().sequence() % 7 == 0 { job.tenant(B) } else { job })
        .collect();
    let made: Vec<JobId> = jobs.iter().map(Job::id).collect();
    assert_eq!(submitted_ids(&rig.submit_all(jobs).await), made);
    let mut claimed = Vec::new();
    while claimed.len() < made.len() {
        let more = rig.claim(200).await;
        assert!(!more.is_empty(), "only {} of {} jobs can be claimed", claimed.len(), made.len());
        claimed.extend(more);
    }
    assert_eq!(sorted(ids(&claimed)), made);
    for job in &claimed {
        let n = made.iter().position(|id| *id == job.id).expect("known");
        assert_eq!((job.payload.as_str(), job.batch), (n.to_string().as_str(), Some(batch)));
    }
}

/// SUB-4, OPS-1: no jobs in, no answers out, and no error.
pub(super) async fn an_empty_submit_or_read_answers_with_nothing(rig: Rig) {
    assert!(rig.submit_all(Vec::new()).await.is_empty());
    assert!(rig.store().get(EVERYONE, &[]).await.expect("get").is_empty());
    assert!(rig.store().get(EVERYONE, &[rig.job().id()]).await.expect("get").is_empty());
    assert!(rig.list(JobFilter::all()).await.is_empty());
    assert!(rig.history(rig.job().id()).await.is_empty());
    assert_eq!(rig.store().input(EVERYONE, rig.job().id()).await.expect("input"), None);
    assert!(rig.store().whereabouts(EVERYONE, rig.job().id()).await.expect("whereabouts").is_none());
    assert!(rig.claim(10).await.is_empty());
    assert!(rig.store().finish(rig.node, Vec::new()).await.expect("finish").is_empty());
    assert!(rig.store().note(rig.node, Vec::new()).await.expect("progress").is_empty());
    assert_eq!((rig.promote().await, rig.open_gates().await, rig.expire().await, rig.clean().await), (0, 0, 0, 0));
}

/// SUB-2, SUB-12: stores carry JSON as text. Numbers beyond doubles, order of keys, spaces and any script survive.
pub(super) async fn input_and_output_come_back_byte_for_byte(rig: Rig) {
    let texts = [
        r#"{"big":123456789012345678901234567890,"z":1,"a":2,"a":3}"#,
        "[ 1.0 , 1e2,\n\t-0.0, 0.1000 ]",
        r#""żółć 漢字 🚀 \u00e9 \\ \" \/ \ud83d\ude80""#,
        "\"\u{202e}\u{fffd}\u{feff}\"",
        r#""it's $1 -- ; 'quoted' %s {}""#,
        "null",
        "\"\"",
        "[]",
        &format!("\"{}\"", "long ".repeat(60_000)),
    ];
    for text in texts {
        let claimed = rig.running(rig.job().with(|job| job.payload = payload(text))).await;
        assert_eq!(claimed.payload.as_str(), text);
        let input = rig.store().input(EVERYONE, claimed.id).await.expect("input").expect("there");
        assert_eq!(input.as_str(), text);
        assert!(rig.save_checkpoint(rig.node, fence(&claimed), payload(text)).await);
        rig.end(&claimed, Transition::Release).await;
        let again = rig.claim_one().await;
        assert_eq!(again.checkpoint.as_ref().map(|data| data.as_str()), Some(text));
        rig.end(&again, Transition::Succeed { output: Some(payload(text)), keep: HOUR }).await;
        assert_eq!(rig.record(again.id).await.output.expect("kept").as_str(), text);
    }
}

/// SUB-2: names and texts are data, whatever they look like to SQL, to JSON or to an array literal.
pub(super) async fn awkward_texts_are_data(rig: Rig) {
    let texts = ["a'b\"c", "{d,e}", "x\\y", "50%_*", "ключ 🔑", "a:b::c", " ", "; DROP TABLE jobs; --", "$1 ?1 :a"];
    for text in texts {
        let job = rig.job().handler(text).queue(text).key(text).ordered(text).tag(text).tag("plain").with(|job| {
            job.correlation_id = Some(text.into());
            job.spec.headers.insert(text.into(), text.into());
        });
        let id = rig.submit(job).await;
        assert_eq!(rig.try_submit(rig.job().handler(text).key(text)).await.id, id);
        let waiter = rig.submit(rig.job().ordered(text)).await;
        assert_eq!(rig.record(waiter).await.reason, Some(format!("key:{text}")));
        assert_eq!(rig.list(JobFilter::all().handler(text).tag(text)).await, [id]);
        let target = PauseTarget::Handler(text.into());
        rig.store().pause(&target, text, text).await.expect("pause");
        let claimed = rig.claim_from(rig.node, &[text], 5).await.remove(0);
        assert_eq!((claimed.id, claimed.handler.as_str(), claimed.queue.as_str()), (id, text, text));
        assert_eq!(sorted_text(&claimed.tags), sorted_text(&[text.to_owned(), "plain".to_owned()]));
        rig.end(&claimed, Transition::Park { gate: Gate::Pause(target.clone()) }).await;
        assert!(rig.store().pauses().await.expect("pauses").iter().any(|p| p.target == target && p.reason == text));
        rig.store().resume(&target, text).await.expect("resume");
        rig.open_gates().await;
        let claimed = rig.claim_from(rig.node, &[text], 5).await.remove(0);
        let error = JobError::terminal(text, text);
        rig.end(&claimed, Transition::DeadLetter { failed: 1, reason: text.into(), error: error.clone(), keep: None })
            .await;
        let record = rig.record(id).await;
        assert_eq!((record.reason.as_deref(), record.error), (Some(text), Some(error)));
        rig.store().cancel(EVERYONE, waiter, text, text).await.expect("cancel");
        assert_eq!(rig.record(waiter).await.reason.as_deref(), Some(text));
        let canceled = rig.audit(EVERYONE, "JOB_CANCELED").await;
        assert_eq!((canceled[0].actor.as_str(), canceled[0].detail.as_deref()), (text, Some(text)));
    }
}

/// SUB-6: the second submit is told of the first job; its own input goes nowhere.
pub(super) async fn a_duplicate_key_answers_with_the_existing_job_and_stores_nothing(rig: Rig) {
    let first = rig.submit(rig.job().key("k").with(|job| job.payload = payload("1"))).await;
    let second = rig.job().key("k").priority(Priority::HIGH).tag("other").with(|job| job.payload = payload("2"));
    let second_id = second.id();
    assert_eq!(rig.try_submit(second).await, Submitted { id: first, duplicate: true });
    assert!(!rig.exists(second_id).await);
    assert_eq!(rig.list(JobFilter::all()).await, [first]);
    let kept = rig.record(first).await;
    assert_eq!((kept.priority, kept.tags.len()), (Priority::NORMAL, 0));
    assert_eq!(rig.claim_one().await.payload.as_str(), "1");
    assert!(rig.claim(5).await.is_empty(), "one job, claimed once");
}

/// SUB-6: running, succeeded, canceled and dead jobs still hold their key.
pub(super) async fn a_key_stays_taken_when_its_job_has_ended(rig: Rig) {
    let canceled = Transition::Cancel { reason: "discarded".into(), keep: HOUR };
    for (key, transition) in [("done", succeed()), ("canceled", canceled), ("dead", dead("validation"))] {
        let claimed = rig.running(rig.job().key(key)).await;
        let taken = Submitted { id: claimed.id, duplicate: true };
        assert_eq!(rig.try_submit(rig.job().key(key)).await, taken, "while it runs");
        rig.end(&claimed, transition).await;
        assert_eq!(rig.try_submit(rig.job().key(key)).await, taken, "after it has ended: {key}");
    }
    let waiting = rig.submit(rig.job().key("waiting").after(HOUR)).await;
    assert_eq!(rig.cancel(waiting).await, CancelReply::Canceled);
    assert_eq!(rig.try_submit(rig.job().key("waiting")).await, Submitted { id: waiting, duplicate: true });
}

/// SUB-6, SEC-1: a key means nothing outside its tenant and handler.
pub(super) async fn the_same_key_of_another_tenant_or_handler_is_another_key(rig: Rig) {
    let jobs = vec![
        rig.job().key("k"),
        rig.job().key("k").tenant(B),
        rig.job().key("k").handler("mail.send"),
        rig.job().key("K"),
        rig.job().key("k "),
    ];
    assert!(rig.submit_all(jobs).await.iter().all(|s| !s.duplicate));
    let again = rig.submit_all(vec![rig.job().key("k").tenant(B), rig.job().key("k").handler("mail.send")]).await;
    assert!(again.iter().all(|s| s.duplicate));
    assert_ne!(again[0].id, again[1].id);
}

/// SUB-6, SUB-4: the second of two items with one key is a duplicate of the first; the others are stored.
pub(super) async fn a_key_twice_in_one_submit_is_one_job(rig: Rig) {
    let before = rig.submit(rig.job().key("old")).await;
    let jobs = vec![
        rig.job(),
        rig.job().key("k"),
        rig.job().key("old"),
        rig.job().key("k"),
        rig.job().unique("u", UniqueWithin::Unfinished),
        rig.job().unique("u", UniqueWithin::Unfinished),
        rig.job(),
    ];
    let made: Vec<JobId> = jobs.iter().map(Job::id).collect();
    let answers = rig.submit_all(jobs).await;
    let expected = [made[0], made[1], before, made[1], made[4], made[4], made[6]];
    assert_eq!(submitted_ids(&answers), expected);
    let duplicates: Vec<bool> = answers.iter().map(|s| s.duplicate).collect();
    assert_eq!(duplicates, [false, false, true, true, false, true, false]);
    assert_eq!(rig.list(JobFilter::all()).await.len(), 5);
    assert_eq!(rig.claim(10).await.len(), 5);
}

/// SUB-6: purging is the way to use a key again before its time.
pub(super) async fn a_purged_job_frees_its_key(rig: Rig) {
    let first = rig.ended(rig.job().key("k"), succeed()).await;
    assert!(rig.try_submit(rig.job().key("k")).await.duplicate);
    assert!(rig.store().purge(EVERYONE, first, "operator").await.expect("purge"));
    assert!(!rig.exists(first).await);
    let second = rig.submit(rig.job().key("k")).await;
    assert_ne!(first, second);
    assert_eq!(rig.try_submit(rig.job().key("k")).await, Submitted { id: second, duplicate: true });
}

/// SUB-6, OPS-7: a key is free when its job's time is over, whether or not it has been cleaned away.
pub(super) async fn a_job_past_its_retention_frees_its_key(rig: Rig) {
    for clean in [false, true] {
        let first = rig.ended(rig.job().key("k").handler("short"), succeed_briefly()).await;
        rig.advance(PAST_SOON).await;
        assert!(!rig.exists(first).await);
        if clean {
            rig.clean().await;
        }
        let second = rig.submit(rig.job().key("k").handler("short")).await;
        assert_eq!(rig.try_submit(rig.job().key("k").handler("short")).await.id, second);
        rig.clean().await;
        assert!(rig.exists(second).await, "cleaning the old job leaves the new one with its key alone");
        assert_eq!(rig.try_submit(rig.job().key("k").handler("short")).await.id, second);
        let claimed = rig.claim_one().await;
        rig.end(&claimed, succeed_briefly()).await;
        rig.advance(PAST_SOON).await;
    }
}

/// SUB-6: under any race exactly one job is stored, and everyone is told its id.
pub(super) async fn of_many_submits_at_once_with_one_key_one_is_stored(rig: Rig) {
    for key in ["a", "b", "c"] {
        let answers = at_once(CALLERS, |_| {
            let rig = rig.clone();
            async move { rig.try_submit(rig.job().key(key)).await }
        })
        .await;
        assert_eq!(answers.iter().filter(|s| !s.duplicate).count(), 1, "one of {CALLERS} is stored");
        let told: HashSet<JobId> = answers.iter().map(|s| s.id).collect();
        assert_eq!(told.len(), 1, "everyone is told the same id");
    }
    assert_eq!(rig.list(JobFilter::all()).await.len(), 3);
    assert_eq!(rig.claim(10).await.len(), 3);
}

/// SUB-6: submits race with the completion and the purge of the job that holds the key. A new job is stored only after
/// a purge, and a duplicate is always told of a job that was stored.
pub(super) async fn a_key_never_has_two_jobs_while_its_jobs_end_and_are_purged(rig: Rig) {
    const ROUNDS: usize = 10;
    const SUBMITTERS: usize = 8;
    let over = Arc::new(AtomicBool::new(false));
    let mut submitters = JoinSet::new();
    for _ in 0..SUBMITTERS {
        let (rig, over) = (rig.clone(), Arc::clone(&over));
        submitters.spawn(async move {
            let mut answers = Vec::new();
            while !over.load(Ordering::SeqCst) {
                answers.push(rig.try_submit(rig.job().key("k")).await);
                tokio::task::yield_now().await;
            }
            answers
        });
    }
    let mut purged = 0;
    while purged < ROUNDS {
        let claimed = rig.claim(2).await;
        assert!(claimed.len() <= 1, "two jobs of one key at once");
        let Some(job) = claimed.first() else {
            tokio::task::yield_now().await;
            continue;
        };
        assert_eq!(rig.finish(job, succeed()).await, Finished::Accepted(Status::Succeeded));
        assert!(rig.store().purge(EVERYONE, job.id, "operator").await.expect("purge"));
        purged += 1;
    }
    over.store(true, Ordering::SeqCst);
    let answers: Vec<Submitted> = submitters.join_all().await.into_iter().flatten().collect();
    let stored: HashSet<JobId> = answers.iter().filter(|s| !s.duplicate).map(|s| s.id).collect();
    assert!(answers.iter().all(|s| stored.contains(&s.id)), "a duplicate names a job that was stored");
    assert!((purged..=purged + 1).contains(&stored.len()), "{} stored, {purged} purged", stored.len());
    assert_eq!(rig.list(JobFilter::all()).await.len(), stored.len() - purged);
}

/// SUB-7: while it waits, runs or waits for a retry there is no second one; after that there may be.
pub(super) async fn a_unique_job_blocks_its_like_until_it_has_ended(rig: Rig) {
    let unique = || rig.job().unique("h::t::{}", UniqueWithin::Unfinished);
    let first = rig.submit(unique()).await;
    let taken = Submitted { id: first, duplicate: true };
    assert_eq!(rig.try_submit(unique()).await, taken);
    let claimed = rig.claim_one().await;
    assert_eq!(rig.try_submit(unique()).await, taken, "while it runs");
    rig.end(&claimed, retry(1, HOUR)).await;
    assert_eq!(rig.try_submit(unique()).await, taken, "while it waits for its retry");
    assert_eq!(rig.cancel(first).await, CancelReply::Canceled);
    let second = rig.submit(unique()).await;
    assert_eq!(rig.try_submit(unique()).await.id, second);
    let claimed = rig.claim_one().await;
    rig.end(&claimed, succeed()).await;
    let third = rig.submit(unique()).await;
    let claimed = rig.claim_one().await;
    rig.end(&claimed, dead("validation")).await;
    assert!(!rig.try_submit(unique()).await.duplicate, "a dead letter {third} has ended");
}

/// SUB-7: a window counts from the submit and does not care how the job fares.
pub(super) async fn a_unique_window_ends_by_time_whatever_becomes_of_the_job(rig: Rig) {
    let long = || rig.job().unique("long", UniqueWithin::Window(HOUR));
    let first = rig.ended(long(), succeed()).await;
    assert_eq!(rig.try_submit(long()).await, Submitted { id: first, duplicate: true }, "ended, still in its window");

    let brief = || rig.job().unique("brief", UniqueWithin::Window(SOON));
    let first = rig.submit(brief()).await;
    rig.advance(PAST_SOON).await;
    let second = rig.submit(brief()).await;
    assert_eq!(rig.status(first).await, Status::Pending, "the first is not replaced");
    assert_ne!(first, second);
}

/// SUB-7, SEC-1: tenants do not block one another.
pub(super) async fn a_unique_key_belongs_to_one_tenant(rig: Rig) {
    let unique = || rig.job().unique("u", UniqueWithin::Unfinished);
    let first = rig.submit(unique()).await;
    let other = rig.submit(unique().tenant(B)).await;
    assert_eq!(rig.try_submit(unique()).await.id, first);
    assert_eq!(rig.try_submit(unique().tenant(B)).await.id, other);
}

/// SUB-8, SEC-1: in another tenant's scope a job is not there, whatever is asked or ordered.
pub(super) async fn another_tenants_scope_sees_and_steers_nothing(rig: Rig) {
    let waiting = rig.submit(rig.job().tag("t").after(HOUR)).await;
    let letter = rig.ended(rig.job(), dead("validation")).await;
    let done = rig.ended(rig.job(), succeed()).await;
    let running = rig.running(rig.job()).await;
    let (store, other) = (rig.store(), Scope::Tenant(B));
    for id in [waiting, letter, done, running.id] {
        assert_eq!(rig.find(Scope::Tenant(A), id).await.map(|record| record.id), Some(id));
        assert_eq!(rig.find(other, id).await, None);
        assert_eq!(store.input(other, id).await.expect("input"), None);
        assert!(store.history(other, id).await.expect("history").is_empty());
        assert!(store.whereabouts(other, id).await.expect("whereabouts").is_none());
        assert_eq!(store.cancel(other, id, "b", "mine").await.expect("cancel"), CancelReply::NotFound);
        assert_eq!(store.replay(other, id, "b").await.expect("replay"), ReplayReply::NotFound);
        assert_eq!(rig.replay_as(other, id, HOUR).await, ReplayedAs::NotFound);
        assert!(!store.purge(other, id, "b").await.expect("purge"));
    }
    let all = Page::first(Page::MAX);
    assert!(store.find(other, &JobFilter::all(), all, None).await.expect("list").jobs.is_empty());
    assert_eq!(store.find(Scope::Tenant(A), &JobFilter::all(), all, None).await.expect("list").jobs.len(), 4);
    let counts = store.counts(other).await.expect("counts");
    assert!(Status::ALL.iter().all(|status| counts.get(*status) == 0));
    assert_eq!(store.counts(Scope::Tenant(A)).await.expect("counts").get(Status::DeadLettered), 1);
    assert_eq!(rig.status(waiting).await, Status::Scheduled);
    assert_eq!(rig.status(letter).await, Status::DeadLettered);
    assert_eq!(rig.status(done).await, Status::Succeeded);
    assert_eq!(rig.end(&running, succeed()).await, Status::Succeeded, "no cancel was requested");
    assert!(rig.audit(Scope::Tenant(B), "JOB_CANCELED").await.is_empty());
}

/// SUB-4, RUN-3, RUN-4: a node may start what it submits at once; such a job runs, is never claimed, ends under its
/// lease and is taken over when the node is lost.
pub(super) async fn a_job_born_leased_runs_at_once_and_is_fenced_like_any_other(rig: Rig) {
    let lease = rig.new_lease();
    let jobs = rig.jobs(3);
    let made: Vec<JobId> = jobs.iter().map(Job::id).collect();
    let born = rig.submit_leased(jobs, rig.node, lease).await;
    assert_eq!(submitted_ids(&born), made);
    let other = rig.another_node().await;
    for id in &made {
        let record = rig.record(*id).await;
        assert_eq!((record.status, record.attempt, record.node), (Status::Running, 1, Some(rig.node)));
    }
    assert!(rig.claim_as(other, 10).await.is_empty(), "no one else gets them");

    let end = |id: JobId, lease| windlass_core::store::Finish {
        fence: windlass_core::store::Fence { job: id, lease },
        attempt: 1,
        ran: RAN,
        transition: succeed(),
        follow_up: None,
        cost: None,
        audit: false,
        batch: None,
        resumed: true,
    };
    assert_eq!(rig.finish_as(rig.node, end(made[0], rig.new_lease())).await, Finished::Fenced);
    assert_eq!(rig.finish_as(other, end(made[0], lease)).await, Finished::Fenced);
    assert_eq!(rig.finish_as(rig.node, end(made[0], lease)).await, Finished::Accepted(Status::Succeeded));
    assert_eq!(rig.finish_as(rig.node, end(made[0], lease)).await, Finished::Fenced, "once");

    let back = Transition::Retry { failed: 1, delay: SOON, error: JobError::retryable("io") };
    let finish = windlass_core::store::Finish { transition: back, ..end(made[1], lease) };
    assert_eq!(rig.finish_as(rig.node, finish).await, Finished::Accepted(Status::Retrying));

    let recovered = rig.lose_node(&[other]).await;
    assert_eq!(recovered, [made[2]]);
    assert_eq!(rig.finish_as(rig.node, end(made[2], lease)).await, Finished::Fenced);
    assert_eq!(rig.promote().await, 1);
    let again = rig.claim_as(other, 10).await;
    assert_eq!((ids(&again), again[0].failed), (vec![made[1]], 1));
}

/// SUB-4, SUB-6, ORD-4: keyed, ordered and expiring jobs take the long way and wait to be claimed; scheduled ones wait.
pub(super) async fn only_plain_jobs_that_are_due_are_born_leased(rig: Rig) {
    let later = rig.now().await + HOUR;
    let jobs = vec![
        rig.job(),
        rig.job().key("k"),
        rig.job().unique("u", UniqueWithin::Unfinished),
        rig.job().ordered("o"),
        rig.job().ordered("o"),
        rig.job().expires_at(later),
        rig.job().after(HOUR),
        rig.job().with(|job| job.start = Start::At(later)),
    ];
    let born = rig.submit_leased(jobs, rig.node, rig.new_lease()).await;
    use Status::*;
    let expected = [Running, Pending, Pending, Pending, Blocked, Pending, Scheduled, Scheduled];
    for (submitted, status) in born.iter().zip(expected) {
        assert_eq!((rig.status(submitted.id).await, submitted.duplicate), (status, false));
    }
    assert_eq!(sorted(ids(&rig.claim(10).await)), [born[1].id, born[2].id, born[3].id, born[5].id]);
}

/// RUN-5: a node that does not know yet that it was declared dead submits with a lease. The store refuses the call, or
/// another node can take the job.
pub(super) async fn a_job_born_to_a_dead_node_is_not_lost(rig: Rig) {
    let other = rig.another_node().await;
    rig.lose_node(&[other]).await;
    let job = rig.job();
    let id = job.id();
    let submit = Submit { jobs: vec![job.0], lease: Some((rig.node, rig.new_lease())) };
    if rig.store().submit(submit).await.is_err() {
        assert!(!rig.exists(id).await, "a refused submit stores nothing");
        return;
    }
    rig.advance(PAST_LEASE).await;
    rig.store().heartbeat(other, 0).await.expect("heartbeat");
    rig.recover(LEASE).await;
    let suspects = windlass_core::store::suspect_queue(QUEUE, 1);
    assert_eq!(ids(&rig.claim_from(other, &[QUEUE, &suspects], 5).await), [id]);
}

/// SUB-12: whoever waits for a job finds what it returned, or why it returned nothing.
pub(super) async fn the_outcome_of_a_job_can_be_read(rig: Rig) {
    let before = rig.now().await;
    let done = rig.ended(rig.job(), Transition::Succeed { output: Some(payload(r#"{"pages":3}"#)), keep: HOUR }).await;
    let record = rig.record(done).await;
    assert_eq!((record.status, record.attempt, record.node), (Status::Succeeded, 1, Some(rig.node)));
    assert_eq!(record.output.expect("kept").as_str(), r#"{"pages":3}"#);
    assert_eq!((record.error, record.reason), (None, None));
    let finished = record.finished_at.expect("it has ended");
    assert!(finished >= before && record.started_at.expect("it has started") <= finished);

    let letter = rig.ended(rig.job(), dead("validation")).await;
    let record = rig.record(letter).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::DeadLettered, Some("validation")));
    assert_eq!(record.error, Some(JobError::terminal("validation", "it is over")));
    assert_eq!((record.output, record.attempt), (None, 1));
}

fn sorted_text(tags: &[String]) -> Vec<String> {
    let mut tags = tags.to_vec();
    tags.sort();
    tags
}

/// SUB-1, SUB-6: a submit whose outcome was unknown can be repeated: the same jobs are there once, and the call says so.
/// An id that belongs to another job is refused, and nothing of the call is stored.
pub(super) async fn a_repeated_submit_of_the_same_id_is_a_duplicate(rig: Rig) {
    let plain = rig.job().0;
    let keyed = rig.job().with(|job| job.ordering_key = Some("k".into())).0;
    let later = rig.job().with(|job| job.start = Start::After(HOUR)).0;
    let new = rig.job().0;
    let submit = async |jobs: &[&NewJob]| {
        let jobs = jobs.iter().map(|job| (*job).clone()).collect();
        rig.store().submit(Submit { jobs, lease: None }).await
    };
    let answer = |job: &NewJob, duplicate| Submitted { id: job.id, duplicate };
    submit(&[&plain, &keyed, &later]).await.expect("stored");
    let again = submit(&[&new, &later, &plain, &keyed, &new]).await.expect("answered");
    let expected =
        [answer(&new, false), answer(&later, true), answer(&plain, true), answer(&keyed, true), answer(&new, true)];
    assert_eq!(again, expected);
    assert_eq!(rig.list(JobFilter::all()).await.len(), 4);
    let counts = rig.store().counts(EVERYONE).await.expect("counts");
    assert_eq!((counts.get(Status::Pending), counts.get(Status::Scheduled), counts.unfinished()), (3, 1, 4));
    assert_eq!(ids(&rig.claim(10).await).len(), 3, "each can be claimed once");

    let fresh = rig.job().0;
    let other = rig.job().handler("other").with(|job| job.id = plain.id).0;
    assert!(matches!(submit(&[&fresh, &other]).await, Err(Error::Internal(_))));
    assert!(!rig.exists(fresh.id).await, "all or none");
}
