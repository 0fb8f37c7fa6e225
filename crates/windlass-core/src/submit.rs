//! From a caller's input to a stored job: `prepare` checks and fills in, the `Submitter` writes. Called by the service.
//! Concurrent submits share one write: whoever waits when a writer is free goes along. One who submits alone is never
//! held up; where many submit at once, a write waits a moment for those who usually come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::activity::{Tally, names_of, stored};
use crate::clock::Timestamp;
use crate::config::{Limits, check_text};
use crate::error::{Error, InvalidInput};
use crate::id::JobId;
use crate::job::{NewJob, Start, SubmitOptions, UniqueWithin};
use crate::payload::{MAX_DEPTH, Payload, nesting};
use crate::priority::Priority;
use crate::quota::{Amount, QuotaExceeded, QuotaKind};
use crate::store::{self, LeaseId, NodeId, Store, Submit, Submitted};
use crate::tenant::{SecurityContext, TenantId};

/// What a caller wants done.
pub(crate) struct Wanted<'a> {
    pub(crate) handler: &'a str,
    /// Where it waits unless the options say otherwise.
    pub(crate) queue: &'a str,
    pub(crate) payload: Payload,
    pub(crate) options: SubmitOptions,
}

/// Checks a submit and makes the job it asks for. Pure. The tenant is the caller's, whatever the options say.
/// `content_key` makes the key of a job that is unique by content.
pub(crate) fn prepare(
    ctx: &SecurityContext,
    id: JobId,
    wanted: Wanted<'_>,
    limits: &Limits,
    now: Timestamp,
    content_key: impl FnOnce(&str, TenantId, &Payload) -> String,
) -> Result<NewJob, InvalidInput> {
    let Wanted { handler, queue, payload, options } = wanted;
    check_name("handler", handler, limits.name_bytes)?;
    let queue = options.queue.unwrap_or_else(|| queue.to_owned());
    check_name("queue", &queue, limits.name_bytes)?;
    if queue.starts_with("suspect:") {
        return Err(InvalidInput::new("queue", "names starting with `suspect:` are kept for recovered jobs"));
    }
    check_input(&payload, limits)?;
    let keys = [("idempotency_key", &options.idempotency_key), ("ordering_key", &options.ordering_key)];
    for (field, key) in keys {
        key.as_deref().map_or(Ok(()), |key| check_name(field, key, limits.key_bytes))?;
    }
    let mut unique = options.unique;
    if let Some(unique) = &mut unique {
        unique.key = Some(match &unique.key {
            Some(key) => {
                check_name("unique_key", key, limits.key_bytes)?;
                // Scoped like a content key, so that handlers do not get in one another's way.
                format!("{handler}::{}::{key}", ctx.tenant)
            }
            // A content key may be as long as the payload; what is stored is bounded by the payload's limit.
            None => content_key(handler, ctx.tenant, &payload),
        });
        if matches!(unique.within, UniqueWithin::Window(window) if window > limits.max_delay) {
            return Err(InvalidInput::new("unique", "the window is longer than ten years"));
        }
    }
    if options.tags.len() > limits.tags {
        return Err(InvalidInput::new("tags", format!("{} tags, at most {}", options.tags.len(), limits.tags)));
    }
    for tag in &options.tags {
        check_name("tags", tag, limits.tag_bytes)?;
    }
    let correlation_id = options.correlation_id.or_else(|| ctx.correlation_id.clone());
    correlation_id.as_deref().map_or(Ok(()), |id| check_name("correlation_id", id, limits.key_bytes))?;
    let header_bytes: usize = options.spec.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if header_bytes > limits.header_bytes {
        return Err(InvalidInput::new("headers", format!("{header_bytes} bytes, at most {}", limits.header_bytes)));
    }
    if options.spec.headers.iter().any(|(name, value)| name.is_empty() || name.contains('\0') || value.contains('\0')) {
        return Err(InvalidInput::new("headers", "an empty name or a NUL character"));
    }
    check_start(options.start, now, limits)?;
    check_retry(&options.spec.retry)?;
    let mut spec = options.spec;
    spec.user = spec.user.or_else(|| ctx.user.clone());
    spec.user.as_deref().map_or(Ok(()), |user| check_text("user", user, limits.key_bytes))?;
    spec.idempotency_key = options.idempotency_key.clone();
    spec.sealed = false;
    Ok(NewJob {
        id,
        tenant: ctx.tenant,
        handler: handler.to_owned(),
        queue,
        priority: options.priority.unwrap_or(Priority::NORMAL),
        start: match options.start {
            Start::After(delay) if delay.is_zero() => Start::Now,
            Start::At(at) if at <= now => Start::Now,
            start => start,
        },
        payload,
        idempotency_key: options.idempotency_key,
        unique,
        ordering_key: options.ordering_key,
        batch: options.batch,
        tags: options.tags,
        correlation_id,
        spec,
    })
}

/// Input: not too long, not too deep.
pub(crate) fn check_input(payload: &Payload, limits: &Limits) -> Result<(), InvalidInput> {
    if payload.as_str().len() > limits.payload_bytes {
        let message = format!("{} bytes, at most {} are allowed", payload.as_str().len(), limits.payload_bytes);
        return Err(InvalidInput::new("input", message));
    }
    // What a payload was checked for before is deep enough for most; only a lower limit needs another look.
    if limits.json_depth < MAX_DEPTH && nesting(payload.as_str()) > limits.json_depth {
        return Err(InvalidInput::new("input", format!("nested deeper than {} levels", limits.json_depth)));
    }
    Ok(())
}

/// Starts: not too far ahead.
pub(crate) fn check_start(start: Start, now: Timestamp, limits: &Limits) -> Result<(), InvalidInput> {
    let ahead = match start {
        Start::Now => return Ok(()),
        Start::After(delay) => delay,
        Start::At(at) => at.since(now),
    };
    match ahead > limits.max_delay {
        true => Err(InvalidInput::new("start", "more than ten years ahead")),
        false => Ok(()),
    }
}

/// Names and keys: not empty, not too long, no NUL.
pub(crate) fn check_name(field: &str, name: &str, max_bytes: usize) -> Result<(), InvalidInput> {
    if name.is_empty() {
        return Err(InvalidInput::new(field, "is empty"));
    }
    if name.len() > max_bytes {
        return Err(InvalidInput::new(field, format!("{} bytes, at most {max_bytes} are allowed", name.len())));
    }
    if name.contains('\0') {
        return Err(InvalidInput::new(field, "contains a NUL character"));
    }
    Ok(())
}

fn check_retry(policy: &Option<crate::retry::RetryPolicy>) -> Result<(), InvalidInput> {
    match policy {
        Some(policy) if policy.max_attempts == 0 => Err(InvalidInput::new("retry", "max_attempts is 0, at least 1")),
        Some(policy) if !policy.multiplier.is_finite() || !policy.jitter.is_finite() => {
            Err(InvalidInput::new("retry", "multiplier and jitter must be numbers"))
        }
        _ => Ok(()),
    }
}

/// Writes jobs, many callers' in one go.
#[derive(Clone)]
pub(crate) struct Submitter {
    entries: mpsc::Sender<Entry>,
}

struct Entry {
    jobs: Vec<NewJob>,
    reply: oneshot::Sender<Result<Vec<Submitted>, store::Error>>,
}

/// Entries that may wait for a writer; more callers than this wait in line for a place.
const WAITING_SUBMITS: usize = 8_192;

/// Jobs in one write. Larger ones gain nothing and hold the others up.
const JOBS_PER_WRITE: usize = 1_000;

/// Whether jobs may start in this process the moment they are stored. Implemented by the worker.
pub(crate) trait BornLeased: Send + Sync {
    /// Reserves room for `jobs`, if they may start here and nothing better waits.
    fn reserve(&self, jobs: &[NewJob]) -> Option<Reservation>;
    /// Starts jobs that were stored under the reservation, and frees the rest of it.
    fn start(&self, reservation: Reservation, jobs: Vec<NewJob>);
    /// Frees a reservation whose jobs were not stored, or perhaps.
    fn failed(&self, reservation: Reservation, error: &store::Error);
    /// Takes note that jobs have become ready or scheduled in the store.
    fn stored(&self, jobs: Elsewhere);
}

/// What has been stored that did not start here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elsewhere {
    pub(crate) ready: bool,
    pub(crate) scheduled: bool,
}

/// Room for jobs on this node.
pub(crate) struct Reservation {
    pub(crate) node: NodeId,
    pub(crate) lease: LeaseId,
    pub(crate) slots: usize,
}

impl Submitter {
    /// Starts the writers on the current runtime.
    pub(crate) fn start(store: Arc<dyn Store>, local: Arc<dyn BornLeased>, tally: Arc<Tally>) -> Self {
        let (entries, waiting) = mpsc::channel(WAITING_SUBMITS);
        let writers = store.writers().max(1);
        let line = Arc::new(WriteLine { waiting: Mutex::new(waiting), callers: Callers::new(writers) });
        for _ in 0..writers {
            let writer = Writer { store: store.clone(), local: local.clone(), tally: tally.clone() };
            tokio::spawn(write_entries(writer, line.clone()));
        }
        Submitter { entries }
    }

    /// Stores the jobs; durable when it returns. Dropping the future does not take the jobs back.
    pub(crate) async fn submit(&self, jobs: Vec<NewJob>) -> Result<Vec<Submitted>, Error> {
        let (reply, answer) = oneshot::channel();
        self.entries.send(Entry { jobs, reply }).await.map_err(|_| Error::ShutDown)?;
        // The writers went away with the jobs in their hands.
        let unknown = || store::Error::Unknown("the service was shut down while the job was being stored".into());
        Ok(answer.await.map_err(|_| unknown())??)
    }
}

/// What a write needs.
struct Writer {
    store: Arc<dyn Store>,
    local: Arc<dyn BornLeased>,
    tally: Arc<Tally>,
}

async fn write_entries(writer: Writer, line: Arc<WriteLine>) {
    while let Some(entries) = line.gather().await {
        let callers = entries.len();
        write(&writer, entries).await;
        line.callers.left(callers);
    }
}

/// Who waits to be written, and how many are usually under way. Shared by the writers.
struct WriteLine {
    waiting: Mutex<mpsc::Receiver<Entry>>,
    callers: Callers,
}

impl WriteLine {
    /// The entries of the next write: whoever waits, and those who are about to come back from the write before.
    async fn gather(&self) -> Option<Vec<Entry>> {
        let mut waiting = self.waiting.lock().await;
        let first = waiting.recv().await?;
        let mut jobs = first.jobs.len();
        let mut entries = vec![first];
        let patience = tokio::time::sleep(GATHER_AT_MOST);
        let mut patience = std::pin::pin!(patience);
        while jobs < JOBS_PER_WRITE {
            let next = match waiting.try_recv() {
                Ok(next) => Some(next),
                Err(_) if entries.len() >= self.callers.expected() => None,
                Err(_) => tokio::select! {
                    biased;
                    next = waiting.recv() => next,
                    () = &mut patience => None,
                },
            };
            let Some(next) = next else { break };
            jobs += next.jobs.len();
            entries.push(next);
        }
        self.callers.came(entries.len());
        Some(entries)
    }
}

/// How long a write waits for callers that are usually there. One who submits alone never waits; when many have just
/// stopped, the next few writes do. As short as the runtime's timer can be.
const GATHER_AT_MOST: Duration = Duration::from_millis(1);

/// How many callers submit at the same time, as seen lately.
struct Callers {
    writers: usize,
    under_way: AtomicUsize,
    lately: AtomicUsize,
}

impl Callers {
    fn new(writers: usize) -> Self {
        Callers { writers, under_way: AtomicUsize::new(0), lately: AtomicUsize::new(0) }
    }

    /// How many a write may expect: three quarters of its share, so that nobody waits for the last one.
    fn expected(&self) -> usize {
        self.lately.load(Ordering::Relaxed) * 3 / (4 * self.writers)
    }

    /// Takes note of a write with so many: more are believed at once, fewer by half.
    fn came(&self, callers: usize) {
        let now = self.under_way.fetch_add(callers, Ordering::Relaxed) + callers;
        let lately = self.lately.load(Ordering::Relaxed);
        self.lately.store(now.max((lately + now) / 2), Ordering::Relaxed);
    }

    fn left(&self, callers: usize) {
        self.under_way.fetch_sub(callers, Ordering::Relaxed);
    }
}

/// Stores the jobs of several callers and answers each.
async fn write(writer: &Writer, entries: Vec<Entry>) {
    let mut alone = Vec::new();
    write_together(writer, entries, &mut alone).await;
    for entry in alone {
        write_together(writer, vec![entry], &mut Vec::new()).await;
    }
}

/// Stores the jobs of several callers in one write. Where the quota of a tenant does not allow all of them, only callers
/// of that tenant are refused, and of those only the ones that do not fit, or that shall be tried alone.
async fn write_together(writer: &Writer, entries: Vec<Entry>, alone: &mut Vec<Entry>) {
    let store = &writer.store;
    let mut waiting = entries;
    // Each round has fewer callers than the one before.
    while !waiting.is_empty() {
        let limited =
            waiting.len() > 1 && waiting.iter().flat_map(|e| &e.jobs).any(|j| store.limited(j.tenant).submits);
        // The jobs are needed again only if somebody's quota can refuse the write.
        let again: Vec<Vec<NewJob>> = match limited {
            true => waiting.iter().map(|entry| entry.jobs.clone()).collect(),
            false => Vec::new(),
        };
        let (callers, jobs): (Vec<_>, Vec<_>) = waiting.into_iter().map(|e| ((e.jobs.len(), e.reply), e.jobs)).unzip();
        match store_jobs(writer, jobs.into_iter().flatten().collect()).await {
            Err(store::Error::QuotaExceeded(over)) if limited => {
                let entries = callers.into_iter().zip(again).map(|((_, reply), jobs)| Entry { jobs, reply });
                waiting = refuse_some(entries.collect(), &over, alone);
            }
            answer => return answer_all(callers, answer),
        }
    }
}

/// Stores jobs, counts them, and starts here what may start here.
async fn store_jobs(writer: &Writer, jobs: Vec<NewJob>) -> store::Result<Vec<Submitted>> {
    let Writer { store, local, tally } = writer;
    let reservation = local.reserve(&jobs);
    let lease = reservation.as_ref().map(|r| (r.node, r.lease));
    // Only what starts here is needed again after the write.
    let here: Vec<NewJob> = match lease {
        Some(_) => jobs.iter().filter(|job| is_born_leased(job)).cloned().collect(),
        None => Vec::new(),
    };
    let elsewhere = Elsewhere::of(&jobs, lease.is_some());
    let names = names_of(&jobs);
    let answer = store.submit(Submit { jobs, lease }).await;
    if let Ok(answers) = &answer {
        tally.submitted(stored(&names, answers));
    }
    match (&answer, reservation) {
        (Ok(_), Some(reservation)) => local.start(reservation, here),
        (Err(error), Some(reservation)) => local.failed(reservation, error),
        (_, None) => {}
    }
    if answer.is_ok() {
        local.stored(elsewhere);
    }
    answer
}

/// Whom to tell, and for how many jobs.
type Caller = (usize, oneshot::Sender<Result<Vec<Submitted>, store::Error>>);

fn answer_all(callers: Vec<Caller>, answer: store::Result<Vec<Submitted>>) {
    // A caller may have gone; the jobs are stored all the same.
    match answer {
        Ok(submitted) => {
            let mut submitted = submitted.into_iter();
            for (jobs, reply) in callers {
                let _ = reply.send(Ok(submitted.by_ref().take(jobs).collect()));
            }
        }
        Err(error) => {
            for (_, reply) in callers {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

/// Callers that are tried alone after a refusal: a repeat of what is stored already needs no room, but only the store can
/// tell. More of them are refused, so that one tenant's repeats do not hold the others up.
const TRIED_ALONE: usize = 8;

/// Refuses the callers that do not fit into what the quota still allows, and returns the others.
fn refuse_some(entries: Vec<Entry>, over: &QuotaExceeded, alone: &mut Vec<Entry>) -> Vec<Entry> {
    let mut room = over.room;
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    for entry in entries {
        let mut wanted = Amount::default();
        for job in entry.jobs.iter().filter(|job| job.tenant == over.tenant) {
            wanted.add(job.payload.as_str().len());
        }
        let wanted = if over.quota == QuotaKind::Bytes { wanted.bytes } else { wanted.jobs };
        match room.checked_sub(wanted) {
            Some(rest) => {
                room = rest;
                kept.push(entry);
            }
            None => refused.push(entry),
        }
    }
    if refused.is_empty() {
        // All should fit: the room was gone when the store looked. The next write must be a smaller one all the same.
        let last = kept.iter().rposition(|entry| entry.jobs.iter().any(|job| job.tenant == over.tenant));
        refused.extend(last.map(|last| kept.remove(last)));
    }
    for entry in refused {
        if alone.len() < TRIED_ALONE && entry.jobs.iter().any(|job| !job.is_plain()) {
            alone.push(entry);
        } else {
            let _ = entry.reply.send(Err(over.clone().into()));
        }
    }
    kept
}

impl Elsewhere {
    fn of(jobs: &[NewJob], leased: bool) -> Self {
        let waiting = || jobs.iter().filter(|job| !(leased && is_born_leased(job)));
        Elsewhere {
            ready: waiting().any(|job| job.start == Start::Now),
            scheduled: waiting().any(|job| job.start != Start::Now),
        }
    }
}

/// Which jobs of a leased submit are running when it returns.
pub(crate) fn is_born_leased(job: &NewJob) -> bool {
    job.is_plain() && job.start == Start::Now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::BatchId;
    use crate::payload::dedupe_key;
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn prepared(options: SubmitOptions) -> Result<NewJob, InvalidInput> {
        let ctx = SecurityContext::new(TenantId(Uuid::from_u128(7))).with_user("u").with_correlation_id("c");
        let wanted = Wanted { handler: "h", queue: "default", payload: Payload::from_store("{}"), options };
        let content_key = |handler: &str, tenant, payload: &Payload| dedupe_key(handler, Some(tenant), payload);
        prepare(&ctx, JobId::from_i64(1), wanted, &Limits::default(), NOW, content_key)
    }

    fn refused(options: SubmitOptions) -> String {
        prepared(options).expect_err("refused").field
    }

    /// A process that runs no jobs itself.
    struct NoRoom;

    impl BornLeased for NoRoom {
        fn reserve(&self, _: &[NewJob]) -> Option<Reservation> {
            None
        }
        fn start(&self, _: Reservation, _: Vec<NewJob>) {}
        fn failed(&self, _: Reservation, _: &store::Error) {}
        fn stored(&self, _: Elsewhere) {}
    }

    /// SUB-1: who was not answered because the writers went away does not know whether the job is stored.
    #[test]
    fn a_submit_that_a_shutdown_cuts_off_is_of_unknown_outcome() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (writers, caller) = (runtime(), runtime());
        let store = Arc::new(crate::memory::MemoryStore::new());
        let submitter =
            writers.block_on(async { Submitter::start(store, Arc::new(NoRoom), Arc::new(Tally::new(&[]))) });
        let submit = caller.spawn(async move { submitter.submit(vec![prepared(SubmitOptions::new())?]).await });
        // Hands the jobs over and waits; nobody writes them, because nothing drives the writers.
        caller.block_on(tokio::task::yield_now());
        drop(writers);
        let error = caller.block_on(submit).expect("not dropped").expect_err("nobody has answered");
        assert_eq!(error.code(), "unknown_outcome");
    }

    #[test]
    fn a_lone_caller_expects_nobody_and_many_expect_their_share() {
        let callers = Callers::new(2);
        for _ in 0..3 {
            callers.came(1);
            callers.left(1);
        }
        assert_eq!(callers.expected(), 0);
        callers.came(20);
        callers.came(44);
        assert_eq!(callers.expected(), 24);
        callers.left(64);
        (0..7).for_each(|_| {
            callers.came(1);
            callers.left(1);
        });
        assert_eq!(callers.expected(), 0, "those who have gone are soon forgotten");
    }

    #[test]
    fn only_the_callers_beyond_a_quota_are_refused() {
        let (a, b) = (TenantId(Uuid::from_u128(1)), TenantId(Uuid::from_u128(2)));
        let entry = |tenant: TenantId, jobs: usize, options: SubmitOptions| {
            let (reply, answer) = oneshot::channel();
            let job = NewJob { tenant, ..prepared(options).expect("good") };
            (Entry { jobs: vec![job; jobs], reply }, answer)
        };
        let plain = SubmitOptions::new;
        let keyed = || SubmitOptions::new().idempotency_key("k");
        let callers = [(a, 2, plain()), (b, 50, plain()), (a, 4, plain()), (a, 1, plain()), (a, 9, keyed())];
        let (entries, mut answers): (Vec<_>, Vec<_>) = callers.into_iter().map(|(t, n, o)| entry(t, n, o)).unzip();
        let over = QuotaExceeded::new(a, QuotaKind::Queued, 10, 3, None);
        let mut alone = Vec::new();
        let kept: Vec<usize> = refuse_some(entries, &over, &mut alone).iter().map(|entry| entry.jobs.len()).collect();
        assert_eq!(kept, [2, 50, 1], "what fits, and all of the other tenant");
        assert_eq!(alone.len(), 1, "what may be there already is tried alone");
        assert!(matches!(answers[2].try_recv(), Ok(Err(store::Error::QuotaExceeded(told))) if told == over));
    }

    #[test]
    fn options_and_caller_end_up_in_the_job() {
        let options = SubmitOptions::new().idempotency_key("k").batch(BatchId(JobId::from_i64(5))).tag("t");
        let job = prepared(options).expect("accepted");
        assert_eq!(job.tenant, TenantId(Uuid::from_u128(7)));
        assert_eq!((job.spec.user.as_deref(), job.correlation_id.as_deref()), (Some("u"), Some("c")));
        assert_eq!(job.spec.idempotency_key.as_deref(), Some("k"));
        assert!(!job.is_plain());
    }

    #[test]
    fn each_bad_field_is_named() {
        assert_eq!(refused(SubmitOptions::new().idempotency_key("x".repeat(257))), "idempotency_key");
        assert_eq!(refused(SubmitOptions::new().idempotency_key("")), "idempotency_key");
        assert_eq!(refused(SubmitOptions::new().ordering_key("a\0b")), "ordering_key");
        assert_eq!(refused(SubmitOptions::new().tag("x".repeat(65))), "tags");
        assert_eq!(refused((0..33).fold(SubmitOptions::new(), |o, n| o.tag(n.to_string()))), "tags");
        assert_eq!(refused(SubmitOptions::new().header("h", "x".repeat(17_000))), "headers");
        assert_eq!(refused(SubmitOptions::new().delay(Duration::from_secs(u64::MAX / 2))), "start");
        assert_eq!(refused(SubmitOptions::new().queue("")), "queue");
        assert_eq!(refused(SubmitOptions::new().queue("suspect:x")), "queue");
        let zero = crate::retry::RetryPolicy { max_attempts: 0, ..Default::default() };
        assert_eq!(refused(SubmitOptions::new().retry(zero)), "retry");
    }

    #[test]
    fn the_limits_themselves_are_accepted() {
        assert!(prepared(SubmitOptions::new().idempotency_key("x".repeat(256))).is_ok());
        assert!(prepared((0..32).fold(SubmitOptions::new(), |o, _| o.tag("x".repeat(64)))).is_ok());
    }

    #[test]
    fn a_start_in_the_past_is_now() {
        assert_eq!(prepared(SubmitOptions::new().run_at(NOW - Duration::from_secs(1))).expect("ok").start, Start::Now);
        assert_eq!(prepared(SubmitOptions::new().delay(Duration::ZERO)).expect("ok").start, Start::Now);
    }
}
