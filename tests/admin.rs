//! The operators' listener, and what the logs say and do not say.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use std::collections::BTreeSet;

use common_control::child::Process;
use common_control::client::{Connection, ask, get, post_chat};
use common_control::engine::{Answer, Engine, Page};
use common_control::open_metrics::OpenMetrics;
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, long_prompt, streamed};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
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
    }
    let mut balancer = tokio::net::TcpStream::connect(proxy.admin()).await.unwrap();
    balancer.write_all(b"HEAD /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    balancer.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("\r\n\r\n"), "HEAD is GET without a body: {reply}");
}

// === logs ===

const SECRET: &str = "xyzzy-secret-plugh";

/// Sends the secret in every place that a client has for one, and meets every kind of end.
async fn send_secrets(address: std::net::SocketAddr, engines: &[Engine; 2]) -> usize {
    let header = format!("authorization: Bearer {SECRET}\r\nx-api-key: {SECRET}\r\ncookie: a={SECRET}\r\n");
    let chat = json!({
        "model": "m", "user": SECRET,
        "messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": SECRET}],
        "tools": [{"type": "function", "function": {"name": SECRET, "description": SECRET}}],
    });
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let anthropic = json!({"model": "m", "system": SECRET, "messages": [{"role": "user", "content": SECRET}]});
    let broken = format!("{{\"messages\": [{{\"content\": \"{SECRET}\", ");
    let mut sent = 0;
    let mut connection = Connection::open(address).await.unwrap();
    let answers =
        [Answer::Whole, Answer::Status(500), Answer::Status(503), Answer::Status(400), Answer::Reset, Answer::Whole];
    for answer in answers {
        engines[0].set_answer(answer);
        for (path, body) in [
            ("/v1/chat/completions", chat.to_string()),
            (&format!("/v1/chat/completions?key={SECRET}"), streamed.to_string()),
            ("/v1/messages", anthropic.to_string()),
            ("/v1/completions", json!({"model": "m", "prompt": SECRET}).to_string()),
            ("/v1/chat/completions", broken.clone()),
            ("/v1/unknown", SECRET.to_owned()),
        ] {
            sent += 1;
            let reply =
                connection.ask("POST", path, &header, &body).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            if reply.header("connection") == Some("close") {
                connection = Connection::open(address).await.unwrap();
            }
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_and_keys_are_in_no_log_at_any_level() {
    let engines = ["secret-one", "secret-two"].map(Engine::up);
    for (level, target) in [("trace", "file"), ("debug", "stdout"), ("trace", "stderr")] {
        let scratch = Scratch::new();
        let log = scratch.path().join("access.log");
        let access_log = if target == "file" { log.display().to_string() } else { target.to_owned() };
        let logging = format!("{{level: {level}, access_log: {access_log}}}");
        let key = scratch.file("key", SECRET);
        let digest: String = Sha256::digest(SECRET).iter().map(|byte| format!("{byte:02x}")).collect();
        let keys = scratch.file("keys", format!("keys: [{{label: a, hash: 'sha256:{digest}'}}]"));
        let settings = Settings {
            logging,
            auth: format!("{{keys_file: {}}}", keys.display()),
            pool: format!("engine: generic, policy: round_robin, api_key_file: {}", key.display()),
            ..Settings::new(&engines)
        };
        let mut process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
        for engine in &engines {
            process.until_state(engine.name(), "healthy").await;
        }
        let sent = send_secrets(process.address(), &engines).await;
        let explained = ask(process.admin, "POST", "/explain", &chat(SECRET).to_string()).await;
        assert_eq!(explained.status, 200);
        assert!(!explained.body.contains(SECRET), "{}", explained.body);
        assert!(!get(process.admin, "/metrics").await.body.contains(SECRET));
        process.signal("TERM");
        process.ended().await;

        let lines_at = |target: &str| match target {
            "file" => {
                std::fs::read_to_string(&log).map(|text| text.lines().map(str::to_owned).collect()).unwrap_or_default()
            }
            "stdout" => process.stdout(),
            _ => process.stderr(),
        };
        let is_access_line = |line: &String| line.starts_with(r#"{"time":"#);
        let at_target = async || lines_at(target).iter().filter(|line| is_access_line(line)).count();
        eventually("a line a request", async || at_target().await == sent).await;
        for place in ["file", "stdout", "stderr"] {
            let lines: Vec<String> = lines_at(place);
            assert!(!lines.iter().any(|line| line.contains(SECRET)), "{place} at {level}: {lines:#?}");
            assert!(place == target || !lines.iter().any(is_access_line), "access lines in {place}, not {target}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_access_log_has_one_json_line_a_request() {
    let engine = Engine::up("accessed");
    let scratch = Scratch::new();
    let log = scratch.path().join("access.log");
    let logging = format!("{{access_log: {}}}", log.display());
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let proxy = Proxy::with(&settings, &[&engine]).await;
    let mut connection = Connection::open(proxy.address()).await.unwrap();
    let headers = "x-request-id: an-id-of-mine\r\n";
    let body = chat("hello").to_string();
    let lines = || std::fs::read_to_string(&log).unwrap();
    let until = async |count| eventually("the line", async || lines().lines().count() == count).await;
    connection.ask("POST", "/v1/chat/completions?a=b", headers, &body).await.unwrap();
    until(1).await;
    proxy.chat(&streamed("hello")).await;
    until(2).await;
    ask(proxy.address(), "POST", "/v1/chat/completions", "{").await;
    until(3).await;
    let lines: Vec<Value> = lines().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let [plain, stream, wrong] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(plain["request_id"], "an-id-of-mine");
    assert_eq!((&plain["method"], &plain["path"]), (&json!("POST"), &json!("/v1/chat/completions")));
    assert_eq!((&plain["pool"], &plain["backend"], &plain["model"]), (&json!("main"), &json!("accessed"), &json!("m")));
    assert_eq!((&plain["status"], &plain["reason"], &plain["attempts"]), (&json!(200), &json!("served"), &json!(1)));
    assert_eq!(plain["request_bytes"], body.len());
    assert!(plain["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{plain}");
    assert!(humantime::parse_rfc3339(plain["time"].as_str().unwrap()).is_ok(), "{plain}");
    assert_eq!((&stream["stream"], &plain["stream"]), (&json!(true), &json!(false)));
    assert!(stream["ttft_millis"].is_number() && plain["ttft_millis"].is_null(), "{stream} {plain}");
    assert_eq!(
        (&wrong["status"], &wrong["reason"], &wrong["attempts"]),
        (&json!(400), &json!("bad_request"), &json!(0))
    );

    // A reload moves the log without losing a line.
    let moved = proxy.scratch().path().join("moved.log");
    let logging = format!("{{access_log: {}}}", moved.display());
    proxy.apply(&Settings { logging, ..settings }).await;
    post_chat(proxy.address(), &chat("hello")).await;
    eventually("a line in the new file", async || {
        std::fs::read_to_string(&moved).unwrap_or_default().lines().count() == 1
    })
    .await;
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_make_up_is_cut_in_the_access_log() {
    const MARKER: &str = "the-end-of-it";
    let engine = Engine::up("endless");
    let scratch = Scratch::new();
    let log = scratch.path().join("access.log");
    let logging = format!("{{level: trace, access_log: {}}}", log.display());
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let mut process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
    process.until_state("endless", "healthy").await;
    let endless = |piece: &str, bytes: usize| format!("x{}{MARKER}", piece.repeat(bytes / piece.len()));
    let mut sent = 0;
    // Characters of one byte and of three: the limit falls within one of the latter.
    for piece in ["a", "\u{20ac}"] {
        let body = json!({"model": endless(piece, 1 << 20), "messages": []}).to_string();
        assert_eq!(ask(process.address(), "POST", "/v1/chat/completions", &body).await.status, 200);
        sent += 1;
    }
    let path = format!("/{}", endless("a", 32 << 10));
    for (method, status) in [("POST", 200), ("GET", 200), (&endless("A", 16 << 10), 0)] {
        let mut connection = Connection::open(process.address()).await.unwrap();
        let reply = connection.ask(method, &path, "", "{}").await.unwrap();
        assert!(status == 0 || reply.status == status, "{}", reply.body);
        sent += 1;
    }
    // More than a header may have, and refused; the log has a line of it all the same.
    let mut connection = Connection::open(process.address()).await.unwrap();
    let big = format!("x-big: {}\r\n", endless("a", 40 << 10));
    let refused = connection.ask("GET", &path, &big, "").await.unwrap();
    assert_eq!(refused.status, 431, "{}", refused.body);
    sent += 1;
    process.signal("TERM");
    process.ended().await;

    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().count(), sent, "each has its line");
    for line in text.lines() {
        assert!(line.len() < 2048, "no line is long: {} bytes, {}...", line.len(), &line[..200]);
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let length = |key: &str| line[key].as_str().unwrap_or_default().len();
        assert!(length("model") <= 128 && length("path") <= 256 && length("method") <= 32, "{line}");
        // Of a request that is refused on its way in nothing is known.
        let is_known = line["path"] != "-";
        assert!(!is_known || length("model") > 120 || length("path") == 256, "what fits of it is there: {line}");
    }
    let logs = [text, process.stdout().join("\n"), process.stderr().join("\n")];
    assert!(logs.iter().all(|log| !log.contains(MARKER)), "the end of what is endless is in no log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_access_log_that_was_moved_aside_is_begun_anew_by_a_reload_that_changes_nothing() {
    let engine = Engine::up("rotated");
    let scratch = Scratch::new();
    let logs = Scratch::new();
    let log = logs.path().join("access.log");
    let logging = format!("{{access_log: {}}}", log.display());
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
    process.until_state("rotated", "healthy").await;
    let ids = |name: &str| {
        let text = std::fs::read_to_string(logs.path().join(name)).unwrap_or_default();
        let id = |line| serde_json::from_str::<Value>(line).expect("a line of JSON")["request_id"].clone();
        text.lines().map(id).collect::<Vec<_>>()
    };
    let chat = async |id: &str| {
        let mut connection = Connection::open(process.address()).await.unwrap();
        let header = format!("x-request-id: {id}\r\n");
        let body = chat("hello").to_string();
        assert_eq!(connection.ask("POST", "/v1/chat/completions", &header, &body).await.unwrap().status, 200);
    };
    let move_aside = |name: &str| std::fs::rename(&log, logs.path().join(name)).unwrap();

    chat("first").await;
    eventually("the first line", async || ids("access.log") == ["first"]).await;
    move_aside("access.log.1");
    let reply = ask(process.admin, "POST", "/reload", "").await;
    assert_eq!(reply.json()["outcome"], "unchanged", "{}", reply.body);
    assert!(log.exists(), "the command makes a new file");
    chat("second").await;
    eventually("the second line", async || ids("access.log") == ["second"]).await;
    assert_eq!(ids("access.log.1"), ["first"], "the old file is left alone");

    move_aside("access.log.2");
    process.signal("HUP");
    eventually("the signal makes a new file", async || log.exists()).await;
    process.until_logged("Unchanged").await;
    chat("third").await;
    eventually("the third line", async || ids("access.log") == ["third"]).await;
    assert_eq!((ids("access.log.1"), ids("access.log.2")), (vec![json!("first")], vec![json!("second")]));
}
