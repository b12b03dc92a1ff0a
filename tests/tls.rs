//! The TLS listener, with a certificate made for the test: HTTP/1.1 and HTTP/2, by what the client offers.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use common_control::client::Connection;
use common_control::engine::{Engine, is_whole_stream};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, streamed, within};
use pingora_rustls::{
    CertificateDer, ClientConfig, ClientTlsStream, RootCertStore, ServerName, TlsConnector,
    install_default_crypto_provider,
};
use tokio::net::TcpStream;

/// A proxy with one TLS listener, and the certificate to trust.
async fn start(engine: &Engine) -> (Proxy, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let scratch = Scratch::new();
    let certificate = scratch.file("certificate.pem", made.cert.pem());
    let key = scratch.file("key.pem", made.signing_key.serialize_pem());
    let tls = format!("{{certificate: {}, key: {}}}", certificate.display(), key.display());
    let settings =
        Settings { listeners: format!("[{{address: '127.0.0.1:0', tls: {tls}}}]"), ..Settings::new([engine]) };
    let file = scratch.file("warmgate.yaml", settings.to_string());
    let proxy = Proxy::start_with(scratch, file).await;
    proxy.until_state(engine.name(), "healthy").await;
    (proxy, made.cert.der().clone())
}

async fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    offered: &[&str],
) -> std::io::Result<ClientTlsStream<TcpStream>> {
    install_default_crypto_provider();
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(address).await?;
    within("a handshake", TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

fn agreed(stream: &ClientTlsStream<TcpStream>) -> Option<&[u8]> {
    stream.get_ref().1.alpn_protocol()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_is_spoken_where_the_client_offers_no_more() {
    let engine = Engine::up("tls-one");
    let (proxy, trusted) = start(&engine).await;
    for offered in [&["http/1.1"][..], &[]] {
        let stream = connect(proxy.address(), &trusted, offered).await.unwrap();
        assert_eq!(agreed(&stream), offered.first().map(|protocol| protocol.as_bytes()));
        let mut connection = Connection::over(stream);
        for _ in 0..3 {
            assert_eq!(connection.chat(&chat("hello")).await.unwrap().status, 200, "over one kept connection");
        }
        assert!(is_whole_stream(&connection.chat(&streamed("hello")).await.unwrap().body));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_is_spoken_where_the_client_offers_it() {
    let engine = Engine::up("tls-two");
    let (proxy, trusted) = start(&engine).await;
    let stream = connect(proxy.address(), &trusted, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(agreed(&stream), Some(&b"h2"[..]));
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut asking = Vec::new();
    for _ in 0..4 {
        client = client.ready().await.unwrap();
        let request = http::Request::post("https://localhost/v1/chat/completions").body(()).unwrap();
        let (reply, mut body) = client.send_request(request, false).unwrap();
        body.send_data(Bytes::from(streamed("hello").to_string()), true).unwrap();
        asking.push(reply);
    }
    for reply in asking {
        let reply = within("a reply", reply).await.unwrap();
        assert_eq!(reply.status(), 200);
        let mut body = reply.into_body();
        let mut text = Vec::new();
        while let Some(bytes) = within("a frame", body.data()).await {
            let bytes = bytes.unwrap();
            body.flow_control().release_capacity(bytes.len()).unwrap();
            text.extend_from_slice(&bytes);
        }
        assert!(is_whole_stream(&String::from_utf8(text).unwrap()));
    }
    drop(client);
    within("the connection's end", driver).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_tls_or_trust_is_turned_away_and_harms_nobody() {
    let engine = Engine::up("tls-three");
    let (proxy, trusted) = start(&engine).await;
    let mut plain = Connection::open(proxy.address()).await.unwrap();
    assert!(plain.chat(&chat("hello")).await.is_err(), "plain HTTP is not answered here");
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    assert!(connect(proxy.address(), other.cert.der(), &["h2"]).await.is_err(), "it is not the trusted one");
    let mut good = Connection::over(connect(proxy.address(), &trusted, &["http/1.1"]).await.unwrap());
    assert_eq!(good.chat(&chat("hello")).await.unwrap().status, 200);
    eventually("nothing is in service", async || proxy.metric("warmgate_requests_in_service").await == Some(0.0)).await;
}
