//! How many connections clients may have, and what those beyond find.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::net::SocketAddr;

use common::backend::Fleet;
use common::client::Client;
use common::proxy::{Proxy, Setup};
use common::wire::Wire;
use common::{chat, eventually};
use tokio::net::TcpSocket;

const CHAT: &str = "/v1/chat/completions";

/// A connection from this loopback address.
async fn from(address: [u8; 4], proxy: SocketAddr) -> Client {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((address, 0))).unwrap();
    Client { wire: Wire::new(socket.connect(proxy).await.unwrap()) }
}

/// Whether a request is answered on this connection.
async fn is_served(client: &mut Client) -> bool {
    client.send("POST", CHAT, "", &chat("hello")).await;
    client.response("POST").await.is_ok_and(|response| response.status == 200)
}

/// The connections that the proxy counts.
async fn open(proxy: &Proxy) -> f64 {
    proxy.metric("connections", "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_a_limit_are_closed_at_once_and_others_go_on() {
    let fleet = Fleet::echo(1).await;
    let limits = "max_connections: 4, max_connections_per_address: 2";
    let proxy = Setup::of(&fleet).section("limits", limits).start().await;
    let (mut one, mut two) = (from([127, 0, 0, 1], proxy.http).await, from([127, 0, 0, 1], proxy.http).await);
    assert!(is_served(&mut one).await && is_served(&mut two).await);
    assert!(!is_served(&mut from([127, 0, 0, 1], proxy.http).await).await, "a third one of its address");
    let mut others = Vec::new();
    for host in [2, 3] {
        others.push(from([127, 0, 0, host], proxy.http).await);
        assert!(is_served(others.last_mut().unwrap()).await, "another address has places of its own");
    }
    assert!(!is_served(&mut from([127, 0, 0, 4], proxy.http).await).await, "a fifth one in all");
    assert!(is_served(&mut one).await, "who is there goes on");
    assert_eq!(open(&proxy).await, 4.0);
    for (limit, count) in [("address", 1.0), ("total", 1.0)] {
        assert_eq!(proxy.metric("connections_refused_total", limit).await, count, "by {limit}");
    }

    drop(two);
    eventually("its place is free", async || open(&proxy).await == 3.0).await;
    assert!(is_served(&mut from([127, 0, 0, 4], proxy.http).await).await);
}

/// Silent connections take places; that is what the limits are for, and the operators' listener has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_get_in_whatever_clients_do() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("limits", "max_connections: 3").start().await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(from([127, 0, 0, 1], proxy.http).await);
    }
    eventually("five are refused", async || proxy.metric("connections_refused_total", "total").await == 5.0).await;
    assert_eq!((open(&proxy).await, proxy.backends().await.len()), (3.0, 1));
    drop(silent);
    eventually("all places are free", async || open(&proxy).await == 0.0).await;
}
