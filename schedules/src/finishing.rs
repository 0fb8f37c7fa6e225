//! The finisher: attempts that end at the same time share writes, and `flush` waits for the last of them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::life::finish::{Ended, FINISHES_PER_WRITE, Finisher};
use crate::memory::MemoryStore;
use crate::model::id::JobId;
use crate::model::job::Status;
use crate::model::priority::Priority;
use crate::model::tenant::{Scope, TenantId};
use crate::node::supervise::Supervisor;
use crate::operate::activity::Tally;
use crate::operate::watch::Watchers;
use crate::simulated::{self, Sabotage, StoreClock};
use crate::store::rooms::*;
use crate::store::{Fence, Finish, LeaseId, NewNode, NodeId, Store, Submit, Transition};
use crate::submitting::job;

fn ended(node: NodeId, lease: i64, id: i64) -> Ended {
    let fence = Fence { job: JobId::from_i64(id), lease: LeaseId(lease) };
    let transition = Transition::Succeed { output: None, keep: Duration::from_secs(60) };
    let finish = Finish {
        fence,
        attempt: 1,
        ran: Duration::ZERO,
        transition,
        follow_up: None,
        cost: None,
        audit: false,
        batch: None,
        resumed: true,
    };
    let at = crate::Clock::now(&StoreClock);
    let (tenant, priority) = (TenantId::ROOT, Priority::NORMAL);
    Ended { node, finish, tenant, ordered: false, handler: "h".into(), priority, at, watch: None, open: None }
}

/// Two leases of three jobs end at once; then three wait until nothing is unsaved. `failing` writes fail;
/// `current` says whether the node is still ours then.
fn finish_together(failing: u32, current: bool) {
    shuttle::future::block_on(async move {
        let store = Arc::new(MemoryStore::with_clock(Arc::new(StoreClock)));
        let node = store.register(NewNode::default()).await.expect("the store works").node;
        let jobs = |lease: i64| (1..=3).map(move |n| lease * 100 + n);
        for lease in [1, 2] {
            let submit = Submit { jobs: jobs(lease).map(job).collect(), lease: Some((node, LeaseId(lease))) };
            store.submit(submit).await.expect("the store works");
        }
        simulated::fail("finish", failing);
        let tally = Arc::new(Tally::new(&[]));
        let finisher = Finisher::start(
            store.clone(),
            Watchers::new(),
            tally,
            Arc::default(),
            &Supervisor::default(),
            move |_| current,
            |_| {},
        );
        let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        for (lease, id) in [1, 2].into_iter().flat_map(|lease| jobs(lease).map(move |id| (lease, id))) {
            let finisher = finisher.clone();
            // Each twice: the second comes too late, and must change nothing.
            tasks.push(Box::pin(async move {
                finisher.finish(ended(node, lease, id)).await;
                finisher.finish(ended(node, lease, id)).await;
            }));
        }
        simulated::all(tasks).await;
        let waiting = (0..3).map(|_| finisher.clone());
        simulated::all(waiting.map(|finisher| Box::pin(async move { finisher.flush().await }) as _).collect()).await;
        let ids: Vec<JobId> = [1, 2].into_iter().flat_map(jobs).map(JobId::from_i64).collect();
        let records = store.get(Scope::ENGINE, &ids).await.expect("the store works");
        assert_eq!(records.len(), ids.len());
        for record in records {
            let saved = record.status == Status::Succeeded;
            // Given up because the node is not ours any more: others will run it.
            let given_up = !current && record.status == Status::Running;
            assert!(saved || given_up, "job {} is {:?} although nothing is unsaved", record.id, record.status);
        }
        let counts = store.counts(Scope::ENGINE).await.expect("the store works");
        assert!(counts.get(Status::Succeeded) <= 6, "a job was finished twice");
        let largest = simulated::largest("finish");
        assert!(largest <= FINISHES_PER_WRITE, "{largest} jobs in one write");
    });
}

/// One job ends, and somebody waits until it is saved: the shortest way into the gap between looking and subscribing.
fn finish_one() {
    shuttle::future::block_on(async {
        let store = Arc::new(MemoryStore::with_clock(Arc::new(StoreClock)));
        let node = store.register(NewNode::default()).await.expect("the store works").node;
        let submit = Submit { jobs: vec![job(101)], lease: Some((node, LeaseId(1))) };
        store.submit(submit).await.expect("the store works");
        let finisher = Finisher::start(
            store,
            Watchers::new(),
            Arc::new(Tally::new(&[])),
            Arc::default(),
            &Supervisor::default(),
            |_| true,
            |_| {},
        );
        finisher.finish(ended(node, 1, 101)).await;
        finisher.flush().await;
    });
}

#[test]
fn a_flush_returns_when_the_last_save_is_done() {
    simulated::explore(finish_one);
}

#[test]
fn everything_is_saved_once_when_flush_returns() {
    simulated::explore(|| finish_together(0, true));
}

#[test]
fn a_write_that_fails_is_repeated_until_it_is_saved() {
    simulated::explore(|| finish_together(3, true));
}

#[test]
fn nobody_waits_for_what_was_given_up() {
    simulated::explore(|| finish_together(2, false));
}

#[test]
fn a_flush_that_looks_before_it_subscribes_is_found() {
    assert!(simulated::finds(Sabotage::LooksBeforeItSubscribes, finish_one));
}
