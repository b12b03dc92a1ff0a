//! Where the events are, as engines tell over HTTP.

use std::net::SocketAddr;

use serde_json::json;

use super::{KvEventOptions, Publisher, QUEUE};
use crate::kv_events::Form;
use crate::sim::options::EngineOptions;

// === impl Publisher ===

impl Publisher {
    /// The path that the form's engine tells it at.
    pub(in crate::sim) fn sources_path(&self) -> &'static str {
        match self.options.form {
            Form::Vllm => "/kv_event_sources",
            Form::Sglang => "/server_info",
        }
    }

    /// The JSON that is answered there.
    pub(in crate::sim) fn sources(&self, engine: &EngineOptions) -> String {
        match self.options.form {
            Form::Vllm => self.vllm_sources(),
            Form::Sglang => self.sglang_info(engine),
        }
    }

    /// By data-parallel rank. Written out for the order of the fields.
    fn vllm_sources(&self) -> String {
        let KvEventOptions { publish, replay, topic, buffer_steps, .. } = &self.options;
        format!(
            concat!(
                r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":{endpoint},"#,
                r#""replay_endpoint":{replay},"buffer_steps":{buffer},"hwm":{queue},"max_queue_size":{queue},"topic":{topic}}}}}"#
            ),
            endpoint = json!(endpoint(*publish)),
            replay = json!(replay.map(endpoint)),
            buffer = buffer_steps,
            queue = QUEUE,
            topic = json!(topic),
        )
    }

    /// Ports are those of rank 0.
    fn sglang_info(&self, engine: &EngineOptions) -> String {
        let KvEventOptions { publish, replay, topic, .. } = &self.options;
        let block_tokens = engine.parameters.block_tokens;
        let info = json!({
            "served_model_name": engine.models.first(),
            "page_size": block_tokens,
            "dp_size": 1,
            "max_running_requests": null,
            "internal_states": [{"effective_max_running_requests_per_dp": engine.parameters.max_num_seqs}],
            "version": "0.5.23",
            "kv_events": {
                "endpoint_host": host(*publish),
                "endpoint_port_base": publish.port(),
                "topic": topic,
                "block_size": block_tokens,
                "dp_size": 1,
                "replay_endpoint_port_base": replay.map(|replay| replay.port()),
                "load_endpoint_port_base": null,
                "load_topic": null,
            },
        });
        info.to_string()
    }
}

fn endpoint(address: SocketAddr) -> String {
    format!("tcp://{}:{}", host(address), address.port())
}

/// ZeroMQ's way to write a host; `*` for all of them.
fn host(address: SocketAddr) -> String {
    match address {
        _ if address.ip().is_unspecified() => String::from("*"),
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}
