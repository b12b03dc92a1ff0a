//! POST /explain: what would be decided for a request, with every term; nothing is sent or accounted for.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::Serialize;

use crate::auth::{Caller, Room};
use crate::pool::{PoolSnapshot, Trust};
use crate::proxy::{Head, Matched, Plan, Reject, plan};
use crate::request::decoded;
use crate::routing::{self, Candidate, CostTerms, Exclusion, Query};
use crate::state::State;
use crate::time::Moment;

/// A decision, taken apart.
#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    pool: String,
    policy: &'static str,
    model: Option<String>,
    prompt_tokens: u64,
    /// Whether its token ids are known, from a tokenizer, or why not; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer: Option<&'static str>,
    blocks: usize,
    block_tokens: u32,
    bytes_per_token: f64,
    /// The first blocks' hashes, in hexadecimal, each prompt's.
    block_hashes: Vec<Vec<String>>,
    /// Whose request it would be, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<CallerExplanation>,
    chosen: Option<String>,
    /// Whether it would wait at the router, because its prefill is long and backends are busy.
    is_deferred: bool,
    /// The cheapest first, then those that are out.
    backends: Vec<BackendExplanation>,
}

/// A caller, and what it could take at the moment of each of its limits that it has.
#[derive(Debug, Serialize)]
struct CallerExplanation {
    label: String,
    priority: &'static str,
    in_flight: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_left: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_left: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncached_tokens_left: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
struct BackendExplanation {
    name: String,
    is_chosen: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    excluded: Option<String>,
    matched_tokens: u32,
    /// What `matched_tokens` is read from: `exact`, `assumed` or `load_only`.
    trust: &'static str,
    /// By our own decisions, requests in flight left out.
    assumed_tokens: u32,
    /// By the engine's KV events, if they can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    exact_tokens: Option<u32>,
    uncached_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_ttft_seconds: Option<f64>,
    /// Each term of the cost, in seconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    terms: BTreeMap<&'static str, f64>,
}

/// Hashes shown of each prompt.
const SHOWN_HASHES: usize = 32;

/// Explains what would be done with `body`, sent to `path` by `caller` at `now`.
///
/// # Errors
/// What the request would be rejected for.
pub(super) async fn explain(
    state: &Arc<State>,
    path: &str,
    body: &Bytes,
    caller: Option<&Arc<Caller>>,
    now: Moment,
) -> Result<Explanation, Reject> {
    let snapshot = state.snapshot.load_full();
    let (path, class) = (&*decoded(path), caller.map(|caller| caller.priority()));
    if let Some(caller) = caller {
        let permitted = caller.permits_path(&Method::POST, path);
        permitted.map_err(|denied| Reject::Denied { denied, model: None })?;
    }
    let head = Head { may_prompt: true, path, headers: &HeaderMap::new(), class };
    let (index, plan) = plan(state, &snapshot, head, body).await?;
    let pool = &snapshot.pools()[index];
    if let Some(caller) = caller {
        let permitted = caller.permits(plan.model.as_deref(), pool.pool.name());
        permitted.map_err(|denied| Reject::Denied { denied, model: plan.model.clone() })?;
    }
    let matched = plan.matched(&state.index, &state.events, pool);
    let query = Query { may_be_deferred: pool.queue.max_defer.is_some(), ..plan.query_in(pool) };
    let filtered = routing::candidates(pool, &query, &matched.tokens, &[], now);
    let decision = routing::choose(&pool.policy, &query, &filtered.candidates, &mut fastrand::Rng::with_seed(0));
    let deferral =
        decision.as_ref().and_then(|decision| routing::deferral(pool, &query, decision, &filtered.candidates, now));
    let chosen = decision.map(|decision| decision.index);
    let costs = routing::score(&pool.policy.cost, &query, &filtered.candidates);
    let mut backends: Vec<BackendExplanation> = filtered
        .candidates
        .iter()
        .zip(&costs)
        .map(|(candidate, cost)| explain_candidate(pool, &plan, &matched, candidate, cost, chosen))
        .collect();
    backends.sort_by(|a, b| a.cost_seconds.unwrap_or(f64::MAX).total_cmp(&b.cost_seconds.unwrap_or(f64::MAX)));
    backends.extend(filtered.excluded.iter().map(|&(index, exclusion)| explain_excluded(pool, index, exclusion)));
    Ok(Explanation {
        pool: pool.pool.name().to_string(),
        policy: pool.policy.kind.name(),
        model: plan.model.clone(),
        prompt_tokens: plan.prompt_tokens,
        tokenizer: plan.tokenizer_outcome(),
        blocks: plan.block_count(),
        block_tokens: pool.block_tokens.get(),
        bytes_per_token: pool.pool.scale().bytes_per_token(),
        block_hashes: shown_hashes(&plan),
        caller: caller.map(|caller| explain_caller(caller, now)),
        chosen: chosen.map(|index| name(pool, index)),
        is_deferred: deferral.is_some(),
        backends,
    })
}

fn explain_caller(caller: &Arc<Caller>, now: Moment) -> CallerExplanation {
    let left = |room: Option<Room>| room.map(|room| room.left);
    CallerExplanation {
        label: caller.label().to_owned(),
        priority: caller.priority().name(),
        in_flight: caller.in_flight(),
        requests_left: left(caller.request_room(now)),
        tokens_left: left(caller.token_room(now)),
        uncached_tokens_left: left(caller.uncached_room(now)),
    }
}

fn explain_candidate(
    pool: &PoolSnapshot,
    plan: &Plan,
    matched: &Matched,
    candidate: &Candidate,
    cost: &CostTerms,
    chosen: Option<usize>,
) -> BackendExplanation {
    let prediction = matched.predictions[candidate.index];
    BackendExplanation {
        name: name(pool, candidate.index),
        is_chosen: chosen == Some(candidate.index),
        excluded: None,
        matched_tokens: candidate.matched_tokens,
        trust: read_from(pool.backends[candidate.index].trust(), prediction.exact.is_some()).name(),
        assumed_tokens: prediction.assumed,
        exact_tokens: prediction.exact.map(|exact| exact.at_least),
        uncached_tokens: plan.prompt_tokens.saturating_sub(u64::from(candidate.matched_tokens)),
        cost_seconds: Some(cost.total()),
        predicted_ttft_seconds: Some(cost.predicted_ttft()),
        terms: cost.named().into_iter().collect(),
    }
}

/// What matched tokens are read from: events say nothing of a prompt whose token ids are not known.
fn read_from(trust: Trust, is_exact_known: bool) -> Trust {
    if trust == Trust::Exact && !is_exact_known { Trust::Assumed } else { trust }
}

fn explain_excluded(pool: &PoolSnapshot, index: usize, exclusion: Exclusion) -> BackendExplanation {
    BackendExplanation {
        name: name(pool, index),
        excluded: Some(exclusion.name().to_owned()),
        ..BackendExplanation::default()
    }
}

fn shown_hashes(plan: &Plan) -> Vec<Vec<String>> {
    plan.chains()
        .map(|chain| chain.blocks.iter().take(SHOWN_HASHES).map(|hash| format!("{:016x}", hash.0)).collect())
        .collect()
}

fn name(pool: &PoolSnapshot, index: usize) -> String {
    pool.backends[index].backend.name().to_string()
}
