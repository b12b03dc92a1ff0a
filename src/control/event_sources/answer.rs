//! What engines answer, read.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{DiscoveryError, RankSource};
use crate::kv_events::{Endpoint, EndpointError, Source};

/// Most data-parallel ranks of one engine.
const MAX_RANKS: u32 = 256;

/// One rank's entry of vLLM's answer, which is a map by rank.
#[derive(Debug, Deserialize)]
struct Described {
    #[serde(default)]
    enable_kv_cache_events: bool,
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    topic: Option<String>,
}

/// SGLang's answer.
#[derive(Debug, Deserialize)]
struct ServerInfo {
    kv_events: Option<Publisher>,
}

#[derive(Debug, Deserialize)]
struct Publisher {
    endpoint_host: Option<String>,
    endpoint_port_base: u16,
    replay_endpoint_port_base: Option<u16>,
    topic: Option<String>,
    dp_size: Option<u32>,
}

/// `backend_host` stands for what an engine calls all of its addresses.
pub(super) fn read_vllm(body: &[u8], backend_host: &str) -> Result<Vec<RankSource>, DiscoveryError> {
    let ranks: BTreeMap<u32, Described> = serde_json::from_slice(body)
        .map_err(|_| DiscoveryError::Malformed("not a JSON map of ranks with their endpoints"))?;
    let publishing = ranks.into_iter().filter(|(_, described)| described.is_publishing());
    let mut sources: Vec<RankSource> = Vec::new();
    for (rank, described) in publishing {
        if rank >= MAX_RANKS {
            return Err(DiscoveryError::Malformed("a rank is above 255"));
        }
        let mut source = described.source(backend_host)?;
        // Ranks may all name the endpoint of the first one.
        if let Some(first) = sources.first().filter(|first| first.source.endpoint == source.endpoint) {
            source = Source { topic: source.topic, ..of_rank(&first.source, rank - first.rank)? };
        }
        sources.push(RankSource { rank, source });
    }
    if sources.is_empty() {
        return Err(DiscoveryError::NotEnabled);
    }
    Ok(sources)
}

/// The same for SGLang.
pub(super) fn read_sglang(body: &[u8], backend_host: &str) -> Result<Vec<RankSource>, DiscoveryError> {
    let ServerInfo { kv_events } = serde_json::from_slice(body)
        .map_err(|_| DiscoveryError::Malformed("not JSON with the host and port of kv_events"))?;
    let publisher = kv_events.ok_or(DiscoveryError::NotEnabled)?;
    let ranks = publisher.dp_size.unwrap_or(1).max(1);
    if ranks > MAX_RANKS {
        return Err(DiscoveryError::Malformed("there are more than 256 ranks"));
    }
    let host = publisher.endpoint_host.as_deref().unwrap_or("*");
    let at = |port| match port {
        0 => Err(EndpointError::NoPort),
        port => Endpoint::reported_parts(host, port, backend_host),
    };
    let first = Source {
        endpoint: at(publisher.endpoint_port_base)?,
        replay_endpoint: publisher.replay_endpoint_port_base.map(at).transpose()?,
        topic: publisher.topic.unwrap_or_default().into(),
    };
    let sources = (0..ranks).map(|rank| Ok(RankSource { rank, source: of_rank(&first, rank)? }));
    Ok(sources.collect::<Result<_, EndpointError>>()?)
}

fn of_rank(first: &Source, rank: u32) -> Result<Source, EndpointError> {
    Ok(Source {
        endpoint: first.endpoint.of_rank(rank)?,
        replay_endpoint: first.replay_endpoint.as_ref().map(|endpoint| endpoint.of_rank(rank)).transpose()?,
        topic: first.topic.clone(),
    })
}

// === impl Described ===

impl Described {
    fn is_publishing(&self) -> bool {
        self.enable_kv_cache_events && self.publisher.as_deref().is_none_or(|publisher| publisher == "zmq")
    }

    fn source(self, backend_host: &str) -> Result<Source, DiscoveryError> {
        let endpoint = self.endpoint.ok_or(DiscoveryError::Malformed("a rank has no endpoint"))?;
        let replay = self.replay_endpoint.filter(|endpoint| !endpoint.is_empty());
        Ok(Source {
            endpoint: Endpoint::reported(&endpoint, backend_host)?,
            replay_endpoint: replay.map(|endpoint| Endpoint::reported(&endpoint, backend_host)).transpose()?,
            topic: self.topic.unwrap_or_default().into(),
        })
    }
}
