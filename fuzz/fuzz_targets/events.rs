//! KV events: payloads as they are, and streams of messages with numbers in any order.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warmgate::kv_events::{Batch, Decoder, Sink, Stream};

/// Most messages of one stream.
const MAX_MESSAGES: usize = 64;

fuzz_target!(|input: &[u8]| {
    let mut batch = Batch::default();
    let mut decoder = Decoder::default();
    let first = decoder.decode(input, &mut batch).map_err(|_| ());
    let again = decoder.decode(input, &mut batch).map_err(|_| ());
    assert_eq!(first, again, "what a decoder remembers does not change what it reads");
    follow(input);
});

/// Takes `input` for messages: a byte for what happens, one for the number, one for the payload's length.
fn follow(mut input: &[u8]) {
    let Some((&first, rest)) = input.split_first() else { return };
    input = rest;
    let mut stream = Stream::new(first & 1 == 1);
    let mut sink = Counting::default();
    let _ = stream.connected();
    for _ in 0..MAX_MESSAGES {
        let [what, seq, length, rest @ ..] = input else { break };
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        input = rest;
        let seq = if *seq == u8::MAX { u64::MAX } else { u64::from(*seq) };
        match what % 8 {
            0 => stream.lost(&mut sink),
            1 => drop(stream.connected()),
            2 => drop(stream.replay_ended(&mut sink)),
            3 => drop(stream.replay_failed(&mut sink)),
            4 | 5 => drop(stream.replayed(seq, payload, &mut sink)),
            _ => drop(stream.live(seq, payload, &mut sink)),
        }
    }
    let counts = stream.counts();
    assert!(counts.undecodable <= MAX_MESSAGES as u64 * 2, "a message is decoded once or twice");
}

#[derive(Default)]
struct Counting {
    batches: u64,
}

impl Sink for Counting {
    fn apply(&mut self, _batch: &Batch) {
        self.batches += 1;
    }

    fn clear(&mut self) {
        self.batches = 0;
    }
}
