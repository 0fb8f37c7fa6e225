//! What `top` shows and what a key does to it. Pure: `top` reads the store and the keyboard, `view` draws.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use windlass::store::{Counts, NodeRecord};
use windlass::{FailureGroup, HistoryEntry, JobId, JobRecord, Status, Timestamp};

use crate::backend::{Backlog, ENDED_OVER, Ended};
use crate::error::{CliError, Result};

/// What one look saw.
pub(super) struct Seen {
    pub(super) now: Timestamp,
    pub(super) counts: Counts,
    pub(super) running: Vec<JobRecord>,
    pub(super) recent: Vec<JobRecord>,
    pub(super) failures: Vec<FailureGroup>,
    pub(super) nodes: Vec<NodeRecord>,
    pub(super) backlog: Vec<Backlog>,
    /// How many jobs ended lately. Not taken from the counts: they forget jobs whose time is over.
    pub(super) ended: Vec<Ended>,
}

/// One job in full.
pub(super) struct Detail {
    pub(super) job: JobRecord,
    pub(super) why: String,
    pub(super) history: Vec<HistoryEntry>,
}

/// The views, in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Overview,
    Jobs,
    Failures,
    Nodes,
}

impl View {
    pub(super) const ALL: [View; 4] = [View::Overview, View::Jobs, View::Failures, View::Nodes];

    pub(super) fn name(self) -> &'static str {
        match self {
            View::Overview => "Overview",
            View::Jobs => "Jobs",
            View::Failures => "Failures",
            View::Nodes => "Nodes",
        }
    }

    fn step(self, by: isize) -> View {
        let at = View::ALL.iter().position(|view| *view == self).unwrap_or(0) as isize;
        View::ALL[(at + by).rem_euclid(View::ALL.len() as isize) as usize]
    }
}

/// What is to be done because of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    Leave,
    Look,
    Ask(Asked),
}

/// What the place is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Cancel(JobId),
    Retry(JobId),
    Show(JobId),
}

/// What became of that.
pub(super) enum Deed {
    Said(Result<String>),
    Shown(Result<Box<Detail>>),
}

/// What lies over the view.
pub(super) enum Over {
    Nothing,
    Help,
    /// A question, answered with y.
    Sure(Asked),
    Job(Box<Detail>),
}

/// Over how many steps a rate is taken: short enough to follow, long enough not to flicker.
const RATE_STEPS: usize = 2;

/// The state of the screen.
pub(super) struct App {
    pub(super) place: String,
    pub(super) all_tenants: bool,
    pub(super) color: bool,
    pub(super) view: View,
    pub(super) selected: usize,
    pub(super) paused: bool,
    pub(super) over: Over,
    pub(super) message: Option<std::result::Result<String, String>>,
    pub(super) seen: Seen,
}

impl App {
    pub(super) fn new(place: String, all_tenants: bool, color: bool, seen: Seen) -> App {
        App {
            place,
            all_tenants,
            color,
            view: View::Overview,
            selected: 0,
            paused: false,
            over: Over::Nothing,
            message: None,
            seen,
        }
    }

    /// Takes in a look; one that failed is told, and what was seen before stays.
    pub(super) fn saw(&mut self, seen: Result<Seen>) {
        match seen {
            Err(error) => self.message = Some(Err(error.to_string())),
            Ok(seen) => {
                if matches!(self.message, Some(Err(_))) {
                    self.message = None;
                }
                if !self.paused {
                    self.seen = seen;
                    self.selected = self.selected.min(self.lines().saturating_sub(1));
                }
            }
        }
    }

    /// Takes in what became of something that was asked for.
    pub(super) fn did(&mut self, deed: Deed) {
        let told = |error: CliError| Some(Err(error.to_string()));
        match deed {
            Deed::Said(Ok(text)) => self.message = Some(Ok(text)),
            Deed::Shown(Ok(detail)) => self.over = Over::Job(detail),
            Deed::Said(Err(error)) | Deed::Shown(Err(error)) => self.message = told(error),
        }
    }

    /// What a key means.
    pub(super) fn key(&mut self, key: KeyEvent) -> Doing {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Doing::Leave;
        }
        match &self.over {
            Over::Nothing => self.key_on_view(key.code),
            Over::Sure(asked) => {
                let asked = *asked;
                self.over = Over::Nothing;
                match key.code {
                    KeyCode::Char('y' | 'Y') => Doing::Ask(asked),
                    _ => Doing::Nothing,
                }
            }
            Over::Help | Over::Job(_) => {
                self.over = Over::Nothing;
                Doing::Nothing
            }
        }
    }

    fn key_on_view(&mut self, code: KeyCode) -> Doing {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Doing::Leave,
            KeyCode::Char('?' | 'h') => self.over = Over::Help,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return if self.paused { Doing::Nothing } else { Doing::Look };
            }
            KeyCode::Char(digit @ '1'..='4') => self.show(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab | KeyCode::Right => self.show(self.view.step(1)),
            KeyCode::BackTab | KeyCode::Left => self.show(self.view.step(-1)),
            KeyCode::Char('j') | KeyCode::Down => {
                self.selected = (self.selected + 1).min(self.lines().saturating_sub(1));
            }
            KeyCode::Char('k') | KeyCode::Up => self.selected = self.selected.saturating_sub(1),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = self.lines().saturating_sub(1),
            KeyCode::Enter => return self.chosen().map_or(Doing::Nothing, |id| Doing::Ask(Asked::Show(id))),
            KeyCode::Char('c') => self.over = self.chosen().map_or(Over::Nothing, |id| Over::Sure(Asked::Cancel(id))),
            KeyCode::Char('r') => self.over = self.chosen().map_or(Over::Nothing, |id| Over::Sure(Asked::Retry(id))),
            _ => {}
        }
        Doing::Nothing
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.selected = 0;
    }

    /// How many lines of the view can be chosen.
    pub(super) fn lines(&self) -> usize {
        match self.view {
            View::Overview => self.seen.running.len(),
            View::Jobs => self.seen.recent.len(),
            View::Failures => self.seen.failures.len(),
            View::Nodes => self.seen.nodes.len(),
        }
    }

    /// The job of the chosen line; of a group of failures the latest.
    fn chosen(&self) -> Option<JobId> {
        match self.view {
            View::Overview => self.seen.running.get(self.selected).map(|job| job.id),
            View::Jobs => self.seen.recent.get(self.selected).map(|job| job.id),
            View::Failures => self.seen.failures.get(self.selected).map(|group| group.latest),
            View::Nodes => None,
        }
    }

    /// How many jobs came to `status` per second lately.
    pub(super) fn rate(&self, status: Status) -> f64 {
        let steps = self.full_steps();
        let steps = &steps[steps.len().saturating_sub(RATE_STEPS)..];
        let jobs: u64 = steps
            .iter()
            .map(|step| match status {
                Status::Succeeded => step.succeeded,
                Status::Canceled => step.canceled,
                Status::DeadLettered => step.dead_lettered,
                _ => 0,
            })
            .sum();
        let over = ENDED_OVER.resolution().step() * RATE_STEPS as u32;
        jobs as f64 / over.as_secs_f64()
    }

    /// How many jobs ended in each step, newest last.
    pub(super) fn throughput(&self) -> Vec<u64> {
        self.full_steps().iter().map(|step| step.succeeded + step.canceled + step.dead_lettered).collect()
    }

    /// Without the last one, which is not over and would look like a slump.
    fn full_steps(&self) -> &[Ended] {
        &self.seen.ended[..self.seen.ended.len().saturating_sub(1)]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use windlass::TenantId;

    use super::*;

    pub(in crate::top) fn job(id: i64, status: Status) -> JobRecord {
        let created = Timestamp::from_millis(1_800_000_000_000);
        let (handler, queue) = ("email.send".to_owned(), "default".to_owned());
        let mut job = JobRecord::new(JobId::from_i64(id), TenantId::ROOT, handler, queue, created);
        job.status = status;
        job
    }

    pub(in crate::top) fn app() -> App {
        let mut counts = Counts::default();
        counts.add(Status::Running, 2);
        counts.add(Status::Succeeded, 10);
        let seen = Seen {
            now: Timestamp::from_millis(1_800_000_001_000),
            counts,
            running: vec![job(2, Status::Running), job(1, Status::Running)],
            recent: vec![job(3, Status::DeadLettered), job(2, Status::Running), job(1, Status::Running)],
            failures: Vec::new(),
            nodes: Vec::new(),
            backlog: Vec::new(),
            ended: Vec::new(),
        };
        App::new("sqlite:jobs.db".to_owned(), false, false, seen)
    }

    fn press(app: &mut App, code: KeyCode) -> Doing {
        app.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_choose_views_and_lines_and_stay_within_them() {
        let mut app = app();
        for (key, view) in [('2', View::Jobs), ('4', View::Nodes), ('1', View::Overview)] {
            press(&mut app, KeyCode::Char(key));
            assert_eq!(app.view, view);
        }
        press(&mut app, KeyCode::BackTab);
        assert_eq!(app.view, View::Nodes);
        press(&mut app, KeyCode::Tab);
        for _ in 0..5 {
            let _ = press(&mut app, KeyCode::Down);
        }
        assert_eq!(app.selected, 1, "there are two running jobs");
        assert_eq!(press(&mut app, KeyCode::Enter), Doing::Ask(Asked::Show(JobId::from_i64(1))));
    }

    #[test]
    fn a_cancel_is_asked_for_twice() {
        let mut app = app();
        assert_eq!(press(&mut app, KeyCode::Char('c')), Doing::Nothing);
        assert_eq!(press(&mut app, KeyCode::Char('n')), Doing::Nothing, "no is no");
        press(&mut app, KeyCode::Char('c'));
        assert_eq!(press(&mut app, KeyCode::Char('y')), Doing::Ask(Asked::Cancel(JobId::from_i64(2))));
        press(&mut app, KeyCode::Char('4'));
        press(&mut app, KeyCode::Char('c'));
        assert!(matches!(app.over, Over::Nothing), "a node cannot be canceled");
    }

    #[test]
    fn leaving_is_q_escape_or_control_c() {
        for key in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(&mut app(), key), Doing::Leave);
        }
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app().key(control_c), Doing::Leave);
    }

    /// OPS-7: counts fall when retention passes, and rates do not follow them.
    #[test]
    fn rates_are_those_of_the_last_steps_that_are_over() {
        let mut app = app();
        assert_eq!((app.rate(Status::Succeeded), app.throughput()), (0.0, vec![]), "nothing is known");
        let step = |succeeded, dead_lettered| Ended { succeeded, canceled: 0, dead_lettered };
        let mut seen = self::app().seen;
        (seen.counts, seen.ended) = (Counts::default(), vec![step(999, 0), step(30, 0), step(50, 4), step(1, 1)]);
        app.saw(Ok(seen));
        assert_eq!((app.rate(Status::Succeeded), app.rate(Status::DeadLettered)), (4.0, 0.2));
        assert_eq!(app.throughput(), [999, 30, 54]);
    }

    #[test]
    fn a_look_that_failed_changes_nothing() {
        let mut app = app();
        let before = app.seen.counts;
        app.saw(Err(CliError::Unavailable("gone".to_owned())));
        assert_eq!((app.seen.counts, app.message.as_ref().is_some_and(|m| m.is_err())), (before, true));
    }

    #[test]
    fn a_paused_screen_stands_still() {
        let mut app = app();
        press(&mut app, KeyCode::Char('p'));
        let before = app.seen.counts;
        let mut counts = before;
        counts.add(Status::Succeeded, 1);
        app.saw(Ok(Seen { counts, ..self::app().seen }));
        assert_eq!(app.seen.counts, before);
        assert_eq!(press(&mut app, KeyCode::Char('p')), Doing::Look);
    }
}
