//! Access to the recorded exchanges with real engines, for tests.

use std::path::Path;

use crate::testing;

/// A recorded file: its name without folder, and its bytes.
pub(crate) struct Recording {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// All recorded files below `folder` whose names end in `suffix`, by name; none if there are no fixtures.
pub(crate) fn recordings(folder: &str, suffix: &str) -> Vec<Recording> {
    let Some(folder) = testing::shared("fixtures/vllm").map(|vllm| vllm.join(folder)) else { return Vec::new() };
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut found: Vec<_> = entries.map(|entry| load(&entry.unwrap().path())).collect();
    found.retain(|recording| recording.name.ends_with(suffix));
    found.sort_by(|left, right| left.name.cmp(&right.name));
    found
}

fn load(path: &Path) -> Recording {
    Recording { name: path.file_name().unwrap().to_string_lossy().into_owned(), bytes: std::fs::read(path).unwrap() }
}

/// The start line and the body (chunked framing taken off) of the first message in `bytes`.
pub(crate) fn split(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let head_end = memchr::memmem::find(bytes, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..head_end]).unwrap().to_ascii_lowercase();
    let start_line = head.lines().next().unwrap().to_owned();
    let rest = &bytes[head_end + 4..];
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map(|n| n.parse().unwrap());
    let body = match length {
        Some(length) => rest[..rest.len().min(length)].to_vec(),
        None if head.contains("transfer-encoding: chunked") => unchunk(rest),
        None => Vec::new(),
    };
    Some((start_line, body))
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line_end) = memchr::memmem::find(rest, b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line_end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[line_end + 2..line_end + 2 + size]);
        rest = &rest[line_end + 2 + size + 2..];
    }
    body
}
