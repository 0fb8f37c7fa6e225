//! A process that is killed in the middle of a download, and the one after it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use windlass_core::{JobService, SubmitOptions};
use windlass_handlers::Handlers;
use windlass_handlers::download::{self, Download, DownloadInput, Downloaded};
use windlass_handlers::egress::Egress;

use crate::server::{Answer, Asked, FileServer};
use crate::{SOON, check_file, file, sha256};

/// The variable that makes a run of this binary the process that downloads.
const TASK: &str = "WINDLASS_DOWNLOAD_TASK";

/// How large the file is, in MiB: small with every change, 200 MB in the full tier.
fn mib() -> usize {
    match std::env::var("WINDLASS_TIER").is_ok_and(|tier| tier == "full") {
        true => 200,
        false => 20,
    }
}

#[derive(Serialize, Deserialize)]
struct Task {
    place: std::path::PathBuf,
    input: DownloadInput,
}

/// Not a test by itself: the process that the test below starts and kills.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let Task { place, input } = serde_json::from_str(&task).expect("the parent sends a task");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = windlass::open(&format!("sqlite:{}", place.join("jobs.db").display())).await.expect("opens");
        let handler = Download::into(place.join("files")).expect("opens").egress(Egress::anywhere());
        let service = JobService::builder(store).download(handler).lease(Duration::from_secs(2)).start().await;
        let service = service.expect("starts");
        let once = SubmitOptions::new().idempotency_key("once");
        let job = download::HANDLER.submit_with(&service, input, once).await.expect("accepted");
        let done = job.wait(SOON * 5).await.expect("succeeds");
        let text = serde_json::to_string(&done).expect("JSON");
        std::fs::write(place.join("done.tmp"), text).expect("writes");
        std::fs::rename(place.join("done.tmp"), place.join("done")).expect("renames");
        service.shutdown().await;
    });
}

/// Killed with the test, however it ends.
struct Process(Child);

impl Process {
    fn start(place: &Path, input: &DownloadInput) -> Process {
        let task = Task { place: place.to_owned(), input: input.clone() };
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args(["--exact", "killed::child", "--nocapture"])
            .env(TASK, serde_json::to_string(&task).expect("JSON"));
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON * 5;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// HND-1: a process killed in the middle of a download goes on at its byte in the next one.
#[tokio::test]
async fn a_killed_download_goes_on_at_its_byte() {
    let place = tempfile::tempdir().expect("a directory");
    let bytes = file(mib() * 1024 * 1024);
    let (half, served) = (bytes.len() as u64 / 2, bytes.clone());
    let server = FileServer::start(move |number, asked| {
        let answer = Answer::honest(asked, &served, "\"v1\"");
        // The first response takes its time, so that there is a middle; the others do not.
        let pace = if number == 0 { Duration::from_millis(100) } else { Duration::ZERO };
        Answer { pace, ..answer }
    })
    .await;
    let input = DownloadInput::new(&server.url, "file.bin").sha256(sha256(&bytes)).length(bytes.len() as u64);

    let first = Process::start(place.path(), &input);
    until("half of the file", || server.sent.load(Ordering::Relaxed) >= half).await;
    drop(first);
    assert!(!place.path().join("files/file.bin").exists() && !place.path().join("done").exists());

    let _second = Process::start(place.path(), &input);
    until("the end of the download", || place.path().join("done").exists()).await;
    let done = std::fs::read_to_string(place.path().join("done")).expect("reads");
    let done: Downloaded = serde_json::from_str(&done).expect("JSON");
    check_file(&place.path().join("files"), "file.bin", &bytes);
    let asked = server.asked();
    let from = asked.last().and_then(Asked::from).expect("a part was asked for") as u64;
    assert_eq!((asked.len(), done.resumed_at, done.bytes), (2, from, bytes.len() as u64));
    assert!(from >= 1024 * 1024 && from <= half + 4 * 1024 * 1024, "went on at {from}");
    assert_eq!(asked[1].if_range.as_deref(), Some("\"v1\""));
}
