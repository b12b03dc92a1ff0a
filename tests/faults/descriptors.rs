//! No file descriptor is left: accepting pauses, what is in flight goes on, and all is well when some are back.

use crate::common_control::child::Process;
use crate::common_control::client::{Connection, get, open_stream};
use crate::common_control::engine::{Answer, Engine, is_whole_stream};
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, chat, eventually, streamed};
use crate::hosts;

/// Enough to start with, and used up soon.
const DESCRIPTORS: usize = 96;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_file_descriptor_accepting_pauses_and_requests_in_flight_go_on() {
    if !hosts::is_permitted(&["prlimit", "--nofile=96", "true"]) {
        return;
    }
    let (engine, scratch) = (Engine::up("scarce"), Scratch::new());
    let settings = Settings { metrics: "{enabled: false}".into(), ..Settings::new([&engine]) };
    let program = hosts::program(&scratch, &format!("prlimit --nofile={DESCRIPTORS} --"), ":");
    let process = Process::start_program(&program, &scratch.file("warmgate.yaml", settings.to_string())).await;
    process.until_state("scarce", "healthy").await;

    engine.set_answer(Answer::Gated);
    let (mut stream, _) = open_stream(process.address(), &streamed("in flight")).await;
    engine.emit(1);
    let mut idle = Vec::new();
    while process.logged("accepting connections fails") == 0 {
        // The system takes them; the proxy cannot.
        idle.push(Connection::open(process.address()).await.unwrap());
        assert!(idle.len() < 10 * DESCRIPTORS, "there is no end of descriptors");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    engine.emit(3);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()), "what was in flight is not disturbed");
    engine.set_answer(Answer::Whole);
    drop(stream);

    drop(idle);
    eventually("new connections are served again", async || {
        let mut connection = Connection::open(process.address()).await.unwrap();
        connection.chat(&chat("again")).await.is_ok_and(|reply| reply.status == 200)
    })
    .await;
    assert_eq!(process.logged("accepting connections fails"), 1, "it is said once, not ten times a second");
    eventually("no connection is left", async || {
        get(process.admin, "/metrics").await.body.contains("\nwarmgate_connections 0.0\n")
    })
    .await;
    assert_eq!(process.logged("panicked"), 0);
}
