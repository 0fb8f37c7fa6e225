//! Runs a worker process until the system tells it to stop. Never decides what happens to running jobs: `shutdown` does.

use crate::JobService;

/// Waits until the process is told to stop, by SIGTERM or SIGINT (Ctrl-C), and then shuts down: the service takes no more
/// jobs, gives running ones their grace, and hands back what has not ended. Fails only if the system accepts no handler for
/// the signals; then nothing has stopped.
///
/// ```no_run
/// # async fn example(jobs: windlass::JobService) -> std::io::Result<()> {
/// windlass::run_until_signal(&jobs).await
/// # }
/// ```
pub async fn run_until_signal(jobs: &JobService) -> std::io::Result<()> {
    signal().await?;
    jobs.shutdown().await;
    Ok(())
}

#[cfg(unix)]
async fn signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn signal() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
