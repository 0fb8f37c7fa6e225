//! Places that the callers of a server share, such as those for event streams: how many there are, and who may have how
//! many at once. Used by `streams`, the route of checkouts and, for requests that change something, `state`. Knows nothing of what a place is for.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use windlass_core::TenantId;
use windlass_core::fair::may_enter;

/// Places of one kind.
pub(crate) struct Places {
    taken: Arc<Mutex<Taken>>,
    most: usize,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_tenant: HashMap<TenantId, usize>,
}

/// One place; given back when it is dropped.
pub(crate) struct Place {
    taken: Arc<Mutex<Taken>>,
    tenant: Option<TenantId>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Places { taken: Arc::default(), most }
    }

    /// Takes a place of the share of `tenant`, or, for a caller who operates all tenants, of all of them; `None` if there
    /// is no room.
    pub(crate) fn enter(&self, tenant: Option<TenantId>) -> Option<Place> {
        let mut taken = self.taken.lock();
        let own = tenant.and_then(|tenant| taken.by_tenant.get(&tenant)).copied().unwrap_or(0);
        let held = Held { own, others: taken.all - own };
        if !held.leaves_room(1, self.most, tenant.is_none()) {
            return None;
        }
        taken.all += 1;
        if let Some(tenant) = tenant {
            *taken.by_tenant.entry(tenant).or_insert(0) += 1;
        }
        Some(Place { taken: self.taken.clone(), tenant })
    }

    /// Places that are taken now.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.taken.lock().all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all -= 1;
        if let Some(tenant) = self.tenant {
            one_less(&mut taken.by_tenant, &tenant);
        }
    }
}

/// Counts one less, and forgets who has none left.
pub(crate) fn one_less<K: Hash + Eq>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

/// Places that are taken: by one tenant, and by all others.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) own: usize,
    pub(crate) others: usize,
}

/// The part of the places that is reserved for callers who operate all tenants: one in so many.
const RESERVED: usize = 10;

impl Held {
    /// Whether `more` of `places` may be taken: by the tenant, up to half of what the others leave of those that are not
    /// reserved; by a caller who operates all tenants, as long as there are any. Pure.
    pub(crate) fn leaves_room(self, more: usize, places: usize, operates_all: bool) -> bool {
        match operates_all {
            true => self.own + self.others + more <= places,
            false => may_enter(self.own + more.saturating_sub(1), self.others, places - places / RESERVED),
        }
    }
}
