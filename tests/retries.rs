//! Retries: a failed attempt is repeated at another backend with the same bytes, only while nothing was sent downstream,
//! and within bounds.

mod common;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use common::backend::{Exchange, Fleet};
use common::client::{self, Client, Response};
use common::h2c::{self, H2, Length};
use common::proxy::{Proxy, Setup};
use common::{chat, chat_of, eventually, hash, streamed_chat, within};
use serde_json::Value;
use tokio::sync::{Barrier, Semaphore};

const CHAT: &str = "/v1/chat/completions";
const SIZES: [usize; 3] = [10, 100_000, 5_000_000];
/// A pool in which no failure ejects, so that each attempt is the script's alone.
const NO_EJECTION: &str = "policy: round_robin, ejection: {failures: 1000}";

#[derive(Debug, Clone, Copy)]
enum Framing {
    Sized,
    Chunked,
    H2,
}

const FRAMINGS: [Framing; 3] = [Framing::Sized, Framing::Chunked, Framing::H2];

async fn post(proxy: &Proxy, framing: Framing, body: &[u8]) -> Response {
    match framing {
        Framing::Sized => client::post(proxy.http, CHAT, "", body).await,
        Framing::Chunked => {
            let mut client = Client::connect(proxy.http).await;
            client.send_chunked(CHAT, "", body).await;
            client.response("POST").await.expect("a chunked POST is answered")
        }
        Framing::H2 => h2c::post(proxy.h2c, CHAT, &[], body, Length::Unstated).await,
    }
}

#[track_caller]
fn assert_second_served(what: &str, body: &[u8], response: &Response) {
    assert_eq!(response.status, 200, "{what}: the second backend serves it: {}", response.text());
    let got: Value = response.json();
    assert_eq!(got["hash"], hash(body), "{what}: the second backend got the same bytes");
    assert_eq!(got["framing"], "content-length", "{what}: with their length");
}

/// For every size and framing: the first attempt fails as `$fail` says, and the second backend serves the request.
macro_rules! assert_repeated {
    ($what:literal, |$exchange:ident| $fail:expr) => {{
        let fleet = Fleet::start(2, |$exchange: &mut Exchange| {
            Box::pin(async move { if $exchange.attempt == 1 { $fail } else { $exchange.echo().await } })
        })
        .await;
        let setup = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", "budget: 1.0");
        let proxy = setup.start().await;
        for size in SIZES {
            let body = chat_of(size, size as u64);
            for framing in FRAMINGS {
                let what = format!("{}, {size} bytes, {framing:?}", $what);
                let response = post(&proxy, framing, &body).await;
                assert_second_served(&what, &body, &response);
                assert_eq!(response.attempts(), 2, "{what}: two attempts were made");
            }
        }
        let received = fleet.received();
        assert!(
            received.chunks(2).all(|pair| pair[0].backend != pair[1].backend),
            "{}: the second attempt goes to the other backend",
            $what
        );
        proxy.let_go().await;
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refused_connection_the_other_backend_gets_the_same_bytes() {
    let mut fleet = Fleet::echo(2).await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).start().await;
    fleet.refuse(0).await;
    for size in SIZES {
        for framing in FRAMINGS {
            let body = chat_of(size, size as u64);
            // In turn, so one of two goes to the closed port first.
            let mut attempts = Vec::new();
            for _ in 0..2 {
                let response = post(&proxy, framing, &body).await;
                assert_second_served(&format!("refused, {size} bytes, {framing:?}"), &body, &response);
                attempts.push(response.attempts());
            }
            assert!(attempts.contains(&2), "{framing:?}: one of two went to the closed port first: {attempts:?}");
        }
    }
    proxy.let_go().await;
    assert!(proxy.metric("retries_total", "cause=\"connect\"").await >= 9.0, "each is counted by its cause");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reset_before_the_upload_the_other_backend_gets_the_same_bytes() {
    assert_repeated!("reset before the upload", |exchange| exchange.reset());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reset_in_the_upload_the_other_backend_gets_the_same_bytes() {
    assert_repeated!("reset in the upload", |exchange| {
        exchange.body_part(7).await?;
        exchange.reset()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_503_before_the_body_was_read_the_other_backend_gets_the_same_bytes() {
    assert_repeated!("early 503", |exchange| {
        exchange.close();
        exchange.respond(503, "{}").await
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_503_behind_the_body_the_other_backend_gets_the_same_bytes() {
    assert_repeated!("late 503", |exchange| {
        exchange.body().await?;
        exchange.respond(503, "{}").await
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reset_behind_the_body_the_other_backend_gets_the_same_bytes() {
    assert_repeated!("reset after the body", |exchange| {
        exchange.body().await?;
        exchange.reset()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_clean_close_without_a_response_the_other_backend_gets_the_same_bytes() {
    assert_repeated!("closed after the body", |exchange| {
        exchange.body().await?;
        exchange.close();
        Ok(())
    });
}

/// A fleet that answers everything with `status`.
async fn always(count: usize, status: u16) -> Fleet {
    Fleet::start(count, move |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.respond(status, r#"{"error":{"message":"m","type":"t","code":"theirs"}}"#).await
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_attempts_are_made_than_configured() {
    for max_attempts in 1..=4 {
        let fleet = always(6, 503).await;
        let setup = Setup::new().pool("p", &fleet, NO_EJECTION);
        let proxy = setup.section("retry", &format!("max_attempts: {max_attempts}, budget: 1.0")).start().await;
        let response = client::post(proxy.http, CHAT, "", &chat("x")).await;
        assert_eq!(response.attempts(), max_attempts, "x-warmgate-attempts says how many");
        assert_eq!(fleet.received().len() as u32, max_attempts, "and that is how many there were");
        assert_eq!((response.status, response.error_code().as_str()), (503, "theirs"), "the last answer is passed on");
        let mut tried: Vec<_> = fleet.received().iter().map(|request| request.backend).collect();
        tried.sort_unstable();
        tried.dedup();
        assert_eq!(tried.len() as u32, max_attempts, "each attempt goes to another backend");
        proxy.let_go().await;
        assert_eq!(proxy.metric("attempts_total", "").await, f64::from(max_attempts), "each is counted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_that_say_something_of_the_request_are_passed_on_without_a_retry() {
    for status in [400, 401, 404, 409, 422, 429, 500, 501] {
        let fleet = always(3, status).await;
        // A 401 is about the caller where the backend is shown the caller's key.
        let pool = format!("{NO_EJECTION}, forward_credentials: true");
        let proxy = Setup::new().pool("p", &fleet, &pool).start().await;
        let response = client::post(proxy.http, CHAT, "", &chat("x")).await;
        assert_eq!((response.status, response.error_code().as_str()), (status, "theirs"), "{status} is passed on");
        assert_eq!((response.attempts(), fleet.received().len()), (1, 1), "{status} is not tried again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_faults_and_overload_eject_no_backend() {
    for status in [400, 404, 429, 503] {
        let fleet = always(1, status).await;
        let proxy = Setup::new().pool("p", &fleet, "ejection: {failures: 1}").start().await;
        for _ in 0..5 {
            assert_eq!(client::post(proxy.http, CHAT, "", &chat("x")).await.status, status);
        }
        assert_eq!(proxy.state_of(&fleet.name(0)).await, "healthy", "{status} says nothing against the backend");
    }
    let fleet = always(1, 500).await;
    let proxy = Setup::new().pool("p", &fleet, "ejection: {failures: 1}").start().await;
    client::post(proxy.http, CHAT, "", &chat("x")).await;
    assert_eq!(proxy.state_of(&fleet.name(0)).await, "ejected", "a 500 does");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn which_statuses_are_retried_is_configured() {
    for (statuses, status, attempts) in
        [("[502]", 502, 2), ("[502]", 503, 1), ("[502]", 504, 1), ("[]", 503, 1), ("[502, 503, 504]", 504, 2)]
    {
        let fleet = always(2, status).await;
        let setup = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", &format!("statuses: {statuses}"));
        let proxy = setup.start().await;
        let response = client::post(proxy.http, CHAT, "", &chat("x")).await;
        assert_eq!((response.status, response.attempts()), (status, attempts), "statuses: {statuses}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_every_backend_resets_the_client_gets_502_in_openai_form() {
    let fleet = Fleet::start(2, |exchange| Box::pin(async move { exchange.reset() })).await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).start().await;
    for framing in FRAMINGS {
        for size in SIZES {
            let response = post(&proxy, framing, &chat_of(size, 1)).await;
            assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_failed"), "{framing:?}");
        }
    }
    assert_eq!(fleet.received().len(), 18, "each request was tried at both");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_every_backend_refuses_the_client_gets_502_in_openai_form() {
    let mut fleet = Fleet::echo(2).await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).start().await;
    fleet.refuse(0).await;
    fleet.refuse(1).await;
    let response = client::post(proxy.http, CHAT, "", &chat("x")).await;
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_failed"));
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_does_not_reply_in_time_gets_the_client_a_504_or_a_retry() {
    let fleet = Fleet::start(2, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.until_closed().await;
            Ok(())
        })
    })
    .await;
    let keys = format!("{NO_EJECTION}, timeouts: {{read: 200ms}}");
    let proxy = Setup::new().pool("p", &fleet, &keys).section("retry", "max_attempts: 2").start().await;
    let response = client::post(proxy.http, CHAT, "", &chat("x")).await;
    assert_eq!((response.status, response.error_code().as_str()), (504, "upstream_timeout"));
    assert_eq!(fleet.received().len(), 2, "the other backend was tried before");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_503_is_retried_for_a_share_of_the_requests_only() {
    const REQUESTS: usize = 300;
    let fleet = always(3, 503).await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", "budget: 0.2").start().await;
    let started = tokio::time::Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..10 {
        clients.spawn(in_a_row(proxy.http, REQUESTS / 10));
    }
    clients.join_all().await;
    // The floor is 3 a second, saved up for ten.
    let floor = 30.0 + 3.0 * started.elapsed().as_secs_f64() + 1.0;
    let most = REQUESTS as f64 * 1.2 + floor;
    let attempts = fleet.received().len();
    assert!(attempts as f64 <= most, "{attempts} attempts for {REQUESTS} requests; at most {most} are allowed");
    assert!(attempts > REQUESTS, "some are retried");
    assert!(proxy.metric("retries_denied_total", "").await > 0.0, "the others are counted as denied");
    proxy.let_go().await;
}

async fn in_a_row(address: SocketAddr, count: usize) {
    let mut client = Client::connect(address).await;
    for _ in 0..count {
        client.send("POST", CHAT, "", &chat("x")).await;
        assert_eq!(client.response("POST").await.expect("a kept connection").status, 503);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_failures_are_retried_whatever_the_budget() {
    let mut fleet = Fleet::echo(2).await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", "budget: 0.0").start().await;
    fleet.refuse(0).await;
    let mut client = Client::connect(proxy.http).await;
    let mut retried = 0;
    for _ in 0..160 {
        client.send("POST", CHAT, "", &chat("x")).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!(response.status, 200, "a connection that could not be made costs nobody anything");
        retried += response.attempts() - 1;
    }
    assert!(retried >= 70, "far more than the floor of the budget: {retried}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_pooled_connections_are_stale_each_request_still_meets_only_one() {
    let gate = Arc::new(Barrier::new(8));
    let fleet = Fleet::start(1, {
        let gate = Arc::clone(&gate);
        move |exchange| {
            let gate = Arc::clone(&gate);
            Box::pin(async move {
                match exchange.turn {
                    // All at once, so that each has a connection of its own.
                    1 if exchange.head.header("x-first").is_some() => {
                        gate.wait().await;
                    }
                    1 => {}
                    _ => return exchange.reset(),
                }
                exchange.echo().await
            })
        }
    })
    .await;
    let proxy = Setup::new().pool("p", &fleet, "ejection: {failures: 1}, keepalive_idle: 1m").start().await;
    // Kept, since workers have connections of their own to backends: each of these finds those that it has made.
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = Client::connect(proxy.http).await;
        client.send("POST", CHAT, "x-first: yes\r\n", &chat("x")).await;
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(client.response("POST").await.unwrap().status, 200);
    }
    proxy.let_go().await;
    for (number, client) in clients.iter_mut().enumerate() {
        client.send("POST", CHAT, "", &chat("x")).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!((response.status, response.attempts()), (200, 2), "request {number}: {}", response.text());
    }
    assert_eq!(proxy.state_of(&fleet.name(0)).await, "healthy", "and the backend is not ejected for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_pooled_connection_is_retried_and_held_against_nobody() {
    // The backend closes a kept connection at the moment it is used again, as engines do whose idle timeout is over.
    for is_reset in [false, true] {
        let fleet = Fleet::start(1, move |exchange| {
            Box::pin(async move {
                if exchange.turn == 1 {
                    return exchange.echo().await;
                }
                exchange.close();
                if is_reset { exchange.reset() } else { Ok(()) }
            })
        })
        .await;
        let setup = Setup::new().pool("p", &fleet, "ejection: {failures: 1}").section("retry", "max_attempts: 1");
        let proxy = setup.start().await;
        for (turn, size) in [100, 100, 300_000, 100, 1_000_000, 100].into_iter().enumerate() {
            for framing in FRAMINGS {
                let body = chat_of(size, turn as u64);
                let response = post(&proxy, framing, &body).await;
                assert_second_served(&format!("reset {is_reset}, turn {turn}, {framing:?}"), &body, &response);
            }
        }
        proxy.let_go().await;
        assert!(proxy.metric("retries_total", "cause=\"stale_connection\"").await >= 5.0, "connections were stale");
        assert_eq!(proxy.state_of(&fleet.name(0)).await, "healthy", "and the backend is not ejected for it");
    }
}

/// Whether a stream ends with the event that says that the backend broke it off, and with nothing else.
fn is_broken_off(stream: &[u8]) -> bool {
    let text = String::from_utf8_lossy(stream);
    let events: Vec<_> = text.split("\n\n").map(str::trim).filter(|event| !event.is_empty()).collect();
    let last = events.last().and_then(|event| event.strip_prefix("data: ")).unwrap_or_default();
    let last: Value = serde_json::from_str(last).unwrap_or_default();
    events.len() == 2 && last["error"]["code"] == "upstream_broke_off"
}

/// Sends a part of an answer and, once the client has `seen` it, cuts it off by a reset or by a close.
async fn cut(exchange: &mut Exchange, seen: &Semaphore, is_stream: bool, is_reset: bool) -> io::Result<()> {
    if is_stream {
        exchange.begin_stream().await?;
        exchange.event("{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}").await?;
    } else {
        exchange.body().await?;
        exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\npart").await?;
    }
    seen.acquire().await.expect("it is never closed").forget();
    exchange.close();
    if is_reset { exchange.reset() } else { Ok(()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_retried_once_a_byte_of_a_response_was_sent_on() {
    let seen = Arc::new(Semaphore::new(0));
    let fleet = Fleet::start(2, {
        let seen = Arc::clone(&seen);
        move |exchange| {
            let seen = Arc::clone(&seen);
            Box::pin(async move {
                let is = |name: &str| exchange.head.header("x-cut").is_some_and(|cut| cut.contains(name));
                let (is_stream, is_reset) = (is("stream"), is("reset"));
                cut(exchange, &seen, is_stream, is_reset).await
            })
        }
    })
    .await;
    let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("truncated-{}.log", std::process::id()));
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).access_log(&log).start().await;
    let cases = ["stream-reset", "stream-close", "plain-reset", "plain-close"];
    for case in cases {
        let body = if case.starts_with("stream") { streamed_chat("x") } else { chat("x") };
        let mut client = Client::connect(proxy.http).await;
        client.send("POST", CHAT, &format!("x-cut: {case}\r\n"), &body).await;
        let head = client.head().await.unwrap();
        assert_eq!((head.second_word(), head.header("x-warmgate-attempts")), ("200", Some("1")), "{case}");
        seen.add_permits(1);
        let rest = client.wire.body(head.response_framing("POST")).await;
        match case.starts_with("stream") {
            true => assert!(is_broken_off(&rest.unwrap()), "{case}: the client is told that there is no more"),
            false => assert_eq!(rest.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{case}: the client sees it"),
        }

        let h2 = H2::connect(proxy.h2c).await;
        let mut stream = h2.post(CHAT, &[("x-cut", case)], body.len(), Length::Stated).await;
        stream.send(&body, true).await.unwrap();
        let (head, mut receive, _send) = stream.head().await.unwrap();
        assert_eq!((head.second_word(), head.header("x-warmgate-attempts")), ("200", Some("1")), "{case} on HTTP/2");
        seen.add_permits(1);
        let (mut rest, mut is_reset) = (Vec::new(), false);
        while let (false, Some(data)) = (is_reset, within("data or a reset", receive.data()).await) {
            is_reset = data.is_err();
            rest.extend_from_slice(&data.unwrap_or_default());
        }
        match case.starts_with("stream") {
            true => assert!(!is_reset && is_broken_off(&rest), "{case}: an HTTP/2 client is told the same"),
            false => assert!(is_reset, "{case}: an HTTP/2 client sees a reset stream"),
        }
    }
    assert_eq!(fleet.received().len(), 2 * cases.len(), "one attempt each");
    proxy.let_go().await;
    assert_eq!(proxy.metric("requests_total", "reason=\"truncated\"").await, 2.0 * cases.len() as f64);
    let lines = || async { std::fs::read_to_string(&log).unwrap_or_default() };
    eventually("every request has its line", || async { lines().await.lines().count() == 2 * cases.len() }).await;
    for line in lines().await.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["reason"], &line["attempts"]), (&"truncated".into(), &1.into()), "{line}");
    }
    std::fs::remove_file(&log).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_that_breaks_in_its_answer_was_not_stale() {
    let fleet = Fleet::start(2, |exchange| {
        Box::pin(async move {
            if exchange.turn == 1 {
                return exchange.echo().await;
            }
            exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{").await?;
            exchange.close();
            Ok(())
        })
    })
    .await;
    let keys = "policy: round_robin, ejection: {failures: 1000}";
    let proxy = Setup::new().pool("p", &fleet, keys).section("retry", "max_attempts: 2, budget: 1.0").start().await;
    // One connection, so one worker, which has the connections to backends.
    let mut client = Client::connect(proxy.http).await;
    for _ in 0..2 {
        client.send("POST", CHAT, "", &chat("x")).await;
        assert_eq!(client.response("POST").await.unwrap().status, 200);
    }
    client.send("POST", CHAT, "", &chat("x")).await;
    let response = client.response("POST").await.unwrap();
    assert_eq!(response.status, 502, "{}", response.text());
    assert_eq!(proxy.metric("retries_total", "cause=\"stale_connection\"").await, 0.0);
    assert_eq!(proxy.metric("retries_total", "cause=\"reset\"").await, 1.0, "the other backend was asked");
}
