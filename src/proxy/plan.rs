//! What a request asks of routing: its pool, its prompt as blocks, how its answer will come.
//!
//! The same for the data path and for `/explain`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use pingora_http::RequestHeader;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{Cutter, PromptBlocks};
use super::reject::Reject;
use crate::pool::{Answer, PoolSnapshot, Snapshot};
use crate::prefix::{BlockHash, Chain, Sample};
use crate::queue::Priority;
use crate::request::{self, Endpoint, PromptRequest, ReadError};
use crate::responses::{Owner, ResponseOwners, id_in_path};
use crate::routing::{Query, prefix_key};
use crate::shadow;
use crate::state::State;
use crate::tokens::{NotTokenized, Prompts};

/// Bytes that are read and hashed inline: a fraction of a millisecond's work.
const INLINE_BYTES: usize = 1024 * 1024;

/// What of the request header routing looks at.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Whether its method is one of requests with a prompt.
    pub may_prompt: bool,
    /// The path, without its query and decoded.
    pub path: &'a str,
    /// Its fields; in one of them a pool may look for the session.
    pub headers: &'a HeaderMap,
    /// The class of its caller, where callers have one.
    pub class: Option<Priority>,
}

/// A request as routing sees it.
#[derive(Debug, Default)]
pub struct Plan {
    /// The endpoint, if it carries a prompt; anything else goes by load.
    pub endpoint: Option<Endpoint>,
    /// The model that the client named.
    pub model: Option<String>,
    /// Whether the answer will be streamed.
    pub is_stream: bool,
    /// Whether the client will be told what the prompt cost.
    pub expects_usage: bool,
    /// Prompt tokens, estimated from their bytes, or counted where the client sent ids.
    pub prompt_tokens: u64,
    /// The backend that must serve it, because it holds what the request refers to.
    pub owner: Option<Owner>,
    /// If the pool has a tokenizer: why it did not tell the token ids of the prompts, or none if it did.
    pub tokenizing: Option<Option<NotTokenized>>,
    prompts: SmallVec<[PromptBlocks; 1]>,
    /// Prompts of its batch that count by length only.
    more_prompts: u64,
    session_key: Option<u64>,
    prefix_key: Option<u64>,
    /// How urgent it is.
    pub priority: Priority,
    /// Canonical bytes, if the engine's count of tokens will be a count of these.
    measured_bytes: Option<u64>,
}

// === impl Head ===

impl<'a> Head<'a> {
    /// What matters of `header`, sent by a caller of this class to `path`.
    pub fn of(header: &'a RequestHeader, path: &'a str, class: Option<Priority>) -> Self {
        Self { may_prompt: Endpoint::takes(&header.method), path, headers: &header.headers, class }
    }
}

/// Reads a request and finds its pool: the index of the pool in `snapshot`, and the plan. A body that takes so long that
/// others would wait for it is read on another thread.
///
/// # Errors
/// [`Reject::BadJson`] for a body that is not JSON where only that can be served; [`Reject::UnknownModel`] if no pool
/// takes the request.
pub async fn plan(
    state: &Arc<State>,
    snapshot: &Arc<Snapshot>,
    head: Head<'_>,
    body: &Bytes,
) -> Result<(usize, Plan), Reject> {
    if body.len() <= INLINE_BYTES {
        return plan_here(snapshot, head, body, &state.responses).await;
    }
    let (path, headers) = (head.path.to_owned(), head.headers.clone());
    let Head { may_prompt, class, .. } = head;
    let (state, snapshot, body) = (Arc::clone(state), Arc::clone(snapshot), body.clone());
    let planning = tokio::task::spawn_blocking(move || {
        let head = Head { may_prompt, path: &path, headers: &headers, class };
        Handle::current().block_on(plan_here(&snapshot, head, &body, &state.responses))
    });
    planning.await.unwrap_or(Err(Reject::Internal))
}

async fn plan_here(
    snapshot: &Snapshot,
    head: Head<'_>,
    body: &Bytes,
    responses: &ResponseOwners,
) -> Result<(usize, Plan), Reject> {
    let Some(endpoint) = Endpoint::of(head.path).filter(|_| head.may_prompt) else {
        return plan_other(snapshot, head, model_of(head, body), responses);
    };
    let request = match request::read(endpoint, body) {
        Ok(request) => request,
        // The engine is the judge of a request without a body.
        Err(ReadError::Empty) => {
            let (pool, plan) = plan_other(snapshot, head, None, responses)?;
            return Ok((pool, Plan { endpoint: Some(endpoint), ..plan }));
        }
        Err(error) => return Err(error.into()),
    };
    let model = request.model.as_deref();
    let pool =
        snapshot.pool_for(model).ok_or_else(|| Reject::UnknownModel { model: model.unwrap_or_default().to_owned() })?;
    let tokenized = tokenize(&snapshot.pools()[pool], endpoint, body).await;
    let ids = tokenized.as_ref().and_then(|tokenized| tokenized.as_ref().ok());
    let plan = plan_prompt(&snapshot.pools()[pool], head, &request, ids, responses);
    let tokenizing = tokenized.as_ref().map(|tokenized| tokenized.as_ref().err().copied());
    Ok((pool, Plan { tokenizing, ..plan }))
}

/// The token ids of the prompts in `body`; none if the pool has no tokenizer.
async fn tokenize(pool: &PoolSnapshot, endpoint: Endpoint, body: &Bytes) -> Option<Result<Prompts, NotTokenized>> {
    Some(pool.tokenizer.as_ref()?.prompts(endpoint, body.clone(), SystemTime::now()).await)
}

fn plan_prompt(
    pool: &PoolSnapshot,
    head: Head<'_>,
    request: &PromptRequest<'_>,
    ids: Option<&Prompts>,
    responses: &ResponseOwners,
) -> Plan {
    let PoolSnapshot { pool: shared, session_header, block_tokens, .. } = pool;
    let scale = shared.scale();
    let session_field = session_header.as_ref().and_then(|name| head.headers.get(name)).map(HeaderValue::as_bytes);
    let session_member = request.session_key.as_deref().map(str::as_bytes);
    let ids_of = |at: usize| ids.and_then(|ids| ids.prompts.get(at));
    let cutter = Cutter::new(pool, request);
    let prompts: SmallVec<[PromptBlocks; 1]> =
        request.prompts.iter().enumerate().map(|(at, prompt)| cutter.cut(prompt, ids_of(at))).collect();
    let unread_tokens = scale.tokens(request.more_prompt_bytes);
    Plan {
        endpoint: Some(request.endpoint),
        model: request.model.as_deref().map(str::to_owned),
        is_stream: request.stream,
        expects_usage: request.expects_usage(),
        prompt_tokens: prompts.iter().map(|prompt| prompt.tokens).sum::<u64>() + unread_tokens,
        owner: request.previous_response_id.as_deref().and_then(|id| responses.owner(id)),
        priority: pool.priorities.priority(head.headers, request.priority, head.class),
        session_key: session_field.filter(|key| !key.is_empty()).or(session_member).map(xxh3_64),
        prefix_key: prompts.first().and_then(|first| prefix_key(&first.chain.blocks, *block_tokens)),
        measured_bytes: measured_bytes(request, &prompts).filter(|_| ids.is_none()),
        tokenizing: None,
        prompts,
        more_prompts: request.more_prompts,
    }
}

/// A request without a prompt goes by load: to its model's pool, else to the one that takes any, else to the first.
fn plan_other(
    snapshot: &Snapshot,
    head: Head<'_>,
    model: Option<String>,
    responses: &ResponseOwners,
) -> Result<(usize, Plan), Reject> {
    let owner = id_in_path(head.path).and_then(|id| responses.owner(id));
    let owners_pool = owner.as_ref().and_then(|owner| snapshot.pool_named(&owner.pool));
    let pool = owners_pool.or_else(|| snapshot.pool_for(model.as_deref()));
    let first = if model.is_none() && !snapshot.pools().is_empty() { Some(0) } else { None };
    let pool = pool.or(first).ok_or_else(|| Reject::UnknownModel { model: model.clone().unwrap_or_default() })?;
    let priority = snapshot.pools()[pool].priorities.priority(head.headers, None, head.class);
    Ok((pool, Plan { model, owner, priority, ..Plan::default() }))
}

/// The model that a request without a prompt names: in its path, or in a JSON body.
fn model_of(head: Head<'_>, body: &[u8]) -> Option<String> {
    if let Some(id) = head.path.strip_prefix("/v1/models/") {
        return Some(id.to_owned());
    }
    if !body.starts_with(b"{") {
        return None;
    }
    request::read(Endpoint::Pooling, body).ok()?.model.map(|model| model.into_owned())
}

/// One prompt of text that is in the body whole: then what the engine counts is what we measured.
fn measured_bytes(request: &PromptRequest<'_>, prompts: &[PromptBlocks]) -> Option<u64> {
    let [prompt] = prompts else { return None };
    let is_whole = request.more_prompts == 0 && request.previous_response_id.is_none();
    let is_text = request.prompts.iter().all(|prompt| !prompt.has_media() && !prompt.is_tokens());
    (is_whole && is_text).then_some(prompt.chain.prompt_bytes)
}

// === impl Plan ===

impl Plan {
    /// How its accounting ends.
    pub fn answer(&self) -> Answer {
        if self.is_stream { Answer::Streamed } else { Answer::Whole }
    }

    /// What became of its tokenizing, as a word; none if its pool has no tokenizer.
    pub fn tokenizer_outcome(&self) -> Option<&'static str> {
        self.tokenizing.map(|reason| reason.map_or("tokenized", NotTokenized::as_str))
    }

    /// What the choice needs to know.
    pub fn query(&self) -> Query {
        Query {
            prompt_tokens: u32::try_from(self.prompt_tokens).unwrap_or(u32::MAX),
            turn: 0,
            session_key: self.session_key,
            prefix_key: self.prefix_key,
            owner: None,
            may_be_deferred: false,
        }
    }

    /// What the choice in `pool` needs to know.
    pub fn query_in(&self, pool: &PoolSnapshot) -> Query {
        Query { owner: self.owner.as_ref().and_then(|owner| owner_index(pool, owner)), ..self.query() }
    }

    /// The blocks of its prompts, together.
    pub fn block_count(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.chain.blocks.len()).sum()
    }

    /// Its prompts that are read, first to last.
    pub fn prompts(&self) -> &[PromptBlocks] {
        &self.prompts
    }

    /// How many prompts it has, those that are not read included.
    pub fn prompt_count(&self) -> u64 {
        self.prompts.len() as u64 + self.more_prompts
    }

    /// The chains of its prompts, first to last.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.prompts.iter().map(|prompt| &prompt.chain)
    }

    /// The hashes of its prompts' blocks of `block_tokens` by token ids, as far as they are known.
    pub(super) fn hashes_by_ids(&self, block_tokens: NonZeroU32) -> SmallVec<[Arc<[BlockHash]>; 1]> {
        let blocks = self.prompts.iter().flat_map(|prompt| &prompt.by_ids);
        blocks.filter(|blocks| blocks.block_tokens == block_tokens).map(|blocks| Arc::clone(&blocks.hashes)).collect()
    }

    /// Its prompts, as its pool's shadow takes them.
    pub fn shadow_prompts(&self) -> SmallVec<[shadow::Prompt<'_>; 1]> {
        let prompts = self.prompts.iter();
        prompts
            .map(|prompt| shadow::Prompt {
                blocks: &prompt.chain.blocks,
                tokens: prompt.tokens,
                tokens_per_block: prompt.tokens_per_block,
            })
            .collect()
    }

    /// What the engine's count of `prompt_tokens` teaches of the length of a token.
    pub fn sample(&self, prompt_tokens: u64) -> Option<Sample> {
        self.measured_bytes.map(|prompt_bytes| Sample { prompt_bytes, prompt_tokens, has_media: false })
    }
}

/// The backend of `pool` that is `owner`.
fn owner_index(pool: &PoolSnapshot, owner: &Owner) -> Option<usize> {
    let name: &Arc<str> = &owner.backend;
    (owner.pool == *pool.pool.name())
        .then(|| pool.backends.iter().position(|backend| backend.backend.name() == name))?
}
