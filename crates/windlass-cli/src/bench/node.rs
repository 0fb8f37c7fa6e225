//! Other processes of a measurement: this binary started again, told what to do line by line, answering in JSON lines.
//! `Node` is one as the measuring process sees it; `run` is what it does. Started by scenarios with `--nodes` and by
//! those that measure a process from outside.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use windlass::JobService;

use crate::bench::figures::times;
use crate::bench::load::{Meter, Noop, Sleep, Submits};
use crate::bench::place::Throwaway;
use crate::error::{CliError, Result};
use crate::output::Out;

/// What a node is to be. Handed over in the environment, where the list of processes does not show a password.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) url: String,
    pub(crate) submitters: usize,
    pub(crate) batch: u64,
    pub(crate) payload_bytes: usize,
    pub(crate) workers: usize,
    /// Whether it runs jobs.
    pub(crate) work: bool,
}

const ORDERS: &str = "WINDLASS_BENCH_ORDERS";
/// How long an answer may take: longer than any scenario's whole run of submits.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// Another process.
pub(crate) struct Node {
    child: Child,
    say: ChildStdin,
    hear: Lines<BufReader<ChildStdout>>,
}

impl Node {
    /// Starts one; it has opened its store when this returns.
    pub(crate) async fn start(place: &Throwaway, orders: &Orders) -> Result<Node> {
        let orders = Orders { url: place.url(), ..orders.clone() };
        let orders = serde_json::to_string(&orders)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench-node", "--quiet"]).env(ORDERS, orders).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn()?;
        let say = child.stdin.take().expect("it is piped");
        let hear = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut node = Node { child, say, hear };
        node.answer().await?;
        Ok(node)
    }

    /// Starts several.
    pub(crate) async fn start_many(place: &Throwaway, count: usize, orders: &Orders) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(Node::start(place, orders).await?);
        }
        Ok(nodes)
    }

    /// Tells it something and waits for the answer.
    pub(crate) async fn ask(&mut self, words: &str) -> Result<Value> {
        self.say.write_all(format!("{words}\n").as_bytes()).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Value> {
        let line = tokio::time::timeout(PATIENCE, self.hear.next_line()).await;
        let line = line.map_err(|_| CliError::Failed(format!("a node has not responded for {PATIENCE:?}")))??;
        let line = line.ok_or_else(|| CliError::Failed("a node ended early; its messages above say why".to_owned()))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Shares the jobs between the nodes and has them submit; how long the calls took.
    pub(crate) async fn submit_all(nodes: &mut [Node], jobs: u64) -> Result<Histogram<u64>> {
        let count = nodes.len() as u64;
        let shares = (0..count).map(|n| jobs / count + u64::from(n < jobs % count));
        let asked = nodes.iter_mut().zip(shares).map(|(node, share)| {
            let words = format!("submit {share}");
            async move { node.ask(&words).await }
        });
        let mut all = times();
        for answer in futures_util::future::try_join_all(asked).await? {
            add(&mut all, &answer["times"]);
        }
        Ok(all)
    }

    /// How long jobs waited before they started on any of the nodes.
    pub(crate) async fn waits(nodes: &mut [Node]) -> Result<Histogram<u64>> {
        let mut all = times();
        for answer in each(nodes, "waits").await? {
            add(&mut all, &answer["times"]);
        }
        Ok(all)
    }

    /// Ends it in order.
    pub(crate) async fn stop(mut self) -> Result {
        self.ask("stop").await?;
        drop(self.say);
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.map_err(|_| CliError::Failed("a node does not end".to_owned()))??;
        Ok(())
    }

    /// Ends all in order.
    pub(crate) async fn stop_all(nodes: Vec<Node>) -> Result {
        futures_util::future::try_join_all(nodes.into_iter().map(Node::stop)).await?;
        Ok(())
    }
}

/// Tells all nodes the same and waits for all answers.
pub(crate) async fn each(nodes: &mut [Node], words: &str) -> Result<Vec<Value>> {
    futures_util::future::try_join_all(nodes.iter_mut().map(|node| node.ask(words))).await
}

/// Waits until so many jobs have started on the nodes together.
pub(crate) async fn until_started(nodes: &mut [Node], jobs: u64) -> Result {
    let (mut last, mut idle) = (0, 0);
    loop {
        let started = each(nodes, "started").await?.iter().filter_map(|answer| answer["started"].as_u64()).sum();
        if started >= jobs {
            return Ok(());
        }
        idle = if started == last { idle + 1 } else { 0 };
        if idle > STALLED_LOOKS {
            return Err(CliError::Failed(format!("no more jobs start; {started} of {jobs} have started")));
        }
        last = started;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A minute of looks without a start: something is wrong, and waiting on would hide it.
const STALLED_LOOKS: u32 = 12_000;

fn add(all: &mut Histogram<u64>, recorded: &Value) {
    let recorded: Vec<(u64, u64)> = serde_json::from_value(recorded.clone()).unwrap_or_default();
    for (value, count) in recorded {
        all.saturating_record_n(value, count);
    }
}

fn recorded(times: &Histogram<u64>) -> Value {
    let pairs = times.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value()));
    json!({ "times": pairs.collect::<Vec<_>>() })
}

/// What a node does: opens its store, then whatever it is told, until it is told to stop or nobody is there any more.
pub(crate) async fn run(out: &Out) -> Result {
    let orders = std::env::var(ORDERS).map_err(|_| CliError::Usage("only `bench` can start bench-node".to_owned()))?;
    let orders: Orders = serde_json::from_str(&orders)?;
    let store = windlass::open(&orders.url).await?;
    out.line(json!({ "ready": true }))?;
    let mut told = BufReader::new(tokio::io::stdin()).lines();
    let (meter, mut service, mut store) = (Meter::new(), None, Some(store));
    while let Some(line) = told.next_line().await? {
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("serve", _) => {
                let store = store.take().ok_or_else(|| CliError::Usage("it serves already".to_owned()))?;
                let builder = JobService::builder(store).handler(Noop(meter.clone())).handler(Sleep(meter.clone()));
                let builder = builder.concurrency(orders.workers);
                let builder = if orders.work { builder } else { builder.without_workers() };
                service = Some(builder.start().await?);
                json!({ "serving": true })
            }
            ("submit", jobs) => {
                let jobs = jobs.parse().map_err(|_| CliError::Usage("submit how many?".to_owned()))?;
                let submits = Submits {
                    jobs,
                    submitters: orders.submitters,
                    batch: orders.batch,
                    payload_bytes: orders.payload_bytes,
                    taken: Arc::new(AtomicU64::new(0)),
                };
                let service = service.as_ref().ok_or_else(|| CliError::Usage("it does not serve yet".to_owned()))?;
                recorded(&submits.run(service).await?)
            }
            ("started", _) => json!({ "started": meter.count().load(std::sync::atomic::Ordering::Acquire) }),
            ("waits", _) => recorded(&meter.waits()),
            ("forget", _) => {
                meter.forget();
                json!({ "forgot": true })
            }
            ("stop", _) => break,
            (other, _) => return Err(CliError::Usage(format!("unknown word `{}`", other.escape_debug()))),
        };
        out.line(answer)?;
    }
    meter.release();
    if let Some(service) = service {
        service.shutdown().await;
    }
    out.line(json!({ "stopped": true }))
}
