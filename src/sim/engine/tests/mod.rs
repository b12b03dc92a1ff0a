//! What the tests of the engine share.

mod basics;
mod events;
mod models;
mod plain;
mod properties;
mod scheduling;
mod shared_cache;

use std::time::Duration;

use super::*;

const BLOCK_TOKENS: u32 = 16;

fn parameters(kv_blocks: u32, max_num_seqs: usize) -> Parameters {
    Parameters {
        timing: Timing::REFERENCE,
        block_tokens: BLOCK_TOKENS,
        kv_blocks,
        max_num_seqs,
        step_tokens: 64,
        max_waiting: 1000,
        batching: Batching::Mixed,
        queue_order: QueueOrder::FirstCome,
        noise: Noise::default(),
    }
}

/// Chains of one `family` share their first `shared` blocks.
fn chain(family: u64, member: u64, shared: usize, blocks: usize) -> Vec<BlockHash> {
    let name = |place| if place < shared { family } else { (family + 1) * 1000 + member };
    (0..blocks).map(|place| BlockHash(name(place) << 32 | place as u64)).collect()
}

fn request(family: u64, member: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    let blocks = ((prompt_tokens + output_tokens) / BLOCK_TOKENS) as usize;
    Request { chain: chain(family, member, 3, blocks), prompt_tokens, output_tokens, content: None }
}

fn millis(count: u64) -> Moment {
    Moment::at(Duration::from_millis(count))
}

/// Runs until nothing is left to do.
fn drain(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(at) = engine.next_event_at() {
        events.extend(engine.advance(at));
    }
    events
}

fn cached_of(events: &[Event], id: RequestId) -> u32 {
    let admitted = |event: &&Event| event.id == id && matches!(event.kind, EventKind::Admitted { .. });
    match events.iter().find(admitted).expect("the request was admitted").kind {
        EventKind::Admitted { cached_tokens } => cached_tokens,
        _ => unreachable!(),
    }
}

fn finished(events: &[Event]) -> Vec<RequestId> {
    events.iter().filter(|event| event.kind == EventKind::Finished).map(|event| event.id).collect()
}

fn admitted(events: &[Event]) -> Vec<RequestId> {
    let is_admission = |event: &&Event| matches!(event.kind, EventKind::Admitted { .. });
    events.iter().filter(is_admission).map(|event| event.id).collect()
}

/// When a request's tokens came.
fn token_times(events: &[Event], id: RequestId) -> Vec<Moment> {
    let is_token = |event: &&Event| event.id == id && matches!(event.kind, EventKind::Token { .. });
    events.iter().filter(is_token).map(|event| event.at).collect()
}
