//! The operators' listener.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use std::collections::BTreeSet;

use common_control::client::{Connection, ask, get};
use common_control::engine::{Answer, Engine, Page};
use common_control::open_metrics::OpenMetrics;
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, long_prompt, streamed, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

// === metrics ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_strict_open_metrics_from_the_first_scrape_on() {
    let (one, two) = (Engine::up("metrics-one"), Engine::down("metrics-two"));
    let proxy = Proxy::start(&Settings::new([&one, &two])).await;
    let scrape = async || get(proxy.admin(), "/metrics").await;
    let first = scrape().await;
    assert_eq!(first.status, 200);
    let kind = first.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    OpenMetrics::read(&first.body).unwrap_or_else(|error| panic!("{error}\n{}", first.body));

    proxy.until_state("metrics-one", "healthy").await;
    for body in [chat("hello"), streamed("hello"), json!({"model": 3})] {
        proxy.chat(&body).await;
    }
    ask(proxy.address(), "POST", "/v1/chat/completions", "{").await;
    one.set_answer(Answer::Status(503));
    proxy.chat(&chat("hello")).await;
    // A request is counted when it has ended, which is a little after its reply.
    eventually("nothing is in service", async || proxy.metric("warmgate_requests_in_service").await == Some(0.0)).await;
    let page = scrape().await.body;
    let read = OpenMetrics::read(&page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    let labels = r#"pool="main",backend="metrics-one""#;
    let served = |status: u16| {
        read.series.get(&format!(r#"warmgate_requests_total{{{labels},status="{status}",reason="served"}}"#))
    };
    assert!(served(200) >= Some(&2.0) && served(503) == Some(&1.0), "{page}");
    assert_eq!(read.series.get(r#"warmgate_ttft_seconds_count{pool="main"}"#), Some(&1.0), "{page}");
    assert_eq!(read.series.get(r#"warmgate_backend_up{pool="main",backend="metrics-two"}"#), Some(&0.0), "{page}");
    assert_eq!(read.series.get("warmgate_requests_in_service"), Some(&0.0), "{page}");
}

#[test]
fn the_strict_reader_is_strict() {
    let good = "# HELP a_b Text.\n# TYPE a_b counter\na_b_total{x=\"1\"} 2\n# EOF\n";
    assert!(OpenMetrics::read(good).is_ok());
    for (wrong, why) in [
        ("# EOF\n", ""),
        ("_total{", "{"),
        ("a_b_total{x=\"1\"} 2\n", "a_b_total{x=\"1\"} 2\na_b_total{x=\"1\"} 2\n"),
        ("{x=\"1\"}", "{x=\"1\",x=\"2\"}"),
        ("{x=\"1\"}", "{x=\"1\",}"),
        (" 2\n", " two\n"),
        (" 2\n", " -2\n"),
        ("# TYPE a_b counter\n", "# TYPE a_b counter\n# TYPE a_b counter\n"),
        ("# TYPE a_b counter\n", "# TYPE a_c counter\n"),
        ("# TYPE a_b counter\n", "# TYPE a_b thing\n"),
    ] {
        assert!(OpenMetrics::read(&good.replace(wrong, why)).is_err(), "{why:?} in place of {wrong:?}");
    }
    let histogram = "# TYPE h histogram\nh_sum 3\nh_count 2\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\n# EOF\n";
    assert_eq!(OpenMetrics::read(histogram).err(), None);
    assert!(OpenMetrics::read(&histogram.replace("h_count 2", "h_count 3")).is_err());
    assert!(OpenMetrics::read(&histogram.replace("} 1\n", "} 5\n")).is_err());
}

/// The names in the table of README.md: each word of its first column, as Prometheus has it.
fn documented_names() -> BTreeSet<String> {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let lines = readme.lines().skip_while(|line| !line.starts_with("| metric (`warmgate_")).skip(2);
    let cells = lines.take_while(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned);
    names.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_documented_metric_is_there_and_every_metric_is_documented() {
    let engine = Engine::up("documented");
    engine.set_metrics(Page::ok(
        "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n",
    ));
    let scratch = Scratch::new();
    // Callers have series of their own; the listener is open to those without a key.
    let keys = scratch.file("keys.yaml", format!("keys: [{{label: a, hash: 'sha256:{}'}}]", "0".repeat(64)));
    let settings = Settings {
        listeners: "[{address: '127.0.0.1:0', requires_key: false}]".into(),
        auth: format!("{{keys_file: {}}}", keys.display()),
        ..Settings::scraped("vllm", [&engine])
    };
    let proxy = Proxy::with(&settings, &[&engine]).await;
    assert_eq!(proxy.chat(&chat("hello")).await.status, 200, "requests are counted by status, so there must be one");
    eventually("it is counted", async || proxy.metric("warmgate_requests_total").await.is_some()).await;
    let page = get(proxy.admin(), "/metrics").await.body;
    let read = OpenMetrics::read(&page).unwrap();
    let present: BTreeSet<String> = read
        .families
        .iter()
        .map(|(name, kind)| format!("{name}{}", if kind == "counter" { "_total" } else { "" }))
        .map(|name| name.strip_prefix("warmgate_").unwrap_or(&name).to_owned())
        .collect();
    let documented = documented_names();
    assert!(documented.len() > 20, "{documented:?}");
    let missing: Vec<_> = documented.difference(&present).collect();
    assert!(missing.is_empty(), "in README.md but not in /metrics: {missing:?}");
    let silent: Vec<_> = present.difference(&documented).collect();
    assert!(silent.is_empty(), "in /metrics but not in README.md: {silent:?}");
}

// === pages and commands ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_needs_a_backend_in_every_pool_and_life_needs_none() {
    let (one, two) = (Engine::up("ready-one"), Engine::down("ready-two"));
    let mut settings = Settings::new([&one]);
    settings.more_pools.push(format!(
        "- {{name: second, models: [x], health: {{interval: 100ms, fall: 1}}, \
         backends: [{{name: ready-two, url: 'http://{}'}}]}}",
        two.address()
    ));
    let proxy = Proxy::with(&settings, &[&one]).await;
    let ready = async || get(proxy.admin(), "/readyz").await;
    assert_eq!((ready().await.status, get(proxy.admin(), "/healthz").await.status), (503, 200));
    assert!(ready().await.body.contains("second"), "it says which pool: {}", ready().await.body);
    two.start();
    eventually("it is ready", async || ready().await.status == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_of_backends_has_this_form() {
    let engine = Engine::up("reported");
    let proxy = Proxy::with(&Settings::new([&engine]), &[&engine]).await;
    let reply = get(proxy.admin(), "/backends").await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let report = reply.json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&report), "generation is_draining pools");
    let pool = &report["pools"][0];
    assert_eq!(keys(pool), "backends block_tokens bytes_per_token models name policy queue");
    assert_eq!((&pool["name"], &pool["policy"], &pool["models"]), (&json!("main"), &json!("round_robin"), &json!([])));
    let backend = &pool["backends"][0];
    let known = "address decoding engine in_flight index_blocks index_generation is_draining is_full kv_events name \
                 pending_prefill_tokens prefill_tokens_per_second state stuck_seconds trust url";
    assert_eq!(keys(backend), known);
    assert_eq!(backend["url"], format!("http://{}", engine.address()));
    assert_eq!(backend["address"], engine.address().to_string());
    assert_eq!(
        keys(&backend["engine"]),
        "age_seconds block_tokens capacity_tokens kv_usage max_running running waiting"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_agrees_with_the_decision_that_follows() {
    let engines @ [one, two, three] = &["why-one", "why-two", "why-three"].map(Engine::up);
    let settings = Settings::new(engines).policy("cost");
    let proxy = Proxy::with(&settings, &[one, two, three]).await;
    let mut connection = Connection::open(proxy.address()).await.unwrap();
    for prompt in ["a", "b", "c", "d"] {
        let request = chat(&long_prompt(prompt));
        let first = connection.chat(&request).await.unwrap();
        eventually("the prompt is believed cached", async || proxy.matched_tokens(&request, first.backend()).await > 0)
            .await;
        // What its answer teaches of the length of a token is known once it has ended.
        let in_service = "warmgate_requests_in_service";
        eventually("the request has ended", async || proxy.metric(in_service).await == Some(0.0)).await;
        let posts: usize = engines.iter().map(Engine::posts).sum();
        let explained = ask(proxy.admin(), "POST", "/explain", &request.to_string()).await.json();
        assert_eq!(engines.iter().map(Engine::posts).sum::<usize>(), posts, "nothing is sent for an explanation");
        let chosen = explained["chosen"].as_str().unwrap();
        let backends = explained["backends"].as_array().unwrap();
        assert_eq!(backends[0]["name"], chosen, "the cheapest is first, and chosen: {explained}");
        assert!(backends.is_sorted_by_key(|backend| backend["cost_seconds"].as_f64().unwrap()), "{explained}");
        for backend in backends {
            let terms: f64 = backend["terms"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
            assert!((terms - backend["cost_seconds"].as_f64().unwrap()).abs() < 1e-9, "terms add up: {backend}");
        }
        let reply = connection.chat(&request).await.unwrap();
        assert_eq!((reply.backend(), chosen), (first.backend(), first.backend()), "the warm one, as explained");
        let cached = format!("{}/{}", backends[0]["matched_tokens"], explained["prompt_tokens"]);
        assert_eq!(reply.header("x-warmgate-cached"), Some(cached.as_str()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_names_what_keeps_a_backend_out_and_what_is_wrong_with_a_request() {
    let (up, down) = (Engine::up("in"), Engine::down("not-in"));
    let proxy = Proxy::with(&Settings::new([&up, &down]), &[&up]).await;
    eventually("its address is known", async || !proxy.backend("not-in").await["address"].is_null()).await;
    assert_eq!(proxy.explained(&chat("hello"), "not-in").await["excluded"], "starting");
    let wrong = ask(proxy.admin(), "POST", "/explain", "{").await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    assert!(wrong.json()["error"]["message"].is_string());
    let completion = json!({"model": "m", "prompt": long_prompt("completion")}).to_string();
    for path in ["/explain?path=/v1/completions", "/explain?path=%2Fv1%2Fcompletions"] {
        let explained = ask(proxy.admin(), "POST", path, &completion).await.json();
        assert!(explained["prompt_tokens"].as_u64() > Some(100), "{path}: {explained}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_and_undrain_act_on_the_backend_named() {
    let (plain, bracketed) = (Engine::up("plain"), Engine::up("[::1]:8001"));
    let proxy = Proxy::with(&Settings::new([&plain, &bracketed]), &[&plain, &bracketed]).await;
    let command = async |path: &str| ask(proxy.admin(), "POST", path, "").await;
    assert_eq!(command("/backends/nobody/drain").await.status, 404);
    assert_eq!(command("/backends/plain/flush").await.status, 404);
    for (name, paths) in [("plain", ["plain"; 2]), ("[::1]:8001", ["%5B::1%5D:8001", "[::1]:8001"])] {
        assert_eq!(command(&format!("/backends/{}/drain", paths[0])).await.json()["outcome"], "draining");
        assert_eq!(proxy.state(name).await, "drained", "nothing is in flight there");
        assert_eq!(command(&format!("/backends/{}/undrain", paths[1])).await.json()["outcome"], "not draining");
        assert_eq!(proxy.state(name).await, "healthy");
    }
    for (query, problem) in [
        ("?deadline=5", "expected a duration with its unit"),
        ("?deadline=25h", "from 0s to 24h"),
        ("?deadlin=5m", "expected deadline=TIME"),
    ] {
        let refused = command(&format!("/backends/plain/drain{query}")).await;
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.body.contains(problem), "{query}: {}", refused.body);
    }
    assert_eq!(command("/backends/plain/undrain?deadline=5m").await.status, 400);
    assert_eq!(proxy.state("plain").await, "healthy", "what is refused changes nothing");
    for name in ["plain", "%5b::1%5D:8001"] {
        command(&format!("/backends/{name}/drain?deadline=1h")).await;
    }
    assert_eq!(get(proxy.admin(), "/readyz").await.status, 200, "while nobody else can serve, they do");
    assert_eq!(proxy.chat(&chat("hello")).await.status, 200);
    for name in ["plain", "%5b::1%5D:8001"] {
        command(&format!("/backends/{name}/drain?deadline=0s")).await;
    }
    assert_eq!(get(proxy.admin(), "/readyz").await.status, 503, "all are draining");
    assert_eq!(proxy.chat(&chat("hello")).await.status, 503, "a drain that is over does not fail open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_pages_are_404_and_wrong_methods_405() {
    let engine = Engine::up("pages");
    let proxy = Proxy::start(&Settings::new([&engine])).await;
    assert_eq!(get(proxy.admin(), "/").await.status, 200);
    for (method, path) in [("GET", "/nothing"), ("POST", "/nothing"), ("DELETE", "/backends/pages"), ("GET", "/%ff")] {
        assert_eq!(ask(proxy.admin(), method, path, "").await.status, 404, "{method} {path}");
    }
    for (method, path, right) in [
        ("POST", "/metrics", "GET"),
        ("DELETE", "/backends", "GET"),
        ("PUT", "/reload", "POST"),
        ("GET", "/reload", "POST"),
        ("GET", "/explain", "POST"),
        ("GET", "/backends/pages/drain", "POST"),
    ] {
        let reply = ask(proxy.admin(), method, path, "").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some(right)), "{method} {path}");
    }
    let mut kept = Connection::open(proxy.admin()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(kept.ask("GET", "/healthz", "", "").await.unwrap().status, 200, "connections are kept");
        assert_eq!(kept.ask("GET", "/healthz", "", "body").await.unwrap().status, 200, "also behind a body");
    }
    let mut old = tokio::net::TcpStream::connect(proxy.admin()).await.unwrap();
    old.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    within("its end", old.read_to_string(&mut reply)).await.unwrap();
    assert!(reply.ends_with("ok\n"), "HTTP/1.0 has connections that end: {reply}");
    let mut balancer = tokio::net::TcpStream::connect(proxy.admin()).await.unwrap();
    balancer.write_all(b"HEAD /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    balancer.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("\r\n\r\n"), "HEAD is GET without a body: {reply}");
}
