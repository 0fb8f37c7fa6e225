//! A download whose connection breaks in the middle, and which goes on at its byte. Needs no network: it serves the file
//! itself, on loopback, and drops the first connection.
//!
//! `cargo run -p windlass-handlers --example resume_download`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use windlass::JobService;
use windlass_handlers::Handlers;
use windlass_handlers::download::{self, Download, DownloadInput};
use windlass_handlers::egress::Egress;

const BYTES: usize = 8 * 1024 * 1024;

/// Serves a file; the first response ends in the middle.
async fn serve(requests: Arc<AtomicUsize>, headers: HeaderMap) -> Response<Body> {
    let first = requests.fetch_add(1, Ordering::Relaxed) == 0;
    let range = headers.get("range").and_then(|range| range.to_str().ok());
    let from: usize =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()).unwrap_or(0);
    println!("the server is asked for bytes from {from} on");
    let chunks = (from..BYTES).step_by(64 * 1024).map(move |at| match first && at >= BYTES / 2 {
        true => Err(std::io::Error::other("the connection breaks")),
        false => Ok(vec![b'x'; (BYTES - at).min(64 * 1024)]),
    });
    let response = Response::builder().header("etag", "\"v1\"").header("content-length", BYTES - from);
    let response = match from {
        0 => response,
        from => response.status(206).header("content-range", format!("bytes {from}-{}/{BYTES}", BYTES - 1)),
    };
    response.body(Body::from_stream(futures_util::stream::iter(chunks))).expect("a response")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let requests = Arc::new(AtomicUsize::new(0));
    let route = axum::routing::get(move |headers: HeaderMap| serve(requests, headers));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/file.bin", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().route("/file.bin", route)).await });

    let store = windlass::open("sqlite:downloads.db").await?;
    // Only for this example: without `egress`, public addresses over https are all that jobs can reach.
    let handler = Download::into("downloads")?.egress(Egress::anywhere());
    let jobs = JobService::builder(store).download(handler).start().await?;

    let file = DownloadInput::new(url, "file.bin").length(BYTES as u64);
    let done = download::HANDLER.submit(&jobs, file).await?.wait(Duration::from_secs(30)).await?;
    println!("{} bytes in downloads/{}", done.bytes, done.file);
    assert_eq!(std::fs::metadata("downloads/file.bin")?.len(), BYTES as u64);
    jobs.shutdown().await;
    Ok(())
}
