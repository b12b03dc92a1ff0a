//! The threads that serve connections: each has a runtime of its own, and a connection stays with one.
//!
//! So what a connection needs stays in the caches of one core, no thread has to wake another for it, and connections to
//! backends are kept by those who use them. Tokio's runtime of many threads moves each task to whoever is idle, which costs
//! a proxy more than it gains: a request is some microseconds of work. What takes longer (large bodies, tokenizing) is given
//! to other threads.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// How long the end of a thread waits for work that was given to others.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// Dropping it ends the threads, and what they serve.
#[derive(Debug)]
pub(super) struct Workers {
    workers: Arc<[Worker]>,
    threads: Vec<Thread>,
}

/// Finds workers for connections.
#[derive(Debug, Clone)]
pub(super) struct Roster(Arc<[Worker]>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: AtomicUsize,
}

#[derive(Debug)]
struct Thread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A connection's place at a worker, counted there for as long as this lives.
#[derive(Debug)]
pub(super) struct Seat {
    workers: Arc<[Worker]>,
    worker: usize,
}

// === impl Workers ===

impl Workers {
    /// So many threads.
    ///
    /// # Errors
    /// When the system has no thread or no descriptor left.
    pub(super) fn start(count: NonZeroUsize) -> io::Result<Self> {
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..count.get() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            workers.push(Worker { runtime: runtime.handle().clone(), connections: AtomicUsize::new(0) });
            threads.push(Thread::start(runtime)?);
        }
        Ok(Self { workers: workers.into(), threads })
    }

    pub(super) fn count(&self) -> usize {
        self.workers.len()
    }

    pub(super) fn roster(&self) -> Roster {
        Roster(Arc::clone(&self.workers))
    }

    #[cfg(test)]
    fn connections(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.connections.load(Relaxed)).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // All are told before one is waited for.
        self.threads.iter_mut().for_each(|thread| drop(thread.stop.take()));
    }
}

// === impl Roster ===

impl Roster {
    /// A place at the worker that has the fewest connections.
    pub(super) fn seat(&self) -> Seat {
        let fewest = self.0.iter().enumerate().min_by_key(|(_, worker)| worker.connections.load(Relaxed));
        let worker = fewest.map_or(0, |(at, _)| at);
        self.0[worker].connections.fetch_add(1, Relaxed);
        Seat { workers: Arc::clone(&self.0), worker }
    }
}

// === impl Seat ===

impl Seat {
    /// The number of the worker.
    pub(super) fn worker(&self) -> usize {
        self.worker
    }

    /// Has the worker serve a connection.
    pub(super) fn spawn(self, connection: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.workers[self.worker].runtime.clone();
        runtime.spawn(async move {
            connection.await;
            drop(self);
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.workers[self.worker].connections.fetch_sub(1, Relaxed);
    }
}

// === impl Thread ===

impl Thread {
    fn start(runtime: Runtime) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            // Either it is told, or whoever could tell it is gone.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_timeout(SHUTDOWN_TIME);
        };
        let thread = thread::Builder::new().name("warmgate".into()).spawn(serve)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a thread that served connections had ended by a panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(count: usize) -> Workers {
        Workers::start(NonZeroUsize::new(count).unwrap()).unwrap()
    }

    #[test]
    fn connections_go_where_the_fewest_are() {
        let workers = workers(3);
        let roster = workers.roster();
        let mut seats: Vec<Seat> = (0..6).map(|_| roster.seat()).collect();
        assert_eq!(workers.connections(), [2, 2, 2]);
        seats.retain(|seat| seat.worker() != 1);
        assert_eq!([roster.seat(), roster.seat()].map(|seat| seat.worker()), [1, 1]);
        drop(seats);
        assert_eq!(workers.connections(), [0, 0, 0], "what has ended is not counted");
    }

    #[test]
    fn a_connection_stays_with_its_worker_and_ends_with_it() {
        struct Dropped(std::sync::mpsc::Sender<()>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let workers = workers(2);
        let (tell, told) = std::sync::mpsc::channel();
        let (dropped, is_dropped) = std::sync::mpsc::channel();
        workers.roster().seat().spawn(async move {
            let _dropped = Dropped(dropped);
            for _ in 0..10 {
                tell.send(thread::current().id()).unwrap();
                tokio::task::yield_now().await;
            }
            std::future::pending::<()>().await;
        });
        let first = told.recv().unwrap();
        assert!((0..9).all(|_| told.recv().unwrap() == first));
        drop(workers);
        is_dropped.try_recv().expect("it has ended by the time that the workers have");
    }
}
