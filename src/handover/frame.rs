//! Messages on a stream: their length as four bytes, little endian, then JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message, bytes: many times that of 33 listeners.
pub(crate) const MAX_BYTES: usize = 64 * 1024;

/// Bytes of a length.
pub(crate) const LENGTH_BYTES: usize = 4;

/// A message as it goes over the stream.
///
/// # Errors
/// When it is longer than [`MAX_BYTES`].
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).ok().filter(|_| text.len() <= MAX_BYTES).ok_or_else(too_long)?;
    Ok([&length.to_le_bytes()[..], &text].concat())
}

/// The length of the message that these bytes announce.
///
/// # Errors
/// When it is longer than [`MAX_BYTES`].
pub(crate) fn length(bytes: [u8; LENGTH_BYTES]) -> io::Result<usize> {
    let length = usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| too_long())?;
    if length <= MAX_BYTES { Ok(length) } else { Err(too_long()) }
}

/// The message in these bytes.
///
/// # Errors
/// When it is none of this kind.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(bytes)?)
}

/// Reads the next message.
///
/// # Errors
/// As the stream, and where it holds something else.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut head = [0; LENGTH_BYTES];
    from.read_exact(&mut head)?;
    let mut body = vec![0; length(head)?];
    from.read_exact(&mut body)?;
    decode(&body)
}

/// Writes a message.
///
/// # Errors
/// As the stream, and where it is too long.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message)?)
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of more than {MAX_BYTES} bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::config;

    proptest! {
        #![proptest_config(config(64))]

        #[test]
        fn what_is_written_is_read(messages in prop::collection::vec(".{0,200}", 0..5)) {
            let mut stream = Vec::new();
            for message in &messages {
                write(&mut stream, message).unwrap();
            }
            let mut rest = &stream[..];
            for message in &messages {
                prop_assert_eq!(&read::<String>(&mut rest).unwrap(), message);
            }
            prop_assert!(read::<String>(&mut rest).is_err(), "nothing is left");
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = read::<serde_json::Value>(&mut &bytes[..]);
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_it_is_believed() {
        let bytes = [u32::MAX.to_le_bytes().as_slice(), b"{}"].concat();
        assert!(read::<serde_json::Value>(&mut &bytes[..]).unwrap_err().to_string().contains("65536"));
        assert!(encode(&"x".repeat(MAX_BYTES)).is_err(), "the quotes make it longer than that");
        assert!(encode(&"x".repeat(MAX_BYTES - 2)).is_ok());
    }
}
