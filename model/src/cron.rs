//! The leader's term and scheduled runs: the protocol of `flows/fire.rs` and the stores' `fire`. Explored by `tests/cron.rs`.
//!
//! Leadership is a row with a term and an expiry by the store's clock; taking it over raises the term. A leader reads the
//! schedule, and later writes: the run with its unique key (schedule, nominal time) and the mark how far the schedule has
//! come, in one transaction that names the term under which it has read (not the one it has by now: it may have lost and
//! regained leadership in between). A write of an older term is refused. Each due time is fired once: by the
//! leader, by its successor if the leader was lost, and not again if the leader comes back.

use stateright::{Model, Property};

use crate::Sabotage;

/// Nominal times of the one schedule.
type Nominal = u8;

/// The model with its bounds.
#[derive(Clone, Debug, Default)]
pub struct Schedules {
    /// Nodes that may lead.
    pub nodes: usize,
    /// How many times come due.
    pub due: Nominal,
    /// How many terms there are at most.
    pub terms: u8,
    /// How many answers may be lost.
    pub losses: u8,
    /// What is done wrong on purpose.
    pub sabotage: Option<Sabotage>,
}

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The term row: the newest term. Its holder is the node that knows it.
    term: u8,
    /// Whether the term has run out by the store's clock, so that it can be taken over.
    expired: bool,
    /// Up to which nominal time the schedule has come due.
    due: Nominal,
    /// Up to which it was fired, as the schedule's row says.
    fired: Nominal,
    /// The runs that were stored, by nominal time.
    runs: Vec<Nominal>,
    losses: u8,
    nodes: Vec<Node>,
    /// Noted: a write of an older term was carried out.
    stale_write: bool,
}

/// A node that leads, or believes so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// The term it was given; 0 is none.
    term: u8,
    /// What it has read and is about to fire, with the term under which it read.
    about_to_fire: Option<(u8, Nominal)>,
    /// A write that is under way, with its term.
    sent: Option<(u8, Nominal)>,
}

/// What can happen next. The number is that of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the steps")]
pub enum Action {
    BecomesDue,
    Expire,
    TakeOver(usize),
    Read(usize),
    Fire(usize),
    FireArrives(usize),
    AnswerLost(usize),
    Crash(usize),
}

impl Action {
    /// Whether it is a fault: what need not happen for all to be fired.
    pub fn is_fault(&self) -> bool {
        matches!(self, Action::AnswerLost(_) | Action::Crash(_))
    }
}

impl Schedules {
    /// Whether everything that came due was fired.
    pub fn is_done(&self, state: &State) -> bool {
        state.due == self.due && (1..=self.due).all(|nominal| state.runs.contains(&nominal))
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// One transaction: refused as a whole if the term is not the newest; the run only if its key is free.
    fn fire(&self, state: &mut State, term: u8, nominal: Nominal) {
        if term != state.term {
            if !self.is(Sabotage::LeaderWritesWithoutItsTerm) {
                return;
            }
            state.stale_write = true;
        }
        if !state.runs.contains(&nominal) || self.is(Sabotage::CronWithoutUniqueKey) {
            state.runs.push(nominal);
            state.runs.sort_unstable();
        }
        state.fired = nominal;
    }
}

impl Model for Schedules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let nodes = vec![Node::default(); self.nodes];
        let losses = self.losses;
        let runs = Vec::new();
        vec![State { term: 0, expired: true, due: 0, fired: 0, runs, losses, nodes, stale_write: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.due < self.due {
            actions.push(Action::BecomesDue);
        }
        if !state.expired && state.term < self.terms {
            actions.push(Action::Expire);
        }
        for (n, node) in state.nodes.iter().enumerate() {
            if state.expired {
                actions.push(Action::TakeOver(n));
            }
            if node.sent.is_some() {
                actions.push(Action::FireArrives(n));
                if state.losses > 0 {
                    actions.push(Action::AnswerLost(n));
                }
            } else if node.about_to_fire.is_some() {
                actions.push(Action::Fire(n));
            } else if node.term > 0 && state.fired < state.due {
                actions.push(Action::Read(n));
            }
            // The last term has no successor, so its leader lives on.
            if node.term > 0 && state.term < self.terms {
                actions.push(Action::Crash(n));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::BecomesDue => state.due += 1,
            Action::Expire => state.expired = true,
            Action::TakeOver(n) => {
                // Compare and set: whoever comes second finds the term taken.
                state.term += 1;
                state.expired = false;
                state.nodes[n].term = state.term;
            }
            Action::Read(n) => state.nodes[n].about_to_fire = Some((state.nodes[n].term, state.fired + 1)),
            Action::Fire(n) => {
                let node = &mut state.nodes[n];
                node.sent = node.about_to_fire.take();
            }
            Action::FireArrives(n) => {
                let (term, nominal) = state.nodes[n].sent.take()?;
                self.fire(&mut state, term, nominal);
            }
            Action::AnswerLost(n) => {
                // It was carried out, but the node does not know and fires the same time again.
                let (term, nominal) = state.nodes[n].sent.take()?;
                state.losses -= 1;
                self.fire(&mut state, term, nominal);
                state.nodes[n].about_to_fire = Some((term, nominal));
            }
            Action::Crash(n) => state.nodes[n] = Node::default(),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a nominal time is fired at most once", |_, state: &State| {
                state.runs.windows(2).all(|runs| runs[0] != runs[1])
            }),
            Property::always("no write of an older term is accepted", |_, state: &State| !state.stale_write),
            Property::always("what the schedule says was fired, was", |_, state: &State| {
                (1..=state.fired).all(|nominal| state.runs.contains(&nominal))
            }),
            Property::always("the schedule does not go back", |_, state: &State| {
                state.runs.iter().all(|run| *run <= state.fired)
            }),
            Property::sometimes("all are fired", |model: &Schedules, state: &State| model.is_done(state)),
            Property::sometimes("two nodes believe to lead", |_, state: &State| {
                state.nodes.iter().filter(|node| node.term > 0).count() > 1
            }),
        ]
    }
}
