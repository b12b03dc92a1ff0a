//! What probes, scrapes and real requests make of backends, over real sockets.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use std::sync::Arc;

use common_control::client::{Connection, ask, get, open_stream};
use common_control::engine::{Answer, Engine, Page, is_whole_stream};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{chat, eventually, logs, long_prompt, streamed};

const VLLM_METRICS: &str = r#"vllm:num_requests_running{engine="0",model_name="m"} 7
vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 1.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="100"} 1.0
"#;

const SGLANG_METRICS: &str = r#"sglang:num_running_reqs{model_name="m",dp_rank="0"} 5
sglang:num_queue_reqs{model_name="m",dp_rank="0"} 2
sglang:token_usage{model_name="m",dp_rank="0"} 0.5
sglang:page_size{model_name="m"} 64
sglang:max_total_num_tokens{model_name="m"} 6400
"#;

/// The metrics of a vLLM process that started then and has served so many prompt tokens.
fn vllm_process(started: Option<u32>, prompt_tokens: u32) -> Page {
    let started = started.map(|at| format!("process_start_time_seconds {at}\n")).unwrap_or_default();
    Page::ok(format!("{VLLM_METRICS}{started}vllm:prompt_tokens_total{{engine=\"0\"}} {prompt_tokens}\n"))
}

// === active probes ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_no_backend_reachable_requests_get_503_until_one_comes_up() {
    let engine = Engine::down("late");
    let proxy = Proxy::start(&Settings::new([&engine])).await;
    let refused = proxy.chat(&chat("hello")).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.json()["error"]["message"].is_string(), "{}", refused.body);
    assert_eq!(get(proxy.admin(), "/readyz").await.status, 503);
    assert_eq!(proxy.state("late").await, "starting");

    engine.start();
    proxy.until_state("late", "healthy").await;
    assert_eq!(proxy.chat(&chat("hello")).await.status, 200);
    assert_eq!(get(proxy.admin(), "/readyz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_listens_but_is_not_well_yet_is_starting_and_gets_nothing() {
    let engine = Engine::up("loading");
    engine.set_health(Page::status(503));
    let proxy = Proxy::start(&Settings::new([&engine])).await;
    eventually("five probes", async || engine.probes() >= 5).await;
    assert_eq!(proxy.state("loading").await, "starting", "it was never healthy, so it cannot fall");
    assert_eq!(proxy.chat(&chat("hello")).await.status, 503);
    assert_eq!(engine.posts(), 0);

    engine.set_health(Page::status(200));
    proxy.until_state("loading", "healthy").await;
    assert_eq!(proxy.chat(&chat("hello")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fall_failures_in_a_row_make_unhealthy_and_rise_successes_healthy() {
    let engine = Engine::up("riser");
    let health = "{interval: 100ms, timeout: 5s, rise: 2, fall: 3}".into();
    let proxy = Proxy::with(&Settings { health, ..Settings::new([&engine]) }, &[&engine]).await;
    let fell = || logs::count(&["backend riser", "is unhealthy"]);
    let rose = || logs::count(&["backend riser", "is healthy"]);
    assert_eq!((fell(), rose()), (0, 1));

    engine.script_health([500, 500, 200, 500, 500].map(Page::status));
    let before = engine.probes();
    eventually("the script is over", async || engine.probes() > before + 6).await;
    assert_eq!(fell(), 0, "never three failures in a row");

    engine.set_health(Page::status(500));
    proxy.until_state("riser", "unhealthy").await;
    engine.script_health([200, 500, 200].map(Page::status));
    let before = engine.probes();
    eventually("the script is over", async || engine.probes() > before + 4).await;
    assert_eq!((fell(), rose()), (1, 1), "never two successes in a row");

    engine.set_health(Page::status(200));
    proxy.until_state("riser", "healthy").await;
    assert_eq!((fell(), rose()), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_hangs_fails_when_its_time_is_over() {
    let (hanging, well) = (Engine::up("hanging"), Engine::up("well"));
    let health = "{interval: 100ms, timeout: 100ms, rise: 1, fall: 50}".to_owned();
    let settings = Settings { health, ..Settings::new([&hanging, &well]) };
    let proxy = Proxy::with(&settings, &[&hanging, &well]).await;
    hanging.set_health(Page::Hang);
    proxy.apply(&Settings { health: settings.health.replace("fall: 50", "fall: 2"), ..settings }).await;
    proxy.until_state("hanging", "unhealthy").await;
    assert!(logs::count(&["backend hanging", "no reply within"]) + logs::count(&["backend hanging", "imed"]) > 0);
    for _ in 0..4 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "well");
    }
}

// === scrapes ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_or_dead_metrics_page_delays_nobody() {
    let (hanging, dead, well) = (Engine::up("m-hanging"), Engine::up("m-dead"), Engine::up("m-well"));
    hanging.set_metrics(Page::Hang);
    dead.set_metrics(Page::Reset);
    well.set_metrics(Page::ok(VLLM_METRICS));
    let engines = [&hanging, &dead, &well];
    let settings = Settings::scraped("vllm", engines).policy("round_robin");
    let metrics = "{interval: 100ms, timeout: 1m, stale_after: 1s}".into();
    let proxy = Proxy::with(&Settings { metrics, ..settings }, &engines).await;

    let (probes, scrapes) = (engines.map(Engine::probes), well.scrapes());
    eventually("all are probed, and the third is scraped, all the while", async || {
        let all_probed = engines.iter().zip(probes).all(|(engine, before)| engine.probes() >= before + 10);
        all_probed && well.scrapes() >= scrapes + 10
    })
    .await;
    assert_eq!(hanging.scrapes(), 1, "one scrape at a time");
    assert!(proxy.backend("m-hanging").await["engine"]["age_seconds"].is_null());
    for _ in 0..6 {
        assert_eq!(proxy.chat(&chat("hello")).await.status, 200);
    }
    assert!(engines.iter().all(|engine| engine.posts() == 2), "each gets its turn");
    hanging.set_health(Page::status(500));
    proxy.until_state("m-hanging", "unhealthy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scraped_values_appear_with_their_age_and_go_unused_when_stale() {
    let (vllm, sglang) = (Engine::up("an-vllm"), Engine::up("an-sglang"));
    vllm.set_metrics(Page::ok(VLLM_METRICS));
    sglang.set_metrics(Page::ok(SGLANG_METRICS));
    let mut settings = Settings::scraped("vllm", [&vllm]);
    settings.more_pools.push(format!(
        "- {{name: other, models: [sg], engine: sglang, health: {{interval: 100ms}}, \
         metrics: {{interval: 100ms}}, backends: [{{name: an-sglang, url: 'http://{}'}}]}}",
        sglang.address()
    ));
    let proxy = Proxy::with(&settings, &[&vllm, &sglang]).await;
    for (name, values) in [("an-vllm", (7, 3, 1.0, 32, 3200)), ("an-sglang", (5, 2, 0.5, 64, 6400))] {
        eventually("a scrape", async || !proxy.backend(name).await["engine"]["age_seconds"].is_null()).await;
        let engine = &proxy.backend(name).await["engine"];
        let (running, waiting, usage, block, capacity) = values;
        assert_eq!((&engine["running"], &engine["waiting"]), (&running.into(), &waiting.into()), "{engine}");
        assert_eq!(engine["kv_usage"], usage, "{engine}");
        assert_eq!((&engine["block_tokens"], &engine["capacity_tokens"]), (&block.into(), &capacity.into()));
    }

    let request = chat(&long_prompt("stale"));
    let memory = async || proxy.explained(&request, "an-vllm").await["terms"]["memory"].as_f64().unwrap();
    assert!(memory().await > 0.0, "an engine that says it is full has to be waited for");
    vllm.set_metrics(Page::status(500));
    eventually("the values are stale", async || {
        proxy.backend("an-vllm").await["engine"]["age_seconds"].as_f64().unwrap() > 1.0
    })
    .await;
    assert_eq!(memory().await, 0.0, "what is stale says nothing");
    assert!(proxy.metric(r#"warmgate_engine_metrics_age_seconds{pool="main",backend="an-vllm"}"#).await > Some(1.0));
    assert_eq!(proxy.state("an-vllm").await, "healthy", "a failing scrape says nothing of health");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engines_cache_size_bounds_what_is_believed_of_it() {
    let engine = Engine::up("small");
    engine.set_metrics(Page::ok(VLLM_METRICS.replace("num_gpu_blocks=\"100\"", "num_gpu_blocks=\"3\"")));
    let proxy = Proxy::with(&Settings::scraped("vllm", [&engine]), &[&engine]).await;
    eventually("a scrape", async || proxy.backend("small").await["engine"]["capacity_tokens"] == 96).await;
    let request = chat(&long_prompt("small"));
    let explained = ask(proxy.admin(), "POST", "/explain", &request.to_string()).await.json();
    assert_eq!(explained["block_tokens"], 32, "blocks are the engine's");
    assert!(explained["blocks"].as_u64() > Some(3), "{explained}");
    assert_eq!(proxy.chat(&request).await.status, 200);
    eventually("the blocks are noted", async || proxy.backend("small").await["index_blocks"] != 0).await;
    let held = proxy.backend("small").await["index_blocks"].as_u64();
    assert!(held <= Some(3), "{held:?} blocks believed in a cache of 3");
}

// === restarts ===

/// Primes one backend, lets `restart` happen, and checks that nothing is believed of it any more.
async fn forgets_at_a_restart(settings: &Settings, engine: &Engine, restart: impl AsyncFnOnce()) {
    let proxy = Proxy::with(settings, &[engine]).await;
    let (name, request) = (engine.name(), chat(&long_prompt(engine.name())));
    if !settings.metrics.contains("false") {
        eventually("a scrape", async || proxy.backend(name).await["engine"]["block_tokens"] == 32).await;
    }
    assert_eq!(proxy.chat(&request).await.status, 200);
    eventually("the prompt is believed cached", async || proxy.matched_tokens(&request, name).await > 0).await;
    let generation = proxy.backend(name).await["index_generation"].clone();
    restart().await;
    eventually("a restart is noticed", async || proxy.backend(name).await["index_generation"] != generation).await;
    assert_eq!(proxy.matched_tokens(&request, name).await, 0, "nothing of the old process is believed");
    assert_eq!(proxy.backend(name).await["index_blocks"], 0);
    let series = format!(r#"warmgate_backend_restarts_total{{pool="main",backend="{name}"}}"#);
    assert_eq!(proxy.metric(&series).await, Some(1.0));
    proxy.until_state(name, "healthy").await;
    assert_eq!(proxy.chat(&request).await.status, 200);
    eventually("what follows is believed", async || proxy.matched_tokens(&request, name).await > 0).await;
    assert_eq!(proxy.metric(&series).await, Some(1.0), "one restart is counted once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_shows_by_the_start_time() {
    let engine = Engine::up("by-start");
    engine.set_metrics(vllm_process(Some(1000), 50));
    let restart = async || engine.set_metrics(vllm_process(Some(1010), 50));
    forgets_at_a_restart(&Settings::scraped("vllm", [&engine]), &engine, restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_shows_by_counters_that_go_back() {
    let engine = Engine::up("by-count");
    engine.set_metrics(vllm_process(None, 50));
    let restart = async || engine.set_metrics(vllm_process(None, 5));
    forgets_at_a_restart(&Settings::scraped("vllm", [&engine]), &engine, restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_an_engine_without_metrics_shows_by_refused_connections() {
    let engine = Engine::up("by-refusal");
    let refused_then_back = async || restart(&engine).await;
    forgets_at_a_restart(&Settings::new([&engine]), &engine, refused_then_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_shows_when_the_metrics_tell_neither_start_nor_counts() {
    let engine = Engine::up("no-counts");
    engine.set_metrics(Page::ok(VLLM_METRICS));
    let refused_then_back = async || restart(&engine).await;
    forgets_at_a_restart(&Settings::scraped("vllm", [&engine]), &engine, refused_then_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_shows_when_the_metrics_do_not_come_back() {
    let engine = Engine::up("no-metrics-after");
    engine.set_metrics(vllm_process(Some(1000), 50));
    let without_metrics = async || {
        engine.set_metrics(Page::status(404));
        restart(&engine).await;
    };
    forgets_at_a_restart(&Settings::scraped("vllm", [&engine]), &engine, without_metrics).await;
}

/// Down until the proxy has seen it, then up again.
async fn restart(engine: &Engine) {
    let name = format!("backend {}", engine.name());
    engine.stop().await;
    eventually("the proxy sees it down", async || logs::count(&[&name, "is unhealthy"]) > 0).await;
    engine.start();
}

// === ejection ===

/// Sends requests until `name` is ejected, each of which must get a status that `is_fine` takes.
async fn send_until_ejected(proxy: &Proxy, name: &str, is_fine: impl Fn(u16) -> bool) {
    let mut connection = Connection::open(proxy.address()).await.unwrap();
    eventually(&format!("{name} is ejected"), async || {
        let reply = connection.chat(&chat("hello")).await.unwrap();
        assert!(is_fine(reply.status), "{} {}", reply.status, reply.body);
        proxy.state(name).await == "ejected"
    })
    .await;
}

/// Settings in which only ejection takes a backend out.
fn unprobed(engines: [&Engine; 2]) -> Settings {
    let health = "{interval: 100ms, timeout: 5s, rise: 1, fall: 100}".into();
    Settings { health, ..Settings::new(engines) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_eject_once_and_no_request_fails() {
    let (gone, well) = (Engine::up("gone"), Engine::up("gone-well"));
    let proxy = Proxy::with(&unprobed([&gone, &well]), &[&gone, &well]).await;
    gone.stop().await;
    send_until_ejected(&proxy, "gone", |status| status == 200).await;
    for _ in 0..5 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "gone-well");
    }
    assert_eq!(logs::count(&["WARN", "backend gone ejected"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_followed_by_an_ejected_backend_if_no_other_is_left() {
    let (back, last) = (Engine::up("back-again"), Engine::up("last-one"));
    let ejection = "{failures: 3, base: 1h, max: 1h, stuck_after: 1h}".into();
    let proxy = Proxy::with(&Settings { ejection, ..unprobed([&back, &last]) }, &[&back, &last]).await;
    back.stop().await;
    send_until_ejected(&proxy, "back-again", |status| status == 200).await;
    back.start();

    // An answer is worth more than a try at one that is known to be out.
    let before = back.posts();
    last.set_answer(Answer::Status(503));
    let reply = proxy.chat(&chat("hello")).await;
    assert_eq!((reply.status, back.posts()), (503, before), "{}", reply.body);

    last.stop().await;
    let states = [proxy.state("back-again").await, proxy.state("last-one").await];
    assert_eq!(states, ["ejected", "healthy"]);
    let reply = proxy.chat(&chat("hello")).await;
    assert_eq!((reply.status, reply.backend()), (200, "back-again"), "{}", reply.body);
    assert_eq!(proxy.state("last-one").await, "healthy", "one refused connection does not eject it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_eject_once_and_no_request_fails() {
    let (broken, well) = (Engine::up("broken"), Engine::up("broken-well"));
    let proxy = Proxy::with(&unprobed([&broken, &well]), &[&broken, &well]).await;
    broken.set_answer(Answer::Reset);
    send_until_ejected(&proxy, "broken", |status| status == 200).await;
    let before = broken.posts();
    for _ in 0..5 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "broken-well");
    }
    assert_eq!(broken.posts(), before, "an ejected backend gets nothing");
    assert_eq!(logs::count(&["WARN", "backend broken ejected"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_errors_eject_once() {
    let (failing, well) = (Engine::up("failing"), Engine::up("failing-well"));
    let proxy = Proxy::with(&unprobed([&failing, &well]), &[&failing, &well]).await;
    failing.set_answer(Answer::Status(500));
    send_until_ejected(&proxy, "failing", |status| status == 200 || status == 500).await;
    assert_eq!(failing.posts(), 3, "three failures in a row, as configured");
    for _ in 0..5 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "failing-well");
    }
    assert_eq!(logs::count(&["WARN", "backend failing ejected"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overload_and_client_errors_do_not_eject() {
    let engine = Engine::up("strict");
    let proxy = Proxy::with(&Settings::new([&engine]), &[&engine]).await;
    for status in [429, 503, 400, 404, 422] {
        engine.set_answer(Answer::Status(status));
        for _ in 0..6 {
            assert_eq!(proxy.chat(&chat("hello")).await.status, status);
        }
        assert_eq!(proxy.state("strict").await, "healthy", "after {status}");
    }
    assert_eq!(logs::count(&["backend strict ejected"]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_its_time_an_ejected_backend_is_probed_by_one_request_and_readmitted() {
    let (sick, well) = (Engine::up("sick"), Engine::up("sick-well"));
    let ejection = "{failures: 2, base: 200ms, max: 1h, stuck_after: 1h}".into();
    let proxy = Arc::new(Proxy::with(&Settings { ejection, ..unprobed([&sick, &well]) }, &[&sick, &well]).await);
    sick.set_answer(Answer::Status(500));
    send_until_ejected(&proxy, "sick", |status| status == 200 || status == 500).await;

    // It fails its probe: out for longer.
    eventually("the probe", async || {
        proxy.chat(&chat("hello")).await;
        logs::count(&["backend sick ejected for 0.4 s", "ejection 2 in a row"]) == 1
    })
    .await;

    // A client has its answer a moment before the request counts as done.
    eventually("it is done", async || proxy.backend("sick").await["in_flight"] == 0).await;

    // The next one is held open. All others go elsewhere.
    sick.set_answer(Answer::Gated);
    let posts_before = sick.posts();
    let (mut waiting, mut replies) = (tokio::task::JoinSet::new(), Vec::new());
    eventually("a probe is under way", async || {
        let requesting = Arc::clone(&proxy);
        waiting.spawn(async move { requesting.chat(&chat("hello")).await });
        while let Some(reply) = waiting.try_join_next() {
            replies.push(reply.unwrap());
        }
        proxy.backend("sick").await["in_flight"] == 1
    })
    .await;
    eventually("the probe is at the engine", async || sick.open_posts() == 1).await;
    assert_eq!(proxy.state("sick").await, "probing");
    for _ in 0..10 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "sick-well");
    }
    assert_eq!(sick.posts(), posts_before + 1, "one request probes");
    sick.finish();
    while let Some(reply) = waiting.join_next().await {
        replies.push(reply.unwrap());
    }
    assert!(replies.iter().all(|reply| reply.status == 200));
    assert_eq!(replies.iter().filter(|reply| reply.backend() == "sick").count(), 1);
    proxy.until_state("sick", "healthy").await;
    assert_eq!(logs::count(&["backend sick readmitted"]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_are_out_all_are_used() {
    let (one, two) = (Engine::up("open-one"), Engine::up("open-two"));
    let proxy = Proxy::with(&Settings::new([&one, &two]), &[&one, &two]).await;
    for engine in [&one, &two] {
        engine.set_health(Page::status(500));
        proxy.until_state(engine.name(), "unhealthy").await;
    }
    assert_eq!(proxy.chat(&chat("hello")).await.status, 200, "probes may be wrong; requests tell");
    assert!(proxy.metric(r#"warmgate_fail_open_total{pool="main"}"#).await >= Some(1.0));

    let (one, two) = (Engine::up("out-one"), Engine::up("out-two"));
    let proxy = Proxy::with(&unprobed([&one, &two]), &[&one, &two]).await;
    for engine in [&one, &two] {
        engine.set_answer(Answer::Status(500));
    }
    for engine in [&one, &two] {
        send_until_ejected(&proxy, engine.name(), |status| status == 500).await;
    }
    for engine in [&one, &two] {
        engine.set_answer(Answer::Whole);
    }
    assert_eq!(proxy.chat(&chat("hello")).await.status, 200);
    assert!(proxy.metric(r#"warmgate_fail_open_total{pool="main"}"#).await >= Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_answers_probes_but_gives_no_token_is_ejected_until_it_does() {
    let (stuck, well) = (Engine::up("stuck"), Engine::up("stuck-well"));
    let ejection = "{failures: 3, base: 1h, max: 1h, stuck_after: 1s}".into();
    let proxy = Proxy::with(&Settings { ejection, ..Settings::new([&stuck, &well]) }, &[&stuck, &well]).await;
    stuck.set_answer(Answer::Gated);
    let mut held = Vec::new();
    while held.is_empty() {
        let (connection, head) = open_stream(proxy.address(), &streamed("hello")).await;
        if head.backend() == "stuck" {
            held.push(connection);
        }
    }
    proxy.until_state("stuck", "ejected").await;
    assert_eq!(logs::count(&["WARN", "backend stuck ejected", ": stuck"]), 1);
    for _ in 0..4 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "stuck-well");
    }
    stuck.emit(1);
    proxy.until_state("stuck", "healthy").await;
    assert_eq!(logs::count(&["backend stuck readmitted"]), 1);
    stuck.finish();
    assert!(is_whole_stream(&held.remove(0).rest().await.unwrap()), "the stream was never cut");
}

// === drain by the operator ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_backend_finishes_what_it_has_and_gets_nothing_new() {
    let (leaving, staying) = (Engine::up("leaving"), Engine::up("staying"));
    let proxy = Proxy::with(&Settings::new([&leaving, &staying]), &[&leaving, &staying]).await;
    leaving.set_answer(Answer::Gated);
    let mut held = loop {
        let (connection, head) = open_stream(proxy.address(), &streamed("hello")).await;
        if head.backend() == "leaving" {
            break connection;
        }
    };
    assert_eq!(ask(proxy.admin(), "POST", "/backends/leaving/drain", "").await.status, 200);
    assert_eq!(proxy.state("leaving").await, "draining");
    let before = leaving.posts();
    for _ in 0..6 {
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "staying");
    }
    assert_eq!(leaving.posts(), before);
    leaving.finish();
    assert!(is_whole_stream(&held.rest().await.unwrap()), "what it had, it finished");

    leaving.set_answer(Answer::Whole);
    assert_eq!(ask(proxy.admin(), "POST", "/backends/leaving/undrain", "").await.status, 200);
    let mut connection = Connection::open(proxy.address()).await.unwrap();
    eventually("it gets requests again", async || {
        connection.chat(&chat("hello")).await.unwrap().backend() == "leaving"
    })
    .await;
}
