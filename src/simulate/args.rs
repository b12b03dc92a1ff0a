//! The command line of `warmgate simulate`.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::fault::Fault;
use super::outcome::Objective;
use super::setup::{Contender, Locality, Setup};
use super::workload::Builtin;
use crate::pool::{InFlightLimit, Limits};
use crate::queue::MAX_DEFER;
use crate::sim::engine::{Model, Parameters};

/// Compare policies on a simulated fleet: the policies, the index and the accounting that serve, with simulated engines and
/// time.
#[derive(Debug, Clone, Args)]
#[command(after_help = help())]
pub(crate) struct SimulateArgs {
    /// A built-in workload
    #[arg(long, value_name = "NAME", default_value = "conversation", conflicts_with = "trace",
          value_parser = PossibleValuesParser::new(Builtin::ALL.map(Builtin::name)))]
    workload: String,
    /// A block trace (Mooncake's JSONL form; `logging.block_trace` records one of your own traffic) in place of a workload
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// About how many requests of the built-in workload [default: its own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "trace")]
    pub(super) requests: Option<u32>,
    /// Clients of a closed loop, each with one request at a time (shared-prefix) [default: its own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "trace")]
    pub(super) clients: Option<u32>,
    /// What to compare, with commas between; `pooled` is `cost` over one cache shared by all engines, a bound
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', default_value = DEFAULT_POLICIES,
          value_parser = PossibleValuesParser::new(Contender::ALL.map(Contender::name)))]
    policies: Vec<String>,
    /// Backends [default: 8; shared-prefix: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    backends: Option<u16>,
    /// Share of time that engines spend in steps with prefill, under a router that knows what is cached; sets the
    /// speed [default: 0.7 unless --speed is given; shared-prefix: its clients set the load]
    #[arg(long, value_name = "U", value_parser = utilization, conflicts_with = "speed")]
    pub(super) utilization: Option<f64>,
    /// How many times as fast as the workload says sessions start
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub(super) speed: Option<f64>,
    /// The engine model; the options below change single parameters of it [default: reference; shared-prefix: small]
    #[arg(long, value_name = "MODEL", value_parser = PossibleValuesParser::new(Model::ALL.map(Model::name)))]
    engine: Option<String>,
    /// KV cache of each engine, tokens [default: 1500000; shared-prefix: 19350]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    kv_tokens: Option<u32>,
    /// Prefill of one token, microseconds
    #[arg(long, value_name = "US", value_parser = positive)]
    prefill_us: Option<f64>,
    /// Prefill of one token squared, nanoseconds: what attention adds to long prompts
    #[arg(long, value_name = "NS", value_parser = zero_or_more)]
    prefill_quadratic_ns: Option<f64>,
    /// A token of a lone sequence, milliseconds
    #[arg(long, value_name = "MS", value_parser = positive)]
    decode_ms: Option<f64>,
    /// Most tokens computed in a step
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    step_tokens: Option<u32>,
    /// Most sequences in a batch
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_num_seqs: Option<u32>,
    /// Routers in front of the fleet; each request goes to any
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    routers: u16,
    /// How often routers tell each other what they have in flight, milliseconds; 0 is never
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=60_000))]
    share_ms: u32,
    /// Most requests in flight at a backend, as `max_in_flight` of a pool: a number, or `auto` for what the engine runs at
    /// once. More wait at their router [default: no limit]
    #[arg(long, value_name = "N", value_parser = in_flight)]
    max_in_flight: Option<InFlightLimit>,
    /// Most prefill that is pending at a backend, seconds, as `max_pending_prefill` of a pool; what is beyond waits at its
    /// router [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    max_pending_prefill: Option<f64>,
    /// How long a request may be deferred because its prefill is long, seconds, as `queue.max_defer` of a pool; 0: none is
    #[arg(long, value_name = "SECONDS", default_value_t = MAX_DEFER.as_secs_f64(), value_parser = zero_or_more)]
    max_defer: f64,
    /// How routers know what is cached: `exact` by the engines' KV events, `assumed` by their own decisions
    #[arg(long, value_name = "HOW", default_value = "assumed", value_parser = ["exact", "assumed"])]
    events: String,
    /// Requests carry a key of their session, as with `prompt_cache_key`
    #[arg(long)]
    session_keys: bool,
    /// A fault, may be given several times: `restart@SECONDS:BACKEND[:SECONDS_DOWN]`, `slow@SECONDS:BACKEND:FACTOR`,
    /// `add@SECONDS`
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<Fault>,
    /// The first seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,
    /// Seeds to run; figures are means over them [default: 1; shared-prefix: 20, since it is small]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    seeds: Option<u16>,
    /// Most seconds to the first token of a good answer
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = positive)]
    good_ttft: f64,
    /// Most seconds for each further token of a good answer, on average
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = positive)]
    good_tpot: f64,
    /// Print JSON: an array with one object a policy. Times are seconds, shares 0 to 1
    #[arg(long)]
    pub(super) json: bool,
    /// Draw the TTFT distribution and the load of each backend into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
}

const DEFAULT_POLICIES: &str =
    "cost,locality_first,prefix_affinity,consistent_hash,least_request,power_of_two,round_robin,random";

const HELP: &str = "\
Examples:
  warmgate simulate --workload agentic --utilization 0.5
  warmgate simulate --trace trace.jsonl --policies cost,least_request,pooled --seeds 3 --plot ttft.svg
  warmgate simulate --workload conversation --policies cost --fault restart@300:2 --fault slow@600:0:3

Everything printed is simulated: prefix caches, batching and queues are modelled, no GPU is asked.
docs/routing.md has results for every workload and policy.";

/// What follows the options in `--help`.
fn help() -> String {
    let describe = |builtin: Builtin| format!("  {}: {}\n", builtin.name(), builtin.describe());
    let workloads: String = Builtin::ALL.into_iter().map(describe).collect();
    format!("Workloads, at speed 1; \"about 800 (100 to 4000)\" is a median and its bounds:\n{workloads}\n{HELP}")
}

// === impl SimulateArgs ===

impl SimulateArgs {
    /// The built-in workload, unless a trace is given.
    pub(super) fn builtin(&self) -> Option<Builtin> {
        if self.trace.is_some() { None } else { Builtin::parse(&self.workload).ok() }
    }

    /// How many seeds to run.
    pub(super) fn seeds(&self) -> u16 {
        self.seeds.unwrap_or(if self.builtin() == Some(Builtin::SharedPrefix) { 20 } else { 1 })
    }

    /// What is compared, each once.
    pub(super) fn contenders(&self) -> Vec<Contender> {
        let mut contenders: Vec<Contender> = Vec::new();
        for contender in self.policies.iter().filter_map(|name| Contender::named(name)) {
            if !contenders.contains(&contender) {
                contenders.push(contender);
            }
        }
        contenders
    }

    /// The fleet, for a workload with these blocks, at speed 1 unless one is given.
    ///
    /// # Errors
    /// If the engine cannot be as fast as is asked for.
    pub(super) fn setup(&self, block_tokens: NonZeroU32) -> Result<Setup, String> {
        let is_small = self.builtin() == Some(Builtin::SharedPrefix);
        Ok(Setup {
            backends: self.backends.map_or(if is_small { 4 } else { 8 }, usize::from),
            engine: self.parameters(is_small, block_tokens)?,
            routers: usize::from(self.routers),
            sharing: Some(Duration::from_millis(self.share_ms.into())).filter(|interval| !interval.is_zero()),
            locality: if self.events == "exact" { Locality::Exact } else { Locality::Assumed },
            session_keys: self.session_keys,
            speed: self.speed.unwrap_or(1.0),
            limits: Limits {
                in_flight: self.max_in_flight.unwrap_or_default(),
                max_pending_prefill: self.max_pending_prefill.map(Duration::from_secs_f64),
            },
            max_defer: Some(Duration::from_secs_f64(self.max_defer)).filter(|most| !most.is_zero()),
            faults: self.faults.clone(),
        })
    }

    /// The utilization to find a speed for; none if the speed is given or the workload, a closed loop, sets its own.
    pub(super) fn target(&self) -> Option<f64> {
        let is_closed = self.builtin().is_some_and(Builtin::is_closed);
        self.utilization.or((self.speed.is_none() && !is_closed).then_some(0.7))
    }

    pub(super) fn objective(&self) -> Objective {
        Objective { ttft: self.good_ttft, per_token: self.good_tpot }
    }

    fn parameters(&self, is_small: bool, block_tokens: NonZeroU32) -> Result<Parameters, String> {
        let fallback = if is_small { Model::Small } else { Model::Reference };
        let model = self.engine.as_deref().and_then(Model::named).unwrap_or(fallback);
        let kv_tokens = self.kv_tokens.unwrap_or(if is_small { 19_350 } else { 1_500_000 });
        let mut parameters = model.parameters(block_tokens.get(), (kv_tokens / block_tokens).max(1));
        let timing = &mut parameters.timing;
        if let Some(microseconds) = self.prefill_us {
            timing.prefill_seconds_per_token = microseconds / 1e6;
        }
        if let Some(nanoseconds) = self.prefill_quadratic_ns {
            timing.prefill_seconds_per_token_squared = nanoseconds / 1e9;
        }
        if let Some(milliseconds) = self.decode_ms {
            timing.decode_seconds = milliseconds / 1e3 - timing.step_seconds;
            if timing.decode_seconds < 0.0 {
                let least = timing.step_seconds * 1e3;
                return Err(format!(
                    "--decode-ms {milliseconds}: a step of this engine takes {least} ms; expected no less"
                ));
            }
        }
        parameters.step_tokens = self.step_tokens.unwrap_or(parameters.step_tokens);
        parameters.max_num_seqs = self.max_num_seqs.map_or(parameters.max_num_seqs, |count| count as usize);
        Ok(parameters)
    }
}

fn utilization(text: &str) -> Result<f64, String> {
    number_in(text, 0.01, 0.98)
}

fn in_flight(text: &str) -> Result<InFlightLimit, String> {
    match text {
        "auto" => Ok(InFlightLimit::Auto),
        _ => text.parse().map(InFlightLimit::Requests).map_err(|_| String::from("expected `auto` or a number from 1")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    number_in(text, 1e-6, 1e9)
}

fn zero_or_more(text: &str) -> Result<f64, String> {
    number_in(text, 0.0, 1e9)
}

fn number_in(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|_| String::from("a number is expected"))?;
    if (low..=high).contains(&number) { Ok(number) } else { Err(format!("expected a number from {low} to {high}")) }
}
