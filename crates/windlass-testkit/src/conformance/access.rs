//! Cases of API keys and settings: API-3.

use std::time::Duration;

use windlass_core::store::ApiKeyRecord;
use windlass_core::{ApiKey, Right, Rights, Scope, SecretHash, TenantId};

use super::Rig;
use super::rig::{A, B, EVERYONE};

/// A key that was not kept yet.
fn record(id: &str, tenant: TenantId) -> ApiKeyRecord {
    let mut key = ApiKey::new(id, format!("name of {id}"), tenant);
    key.user = "importer".into();
    key.rights = Rights::of([Right::Read, Right::Submit]);
    key.created_by = "ann".into();
    ApiKeyRecord { key, hash: SecretHash::of(id) }
}

async fn ids_of(rig: &Rig, scope: Scope) -> Vec<String> {
    rig.store().api_keys(scope).await.expect("lists").into_iter().map(|key| key.id).collect()
}

/// API-3, SEC-1: keys read back whole, newest first and in their scope; one for all tenants is the operators' alone.
pub(super) async fn api_keys_read_back_in_their_scope(rig: Rig) {
    let store = rig.store();
    let now = rig.now().await;
    let mut of_a = record("a1", A);
    of_a.key.expires_at = Some(now + Duration::from_secs(3_600));
    let kept = store.add_api_key(of_a.clone()).await.expect("kept");
    assert!(kept.created_at >= now);
    of_a.key.created_at = kept.created_at;
    assert_eq!(kept, of_a.key);
    rig.advance(Duration::from_millis(2)).await;
    store.add_api_key(record("b1", B)).await.expect("kept");
    rig.advance(Duration::from_millis(2)).await;
    let mut everyones = record("all1", A);
    everyones.key.all_tenants = true;
    let everyones = store.add_api_key(everyones).await.expect("kept");

    assert_eq!(store.api_keys(Scope::Tenant(A)).await.expect("lists"), [kept]);
    assert_eq!(ids_of(&rig, Scope::Tenant(B)).await, ["b1"]);
    assert_eq!(ids_of(&rig, EVERYONE).await, ["all1", "b1", "a1"]);
    assert_eq!(store.api_keys(EVERYONE).await.expect("lists")[0], everyones);

    let wanted = ["b1", "all1", "no such key"].map(str::to_owned);
    let mut found = store.find_api_keys(&wanted).await.expect("finds");
    found.sort_by(|one, two| one.key.id.cmp(&two.key.id));
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0].key, found[0].hash), (&everyones, SecretHash::of("all1")));
    assert!(store.find_api_keys(&[]).await.expect("finds nothing").is_empty());
    assert!(store.add_api_key(record("b1", A)).await.is_err(), "an id is one key's");
    assert_eq!(ids_of(&rig, Scope::Tenant(A)).await, ["a1"], "nothing was written");
}

/// API-3, OPS-5, SEC-1: a key is revoked once, in its scope only; making and revoking leave a line each.
pub(super) async fn a_revoked_api_key_stays_revoked(rig: Rig) {
    let store = rig.store();
    store.add_api_key(record("a1", A)).await.expect("kept");
    let mut everyones = record("all1", A);
    everyones.key.all_tenants = true;
    store.add_api_key(everyones).await.expect("kept");
    assert!(!store.revoke_api_key(Scope::Tenant(B), "a1", "eve").await.expect("answers"));
    assert!(!store.revoke_api_key(Scope::Tenant(A), "all1", "eve").await.expect("answers"));
    assert!(!store.revoke_api_key(Scope::Tenant(A), "a'1", "eve").await.expect("answers"));
    let before = rig.now().await;
    assert!(store.revoke_api_key(Scope::Tenant(A), "a1", "bob").await.expect("revokes"));
    assert!(!store.revoke_api_key(Scope::Tenant(A), "a1", "bob").await.expect("was revoked before"));
    assert!(store.revoke_api_key(EVERYONE, "all1", "op").await.expect("revokes"));
    for found in store.find_api_keys(&["a1".to_owned(), "all1".to_owned()]).await.expect("finds") {
        assert!(found.key.revoked_at.expect("revoked") >= before && !found.key.is_valid(before));
    }
    let of_a = rig.audit(Scope::Tenant(A), "KEY_REVOKED").await;
    let lines: Vec<_> =
        of_a.iter().map(|line| (line.actor.as_str(), line.target.as_str(), line.detail.as_deref())).collect();
    assert_eq!(lines, [("bob", "a1", Some("name of a1 (read,submit)"))]);
    let made = rig.audit(Scope::Tenant(A), "KEY_CREATED").await;
    assert_eq!(
        made.iter().map(|line| (line.actor.as_str(), line.target.as_str())).collect::<Vec<_>>(),
        [("ann", "a1")]
    );
    assert_eq!(rig.audit(EVERYONE, "KEY_CREATED").await.len(), 2);
    let rig = rig.restart().await;
    let found = rig.store().find_api_keys(&["a1".to_owned()]).await.expect("finds");
    assert!(found.iter().all(|found| found.key.revoked_at.is_some()));
}

/// API-3: when a key was last used only moves on.
pub(super) async fn the_last_use_of_an_api_key_moves_on(rig: Rig) {
    let store = rig.store();
    store.add_api_key(record("a1", A)).await.expect("kept");
    let now = rig.now().await;
    let later = now + Duration::from_secs(120);
    let last_use = || async {
        let keys = store.api_keys(Scope::Tenant(A)).await.expect("lists");
        keys[0].last_used_at
    };
    assert_eq!(last_use().await, None);
    for (at, kept) in [(now, now), (later, later), (now, later)] {
        store.note_api_key_uses(&[("a1".into(), at), ("gone".into(), at)]).await.expect("noted");
        assert_eq!(last_use().await, Some(kept));
    }
}

/// API-3: of many who set a value at once, one is kept and all are told the same.
pub(super) async fn a_setting_is_set_once(rig: Rig) {
    let store = rig.store();
    assert_eq!(store.setting("cookie").await.expect("reads"), None);
    let values: Vec<String> = (0..16).map(|n| format!("value {n}")).collect();
    let tries = values.iter().map(|value| store.set_setting_if_absent("cookie", value));
    let answers = futures_util::future::join_all(tries).await;
    let kept = store.setting("cookie").await.expect("reads").expect("one is kept");
    assert!(values.contains(&kept));
    assert!(answers.into_iter().all(|answer| answer.expect("answers") == kept));
    assert_eq!(store.set_setting_if_absent("other", "'; --").await.expect("kept"), "'; --");
    let rig = rig.restart().await;
    assert_eq!(rig.store().setting("cookie").await.expect("reads"), Some(kept));
}

/// API-3: a value that is kept for a time is replaced, listed by its prefix, and gone when the time is over.
pub(super) async fn a_setting_is_kept_for_its_time(rig: Rig) {
    let store = rig.store();
    let long = Duration::from_secs(3_600);
    store.put_setting("a.1", "one", long).await.expect("kept");
    store.put_setting("a.2", "two", long).await.expect("kept");
    store.put_setting("a.2", "two again", long).await.expect("kept");
    store.put_setting("b%_'", "other", long).await.expect("kept");
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(store.settings("a.", 10).await.expect("lists"), [pair("a.2", "two again"), pair("a.1", "one")]);
    assert_eq!(store.settings("a.", 1).await.expect("lists"), [pair("a.2", "two again")]);
    assert_eq!(store.settings("b%", 10).await.expect("lists"), [pair("b%_'", "other")]);
    assert_eq!(store.settings("%", 10).await.expect("lists"), []);
    assert_eq!(store.set_setting_if_absent("a.1", "late").await.expect("answers"), "one");
    store.put_setting("a.2", "short", Duration::ZERO).await.expect("kept");
    assert_eq!(store.setting("a.2").await.expect("reads"), None, "its time is over");
    assert_eq!(store.settings("a.", 10).await.expect("lists"), [pair("a.1", "one")]);
    assert_eq!(store.set_setting_if_absent("a.2", "for good").await.expect("answers"), "for good");
    assert_eq!(store.setting("a.2").await.expect("reads").as_deref(), Some("for good"));
    assert_eq!(store.settings("a.", 10).await.expect("lists"), [pair("a.1", "one")], "only what is kept for a time");
}
