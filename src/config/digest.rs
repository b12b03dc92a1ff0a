//! The digest of an API key, as the file of keys has it.
//!
//! A key is a random token, so nobody can try all of them and a fast hash (SHA-256) hides it well. The slow hashes for
//! passwords, as argon2, make guesses expensive where there are few to try; here they would only let strangers make this
//! process work.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What a digest is written with.
const PREFIX: &str = "sha256:";

/// The SHA-256 of a key. Written as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

/// A text that is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not `sha256:` and 64 hexadecimal digits")]
pub struct NotADigest;

// === impl KeyDigest ===

impl KeyDigest {
    /// The digest of `key`.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Whether the two are equal, in a time that does not tell where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Cut: a whole digest in a log would let its reader confirm a guess.
impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyDigest({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

impl FromStr for KeyDigest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == 64).ok_or(NotADigest)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(NotADigest);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).map_err(|_| NotADigest)?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_sha256sum_and_reads_back() {
        let digest = KeyDigest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.to_uppercase().replace("SHA256", "sha256").parse(), Ok(digest));
        assert!(digest.matches(&KeyDigest::of(b"abc")) && !digest.matches(&KeyDigest::of(b"abd")));
        assert!(!format!("{digest:?}").contains("8f01cfea"), "a debug print shows it whole");
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let good = KeyDigest::of(b"abc").to_string();
        for wrong in ["", "sha256:", &good[7..], &good[..70], &good.replace('b', "g"), &good.replace("ba", "ä")] {
            assert_eq!(wrong.parse::<KeyDigest>(), Err(NotADigest), "{wrong}");
        }
    }
}
