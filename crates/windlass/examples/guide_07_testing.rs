//! The program of chapter 7 of the guide (docs/guide/07-testing.md): a service and the tests of its jobs.
//!
//! `cargo run -p windlass --example guide_07_testing` runs the service, `cargo test -p windlass --example guide_07_testing` its tests.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::{
    Builder, Error, HandlerRef, JobContext, JobError, JobId, JobService, SecurityContext, SubmitOptions, TenantId,
};

const REMIND: HandlerRef<String, String> = HandlerRef::new("invoice.remind");
const THREE_DAYS: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// How the service sends text messages.
#[derive(Clone, Default)]
struct Messages {
    /// How many of the next messages the provider refuses.
    failures_left: Arc<AtomicU32>,
}

impl Messages {
    fn send(&self, to: &str) -> Result<String, JobError> {
        let one_less = |left: u32| left.checked_sub(1);
        match self.failures_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => Err(JobError::retryable("the provider is busy")),
            Err(_) => Ok(format!("reminded {to}")),
        }
    }
}

async fn remind(messages: Messages, _ctx: JobContext, customer: String) -> Result<String, JobError> {
    if customer.is_empty() {
        return Err(JobError::terminal("no_customer", "nobody to remind"));
    }
    messages.send(&customer)
}

/// Takes an order: the customer is reminded of the invoice in three days.
async fn order(jobs: &JobService, number: u32, customer: &str) -> Result<JobId, Error> {
    let once = SubmitOptions::new().delay(THREE_DAYS).idempotency_key(format!("remind-{number}"));
    Ok(REMIND.submit_with(jobs, customer, once).await?.id())
}

/// Registers every handler: the same in production and in tests.
fn handlers(service: Builder, messages: Messages) -> Builder {
    service.function(REMIND, messages, remind)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = JobService::builder(windlass::open("memory:").await?);
    let jobs = handlers(builder, Messages::default()).start().await?;
    let id = order(&jobs, 7, "Ada").await?;
    let job = REMIND.job(&jobs, id);
    println!("the reminder is {}", job.status().await?);
    jobs.run_now(&SecurityContext::new(TenantId::ROOT), id).await?;
    println!("{}", job.wait(Duration::from_secs(5)).await?);
    jobs.shutdown().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass::Status;
    use windlass_testkit::Harness;

    #[tokio::test]
    async fn an_order_reminds_once_after_three_days() -> Result<(), Error> {
        let test = Harness::start(|service| handlers(service, Messages::default())).await?;
        let id = order(&test.service, 7, "Ada").await?;
        let again = order(&test.service, 7, "Ada").await?;
        assert_eq!(id, again, "one order, one reminder");
        test.assert_submitted("invoice.remind", |customer: &String| customer == "Ada").await;

        assert_eq!(test.drain().await?, 0, "nothing is due yet");
        test.advance(THREE_DAYS);
        assert_eq!(test.drain().await?, 1);
        assert_eq!(test.output::<String>(id).await?, "reminded Ada");
        Ok(())
    }

    #[tokio::test]
    async fn a_busy_provider_is_tried_again() -> Result<(), Error> {
        let messages = Messages::default();
        messages.failures_left.store(2, Ordering::Relaxed);
        let test = Harness::start(|service| handlers(service, messages)).await?;
        test.submit("invoice.remind", "Ada", SubmitOptions::new()).await?;

        let mut attempts = test.drain().await?;
        for _ in 0..2 {
            test.advance(Duration::from_secs(30)); // no wait of the default policy is longer
            attempts += test.drain().await?;
        }
        assert_eq!(attempts, 3);
        test.assert_all_succeeded().await;
        Ok(())
    }

    #[tokio::test]
    async fn a_reminder_without_a_customer_is_not_tried_again() -> Result<(), Error> {
        let test = Harness::start(|service| handlers(service, Messages::default())).await?;
        let job = test.submit("invoice.remind", "", SubmitOptions::new()).await?;
        assert_eq!(test.drain().await?, 1);
        let record = test.service.get(&test.ctx, job.id).await?;
        assert_eq!((record.status, record.attempt), (Status::DeadLettered, 1));
        assert_eq!(record.error.expect("it failed").code, "no_customer");
        Ok(())
    }
}
