//! The headers in which callers send their credentials.

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName};

/// Where Anthropic's clients put the key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What proves who a caller is, and is for this program alone: none of it goes to a backend unless the pool says so.
/// `api-key` is Azure's spelling, and cookies are the caller's at whatever site this is a part of.
pub const CREDENTIALS: [HeaderName; 5] = [
    AUTHORIZATION,
    X_API_KEY,
    HeaderName::from_static("api-key"),
    COOKIE,
    HeaderName::from_static("proxy-authorization"),
];

const BEARER: &[u8] = b"bearer ";

/// The key that a request presents: that of `Authorization: Bearer`, else that of `x-api-key`. Of a repeated header the
/// first counts.
pub fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    bearer.or_else(|| headers.get(X_API_KEY).map(|value| value.as_bytes().trim_ascii())).filter(|key| !key.is_empty())
}

/// The token; the scheme's case means nothing (RFC 9110, section 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_in(fields: &[(&'static str, &'static str)]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        presented(&headers).map(|key| String::from_utf8_lossy(key).into_owned())
    }

    #[test]
    fn a_key_comes_as_a_bearer_token_or_as_anthropics_clients_send_it() {
        for (fields, expected) in [
            (&[("authorization", "Bearer k")][..], Some("k")),
            (&[("authorization", "bearer  k ")], Some("k")),
            (&[("x-api-key", "k")], Some("k")),
            (&[("authorization", "Bearer a"), ("x-api-key", "b")], Some("a")),
            (&[("authorization", "Basic a"), ("x-api-key", "b")], Some("b")),
            (&[("authorization", "Bearer a"), ("authorization", "Bearer b")], Some("a")),
            (&[("authorization", "Bearer ")], None),
            (&[("authorization", "k")], None),
            (&[("x-api-key", "")], None),
            (&[], None),
        ] {
            assert_eq!(key_in(fields).as_deref(), expected, "{fields:?}");
        }
    }
}
