//! A backend restarts, is added, or becomes slow, in the middle of a load that goes on for two minutes and more: the
//! requests of the next minute hardly wait longer.

use crate::simulated::{Compared, simulate};

/// A steady load and when the fault happens in it, in seconds. There are enough requests for sessions to start two minutes
/// later.
struct Load {
    workload: &'static str,
    requests: usize,
    utilization: f64,
    at: u32,
}

/// Most that TTFT p90 grows to in the minute after a fault.
const MOST: f64 = 1.6;

fn run(load: &Load, pace: &str, fault: &str) -> Compared {
    let Load { workload, requests, .. } = load;
    let words = format!("--workload {workload} --requests {requests} --seeds 3 --policies cost {pace} --fault {fault}");
    simulate(&words, &[])
}

/// Each fault against the time before it, and against the same minute of a run without a fault.
fn hardly_shows(load: &Load, faults: &[&str]) {
    let Load { at, utilization, .. } = load;
    // A backend that becomes as fast as it was.
    let nothing = format!("slow@{at}:2:1");
    let speed = run(load, &format!("--utilization {utilization}"), &nothing).of("cost").speed;
    let pace = format!("--speed {speed}");
    let without = run(load, &pace, &nothing).of("cost").ttft_p90_after[0];
    for fault in faults {
        let with = run(load, &pace, fault);
        let with = with.of("cost");
        let (before, after) = (with.ttft_p90_before.unwrap(), with.ttft_p90_after[0]);
        let [grown, apart] = [after / before, after / without];
        let told = format!(
            "{} {fault}: TTFT p90 before {before:.3} s, in the minute after {after:.3} s, {grown:.2} times as long; in that \
             minute without the fault {without:.3} s, {apart:.2} times as long",
            load.workload
        );
        println!("{told}\n");
        assert!(grown <= MOST && apart <= MOST, "{told}; expected at most {MOST} times");
    }
}

#[test]
fn without_sharing_a_fault_hardly_shows() {
    let load = Load { workload: "no-sharing", requests: 4_500, utilization: 0.7, at: 150 };
    hardly_shows(&load, &["restart@150:2", "add@150", "slow@150:2:3"]);
}

#[test]
fn with_documents_a_fault_hardly_shows() {
    let load = Load { workload: "rag", requests: 3_000, utilization: 0.7, at: 150 };
    hardly_shows(&load, &["restart@150:2", "add@150", "slow@150:2:3"]);
}
