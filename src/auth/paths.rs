//! Which paths a caller may call. Pure.
//!
//! A limit of tokens holds where tokens are counted only, and engines generate at paths that are not known here as well.
//! So a caller who has one may call what is counted, and what costs no tokens under `/v1/`, unless its `paths` say
//! otherwise.

use http::Method;

use crate::config::{Key, KeyLimits};
use crate::request::{Endpoint, is_plain};

/// Whether the caller of `key` may call `path`, decoded, with `method`.
pub(super) fn are_allowed(key: &Key, method: &Method, path: &str) -> bool {
    match &key.paths {
        Some(allowed) => is_plain(path) && allowed.iter().any(|allowed| covers(allowed, path)),
        None => !has_token_limit(&key.limits) || is_counted(method, path) || is_free(method, path),
    }
}

fn has_token_limit(limits: &KeyLimits) -> bool {
    limits.tokens_per_minute.is_some() || limits.uncached_tokens_per_minute.is_some()
}

/// Whether `path` is `allowed`, or under it where that ends with `/*`.
fn covers(allowed: &str, path: &str) -> bool {
    match allowed.strip_suffix('*') {
        Some(above) => path.starts_with(above),
        None => path == allowed,
    }
}

fn is_counted(method: &Method, path: &str) -> bool {
    Endpoint::takes(method) && Endpoint::of(path).is_some()
}

/// Whether it reads or deletes what OpenAI's interface holds, or ends a response.
fn is_free(method: &Method, path: &str) -> bool {
    let is_under = |above| path.starts_with(above) && is_plain(path);
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE => is_under("/v1/"),
        Method::POST => is_under("/v1/responses/") && path.ends_with("/cancel"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::auth::Caller;
    use crate::auth::callers::tests::caller;

    fn with(limits: KeyLimits, paths: Option<&[&str]>) -> std::sync::Arc<Caller> {
        caller(|key| Key { limits, paths: paths.map(|paths| paths.iter().map(|&path| path.into()).collect()), ..key })
    }

    fn may(caller: &Caller, method: Method, path: &str) -> bool {
        are_allowed(&caller.key, &method, path)
    }

    #[test]
    fn a_caller_without_limits_of_tokens_may_call_anything() {
        let limits = KeyLimits { requests_per_minute: NonZeroU32::new(1), ..KeyLimits::default() };
        for path in ["/flush_cache", "/", "//x/../%"] {
            assert!(may(&with(limits, None), Method::POST, path), "{path}");
        }
    }

    #[test]
    fn a_limit_of_tokens_leaves_what_is_counted_and_what_costs_none() {
        let (tokens, uncached) = (NonZeroU32::new(1), NonZeroU32::new(1));
        for limits in [
            KeyLimits { tokens_per_minute: tokens, ..KeyLimits::default() },
            KeyLimits { uncached_tokens_per_minute: uncached, ..KeyLimits::default() },
        ] {
            let limited = with(limits, None);
            for (method, path) in [
                (Method::POST, "/v1/chat/completions"),
                (Method::PUT, "/generate"),
                (Method::POST, "/tokenize"),
                (Method::GET, "/v1/models"),
                (Method::GET, "/v1/models/Qwen/Qwen3-0.6B"),
                (Method::DELETE, "/v1/responses/resp_1"),
                (Method::POST, "/v1/responses/resp_1/cancel"),
            ] {
                assert!(may(&limited, method, path), "{path}");
            }
            for (method, path) in [
                (Method::POST, "/flush_cache"),
                (Method::GET, "/flush_cache"),
                (Method::POST, "/invocations"),
                (Method::POST, "/v1/audio/transcriptions"),
                (Method::POST, "/v1/chat/completions/"),
                (Method::POST, "/v1/%2563hat/completions"),
                (Method::GET, "/v1/../flush_cache"),
                (Method::GET, "/generate"),
                (Method::PATCH, "/v1/chat/completions"),
                (Method::POST, "/v1/responses/../chat/cancel"),
                (Method::GET, "/"),
            ] {
                assert!(!may(&limited, method, path), "{path}");
            }
        }
    }

    #[test]
    fn a_list_of_paths_allows_these_and_no_others() {
        let limits = KeyLimits { tokens_per_minute: NonZeroU32::new(1), ..KeyLimits::default() };
        for limits in [limits, KeyLimits::default()] {
            let listed = with(limits, Some(&["/v1/models", "/v1/audio/*"]));
            for path in ["/v1/models", "/v1/audio/transcriptions", "/v1/audio/a/b"] {
                assert!(may(&listed, Method::POST, path), "{path}");
            }
            for path in
                ["/v1/chat/completions", "/v1/models/x", "/v1/audio", "/v1/audio/", "/v1/audio/../x", "/v1/audio/%63"]
            {
                assert!(!may(&listed, Method::POST, path), "{path}");
            }
            assert!(may(&with(limits, Some(&["/*"])), Method::POST, "/flush_cache"));
        }
    }
}
