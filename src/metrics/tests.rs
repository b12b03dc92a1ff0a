use super::*;

fn labels() -> BackendLabels {
    BackendLabels { pool: "llama".into(), backend: "a:1".into() }
}

fn record(reason: Reason) -> RequestRecord {
    RequestRecord { labels: labels(), status: 200, reason, ttft_seconds: Some(0.2), duration_seconds: 1.0, attempts: 1 }
}

#[test]
fn a_request_is_counted_once_with_pool_backend_status_and_reason() {
    let metrics = Metrics::new();
    metrics.request_ended(&record(Reason::Served));
    let text = metrics.render();
    let series = r#"warmgate_requests_total{pool="llama",backend="a:1",status="200",reason="served"} 1"#;
    assert!(text.contains(series), "{text}");
    assert!(text.contains(r#"warmgate_ttft_seconds_count{pool="llama"} 1"#), "{text}");
}

#[test]
fn a_removed_backend_leaves_no_series_behind() {
    let metrics = Metrics::new();
    for reason in Reason::ALL {
        metrics.request_ended(&record(reason));
    }
    for cause in RetryCause::ALL {
        metrics.retried(&labels(), cause);
    }
    metrics.restarted(&labels());
    metrics.detoured(&labels().pool, Detour { seconds: 0.25, saved_prefill_seconds: 1.5 });
    assert!(metrics.render().contains(r#"warmgate_detour_seconds_total{pool="llama"} 0.25"#));
    metrics.tokens(&labels(), TokenRecord { prompt: 9, predicted_cached: 3, actual: Some((9, 2)) });
    assert!(metrics.render().contains("a:1"));
    metrics.forget(&labels());
    assert!(!metrics.render().contains("a:1"), "{}", metrics.render());
    assert!(metrics.render().contains("llama"), "the pool is still there");
    metrics.forget_pool(&labels().pool);
    assert!(!metrics.render().contains("llama"), "{}", metrics.render());
}

#[test]
fn series_start_at_zero() {
    let metrics = Metrics::new();
    metrics.introduce_pool(&labels().pool);
    metrics.introduce_backend(&labels());
    let text = metrics.render();
    for series in [
        r#"warmgate_spills_total{pool="llama"} 0"#,
        r#"warmgate_detour_seconds_total{pool="llama"} 0"#,
        r#"warmgate_saved_prefill_seconds_total{pool="llama"} 0"#,
        r#"warmgate_ttft_seconds_count{pool="llama"} 0"#,
        r#"warmgate_retries_total{pool="llama",backend="a:1",cause="connect"} 0"#,
        r#"warmgate_backend_restarts_total{pool="llama",backend="a:1"} 0"#,
        r#"warmgate_config_reloads_total{outcome="refused"} 0"#,
    ] {
        assert!(text.contains(series), "{series} in {text}");
    }
    metrics.forget(&labels());
    assert!(!metrics.render().contains("a:1"), "what is introduced can be forgotten");
}

#[test]
fn a_refused_reload_shows_until_one_is_applied() {
    let metrics = Metrics::new();
    metrics.reloaded(false);
    assert!(metrics.render().contains("warmgate_config_last_reload_successful 0"));
    metrics.reloaded(true);
    assert!(metrics.render().contains("warmgate_config_last_reload_successful 1"));
}
