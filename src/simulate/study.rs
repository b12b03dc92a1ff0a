//! A comparison: every contender over every seed, on as many threads as there are cores.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use parking_lot::Mutex;

use super::args::SimulateArgs;
use super::check;
use super::outcome::{Objective, Outcome, Summary};
use super::report::{Progress, Series};
use super::run::run;
use super::setup::{Contender, Setup};
use super::utilization::speed_for;
use super::workload::{Builtin, Workload, from_trace};
use crate::trace::{self, TraceLine};

/// What is to be run.
pub(super) struct Study {
    name: String,
    contenders: Vec<Contender>,
    setup: Setup,
    objective: Objective,
    /// One for each seed.
    trials: Vec<Trial>,
}

struct Trial {
    seed: u64,
    workload: Workload,
    setup: Setup,
}

/// What came of one contender's runs.
pub(super) struct Showing {
    pub(super) summary: Summary,
    /// Of the first seed.
    ttfts: Vec<f64>,
    prefill_by_backend: Vec<f64>,
}

/// Where workloads come from.
enum Source {
    Builtin { builtin: Builtin, requests: Option<usize>, clients: Option<usize> },
    Trace(Vec<TraceLine>),
}

// === impl Study ===

impl Study {
    /// Reads or makes the workloads and finds their speed.
    pub(super) fn prepare(args: &SimulateArgs, progress: &Progress) -> Result<Self, Box<dyn Error>> {
        check::options(args)?;
        let (name, source) = match (&args.trace, args.builtin()) {
            (Some(path), _) => {
                let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
                (name, Source::Trace(trace::read_file(path)?))
            }
            (None, builtin) => {
                let builtin = builtin.ok_or("no workload is given")?;
                let [requests, clients] = [args.requests, args.clients].map(|count| count.map(|count| count as usize));
                (builtin.name().to_owned(), Source::Builtin { builtin, requests, clients })
            }
        };
        check::amount(source.asked(), usize::from(args.seeds()))?;
        let seeds: Vec<u64> = (0..u64::from(args.seeds())).map(|place| args.seed.wrapping_add(place)).collect();
        let workloads: Vec<Workload> = seeds.iter().map(|&seed| source.generate(seed)).collect();
        let first = workloads.first().ok_or("no seed is given")?;
        let setup = args.setup(first.block_tokens)?;
        check::faults(&setup)?;
        let prepare = |(seed, workload): (u64, Workload)| {
            check::work(&workload, &setup)?;
            let mut setup = setup.clone();
            if let Some(target) = args.target() {
                let total = workload.requests();
                let told = |done| progress.tell("looking for the speed", done, total);
                setup.speed = speed_for(&workload, &setup, target, seed, &told)?;
            }
            Ok::<_, Box<dyn Error>>(Trial { seed, workload, setup })
        };
        let trials = seeds.into_iter().zip(workloads).map(prepare).collect::<Result<_, _>>()?;
        Ok(Self { name, contenders: args.contenders(), setup, objective: args.objective(), trials })
    }

    /// Runs everything. The results are in the contenders' order, whichever thread was first.
    pub(super) fn run(&self, progress: &Progress) -> Vec<Showing> {
        let jobs: Vec<(Contender, &Trial)> = self
            .contenders
            .iter()
            .flat_map(|&contender| self.trials.iter().map(move |trial| (contender, trial)))
            .collect();
        let outcomes: Vec<Mutex<Option<Outcome>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((place, (contender, trial))) = take(&next, &jobs) {
                let total = trial.workload.requests();
                let told = |done| progress.tell(contender.name(), done, total);
                let outcome = run(&trial.workload, &trial.setup, *contender, trial.seed, &told);
                *outcomes[place].lock() = Some(outcome);
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
        thread::scope(|scope| {
            (1..threads).for_each(|_| {
                scope.spawn(work);
            });
            work();
        });
        let outcomes: Vec<Outcome> = outcomes.into_iter().filter_map(Mutex::into_inner).collect();
        let groups = outcomes.chunks(self.trials.len().max(1));
        self.contenders.iter().zip(groups).map(|(contender, outcomes)| self.showing(*contender, outcomes)).collect()
    }

    fn showing(&self, contender: Contender, outcomes: &[Outcome]) -> Showing {
        let mut faults: Vec<_> = self.setup.faults.iter().map(|fault| fault.at).collect();
        faults.sort_unstable();
        let summaries: Vec<Summary> = outcomes
            .iter()
            .zip(&self.trials)
            .map(|(outcome, trial)| Summary {
                speed: trial.setup.speed,
                ..outcome.summary(contender.name(), &self.objective, &faults)
            })
            .collect();
        let first = outcomes.first();
        Showing {
            summary: Summary::mean(&summaries),
            ttfts: first.map(Outcome::ttfts).unwrap_or_default(),
            prefill_by_backend: first.map(Outcome::prefill_by_backend).unwrap_or_default(),
        }
    }

    /// One line that says what was simulated.
    pub(super) fn title(&self) -> String {
        let requests = self.trials.first().map_or(0, |trial| trial.workload.requests());
        let speeds = self.trials.iter().map(|trial| trial.setup.speed).sum::<f64>() / self.trials.len().max(1) as f64;
        let seeds =
            if self.trials.len() > 1 { format!(", mean of {} seeds", self.trials.len()) } else { String::new() };
        format!(
            "Simulated: {}, {requests} requests at {speeds:.3} times its speed, {} backends{seeds}",
            self.name, self.setup.backends
        )
    }

    /// The faults in order of time, as they were written.
    pub(super) fn fault_names(&self) -> Vec<String> {
        let mut faults = self.setup.faults.clone();
        faults.sort_by_key(|fault| fault.at);
        faults.iter().map(ToString::to_string).collect()
    }
}

/// The next job that nobody has.
fn take<'a, T>(next: &AtomicUsize, jobs: &'a [T]) -> Option<(usize, &'a T)> {
    let place = next.fetch_add(1, Relaxed);
    jobs.get(place).map(|job| (place, job))
}

// === impl Source ===

impl Source {
    /// Requests that are asked for; 0 if a built-in workload has as many as it has by default, a few thousand.
    fn asked(&self) -> usize {
        match self {
            Self::Builtin { requests, .. } => requests.unwrap_or(0),
            Self::Trace(lines) => lines.len(),
        }
    }

    fn generate(&self, seed: u64) -> Workload {
        match self {
            Self::Builtin { builtin, requests, clients } => builtin.generate(*requests, *clients, seed),
            Self::Trace(lines) => from_trace(lines, seed),
        }
    }
}

// === impl Showing ===

impl Showing {
    /// What is drawn of it.
    pub(super) fn series(&self) -> Series {
        Series {
            policy: self.summary.policy.clone(),
            ttft_seconds: self.ttfts.clone(),
            tokens_by_backend: self.prefill_by_backend.clone(),
        }
    }
}
