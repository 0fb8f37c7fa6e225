//! The race between a pause and what is under way: claims, starts, parking and resuming. The steps have the names of
//! `windlass-core` (worker.rs `paused`, run.rs `turn_away`, maintenance.rs `survey`, store.rs `open_gates`). Explored by
//! `tests/pause.rs`.
//!
//! What is promised: whoever pauses a handler is answered when the pause is stored. Nodes learn of it at their next look
//! (one poll). A job that a node claims before it has learned of the pause may start; once it knows, it starts none of
//! them, also not those it claimed before, but parks them. A look that had read just before the pause may still be on its
//! way, so nothing starts later than the time one look takes plus the interval to the next.

use stateright::{Model, Property};

use crate::Sabotage;

/// The model with its bounds. Time is counted in looks: no node goes without a look for longer than one.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    /// Nodes that claim.
    pub nodes: usize,
    /// How often the handler is paused and resumed.
    pub rounds: u8,
    /// What is done wrong on purpose.
    pub sabotage: Option<Sabotage>,
}

/// Where the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Ready,
    /// Held by a node; running once it has started.
    Leased(usize),
    /// Parked behind the pause.
    Gated,
    Ended,
}

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    job: Place,
    /// Whether the pause is stored, and so answered.
    paused: bool,
    /// Looks since the pause was stored; more than three are the same.
    since: u8,
    left: u8,
    nodes: Vec<Node>,
    /// Noted: the job started although it had been paused for longer than a look and an interval.
    started_late: bool,
    /// Noted: a node started the job although it knew of the pause.
    started_knowingly: bool,
}

/// What a node knows and does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    knows: bool,
    /// Looks since its last one.
    unlooked: u8,
    /// What its look at the store has seen, on its way back.
    seen: Option<bool>,
    claim: Claim,
    /// It wants to park the job; under way to the store.
    parks: bool,
    runs: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Claim {
    #[default]
    None,
    Sent,
    Answered {
        got: bool,
    },
}

/// What can happen next. The number is that of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the steps")]
pub enum Action {
    Tick,
    Pause,
    Resume,
    OpenGates,
    Look(usize),
    Learn(usize),
    Claim(usize),
    ClaimArrives(usize),
    StartOrPark(usize),
    ParkArrives(usize),
    Finish(usize),
}

impl Action {
    /// Whether it is somebody's wish: what need not happen for jobs to end.
    pub fn is_fault(&self) -> bool {
        matches!(self, Action::Pause)
    }
}

impl Pauses {
    /// Whether the job has ended.
    pub fn is_done(&self, state: &State) -> bool {
        state.job == Place::Ended
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }
}

impl Model for Pauses {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            job: Place::Ready,
            paused: false,
            since: 0,
            left: self.rounds,
            nodes: vec![Node::default(); self.nodes],
            started_late: false,
            started_knowingly: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A look is under way at most as long as the interval between looks; then the node asks again.
        if state.nodes.iter().all(|node| node.unlooked == 0) {
            actions.push(Action::Tick);
        }
        match state.paused {
            false if state.left > 0 => actions.push(Action::Pause),
            true => actions.push(Action::Resume),
            false => {}
        }
        if state.job == Place::Gated && !state.paused && !self.is(Sabotage::GatesNotOpenedAgain) {
            actions.push(Action::OpenGates);
        }
        for (n, node) in state.nodes.iter().enumerate() {
            actions.push(if node.seen.is_some() { Action::Learn(n) } else { Action::Look(n) });
            match node.claim {
                // A claim under a pause of one handler goes on for the others; this job may be among what it finds.
                Claim::None if state.job == Place::Ready && !node.runs && !node.parks => actions.push(Action::Claim(n)),
                Claim::None => {}
                Claim::Sent => actions.push(Action::ClaimArrives(n)),
                Claim::Answered { .. } => actions.push(Action::StartOrPark(n)),
            }
            if node.parks {
                actions.push(Action::ParkArrives(n));
            }
            if node.runs {
                actions.push(Action::Finish(n));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick => {
                state.since = (state.since + 1).min(3);
                state.nodes.iter_mut().for_each(|node| node.unlooked += 1);
            }
            Action::Pause => {
                state.left -= 1;
                state.paused = true;
                state.since = 0;
            }
            Action::Resume => state.paused = false,
            Action::OpenGates => state.job = Place::Ready,
            Action::Look(n) => state.nodes[n].seen = Some(state.paused),
            Action::Learn(n) => {
                let node = &mut state.nodes[n];
                node.knows = node.seen.take().unwrap_or(node.knows);
                node.unlooked = 0;
            }
            Action::Claim(n) => state.nodes[n].claim = Claim::Sent,
            Action::ClaimArrives(n) => {
                let got = state.job == Place::Ready;
                if got {
                    state.job = Place::Leased(n);
                }
                state.nodes[n].claim = Claim::Answered { got };
            }
            Action::StartOrPark(n) => {
                let node = &mut state.nodes[n];
                let Claim::Answered { got } = std::mem::take(&mut node.claim) else { return None };
                let knows = node.knows && !self.is(Sabotage::PauseIgnoredByClaimsInFlight);
                node.parks = got && knows;
                node.runs = got && !knows;
                state.started_knowingly |= node.runs && node.knows;
                state.started_late |= node.runs && state.paused && state.since > 2;
            }
            Action::ParkArrives(n) => {
                state.nodes[n].parks = false;
                state.job = Place::Gated;
            }
            Action::Finish(n) => {
                state.nodes[n].runs = false;
                state.job = Place::Ended;
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing starts once the next poll must have seen the pause", |_, state: &State| {
                !state.started_late
            }),
            Property::always("no node starts what it knows to be paused", |_, state: &State| !state.started_knowingly),
            Property::sometimes("a job claimed before the pause starts after it", |_, state: &State| {
                state.paused && state.nodes.iter().any(|node| node.runs)
            }),
            Property::sometimes("a job is parked", |_, state: &State| state.job == Place::Gated),
            Property::sometimes("a job is parked by a pause that is over", |_, state: &State| {
                state.job == Place::Gated && !state.paused
            }),
            Property::sometimes("the job ends", |_, state: &State| state.job == Place::Ended),
        ]
    }
}
