//! Text that looks like what people send: words, sentences, and now and then something that JSON escapes. The same every
//! time.

/// The words there are. The tokenizer of the bench has a token for each.
#[rustfmt::skip]
pub(crate) const WORDS: [&str; 96] = [
    "the", "of", "and", "to", "in", "that", "is", "for", "it", "with", "as", "was", "on", "be", "at", "by", "this",
    "which", "from", "or", "have", "an", "they", "one", "had", "not", "but", "what", "all", "were", "when", "there",
    "can", "more", "if", "no", "out", "so", "said", "about", "up", "into", "than", "them", "other", "time", "some",
    "could", "these", "two", "may", "then", "first", "any", "only", "new", "now", "such", "like", "our", "over",
    "even", "most", "also", "after", "before", "through", "where", "many", "should", "because", "between", "people",
    "system", "question", "answer", "document", "number", "company", "water", "house", "program", "example",
    "interest", "service", "history", "research", "language", "experience", "important", "different", "following",
    "government", "information", "development", "understand",
];

/// So many bytes of text as they stand in a JSON string, ending between two characters.
pub(crate) fn escaped(rng: &mut fastrand::Rng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    let mut words_left = rng.usize(4..18);
    while text.len() < bytes {
        if words_left == 0 {
            text.push_str(match rng.u8(..) {
                0..160 => ". ",
                160..230 => ".\\n",
                230.. => ". \\\"So\\\" ",
            });
            words_left = rng.usize(4..18);
        }
        text.push_str(if rng.u8(..) > 250 { "café" } else { WORDS[rng.usize(..WORDS.len())] });
        text.push(' ');
        words_left -= 1;
    }
    // The last word may be cut; an escape may not.
    let end = text[..text.floor_char_boundary(bytes)].rfind(' ').map_or(0, |space| space + 1);
    text.truncate(end);
    text.extend(std::iter::repeat_n('a', bytes - end));
    text
}
