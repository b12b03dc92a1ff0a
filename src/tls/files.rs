//! Files of a configuration, each read once, so that all who name one see the same content.
//!
//! A [`Stamp`] is taken before a file is read: one that changes meanwhile differs from its stamp afterwards, and is read
//! again. Links are followed, so that a swapped link is a change as well.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use xxhash_rust::xxh3::xxh3_128;

/// Largest file that is read. The certificates that a system trusts are about 220 KiB.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// What tells a file from the one that was there before: inode, seconds and nanoseconds of the last change, length.
pub(super) type Stamp = (u64, i64, i64, u64);

/// The stamps of files at one time; none for a file that is not there.
pub(super) type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

/// What was read.
#[derive(Default)]
pub(super) struct Files {
    read: BTreeMap<PathBuf, Result<Content, String>>,
    stamps: Stamps,
}

/// A file's content.
#[derive(Clone)]
pub(super) struct Content {
    bytes: Arc<[u8]>,
    /// Tells contents apart.
    pub(super) hash: u128,
}

/// The stamps that the files of `stamps` have now.
pub(super) fn stamps_now(stamps: &Stamps) -> Stamps {
    stamps.keys().map(|path| (path.clone(), stamp(path))).collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Asked before opening, since opening a named pipe would wait for its other end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes, the most that is read")));
    }
    Ok(bytes)
}

// === impl Files ===

impl Files {
    /// The content of the file at `path`, or why there is none.
    pub(super) fn content(&mut self, path: &Path) -> Result<Content, String> {
        if let Some(known) = self.read.get(path) {
            return known.clone();
        }
        self.stamps.insert(path.to_owned(), stamp(path));
        let content = read(path).map_err(|error| format!("cannot be read: {error}"));
        let content = content.map(|bytes| Content { hash: xxh3_128(&bytes), bytes: bytes.into() });
        self.read.insert(path.to_owned(), content.clone());
        content
    }

    /// The stamps of all files that were asked for, from before they were read.
    pub(super) fn stamps(&self) -> &Stamps {
        &self.stamps
    }
}

// === impl Content ===

impl Content {
    /// The certificates in it, one at least.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match found {
            Ok(none) if none.is_empty() => Err("holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)".into()),
            Ok(certificates) => Ok(certificates),
            Err(error) => Err(format!("is not whole PEM: {error}")),
        }
    }

    /// The first private key in it.
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, String> {
        use rustls::pki_types::pem::Error;
        match PrivateKeyDer::from_pem_slice(&self.bytes) {
            Ok(key) => Ok(key),
            Err(Error::NoItemsFound) if memchr::memmem::find(&self.bytes, b"BEGIN ENCRYPTED PRIVATE KEY").is_some() => {
                Err("is protected by a password; expected a key without one".into())
            }
            Err(Error::NoItemsFound) => Err("holds no private key in PEM form (-----BEGIN PRIVATE KEY-----)".into()),
            // Its text has no part of the file.
            Err(error) => Err(format!("is not whole PEM: {error}")),
        }
    }
}
