//! Answers, in the words of each API: fields, their order and the event sequence are those of vLLM 0.32, and of SGLang
//! for `/generate`.
//!
//! Events come out as strings that each become one HTTP chunk, as the real engines send them.

mod chat;
mod completion;
mod generate;
mod messages;
mod other;
mod responses;

use super::endpoint::Endpoint;
use super::words;

pub(super) use other::{count_tokens, embeddings, models, tokenize};

/// vLLM names the build that answered; this one says what it is.
const FINGERPRINT: &str = "vllm-0.32.0-simulated";

/// The text of the error that a dead engine core leaves behind.
pub(super) const CORE_DIED: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// The text of the error with which an engine that was told to stop turns down all but completions.
pub(super) const STOPPING: &str = "cannot schedule new futures after shutdown";

/// The tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Of the prompt.
    pub(super) prompt_tokens: u64,
    /// Of the prompt, found in the prefix cache.
    pub(super) cached_tokens: u64,
    /// Of the prompt, newly put into the prefix cache.
    pub(super) created_cache_tokens: u64,
    /// Of the answer.
    pub(super) output_tokens: u64,
}

/// A generated answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Which API it is written for: one that generates.
    pub(super) endpoint: Endpoint,
    /// Identifies the request, without the API's prefix.
    pub(super) id: String,
    /// Seconds since the epoch.
    pub(super) created: u64,
    /// The model's name as a JSON string, quotes included.
    pub(super) model: String,
    /// The whole text.
    pub(super) text: String,
    /// Whether the text ends because the request's limit was reached.
    pub(super) is_cut: bool,
    /// Whether the engine has given it up.
    pub(super) is_aborted: bool,
    /// Whether a stream ends with its usage.
    pub(super) includes_usage: bool,
    /// What was counted; known when the request is admitted.
    pub(super) usage: Usage,
}

// === impl Answer ===

impl Answer {
    /// Events that come with the response header, before there is any token.
    pub(super) fn prelude(&self, events: &mut Vec<String>) {
        if self.endpoint == Endpoint::Responses {
            responses::prelude(self, events);
        }
    }

    /// Events that come with the first token, ahead of its text.
    pub(super) fn opening(&self, events: &mut Vec<String>) {
        match self.endpoint {
            Endpoint::Chat => chat::opening(self, events),
            Endpoint::Messages => messages::opening(self, events),
            Endpoint::Responses => responses::opening(self, events),
            _ => {}
        }
    }

    /// The event of token number `index`.
    pub(super) fn token(&self, index: u32, events: &mut Vec<String>) {
        events.push(match self.endpoint {
            Endpoint::Chat => chat::token(self, index),
            Endpoint::Messages => messages::token(self, index),
            Endpoint::Responses => responses::token(self, index),
            Endpoint::Generate => generate::token(self, index),
            _ => completion::token(self, index),
        });
    }

    /// Events after the last token.
    pub(super) fn closing(&self, events: &mut Vec<String>) {
        match self.endpoint {
            Endpoint::Chat => chat::closing(self, events),
            Endpoint::Messages => messages::closing(self, events),
            Endpoint::Responses => responses::closing(self, events),
            Endpoint::Generate => {}
            _ => completion::closing(self, events),
        }
        if !matches!(self.endpoint, Endpoint::Messages | Endpoint::Responses) {
            events.push(String::from(DONE));
        }
    }

    /// The whole answer as one body.
    pub(super) fn plain(&self) -> String {
        match self.endpoint {
            Endpoint::Chat => chat::plain(self),
            Endpoint::Messages => messages::plain(self),
            Endpoint::Responses => responses::plain(self),
            Endpoint::Generate => generate::plain(self),
            _ => completion::plain(self),
        }
    }

    /// Gives it up before its first token.
    pub(super) fn abort(&mut self) {
        self.is_aborted = true;
        self.text.clear();
        self.usage.output_tokens = 0;
    }

    /// The events with which a stream ends when the engine's core dies.
    pub(super) fn core_died(events: &mut Vec<String>) {
        events.push(format!(
            r#"data: {{"error": {{"message": "{CORE_DIED}", "type": "InternalServerError", "param": null, "code": 500}}}}{END}"#
        ));
        events.push(String::from(DONE));
    }

    fn piece(&self, index: u32) -> String {
        quote(words::token(&self.text, index, self.usage.output_tokens))
    }

    fn is_last(&self, index: u32) -> bool {
        u64::from(index) + 1 >= self.usage.output_tokens
    }

    fn finish_reason(&self) -> &'static str {
        match (self.is_aborted, self.is_cut) {
            (true, _) => "abort",
            (false, true) => "length",
            (false, false) => "stop",
        }
    }
}

/// What ends an event.
const END: &str = "\n\n";
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// `text` as a JSON string.
pub(super) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(endpoint: Endpoint) -> Answer {
        Answer {
            endpoint,
            id: String::from("0123456789abcdef"),
            created: 1_795_965_162,
            model: quote("tiny \"llama\""),
            text: words::write(1, 3),
            is_cut: true,
            is_aborted: false,
            includes_usage: true,
            usage: Usage { prompt_tokens: 48, cached_tokens: 32, created_cache_tokens: 16, output_tokens: 3 },
        }
    }

    fn stream(answer: &Answer) -> Vec<String> {
        let mut events = Vec::new();
        answer.prelude(&mut events);
        answer.opening(&mut events);
        (0..3).for_each(|index| answer.token(index, &mut events));
        answer.closing(&mut events);
        events
    }

    const GENERATING: [Endpoint; 5] =
        [Endpoint::Chat, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses, Endpoint::Generate];

    #[test]
    fn every_event_is_one_event_with_json_data() {
        for endpoint in GENERATING {
            for event in stream(&answer(endpoint)) {
                let event = event.strip_suffix("\n\n").expect("an event ends with a blank line");
                let data = event.lines().last().unwrap().strip_prefix("data: ").unwrap();
                assert!(!event.contains("\n\n") && event.lines().count() <= 2, "{event}");
                if data != "[DONE]" {
                    let value: serde_json::Value = serde_json::from_str(data).expect(data);
                    if let Some(name) = event.strip_prefix("event: ") {
                        assert_eq!(value["type"].as_str(), name.lines().next(), "the event is named after its type");
                    }
                }
            }
        }
    }

    #[test]
    fn streams_say_done_where_the_engine_does() {
        for endpoint in GENERATING {
            let says_done = stream(&answer(endpoint)).last().unwrap() == DONE;
            assert_eq!(says_done, !matches!(endpoint, Endpoint::Messages | Endpoint::Responses), "{endpoint:?}");
        }
    }

    #[test]
    fn a_plain_answer_has_text_and_usage() {
        for (endpoint, text, cached) in [
            (Endpoint::Chat, "/choices/0/message/content", "/usage/prompt_tokens_details/cached_tokens"),
            (Endpoint::Completions, "/choices/0/text", "/usage/prompt_tokens_details/cached_tokens"),
            (Endpoint::Messages, "/content/0/text", "/usage/cache_read_input_tokens"),
            (Endpoint::Responses, "/output/0/content/0/text", "/usage/input_tokens_details/cached_tokens"),
            (Endpoint::Generate, "/text", "/meta_info/cached_tokens"),
        ] {
            let answer = answer(endpoint);
            let value: serde_json::Value = serde_json::from_str(&answer.plain()).unwrap();
            assert_eq!(
                value.pointer(text).and_then(serde_json::Value::as_str),
                Some(answer.text.as_str()),
                "{endpoint:?}"
            );
            assert_eq!(value.pointer(cached).and_then(serde_json::Value::as_u64), Some(32), "{endpoint:?}");
        }
    }
}
