//! Status look-ups of many callers in one query. Called by the service; asks the store when the look before it
//! has returned, so a lone caller waits for nothing.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::model::error::Error;
use crate::model::id::JobId;
use crate::model::job::JobRecord;
use crate::model::tenant::Scope;
use crate::node::supervise::Supervisor;
use crate::store::{self, Store};

/// Looks jobs up.
#[derive(Clone)]
pub(crate) struct Lookups {
    asked: mpsc::Sender<Asked>,
}

struct Asked {
    scope: Scope,
    id: JobId,
    reply: oneshot::Sender<store::Result<Option<JobRecord>>>,
}

/// Look-ups that may wait, and jobs in one query.
const WAITING: usize = 4_096;
const PER_QUERY: usize = 500;

impl Lookups {
    /// Starts looking, on the current runtime.
    pub(crate) fn start(store: Arc<dyn Store>, supervisor: &Supervisor) -> Lookups {
        let (asked, waiting) = mpsc::channel(WAITING);
        // Outlives a restart of the loop, so that whoever waits is answered by the next.
        let waiting = Arc::new(Mutex::new(waiting));
        supervisor.spawn_here("lookup", move || {
            let (store, waiting) = (store.clone(), waiting.clone());
            async move {
                let mut waiting = waiting.lock().await;
                let mut batch = Vec::new();
                while waiting.recv_many(&mut batch, PER_QUERY).await > 0 {
                    answer(&*store, std::mem::take(&mut batch)).await;
                }
            }
        });
        Lookups { asked }
    }

    /// The job, if the scope covers it.
    pub(crate) async fn get(&self, scope: Scope, id: JobId) -> Result<Option<JobRecord>, Error> {
        let (reply, answer) = oneshot::channel();
        self.asked.send(Asked { scope, id, reply }).await.map_err(|_| Error::ShutDown)?;
        Ok(answer.await.map_err(|_| self.unanswered())??)
    }
}

impl Lookups {
    /// Why there was no answer: the loop has ended with the service, or has panicked over this look.
    fn unanswered(&self) -> Error {
        match self.asked.is_closed() {
            true => Error::ShutDown,
            false => store::Error::Internal("looking the job up failed".into()).into(),
        }
    }
}

/// Queries at once, where callers of several tenants have asked: a look behind one tenant's wall sees no other's jobs.
const AT_ONCE: usize = 4;

async fn answer(store: &dyn Store, mut asked: Vec<Asked>) {
    let mut scopes = Vec::new();
    while let Some(scope) = asked.first().map(|asked| asked.scope) {
        let (same, others): (Vec<_>, Vec<_>) = asked.into_iter().partition(|asked| asked.scope == scope);
        asked = others;
        scopes.push((scope, same));
    }
    let each = |(scope, asked)| answer_within(store, scope, asked);
    futures_util::stream::iter(scopes).for_each_concurrent(AT_ONCE, each).await;
}

async fn answer_within(store: &dyn Store, scope: Scope, asked: Vec<Asked>) {
    let mut ids: Vec<JobId> = asked.iter().map(|asked| asked.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let found = store.get(scope, &ids).await;
    for Asked { id, reply, .. } in asked {
        let record = found.as_ref().map(|records| records.iter().find(|record| record.id == id).cloned());
        let _ = reply.send(record.map_err(Clone::clone));
    }
}
