//! An open loop: requests come at a fixed rate, whether or not the earlier ones are answered, and each is timed from the
//! moment it is sent. That is what a proxy adds where nothing waits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::Client;
use crate::load::{next_number, require_whole};
use crate::workload::Workload;

/// Between two requests: 200 a second.
const PERIOD: Duration = Duration::from_millis(5);

/// Connections. A proxy that needs all of them at this rate is no longer one where nothing waits.
const CONNECTIONS: usize = 32;

/// Sends so many requests; how long each took.
pub(crate) async fn run(
    address: SocketAddr,
    workload: &Arc<Workload>,
    tells: bool,
    requests: usize,
) -> io::Result<Vec<Duration>> {
    let (mut idle, mut took) = (Vec::new(), Vec::with_capacity(requests));
    for _ in 0..CONNECTIONS {
        idle.push((Client::connect(address).await?, Vec::new()));
    }
    let (mut ticks, mut exchanges) = (interval(PERIOD), JoinSet::new());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..requests {
        ticks.tick().await;
        while let Some(ended) = exchanges.try_join_next() {
            put_back(ended, &mut idle, &mut took)?;
        }
        let Some((mut client, mut request)) = idle.pop() else {
            return Err(io::Error::other("it does not keep up with 200 requests a second"));
        };
        workload.write(next_number(), tells, &mut request);
        let workload = Arc::clone(workload);
        exchanges.spawn(async move {
            let started = Instant::now();
            let answer = client.exchange(&request).await?;
            let took = started.elapsed();
            require_whole(&workload, &answer)?;
            Ok((client, request, took))
        });
    }
    while let Some(ended) = exchanges.join_next().await {
        put_back(ended, &mut idle, &mut took)?;
    }
    Ok(took)
}

type Ended = Result<io::Result<(Client, Vec<u8>, Duration)>, tokio::task::JoinError>;

fn put_back(ended: Ended, idle: &mut Vec<(Client, Vec<u8>)>, took: &mut Vec<Duration>) -> io::Result<()> {
    let (client, request, time) = ended.map_err(io::Error::other)??;
    idle.push((client, request));
    took.push(time);
    Ok(())
}
