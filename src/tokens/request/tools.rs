//! Tools and their calls, in the form that templates get: members in the order in which the engine's types hold them.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::tokens::{NotTokenized, json};

/// The `tools` of a chat; none if there are none.
pub(super) fn of_chat(tools: Option<Value>) -> Result<Option<Value>, NotTokenized> {
    each(tools, |tool| {
        if json::member(tool, "defer_loading").is_some() {
            return Err(NotTokenized::Form("tools"));
        }
        let function = json::member(tool, "function").ok_or(NotTokenized::Form("tools"))?;
        definition(&function, "parameters")
    })
}

/// Those of a Responses request, which have no member `function`.
pub(super) fn of_responses(tools: Option<Value>) -> Result<Option<Value>, NotTokenized> {
    each(tools, |tool| definition(tool, "parameters"))
}

/// Anthropic's.
pub(super) fn of_anthropic(tools: Option<Value>) -> Result<Option<Value>, NotTokenized> {
    let tools = list(tools)?;
    let tools = tools.map(|tools| {
        tools
            .iter()
            .map(|tool| {
                let schema = json::member(tool, "input_schema").ok_or(NotTokenized::Form("tools"))?;
                // The engine adds this one where it is missing.
                let schema = match schema.get_attr("type") {
                    Ok(kind) if kind.is_undefined() => json::with(&schema, "type", Value::from("object")),
                    _ => schema,
                };
                definition(&json::with(tool, "input_schema", schema), "input_schema")
            })
            .collect::<Result<Vec<Value>, _>>()
    });
    tools.transpose().map(|tools| tools.map(Value::from))
}

/// The calls of an assistant's message; none if there are none.
pub(super) fn calls(calls: &Value) -> Result<Option<Value>, NotTokenized> {
    let calls: Vec<Value> = json::list(calls).ok_or(NotTokenized::Form("tool_calls"))?.collect();
    if calls.is_empty() {
        return Ok(None);
    }
    calls.iter().map(call).collect::<Result<Vec<Value>, _>>().map(|calls| Some(Value::from(calls)))
}

fn call(call: &Value) -> Result<Value, NotTokenized> {
    const WRONG: NotTokenized = NotTokenized::Form("tool_calls");
    if json::member(call, "type").is_some_and(|kind| kind.as_str() != Some("function")) {
        return Err(WRONG);
    }
    let function = json::member(call, "function").ok_or(WRONG)?;
    let (id, name) = (json::member(call, "id").ok_or(WRONG)?, json::member(&function, "name").ok_or(WRONG)?);
    let arguments = arguments(json::member(&function, "arguments"))?;
    let function = json::object([("arguments", arguments), ("name", name)]);
    Ok(json::object([("id", id), ("function", function), ("type", Value::from("function"))]))
}

/// The arguments as an object. What the engine takes for broken JSON it makes an empty one, and so is what is no object;
/// but what is broken only here, such as a number too large, is not known.
fn arguments(arguments: Option<Value>) -> Result<Value, NotTokenized> {
    let Some(arguments) = arguments.filter(Value::is_true) else { return Ok(json::empty()) };
    let parsed = match arguments.as_str() {
        Some(text) => json::parse(text.as_bytes()).map_err(|_| NotTokenized::Form("tool call arguments"))?,
        None => arguments,
    };
    Ok(if parsed.kind() == ValueKind::Map { parsed } else { json::empty() })
}

fn list(tools: Option<Value>) -> Result<Option<Vec<Value>>, NotTokenized> {
    let Some(tools) = tools else { return Ok(None) };
    json::list(&tools).map(|tools| Some(tools.collect())).ok_or(NotTokenized::Form("tools"))
}

fn each(
    tools: Option<Value>,
    definition: impl Fn(&Value) -> Result<Value, NotTokenized>,
) -> Result<Option<Value>, NotTokenized> {
    let Some(tools) = list(tools)?.filter(|tools| !tools.is_empty()) else { return Ok(None) };
    let tools = tools.iter().map(|tool| {
        // Tools of other types are run by the engine, or known to few.
        match json::member(tool, "type").as_ref().map(|kind| kind.as_str()) {
            None | Some(Some("function")) => definition(tool),
            Some(_) => Err(NotTokenized::Form("tools")),
        }
    });
    tools.collect::<Result<Vec<Value>, _>>().map(|tools| Some(Value::from(tools)))
}

/// One tool, from the object that has its name; what is not set but for the first three members is left out.
fn definition(function: &Value, parameters: &'static str) -> Result<Value, NotTokenized> {
    let name = json::member(function, "name").ok_or(NotTokenized::Form("tools"))?;
    let or_null = |name| json::member(function, name).unwrap_or_else(|| Value::from(()));
    let mut members =
        vec![("name", name), ("description", or_null("description")), ("parameters", or_null(parameters))];
    members
        .extend(["strict", "defer_loading"].into_iter().filter_map(|name| Some((name, json::member(function, name)?))));
    Ok(json::object([("type", Value::from("function")), ("function", json::object(members))]))
}
