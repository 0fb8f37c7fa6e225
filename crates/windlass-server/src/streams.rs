//! Event streams: how many there may be at once, and how they end. Used by the routes that answer with server-sent
//! events; what an event says is theirs.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, StreamExt};
use parking_lot::Mutex;

use crate::App;
use crate::auth::Principal;
use crate::config::HttpLimits;
use crate::problem::Problem;

/// The streams that are open.
pub(crate) struct Streams {
    open: Arc<Mutex<Open>>,
    most: usize,
    most_each: usize,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_principal: HashMap<String, usize>,
}

/// One open stream; gives its place back when it goes.
pub(crate) struct Place {
    open: Arc<Mutex<Open>>,
    who: String,
}

impl Streams {
    pub(crate) fn new(limits: &HttpLimits) -> Self {
        Streams { open: Arc::default(), most: limits.streams, most_each: limits.streams_per_principal }
    }

    /// Takes a place for one more stream.
    pub(crate) fn enter(&self, principal: &Principal) -> Result<Place, Problem> {
        let who = format!(
            "{} {} {} {}",
            principal.tenant,
            principal.method.as_str(),
            principal.key.as_deref().unwrap_or(""),
            principal.user
        );
        let mut open = self.open.lock();
        let own = open.by_principal.get(&who).copied().unwrap_or(0);
        if open.all >= self.most || own >= self.most_each {
            let whose = if own >= self.most_each { "the caller" } else { "this server" };
            let detail = format!("{whose} has as many event streams open as it may");
            return Err(Problem::slow_down("backpressure", detail, RETRY));
        }
        open.all += 1;
        *open.by_principal.entry(who.clone()).or_insert(0) += 1;
        Ok(Place { open: self.open.clone(), who })
    }

    /// Streams that are open now.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.open.lock().all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let Some(own) = open.by_principal.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                open.by_principal.remove(&self.who);
            }
        }
    }
}

/// When a client that lost its stream, or found no place, comes back.
const RETRY: Duration = Duration::from_secs(2);

/// How often a quiet stream shows that it is alive: below the idle timeouts of common proxies (30 to 60 seconds).
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Answers with `events` until they end, the client goes or the server ends.
pub(crate) fn respond(app: &App, place: Place, events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let first = futures_util::stream::iter([Event::default().retry(RETRY).comment("windlass")]);
    let ending = app.ending.clone();
    let events = first.chain(events.take_until(ending.cancelled_owned())).map(move |event| {
        // The place lives as long as the stream.
        let _ = &place;
        Ok::<_, Infallible>(event)
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Proxies that buffer would hold events back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use windlass_core::{Rights, TenantId};

    use super::*;
    use crate::auth::AuthMethod;

    fn principal(user: &str) -> Principal {
        Principal {
            tenant: TenantId::ROOT,
            all_tenants: false,
            user: user.to_owned(),
            rights: Rights::default(),
            method: AuthMethod::Key,
            key: None,
        }
    }

    /// S07: the bounds of streams, each at its edge.
    #[test]
    fn streams_are_bounded_in_all_and_for_each_principal() {
        let limits = HttpLimits { streams: 3, streams_per_principal: 2, ..HttpLimits::default() };
        let streams = Streams::new(&limits);
        let (a, b) = (principal("a"), principal("b"));
        let first = streams.enter(&a).expect("room");
        let _second = streams.enter(&a).expect("room");
        assert_eq!(streams.enter(&a).err().map(|p| p.status), Some(429));
        let _third = streams.enter(&b).expect("room");
        assert_eq!(streams.enter(&b).err().map(|p| p.status), Some(429), "the server is full");
        drop(first);
        assert_eq!(streams.count(), 2);
        assert!(streams.enter(&a).is_ok());
    }
}
