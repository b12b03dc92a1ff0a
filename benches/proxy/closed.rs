//! What each proxy takes for a request in a closed loop, and how fast it is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::figures::{Rounds, percentiles};
use crate::load::{Load, Run};
use crate::options::{Extent, Options};
use crate::subject::{Kind, Subject};
use crate::table::Table;
use crate::workload::Workload;

/// What a proxy does behind an answer is a part of what it takes.
const AFTERWARDS: Duration = Duration::from_millis(20);

/// From this on a run says how fast the next one will be.
const TRIAL_TIME: Duration = Duration::from_millis(150);

/// What was measured of one proxy.
#[derive(Debug, Default)]
struct Measured {
    name: String,
    cpu_micros: Rounds,
    rate: Rounds,
    p50_micros: Rounds,
    p99_micros: Rounds,
}

const HEAD: [&str; 8] =
    ["request", "connections", "proxy", "CPU us a request", "to pass-through", "requests/s", "p50, us", "p99, us"];

/// Measures every workload that is wanted.
pub(crate) async fn measure(
    options: &Options,
    workloads: &[Arc<Workload>],
    subjects: &[Subject],
) -> io::Result<Option<Table>> {
    let (mut table, extent) = (Table::new(&HEAD), options.extent());
    for (workload, connections) in wanted(options, workloads) {
        eprintln!("{}", name(workload, connections));
        let measured = scenario(&extent, workload, connections, subjects).await?;
        add_rows(&mut table, workload, connections, &measured);
    }
    Ok(Some(table).filter(|table| !table.is_empty()))
}

/// Whether there is anything to measure.
pub(crate) fn is_wanted(options: &Options, workloads: &[Arc<Workload>]) -> bool {
    wanted(options, workloads).next().is_some()
}

fn wanted<'a>(
    options: &'a Options,
    workloads: &'a [Arc<Workload>],
) -> impl Iterator<Item = (&'a Arc<Workload>, usize)> {
    let all =
        workloads.iter().flat_map(|workload| options.extent().connections.iter().map(move |&count| (workload, count)));
    all.filter(|&(workload, connections)| options.wants(&name(workload, connections)))
}

/// The name for filters.
fn name(workload: &Workload, connections: usize) -> String {
    format!("{}/{connections}", workload.name)
}

/// All proxies in turn, round after round.
async fn scenario(
    extent: &Extent,
    workload: &Arc<Workload>,
    connections: usize,
    subjects: &[Subject],
) -> io::Result<Vec<Measured>> {
    let mut loads = Vec::new();
    for subject in subjects {
        let tells = subject.kind == Kind::Exact;
        let mut load = Load::open(subject.address, workload, tells, connections).await?;
        if extent.seconds > 0.0 {
            let settling = workload.settling_requests().max(connections);
            load.run(settling).await.map_err(|error| subject.blamed(&error))?;
        }
        loads.push(load);
    }
    let requests = enough(extent, &mut loads[0], connections).await?;
    let mut measured: Vec<Measured> = subjects.iter().map(|_| Measured::default()).collect();
    for _ in 0..extent.rounds {
        for ((subject, load), measured) in subjects.iter().zip(&mut loads).zip(&mut measured) {
            // Connections to engines were closed since the last round.
            load.run(connections.max(requests / 20)).await.map_err(|error| subject.blamed(&error))?;
            let before = subject.cpu_time()?;
            let Run { elapsed, latencies } = load.run(requests).await.map_err(|error| subject.blamed(&error))?;
            sleep(AFTERWARDS).await;
            let cpu_time = subject.cpu_time()?.since(&before);
            let (p50, p99) = percentiles(&latencies);
            measured.cpu_micros.0.push(cpu_time.as_secs_f64() * 1e6 / requests as f64);
            measured.rate.0.push(requests as f64 / elapsed.as_secs_f64());
            measured.p50_micros.0.push(p50);
            measured.p99_micros.0.push(p99);
        }
    }
    for (subject, measured) in subjects.iter().zip(&mut measured) {
        measured.name = subject.name_now().await;
    }
    Ok(measured)
}

/// Requests for which the pass-through needs as long as a measurement shall take.
async fn enough(extent: &Extent, load: &mut Load, connections: usize) -> io::Result<usize> {
    let mut requests = connections * 2;
    if extent.seconds == 0.0 {
        return Ok(requests);
    }
    loop {
        let elapsed = load.run(requests).await?.elapsed;
        if elapsed >= TRIAL_TIME {
            let enough = requests as f64 * extent.seconds / elapsed.as_secs_f64();
            return Ok(enough.ceil() as usize);
        }
        requests *= 2;
    }
}

fn add_rows(table: &mut Table, workload: &Workload, connections: usize, measured: &[Measured]) {
    for this in measured {
        table.add(vec![
            workload.name.to_owned(),
            connections.to_string(),
            this.name.clone(),
            format!("{:.1}", this.cpu_micros),
            format!("{:.2}", this.cpu_micros.over(&measured[0].cpu_micros)),
            format!("{:.0}", this.rate),
            format!("{:.0}", this.p50_micros),
            format!("{:.0}", this.p99_micros),
        ]);
    }
}
