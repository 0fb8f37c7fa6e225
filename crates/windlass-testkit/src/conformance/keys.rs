//! Cases of wrapped data keys: SEC-2.

use windlass_core::Scope;
use windlass_core::store::WrappedKey;

use super::Rig;
use super::rig::{A, B, EVERYONE};

fn wrapped(kek: &str, byte: u8) -> WrappedKey {
    WrappedKey { kek: kek.to_owned(), bytes: vec![byte; 72] }
}

/// SEC-2, SEC-1: keys read back whole, by version, and only for their tenant; `Scope::All` has them all.
pub(super) async fn data_keys_read_back_in_their_scope(rig: Rig) {
    let store = rig.store();
    assert!(store.data_keys(Scope::Tenant(A)).await.expect("reads").is_empty());
    for (tenant, version, byte) in [(A, 1, 1), (A, 2, 2), (B, 1, 3)] {
        assert!(store.add_data_key(tenant, version, wrapped("k", byte)).await.expect("kept"));
    }
    let of_a = store.data_keys(Scope::Tenant(A)).await.expect("reads");
    let read: Vec<_> = of_a.iter().map(|key| (key.tenant, key.version, key.wrapped.clone())).collect();
    assert_eq!(read, [(A, 1, Some(wrapped("k", 1))), (A, 2, Some(wrapped("k", 2)))]);
    let now = store.now().await.expect("time");
    assert!(of_a.iter().all(|key| key.created_at <= now && now.since(key.created_at).as_secs() < 600));
    assert_eq!(store.data_keys(EVERYONE).await.expect("reads").len(), 3);
}

/// SEC-2: a version belongs to whoever came first, also after it was destroyed.
pub(super) async fn a_key_version_is_kept_once_and_never_again(rig: Rig) {
    let store = rig.store();
    assert!(store.add_data_key(A, 1, wrapped("k", 1)).await.expect("kept"));
    assert!(!store.add_data_key(A, 1, wrapped("k", 2)).await.expect("refused"));
    assert_eq!(store.destroy_data_keys(A).await.expect("destroyed"), 1);
    assert_eq!(store.destroy_data_keys(A).await.expect("none left"), 0);
    assert!(!store.add_data_key(A, 1, wrapped("k", 3)).await.expect("refused"));
    let left = store.data_keys(Scope::Tenant(A)).await.expect("reads");
    assert_eq!(left.iter().map(|key| (key.version, key.wrapped.clone())).collect::<Vec<_>>(), [(1, None)]);
}

/// SEC-2: of many who make the same version at once, one is told that its key is kept, and that one is.
pub(super) async fn of_keys_made_at_once_one_is_kept(rig: Rig) {
    let store = rig.store();
    let tries = (0..16u8)
        .map(|byte| async move { (byte, store.add_data_key(A, 1, wrapped("k", byte)).await.expect("answers")) });
    let tries = futures_util::future::join_all(tries).await;
    let kept: Vec<u8> = tries.into_iter().filter(|(_, kept)| *kept).map(|(byte, _)| byte).collect();
    assert_eq!(kept.len(), 1);
    let read = store.data_keys(Scope::Tenant(A)).await.expect("reads");
    assert_eq!(read[0].wrapped, Some(wrapped("k", kept[0])));
}

/// SEC-2: a rewrap replaces exactly the wrapping it read, so that it cannot bring a destroyed key back.
pub(super) async fn a_rewrap_replaces_only_what_it_read(rig: Rig) {
    let store = rig.store();
    store.add_data_key(A, 1, wrapped("old", 1)).await.expect("kept");
    store.add_data_key(B, 1, wrapped("old", 1)).await.expect("kept");
    assert!(!store.rewrap_data_key(A, 1, &wrapped("old", 9), wrapped("new", 2)).await.expect("answers"));
    assert!(!store.rewrap_data_key(A, 2, &wrapped("old", 1), wrapped("new", 2)).await.expect("answers"));
    assert!(store.rewrap_data_key(A, 1, &wrapped("old", 1), wrapped("new", 2)).await.expect("answers"));
    store.destroy_data_keys(A).await.expect("destroyed");
    assert!(!store.rewrap_data_key(A, 1, &wrapped("new", 2), wrapped("newer", 3)).await.expect("answers"));
    let keys = store.data_keys(EVERYONE).await.expect("reads");
    let read: Vec<_> = keys.into_iter().map(|key| (key.tenant, key.wrapped)).collect();
    assert!(read.contains(&(A, None)) && read.contains(&(B, Some(wrapped("old", 1)))), "{read:?}");
}
