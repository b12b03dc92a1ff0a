//! Files that operators name, where anything may stand by mistake: only regular ones are read, and no more than can be good.
//! A reload that waits for the other end of a named pipe, or takes in a device without end, would be the last one.

use std::io::{self, Read};
use std::path::Path;

use super::tree::MAX_TEXT_BYTES;

/// Whether there is a regular file. To be asked before opening, since opening a named pipe waits for its other end.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_file() { Ok(()) } else { Err(io::Error::other("not a regular file")) }
}

/// As much of it as a good file can have, and a byte more where it has more.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_read() {
        for path in ["/dev/zero", "/dev/null", "/"] {
            assert!(read(Path::new(path)).is_err(), "{path}");
        }
        assert!(read(&std::env::current_exe().unwrap()).unwrap().len() == MAX_TEXT_BYTES + 1);
    }
}
