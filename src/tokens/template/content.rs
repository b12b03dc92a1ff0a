//! Which form of content a template takes: one text, or a list of parts.
//!
//! vLLM finds it out by walking the template's syntax tree (`_detect_content_format` in its `renderers/hf.py`): a template
//! takes parts if it loops over the content of a message. Here the same rules are applied to the source's tags.

use super::tags::{Tag, end_of_string, tags};

/// The form of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tokens) enum ContentFormat {
    /// One text; parts are joined by line breaks.
    String,
    /// A list of parts, also for a message of one text.
    Parts,
}

/// A loop of a template.
struct Loop<'a> {
    target: &'a str,
    over: &'a str,
    /// The macro that it stands in.
    within: Option<usize>,
}

/// A macro and its parameters.
struct Macro<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
}

/// What is read from a template.
#[derive(Default)]
struct Outline<'a> {
    /// Names and what they are set to.
    assignments: Vec<(&'a str, &'a str)>,
    loops: Vec<Loop<'a>>,
    macros: Vec<Macro<'a>>,
}

// === impl ContentFormat ===

impl ContentFormat {
    /// That of a template.
    pub(super) fn of(source: &str) -> Self {
        let tags = tags(source);
        let outline = Outline::of(&tags);
        if outline.loops_over_content(&tags) { Self::Parts } else { Self::String }
    }
}

// === impl Outline ===

impl<'a> Outline<'a> {
    fn of(tags: &[Tag<'a>]) -> Self {
        let mut outline = Self::default();
        let mut within = None;
        for tag in tags.iter().filter(|tag| tag.is_statement) {
            let (word, rest) = tag.text.split_once(char::is_whitespace).unwrap_or((tag.text, ""));
            match word {
                "set" => outline.assignments.extend(rest.split_once('=').map(|(name, to)| (name.trim(), to.trim()))),
                "for" => outline.loops.extend(Loop::of(rest, within)),
                "macro" => {
                    outline.macros.extend(Macro::of(rest));
                    within = outline.macros.len().checked_sub(1);
                }
                "endmacro" => within = None,
                _ => {}
            }
        }
        outline
    }

    fn loops_over_content(&self, tags: &[Tag<'_>]) -> bool {
        let messages = self.names_of_messages();
        let is_content = |text: &str| messages.iter().any(|name| is_access(text, name, Some("content")));
        self.loops.iter().any(|each| {
            let over = base(each.over);
            if is_content(over) {
                return true;
            }
            match each.within.map(|place| &self.macros[place]) {
                None => over == "content",
                Some(within) => within.parameters.iter().enumerate().any(|(place, parameter)| {
                    *parameter == over
                        && calls(tags, within.name).any(|call| is_content(call.argument(place, parameter)))
                }),
            }
        })
    }

    /// The targets of loops over `messages`, or over a name that was set to them.
    fn names_of_messages(&self) -> Vec<&'a str> {
        let mut lists = vec!["messages"];
        let mut known = 0;
        while let Some(list) = lists.get(known).copied() {
            known += 1;
            for (name, to) in &self.assignments {
                if is_access(to, list, None) && !lists.contains(name) {
                    lists.push(name);
                }
            }
        }
        let over_messages = |each: &&Loop<'_>| lists.iter().any(|list| is_access(each.over, list, None));
        self.loops.iter().filter(over_messages).map(|each| each.target).collect()
    }
}

impl<'a> Loop<'a> {
    fn of(text: &'a str, within: Option<usize>) -> Option<Self> {
        let (target, over) = text.split_once(" in ")?;
        let over = over.split_once(" if ").map_or(over, |(over, _)| over);
        let over = over.trim().strip_suffix(" recursive").unwrap_or(over).trim();
        Some(Self { target: target.trim(), over, within })
    }
}

impl<'a> Macro<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (name, rest) = text.split_once('(')?;
        let parameters = rest.trim_end().strip_suffix(')').unwrap_or(rest);
        let name_of = |parameter: &'a str| parameter.split('=').next().unwrap_or(parameter).trim();
        Some(Self { name: name.trim(), parameters: arguments(parameters).into_iter().map(name_of).collect() })
    }
}

/// The arguments of one call.
struct Call<'a>(Vec<&'a str>);

impl<'a> Call<'a> {
    /// The argument for the parameter of that place and name.
    fn argument(&self, place: usize, name: &str) -> &'a str {
        let named = |argument: &&'a str| {
            argument.split_once('=').filter(|(other, to)| other.trim() == name && !to.starts_with('='))
        };
        let by_name = self.0.iter().find_map(named).map(|(_, to)| to.trim());
        by_name.or_else(|| self.0.get(place).copied()).unwrap_or_default()
    }
}

/// The calls of a macro within the tags.
fn calls<'a>(tags: &[Tag<'a>], name: &str) -> impl Iterator<Item = Call<'a>> {
    let mut calls = Vec::new();
    for tag in tags.iter().filter(|tag| !tag.text.starts_with("macro")) {
        for (found, _) in tag.text.match_indices(name) {
            let is_part =
                tag.text[..found].ends_with(|char: char| char.is_alphanumeric() || char == '_' || char == '.');
            let rest = &tag.text[found + name.len()..];
            if let Some(rest) = rest.strip_prefix('(').filter(|_| !is_part) {
                calls.push(Call(arguments(&rest[..closing(rest)])));
            }
        }
    }
    calls.into_iter()
}

/// What commas outside of brackets and strings part.
fn arguments(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for at in top_level(text).filter(|at| text.as_bytes()[*at] == b',') {
        parts.push(text[start..at].trim());
        start = at + 1;
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Where the bracket that was opened before `text` closes.
fn closing(text: &str) -> usize {
    top_level(text).find(|at| text.as_bytes()[*at] == b')').unwrap_or(text.len())
}

/// The places of a text that are in no bracket and no string.
fn top_level(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let here = at;
            at += 1;
            match bytes[here] {
                quote @ (b'"' | b'\'') => at = end_of_string(bytes, here, quote) + 1,
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' if depth > 0 => depth -= 1,
                _ if depth == 0 => return Some(here),
                _ => {}
            }
        }
        None
    })
}

/// An expression without filters, tests and slices: `a` of `a[1:] | list is string`.
fn base(text: &str) -> &str {
    let mut text = text.trim();
    if let Some(bar) = top_level(text).find(|at| text.as_bytes()[*at] == b'|') {
        text = text[..bar].trim();
    }
    if let Some((before, _)) = text.split_once(" is ") {
        text = before.trim();
    }
    while let Some(open) = text.strip_suffix(']').and_then(|inner| inner.rfind('[')) {
        if !text[open..].contains(':') {
            break;
        }
        text = text[..open].trim();
    }
    text
}

/// Whether an expression is the variable, or a member of it, but for filters, tests and slices.
fn is_access(text: &str, name: &str, member: Option<&str>) -> bool {
    let Some(rest) = base(text).strip_prefix(name) else { return false };
    match member {
        None => rest.is_empty(),
        Some(member) => {
            let quoted = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::trim);
            rest.strip_prefix('.') == Some(member)
                || quoted.is_some_and(|quoted| {
                    ['\'', '"'].iter().any(|quote| {
                        quoted.strip_prefix(*quote).and_then(|text| text.strip_suffix(*quote)) == Some(member)
                    })
                })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_loops_over_content_takes_parts() {
        let takes_parts = [
            "{% for message in messages %}{% for part in message['content'] %}{% endfor %}{% endfor %}",
            "{%- for m in messages[1:] -%}{%- for part in m.content | list -%}{%- endfor -%}{%- endfor -%}",
            "{% set loop_messages = messages %}{% for m in loop_messages if m.role %}{% for x in m[\"content\"] %}{% endfor %}{% endfor %}",
            "{% for message in messages %}{% set content = message.content %}{% for c in content %}{% endfor %}{% endfor %}",
            "{% macro text(c, sep='') %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ text(m.content, 'a') }}{% endfor %}",
            "{% macro text(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ text(c=m.content) }}{% endfor %}",
        ];
        for source in takes_parts {
            assert_eq!(ContentFormat::of(source), ContentFormat::Parts, "{source}");
        }
    }

    #[test]
    fn any_other_template_takes_one_text() {
        let takes_text = [
            "{% for message in messages %}{{ message['content'] }}{% endfor %}",
            "{% for message in messages %}{% for call in message.tool_calls %}{% endfor %}{% endfor %}",
            "{% macro list(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ list(m.tools) }}{% endfor %}",
            "{% macro list(content) %}{% for p in content %}{% endfor %}{% endmacro %}",
            "{# {% for c in content %} #}{{ messages }}",
            "{{ '{% for c in content %}' }}",
            "no tags",
            "{% for",
        ];
        for source in takes_text {
            assert_eq!(ContentFormat::of(source), ContentFormat::String, "{source}");
        }
    }
}
