//! Token ids of a long conversation: its last turn against all of it, and how fast text becomes ids at all.
//!
//! `cargo bench --bench tokens`
//!
//! The tokenizer is made here: byte-level BPE with the pre-tokenizer of Llama 3, and a merge for each word that is used,
//! so that it makes about as many tokens of a text as real ones do.

#![expect(clippy::print_stdout, reason = "the figures that this is for")]

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::time::{Instant, SystemTime};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};
use warmgate::request::Endpoint;
use warmgate::tokens::{CACHE_BYTES, Tokenizer, TokenizerFiles};

const TURNS: usize = 20;
const TOKENS: usize = 32_000;

const TEMPLATE: &str = "{{- bos_token }}{% for message in messages %}{{- '<|start_header_id|>' + message['role'] + \
    '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}\
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

const WORDS: &str = "the of and to in is that for it as was with be by on not he this are or his from at which but have an \
    had they you were their one all we can her has there been if more when will would who so no out up into time than only \
    some could these two may then other its new over such man our under know water because function return string value \
    request backend locality prefix token engine cache block router balance latency throughput";

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
    for word in WORDS.split_whitespace() {
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
    let special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
    let special: Vec<Value> = (vocab.len()..)
        .zip(special)
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

/// The tokenizer, without anything in its cache.
fn tokenizer(cache_bytes: usize) -> Tokenizer {
    let folder = std::env::temp_dir().join(format!("warmgate-bench-tokens-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    fs::write(folder.join("tokenizer.json"), tokenizer_json().to_string()).expect("room for a file");
    let config = json!({"bos_token": "<|begin_of_text|>", "chat_template": TEMPLATE});
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).expect("room for a file");
    let tokenizer =
        Tokenizer::load_with_cache(&TokenizerFiles::at(&folder), cache_bytes).expect("the tokenizer made above");
    fs::remove_dir_all(folder).expect("the folder made above");
    tokenizer
}

/// A word that the tokenizer makes some tokens of, one of some thousands.
fn rare_word(rng: &mut fastrand::Rng) -> String {
    let mut letters = fastrand::Rng::with_seed(rng.u64(..6_000));
    (0..letters.usize(3..9)).map(|_| letters.lowercase()).collect()
}

/// Text of about this many tokens, with as many different words as prose has.
fn text(tokens: usize, rng: &mut fastrand::Rng) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut text = String::new();
    for place in 0..tokens / 2 {
        match place % 4 {
            0 => text.push_str(&rare_word(rng)),
            _ => text.push_str(words[rng.usize(..words.len())]),
        }
        text.push_str(match place % 17 {
            16 => ".\n",
            9 => ", ",
            _ => " ",
        });
    }
    text
}

/// The bodies of a conversation's requests, one a turn: what was said before, and a new question.
fn conversation() -> Vec<Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut messages = vec![json!({"role": "system", "content": text(200, &mut rng)})];
    let mut bodies = Vec::new();
    for _ in 0..TURNS {
        messages.push(json!({"role": "user", "content": text(TOKENS / TURNS / 2, &mut rng)}));
        bodies.push(json!({"model": "m", "messages": messages}).to_string().into_bytes());
        messages.push(json!({"role": "assistant", "content": text(TOKENS / TURNS / 2, &mut rng)}));
    }
    bodies
}

fn tokens_of(tokenizer: &Tokenizer, body: &[u8]) -> usize {
    let prompts = tokenizer.prompts(Endpoint::ChatCompletions, body, SystemTime::UNIX_EPOCH);
    prompts.expect("a chat").prompts.iter().map(Vec::len).sum()
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
        let mut times: Vec<f64> = (0..15)
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
    let tokenizer = tokenizer(CACHE_BYTES);
    let mut group = c.benchmark_group("completion");
    let mut rng = fastrand::Rng::with_seed(2);
    let mut body = |tokens| json!({"prompt": text(tokens, &mut rng)}).to_string().into_bytes();
    let tokens = |body: &[u8]| {
        let prompts = tokenizer.prompts(Endpoint::Completions, body, SystemTime::UNIX_EPOCH).expect("a text");
        prompts.prompts[0].len()
    };
    group.throughput(Throughput::Elements(tokens(&body(TOKENS)) as u64));
    group.bench_function("new text", |bencher| {
        bencher.iter_batched_ref(|| body(TOKENS), |body| tokens(body), BatchSize::PerIteration)
    });
    group.finish();
}

criterion_group!(benches, last_turn, text_to_ids);
criterion_main!(benches);
