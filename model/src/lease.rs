//! The life of leases: claim, born-leased submit, heartbeat, finish, recovery, cancel, shutdown and give-back, on several
//! processes that crash, freeze and lose messages. The steps have the names of `windlass-core` (worker.rs, claim.rs,
//! submit.rs, finish.rs, maintenance.rs); what a store call does is in `store`. Explored by `tests/lease.rs`.
//!
//! A call goes out, arrives, and is answered; each may happen at any time, and a call that its sender has given up may
//! still arrive. Time is counted in thirds of the lease, and only as durations: each process by its own clock from the
//! moment it asked, the store by its own from the moment it heard.

use stateright::{Model, Property};

use crate::Sabotage;
use crate::store::{Counts, End, Finish, Job, LEASE, Lease, MAX_RECOVERIES, Node, Store, Transition};

/// When a node that could not renew itself stops its jobs, in thirds of the lease by its own clock.
const LATE: u8 = 2;

/// The model with its bounds.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// Processes at the start.
    pub processes: usize,
    /// The first so many of them may be late: their heartbeats take time and their clocks matter. The others are
    /// always renewed in time, which keeps the model small.
    pub timed: usize,
    /// Jobs that are ready at the start.
    pub ready: u8,
    /// Jobs that are submitted by a process with a free slot, and so are born leased.
    pub born_leased: u8,
    /// What may go wrong, and how often.
    pub faults: Faults,
    /// What is done wrong on purpose.
    pub sabotage: Option<Sabotage>,
}

/// How often something may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A process is killed; another one may be started in its place.
    pub crashes: u8,
    /// A process stops for any time and goes on (SIGSTOP, SIGCONT).
    pub freezes: u8,
    /// A connection breaks with a call under way: its sender does not know whether it happened.
    pub losses: u8,
    /// A node that lives is not heard of for longer than the lease.
    pub silences: u8,
    /// A process is asked to end; another one may be started in its place.
    pub shutdowns: u8,
    /// Somebody cancels a job.
    pub cancels: u8,
}

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    store: Store,
    /// Processes; none where one has ended.
    processes: Vec<Option<Process>>,
    /// Writes whose sender has given them up or is gone, but that may still arrive.
    late: Vec<Write>,
    unborn: Vec<Job>,
    left: Faults,
    /// Noted: how often a process was killed while it ran a job.
    killed: Vec<u8>,
    /// Noted: jobs of a process that was not frozen were given to others before it was told to stop them.
    given_away_untold: bool,
}

/// A process that runs jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    /// Its membership: the node it is.
    node: Node,
    /// Thirds of the lease since it asked for the last heartbeat that was answered.
    unrenewed: u8,
    frozen: bool,
    /// It went on when its lease was over, and has not come to look at its clock yet.
    woke_late: bool,
    stopping: bool,
    running: Vec<Attempt>,
    /// At the finisher, not saved.
    ended: Vec<Finish>,
    beat: Option<Beat>,
    claim: Call,
    submit: Call,
    finish: Saving,
    /// Leases that a write of unknown outcome may have made.
    in_doubt: Vec<Lease>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Attempt {
    job: Job,
    node: Node,
    lease: Lease,
    /// Asked to stop.
    told: bool,
    canceled: bool,
}

/// A heartbeat under way: when it was asked for, and the answer once it has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Beat {
    asked: u8,
    /// Whether the node was still registered, and the cancels.
    answer: Option<Option<Vec<(Lease, Job)>>>,
}

/// A claim or leased submit under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Call {
    None,
    Sent(Write),
    Answered { node: Node, lease: Lease, jobs: Vec<(Job, Counts)> },
}

/// A finish under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Saving {
    None,
    /// `half`: its first statement has been carried out, the one for successes.
    Sent {
        batch: Vec<Finish>,
        half: bool,
    },
    Answered {
        batch: Vec<Finish>,
    },
}

/// What is sent to the store and may arrive late.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Write {
    /// `seen`: its statement has begun, and has seen whether the node is registered.
    Claim {
        node: Node,
        lease: Lease,
        seen: Option<bool>,
    },
    Submit {
        node: Node,
        lease: Lease,
        job: Job,
        seen: Option<bool>,
    },
    Finish(Vec<Finish>),
}

/// What can happen next. The number is that of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the steps")]
pub enum Action {
    Tick,
    TickPastALiveNode,
    BeatInTime(usize),
    Beat(usize),
    BeatArrives(usize),
    BeatAnswered(usize),
    StopByOwnClock(usize),
    Claim(usize),
    ClaimBegins(usize),
    ClaimArrives(usize),
    ClaimAnswered(usize),
    ClaimLost(usize),
    Submit(usize),
    SubmitBegins(usize),
    SubmitArrives(usize),
    SubmitAnswered(usize),
    SubmitLost(usize),
    HandlerReturns(usize, usize),
    HandlerGivesWay(usize, usize),
    Finish(usize),
    SuccessesArrive(usize),
    FinishArrives(usize),
    FinishAnswered(usize),
    FinishLost(usize),
    GiveBack(usize),
    LateArrives(usize),
    Recover,
    Cancel(Job),
    ShutDown(usize),
    Deregister(usize),
    Crash(usize),
    Freeze(usize),
    GoOn(usize),
    Start(usize),
}

impl Action {
    /// Whether it is a fault or somebody's wish: what need not happen for jobs to end.
    pub fn is_fault(&self) -> bool {
        use Action::*;
        matches!(
            self,
            TickPastALiveNode
                | ClaimLost(_)
                | SubmitLost(_)
                | FinishLost(_)
                | Cancel(_)
                | ShutDown(_)
                | Crash(_)
                | Freeze(_)
        )
    }
}

impl Leases {
    /// Whether every job has ended.
    pub fn is_done(&self, state: &State) -> bool {
        state.store.jobs.iter().all(|job| state.store.ends(*job) == 1)
    }

    fn jobs(&self) -> u8 {
        self.ready + self.born_leased
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Whether the node of a process may be gone between the two looks of a statement at the tables. Where it cannot,
    /// the statement is one step.
    fn may_vanish(&self, p: usize) -> bool {
        p < self.timed || self.faults.crashes + self.faults.shutdowns > 0
    }

    /// When a node must have stopped its jobs at the latest.
    fn must_stop_at(&self) -> u8 {
        if self.is(Sabotage::StopsOnlyAfterAFailedBeat) { LEASE + 1 } else { LATE }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut store = Store::default();
        (0..self.ready).for_each(|job| store.submit(job, None));
        let mut state = State {
            store,
            processes: vec![None; self.processes],
            late: Vec::new(),
            unborn: (self.ready..self.jobs()).collect(),
            left: self.faults,
            killed: vec![0; usize::from(self.jobs())],
            given_away_untold: false,
        };
        (0..self.processes).for_each(|p| state.start(p));
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.time_passes(state, actions);
        if state.store.is_untidy(self.sabotage) {
            actions.push(Action::Recover);
        }
        actions.extend((0..state.late.len()).map(Action::LateArrives));
        if state.left.cancels > 0 {
            let open = state.store.jobs.iter().filter(|job| !state.store.canceled.contains(job));
            actions.extend(open.map(|job| Action::Cancel(*job)));
        }
        for (p, process) in state.processes.iter().enumerate() {
            match process {
                None => actions.push(Action::Start(p)),
                Some(process) => {
                    process.writes_arrive(p, self.may_vanish(p), actions);
                    state.faults(p, process, actions);
                    if process.frozen {
                        actions.push(Action::GoOn(p));
                    } else {
                        self.steps(p, process, state, actions);
                    }
                }
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.act(&mut state, action);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("a job ends at most once", |model: &Leases, state: &State| {
                (0..model.jobs()).all(|job| state.store.ends(job) <= 1)
            }),
            Property::always("no stale fence is accepted", |_, state: &State| !state.store.accepted_stale),
            Property::always("every stored job is in one place", |_, state: &State| {
                state.store.jobs.iter().all(|job| state.store.places(*job) == 1)
            }),
            Property::always("a job kills at most its maximum number of nodes", |_, state: &State| {
                state.killed.iter().all(|killed| *killed <= MAX_RECOVERIES)
            }),
            Property::always("nothing succeeds after its cancel", |_, state: &State| !state.store.success_after_cancel),
            Property::always("jobs are stopped before they are given away", |_, state: &State| {
                !state.given_away_untold
            }),
            Property::always("no attempt of a former node continues without being stopped", |_, state: &State| {
                let alive = state.processes.iter().flatten();
                alive.into_iter().all(|p| p.running.iter().all(|attempt| attempt.told || attempt.node == p.node))
            }),
            Property::always("a release charges no attempt", |_, state: &State| {
                state.store.jobs.iter().all(|job| state.store.counts(*job).is_none_or(|counts| counts.failed == 0))
            }),
            Property::always("without a lost node no attempt is charged", |model: &Leases, state: &State| {
                let faults = model.faults;
                let may_lose = faults.crashes + faults.freezes + faults.losses + faults.silences > 0;
                let recoveries = |job: &Job| state.store.counts(*job).map_or(0, |counts| counts.recoveries);
                may_lose || state.store.jobs.iter().all(|job| recoveries(job) == 0)
            }),
            Property::sometimes("all jobs succeed", |model: &Leases, state: &State| {
                let ended = |job| state.store.outcomes.contains(&(job, End::Succeeded));
                (0..model.jobs()).all(ended)
            }),
            Property::sometimes("all that may go wrong has gone wrong", |_, state: &State| {
                state.left == Faults::default()
            }),
        ];
        let dead = |_: &Leases, state: &State| state.store.outcomes.iter().any(|(_, end)| *end == End::DeadLettered);
        if self.faults.crashes > 0 {
            properties.push(Property::sometimes("a job becomes a dead letter", dead));
        }
        let canceled = |_: &Leases, state: &State| state.store.outcomes.iter().any(|(_, end)| *end == End::Canceled);
        if self.faults.cancels > 0 {
            properties.push(Property::sometimes("a job is canceled", canceled));
        }
        properties
    }
}

// ---- what can happen

impl Leases {
    /// Time passes for all at once, but not before those who are late have stopped their jobs.
    fn time_passes(&self, state: &State, actions: &mut Vec<Action>) {
        let timed = || state.processes.iter().take(self.timed).flatten();
        let must_stop = |p: &Process| {
            !p.frozen && p.unrenewed >= self.must_stop_at() && p.running.iter().any(|attempt| !attempt.told)
        };
        if timed().any(must_stop) {
            return;
        }
        let at_the_edge = timed().any(|p| !p.frozen && state.store.nodes.get(&p.node) == Some(&LEASE));
        match at_the_edge {
            false => actions.push(Action::Tick),
            true if state.left.silences > 0 => actions.push(Action::TickPastALiveNode),
            true => {}
        }
    }

    /// What a process may do that is not frozen.
    fn steps(&self, p: usize, process: &Process, state: &State, actions: &mut Vec<Action>) {
        match &process.beat {
            _ if p >= self.timed => actions.push(Action::BeatInTime(p)),
            None => actions.push(Action::Beat(p)),
            Some(beat) if beat.answer.is_some() => actions.push(Action::BeatAnswered(p)),
            // It is given up when a third of the lease has passed.
            Some(_) => {}
        }
        if process.unrenewed >= LATE && process.running.iter().any(|attempt| !attempt.told) {
            actions.push(Action::StopByOwnClock(p));
        }
        let may_take = !process.stopping && process.unrenewed < LATE;
        match &process.claim {
            Call::None if may_take && !state.store.ready.is_empty() => actions.push(Action::Claim(p)),
            Call::Answered { .. } => actions.push(Action::ClaimAnswered(p)),
            _ => {}
        }
        match &process.submit {
            Call::None if may_take && !state.unborn.is_empty() => actions.push(Action::Submit(p)),
            Call::Answered { .. } => actions.push(Action::SubmitAnswered(p)),
            _ => {}
        }
        for (n, attempt) in process.running.iter().enumerate() {
            actions.push(Action::HandlerReturns(p, n));
            if attempt.told {
                actions.push(Action::HandlerGivesWay(p, n));
            }
        }
        match &process.finish {
            Saving::None if !process.ended.is_empty() => actions.push(Action::Finish(p)),
            Saving::Answered { .. } => actions.push(Action::FinishAnswered(p)),
            _ => {}
        }
        if !process.in_doubt.is_empty() && !self.is(Sabotage::ForgetsUnknownWrites) {
            actions.push(Action::GiveBack(p));
        }
        // Attempts that do not end in their grace are released with the node; what ended before is saved first.
        let saved = process.ended.is_empty() && process.finish == Saving::None;
        let settled = process.claim == Call::None && process.submit == Call::None;
        if process.stopping && saved && (settled || self.is(Sabotage::LeavesDuringAClaim)) {
            actions.push(Action::Deregister(p));
        }
    }
}

impl Process {
    /// What is on its way arrives, whatever the sender does.
    fn writes_arrive(&self, p: usize, may_vanish: bool, actions: &mut Vec<Action>) {
        if self.beat.as_ref().is_some_and(|beat| beat.answer.is_none()) {
            actions.push(Action::BeatArrives(p));
        }
        match &self.claim {
            Call::Sent(Write::Claim { seen: None, .. }) if may_vanish => actions.push(Action::ClaimBegins(p)),
            Call::Sent(_) => actions.push(Action::ClaimArrives(p)),
            _ => {}
        }
        match &self.submit {
            Call::Sent(Write::Submit { seen: None, .. }) if may_vanish => actions.push(Action::SubmitBegins(p)),
            Call::Sent(_) => actions.push(Action::SubmitArrives(p)),
            _ => {}
        }
        if let Saving::Sent { batch, half } = &self.finish {
            actions.push(Action::FinishArrives(p));
            let successes = batch.iter().filter(|finish| finish.transition == Transition::End(End::Succeeded)).count();
            if !half && successes > 0 && successes < batch.len() {
                actions.push(Action::SuccessesArrive(p));
            }
        }
    }
}

impl State {
    fn faults(&self, p: usize, process: &Process, actions: &mut Vec<Action>) {
        if self.left.crashes > 0 {
            actions.push(Action::Crash(p));
        }
        if self.left.freezes > 0 && !process.frozen {
            actions.push(Action::Freeze(p));
        }
        if self.left.shutdowns > 0 && !process.stopping {
            actions.push(Action::ShutDown(p));
        }
        if self.left.losses > 0 && !process.frozen {
            let lost = [
                (process.claim != Call::None, Action::ClaimLost(p)),
                (process.submit != Call::None, Action::SubmitLost(p)),
                (process.finish != Saving::None, Action::FinishLost(p)),
            ];
            actions.extend(lost.into_iter().filter(|(under_way, _)| *under_way).map(|(_, action)| action));
        }
    }
}

// ---- what happens then

impl Leases {
    fn act(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => state.tick(self.timed),
            Action::TickPastALiveNode => {
                state.left.silences -= 1;
                state.tick(self.timed);
            }
            Action::Recover => self.recover(state),
            Action::Cancel(job) => {
                state.left.cancels -= 1;
                state.store.cancel(job);
            }
            Action::LateArrives(n) => {
                let write = state.late.remove(n);
                self.arrives(state, write);
            }
            Action::Start(p) => state.start(p),
            Action::Crash(p) => state.crash(p),
            Action::Deregister(p) => {
                let process = state.processes[p].take().expect("a process that leaves is up");
                state.store.deregister(process.node);
                state.send_on(&process);
            }
            Action::Claim(p) | Action::Submit(p) => self.ask(state, p, matches!(action, Action::Submit(_))),
            Action::ClaimBegins(p) | Action::SubmitBegins(p) => {
                let State { processes, store, .. } = state;
                let process = up(processes, p);
                let call =
                    if matches!(action, Action::ClaimBegins(_)) { &mut process.claim } else { &mut process.submit };
                begin(call, store);
            }
            Action::ClaimArrives(p) => {
                let Call::Sent(write) = std::mem::replace(&mut up(&mut state.processes, p).claim, Call::None) else {
                    return;
                };
                let answer = self.arrives(state, write);
                up(&mut state.processes, p).claim = answer;
            }
            Action::SubmitArrives(p) => {
                let Call::Sent(write) = std::mem::replace(&mut up(&mut state.processes, p).submit, Call::None) else {
                    return;
                };
                let answer = self.arrives(state, write);
                up(&mut state.processes, p).submit = answer;
            }
            Action::BeatArrives(p) => {
                let State { processes, store, .. } = state;
                let process = up(processes, p);
                let answer = store.heartbeat(process.node);
                if let Some(beat) = &mut process.beat {
                    beat.answer = Some(answer);
                }
            }
            Action::BeatAnswered(p) => self.beat_answered(state, p),
            Action::BeatInTime(p) => {
                let node = up(&mut state.processes, p).node;
                let answer = Some(state.store.heartbeat(node));
                up(&mut state.processes, p).beat = Some(Beat { asked: 0, answer });
                self.beat_answered(state, p);
            }
            Action::FinishArrives(p) | Action::SuccessesArrive(p) => {
                let State { processes, store, .. } = state;
                let process = up(processes, p);
                let Saving::Sent { batch, half } = &mut process.finish else { return };
                if matches!(action, Action::SuccessesArrive(_)) {
                    // Plain successes are a statement, and a commit, of their own.
                    let successes = batch.iter().filter(|f| f.transition == Transition::End(End::Succeeded)).cloned();
                    store.finish(&successes.collect::<Vec<_>>(), self.sabotage);
                    *half = true;
                } else {
                    let rest =
                        batch.iter().filter(|f| !*half || f.transition != Transition::End(End::Succeeded)).cloned();
                    store.finish(&rest.collect::<Vec<_>>(), self.sabotage);
                    process.finish = Saving::Answered { batch: std::mem::take(batch) };
                }
            }
            Action::ClaimLost(p) | Action::SubmitLost(p) | Action::FinishLost(p) => {
                state.left.losses -= 1;
                self.lost(state, p, action);
            }
            Action::GiveBack(p) => {
                let State { processes, store, late, .. } = state;
                let process = up(processes, p);
                for lease in std::mem::take(&mut process.in_doubt) {
                    store.give_back(process.node, lease);
                    // Asked again for as long as the write may still happen.
                    if late.iter().any(|write| write.lease() == Some(lease)) {
                        process.in_doubt.push(lease);
                    }
                }
            }
            Action::Freeze(p) => {
                state.left.freezes -= 1;
                up(&mut state.processes, p).frozen = true;
            }
            Action::ShutDown(p) => {
                state.left.shutdowns -= 1;
                let process = up(&mut state.processes, p);
                process.stopping = true;
                process.running.iter_mut().for_each(|attempt| attempt.told = true);
            }
            own => up(&mut state.processes, own.process()).act(own, self),
        }
    }

    /// Sends a claim, or a submit of the next job with a reservation: both under a new lease.
    fn ask(&self, state: &mut State, p: usize, submit: bool) {
        let lease = state.new_lease();
        let process = up(&mut state.processes, p);
        let node = process.node;
        if submit {
            let job = state.unborn.remove(0);
            process.submit = Call::Sent(Write::Submit { node, lease, job, seen: None });
        } else {
            process.claim = Call::Sent(Write::Claim { node, lease, seen: None });
        }
    }

    /// A write reaches the store. Answers what it answers to claims and submits.
    fn arrives(&self, state: &mut State, write: Write) -> Call {
        match write {
            Write::Claim { node, lease, seen } => {
                let registered = seen.unwrap_or(state.store.nodes.contains_key(&node));
                let jobs = if registered { state.store.claim(node, lease) } else { Vec::new() };
                Call::Answered { node, lease, jobs }
            }
            Write::Submit { node, lease, job, seen } => {
                let registered = seen.unwrap_or(state.store.nodes.contains_key(&node));
                state.store.submit(job, registered.then_some((node, lease)));
                // The answer does not say whether it was leased.
                Call::Answered { node, lease, jobs: vec![(job, Counts::default())] }
            }
            Write::Finish(batch) => {
                state.store.finish(&batch, self.sabotage);
                Call::None
            }
        }
    }

    fn recover(&self, state: &mut State) {
        let lost = state.store.recover(self.sabotage);
        let untold = |p: &Process| lost.contains(&p.node) && p.running.iter().any(|a| !a.told && a.node == p.node);
        state.given_away_untold |= state.processes.iter().flatten().any(|p| !p.frozen && !p.woke_late && untold(p));
    }

    /// The store has answered a heartbeat: renewed, or declared dead and so another node from now on.
    fn beat_answered(&self, state: &mut State, p: usize) {
        let process = up(&mut state.processes, p);
        let Some(Beat { asked, answer: Some(answer) }) = process.beat.take() else { return };
        match answer {
            Some(cancels) => {
                process.unrenewed = if self.is(Sabotage::RenewedWhenAnswered) { 0 } else { asked };
                process.woke_late &= process.unrenewed >= LATE;
                for attempt in &mut process.running {
                    if cancels.contains(&(attempt.lease, attempt.job)) {
                        attempt.told = true;
                        attempt.canceled = true;
                    }
                }
            }
            None => {
                let node = state.new_node();
                state.store.register(node);
                let process = up(&mut state.processes, p);
                let old = process.node;
                process.running.iter_mut().filter(|a| a.node == old).for_each(|attempt| attempt.told = true);
                process.node = node;
                process.unrenewed = 0;
                process.woke_late = false;
                process.in_doubt.clear();
            }
        }
    }

    /// A connection breaks: the sender does not know whether its write has happened, or will.
    fn lost(&self, state: &mut State, p: usize, action: Action) {
        let process = up(&mut state.processes, p);
        if let Action::FinishLost(_) = action {
            let (batch, under_way) = match std::mem::replace(&mut process.finish, Saving::None) {
                Saving::Sent { batch, .. } => (batch, true),
                Saving::Answered { batch } => (batch, false),
                Saving::None => return,
            };
            // Repeated while the node is ours; else others will run the jobs.
            process.ended.extend(batch.iter().filter(|finish| finish.node == process.node).cloned());
            process.ended.sort();
            if under_way {
                state.push_late(Write::Finish(batch));
            }
            return;
        }
        let call = if let Action::ClaimLost(_) = action { &mut process.claim } else { &mut process.submit };
        let (lease, write) = match std::mem::replace(call, Call::None) {
            Call::Sent(write) => (write.lease(), Some(write)),
            Call::Answered { lease, .. } => (Some(lease), None),
            Call::None => return,
        };
        process.in_doubt.extend(lease);
        write.into_iter().for_each(|write| state.push_late(write));
    }
}

/// The statement of a claim or submit begins: it looks whether its node is registered. By the time it commits, the node
/// may be gone.
fn begin(call: &mut Call, store: &Store) {
    if let Call::Sent(Write::Claim { node, seen, .. } | Write::Submit { node, seen, .. }) = call {
        *seen = Some(store.nodes.contains_key(node));
    }
}

fn up(processes: &mut [Option<Process>], p: usize) -> &mut Process {
    processes[p].as_mut().expect("only processes that are up act")
}

impl Write {
    fn lease(&self) -> Option<Lease> {
        match self {
            Write::Claim { lease, .. } | Write::Submit { lease, .. } => Some(*lease),
            Write::Finish(_) => None,
        }
    }
}

impl Write {
    fn names_node(&self, other: Node) -> bool {
        match self {
            Write::Claim { node, .. } | Write::Submit { node, .. } => *node == other,
            Write::Finish(batch) => batch.iter().any(|finish| finish.node == other),
        }
    }

    fn names_lease(&self, other: Lease) -> bool {
        match self {
            Write::Finish(batch) => batch.iter().any(|finish| finish.lease == other),
            write => write.lease() == Some(other),
        }
    }
}

impl Process {
    fn names_node(&self, other: Node) -> bool {
        let calls = [&self.claim, &self.submit].into_iter().any(|call| match call {
            Call::None => false,
            Call::Sent(write) => write.names_node(other),
            Call::Answered { node, .. } => *node == other,
        });
        calls
            || self.running.iter().any(|attempt| attempt.node == other)
            || self.unsaved().any(|finish| finish.node == other)
    }

    fn names_lease(&self, other: Lease) -> bool {
        let calls = [&self.claim, &self.submit].into_iter().any(|call| match call {
            Call::None => false,
            Call::Sent(write) => write.names_lease(other),
            Call::Answered { lease, .. } => *lease == other,
        });
        calls
            || self.in_doubt.contains(&other)
            || self.running.iter().any(|attempt| attempt.lease == other)
            || self.unsaved().any(|finish| finish.lease == other)
            || self.heard().any(|lease| lease == other)
    }

    fn unsaved(&self) -> impl Iterator<Item = &Finish> {
        let sent = match &self.finish {
            Saving::None => &[][..],
            Saving::Sent { batch, .. } | Saving::Answered { batch } => batch,
        };
        self.ended.iter().chain(sent)
    }

    /// Leases in an answer to a heartbeat that is on its way.
    fn heard(&self) -> impl Iterator<Item = Lease> {
        let answer = self.beat.as_ref().and_then(|beat| beat.answer.as_ref()?.as_ref());
        answer.into_iter().flatten().map(|(lease, _)| *lease)
    }
}

impl State {
    fn tick(&mut self, timed: usize) {
        // Beyond the lease all is the same.
        let passed = if timed == 0 { LEASE + 1 } else { 1 };
        let later = |thirds: &mut u8| *thirds = (*thirds + passed).min(LEASE + 1);
        let in_time: Vec<Node> = self.processes.iter().skip(timed).flatten().map(|p| p.node).collect();
        self.store.nodes.iter_mut().filter(|(node, _)| !in_time.contains(node)).for_each(|(_, silent)| later(silent));
        for process in self.processes.iter_mut().take(timed).flatten() {
            later(&mut process.unrenewed);
            if let Some(beat) = &mut process.beat {
                later(&mut beat.asked);
            }
            // A beat without an answer is given up after a third of the lease.
            process.beat.take_if(|beat| beat.asked > 1 && !process.frozen);
        }
    }

    /// A number that nothing refers to any more is as good as one that was never used.
    fn new_node(&self) -> Node {
        let alive = || self.processes.iter().flatten();
        let used = |node: Node| {
            self.store.nodes.contains_key(&node)
                || self.store.leases.iter().any(|row| row.node == node)
                || self.late.iter().any(|write| write.names_node(node))
                || alive().any(|p| p.node == node || p.names_node(node))
        };
        (1..).find(|node| !used(*node)).expect("there are fewer nodes than numbers")
    }

    /// The same for leases.
    fn new_lease(&self) -> Lease {
        let alive = || self.processes.iter().flatten();
        let used = |lease: Lease| {
            self.store.newest.values().any(|newest| *newest == lease)
                || self.store.leases.iter().any(|row| row.lease == lease)
                || self.late.iter().any(|write| write.names_lease(lease))
                || alive().any(|p| p.names_lease(lease))
        };
        (1..).find(|lease| !used(*lease)).expect("there are fewer leases than numbers")
    }

    /// A process registers and is a new node.
    fn start(&mut self, p: usize) {
        let node = self.new_node();
        self.store.register(node);
        self.processes[p] = Some(Process {
            node,
            unrenewed: 0,
            frozen: false,
            woke_late: false,
            stopping: false,
            running: Vec::new(),
            ended: Vec::new(),
            beat: None,
            claim: Call::None,
            submit: Call::None,
            finish: Saving::None,
            in_doubt: Vec::new(),
        });
    }

    fn crash(&mut self, p: usize) {
        self.left.crashes -= 1;
        let process = self.processes[p].take().expect("a process that crashes is up");
        for attempt in &process.running {
            self.killed[usize::from(attempt.job)] += 1;
        }
        self.send_on(&process);
    }

    /// What a process that is gone has sent may still arrive.
    fn send_on(&mut self, process: &Process) {
        for call in [&process.claim, &process.submit] {
            if let Call::Sent(write) = call {
                self.push_late(write.clone());
            }
        }
        if let Saving::Sent { batch, .. } = &process.finish {
            self.push_late(Write::Finish(batch.clone()));
        }
    }

    fn push_late(&mut self, write: Write) {
        self.late.push(write);
        self.late.sort();
    }
}

impl Process {
    /// Steps that concern nobody else.
    fn act(&mut self, action: Action, model: &Leases) {
        match action {
            Action::Beat(_) => self.beat = Some(Beat { asked: 0, answer: None }),
            Action::StopByOwnClock(_) => {
                self.woke_late = false;
                self.running.iter_mut().for_each(|attempt| attempt.told = true);
            }
            Action::ClaimAnswered(_) => {
                let answer = std::mem::replace(&mut self.claim, Call::None);
                self.start_claimed(answer, model);
            }
            Action::SubmitAnswered(_) => {
                let answer = std::mem::replace(&mut self.submit, Call::None);
                self.start_claimed(answer, model);
            }
            Action::HandlerReturns(_, n) => self.ends(n, Transition::End(End::Succeeded)),
            Action::HandlerGivesWay(_, n) => self.ends(n, Transition::Release),
            Action::Finish(_) => self.finish = Saving::Sent { batch: std::mem::take(&mut self.ended), half: false },
            Action::FinishAnswered(_) => self.finish = Saving::None,
            Action::GoOn(_) => {
                self.frozen = false;
                self.woke_late = self.unrenewed >= LATE;
            }
            _ => {}
        }
    }

    /// Starts claimed jobs, or turns them away: those with too many recoveries, and all of them if the node is late or
    /// not ours any more.
    fn start_claimed(&mut self, answer: Call, model: &Leases) {
        let Call::Answered { node, lease, jobs } = answer else { return };
        let may_start = node == self.node && self.unrenewed < LATE || model.is(Sabotage::StartsWhateverItClaimed);
        for (job, counts) in jobs {
            let finish = |transition| Finish { node, lease, job, transition };
            if counts.recoveries >= MAX_RECOVERIES {
                self.ended.push(finish(Transition::End(End::DeadLettered)));
            } else if !may_start {
                self.ended.push(finish(Transition::Release));
            } else {
                self.running.push(Attempt { job, node, lease, told: self.stopping, canceled: false });
            }
        }
        self.running.sort();
        self.ended.sort();
    }

    fn ends(&mut self, n: usize, transition: Transition) {
        let Attempt { job, node, lease, canceled, .. } = self.running.remove(n);
        let transition = if canceled { Transition::End(End::Canceled) } else { transition };
        self.ended.push(Finish { node, lease, job, transition });
        self.ended.sort();
    }
}

impl Action {
    /// The process that acts by itself.
    fn process(&self) -> usize {
        use Action::*;
        match *self {
            Beat(p)
            | StopByOwnClock(p)
            | ClaimAnswered(p)
            | SubmitAnswered(p)
            | HandlerReturns(p, _)
            | HandlerGivesWay(p, _)
            | Finish(p)
            | FinishAnswered(p)
            | GoOn(p) => p,
            other => unreachable!("{other:?} concerns more than one process"),
        }
    }
}
