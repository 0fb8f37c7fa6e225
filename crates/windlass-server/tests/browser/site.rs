//! A real server on a SQLite file, in this process, with handlers that do what a scenario tells them. Used by every
//! scenario. Gone, with its file, when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use windlass::{
    JobContext, JobError, JobId, JobService, LogLevel, RetryPolicy, SecurityContext, Status, SubmitOptions, TenantId,
};
use windlass_server::{Auth, Config, Server};

/// How long a job may take to get where a scenario wants it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Handlers whose names would be markup if a page let them.
pub(crate) const HOSTILE_HANDLERS: [&str; 2] =
    ["<img src=x onerror=window.pwned=1>", "\"><script>window.pwned=1</script>"];

pub(crate) struct Site {
    /// The address with the base path, without a slash at its end.
    pub(crate) url: String,
    pub(crate) service: JobService,
    pub(crate) controls: Controls,
    links: std::sync::Mutex<Vec<String>>,
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    _dir: TempDir,
}

/// What scenarios tell handlers.
#[derive(Clone)]
pub(crate) struct Controls {
    /// How many pages a report may write.
    pages: Arc<watch::Sender<u32>>,
    /// Whether mails can be sent.
    mail_works: Arc<AtomicBool>,
}

impl Controls {
    /// Lets reports write so many pages in all.
    pub(crate) fn allow_pages(&self, pages: u32) {
        self.pages.send_replace(pages);
    }

    pub(crate) fn repair_mail(&self, works: bool) {
        self.mail_works.store(works, Ordering::SeqCst);
    }
}

impl Site {
    pub(crate) async fn start(base_path: &str, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}", dir.path().join("jobs.db").display());
        let store = windlass::open(&url).await.expect("open the store");
        let controls =
            Controls { pages: Arc::new(watch::Sender::new(0)), mail_works: Arc::new(AtomicBool::new(false)) };
        let mut builder = JobService::builder(store)
            .function("reports.generate", controls.clone(), generate_report)
            .function("mail.send", controls.clone(), send_mail)
            .function("images.resize", (), resize_image)
            .function("payments.capture", (), capture_payment);
        for name in HOSTILE_HANDLERS {
            builder = builder.function(name, (), fail_as_told);
        }
        let service = builder.start().await.expect("start the service");
        let mut config = Config::listen(([127, 0, 0, 1], 0).into());
        config.auth = Auth::Local;
        config.base_path = base_path.to_owned();
        change(&mut config);
        let server = Server::bind(service.clone(), config).await.expect("listen");
        let url = format!("http://{}{base_path}", server.address());
        // Links are made by the server, which is moved into its task below.
        let links = (0..LINKS).map(|_| server.login_link().expect("a local server makes links")).collect();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server.run(async { drop(stopped.await) }));
        Site { url, service, controls, links: std::sync::Mutex::new(links), serving: Some((stop, serving)), _dir: dir }
    }

    /// An address of the dashboard.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// A link that logs in once.
    pub(crate) fn link(&self) -> String {
        self.links.lock().expect("no panic").pop().expect("enough links")
    }

    pub(crate) async fn submit(&self, handler: &str, input: Value, options: SubmitOptions) -> JobId {
        self.service.submit_named(&context(), handler, &input, options).await.expect("submit").id
    }

    pub(crate) async fn until_status(&self, id: JobId, wanted: Status) {
        let reached = tokio::time::timeout(PATIENCE, async {
            while self.service.status(&context(), id).await.expect("status") != wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        reached.await.unwrap_or_else(|_| panic!("job {id} did not become {wanted}"));
    }

    /// Ends the server and the service in good order.
    pub(crate) async fn stop(mut self) {
        if let Some((stop, serving)) = self.serving.take() {
            let _ = stop.send(());
            serving.await.expect("the server ends");
        }
        self.service.shutdown().await;
    }
}

/// More than all scenarios use, fewer than the server keeps.
const LINKS: usize = 12;

/// Who submits.
pub(crate) fn context() -> SecurityContext {
    SecurityContext::new(TenantId::ROOT)
}

/// A mail that nobody can deliver until the scenario repairs it, and that is not tried again by itself.
pub(crate) fn mail() -> (&'static str, Value, SubmitOptions) {
    let options = SubmitOptions::new().retry(RetryPolicy::never());
    ("mail.send", json!({ "to": "ada@example.com" }), options)
}

/// Writes four pages, each when the scenario lets it.
async fn generate_report(controls: Controls, ctx: JobContext, _input: Value) -> Result<u32, JobError> {
    const PAGES: u32 = 4;
    let mut allowed = controls.pages.subscribe();
    for page in 1..=PAGES {
        tokio::select! {
            _ = allowed.wait_for(|pages| *pages >= page) => {}
            () = ctx.cancellation().cancelled() => return Err(JobError::retryable("asked to stop")),
        }
        ctx.log(LogLevel::Info, format!("page {page} of {PAGES} is written"));
        ctx.report_progress(100.0 * page as f32 / PAGES as f32, format!("page {page} of {PAGES}"));
    }
    // The last report is seen before the end is.
    tokio::select! {
        _ = allowed.wait_for(|pages| *pages > PAGES) => Ok(PAGES),
        () = ctx.cancellation().cancelled() => Err(JobError::retryable("asked to stop")),
    }
}

async fn send_mail(controls: Controls, _ctx: JobContext, input: Value) -> Result<String, JobError> {
    match controls.mail_works.load(Ordering::SeqCst) {
        true => Ok(format!("sent to {}", input["to"].as_str().unwrap_or("nobody"))),
        false => Err(JobError::retryable("smtp.example.com:25: connection refused").with_code("smtp")),
    }
}

async fn resize_image(_state: (), _ctx: JobContext, input: Value) -> Result<String, JobError> {
    Ok(format!("{}.webp", input["image"].as_str().unwrap_or("picture")))
}

/// The bank is not in a good mood.
async fn capture_payment(_state: (), ctx: JobContext, input: Value) -> Result<(), JobError> {
    ctx.log(LogLevel::Warn, "the gateway answered 502 Bad Gateway");
    Err(JobError::retryable(format!("gateway: 502 for order {}", input["order"])).with_code("gateway"))
}

async fn fail_as_told(_state: (), ctx: JobContext, input: Value) -> Result<(), JobError> {
    let text = input["error"].as_str().unwrap_or("no reason").to_owned();
    ctx.report_progress(50.0, text.clone());
    Err(JobError::terminal(text.clone(), text))
}
