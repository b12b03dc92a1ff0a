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

/// The syllables that texts are made of.
pub(crate) fn syllables() -> impl Iterator<Item = String> {
    ONSETS.iter().flat_map(|&onset| VOWELS.iter().map(move |&vowel| [onset, vowel].map(char::from).iter().collect()))
}

/// The part of `text` that token number `index` of `tokens` brings: the text in equal parts, whatever its ids are.
pub(super) fn token(text: &str, index: u32, tokens: u64) -> &str {
    let bytes = text.len() as u64;
    let end = |index: u64| (index * bytes / tokens.max(1)) as usize;
    text.get(end(index.into())..end(u64::from(index) + 1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_a_text_make_up_the_text() {
        let text = write(7, 33);
        assert_eq!((0..33).map(|index| token(&text, index, 33)).collect::<String>(), text);
        assert!((0..33).all(|index| token(&text, index, 33).len() == TOKEN_BYTES));
        assert_eq!((text.len(), token(&text, 33, 33)), (132, ""));
        assert_eq!((0..7).map(|index| token("some words", index, 7)).collect::<String>(), "some words");
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(write(1, 50), write(1, 50));
        assert_ne!(write(1, 50), write(2, 50));
    }
}
