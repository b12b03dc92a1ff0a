//! One JSON line a request, written by its own thread.
//!
//! The queue to that thread is bounded, and a line that finds it full is dropped and counted: a log that stalls (a full
//! disk, a slow journal) must not stall requests. Prompts, answers and credentials are never among the fields.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::iter;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::metrics::Metrics;

/// Lines that may wait for the writer: about 4 MiB.
const QUEUE_LINES: usize = 8 * 1024;

/// Most bytes of one write, which holds whole lines: as much as a pipe takes at once (`PIPE_BUF`), so that the lines of two
/// processes that share it in an upgrade do not mix.
const WRITE_BYTES: usize = 4096;

/// How long the end of the process waits for the log.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// Permissions of a new file; the process's umask takes some away.
const MODE: u32 = 0o666;

/// Where the lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error, beside the program's own log.
    Stderr,
    /// A file, appended to.
    File(PathBuf),
}

/// The fields of a line, in the order they are written. Absent ones are left out.
#[derive(Debug, Clone, Default, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation; README.md lists them")]
pub struct Line<'a> {
    pub time: String,
    pub request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<&'a str>,
    pub method: &'a str,
    pub path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub pool: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub backend: &'a str,
    pub status: u16,
    pub reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<&'static str>,
    pub attempts: u32,
    pub stream: bool,
    pub request_bytes: u64,
    pub response_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_millis: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_millis: Option<f64>,
    pub duration_millis: f64,
}

/// Takes lines; a clone writes to the same place.
#[derive(Debug, Clone)]
pub struct AccessLog {
    queue: Option<SyncSender<Message>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Answered when all that was queued before is written.
    Flush(SyncSender<()>),
}

// === impl AccessLog ===

impl AccessLog {
    /// Opens `target` and starts its writer, which ends when the last clone is dropped.
    ///
    /// # Errors
    /// When the file cannot be opened for appending, or no thread can be started.
    pub fn open(target: &Target, metrics: Arc<Metrics>) -> io::Result<Self> {
        let out: Box<dyn Write + Send> = match target {
            Target::Off => return Ok(Self { queue: None, metrics }),
            Target::Stdout => Box::new(io::stdout()),
            Target::Stderr => Box::new(io::stderr()),
            Target::File(path) => Box::new(append_to(path, MODE)?),
        };
        let (queue, lines) = sync_channel(QUEUE_LINES);
        let counted = Arc::clone(&metrics);
        thread::Builder::new().name("access-log".into()).spawn(move || write_lines(&lines, out, &counted))?;
        Ok(Self { queue: Some(queue), metrics })
    }

    /// Queues a line, or drops and counts it when the queue is full.
    pub fn write<'l>(&self, line: impl FnOnce() -> Line<'l>) {
        let Some(queue) = &self.queue else { return };
        let Ok(mut bytes) = serde_json::to_vec(&line()) else { return };
        bytes.push(b'\n');
        if queue.try_send(Message::Line(bytes)).is_err() {
            self.metrics.access_log_dropped(1);
        }
    }

    /// Waits until what was queued is written, for at most [`FLUSH_TIME`]: for the end of the process. Blocks.
    pub fn flush(&self) {
        let Some(queue) = &self.queue else { return };
        let (done, is_done) = sync_channel(1);
        if queue.try_send(Message::Flush(done)).is_ok() {
            // A log that is still stalled by then has lost its last lines.
            let _ = is_done.recv_timeout(FLUSH_TIME);
        }
    }
}

/// Opens a file at its end, and makes it with these permissions if it is not there. Errors name it.
pub(crate) fn append_to(path: &Path, mode: u32) -> io::Result<File> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    // Opening a pipe waits for its reader, and would stop the control loop.
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(named(io::Error::new(io::ErrorKind::InvalidInput, "a pipe; a file is expected")));
    }
    OpenOptions::new().create(true).append(true).mode(mode).open(path).map_err(named)
}

fn write_lines(messages: &Receiver<Message>, mut out: Box<dyn Write + Send>, metrics: &Metrics) {
    let mut is_failing = false;
    while let Ok(first) = messages.recv() {
        // A buffer for each batch: what could not be written is given up, not tried again in the middle of a line.
        let mut buffered = BufWriter::with_capacity(WRITE_BYTES, &mut out);
        let batch = write_batch(&mut buffered, first, messages);
        // Only the unwritten rest is discarded here.
        let _ = buffered.into_parts();
        if let Err(error) = &batch.written {
            metrics.access_log_dropped(batch.lines);
            if !is_failing {
                log::error!("the access log cannot be written: {error}; lines are lost until it can");
            }
        }
        is_failing = batch.written.is_err();
        for done in batch.waiting {
            // Whoever asked may have given up.
            let _ = done.try_send(());
        }
    }
}

/// What was queued, after it was written.
struct Batch {
    lines: u64,
    written: io::Result<()>,
    /// Who waits for it.
    waiting: Vec<SyncSender<()>>,
}

/// Writes what is queued, then flushes: few system calls under load, no delay without it.
fn write_batch(out: &mut impl Write, first: Message, messages: &Receiver<Message>) -> Batch {
    let mut batch = Batch { lines: 0, written: Ok(()), waiting: Vec::new() };
    for message in iter::once(first).chain(messages.try_iter()) {
        match message {
            Message::Line(line) if batch.written.is_ok() => {
                batch.lines += 1;
                batch.written = out.write_all(&line);
            }
            Message::Line(_) => batch.lines += 1,
            Message::Flush(done) => batch.waiting.push(done),
        }
    }
    if batch.written.is_ok() {
        batch.written = out.flush();
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_flushed_whole_and_in_order() {
        let (queue, lines) = sync_channel(8);
        for line in ["b\n", "c\n"] {
            queue.send(Message::Line(line.as_bytes().to_vec())).unwrap();
        }
        let (done, _is_done) = sync_channel(1);
        queue.send(Message::Flush(done)).unwrap();
        let mut out = Vec::new();
        let batch = write_batch(&mut out, Message::Line(b"a\n".to_vec()), &lines);
        assert_eq!(out, b"a\nb\nc\n");
        assert_eq!((batch.lines, batch.waiting.len()), (3, 1));
        batch.written.unwrap();
    }

    #[test]
    fn a_write_holds_whole_lines() {
        struct Writes(Vec<Vec<u8>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (queue, lines) = sync_channel(1000);
        for length in 1..300 {
            queue.send(Message::Line([vec![b'x'; length], vec![b'\n']].concat())).unwrap();
        }
        let mut out = Writes(Vec::new());
        let batch =
            write_batch(&mut BufWriter::with_capacity(WRITE_BYTES, &mut out), Message::Line(b"a\n".to_vec()), &lines);
        batch.written.unwrap();
        assert!(out.0.len() > 10 && out.0.iter().all(|write| write.len() <= WRITE_BYTES && write.ends_with(b"\n")));
    }

    #[test]
    fn a_flush_waits_for_the_lines_before_it() {
        let path = std::env::temp_dir().join(format!("warmgate-access-{}.log", std::process::id()));
        let log = AccessLog::open(&Target::File(path.clone()), Arc::default()).unwrap();
        for status in 0..100 {
            log.write(|| Line { status, ..Line::default() });
        }
        log.flush();
        let written = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written.lines().count(), 100);
    }

    #[test]
    fn a_full_queue_drops_and_counts_the_line() {
        let metrics = Arc::new(Metrics::new());
        let (queue, _kept_unread) = sync_channel(1);
        let log = AccessLog { queue: Some(queue), metrics: Arc::clone(&metrics) };
        log.write(Line::default);
        log.write(Line::default);
        assert!(metrics.render().contains("warmgate_access_log_dropped_total 1"), "{}", metrics.render());
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let metrics = Arc::new(Metrics::new());
        let log = AccessLog::open(&Target::File("/dev/full".into()), Arc::clone(&metrics)).unwrap();
        for _ in 0..3 {
            log.write(Line::default);
        }
        log.flush();
        assert!(metrics.render().contains("warmgate_access_log_dropped_total 3"), "{}", metrics.render());
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let path = std::env::temp_dir().join(format!("warmgate-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let refused = AccessLog::open(&Target::File(path.clone()), Arc::default());
        std::fs::remove_file(&path).unwrap();
        assert!(refused.unwrap_err().to_string().contains("a pipe"));
    }

    #[test]
    fn absent_fields_are_left_out() {
        let line = serde_json::to_string(&Line { status: 404, ..Line::default() }).unwrap();
        assert!(line.contains(r#""status":404"#), "{line}");
        assert!(!line.contains("ttft"), "{line}");
    }
}
