//! Ways to send an e-mail: SMTP, Resend and Microsoft Graph. Each turns a letter into what its service takes (pure), sends
//! it, and tells refusals that pass from those that do not.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lettre::message::Mailbox;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use parking_lot::Mutex;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use windlass_core::JobError;

use super::letter::{Attached, Letter};
use crate::Secret;
use crate::egress::Egress;
use crate::reply;

/// How long a provider may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A token that ends so soon is not used any more.
const TOKEN_MARGIN: Duration = Duration::from_secs(60);
/// Read of a response: ids and errors are short.
const REPLY_BYTES: usize = 16 * 1024;

/// A server that takes e-mail over SMTP.
#[derive(Clone, Debug)]
pub struct Smtp {
    host: String,
    port: u16,
    security: Security,
    login: Option<(String, Secret)>,
    root: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    StartTls,
    Tls,
    None,
}

impl Smtp {
    /// Encrypted from the second command on (`STARTTLS`), port 587. A server that does not offer it gets nothing.
    pub fn starttls(host: impl Into<String>) -> Self {
        Smtp { host: host.into(), port: 587, security: Security::StartTls, login: None, root: None }
    }

    /// Encrypted from the start, port 465.
    pub fn tls(host: impl Into<String>) -> Self {
        Smtp { port: 465, security: Security::Tls, ..Smtp::starttls(host) }
    }

    /// Not encrypted, port 25: for a relay on the same machine. Does not log in.
    pub fn plain(host: impl Into<String>) -> Self {
        Smtp { port: 25, security: Security::None, ..Smtp::starttls(host) }
    }

    /// Sets the port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Logs in, on an encrypted connection.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: Secret) -> Self {
        self.login = Some((user.into(), password));
        self
    }

    /// Also trusts this certificate authority, in PEM.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root = Some(pem.into());
        self
    }

    pub(crate) async fn send(&self, letter: &Letter, files: &[Attached]) -> Result<String, JobError> {
        let message = letter.message(files).map_err(|error| JobError::terminal("bad_message", error))?;
        let reply = self.transport()?.send(message).await.map_err(|error| smtp_error(&error))?;
        Ok(reply.message().collect::<Vec<_>>().join(" "))
    }

    /// A connection of its own for each e-mail: there is none left to have gone stale.
    fn transport(&self) -> Result<AsyncSmtpTransport<Tokio1Executor>, JobError> {
        let builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&self.host);
        let mut builder = builder.port(self.port).timeout(Some(TIMEOUT));
        if self.security != Security::None {
            let parameters = self.tls_parameters().map_err(|error| JobError::terminal("bad_tls", error))?;
            let wrap = self.security == Security::Tls;
            builder = builder.tls(if wrap { Tls::Wrapper(parameters) } else { Tls::Required(parameters) });
            if let Some((user, password)) = &self.login {
                builder = builder.credentials(Credentials::new(user.clone(), password.read()?.into_inner()));
            }
        }
        Ok(builder.build())
    }

    fn tls_parameters(&self) -> Result<TlsParameters, lettre::transport::smtp::Error> {
        let mut parameters = TlsParameters::builder(self.host.clone());
        if let Some(pem) = &self.root {
            parameters = parameters.add_root_certificate(Certificate::from_pem(pem)?);
        }
        parameters.build_rustls()
    }
}

fn smtp_error(error: &lettre::transport::smtp::Error) -> JobError {
    match error.status() {
        Some(code) => smtp_refusal(code.into(), &error.to_string()),
        None if error.is_client() => JobError::terminal("smtp_refused", error),
        None if error.is_timeout() => JobError::new("unreachable", "the mail server did not respond in time"),
        None => JobError::new("unreachable", format!("the mail server could not be used: {error}")),
    }
}

/// A reply that begins with 4 passes, one with 5 does not; but for those about the login, which are about the settings and
/// not about this e-mail: it waits until they are right.
fn smtp_refusal(code: u16, text: &str) -> JobError {
    let error = JobError::new(format!("smtp_{code}"), format!("the mail server refused: {text}"));
    match code {
        530 | 534 | 535 | 538 => error.with_code("smtp_login"),
        code => error.with_retryable(!(500..600).contains(&code)),
    }
}

/// The service Resend, or one of the same shape.
#[derive(Clone, Debug)]
pub struct Resend {
    endpoint: String,
    key: Secret,
}

impl Resend {
    /// Sends with this API key.
    pub fn new(key: Secret) -> Self {
        Resend { endpoint: "https://api.resend.com".to_owned(), key }
    }

    /// Sets where the service is.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = url.into();
        self
    }

    pub(crate) async fn send(&self, letter: &Letter, files: &[Attached]) -> Result<String, JobError> {
        let key = self.key.read()?;
        let request = client()?.post(format!("{}/emails", self.endpoint.trim_end_matches('/')));
        let request = request.bearer_auth(key.expose()).header("idempotency-key", &letter.message_id);
        let response = sent(request.json(&resend_shape(letter, files))).await?;
        Ok(json_of(response).await["id"].as_str().unwrap_or_default().to_owned())
    }
}

fn resend_shape(letter: &Letter, files: &[Attached]) -> Value {
    let list = |of: &[Mailbox]| of.iter().map(ToString::to_string).collect::<Vec<_>>();
    let attach = |file: &Attached| json!({ "filename": file.name, "content": STANDARD.encode(&file.bytes), "content_type": file.kind });
    without_nulls(json!({
        "from": letter.from.to_string(),
        "to": list(&letter.to),
        "cc": some(list(&letter.cc)),
        "bcc": some(list(&letter.bcc)),
        "reply_to": letter.reply_to.as_ref().map(ToString::to_string),
        "subject": letter.subject,
        "text": letter.text,
        "html": letter.html,
        "attachments": some(files.iter().map(attach).collect::<Vec<_>>()),
        "headers": { "Message-ID": letter.message_id },
    }))
}

/// Microsoft Graph: sends as a user of an organisation, with the rights of an application.
#[derive(Debug)]
pub struct Graph {
    endpoint: String,
    login: String,
    directory: String,
    application: String,
    secret: Secret,
    token: Mutex<Option<(String, Instant)>>,
}

impl Graph {
    /// Sends with the right `Mail.Send` of an application: the ids of directory and application, and its secret.
    pub fn new(directory: impl Into<String>, application: impl Into<String>, secret: Secret) -> Self {
        Graph {
            endpoint: "https://graph.microsoft.com".to_owned(),
            login: "https://login.microsoftonline.com".to_owned(),
            directory: directory.into(),
            application: application.into(),
            secret,
            token: Mutex::new(None),
        }
    }

    /// Sets where the service and its login are.
    #[must_use]
    pub fn endpoints(mut self, graph: impl Into<String>, login: impl Into<String>) -> Self {
        (self.endpoint, self.login) = (graph.into(), login.into());
        self
    }

    pub(crate) async fn send(&self, letter: &Letter, files: &[Attached]) -> Result<String, JobError> {
        let token = self.token().await?;
        let url = format!("{}/v1.0/users/{}/sendMail", self.endpoint.trim_end_matches('/'), letter.from.email);
        let request = client()?.post(url).bearer_auth(token).json(&graph_shape(letter, files));
        let result = sent(request).await;
        if result.as_ref().is_err_and(|error| error.code == "http_401") {
            // It was revoked before its time: the next attempt gets another.
            *self.token.lock() = None;
            return result.map(|_| String::new()).map_err(|error| error.with_retryable(true));
        }
        result.map(|_| String::new())
    }

    async fn token(&self) -> Result<String, JobError> {
        if let Some((token, until)) = &*self.token.lock()
            && *until > Instant::now()
        {
            return Ok(token.clone());
        }
        let secret = self.secret.read()?;
        let form = [
            ("client_id", self.application.as_str()),
            ("client_secret", secret.expose()),
            ("scope", "https://graph.microsoft.com/.default"),
            ("grant_type", "client_credentials"),
        ];
        let url = format!("{}/{}/oauth2/v2.0/token", self.login.trim_end_matches('/'), self.directory);
        // What is wrong with the login is not about this e-mail: it waits until the settings are right.
        let response = sent(client()?.post(url).form(&form)).await.map_err(|error| error.with_retryable(true))?;
        let answer = json_of(response).await;
        let token =
            answer["access_token"].as_str().ok_or_else(|| JobError::new("no_token", "the login gave no token"))?;
        let lasts = Duration::from_secs(answer["expires_in"].as_u64().unwrap_or(0)).saturating_sub(TOKEN_MARGIN);
        *self.token.lock() = Some((token.to_owned(), Instant::now() + lasts.min(Duration::from_secs(24 * 3600))));
        Ok(token.to_owned())
    }
}

/// Graph takes one body: HTML where there is any.
fn graph_shape(letter: &Letter, files: &[Attached]) -> Value {
    let one = |of: &Mailbox| json!({ "emailAddress": without_nulls(json!({ "address": of.email.to_string(), "name": of.name })) });
    let list = |of: &[Mailbox]| some(of.iter().map(one).collect::<Vec<_>>());
    let body = match (&letter.html, &letter.text) {
        (Some(html), _) => json!({ "contentType": "HTML", "content": html }),
        (None, text) => json!({ "contentType": "Text", "content": text }),
    };
    let attach = |file: &Attached| {
        json!({
            "@odata.type": "#microsoft.graph.fileAttachment",
            "name": file.name,
            "contentType": file.kind,
            "contentBytes": STANDARD.encode(&file.bytes),
        })
    };
    let message = without_nulls(json!({
        "internetMessageId": letter.message_id,
        "from": one(&letter.from),
        "toRecipients": list(&letter.to),
        "ccRecipients": list(&letter.cc),
        "bccRecipients": list(&letter.bcc),
        "replyTo": letter.reply_to.as_ref().map(|to| vec![one(to)]),
        "subject": letter.subject,
        "body": body,
        "attachments": some(files.iter().map(attach).collect::<Vec<_>>()),
    }));
    json!({ "message": message, "saveToSentItems": true })
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// The address is a setting of the program and not of a job, so any will do; but no redirect takes a key elsewhere.
fn client() -> Result<Client, JobError> {
    let built = Egress::anywhere().client(TIMEOUT);
    built.map_err(|_| JobError::terminal("no_client", "could not create an HTTP client"))
}

async fn sent(request: RequestBuilder) -> Result<Response, JobError> {
    let response = request.send().await.map_err(|error| reply::no_answer("the e-mail service", &error))?;
    match response.status().is_success() {
        true => Ok(response),
        false => Err(reply::refusal("the e-mail service", response.status(), reply::put_off(&response))),
    }
}

/// The body as JSON, as far as it is short; nothing if it is none.
async fn json_of(mut response: Response) -> Value {
    let mut body = Vec::new();
    while let Ok(Some(bytes)) = response.chunk().await {
        body.extend_from_slice(&bytes);
        if body.len() > REPLY_BYTES {
            return Value::Null;
        }
    }
    serde_json::from_slice(&body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::email::letter::{EmailInput, letter};

    fn example() -> (Letter, Vec<Attached>) {
        let mut input = EmailInput::new("Ada <ada@example.org>", "Hello", "text");
        (input.html, input.bcc) = (Some("<p>html</p>".into()), vec!["eve@example.org".into()]);
        input.reply_to = Some("help@example.org".into());
        let letter = letter(&input, &["ops@example.org".parse().expect("a mailbox")], "7").expect("good");
        (letter, vec![Attached { name: "a.pdf".into(), kind: "application/pdf".into(), bytes: b"%PDF".to_vec() }])
    }

    /// HND-3: replies of SMTP that pass and those that do not.
    #[test]
    fn smtp_replies_are_told_apart() {
        for (code, name, retryable) in [
            (421, "smtp_421", true),
            (450, "smtp_450", true),
            (451, "smtp_451", true),
            (452, "smtp_452", true),
            (535, "smtp_login", true),
            (550, "smtp_550", false),
            (552, "smtp_552", false),
            (554, "smtp_554", false),
        ] {
            let error = smtp_refusal(code, "no");
            assert_eq!((error.code.as_str(), error.is_retryable()), (name, retryable));
        }
    }

    /// HND-3: the shape that Resend takes.
    #[test]
    fn the_shape_of_resend() {
        let (letter, files) = example();
        let shape = resend_shape(&letter, &files);
        assert_eq!(
            shape,
            json!({
                "from": "ops@example.org",
                "to": ["Ada <ada@example.org>"],
                "bcc": ["eve@example.org"],
                "reply_to": "help@example.org",
                "subject": "Hello",
                "text": "text",
                "html": "<p>html</p>",
                "attachments": [{ "filename": "a.pdf", "content": "JVBERg==", "content_type": "application/pdf" }],
                "headers": { "Message-ID": "<7@example.org>" },
            })
        );
    }

    /// HND-3: the shape that Microsoft Graph takes.
    #[test]
    fn the_shape_of_graph() {
        let (letter, files) = example();
        let shape = graph_shape(&letter, &files);
        let message = &shape["message"];
        assert_eq!(shape["saveToSentItems"], true);
        assert_eq!(message["internetMessageId"], "<7@example.org>");
        assert_eq!(
            message["toRecipients"],
            json!([{ "emailAddress": { "address": "ada@example.org", "name": "Ada" } }])
        );
        assert_eq!(message["bccRecipients"], json!([{ "emailAddress": { "address": "eve@example.org" } }]));
        assert_eq!(message["body"], json!({ "contentType": "HTML", "content": "<p>html</p>" }));
        assert_eq!(message["attachments"][0]["@odata.type"], "#microsoft.graph.fileAttachment");
        assert_eq!(message["attachments"][0]["contentBytes"], "JVBERg==");
        assert_eq!(message.get("ccRecipients"), None);
    }
}
