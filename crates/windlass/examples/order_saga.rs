//! An order in three steps that are undone, newest first, if the order cannot be completed. The handler saves after each
//! step how far it is, so that a retry or another node continues there.
//!
//! Windlass has no flows yet: the handler remembers its steps in a checkpoint and undoes them itself. A process that dies
//! between an effect and its checkpoint repeats the effect, so each effect takes a key that stays the same in every
//! attempt. With flows, `Steps`, the checks before each step and `undo` go: a step names what undoes it.
//!
//! `cargo run -p windlass --example order_saga`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use windlass::{
    Error, HandlerOptions, HandlerRef, JobContext, JobError, JobService, RetryPolicy, Status, SubmitOptions,
};

const ORDER: HandlerRef<Order, Receipt> = HandlerRef::new("shop.order");

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
    cents: u32,
    deliverable: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    payment: String,
    parcel: String,
}

/// What has been done so far.
#[derive(Default, Serialize, Deserialize)]
struct Steps {
    reserved: Option<String>,
    charged: Option<String>,
}

/// The outside world, which does a thing once for each key.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Vec<String>>>);

impl World {
    async fn act(&self, what: &str, key: &str) -> String {
        let line = format!("{what} {key}");
        let mut done = self.0.lock().await;
        if !done.contains(&line) {
            done.push(line);
        }
        format!("{what}-{key}")
    }
}

async fn order(world: World, ctx: JobContext, order: Order) -> Result<Receipt, JobError> {
    let key = ctx.job_id().to_string();
    let mut steps: Steps = ctx.checkpoint()?.unwrap_or_default();
    if steps.reserved.is_none() {
        steps.reserved = Some(world.act("reserve", &key).await);
        ctx.save_checkpoint(&steps).await?;
    }
    if steps.charged.is_none() {
        if ctx.attempt() == 1 {
            return Err(JobError::retryable("the bank did not answer")); // the next attempt does not reserve again
        }
        steps.charged = Some(world.act("charge", &key).await);
        ctx.save_checkpoint(&steps).await?;
    }
    if !order.deliverable {
        undo(&world, &key, &steps).await;
        return Err(JobError::terminal("undeliverable", format!("nobody delivers `{}`", order.item)));
    }
    let parcel = world.act("ship", &key).await;
    Ok(Receipt { payment: steps.charged.unwrap_or_default(), parcel })
}

async fn undo(world: &World, key: &str, steps: &Steps) {
    if steps.charged.is_some() {
        world.act("refund", key).await;
    }
    if steps.reserved.is_some() {
        world.act("release", key).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::default();
    let options = HandlerOptions::new().retry(RetryPolicy::fixed(3, Duration::from_millis(20)));
    let jobs = JobService::builder(windlass::open("memory:").await?)
        .function_with(ORDER, options, world.clone(), order)
        .start()
        .await?;

    let lamp = Order { item: "lamp".into(), cents: 4_900, deliverable: true };
    let job = ORDER.submit_with(&jobs, lamp, SubmitOptions::new().idempotency_key("cart-1")).await?;
    println!("{:?}", job.wait(Duration::from_secs(10)).await?);
    let id = job.id();
    let expected = ["reserve", "charge", "ship"].map(|what| format!("{what} {id}"));
    assert_eq!(*world.0.lock().await, expected, "two attempts, and each effect once");
    world.0.lock().await.clear();

    let island = Order { item: "island".into(), cents: u32::MAX, deliverable: false };
    let job = ORDER.submit_with(&jobs, island, SubmitOptions::new().idempotency_key("cart-2")).await?;
    let ended = job.wait(Duration::from_secs(10)).await;
    assert!(matches!(ended, Err(Error::JobFailed { status: Status::DeadLettered, .. })));
    println!("{}", world.0.lock().await.join(", "));
    let id = job.id();
    let expected = ["reserve", "charge", "refund", "release"].map(|what| format!("{what} {id}"));
    assert_eq!(*world.0.lock().await, expected);

    jobs.shutdown().await;
    Ok(())
}
