//! Request bodies: every endpoint reads the same bytes, and what it borrows can be hashed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warmgate::request::{Endpoint, MAX_PROMPTS, read};

const PATHS: [&str; 11] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/generate",
    "/tokenize",
    "/pooling",
];

fuzz_target!(|body: &[u8]| {
    for path in PATHS {
        let endpoint = Endpoint::of(path).expect("the paths are those of endpoints");
        if let Ok(request) = read(endpoint, body) {
            assert!(request.prompts.len() <= MAX_PROMPTS, "prompts are bounded");
            assert!(request.choices >= 1, "there is a choice");
            assert!(request.more_prompt_bytes <= body.len() as u64, "prompts are parts of the body");
        }
    }
});
