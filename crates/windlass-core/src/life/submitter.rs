//! Writes submitted jobs. Called by `life/submit.rs` with jobs that are checked and complete. Concurrent submits share one
//! write: whoever waits when a writer is free goes along. One who submits alone is never held up; where many submit at
//! once, a write waits a moment for those who usually come. Decides nothing about a job but whether it starts here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::model::error::Error;
use crate::model::id::JobId;
use crate::model::job::{NewJob, Start};
use crate::node::supervise::Supervisor;
use crate::operate::activity::{Tally, names_of, stored};
use crate::quota::{Amount, QuotaExceeded, QuotaKind};
use crate::store::{self, LeaseId, NodeId, Store, Submit, Submitted};

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
#[derive(Clone, Debug)]
pub(crate) struct Elsewhere {
    pub(crate) ready: bool,
    pub(crate) scheduled: bool,
    /// Those that wait for others.
    pub(crate) dependents: Vec<JobId>,
}

/// Room for jobs on this node.
pub(crate) struct Reservation {
    pub(crate) node: NodeId,
    pub(crate) lease: LeaseId,
    pub(crate) slots: usize,
}

impl Submitter {
    /// Starts the writers on the current runtime.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        local: Arc<dyn BornLeased>,
        tally: Arc<Tally>,
        supervisor: &Supervisor,
    ) -> Self {
        let (entries, waiting) = mpsc::channel(WAITING_SUBMITS);
        let writers = store.writers().max(1);
        let line = Arc::new(WriteLine { waiting: Mutex::new(waiting), callers: Callers::new(writers) });
        for _ in 0..writers {
            let writer = Arc::new(Writer { store: store.clone(), local: local.clone(), tally: tally.clone() });
            let line = line.clone();
            supervisor.spawn_here("submit", move || write_entries(writer.clone(), line.clone()));
        }
        Submitter { entries }
    }

    /// Stores the jobs; durable when it returns. Dropping the future does not take the jobs back.
    pub(crate) async fn submit(&self, jobs: Vec<NewJob>) -> Result<Vec<Submitted>, Error> {
        let (reply, answer) = oneshot::channel();
        self.entries.send(Entry { jobs, reply }).await.map_err(|_| Error::ShutDown)?;
        // The writers went away with the jobs in their hands: the service has ended, or storing panicked.
        let unknown = || store::Error::Unknown("nobody answered while the job was being stored".into());
        Ok(answer.await.map_err(|_| unknown())??)
    }
}

/// What a write needs.
struct Writer {
    store: Arc<dyn Store>,
    local: Arc<dyn BornLeased>,
    tally: Arc<Tally>,
}

async fn write_entries(writer: Arc<Writer>, line: Arc<WriteLine>) {
    while let Some(entries) = line.gather().await {
        let _under_way = UnderWay { callers: &line.callers, count: entries.len() };
        write(&writer, entries).await;
    }
}

/// Callers whose jobs are being written; counted out also when the write panics.
struct UnderWay<'a> {
    callers: &'a Callers,
    count: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.callers.left(self.count);
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
    let mut reserved = Reserved { local: &**local, reservation: local.reserve(&jobs) };
    let lease = reserved.reservation.as_ref().map(|r| (r.node, r.lease));
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
    match (&answer, reserved.reservation.take()) {
        (Ok(_), Some(reservation)) => local.start(reservation, here),
        (Err(error), Some(reservation)) => local.failed(reservation, error),
        (_, None) => {}
    }
    if answer.is_ok() {
        local.stored(elsewhere);
    }
    answer
}

/// Room that is given back, and a lease that is looked after, should storing panic.
struct Reserved<'a> {
    local: &'a dyn BornLeased,
    reservation: Option<Reservation>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.local.failed(reservation, &store::Error::Unknown("storing panicked".into()));
        }
    }
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
            dependents: jobs.iter().filter(|job| job.spec.after.is_some()).map(|job| job.id).collect(),
        }
    }
}

/// Which jobs of a leased submit are running when it returns.
pub(crate) fn is_born_leased(job: &NewJob) -> bool {
    job.is_plain() && job.start == Start::Now
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::life::submit::tests::prepared;
    use crate::model::job::SubmitOptions;
    use crate::model::tenant::TenantId;

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
        let submitter = writers.block_on(async {
            Submitter::start(store, Arc::new(NoRoom), Arc::new(Tally::new(&[])), &Supervisor::default())
        });
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
}
