//! The binary upgrade, with real processes: what takes over from what, what clients see of it, and what becomes of an
//! upgrade that fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../common_control/mod.rs"]
mod common_control;
mod failing;
mod learned;
mod load;
mod service;
mod under_load;

use std::net::TcpListener;

use tokio::net::TcpStream;

use common_control::client::{Connection, get, open_stream, post_chat};
use common_control::engine::{Answer, Engine, is_whole_stream};
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, streamed, within};
use service::{Service, is_running};

/// Kept connections that wait are over soon, and so is a process that has handed over.
pub(crate) const SERVER: &str = "{keepalive_timeout: 1s, drain_delay: 100ms, drain_timeout: 60s}";

fn settings(engine: &Engine) -> Settings {
    Settings { server: SERVER.into(), ..Settings::new([engine]) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_serves_on_the_same_sockets_and_the_old_one_finishes_its_streams() {
    let (engine, scratch) = (Engine::up("one"), Scratch::new());
    let mut service = Service::start(&scratch.file("warmgate.yaml", settings(&engine).to_string())).await;
    engine.set_answer(Answer::Gated);
    let (mut stream, _) = open_stream(service.address(), &streamed("hello")).await;
    engine.emit(1);

    let old = service.main();
    service.upgrade().await;
    assert_ne!(service.main(), old);
    assert!(service.first.is_running(), "a stream is in flight there");
    engine.set_answer(Answer::Whole);
    let mut connection = Connection::open(service.address()).await.unwrap();
    for _ in 0..3 {
        let reply = connection.chat(&chat("hello")).await.unwrap();
        assert_eq!(reply.status, 200);
        assert_ne!(reply.header("connection"), Some("close"), "the new process keeps connections");
    }
    assert_eq!(get(service.admin(), "/readyz").await.status, 200, "operators ask the new process");
    engine.emit(3);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()), "the stream ended whole");
    drop(stream);
    let (status, _) = service.first.ended().await;
    assert_eq!(status.code(), Some(0), "{:?}", service.first.stderr());
    assert_eq!(post_chat(service.address(), &chat("hello")).await.status, 200);

    service.signal("TERM");
    eventually("the new process stops", async || !is_running(service.main())).await;
    assert!(TcpStream::connect(service.address()).await.is_err(), "nobody holds the socket any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_is_closed_by_its_next_answer() {
    let (engine, scratch) = (Engine::up("kept"), Scratch::new());
    let server = "{keepalive_timeout: 1h, drain_delay: 100ms, drain_timeout: 60s}".to_owned();
    let file = scratch.file("warmgate.yaml", Settings { server, ..settings(&engine) }.to_string());
    let mut service = Service::start(&file).await;
    let mut asking = Connection::open(service.address()).await.unwrap();
    assert_ne!(asking.chat(&chat("hello")).await.unwrap().header("connection"), Some("close"));
    service.upgrade().await;
    let reply = asking.chat(&chat("hello")).await.expect("a request on a kept connection is not lost");
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    assert!(asking.is_closed().await);
    let (status, _) = service.first.ended().await;
    assert_eq!(status.code(), Some(0), "the old process does not wait for more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_connections_that_ask_nothing_have_their_time_and_no_more() {
    let (engine, scratch) = (Engine::up("idle"), Scratch::new());
    let mut service = Service::start(&scratch.file("warmgate.yaml", settings(&engine).to_string())).await;
    let mut used = Connection::open(service.address()).await.unwrap();
    assert_eq!(used.chat(&chat("hello")).await.unwrap().status, 200);
    let mut unused = Connection::open(service.address()).await.unwrap();
    service.upgrade().await;
    assert!(used.is_closed().await && unused.is_closed().await);
    let (status, _) = service.first.ended().await;
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_new_configuration_holds_for_the_new_process_its_listeners_too() {
    let (engine, scratch) = (Engine::up("listeners"), Scratch::new());
    let listeners = "[{address: '127.0.0.1:0'}, {address: '127.0.0.2:0'}]".to_owned();
    let file = scratch.file("warmgate.yaml", Settings { listeners, ..settings(&engine) }.to_string());
    let mut service = Service::start(&file).await;
    let (stays, goes) = (service.first.addresses[0], service.first.addresses[1]);
    let comes = TcpListener::bind("127.0.0.3:0").unwrap().local_addr().unwrap();

    let listeners = format!("[{{address: '127.0.0.1:0'}}, {{address: '{comes}'}}]");
    scratch.file("warmgate.yaml", Settings { listeners, ..settings(&engine) }.to_string());
    service.first.until_logged("listeners cannot change while the process runs").await;
    service.upgrade().await;
    for address in [stays, comes] {
        assert_eq!(post_chat(address, &chat("hello")).await.status, 200, "{address}");
    }
    eventually("the listener that is gone is closed", async || TcpStream::connect(goes).await.is_err()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_new_process_can_be_upgraded_too_while_the_first_one_still_finishes() {
    let (engine, scratch) = (Engine::up("thrice"), Scratch::new());
    let mut service = Service::start(&scratch.file("warmgate.yaml", settings(&engine).to_string())).await;
    engine.set_answer(Answer::Gated);
    engine.emit(1);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(open_stream(service.address(), &streamed("hello")).await.0);
        service.upgrade().await;
    }
    let ids: Vec<u32> = [vec![service.first.id()], service.started()].concat();
    assert!(ids.iter().all(|id| is_running(*id)), "each has a stream, the last one the listeners");
    engine.emit(3);
    engine.finish();
    for mut stream in streams {
        assert!(is_whole_stream(&stream.rest().await.unwrap()));
    }
    eventually("all but the last end", async || ids[..3].iter().all(|id| !is_running(*id))).await;
    assert!(is_running(ids[3]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_what_the_processes_before_still_finish() {
    let (engine, scratch) = (Engine::up("waits"), Scratch::new());
    let mut service = Service::start(&scratch.file("warmgate.yaml", settings(&engine).to_string())).await;
    engine.set_answer(Answer::Gated);
    engine.emit(1);
    let (mut stream, _) = open_stream(service.address(), &streamed("hello")).await;
    service.upgrade().await;
    service.upgrade().await;
    service.signal("TERM");
    eventually("connections are refused", async || TcpStream::connect(service.address()).await.is_err()).await;
    // It has no request itself. All that keeps it is the first process, through the second one.
    assert!(is_running(service.main()) && is_running(service.started()[0]) && service.first.is_running());
    engine.emit(3);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()));
    drop(stream);
    eventually("all end", async || service.started().iter().all(|id| !is_running(*id))).await;
    assert_eq!(service.first.ended().await.0.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_connections_that_ask_nothing_of_the_processes_before() {
    let (engine, scratch) = (Engine::up("hurry"), Scratch::new());
    let server = "{keepalive_timeout: 1h, drain_delay: 100ms, drain_timeout: 60s}".to_owned();
    let file = scratch.file("warmgate.yaml", Settings { server, ..settings(&engine) }.to_string());
    let mut service = Service::start(&file).await;
    let mut waiting = Connection::open(service.address()).await.unwrap();
    assert_eq!(waiting.chat(&chat("hello")).await.unwrap().status, 200);
    service.upgrade().await;
    service.upgrade().await;
    assert!(service.first.is_running(), "a connection may ask it something still");
    service.signal("TERM");
    assert!(waiting.is_closed().await);
    eventually("all end", async || service.started().iter().all(|id| !is_running(*id))).await;
    assert_eq!(service.first.ended().await.0.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_http_2_end_whole_as_well_and_their_connection_with_them() {
    let (engine, scratch) = (Engine::up("two"), Scratch::new());
    let listeners = "[{address: '127.0.0.1:0', h2c: true}]".to_owned();
    let file = scratch.file("warmgate.yaml", Settings { listeners, ..settings(&engine) }.to_string());
    let mut service = Service::start(&file).await;
    engine.set_answer(Answer::Gated);
    engine.emit(1);
    let (client, driver) = http_2(&service).await;
    let mut bodies = Vec::new();
    for _ in 0..8 {
        bodies.push(ask_http_2(&client).await);
    }
    service.upgrade().await;
    let (next, next_driver) = http_2(&service).await;
    let mut body = ask_http_2(&next).await;
    engine.emit(3);
    engine.finish();
    for body in &mut bodies {
        assert!(is_whole_stream(&whole(body).await));
    }
    within("the end of the connection to the old process", driver).await.unwrap().unwrap();
    assert_eq!(service.first.ended().await.0.code(), Some(0), "{:?}", service.first.stderr());
    assert!(is_whole_stream(&whole(&mut body).await), "the new process speaks it too");
    drop((client, next));
    next_driver.abort();
}

type Http2 = h2::client::SendRequest<bytes::Bytes>;

/// An HTTP/2 connection, and the task that drives it to its end.
async fn http_2(service: &Service) -> (Http2, tokio::task::JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(service.address()).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    (client, tokio::spawn(connection))
}

/// A stream that has begun.
async fn ask_http_2(client: &Http2) -> h2::RecvStream {
    let request = http::Request::post("http://test/v1/chat/completions").body(()).unwrap();
    let (reply, mut body) = client.clone().ready().await.unwrap().send_request(request, false).unwrap();
    body.send_data(streamed("hello").to_string().into(), true).unwrap();
    within("a reply", reply).await.unwrap().into_body()
}

async fn whole(body: &mut h2::RecvStream) -> String {
    let mut text = Vec::new();
    while let Some(bytes) = within("a frame", body.data()).await {
        text.extend_from_slice(&bytes.expect("the stream is not cut"));
    }
    String::from_utf8(text).unwrap()
}
