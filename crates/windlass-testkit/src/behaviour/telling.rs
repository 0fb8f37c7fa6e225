//! Behaviours of what jobs tell about themselves: their log lines (BEY-7) and what they cost (OPS-6).

use std::sync::Arc;
use std::time::Duration;

use windlass_core::store::Store;
use windlass_core::*;

use super::*;

/// BEY-7.
pub async fn log_lines_are_kept_with_the_attempts_of_a_job(store: Arc<dyn Store>) {
    let (first, second) = (Door::closed(), Door::closed());
    let talks = |(first, second): (Door, Door), ctx: JobContext, name: String| async move {
        ctx.log(LogLevel::Info, format!("attempt {} for {name}", ctx.attempt()));
        if ctx.attempt() == 1 {
            first.pass().await;
            ctx.log(LogLevel::Error, "it fails");
            return Err(JobError::retryable("no luck"));
        }
        ctx.log(LogLevel::Debug, format!("a line\0 of {}", "ä".repeat(LOG_BYTES)));
        second.pass().await;
        for n in 0..3 * LOG_LINES {
            ctx.log(LogLevel::Trace, format!("step {n}"));
        }
        Ok(())
    };
    let options = HandlerOptions::new().retry(quick_retries(2));
    let jobs = service(&store).function_with("talks", options, (first.clone(), second.clone()), talks);
    let jobs = jobs.start().await.expect("starts");
    let ctx = tenant(1);
    let id = jobs.submit_named(&ctx, "talks", "kanarienvogel", SubmitOptions::new()).await.expect("accepted").id;
    let said = async |after: u64| jobs.logs(&ctx, id, after).await.expect("reads");
    until("the first line while the job runs", || async { said(0).await.len() == 1 }).await;
    let sealed = jobs.get(&ctx, id).await.expect("kept").spec.sealed;
    let kept = store.logs(ctx.scope(), id, 0).await.expect("reads");
    assert_eq!(kept[0].message.contains("kanarienvogel"), !sealed, "what is sealed stays sealed");
    first.open();
    until("the lines of the second attempt", || async { said(0).await.len() == 4 }).await;
    let lines = said(0).await;
    let told: Vec<(u16, LogLevel)> = lines.iter().map(|line| (line.attempt, line.level)).collect();
    assert_eq!(told, [(1, LogLevel::Info), (1, LogLevel::Error), (2, LogLevel::Info), (2, LogLevel::Debug)]);
    assert_eq!(lines[0].message, "attempt 1 for kanarienvogel");
    assert!(lines[3].message.starts_with("a line of ä") && lines[3].message.len() <= LOG_BYTES, "cut, and without NUL");
    assert!(lines.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    second.open();
    jobs.wait(&ctx, id, Duration::from_secs(20)).await.expect("it ends");
    let lines = said(0).await;
    assert!(lines.len() <= LOG_LINES, "the newest only");
    assert_eq!(lines.last().expect("there are lines").message, format!("step {}", 3 * LOG_LINES - 1));
    assert_eq!(jobs.logs(&tenant(2), id, 0).await.expect_err("hidden").code(), "job_not_found");
    jobs.purge(&ctx, id).await.expect("it has ended");
    assert_eq!(jobs.logs(&ctx, id, 0).await.expect_err("gone").code(), "job_not_found");
    jobs.shutdown().await;
}

/// OPS-6.
pub async fn what_jobs_cost_is_recorded_and_added_up(store: Arc<dyn Store>) {
    let render = |_: (), ctx: JobContext, pages: i64| async move {
        ctx.record_cost(Cost::new(2 * pages, 0));
        ctx.record_cost(Cost::new(0, pages));
        match ctx.attempt() {
            1 if pages > 5 => Err(JobError::retryable("out of paper")),
            _ => Ok(()),
        }
    };
    let options = HandlerOptions::new().retry(quick_retries(2));
    let free = |_: (), _: JobContext, (): ()| std::future::ready(Ok::<_, JobError>(()));
    let jobs = service(&store).function_with("render", options, (), render).function("free", (), free);
    let jobs = jobs.start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let since = jobs.now();
    let run = async |ctx: &SecurityContext, pages: i64| {
        let id = jobs.submit_named(ctx, "render", &pages, SubmitOptions::new()).await.expect("accepted").id;
        jobs.wait(ctx, id, SOON).await.expect("it ends");
        id
    };
    let (small, large) = (run(&ctx, 3).await, run(&ctx, 10).await);
    run(&other, 1).await;
    let id = jobs.submit_named(&ctx, "free", &(), SubmitOptions::new()).await.expect("accepted").id;
    jobs.wait(&ctx, id, SOON).await.expect("it ends");

    jobs.record_cost(&ctx, small, Cost::new(-6, 0)).await.expect("it is there");
    let refused = jobs.record_cost(&other, small, Cost::new(1, 0)).await.expect_err("hidden");
    assert_eq!(refused.code(), "job_not_found");
    assert_eq!(jobs.record_cost(&ctx, small, Cost::default()).await.expect_err("nothing").code(), "invalid_input");

    let sum = |rows: Vec<UsageRow>| {
        assert!(rows.iter().all(|row| row.handler == "render"), "who says nothing costs nothing");
        rows.iter().fold((0, 0, 0), |(jobs, cents, units), row| (jobs + row.jobs, cents + row.cents, units + row.units))
    };
    let until = jobs.now() + Duration::from_secs(60);
    // The large one ran twice, and the small one was refunded.
    assert_eq!(sum(jobs.usage_by_day(&ctx, since, until).await.expect("reads")), (2, 40, 23));
    assert_eq!(sum(jobs.usage_by_day(&other, since, until).await.expect("reads")), (1, 2, 1));
    let operator = jobs.operator(OperatorRight::assume());
    assert_eq!(sum(operator.usage_by_day(since, until).await.expect("reads")), (3, 42, 24));
    let wrong = jobs.usage_by_day(&ctx, until, since).await.expect_err("the wrong way round");
    assert_eq!(wrong.code(), "invalid_input");

    let first = jobs.usage_events(&ctx, 0, 2).await.expect("reads");
    let rest = jobs.usage_events(&ctx, first[1].sequence, 100).await.expect("reads");
    let costs: Vec<(JobId, i64)> = first.iter().chain(&rest).map(|event| (event.job, event.cents)).collect();
    assert_eq!(costs, [(small, 6), (large, 20), (large, 20), (small, -6)]);
    assert_eq!(operator.usage_events(0, 100).await.expect("reads").len(), 5);
    jobs.shutdown().await;
}
