//! Behaviours of callers from outside: API-3.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::store::Store;
use windlass_core::*;

use super::*;

/// API-3: the secret of a key opens its tenant with its rights, and nothing else does.
pub async fn an_api_key_opens_its_tenant_and_nothing_else_does(store: Arc<dyn Store>) {
    let jobs = service(&store).without_workers().start().await.expect("starts");
    let (ctx, other) = (tenant(1), tenant(2));
    let new = NewApiKey::new("import", Rights::of([Right::Submit])).user("importer").environment("test");
    let (key, secret) = jobs.create_key(&ctx, new).await.expect("made");
    assert!(secret.starts_with(&format!("wl_test_{}_", key.id)), "{secret}");
    let checked = jobs.check_key(&secret).await.expect("answers").expect("opens");
    assert_eq!(checked, key);
    assert_eq!((checked.context().tenant, checked.context().actor()), (ctx.tenant, "importer"));
    assert!(checked.rights.allow(Right::Submit) && !checked.rights.allow(Right::Read) && !checked.all_tenants);

    let (_, foreign) = jobs.create_key(&other, NewApiKey::new("x", Rights::ALL)).await.expect("made");
    let theirs = jobs.check_key(&foreign).await.expect("answers").expect("opens");
    assert_eq!(theirs.tenant, other.tenant);
    for bad in ["", "wl_test", &secret[..secret.len() - 1], &secret.replace("_test_", "_live_"), "Bearer x"] {
        assert_eq!(jobs.check_key(bad).await.expect("answers"), None, "{bad}");
    }
    assert_eq!(jobs.api_keys(&ctx).await.expect("lists").len(), 1);
    assert!(!jobs.revoke_key(&other, &key.id).await.expect("answers"), "someone else's key");
    assert!(jobs.check_key(&secret).await.expect("answers").is_some());

    for (bad, field) in [
        (NewApiKey::new("", Rights::ALL), "name"),
        (NewApiKey::new("n", Rights::NONE), "rights"),
        (NewApiKey::new("n", Rights::ALL).user(""), "user"),
        (NewApiKey::new("n", Rights::ALL).expires_at(jobs.now() - Duration::from_secs(1)), "expires_at"),
        (NewApiKey::new("n", Rights::ALL).environment("a_b"), "environment"),
        (NewApiKey::new("n", Rights::ALL).all_tenants(), "all_tenants"),
    ] {
        match jobs.create_key(&ctx, bad).await {
            Err(Error::InvalidInput(bad)) => assert_eq!(bad.field, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let mine = jobs.within(ctx.scope());
    let reader = Rights::of([Right::Read]);
    let more = mine.create_key_as(&ctx, reader, NewApiKey::new("n", Rights::of([Right::Read, Right::Admin]))).await;
    assert_eq!(more.expect_err("more than its maker has").code(), "forbidden");
    assert_eq!(jobs.api_keys(&ctx).await.expect("lists").len(), 1, "nothing was written");
    let operator = jobs.operator(OperatorRight::assume());
    let (key, secret) =
        operator.create_key(&ctx, NewApiKey::new("ops", Rights::ALL).all_tenants()).await.expect("made");
    assert!(jobs.check_key(&secret).await.expect("answers").expect("opens").all_tenants);
    assert_eq!(operator.api_keys().await.expect("lists").len(), 3);
    assert!(!jobs.revoke_key(&ctx, &key.id).await.expect("answers"), "the operators' own");
    assert!(operator.revoke_key(&ctx, &key.id).await.expect("revokes"));
    jobs.shutdown().await;
}

/// API-3: a key that was revoked on one node is refused there at once, and on every other within five seconds.
pub async fn a_revoked_api_key_is_refused_on_every_node_within_seconds(store: Arc<dyn Store>) {
    let here = service(&store).without_workers().start().await.expect("starts");
    let there = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let (key, secret) = here.create_key(&ctx, NewApiKey::new("k", Rights::ALL)).await.expect("made");
    for jobs in [&here, &there] {
        assert!(jobs.check_key(&secret).await.expect("answers").is_some());
    }
    assert!(here.revoke_key(&ctx, &key.id).await.expect("revokes"));
    let revoked = Instant::now();
    assert_eq!(here.check_key(&secret).await.expect("answers"), None);
    until("the other node to refuse the key", || async { there.check_key(&secret).await.expect("answers").is_none() })
        .await;
    assert!(revoked.elapsed() < Duration::from_secs(5), "{:?}", revoked.elapsed());
    assert!(!here.revoke_key(&ctx, &key.id).await.expect("answers"), "twice is once");
    let entries = here.audit_log(&ctx, &Default::default()).await.expect("reads");
    let lines: Vec<_> = entries.iter().map(|entry| (entry.action.as_str(), entry.actor.as_str())).collect();
    assert_eq!(lines, [("KEY_REVOKED", "user-1"), ("KEY_CREATED", "user-1")]);
    here.shutdown().await;
    there.shutdown().await;
}

/// API-3: an expired key opens nothing, and when a key was last used can be seen.
pub async fn an_api_key_expires_and_tells_when_it_was_used(store: Arc<dyn Store>) {
    let jobs = service(&store).without_workers().start().await.expect("starts");
    let ctx = tenant(1);
    let soon = jobs.now() + Duration::from_millis(500);
    let new = NewApiKey::new("short", Rights::ALL).expires_at(soon);
    let (key, secret) = jobs.create_key(&ctx, new).await.expect("made");
    assert_eq!(key.expires_at, Some(soon));
    jobs.check_key(&secret).await.expect("answers");
    until("the key to expire", || async { jobs.check_key(&secret).await.expect("answers").is_none() }).await;
    assert!(jobs.now() >= soon);
    let (_, secret) = jobs.create_key(&ctx, NewApiKey::new("long", Rights::ALL)).await.expect("made");
    assert!(jobs.check_key(&secret).await.expect("answers").is_some());
    until("the use to be noted", || async {
        let keys = jobs.api_keys(&ctx).await.expect("lists");
        keys.iter().any(|key| key.name == "long" && key.last_used_at.is_some())
    })
    .await;
    jobs.shutdown().await;
}
