//! What commands work on: a database that this process opens itself, or a server over HTTP. One trait with the verbs that
//! commands need and two ways to carry them out, so that a command is written once and prints the same for both.

mod direct;
mod http;
mod schedules;
mod shapes;
mod sse;

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::Stream;
use serde_json::value::RawValue;
use windlass::store::{AuditEntry, AuditFilter, CancelReply, Counts, NodeRecord, Pause, PauseTarget, Submitted};
use windlass::{
    ApiKey, BulkAction, BulkId, BulkOptions, BulkProgress, Edit, FailureGroup, HistoryEntry, JobFilter, JobId,
    JobRecord, Keeping, LogLine, NewApiKey, Page, Payload, Preview, Quota, Schedule, Status, SubmitOptions, TenantId,
    TenantUse, Timestamp, UsageRow, Webhook,
};

use crate::args::Global;
use crate::beside::{self, Beside};
use crate::connect::Place;
use crate::error::{CliError, Result};

pub(crate) use http::read_url;
pub(crate) use schedules::{NextRuns, SchedulePage, ScheduleView};
pub(crate) use shapes::{Backlog, Condition, ENDED_OVER, Ended, Event, Handler, Loop, Policy, View, Wanted, Why};
pub(crate) use sse::Frames;

/// Answers that come one after the other.
pub(crate) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// Everything a command may ask for. What is asked is asked for the tenant (or for all of them) that the options name.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// Where it is, for people, without secrets.
    fn describe(&self) -> String;

    /// The time there.
    async fn now(&self) -> Result<Timestamp>;

    /// Leaves the cluster, where something was started. Called when a command has ended, whatever it came to, and in between
    /// by one that lasts: what is asked for afterwards starts anew.
    async fn close(&self);

    // ---- jobs

    /// Stores a job, and says so in the audit log.
    async fn submit(&self, handler: &str, input: Box<RawValue>, options: SubmitOptions) -> Result<Submitted>;

    /// Stores one job for each input, all or none, in their order, and says so in the audit log.
    async fn submit_many(
        &self,
        handler: &str,
        inputs: Vec<Box<RawValue>>,
        options: SubmitOptions,
    ) -> Result<Vec<Submitted>>;

    /// Jobs that pass the filter, newest first, without what they returned.
    async fn list(&self, filter: &JobFilter, page: Page) -> Result<Vec<JobRecord>>;

    /// One job, with what it returned.
    async fn job(&self, id: JobId) -> Result<JobRecord>;

    /// Why it is not running now.
    async fn why(&self, id: JobId) -> Result<Why>;

    /// Its input; an error with the code of a seal where it cannot be opened.
    async fn input(&self, id: JobId) -> Result<Payload>;

    /// Everything that happened to it, oldest first.
    async fn history(&self, id: JobId) -> Result<Vec<HistoryEntry>>;

    /// What becomes of it from now on; ends when it has ended.
    async fn watch(&self, id: JobId) -> Result<Answers<View>>;

    /// Cancels it.
    async fn cancel(&self, id: JobId, reason: &str) -> Result<CancelReply>;

    /// Puts a dead letter back to work, in place or as a new job; answers as which.
    async fn replay(&self, id: JobId, as_new: bool) -> Result<JobId>;

    /// Removes an ended job.
    async fn purge(&self, id: JobId) -> Result;

    /// Tries it again now: a retrying job without its delay, a dead letter with a clean count; answers as which job.
    async fn retry(&self, id: JobId) -> Result<JobId>;

    /// Changes a waiting job.
    async fn edit(&self, id: JobId, edit: &Edit) -> Result;

    /// Submits it again as a new job that names it.
    async fn clone_job(&self, id: JobId, input: Option<Payload>) -> Result<JobId>;

    /// What it has logged after the line with this number.
    async fn logs(&self, id: JobId, after: u64) -> Result<Vec<LogLine>>;

    // ---- many jobs

    /// How many jobs pass, up to a cap, with some of them.
    async fn preview(&self, filter: &JobFilter, cap: usize) -> Result<Preview>;

    /// Begins to do something to all that pass; refused if they have become more than were confirmed.
    async fn bulk(
        &self,
        action: &BulkAction,
        filter: &JobFilter,
        options: &BulkOptions,
        confirmed: u64,
    ) -> Result<BulkProgress>;

    /// How far that has come.
    async fn bulk_progress(&self, id: BulkId) -> Result<BulkProgress>;

    /// Ends it before its next job.
    async fn bulk_stop(&self, id: BulkId) -> Result;

    /// Failures grouped by what went wrong.
    async fn failures(&self, filter: &JobFilter, limit: usize) -> Result<Vec<FailureGroup>>;

    // ---- schedules

    /// Schedules by name, after the one named `after`.
    async fn schedules(&self, after: Option<&str>, limit: usize) -> Result<SchedulePage>;

    /// One schedule.
    async fn schedule(&self, name: &str) -> Result<ScheduleView>;

    /// The input of its jobs.
    async fn schedule_input(&self, name: &str) -> Result<Payload>;

    /// Creates a schedule or changes it, but for what is kept.
    async fn put_schedule(&self, schedule: Schedule, keeping: Keeping) -> Result<ScheduleView>;

    /// Removes a schedule.
    async fn remove_schedule(&self, name: &str) -> Result;

    /// Pauses a schedule or resumes it.
    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView>;

    /// Starts a job of a schedule now.
    async fn trigger_schedule(&self, name: &str) -> Result<Submitted>;

    /// The next times at which it fires, in its zone and in the viewer's.
    async fn next_runs(&self, name: &str, count: usize, zone: Option<&str>) -> Result<NextRuns>;

    /// The jobs that it has started, newest first.
    async fn schedule_runs(&self, name: &str, page: Page) -> Result<Vec<JobRecord>>;

    // ---- the whole

    /// Changes of status, one after the other, for ever.
    async fn events(&self, wanted: Wanted) -> Result<Answers<Event>>;

    /// The handlers that live nodes have.
    async fn handlers(&self) -> Result<Vec<Handler>>;

    /// What waits for each handler.
    async fn backlog(&self) -> Result<Vec<Backlog>>;

    /// How many jobs ended lately, step by step, oldest first. The last step is not over.
    async fn ended(&self) -> Result<Vec<Ended>>;

    /// What jobs have cost, by tenant, handler and day; both days included.
    async fn usage(&self, from: jiff::civil::Date, to: jiff::civil::Date) -> Result<Vec<UsageRow>>;

    /// Makes an API key; answers with its secret.
    async fn create_key(&self, new: NewApiKey) -> Result<(ApiKey, String)>;

    /// The API keys, without their secrets.
    async fn api_keys(&self) -> Result<Vec<ApiKey>>;

    /// Ends an API key; returns false if it does not exist.
    async fn revoke_key(&self, id: &str) -> Result<bool>;

    /// Adds a webhook; answers with the secret that signs its calls.
    async fn add_webhook(&self, url: &str, events: &[Status], handler: Option<&str>) -> Result<(Webhook, String)>;

    /// The webhooks, without their secrets.
    async fn webhooks(&self) -> Result<Vec<Webhook>>;

    /// Pauses a webhook or resumes it; returns false if it does not exist.
    async fn pause_webhook(&self, id: &str, paused: bool) -> Result<bool>;

    /// Removes a webhook; returns false if it does not exist.
    async fn remove_webhook(&self, id: &str) -> Result<bool>;

    /// How many jobs are in each status.
    async fn counts(&self) -> Result<Counts>;

    /// Stops starting jobs of a target; of a handler that nobody knows only by force.
    async fn pause(&self, target: &PauseTarget, reason: &str, force: bool) -> Result;

    /// Ends a pause; false if there was none.
    async fn resume(&self, target: &PauseTarget) -> Result<bool>;

    /// The pauses in force.
    async fn pauses(&self) -> Result<Vec<Pause>>;

    /// The registered processes.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;

    /// Why the process that answers should not be sent work, by its own probe; nothing if it should, or if none answers.
    async fn not_ready(&self) -> Result<Option<String>>;

    /// How the process that answers is; nothing where a database is looked at itself.
    async fn condition(&self) -> Result<Option<Condition>>;

    /// The audit log, newest first.
    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>>;

    /// What tenants use: the one that was named, otherwise all.
    async fn tenants(&self) -> Result<Vec<TenantUse>>;

    /// The policy that holds for a tenant, or the default one.
    async fn quota(&self, of: Option<TenantId>) -> Result<Policy>;

    /// Sets a policy, or takes it back.
    async fn set_quota(&self, of: Option<TenantId>, quota: Option<&Quota>) -> Result;
}

/// The place that the options name, opened when it is first needed. A SQLite file that a server holds is reached through
/// that server: nobody else may write to it.
pub(crate) fn open(global: &Global) -> Result<Arc<dyn Backend>> {
    if let Some(url) = &global.url {
        return Ok(Arc::new(http::Http::new(url, global)?));
    }
    let place = Place::of(global)?;
    Ok(match serving(&place, global)? {
        Some(server) => server,
        None => on(&place, global),
    })
}

/// The server that holds a SQLite file, if one does.
pub(crate) fn serving(place: &Place, global: &Global) -> Result<Option<Arc<dyn Backend>>> {
    let Place::Sqlite(path) = place else { return Ok(None) };
    let Some(Beside { url, api_key, .. }) = beside::find(path) else { return Ok(None) };
    let global = Global { api_key: Some(api_key), ..global.clone() };
    Ok(Some(Arc::new(http::Http::new(&url, &global)?)))
}

/// A new login link of the server that the options name, or of the one that holds the SQLite file.
pub(crate) async fn login_link(global: &Global) -> Result<String> {
    if let Some(url) = &global.url {
        return http::Http::new(url, global)?.login_link().await;
    }
    let place = Place::of(global)?;
    let Place::Sqlite(path) = &place else {
        let message = "name the server with --url, with a key that has every right in WINDLASS_API_KEY: a PostgreSQL database does not know its servers";
        return Err(CliError::Usage(message.to_owned()));
    };
    match beside::find(path) {
        Some(Beside { url, api_key, .. }) => {
            http::Http::new(&url, &Global { api_key: Some(api_key), ..global.clone() })?.login_link().await
        }
        None => {
            let message =
                format!("no process serves {}; start one with `windlass up` or `windlass serve`", place.describe());
            Err(CliError::NotFound(message))
        }
    }
}

/// A database, whoever else has it.
pub(crate) fn on(place: &Place, global: &Global) -> Arc<dyn Backend> {
    Arc::new(direct::Direct::new(place.clone(), global.clone()))
}

/// The database that the options name, for commands that no server carries out.
pub(crate) fn place(global: &Global, command: &str) -> Result<Place> {
    if global.url.is_some() {
        let message = format!("`windlass {command}` works on the database itself; name it with --db");
        return Err(CliError::Usage(message));
    }
    Place::of(global)
}

/// Refuses an address that no command could use, before it is saved.
pub(crate) fn check_address(global: &Global) -> Result {
    match &global.url {
        Some(url) => http::read_url(url).map(drop),
        None => Place::of(global).map(drop),
    }
}

/// Whether an API key is about to travel where others can read it.
pub(crate) fn is_exposed(global: &Global) -> bool {
    let read = global.url.as_deref().map(http::read_url);
    global.api_key.is_some() && matches!(read, Some(Ok(url)) if http::is_exposed(&url))
}
