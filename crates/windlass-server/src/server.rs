//! Listens, accepts connections within bounds, and shuts down in order. Called by `windlass serve`, `windlass up` and
//! tests; what a request means is the router's.

use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use windlass_core::JobService;

use crate::config::{Auth, Config};
use crate::unstuck::Unstuck;
use crate::{App, Error, routes};

/// A server that listens and is ready to run.
pub struct Server {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on the configured address. Fails for addresses beyond loopback unless authentication is required.
    pub async fn bind(service: JobService, config: Config) -> Result<Server, Error> {
        config.check()?;
        let listen = config.listen;
        let listener = TcpListener::bind(listen).await.map_err(|source| Error::Listen { address: listen, source })?;
        let address = listener.local_addr().map_err(|source| Error::Listen { address: listen, source })?;
        Ok(Server { app: App::new(service, config)?, listener, address })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Creates a link that logs the built-in administrator in once; each call creates a new one. `None` unless the
    /// server accepts local logins.
    pub fn login_link(&self) -> Option<String> {
        let base = &self.app.config.base_path;
        let link = || format!("http://{}{base}/login/{}", self.address, self.app.sessions.new_link());
        (self.app.config.auth == Auth::Local).then(link)
    }

    /// Serves until `shutdown` completes; then ends streams, lets requests in progress finish within the configured
    /// time, and returns. The service continues.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let connections = Connections {
            router: routes::router(&self.app),
            room: Arc::new(Semaphore::new(self.app.config.limits.connections)),
            ending: self.app.ending.clone(),
            tasks: TaskTracker::new(),
            app: self.app,
        };
        let supervisor = connections.app.service.supervisor();
        tokio::select! {
            () = supervisor.run("accept", || connections.accept(&self.listener)) => {}
            () = shutdown => {}
        }
        drop(self.listener);
        connections.end().await;
    }
}

struct Connections {
    app: App,
    router: Router,
    room: Arc<Semaphore>,
    ending: CancellationToken,
    tasks: TaskTracker,
}

impl Connections {
    async fn accept(&self, listener: &TcpListener) {
        loop {
            let room = self.room.clone().acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let supervisor = self.app.service.supervisor().clone();
                    let serving = serve(self.app.clone(), self.router.clone(), stream, peer);
                    self.tasks.spawn(async move {
                        let _room = room;
                        // Of what is outside of routes: their own panics do not come this far.
                        if let Err(panic) = AssertUnwindSafe(serving).catch_unwind().await {
                            supervisor.note_panic("request", &*panic);
                        }
                    });
                }
                // Out of file descriptors, or a connection that was gone at once: waiting a little frees some.
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn end(self) {
        self.ending.cancel();
        self.tasks.close();
        self.app.tasks.close();
        // Also what callers that have gone away asked for.
        let all = futures_util::future::join(self.tasks.wait(), self.app.tasks.wait());
        let drained = tokio::time::timeout(self.app.config.limits.drain, all).await;
        if drained.is_err() {
            tracing::warn!("closed {} connections that were still open at the end of the server", self.tasks.len());
        }
    }
}

/// The pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What hyper reads of a head before it gives up: more than the router accepts, so that the router can say why not.
const HEAD_BYTES: usize = 64 * 1024;

/// When the first probe of a silent client is sent, the interval of probes, and how many may fail: a client that
/// disappears silently loses its connection, and the place of its stream, after about a minute.
const ASK_AFTER: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(10);
const ASK_TIMES: u32 = 3;

/// Makes the system close a connection whose client does not acknowledge data for this long, or does not answer probes.
fn notice_silence(stream: &TcpStream, unacknowledged: Duration) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_EVERY).with_retries(ASK_TIMES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(unacknowledged))?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = unacknowledged;
    Ok(())
}

async fn serve(app: App, router: Router, stream: TcpStream, peer: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let _ = notice_silence(&stream, app.config.limits.write_timeout);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request.map(Body::new))
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // Who sends a head byte by byte is cut off (S20).
        .header_read_timeout(app.config.limits.header_timeout)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(Unstuck::new(stream, app.config.limits.write_timeout)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = app.ending.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use windlass_core::MemoryStore;

    use super::*;

    /// SEC-3: what is sent to a client that has vanished is not kept for as long as the system would try.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_connection_is_given_up_when_its_client_is_silent() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let stream = accepted.expect("a connection").0;
        notice_silence(&stream, Duration::from_secs(30)).expect("options that the system knows");
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_user_timeout().ok(), Some(Some(Duration::from_secs(30))));
        assert!(socket.keepalive().is_ok_and(|on| on));
        assert_eq!(socket.tcp_keepalive_time().ok(), Some(ASK_AFTER));
        assert_eq!(socket.tcp_keepalive_interval().ok(), Some(ASK_EVERY));
        assert_eq!(socket.tcp_keepalive_retries().ok(), Some(ASK_TIMES));
    }

    /// API-8: a panic that ends a connection is counted too, and others are served.
    #[tokio::test]
    async fn a_panic_outside_of_a_route_is_counted() {
        let service = JobService::builder(Arc::new(MemoryStore::new())).start().await.expect("starts");
        let app = App::new(service.clone(), Config::listen(([127, 0, 0, 1], 0).into())).expect("a good configuration");
        let panics = async || -> &'static str { panic!("as the test wants") };
        let connections = Connections {
            router: Router::new().route("/boom", get(panics)).route("/fine", get(async || "fine")),
            room: Arc::new(Semaphore::new(1)),
            ending: app.ending.clone(),
            tasks: TaskTracker::new(),
            app,
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let ask = async |path: &str| {
            let mut connection = TcpStream::connect(address).await.expect("it listens");
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            connection.write_all(request.as_bytes()).await.expect("it reads");
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await.map(|_| answer).unwrap_or_default()
        };
        let asked = async {
            assert_eq!(ask("/boom").await, "", "there is nobody left to answer");
            assert!(ask("/fine").await.ends_with("fine"), "its room is free again");
        };
        tokio::select! {
            () = connections.accept(&listener) => {}
            () = asked => {}
        }
        let loops = service.loops();
        let counted = loops.iter().find(|of| of.name == "request").expect("it is counted");
        assert_eq!((counted.panics, counted.message.as_deref()), (1, Some("as the test wants")));
        service.shutdown().await;
    }
}
