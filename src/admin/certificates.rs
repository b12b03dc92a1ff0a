//! Metrics of TLS: when certificates end, and how handshakes do.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::gauges::encode_one;
use crate::tls::{Outcome, Store};

/// A collector over what is in force.
#[derive(Debug)]
pub struct Certificates(Arc<Store>);

// === impl Certificates ===

impl Certificates {
    /// Reads from `store`.
    pub fn new(store: Arc<Store>) -> Self {
        Self(store)
    }
}

impl Collector for Certificates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "When a certificate in force, or one that links it to a root, expires";
        let name = "tls_certificate_expiry_timestamp_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (file, side, expiry) in self.0.expiries() {
            ConstGauge::new(expiry).encode(metric.encode_family(&[("file", file.as_str()), ("side", side)])?)?;
        }
        let help = "TLS handshakes with clients, by how they ended";
        let mut metric = encoder.encode_descriptor("tls_handshakes", help, None, MetricType::Counter)?;
        for outcome in Outcome::ALL {
            let count = ConstCounter::new(self.0.handshakes(outcome));
            count.encode(metric.encode_family(&[("outcome", outcome.name())])?)?;
        }
        let help = "1 while the certificates in force are the newest ones seen, 0 after newer ones were refused";
        encode_one(&mut encoder, "tls_certificates_current", help, f64::from(u8::from(self.0.is_current())))
    }
}
