//! Who may use the operators' listener: whoever sends its token, if it has one.

use http::header::{HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};

use super::{Reply, failed};
use crate::auth::presented;
use crate::config::{Admin, AdminPage, Choice, KeyDigest};

/// Whether a request for `path` with these headers is answered. The token is compared by its digest, in constant time:
/// neither its length nor where a guess goes wrong shows.
pub(super) fn is_allowed(admin: &Admin, path: &str, headers: &HeaderMap) -> bool {
    let Some(token) = &admin.token else { return true };
    let is_open = AdminPage::NAMES.iter().any(|(name, page)| *name == path && admin.open_pages.contains(page));
    let is_shown = || {
        let shown = presented(headers).unwrap_or_default();
        KeyDigest::of(token.reveal().as_bytes()).matches(&KeyDigest::of(shown))
    };
    is_open || is_shown()
}

/// The reply to whoever may not.
pub(super) fn refused() -> Reply {
    let why = "this takes the token of admin.token_file, as `Authorization: Bearer TOKEN`";
    let mut reply = failed(StatusCode::UNAUTHORIZED, why);
    reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"warmgate admin\""));
    reply
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use http::header::AUTHORIZATION;

    use super::*;
    use crate::config::Secret;

    fn admin(token: Option<&str>, open_pages: Vec<AdminPage>) -> Admin {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Admin { address, token: token.map(Secret::new), open_pages }
    }

    fn with(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, authorization.parse().unwrap());
        headers
    }

    #[test]
    fn without_a_token_all_is_open() {
        assert!(is_allowed(&admin(None, Vec::new()), "/reload", &HeaderMap::new()));
    }

    #[test]
    fn with_a_token_only_the_open_pages_go_without() {
        let admin = admin(Some("s3cret"), vec![AdminPage::Healthz, AdminPage::Metrics]);
        let allowed = |path: &str, headers: &HeaderMap| is_allowed(&admin, path, headers);
        for (path, is_open) in [
            ("/healthz", true),
            ("/metrics", true),
            ("/readyz", false),
            ("/", false),
            ("/reload", false),
            ("/x", false),
        ] {
            assert_eq!(allowed(path, &HeaderMap::new()), is_open, "{path} without a token");
            assert!(allowed(path, &with("Bearer s3cret")), "{path} with it");
        }
        for wrong in ["Bearer s3cre", "Bearer s3cretx", "Bearer", "s3cret", "Basic s3cret", "Bearer "] {
            assert!(!allowed("/reload", &with(wrong)), "{wrong}");
        }
    }
}
