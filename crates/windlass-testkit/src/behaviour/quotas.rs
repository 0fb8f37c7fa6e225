//! Behaviours of tenants' quotas and shares: BEY-8, and the noisy tenant of fault F50.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::store::Store;
use windlass_core::*;

use super::*;

async fn nap(nap: Duration, _: JobContext, _: u64) -> Result<(), JobError> {
    tokio::time::sleep(nap).await;
    Ok(())
}

pub(super) fn inputs(n: u64) -> Vec<Result<Payload, InvalidInput>> {
    (0..n).map(|n| Payload::encode("input", &n, 100)).collect()
}

/// BEY-8, ORD-3: fault F50.
pub async fn a_noisy_tenant_is_held_to_its_quota_and_holds_nobody_up(store: Arc<dyn Store>) {
    const QUOTA: u64 = 5_000;
    let jobs = service(&store).function_with("nap", HandlerOptions::default(), Duration::from_millis(2), nap);
    let jobs = jobs.start().await.expect("starts");
    let (noisy, quiet) = (tenant(1), tenant(2));
    jobs.operator(OperatorRight::assume())
        .set_quota(&quiet, Some(noisy.tenant), &Quota::new().queued(QUOTA))
        .await
        .expect("set");
    let (mut stored, mut refusals) = (0, 0);
    // A hundred thousand jobs, a thousand at a time: far more than the quota allows and the node can run meanwhile.
    for _ in 0..100 {
        match jobs.submit_payloads(&noisy, "nap", inputs(1_000), SubmitOptions::new(), false).await {
            Ok((_, answers)) => stored += answers.len() as u64,
            Err(error) => {
                assert_eq!(error.code(), "quota_exceeded");
                let Error::QuotaExceeded(over) = error else { panic!("not typed: {error}") };
                assert_eq!((over.tenant, over.quota, over.limit), (noisy.tenant, QuotaKind::Queued, QUOTA));
                refusals += 1;
            }
        }
    }
    assert!(refusals > 50 && stored >= QUOTA, "{stored} stored, {refusals} refused");
    assert!(jobs.usage(&noisy).await.expect("usage").queued <= QUOTA);
    let began = Instant::now();
    let light = jobs.submit_payloads(&quiet, "nap", inputs(10), SubmitOptions::new(), false).await.expect("accepted").1;
    for job in light {
        jobs.wait(&quiet, job.expect("accepted").id, SOON).await.expect("ends");
    }
    let waited = began.elapsed();
    let left = jobs.usage(&noisy).await.expect("usage").queued;
    assert!(left > 1_000, "the quiet tenant waited {waited:?}, until the noisy one had only {left} jobs left");
    jobs.operator(OperatorRight::assume()).clear_quota(&quiet, Some(noisy.tenant)).await.expect("cleared");
    jobs.shutdown().await;
}

/// BEY-8, SUB-4: callers that share a write do not share a refusal.
pub async fn only_the_tenant_beyond_its_quota_is_refused(store: Arc<dyn Store>) {
    let jobs = service(&store).function("nap", Duration::ZERO, nap).without_workers().start().await.expect("starts");
    let (limited, free) = (tenant(1), tenant(2));
    jobs.operator(OperatorRight::assume())
        .set_quota(&free, Some(limited.tenant), &Quota::new().queued(10))
        .await
        .expect("set");
    let submits = (0..120).map(|n| {
        let (jobs, ctx) = (jobs.clone(), if n % 2 == 0 { limited.clone() } else { free.clone() });
        async move { (n, jobs.submit_named(&ctx, "nap", &n, SubmitOptions::new()).await) }
    });
    let answers = futures_util::future::join_all(submits).await;
    let stored = |odd: u64| answers.iter().filter(|(n, answer)| n % 2 == odd && answer.is_ok()).count();
    assert_eq!((stored(0), stored(1)), (10, 60), "exactly the quota, and all of the other tenant");
    let over = answers.into_iter().filter_map(|(_, answer)| answer.err());
    assert!(over.map(|error| error.code()).all(|code| code == "quota_exceeded"));
    jobs.shutdown().await;
}

/// BEY-8, BEY-1: a limit on running jobs lets them wait, and says so; all of them run in the end.
pub async fn a_tenant_at_its_cap_waits_and_why_says_so(store: Arc<dyn Store>) {
    let door = Door::closed();
    let hold = |door: Door, _: JobContext, _: u64| async move {
        door.pass().await;
        Ok::<_, JobError>(())
    };
    let jobs = service(&store).function("hold", door.clone(), hold).start().await.expect("starts");
    let ctx = tenant(1);
    jobs.operator(OperatorRight::assume()).set_quota(&ctx, None, &Quota::new().running(3)).await.expect("set");
    let submitted =
        jobs.submit_payloads(&ctx, "hold", inputs(8), SubmitOptions::new(), false).await.expect("accepted").1;
    let submitted: Vec<JobId> = submitted.into_iter().map(|job| job.expect("accepted").id).collect();
    until("three jobs to run", || async { door.waiting.get() >= 3 }).await;
    // Several looks later there are still three.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(door.waiting.get(), 3, "no more than the cap");
    let free = jobs.submit_named(&tenant(2), "hold", &0, SubmitOptions::new()).await.expect("accepted");
    until_status(&jobs, &tenant(2), free.id, Status::Running).await;
    let why = jobs.why(&ctx, submitted[7]).await.expect("an answer");
    assert_eq!(why, Why::TenantAtCap { running: 3, limit: 3 });
    assert!(why.to_string().contains("may have 3 jobs running"), "{why}");
    door.open();
    for id in submitted {
        assert_eq!(jobs.wait(&ctx, id, SOON).await.expect("ends").status, Status::Succeeded);
    }
    jobs.shutdown().await;
}
