//! What a real decision paid for locality, and what it got for it.

use crate::pool::CostModel;
use crate::routing::{Candidate, Query, score};

/// A decision against the one that would have waited least. All zero for a decision that saves no prefill, or is for a backend
/// that has no more cached than any other: it was taken for another reason than locality.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Detour {
    /// How much longer the request is predicted to wait for its first token, in seconds.
    pub seconds: f64,
    /// How much less prefill it causes, in seconds.
    pub saved_prefill_seconds: f64,
}

/// Compares the candidate of index `chosen` with the one of the least predicted TTFT.
pub fn detour(cost: &CostModel, query: &Query, candidates: &[Candidate], chosen: usize) -> Detour {
    let at = candidates.iter().position(|candidate| candidate.index == chosen);
    let matched = at.map_or(0, |at| candidates[at].matched_tokens);
    if candidates.iter().all(|candidate| candidate.matched_tokens >= matched) {
        return Detour::default();
    }
    let costs = score(cost, query, candidates);
    let quickest = costs.iter().min_by(|a, b| a.predicted_ttft().total_cmp(&b.predicted_ttft()));
    let (Some(chosen), Some(quickest)) = (at.map(|at| costs[at]), quickest) else { return Detour::default() };
    let saved_prefill_seconds = quickest.prefill - chosen.prefill;
    if saved_prefill_seconds <= 0.0 {
        return Detour::default();
    }
    Detour { seconds: chosen.predicted_ttft() - quickest.predicted_ttft(), saved_prefill_seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::LoadView;
    use crate::shadow::tests::candidate;

    const QUERY: Query = Query {
        prompt_tokens: 1_000,
        turn: 0,
        session_key: None,
        prefix_key: None,
        owner: None,
        may_be_deferred: false,
    };

    fn of(candidates: &[Candidate], chosen: usize) -> Detour {
        detour(&CostModel::default(), &QUERY, candidates, chosen)
    }

    #[test]
    fn waiting_for_a_warm_backend_is_a_detour_that_saves_prefill() {
        let mut fleet = [candidate(0, 1_000.0), candidate(1, 1_000.0)];
        fleet[0].matched_tokens = 500;
        fleet[0].load = LoadView { pending_work: 700.0, ..fleet[0].load };
        let warm = of(&fleet, 0);
        assert!((warm.seconds - 0.2).abs() < 1e-9, "1.2 s against 1.0 s: {warm:?}");
        assert!((warm.saved_prefill_seconds - 0.5).abs() < 1e-9, "{warm:?}");
        assert_eq!(of(&fleet, 1), Detour::default(), "the quickest is no detour");
    }

    #[test]
    fn a_choice_that_saves_no_prefill_is_no_detour_for_locality() {
        let mut fleet = [candidate(0, 1_000.0), candidate(1, 1_000.0)];
        fleet[1].matched_tokens = 999;
        assert_eq!(of(&fleet, 0), Detour::default(), "it waits longer and computes more, for another reason");
    }

    #[test]
    fn a_backend_that_is_no_candidate_is_no_detour() {
        assert_eq!(of(&[candidate(0, 1_000.0)], 3), Detour::default());
        assert_eq!(of(&[], 0), Detour::default());
    }
}
