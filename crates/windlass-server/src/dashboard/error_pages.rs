//! Problems as pages: what the API answers as JSON, people get as a page they can read. Two layers of the router call
//! this; it changes no answer but those.

use axum::body::to_bytes;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::pages;
use super::request::{PageRequest, bare_shell};
use super::views::problem;
use crate::App;
use crate::problem::RequestId;

/// Dresses the problems of a page whose asker is known.
pub(crate) async fn dressed(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let page = PageRequest::from_request_parts(&mut parts, &app).await;
    let (id, back) = (request_id(&parts.extensions), referrer(&parts.headers));
    let answer = next.run(Request::from_parts(parts, body)).await;
    let (true, Ok(page)) = (is_problem(&answer), page) else { return answer };
    let (status, message) = read(answer).await;
    // A page that cannot say what is paused still says what went wrong.
    let pauses = page.pauses().await.unwrap_or_default();
    let back = back.filter(|back| page.urls.is_own(back));
    let problem = problem::Problem { status: status.as_u16(), message, request: id, back };
    (status, problem::page(&page.shell(&pauses), &problem)).into_response()
}

/// Dresses what goes wrong before a page knows its asker, for browsers: addresses that do not exist, rights that are
/// missing, a login that fails. Other callers get the problem as it is.
pub(crate) async fn for_people(State(app): State<App>, request: Request, next: Next) -> Response {
    let api = format!("{}{}", app.config.base_path, crate::routes::API);
    let path = request.uri().path().to_owned();
    let wants_page = app.config.dashboard && accepts_html(request.headers()) && !path.starts_with(&api);
    let (headers, id) = (request.headers().clone(), request_id(request.extensions()));
    let login = format!("{}/login", app.config.base_path);
    let is_login = request.method() == Method::POST && path == login;
    let is_link = request.method() == Method::GET && path.starts_with(&format!("{login}/"));
    let answer = next.run(request).await;
    if !wants_page || !is_problem(&answer) {
        return answer;
    }
    let (status, message) = read(answer).await;
    if is_login || is_link {
        let message = if status == StatusCode::UNAUTHORIZED { "This key is not valid.".to_owned() } else { message };
        return (status, pages::login_page(&app, &headers, Some(message))).into_response();
    }
    let shell = bare_shell(&app, &headers);
    let problem = problem::Problem { status: status.as_u16(), message, request: id, back: None };
    (status, problem::bare(&shell, &problem)).into_response()
}

fn accepts_html(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

fn request_id(extensions: &axum::http::Extensions) -> Option<String> {
    extensions.get::<RequestId>().map(|id| id.id.clone())
}

/// Where the user came from, without its host. Our pages send none; a proxy may.
fn referrer(headers: &HeaderMap) -> Option<String> {
    let referrer = headers.get(header::REFERER)?.to_str().ok()?;
    let (_, rest) = referrer.split_once("://")?;
    rest.find('/').map(|start| rest[start..].to_owned())
}

fn is_problem(answer: &Response) -> bool {
    answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json")
}

/// The largest problem that is read back; ours are far smaller.
const PROBLEM_BYTES: usize = 256 * 1024;

/// What a problem says. The answer is made anew, so that nothing completes the old one.
async fn read(answer: Response) -> (StatusCode, String) {
    let status = answer.status();
    let body = to_bytes(answer.into_body(), PROBLEM_BYTES).await.unwrap_or_default();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let detail = body["detail"].as_str().unwrap_or("the server could not do this");
    let mut message = detail.to_owned();
    if let Some(first) = message.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    if !message.ends_with('.') {
        message.push('.');
    }
    (status, message)
}
