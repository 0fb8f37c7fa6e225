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
    JobContext, JobError, JobService, NewApiKey, OperatorRight, RetryPolicy, Right, Rights, SecurityContext, TenantId,
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
        let builder = webhooks::register_with(handlers(JobService::builder(store)), Egress::anywhere());
        let service = builder.start().await.expect("a service");
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
fn handlers(builder: windlass::Builder) -> windlass::Builder {
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
}
