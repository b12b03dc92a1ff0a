//! Segments against the whole text, with tokenizers of every kind.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::config;
use crate::tokens::files;
use crate::tokens::testing::{alphabet, byte_level, special};

/// Texts that are added tokens, or next to it.
const MARKS: [&str; 18] = [
    "<s>", "</s>", "<|user|>", "<|end|>", "<l>", "<r>", "word", "a<", "the end", "\n\n", "[CLS]", "[SEP]", "[UNK]",
    "<|us", "er|>", "<", "<<s>", "ends",
];

/// Texts that are not, for white space, scripts, and forms that normalizers change.
const TEXTS: [&str; 20] = [
    " ",
    "  ",
    "\n",
    "\t",
    " the",
    "the",
    "thing",
    " a",
    "word",
    ".",
    "'s",
    "12345",
    "日本語",
    "한글",
    "é",
    "e\u{301}",
    "👩‍👩‍👧‍👦",
    "ﬁ",
    "\u{a0}",
    "▁",
];

fn loaded(json: &Value) -> Encoder {
    Encoder::new(files::parse(&json.to_string()).unwrap()).with_small_segments()
}

/// Added tokens with every property that changes what is matched, but for single words.
fn added(first: usize) -> Value {
    let token = |place: usize, content: &str, lstrip: bool, rstrip: bool, normalized: bool| {
        json!({"id": first + place, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized, "special": !normalized})
    };
    let Value::Array(mut tokens) = special(first, &["<s>", "</s>", "<|user|>", "<|end|>"]) else { unreachable!() };
    tokens.push(token(4, "<l>", true, false, false));
    tokens.push(token(5, "<r>", false, true, false));
    tokens.push(token(6, "a<", false, false, false));
    tokens.push(token(7, "the end", false, false, true));
    tokens.push(token(8, "\n\n", false, false, false));
    Value::Array(tokens)
}

fn with(mut json: Value, members: Value) -> Value {
    let Value::Object(members) = members else { unreachable!() };
    json.as_object_mut().unwrap().extend(members);
    json
}

fn byte_level_with(members: Value) -> Value {
    let json = byte_level();
    let size = json["model"]["vocab"].as_object().unwrap().len();
    with(with(json, json!({"added_tokens": added(size)})), members)
}

fn llama3() -> Value {
    // That of Llama 3 itself: others than the usual patterns are refused when a tokenizer is loaded.
    let words = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    byte_level_with(json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]}}))
}

/// The letters and bytes of a vocabulary like SentencePiece's.
fn pieces() -> Vec<String> {
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let letters = ('a'..='z').map(|letter| letter.to_string());
    let more =
        ["▁", "▁t", "th", "▁th", "▁the", "in", "er", "日", "本", "<", ">", "|", ".", "1", "2"].map(str::to_owned);
    ["<unk>".to_owned()].into_iter().chain(bytes).chain(letters).chain(more).collect()
}

fn sentence_piece_bpe(pre_tokenizer: &Value, normalizer: &Value) -> Value {
    let pieces = pieces();
    let vocab: serde_json::Map<String, Value> = pieces.iter().cloned().zip((0..).map(|id| json!(id))).collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added(pieces.len()),
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab,
            "merges": [["▁", "t"], ["t", "h"], ["▁t", "h"], ["i", "n"], ["e", "r"]]}})
}

fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": scheme != "never"})
}

fn unigram(scheme: &str) -> Value {
    let pieces = pieces();
    let vocab: Vec<Value> = pieces.iter().enumerate().map(|(id, piece)| json!([piece, -(id as f64) / 100.0])).collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added(pieces.len()),
        "normalizer": {"type": "NFKC"}, "pre_tokenizer": metaspace(scheme), "post_processor": null, "decoder": null,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": true}})
}

fn word_piece() -> Value {
    let letters = ('a'..='z').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
    let words =
        ["[UNK]", "[CLS]", "[SEP]", "the", "##ing", "thing", "e", ".", "<", ">", "|", "日", "▁"].map(str::to_owned);
    let mut vocab = serde_json::Map::new();
    for word in words.into_iter().chain(letters) {
        let id = vocab.len();
        vocab.entry(word).or_insert(json!(id));
    }
    let Value::Array(mut tokens) = added(vocab.len()) else { unreachable!() };
    let Value::Array(own) = special(0, &["[UNK]", "[CLS]", "[SEP]"]) else { unreachable!() };
    tokens.extend(own);
    tokens.sort_by_key(|token| token["id"].as_u64());
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": tokens,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab}})
}

/// One of each kind, by name.
fn all() -> Vec<(&'static str, Encoder)> {
    let prepend = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    vec![
        ("byte level", loaded(&byte_level_with(json!({})))),
        ("byte level, NFC", loaded(&byte_level_with(json!({"normalizer": {"type": "NFC"}})))),
        ("Llama 3", loaded(&llama3())),
        ("BPE, Metaspace first", loaded(&sentence_piece_bpe(&metaspace("first"), &Value::Null))),
        ("BPE, Metaspace always", loaded(&sentence_piece_bpe(&metaspace("always"), &Value::Null))),
        ("BPE, Prepend", loaded(&sentence_piece_bpe(&Value::Null, &prepend))),
        ("Unigram, first", loaded(&unigram("first"))),
        ("Unigram, always", loaded(&unigram("always"))),
        ("WordPiece", loaded(&word_piece())),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => prop::sample::select(MARKS.to_vec()).prop_map(str::to_owned),
        4 => prop::sample::select(TEXTS.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

#[test]
fn segments_give_the_ids_of_the_whole() {
    let encoders = all();
    // Shared by all cases, so that what one leaves behind is used by others.
    let caches: Vec<TextCache> = encoders.iter().map(|_| TextCache::new(1 << 16)).collect();
    let mut runner = proptest::test_runner::TestRunner::new(config(512));
    let cut = std::cell::Cell::new(0);
    let result = runner.run(&text(), |text| {
        for ((name, encoder), cache) in encoders.iter().zip(&caches) {
            let segments = encoder.segments(&text);
            prop_assert_eq!(segments.concat(), text.as_str());
            cut.set(cut.get() + segments.len().saturating_sub(1));
            let whole = encoder.encode_whole(&text);
            for _ in 0..2 {
                let ids = encoder.encode(text.as_bytes(), false, cache, &Stop::default()).unwrap();
                prop_assert_eq!(&ids, &whole, "{}: of {:?}", name, segments);
            }
        }
        Ok(())
    });
    result.unwrap();
    assert!(cut.get() > 10_000, "the texts must have had places to cut at: {}", cut.get());
}

#[test]
fn a_text_that_goes_on_is_not_cut_where_another_ended() {
    let mut encoders = all();
    encoders.push(("nothing added", loaded(&with(byte_level(), json!({"added_tokens": []})))));
    let text = "the <|user|>thing<r>  </s><|us</s><<s>a<|end|>ends<l>word<|user|>\n\n\n<s>1234";
    for (name, encoder) in encoders {
        let cache = TextCache::new(1 << 20);
        // Both ways, so that each finds what longer and shorter ones left.
        for end in (1..=text.len()).chain((1..=text.len()).rev()) {
            let ids = encoder.encode(&text.as_bytes()[..end], false, &cache, &Stop::default()).unwrap();
            assert_eq!(ids, encoder.encode_whole(&text[..end]), "{name}: of {:?}", &text[..end]);
        }
    }
}

#[test]
fn a_tokenizer_with_single_words_takes_texts_whole() {
    let json = byte_level();
    let size = json["model"]["vocab"].as_object().unwrap().len();
    let mut tokens = added(size);
    tokens[0]["single_word"] = json!(true);
    let encoder = loaded(&with(json, json!({"added_tokens": tokens})));
    assert_eq!(encoder.segments("a</s>b<|user|>c").len(), 1);
}

#[test]
fn a_pattern_that_cannot_be_run_is_refused_at_once() {
    let split = json!({"type": "Split", "pattern": {"Regex": "[a-c]+x"}, "behavior": "Isolated", "invert": false});
    let refused = files::parse(&byte_level_with(json!({"pre_tokenizer": split})).to_string());
    assert!(refused.err().unwrap().contains("`Split` pattern"));
}

#[test]
fn short_segments_are_joined() {
    let encoder = Encoder::new(files::parse(&byte_level().to_string()).unwrap());
    let message = format!("<|user|>{}<|end|>", "thing ".repeat(30));
    let text = message.repeat(3);
    let segments = encoder.segments(&text);
    assert_eq!(segments.len(), 4, "one for each message, and the last mark: {segments:?}");
    assert!(segments[1].starts_with("<|end|><|user|>thing"), "{segments:?}");
}

#[test]
fn special_tokens_are_put_around_if_asked_for() {
    let frame = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [265], "tokens": ["<s>"]},
            "</s>": {"id": "</s>", "ids": [266], "tokens": ["</s>"]}}});
    let encoder = loaded(&byte_level_with(json!({"post_processor": frame})));
    let cache = TextCache::new(1 << 16);
    let ids = |special| encoder.encode(b"a", special, &cache, &Stop::default()).unwrap();
    let a = alphabet().iter().position(|char| *char == 'a').unwrap() as u32;
    assert_eq!((ids(false), ids(true)), (vec![a].into(), vec![265, a, 266].into()));
}

#[test]
fn work_ends_when_it_is_stopped() {
    let encoder = loaded(&byte_level());
    let stop = Stop::default();
    drop(super::super::stop::StopOnDrop(stop.clone()));
    let cache = TextCache::new(1 << 16);
    assert_eq!(encoder.encode(b"a", false, &cache, &stop), Err(NotTokenized::TimedOut));
}
