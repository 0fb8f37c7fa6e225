//! F35: a dashboard in many tabs on many jobs. Called by `runner` through the matrix. The server runs in this process; the
//! nodes, whose claims must not suffer, are others.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use tokio::task::JoinSet;
use windlass::{JobService, NewApiKey, OperatorRight, Rights, SecurityContext, TenantId};
use windlass_server::{Config, Server};

use super::load::{claim_time, fill, take_away};
use crate::child::Load;
use crate::event::Event;
use crate::rig::Rig;

/// Tabs that are open at once.
const TABS: usize = 20;

/// How often an open tab asks for its page again.
const REFRESH: Duration = Duration::from_secs(3);

/// How long a page may take at most: the deadline of a request.
const NEVER_LONGER: Duration = Duration::from_secs(15);

/// What is open in the tabs.
const PAGES: [&str; 10] = [
    "/",
    "/?span=7d",
    "/jobs",
    "/jobs?q=status%3Adead_lettered",
    "/jobs?q=handler%3Anobody+status%3Apending",
    "/failures",
    "/dead",
    "/handlers",
    "/tenants",
    "/audit",
];

/// F35: twenty tabs with live events, on a database with ten million jobs.
pub(super) async fn twenty_tabs(rig: &mut Rig) -> Result<()> {
    let many = rig.profile.times(50_000, 5_000_000);
    let sql = rig.sql().await?;
    fill(&sql, many).await?;
    sql.batch_execute("analyze").await?;
    let seed = rig.seed();
    rig.fleet(2, Load { seed, tasks: 8, ..Load::default() }).await?;
    let window = Duration::from_secs(rig.profile.times(8, 60) as u64);
    rig.go_on(window).await;
    let before = claims(&rig.events()?);

    rig.fault(format!("{TABS} tabs look at {} jobs", 2 * many));
    let looked = Looked::start(rig).await?;
    let from = rig.events()?.len();
    rig.go_on(window).await;
    let during = claims(&rig.events()?[from..]);
    let mut times = looked.end().await?;
    rig.healed("the tabs");

    let (alone, with_tabs) = (p99(before).context("claims before")?, p99(during).context("claims with tabs")?);
    // Two cores are shared by tabs, server, nodes and the database: below some milliseconds it is noise.
    let at_most = (alone.mul_f64(1.2)).max(Duration::from_millis(rig.profile.times(60, 20) as u64));
    rig.demand_within("99 of 100 claims are answered although people look", with_tabs, at_most);
    times.sort_unstable();
    ensure!(!times.is_empty(), "no page was shown");
    let (typical, slowest) = (times[times.len() * 95 / 100], times[times.len() - 1]);
    rig.demand_within(format!("95 of 100 of {} pages are shown", times.len()), typical, Duration::from_secs(2));
    rig.demand_within("every page is shown", slowest, NEVER_LONGER);
    rig.end_loads();
    take_away(&sql).await?;
    rig.quiet(Duration::from_secs(60)).await
}

fn claims(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(claim_time).collect()
}

fn p99(mut micros: Vec<u64>) -> Option<Duration> {
    micros.sort_unstable();
    micros.get(micros.len() * 99 / 100).copied().map(Duration::from_micros)
}

/// The server and the tabs.
struct Looked {
    service: JobService,
    tabs: JoinSet<Result<Vec<Duration>>>,
    end: tokio::sync::watch::Sender<bool>,
    server: tokio::task::JoinHandle<()>,
}

impl Looked {
    async fn start(rig: &Rig) -> Result<Looked> {
        let store = windlass::open(&rig.url).await?;
        let service = JobService::builder(store).configure(|config| {
            config.workers = false;
            config.maintenance = false;
        });
        let service = service.start().await?;
        let ctx = SecurityContext::new(TenantId::ROOT).with_user("faults");
        let key = NewApiKey::new("tabs", Rights::ALL).all_tenants();
        let (_, secret) = service.operator(OperatorRight::assume()).create_key(&ctx, key).await?;
        let mut config = Config::listen(([127, 0, 0, 1], 0).into());
        config.limits.streams_per_principal = TABS;
        let server = Server::bind(service.clone(), config).await?;
        let url = format!("http://{}", server.address());
        let (end, ended) = tokio::sync::watch::channel(false);
        let mut tabs = JoinSet::new();
        for n in 0..TABS {
            let opened = REFRESH.mul_f64(n as f64 / TABS as f64);
            tabs.spawn(tab(url.clone(), secret.clone(), PAGES[n % PAGES.len()], opened, ended.clone()));
        }
        let mut ended = ended;
        let server = tokio::spawn(server.run(async move {
            let _ = ended.wait_for(|ended| *ended).await;
        }));
        Ok(Looked { service, tabs, end, server })
    }

    /// How long each page took.
    async fn end(mut self) -> Result<Vec<Duration>> {
        self.end.send_replace(true);
        let mut times = Vec::new();
        while let Some(tab) = self.tabs.join_next().await {
            times.extend(tab??);
        }
        self.server.await?;
        self.service.shutdown().await;
        Ok(times)
    }
}

/// A tab, opened a little after the one before: live events, and its page again and again.
async fn tab(
    url: String,
    key: String,
    page: &'static str,
    opened: Duration,
    mut ended: tokio::sync::watch::Receiver<bool>,
) -> Result<Vec<Duration>> {
    tokio::time::sleep(opened).await;
    let client = Client::builder().no_proxy().build()?;
    let stream = client.get(format!("{url}/api/v1/events")).bearer_auth(&key).send().await?;
    ensure!(stream.status().is_success(), "the events of a tab: {}", stream.status());
    let mut times = Vec::new();
    while !*ended.borrow() {
        let asked = Instant::now();
        let answer = client.get(format!("{url}{page}")).bearer_auth(&key).header("accept", "text/html").send().await?;
        let status = answer.status();
        answer.bytes().await?;
        ensure!(status.is_success(), "{page} answered {status}");
        times.push(asked.elapsed());
        let _ = tokio::time::timeout(REFRESH, ended.wait_for(|ended| *ended)).await;
    }
    drop(stream);
    Ok(times)
}
