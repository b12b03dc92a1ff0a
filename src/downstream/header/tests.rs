use super::*;
use proptest::prelude::*;

fn verdict(header: &str) -> Result<Body, Fault> {
    let bytes = header.as_bytes();
    match Search::default().end(bytes)? {
        Some(end) => check(&bytes[..end]),
        None => panic!("{header:?} has no end"),
    }
}

fn with(fields: &str) -> Result<Body, Fault> {
    verdict(&format!("POST /v1/x HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
}

#[test]
fn what_follows_a_header_is_known() {
    assert_eq!(with(""), Ok(Body::Nothing));
    let Ok(Body::Sized(7, digits)) = with("content-LENGTH:\t007 \r\n") else { panic!("no length") };
    assert_eq!(&"POST /v1/x HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:\t007 \r\n"[digits], "007");
    assert_eq!(with("Transfer-Encoding: Chunked\r\n"), Ok(Body::Chunked));
    assert_eq!(with("x:\r\ny: \u{e4}\t\"(),/:;<=>?@[\\]{}\r\n"), Ok(Body::Nothing));
    assert_eq!(verdict("GET / HTTP/1.0\r\n\r\n"), Ok(Body::Nothing), "HTTP/1.0 has no Host");
    assert_eq!(verdict("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n"), Ok(Body::Nothing));
    assert_eq!(verdict("GET http://a/\u{e4}?q=[1] HTTP/1.1\r\nhost: a\r\n\r\n"), Ok(Body::Nothing));
}

#[test]
fn what_others_could_read_differently_is_refused() {
    for (fields, fault) in [
        ("content-length: 1\r\ntransfer-encoding: chunked\r\n", Fault::Framing),
        ("transfer-encoding: chunked\r\ncontent-length: 1\r\n", Fault::Framing),
        ("content-length: 1\r\ncontent-length: 2\r\n", Fault::Framing),
        ("content-length: 1\r\ncontent-length: 1\r\n", Fault::Framing),
        ("content-length: 1, 1\r\n", Fault::Framing),
        ("content-length: +5\r\n", Fault::Framing),
        ("content-length: -5\r\n", Fault::Framing),
        ("content-length: 0x5\r\n", Fault::Framing),
        ("content-length: 5 5\r\n", Fault::Framing),
        ("content-length:\r\n", Fault::Framing),
        ("content-length: 1000000000000000000\r\n", Fault::Framing),
        ("transfer-encoding: gzip, chunked\r\n", Fault::Framing),
        ("transfer-encoding: chunked, identity\r\n", Fault::Framing),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", Fault::Framing),
        ("transfer-encoding: xchunked\r\n", Fault::Framing),
        ("transfer-encoding : chunked\r\n", Fault::Field),
        ("transfer-encoding: \x0bchunked\r\n", Fault::Field),
        ("content-length : 5\r\n", Fault::Field),
        ("x: a\r\n folded\r\n", Fault::Field),
        (" x: first\r\n", Fault::Field),
        ("x: a\rb\r\n", Fault::Field),
        ("x: a\nb: c\r\n", Fault::Field),
        ("x: a\0b\r\n", Fault::Field),
        ("no colon\r\n", Fault::Field),
        (": no name\r\n", Fault::Field),
        ("n\u{e4}me: x\r\n", Fault::Field),
        ("host: b\r\n", Fault::Host),
        ("host: a\r\n", Fault::Host),
    ] {
        assert_eq!(with(fields), Err(fault), "{fields:?}");
    }
    for (line, fault) in [
        ("GET / HTTP/1.1\r\n\r\n", Fault::Host),
        ("GET / HTTP/1.1\r\nhost: me@a\r\n\r\n", Fault::Host),
        ("GET / HTTP/1.1\r\nhost: a b\r\n\r\n", Fault::Host),
        ("GET / HTTP/1.1\r\nhost: a,b\r\n\r\n", Fault::Host),
        ("GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", Fault::Host),
        ("GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", Fault::Host),
        ("CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n", Fault::Target),
        ("GET http://b/ HTTP/1.1\r\nhost: a\r\n\r\n", Fault::Target),
        ("GET a HTTP/1.1\r\nhost: a\r\n\r\n", Fault::Target),
        ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", Fault::Framing),
        ("GET / HTTP/2.0\r\n\r\n", Fault::NotHttp),
        ("GET / HTTP/1.1 \r\n\r\n", Fault::NotHttp),
        ("GET  / HTTP/1.1\r\n\r\n", Fault::NotHttp),
        ("GET /a b HTTP/1.1\r\n\r\n", Fault::NotHttp),
        ("GET /a\tb HTTP/1.1\r\n\r\n", Fault::NotHttp),
        ("GET /\r\n\r\n", Fault::NotHttp),
        ("GET / http/1.1\r\n\r\n", Fault::NotHttp),
        ("G\u{e4}T / HTTP/1.1\r\n\r\n", Fault::NotHttp),
        ("GET / HTTP/1.1\n\n", Fault::NotHttp),
    ] {
        assert_eq!(verdict(line), Err(fault), "{line:?}");
    }
}

#[test]
fn what_is_no_http_is_told_from_its_first_bytes() {
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"\0", b"GET\t/", b"{\"model\":", &[b'A'; 33]] {
        assert_eq!(Search::default().end(bytes), Err(Fault::NotHttp), "{}", bytes.escape_ascii());
    }
    assert_eq!(Search::default().end(b"POST /v1/chat"), Ok(None));
}

#[test]
fn lines_are_counted() {
    let many = |count: usize| with(&"x: y\r\n".repeat(count));
    assert_eq!(many(MAX_FIELDS - 1), Ok(Body::Nothing), "Host is one of them");
    assert_eq!(many(MAX_FIELDS), Err(Fault::ManyFields));
    assert_eq!(many(MAX_FIELDS + 100), Err(Fault::ManyFields));
    let mut search = Search::default();
    assert_eq!(search.end("GET / HTTP/1.1\r\n".repeat(1000).as_bytes()), Err(Fault::ManyFields), "without an end, too");
    let target = |length: usize| verdict(&format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(length)));
    assert_eq!(target(MAX_TARGET_BYTES - 1), Ok(Body::Nothing));
    assert_eq!(target(MAX_TARGET_BYTES), Err(Fault::LongTarget));
}

proptest! {
    #![proptest_config(crate::testing::config(400))]

    #[test]
    fn where_a_header_is_cut_makes_no_difference(
        lines in prop::collection::vec("[ -~]{0,12}", 0..6),
        broken in prop::sample::select(vec!["", "\n", "\r", "x\r\r\n", "\r\n\r\n"]),
        cuts in prop::collection::vec(1usize..9, 1..60),
    ) {
        let bytes = format!("GET / HTTP/1.1\r\n{}\r\n{broken}", lines.concat().replace('%', "\r\n")).into_bytes();
        let whole = Search::default().end(&bytes);
        let (mut search, mut have, mut pieces) = (Search::default(), 0, Ok(None));
        for cut in cuts.iter().cycle() {
            have = (have + cut).min(bytes.len());
            pieces = search.end(&bytes[..have]);
            if have == bytes.len() || pieces != Ok(None) {
                break;
            }
        }
        prop_assert_eq!(whole, pieces);
    }

    #[test]
    fn no_bytes_end_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Some(end)) = Search::default().end(&bytes) {
            let _ = check(&bytes[..end]);
        }
        let _ = check(&bytes);
    }
}

#[test]
fn tokens_are_those_of_the_standard() {
    // RFC 9110, section 5.6.2.
    for byte in 0..=u8::MAX {
        let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        assert_eq!(are_tokens(&[b'a', byte, b'b']), is_token, "{byte:#x}");
        let is_text = byte == b'\t' || (b' '..=b'~').contains(&byte) || byte >= 0x80;
        assert_eq!(are_text(&[b'a', byte, b'b']), is_text, "{byte:#x}");
    }
}
