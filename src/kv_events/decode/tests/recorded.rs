//! Everything that was recorded of engines decodes to what the recorder made of it.

use super::plain::{of_batch, of_json};
use super::*;
use crate::kv_events::fixtures::{self, RECORDINGS, unhex};

#[test]
fn every_recorded_message_decodes_to_what_was_recorded_of_it() {
    for recording in RECORDINGS {
        let (Some(live), Some(decoded)) = (fixtures::live(recording), fixtures::decoded(recording)) else { return };
        assert_eq!(live.len(), decoded.len(), "{recording}: both files are of the same messages");
        let (mut decoder, mut batch) = (Decoder::default(), Batch::default());
        for (message, expected) in live.iter().zip(&decoded) {
            let left_out = decoder.decode(&message.payload, &mut batch).unwrap();
            let seq = message.seq;
            assert_eq!(left_out, LeftOut::default(), "{recording} {seq}: everything is understood");
            assert_eq!(Some(seq), expected["seq"].as_u64());
            // The JSON reader in use is a bit or two off.
            let time = expected["payload"][0].as_f64().unwrap();
            assert!((batch.timestamp - time).abs() < 1e-5, "{recording} {seq}: at {time}");
            assert_eq!(batch.rank.map(u64::from), expected["payload"][2].as_u64());
            let events = expected["payload"][1].as_array().unwrap();
            let events: Vec<_> = events.iter().map(|event| of_json(event, &[], &[])).collect();
            assert_eq!(of_batch(&batch), events, "{recording} {seq}");
        }
    }
}

#[test]
fn the_forms_of_all_releases_decode_to_the_same_events() {
    for release in fixtures::older_formats().unwrap_or_default() {
        let name = &release["vllm"];
        let (batch, left_out) = decode(&unhex(release["payload_hex"].as_str().unwrap()));
        let fields = |kind: &str| release[kind].as_array().unwrap().clone();
        let (stored, removed) = (fields("BlockStored_fields"), fields("BlockRemoved_fields"));
        let events = release["decoded"][1].as_array().unwrap();
        let expected: Vec<_> = events.iter().map(|event| of_json(event, &stored, &removed)).collect();
        assert_eq!(of_batch(&batch), expected, "{name}");
        assert_eq!(left_out, LeftOut::default(), "{name}");
        assert_eq!((batch.timestamp, batch.rank), (1.5, Some(0)), "{name}");
        assert_eq!(expected.len(), 3, "{name}: stored, removed, cleared");
    }
}
