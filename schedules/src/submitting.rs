//! The submit coalescer: callers who submit at the same time share writes.

use std::sync::Arc;

use crate::config::Limits;
use crate::life::submit::{Wanted, prepare};
use crate::life::submitter::{BornLeased, Elsewhere, JOBS_PER_WRITE, Reservation, Submitter};
use crate::memory::MemoryStore;
use crate::model::clock::Timestamp;
use crate::model::id::JobId;
use crate::model::job::{NewJob, SubmitOptions};
use crate::model::payload::{Payload, dedupe_key};
use crate::model::tenant::{Scope, SecurityContext, TenantId};
use crate::node::supervise::Supervisor;
use crate::operate::activity::Tally;
use crate::simulated::{self, Sabotage, StoreClock};
use crate::store::Store;
use crate::store::rooms::*;

/// A process that runs no jobs itself.
struct NoRoom;

impl BornLeased for NoRoom {
    fn reserve(&self, _: &[NewJob]) -> Option<Reservation> {
        None
    }
    fn start(&self, _: Reservation, _: Vec<NewJob>) {}
    fn failed(&self, _: Reservation, _: &crate::store::Error) {}
    fn stored(&self, _: Elsewhere) {}
}

pub(crate) fn job(id: i64) -> NewJob {
    let ctx = SecurityContext::new(TenantId::ROOT);
    let options = SubmitOptions::new();
    let wanted = Wanted { handler: "h", queue: "default", payload: Payload::null(), options };
    let now = Timestamp::from_millis(1_800_000_000_000);
    let content_key = |handler: &str, tenant, payload: &Payload| dedupe_key(handler, Some(tenant), payload);
    prepare(&ctx, JobId::from_i64(id), wanted, &Limits::default(), now, content_key).expect("a job that may be stored")
}

/// The most jobs one caller submits at once.
const LARGEST_ENTRY: i64 = 2;

/// Callers submit one or two jobs each, twice in a row; `failing` writes fail. Each gets an answer for its own
/// jobs, and what was answered is stored.
fn submit_together(callers: i64, failing: u32) {
    shuttle::future::block_on(async move {
        simulated::fail("submit", failing);
        let store = Arc::new(MemoryStore::with_clock(Arc::new(StoreClock)));
        let submitter =
            Submitter::start(store.clone(), Arc::new(NoRoom), Arc::new(Tally::new(&[])), &Supervisor::default());
        let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = (Vec<i64>, Vec<i64>)> + Send>>> = Vec::new();
        for caller in 0..callers {
            let submitter = submitter.clone();
            tasks.push(Box::pin(async move {
                let (mut stored, mut refused) = (Vec::new(), Vec::new());
                for round in 0..2 {
                    let first = 1_000 * (caller + 1) + 100 * round;
                    let ids: Vec<i64> = (first..=first + caller % LARGEST_ENTRY).collect();
                    match submitter.submit(ids.iter().map(|id| job(*id)).collect()).await {
                        Ok(answers) => {
                            let answered: Vec<i64> = answers.iter().map(|answer| answer.id.as_i64()).collect();
                            assert_eq!(answered, ids, "caller {caller} was answered for the jobs of others");
                            stored.extend(ids);
                        }
                        Err(crate::Error::Store(crate::store::Error::Unavailable(_))) => refused.extend(ids),
                        Err(error) => panic!("caller {caller}: {error}"),
                    }
                }
                (stored, refused)
            }));
        }
        // The callers hold the line open until they have their answers.
        drop(submitter);
        let answers = simulated::all(tasks).await;
        let ids = |ids: Vec<i64>| ids.into_iter().map(JobId::from_i64).collect::<Vec<_>>();
        let (stored, refused): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let (stored, refused) = (ids(stored.concat()), ids(refused.concat()));
        assert_eq!(
            store.get(Scope::ENGINE, &stored).await.expect("the store works").len(),
            stored.len(),
            "acknowledged but lost"
        );
        assert!(store.get(Scope::ENGINE, &refused).await.expect("the store works").is_empty(), "refused but stored");
        let largest = simulated::largest("submit");
        assert!(largest < JOBS_PER_WRITE + LARGEST_ENTRY as usize, "{largest} jobs in one write");
    });
}

#[test]
fn every_caller_is_answered_once_and_for_its_own_jobs() {
    simulated::explore(|| submit_together(8, 0));
}

#[test]
fn a_write_that_fails_is_told_to_those_in_it_and_to_nobody_else() {
    simulated::explore(|| submit_together(8, 2));
}

#[test]
fn an_entry_lost_between_the_line_and_the_write_is_found() {
    assert!(simulated::finds(Sabotage::TakesBeforeItKeeps, || submit_together(8, 0)));
}
