//! A configuration that changes while requests are served, and while some wait.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common_control::client::{Connection, get, open_stream};
use common_control::engine::{Answer, Engine, is_whole_stream};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{chat, eventually, long_prompt, streamed};

/// What the clients of the load saw.
#[derive(Default)]
struct Seen {
    good: AtomicUsize,
    bad: AtomicUsize,
    closed: AtomicUsize,
    is_over: AtomicBool,
}

async fn load(address: std::net::SocketAddr, name: String, seen: Arc<Seen>) {
    let mut connection = Connection::open(address).await.unwrap();
    let mut turn = 0;
    while !seen.is_over.load(SeqCst) {
        turn += 1;
        let prompt = format!("{} {}", long_prompt(&name), turn % 7);
        let body = if turn % 2 == 0 { streamed(&prompt) } else { chat(&prompt) };
        match connection.chat(&body).await {
            Ok(reply) if reply.status == 200 && (turn % 2 == 1 || is_whole_stream(&reply.body)) => {
                seen.good.fetch_add(1, SeqCst);
                if reply.header("connection") == Some("close") {
                    seen.closed.fetch_add(1, SeqCst);
                }
            }
            Ok(reply) => {
                eprintln!("{} {}", reply.status, reply.body);
                seen.bad.fetch_add(1, SeqCst);
            }
            Err(error) => {
                eprintln!("closed: {error}");
                seen.closed.fetch_add(1, SeqCst);
                connection = Connection::open(address).await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_each_200_ms_under_load_for_20_s_fails_no_request_and_closes_no_connection() {
    let engines @ [one, two, three, four] = &["load-1", "load-2", "load-3", "load-4"].map(Engine::up);
    let first = Settings { pool: "engine: generic, policy: cost".into(), ..Settings::new([one, two, three]) };
    let second = Settings { retry: "{max_attempts: 2, budget: 0.5}".into(), ..Settings::new([two, three, four]) };
    let second = second.policy("least_request");
    let proxy = Proxy::with(&first, &[one, two, three]).await;
    let seen = Arc::new(Seen::default());
    let clients: Vec<_> =
        (0..6).map(|at| tokio::spawn(load(proxy.address(), format!("client-{at}"), Arc::clone(&seen)))).collect();

    let (started, mut ticks, mut reloads) = (Instant::now(), tokio::time::interval(Duration::from_millis(200)), 0);
    while started.elapsed() < Duration::from_secs(20) {
        ticks.tick().await;
        proxy.apply(if reloads % 2 == 0 { &second } else { &first }).await;
        reloads += 1;
    }
    seen.is_over.store(true, SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let count = |count: &AtomicUsize| count.load(SeqCst);
    println!("{reloads} reloads, {} requests", count(&seen.good));
    assert_eq!((count(&seen.bad), count(&seen.closed)), (0, 0), "failed requests, closed connections");
    assert!(count(&seen.good) > 200 && reloads > 50, "{reloads} reloads, {} requests", count(&seen.good));
    assert!(engines.iter().all(|engine| engine.posts() > 0), "all took part");
    eventually("everything taken is given back", async || {
        let text = get(proxy.admin(), "/metrics").await.body;
        let zero = |name: &str| text.lines().filter(|line| line.starts_with(name)).all(|line| line.ends_with(" 0.0"));
        zero("warmgate_in_flight_requests{") && zero("warmgate_pending_prefill_tokens{")
    })
    .await;
    let generation = proxy.metric("warmgate_snapshot_generation").await;
    assert!(generation >= Some(f64::from(reloads)), "each reload was published: {generation:?}");
}

// === overload ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_limit_lets_those_go_that_wait_and_a_pool_that_is_gone_has_nobody_waiting() {
    let engine = Engine::up("limited");
    engine.set_answer(Answer::Gated);
    let settings = |limit: u32| Settings::new([&engine]).policy(&format!("round_robin, max_in_flight: {limit}"));
    let proxy = Proxy::with(&settings(1), &[&engine]).await;
    let (first, _) = open_stream(proxy.address(), &streamed("first")).await;
    let address = proxy.address();
    let open = |prompt: &str| {
        let body = streamed(prompt);
        tokio::spawn(async move { open_stream(address, &body).await })
    };
    let waiting = async || get(proxy.admin(), "/backends").await.json()["pools"][0]["queue"]["normal"].clone();
    let second = open("second");
    eventually("the second waits", async || waiting().await == 1).await;
    proxy.apply(&settings(2)).await;
    let (second, head) = second.await.unwrap();
    assert_eq!(head.status, 200);

    let third = open("third");
    eventually("the third waits", async || waiting().await == 1).await;
    let gone = settings(2).to_string().replace("name: main", "name: other");
    std::fs::write(proxy.file(), gone).unwrap();
    let (_, head) = third.await.unwrap();
    assert_eq!(head.status, 503, "its pool is gone, and with it all that it could wait for");
    engine.finish();
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_a_whole_request_ends_its_wait() {
    let engine = Engine::up("kept-busy");
    engine.set_answer(Answer::Gated);
    let before = Settings::new([&engine]).policy("round_robin, max_in_flight: 1");
    let after = Settings { timeouts: "{total: 500ms}".into(), ..before.clone() };
    let proxy = Proxy::with(&before, &[&engine]).await;
    // It keeps the limits that it has begun with.
    let (held, _) = open_stream(proxy.address(), &streamed("held")).await;
    proxy.apply(&after).await;
    let reply = proxy.chat(&chat("waiting")).await;
    assert_eq!(reply.status, 504, "{}", reply.body);
    assert!(reply.body.contains("total_timeout"), "{}", reply.body);
    assert_eq!(engine.posts(), 1, "it was sent nowhere");
    engine.finish();
    drop(held);
}
