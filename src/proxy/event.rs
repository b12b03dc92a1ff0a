//! Events that we add to an event stream, in the form that the clients of an endpoint read.

use bytes::Bytes;

use super::reject::Reject;
use crate::request::Endpoint;

/// The event that tells of `reject`.
pub(super) fn of_reject(reject: &Reject, endpoint: Option<Endpoint>) -> Bytes {
    let body = match endpoint {
        Some(Endpoint::Messages) => reject.anthropic_body(),
        _ => reject.body(),
    };
    of_json(&body, true, endpoint)
}

/// The event with this JSON.
pub(super) fn of_json(json: &[u8], is_error: bool, endpoint: Option<Endpoint>) -> Bytes {
    // In JSON these stand between values only, so what they are does not matter.
    let line: Vec<u8> = json.iter().map(|&byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }).collect();
    let name: &[u8] = match endpoint {
        Some(Endpoint::Messages | Endpoint::Responses) if is_error => b"event: error\n",
        _ => b"",
    };
    [name, b"data: ", &line, b"\n\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::pool::TimeLimit;
    use crate::queue::Refusal;

    fn told(reject: &Reject, endpoint: Endpoint, before: &str) -> Value {
        let event = String::from_utf8(of_reject(reject, Some(endpoint)).to_vec()).unwrap();
        serde_json::from_str(event.strip_prefix(before).unwrap().strip_suffix("\n\n").unwrap()).unwrap()
    }

    #[test]
    fn an_error_has_the_form_of_its_endpoint() {
        let reject = Reject::TimedOut(TimeLimit::BetweenTokens);
        let chat = told(&reject, Endpoint::ChatCompletions, "data: ");
        assert_eq!(chat["error"]["code"], "between_tokens_timeout");
        let responses = told(&reject, Endpoint::Responses, "event: error\ndata: ");
        assert_eq!(responses["error"]["code"], "between_tokens_timeout");
        let messages = told(&reject, Endpoint::Messages, "event: error\ndata: ");
        assert_eq!((&messages["type"], &messages["error"]["type"]), (&"error".into(), &"api_error".into()));
    }

    #[test]
    fn a_refusal_keeps_its_kind_in_every_form() {
        let full = Reject::Shed { refusal: Refusal::Full, pool: "p".into(), estimate: std::time::Duration::ZERO };
        let chat = told(&full, Endpoint::ChatCompletions, "data: ");
        let messages = told(&full, Endpoint::Messages, "event: error\ndata: ");
        assert_eq!([&chat["error"]["type"], &messages["error"]["type"]], ["rate_limit_error"; 2]);
    }

    #[test]
    fn where_events_have_names_an_error_has_one_and_its_lines_are_one() {
        assert_eq!(&of_json(b"{\n}\r\n", true, Some(Endpoint::Messages))[..], b"event: error\ndata: { }  \n\n");
        assert_eq!(&of_json(b"{}", false, Some(Endpoint::Messages))[..], b"data: {}\n\n");
    }
}
