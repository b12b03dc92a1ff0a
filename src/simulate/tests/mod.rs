//! The simulator as a whole: what holds of every run, and what must be seen in some.

mod every_run;
mod faults;
mod fleets;
mod timing;

use std::num::NonZeroU32;
use std::time::Duration;

use super::fault::Fault;
use super::outcome::{Outcome, Record};
use super::run::run;
use super::setup::{Contender, Locality, Setup};
use super::workload::{Builtin, Session, Text, Turn, Workload};
use crate::pool::PolicyKind;
use crate::sim::engine::Model;

const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);

const COST: Contender = Contender::Policy(PolicyKind::Cost);

/// A request of its own session: when it comes, the name of its text, its tokens, and those of its answer.
type Ask = (Duration, u64, u32, u32);

/// One router before `backends` engines of this model with room for `kv_tokens`.
fn setup(backends: usize, model: Model, kv_tokens: u32) -> Setup {
    Setup::new(backends, model.parameters(BLOCK_TOKENS.get(), kv_tokens / BLOCK_TOKENS))
}

fn faults(texts: &[&str]) -> Vec<Fault> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn builtin(builtin: Builtin, requests: usize) -> Workload {
    builtin.generate(Some(requests), None, 1)
}

fn workload(sessions: Vec<Session>) -> Workload {
    Workload { block_tokens: BLOCK_TOKENS, sessions }
}

/// Sessions of one turn.
fn asks(asks: &[Ask]) -> Workload {
    let session = |&(start, name, tokens, output_tokens): &Ask| {
        let turn = turn(Duration::ZERO, name, tokens, output_tokens);
        Session { start, key: None, turns: vec![turn] }
    };
    workload(asks.iter().map(session).collect())
}

/// A prompt of one text; nobody can find its answer.
fn turn(pause: Duration, name: u64, prompt_tokens: u32, output_tokens: u32) -> Turn {
    let mut text = Text::new(BLOCK_TOKENS);
    text.push(name, prompt_tokens);
    Turn { pause, chain: text.finish(), prompt_tokens, output_tokens }
}

fn outcome(workload: &Workload, setup: &Setup, contender: Contender) -> Outcome {
    run(workload, setup, contender, 1, &|_| ())
}

/// The records in the order of arrival.
fn by_arrival(outcome: &Outcome) -> Vec<Record> {
    let mut records = outcome.records.clone();
    records.sort_by_key(|record| record.arrived);
    records
}

fn hit_ratio<'a>(records: impl IntoIterator<Item = &'a Record>) -> f64 {
    let count = |(cached, all), record: &Record| (cached + record.cached_blocks, all + record.blocks);
    let (cached, all) = records.into_iter().fold((0, 0), count);
    f64::from(cached) / f64::from(all)
}

fn p90(outcome: &Outcome) -> f64 {
    let ttfts = outcome.ttfts();
    ttfts[ttfts.len() * 9 / 10]
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
