//! What the answer of another service means for a job. Pure. Used by every handler that speaks HTTP.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use windlass_core::{InvalidInput, JobError, Reason};

use crate::egress::Blocked;

/// The longest that a service may put a job off: a day, as for webhooks.
pub(crate) const PUT_OFF_MAX: Duration = Duration::from_secs(24 * 3600);

/// What to do after a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It worked.
    Done,
    /// The same request may work later.
    Later,
    /// The same request will not work.
    Never,
}

/// Success by class. What says "not now" is worth another attempt; any other refusal is about the request itself. A
/// redirect is a refusal: whoever may follow one has done so before.
pub(crate) fn meaning(status: StatusCode) -> Meaning {
    match status.as_u16() {
        200..=299 => Meaning::Done,
        // Request timeout, too early, too many requests.
        408 | 425 | 429 => Meaning::Later,
        // Not implemented, version not supported, loop detected, not extended: the server will not learn it by tomorrow.
        501 | 505 | 508 | 510 => Meaning::Never,
        500..=599 => Meaning::Later,
        _ => Meaning::Never,
    }
}

/// The error of a request that was refused.
pub(crate) fn refusal(who: &str, status: StatusCode, put_off: Option<Duration>) -> JobError {
    let error = JobError::new(format!("http_{}", status.as_u16()), format!("{who} returned {status}"));
    match (meaning(status), put_off) {
        (Meaning::Later, Some(after)) => error.retry_after(after),
        (Meaning::Later, None) => error,
        _ => error.with_retryable(false),
    }
}

/// The error of a request that got no answer. Says nothing of the address, which may hold a secret.
pub(crate) fn no_answer(who: &str, error: &reqwest::Error) -> JobError {
    if let Some(blocked) = Blocked::among(error) {
        return JobError::terminal("address_blocked", blocked);
    }
    let what = if error.is_timeout() { "did not respond in time" } else { "could not be reached" };
    JobError::new("unreachable", format!("{who} {what}"))
}

/// An address that is not allowed, without the address.
pub(crate) fn bad_address(field: &str, blocked: &Blocked) -> InvalidInput {
    match blocked {
        Blocked::NotAnAddress(_) => {
            InvalidInput::new(field, "it is not a usable address; write it like https://host/path")
        }
        blocked => InvalidInput::new(field, blocked.to_string()),
    }
}

/// Bad input fails for good: no retry makes it better.
pub(crate) fn invalid(error: InvalidInput) -> JobError {
    JobError::of(Reason::Validation, error)
}

/// `Retry-After` of a response, in seconds or as a date, within bounds.
pub(crate) fn put_off(response: &reqwest::Response) -> Option<Duration> {
    let text = response.headers().get(reqwest::header::RETRY_AFTER)?.to_str().ok()?;
    retry_after(text, SystemTime::now())
}

fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let seconds = text.parse().ok().map(Duration::from_secs);
    let until = || httpdate::parse_http_date(text).ok().map(|at| at.duration_since(now).unwrap_or_default());
    seconds.or_else(until).map(|after| after.min(PUT_OFF_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HND-2: retry by status class.
    #[test]
    fn statuses_are_told_apart() {
        let of = |status| meaning(StatusCode::from_u16(status).expect("a status"));
        for status in [200, 201, 202, 204, 206] {
            assert_eq!(of(status), Meaning::Done, "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504, 507, 599] {
            assert_eq!(of(status), Meaning::Later, "{status}");
        }
        for status in [301, 302, 304, 307, 400, 401, 403, 404, 409, 410, 413, 422, 501, 505] {
            assert_eq!(of(status), Meaning::Never, "{status}");
        }
    }

    /// HND-2: `Retry-After` in both of its forms, and what is none.
    #[test]
    fn retry_after_is_read_and_bounded() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").expect("a date");
        let after = |text: &str| retry_after(text, now);
        assert_eq!(after(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(after("Wed, 21 Oct 2026 07:29:00 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(after("Wed, 21 Oct 2020 07:29:00 GMT"), Some(Duration::ZERO), "long past");
        assert_eq!(after("99999999999"), Some(PUT_OFF_MAX));
        assert_eq!(after("Wed, 21 Oct 2099 07:29:00 GMT"), Some(PUT_OFF_MAX));
        for none in ["", "-1", "soon", "1.5", "99999999999999999999999999"] {
            assert_eq!(after(none), None, "{none}");
        }
    }

    #[test]
    fn a_refusal_that_passes_waits_as_long_as_it_is_told() {
        let wait = Some(Duration::from_secs(7));
        let busy = refusal("the server", StatusCode::SERVICE_UNAVAILABLE, wait);
        assert_eq!(busy.kind, windlass_core::ErrorKind::RetryAfter(Duration::from_secs(7)));
        let gone = refusal("the server", StatusCode::GONE, wait);
        assert_eq!((gone.code.as_str(), gone.is_retryable()), ("http_410", false));
    }
}
