//! What a store promises about tenants' quotas and shares (BEY-8): exact to the job, all or none, and only the tenant
//! that is over is refused. Run by every store through `conformance_tests!`.

use std::time::Duration;

use windlass_core::store::{Error, Finish, ReplayReply, Submit, Submitted};
use windlass_core::{ClaimedJob, JobId, Quota, QuotaExceeded, QuotaKind, Scope, Status, TenantId, TenantUse};

use super::rig::*;

/// BEY-8: the last job that fits is stored, the next is not; an end makes room; other tenants do not notice.
pub(super) async fn a_submit_beyond_the_queued_quota_is_refused(rig: Rig) {
    set(&rig, A, Quota::new().queued(3)).await;
    let first = accepted(&rig, rig.jobs(2)).await;
    let over = refused(&rig, rig.jobs(2)).await;
    assert_eq!((over.tenant, over.quota, over.limit, over.room), (A, QuotaKind::Queued, 3, 1));
    assert_eq!(rig.counts().await.unfinished(), 2, "all or none");
    accepted(&rig, vec![rig.job().after(HOUR)]).await;
    assert_eq!(refused(&rig, rig.jobs(1)).await.room, 0);
    accepted(&rig, of(B, rig.jobs(5))).await;
    let mixed = of(B, rig.jobs(1)).into_iter().chain(rig.jobs(1)).collect();
    assert_eq!(refused(&rig, mixed).await.tenant, A);
    assert_eq!(used(&rig, B).await.queued, 5, "nothing of the refused call is stored, whoever it belongs to");
    rig.cancel(first[0].id).await;
    accepted(&rig, rig.jobs(1)).await;
    let claimed = rig.claim(100).await;
    let ours: Vec<&ClaimedJob> = claimed.iter().filter(|job| job.tenant == A).collect();
    refused(&rig, rig.jobs(1)).await;
    rig.end(ours[0], succeed()).await;
    rig.end(ours[1], dead("max_retries")).await;
    assert_eq!(refused(&rig, rig.jobs(3)).await.room, 2);
    accepted(&rig, rig.jobs(2)).await;
    refused(&rig, rig.jobs(1)).await;
}

/// BEY-8, SUB-6: who repeats a submit gets the job that is stored, also where there is no room for another.
pub(super) async fn a_repeat_of_a_stored_key_needs_no_room(rig: Rig) {
    set(&rig, A, Quota::new().queued(1)).await;
    let first = accepted(&rig, vec![rig.job().key("k")]).await[0].id;
    assert_eq!(accepted(&rig, vec![rig.job().key("k")]).await, [Submitted { id: first, duplicate: true }]);
    refused(&rig, vec![rig.job().key("other")]).await;
    rig.cancel(first).await;
    accepted(&rig, vec![rig.job().key("other")]).await;
}

/// BEY-8: payload bytes of unfinished jobs, to the byte.
pub(super) async fn a_submit_beyond_the_bytes_quota_is_refused(rig: Rig) {
    set(&rig, A, Quota::new().bytes(100)).await;
    let job = |bytes: usize| rig.job().with(|job| job.payload = payload(&format!("\"{}\"", "x".repeat(bytes - 2))));
    let first = accepted(&rig, vec![job(40), job(40)]).await[0].id;
    let over = refused(&rig, vec![job(21)]).await;
    assert_eq!((over.quota, over.limit, over.room), (QuotaKind::Bytes, 100, 20));
    accepted(&rig, vec![job(20).key("keyed")]).await;
    refused(&rig, vec![job(2)]).await;
    assert_eq!(used(&rig, A).await.bytes, Some(100));
    rig.cancel(first).await;
    assert_eq!(refused(&rig, vec![job(41)]).await.room, 40);
    accepted(&rig, vec![job(40)]).await;
}

/// BEY-8: a burst, then so many a second; the refusal says when to come back.
pub(super) async fn a_submit_beyond_the_rate_is_refused_until_tokens_come(rig: Rig) {
    set(&rig, A, Quota::new().submit_rate(1.0, 5)).await;
    let over = refused(&rig, rig.jobs(6)).await;
    assert_eq!((over.quota, over.limit, over.room), (QuotaKind::SubmitRate, 5, 5));
    assert_eq!(over.retry_after, None, "more than the burst is never possible");
    accepted(&rig, rig.jobs(5)).await;
    let over = refused(&rig, rig.jobs(2)).await;
    assert_eq!(over.quota, QuotaKind::SubmitRate);
    let after = over.retry_after.expect("known");
    assert!(after > Duration::from_millis(500) && after <= Duration::from_secs(2), "{after:?}");
    rig.advance(after).await;
    accepted(&rig, rig.jobs(2)).await;
    let first = rig.claim(1).await.remove(0);
    rig.end(&first, succeed()).await;
    refused(&rig, rig.jobs(2)).await;
}

/// BEY-8: the default is for everyone, each by itself; a policy of a tenant's own stands for itself.
pub(super) async fn a_default_policy_holds_for_tenants_without_their_own(rig: Rig) {
    rig.store().set_quota(None, Some(&Quota::new().queued(2)), "ann").await.expect("set");
    set(&rig, B, Quota::new().queued(4)).await;
    accepted(&rig, rig.jobs(2)).await;
    refused(&rig, rig.jobs(1)).await;
    accepted(&rig, of(B, rig.jobs(4))).await;
    refused(&rig, of(B, rig.jobs(1))).await;
    accepted(&rig, of(TenantId::ROOT, rig.jobs(2))).await;
    rig.store().set_quota(Some(B), None, "ann").await.expect("clear");
    assert_eq!(refused(&rig, of(B, rig.jobs(1))).await.limit, 2);
    rig.store().set_quota(None, None, "ann").await.expect("clear");
    accepted(&rig, rig.jobs(50)).await;
    accepted(&rig, of(B, rig.jobs(50))).await;
}

/// BEY-8, OPS-5: what was set can be read, is audited, and holds for jobs that were there before.
pub(super) async fn policies_can_be_read_and_are_audited(rig: Rig) {
    accepted(&rig, rig.jobs(7)).await;
    assert!(rig.store().quotas().await.expect("quotas").is_empty());
    let quota = Quota::new().weight(3).queued(8).submit_rate(0.5, 9).running(4).bytes(1_000_000);
    set(&rig, A, quota.clone()).await;
    assert_eq!(refused(&rig, rig.jobs(2)).await.room, 1);
    let quotas = rig.store().quotas().await.expect("quotas");
    assert_eq!((quotas.of(A), quotas.of(B)), (Some(&quota), None));
    let used = used(&rig, A).await;
    assert_eq!((used.queued, used.running, used.own, used.quota.as_ref()), (7, 0, true, Some(&quota)));
    rig.store().set_quota(Some(A), None, "bob").await.expect("clear");
    assert!(rig.store().quotas().await.expect("quotas").is_empty());
    let set = rig.audit(EVERYONE, "QUOTA_SET").await.remove(0);
    assert_eq!((set.actor.as_str(), set.tenant, set.target), ("ann", Some(A), format!("tenant:{A}")));
    assert!(set.detail.expect("what was set").contains("\"queued\":8"));
    assert_eq!(rig.audit(Scope::Tenant(A), "QUOTA_CLEARED").await[0].actor, "bob");
}

/// BEY-8: what is counted and set is in the data, not in the process.
pub(super) async fn quotas_and_counts_survive_a_restart(rig: Rig) {
    set(&rig, A, Quota::new().queued(3).running(1)).await;
    accepted(&rig, rig.jobs(3)).await;
    let rig = rig.restart().await;
    refused(&rig, rig.jobs(1)).await;
    assert_eq!(rig.claim(10).await.len(), 1);
}

/// BEY-8: many submits at once fill the quota to the last place and not beyond.
pub(super) async fn submits_at_once_fill_a_quota_exactly(rig: Rig) {
    set(&rig, A, Quota::new().queued(50)).await;
    let answers = at_once(24, |n| {
        let rig = rig.clone();
        async move {
            let jobs = if n % 3 == 0 { vec![rig.job().key(&format!("k{n}"))] } else { rig.jobs(5) };
            let wanted = jobs.len();
            (wanted, submit(&rig, jobs).await)
        }
    })
    .await;
    let stored: usize = answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(wanted, _)| wanted).sum();
    assert!((46..=50).contains(&stored), "{stored} stored: no room for five is left, and none too many");
    assert_eq!(rig.counts().await.unfinished(), stored as u64);
    assert!(answers.iter().all(|(_, answer)| matches!(answer, Ok(_) | Err(Error::QuotaExceeded(_)))));
}

/// BEY-8, ERR-4, ERR-5: what follows from accepted work is not refused, but takes room.
pub(super) async fn callbacks_and_replays_are_not_refused_but_counted(rig: Rig) {
    set(&rig, A, Quota::new().queued(2)).await;
    accepted(&rig, rig.jobs(2)).await;
    let claimed = rig.claim(2).await;
    let finish = Finish { follow_up: Some(Box::new(rig.job().0)), ..finish(&claimed[0], succeed()) };
    rig.finish_as(rig.node, finish).await;
    assert_eq!(refused(&rig, rig.jobs(1)).await.room, 0, "the callback took the place");
    rig.end(&claimed[1], dead("max_retries")).await;
    accepted(&rig, rig.jobs(1)).await;
    let replayed = rig.store().replay(EVERYONE, claimed[1].id, "ann").await.expect("replay");
    assert_eq!(replayed, ReplayReply::Replayed);
    assert_eq!(used(&rig, A).await.queued, 3);
    refused(&rig, rig.jobs(1)).await;
}

/// BEY-8, BEY-1: no more run than may, on any node; the others wait, and hold nobody up.
pub(super) async fn no_more_jobs_of_a_tenant_run_than_may(rig: Rig) {
    set(&rig, A, Quota::new().running(2)).await;
    let other = rig.another_node().await;
    let ours = accepted(&rig, rig.jobs(5)).await;
    accepted(&rig, of(B, rig.jobs(3))).await;
    let claimed = rig.claim_with(rig.node, vec![(QUEUE.to_owned(), 100)], 100, [0; 4]).await;
    assert_eq!((count(&claimed.jobs, A), count(&claimed.jobs, B)), (2, 3));
    assert_eq!(claimed.more, [false; 4], "what may not start is no more work");
    assert!(rig.claim_as(other, 10).await.is_empty());
    let facts = rig.store().whereabouts(EVERYONE, ours[4].id).await.expect("whereabouts").expect("there");
    assert_eq!(facts.cap, Some((2, 2)));
    let used = used(&rig, A).await;
    assert_eq!((used.queued, used.running), (5, 2));
    let first = claimed.jobs.iter().find(|job| job.tenant == A).expect("one of two");
    rig.end(first, succeed()).await;
    let next = rig.claim_as(other, 10).await;
    assert_eq!(ids(&next), [ours[2].id]);
    rig.finish_as(other, finish(&next[0], retry(1, HOUR))).await;
    assert_eq!(rig.claim(10).await.len(), 1, "a job that waits for its retry does not run");
    set(&rig, A, Quota::new().running(0)).await;
    assert!(rig.claim(10).await.is_empty());
    rig.store().set_quota(Some(A), None, "ann").await.expect("clear");
    assert_eq!(rig.claim(10).await.len(), 1);
}

/// BEY-8: claims that meet do not take more together than each may alone.
pub(super) async fn claims_at_once_keep_to_the_cap(rig: Rig) {
    set(&rig, A, Quota::new().running(7)).await;
    for _ in 0..30 {
        rig.submit(rig.job()).await;
    }
    let mut running = 0;
    // A claim that meets another one may leave the tenant out: the next one takes what is left.
    for _ in 0..20 {
        let claims = at_once(8, |_| {
            let rig = rig.clone();
            async move { rig.claim(5).await.len() }
        });
        running += claims.await.into_iter().sum::<usize>();
        assert!(running <= 7, "{running} run");
        if running == 7 {
            break;
        }
    }
    assert_eq!(running, 7);
    assert_eq!(rig.counts().await.get(Status::Running), 7);
}

/// BEY-8, RUN-5: a lost node's jobs do not count as running any more.
pub(super) async fn the_jobs_of_a_lost_node_free_the_cap(rig: Rig) {
    set(&rig, A, Quota::new().running(2)).await;
    accepted(&rig, rig.jobs(4)).await;
    assert_eq!(rig.claim(10).await.len(), 2);
    let other = rig.another_node().await;
    assert_eq!(rig.lose_node(&[other]).await.len(), 2);
    assert_eq!(rig.claim_as(other, 10).await.len(), 2);
    assert!(rig.claim_as(other, 10).await.is_empty());
}

/// BEY-8, ORD-3: a tenant of weight three gets three turns for another's one.
pub(super) async fn a_larger_share_gets_more_turns(rig: Rig) {
    set(&rig, A, Quota::new().weight(3)).await;
    for _ in 0..20 {
        rig.submit(rig.job()).await;
        rig.submit(rig.job().tenant(B)).await;
    }
    let first = rig.claim(12).await;
    assert_eq!((count(&first, A), count(&first, B)), (9, 3));
}

// ---- words of these cases

async fn set(rig: &Rig, tenant: TenantId, quota: Quota) {
    rig.store().set_quota(Some(tenant), Some(&quota), "ann").await.expect("a policy can be set");
}

async fn submit(rig: &Rig, jobs: Vec<Job>) -> Result<Vec<Submitted>, Error> {
    rig.store().submit(Submit { jobs: jobs.into_iter().map(|job| job.0).collect(), lease: None }).await
}

async fn accepted(rig: &Rig, jobs: Vec<Job>) -> Vec<Submitted> {
    submit(rig, jobs).await.expect("within the quota")
}

/// Tries a submit that must be refused and must store nothing.
async fn refused(rig: &Rig, jobs: Vec<Job>) -> QuotaExceeded {
    let new: Vec<JobId> = jobs.iter().map(Job::id).collect();
    match submit(rig, jobs).await {
        Err(Error::QuotaExceeded(over)) => {
            assert!(rig.store().get(EVERYONE, &new).await.expect("get").is_empty(), "a refused job is stored");
            over
        }
        other => panic!("not refused by a quota: {other:?}"),
    }
}

async fn used(rig: &Rig, tenant: TenantId) -> TenantUse {
    let uses = rig.store().tenant_uses(EVERYONE).await.expect("uses");
    uses.into_iter().find(|used| used.tenant == tenant).expect("a tenant with jobs is listed")
}

fn of(tenant: TenantId, jobs: Vec<Job>) -> Vec<Job> {
    jobs.into_iter().map(|job| job.tenant(tenant)).collect()
}

fn count(jobs: &[ClaimedJob], tenant: TenantId) -> usize {
    jobs.iter().filter(|job| job.tenant == tenant).count()
}
