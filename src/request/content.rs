//! What a message says: a string or a list of typed parts, in the spellings of OpenAI chat, OpenAI responses and
//! Anthropic.
//!
//! A string and a list of one text part are the same content. Parts are read in place, in one pass: members may come in
//! any order, so a part's place is held until its end shows its type. Left out because no template renders them:
//! `cache_control`, `annotations`, ids of calls and their results (some templates do print those; a client repeats
//! a conversation with the ids it had, so leaving them out changes nothing but between conversations equal in all else).

use super::json::{JsonError, Kind, RawStr, Scanner};
use super::media;
use super::prompt::{Header, Segment, Segments};

pub(super) const EMPTY: RawStr<'static> = RawStr::plain("");

/// Parts within parts (a tool result holds parts of its own). Deeper content counts as the JSON that it is.
const MAX_PART_DEPTH: usize = 2;

/// The members of one part, whichever came last.
#[derive(Default)]
struct Part<'a> {
    kind: Option<RawStr<'a>>,
    text: Option<RawStr<'a>>,
    media: Option<[u8; 16]>,
    media_id: Option<[u8; 16]>,
    name: Option<RawStr<'a>>,
    input: Option<Segment<'a>>,
    deep_content: Option<&'a [u8]>,
}

/// Where a part goes: the index of its content's first segment, its own first, and how deep it lies.
#[derive(Clone, Copy)]
struct Place {
    content_start: usize,
    start: usize,
    depth: usize,
}

/// Reads a string or a list of parts; anything else says nothing.
pub(super) fn read<'a>(scanner: &mut Scanner<'a>, out: &mut Segments<'a>) -> Result<(), JsonError> {
    read_at(scanner, out, 0)
}

/// A string as text, any other value as JSON.
pub(super) fn text_or_json<'a>(scanner: &mut Scanner<'a>) -> Result<Segment<'a>, JsonError> {
    if scanner.peek()? == Kind::String {
        return scanner.string().map(Segment::Text);
    }
    scanner.skip().map(Segment::Json)
}

fn read_at<'a>(scanner: &mut Scanner<'a>, out: &mut Segments<'a>, depth: usize) -> Result<(), JsonError> {
    let content_start = out.len();
    match scanner.peek()? {
        Kind::String => push_text(scanner.string()?, out),
        Kind::Array => scanner.array(|scanner| read_part(scanner, out, content_start, depth))?,
        Kind::Object => read_part(scanner, out, content_start, depth)?,
        Kind::Number | Kind::Literal => drop(scanner.skip()?),
    }
    Ok(())
}

fn push_text<'a>(text: RawStr<'a>, out: &mut Segments<'a>) {
    if text.raw_len() > 0 {
        out.push(Segment::Text(text));
    }
}

fn read_part<'a>(
    scanner: &mut Scanner<'a>,
    out: &mut Segments<'a>,
    content_start: usize,
    depth: usize,
) -> Result<(), JsonError> {
    if out.is_full() {
        out.count(scanner.skip()?);
        return Ok(());
    }
    let place = Place { content_start, start: out.len(), depth };
    match scanner.peek()? {
        Kind::String => place.put(Segment::Text(scanner.string()?), out),
        Kind::Object => {
            let begin = scanner.position();
            out.push(Segment::Part);
            let mut part = Part::default();
            scanner.object(|key, scanner| part.member(key, scanner, out, place))?;
            part.finish(out, place, scanner.since(begin));
        }
        _ => {
            out.push(Segment::Header(Header::Other, EMPTY));
            out.push(Segment::Json(scanner.skip()?));
        }
    }
    Ok(())
}

// === impl Place ===

impl Place {
    /// Puts `segment` here, behind a mark if it is not the first of its content.
    fn put<'a>(self, segment: Segment<'a>, out: &mut Segments<'a>) {
        out.truncate(self.start);
        if matches!(segment, Segment::Text(text) if text.raw_len() == 0) {
            return;
        }
        if self.start > self.content_start {
            out.push(Segment::Part);
        }
        out.push(segment);
    }
}

// === impl Part ===

impl<'a> Part<'a> {
    fn member(
        &mut self,
        key: RawStr<'a>,
        scanner: &mut Scanner<'a>,
        out: &mut Segments<'a>,
        place: Place,
    ) -> Result<(), JsonError> {
        match key.bytes().as_ref() {
            b"type" => self.kind = scanner.string_or_skip()?,
            b"text" | b"refusal" | b"thinking" => self.text = scanner.string_or_skip()?.or(self.text),
            b"image_url" | b"input_audio" | b"audio_url" | b"video_url" | b"file" | b"source" | b"image" | b"audio"
            | b"video" | b"image_embeds" | b"audio_embeds" | b"file_data" | b"file_url" => {
                self.media = media::read(scanner)?.or(self.media);
            }
            b"file_id" | b"uuid" => self.media_id = media::read(scanner)?.or(self.media_id),
            b"name" => self.name = scanner.string_or_skip()?,
            b"input" | b"arguments" => self.input = Some(text_or_json(scanner)?),
            b"content" if place.depth < MAX_PART_DEPTH => {
                out.truncate(place.start + 1);
                read_at(scanner, out, place.depth + 1)?;
            }
            b"content" => self.deep_content = Some(scanner.skip()?),
            _ => drop(scanner.skip()?),
        }
        Ok(())
    }

    /// Puts the part in its place; `json` is its text. What `content` held already stands behind the place.
    fn finish(self, out: &mut Segments<'a>, place: Place, json: &'a [u8]) {
        let kind = self.kind.unwrap_or(EMPTY);
        match (kind.bytes().as_ref(), self.text, self.media.or(self.media_id)) {
            (b"text" | b"input_text" | b"output_text" | b"refusal", Some(text), _) => {
                place.put(Segment::Text(text), out);
            }
            (b"tool_use" | b"server_tool_use" | b"mcp_tool_use" | b"function_call", _, _) => {
                out.truncate(place.start);
                out.push(Segment::Header(Header::Call, self.name.unwrap_or(EMPTY)));
                self.input.into_iter().for_each(|input| out.push(input));
            }
            (b"tool_result" | b"mcp_tool_result" | b"function_call_output", _, _) => {
                out.set(place.start, Segment::Header(Header::CallResult, EMPTY));
                self.deep_content.into_iter().for_each(|json| out.push(Segment::Json(json)));
            }
            (b"thinking", Some(text), _) => {
                out.truncate(place.start);
                out.push(Segment::Header(Header::Thinking, EMPTY));
                push_text(text, out);
            }
            (b"redacted_thinking", _, _) => out.truncate(place.start),
            (_, _, Some(digest)) => place.put(Segment::Media(digest), out),
            (_, Some(text), None) => place.put(Segment::Text(text), out),
            (_, None, None) => {
                out.truncate(place.start);
                out.push(Segment::Header(Header::Other, kind));
                out.push(Segment::Json(json));
            }
        }
    }
}
