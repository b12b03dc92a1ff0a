//! What is sent: for each workload any number of requests, all of one size, none twice.
//!
//! Chats begin alike, as they do: a few *stems* (a system prompt that all share, then the turns of a conversation), and
//! behind each a last message that is new every time.

use crate::canned::{ANSWER_HEADER, Canned, TELL_HEADER};
use crate::prose;

/// Bytes of a last message, at most; of short requests it is a quarter.
const MAX_LAST_BYTES: usize = 4 * 1024;

/// Last messages, apart from the number that each begins with.
const LAST_MESSAGES: usize = 32;

/// Bytes of one turn of a conversation.
const TURN_BYTES: usize = 2 * 1024;

/// Header fields of a client of the OpenAI API.
const FIELDS: &str = "host: llm.example.com\r\naccept: application/json\r\naccept-encoding: gzip, deflate\r\n\
    user-agent: OpenAI/Python 2.8.1\r\nx-stainless-lang: python\r\nx-stainless-retry-count: 0\r\n\
    authorization: Bearer sk-5d8e0b6f4c9a4f7e8d1c2b3a4d5e6f70\r\n";

/// Requests of one kind.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) answer: Canned,
    /// Length of an answer's body.
    pub(crate) answer_bytes: u64,
    stems: Vec<Vec<u8>>,
    last_messages: Vec<String>,
    end: &'static str,
}

// === impl Workload ===

impl Workload {
    /// Small requests without a body, answered by an engine.
    pub(crate) fn get() -> Self {
        let answer = Canned::Plain;
        let (stems, last_messages) = (Vec::new(), Vec::new());
        Self { name: "GET", answer, answer_bytes: answer.body_bytes(), stems, last_messages, end: "" }
    }

    /// Chats of this size behind so many stems.
    pub(crate) fn chats(name: &'static str, bytes: usize, stems: usize, answer: Canned) -> Self {
        let mut rng = fastrand::Rng::with_seed(bytes as u64);
        let end = match answer {
            Canned::Plain => r#""}],"temperature":0.7,"max_tokens":512}"#,
            _ => r#""}],"temperature":0.7,"max_tokens":512,"stream":true,"stream_options":{"include_usage":true}}"#,
        };
        let last_bytes = MAX_LAST_BYTES.min(bytes / 4);
        let stem_bytes = bytes - last_bytes - Self::NUMBER_BYTES - end.len();
        let system = prose::escaped(&mut rng, stem_bytes / 4);
        let stems = (0..stems).map(|_| stem(&mut rng, &system, stem_bytes)).collect();
        let last_messages = (0..LAST_MESSAGES).map(|_| prose::escaped(&mut rng, last_bytes)).collect();
        Self { name, answer, answer_bytes: answer.body_bytes(), stems, last_messages, end }
    }

    const NUMBER_BYTES: usize = 11;

    pub(crate) fn is_chat(&self) -> bool {
        !self.stems.is_empty()
    }

    /// Requests after which every engine has seen what they share.
    pub(crate) fn settling_requests(&self) -> usize {
        self.stems.len() * 2
    }

    /// Puts the request of this number into `out`; `tells` asks the engine to tell of its cache.
    pub(crate) fn write(&self, number: u64, tells: bool, out: &mut Vec<u8>) {
        out.clear();
        let tell = if tells { format!("{TELL_HEADER}: yes\r\n") } else { String::new() };
        if !self.is_chat() {
            out.extend_from_slice(format!("GET /version HTTP/1.1\r\n{FIELDS}\r\n").as_bytes());
            return;
        }
        let stem = &self.stems[number as usize % self.stems.len()];
        let last = &self.last_messages[number as usize % LAST_MESSAGES];
        let length = stem.len() + Self::NUMBER_BYTES + last.len() + self.end.len();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\n{FIELDS}{ANSWER_HEADER}: {}\r\n{tell}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n",
            self.answer.name(),
        );
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(stem);
        out.extend_from_slice(format!("{number:010} ").as_bytes());
        out.extend_from_slice(last.as_bytes());
        out.extend_from_slice(self.end.as_bytes());
    }
}

/// The beginning of a body, up to the text of its last message.
fn stem(rng: &mut fastrand::Rng, system: &str, bytes: usize) -> Vec<u8> {
    const LAST: &str = r#""},{"role":"user","content":""#;
    let mut text = format!(r#"{{"model":"bench","messages":[{{"role":"system","content":"{system}"#);
    for turn in 0.. {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        let open = format!(r#""}},{{"role":"{role}","content":""#);
        let left = bytes.saturating_sub(text.len() + LAST.len());
        if left <= open.len() {
            text.push_str(&prose::escaped(rng, left));
            break;
        }
        text.push_str(&open);
        text.push_str(&prose::escaped(rng, TURN_BYTES.min(left - open.len())));
    }
    text.push_str(LAST);
    text.into_bytes()
}
