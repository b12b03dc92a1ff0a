//! What each proxy takes for a request in a closed loop, and how fast it is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::comparison;
use crate::figures::{Rounds, percentiles};
use crate::fleet::Fleet;
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
pub(crate) struct Measured {
    pub(crate) cpu_micros: Rounds,
    pub(crate) rate: Rounds,
    /// Requests that the engines had for each that the proxy was sent.
    pub(crate) engine_requests: Rounds,
    p50_micros: Rounds,
    p99_micros: Rounds,
}

/// One proxy in a scenario.
pub(crate) struct Turn<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) measured: Measured,
    load: Load,
    /// How many are sent in a round.
    requests: usize,
}

const HEAD: [&str; 8] =
    ["request", "connections", "proxy", "CPU us a request", "to pass-through", "requests/s", "p50, us", "p99, us"];

// === impl Turn ===

impl<'a> Turn<'a> {
    /// Connects, and has the proxy see what the requests share.
    async fn prepare(
        subject: &'a Subject,
        extent: &Extent,
        workload: &Arc<Workload>,
        connections: usize,
    ) -> io::Result<Self> {
        let tells = subject.kind == Kind::Exact;
        let mut load = Load::open(subject.address, workload, tells, connections).await?;
        if extent.seconds > 0.0 {
            load.run(workload.settling_requests().max(connections)).await?;
        }
        let requests = enough(extent, &mut load, connections).await?;
        Ok(Self { subject, load, requests, measured: Measured::default() })
    }

    /// One measurement.
    async fn take(&mut self, fleet: &Fleet, connections: usize) -> io::Result<()> {
        let (subject, requests, measured) = (self.subject, self.requests, &mut self.measured);
        // Connections to engines were closed since the last round.
        self.load.run(connections.max(requests / 20)).await?;
        let (asked_before, before) = (fleet.requests().await?, subject.cpu_time()?);
        let Run { elapsed, latencies } = self.load.run(requests).await?;
        sleep(AFTERWARDS).await;
        let cpu_time = subject.cpu_time()?.since(&before);
        let asked = fleet.requests().await?.saturating_sub(asked_before);
        let (p50, p99) = percentiles(&latencies);
        measured.cpu_micros.0.push(cpu_time.as_secs_f64() * 1e6 / requests as f64);
        measured.rate.0.push(requests as f64 / elapsed.as_secs_f64());
        measured.engine_requests.0.push(asked as f64 / requests as f64);
        measured.p50_micros.0.push(p50);
        measured.p99_micros.0.push(p99);
        Ok(())
    }
}

/// Measures every workload that is wanted: all proxies, and warmgate beside the routers.
pub(crate) async fn measure(
    options: &Options,
    fleet: &Fleet,
    workloads: &[Arc<Workload>],
    subjects: &[Subject],
) -> io::Result<[Option<Table>; 2]> {
    let (mut table, mut routers, extent) = (Table::new(&HEAD), Table::new(&comparison::HEAD), options.extent());
    for (workload, connections) in wanted(options, workloads) {
        eprintln!("{}", name(workload, connections));
        let turns = scenario(&extent, fleet, workload, connections, subjects).await?;
        add_rows(&mut table, workload, connections, &turns).await;
        comparison::add_rows(&mut routers, workload, connections, &turns);
    }
    Ok([table, routers].map(|table| Some(table).filter(|table| !table.is_empty())))
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
async fn scenario<'a>(
    extent: &Extent,
    fleet: &Fleet,
    workload: &Arc<Workload>,
    connections: usize,
    subjects: &'a [Subject],
) -> io::Result<Vec<Turn<'a>>> {
    let mut turns = Vec::new();
    for subject in subjects.iter().filter(|subject| subject.kind.takes(workload)) {
        let turn = Turn::prepare(subject, extent, workload, connections).await;
        turns.push(turn.map_err(|error| subject.blamed(&error))?);
    }
    for _ in 0..extent.rounds {
        for turn in &mut turns {
            turn.take(fleet, connections).await.map_err(|error| turn.subject.blamed(&error))?;
        }
    }
    Ok(turns)
}

/// Requests for which the proxy needs as long as a measurement shall take.
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

async fn add_rows(table: &mut Table, workload: &Workload, connections: usize, turns: &[Turn<'_>]) {
    for Turn { subject, measured: this, .. } in turns {
        table.add(vec![
            workload.name.to_owned(),
            connections.to_string(),
            subject.name_now().await,
            format!("{:.1}", this.cpu_micros),
            format!("{:.2}", this.cpu_micros.over(&turns[0].measured.cpu_micros)),
            format!("{:.0}", this.rate),
            format!("{:.0}", this.p50_micros),
            format!("{:.0}", this.p99_micros),
        ]);
    }
}
