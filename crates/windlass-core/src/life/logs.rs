//! Log lines of jobs: what a handler says while it runs, kept with the job, the newest only. `context` takes
//! lines from handlers, the node saves them in batches beside progress, the service reads them back. Never waits in a
//! handler, and never fails a job: a line that cannot be kept is dropped.

use std::collections::VecDeque;

use foldhash::HashMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::life::context::{Attempt, JobContext, Stop};
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::tenant::SecurityContext;
use crate::node::Worker;
use crate::operate::within::Within;
use crate::service::JobService;
use crate::store::{Fence, LeaseId, NewLine, Note, Noted};

#[cfg(feature = "job-logs")]
pub use layer::JobLogs;

/// The maximum number of lines stored per job; the newest are kept. Use a log service to keep more.
pub const LOG_LINES: usize = 200;

/// The maximum bytes stored of a line.
pub const LOG_BYTES: usize = 1_024;

/// Jobs whose lines go in one write: at most 16 MB.
const JOBS_PER_WRITE: usize = 64;

/// How serious a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Every step.
    Trace,
    /// For debugging.
    Debug,
    /// Normal operation.
    Info,
    /// A possible problem.
    Warn,
    /// A failure.
    Error,
}

impl LogLevel {
    /// All, from the least serious on.
    pub const ALL: [LogLevel; 5] = [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error];

    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            LogLevel::Trace => "trace",
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        }
    }

    /// Reads a name.
    pub fn parse(text: &str) -> Result<LogLevel, InvalidInput> {
        let known = LogLevel::ALL.into_iter().find(|level| level.as_str().eq_ignore_ascii_case(text));
        known.ok_or_else(|| {
            let names = LogLevel::ALL.map(LogLevel::as_str).join(", ");
            InvalidInput::new("level", format!("unknown level `{}`; known are {names}", text.escape_debug()))
        })
    }

    /// The number that stores save.
    pub fn code(self) -> i16 {
        self as i16
    }

    /// From the number that stores save; unknown numbers read as `info`.
    pub fn from_code(code: i16) -> LogLevel {
        LogLevel::ALL.into_iter().find(|level| level.code() == code).unwrap_or(LogLevel::Info)
    }
}

impl std::fmt::Display for LogLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A line as it is read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The line's number within its job, counted from 1, so that a reader can resume after it. Missing numbers are dropped
    /// lines.
    pub sequence: u64,
    /// When it was logged, by the store's clock as the node knew it.
    pub at: Timestamp,
    /// In which attempt.
    pub attempt: u16,
    /// How serious it is.
    pub level: LogLevel,
    /// The text.
    pub message: String,
}

/// A line as the memory store keeps it: with the lease it was said under, and its number among the lines of that lease,
/// by which a repeated write is recognised.
#[derive(Clone, Debug)]
pub(crate) struct KeptLine {
    /// Under which lease.
    pub(crate) lease: LeaseId,
    /// The line's number within its lease, counted from 1.
    pub(crate) number: u64,
    /// The line.
    pub(crate) line: LogLine,
}

/// Adds what a report brings that is new, and drops what is more than [`LOG_LINES`] behind. Pure; stores that do it in
/// SQL must agree with this.
pub(crate) fn append(kept: &mut VecDeque<KeptLine>, lease: LeaseId, attempt: u16, lines: Vec<NewLine>) {
    let top = kept.back().map_or(0, |last| last.line.sequence);
    let done = kept.iter().filter(|known| known.lease == lease).map(|known| known.number).max().unwrap_or(0);
    for NewLine { number, at, level, message } in lines {
        if number > done {
            let line = LogLine { sequence: top + number - done, at, attempt, level, message };
            kept.push_back(KeptLine { lease, number, line });
        }
    }
    let top = kept.back().map_or(0, |last| last.line.sequence);
    while kept.front().is_some_and(|first| first.line.sequence + LOG_LINES as u64 <= top) {
        kept.pop_front();
    }
}

/// Lines that are not saved yet, of attempts that run here.
#[derive(Default)]
pub(crate) struct Unsaved {
    lines: Mutex<HashMap<Fence, Pending>>,
    /// One write at a time: lines of a lease must come in order, and a finish waits for the write under way.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Pending {
    attempt: u16,
    lines: VecDeque<NewLine>,
}

impl Unsaved {
    /// Takes a line; the oldest of too many is dropped.
    pub(crate) fn push(&self, attempt: &Attempt, at: Timestamp, level: LogLevel, message: String) {
        let mut all = self.lines.lock();
        // Numbered under the lock, so that lines are handed over in the order of their numbers.
        let number = attempt.next_log_line();
        let new = || Pending { attempt: attempt.job.attempt(), lines: VecDeque::new() };
        let pending = all.entry(attempt.fence()).or_insert_with(new);
        if pending.lines.len() >= LOG_LINES {
            pending.lines.pop_front();
        }
        pending.lines.push_back(NewLine { number, at, level, message });
    }

    /// The lines of some attempts, `first` among them. They stay here until they are saved.
    fn batch(&self, first: Option<Fence>) -> Vec<(Fence, Pending)> {
        let all = self.lines.lock();
        let others = all.keys().copied().filter(|fence| Some(*fence) != first);
        let fences = first.into_iter().chain(others).take(JOBS_PER_WRITE);
        fences.filter_map(|fence| Some((fence, all.get(&fence)?.clone()))).collect()
    }

    /// Forgets the lines up to a number.
    fn saved(&self, fence: Fence, through: u64) {
        let mut all = self.lines.lock();
        if let Some(pending) = all.get_mut(&fence) {
            pending.lines.retain(|line| line.number > through);
            if pending.lines.is_empty() {
                all.remove(&fence);
            }
        }
    }

    fn forget(&self, fence: Fence) {
        self.lines.lock().remove(&fence);
    }

    fn has(&self, fence: Fence) -> bool {
        self.lines.lock().contains_key(&fence)
    }

    fn jobs(&self) -> usize {
        self.lines.lock().len()
    }
}

impl Worker {
    /// Saves what has been said since the last time.
    pub(crate) async fn save_logs(&self) {
        // As many writes as there are attempts to save; what is said meanwhile is for the next time.
        for _ in 0..self.logs.jobs().div_ceil(JOBS_PER_WRITE) {
            let _writing = self.logs.writing.lock().await;
            if !self.write_logs(None).await {
                return;
            }
        }
    }

    /// Saves what an attempt has said, before it ends: afterwards nothing more is accepted.
    pub(crate) async fn save_logs_of(&self, fence: Fence) {
        if !self.logs.has(fence) {
            return;
        }
        let _writing = self.logs.writing.lock().await;
        // Whoever wrote meanwhile may have saved these, too.
        if self.logs.has(fence) {
            self.write_logs(Some(fence)).await;
        }
        self.logs.forget(fence);
    }

    /// One write. False if it failed.
    async fn write_logs(&self, first: Option<Fence>) -> bool {
        let batch = self.logs.batch(first);
        let last = |(fence, pending): &(Fence, Pending)| (*fence, pending.lines.back().map_or(0, |line| line.number));
        let sent: Vec<(Fence, u64)> = batch.iter().map(last).collect();
        if sent.is_empty() {
            return true;
        }
        let note = |(fence, Pending { attempt, lines }): (Fence, Pending)| Note {
            fence,
            what: Noted::Log { attempt, lines: lines.into() },
        };
        match self.store.note(self.membership().node, batch.into_iter().map(note).collect()).await {
            Ok(kept) => {
                for ((fence, through), kept) in sent.into_iter().zip(kept) {
                    self.logs.saved(fence, through);
                    if !kept {
                        self.stop_attempt(fence.job, Some(fence.lease), Stop::LeaseLost);
                    }
                }
                true
            }
            Err(error) => {
                tracing::debug!(%error, "log lines could not be saved, trying again");
                false
            }
        }
    }
}

impl JobService {
    /// The log lines of a job after the line `after`, oldest first; at most the newest [`LOG_LINES`]. Lines of a running job
    /// appear within moments.
    pub async fn logs(&self, ctx: &SecurityContext, id: JobId, after: u64) -> Result<Vec<LogLine>, Error> {
        self.within(ctx.scope()).logs(id, after).await
    }
}

impl Within {
    /// What a job has said, as [`JobService::logs`].
    pub async fn logs(&self, id: JobId, after: u64) -> Result<Vec<LogLine>, Error> {
        let record = self.get(id).await?;
        let mut lines = self.store().logs(self.scope(), id, after).await?;
        if record.spec.sealed {
            self.worker().seals.open_lines(record.tenant, id, &mut lines).await;
        }
        Ok(lines)
    }
}

/// Runs the code of an attempt so that [`JobLogs`] finds the job that it belongs to.
#[cfg(feature = "job-logs")]
pub(crate) fn in_job<F: Future>(ctx: &JobContext, code: F) -> impl Future<Output = F::Output> {
    layer::CURRENT.scope(ctx.clone(), code)
}

/// Without the feature nobody asks.
#[cfg(not(feature = "job-logs"))]
pub(crate) fn in_job<F: Future>(_: &JobContext, code: F) -> impl Future<Output = F::Output> {
    code
}

#[cfg(feature = "job-logs")]
mod layer {
    use std::fmt::Write as _;

    use tracing::field::{Field, Visit};
    use tracing::{Event, Level, Subscriber};
    use tracing_subscriber::layer::{Context, Layer};

    use super::LogLevel;
    use crate::life::context::JobContext;

    tokio::task_local! {
        /// The attempt whose handler this task runs.
        pub(super) static CURRENT: JobContext;
    }

    /// A layer for `tracing_subscriber` that stores what handlers log with their jobs (feature `job-logs`), beside your other
    /// layers. It captures events of the handler's own task, not of tasks that the handler spawns.
    ///
    /// ```
    /// use tracing_subscriber::layer::SubscriberExt;
    /// let subscriber = tracing_subscriber::registry().with(windlass_core::JobLogs::new());
    /// # let _ = subscriber;
    /// ```
    #[derive(Clone, Copy, Debug)]
    pub struct JobLogs {
        level: Level,
    }

    impl Default for JobLogs {
        fn default() -> Self {
            JobLogs { level: Level::INFO }
        }
    }

    impl JobLogs {
        /// Stores events of the level `info` and above.
        pub fn new() -> Self {
            JobLogs::default()
        }

        /// Stores events of `level` and above. Libraries may log secrets at the lower levels.
        #[must_use]
        pub fn level(mut self, level: Level) -> Self {
            self.level = level;
            self
        }
    }

    impl<S: Subscriber> Layer<S> for JobLogs {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            if *event.metadata().level() > self.level {
                return;
            }
            // Outside of a handler there is no job to keep it with.
            let _ = CURRENT.try_with(|job| job.log(level_of(event.metadata().level()), Text::of(event)));
        }
    }

    fn level_of(level: &Level) -> LogLevel {
        match *level {
            Level::TRACE => LogLevel::Trace,
            Level::DEBUG => LogLevel::Debug,
            Level::INFO => LogLevel::Info,
            Level::WARN => LogLevel::Warn,
            Level::ERROR => LogLevel::Error,
        }
    }

    /// An event in a line: its message, then its fields.
    #[derive(Default)]
    struct Text {
        message: String,
        fields: String,
    }

    impl Text {
        fn of(event: &Event<'_>) -> String {
            let mut text = Text::default();
            event.record(&mut text);
            text.message + &text.fields
        }
    }

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            // Writing to a string does not fail.
            let _ = match field.name() {
                "message" => write!(self.message, "{value:?}"),
                name => write!(self.fields, " {name}={value:?}"),
            };
        }

        fn record_str(&mut self, field: &Field, value: &str) {
            match field.name() {
                "message" => self.message.push_str(value),
                _ => self.record_debug(field, &value),
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::sync::Arc;

        use tracing_subscriber::layer::SubscriberExt;

        use super::*;
        use crate::{JobError, JobService, LogLine, MemoryStore, SecurityContext, SubmitOptions};

        /// BEY-7: what a handler logs is kept with its job; what others log is not.
        #[test]
        fn events_inside_a_handler_are_kept_with_its_job() {
            let subscriber = tracing_subscriber::registry().with(JobLogs::new());
            let _guard = tracing::subscriber::set_default(subscriber);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let lines: Vec<LogLine> = runtime.block_on(async {
                let talks = |_: (), _: JobContext, name: String| async move {
                    tracing::debug!("too much");
                    tracing::info!(user = 7, "hello {name}");
                    tracing::warn!(path = "a b", "careful");
                    Ok::<_, JobError>(())
                };
                let jobs = JobService::builder(Arc::new(MemoryStore::new())).function("talks", (), talks);
                let jobs = jobs.without_workers().start().await.expect("starts");
                let ctx = SecurityContext::system();
                let id = jobs.submit_named(&ctx, "talks", "ann", SubmitOptions::new()).await.expect("accepted").id;
                tracing::error!("nobody's");
                assert_eq!(jobs.tick(&ctx, 1).await.expect("runs"), 1);
                let lines = jobs.logs(&ctx, id, 0).await.expect("reads");
                jobs.shutdown().await;
                lines
            });
            let told: Vec<(LogLevel, &str)> = lines.iter().map(|line| (line.level, line.message.as_str())).collect();
            let expected = [(LogLevel::Info, "hello ann user=7"), (LogLevel::Warn, "careful path=\"a b\"")];
            assert_eq!(told, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lease: i64, numbers: impl IntoIterator<Item = u64>) -> (LeaseId, Vec<NewLine>) {
        let line = |number| NewLine { number, at: Timestamp::MIN, level: LogLevel::Info, message: String::new() };
        (LeaseId(lease), numbers.into_iter().map(line).collect())
    }

    fn check(reports: Vec<(LeaseId, Vec<NewLine>)>, expected: &[u64]) {
        let mut kept = VecDeque::new();
        reports.into_iter().for_each(|(lease, lines)| append(&mut kept, lease, 1, lines));
        assert_eq!(kept.iter().map(|line| line.line.sequence).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn lines_are_counted_on_over_leases_and_a_repeat_adds_nothing() {
        check(vec![report(1, [1, 2]), report(1, [1, 2, 3])], &[1, 2, 3]);
        check(vec![report(1, [1, 2]), report(2, [1, 2]), report(2, [2, 3])], &[1, 2, 3, 4, 5]);
        check(vec![report(1, [1]), report(1, [4, 5])], &[1, 4, 5]);
    }

    #[test]
    fn the_newest_lines_stay() {
        let expected: Vec<u64> = (101..=300).collect();
        check(vec![report(1, 1..=150), report(1, 151..=300)], &expected);
    }

    #[test]
    fn levels_have_names_and_numbers() {
        for level in LogLevel::ALL {
            assert_eq!(LogLevel::parse(level.as_str()), Ok(level));
            assert_eq!(LogLevel::from_code(level.code()), level);
        }
        assert!(LogLevel::parse("loud").is_err());
    }
}
