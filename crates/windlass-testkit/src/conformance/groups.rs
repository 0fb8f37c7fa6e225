//! Cases of batches and of jobs that wait for others: what is counted, what is completed once, what goes on or ends.

use windlass_core::flows::depend::Parent;
use windlass_core::store::{
    BatchAsk, BatchCounts, BatchOpened, BatchRecord, Completion, Dependents, Edge, NewBatch, NewPart, PartAdded,
    Settlement, Transition,
};
use windlass_core::{After, BatchId, IfFailed, JobError, JobFilter, JobId, Scope, Status, TenantId};

use super::Rig;
use super::rig::{A, B, EVERYONE, HOUR, Job, payload};

impl Rig {
    async fn open_batch(&self, key: Option<&str>) -> BatchRecord {
        let (id, key) = (BatchId(self.job().id()), key.map(str::to_owned));
        let batch = NewBatch { id, tenant: A, name: "import".to_owned(), key, callback: Some(payload(r#"{"n": 1}"#)) };
        match self.store().open_batch(batch).await.expect("an answer") {
            BatchOpened::Open(record) => *record,
            BatchOpened::TooMany => panic!("there are few"),
        }
    }

    async fn add_part(&self, batch: BatchId, part: u32, jobs: usize) -> PartAdded {
        let member = |job: Job| {
            job.with(|job| {
                job.batch = Some(batch);
                job.spec.part = Some(part);
            })
        };
        let jobs = self.jobs(jobs).into_iter().map(|job| member(job.tenant(A)).0).collect();
        self.store().add_part(NewPart { tenant: A, batch, part, jobs }).await.expect("an answer")
    }

    async fn counts_of(&self, batch: BatchId) -> BatchCounts {
        self.batch(EVERYONE, batch).await.expect("it is there").counts
    }

    async fn batch(&self, scope: Scope, batch: BatchId) -> Option<BatchRecord> {
        let ask = BatchAsk { ids: Some(vec![batch]), before: None, limit: 5 };
        self.store().batches(scope, &ask).await.expect("a list").pop()
    }

    async fn due_batches(&self, of: &[BatchId]) -> Vec<BatchId> {
        let due = self.store().fold_batches(of, 100).await.expect("folds");
        due.into_iter().map(|record| record.id).collect()
    }

    async fn dependents(&self, which: Dependents) -> Vec<(JobId, Vec<Parent>)> {
        let found = self.store().dependents(&which, 100).await.expect("a list");
        found.into_iter().map(|dependent| (dependent.job, dependent.parents)).collect()
    }

    async fn settle(&self, job: JobId, end: Option<Transition>) -> Option<Status> {
        let settlement = Settlement { job, end, follow_up: None };
        self.store().settle(vec![settlement]).await.expect("settles")[0]
    }
}

fn after(job: Job, of: &[JobId]) -> Job {
    job.with(|job| job.spec.after = Some(Box::new(waits_for(of))))
}

fn waits_for(of: &[JobId]) -> After {
    let mut after = After::default();
    (after.of, after.if_failed) = (of.to_vec(), IfFailed::Cancel);
    after
}

fn succeed() -> Transition {
    Transition::Succeed { output: None, keep: HOUR }
}

fn die() -> Transition {
    let error = JobError::terminal("bad", "no");
    Transition::DeadLetter { failed: 1, reason: "bad".to_owned(), error, keep: None }
}

/// FLW-4: a batch with a key is opened once, belongs to its tenant, and is read back as it was.
pub(super) async fn a_batch_is_opened_once_for_its_key(rig: Rig) {
    let first = rig.open_batch(Some("k")).await;
    assert_eq!(rig.open_batch(Some("k")).await, first);
    let other = rig.open_batch(None).await;
    assert_ne!(rig.open_batch(None).await.id, other.id);
    assert_eq!(rig.batch(Scope::Tenant(A), first.id).await, Some(first.clone()));
    assert_eq!(rig.batch(Scope::Tenant(B), first.id).await, None);
    assert_eq!((first.parts, first.counts, first.callback), (0, BatchCounts::default(), Some(payload(r#"{"n": 1}"#))));
}

/// FLW-4: a repeated part adds nothing, nothing is added to a sealed batch, nor to another tenant's.
pub(super) async fn a_part_is_added_once(rig: Rig) {
    let batch = rig.open_batch(None).await.id;
    let PartAdded::Added(stored) = rig.add_part(batch, 7, 3).await else { panic!("added") };
    assert_eq!(stored.len(), 3);
    assert_eq!(rig.add_part(batch, 7, 5).await, PartAdded::Repeated(3));
    assert_eq!(rig.counts_of(batch).await.total, 3);
    let foreign = NewPart { tenant: B, batch, part: 8, jobs: vec![rig.job().tenant(B).0] };
    assert_eq!(rig.store().add_part(foreign).await.expect("an answer"), PartAdded::NotFound);
    assert_eq!(rig.store().seal_batch(B, batch).await.expect("an answer"), None);
    let sealed = rig.store().seal_batch(A, batch).await.expect("an answer").expect("it is there");
    assert!(sealed.sealed_at.is_some());
    let again = rig.store().seal_batch(A, batch).await.expect("an answer").expect("it is there");
    assert_eq!(again.sealed_at, sealed.sealed_at, "twice is the same as once");
    assert_eq!(rig.add_part(batch, 8, 1).await, PartAdded::Sealed);
    assert_eq!(rig.add_part(batch, 7, 1).await, PartAdded::Repeated(3));
    assert_eq!(rig.claim(10).await.len(), 3, "what was refused is not stored");
}

/// FLW-4: counts are exact whichever way a job ends, and when one is replayed; jobs that only name the batch do not count.
pub(super) async fn counts_of_a_batch_are_exact(rig: Rig) {
    let batch = rig.open_batch(None).await.id;
    rig.submit(rig.job().tenant(A).with(|job| job.batch = Some(batch))).await;
    rig.claim_one().await;
    rig.add_part(batch, 0, 4).await;
    let jobs = rig.claim(3).await;
    rig.end(&jobs[0], succeed()).await;
    rig.end(&jobs[1], die()).await;
    rig.end(&jobs[2], Transition::Cancel { reason: "canceled".to_owned(), keep: HOUR }).await;
    let mut last = None;
    for id in rig.list(JobFilter::all()).await {
        if rig.status(id).await == Status::Pending {
            last = Some(id);
        }
    }
    rig.cancel(last.expect("one waits")).await;
    let counts = rig.counts_of(batch).await;
    assert_eq!(counts, BatchCounts { total: 4, succeeded: 1, canceled: 2, dead: 1 });
    rig.store().replay(EVERYONE, jobs[1].id, "ann").await.expect("replays");
    assert_eq!(rig.counts_of(batch).await, BatchCounts { dead: 0, ..counts });
    let again = rig.claim_one().await;
    rig.end(&again, succeed()).await;
    assert_eq!(rig.counts_of(batch).await, BatchCounts { succeeded: 2, dead: 0, ..counts });
}

/// FLW-4: a member that runs when its node is lost, and whose cancel was requested, is counted too.
pub(super) async fn a_member_of_a_lost_node_is_counted(rig: Rig) {
    let batch = rig.open_batch(None).await.id;
    rig.add_part(batch, 0, 1).await;
    let job = rig.claim_one().await;
    rig.cancel(job.id).await;
    let other = rig.another_node().await;
    rig.lose_node(&[other]).await;
    assert_eq!(rig.counts_of(batch).await, BatchCounts { total: 1, canceled: 1, ..BatchCounts::default() });
}

/// FLW-4: a batch is completed once, when it is sealed and all its jobs have ended, with its callback.
pub(super) async fn a_batch_is_completed_once(rig: Rig) {
    let batch = rig.open_batch(None).await.id;
    rig.add_part(batch, 0, 2).await;
    let complete = async |job: Option<Job>| {
        let completion = Completion { batch, job: job.map(|job| Box::new(job.0)) };
        rig.store().complete_batch(completion).await.expect("an answer")
    };
    let jobs = rig.claim(2).await;
    rig.end(&jobs[0], succeed()).await;
    rig.end(&jobs[1], die()).await;
    assert_eq!(rig.due_batches(&[]).await, [], "it is not sealed");
    assert!(!complete(Some(rig.job())).await);
    rig.store().seal_batch(A, batch).await.expect("seals");
    assert_eq!(rig.due_batches(&[batch]).await, [batch]);
    assert_eq!(rig.due_batches(&[]).await, [batch], "also for those who have heard of none");
    let callback = rig.job().tenant(A);
    let id = callback.id();
    assert!(complete(Some(callback)).await);
    assert!(!complete(Some(rig.job())).await, "once");
    let record = rig.batch(EVERYONE, batch).await.expect("it is there");
    assert_eq!((record.callback_job, record.completed_at.is_some()), (Some(id), true));
    assert_eq!(rig.due_batches(&[batch]).await, []);
    assert_eq!(rig.claim(10).await.iter().map(|job| job.id).collect::<Vec<_>>(), [id], "one callback");
    rig.store().replay(EVERYONE, jobs[1].id, "ann").await.expect("replays");
    assert!(!complete(None).await, "a replay does not complete it again");
}

/// FLW-4: an empty batch is complete when it is sealed.
pub(super) async fn an_empty_batch_is_complete_when_it_is_sealed(rig: Rig) {
    let batch = rig.open_batch(None).await.id;
    rig.store().seal_batch(A, batch).await.expect("seals");
    assert_eq!(rig.due_batches(&[]).await, [batch]);
}

/// FLW-3: a job waits for its parents, which stand as they have ended, until it is settled; then it takes its turn.
pub(super) async fn a_job_waits_for_its_parents(rig: Rig) {
    let (first, second) = (rig.submit(rig.job().tenant(A)).await, rig.submit(rig.job().tenant(A)).await);
    let child = rig.submit(after(rig.job().tenant(A), &[first, second])).await;
    assert_eq!(rig.status(child).await, Status::Blocked);
    assert_eq!(rig.record(child).await.reason.as_deref(), Some("parents:"));
    let parents = rig.claim(10).await;
    assert_eq!(parents.len(), 2, "the child is not ready");
    assert_eq!(rig.open_gates().await, 0, "no gate opens by itself");
    let unfinished = vec![Parent::Unfinished, Parent::Unfinished];
    assert_eq!(rig.dependents(Dependents::Of(vec![first])).await, [(child, unfinished)]);
    rig.end(parents.iter().find(|job| job.id == first).expect("claimed"), succeed()).await;
    rig.end(parents.iter().find(|job| job.id == second).expect("claimed"), die()).await;
    let stand = [(child, vec![Parent::Succeeded, Parent::Failed])];
    assert_eq!(rig.dependents(Dependents::Of(vec![second])).await, stand);
    assert_eq!(rig.dependents(Dependents::These(vec![child, first])).await, stand);
    assert_eq!(rig.dependents(Dependents::After(JobId::from_i64(0))).await, stand);
    assert_eq!(rig.dependents(Dependents::After(child)).await, []);
    assert_eq!(rig.settle(child, None).await, Some(Status::Pending));
    assert_eq!(rig.settle(child, None).await, None, "it does not wait any more");
    assert_eq!(rig.dependents(Dependents::Of(vec![first, second])).await, []);
    assert_eq!(rig.claim_one().await.id, child);
}

/// FLW-3: a job that goes on waits behind its ordering key, or until its time; it holds neither while it waits for others.
pub(super) async fn a_settled_job_takes_its_place(rig: Rig) {
    let parent = rig.submit(rig.job().tenant(A)).await;
    let keyed = |job: Job| job.tenant(A).with(|job| job.ordering_key = Some("k".to_owned()));
    let child = rig.submit(after(keyed(rig.job()), &[parent])).await;
    let later = rig.job().tenant(A).with(|job| job.start = windlass_core::Start::After(HOUR));
    let later = rig.submit(after(later, &[parent])).await;
    let other = rig.submit(keyed(rig.job())).await;
    assert_eq!(rig.status(other).await, Status::Pending, "nobody holds its key yet");
    assert_eq!(rig.settle(child, None).await, Some(Status::Blocked));
    assert_eq!(rig.settle(later, None).await, Some(Status::Scheduled));
    let claimed = rig.claim(10).await;
    assert_eq!(claimed.len(), 2);
    rig.end(claimed.iter().find(|job| job.id == other).expect("claimed"), succeed()).await;
    rig.open_gates().await;
    assert_eq!(rig.claim_one().await.id, child);
}

/// FLW-3: a job whose parent did not succeed ends as it was decided, once, and can be read, counted and replayed.
pub(super) async fn a_job_ends_with_its_parents(rig: Rig) {
    let parent = rig.submit(rig.job().tenant(A)).await;
    let (canceled, dead) = (
        rig.submit(after(rig.job().tenant(A), &[parent])).await,
        rig.submit(after(rig.job().tenant(A), &[parent])).await,
    );
    let cancel = Transition::Cancel { reason: "parent_failed".to_owned(), keep: HOUR };
    assert_eq!(rig.settle(canceled, Some(cancel)).await, Some(Status::Canceled));
    assert_eq!(rig.record(canceled).await.reason.as_deref(), Some("parent_failed"));
    let error = JobError::terminal("parent_failed", "no");
    let die = Transition::DeadLetter { failed: 0, reason: "parent_failed".to_owned(), error, keep: None };
    let follow_up = Some(Box::new(rig.job().tenant(A).0));
    let settlement = Settlement { job: dead, end: Some(die), follow_up };
    assert_eq!(rig.store().settle(vec![settlement]).await.expect("settles"), [Some(Status::DeadLettered)]);
    let record = rig.record(dead).await;
    assert_eq!(record.error.expect("an error").code, "parent_failed");
    let counts = rig.counts().await;
    assert_eq!((counts.get(Status::Canceled), counts.get(Status::DeadLettered)), (1, 1));
    assert_eq!(rig.audit(EVERYONE, "JOB_FAILED").await.len(), 1);
    assert_eq!(rig.claim(10).await.len(), 2, "the parent and the callback");
    rig.store().replay(EVERYONE, dead, "ann").await.expect("replays");
    assert_eq!(rig.claim_one().await.id, dead, "it waits for nobody any more");
}

/// FLW-3: a waiting child can be canceled; a parent that is purged is gone; edges go with the child.
pub(super) async fn edges_go_with_the_child(rig: Rig) {
    let parent = rig.ended(rig.job().tenant(A), succeed()).await;
    let child = rig.submit(after(rig.job().tenant(A), &[parent])).await;
    let edge = Edge { parent, child };
    for of in [parent, child] {
        assert_eq!(rig.store().edges(&[of], 10).await.expect("edges"), [edge]);
    }
    assert!(rig.store().purge(EVERYONE, parent, "ann").await.expect("purges"));
    assert_eq!(rig.dependents(Dependents::These(vec![child])).await, [(child, vec![Parent::Gone])]);
    rig.cancel(child).await;
    assert_eq!(rig.status(child).await, Status::Canceled);
    assert_eq!(rig.dependents(Dependents::These(vec![child])).await, []);
    assert_eq!(rig.store().edges(&[child], 10).await.expect("edges"), [edge], "as long as the child is there");
    assert!(rig.store().purge(EVERYONE, child, "ann").await.expect("purges"));
    assert_eq!(rig.store().edges(&[parent, child], 10).await.expect("edges"), []);
}

/// FLW-3, FLW-4: a batch stands as a parent by what its jobs came to when it was completed.
pub(super) async fn a_batch_is_waited_for(rig: Rig) {
    let (good, bad) = (rig.open_batch(None).await.id, rig.open_batch(None).await.id);
    let child = rig.submit(after(rig.job().tenant(A), &[good.0, bad.0])).await;
    for (batch, end) in [(good, succeed()), (bad, die())] {
        rig.add_part(batch, 0, 1).await;
        let job = rig.claim_one().await;
        rig.end(&job, end).await;
        rig.store().seal_batch(A, batch).await.expect("seals");
    }
    let unfinished = vec![Parent::Unfinished, Parent::Unfinished];
    assert_eq!(rig.dependents(Dependents::These(vec![child])).await, [(child, unfinished)]);
    for batch in [good, bad] {
        assert!(rig.store().complete_batch(Completion { batch, job: None }).await.expect("an answer"));
    }
    let stand = [(child, vec![Parent::Succeeded, Parent::Failed])];
    assert_eq!(rig.dependents(Dependents::Of(vec![good.0])).await, stand);
}

/// FLW-3, FLW-4: an idle node hears of what there is to settle.
pub(super) async fn a_survey_finds_what_is_to_be_settled(rig: Rig) {
    let look = async || {
        let survey = rig.store().survey(HOUR, &[]).await.expect("a survey");
        (survey.dependents, survey.batches)
    };
    assert_eq!(look().await, (false, false));
    let batch = rig.open_batch(None).await.id;
    let child = rig.submit(after(rig.job().tenant(A), &[batch.0])).await;
    assert_eq!(look().await, (true, false));
    rig.store().seal_batch(A, batch).await.expect("seals");
    assert_eq!(look().await, (true, true));
    rig.store().complete_batch(Completion { batch, job: None }).await.expect("completes");
    rig.settle(child, None).await;
    assert_eq!(look().await, (false, false));
}

/// FLW-4: batches are listed newest first, in pages.
pub(super) async fn batches_are_listed(rig: Rig) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.insert(0, rig.open_batch(None).await.id);
    }
    let page = async |before, limit| {
        let ask = BatchAsk { ids: None, before, limit };
        let found = rig.store().batches(Scope::Tenant(A), &ask).await.expect("a list");
        found.into_iter().map(|record| record.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2).await, ids[..2]);
    assert_eq!(page(Some(ids[1]), 2).await, ids[2..]);
    let none: Vec<BatchId> = Vec::new();
    let ask = BatchAsk { ids: None, before: None, limit: 5 };
    let foreign = rig.store().batches(Scope::Tenant(TenantId::ROOT), &ask).await.expect("a list");
    assert_eq!(foreign.into_iter().map(|record| record.id).collect::<Vec<_>>(), none);
}
