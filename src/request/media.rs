//! Images, audio, video and files: what stands for them in a prompt.
//!
//! The same picture must give the same digest wherever it comes in a conversation, so it is made of the content (or of
//! the URL or id that names it) and of nothing around it: not `detail`, `format` or `cache_control`. 128 bits of
//! xxh3, because a digest decides over every block after it.

use xxhash_rust::xxh3::Xxh3;

use super::canon;
use super::json::{JsonError, Kind, RawStr, Scanner};
use super::writer::Writer;

/// Reads a value that holds or names media; its digest, or nothing for `null`.
pub(super) fn read(scanner: &mut Scanner<'_>) -> Result<Option<[u8; 16]>, JsonError> {
    match scanner.peek()? {
        Kind::String => scanner.string().map(|content| Some(of_string(content))),
        Kind::Object => of_object(scanner).map(Some),
        Kind::Array => scanner.skip().map(|value| Some(of_json(value))),
        Kind::Number | Kind::Literal => scanner.skip().map(|_| None),
    }
}

/// The digest of the member that holds the content; of the whole object if there is none.
fn of_object(scanner: &mut Scanner<'_>) -> Result<[u8; 16], JsonError> {
    let start = scanner.position();
    let mut digest = None;
    scanner.object(|key, scanner| {
        match key.bytes().as_ref() {
            b"url" | b"data" | b"file_data" | b"file_id" | b"file_url" => {
                digest = scanner.string_or_skip()?.map(of_string).or(digest);
            }
            _ => drop(scanner.skip()?),
        }
        Ok(())
    })?;
    Ok(digest.unwrap_or_else(|| of_json(scanner.since(start))))
}

fn of_string(content: RawStr<'_>) -> [u8; 16] {
    digest(|out| content.write(out))
}

fn of_json(value: &[u8]) -> [u8; 16] {
    digest(|out| canon::write(value, canon::Keep::All, out))
}

fn digest(write: impl FnOnce(&mut Writer<'_, &mut dyn FnMut(&[u8])>)) -> [u8; 16] {
    let mut hasher = Xxh3::new();
    let mut update = |piece: &[u8]| hasher.update(piece);
    let mut sink: &mut dyn FnMut(&[u8]) = &mut update;
    let mut out = Writer::new(&mut sink);
    write(&mut out);
    out.finish();
    hasher.digest128().to_le_bytes()
}
