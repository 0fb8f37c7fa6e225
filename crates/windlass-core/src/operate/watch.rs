//! Seeing what happens to jobs as it happens: status events for this process, and watching one job from any
//! node. What happens here is passed on at once; what happens elsewhere is found by one look for all
//! watched jobs together, however many wait.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::HashMap;
use futures_util::stream::{Stream, StreamExt, unfold};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, broadcast, watch};

use crate::model::clock::Timestamp;
use crate::model::error::JobError;
use crate::model::id::JobId;
use crate::model::job::{JobRecord, Progress, Status};
use crate::model::payload::Payload;
use crate::model::tenant::{Scope, TenantId};
use crate::seal::Seals;
use crate::store::Store;

/// A change of a job's status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobEvent {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What runs it.
    pub handler: String,
    /// Where it is now.
    pub status: Status,
    /// The number of the attempt that runs or has ended, or of those before where none did.
    pub attempt: u16,
    /// What went wrong, if something did.
    pub error: Option<JobError>,
    /// When, by the store's clock.
    pub at: Timestamp,
}

/// What a watcher of one job sees.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct JobView {
    /// Where the job is.
    pub status: Status,
    /// How far it has come.
    pub progress: Option<Progress>,
    /// What it returned, once it has succeeded.
    pub output: Option<Payload>,
    /// What went wrong, once it has ended badly.
    pub error: Option<JobError>,
}

/// Events a slow subscriber may fall behind before it loses the oldest.
const EVENT_BUFFER: usize = 4_096;

/// How often watched jobs that run elsewhere are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Jobs in one look.
const LOOK_JOBS: usize = 1_000;

/// Everyone in this process who watches.
pub(crate) struct Watchers {
    events: broadcast::Sender<JobEvent>,
    views: Mutex<HashMap<JobId, watch::Sender<Option<JobView>>>>,
    wanted: Notify,
}

impl Watchers {
    pub(crate) fn new() -> Arc<Self> {
        let (events, _) = broadcast::channel(EVENT_BUFFER);
        Arc::new(Watchers { events, views: Mutex::default(), wanted: Notify::new() })
    }

    /// Passes an event on to whoever listens.
    pub(crate) fn event(&self, event: impl FnOnce() -> JobEvent) {
        if self.events.receiver_count() > 0 {
            let _ = self.events.send(event());
        }
    }

    /// Events of the scope, from now on.
    pub(crate) fn events(&self, scope: Scope) -> Pin<Box<dyn Stream<Item = JobEvent> + Send>> {
        let receiver = self.events.subscribe();
        let stream = unfold(receiver, |mut receiver| async {
            loop {
                match receiver.recv().await {
                    Ok(event) => return Some((event, receiver)),
                    // The subscriber was slow: it loses the oldest and goes on.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        });
        Box::pin(stream.filter(move |event| std::future::ready(scope.covers(event.tenant))))
    }

    /// Watches one job. The value is `None` until the first look.
    pub(crate) fn watch(&self, job: JobId) -> watch::Receiver<Option<JobView>> {
        let mut views = self.views.lock();
        let sender = views.entry(job).or_insert_with(|| watch::channel(None).0);
        if sender.borrow().as_ref().is_some_and(|view| view.status.is_terminal()) {
            // It has ended, but may have been replayed since: a new watcher looks for itself.
            *sender = watch::channel(None).0;
        }
        let receiver = sender.subscribe();
        drop(views);
        self.wanted.notify_one();
        receiver
    }

    /// Shows watchers of `job` what is known of it now.
    pub(crate) fn show(&self, job: JobId, update: impl FnOnce() -> JobView) {
        if let Some(sender) = self.views.lock().get(&job) {
            merge(sender, update());
        }
    }

    /// Shows progress of a running job.
    pub(crate) fn progress(&self, job: JobId, progress: &Progress) {
        self.show(job, || JobView {
            status: Status::Running,
            progress: Some(progress.clone()),
            output: None,
            error: None,
        });
    }

    /// Looks at watched jobs in the store as long as somebody watches. Ends when the service is gone.
    pub(crate) async fn look(watchers: Weak<Watchers>, store: Arc<dyn Store>, seals: Seals) {
        loop {
            let Some(this) = watchers.upgrade() else { return };
            let watched: HashMap<JobId, watch::Sender<Option<JobView>>> = {
                let mut views = this.views.lock();
                views.retain(|_, sender| sender.receiver_count() > 0);
                views.clone()
            };
            if watched.is_empty() {
                tokio::select! {
                    () = this.wanted.notified() => {}
                    // Wakes now and then to notice that the service is gone.
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
                continue;
            }
            drop(this);
            let ids: Vec<JobId> = watched.keys().copied().collect();
            for ids in ids.chunks(LOOK_JOBS) {
                // A failed look is repeated in a moment; watchers keep what they have.
                let Ok(records) = store.get(Scope::ENGINE, ids).await else { continue };
                for mut record in records {
                    // Nobody waits here for the keys of another tenant: the next look shows it.
                    if !seals.is_at_hand(&record) {
                        continue;
                    }
                    seals.open_record(&mut record).await;
                    // Shown to those who watched before the look: for later ones it may be out of date.
                    merge(&watched[&record.id], view_of(&record));
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Shows a value. Values never go back: an ended job stays ended, and a lower progress sequence is ignored.
fn merge(sender: &watch::Sender<Option<JobView>>, new: JobView) {
    sender.send_if_modified(|view| match view {
        Some(old) if old.status.is_terminal() => false,
        Some(old) => {
            let sequence = |view: &JobView| view.progress.as_ref().map_or(0, |p| p.sequence);
            let progress = if sequence(&new) > sequence(old) { new.progress } else { old.progress.clone() };
            let merged = JobView { progress, ..new };
            std::mem::replace(old, merged.clone()) != merged
        }
        None => {
            *view = Some(new);
            true
        }
    });
}

/// What a record shows to watchers.
pub(crate) fn view_of(record: &JobRecord) -> JobView {
    JobView {
        status: record.status,
        progress: record.progress.clone(),
        output: record.output.clone(),
        error: record.error.clone(),
    }
}
