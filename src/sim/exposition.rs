//! The text of `/metrics`: vLLM's names, labels and number format.

use std::fmt::Write;

use super::driver::Report;
use super::engine::Parameters;
use super::histogram::Histogram;

/// What the metrics are made of.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    /// From the engine.
    pub(super) report: &'a Report,
    /// Requests that hang without being in the engine.
    pub(super) stalled: u64,
    /// Seconds since the epoch.
    pub(super) started_at: f64,
    /// The `model_name` label.
    pub(super) model: &'a str,
    /// Size of the engine.
    pub(super) parameters: &'a Parameters,
}

/// Writes the metrics in Prometheus' text format.
pub(super) fn write(facts: &Facts<'_>) -> String {
    let labels = format!(r#"engine="0",model_name="{}""#, escape(facts.model));
    let mut page = Page { text: String::with_capacity(8192), labels, started_at: facts.started_at };
    page.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.");
    let _ = writeln!(page.text, "process_start_time_seconds {}", number(facts.started_at));
    gauges(&mut page, facts);
    counters(&mut page, facts);
    let report = facts.report;
    page.histogram(
        "vllm:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        &report.time_to_first_token,
    );
    page.histogram(
        "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        &report.request_time,
    );
    cache_config(&mut page, facts.parameters);
    page.text
}

fn gauges(page: &mut Page, facts: &Facts<'_>) {
    let load = facts.report.load;
    let running = load.running as f64 + facts.stalled as f64;
    let waiting = load.waiting as f64;
    page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running);
    page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting);
    let name = "vllm:num_requests_waiting_by_reason";
    page.family(
        name,
        "gauge",
        "Number of waiting requests by reason. Sum of all reasons equals vllm:num_requests_waiting.",
    );
    page.sample(name, r#",reason="capacity""#, waiting);
    page.sample(name, r#",reason="deferred""#, 0.0);
    let usage = f64::from(load.held_blocks) / f64::from(facts.parameters.kv_blocks);
    page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage);
}

fn counters(page: &mut Page, facts: &Facts<'_>) {
    let totals = facts.report.totals;
    for (name, help, value) in [
        (
            "vllm:prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            totals.queried_tokens,
        ),
        ("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", totals.cached_tokens),
        ("vllm:num_preemptions", "Cumulative number of preemption from the engine.", 0),
        ("vllm:prompt_tokens", "Number of prefill tokens processed.", totals.prompt_tokens),
        ("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", totals.cached_tokens),
        ("vllm:generation_tokens", "Number of generation tokens processed.", totals.generated_tokens),
    ] {
        page.counter(name, help, &[("", value)]);
    }
    // Clients that go away are not counted as aborts here, as in the engine that this imitates.
    page.counter(
        "vllm:request_success",
        "Count of successfully processed requests.",
        &[
            (r#",finished_reason="stop""#, 0),
            (r#",finished_reason="length""#, totals.finished),
            (r#",finished_reason="abort""#, 0),
            (r#",finished_reason="error""#, 0),
        ],
    );
    page.counter(
        "vllm:admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        &[(r#",reason="max_num_queued_reqs""#, totals.rejected), (r#",reason="max_num_queued_tokens""#, 0)],
    );
}

fn cache_config(page: &mut Page, parameters: &Parameters) {
    page.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    let Parameters { block_tokens, kv_blocks, .. } = parameters;
    let tokens = u64::from(*block_tokens) * u64::from(*kv_blocks);
    let _ = writeln!(
        page.text,
        r#"vllm:cache_config_info{{block_size="{block_tokens}",cache_dtype="auto",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="{tokens}",num_cpu_blocks="None",num_gpu_blocks="{kv_blocks}",num_gpu_blocks_override="{kv_blocks}"}} 1.0"#
    );
}

struct Page {
    text: String,
    labels: String,
    started_at: f64,
}

// === impl Page ===

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// `more` is empty or starts with a comma.
    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let _ = writeln!(self.text, "{name}{{{}{more}}} {}", self.labels, number(value));
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, "", value);
    }

    /// A counter and the series that tells when it began.
    fn counter(&mut self, name: &str, help: &str, samples: &[(&str, u64)]) {
        let (total, created) = (format!("{name}_total"), format!("{name}_created"));
        self.family(&total, "counter", help);
        for (more, value) in samples {
            self.sample(&total, more, *value as f64);
        }
        self.family(&created, "gauge", help);
        for (more, _) in samples {
            self.sample(&created, more, self.started_at);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        for (bound, count) in histogram.cumulative() {
            let bound = if bound.is_finite() { number(bound) } else { String::from("+Inf") };
            let _ = writeln!(
                self.text,
                r#"{name}_bucket{{engine="0",le="{bound}",{}}} {}"#,
                self.labels.trim_start_matches(r#"engine="0","#),
                number(count as f64)
            );
        }
        self.sample(&format!("{name}_count"), "", histogram.count() as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum());
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

/// A number as Python's Prometheus client writes it: always with a point, and from a million on with an exponent.
fn number(value: f64) -> String {
    let plain = format!("{value:?}");
    let Some(point) = plain.find('.').filter(|&point| value > 0.0 && point > 6 && !plain.contains('e')) else {
        return plain;
    };
    let digits = format!("{}.{}{}", &plain[..1], &plain[1..point], &plain[point + 1..]);
    let mantissa = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{mantissa}e+{:02}", point - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_as_the_real_engine_spells_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (8.0, "8.0"),
            (0.294_314, "0.294314"),
            (123_456.0, "123456.0"),
            (1_795_964_998.84, "1.79596499884e+09"),
            (10_000_000.0, "1e+07"),
            (1_000_000.0, "1e+06"),
            (4_592_111_616.0, "4.592111616e+09"),
        ] {
            assert_eq!(number(value), text);
            assert_eq!(text.parse::<f64>().unwrap(), value);
        }
    }

    #[test]
    fn a_label_is_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }
}
