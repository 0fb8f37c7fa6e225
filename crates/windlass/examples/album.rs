//! One job that hands out a thousand and adds up their results. The children have keys made from the album, so a second
//! attempt of the parent finds the children of the first.
//!
//! Windlass has no flows yet: the parent holds a slot of its node while it waits, and has a limit of its own so that
//! parents cannot take every slot that their children need. It also gets the service by hand, after the start. With flows
//! a waiting parent holds nothing, and the fan-out is one call.
//!
//! `cargo run -p windlass --example album`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{HandlerOptions, HandlerRef, JobContext, JobError, JobService, SubmitOptions};

const ALBUM: HandlerRef<Album, u64> = HandlerRef::new("album.publish");
const RESIZE: HandlerRef<u64, u64> = HandlerRef::new("picture.resize");

/// Albums published at once on a node: fewer than its slots, the rest is for pictures.
const ALBUMS_AT_ONCE: usize = 2;
const PATIENCE: Duration = Duration::from_secs(50);

#[derive(Serialize, Deserialize)]
struct Album {
    name: String,
    pictures: u64,
}

async fn publish(jobs: Arc<OnceLock<JobService>>, ctx: JobContext, album: Album) -> Result<u64, JobError> {
    let jobs = jobs.get().ok_or_else(|| JobError::retryable("the service is still starting"))?;
    let caller = jobs.of(ctx.security()); // the children belong to the tenant of the album
    let options = SubmitOptions::new().idempotency_key(format!("album:{}", album.name));
    let (_, pictures) = RESIZE.submit_many(&caller, 1..=album.pictures, options).await?;
    let mut bytes = 0;
    for (done, picture) in pictures.iter().enumerate() {
        bytes += picture.wait(PATIENCE).await?;
        ctx.report_progress(100.0 * (done + 1) as f32 / pictures.len() as f32, "resizing");
    }
    Ok(bytes)
}

async fn resize(_state: (), _ctx: JobContext, picture: u64) -> Result<u64, JobError> {
    Ok(picture * 10)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = Arc::new(OnceLock::new());
    let jobs = JobService::builder(windlass::open("memory:").await?)
        .function_with(ALBUM, HandlerOptions::new().concurrency(ALBUMS_AT_ONCE), service.clone(), publish)
        .function(RESIZE, (), resize)
        .start()
        .await?;
    service.get_or_init(|| jobs.clone());

    let album = Album { name: "holidays".into(), pictures: 1_000 };
    let bytes = ALBUM.submit(&jobs, album).await?.wait(PATIENCE).await?;
    println!("1000 pictures, {bytes} bytes");
    assert_eq!(bytes, 10 * (1..=1_000).sum::<u64>());
    jobs.shutdown().await;
    Ok(())
}
