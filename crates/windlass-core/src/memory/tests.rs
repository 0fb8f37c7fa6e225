//! What only the memory store has: its slots, and an index that must agree with its jobs after every step. What every store
//! does is tested by the conformance suite. Time moves only when a test moves it.

use std::cell::Cell;

use uuid::Uuid;

use super::entry::Place;
use super::*;
use crate::model::clock::ManualClock;
use crate::model::error::JobError;
use crate::model::id::JobId;
use crate::model::job::{JobSpec, Start};
use crate::model::job::{NewJob, Status};
use crate::model::payload::Payload;
use crate::model::priority::Priority;
use crate::model::tenant::Scope;
use crate::store::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const A: TenantId = TenantId(Uuid::from_u128(0xa));
const B: TenantId = TenantId(Uuid::from_u128(0xb));

/// A store with one node and a clock that stands still.
struct Fixture {
    store: MemoryStore,
    clock: ManualClock,
    node: NodeId,
    leases: Cell<i64>,
    ids: Cell<u64>,
}

impl Fixture {
    async fn new() -> Self {
        let clock = ManualClock::at(NOW);
        let store = MemoryStore::with_clock(Arc::new(clock.clone()));
        let node = store.register(NewNode::default()).await.expect("slots are free").node;
        Fixture { store, clock, node, leases: Cell::new(0), ids: Cell::new(0) }
    }

    async fn recover(&self, lease: Duration) -> Recovered {
        let silent = self.store.survey(lease, &[]).await.unwrap().silent;
        self.store.recover(lease, &silent).await.unwrap()
    }

    fn job(&self) -> NewJob {
        let n = self.ids.replace(self.ids.get() + 1);
        let created = NOW + Duration::from_millis(n / 4096);
        NewJob {
            id: JobId::from_parts(created, MachineSlot::new(0).unwrap(), (n % 4096) as u16),
            tenant: A,
            handler: "h".into(),
            queue: "q".into(),
            priority: Priority::NORMAL,
            start: Start::Now,
            payload: Payload::null(),
            idempotency_key: None,
            unique: None,
            ordering_key: None,
            batch: None,
            tags: Vec::new(),
            correlation_id: None,
            spec: JobSpec::default(),
        }
    }

    async fn submit(&self, job: NewJob) -> JobId {
        let replies = self.submit_all(vec![job]).await;
        assert!(!replies[0].duplicate, "no other job has its key");
        replies[0].id
    }

    async fn submit_all(&self, jobs: Vec<NewJob>) -> Vec<Submitted> {
        self.store.submit(Submit { jobs, lease: None }).await.expect("memory accepts")
    }

    fn lease(&self) -> LeaseId {
        LeaseId(self.leases.replace(self.leases.get() + 1))
    }

    async fn claim_with(&self, node: NodeId, queues: &[(&str, usize)], max: usize, quota: [usize; 4]) -> Claimed {
        let queues = queues.iter().map(|(queue, limit)| ((*queue).to_owned(), *limit)).collect();
        let claim = Claim { node, lease: self.lease(), queues, max, quota, tenant: None };
        self.store.claim(claim).await.expect("memory answers")
    }

    async fn cancel(&self, id: JobId) -> CancelReply {
        self.store.cancel(Scope::ENGINE, id, "op", "not needed").await.expect("memory answers")
    }

    async fn count(&self, status: Status) -> u64 {
        self.store.counts(Scope::ENGINE).await.expect("memory answers").get(status)
    }
}

fn succeed() -> Transition {
    Transition::Succeed { output: None, keep: DAY }
}

fn retry(failed: u16) -> Transition {
    Transition::Retry { failed, delay: SECOND, error: JobError::retryable("io") }
}

fn die() -> Transition {
    Transition::DeadLetter { failed: 1, reason: "max_retries".into(), error: JobError::retryable("io"), keep: None }
}

// ---- nodes

#[tokio::test]
async fn a_slot_is_leased_to_one_node_and_rests_before_the_next() {
    let f = Fixture::new().await;
    let second = f.store.register(NewNode::default()).await.unwrap();
    assert_eq!(second.slot, MachineSlot::new(1).unwrap());
    f.store.deregister(f.node).await.unwrap();
    assert_eq!(
        f.store.register(NewNode::default()).await.unwrap().slot,
        MachineSlot::new(2).unwrap(),
        "slot 0 is in quarantine"
    );
    f.clock.advance(SLOT_QUARANTINE);
    let third = f.store.register(NewNode::default()).await.unwrap();
    assert_eq!(third.slot, MachineSlot::new(0).unwrap());
    assert!(third.node > second.node);
}

#[tokio::test]
async fn a_slot_starts_after_every_id_it_made_before() {
    let f = Fixture::new().await;
    let borrowed = JobId::from_parts(NOW + DAY, MachineSlot::new(0).unwrap(), 7);
    f.submit(NewJob { id: borrowed, ..f.job() }).await;
    f.store.deregister(f.node).await.unwrap();
    f.clock.advance(SLOT_QUARANTINE);
    let lease = f.store.register(NewNode::default()).await.unwrap();
    assert_eq!(lease.slot, MachineSlot::new(0).unwrap());
    assert!(lease.now > borrowed.created());
}

#[tokio::test]
async fn the_database_slot_is_never_leased() {
    let f = Fixture::new().await;
    for slot in 1..1023 {
        assert_eq!(f.store.register(NewNode::default()).await.unwrap().slot, MachineSlot::new(slot).unwrap());
    }
    assert!(matches!(f.store.register(NewNode::default()).await, Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn the_id_of_another_job_refuses_the_whole_batch() {
    let f = Fixture::new().await;
    let id = f.submit(f.job()).await;
    let jobs = vec![f.job(), NewJob { id, tenant: B, ..f.job() }];
    assert!(matches!(f.store.submit(Submit { jobs, lease: None }).await, Err(Error::Internal(_))));
    assert_eq!(f.count(Status::Pending).await, 1);
}

// ---- claim

/// Checks that every way to find a job agrees with where the jobs are.
fn check_index(state: &State) {
    let mut counted: HashMap<TenantId, Counts> = HashMap::default();
    let (mut ready, mut scheduled, mut parked, mut waiting, mut held) = (0, 0, 0, 0, 0);
    for entry in state.jobs.values() {
        let (id, tenant) = (entry.job.id, entry.job.tenant);
        counted.entry(tenant).or_default().add(entry.status(), 1);
        match &entry.place {
            Place::Ready { .. } => ready += 1,
            Place::Scheduled { at, .. } => {
                assert!(state.index.scheduled.contains(&(*at, id)));
                scheduled += 1;
            }
            Place::Gated(gate) => match gate.as_ref() {
                Gate::Pause(target) => {
                    assert!(state.index.parked[target].contains(&id));
                    parked += 1;
                }
                Gate::OrderingKey(key) => {
                    assert!(state.index.ordering[&(tenant, key.clone())].waiting.contains(&(entry.created_at, id)));
                    waiting += 1;
                }
                Gate::Parents => assert!(state.index.dependents.contains(&id)),
            },
            Place::Leased { lease, node, .. } => {
                assert_eq!(state.index.leases[lease].node, *node);
                assert!(state.index.nodes[node].leases.contains(lease));
                held += 1;
            }
            Place::Ended(_) => {}
        }
    }
    assert_eq!(state.index.ready.len(), ready);
    assert_eq!(state.index.scheduled.len(), scheduled);
    assert_eq!(state.index.parked.values().map(|jobs| jobs.len()).sum::<usize>(), parked);
    assert_eq!(state.index.ordering.values().map(|key| key.waiting.len()).sum::<usize>(), waiting);
    assert_eq!(state.index.leases.values().map(|lease| lease.held).sum::<usize>(), held);
    for ((tenant, key), line) in &state.index.ordering {
        let holder = &state.jobs[&line.holder];
        assert!(!holder.status().is_terminal(), "{key} of {tenant} is held by an ended job");
    }
    for (tenant, counts) in counted {
        let kept = state.index.counts(Scope::Tenant(tenant));
        for status in Status::ALL {
            assert_eq!(kept.get(status), counts.get(status), "{status}");
        }
    }
}

/// One random step; `pick` chooses among what there is.
async fn random_step(f: &Fixture, node: &mut NodeId, held: &mut Vec<Fence>, step: u8, pick: usize) {
    let ids: Vec<JobId> = f.store.state.lock().jobs.keys().copied().collect();
    let id = ids.get(pick % ids.len().max(1)).copied();
    let gate = Gate::Pause(PauseTarget::Tenant([A, B][pick % 2]));
    match step {
        0..=3 => {
            let job = NewJob {
                tenant: [A, B][pick % 2],
                priority: Priority((pick % 50) as i16 - 20),
                start: if pick.is_multiple_of(5) { Start::After(SECOND) } else { Start::Now },
                ordering_key: pick.is_multiple_of(3).then(|| format!("k{}", pick % 4)),
                spec: JobSpec { expires_at: pick.is_multiple_of(7).then_some(NOW + SECOND * 9), ..JobSpec::default() },
                ..f.job()
            };
            let lease = pick.is_multiple_of(11).then(|| (*node, f.lease()));
            f.store.submit(Submit { jobs: vec![job], lease }).await.unwrap();
        }
        4 | 5 => {
            let claimed = f.claim_with(*node, &[("q", 9), ("suspect:q", 1)], pick % 6, [1; 4]).await;
            held.extend(claimed.jobs.iter().map(|job| Fence { job: job.id, lease: job.lease }));
        }
        6..=9 if !held.is_empty() => {
            let fence = held.swap_remove(pick % held.len());
            let transition = match pick % 8 {
                0 => retry(1),
                1 => die(),
                2 => Transition::Snooze { delay: SECOND },
                3 => Transition::Release,
                4 => Transition::Park { gate },
                5 => Transition::Route { queue: "suspect:q".into() },
                6 => Transition::Park { gate: Gate::OrderingKey(format!("k{}", pick % 4)) },
                _ => succeed(),
            };
            let finish = Finish {
                fence,
                attempt: 1,
                ran: SECOND,
                transition,
                follow_up: None,
                cost: None,
                audit: false,
                batch: None,
                resumed: true,
            };
            let finished = f.store.finish(*node, vec![finish.clone()]).await.unwrap();
            assert_ne!(finished, [Finished::Fenced]);
            assert_eq!(f.store.finish(*node, vec![finish]).await.unwrap(), [Finished::Fenced]);
        }
        10 => f.clock.advance(SECOND),
        11 => drop(f.store.promote(pick % 5).await),
        12 => drop(f.store.open_gates(pick % 5).await),
        13 => drop(f.store.expire(pick % 5).await),
        14 => {
            f.clock.advance(DAY);
            f.store.clean(pick % 5).await.unwrap();
            f.store.heartbeat(*node, 0).await.unwrap();
        }
        15 => {
            if pick.is_multiple_of(2) {
                f.store.deregister(*node).await.unwrap();
            } else {
                f.clock.advance(SECOND);
                f.recover(Duration::ZERO).await;
            }
            held.clear();
            *node = f.store.register(NewNode::default()).await.unwrap().node;
        }
        _ => {
            let Some(id) = id else { return };
            f.cancel(id).await;
            f.store.replay(Scope::ENGINE, id, "op").await.unwrap();
            if pick.is_multiple_of(3) {
                f.store.purge(Scope::ENGINE, id, "op").await.unwrap();
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_job_is_ever_lost_or_in_two_places(steps in proptest::collection::vec((0u8..18, 0usize..10_000), 1..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let f = Fixture::new().await;
            let (mut node, mut held) = (f.node, Vec::new());
            for (step, pick) in steps {
                random_step(&f, &mut node, &mut held, step, pick).await;
                check_index(&f.store.state.lock());
            }
        });
    }
}
