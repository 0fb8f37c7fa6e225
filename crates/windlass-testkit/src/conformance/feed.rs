//! Cases of status events and webhooks: OPS-8.

use windlass_core::store::{CancelReply, FeedAsk, FeedRow, ReplayReply, Transition, WebhookRecord};
use windlass_core::{JobId, Scope, Status, TenantId, Webhook};

use super::Rig;
use super::rig::{
    A, ALL, B, EVERYONE, HANDLER, HOUR, LEASE, PAST_SOON, SOON, dead, finish, payload, retry, sorted, succeed,
};

async fn read(rig: &Rig, after: u64, gaps: &[(u64, u64)], limit: usize) -> Vec<FeedRow> {
    rig.store().read_feed(&FeedAsk { after, gaps: gaps.to_vec() }, limit).await.expect("reads")
}

/// What every event from the start says.
async fn events(rig: &Rig) -> Vec<(JobId, Status, u16)> {
    read(rig, 0, &[], ALL).await.iter().map(|row| (row.job, row.status, row.attempt)).collect()
}

/// OPS-8: nothing is kept while nobody wants it, and nothing once that time is over.
pub(super) async fn status_events_are_kept_while_somebody_wants_them(rig: Rig) {
    let store = rig.store();
    rig.ended(rig.job(), succeed()).await;
    assert_eq!((store.feed_end().await.expect("reads"), events(&rig).await), (0, vec![]));
    store.want_feed(SOON).await.expect("wanted");
    let seen = rig.ended(rig.job(), succeed()).await;
    let end = store.feed_end().await.expect("reads");
    assert_eq!(events(&rig).await, [(seen, Status::Succeeded, 1)]);
    assert_eq!(read(&rig, 0, &[], ALL).await[0].sequence, end);
    rig.advance(PAST_SOON).await;
    // How a node learns of it.
    store.survey(LEASE, &[]).await.expect("looks");
    rig.ended(rig.job(), succeed()).await;
    let canceled = rig.submit(rig.job()).await;
    rig.cancel(canceled).await;
    assert_eq!((store.feed_end().await.expect("reads"), events(&rig).await.len()), (end, 1));
    store.want_feed(HOUR).await.expect("wanted");
    store.want_feed(SOON).await.expect("a shorter wish takes nothing from a longer one");
    rig.advance(PAST_SOON).await;
    store.survey(LEASE, &[]).await.expect("looks");
    rig.ended(rig.job(), succeed()).await;
    assert_eq!(events(&rig).await.len(), 2);
}

/// OPS-8: every change of status leaves an event, with what is known of its job.
pub(super) async fn every_change_of_status_leaves_an_event(rig: Rig) {
    let store = rig.store();
    let before = rig.now().await;
    store.want_feed(HOUR).await.expect("wanted");
    let mut expected = Vec::new();

    let plain = rig.ended(rig.job().tenant(B).handler("other"), succeed()).await;
    expected.push((plain, Status::Succeeded, 1));
    let first = rig.running(rig.job()).await;
    rig.end(&first, retry(1, std::time::Duration::ZERO)).await;
    expected.push((first.id, Status::Retrying, 1));
    rig.promote().await;
    let second = rig.claim_one().await;
    rig.end(&second, dead("bad_address")).await;
    expected.push((first.id, Status::DeadLettered, 2));
    assert_eq!(store.replay(EVERYONE, first.id, "op").await.expect("answers"), ReplayReply::Replayed);
    expected.push((first.id, Status::Pending, 0));
    let third = rig.claim_one().await;
    rig.end(&third, Transition::Snooze { delay: HOUR }).await;
    expected.push((first.id, Status::Scheduled, 1));
    assert_eq!(rig.cancel(first.id).await, CancelReply::Canceled);
    expected.push((first.id, Status::Canceled, 0));
    let asked = rig.running(rig.job()).await;
    assert_eq!(rig.cancel(asked.id).await, CancelReply::Requested);
    rig.end(&asked, succeed()).await;
    expected.push((asked.id, Status::Canceled, 1));
    let soon = before + std::time::Duration::from_millis(1);
    let late = rig.submit(rig.job().expires_at(soon)).await;
    rig.advance(std::time::Duration::from_millis(5)).await;
    assert_eq!(rig.expire().await, 1);
    expected.push((late, Status::Canceled, 0));
    let lost = rig.running(rig.job()).await;
    let another = rig.another_node().await;
    rig.lose_node(&[another]).await;
    expected.push((lost.id, Status::Pending, 1));
    assert_eq!(events(&rig).await, expected);

    let rows = read(&rig, 0, &[], ALL).await;
    assert!(rows.is_sorted_by_key(|row| row.sequence) && rows[0].sequence > 0);
    let now = rig.now().await;
    assert!(rows.iter().all(|row| before <= row.at && row.at <= now));
    let of = rows[0].of.as_ref().expect("the job is there");
    assert_eq!((of.tenant, of.handler.as_str(), of.sealed, &of.error), (B, "other", false, &None));
    let of = rows[1].of.as_ref().expect("the job is there");
    assert_eq!((of.tenant, of.handler.as_str()), (A, HANDLER));
    let error = |row: &FeedRow| row.of.as_ref().and_then(|of| of.error.clone()).map(|error| error.message);
    assert_eq!(error(&rows[1]).as_deref(), Some("no luck"));
    assert_eq!(error(&rows[2]).as_deref(), Some("it is over"), "also after a replay");
    assert_eq!(error(&rows[3]), None);
}

/// OPS-8: a read goes on after a sequence, also into gaps below it, and keeps to its limit.
pub(super) async fn status_events_are_read_on_from_a_sequence(rig: Rig) {
    let store = rig.store();
    store.want_feed(HOUR).await.expect("wanted");
    let jobs = rig.submit_all(rig.jobs(6)).await;
    let claimed = rig.claim(6).await;
    let finishes = claimed.iter().map(|job| finish(job, succeed())).collect();
    store.finish(rig.node, finishes).await.expect("finishes");
    let rows = read(&rig, 0, &[], ALL).await;
    let told = rows.iter().map(|row| row.job).collect();
    assert_eq!(sorted(told), sorted(jobs.iter().map(|job| job.id).collect()), "each of a batch");
    let at: Vec<u64> = rows.iter().map(|row| row.sequence).collect();
    let sequences = |rows: Vec<FeedRow>| rows.iter().map(|row| row.sequence).collect::<Vec<_>>();
    assert_eq!(sequences(read(&rig, at[3], &[], ALL).await), at[4..]);
    assert_eq!(sequences(read(&rig, 0, &[], 2).await), at[..2]);
    let gaps = [(at[0], at[1]), (at[3], at[3])];
    assert_eq!(sequences(read(&rig, at[4], &gaps, ALL).await), [at[0], at[1], at[3], at[5]]);
    assert_eq!(sequences(read(&rig, at[4], &gaps, 3).await), [at[0], at[1], at[3]]);
    assert_eq!(read(&rig, at[5], &[], ALL).await, []);
    assert_eq!(store.feed_end().await.expect("reads"), at[5]);

    store.purge(EVERYONE, rows[0].job, "op").await.expect("purges");
    let gone = &read(&rig, 0, &[], 1).await[0];
    assert_eq!((gone.sequence, gone.of.clone()), (at[0], None), "a reader still learns that there was one");
    let rig = rig.restart().await;
    assert_eq!(sequences(read(&rig, at[3], &[], ALL).await), at[4..]);
    assert_eq!(rig.store().feed_end().await.expect("reads"), at[5], "no sequence comes twice");
}

fn hook(id: &str, tenant: TenantId) -> WebhookRecord {
    let mut webhook = Webhook::new(id, tenant, format!("https://example.com/{id}"));
    webhook.events = vec![Status::DeadLettered, Status::Canceled];
    webhook.handler = Some("h".into());
    webhook.created_by = "ann".into();
    WebhookRecord { webhook, secret: payload("\"whsec_x\""), sealed: tenant == B }
}

/// OPS-8, OPS-5, SEC-1: webhooks read back in their scope; adding, pausing and removing leave a line each.
pub(super) async fn webhooks_are_kept_in_their_scope(rig: Rig) {
    let store = rig.store();
    let mut of_a = hook("a1", A);
    let kept = store.add_webhook(of_a.clone()).await.expect("kept");
    (of_a.webhook.created_at, of_a.webhook.active_since) = (kept.created_at, kept.active_since);
    assert_eq!(kept, of_a.webhook);
    store.add_webhook(hook("b1", B)).await.expect("kept");
    assert!(store.add_webhook(hook("b1", A)).await.is_err(), "an id is one webhook's");
    assert_eq!(store.webhooks(Scope::Tenant(A)).await.expect("lists"), [of_a]);
    let all = store.webhooks(EVERYONE).await.expect("lists");
    assert_eq!(
        all.iter().map(|record| (record.webhook.id.as_str(), record.sealed)).collect::<Vec<_>>(),
        [("a1", false), ("b1", true)]
    );
    assert!(store.survey(LEASE, &[]).await.expect("looks").webhooks);

    assert!(!store.pause_webhook(Scope::Tenant(B), "a1", true, "eve").await.expect("answers"));
    let mut since = vec![kept.active_since];
    for paused in [true, true, false, false] {
        rig.advance(SOON).await;
        assert!(store.pause_webhook(Scope::Tenant(A), "a1", paused, "bob").await.expect("answers"));
        let hook = store.webhooks(Scope::Tenant(A)).await.expect("lists").remove(0).webhook;
        assert_eq!((hook.paused, hook.created_at), (paused, kept.created_at));
        since.push(hook.active_since);
    }
    assert!(kept.active_since >= kept.created_at);
    assert_eq!((since[1], since[2], since[4]), (since[0], since[0], since[3]), "only a resume moves it");
    assert!(since[3] > since[0], "told of nothing that happened while it was paused");
    assert!(!store.remove_webhook(Scope::Tenant(B), "a1", "eve").await.expect("answers"));
    assert!(store.remove_webhook(Scope::Tenant(A), "a1", "bob").await.expect("removes"));
    assert!(!store.remove_webhook(Scope::Tenant(A), "a1", "bob").await.expect("is gone"));
    for (action, by) in
        [("WEBHOOK_ADDED", "ann"), ("WEBHOOK_PAUSED", "bob"), ("WEBHOOK_RESUMED", "bob"), ("WEBHOOK_REMOVED", "bob")]
    {
        let lines = rig.audit(Scope::Tenant(A), action).await;
        let read: Vec<_> = lines.iter().map(|line| (line.actor.as_str(), line.detail.as_deref())).collect();
        assert_eq!(read, [(by, Some("https://example.com/a1"))], "{action}");
    }
    let rig = rig.restart().await;
    assert_eq!(rig.store().webhooks(EVERYONE).await.expect("lists").len(), 1);
    rig.store().remove_webhook(EVERYONE, "b1", "op").await.expect("removes");
    assert!(!rig.store().survey(LEASE, &[]).await.expect("looks").webhooks);
}
