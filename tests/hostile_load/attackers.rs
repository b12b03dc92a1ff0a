//! Hostile clients: slow ones, endless ones, ones that mean two things, floods, and ones that do not read.

use std::io::{BufRead, stdin};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::CHAT;
use crate::common::backend::Fleet;
use crate::common::wire::Wire;
use crate::process::{MARK, SAYS};

/// What hostile connections do, each in its turn.
const KINDS: usize = 8;

/// Not a test by itself: what [`crate::process::Attackers`] starts.
#[tokio::test(flavor = "current_thread")]
#[ignore = "started by the others"]
async fn be_the_attackers() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let engine = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.begin_stream().await?;
            // As much as there is room for on the way.
            for _ in 0..512 {
                exchange.event(&"x".repeat(4096)).await?;
            }
            exchange.end_stream().await
        })
    })
    .await;
    println!("\n{SAYS}{}", engine.addresses()[0]);
    let (sender, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut attackers = JoinSet::new();
    while let Some(order) = orders.recv().await {
        let words: Vec<&str> = order.split(' ').collect();
        if let [http, h2c, count, pause] = words[..] {
            let pause = Duration::from_millis(pause.parse().unwrap());
            for at in 0..count.parse().unwrap() {
                attackers.spawn(be_hostile(at, http.parse().unwrap(), h2c.parse().unwrap(), pause));
            }
        } else {
            attackers.shutdown().await;
            println!("{SAYS}left off");
        }
    }
}

/// One hostile client, which comes back as often as it is turned away.
async fn be_hostile(at: usize, http: SocketAddr, h2c: SocketAddr, pause: Duration) {
    // Not all at the same moment.
    sleep(pause.mul_f64((at % 97) as f64 / 97.0)).await;
    loop {
        // With so many of them the queue of the listener is full now and then.
        if let Ok(stream) = TcpStream::connect(if at % KINDS == 6 { h2c } else { http }).await {
            let _ = attack(at % KINDS, &mut Wire::new(stream), pause).await;
        }
        sleep(pause).await;
    }
}

async fn attack(kind: usize, wire: &mut Wire, pause: Duration) -> std::io::Result<()> {
    let head = |fields: &str| format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\n{fields}");
    match kind {
        // A header a byte at a time.
        0 => trickle(wire, head("x: ").as_bytes(), b"x", pause).await,
        // A body a byte at a time; the length is a claim.
        1 => trickle(wire, head("content-length: 4000000\r\n\r\n{").as_bytes(), b"x", pause).await,
        // Chunks of a byte.
        2 => trickle(wire, head("transfer-encoding: chunked\r\n\r\n").as_bytes(), b"1\r\nx\r\n", pause).await,
        // Large parts of bodies that do not end.
        3 => {
            wire.write(head("content-length: 4000000\r\n\r\n").as_bytes()).await?;
            trickle(wire, &vec![b'x'; 300_000], b"x", pause).await
        }
        // Headers without end.
        4 => trickle(wire, head("x: ").as_bytes(), &[b'x'; 60_000], pause).await,
        // Two requests in one.
        5 => {
            let both = head("content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
            trickle(wire, both.as_bytes(), b"x", pause).await
        }
        // Pings.
        6 => {
            let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[0; 8]].concat();
            let begun = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]].concat();
            trickle(wire, &begun, &ping.repeat(50), pause).await
        }
        // An answer that is not read.
        _ => {
            let body = r#"{"model":"hostile","stream":true,"messages":[{"role":"user","content":"x"}]}"#;
            wire.write(head(&format!("content-length: {}\r\n\r\n{body}", body.len())).as_bytes()).await?;
            sleep(pause * 5).await;
            Ok(())
        }
    }
}

/// Sends `first`, and then `more` again and again until the other side has had enough. What it says is read, so that it is
/// noticed when it closes.
async fn trickle(wire: &mut Wire, first: &[u8], more: &[u8], pause: Duration) -> std::io::Result<()> {
    let (mut read, mut write) = wire.stream.split();
    let reading = async {
        let mut space = vec![0; 4096];
        while read.read(&mut space).await? > 0 {}
        Ok(())
    };
    let writing = async {
        write.write_all(first).await?;
        loop {
            sleep(pause).await;
            write.write_all(more).await?;
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
