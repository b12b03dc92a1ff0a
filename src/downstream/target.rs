//! Which targets of a request are taken: a path, a whole URL of the host that is asked, or `*` of OPTIONS. Pure.
//!
//! Pingora answers others with an empty 400 that is in no log, or sends them on as they are; what an engine would make of
//! `GET mailto:x` is nothing to find out.

use http::uri::{Authority, PathAndQuery};

/// Whether `target` names something here, for a request with this `Host`.
pub(super) fn is_good(method: &[u8], target: &[u8], host: Option<&[u8]>) -> bool {
    // A fragment is for the client alone, and is not passed on.
    let target = target.split(|&byte| byte == b'#').next().unwrap_or_default();
    let Ok(target) = std::str::from_utf8(target) else { return false };
    if method == b"CONNECT" {
        return false;
    }
    match target.as_bytes().first() {
        Some(b'/') => PathAndQuery::try_from(target).is_ok(),
        Some(b'*') => target == "*" && method == b"OPTIONS",
        _ => behind_scheme(target).is_some_and(|rest| is_of_host(rest, host)),
    }
}

/// What follows `http://` or `https://`.
fn behind_scheme(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)).then_some(rest)
}

/// Whether the URL is one of the host that is asked: which of the two counts where they differ, is read in two ways.
fn is_of_host(rest: &str, host: Option<&[u8]>) -> bool {
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let is_host = host.is_none_or(|host| host == authority.as_bytes());
    let is_path = match path.as_bytes().first() {
        Some(b'/') => PathAndQuery::try_from(path).is_ok(),
        Some(_) => PathAndQuery::try_from(format!("/{path}")).is_ok(),
        None => true,
    };
    is_host && is_path && !authority.contains(['@', '\\']) && Authority::try_from(authority).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(target: &str) -> bool {
        is_good(b"GET", target.as_bytes(), Some(b"a:80"))
    }

    #[test]
    fn a_path_is_taken_as_clients_send_it() {
        for target in ["/", "/v1/models", "//x", "/../x", "/%zz", "/\u{e4}|{}[]'", "/x?q=[1]&\u{e4}", "/x#y", "/x?a#<"]
        {
            assert!(get(target), "{target}");
        }
        for target in ["/<", "/`", "/x?\"", "x", "", "#x", "?q", "*", "a:80", "mailto:a@b", "foo:bar"] {
            assert!(!get(target), "{target}");
        }
        assert!(!is_good(b"GET", b"/\xff", None), "not UTF-8");
    }

    #[test]
    fn a_url_is_taken_if_it_is_of_the_host_that_is_asked() {
        for target in ["http://a:80/x?y", "HTTPS://a:80/", "http://a:80", "http://a:80?q", "http://a:80/\u{e4}#x"] {
            assert!(get(target), "{target}");
        }
        for target in [
            "http://b/",
            "http://A:80/",
            "http://u@a:80/",
            "http:a:80/",
            "http:///x",
            "ftp://a:80/",
            "http://a:80\\x/",
            "://a:80/",
        ] {
            assert!(!get(target), "{target}");
        }
        assert!(is_good(b"GET", b"http://a/", None), "HTTP/1.0 has no Host");
        assert!(!is_good(b"GET", b"http://u@a/", None));
    }

    #[test]
    fn other_forms_go_with_their_methods() {
        assert!(is_good(b"OPTIONS", b"*", None));
        for target in [&b"a:443"[..], b"/", b"http://a/", b"*"] {
            assert!(!is_good(b"CONNECT", target, Some(b"a:443")));
        }
    }
}
