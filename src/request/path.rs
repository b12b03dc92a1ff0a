//! The paths of requests, as engines read them. Pure.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// `path` (without query) with `%63` and the like as what they stand for, once: engines look paths up like that, so that
/// `/v1/%63hat/completions` is a chat as well. What does not decode to text stays as it is, and names nothing.
pub fn decoded(path: &str) -> Cow<'_, str> {
    percent_decode_str(path).decode_utf8().unwrap_or(Cow::Borrowed(path))
}

/// Whether a path that was [`decoded`] can be read in one way only: its segments are neither empty nor dots, which some
/// servers resolve, and nothing in it is still coded, which some decode twice or by rules of their own.
pub fn is_plain(decoded: &str) -> bool {
    let is_segment = |segment: &str| !matches!(segment, "" | "." | "..");
    let is_char = |c: char| !c.is_control() && !matches!(c, '%' | '\\' | '?' | '#' | ';');
    decoded.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_segment)) && decoded.chars().all(is_char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_once() {
        for (path, expected) in [
            ("/v1/models", "/v1/models"),
            ("/v1/%63hat/completion%73", "/v1/chat/completions"),
            ("/v1/models/a%2fb%2Fc", "/v1/models/a/b/c"),
            ("/%C3%a4", "/ä"),
            ("/%2563", "/%63"),
            ("/%zz%6", "/%zz%6"),
            ("/%ff%41", "/%ff%41"),
            ("", ""),
        ] {
            assert_eq!(decoded(path), expected, "{path}");
        }
    }

    #[test]
    fn a_plain_path_is_read_in_one_way() {
        for path in ["/v1/models", "/v1/models/Qwen/Qwen3-0.6B:free", "/x", "/ä~", "/..x/.y"] {
            assert!(is_plain(path), "{path}");
        }
        for path in
            ["", "/", "x", "//x", "/x/", "/./x", "/v1/..", "/v1/../x", "/x%63", "/a\\b", "/a?b", "/a#", "/a;b", "/\0"]
        {
            assert!(!is_plain(path), "{path}");
        }
    }
}
