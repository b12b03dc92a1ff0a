//! A listener's certificates, versions and clients.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;
mod common_tls;

use std::path::PathBuf;

use common_control::client::Connection;
use common_control::engine::{Answer, Engine};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, streamed, within};
use common_tls::{Authority, Dial, NEW, OLD, Stream, connect};
use rustls::{HandshakeKind, SignatureScheme};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A proxy with one TLS listener, `tls` being its section, and the access log in a file.
async fn start(engine: &Engine, scratch: Scratch, tls: &str) -> Proxy {
    let log = scratch.path().join("access.log");
    let settings = Settings {
        listeners: format!("[{{address: '127.0.0.1:0', tls: {{{tls}}}}}]"),
        logging: format!("{{access_log: {}}}", log.display()),
        ..Settings::new([engine])
    };
    let file = scratch.file("warmgate.yaml", settings.to_string());
    let proxy = Proxy::start_with(scratch, file).await;
    proxy.until_state(engine.name(), "healthy").await;
    proxy
}

async fn handshakes(proxy: &Proxy, outcome: &str) -> f64 {
    proxy.metric(&format!("warmgate_tls_handshakes_total{{outcome=\"{outcome}\"}}")).await.unwrap()
}

/// Waits until so many handshakes ended so: they are counted after the client knows.
async fn until_counted(proxy: &Proxy, outcome: &str, times: u8) {
    let wanted = f64::from(times);
    eventually(&format!("{times} {outcome}"), async || handshakes(proxy, outcome).await == wanted).await;
}

/// Whether a request over the connection is answered: TLS 1.3 tells a client that it is refused after the handshake.
async fn is_served(stream: std::io::Result<Stream>) -> bool {
    let Ok(stream) = stream else { return false };
    Connection::over(stream).chat(&chat("hello")).await.is_ok_and(|reply| reply.status == 200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_decides_which_certificate_is_shown() {
    let (engine, scratch, authority) = (Engine::up("sni"), Scratch::new(), Authority::new("sni"));
    let hosts: [&[&str]; 3] =
        [&["localhost", "127.0.0.1"], &["*.host.example"], &["a.host.example", "A2.host.example"]];
    let issued = hosts.map(|hosts| authority.issue(hosts));
    let files = |at: usize| issued[at].files(&scratch, &format!("c{at}"));
    let tls = format!("{}, certificates: [{{{}}}, {{{}}}]", files(0), files(1), files(2));
    let proxy = start(&engine, scratch, &tls).await;
    for (host, right) in [
        ("localhost", 0),
        // No name is sent for an address.
        ("127.0.0.1", 0),
        ("b.host.example", 1),
        ("a.host.example", 2),
        ("a2.host.example", 2),
    ] {
        let shown = Dial { host, ..Dial::to(&authority) }.shown(proxy.address()).await;
        assert!(shown == issued[right].der, "{host} gets the wrong certificate");
    }
    let unknown = Dial { host: "elsewhere", ..Dial::to(&authority) };
    assert!(unknown.connect(proxy.address()).await.is_err(), "it gets the first, which is not for it");
    until_counted(&proxy, "refused_by_client", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_gets_a_certificate_whose_key_it_can_check() {
    let (engine, scratch, authority) = (Engine::up("kinds"), Scratch::new(), Authority::new("kinds"));
    let (new, old) = (authority.issue_ed25519(&["localhost"]), authority.issue(&["localhost"]));
    let tls = format!("{}, certificates: [{{{}}}]", new.files(&scratch, "new"), old.files(&scratch, "old"));
    let proxy = start(&engine, scratch, &tls).await;
    let knows_all = Dial::to(&authority);
    assert!(knows_all.shown(proxy.address()).await == new.der);
    let mut knows_less = Dial::to(&authority);
    let known = &mut knows_less.provider.signature_verification_algorithms;
    let ed25519 = known.mapping.iter().position(|(scheme, _)| *scheme == SignatureScheme::ED25519).unwrap();
    known.mapping = &known.mapping[..ed25519];
    assert!(knows_less.shown(proxy.address()).await == old.der);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_below_the_least_are_refused() {
    let (engine, authority) = (Engine::up("versions"), Authority::new("versions"));
    for (least, old_is_good) in [("", true), (", min_version: 1.2", true), (", min_version: '1.3'", false)] {
        let scratch = Scratch::new();
        let tls = authority.issue(&["localhost"]).files(&scratch, "c") + least;
        let proxy = start(&engine, scratch, &tls).await;
        let old = Dial { versions: &OLD, ..Dial::to(&authority) };
        assert_eq!(is_served(old.connect(proxy.address()).await).await, old_is_good, "TLS 1.2 with {least:?}");
        let new = Dial { versions: &NEW, ..Dial::to(&authority) };
        assert!(is_served(new.connect(proxy.address()).await).await, "TLS 1.3 with {least:?}");
        until_counted(&proxy, "incompatible", u8::from(!old_is_good)).await;
    }
}

/// The lines of the access log.
async fn logged(proxy: &Proxy, lines: usize) -> Vec<Value> {
    let file: PathBuf = proxy.scratch().path().join("access.log");
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    eventually("the log has the lines", async || read().lines().count() >= lines).await;
    read().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_a_good_certificate_are_turned_away_where_one_is_required() {
    let (engine, scratch, authority) = (Engine::up("mtls"), Scratch::new(), Authority::new("mtls"));
    let (clients, others) = (Authority::new("clients"), Authority::new("others"));
    let ca = scratch.file("clients.pem", clients.pem());
    let tls = authority.issue(&["localhost"]).files(&scratch, "c");
    let tls = format!("{tls}, client_ca: {}, client_certificates: required", ca.display());
    let proxy = start(&engine, scratch, &tls).await;
    let dial = Dial::to(&authority);
    assert!(!is_served(dial.connect(proxy.address()).await).await, "it shows none");
    for (bad, why) in [
        (others.issue_client("spiffe://example/other"), "of another authority"),
        (clients.issue_expired(&["client.example"]), "expired"),
    ] {
        let bad = Dial { certificate: Some(&bad), ..dial.clone() };
        assert!(!is_served(bad.connect(proxy.address()).await).await, "{why}");
    }
    until_counted(&proxy, "no_client_certificate", 1).await;
    until_counted(&proxy, "bad_client_certificate", 2).await;
    let good = clients.issue_client("spiffe://example/good");
    let good = Dial { certificate: Some(&good), ..dial };
    assert!(is_served(good.connect(proxy.address()).await).await);
    let lines = logged(&proxy, 1).await;
    assert_eq!(lines.len(), 1, "what was turned away is no request");
    assert_eq!(lines[0]["client_certificate"], "spiffe://example/good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_optional_certificate_names_the_client_over_http_2_as_well() {
    let (engine, scratch, authority) = (Engine::up("optional"), Scratch::new(), Authority::new("optional"));
    let (clients, others) = (Authority::new("clients"), Authority::new("others"));
    let ca = scratch.file("clients.pem", clients.pem());
    let tls = authority.issue(&["localhost"]).files(&scratch, "c");
    let tls = format!("{tls}, client_ca: {}, client_certificates: optional", ca.display());
    let proxy = start(&engine, scratch, &tls).await;
    let dial = Dial::to(&authority);
    assert!(is_served(dial.connect(proxy.address()).await).await, "it shows none");
    let other = others.issue_client("spiffe://example/other");
    let other = Dial { certificate: Some(&other), ..dial.clone() };
    assert!(!is_served(other.connect(proxy.address()).await).await, "a bad one is worse than none");
    let good = clients.issue(&["client.example"]);
    let good = Dial { certificate: Some(&good), offered: &["h2"], ..dial };
    let stream = good.connect(proxy.address()).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::post("https://localhost/v1/chat/completions").body(()).unwrap();
    let (reply, mut body) = client.send_request(request, false).unwrap();
    body.send_data(chat("hello").to_string().into(), true).unwrap();
    assert_eq!(reply.await.unwrap().status(), 200);
    drop((client, body));
    driver.abort();
    let lines = logged(&proxy, 2).await;
    assert!(lines[0].get("client_certificate").is_none());
    assert_eq!(lines[1]["client_certificate"], "client.example");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_goes_on_with_its_client_behind_a_stream_that_broke_off() {
    let (engine, authority, clients) = (Engine::up("broken"), Authority::new("broken"), Authority::new("clients"));
    for versions in [&NEW, &OLD] {
        let scratch = Scratch::new();
        let ca = scratch.file("clients.pem", clients.pem());
        let tls = authority.issue(&["localhost"]).files(&scratch, "c");
        let tls = format!("{tls}, client_ca: {}, client_certificates: required", ca.display());
        let proxy = start(&engine, scratch, &tls).await;
        let certificate = clients.issue_client("spiffe://example/good");
        let dial = Dial { versions, certificate: Some(&certificate), ..Dial::to(&authority) };
        let mut connection = Connection::over(dial.connect(proxy.address()).await.unwrap());
        for _ in 0..3 {
            engine.set_answer(Answer::Gated);
            engine.emit(1);
            connection.send("POST", "/v1/chat/completions", "", &streamed("hello").to_string()).await.unwrap();
            let head = within("a header", connection.head()).await.unwrap();
            assert_eq!(head.header("connection"), Some("keep-alive"));
            within("a token", connection.chunk()).await.unwrap();
            engine.stop().await;
            engine.start();
            let rest = connection.rest().await.unwrap();
            assert!(rest.contains("upstream_broke_off"), "{rest}");
            engine.set_answer(Answer::Whole);
            assert_eq!(connection.chat(&chat("hello")).await.unwrap().status, 200, "{versions:?}");
        }
        let lines = logged(&proxy, 6).await;
        assert!(lines.iter().all(|line| line["client_certificate"] == "spiffe://example/good"), "{lines:?}");
        assert_eq!(handshakes(&proxy, "full").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_resumed_but_not_where_clients_prove_themselves() {
    let (engine, authority) = (Engine::up("resumed"), Authority::new("resumed"));
    for (asks_clients, versions) in [(false, &NEW), (false, &OLD), (true, &NEW), (true, &OLD)] {
        let scratch = Scratch::new();
        let mut tls = authority.issue(&["localhost"]).files(&scratch, "c");
        if asks_clients {
            let ca = scratch.file("ca.pem", authority.pem());
            tls += &format!(", client_ca: {}, client_certificates: required", ca.display());
        }
        let proxy = start(&engine, scratch, &tls).await;
        let client = authority.issue_client("spiffe://example/client");
        let config = Dial { versions, certificate: Some(&client), ..Dial::to(&authority) }.config();
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let stream = connect(config.clone(), "localhost", proxy.address()).await.unwrap();
            kinds.push(stream.get_ref().1.handshake_kind().unwrap());
            // The ticket comes before the reply.
            assert!(is_served(Ok(stream)).await);
        }
        let second = if asks_clients { HandshakeKind::Full } else { HandshakeKind::Resumed };
        assert_eq!(kinds, [HandshakeKind::Full, second], "clients are asked: {asks_clients}, {versions:?}");
        assert_eq!(handshakes(&proxy, "resumed").await, f64::from(u8::from(!asks_clients)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_tls_is_counted_and_harms_nobody() {
    let (engine, scratch, authority) = (Engine::up("not-tls"), Scratch::new(), Authority::new("not-tls"));
    let tls = authority.issue(&["localhost"]).files(&scratch, "c");
    let proxy = start(&engine, scratch, &tls).await;
    let mut plain = TcpStream::connect(proxy.address()).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    // A TLS alert, or a reset.
    let _ = plain.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP"));
    until_counted(&proxy, "not_tls", 1).await;
    drop(TcpStream::connect(proxy.address()).await.unwrap());
    until_counted(&proxy, "closed", 1).await;
    assert!(is_served(Dial::to(&authority).connect(proxy.address()).await).await);
    assert_eq!(handshakes(&proxy, "full").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_header_behind_tls_has_no_more_time_than_any_other() {
    let (engine, scratch, authority) = (Engine::up("slow"), Scratch::new(), Authority::new("slow"));
    let tls = authority.issue(&["localhost"]).files(&scratch, "a");
    let listener = format!("[{{address: '127.0.0.1:0', tls: {{{tls}}}}}]");
    let settings = Settings { listeners: listener, ..Settings::new([&engine]) }.to_string();
    let file = scratch.file("warmgate.yaml", format!("limits: {{header_timeout: 500ms}}\n{settings}"));
    let proxy = Proxy::start_with(scratch, file).await;
    proxy.until_state(engine.name(), "healthy").await;

    let mut stream = Dial::to(&authority).connect(proxy.address()).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\nx: ").await.unwrap();
    assert!(until_end(&mut stream).await.starts_with(b"HTTP/1.1 408"), "HTTP/1.1");

    let h2 = Dial { offered: &["h2"], ..Dial::to(&authority) };
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // A part of the preface; HEADERS without their end.
    for begun in [&preface[..10], &[&preface[..], &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]].concat()] {
        let mut stream = h2.connect(proxy.address()).await.unwrap();
        stream.write_all(begun).await.unwrap();
        until_end(&mut stream).await;
    }
    let faults = async |fault| {
        let name = format!("warmgate_malformed_messages_total{{fault=\"{fault}\"}}");
        proxy.metric(&name).await.unwrap()
    };
    eventually("each is counted", async || (faults("slow_header").await, faults("silent").await) == (2.0, 1.0)).await;
    assert!(is_served(Dial::to(&authority).connect(proxy.address()).await).await, "others are served");
}

/// What comes before the end, which may be a reset.
async fn until_end(stream: &mut Stream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = within("the end of a connection", stream.read_to_end(&mut bytes)).await;
    bytes
}
