//! The pauses in force, as this node last read them. `claim`, `run` and born-leased submits ask before they start a job.

use foldhash::HashSet;

use super::Worker;
use crate::store::{self, Gate, Pause, PauseTarget};

/// The pauses in force, as last read.
#[derive(Default)]
pub(super) struct Pauses {
    all: bool,
    targets: HashSet<PauseTarget>,
    /// How often they were read.
    reads: u64,
}

/// How often pauses are read again because a survey came in between; surveys are hundreds of milliseconds apart.
const READS_MOST: usize = 10;

impl Worker {
    /// Reads the pauses in force.
    pub(crate) async fn read_pauses(&self) -> store::Result<()> {
        for _ in 0..READS_MOST {
            let before = self.pauses_read();
            if self.set_pauses(self.store.pauses().await?, before) {
                break;
            }
        }
        Ok(())
    }

    /// How often pauses have been read: to be asked before the store is.
    pub(crate) fn pauses_read(&self) -> u64 {
        self.pauses.read().reads
    }

    /// Takes over what was read, unless somebody has read them since the store was asked: what they found is newer, and a
    /// pause that was acknowledged must not be forgotten again. Returns whether it was taken over.
    pub(crate) fn set_pauses(&self, pauses: Vec<Pause>, before: u64) -> bool {
        let targets: HashSet<PauseTarget> = pauses.into_iter().map(|pause| pause.target).collect();
        let mut pauses = self.pauses.write();
        if pauses.reads != before {
            return false;
        }
        let was_paused = pauses.all;
        *pauses = Pauses { all: targets.contains(&PauseTarget::All), targets, reads: before + 1 };
        if was_paused && !pauses.all {
            self.wake.notify_one();
        }
        true
    }

    pub(crate) fn all_paused(&self) -> bool {
        self.pauses.read().all
    }

    /// The gate that stands before a job because of a pause.
    pub(crate) fn paused(&self, handler: &str, tenant: crate::model::tenant::TenantId) -> Option<Gate> {
        let pauses = self.pauses.read();
        if pauses.targets.is_empty() {
            return None;
        }
        let targets = [PauseTarget::Handler(handler.to_owned()), PauseTarget::Tenant(tenant)];
        targets.into_iter().find(|target| pauses.targets.contains(target)).map(Gate::Pause)
    }
}
