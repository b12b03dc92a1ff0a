//! Sums of texts that a template prints, as `{{ '<|user|>' + message['content'] + '<|end|>' }}`, made to be printed one by
//! one: `{{ '<|user|>' }}{{ (message['content'])|_text }}{{ '<|end|>' }}`. What is printed is the same, but minijinja copies
//! a text twice for each `+`, and these are most of a prompt.
//!
//! A sum with a text that is written out as its first or second part is one of texts, or an error in Jinja2 and here: so
//! `_text` refuses what is none.

use minijinja::{Error, ErrorKind, Value};

use super::tags::{end_of_string, tags};

/// The filter that the rewritten template needs.
pub(super) const TEXT_FILTER: &str = "_text";

/// Words and signs that bind no more tightly than `+`, or may: with one of them outside of brackets it is not a plain sum.
const WORDS: [&str; 7] = ["if", "else", "and", "or", "not", "in", "is"];
const SIGNS: &[u8] = b"-*/%~<>=!,:";

/// Passes a text.
pub(super) fn text(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => Err(Error::new(ErrorKind::InvalidOperation, "only texts can be added to a text")),
    }
}

/// The source with its printed sums of texts taken apart.
pub(super) fn taken_apart(source: &str) -> String {
    let tags = tags(source);
    // What is printed as it stands looks like tags.
    if tags.iter().any(|tag| tag.is_statement && tag.text == "raw") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(2 * source.len());
    let mut copied = 0;
    for tag in tags.iter().filter(|tag| !tag.is_statement) {
        let Some(parts) = parts(tag.text) else { continue };
        out.push_str(&source[copied..tag.at.start]);
        for (place, part) in parts.iter().enumerate() {
            if place > 0 {
                out.push_str(" }}{{ ");
            }
            if is_written_out(part) {
                out.push_str(part);
            } else {
                out.extend(["(", part, ")|", TEXT_FILTER]);
            }
        }
        copied = tag.at.end;
    }
    out.push_str(&source[copied..]);
    out
}

/// What a plain sum of texts adds, as it stands there.
fn parts(expression: &str) -> Option<Vec<&str>> {
    let bytes = expression.as_bytes();
    let (mut parts, mut start, mut depth, mut at) = (Vec::new(), 0, 0_usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => at = end_of_string(bytes, at, quote),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b'+' if depth == 0 => {
                parts.push(expression[start..at].trim());
                start = at + 1;
            }
            sign if depth == 0 && SIGNS.contains(&sign) => return None,
            letter if depth == 0 && is_of_word(letter) => {
                let word = word(&expression[at..]);
                if WORDS.contains(&word) {
                    return None;
                }
                at += word.len() - 1;
            }
            _ => {}
        }
        at += 1;
    }
    parts.push(expression.get(start..)?.trim());
    let is_sum = parts.len() > 1 && parts.iter().all(|part| !part.is_empty());
    (is_sum && parts[..2].iter().any(|part| is_written_out(part))).then_some(parts)
}

/// Whether a part is one text between quotes.
fn is_written_out(part: &str) -> bool {
    let bytes = part.as_bytes();
    matches!(bytes.first(), Some(&quote @ (b'"' | b'\'')) if end_of_string(bytes, 0, quote) + 1 == bytes.len())
}

/// The word that a text begins with.
fn word(text: &str) -> &str {
    let end = text.bytes().position(|byte| !is_of_word(byte)).unwrap_or(text.len());
    &text[..end]
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::super::python;
    use super::*;

    #[test]
    fn sums_of_texts_are_taken_apart() {
        for (source, apart) in [
            ("a {{- 'x' + y -}} b", "a {{- 'x' }}{{ (y)|_text -}} b"),
            ("{{ y['+'] + \"+\" }}", "{{ (y['+'])|_text }}{{ \"+\" }}"),
            ("{{'a' + (x if y else z)+'b'}}", "{{'a' }}{{ ((x if y else z))|_text }}{{ 'b'}}"),
            ("{{ 'a' + m.content | trim + 'b' }}", "{{ 'a' }}{{ (m.content | trim)|_text }}{{ 'b' }}"),
            ("{{ 'it\\'s' + index }}", "{{ 'it\\'s' }}{{ (index)|_text }}"),
        ] {
            assert_eq!(taken_apart(source), apart);
        }
    }

    #[test]
    fn what_is_not_plainly_a_sum_of_texts_stays() {
        for source in [
            "{{ a + b }}",
            "{{ a + b + 'c' }}",
            "{{ 'a' }}",
            "{{ 'a' + b if c else d }}",
            "{{ 'a' + b ~ c }}",
            "{{ 'a' + b == c }}",
            "{{ 'a' + b in c }}",
            "{{ 'a' + -b }}",
            "{{ f('a' + b) }}",
            "{{ 'a' + }}",
            "{% raw %}{{ 'a' + b }}{% endraw %}",
            "{% set x = 'a' + b %}",
            "{# {{ 'a' + b }} #}",
            "'a' + b",
        ] {
            assert_eq!(taken_apart(source), source);
        }
    }

    /// What both forms print; none for an error.
    fn printed(source: &str) -> [Option<String>; 2] {
        [source.to_owned(), taken_apart(source)].map(|source| {
            let mut environment = python::environment();
            environment.set_undefined_behavior(minijinja::UndefinedBehavior::Lenient);
            let values = minijinja::context!(t => "text", n => 7, l => ["x"], none => ());
            environment.render_str(&source, values).ok()
        })
    }

    #[test]
    fn both_forms_print_the_same_or_fail() {
        let operands =
            ["t", "n", "l", "none", "missing", "l[0]", "t|trim", "(t if n else l)", "n|string", "'é'", "t[1:]"];
        for first in operands {
            for second in operands {
                for form in [
                    format!("{{{{- 'a' + {first} + {second} -}}}}"),
                    format!("x {{{{ {first} + '\\n' + {second} }}}} y\n"),
                ] {
                    let [whole, apart] = printed(&form);
                    assert_eq!(apart, whole, "{form}");
                }
            }
        }
    }
}
