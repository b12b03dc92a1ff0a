use super::*;
use proptest::prelude::*;

use super::string::Escapes;
use crate::request::writer::Writer;
use crate::testing::config;
use serde::Deserialize;

/// Whether this scanner takes `input` as one whole document.
fn accepts(input: &[u8]) -> bool {
    check(input).is_ok()
}

fn check(input: &[u8]) -> Result<(), JsonError> {
    let mut scanner = Scanner::new(input);
    scanner.skip()?;
    scanner.end()
}

/// Whether serde_json does, on input that is UTF-8 as a whole (it checks only strings it builds).
fn reference_accepts(input: &[u8]) -> bool {
    let input = input.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(input);
    std::str::from_utf8(input).is_ok() && serde_json::from_slice::<serde::de::IgnoredAny>(input).is_ok()
}

fn first_string(input: &[u8]) -> RawStr<'_> {
    Scanner::new(input).string().unwrap()
}

/// A JSON text with every kind of value, odd spacing and escapes.
fn any_json() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("-0.0e+10".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        "\"(\\\\[\"\\\\/bfnrt]|\\\\u00[0-9a-fA-F]{2}|[a-z]{0,40}|é)*\"",
    ];
    scalar.prop_recursive(5, 40, 6, |inner| {
        let space = prop_oneof![Just(""), Just(" "), Just("\r\n\t ")];
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..6), space.clone())
                .prop_map(|(items, space)| format!("[{space}{}{space}]", items.join(&format!("{space},")))),
            (prop::collection::vec(("[a-c]{1,2}", inner), 0..6), space).prop_map(|(members, space)| {
                let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\"{space}:{value}")).collect();
                format!("{{{space}{}}}", members.join(&format!(",{space}")))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn valid_json_is_accepted_and_its_text_returned(json in any_json()) {
        prop_assert!(reference_accepts(json.as_bytes()), "the generator makes JSON: {json}");
        let padded = format!(" {json}\n");
        let mut scanner = Scanner::new(padded.as_bytes());
        prop_assert_eq!(scanner.skip().unwrap(), json.as_bytes());
        prop_assert_eq!(scanner.end(), Ok(()));
    }

    #[test]
    fn mutated_json_is_judged_as_serde_json_judges_it(
        json in any_json(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..4),
    ) {
        let mut bytes = json.into_bytes();
        for (index, byte, how) in edits {
            let at = index.index(bytes.len() + 1).min(bytes.len().saturating_sub(1));
            match how {
                0 if !bytes.is_empty() => bytes[at] = byte,
                1 if !bytes.is_empty() => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"{}[]\",:\\u0-.e tfn\x1F"[usize::from(byte) % 18]),
            }
        }
        prop_assert_eq!(accepts(&bytes), reference_accepts(&bytes), "{:?}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_bytes_are_judged_as_serde_json_judges_them(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(accepts(&bytes), reference_accepts(&bytes));
    }

    #[test]
    fn json_like_bytes_are_judged_as_serde_json_judges_them(
        bytes in prop::collection::vec(prop::sample::select(b"{}[]\"\",,::\\\\u01d8-+.eEtruefalsn \n\x00".to_vec()), 0..24),
    ) {
        prop_assert_eq!(accepts(&bytes), reference_accepts(&bytes), "{:?}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_string_is_what_serde_json_reads(text in any::<String>(), pad in "[ -!#-\\[\\]-~]{0,200}", ascii in any::<bool>()) {
        let text = pad + &text;
        let mut json = serde_json::to_string(&text).unwrap();
        if ascii {
            json = json.chars().map(|c| if c.is_ascii() { c.to_string() } else {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect()
            }).collect();
        }
        let read = first_string(json.as_bytes());
        prop_assert_eq!(read.bytes(), text.as_bytes());
        prop_assert_eq!(read.text(), text.as_str());
    }

    /// Against a reader that takes byte after byte, and looks at the text as a whole at the end.
    #[test]
    fn a_string_ends_where_byte_after_byte_says(
        pieces in prop::collection::vec(prop_oneof![
            6 => (1..90_usize).prop_map(|count| vec![b'x'; count]),
            4 => prop::sample::select(vec!["\\n", "\\\"", "\\\\", "\\/", "\\u00e9", "é", "—", "\u{800}", "\u{d7ff}", "😀", "\u{7f}\u{80}"]).prop_map(Vec::from),
            2 => ("[é漢😀]{1,40}").prop_map(Vec::from),
            1 => prop::sample::select(vec![&b"\xff"[..], b"\x80", b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\\x", b"\xc3", b"\xed\xa0\x80", b"\xe6\xbc", b"\x01", b"\""]).prop_map(Vec::from),
        ], 0..24),
        start in 0..3_usize,
        mut crowd in passing::tests::any_crowd(),
    ) {
        let input = [vec![b'!'; start], pieces.concat(), b"\"".to_vec()].concat();
        let (mut end, mut escapes) = (start, Escapes::None);
        while let Some((step, kind)) = match (input.get(end), input.get(end + 1)) {
            (Some(b'\\'), Some(b'u' | b'/')) => Some((2, Escapes::Variant)),
            (Some(b'\\'), Some(b'n' | b'"' | b'\\')) => Some((2, Escapes::Short)),
            (Some(b'\\' | b'"' | 0..0x20) | None, _) => None,
            _ => Some((1, Escapes::None)),
        } {
            (end, escapes) = (end + step, escapes.max(kind));
        }
        let is_string = input.get(end) == Some(&b'"') && std::str::from_utf8(&input[start..end]).is_ok();
        let found = ending::end_of(&input, start, &mut crowd);
        prop_assert_eq!(found.ok(), is_string.then_some((end, escapes)), "{:?}", String::from_utf8_lossy(&input));
    }

    #[test]
    fn texts_are_written_alike_only_if_they_are_equal(left in "[a\\\\/\"\n\u{8}\u{1}é😀]{0,4}", right in "[a\\\\/\"\n\u{8}\u{1}é😀]{0,4}") {
        let written = |json: &str| {
            let mut bytes = Vec::new();
            let mut sink = |piece: &[u8]| bytes.extend_from_slice(piece);
            let mut out = Writer::new(&mut sink);
            first_string(json.as_bytes()).write(&mut out);
            out.finish();
            bytes
        };
        let plain = |text: &str| written(&serde_json::to_string(text).unwrap());
        let units: String = left.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let slashes = serde_json::to_string(&left).unwrap().replace('/', "\\/");
        prop_assert_eq!(plain(&left), written(&format!("\"{units}\"")));
        prop_assert_eq!(plain(&left), written(&slashes));
        prop_assert_eq!(plain(&left) == plain(&right), left == right);
    }

    #[test]
    fn a_small_integer_is_a_number_that_fits(number in "(0|-?[1-9][0-9]{0,11}|4294967[23][0-9]{2}|01|-|00|-0)(\\.[0-9]?)?([eE][+-]?[0-9]?)?") {
        let input = format!("[{number}]");
        let mut read = Err(JsonError::TooDeep);
        let mut scanner = Scanner::new(input.as_bytes());
        let outcome = scanner.array(|scanner| {
            read = scanner.small_integer();
            read.map(drop)
        });
        prop_assert_eq!(outcome.is_ok(), reference_accepts(input.as_bytes()), "{}", number);
        if outcome.is_ok() {
            prop_assert_eq!(read, Ok(number.parse::<u32>().ok().filter(|_| !number.starts_with('-'))), "{}", number);
        }
    }

    #[test]
    fn the_last_of_equal_keys_wins_as_in_a_map(members in prop::collection::vec(("[ab]", any::<u8>()), 0..12)) {
        let inner: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        let json = format!("{{{}}}", inner.join(","));
        let expected: std::collections::HashMap<String, u64> = serde_json::from_str(&json).unwrap();
        let mut read = std::collections::HashMap::new();
        Scanner::new(json.as_bytes()).object(|key, scanner| {
            read.insert(key.text().into_owned(), scanner.integer()?.unwrap());
            Ok(())
        }).unwrap();
        prop_assert_eq!(read, expected);
    }
}

#[test]
fn every_special_byte_is_found_at_every_place() {
    for len in 0..200 {
        for special in [b'"', b'\\', 0, 0x1F, b'\n'] {
            let mut bytes = vec![b'x'; 210];
            bytes[len] = special;
            bytes[len + 1] = 0x01;
            assert_eq!(
                ending::end_of(&bytes, 0, &mut Crowd::default()).map_or_else(|(at, _)| at, |(at, _)| at),
                len,
                "{special} at {len}"
            );
        }
    }
}

#[test]
fn bytes_next_to_the_special_ones_are_text() {
    let text: Vec<u8> = (0x20..=0xFF).filter(|byte| ![b'"', b'\\'].contains(byte)).cycle().take(500).collect();
    let input = [text.as_slice(), b"\""].concat();
    assert_eq!(
        ending::end_of(&input, 0, &mut Crowd::default()),
        Err((text.iter().position(|byte| *byte >= 0x80).unwrap(), "invalid UTF-8"))
    );
}

#[test]
fn surrogates_pair_up_and_lone_ones_stay_apart() {
    let decode = |json: &'static str| first_string(json.as_bytes());
    assert_eq!(decode(r#""\ud83d\ude00""#).bytes(), "😀".as_bytes());
    assert_eq!(decode(r#""\ud800""#).bytes().as_ref(), [0xED, 0xA0, 0x80]);
    assert_eq!(decode(r#""a\udc00\ud800\u0041""#).text(), "a\u{FFFD}\u{FFFD}A");
    assert_ne!(decode(r#""\ud800""#).bytes(), decode(r#""\ud801""#).bytes());
    assert!(serde_json::Value::deserialize(&mut serde_json::Deserializer::from_str(r#""\ud800""#)).is_err());
}

#[test]
fn errors_say_where_and_what() {
    let at = |input: &[u8]| match check(input) {
        Err(JsonError::NotJson { offset, what }) => (offset, what),
        other => panic!("{other:?}"),
    };
    assert_eq!(at(b"{\"a\" 1}"), (5, "expected ':' after a member name"));
    assert_eq!(at(b"[1 2]"), (3, "expected ',' or ']' after an element"));
    assert_eq!(at(b"\"\x01\""), (1, "control character in a string"));
    assert_eq!(at(b"{\"a\": ["), (7, "unexpected end"));
    assert_eq!(at(b"{} x"), (3, "unexpected characters after the document"));
    assert_eq!(at(b"\"\xFF\""), (1, "invalid UTF-8"));
    let long = [&b"\""[..], &[b'x'; 80], b"\xE9", &[b'z'; 80]].concat();
    for end in [&b""[..], b"\x01\"", b"\\x\""] {
        assert_eq!(at(&[&long, end].concat()), (81, "invalid UTF-8"), "the first of two faults");
    }
    assert_eq!(at(b"NaN"), (0, "expected a value"));
}

#[test]
fn too_deep_is_not_called_invalid() {
    let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    assert_eq!(check(&nested(MAX_DEPTH + 1)), Ok(()), "an empty array opens nothing");
    assert_eq!(check(&nested(MAX_DEPTH + 2)), Err(JsonError::TooDeep));
    let mixed = [br#"{"a":["#.repeat(1000), b"1".to_vec(), b"]}".repeat(1000)].concat();
    assert_eq!(check(&mixed), Ok(()));
    let crossed = [br#"{"a":["#.repeat(100), b"1".to_vec(), b"}]".repeat(100)].concat();
    assert!(matches!(check(&crossed), Err(JsonError::NotJson { .. })), "brackets must close in order");
}

#[test]
fn integers_are_whole_numbers_that_fit() {
    let read = |json: &'static str| Scanner::new(json.as_bytes()).integer().unwrap();
    assert_eq!(read("18446744073709551615"), Some(u64::MAX));
    assert_eq!(read("18446744073709551616"), None);
    for other in ["-1", "1.0", "1e2", "null", "\"5\"", "[5]"] {
        assert_eq!(read(other), None, "{other}");
    }
}
