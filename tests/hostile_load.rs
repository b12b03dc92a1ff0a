//! Slow and hostile connections beside a normal load: the others must hardly notice, and memory stays within its budgets.
//!
//! Hostile clients and normal ones run in one process with the proxy, in turns without the former and with them. A machine
//! that is busy with something else slows both kinds of turns, so the best of several ratios is the one that tells.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::backend::Fleet;
use common::client::Client;
use common::proxy::{Proxy, Setup};
use common::wire::Wire;
use common::{chat_of, streamed_chat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const CHAT: &str = "/v1/chat/completions";

/// What normal requests may take more of at their 99th percentile.
const MOST_TIMES: f64 = 1.5;

const BUDGET_BYTES: f64 = (32 << 20) as f64;

/// How much there is of everything.
struct Scale {
    hostile: usize,
    /// Between two things that a hostile connection does.
    pause: Duration,
    clients: usize,
    requests: usize,
    rounds: usize,
}

/// What hostile connections do, each in its turn.
const KINDS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_normal_load_hardly_notices_hostile_connections() {
    let scale = Scale { hostile: 120, pause: Duration::from_secs(1), clients: 4, requests: 100, rounds: 5 };
    measure(&scale).await;
}

/// 2,000 connections need as many descriptors three times over: `ulimit -n 20000`. Run it in a release build, and read
/// what it prints: `cargo test --release --test hostile_load -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and many file descriptors"]
async fn a_normal_load_hardly_notices_two_thousand_hostile_connections() {
    let scale = Scale { hostile: 2000, pause: Duration::from_secs(2), clients: 8, requests: 500, rounds: 5 };
    measure(&scale).await;
}

async fn measure(scale: &Scale) {
    let fleet = Fleet::start(2, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            if exchange.head.header("x-stream").is_none() {
                return exchange.respond(200, "{}").await;
            }
            exchange.begin_stream().await?;
            // For clients that do not read: as much as there is room for on the way.
            for _ in 0..512 {
                exchange.event(&"x".repeat(4096)).await?;
            }
            exchange.end_stream().await
        })
    })
    .await;
    let limits =
        "max_buffered_bytes: 32MiB, max_body_bytes: 4MiB, buffer_wait: 100ms, header_timeout: 2s, body_timeout: 4s";
    let proxy = Setup::of(&fleet).section("limits", limits).start().await;
    normal(proxy.http, scale).await;
    let (mut ratios, mut most_held) = (Vec::new(), 0.0_f64);
    for round in 0..scale.rounds {
        let without = normal(proxy.http, scale).await;
        let before = resident_bytes();
        let mut hostile = JoinSet::new();
        for at in 0..scale.hostile {
            hostile.spawn(be_hostile(at, proxy.http, proxy.h2c, scale.pause));
        }
        common::eventually("they are all there", async || {
            proxy.metric("connections", "").await >= scale.hostile as f64 * 0.8
        })
        .await;
        let with = normal(proxy.http, scale).await;
        let held = proxy.held().await.body_bytes;
        most_held = most_held.max(held);
        assert!(held <= BUDGET_BYTES, "{held} bytes of bodies are held");
        let connections = proxy.metric("connections", "").await;
        let grown = resident_bytes().saturating_sub(before) / 1024;
        println!(
            "round {round}: p99 {without:?} alone, {with:?} beside {connections} connections; {grown} KiB more resident",
        );
        ratios.push(with.as_secs_f64() / without.as_secs_f64());
        hostile.shutdown().await;
        proxy.let_go().await;
    }
    ratios.sort_by(f64::total_cmp);
    println!("p99 with / p99 without: {ratios:.2?}; at most {most_held} bytes of bodies held");
    report_faults(&proxy).await;
    assert!(ratios[0] <= MOST_TIMES, "{ratios:?}");
}

/// The 99th percentile of requests over kept connections.
async fn normal(address: SocketAddr, scale: &Scale) -> Duration {
    let mut clients = JoinSet::new();
    for seed in 0..scale.clients {
        let requests = scale.requests;
        clients.spawn(async move {
            let (mut client, body) = (Client::connect(address).await, chat_of(2000, seed as u64));
            let mut times = Vec::with_capacity(requests);
            for _ in 0..requests {
                let begun = Instant::now();
                client.send("POST", CHAT, "", &body).await;
                assert_eq!(client.response("POST").await.unwrap().status, 200, "a normal request is served");
                times.push(begun.elapsed());
                sleep(Duration::from_millis(2)).await;
            }
            times
        });
    }
    let mut times = clients.join_all().await.concat();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// One hostile client, which comes back as often as it is turned away.
async fn be_hostile(at: usize, http: SocketAddr, h2c: SocketAddr, pause: Duration) {
    // Not all at the same moment.
    sleep(pause.mul_f64((at % 97) as f64 / 97.0)).await;
    loop {
        let mut wire = Wire::connect(if at % KINDS == 6 { h2c } else { http }).await;
        let _ = attack(at % KINDS, &mut wire, pause).await;
        sleep(pause).await;
    }
}

async fn attack(kind: usize, wire: &mut Wire, pause: Duration) -> std::io::Result<()> {
    let head = |fields: &str| format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\n{fields}");
    match kind {
        // A header a byte at a time.
        0 => trickle(wire, head("x: ").as_bytes(), b"x", pause).await,
        // A body a byte at a time; the length is a claim.
        1 => trickle(wire, head("content-length: 4000000\r\n\r\n{").as_bytes(), b"x", pause).await,
        // Chunks of a byte.
        2 => trickle(wire, head("transfer-encoding: chunked\r\n\r\n").as_bytes(), b"1\r\nx\r\n", pause).await,
        // Large parts of bodies that do not end.
        3 => {
            wire.write(head("content-length: 4000000\r\n\r\n").as_bytes()).await?;
            trickle(wire, &vec![b'x'; 300_000], b"x", pause).await
        }
        // Headers without end.
        4 => trickle(wire, head("x: ").as_bytes(), &[b'x'; 60_000], pause).await,
        // Two requests in one.
        5 => {
            trickle(
                wire,
                head("content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n").as_bytes(),
                b"x",
                pause,
            )
            .await
        }
        // Pings.
        6 => {
            let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[0; 8]].concat();
            let begun = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]].concat();
            trickle(wire, &begun, &ping.repeat(50), pause).await
        }
        // An answer that is not read.
        _ => {
            let body = streamed_chat("x");
            let fields = format!("x-stream: 1\r\ncontent-length: {}\r\n\r\n", body.len());
            wire.write(&[head(&fields).as_bytes(), &body].concat()).await?;
            sleep(pause * 5).await;
            Ok(())
        }
    }
}

/// Sends `first`, and then `more` again and again until the other side has had enough. What it says is read, so that it is
/// noticed when it closes.
async fn trickle(wire: &mut Wire, first: &[u8], more: &[u8], pause: Duration) -> std::io::Result<()> {
    let (mut read, mut write) = wire.stream.split();
    let reading = async {
        let mut space = [0; 4096];
        while read.read(&mut space).await? > 0 {}
        Ok(())
    };
    let writing = async {
        write.write_all(first).await?;
        loop {
            sleep(pause).await;
            write.write_all(more).await?;
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}

async fn report_faults(proxy: &Proxy) {
    for fault in ["slow_header", "large_header", "framing", "flood"] {
        println!("{fault}: {}", proxy.metric("malformed_messages_total", &format!("\"{fault}\"")).await);
    }
}

/// Memory of this process, the clients' included.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
