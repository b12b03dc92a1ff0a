//! The host's monotonic clock at its ends: just booted, and up for years. (Wall-clock jumps touch log times and the expiry of
//! certificates only, which tests/tls_renewal.rs has; nothing else reads that clock.)

use crate::common_control::child::Process;
use crate::common_control::client::post_chat;
use crate::common_control::engine::{Answer, Engine};
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, chat, eventually};
use crate::hosts;

/// Serves, ejects and readmits in a time namespace where the host has been up for `offset` seconds more.
async fn serves_with(offset: i64) {
    let (engine, other, scratch) = (Engine::up("timed"), Engine::up("other"), Scratch::new());
    let ejection = "{failures: 1, base: 200ms, max: 1s, stuck_after: 1h}".to_owned();
    let settings = Settings { ejection, ..Settings::new([&engine, &other]) };
    let launcher = format!("unshare --time --monotonic {offset} --boottime {offset} --");
    let program = hosts::program(&scratch, &launcher, ":");
    let process = Process::start_program(&program, &scratch.file("warmgate.yaml", settings.to_string())).await;
    process.until_state("timed", "healthy").await;
    process.until_state("other", "healthy").await;
    engine.set_answer(Answer::Reset);
    eventually("the failing one is ejected", async || {
        assert_eq!(post_chat(process.address(), &chat("hello")).await.status, 200);
        process.logged("ejected") > 0
    })
    .await;
    engine.set_answer(Answer::Whole);
    eventually("it is readmitted", async || {
        assert_eq!(post_chat(process.address(), &chat("hello")).await.status, 200);
        process.logged("readmitted") > 0
    })
    .await;
    assert_eq!(process.logged("panicked"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_on_a_host_that_has_just_booted_and_on_one_that_never_does() {
    if !hosts::is_permitted(&["unshare", "--time", "--monotonic", "1", "true"]) {
        return;
    }
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let up: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    serves_with(2 - up as i64).await;
    serves_with(20 * 365 * 24 * 3600).await;
}
