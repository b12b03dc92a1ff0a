//! What each caller has used, read at scrape time: a caller that is gone leaves no series behind.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::gauges::encode_each;
use crate::auth::{Caller, Counts, LimitKind};
use crate::state::State;

/// A collector over the callers in force.
pub struct CallerCounts(Arc<State>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallerLabels {
    caller: Arc<str>,
}

// === impl CallerCounts ===

impl CallerCounts {
    /// Reads from `state`.
    pub fn new(state: Arc<State>) -> Self {
        Self(state)
    }
}

impl fmt::Debug for CallerCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerCounts")
    }
}

impl Collector for CallerCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let callers = self.0.callers.load();
        // Pages without callers do not name what they could have.
        if callers.iter().next().is_none() {
            return Ok(());
        }
        let counts: Vec<(Arc<str>, Counts)> =
            callers.iter().map(|caller| (caller.shared_label(), caller.counts())).collect();
        let in_flight =
            |caller: &Arc<Caller>| (CallerLabels { caller: caller.shared_label() }, f64::from(caller.in_flight()));
        encode_each(
            &mut encoder,
            "caller_in_flight_requests",
            "Requests of the caller that have begun and not ended",
            callers.iter().map(in_flight),
        )?;
        encode_requests(&mut encoder, &counts)?;
        encode_refused(&mut encoder, &counts)?;
        encode_tokens(&mut encoder, &counts)
    }
}

fn encode_requests(encoder: &mut DescriptorEncoder<'_>, counts: &[(Arc<str>, Counts)]) -> fmt::Result {
    let help = "Requests that came with a key of the caller";
    let mut metric = encoder.encode_descriptor("caller_requests", help, None, MetricType::Counter)?;
    for (caller, counts) in counts {
        ConstCounter::new(counts.requests).encode(metric.encode_family(&[("caller", &**caller)])?)?;
    }
    Ok(())
}

fn encode_refused(encoder: &mut DescriptorEncoder<'_>, counts: &[(Arc<str>, Counts)]) -> fmt::Result {
    let help = "Requests of the caller that were refused: by which of its limits, or for want of permission";
    let mut metric = encoder.encode_descriptor("caller_refused", help, None, MetricType::Counter)?;
    for (caller, counts) in counts {
        let limited = LimitKind::ALL.map(|kind| (kind.as_str(), counts.limited[kind as usize]));
        for (reason, count) in limited.into_iter().chain([("permission", counts.denied)]) {
            ConstCounter::new(count).encode(metric.encode_family(&[("caller", &**caller), ("reason", reason)])?)?;
        }
    }
    Ok(())
}

fn encode_tokens(encoder: &mut DescriptorEncoder<'_>, counts: &[(Arc<str>, Counts)]) -> fmt::Result {
    let help = "Tokens of the caller's requests: of prompts, of these the uncached ones, and of answers";
    let mut metric = encoder.encode_descriptor("caller_tokens", help, None, MetricType::Counter)?;
    for (caller, Counts { spent, .. }) in counts {
        for (kind, count) in [("prompt", spent.prompt), ("uncached", spent.uncached), ("output", spent.output)] {
            ConstCounter::new(count).encode(metric.encode_family(&[("caller", &**caller), ("kind", kind)])?)?;
        }
    }
    Ok(())
}
