//! The header of a request as a backend gets it: without what concerns the client's connection alone, framed anew, and with
//! what the backend has to know.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderValue, Version};
use pingora_core::protocols::http::authority::raw_target_authority;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::RequestHeader;
use smallvec::SmallVec;

use super::context::RequestContext;
use super::response::nominated;
use crate::auth::CREDENTIALS;
use crate::pool::Credentials;

/// Which of its ranks an engine is to serve a request with; vLLM and SGLang know it.
const X_DATA_PARALLEL_RANK: &str = "x-data-parallel-rank";

/// What a client cannot have removed by naming it in `Connection`: a backend may go by it.
static PROTECTED: [HeaderName; 4] = [
    HOST,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
];

/// More names in `Connection` are for no good.
const MAX_NOMINATED: usize = 10;

/// The header that is sent for the one that came.
///
/// # Errors
/// [`ErrorType::InvalidHTTPHeader`], downstream: what the client says of its connection or of the host is not to be passed on.
pub(super) fn header(came: &RequestHeader, ctx: &RequestContext) -> Result<RequestHeader> {
    let mut request = came.clone();
    request.set_version(Version::HTTP_11);
    strip(&mut request)?;
    name_host(&mut request)?;
    if came.version == Version::HTTP_2 {
        join_cookies(&mut request)?;
    }
    frame(&mut request, ctx)?;
    Ok(request)
}

fn strip(request: &mut RequestHeader) -> Result<()> {
    if request.headers.contains_key(CONNECTION) {
        let names = nominated(&request.headers).take(MAX_NOMINATED);
        let names: Option<SmallVec<[HeaderName; MAX_NOMINATED]>> =
            names.map(|name| HeaderName::from_bytes(name).ok()).collect();
        let names =
            names.filter(|names| names.len() < MAX_NOMINATED && !names.iter().any(|name| PROTECTED.contains(name)));
        let Some(names) = names else { return Err(invalid("what Connection names")) };
        names.iter().for_each(|name| drop(request.remove_header(name)));
    }
    remove(request, is_hop_by_hop);
    Ok(())
}

/// What concerns one connection alone (RFC 9110, section 7.6.1), besides what `Connection` names; and what was seen to.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "expect"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes the fields with such names.
fn remove(request: &mut RequestHeader, is_removed: impl Fn(&HeaderName) -> bool) {
    let names: SmallVec<[HeaderName; 2]> = request.headers.keys().filter(|name| is_removed(name)).cloned().collect();
    names.iter().for_each(|name| drop(request.remove_header(name)));
}

/// Names the host in the field, where the request has it elsewhere; and has the target be a path: a whole URL is for proxies,
/// and some engines take all of it for a path.
fn name_host(request: &mut RequestHeader) -> Result<()> {
    if let Some(authority) = request.uri.authority() {
        if authority.as_str().contains('@') {
            return Err(invalid("a user in its host"));
        }
        let mut hosts = request.headers.get_all(HOST).iter();
        let is_same = hosts.next().is_some_and(|host| host.as_bytes() == authority.as_str().as_bytes());
        if !is_same || hosts.next().is_some() {
            let host = HeaderValue::from_str(authority.as_str()).map_err(|_| invalid("its host"))?;
            request.insert_header(HOST, host)?;
        }
    } else if !request.headers.contains_key(HOST) {
        // HTTP/1.0 can do without; what it was that the target names is then all that is known.
        let named = raw_target_authority(request.raw_path()).authority().unwrap_or_default();
        let host = HeaderValue::from_bytes(named).map_err(|_| invalid("its host"))?;
        request.insert_header(HOST, host)?;
    }
    if !matches!(request.raw_path(), [b'/', ..] | b"*") {
        let path = request.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
        request.set_raw_path(path.as_bytes())?;
    }
    Ok(())
}

/// Over HTTP/2 a cookie may come in pieces, which no reader of HTTP/1 puts together (RFC 9113, section 8.2.3).
fn join_cookies(request: &mut RequestHeader) -> Result<()> {
    let pieces: Vec<&[u8]> = request.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if pieces.len() < 2 {
        return Ok(());
    }
    let whole = HeaderValue::from_bytes(&pieces.join(&b"; "[..])).map_err(|_| invalid("its cookies"))?;
    drop(pieces);
    request.insert_header(COOKIE, whole)
}

/// Frames the request: a body that is held is sent with its length, whatever framing it came in.
fn frame(request: &mut RequestHeader, ctx: &RequestContext) -> Result<()> {
    if let Some(body) = &ctx.body {
        state_length(request, body.len())?;
    }
    if let Some(rank) = ctx.rank() {
        request.insert_header(X_DATA_PARALLEL_RANK, rank)?;
    }
    if let Some(route) = &ctx.route {
        show_credentials(request, &route.pool().credentials)?;
    }
    request.insert_header("x-request-id", &ctx.request_id)
}

/// Shows the backend the credentials that the pool says, and none of the caller's unless it says so.
fn show_credentials(request: &mut RequestHeader, credentials: &Credentials) -> Result<()> {
    let Credentials::Own(own) = credentials else { return Ok(()) };
    remove(request, |name| CREDENTIALS.contains(name));
    own.as_ref().map_or(Ok(()), |own| request.insert_header(AUTHORIZATION, own.clone()))
}

/// Has the header say this length, in the field that says another, if there is one: over HTTP/1 that of a stand-in.
fn state_length(request: &mut RequestHeader, length: usize) -> Result<()> {
    let stated = request.headers.get(CONTENT_LENGTH).and_then(|stated| stated.to_str().ok());
    if stated.is_some_and(|stated| !stated.starts_with(['0', '+']) && stated.parse() == Ok(length)) {
        return Ok(());
    }
    let is_length = |name: &[u8]| name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str().as_bytes());
    let name = request.case_header_iter().find_map(|(name, _)| is_length(name.as_slice()).then(|| name.clone()));
    match name {
        Some(name) => request.insert_header(name, length),
        None => request.insert_header(CONTENT_LENGTH, length),
    }
}

fn invalid(what: &'static str) -> Box<Error> {
    Error::explain(ErrorType::InvalidHTTPHeader, what).into_down()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config;
    use crate::state::State;

    /// What a request with this target and these fields becomes: its target, and its fields but our own.
    fn forwarded(version: Version, target: &str, fields: &[(&'static str, &str)]) -> Result<(String, Vec<String>)> {
        let text =
            "listeners: [{address: '127.0.0.1:0'}]\nlogging: {access_log: 'off'}\npools: [{name: p, backends: []}]\n";
        let state = Arc::new(State::new(config::parse(text, "test").unwrap()).unwrap());
        let mut came = RequestHeader::build("POST", target.as_bytes(), None).unwrap();
        came.set_version(version);
        for (name, value) in fields {
            came.append_header(*name, *value).unwrap();
        }
        let header = header(&came, &RequestContext::new(&state))?;
        assert_eq!(header.version, Version::HTTP_11);
        let lines = header.headers.iter().filter(|(name, _)| *name != "x-request-id");
        let lines = lines.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Ok((String::from_utf8(header.raw_path().to_vec()).unwrap(), lines.collect()))
    }

    fn fields(fields: &[(&'static str, &str)]) -> Option<Vec<String>> {
        forwarded(Version::HTTP_11, "/x", fields).ok().map(|(_, fields)| fields)
    }

    #[test]
    fn what_concerns_the_clients_connection_alone_stays_here() {
        let came = [
            ("host", "a"),
            ("connection", "close, X-Own , ,"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "x"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("accept", "b"),
        ];
        assert_eq!(fields(&came).unwrap(), ["host: a", "accept: b"]);
    }

    #[test]
    fn the_pieces_of_a_cookie_become_one() {
        let came = [("host", "a"), ("cookie", "a=1"), ("cookie", "b=2; c=3")];
        let (_, fields) = forwarded(Version::HTTP_2, "/x", &came).unwrap();
        assert_eq!(fields, ["host: a", "cookie: a=1; b=2; c=3"]);
        let (_, fields) = forwarded(Version::HTTP_11, "/x", &came).unwrap();
        assert_eq!(fields, ["host: a", "cookie: a=1", "cookie: b=2; c=3"], "as they came");
    }

    #[test]
    fn what_a_backend_may_go_by_cannot_be_taken_out() {
        for names in ["host", "close, X-Forwarded-For", "x-forwarded-proto", ":authority", "a b", "a,b,c,d,e,f,g,h,i,j"]
        {
            assert_eq!(fields(&[("host", "a"), ("connection", names)]), None, "{names}");
        }
        let nine = [("host", "a"), ("connection", "a,b,c,d,e,f,g,h,i")];
        assert_eq!(fields(&nine).unwrap(), ["host: a"]);
    }

    #[test]
    fn the_host_is_named_in_its_field() {
        for (version, target, host, expected) in [
            (Version::HTTP_11, "/x?y", Some("a:1"), ("/x?y", "host: a:1")),
            (Version::HTTP_11, "http://a:1/x?y", Some("a:1"), ("/x?y", "host: a:1")),
            (Version::HTTP_10, "http://a:1/x", None, ("/x", "host: a:1")),
            (Version::HTTP_10, "http://a:1", None, ("/", "host: a:1")),
            (Version::HTTP_10, "/x", None, ("/x", "host: ")),
        ] {
            let came: Vec<_> = host.map(|host| ("host", host)).into_iter().collect();
            let (path, fields) = forwarded(version, target, &came).unwrap();
            assert_eq!((path.as_str(), fields[0].as_str()), expected, "{target}");
        }
    }

    #[test]
    fn over_http2_the_authority_is_the_host() {
        let mut came = RequestHeader::build("POST", b"/x", None).unwrap();
        came.set_uri("https://a:1/x".parse().unwrap());
        came.append_header("host", "b").unwrap();
        name_host(&mut came).unwrap();
        assert_eq!((came.headers.get(HOST).unwrap(), came.raw_path()), (&HeaderValue::from_static("a:1"), &b"/x"[..]));
        came.set_uri("https://user@a:1/x".parse().unwrap());
        assert!(name_host(&mut came).is_err());
    }

    #[test]
    fn no_credential_of_the_caller_stays_unless_the_pool_says_so() {
        let request = || {
            let mut request = RequestHeader::build("POST", b"/", None).unwrap();
            for name in &CREDENTIALS {
                request.append_header(name.clone(), "theirs").unwrap();
                request.append_header(name.clone(), "again").unwrap();
            }
            request.insert_header("x-other", "kept").unwrap();
            request
        };
        let shown = |credentials: &Credentials| {
            let mut request = request();
            show_credentials(&mut request, credentials).unwrap();
            let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
            request.headers.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect::<Vec<_>>()
        };
        assert_eq!(shown(&Credentials::Own(None)), ["x-other: kept"]);
        let own = Credentials::Own(Some("Bearer ours".parse().unwrap()));
        let mut with_own = shown(&own);
        with_own.sort();
        assert_eq!(with_own, ["authorization: Bearer ours", "x-other: kept"]);
        assert_eq!(shown(&Credentials::Callers).len(), 2 * CREDENTIALS.len() + 1);
    }
}
