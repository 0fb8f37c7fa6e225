//! The hot statements keep their plans on an empty, a small and a large database that nobody has analysed: no sequential
//! scan of what grows. Plans are read from `auto_explain`, because the statements run inside functions.

mod common;

use futures_util::StreamExt;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use windlass_postgres::{PgOptions, PgStore};

/// Tables that a hot statement must never read whole.
const GROWING: [&str; 5] = ["job", "outcome", "ready", "scheduled", "job_key"];

/// The life of some jobs, as the library's statements call it. The first lease id is `$lease`.
const LIFE: [&str; 9] = [
    "select windlass.submit_plain(null, null, 2, array[$id + 1, $id + 2, $id + 3], array_fill('00000000-0000-0000-0000-000000000001'::uuid, array[3]),
        '{h,h,h}', '{hot,hot,hot}', '{0,0,0}', array['1', '2', '3']::json[], array[null, null, now() + interval '1 hour'], '{}', '{}', '{}', '{}', '{}',
        '{hot}', '{0}', array['00000000-0000-0000-0000-000000000001'::uuid], '{0}', '{1}', '{2}')",
    "select count(*) from windlass.submit_jobs('[{\"handler\": \"h\", \"queue\": \"hot\", \"idempotency_key\": \"k$id\"}]')",
    "select count(*) from windlass.claim($node, $id, 2, '{0,0,2,0}', '{hot}', '{9}', '{1,1,1,1}', '{-20,-10,0,10}', '{0,0,0,0}', 128, false)",
    "select count(*) from windlass.claim($node, $id + 1, 1, '{0,0,1,0}', '{hot}', '{9}', '{}', '{}', '{}', 128, true)",
    "select * from windlass.finish_succeeded($node, array[$id], (select array[part] from windlass.lease where lease_id = $id order by part limit 1), '{1}', '{1}', array[(select ids[1] from windlass.lease where lease_id = $id order by part limit 1)],
        '{1}', '{1000000000}', '{}', '{1}', array['00000000-0000-0000-0000-000000000001'::uuid], '{1}', '{1000000000}')",
    "select * from windlass.finish($node, array[$id], array[$id], array[(select ids[1] from windlass.lease where lease_id = $id order by part limit 1)],
        '{1}', '{1}', '{1}', '{}', '{}', '{1}', '{1}', '{}', array['{\"code\": \"x\", \"message\": \"\", \"kind\": \"retryable\"}']::json[], '{}', null)",
    "select * from windlass.promote('-infinity', 100)",
    "select count(*) from windlass.pass_on(array[$id])",
    "select * from windlass.clean(-1, 1000, 1)",
];

#[tokio::test]
async fn hot_statements_never_scan_what_grows() {
    let database = common::Database::fresh().await;
    let options = PgOptions::new(&database.url).expect("a URL").listen(false);
    let _store = PgStore::connect_with(options).await.expect("opens");
    let (client, mut plans) = explaining_client(&database.admin_url).await;
    let node: i64 =
        client.query_one("select o_node from windlass.register('{}', '30 s')", &[]).await.expect("registers").get(0);
    for (round, jobs) in [0, 20, 60_000].into_iter().enumerate() {
        fill(&client, jobs).await;
        drain(&mut plans);
        // More than five times: then the server may choose a generic plan.
        for step in 0..8 {
            let id = 1_000_000_000_000_000 + (round as i64 * 100 + step) * 10;
            for sql in LIFE {
                let sql = sql.replace("$id", &id.to_string()).replace("$node", &node.to_string());
                client.simple_query(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            }
        }
        let seen = drain(&mut plans);
        assert!(seen.len() > 50, "auto_explain shows the plans: {} seen", seen.len());
        for plan in seen {
            let lines: Vec<&str> = plan.lines().collect();
            let whole =
                lines.windows(2).find(|two| two[0].contains("using lease_pkey") && !two[1].contains("Index Cond"));
            assert!(whole.is_none(), "with {jobs} jobs, all leases are read:\n{plan}");
            for table in GROWING {
                let scanned = plan.lines().any(|line| {
                    let table = format!("Seq Scan on {table}");
                    // Partitions are called after their table.
                    line.contains(&format!("{table} ")) || line.contains(&format!("{table}_"))
                });
                assert!(!scanned, "with {jobs} jobs, {table} is read whole:\n{plan}");
            }
        }
    }
}

/// Waiting and ended jobs in equal parts, with statistics that know nothing of them.
async fn fill(client: &Client, jobs: i64) {
    if jobs == 0 {
        return;
    }
    let sql = format!(
        "insert into windlass.job (handler, queue) select 'h', 'cold' from generate_series(1, {jobs});
         insert into windlass.outcome (id, finished_at, purge_at, status, attempt, failed, recoveries)
         select id, now(), now() + interval '1 day', 6, 1, 0, 0 from windlass.job j
         where handler = 'h' and queue = 'cold' and not exists (select 1 from windlass.outcome o where o.id = j.id)
         limit {jobs} / 2;"
    );
    client.batch_execute(&sql).await.expect("filled");
}

type Plans = tokio::sync::mpsc::UnboundedReceiver<String>;

fn drain(plans: &mut Plans) -> Vec<String> {
    std::iter::from_fn(|| plans.try_recv().ok()).collect()
}

/// A client whose session tells the plan of every statement, also of those inside functions. A superuser's at first, as
/// auto_explain needs; then a plain login's, whom policies bind.
async fn explaining_client(url: &str) -> (Client, Plans) {
    let config: Config = url.parse().expect("a URL");
    let (client, mut connection) = config.connect(NoTls).await.expect("connects");
    let (sender, plans) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notice(notice) = message {
                let _ = sender.send(notice.message().to_owned());
            }
        }
    });
    let setup =
        "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;
                 set client_min_messages = log; set session authorization windlass_test;";
    client.batch_execute(setup).await.expect("the test role is a superuser, as auto_explain needs");
    (client, plans)
}
