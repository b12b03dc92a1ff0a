//! What Jinja2 and Python have and minijinja has not, or has otherwise: methods of strings, `tojson`, tests, printing.

use std::borrow::Cow;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

use super::repr::{self, JsonForm};

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
    environment.add_filter("safe", safe);
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

/// In Jinja2 this makes a text to which others are added escaped, which minijinja does not follow; next to no template of
/// a chat uses it.
fn safe(_value: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "`safe` is not supported"))
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
