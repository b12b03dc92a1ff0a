//! What is wrong with the files of TLS.

use std::fmt;
use std::path::{Path, PathBuf};

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key of the configuration that names it, such as `listeners[0].tls.certificate`.
    pub key: String,
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it, and what would be right.
    pub what: String,
}

/// Every file that cannot be used; one at least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

// === impl Fault ===

impl Fault {
    pub(super) fn new(key: &str, file: &Path, what: impl fmt::Display) -> Self {
        Self { key: key.to_owned(), file: file.to_owned(), what: what.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.key, self.file.display(), self.what)
    }
}

// === impl Faults ===

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
