//! How often a job was tried, by each way of looking at it. Lives are made call by call on the store, as nodes would.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use windlass::store::{Claim, Fence, Finish, LeaseId, NewNode, NodeId, Store, Transition, suspect_queue};
use windlass::{ClaimedJob, JobError};

use crate::common::Windlass;

/// The longest that a claim or a recovery is waited for; both are a matter of milliseconds here.
const SOON: Duration = Duration::from_secs(20);

/// A node that takes one job at a time.
struct Node<'a> {
    store: &'a Arc<dyn Store>,
    id: NodeId,
}

impl Node<'_> {
    async fn join(store: &Arc<dyn Store>) -> Node<'_> {
        Node { store, id: store.register(NewNode::default()).await.expect("registered").node }
    }

    /// Takes the only job, as soon as it is ready.
    async fn claim(&self, queue: &str, lease: i64) -> ClaimedJob {
        let began = Instant::now();
        loop {
            self.store.promote(10).await.expect("promotes");
            let (node, lease, queues) = (self.id, LeaseId(lease), vec![(queue.to_owned(), 1)]);
            let claim = Claim { node, lease, queues, max: 1, quota: [0; 4], tenant: None };
            if let Some(job) = self.store.claim(claim).await.expect("claims").jobs.pop() {
                return job;
            }
            assert!(began.elapsed() < SOON, "no job becomes ready in {queue}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn finish(&self, job: &ClaimedJob, transition: Transition) {
        let (fence, attempt, ran) = (Fence { job: job.id, lease: job.lease }, job.attempt(), Duration::from_millis(1));
        let (follow_up, cost, audit, resumed) = (None, None, false, true);
        let finish = Finish { fence, attempt, ran, transition, follow_up, cost, audit, batch: None, resumed };
        self.store.finish(self.id, vec![finish]).await.expect("finishes");
    }

    /// Falls silent, and is declared dead.
    async fn lose(self) {
        let (began, no_time) = (Instant::now(), Duration::ZERO);
        loop {
            let silent = self.store.survey(no_time, &[]).await.expect("looks").silent;
            if self.store.recover(no_time, &silent).await.expect("recovers").nodes.contains(&self.id) {
                return;
            }
            assert!(began.elapsed() < SOON, "it is not declared dead");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn fails(job: &ClaimedJob) -> Transition {
    Transition::Retry { failed: job.failed + 1, delay: Duration::ZERO, error: JobError::retryable("no luck") }
}

fn dies(job: &ClaimedJob) -> Transition {
    let (reason, error) = ("max_retries".to_owned(), JobError::retryable("no luck"));
    Transition::DeadLetter { failed: job.failed + 1, reason, error, keep: None }
}

/// A job that fails, is lost with its node, and fails for good.
async fn live(store: &Arc<dyn Store>, queue: &str) {
    let node = Node::join(store).await;
    let job = node.claim(queue, 1).await;
    node.finish(&job, fails(&job)).await;
    node.claim(queue, 2).await;
    node.lose().await;
    let node = Node::join(store).await;
    let job = node.claim(&suspect_queue(queue, 1), 3).await;
    node.finish(&job, dies(&job)).await;
    store.deregister(node.id).await.expect("leaves");
}

/// The same job after its replay: fails once and waits.
async fn live_again(store: &Arc<dyn Store>, queue: &str) {
    let node = Node::join(store).await;
    let job = node.claim(queue, 4).await;
    node.finish(&job, Transition::Retry { failed: 1, delay: SOON * 100, error: JobError::retryable("again") }).await;
    store.deregister(node.id).await.expect("leaves");
}

/// What each way of looking says: attempts, those that failed, nodes lost, and the attempt of each line of the history.
type Told = (Vec<u64>, Vec<u64>);

/// The numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// `show`, for people.
fn by_show(windlass: &Windlass, id: &str) -> Told {
    let shown = windlass.run(&["show", id, "--history"]).stdout;
    let attempt = shown.lines().find_map(|line| line.strip_prefix("attempt ")).expect("a field");
    let (before, table) = shown.split_once("\n\n").expect("a history");
    assert!(before.contains(id));
    // WHEN is a day and a time, then come STATUS and ATTEMPT.
    let attempts = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3)?.parse().ok());
    (padded(numbers(attempt)), attempts.collect())
}

/// The API, and `show --json`.
fn by_api(job: &Value, history: &Value) -> Told {
    let of = |field: &str| job[field].as_u64().unwrap_or_else(|| panic!("no {field} in {job}"));
    let lines = history.as_array().expect("a list").iter();
    let attempts = lines.map(|line| line["attempt"].as_u64().expect("a number")).collect();
    (vec![of("attempt"), of("failed"), of("recoveries")], attempts)
}

/// The page of the job.
fn by_page(page: &str) -> Told {
    let after = |mark: &str| page.split_once(mark).unwrap_or_else(|| panic!("no {mark} in {page}")).1;
    let fact = after("<dt>Attempt</dt>").split("</dd>").next().expect("a fact");
    let timeline = after("<ol class=\"timeline\">").split("<div class=\"event-line\"><b>").skip(1);
    let happened = timeline.filter_map(|line| line.split("</b>").next());
    let attempts = happened.map(|text| numbers(text).first().copied().unwrap_or(0)).collect();
    (padded(numbers(fact)), attempts)
}

/// What is none is not named.
fn padded(mut told: Vec<u64>) -> Vec<u64> {
    told.resize(3, 0);
    told
}

/// API-4, API-5: `show`, the API and the page count the attempts of a job alike: one that failed, one that was lost with its
/// node and those after a replay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_are_counted_the_same_everywhere() {
    let windlass = Windlass::new();
    let id = windlass.submit(&["email.send"]);
    let queue = windlass.json(&["show", &id])["job"]["queue"].as_str().expect("a queue").to_owned();
    let key = windlass.key(&["--rights", "admin,payload", "--user", "tester@here"]);
    let url = format!("sqlite:{}", windlass.database().display());
    let lives = [(vec![3, 2, 1], vec![0, 1, 2, 3]), (vec![1, 1, 0], vec![0, 1, 2, 3, 0, 1])];
    for (life, expected) in lives.into_iter().enumerate() {
        let store = windlass::open(&url).await.expect("nobody else has the file");
        match life {
            0 => live(&store, &queue).await,
            _ => live_again(&store, &queue).await,
        }
        drop(store);
        assert_eq!(by_show(&windlass, &id), expected, "show");
        let shown = windlass.json(&["show", &id, "--history"]);
        assert_eq!(by_api(&shown["job"], &shown["history"]), expected, "show --json");
        let served = windlass.serve(&[]);
        assert_eq!(by_show(&Windlass::through(&served, &key), &id), expected, "show on a server");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let get = async |path: String| {
            let asked = client.get(format!("{}{path}", served.url)).bearer_auth(&key).send().await.expect("an answer");
            asked.text().await.expect("a body")
        };
        let read = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
        let (job, history) = (get(format!("/api/v1/jobs/{id}")).await, get(format!("/api/v1/jobs/{id}/history")).await);
        assert_eq!(by_api(&read(job), &read(history)["history"]), expected, "the API");
        assert_eq!(by_page(&get(format!("/jobs/{id}")).await), expected, "the page");
        assert_eq!(served.stop(), 0);
        if life == 0 {
            windlass.json(&["dead", "replay", &id]);
        }
    }
}
