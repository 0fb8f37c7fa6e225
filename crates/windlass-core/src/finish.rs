//! Saves what attempts came to, many in one write. Called by `run`; writes when a writer is free, with no timer.
//! Repeats a write that failed until it is saved or the node has lost its jobs. Never decides an outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use crate::activity::{Counted, EndedAttempt, Tally};
use crate::clock::Timestamp;
use crate::error::JobError;
use crate::id::JobId;
use crate::job::Status;
use crate::payload::Payload;
use crate::priority::Priority;
use crate::store::{self, Finish, Finished, LeaseId, NodeId, Store, Transition};
use crate::tenant::{Scope, TenantId};
use crate::watch::{JobEvent, JobView, Watchers};
use crate::worker::SuspectWatch;

/// An ended attempt on its way to the store.
pub(crate) struct Ended {
    pub(crate) node: NodeId,
    pub(crate) finish: Finish,
    /// For a sealed job: what its transition was before it was sealed, for those who watch.
    pub(crate) open: Option<Transition>,
    pub(crate) tenant: TenantId,
    /// Whether it has an ordering key, so that its end lets the next job of the key go on.
    pub(crate) ordered: bool,
    pub(crate) handler: String,
    pub(crate) priority: Priority,
    pub(crate) at: Timestamp,
    /// For a job that came back from a lost node: ends the watch over it when this is saved or given up.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) watch: Option<SuspectWatch>,
}

impl Ended {
    fn counted(&self) -> Counted<'_> {
        Counted { tenant: self.tenant, handler: &self.handler, priority: self.priority }
    }

    /// What is counted of it once its job is in `status`.
    fn attempt(&self, status: Status) -> EndedAttempt {
        let Finish { ran, transition, follow_up, .. } = &self.finish;
        // A job that was turned away before it began is a dead letter without a failed attempt.
        let failed = !ran.is_zero() && matches!(transition, Transition::Retry { .. } | Transition::DeadLetter { .. });
        // A cancel that came first leaves no callback.
        let follow_up = follow_up.is_some() && matches!(status, Status::Succeeded | Status::DeadLettered);
        EndedAttempt { status, failed, ran: *ran, follow_up }
    }
}

/// Takes ended attempts and saves them.
#[derive(Clone)]
pub(crate) struct Finisher {
    /// One way to each writer. The jobs of a lease all go the same way: two writers would wait for each other's commit.
    writers: Vec<mpsc::Sender<Ended>>,
    unsaved: Arc<Unsaved>,
}

/// Ended attempts that are not saved yet, and who waits until there are none.
#[derive(Default)]
struct Unsaved {
    jobs: AtomicUsize,
    none: Notify,
    /// Writers that repeat a write which failed.
    repeating: AtomicUsize,
}

/// Ended attempts that may wait for one writer; when it is full, workers wait, and so claim no more.
const WAITING_FINISHES: usize = 16_384;

/// Finishes in one write.
const FINISHES_PER_WRITE: usize = 2_000;

/// Waits between tries to save; the first is short because most outages are a lost connection.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

impl Finisher {
    /// Starts the writers on the current runtime. `is_current` says whether a node is still this process's own.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        watchers: Arc<Watchers>,
        tally: Arc<Tally>,
        is_current: impl Fn(NodeId) -> bool + Send + Sync + 'static,
        on_ready: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let unsaved: Arc<Unsaved> = Arc::default();
        let is_current: Arc<IsCurrent> = Arc::new(is_current);
        let on_ready: Arc<OnReady> = Arc::new(on_ready);
        let mut writers = Vec::new();
        for _ in 0..store.writers().max(1) {
            let (ended, waiting) = mpsc::channel(WAITING_FINISHES);
            let saver = Saver {
                store: store.clone(),
                watchers: watchers.clone(),
                tally: tally.clone(),
                is_current: is_current.clone(),
                on_ready: on_ready.clone(),
                unsaved: unsaved.clone(),
            };
            tokio::spawn(saver.run(waiting));
            writers.push(ended);
        }
        Finisher { writers, unsaved }
    }

    /// Hands an ended attempt over. Waits only when the store is far behind.
    pub(crate) async fn finish(&self, ended: Ended) {
        self.unsaved.jobs.fetch_add(1, Ordering::AcqRel);
        // The receiver lives as long as the runtime; after that there is nobody to tell.
        let _ = self.writer_for(ended.finish.fence.lease).send(ended).await;
    }

    fn writer_for(&self, lease: LeaseId) -> &mpsc::Sender<Ended> {
        // Ids made one after the other differ in their low bits.
        &self.writers[lease.0.unsigned_abs() as usize % self.writers.len()]
    }

    /// Whether a write failed that is being repeated.
    pub(crate) fn is_repeating(&self) -> bool {
        self.unsaved.repeating.load(Ordering::Acquire) > 0
    }

    /// Waits until everything handed over is saved or given up.
    pub(crate) async fn flush(&self) {
        loop {
            // Subscribe before looking, so that the last save in between is not missed.
            let none = self.unsaved.none.notified();
            if self.unsaved.jobs.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }
}

type IsCurrent = dyn Fn(NodeId) -> bool + Send + Sync;
type OnReady = dyn Fn() + Send + Sync;

struct Saver {
    store: Arc<dyn Store>,
    watchers: Arc<Watchers>,
    tally: Arc<Tally>,
    is_current: Arc<IsCurrent>,
    on_ready: Arc<OnReady>,
    unsaved: Arc<Unsaved>,
}

impl Saver {
    async fn run(self, mut waiting: mpsc::Receiver<Ended>) {
        loop {
            let mut batch = Vec::new();
            if waiting.recv_many(&mut batch, FINISHES_PER_WRITE).await == 0 {
                return;
            }
            let saved = batch.len();
            self.save(batch).await;
            if self.unsaved.jobs.fetch_sub(saved, Ordering::AcqRel) == saved {
                self.unsaved.none.notify_waiters();
            }
        }
    }

    /// Saves a batch, again and again until it is saved or the node is not ours any more.
    async fn save(&self, batch: Vec<Ended>) {
        let mut by_node: Vec<(NodeId, Vec<Ended>)> = Vec::new();
        for ended in batch {
            match by_node.iter_mut().find(|(node, _)| *node == ended.node) {
                Some((_, group)) => group.push(ended),
                None => by_node.push((ended.node, vec![ended])),
            }
        }
        for (node, group) in by_node {
            self.save_of_node(node, group).await;
        }
    }

    async fn save_of_node(&self, node: NodeId, group: Vec<Ended>) {
        let mut wait = FIRST_RETRY;
        let mut maybe_saved_before = false;
        let mut repeating = None;
        loop {
            let finishes: Vec<Finish> = group.iter().map(|ended| ended.finish.clone()).collect();
            match self.store.finish(node, finishes).await {
                Ok(answers) => return self.tell(node, group, answers, maybe_saved_before).await,
                Err(error) => {
                    maybe_saved_before |= matches!(error, store::Error::Unknown(_));
                    tracing::warn!(jobs = group.len(), %error, "could not save ended attempts, trying again");
                    // A refusal ends when someone sees to the database; until then the jobs are this node's and nobody
                    // else can run them.
                    let hopeless = !error.is_transient() && !matches!(error, store::Error::Refused(_));
                    if hopeless || !(self.is_current)(node) {
                        tracing::error!(jobs = group.len(), "gave up saving ended attempts: other nodes will run them");
                        return;
                    }
                }
            }
            repeating.get_or_insert_with(|| Repeating::new(&self.unsaved));
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_RETRY);
        }
    }

    /// Counts what was saved, and tells watchers.
    async fn tell(&self, node: NodeId, group: Vec<Ended>, answers: Vec<Finished>, maybe_saved_before: bool) {
        let mut statuses = Vec::with_capacity(group.len());
        for (ended, answer) in group.iter().zip(answers) {
            statuses.push(match answer {
                Finished::Accepted(status) => Some(status),
                Finished::Fenced => self.saved_before(node, ended, maybe_saved_before).await,
            });
        }
        let saved = group.iter().zip(&statuses).filter_map(|(ended, status)| Some((ended, (*status)?)));
        self.tally.ended(saved.map(|(ended, status)| (ended.counted(), ended.attempt(status))));
        let mut ready = false;
        for (ended, status) in group.into_iter().zip(statuses) {
            let job = ended.finish.fence.job;
            let Some(status) = status else {
                tracing::warn!(%job, attempt = ended.finish.attempt, "job {job}: the lease was lost, its result is dropped");
                continue;
            };
            // Where a tenant may only have so many running, the next of its jobs may start now.
            ready |= !status.is_terminal()
                || ended.ordered
                || ended.finish.follow_up.is_some()
                || self.store.limited(ended.tenant).running;
            let (output, error) = result_of(ended.open.unwrap_or(ended.finish.transition), status);
            self.watchers.event(|| JobEvent {
                job,
                tenant: ended.tenant,
                handler: ended.handler,
                status,
                attempt: ended.finish.attempt,
                error: error.clone(),
                at: ended.at,
            });
            self.watchers.show(job, || JobView { status, progress: None, output, error });
        }
        if ready {
            (self.on_ready)();
        }
    }

    /// A write whose outcome was unknown may have happened: then the repeat is refused although the result is ours.
    async fn saved_before(&self, node: NodeId, ended: &Ended, maybe: bool) -> Option<Status> {
        if !maybe {
            return None;
        }
        let job: JobId = ended.finish.fence.job;
        let record = self.store.get(Scope::ENGINE, &[job]).await.ok()?.pop()?;
        let ours = record.node == Some(node) && record.attempt == ended.finish.attempt;
        (ours && record.status.is_terminal()).then_some(record.status)
    }
}

/// Counts a write that is being repeated, while it is.
struct Repeating<'a>(&'a Unsaved);

impl<'a> Repeating<'a> {
    fn new(unsaved: &'a Unsaved) -> Self {
        unsaved.repeating.fetch_add(1, Ordering::AcqRel);
        Repeating(unsaved)
    }
}

impl Drop for Repeating<'_> {
    fn drop(&mut self) {
        self.0.repeating.fetch_sub(1, Ordering::AcqRel);
    }
}

fn result_of(transition: Transition, status: Status) -> (Option<Payload>, Option<JobError>) {
    match transition {
        Transition::Succeed { output, .. } if status == Status::Succeeded => (output, None),
        Transition::Retry { error, .. } | Transition::DeadLetter { error, .. } => (None, Some(error)),
        _ => (None, None),
    }
}
