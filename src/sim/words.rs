//! Generated text: pseudo-words, the same for the same seed, four bytes a token.

use super::prompt::TOKEN_BYTES;

const ONSETS: &[u8] = b"bdfgklmnprstvz";
const VOWELS: &[u8] = b"aeiou";

/// `tokens` tokens of text, ASCII letters and spaces only.
pub(super) fn write(seed: u64, tokens: u32) -> String {
    let bytes = tokens as usize * TOKEN_BYTES;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        for _ in 0..rng.usize(1..4) {
            text.push(char::from(ONSETS[rng.usize(..ONSETS.len())]));
            text.push(char::from(VOWELS[rng.usize(..VOWELS.len())]));
        }
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

/// The text of token number `index`.
pub(super) fn token(text: &str, index: u32) -> &str {
    let start = index as usize * TOKEN_BYTES;
    text.get(start..start + TOKEN_BYTES).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_a_text_make_up_the_text() {
        let text = write(7, 33);
        assert_eq!((0..33).map(|index| token(&text, index)).collect::<String>(), text);
        assert_eq!((text.len(), token(&text, 33)), (132, ""));
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(write(1, 50), write(1, 50));
        assert_ne!(write(1, 50), write(2, 50));
    }
}
