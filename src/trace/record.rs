//! Writes the block trace of this process's own requests, by a thread of its own.
//!
//! The queue to that thread is bounded in lines and in ids; what finds it full is dropped and counted, as in the access
//! log. Threads take turns: one that takes over from another begins when that has written what it was given.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::rotation::{Rotation, Target, open};
use super::{Salt, TraceLine};
use crate::metrics::Metrics;

/// Lines that may wait for the writer.
const QUEUE_LINES: usize = 8 * 1024;

/// Ids of all lines that wait: 8 MiB.
const QUEUE_IDS: usize = 1 << 20;

/// How long the end of the process waits for the trace.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Takes the lines of one recording.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<SyncSender<Message>>,
    common: Arc<Common>,
}

/// What all recordings of a process share.
#[derive(Debug, Default)]
struct Common {
    salt: Salt,
    metrics: Arc<Metrics>,
    /// Held by the thread that writes, for its whole life.
    turn: Mutex<()>,
    /// Ids in queues. Written by requests and by the writer; relaxed, as it guards nothing.
    waiting_ids: AtomicUsize,
}

#[derive(Debug)]
enum Message {
    Line(TraceLine),
    /// Answered when all that was queued before is written.
    Flush(SyncSender<()>),
}

// === impl Recorder ===

impl Recorder {
    /// One that records nothing.
    pub fn off(metrics: Arc<Metrics>) -> Self {
        Self { queue: None, common: Arc::new(Common { metrics, ..Common::default() }) }
    }

    /// The next recording of the same process, with the same salt: to `target`, or to nowhere. This one's thread ends
    /// when the recorder is dropped.
    ///
    /// # Errors
    /// When the file cannot be opened for appending or kept to its owner, or no thread can be started.
    pub fn next(&self, target: Option<&Target>) -> io::Result<Self> {
        let common = Arc::clone(&self.common);
        let Some(target) = target else { return Ok(Self { queue: None, common }) };
        // Only to see that it can be done: whoever writes there now is not disturbed.
        open(&target.file)?;
        let (queue, messages) = sync_channel(QUEUE_LINES);
        let (shared, files) = (Arc::clone(&common), Rotation::new(target.clone()));
        thread::Builder::new().name("block-trace".into()).spawn(move || write_lines(&messages, files, &shared))?;
        Ok(Self { queue: Some(queue), common })
    }

    /// Whether lines are of any use.
    pub fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// What ids are made with.
    pub fn salt(&self) -> &Salt {
        &self.common.salt
    }

    /// Queues a line, or drops and counts it when there is no room.
    pub fn write(&self, line: TraceLine) {
        let Some(queue) = &self.queue else { return };
        let ids = line.hash_ids.len();
        let waiting = self.common.waiting_ids.fetch_add(ids, Ordering::Relaxed);
        if waiting + ids > QUEUE_IDS || queue.try_send(Message::Line(line)).is_err() {
            self.common.waiting_ids.fetch_sub(ids, Ordering::Relaxed);
            self.common.metrics.trace_dropped();
        }
    }

    /// Waits until what was queued is written, for at most [`FLUSH_TIME`]: for the end of the process. Blocks.
    pub fn flush(&self) {
        let Some(queue) = &self.queue else { return };
        let (done, is_done) = sync_channel(1);
        if queue.try_send(Message::Flush(done)).is_ok() {
            // A disk that is still stalled by then has lost the last lines.
            let _ = is_done.recv_timeout(FLUSH_TIME);
        }
    }
}

fn write_lines(messages: &Receiver<Message>, mut files: Rotation, common: &Common) {
    let _turn = common.turn.lock();
    let mut is_failing = false;
    while let Ok(message) = messages.recv() {
        let line = match message {
            Message::Line(line) => line,
            Message::Flush(done) => {
                // Whoever asked may have given up.
                let _ = done.try_send(());
                continue;
            }
        };
        let written = write_line(&mut files, &line);
        common.waiting_ids.fetch_sub(line.hash_ids.len(), Ordering::Relaxed);
        match &written {
            Ok(()) => common.metrics.trace_written(),
            Err(error) => {
                common.metrics.trace_dropped();
                if !is_failing {
                    log::error!("the block trace cannot be written: {error}; lines are lost until it can");
                }
            }
        }
        is_failing = written.is_err();
    }
}

fn write_line(files: &mut Rotation, line: &TraceLine) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    files.append(&bytes)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::PathBuf;

    use super::*;

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("warmgate-record-{name}-{}", std::process::id()))
    }

    fn target(file: PathBuf) -> Target {
        Target { file, max_bytes: 1 << 20, files: NonZeroU32::MIN }
    }

    fn line(timestamp: u64) -> TraceLine {
        TraceLine { timestamp, input_length: 600, output_length: 1, hash_ids: vec![7, timestamp] }
    }

    fn recorder(metrics: &Arc<Metrics>, target: &Target) -> Recorder {
        Recorder::off(Arc::clone(metrics)).next(Some(target)).unwrap()
    }

    fn counted(metrics: &Metrics, name: &str, value: usize) {
        let page = metrics.render();
        assert!(page.contains(&format!("warmgate_{name}_total {value}\n")), "{name} is not {value}: {page}");
    }

    #[test]
    fn a_flush_waits_for_the_lines_before_it_and_they_can_be_read() {
        let (path, metrics) = (file("flush"), Arc::default());
        let recorder = recorder(&metrics, &target(path.clone()));
        let lines: Vec<_> = (0..100).map(line).collect();
        lines.iter().for_each(|line| recorder.write(line.clone()));
        recorder.flush();
        let read = crate::trace::read_file(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), lines);
        counted(&metrics, "trace_lines", 100);
        counted(&metrics, "trace_dropped", 0);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_give_their_room_back() {
        let metrics = Arc::default();
        let recorder = recorder(&metrics, &target("/dev/full".into()));
        (0..3).for_each(|at| recorder.write(line(at)));
        recorder.flush();
        counted(&metrics, "trace_lines", 0);
        counted(&metrics, "trace_dropped", 3);
        assert_eq!(recorder.common.waiting_ids.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_full_queue_drops_and_counts_the_line() {
        let metrics = Arc::default();
        let (queue, _kept_unread) = sync_channel(2);
        let recorder = Recorder { queue: Some(queue), ..Recorder::off(Arc::clone(&metrics)) };
        let long = TraceLine { hash_ids: vec![1; QUEUE_IDS - 2], ..line(0) };
        recorder.write(long.clone());
        recorder.write(long);
        counted(&metrics, "trace_dropped", 1);
        recorder.write(line(0));
        counted(&metrics, "trace_dropped", 1);
        recorder.write(TraceLine { hash_ids: vec![], ..line(0) });
        counted(&metrics, "trace_dropped", 2);
    }

    #[test]
    fn a_successor_waits_for_its_turn() {
        let (path, metrics) = (file("turn"), Arc::default());
        let first = recorder(&metrics, &target(path.clone()));
        first.write(line(1));
        first.flush();
        let second = first.next(Some(&Target { files: NonZeroU32::new(2).unwrap(), ..target(path.clone()) })).unwrap();
        second.write(line(2));
        first.write(line(3));
        first.flush();
        counted(&metrics, "trace_lines", 2);
        drop(first);
        second.flush();
        counted(&metrics, "trace_lines", 3);
        let older = PathBuf::from(format!("{}.1", path.display()));
        let read = [&path, &older].map(crate::trace::read_file);
        let _ = (std::fs::remove_file(&path), std::fs::remove_file(older));
        assert_eq!(read.map(Result::unwrap), [vec![line(2)], vec![line(1), line(3)]]);
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let nowhere = target("/no/such/folder/trace".into());
        let refused = Recorder::off(Arc::default()).next(Some(&nowhere)).unwrap_err();
        assert!(refused.to_string().contains("/no/such/folder/trace"), "{refused}");
    }
}
