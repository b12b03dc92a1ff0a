//! Turning costs, counts or hashes into one choice. Each function picks one candidate, or none of none.
//!
//! Ties go round: among equals, the turn decides by the fractional part of its multiple of the golden ratio. These parts
//! are spread evenly over any run of turns and also over every second or third of them, which a remainder is not: if
//! every second request has only one place to go, the others still use all of theirs.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{Candidate, CostTerms, INLINE, Query};
use crate::pool::CostModel;

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The lowest cost; of those near it, the least in flight. Where none of these holds any of the prompt, equals do not
/// take turns for a request with a session key: the key decides, so that a session's first requests go to one place.
pub(super) fn cheapest<'a>(
    model: &CostModel,
    query: &Query,
    candidates: &'a [Candidate],
    costs: &[CostTerms],
) -> Option<&'a Candidate> {
    let totals: SmallVec<[f64; INLINE]> = costs.iter().map(CostTerms::total).collect();
    let lowest = totals.iter().copied().min_by(f64::total_cmp)?;
    let margin = model.near_seconds.max(lowest * model.near_share).max(0.0);
    let near = candidates.iter().zip(&totals).filter(|&(_, &total)| total <= lowest + margin);
    let near = near.map(|(candidate, _)| candidate);
    match query.session_key.filter(|_| near.clone().all(|candidate| candidate.matched_tokens == 0)) {
        Some(key) => near.min_by_key(|candidate| (candidate.load.in_flight, Reverse(rank(key, candidate)))),
        None => least_by(query.turn, near, |candidate| candidate.load.in_flight),
    }
}

/// The most matched tokens, unless the least loaded of these has more than `overload_factor` times the mean in flight;
/// then the least in flight of all. The mean counts as at least one: with next to nothing in flight nobody is overloaded.
pub(super) fn warmest<'a>(factor: f64, query: &Query, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    let most = candidates.iter().map(|candidate| candidate.matched_tokens).max()?;
    let warm = candidates.iter().filter(|candidate| candidate.matched_tokens == most);
    let warm = least_by(query.turn, warm, |candidate| candidate.load.in_flight)?;
    let mean = (total_in_flight(candidates) / candidates.len() as f64).max(1.0);
    if f64::from(warm.load.in_flight) > factor.max(1.0) * mean {
        return least_in_flight(query, candidates);
    }
    Some(warm)
}

/// The first in the order that `key` gives; without a key, the least in flight.
pub(super) fn by_hash<'a>(key: Option<u64>, query: &Query, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    let Some(key) = key else { return least_in_flight(query, candidates) };
    candidates.iter().max_by_key(|candidate| rank(key, candidate))
}

/// The first in the order that `key` gives with no more than `factor` times its share in flight, this request counted.
pub(super) fn by_bounded_hash<'a>(
    key: Option<u64>,
    factor: f64,
    query: &Query,
    candidates: &'a [Candidate],
) -> Option<&'a Candidate> {
    let Some(key) = key else { return least_in_flight(query, candidates) };
    let share = (total_in_flight(candidates) + 1.0) / candidates.len().max(1) as f64;
    let bound = (factor.max(1.0) * share).ceil();
    let has_room = |candidate: &&Candidate| f64::from(candidate.load.in_flight) + 1.0 <= bound;
    // The least loaded has at most the mean, so somebody has room.
    candidates.iter().filter(has_room).max_by_key(|candidate| rank(key, candidate))
}

/// The least in flight.
pub(super) fn least_in_flight<'a>(query: &Query, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
    least_by(query.turn, candidates.iter(), |candidate| candidate.load.in_flight)
}

/// Two at random, of these the one with less in flight.
pub(super) fn better_of_two<'a>(candidates: &'a [Candidate], rng: &mut fastrand::Rng) -> Option<&'a Candidate> {
    if candidates.len() < 2 {
        return candidates.first();
    }
    let first = rng.usize(..candidates.len());
    let second = (first + rng.usize(1..candidates.len())) % candidates.len();
    [candidates.get(first)?, candidates.get(second)?].into_iter().min_by_key(|candidate| candidate.load.in_flight)
}

/// Each in turn.
pub(crate) fn in_turn<T>(turn: u64, among: &[T]) -> Option<&T> {
    let turn = turn.checked_rem(among.len() as u64)?;
    among.get(turn as usize)
}

/// Any.
pub(super) fn any<'a>(candidates: &'a [Candidate], rng: &mut fastrand::Rng) -> Option<&'a Candidate> {
    if candidates.is_empty() { None } else { candidates.get(rng.usize(..candidates.len())) }
}

/// The one with the least `measure`; equals take turns.
pub(crate) fn least_by<'a, T>(
    turn: u64,
    among: impl Iterator<Item = &'a T> + Clone,
    measure: impl Fn(&T) -> u32,
) -> Option<&'a T> {
    let least = among.clone().map(&measure).min()?;
    let mut equals = among.filter(|one| measure(one) == least);
    let count = equals.clone().count() as u64;
    equals.nth(rotate(turn, count) as usize)
}

/// A number below `count` (0 if that is 0); see the module's doc.
fn rotate(turn: u64, count: u64) -> u64 {
    let fraction = turn.wrapping_mul(GOLDEN);
    ((u128::from(fraction) * u128::from(count)) >> 64) as u64
}

fn total_in_flight(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.load.in_flight)).sum()
}

/// Rendezvous hashing (Thaler and Ravishankar): each key ranks all backends by a hash of both, so adding or removing one
/// moves only the keys that are or were its own.
fn rank(key: u64, candidate: &Candidate) -> u64 {
    mixed(mixed(key) ^ candidate.identity)
}

/// The finaliser of splitmix64.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
