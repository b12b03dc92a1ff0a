//! From a body to a request for the engine: the checks, the tokens, the text that will be generated.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::body::Body;
use super::exchange::Exchange;
use super::reply::{self, Reply};
use crate::prefix::{BlockHash, token_chain, token_root};
use crate::sim::answer::{self, Answer, Usage};
use crate::sim::endpoint::Endpoint;
use crate::sim::engine::{Content, Request};
use crate::sim::options::EngineOptions;
use crate::sim::process::unix_seconds;
use crate::sim::prompt::{Invalid, Prompt};
use crate::sim::tokens::Generated;
use crate::tokens::NotTokenized;

/// How a prompt will be answered.
pub(super) enum Plan {
    /// The answer is known without the engine.
    Immediate(Reply),
    Engine(Box<Planned>),
}

/// A request that passed all checks, and the answer it will get.
pub(super) struct Planned {
    pub(super) request: Request,
    pub(super) answer: Answer,
    pub(super) is_streamed: bool,
    /// Inputs of an embedding request.
    pub(super) inputs: usize,
    /// What the prompt determines.
    pub(super) digest: u64,
    pub(super) block_tokens: u32,
}

/// The answer's text is made up front, so it has a bound of its own.
const MAX_OUTPUT_TOKENS: u64 = 1 << 20;

/// Decides how a prompt will be answered; the error is an answer too.
pub(super) async fn plan(exchange: &Exchange<'_>, endpoint: Endpoint, body: &Body) -> Result<Plan, Reply> {
    let prompt = check(exchange, endpoint, body)?;
    lay_out(exchange, endpoint, &prompt, body).await
}

/// The checks that vLLM makes, in its order and words.
fn check(exchange: &Exchange<'_>, endpoint: Endpoint, body: &Body) -> Result<Prompt, Reply> {
    let content_type = String::from_utf8_lossy(exchange.session.get_header_bytes("content-type")).to_ascii_lowercase();
    if !body.bytes.is_empty() && !content_type.starts_with(reply::JSON) {
        return Err(Reply::invalid("Unsupported Media Type: Only 'application/json' is allowed", None));
    }
    let prompt = Prompt::read(endpoint, &body.bytes).map_err(invalid)?;
    let models = &exchange.shared.options.models;
    match prompt.model() {
        Some(model) if !models.iter().any(|served| served == model) => {
            let message = format!("The model `{model}` does not exist. Valid aliases: {}.", models.join(", "));
            Err(Reply::error(endpoint, 404, "NotFoundError", &message, Some("model")))
        }
        _ => Ok(prompt),
    }
}

fn invalid(invalid: Invalid) -> Reply {
    let (error, param) = match invalid {
        Invalid::Empty => (
            String::from("{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}"),
            String::from("body"),
        ),
        Invalid::Json { at } => (
            format!(
                "{{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
            ),
            format!("body.{at}"),
        ),
        Invalid::Missing { field, fields } => (
            format!(
                "{{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required', 'input': '<dict of {fields} items>'}}"
            ),
            format!("body.{field}"),
        ),
    };
    Reply::invalid(&error, Some(&param))
}

async fn lay_out(exchange: &Exchange<'_>, endpoint: Endpoint, prompt: &Prompt, body: &Body) -> Result<Plan, Reply> {
    let options = &exchange.shared.options;
    let limit_tokens = exchange.process.driver.limit_tokens();
    let tokens = &exchange.shared.tokens;
    let spelled = tokens.spell(endpoint, prompt, &body.bytes).await.map_err(|reason| unspelled(endpoint, reason))?;
    if endpoint == Endpoint::Tokenize {
        return Ok(Plan::Immediate(Reply::json(answer::tokenize(&spelled.ids(), limit_tokens))));
    }
    let (digest, prompt_tokens) = (spelled.digest(), spelled.tokens());
    if endpoint == Endpoint::CountTokens {
        return Ok(Plan::Immediate(Reply::json(answer::count_tokens(prompt_tokens))));
    }
    let room = limit_tokens.saturating_sub(prompt_tokens).min(MAX_OUTPUT_TOKENS);
    let wanted = prompt.max_tokens();
    let output_tokens = match wanted {
        _ if !endpoint.generates() => 0,
        Some(tokens) if tokens <= room => tokens,
        None if room > 0 => u64::from(options.output_tokens).min(room),
        _ => return Err(too_long(endpoint, prompt_tokens, wanted.unwrap_or(0), limit_tokens)),
    };
    let Generated { text, ids } = tokens.generate(spelled, options.seed ^ digest, output_tokens as u32).await;
    let content = content(options, prompt, ids);
    let model = prompt.model().or(options.models.first().map(String::as_str)).unwrap_or_default();
    let answer = Answer {
        endpoint,
        id: request_id(exchange),
        created: unix_seconds() as u64,
        model: answer::quote(model),
        text,
        is_cut: wanted.is_some(),
        is_aborted: false,
        includes_usage: prompt.includes_usage(),
        usage: Usage { prompt_tokens, output_tokens, ..Usage::default() },
    };
    // Both fit: the limit is a number of blocks times a number of tokens, checked above or by the engine.
    let request = Request {
        chain: chain(&content, options.parameters.block_tokens),
        prompt_tokens: prompt_tokens as u32,
        output_tokens: output_tokens as u32,
        content: options.kv_events.is_some().then(|| Arc::new(content)),
    };
    let (is_streamed, inputs) = (prompt.is_streamed() && endpoint.generates(), prompt.inputs());
    let block_tokens = options.parameters.block_tokens;
    Ok(Plan::Engine(Box::new(Planned { request, answer, is_streamed, inputs, digest, block_tokens })))
}

/// A prompt that the model's tokenizer or template refuses, or that only a real engine can spell.
fn unspelled(endpoint: Endpoint, reason: NotTokenized) -> Reply {
    Reply::error(endpoint, 400, "BadRequestError", &format!("The prompt cannot be tokenized here: {reason}."), None)
}

/// What the blocks of a request are made of. The first model served is the base; all others are adapters on it.
fn content(options: &EngineOptions, prompt: &Prompt, tokens: Vec<u32>) -> Content {
    let base = options.models.first().map(String::as_str);
    let adapter = prompt.model().filter(|&model| base.is_some_and(|base| model != base));
    Content { tokens, adapter: adapter.map(Arc::from), salt: prompt.salt().map(Arc::from) }
}

fn chain(content: &Content, block_tokens: u32) -> Vec<BlockHash> {
    let root = token_root(content.adapter.as_deref(), content.salt.as_deref());
    token_chain(root, &content.tokens, NonZeroU32::new(block_tokens).unwrap_or(NonZeroU32::MIN))
}

/// The client's id, else one of our own: 16 hexadecimal digits.
fn request_id(exchange: &Exchange<'_>) -> String {
    let given = exchange.session.get_header_bytes("x-request-id");
    match std::str::from_utf8(given) {
        Ok(given)
            if !given.is_empty()
                && given.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\') =>
        {
            given.to_owned()
        }
        _ => format!("{:016x}", fastrand::u64(..)),
    }
}

/// Prompt and answer do not fit.
pub(super) fn too_long(endpoint: Endpoint, prompt_tokens: u64, wanted: u64, limit_tokens: u64) -> Reply {
    let (message, param) = if wanted == 0 || prompt_tokens >= limit_tokens {
        let message = format!(
            "This model's maximum context length is {limit_tokens} tokens. However, your prompt contains at least {prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})"
        );
        (message, "input_tokens")
    } else {
        let message = format!(
            "max_tokens={wanted} cannot be greater than max_model_len={limit_tokens}. Please request fewer output tokens. (parameter=max_tokens, value={wanted})"
        );
        (message, "max_tokens")
    };
    Reply::error(endpoint, 400, "BadRequestError", &message, Some(param))
}
