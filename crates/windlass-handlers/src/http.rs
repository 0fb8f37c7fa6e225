//! Calls other services: one request per attempt, signed if asked for, with secrets that the job only names.
//! Success and retries follow the class of the status; redirects are not followed. Reaches only addresses that its
//! [`Egress`] allows, and keeps a bounded part of the response.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Sha256;
use windlass_core::{HandlerOptions, HandlerRef, InvalidInput, JobContext, JobError, JobHandler, TenantId};

use crate::Secret;
use crate::egress::Egress;
use crate::reply::{self, Meaning};

/// The handler, for those who submit.
pub const HANDLER: HandlerRef<HttpInput, HttpReply> = HandlerRef::new(HttpCall::ID);

/// How long a call may take unless the job says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest that a job may ask for.
const TIMEOUT_MAX_MS: u64 = 300_000;
/// Kept of a response unless [`HttpCall::keep_bytes`] says otherwise: with the rest of an output it fits the limits.
const KEEP_BYTES: usize = 16 * 1024;
/// Shown of a refusal.
const SHOWN_BYTES: usize = 512;
/// Headers of one request.
const HEADERS: usize = 64;
/// The longest address.
const URL_BYTES: usize = 8 * 1024;
/// Calls at once on a node, so that services that hang leave slots to others.
const AT_ONCE: usize = 16;

/// Headers that belong to the connection, and not to whoever writes a job.
const RESERVED: [&str; 11] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-authorization",
    "proxy-connection",
];

/// A request to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpInput {
    /// `GET`, `HEAD`, `POST`, `PUT`, `PATCH` or `DELETE`; `POST` if absent.
    #[serde(default = "post")]
    pub method: String,
    /// Where to.
    pub url: String,
    /// Headers as they are sent. Secrets belong into `secret_headers`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are secrets of the handler.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_headers: BTreeMap<String, SecretHeader>,
    /// A body of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<serde_json::Value>,
    /// A body of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The secret to sign with, as Standard Webhooks does: the headers `webhook-id`, `webhook-timestamp` and
    /// `webhook-signature`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign_with: Option<String>,
    /// Statuses that are a success too, beside 200 to 299.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept: Vec<u16>,
    /// How long it may take, in milliseconds: 30 s if absent, at most 300 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

fn post() -> String {
    "POST".to_owned()
}

impl HttpInput {
    /// A request without a body.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        HttpInput { method: method.into(), url: url.into(), ..HttpInput::default() }
    }

    /// Sends JSON.
    pub fn post(url: impl Into<String>, json: serde_json::Value) -> Self {
        HttpInput { json: Some(json), ..HttpInput::new("POST", url) }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Adds a header with a secret of the handler, after `prefix`, such as `Bearer `.
    #[must_use]
    pub fn secret_header(mut self, name: impl Into<String>, prefix: &str, secret: impl Into<String>) -> Self {
        self.secret_headers.insert(name.into(), SecretHeader { secret: secret.into(), prefix: prefix.to_owned() });
        self
    }

    /// Signs the request.
    #[must_use]
    pub fn sign_with(mut self, secret: impl Into<String>) -> Self {
        self.sign_with = Some(secret.into());
        self
    }
}

/// A header whose value is a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretHeader {
    /// The name under which the handler knows it.
    pub secret: String,
    /// What stands before it, such as `Bearer `.
    #[serde(default)]
    pub prefix: String,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpReply {
    /// The status.
    pub status: u16,
    /// What kind of body it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The first bytes of the body as text, without secrets that were sent.
    pub body: String,
    /// Whether the body was longer than what is kept.
    pub cut: bool,
}

/// Calls other services.
///
/// ```no_run
/// # async fn example(store: std::sync::Arc<windlass_core::MemoryStore>) -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_core::JobService;
/// use windlass_handlers::http::{self, HttpCall, HttpInput};
/// use windlass_handlers::{Handlers, Secret};
///
/// let key = Secret::env("PAYMENTS_KEY").for_host("api.payments.example");
/// let jobs = JobService::builder(store).http(HttpCall::new().secret("payments", key)).start().await?;
/// let call = HttpInput::post("https://api.payments.example/refunds", serde_json::json!({ "order": 7 }))
///     .secret_header("authorization", "Bearer ", "payments");
/// http::HANDLER.submit(&jobs, call).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct HttpCall {
    egress: Egress,
    secrets: BTreeMap<String, Secret>,
    keep_bytes: Option<usize>,
    options: Option<HandlerOptions>,
    client: OnceLock<Option<Client>>,
}

impl HttpCall {
    /// Calls public addresses over https.
    pub fn new() -> Self {
        HttpCall::default()
    }

    /// Sets which addresses may be reached.
    #[must_use]
    pub fn egress(mut self, egress: Egress) -> Self {
        self.egress = egress;
        self
    }

    /// Adds a secret that jobs may name.
    #[must_use]
    pub fn secret(mut self, name: impl Into<String>, secret: Secret) -> Self {
        self.secrets.insert(name.into(), secret);
        self
    }

    /// Sets how much of a response is kept.
    #[must_use]
    pub fn keep_bytes(mut self, bytes: usize) -> Self {
        self.keep_bytes = Some(bytes);
        self
    }

    /// Sets timeout, retries, concurrency and more.
    #[must_use]
    pub fn options(mut self, options: HandlerOptions) -> Self {
        self.options = Some(options);
        self
    }

    /// Checks all but whose secrets they are, which only the attempt knows.
    fn check(&self, input: &HttpInput) -> Result<Checked, InvalidInput> {
        let bad = |field: &str, message: &str| Err(InvalidInput::new(field, message));
        let Some(method) = method(&input.method) else {
            return bad("method", "it must be GET, HEAD, POST, PUT, PATCH or DELETE");
        };
        if input.url.len() > URL_BYTES {
            return bad("url", "it must have at most 8192 bytes");
        }
        let url = self.egress.check(&input.url).map_err(|blocked| reply::bad_address("url", &blocked))?;
        if input.headers.len() + input.secret_headers.len() > HEADERS {
            return bad("headers", "at most 64 headers are allowed");
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &input.headers {
            let name = header_name("headers", name)?;
            let Ok(value) = HeaderValue::from_str(value) else {
                return bad("headers", "a value must not contain line breaks or control characters");
            };
            headers.insert(name, value);
        }
        for (name, value) in &input.secret_headers {
            header_name("secret_headers", name)?;
            if !self.secrets.contains_key(&value.secret) || HeaderValue::from_str(&value.prefix).is_err() {
                return bad(
                    "secret_headers",
                    "each must name a secret of the handler, and have a prefix of plain text",
                );
            }
        }
        if input.sign_with.as_ref().is_some_and(|name| !self.secrets.contains_key(name)) {
            return bad("sign_with", "it must name a secret of the handler");
        }
        let has_body = input.json.is_some() || input.text.is_some();
        if input.json.is_some() && input.text.is_some() {
            return bad("text", "a request has `json` or `text`, not both");
        }
        if has_body && (method == Method::GET || method == Method::HEAD) {
            return bad("method", "GET and HEAD have no body");
        }
        if !input.accept.iter().all(|status| StatusCode::from_u16(*status).is_ok()) {
            return bad("accept", "each must be a status from 100 to 999");
        }
        if input.timeout_ms.is_some_and(|timeout| timeout == 0 || timeout > TIMEOUT_MAX_MS) {
            return bad("timeout_ms", "it must be 1 to 300000");
        }
        Ok(Checked { method, url, headers })
    }

    /// A secret that a job names, if it may go there.
    fn secret_for(&self, name: &str, tenant: TenantId, url: &Url) -> Result<String, JobError> {
        let secret = self.secrets.get(name).filter(|secret| secret.allows(tenant, url.host_str().unwrap_or_default()));
        let denied = || {
            let message = format!("the secret `{name}` may not be used by this tenant, or not be sent to this host");
            JobError::terminal("secret_denied", message)
        };
        Ok(secret.ok_or_else(denied)?.read()?.into_inner())
    }

    fn client(&self) -> Result<&Client, JobError> {
        let client = self.client.get_or_init(|| self.egress.client_builder().build().ok());
        client.as_ref().ok_or_else(|| JobError::terminal("no_client", "could not create an HTTP client"))
    }
}

/// What of the input has been read.
struct Checked {
    method: Method,
    url: Url,
    headers: HeaderMap,
}

fn method(name: &str) -> Option<Method> {
    let known = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    known.into_iter().find(|method| method.as_str() == name)
}

fn header_name(field: &str, name: &str) -> Result<HeaderName, InvalidInput> {
    let parsed = HeaderName::from_bytes(name.as_bytes()).ok().filter(|name| !RESERVED.contains(&name.as_str()));
    parsed.ok_or_else(|| InvalidInput::new(field, "a name must be a token, and none that belongs to the connection"))
}

impl JobHandler for HttpCall {
    const ID: &'static str = "http.call";
    type Input = HttpInput;
    type Output = HttpReply;

    fn options(&self) -> HandlerOptions {
        let default = || HandlerOptions::new().timeout(Duration::from_millis(TIMEOUT_MAX_MS) * 2).concurrency(AT_ONCE);
        self.options.clone().unwrap_or_else(default)
    }

    fn validate(&self, input: &HttpInput) -> Result<(), InvalidInput> {
        self.check(input).map(drop)
    }

    async fn execute(&self, ctx: &JobContext, input: HttpInput) -> Result<HttpReply, JobError> {
        let Checked { method, url, mut headers } = self.check(&input).map_err(reply::invalid)?;
        let mut used = Vec::new();
        for (name, value) in &input.secret_headers {
            let secret = self.secret_for(&value.secret, ctx.tenant(), &url)?;
            let sent = HeaderValue::from_str(&format!("{}{secret}", value.prefix));
            let mut sent =
                sent.map_err(|_| JobError::new("secret_missing", "the secret cannot be sent in a header"))?;
            sent.set_sensitive(true);
            headers.insert(header_name("secret_headers", name).map_err(reply::invalid)?, sent);
            used.push(secret);
        }
        let body = match (&input.json, input.text) {
            (Some(json), _) => json.to_string(),
            (None, text) => text.unwrap_or_default(),
        };
        let content = if input.json.is_some() { "application/json" } else { "text/plain; charset=utf-8" };
        if !body.is_empty() && !headers.contains_key(header::CONTENT_TYPE) {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
        }
        // The same for every attempt: a service that knows the header does the work once.
        let job = ctx.job_id().to_string();
        let key = HeaderName::from_static("idempotency-key");
        headers.entry(key).or_insert(HeaderValue::from_str(&job).map_err(JobError::from)?);
        if let Some(name) = &input.sign_with {
            let secret = self.secret_for(name, ctx.tenant(), &url)?;
            for (name, value) in signed(&secret, &format!("msg_{job}"), jiff::Timestamp::now().as_second(), &body) {
                headers.insert(HeaderName::from_static(name), HeaderValue::from_str(&value).map_err(JobError::from)?);
            }
            used.push(secret);
        }
        let timeout = input.timeout_ms.map_or(TIMEOUT, Duration::from_millis);
        let request = self.client()?.request(method, url).headers(headers).timeout(timeout).body(body);
        let keep = self.keep_bytes.unwrap_or(KEEP_BYTES);
        tokio::select! {
            biased;
            () = ctx.cancellation().cancelled() => Err(JobError::cancelled()),
            reply = call(request, &input.accept, keep, &used) => reply,
        }
    }
}

/// Sends a request and reads what is kept of the response.
async fn call(
    request: reqwest::RequestBuilder,
    accept: &[u16],
    keep: usize,
    secrets: &[String],
) -> Result<HttpReply, JobError> {
    let response = request.send().await.map_err(|error| reply::no_answer("the service", &error))?;
    let (status, put_off) = (response.status(), reply::put_off(&response));
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let content_type = content_type.map(|kind| without(kind, secrets));
    let is_good = accept.contains(&status.as_u16()) || reply::meaning(status) == Meaning::Done;
    let keep = if is_good { keep } else { keep.min(SHOWN_BYTES) };
    let (body, cut) = first_bytes(response, keep).await;
    let body = without(&String::from_utf8_lossy(&body), secrets);
    match is_good {
        true => Ok(HttpReply { status: status.as_u16(), content_type, body, cut }),
        false => {
            let details = json!({ "status": status.as_u16(), "body": body });
            Err(reply::refusal("the service", status, put_off).with_details(details))
        }
    }
}

/// The first bytes of a body, and whether there are more. The status has been said; a body that breaks off changes nothing.
async fn first_bytes(mut response: Response, keep: usize) -> (Vec<u8>, bool) {
    let mut kept = Vec::new();
    while let Ok(Some(bytes)) = response.chunk().await {
        let room = keep - kept.len();
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            return (kept, true);
        }
    }
    (kept, false)
}

/// A service may send back what it was sent.
fn without(text: &str, secrets: &[String]) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[secret]"))
}

/// The headers of Standard Webhooks, by which a receiver knows who sent a message.
fn signed(secret: &str, id: &str, sent_at: i64, body: &str) -> [(&'static str, String); 3] {
    let key = STANDARD.decode(secret.trim_start_matches("whsec_")).unwrap_or_else(|_| secret.as_bytes().to_vec());
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length of key is allowed");
    mac.update(format!("{id}.{sent_at}.{body}").as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    [("webhook-id", id.to_owned()), ("webhook-timestamp", sent_at.to_string()), ("webhook-signature", signature)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handler() -> HttpCall {
        HttpCall::new().secret("key", Secret::env("WINDLASS_NO_SUCH_VARIABLE").for_host("example.org"))
    }

    fn check(change: impl FnOnce(&mut HttpInput), field: &str) {
        let mut input = HttpInput::post("https://example.org/", json!({ "a": 1 }));
        change(&mut input);
        let error = handler().check(&input).err().unwrap_or_else(|| panic!("{input:?} passed"));
        assert_eq!(error.field, field, "{input:?}");
    }

    /// HND-2: bad input is refused by field, before anything is sent.
    #[test]
    fn every_field_is_checked() {
        for method in ["", "get", "TRACE", "CONNECT", "POST /x HTTP/1.1\r\nx:"] {
            check(|input| input.method = method.into(), "method");
        }
        check(|input| input.method = "GET".into(), "method");
        for url in ["", "http://example.org/", "https://10.0.0.1/", "https://u:p@example.org/", "https://e.org:22/"] {
            check(|input| input.url = url.into(), "url");
        }
        for name in ["", "a b", "a\r\nb", "Host", "content-length", "Transfer-Encoding", "ü"] {
            check(|input| drop(input.headers.insert(name.into(), "x".into())), "headers");
            let secret = SecretHeader { secret: "key".into(), prefix: String::new() };
            check(|input| drop(input.secret_headers.insert(name.into(), secret)), "secret_headers");
        }
        for value in ["a\r\nx: y", "a\nb", "a\0b"] {
            check(|input| drop(input.headers.insert("x".into(), value.into())), "headers");
            let secret = SecretHeader { secret: "key".into(), prefix: value.into() };
            check(|input| drop(input.secret_headers.insert("x".into(), secret)), "secret_headers");
        }
        check(|input| input.headers = (0..65).map(|n| (format!("x{n}"), String::new())).collect(), "headers");
        let unknown = SecretHeader { secret: "other".into(), prefix: String::new() };
        check(|input| drop(input.secret_headers.insert("x".into(), unknown)), "secret_headers");
        check(|input| input.sign_with = Some("other".into()), "sign_with");
        check(|input| input.text = Some(String::new()), "text");
        check(|input| input.accept = vec![99], "accept");
        for timeout in [0, 300_001] {
            check(|input| input.timeout_ms = Some(timeout), "timeout_ms");
        }
    }

    /// HND-2: a secret goes to no host but its own, whoever asks.
    #[test]
    fn secrets_are_bound_to_hosts_and_tenants() {
        let url = |host: &str| Url::parse(&format!("https://{host}/")).expect("a URL");
        let code = |host, tenant| handler().secret_for("key", tenant, &url(host)).expect_err("not there").code;
        let acme = TenantId::parse("0199a1a0-0000-7000-8000-000000000001").expect("a UUID");
        assert_eq!(code("example.org", TenantId::ROOT), "secret_missing", "allowed, but the variable is not set");
        assert_eq!(code("evil.example.org", TenantId::ROOT), "secret_denied");
        assert_eq!(code("example.org", acme), "secret_denied");
    }

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_signature_is_the_one_that_verifiers_expect() {
        let message = r#"{"test": 2432232314}"#;
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let [_, _, (_, signature)] = signed(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, message);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    proptest! {
        /// HND-2: no name or value of a header can begin another one.
        #[test]
        fn no_header_can_be_injected(name in "[ -~\r\n]{0,12}", value in "[ -~\r\n\t\u{0}]{0,20}") {
            let input = HttpInput::new("POST", "https://example.org/").header(&name, &value);
            if handler().check(&input).is_ok() {
                prop_assert!(!name.contains(['\r', '\n', ':', ' ']) && !value.contains(['\r', '\n', '\0']));
            }
        }
    }
}
