//! What routers ask engines besides passing requests on, and how a vLLM with one model answers. Short answers: a router is
//! not to be slow because of what it has to read.

/// The path that says how many requests the engines have had, this one not among them. Only the bench itself asks.
pub(crate) const COUNT_PATH: &str = "/bench/requests";

const MODELS: &str = r#"{"object":"list","data":[{"id":"bench","object":"model","created":1790000000,"owned_by":"vllm","root":"bench","parent":null,"max_model_len":1048576}]}"#;

/// Prompts as token ids; vllm-router asks for them. Real ones are thousands, which it would have to read as well.
const RENDERED: &str = r#"{"request_id":"render-7e0d1fb3","model":"bench","token_ids":[1,2,3,4],"sampling_params":{}}"#;

/// What SGLang has and vLLM has not: routers ask for it to learn which of them they talk to.
const UNKNOWN: [&str; 6] =
    ["/server_info", "/get_server_info", "/model_info", "/get_model_info", "/loads", "/v1/loads"];

/// The whole response, if this is such a question and not a request that was passed on.
pub(crate) fn answer(first_line: &str) -> Option<String> {
    let target = first_line.split(' ').nth(1)?;
    match target.split('?').next()? {
        "/v1/models" => Some(response("200 OK", MODELS)),
        path if path.ends_with("/render") => Some(response("200 OK", RENDERED)),
        path if UNKNOWN.contains(&path) => Some(response("404 Not Found", r#"{"detail":"Not Found"}"#)),
        _ => None,
    }
}

/// The answer at [`COUNT_PATH`].
pub(crate) fn count(first_line: &str, requests: u64) -> Option<String> {
    (first_line.split(' ').nth(1) == Some(COUNT_PATH)).then(|| response("200 OK", &requests.to_string()))
}

fn response(status: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
