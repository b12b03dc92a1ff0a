//! The command line of `warmgate engine`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::engine::{Parameters, Timing};
use super::fault::Order;
use super::options::{ApiKey, EngineOptions};
use super::publisher::KvEventOptions;
use crate::kv_events::Form;

/// Serve one simulated inference engine over HTTP: OpenAI, Anthropic and SGLang endpoints, vLLM metrics, faults on demand.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8001")]
    pub listen: SocketAddr,

    /// Name sent with every answer as `x-sim-engine`.
    #[arg(long, value_name = "NAME", default_value = "sim")]
    pub name: String,

    /// Model served; may be given several times. A request for another model gets 404.
    #[arg(long = "model", value_name = "NAME", default_value = "sim-model")]
    pub models: Vec<String>,

    /// Prompt tokens computed in a second.
    #[arg(long, value_name = "RATE", default_value_t = 8000.0, value_parser = rate)]
    pub prefill_tokens_per_second: f64,

    /// Prefill seconds for one token squared, in nanoseconds: what attention adds to long prompts.
    #[arg(long, value_name = "NANOSECONDS", default_value_t = 0.0, value_parser = zero_or_more)]
    pub prefill_quadratic_ns: f64,

    /// Tokens that a sequence gets in a second while nothing else slows its steps.
    #[arg(long, value_name = "RATE", default_value_t = 100.0, value_parser = rate)]
    pub decode_tokens_per_second: f64,

    /// KV cache size, in blocks.
    #[arg(long, value_name = "BLOCKS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub kv_blocks: u32,

    /// Tokens in a block. A token is four bytes of prompt text, unless there is a tokenizer.
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub block_tokens: u32,

    /// Most sequences computed together.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_seqs: u32,

    /// Most tokens computed in a step; longer prompts are prefilled in chunks.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_batched_tokens: u32,

    /// Most requests waiting; one more gets 503.
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    pub max_num_queued_reqs: u32,

    /// Tokens generated for a request that does not limit them.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub output_tokens: u32,

    /// Seed of the generated text.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,

    /// Seconds that an idle connection stays open.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: u64,

    /// Most connections at a time; more wait to be accepted.
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// The model's tokenizer.json, or the folder that it and its chat template are in; a token's id is then the model's.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,

    /// Publish KV events on a ZeroMQ PUB socket that listens here; port 0 takes a free one. Without a
    /// tokenizer a token's id is its four bytes of prompt text, least significant first.
    #[arg(long, value_name = "ADDR")]
    pub kv_events: Option<SocketAddr>,

    /// Answer requests for a replay of KV events on a ROUTER socket that listens here; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", requires = "kv_events")]
    pub kv_events_replay: Option<SocketAddr>,

    /// Topic of KV events.
    #[arg(long, value_name = "TOPIC", default_value = "", requires = "kv_events")]
    pub kv_events_topic: String,

    /// Messages with KV events kept for replays.
    #[arg(long, value_name = "STEPS", default_value_t = 10_000, requires = "kv_events")]
    pub kv_events_buffer: usize,

    /// Engine whose KV events, and whose answer about where they are, it imitates: vllm (GET /kv_event_sources) or sglang
    /// (GET /server_info).
    #[arg(long, value_name = "FORM", default_value = "vllm", value_parser = form, requires = "kv_events")]
    pub kv_events_form: Form,

    /// Key that clients must send for /v1/... and to ask where KV events are; without it they get 401.
    #[arg(long, value_name = "KEY", value_parser = api_key)]
    pub api_key: Option<ApiKey>,

    /// A fault from the start, as JSON; may be given several times. Example: '{"kind":"status","status":503,"count":3}'.
    #[arg(long = "fault", value_name = "JSON", value_parser = Order::from_json)]
    pub faults: Vec<Order>,
}

// === impl EngineArgs ===

impl EngineArgs {
    /// The settings that these arguments mean.
    pub fn options(self) -> EngineOptions {
        let mut timing = Timing::from_rates(self.prefill_tokens_per_second, self.decode_tokens_per_second);
        timing.prefill_seconds_per_token_squared = self.prefill_quadratic_ns * 1e-9;
        let defaults = EngineOptions::default();
        let kv_events = self.kv_events.map(|publish| KvEventOptions {
            publish,
            replay: self.kv_events_replay,
            topic: self.kv_events_topic,
            buffer_steps: self.kv_events_buffer,
            form: self.kv_events_form,
        });
        EngineOptions {
            listen: self.listen,
            name: self.name,
            models: self.models,
            parameters: Parameters {
                timing,
                block_tokens: self.block_tokens,
                kv_blocks: self.kv_blocks,
                max_num_seqs: self.max_num_seqs as usize,
                step_tokens: self.max_num_batched_tokens,
                max_waiting: self.max_num_queued_reqs as usize,
                ..defaults.parameters
            },
            seed: self.seed,
            output_tokens: self.output_tokens,
            idle_timeout: Duration::from_secs(self.idle_timeout),
            max_connections: self.max_connections as usize,
            tokenizer: self.tokenizer,
            kv_events,
            api_key: self.api_key,
            faults: self.faults,
            ..defaults
        }
    }
}

fn form(text: &str) -> Result<Form, String> {
    match text {
        "vllm" => Ok(Form::Vllm),
        "sglang" => Ok(Form::Sglang),
        _ => Err(String::from("must be vllm or sglang")),
    }
}

fn api_key(text: &str) -> Result<ApiKey, String> {
    if text.is_empty() { Err(String::from("must not be empty")) } else { Ok(ApiKey::new(text.to_owned())) }
}

fn rate(text: &str) -> Result<f64, String> {
    let value = zero_or_more(text)?;
    if value > 0.0 { Ok(value) } else { Err(String::from("must be above 0")) }
}

fn zero_or_more(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| String::from("is not a number"))?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(String::from("must be 0 or more")) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn parse(arguments: &[&str]) -> Result<EngineOptions, String> {
        let all = std::iter::once("engine").chain(arguments.iter().copied());
        Command::try_parse_from(all).map(|command| command.engine.options()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_options() {
        let (parsed, defaults) = (parse(&[]).unwrap(), EngineOptions::default());
        assert_eq!(parsed.parameters, defaults.parameters);
        assert_eq!((parsed.name, parsed.models), (defaults.name, defaults.models));
        assert_eq!((parsed.seed, parsed.output_tokens), (defaults.seed, defaults.output_tokens));
        assert_eq!((parsed.idle_timeout, parsed.max_connections), (defaults.idle_timeout, defaults.max_connections));
    }

    #[test]
    fn kv_events_are_off_unless_they_have_an_address() {
        assert_eq!(parse(&[]).unwrap().kv_events, None);
        let address: SocketAddr = "127.0.0.1:5557".parse().unwrap();
        let parsed = parse(&["--kv-events", "127.0.0.1:5557"]).unwrap().kv_events;
        assert_eq!(parsed, Some(KvEventOptions::at(address)));
        let arguments = ["--kv-events", "127.0.0.1:5557", "--kv-events-form", "sglang", "--kv-events-buffer", "3"];
        let sglang = KvEventOptions { form: Form::Sglang, buffer_steps: 3, ..KvEventOptions::at(address) };
        assert_eq!(parse(&arguments).unwrap().kv_events, Some(sglang));
        assert!(parse(&["--kv-events", "127.0.0.1:5557", "--kv-events-form", "trt"]).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for arguments in [
            ["--prefill-tokens-per-second", "0"],
            ["--decode-tokens-per-second", "nan"],
            ["--kv-blocks", "0"],
            ["--block-tokens", "0"],
            ["--fault", "{}"],
            ["--kv-events-replay", "127.0.0.1:0"],
            ["--api-key", ""],
        ] {
            assert!(parse(&arguments).is_err(), "{arguments:?} was taken");
        }
        assert_eq!(
            parse(&["--fault", r#"{"kind":"stall"}"#, "--fault", r#"{"kind":"freeze"}"#]).unwrap().faults.len(),
            2
        );
    }
}
