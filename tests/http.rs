//! The proxy as an HTTP intermediary: ids, errors of its own, what is passed on and what is not, and where requests go.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::backend::Fleet;
use common::client::{self, Client};
use common::h2c::{self, Length};
use common::proxy::{Proxy, Setup};
use common::{chat, chat_of, hash};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_is_kept_or_made_and_sent_upstream() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let upstream = || fleet.received().last().unwrap().head.header("x-request-id").unwrap_or_default().to_owned();
    let kept = client::post(proxy.http, CHAT, "x-request-id: my-id.7\r\n", &chat("x")).await;
    assert_eq!(kept.header("x-warmgate-request-id"), Some("my-id.7"));
    assert_eq!(upstream(), "my-id.7", "the client's id goes on");
    let made = client::post(proxy.http, CHAT, "", &chat("x")).await;
    let id = made.header("x-warmgate-request-id").unwrap().to_owned();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "128 random bits: {id}");
    assert_eq!(upstream(), id, "the same one goes upstream");
    let again = client::post(proxy.http, CHAT, "", &chat("x")).await;
    assert_ne!(again.header("x-warmgate-request-id"), Some(id.as_str()), "each request has its own");

    for unfit in [&"a".repeat(129), "a\tb", "\u{e9}", ""] {
        let replaced = client::post(proxy.http, CHAT, &format!("x-request-id: {unfit}\r\n"), &chat("x")).await;
        let made = upstream();
        assert_eq!((replaced.header("x-warmgate-request-id"), made.len()), (Some(&*made), 32), "{unfit:?}");
    }
    let rejected = client::post(proxy.http, CHAT, "x-request-id: mine\r\n", b"no json").await;
    assert_eq!((rejected.status, rejected.header("x-request-id")), (400, Some("mine")), "our own replies name it too");
    let h2 = h2c::post(proxy.h2c, CHAT, &[("x-request-id", "mine-too")], &chat("x"), Length::Stated).await;
    assert_eq!(h2.header("x-warmgate-request-id"), Some("mine-too"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_model_gets_404_and_bad_json_400_in_openai_form_and_neither_reaches_a_backend() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::new().pool("p", &fleet, "models: [m]").start().await;
    let unknown = br#"{"model":"no-such","messages":[]}"#;
    for response in [
        client::post(proxy.http, CHAT, "", unknown).await,
        h2c::post(proxy.h2c, CHAT, &[], unknown, Length::Unstated).await,
        client::get(proxy.http, "/v1/models/no-such").await,
    ] {
        assert_eq!((response.status, response.error_code().as_str()), (404, "model_not_found"));
        assert!(response.text().contains("no-such"), "the message names it: {}", response.text());
    }
    for body in [&b"no json"[..], b"{\"model\":", b"{} {}", b"\xff\xfe", b"[1,]"] {
        let response = client::post(proxy.http, CHAT, "", body).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_json"), "{body:?}");
        let response = h2c::post(proxy.h2c, CHAT, &[], body, Length::Stated).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_json"), "{body:?} on HTTP/2");
    }
    assert!(fleet.received().is_empty(), "no backend is bothered with them");
    proxy.let_go().await;
    assert_eq!(proxy.metric("requests_total", "reason=\"bad_request\"").await, 10.0, "each is counted");
    assert_eq!(client::post(proxy.http, CHAT, "", &chat("x")).await.status, 200, "what is right is served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_over_the_limit_gets_431_and_an_upgrade_is_refused() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("server", "max_header_bytes: 8KiB").start().await;
    let big = format!("x-big: {}\r\n", "a".repeat(9000));
    let response = client::post(proxy.http, CHAT, &big, &chat("x")).await;
    assert_eq!((response.status, response.error_code().as_str()), (431, "header_too_large"));
    let big = "a".repeat(9000);
    let response = h2c::post(proxy.h2c, CHAT, &[("x-big", &big)], &chat("x"), Length::Stated).await;
    assert_eq!((response.status, response.error_code().as_str()), (431, "header_too_large"), "HTTP/2");
    // A body that nobody reads must not reset the reply away.
    let big = format!("x-big: {}\r\n", "a".repeat(9000));
    let response = client::post(proxy.http, CHAT, &big, &chat_of(200_000, 1)).await;
    assert_eq!(response.status, 431, "the reply comes through in front of a body");

    let mut client = Client::connect(proxy.http).await;
    client.send("GET", "/v1/realtime", "connection: upgrade\r\nupgrade: websocket\r\n", b"").await;
    let response = client.response("GET").await.unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (400, "upgrade_not_supported"));
    assert!(fleet.received().is_empty(), "no backend is bothered with them");
    assert_eq!(client::post(proxy.http, CHAT, "", &chat("x")).await.status, 200);
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_methods_and_paths_are_passed_through() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            let body = exchange.body().await?;
            if exchange.head.method() == "HEAD" {
                return exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\nX-Warmgate-Cached: 1\r\n\r\n").await;
            }
            if exchange.head.method() == "DELETE" {
                return exchange.raw(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            }
            let answer = json!({"line": exchange.head.start_line, "hash": hash(&body)});
            exchange.respond(200, &answer.to_string()).await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let mut client = Client::connect(proxy.http).await;
    client.send("HEAD", "/version", "", b"").await;
    let response = client.response("HEAD").await.unwrap();
    let theirs = response.header("x-warmgate-cached");
    assert_eq!((response.status, response.header("content-length"), theirs), (200, Some("1234"), None));
    client.send("DELETE", "/v1/files/f%2F1?x=%20", "", b"").await;
    assert_eq!(client.response("DELETE").await.unwrap().status, 204, "on the same connection");
    for (method, body) in [("GET", &b""[..]), ("PUT", b"data"), ("PATCH", b"{}"), ("DELETE", b""), ("OPTIONS", b"")] {
        client.send(method, "/a/path?with=query&and=%C3%A4", "", body).await;
        let response = client.response(method).await.unwrap();
        if method != "DELETE" {
            let got: Value = response.json();
            assert_eq!(got["line"], format!("{method} /a/path?with=query&and=%C3%A4 HTTP/1.1"));
            assert_eq!(got["hash"], hash(body), "{method}");
        }
        assert_eq!(response.header("x-warmgate-cached"), None, "{method}: no prompt, no cache");
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_merged_over_pools_and_passed_through_for_one() {
    let answering = |text: &'static str| Fleet::start(2, move |exchange| Box::pin(exchange.respond(200, text)));
    let one = answering(r#"{"object":"list","data":[{"id":"theirs"}]}"#).await;
    let proxy = Setup::of(&one).start().await;
    let response = client::get(proxy.http, "/v1/models").await;
    assert_eq!(response.text(), r#"{"object":"list","data":[{"id":"theirs"}]}"#, "the engine's own bytes");
    assert_eq!(one.received().len(), 1);

    let a =
        answering("{}").await.with_models(r#"{"object":"list","data":[{"id":"a","x":1.50},{"id":"shared","by":"a"}]}"#);
    let b = answering("{}").await.with_models(r#"{"object":"list","data":[{"id":"b"},{"id":"shared","by":"b"}]}"#);
    let proxy = Setup::new().pool("a", &a, "models: [a, shared]").pool("b", &b, "models: [b]").start().await;
    common::eventually("all four models are known", || async {
        client::get(proxy.http, "/v1/models").await.json::<Value>()["data"].as_array().unwrap().len() == 3
    })
    .await;
    let merged = client::get(proxy.http, "/v1/models").await;
    let expected = r#"{"object":"list","data":[{"id":"a","x":1.50},{"id":"shared","by":"a"},{"id":"b"}]}"#;
    assert_eq!(merged.text(), expected, "entries keep their bytes, and the first of two with one id stays");
    assert_eq!(merged.header("content-type"), Some("application/json"));
    assert!(a.received().is_empty() && b.received().is_empty(), "a request causes no call to an engine");
    let of_b = client::get(proxy.http, "/v1/models/b").await;
    assert_eq!((of_b.status, b.received().len()), (200, 1), "a model's own entry is asked of its pool");
    proxy.let_go().await;
    assert!(proxy.metric("requests_total", "reason=\"local\"").await >= 2.0, "our own answers are counted as such");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_merged_list_has_only_models_that_are_routed_to_who_lists_them() {
    // What is wrong comes before what is right: when the second is known, the first would be too.
    let a = Fleet::echo(1).await.with_models(r#"{"data":[{"id":"b","by":"a"},{"id":"a"}]}"#);
    let b = Fleet::echo(1).await.with_models(r#"{"data":[{"id":"other","by":"b"},{"id":"b","by":"b"}]}"#);
    let list = async |proxy: &Proxy, count| {
        common::eventually("the models are known", || async {
            client::get(proxy.http, "/v1/models").await.json::<Value>()["data"].as_array().unwrap().len() >= count
        })
        .await;
        client::get(proxy.http, "/v1/models").await.json::<Value>()["data"].clone()
    };
    let setup = || Setup::new().pool("a", &a, "models: [a]").pool("b", &b, "models: [b]");
    let proxy = setup().start().await;
    let listed = list(&proxy, 2).await;
    assert_eq!(listed, json!([{"id": "a"}, {"id": "b", "by": "b"}]), "a pool lists what it would be sent");
    for entry in listed.as_array().unwrap() {
        let body = json!({"model": entry["id"], "messages": []}).to_string();
        assert_eq!(client::post(proxy.http, CHAT, "", body.as_bytes()).await.status, 200, "{entry} is served");
    }
    let other = br#"{"model":"other","messages":[]}"#;
    assert_eq!(client::post(proxy.http, CHAT, "", other).await.status, 404, "what is not listed is not served");

    // A pool for every other model takes it, and speaks for it.
    let rest = Fleet::echo(1).await.with_models(r#"{"data":[{"id":"other","by":"rest"}]}"#);
    let proxy = setup().pool("rest", &rest, "").start().await;
    let listed = list(&proxy, 3).await;
    assert_eq!(listed, json!([{"id": "a"}, {"id": "b", "by": "b"}, {"id": "other", "by": "rest"}]));
    assert_eq!(client::post(proxy.http, CHAT, "", other).await.status, 200, "it is routed now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_name_a_response_go_to_the_backend_that_made_it() {
    let fleet = Fleet::start(4, |exchange| {
        Box::pin(async move {
            let body = exchange.body().await?;
            let text: Value = serde_json::from_slice(&body).unwrap_or_default();
            let id = format!("resp_{}", exchange.head.header("x-request-id").unwrap_or_default());
            if text["stream"] != true {
                return exchange.respond(200, &format!(r#"{{"id":"{id}","object":"response"}}"#)).await;
            }
            exchange.begin_stream().await?;
            let created = format!(r#"{{"type":"response.created","response":{{"id":"{id}"}}}}"#);
            exchange
                .raw(format!("{:x}\r\nevent: response.created\ndata: {created}\n\n\r\n", created.len() + 32).as_bytes())
                .await?;
            exchange.event(r#"{"type":"response.output_text.delta","delta":"a"}"#).await?;
            exchange.raw(b"0\r\n\r\n").await
        })
    })
    .await;
    let proxy = Setup::new().pool("p", &fleet, "policy: round_robin").start().await;
    for (number, is_stream) in [(1, false), (2, true), (3, false), (4, true)] {
        let body = json!({"model": "m", "input": "x", "stream": is_stream}).to_string();
        let id = format!("x-request-id: r{number}\r\n");
        let made = client::post(proxy.http, "/v1/responses", &id, body.as_bytes()).await;
        assert_eq!(made.status, 200, "{}", made.text());
        let maker = made.header("x-warmgate-backend").unwrap().to_owned();
        for _ in 0..3 {
            let next =
                json!({"model": "m", "input": "y", "previous_response_id": format!("resp_r{number}")}).to_string();
            let next = client::post(proxy.http, "/v1/responses", "", next.as_bytes()).await;
            assert_eq!(next.header("x-warmgate-backend"), Some(maker.as_str()), "the next turn, streamed {is_stream}");
            let path = format!("/v1/responses/resp_r{number}");
            let got = client::get(proxy.http, &path).await;
            assert_eq!(got.header("x-warmgate-backend"), Some(maker.as_str()), "GET of the response");
            let cancelled = client::post(proxy.http, &format!("{path}/cancel"), "", b"").await;
            assert_eq!(cancelled.header("x-warmgate-backend"), Some(maker.as_str()), "cancel of the response");
        }
    }
    let makers: std::collections::HashSet<_> = fleet.received().iter().map(|request| request.backend).collect();
    assert!(makers.len() > 1, "the makers were different ones");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hop_by_hop_fields_end_at_the_proxy_in_both_directions() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange
                .raw(b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-hop\r\nkeep-alive: timeout=5\r\nx-hop: 1\r\nx-end: 2\r\ncontent-length: 2\r\n\r\n{}")
                .await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let headers = "connection: keep-alive, x-mine\r\nkeep-alive: timeout=9\r\nx-mine: 1\r\nte: trailers\r\n\
                   proxy-connection: keep-alive\r\nauthorization: Bearer secret\r\nx-other: 2\r\n";
    let response = client::post(proxy.http, CHAT, headers, &chat("x")).await;
    let received = fleet.received();
    let head = &received[0].head;
    for gone in ["keep-alive", "x-mine", "te", "proxy-connection"] {
        assert_eq!(head.header(gone), None, "`{gone}` concerns the client's connection alone: {:?}", head.headers);
    }
    assert!(head.header("connection").is_none_or(|value| !value.contains("x-mine")), "{:?}", head.headers);
    assert_eq!((head.header("authorization"), head.header("x-other")), (None, Some("2")), "credentials end here too");
    for gone in ["keep-alive", "x-hop"] {
        assert_eq!(
            response.header(gone),
            None,
            "`{gone}` concerns the backend's connection: {:?}",
            response.head.headers
        );
    }
    assert_eq!(response.header("x-end"), Some("2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_1_0_client_gets_an_answer_that_it_can_read() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.begin_stream().await?;
            exchange.event("one").await?;
            exchange.event("two").await?;
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let body = common::streamed_chat("x");
    let mut client = Client::connect(proxy.http).await;
    client.send_bytes(format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes()).await;
    client.send_bytes(&body).await;
    let response = client.response("POST").await.unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.header("transfer-encoding"), None, "HTTP/1.0 has no chunks");
    assert_eq!(response.text(), "data: one\n\ndata: two\n\ndata: [DONE]\n\n");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_its_side_is_gone() {
    // Engines take it for gone too, so nothing is lost that they would have served; the answer is not waited for.
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.until_closed().await;
            Ok(())
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &chat("x")).await;
    common::eventually("the request is at the backend", || async { fleet.received().len() == 1 }).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.wire.stream).await.unwrap();
    proxy.let_go().await;
    assert_eq!(proxy.metric("requests_total", "reason=\"client_gone\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_goes_on_after_errors_of_ours_and_of_the_engine() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.respond(422, "{}").await
        })
    })
    .await;
    let proxy = Setup::new().pool("p", &fleet, "models: [m]").start().await;
    let mut client = Client::connect(proxy.http).await;
    for _ in 0..3 {
        client.send("POST", CHAT, "", &chat("x")).await;
        assert_eq!(client.response("POST").await.unwrap().status, 422);
        client.send("POST", CHAT, "", b"{").await;
        assert_eq!(client.response("POST").await.unwrap().status, 400);
        client.send("GET", "/v1/models/none", "", b"").await;
        assert_eq!(client.response("GET").await.unwrap().status, 404);
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_preface_does_not_stay_on_the_http_2_listener() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let (mut silent, mut short) = (Client::connect(proxy.h2c).await, Client::connect(proxy.h2c).await);
    short.send_bytes(b"GET / HTTP/1.0\r\n\r\n").await;
    assert!(short.wire.ends().await, "a request shorter than the preface is not waited for without end");
    assert!(silent.wire.ends().await, "nor is silence");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_informational_response_nobody_asked_for_does_not_disturb_the_answer() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.raw(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            exchange.respond(200, "{}").await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let response = client::post(proxy.http, CHAT, "", &chat("x")).await;
    assert_eq!((response.status, response.text().as_str(), response.attempts()), (200, "{}", 1));
    let response = h2c::post(proxy.h2c, CHAT, &[], &chat("x"), Length::Stated).await;
    assert_eq!((response.status, response.text().as_str(), response.attempts()), (200, "{}", 1));
    proxy.let_go().await;
}

/// The heads of a whole reply but for its last, which comes with its body.
async fn heads_and_response(client: &mut Client) -> (Vec<String>, client::Response) {
    let mut heads = Vec::new();
    loop {
        let head = client.wire.head().await.unwrap().expect("a final response comes");
        if head.second_word().starts_with('1') {
            heads.push(head.start_line);
            continue;
        }
        let body = client.wire.body(head.response_framing("POST")).await.unwrap();
        return (heads, client::Response { status: head.second_word().parse().unwrap(), head, body });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_of_protocols_that_nobody_asked_for_gets_502_and_opens_no_tunnel() {
    let fleet = Fleet::start(2, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange
                .raw(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\nraw bytes")
                .await?;
            exchange.until_closed().await;
            Ok(())
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "connection: close\r\n", &chat("x")).await;
    let (before, response) = heads_and_response(&mut client).await;
    assert_eq!(before, [""; 0], "the switch does not reach the client");
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_failed"), "{}", response.text());
    assert!(!response.text().contains("raw"), "what the backend wrote is not in the reply: {}", response.text());
    assert!(client.wire.ends().await, "nothing of the backend's follows the reply");
    let response = h2c::post(proxy.h2c, CHAT, &[], &chat("x"), Length::Stated).await;
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_failed"), "HTTP/2");
    assert!(!response.text().contains("raw"), "nor in that of HTTP/2: {}", response.text());
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informational_responses_without_end_get_502_and_a_few_do_no_harm() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            let body = exchange.body().await?;
            if !String::from_utf8_lossy(&body).contains("endless") {
                for _ in 0..3 {
                    exchange.raw(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").await?;
                }
                return exchange.respond(200, "{}").await;
            }
            // Ends when the proxy closes the connection.
            loop {
                exchange.raw(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").await?;
            }
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &chat("endless")).await;
    let (before, response) = common::within("the end of the endless", heads_and_response(&mut client)).await;
    assert!(before.len() <= 16, "no more than 16 pass: {}", before.len());
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_failed"), "{}", response.text());
    let response = h2c::post(proxy.h2c, CHAT, &[], &chat("endless"), Length::Stated).await;
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_failed"), "HTTP/2");
    for turn in 0..8 {
        let response = client::post(proxy.http, CHAT, "", &chat("few")).await;
        assert_eq!((response.status, response.attempts()), (200, 1), "each has a count of its own, turn {turn}");
    }
    let response = h2c::post(proxy.h2c, CHAT, &[], &chat("few"), Length::Stated).await;
    assert_eq!((response.status, response.text().as_str()), (200, "{}"), "HTTP/2");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_with_a_transfer_coding_besides_chunked_is_refused() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for coding in [
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked, chunked\r\n",
    ] {
        let mut client = Client::connect(proxy.http).await;
        client.send_head("POST", CHAT, coding).await;
        client.send_bytes(&client::chunked(&chat("x"))).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_request"), "{coding:?}");
        assert!(client.wire.ends().await, "what follows {coding:?} is not taken for a request");
    }
    assert!(fleet.received().is_empty(), "no backend is bothered with them");
    let mut client = Client::connect(proxy.http).await;
    client.send_head("POST", CHAT, "transfer-encoding: Chunked\r\n").await;
    client.send_bytes(&client::chunked(&chat("x"))).await;
    assert_eq!(client.response("POST").await.unwrap().status, 200, "chunked alone is served, in any case of letters");
    proxy.let_go().await;
}

/// One turn of a conversation; the backend and the predicted cached tokens.
async fn turn(proxy: &Proxy, body: &Value) -> (String, u64) {
    let response = client::post(proxy.http, CHAT, "", body.to_string().as_bytes()).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let cached = response.header("x-warmgate-cached").unwrap().split_once('/').unwrap().0.parse().unwrap();
    (response.header("x-warmgate-backend").unwrap().to_owned(), cached)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_turn_of_a_conversation_goes_to_the_backend_that_has_the_last_one() {
    let fleet = Fleet::echo(4).await;
    let proxy = Setup::of(&fleet).start().await;
    let mut backends = std::collections::HashSet::new();
    for conversation in 0..8 {
        let mut messages =
            vec![json!({"role": "system", "content": format!("{conversation} {}", "Be brief. ".repeat(300))})];
        let mut known = None;
        for number in 0..4 {
            messages.push(json!({"role": "user", "content": format!("Question {number}. {}", "Why? ".repeat(50))}));
            let (backend, cached) = turn(&proxy, &json!({"model": "m", "messages": messages})).await;
            messages.push(json!({"role": "assistant", "content": format!("Answer {number}.")}));
            match &known {
                None => known = Some(backend.clone()),
                Some(known) => {
                    assert_eq!(&backend, known, "turn {number} of conversation {conversation}");
                    assert!(cached > 600, "its past is believed to be cached: {cached} tokens");
                }
            }
            backends.insert(backend);
        }
    }
    assert!(backends.len() > 1, "the conversations are spread");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_under_another_salt_is_not_taken_for_cached() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let text = "A prompt that two tenants share. ".repeat(100);
    let body = |salt: &str| json!({"model": "m", "cache_salt": salt, "messages": [{"role": "user", "content": text}]});
    assert_eq!(turn(&proxy, &body("a")).await.1, 0, "nothing is cached at first");
    assert_eq!(turn(&proxy, &body("b")).await.1, 0, "another tenant's blocks are not this one's");
    assert!(turn(&proxy, &body("a")).await.1 > 500, "its own are");
    assert!(turn(&proxy, &body("b")).await.1 > 500, "and so are the other's now");
}
