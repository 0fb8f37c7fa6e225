//! Wake-ups between processes: NOTIFY, coalesced and never inside anyone's transaction, and a connection that listens.
//! All of it is a hint; with listening switched off everything still works, a poll later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use windlass_core::store::News;
use windlass_core::supervise::{LoopHealth, Supervisor};

use crate::ground::connect::{Access, Param, Pool};
use crate::ground::tls::Route;

/// The most often a process notifies: each one takes a lock that serializes commits in the whole server.
const NOTIFY_EVERY: Duration = Duration::from_millis(5);
/// How often the listening connection is checked, and how long it may take to answer. Meanwhile one that died silently costs
/// what a look at the store would have told anyway: a job starts within 0.8 s, not within milliseconds.
const CHECK_EVERY: Duration = Duration::from_secs(30);
const CHECK_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before listening again after a failure.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Both directions of wake-ups.
pub(crate) struct Wake {
    outgoing: Arc<Notify>,
    /// Whether the next notification says that jobs are ready elsewhere too.
    elsewhere: Arc<AtomicBool>,
    heard: Arc<Heard>,
    supervisor: Supervisor,
}

/// What is heard from others.
struct Heard {
    /// Marks what this process says, so that it does not wake itself: it knows what it has submitted.
    own: String,
    /// How many in this process wait to be told, and whether there ever was more than one: then what one of them says
    /// is news to the others.
    waiting: AtomicUsize,
    shared: AtomicBool,
    incoming: Notify,
    /// When it was last said that jobs are ready elsewhere too.
    elsewhere: Mutex<Option<Instant>>,
}

/// How long whoever wakes up still hears that jobs are ready elsewhere too: several may wait, and each comes to it in its
/// own time. Hearing it twice costs a look at a few more queues.
const ELSEWHERE_FOR: Duration = Duration::from_millis(100);

/// What is said after the mark of the speaker when jobs are ready elsewhere too.
const ELSEWHERE: &str = " elsewhere";

impl Heard {
    /// Wakes all who wait, and the next who comes: a wake-up between two waits must not be lost.
    fn woken(&self) {
        self.incoming.notify_waiters();
        self.incoming.notify_one();
    }

    fn said(&self, words: &str) {
        let (by, elsewhere) = words.strip_suffix(ELSEWHERE).map_or((words, false), |by| (by, true));
        if elsewhere {
            *self.elsewhere.lock() = Some(Instant::now());
        }
        if by != self.own || self.shared.load(Ordering::Acquire) {
            self.woken();
        }
    }
}

impl Wake {
    /// Starts the background tasks on the store's own runtime; they end with it.
    pub(crate) fn start(runtime: &Handle, pool: Pool, route: Route, listen: bool) -> Self {
        let own = uuid::Uuid::new_v4().to_string();
        let heard = Heard {
            own,
            waiting: AtomicUsize::new(0),
            shared: AtomicBool::new(false),
            incoming: Notify::new(),
            elsewhere: Mutex::default(),
        };
        let (outgoing, elsewhere, supervisor) = (Arc::default(), Arc::default(), Supervisor::default());
        let wake = Wake { outgoing, elsewhere, heard: Arc::new(heard), supervisor };
        if listen {
            let (outgoing, elsewhere) = (wake.outgoing.clone(), wake.elsewhere.clone());
            let own = wake.heard.own.clone();
            let tell = move || notify(pool.clone(), outgoing.clone(), elsewhere.clone(), own.clone());
            wake.supervisor.spawn(runtime, "notify", tell);
            let heard = wake.heard.clone();
            wake.supervisor.spawn(runtime, "listen", move || listen_for_ever(route.clone(), heard.clone()));
        }
        wake
    }

    /// How the loops are that tell and listen.
    pub(crate) fn loops(&self) -> Vec<LoopHealth> {
        self.supervisor.loops()
    }

    /// Tells other processes soon.
    pub(crate) fn wake_others(&self, news: News) {
        if news == News::ReadyElsewhere {
            self.elsewhere.store(true, Ordering::Release);
        }
        self.outgoing.notify_one();
    }

    /// Tells other processes, and whoever waits in this one.
    pub(crate) fn wake_all(&self) {
        self.wake_others(News::Ready);
        self.heard.woken();
    }

    pub(crate) async fn wait(&self) -> News {
        let _one_more = Waiting::new(&self.heard);
        self.heard.incoming.notified().await;
        match *self.heard.elsewhere.lock() {
            Some(at) if at.elapsed() < ELSEWHERE_FOR => News::ReadyElsewhere,
            _ => News::Ready,
        }
    }
}

/// Counts one who waits.
struct Waiting<'a>(&'a Heard);

impl<'a> Waiting<'a> {
    fn new(heard: &'a Heard) -> Self {
        if heard.waiting.fetch_add(1, Ordering::AcqRel) > 0 {
            heard.shared.store(true, Ordering::Release);
        }
        Waiting(heard)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn notify(pool: Pool, outgoing: Arc<Notify>, elsewhere: Arc<AtomicBool>, own: String) {
    loop {
        outgoing.notified().await;
        let suffix = if elsewhere.swap(false, Ordering::AcqRel) { ELSEWHERE } else { "" };
        let words = format!("{own}{suffix}");
        let params: [Param<'_>; 1] = [(&words, Type::TEXT)];
        if let Err(error) = pool.query(Access::Read, include_str!("../sql/ground/notify.sql"), &params).await {
            tracing::debug!(%error, "could not wake other processes; they will poll");
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
        tokio::time::sleep(NOTIFY_EVERY).await;
    }
}

async fn listen_for_ever(route: Route, heard: Arc<Heard>) {
    loop {
        if let Err(error) = listen(&route, &heard).await {
            tracing::debug!(%error, "not listening for wake-ups; polling until then");
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// Listens until the connection fails.
async fn listen(route: &Route, heard: &Arc<Heard>) -> Result<(), tokio_postgres::Error> {
    let Ok(connected) = tokio::time::timeout(CHECK_PATIENCE, route.connect()).await else { return Ok(()) };
    let (client, mut connection) = connected?;
    let hears = heard.clone();
    let driver = tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(said) = message {
                hears.said(said.payload());
            }
        }
    });
    let _end = AbortOnDrop(driver);
    match tokio::time::timeout(CHECK_PATIENCE, client.batch_execute("listen windlass_wake")).await {
        Ok(answer) => answer?,
        Err(_) => return Ok(()),
    }
    // Something may have been said while nobody listened.
    heard.woken();
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
