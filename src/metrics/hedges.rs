//! The metrics of hedging.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What became of a second attempt that was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HedgeOutcome {
    /// The first attempt had its token first.
    FirstWon,
    /// The second had.
    SecondWon,
    /// The second had none, or could not connect.
    Failed,
    /// It was not made: the budget was spent.
    Denied,
    /// It was not made: no other backend had room.
    NoRoom,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HedgeLabels {
    pool: Arc<str>,
    outcome: &'static str,
}

/// What is counted of second attempts.
#[derive(Debug, Clone, Default)]
pub struct HedgeMetrics(Family<HedgeLabels, Counter>);

// === impl HedgeOutcome ===

impl HedgeOutcome {
    const ALL: [Self; 5] = [Self::FirstWon, Self::SecondWon, Self::Failed, Self::Denied, Self::NoRoom];

    fn name(self) -> &'static str {
        match self {
            Self::FirstWon => "first_won",
            Self::SecondWon => "second_won",
            Self::Failed => "failed",
            Self::Denied => "denied",
            Self::NoRoom => "no_room",
        }
    }
}

// === impl HedgeMetrics ===

impl HedgeMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("hedges", "Second attempts that were due, by what became of them", self.0.clone());
    }

    pub(super) fn introduce(&self, pool: &Arc<str>) {
        for outcome in HedgeOutcome::ALL {
            let _ = self.0.get_or_create(&labels(pool, outcome));
        }
    }

    pub(super) fn forget(&self, pool: &Arc<str>) {
        for outcome in HedgeOutcome::ALL {
            self.0.remove(&labels(pool, outcome));
        }
    }

    /// A second attempt was due.
    pub fn ended(&self, pool: &Arc<str>, outcome: HedgeOutcome) {
        self.0.get_or_create(&labels(pool, outcome)).inc();
    }
}

fn labels(pool: &Arc<str>, outcome: HedgeOutcome) -> HedgeLabels {
    HedgeLabels { pool: Arc::clone(pool), outcome: outcome.name() }
}
