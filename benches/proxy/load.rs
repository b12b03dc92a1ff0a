//! A closed loop: each connection sends its next request when it has the answer to the last one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::Client;
use crate::message::Message;
use crate::workload::Workload;

/// One run takes seconds; what takes this long hangs.
const RUN_TIME: Duration = Duration::from_secs(120);

/// Connections to one proxy and what is sent over them.
pub(crate) struct Load {
    workload: Arc<Workload>,
    tells: bool,
    clients: Vec<Client>,
}

/// What a run took.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Vec<Duration>,
}

// === impl Load ===

impl Load {
    pub(crate) async fn open(
        address: SocketAddr,
        workload: &Arc<Workload>,
        tells: bool,
        connections: usize,
    ) -> io::Result<Self> {
        let mut clients = Vec::with_capacity(connections);
        for _ in 0..connections {
            clients.push(Client::connect(address).await?);
        }
        Ok(Self { workload: Arc::clone(workload), tells, clients })
    }

    /// Sends so many requests in all. Every answer has to be whole.
    pub(crate) async fn run(&mut self, requests: usize) -> io::Result<Run> {
        let left = Arc::new(AtomicUsize::new(requests));
        let mut loops = JoinSet::new();
        let started = Instant::now();
        for client in self.clients.drain(..) {
            loops.spawn(one_by_one(client, Arc::clone(&self.workload), self.tells, Arc::clone(&left)));
        }
        let mut latencies = Vec::with_capacity(requests);
        let ending = async {
            while let Some(ended) = loops.join_next().await {
                let (client, took) = ended.map_err(io::Error::other)??;
                self.clients.push(client);
                latencies.extend(took);
            }
            Ok::<(), io::Error>(())
        };
        timeout(RUN_TIME, ending).await.map_err(|_| io::Error::other("it hangs"))??;
        Ok(Run { elapsed: started.elapsed(), latencies })
    }
}

async fn one_by_one(
    mut client: Client,
    workload: Arc<Workload>,
    tells: bool,
    left: Arc<AtomicUsize>,
) -> io::Result<(Client, Vec<Duration>)> {
    let (mut request, mut took) = (Vec::new(), Vec::new());
    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
        workload.write(next_number(), tells, &mut request);
        let started = Instant::now();
        let answer = client.exchange(&request).await?;
        took.push(started.elapsed());
        require_whole(&workload, &answer)?;
    }
    Ok((client, took))
}

/// No two requests of the bench have the same.
pub(crate) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

pub(crate) fn require_whole(workload: &Workload, answer: &Message) -> io::Result<()> {
    let (status, came, expected) = (answer.status(), answer.body_bytes, workload.answer_bytes);
    if status == 200 && came == expected {
        return Ok(());
    }
    let name = workload.name;
    Err(io::Error::other(format!("{name}: status {status} with {came} bytes, expected 200 with {expected}")))
}
