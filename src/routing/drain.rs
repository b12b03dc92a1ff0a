//! Whether a request belongs to a conversation that lives at a draining backend.
//!
//! There is no list of conversations: what a backend holds of the prompt tells. The part of a prompt that some backend
//! which stays holds as well (a system prompt, a document that many ask about) says nothing; of the rest, which would have
//! to be computed anew elsewhere, the draining backend has to hold at least half, and at least [`OWN_TOKENS`]. So:
//! - a new conversation goes elsewhere, though it begins with a prefix that the draining backend holds like others;
//! - a conversation that has grown there stays until the deadline, and leaves earlier where that costs little: after a
//!   first short turn, or when its next prompt is mostly new;
//! - what only the draining backend holds counts as living there even if many share it. Requests about a document that
//!   nobody else has read go there until the deadline: blocks do not tell a document from a conversation.
//!
//! A request that names something which a backend stores (a response, by its id) lives there in any case.

use super::Query;

/// Prompt tokens that a backend holds alone, from which on a conversation is worth keeping it waiting for.
pub const OWN_TOKENS: u32 = 256;

/// Whether `query` lives at the backend at `index`, which holds `held` tokens of its prompt; the best of those that stay
/// holds `elsewhere`.
pub(super) fn lives_at(query: &Query, index: usize, held: u32, elsewhere: u32) -> bool {
    if query.owner == Some(index) {
        return true;
    }
    let held = held.min(query.prompt_tokens);
    let own = held.saturating_sub(elsewhere);
    let rest = query.prompt_tokens.saturating_sub(elsewhere);
    own >= OWN_TOKENS && u64::from(own) * 2 >= u64::from(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn query(prompt_tokens: u32) -> Query {
        Query { prompt_tokens, ..Query::default() }
    }

    #[test]
    fn conversations_are_told_by_what_a_backend_holds_alone() {
        let table = [
            ("a conversation that has grown", 5_000, 4_500, 1_000, true),
            ("another one over the shared system prompt", 1_100, 1_000, 1_000, false),
            ("one with a little more than that", 1_300, 1_200, 1_000, false),
            ("its next prompt is mostly new", 20_000, 3_000, 1_000, false),
            ("a prompt that nobody holds", 5_000, 0, 0, false),
            ("nothing is shared", 1_000, 900, 0, true),
            ("others hold more", 5_000, 4_000, 4_500, false),
            ("no prompt", 0, 0, 0, false),
            ("claimed beyond the prompt", 1_000, u32::MAX, 0, true),
        ];
        for (what, prompt, held, elsewhere, lives) in table {
            assert_eq!(lives_at(&query(prompt), 0, held, elsewhere), lives, "{what}");
        }
    }

    #[test]
    fn what_a_backend_stores_lives_there() {
        let owned = Query { owner: Some(1), ..query(10) };
        assert!(lives_at(&owned, 1, 0, 10));
        assert!(!lives_at(&owned, 0, 0, 10));
    }

    proptest! {
        #![proptest_config(crate::testing::config(1_000))]

        #[test]
        fn holding_more_keeps_a_conversation_and_what_others_hold_lets_it_go(
            prompt in 0_u32..100_000, held in any::<u32>(), elsewhere in 0_u32..100_000, more in 0_u32..10_000,
        ) {
            let query = query(prompt);
            let lives = lives_at(&query, 0, held, elsewhere);
            if lives {
                prop_assert!(lives_at(&query, 0, held.saturating_add(more), elsewhere));
                prop_assert!(held.min(prompt) > elsewhere, "by more than what is shared");
                let uncached = u64::from(prompt - held.min(prompt));
                prop_assert!(uncached * 2 <= u64::from(prompt - elsewhere), "it spares half of the work elsewhere");
            }
            prop_assert!(!lives_at(&query, 0, elsewhere, elsewhere), "what is shared says nothing");
        }
    }
}
