//! Token counts and the response's id, picked out of an answer as it passes by.
//!
//! No event is parsed. A [`Needle`] is searched in each chunk (the memchr crate's vectorised search), and what follows
//! it is kept, at most [`KEPT_BYTES`]; the first and the last usage object are read at the end. A key's quotes cannot
//! occur inside a JSON string unescaped, so text that talks of `"usage"` is not taken for one. The end of an answer is
//! not where usage is: vLLM puts the prompt's token ids behind it, a megabyte for a long prompt.

use std::sync::LazyLock;

use super::json::{JsonError, Kind, Scanner};
use memchr::memmem::Finder;

/// What is kept from a usage object on, bytes. Engines write 100 to 500; SGLang's `meta_info` may be longer.
const KEPT_BYTES: usize = 2048;

/// Longest response id taken, with quotes and spacing, bytes. Engines write 21 to 60.
const ID_BYTES: usize = 160;

/// The id stands in the first event: it is not looked for beyond this many bytes.
const ID_WITHIN_BYTES: usize = 64 * 1024;

/// Token counts of one answer, as the engine reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included (Anthropic's `input_tokens` leave those out; they are added here).
    pub prompt_tokens: u64,
    /// Of these, the ones found in the prefix cache; unknown if the engine does not say.
    pub cached_tokens: Option<u64>,
    /// Tokens generated, over all choices.
    pub output_tokens: u64,
}

/// Looks for usage objects of any API.
pub(super) struct UsageWatch {
    usage: Objects,
    meta_info: Objects,
}

/// Looks for the id of a Responses answer.
pub(super) struct IdWatch {
    needle: Needle,
    kept: Vec<u8>,
    id: Option<String>,
    seen_bytes: usize,
}

/// The first, the last and the current object behind a needle. `current` becomes one of the others when the next
/// needle is found and it proved to be an object.
struct Objects {
    needle: Needle,
    first: Vec<u8>,
    last: Vec<u8>,
    current: Vec<u8>,
    is_keeping: bool,
}

/// A search over chunks. A needle is a quoted key: no part of it but its ends is a quote, so that of what may be the
/// beginning of a needle at the end of a chunk there is at most one.
struct Needle {
    finder: &'static Finder<'static>,
    /// How much of the needle the last chunk ended with, bytes.
    begun: usize,
}

/// The counts of one usage object.
#[derive(Default)]
struct Counts {
    prompt: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    cached: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
}

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static META_INFO: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"meta_info\""));
static ID: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"id\""));

// === impl UsageWatch ===

impl UsageWatch {
    pub(super) fn new() -> Self {
        Self { usage: Objects::new(&USAGE), meta_info: Objects::new(&META_INFO) }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.usage.push(chunk);
        self.meta_info.push(chunk);
    }

    /// What was reported up to now: of each count the last.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage.usage().or_else(|| self.meta_info.usage())
    }
}

// === impl IdWatch ===

impl IdWatch {
    pub(super) fn new() -> Self {
        Self { needle: Needle::new(&ID), kept: Vec::new(), id: None, seen_bytes: 0 }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.id.is_some() || self.seen_bytes >= ID_WITHIN_BYTES {
            return;
        }
        self.seen_bytes += chunk.len();
        let (kept, id) = (&mut self.kept, &mut self.id);
        self.needle.split(chunk, |piece, is_found| {
            keep(kept, piece, ID_BYTES);
            if id.is_none() {
                *id = response_id(kept);
            }
            if is_found {
                kept.clear();
            }
        });
    }

    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }
}

/// The id, once it is whole, in what follows an `"id"` key.
fn response_id(kept: &[u8]) -> Option<String> {
    let value = kept.trim_ascii_start().strip_prefix(b":")?;
    let id = Scanner::of_value(value).string().ok()?.text();
    id.starts_with("resp_").then(|| id.into_owned())
}

// === impl Objects ===

impl Objects {
    fn new(finder: &'static Finder<'static>) -> Self {
        let [first, last, current] = [(); 3].map(|()| Vec::new());
        Self { needle: Needle::new(finder), first, last, current, is_keeping: false }
    }

    fn push(&mut self, chunk: &[u8]) {
        let Self { needle, first, last, current, is_keeping } = self;
        needle.split(chunk, |piece, is_found| {
            if *is_keeping {
                keep(current, piece, KEPT_BYTES);
            }
            if is_found {
                if object(current).is_some() {
                    std::mem::swap(current, if first.is_empty() { first } else { last });
                }
                current.clear();
                *is_keeping = true;
            }
        });
    }

    fn usage(&self) -> Option<Usage> {
        let (mut prompt, mut cached, mut output) = (None, None, None);
        for kept in [&self.first, &self.last, &self.current] {
            let Some(counts) = object(kept).map(Counts::read) else { continue };
            prompt = counts.prompt_tokens().or(prompt);
            cached = counts.cached.or(counts.cache_read).or(cached);
            output = counts.output.or(output);
        }
        Some(Usage { prompt_tokens: prompt?, cached_tokens: cached, output_tokens: output.unwrap_or(0) })
    }
}

/// The object in what follows a key, or the beginning of it; nothing if its value is of another kind.
fn object(kept: &[u8]) -> Option<&[u8]> {
    let value = kept.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    value.starts_with(b"{").then_some(value)
}

fn keep(kept: &mut Vec<u8>, piece: &[u8], at_most: usize) {
    let room = at_most.saturating_sub(kept.len());
    kept.extend_from_slice(piece.get(..room).unwrap_or(piece));
}

// === impl Needle ===

impl Needle {
    fn new(finder: &'static Finder<'static>) -> Self {
        Self { finder, begun: 0 }
    }

    /// Gives `each` the pieces of `chunk` in order: true with one that ends with the needle, false with the rest.
    fn split(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8], bool)) {
        let needle = self.finder.needle();
        let mut rest = chunk;
        if self.begun > 0 {
            let missing = needle.get(self.begun..).unwrap_or_default();
            if let Some(behind) = chunk.strip_prefix(missing) {
                each(missing, true);
                rest = behind;
            } else if missing.starts_with(chunk) {
                self.begun += chunk.len();
                return each(chunk, false);
            }
        }
        while let Some(at) = self.finder.find(rest) {
            let (piece, behind) = rest.split_at(at + needle.len());
            each(piece, true);
            rest = behind;
        }
        each(rest, false);
        let tail = rest.get(rest.len().saturating_sub(needle.len() - 1)..).unwrap_or_default();
        let begun = tail.iter().rposition(|byte| *byte == b'"').and_then(|at| tail.get(at..));
        self.begun = begun.filter(|begun| needle.starts_with(begun)).map_or(0, <[u8]>::len);
    }
}

// === impl Counts ===

impl Counts {
    /// Reads an object that may be cut off: what stands before the cut counts.
    fn read(object: &[u8]) -> Self {
        let mut counts = Self::default();
        let mut whole = object;
        while let [before @ .., b'0'..=b'9'] = whole {
            // A number at the cut may go on behind it.
            whole = before;
        }
        // The error is the cut.
        let _ = counts.members(&mut Scanner::of_value(whole));
        counts
    }

    fn members(&mut self, scanner: &mut Scanner<'_>) -> Result<(), JsonError> {
        if scanner.peek()? != Kind::Object {
            return scanner.skip().map(drop);
        }
        scanner.object(|key, scanner| {
            let place = match key.bytes().as_ref() {
                b"prompt_tokens_details" | b"input_tokens_details" => return self.details(scanner),
                b"prompt_tokens" => &mut self.prompt,
                b"input_tokens" => &mut self.input,
                b"completion_tokens" | b"output_tokens" => &mut self.output,
                b"total_tokens" => &mut self.total,
                b"cached_tokens" => &mut self.cached,
                b"cache_read_input_tokens" => &mut self.cache_read,
                b"cache_creation_input_tokens" => &mut self.cache_creation,
                _ => return scanner.skip().map(drop),
            };
            *place = scanner.integer()?.or(*place);
            Ok(())
        })
    }

    fn details(&mut self, scanner: &mut Scanner<'_>) -> Result<(), JsonError> {
        if scanner.peek()? != Kind::Object {
            return scanner.skip().map(drop);
        }
        scanner.object(|key, scanner| {
            let value = scanner.integer()?;
            if key.bytes().as_ref() == b"cached_tokens" {
                self.cached = value.or(self.cached);
            }
            Ok(())
        })
    }

    /// Rerank and score report a total only.
    fn prompt_tokens(&self) -> Option<u64> {
        let anthropic = self.input.map(|input| {
            input.saturating_add(self.cache_read.unwrap_or(0)).saturating_add(self.cache_creation.unwrap_or(0))
        });
        let rest_of_total = self.total.map(|total| total.saturating_sub(self.output.unwrap_or(0)));
        self.prompt.or(anthropic).or(rest_of_total)
    }
}
