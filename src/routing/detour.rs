//! What a real decision paid for locality, and what it got for it.

use super::CostTerms;

/// A decision against the one that would have waited least. All zero for a decision that saves no prefill, or is for a backend
/// that has no more cached than any other: it was taken for another reason than locality.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Detour {
    /// How much longer the request is predicted to wait for its first token, in seconds.
    pub seconds: f64,
    /// How much less prefill it causes, in seconds.
    pub saved_prefill_seconds: f64,
}

/// Compares the candidate in the place `chosen` with the one of the least predicted TTFT, by the costs of all.
pub(super) fn detour(costs: &[CostTerms], chosen: usize) -> Detour {
    let waits = costs.iter().map(|costs| (costs.predicted_ttft(), costs.prefill));
    let quickest = waits.min_by(|(left, _), (right, _)| left.total_cmp(right));
    let Some((chosen, (quickest, its_prefill))) = costs.get(chosen).zip(quickest) else { return Detour::default() };
    let saved_prefill_seconds = its_prefill - chosen.prefill;
    if saved_prefill_seconds <= 0.0 {
        return Detour::default();
    }
    Detour { seconds: chosen.predicted_ttft() - quickest, saved_prefill_seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{CostModel, LoadView, PolicyKind};
    use crate::routing::tests::{idle, policy, query};
    use crate::routing::{Candidate, choose, score};

    /// At a rate of 1,000 tokens a second.
    fn candidate(index: usize) -> Candidate {
        Candidate { rate: 1_000.0, ..idle(index) }
    }

    fn of(candidates: &[Candidate], chosen: usize) -> Detour {
        detour(&score(&CostModel::default(), &query(1_000), candidates), chosen)
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
    fn a_decision_says_its_own_if_somebody_has_less() {
        let mut fleet = [candidate(0), candidate(1)];
        fleet[0].matched_tokens = 500;
        fleet[0].load = LoadView { pending_work: 700.0, ..fleet[0].load };
        for kind in [PolicyKind::Cost, PolicyKind::LOCALITY_FIRST] {
            let decide = |fleet: &[Candidate]| {
                choose(&policy(kind), &query(1_000), fleet, &mut fastrand::Rng::with_seed(1)).unwrap()
            };
            assert_eq!((decide(&fleet).index, decide(&fleet).detour), (0, of(&fleet, 0)), "{kind:?}");
            assert!(decide(&fleet).detour.seconds > 0.1);
            assert_eq!(decide(&[fleet[0]]).detour, Detour::default());
        }
    }

    #[test]
    fn a_backend_that_is_no_candidate_is_no_detour() {
        assert_eq!(of(&[candidate(0)], 3), Detour::default());
        assert_eq!(of(&[], 0), Detour::default());
    }
}
