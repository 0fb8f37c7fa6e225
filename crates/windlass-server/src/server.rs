//! Listens, accepts connections within bounds, and ends in good order. Called by `windlass serve`, `windlass up` and
//! tests; what a request means is the router's.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use windlass_core::JobService;

use crate::config::{Auth, Config};
use crate::{App, Error, routes};

/// A server that listens and is ready to run.
pub struct Server {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on the configured address. Refuses addresses beyond loopback unless authentication is required.
    pub async fn bind(service: JobService, config: Config) -> Result<Server, Error> {
        config.check()?;
        let listen = config.listen;
        let listener = TcpListener::bind(listen).await.map_err(|source| Error::Listen { address: listen, source })?;
        let address = listener.local_addr().map_err(|source| Error::Listen { address: listen, source })?;
        Ok(Server { app: App::new(service, config)?, listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A link that logs the built-in administrator in, once; each call makes a new one. None unless the server lets in
    /// who is on this machine.
    pub fn login_link(&self) -> Option<String> {
        let base = &self.app.config.base_path;
        let link = || format!("http://{}{base}/login/{}", self.address, self.app.sessions.new_link());
        (self.app.config.auth == Auth::Local).then(link)
    }

    /// Serves until `shutdown` is over; then ends streams, lets requests under way finish within the configured time,
    /// and returns. The service goes on.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let connections = Connections {
            router: routes::router(&self.app),
            room: Arc::new(Semaphore::new(self.app.config.limits.connections)),
            ending: self.app.ending.clone(),
            tasks: TaskTracker::new(),
            app: self.app,
        };
        tokio::select! {
            () = connections.accept(&self.listener) => {}
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
                    let serving = serve(self.app.clone(), self.router.clone(), stream, peer);
                    self.tasks.spawn(async move {
                        serving.await;
                        drop(room);
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
        let drained = tokio::time::timeout(self.app.config.limits.drain, self.tasks.wait()).await;
        if drained.is_err() {
            tracing::warn!("{} connections were cut off when the server ended", self.tasks.len());
        }
    }
}

/// The pause after a failed accept.
const ACCEPT_AGAIN: std::time::Duration = std::time::Duration::from_millis(50);

/// What hyper reads of a head before it gives up: more than the router accepts, so that the router can say why not.
const HEAD_BYTES: usize = 64 * 1024;

async fn serve(app: App, router: Router, stream: TcpStream, peer: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request.map(Body::new))
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // Who sends a head byte by byte is cut off (S20).
        .header_read_timeout(app.config.limits.header_timeout)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = app.ending.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
