//! Traces: the span of an attempt, and the headers of W3C Trace Context that tie it to whoever submitted the job, in
//! any process. Called when a job is prepared, begun and ended. Costs nothing where nobody listens; without the feature
//! `otel`, the headers that callers set still travel.

use std::collections::BTreeMap;

use tracing::Span;

use crate::model::job::{ClaimedJob, Status};
use crate::store::Transition;

/// The headers of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The span in which an attempt runs. Its fields are those that logs are searched by.
pub(crate) fn span_of(job: &ClaimedJob) -> Span {
    let span = tracing::info_span!(
        target: "windlass",
        "job.execute",
        job_id = %job.id,
        handler_id = job.handler.as_str(),
        attempt = job.attempt(),
        correlation_id = job.correlation_id.as_deref(),
        tenant_id = %job.tenant,
        status = tracing::field::Empty,
    );
    #[cfg(feature = "otel")]
    otel::follow(&span, &job.spec.headers);
    span
}

/// Takes note of how an attempt ended.
pub(crate) fn record_end(span: &Span, status: Status, failed: bool) {
    if span.is_disabled() {
        return;
    }
    span.record("status", status.as_str());
    span.in_scope(|| tracing::debug!(target: "windlass", status = status.as_str(), "the attempt has ended"));
    #[cfg(feature = "otel")]
    otel::record_end(span, failed);
    #[cfg(not(feature = "otel"))]
    let _ = failed;
}

/// The status that a transition leads to, and whether the attempt has failed.
pub(crate) fn end_of(transition: &Transition) -> (Status, bool) {
    match transition {
        Transition::Succeed { .. } => (Status::Succeeded, false),
        Transition::Retry { .. } => (Status::Retrying, true),
        Transition::DeadLetter { .. } => (Status::DeadLettered, true),
        Transition::Cancel { .. } => (Status::Canceled, false),
        Transition::Snooze { .. } => (Status::Scheduled, false),
        Transition::Park { .. } => (Status::Blocked, false),
        Transition::Release | Transition::Route { .. } => (Status::Pending, false),
    }
}

/// Gives a new job the trace of the span that submits it, unless its caller has said otherwise.
pub(crate) fn carry(headers: &mut BTreeMap<String, String>) {
    #[cfg(feature = "otel")]
    otel::carry(headers);
    #[cfg(not(feature = "otel"))]
    let _ = headers;
}

/// The headers that make a job part of the trace of the one it follows.
pub(crate) fn inherited(headers: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let of_trace = headers.iter().filter(|(name, _)| [TRACEPARENT, TRACESTATE].contains(&name.as_str()));
    of_trace.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(feature = "otel")]
mod otel {
    use super::*;
    use opentelemetry::Context;
    use opentelemetry::trace::{
        SpanContext, SpanId, Status as SpanStatus, TraceContextExt, TraceFlags, TraceId, TraceState,
    };
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    /// Makes the submitter's span the parent of an attempt's.
    pub(super) fn follow(span: &Span, headers: &BTreeMap<String, String>) {
        if span.is_disabled() {
            return;
        }
        let Some(parent) = headers.get(TRACEPARENT).and_then(|text| parse(text, headers.get(TRACESTATE))) else {
            return;
        };
        // Refused only where no layer of OpenTelemetry is installed: then there is no trace to be part of.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }

    pub(super) fn record_end(span: &Span, failed: bool) {
        if failed {
            // What went wrong is the tenant's; the trace says only that something did.
            span.set_status(SpanStatus::error("the attempt failed"));
        }
    }

    pub(super) fn carry(headers: &mut BTreeMap<String, String>) {
        if headers.contains_key(TRACEPARENT) {
            return;
        }
        let Some(own) = current() else { return };
        headers.insert(TRACEPARENT.to_owned(), print(&own));
        let state = own.trace_state().header();
        if !state.is_empty() {
            headers.insert(TRACESTATE.to_owned(), state);
        }
    }

    /// The span that is current, for `tracing` or for OpenTelemetry itself.
    fn current() -> Option<SpanContext> {
        let span = Span::current();
        let traced = if span.is_disabled() { None } else { Some(span.context().span().span_context().clone()) };
        traced
            .filter(SpanContext::is_valid)
            .or_else(|| Some(Context::current().span().span_context().clone()).filter(SpanContext::is_valid))
    }

    /// `00-<trace>-<span>-<flags>`.
    pub(super) fn print(context: &SpanContext) -> String {
        let trace = u128::from_be_bytes(context.trace_id().to_bytes());
        let span = u64::from_be_bytes(context.span_id().to_bytes());
        format!("00-{trace:032x}-{span:016x}-{:02x}", context.trace_flags().to_u8())
    }

    /// Reads what `print` or anyone else has written; nothing where it is not a trace.
    pub(super) fn parse(text: &str, state: Option<&String>) -> Option<SpanContext> {
        let mut parts = text.trim().split('-');
        let mut part = |length: usize| {
            let part = parts.next()?;
            let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            (part.len() == length && part.chars().all(is_hex)).then_some(part)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // Versions to come may say more; the first one must not.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let trace = TraceId::from_hex(trace).ok()?;
        let span = SpanId::from_hex(span).ok()?;
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & 1);
        let state = state.and_then(|state| state.parse().ok()).unwrap_or(TraceState::NONE);
        let context = SpanContext::new(trace, span, flags, true, state);
        context.is_valid().then_some(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follow_up_inherits_the_trace_and_nothing_else() {
        let headers = [("traceparent", "t"), ("tracestate", "s"), ("x-secret", "1")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(inherited(&headers).into_keys().collect::<Vec<_>>(), ["traceparent", "tracestate"]);
    }

    #[cfg(feature = "otel")]
    #[test]
    fn only_a_valid_trace_parent_is_followed() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let read = otel::parse(good, None).expect("valid");
        assert!(read.is_remote() && read.is_sampled());
        assert_eq!(otel::print(&read), good);
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more";
        assert!(otel::parse(later, None).is_some_and(|later| !later.is_sampled()));
        let bad = [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c8031éc-b7ad6b7169203331-01",
        ];
        for text in bad {
            assert!(otel::parse(text, None).is_none(), "{text}");
        }
    }
}
