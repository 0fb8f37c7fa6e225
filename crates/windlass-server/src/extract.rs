//! What a request carries, read with problems in place of axum's own texts: JSON bodies, queries and paths. Used by
//! every route; never looks at who asks.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use serde::de::DeserializeOwned;
use windlass_core::JobId;

use crate::problem::Problem;

/// A JSON body.
pub(crate) struct Json<T>(pub(crate) T);

/// A JSON body that may be left out.
pub(crate) struct MaybeJson<T>(pub(crate) T);

/// A query string.
pub(crate) struct Query<T>(pub(crate) T);

/// Parameters of a path.
pub(crate) struct Path<T>(pub(crate) T);

/// The job that a path names.
pub(crate) struct PathJob(pub(crate) JobId);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let body = body(request, state).await?;
        if !is_json {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "the body must be sent as `Content-Type: application/json`",
            ));
        }
        parse(&body).map(Json)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if request.headers().contains_key(header::CONTENT_TYPE) {
            let Json(value) = Json::from_request(request, state).await?;
            return Ok(MaybeJson(value));
        }
        match body(request, state).await? {
            body if body.is_empty() => Ok(MaybeJson(T::default())),
            body => parse(&body).map(MaybeJson),
        }
    }
}

/// All of a body, within the server's bound.
pub(crate) async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    Bytes::from_request(request, state).await.map_err(|rejection| match rejection {
        BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_)) => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is larger than the server accepts")
        }
        _ => Problem::malformed("cannot read the body"),
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Text that is no JSON is 400, JSON that does not fit is 422.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => Problem::invalid("body", error.to_string()),
        false => Problem::malformed(format!("the body is not JSON: {error}")),
    })
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = one_status(parts.uri.query().unwrap_or_default());
        let uri = Uri::try_from(format!("/?{query}")).map_err(|_| Problem::malformed("cannot read the query"))?;
        let query = axum::extract::Query::<T>::try_from_uri(&uri);
        let axum::extract::Query(value) = query.map_err(|error| Problem::malformed(error.body_text()))?;
        Ok(Query(value))
    }
}

/// Several `status=` as one with commas between them: both are usual, and mean the same.
fn one_status(query: &str) -> String {
    let (statuses, mut rest): (Vec<&str>, Vec<&str>) =
        query.split('&').filter(|pair| !pair.is_empty()).partition(|pair| pair.starts_with("status="));
    let values: Vec<&str> = statuses.iter().filter_map(|pair| pair.strip_prefix("status=")).collect();
    let joined = format!("status={}", values.join(","));
    if !values.is_empty() {
        rest.push(&joined);
    }
    rest.join("&")
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        let axum::extract::Path(value) = path.map_err(|error| Problem::malformed(error.body_text()))?;
        Ok(Path(value))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(id) = Path::<JobPath>::from_request_parts(parts, state).await?;
        // The number has to be written in its one way: what is stored under an id is asked for by that text.
        let plain = !id.id.is_empty() && id.id.len() <= 20 && id.id.bytes().all(|b| b.is_ascii_digit());
        match id.id.parse() {
            Ok(job) if plain => Ok(PathJob(job)),
            _ => Err(Problem::malformed("expected a job id, a decimal number")),
        }
    }
}

#[derive(serde::Deserialize)]
struct JobPath {
    id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_may_be_repeated() {
        assert_eq!(one_status(""), "");
        assert_eq!(one_status("limit=1&status=a"), "limit=1&status=a");
        assert_eq!(one_status("status=a&limit=1&status=b,c"), "limit=1&status=a,b,c");
    }
}
