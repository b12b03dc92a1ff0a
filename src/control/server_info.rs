//! What an SGLang engine says of itself at `/server_info`: how many requests it runs at once. vLLM tells that nobody but in its
//! development mode.

use std::num::NonZeroU32;

use serde::Deserialize;

/// Where it tells since 0.5.
pub(super) const PATH: &str = "/server_info";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServerInfo {
    /// One for each data-parallel rank.
    internal_states: Vec<InternalState>,
    /// What it was told to run at most, over all ranks. What it does run at most can be less.
    max_running_requests: Option<u64>,
    dp_size: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InternalState {
    effective_max_running_requests_per_dp: Option<u64>,
}

/// The most requests that the engine runs at once, or that one `rank` of it does; none if it does not say so.
pub(super) fn max_running(body: &[u8], rank: Option<u32>) -> Option<NonZeroU32> {
    let info: ServerInfo = serde_json::from_slice(body).ok()?;
    let ranks = || info.internal_states.iter().filter_map(|state| state.effective_max_running_requests_per_dp);
    let told = match rank {
        // All ranks are configured alike.
        Some(_) => ranks().next().or_else(|| info.max_running_requests?.checked_div(info.dp_size?)),
        None => Some(ranks().fold(0, u64::saturating_add)).filter(|&sum| sum > 0).or(info.max_running_requests),
    };
    NonZeroU32::new(u32::try_from(told?).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(body: &str, rank: Option<u32>) -> Option<u32> {
        max_running(body.as_bytes(), rank).map(NonZeroU32::get)
    }

    #[test]
    fn ranks_are_added_up_and_are_what_counts() {
        let two = r#"{"max_running_requests":100,"dp_size":2,"tp_size":4,"internal_states":[
            {"effective_max_running_requests_per_dp":48,"last_gen_throughput":1.5},{"effective_max_running_requests_per_dp":48}]}"#;
        assert_eq!((told(two, None), told(two, Some(1))), (Some(96), Some(48)));
        let configured = r#"{"max_running_requests":100,"dp_size":2,"internal_states":[{}]}"#;
        assert_eq!((told(configured, None), told(configured, Some(0))), (Some(100), Some(50)));
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        for body in
            ["", "{}", "[]", r#"{"max_running_requests":null,"internal_states":[]}"#, r#"{"internal_states":7}"#]
        {
            assert_eq!((told(body, None), told(body, Some(0))), (None, None), "{body}");
        }
        let zero =
            r#"{"dp_size":0,"max_running_requests":0,"internal_states":[{"effective_max_running_requests_per_dp":0}]}"#;
        assert_eq!((told(zero, None), told(zero, Some(0))), (None, None));
        let much = format!(r#"{{"max_running_requests":{}}}"#, u64::MAX);
        assert_eq!(told(&much, None), Some(u32::MAX));
    }
}
