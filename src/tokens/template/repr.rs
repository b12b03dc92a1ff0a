//! Values as Python prints them: `str`, `repr`, and `json.dumps`.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deeper values are refused. Those of requests are no deeper than 128.
const MAX_DEPTH: usize = 256;

/// Options of `json.dumps`.
#[derive(Debug)]
pub(super) struct JsonForm {
    pub(super) ascii: bool,
    pub(super) sort_keys: bool,
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
}

/// `str(value)`.
pub(super) fn str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::new();
            write_repr(value, 0, &mut out);
            out
        }
    }
}

fn write_repr(value: &Value, depth: usize, out: &mut String) {
    if let Some(text) = value.as_str() {
        return write_quoted(text, out);
    }
    match value.kind() {
        _ if depth > MAX_DEPTH => out.push_str("..."),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(value)),
        ValueKind::Seq => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if is_tuple { '(' } else { '[' });
            for (place, element) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if place > 0 { ", " } else { "" });
                write_repr(&element, depth + 1, out);
            }
            out.push_str(if is_tuple && value.len() == Some(1) { "," } else { "" });
            out.push(if is_tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            let members = value.as_object().and_then(|object| object.try_iter_pairs());
            for (place, (name, member)) in members.into_iter().flatten().enumerate() {
                out.push_str(if place > 0 { ", " } else { "" });
                write_repr(&name, depth + 1, out);
                out.push_str(": ");
                write_repr(&member, depth + 1, out);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if char == quote => out.extend(['\\', quote]),
            _ if char.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(char))),
            _ => out.push(char),
        }
    }
    out.push(quote);
}

/// `repr` of a float: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16 on.
fn float(value: &Value) -> String {
    let Ok(number) = f64::try_from(value.clone()) else { return value.to_string() };
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = number.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

// === impl JsonForm ===

impl Default for JsonForm {
    fn default() -> Self {
        Self { ascii: false, sort_keys: false, indent: None, item_separator: ", ".into(), key_separator: ": ".into() }
    }
}

impl JsonForm {
    pub(super) fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "nested too deep for JSON"));
        }
        if let Some(text) = value.as_str() {
            self.write_string(text, out);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::Seq => {
                let elements: Vec<Value> = value.try_iter()?.collect();
                self.write_items(('[', ']'), &elements, depth, out, |element, out| {
                    self.write(element, depth + 1, out)
                })?;
            }
            ValueKind::Map => self.write_map(value, depth, out)?,
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "not serializable as JSON")),
        }
        Ok(())
    }

    fn write_map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        let mut members: Vec<(String, Value)> =
            pairs.into_iter().flatten().map(|(name, member)| (key(&name), member)).collect();
        if self.sort_keys {
            members.sort_by(|(left, _), (right, _)| left.cmp(right));
        }
        self.write_items(('{', '}'), &members, depth, out, |(name, member), out| {
            self.write_string(name, out);
            out.push_str(&self.key_separator);
            self.write(member, depth + 1, out)
        })
    }

    fn write_items<T>(
        &self,
        (open, close): (char, char),
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (place, item) in items.iter().enumerate() {
            out.push_str(if place > 0 { &self.item_separator } else { "" });
            self.write_break(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.write_break(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn write_break(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\0'..'\x20' => out.push_str(&format!("\\u{:04x}", u32::from(char))),
                _ if self.ascii && !(' '..='~').contains(&char) => {
                    let mut units = [0; 2];
                    char.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                }
                _ => out.push(char),
            }
        }
        out.push('"');
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match float(value).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.to_owned(),
    }
}

/// A member's name: what is no string is written as JSON has it.
fn key(name: &Value) -> String {
    match name.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => if name.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number => number(name),
        _ => str(name),
    }
}
