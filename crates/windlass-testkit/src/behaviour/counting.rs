//! A store that counts the calls it gets and can hold some of them back, let them fail or panic: how a behaviour shows
//! that many callers share one call, that nobody polled, or what a fault costs. Changes nothing of what the store behind
//! it does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use windlass_core::store::{Base, Error, Limited, News, Result, Store};
use windlass_core::supervise::LoopHealth;
use windlass_core::{TenantId, Timestamp};

/// The counting store. Calls are named like their methods.
pub(crate) struct Counting {
    store: Arc<dyn Store>,
    calls: Mutex<HashMap<&'static str, usize>>,
    held_back: watch::Sender<HashSet<&'static str>>,
    faults: Mutex<HashMap<&'static str, Fault>>,
}

/// What happens to a kind of call.
#[derive(Clone, Copy)]
enum Fault {
    /// The next one is carried out and panics before it answers. The worst moment: what it did is not heard of.
    PanicOnce,
    /// Each fails after so long, and nothing is carried out.
    FailAfter(Duration),
}

impl Counting {
    pub(crate) fn around(store: &Arc<dyn Store>) -> Arc<Counting> {
        let (calls, held_back) = (Mutex::default(), watch::Sender::new(HashSet::new()));
        Arc::new(Counting { store: store.clone(), calls, held_back, faults: Mutex::default() })
    }

    /// How often a call has been made so far, with those that are held back.
    pub(crate) fn calls(&self, call: &str) -> usize {
        self.calls.lock().get(call).copied().unwrap_or_default()
    }

    /// Holds a kind of call back, from the next one on.
    pub(crate) fn hold_back(&self, call: &'static str) {
        self.held_back.send_modify(|held_back| {
            held_back.insert(call);
        });
    }

    /// Lets the calls that are held back go on.
    pub(crate) fn let_go(&self, call: &'static str) {
        self.held_back.send_modify(|held_back| {
            held_back.remove(call);
        });
    }

    /// The next call of a kind panics when it has been carried out.
    pub(crate) fn panic_once(&self, call: &'static str) {
        self.faults.lock().insert(call, Fault::PanicOnce);
    }

    /// Calls of a kind fail, each after so long, until they are healed.
    pub(crate) fn fail_after(&self, call: &'static str, time: Duration) {
        self.faults.lock().insert(call, Fault::FailAfter(time));
    }

    /// Calls of a kind work again.
    pub(crate) fn heal(&self, call: &'static str) {
        self.faults.lock().remove(call);
    }

    async fn called(&self, call: &'static str) -> Result<()> {
        *self.calls.lock().entry(call).or_default() += 1;
        let _ = self.held_back.subscribe().wait_for(|held_back| !held_back.contains(call)).await;
        let fault = self.faults.lock().get(call).copied();
        if let Some(Fault::FailAfter(time)) = fault {
            tokio::time::sleep(time).await;
            return Err(Error::Unavailable(format!("`{call}` fails")));
        }
        Ok(())
    }

    fn answered(&self, call: &'static str) {
        let panics = matches!(self.faults.lock().get(call), Some(Fault::PanicOnce));
        if panics {
            self.heal(call);
            panic!("`{call}` panics once");
        }
    }
}

/// A room of the store; each call is counted, perhaps held back, and passed on.
macro_rules! count_calls {
    ($room:ident: $($call:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl windlass_core::store::$room for Counting {
            $(
                async fn $call(&self $(, $argument: $type)*) -> $answer {
                    self.called(stringify!($call)).await?;
                    let answer = self.store.$call($($argument),*).await;
                    self.answered(stringify!($call));
                    answer
                }
            )*
        }
    };
}

#[async_trait]
impl Base for Counting {
    fn name(&self) -> &'static str {
        self.store.name()
    }
    async fn now(&self) -> Result<Timestamp> {
        self.called("now").await?;
        let answer = self.store.now().await;
        self.answered("now");
        answer
    }
    fn writers(&self) -> usize {
        self.store.writers()
    }
    fn deadline(&self) -> Duration {
        self.store.deadline()
    }
    fn limited(&self, tenant: TenantId) -> Limited {
        self.store.limited(tenant)
    }
    async fn wait_for_wake(&self) -> News {
        self.store.wait_for_wake().await
    }
    fn wake_others(&self, news: News) {
        self.store.wake_others(news);
    }
    fn loops(&self) -> Vec<LoopHealth> {
        self.store.loops()
    }
    fn transactions(&self) -> Option<Arc<dyn std::any::Any + Send + Sync>> {
        self.store.transactions()
    }
}

windlass_core::jobs_calls!(count_calls!);
windlass_core::nodes_calls!(count_calls!);
windlass_core::upkeep_calls!(count_calls!);
windlass_core::reads_calls!(count_calls!);
windlass_core::steering_calls!(count_calls!);
windlass_core::tenancy_calls!(count_calls!);
windlass_core::records_calls!(count_calls!);
windlass_core::leases_calls!(count_calls!);
windlass_core::feed_calls!(count_calls!);
windlass_core::schedules_calls!(count_calls!);
windlass_core::groups_calls!(count_calls!);
windlass_core::insight_calls!(count_calls!);
