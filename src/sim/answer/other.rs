//! Answers that no text is generated for.

use super::{Usage, quote};

/// Dimensions of an embedding: few, they carry nothing.
const DIMENSIONS: usize = 8;

/// `/v1/embeddings`: vectors that `seed` determines.
pub(in crate::sim) fn embeddings(
    id: &str,
    created: u64,
    model: &str,
    seed: u64,
    inputs: usize,
    usage: Usage,
) -> String {
    let mut rng = fastrand::Rng::with_seed(seed);
    let vectors: Vec<String> = (0..inputs)
        .map(|index| {
            let vector: Vec<String> = (0..DIMENSIONS).map(|_| format!("{:.17}", rng.f64() - 0.5)).collect();
            format!(r#"{{"index":{index},"object":"embedding","embedding":[{}]}}"#, vector.join(","))
        })
        .collect();
    format!(
        r#"{{"id":"embd-{id}","object":"list","created":{created},"model":{model},"data":[{}],"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens},"completion_tokens":0,"prompt_tokens_details":null,"completion_tokens_details":null}}}}"#,
        vectors.join(","),
        tokens = usage.prompt_tokens
    )
}

/// `/tokenize`.
pub(in crate::sim) fn tokenize(tokens: &[u32], max_model_len: u64) -> String {
    let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
    format!(
        r#"{{"count":{},"max_model_len":{max_model_len},"tokens":[{}],"token_strs":null}}"#,
        tokens.len(),
        ids.join(",")
    )
}

/// `/v1/messages/count_tokens`.
pub(in crate::sim) fn count_tokens(tokens: u64) -> String {
    format!(r#"{{"input_tokens":{tokens},"context_management":{{"original_input_tokens":{tokens}}}}}"#)
}

/// `/v1/models`.
pub(in crate::sim) fn models(names: &[String], created: u64, max_model_len: u64) -> String {
    let entries: Vec<String> = names
        .iter()
        .map(|name| {
            let id = quote(name);
            format!(
                concat!(
                    r#"{{"id":{id},"object":"model","created":{created},"owned_by":"vllm","root":{id},"parent":null,"#,
                    r#""max_model_len":{length},"permission":[{{"id":"modelperm-simulated","object":"model_permission","#,
                    r#""created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"#,
                    r#""allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","#,
                    r#""group":null,"is_blocking":false}}]}}"#
                ),
                id = id,
                created = created,
                length = max_model_len
            )
        })
        .collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(","))
}
