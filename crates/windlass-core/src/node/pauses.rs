//! The pauses in force, as this node last read them. `claim`, `run` and born-leased submits ask before they start a job.

use foldhash::HashSet;

use super::Worker;
use crate::store::{self, Gate, Pause, PauseTarget};

/// The pauses in force, as last read.
#[derive(Default)]
pub(super) struct Pauses {
    all: bool,
    targets: HashSet<PauseTarget>,
}

impl Worker {
    /// Reads the pauses in force.
    pub(crate) async fn read_pauses(&self) -> store::Result<()> {
        self.set_pauses(self.store.pauses().await?);
        Ok(())
    }

    pub(crate) fn set_pauses(&self, pauses: Vec<Pause>) {
        let targets: HashSet<PauseTarget> = pauses.into_iter().map(|pause| pause.target).collect();
        let mut pauses = self.pauses.write();
        let was_paused = pauses.all;
        *pauses = Pauses { all: targets.contains(&PauseTarget::All), targets };
        if was_paused && !pauses.all {
            self.wake.notify_one();
        }
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
