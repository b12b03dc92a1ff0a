//! Names of blocks that were refused for want of bytes, so that what comes behind them is refused too and does not wait
//! for them.

use crate::kv_events::EngineHash;

/// Names remembered. An engine goes on behind a block soon or hardly ever.
const NAMES: usize = 64;

/// The names refused last, each in a place of its own; a newer one with the same place puts an older one out.
pub(super) struct Refused(Box<[Option<EngineHash>; NAMES]>);

// === impl Refused ===

impl Refused {
    pub(super) fn new() -> Self {
        Self(Box::new([None; NAMES]))
    }

    pub(super) fn contains(&self, name: EngineHash) -> bool {
        self.0[place_of(name)] == Some(name)
    }

    pub(super) fn add(&mut self, name: EngineHash) {
        self.0[place_of(name)] = Some(name);
    }

    /// The block is held now.
    pub(super) fn remove(&mut self, name: EngineHash) {
        if self.contains(name) {
            self.0[place_of(name)] = None;
        }
    }
}

fn place_of(name: EngineHash) -> usize {
    // Names can be small numbers or digests.
    (name.0 ^ name.0 >> 32) as usize % NAMES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_remembered_until_it_is_stored_or_put_out() {
        let mut refused = Refused::new();
        let (one, other) = (EngineHash(5), EngineHash(5 + NAMES as u64));
        refused.add(one);
        assert!(refused.contains(one) && !refused.contains(other));
        refused.remove(other);
        assert!(refused.contains(one), "another name's end took it");
        refused.add(other);
        assert!(!refused.contains(one));
        refused.remove(other);
        assert!(!refused.contains(other));
    }
}
