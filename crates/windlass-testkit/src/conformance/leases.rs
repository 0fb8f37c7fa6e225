//! Cases of what one node does at a time: CLU-8 stands on them, and so does the dispatcher of webhooks (OPS-8).

use std::time::Duration;

use windlass_core::store::{Holder, Lease, NodeId, Store};

use super::Rig;
use super::rig::{HOUR, PAST_SOON, SOON};

async fn hold(store: &dyn Store, name: &str, node: NodeId, time: Duration) -> Option<(u64, Option<u64>)> {
    let lease = store.hold(name, node, time).await.expect("returns");
    lease.map(|Lease { epoch, position }| (epoch, position))
}

async fn advance(store: &dyn Store, name: &str, epoch: u64, position: u64) -> bool {
    store.advance(name, epoch, position).await.expect("returns")
}

async fn let_go(store: &dyn Store, name: &str, epoch: u64) -> bool {
    store.let_go(name, epoch).await.expect("returns")
}

/// OPS-8: a lease has one holder at a time, who may renew it; its epoch stays with the holder.
pub(super) async fn a_lease_has_one_holder_at_a_time(rig: Rig) {
    let (store, one, two) = (rig.store(), rig.node, rig.another_node().await);
    let (first, _) = hold(store, "x", one, SOON).await.expect("it is free");
    assert_eq!(hold(store, "x", two, HOUR).await, None, "taken while held");
    assert!(hold(store, "y", two, SOON).await.is_some(), "another name is another lease");
    assert_eq!(hold(store, "x", one, HOUR).await, Some((first, None)), "a renewal keeps the epoch");
    rig.advance(PAST_SOON).await;
    assert_eq!(hold(store, "x", two, HOUR).await, None, "the renewal counts");
    assert_eq!(hold(store, "y", two, HOUR).await.map(|(epoch, _)| epoch > 0), Some(true), "nobody else took it");
}

/// OPS-8: of many nodes that want a free lease at once, one gets it.
pub(super) async fn of_many_that_want_a_lease_at_once_one_holds_it(rig: Rig) {
    let mut nodes = vec![rig.node];
    for _ in 0..7 {
        nodes.push(rig.another_node().await);
    }
    let ask = |node: NodeId| {
        let rig = rig.clone();
        tokio::spawn(async move { rig.store().hold("x", node, HOUR).await.expect("returns") })
    };
    let asked: Vec<_> = nodes.into_iter().map(ask).collect();
    let mut held = 0;
    for answer in asked {
        held += usize::from(answer.await.expect("no panic").is_some());
    }
    assert_eq!(held, 1);
}

/// OPS-8: who takes a lease over that ran out begins a higher epoch and goes on from the stored position; what the holder
/// before it still writes is refused.
pub(super) async fn a_lease_that_ran_out_is_taken_over_under_a_higher_epoch(rig: Rig) {
    let (store, one, two) = (rig.store(), rig.node, rig.another_node().await);
    let (old, _) = hold(store, "x", one, SOON).await.expect("it is free");
    assert!(advance(store, "x", old, 7).await);
    assert_eq!(hold(store, "x", one, SOON).await, Some((old, Some(7))));
    rig.advance(PAST_SOON).await;
    let (new, position) = hold(store, "x", two, HOUR).await.expect("it ran out");
    assert!(new > old, "epoch {new} after {old}");
    assert_eq!(position, Some(7));
    assert!(!advance(store, "x", old, 9).await, "an old epoch cannot advance");
    assert!(!let_go(store, "x", old).await, "an old epoch cannot let go");
    assert_eq!(hold(store, "x", one, HOUR).await, None);
    assert!(advance(store, "x", new, 8).await);
    assert!(!advance(store, "no such lease", 1, 1).await);
    let rig = rig.restart().await;
    assert_eq!(hold(rig.store(), "x", two, HOUR).await, Some((new, Some(8))), "a restart forgets nothing");
}

/// OPS-8: letting go frees a lease at once, and ends its epoch even if the same node takes it again.
pub(super) async fn a_lease_that_is_let_go_is_free_at_once(rig: Rig) {
    let (store, one, two) = (rig.store(), rig.node, rig.another_node().await);
    let (first, _) = hold(store, "x", one, HOUR).await.expect("it is free");
    assert!(advance(store, "x", first, 7).await);
    assert!(let_go(store, "x", first).await);
    assert!(!let_go(store, "x", first).await, "only once");
    assert!(!advance(store, "x", first, 9).await, "nobody holds it");
    let (second, position) = hold(store, "x", two, HOUR).await.expect("it is free");
    assert!(second > first && position == Some(7), "epoch {second} after {first}, position {position:?}");
    assert!(let_go(store, "x", second).await);
    let (third, _) = hold(store, "x", two, HOUR).await.expect("it is free");
    assert!(third > second, "epoch {third} after {second}");
    assert!(!let_go(store, "no such lease", 1).await);
}

/// OPS-8: the holders of names with one beginning are listed by name, without those that ran out or were let go.
pub(super) async fn the_holders_of_leases_are_listed_by_prefix(rig: Rig) {
    let (store, one, two) = (rig.store(), rig.node, rig.another_node().await);
    for (name, node, time) in [
        ("s:b", one, HOUR),
        ("s:a", two, HOUR),
        ("s:late", one, SOON),
        ("s:free", one, HOUR),
        ("s", one, HOUR),
        ("t:a", one, HOUR),
    ] {
        hold(store, name, node, time).await.expect("it is free");
    }
    let (free, _) = hold(store, "s:free", one, HOUR).await.expect("held");
    assert!(let_go(store, "s:free", free).await);
    rig.advance(PAST_SOON).await;
    let (epoch, _) = hold(store, "s:a", two, HOUR).await.expect("held");
    assert!(advance(store, "s:a", epoch, 5).await);
    let named = async |prefix: &str| store.holders(prefix).await.expect("lists");
    let listed = named("s:").await;
    let seen: Vec<(&str, NodeId)> = listed.iter().map(|holder| (holder.name.as_str(), holder.node)).collect();
    assert_eq!(seen, [("s:a", two), ("s:b", one)]);
    let Holder { lease, until, .. } = &listed[0];
    assert_eq!(*lease, Lease { epoch, position: Some(5) });
    assert!(*until > rig.now().await, "it holds for an hour");
    assert_eq!(named("").await.len(), 4);
    assert_eq!(named("s:_").await, [], "a prefix is text, not a pattern");
}
