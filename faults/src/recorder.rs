//! A store that writes down what a node asks of it and what it answers, and changes nothing. Wrapped around the real
//! store in every process of a run, so that the checker sees the store's own words and not the runtime's reading of them.
//! What the harness holds back waits here, before the store is asked: a fault can then fall between two calls.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use windlass::store::{
    Beat, Claim, Claimed, DueSchedules, Error, Fence, Finish, Finished, Fired, Firing, Holder, Jobs, Lease, Leases,
    NewNode, NodeId, NodeLease, NodeRecord, Nodes, Note, Noted, Promoted, Recovered, Result, SCHEDULER, ScheduleAsk,
    ScheduleChange, ScheduleChanged, ScheduleRecord, Schedules, Silent, Store, Submit, Submitted, Survey, Transition,
    Upkeep, WaitingQueue,
};
use windlass::{NewJob, Scope, Start, Timestamp};
use windlass::{
    feed_calls, forward_base, forward_calls, groups_calls, insight_calls, reads_calls, records_calls, steering_calls,
    tenancy_calls,
};

use crate::event::{FinishEnd, Held, What};
use crate::log::{Log, mono};

/// The recording store.
pub struct Recorder {
    store: Arc<dyn Store>,
    log: Log,
    gates: Gates,
    batches: AtomicU64,
    /// The last epoch under which this process held the lease of those who fire schedules; 0 is none.
    epoch: AtomicU64,
}

/// Which calls of a process are held back. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Gates(Arc<watch::Sender<BTreeSet<String>>>);

impl Gates {
    /// Holds calls of this kind back, from the next one on: [`FIRE`] or [`CHANGE`].
    pub fn hold_back(&self, call: String) {
        self.0.send_modify(|held| {
            held.insert(call);
        });
    }

    /// Lets them go on.
    pub fn let_go(&self, call: &str) {
        self.0.send_modify(|held| {
            held.remove(call);
        });
    }

    fn holds(&self, call: &str) -> bool {
        self.0.borrow().contains(call)
    }

    /// Waits until calls of this kind go on; for ever if they never do.
    async fn passed(&self, call: &str) {
        let _ = self.0.subscribe().wait_for(|held| !held.contains(call)).await;
    }
}

/// The fire of schedules, after they were read.
pub const FIRE: &str = "fire";
/// The change of a schedule, after it was worked out.
pub const CHANGE: &str = "change_schedule";

impl Recorder {
    /// Records what happens to `store`.
    pub fn new(store: Arc<dyn Store>, log: Log, gates: Gates) -> Recorder {
        Recorder { store, log, gates, batches: AtomicU64::new(0), epoch: AtomicU64::new(0) }
    }

    /// Waits while calls of a kind are held back.
    async fn pass(&self, call: &str, schedules: impl Iterator<Item = String>) {
        if self.gates.holds(call) {
            self.log.note(What::HeldBack { call: call.into(), schedules: schedules.collect() });
            self.gates.passed(call).await;
        }
    }

    fn wrote(&self, what: &str, fence: Fence, asked_at: u64, accepted: bool) {
        let (job, lease) = (fence.job.as_i64(), fence.lease.0);
        self.log.note(What::Write { what: what.into(), job, lease, asked_at, accepted });
    }
}

#[async_trait]
impl Jobs for Recorder {
    async fn submit(&self, submit: Submit) -> Result<Vec<Submitted>> {
        let asked_at = mono();
        let Some((node, lease)) = submit.lease else { return self.store.submit(submit).await };
        let born: Vec<Held> = submit.jobs.iter().filter(|job| is_born_leased(job)).map(newborn).collect();
        let max = submit.jobs.len();
        let submitted = self.store.submit(submit).await?;
        let (node, lease) = (node.0, lease.0);
        self.log.note(What::Claim { node, lease, asked_at, born: true, max, jobs: born });
        Ok(submitted)
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        let (node, lease, max, asked_at) = (claim.node.0, claim.lease.0, claim.max, mono());
        let claimed = self.store.claim(claim).await?;
        if !claimed.jobs.is_empty() {
            let held = |job: &windlass::ClaimedJob| Held {
                job: job.id.as_i64(),
                attempt: job.attempt(),
                failed: job.failed,
                recoveries: job.recoveries,
                queue: job.queue.clone(),
                priority: job.priority.0,
            };
            let jobs = claimed.jobs.iter().map(held).collect();
            self.log.note(What::Claim { node, lease, asked_at, born: false, max, jobs });
        }
        Ok(claimed)
    }

    async fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Result<Vec<Finished>> {
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let end = |finish: &Finish| FinishEnd {
            job: finish.fence.job.as_i64(),
            lease: finish.fence.lease.0,
            attempt: finish.attempt,
            transition: name(&finish.transition).into(),
        };
        self.log.note(What::FinishCall { batch, ends: finishes.iter().map(end).collect() });
        let answer = self.store.finish(node, finishes).await;
        match &answer {
            Ok(finished) => {
                let reply = |finished: &Finished| match finished {
                    Finished::Accepted(status) => Some(status.to_string()),
                    Finished::Fenced => None,
                };
                self.log.note(What::FinishReply { batch, replies: finished.iter().map(reply).collect() });
            }
            Err(error) => {
                let nothing_written = matches!(
                    error,
                    Error::Unavailable(_) | Error::Full(_) | Error::InvalidInput(_) | Error::Refused(_)
                );
                let unknown = !nothing_written;
                self.log.note(What::FinishFailed { batch, code: error.code().into(), unknown });
            }
        }
        answer
    }

    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<bool>> {
        let asked_at = mono();
        let kind = |note: &Note| match note.what {
            Noted::Progress(_) => "progress",
            Noted::Log { .. } => "logs",
            Noted::Checkpoint(_) => "checkpoint",
        };
        let asked: Vec<(&str, Fence)> = notes.iter().map(|note| (kind(note), note.fence)).collect();
        let kept = self.store.note(node, notes).await?;
        for ((what, fence), kept) in asked.into_iter().zip(&kept) {
            self.wrote(what, fence, asked_at, *kept);
        }
        Ok(kept)
    }

    async fn held(&self, node: NodeId) -> Result<Vec<Fence>> {
        self.store.held(node).await
    }
}

#[async_trait]
impl Nodes for Recorder {
    async fn register(&self, node: NewNode) -> Result<NodeLease> {
        self.store.register(node).await
    }

    async fn heartbeat(&self, node: NodeId, running: usize) -> Result<Beat> {
        let beat = self.store.heartbeat(node, running).await?;
        self.log.note(What::Beat { node: node.0, alive: matches!(beat, Beat::Alive { .. }) });
        Ok(beat)
    }

    async fn deregister(&self, node: NodeId) -> Result<()> {
        self.store.deregister(node).await?;
        self.log.note(What::Deregistered { node: node.0 });
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.store.nodes().await
    }
}

#[async_trait]
impl Upkeep for Recorder {
    async fn survey(&self, lease: Duration, queues: &[String]) -> Result<Survey> {
        self.store.survey(lease, queues).await
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        self.store.promote(limit).await
    }

    async fn recover(&self, lease: Duration, silent: &[Silent]) -> Result<Recovered> {
        let recovered = self.store.recover(lease, silent).await?;
        if !recovered.nodes.is_empty() {
            let nodes = recovered.nodes.iter().map(|node| node.0).collect();
            let jobs = recovered.jobs.iter().map(|job| job.as_i64()).collect();
            self.log.note(What::Recovered { nodes, jobs });
        }
        Ok(recovered)
    }

    async fn expire(&self, limit: usize) -> Result<usize> {
        self.store.expire(limit).await
    }

    async fn open_gates(&self, limit: usize) -> Result<usize> {
        self.store.open_gates(limit).await
    }

    async fn clean(&self, limit: usize) -> Result<usize> {
        self.store.clean(limit).await
    }

    async fn waiting_queues(&self) -> Result<Vec<WaitingQueue>> {
        self.store.waiting_queues().await
    }

    async fn last_served(&self, served: &[String], asked: &[String]) -> Result<Vec<Option<Timestamp>>> {
        self.store.last_served(served, asked).await
    }
}

#[async_trait]
impl Leases for Recorder {
    async fn hold(&self, name: &str, node: NodeId, time: Duration) -> Result<Option<Lease>> {
        let held = self.store.hold(name, node, time).await?;
        if let Some(lease) = held.filter(|_| name == SCHEDULER)
            && self.epoch.swap(lease.epoch, Ordering::Relaxed) != lease.epoch
        {
            self.log.note(What::Leads { node: node.0, epoch: lease.epoch });
        }
        Ok(held)
    }

    async fn let_go(&self, name: &str, epoch: u64) -> Result<bool> {
        self.store.let_go(name, epoch).await
    }

    async fn advance(&self, name: &str, epoch: u64, position: u64) -> Result<bool> {
        self.store.advance(name, epoch, position).await
    }

    async fn holders(&self, prefix: &str) -> Result<Vec<Holder>> {
        self.store.holders(prefix).await
    }
}

#[async_trait]
impl Schedules for Recorder {
    async fn schedules(&self, scope: Scope, ask: ScheduleAsk) -> Result<Vec<ScheduleRecord>> {
        self.store.schedules(scope, ask).await
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        self.pass(CHANGE, std::iter::once(change.name.clone())).await;
        self.store.change_schedule(change).await
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        self.store.due_schedules(limit).await
    }

    async fn fire(&self, epoch: u64, firings: Vec<Firing>) -> Result<Option<Vec<Fired>>> {
        self.pass(FIRE, firings.iter().map(|firing| firing.name.clone())).await;
        let asked_at = mono();
        let fired = self.store.fire(epoch, firings.clone()).await?;
        let times = fired.as_deref().map(|fired| new_times(&firings, fired)).unwrap_or_default();
        self.log.note(What::Fired { epoch, asked_at, accepted: fired.is_some(), times });
        Ok(fired)
    }
}

/// The schedule and the nominal time of each job that a fire has stored.
fn new_times(firings: &[Firing], fired: &[Fired]) -> Vec<(String, i64)> {
    let mut times = Vec::new();
    for (firing, fired) in firings.iter().zip(fired) {
        let Fired::Stored(stored) = fired else { continue };
        for (job, stored) in firing.jobs.iter().zip(stored).filter(|(_, stored)| !stored.duplicate) {
            debug_assert_eq!(job.id, stored.id, "a new job keeps its id");
            times.extend(job.spec.nominal_at.map(|at| (firing.name.clone(), at.as_micros())));
        }
    }
    times
}

forward_base!(Recorder => store);
reads_calls!(forward_calls! Recorder => store,);
steering_calls!(forward_calls! Recorder => store,);
tenancy_calls!(forward_calls! Recorder => store,);
records_calls!(forward_calls! Recorder => store,);
groups_calls!(forward_calls! Recorder => store,);
feed_calls!(forward_calls! Recorder => store,);
insight_calls!(forward_calls! Recorder => store,);

/// Which jobs of a leased submit run when it returns.
fn is_born_leased(job: &NewJob) -> bool {
    job.is_plain() && job.start == Start::Now
}

fn newborn(job: &NewJob) -> Held {
    Held {
        job: job.id.as_i64(),
        attempt: 1,
        failed: 0,
        recoveries: 0,
        queue: job.queue.clone(),
        priority: job.priority.0,
    }
}

fn name(transition: &Transition) -> &'static str {
    match transition {
        Transition::Succeed { .. } => "succeed",
        Transition::Retry { .. } => "retry",
        Transition::DeadLetter { .. } => "dead_letter",
        Transition::Cancel { .. } => "cancel",
        Transition::Snooze { .. } => "snooze",
        Transition::Release => "release",
        Transition::Park { .. } => "park",
        Transition::Route { .. } => "route",
    }
}
