//! The server under load: `http`. Called by `bench::run`. First many read the status of jobs while others watch some that
//! run, then jobs are submitted in batches; all of it over real connections to a server on threads of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use reqwest::Client;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::json;
use tokio::task::JoinSet;
use windlass::{
    CancellationToken, JobContext, JobError, JobHandler, JobId, JobService, NewApiKey, OperatorRight, Rights,
    SubmitOptions,
};
use windlass_server::{Config, Server};

use crate::backend::Frames;
use crate::bench::figures::{Figure, Figures, times};
use crate::bench::load::{Noop, Work, caller, start_submitter};
use crate::bench::place::Target;
use crate::bench::{Bench, Outcome};
use crate::error::{CliError, Result};

/// Status reads a second, and who watches meanwhile (issue 5).
const READS: u32 = 2_000;
const WATCHERS: usize = 200;
/// Connections that read; each reads at a steady pace, whether or not the read before has been answered in time.
const READERS: u32 = 50;
/// Jobs that run and are watched, and jobs that wait and are read.
const WATCHED: usize = 20;
const WAITING: usize = 1_000;
/// How often a watched job says how far it is.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// How long connections may take to be there before the clock starts.
const SETTLING: Duration = Duration::from_secs(1);
/// Jobs in one request.
const BATCH: u64 = 100;
/// What must be reached.
const READ_P99_MS: f64 = 50.0;
const SUBMITS: f64 = 10_000.0;
const GOAL: &str = "no request fails, 2,000 status reads/s beside 200 watchers have a p99 under 50 ms, and PostgreSQL takes \
                    10,000 jobs/s in batches of 100";

/// Reads beside watchers, then submits.
pub(crate) async fn http(bench: &Bench) -> Result<Outcome> {
    let place = bench.target.make().await?;
    let mut figures = Figures::default();
    let read = {
        let service = JobService::builder(place.open().await?).handler(Telling).concurrency(WATCHED).start().await?;
        let web = Web::start(&service).await?;
        let read = read_beside_watchers(bench, &service, &web).await;
        web.stop().await;
        service.shutdown().await;
        read?
    };
    place.settle().await?;
    let submitted = {
        let service = start_submitter(place.open().await?).await?;
        let web = Web::start(&service).await?;
        let submitted = submit_batches(bench, &web).await;
        web.stop().await;
        service.shutdown().await;
        submitted?
    };
    figures.set(Figure::ReadsPerSecond, read.done as f64 / read.took.as_secs_f64());
    figures.reads(&read.times);
    figures.set(Figure::Watchers, read.heard as f64);
    figures.set(Figure::Errors, (read.errors + submitted.errors) as f64);
    figures.rate(submitted.done, submitted.took);
    figures.submits(&submitted.times);
    let fast = figures.get(Figure::ReadP99).is_some_and(|p99| p99 < READ_P99_MS);
    let kept_up = figures.get(Figure::ReadsPerSecond).is_some_and(|rate| rate > f64::from(READS) * 0.95);
    let stored = figures.get(Figure::JobsPerSecond).is_some_and(|rate| rate >= SUBMITS);
    let failed = read.errors + submitted.errors;
    let passed = failed == 0
        && read.heard == WATCHERS as u64
        && fast
        && kept_up
        && (stored || !matches!(bench.target, Target::Postgres(_)));
    Ok(Outcome::judged(figures, GOAL, passed))
}

/// A handler that says how far it is until it is canceled.
struct Telling;

impl JobHandler for Telling {
    const ID: &'static str = "bench.telling";
    type Input = u32;
    type Output = ();

    async fn execute(&self, ctx: &JobContext, _: u32) -> std::result::Result<(), JobError> {
        for n in 0u32.. {
            ctx.report_progress((n % 100) as f32, "goes on");
            tokio::select! {
                () = tokio::time::sleep(TELL_EVERY) => {}
                () = ctx.cancellation().cancelled() => return Err(JobError::discard("the measurement is over")),
            }
        }
        Ok(())
    }
}

/// A server on threads of its own, as it is in a process of its own.
struct Web {
    base: String,
    client: Client,
    stop: CancellationToken,
    thread: std::thread::JoinHandle<()>,
}

impl Web {
    async fn start(service: &JobService) -> Result<Web> {
        let new = NewApiKey::new("bench", Rights::ALL).all_tenants();
        let (_, secret) = service.operator(OperatorRight::assume()).create_key(&caller(), new).await?;
        let mut config = Config::listen(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.limits.streams = 2 * WATCHERS;
        config.limits.streams_per_principal = 2 * WATCHERS;
        let stop = CancellationToken::new();
        let (told, bound) = tokio::sync::oneshot::channel();
        let (service, stopped) = (service.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.expect("the system can start threads");
            runtime.block_on(async {
                match Server::bind(service, config).await {
                    Ok(server) => {
                        let _ = told.send(Ok(server.address()));
                        server.run(stopped.cancelled_owned()).await;
                    }
                    Err(error) => drop(told.send(Err(error.to_string()))),
                }
            });
        });
        let address = bound.await.map_err(|_| CliError::Failed("the server ended at once".to_owned()))?;
        let address = address.map_err(CliError::Failed)?;
        let bearer = HeaderValue::try_from(format!("Bearer {secret}")).expect("keys are plain text");
        let headers = HeaderMap::from_iter([(AUTHORIZATION, bearer)]);
        let client = Client::builder().default_headers(headers).build();
        let client = client.map_err(|error| CliError::Failed(error.to_string()))?;
        Ok(Web { base: format!("http://{address}/api/v1"), client, stop, thread })
    }

    async fn stop(self) {
        self.stop.cancel();
        drop(self.client);
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// What was measured of one kind of request.
struct Measured {
    done: u64,
    errors: u64,
    heard: u64,
    took: Duration,
    times: Histogram<u64>,
}

async fn read_beside_watchers(bench: &Bench, service: &JobService, web: &Web) -> Result<Measured> {
    let ctx = caller();
    let later = SubmitOptions::new().delay(Duration::from_secs(3_600));
    let waiting = service.submit_many::<Telling>(&ctx, vec![0; WAITING], later).await?;
    let waiting: Arc<Vec<JobId>> = Arc::new(waiting.jobs.iter().map(|job| job.id).collect());
    let watched = service.submit_many::<Telling>(&ctx, (0..WATCHED as u32).collect(), SubmitOptions::new()).await?;
    let ending = CancellationToken::new();
    let mut watchers = JoinSet::new();
    for n in 0..WATCHERS {
        let url = format!("{}/jobs/{}/events", web.base, watched.jobs[n % WATCHED].id);
        watchers.spawn(watch(web.client.clone(), url, ending.clone()));
    }
    tokio::time::sleep(SETTLING).await;
    let done = Arc::new(AtomicU64::new(0));
    let reads = u64::from(READS) * bench.seconds.as_secs();
    let shown = bench.progress.show("reading", reads, done.clone());
    let begun = Instant::now();
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let (client, base, jobs) = (web.client.clone(), web.base.clone(), waiting.clone());
        // One after the other, so that they do not all ask at once.
        let first = begun + Duration::from_secs(1) * n / READS;
        readers.spawn(read(client, base, jobs, first, bench.seconds, done.clone()));
    }
    let (mut times, mut errors) = (times(), 0);
    while let Some(read) = readers.join_next().await {
        let (took, failed) = read.map_err(|error| CliError::Failed(format!("a reader panicked: {error}")))?;
        times.add(&took).expect("they have the same digits");
        errors += failed;
    }
    let took = begun.elapsed();
    drop(shown);
    ending.cancel();
    let mut heard = 0;
    while let Some(watched) = watchers.join_next().await {
        match watched.map_err(|error| CliError::Failed(format!("a watcher panicked: {error}")))? {
            Ok(true) => heard += 1,
            Ok(false) => {}
            Err(_) => errors += 1,
        }
    }
    for job in watched.jobs {
        service.cancel(&ctx, job.id, "the measurement is over").await?;
    }
    Ok(Measured { done: times.len(), errors, heard, took, times })
}

/// Watches a job until told to stop; answers whether anything was heard more than once, so that it was live.
async fn watch(client: Client, url: String, ending: CancellationToken) -> Result<bool> {
    let failed = |error: reqwest::Error| CliError::Failed(format!("a watcher failed: {error}"));
    let response = client.get(url).send().await.and_then(|response| response.error_for_status()).map_err(failed)?;
    let (mut frames, mut heard) = (Frames::of(response), 0);
    loop {
        tokio::select! {
            frame = frames.next() => match frame? {
                Some(_) => heard += 1,
                None => return Err(CliError::Failed("a stream ended although its job runs".to_owned())),
            },
            () = ending.cancelled() => return Ok(heard > 1),
        }
    }
}

/// Reads the status of one job after another, at a steady pace. Each read is timed from when it was due, so that a server
/// that holds everyone up is not measured only once.
async fn read(
    client: Client,
    base: String,
    jobs: Arc<Vec<JobId>>,
    first: Instant,
    span: Duration,
    done: Arc<AtomicU64>,
) -> (Histogram<u64>, u64) {
    let (mut took, mut errors) = (times(), 0);
    let every = Duration::from_secs(1) * READERS / READS;
    let mut due = first;
    while due < first + span {
        tokio::time::sleep_until(due.into()).await;
        let job = jobs[rand::random_range(0..jobs.len())];
        let answer = client.get(format!("{base}/jobs/{job}")).send().await;
        let read = match answer.and_then(|response| response.error_for_status()) {
            Ok(response) => response.bytes().await.is_ok(),
            Err(_) => false,
        };
        took.saturating_record(due.elapsed().as_nanos() as u64);
        errors += u64::from(!read);
        done.fetch_add(1, Ordering::Relaxed);
        due += every;
    }
    (took, errors)
}

/// Submits all jobs in batches, each caller one request after another.
async fn submit_batches(bench: &Bench, web: &Web) -> Result<Measured> {
    let taken = Arc::new(AtomicU64::new(0));
    let _shown = bench.progress.show("submitting", bench.jobs, taken.clone());
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..bench.submitters {
        let (client, url, taken) = (web.client.clone(), format!("{}/jobs/batch", web.base), taken.clone());
        let (jobs, payload_bytes) = (bench.jobs, bench.payload_bytes);
        callers.spawn(async move {
            let (mut took, mut stored, mut errors) = (times(), 0, 0);
            loop {
                let first = taken.fetch_add(BATCH, Ordering::AcqRel);
                let batch = jobs.saturating_sub(first).min(BATCH);
                if batch == 0 {
                    return (took, stored, errors);
                }
                let inputs: Vec<Work> = (0..batch).map(|_| Work::now(payload_bytes)).collect();
                let body = json!({ "handler": Noop::ID, "inputs": inputs });
                let begun = Instant::now();
                let answer = client.post(&url).json(&body).send().await;
                let accepted = match answer.and_then(|response| response.error_for_status()) {
                    Ok(response) => response.bytes().await.is_ok(),
                    Err(_) => false,
                };
                took.saturating_record(begun.elapsed().as_nanos() as u64);
                match accepted {
                    true => stored += batch,
                    false => errors += 1,
                }
            }
        });
    }
    let mut all = Measured { done: 0, errors: 0, heard: 0, took: Duration::ZERO, times: times() };
    while let Some(called) = callers.join_next().await {
        let (took, stored, errors) = called.map_err(|error| CliError::Failed(format!("a caller panicked: {error}")))?;
        all.times.add(&took).expect("they have the same digits");
        all.done += stored;
        all.errors += errors;
    }
    all.took = begun.elapsed();
    Ok(all)
}
