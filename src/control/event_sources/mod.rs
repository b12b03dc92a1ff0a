//! Asking an engine where it publishes its events: vLLM at `/kv_event_sources`, SGLang at `/server_info`.

mod answer;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Method;

use crate::client::Client;
use crate::kv_events::{EndpointError, Source};
use crate::pool::Origin;

/// How long each of the two questions may take.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// Where vLLM tells, since 0.32.
const VLLM_PATH: &str = "/kv_event_sources";

/// Where SGLang tells.
const SGLANG_PATH: &str = "/server_info";

/// The source of one data-parallel rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankSource {
    /// The rank's number, from 0.
    pub(super) rank: u32,
    /// Where it tells of its own cache.
    pub(super) source: Source,
}

/// Why nothing is known of an engine's events. Each says what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DiscoveryError {
    /// It does not answer.
    #[error("asking the engine for its event sources failed: {0}")]
    Unreachable(String),
    /// It wants to know who asks.
    #[error("the engine wants an API key (status {0}): set api_key_file")]
    KeyWanted(u16),
    /// It was told who asks.
    #[error("the engine refuses the API key (status {0}): check api_key_file")]
    KeyRefused(u16),
    /// It cannot be asked.
    #[error(
        "the engine has neither /kv_event_sources nor /server_info, so it cannot be asked: give the backend a kv_events.endpoint"
    )]
    TooOld,
    /// It answers with an error.
    #[error("the engine answers the question for its event sources with status {0}")]
    Status(u16),
    /// It names no source.
    #[error(
        "the engine names no event source: start it with --kv-events-config, or give the backend a kv_events.endpoint"
    )]
    NotEnabled,
    /// Its answer is not what engines say.
    #[error("the engine's answer about its event sources is malformed ({0}): give the backend a kv_events.endpoint")]
    Malformed(&'static str),
    /// The source cannot be reached.
    #[error("the engine names an event source that cannot be used: {0}")]
    Endpoint(#[from] EndpointError),
}

/// The sources of an engine, one for each data-parallel rank, by rank; at least one. Asks the engine of `origin`, which is
/// at `address`, by `client`, which has an API key or not.
///
/// # Errors
/// See [`DiscoveryError`].
pub(super) async fn discover(
    client: &Client,
    origin: &Origin,
    address: SocketAddr,
    has_key: bool,
) -> Result<Vec<RankSource>, DiscoveryError> {
    if let Some(body) = ask(client, address, VLLM_PATH, has_key).await? {
        return answer::read_vllm(&body, &origin.host);
    }
    match ask(client, address, SGLANG_PATH, has_key).await? {
        Some(body) => answer::read_sglang(&body, &origin.host),
        None => Err(DiscoveryError::TooOld),
    }
}

/// The body at `path`, none if the engine does not know it.
async fn ask(client: &Client, address: SocketAddr, path: &str, has_key: bool) -> Result<Option<Bytes>, DiscoveryError> {
    let reply = client.ask(address, Method::GET, path, Bytes::new()).await;
    let reply = reply.map_err(|error| DiscoveryError::Unreachable(error.to_string()))?;
    match reply.status {
        200 => Ok(Some(reply.body)),
        404 | 405 | 501 => Ok(None),
        status @ (401 | 403) if has_key => Err(DiscoveryError::KeyRefused(status)),
        status @ (401 | 403) => Err(DiscoveryError::KeyWanted(status)),
        status => Err(DiscoveryError::Status(status)),
    }
}
