//! Behaviours of what jobs tell about themselves: their log lines (BEY-7).

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
