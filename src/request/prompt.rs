//! A prompt as it was found in a body, and its canonical bytes.
//!
//! A prompt is either token ids or a list of [`Segment`]s borrowed from the body. Canonical bytes stand for the prompt
//! that the engine's chat template will make of it: they depend on what is said, not on how the JSON spells it; two
//! different lists of segments never give the same bytes; and a conversation's bytes start with those of every earlier
//! turn, because nothing is written at its end.
//!
//! Text is UTF-8 (lone surrogates as WTF-8) with JSON's short escapes left in it, as `RawStr::write` spells it, so that it is
//! hashed where it lies in the body. The bytes F8 to FF cannot occur in it and mark structure:
//!
//! | bytes | meaning |
//! | --- | --- |
//! | `FF` kind name `FE` | a part of the prompt begins: a message with its role, a tool call with its name .. |
//! | `FC` | another content part of the same message |
//! | `FD` and [`MEDIA_BYTES`] bytes | an image, audio, video or file |
//! | `FE` | also ends each string of embedded JSON (see [`super::canon`]) |

use std::fmt;

use super::canon;
use super::json::RawStr;
use super::writer::Writer;

/// What one image, audio clip or file stands for, in bytes of canonical prompt: about 256 tokens at 4 bytes a token,
/// the order of what common vision models make of a picture, so that it fills blocks of its own and weighs in the
/// prompt's length. The real count depends on model and picture size and is not known here.
pub const MEDIA_BYTES: usize = 1024;

/// Segments kept of one request (a long conversation has hundreds). What lies beyond is only counted, so that a body of
/// nothing but tiny messages cannot take many times its size in memory.
pub const MAX_SEGMENTS: usize = 1 << 16;

/// One prompt of a request.
pub struct Prompt<'a> {
    pub(super) content: Content<'a>,
    pub(super) more_bytes: u64,
    pub(super) has_media: bool,
}

pub(super) enum Content<'a> {
    Text(Vec<Segment<'a>>),
    Tokens { ids: Vec<u32>, count: u64 },
}

/// A piece of prompt, borrowed from the body.
#[derive(Debug, Clone, Copy)]
pub(super) enum Segment<'a> {
    /// What begins here, and its name: a role, a function's name, a type.
    Header(Header, RawStr<'a>),
    /// Text as the model will read it.
    Text(RawStr<'a>),
    /// Another content part of the same message.
    Part,
    /// Hash of an image, audio, video or file, or of its URL.
    Media([u8; 16]),
    /// Any JSON value, as its canonical form.
    Json(&'a [u8]),
    /// JSON tool definitions, the same without `cache_control`.
    Tools(&'a [u8]),
}

/// What a [`Segment::Header`] begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Header {
    Message = b'm',
    Name = b'n',
    Thinking = b't',
    Call = b'c',
    CallResult = b'r',
    Tools = b'T',
    Functions = b'F',
    Documents = b'D',
    TemplateOption = b'o',
    Query = b'q',
    Document = b'd',
    Other = b'x',
}

/// Collects the segments of one prompt, within [`MAX_SEGMENTS`].
#[derive(Default)]
pub(super) struct Segments<'a> {
    list: Vec<Segment<'a>>,
    more_bytes: u64,
    has_media: bool,
}

/// What most conversations need at least, allocated at once: eight messages of a header and a text.
const USUAL_SEGMENTS: usize = 16;

const HEADER: u8 = 0xFF;
pub(super) const END: u8 = 0xFE;
const MEDIA: u8 = 0xFD;
const PART: u8 = 0xFC;

// === impl Prompt ===

impl<'a> Prompt<'a> {
    pub(super) fn tokens(ids: Vec<u32>, count: u64) -> Self {
        Self { content: Content::Tokens { ids, count }, more_bytes: 0, has_media: false }
    }

    pub(super) fn prepend_media(&mut self, digests: impl Iterator<Item = [u8; 16]>) {
        if let Content::Text(segments) = &mut self.content {
            segments.splice(0..0, digests.map(Segment::Media));
            self.has_media = true;
        }
    }

    /// Streams the canonical bytes to `sink`, in order and in pieces of any size. Token ids go as `u32` little-endian.
    pub fn canonical(&self, sink: &mut impl FnMut(&[u8])) {
        let mut out = Writer::new(sink);
        match &self.content {
            Content::Text(segments) => segments.iter().for_each(|segment| segment.canonical(&mut out)),
            Content::Tokens { ids, .. } => ids.iter().for_each(|id| out.write(&id.to_le_bytes())),
        }
        out.finish();
    }

    /// About how many canonical bytes there will be: as many as what is said takes in the body.
    pub fn expected_bytes(&self) -> usize {
        match &self.content {
            Content::Text(segments) => segments.iter().map(Segment::expected_bytes).sum(),
            Content::Tokens { ids, .. } => size_of_val(ids.as_slice()),
        }
    }

    /// Whether this prompt is token ids, not text.
    pub fn is_tokens(&self) -> bool {
        matches!(self.content, Content::Tokens { .. })
    }

    /// The token ids of a prompt given as such, as many as were kept.
    pub fn token_ids(&self) -> Option<&[u32]> {
        match &self.content {
            Content::Tokens { ids, .. } => Some(ids),
            Content::Text(_) => None,
        }
    }

    /// The prompt's exact length in tokens; known only if it is token ids.
    pub fn token_count(&self) -> Option<u64> {
        match self.content {
            Content::Tokens { count, .. } => Some(count),
            Content::Text(_) => None,
        }
    }

    /// Whether images, audio, video or files are in it: its length in bytes then says little of its tokens.
    pub fn has_media(&self) -> bool {
        self.has_media
    }

    /// Bytes of body that belong to this prompt but are not in its canonical bytes, because a bound was reached.
    pub fn more_bytes(&self) -> u64 {
        self.more_bytes
    }
}

impl fmt::Debug for Prompt<'_> {
    /// Says how much there is, never what: prompts do not go into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Content::Text(segments) => write!(f, "Prompt({} segments)", segments.len()),
            Content::Tokens { count, .. } => write!(f, "Prompt({count} token ids)"),
        }
    }
}

// === impl Segment ===

impl Segment<'_> {
    fn expected_bytes(&self) -> usize {
        match self {
            Self::Header(_, text) | Self::Text(text) => text.raw_len(),
            Self::Part => 1,
            Self::Media(_) => MEDIA_BYTES,
            Self::Json(json) | Self::Tools(json) => json.len(),
        }
    }

    fn canonical(&self, out: &mut Writer<'_, impl FnMut(&[u8])>) {
        match self {
            Self::Header(header, name) => {
                out.byte(HEADER);
                out.byte(*header as u8);
                name.write(out);
                out.byte(END);
            }
            Self::Text(text) => text.write(out),
            Self::Part => out.byte(PART),
            Self::Media(digest) => {
                out.byte(MEDIA);
                (0..MEDIA_BYTES / digest.len()).for_each(|_| out.write(digest));
            }
            Self::Json(json) => canon::write(json, canon::Keep::All, out),
            Self::Tools(json) => canon::write(json, canon::Keep::WithoutCacheControl, out),
        }
    }
}

// === impl Segments ===

impl<'a> Segments<'a> {
    /// With room for a conversation.
    pub(super) fn of_messages() -> Self {
        Self { list: Vec::with_capacity(USUAL_SEGMENTS), ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.more_bytes == 0
    }

    /// Whether no more is kept; what comes is to be skipped and its length given to [`Segments::count`].
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= MAX_SEGMENTS
    }

    pub(super) fn count(&mut self, skipped: &[u8]) {
        self.more_bytes += skipped.len() as u64;
    }

    pub(super) fn push(&mut self, segment: Segment<'a>) {
        self.has_media |= matches!(segment, Segment::Media(_));
        self.list.push(segment);
    }

    /// Forgets all from index `len` on: a later duplicate key takes its place.
    pub(super) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    pub(super) fn insert(&mut self, index: usize, segment: Segment<'a>) {
        self.list.insert(index.min(self.list.len()), segment);
    }

    pub(super) fn set(&mut self, index: usize, segment: Segment<'a>) {
        if let Some(place) = self.list.get_mut(index) {
            *place = segment;
        }
    }

    /// Puts `later` behind what is here.
    pub(super) fn append(mut self, mut later: Self) -> Self {
        if self.list.is_empty() {
            self.list = later.list;
        } else {
            self.list.append(&mut later.list);
        }
        self.more_bytes += later.more_bytes;
        self.has_media |= later.has_media;
        self
    }

    pub(super) fn into_prompt(self) -> Prompt<'a> {
        Prompt { content: Content::Text(self.list), more_bytes: self.more_bytes, has_media: self.has_media }
    }
}
