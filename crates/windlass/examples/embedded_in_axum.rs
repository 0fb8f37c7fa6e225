//! Jobs inside a web service: the handlers run on separate threads, so that no job slows a request down. Serves on a
//! free port of the loopback address, calls itself once, and stops.
//!
//! `cargo run -p windlass --example embedded_in_axum`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::{Error, JobContext, JobError, JobId, JobService, SecurityContext, SubmitOptions, TenantId};

async fn shout(_: (), _: JobContext, text: String) -> Result<String, JobError> {
    Ok(text.to_uppercase())
}

/// In a real service the caller's tenant comes from its token.
fn caller() -> SecurityContext {
    SecurityContext::new(TenantId::ROOT)
}

async fn submit(State(jobs): State<JobService>, Json(text): Json<String>) -> Result<String, StatusCode> {
    let job = jobs.submit_named(&caller(), "shout", &text, SubmitOptions::new()).await;
    Ok(job.map_err(|error| status_of(&error))?.id.to_string())
}

async fn result(State(jobs): State<JobService>, Path(id): Path<JobId>) -> Result<Json<String>, StatusCode> {
    let output = jobs.wait_for(&caller(), id, Duration::from_secs(5)).await;
    output.map(Json).map_err(|error| status_of(&error))
}

fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::InvalidInput(_) => StatusCode::UNPROCESSABLE_ENTITY,
        Error::NotFound(_) => StatusCode::NOT_FOUND,
        Error::Backpressure(_) => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = windlass::open("sqlite:axum.db").await?;
    let jobs = JobService::builder(store).function("shout", (), shout).start().await?;
    let routes = Router::new().route("/shout", post(submit)).route("/jobs/{id}", get(result)).with_state(jobs.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let id = call(address, "POST /shout", "\"hello\"").await?;
    let output = call(address, &format!("GET /jobs/{id}"), "").await?;
    println!("job {id} returned {output}");
    assert_eq!(output, "\"HELLO\"");
    jobs.shutdown().await;
    Ok(())
}

/// One HTTP request, without a client library.
async fn call(address: std::net::SocketAddr, request: &str, body: &str) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let head = format!("{request} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close");
    stream.write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned())
}
