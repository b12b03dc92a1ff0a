//! Clients that ask all the time, each over a connection that it keeps, and the account of what they got.
//!
//! Every request has an id of its own. When it is over, its ending is held against where it came to: it may have begun to
//! be answered at one backend only.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::answer::{self, Ending};
use crate::common_control::client::Connection;
use crate::ledger::Ledger;

/// Attempts of one request that a backend may see: `retry.max_attempts`, and a repeat on a stale connection.
const MAX_VISITS: usize = 4;

/// Wrong endings that are kept as text; more are counted only.
const MAX_WRONG: usize = 20;

/// How the clients behave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    pub(crate) clients: u64,
    /// Each waits this long, on average, between two requests.
    pub(crate) pause: Duration,
    /// The most tokens of an answer; from a quarter of it.
    pub(crate) tokens: u64,
    /// The share that leaves before its answer is whole.
    pub(crate) leaving: f64,
    pub(crate) seed: u64,
}

/// What came of the requests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    sent: AtomicU64,
    /// Connections that were found closed although nothing had said so.
    dropped: AtomicU64,
    endings: Mutex<Endings>,
}

/// Requests by how they ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Endings {
    pub(crate) whole: u64,
    pub(crate) left: u64,
    pub(crate) cut: u64,
    /// By status and code.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Streams that ended with an error event, by its code.
    pub(crate) events: BTreeMap<String, u64>,
    pub(crate) wrong_count: u64,
    pub(crate) wrong: Vec<String>,
    /// When the last whole answers ended, for rates.
    pub(crate) whole_at: Vec<Instant>,
}

/// Clients at work; dropped, they leave.
pub(crate) struct Load {
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
    tally: Arc<Tally>,
}

struct Client {
    number: u64,
    proxy: SocketAddr,
    habits: Habits,
    rng: fastrand::Rng,
    /// The stream before ended with an error event: it asks again at once.
    is_hasty: bool,
    tally: Arc<Tally>,
    ledger: Arc<Ledger>,
}

// === impl Habits ===

impl Habits {
    /// A load that a debug build on a shared core carries.
    pub(crate) fn new(seed: u64) -> Self {
        Self { clients: 16, pause: Duration::from_millis(60), tokens: 16, leaving: 0.0, seed }
    }
}

// === impl Tally ===

impl Tally {
    /// Requests sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Connections that were found closed before their next request, though no answer on them had said so.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    pub(crate) fn endings(&self) -> Endings {
        self.endings.lock().clone()
    }

    /// Whole answers since a moment.
    pub(crate) fn whole_since(&self, since: Instant) -> usize {
        self.endings.lock().whole_at.iter().filter(|&&at| at >= since).count()
    }

    fn ended(&self, ending: Ending, id: &str, visits: &str) {
        let mut endings = self.endings.lock();
        match ending {
            Ending::Whole => {
                endings.whole += 1;
                endings.whole_at.push(Instant::now());
                // Enough for any rate that is looked at.
                let over = endings.whole_at.len().saturating_sub(16 * 1024);
                endings.whole_at.drain(..over);
            }
            Ending::Left => endings.left += 1,
            Ending::Cut => endings.cut += 1,
            Ending::Refused(status, code) => *endings.refused.entry(format!("{status} {code}")).or_default() += 1,
            Ending::Event(code) => *endings.events.entry(code).or_default() += 1,
            Ending::Wrong(why) => {
                endings.wrong_count += 1;
                if endings.wrong.len() < MAX_WRONG {
                    endings.wrong.push(format!("{id}: {why} (visits: {visits})"));
                }
            }
        }
    }
}

// === impl Endings ===

impl Endings {
    pub(crate) fn refused_count(&self) -> u64 {
        self.refused.values().sum()
    }

    pub(crate) fn count(&self) -> u64 {
        let broken = self.events.values().sum::<u64>() + self.cut;
        self.whole + self.left + self.refused_count() + broken + self.wrong_count
    }

    /// In a line.
    pub(crate) fn text(&self) -> String {
        let Self { whole, left, cut, refused, events, wrong_count, .. } = self;
        format!(
            "whole {whole}, left {left}, refused {refused:?}, ended by an event {events:?}, cut {cut}, wrong {wrong_count}"
        )
    }
}

// === impl Load ===

impl Load {
    pub(crate) fn start(proxy: SocketAddr, ledger: &Arc<Ledger>, habits: Habits) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (tally, mut clients) = (Arc::new(Tally::default()), JoinSet::new());
        for number in 0..habits.clients {
            let rng = fastrand::Rng::with_seed(habits.seed << 16 | number);
            let (tally, ledger) = (Arc::clone(&tally), Arc::clone(ledger));
            let client = Client { number, proxy, habits, rng, is_hasty: false, tally, ledger };
            clients.spawn(client.run(stopped.clone()));
        }
        Self { stop, clients, tally }
    }

    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Lets each client end what it does; what came of all of it.
    pub(crate) async fn stop(mut self) -> Arc<Tally> {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        let endings = self.tally.endings();
        assert_eq!(endings.count(), self.tally.sent(), "every request has one ending");
        self.tally
    }
}

// === impl Client ===

impl Client {
    async fn run(mut self, stopped: watch::Receiver<bool>) {
        let mut connection = None;
        for turn in 0_u64.. {
            if *stopped.borrow() {
                return;
            }
            connection = self.exchange(connection, turn).await;
            if !self.is_hasty {
                sleep(self.habits.pause.mul_f64(2.0 * self.rng.f64())).await;
            }
        }
    }

    /// One request, over the kept connection or a new one; the connection, if it can be used again.
    async fn exchange(&mut self, kept: Option<Connection>, turn: u64) -> Option<Connection> {
        let id = format!("r{}-{}-{turn}", self.habits.seed, self.number);
        let body = self.body(turn).to_string();
        let leave_after = (self.rng.f64() < self.habits.leaving).then(|| self.rng.usize(1..8));
        let mut connection = match kept {
            Some(connection) if connection.is_open() => connection,
            // As HTTP clients do it: a connection that was closed meanwhile is not used again.
            kept => {
                self.tally.dropped.fetch_add(u64::from(kept.is_some()), Relaxed);
                Connection::open(self.proxy).await.expect("the proxy accepts connections")
            }
        };
        self.tally.sent.fetch_add(1, Relaxed);
        let headers = format!("content-type: application/json\r\nx-request-id: {id}\r\n");
        let sent = connection.send("POST", "/v1/chat/completions", &headers, &body).await;
        let (ending, keeps) = match sent {
            Ok(()) => answer::read(&mut connection, leave_after).await,
            Err(error) => (Ending::Wrong(format!("the request could not be sent: {error}")), false),
        };
        let visits = self.ledger.close(&id);
        let answered = visits.iter().filter(|visit| visit.has_answered).count();
        let path: Vec<_> = visits.iter().map(|visit| format!("{}:{}", visit.backend, visit.has_answered)).collect();
        let ending = match ending {
            Ending::Whole if answered != 1 => Ending::Wrong(format!("a whole answer, begun at {answered} backends")),
            other if answered > 1 => Ending::Wrong(format!("answered by {answered} backends: {other:?}")),
            other if visits.len() > MAX_VISITS => Ending::Wrong(format!("sent {} times: {other:?}", visits.len())),
            other => other,
        };
        self.is_hasty = matches!(ending, Ending::Event(_));
        self.tally.ended(ending, &id, &path.join(" "));
        keeps.then_some(connection)
    }

    /// A turn of a conversation: it begins as the turns before it did.
    fn body(&mut self, turn: u64) -> Value {
        let (conversation, length) = (turn / 8, turn % 8 + 1);
        let opening = format!("client {} conversation {conversation}. ", self.number).repeat(8);
        let content: String = std::iter::once(opening)
            .chain((0..length).map(|at| format!("turn {at} of it, with some words more. ").repeat(4)))
            .collect();
        let tokens = self.rng.u64(self.habits.tokens / 4..=self.habits.tokens).max(1);
        let mut body =
            json!({"model": "sim-model", "max_tokens": tokens, "messages": [{"role": "user", "content": content}]});
        if self.rng.u8(..4) > 0 {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}
