//! Answers on their way: streamed event by event, accounted for from the first token to the end, and given up at once
//! when the client is gone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::backend::{Acting, Exchange, Fleet};
use common::client::{self, Client};
use common::h2c::{self, H2, Length};
use common::proxy::{Proxy, Setup};
use common::{chat, eventually, streamed_chat, within};
use tokio::sync::{Barrier, Semaphore, mpsc};

const CHAT: &str = "/v1/chat/completions";

fn delta(number: usize) -> String {
    format!("{{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"t{number}\"}}}}]}}")
}

/// A fleet of one that answers by `script`, which waits for permits to go on.
async fn stepping<F>(script: F) -> (Fleet, Arc<Semaphore>)
where
    F: for<'a> Fn(&'a mut Exchange, Arc<Semaphore>) -> Acting<'a> + Send + Sync + 'static,
{
    let steps = Arc::new(Semaphore::new(0));
    let given = Arc::clone(&steps);
    (Fleet::start(1, move |exchange| script(exchange, Arc::clone(&given))).await, steps)
}

/// A fleet of one that streams `events` and waits for a permit before each.
async fn stepwise(events: usize) -> (Fleet, Arc<Semaphore>) {
    stepping(move |exchange, steps| {
        Box::pin(async move {
            exchange.begin_stream().await?;
            for number in 0..events {
                steps.acquire().await.unwrap().forget();
                exchange.event(&delta(number)).await?;
            }
            steps.acquire().await.unwrap().forget();
            exchange.end_stream().await
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_received_before_the_next_one_is_sent() {
    for hold in [false, true] {
        an_event_is_received(hold).await;
    }
}

/// Pingora flushes a body of stated length when it is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_of_an_answer_with_a_length_come_as_they_are_sent_and_all_of_them_before_it_breaks_off() {
    let (fleet, steps) = stepping(|exchange, steps| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n").await?;
            for piece in [b"aaaaaaaaaa", b"bbbbbbbbbb"] {
                exchange.raw(piece).await?;
                steps.acquire().await.unwrap().forget();
            }
            exchange.close();
            Ok(())
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let mut client = Client::connect(proxy.http).await;
    for path in [CHAT, "/v1/audio/speech"] {
        client.send("POST", path, "", &chat("x")).await;
        assert_eq!(within("a header", client.head()).await.unwrap().second_word(), "200", "{path}");
        for piece in [b"aaaaaaaaaa", b"bbbbbbbbbb"] {
            assert_eq!(within("a piece", client.wire.exactly(10)).await.unwrap(), piece, "{path}");
            steps.add_permits(1);
        }
        assert!(client.wire.ends().await, "{path}");
        client = Client::connect(proxy.http).await;
    }
    proxy.let_go().await;
}

async fn an_event_is_received(hold: bool) {
    const EVENTS: usize = 20;
    let (fleet, steps) = stepwise(EVENTS).await;
    let proxy = Setup::new().pool("p", &fleet, &format!("hold_header: {hold}")).start().await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("x")).await;
    // If it is held it comes with the first token.
    steps.add_permits(usize::from(hold));
    let head = client.head().await.expect("otherwise the header comes before it");
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    for number in 0..EVENTS {
        // The backend has sent nothing beyond this event, so it was not held back for more.
        steps.add_permits(usize::from(!hold || number > 0));
        assert_eq!(client.event().await.unwrap(), Some(delta(number)), "event {number} comes by itself");
    }
    steps.add_permits(1);
    assert_eq!(client.event().await.unwrap().as_deref(), Some("[DONE]"));
    assert_eq!(client.event().await.unwrap(), None, "the stream ends");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_received_before_the_next_one_is_sent_over_http_2() {
    for hold in [false, true] {
        an_event_is_received_over_http_2(hold).await;
    }
}

async fn an_event_is_received_over_http_2(hold: bool) {
    const EVENTS: usize = 20;
    let (fleet, steps) = stepwise(EVENTS).await;
    let proxy = Setup::new().pool("p", &fleet, &format!("hold_header: {hold}")).start().await;
    let body = streamed_chat("x");
    let mut stream = H2::connect(proxy.h2c).await.post(CHAT, &[], body.len(), Length::Stated).await;
    stream.send(&body, true).await.unwrap();
    steps.add_permits(usize::from(hold));
    let (_, mut receive, _send) = stream.head().await.expect("the header comes before the first token, or with it");
    for number in 0..EVENTS {
        steps.add_permits(usize::from(!hold || number > 0));
        let data = within("an event", receive.data()).await.unwrap().unwrap();
        assert_eq!(data, format!("data: {}\n\n", delta(number)), "event {number} comes by itself");
        receive.flow_control().release_capacity(data.len()).unwrap();
    }
    steps.add_permits(1);
    assert_eq!(within("the end mark", receive.data()).await.unwrap().unwrap(), "data: [DONE]\n\n");
    while let Some(data) = within("the end", receive.data()).await {
        assert!(data.unwrap().is_empty(), "nothing but the end of the stream follows");
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_pending_until_its_first_token_then_decoding_until_its_end() {
    let (fleet, steps) = stepwise(2).await;
    let proxy = Setup::new().pool("p", &fleet, "hold_header: false").start().await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat(&"word ".repeat(400))).await;
    client.head().await.unwrap();
    let held = proxy.held().await;
    assert_eq!((held.in_flight, held.decoding), (1.0, 0.0), "a header is no token");
    assert!(held.pending >= 100.0, "its prompt is pending prefill: {held:?}");
    assert_eq!(held.body_bytes, 0.0, "nobody needs the body once a response came");
    assert_eq!(proxy.metric("ttft_seconds_count", "").await, 0.0, "and no first one");

    steps.add_permits(1);
    client.event().await.unwrap();
    eventually("the first token moves it to decoding", || async {
        let held = proxy.held().await;
        (held.in_flight, held.decoding, held.pending) == (1.0, 1.0, 0.0)
    })
    .await;
    let backend = &proxy.backends().await[0];
    assert_eq!((&backend["in_flight"], &backend["decoding"]), (&1.into(), &1.into()), "/backends says the same");
    assert!(backend["index_blocks"].as_u64().unwrap() > 0, "the prompt's blocks are now believed to be cached");

    steps.add_permits(2);
    while client.event().await.unwrap().is_some() {}
    proxy.let_go().await;
    assert_eq!(proxy.metric("ttft_seconds_count", "").await, 1.0, "one time to first token");
    assert_eq!(proxy.metric("requests_total", "reason=\"served\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_engine_says_was_cached_is_counted_beside_what_was_predicted() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            let is_stream = exchange.body().await?.windows(8).any(|bytes| bytes == b"\"stream\"");
            let usage =
                r#""usage":{"prompt_tokens":500,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":480}}"#;
            if !is_stream {
                return exchange.respond(200, &format!("{{\"choices\":[{{\"text\":\"a\"}}],{usage}}}")).await;
            }
            exchange.begin_stream().await?;
            exchange.event(&delta(0)).await?;
            exchange.event(&format!("{{\"choices\":[],{usage}}}")).await?;
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let text = "All the same words again and again. ".repeat(60);
    for body in [chat(&text), streamed_chat(&text), chat(&text)] {
        assert_eq!(client::post(proxy.http, CHAT, "", &body).await.status, 200);
        proxy.let_go().await;
    }
    assert_eq!(proxy.metric("reported_prompt_tokens_total", "").await, 1500.0);
    assert_eq!(proxy.metric("reported_cached_tokens_total", "").await, 1440.0);
    let predicted = proxy.metric("reported_predicted_tokens_total", "").await;
    assert!(predicted >= 800.0, "two of the three were predicted to be cached: {predicted} tokens");
    assert_eq!(predicted, proxy.metric("predicted_cached_tokens_total", "").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_say_what_was_decided_unless_that_is_off() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let text = "Some words that are cached after the first time. ".repeat(30);
    let first = client::post(proxy.http, CHAT, "x-request-id: mine\r\n", &chat(&text)).await;
    assert_eq!(first.header("x-warmgate-backend"), Some(fleet.name(0).as_str()));
    assert_eq!(first.header("x-warmgate-request-id"), Some("mine"));
    assert_eq!(first.attempts(), 1);
    let cached = |response: &client::Response| -> (u64, u64) {
        let (cached, total) = response.header("x-warmgate-cached").unwrap().split_once('/').unwrap();
        (cached.parse().unwrap(), total.parse().unwrap())
    };
    assert_eq!(cached(&first).0, 0, "nothing is cached at first");
    let second = client::post(proxy.http, CHAT, "", &chat(&text)).await;
    let (matched, total) = cached(&second);
    assert!(matched > total / 2 && matched <= total, "most of it is the second time: {matched}/{total}");
    let h2 = h2c::post(proxy.h2c, CHAT, &[], &chat(&text), Length::Stated).await;
    assert!(h2.header("x-warmgate-backend").is_some() && h2.header("x-warmgate-cached").is_some());

    let silent = Setup::of(&fleet).section("server", "response_headers: false").start().await;
    let response = client::post(silent.http, CHAT, "", &chat(&text)).await;
    assert_eq!(response.status, 200);
    let ours: Vec<_> = response.head.headers.iter().filter(|(name, _)| name.starts_with("x-warmgate")).collect();
    assert!(ours.is_empty(), "response_headers: false leaves them out: {ours:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_slowly_loses_no_byte() {
    const EVENTS: usize = 400;
    let filler = "x".repeat(20_000);
    let fleet = Fleet::start(1, move |exchange| {
        let filler = filler.clone();
        Box::pin(async move {
            exchange.begin_stream().await?;
            for number in 0..EVENTS {
                exchange.event(&format!("{number} {filler}")).await?;
            }
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("x")).await;
    let head = client.head().await.unwrap();
    // 8 MB do not fit what the sockets hold, so the backend is held up by now and then let go again.
    let mut text = Vec::new();
    while let Some(chunk) = client.wire.chunk().await.unwrap() {
        text.extend_from_slice(&chunk);
        if text.len() % 7 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(head.second_word(), "200");
    let text = String::from_utf8(text).unwrap();
    let numbers: Vec<usize> = text
        .split("data: ")
        .filter_map(|event| event.split_once(' '))
        .map(|(number, rest)| {
            assert_eq!(rest.trim_end().len(), 20_000, "event {number} is whole");
            number.parse().unwrap()
        })
        .collect();
    assert!(numbers.into_iter().eq(0..EVENTS), "every event came, in order");
    proxy.let_go().await;
}

// === the client is gone ===

/// When, in an answer, the client leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// Before the response header: a prefill that is not streamed, or an engine that queues.
    BeforeHeader,
    /// After the header and before the first token.
    BeforeToken,
    MidStream,
}

/// A backend that goes on for ever at `moment`, and tells how long its connection stayed open after it was told that
/// the client is gone.
struct Endless {
    fleet: Fleet,
    reached: mpsc::UnboundedReceiver<()>,
    closed: mpsc::UnboundedReceiver<tokio::time::Instant>,
}

impl Endless {
    async fn start(moment: Moment) -> Self {
        let (reached_sender, reached) = mpsc::unbounded_channel();
        let (closed_sender, closed) = mpsc::unbounded_channel();
        let fleet = Fleet::start(1, move |exchange| {
            let (reached, closed) = (reached_sender.clone(), closed_sender.clone());
            Box::pin(async move {
                match moment {
                    Moment::BeforeHeader => drop(exchange.body().await?),
                    Moment::BeforeToken => exchange.begin_stream().await?,
                    Moment::MidStream => {
                        exchange.begin_stream().await?;
                        exchange.event(&delta(0)).await?;
                    }
                }
                reached.send(()).unwrap();
                exchange.until_closed().await;
                closed.send(tokio::time::Instant::now()).unwrap();
                Ok(())
            })
        })
        .await;
        Self { fleet, reached, closed }
    }

    async fn reached(&mut self) {
        within("the request reaches the backend", self.reached.recv()).await.unwrap();
    }

    /// Time from `left` to the close of the backend's connection.
    async fn closed_after(&mut self, left: tokio::time::Instant) -> Duration {
        within("the backend's connection is closed", self.closed.recv()).await.unwrap().saturating_duration_since(left)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_client_leaves_the_backends_connection_is_closed_at_once() {
    let mut slowest = Duration::ZERO;
    for moment in [Moment::BeforeHeader, Moment::BeforeToken, Moment::MidStream] {
        let mut endless = Endless::start(moment).await;
        // A held header does not come before a token.
        let proxy = Setup::new().pool("p", &endless.fleet, "hold_header: false").start().await;
        for is_streamed in [true, false] {
            let body = if is_streamed { streamed_chat("x") } else { chat("x") };
            for way in ["fin", "reset", "half-close", "chunked fin", "h2 reset", "h2 close"] {
                let took = leave(&proxy, &mut endless, moment, way, &body).await;
                assert!(took < Duration::from_secs(1), "{moment:?}, {way}, streamed {is_streamed}: {took:?}");
                slowest = slowest.max(took);
                proxy.let_go().await;
            }
        }
        let gone = proxy.metric("requests_total", "reason=\"client_gone\"").await;
        assert_eq!(gone, 12.0, "{moment:?}: each is counted as one that left");
        assert_eq!(proxy.state_of(&endless.fleet.name(0)).await, "healthy", "{moment:?}: no backend is blamed for it");
    }
    println!("slowest close of a backend's connection after its client left: {slowest:?}");
}

/// Sends a request, leaves at `moment`; how long the backend's connection stayed open.
async fn leave(proxy: &Proxy, endless: &mut Endless, moment: Moment, way: &str, body: &[u8]) -> Duration {
    if way.starts_with("h2") {
        let h2 = H2::connect(proxy.h2c).await;
        let mut stream = h2.post(CHAT, &[], body.len(), Length::Stated).await;
        stream.send(body, true).await.unwrap();
        endless.reached().await;
        if moment == Moment::BeforeHeader {
            let left = tokio::time::Instant::now();
            if way == "h2 reset" {
                stream.reset()
            } else {
                drop((stream, h2))
            }
            return endless.closed_after(left).await;
        }
        let (_, receive, mut send) = stream.head().await.unwrap();
        let left = tokio::time::Instant::now();
        match way {
            "h2 reset" => send.send_reset(h2::Reason::CANCEL),
            _ => drop((receive, send, h2)),
        }
        return endless.closed_after(left).await;
    }
    let mut client = Client::connect(proxy.http).await;
    match way {
        "chunked fin" => client.send_chunked(CHAT, "", body).await,
        _ => client.send("POST", CHAT, "", body).await,
    }
    endless.reached().await;
    if moment != Moment::BeforeHeader {
        client.head().await.unwrap();
    }
    if moment == Moment::MidStream {
        assert_eq!(client.event().await.unwrap(), Some(delta(0)));
    }
    let left = tokio::time::Instant::now();
    match way {
        "reset" => client.wire.reset(),
        "half-close" => {
            tokio::io::AsyncWriteExt::shutdown(&mut client.wire.stream).await.unwrap();
            return endless.closed_after(left).await;
        }
        _ => drop(client),
    }
    endless.closed_after(left).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_client_leaves_while_its_request_waits_for_room_nothing_is_left() {
    let fleet = Fleet::echo(1).await;
    let limits = "max_body_bytes: 1MiB, max_buffered_bytes: 1MiB, buffer_wait: 20s";
    let proxy = Setup::of(&fleet).section("limits", limits).start().await;
    let mut holder = Client::connect(proxy.http).await;
    holder.send_head("POST", CHAT, "content-length: 1048576\r\n").await;
    holder.send_bytes(&vec![b'x'; 1_048_575]).await;
    eventually("the first body holds the budget", || async { proxy.held().await.body_bytes == 1_048_576.0 }).await;
    let mut waiting = Client::connect(proxy.http).await;
    waiting.send_head("POST", CHAT, "content-length: 100000\r\n").await;
    waiting.send_bytes(&[b'x'; 1000]).await;
    eventually("the second waits", || async { proxy.held().await.requests == 2.0 }).await;
    drop((waiting, holder));
    proxy.let_go().await;
    assert!(fleet.received().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_that_leave_at_any_point_leave_every_counter_at_zero() {
    const CLIENTS: u64 = 200;
    let fleet = Fleet::start(4, |exchange| {
        Box::pin(async move {
            exchange.begin_stream().await?;
            for number in 0.. {
                exchange.event(&delta(number)).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
    })
    .await;
    let proxy = Arc::new(Setup::of(&fleet).start().await);
    let together = Arc::new(Barrier::new(CLIENTS as usize + 1));
    let mut clients = tokio::task::JoinSet::new();
    for seed in 0..CLIENTS {
        clients.spawn(stream_and_leave(Arc::clone(&proxy), Arc::clone(&together), seed));
    }
    within("every client has its header", together.wait()).await;
    let held = proxy.held().await;
    assert_eq!((held.in_flight, held.requests), (200.0, 200.0), "they are in flight at the same time");
    together.wait().await;
    clients.join_all().await;
    proxy.let_go().await;
    assert_eq!(proxy.metric("requests_total", "reason=\"client_gone\"").await, CLIENTS as f64, "each left");
    for backend in proxy.backends().await {
        assert_eq!((&backend["in_flight"], &backend["decoding"]), (&0.into(), &0.into()), "{backend}");
        assert_eq!(backend["pending_prefill_tokens"], 0.0, "{backend}");
    }
}

/// Leaves after a number of events that follows from `seed`, by FIN, by reset, or by a reset of its stream.
async fn stream_and_leave(proxy: Arc<Proxy>, together: Arc<Barrier>, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let body = streamed_chat(&format!("Client {}. {}", seed % 20, "A shared prompt. ".repeat(20)));
    let events = rng.usize(0..30);
    if seed.is_multiple_of(3) {
        let mut stream = H2::connect(proxy.h2c).await.post(CHAT, &[], body.len(), Length::Stated).await;
        stream.send(&body, true).await.unwrap();
        let (_, mut receive, mut send) = stream.head().await.unwrap();
        together.wait().await;
        together.wait().await;
        for _ in 0..events {
            within("an event", receive.data()).await.unwrap().unwrap();
        }
        return send.send_reset(h2::Reason::CANCEL);
    }
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &body).await;
    client.head().await.unwrap();
    together.wait().await;
    together.wait().await;
    for _ in 0..events {
        client.event().await.unwrap().expect("the stream goes on");
    }
    if rng.bool() {
        client.wire.reset();
    }
}
