//! Reading an answer as it passes by: the first output, errors, the end, and what it says of itself.
//!
//! Chunks are only looked at, never kept or changed, and may be cut anywhere. The cost is a search for line ends, a look
//! at the first bytes of each line, and, if usage is wanted, a search for its key ([`super::usage`]). State is bounded:
//! the head of one line and a few kilobytes of usage. Framing is that of server-sent events (WHATWG HTML, "Parsing an
//! event stream"), with one liberty: each `data` line is an event, as every engine writes them.

use smallvec::SmallVec;

use super::usage::{IdWatch, Usage, UsageWatch};

/// Bytes of a line that are looked at. The longest things told apart are an error object and an event's name.
const HEAD_BYTES: usize = 64;

/// Reads one answer.
pub struct ResponseReader {
    is_sse: bool,
    line: Line,
    event: Event,
    usage: Option<UsageWatch>,
    id: Option<IdWatch>,
    events: u64,
    has_output: bool,
    has_error: bool,
    is_done: bool,
}

/// What one chunk brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The first output began: the first data event that is no error, not the end mark, and not one that an engine
    /// sends before prefill (`response.created` and the like). Not streamed: the first byte of the body.
    pub first_data: bool,
    /// An error came in place of output.
    pub error: bool,
}

/// The beginning of the current line, kept only while a line is cut by the end of a chunk.
#[derive(Default)]
struct Line {
    head: SmallVec<[u8; HEAD_BYTES]>,
    is_judged: bool,
}

/// What the last `event` line said of the data line that follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Event {
    #[default]
    Output,
    /// Sent before there is output, or only to keep the connection alive.
    Notice,
    Error,
    Last,
}

// === impl ResponseReader ===

impl ResponseReader {
    /// Reads an event stream or a plain body. `want_usage`: whether [`ResponseReader::usage`] will be asked for.
    pub fn new(is_sse: bool, want_usage: bool) -> Self {
        Self {
            is_sse,
            line: Line::default(),
            event: Event::default(),
            usage: want_usage.then(UsageWatch::new),
            id: None,
            events: 0,
            has_output: false,
            has_error: false,
            is_done: false,
        }
    }

    /// Also looks for the id of a Responses answer.
    pub fn with_response_id(mut self) -> Self {
        self.id = Some(IdWatch::new());
        self
    }

    /// Looks at the next bytes of the body.
    pub fn push(&mut self, chunk: &[u8]) -> Progress {
        let mut progress = Progress::default();
        if self.is_sse {
            self.lines(chunk, &mut progress);
        } else {
            self.plain(chunk, &mut progress);
        }
        if let Some(usage) = &mut self.usage {
            usage.push(chunk);
        }
        if let Some(id) = &mut self.id {
            id.push(chunk);
        }
        progress
    }

    /// The token counts seen up to now.
    pub fn usage(&self) -> Option<Usage> {
        self.usage.as_ref().and_then(UsageWatch::usage)
    }

    /// The id of a Responses answer (`resp_..`).
    pub fn response_id(&self) -> Option<&str> {
        self.id.as_ref().and_then(IdWatch::id)
    }

    /// Data events seen, errors and notices included, the end mark not. A plain body counts as one.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether output was seen.
    pub fn has_output(&self) -> bool {
        self.has_output
    }

    /// Whether an error was seen in the body.
    pub fn has_error(&self) -> bool {
        self.has_error
    }

    /// Whether the stream said that it is over: `[DONE]`, or the last event of an API that has none. A stream that
    /// ended without was cut off. A plain body ends by its framing, and this stays false.
    pub fn saw_done(&self) -> bool {
        self.is_done
    }

    /// Whether the last line of a stream is whole, so that an event could be added to it.
    pub fn is_between_lines(&self) -> bool {
        self.is_sse && self.line.head.is_empty() && !self.line.is_judged
    }

    fn lines(&mut self, chunk: &[u8], progress: &mut Progress) {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (line, behind) = rest.split_at(end);
            if self.line.head.is_empty() && !self.line.is_judged {
                self.judge(line, progress);
            } else {
                self.extend_line(line, true, progress);
            }
            self.line = Line::default();
            rest = behind.get(1..).unwrap_or_default();
        }
        if !rest.is_empty() {
            self.extend_line(rest, false, progress);
        }
    }

    /// Adds to a line that is cut by chunks; judges it as soon as its head is whole.
    fn extend_line(&mut self, piece: &[u8], is_ended: bool, progress: &mut Progress) {
        if self.line.is_judged {
            return;
        }
        let room = HEAD_BYTES - self.line.head.len();
        self.line.head.extend_from_slice(piece.get(..room).unwrap_or(piece));
        if is_ended || self.line.head.len() == HEAD_BYTES {
            let head = std::mem::take(&mut self.line.head);
            self.line.is_judged = true;
            self.judge(&head, progress);
        }
    }

    fn judge(&mut self, line: &[u8], progress: &mut Progress) {
        let head = line.get(..HEAD_BYTES).unwrap_or(line);
        if let Some(payload) = head.strip_prefix(b"data:") {
            match payload.trim_ascii() {
                b"" => {}
                b"[DONE]" => self.is_done = true,
                payload => self.data(payload, progress),
            }
        } else if let Some(name) = head.strip_prefix(b"event:") {
            self.event = Event::named(name.trim_ascii());
        }
    }

    fn data(&mut self, payload: &[u8], progress: &mut Progress) {
        self.events += 1;
        let event = std::mem::take(&mut self.event);
        self.is_done |= event == Event::Last;
        if event == Event::Error || is_error(payload) {
            self.has_error = true;
            progress.error = true;
        } else if event == Event::Output && !self.has_output {
            self.has_output = true;
            progress.first_data = true;
        }
    }

    fn plain(&mut self, chunk: &[u8], progress: &mut Progress) {
        if self.events == 0 && !chunk.is_empty() {
            self.events = 1;
            self.has_output = true;
            progress.first_data = true;
        }
        if !self.line.is_judged {
            let room = HEAD_BYTES - self.line.head.len();
            self.line.head.extend_from_slice(chunk.get(..room).unwrap_or(chunk));
            progress.error = is_error(self.line.head.trim_ascii_start());
            self.has_error |= progress.error;
            self.line.is_judged = progress.error || self.line.head.len() == HEAD_BYTES;
        }
    }
}

// === impl Event ===

impl Event {
    fn named(name: &[u8]) -> Self {
        match name {
            b"ping" | b"response.created" | b"response.in_progress" | b"response.queued" => Self::Notice,
            b"error" | b"response.failed" => Self::Error,
            b"message_stop" | b"response.completed" | b"response.incomplete" => Self::Last,
            _ => Self::Output,
        }
    }
}

/// Whether a payload begins as `{"error":`, `{"type":"error"` (Anthropic) or `{"object":"error"` (older engines).
fn is_error(payload: &[u8]) -> bool {
    let after = |text: &mut &[u8], token: &[u8]| match text.trim_ascii_start().strip_prefix(token) {
        Some(rest) => {
            *text = rest;
            true
        }
        None => false,
    };
    let mut text = payload;
    if !after(&mut text, b"{") {
        return false;
    }
    if after(&mut text, b"\"error\"") {
        // `"error": null` is a field that says there is none.
        return after(&mut text, b":") && !matches!(text.trim_ascii_start().first(), None | Some(b'n'));
    }
    let is_kind = after(&mut text, b"\"type\"") || after(&mut text, b"\"object\"");
    is_kind && after(&mut text, b":") && after(&mut text, b"\"error\"")
}

#[cfg(test)]
mod tests;
