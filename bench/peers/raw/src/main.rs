//! The reference, not a queue: hand-written SQL over tokio-postgres with prepared statements and nothing around it. One
//! insert per batch; `conc` connections that claim `fetch` jobs, handle them and complete them together. `done=update`
//! keeps completed jobs, `done=delete` removes them. A worker without work waits for a NOTIFY sent with each insert.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, Statement};
use windlass_bench::{Peer, Settings, connect, hit};

const SCHEMA: &str = "create table job (id bigint generated always as identity primary key, \
    state smallint not null default 0, priority smallint not null default 0, \
    attempts smallint not null default 0, run_at timestamptz not null default now(), \
    started_at timestamptz, finished_at timestamptz, payload jsonb not null) with (fillfactor = 70); \
    create index on job (priority, id) where state = 0";

const CLAIM: &str = "update job set state = 1, started_at = now(), attempts = attempts + 1 \
    where id = any(array(select id from job where state = 0 and run_at <= now() \
    order by priority, id limit $1 for update skip locked)) returning id, payload";

struct Submitter {
    client: Client,
    insert: Statement,
    insert_many: Statement,
}

struct P {
    url: String,
    submitters: Vec<Submitter>,
    next: AtomicUsize,
}

impl P {
    fn submitter(&self) -> &Submitter {
        &self.submitters[self.next.fetch_add(1, Relaxed) % self.submitters.len()]
    }
}

impl Peer for P {
    const NAME: &'static str = "raw";

    async fn setup(settings: &Settings) -> Self {
        connect(&settings.url).await.batch_execute(SCHEMA).await.unwrap();
        // A NOTIFY in every commit costs most of the commit rate, so only where a worker waits for it.
        let (notify, from) = match settings.bench.as_str() {
            "latency" | "held" => (", n as (select pg_notify('job', ''))", " from n"),
            _ => ("", ""),
        };
        let callers = if settings.bench == "enqueue" { settings.number("sub", 16) } else { settings.number("sub", 1) };
        let mut submitters = Vec::new();
        for _ in 0..callers {
            let client = connect(&settings.url).await;
            let one = format!("with i as (insert into job (payload) values ($1)){notify} select 1{from}");
            let many =
                format!("with i as (insert into job (payload) select unnest($1::jsonb[])){notify} select 1{from}");
            let insert = client.prepare(&one).await.unwrap();
            let insert_many = client.prepare(&many).await.unwrap();
            submitters.push(Submitter { client, insert, insert_many });
        }
        P { url: settings.url.clone(), submitters, next: AtomicUsize::new(0) }
    }

    async fn enqueue(&self, n: u64) {
        let submitter = self.submitter();
        submitter.client.execute(&submitter.insert, &[&json!({"n": n})]).await.unwrap();
    }

    async fn bulk(&self, range: Range<u64>) {
        let submitter = self.submitter();
        let payloads: Vec<Value> = range.map(|n| json!({"n": n})).collect();
        submitter.client.execute(&submitter.insert_many, &[&payloads]).await.unwrap();
    }

    async fn start(&self, settings: &Settings) {
        let wake = Arc::new(Notify::new());
        let (listener, mut connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await.unwrap();
        let waker = wake.clone();
        tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(_) = message {
                    waker.notify_one();
                }
            }
        });
        listener.batch_execute("listen job").await.unwrap();
        std::mem::forget(listener);
        let fetch = settings.number("fetch", 1000) as i64;
        let complete = match settings.text("done", "update").as_str() {
            "delete" => "delete from job where id = any($1)",
            _ => "update job set state = 2, finished_at = now() where id = any($1)",
        };
        for _ in 0..settings.concurrency() {
            let client = connect(&self.url).await;
            let wake = wake.clone();
            let claim = client.prepare(CLAIM).await.unwrap();
            let complete = client.prepare(complete).await.unwrap();
            tokio::spawn(async move {
                loop {
                    let rows = client.query(&claim, &[&fetch]).await.unwrap();
                    if rows.is_empty() {
                        wake.notified().await;
                        continue;
                    }
                    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                    rows.iter().for_each(|row| hit(row.get::<_, Value>(1)["n"].as_u64().unwrap()));
                    client.execute(&complete, &[&ids]).await.unwrap();
                }
            });
        }
    }

    fn remaining_sql(&self) -> String {
        "select count(*) from job where state <> 2".into()
    }
}

fn main() {
    windlass_bench::run::<P>();
}
