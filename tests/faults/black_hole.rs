//! Packets that vanish, in a network namespace of our own: nothing tells that the other side is gone.
//!
//! The test runs itself again inside the namespace. There one engine has an address on the loopback device; taken away, what is
//! sent to it goes out through a pair of devices behind which nobody is, without an error.

use std::process::Command;

use crate::common_control::child::Process;
use crate::common_control::client::{Connection, open_stream, post_chat};
use crate::common_control::engine::{Answer, Engine};
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, chat, eventually, streamed, within};
use crate::hosts;
use crate::tap::forward;

/// Set inside the namespace.
const INSIDE: &str = "WARMGATE_TEST_IN_NAMESPACE";

/// The engine's address, and the one that packets to it come from.
const FAR: &str = "10.77.0.2";

const NETWORK: &str = "ip link set lo up
ip link add near type veth peer name nobody
ip addr add 10.77.0.1/24 dev near
ip link set near up
ip link set nobody up
ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev near nud permanent";

fn shell(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

#[test]
fn packets_may_vanish() {
    if !hosts::is_permitted(&["unshare", "--net", "sh", "-ec", NETWORK]) {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.arg("--net").arg(this).args(["--exact", "black_hole::inside", "--ignored", "--nocapture"]);
    assert!(command.env(INSIDE, "1").status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "packets_may_vanish runs it in a namespace"]
async fn inside() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    shell(NETWORK);
    shell(&format!("ip addr add {FAR}/32 dev lo"));
    let (near, far, scratch) = (Engine::up("near"), Engine::up("far"), Scratch::new());
    let hidden = forward(format!("{FAR}:0").parse().unwrap(), far.address()).await;
    let mut settings = Settings {
        timeouts: "{connect: 300ms, first_token: 2s, between_tokens: 1s, read: 1s, write: 1s}".into(),
        health: "{interval: 200ms, timeout: 500ms, rise: 1, fall: 2}".into(),
        ejection: "{failures: 3, base: 1s, max: 1s, stuck_after: 1h}".into(),
        ..Settings::new([&near, &far])
    };
    settings.backends[1].1 = hidden;
    let process = Process::start(&scratch.file("warmgate.yaml", settings.to_string())).await;
    for name in ["near", "far"] {
        process.until_state(name, "healthy").await;
    }
    far.set_answer(Answer::Gated);
    let mut stream = loop {
        let (stream, head) = open_stream(process.address(), &streamed("cut off")).await;
        if head.backend() == "far" {
            break stream;
        }
    };
    far.emit(1);
    assert!(within("its first token", stream.chunk()).await.unwrap().is_some());

    shell(&format!("ip addr del {FAR}/32 dev lo"));
    // Before probes know it: the kept connection, or a new one, goes nowhere, and the other backend answers.
    let mut connection = Connection::open(process.address()).await.unwrap();
    for _ in 0..6 {
        let reply = within("an answer", connection.chat(&chat("hello"))).await.unwrap();
        assert_eq!((reply.status, reply.backend()), (200, "near"), "{reply:?}");
    }
    let rest = stream.rest().await.unwrap();
    assert!(rest.contains("between_tokens_timeout"), "the stream ended with an error event: {rest}");
    process.until_state("far", "unhealthy").await;

    shell(&format!("ip addr add {FAR}/32 dev lo"));
    far.set_answer(Answer::Whole);
    eventually("requests are sent to it again", async || {
        let reply = post_chat(process.address(), &chat("hello")).await;
        assert_eq!(reply.status, 200);
        reply.backend() == "far"
    })
    .await;
}
