//! The LoRA adapters that engines' events name: whether a model's name in a request is one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::super::bytes::heap_bytes;
use super::budget::Budget;

/// Adapters noted of one tenant at most.
const MAX_ADAPTERS: usize = 256;

/// Bytes of a name at most; longer ones are not noted.
const MAX_NAME_BYTES: usize = 256;

/// What a name costs beside its bytes: its counters, and its places in the map and in a tenant's list.
const ADAPTER_BYTES: usize = 128;

/// Names of adapters, and how many tenants have seen each.
#[derive(Default)]
pub(super) struct Adapters(RwLock<HashMap<Arc<str>, u32>>);

// === impl Adapters ===

impl Adapters {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.read().contains_key(name)
    }

    /// Notes an adapter that a tenant's event names; `of_tenant` are those it has named before.
    pub(super) fn note(&self, name: &Arc<str>, of_tenant: &mut Vec<Arc<str>>, budget: &Budget) {
        // The same as in the last event, most times.
        if let Some(at) = of_tenant.iter().rposition(|known| known == name) {
            let last = of_tenant.len() - 1;
            return of_tenant.swap(at, last);
        }
        if of_tenant.len() < MAX_ADAPTERS && name.len() <= MAX_NAME_BYTES && budget.take(bytes_of(name)) {
            of_tenant.push(Arc::clone(name));
            *self.0.write().entry(Arc::clone(name)).or_default() += 1;
        }
    }

    /// Ends what a tenant has noted.
    pub(super) fn forget(&self, of_tenant: &mut Vec<Arc<str>>, budget: &Budget) {
        let mut names = self.0.write();
        for name in std::mem::take(of_tenant) {
            budget.give_back(bytes_of(&name));
            if let Some(tenants) = names.get_mut(&name) {
                *tenants -= 1;
                if *tenants == 0 {
                    names.remove(&name);
                }
            }
        }
    }
}

fn bytes_of(name: &str) -> usize {
    ADAPTER_BYTES + heap_bytes(name.len())
}
