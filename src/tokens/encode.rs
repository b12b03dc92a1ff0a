//! Text to token ids, paying for new text only.
//!
//! The tokenizer itself cuts a text at the added tokens that it finds in it, and treats the pieces between them apart:
//! special tokens end merges. [`Encoder`] finds the same tokens by the tokenizer's own search, cuts *before* some of
//! them, and looks up or tokenizes each segment. That gives the ids of the whole because
//! - the search goes on behind each token it found, and looks no further left than that, so a segment that begins with
//!   a found token has the same tokens found in it as it had within the whole;
//! - it looks further right only for tokens that have to be single words, and takes in what is on the left only for
//!   those that strip it: the former rule cutting out for a tokenizer, the latter are not cut at;
//! - normalizers and pre-tokenizers see one piece between tokens at a time, and beside it only whether it opens the
//!   text. Behind a token it never does, and the segments but for the first begin with one.
//!
//! For the same reasons, where a segment ends is decided by its own text and by as much behind it as the longest added
//! token has, in which the one is found that it ends before. A text that goes on like one that was seen, for so long, is
//! cut there without a search.
//!
//! Tokens that are matched in normalized text are found within the pieces, and are no place to cut.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokenizers::pipeline::{EncodeOptions, Override, PipelinePatternMatcher, PipelineToken, PipelineTokenizer};

use super::NotTokenized;
use super::cache::{BEGIN_BYTES, Ids, Segment, TextCache};
use super::ids::TokenIds;
use super::stop::Stop;

/// A segment is made at least this long, bytes, if there is so much: a shorter one is cheaper to tokenize than to keep.
const MIN_SEGMENT_BYTES: usize = 128;

/// The tokenizer proper.
pub(super) struct Encoder {
    pipeline: PipelineTokenizer,
    options: EncodeOptions,
    min_segment_bytes: usize,
    /// Ids of the added tokens to cut before.
    cuts: HashSet<u32>,
    /// Length of the longest added token that is matched in texts as they are, bytes. At least 1, so that the end of a
    /// text never counts as a cut.
    longest_added: usize,
    added: HashMap<String, u32>,
    /// What is put around a text if special tokens are asked for.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

// === impl Encoder ===

impl Encoder {
    pub(super) fn new(pipeline: PipelineTokenizer) -> Self {
        // Engines turn off what `tokenizer.json` says of truncation and padding.
        let options = EncodeOptions {
            add_special_tokens: false,
            encode_special_tokens: false,
            padding: Override::Off,
            truncation: Override::Off,
        };
        let tokens = pipeline.get_added_vocabulary().get_added_tokens_decoder();
        let looks_right = tokens.values().any(|token| token.single_word && !token.normalized);
        let cuts = tokens.iter().filter(|(_, token)| !looks_right && !token.normalized && !token.lstrip);
        let cuts = cuts.map(|(id, _)| *id).collect();
        let as_they_are = tokens.values().filter(|token| !token.normalized);
        let longest_added = as_they_are.map(|token| token.content.len()).max().unwrap_or_default().max(1);
        let added = tokens.iter().map(|(id, token)| (token.content.clone(), *id)).collect();
        let template = &pipeline.get_post_processor().single;
        let prefix = template.prefix.iter().map(|(token, _)| token.id()).collect();
        let suffix = template.suffix.iter().map(|(token, _)| token.id()).collect();
        Self { pipeline, options, min_segment_bytes: MIN_SEGMENT_BYTES, cuts, longest_added, added, prefix, suffix }
    }

    /// Replaces what is put around a text.
    pub(super) fn with_ends(mut self, prefix: Option<u32>, suffix: Option<u32>) -> Self {
        self.prefix = prefix.into_iter().collect();
        self.suffix = suffix.into_iter().collect();
        self
    }

    pub(super) fn has_added_token(&self, token: &str) -> bool {
        self.added.contains_key(token)
    }

    pub(super) fn added_token(&self, token: &str) -> Option<u32> {
        self.added.get(token).copied()
    }

    /// The ids of a text in UTF-8, from its segments.
    ///
    /// # Errors
    /// [`NotTokenized::TimedOut`] soon after `stop` is set, [`NotTokenized::Failed`] if the tokenizer fails or the text is not
    /// UTF-8.
    pub(super) fn encode(
        &self,
        text: &[u8],
        add_special_tokens: bool,
        cache: &TextCache,
        stop: &Stop,
    ) -> Result<TokenIds, NotTokenized> {
        let ends = |ids: &[u32]| if add_special_tokens { ids.into() } else { Ids::default() };
        let mut ids = TokenIds::default();
        ids.push(ends(&self.prefix), None);
        // With special tokens or without, the same texts give other blocks.
        let mut key = cache.key(if add_special_tokens { b"special".as_slice() } else { b"plain" });
        let mut fresh = Vec::new();
        let mut cuts = Segments::new(self, text);
        loop {
            stop.check()?;
            if let Some(known) = cuts.next_known(cache) {
                key = cache.key_behind(key, known.key);
                ids.push(known.ids, Some(key));
                continue;
            }
            let rest = cuts.rest();
            let Some(segment) = cuts.next() else { break };
            let of_segment = cache.key(segment);
            let of_segment = match cache.ids(of_segment) {
                Some(ids) => Segment { key: of_segment, ids },
                None => {
                    fresh.clear();
                    self.tokenize(segment, &mut fresh)?;
                    Segment { key: of_segment, ids: PipelineToken::cast_slice(&fresh).into() }
                }
            };
            key = cache.key_behind(key, of_segment.key);
            ids.push(Arc::clone(&of_segment.ids), Some(key));
            cache.put_segment(rest, self.begin_bytes(), segment.len(), self.longest_added, of_segment);
        }
        ids.push(ends(&self.suffix), None);
        Ok(ids)
    }

    /// By so much of its begin a segment is looked up.
    fn begin_bytes(&self) -> usize {
        BEGIN_BYTES.min(2 * self.min_segment_bytes)
    }

    /// Cuts wherever it can.
    #[cfg(test)]
    pub(super) fn with_small_segments(mut self) -> Self {
        self.min_segment_bytes = 1;
        self
    }

    /// The ids of a text, tokenized whole.
    #[cfg(test)]
    pub(super) fn encode_whole(&self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        self.pipeline.encode_into(text, &self.options, &mut tokens).unwrap();
        PipelineToken::cast_slice(&tokens).to_vec()
    }

    #[cfg(test)]
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.pipeline.decode(ids, false).unwrap()
    }

    #[cfg(test)]
    pub(super) fn segments<'a>(&'a self, text: &'a str) -> Vec<&'a str> {
        Segments::new(self, text.as_bytes()).map(|segment| str::from_utf8(segment).unwrap()).collect()
    }

    fn tokenize(&self, text: &[u8], out: &mut Vec<PipelineToken>) -> Result<(), NotTokenized> {
        let text = str::from_utf8(text).map_err(|_| NotTokenized::Failed)?;
        self.pipeline.encode_into(text, &self.options, out).map_err(|_| NotTokenized::Failed)
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("cuts", &self.cuts.len()).finish_non_exhaustive()
    }
}

/// The segments of a text, in order; together they are the text.
struct Segments<'a> {
    encoder: &'a Encoder,
    text: &'a [u8],
    start: usize,
    /// Where the search goes on.
    search: usize,
}

// === impl Segments ===

impl<'a> Segments<'a> {
    fn new(encoder: &'a Encoder, text: &'a [u8]) -> Self {
        Self { encoder, text, start: 0, search: 0 }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text[self.start..]
    }

    /// The next segment, if it and its end are in the cache.
    fn next_known(&mut self, cache: &TextCache) -> Option<Segment> {
        let (len, segment) = cache.cut(self.rest(), self.encoder.begin_bytes(), self.encoder.longest_added)?;
        self.start += len;
        self.search = self.start;
        Some(segment)
    }

    fn next_cut(&mut self) -> usize {
        let vocabulary = self.encoder.pipeline.get_added_vocabulary();
        if !self.encoder.cuts.is_empty() {
            while let Some(((start, end), id)) = vocabulary.extract_next(self.text, self.search, false, false) {
                self.search = end;
                if start >= self.start + self.encoder.min_segment_bytes && self.encoder.cuts.contains(&id) {
                    return start;
                }
            }
        }
        self.search = self.text.len();
        self.text.len()
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.start >= self.text.len() {
            return None;
        }
        let end = self.next_cut();
        let segment = &self.text[self.start..end];
        self.start = end;
        Some(segment)
    }
}

#[cfg(test)]
mod tests;
