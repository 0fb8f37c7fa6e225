//! Prints how many jobs a second the store accepts, and runs from submit to success, on this machine's disk. Run by
//! hand: `cargo run --release -p windlass-sqlite --example throughput [directory]`. Never part of a test.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::store::rooms::*;
use windlass_core::store::{Claim, Fence, Finish, LeaseId, NewNode, NodeId, Store, Submit, Transition};
use windlass_core::{IdGenerator, JobSpec, NewJob, Payload, Priority, Start, TenantId};
use windlass_sqlite::SqliteStore;

/// The number of concurrent callers, and the number of jobs in each submit.
const SHAPES: [(usize, usize, usize); 4] = [(1, 1, 2_000), (64, 1, 40_000), (2, 64, 100_000), (1, 1_000, 200_000)];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = match std::env::args().nth(1) {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    for (callers, batch, jobs) in SHAPES {
        let store = Arc::new(SqliteStore::open(dir.path().join(format!("{callers}-{batch}.db")))?);
        let node = store.register(NewNode::default()).await?;
        let ids = Arc::new(IdGenerator::new(node.slot, node.now));
        let started = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let (store, ids) = (store.clone(), ids.clone());
                tokio::spawn(async move {
                    for _ in 0..jobs / callers / batch {
                        let jobs = (0..batch).map(|_| job(&ids)).collect();
                        store.submit(Submit { jobs, lease: None }).await.expect("submits");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        let submitted = started.elapsed();
        let drained = drain(&*store, node.node, batch.max(64)).await?;
        let whole = started.elapsed();
        let rate = |time: Duration| drained as f64 / time.as_secs_f64();
        println!(
            "{callers:>3} callers x {batch:>4} jobs: submit {:>8.0}/s, claim and finish {:>8.0}/s, end to end {:>8.0}/s",
            rate(submitted),
            rate(whole - submitted),
            rate(whole)
        );
    }
    Ok(())
}

async fn drain(store: &dyn Store, node: NodeId, max: usize) -> Result<usize, Box<dyn std::error::Error>> {
    let mut done = 0;
    for lease in 1.. {
        let queues = vec![("default".to_owned(), max)];
        let claim = Claim { node, lease: LeaseId(lease), queues, max, quota: [0, 0, max, 0], tenant: None };
        let jobs = store.claim(claim).await?.jobs;
        if jobs.is_empty() {
            break;
        }
        done += jobs.len();
        let finish = |job: &windlass_core::ClaimedJob| Finish {
            fence: Fence { job: job.id, lease: job.lease },
            attempt: 1,
            ran: Duration::ZERO,
            transition: Transition::Succeed { output: None, keep: Duration::from_secs(86_400) },
            follow_up: None,
            cost: None,
            audit: false,
            batch: None,
            resumed: true,
        };
        store.finish(node, jobs.iter().map(finish).collect()).await?;
    }
    Ok(done)
}

fn job(ids: &IdGenerator) -> NewJob {
    NewJob {
        id: ids.next(),
        tenant: TenantId::ROOT,
        handler: "noop".into(),
        queue: "default".into(),
        priority: Priority::NORMAL,
        start: Start::Now,
        payload: Payload::from_store("{\"n\":1}"),
        idempotency_key: None,
        unique: None,
        ordering_key: None,
        batch: None,
        tags: Vec::new(),
        correlation_id: None,
        spec: JobSpec::default(),
    }
}
