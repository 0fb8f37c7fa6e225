//! `windlass up`: a store, a service, demo jobs, the API and the dashboard in one process, with a picture of what happens.
//! Called by `commands::run`. Stops on Ctrl-C, SIGTERM or after `--for` seconds, and lets jobs end before it leaves.

mod demo;
mod producer;
mod reach;
mod screen;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use windlass::{JobId, JobService, OperatorRight, Status};

use windlass_server::{Auth, Config, LocalKey};

use crate::args::{Global, UpArgs};
use crate::beside::{self, Announced};
use crate::commands::{log_filter, log_to_stderr};
use crate::connect::{Place, actor, with_keys};
use crate::error::{CliError, Result};
use crate::output::Out;
use crate::serve::LISTEN;
use crate::up::screen::{Picture, Screen};

/// How often the picture is drawn anew: often enough to look alive, seldom enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(250);
/// How often a line is printed where there is no terminal.
const LINE: Duration = Duration::from_secs(1);
/// How long running jobs may go on after Ctrl-C. Long demo jobs save checkpoints, so nothing is lost by asking soon.
const SHUTDOWN: Duration = Duration::from_secs(3);
/// Jobs under the heading "lately".
const LATELY: usize = 8;
/// Log lines under the picture.
const LOG_LINES: usize = 3;

/// Runs until it is told to stop. `bare` is what other commands work on where their command line names no place.
pub(crate) async fn run(global: &Global, bare: Option<&Global>, args: &UpArgs, out: &Out) -> Result {
    let place = match &args.data {
        Some(directory) => Place::in_directory(directory),
        None => Place::of(global)?,
    };
    if global.url.is_some() {
        return Err(CliError::Usage(
            "`windlass up` works on a database, not on a server; name the database with --db or --data".to_owned(),
        ));
    }
    let log = start_log(global, out);
    let store = place.make().await?;
    place.warn_if_exposed(out);
    let service = start_service(store, global, args).await?;
    let started = Instant::now();
    // Whatever ends the watching, also a reader that goes away: jobs get their time to end.
    let watched = watch(&service, &place, bare, args, log, out).await;
    stop_service(&service, out).await;
    watched?;
    summary(&service, started.elapsed(), &place, out).await
}

/// Where the API and the dashboard are.
struct Served {
    url: String,
    link: String,
    _announced: Option<Announced>,
    _serving: Abort,
}

/// Serves this machine, in the background.
async fn serve(service: &JobService, place: &Place, args: &UpArgs) -> Result<Served> {
    let mut config = Config::listen(args.listen.unwrap_or(LISTEN));
    config.auth = Auth::Local;
    config.environment = "local".to_owned();
    let local = LocalKey::generate(actor());
    config.local_key = Some(local.clone());
    let server = match crate::serve::bind(service, config.clone()).await {
        // Somebody else has the usual port, perhaps another `up`; any other will do.
        Err(error) if error.code() == "unavailable" && args.listen.is_none() => {
            config.listen.set_port(0);
            crate::serve::bind(service, config).await?
        }
        bound => bound?,
    };
    let url = format!("http://{}", server.address());
    let _announced = beside::announce(place, &url, &local)?;
    let link = server.login_link().unwrap_or_else(|| url.clone());
    // Ends with the process: whoever waits for an answer has seen the jobs end.
    let _serving = Abort(tokio::spawn(server.run(std::future::pending())));
    Ok(Served { url, link, _announced, _serving })
}

/// Serves, runs the demo and shows what happens, until told to stop.
async fn watch(
    service: &JobService,
    place: &Place,
    bare: Option<&Global>,
    args: &UpArgs,
    log: LogLines,
    out: &Out,
) -> Result {
    let served = serve(service, place, args).await?;
    let produce = || {
        let demo = service.clone();
        Abort(service.supervisor().spawn_here("demo", move || producer::produce(demo.clone())))
    };
    let _producing = (!args.no_demo).then(produce);
    let stop = stop_signal(args.for_seconds.map(Duration::from_secs));
    if out.is_terminal() && !out.wants_json() {
        let hints = reach::hints(place, bare, &served.url);
        draw_until(stop, service, Screen::new(Picture::new(place, &served.link, hints, args, log), out)).await?;
    } else {
        let Served { url, link, .. } = &served;
        if out.wants_json() {
            out.json(&serde_json::json!({ "database": place.describe(), "address": url, "login": link }))?;
        } else {
            out.line(format_args!("windlass {} on {} at {url}", env!("CARGO_PKG_VERSION"), place.describe()))?;
            out.say(format_args!("open the dashboard: {link} (works once)"));
        }
        print_until(stop, service, out).await?;
    }
    Ok(())
}

async fn start_service(store: Arc<dyn windlass::store::Store>, global: &Global, args: &UpArgs) -> Result<JobService> {
    let builder = JobService::builder(store).concurrency(args.concurrency.into()).configure(|config| {
        config.shutdown_deadline = SHUTDOWN;
        config.grace = Duration::from_secs(1);
    });
    let builder = if args.no_demo { builder } else { demo::register(builder) };
    let builder = crate::handlers::register(builder, args.handlers.as_deref())?;
    let builder = windlass_server::webhooks::register(builder);
    Ok(with_keys(builder, global)?.start().await?)
}

/// Ends a task when dropped.
struct Abort(JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Resolves on Ctrl-C, SIGTERM, or after so long.
async fn stop_signal(after: Option<Duration>) {
    let timer = async {
        match after {
            Some(after) => tokio::time::sleep(after).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = timer => {}
        () = asked_to_stop() => {}
    }
}

/// Resolves on Ctrl-C or SIGTERM.
#[cfg(unix)]
pub(crate) async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

/// Resolves on Ctrl-C.
#[cfg(not(unix))]
pub(crate) async fn asked_to_stop() {
    drop(tokio::signal::ctrl_c().await);
}

/// Lets running jobs end. A second Ctrl-C leaves at once; their leases then run out and they are taken up again.
async fn stop_service(service: &JobService, out: &Out) {
    let running = service.running();
    if running > 0 {
        let jobs = if running == 1 { "1 running job".to_owned() } else { format!("{running} running jobs") };
        let limit = SHUTDOWN.as_secs();
        out.say(format_args!("stopping: waiting up to {limit} s for {jobs} (Ctrl-C again to exit at once)"));
    }
    tokio::select! {
        () = service.shutdown() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

async fn summary(service: &JobService, ran: Duration, place: &Place, out: &Out) -> Result {
    let waiting = service.operator(OperatorRight::assume()).counts().await?.unfinished();
    let totals = service.totals();
    let succeeded: u64 = totals.iter().map(|total| total.succeeded).sum();
    let dead: u64 = totals.iter().map(|total| total.dead_lettered).sum();
    let ran = windlass::text::show_duration(ran);
    out.say(format_args!(
        "stopped after {ran}: {succeeded} jobs succeeded, {dead} became dead letters, {waiting} continue at the next start"
    ));
    out.say(format_args!("the jobs are in {}", place.describe()));
    Ok(())
}

/// Prints the counts once a second.
async fn print_until(stop: impl Future<Output = ()>, service: &JobService, out: &Out) -> Result {
    let mut stop = std::pin::pin!(stop);
    let mut rate = Rate::default();
    let mut ticks = tokio::time::interval(LINE);
    loop {
        let last = tokio::select! {
            _ = ticks.tick() => false,
            () = &mut stop => true,
        };
        let counts = service.operator(OperatorRight::assume()).counts().await?;
        rate.saw(ended(service));
        let counted = Status::ALL.map(|status| format!("{status}={}", counts.get(status))).join(" ");
        if out.wants_json() {
            let counts: serde_json::Map<_, _> =
                Status::ALL.iter().map(|status| (status.to_string(), counts.get(*status).into())).collect();
            out.json(&serde_json::json!({ "counts": counts, "rate": rate.per_second() }))?;
        } else {
            out.line(format_args!("{counted} rate={:.1}/s", rate.per_second()))?;
        }
        if last {
            return Ok(());
        }
    }
}

/// Draws the picture until told to stop.
async fn draw_until(stop: impl Future<Output = ()>, service: &JobService, mut screen: Screen<'_>) -> Result {
    let mut stop = std::pin::pin!(stop);
    let mut events = service.operator(OperatorRight::assume()).events();
    let mut lately: VecDeque<JobId> = VecDeque::new();
    let mut rate = Rate::default();
    let mut ticks = tokio::time::interval(REDRAW);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = &mut stop => return screen.close(),
            Some(event) = events.next() => {
                if event.status != Status::Running {
                    lately.retain(|job| *job != event.job);
                    lately.push_front(event.job);
                    lately.truncate(LATELY);
                }
            }
            _ = ticks.tick() => {
                let counts = service.operator(OperatorRight::assume()).counts().await?;
                rate.saw(ended(service));
                let seen = screen::look(service, lately.make_contiguous(), counts, rate.per_second()).await?;
                screen.draw(&seen)?;
            }
        }
    }
}

/// How many jobs have ended in this process. Counts of the store would not do: they forget jobs whose time is over.
fn ended(service: &JobService) -> u64 {
    service.totals().iter().map(|total| total.succeeded + total.canceled + total.dead_lettered).sum()
}

/// How many jobs end per second, over the last few seconds.
#[derive(Debug, Default)]
struct Rate(VecDeque<(Instant, u64)>);

/// Over how long the rate is taken: short enough to follow, long enough not to flicker.
const RATE_WINDOW: Duration = Duration::from_secs(5);

impl Rate {
    fn saw(&mut self, ended: u64) {
        self.0.push_back((Instant::now(), ended));
        while self.0.front().is_some_and(|(at, _)| at.elapsed() > RATE_WINDOW) {
            self.0.pop_front();
        }
    }

    fn per_second(&self) -> f64 {
        match (self.0.front(), self.0.back()) {
            (Some((first, fewer)), Some((last, more))) if last > first => {
                more.saturating_sub(*fewer) as f64 / (*last - *first).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// The last log lines, for the picture.
type LogLines = Arc<Mutex<VecDeque<String>>>;

/// Logs to stderr, or into the picture if stderr is the terminal it is drawn on.
fn start_log(global: &Global, out: &Out) -> LogLines {
    let lines = LogLines::default();
    if !out.is_terminal() || out.wants_json() || !std::io::stderr().is_terminal() {
        log_to_stderr(global);
        return lines;
    }
    let kept = lines.clone();
    let logs = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_target(false)
        .with_writer(move || LogWriter(kept.clone()));
    // Fails only if something logs already, which is what is wanted.
    let _ = logs.finish().with(log_filter(global)).try_init();
    lines
}

struct LogWriter(LogLines);

impl std::io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut lines = self.0.lock();
        lines.push_back(crate::output::plain(String::from_utf8_lossy(line).trim_end()));
        while lines.len() > LOG_LINES {
            lines.pop_front();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
