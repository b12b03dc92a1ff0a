use super::*;
use crate::auth::LimitKind;

#[test]
fn a_reply_has_the_form_that_openai_clients_read() {
    let body = Reject::UnknownModel { model: "gpt-9".into() }.body();
    let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let error = &value["error"];
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["param"], "model");
    assert!(error["message"].as_str().unwrap().contains("`gpt-9`"), "{error}");
}

#[test]
fn an_endless_model_name_is_cut_at_a_character() {
    let body = Reject::UnknownModel { model: "ä".repeat(100_000) }.body();
    assert!(body.len() < 500, "{} bytes", body.len());
}

#[test]
fn a_limit_says_which_it_is_and_when_to_come_back() {
    for (kind, named, millis, seconds) in [
        (LimitKind::Requests, "requests", 1, "1"),
        (LimitKind::Concurrent, "requests", 1000, "1"),
        (LimitKind::Tokens, "tokens", 1001, "2"),
        (LimitKind::UncachedTokens, "tokens", 61_000, "61"),
    ] {
        let retry_after = Duration::from_millis(millis);
        let reject = Reject::from(Limited { kind, allowed: std::num::NonZeroU32::MIN, retry_after });
        let header = reject.header(2, "id").unwrap();
        assert_eq!((header.status.as_u16(), &header.headers["retry-after"]), (429, &seconds.parse().unwrap()));
        let value: serde_json::Value = serde_json::from_slice(&reject.body()).unwrap();
        assert_eq!((&value["error"]["code"], &value["error"]["type"]), (&"rate_limit_exceeded".into(), &named.into()));
    }
}

#[test]
fn shedding_says_when_to_come_back() {
    let header = Reject::NoRoom.header(2, "id").unwrap();
    assert_eq!(header.status, 503);
    assert_eq!(header.headers["retry-after"], "1");
    let full =
        |millis| Reject::Shed { refusal: Refusal::Full, pool: "p".into(), estimate: Duration::from_millis(millis) };
    let retry_after = |millis| full(millis).header(2, "id").unwrap().headers["retry-after"].clone();
    assert_eq!([0, 1_000, 1_001, 10_000_000].map(retry_after), ["1", "1", "2", "60"]);
    assert_eq!(full(0).header(2, "id").unwrap().status, 429);
    assert!(!Reject::TimedOut(TimeLimit::Read).header(2, "id").unwrap().headers.contains_key("retry-after"));
}
