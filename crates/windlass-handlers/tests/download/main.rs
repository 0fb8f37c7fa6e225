//! Downloads from a server on loopback that drops connections, forgets ranges and lies (HND-1), and a process that is
//! killed in the middle of one.

mod killed;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use server::{Answer, FileServer};
use sha2::{Digest, Sha256};
use windlass_core::{
    Error, HandlerOptions, JobError, JobService, MemoryStore, RetryPolicy, SecurityContext, Status, TenantId,
};
use windlass_handlers::Handlers;
use windlass_handlers::download::{self, Download, DownloadInput, Downloaded};
use windlass_handlers::egress::Egress;

/// How long anything may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Bytes that differ from place to place.
fn file(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(31) ^ (at >> 8)) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handler(directory: &Path) -> Download {
    let retry = RetryPolicy::fixed(3, Duration::from_millis(10));
    let options = HandlerOptions::new().retry(retry).timeout(SOON);
    Download::into(directory).expect("the directory opens").egress(Egress::anywhere()).options(options)
}

/// Runs one download to its end.
async fn run(directory: &Path, input: DownloadInput) -> Result<Downloaded, JobError> {
    run_with(handler(directory), input).await
}

async fn run_with(handler: Download, input: DownloadInput) -> Result<Downloaded, JobError> {
    let service = JobService::builder(Arc::new(MemoryStore::new())).download(handler).start().await.expect("starts");
    let job = download::HANDLER.submit(&service, input).await.expect("accepted");
    let ended = job.wait(SOON).await;
    service.shutdown().await;
    match ended {
        Ok(done) => Ok(done),
        Err(Error::JobFailed { error, .. }) => Err(*error),
        Err(other) => panic!("the job did not end: {other}"),
    }
}

fn check_file(directory: &Path, name: &str, bytes: &[u8]) {
    assert!(std::fs::read(directory.join(name)).expect("the file is there") == bytes, "other bytes");
    let left = std::fs::read_dir(directory.join(".windlass")).expect("a directory").count();
    assert_eq!(left, 0, "nothing unfinished is left");
}

/// HND-1: streams to disk, checks length and digest, and names the file at the end.
#[tokio::test]
async fn a_file_arrives_with_its_directories() {
    let place = tempfile::tempdir().expect("a directory");
    let bytes = file(3_000_000);
    let server = FileServer::start({
        let bytes = bytes.clone();
        move |_, asked| Answer::honest(asked, &bytes, "\"v1\"")
    })
    .await;
    let input = DownloadInput::new(&server.url, "a/b/file.bin").sha256(sha256(&bytes)).length(3_000_000);
    let done = run(place.path(), input).await.expect("succeeds");
    assert_eq!((done.file.as_str(), done.bytes, done.resumed_at), ("a/b/file.bin", 3_000_000, 0));
    assert_eq!(done.sha256, Some(sha256(&bytes)));
    check_file(place.path(), "a/b/file.bin", &bytes);
}

/// HND-1: dropped connections are continued at their byte, with `If-Range`.
#[tokio::test]
async fn a_broken_connection_goes_on_at_its_byte() {
    let place = tempfile::tempdir().expect("a directory");
    let bytes = file(5_000_000);
    let server = FileServer::start({
        let bytes = bytes.clone();
        move |number, asked| {
            let answer = Answer::honest(asked, &bytes, "\"v1\"");
            if number < 2 { answer.cut(1_500_000) } else { answer }
        }
    })
    .await;
    let input = DownloadInput::new(&server.url, "x").sha256(sha256(&bytes));
    let done = run(place.path(), input).await.expect("succeeds");
    assert_eq!(done.bytes, 5_000_000);
    check_file(place.path(), "x", &bytes);
    let asked = server.asked();
    let from: Vec<_> = asked.iter().map(server::Asked::from).collect();
    assert_eq!(from, [None, Some(1_500_000), Some(3_000_000)]);
    assert!(asked[1..].iter().all(|asked| asked.if_range.as_deref() == Some("\"v1\"")));
}

/// HND-1: a file that changed in between is read from the start: 200 where a part was asked for.
#[tokio::test]
async fn a_changed_file_is_read_anew() {
    let place = tempfile::tempdir().expect("a directory");
    let (old, new) = (file(4_000_000), vec![7; 3_500_000]);
    let server = FileServer::start({
        let new = new.clone();
        move |number, asked| match number {
            0 => Answer::honest(asked, &old, "\"v1\"").cut(2_000_000),
            _ => Answer::honest(asked, &new, "\"v2\""),
        }
    })
    .await;
    let done = run(place.path(), DownloadInput::new(&server.url, "x")).await.expect("succeeds");
    assert_eq!((done.bytes, done.resumed_at), (3_500_000, 0));
    check_file(place.path(), "x", &new);
}

/// HND-1: a server that ignores `If-Range` or sends another part cannot mix two files.
#[tokio::test]
async fn a_lie_about_a_part_is_seen() {
    let place = tempfile::tempdir().expect("a directory");
    let bytes = file(4_000_000);
    let server = FileServer::start({
        let bytes = bytes.clone();
        move |number, asked| match number {
            0 => Answer::honest(asked, &bytes, "\"v1\"").cut(2_000_000),
            // From another byte than was asked for.
            1 => Answer::new("206 Partial Content", &[("content-range", "bytes 0-9/4000000".into())], &[0; 10]),
            _ => Answer::honest(asked, &bytes, "\"v1\""),
        }
    })
    .await;
    run(place.path(), DownloadInput::new(&server.url, "x")).await.expect("succeeds");
    check_file(place.path(), "x", &bytes);
    assert_eq!(server.asked().last().and_then(server::Asked::from), None, "the whole was asked for");
}

/// HND-1: lengths and digests that are wrong fail for good and leave nothing.
#[tokio::test]
async fn what_is_not_the_file_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let bytes = file(100_000);
    let server = FileServer::start({
        let bytes = bytes.clone();
        move |_, asked| match asked.path.as_str() {
            "/long" => Answer {
                chunked: Some(true),
                ..Answer::new("200 OK", &[("transfer-encoding", "chunked".into())], &bytes)
            },
            _ => Answer::honest(asked, &bytes, "\"v1\""),
        }
    })
    .await;
    let at = |path: &str| server.url.replace("/file.bin", path);
    for (input, code) in [
        (DownloadInput::new(&server.url, "x").length(99_999), "length_mismatch"),
        (DownloadInput::new(at("/long"), "x").length(99_999), "length_mismatch"),
        (DownloadInput::new(at("/long"), "x").length(100_001), "length_mismatch"),
        (DownloadInput::new(&server.url, "x").sha256("0".repeat(64)), "digest_mismatch"),
    ] {
        let error = run(place.path(), input).await.expect_err(code);
        assert_eq!((error.code.as_str(), error.is_retryable()), (code, false));
    }
    let error = run_with(handler(place.path()).max_bytes(1000), DownloadInput::new(at("/long"), "x")).await;
    assert_eq!(error.expect_err("too large").code, "too_large");
    assert!(!place.path().join("x").exists());
    assert_eq!(std::fs::read_dir(place.path().join(".windlass")).expect("a directory").count(), 0);
}

/// HND-1: a connection that ends too soon is no file, with and without a length.
#[tokio::test]
async fn half_a_file_never_gets_the_name() {
    let place = tempfile::tempdir().expect("a directory");
    let bytes = file(100_000);
    let server = FileServer::start(move |_, asked| match asked.path.as_str() {
        "/chunked" => {
            Answer { chunked: Some(false), ..Answer::new("200 OK", &[("transfer-encoding", "chunked".into())], &bytes) }
        }
        _ => Answer::new("200 OK", &[("content-length", "100000".into())], &bytes).cut(50_000),
    })
    .await;
    for path in ["/file.bin", "/chunked"] {
        let input = DownloadInput::new(server.url.replace("/file.bin", path), "x");
        let error = run(place.path(), input).await.expect_err("half of it");
        assert_eq!(error.code, "incomplete", "{error:?}");
        assert!(!place.path().join("x").exists());
    }
}

/// HND-1: refusals by status class, and redirects that are followed or not.
#[tokio::test]
async fn refusals_and_redirects() {
    let place = tempfile::tempdir().expect("a directory");
    let server = FileServer::start(|number, asked| {
        let to =
            |to: &str| Answer::new("302 Found", &[("location", to.to_owned()), ("content-length", "0".into())], b"");
        match asked.path.as_str() {
            "/moved" => to("/file.bin"),
            "/round" => to("/round"),
            "/inside" => to("ftp://127.0.0.1/"),
            "/gone" => Answer::new("410 Gone", &[("content-length", "0".into())], b""),
            "/busy" if number % 2 == 0 => {
                Answer::new("503 Busy", &[("retry-after", "0".into()), ("content-length", "0".into())], b"")
            }
            _ => Answer::honest(asked, b"hello", "\"v1\""),
        }
    })
    .await;
    let get = |path: &str| run(place.path(), DownloadInput::new(server.url.replace("/file.bin", path), "x"));
    assert_eq!(get("/moved").await.expect("follows").bytes, 5);
    assert_eq!(get("/round").await.expect_err("no end").code, "too_many_redirects");
    assert_eq!(get("/inside").await.expect_err("not allowed").code, "address_blocked");
    assert_eq!(get("/gone").await.expect_err("gone").code, "http_410");
    assert_eq!(get("/busy").await.expect("a retry").bytes, 5);
}

/// HND-1: private addresses are reached only if that is allowed, by literal and by name; nothing is written.
#[tokio::test]
async fn private_addresses_are_refused_by_default() {
    let place = tempfile::tempdir().expect("a directory");
    let server = FileServer::start(|_, asked| Answer::honest(asked, b"secret", "\"v1\"")).await;
    let port = server.url.split(':').nth(2).and_then(|rest| rest.split('/').next()).expect("a port");
    let mut egress = Egress::default();
    (egress.allow_http, egress.allow_any_port) = (true, true);
    let error = run_with(
        handler(place.path()).egress(egress.clone()),
        DownloadInput::new(format!("http://localhost:{port}/"), "x"),
    );
    assert_eq!(error.await.expect_err("by name").code, "address_blocked");
    let handler = handler(place.path()).egress(egress);
    let service = JobService::builder(Arc::new(MemoryStore::new())).download(handler).start().await.expect("starts");
    let refused = download::HANDLER.submit(&service, DownloadInput::new(&server.url, "x")).await;
    assert!(matches!(refused, Err(Error::InvalidInput(ref error)) if error.field == "url"), "{refused:?}");
    service.shutdown().await;
    assert!(server.asked().is_empty() && !place.path().join("x").exists());
}

/// HND-1: a canceled download stops and leaves no file.
#[tokio::test]
async fn a_canceled_download_stops() {
    let place = tempfile::tempdir().expect("a directory");
    let server = FileServer::start(|_, asked| Answer {
        pace: Duration::from_millis(50),
        ..Answer::honest(asked, &file(50_000_000), "\"v1\"")
    })
    .await;
    let service = JobService::builder(Arc::new(MemoryStore::new()))
        .download(handler(place.path()))
        .start()
        .await
        .expect("starts");
    let acme = TenantId::parse("0199a1a0-0000-7000-8000-000000000001").expect("a UUID");
    let caller = service.of(SecurityContext::new(acme));
    let job = download::HANDLER.submit(&caller, DownloadInput::new(&server.url, "x")).await.expect("accepted");
    let part = place.path().join(acme.to_string()).join(format!(".windlass/{}.part", job.id()));
    let deadline = std::time::Instant::now() + SOON;
    while std::fs::metadata(&part).map_or(0, |found| found.len()) == 0 {
        assert!(std::time::Instant::now() < deadline, "no byte has arrived");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    job.cancel("not wanted").await.expect("canceled");
    while !job.status().await.expect("a status").is_terminal() {
        assert!(std::time::Instant::now() < deadline, "it goes on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(job.status().await.expect("a status"), Status::Canceled);
    assert!(!place.path().join(acme.to_string()).join("x").exists());
    service.shutdown().await;
}
