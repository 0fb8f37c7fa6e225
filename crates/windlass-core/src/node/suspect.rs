//! Who may have killed a lost node, and how suspects run until that is known. Pure: stores note a [`Loss`] of every job
//! that a lost node held; nodes ask [`Isolation`] whether a suspect may start, and `lifecycle` whether it ever may. Why
//! this ends with one dead letter is in `docs/decisions/0007-suspects-run-in-cohorts.md`.

use std::time::{Duration, Instant};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use crate::life::notes;
use crate::model::error::{JobError, Reason};
use crate::model::id::JobId;

/// What is known of a job when its node was lost: the details of that attempt's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// For how many milliseconds it had run at the node's last sign of life.
    pub ran_ms: u64,
    /// How many jobs of the node may have been the cause, this one among them: those that were lost as often or more
    /// often, and had not outlived their own last loss.
    pub suspects: u32,
    /// Whether it had outlived its last loss, and so was not the cause this time. Then the rest is of that last loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outlived: bool,
}

/// A job that a lost node held.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// How many nodes were lost with it before.
    pub recoveries: u16,
    /// For how many milliseconds it had run at the node's last sign of life.
    pub ran_ms: u64,
    /// What was noted the last time, if its last attempt ended so.
    pub before: Option<Loss>,
}

impl Loss {
    /// What the last error of a job says of it when it is claimed again. One that ran to an ordinary failure after its last
    /// loss has outlived it.
    pub(crate) fn after(last: Option<&JobError>) -> Option<Loss> {
        match last {
            Some(error) if error.code != Reason::NodeUnavailable.as_str() => {
                Some(Loss { ran_ms: 0, suspects: 1, outlived: true })
            }
            last => last.and_then(Loss::of),
        }
    }

    /// From the error of an attempt.
    pub fn of(error: &JobError) -> Option<Loss> {
        let details = error.details.as_ref().filter(|_| error.code == Reason::NodeUnavailable.as_str())?;
        serde_json::from_value(details.clone()).ok()
    }

    /// The error of an attempt that ended so.
    pub fn error(&self) -> JobError {
        notes::node_lost().with_details(serde_json::to_value(self).expect("numbers are JSON"))
    }
}

/// What to note of each job that one lost node held. A job that has now run longer than when its node was lost before is
/// not what kills after that time.
pub fn note_losses(held: &[Held], lease: Duration) -> Vec<Loss> {
    let before = |job: &Held| {
        let outlived = |before: &Loss| job.ran_ms > before.ran_ms + slack(job.recoveries, lease).as_millis() as u64;
        job.before.filter(|before| job.recoveries > 0 && outlived(before))
    };
    // How many may be the cause, by how often they were lost: few values, however many jobs.
    let mut counts: HashMap<u16, u32> = HashMap::default();
    for job in held.iter().filter(|job| before(job).is_none()) {
        *counts.entry(job.recoveries).or_default() += 1;
    }
    let note = |job: &Held| match before(job) {
        Some(before) => Loss { outlived: true, ..before },
        None => {
            let suspects = counts.iter().filter(|(recoveries, _)| **recoveries >= job.recoveries).map(|(_, n)| n).sum();
            Loss { ran_ms: job.ran_ms, suspects, outlived: false }
        }
    };
    held.iter().map(note).collect()
}

/// How exact the time is that a job had run: as exact as heartbeats are often. A node that starts suspects again beats at
/// once and every second; before, it may have been idle.
fn slack(recoveries: u16, lease: Duration) -> Duration {
    if recoveries <= 1 { lease / 2 } else { (lease / 2).min(Duration::from_secs(2)) }
}

/// From how many lost nodes on a job runs in a cohort. After one, any node may take any number: one crash happens, and is
/// over soonest so.
pub(crate) const COHORTS_FROM: u16 = 2;

/// By how much the number of suspects shrinks with every node that is lost: an eighth costs few watches and few nodes.
const SHRINK: u32 = 8;

/// The longest watch: whoever kills later than this is found by the number of lost nodes alone.
const WATCH_MOST: Duration = Duration::from_secs(30);

/// How long no suspect is claimed after one had to go back: else the same one would be claimed again at once.
const REFUSED_FOR: Duration = Duration::from_millis(500);

/// How many more nodes than [`max_recoveries`](crate::Config::max_recoveries) are lost with a job at most, while it is not
/// known to be the cause: one for each eighth of any number of jobs that nodes run, with room to spare.
pub const RECOVERIES_BEYOND: u16 = 8;

/// Whether a job that was lost so often will not run again: it was the only one that could be the cause, or it is beyond
/// all bounds.
pub(crate) fn is_guilty(recoveries: u16, max: u16, loss: Option<&Loss>) -> bool {
    let alone = loss.is_none_or(|loss| !loss.outlived && loss.suspects <= 1);
    recoveries >= max && (alone || recoveries >= max.saturating_add(RECOVERIES_BEYOND))
}

/// The suspects of one node that may yet turn out to be what kills it. No more run at a time than the smallest cohort among
/// them allows.
#[derive(Debug, Default)]
pub(crate) struct Isolation {
    jobs: HashMap<JobId, Judged>,
    /// After one had to go back: until when no other is taken, unless a place becomes free before.
    refused: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Judged {
    loss: Option<Loss>,
    /// While it is watched: until when.
    watched: Option<Instant>,
}

impl Judged {
    /// How many of its like may run at a time.
    fn cohort(&self) -> usize {
        self.loss.map_or(1, |loss| loss.suspects.div_ceil(SHRINK) as usize).max(1)
    }

    fn is_watched(&self, now: Instant) -> bool {
        self.watched.is_some_and(|until| until > now)
    }
}

impl Isolation {
    /// Judges a claimed job that was lost [`COHORTS_FROM`] times or more: whether it may start now. If so, it is watched
    /// until it has ended or has outlived its last loss.
    pub(crate) fn judge(&mut self, job: JobId, loss: Option<Loss>, lease: Duration, now: Instant) {
        self.jobs.remove(&job);
        let mut judged = Judged { loss, watched: None };
        let (watched, smallest) = self.watched(now);
        if watched < smallest.min(judged.cohort()) {
            let ran = Duration::from_millis(loss.map_or(0, |loss| loss.ran_ms));
            let watch = ran.saturating_add(2 * slack(COHORTS_FROM, lease)).min(WATCH_MOST);
            judged.watched = Some(now + watch);
        } else {
            self.refuse(now);
        }
        self.jobs.insert(job, judged);
    }

    /// Takes note that a job has to go back, so that it is not claimed again and again.
    pub(crate) fn refuse(&mut self, now: Instant) {
        self.refused = Some(now + REFUSED_FOR);
    }

    /// How many further suspects could start now. Of those whose cohort is not known yet, one: were more claimed than may
    /// start, a killer would take them along before they are put back.
    pub(crate) fn room(&self, now: Instant) -> usize {
        match self.watched(now) {
            _ if self.refused.is_some_and(|until| until > now) => 0,
            (0, _) => 1,
            (watched, smallest) => smallest.saturating_sub(watched),
        }
    }

    /// How long until there may be room again without a job having ended.
    pub(crate) fn next_change(&self, now: Instant) -> Option<Duration> {
        let watches = self.jobs.values().filter_map(|judged| judged.watched);
        watches.chain(self.refused).filter(|at| *at > now).min().map(|at| at.saturating_duration_since(now))
    }

    /// What was noted of a job that was judged, and whether it may start.
    pub(crate) fn judgement(&self, job: JobId) -> Option<(Option<Loss>, bool)> {
        self.jobs.get(&job).map(|judged| (judged.loss, judged.watched.is_some()))
    }

    /// Forgets a job that has ended or was put back. Says whether it was watched, so that another may start.
    pub(crate) fn forget(&mut self, job: JobId) -> bool {
        let watched = self.jobs.remove(&job).is_some_and(|judged| judged.watched.is_some());
        if watched {
            self.refused = None;
        }
        watched
    }

    fn watched(&self, now: Instant) -> (usize, usize) {
        let watched = || self.jobs.values().filter(|judged| judged.is_watched(now));
        (watched().count(), watched().map(Judged::cohort).min().unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Place {
        Waits,
        Runs,
        Ended,
        Dead,
    }

    struct Job {
        recoveries: u16,
        loss: Option<Loss>,
        takes: Duration,
        place: Place,
    }

    #[derive(Default)]
    struct Node {
        runs: Vec<(usize, Duration)>,
        isolation: Isolation,
        beat: Duration,
        next_beat: Duration,
    }

    /// Random numbers that a seed repeats.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }

    const STEP: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(1_000_000);

    /// How a life with one poison ends: how many nodes it has killed, and who is a dead letter. Job 0 is the poison: it
    /// kills its node `kills_after` it has started. Nodes come back at once, and their jobs after the lease.
    fn live(seed: u64) -> (String, usize, Vec<usize>, usize) {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let lease = Duration::from_secs([1, 3, 10][random.below(3) as usize]);
        let (nodes, jobs) = (1 + random.below(5) as usize, 1 + random.below(300) as usize);
        let kills_after = match random.below(3) {
            0 => Duration::ZERO,
            1 => Duration::from_millis(random.below(2_000)),
            _ => Duration::from_millis(random.below(20_000)),
        };
        let what = format!("seed {seed}: {nodes} nodes, {jobs} jobs, kills after {kills_after:?}, lease {lease:?}");
        let started = Instant::now();
        let mut jobs: Vec<Job> = (0..jobs)
            .map(|job| {
                let takes =
                    if job == 0 || random.below(3) > 0 { LONG } else { Duration::from_millis(random.below(9_000)) };
                Job { recoveries: 0, loss: None, takes, place: Place::Waits }
            })
            .collect();
        let mut queue: Vec<usize> = (0..jobs.len()).collect();
        (1..queue.len()).for_each(|n| queue.swap(n, random.below(n as u64 + 1) as usize));
        let mut nodes: Vec<Node> = (0..nodes).map(|_| Node::default()).collect();
        let mut lost: Vec<(Duration, Vec<(usize, u64)>)> = Vec::new();
        let (mut now, mut killed) = (Duration::ZERO, 0);
        while jobs[0].place != Place::Dead || !lost.is_empty() || jobs.iter().any(|job| job.place == Place::Waits) {
            now += STEP;
            assert!(now < Duration::from_secs(3_600), "{what}: it goes on for ever, {killed} nodes killed");
            for (_, held) in lost.extract_if(.., |(at, _)| *at <= now) {
                let facts = |(job, ran_ms): &(usize, u64)| Held {
                    recoveries: jobs[*job].recoveries,
                    ran_ms: *ran_ms,
                    before: jobs[*job].loss,
                };
                let losses = note_losses(&held.iter().map(facts).collect::<Vec<_>>(), lease);
                for ((job, _), loss) in held.iter().zip(losses) {
                    let job = &mut jobs[*job];
                    (job.recoveries, job.loss, job.place) = (job.recoveries + 1, Some(loss), Place::Waits);
                }
                queue.splice(0..0, held.into_iter().map(|(job, _)| job));
            }
            for node in &mut nodes {
                let ended = |(job, since): &(usize, Duration)| now - *since >= jobs[*job].takes;
                for job in node.runs.iter().filter(|run| ended(run)).map(|(job, _)| *job).collect::<Vec<_>>() {
                    jobs[job].place = Place::Ended;
                    node.isolation.forget(JobId::from_i64(job as i64));
                    node.runs.retain(|(running, _)| *running != job);
                }
                if node.runs.iter().any(|(job, since)| *job == 0 && now - *since >= kills_after) {
                    let ran = |since: Duration| node.beat.saturating_sub(since).as_millis() as u64;
                    lost.push((now + lease, node.runs.iter().map(|(job, since)| (*job, ran(*since))).collect()));
                    *node = Node { next_beat: now + STEP * random.below(6) as u32, ..Node::default() };
                    killed += 1;
                    continue;
                }
                if now >= node.next_beat {
                    (node.beat, node.next_beat) = (now, now + (lease / 3).min(Duration::from_secs(1)));
                }
                if random.below(3) == 0 {
                    continue;
                }
                let mut back = Vec::new();
                for job in queue.drain(..queue.len().min(256)).collect::<Vec<_>>() {
                    let Job { recoveries, loss, place, .. } = &mut jobs[job];
                    if is_guilty(*recoveries, 3, loss.as_ref()) {
                        *place = Place::Dead;
                        continue;
                    }
                    let id = JobId::from_i64(job as i64);
                    if *recoveries >= COHORTS_FROM {
                        node.isolation.judge(id, *loss, lease, started + now);
                        if node.isolation.judgement(id).is_none_or(|(_, may_start)| !may_start) {
                            node.isolation.forget(id);
                            back.push(job);
                            continue;
                        }
                    }
                    *place = Place::Runs;
                    node.runs.push((job, now));
                    if *recoveries >= COHORTS_FROM {
                        node.next_beat = now;
                    }
                }
                queue.splice(0..0, back);
            }
        }
        let dead = (0..jobs.len()).filter(|job| jobs[*job].place == Place::Dead).collect();
        (what, killed, dead, jobs.len())
    }

    /// RUN-5, ERR-4: however many nodes and jobs there are, wherever the poison is and whenever it kills, it alone ends as
    /// a dead letter, and it kills a bounded number of nodes.
    #[test]
    fn a_poison_is_a_dead_letter_alone_after_a_bounded_number_of_nodes() {
        for seed in 1..=20 {
            let (what, killed, dead, jobs) = live(seed);
            assert_eq!(dead, [0], "{what}: {killed} nodes killed");
            let eighths = (jobs as f64).log(f64::from(SHRINK)).ceil() as usize;
            assert!(killed <= 3 + eighths, "{what}: {killed} nodes killed");
        }
    }

    #[test]
    fn a_job_that_is_lost_alone_three_times_is_guilty() {
        let mut before = None;
        for recoveries in 0..3 {
            assert!(!is_guilty(recoveries, 3, before.as_ref()));
            before = Some(note_losses(&[Held { recoveries, ran_ms: 40, before }], Duration::from_secs(10))[0]);
        }
        assert!(is_guilty(3, 3, before.as_ref()));
        assert!(is_guilty(3, 3, None), "nothing is known that speaks for it");
    }

    #[test]
    fn a_job_that_outlived_its_last_loss_is_not_blamed() {
        let before = Some(Loss { ran_ms: 1_000, suspects: 5, outlived: false });
        let held = [Held { recoveries: 2, ran_ms: 9_000, before }, Held { recoveries: 2, ran_ms: 1_500, before }];
        let losses = note_losses(&held, Duration::from_secs(10));
        assert_eq!(losses[0], Loss { ran_ms: 1_000, suspects: 5, outlived: true });
        assert_eq!(losses[1], Loss { ran_ms: 1_500, suspects: 1, outlived: false });
        assert!(!is_guilty(3, 3, Some(&losses[0])) && is_guilty(3, 3, Some(&losses[1])));
    }

    #[test]
    fn a_cohort_fills_up_and_a_refused_job_is_not_claimed_again_at_once() {
        let (lease, start) = (Duration::from_secs(3), Instant::now());
        let (large, small) = [24, 8].map(|suspects| Some(Loss { ran_ms: 1_000, suspects, outlived: false })).into();
        let job = JobId::from_i64;
        let mut isolation = Isolation::default();
        assert_eq!((isolation.room(start), isolation.next_change(start)), (1, None), "its cohort is not known");
        isolation.judge(job(1), large, lease, start);
        assert_eq!(isolation.room(start), 2, "an eighth of 24 are three");
        isolation.judge(job(2), small, lease, start);
        assert_eq!(isolation.judgement(job(2)), Some((small, false)), "it runs alone");
        assert_eq!((isolation.room(start), isolation.next_change(start)), (0, Some(REFUSED_FOR)));
        assert!(!isolation.forget(job(2)), "nothing is gained when it has gone back");
        assert_eq!(isolation.room(start), 0);
        assert!(isolation.forget(job(1)));
        assert_eq!((isolation.room(start), isolation.next_change(start)), (1, None));
    }

    #[test]
    fn a_loss_travels_with_the_error() {
        let loss = Loss { ran_ms: 7, suspects: 2_000, outlived: false };
        assert_eq!(Loss::of(&loss.error()), Some(loss));
        assert_eq!(Loss::of(&JobError::retryable("io")), None);
        assert_eq!(Loss::after(Some(&loss.error())), Some(loss));
        assert!(!is_guilty(3, 3, Loss::after(Some(&JobError::retryable("io"))).as_ref()), "it ran to its end");
    }
}
