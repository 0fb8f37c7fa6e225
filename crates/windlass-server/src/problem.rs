//! Every error that leaves the server, as an RFC 9457 problem. `of` decides what a core error means over HTTP and is the
//! only place that does; handlers return `Problem` and `complete` adds what only the whole request knows.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use windlass_core::{Error, InvalidInput, JobId, QuotaKind, store};

/// An error, as callers see it (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:windlass:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened to this request.
    pub detail: String,
    /// The path of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// A stable name for programs.
    pub code: String,
    /// The id to give to an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Every invalid field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The job concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub job: Option<JobId>,
    /// The status of that job, if the status is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_status: Option<String>,
    /// When the same call may succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The exceeded quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaProblem>,
}

/// An invalid field.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FieldError {
    /// Its name.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
    /// The index of the item in a batch, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
}

/// A quota that was exceeded.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct QuotaProblem {
    /// `queued`, `submit_rate` or `bytes`.
    pub kind: String,
    /// How much is allowed.
    pub limit: u64,
    /// How much would still have been accepted.
    pub room: u64,
}

impl Problem {
    /// Creates a problem with a status, a code and a description.
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Problem {
            kind: format!("urn:windlass:problem:{code}"),
            title: title(code),
            status: status.as_u16(),
            detail: detail.into(),
            instance: None,
            code: code.to_owned(),
            request_id: None,
            errors: Vec::new(),
            job: None,
            job_status: None,
            retry_after_ms: None,
            quota: None,
        }
    }

    /// The credential is missing or invalid; does not say which.
    pub fn unauthorized() -> Self {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "this needs a valid API key, token or session")
    }

    /// The principal may not do this.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// The caller's tenant has no such object.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// A field is wrong; nothing was written.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        of(&Error::InvalidInput(InvalidInput::new(field, message)))
    }

    /// The request cannot be parsed.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_input", detail)
    }

    /// Too much at once; try again later.
    pub fn slow_down(code: &str, detail: impl Into<String>, after: Duration) -> Self {
        Problem::new(StatusCode::TOO_MANY_REQUESTS, code, detail).retry_after(after)
    }

    /// The server, or the tenant's share of it, is full; nothing was done.
    pub(crate) fn crowded() -> Self {
        let detail = "the server already runs the maximum number of requests";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "backpressure", detail).retry_after(TRY_AGAIN)
    }

    /// A bug or an unforeseen error. The log has the details, the response has none.
    pub fn internal() -> Self {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "the server could not do this")
    }

    /// When to try again.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after_ms = Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        self
    }

    fn job(mut self, job: JobId) -> Self {
        self.job = Some(job);
        self
    }

    fn field(mut self, error: &InvalidInput, index: Option<usize>) -> Self {
        self.errors.push(FieldError { field: error.field.clone(), message: error.message.clone(), index });
        self
    }

    /// The HTTP status.
    pub fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// How long a caller waits before it asks again, where nothing better is known.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// What an error of the service means over HTTP.
pub(crate) fn of(error: &Error) -> Problem {
    let code = error.code();
    let detail = error.to_string();
    match error {
        Error::InvalidInput(bad) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail).field(bad, None),
        Error::InvalidBatch(bad) => {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail);
            bad.iter().fold(problem, |problem, item| problem.field(&item.error, Some(item.index)))
        }
        Error::HandlerNotFound(_) | Error::HandlerUnknown { .. } => Problem::new(StatusCode::NOT_FOUND, code, detail),
        Error::NotFound(job) => Problem::new(StatusCode::NOT_FOUND, code, detail).job(*job),
        Error::ScheduleNotFound(_) | Error::BatchNotFound(_) => Problem::new(StatusCode::NOT_FOUND, code, detail),
        Error::ScheduleChanged { .. } | Error::BatchSealed(_) => Problem::new(StatusCode::CONFLICT, code, detail),
        Error::AlreadyFinished { job, status } => {
            let mut problem = Problem::new(StatusCode::CONFLICT, code, detail).job(*job);
            problem.job_status = Some(status.to_string());
            problem
        }
        Error::Conflict { job, .. } | Error::LeaseLost(job) => {
            Problem::new(StatusCode::CONFLICT, code, detail).job(*job)
        }
        Error::Backpressure(_) => Problem::slow_down(code, detail, TRY_AGAIN),
        Error::QuotaExceeded(over) => {
            let mut problem = Problem::slow_down(code, detail, over.retry_after.unwrap_or(TRY_AGAIN));
            let kind: QuotaKind = over.quota;
            problem.quota = Some(QuotaProblem { kind: kind.as_str().to_owned(), limit: over.limit, room: over.room });
            problem
        }
        Error::Timeout(_) => Problem::new(StatusCode::GATEWAY_TIMEOUT, code, detail),
        Error::Sealed { job, source } => keys(code, source.is_transient(), detail).job(*job),
        Error::Keys(source) => keys(code, source.is_transient(), detail),
        Error::Forbidden(_) => Problem::forbidden(detail),
        Error::ShutDown => Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).retry_after(TRY_AGAIN),
        Error::Store(error) => of_store(error),
        // Ends of jobs and outputs of the wrong type belong to Rust callers that wait; over HTTP they are data.
        _ => Problem::internal(),
    }
}

fn keys(code: &str, transient: bool, detail: String) -> Problem {
    match transient {
        true => Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).retry_after(TRY_AGAIN),
        false => Problem::new(StatusCode::CONFLICT, code, detail),
    }
}

/// Store errors name hosts, files and statements: callers get the code, the log gets the rest.
fn of_store(error: &store::Error) -> Problem {
    let unavailable =
        |detail: &str| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.code(), detail).retry_after(TRY_AGAIN);
    match error {
        store::Error::InvalidInput(bad) => of(&Error::InvalidInput(bad.clone())),
        store::Error::QuotaExceeded(over) => of(&Error::QuotaExceeded(over.clone())),
        store::Error::Unavailable(_) => unavailable("the store does not respond; nothing was written"),
        store::Error::Unknown(_) => {
            unavailable("the connection to the store was lost during the write; its outcome is unknown")
        }
        store::Error::Refused(_) => unavailable("the store refuses to work until an operator fixes it"),
        store::Error::Full(_) => {
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, error.code(), "the store is full; nothing was written")
        }
        _ => Problem::internal(),
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let problem = of(&error);
        if problem.status >= 500 {
            tracing::error!(code = error.code(), error = &error as &dyn std::error::Error, "a request failed: {error}");
        }
        problem
    }
}

impl From<InvalidInput> for Problem {
    fn from(error: InvalidInput) -> Self {
        of(&Error::InvalidInput(error))
    }
}

impl From<store::Error> for Problem {
    fn from(error: store::Error) -> Self {
        Error::from(error).into()
    }
}

fn title(code: &str) -> String {
    let mut words = code.replace('_', " ");
    if let Some(first) = words.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    words
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).expect("a problem is plain data");
        let mut response = (self.status_code(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.div_ceil(1_000).max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED.as_u16() {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"windlass\""));
        }
        response.extensions_mut().insert(Unfinished(Box::new(self)));
        response
    }
}

/// A problem that does not know its request yet.
#[derive(Clone)]
struct Unfinished(Box<Problem>);

/// The id of a request, taken over from the caller or made.
#[derive(Clone, Debug)]
pub(crate) struct RequestId {
    pub(crate) id: String,
    /// Whether the caller named it.
    pub(crate) given: bool,
}

/// Names each request, and tells each problem which request it belongs to.
pub(crate) async fn complete(mut request: Request, next: Next) -> Response {
    let given = request.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    let given = given.filter(|id| is_request_id(id)).map(str::to_owned);
    let is_given = given.is_some();
    let id = given.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let path = request.uri().path().to_owned();
    request.extensions_mut().insert(RequestId { id: id.clone(), given: is_given });
    let mut response = next.run(request).await;
    if let Some(Unfinished(mut problem)) = response.extensions_mut().remove::<Unfinished>() {
        problem.instance = Some(path);
        problem.request_id = Some(id.clone());
        let body = serde_json::to_vec(&problem).expect("a problem is plain data");
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = body.into();
    }
    let id = HeaderValue::from_str(&id).expect("only plain characters are taken over");
    response.headers_mut().insert("x-request-id", id);
    response
}

/// Request ids end up in logs and in jobs: short and plain, or not taken over.
fn is_request_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
}

#[cfg(test)]
mod tests {
    use windlass_core::{BadItem, BatchId, QuotaExceeded, Status, TenantId};

    use super::*;

    /// API-1: each code of the service has its status, and nothing of the store leaks.
    #[test]
    fn each_error_of_the_service_has_its_status() {
        let job = JobId::from_i64(7);
        let bad = InvalidInput::new("input", "too long");
        let over = QuotaExceeded::new(TenantId::ROOT, QuotaKind::Queued, 5, 0, None);
        let secret = || "password=hunter2".to_owned();
        let cases = [
            (Error::InvalidInput(bad.clone()), 422, "invalid_input"),
            (Error::InvalidBatch(vec![BadItem { index: 3, error: bad }]), 422, "invalid_input"),
            (Error::HandlerNotFound("x".into()), 404, "handler_not_found"),
            (Error::HandlerUnknown { handler: "x".into(), live: vec![] }, 404, "handler_not_found"),
            (Error::NotFound(job), 404, "job_not_found"),
            (Error::ScheduleNotFound("x".into()), 404, "schedule_not_found"),
            (Error::BatchNotFound(BatchId(JobId::from_i64(7))), 404, "batch_not_found"),
            (Error::BatchSealed(BatchId(JobId::from_i64(7))), 409, "batch_sealed"),
            (Error::ScheduleChanged { name: "x".into(), version: 2 }, 409, "schedule_changed"),
            (Error::AlreadyFinished { job, status: Status::Succeeded }, 409, "already_finished"),
            (Error::Conflict { job, message: "it runs".into() }, 409, "conflict"),
            (Error::LeaseLost(job), 409, "lease_lost"),
            (Error::Backpressure("the channel"), 429, "backpressure"),
            (Error::QuotaExceeded(over), 429, "quota_exceeded"),
            (Error::Timeout("job 7".into()), 504, "job_timeout"),
            (Error::Forbidden("pausing all".into()), 403, "forbidden"),
            (Error::ShutDown, 503, "shut_down"),
            (Error::Store(store::Error::Unavailable(secret())), 503, "unavailable"),
            (Error::Store(store::Error::Unknown(secret())), 503, "unknown_outcome"),
            (Error::Store(store::Error::Refused(secret())), 503, "refused"),
            (Error::Store(store::Error::Full(secret())), 507, "storage_full"),
            (Error::Store(store::Error::Internal(secret())), 500, "internal_error"),
        ];
        for (error, status, code) in cases {
            let problem = of(&error);
            assert_eq!((problem.status, problem.code.as_str()), (status, code), "{error}");
            let text = serde_json::to_string(&problem).expect("serializes");
            assert!(!text.contains("hunter2"), "{text}");
            assert_eq!(problem.retry_after_ms.is_some(), [429, 503].contains(&status), "{error}");
        }
    }

    #[test]
    fn only_plain_request_ids_are_taken_over() {
        assert!(is_request_id("req-1.a:B_2"));
        for bad in ["", "with space", "new\nline", "ü", &"x".repeat(129)] {
            assert!(!is_request_id(bad), "{bad:?}");
        }
    }
}
