//! The store of the models: its tables and its calls, each one atomic, under the names of `windlass_core::store::Store`.
//! Called by `lease`. Beside the tables it keeps what only the checker can know: what was accepted, and under which fence.

use std::collections::BTreeMap;

use crate::Sabotage;

/// Numbers of jobs, nodes and leases. A lease's number is the fence of its jobs; numbers are never used again.
pub(crate) type Job = u8;
pub(crate) type Node = u8;
pub(crate) type Lease = u8;

/// How long the store waits for a silent node, in thirds of the lease: a node beats once per third.
pub(crate) const LEASE: u8 = 3;

/// How many nodes may be lost with a job before it is a dead letter (3 in the code; fewer show the same).
pub(crate) const MAX_RECOVERIES: u8 = 1;

/// The counts that a waiting or held job carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Counts {
    /// Failed attempts.
    pub failed: u8,
    /// Nodes lost with it.
    pub recoveries: u8,
}

/// One part of a lease: jobs with the same counts, held by one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseRow {
    pub(crate) lease: Lease,
    pub(crate) counts: Counts,
    pub(crate) node: Node,
    pub(crate) jobs: Vec<Job>,
    /// Those of them whose cancel was requested.
    pub(crate) canceled: Vec<Job>,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// Its handler returned.
    Succeeded,
    /// It was canceled.
    Canceled,
    /// Too many nodes were lost with it.
    DeadLettered,
}

/// What becomes of a job after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transition {
    /// It ends.
    End(End),
    /// It is ready again; nothing is charged.
    Release,
}

/// One ended attempt on its way to the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Finish {
    pub(crate) node: Node,
    pub(crate) lease: Lease,
    pub(crate) job: Job,
    pub(crate) transition: Transition,
}

/// The tables, and what the checker notes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// Registered nodes, with the thirds of a lease since their last heartbeat.
    pub(crate) nodes: BTreeMap<Node, u8>,
    /// Jobs that exist.
    pub(crate) jobs: Vec<Job>,
    pub(crate) ready: BTreeMap<Job, Counts>,
    pub(crate) leases: Vec<LeaseRow>,
    pub(crate) outcomes: Vec<(Job, End)>,
    /// Cancels that were acknowledged.
    pub(crate) canceled: Vec<Job>,
    /// Noted: the newest lease of each job.
    pub(crate) newest: BTreeMap<Job, Lease>,
    /// Noted: a finish was accepted under a lease that is not the job's newest, or not there.
    pub(crate) accepted_stale: bool,
    /// Noted: a success was accepted after a cancel was acknowledged.
    pub(crate) success_after_cancel: bool,
}

impl Store {
    pub(crate) fn register(&mut self, node: Node) {
        self.nodes.insert(node, 0);
    }

    /// Renews the node. None if it was declared dead, else its jobs whose cancel was requested.
    pub(crate) fn heartbeat(&mut self, node: Node) -> Option<Vec<(Lease, Job)>> {
        *self.nodes.get_mut(&node)? = 0;
        let rows = self.leases.iter().filter(|row| row.node == node);
        Some(rows.flat_map(|row| row.canceled.iter().map(|job| (row.lease, *job))).collect())
    }

    /// Takes all ready jobs, but of those that came back from a lost node only one: the smallest cohort. Their counts decide
    /// the parts.
    pub(crate) fn claim(&mut self, node: Node, lease: Lease) -> Vec<(Job, Counts)> {
        let mut taken: Vec<(Job, Counts)> = Vec::new();
        for (&job, &counts) in &self.ready {
            let suspect = counts.recoveries > 0;
            if !suspect || !taken.iter().any(|(_, counts)| counts.recoveries > 0) {
                taken.push((job, counts));
            }
        }
        for &(job, counts) in &taken {
            self.ready.remove(&job);
            self.hold(node, lease, job, counts);
        }
        taken
    }

    /// Stores a job: held under the lease, or ready.
    pub(crate) fn submit(&mut self, job: Job, born_leased: Option<(Node, Lease)>) {
        self.jobs.push(job);
        match born_leased {
            Some((node, lease)) => self.hold(node, lease, job, Counts::default()),
            None => _ = self.ready.insert(job, Counts::default()),
        }
    }

    fn hold(&mut self, node: Node, lease: Lease, job: Job, counts: Counts) {
        self.newest.insert(job, lease);
        match self.leases.iter_mut().find(|row| row.lease == lease && row.counts == counts) {
            Some(row) => row.jobs.push(job),
            None => {
                self.leases.push(LeaseRow { lease, counts, node, jobs: vec![job], canceled: Vec::new() });
                self.leases.sort();
            }
        }
    }

    /// Carries transitions out, each only if its job is still in the lease it names. The others are fenced: nothing is
    /// written.
    pub(crate) fn finish(&mut self, finishes: &[Finish], sabotage: Option<Sabotage>) {
        for finish in finishes {
            let holds = |row: &LeaseRow| match sabotage {
                Some(Sabotage::FinishByJobAlone) => row.jobs.contains(&finish.job),
                _ => row.lease == finish.lease && row.node == finish.node && row.jobs.contains(&finish.job),
            };
            match self.leases.iter().position(holds) {
                Some(at) => self.finish_held(at, finish, sabotage),
                None if sabotage == Some(Sabotage::FencingOff) => self.finish_anywhere(finish),
                None => {}
            }
        }
    }

    fn finish_held(&mut self, at: usize, finish: &Finish, sabotage: Option<Sabotage>) {
        self.accepted_stale |= self.newest.get(&finish.job) != Some(&finish.lease);
        let row = &mut self.leases[at];
        let mut counts = row.counts;
        let canceled = row.canceled.contains(&finish.job) && sabotage != Some(Sabotage::CancelNotOnTheLease);
        row.jobs.retain(|job| *job != finish.job);
        row.canceled.retain(|job| *job != finish.job);
        if row.jobs.is_empty() || sabotage == Some(Sabotage::PartialFinishDropsTheRest) {
            self.leases.remove(at);
        }
        match finish.transition {
            // Cancel and finish meet on the lease row, so one of them comes first.
            _ if canceled => self.end(finish.job, End::Canceled),
            Transition::End(end) => self.end(finish.job, end),
            Transition::Release => {
                counts.failed += u8::from(sabotage == Some(Sabotage::ReleaseCountsAnAttempt));
                self.ready.insert(finish.job, counts);
            }
        }
    }

    fn finish_anywhere(&mut self, finish: &Finish) {
        self.accepted_stale = true;
        if let Transition::End(end) = finish.transition {
            self.end(finish.job, end);
        }
    }

    fn end(&mut self, job: Job, end: End) {
        self.success_after_cancel |= end == End::Succeeded && self.canceled.contains(&job);
        self.outcomes.push((job, end));
        self.outcomes.sort();
    }

    /// Cancels a job: at once while it waits, by a mark on its lease while it is held. False if it had ended.
    pub(crate) fn cancel(&mut self, job: Job) -> bool {
        if self.ready.remove(&job).is_some() {
            self.canceled.push(job);
            self.end(job, End::Canceled);
            return true;
        }
        let Some(row) = self.leases.iter_mut().find(|row| row.jobs.contains(&job)) else { return false };
        row.canceled.push(job);
        self.canceled.push(job);
        true
    }

    /// Declares nodes dead that have been silent for longer than the lease, and takes back what nodes hold that are not
    /// registered: also what a claim left that was under way meanwhile. Answers the nodes.
    pub(crate) fn recover(&mut self, sabotage: Option<Sabotage>) -> Vec<Node> {
        let trusting = sabotage == Some(Sabotage::ReaperTrustsTheNodesClock);
        let lost: Vec<Node> =
            self.nodes.iter().filter(|(_, silent)| trusting || **silent > LEASE).map(|n| *n.0).collect();
        self.nodes.retain(|node, _| !lost.contains(node));
        let counted = u8::from(sabotage != Some(Sabotage::RecoveryNotCounted));
        if sabotage == Some(Sabotage::OrphansNotLookedFor) {
            lost.iter().for_each(|node| self.take_back(|row| row.node == *node, counted));
        } else {
            let live: Vec<Node> = self.nodes.keys().copied().collect();
            self.take_back(|row| !live.contains(&row.node), counted);
        }
        lost
    }

    /// Whether `recover` would find something to do.
    pub(crate) fn is_untidy(&self, sabotage: Option<Sabotage>) -> bool {
        let trusting = sabotage == Some(Sabotage::ReaperTrustsTheNodesClock);
        self.nodes.values().any(|silent| trusting || *silent > LEASE)
            || self.leases.iter().any(|row| !self.nodes.contains_key(&row.node))
    }

    /// Ends a node: what it still holds is ready again, as it was.
    pub(crate) fn deregister(&mut self, node: Node) {
        self.nodes.remove(&node);
        self.take_back(|row| row.node == node, 0);
    }

    /// Makes ready again what a node holds under a lease that it does not know whether it has.
    pub(crate) fn give_back(&mut self, node: Node, lease: Lease) {
        self.take_back(|row| row.node == node && row.lease == lease, 0);
    }

    fn take_back(&mut self, which: impl Fn(&LeaseRow) -> bool, recoveries: u8) {
        let (taken, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leases).into_iter().partition(|row| which(row));
        self.leases = kept;
        for row in taken {
            for job in row.jobs {
                if row.canceled.contains(&job) {
                    self.end(job, End::Canceled);
                } else {
                    let recoveries = row.counts.recoveries + recoveries;
                    self.ready.insert(job, Counts { recoveries, ..row.counts });
                }
            }
        }
    }

    /// In how many places a job is.
    pub(crate) fn places(&self, job: Job) -> usize {
        usize::from(self.ready.contains_key(&job))
            + self.leases.iter().filter(|row| row.jobs.contains(&job)).count()
            + self.outcomes.iter().filter(|(ended, _)| *ended == job).count()
    }

    /// How often a job has ended.
    pub(crate) fn ends(&self, job: Job) -> usize {
        self.outcomes.iter().filter(|(ended, _)| *ended == job).count()
    }

    /// The counts of a job that has not ended.
    pub(crate) fn counts(&self, job: Job) -> Option<Counts> {
        let held = || self.leases.iter().find(|row| row.jobs.contains(&job)).map(|row| row.counts);
        self.ready.get(&job).copied().or_else(held)
    }
}
