//! Works on a server over HTTP, by the routes of docs/http.md. Every problem the server answers with becomes the error that
//! the same command has on a database, with the same code. Never follows a redirect: the key is for this server alone.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use windlass::store::{
    AuditEntry, AuditFilter, CancelReply, Counts, NewNode, NodeRecord, Pause, PauseTarget, Submitted,
};
use windlass::{
    ApiKey, BulkAction, BulkId, BulkOptions, BulkProgress, Edit, FailureGroup, HistoryEntry, JobFilter, JobId,
    JobRecord, Keeping, LogLine, NewApiKey, Page, Payload, Preview, Progress, Quota, Schedule, Start, Status,
    SubmitOptions, TenantId, TenantUse, Timestamp, UsageRow, Webhook,
};

use super::schedules::{NextRuns, SchedulePage, ScheduleView, schedule_json};
use super::sse::{Frame, Frames};
use super::{Answers, Backend, Backlog, Condition, ENDED_OVER, Ended, Event, Handler, Policy, View, Wanted, Why};
use crate::args::Global;
use crate::error::{CliError, Problem, Result};

/// A server that does not take the connection by then is not there.
const CONNECT: Duration = Duration::from_secs(5);
/// The server gives up after 15 s, so an answer that has not come by then will not.
const REQUEST: Duration = Duration::from_secs(30);
/// What is read of an answer that is not what it should be, to say something of it.
const MOST_SHOWN: usize = 200;

/// A server.
pub(super) struct Http {
    client: reqwest::Client,
    base: Url,
    tenant: Option<TenantId>,
    all_tenants: bool,
    me: OnceCell<Me>,
}

/// Who the server takes us for.
#[derive(Debug, Deserialize)]
struct Me {
    tenant: TenantId,
    all_tenants: bool,
}

/// The header that names one tenant, for those who may act for several.
const TENANT: &str = "Windlass-Tenant";

impl Http {
    pub(super) fn new(url: &str, global: &Global) -> Result<Http> {
        let base = read_url(url)?;
        let mut headers = HeaderMap::new();
        if let Some(key) = &global.api_key {
            let wrong = |_| CliError::invalid("api_key", "the key contains characters that are not allowed in a key");
            let mut bearer = HeaderValue::try_from(format!("Bearer {}", key.reveal())).map_err(wrong)?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let client = reqwest::Client::builder()
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .build()
            .map_err(|error| CliError::Failed(format!("cannot create an HTTP client: {error}")))?;
        Ok(Http { client, base, tenant: global.tenant, all_tenants: global.all_tenants, me: OnceCell::new() })
    }

    /// Who we are there.
    async fn me(&self) -> Result<&Me> {
        self.me.get_or_try_init(async || self.answer(self.request(Method::GET, &["me"])).await).await
    }

    /// The tenant that the server is asked to act for; none where it is to be all of them or the only one there is.
    async fn tenant(&self) -> Result<Option<TenantId>> {
        if self.tenant.is_some() {
            return Ok(self.tenant);
        }
        let me = self.me().await?;
        if self.all_tenants && !me.all_tenants {
            let message =
                format!("this key is for tenant {} only; --all-tenants needs a key for all tenants", me.tenant);
            return Err(CliError::NotAllowed(message));
        }
        Ok((!self.all_tenants && me.all_tenants).then_some(me.tenant))
    }

    /// A request as the server itself knows us.
    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("http URLs have paths").pop_if_empty().extend(["api", "v1"]).extend(path);
        self.client.request(method, url).timeout(REQUEST)
    }

    /// A new link that logs in once.
    pub(super) async fn login_link(&self) -> Result<String> {
        #[derive(Deserialize)]
        struct Link {
            path: String,
        }
        let mut url = self.base.clone();
        url.path_segments_mut().expect("http URLs have paths").pop_if_empty().extend(["login", "links"]);
        let link: Link = self.answer(self.client.post(url).timeout(REQUEST)).await?;
        // The path is whole, with the base path of the server: what comes before it is how the server is reached.
        self.base.join(&link.path).map(String::from).map_err(|error| self.strange(format_args!("{error}")))
    }

    /// A request for the tenant that the options name.
    async fn ask(&self, method: Method, path: &[&str]) -> Result<RequestBuilder> {
        let request = self.request(method, path);
        Ok(match self.tenant().await? {
            Some(tenant) => request.header(TENANT, tenant.to_string()),
            None => request,
        })
    }

    /// Sends it; anything but success is an error.
    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.unreached(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.problem(response).await)
    }

    /// Sends it and reads the JSON that comes back.
    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.send(request).await?;
        let text = response.bytes().await.map_err(|error| self.unreached(&error))?;
        serde_json::from_slice(&text).map_err(|error| {
            let shown: String = String::from_utf8_lossy(&text).chars().take(MOST_SHOWN).collect();
            self.strange(format_args!("{error} in `{}`", shown.escape_debug()))
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T> {
        self.answer(self.ask(Method::GET, path).await?).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &Value) -> Result<T> {
        self.answer(self.ask(Method::POST, path).await?.json(body)).await
    }

    /// Sends a body where no answer but success is wanted.
    async fn put(&self, method: Method, path: &[&str], body: &Value) -> Result {
        self.send(self.ask(method, path).await?.json(body)).await.map(drop)
    }

    async fn delete(&self, path: &[&str]) -> Result {
        self.send(self.ask(Method::DELETE, path).await?).await.map(drop)
    }

    /// Events from a route that never stops by itself.
    async fn frames(&self, path: &[&str], query: &[(&str, String)], after: Option<u64>) -> Result<Frames> {
        let request = self.ask(Method::GET, path).await?.query(query).header("Accept", "text/event-stream");
        let request = match after {
            Some(after) => request.header("Last-Event-ID", after.to_string()),
            None => request,
        };
        // An answer that lasts has no end to wait for; that it begins is waited for in `send`.
        let sent = tokio::time::timeout(REQUEST, self.send(request.timeout(Duration::MAX))).await;
        Ok(Frames::of(sent.map_err(|_| self.silent())??))
    }

    /// Turns what the server calls a problem into an error of ours.
    async fn problem(&self, response: Response) -> CliError {
        let status = response.status();
        let text = response.bytes().await.unwrap_or_default();
        if let Ok(problem) = serde_json::from_slice::<Problem>(&text) {
            return CliError::Problem(Box::new(problem));
        }
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                CliError::NotAllowed(format!("{} answered {status}", self.describe()))
            }
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                CliError::Unavailable(format!("{} answered {status}", self.describe()))
            }
            status if status.is_redirection() => {
                self.strange(format_args!("{status}; name the address it points to with --url"))
            }
            status => self.strange(status),
        }
    }

    fn strange(&self, what: impl std::fmt::Display) -> CliError {
        CliError::Failed(format!("{} is not a Windlass server, or has another version: {what}", self.describe()))
    }

    fn silent(&self) -> CliError {
        CliError::Unavailable(format!("{} does not respond", self.describe()))
    }

    /// Why nothing came back. The outermost text of the library names only the URL; the reason is at the end of its chain.
    fn unreached(&self, error: &reqwest::Error) -> CliError {
        let mut cause: &dyn std::error::Error = error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        match error.is_timeout() {
            true => self.silent(),
            false => CliError::Unavailable(format!("{} cannot be reached: {cause}", self.describe())),
        }
    }
}

/// Reads the address of a server. What stands in it besides is not repeated: it may be a password.
pub(crate) fn read_url(text: &str) -> Result<Url> {
    let wrong = |message: &str| CliError::invalid("url", format!("{message}; write it like https://jobs.example.org"));
    let url = Url::parse(text).map_err(|_| wrong("not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("not an http or https URL (use --db for databases)"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a user or password is not allowed; put the API key into WINDLASS_API_KEY or a profile"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("a query or fragment is not allowed"));
    }
    Ok(url)
}

/// Whether what is sent there can be read on the way.
pub(super) fn is_exposed(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    url.scheme() == "http" && !loopback
}

/// The options of a submit as the API takes them.
fn options_json(options: &SubmitOptions) -> Value {
    let mut body = json!({});
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    set("idempotency_key", options.idempotency_key.as_ref().map(|key| json!(key)));
    set("priority", options.priority.map(|priority| json!(priority.0)));
    set("ordering_key", options.ordering_key.as_ref().map(|key| json!(key)));
    set("tags", (!options.tags.is_empty()).then(|| json!(options.tags)));
    set("correlation_id", options.correlation_id.as_ref().map(|id| json!(id)));
    set("queue", options.queue.as_ref().map(|queue| json!(queue)));
    set("timeout_ms", options.spec.timeout.map(|timeout| json!(timeout.as_millis() as u64)));
    set("expires_at", options.spec.expires_at.map(|at| json!(at)));
    let (name, start) = start_json(options.start);
    set(name, start);
    body
}

/// When a job starts, as the API takes it.
fn start_json(start: Start) -> (&'static str, Option<Value>) {
    match start {
        Start::Now => ("delay_ms", None),
        Start::After(delay) => ("delay_ms", Some(json!(delay.as_millis() as u64))),
        Start::At(at) => ("run_at", Some(json!(at))),
    }
}

/// Whether what was to be removed was there.
fn found(removed: Result) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.code() == "not_found" => Ok(false),
        Err(error) => Err(error),
    }
}

#[derive(Deserialize)]
struct Jobs {
    jobs: Vec<JobRecord>,
}

#[derive(Deserialize)]
struct Input {
    input: Payload,
}

#[derive(Deserialize)]
struct Id {
    id: JobId,
}

#[derive(Deserialize)]
struct EndedJob {
    #[serde(default)]
    output: Option<Payload>,
}

/// Audit entries that a server gives at a time, at most.
const AUDIT_PAGE: usize = 200;

#[async_trait]
impl Backend for Http {
    fn describe(&self) -> String {
        self.base.as_str().trim_end_matches('/').to_owned()
    }

    async fn now(&self) -> Result<Timestamp> {
        // What is shown as an age is rounded to a second and more; the clock of the server is not worth a request.
        Ok(std::time::SystemTime::now().into())
    }

    async fn close(&self) {}

    async fn submit(&self, handler: &str, input: Box<RawValue>, options: SubmitOptions) -> Result<Submitted> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            handler: &'a str,
            // As it was given: numbers keep their digits.
            input: &'a RawValue,
            options: Value,
        }
        let body = Body { handler, input: &input, options: options_json(&options) };
        self.answer(self.ask(Method::POST, &["jobs"]).await?.json(&body)).await
    }

    async fn submit_many(
        &self,
        handler: &str,
        inputs: Vec<Box<RawValue>>,
        options: SubmitOptions,
    ) -> Result<Vec<Submitted>> {
        #[derive(serde::Serialize)]
        struct Body<'a> {
            handler: &'a str,
            inputs: &'a [Box<RawValue>],
            options: Value,
        }
        #[derive(serde::Deserialize)]
        struct Stored {
            jobs: Vec<Submitted>,
        }
        let body = Body { handler, inputs: &inputs, options: options_json(&options) };
        let stored: Stored = self.answer(self.ask(Method::POST, &["jobs", "batch"]).await?.json(&body)).await?;
        Ok(stored.jobs)
    }

    async fn list(&self, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>> {
        let mut query = vec![("limit", page.limit.to_string()), ("offset", page.offset.to_string())];
        query.extend(page.before.map(|id| ("before", id.to_string())));
        query.push(("filter", filter.to_string()));
        Ok(self.answer::<Jobs>(self.ask(Method::GET, &["jobs"]).await?.query(&query)).await?.jobs)
    }

    async fn job(&self, id: JobId) -> Result<JobRecord> {
        let id = id.to_string();
        let mut job: JobRecord = self.get(&["jobs", &id]).await?;
        if job.status == Status::Succeeded {
            job.output = self.get::<EndedJob>(&["jobs", &id, "result"]).await?.output;
        }
        Ok(job)
    }

    async fn why(&self, id: JobId) -> Result<Why> {
        self.get(&["jobs", &id.to_string(), "why"]).await
    }

    async fn input(&self, id: JobId) -> Result<Payload> {
        Ok(self.get::<Input>(&["jobs", &id.to_string(), "input"]).await?.input)
    }

    async fn history(&self, id: JobId) -> Result<Vec<HistoryEntry>> {
        #[derive(Deserialize)]
        struct Answer {
            history: Vec<HistoryEntry>,
        }
        Ok(self.get::<Answer>(&["jobs", &id.to_string(), "history"]).await?.history)
    }

    async fn watch(&self, id: JobId) -> Result<Answers<View>> {
        let first = View::from(&self.job(id).await?);
        let frames = self.frames(&["jobs", &id.to_string(), "events"], &[], None).await?;
        let result = self.ask(Method::GET, &["jobs", &id.to_string(), "result"]).await?;
        let watching = Watching { frames, result, view: first, told: false };
        let step = async |mut watching: Watching| Ok(watching.next().await?.map(|view| (view, watching)));
        Ok(Box::pin(futures_util::stream::try_unfold(watching, step)))
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<CancelReply> {
        #[derive(Deserialize)]
        struct Answer {
            outcome: String,
        }
        let path = ["jobs", &id.to_string(), "cancel"];
        Ok(match self.post::<Answer>(&path, &json!({ "reason": reason })).await?.outcome.as_str() {
            "requested" => CancelReply::Requested,
            "already_finished" => CancelReply::AlreadyFinished(Status::Canceled),
            _ => CancelReply::Canceled,
        })
    }

    async fn replay(&self, id: JobId, as_new: bool) -> Result<JobId> {
        Ok(self.post::<Id>(&["jobs", &id.to_string(), "replay"], &json!({ "as_new": as_new })).await?.id)
    }

    async fn purge(&self, id: JobId) -> Result {
        self.delete(&["jobs", &id.to_string()]).await
    }

    async fn retry(&self, id: JobId) -> Result<JobId> {
        Ok(self.post::<Id>(&["jobs", &id.to_string(), "retry"], &json!({})).await?.id)
    }

    async fn edit(&self, id: JobId, edit: &Edit) -> Result {
        let id = id.to_string();
        let mut body = json!({});
        if let Some(input) = &edit.input {
            body["input"] = serde_json::from_str(input.as_str())?;
        }
        if let Some(priority) = edit.priority {
            body["priority"] = json!(priority.0);
        }
        match edit.start {
            None => {}
            // Its own route: to start now is not to start after no time.
            Some(Start::Now) if body == json!({}) => {
                return self.put(Method::POST, &["jobs", &id, "run-now"], &json!({})).await;
            }
            Some(Start::Now) => {
                self.put(Method::PATCH, &["jobs", &id], &body).await?;
                return self.put(Method::POST, &["jobs", &id, "run-now"], &json!({})).await;
            }
            Some(start) => {
                let (name, at) = start_json(start);
                body[name] = json!(at);
            }
        }
        self.put(Method::PATCH, &["jobs", &id], &body).await
    }

    async fn clone_job(&self, id: JobId, input: Option<Payload>) -> Result<JobId> {
        let body = match input {
            Some(input) => json!({ "input": serde_json::from_str::<Value>(input.as_str())? }),
            None => json!({}),
        };
        Ok(self.post::<Id>(&["jobs", &id.to_string(), "clone"], &body).await?.id)
    }

    async fn logs(&self, id: JobId, after: u64) -> Result<Vec<LogLine>> {
        #[derive(Deserialize)]
        struct Answer {
            lines: Vec<LogLine>,
        }
        let request = self.ask(Method::GET, &["jobs", &id.to_string(), "logs"]).await?;
        Ok(self.answer::<Answer>(request.query(&[("after", after)])).await?.lines)
    }

    async fn preview(&self, filter: &JobFilter, cap: usize) -> Result<Preview> {
        self.post(&["jobs", "bulk", "preview"], &json!({ "filter": filter.to_string(), "cap": cap })).await
    }

    async fn bulk(
        &self,
        action: &BulkAction,
        filter: &JobFilter,
        options: &BulkOptions,
        confirmed: u64,
    ) -> Result<BulkProgress> {
        let mut body = json!({
            "action": action.as_str(), "filter": filter.to_string(), "confirm": confirmed, "cap": options.cap,
        });
        if let Some(rate) = options.per_second {
            body["per_second"] = json!(rate);
        }
        if let Some(limit) = options.stop_when_failing {
            body["stop_when_failing"] = json!(limit.part);
            body["judge_after"] = json!(limit.after);
        }
        match action {
            BulkAction::Cancel { reason } => body["reason"] = json!(reason),
            BulkAction::Reprioritise(priority) => body["priority"] = json!(priority.0),
            _ => {}
        }
        self.post(&["jobs", "bulk"], &body).await
    }

    async fn bulk_progress(&self, id: BulkId) -> Result<BulkProgress> {
        #[derive(Deserialize)]
        struct Answer {
            bulks: Vec<BulkProgress>,
        }
        let found = self.get::<Answer>(&["bulks"]).await?.bulks.into_iter().find(|bulk| bulk.id == id);
        found.ok_or_else(|| CliError::NotFound(format!("the server no longer knows bulk action {id}")))
    }

    async fn bulk_stop(&self, id: BulkId) -> Result {
        self.put(Method::POST, &["bulks", &id.to_string(), "stop"], &json!({})).await
    }

    async fn failures(&self, filter: &JobFilter, limit: usize) -> Result<Vec<FailureGroup>> {
        #[derive(Deserialize)]
        struct Answer {
            groups: Vec<FailureGroup>,
        }
        let query = [("filter", filter.to_string()), ("limit", limit.to_string())];
        Ok(self.answer::<Answer>(self.ask(Method::GET, &["failures"]).await?.query(&query)).await?.groups)
    }

    async fn schedules(&self, after: Option<&str>, limit: usize) -> Result<SchedulePage> {
        let mut query = vec![("limit", limit.to_string())];
        query.extend(after.map(|name| ("after", name.to_owned())));
        self.answer(self.ask(Method::GET, &["schedules"]).await?.query(&query)).await
    }

    async fn schedule(&self, name: &str) -> Result<ScheduleView> {
        self.get(&["schedules", name]).await
    }

    async fn schedule_input(&self, name: &str) -> Result<Payload> {
        Ok(self.get::<Input>(&["schedules", name, "input"]).await?.input)
    }

    async fn put_schedule(&self, schedule: Schedule, keeping: Keeping) -> Result<ScheduleView> {
        let body = schedule_json(&schedule, keeping)?;
        self.answer(self.ask(Method::PUT, &["schedules", &schedule.name]).await?.json(&body)).await
    }

    async fn remove_schedule(&self, name: &str) -> Result {
        self.delete(&["schedules", name]).await
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        self.post(&["schedules", name, if paused { "pause" } else { "resume" }], &json!({})).await
    }

    async fn trigger_schedule(&self, name: &str) -> Result<Submitted> {
        self.post(&["schedules", name, "trigger"], &json!({})).await
    }

    async fn next_runs(&self, name: &str, count: usize, zone: Option<&str>) -> Result<NextRuns> {
        let mut query = vec![("count", count.to_string())];
        query.extend(zone.map(|zone| ("zone", zone.to_owned())));
        self.answer(self.ask(Method::GET, &["schedules", name, "next"]).await?.query(&query)).await
    }

    async fn schedule_runs(&self, name: &str, page: Page) -> Result<Vec<JobRecord>> {
        let mut query = vec![("limit", page.limit.to_string())];
        query.extend(page.before.map(|id| ("before", id.to_string())));
        Ok(self.answer::<Jobs>(self.ask(Method::GET, &["schedules", name, "runs"]).await?.query(&query)).await?.jobs)
    }

    async fn events(&self, wanted: Wanted) -> Result<Answers<Event>> {
        let following = Following {
            http: Http { me: OnceCell::new(), client: self.client.clone(), base: self.base.clone(), ..*self },
            frames: None,
            wanted,
            failures: 0,
        };
        let step = async |mut following: Following| Ok(following.next().await?.map(|event| (event, following)));
        Ok(Box::pin(futures_util::stream::try_unfold(following, step)))
    }

    async fn handlers(&self) -> Result<Vec<Handler>> {
        #[derive(Deserialize)]
        struct Answer {
            handlers: Vec<Handler>,
        }
        Ok(self.get::<Answer>(&["handlers"]).await?.handlers)
    }

    async fn backlog(&self) -> Result<Vec<Backlog>> {
        #[derive(Deserialize)]
        struct Answer {
            backlog: Vec<Backlog>,
        }
        Ok(self.get::<Answer>(&["backlog"]).await?.backlog)
    }

    async fn ended(&self) -> Result<Vec<Ended>> {
        #[derive(Deserialize)]
        struct Answer {
            points: Vec<Ended>,
        }
        let request = self.ask(Method::GET, &["activity"]).await?.query(&[("span", ENDED_OVER.as_str())]);
        Ok(self.answer::<Answer>(request).await?.points)
    }

    async fn usage(&self, from: jiff::civil::Date, to: jiff::civil::Date) -> Result<Vec<UsageRow>> {
        #[derive(Deserialize)]
        struct Answer {
            usage: Vec<UsageRow>,
        }
        let query = [("from", from.to_string()), ("to", to.to_string())];
        Ok(self.answer::<Answer>(self.ask(Method::GET, &["usage"]).await?.query(&query)).await?.usage)
    }

    async fn create_key(&self, new: NewApiKey) -> Result<(ApiKey, String)> {
        #[derive(Deserialize)]
        struct Answer {
            key: ApiKey,
            secret: String,
        }
        let mut body = json!({ "name": new.name, "rights": new.rights, "all_tenants": new.all_tenants });
        if let Some(user) = new.user {
            body["user"] = json!(user);
        }
        if let Some(at) = new.expires_at {
            body["expires_at"] = json!(at);
        }
        let Answer { key, secret } = self.post(&["keys"], &body).await?;
        Ok((key, secret))
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>> {
        #[derive(Deserialize)]
        struct Answer {
            keys: Vec<ApiKey>,
        }
        Ok(self.get::<Answer>(&["keys"]).await?.keys)
    }

    async fn revoke_key(&self, id: &str) -> Result<bool> {
        found(self.delete(&["keys", id]).await)
    }

    async fn add_webhook(&self, url: &str, events: &[Status], handler: Option<&str>) -> Result<(Webhook, String)> {
        #[derive(Deserialize)]
        struct Answer {
            webhook: Webhook,
            secret: String,
        }
        let mut body = json!({ "url": url });
        if !events.is_empty() {
            body["events"] = json!(events);
        }
        if let Some(handler) = handler {
            body["handler"] = json!(handler);
        }
        let Answer { webhook, secret } = self.post(&["webhooks"], &body).await?;
        Ok((webhook, secret))
    }

    async fn webhooks(&self) -> Result<Vec<Webhook>> {
        #[derive(Deserialize)]
        struct Answer {
            webhooks: Vec<Webhook>,
        }
        Ok(self.get::<Answer>(&["webhooks"]).await?.webhooks)
    }

    async fn pause_webhook(&self, id: &str, paused: bool) -> Result<bool> {
        let act = if paused { "pause" } else { "resume" };
        let request = self.ask(Method::POST, &["webhooks", id, act]).await?;
        found(self.send(request).await.map(drop))
    }

    async fn remove_webhook(&self, id: &str) -> Result<bool> {
        found(self.delete(&["webhooks", id]).await)
    }

    async fn counts(&self) -> Result<Counts> {
        let counted: std::collections::BTreeMap<String, u64> = self.get(&["counts"]).await?;
        let mut counts = Counts::default();
        for (name, jobs) in counted {
            counts.add(Status::parse(&name)?, jobs);
        }
        Ok(counts)
    }

    async fn pause(&self, target: &PauseTarget, reason: &str, force: bool) -> Result {
        let body = json!({ "target": target.name(), "reason": reason, "force": force });
        self.put(Method::POST, &["pauses"], &body).await
    }

    async fn resume(&self, target: &PauseTarget) -> Result<bool> {
        found(self.delete(&["pauses", &target.name()]).await)
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        #[derive(Deserialize)]
        struct Answer {
            pauses: Vec<Named>,
        }
        #[derive(Deserialize)]
        struct Named {
            target: String,
            by: String,
            reason: String,
            at: Timestamp,
        }
        let pauses =
            self.get::<Answer>(&["pauses"]).await?.pauses.into_iter().map(|Named { target, by, reason, at }| {
                let target =
                    PauseTarget::parse(&target).ok_or_else(|| self.strange(format_args!("a pause of {target}")))?;
                Ok(Pause { target, by, reason, at })
            });
        pauses.collect()
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        #[derive(Deserialize)]
        struct Answer {
            nodes: Vec<Node>,
        }
        #[derive(Deserialize)]
        struct Node {
            node: windlass::store::NodeId,
            slot: windlass::MachineSlot,
            #[serde(flatten)]
            info: NewNode,
            running: usize,
            started_at: Timestamp,
            heartbeat_at: Timestamp,
        }
        let record = |Node { node, slot, info, running, started_at, heartbeat_at }| NodeRecord {
            node,
            slot,
            info,
            running,
            started_at,
            heartbeat_at,
        };
        Ok(self.get::<Answer>(&["nodes"]).await?.nodes.into_iter().map(record).collect())
    }

    async fn not_ready(&self) -> Result<Option<String>> {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("http URLs have paths").pop_if_empty().push("readyz");
        let answer = self.client.get(url).timeout(REQUEST).send().await.map_err(|error| self.unreached(&error))?;
        if answer.status().is_success() {
            return Ok(None);
        }
        let status = answer.status();
        let text = answer.text().await.unwrap_or_default();
        // A probe of ours says why in a line; a proxy may say anything.
        let why: String = text.lines().next().unwrap_or_default().chars().take(MOST_SHOWN).collect();
        Ok(Some(if why.is_empty() { status.to_string() } else { why }))
    }

    async fn condition(&self) -> Result<Option<Condition>> {
        self.get(&["health"]).await.map(Some)
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        #[derive(Deserialize)]
        struct Answer {
            entries: Vec<AuditEntry>,
            next: Option<String>,
        }
        let mut query = Vec::new();
        query.extend(filter.action.clone().map(|action| ("action", action)));
        query.extend(filter.target.clone().map(|target| ("target", target)));
        let mut before = filter.before.map(|before| before.to_string());
        let mut entries = Vec::new();
        while entries.len() < filter.limit {
            let limit = (filter.limit - entries.len()).min(AUDIT_PAGE).to_string();
            let page = query.iter().cloned().chain([("limit", limit)]).chain(before.map(|before| ("before", before)));
            let page: Vec<_> = page.collect();
            let known = entries.len();
            let mut answer: Answer = self.answer(self.ask(Method::GET, &["audit"]).await?.query(&page)).await?;
            entries.append(&mut answer.entries);
            before = answer.next;
            // A page without entries would come again and again.
            if before.is_none() || entries.len() == known {
                break;
            }
        }
        Ok(entries)
    }

    async fn tenants(&self) -> Result<Vec<TenantUse>> {
        #[derive(Deserialize)]
        struct Answer {
            tenants: Vec<TenantUse>,
        }
        // As an operator sees them, unless one was named: then only that one.
        let request = self.request(Method::GET, &["tenants"]);
        let request = match self.tenant {
            Some(tenant) => request.header(TENANT, tenant.to_string()),
            None => request,
        };
        Ok(self.answer::<Answer>(request).await?.tenants)
    }

    async fn quota(&self, of: Option<TenantId>) -> Result<Policy> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            quota: Option<Quota>,
            own: bool,
        }
        let of = of.map_or_else(|| "default".to_owned(), |tenant| tenant.to_string());
        let Answer { quota, own } = self.answer(self.request(Method::GET, &["tenants", &of, "quota"])).await?;
        Ok(Policy { quota, own })
    }

    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>) -> Result {
        let of = of.map_or_else(|| "default".to_owned(), |tenant| tenant.to_string());
        let path = ["tenants", of.as_str(), "quota"];
        let request = match quota {
            Some(quota) => self.request(Method::PUT, &path).json(quota),
            None => self.request(Method::DELETE, &path),
        };
        self.send(request).await.map(drop)
    }
}

/// How often a lost connection is made again, before that is taken for the end.
const RECONNECTS: u32 = 10;
/// How long between two tries; a server that restarts is back within some of them.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Changes of status that the server tells of, also after a break.
struct Following {
    http: Http,
    frames: Option<Frames>,
    wanted: Wanted,
    failures: u32,
}

impl Following {
    /// The next change; none once the server has ended the answer for good.
    async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            let frame = match self.frame().await {
                Ok(frame) => frame,
                Err(error) if error.code() == "unavailable" && self.failures < RECONNECTS => {
                    self.frames = None;
                    self.failures += 1;
                    tokio::time::sleep(RECONNECT_AFTER).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.failures = 0;
            if frame.event != "job" {
                continue;
            }
            let mut event: Event = serde_json::from_str(&frame.data)?;
            event.sequence = frame.id.unwrap_or(event.sequence);
            self.wanted.after = Some(event.sequence);
            if self.wanted.matches(&event) {
                return Ok(Some(event));
            }
        }
    }

    async fn frame(&mut self) -> Result<Frame> {
        let frames = match &mut self.frames {
            Some(frames) => frames,
            None => {
                let handler = self.wanted.handler.iter().map(|handler| ("handler_id", handler.clone()));
                let statuses = self.wanted.statuses.iter().map(|status| ("status", status.to_string()));
                let query: Vec<_> = handler.chain(statuses).collect();
                self.frames.insert(self.http.frames(&["events"], &query, self.wanted.after).await?)
            }
        };
        let ended = || CliError::Unavailable("the server has closed the event stream".to_owned());
        frames.next().await?.ok_or_else(ended)
    }
}

/// One job that the server tells of.
struct Watching {
    frames: Frames,
    result: RequestBuilder,
    view: View,
    told: bool,
}

impl Watching {
    /// The next change; none once it has ended.
    async fn next(&mut self) -> Result<Option<View>> {
        if !std::mem::replace(&mut self.told, true) {
            return Ok(Some(self.view.clone()));
        }
        while !self.view.status.is_terminal() {
            let Some(frame) = self.frames.next().await? else {
                return Err(CliError::Unavailable(
                    "the server closed the event stream of the job; the job continues".to_owned(),
                ));
            };
            let before = self.view.clone();
            self.take(frame).await?;
            if self.view != before {
                return Ok(Some(self.view.clone()));
            }
        }
        Ok(None)
    }

    async fn take(&mut self, frame: Frame) -> Result {
        match frame.event.as_str() {
            "progress" => self.view.progress = Some(serde_json::from_str::<Progress>(&frame.data)?),
            "status" => {
                let seen: View = serde_json::from_str(&frame.data)?;
                self.view = View { progress: seen.progress.or(self.view.progress.take()), ..seen };
                if self.view.status == Status::Succeeded {
                    self.view.output = self.output().await?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What it returned, which events do not carry.
    async fn output(&mut self) -> Result<Option<Payload>> {
        let Some(request) = self.result.try_clone() else { return Ok(None) };
        let response = request.send().await.and_then(Response::error_for_status);
        let response = response.map_err(|error| CliError::Unavailable(format!("cannot read the result: {error}")))?;
        let ended = response.json::<EndedJob>().await;
        Ok(ended.map_err(|error| CliError::Failed(format!("cannot read the result: {error}")))?.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_server_is_read_and_a_password_in_it_refused() {
        assert!(read_url("https://jobs.example.org/windlass").is_ok());
        for bad in
            ["jobs.example.org", "postgres://localhost/app", "http://ann:hunter2@host", "http://host/?key=hunter2"]
        {
            let error = read_url(bad).expect_err(bad);
            assert_eq!(error.field(), Some("url"));
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn only_plain_text_beyond_this_machine_is_exposed() {
        let exposed = |text: &str| is_exposed(&read_url(text).expect("good"));
        assert!(exposed("http://jobs.example.org") && exposed("http://10.0.0.7:7878"));
        assert!(!exposed("https://jobs.example.org"));
        assert!(!exposed("http://127.0.0.1:7878") && !exposed("http://[::1]:7878") && !exposed("http://localhost:1"));
    }
}
