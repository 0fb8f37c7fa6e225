//! Event streams: how many there may be at once, and how they end. Used by the routes that answer with server-sent
//! events; what an event says is theirs.

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, StreamExt};
use parking_lot::Mutex;
use windlass_core::Timestamp;

use crate::App;
use crate::auth::Principal;
use crate::config::HttpLimits;
use crate::places::{self, Places, one_less};
use crate::problem::Problem;

/// The streams that are open.
pub(crate) struct Streams {
    places: Places,
    by_principal: Arc<Mutex<HashMap<String, usize>>>,
    most_each: usize,
}

/// One open stream; gives its place back when it goes.
pub(crate) struct Place {
    _place: places::Place,
    by_principal: Arc<Mutex<HashMap<String, usize>>>,
    who: String,
}

impl Streams {
    pub(crate) fn new(limits: &HttpLimits) -> Self {
        let by_principal = Arc::default();
        Streams { places: Places::new(limits.streams), by_principal, most_each: limits.streams_per_principal }
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
        let mut by_principal = self.by_principal.lock();
        if by_principal.get(&who).is_some_and(|own| *own >= self.most_each) {
            return Err(full("the caller"));
        }
        let place = self.places.enter(principal.share()).ok_or_else(|| full("the tenant"))?;
        *by_principal.entry(who.clone()).or_insert(0) += 1;
        Ok(Place { _place: place, by_principal: self.by_principal.clone(), who })
    }

    /// Streams that are open now.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.places.count()
    }
}

fn full(whose: &str) -> Problem {
    let detail = format!("{whose} has the maximum number of event streams open");
    Problem::slow_down("backpressure", detail, RETRY)
}

impl Drop for Place {
    fn drop(&mut self) {
        one_less(&mut self.by_principal.lock(), &self.who);
    }
}

/// When a client that lost its stream, or found no place, comes back.
const RETRY: Duration = Duration::from_secs(2);

/// How often a quiet stream shows that it is alive: below the idle timeouts of common proxies (30 to 60 seconds).
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How often it is looked whether the caller of a stream may still have it. With what is remembered of a key or a session
/// (2 seconds), a stream ends well within 5 seconds of its being revoked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How long one such look may take. With the others, a stream ends within 5 seconds of the store's working again.
const CHECK_WITHIN: Duration = Duration::from_secs(2);

/// Over when what the caller has shown is worth nothing any more.
async fn outlived(app: App, principal: Principal) {
    tokio::select! {
        () = expired(&app, principal.expires_at) => {}
        () = revoked(&app, &principal) => {}
    }
}

/// Over when the time is. Needs no store: only its clock, as far as it is known here, which may be set right meanwhile.
async fn expired(app: &App, at: Option<Timestamp>) {
    let Some(at) = at else { return std::future::pending().await };
    while app.service.now() < at {
        tokio::time::sleep(at.since(app.service.now()).min(CHECK_EVERY)).await;
    }
}

/// Over when the key or the session is. A store that does not answer says nothing about that.
async fn revoked(app: &App, principal: &Principal) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        if matches!(tokio::time::timeout(CHECK_WITHIN, app.still_good(principal)).await, Ok(Ok(false))) {
            return;
        }
    }
}

/// Answers with `events` until they end, the client goes, what it has shown is revoked or expires, or the server ends.
pub(crate) fn respond(
    app: &App,
    place: Place,
    principal: &Principal,
    events: impl Stream<Item = Event> + Send + 'static,
) -> Response {
    let first = futures_util::stream::iter([Event::default().retry(RETRY).comment("windlass")]);
    let ending = app.ending.clone();
    let events = events.take_until(outlived(app.clone(), principal.clone()));
    let events = first.chain(events.take_until(ending.cancelled_owned()));
    let supervisor = app.service.supervisor().clone();
    // Its route has been answered for: nobody else would count a panic.
    let events = AssertUnwindSafe(events).catch_unwind().filter_map(move |event| {
        // The place lives as long as the stream.
        let _ = &place;
        let event = event.map_err(|panic| supervisor.note_panic("request", &*panic));
        std::future::ready(event.ok().map(Ok::<_, Infallible>))
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

    fn principal(tenant: u128, user: &str) -> Principal {
        Principal {
            tenant: TenantId(uuid::Uuid::from_u128(tenant)),
            all_tenants: tenant == 0,
            user: user.to_owned(),
            rights: Rights::default(),
            method: AuthMethod::Key,
            key: None,
            session: None,
            expires_at: None,
        }
    }

    /// S07: the bounds of streams, each at its edge.
    #[test]
    fn streams_are_bounded_in_all_and_for_each_principal() {
        let limits = HttpLimits { streams: 3, streams_per_principal: 2, ..HttpLimits::default() };
        let streams = Streams::new(&limits);
        let (a, b) = (principal(0, "a"), principal(0, "b"));
        let first = streams.enter(&a).expect("room");
        let _second = streams.enter(&a).expect("room");
        assert_eq!(streams.enter(&a).err().map(|p| p.status), Some(429));
        let _third = streams.enter(&b).expect("room");
        assert_eq!(streams.enter(&b).err().map(|p| p.status), Some(429), "the server is full");
        drop(first);
        assert_eq!(streams.count(), 2);
        assert!(streams.enter(&a).is_ok());
    }

    /// S07: a tenant that opens all the streams it can leaves room for other tenants, and for who operates all of them.
    #[test]
    fn a_tenant_has_a_share_of_the_streams_and_the_operator_a_reserve() {
        let limits = HttpLimits { streams: 20, streams_per_principal: 100, ..HttpLimits::default() };
        let streams = Streams::new(&limits);
        let fill = |who: &Principal| std::iter::from_fn(|| streams.enter(who).ok()).collect::<Vec<_>>();
        let (greedy, second, third) = (principal(1, "a"), principal(2, "b"), principal(3, "c"));
        let held: Vec<_> = [&greedy, &second, &third].map(fill).into();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [9, 4, 2]);
        let reserve = fill(&principal(0, "operator"));
        assert_eq!(reserve.len(), 5, "what is left, and the two that tenants cannot have");
    }

    /// API-8: a panic while events are made ends the stream and is counted.
    #[tokio::test]
    async fn a_stream_that_panics_ends_and_is_counted() {
        use std::sync::Arc;
        use windlass_core::{JobService, MemoryStore};
        let service = JobService::builder(Arc::new(MemoryStore::new())).start().await.expect("starts");
        let config = crate::Config::listen(([127, 0, 0, 1], 0).into());
        let app = App::new(service.clone(), config).expect("a good configuration");
        let caller = principal(0, "a");
        let place = app.streams.enter(&caller).expect("room");
        let events = futures_util::stream::iter(0..2).map(|n| match n {
            0 => Event::default().data("fine"),
            _ => panic!("as the test wants"),
        });
        let body = respond(&app, place, &caller, events).into_body();
        let text = axum::body::to_bytes(body, 10_000).await.expect("it ends cleanly");
        assert!(String::from_utf8_lossy(&text).ends_with("data: fine\n\n"), "{text:?}");
        let loops = service.loops();
        let counted = loops.iter().find(|of| of.name == "request").expect("it is counted");
        assert_eq!((counted.panics, counted.message.as_deref()), (1, Some("as the test wants")));
        assert_eq!(app.streams.count(), 0, "its place is free");
        service.shutdown().await;
    }
}
