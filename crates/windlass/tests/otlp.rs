//! Traces across processes (API-7), seen from where they end up: a listener that speaks OTLP over HTTP gets the spans of a
//! caller, of the jobs it submits and of the jobs those submit, and finds them in one trace. Needs the feature `otel`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::trace::SdkTracerProvider;
use prost::Message;
use tracing::Instrument;
use tracing_subscriber::prelude::*;
use windlass::{JobContext, JobError, JobId, JobService, RetryPolicy, SecurityContext, SubmitOptions, TenantId};

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// What must not leave the process in a trace.
const CANARY: &str = "canary-of-a-payload";

/// A caller's trace from another system.
const FOREIGN_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const FOREIGN_SPAN: &str = "b7ad6b7169203331";

/// Spans as a collector gets them.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Collector {
    /// Listens on a port of its own for as long as the test runs.
    fn listen() -> (Collector, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let collector = Collector::default();
        let own = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                own.receive(stream.expect("a connection"));
            }
        });
        (collector, address)
    }

    /// Reads one request and answers it.
    fn receive(&self, stream: TcpStream) {
        let mut reader = BufReader::new(&stream);
        let (head, length) = read_head(&mut reader);
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("the whole body");
        let request = ExportTraceServiceRequest::decode(body.as_slice()).expect("OTLP in protobuf");
        self.bytes.lock().expect("not poisoned").extend(&body);
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        self.spans.lock().expect("not poisoned").extend(scopes.flat_map(|scope| scope.spans));
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        (&stream).write_all(answer.as_bytes()).expect("an answer");
    }

    fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("not poisoned").clone()
    }
}

/// The first line of a message, and how long its body is.
fn read_head(reader: &mut impl BufRead) -> (String, usize) {
    let (mut first, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        let line = line.trim_end();
        if line.is_empty() {
            return (first, length);
        }
        if first.is_empty() {
            first = line.to_owned();
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a number");
        }
    }
}

/// Posts over a connection of its own, and blocks: the exporter has a thread to itself.
#[derive(Debug)]
struct Post(SocketAddr);

#[async_trait::async_trait]
impl HttpClient for Post {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut stream = TcpStream::connect(self.0)?;
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", request.method(), request.uri().path(), self.0);
        for (name, value) in request.headers() {
            head.push_str(&format!("{name}: {}\r\n", value.to_str()?));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", request.body().len()));
        stream.write_all(head.as_bytes())?;
        stream.write_all(request.body())?;
        let mut reader = BufReader::new(stream);
        let (first, length) = read_head(&mut reader);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let status: u16 = first.split(' ').nth(1).ok_or("no status")?.parse()?;
        Ok(Response::builder().status(status).body(body.into())?)
    }
}

fn text(span: &Span, name: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Submits another job from inside an attempt.
async fn outer(jobs: Arc<OnceLock<JobService>>, ctx: JobContext, _: String) -> Result<JobId, JobError> {
    let jobs = jobs.get().expect("set before anything is submitted");
    let inner = jobs.submit_named(&ctx.security(), "inner", "", SubmitOptions::new()).await;
    Ok(inner.map_err(|error| JobError::retryable(error.to_string()))?.id)
}

async fn inner(_: (), _: JobContext, _: String) -> Result<(), JobError> {
    Ok(())
}

async fn refuses(_: (), _: JobContext, input: String) -> Result<(), JobError> {
    Err(JobError::terminal("refused", input))
}

/// API-7: the span of a caller, of its job and of the job's own job are one trace, over OTLP, although the job was submitted
/// and run by two services that share nothing but a store.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_from_the_caller_through_the_job_to_its_children() {
    let (collector, address) = Collector::listen();
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(Post(address))
        .with_endpoint(format!("http://{address}/v1/traces"))
        .build()
        .expect("an exporter");
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    tracing_subscriber::registry().with(layer).try_init().expect("the only subscriber of this process");

    let store = windlass::open("memory:").await.expect("opens");
    let own: Arc<OnceLock<JobService>> = Arc::default();
    let runs = JobService::builder(store.clone())
        .function("outer", own.clone(), outer)
        .function("inner", (), inner)
        .function("refuses", (), refuses)
        .configure(|config| config.poll = Duration::from_millis(100));
    let runs = runs.start().await.expect("starts");
    own.set(runs.clone()).expect("set once");
    let submits = JobService::builder(store).without_workers().start().await.expect("starts");

    let ctx = SecurityContext::new(TenantId::ROOT).with_correlation_id("request-7");
    let request = tracing::info_span!("request");
    let job = async {
        let job = submits.submit_named(&ctx, "outer", CANARY, SubmitOptions::new()).await.expect("accepted").id;
        let child: JobId = submits.wait_for(&ctx, job, SOON).await.expect("succeeds");
        submits.wait_for::<()>(&ctx, child, SOON).await.expect("succeeds");
        // RUN-14: what runs in memory is part of the trace too.
        let spawned = submits.spawn(&ctx, "spawned", |_| async { Ok(()) }).expect("taken");
        let in_memory = spawned.id;
        spawned.join().await.expect("succeeds");
        (job, child, in_memory)
    };
    let (job, child, in_memory) = job.instrument(request.clone()).await;
    drop(request);
    let foreign = format!("00-{FOREIGN_TRACE}-{FOREIGN_SPAN}-01");
    let options = SubmitOptions::new().header("traceparent", foreign).retry(RetryPolicy::never());
    let refused = submits.submit_named(&ctx, "refuses", CANARY, options).await.expect("accepted").id;
    submits.wait(&ctx, refused, SOON).await.expect("ends");
    submits.shutdown().await;
    own.get().expect("set").clone().shutdown().await;
    drop(runs);
    // Blocks until the exporter's thread has sent everything.
    tokio::task::spawn_blocking(move || provider.shutdown()).await.expect("ends").expect("everything was sent");

    let spans = collector.spans();
    let by_job: HashMap<String, &Span> = spans
        .iter()
        .filter(|span| span.name == "job.execute")
        .map(|span| (text(span, "job_id").expect("every attempt names its job"), span))
        .collect();
    let request = spans.iter().find(|span| span.name == "request").expect("the caller's span");
    let (outer, inner) = (by_job[&job.to_string()], by_job[&child.to_string()]);
    assert_eq!(hex(&outer.trace_id), hex(&request.trace_id), "one trace");
    assert_eq!(hex(&inner.trace_id), hex(&request.trace_id), "one trace");
    assert_eq!(hex(&outer.parent_span_id), hex(&request.span_id), "the job is the caller's child");
    assert_eq!(hex(&inner.parent_span_id), hex(&outer.span_id), "what the job submits is the job's child");
    let in_memory = by_job[&in_memory.to_string()];
    assert_eq!(hex(&in_memory.parent_span_id), hex(&request.span_id), "and so is what it spawns");
    assert_eq!(text(in_memory, "status").as_deref(), Some("succeeded"));
    for (name, value) in [
        ("handler_id", "outer"),
        ("attempt", "1"),
        ("correlation_id", "request-7"),
        ("tenant_id", "00000000-0000-0000-0000-000000000000"),
        ("status", "succeeded"),
    ] {
        assert_eq!(text(outer, name).as_deref(), Some(value), "{name}");
    }

    let refused = by_job[&refused.to_string()];
    assert_eq!((hex(&refused.trace_id), hex(&refused.parent_span_id)), (FOREIGN_TRACE.into(), FOREIGN_SPAN.into()));
    assert_eq!(text(refused, "status").as_deref(), Some("dead_lettered"));
    assert_eq!(refused.status.as_ref().map(|status| status.code), Some(2), "an error, by its number in OTLP");
    let sent = collector.bytes.lock().expect("not poisoned").clone();
    assert!(!sent.windows(CANARY.len()).any(|bytes| bytes == CANARY.as_bytes()), "no payload and no error text");
}
