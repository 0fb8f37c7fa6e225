//! Schedules: what starts a job again and again at times of a calendar. The type users write, what it means for each
//! firing (pure), and the calls of the service. `fire.rs` fires them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Limits;
use crate::flows::calendar::{BadCalendar, Calendar, MADE_UP_MAX, Missed};
use crate::life::handler_ref::HandlerRef;
use crate::life::submit::{Wanted, check_name, check_unreserved, prepare};
use crate::model::clock::Timestamp;
use crate::model::error::{Error, InvalidInput};
use crate::model::id::JobId;
use crate::model::job::{JobSpec, NewJob, Page, SubmitOptions, UniqueWithin};
use crate::model::payload::Payload;
use crate::model::priority::Priority;
use crate::model::tenant::{SecurityContext, TenantId};
use crate::seal::Kind;
use crate::service::JobService;
use crate::store::{
    self, ScheduleAsk, ScheduleChange, ScheduleChanged, ScheduleContent, ScheduleRecord, ScheduleTo, Submitted,
};
use crate::{JobFilter, JobRecord};

/// How long the name of a schedule may be: it is part of a tag of its jobs.
pub const SCHEDULE_NAME_BYTES: usize = 55;

/// How far apart jobs of one nominal time may be spread. Longer would reach into the next run of most schedules.
pub const JITTER_MAX: Duration = Duration::from_secs(3600);

/// How many next runs a preview shows at most.
pub const NEXT_RUNS_MAX: usize = 1_000;

/// How many schedules a page has at most.
pub const SCHEDULES_LISTED: usize = 1_000;

/// What the tags of jobs begin with that a schedule has started.
pub const SCHEDULE_TAG: &str = "schedule:";

/// What defines schedules in the code of a service that has no id.
const CODE: &str = "code";

/// The service that jobs of schedules are submitted by.
const SERVICE: &str = "windlass";

/// What happens at a nominal time while the job of an earlier one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// Another job starts beside it.
    #[default]
    Allow,
    /// Nothing starts.
    Skip,
    /// A job waits until it has ended.
    Queue,
}

impl Overlap {
    /// Every policy.
    pub const ALL: [Overlap; 3] = [Overlap::Allow, Overlap::Skip, Overlap::Queue];

    /// The stable name: `allow`, `skip` or `queue`.
    pub fn as_str(self) -> &'static str {
        match self {
            Overlap::Allow => "allow",
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
        }
    }

    /// Reads a stable name.
    pub fn parse(text: &str) -> Option<Self> {
        Overlap::ALL.into_iter().find(|overlap| overlap.as_str() == text)
    }
}

/// Starts a job again and again.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::sync::Arc;
/// use windlass_core::{HandlerRef, JobContext, JobError, JobService, MemoryStore, Missed, Schedule};
///
/// const REPORT: HandlerRef<String, ()> = HandlerRef::new("report.write");
///
/// async fn write(_state: (), ctx: JobContext, kind: String) -> Result<(), JobError> {
///     println!("the {kind} report of {:?}", ctx.nominal_at());
///     Ok(())
/// }
///
/// let nightly = Schedule::cron("nightly", "0 3 * * *").zone("Europe/Berlin").missed(Missed::Once).starts(REPORT, "sales");
/// let jobs = JobService::builder(Arc::new(MemoryStore::new())).function(REPORT, (), write).schedule(nightly).start().await?;
/// # jobs.shutdown().await;
/// # Ok::<_, windlass_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct Schedule {
    /// Unique within the tenant, at most [`SCHEDULE_NAME_BYTES`].
    #[serde(skip)]
    pub name: String,
    /// Five or six fields, or a nickname; see [`Calendar`].
    pub cron: String,
    /// The IANA name of its time zone.
    #[serde(default = "utc", skip_serializing_if = "is_utc")]
    pub zone: String,
    /// What becomes of times at which no node was there.
    #[serde(default)]
    pub missed: Missed,
    /// What happens while an earlier job has not ended.
    #[serde(default)]
    pub overlap: Overlap,
    /// Each job starts up to this long after its nominal time, by chance, so that many schedules of one time do not start
    /// at once.
    #[serde(default, with = "crate::model::retry::millis", skip_serializing_if = "Duration::is_zero")]
    pub jitter: Duration,
    /// What runs its jobs.
    pub handler: String,
    /// The input of its jobs.
    #[serde(skip, default = "Payload::null")]
    pub input: Payload,
    /// Where its jobs wait; the handler's own queue by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How urgent its jobs are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Labels of its jobs, besides `schedule:NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What else its jobs carry: timeout, retries, headers.
    #[serde(default, skip_serializing_if = "JobSpec::is_default")]
    pub spec: JobSpec,
    /// The service whose code defines it; `None` if a person does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) defined_by: Option<String>,
    #[serde(skip)]
    problem: Option<InvalidInput>,
}

fn utc() -> String {
    "UTC".to_owned()
}

fn is_utc(zone: &str) -> bool {
    zone == "UTC"
}

impl Schedule {
    /// A schedule by a cron expression, in UTC. Say next what it [starts](Schedule::starts).
    pub fn cron(name: impl Into<String>, expression: impl Into<String>) -> Self {
        Schedule {
            name: name.into(),
            cron: expression.into(),
            zone: utc(),
            missed: Missed::default(),
            overlap: Overlap::default(),
            jitter: Duration::ZERO,
            handler: String::new(),
            input: Payload::null(),
            queue: None,
            priority: None,
            tags: Vec::new(),
            spec: JobSpec::default(),
            defined_by: None,
            problem: None,
        }
    }

    /// The times are of this zone, such as `Europe/Berlin`.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = zone.into();
        self
    }

    /// What becomes of times at which no node was there.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// What happens while an earlier job has not ended.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Spreads starts over this time.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// The handler that runs its jobs, with their input.
    pub fn starts<I: Serialize, O>(mut self, handler: HandlerRef<I, O>, input: impl Into<I>) -> Self {
        match Payload::encode("input", &input.into(), usize::MAX) {
            Ok(payload) => self = self.starts_named(handler.id(), payload),
            Err(problem) => self.problem = Some(problem),
        }
        self
    }

    /// The same for a handler by its name and an input as JSON.
    pub fn starts_named(mut self, handler: impl Into<String>, input: Payload) -> Self {
        self.handler = handler.into();
        self.input = input;
        self
    }

    /// Where its jobs wait.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// How urgent its jobs are.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// A label of its jobs.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// The first `count` nominal times after `from`, at most [`NEXT_RUNS_MAX`].
    pub fn next_runs(&self, from: Timestamp, count: usize) -> Result<Vec<Timestamp>, InvalidInput> {
        let calendar = self.calendar(from)?;
        let times = std::iter::successors(calendar.next_after(from), |at| calendar.next_after(*at));
        Ok(times.take(count.min(NEXT_RUNS_MAX)).collect())
    }

    /// The service whose code defines it; `None` if a person does.
    pub fn defined_by(&self) -> Option<&str> {
        self.defined_by.as_deref()
    }

    pub(crate) fn calendar(&self, now: Timestamp) -> Result<Calendar, InvalidInput> {
        Calendar::new(&self.cron, &self.zone, now).map_err(|bad| match bad {
            BadCalendar::Zone { .. } => InvalidInput::new("zone", bad.to_string()),
            _ => InvalidInput::new("cron", bad.to_string()),
        })
    }

    /// Refuses what could not fire, by its field.
    fn check(&self, limits: &Limits) -> Result<(), InvalidInput> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        check_name("name", &self.name, SCHEDULE_NAME_BYTES)?;
        // Over HTTP the name is a step of a path, where these two mean other places.
        if matches!(self.name.as_str(), "." | "..") {
            return Err(InvalidInput::new("name", "`.` and `..` cannot be used as names"));
        }
        if self.jitter > JITTER_MAX {
            return Err(InvalidInput::new("jitter", format!("at most {} s", JITTER_MAX.as_secs())));
        }
        if let Missed::All(n) = self.missed
            && !(1..=MADE_UP_MAX).contains(&n)
        {
            return Err(InvalidInput::new("missed", format!("all({n}): 1 to {MADE_UP_MAX} are allowed")));
        }
        check_unreserved("handler", &self.handler)?;
        self.queue.as_deref().map_or(Ok(()), |queue| check_unreserved("queue", queue))?;
        if self.input.as_str().len() > limits.payload_bytes {
            let message = format!("{} bytes, at most {}", self.input.as_str().len(), limits.payload_bytes);
            return Err(InvalidInput::new("input", message));
        }
        Ok(())
    }

    /// What is submitted for one nominal time.
    fn options(&self, id: JobId, nominal: Timestamp) -> SubmitOptions {
        let mut options = SubmitOptions::new().run_at(nominal + jitter_of(id, nominal, self.jitter));
        options.queue = self.queue.clone();
        options.priority = self.priority;
        options.tags = self.tags.clone();
        options.tags.push(format!("{SCHEDULE_TAG}{}", self.name));
        options.spec = self.spec.clone();
        options = options.nominal_at(nominal);
        match self.overlap {
            Overlap::Allow => options,
            Overlap::Skip => options.unique_key(key_of(id), UniqueWithin::Unfinished),
            Overlap::Queue => options.ordering_key(key_of(id)),
        }
    }

    /// The job of one nominal time, with a key that no other has.
    pub(crate) fn job(
        &self,
        of: &SchedulePart<'_>,
        job: JobId,
        nominal: Timestamp,
        now: Timestamp,
    ) -> Result<NewJob, InvalidInput> {
        let key = format!("{}:{}", key_of(of.id), nominal.as_millis());
        let options = self.options(of.id, nominal).idempotency_key(key);
        let ctx = SecurityContext::new(of.tenant).with_service(SERVICE);
        let wanted = Wanted { handler: &self.handler, queue: of.queue, payload: self.input.clone(), options };
        prepare(&ctx, job, wanted, of.limits, now, |_, _, _| String::new())
    }
}

/// What a schedule does not know of itself.
pub(crate) struct SchedulePart<'a> {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) queue: &'a str,
    pub(crate) limits: &'a Limits,
}

/// What the keys of a schedule's jobs begin with. Reserved, so that nobody else can take them.
fn key_of(id: JobId) -> String {
    format!("windlass.schedule:{id}")
}

/// How long after its nominal time a job starts: by chance, but the same whoever computes it.
fn jitter_of(id: JobId, nominal: Timestamp, jitter: Duration) -> Duration {
    let bound = u64::try_from(jitter.as_micros()).unwrap_or(u64::MAX);
    if bound == 0 {
        return Duration::ZERO;
    }
    // The finalizer of SplitMix64: close numbers come out far apart.
    let mut mixed = (id.as_i64() as u64) ^ (nominal.as_micros() as u64).rotate_left(32);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Duration::from_micros((mixed ^ (mixed >> 31)) % bound)
}

/// A schedule and where it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScheduleState {
    /// What it does.
    pub schedule: Schedule,
    /// Whose it is.
    pub tenant: TenantId,
    /// Never reused.
    pub id: JobId,
    /// Grows with every change.
    pub version: u64,
    /// Whether it is paused.
    pub paused: bool,
    /// Its next nominal time, unless it never fires again.
    pub next_at: Option<Timestamp>,
    /// The last nominal time that was fired.
    pub last_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub changed_at: Timestamp,
}

/// What a change of a schedule expects, and what it leaves as it is: [`ScheduleCalls::put_keeping`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeping {
    /// The version that the schedule must have, 0 if it must not exist; `None` whatever it has.
    pub version: Option<u64>,
    /// Whether the input stays.
    pub input: bool,
    /// Whether the headers stay.
    pub headers: bool,
}

/// The schedules of a service: [`JobService::schedules`].
#[derive(Clone, Copy)]
pub struct ScheduleCalls<'a>(&'a JobService);

impl JobService {
    /// What starts jobs again and again.
    pub fn schedules(&self) -> ScheduleCalls<'_> {
        ScheduleCalls(self)
    }
}

impl ScheduleCalls<'_> {
    /// Creates a schedule of the caller's tenant, or changes the one with this name. What it fires next is counted from
    /// now. What could not fire is refused by its field, and nothing is written.
    pub async fn put(&self, ctx: &SecurityContext, schedule: Schedule) -> Result<ScheduleState, Error> {
        self.put_if(ctx, schedule, None).await
    }

    /// The same, if the schedule still has this version, or does not exist if `version` is 0.
    pub async fn put_if(
        &self,
        ctx: &SecurityContext,
        schedule: Schedule,
        version: Option<u64>,
    ) -> Result<ScheduleState, Error> {
        let node = self.0.worker();
        schedule.check(self.0.limits())?;
        let now = node.store.now().await?;
        let calendar = schedule.calendar(now)?;
        self.0.check_handler(&schedule.handler).await.map_err(|error| match error {
            Error::HandlerNotFound(_) => InvalidInput::new("handler", error.to_string()).into(),
            error => error,
        })?;
        let found = self.find(ctx, &schedule.name).await?;
        let id = found.as_ref().map_or_else(|| node.next_id(), |record| record.id);
        let part = SchedulePart { id, tenant: ctx.tenant, queue: crate::DEFAULT_QUEUE, limits: self.0.limits() };
        // What its jobs would be refused for is refused here.
        schedule.job(&part, id, now, now)?;
        let (input, sealed) = match node.seals.sealer(ctx.tenant).await? {
            Some(sealer) => (sealer.seal(id, Kind::Schedule, &schedule.input), true),
            None => (schedule.input.clone(), false),
        };
        let spec = Payload::encode("schedule", &schedule, usize::MAX)?;
        let content = ScheduleContent { id, spec, input, sealed, next_at: calendar.next_after(now) };
        // A new one gets the id it was sealed under only if nobody else creates it meanwhile.
        let expect = version.or(Some(found.map_or(0, |record| record.version)));
        self.change(ctx, &schedule.name, expect, ScheduleTo::Put(Box::new(content))).await
    }

    /// The same for somebody who need not know all of it: what `keeping` names stays as it was, if the schedule exists.
    pub async fn put_keeping(
        &self,
        ctx: &SecurityContext,
        mut schedule: Schedule,
        keeping: Keeping,
    ) -> Result<ScheduleState, Error> {
        let mut version = keeping.version;
        match self.get(ctx, &schedule.name).await {
            Ok(was) => {
                // What is kept is what was read here: it must not have changed when it is written.
                version = version.or(Some(was.version));
                if keeping.input {
                    schedule.input = was.schedule.input;
                }
                if keeping.headers {
                    schedule.spec.headers = was.schedule.spec.headers;
                }
            }
            Err(Error::ScheduleNotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.put_if(ctx, schedule, version).await
    }

    /// The caller's schedule with this name.
    pub async fn get(&self, ctx: &SecurityContext, name: &str) -> Result<ScheduleState, Error> {
        match self.find(ctx, name).await? {
            Some(record) => self.state(record).await,
            None => Err(Error::ScheduleNotFound(name.to_owned())),
        }
    }

    /// The same for a person who looks at the input of its jobs. Audited as `SCHEDULE_INPUT_READ`.
    pub async fn read_input(&self, ctx: &SecurityContext, name: &str) -> Result<ScheduleState, Error> {
        let state = self.get(ctx, name).await?;
        self.0.audit(ctx, "SCHEDULE_INPUT_READ", name, None).await?;
        Ok(state)
    }

    /// The caller's schedules by name, after the one named `after`.
    pub async fn list(
        &self,
        ctx: &SecurityContext,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleState>, Error> {
        let mut ask = ScheduleAsk::page(limit.min(SCHEDULES_LISTED));
        ask.after = after.map(|name| (ctx.tenant, name.to_owned()));
        let mut states = Vec::new();
        for record in self.0.worker().store.schedules(ctx.scope(), ask).await? {
            states.push(self.state(record).await?);
        }
        Ok(states)
    }

    /// Removes a schedule. Jobs that it has started stay.
    pub async fn remove(&self, ctx: &SecurityContext, name: &str) -> Result<(), Error> {
        self.change(ctx, name, None, ScheduleTo::Removed).await.map(|_| ())
    }

    /// Pauses a schedule: when this returns, it fires no more.
    pub async fn pause(&self, ctx: &SecurityContext, name: &str) -> Result<ScheduleState, Error> {
        self.change(ctx, name, None, ScheduleTo::Paused).await
    }

    /// Lets a paused schedule fire again, from its next time on. What came due meanwhile was not missed, and does not run.
    pub async fn resume(&self, ctx: &SecurityContext, name: &str) -> Result<ScheduleState, Error> {
        let state = self.get(ctx, name).await?;
        let now = self.0.worker().store.now().await?;
        let next_at = state.schedule.calendar(now)?.next_after(now);
        self.change(ctx, name, Some(state.version), ScheduleTo::Resumed { next_at }).await
    }

    /// Starts a job of the schedule now, whether it is paused or not; its nominal time is now. While an earlier job has
    /// not ended, the schedule's overlap decides: with [`Overlap::Skip`] the answer is that earlier job.
    pub async fn trigger(&self, ctx: &SecurityContext, name: &str) -> Result<Submitted, Error> {
        let state = self.get(ctx, name).await?;
        let now = self.0.worker().store.now().await?;
        let schedule = Schedule { jitter: Duration::ZERO, ..state.schedule };
        let options = schedule.options(state.id, now);
        let job = self.0.prepare_payload(ctx, &schedule.handler, schedule.input.clone(), options).await?;
        let mut submitted = self.0.submit_prepared(&schedule.handler, vec![job]).await?;
        Ok(submitted.pop().expect("one answer for one job"))
    }

    /// The next nominal times of a schedule, at most [`NEXT_RUNS_MAX`].
    pub async fn next(&self, ctx: &SecurityContext, name: &str, count: usize) -> Result<Vec<Timestamp>, Error> {
        let state = self.get(ctx, name).await?;
        let now = self.0.worker().store.now().await?;
        Ok(state.schedule.next_runs(now, count)?)
    }

    /// Jobs that a schedule has started, newest first.
    pub async fn runs(&self, ctx: &SecurityContext, name: &str, page: Page) -> Result<Vec<JobRecord>, Error> {
        let state = self.get(ctx, name).await?;
        let filter = JobFilter { tag: Some(format!("{SCHEDULE_TAG}{}", state.schedule.name)), ..JobFilter::all() };
        self.0.list(ctx, &filter, page).await
    }

    /// Makes the schedules of a service's code what they are in the store.
    pub(crate) async fn keep_in_step(&self, schedules: Vec<Schedule>) -> Result<(), Error> {
        let ctx = SecurityContext::system();
        let by = self.0.config().service_id.clone().unwrap_or_else(|| CODE.to_owned());
        let known = self.list(&ctx, None, SCHEDULES_LISTED).await?;
        let gone = |state: &&ScheduleState| {
            state.schedule.defined_by.as_ref() == Some(&by)
                && schedules.iter().all(|schedule| schedule.name != state.schedule.name)
        };
        for state in known.iter().filter(gone) {
            match self.remove(&ctx, &state.schedule.name).await {
                Ok(()) | Err(Error::ScheduleNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        for schedule in schedules {
            let schedule = Schedule { defined_by: Some(by.clone()), ..schedule };
            // What is so already keeps its next time: many nodes start with the same code.
            if known.iter().any(|state| state.schedule == schedule) {
                continue;
            }
            match self.put(&ctx, schedule).await {
                // Another node of the same code was faster.
                Ok(_) | Err(Error::ScheduleChanged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn find(&self, ctx: &SecurityContext, name: &str) -> Result<Option<ScheduleRecord>, Error> {
        check_name("name", name, SCHEDULE_NAME_BYTES)?;
        Ok(self.0.worker().store.schedules(ctx.scope(), ScheduleAsk::named(name)).await?.pop())
    }

    async fn change(
        &self,
        ctx: &SecurityContext,
        name: &str,
        expect: Option<u64>,
        to: ScheduleTo,
    ) -> Result<ScheduleState, Error> {
        check_name("name", name, SCHEDULE_NAME_BYTES)?;
        let node = self.0.worker();
        let change =
            ScheduleChange { tenant: ctx.tenant, name: name.to_owned(), expect, to, actor: ctx.actor().to_owned() };
        match node.store.change_schedule(change).await? {
            ScheduleChanged::Done(record) => {
                node.wake_scheduler.notify_one();
                self.state(*record).await
            }
            ScheduleChanged::Differs(None) => Err(Error::ScheduleNotFound(name.to_owned())),
            ScheduleChanged::Differs(Some(is)) => {
                Err(Error::ScheduleChanged { name: name.to_owned(), version: is.version })
            }
            ScheduleChanged::TooMany => {
                let message = format!("the tenant already has the maximum of {} schedules", store::SCHEDULES_MAX);
                Err(InvalidInput::new("schedules", message).into())
            }
        }
    }

    async fn state(&self, record: ScheduleRecord) -> Result<ScheduleState, Error> {
        let schedule = self.0.worker().schedule_of(&record).await?;
        Ok(ScheduleState {
            schedule,
            tenant: record.tenant,
            id: record.id,
            version: record.version,
            paused: record.paused,
            next_at: record.next_at,
            last_at: record.last_at,
            created_at: record.created_at,
            changed_at: record.changed_at,
        })
    }
}
