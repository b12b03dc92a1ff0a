//! A backend restarts, is added, or becomes three times as slow, in the middle of a load that goes on for two minutes and
//! more: the requests of the next minute hardly wait longer.
//!
//! The hardest is a restart of 30 s at utilization 0.7: an eighth of all conversations is computed again by a fleet that is an
//! eighth smaller. That long prefills are deferred is what keeps it within bounds.

use crate::simulated::{Figures, simulate};

/// A steady load. There are enough requests for sessions to start two minutes after the fault.
struct Load {
    workload: &'static str,
    requests: usize,
    utilization: f64,
    /// When the fault happens, in seconds: the caches are in use for long by then.
    at: u32,
}

/// Most that TTFT p90 grows to in the minute after a fault, as a multiple.
const MOST: f64 = 1.6;

#[test]
fn without_sharing_a_fault_hardly_shows() {
    let load = Load { workload: "no-sharing", requests: 4_500, utilization: 0.7, at: 150 };
    load.hardly_shows(&["restart@150:2", "add@150", "slow@150:2:3"]);
}

#[test]
fn with_documents_a_fault_hardly_shows() {
    let load = Load { workload: "rag", requests: 3_000, utilization: 0.7, at: 150 };
    load.hardly_shows(&["restart@150:2", "add@150", "slow@150:2:3"]);
}

#[test]
fn in_conversations_a_fault_hardly_shows() {
    let load = Load { workload: "conversation", requests: 16_000, utilization: 0.7, at: 200 };
    load.hardly_shows(&["restart@200:2", "add@200", "slow@200:2:3"]);
}

#[test]
fn in_conversations_a_restart_hardly_shows_with_room_to_spare() {
    let load = Load { workload: "conversation", requests: 16_000, utilization: 0.45, at: 200 };
    load.hardly_shows(&["restart@200:2"]);
}

// === impl Load ===

impl Load {
    /// Each fault against the time before it, and against the same minute of a run without a fault.
    fn hardly_shows(&self, faults: &[&str]) {
        // A backend that becomes as fast as it was. One seed finds the speed, for it takes several runs.
        let nothing = format!("slow@{}:2:1", self.at);
        let speed = self.run(&format!("--utilization {} --seeds 1", self.utilization), &nothing).speed;
        let pace = format!("--speed {speed} --seeds 3");
        let without = self.run(&pace, &nothing).ttft_p90_after[0];
        for fault in faults {
            let with = self.run(&pace, fault);
            let (before, after) = (with.ttft_p90_before.unwrap(), with.ttft_p90_after[0]);
            let [grown, apart] = [after / before, after / without];
            let told = format!(
                "{} {fault}: TTFT p90 before {before:.3} s, in the minute after {after:.3} s, {grown:.2} times as long; in \
                 that minute without the fault {without:.3} s, so {apart:.2} times as long",
                self.workload
            );
            println!("{told}\n");
            assert!(grown <= MOST && apart <= MOST, "{told}; expected at most {MOST} times");
        }
    }

    fn run(&self, pace: &str, fault: &str) -> Figures {
        let Self { workload, requests, .. } = self;
        let words = format!("--workload {workload} --requests {requests} --policies cost {pace} --fault {fault}");
        simulate(&words, &[]).into_only()
    }
}
