//! The leader's term and scheduled runs, with pauses and edits: the protocol of `flows/fire.rs`, of `flows/schedule.rs` and of
//! the stores' `fire` and `change_schedule`. Explored by `tests/cron.rs`.
//!
//! Leadership is a row with a term and an expiry by the store's clock; taking it over raises the term. A leader reads the
//! schedule, and later writes: the run with its unique key (schedule, nominal time) and the next time of the schedule, in one
//! transaction that names the term under which it has read (not the one it has by now: it may have lost and regained
//! leadership in between), the version and the due time that it has read. A write of an older term is refused; so is one
//! whose schedule was fired, edited or paused since. Each due time is fired once: by the leader, by its successor if the
//! leader was lost, and not again if the leader comes back.
//!
//! An edit, or a resume, reads the version and the clock, works out the next time, and writes it later if the version is
//! still the same. Firing does not raise the version, so an edit may set the next time back to one that was fired meanwhile:
//! it comes due again, and its key is what keeps it from running twice. What was due and not fired yet when an edit read the
//! clock is skipped, because an edit counts from then.

use stateright::{Model, Property};

use crate::Sabotage;

/// Nominal times of the one schedule, from 1.
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
    /// How often the schedule is paused at most.
    pub pauses: u8,
    /// How many edits there are, of people who do not know of each other.
    pub edits: usize,
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
    /// Up to which nominal time the schedule has come due: the clock.
    due: Nominal,
    row: Row,
    /// The runs that were stored, by nominal time.
    runs: Vec<Nominal>,
    /// Times that an edit or a resume has passed over.
    skipped: Vec<Nominal>,
    losses: u8,
    pauses: u8,
    /// A resume under way, if there is one.
    resume: Option<Change>,
    edits: Vec<Edit>,
    nodes: Vec<Node>,
    noted: Noted,
}

/// The schedule's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    /// Raised by every change, and not by a fire.
    version: u8,
    paused: bool,
    /// The next time to fire.
    next: Nominal,
}

/// What an edit or a resume has worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Change {
    version: u8,
    next: Nominal,
}

/// How far an edit has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Edit {
    #[default]
    Ahead,
    Begun(Change),
    Over,
}

/// What happened that must not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Noted {
    /// A write of an older term was carried out.
    stale_write: bool,
    /// A fire was carried out of what the schedule was before an edit.
    fired_old: bool,
    /// A fire was carried out while the schedule was paused.
    fired_paused: bool,
    /// An edit was carried out that had not seen another.
    overwritten: bool,
}

/// A node that leads, or believes so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// The term it was given; 0 is none.
    term: u8,
    /// What it has read and is about to fire.
    about_to_fire: Option<Read>,
    /// A write that is under way.
    sent: Option<Read>,
}

/// What a leader has read: the schedule, and the term under which it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Read {
    term: u8,
    version: u8,
    nominal: Nominal,
}

/// What can happen next. The number is that of the node, or of the edit.
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
    Pause,
    Resume,
    ResumeArrives,
    Edit(usize),
    EditArrives(usize),
}

impl Action {
    /// Whether it is a fault: what need not happen for all to be fired.
    pub fn is_fault(&self) -> bool {
        matches!(self, Action::AnswerLost(_) | Action::Crash(_))
    }
}

impl Schedules {
    /// Whether everything that came due was fired, or passed over by a change.
    pub fn is_done(&self, state: &State) -> bool {
        let settled = |nominal| state.runs.contains(&nominal) || state.skipped.contains(&nominal);
        state.due == self.due && (1..=self.due).all(settled)
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// One transaction: refused as a whole if the term is not the newest or the schedule is not what was read; the run only
    /// if its key is free.
    fn fire(&self, state: &mut State, read: Read) {
        let row = state.row;
        if read.term != state.term {
            if !self.is(Sabotage::LeaderWritesWithoutItsTerm) {
                return;
            }
            state.noted.stale_write = true;
        }
        if row.paused && !self.is(Sabotage::PauseOnlyWhenRead) {
            return;
        }
        if read.version != row.version && !self.is(Sabotage::FireWithoutVersion) {
            return;
        }
        if read.nominal != row.next {
            return;
        }
        state.noted.fired_paused |= row.paused;
        state.noted.fired_old |= read.version != row.version;
        if !state.runs.contains(&read.nominal) || self.is(Sabotage::CronWithoutUniqueKey) {
            state.runs.push(read.nominal);
            state.runs.sort_unstable();
        }
        state.row.next = read.nominal + 1;
    }

    /// What an edit or a resume works out now: it counts from the clock.
    fn change(&self, state: &State) -> Change {
        Change { version: state.row.version, next: state.due + 1 }
    }

    /// An edit or a resume is written, if nothing else has changed the schedule. Answers whether it was.
    fn carry_out(&self, state: &mut State, change: Change) -> bool {
        if change.version != state.row.version {
            if !self.is(Sabotage::EditsOverwrite) {
                return false;
            }
            state.noted.overwritten = true;
        }
        for passed in state.row.next..change.next {
            if !state.runs.contains(&passed) && !state.skipped.contains(&passed) {
                state.skipped.push(passed);
                state.skipped.sort_unstable();
            }
        }
        state.row.version += 1;
        state.row.next = change.next;
        true
    }

    fn steps_of_nodes(&self, state: &State, actions: &mut Vec<Action>) {
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
            } else if node.term > 0 && state.row.next <= state.due && !state.row.paused {
                actions.push(Action::Read(n));
            }
            // The last term has no successor, so its leader lives on.
            if node.term > 0 && state.term < self.terms {
                actions.push(Action::Crash(n));
            }
        }
    }

    fn step_of_node(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::TakeOver(n) => {
                // Compare and set: whoever comes second finds the term taken.
                state.term += 1;
                state.expired = false;
                state.nodes[n].term = state.term;
            }
            Action::Read(n) => {
                let (term, row) = (state.nodes[n].term, state.row);
                state.nodes[n].about_to_fire = Some(Read { term, version: row.version, nominal: row.next });
            }
            Action::Fire(n) => {
                let node = &mut state.nodes[n];
                node.sent = node.about_to_fire.take();
            }
            Action::FireArrives(n) => {
                let read = state.nodes[n].sent.take()?;
                self.fire(state, read);
            }
            Action::AnswerLost(n) => {
                // It was carried out, but the node does not know and fires the same time again.
                let read = state.nodes[n].sent.take()?;
                state.losses -= 1;
                self.fire(state, read);
                state.nodes[n].about_to_fire = Some(read);
            }
            Action::Crash(n) => state.nodes[n] = Node::default(),
            _ => return None,
        }
        Some(())
    }
}

impl Model for Schedules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            term: 0,
            expired: true,
            due: 0,
            row: Row { version: 1, paused: false, next: 1 },
            runs: Vec::new(),
            skipped: Vec::new(),
            losses: self.losses,
            pauses: self.pauses,
            resume: None,
            edits: vec![Edit::default(); self.edits],
            nodes: vec![Node::default(); self.nodes],
            noted: Noted::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.due < self.due {
            actions.push(Action::BecomesDue);
        }
        if !state.expired && state.term < self.terms {
            actions.push(Action::Expire);
        }
        self.steps_of_nodes(state, actions);
        if state.pauses > 0 && !state.row.paused {
            actions.push(Action::Pause);
        }
        match state.resume {
            Some(_) => actions.push(Action::ResumeArrives),
            None if state.row.paused => actions.push(Action::Resume),
            None => {}
        }
        for (n, edit) in state.edits.iter().enumerate() {
            match edit {
                Edit::Ahead => actions.push(Action::Edit(n)),
                Edit::Begun(_) => actions.push(Action::EditArrives(n)),
                Edit::Over => {}
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::BecomesDue => state.due += 1,
            Action::Expire => state.expired = true,
            Action::Pause => {
                // Whatever the version: whoever pauses wants it to stop.
                state.pauses -= 1;
                state.row.paused = true;
                state.row.version += u8::from(!self.is(Sabotage::PauseOnlyWhenRead));
            }
            Action::Resume => state.resume = Some(self.change(&state)),
            Action::ResumeArrives => {
                let change = state.resume.take()?;
                if self.carry_out(&mut state, change) {
                    state.row.paused = false;
                }
            }
            Action::Edit(n) => state.edits[n] = Edit::Begun(self.change(&state)),
            Action::EditArrives(n) => {
                let Edit::Begun(change) = std::mem::replace(&mut state.edits[n], Edit::Over) else { return None };
                self.carry_out(&mut state, change);
            }
            action => self.step_of_node(&mut state, action)?,
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a nominal time is fired at most once", |_, state: &State| {
                state.runs.windows(2).all(|runs| runs[0] != runs[1])
            }),
            Property::always("no write of an older term is accepted", |_, state: &State| !state.noted.stale_write),
            Property::always("what the schedule says was fired, was", |_, state: &State| {
                let settled = |nominal| state.runs.contains(&nominal) || state.skipped.contains(&nominal);
                (1..state.row.next).all(|nominal| nominal > state.due || settled(nominal))
            }),
            Property::always("nothing fires before it is due", |_, state: &State| {
                state.runs.iter().all(|nominal| *nominal <= state.due)
            }),
            Property::always("nothing fires after the answer of a pause", |_, state: &State| !state.noted.fired_paused),
            Property::always("what was read before an edit is not fired after it", |_, state: &State| {
                !state.noted.fired_old
            }),
            Property::always("no edit undoes one that it has not seen", |_, state: &State| !state.noted.overwritten),
            Property::always("without edits the schedule does not go back", |model: &Schedules, state: &State| {
                model.edits > 0 || state.runs.iter().all(|run| *run < state.row.next)
            }),
            Property::sometimes("all are fired", |model: &Schedules, state: &State| {
                (1..=model.due).all(|nominal| state.runs.contains(&nominal))
            }),
            Property::sometimes("two nodes believe to lead", |_, state: &State| {
                state.nodes.iter().filter(|node| node.term > 0).count() > 1
            }),
            Property::sometimes(
                "an edit sets the schedule back to a time that was fired",
                |model: &Schedules, state: &State| {
                    model.edits == 0 || state.runs.iter().any(|run| *run >= state.row.next)
                },
            ),
            Property::sometimes("a pause comes between reading and firing", |model: &Schedules, state: &State| {
                model.pauses == 0 || (state.row.paused && state.nodes.iter().any(|node| node.sent.is_some()))
            }),
        ]
    }
}
