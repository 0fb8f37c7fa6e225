//! Sends status events to webhooks: the handler of the jobs that the dispatcher in core creates, one per event
//! and webhook. Signs messages as Standard Webhooks does, connects only to addresses that `egress` allows, and reads
//! nothing of a response but its status.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, StatusCode};
use serde_json::json;
use sha2::Sha256;
use windlass_core::{Builder, HandlerOptions, JobContext, JobError, RetryPolicy, Webhook, WebhookDelivery};

use crate::Egress;

/// Lets this process deliver events to webhooks, at public addresses over https.
pub fn register(builder: Builder) -> Builder {
    register_with(builder, Egress::default())
}

/// The same, with other allowed addresses.
pub fn register_with(builder: Builder, egress: Egress) -> Builder {
    register_patient(builder, egress, patience())
}

/// The same, with another retry policy. A webhook is switched off when one of its events has failed as often as `retry`
/// allows.
pub fn register_patient(builder: Builder, egress: Egress, retry: RetryPolicy) -> Builder {
    let options = HandlerOptions::new().concurrency(AT_ONCE).retry(retry.clone()).timeout(WITHIN * 2);
    let sender = Arc::new(Sender { client: egress.client(WITHIN).ok(), egress, retry });
    builder.webhook_handler(options, sender, deliver)
}

/// How long a receiver may take to answer.
const WITHIN: Duration = Duration::from_secs(10);

/// Deliveries at once on this node: receivers that hang must not use up its slots.
const AT_ONCE: usize = 16;

/// A receiver that is down for most of a day still gets every event: 5 s, then twice as long each time, up to two hours
/// apart.
fn patience() -> RetryPolicy {
    RetryPolicy::default().attempts(20).first_delay(Duration::from_secs(5)).max_delay(Duration::from_secs(2 * 3600))
}

/// The longest that a receiver may put us off.
const PUT_OFF_MAX: Duration = Duration::from_secs(24 * 3600);

struct Sender {
    egress: Egress,
    client: Option<Client>,
    retry: RetryPolicy,
}

async fn deliver(
    sender: Arc<Sender>,
    ctx: JobContext,
    delivery: WebhookDelivery,
) -> Result<serde_json::Value, JobError> {
    let Some((webhook, secret)) = ctx.webhook(&delivery.webhook).await? else {
        return Err(JobError::discard("the webhook has been removed"));
    };
    if webhook.paused {
        return Err(JobError::discard("the webhook is paused"));
    }
    let told = tell(&sender, &webhook, &secret, &delivery).await;
    let error = match told {
        Ok(Answer::Told(status)) => return Ok(json!({ "status": status.as_u16() })),
        Ok(Answer::Gone) => JobError::discard("the receiver returned 410 Gone"),
        Ok(Answer::Failed(status, after)) => {
            let error = JobError::retryable(format!("the receiver returned {status}")).with_code("receiver_refused");
            after.map_or(error.clone(), |after| error.retry_after(after))
        }
        Err(error) => error,
    };
    if is_over(&error, ctx.failed(), &sender.retry) {
        ctx.switch_off_webhook(&webhook.id, &error.message).await?;
    }
    Err(error)
}

/// Whether a delivery that has failed so often before is not tried again after this error. What no further try can cure
/// would fail for each event anew: one dead letter says so, the others are not tried. A node that was lost says nothing
/// about the receiver.
fn is_over(error: &JobError, failed: u16, retry: &RetryPolicy) -> bool {
    !error.is_retryable() || failed.saturating_add(1) >= retry.max_attempts
}

/// Sends one message.
async fn tell(
    sender: &Sender,
    webhook: &Webhook,
    secret: &str,
    delivery: &WebhookDelivery,
) -> Result<Answer, JobError> {
    let blocked = |error: crate::Blocked| JobError::terminal("address_blocked", error);
    let url = sender.egress.check(&webhook.url).map_err(blocked)?;
    let client =
        sender.client.as_ref().ok_or_else(|| JobError::terminal("no_client", "could not create an HTTP client"))?;
    let message = message(delivery);
    let sent_at = jiff::Timestamp::now().as_second();
    let id = format!("msg_{}_{}", webhook.id, delivery.sequence);
    let request = client
        .post(url)
        .header("content-type", "application/json")
        .header("webhook-id", &id)
        .header("webhook-timestamp", sent_at.to_string())
        .header("webhook-signature", signature(secret, &id, sent_at, &message))
        .body(message);
    let response = request.send().await.map_err(|error| refused(&error))?;
    let status = response.status();
    let put_off = response.headers().get("retry-after").and_then(|after| after.to_str().ok()).and_then(retry_after);
    Ok(answer(status, put_off))
}

/// Why no answer came. The resolver's refusal is no accident, and trying again does not help.
fn refused(error: &reqwest::Error) -> JobError {
    if let Some(blocked) = crate::Blocked::among(error) {
        return JobError::terminal("address_blocked", blocked);
    }
    let what = if error.is_timeout() { "the receiver did not respond in time" } else { "could not reach the receiver" };
    JobError::retryable(what).with_code("receiver_unreachable")
}

/// What is sent: the event in the shape that Standard Webhooks asks for.
fn message(delivery: &WebhookDelivery) -> String {
    let event = &delivery.event;
    let message = json!({
        "type": format!("job.{}", event.status),
        "timestamp": event.at,
        "data": event,
    });
    message.to_string()
}

/// The signature over id, time and message, by which a receiver knows who sent it.
fn signature(secret: &str, id: &str, sent_at: i64, message: &str) -> String {
    let key = STANDARD.decode(secret.trim_start_matches("whsec_")).unwrap_or_else(|_| secret.as_bytes().to_vec());
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length of key is allowed");
    mac.update(format!("{id}.{sent_at}.{message}").as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// What a receiver's answer means.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Told(StatusCode),
    Gone,
    Failed(StatusCode, Option<Duration>),
}

/// Anything but success is tried again, redirects too: nothing is followed. Only who says that it is gone for good is
/// believed.
fn answer(status: StatusCode, put_off: Option<Duration>) -> Answer {
    match status {
        status if status.is_success() => Answer::Told(status),
        StatusCode::GONE => Answer::Gone,
        status => Answer::Failed(status, put_off),
    }
}

/// `Retry-After` in seconds, within bounds. Dates are rare and passed over.
fn retry_after(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(|seconds| Duration::from_secs(seconds).min(PUT_OFF_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_signature_is_the_one_that_verifiers_expect() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let message = r#"{"test": 2432232314}"#;
        let signature = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, message);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn answers_are_told_apart() {
        let wait = Some(Duration::from_secs(7));
        assert_eq!(answer(StatusCode::NO_CONTENT, None), Answer::Told(StatusCode::NO_CONTENT));
        assert_eq!(answer(StatusCode::GONE, wait), Answer::Gone);
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(answer(unavailable, wait), Answer::Failed(unavailable, wait));
        for status in [301, 302, 307, 400, 404, 429, 500] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(answer(status, None), Answer::Failed(status, None));
        }
    }

    #[test]
    fn a_webhook_is_given_up_when_its_last_try_fails_and_not_when_nodes_are_lost() {
        let (no_luck, retry) = (JobError::retryable("500"), RetryPolicy::default().attempts(3));
        assert_eq!([0, 1, 2, 3].map(|failed| is_over(&no_luck, failed, &retry)), [false, false, true, true]);
        assert!(is_over(&JobError::discard("410"), 0, &retry) && is_over(&JobError::terminal("x", "y"), 0, &retry));
    }

    #[test]
    fn retry_after_is_bounded() {
        assert_eq!(retry_after(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("99999999999"), Some(PUT_OFF_MAX));
        assert_eq!(retry_after("-1"), None);
        assert_eq!(retry_after("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
