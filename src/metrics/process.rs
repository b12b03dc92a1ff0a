//! The process's own metrics, as every Prometheus client library has them: read from `/proc` at scrape time.
//!
//! Names and meanings are those of the client libraries' guide ("Process metrics"), without this program's prefix. What the
//! system does not tell is left out.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Reads what the system knows of this process.
#[derive(Debug)]
struct ProcessMetrics {
    /// Seconds since the epoch.
    started: f64,
}

/// What `/proc` says at one moment.
#[derive(Debug, Default, PartialEq)]
struct Reading {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    threads: Option<f64>,
    open_descriptors: Option<f64>,
    most_descriptors: Option<f64>,
}

/// A registry that has them; its process began about now.
pub(super) fn registry() -> Registry {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics { started }));
    registry
}

// === impl ProcessMetrics ===

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = read();
        if let Some(seconds) = now.cpu_seconds {
            let help = "User and system CPU time spent, seconds";
            let entry = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(entry)?;
        }
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory", now.resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory", now.virtual_bytes),
            ("process_threads", "Threads of the system", now.threads),
            ("process_open_fds", "Open file descriptors", now.open_descriptors),
            ("process_max_fds", "Most file descriptors that may be open (RLIMIT_NOFILE)", now.most_descriptors),
            ("process_start_time_seconds", "Start of the process, seconds since the epoch", Some(self.started)),
        ] {
            let Some(value) = value else { continue };
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn read() -> Reading {
    use procfs::process::{LimitValue, Process};

    let Ok(process) = Process::myself() else { return Reading::default() };
    let stat = process.stat().ok();
    let most = process.limits().ok().map(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Value(most) => most as f64,
        LimitValue::Unlimited => f64::INFINITY,
    });
    Reading {
        cpu_seconds: stat.as_ref().map(|stat| (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64),
        resident_bytes: stat.as_ref().map(|stat| stat.rss as f64 * procfs::page_size() as f64),
        virtual_bytes: stat.as_ref().map(|stat| stat.vsize as f64),
        threads: stat.as_ref().map(|stat| stat.num_threads as f64),
        open_descriptors: process.fd_count().ok().map(|count| count as f64),
        most_descriptors: most,
    }
}

#[cfg(not(target_os = "linux"))]
fn read() -> Reading {
    Reading::default()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_takes_is_seen() {
        let before = read();
        let files: Vec<_> = (0..32).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        let memory = vec![1_u8; 64 << 20];
        let after = read();
        assert!(after.open_descriptors.unwrap() >= 32.0, "{after:?}");
        assert!(after.most_descriptors.unwrap() >= after.open_descriptors.unwrap(), "{after:?}");
        assert!(after.virtual_bytes.unwrap() >= before.resident_bytes.unwrap(), "{after:?}");
        assert!(after.resident_bytes.unwrap() >= 60e6, "{after:?}");
        assert!(after.threads.unwrap() >= 1.0 && after.cpu_seconds.unwrap() >= 0.0, "{after:?}");
        assert_eq!((files.len(), memory[memory.len() - 1]), (32, 1));
    }
}
