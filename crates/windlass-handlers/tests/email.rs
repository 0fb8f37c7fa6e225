//! E-mail to servers on loopback (HND-3): one that speaks SMTP, with and without TLS and logins, and services with the
//! shapes of Resend and Microsoft Graph.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use windlass_core::store::AuditFilter;
use windlass_core::{Error, HandlerOptions, JobError, JobService, MemoryStore, RetryPolicy, SecurityContext, TenantId};
use windlass_handlers::email::{self, AttachmentRef, EMAIL_SENT, Email, EmailInput, EmailSent, Graph, Resend, Smtp};
use windlass_handlers::{Handlers, Secret};

const SOON: Duration = Duration::from_secs(30);

/// What a mail server does and has seen.
#[derive(Clone, Default)]
struct Mail {
    seen: Arc<Mutex<Seen>>,
    /// Replies to recipients, by the beginning of their address.
    refuses: Vec<(&'static str, &'static str)>,
    tls: Option<TlsAcceptor>,
}

#[derive(Default)]
struct Seen {
    logins: Vec<String>,
    messages: Vec<(Vec<String>, String)>,
    recipients: usize,
}

impl Mail {
    /// How many messages and logins it has seen.
    fn counts(&self) -> (usize, usize) {
        let seen = self.seen.lock();
        (seen.messages.len(), seen.logins.len())
    }

    /// Listens; with TLS offered by STARTTLS, or from the start.
    async fn listen(&self, wrapped: bool) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let port = listener.local_addr().expect("an address").port();
        let mail = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mail = mail.clone();
                tokio::spawn(async move {
                    // Whoever goes away in the middle has had enough.
                    let _ = match mail.tls.clone().filter(|_| wrapped) {
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => mail.talk(stream, true, true).await.map(drop),
                            Err(error) => Err(error),
                        },
                        None => match mail.talk(stream, false, true).await {
                            Ok(Some(stream)) => match mail.tls.clone().expect("offered").accept(stream).await {
                                Ok(stream) => mail.talk(stream, true, false).await.map(drop),
                                Err(error) => Err(error),
                            },
                            other => other.map(drop),
                        },
                    };
                });
            }
        });
        port
    }

    /// Speaks SMTP; returns the stream where it is to be encrypted.
    async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        encrypted: bool,
        greet: bool,
    ) -> std::io::Result<Option<S>> {
        let mut stream = BufReader::new(stream);
        if greet {
            stream.write_all(b"220 test ESMTP\r\n").await?;
        }
        let mut to: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(None);
            }
            let line = line.trim_end();
            let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            let reply = match verb.as_str() {
                "EHLO" if encrypted => "250-test\r\n250 AUTH PLAIN".to_owned(),
                "EHLO" if self.tls.is_some() => "250-test\r\n250 STARTTLS".to_owned(),
                "EHLO" => "250 test".to_owned(),
                "STARTTLS" => {
                    stream.write_all(b"220 go\r\n").await?;
                    return Ok(Some(stream.into_inner()));
                }
                "AUTH" => {
                    self.seen.lock().logins.push(line.to_owned());
                    let good = "AUTH PLAIN AG9wcwBoZW5nZQ=="; // "\0ops\0henge"
                    if line == good { "235 welcome".to_owned() } else { "535 no".to_owned() }
                }
                "RCPT" => {
                    let address = line.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
                    self.seen.lock().recipients += 1;
                    let refused = self.refuses.iter().find(|(start, _)| address.starts_with(start));
                    to.push(address);
                    refused.map_or("250 fine", |(_, reply)| reply).to_owned()
                }
                "DATA" => {
                    stream.write_all(b"354 go on\r\n").await?;
                    let mut text = String::new();
                    while !text.ends_with("\r\n.\r\n") {
                        if stream.read_line(&mut text).await? == 0 {
                            return Ok(None);
                        }
                    }
                    self.seen.lock().messages.push((std::mem::take(&mut to), text));
                    "250 queued as 42".to_owned()
                }
                "QUIT" => {
                    stream.write_all(b"221 bye\r\n").await?;
                    return Ok(None);
                }
                _ => "250 fine".to_owned(),
            };
            stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
        }
    }
}

/// A certificate for `localhost`, and what serves with it.
fn certificate() -> (String, TlsAcceptor) {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a key");
    let config = config.with_no_client_auth().with_single_cert(vec![key.cert.der().clone()], private).expect("serves");
    (key.cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

async fn service(handler: Email) -> JobService {
    let retry = HandlerOptions::new().retry(RetryPolicy::fixed(2, Duration::from_millis(10)));
    JobService::builder(Arc::new(MemoryStore::new())).email(handler.options(retry)).start().await.expect("starts")
}

async fn send(jobs: &JobService, input: EmailInput) -> Result<EmailSent, JobError> {
    match email::HANDLER.submit(jobs, input).await.expect("accepted").wait(SOON).await {
        Ok(sent) => Ok(sent),
        Err(Error::JobFailed { error, .. }) => Err(*error),
        Err(other) => panic!("the job did not end: {other}"),
    }
}

async fn audited(jobs: &JobService) -> Vec<String> {
    let mut filter = AuditFilter::default();
    filter.action = Some(EMAIL_SENT.to_owned());
    let log = jobs.audit_log(&SecurityContext::new(TenantId::ROOT), &filter).await.expect("reads");
    log.into_iter().filter_map(|entry| entry.detail).collect()
}

fn hello() -> EmailInput {
    EmailInput::new("Ada <ada@example.org>", "Hello", "Your report is ready.")
}

const FROM: &str = "Ops <ops@example.org>";

/// HND-3: text, HTML, copies and attachments arrive; OPS-11: the audit log says so.
#[tokio::test]
async fn an_email_arrives_with_all_its_parts() {
    let mail = Mail::default();
    let place = tempfile::tempdir().expect("a directory");
    std::fs::write(place.path().join("report.pdf"), "%PDF").expect("writes");
    let handler = Email::smtp(Smtp::plain("127.0.0.1").port(mail.listen(false).await), FROM).expect("a sender");
    let jobs = service(handler.attachments_from(place.path()).expect("opens")).await;
    let mut input = hello();
    (input.html, input.bcc) = (Some("<p>ready</p>".into()), vec!["eve@example.org".into()]);
    input.attachments = vec![AttachmentRef { file: "report.pdf".into(), ..AttachmentRef::default() }];
    let sent = send(&jobs, input).await.expect("succeeds");
    assert_eq!((sent.recipients, sent.reply.as_str()), (2, "queued as 42"));
    let (to, text) = mail.seen.lock().messages[0].clone();
    assert_eq!(to, ["ada@example.org", "eve@example.org"]);
    for part in [&format!("Message-ID: {}", sent.message_id), "report.pdf", "<p>ready</p>", "Your report is ready."] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(!text.contains("eve@"), "{text}");
    assert_eq!(audited(&jobs).await, [format!("{} to 2 recipients", sent.message_id)]);
    let missing = AttachmentRef { file: "no.pdf".into(), ..AttachmentRef::default() };
    let error = send(&jobs, EmailInput { attachments: vec![missing], ..hello() }).await.expect_err("no such file");
    assert_eq!((error.code.as_str(), mail.seen.lock().messages.len()), ("file_missing", 1));
    jobs.shutdown().await;
}

/// HND-3: 5xx is final, 4xx is tried again, and nobody gets half of it.
#[tokio::test]
async fn refusals_that_pass_are_told_from_those_that_do_not() {
    let mail = Mail {
        refuses: vec![("nobody", "550 no such user"), ("full", "452 mailbox full"), ("slow", "421 later")],
        ..Mail::default()
    };
    let port = mail.listen(false).await;
    let jobs = service(Email::smtp(Smtp::plain("127.0.0.1").port(port), FROM).expect("a sender")).await;
    let to = |address: &str| EmailInput::new(address, "Hello", "text");
    let error = send(&jobs, to("nobody@example.org")).await.expect_err("final");
    assert_eq!((error.code.as_str(), error.is_retryable(), mail.seen.lock().recipients), ("smtp_550", false, 1));
    for (address, code) in [("full@example.org", "smtp_452"), ("slow@example.org", "smtp_421")] {
        let before = mail.seen.lock().recipients;
        let error = send(&jobs, to(address)).await.expect_err("not today");
        assert_eq!((error.code.as_str(), mail.seen.lock().recipients - before), (code, 2), "{address}");
    }
    let some = EmailInput { cc: vec!["nobody@example.org".into()], ..hello() };
    assert!(send(&jobs, some).await.is_err() && mail.seen.lock().messages.is_empty(), "all or none");
    assert!(audited(&jobs).await.is_empty());
    jobs.shutdown().await;
}

/// HND-3: STARTTLS and TLS with a login; a server without encryption gets neither e-mail nor password.
#[tokio::test]
async fn logins_go_over_encrypted_connections_only() {
    let (pem, tls) = certificate();
    let place = tempfile::tempdir().expect("a directory");
    std::fs::write(place.path().join("password"), "henge\n").expect("writes");
    let secret = Secret::file(place.path().join("password"));
    for wrapped in [false, true] {
        let mail = Mail { tls: Some(tls.clone()), ..Mail::default() };
        let server = if wrapped { Smtp::tls("localhost") } else { Smtp::starttls("localhost") };
        let server = server.port(mail.listen(wrapped).await).login("ops", secret.clone());
        let trusting = server.clone().root_certificate(pem.clone());
        let jobs = service(Email::smtp(trusting, FROM).expect("a sender")).await;
        send(&jobs, hello()).await.expect("succeeds");
        assert_eq!(mail.counts(), (1, 1));
        jobs.shutdown().await;
        let jobs = service(Email::smtp(server, FROM).expect("a sender")).await;
        assert!(send(&jobs, hello()).await.is_err(), "nobody vouches for the certificate");
        assert_eq!(mail.counts(), (1, 1));
        jobs.shutdown().await;
    }
    let bare = Mail::default();
    let server = Smtp::starttls("localhost").port(bare.listen(false).await).login("ops", secret);
    let jobs = service(Email::smtp(server, FROM).expect("a sender")).await;
    let error = send(&jobs, hello()).await.expect_err("no encryption");
    assert!(!format!("{error:?}").contains("henge"));
    assert_eq!(bare.counts(), (0, 0));
    jobs.shutdown().await;
}

/// What a service was sent: path, credentials, body.
type Calls = Arc<Mutex<Vec<(String, HeaderMap, String)>>>;

async fn answer(State(calls): State<Calls>, uri: Uri, headers: HeaderMap, body: String) -> Response {
    calls.lock().push((uri.path().to_owned(), headers, body));
    match uri.path() {
        "/emails" => axum::Json(json!({ "id": "re_1" })).into_response(),
        "/dir/oauth2/v2.0/token" => {
            axum::Json(json!({ "access_token": "token-1", "expires_in": 3600 })).into_response()
        }
        path if path.ends_with("/sendMail") => StatusCode::ACCEPTED.into_response(),
        "/busy/emails" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0")]).into_response(),
        _ => StatusCode::FORBIDDEN.into_response(),
    }
}

/// HND-3: providers over HTTP get the shapes they know, a key of their own, and an id against sending twice.
#[tokio::test]
async fn providers_over_http_are_called_by_their_shapes() {
    let calls = Calls::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let app = Router::new().fallback(answer).with_state(calls.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let place = tempfile::tempdir().expect("a directory");
    std::fs::write(place.path().join("key"), "key-1").expect("writes");
    let key = Secret::file(place.path().join("key"));

    let resend = Email::resend(Resend::new(key.clone()).endpoint(&url), FROM).expect("a sender");
    let jobs = service(resend).await;
    let sent = send(&jobs, hello()).await.expect("succeeds");
    assert_eq!((sent.reply.as_str(), audited(&jobs).await.len()), ("re_1", 1));
    let (_, headers, body) = calls.lock().pop().expect("a call");
    assert_eq!(headers["authorization"], "Bearer key-1");
    assert_eq!(headers["idempotency-key"], sent.message_id.as_str());
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((&body["from"], &body["text"]), (&json!(FROM), &json!("Your report is ready.")));
    jobs.shutdown().await;

    let graph = Graph::new("dir", "app", key.clone()).endpoints(&url, &url);
    let jobs = service(Email::graph(graph, FROM).expect("a sender")).await;
    for _ in 0..2 {
        send(&jobs, hello()).await.expect("succeeds");
    }
    let paths: Vec<String> = calls.lock().iter().map(|(path, ..)| path.clone()).collect();
    let mail = "/v1.0/users/ops@example.org/sendMail";
    assert_eq!(paths, ["/dir/oauth2/v2.0/token", mail, mail], "one login for both");
    assert_eq!(calls.lock()[1].1["authorization"], "Bearer token-1");
    jobs.shutdown().await;

    for (path, code) in [("/busy", "http_429"), ("/forbidden", "http_403")] {
        let resend = Resend::new(key.clone()).endpoint(format!("{url}{path}"));
        let jobs = service(Email::resend(resend, FROM).expect("a sender")).await;
        let error = send(&jobs, hello()).await.expect_err("refused");
        assert_eq!(error.code, code);
        assert!(!format!("{error:?}").contains("key-1"));
        jobs.shutdown().await;
    }
}

/// HND-3: an e-mail that was sent by an attempt which died before it could say so is not sent again.
#[tokio::test]
async fn what_was_sent_is_not_sent_again() {
    let mail = Mail::default();
    let port = mail.listen(false).await;
    let store = Arc::new(MemoryStore::new());
    let ctx = SecurityContext::new(TenantId::ROOT);
    let first = JobService::builder(store.clone()).remote_handler("email.send").start().await.expect("starts");
    let id = email::HANDLER.submit(&first, hello()).await.expect("accepted").id();
    let attempt = first.checkout(&ctx, &["default"], 1).await.expect("checks out").pop().expect("a job");
    let sent = EmailSent { message_id: format!("<{id}@example.org>"), recipients: 1, reply: "queued as 1".into() };
    attempt.context().save_checkpoint(&sent).await.expect("saved");
    let died = JobError::retryable("the process died").retry_after(Duration::from_millis(1));
    first.mark_failure(&attempt, died).await.expect("marked");
    first.shutdown().await;

    let handler = Email::smtp(Smtp::plain("127.0.0.1").port(port), FROM).expect("a sender");
    let handler = handler.options(HandlerOptions::new());
    let second = JobService::builder(store).email(handler).start().await.expect("starts");
    assert_eq!(email::HANDLER.job(&second, id).wait(SOON).await.expect("succeeds"), sent);
    assert_eq!(audited(&second).await.len(), 1);
    assert_eq!(mail.seen.lock().recipients, 0);
    second.shutdown().await;
}
