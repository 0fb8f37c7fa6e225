//! A history sorted by what it is about: calls, jobs, nodes, processes, pauses. Built once, read by every check. Pairs
//! calls with their answers and never judges.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use crate::event::{Asked, End, FinishEnd, Held, TransactionEnd, What};
use crate::history::{History, Job, Place, Step};

/// The statuses of ended jobs.
const ENDED: [&str; 3] = ["succeeded", "canceled", "dead_lettered"];

pub(super) fn is_end(status: &str) -> bool {
    ENDED.contains(&status)
}

pub(super) struct Index<'a> {
    pub(super) history: &'a History,
    pub(super) calls: BTreeMap<u64, Call<'a>>,
    pub(super) lives: BTreeMap<i64, Life<'a>>,
    pub(super) nodes: BTreeMap<i64, Node>,
    pub(super) procs: BTreeMap<u32, Proc>,
    pub(super) pauses: Vec<Paused<'a>>,
    /// Every answered claim, in order of its answer.
    pub(super) claims: Vec<Batch<'a>>,
    pub(super) purged: BTreeSet<i64>,
    /// Jobs that a note says were made on purpose by other means than a call.
    pub(super) declared: BTreeSet<i64>,
    /// Schedules that somebody has stored, or may have: tenant and name.
    pub(super) schedules: BTreeSet<(Uuid, &'a str)>,
}

/// A submit and its answer.
pub(super) struct Call<'a> {
    pub(super) asked: &'a Asked,
    pub(super) called: u64,
    pub(super) answer: Answer,
    /// How the transaction around it ended, and when that was known.
    pub(super) end: Option<(TransactionEnd, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
    Ok { job: i64, duplicate: bool, at: u64 },
    Refused,
    Unknown,
}

impl Call<'_> {
    /// The job that this call surely has, when it was told so: an answer inside a transaction counts once that has
    /// committed.
    pub(super) fn acknowledged(&self) -> Option<(i64, bool, u64)> {
        let Answer::Ok { job, duplicate, at } = self.answer else { return None };
        match self.end {
            _ if !self.asked.in_transaction => Some((job, duplicate, at)),
            Some((TransactionEnd::Committed, at)) => Some((job, duplicate, at)),
            _ => None,
        }
    }
}

/// All that is known of one job.
#[derive(Default)]
pub(super) struct Life<'a> {
    pub(super) job: Option<&'a Job>,
    pub(super) places: Vec<&'a Place>,
    pub(super) steps: Vec<&'a Step>,
    /// The calls that were answered with this job.
    pub(super) calls: Vec<u64>,
    pub(super) claims: Vec<Claim<'a>>,
    pub(super) finishes: Vec<Finish<'a>>,
    pub(super) writes: Vec<Write<'a>>,
    pub(super) starts: Vec<Start>,
    /// When and under which lease.
    pub(super) effects: Vec<(u64, i64)>,
    /// When, under which lease, and whether because the lease was lost.
    pub(super) told: Vec<(u64, i64, bool)>,
    /// When, under which lease, and how handlers returned.
    pub(super) ends: Vec<(u64, i64, End)>,
    pub(super) cancels: Vec<Cancel<'a>>,
    pub(super) replays: Vec<u64>,
    /// When it was taken back, and from which nodes.
    pub(super) recovered: Vec<(u64, &'a [i64])>,
    pub(super) seen: Vec<Seen<'a>>,
}

/// A job in the answer to a claim.
#[derive(Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) proc: u32,
    pub(super) node: i64,
    pub(super) lease: i64,
    pub(super) asked: u64,
    pub(super) at: u64,
    pub(super) held: &'a Held,
}

/// A claim as a whole.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) proc: u32,
    pub(super) lease: i64,
    pub(super) asked: u64,
    pub(super) at: u64,
    pub(super) born: bool,
    pub(super) max: usize,
    pub(super) jobs: &'a [Held],
}

/// The end of an attempt that a node asked for.
pub(super) struct Finish<'a> {
    pub(super) called: u64,
    pub(super) end: &'a FinishEnd,
    pub(super) answer: Ended<'a>,
}

/// What a node was told about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ended<'a> {
    Accepted {
        status: &'a str,
        at: u64,
    },
    Fenced,
    /// Surely not written.
    Failed,
    /// Written or not: the answer was lost, or never came.
    Unknown,
}

impl<'a> Finish<'a> {
    pub(super) fn accepted(&self) -> Option<(&'a str, u64)> {
        match self.answer {
            Ended::Accepted { status, at } => Some((status, at)),
            _ => None,
        }
    }
}

pub(super) struct Write<'a> {
    pub(super) what: &'a str,
    pub(super) lease: i64,
    pub(super) asked: u64,
    pub(super) at: u64,
    pub(super) accepted: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) at: u64,
    pub(super) lease: i64,
    pub(super) attempt: u16,
    pub(super) tenant: Uuid,
    pub(super) canary: Option<Uuid>,
}

pub(super) struct Cancel<'a> {
    pub(super) called: u64,
    /// What it was answered, and when.
    pub(super) reply: Option<(&'a str, u64)>,
}

pub(super) struct Seen<'a> {
    pub(super) at: u64,
    pub(super) scope: Option<Uuid>,
    pub(super) tenant: Uuid,
    pub(super) status: &'a str,
}

/// A node's signs of life.
#[derive(Default)]
pub(super) struct Node {
    /// Answers to heartbeats that said it is alive.
    pub(super) beats: Vec<u64>,
    /// From when on it was surely declared dead, or had surely left.
    pub(super) gone: Option<u64>,
    /// Whether it left in good order.
    pub(super) left: bool,
}

impl Node {
    /// Whether the node was surely alive at some time after `at`: a heartbeat was asked and answered after it. The first
    /// one answered after it may have been asked before.
    pub(super) fn lives_past(&self, at: u64) -> bool {
        self.beats.len() - self.beats.partition_point(|beat| *beat <= at) >= 2
    }
}

#[derive(Default)]
pub(super) struct Proc {
    /// The time of each event, in order.
    pub(super) signs: Vec<u64>,
    pub(super) up: bool,
    pub(super) down: bool,
    /// When it last asked to give a job back by itself, as a node does that shuts down.
    pub(super) last_release: Option<u64>,
}

impl Proc {
    pub(super) fn last_sign_before(&self, at: u64) -> Option<u64> {
        self.signs[..self.signs.partition_point(|sign| *sign < at)].last().copied()
    }
}

/// A pause, from its acknowledgement until the call of its resume.
pub(super) struct Paused<'a> {
    pub(super) target: &'a str,
    pub(super) from: u64,
    pub(super) until: u64,
}

impl Paused<'_> {
    pub(super) fn covers(&self, handler: &str, tenant: Option<Uuid>) -> bool {
        match self.target.split_once(':') {
            None => self.target == "all",
            Some(("handler", name)) => name == handler,
            Some(("tenant", id)) => tenant.is_some_and(|tenant| id.parse() == Ok(tenant)),
            Some(_) => false,
        }
    }
}

impl<'a> Index<'a> {
    /// Whether a crash of the server before `at` may have undone a claim.
    pub(super) fn is_undone(&self, claim: &Claim<'_>, at: u64) -> bool {
        /// What is not waited for is on disk after at most three rounds of the server's log writer, 200 ms each.
        const ON_DISK_AFTER_US: u64 = 1_000_000;
        let crashes = &self.history.rules.crashes;
        crashes.iter().any(|crash| *crash < at && claim.asked <= *crash && *crash < claim.at + ON_DISK_AFTER_US)
    }

    pub(super) fn new(history: &'a History) -> Index<'a> {
        let mut index = Index {
            history,
            calls: BTreeMap::new(),
            lives: BTreeMap::new(),
            nodes: BTreeMap::new(),
            procs: BTreeMap::new(),
            pauses: Vec::new(),
            claims: Vec::new(),
            purged: history.dump.purged.iter().copied().collect(),
            declared: BTreeSet::new(),
            schedules: BTreeSet::new(),
        };
        index.read_events();
        index.read_dump();
        for life in index.lives.values_mut() {
            life.claims.sort_by_key(|claim| claim.at);
        }
        index
    }

    fn read_events(&mut self) {
        let mut open = Open::default();
        for event in &self.history.events {
            self.procs.entry(event.proc).or_default().signs.push(event.mono);
            self.read_event(event.proc, event.mono, &event.what, &mut open);
        }
        // What was never answered may have happened.
        for finishes in open.finishes.into_values() {
            self.close(finishes, |_| Ended::Unknown);
        }
        for (_, job, called) in open.cancels {
            self.life(job).cancels.push(Cancel { called, reply: None });
        }
    }

    fn read_event(&mut self, proc: u32, at: u64, what: &'a What, open: &mut Open<'a>) {
        match what {
            What::SubmitCall { call, asked } => {
                self.calls.insert(*call, Call { asked, called: at, answer: Answer::Unknown, end: None });
            }
            What::SubmitOk { call, job, duplicate } => {
                self.answer(*call, Answer::Ok { job: *job, duplicate: *duplicate, at });
                self.life(*job).calls.push(*call);
            }
            What::SubmitRefused { call, .. } => self.answer(*call, Answer::Refused),
            What::SubmitUnknown { call, .. } => self.answer(*call, Answer::Unknown),
            What::TransactionEnd { call, end } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.end = Some((*end, at));
                }
            }
            What::Claim { node, lease, asked_at, born, max, jobs } => {
                let (node, lease, asked, born, max) = (*node, *lease, *asked_at, *born, *max);
                self.nodes.entry(node).or_default();
                self.claims.push(Batch { proc, lease, asked, at, born, max, jobs });
                for held in jobs {
                    self.life(held.job).claims.push(Claim { proc, node, lease, asked, at, held });
                }
            }
            What::FinishCall { batch, ends } => {
                if ends.iter().any(|end| end.transition == "release") {
                    self.procs.entry(proc).or_default().last_release = Some(at);
                }
                open.finishes.insert((proc, *batch), (at, ends));
            }
            What::FinishReply { batch, replies } => {
                let Some(finishes) = open.finishes.remove(&(proc, *batch)) else { return };
                self.close(finishes, |n| match replies.get(n) {
                    Some(Some(status)) => Ended::Accepted { status, at },
                    Some(None) => Ended::Fenced,
                    None => Ended::Unknown,
                });
            }
            What::FinishFailed { batch, unknown, .. } => {
                let Some(finishes) = open.finishes.remove(&(proc, *batch)) else { return };
                self.close(finishes, |_| if *unknown { Ended::Unknown } else { Ended::Failed });
            }
            What::Write { what, job, lease, asked_at, accepted } => {
                let write = Write { what, lease: *lease, asked: *asked_at, at, accepted: *accepted };
                self.life(*job).writes.push(write);
            }
            What::Beat { node, alive } => {
                let node = self.nodes.entry(*node).or_default();
                match alive {
                    true => node.beats.push(at),
                    false => node.gone = node.gone.or(Some(at)),
                }
            }
            What::Recovered { nodes, jobs } => {
                for node in nodes {
                    let node = self.nodes.entry(*node).or_default();
                    node.gone = node.gone.or(Some(at));
                }
                for job in jobs {
                    self.life(*job).recovered.push((at, nodes));
                }
            }
            What::Deregistered { node } => {
                let node = self.nodes.entry(*node).or_default();
                node.gone = node.gone.or(Some(at));
                node.left = true;
            }
            What::Start { job, lease, attempt, tenant, canary } => {
                let (lease, attempt, tenant, canary) = (*lease, *attempt, *tenant, *canary);
                self.life(*job).starts.push(Start { at, lease, attempt, tenant, canary });
            }
            What::Effect { job, lease, .. } => self.life(*job).effects.push((at, *lease)),
            What::Told { job, lease, lease_lost } => self.life(*job).told.push((at, *lease, *lease_lost)),
            What::End { job, lease, how, .. } => self.life(*job).ends.push((at, *lease, *how)),
            What::CancelCall { job } => open.cancels.push((proc, *job, at)),
            What::CancelReply { job, reply } => {
                let mut calls = open.cancels.iter();
                let Some(place) = calls.position(|call| (call.0, call.1) == (proc, *job)) else { return };
                let (_, _, called) = open.cancels.remove(place);
                self.life(*job).cancels.push(Cancel { called, reply: Some((reply, at)) });
            }
            What::Replayed { job } => self.life(*job).replays.push(at),
            What::Paused { target } => self.pauses.push(Paused { target, from: at, until: u64::MAX }),
            What::Resuming { target } => {
                for pause in self.pauses.iter_mut().filter(|pause| pause.target == target) {
                    pause.until = pause.until.min(at);
                }
            }
            What::Seen { scope, job, tenant, status } => {
                let seen = Seen { at, scope: *scope, tenant: *tenant, status };
                self.life(*job).seen.push(seen);
            }
            What::Up { .. } => self.procs.entry(proc).or_default().up = true,
            What::Down => self.procs.entry(proc).or_default().down = true,
            What::Note { text } => self.declared.extend(declares(text)),
            What::SchedulePut { tenant, name } => drop(self.schedules.insert((*tenant, name))),
            // Read by the check of schedules.
            What::ScheduleStored { .. }
            | What::SchedulePaused { .. }
            | What::ScheduleResuming { .. }
            | What::Leads { .. }
            | What::HeldBack { .. }
            | What::Fired { .. } => {}
            What::Fault { .. } | What::Healed { .. } => {}
        }
    }

    fn answer(&mut self, call: u64, answer: Answer) {
        if let Some(call) = self.calls.get_mut(&call) {
            call.answer = answer;
        }
    }

    fn close(&mut self, (called, ends): (u64, &'a [FinishEnd]), answer: impl Fn(usize) -> Ended<'a>) {
        for (n, end) in ends.iter().enumerate() {
            self.life(end.job).finishes.push(Finish { called, end, answer: answer(n) });
        }
    }

    fn read_dump(&mut self) {
        let dump = &self.history.dump;
        for job in &dump.jobs {
            self.life(job.job).job = Some(job);
        }
        for place in &dump.places {
            self.life(place.job).places.push(place);
        }
        for step in &dump.steps {
            self.life(step.job).steps.push(step);
        }
    }

    fn life(&mut self, job: i64) -> &mut Life<'a> {
        self.lives.entry(job).or_default()
    }

    /// The call that made a job: the one its input names, or the first that was told it is new.
    pub(super) fn maker(&self, life: &Life<'a>) -> Option<&Call<'a>> {
        if let Some(call) = life.job.and_then(|job| job.call) {
            return self.calls.get(&call);
        }
        let mut calls = life.calls.iter().filter_map(|call| self.calls.get(call));
        calls.find(|call| matches!(call.answer, Answer::Ok { duplicate: false, .. }))
    }

    pub(super) fn handler(&self, life: &Life<'a>) -> Option<&'a str> {
        let stored = life.job.map(|job| job.handler.as_str());
        stored.or_else(|| self.maker(life).map(|call| call.asked.handler.as_str()))
    }

    pub(super) fn tenant(&self, life: &Life<'a>) -> Option<Uuid> {
        let stored = life.job.map(|job| job.tenant);
        stored.or_else(|| self.maker(life).map(|call| call.asked.tenant))
    }

    /// The database's time of a moment.
    pub(super) fn database_time(&self, mono: u64) -> i64 {
        let rules = &self.history.rules;
        mono as i64 + rules.wall_minus_mono_us + rules.database_minus_wall_us
    }
}

impl<'a> Life<'a> {
    /// Where the job is at the end, if in one place.
    pub(super) fn place(&self) -> Option<&'a Place> {
        match self.places.as_slice() {
            [place] => Some(place),
            _ => None,
        }
    }

    pub(super) fn claim(&self, lease: i64) -> Option<&Claim<'a>> {
        self.claims.iter().find(|claim| claim.lease == lease)
    }

    /// Whether the job has been replayed, as far as anyone has noticed.
    pub(super) fn was_replayed(&self) -> bool {
        let dead = self.steps.iter().any(|step| step.status == "dead_lettered");
        !self.replays.is_empty() || dead
    }

    /// The earliest time at which the job can have ended for the first time: `None` if that is not known, the dump's time
    /// if it has not.
    pub(super) fn first_end(&self, dumped: u64) -> Option<u64> {
        let canceled = self.cancels.iter().filter(|cancel| cancel.may_count()).map(|cancel| cancel.called);
        let may_be_canceled = canceled.clone().min();
        let finished = self.finishes.iter().filter(|finish| match finish.answer {
            Ended::Accepted { status, .. } => is_end(status),
            Ended::Unknown => ends_job(&finish.end.transition) || may_be_canceled.is_some(),
            Ended::Fenced | Ended::Failed => false,
        });
        let logged = finished.map(|finish| finish.called).chain(canceled).min();
        let place = self.place()?;
        if !is_end(&place.status) && !self.was_replayed() {
            return Some(dumped);
        }
        // An end that nobody logged (it expired, or was completed in its own transaction) has no known time.
        let explained = self.finishes.iter().any(|finish| match finish.answer {
            Ended::Accepted { status, .. } => status == place.status,
            Ended::Unknown => true,
            Ended::Fenced | Ended::Failed => false,
        });
        let explained = explained || (may_be_canceled.is_some() && place.status == "canceled");
        logged.filter(|_| explained)
    }
}

impl Cancel<'_> {
    /// Whether the job may be canceled because of it: anything but an answer that says nothing was done.
    pub(super) fn may_count(&self) -> bool {
        !matches!(self.reply, Some(("finished" | "not_found", _)))
    }
}

/// Whether a transition ends the job.
pub(super) fn ends_job(transition: &str) -> bool {
    matches!(transition, "succeed" | "dead_letter" | "cancel")
}

/// Calls that wait for their answers, while events are read.
#[derive(Default)]
struct Open<'a> {
    finishes: HashMap<(u32, u64), (u64, &'a [FinishEnd])>,
    /// Process, job, time; in order, since answers come in the order of calls for one job.
    cancels: Vec<(u32, i64, u64)>,
}

/// A note `job 123 …` says that this job was made by other means than a call of the run.
fn declares(note: &str) -> Option<i64> {
    note.strip_prefix("job ")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
