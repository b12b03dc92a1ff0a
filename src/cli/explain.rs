//! `warmgate explain`: asks the running proxy's admin listener and prints what it says.

use std::error::Error;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use super::output::print;
use crate::client::Client;
use crate::config::{self, Secret};

/// How long the proxy may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Terms smaller than this are left out: they would be shown as 0.
const SHOWN_SECONDS: f64 = 0.000_05;

/// What cannot stand in a query's value as it is.
const CODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// What to explain.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The configuration of the running proxy: it says where the admin listener is, and its token
    #[arg(long, short, value_name = "FILE", required_unless_present = "admin")]
    config: Option<PathBuf>,
    /// Where the admin listener is, for whoever cannot read the configuration and the files that it names
    #[arg(long, value_name = "IP:PORT", conflicts_with = "config")]
    admin: Option<SocketAddr>,
    /// A file with the admin listener's token, if it has one
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    token_file: Option<PathBuf>,
    /// Whose request it would be, by the label of the keys_file
    #[arg(long, value_name = "LABEL")]
    caller: Option<String>,
    /// The request's body (JSON)
    #[arg(long, short, value_name = "FILE")]
    body: PathBuf,
    /// The path that the request would be sent to
    #[arg(long, default_value = "/v1/chat/completions", value_name = "PATH")]
    path: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn explain(args: &ExplainArgs) -> Result<ExitCode, Box<dyn Error>> {
    let (address, token) = listener(args)?;
    let body = std::fs::read(&args.body).map_err(|error| format!("{}: {error}", args.body.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = Client::for_address(address, LIMIT).with_key(token.as_ref());
    let caller = args.caller.as_ref().map(|label| format!("&caller={}", encoded(label))).unwrap_or_default();
    let path = format!("/explain?path={}{caller}", encoded(&args.path));
    let reply = runtime
        .block_on(client.ask(address, Method::POST, &path, Bytes::from(body)))
        .map_err(|error| format!("no answer from the admin listener at {address} ({error}); is the proxy running?"))?;
    if reply.status == 401 {
        let right =
            "the token of its admin.token_file: give its file as --token-file, or its configuration as --config";
        return Err(format!("the admin listener at {address} wants {right}").into());
    }
    let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    if let Some(message) = answer.pointer("/error/message").and_then(Value::as_str) {
        return Err(message.to_owned().into());
    }
    if let Some(detail) = answer["detail"].as_str() {
        return Err(format!("the admin listener at {address} refused: {detail}").into());
    }
    if !answer["pool"].is_string() {
        return Err(format!("what answers at {address} is no admin listener; its address is admin.address").into());
    }
    if args.json {
        print(serde_json::to_string_pretty(&answer)?)?;
    } else {
        print(table(&answer).trim_end_matches('\n'))?;
    }
    Ok(if reply.status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where the admin listener is, and its token.
fn listener(args: &ExplainArgs) -> Result<(SocketAddr, Option<Secret>), Box<dyn Error>> {
    if let Some(file) = &args.config {
        let admin = config::load(file)?.admin;
        return Ok((admin.address, admin.token));
    }
    let token = args.token_file.as_ref().map(|file| {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok::<_, String>(Secret::new(text.trim_end()))
    });
    Ok((args.admin.ok_or("neither --config nor --admin says where the admin listener is")?, token.transpose()?))
}

/// As it may stand in a query.
fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, CODED)
}

/// The explanation for people: the prompt in a line, then a line a backend, the cheapest first.
fn table(answer: &Value) -> String {
    let mut out = String::new();
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let _ = writeln!(
        out,
        "pool {}, policy {}: {} prompt tokens in {} blocks of {} tokens",
        word(&answer["pool"]),
        word(&answer["policy"]),
        answer["prompt_tokens"],
        answer["blocks"],
        answer["block_tokens"],
    );
    if let Some(caller) = answer["caller"].as_object() {
        let known: Vec<String> = caller.iter().map(|(name, value)| format!("{name} {}", unquoted(value))).collect();
        let _ = writeln!(out, "caller: {}", known.join(", "));
    }
    if answer["prompt_tokens"] == 0 {
        let _ = writeln!(out, "the request carries no prompt that is known at its path: it goes by load");
    }
    if answer["is_deferred"] == true {
        let _ = writeln!(out, "its prefill is long and backends are busy: it would wait (queue.max_defer)");
    }
    match answer["tokenizer"].as_str() {
        Some("tokenized") | None => {}
        Some(why) => {
            let _ = writeln!(out, "its token ids are not known ({why}): it is cut by bytes, and locality is assumed");
        }
    }
    let _ = writeln!(
        out,
        "{:<28} {:>9} {:>9} {:>9} {:>10} {:>8}  terms, s",
        "backend", "matched", "by", "uncached", "cost, s", ""
    );
    for backend in answer["backends"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "{}", row(backend));
    }
    out
}

fn unquoted(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn row(backend: &Value) -> String {
    let name = backend["name"].as_str().unwrap_or("-");
    if let Some(why) = backend["excluded"].as_str() {
        return format!("{name:<28} {:>9} {:>9} {:>9} {:>10} {:>8}  {why}", "-", "-", "-", "-", "out");
    }
    let mark = if backend["is_chosen"] == true { "chosen" } else { "" };
    let terms: Vec<String> = backend["terms"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(term, seconds)| Some((term, seconds.as_f64()?)))
        .filter(|(_, seconds)| *seconds >= SHOWN_SECONDS)
        .map(|(term, seconds)| format!("{term} {seconds:.4}"))
        .collect();
    format!(
        "{name:<28} {:>9} {:>9} {:>9} {:>10.4} {mark:>8}  {}",
        backend["matched_tokens"].to_string(),
        backend["trust"].as_str().unwrap_or("-"),
        backend["uncached_tokens"].to_string(),
        backend["cost_seconds"].as_f64().unwrap_or_default(),
        terms.join(", "),
    )
}
