//! Who may call, on the wire: keys, limits, permissions, and what of a caller's credentials a backend sees.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use common::backend::Fleet;
use common::client::{self, Client, Response};
use common::proxy::{Proxy, Setup};
use common::{chat, eventually, h2c, within};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

const CHAT: &str = "/v1/chat/completions";

/// A key of a caller.
const KEY: &str = "wg-the-key-of-a-caller-in-tests";

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(content: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("warmgate-auth-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn shown(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The line of a caller with `key`, `more` being further keys of it.
fn caller(label: &str, key: &str, more: &str) -> String {
    let digest: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("  - {{label: {label}, hash: 'sha256:{digest}'{more}}}\n")
}

/// A file of one caller, `a`, who has [`KEY`].
fn keys(more: &str) -> Temporary {
    Temporary::new(&format!("keys:\n{}", caller("a", KEY, more)))
}

/// A proxy with these keys in front of `fleet`, its pool with these further keys.
async fn guarded(fleet: &Fleet, keys: &Temporary, pool: &str) -> Proxy {
    let setup = Setup::new().pool("p", fleet, pool);
    setup.section("auth", &format!("keys_file: {}", keys.shown())).start().await
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

async fn post(proxy: &Proxy, headers: &str, text: &str) -> Response {
    client::post(proxy.http, CHAT, headers, &chat(text)).await
}

/// Backends that answer with this usage.
async fn reporting(prompt: u64, cached: u64, output: u64) -> Fleet {
    let usage = format!(
        r#"{{"usage":{{"prompt_tokens":{prompt},"completion_tokens":{output},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#
    );
    Fleet::start(1, move |exchange| {
        let usage = usage.clone();
        Box::pin(async move {
            exchange.body().await?;
            exchange.respond(200, &usage).await
        })
    })
    .await
}

// === keys ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_needs_a_key_that_is_known() {
    let fleet = Fleet::echo(1).await;
    let proxy = guarded(&fleet, &keys(""), "").await;
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: Bearer\r\n",
        "x-api-key: wrong\r\n",
        &format!("authorization: Basic {KEY}\r\n"),
        &format!("authorization: Bearer {KEY}x\r\n"),
        &format!("cookie: key={KEY}\r\n"),
    ] {
        let response = post(&proxy, headers, "x").await;
        assert_eq!((response.status, &*response.error_code()), (401, "invalid_api_key"), "{headers}");
        assert_eq!(response.header("www-authenticate"), Some("Bearer realm=\"warmgate\""), "{headers}");
        assert!(response.header("x-request-id").is_some());
    }
    for path in ["/health", "/v1/models", "/metrics", "/"] {
        assert_eq!(client::get(proxy.http, path).await.status, 401, "{path} needs a key too");
    }
    assert!(fleet.received().is_empty(), "no backend has seen any of it");
    for headers in [bearer(KEY), format!("x-api-key: {KEY}\r\n"), format!("authorization: BEARER {KEY}\r\n")] {
        assert_eq!(post(&proxy, &headers, "x").await.status, 200, "{headers}");
    }
    let over_h2 = h2c::post(proxy.h2c, CHAT, &[], &chat("x"), h2c::Length::Stated).await;
    assert_eq!((over_h2.status, &*over_h2.error_code()), (401, "invalid_api_key"));
    let authorization = format!("Bearer {KEY}");
    let known = h2c::post(proxy.h2c, CHAT, &[("authorization", &authorization)], &chat("x"), h2c::Length::Stated).await;
    assert_eq!(known.status, 200);
    eventually("refusals are counted", || async {
        proxy.metric("requests_total", r#"status="401",reason="unauthorized""#).await == 12.0
    })
    .await;
    assert_eq!(proxy.metric("caller_requests_total", r#"caller="a""#).await, 4.0);
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_body_is_neither_awaited_nor_held() {
    let fleet = Fleet::echo(1).await;
    let proxy = guarded(&fleet, &keys(""), "").await;
    let mut stranger = Client::connect(proxy.http).await;
    stranger.send_head("POST", CHAT, "content-length: 10000000\r\n").await;
    let head = within("the refusal comes before the body", stranger.head()).await.unwrap();
    assert_eq!((head.second_word(), head.header("connection")), ("401", Some("close")));
    assert_eq!(proxy.held().await.body_bytes, 0.0);
    // Whoever has nothing unread goes on over the same connection.
    let mut client = Client::connect(proxy.http).await;
    for (headers, status) in [("", 401), (&*bearer("wrong"), 401), (&*bearer(KEY), 200)] {
        client.send("GET", "/v1/anything", headers, b"").await;
        assert_eq!(client.response("GET").await.unwrap().status, status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_file_of_keys_anyone_may_call() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for headers in ["", &bearer("any")] {
        let response = post(&proxy, headers, "x").await;
        assert_eq!((response.status, response.header("x-ratelimit-limit-requests")), (200, None));
    }
}

// === credentials and backends ===

/// What a backend sees of the credentials of a request.
async fn seen(pool: &str) -> [Option<String>; 4] {
    let fleet = Fleet::echo(1).await;
    let proxy = guarded(&fleet, &keys(""), pool).await;
    let headers = format!("{}x-api-key: theirs\r\napi-key: theirs\r\ncookie: a=theirs\r\n", bearer(KEY));
    assert_eq!(post(&proxy, &headers, "x").await.status, 200);
    let received = fleet.received();
    let head = &received[0].head;
    ["authorization", "x-api-key", "api-key", "cookie"].map(|name| head.header(name).map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_sees_its_own_key_and_not_the_callers_unless_the_pool_says_so() {
    let file = Temporary::new("engine-key\n");
    let none = [const { None }; 4];
    assert_eq!(seen("").await, none);
    let [authorization, others @ ..] = seen(&format!("api_key_file: {}", file.shown())).await;
    assert_eq!((authorization.as_deref(), others), (Some("Bearer engine-key"), [const { None }; 3]));
    let theirs = Some("theirs".to_owned());
    let whole = [Some(format!("Bearer {KEY}")), theirs.clone(), theirs, Some("a=theirs".to_owned())];
    for pool in ["forward_credentials: true", &format!("forward_credentials: true, api_key_file: {}", file.shown())] {
        assert_eq!(seen(pool).await, whole, "{pool}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_wants_another_key_is_not_taken_for_a_wrong_caller() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.respond(401, r#"{"error":"Unauthorized"}"#).await
        })
    })
    .await;
    let file = Temporary::new("engine-key\n");
    for (pool, why) in
        [(String::new(), "set the pool's api_key_file"), (format!("api_key_file: {}", file.shown()), "refuse")]
    {
        let proxy = Setup::new().pool("p", &fleet, &pool).start().await;
        for _ in 0..8 {
            let response = post(&proxy, "", "x").await;
            assert_eq!((response.status, &*response.error_code()), (502, "backend_key_refused"), "{pool}");
            assert!(response.text().contains(why) && !response.text().contains("engine-key"), "{}", response.text());
        }
        assert_eq!(proxy.state_of(&fleet.name(0)).await, "healthy", "it answers, so it is not ejected");
        proxy.let_go().await;
    }
    let proxy = Setup::new().pool("p", &fleet, "forward_credentials: true").start().await;
    let response = post(&proxy, &bearer("theirs"), "x").await;
    assert_eq!((response.status, response.text()), (401, r#"{"error":"Unauthorized"}"#.into()), "it judges the caller");
}

// === limits ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_a_minute_are_limited() {
    let fleet = Fleet::echo(1).await;
    let proxy = guarded(&fleet, &keys(", requests_per_minute: 2"), "").await;
    let first = post(&proxy, &bearer(KEY), "x").await;
    assert_eq!((first.status, first.header("x-ratelimit-limit-requests")), (200, Some("2")));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"));
    assert!(first.header("x-ratelimit-reset-requests").is_some_and(|reset| reset.ends_with('s')), "{:?}", first.head);
    assert_eq!(first.header("x-ratelimit-limit-tokens"), None, "what is not limited is not spoken of");
    assert_eq!(post(&proxy, &bearer(KEY), "x").await.status, 200);
    let third = post(&proxy, &bearer(KEY), "x").await;
    assert_eq!((third.status, &*third.error_code()), (429, "rate_limit_exceeded"));
    let wait: u32 = third.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "half a minute gives one request: {wait}");
    assert_eq!(third.header("x-ratelimit-remaining-requests"), Some("0"));
    assert!(third.text().contains("limited to 2 requests a minute"), "{}", third.text());
    assert_eq!(proxy.metric("caller_refused_total", r#"caller="a",reason="requests""#).await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_a_time_are_limited_and_come_back_however_they_end() {
    let gate = Arc::new(Semaphore::new(0));
    let fleet = Fleet::start(1, {
        let gate = Arc::clone(&gate);
        move |exchange| {
            let gate = Arc::clone(&gate);
            Box::pin(async move {
                exchange.body().await?;
                gate.acquire().await.unwrap().forget();
                exchange.respond(200, "{}").await
            })
        }
    })
    .await;
    let proxy = guarded(&fleet, &keys(", concurrent_requests: 2"), "").await;
    let mut held = Vec::new();
    for at in 0..2 {
        let mut client = Client::connect(proxy.http).await;
        client.send("POST", CHAT, &bearer(KEY), &chat("x")).await;
        held.push(client);
        eventually("the backend has it", || async { fleet.received().len() == at + 1 }).await;
    }
    assert_eq!(proxy.metric("caller_in_flight_requests", r#"caller="a""#).await, 2.0);
    let beyond = post(&proxy, &bearer(KEY), "x").await;
    assert_eq!((beyond.status, beyond.header("retry-after")), (429, Some("1")));
    // One leaves, the other is answered.
    drop(held.pop());
    eventually("its place is free", || async { proxy.metric("caller_in_flight_requests", "").await == 1.0 }).await;
    gate.add_permits(2);
    assert_eq!(held[0].response("POST").await.unwrap().status, 200);
    gate.add_permits(2);
    assert_eq!(post(&proxy, &bearer(KEY), "x").await.status, 200);
    proxy.let_go().await;
    assert_eq!(proxy.metric("caller_in_flight_requests", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_charged_as_the_engine_reports_them() {
    let fleet = reporting(40, 0, 50).await;
    let proxy = guarded(&fleet, &keys(", tokens_per_minute: 100"), "").await;
    for _ in 0..2 {
        // The second one is begun with 10 left, and overdraws them.
        let response = post(&proxy, &bearer(KEY), "x").await;
        assert_eq!((response.status, response.header("x-ratelimit-limit-tokens")), (200, Some("100")));
        eventually("it is settled", || async { proxy.metric("caller_in_flight_requests", "").await == 0.0 }).await;
    }
    let third = post(&proxy, &bearer(KEY), "x").await;
    assert_eq!((third.status, third.header("x-ratelimit-remaining-tokens")), (429, Some("0")));
    let wait: u32 = third.header("retry-after").unwrap().parse().unwrap();
    assert!(wait >= 45, "80 tokens are owed, and 100 come in a minute: {wait}");
    let tokens = async |kind: &str| proxy.metric("caller_tokens_total", &format!(r#"caller="a",kind="{kind}""#)).await;
    assert_eq!([tokens("prompt").await, tokens("uncached").await, tokens("output").await], [80.0, 80.0, 100.0]);
    let small = client::get(proxy.http, "/v1/anything").await;
    assert_eq!(small.status, 401, "whoever has no key is told that, not of limits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncached_tokens_are_charged_without_what_the_engine_had_cached() {
    let fleet = reporting(1880, 1870, 1).await;
    let keys = keys(", uncached_tokens_per_minute: 2000");
    let proxy = guarded(&fleet, &keys, "").await;
    let long = "word ".repeat(1500);
    for at in 0..4 {
        // Each is estimated at nearly all that there is, but it is a token or ten in the end. They differ from the first
        // word on, so that none is expected to be cached.
        let response = post(&proxy, &bearer(KEY), &format!("{at} {long}")).await;
        assert_eq!(response.status, 200, "{}", response.text());
        eventually("it is settled", || async { proxy.metric("caller_in_flight_requests", "").await == 0.0 }).await;
    }
    assert_eq!(proxy.metric("caller_tokens_total", r#"kind="uncached""#).await, 40.0);
    proxy.let_go().await;

    let cold = reporting(1880, 0, 1).await;
    let proxy = guarded(&cold, &keys, "").await;
    assert_eq!(post(&proxy, &bearer(KEY), &long).await.status, 200);
    eventually("it is settled", || async { proxy.metric("caller_in_flight_requests", "").await == 0.0 }).await;
    let refused = post(&proxy, &bearer(KEY), &format!("other {long}")).await;
    assert_eq!((refused.status, &*refused.error_code()), (429, "rate_limit_exceeded"));
    assert!(refused.text().contains("uncached prompt tokens a minute"), "{}", refused.text());
    assert_eq!(proxy.metric("caller_refused_total", r#"reason="uncached_tokens""#).await, 1.0);
    assert_eq!(cold.received().len(), 1, "the second did not reach a backend");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_engine_served_costs_no_tokens() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            match exchange.head.header("x-how") {
                Some("reset") => exchange.reset(),
                _ => exchange.respond(400, r#"{"error":"no"}"#).await,
            }
        })
    })
    .await;
    let proxy = guarded(&fleet, &keys(", tokens_per_minute: 1000, uncached_tokens_per_minute: 1000"), "").await;
    let long = "word ".repeat(700);
    for how in ["refuse", "reset", "refuse", "reset"] {
        let response = post(&proxy, &format!("{}x-how: {how}\r\n", bearer(KEY)), &long).await;
        assert_eq!(response.status, if how == "reset" { 502 } else { 400 });
        proxy.let_go().await;
    }
    assert_eq!(proxy.metric("caller_tokens_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_pays_for_the_prefill_that_it_has_caused() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.until_closed().await;
            Ok(())
        })
    })
    .await;
    let proxy = guarded(&fleet, &keys(", tokens_per_minute: 1000000"), "").await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, &bearer(KEY), &chat(&"word ".repeat(800))).await;
    eventually("the backend has it", || async { fleet.received().len() == 1 }).await;
    drop(client);
    eventually("it is over", || async { proxy.metric("caller_in_flight_requests", "").await == 0.0 }).await;
    let tokens = async |kind: &str| proxy.metric("caller_tokens_total", &format!(r#"kind="{kind}""#)).await;
    let (prompt, uncached) = (tokens("prompt").await, tokens("uncached").await);
    assert!(prompt > 900.0 && uncached == prompt, "{uncached} uncached of {prompt}");
    assert_eq!(tokens("output").await, 0.0);
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_charged_however_the_path_is_spelled() {
    let fleet = reporting(40, 0, 90).await;
    let proxy = guarded(&fleet, &keys(", tokens_per_minute: 100"), "").await;
    for (path, status) in
        [("/v1/%63hat/completion%73", 200), ("/v1/chat/completions", 429), ("/%76%31/completions", 429)]
    {
        let response = client::post(proxy.http, path, &bearer(KEY), &chat("x")).await;
        assert_eq!(response.status, status, "{path}");
        eventually("it is settled", || async { proxy.metric("caller_in_flight_requests", "").await == 0.0 }).await;
    }
    let seen: Vec<String> = fleet.received().iter().map(|received| received.head.second_word().to_owned()).collect();
    assert_eq!(seen, ["/v1/%63hat/completion%73"], "it is sent on as it came");
    assert_eq!(proxy.metric("caller_tokens_total", r#"kind="output""#).await, 90.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_with_a_limit_of_tokens_gets_no_further_than_they_are_counted() {
    let fleet = Fleet::echo(1).await;
    let ask = async |proxy: &Proxy, method: &str, path: &str| {
        let mut client = Client::connect(proxy.http).await;
        client.send(method, path, &bearer(KEY), if method == "GET" { b"" } else { b"{}" }).await;
        let response = client.response(method).await.unwrap();
        (response.status, response.error_code())
    };
    let (served, denied) = ((200, String::new()), (403, "permission_denied".to_owned()));
    let uncounted =
        [("POST", "/invocations"), ("POST", "/v1/chat/completions/"), ("GET", "/flush_cache"), ("PUT", "/x")];
    let counted = [("POST", "/generate"), ("PUT", "/generate"), ("GET", "/v1/responses/resp_1")];

    let proxy = guarded(&fleet, &keys(", tokens_per_minute: 100000"), "").await;
    for (method, path) in uncounted {
        assert_eq!(ask(&proxy, method, path).await, denied, "{method} {path}");
    }
    assert!(fleet.received().is_empty(), "no backend has seen any of it");
    for (method, path) in counted {
        assert_eq!(ask(&proxy, method, path).await, served, "{method} {path}");
    }
    assert_eq!(proxy.metric("caller_refused_total", r#"reason="permission""#).await, 4.0);
    proxy.let_go().await;

    let proxy = guarded(&fleet, &keys(", tokens_per_minute: 100000, paths: [/invocations, /v1/audio/*]"), "").await;
    for path in ["/invocations", "/v1/audio/speech", "/v1/%61udio/speech"] {
        assert_eq!(ask(&proxy, "POST", path).await, served, "{path}");
    }
    for path in ["/v1/chat/completions", "/v1/audio/../chat/completions", "/v1/audio/%2e%2e/x", "/v1/audio/%2561"] {
        assert_eq!(ask(&proxy, "POST", path).await, denied, "{path}");
    }
}

// === permissions ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_gets_the_models_and_pools_that_it_may_use() {
    let models = |names: &[&str]| {
        let listed: Vec<_> = names.iter().map(|name| serde_json::json!({"id": name, "object": "model"})).collect();
        serde_json::json!({"object": "list", "data": listed}).to_string()
    };
    let one = Fleet::echo(1).await.with_models(&models(&["m", "n"]));
    let two = Fleet::echo(1).await.with_models(&models(&["o"]));
    let (by_model, by_pool) = ("wg-one-that-may-use-m-only", "wg-one-that-may-use-pool-two-only");
    let lines = [caller("by-model", by_model, ", models: [m]"), caller("by-pool", by_pool, ", pools: [two]")].concat();
    let keys = Temporary::new(&format!("keys:\n{lines}{}", caller("a", KEY, "")));
    let setup = Setup::new().pool("one", &one, "models: [m, n]").pool("two", &two, "models: [o]");
    let proxy = setup.section("auth", &format!("keys_file: {}", keys.shown())).start().await;
    let ask = async |key: &str, body: &str| {
        let response = client::post(proxy.http, CHAT, &bearer(key), body.as_bytes()).await;
        (response.status, response.error_code())
    };
    let naming = |model: &str| format!(r#"{{"model":"{model}","messages":[]}}"#);
    let (served, unknown) = ((200, String::new()), (404, "model_not_found".to_owned()));
    let denied = (403, "permission_denied".to_owned());
    for (key, m, n, o) in [
        (KEY, &served, &served, &served),
        (by_model, &served, &unknown, &unknown),
        (by_pool, &unknown, &unknown, &served),
    ] {
        assert_eq!(
            [&ask(key, &naming("m")).await, &ask(key, &naming("n")).await, &ask(key, &naming("o")).await],
            [m, n, o]
        );
    }
    let last_counts = r#"{"model":"m","messages":[],"model":"n"}"#;
    assert_eq!(
        ask(by_model, last_counts).await,
        unknown,
        "the engine takes the last of two, and so does the permission"
    );
    for body in ["{}", "", "not json"] {
        let response = client::post(proxy.http, "/v1/other", &bearer(by_model), body.as_bytes()).await;
        assert_eq!((response.status, response.error_code()), denied, "{body:?} names no model");
    }
    let listed = async |key: &str| {
        let mut client = Client::connect(proxy.http).await;
        client.send("GET", "/v1/models", &bearer(key), b"").await;
        let list: serde_json::Value = client.response("GET").await.unwrap().json();
        list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    eventually("the lists of models are known", || async { listed(KEY).await.len() == 3 }).await;
    assert_eq!((listed(by_model).await, listed(by_pool).await), (vec!["m".to_owned()], vec!["o".to_owned()]));
    assert_eq!(proxy.metric("caller_refused_total", r#"caller="by-model",reason="permission""#).await, 6.0);
}

// === logs ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_access_log_has_the_label_and_not_the_key() {
    let fleet = Fleet::echo(1).await;
    let (keys, log) = (keys(", requests_per_minute: 1"), Temporary::new(""));
    let setup = Setup::of(&fleet).section("auth", &format!("keys_file: {}", keys.shown()));
    let proxy = setup.access_log(&log.0).start().await;
    for (headers, status) in [(bearer(KEY), 200), (bearer(KEY), 429), (bearer("wg-a-key-of-nobody-at-all"), 401)] {
        assert_eq!(post(&proxy, &headers, "x").await.status, status);
    }
    let lines = || std::fs::read_to_string(&log.0).unwrap();
    eventually("three lines are written", || async { lines().lines().count() == 3 }).await;
    let lines: Vec<serde_json::Value> = lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |status: u16| lines.iter().find(|line| line["status"] == status).unwrap();
    assert_eq!((&of(200)["caller"], &of(429)["caller"]), (&"a".into(), &"a".into()));
    assert_eq!((of(401).get("caller"), &of(401)["reason"]), (None, &"unauthorized".into()));
    let text = format!("{lines:?}");
    assert!(!text.contains("wg-"), "a key is in the log: {text}");
}
