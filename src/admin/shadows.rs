//! The counters of shadow decisions, read at scrape time from the pools that keep them.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::metrics::ShadowLabels;
use crate::shadow::Totals;
use crate::state::State;

/// A collector over the shadows of all pools.
pub struct Shadows(Arc<State>);

/// A counter of each policy: name, help, value.
type ShadowCounter = (&'static str, &'static str, fn(&Totals) -> f64);

const COUNTERS: [ShadowCounter; 4] = [
    ("shadow_requests", "Requests replayed under the policy", |totals| totals.requests as f64),
    ("shadow_prompt_tokens", "Prompt tokens of the requests replayed under the policy", |totals| {
        totals.prompt_tokens as f64
    }),
    ("shadow_cached_tokens", "Prompt tokens that would have been cached under the policy", |totals| {
        totals.cached_tokens as f64
    }),
    ("shadow_ttft_seconds", "Predicted TTFT under the policy, summed over requests", |totals| totals.ttft_seconds),
];

// === impl Shadows ===

impl Shadows {
    /// Reads from `state`.
    pub fn new(state: Arc<State>) -> Self {
        Self(state)
    }
}

impl fmt::Debug for Shadows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shadows")
    }
}

impl Collector for Shadows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shadows = self.0.shadows.load();
        let pools: Vec<_> = shadows.iter().map(|(pool, shadow)| (pool, shadow.totals())).collect();
        for (name, help, value) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (pool, totals) in &pools {
                for (policy, totals) in totals {
                    let labels = ShadowLabels { pool: Arc::clone(pool), policy: policy.name() };
                    ConstCounter::new(value(totals)).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
