//! Look-ups: callers who ask at the same time share queries.

use std::pin::Pin;
use std::sync::Arc;

use crate::memory::MemoryStore;
use crate::model::id::JobId;
use crate::model::tenant::{Scope, TenantId};
use crate::node::supervise::Supervisor;
use crate::operate::lookup::Lookups;
use crate::simulated::{self, Sabotage, StoreClock};
use crate::store::rooms::*;
use crate::store::{Store, Submit};
use crate::submitting::job;

/// Callers ask for their own job, for the same one, for one that is not there, and for one of another tenant.
fn ask_together() {
    shuttle::future::block_on(async {
        let store = Arc::new(MemoryStore::with_clock(Arc::new(StoreClock)));
        let jobs = (1..=3).map(job).collect();
        store.submit(Submit { jobs, lease: None }).await.expect("the store works");
        let lookups = Lookups::start(store, &Supervisor::default());
        let foreign = Scope::Tenant(TenantId(uuid::Uuid::from_u128(7)));
        let asked = [
            (1, Scope::ENGINE),
            (2, Scope::ENGINE),
            (2, Scope::ENGINE),
            (9, Scope::ENGINE),
            (3, foreign),
            (3, Scope::ENGINE),
        ];
        let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        for (id, scope) in asked {
            let lookups = lookups.clone();
            tasks.push(Box::pin(async move {
                let found = lookups.get(scope, JobId::from_i64(id)).await.expect("the store works");
                let expected = (id <= 3 && scope == Scope::ENGINE).then_some(id);
                assert_eq!(found.map(|record| record.id.as_i64()), expected, "asked for {id}");
            }));
        }
        simulated::all(tasks).await;
    });
}

#[test]
fn every_caller_gets_the_job_it_asked_for_and_no_other_tenants() {
    simulated::explore(ask_together);
}

#[test]
fn an_answer_for_another_caller_is_found() {
    assert!(simulated::finds(Sabotage::AnswersWithTheFirst, ask_together));
}
