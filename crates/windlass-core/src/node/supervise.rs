//! Keeps loops running. Every task or thread that is meant to run as long as its owner goes through a [`Supervisor`]: a
//! node's, its store's, the server's. A loop that panics is logged, counted and started again after a growing pause, and
//! for as long as it is down the node says that it is not ready. Never decides what a loop does; what a loop must not
//! lose lives outside of it, because a restart begins anew.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Pauses before a loop is started again: the first is short because most panics are one bad row or one race, the last
/// keeps a loop that always panics from taking a processor.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// A loop that has run for so long since its restart is up again; one that panics sooner has never been.
const SETTLED: Duration = Duration::from_secs(1);

/// A loop that has run for so long starts again with the first pause.
const STEADY: Duration = Duration::from_secs(30);

/// Starts loops again that panic. Clones share what is known of them.
#[derive(Clone, Debug, Default)]
pub struct Supervisor(Arc<Mutex<BTreeMap<&'static str, State>>>);

#[derive(Clone, Debug, Default)]
struct State {
    panics: u64,
    message: Option<String>,
    /// Tasks under this name that wait to be started again.
    pausing: usize,
    /// When one of them was last started again.
    restarted: Option<Instant>,
}

impl State {
    fn is_down(&self) -> bool {
        self.pausing > 0 || self.restarted.is_some_and(|at| at.elapsed() < SETTLED)
    }
}

/// How a loop is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoopHealth {
    /// What it does: a stable word.
    pub name: &'static str,
    /// How often it has panicked since the process started.
    pub panics: u64,
    /// Whether it has panicked and does not run properly again.
    pub down: bool,
    /// What the last panic said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Supervisor {
    /// Runs a loop as a task until it returns by itself. `start` begins it, also again after a panic.
    pub fn spawn<F, Fut>(&self, runtime: &Handle, name: &'static str, mut start: F) -> JoinHandle<()>
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let this = self.clone();
        runtime.spawn(async move { this.run(name, &mut start).await })
    }

    /// The same inside the caller's own task.
    pub async fn run<F, Fut>(&self, name: &'static str, mut start: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = ()>,
    {
        let mut watch = self.watch(name);
        while let Err(panic) = AssertUnwindSafe(async { start().await }).catch_unwind().await {
            tokio::time::sleep(watch.panicked(&*panic)).await;
            watch.restarted();
        }
    }

    /// The same on the current runtime.
    pub fn spawn_here<F, Fut>(&self, name: &'static str, start: F) -> JoinHandle<()>
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        self.spawn(&Handle::current(), name, start)
    }

    /// Runs a loop on a thread of its own until it returns by itself.
    pub fn spawn_thread<F>(&self, name: &'static str, mut run: F) -> std::io::Result<std::thread::JoinHandle<()>>
    where
        F: FnMut() + Send + 'static,
    {
        let mut watch = self.watch(name);
        std::thread::Builder::new().name(format!("windlass-{name}")).spawn(move || {
            while let Err(panic) = catch_unwind(AssertUnwindSafe(&mut run)) {
                std::thread::sleep(watch.panicked(&*panic));
                watch.restarted();
            }
        })
    }

    /// Takes note of a panic in something that is not started again by itself, such as one attempt or one request.
    pub fn note_panic(&self, name: &'static str, panic: &(dyn Any + Send)) {
        let message = panic_message(panic);
        tracing::error!(name, panic = message, "`{name}` panicked: {message}");
        let mut loops = self.0.lock();
        let state = loops.entry(name).or_default();
        (state.panics, state.message) = (state.panics + 1, Some(message.to_owned()));
    }

    /// Runs something that is not started again by itself. Its panic is taken note of, and returned as what it said.
    /// Written without `async`, which would hold the code twice: as what it was given, and as what it waits for.
    pub(crate) fn run_once<'a, T: 'a>(
        &'a self,
        name: &'static str,
        code: impl Future<Output = T> + 'a,
    ) -> impl Future<Output = Result<T, String>> + 'a {
        let note = move |panic: Box<dyn Any + Send>| {
            self.note_panic(name, &*panic);
            panic_message(&*panic).to_owned()
        };
        AssertUnwindSafe(code).catch_unwind().map(move |end| end.map_err(note))
    }

    /// How the loops are that were started here.
    pub fn loops(&self) -> Vec<LoopHealth> {
        let health = |(name, state): (&&'static str, &State)| LoopHealth {
            name,
            panics: state.panics,
            down: state.is_down(),
            message: state.message.clone(),
        };
        self.0.lock().iter().map(health).collect()
    }

    fn watch(&self, name: &'static str) -> Watch {
        self.0.lock().entry(name).or_default();
        Watch { supervisor: self.clone(), name, begun: Instant::now(), pause: FIRST_PAUSE, pausing: false }
    }
}

/// What is known of one loop between its panics.
struct Watch {
    supervisor: Supervisor,
    name: &'static str,
    begun: Instant,
    pause: Duration,
    pausing: bool,
}

impl Watch {
    /// Takes note of a panic. Returns how long to wait.
    fn panicked(&mut self, panic: &(dyn Any + Send)) -> Duration {
        let pause = if self.begun.elapsed() >= STEADY { FIRST_PAUSE } else { self.pause };
        self.pause = (pause * 2).min(LAST_PAUSE);
        self.supervisor.note_panic(self.name, panic);
        self.change(true);
        pause
    }

    fn restarted(&mut self) {
        self.change(false);
        self.begun = Instant::now();
        if let Some(state) = self.supervisor.0.lock().get_mut(self.name) {
            state.restarted = Some(self.begun);
        }
        tracing::warn!(name = self.name, "`{}` was started again", self.name);
    }

    fn change(&mut self, pausing: bool) {
        if self.pausing != pausing
            && let Some(state) = self.supervisor.0.lock().get_mut(self.name)
        {
            state.pausing = if pausing { state.pausing + 1 } else { state.pausing.saturating_sub(1) };
            self.pausing = pausing;
        }
    }
}

impl Drop for Watch {
    /// A loop that is dropped while it waits is not down any more: its owner has ended.
    fn drop(&mut self) {
        self.change(false);
    }
}

/// What a panic said.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    fn of(supervisor: &Supervisor, name: &str) -> LoopHealth {
        supervisor.loops().into_iter().find(|health| health.name == name).expect("it was started")
    }

    /// RUN-2, RUN-7: a loop that panics is started again, is said to be down until it runs properly, and is counted.
    #[tokio::test]
    async fn a_loop_that_panics_is_started_again() {
        let (supervisor, starts, twice) =
            (Supervisor::default(), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (counted, told) = (starts.clone(), twice.clone());
        let _task = supervisor.spawn_here("test", move || {
            let (start, told) = (counted.fetch_add(1, Ordering::SeqCst), told.clone());
            async move {
                assert!(start >= 2, "start {start} fails");
                told.notify_one();
                std::future::pending().await
            }
        });
        twice.notified().await;
        let health = of(&supervisor, "test");
        assert_eq!((health.panics, health.down), (2, true), "it has only just been started again");
        assert_eq!(health.message.as_deref(), Some("start 1 fails"));
    }

    /// Another loop goes on meanwhile, and an orderly end is not an error.
    #[tokio::test]
    async fn a_loop_that_returns_has_ended() {
        let supervisor = Supervisor::default();
        supervisor.spawn_here("ends", || async {}).await.expect("it ends");
        let health = of(&supervisor, "ends");
        assert_eq!((health.panics, health.down), (0, false));
    }

    #[test]
    fn a_thread_that_panics_is_started_again() {
        let supervisor = Supervisor::default();
        let mut first = true;
        let thread = supervisor.spawn_thread("thread", move || assert!(!std::mem::replace(&mut first, false), "once"));
        thread.expect("it starts").join().expect("it ends");
        assert_eq!(of(&supervisor, "thread").panics, 1);
    }

    #[test]
    fn pauses_grow_and_have_a_bound() {
        let mut watch = Supervisor::default().watch("bad");
        let pauses: Vec<Duration> = (0..10).map(|_| watch.panicked(&"again")).collect();
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]) && pauses[9] == LAST_PAUSE, "{pauses:?}");
    }
}
