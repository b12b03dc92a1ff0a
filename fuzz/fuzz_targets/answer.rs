//! Answers of engines: event streams and plain bodies, cut anywhere. The first byte says how, and where they are cut
//! changes nothing of what was read in the end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warmgate::request::ResponseReader;

fuzz_target!(|input: &[u8]| {
    let Some((&how, body)) = input.split_first() else { return };
    let is_sse = how & 1 == 0;
    let piece = usize::from(how >> 1) + 1;
    let (mut whole, mut cut) = (reader(is_sse), reader(is_sse));
    whole.push(body);
    body.chunks(piece).for_each(|chunk| {
        cut.push(chunk);
    });
    let told = |reader: &ResponseReader| {
        let flags = (reader.has_output(), reader.has_error(), reader.saw_done());
        (reader.usage(), reader.response_id().map(str::to_owned), flags)
    };
    assert_eq!(told(&whole), told(&cut), "cut every {piece} bytes");
    if is_sse {
        assert_eq!(whole.events(), cut.events(), "cut every {piece} bytes");
    }
});

fn reader(is_sse: bool) -> ResponseReader {
    ResponseReader::new(is_sse, true).with_response_id()
}
