//! What Jinja2 and Python have and minijinja has not, or has otherwise: methods of strings, `tojson`, tests, printing.

use std::borrow::Cow;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

use super::repr::{self, JsonForm};
use super::sums;

/// The environment of transformers, but for what depends on the request.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the usual brackets are no two alike"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(format);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    environment.add_filter("trim", trim);
    environment.add_filter("indent", indented);
    environment.add_filter(sums::TEXT_FILTER, sums::text);
    for name in ["safe", "escape", "e"] {
        environment.add_filter(name, marked);
    }
    environment.add_filter("title", |text: &str| title(text));
    environment.add_filter("string", |value: &Value| repr::str(value));
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// White space, as `str.strip` has it: Unicode's, and four control characters that separate.
pub(super) fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\x1c'..='\x1f')
}

/// `str.strip` without arguments.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

fn format(output: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => output.write_str(text).map_err(Error::from),
        None if value.is_undefined() => Ok(()),
        None => output.write_str(&repr::str(value)).map_err(Error::from),
    }
}

fn raise_exception(_message: &Value) -> Result<Value, Error> {
    // The message may hold what the request said, and goes nowhere.
    Err(Error::new(ErrorKind::InvalidOperation, "the template raised an exception"))
}

/// `safe` and `escape`: in Jinja2 they make a text to which others are added escaped, which minijinja does not follow;
/// next to no template of a chat uses them.
fn marked(_value: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "texts that are marked as safe are not supported"))
}

/// `str.title`, as far as it is plain: what begins a word after other characters is not taken over from Python.
fn title(text: &str) -> Result<String, Error> {
    if !text.chars().all(|char| char.is_ascii_alphabetic() || char == ' ') {
        return Err(Error::new(ErrorKind::InvalidOperation, "`title` of more than words is not supported"));
    }
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + &rest.to_ascii_lowercase()
    };
    Ok(text.split(' ').map(word).collect::<Vec<_>>().join(" "))
}

/// Jinja2's `indent`: lines end as in Python's `str.splitlines`, and are joined by line feeds.
fn indented(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    by_name: Kwargs,
) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width),
        None => by_name.get("width")?,
    };
    let first = first.map_or_else(|| by_name.get::<Option<bool>>("first"), |first| Ok(Some(first)))?.unwrap_or(false);
    let blank = blank.map_or_else(|| by_name.get::<Option<bool>>("blank"), |blank| Ok(Some(blank)))?.unwrap_or(false);
    by_name.assert_all_used()?;
    let indention = indent(width)?.unwrap_or_else(|| " ".repeat(4));
    let mut out = if first { indention.clone() } else { String::new() };
    for (at, line) in lines(text).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
    }
    Ok(out)
}

/// The lines of a text and a line feed behind it, as `str.splitlines` gives them.
fn lines(text: &str) -> Vec<&str> {
    let ends =
        |char| matches!(char, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        lines.push(&rest[..at]);
        let end = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        rest = &rest[at + end..];
    }
    // A carriage return at the very end makes one line end with the line feed.
    if !(rest.is_empty() && text.ends_with('\r')) {
        lines.push(rest);
    }
    lines
}

/// Whatever has a length and can be indexed, so strings and objects too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
}

fn trim(value: &Value, chars: Option<&str>) -> Value {
    let text = value.as_str().map_or_else(|| Cow::Owned(repr::str(value)), Cow::Borrowed);
    let trimmed = match chars {
        Some(chars) => text.trim_matches(|char| chars.contains(char)),
        None => strip(&text),
    };
    // Most messages have nothing to trim, and are not copied.
    if value.as_str() == Some(trimmed) { value.clone() } else { Value::from(trimmed) }
}

fn tojson(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let ascii_by_name: Option<bool> = options.get("ensure_ascii")?;
    let mut form = JsonForm {
        ascii: ensure_ascii.or(ascii_by_name).unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: indent(options.get("indent")?)?,
        ..JsonForm::default()
    };
    if form.indent.is_some() {
        form.item_separator = ",".into();
    }
    if let Some((item, key)) = separators(options.get("separators")?)? {
        form.item_separator = item;
        form.key_separator = key;
    }
    options.assert_all_used()?;
    let mut out = String::new();
    form.write(value, 0, &mut out)?;
    Ok(out)
}

fn indent(value: Option<Value>) -> Result<Option<String>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces = value.as_i64().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "indent is no number"))?;
    // More than this is no indentation but a way to much output.
    let spaces = usize::try_from(spaces.clamp(0, 64)).unwrap_or_default();
    Ok(Some(" ".repeat(spaces)))
}

fn separators(value: Option<Value>) -> Result<Option<(String, String)>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    let texts: Vec<Value> = value.try_iter()?.collect();
    match texts.as_slice() {
        [item, key] => Ok(Some((repr::str(item), repr::str(key)))),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "separators are two")),
    }
}

/// Methods that differ from, or are missing in, minijinja's own set.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "strip" | "lstrip" | "rstrip" => return stripped(text, name, args),
            "title" => {
                let () = from_args(args)?;
                return title(text).map(Value::from);
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "partition" | "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                return Ok(partition(text, separator, name == "rpartition"));
            }
            "rsplit" => {
                let (separator, splits): (&str, Option<usize>) = from_args(args)?;
                let mut parts: Vec<&str> = match splits {
                    Some(splits) => text.rsplitn(splits.saturating_add(1), separator).collect(),
                    None => text.rsplit(separator).collect(),
                };
                parts.reverse();
                return Ok(parts.into_iter().map(Value::from).collect());
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn stripped(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let is_stripped = |char| chars.map_or_else(|| is_space(char), |chars| chars.contains(char));
    Ok(Value::from(match name {
        "lstrip" => text.trim_start_matches(is_stripped),
        "rstrip" => text.trim_end_matches(is_stripped),
        _ => text.trim_matches(is_stripped),
    }))
}

fn partition(text: &str, separator: &str, from_right: bool) -> Value {
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Value::from(Tuple::from(parts.map(Value::from)))
}
