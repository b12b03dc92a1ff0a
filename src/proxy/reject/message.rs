//! What clients are told: what is wrong and what would be right, and nothing of the request but its model's name.

use std::time::Duration;

use super::super::finish::shortened;
use super::{MAX_RETRY_AFTER_SECONDS, Reject, whole_seconds};
use crate::auth::{Denied, LimitKind, Limited};
use crate::pool::TimeLimit;
use crate::queue::Refusal;

/// Longest part of a model's name that is repeated in a message.
const MAX_NAME_BYTES: usize = 128;

impl Reject {
    pub(super) fn message(&self) -> String {
        match self {
            Self::BadJson(what) => format!("The request body is not valid JSON: {what}."),
            Self::BadBody => "The request body could not be read: its framing is broken.".into(),
            Self::TooLarge { limit } => {
                format!("The request body is larger than {limit} bytes (limits.max_body_bytes).")
            }
            Self::HeaderTooLarge { limit } => {
                format!("The request header is larger than {limit} bytes (server.max_header_bytes).")
            }
            Self::UnknownModel { model } if model.is_empty() => {
                "The request names no model, and no pool takes requests without one. GET /v1/models lists what is served."
                    .into()
            }
            Self::UnknownModel { model } => {
                format!("No pool serves the model `{}`. GET /v1/models lists what is served.", shortened(model, MAX_NAME_BYTES))
            }
            Self::NoBackend { pool } => {
                format!("No backend of pool `{pool}` can take requests at the moment.")
            }
            Self::NoRoom => {
                "Too many request bytes are held at the moment (limits.max_buffered_bytes). Try again shortly.".into()
            }
            Self::Shed { refusal, pool, estimate } => shed(*refusal, pool, *estimate),
            Self::BodyTimeout(limit) => {
                format!("The request body did not arrive within {limit:?} (limits.body_timeout).")
            }
            Self::UpstreamFailed { attempts } => {
                format!("The backends failed before they replied ({attempts} attempts).")
            }
            Self::UpstreamStatus { status } => format!("The backend answered with status {status}."),
            Self::Unauthorized { has_key: false } => {
                "An API key is required: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.".into()
            }
            Self::Unauthorized { has_key: true } => "The API key is not known here.".into(),
            Self::Denied { denied: Denied::Model, model } => {
                let model = shortened(model.as_deref().unwrap_or_default(), MAX_NAME_BYTES);
                format!("The model `{model}` does not exist, or this API key may not use it.")
            }
            Self::Denied { denied: Denied::NoModel, .. } => {
                "This API key is for certain models only; name one of them in `model`.".into()
            }
            Self::Denied { denied: Denied::Pool, .. } => "This API key may not be used for this.".into(),
            Self::Denied { denied: Denied::Path, .. } => {
                "This API key may not be used for this path: those that it may call are `paths` of its line in the keys_file, and, \
                 with a limit of tokens and no such list, the ones where tokens are counted."
                    .into()
            }
            Self::Limited(Limited { kind, allowed, retry_after }) => {
                let wait = retry_after.as_secs_f64();
                format!("This API key is limited to {allowed} {}. Try again in {wait:.1} s.", in_words(*kind))
            }
            Self::BackendKey { pool, has_key: false } => format!(
                "The backends of pool `{pool}` want an API key, and this proxy has none for them: set the pool's \
                 api_key_file, or forward_credentials to send the caller's."
            ),
            Self::BackendKey { pool, has_key: true } => {
                format!("The backends of pool `{pool}` refuse the API key of the pool's api_key_file.")
            }
            Self::TimedOut(limit) => {
                let what = match limit {
                    TimeLimit::Connect => "No connection to the backend was made in time",
                    TimeLimit::FirstToken => "The backend gave no token in time",
                    TimeLimit::BetweenTokens => "The backend went silent in the middle of its answer",
                    TimeLimit::Read => "The backend did not reply in time",
                    TimeLimit::Write => "The backend did not take the request in time",
                    TimeLimit::Total => "The request took too long altogether",
                };
                format!("{what} (timeouts.{}).", limit.name())
            }
            Self::BrokenOff => "The backend's answer broke off.".into(),
            Self::BadRequest => "The request header is not valid HTTP.".into(),
            Self::Malformed(fault) => format!("The request cannot be served: {}.", fault.explained()),
            Self::HeaderTimeout(limit) => {
                format!("The request header did not arrive within {limit:?} (limits.header_timeout).")
            }
            Self::Upgrade => "Protocol upgrades are not supported.".into(),
            Self::Internal => "The proxy failed to handle this request.".into(),
        }
    }
}

fn shed(refusal: Refusal, pool: &str, estimate: Duration) -> String {
    let seconds = whole_seconds(estimate).min(MAX_RETRY_AFTER_SECONDS);
    let what = match refusal {
        Refusal::Full => "its queue is full (queue.max_requests, queue.max_bytes)",
        Refusal::TooLong => "what waits already takes longer than a request may wait (queue.max_wait, timeouts.total)",
        Refusal::TimedOut => "the request has waited for as long as it may (queue.max_wait)",
        Refusal::Displaced => "its queue is full, and a more urgent request took this one's place",
    };
    format!("All backends of pool `{pool}` are busy, and {what}. Try again in {seconds} s.")
}

/// A limit, as it follows the number that it allows.
fn in_words(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Requests => "requests a minute",
        LimitKind::Concurrent => "requests at a time",
        LimitKind::Tokens => "tokens a minute",
        LimitKind::UncachedTokens => "uncached prompt tokens a minute",
    }
}
