//! Reads what an engine says of itself on `/metrics`: the Prometheus text format, for the few names that matter.
//!
//! Names and their meaning by engine: vLLM 0.8 to 0.32 (`vllm:`), SGLang 0.5 (`sglang:`). A data-parallel engine repeats
//! a gauge once a rank; ranks are added up. SGLang repeats it once a tensor-parallel rank as well; those are one engine,
//! so the largest counts. Unknown names, and lines that are not metrics, are passed over: an engine may say more.

use std::collections::BTreeMap;

/// What one scrape said. Absent where the engine does not say it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSample {
    /// Requests in the engine's batch.
    pub running: Option<f64>,
    /// Requests waiting inside the engine.
    pub waiting: Option<f64>,
    /// Share of KV blocks held by live requests, 0 to 1; the fullest rank's.
    pub kv_usage: Option<f64>,
    /// Tokens a block.
    pub block_tokens: Option<u32>,
    /// KV cache size over all ranks, tokens.
    pub capacity_tokens: Option<u64>,
    /// Start of the engine's process, seconds since 1970.
    pub started_at: Option<f64>,
    /// A count of prompt tokens that only grows while the process lives.
    pub prompt_tokens_total: Option<f64>,
    /// A count of prompt tokens that came from the prefix cache.
    pub cached_tokens_total: Option<f64>,
}

/// One line of the format: `name{labels} value`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Series<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

/// A gauge by rank: added over ranks, the largest within one.
#[derive(Debug, Default)]
struct ByRank<'a>(BTreeMap<&'a str, f64>);

// === impl EngineSample ===

impl EngineSample {
    /// Reads a whole `/metrics` body.
    pub fn read(text: &str) -> Self {
        Self::read_if(text, |_| true)
    }

    /// The same for one data-parallel rank: what is said of other ranks is left out.
    pub fn read_rank(text: &str, rank: u32) -> Self {
        let rank = rank.to_string();
        Self::read_if(text, |series| series.rank().is_none_or(|of| of == rank))
    }

    fn read_if(text: &str, takes: impl Fn(&Series<'_>) -> bool) -> Self {
        let mut reading = Reading::default();
        for series in text.lines().filter_map(Series::parse).filter(takes) {
            reading.take(series);
        }
        reading.finish()
    }

    /// Cached prompt tokens counted since `earlier`, a sample of the same process.
    pub fn cached_tokens_since(&self, earlier: &Self) -> Option<u64> {
        let counts = self.cached_tokens_total.zip(earlier.cached_tokens_total);
        counts.filter(|(now, before)| now >= before).map(|(now, before)| (now - before) as u64)
    }

    /// Whether `self`, scraped after `earlier`, is of another process: it started at another time, or a count that only
    /// grows went back. None if the two have nothing in common by which to tell.
    pub fn is_restart_after(&self, earlier: &Self) -> Option<bool> {
        if let (Some(now), Some(before)) = (self.started_at, earlier.started_at) {
            return Some((now - before).abs() > 0.5);
        }
        let counts = self.prompt_tokens_total.zip(earlier.prompt_tokens_total);
        counts.map(|(now, before)| now < before)
    }

    /// Whether a later sample can be told to be of another process.
    pub fn identifies_process(&self) -> bool {
        self.started_at.is_some() || self.prompt_tokens_total.is_some()
    }
}

#[derive(Debug, Default)]
struct Reading<'a> {
    running: ByRank<'a>,
    waiting: ByRank<'a>,
    kv_usage: ByRank<'a>,
    prompt_tokens: ByRank<'a>,
    cached_tokens: ByRank<'a>,
    capacity: ByRank<'a>,
    block_tokens: Option<u32>,
    pages: ByRank<'a>,
    started_at: Option<f64>,
}

// === impl Reading ===

impl<'a> Reading<'a> {
    fn take(&mut self, series: Series<'a>) {
        match series.name {
            "vllm:num_requests_running" | "sglang:num_running_reqs" => self.running.take(series),
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => self.waiting.take(series),
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                self.kv_usage.take(series);
            }
            "vllm:prompt_tokens_total" | "sglang:prompt_tokens_total" => self.prompt_tokens.take(series),
            "vllm:prefix_cache_hits_total" | "sglang:cached_tokens_total" => self.cached_tokens.take(series),
            "sglang:max_total_num_tokens" => self.capacity.take(series),
            "sglang:num_pages" => self.pages.take(series),
            "sglang:page_size" => self.block_tokens = whole(series.value),
            "vllm:cache_config_info" => self.take_cache_config(series),
            "process_start_time_seconds" => self.started_at = Some(series.value),
            _ => {}
        }
    }

    fn take_cache_config(&mut self, series: Series<'a>) {
        let number = |key| series.label(key).and_then(|value| value.parse::<u32>().ok()).filter(|&number| number > 0);
        let (Some(block_tokens), Some(blocks)) = (number("block_size"), number("num_gpu_blocks")) else { return };
        self.block_tokens = Some(block_tokens);
        self.capacity.take(Series { value: f64::from(block_tokens) * f64::from(blocks), ..series });
    }

    fn finish(self) -> EngineSample {
        let pages = self.pages.sum().zip(self.block_tokens).map(|(pages, tokens)| pages * f64::from(tokens));
        EngineSample {
            running: self.running.sum(),
            waiting: self.waiting.sum(),
            kv_usage: self.kv_usage.largest().map(|usage| usage.clamp(0.0, 1.0)),
            block_tokens: self.block_tokens,
            // A float to integer cast saturates, and a negative count reads as none.
            capacity_tokens: self.capacity.sum().or(pages).map(|tokens| tokens as u64).filter(|&tokens| tokens > 0),
            started_at: self.started_at,
            prompt_tokens_total: self.prompt_tokens.sum(),
            cached_tokens_total: self.cached_tokens.sum(),
        }
    }
}

// === impl ByRank ===

impl<'a> ByRank<'a> {
    fn take(&mut self, series: Series<'a>) {
        let held = self.0.entry(series.rank().unwrap_or_default()).or_insert(series.value);
        *held = held.max(series.value);
    }

    fn sum(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.values().sum())
    }

    fn largest(&self) -> Option<f64> {
        self.0.values().copied().reduce(f64::max)
    }
}

// === impl Series ===

impl<'a> Series<'a> {
    /// Parses a line; `None` for comments, and for what is not a finite sample from zero on: all that is read counts
    /// something.
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (name, labels, rest) = match line.find('{') {
            Some(open) => {
                let close = line.rfind('}').filter(|&close| close > open)?;
                (&line[..open], &line[open + 1..close], &line[close + 1..])
            }
            None => {
                let end = line.find(char::is_whitespace)?;
                (&line[..end], "", &line[end..])
            }
        };
        // A timestamp may follow the value.
        let value =
            rest.split_whitespace().next()?.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)?;
        Some(Self { name: name.trim_end(), labels, value })
    }

    /// The data-parallel rank that it is about, if it says so.
    fn rank(&self) -> Option<&'a str> {
        self.label("dp_rank").or_else(|| self.label("engine"))
    }

    /// The raw value of a label (none of those that are read here can hold an escape).
    fn label(&self, key: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (name, after) = rest.split_once("=\"")?;
            let end = closing_quote(after)?;
            if name.trim_start_matches([',', ' ']) == key {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
    }
}

/// Where the quote stands that ends a label's value.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

/// A positive whole number that fits.
fn whole(value: f64) -> Option<u32> {
    (value >= 1.0 && value <= f64::from(u32::MAX)).then_some(value as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn vllm_names_are_read() {
        let text = r#"# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny, \"x\"}"} 8.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.294
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1.2e+04
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="300"} 1.0
process_start_time_seconds 1.7e9
"#;
        let sample = EngineSample::read(text);
        assert_eq!(sample.running, Some(8.0));
        assert_eq!(sample.waiting, Some(3.0));
        assert_eq!(sample.kv_usage, Some(0.294));
        assert_eq!((sample.block_tokens, sample.capacity_tokens), (Some(32), Some(9600)));
        assert_eq!(sample.started_at, Some(1.7e9));
        assert_eq!(sample.prompt_tokens_total, Some(12_000.0));
    }

    #[test]
    fn data_parallel_ranks_add_up_and_tensor_parallel_ranks_do_not() {
        let text = r#"sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 2
sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 2
sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 5
sglang:token_usage{dp_rank="0"} 0.2
sglang:token_usage{dp_rank="1"} 0.9
sglang:page_size 16
sglang:num_pages{dp_rank="0"} 100
"#;
        let sample = EngineSample::read(text);
        assert_eq!(sample.running, Some(7.0));
        assert_eq!(sample.kv_usage, Some(0.9), "the fullest rank limits");
        assert_eq!(sample.capacity_tokens, Some(1600));
        let rank = EngineSample::read_rank(text, 1);
        assert_eq!((rank.running, rank.kv_usage), (Some(5.0), Some(0.9)), "its own alone");
        assert_eq!(rank.block_tokens, Some(16), "what names no rank is everyone's");
    }

    #[test]
    fn what_counts_something_is_never_below_zero() {
        // Found by fuzzing.
        let text = "sglang:num_queue_reqs{model=\"m\"} -2\nvllm:num_requests_running 3\nvllm:num_requests_running -1\n";
        let sample = EngineSample::read(text);
        assert_eq!((sample.waiting, sample.running), (None, Some(3.0)));
    }

    #[test]
    fn cached_tokens_are_counted_between_two_samples_of_one_process() {
        let sample = |hits: &str| EngineSample::read(&format!("vllm:prefix_cache_hits_total{{engine=\"0\"}} {hits}\n"));
        assert_eq!(sample("160.0").cached_tokens_since(&sample("64.0")), Some(96));
        assert_eq!(sample("1.0").cached_tokens_since(&sample("64.0")), None, "the count went back");
        assert_eq!(EngineSample::read("").cached_tokens_since(&sample("64.0")), None);
    }

    #[test]
    fn a_restart_shows_by_start_time_or_by_a_count_going_back() {
        let sample = |started_at, prompt_tokens_total| EngineSample {
            started_at,
            prompt_tokens_total,
            ..EngineSample::default()
        };
        let earlier = sample(Some(100.0), Some(5.0));
        assert_eq!(sample(Some(200.0), Some(9.0)).is_restart_after(&earlier), Some(true));
        assert_eq!(sample(Some(100.0), Some(9.0)).is_restart_after(&earlier), Some(false));
        assert_eq!(sample(None, Some(1.0)).is_restart_after(&earlier), Some(true), "a count that went back");
        assert_eq!(sample(None, Some(5.0)).is_restart_after(&earlier), Some(false));
        assert_eq!(sample(None, None).is_restart_after(&earlier), None, "nothing to compare");
        assert!(earlier.identifies_process() && !sample(None, None).identifies_process());
    }

    #[test]
    fn the_recorded_vllm_metrics_are_read() {
        let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/fixtures/vllm/metrics/vllm-0.32.0-loaded.txt");
        let Ok(text) = std::fs::read_to_string(recorded) else {
            eprintln!("skipped: the recorded metrics are not beside the project");
            return;
        };
        let sample = EngineSample::read(&text);
        assert_eq!((sample.running, sample.waiting), (Some(8.0), Some(8.0)));
        assert_eq!((sample.block_tokens, sample.capacity_tokens), (Some(32), Some(9600)));
        assert!((0.29..0.30).contains(&sample.kv_usage.unwrap()), "{sample:?}");
        assert!(sample.started_at.is_some(), "{sample:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC*") {
            EngineSample::read(&text);
        }

        #[test]
        fn arbitrary_metric_like_lines_never_panic(
            lines in prop::collection::vec("(vllm:cache_config_info|sglang:page_size)[{}=\", a-z0-9.eE+\\\\-]{0,40}", 0..20),
        ) {
            EngineSample::read(&lines.join("\n"));
        }
    }
}
