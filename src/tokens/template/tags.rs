//! The tags of a template's source: what stands in `{% %}` and `{{ }}`.
//!
//! minijinja keeps its syntax tree to itself, and cannot be given tags of one's own. What is needed of either is little
//! enough to be read from the source.

use std::ops::Range;

/// One tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag<'a> {
    /// A statement, not an expression to print.
    pub(super) is_statement: bool,
    /// Its text without brackets, signs for white space, and white space around.
    pub(super) text: &'a str,
    /// Where the text stands in the source.
    pub(super) at: Range<usize>,
}

/// The tags of a source, in order. Comments are none.
pub(super) fn tags(source: &str) -> Vec<Tag<'_>> {
    let mut tags = Vec::new();
    let mut rest = 0;
    while let Some(open) = source[rest..].find('{').map(|found| rest + found) {
        rest = open + 1;
        let end = match source.as_bytes().get(rest) {
            Some(b'#') => source[rest..].find("#}").map_or(source.len(), |found| rest + found + 2),
            Some(b'%') => tag(source, rest, true, &mut tags),
            Some(b'{') => tag(source, rest, false, &mut tags),
            _ => continue,
        };
        rest = end;
    }
    tags
}

/// Adds the tag whose bracket's second sign stands at `mark`; returns its end.
fn tag<'a>(source: &'a str, mark: usize, is_statement: bool, tags: &mut Vec<Tag<'a>>) -> usize {
    let close = if is_statement { "%}" } else { "}}" };
    let start = mark + 1;
    let end = end_of(source, start, close);
    let inner = &source[start..end];
    let text = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let text = text.strip_suffix(['-', '+']).unwrap_or(text).trim();
    let at = text.as_ptr() as usize - source.as_ptr() as usize;
    tags.push(Tag { is_statement, text, at: at..at + text.len() });
    (end + close.len()).min(source.len())
}

/// Where the bracket closes: not within a string, nor, for `}}`, within an object.
fn end_of(source: &str, start: usize, close: &str) -> usize {
    let bytes = source.as_bytes();
    let mut at = start;
    let mut depth = 0_usize;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => at = end_of_string(bytes, at, quote),
            _ if depth == 0 && bytes[at..].starts_with(close.as_bytes()) => return at,
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    source.len()
}

/// The place of the closing quote.
pub(super) fn end_of_string(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

/// The source without the tags `generation` and `endgeneration`, by which transformers marks what a model said in
/// training. A condition that always holds stands in their place, so that white space around is treated alike.
pub(super) fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    for tag in tags(source).iter().filter(|tag| tag.is_statement) {
        let other = match tag.text {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&source[copied..tag.at.start]);
        out.push_str(other);
        copied = tag.at.end;
    }
    out.push_str(&source[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_end_at_their_own_brackets() {
        let source = "a {%- set x = '%}' -%} b {# {% no %} #}{{ {'a': {'b': 1}}['a'] }}{{- y }} {";
        let texts: Vec<&str> = tags(source).iter().map(|tag| tag.text).collect();
        assert_eq!(texts, ["set x = '%}'", "{'a': {'b': 1}}['a']", "y"]);
    }

    #[test]
    fn an_open_tag_ends_with_the_source() {
        assert_eq!(tags("{% if x")[0].text, "if x");
        assert_eq!(tags("{{ 'x")[0].text, "'x");
    }

    #[test]
    fn marks_of_generation_become_conditions_that_hold() {
        let source = "{%- generation -%}a{%endgeneration+%}{% set generation = 1 %}";
        assert_eq!(without_generation(source), "{%- if true -%}a{%endif+%}{% set generation = 1 %}");
    }
}
