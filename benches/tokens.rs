//! Token ids of a long conversation: its last turn against all of it, and how fast text becomes ids at all.
//!
//! `cargo bench --bench tokens`, or with a real tokenizer `TOKENIZER_JSON=FILE cargo bench --bench tokens` (one that has
//! the special tokens of Llama 3); a large one takes seconds to load, so that does less.
//!
//! The tokenizer made here is byte-level BPE with the pre-tokenizer of Llama 3, and a merge for each word that is used, so
//! that it makes about as many tokens of a text as real ones do. It makes them faster: its words have few merges.

#![expect(clippy::print_stdout, reason = "the figures that this is for")]

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Instant, SystemTime};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};
use warmgate::prefix::token_root;
use warmgate::request::Endpoint;
use warmgate::tokens::{CACHE_BYTES, TokenIds, Tokenizer, TokenizerFiles};

/// The allocator of the program: much of a last turn is small pieces of text.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TURNS: usize = 20;
const TOKENS: usize = 32_000;

/// vLLM's block.
const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).expect("not zero");

const TEMPLATE: &str = "{{- bos_token }}{% for message in messages %}{{- '<|start_header_id|>' + message['role'] + \
    '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}\
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// The characters that stand for bytes.
fn alphabet() -> Vec<char> {
    let mut next = 256;
    let mut code = |byte: u32| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte,
        _ => {
            next += 1;
            next - 1
        }
    };
    (0..256).map(|byte| char::from_u32(code(byte)).expect("below the surrogates")).collect()
}

fn tokenizer_json() -> Value {
    let mut vocab: Vec<String> = alphabet().iter().map(char::to_string).collect();
    let mut known: BTreeSet<String> = vocab.iter().cloned().collect();
    let mut merges = Vec::new();
    for word in TEXT.split(|letter: char| !letter.is_ascii_alphabetic()).filter(|word| !word.is_empty()) {
        let mut left = "Ġ".to_owned();
        for letter in word.chars() {
            let merged = format!("{left}{letter}");
            if known.insert(merged.clone()) {
                merges.push(json!([left, letter.to_string()]));
                vocab.push(merged.clone());
            }
            left = merged;
        }
    }
    let special: Vec<Value> = (vocab.len()..)
        .zip(SPECIAL)
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let vocab: serde_json::Map<String, Value> =
        vocab.into_iter().zip(0_u32..).map(|(word, id)| (word, json!(id))).collect();
    let words = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges}})
}

/// What [`TEMPLATE`] puts around messages: without these a conversation would have no places to cut at.
const SPECIAL: [&str; 4] = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];

/// A real tokenizer, if one is given.
fn real() -> Option<std::ffi::OsString> {
    std::env::var_os("TOKENIZER_JSON")
}

fn copy(file: &Path, to: &Path) {
    let text = fs::read_to_string(file).expect("TOKENIZER_JSON is a readable file");
    let missing: Vec<&str> = SPECIAL.into_iter().filter(|token| !text.contains(&format!("\"{token}\""))).collect();
    assert!(
        missing.is_empty(),
        "{} has no {}: TOKENIZER_JSON has to be one with the special tokens of Llama 3, since the bench renders its \
         template",
        file.display(),
        missing.join(", ")
    );
    fs::write(to, text).expect("room for a file");
}

/// The tokenizer, without anything in its cache.
fn tokenizer(cache_bytes: usize) -> Tokenizer {
    let folder = std::env::temp_dir().join(format!("warmgate-bench-tokens-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    match real() {
        Some(file) => copy(Path::new(&file), &folder.join("tokenizer.json")),
        None => fs::write(folder.join("tokenizer.json"), tokenizer_json().to_string()).expect("room for a file"),
    }
    let config = json!({"bos_token": "<|begin_of_text|>", "chat_template": TEMPLATE});
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("room for a file");
    let tokenizer =
        Tokenizer::load_with_cache(&TokenizerFiles::at(&folder), cache_bytes).expect("the tokenizer made above");
    fs::remove_dir_all(folder).expect("the folder made above");
    tokenizer
}

/// Prose and code of this project, as people send to models: enough for a conversation of [`TOKENS`].
const TEXT: &str = concat!(
    include_str!("../README.md"),
    include_str!("../docs/routing.md"),
    include_str!("../src/control/table.rs"),
    include_str!("../docs/engines.md"),
    include_str!("../src/pool/load.rs"),
    include_str!("../conf/example.yaml"),
    include_str!("../src/locality/writer.rs"),
    include_str!("../CONTRIBUTING.md"),
    include_str!("../src/config/file.rs"),
    include_str!("../src/request/sse.rs"),
);

/// Bytes of a token, about.
const TOKEN_BYTES: usize = 4;

/// The next text of about so many tokens; from the beginning again at the end.
fn text(tokens: usize, place: &mut usize) -> &'static str {
    if TEXT.len() - *place < tokens * TOKEN_BYTES {
        *place = 0;
    }
    let (start, end) = (*place, TEXT.ceil_char_boundary(*place + tokens * TOKEN_BYTES));
    *place = end;
    &TEXT[start..end]
}

/// The bodies of a conversation's requests, one a turn: what was said before, and a new question.
fn conversation() -> Vec<Vec<u8>> {
    let mut place = 0;
    let mut messages = vec![json!({"role": "system", "content": text(200, &mut place)})];
    let mut bodies = Vec::new();
    for _ in 0..TURNS {
        messages.push(json!({"role": "user", "content": text(TOKENS / TURNS / 2, &mut place)}));
        bodies.push(json!({"model": "m", "messages": messages}).to_string().into_bytes());
        messages.push(json!({"role": "assistant", "content": text(TOKENS / TURNS / 2, &mut place)}));
    }
    assert!(TEXT.len() > TOKENS * TOKEN_BYTES, "nothing is said twice");
    bodies
}

/// Makes the token ids of a request's prompts and the hashes of their blocks, as routing needs them.
fn tokens_of(tokenizer: &Tokenizer, body: &[u8]) -> usize {
    let prompts = tokenizer.prompts(Endpoint::ChatCompletions, body, SystemTime::UNIX_EPOCH);
    let prompts = prompts.expect("a chat").prompts;
    prompts.iter().for_each(|ids| drop(black_box(tokenizer.chain(ids, token_root(None, None), BLOCK_TOKENS))));
    prompts.iter().map(TokenIds::len).sum()
}

/// Has it see all turns but the last.
fn seen(tokenizer: &Tokenizer, turns: &[Vec<u8>]) {
    for body in &turns[..turns.len() - 1] {
        black_box(tokens_of(tokenizer, body));
    }
}

/// One that has seen all turns but the last.
fn warm(turns: &[Vec<u8>]) -> Tokenizer {
    let tokenizer = tokenizer(CACHE_BYTES);
    seen(&tokenizer, turns);
    tokenizer
}

/// One that has seen them as well, and knows their words again, but keeps no segments.
fn forgetful(turns: &[Vec<u8>]) -> Tokenizer {
    let tokenizer = tokenizer(0);
    seen(&tokenizer, turns);
    tokenizer
}

fn last_turn(c: &mut Criterion) {
    let turns = conversation();
    let last = &turns[turns.len() - 1];
    let tokens = tokens_of(&tokenizer(CACHE_BYTES), last);
    println!("{TURNS} turns: {tokens} tokens, {} bytes", last.len());
    report(&turns);
    if real().is_some() {
        return;
    }
    let mut group = c.benchmark_group("conversation");
    group.sample_size(20);
    group.throughput(Throughput::Elements(tokens as u64));
    let each = BatchSize::PerIteration;
    group.bench_function("whole", |bencher| {
        bencher.iter_batched_ref(|| tokenizer(CACHE_BYTES), |fresh| tokens_of(fresh, last), each)
    });
    group.bench_function("last turn", |bencher| {
        bencher.iter_batched_ref(|| warm(&turns), |warm| tokens_of(warm, last), each)
    });
    group.finish();
}

/// The two against each other, by the medians of some runs.
fn report(turns: &[Vec<u8>]) {
    let last = &turns[turns.len() - 1];
    let median = |tokenizer: &dyn Fn() -> Tokenizer| {
        let mut times: Vec<f64> = (0..if real().is_some() { 9 } else { 15 })
            .map(|_| {
                let tokenizer = tokenizer();
                let started = Instant::now();
                black_box(tokens_of(&tokenizer, last));
                started.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let fresh = || tokenizer(CACHE_BYTES);
    let (whole, known, turn) = (median(&fresh), median(&|| forgetful(turns)), median(&|| warm(turns)));
    println!(
        "whole: {:.2} ms; whole, of known words: {:.2} ms; last turn: {:.2} ms",
        whole * 1e3,
        known * 1e3,
        turn * 1e3
    );
    println!(
        "so the last turn is 1/{:.1} of the whole, 1/{:.1} of it where all words are known",
        whole / turn,
        known / turn
    );
}

fn text_to_ids(c: &mut Criterion) {
    if real().is_some() {
        return;
    }
    let tokenizer = tokenizer(CACHE_BYTES);
    let mut group = c.benchmark_group("completion");
    let mut place = TEXT.len() / 2;
    let mut body = |tokens| json!({"prompt": text(tokens, &mut place)}).to_string().into_bytes();
    let tokens = |body: &[u8]| {
        let prompts = tokenizer.prompts(Endpoint::Completions, body, SystemTime::UNIX_EPOCH).expect("a text");
        prompts.prompts[0].len()
    };
    group.throughput(Throughput::Elements(tokens(&body(TOKENS / 4)) as u64));
    group.bench_function("new text", |bencher| {
        bencher.iter_batched_ref(|| body(TOKENS / 4), |body| tokens(body), BatchSize::PerIteration)
    });
    group.finish();
}

criterion_group!(benches, last_turn, text_to_ids);
criterion_main!(benches);
