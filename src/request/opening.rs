//! What an answer begins with: something that a client can use, or the end of an engine.
//!
//! Engines send the header of a stream before they prefill, so a status says nothing of what follows. vLLM that was told to
//! stop answers new requests with 200 and no token (a stream of `[DONE]` alone; a completion whose `finish_reason` is
//! `abort`), and one whose core has died with an error event. Until a [`Verdict`] is there, nothing of the answer need be
//! sent on, and another backend can still take the request.
//!
//! A stream is looked at line by line, up to the first event that carries something: it waits for no token, only for the
//! rest of an event that has begun. A whole answer is looked at if it is short: one that was given up holds little.

use bytes::BytesMut;
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

/// Bytes of an answer that are held. What engines send before a token is a few kilobytes at most.
const MAX_BYTES: usize = 64 * 1024;

/// The reason that engines give for an answer that they gave up.
const ABORT: &str = "abort";

/// Longest whole answer that is looked at, bytes.
pub const MAX_WHOLE_BYTES: usize = 16 * 1024;

/// What the beginning of an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet.
    Wait,
    /// It carries something, or is the engine's right to give.
    Good,
    /// The engine gave up: there is no token, or it says so.
    Aborted,
    /// The engine failed: an error event in place of the first token.
    Failed,
}

/// The beginning of one answer.
#[derive(Debug)]
pub struct Opening {
    is_stream: bool,
    bytes: BytesMut,
    /// Bytes whose lines were judged.
    judged: usize,
    /// What the last `event` line said.
    is_notice: bool,
    is_error: bool,
}

/// What is looked at of a data event, or of a whole answer. A member that is of another kind than expected makes the
/// reading fail, and the answer good: it is not one of those that are known.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Payload {
    error: Option<Value>,
    choices: Option<Vec<Choice>>,
    meta_info: Option<MetaInfo>,
    r#type: Option<String>,
    object: Option<String>,
    code: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    text: Option<String>,
    delta: Option<serde_json::Map<String, Value>>,
    message: Option<Value>,
    finish_reason: Option<Value>,
}

/// SGLang's own endpoint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MetaInfo {
    finish_reason: Option<Value>,
}

// === impl Opening ===

impl Opening {
    /// Of an event stream.
    pub fn of_stream() -> Self {
        Self::new(true)
    }

    /// Of an answer in one piece, which is expected to be at most [`MAX_WHOLE_BYTES`] long.
    pub fn of_whole() -> Self {
        Self::new(false)
    }

    fn new(is_stream: bool) -> Self {
        Self { is_stream, bytes: BytesMut::new(), judged: 0, is_notice: false, is_error: false }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Verdict {
        self.bytes.extend_from_slice(bytes);
        let verdict = if self.is_stream { self.lines() } else { Verdict::Wait };
        let most = if self.is_stream { MAX_BYTES } else { MAX_WHOLE_BYTES };
        match verdict {
            Verdict::Wait if self.bytes.len() > most => Verdict::Good,
            verdict => verdict,
        }
    }

    /// The answer has ended.
    pub fn end(&self) -> Verdict {
        if self.is_stream || self.bytes.trim_ascii().is_empty() {
            // Nothing but notices, or nothing at all.
            return Verdict::Aborted;
        }
        // Hardly any answer has the word.
        let may_be = memmem::find(&self.bytes, ABORT.as_bytes()).is_some();
        match may_be.then(|| Payload::read(&self.bytes)).flatten() {
            Some(payload) if payload.is_aborted() => Verdict::Aborted,
            _ => Verdict::Good,
        }
    }

    /// All that was taken.
    pub fn into_bytes(self) -> BytesMut {
        self.bytes
    }

    /// Judges the lines that are whole.
    fn lines(&mut self) -> Verdict {
        while let Some(length) = memchr::memchr2(b'\n', b'\r', &self.bytes[self.judged..]) {
            let line = self.judged..self.judged + length;
            self.judged = line.end + 1;
            match self.line(line) {
                Verdict::Wait => {}
                verdict => return verdict,
            }
        }
        // A comment says all it has to say with its first byte.
        if self.bytes.get(self.judged) == Some(&b':') { Verdict::Good } else { Verdict::Wait }
    }

    fn line(&mut self, at: std::ops::Range<usize>) -> Verdict {
        let line = &self.bytes[at];
        if line.starts_with(b":") {
            // It keeps the client's connection alive, so it has to get there.
            return Verdict::Good;
        }
        if let Some(name) = line.strip_prefix(b"event:") {
            let name = name.trim_ascii();
            self.is_notice = matches!(name, b"response.created" | b"response.in_progress" | b"response.queued");
            self.is_error = matches!(name, b"error" | b"response.failed");
            // A ping is to the client what a comment is.
            return if name == b"ping" { Verdict::Good } else { Verdict::Wait };
        }
        let Some(payload) = line.strip_prefix(b"data:") else { return Verdict::Wait };
        let is_notice = std::mem::take(&mut self.is_notice);
        match payload.trim_ascii() {
            b"" => Verdict::Wait,
            b"[DONE]" => Verdict::Aborted,
            _ if is_notice => Verdict::Wait,
            payload => Payload::read(payload).map_or(Verdict::Good, |payload| payload.judge(self.is_error)),
        }
    }
}

// === impl Payload ===

impl Payload {
    fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    fn judge(&self, is_error: bool) -> Verdict {
        let is_error = is_error
            || self.error.is_some()
            || [&self.r#type, &self.object].into_iter().flatten().any(|kind| kind == "error");
        if is_error {
            // What is wrong with the request is wrong with it everywhere.
            return if self.is_clients_fault() { Verdict::Good } else { Verdict::Failed };
        }
        if self.is_aborted() {
            return Verdict::Aborted;
        }
        match &self.choices {
            Some(choices) if choices.iter().all(Choice::is_bare) => Verdict::Wait,
            _ => Verdict::Good,
        }
    }

    fn is_clients_fault(&self) -> bool {
        let inner = self.error.as_ref();
        let code = inner.and_then(|error| error.get("code")).or(self.code.as_ref()).and_then(Value::as_u64);
        code.is_some_and(|code| (400..500).contains(&code))
            || inner.and_then(|error| error.get("type")).is_some_and(|kind| kind == "invalid_request_error")
    }

    fn is_aborted(&self) -> bool {
        let choices = self.choices.iter().flatten().map(|choice| &choice.finish_reason);
        let mut reasons = choices.chain(self.meta_info.as_ref().map(|info| &info.finish_reason)).flatten();
        reasons.any(|reason| reason == ABORT || reason.get("type").is_some_and(|kind| kind == ABORT))
    }
}

// === impl Choice ===

impl Choice {
    /// Whether it has neither output nor an end: the role that opens a chat.
    fn is_bare(&self) -> bool {
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        let has_output = self.message.is_some()
            || self.text.as_ref().is_some_and(|text| !text.is_empty())
            || self.delta.iter().flatten().any(|(name, value)| name != "role" && !is_empty(value));
        let is_known = self.delta.is_some() || self.text.is_some();
        is_known && !has_output && self.finish_reason.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::fixtures::{recordings, split};

    fn stream(text: &str) -> Verdict {
        let mut opening = Opening::of_stream();
        match opening.push(text.as_bytes()) {
            Verdict::Wait => opening.end(),
            verdict => verdict,
        }
    }

    fn whole(text: &str) -> Verdict {
        let mut opening = Opening::of_whole();
        match opening.push(text.as_bytes()) {
            Verdict::Wait => opening.end(),
            verdict => verdict,
        }
    }

    const ROLE: &str = r#"data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#;

    #[test]
    fn streams_are_told_apart_by_what_comes_first() {
        let table = [
            ("", Verdict::Aborted),
            ("data: [DONE]\n\n", Verdict::Aborted),
            ("event: response.created\ndata: {\"type\":\"response.created\"}\n\n", Verdict::Aborted),
            ("data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n", Verdict::Good),
            ("data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n", Verdict::Good),
            ("data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"abort\"}]}\n\n", Verdict::Aborted),
            ("data: {\"text\":\"\",\"meta_info\":{\"finish_reason\":{\"type\":\"abort\"}}}\n\n", Verdict::Aborted),
            (
                "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]},\"finish_reason\":null}]}\n\n",
                Verdict::Good,
            ),
            ("data: {\"error\": {\"message\": \"gone\", \"code\": 500}}\n\n", Verdict::Failed),
            ("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n", Verdict::Failed),
            ("data: {\"error\": {\"message\": \"too long\", \"code\": 400}}\n\n", Verdict::Good),
            ("data: {\"object\":\"error\",\"code\":40001}\n\n", Verdict::Failed),
            ("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n", Verdict::Good),
            ("event: ping\n", Verdict::Good),
            (": keep-alive\n\n", Verdict::Good),
            (":", Verdict::Good),
            ("data: not json\n\n", Verdict::Good),
        ];
        for (text, verdict) in table {
            assert_eq!(stream(text), verdict, "of {text:?}");
        }
    }

    #[test]
    fn the_role_that_opens_a_chat_is_no_token() {
        let mut opening = Opening::of_stream();
        assert_eq!(opening.push(format!("{ROLE}\n\n").as_bytes()), Verdict::Wait);
        let token = ROLE.replace("\"content\":\"\"", "\"content\":\"Hi\"");
        assert_eq!(opening.push(format!("{token}\n\n").as_bytes()), Verdict::Good);
        assert_eq!(opening.into_bytes(), format!("{ROLE}\n\n{token}\n\n"), "nothing of it is lost");
        assert_eq!(stream(&format!("{ROLE}\n\ndata: [DONE]\n\n")), Verdict::Aborted);
    }

    #[test]
    fn whole_answers_are_given_up_by_their_finish_reason_or_by_being_empty() {
        let choice =
            |text: &str, reason| format!(r#"{{"choices":[{{"index":0,"text":"{text}","finish_reason":"{reason}"}}]}}"#);
        assert_eq!(whole(&choice("", "abort")), Verdict::Aborted);
        assert_eq!(whole(&choice("", "stop")), Verdict::Good);
        assert_eq!(
            whole(&choice("the \\\"finish_reason\\\":\\\"abort\\\"", "length")),
            Verdict::Good,
            "a text that says so"
        );
        assert_eq!(whole(""), Verdict::Aborted);
        assert_eq!(whole("[1, 2]"), Verdict::Good);
        assert_eq!(whole(&"x".repeat(MAX_WHOLE_BYTES + 1)), Verdict::Good, "more than is looked at");
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut opening = Opening::of_stream();
        let notice = b"event: response.created\ndata: {}\n\n";
        let pushed = (0..100_000).take_while(|_| opening.push(notice) == Verdict::Wait).count();
        assert!((1..=MAX_BYTES / notice.len()).contains(&pushed), "{pushed} notices were held");
    }

    /// The verdict on a recorded answer with status 200 of the kinds that are held; none for others.
    fn recorded(bytes: &[u8]) -> Option<Verdict> {
        let (start_line, body) = split(bytes)?;
        let is_of = |kind: &[u8]| memchr::memmem::find(bytes, kind).is_some();
        let text = std::str::from_utf8(&body).ok().filter(|_| start_line.ends_with("200 ok"))?;
        match (is_of(b"text/event-stream"), is_of(b"application/json")) {
            (true, _) => Some(stream(text)),
            (false, true) => Some(whole(text)),
            (false, false) => None,
        }
    }

    #[test]
    fn of_all_recorded_answers_those_of_stopping_and_dying_engines_are_none() {
        let given_up = [
            ("shutdown-enginecore-sigkill.prefill.resp", Verdict::Failed),
            ("shutdown-sigterm-abort.prefill.resp", Verdict::Aborted),
            ("shutdown-sigterm-drain.new-after-signal-completion-stream.resp", Verdict::Aborted),
            ("shutdown-sigterm-drain.new-after-signal-completion.resp", Verdict::Aborted),
        ];
        for recording in recordings("behaviour", ".resp").iter().chain(&recordings("http", ".resp")) {
            let expected = given_up.iter().find(|(name, _)| *name == recording.name);
            let expected = expected.map_or(Verdict::Good, |(_, verdict)| *verdict);
            if let Some(verdict) = recorded(&recording.bytes) {
                assert_eq!(verdict, expected, "{}", recording.name);
            }
        }
    }

    proptest! {
        #![proptest_config(crate::testing::config(200))]

        #[test]
        fn cuts_between_pieces_change_nothing(cuts in proptest::collection::vec(1_usize..40, 0..20), good in any::<bool>()) {
            let end = if good { ROLE.replace("null}", "\"stop\"}") } else { "data: [DONE]".to_owned() };
            let text = format!("event: response.created\r\ndata: {{}}\r\n\r\n{ROLE}\n\n{end}\n\n");
            let mut opening = Opening::of_stream();
            let (mut rest, mut verdict) = (text.as_bytes(), Verdict::Wait);
            for cut in cuts.into_iter().chain([text.len()]) {
                let (piece, behind) = rest.split_at(cut.min(rest.len()));
                rest = behind;
                verdict = opening.push(piece);
                if verdict != Verdict::Wait {
                    break;
                }
            }
            prop_assert_eq!(verdict, if good { Verdict::Good } else { Verdict::Aborted });
        }
    }
}
