//! A request that a manager answers by a link, or that expires after a week. The waiting job is the deadline: it is stored
//! with the decision `expired` and starts in a week; the answer gives it another input and starts it now, in one step, so
//! that answer and deadline cannot both win.
//!
//! Windlass has no flows yet: asking and deciding are two handlers, and the link carries the id of the second job. With
//! flows this is one function that asks, waits for the answer or the week, and returns the decision.
//!
//! `cargo run -p windlass --example approval_by_link`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{
    Edit, Error, HandlerRef, JobContext, JobError, JobId, JobService, Payload, SecurityContext, Status, SubmitOptions,
    TenantId,
};

const ASK: HandlerRef<Question, String> = HandlerRef::new("approval.ask");
const DECIDE: HandlerRef<Decided, String> = HandlerRef::new("approval.decide");

const A_WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The largest answer that is accepted, in bytes.
const ANSWER_BYTES: usize = 4_096;

#[derive(Serialize, Deserialize)]
struct Question {
    manager: String,
    what: String,
    /// The job that takes the answer.
    answer: JobId,
}

#[derive(Serialize, Deserialize)]
struct Decided {
    what: String,
    decision: Decision,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Approved,
    Expired,
}

async fn ask(_state: (), _ctx: JobContext, question: Question) -> Result<String, JobError> {
    // A real link is signed. Its page only shows a button, because mail scanners follow links; the button's POST answers.
    Ok(format!("to {}: {}? https://example.org/answer/{}", question.manager, question.what, question.answer))
}

async fn decide(_state: (), _ctx: JobContext, decided: Decided) -> Result<String, JobError> {
    Ok(format!("{}: {:?}", decided.what, decided.decision))
}

/// What the button's POST does. Fails with [`Error::Conflict`] if the request has been decided already.
async fn answer(jobs: &JobService, id: JobId, what: &str, decision: Decision) -> Result<(), Error> {
    let input = Payload::encode("answer", &Decided { what: what.to_owned(), decision }, ANSWER_BYTES)?;
    let manager = SecurityContext::new(TenantId::ROOT).with_user("manager");
    jobs.edit(&manager, id, Edit::new().input(input).run_now()).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let jobs = JobService::builder(windlass::open("memory:").await?)
        .function(ASK, (), ask)
        .function(DECIDE, (), decide)
        .start()
        .await?;

    let what = "a new chair";
    let expired = Decided { what: what.to_owned(), decision: Decision::Expired };
    let waiting = DECIDE.submit_with(&jobs, expired, SubmitOptions::new().delay(A_WEEK)).await?;
    let question = Question { manager: "ada@example.org".into(), what: what.to_owned(), answer: waiting.id() };
    println!("{}", ASK.submit(&jobs, question).await?.wait(Duration::from_secs(10)).await?);
    assert_eq!(waiting.status().await?, Status::Scheduled);

    answer(&jobs, waiting.id(), what, Decision::Approved).await?;
    let decided = waiting.wait(Duration::from_secs(10)).await?;
    println!("{decided}");
    assert_eq!(decided, "a new chair: Approved");

    let too_late = answer(&jobs, waiting.id(), what, Decision::Approved).await;
    assert!(matches!(too_late, Err(Error::Conflict { .. })));
    jobs.shutdown().await;
    Ok(())
}
