//! Shutdown of a whole service, with callers who submit and jobs that run meanwhile.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::memory::MemoryStore;
use crate::model::error::{Error, JobError};
use crate::model::id::JobId;
use crate::model::job::{Status, SubmitOptions};
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::simulated::{self, Sabotage, StoreClock};
use crate::store::rooms::*;
use crate::store::{self, Store};
use crate::{JobContext, JobService};

/// How often the handler of each job has returned.
type Returned = Arc<Mutex<BTreeMap<JobId, u32>>>;

async fn handler(returned: Returned, ctx: JobContext, _: ()) -> Result<(), JobError> {
    simulated::switch().await;
    *returned.lock().expect("never held across a switch").entry(ctx.job_id()).or_default() += 1;
    Ok(())
}

/// Longer than time goes on in any schedule.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Three callers submit two jobs each while the service is told to end. Whoever is not told that it has ended has a
/// stored job; a job whose handler has returned is saved, and nothing of the service is left in the store. With a short
/// lease the node may be declared dead at any time, and its results are not accepted then.
fn shut_down_while_busy(lease: Duration) {
    shuttle::future::block_on(async move {
        let store = Arc::new(MemoryStore::with_clock(Arc::new(StoreClock)));
        let returned = Returned::default();
        let jobs = JobService::builder(store.clone())
            .function("h", returned.clone(), handler)
            .concurrency(2)
            .lease(lease)
            .configure(|config| {
                (config.grace, config.shutdown_deadline, config.timeout) = (LONG, LONG, LONG);
            })
            .start()
            .await
            .expect("the store works");
        let mut tasks: Vec<Pin<Box<dyn Future<Output = Vec<JobId>> + Send>>> = Vec::new();
        for _ in 0..3 {
            let jobs = jobs.clone();
            tasks.push(Box::pin(async move {
                let ctx = SecurityContext::new(TenantId::ROOT);
                let mut stored = Vec::new();
                for _ in 0..2 {
                    match jobs.submit_named(&ctx, "h", &(), SubmitOptions::new()).await {
                        Ok(submitted) => stored.push(submitted.id),
                        // Refused, or cut off while it was being stored.
                        Err(Error::ShutDown | Error::Store(store::Error::Unknown(_))) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                stored
            }));
        }
        let ending = jobs.clone();
        tasks.push(Box::pin(async move {
            ending.shutdown().await;
            Vec::new()
        }));
        let stored = simulated::all(tasks).await.concat();
        let returned = returned.lock().expect("never held across a switch").clone();
        let records = store.get(Scope::ENGINE, &stored).await.expect("the store works");
        assert_eq!(records.len(), stored.len(), "acknowledged but lost");
        for record in records {
            let times = returned.get(&record.id).copied().unwrap_or(0);
            let kept = if times > 0 { Status::Succeeded } else { Status::Pending };
            if lease == LONG {
                assert!(times <= 1, "job {} ran {times} times", record.id);
                assert_eq!(record.status, kept, "job {} returned {times} times", record.id);
                assert_eq!((record.failed, record.recoveries), (0, 0), "a shutdown charges nothing");
            }
            assert_ne!(record.status, Status::Running, "job {} is held by a node that has left", record.id);
        }
        assert!(store.nodes().await.expect("the store works").is_empty(), "the node has left");
    });
}

#[test]
fn what_was_accepted_is_kept_and_what_has_run_is_saved() {
    simulated::explore(|| shut_down_while_busy(LONG));
}

#[test]
fn a_node_that_becomes_another_one_while_it_ends_leaves_nothing_behind() {
    simulated::explore(|| shut_down_while_busy(Duration::from_secs(1)));
}

#[test]
fn a_node_that_leaves_without_saving_is_found() {
    assert!(simulated::finds(Sabotage::LeavesWithoutSaving, || shut_down_while_busy(LONG)));
}

#[test]
fn a_schedule_can_be_run_again() {
    simulated::repeats(|| shut_down_while_busy(LONG));
}
