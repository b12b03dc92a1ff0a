//! The simulator against the real thing: one workload, replayed and run in simulated time, has the same hit ratio.
//!
//! What is compared is the engines' own count of cached prompt tokens. Engines, cache sizes, blocks, pauses and policy are
//! the same in both worlds. The load is low, so that a busy machine delays requests but hardly changes their order.

use std::num::NonZeroU32;

use warmgate::prefix::BlockHash;
use warmgate::sim::engine::{Model, Parameters, Timing};
use warmgate::simulate::workload::{Conversation, LogNormal, Turn, Workload};
use warmgate::simulate::{Locality, Setup};

use crate::fleet::Plan;
use crate::prompts::Spelling;
use crate::simulated::{hit_ratio, simulated};
use crate::{BACKENDS, BLOCK_TOKENS, SEED, TURN};

const REQUESTS: usize = 2_000;

/// KV blocks of one engine: 16,384 tokens, about ten conversations, so that blocks are evicted all the time.
const KV_BLOCKS: u32 = 256;

/// How far the two may be apart.
const TOLERANCE: f64 = 0.03;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_over_http_has_the_hit_ratio_of_the_simulation() {
    let _turn = TURN.lock().await;
    let workload = workload();
    assert_eq!(workload.requests(), REQUESTS);
    let expected = hit_ratio_of("cost", &workload);
    let unaware = hit_ratio_of("round_robin", &workload);
    let plan = Plan { engine: engine(), routers: 1, locality: Locality::Assumed, spelling: Spelling::Text };
    let replayed = plan.replay(workload).await.hit_ratio;
    println!(
        "hit ratio of cost: replayed {replayed:.4}, simulated {expected:.4}; of round_robin: simulated {unaware:.4}"
    );
    assert!((replayed - expected).abs() < TOLERANCE, "replayed {replayed}, simulated {expected}");
    assert!((replayed - unaware).abs() > 2.0 * TOLERANCE, "any policy would pass: {unaware} by turns");
}

fn hit_ratio_of(policy: &str, workload: &Workload) -> f64 {
    let outcome = simulated(workload, &Setup::new(BACKENDS, engine()), policy);
    assert!(outcome.utilization < 0.5, "the load is low: {}", outcome.utilization);
    hit_ratio(&outcome)
}

/// Prefill of 40,000 tokens a second and a token a millisecond: slow against the proxy's own time, and idle most of the
/// time with this workload.
fn engine() -> Parameters {
    Parameters { timing: Timing::from_rates(40_000.0, 1_000.0), ..Model::Reference.parameters(BLOCK_TOKENS, KV_BLOCKS) }
}

/// The built-in conversations, shorter and with less time between the turns.
fn workload() -> Workload {
    let parameters = Conversation {
        requests: REQUESTS,
        sessions_per_second: 28.0,
        system_tokens: LogNormal::new(450.0, 0.4, 200.0, 900.0),
        first_tokens: LogNormal::new(500.0, 0.6, 100.0, 1_200.0),
        message_tokens: LogNormal::new(80.0, 0.8, 8.0, 300.0),
        output_tokens: LogNormal::new(16.0, 0.4, 8.0, 32.0),
        max_turns: 12,
        pause_seconds: LogNormal::new(0.6, 0.8, 0.1, 3.0),
        ..Conversation::default()
    };
    let mut workload = parameters.generate(SEED);
    assert_eq!(workload.block_tokens.get(), BLOCK_TOKENS);
    let mut names = fastrand::Rng::with_seed(SEED);
    let turns = workload.sessions.iter_mut().flat_map(|session| &mut session.turns);
    turns.for_each(|turn| forget_answer(turn, workload.block_tokens, &mut names));
    workload
}

/// Gives the answer blocks of their own. Over HTTP an engine answers in words of its own, which are not what the
/// workload puts into the next prompt; they take room in its cache all the same.
fn forget_answer(turn: &mut Turn, block_tokens: NonZeroU32, names: &mut fastrand::Rng) {
    let whole = ((turn.prompt_tokens + turn.output_tokens) / block_tokens) as usize;
    let prompt = turn.prompt_blocks(block_tokens);
    let answer = (prompt.len()..whole).map(|_| BlockHash(names.u64(..)));
    turn.chain = prompt.iter().copied().chain(answer).collect();
}
