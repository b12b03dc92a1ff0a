//! Upgrades under load: no request is lost, no stream is cut, and what was learned stays learned.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use warmgate::sim::engine::{Parameters, Timing};
use warmgate::sim::{EngineOptions, SimEngine};

use crate::common_control::client::Connection;
use crate::common_control::engine::Engine;
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, chat, eventually};
use crate::load::{Load, Served, cached_share};
use crate::service::Service;

/// Tokens that engines make a second for one stream.
const DECODE_RATE: f64 = 50.0;

/// How large it is.
struct Size {
    connections: usize,
    stream: Duration,
    /// What is compared before and after an upgrade.
    window: Duration,
}

fn fleet(engines: usize) -> Vec<SimEngine> {
    let parameters = EngineOptions::default().parameters;
    let timing = Timing::from_rates(100_000.0, DECODE_RATE);
    let parameters = Parameters { timing, kv_blocks: 65_536, ..parameters };
    let engine = || SimEngine::start(EngineOptions { parameters, ..EngineOptions::default() });
    (0..engines).map(|_| engine().unwrap()).collect()
}

fn configuration(engines: &[SimEngine]) -> String {
    let backends: Vec<_> = engines.iter().map(|engine| format!("{{url: '{}'}}", engine.url())).collect();
    format!(
        "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\n\
         server: {{keepalive_timeout: 20s}}\nlogging: {{access_log: 'off'}}\n\
         pools:\n- {{name: sim, engine: vllm, backends: [{}]}}\n",
        backends.join(", ")
    )
}

/// Upgrades twice under load; the cached share in the window before and in the one after each.
async fn upgraded_twice(size: &Size) -> [(f64, f64); 2] {
    let (engines, scratch) = (fleet(4), Scratch::new());
    let mut service = Service::start(&scratch.file("warmgate.yaml", configuration(&engines))).await;
    let tokens = (size.stream.as_secs_f64() * DECODE_RATE) as u32;
    let mut load = Load::start(service.address(), size.connections, tokens, size.stream);
    let mut upgrades = Vec::new();
    for _ in 0..2 {
        go_on(&mut load, size).await;
        upgrades.push(Instant::now());
        service.upgrade().await;
    }
    go_on(&mut load, size).await;
    let served = load.finish().await.unwrap_or_else(|failure| panic!("{failure}: {:?}", service.first.stderr()));
    let (status, _) = service.first.ended().await;
    assert_eq!(status.code(), Some(0), "the first process has finished");
    [upgrades[0], upgrades[1]].map(|at| shares(&served, at, size.window))
}

/// Waits until every client is two turns further, and a window is over.
async fn go_on(load: &mut Load, size: &Size) {
    let rest = tokio::time::sleep(size.window);
    for _ in 0..3 {
        let aim = load.count() + size.connections;
        eventually("conversations go on", async || load.count() >= aim).await;
    }
    rest.await;
}

#[expect(clippy::print_stdout, reason = "the figure that is asked for")]
fn shares(served: &[Served], at: Instant, window: Duration) -> (f64, f64) {
    let ((before, sent_before), (after, sent_after)) =
        (cached_share(served, at - window, window), cached_share(served, at, window));
    println!("cached {before:.3} of {sent_before} requests before, {after:.3} of {sent_after} after");
    assert!(sent_before > 0 && sent_after > 0);
    (before, after)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_upgrades_lose_no_request_and_cut_no_stream() {
    let size = Size { connections: 10, stream: Duration::from_secs(1), window: Duration::from_secs(2) };
    for (before, after) in upgraded_twice(&size).await {
        assert!(before > 0.0 && after > 0.0);
    }
}

/// Asks one short question after the other, over a kept connection or one for each, until told to stop; how many.
async fn ask_on(address: SocketAddr, is_kept: bool, stop: watch::Receiver<bool>) -> io::Result<usize> {
    let mut kept = None;
    for served in 0.. {
        if *stop.borrow() {
            return Ok(served);
        }
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(address).await?,
        };
        let reply = connection.chat(&chat("hello")).await?;
        if reply.status != 200 {
            return Err(io::Error::other(format!("{reply:?}")));
        }
        kept = (is_kept && reply.header("connection") != Some("close")).then_some(connection);
    }
    Ok(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_short_requests_loses_none() {
    let (engine, scratch) = (Engine::up("flood"), Scratch::new());
    let settings = Settings { server: "{keepalive_timeout: 20s}".into(), ..Settings::new([&engine]) };
    let mut service = Service::start(&scratch.file("warmgate.yaml", settings.to_string())).await;
    let stop = watch::Sender::new(false);
    let mut clients = JoinSet::new();
    for client in 0..16 {
        clients.spawn(ask_on(service.address(), client % 2 == 0, stop.subscribe()));
    }
    for _ in 0..3 {
        let aim = engine.posts() + 500;
        eventually("requests are served", async || engine.posts() >= aim).await;
        service.upgrade().await;
    }
    let aim = engine.posts() + 500;
    eventually("requests are served", async || engine.posts() >= aim).await;
    stop.send_replace(true);
    let mut served = 0;
    while let Some(ended) = clients.join_next().await {
        served += ended.unwrap().unwrap_or_else(|error| panic!("{error}: {:?}", service.first.stderr()));
    }
    assert_eq!(served, engine.posts(), "each request went to the engine once");
    assert_eq!(service.first.ended().await.0.code(), Some(0));
}

/// The figure of the issue; two minutes. `cargo test --release --test upgrade -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes two minutes"]
async fn fifty_connections_with_streams_of_15_seconds() {
    let size = Size { connections: 50, stream: Duration::from_secs(15), window: Duration::from_secs(10) };
    for (before, after) in upgraded_twice(&size).await {
        assert!(after >= 0.9 * before, "{after} after {before}");
    }
}
