//! Downloads files: in chunks to the disk, checked, and resumed at their byte after a crash. What to ask for and
//! what to do with an answer is decided in `range`, the unfinished file is `part`. Never leaves its directory, and
//! reaches only addresses that its [`Egress`] allows.

mod part;
mod range;

use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use futures_util::StreamExt;
use reqwest::header::{self, HeaderMap, HeaderName};
use reqwest::{Client, Response, Url};
use serde::{Deserialize, Serialize};
use windlass_core::{HandlerOptions, HandlerRef, InvalidInput, JobContext, JobError, JobHandler};

use crate::egress::Egress;
use crate::reply;
use crate::root::{self, Root, blocking};
use part::{Part, Target};
use range::{Ask, Next, Said, Saved};

/// The handler, for those who submit.
pub const HANDLER: HandlerRef<DownloadInput, Downloaded> = HandlerRef::new(Download::ID);

/// What is written at once.
const CHUNK: usize = 1024 * 1024;
/// How often the byte count is saved. Each time costs a write of the disk and one of the store; a crash costs what came
/// since.
const SAVE_EVERY: Duration = Duration::from_millis(500);
/// How long a server may send nothing.
const SILENCE: Duration = Duration::from_secs(30);
/// A connection that broke after it brought this much is continued at once; one that brought less fails the attempt, and
/// the retry policy decides. So the number of requests is bounded by the size of the file.
const WORTH_ANOTHER: u64 = 1024 * 1024;
/// Redirects followed: mirrors and storage services need one or two.
const REDIRECTS: usize = 5;
/// The largest file unless [`Download::max_bytes`] says otherwise.
const MAX_BYTES: u64 = 16 * 1024 * 1024 * 1024;
/// How long an attempt may take: a server that sends a byte a minute must not hold a slot for ever.
const ATTEMPT: Duration = Duration::from_secs(6 * 3600);
/// Downloads at once on a node, so that slow servers leave slots to others.
const AT_ONCE: usize = 8;
/// The longest address.
const URL_BYTES: usize = 8 * 1024;

/// What to download.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DownloadInput {
    /// From where.
    pub url: String,
    /// The file to write, relative to the handler's directory, with `/` between names. A file that is there is replaced
    /// when all of the new one has arrived.
    pub to: String,
    /// The SHA-256 digest it must have, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// How many bytes it must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
}

impl DownloadInput {
    /// Downloads `url` into the file `to`.
    pub fn new(url: impl Into<String>, to: impl Into<String>) -> Self {
        DownloadInput { url: url.into(), to: to.into(), sha256: None, length: None }
    }

    /// Demands a digest.
    #[must_use]
    pub fn sha256(mut self, digest: impl Into<String>) -> Self {
        self.sha256 = Some(digest.into());
        self
    }

    /// Demands a length.
    #[must_use]
    pub fn length(mut self, bytes: u64) -> Self {
        self.length = Some(bytes);
        self
    }
}

/// What was downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downloaded {
    /// The file, relative to the handler's directory, or to the tenant's directory in it.
    pub file: String,
    /// How long it is.
    pub bytes: u64,
    /// Its digest, if one was demanded.
    pub sha256: Option<String>,
    /// The byte at which the last attempt went on; 0 if it read all of the file.
    pub resumed_at: u64,
}

/// Downloads files into one directory. Jobs of the root tenant write there, those of every other tenant into a
/// directory of its own below, named by the tenant's id.
///
/// ```no_run
/// # async fn example(store: std::sync::Arc<windlass_core::MemoryStore>) -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_core::JobService;
/// use windlass_handlers::Handlers;
/// use windlass_handlers::download::{self, Download, DownloadInput};
///
/// let jobs = JobService::builder(store).download(Download::into("downloads")?).start().await?;
/// let file = DownloadInput::new("https://example.org/data.tar.gz", "data.tar.gz");
/// let done = download::HANDLER.submit(&jobs, file).await?.wait(std::time::Duration::from_secs(60)).await?;
/// assert_eq!(done.file, "data.tar.gz");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Download {
    root: Root,
    egress: Egress,
    max_bytes: u64,
    options: HandlerOptions,
    client: OnceLock<Option<Client>>,
}

impl Download {
    /// Downloads into `directory`, which is created if it is missing. Unfinished files that nobody has written to for a
    /// week are removed.
    pub fn into(directory: impl AsRef<Path>) -> io::Result<Download> {
        let root = Root::open(directory.as_ref())?;
        if let Err(error) = part::sweep(&root, SystemTime::now()) {
            tracing::warn!(%error, "unfinished downloads could not be swept: {error}");
        }
        Ok(Download {
            root,
            egress: Egress::default(),
            max_bytes: MAX_BYTES,
            options: HandlerOptions::new().timeout(ATTEMPT).concurrency(AT_ONCE),
            client: OnceLock::new(),
        })
    }

    /// Sets which addresses may be reached: by default public ones over https.
    #[must_use]
    pub fn egress(mut self, egress: Egress) -> Self {
        self.egress = egress;
        self
    }

    /// Sets the largest file.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets timeout, retries, concurrency and more.
    #[must_use]
    pub fn options(mut self, options: HandlerOptions) -> Self {
        self.options = options;
        self
    }

    fn check(&self, input: &DownloadInput) -> Result<(), InvalidInput> {
        if input.url.len() > URL_BYTES {
            return Err(InvalidInput::new("url", format!("it must have at most {URL_BYTES} bytes")));
        }
        self.egress.check(&input.url).map_err(|blocked| reply::bad_address("url", &blocked))?;
        root::check_path("to", &input.to)?;
        let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !input.sha256.as_ref().is_none_or(is_digest) {
            return Err(InvalidInput::new("sha256", "it must have 64 hexadecimal digits"));
        }
        match input.length.filter(|length| *length > self.max_bytes) {
            Some(_) => Err(InvalidInput::new("length", format!("at most {} bytes are allowed", self.max_bytes))),
            None => Ok(()),
        }
    }

    fn client(&self) -> Result<&Client, JobError> {
        let client = self.client.get_or_init(|| self.egress.client_builder().read_timeout(SILENCE).build().ok());
        client.as_ref().ok_or_else(|| JobError::terminal("no_client", "could not create an HTTP client"))
    }

    /// Sends a request and follows redirects, each of which must lead where the handler may go.
    async fn get(&self, url: &str, ask: &Ask) -> Result<Response, JobError> {
        let mut url = self.egress.check(url).map_err(|blocked| JobError::terminal("address_blocked", blocked))?;
        for _ in 0..=REDIRECTS {
            let mut request = self.client()?.get(url.clone()).header(header::ACCEPT_ENCODING, "identity");
            if let Ask::From { byte, if_range } = ask {
                request = request.header(header::RANGE, format!("bytes={byte}-"));
                if let Some(version) = if_range {
                    request = request.header(header::IF_RANGE, version);
                }
            }
            let response = request.send().await.map_err(|error| reply::no_answer("the file server", &error))?;
            let to = match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => text(response.headers(), &header::LOCATION),
                _ => None,
            };
            match to {
                Some(to) => url = next_hop(&self.egress, &url, &to)?,
                None => return Ok(response),
            }
        }
        Err(JobError::terminal("too_many_redirects", format!("more than {REDIRECTS} redirects")))
    }
}

impl JobHandler for Download {
    const ID: &'static str = "download.file";
    type Input = DownloadInput;
    type Output = Downloaded;

    fn options(&self) -> HandlerOptions {
        self.options.clone()
    }

    fn validate(&self, input: &DownloadInput) -> Result<(), InvalidInput> {
        self.check(input)
    }

    async fn execute(&self, ctx: &JobContext, input: DownloadInput) -> Result<Downloaded, JobError> {
        self.check(&input).map_err(reply::invalid)?;
        let saved = ctx.checkpoint::<Saved>().ok().flatten().filter(|saved| saved.url == input.url);
        let saved = saved.unwrap_or_else(|| Saved { url: input.url.clone(), ..Saved::default() });
        let (root, tenant, job, to) = (self.root.clone(), ctx.tenant(), ctx.job_id(), input.to.clone());
        let target = blocking(move || {
            let dir = root.of(tenant).map_err(|error| root::disk("open the directory", &error))?;
            Target::open(dir, job, &to)
        })
        .await?;
        if saved.checked && is_finished(&target, &saved, &input).await? {
            return Ok(downloaded(&input, saved.bytes, saved.bytes));
        }
        let (opened, keep, with_digest) = (target.clone(), saved.bytes, input.sha256.is_some());
        let part = blocking(move || opened.part(keep, with_digest)).await?;
        let resumed_at = part.bytes;
        let run = Run { handler: self, ctx, input: &input, saved, rate: Rate::new(resumed_at) };
        match run.fetch(part).await {
            Ok((part, read_from)) => finish(target, part, &input, read_from.min(resumed_at)).await,
            Err(error) => {
                if !error.is_retryable() && !ctx.cancellation().is_cancelled() {
                    target.remove();
                }
                Err(error)
            }
        }
    }
}

async fn is_finished(target: &Target, saved: &Saved, input: &DownloadInput) -> Result<bool, JobError> {
    let (target, bytes, digest) = (target.clone(), saved.bytes, input.sha256.clone());
    blocking(move || target.is_finished(bytes, digest.as_deref())).await
}

async fn finish(target: Target, part: Part, input: &DownloadInput, resumed_at: u64) -> Result<Downloaded, JobError> {
    let bytes = part.bytes;
    blocking(move || target.finish(&part)).await?;
    Ok(downloaded(input, bytes, resumed_at))
}

fn downloaded(input: &DownloadInput, bytes: u64, resumed_at: u64) -> Downloaded {
    let sha256 = input.sha256.as_ref().map(|digest| digest.to_ascii_lowercase());
    Downloaded { file: input.to.clone(), bytes, sha256, resumed_at }
}

/// One attempt.
struct Run<'a> {
    handler: &'a Download,
    ctx: &'a JobContext,
    input: &'a DownloadInput,
    saved: Saved,
    rate: Rate,
}

/// How a response ended.
enum End {
    /// As it should.
    Whole,
    /// The connection broke, or brought less than was said.
    Broken,
}

impl Run<'_> {
    /// Brings all of the file to the disk and checks it. Returns it with the byte from which it was read.
    async fn fetch(mut self, mut part: Part) -> Result<(Part, u64), JobError> {
        let mut read_from = part.bytes;
        let mut restarted = false;
        loop {
            let ask = range::ask(&self.saved, part.bytes, self.input.sha256.is_some());
            let response = self.until_stopped(self.handler.get(&self.input.url, &ask)).await?;
            let said = said(&response);
            let total = match range::decide(&ask, &self.saved, response.status(), &said) {
                Next::Complete => return Ok((self.checked(part).await?, read_from)),
                Next::Append { total } => {
                    self.saved.pieced = true;
                    total
                }
                Next::Whole { total } => {
                    read_from = 0;
                    part = self.emptied(part).await?;
                    total
                }
                Next::Restart if !restarted => {
                    restarted = true;
                    part = self.emptied(part).await?;
                    continue;
                }
                Next::Restart => return Err(broken("it changed the file while it was read")),
                Next::Refused => {
                    return Err(reply::refusal("the file server", response.status(), reply::put_off(&response)));
                }
                Next::Broken(how) => return Err(broken(how)),
            };
            self.saved.total = total;
            self.saved.validator = range::validator(&said).or(self.saved.validator.take());
            self.check_total(total)?;
            let before = part.bytes;
            let end;
            (part, end) = self.receive(response, part).await?;
            let is_all = self.saved.total.map_or(matches!(end, End::Whole), |total| part.bytes == total);
            if is_all {
                return Ok((self.checked(part).await?, read_from));
            }
            if part.bytes - before < WORTH_ANOTHER {
                return Err(JobError::new("incomplete", "the file server closed the connection in the middle"));
            }
        }
    }

    /// Waits for something that a stop of the attempt ends.
    async fn until_stopped<T>(&self, work: impl Future<Output = Result<T, JobError>>) -> Result<T, JobError> {
        tokio::select! {
            biased;
            () = self.ctx.cancellation().cancelled() => Err(JobError::cancelled()),
            done = work => done,
        }
    }

    /// Forgets what is there.
    async fn emptied(&mut self, mut part: Part) -> Result<Part, JobError> {
        let with_digest = self.input.sha256.is_some();
        self.saved = Saved { url: self.input.url.clone(), ..Saved::default() };
        self.rate = Rate::new(0);
        // Saved first: a file that is shorter than its checkpoint is read again, one that is another is not seen.
        self.ctx.save_checkpoint(&self.saved).await?;
        blocking(move || part.keep(0, with_digest).map(|()| part)).await
    }

    fn check_total(&self, total: Option<u64>) -> Result<(), JobError> {
        match (total, self.input.length) {
            (Some(total), Some(length)) if total != length => Err(wrong_length(total, length)),
            (Some(total), _) if total > self.handler.max_bytes => Err(too_large(self.handler.max_bytes)),
            _ => Ok(()),
        }
    }

    /// Writes what a response brings, until it ends or breaks. What has arrived is kept and saved in each case.
    async fn receive(&mut self, response: Response, mut part: Part) -> Result<(Part, End), JobError> {
        let limit = self.saved.total.or(self.input.length).unwrap_or(u64::MAX).min(self.handler.max_bytes);
        let mut body = response.bytes_stream();
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut saved_at = Instant::now();
        loop {
            let piece = tokio::select! {
                biased;
                () = self.ctx.cancellation().cancelled() => Err(JobError::cancelled()),
                piece = body.next() => Ok(piece),
            };
            let end = match &piece {
                Ok(Some(Ok(bytes))) => {
                    chunk.extend_from_slice(bytes);
                    None
                }
                Ok(None) => Some(End::Whole),
                Ok(Some(Err(_))) | Err(_) => Some(End::Broken),
            };
            if part.bytes + chunk.len() as u64 > limit {
                return Err(self.too_much(limit));
            }
            if chunk.len() >= CHUNK || end.is_some() {
                (part, chunk) =
                    blocking(move || part.append(&chunk).map(|()| (part, Vec::with_capacity(CHUNK)))).await?;
            }
            if end.is_some() || saved_at.elapsed() >= SAVE_EVERY {
                part = self.save(part).await?;
                saved_at = Instant::now();
            }
            piece?;
            if let Some(end) = end {
                return Ok((part, end));
            }
        }
    }

    /// Brings what was written to the disk, then says so to the store and to those who watch.
    async fn save(&mut self, part: Part) -> Result<Part, JobError> {
        let part = blocking(move || part.sync().map(|()| part)).await?;
        if self.saved.bytes != part.bytes {
            self.saved.bytes = part.bytes;
            self.ctx.save_checkpoint(&self.saved).await?;
            let (percent, message) = shown(part.bytes, self.saved.total, self.rate.per_second(part.bytes));
            self.ctx.report_progress(percent, message);
        }
        Ok(part)
    }

    /// More than was said or allowed has come.
    fn too_much(&self, limit: u64) -> JobError {
        match (self.input.length, self.saved.total) {
            _ if limit == self.handler.max_bytes => too_large(limit),
            (Some(length), None) => wrong_length(limit + 1, length),
            _ => broken("it sent more than it had said"),
        }
    }

    /// Checks length and digest, and saves that it is whole: from here on only its name is missing.
    async fn checked(&mut self, part: Part) -> Result<Part, JobError> {
        if let Some(length) = self.input.length.filter(|length| *length != part.bytes) {
            return Err(wrong_length(part.bytes, length));
        }
        let is_other = |digest: String, wanted: &String| !digest.eq_ignore_ascii_case(wanted);
        if part.digest().zip(self.input.sha256.as_ref()).is_some_and(|(digest, wanted)| is_other(digest, wanted)) {
            let error = JobError::terminal("digest_mismatch", "the file does not have the SHA-256 digest it must have");
            if !self.saved.pieced {
                return Err(error);
            }
            // The pieces may come from different files; all of it anew will show.
            self.emptied(part).await?;
            return Err(error.with_retryable(true));
        }
        let part = blocking(move || part.sync().map(|()| part)).await?;
        (self.saved.bytes, self.saved.checked) = (part.bytes, true);
        self.ctx.save_checkpoint(&self.saved).await?;
        let (percent, message) = shown(part.bytes, Some(part.bytes), self.rate.per_second(part.bytes));
        self.ctx.report_progress(percent, message);
        Ok(part)
    }
}

fn broken(how: &str) -> JobError {
    JobError::new("bad_server", format!("the file server cannot be trusted: {how}"))
}

fn wrong_length(bytes: u64, length: u64) -> JobError {
    JobError::terminal("length_mismatch", format!("the file has {bytes} bytes or more, and must have {length}"))
        .with_details(serde_json::json!({ "bytes": bytes, "length": length }))
}

fn too_large(max: u64) -> JobError {
    JobError::terminal("too_large", format!("the file has more than the allowed {max} bytes"))
}

/// Where a redirect leads, if it may be followed: never from https to http, never to an address that is not allowed.
fn next_hop(egress: &Egress, from: &Url, location: &str) -> Result<Url, JobError> {
    let blocked = |message: String| JobError::terminal("address_blocked", message);
    let to = from.join(location).map_err(|_| blocked("the file server redirects to no usable address".to_owned()))?;
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err(blocked("the file server redirects from https to another scheme".to_owned()));
    }
    egress.check(to.as_str()).map_err(|error| blocked(format!("the file server redirects elsewhere: {error}")))
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn said(response: &Response) -> Said {
    let headers = response.headers();
    let starts = |name: &HeaderName, with: &str| text(headers, name).is_some_and(|value| value.starts_with(with));
    let encoding = text(headers, &header::CONTENT_ENCODING);
    Said {
        length: text(headers, &header::CONTENT_LENGTH).and_then(|length| length.trim().parse().ok()),
        range: text(headers, &header::CONTENT_RANGE),
        etag: text(headers, &header::ETAG),
        modified: text(headers, &header::LAST_MODIFIED),
        multipart: starts(&header::CONTENT_TYPE, "multipart/byteranges"),
        encoded: encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")),
    }
}

/// How fast bytes come, over the time since the last look.
struct Rate {
    at: Instant,
    bytes: u64,
}

impl Rate {
    fn new(bytes: u64) -> Rate {
        Rate { at: Instant::now(), bytes }
    }

    fn per_second(&mut self, bytes: u64) -> f64 {
        let (seconds, came) = (self.at.elapsed().as_secs_f64(), bytes.saturating_sub(self.bytes));
        *self = Rate::new(bytes);
        if seconds > 0.0 { came as f64 / seconds } else { 0.0 }
    }
}

/// Progress in percent and in words.
fn shown(bytes: u64, total: Option<u64>, per_second: f64) -> (f32, String) {
    let mib = |bytes: f64| format!("{:.1} MiB", bytes / (1024.0 * 1024.0));
    let (have, rate) = (mib(bytes as f64), mib(per_second));
    match total.filter(|total| *total > 0) {
        Some(total) => {
            ((bytes as f64 * 100.0 / total as f64) as f32, format!("{have} of {}, {rate}/s", mib(total as f64)))
        }
        None => (0.0, format!("{have}, {rate}/s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HND-1: a redirect is checked as the first address is.
    #[test]
    fn redirects_lead_only_where_the_first_request_could() {
        let egress = Egress::default();
        let from = Url::parse("https://example.org/a/b").expect("a URL");
        let hop = |location: &str| next_hop(&egress, &from, location);
        assert_eq!(hop("/c").expect("allowed").as_str(), "https://example.org/c");
        assert_eq!(hop("https://cdn.example.org/c").expect("allowed").as_str(), "https://cdn.example.org/c");
        for location in [
            "http://example.org/",
            "https://169.254.169.254/latest",
            "//127.0.0.1/",
            "https://[::1]/",
            "https://user@example.org/",
            "https://example.org:8443/",
            "file:///etc/passwd",
            "https://",
        ] {
            let error = hop(location).expect_err(location);
            assert_eq!((error.code.as_str(), error.is_retryable()), ("address_blocked", false), "{location}");
        }
    }

    #[test]
    fn progress_says_how_much_and_how_fast() {
        let mib = 1024 * 1024;
        assert_eq!(
            shown(50 * mib, Some(200 * mib), 3.5 * mib as f64),
            (25.0, "50.0 MiB of 200.0 MiB, 3.5 MiB/s".into())
        );
        assert_eq!(shown(mib, None, 0.0), (0.0, "1.0 MiB, 0.0 MiB/s".into()));
        assert_eq!(shown(0, Some(0), 0.0).0, 0.0);
    }

    /// HND-1: bad input is refused by field, before anything is done.
    #[test]
    fn every_field_is_checked() {
        let place = tempfile::tempdir().expect("a directory");
        let handler = Download::into(place.path()).expect("opens").max_bytes(1000);
        let good = DownloadInput::new("https://example.org/x", "x").sha256("ab".repeat(32)).length(1000);
        assert!(handler.check(&good).is_ok());
        let field = |input: DownloadInput| handler.check(&input).expect_err("refused").field;
        for url in
            ["", "x", "http://example.org/", "https://127.0.0.1/", "https://u@example.org/", "https://example.org:1/"]
        {
            assert_eq!(field(DownloadInput { url: url.into(), ..good.clone() }), "url", "{url}");
        }
        assert_eq!(field(DownloadInput { url: format!("https://e.org/{}", "x".repeat(9000)), ..good.clone() }), "url");
        assert_eq!(field(DownloadInput { to: "../x".into(), ..good.clone() }), "to");
        for digest in ["", "ab", &"zz".repeat(32), &"é".repeat(32)] {
            assert_eq!(field(good.clone().sha256(digest)), "sha256", "{digest}");
        }
        assert_eq!(field(good.length(1001)), "length");
    }
}
