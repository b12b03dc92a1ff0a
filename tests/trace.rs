//! The block trace: what is published can be read.

use std::path::{Path, PathBuf};

use warmgate::trace;

/// Files that lie beside the project.
fn shared() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    std::env::var_os("WARMGATE_SHARED").map_or_else(beside, PathBuf::from)
}

#[test]
fn the_published_conversation_trace_is_read() {
    let path = shared().join("traces/mooncake-conversation.jsonl");
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
        return;
    }
    let requests = trace::read_file(&path).unwrap_or_else(|error| panic!("{error}"));
    assert!(requests.len() > 1000);
    assert!(requests.is_sorted_by_key(|request| request.timestamp));
}
