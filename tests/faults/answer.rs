//! What one client got for one request, held against what it may get.

use std::io;

use serde_json::Value;
use tokio::time::{Duration, timeout};

use crate::common_control::client::{Connection, Reply};

/// Longer than any limit of the proxy's: who waits for it has been forgotten.
const PATIENCE: Duration = Duration::from_secs(30);

/// How an exchange ended for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A whole answer.
    Whole,
    /// One error in place of an answer: its status and code.
    Refused(u16, String),
    /// A part of a stream, one error event with this code, and the end.
    Event(String),
    /// A part of an answer that cannot have an event behind it, and a broken connection.
    Cut,
    /// The client left.
    Left,
    /// Anything else; what it was.
    Wrong(String),
}

/// Reads the answer to what was sent, and whether the connection is kept. `leave_after` chunks of it the client leaves.
pub(crate) async fn read(connection: &mut Connection, leave_after: Option<usize>) -> (Ending, bool) {
    let head = match timeout(PATIENCE, connection.head()).await {
        Err(_) => return (Ending::Wrong("no answer at all".into()), false),
        Ok(Err(error)) => return (Ending::Wrong(format!("no answer: {error}")), false),
        Ok(Ok(head)) => head,
    };
    let keeps = head.header("connection") != Some("close");
    let ending = match timeout(PATIENCE, body(connection, &head, leave_after)).await {
        Err(_) => Ending::Wrong("an answer without an end".into()),
        Ok(None) => Ending::Left,
        Ok(Some((text, is_whole))) if head.status == 200 && is_stream(&head) => stream(&text, is_whole),
        Ok(Some((_, Err(_)))) if head.status == 200 => Ending::Cut,
        Ok(Some((text, Ok(())))) => plain(head.status, &text),
        Ok(Some((text, Err(error)))) => Ending::Wrong(format!("status {} broke off: {error}: {text}", head.status)),
    };
    let is_whole = matches!(ending, Ending::Whole | Ending::Refused(..) | Ending::Event(_));
    (ending, keeps && is_whole)
}

fn is_stream(head: &Reply) -> bool {
    head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// The body as far as it came, and whether it came whole; none if the client left.
async fn body(
    connection: &mut Connection,
    head: &Reply,
    leave_after: Option<usize>,
) -> Option<(String, io::Result<()>)> {
    if head.header("transfer-encoding") != Some("chunked") {
        let read = connection.body(head).await;
        return Some(match read {
            Ok(body) => (String::from_utf8_lossy(&body).into_owned(), Ok(())),
            Err(error) => (String::new(), Err(error)),
        });
    }
    let (mut whole, mut chunks) = (Vec::new(), 0);
    let is_whole = loop {
        match connection.chunk().await {
            Ok(Some(chunk)) => whole.extend_from_slice(&chunk),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        chunks += 1;
        if leave_after.is_some_and(|most| chunks >= most) {
            return None;
        }
    };
    Some((String::from_utf8_lossy(&whole).into_owned(), is_whole))
}

fn plain(status: u16, text: &str) -> Ending {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return Ending::Wrong(format!("status {status} with {text:?}"));
    };
    match (status, value["error"]["code"].as_str(), value["usage"]["completion_tokens"].as_u64()) {
        (200, None, Some(_)) => Ending::Whole,
        (500.., Some(code), _) => Ending::Refused(status, code.to_owned()),
        // An engine's own error has a number in its place.
        (500.., None, _) if value["error"].is_object() => Ending::Refused(status, "engine".into()),
        _ => Ending::Wrong(format!("status {status} with {text}")),
    }
}

/// A stream is whole, or its last event is an error, or it broke off within a line.
fn stream(text: &str, is_whole: io::Result<()>) -> Ending {
    if is_whole.is_err() {
        let is_within_a_line = !text.ends_with("\n\n");
        return if is_within_a_line { Ending::Cut } else { Ending::Wrong(format!("broke off between events: {text}")) };
    }
    let wrong = |why: &str| Ending::Wrong(format!("{why}: {text}"));
    let events: Vec<&str> = text.split("\n\n").filter(|event| !event.trim().is_empty()).collect();
    let mut datas = events.iter().filter_map(|event| event.trim_start().strip_prefix("data: "));
    let (mut id, mut tokens, mut usage) = (None, 0, None);
    while let Some(data) = datas.next() {
        if data == "[DONE]" {
            return match (datas.next(), usage) {
                (None, Some(count)) if count == tokens => Ending::Whole,
                _ => wrong("a stream with too few tokens, or more behind its end"),
            };
        }
        let Ok(value) = serde_json::from_str::<Value>(data) else { return wrong("no JSON in an event") };
        if !value["error"].is_null() {
            let code = value["error"]["code"].as_str().unwrap_or("engine").to_owned();
            // Engines end their streams as ever behind an error of their own.
            return match datas.next() {
                None => Ending::Event(code),
                Some("[DONE]") if code == "engine" => Ending::Event(code),
                Some(_) => wrong("more behind an error"),
            };
        }
        if *id.get_or_insert_with(|| value["id"].clone()) != value["id"] {
            return wrong("two answers in one");
        }
        tokens += u64::from(value["choices"][0]["delta"]["content"].as_str().is_some_and(|piece| !piece.is_empty()));
        usage = usage.or(value["usage"]["completion_tokens"].as_u64());
    }
    wrong("a stream without an end")
}
