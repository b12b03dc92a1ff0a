//! Who goes first.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::common::backend::{Exchange, Fleet};
use crate::common::client::Client;
use crate::common::proxy::Setup;
use crate::{Asked, Bench, CHAT};

/// The texts of what the backends got, but for the first `skipped`.
async fn texts(bench: &Bench, asked: Vec<Asked>, skipped: usize) -> Vec<String> {
    let received: Vec<String> = bench.fleet.received()[skipped..]
        .iter()
        .map(|received| received.head.header("x-request-id").unwrap().to_owned())
        .collect();
    for request in asked {
        request.served().await;
    }
    received
}

fn named(name: &str, more: &str) -> String {
    format!("x-request-id: {name}\r\n{more}")
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_requests_go_first_if_the_header_is_configured() {
    for (keys, order) in [
        ("max_in_flight: 1, queue: {priority_header: x-priority}", ["high", "normal", "low"]),
        ("max_in_flight: 1", ["low", "normal", "high"]),
    ] {
        let bench = Bench::start(1, keys).await;
        let mut asked = bench.fill(1).await;
        for (waiting, priority) in ["low", "normal", "high"].into_iter().enumerate() {
            let header = named(priority, &format!("x-priority: {priority}\r\n"));
            asked.push(bench.ask_after(waiting, priority, &header).await);
        }
        bench.until_waiting(3).await;
        for answered in 0..4 {
            bench.answer(1);
            bench.until_received(4.min(2 + answered)).await;
        }
        assert_eq!(texts(&bench, asked, 1).await, order, "{keys}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_in_a_body_says_so_if_that_is_configured() {
    let bench = Bench::start(1, "max_in_flight: 1, queue: {priority_field: true}").await;
    let asked = bench.fill(1).await;
    let mut clients = Vec::new();
    for (waiting, priority) in [5, 0, -1].into_iter().enumerate() {
        bench.until_waiting(waiting).await;
        let body = format!(r#"{{"model":"m","priority":{priority},"messages":[{{"role":"user","content":"x"}}]}}"#);
        let mut client = Client::connect(bench.proxy.http).await;
        client.send("POST", CHAT, &named(&priority.to_string(), ""), body.as_bytes()).await;
        clients.push(client);
    }
    bench.until_waiting(3).await;
    for answered in 0..4 {
        bench.answer(1);
        bench.until_received(4.min(2 + answered)).await;
    }
    assert_eq!(texts(&bench, asked, 1).await, ["-1", "0", "5"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_prompt_does_not_wait_for_a_burst_of_long_ones() {
    let bench = Bench::start(1, "max_in_flight: 1").await;
    let mut asked = bench.fill(1).await;
    for number in 0..5 {
        let text = format!("{number} {}", "long ".repeat(20_000));
        asked.push(bench.ask_after(number, &text, &named(&format!("long{number}"), "")).await);
    }
    asked.push(bench.ask_after(5, "short", &named("short", "")).await);
    bench.until_waiting(6).await;
    for answered in 0..7 {
        bench.answer(1);
        bench.until_received(7.min(2 + answered)).await;
    }
    let order = texts(&bench, asked, 1).await;
    assert_eq!(order, ["short", "long0", "long1", "long2", "long3", "long4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_attempt_goes_before_all_that_wait() {
    let (fail, free) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let gates = [Arc::clone(&fail), Arc::clone(&free)];
    let fleet = Fleet::start(2, move |exchange: &mut Exchange| {
        let [fail, free] = gates.clone();
        Box::pin(async move {
            let body = exchange.body().await?;
            match exchange.head.header("x-request-id") {
                Some("failing") if exchange.attempt == 1 => {
                    fail.acquire().await.unwrap().forget();
                    return exchange.reset();
                }
                Some("busy") => free.acquire().await.unwrap().forget(),
                _ => {}
            }
            exchange.respond(200, &String::from_utf8(body).unwrap()).await
        })
    })
    .await;
    let (bench, mut asked) = three_behind_two(fleet).await;
    // Its backend is free then, and serves those that wait; the further attempt has to wait for the other one.
    fail.add_permits(1);
    bench.until_received(5).await;
    bench.until_waiting(1).await;
    asked.push(bench.ask("one more", &named("one more", "")));
    bench.until_received(6).await;
    bench.until_waiting(1).await;
    free.add_permits(1);
    for request in asked {
        request.served().await;
    }
    let received = bench.fleet.received();
    let id = |at: usize| received[at].head.header("x-request-id").unwrap();
    assert_eq!((id(0), id(6)), ("failing", "failing"), "it was served in the end");
    assert_ne!(received[0].backend, received[6].backend, "by the other backend");
    assert_eq!(received[1].backend, received[6].backend, "once that was free");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_attempt_does_not_stand_behind_others() {
    let gates = ["failing", "busy", ""].map(|name| (name, Arc::new(Semaphore::new(0))));
    let shared = gates.clone();
    let fleet = Fleet::start(2, move |exchange: &mut Exchange| {
        let gates = shared.clone();
        Box::pin(async move {
            let body = exchange.body().await?;
            let id = exchange.head.header("x-request-id").unwrap_or_default();
            let is_broken = id == "failing" && exchange.attempt == 1;
            let gate = gates.iter().find(|(name, _)| *name == id && (is_broken || id == "busy"));
            gate.unwrap_or(&gates[2]).1.acquire().await.unwrap().forget();
            if is_broken { exchange.reset() } else { exchange.respond(200, &String::from_utf8(body).unwrap()).await }
        })
    })
    .await;
    let (bench, asked) = three_behind_two(fleet).await;
    let [failing, busy, others] = gates.map(|(_, gate)| gate);
    // One that waits takes the place of the failed attempt, which waits for the other backend.
    failing.add_permits(1);
    bench.until_received(3).await;
    bench.until_waiting(3).await;
    // Who is looking when there is room takes it, whoever waits.
    bench.until_nobody_looks().await;
    busy.add_permits(1);
    bench.until_received(4).await;
    let received = bench.fleet.received();
    assert_eq!(received[3].head.header("x-request-id"), Some("failing"), "it goes first");
    assert_eq!(received[3].backend, received[1].backend);
    others.add_permits(4);
    for request in asked {
        request.served().await;
    }
}

/// A request that will fail at one backend and one that keeps the other busy, and three that wait behind them.
async fn three_behind_two(fleet: Fleet) -> (Bench, Vec<Asked>) {
    let setup = Setup::new().pool("p", &fleet, "max_in_flight: 1, policy: round_robin, ejection: {failures: 1000}");
    let proxy = setup.section("retry", "budget: 1.0").start().await;
    let bench = Bench { fleet, proxy, answers: Arc::new(Semaphore::new(0)) };
    let mut asked = vec![bench.ask("failing", &named("failing", ""))];
    bench.until_received(1).await;
    asked.push(bench.ask("busy", &named("busy", "")));
    bench.until_received(2).await;
    for number in 0..3 {
        asked.push(bench.ask_after(number, "waiting", &named(&format!("waiting{number}"), "")).await);
    }
    bench.until_waiting(3).await;
    (bench, asked)
}
