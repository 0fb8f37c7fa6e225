//! What the copied code takes for the system: threads, locks, atomics, channels, timers and clocks, all of which give the
//! scheduler a say. Time passes when the scheduler lets it: a timer may fire while others are in the middle of anything.
//! Also runs the tests (`explore`) and keeps what they have switched on. Used by the copy and by the tests of this crate.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::shuttle::scheduler::{PctScheduler, RandomScheduler, UncontrolledNondeterminismCheckScheduler};
use ::shuttle::{Config, MaxSteps, Runner};

// ---- running tests

/// A mistake in the copied code that a test switches on. `build.rs` has the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Submit: an entry is taken from the line in a future that may be dropped before the entry is kept.
    TakesBeforeItKeeps,
    /// Finish: whoever waits for the last save looks first and subscribes then.
    LooksBeforeItSubscribes,
    /// Shutdown: the node leaves before what has ended is saved.
    LeavesWithoutSaving,
    /// Look-ups: whoever shares a query gets the first record of it.
    AnswersWithTheFirst,
}

/// What one test has switched on. All tasks of an execution share one thread of the system.
#[derive(Default)]
struct Switches {
    sabotage: Cell<Option<Sabotage>>,
    /// Store calls of this name fail so many times more.
    failing: RefCell<Option<(&'static str, u32)>>,
    /// The sizes of writes, by the name of the call.
    wrote: RefCell<Vec<(&'static str, usize)>>,
    time: RefCell<Time>,
}

#[derive(Default)]
struct Time {
    now: Duration,
    next: u64,
    sleepers: BTreeMap<(Duration, u64), Option<Waker>>,
    passing: Option<Waker>,
}

thread_local! {
    static SWITCHES: Switches = Switches::default();
}

/// How many schedules of each kind a test tries. Enough to find each sabotage many times over.
const SCHEDULES: usize = 150;

/// Times as many in the full tier.
const FULL: usize = 20;

fn schedules() -> usize {
    let full = std::env::var("WINDLASS_TIER").is_ok_and(|tier| tier == "full");
    if full { SCHEDULES * FULL } else { SCHEDULES }
}

/// The seeds of every run, so that a test means the same today and tomorrow. `SHUTTLE_RANDOM_SEED` overrides them: it
/// takes the number that a failure prints.
const SEED: u64 = 0x57_49_4e_44;

/// How often a schedule may switch; one that needs more has somebody who waits for ever.
const STEPS: usize = 60_000;

/// Runs a test under many schedules. Panics with the first failure; shuttle has printed its seed then.
pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
    run(None, test);
}

/// Whether some schedule finds the sabotage.
pub(crate) fn finds(sabotage: Sabotage, test: impl Fn() + Send + Sync + 'static) -> bool {
    // What a failed execution leaves behind ends with the thread.
    std::thread::spawn(move || catch_unwind(AssertUnwindSafe(|| run(Some(sabotage), test))).is_err())
        .join()
        .expect("the failure was caught")
}

/// Runs each of some schedules twice and panics if the second run differs: then a seed would not lead to a failure again.
pub(crate) fn repeats(test: impl Fn() + Send + Sync + 'static) {
    const RUNS: usize = 25;
    let random = RandomScheduler::new_from_seed(SEED, RUNS);
    Runner::new(UncontrolledNondeterminismCheckScheduler::new(random), config()).run(prepared(None, test));
}

fn run(sabotage: Option<Sabotage>, test: impl Fn() + Send + Sync + 'static) {
    let test = std::sync::Arc::new(prepared(sabotage, test));
    // A sabotage ends its run when it is found, so that there is time to look further, each way in turn: what one finds at
    // once the other may hardly ever try.
    let rounds: &[usize] = if sabotage.is_some() { &[1, 3, 9] } else { &[1] };
    for (seed, round) in (SEED..).zip(rounds) {
        let (random, by_priority) = (test.clone(), test.clone());
        Runner::new(RandomScheduler::new_from_seed(seed, round * schedules()), config()).run(move || random());
        Runner::new(PctScheduler::new_from_seed(seed, 3, round * schedules()), config()).run(move || by_priority());
    }
}

/// A test with everything as at the start.
fn prepared(sabotage: Option<Sabotage>, test: impl Fn() + Send + Sync + 'static) -> impl Fn() + Send + Sync + 'static {
    move || {
        SWITCHES.with(|switches| {
            switches.sabotage.set(sabotage);
            *switches.failing.borrow_mut() = None;
            switches.wrote.borrow_mut().clear();
            *switches.time.borrow_mut() = Time::default();
        });
        spawn(time_passes());
        test();
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    config
}

pub(crate) fn is(sabotage: Sabotage) -> bool {
    SWITCHES.with(|switches| switches.sabotage.get() == Some(sabotage))
}

/// The next `times` store calls of this name fail before they write.
pub(crate) fn fail(name: &'static str, times: u32) {
    SWITCHES.with(|switches| *switches.failing.borrow_mut() = Some((name, times)));
}

/// A store call is under way: others go on meanwhile, and it may fail.
pub(crate) async fn store_call(name: &str) -> crate::store::Result<()> {
    switch().await;
    let fails = SWITCHES.with(|switches| match &mut *switches.failing.borrow_mut() {
        Some((failing, times)) if *failing == name && *times > 0 => {
            *times -= 1;
            true
        }
        _ => false,
    });
    match fails {
        true => Err(crate::store::Error::Unavailable("switched off by the test".into())),
        false => Ok(()),
    }
}

/// Takes note of a write with so many jobs.
pub(crate) fn wrote(name: &'static str, jobs: usize) {
    SWITCHES.with(|switches| switches.wrote.borrow_mut().push((name, jobs)));
}

/// The largest write of this name, in jobs.
pub(crate) fn largest(name: &str) -> usize {
    SWITCHES.with(|switches| {
        let wrote = switches.wrote.borrow();
        wrote.iter().filter(|(call, _)| *call == name).map(|(_, jobs)| *jobs).max().unwrap_or(0)
    })
}

/// Lets others go on.
pub(crate) async fn switch() {
    ::shuttle::future::yield_now().await;
}

/// A place in the middle of something where others may go on.
fn point() {
    ::shuttle::sync::atomic::AtomicBool::new(false).load(::shuttle::sync::atomic::Ordering::SeqCst);
}

// ---- time

async fn time_passes() {
    loop {
        switch().await;
        let woken = std::future::poll_fn(|cx| {
            SWITCHES.with(|switches| {
                let mut time = switches.time.borrow_mut();
                let Some((&(at, _), _)) = time.sleepers.iter().find(|(_, waker)| waker.is_some()) else {
                    time.passing = Some(cx.waker().clone());
                    return Poll::Pending;
                };
                time.now = time.now.max(at);
                let now = time.now;
                let due = time.sleepers.iter_mut().filter(|((at, _), _)| *at <= now);
                Poll::Ready(due.filter_map(|(_, waker)| waker.take()).collect::<Vec<Waker>>())
            })
        });
        woken.await.into_iter().for_each(Waker::wake);
    }
}

fn now() -> Duration {
    SWITCHES.with(|switches| switches.time.borrow().now)
}

pub(crate) mod clock {
    pub(crate) use std::time::{Duration, SystemTime, UNIX_EPOCH};

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Instant(Duration);

    impl Instant {
        pub(crate) fn now() -> Self {
            Instant(super::now())
        }

        pub(crate) fn elapsed(&self) -> Duration {
            super::now().saturating_sub(self.0)
        }

        pub(crate) fn saturating_duration_since(&self, earlier: Instant) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
    }

    impl std::ops::Add<Duration> for Instant {
        type Output = Instant;

        fn add(self, duration: Duration) -> Instant {
            Instant(self.0 + duration)
        }
    }
}

/// The clock of a store in these tests.
pub(crate) struct StoreClock;

impl crate::Clock for StoreClock {
    fn now(&self) -> crate::Timestamp {
        crate::Timestamp::from_millis(1_800_000_000_000) + now()
    }
}

pub(crate) mod time {
    use super::*;

    pub(crate) struct Sleep {
        at: (Duration, u64),
    }

    pub(crate) fn sleep(duration: Duration) -> Sleep {
        SWITCHES.with(|switches| {
            let mut time = switches.time.borrow_mut();
            time.next += 1;
            let at = (time.now.saturating_add(duration), time.next);
            time.sleepers.insert(at, None);
            Sleep { at }
        })
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            let passing = SWITCHES.with(|switches| {
                let mut time = switches.time.borrow_mut();
                if time.now >= self.at.0 {
                    return Err(());
                }
                time.sleepers.insert(self.at, Some(cx.waker().clone()));
                Ok(time.passing.take())
            });
            let Ok(passing) = passing else { return Poll::Ready(()) };
            if let Some(passing) = passing {
                passing.wake();
            }
            Poll::Pending
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            SWITCHES.with(|switches| _ = switches.time.borrow_mut().sleepers.remove(&self.at));
        }
    }

    #[derive(Debug)]
    pub(crate) struct Elapsed;

    pub(crate) async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        let mut future = std::pin::pin!(future);
        let mut sleep = sleep(duration);
        std::future::poll_fn(move |cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed)),
        })
        .await
    }

    pub(crate) struct Interval(Duration);

    pub(crate) fn interval(every: Duration) -> Interval {
        Interval(every)
    }

    impl Interval {
        pub(crate) async fn tick(&mut self) {
            sleep(self.0).await;
        }
    }
}

// ---- tasks, threads, runtimes

pub(crate) use ::shuttle::thread;

/// Starts a task on the runtime that was entered, or on none.
pub(crate) fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime::Handle::current().spawn(future)
}

/// Nobody in the code waits for a task; it goes on without.
pub(crate) struct Task<T>(std::marker::PhantomData<T>);

pub(crate) mod task {
    pub(crate) type JoinHandle<T> = super::Task<T>;
}

/// Runs tasks at the same time and waits for all of them.
pub(crate) async fn all<T: Send + 'static>(tasks: Vec<Pin<Box<dyn Future<Output = T> + Send>>>) -> Vec<T> {
    let started: Vec<_> = tasks.into_iter().map(::shuttle::future::spawn).collect();
    let mut results = Vec::new();
    for task in started {
        results.push(task.await.expect("a task of a test ends by itself"));
    }
    results
}

pub(crate) mod runtime {
    use super::*;
    use std::sync::{Arc, Mutex};

    type Ends = Box<dyn FnOnce() + Send>;

    thread_local! {
        static ENTERED: RefCell<Option<Handle>> = const { RefCell::new(None) };
    }

    #[derive(Clone, Default)]
    pub(crate) struct Handle(Arc<Mutex<Vec<Ends>>>);

    impl Handle {
        pub(crate) fn current() -> Handle {
            ENTERED.with(|entered| entered.borrow().clone()).unwrap_or_default()
        }

        pub(crate) fn spawn<F>(&self, future: F) -> Task<F::Output>
        where
            F: Future + Send + 'static,
            F::Output: Send + 'static,
        {
            let task = ::shuttle::future::spawn(future);
            let ends = task.abort_handle();
            self.0.lock().expect("never held across a switch").push(Box::new(move || ends.abort()));
            Task(std::marker::PhantomData)
        }
    }

    pub(crate) struct Runtime(Handle);

    impl Runtime {
        pub(crate) fn handle(&self) -> &Handle {
            &self.0
        }

        pub(crate) fn enter(&self) -> Entered {
            ENTERED.with(|entered| *entered.borrow_mut() = Some(self.0.clone()));
            Entered
        }

        pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
            ::shuttle::future::block_on(future)
        }

        /// Tasks end where they are.
        pub(crate) fn shutdown_timeout(self, _: Duration) {
            let tasks = std::mem::take(&mut *self.0.0.lock().expect("never held across a switch"));
            tasks.into_iter().for_each(|end| end());
        }

        pub(crate) fn shutdown_background(self) {
            self.shutdown_timeout(Duration::ZERO);
        }
    }

    pub(crate) struct Entered;

    impl Drop for Entered {
        fn drop(&mut self) {
            ENTERED.with(|entered| *entered.borrow_mut() = None);
        }
    }

    pub(crate) struct Builder;

    impl Builder {
        pub(crate) fn new_current_thread() -> Builder {
            Builder
        }

        pub(crate) fn new_multi_thread() -> Builder {
            Builder
        }

        pub(crate) fn thread_name(&mut self, _: &str) -> &mut Builder {
            self
        }

        pub(crate) fn worker_threads(&mut self, _: usize) -> &mut Builder {
            self
        }

        pub(crate) fn enable_all(&mut self) -> &mut Builder {
            self
        }

        pub(crate) fn enable_time(&mut self) -> &mut Builder {
            self
        }

        pub(crate) fn build(&mut self) -> std::io::Result<Runtime> {
            Ok(Runtime(Handle::default()))
        }
    }
}

/// Branches are tried in the order they are written, so that a seed tells the whole schedule.
macro_rules! select_in_order {
    (biased; $($branches:tt)*) => { ::tokio::select! { biased; $($branches)* } };
    ($($branches:tt)*) => { ::tokio::select! { biased; $($branches)* } };
}
pub(crate) use select_in_order as select;

// ---- locks, atomics, channels

pub(crate) use ::shuttle::sync::atomic;

pub(crate) mod locks {
    use std::sync::PoisonError;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(::shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(::shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> ::shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(::shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            RwLock(::shuttle::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> ::shuttle::sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> ::shuttle::sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

pub(crate) mod sync {
    pub(crate) use ::tokio::sync::{
        Mutex, OwnedSemaphorePermit, Semaphore, TryAcquireError, broadcast, futures, oneshot, watch,
    };

    use super::point;

    #[derive(Debug, Default)]
    pub(crate) struct Notify(::tokio::sync::Notify);

    impl Notify {
        pub(crate) fn new() -> Self {
            Notify::default()
        }

        pub(crate) fn notified(&self) -> futures::Notified<'_> {
            point();
            self.0.notified()
        }

        pub(crate) fn notify_one(&self) {
            point();
            self.0.notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            point();
            self.0.notify_waiters();
        }
    }

    pub(crate) mod mpsc {
        use super::super::point;
        use ::tokio::sync::mpsc as real;
        pub(crate) use ::tokio::sync::mpsc::error;

        pub(crate) fn channel<T>(bound: usize) -> (Sender<T>, Receiver<T>) {
            let (sender, receiver) = real::channel(bound);
            (Sender(sender), Receiver(receiver))
        }

        pub(crate) struct Sender<T>(real::Sender<T>);

        impl<T> Clone for Sender<T> {
            fn clone(&self) -> Self {
                Sender(self.0.clone())
            }
        }

        impl<T> Sender<T> {
            pub(crate) fn is_closed(&self) -> bool {
                point();
                self.0.is_closed()
            }

            pub(crate) fn try_send(&self, value: T) -> Result<(), real::error::TrySendError<T>> {
                point();
                self.0.try_send(value)
            }

            pub(crate) async fn send(&self, value: T) -> Result<(), real::error::SendError<T>> {
                point();
                self.0.send(value).await
            }
        }

        pub(crate) struct Receiver<T>(real::Receiver<T>);

        impl<T> Receiver<T> {
            pub(crate) fn is_closed(&self) -> bool {
                point();
                self.0.is_closed()
            }

            pub(crate) async fn recv(&mut self) -> Option<T> {
                point();
                self.0.recv().await
            }

            pub(crate) fn try_recv(&mut self) -> Result<T, real::error::TryRecvError> {
                point();
                self.0.try_recv()
            }

            pub(crate) async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
                point();
                self.0.recv_many(buffer, limit).await
            }
        }
    }
}

// ---- the rest

pub(crate) mod maps {
    use foldhash::fast::FixedState;

    /// In the same order in every run.
    pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, FixedState>;
    pub(crate) type HashSet<K> = std::collections::HashSet<K, FixedState>;
}

/// Chance, from the schedule's seed.
pub(crate) fn random<T>() -> T
where
    f64: Into<T>,
{
    use ::shuttle::rand::Rng;
    ::shuttle::rand::thread_rng().r#gen::<f64>().into()
}
