//! A changed configuration in a running process: how it is noticed, what is refused, what stays.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Command;

use common_control::child::Process;
use common_control::client::{Connection, ask, get, open_stream};
use common_control::engine::{Answer, Engine, Page, is_whole_stream};
use common_control::proxy::{self, Proxy};
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, logs, long_prompt, streamed};

// === how a change is noticed ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_reloads() {
    let (old, new) = (Engine::up("hup-old"), Engine::up("hup-new"));
    let scratch = Scratch::new();
    // A symbolic link into a folder that nobody watches: only the signal tells of the change.
    let elsewhere = Scratch::new();
    let real = elsewhere.file("real.yaml", Settings::new([&old]).to_string());
    let link = scratch.path().join("warmgate.yaml");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let process = Process::ready(&link).await;

    elsewhere.file("real.yaml", Settings::new([&old, &new]).to_string());
    process.signal("HUP");
    process.until_state("hup-new", "healthy").await;
    process.signal("HUP");
    process.until_logged("Unchanged").await;
    elsewhere.file("real.yaml", "pools: 3");
    process.signal("HUP");
    process.until_logged("the configuration file is refused").await;
    assert_eq!(proxy::backend(process.admin, "hup-new").await["state"], "healthy", "the running configuration stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_written_over_is_reloaded() {
    let (old, new) = (Engine::up("over-old"), Engine::up("over-new"));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    std::fs::write(proxy.file(), Settings::new([&old, &new]).to_string()).unwrap();
    proxy.until_state("over-new", "healthy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_renamed_over_is_reloaded() {
    let (old, new) = (Engine::up("renamed-old"), Engine::up("renamed-new"));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    proxy.rewrite(&Settings::new([&old, &new]));
    proxy.until_state("renamed-new", "healthy").await;
    proxy.rewrite(&Settings::new([&new]));
    proxy.until_state("renamed-old", "absent").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swapped_symbolic_link_is_reloaded() {
    // As Kubernetes does for a ConfigMap: file -> ..data/file, and ..data -> a folder with the time in its name.
    let (old, new) = (Engine::up("swapped-old"), Engine::up("swapped-new"));
    let scratch = Scratch::new();
    let put = |folder: &str, settings: &Settings| {
        std::fs::create_dir(scratch.path().join(folder)).unwrap();
        scratch.file(&format!("{folder}/warmgate.yaml"), settings.to_string());
        std::os::unix::fs::symlink(folder, scratch.path().join("..data_next")).unwrap();
        std::fs::rename(scratch.path().join("..data_next"), scratch.path().join("..data")).unwrap();
    };
    put("..2026_01", &Settings::new([&old]));
    let file = scratch.path().join("warmgate.yaml");
    std::os::unix::fs::symlink("..data/warmgate.yaml", &file).unwrap();
    let kept = Scratch::new();
    let proxy = Proxy::start_with(kept, file).await;
    proxy.until_state("swapped-old", "healthy").await;
    put("..2026_02", &Settings::new([&new]));
    proxy.until_state("swapped-new", "healthy").await;
    assert_eq!(proxy.state("swapped-old").await, "absent");
}

/// Reloads that were tried, whatever came of them.
async fn reloads(proxy: &Proxy) -> f64 {
    let text = get(proxy.admin(), "/metrics").await.body;
    let series = text.lines().filter(|line| line.starts_with("warmgate_config_reloads_total{"));
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_files_in_the_folder_cause_no_reload() {
    let (old, new) = (Engine::up("own-old"), Engine::up("own-new"));
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    // Its access log is one of the files beside it.
    let logging = format!("{{access_log: {}}}", scratch.path().join("access.log").display());
    let settings = Settings { logging, ..Settings::new([&old]) };
    let real = elsewhere.file("real.yaml", settings.to_string());
    let link = scratch.path().join("warmgate.yaml");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    // The other one watches the same folder: when it has seen its file change, this one would have as well.
    let other_file = scratch.file("other.yaml", Settings::new([&old]).to_string());
    let proxy = Proxy::start_with(Scratch::new(), link.clone()).await;
    let other = Proxy::start_with(Scratch::new(), other_file).await;
    proxy.until_state("own-old", "healthy").await;
    let before = reloads(&proxy).await;
    // Nobody watches where this is; whoever reads the file for another reason finds it changed.
    let changed = Settings { backends: Settings::new([&old, &new]).backends, ..settings };
    elsewhere.file("real.yaml", changed.to_string());
    for turn in 0..3 {
        let seen = reloads(&other).await;
        scratch.file("warmgate.yaml.bak", turn.to_string());
        std::fs::rename(scratch.path().join("warmgate.yaml.bak"), scratch.path().join("renamed")).unwrap();
        assert_eq!(proxy.chat(&chat("hello")).await.status, 200, "a line for the access log");
        let retry = format!("{{max_attempts: {}}}", 2 + turn);
        scratch.file("other.yaml", Settings { retry, ..Settings::new([&old]) }.to_string());
        eventually("the other one has seen its file change", async || reloads(&other).await > seen).await;
    }
    assert_eq!(reloads(&proxy).await, before, "other files are not its concern");

    let seen = reloads(&other).await;
    std::os::unix::fs::symlink(&real, scratch.path().join("next")).unwrap();
    std::fs::rename(scratch.path().join("next"), &link).unwrap();
    proxy.until_state("own-new", "healthy").await;
    assert!(reloads(&proxy).await > before, "its own file is");
    assert_eq!(reloads(&other).await, seen, "and the other one minds its own as well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_reloads_and_says_what_it_did() {
    let (old, new) = (Engine::up("cmd-old"), Engine::up("cmd-new"));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    let outcome = async || proxy.reload().await.json()["outcome"].as_str().unwrap().to_owned();
    assert_eq!(outcome().await, "unchanged");
    // The file's watcher waits for the file to come to rest, so the command is first.
    proxy.rewrite(&Settings::new([&old, &new]));
    assert_eq!(outcome().await, "applied");
    proxy.until_state("cmd-new", "healthy").await;
    assert_eq!(outcome().await, "unchanged");
    // A change of comments and order alone is none.
    let text = std::fs::read_to_string(proxy.file()).unwrap();
    std::fs::write(proxy.file(), format!("# a comment\n{text}")).unwrap();
    assert_eq!(outcome().await, "unchanged");
}

// === what is refused ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_file_is_refused_whole_with_its_reasons() {
    let (old, new) = (Engine::up("valid"), Engine::up("never-applied"));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    assert_eq!(proxy.metric("warmgate_config_last_reload_successful").await, Some(1.0));
    let good = Settings::new([&old, &new]);
    let wrong = Settings { retry: "{max_attempts: 99}".into(), server: "{drain_delai: 1s}".into(), ..good.clone() };
    proxy.rewrite(&wrong);
    let reply = proxy.reload().await;
    assert_eq!(reply.status, 422, "{}", reply.body);
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("retry.max_attempts") && detail.contains("server.drain_delai"), "all reasons: {detail}");
    assert_eq!(proxy.metric("warmgate_config_last_reload_successful").await, Some(0.0));
    assert!(proxy.metric(r#"warmgate_config_reloads_total{outcome="refused"}"#).await >= Some(1.0));
    assert_eq!(proxy.state("never-applied").await, "absent", "the good parts are not applied either");
    assert_eq!(proxy.chat(&chat("hello")).await.backend(), "valid");

    // By its watcher, what is refused shows in the log.
    let refused = || logs::count(&["ERROR", "is refused", proxy.file().to_str().unwrap(), "max_attempts"]);
    proxy.rewrite(&Settings { retry: "{max_attempts: 98}".into(), ..good.clone() });
    eventually("the refusal is logged", async || refused() >= 1).await;

    proxy.apply(&good).await;
    assert_eq!(proxy.metric("warmgate_config_last_reload_successful").await, Some(1.0));
    proxy.until_state("never-applied", "healthy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_by_the_command_is_logged() {
    let engine = Engine::up("logged");
    let proxy = Proxy::with(&Settings::new([&engine]), &[&engine]).await;
    proxy.rewrite(&Settings { retry: "{max_attempts: 97}".into(), ..Settings::new([&engine]) });
    assert_eq!(proxy.reload().await.status, 422);
    assert!(logs::count(&["ERROR", "refused", proxy.file().to_str().unwrap(), "found `97`"]) >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_need_a_restart_are_named_and_nothing_is_applied() {
    let (old, new) = (Engine::up("fixed"), Engine::up("not-with-it"));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    proxy.rewrite(&Settings {
        listeners: "[{address: '127.0.0.1:0'}, {address: '127.0.0.2:0'}]".into(),
        admin: "{address: '127.0.0.2:0'}".into(),
        server: "{threads: 3}".into(),
        locality: "{max_bytes: 17MiB}".into(),
        ..Settings::new([&old, &new])
    });
    let reply = proxy.reload().await;
    assert_eq!(reply.status, 422, "{}", reply.body);
    for key in ["listeners", "admin.address", "server.threads", "locality.max_bytes"] {
        assert!(reply.body.contains(key), "{key} in {}", reply.body);
    }
    assert_eq!(proxy.state("not-with-it").await, "absent");
    assert_eq!(proxy.metric("warmgate_config_last_reload_successful").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_access_log_that_cannot_be_opened_refuses_the_reload() {
    let (old, new) = (Engine::up("log-old"), Engine::up("log-new"));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    let nowhere = proxy.scratch().path().join("no/such/folder/access.log");
    let logging = format!("{{access_log: {}}}", nowhere.display());
    proxy.rewrite(&Settings { logging, ..Settings::new([&old, &new]) });
    let reply = proxy.reload().await;
    assert_eq!(reply.status, 422, "{}", reply.body);
    assert!(reply.body.contains("no/such/folder"), "{}", reply.body);
    assert_eq!(proxy.state("log-new").await, "absent");
}

/// A named pipe; whoever waits in opening it is let go when this is dropped, so that a failed test ends.
struct Pipe(PathBuf);

impl Drop for Pipe {
    fn drop(&mut self) {
        // Kept open to the end of the process: somebody may be about to open it.
        std::mem::forget(OpenOptions::new().read(true).write(true).open(&self.0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_access_log_that_is_a_pipe_is_refused_and_control_goes_on() {
    let (old, new) = (Engine::up("pipe-old"), Engine::up("pipe-new"));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    let pipe = Pipe(proxy.scratch().path().join("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe.0).status().unwrap().success());
    let logging = format!("{{access_log: {}}}", pipe.0.display());
    proxy.rewrite(&Settings { logging, ..Settings::new([&old, &new]) });
    let reply = proxy.reload().await;
    assert_eq!(reply.status, 422, "{}", reply.body);
    assert!(reply.body.contains("a pipe") && reply.body.contains(pipe.0.to_str().unwrap()), "{}", reply.body);
    let reply = ask(proxy.admin(), "POST", "/backends/pipe-old/drain", "").await;
    assert_eq!(reply.json()["outcome"], "draining", "the control loop answers: {}", reply.body);
    assert_eq!(proxy.state("pipe-new").await, "absent", "nothing of the file is applied");
    let probes = old.probes();
    eventually("probes go on", async || old.probes() > probes + 2).await;
}

// === what a change does ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_added_backend_starts_and_serves_when_it_is_well() {
    let (old, new) = (Engine::up("first"), Engine::up("added"));
    new.set_health(Page::status(503));
    let proxy = Proxy::with(&Settings::new([&old]), &[&old]).await;
    proxy.apply(&Settings::new([&old, &new])).await;
    assert_eq!(proxy.state("added").await, "starting");
    eventually("it is probed", async || new.probes() >= 2).await;
    for _ in 0..4 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "first");
    }
    new.set_health(Page::status(200));
    proxy.until_state("added", "healthy").await;
    let mut connection = Connection::open(proxy.address()).await.unwrap();
    eventually("it serves", async || connection.chat(&chat("hello")).await.unwrap().backend() == "added").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_backend_finishes_its_streams_and_then_leaves_no_series() {
    let (removed, kept) = (Engine::up("removed"), Engine::up("kept"));
    let proxy = Proxy::with(&Settings::new([&removed, &kept]), &[&removed, &kept]).await;
    removed.set_answer(Answer::Gated);
    let mut held = loop {
        let (connection, head) = open_stream(proxy.address(), &streamed("hello")).await;
        if head.backend() == "removed" {
            break connection;
        }
    };
    removed.emit(1);
    proxy.apply(&Settings::new([&kept])).await;
    assert_eq!(proxy.state("removed").await, "absent");
    let (posts, probes) = (removed.posts(), removed.probes());
    for _ in 0..4 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "kept");
    }
    assert_eq!(removed.posts(), posts, "nothing new");
    let kept_probes = kept.probes();
    eventually("the other one is probed on", async || kept.probes() > kept_probes + 5).await;
    assert!(removed.probes() <= probes + 1, "it is probed no more");
    removed.finish();
    assert!(is_whole_stream(&held.rest().await.unwrap()), "what it had, it finished");
    eventually("its series are gone", async || {
        let metrics = get(proxy.admin(), "/metrics").await.body;
        !metrics.contains(r#"backend="removed""#) && metrics.contains(r#"backend="kept""#)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_pool_leaves_no_series() {
    let (one, two) = (Engine::up("pool-one"), Engine::up("pool-two"));
    let mut settings = Settings::new([&one]);
    let pool =
        format!("- {{name: passing, models: [p], backends: [{{url: 'http://{}', name: pool-two}}]}}", two.address());
    settings.more_pools.push(pool);
    let proxy = Proxy::with(&settings, &[&one, &two]).await;
    let mut request = streamed("hello");
    request["model"] = "p".into();
    assert_eq!(proxy.chat(&request).await.backend(), "pool-two");
    let series = async || get(proxy.admin(), "/metrics").await.body.contains(r#"pool="passing""#);
    assert!(series().await);
    proxy.apply(&Settings::new([&one])).await;
    eventually("its series are gone", async || !series().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_is_removed_and_added_again_keeps_its_counts() {
    let (coming, kept) = (Engine::up("coming"), Engine::up("kept-too"));
    let both = Settings::new([&coming, &kept]);
    let proxy = Proxy::with(&both, &[&coming, &kept]).await;
    coming.set_answer(Answer::Gated);
    let mut held = loop {
        let (connection, head) = open_stream(proxy.address(), &streamed("hello")).await;
        if head.backend() == "coming" {
            break connection;
        }
    };
    proxy.apply(&both.clone().without("coming")).await;
    proxy.apply(&both).await;
    proxy.until_state("coming", "healthy").await;
    coming.finish();
    assert!(is_whole_stream(&held.rest().await.unwrap()));
    // When the end of a later removal was seen, that of the earlier one was as well.
    let passing = Engine::up("passing");
    proxy.apply(&Settings::new([&coming, &kept, &passing])).await;
    eventually("the passing one has a series", async || {
        get(proxy.admin(), "/metrics").await.body.contains(r#"backend="passing""#)
    })
    .await;
    proxy.apply(&both).await;
    eventually("the passing one is forgotten", async || {
        !get(proxy.admin(), "/metrics").await.body.contains(r#"backend="passing""#)
    })
    .await;
    let served = r#"warmgate_requests_total{pool="main",backend="coming",status="200",reason="served"}"#;
    assert!(proxy.metric(served).await >= Some(1.0), "the counts are of the name, and the name is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stays_keeps_health_locality_rates_ejection_and_drain() {
    let engines @ [warm, out, drained, sick] = &["warm", "out", "drained", "sick-kept"].map(Engine::up);
    let health = "{interval: 100ms, timeout: 5s, rise: 1, fall: 2}".to_owned();
    let before = Settings { health, ..Settings::new(engines) };
    let proxy = Proxy::with(&before, &[warm, out, drained, sick]).await;
    let request = chat(&long_prompt("kept"));
    out.set_answer(Answer::Status(500));
    let mut connection = Connection::open(proxy.address()).await.unwrap();
    eventually("one is ejected and one is warm", async || {
        connection.chat(&request).await.unwrap();
        let is_warm = proxy.backend("warm").await["index_blocks"].as_u64() > Some(0);
        is_warm && proxy.state("out").await == "ejected"
    })
    .await;
    ask(proxy.admin(), "POST", "/backends/drained/drain", "").await;
    sick.set_health(Page::status(500));
    proxy.until_state("sick-kept", "unhealthy").await;
    let report = async || {
        let mut report = get(proxy.admin(), "/backends").await.json();
        report["generation"].take();
        report
    };
    let known = report().await;
    assert_ne!(known["pools"][0]["bytes_per_token"], 4.0, "a rate was learned");

    // What changes has nothing to do with them: order, limits, a new neighbour.
    let new = Engine::up("neighbour");
    let mut after = before.clone();
    after.backends.reverse();
    after.backends.push((new.name().to_owned(), new.address()));
    after.timeouts = "{connect: 4s}".into();
    proxy.apply(&after).await;
    let now = report().await;
    assert_eq!(now["pools"][0]["bytes_per_token"], known["pools"][0]["bytes_per_token"]);
    for name in ["warm", "out", "drained", "sick-kept"] {
        let of = |report: &serde_json::Value| {
            let backends = report["pools"][0]["backends"].as_array().unwrap();
            let mut backend = backends.iter().find(|backend| backend["name"] == name).cloned().unwrap();
            if let Some(since) = backend.pointer_mut("/drain/since_seconds") {
                // The one thing that goes on.
                since.take();
            }
            backend
        };
        assert_eq!(of(&now), of(&known), "nothing of {name} has changed");
    }
    assert!(proxy.matched_tokens(&request, "warm").await > 0);

    // New thresholds, and so new probes, change nothing by themselves either.
    let health = "{interval: 200ms, timeout: 4s, rise: 1, fall: 3}".into();
    proxy.apply(&Settings { health, ..after }).await;
    for (name, state) in [("warm", "healthy"), ("out", "ejected"), ("drained", "drained"), ("sick-kept", "unhealthy")] {
        let is_kept =
            proxy.state(name).await == state || name == "drained" && proxy.backend(name).await["is_draining"] == true;
        assert!(is_kept, "{name} is {}", proxy.state(name).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_policy_applies_to_the_next_request() {
    let (one, two) = (Engine::up("policy-one"), Engine::up("policy-two"));
    let settings = Settings::new([&one, &two]);
    let proxy = Proxy::with(&settings, &[&one, &two]).await;
    for _ in 0..6 {
        proxy.chat(&chat(&long_prompt("policy"))).await;
    }
    assert_eq!((one.posts(), two.posts()), (3, 3), "round-robin takes turns");
    proxy.apply(&settings.policy("consistent_hash")).await;
    assert_eq!(get(proxy.admin(), "/backends").await.json()["pools"][0]["policy"], "consistent_hash");
    for _ in 0..6 {
        proxy.chat(&chat(&long_prompt("policy"))).await;
    }
    assert_eq!(one.posts().max(two.posts()), 9, "one prompt, one backend");
}
