//! Behaviours of changing waiting jobs and doing jobs again: BEY-5.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::{AuditFilter, Store};
use windlass_core::*;

use super::*;

/// Returns what it was given.
async fn echo(_: (), _: JobContext, input: String) -> Result<String, JobError> {
    Ok(input)
}

fn text(value: &str) -> Payload {
    Payload::encode("input", value, 1 << 20).expect("a string is JSON")
}

/// BEY-5.
pub async fn a_waiting_job_is_edited_and_runs_as_edited(store: Arc<dyn Store>) {
    let jobs = service(&store).function("echo", (), echo).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let submit =
        async |input: &str| jobs.submit_named(&ctx, "echo", input, SubmitOptions::new()).await.expect("accepted").id;
    let (first, second) = (submit("old").await, submit("other").await);
    let edit = Edit::new().input(text("new")).priority(Priority::HIGH);
    jobs.edit(&ctx, first, edit.clone()).await.expect("it waits");
    assert_eq!(jobs.input(&ctx, first).await.expect("kept").decode::<String>().expect("text"), "new");
    let kept = store.input(ctx.scope(), first).await.expect("reads").expect("kept");
    let sealed = jobs.get(&ctx, first).await.expect("kept").spec.sealed;
    assert_eq!(kept.as_str().contains("new"), !sealed, "what is sealed stays sealed");

    let wrong = jobs.edit(&ctx, first, Edit::new().input(Payload::from_store("7"))).await.expect_err("not a string");
    assert!(matches!(wrong, Error::InvalidInput(bad) if bad.field == "input"));
    let late = Start::After(Duration::from_secs(60 * 60 * 24 * 365 * 11));
    assert_eq!(jobs.reschedule(&ctx, first, late).await.expect_err("too far").code(), "invalid_input");
    assert_eq!(jobs.edit(&ctx, first, Edit::new()).await.expect_err("nothing").code(), "invalid_input");
    assert_eq!(jobs.edit(&tenant(2), first, edit.clone()).await.expect_err("hidden").code(), "job_not_found");

    jobs.reprioritise(&ctx, second, Priority::CRITICAL).await.expect("it waits");
    assert_eq!(tick(&jobs, 1).await.expect("runs"), 1);
    assert_eq!(jobs.status(&ctx, second).await.expect("kept"), Status::Succeeded, "the most urgent first");
    jobs.reschedule(&ctx, first, Start::After(Duration::from_secs(3_600))).await.expect("it waits");
    assert_eq!(tick(&jobs, 1).await.expect("runs"), 0);
    jobs.run_now(&ctx, first).await.expect("it waits");
    assert_eq!(tick(&jobs, 1).await.expect("runs"), 1);
    let output: Option<String> = jobs.result(&ctx, first).await.expect("it succeeded");
    assert_eq!(output.as_deref(), Some("new"));
    assert_eq!(jobs.run_now(&ctx, first).await.expect_err("it is over").code(), "conflict");

    let history = jobs.history(&ctx, first).await.expect("kept");
    let notes: Vec<&str> = history.iter().filter_map(|entry| entry.note.as_deref()).collect();
    let expected = ["input, priority 10", "start in 3600000 ms", "start now"];
    assert_eq!(notes, expected.map(|what| format!("edited by user-1: {what}")));
    let mut filter = AuditFilter::default();
    filter.action = Some("JOB_EDITED".into());
    assert_eq!(jobs.audit_log(&ctx, &filter).await.expect("reads").len(), 4);
    jobs.shutdown().await;
}

/// BEY-5.
pub async fn a_job_that_is_run_now_starts_at_once(store: Arc<dyn Store>) {
    let jobs = service(&store).function("echo", (), echo);
    let fails_once = |_: (), ctx: JobContext, (): ()| async move {
        match ctx.attempt() {
            1 => Err(JobError::retryable("not yet").retry_after(Duration::from_secs(3_600))),
            attempt => Ok(attempt),
        }
    };
    let jobs = jobs.function("fails_once", (), fails_once).start().await.expect("starts");
    let ctx = tenant(1);
    let later = SubmitOptions::new().delay(Duration::from_secs(3_600));
    let scheduled = jobs.submit_named(&ctx, "echo", "soon", later).await.expect("accepted").id;
    jobs.run_now(&ctx, scheduled).await.expect("it waits");
    assert_eq!(jobs.wait_for::<String>(&ctx, scheduled, SOON).await.expect("it runs"), "soon");
    let retrying = jobs.submit_named(&ctx, "fails_once", &(), SubmitOptions::new()).await.expect("accepted").id;
    until_status(&jobs, &ctx, retrying, Status::Retrying).await;
    jobs.run_now(&ctx, retrying).await.expect("it waits");
    assert_eq!(jobs.wait_for::<u16>(&ctx, retrying, SOON).await.expect("it runs"), 2, "the failure stays counted");

    let ordered = || SubmitOptions::new().ordering_key("k").delay(Duration::from_secs(3_600));
    let first = jobs.submit_named(&ctx, "echo", "a", ordered()).await.expect("accepted").id;
    let second = jobs.submit_named(&ctx, "echo", "b", ordered()).await.expect("accepted").id;
    let refused = jobs.run_now(&ctx, second).await.expect_err("it is behind another");
    assert!(matches!(&refused, Error::Conflict { message, .. } if message.contains("ordering key `k`")), "{refused}");
    jobs.run_now(&ctx, first).await.expect("it waits");
    until_status(&jobs, &ctx, second, Status::Scheduled).await;
    jobs.run_now(&ctx, second).await.expect("it is the next");
    assert_eq!(jobs.wait_for::<String>(&ctx, second, SOON).await.expect("it runs"), "b");
    jobs.shutdown().await;
}

/// BEY-5: one call for what people mean by trying again, whichever way the job failed.
pub async fn a_retry_replays_dead_letters_and_runs_retrying_jobs_now(store: Arc<dyn Store>) {
    let fails_once = |ran: Counter, _, later: bool| async move {
        ran.add();
        match (ran.get(), later) {
            (1, true) => Err(JobError::retryable("not yet").retry_after(Duration::from_secs(3_600))),
            (1, false) => Err(JobError::terminal("rejected", "no")),
            _ => Ok(()),
        }
    };
    let jobs = service(&store).function("late", Counter::default(), fails_once);
    let jobs = jobs.function("dead", Counter::default(), fails_once).start().await.expect("starts");
    let ctx = tenant(1);
    for (handler, later, status) in [("late", true, Status::Retrying), ("dead", false, Status::DeadLettered)] {
        let job = jobs.submit_named(&ctx, handler, &later, SubmitOptions::new()).await.expect("accepted").id;
        until_status(&jobs, &ctx, job, status).await;
        assert_eq!(jobs.retry(&tenant(2), job).await.expect_err("another tenant's").code(), "job_not_found");
        jobs.retry(&ctx, job).await.expect("it has failed");
        jobs.wait_for::<()>(&ctx, job, SOON).await.expect("it runs again at once");
        let refused = jobs.retry(&ctx, job).await.expect_err("it has succeeded");
        assert!(matches!(&refused, Error::Conflict { message, .. } if message.contains("succeeded")), "{refused}");
    }
    jobs.shutdown().await;
}

/// BEY-5.
pub async fn a_job_is_cloned_whatever_its_status(store: Arc<dyn Store>) {
    let jobs = service(&store).function("echo", (), echo).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let options = SubmitOptions::new().idempotency_key("only-one").tag("t").priority(Priority::HIGH);
    let first = jobs.submit_named(&ctx, "echo", "one", options).await.expect("accepted").id;
    let waiting = jobs.clone_job(&ctx, first, None).await.expect("a waiting job can be cloned");
    assert_eq!(tick(&jobs, 10).await.expect("runs"), 2);
    let before = jobs.get(&ctx, first).await.expect("kept");
    let again = jobs.clone_job(&ctx, first, None).await.expect("an ended job can be cloned");
    let other = jobs.clone_job(&ctx, first, Some(text("two"))).await.expect("with another input");
    assert_eq!(tick(&jobs, 10).await.expect("runs"), 2);
    for (id, output) in [(first, "one"), (waiting, "one"), (again, "one"), (other, "two")] {
        assert_eq!(jobs.result::<String>(&ctx, id).await.expect("it succeeded").as_deref(), Some(output));
    }
    for id in [waiting, again, other] {
        let record = jobs.get(&ctx, id).await.expect("kept");
        assert_eq!((record.spec.parent, record.priority), (Some(first), Priority::HIGH));
        assert_eq!((record.tags, record.spec.idempotency_key), (vec!["t".to_owned()], None));
    }
    assert_eq!(jobs.get(&ctx, first).await.expect("kept"), before, "the first stays as it is");
    let wrong = jobs.clone_job(&ctx, first, Some(Payload::null())).await.expect_err("not a string");
    assert_eq!(wrong.code(), "invalid_input");
    assert_eq!(jobs.clone_job(&tenant(2), first, None).await.expect_err("hidden").code(), "job_not_found");
    jobs.shutdown().await;
}
