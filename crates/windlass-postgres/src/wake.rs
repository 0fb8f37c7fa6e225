//! Wake-ups between processes: NOTIFY, coalesced and never inside anyone's transaction, and a connection that listens.
//! All of it is a hint; with listening switched off everything still works, a poll later.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Config, NoTls};

use crate::connect::{Access, Pool};

/// The most often a process notifies: each one takes a lock that serializes commits in the whole server.
const NOTIFY_EVERY: Duration = Duration::from_millis(5);
/// How often the listening connection is checked, and how long it may take to answer.
const CHECK_EVERY: Duration = Duration::from_secs(10);
const CHECK_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before listening again after a failure.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Both directions of wake-ups.
pub(crate) struct Wake {
    outgoing: Arc<Notify>,
    incoming: Arc<Notify>,
}

impl Wake {
    /// Starts the background tasks on the store's own runtime; they end with it.
    pub(crate) fn start(runtime: &Handle, pool: Pool, config: Config, listen: bool) -> Self {
        let wake = Wake { outgoing: Arc::default(), incoming: Arc::default() };
        if listen {
            runtime.spawn(notify(pool, wake.outgoing.clone()));
            runtime.spawn(listen_for_ever(config, wake.incoming.clone()));
        }
        wake
    }

    /// Tells other processes soon.
    pub(crate) fn wake_others(&self) {
        self.outgoing.notify_one();
    }

    /// Tells other processes, and whoever waits in this one.
    pub(crate) fn wake_all(&self) {
        self.wake_others();
        woken(&self.incoming);
    }

    pub(crate) async fn wait(&self) {
        self.incoming.notified().await;
    }
}

/// Wakes all who wait, and the next who comes: a wake-up between two waits must not be lost.
fn woken(incoming: &Notify) {
    incoming.notify_waiters();
    incoming.notify_one();
}

async fn notify(pool: Pool, outgoing: Arc<Notify>) {
    loop {
        outgoing.notified().await;
        if let Err(error) = pool.query(Access::Read, "select pg_notify('windlass_wake', '')", &[]).await {
            tracing::debug!(%error, "other processes were not woken; they will poll");
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
        tokio::time::sleep(NOTIFY_EVERY).await;
    }
}

async fn listen_for_ever(config: Config, incoming: Arc<Notify>) {
    loop {
        if let Err(error) = listen(&config, &incoming).await {
            tracing::debug!(%error, "not listening for wake-ups; polling meanwhile");
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// Listens until the connection fails.
async fn listen(config: &Config, incoming: &Arc<Notify>) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = config.connect(NoTls).await?;
    let heard = incoming.clone();
    let driver = tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(_) = message {
                woken(&heard);
            }
        }
    });
    let _end = AbortOnDrop(driver);
    client.batch_execute("listen windlass_wake").await?;
    // Something may have been said while nobody listened.
    woken(incoming);
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        match tokio::time::timeout(CHECK_PATIENCE, client.simple_query("select 1")).await {
            Ok(answer) => drop(answer?),
            // A connection that died silently: start anew.
            Err(_) => return Ok(()),
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
