//! Cases of what is kept for charts and told to autoscalers: API-6, API-8, BEY-14.

use std::time::Duration;

use windlass_core::activity::{Addition, BLOCKED_LOOKED_AT, Resolution, Slice, Waiting};
use windlass_core::store::{Gate, PauseTarget, Transition};
use windlass_core::{Scope, Status, Sums, TenantId, Timestamp};

use super::Rig;
use super::rig::{A, B, EVERYONE, HANDLER, HOUR, QUEUE, at_once, dead, succeed};

/// A count of each kind, all different, and one time of each kind.
fn sums(n: u64) -> Sums {
    let mut sums = Sums::from_values(&(0..7).map(|kind| (n + kind) as i64).collect::<Vec<_>>());
    sums.wait.record(Duration::from_millis(n));
    sums.run.record(Duration::from_secs(n));
    sums
}

fn addition(tenant: Option<TenantId>, handler: &str, n: u64) -> Addition {
    Addition { tenant, handler: handler.to_owned(), sums: sums(n) }
}

async fn add(rig: &Rig, at: Timestamp, additions: Vec<Addition>) {
    rig.store().add_activity(at, additions).await.expect("adds");
}

async fn slices(rig: &Rig, scope: Scope, resolution: Resolution, from: Timestamp) -> Vec<Slice> {
    let mut slices = rig.store().activity(scope, resolution, from).await.expect("reads");
    slices.sort_by(|a, b| (a.at, &a.handler).cmp(&(b.at, &b.handler)));
    slices
}

/// API-6: what is added twice in a bucket is added up there, whatever its length, and reads back number by number.
pub(super) async fn what_is_added_is_in_one_bucket_of_each_length(rig: Rig) {
    let at = Resolution::Hour.bucket(rig.now().await);
    add(&rig, at + Duration::from_millis(1), vec![addition(None, "h", 3), addition(None, "i", 5)]).await;
    add(&rig, at + Duration::from_millis(9_999), vec![addition(None, "h", 4)]).await;
    add(&rig, at + Duration::from_secs(11), vec![addition(None, "h", 1)]).await;
    let mut both = sums(3);
    both.merge(&sums(4));
    let mut all = both.clone();
    all.merge(&sums(1));
    let slice = |at: Timestamp, handler: &str, sums: &Sums| Slice { at, handler: handler.into(), sums: sums.clone() };
    let next = at + Duration::from_secs(10);
    assert_eq!(
        slices(&rig, EVERYONE, Resolution::Seconds10, at).await,
        [slice(at, "h", &both), slice(at, "i", &sums(5)), slice(next, "h", &sums(1))]
    );
    assert_eq!(slices(&rig, EVERYONE, Resolution::Seconds10, next).await, [slice(next, "h", &sums(1))]);
    for resolution in [Resolution::Minute, Resolution::Minutes10, Resolution::Hour] {
        let kept = slices(&rig, EVERYONE, resolution, at).await;
        assert_eq!(kept, [slice(at, "h", &all), slice(at, "i", &sums(5))], "{resolution:?}");
    }
}

/// API-6, SEC-1: a tenant's chart has its own jobs only; the rows of all tenants together are the operators'.
pub(super) async fn a_tenant_reads_its_own_past_and_operators_that_of_all(rig: Rig) {
    let now = rig.now().await;
    add(&rig, now, vec![addition(None, "h", 9), addition(Some(A), "h", 2), addition(Some(B), "b.own", 7)]).await;
    let read = async |scope| {
        let slices = slices(&rig, scope, Resolution::Minute, Resolution::Minute.bucket(now)).await;
        slices.into_iter().map(|slice| (slice.handler, slice.sums.submitted)).collect::<Vec<_>>()
    };
    assert_eq!(read(Scope::Tenant(A)).await, [("h".to_owned(), 2)]);
    assert_eq!(read(Scope::Tenant(B)).await, [("b.own".to_owned(), 7)]);
    assert_eq!(read(EVERYONE).await, [("h".to_owned(), 9)]);
    assert!(read(Scope::Tenant(TenantId::ROOT)).await.is_empty());
}

/// API-6: nodes that add to the same buckets at once neither lose anything nor wait for each other for ever.
pub(super) async fn additions_at_once_lose_nothing(rig: Rig) {
    let at = rig.now().await;
    at_once(8, |_| {
        let rig = rig.clone();
        async move {
            for _ in 0..5 {
                let tenants = [None, Some(A), Some(B)];
                let all = tenants.into_iter().flat_map(|tenant| ["a", "b", "c"].map(|h| addition(tenant, h, 1)));
                add(&rig, at, all.collect()).await;
            }
        }
    })
    .await;
    for scope in [EVERYONE, Scope::Tenant(A), Scope::Tenant(B)] {
        let kept = slices(&rig, scope, Resolution::Hour, Resolution::Hour.bucket(at)).await;
        assert_eq!(kept.iter().map(|slice| slice.sums.submitted).collect::<Vec<_>>(), [40, 40, 40], "{scope:?}");
        assert!(kept.iter().all(|slice| slice.sums.run.count() == 40));
    }
}

/// API-6: each length of buckets is kept as long as it says, and removed in bounded steps after that.
pub(super) async fn the_past_is_removed_when_its_time_is_over(rig: Rig) {
    let now = rig.now().await;
    let old = now - HOUR;
    add(&rig, now, vec![addition(None, "h", 1)]).await;
    add(&rig, old, (0..5).map(|n| addition(None, &format!("h{n}"), 1)).collect()).await;
    assert_eq!(rig.store().clean_activity(3).await.expect("cleans"), 3, "no more than asked for");
    rig.store().clean_activity(100).await.expect("cleans");
    assert_eq!(rig.store().clean_activity(100).await.expect("cleans"), 0);
    let left = async |resolution| slices(&rig, EVERYONE, resolution, old - HOUR).await.len();
    assert_eq!(left(Resolution::Seconds10).await, 1, "an hour is too long for the finest buckets");
    assert_eq!(left(Resolution::Minute).await, 6, "and not for these");
    assert_eq!(left(Resolution::Hour).await, 6);
}

/// API-6, API-8: the first to count in a bucket counts for all; ended jobs are in it.
pub(super) async fn jobs_are_counted_by_status_once_for_each_bucket(rig: Rig) {
    rig.ended(rig.job(), succeed()).await;
    rig.submit_all(rig.jobs(3)).await;
    rig.submit(rig.job().after(HOUR)).await;
    // The hour may turn in the middle, once.
    let (first, depths) = loop {
        let first = Resolution::Hour.bucket(rig.now().await);
        rig.store().sample_depth().await.expect("counts");
        rig.submit_all(rig.jobs(1)).await;
        rig.store().sample_depth().await.expect("counts");
        if Resolution::Hour.bucket(rig.now().await) == first {
            break (first, rig.store().depths(Resolution::Hour, first).await.expect("reads"));
        }
        rig.advance(Duration::from_secs(10)).await;
    };
    assert_eq!(depths.len(), 1, "one for each bucket");
    let (at, counts) = depths[0];
    assert_eq!(at, first);
    assert!((3..=4).contains(&counts.get(Status::Pending)), "{counts:?}");
    assert_eq!((counts.get(Status::Scheduled), counts.get(Status::Succeeded)), (1, 1));
    assert!(rig.store().depths(Resolution::Hour, first + HOUR).await.expect("reads").is_empty());
}

async fn backlog(rig: &Rig, scope: Scope) -> Vec<Waiting> {
    let mut backlog = rig.store().backlog(scope).await.expect("reads");
    backlog.sort_by(|a, b| (&a.queue, &a.handler).cmp(&(&b.queue, &b.handler)));
    backlog
}

/// BEY-14, SEC-1: few jobs are counted exactly, by handler; a tenant is told of its own.
pub(super) async fn a_backlog_tells_what_waits_and_runs_by_handler(rig: Rig) {
    assert!(backlog(&rig, EVERYONE).await.is_empty());
    let before = rig.now().await;
    rig.submit_all(rig.jobs(4)).await;
    rig.submit_all(vec![rig.job().handler("mail.send"), rig.job().tenant(B)]).await;
    rig.submit_all(vec![rig.job().queue("slow").handler("mail.send")]).await;
    rig.submit(rig.job().after(HOUR)).await;
    let claimed = rig.claim(2).await;
    assert_eq!(claimed.len(), 2);
    let seen = backlog(&rig, EVERYONE).await;
    let total = |handler: &str| {
        let of = seen.iter().filter(|waiting| waiting.handler == handler);
        of.fold((0, 0), |sum, waiting| (sum.0 + waiting.waiting, sum.1 + waiting.running))
    };
    let claimed_mail = claimed.iter().filter(|job| job.handler == "mail.send").count() as u64;
    assert_eq!(total("mail.send"), (2 - claimed_mail, claimed_mail));
    assert_eq!(total(HANDLER), (5 - (2 - claimed_mail), 2 - claimed_mail));
    let slow = seen.iter().find(|waiting| waiting.queue == "slow").expect("it waits there");
    assert_eq!((slow.handler.as_str(), slow.waiting, slow.running), ("mail.send", 1, 0));
    let now = rig.now().await;
    let since = slow.since.expect("it waits");
    assert!(since + Duration::from_secs(1) > before && since <= now, "{since} is between {before} and {now}");
    let claimed_b = claimed.iter().filter(|job| job.tenant == B).count() as u64;
    let of_b = backlog(&rig, Scope::Tenant(B)).await;
    let of_b = of_b.iter().fold((0, 0), |sum, waiting| (sum.0 + waiting.waiting, sum.1 + waiting.running));
    assert_eq!(of_b, (1 - claimed_b, claimed_b), "its own and no other's");
}

/// BEY-14, OPS-4: what a pause or an ordering key holds back is part of the backlog, beside what waits.
pub(super) async fn blocked_jobs_are_part_of_the_backlog(rig: Rig) {
    rig.submit_all((0..3).map(|_| rig.job().ordered("k")).collect()).await;
    let target = PauseTarget::Handler("mail.send".into());
    rig.store().pause(&target, "op", "broken").await.expect("pauses");
    for tenant in [A, B] {
        let job = rig.running(rig.job().handler("mail.send").queue("mail").tenant(tenant)).await;
        rig.end(&job, Transition::Park { gate: Gate::Pause(target.clone()) }).await;
    }
    let of = |seen: &[Waiting], handler: &str| {
        let of = seen.iter().filter(|waiting| waiting.handler == handler);
        of.fold((0, 0), |sum, waiting| (sum.0 + waiting.waiting, sum.1 + waiting.blocked))
    };
    let seen = backlog(&rig, EVERYONE).await;
    assert_eq!((of(&seen, HANDLER), of(&seen, "mail.send")), ((1, 2), (0, 2)), "{seen:?}");
    let of_b = backlog(&rig, Scope::Tenant(B)).await;
    assert_eq!((of(&of_b, HANDLER), of(&of_b, "mail.send")), ((0, 0), (0, 1)), "its own and no other's");
    let blocked: u64 = seen.iter().map(|waiting| waiting.blocked).sum();
    assert_eq!(rig.counts().await.get(Status::Blocked), blocked);
    rig.store().resume(&target, "op").await.expect("resumes");
    rig.open_gates().await;
    let seen = backlog(&rig, EVERYONE).await;
    assert_eq!(of(&seen, "mail.send"), (2, 0), "{seen:?}");
}

/// BEY-14: how many wait is told for a large backlog, too, and about whose they are.
pub(super) async fn a_large_backlog_is_estimated(rig: Rig) {
    for batch in 0..12 {
        let handler = if batch % 4 == 0 { "rare" } else { "common" };
        rig.submit_all((0..500).map(|_| rig.job().handler(handler)).collect()).await;
    }
    let seen = backlog(&rig, EVERYONE).await;
    let of = |handler: &str| {
        seen.iter().find(|waiting| waiting.handler == handler && waiting.queue == QUEUE).map_or(0, |seen| seen.waiting)
    };
    assert!((5_990..=6_010).contains(&(of("rare") + of("common"))), "{seen:?}");
    assert!((1_000..=2_000).contains(&of("rare")), "{seen:?}");
}

/// API-8: the oldest job that is due and has not started tells how far behind the nodes are.
pub(super) async fn vitals_tell_how_long_the_oldest_job_is_due(rig: Rig) {
    let oldest = async || rig.store().vitals().await.expect("tells").oldest_due;
    assert_eq!(oldest().await, None);
    rig.submit(rig.job().after(HOUR)).await;
    assert_eq!(oldest().await, None, "it is not due");
    rig.submit(rig.job()).await;
    rig.advance(Duration::from_millis(300)).await;
    let age = oldest().await.expect("one is due");
    assert!(age >= Duration::from_millis(300) && age < HOUR, "{age:?}");
    assert_eq!(rig.claim(5).await.len(), 1);
    assert_eq!(oldest().await, None, "it has started");
}

/// BEY-14: whose the blocked jobs are is told by some that are spread over all of them, not by the first.
pub(super) async fn a_handler_late_in_a_long_line_of_blocked_jobs_is_seen(rig: Rig) {
    const LATE: usize = 1_000;
    for _ in 0..BLOCKED_LOOKED_AT / LATE {
        rig.submit_all((0..LATE).map(|_| rig.job().ordered("k")).collect()).await;
    }
    rig.submit_all((0..LATE).map(|_| rig.job().handler("late").ordered("k")).collect()).await;
    let seen = backlog(&rig, EVERYONE).await;
    let all: u64 = seen.iter().map(|waiting| waiting.blocked).sum();
    let late: u64 = seen.iter().filter(|waiting| waiting.handler == "late").map(|waiting| waiting.blocked).sum();
    let stored = (BLOCKED_LOOKED_AT + LATE - 1) as u64;
    assert!((stored - 10..=stored + 10).contains(&all), "{all} of {stored}: {seen:?}");
    assert!((LATE as u64 / 2..=LATE as u64 * 2).contains(&late), "{seen:?}");
}

/// API-6, ERR-4: a dead letter counts until it is replayed or purged, or its own time is over.
pub(super) async fn vitals_count_the_dead_letters_there_are(rig: Rig) {
    let dead_letters = async || rig.store().vitals().await.expect("tells").dead_letters;
    assert_eq!(dead_letters().await, 0);
    let mut letters = Vec::new();
    for _ in 0..3 {
        letters.push(rig.ended(rig.job(), dead("max_retries")).await);
    }
    rig.ended(rig.job(), succeed()).await;
    assert_eq!(dead_letters().await, 3);
    let mut short = dead("max_retries");
    if let Transition::DeadLetter { keep, .. } = &mut short {
        *keep = Some(Duration::from_millis(200));
    }
    rig.ended(rig.job(), short).await;
    assert_eq!(dead_letters().await, 4);
    rig.advance(Duration::from_millis(400)).await;
    assert_eq!(dead_letters().await, 3, "nobody can see it any more, though it has not been removed");
    rig.store().purge(EVERYONE, letters[0], "operator").await.expect("purges");
    rig.store().replay(EVERYONE, letters[1], "operator").await.expect("replays");
    assert_eq!(dead_letters().await, 1);
    rig.replay_as(EVERYONE, letters[2], HOUR).await;
    assert_eq!(dead_letters().await, 0);
}
