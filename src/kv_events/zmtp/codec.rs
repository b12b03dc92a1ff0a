//! Greeting, frames and commands as bytes. Nothing is allocated by a length that is only claimed.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Error;

pub(super) const GREETING_BYTES: usize = 64;

const HAS_MORE: u8 = 1;
const IS_LONG: u8 = 2;
const IS_COMMAND: u8 = 4;

/// What both sides say first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Greeting {
    major: u8,
    minor: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) is_command: bool,
    pub(super) has_more: bool,
    pub(super) body: Bytes,
}

// === impl Greeting ===

impl Greeting {
    pub(super) const OURS: Self = Self { major: 3, minor: 1 };

    pub(super) fn bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[0] = 0xff;
        // The last byte of a length that only peers of version 1 read.
        bytes[8] = 1;
        bytes[9] = 0x7f;
        bytes[10] = self.major;
        bytes[11] = self.minor;
        bytes[12..16].copy_from_slice(b"NULL");
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let &[0xff, _, _, _, _, _, _, _, _, 0x7f, major, minor, ..] = bytes else {
            return Err(Error::Protocol("what answers there does not speak ZMTP"));
        };
        if major < 3 {
            return Err(Error::Protocol("the engine speaks ZMTP of before version 3"));
        }
        if bytes.get(12..17) != Some(b"NULL\0") {
            return Err(Error::Protocol("the engine wants a security mechanism other than NULL"));
        }
        Ok(Self { major, minor })
    }

    /// Whether it knows SUBSCRIBE and PING: those came with 3.1.
    pub(super) fn knows_commands(self) -> bool {
        (self.major, self.minor) >= (3, 1)
    }
}

/// The first whole frame of `input`, if there is one.
pub(super) fn take_frame(input: &mut BytesMut, max_body: usize, max_command: usize) -> Result<Option<Frame>, Error> {
    let Some(&flags) = input.first() else { return Ok(None) };
    if flags & !(HAS_MORE | IS_LONG | IS_COMMAND) != 0 || flags & (HAS_MORE | IS_COMMAND) == HAS_MORE | IS_COMMAND {
        return Err(Error::Protocol("a frame has flags that ZMTP does not know"));
    }
    let is_command = flags & IS_COMMAND != 0;
    let (header, length) = if flags & IS_LONG != 0 {
        let Some(length) = input.get(1..9) else { return Ok(None) };
        (9, length.iter().fold(0, |length: u64, &byte| length << 8 | u64::from(byte)))
    } else {
        let Some(&length) = input.get(1) else { return Ok(None) };
        (2, u64::from(length))
    };
    let max = if is_command { max_command } else { max_body };
    let Some(length) = usize::try_from(length).ok().filter(|&length| length <= max) else {
        return Err(Error::Protocol("a message is larger than 32 MiB, or a command than 64 KiB"));
    };
    if input.len() < header + length {
        return Ok(None);
    }
    input.advance(header);
    let body = input.split_to(length).freeze();
    Ok(Some(Frame { is_command, has_more: flags & HAS_MORE != 0, body }))
}

pub(super) fn put_frame(output: &mut BytesMut, body: &[u8], has_more: bool) {
    put_header(output, if has_more { HAS_MORE } else { 0 }, body.len());
    output.put_slice(body);
}

fn put_header(output: &mut BytesMut, flags: u8, length: usize) {
    match u8::try_from(length) {
        Ok(length) => output.put_slice(&[flags, length]),
        Err(_) => {
            output.put_u8(flags | IS_LONG);
            output.put_u64(length as u64);
        }
    }
}

/// A command with a body of its own form.
pub(super) fn put_command(output: &mut BytesMut, name: &str, body: &[u8]) {
    put_header(output, IS_COMMAND, 1 + name.len() + body.len());
    output.put_u8(name.len() as u8);
    output.put_slice(name.as_bytes());
    output.put_slice(body);
}

/// A property of a READY command.
pub(super) fn put_property(body: &mut Vec<u8>, name: &str, value: &str) {
    body.push(name.len() as u8);
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(&(value.len() as u32).to_be_bytes());
    body.extend_from_slice(value.as_bytes());
}

/// A command's name and what follows it.
pub(super) fn command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = body.split_first()?;
    rest.split_at_checked(length.into())
}

/// A property of a READY command, by its name in any case.
pub(super) fn property<'a>(mut properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (&length, rest) = properties.split_first()?;
        let (found, rest) = rest.split_at_checked(length.into())?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if found.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        properties = rest;
    }
}
