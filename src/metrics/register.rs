//! The names and descriptions under which metrics are published.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::Metrics;
use super::labels::{BuildLabels, ReloadLabels};

impl Metrics {
    pub(super) fn register_requests(&mut self) {
        let registry = self.registry.get_mut();
        registry.register("requests", "Requests, by how they ended", self.requests.clone());
        registry.register("attempts", "Attempts sent to a backend", self.attempts.clone());
        registry.register("retries", "Attempts followed by another, by cause", self.retries.clone());
        registry.register("time_limits", "Attempts ended by a limit of time, by its key", self.time_limits.clone());
        registry.register(
            "aborted_answers",
            "Answers that an engine gave up before a token of them was sent on",
            self.aborted.clone(),
        );
        registry.register(
            "drain_requests",
            "Requests of conversations that live at a backend, sent there while it drains",
            self.drain_requests.clone(),
        );
        registry.register(
            "retries_denied",
            "Retries not made because the retry budget was spent",
            self.retries_denied.clone(),
        );
        registry.register(
            "ttft_seconds",
            "Time to first token of streamed replies: request received to first token sent",
            self.ttft.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "Whole time of a request: header received to reply sent",
            self.duration.clone(),
        );
        registry.register("spills", "Decisions for a backend with fewer matched blocks", self.spills.clone());
        registry.register(
            "detour_seconds",
            "TTFT that decisions gave up, as predicted, against the candidate with the least",
            self.detour.clone(),
        );
        registry.register(
            "saved_prefill_seconds",
            "Prefill that decisions saved, as predicted, against the candidate with the least TTFT",
            self.saved_prefill.clone(),
        );
        registry.register(
            "fail_open",
            "Decisions made while every backend was excluded by health or ejection",
            self.fail_open.clone(),
        );
    }

    pub(super) fn register_tokens(&mut self) {
        let registry = self.registry.get_mut();
        registry.register("prompt_tokens", "Prompt tokens sent to a backend, estimated", self.prompt_tokens.clone());
        registry.register(
            "predicted_cached_tokens",
            "Cached prompt tokens predicted at the decision",
            self.predicted_cached.clone(),
        );
        registry.register(
            "reported_prompt_tokens",
            "Prompt tokens of the requests for which the engine reported cached tokens",
            self.reported_prompt.clone(),
        );
        registry.register(
            "reported_cached_tokens",
            "Cached prompt tokens that the engine reported",
            self.reported_cached.clone(),
        );
        registry.register(
            "reported_predicted_tokens",
            "What was predicted for the requests for which the engine reported cached tokens",
            self.reported_predicted.clone(),
        );
    }

    pub(super) fn register_operation(&mut self) {
        let registry = self.registry.get_mut();
        registry.register("backend_restarts", "Restarts of an engine that were noticed", self.restarts.clone());
        registry.register(
            "trust_changes",
            "Times that a belief in what a backend has cached was lost (disagrees, silent) or came back (agrees, heard)",
            self.trust_changes.clone(),
        );
        registry.register(
            "tokenizer_requests",
            "Requests to pools with a tokenizer: tokenized, or why they were not",
            self.tokenized.clone(),
        );
        registry.register(
            "upgrades_failed",
            "Binary upgrades that failed and left this process serving",
            self.upgrades_failed.clone(),
        );
        registry.register("config_reloads", "Reloads of the configuration, by outcome", self.reloads.clone());
        registry.register(
            "config_last_reload_successful",
            "1 while the running configuration is the newest one seen, 0 after a refused reload",
            self.reload_ok.clone(),
        );
        registry.register(
            "access_log_dropped",
            "Access-log lines dropped because the log could not keep up",
            self.access_log_dropped.clone(),
        );
        registry.register("trace_lines", "Block-trace lines written", self.trace_lines.clone());
        registry.register(
            "trace_dropped",
            "Block-trace lines dropped because the file could not keep up or be written",
            self.trace_dropped.clone(),
        );
        let build = Family::<BuildLabels, Gauge>::default();
        build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "Version of the running program", build);
        self.reload_ok.set(1);
        for outcome in ["applied", "refused"] {
            let _ = self.reloads.get_or_create(&ReloadLabels { outcome });
        }
    }
}
