//! New API keys.

use std::fmt::Write as _;

/// Shortest key that is taken for one, bytes: 22 letters and digits at random have 128 bits. Shorter ones can be guessed.
pub const MIN_KEY_BYTES: usize = 22;

/// The randomness of a new key, bytes.
const RANDOM_BYTES: usize = 32;

/// What new keys begin with, by which scanners for leaked secrets can know them.
const PREFIX: &str = "wg-";

/// A new key: 256 bits from the system, in hexadecimal.
///
/// # Errors
/// When the system has no randomness to give.
pub fn new_key() -> Result<String, getrandom::Error> {
    let mut random = [0_u8; RANDOM_BYTES];
    getrandom::fill(&mut random)?;
    let mut key = String::from(PREFIX);
    for byte in random {
        // A String takes any text.
        let _ = write!(key, "{byte:02x}");
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_are_long_and_differ() {
        let (one, two) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(one, two);
        assert!(one.starts_with("wg-") && one.len() == 67 && one.len() >= MIN_KEY_BYTES, "{} bytes", one.len());
    }
}
