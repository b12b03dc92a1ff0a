//! What a workload could have from caches at best.

use std::collections::HashSet;

use super::Workload;
use crate::prefix::BlockHash;

/// The hit ratio of one cache for all that never evicts and keeps answers too: cached prompt tokens / prompt tokens, of
/// whole blocks. The last token of a prompt is always computed, since an engine needs its logits. 0 for an empty workload.
///
/// It does not depend on the order of sessions: a block that several have is missed by the first of them, whoever it is.
pub fn infinite_cache_hit_ratio(workload: &Workload) -> f64 {
    let block_tokens = workload.block_tokens.get();
    let mut cache: HashSet<BlockHash> = HashSet::new();
    let (mut cached_tokens, mut prompt_tokens) = (0_u64, 0_u64);
    for turn in workload.sessions.iter().flat_map(|session| &session.turns) {
        let blocks = turn.prompt_blocks(workload.block_tokens);
        let matched = blocks.iter().take_while(|block| cache.contains(*block)).count() as u64;
        cached_tokens += (matched * u64::from(block_tokens)).min(u64::from(turn.prompt_tokens.saturating_sub(1)));
        prompt_tokens += u64::from(turn.prompt_tokens);
        let whole = (turn.prompt_tokens.saturating_add(turn.output_tokens) / block_tokens) as usize;
        cache.extend(&turn.chain[..whole.min(turn.chain.len())]);
    }
    cached_tokens as f64 / prompt_tokens.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::script::{Piece, Script};
    use super::super::{Session, Turn};
    use super::*;
    use crate::testing::config;

    const BLOCK: u32 = 4;

    /// Each prompt against every one before it, by the definition.
    fn naive(turns: &[&Turn]) -> f64 {
        let mut cached = 0;
        for (at, turn) in turns.iter().enumerate() {
            let matched = turns[..at].iter().map(|before| {
                let kept = ((before.prompt_tokens + before.output_tokens) / BLOCK) as usize;
                let wanted = (turn.prompt_tokens / BLOCK) as usize;
                let alike = before.chain[..kept].iter().zip(&turn.chain[..wanted]);
                alike.take_while(|(left, right)| left == right).count() as u32
            });
            cached += (matched.max().unwrap_or(0) * BLOCK).min(turn.prompt_tokens - 1);
        }
        f64::from(cached) / f64::from(turns.iter().map(|turn| turn.prompt_tokens).sum::<u32>().max(1))
    }

    fn session(pieces: &[(u64, u32, u32)]) -> Session {
        let mut script = Script::new(NonZeroU32::new(BLOCK).unwrap());
        for &(name, tokens, output_tokens) in pieces {
            script.say(Piece { name, tokens });
            script.ask(Duration::ZERO, Piece { name: 0, tokens: output_tokens });
        }
        script.finish(Duration::ZERO, None)
    }

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn it_is_what_comparing_all_prompts_gives(
            pieces in prop::collection::vec(prop::collection::vec((1..3_u64, 1..9_u32, 1..9_u32), 0..5), 0..8),
        ) {
            let sessions: Vec<_> = pieces.iter().map(|pieces| session(pieces)).collect();
            let workload = Workload { block_tokens: NonZeroU32::new(BLOCK).unwrap(), sessions };
            let turns: Vec<_> = workload.sessions.iter().flat_map(|session| &session.turns).collect();
            prop_assert_eq!(infinite_cache_hit_ratio(&workload), naive(&turns));
        }
    }
}
