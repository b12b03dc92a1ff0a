//! A full disk under the logs: requests do not notice, what is lost is counted, and lines come again when there is room.

use std::path::Path;

use crate::common_control::child::Process;
use crate::common_control::client::{get, post_chat};
use crate::common_control::engine::Engine;
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, chat, eventually, long_prompt};
use crate::hosts;

/// Bytes of the disk.
const DISK: &str = "64k";

async fn counter(process: &Process, name: &str) -> f64 {
    let page = get(process.admin, "/metrics").await.body;
    let line = page.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

/// The last line of a file is whole.
fn ends_whole(path: &Path) -> bool {
    std::fs::read(path).unwrap().ends_with(b"}\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_costs_log_lines_and_no_requests() {
    if !hosts::is_permitted(&["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        return;
    }
    let (engine, scratch) = (Engine::up("logged"), Scratch::new());
    let disk = scratch.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let (access, trace) = (disk.join("access.log"), disk.join("trace.jsonl"));
    let logging = format!(
        "{{access_log: {}, block_trace: {{file: {}, max_bytes: 1MiB, files: 2}}}}",
        access.display(),
        trace.display()
    );
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let file = scratch.file("warmgate.yaml", settings.to_string());
    let mount = format!("mount -t tmpfs -o size={DISK} warmgate-test {}", disk.display());
    let program = hosts::program(&scratch, "unshare --mount", &mount);
    let process = Process::start_program(&program, &file).await;
    process.until_state("logged", "healthy").await;

    let ask = async |text: &str| {
        assert_eq!(post_chat(process.address(), &chat(&long_prompt(text))).await.status, 200, "requests go on");
    };
    let ballast = hosts::seen_by(process.id(), &disk.join("ballast"));
    // As much as fits.
    let _ = std::fs::write(&ballast, vec![0; 1 << 20]);
    eventually("lines are lost", async || {
        ask("lost").await;
        counter(&process, "warmgate_access_log_dropped_total").await > 0.0
            && counter(&process, "warmgate_trace_dropped_total").await > 0.0
    })
    .await;
    process.until_logged("the access log cannot be written").await;
    process.until_logged("the block trace cannot be written").await;

    std::fs::remove_file(&ballast).unwrap();
    let written = hosts::seen_by(process.id(), &access);
    let traced = hosts::seen_by(process.id(), &trace);
    let lost = counter(&process, "warmgate_access_log_dropped_total").await;
    let (before, lines) =
        (std::fs::metadata(&written).unwrap().len(), counter(&process, "warmgate_trace_lines_total").await);
    ask("there is room").await;
    eventually("lines are written again", async || std::fs::metadata(&written).unwrap().len() > before).await;
    eventually("the trace too", async || counter(&process, "warmgate_trace_lines_total").await > lines).await;
    assert!(ends_whole(&written) && ends_whole(&traced));
    assert_eq!(counter(&process, "warmgate_access_log_dropped_total").await, lost);
}
