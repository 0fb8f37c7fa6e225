//! The proxy does to a connection what its verbs say, and nothing else: shown on a plain echo server and on PostgreSQL.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};
use windlass_faults::proxy::{Direction, Only, Protocol, Proxy, Then, What};
use windlass_testkit::servers::test_postgres_url;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough to show that nothing comes.
const SILENCE: Duration = Duration::from_millis(400);

// ---- plain TCP

/// An echo server that counts what it was told.
struct Echo {
    address: String,
    heard: Arc<AtomicUsize>,
}

async fn echo() -> Echo {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = heard.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counted = counted.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(size @ 1..) = stream.read(&mut buffer).await {
                    counted.fetch_add(size, Ordering::SeqCst);
                    if stream.write_all(&buffer[..size]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    Echo { address, heard }
}

async fn raw(echo: &Echo) -> Proxy {
    Proxy::start(&echo.address, Protocol::Raw, 7).await.unwrap()
}

async fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn ask(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(text).await?;
    let mut answer = vec![0; text.len()];
    timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("an answer in time")?;
    Ok(answer)
}

async fn comes(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn in_fair_weather_everything_passes_and_is_counted() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let mut stream = connect(&proxy).await;
    let long = vec![b'x'; 300_000];
    let (mut reading, mut writing) = stream.split();
    let mut answer = vec![0; long.len()];
    let (read, written) = tokio::join!(reading.read_exact(&mut answer), writing.write_all(&long));
    assert!(read.is_ok() && written.is_ok());
    assert_eq!(answer, long);
    let counters = proxy.counters();
    assert_eq!((counters.connections, counters.open), (1, 1));
    assert_eq!((counters.to_server, counters.to_client), (300_000, 300_000));
    assert_eq!((counters.reset, counters.cut, counters.swallowed, counters.held), (0, 0, 0, 0));
    drop(stream);
    comes("the end of the connection", || proxy.counters().open == 0).await;
}

#[tokio::test]
async fn latency_delays_each_way_but_does_not_slow_the_flow() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let mut stream = connect(&proxy).await;
    proxy.latency(Duration::from_millis(60), Duration::ZERO);
    let asked = Instant::now();
    assert_eq!(ask(&mut stream, b"hello").await.unwrap(), b"hello");
    let took = asked.elapsed();
    assert!(took >= Duration::from_millis(120), "there and back took {took:?}");
    // Twenty questions one behind the other are under way at once.
    let asked = Instant::now();
    for _ in 0..20 {
        stream.write_all(b"hello").await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answers = [0; 100];
    timeout(PATIENCE, stream.read_exact(&mut answers)).await.unwrap().unwrap();
    let took = asked.elapsed();
    assert!(took < Duration::from_millis(20 * 120), "twenty at once took {took:?}");
}

#[tokio::test]
async fn a_cut_closes_everything_and_lets_nobody_in_until_it_is_healed() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let mut old = connect(&proxy).await;
    ask(&mut old, b"hello").await.unwrap();
    proxy.cut();
    let end = timeout(PATIENCE, old.read(&mut [0; 1])).await.expect("the end in time").unwrap();
    assert_eq!(end, 0, "an orderly end");
    let mut refused = connect(&proxy).await;
    assert!(ask(&mut refused, b"hello").await.is_err());
    assert_eq!(proxy.counters().cut, 1);
    proxy.heal();
    assert_eq!(ask(&mut connect(&proxy).await, b"again").await.unwrap(), b"again");
}

#[tokio::test]
async fn a_blackhole_swallows_one_way_and_closes_nothing() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let mut old = connect(&proxy).await;
    ask(&mut old, b"12345").await.unwrap();

    proxy.blackhole(Direction::ToClient);
    old.write_all(b"67890").await.unwrap();
    let mut new = connect(&proxy).await;
    new.write_all(b"abcde").await.unwrap();
    comes("both questions", || echo.heard.load(Ordering::SeqCst) == 15).await;
    comes("the loss of both answers", || proxy.counters().swallowed == 10).await;
    assert!(timeout(SILENCE, old.read(&mut [0; 1])).await.is_err(), "an old connection stays silent and open");
    assert!(timeout(SILENCE, new.read(&mut [0; 1])).await.is_err(), "a new connection stays silent and open");

    // Streams with a hole do not go on; new ones are whole.
    proxy.heal();
    let error = timeout(PATIENCE, old.read(&mut [0; 1])).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(ask(&mut connect(&proxy).await, b"again").await.unwrap(), b"again");

    let mut third = connect(&proxy).await;
    ask(&mut third, b"still").await.unwrap();
    let heard = echo.heard.load(Ordering::SeqCst);
    proxy.blackhole(Direction::ToServer);
    third.write_all(b"unheard").await.unwrap();
    comes("the loss of the question", || proxy.counters().swallowed == 17).await;
    assert_eq!(echo.heard.load(Ordering::SeqCst), heard);
    // That a client has gone is swallowed too: the other end is held until the weather changes.
    drop(third);
    tokio::time::sleep(SILENCE).await;
    let open = proxy.counters().open;
    proxy.heal();
    comes("the end of the connection", || proxy.counters().open < open).await;
}

#[tokio::test]
async fn a_reset_reaches_the_client_as_one() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let mut stream = connect(&proxy).await;
    ask(&mut stream, b"hello").await.unwrap();
    assert_eq!(proxy.reset(), 1);
    let error = timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.counters().reset, 1);
}

#[tokio::test]
async fn a_share_of_connections_is_reset_every_second() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = connect(&proxy).await;
        ask(&mut stream, b"hello").await.unwrap();
        streams.push(stream);
    }
    assert_eq!(proxy.counters().reset, 0);
    proxy.reset_share(0.5);
    comes("ten resets", || proxy.counters().reset >= 10).await;
    // Stopped at once: draws of a tenth of a second cannot have taken all of them.
    proxy.heal();
    let reset = proxy.counters().reset;
    assert!(reset < 50, "{reset} of 50 were reset");
}

#[tokio::test]
async fn split_delivers_small_pieces() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let reads = async |proxy: &Proxy| {
        let mut stream = connect(proxy).await;
        stream.write_all(&[b'x'; 2000]).await.unwrap();
        let (mut got, mut reads, mut buffer) = (0, 0, [0; 4096]);
        while got < 2000 {
            got += timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap();
            reads += 1;
        }
        reads
    };
    assert!(reads(&proxy).await <= 4);
    proxy.split(1);
    let pieces = reads(&proxy).await;
    assert!(pieces >= 20, "2000 single bytes came in {pieces} pieces");
}

#[tokio::test]
async fn bandwidth_limits_the_flow() {
    let echo = echo().await;
    let proxy = raw(&echo).await;
    let mut stream = connect(&proxy).await;
    proxy.bandwidth(100_000);
    let asked = Instant::now();
    ask(&mut stream, &[b'x'; 50_000]).await.unwrap();
    let took = asked.elapsed();
    assert!(took >= Duration::from_millis(450), "50 kB at 100 kB/s took {took:?}");
}

// ---- PostgreSQL

/// A table of the test's own, and connections to it with and without the proxy between.
struct Postgres {
    proxy: Proxy,
    direct: Client,
    table: String,
}

impl Postgres {
    async fn new() -> Postgres {
        let url = test_postgres_url();
        let config: tokio_postgres::Config = url.parse().unwrap();
        let tokio_postgres::config::Host::Tcp(host) = &config.get_hosts()[0] else {
            panic!("the tests' server is reached over TCP");
        };
        let upstream = format!("{host}:{}", config.get_ports()[0]);
        let proxy = Proxy::start(&upstream, Protocol::Postgres, 7).await.unwrap();
        let direct = client(&url, "direct").await.unwrap();
        let table = format!("proxy_{}", uuid::Uuid::new_v4().simple());
        direct.batch_execute(&format!("create table {table} (n int primary key)")).await.unwrap();
        Postgres { proxy, direct, table }
    }

    async fn through(&self, application: &str) -> Client {
        client(&self.proxy.url(&test_postgres_url()), application).await.unwrap()
    }

    fn insert(&self, n: i32) -> String {
        format!("insert into {} values ({n})", self.table)
    }

    async fn has(&self, n: i32) -> bool {
        let sql = format!("select 1 from {} where n = $1", self.table);
        self.direct.query_opt(&sql, &[&n]).await.unwrap().is_some()
    }

    async fn end(self) {
        self.direct.batch_execute(&format!("drop table {}", self.table)).await.unwrap();
    }
}

async fn client(url: &str, application: &str) -> Result<Client, tokio_postgres::Error> {
    let mut config: tokio_postgres::Config = url.parse()?;
    config.application_name(application);
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::test]
async fn a_held_commit_has_happened_although_the_client_was_cut_off() {
    let pg = Postgres::new().await;
    let mut client = pg.through("held").await;
    let time = Duration::from_millis(200);
    pg.proxy.hold_next(1, What::Commit, time, Then::Reset);
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(&pg.insert(1)).await.unwrap();
    assert!(!pg.has(1).await);
    let asked = Instant::now();
    let error = timeout(PATIENCE, transaction.commit()).await.unwrap().unwrap_err();
    assert!(error.as_db_error().is_none(), "the server said nothing: {error}");
    assert!(asked.elapsed() >= time);
    assert!(pg.has(1).await);
    let counters = pg.proxy.counters();
    assert_eq!((counters.held, counters.held_done, counters.reset), (1, 1, 1));
    assert_eq!(pg.proxy.holds_left(), 0);
    pg.end().await;
}

#[tokio::test]
async fn the_reply_of_a_write_of_its_own_is_held_in_both_ways_of_asking() {
    let pg = Postgres::new().await;
    let time = Duration::from_millis(150);
    for (n, typed) in [(1, true), (2, false)] {
        let client = pg.through("held").await;
        pg.proxy.hold_next(1, What::Statement(pg.table.clone()), time, Then::Reset);
        let answer = match typed {
            true => client.query_typed(&pg.insert(n), &[]).await.map(|_| ()),
            false => client.batch_execute(&pg.insert(n)).await,
        };
        assert!(answer.unwrap_err().as_db_error().is_none());
        assert!(pg.has(n).await);
    }
    let client = pg.through("released").await;
    pg.proxy.hold_next(1, What::Commit, time, Then::Release);
    let asked = Instant::now();
    client.query_typed(&pg.insert(3), &[]).await.unwrap();
    assert!(asked.elapsed() >= time);
    assert_eq!(pg.proxy.counters().held_done, 3);
    pg.end().await;
}

#[tokio::test]
async fn reads_and_rollbacks_are_no_commits() {
    let pg = Postgres::new().await;
    let mut client = pg.through("reads").await;
    pg.proxy.hold_next(1, What::Commit, PATIENCE, Then::Reset);
    client.query_typed("select 1", &[]).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(&pg.insert(1)).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!((pg.proxy.counters().held, pg.proxy.holds_left()), (0, 1));
    pg.proxy.heal();
    assert_eq!(pg.proxy.holds_left(), 0);
    pg.proxy.hold_next(1, What::AnyReply, Duration::from_millis(50), Then::Reset);
    assert!(client.query_typed("select 1", &[]).await.is_err());
    pg.end().await;
}

#[tokio::test]
async fn behind_a_one_way_blackhole_the_server_works_and_the_client_waits() {
    let pg = Postgres::new().await;
    let client = pg.through("waiting").await;
    pg.proxy.blackhole(Direction::ToClient);
    let insert = pg.insert(1);
    assert!(timeout(SILENCE, client.batch_execute(&insert)).await.is_err(), "no answer");
    let deadline = Instant::now() + PATIENCE;
    while !pg.has(1).await {
        assert!(Instant::now() < deadline, "the server did not do what it was asked");
    }
    pg.proxy.heal();
    assert!(timeout(PATIENCE, client.batch_execute("select 1")).await.unwrap().is_err());
    pg.through("after").await.batch_execute("select 1").await.unwrap();
    pg.end().await;
}

#[tokio::test]
async fn single_bytes_and_latency_together_still_work() {
    let pg = Postgres::new().await;
    pg.proxy.split(1);
    pg.proxy.latency(Duration::from_millis(5), Duration::from_millis(5));
    let client = pg.through("small").await;
    client.query_typed(&pg.insert(1), &[]).await.unwrap();
    let rows = client.query("select n, repeat('x', 2000) from generate_series(1, 5) n", &[]).await.unwrap();
    assert_eq!(rows.len(), 5);
    assert!(pg.has(1).await);
    pg.end().await;
}

#[tokio::test]
async fn weather_can_be_for_the_listener_alone_or_for_one_application() {
    let pg = Postgres::new().await;
    let listener = pg.through("ears").await;
    listener.batch_execute("listen proxy_test").await.unwrap();
    let other = pg.through("hands").await;
    pg.proxy.only(Only::Listener);
    pg.proxy.blackhole(Direction::Both);
    assert!(timeout(SILENCE, listener.batch_execute("select 1")).await.is_err());
    timeout(PATIENCE, other.batch_execute("select 1")).await.unwrap().unwrap();
    pg.proxy.heal();

    pg.proxy.only(Only::Application("hands".into()));
    assert_eq!(pg.proxy.reset(), 1);
    assert!(timeout(PATIENCE, other.batch_execute("select 1")).await.unwrap().is_err());
    pg.end().await;
}

#[tokio::test]
async fn a_submit_of_windlass_whose_reply_is_lost_is_unknown_and_stored_once() {
    use windlass::{JobContext, JobError, JobService, SecurityContext, SubmitOptions, TenantId};

    async fn handler(_state: (), _ctx: JobContext, _input: u8) -> Result<(), JobError> {
        Ok(())
    }
    let pg = Postgres::new().await;
    let database = pg.table.clone();
    pg.direct.batch_execute(&format!("create database {database}")).await.unwrap();
    let mut url = pg.proxy.url(&test_postgres_url());
    url.truncate(url.rfind('/').unwrap() + 1);
    let store = windlass::open(&format!("{url}{database}")).await.unwrap();
    let jobs = JobService::builder(store).function("quiet", (), handler).start().await.unwrap();

    pg.proxy.hold_next(1, What::Statement("windlass.store_jobs".into()), Duration::from_millis(100), Then::Reset);
    let ctx = SecurityContext::new(TenantId::ROOT);
    let options = || SubmitOptions::new().idempotency_key("once");
    let error = jobs.submit_named(&ctx, "quiet", &1_u8, options()).await.unwrap_err();
    assert_eq!(error.code(), "unknown_outcome", "{error}");
    let again = jobs.submit_named(&ctx, "quiet", &1_u8, options()).await.unwrap();
    assert!(again.duplicate, "the first one was stored");
    assert_eq!(pg.proxy.counters().held_done, 1);
    jobs.shutdown().await;
    pg.direct.batch_execute(&format!("drop database {database} with (force)")).await.unwrap();
    pg.end().await;
}
