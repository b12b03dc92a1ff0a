use proptest::prelude::*;

use super::*;
use crate::testing::config;

fn line(timestamp: u64, input_length: u32, hash_ids: &[u64]) -> TraceLine {
    TraceLine { timestamp, input_length, output_length: 5, hash_ids: hash_ids.to_vec() }
}

fn refused(text: &[u8]) -> String {
    read(text).unwrap_err().to_string()
}

/// The error of a good line in which `from` became `to`.
fn broken(from: &str, to: &str) -> String {
    let good = r#"{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}"#;
    assert!(good.contains(from), "{from} is in the line");
    refused(format!("{good}\n{}\n", good.replacen(from, to, 1)).as_bytes())
}

#[test]
fn lines_come_in_the_order_of_time_and_then_of_the_trace() {
    let trace = br#"
        {"timestamp": 9, "input_length": 1, "output_length": 5, "hash_ids": []}

        {"timestamp": 3, "input_length": 512, "output_length": 5, "hash_ids": [4]}
        {"hash_ids": [4, 6], "input_length": 513, "chat_id": {"a": [1]}, "output_length": 5, "timestamp": 3}"#;
    assert_eq!(read(&trace[..]).unwrap(), [line(3, 512, &[4]), line(3, 513, &[4, 6]), line(9, 1, &[])]);
}

#[test]
fn an_answer_of_no_tokens_counts_as_one_of_one() {
    let trace = br#"{"timestamp": 0, "input_length": 1, "output_length": 0, "hash_ids": [1]}"#;
    assert_eq!(read(&trace[..]).unwrap()[0].output_length, 1);
}

#[test]
fn lines_may_end_as_on_windows() {
    let trace = b"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\r\n\r\n";
    assert_eq!(read(&trace[..]).unwrap().len(), 1);
}

#[test]
fn a_wrong_value_is_named_with_its_place_and_what_would_be_right() {
    let tokens = "a whole number of tokens from 1 to 4294967295";
    let cases = [
        ("600", "-5", format!("trace:2:34: input_length: found `-5`; expected {tokens}")),
        ("600", "0", format!("trace:2:34: input_length: found `0`; expected {tokens}")),
        ("600", "4294967296", format!("trace:2:34: input_length: found `4294967296`; expected {tokens}")),
        ("600", "6e2", format!("trace:2:34: input_length: found `6e2`; expected {tokens}")),
        ("600", "\"a secret\"", format!("trace:2:34: input_length: found text; expected {tokens}")),
        ("600", "[600]", format!("trace:2:34: input_length: found a list; expected {tokens}")),
        ("600", "null", format!("trace:2: input_length: missing; expected {tokens}")),
        ("\"input_length\": 600,", "", format!("trace:2: input_length: missing; expected {tokens}")),
        ("600", "1537", "trace:2:72: hash_ids: found 2 for an input_length of 1537; expected 3 or 4".into()),
        ("600", "512", "trace:2:71: hash_ids: found 2 for an input_length of 512; expected 1: one".into()),
        ("1,", "1760000000000000,", "trace:2:15: timestamp: found `1760000000000000`; expected whole milli".into()),
        (" 5", " -1", "trace:2:56: output_length: found `-1`; expected a whole number of tokens from 0".into()),
        ("[7, 8]", "[7, -8]", "trace:2:75: hash_ids: found `-8`; expected a list of whole numbers".into()),
        ("[7, 8]", "[ \"x\", 8]", "trace:2:73: hash_ids: found text; expected a list of whole numbers".into()),
        ("[7, 8]", "[7, 99999999999999999999]", "trace:2:75: hash_ids: found `99999999999999999999`".into()),
        ("[7, 8]", "7", "trace:2:71: hash_ids: found `7`; expected a list of whole numbers".into()),
        ("\"hash_ids\"", "\"timestamp\"", "trace:2:69: not JSON: duplicate field `timestamp`; expected".into()),
        ("[7, 8]}", "[7, 8]", "trace:2:76: not JSON: EOF while parsing an object; expected an object".into()),
        ("8]}", "8]} {}", "trace:2:79: not JSON: trailing characters; expected an object".into()),
        ("{", "GET / ", "trace:2:1: found text; expected an object on a line of its own".into()),
        ("{", "[", "trace:2:1: found a list; expected an object on a line of its own".into()),
    ];
    let wrong: Vec<_> = cases
        .iter()
        .map(|(from, to, expected)| (broken(from, to), expected))
        .filter(|(said, expected)| !said.starts_with(expected.as_str()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_long_number_is_quoted_in_part() {
    let said = broken("600", &"9".repeat(1000));
    assert!(said.contains(&format!("found `{}...`;", "9".repeat(MAX_QUOTED))), "{said}");
}

#[test]
fn a_trace_without_requests_is_refused() {
    assert!(refused(b"").starts_with("trace: it has no requests; expected a line for each"));
    assert!(refused(b"\n \n").starts_with("trace: it has no requests"));
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_place() {
    assert!(refused(b"\n{\"a\": \"\xff\"}").starts_with("trace:2:8: not UTF-8 text"));
}

#[test]
fn an_endless_line_is_given_up() {
    let endless = BufReader::new(io::repeat(b' '));
    assert!(read(endless).unwrap_err().to_string().starts_with("trace:1: longer than 16777216 bytes"));
}

#[test]
fn too_many_ids_are_given_up_at_the_line_that_brings_them() {
    let lines = [line(0, 1024, &[1, 2]), line(1, 1, &[]), line(2, 512, &[3])];
    let text: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
    assert_eq!(read_within(text.as_bytes(), 3).unwrap(), lines);
    let said = read_within(text.as_bytes(), 2).unwrap_err().to_string();
    assert_eq!(
        said,
        "trace:3: more than 2 ids up to here, the most that is read; expected a shorter part of the trace"
    );
}

#[test]
fn an_error_names_the_file() {
    let path = std::env::temp_dir().join(format!("warmgate-trace-{}.jsonl", std::process::id()));
    std::fs::write(&path, "\n{}\n").unwrap();
    let said = read_file(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(said.starts_with(&format!("{}:2: timestamp: missing; expected whole milli", path.display())), "{said}");
    let said = read_file(&path).unwrap_err().to_string();
    assert!(said.starts_with(&format!("{}: cannot be read: No such file", path.display())), "{said}");
    let said = read_file(std::env::temp_dir()).unwrap_err().to_string();
    assert!(said.contains("cannot be read: Is a directory"), "{said}");
}

fn any_line() -> impl Strategy<Value = TraceLine> {
    (0..=MAX_TIMESTAMP, 1_u32..20_000, 1_u32.., any::<bool>()).prop_flat_map(|(timestamp, input, output, has_rest)| {
        let ids = if has_rest { input.div_ceil(BLOCK_TOKENS) } else { input / BLOCK_TOKENS };
        proptest::collection::vec(any::<u64>(), ids as usize).prop_map(move |hash_ids| TraceLine {
            timestamp,
            input_length: input,
            output_length: output,
            hash_ids,
        })
    })
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn what_is_written_is_read_again(mut lines in proptest::collection::vec(any_line(), 1..20)) {
        let text: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        lines.sort_by_key(|line| line.timestamp);
        prop_assert_eq!(read(text.as_bytes()).unwrap(), lines);
    }

    #[test]
    fn a_damaged_trace_is_read_or_refused_with_a_place_in_it(
        line in any_line(), damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = serde_json::to_vec(&line).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Err(error) = read(&bytes[..]) {
            prop_assert!(error.column.is_none_or(|column| column <= bytes.len() + 1), "{}", error);
        }
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let text = [b"{\"timestamp\":", &bytes[..]].concat();
        prop_assert!(read(&bytes[..]).is_err());
        prop_assert!(read(&text[..]).is_err());
    }
}
