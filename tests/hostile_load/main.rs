//! Slow and hostile connections beside a normal load: the others must hardly notice, and memory stays within its budgets.
//!
//! The proxy is a process of its own, and so are the hostile clients with the engine that they ask. Theirs gives way to
//! the others on the processor, as if it ran elsewhere: what is measured is what they cost the proxy. Turns with them and
//! without them alternate, because a machine that does something else as well slows both.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod attackers;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common_control/mod.rs"]
mod common_control;
mod process;

use std::net::SocketAddr;
use std::time::Duration;

use common::backend::Fleet;
use common::chat_of;
use common::client::{self, Client};
use common_control::child::Process;
use common_control::open_metrics::OpenMetrics;
use common_control::{Scratch, eventually};
use process::Attackers;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A small model's answer to a short prompt.
const SMALL_MODEL: Duration = Duration::from_millis(20);

/// What normal requests may take more of at their 99th percentile.
const MOST_TIMES: f64 = 1.5;

/// What a connection may hold besides bodies: its header's limit, and as much again for the answer that passes through.
const CONNECTION_BYTES: u64 = 2 * 64 * 1024;

/// How much there is of everything.
struct Scale {
    /// What the engine of the normal load takes for an answer.
    engine_time: Duration,
    /// Hostile clients. A third of them has just been turned away at any time.
    hostile: usize,
    /// So many are connected before a turn begins.
    connected: f64,
    /// Between two things that a hostile connection does.
    pause: Duration,
    clients: u64,
    requests: usize,
    rounds: usize,
    body_budget_mebibytes: u64,
}

/// The 99th percentile of a turn's requests, in seconds, and the proxy's memory at its end, in bytes.
#[derive(Debug, Clone, Copy)]
struct Turn {
    p99: f64,
    resident: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_normal_load_hardly_notices_hostile_connections() {
    measure(&Scale {
        engine_time: SMALL_MODEL,
        hostile: 200,
        connected: 120.0,
        pause: Duration::from_secs(1),
        clients: 8,
        requests: 60,
        rounds: 3,
        body_budget_mebibytes: 32,
    })
    .await;
}

/// So many connections need as many descriptors twice over: `ulimit -n 20000`. Read what it prints, from a release build:
/// `cargo test --release --test hostile_load -- --ignored --nocapture two_thousand`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and many file descriptors"]
async fn a_normal_load_hardly_notices_two_thousand_hostile_connections() {
    measure(&two_thousand(SMALL_MODEL)).await;
}

/// The same beside engines that take no time, so that what the proxy takes is all there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and many file descriptors, and a quiet machine: its times are of single milliseconds"]
async fn a_load_that_takes_no_time_itself_notices_two_thousand_of_them_little() {
    measure(&two_thousand(Duration::ZERO)).await;
}

fn two_thousand(engine_time: Duration) -> Scale {
    Scale {
        engine_time,
        hostile: 3200,
        connected: 2000.0,
        pause: Duration::from_secs(2),
        clients: 16,
        requests: 100,
        rounds: 5,
        body_budget_mebibytes: 256,
    }
}

async fn measure(scale: &Scale) {
    let engine_time = scale.engine_time;
    let normal_fleet = Fleet::start(2, move |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            sleep(engine_time).await;
            exchange.respond(200, "{}").await
        })
    })
    .await;
    let (mut attackers, scratch) = (Attackers::start(), Scratch::new());
    let proxy =
        Process::ready(&scratch.file("warmgate.yaml", configuration(scale, &normal_fleet, attackers.engine))).await;
    let (http, h2c) = (proxy.addresses[0], proxy.addresses[1]);
    turn(&proxy, scale).await;

    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        alone.push(turn(&proxy, scale).await);
        attackers.attack(http, h2c, scale.hostile, scale.pause);
        eventually("most of them are there at a time", async || {
            metric(proxy.admin, "warmgate_connections").await >= scale.connected
        })
        .await;
        beside.push(turn(&proxy, scale).await);
        let held = metric(proxy.admin, "warmgate_buffered_body_bytes").await;
        let budget = scale.body_budget_mebibytes as f64 * f64::from(1 << 20);
        assert!(held <= budget, "{held} bytes of bodies are held");
        let connections = metric(proxy.admin, "warmgate_connections").await;
        eprintln!(
            "round {round}: {:?} alone, {:?} beside {connections} connections that hold {held} bytes of bodies",
            alone[round], beside[round]
        );
        attackers.leave_off();
        eventually("they are gone", async || metric(proxy.admin, "warmgate_connections").await < 20.0).await;
    }
    report_faults(&proxy).await;
    // By rounds, so that a machine that gets slower or faster is no difference.
    let ratio = median(alone.iter().zip(&beside).map(|(alone, beside)| beside.p99 / alone.p99).collect());
    let grown = beside.iter().map(|turn| turn.resident).max().unwrap().saturating_sub(alone[0].resident);
    let added = 1e3 * median(alone.iter().zip(&beside).map(|(alone, beside)| beside.p99 - alone.p99).collect());
    eprintln!("p99 beside them / alone: {ratio:.2}, {added:.1} ms more; the proxy grew by {} KiB", grown / 1024);
    assert!(ratio <= MOST_TIMES, "{ratio}: {alone:?} {beside:?}");
    let allowed = (scale.body_budget_mebibytes << 20) + scale.hostile as u64 * CONNECTION_BYTES;
    assert!(grown <= allowed, "grew by {grown} bytes, may by {allowed}");
}

fn configuration(scale: &Scale, normal: &Fleet, hostile: SocketAddr) -> String {
    let list = |addresses: &[SocketAddr]| {
        addresses.iter().map(|address| format!("{{url: 'http://{address}'}}")).collect::<Vec<_>>().join(", ")
    };
    let health = "health: {interval: 5m, timeout: 20s}";
    format!(
        "listeners: [{{address: '127.0.0.1:0'}}, {{address: '127.0.0.1:0', h2c: true}}]\n\
         admin: {{address: '127.0.0.1:0'}}\n\
         logging: {{access_log: 'off'}}\n\
         limits: {{max_buffered_bytes: {}MiB, max_body_bytes: 4MiB, buffer_wait: 100ms, header_timeout: 2s, body_timeout: 4s}}\n\
         pools:\n\
         \x20 - {{name: normal, models: [m], {health}, backends: [{}]}}\n\
         \x20 - {{name: hostile, models: [hostile], {health}, backends: [{}]}}\n",
        scale.body_budget_mebibytes,
        list(&normal.addresses()),
        list(&[hostile]),
    )
}

/// Normal requests over kept connections.
async fn turn(proxy: &Process, scale: &Scale) -> Turn {
    let mut clients = JoinSet::new();
    for seed in 0..scale.clients {
        let (address, requests) = (proxy.address(), scale.requests);
        clients.spawn(async move {
            let (mut client, body) = (Client::connect(address).await, chat_of(2000, seed));
            let mut times = Vec::with_capacity(requests);
            for _ in 0..requests {
                let begun = Instant::now();
                client.send("POST", CHAT, "", &body).await;
                assert_eq!(client.response("POST").await.unwrap().status, 200, "a normal request is served");
                times.push(begun.elapsed().as_secs_f64());
                sleep(Duration::from_millis(2)).await;
            }
            times
        });
    }
    let mut times = clients.join_all().await.concat();
    times.sort_by(f64::total_cmp);
    Turn { p99: times[times.len() * 99 / 100], resident: resident_bytes(proxy.id()) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The sum of all series of a metric.
async fn metric(admin: SocketAddr, name: &str) -> f64 {
    let page = OpenMetrics::read(&client::get(admin, "/metrics").await.text()).unwrap();
    page.series.iter().filter(|(series, _)| series.split('{').next() == Some(name)).map(|(_, value)| value).sum()
}

/// What the hostile connections were turned away for.
async fn report_faults(proxy: &Process) {
    let page = client::get(proxy.admin, "/metrics").await.text();
    for line in page.lines().filter(|line| line.starts_with("warmgate_malformed_messages_total")) {
        eprintln!("{line}");
    }
}

fn resident_bytes(process: u32) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
