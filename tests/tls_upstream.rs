//! Backends over TLS: whom to trust, which name to expect, what to show; for requests and for all other calls.

mod common_control;
mod common_tls;

use common_control::engine::{Engine, Page};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, logs};
use common_tls::{Authority, Front, Issued};
use serde_json::json;

/// What most backends are for: their address.
const HOSTS: [&str; 1] = ["127.0.0.1"];

fn settings(engine: &Engine, front: &Front, tls: &str) -> Settings {
    Settings {
        pool: format!("engine: generic, policy: round_robin, tls: {{{tls}}}"),
        backends: vec![(engine.name().to_owned(), front.address)],
        scheme: "https",
        ..Settings::new([engine])
    }
}

async fn start(engine: &Engine, front: &Front, scratch: Scratch, tls: &str) -> Proxy {
    let file = scratch.file("warmgate.yaml", settings(engine, front, tls).to_string());
    Proxy::start_with(scratch, file).await
}

/// The backend is refused, for a reason that the log gives.
async fn is_refused(proxy: &Proxy, engine: &Engine, front: &Front, why: &str) {
    let line = format!("WARN backend {} of pool main: no TLS with it: ", engine.name());
    eventually("the log says why", async || logs::count(&[&line]) > 0).await;
    let probes = front.refusals();
    eventually("it is probed again", async || front.refusals() > probes + 2).await;
    assert_eq!(logs::count(&[&line, why]), 1, "{:?}", logs::lines_with(&[&line]));
    assert_eq!(proxy.state(engine.name()).await, "starting");
    assert!(proxy.chat(&chat("hello")).await.status >= 500);
    assert_eq!(engine.posts(), 0, "no prompt was sent");
}

async fn is_served(proxy: &Proxy, engine: &Engine) {
    proxy.until_state(engine.name(), "healthy").await;
    assert_eq!(proxy.chat(&chat("hello")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whom_the_system_trusts_is_not_whom_a_ca_trusts() {
    let authority = Authority::new("own");
    let issued = authority.issue(&HOSTS);
    for (trusts, engine) in
        [(None, Engine::up("system")), (Some(true), Engine::up("own")), (Some(false), Engine::up("foreign"))]
    {
        let scratch = Scratch::new();
        let front = Front::start(engine.address(), &issued, None).await;
        let other = Authority::new("other");
        let ca = trusts.map(|own| scratch.file("ca.pem", if own { authority.pem() } else { other.pem() }));
        let tls = ca.map(|ca| format!("ca: {}", ca.display())).unwrap_or_default();
        let proxy = start(&engine, &front, scratch, &tls).await;
        match trusts {
            Some(true) => is_served(&proxy, &engine).await,
            _ => is_refused(&proxy, &engine, &front, "UnknownIssuer").await,
        }
        assert_eq!(front.refusals() == 0, trusts == Some(true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_has_to_be_right_unless_it_is_said_otherwise() {
    let (authority, other) = (Authority::new("names"), Authority::new("names-other"));
    let (named, expired) = (authority.issue(&["engine.example"]), authority.issue_expired(&HOSTS));
    let foreign = other.issue(&HOSTS);
    let cases: [(&str, &Issued, &str, Option<&str>); 8] = [
        ("name-bad", &named, "", Some("certificate not valid for name")),
        ("name-given", &named, ", server_name: engine.example", None),
        ("name-other", &named, ", server_name: other.example", Some("certificate not valid for name")),
        ("name-any", &named, ", verify: insecure_any_name", None),
        ("name-any-foreign", &foreign, ", verify: insecure_any_name", Some("UnknownIssuer")),
        ("expired", &expired, "", Some("certificate expired")),
        ("expired-any-name", &expired, ", verify: insecure_any_name", Some("certificate expired")),
        ("anything", &foreign, ", verify: insecure_anything", None),
    ];
    for (name, issued, tls, refused) in cases {
        let (engine, scratch) = (Engine::up(name), Scratch::new());
        let front = Front::start(engine.address(), issued, None).await;
        let ca = scratch.file("ca.pem", authority.pem());
        let proxy = start(&engine, &front, scratch, &format!("ca: {}{tls}", ca.display())).await;
        match refused {
            Some(why) => is_refused(&proxy, &engine, &front, why).await,
            None => is_served(&proxy, &engine).await,
        }
        if name == "name-given" {
            assert_eq!(front.seen()[0].host.as_deref(), Some("engine.example"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_shows_the_certificate_and_speaks_http_1() {
    let (engine, scratch) = (Engine::up("shows"), Scratch::new());
    engine.set_metrics(Page::Text(200, "vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n".into()));
    let (authority, clients) = (Authority::new("shows"), Authority::new("clients"));
    let front = Front::start(engine.address(), &authority.issue(&HOSTS), Some((&clients, true))).await;
    let ca = scratch.file("ca.pem", authority.pem());
    let ours = clients.issue_client("spiffe://example/warmgate");
    let tls = format!("ca: {}, {}", ca.display(), ours.client_files(&scratch, "ours"));
    let mut settings = settings(&engine, &front, &tls);
    settings.pool = settings.pool.replace("generic", "vllm") + ", kv_events: {enabled: true}";
    settings.health = "{path: /health, interval: 100ms, timeout: 5s, rise: 1, fall: 3}".into();
    settings.metrics = "{interval: 100ms, timeout: 5s, stale_after: 10s}".into();
    let file = scratch.file("warmgate.yaml", settings.to_string());
    let proxy = Proxy::start_with(scratch, file).await;
    is_served(&proxy, &engine).await;
    eventually("metrics are scraped", async || proxy.metric("warmgate_engine_running_requests{").await == Some(3.0))
        .await;
    // The scripted engine knows nothing of events, and says so over TLS.
    eventually("it is asked for its event sources", async || {
        logs::count(&["backend shows: no KV events: the engine"]) > 0
    })
    .await;
    assert_eq!(front.refusals(), 0, "some call came without the certificate");
    for seen in front.seen() {
        assert!(seen.certificate.as_ref() == Some(&ours.der), "{seen:?}");
        assert_eq!(seen.protocol.as_deref(), Some(&b"http/1.1"[..]));
    }
    let expiry = proxy.metric("warmgate_tls_certificate_expiry_timestamp_seconds{").await;
    assert_eq!(expiry, Some(3_786_912_000.0), "2090-01-01");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_certificate_that_a_backend_wants_it_is_out() {
    let (engine, scratch) = (Engine::up("wants"), Scratch::new());
    let (authority, clients) = (Authority::new("wants"), Authority::new("clients"));
    let front = Front::start(engine.address(), &authority.issue(&HOSTS), Some((&clients, true))).await;
    let ca = scratch.file("ca.pem", authority.pem());
    let proxy = start(&engine, &front, scratch, &format!("ca: {}", ca.display())).await;
    is_refused(&proxy, &engine, &front, "CertificateRequired").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_with_other_settings_share_no_connection() {
    let (engine, scratch, authority) = (Engine::up("shared"), Scratch::new(), Authority::new("shared"));
    let front = Front::start(engine.address(), &authority.issue(&HOSTS), Some((&authority, false))).await;
    let ca = scratch.file("ca.pem", authority.pem());
    let warys = scratch.file("warys.pem", authority.pem());
    // Two client certificates with the same serial number, which is all of them that Pingora looks at.
    let client = |uri: &str| {
        authority.issue_with(&[], |params| {
            params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().unwrap()));
            params.serial_number = Some(7_u64.into());
        })
    };
    let (one, two) = (client("spiffe://example/one"), client("spiffe://example/two"));
    let mut settings = settings(&engine, &front, &format!("ca: {}", ca.display()));
    // Long enough that what is kept is there when the others come.
    settings.pool += ", models: [main], keepalive_idle: 1h";
    let pool = |name: &str, tls: String| {
        let url = format!("https://{}", front.address);
        let usual = "health: {interval: 100ms, timeout: 5s}, keepalive_idle: 1h";
        format!(
            "- {{name: {name}, models: [{name}], {usual}, tls: {{{tls}}}, backends: [{{name: '{name}-b', url: '{url}'}}]}}"
        )
    };
    settings.more_pools = vec![
        pool("one", format!("ca: {}, {}", ca.display(), one.client_files(&scratch, "one"))),
        pool("two", format!("ca: {}, {}", ca.display(), two.client_files(&scratch, "two"))),
        pool("wary", format!("ca: {}", warys.display())),
    ];
    let file = scratch.file("warmgate.yaml", settings.to_string());
    let proxy = Proxy::start_with(scratch, file).await;
    for backend in ["shared", "one-b", "two-b", "wary-b"] {
        proxy.until_state(backend, "healthy").await;
    }
    let ask = async |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
        proxy.chat(&body).await.status
    };
    for model in ["main", "one", "two", "wary", "main", "one", "two", "wary"] {
        assert_eq!(ask(model).await, 200, "{model}");
    }
    let seen: Vec<_> = front.seen().into_iter().filter(|seen| seen.is_post).collect();
    let used =
        |of: Option<&Issued>| seen.iter().filter(|seen| seen.certificate.as_ref() == of.map(|of| &of.der)).count();
    // A reply can be there before its connection is, and the next request make another.
    assert!(used(Some(&one)) > 0 && used(Some(&two)) > 0 && used(None) > 0, "one went over another's: {seen:?}");
    assert!(seen.len() < 8, "none is kept: {seen:?}");
    proxy.scratch().file("warys.pem", Authority::new("other").pem());
    proxy.until_state("wary-b", "unhealthy").await;
    assert_eq!(ask("main").await, 200);
    // With every backend out it is tried all the same.
    assert!(ask("wary").await >= 500, "it took a connection to one that it does not trust");
    assert_eq!(engine.posts(), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_can_differ_from_its_pool() {
    let (engine, scratch, authority) = (Engine::up("differs"), Scratch::new(), Authority::new("differs"));
    let front = Front::start(engine.address(), &authority.issue(&["engine.example"]), None).await;
    let ca = scratch.file("ca.pem", authority.pem());
    let mut settings = settings(&engine, &front, "server_name: engine.example");
    settings.backends.clear();
    let url = format!("https://{}", front.address);
    let own = format!("backends: [{{name: differs, url: '{url}', tls: {{ca: {}}}}}]", ca.display());
    let text = settings.to_string().replace("backends: []", &own);
    let file = scratch.file("warmgate.yaml", text);
    let proxy = Proxy::start_with(scratch, file).await;
    is_served(&proxy, &engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_ca_is_taken_over_without_a_restart_and_with_what_is_known_of_the_backend() {
    let (engine, scratch) = (Engine::up("renewed-ca"), Scratch::new());
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let front = Front::start(engine.address(), &old.issue(&HOSTS), None).await;
    let ca = scratch.file("renewed-ca.pem", old.pem());
    let proxy = start(&engine, &front, scratch, &format!("ca: {}", ca.display())).await;
    is_served(&proxy, &engine).await;
    let prompt = chat(&common_control::long_prompt("renewed-ca"));
    assert_eq!(proxy.chat(&prompt).await.status, 200);
    eventually("the prompt is believed cached", async || proxy.matched_tokens(&prompt, "renewed-ca").await > 0).await;
    front.show(&new.issue(&HOSTS));
    proxy.until_state("renewed-ca", "unhealthy").await;
    proxy.scratch().file("renewed-ca.pem", "garbage");
    eventually("it is refused", async || {
        logs::count(&["ERROR", "pools[0].tls.ca", "renewed-ca.pem", "no certificate"]) > 0
    })
    .await;
    assert_eq!(proxy.metric("warmgate_tls_certificates_current").await, Some(0.0));
    proxy.scratch().file("renewed-ca.pem", new.pem());
    is_served(&proxy, &engine).await;
    assert!(proxy.matched_tokens(&prompt, "renewed-ca").await > 0, "it is the same backend, with what it holds");
}
