//! What the recorded events predict against the cached tokens that the engine reported for its next request.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::{Batch, Decoder, fixtures};
use crate::locality::{ExactIndex, ExactMatches, ExactTenant};
use crate::prefix::{token_chain, token_root};

/// The prompt of a recorded step that told its cached tokens, and its salt.
fn prompt(step: &Value) -> Option<(Vec<u32>, Option<&'static str>)> {
    let ids = |ranges: &[Range<u32>]| ranges.iter().flat_map(Clone::clone).collect::<Vec<u32>>();
    let p1 = (100..200).collect();
    let name = step["step"].as_str()?;
    let salt = name.contains("cache_salt 'tenant-a'").then_some("tenant-a");
    match name {
        _ if name.starts_with("P2 ") => Some((ids(&[100..164, 300..364]), None)),
        _ if name.contains("P1") => Some((p1, salt)),
        _ => None,
    }
}

/// Cached tokens as the engine will report them: it computes the last token of a prompt in any case.
fn predicted(index: &ExactIndex, tenant: &ExactTenant, ids: &[u32], salt: Option<&str>) -> u64 {
    let Some(block_tokens) = tenant.block_tokens() else { return 0 };
    let mut matches = ExactMatches::new();
    index.lookup(&token_chain(token_root(None, salt), ids, block_tokens), &mut matches);
    let most = (ids.len() as u32 - 1) / block_tokens;
    u64::from(matches.levels(tenant.slot()).gpu.min(most) * block_tokens.get())
}

#[test]
fn recorded_events_predict_the_cached_tokens_that_the_engine_reported() {
    let mut compared = 0;
    for recording in fixtures::RECORDINGS {
        let Some(messages) = fixtures::live(recording) else { return };
        let steps = fixtures::bytes(&format!("{recording}/live.steps.json")).unwrap();
        let steps: Vec<Value> = serde_json::from_slice(&steps).unwrap();
        let index = Arc::new(ExactIndex::new(1 << 20, 1));
        let (tenant, mut decoder, mut batch) = (index.join(), Decoder::default(), Batch::default());
        for step in &steps {
            let name = &step["step"];
            let reported = step["result"]["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
            let is_told = !name.as_str().unwrap().contains("after the reset");
            if let (Some((ids, salt)), Some(reported), true) = (prompt(step), reported, is_told) {
                assert_eq!(predicted(&index, &tenant, &ids, salt), reported, "{recording}: {name}");
                compared += 1;
            }
            let range = |at: usize| step["messages"][at].as_u64().unwrap() as usize;
            for message in &messages[range(0)..range(1)] {
                decoder.decode(&message.payload, &mut batch).unwrap();
                tenant.apply(&batch);
            }
        }
        // vLLM tells of a reset with its next step's events: before those nobody can know.
        let (p1, p1_salted) = ((100..200).collect::<Vec<u32>>(), Some("tenant-a"));
        let left = [predicted(&index, &tenant, &p1, None), predicted(&index, &tenant, &p1, p1_salted)];
        if recording == fixtures::RECORDINGS[0] {
            assert_eq!(left, [96, 0], "P1 was computed again after the reset, its salted twin was not");
        }
    }
    assert_eq!(compared, 9, "steps that tell cached tokens");
}
