//! Certificates that are renewed while the proxy serves.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;
mod common_tls;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use common_control::client::Connection;
use common_control::engine::{Answer, Engine, is_whole_stream};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, logs, streamed, within};
use common_tls::{Authority, Dial, Issued, OLD};

fn settings(engine: &Engine, tls: &str) -> Settings {
    Settings { listeners: format!("[{{address: '127.0.0.1:0', tls: {{{tls}}}}}]"), ..Settings::new([engine]) }
}

async fn start(engine: &Engine, scratch: Scratch, tls: &str) -> Proxy {
    let file = scratch.file("warmgate.yaml", settings(engine, tls).to_string());
    let proxy = Proxy::start_with(scratch, file).await;
    proxy.until_state(engine.name(), "healthy").await;
    proxy
}

async fn until_shown(authority: &Authority, proxy: &Proxy, issued: &Issued) {
    let dial = Dial::to(authority);
    eventually("the new certificate is shown", async || dial.shown(proxy.address()).await == issued.der).await;
}

/// Puts a link to `target` in the place of the one at `link`, in one step.
fn relink(target: &Path, link: &Path) {
    let next = link.with_file_name("next");
    symlink(target, &next).unwrap();
    std::fs::rename(next, link).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_are_taken_over_under_load_and_connections_go_on() {
    let (engine, scratch, authority) = (Engine::up("load"), Scratch::new(), Arc::new(Authority::new("load")));
    let issued: Vec<Issued> = (0..3).map(|_| authority.issue(&["localhost"])).collect();
    // As certbot has it: links, and what they lead to elsewhere.
    let (archive, live) = (scratch.path().join("archive"), scratch.path().join("live"));
    std::fs::create_dir_all(&archive).unwrap();
    std::fs::create_dir_all(&live).unwrap();
    for (at, issued) in issued.iter().enumerate() {
        std::fs::write(archive.join(format!("cert{at}.pem")), &issued.pem).unwrap();
        std::fs::write(archive.join(format!("key{at}.pem")), &issued.key_pem).unwrap();
    }
    let links = [("cert", live.join("cert.pem")), ("key", live.join("key.pem"))];
    let renew =
        |at: usize| links.iter().for_each(|(kind, link)| relink(&archive.join(format!("{kind}{at}.pem")), link));
    renew(0);
    let tls = format!("certificate: {}, key: {}", links[0].1.display(), links[1].1.display());
    let proxy = start(&engine, scratch, &tls).await;
    let address = proxy.address();
    let mut kept = Connection::over(Dial::to(&authority).connect(address).await.unwrap());
    assert_eq!(kept.chat(&chat("hello")).await.unwrap().status, 200);
    engine.set_answer(Answer::Gated);
    let mut stream = Connection::over(Dial::to(&authority).connect(address).await.unwrap());
    stream.send("POST", "/v1/chat/completions", "", &streamed("hello").to_string()).await.unwrap();
    engine.emit(2);
    let head = within("a stream's head", stream.head()).await.unwrap();
    assert_eq!(head.status, 200);
    engine.set_answer(Answer::Whole);
    let (is_over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (authority, is_over, served) = (Arc::clone(&authority), Arc::clone(&is_over), Arc::clone(&served));
            tokio::spawn(async move {
                while !is_over.load(SeqCst) {
                    let mut connection = Connection::over(Dial::to(&authority).connect(address).await.unwrap());
                    assert_eq!(connection.chat(&chat("hello")).await.unwrap().status, 200);
                    served.fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    for (at, issued) in issued.iter().enumerate().skip(1) {
        renew(at);
        until_shown(&authority, &proxy, issued).await;
        let before = served.load(SeqCst);
        eventually("the load goes on", async || served.load(SeqCst) > before + 10).await;
    }
    is_over.store(true, SeqCst);
    for task in load {
        within("the load's end", task).await.expect("no request failed");
    }
    assert_eq!(kept.chat(&chat("hello")).await.unwrap().status, 200, "an idle connection went on");
    engine.finish();
    let rest = stream.rest().await.unwrap();
    assert!(is_whole_stream(&rest), "{rest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_kubernetes_swaps_is_read_again() {
    let (engine, scratch, authority) = (Engine::up("swap"), Scratch::new(), Authority::new("swap"));
    let (old, new) = (authority.issue(&["localhost"]), authority.issue(&["localhost"]));
    let folder = scratch.path().join("secret");
    for (version, issued) in [("..1", &old), ("..2", &new)] {
        std::fs::create_dir_all(folder.join(version)).unwrap();
        std::fs::write(folder.join(version).join("tls.crt"), &issued.pem).unwrap();
        std::fs::write(folder.join(version).join("tls.key"), &issued.key_pem).unwrap();
    }
    relink(Path::new("..1"), &folder.join("..data"));
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
    }
    let tls = format!("certificate: {0}/tls.crt, key: {0}/tls.key", folder.display());
    let proxy = start(&engine, scratch, &tls).await;
    assert!(Dial::to(&authority).shown(proxy.address()).await == old.der);
    relink(Path::new("..2"), &folder.join("..data"));
    until_shown(&authority, &proxy, &new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_renewal_changes_nothing_and_says_why() {
    let (engine, scratch, authority) = (Engine::up("bad"), Scratch::new(), Authority::new("bad"));
    let (first, second) = (authority.issue(&["localhost"]), authority.issue(&["b.example"]));
    let more = second.files(&scratch, "bad-second");
    let tls = format!("{}, certificates: [{{{more}}}]", first.files(&scratch, "bad-first"));
    let proxy = start(&engine, scratch, &tls).await;
    let current = async || proxy.metric("warmgate_tls_certificates_current").await;
    assert_eq!(current().await, Some(1.0));
    // The second is of another key, and the first is good: neither is taken.
    let next = authority.issue(&["localhost"]);
    proxy.scratch().file("bad-second.pem", authority.issue(&["b.example"]).pem);
    next.files(proxy.scratch(), "bad-first");
    eventually("it is refused", async || current().await == Some(0.0)).await;
    let parts = ["ERROR", "those in force stay", "certificates[0].certificate", "bad-second.pem", "is of another key"];
    eventually("the log says so", async || logs::count(&parts) > 0).await;
    assert!(Dial::to(&authority).shown(proxy.address()).await == first.der);
    let refused = proxy.reload().await;
    assert!(refused.status >= 400 && refused.body.contains("bad-second.pem"), "{}", refused.body);
    let expired = authority.issue_expired(&["b.example"]);
    expired.files(proxy.scratch(), "bad-second");
    eventually("it is refused as well", async || logs::count(&["ERROR", "bad-second.pem", "expired on 2024"]) > 0)
        .await;
    assert!(Dial::to(&authority).shown(proxy.address()).await == first.der);
    second.files(proxy.scratch(), "bad-second");
    until_shown(&authority, &proxy, &next).await;
    assert_eq!(current().await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_takes_over_what_is_said_of_tls_and_reads_the_files_again() {
    let (engine, scratch, authority) = (Engine::up("said"), Scratch::new(), Authority::new("said"));
    let (first, second) = (authority.issue(&["localhost"]), authority.issue(&["b.example"]));
    let tls = first.files(&scratch, "first");
    let proxy = start(&engine, scratch, &tls).await;
    let more = format!("{tls}, certificates: [{{{}}}]", second.files(proxy.scratch(), "second"));
    let other = Dial { host: "b.example", ..Dial::to(&authority) };
    assert!(other.connect(proxy.address()).await.is_err());
    proxy.apply(&settings(&engine, &more)).await;
    assert!(other.shown(proxy.address()).await == second.der);
    proxy.apply(&settings(&engine, &format!("{more}, min_version: 1.3"))).await;
    assert!(Dial { versions: &OLD, ..Dial::to(&authority) }.connect(proxy.address()).await.is_err());
    // The same configuration with a renewed file.
    let renewed = authority.issue(&["localhost"]);
    renewed.files(proxy.scratch(), "first");
    let reply = proxy.reload().await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(Dial::to(&authority).shown(proxy.address()).await == renewed.der);
    let plain = Settings::new([&engine]);
    proxy.rewrite(&plain);
    let refused = proxy.reload().await;
    assert!(refused.body.contains("listeners cannot change"), "TLS does not go away by a reload: {}", refused.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_each_certificate_is_told() {
    let (engine, scratch, authority) = (Engine::up("end"), Scratch::new(), Authority::new("end"));
    let (long, over) = (authority.issue(&["localhost"]), authority.issue_expired(&["localhost"]));
    let tls = format!("{}, certificates: [{{{}}}]", long.files(&scratch, "end-long"), over.files(&scratch, "end-over"));
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (long, over) = (path("end-long.pem"), path("end-over.pem"));
    let proxy = start(&engine, scratch, &tls).await;
    let expiry = async |file: &str| {
        let series =
            format!("warmgate_tls_certificate_expiry_timestamp_seconds{{file=\"{file}\",side=\"downstream\"}}");
        proxy.metric(&series).await.unwrap()
    };
    assert_eq!(expiry(&long).await, 3_786_912_000.0, "2090-01-01");
    assert_eq!(expiry(&over).await, 1_735_603_200.0, "2024-12-31");
    assert_eq!(logs::count(&["ERROR listeners[0].tls.certificates[0].certificate", &over, "expired on 2024-12-31"]), 1);
}
