//! Real programs, run as jobs (HND-4).
#![cfg(all(feature = "command", unix))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::{
    Error, HandlerOptions, JobError, JobService, MemoryStore, RetryPolicy, SecurityContext, Status, TenantId,
};
use windlass_handlers::Handlers;
use windlass_handlers::command::{self, Command, CommandInput, CommandOutput};

const SOON: Duration = Duration::from_secs(30);

async fn service(timeout: Duration) -> JobService {
    let options = HandlerOptions::new().retry(RetryPolicy::never()).timeout(timeout);
    let handler = Command::allow("echo", "/bin/echo").also("sh", "/bin/sh").also("cat", "/bin/cat");
    let handler = handler.also("gone", "/no/such/program").env("GIVEN", "yes").options(options);
    JobService::builder(Arc::new(MemoryStore::new())).command(handler).start().await.expect("starts")
}

async fn run(input: CommandInput) -> Result<CommandOutput, JobError> {
    let service = service(SOON).await;
    let ended = command::HANDLER.submit(&service, input).await.expect("accepted").wait(SOON).await;
    service.shutdown().await;
    match ended {
        Ok(done) => Ok(done),
        Err(Error::JobFailed { error, .. }) => Err(*error),
        Err(other) => panic!("the job did not end: {other}"),
    }
}

fn sh(script: &str) -> CommandInput {
    CommandInput::new("sh", ["-c", script])
}

/// HND-4: arguments are no shell's, the environment is only what was given, and input is read.
#[tokio::test]
async fn a_program_runs_as_it_is_told() {
    let said = run(CommandInput::new("echo", ["$HOME; id", "`id`"])).await.expect("succeeds");
    assert_eq!(said.stdout, "$HOME; id `id`\n");
    let said = run(sh("echo $GIVEN-$HOME-$WINDLASS_ATTEMPT")).await.expect("succeeds");
    assert_eq!(said.stdout, "yes--1\n");
    let input = CommandInput { stdin: Some("in and out".into()), ..CommandInput::new("cat", Vec::<String>::new()) };
    assert_eq!(run(input).await.expect("succeeds").stdout, "in and out");
}

/// HND-4: failures have the code of the program, and the end of what it said.
#[tokio::test]
async fn a_failure_says_why() {
    let error = run(sh("echo out; echo err >&2; exit 65")).await.expect_err("fails");
    assert_eq!((error.code.as_str(), error.is_retryable()), ("exit_65", false));
    let details = error.details.expect("details");
    assert_eq!((details["stdout"].as_str(), details["stderr"].as_str()), (Some("out\n"), Some("err\n")));
    let error = run(CommandInput::new("gone", Vec::<String>::new())).await.expect_err("fails");
    assert_eq!((error.code.as_str(), error.is_retryable()), ("not_started", false));
}

/// HND-4: a program that prints without end is neither waited for nor kept whole, and its lines are in the job's log.
#[tokio::test]
async fn output_is_bounded() {
    let service = service(SOON).await;
    let script = "i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done";
    let job = command::HANDLER.submit(&service, sh(script)).await.expect("accepted");
    let done = job.wait(SOON).await.expect("succeeds");
    assert!(done.stdout.len() <= 4096 && done.stdout.ends_with("line 19999 of many\n"));
    let ctx = SecurityContext::new(TenantId::ROOT);
    let deadline = Instant::now() + SOON;
    loop {
        let lines = service.logs(&ctx, job.id(), 0).await.expect("reads");
        if lines.iter().any(|line| line.message.contains("the rest is not logged")) {
            break;
        }
        assert!(Instant::now() < deadline, "{} lines", lines.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    service.shutdown().await;
}

/// Whether a process is there and no zombie.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A program with a child of its own, both deaf to being asked to end. Writes the child's id into a file.
fn stubborn(file: &std::path::Path) -> CommandInput {
    sh(&format!("trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo $! > {}; wait", file.display()))
}

/// HND-4: a cancel ends the whole group, also what does not want to.
#[tokio::test]
async fn a_cancel_kills_the_group() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("pid");
    let service = service(SOON).await;
    let job = command::HANDLER.submit(&service, stubborn(&file)).await.expect("accepted");
    until("the start", async || std::fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n'))).await;
    let pid = std::fs::read_to_string(&file).expect("reads");
    assert!(is_alive(&pid));
    job.cancel("enough").await.expect("canceled");
    until("the end", async || job.status().await.expect("a status") == Status::Canceled).await;
    until("the end of the child", async || !is_alive(&pid)).await;
    service.shutdown().await;
}

/// HND-4: a timeout ends the whole group.
#[tokio::test]
async fn a_timeout_kills_the_group() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("pid");
    let service = service(Duration::from_millis(500)).await;
    let job = command::HANDLER.submit(&service, stubborn(&file)).await.expect("accepted");
    assert!(job.wait(SOON).await.is_err());
    let pid = std::fs::read_to_string(&file).expect("it had started");
    until("the end of the child", async || !is_alive(&pid)).await;
    service.shutdown().await;
}

/// HND-4: what a program leaves behind ends with it.
#[tokio::test]
async fn nothing_stays_behind() {
    let said = run(sh("sleep 300 & echo $!")).await.expect("succeeds");
    until("the end of what was left", async || !is_alive(&said.stdout)).await;
}
