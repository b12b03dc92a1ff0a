//! What each proxy adds to the time of an answer where nothing waits: 200 requests a second of 32 KB.
//!
//! The p99 of a shared machine moves by more within seconds than proxies differ. So they take turns of two seconds, and a round's
//! percentiles are those of all its turns.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::arrivals;
use crate::figures::{Rounds, percentiles};
use crate::options::Options;
use crate::subject::{Kind, Subject};
use crate::table::Table;
use crate::workload::Workload;

const HEAD: [&str; 5] = ["proxy", "p50, us", "p50 over pass-through, us", "p99, us", "p99 over pass-through, us"];

/// The name for filters.
pub(crate) const NAME: &str = "latency";

pub(crate) async fn measure(
    options: &Options,
    workload: &Arc<Workload>,
    subjects: &[Subject],
) -> io::Result<Option<Table>> {
    if !options.wants(NAME) {
        return Ok(None);
    }
    eprintln!("{NAME}");
    let extent = options.extent();
    // It makes connections, and shows the engines what requests share.
    take_turns(1, extent.arrivals.min(workload.settling_requests()), workload, subjects).await?;
    let mut measured: Vec<(Rounds, Rounds)> = subjects.iter().map(|_| Default::default()).collect();
    for _ in 0..extent.rounds {
        let latencies = take_turns(extent.turns, extent.arrivals, workload, subjects).await?;
        for (latencies, (p50_micros, p99_micros)) in latencies.iter().zip(&mut measured) {
            let (p50, p99) = percentiles(latencies);
            p50_micros.0.push(p50);
            p99_micros.0.push(p99);
        }
    }
    let mut table = Table::new(&HEAD);
    let (first_p50, first_p99) = measured[0].clone();
    for (subject, (p50, p99)) in subjects.iter().zip(&measured) {
        table.add(vec![
            subject.name_now().await,
            format!("{p50:.0}"),
            format!("{:.0}", p50.minus(&first_p50)),
            format!("{p99:.0}"),
            format!("{:.0}", p99.minus(&first_p99)),
        ]);
    }
    Ok(Some(table))
}

/// Has each proxy serve so many requests in a turn; how long they took, by proxy.
async fn take_turns(
    turns: usize,
    requests: usize,
    workload: &Arc<Workload>,
    subjects: &[Subject],
) -> io::Result<Vec<Vec<Duration>>> {
    let mut latencies = vec![Vec::new(); subjects.len()];
    for _ in 0..turns {
        for (subject, latencies) in subjects.iter().zip(&mut latencies) {
            let tells = subject.kind == Kind::Exact;
            let took = arrivals::run(subject.address, workload, tells, requests).await;
            latencies.extend(took.map_err(|error| subject.blamed(&error))?);
        }
    }
    Ok(latencies)
}
