//! Behaviour of the choice. The invariants are numbered as in the design of the cost rule; (5), the index never claiming
//! more than an engine can hold, is the locality index's own, and here only its effect is: a claim beyond the prompt
//! counts as the prompt.

mod deferral;
mod extremes;
mod filtering;
mod invariants;
mod policies;

use std::time::Duration;

use super::*;
use crate::pool::CostModel;

pub(super) const RATE: f64 = 8_000.0;

pub(super) fn policy(kind: PolicyKind) -> Policy {
    Policy { kind, ..Policy::default() }
}

pub(super) fn query(prompt_tokens: u32) -> Query {
    Query { prompt_tokens, ..Query::default() }
}

/// An idle candidate that holds nothing.
pub(super) fn idle(index: usize) -> Candidate {
    Candidate {
        index,
        identity: index as u64,
        matched_tokens: 0,
        load: LoadView::IDLE,
        rate: RATE,
        others: OtherRouters::default(),
        engine: EngineState::default(),
    }
}

pub(super) fn with_in_flight(index: usize, in_flight: u32) -> Candidate {
    Candidate { load: LoadView { in_flight, decoding: in_flight, ..LoadView::IDLE }, ..idle(index) }
}

/// A candidate with this much pending work, of which the head has been worked on for a while.
pub(super) fn loaded(index: usize, pending_work: f64, decoding: u32) -> Candidate {
    let load = LoadView {
        pending_work,
        head_work: pending_work / 2.0,
        head_for: Duration::from_millis(100),
        decoding,
        in_flight: decoding + u32::from(pending_work > 0.0),
        ..LoadView::IDLE
    };
    Candidate { load, ..idle(index) }
}

/// How often each of `count` candidates is chosen in turns 0..`turns`, all else unchanged.
pub(super) fn spread(policy: &Policy, candidates: &[Candidate], turns: impl Iterator<Item = u64>) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut chosen = vec![0; candidates.len()];
    for turn in turns {
        let query = Query { turn, ..query(1_000) };
        chosen[choose(policy, &query, candidates, &mut rng).expect("there are candidates").index] += 1;
    }
    chosen
}
