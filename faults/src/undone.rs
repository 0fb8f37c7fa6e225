//! Takes out of a history what a failover has undone, so that the checker judges what the surviving server knows: between
//! two times, what the old server acknowledged is only perhaps so. Called by `runner` before the check; rows say when
//! (`Rules::undone`). Effects that happened in the world stay undone by nobody; they count as those of a lost attempt.

use std::collections::{HashMap, HashSet};

use crate::event::{Event, TransactionEnd, What};
use crate::history::History;

/// The history without what was undone.
pub fn without(mut history: History) -> History {
    if history.rules.undone.is_empty() {
        return history;
    }
    let windows = history.rules.undone.clone();
    let inside = |mono: u64| windows.iter().any(|undone| (undone.from_us..=undone.to_us).contains(&mono));
    let there: HashSet<i64> = history.dump.jobs.iter().map(|job| job.job).collect();
    let lost = lost_attempts(&history.events, &there, inside);
    let batches = lost_ends(&history.events, &lost, inside);
    let events = std::mem::take(&mut history.events);
    history.events = events.into_iter().filter_map(|event| rewrite(event, inside, &there, &lost, &batches)).collect();
    history
}

/// A lease and a job that it holds.
type Attempt = (i64, i64);

/// Attempts that began on the old server alone: those of jobs that are gone, and those whose number was given again.
fn lost_attempts(events: &[Event], there: &HashSet<i64>, inside: impl Fn(u64) -> bool) -> HashSet<Attempt> {
    let (mut begun, mut next) = (Vec::new(), HashMap::new());
    for event in events {
        let What::Claim { lease, asked_at, jobs, .. } = &event.what else { continue };
        for held in jobs {
            if inside(event.mono) || inside(*asked_at) {
                begun.push((*lease, held.job, held.attempt));
                // Only a claim that comes after the last of these tells how far the surviving server was.
                next.remove(&held.job);
            } else {
                next.entry(held.job).or_insert(held.attempt);
            }
        }
    }
    let is_lost = |job: &i64, attempt: u16| !there.contains(job) || next.get(job).is_some_and(|next| *next <= attempt);
    begun.iter().filter(|(_, job, attempt)| is_lost(job, *attempt)).map(|(lease, job, _)| (*lease, *job)).collect()
}

/// Which ends of each batch belong to such attempts. An end that the surviving server has accepted is kept whatever it
/// names: that must never happen, and the checker is to see it.
fn lost_ends(
    events: &[Event],
    attempts: &HashSet<Attempt>,
    inside: impl Fn(u64) -> bool,
) -> HashMap<(u32, u64), Vec<bool>> {
    let mut lost = HashMap::new();
    for event in events {
        match &event.what {
            What::FinishCall { batch, ends } => {
                let of_lost: Vec<bool> = ends.iter().map(|end| attempts.contains(&(end.lease, end.job))).collect();
                lost.insert((event.proc, *batch), of_lost);
            }
            What::FinishReply { batch, replies } if !inside(event.mono) => {
                if let Some(lost) = lost.get_mut(&(event.proc, *batch)) {
                    lost.iter_mut().zip(replies).for_each(|(lost, reply)| *lost &= reply.is_none());
                }
            }
            _ => {}
        }
    }
    lost
}

fn rewrite(
    mut event: Event,
    inside: impl Fn(u64) -> bool,
    there: &HashSet<i64>,
    lost: &HashSet<Attempt>,
    batches: &HashMap<(u32, u64), Vec<bool>>,
) -> Option<Event> {
    let (proc, undone) = (event.proc, inside(event.mono));
    let stays = |batch: u64, at: usize| batches.get(&(proc, batch)).is_none_or(|lost| lost.get(at) != Some(&true));
    event.what = match event.what {
        What::Claim { node, lease, asked_at, born, max, mut jobs } => {
            jobs.retain(|held| !lost.contains(&(lease, held.job)));
            if jobs.is_empty() {
                return None;
            }
            What::Claim { node, lease, asked_at, born, max, jobs }
        }
        What::Start { job, lease, .. }
        | What::Effect { job, lease, .. }
        | What::Told { job, lease, .. }
        | What::End { job, lease, .. }
        | What::Write { job, lease, accepted: false, .. }
            if lost.contains(&(lease, job)) =>
        {
            return None;
        }
        What::Write { .. }
        | What::Beat { .. }
        | What::Recovered { .. }
        | What::Deregistered { .. }
        | What::Seen { .. }
            if undone =>
        {
            return None;
        }
        What::SubmitOk { call, job, .. } if undone && !there.contains(&job) => {
            What::SubmitUnknown { call, code: UNDONE.into() }
        }
        What::TransactionEnd { call, end: TransactionEnd::Committed } if undone => {
            What::TransactionEnd { call, end: TransactionEnd::Unknown }
        }
        What::CancelReply { job, .. } if undone => What::CancelReply { job, reply: UNDONE.into() },
        What::Replayed { job } if undone => What::Note { text: format!("replay of {job}: {UNDONE}") },
        What::Paused { target } if undone => What::Note { text: format!("pause of {target}: {UNDONE}") },
        What::FinishCall { batch, ends } => {
            let kept = ends.into_iter().enumerate().filter(|(at, _)| stays(batch, *at));
            What::FinishCall { batch, ends: kept.map(|(_, end)| end).collect() }
        }
        What::FinishReply { batch, .. } if undone => What::FinishFailed { batch, code: UNDONE.into(), unknown: true },
        What::FinishReply { batch, replies } => {
            let kept = replies.into_iter().enumerate().filter(|(at, _)| stays(batch, *at));
            What::FinishReply { batch, replies: kept.map(|(_, reply)| reply).collect() }
        }
        what => what,
    };
    Some(event)
}

/// The code of an answer that does not count any more.
const UNDONE: &str = "undone";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{FinishEnd, Held};
    use crate::history::{Job, Undone};

    fn at(mono: u64, what: What) -> Event {
        Event { proc: 1, mono, what }
    }

    fn claim(mono: u64, job: i64, lease: i64) -> Event {
        let held = Held { job, attempt: 1, failed: 0, recoveries: 0, queue: "work".into(), priority: 0 };
        at(mono, What::Claim { node: 1, lease, asked_at: mono, born: false, max: 1, jobs: vec![held] })
    }

    fn finish(mono: u64, batch: u64, job: i64, lease: i64) -> Event {
        let end = FinishEnd { job, lease, attempt: 1, transition: "succeed".into() };
        at(mono, What::FinishCall { batch, ends: vec![end] })
    }

    fn reply(mono: u64, batch: u64, status: Option<&str>) -> Event {
        at(mono, What::FinishReply { batch, replies: vec![status.map(str::to_owned)] })
    }

    /// From 100 to 200 the old server spoke for itself alone; job 1 survived.
    fn judged(events: Vec<Event>) -> Vec<Event> {
        let mut history = History { events, ..History::default() };
        history.rules.undone = vec![Undone { from_us: 100, to_us: 200 }];
        let job = Job {
            job: 1,
            tenant: uuid::Uuid::nil(),
            handler: "work".into(),
            call: None,
            canary: None,
            ordering: None,
            priority: 0,
            created_at: 0,
            run_at: None,
            parent: None,
            schedule: None,
            nominal: None,
        };
        history.dump.jobs = vec![job];
        without(history).events
    }

    #[test]
    fn an_acknowledged_job_that_is_gone_was_never_sure() {
        let ok = |mono, call, job| at(mono, What::SubmitOk { call, job, duplicate: false });
        let left = judged(vec![ok(50, 1, 7), ok(150, 2, 8), ok(160, 3, 1), ok(250, 4, 9)]);
        assert!(matches!(left[0].what, What::SubmitOk { job: 7, .. }), "acknowledged before: a loss is a loss");
        assert!(matches!(left[1].what, What::SubmitUnknown { call: 2, .. }));
        assert!(matches!(left[2].what, What::SubmitOk { job: 1, .. }), "it survived");
        assert!(matches!(left[3].what, What::SubmitOk { job: 9, .. }));
    }

    #[test]
    fn an_attempt_that_the_new_server_counts_did_happen() {
        let mut second = claim(260, 1, 6);
        let What::Claim { jobs, .. } = &mut second.what else { panic!("a claim") };
        jobs[0].attempt = 2;
        let left = judged(vec![claim(110, 1, 5), second]);
        assert_eq!(left.len(), 2, "it was taken before replication stopped, and recovered");
    }

    #[test]
    fn attempts_of_lost_leases_did_not_happen() {
        let left = judged(vec![claim(150, 1, 5), finish(160, 0, 1, 5), reply(250, 0, None), claim(260, 1, 6)]);
        assert_eq!(left.len(), 3);
        assert!(matches!(&left[0].what, What::FinishCall { ends, .. } if ends.is_empty()));
        assert!(matches!(&left[1].what, What::FinishReply { replies, .. } if replies.is_empty()));
        assert!(matches!(left[2].what, What::Claim { lease: 6, .. }));
    }

    #[test]
    fn an_accepted_end_of_a_lost_lease_is_left_to_be_seen() {
        let accepted = reply(250, 0, Some("succeeded"));
        let left = judged(vec![claim(150, 1, 5), finish(210, 0, 1, 5), accepted, claim(260, 1, 6)]);
        assert!(matches!(&left[0].what, What::FinishCall { ends, .. } if ends.len() == 1));
        assert!(matches!(&left[1].what, What::FinishReply { replies, .. } if replies.len() == 1));
    }

    #[test]
    fn an_end_that_was_accepted_meanwhile_may_be_repeated() {
        let left = judged(vec![claim(50, 1, 5), finish(150, 0, 1, 5), reply(160, 0, Some("succeeded"))]);
        assert!(matches!(left[1].what, What::FinishCall { .. }));
        assert!(matches!(left[2].what, What::FinishFailed { unknown: true, .. }));
    }
}
