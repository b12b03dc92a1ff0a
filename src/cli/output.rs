//! Standard output, where the results of commands go.
//!
//! `println!` panics when its reader has gone, as `head` does, or when the disk is full; this does not.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a result and the end of its line. A reader that has gone had all it wanted: the rest is lost without a word.
///
/// # Errors
/// When it cannot be written for another reason, such as a full disk; the error names the standard output.
pub(crate) fn print(text: impl Display) -> io::Result<()> {
    write(&mut io::stdout().lock(), text)
}

fn write(out: &mut impl Write, text: impl Display) -> io::Result<()> {
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(io::Error::new(error.kind(), format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what it is given, and fails when that has to go out.
    struct Failing(Vec<u8>, io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.1.into())
        }
    }

    #[test]
    fn a_result_is_a_line() {
        let mut out = Vec::new();
        write(&mut out, "a").unwrap();
        assert_eq!(out, b"a\n");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        write(&mut Failing(Vec::new(), io::ErrorKind::BrokenPipe), "a").unwrap();
        let refused = write(&mut Failing(Vec::new(), io::ErrorKind::StorageFull), "a").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert!(refused.to_string().starts_with("standard output: "), "{refused}");
    }
}
