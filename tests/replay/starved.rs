//! Exact against assumed locality where caches are starved and four routers serve the same engines.
//!
//! An engine's cache holds what all routers put there. Each of them assumes an LRU of its own decisions, of the engine's
//! whole size: it believes in four times what there is, and does not see what the others brought. KV events tell all of
//! them what is there. (A lone router assumes well: its LRU does what the engine's does.)

use std::collections::HashSet;

use warmgate::sim::engine::{Model, Parameters, Timing};
use warmgate::simulate::workload::{LogNormal, Rag, Workload};
use warmgate::simulate::{Locality, Setup};

use crate::fleet::{Plan, Replayed};
use crate::prompts::Spelling;
use crate::simulated::{hit_ratio, p90, simulated, ttft_p90};
use crate::{BACKENDS, BLOCK_TOKENS, SEED, TURN};

const ROUTERS: usize = 4;

/// KV blocks of one engine: all of them together hold a quarter of the working set.
const KV_BLOCKS: u32 = 117;

/// Blocks of a document.
const DOCUMENT_BLOCKS: u32 = 13;

/// Both run side by side, so that what else the machine does befalls both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_starved_caches_exact_locality_halves_the_ttft_of_assumed_locality() {
    let _turn = TURN.lock().await;
    let workload = workload();
    let starved = working_set(&workload) as f64 / (KV_BLOCKS as usize * BACKENDS) as f64;
    assert!((starved - 4.0).abs() < 0.05, "the working set is {starved} times the fleet's KV");
    let (exact, assumed) =
        tokio::join!(plan(Locality::Exact).replay(workload.clone()), plan(Locality::Assumed).replay(workload.clone()));
    let replayed = [exact, assumed].map(|Replayed { ttfts, hit_ratio }| (p90(ttfts), hit_ratio));
    show("replayed", replayed);
    show("simulated", simulated_with(ROUTERS, &workload));
    show("simulated with one router", simulated_with(1, &workload));
    let [(exact, _), (assumed, _)] = replayed;
    assert!(exact <= 0.5 * assumed, "exact {exact} s, assumed {assumed} s");
}

fn simulated_with(routers: usize, workload: &Workload) -> [(f64, f64); 2] {
    [Locality::Exact, Locality::Assumed].map(|locality| {
        let outcome = simulated(workload, &Setup { locality, routers, ..Setup::new(BACKENDS, engine()) }, "cost");
        (ttft_p90(&outcome), hit_ratio(&outcome))
    })
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

/// Prefill of 1,800 tokens a second, half a second for a document: long against what a busy machine does to the proxy.
fn engine() -> Parameters {
    Parameters { timing: Timing::from_rates(1_800.0, 180.0), ..Model::Reference.parameters(BLOCK_TOKENS, KV_BLOCKS) }
}

/// Questions over documents, each prompt a document and a question. With the hits of exact locality engines are busy for
/// six tenths of the time, with those of assumed locality nearly all the time; so they are at a tenth less or more of this
/// load.
fn workload() -> Workload {
    let document = f64::from(DOCUMENT_BLOCKS * BLOCK_TOKENS);
    let parameters = Rag {
        requests: 1_600,
        requests_per_second: 35.0,
        system_tokens: 0,
        documents: 3_000,
        exponent: 1.3,
        document_tokens: LogNormal::new(document, 0.0, document, document),
        documents_each: 1..=1,
        question_tokens: LogNormal::new(40.0, 0.6, 8.0, 96.0),
        output_tokens: LogNormal::new(16.0, 0.4, 8.0, 32.0),
    };
    let workload = parameters.generate(SEED);
    assert_eq!(workload.block_tokens.get(), BLOCK_TOKENS);
    workload
}

/// Blocks of all documents that are asked about. Any of them may be asked about at any time, from the first request to the
/// last. Questions and answers, which nobody asks for again, are not counted, though they take room as well.
fn working_set(workload: &Workload) -> usize {
    let turns = workload.sessions.iter().flat_map(|session| &session.turns);
    let documents = turns.flat_map(|turn| &turn.chain[..DOCUMENT_BLOCKS as usize]);
    documents.map(|block| block.0).collect::<HashSet<u64>>().len()
}
