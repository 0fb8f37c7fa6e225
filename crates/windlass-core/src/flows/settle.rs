//! What follows from the end of a job: those that waited for it go on or end too, and its batch may be complete. Heard of
//! from the finisher and the submitter, and looked for now and then, because whoever ended a job may have died before it
//! could say so. Asks and carries out; `depend.rs` and [`BatchRecord::is_due`] decide.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::flows::depend::{Decided, decide, parent_failed};
use crate::life::lifecycle::Transition;
use crate::model::error::Reason;
use crate::model::id::JobId;
use crate::model::job::{BatchId, ClaimedJob, JobRecord, NewJob};
use crate::model::payload::Payload;
use crate::model::tenant::Scope;
use crate::node::Worker;
use crate::operate::failures::sign;
use crate::store::{self, Completion, Dependent, Dependents, LeaseId, Settlement};

/// Jobs that one look reads at most, so that it stays short.
const LOOKED_AT: usize = 1_000;

/// Batches that one look completes at most.
const COMPLETED_AT_ONCE: usize = 100;

/// Ends that may wait to be followed up. Beyond it they are found by the next sweep: a store that is this far behind has
/// no use for a list that grows.
const HEARD_MOST: usize = 100_000;

/// How often the counts of a batch are added up at most, however many of its jobs end: twenty times a second.
const FOLD_EVERY: Duration = Duration::from_millis(50);

/// Where a sweep begins: before every id.
const START: JobId = JobId::from_i64(0);

/// How long to rest after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// What the node has heard that somebody may wait for.
#[derive(Default)]
pub(crate) struct Settler {
    heard: Mutex<Heard>,
    wake: Notify,
    /// Whether any job waits for others, as far as is known: while none does, ends are not worth a list.
    dependents: AtomicBool,
}

#[derive(Default)]
struct Heard {
    /// Jobs and batches that have ended.
    ended: Vec<JobId>,
    /// Jobs that were stored with others to wait for, which may have ended before.
    born: Vec<JobId>,
    /// Batches whose jobs have ended.
    batches: BTreeSet<BatchId>,
    /// Whether to look at all dependents, a piece at a time.
    sweep: bool,
    /// Whether to look at all batches.
    fold: bool,
}

impl Settler {
    /// Jobs have ended, each with the batch that counts it.
    pub(crate) fn ended(&self, jobs: impl Iterator<Item = (JobId, Option<BatchId>)>) {
        let dependents = self.dependents.load(Ordering::Acquire);
        let mut heard = None;
        for (job, batch) in jobs {
            if !dependents && batch.is_none() {
                continue;
            }
            let heard = heard.get_or_insert_with(|| self.heard.lock());
            heard.batches.extend(batch);
            if dependents && heard.ended.len() < HEARD_MOST {
                heard.ended.push(job);
            }
        }
        if heard.is_some() {
            self.wake.notify_one();
        }
    }

    /// Jobs were stored that wait for others.
    pub(crate) fn born(&self, jobs: impl Iterator<Item = JobId>) {
        let mut heard = self.heard.lock();
        let room = HEARD_MOST.saturating_sub(heard.born.len());
        heard.born.extend(jobs.take(room));
        if !heard.born.is_empty() {
            self.dependents.store(true, Ordering::Release);
            self.wake.notify_one();
        }
    }

    /// A batch was sealed, or its count has changed.
    pub(crate) fn batch_changed(&self, batch: BatchId) {
        self.heard.lock().batches.insert(batch);
        self.wake.notify_one();
    }

    /// What a survey found.
    pub(crate) fn surveyed(&self, dependents: bool, batches: bool) {
        self.dependents.store(dependents, Ordering::Release);
        if dependents || batches {
            let mut heard = self.heard.lock();
            (heard.sweep, heard.fold) = (heard.sweep || dependents, heard.fold || batches);
            self.wake.notify_one();
        }
    }

    fn take_ends(&self) -> (Vec<JobId>, Vec<JobId>, bool) {
        let mut heard = self.heard.lock();
        let sweep = std::mem::take(&mut heard.sweep);
        (std::mem::take(&mut heard.ended), std::mem::take(&mut heard.born), sweep)
    }

    fn take_batches(&self) -> Option<Vec<BatchId>> {
        let mut heard = self.heard.lock();
        let batches = std::mem::take(&mut heard.batches);
        match std::mem::take(&mut heard.fold) {
            // Those that were heard of are among all.
            true => Some(Vec::new()),
            false => (!batches.is_empty()).then(|| batches.into_iter().collect()),
        }
    }

    fn has_batches(&self) -> bool {
        let heard = self.heard.lock();
        heard.fold || !heard.batches.is_empty()
    }
}

impl Worker {
    /// Follows up what has ended, until the node stops.
    pub(crate) async fn settle_groups(self: Arc<Self>) {
        let (mut cursor, mut folded) = (START, None::<Instant>);
        while !self.stopped.is_cancelled() {
            let fold_in = folded.map_or(Duration::ZERO, |at| FOLD_EVERY.saturating_sub(at.elapsed()));
            let settled = self.settle_heard(&mut cursor, fold_in.is_zero()).await;
            match settled {
                Ok(true) => folded = Some(Instant::now()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "could not settle what waits for jobs that have ended, trying again");
                    // What was heard is lost here, and found by the next survey's sweep.
                    self.rest(AFTER_FAILURE).await;
                }
            }
            let fold_in = folded.map_or(Duration::ZERO, |at| FOLD_EVERY.saturating_sub(at.elapsed()));
            tokio::select! {
                () = self.settler.wake.notified() => {}
                () = tokio::time::sleep(fold_in), if self.settler.has_batches() => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// One round. Returns whether it looked at batches.
    async fn settle_heard(&self, cursor: &mut JobId, fold: bool) -> store::Result<bool> {
        let (ended, born, sweep) = self.settler.take_ends();
        for piece in born.chunks(LOOKED_AT) {
            let ended = self.settle_dependents(&Dependents::These(piece.to_vec())).await?.ended;
            self.settle_ends(ended).await?;
        }
        self.settle_ends(ended).await?;
        if sweep {
            let looked = self.settle_dependents(&Dependents::After(*cursor)).await?;
            *cursor = looked.last.unwrap_or(START);
            self.settle_ends(looked.ended).await?;
        }
        let Some(batches) = fold.then(|| self.settler.take_batches()).flatten() else { return Ok(false) };
        for record in self.store.fold_batches(&batches, COMPLETED_AT_ONCE).await? {
            let job = self.batch_callback(&record).await;
            let callback = job.is_some();
            if self.store.complete_batch(Completion { batch: record.id, job: job.map(Box::new) }).await? {
                tracing::debug!(batch = %record.id.0, counts = ?record.counts, "batch {} is complete", record.id.0);
                if callback {
                    self.jobs_are_ready();
                }
                self.settle_ends(vec![record.id.0]).await?;
            }
        }
        Ok(true)
    }

    /// Settles those that waited for these jobs and batches, and those that waited for the ones that end with it.
    async fn settle_ends(&self, mut ended: Vec<JobId>) -> store::Result<()> {
        while !ended.is_empty() {
            let rest = ended.split_off(ended.len().min(LOOKED_AT));
            let mut looked = self.settle_dependents(&Dependents::Of(ended.clone())).await?;
            // Whoever is settled waits no more, so that the same question brings the next ones.
            let mut more = looked.settled == LOOKED_AT;
            while more {
                let next = self.settle_dependents(&Dependents::Of(ended.clone())).await?;
                more = next.settled == LOOKED_AT;
                looked.ended.extend(next.ended);
            }
            ended = looked.ended;
            ended.extend(rest);
        }
        Ok(())
    }

    async fn settle_dependents(&self, which: &Dependents) -> store::Result<Looked> {
        let found = self.store.dependents(which, LOOKED_AT).await?;
        // A full page goes on after its last one.
        let last = found.last().map(|dependent| dependent.job).filter(|_| found.len() == LOOKED_AT);
        let mut settlements = Vec::new();
        for dependent in &found {
            settlements.extend(self.settlement(dependent).await?);
        }
        if settlements.is_empty() {
            return Ok(Looked { last, settled: 0, ended: Vec::new() });
        }
        let jobs: Vec<JobId> = settlements.iter().map(|settlement| settlement.job).collect();
        let settled = self.store.settle(settlements).await?;
        let mut looked = Looked { last, settled: settled.iter().flatten().count(), ended: Vec::new() };
        for (job, status) in jobs.into_iter().zip(settled) {
            if status.is_some_and(|status| status.is_terminal()) {
                looked.ended.push(job);
            }
        }
        if looked.settled > 0 {
            self.jobs_are_ready();
            self.wake_maintenance.notify_one();
            self.settler.heard.lock().fold = true;
        }
        Ok(looked)
    }

    /// What becomes of a job now; nothing if it waits on.
    async fn settlement(&self, dependent: &Dependent) -> store::Result<Option<Settlement>> {
        let go_on = |end| Some(Settlement { job: dependent.job, end, follow_up: None });
        // What it waits for cannot be read: it goes on, and the node that claims it finds out.
        let Some(after) = &dependent.spec.after else { return Ok(go_on(None)) };
        let parent = match decide(after, &dependent.parents) {
            None => return Ok(None),
            Some(Decided::Open) => return Ok(go_on(None)),
            Some(Decided::Cancel(_)) => {
                let keep = self.keep_of(&dependent.handler, dependent.spec.retention);
                return Ok(go_on(Some(Transition::Cancel { reason: Reason::ParentFailed.as_str().into(), keep })));
            }
            Some(Decided::Fail(parent)) => parent,
        };
        let keep_dead = self.keep_dead_of(&dependent.handler);
        let (error, reason) = (parent_failed(parent), Reason::ParentFailed.as_str().to_owned());
        let dead = Transition::DeadLetter { failed: 0, reason, error, keep: keep_dead };
        let dead = sign(&dependent.handler, dependent.spec.sealed, None, dead);
        let follow_up = self.failure_callback(dependent, &dead).await?;
        Ok(Some(Settlement { job: dependent.job, end: Some(dead), follow_up }))
    }

    /// The callback of a job that fails without ever having run, if its handler has one.
    async fn failure_callback(&self, of: &Dependent, dead: &Transition) -> store::Result<Option<Box<NewJob>>> {
        if !self.registry.get(&of.handler).is_some_and(|handler| handler.has_callbacks()) {
            return Ok(None);
        }
        let Some(record) = self.store.get(Scope::ENGINE, &[of.job]).await?.pop() else { return Ok(None) };
        let Some(payload) = self.store.input(Scope::ENGINE, of.job).await? else { return Ok(None) };
        let mut job = never_claimed(record, payload);
        // Without its keys it has no input that a callback could be given.
        let Ok(sealer) = self.seals.open_job(&mut job).await else { return Ok(None) };
        let mut callback = self.follow_up(&job, dead, sealer.as_ref());
        if let (Some(sealer), Some(callback)) = (&sealer, callback.as_deref_mut()) {
            sealer.seal_new(callback);
        }
        Ok(callback)
    }
}

/// What one look at dependents came to.
struct Looked {
    /// Where the next look goes on, if there may be more.
    last: Option<JobId>,
    settled: usize,
    /// Those that have ended with it.
    ended: Vec<JobId>,
}

/// A job as an attempt would have got it.
fn never_claimed(record: JobRecord, payload: Payload) -> ClaimedJob {
    ClaimedJob {
        id: record.id,
        lease: LeaseId(0),
        tenant: record.tenant,
        handler: record.handler,
        queue: record.queue,
        priority: record.priority,
        payload,
        failed: record.failed,
        recoveries: record.recoveries,
        created_at: record.created_at,
        ready_at: record.created_at,
        ordering_key: record.ordering_key,
        batch: record.batch,
        correlation_id: record.correlation_id,
        tags: record.tags,
        spec: record.spec,
        resumed: false,
        checkpoint: None,
        unreadable: None,
    }
}
