//! Exact against assumed locality where caches are starved and two routers serve the same engines.
//!
//! An engine's cache holds what both routers put there. Each of them assumes an LRU of its own decisions, of the engine's
//! whole size, and so believes in twice what there is; KV events tell both what is there. (A lone router assumes well: its
//! LRU does what the engine's does.)

use std::collections::HashMap;

use warmgate::sim::engine::{Model, Parameters, Timing};
use warmgate::simulate::workload::{LogNormal, Rag, Workload};
use warmgate::simulate::{Locality, Setup};

use crate::fleet::{Plan, Replayed};
use crate::prompts::Spelling;
use crate::simulated::{hit_ratio, p90, simulated, ttft_p90};
use crate::{BACKENDS, BLOCK_TOKENS, SEED, TURN};

const ROUTERS: usize = 2;

/// KV blocks of one engine: all of them together hold a quarter of the working set.
const KV_BLOCKS: u32 = 117;

/// Both run side by side, so that what else the machine does befalls both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_starved_caches_exact_locality_halves_the_ttft_of_assumed_locality() {
    let _turn = TURN.lock().await;
    let workload = workload();
    let starved = f64::from(working_set(&workload)) / f64::from(KV_BLOCKS * BACKENDS as u32);
    assert!((starved - 4.0).abs() < 0.05, "the working set is {starved} times the fleet's KV");
    let expected = [Locality::Exact, Locality::Assumed].map(|locality| {
        let outcome =
            simulated(&workload, &Setup { locality, routers: ROUTERS, ..Setup::new(BACKENDS, engine()) }, "cost");
        (ttft_p90(&outcome), hit_ratio(&outcome))
    });
    let (exact, assumed) =
        tokio::join!(plan(Locality::Exact).replay(workload.clone()), plan(Locality::Assumed).replay(workload));
    let replayed = [exact, assumed].map(|Replayed { ttfts, hit_ratio }| (p90(ttfts), hit_ratio));
    show("replayed", replayed);
    show("simulated", expected);
    let [(exact, _), (assumed, _)] = replayed;
    assert!(exact <= 0.5 * assumed, "exact {exact} s, assumed {assumed} s");
}

fn show(world: &str, [exact, assumed]: [(f64, f64); 2]) {
    println!(
        "{world}: TTFT p90 exact {:.3} s, assumed {:.3} s, ratio {:.3}; hit ratio {:.3}, {:.3}",
        exact.0,
        assumed.0,
        exact.0 / assumed.0,
        exact.1,
        assumed.1,
    );
}

fn plan(locality: Locality) -> Plan {
    Plan { engine: engine(), routers: ROUTERS, locality, spelling: Spelling::Ids }
}

/// Prefill of 2,500 tokens a second: a third of a second for a document, which is long against what a busy machine does to
/// the proxy.
fn engine() -> Parameters {
    Parameters { timing: Timing::from_rates(2_500.0, 250.0), ..Model::Reference.parameters(BLOCK_TOKENS, KV_BLOCKS) }
}

/// Questions over documents, each prompt a document and a question. The load is what exact locality can just about serve
/// without a queue, and assumed locality cannot.
fn workload() -> Workload {
    let parameters = Rag {
        requests: 2_000,
        requests_per_second: 38.0,
        system_tokens: 0,
        documents: 300,
        exponent: 1.0,
        document_tokens: LogNormal::new(800.0, 0.4, 320.0, 1_600.0),
        documents_each: 1..=1,
        question_tokens: LogNormal::new(40.0, 0.6, 8.0, 96.0),
        output_tokens: LogNormal::new(16.0, 0.4, 8.0, 32.0),
    };
    let workload = parameters.generate(SEED);
    assert_eq!(workload.block_tokens.get(), BLOCK_TOKENS);
    workload
}

/// The blocks that can be found again, which are those that several prompts have: the documents. They are asked for from
/// the first request to the last, so all of them are in use at any time.
fn working_set(workload: &Workload) -> u32 {
    let mut prompts: HashMap<u64, u32> = HashMap::new();
    for turn in workload.sessions.iter().flat_map(|session| &session.turns) {
        turn.prompt_blocks(workload.block_tokens).iter().for_each(|block| *prompts.entry(block.0).or_default() += 1);
    }
    prompts.values().filter(|&&count| count > 1).count() as u32
}
