//! Sources over real sockets: recorded bytes, and an engine of the `zeromq` crate's sockets with all its troubles.

mod engine;
mod real;
mod scripted;

use std::future::Future;

use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::kv_events::Batch;

/// The longest wait for anything that must come.
const LIMIT: Duration = Duration::from_secs(20);

/// Long enough for a busy machine, short enough where something is waited for in vain.
const LIMITS: Limits = Limits { connect: Duration::from_millis(300), silence: LIMIT };

/// The first hash of each batch since everything was forgotten.
struct Recorder(watch::Sender<Vec<u64>>);

impl Sink for Recorder {
    fn apply(&mut self, batch: &Batch) {
        self.0.send_modify(|marks| marks.extend(batch.hashes.first().map(|hash| hash.0)));
    }

    fn clear(&mut self) {
        self.0.send_modify(Vec::clear);
    }
}

struct Test {
    following: Following,
    marks: watch::Receiver<Vec<u64>>,
}

impl Test {
    fn follow(source: Source) -> Self {
        let (sender, marks) = watch::channel(Vec::new());
        Self { following: source.follow_within(LIMITS, "backend a".into(), Recorder(sender)), marks }
    }

    /// Waits until exactly this is held.
    async fn holds(&mut self, expected: &[u64]) {
        if within(self.marks.wait_for(|marks| marks == expected)).await.is_err() {
            let (marks, status) = (self.marks.borrow().clone(), self.following.status());
            panic!("holds {marks:?} instead of {expected:?}, {status:?}");
        }
    }

    /// Waits until the status is as wanted.
    async fn is(&self, what: &str, condition: impl Fn(&SourceStatus) -> bool) -> SourceStatus {
        let waiting = async {
            loop {
                let status = self.following.status();
                if condition(&status) {
                    return status;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        within(waiting).await.unwrap_or_else(|()| panic!("not {what} but {:?}", self.following.status()))
    }
}

async fn within<F: Future>(future: F) -> Result<F::Output, ()> {
    timeout(LIMIT, future).await.map_err(|_| ())
}

fn at(port: u16) -> Endpoint {
    Endpoint { host: "127.0.0.1".into(), port }
}
