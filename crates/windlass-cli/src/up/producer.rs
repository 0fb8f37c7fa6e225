//! Keeps the demo moving: submits a modest stream of demo jobs for three tenants. Started by `up`. Stops by itself while
//! many jobs wait (somebody has paused them), and keeps the demo's dead letters few, so that nothing grows for ever.

use std::time::Duration;

use uuid::Uuid;
use windlass::store::Counts;
use windlass::{
    Error, JobFilter, JobHandler, JobService, OperatorRight, Page, Priority, SecurityContext, Status, SubmitOptions,
    TenantId,
};

use super::demo::{Call, Flaky, Invoice, Note, Order, Picture, Reminder, Report, ReportInput, Thumbnail};

/// A step; each submits about two jobs, which makes twenty a second.
const STEP: Duration = Duration::from_millis(100);
/// No more is submitted while so many jobs wait: enough to see a pause fill up, not enough to fill a disk.
const MOST_WAITING: u64 = 500;
/// Dead letters are kept until someone decides; nobody does for those of a demo, so the oldest go.
const MOST_DEAD: usize = 50;
/// Steps between looks at what waits and what is dead.
const LOOK_EVERY: u64 = 10;

/// Three tenants, the same at each start. One is the root tenant, so that commands show something without options.
const TENANTS: [TenantId; 3] = [
    TenantId::ROOT,
    TenantId(Uuid::from_u128(0x000b0b00_0000_4000_8000_000000000002)),
    TenantId(Uuid::from_u128(0x0ca20100_0000_4000_8000_000000000003)),
];

/// Submits until it is aborted. A submit that fails is left out: the demo goes on when the store does.
pub(super) async fn produce(service: JobService) {
    let mut ticks = tokio::time::interval(STEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut crowded = false;
    for step in 0u64.. {
        ticks.tick().await;
        if step.is_multiple_of(LOOK_EVERY) {
            crowded = service
                .operator(OperatorRight::assume())
                .counts()
                .await
                .is_ok_and(|counts| waiting(&counts) > MOST_WAITING);
            if let Err(error) = drop_old_letters(&service).await {
                tracing::debug!(%error, "old dead letters of the demo could not be purged");
            }
        }
        if crowded {
            continue;
        }
        if let Err(error) = submit_some(&service, step).await {
            tracing::warn!(%error, "a demo job could not be submitted");
        }
    }
}

fn waiting(counts: &Counts) -> u64 {
    counts.unfinished() - counts.get(Status::Running)
}

async fn submit_some(service: &JobService, step: u64) -> Result<(), Error> {
    let ctx = SecurityContext::new(TENANTS[rand::random_range(0..TENANTS.len())]).with_user("demo");
    let number = rand::random_range(1..10_000u32);

    let picture =
        Picture { picture: format!("photo-{number}"), width: [160, 320, 640][number as usize % 3] + number % 50 };
    let priority = if number.is_multiple_of(10) { Priority::HIGH } else { Priority::NORMAL };
    service.submit_with::<Thumbnail>(&ctx, picture, tagged().priority(priority)).await?;

    if step.is_multiple_of(3) {
        let customer = format!("customer-{}", number % 4);
        let order = Order { customer: customer.clone(), cents: u64::from(number) * 7 };
        service.submit_with::<Invoice>(&ctx, order, tagged().ordering_key(customer)).await?;
    }
    if step % 3 == 1 {
        let service_name = ["mail", "search", "payments"][number as usize % 3].to_owned();
        // Most succeed at once, some after a retry or two. One at the start and then three a minute never do.
        let failures = match rand::random_range(0..100) {
            _ if step % 200 == 1 => 3,
            0..70 => 0,
            70..92 => 1,
            _ => 2,
        };
        service.submit_with::<Flaky>(&ctx, Call { service: service_name, failures }, tagged()).await?;
    }
    if step % 5 == 2 {
        let note = Note { note: format!("appointment {number}") };
        let delay = Duration::from_millis(rand::random_range(2_000..6_000));
        service.submit_with::<Reminder>(&ctx, note, tagged().delay(delay)).await?;
    }
    // One every eight seconds that takes twelve: one or two run at any time.
    if step.is_multiple_of(80) {
        let month = ["January", "April", "July", "October"][number as usize % 4].to_owned();
        service.submit_with::<Report>(&ctx, ReportInput { month, pages: 24 }, tagged()).await?;
    }
    Ok(())
}

fn tagged() -> SubmitOptions {
    SubmitOptions::new().tag("demo")
}

async fn drop_old_letters(service: &JobService) -> Result<(), Error> {
    let filter = JobFilter::all().status(Status::DeadLettered).handler(Flaky::ID);
    let page = Page { limit: Page::MAX, before: None, offset: MOST_DEAD };
    for letter in service.operator(OperatorRight::assume()).list(&filter, page).await? {
        let ctx = SecurityContext::new(letter.tenant).with_user("demo");
        service.purge(&ctx, letter.id).await?;
    }
    Ok(())
}
