//! What the tests of this store share: a store on a clock they move, and the shortest way to submit, claim and finish.
//! Never looks into the file: everything goes through the store.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use windlass_core::store::rooms::*;
use windlass_core::store::{
    Claim, Fence, Finish, Finished, LeaseId, NewNode, NodeId, Recovered, Result, Submit, Submitted, Transition,
};
use windlass_core::{
    ClaimedJob, IdGenerator, JobError, JobId, JobRecord, JobSpec, ManualClock, NewJob, Payload, Priority, Scope, Start,
    TenantId, Timestamp,
};
use windlass_sqlite::{SqliteOptions, SqliteStore};

/// Everything: tests look at all that there is.
const ALL: Scope = Scope::All(windlass_core::OperatorRight::assume());

pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
pub(crate) const KEEP: Duration = Duration::from_secs(3_600);

/// A store in a directory of its own, with one registered node.
pub(crate) struct Bench {
    pub(crate) store: SqliteStore,
    pub(crate) clock: ManualClock,
    pub(crate) node: NodeId,
    ids: IdGenerator,
    next_lease: AtomicI64,
    path: PathBuf,
    dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("jobs.db");
        let clock = ManualClock::at(NOW);
        let store = open(&path, &clock).expect("opens");
        let lease = store.register(new_node()).await.expect("registers");
        let ids = IdGenerator::new(lease.slot, lease.now);
        Bench { store, clock, node: lease.node, ids, next_lease: AtomicI64::new(1), path, dir }
    }

    pub(crate) async fn recover(&self, lease: Duration) -> Recovered {
        let silent = self.store.survey(lease, &[]).await.expect("looks").silent;
        self.store.recover(lease, &silent).await.expect("recovers")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Closes the file and opens it again, as after a crash: the node is not ended.
    pub(crate) async fn reopen(self) -> Bench {
        let Bench { store, clock, next_lease, path, dir, .. } = self;
        drop(store);
        let store = open(&path, &clock).expect("opens again");
        let lease = store.register(new_node()).await.expect("registers");
        let ids = IdGenerator::new(lease.slot, lease.now);
        Bench { store, clock, node: lease.node, ids, next_lease, path, dir }
    }

    pub(crate) fn job(&self) -> NewJob {
        job(&self.ids)
    }

    pub(crate) async fn submit(&self, jobs: Vec<NewJob>) -> Vec<Submitted> {
        self.store.submit(Submit { jobs, lease: None }).await.expect("submits")
    }

    pub(crate) async fn submit_one(&self, job: NewJob) -> JobId {
        let answers = self.submit(vec![job]).await;
        assert!(!answers[0].duplicate, "a new job");
        answers[0].id
    }

    pub(crate) fn lease(&self) -> LeaseId {
        LeaseId(self.next_lease.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) async fn claim(&self, max: usize) -> Vec<ClaimedJob> {
        self.claim_from("default", max).await
    }

    pub(crate) async fn claim_from(&self, queue: &str, max: usize) -> Vec<ClaimedJob> {
        let claim = Claim {
            node: self.node,
            lease: self.lease(),
            queues: vec![(queue.to_owned(), max)],
            max,
            quota: [max, 0, 0, 0],
            tenant: None,
        };
        self.store.claim(claim).await.expect("claims").jobs
    }

    pub(crate) async fn claim_one(&self) -> ClaimedJob {
        let mut jobs = self.claim(1).await;
        jobs.pop().expect("a ready job")
    }

    pub(crate) async fn finish(&self, job: &ClaimedJob, transition: Transition) -> Finished {
        self.finish_as(self.node, job, transition).await
    }

    pub(crate) async fn finish_as(&self, node: NodeId, job: &ClaimedJob, transition: Transition) -> Finished {
        let finishes = vec![finish(job, transition)];
        self.store.finish(node, finishes).await.expect("finishes").remove(0)
    }

    pub(crate) async fn record(&self, id: JobId) -> Option<JobRecord> {
        self.store.get(ALL, &[id]).await.expect("reads").pop()
    }

    /// The record of a job that is there.
    pub(crate) async fn the(&self, id: JobId) -> JobRecord {
        self.record(id).await.expect("the job is there")
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

pub(crate) fn open(path: &std::path::Path, clock: &ManualClock) -> Result<SqliteStore> {
    SqliteStore::open_with(path, SqliteOptions { clock: Arc::new(clock.clone()), ..SqliteOptions::default() })
}

pub(crate) fn new_node() -> NewNode {
    NewNode { host: "here".into(), pid: 1, version: "0".into(), handlers: vec!["mail.send".into()], capacity: 4 }
}

pub(crate) fn finish(job: &ClaimedJob, transition: Transition) -> Finish {
    let fence = Fence { job: job.id, lease: job.lease };
    Finish {
        fence,
        attempt: job.attempt(),
        ran: Duration::from_secs(2),
        transition,
        follow_up: None,
        cost: None,
        audit: false,
        batch: None,
        resumed: true,
    }
}

pub(crate) fn succeed() -> Transition {
    Transition::Succeed { output: Some(Payload::from_store("42")), keep: KEEP }
}

pub(crate) fn retry(failed: u16, delay: u64) -> Transition {
    Transition::Retry { failed, delay: Duration::from_secs(delay), error: JobError::retryable("io") }
}

pub(crate) fn die() -> Transition {
    Transition::DeadLetter { failed: 1, reason: "max_retries".into(), error: JobError::retryable("io"), keep: None }
}

pub(crate) fn tenant(n: u128) -> TenantId {
    TenantId(uuid::Uuid::from_u128(n))
}

pub(crate) fn job(ids: &IdGenerator) -> NewJob {
    NewJob {
        id: ids.next(),
        tenant: TenantId::ROOT,
        handler: "mail.send".into(),
        queue: "default".into(),
        priority: Priority::NORMAL,
        start: Start::Now,
        payload: Payload::from_store("{\"to\":\"a\"}"),
        idempotency_key: None,
        unique: None,
        ordering_key: None,
        batch: None,
        tags: Vec::new(),
        correlation_id: None,
        spec: JobSpec::default(),
    }
}
