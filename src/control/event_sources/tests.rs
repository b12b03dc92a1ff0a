//! The questions over real sockets, and the answers of engines, recorded and hostile.

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::answer::{read_sglang, read_vllm};
use super::*;
use crate::client;
use crate::config::Secret;
use crate::testing::{self, config};

fn endpoints(discovered: &[RankSource]) -> Vec<(u32, String, String)> {
    let text = |source: &Source| source.replay_endpoint.as_ref().map(ToString::to_string).unwrap_or_default();
    let sources = discovered.iter();
    sources.map(|found| (found.rank, found.source.endpoint.to_string(), text(&found.source))).collect()
}

fn vllm(answer: &Value, host: &str) -> Result<Vec<RankSource>, DiscoveryError> {
    read_vllm(answer.to_string().as_bytes(), host)
}

fn sglang(answer: &Value, host: &str) -> Result<Vec<RankSource>, DiscoveryError> {
    read_sglang(answer.to_string().as_bytes(), host)
}

#[test]
fn the_recorded_answer_names_its_source() {
    let Some(path) = testing::shared("fixtures/vllm/http/kv_event_sources.resp") else { return };
    let response = std::fs::read_to_string(path).unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    let found = read_vllm(body.as_bytes(), "127.0.0.1").unwrap();
    let expected = (0, "tcp://127.0.0.1:18101".to_owned(), "tcp://127.0.0.1:18201".to_owned());
    assert_eq!(endpoints(&found), [expected]);
    assert_eq!(&*found[0].source.topic, "kv@127.0.0.1:18001@tiny-llama");
    let elsewhere = read_vllm(body.as_bytes(), "10.0.0.1");
    assert_eq!(elsewhere, Err(DiscoveryError::Endpoint(EndpointError::Loopback)));
}

#[test]
fn each_rank_has_its_own_port_whether_it_is_told_or_not() {
    let rank = |port: u16| {
        let (endpoint, replay) = (format!("tcp://*:{port}"), format!("tcp://*:{}", port + 100));
        json!({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay})
    };
    let expected =
        |rank: u16| (u32::from(rank), format!("tcp://h:{}", 5557 + rank), format!("tcp://h:{}", 5657 + rank));
    let told = json!({"0": rank(5557), "1": rank(5558), "10": rank(5567)});
    let same = json!({"10": rank(5557), "0": rank(5557), "1": rank(5557)});
    for answer in [told, same] {
        let found = vllm(&answer, "h").unwrap();
        assert_eq!(endpoints(&found), [expected(0), expected(1), expected(10)], "{answer}");
    }
}

#[test]
fn sglang_tells_the_first_ranks_ports() {
    let answer = json!({"model_path": "m", "kv_events": {"endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv",
        "block_size": 16, "dp_size": 2, "replay_endpoint_port_base": 6557, "load_topic": "load"}});
    let found = sglang(&answer, "10.0.0.1").unwrap();
    let expected = |rank: u16| {
        (u32::from(rank), format!("tcp://10.0.0.1:{}", 5557 + rank), format!("tcp://10.0.0.1:{}", 6557 + rank))
    };
    assert_eq!(endpoints(&found), [expected(0), expected(1)]);
    let least = sglang(&json!({"kv_events": {"endpoint_port_base": 5557}}), "h").unwrap();
    assert_eq!(endpoints(&least), [(0, "tcp://h:5557".to_owned(), String::new())]);
}

#[test]
fn an_engine_without_events_says_so_in_many_ways() {
    let off = json!({"0": {"enable_kv_cache_events": false, "publisher": "zmq", "endpoint": "tcp://*:5557"}});
    let null = json!({"0": {"enable_kv_cache_events": true, "publisher": "null", "endpoint": "tcp://*:5557"}});
    for answer in [json!({}), off, null] {
        assert_eq!(vllm(&answer, "h"), Err(DiscoveryError::NotEnabled), "{answer}");
    }
    for answer in [json!({}), json!({"kv_events": null})] {
        assert_eq!(sglang(&answer, "h"), Err(DiscoveryError::NotEnabled), "{answer}");
    }
}

#[test]
fn malformed_answers_are_told_from_those_that_cannot_be_used() {
    let entry = |endpoint: Value| json!({"0": {"enable_kv_cache_events": true, "endpoint": endpoint}});
    let malformed =
        [json!([]), json!("x"), json!({"first": {}}), json!({"-1": {}}), entry(json!(5)), entry(Value::Null)];
    for answer in malformed {
        assert!(matches!(vllm(&answer, "h"), Err(DiscoveryError::Malformed(_))), "{answer}");
    }
    let unusable = vllm(&entry(json!("ipc:///tmp/x")), "h");
    assert_eq!(unusable, Err(DiscoveryError::Endpoint(EndpointError::NotTcp)));
    let port = |base: Value, ranks: Value| json!({"kv_events": {"endpoint_port_base": base, "dp_size": ranks}});
    for answer in [port(json!(70_000), json!(1)), port(Value::Null, json!(1)), port(json!(1), json!(257)), json!(1)] {
        assert!(matches!(sglang(&answer, "h"), Err(DiscoveryError::Malformed(_))), "{answer}");
    }
    assert_eq!(sglang(&port(json!(0), json!(1)), "h"), Err(DiscoveryError::Endpoint(EndpointError::NoPort)));
    assert_eq!(sglang(&port(json!(65_535), json!(2)), "h"), Err(DiscoveryError::Endpoint(EndpointError::Rank(1))));
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn arbitrary_answers_never_panic(body in prop::collection::vec(any::<u8>(), 0..100), text in "[\\[\\]{}\":0-9a-z, ]{0,60}") {
        for body in [&body[..], text.as_bytes()] {
            let _ = (read_vllm(body, "h"), read_sglang(body, "h"));
        }
    }
}

/// An engine that answers each path with a status and a body, and 404 for the rest. It gives the heads of requests.
async fn engine(
    answers: &'static [(&'static str, u16, &'static str)],
) -> (SocketAddr, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut heads = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(request).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            heads.push(head);
            let found = answers.iter().find(|(known, ..)| *known == path);
            let (status, body) = found.map_or((404, ""), |(_, status, body)| (*status, *body));
            let length = body.len();
            let response =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            stream.write_all(response.as_bytes()).await.unwrap();
            if status != 404 || path == SGLANG_PATH {
                return heads;
            }
        }
    });
    (address, task)
}

async fn ask_engine(address: SocketAddr, key: Option<&str>) -> Result<Vec<RankSource>, DiscoveryError> {
    let origin = Origin { is_tls: false, host: "127.0.0.1".into(), port: address.port() };
    let client = Client::new(client::connections(), origin.clone(), LIMIT);
    discover(&client.with_key(key.map(Secret::new).as_ref()), &origin, address, key.is_some()).await
}

const SOURCES: &str = r#"{"0": {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}}"#;

#[tokio::test]
async fn vllm_is_asked_with_the_api_key() {
    let (address, asked) = engine(&[(VLLM_PATH, 200, SOURCES)]).await;
    let found = ask_engine(address, Some("secret")).await.unwrap();
    assert_eq!(endpoints(&found), [(0, "tcp://127.0.0.1:5557".to_owned(), String::new())]);
    let heads = asked.await.unwrap();
    assert!(heads[0].to_ascii_lowercase().contains("authorization: bearer secret\r\n"));
}

#[tokio::test]
async fn sglang_is_asked_where_vllms_path_is_not_known() {
    let (address, asked) = engine(&[(SGLANG_PATH, 200, r#"{"kv_events": {"endpoint_port_base": 5557}}"#)]).await;
    assert!(ask_engine(address, None).await.is_ok());
    let heads = asked.await.unwrap();
    assert_eq!(heads.len(), 2, "one question after the other");
    assert!(heads.iter().all(|head| !head.to_ascii_lowercase().contains("authorization")));
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let (address, _) = engine(&[(VLLM_PATH, 401, "")]).await;
    assert_eq!(ask_engine(address, None).await, Err(DiscoveryError::KeyWanted(401)));
    let (address, _) = engine(&[(VLLM_PATH, 403, "")]).await;
    let refused = ask_engine(address, Some("secret")).await.unwrap_err();
    assert_eq!(refused, DiscoveryError::KeyRefused(403));
    assert!(!refused.to_string().contains("secret"));
    let (address, _) = engine(&[]).await;
    assert_eq!(ask_engine(address, None).await, Err(DiscoveryError::TooOld));
    let (address, _) = engine(&[(VLLM_PATH, 503, "")]).await;
    assert_eq!(ask_engine(address, None).await, Err(DiscoveryError::Status(503)));
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert!(matches!(ask_engine(unused, None).await, Err(DiscoveryError::Unreachable(_))));
}
