//! A server with jobs to run, keys of two tenants, and a client. Ends everything when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use uuid::Uuid;
use windlass::store::Store;
use windlass::{
    Builder, JobContext, JobError, JobService, NewApiKey, OperatorRight, RetryPolicy, Right, Rights, SecurityContext,
    TenantId,
};
use windlass_server::{Config, Egress, Server, webhooks};
use windlass_testkit::servers::{PostgresOptions, PostgresServer};

/// Where the jobs of a rig are kept.
pub(crate) enum Where<'a> {
    Memory,
    Sqlite,
    Postgres(&'a PostgresServer, &'a str),
}

/// One PostgreSQL server. Nothing here is about durability.
pub(crate) fn postgres() -> PostgresServer {
    PostgresServer::start(PostgresOptions::fleeting()).expect("a throwaway server starts")
}

pub(crate) const TENANT: TenantId = TenantId(Uuid::from_u128(0xa));
pub(crate) const OTHER: TenantId = TenantId(Uuid::from_u128(0xb));

/// The longest that anything here is waited for.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) struct Rig {
    store: Arc<dyn Store>,
    pub(crate) service: JobService,
    pub(crate) url: String,
    pub(crate) client: Client,
    /// Every right in one tenant.
    pub(crate) key: String,
    /// Every right in another tenant.
    pub(crate) other: String,
    /// Every right over the whole installation.
    pub(crate) operator: String,
    pub(crate) login_link: Option<String>,
    end: Option<oneshot::Sender<()>>,
    ended: Option<tokio::task::JoinHandle<()>>,
    _dir: TempDir,
}

impl Rig {
    pub(crate) async fn start(place: Where<'_>) -> Rig {
        Rig::with(place, |_| {}).await
    }

    pub(crate) async fn with(place: Where<'_>, change: impl FnOnce(&mut Config)) -> Rig {
        let dir = tempfile::tempdir().expect("a directory");
        let store: Arc<dyn Store> = match place {
            Where::Memory => windlass::open("memory:").await.expect("a store"),
            Where::Sqlite => {
                let path = dir.path().join("jobs.db");
                windlass::open(&format!("sqlite:{}", path.display())).await.expect("a store")
            }
            Where::Postgres(server, name) => {
                let name: String = name.chars().take(60).collect();
                server.create_database(&name).expect("a database");
                windlass::open(&server.url(&name)).await.expect("a store")
            }
        };
        let builder = webhooks::register_with(JobService::builder(store.clone()), Egress::anywhere());
        Rig::on(store, builder, dir, change).await
    }

    /// The same on the store of this one, whose workers end: nothing runs but what a request asks for.
    pub(crate) async fn without_workers(&self) -> Rig {
        self.service.shutdown().await;
        let builder = JobService::builder(self.store.clone()).without_workers();
        let builder = webhooks::register_with(builder, Egress::anywhere());
        let dir = tempfile::tempdir().expect("a directory");
        Rig::on(self.store.clone(), builder, dir, |_| {}).await
    }

    /// The same on the store of this one, whose workers end: webhooks are given up as soon as `retry` says.
    pub(crate) async fn with_patience(&self, retry: RetryPolicy) -> Rig {
        self.service.shutdown().await;
        let builder = JobService::builder(self.store.clone());
        let builder = webhooks::register_patient(builder, Egress::anywhere(), retry);
        let dir = tempfile::tempdir().expect("a directory");
        Rig::on(self.store.clone(), builder, dir, |_| {}).await
    }

    /// A second server of the same installation.
    pub(crate) async fn beside(&self) -> Rig {
        Rig::delivering(self.store.clone(), Egress::anywhere()).await
    }

    /// A server on a store, whose deliverer of webhooks reaches what `delivers_to` allows.
    pub(crate) async fn delivering(store: Arc<dyn Store>, delivers_to: Egress) -> Rig {
        let dir = tempfile::tempdir().expect("a directory");
        let builder = webhooks::register_with(JobService::builder(store.clone()), delivers_to);
        Rig::on(store, builder, dir, |_| {}).await
    }

    async fn on(store: Arc<dyn Store>, builder: Builder, dir: TempDir, change: impl FnOnce(&mut Config)) -> Rig {
        let service = handlers(builder).start().await.expect("a service");
        let mut config = Config::listen(([127, 0, 0, 1], 0).into());
        config.webhook_egress = Egress::anywhere();
        change(&mut config);
        let server = Server::bind(service.clone(), config).await.expect("a free port");
        let url = format!("http://{}", server.address());
        let login_link = server.login_link();
        let (end, when) = oneshot::channel();
        let ended = tokio::spawn(server.run(async move {
            let _ = when.await;
        }));
        let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).timeout(SOON).build();
        let mut rig = Rig {
            store,
            url,
            client: client.expect("a client"),
            key: String::new(),
            other: String::new(),
            operator: String::new(),
            login_link,
            end: Some(end),
            ended: Some(ended),
            _dir: dir,
            service,
        };
        rig.key = rig.new_key(TENANT, Rights::ALL).await;
        rig.other = rig.new_key(OTHER, Rights::ALL).await;
        rig.operator = rig.operator_key(Rights::ALL).await;
        rig
    }

    pub(crate) async fn new_key(&self, tenant: TenantId, rights: Rights) -> String {
        let ctx = SecurityContext::new(tenant).with_user("tester");
        self.service.create_key(&ctx, NewApiKey::new("test", rights)).await.expect("a key").1
    }

    pub(crate) async fn operator_key(&self, rights: Rights) -> String {
        let ctx = SecurityContext::new(TenantId::ROOT).with_user("operator");
        let operator = self.service.operator(OperatorRight::assume());
        operator.create_key(&ctx, NewApiKey::new("test", rights).all_tenants()).await.expect("a key").1
    }

    pub(crate) fn rights(rights: &[Right]) -> Rights {
        Rights::of(rights.iter().copied())
    }

    /// A request to the API, of the tenant.
    pub(crate) fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.ask_as(&self.key, method, path)
    }

    pub(crate) fn ask_as(&self, key: &str, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}/api/v1{path}", self.url)).bearer_auth(key)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(self.ask(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        Answer::of(self.ask(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        Answer::of(self.ask(Method::DELETE, path)).await
    }

    /// Submits a job and answers with its id.
    pub(crate) async fn submit(&self, handler: &str, input: Value, options: Value) -> String {
        let body = serde_json::json!({ "handler": handler, "input": input, "options": options });
        let answer = self.post("/jobs", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["id"].as_str().expect("an id").to_owned()
    }

    /// Waits until a job has come to a status, and answers with it.
    pub(crate) async fn wait_for(&self, id: &str, status: &str) -> Value {
        let wait = async {
            loop {
                let answer = self.get(&format!("/jobs/{id}")).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                if answer.body["status"] == status {
                    return answer.body;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(SOON, wait).await {
            Ok(job) => job,
            Err(_) => panic!("job {id} did not become {status}: {:?}", self.get(&format!("/jobs/{id}")).await),
        }
    }

    /// How many jobs there are in all tenants.
    pub(crate) async fn jobs(&self) -> usize {
        let answer = Answer::of(self.ask_as(&self.operator, Method::GET, "/jobs?limit=200")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["jobs"].as_array().expect("a list").len()
    }

    /// Ends the server as a signal would, and waits until it has ended.
    pub(crate) async fn end(&mut self) {
        let _ = self.end.take().expect("it runs").send(());
        let ended = self.ended.take().expect("it runs");
        tokio::time::timeout(SOON, ended).await.expect("it ends in time").expect("it does not panic");
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) async fn of(request: RequestBuilder) -> Answer {
        Answer::read(request.send().await.expect("an answer")).await
    }

    pub(crate) async fn read(response: Response) -> Answer {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.expect("a body");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Asserts that it is a whole problem with this status and code.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["type"], format!("urn:windlass:problem:{code}"));
        for field in ["title", "detail", "instance", "request_id"] {
            assert!(self.body[field].is_string(), "{field} is missing: {self:?}");
        }
        assert_eq!(self.header("x-request-id"), self.body["request_id"]);
        assert_eq!(self.headers.contains_key("retry-after"), [429, 503].contains(&status), "{self:?}");
    }
}

/// `echo` answers with its input, `fail` fails for good, `flaky` fails until it is tried again by hand, `slow` reports
/// progress until it is stopped.
fn handlers(builder: Builder) -> Builder {
    let once = windlass::HandlerOptions::new().retry(RetryPolicy::never());
    builder
        .function("echo", (), async |(), _: JobContext, input: Value| Ok::<_, JobError>(input))
        .function("number", (), async |(), _: JobContext, input: u32| Ok::<_, JobError>(input))
        .function_with("fail", once, (), async |(), _: JobContext, input: Value| {
            Err::<Value, _>(JobError::terminal("bad_address", format!("no mailbox {input}")))
        })
        .function("slow", (), async |(), ctx: JobContext, _: Value| {
            let mut percent = 0.0;
            while !ctx.cancellation().is_cancelled() && percent < 100.0 {
                percent += 1.0;
                ctx.report_progress(percent, format!("step {percent}"));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, JobError>(Value::from(percent))
        })
        .function("talks", (), async |(), ctx: JobContext, _: Value| {
            ctx.log(windlass::LogLevel::Info, "hello from the job");
            ctx.record_cost(windlass::Cost::new(5, 2));
            Ok::<_, JobError>(Value::Null)
        })
        .remote_handler("elsewhere")
        .remote_handler("nowhere")
        .remote_handler("mail.send")
}

/// A table that is locked, held by a session of psql.
pub(crate) struct Locked<'a> {
    server: &'a PostgresServer,
    database: &'a str,
    table: &'static str,
    session: std::process::Child,
}

impl<'a> Locked<'a> {
    /// Nobody can write to the table.
    pub(crate) async fn for_writers(server: &'a PostgresServer, database: &'a str, table: &'static str) -> Locked<'a> {
        Locked::take(server, database, table, "exclusive", "ExclusiveLock").await
    }

    /// Nobody can read the table either.
    pub(crate) async fn for_all(server: &'a PostgresServer, database: &'a str, table: &'static str) -> Locked<'a> {
        Locked::take(server, database, table, "access exclusive", "AccessExclusiveLock").await
    }

    async fn take(
        server: &'a PostgresServer,
        database: &'a str,
        table: &'static str,
        mode: &str,
        listed_as: &str,
    ) -> Locked<'a> {
        use std::io::Write;
        let mut psql = server.program("psql");
        let psql = psql.args(["-q", database]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        let mut session = psql.spawn().expect("psql starts");
        let statements = format!("begin;\nlock table {table} in {mode} mode;\n");
        session.stdin.as_mut().expect("a pipe").write_all(statements.as_bytes()).expect("psql reads");
        let locked = Locked { server, database, table, session };
        locked.until(&format!("mode = '{listed_as}' and granted")).await;
        locked
    }

    /// Until somebody waits for the table.
    pub(crate) async fn until_awaited(&self) {
        self.until("not granted").await;
    }

    async fn until(&self, condition: &str) {
        let sql = format!("select count(*) from pg_locks where relation = '{}'::regclass and {condition}", self.table);
        let seen = async {
            loop {
                let asked = self.server.program("psql").args(["-Atc", &sql, self.database]).output();
                let answer = asked.expect("psql runs").stdout;
                if String::from_utf8_lossy(&answer).trim().parse::<u32>().is_ok_and(|n| n > 0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, seen).await.unwrap_or_else(|_| panic!("{sql}"));
    }

    /// Ends the session, and with it its lock.
    pub(crate) async fn release(&mut self) {
        drop(self.session.stdin.take());
        self.session.wait().expect("psql ends");
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}
