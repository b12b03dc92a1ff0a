//! What a real decision paid for locality, and what it got for it.

use super::{Candidate, CostTerms};

/// A decision against the one that would have waited least. All zero for a decision that saves no prefill, or is for a backend
/// that has no more cached than any other: it was taken for another reason than locality.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Detour {
    /// How much longer the request is predicted to wait for its first token, in seconds.
    pub seconds: f64,
    /// How much less prefill it causes, in seconds.
    pub saved_prefill_seconds: f64,
}

/// Compares the candidate in the place `chosen` with the one of the least predicted TTFT. `costs` are those of all candidates, which
/// are asked for only where one has less of the prompt than the chosen one.
pub(super) fn detour<'a>(candidates: &[Candidate], chosen: usize, costs: impl FnOnce() -> &'a [CostTerms]) -> Detour {
    let matched = candidates.get(chosen).map_or(0, |candidate| candidate.matched_tokens);
    if candidates.iter().all(|candidate| candidate.matched_tokens >= matched) {
        return Detour::default();
    }
    let costs = costs();
    let quickest = costs.iter().min_by(|a, b| a.predicted_ttft().total_cmp(&b.predicted_ttft()));
    let (Some(chosen), Some(quickest)) = (costs.get(chosen), quickest) else { return Detour::default() };
    let saved_prefill_seconds = quickest.prefill - chosen.prefill;
    if saved_prefill_seconds <= 0.0 {
        return Detour::default();
    }
    Detour { seconds: chosen.predicted_ttft() - quickest.predicted_ttft(), saved_prefill_seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{CostModel, LoadView};
    use crate::routing::score;
    use crate::routing::tests::{idle, query};

    /// At a rate of 1,000 tokens a second.
    fn candidate(index: usize) -> Candidate {
        Candidate { rate: 1_000.0, ..idle(index) }
    }

    fn of(candidates: &[Candidate], chosen: usize) -> Detour {
        let costs = score(&CostModel::default(), &query(1_000), candidates);
        detour(candidates, chosen, || &costs)
    }

    #[test]
    fn waiting_for_a_warm_backend_is_a_detour_that_saves_prefill() {
        let mut fleet = [candidate(0), candidate(1)];
        fleet[0].matched_tokens = 500;
        fleet[0].load = LoadView { pending_work: 700.0, ..fleet[0].load };
        let warm = of(&fleet, 0);
        assert!((warm.seconds - 0.2).abs() < 1e-9, "1.2 s against 1.0 s: {warm:?}");
        assert!((warm.saved_prefill_seconds - 0.5).abs() < 1e-9, "{warm:?}");
        assert_eq!(of(&fleet, 1), Detour::default(), "the quickest is no detour");
    }

    #[test]
    fn a_choice_that_saves_no_prefill_is_no_detour_for_locality() {
        let mut fleet = [candidate(0), candidate(1)];
        fleet[1].matched_tokens = 999;
        assert_eq!(of(&fleet, 0), Detour::default(), "it waits longer and computes more, for another reason");
    }

    #[test]
    fn where_nobody_has_less_nothing_is_worked_out() {
        let unasked = || -> &[CostTerms] { panic!("asked for costs") };
        assert_eq!(detour(&[candidate(0), candidate(1)], 1, unasked), Detour::default());
        assert_eq!(of(&[candidate(0)], 3), Detour::default());
        assert_eq!(of(&[], 0), Detour::default());
    }
}
