//! The front page of the crate: typed references, one tenant by default, others by name.

use std::time::Duration;

use windlass::{HandlerRef, JobContext, JobError, JobService, Status, SubmitOptions, TenantId};

const SQUARE: HandlerRef<u32, u64> = HandlerRef::new("math.square");

/// The longest a job here may take.
const SOON: Duration = Duration::from_secs(20);

async fn square(_: (), _: JobContext, n: u32) -> Result<u64, JobError> {
    Ok(u64::from(n) * u64::from(n))
}

async fn service() -> JobService {
    let store = windlass::open("memory:").await.expect("opens");
    JobService::builder(store).function(SQUARE, (), square).start().await.expect("starts")
}

/// SUB-1, SUB-2, SUB-4, SUB-12: what is submitted by a reference runs with its types, and each waits for its own.
#[tokio::test(flavor = "multi_thread")]
async fn references_submit_one_and_many_and_wait() {
    let jobs = service().await;
    let job = SQUARE.submit(&jobs, 12_u32).await.expect("stored");
    assert_eq!(job.wait(SOON).await.expect("succeeds"), 144);
    assert_eq!(job.status().await.expect("known"), Status::Succeeded);
    let (batch, many) = SQUARE.submit_many(&jobs, 1..=3, SubmitOptions::new().tag("t")).await.expect("stored");
    let mut squares = Vec::new();
    for job in &many {
        squares.push(job.wait(SOON).await.expect("succeeds"));
        assert_eq!(job.record().await.expect("known").batch, Some(batch));
    }
    assert_eq!(squares, [1, 4, 9]);
    let again = SQUARE.job(&jobs, many[2].id());
    assert_eq!(again.wait(SOON).await.expect("found by its id"), 9);
    let keyed = SubmitOptions::new().idempotency_key("k");
    let first = SQUARE.submit_with(&jobs, 2_u32, keyed.clone()).await.expect("stored");
    let second = SQUARE.submit_with(&jobs, 2_u32, keyed).await.expect("stored");
    assert_eq!((first.is_duplicate(), second.is_duplicate(), second.id()), (false, true, first.id()));
    jobs.shutdown().await;
}

/// SEC-1: the tenant is the root unless another is named, and tenants do not see each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_named_or_the_root() {
    let jobs = service().await;
    let acme = jobs.of(TenantId(uuid::Uuid::from_u128(7)));
    let of_acme = SQUARE.submit(&acme, 3_u32).await.expect("stored");
    let of_root = SQUARE.submit(&jobs, 3_u32).await.expect("stored");
    assert_eq!(of_acme.record().await.expect("known").tenant, TenantId(uuid::Uuid::from_u128(7)));
    assert_eq!(of_root.record().await.expect("known").tenant, TenantId::ROOT);
    for hidden in [SQUARE.job(&jobs, of_acme.id()), SQUARE.job(&acme, of_root.id())] {
        assert_eq!(hidden.record().await.expect_err("not its own").code(), "job_not_found");
        assert_eq!(hidden.cancel("no").await.expect_err("not its own").code(), "job_not_found");
    }
    jobs.shutdown().await;
}
