//! Conversations: chat messages, Anthropic messages and the items of a Responses `input`, in one reader, because an
//! engine brings all three into the same form before its template.
//!
//! Within a message the order is fixed (name, thinking, content, calls) whatever order its members came in. `content`
//! is read in place; `tool_calls` is the one member kept aside and read again at the message's end.

use super::content::{self, EMPTY};
use super::json::{JsonError, Kind, RawStr, Scanner};
use super::prompt::{Header, Segment, Segments};

/// The members of one message or item besides its content, whichever came last.
#[derive(Default)]
struct Message<'a> {
    kind: Option<RawStr<'a>>,
    role: Option<RawStr<'a>>,
    name: Option<RawStr<'a>>,
    thinking: Option<RawStr<'a>>,
    arguments: Option<Segment<'a>>,
    calls: Option<&'a [u8]>,
}

/// Reads a list of messages or items; a string is one message of the user.
pub(super) fn read<'a>(scanner: &mut Scanner<'a>, out: &mut Segments<'a>) -> Result<(), JsonError> {
    match scanner.peek()? {
        Kind::Array => scanner.array(|scanner| read_message(scanner, out)),
        Kind::String => read_as(RawStr::plain("user"), scanner, out),
        _ => scanner.skip().map(drop),
    }
}

/// Reads content (a string or parts) as a message of `role`; none if it says nothing.
pub(super) fn read_as<'a>(
    role: RawStr<'static>,
    scanner: &mut Scanner<'a>,
    out: &mut Segments<'a>,
) -> Result<(), JsonError> {
    let start = out.len();
    out.push(Segment::Header(Header::Message, role));
    content::read(scanner, out)?;
    if out.len() == start + 1 {
        out.truncate(start);
    }
    Ok(())
}

fn read_message<'a>(scanner: &mut Scanner<'a>, out: &mut Segments<'a>) -> Result<(), JsonError> {
    if out.is_full() {
        out.count(scanner.skip()?);
        return Ok(());
    }
    let start = out.len();
    if scanner.peek()? != Kind::Object {
        out.push(Segment::Header(Header::Other, EMPTY));
        out.push(Segment::Json(scanner.skip()?));
        return Ok(());
    }
    // The header's place; what it says is known at the end.
    out.push(Segment::Part);
    let begin = scanner.position();
    let mut message = Message::default();
    scanner.object(|key, scanner| message.member(key, scanner, out, start))?;
    message.finish(out, start, scanner.since(begin))
}

// === impl Message ===

impl<'a> Message<'a> {
    fn member(
        &mut self,
        key: RawStr<'a>,
        scanner: &mut Scanner<'a>,
        out: &mut Segments<'a>,
        start: usize,
    ) -> Result<(), JsonError> {
        match key.bytes().as_ref() {
            b"role" => self.role = scanner.string_or_skip()?,
            b"type" => self.kind = scanner.string_or_skip()?,
            b"name" => self.name = scanner.string_or_skip()?,
            // `output` is the content of a Responses item that holds a tool's result.
            b"content" | b"output" => {
                out.truncate(start + 1);
                content::read(scanner, out)?;
            }
            b"reasoning_content" | b"reasoning" => self.thinking = scanner.string_or_skip()?,
            b"arguments" | b"input" => self.arguments = Some(content::text_or_json(scanner)?),
            b"tool_calls" | b"function_call" => self.calls = Some(scanner.skip()?),
            _ => drop(scanner.skip()?),
        }
        Ok(())
    }

    /// Completes the message that begins at `start`; `json` is its text. Its content already stands behind `start`.
    fn finish(&self, out: &mut Segments<'a>, start: usize, json: &'a [u8]) -> Result<(), JsonError> {
        let kind = self.kind.unwrap_or(EMPTY);
        let name = self.name.unwrap_or(EMPTY);
        match kind.bytes().as_ref() {
            b"function_call" | b"custom_tool_call" => {
                out.truncate(start);
                out.push(Segment::Header(Header::Call, name));
                self.arguments.iter().for_each(|arguments| out.push(*arguments));
            }
            b"function_call_output" | b"custom_tool_call_output" => {
                out.set(start, Segment::Header(Header::CallResult, EMPTY));
            }
            b"reasoning" => out.set(start, Segment::Header(Header::Thinking, EMPTY)),
            b"" | b"message" => self.finish_message(out, start)?,
            _ if self.role.is_some() => self.finish_message(out, start)?,
            _ => {
                out.truncate(start);
                out.push(Segment::Header(Header::Other, kind));
                out.push(Segment::Json(json));
            }
        }
        Ok(())
    }

    fn finish_message(&self, out: &mut Segments<'a>, start: usize) -> Result<(), JsonError> {
        out.set(start, Segment::Header(Header::Message, self.role.unwrap_or(EMPTY)));
        let mut before_content = start + 1;
        if let Some(name) = self.name {
            out.insert(before_content, Segment::Header(Header::Name, name));
            before_content += 1;
        }
        if let Some(thinking) = self.thinking.filter(|thinking| thinking.raw_len() > 0) {
            out.insert(before_content, Segment::Header(Header::Thinking, EMPTY));
            out.insert(before_content + 1, Segment::Text(thinking));
            // Ends the thinking: without this its text would run on into the content's.
            out.insert(before_content + 2, Segment::Part);
        }
        self.calls.map_or(Ok(()), |calls| read_calls(&mut Scanner::of_value(calls), out))
    }
}

fn read_calls<'a>(scanner: &mut Scanner<'a>, out: &mut Segments<'a>) -> Result<(), JsonError> {
    match scanner.peek()? {
        Kind::Array => scanner.array(|scanner| {
            if out.is_full() {
                out.count(scanner.skip()?);
                return Ok(());
            }
            read_call(scanner, out)
        }),
        _ => read_call(scanner, out),
    }
}

/// Reads one call: `{"function": {"name", "arguments"}}`, or the inner object alone.
fn read_call<'a>(scanner: &mut Scanner<'a>, out: &mut Segments<'a>) -> Result<(), JsonError> {
    let mut name = EMPTY;
    let mut arguments = None;
    let is_call = scanner.peek()? == Kind::Object;
    call_members(scanner, &mut name, &mut arguments, true)?;
    if is_call {
        out.push(Segment::Header(Header::Call, name));
        arguments.into_iter().for_each(|arguments| out.push(arguments));
    }
    Ok(())
}

fn call_members<'a>(
    scanner: &mut Scanner<'a>,
    name: &mut RawStr<'a>,
    arguments: &mut Option<Segment<'a>>,
    is_outer: bool,
) -> Result<(), JsonError> {
    if scanner.peek()? != Kind::Object {
        return scanner.skip().map(drop);
    }
    scanner.object(|key, scanner| {
        match key.bytes().as_ref() {
            b"function" | b"custom" if is_outer => call_members(scanner, name, arguments, false)?,
            b"name" => *name = scanner.string_or_skip()?.unwrap_or(EMPTY),
            b"arguments" | b"input" => *arguments = Some(content::text_or_json(scanner)?),
            _ => drop(scanner.skip()?),
        }
        Ok(())
    })
}
