//! Replays a recorded block trace: a session of one turn for each line.
//!
//! Some traces have coarse timestamps (Mooncake's: all requests of 3 s at one instant), which would replay as bursts that
//! never were. Such batches are spread over their time. What an answer said is in no trace, so only prompts have blocks.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::{Session, Turn, Workload};
use crate::prefix::BlockHash;
use crate::trace::{BLOCK_TOKENS, TraceLine};

/// Milliseconds between coarse timestamps. A finer clock does no harm, and a longer gap is a pause and not a clock.
const COARSE: RangeInclusive<u64> = 100..=10_000;

/// The workload that was recorded, from its first request on. `seed` decides only where in its batch a request comes.
///
/// A block's hash is that of its id: equal ids mean equal prefixes already. The last, partial block has no hash here.
pub fn from_trace(lines: &[TraceLine], seed: u64) -> Workload {
    let mut rng = fastrand::Rng::with_seed(seed);
    let quantum = quantum(lines);
    let first = lines.iter().map(|line| line.timestamp).min().unwrap_or(0);
    let session = |line: &TraceLine| {
        let start = Duration::from_millis(line.timestamp - first) + quantum.mul_f64(rng.f64());
        Session { start, key: None, turns: vec![turn(line)] }
    };
    let mut sessions: Vec<_> = lines.iter().map(session).collect();
    sessions.sort_by_key(|session| session.start);
    Workload { block_tokens: NonZeroU32::MIN.saturating_add(BLOCK_TOKENS - 1), sessions }
}

fn turn(line: &TraceLine) -> Turn {
    let whole = (line.input_length / BLOCK_TOKENS) as usize;
    let chain: Arc<[_]> = line.hash_ids.iter().take(whole).map(|id| BlockHash(xxh3_64(&id.to_le_bytes()))).collect();
    Turn {
        pause: Duration::ZERO,
        chain,
        prompt_tokens: line.input_length.max(1),
        output_tokens: line.output_length.max(1),
    }
}

/// The time that a timestamp stands for; zero if the clock was not coarse.
///
/// A coarse clock shows in batches of equal timestamps that are never close to one another. The median gap between
/// batches is the clock's tick: a greatest common divisor would be 1 for a clock that is off by a millisecond at times, as
/// Mooncake's is.
fn quantum(lines: &[TraceLine]) -> Duration {
    let mut times: Vec<_> = lines.iter().map(|line| line.timestamp).collect();
    times.sort_unstable();
    times.dedup();
    let mut gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let has_batches = times.len() < lines.len();
    match (gaps.first(), gaps.get(gaps.len() / 2)) {
        (Some(least), Some(&median)) if has_batches && *least >= *COARSE.start() && COARSE.contains(&median) => {
            Duration::from_millis(median)
        }
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::super::infinite_cache_hit_ratio;
    use super::*;
    use crate::testing::config;

    fn line(timestamp: u64, hash_ids: &[u64]) -> TraceLine {
        let input_length = hash_ids.len() as u32 * BLOCK_TOKENS;
        TraceLine { timestamp, input_length, output_length: 10, hash_ids: hash_ids.to_vec() }
    }

    /// The recorded hour, which is no part of the project; none, with a message, where it is not beside the checkout.
    fn mooncake() -> Option<Vec<TraceLine>> {
        let shared = std::env::var_os("WARMGATE_SHARED")
            .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")), PathBuf::from);
        let path = shared.join("traces/mooncake-conversation.jsonl");
        if !path.exists() {
            println!("skipped: no trace at {}", path.display());
            return None;
        }
        Some(crate::trace::read_file(path).unwrap())
    }

    /// As the published figure counts: the tokens of all leading ids seen before, that of the partial block too.
    fn hit_ratio_by_ids(lines: &[TraceLine]) -> f64 {
        let mut seen = HashSet::new();
        let (mut cached, mut all) = (0, 0);
        for line in lines {
            let matched = line.hash_ids.iter().take_while(|id| seen.contains(*id)).count() as u32;
            cached += u64::from((matched * BLOCK_TOKENS).min(line.input_length));
            all += u64::from(line.input_length);
            seen.extend(line.hash_ids.iter().copied());
        }
        cached as f64 / all as f64
    }

    #[test]
    fn the_recorded_hour_has_its_known_figures() {
        let Some(lines) = mooncake() else { return };
        let workload = from_trace(&lines, 1);
        let turns: Vec<_> = workload.sessions.iter().map(|session| &session.turns[0]).collect();
        let mean = |tokens: fn(&Turn) -> u32| {
            (turns.iter().map(|turn| f64::from(tokens(turn))).sum::<f64>() / turns.len() as f64).round()
        };
        assert_eq!(turns.len(), 12_031);
        assert_eq!((mean(|turn| turn.prompt_tokens), mean(|turn| turn.output_tokens)), (12_035.0, 343.0));
        let percent = |ratio: f64| (ratio * 10_000.0).round() / 100.0;
        assert_eq!(percent(hit_ratio_by_ids(&lines)), 37.36, "the published figure counts partial blocks");
        assert_eq!(percent(infinite_cache_hit_ratio(&workload)), 37.34, "whole blocks are what engines keep");
    }

    #[test]
    fn the_recorded_hour_comes_evenly_and_not_every_three_seconds() {
        let Some(lines) = mooncake() else { return };
        assert_eq!(quantum(&lines), Duration::from_secs(3));
        let mut thirds = [0; 3];
        for session in from_trace(&lines, 1).sessions {
            thirds[(session.start.as_millis() % 3_000 / 1_000) as usize] += 1;
        }
        assert!(thirds.iter().all(|&count: &i32| (count - 4_010).abs() < 200), "{thirds:?}");
    }

    #[test]
    fn a_chain_is_the_whole_blocks_of_a_prompt() {
        let lines = [line(0, &[1, 2, 3]), TraceLine { input_length: 1_500, ..line(5, &[1, 2, 4]) }];
        let workload = from_trace(&lines, 1);
        let [first, second] = [0, 1].map(|at: usize| workload.sessions[at].turns[0].chain.clone());
        assert_eq!((first.len(), &first[..2]), (3, &second[..]), "1,500 tokens are two whole blocks");
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 3);
    }

    #[test]
    fn a_fine_clock_is_believed() {
        let times = |times: &[u64]| times.iter().map(|&time| line(time, &[])).collect::<Vec<_>>();
        let starts = |lines: &[TraceLine]| {
            from_trace(lines, 1).sessions.iter().map(|session| session.start.as_millis() as u64).collect::<Vec<_>>()
        };
        assert_eq!(starts(&times(&[7, 7, 12, 400, 900])), [0, 0, 5, 393, 893], "from the first request on");
        assert_eq!(starts(&times(&[0, 1_000, 3_000])), [0, 1_000, 3_000], "no two at once");
        assert_eq!(starts(&times(&[0, 0, 60_000])), [0, 0, 60_000], "a minute is a pause");
        assert!(from_trace(&[], 1).sessions.is_empty());
    }

    proptest! {
        #![proptest_config(config(64))]

        #[test]
        fn a_coarse_batch_is_spread_over_its_tick_and_no_further(
            counts in prop::collection::vec(1..9_usize, 3..20), tick in 100..10_000_u64, seed in any::<u64>(),
        ) {
            prop_assume!(counts.iter().any(|&count| count > 1));
            let times = counts.iter().enumerate().flat_map(|(at, &count)| vec![at as u64 * tick; count]);
            let workload = from_trace(&times.map(|time| line(time, &[])).collect::<Vec<_>>(), seed);
            prop_assert!(workload.sessions.is_sorted_by_key(|session| session.start));
            let mut batches = vec![0; counts.len()];
            workload.sessions.iter().for_each(|session| batches[session.start.as_millis() as usize / tick as usize] += 1);
            prop_assert_eq!(batches, counts);
            let starts: HashSet<_> = workload.sessions.iter().map(|session| session.start).collect();
            prop_assert_eq!(starts.len(), workload.requests(), "no two come at once any more");
        }
    }
}
