//! What can be amid a text and not end it: escapes of two bytes and characters of two or three, known and crossed out without a
//! branch for each. In what people write none is foreseen, and to have foreseen one wrongly takes as long as some blocks do.

use super::marks::BLOCK_BYTES;

/// A block, and how far an event of it can reach.
pub(super) type Piece = [u8; BLOCK_BYTES + 2];

/// The last place where an event can start and end within the block, whatever it is.
pub(super) const MAX_START: usize = BLOCK_BYTES - 3;

/// Events of a block that are crossed out without a branch. Few blocks of prose have more, and those have one branch.
const USUAL_EVENTS: usize = 2;

/// Kinds of events, a bit each.
pub(super) type Kinds = u8;

/// A backslash and a byte, which is marked too or not. None has another form as short.
const ESCAPED_MARK: Kinds = 1;
const ESCAPED_LETTER: Kinds = 1 << 1;
pub(super) const ESCAPE: Kinds = ESCAPED_MARK | ESCAPED_LETTER;
const TWO_BYTES: Kinds = 1 << 2;
/// Of three bytes, by which second bytes are well-formed (Unicode 17.0, table 3-7).
const E0: Kinds = 1 << 3;
const E1_TO_EF: Kinds = 1 << 4;
const ED: Kinds = 1 << 5;
const THREE_BYTES: Kinds = E0 | E1_TO_EF | ED;

/// The kinds that have this byte first, second or third; a kind without a third has any.
static FIRST: [Kinds; 256] = {
    let mut kinds = [0; 256];
    kinds[b'\\' as usize] = ESCAPE;
    add(&mut kinds, 0xC2, 0xDF, TWO_BYTES);
    add(&mut kinds, 0xE1, 0xEF, E1_TO_EF);
    kinds[0xE0] = E0;
    kinds[0xED] = ED;
    kinds
};

static SECOND: [Kinds; 256] = {
    let mut kinds = [0; 256];
    let (letters, mut at) = (b"bfnrt", 0);
    while at < letters.len() {
        kinds[letters[at] as usize] = ESCAPED_LETTER;
        at += 1;
    }
    kinds[b'"' as usize] = ESCAPED_MARK;
    kinds[b'\\' as usize] = ESCAPED_MARK;
    add(&mut kinds, 0x80, 0xBF, TWO_BYTES | E1_TO_EF);
    add(&mut kinds, 0xA0, 0xBF, E0);
    add(&mut kinds, 0x80, 0x9F, ED);
    kinds
};

static THIRD: [Kinds; 256] = {
    let mut kinds = [ESCAPE | TWO_BYTES; 256];
    add(&mut kinds, 0x80, 0xBF, THREE_BYTES);
    kinds
};

/// The marks that an event alone has, by its kind.
static RUN: [u64; 256] = {
    let mut runs = [0; 256];
    runs[ESCAPED_LETTER as usize] = 0b1;
    runs[ESCAPED_MARK as usize] = 0b11;
    runs[TWO_BYTES as usize] = 0b11;
    runs[E0 as usize] = 0b111;
    runs[E1_TO_EF as usize] = 0b111;
    runs[ED as usize] = 0b111;
    runs
};

const fn add(kinds: &mut [Kinds; 256], first: usize, last: usize, kind: Kinds) {
    let mut at = first;
    while at <= last {
        kinds[at] |= kind;
        at += 1;
    }
}

/// Whether an escape of this byte is of the kind that is crossed out.
pub(super) fn is_short_escape(second: u8) -> bool {
    SECOND[usize::from(second)] & ESCAPE != 0
}

/// The kind of event that these bytes begin with, 0 if they do not.
#[inline(always)]
fn kind(first: u8, second: u8, third: u8) -> Kinds {
    FIRST[usize::from(first)] & SECOND[usize::from(second)] & THIRD[usize::from(third)]
}

/// The marks without those of the first four events, and the kinds that these were of. What is left begins with something else, or
/// with an event that is one too many, stands at another or may reach over the end.
#[inline(always)]
pub(super) fn cross_out(piece: &Piece, marked: u64) -> (u64, Kinds) {
    let (left, strange, kinds) = cross_out_some(piece, marked);
    if left == 0 {
        return (strange, kinds);
    }
    let (left, more_strange, more_kinds) = cross_out_some(piece, left);
    (left | strange | more_strange, kinds | more_kinds)
}

#[inline(always)]
fn cross_out_some(piece: &Piece, mut marked: u64) -> (u64, u64, Kinds) {
    const STARTS: u64 = u64::MAX >> (BLOCK_BYTES - 1 - MAX_START);
    let (mut strange, mut kinds) = (0, 0);
    for _ in 0..USUAL_EVENTS {
        // Without any left this is no bit, and what is said of the first byte changes nothing.
        let starts = marked & STARTS;
        let first = starts & starts.wrapping_neg();
        let at = starts.trailing_zeros() as usize % BLOCK_BYTES;
        let kind = kind(piece[at], piece[at + 1], piece[at + 2]);
        // A sum carries through the run of marks, so that where the next one is does not wait for what this one is.
        let left = marked & marked.wrapping_add(first);
        strange |= if (marked ^ left) >> at == RUN[usize::from(kind)] { 0 } else { first };
        kinds |= kind;
        marked = left;
    }
    (marked, strange, kinds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::json::marks::{marks, not_plain};

    /// The bytes of the event at the start, by other means.
    fn event_bytes(bytes: [u8; 3]) -> Option<usize> {
        if bytes[0] == b'\\' {
            return br#""\bfnrt"#.contains(&bytes[1]).then_some(2);
        }
        (2..=3).find(|&len| {
            let text = std::str::from_utf8(&bytes[..len]);
            text.is_ok_and(|text| text.chars().count() == 1)
        })
    }

    #[test]
    fn an_event_is_what_utf8_and_json_say() {
        let thirds = [0, b'"', b'\\', b'a', 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF];
        for (first, second) in (0..=255).flat_map(|first| (0..=255).map(move |second| (first, second))) {
            for third in thirds {
                let kind = kind(first, second, third);
                assert!(kind.count_ones() <= 1, "{first:x} {second:x} {third:x}");
                assert_eq!(kind != 0, event_bytes([first, second, third]).is_some(), "{first:x} {second:x} {third:x}");
            }
        }
    }

    #[test]
    fn what_is_left_begins_with_the_first_that_is_no_event_of_its_own() {
        let cases: [(&[u8], usize); 9] = [
            (b"plain", 64),
            (br"one\nand two\t", 64),
            ("é, \u{2014} and \\\"".as_bytes(), 64),
            (br"a\nb\nc\nd\ne\nf", 13),
            (br#"a\nb""#, 4),
            (br#"a\"""#, 1),
            (b"a\x01\\n", 1),
            (b"a\xC3\\n", 1),
            (br"a\u00e9", 1),
        ];
        for (text, left) in cases {
            let mut piece = [b' '; BLOCK_BYTES + 2];
            piece[..text.len()].copy_from_slice(text);
            let marked = marks(&piece[..BLOCK_BYTES], 0, not_plain).unwrap();
            assert_eq!(cross_out(&piece, marked).0.trailing_zeros() as usize, left, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn an_event_near_the_end_is_left() {
        for start in 50..BLOCK_BYTES {
            let mut piece = [b' '; BLOCK_BYTES + 2];
            piece[start..start + 2].copy_from_slice(br"\n");
            let (left, kinds) = cross_out(&piece, 1 << start);
            let is_near = start > MAX_START;
            assert_eq!((left, kinds & ESCAPE != 0), (u64::from(is_near) << start, !is_near), "{start}");
        }
    }
}
