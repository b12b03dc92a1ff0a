//! The figures for people: one line a contender.

use std::fmt::Write as _;

use crate::simulate::outcome::Summary;

/// The summaries side by side, with what happened around the faults if there were any.
pub(in crate::simulate) fn table(summaries: &[Summary], faults: &[String]) -> String {
    let mut out = format!(
        "{:<16} {:>6} {:>12} {:>22} {:>8} {:>8} {:>13} {:>8} {:>9}\n{:<16} {:>6} {:>12} {:>7} {:>7} {:>6} {:>8} {:>8} {:>6} {:>6} {:>8} {:>9}\n",
        "",
        "hits",
        "prefill",
        "TTFT, seconds",
        "",
        "e2e",
        "skew",
        "good",
        "requests",
        "policy",
        "%",
        "tokens",
        "p50",
        "p90",
        "p99",
        "mean",
        "mean",
        "tokens",
        "reqs",
        "%",
        "(failed)",
    );
    for summary in summaries {
        let failed = if summary.failed > 0.0 { format!(" ({:.0})", summary.failed) } else { String::new() };
        let _ = writeln!(
            out,
            "{:<16} {:>6.1} {:>12.0} {:>7} {:>7} {:>6} {:>8} {:>8} {:>6.2} {:>6.2} {:>8.1} {:>9}",
            summary.policy,
            100.0 * summary.hit_ratio,
            summary.prefill_tokens,
            seconds(summary.ttft_p50),
            seconds(summary.ttft_p90),
            seconds(summary.ttft_p99),
            seconds(summary.ttft_mean),
            seconds(summary.e2e_mean),
            summary.skew_tokens,
            summary.skew_requests,
            100.0 * summary.goodput,
            format!("{:.0}{failed}", summary.requests),
        );
    }
    if !faults.is_empty() {
        out.push_str(&aftermath(summaries, faults));
    }
    out
}

/// TTFT p90 before the first fault, and in the minute after each; below, what it would be if nobody had waited.
fn aftermath(summaries: &[Summary], faults: &[String]) -> String {
    let mut out = format!("\nTTFT p90, seconds{:<9} {:>8}", "", "before");
    faults.iter().for_each(|fault| out.push_str(&format!("  minute after {fault}")));
    out.push('\n');
    for summary in summaries {
        out.push_str(&around(&summary.policy, summary.ttft_p90_before, &summary.ttft_p90_after, faults));
        out.push_str(&around("  own prefill alone", summary.alone_p90_before, &summary.alone_p90_after, faults));
    }
    out
}

/// One line of it.
fn around(name: &str, before: Option<f64>, after: &[Option<f64>], faults: &[String]) -> String {
    let mut line = format!("{name:<26} {:>8}", known(before));
    for (fault, &p90) in faults.iter().zip(after) {
        let width = "  minute after ".len() + fault.len();
        let _ = write!(line, "{:>width$}", known(p90));
    }
    line.push('\n');
    line
}

/// A dash where nothing was served.
fn known(value: Option<f64>) -> String {
    value.map_or_else(|| String::from("-"), seconds)
}

/// Three digits that matter.
fn seconds(value: f64) -> String {
    match value {
        value if value < 0.1 => format!("{value:.4}"),
        value if value < 1.0 => format!("{value:.3}"),
        value if value < 10.0 => format!("{value:.2}"),
        value => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_and_the_faults_below() {
        let summary = Summary {
            policy: "cost".into(),
            hit_ratio: 0.5,
            ttft_p90: 4.8,
            requests: 10.0,
            failed: 2.0,
            ttft_p90_before: Some(1.5),
            ttft_p90_after: vec![Some(2.25)],
            alone_p90_before: Some(0.5),
            alone_p90_after: vec![Some(0.75)],
            ..Summary::default()
        };
        let text = table(&[summary.clone(), Summary { policy: "random".into(), ..summary }], &["add@60".into()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + 2 + 1 + 1 + 4, "{text}");
        assert!(lines[2].starts_with("cost ") && lines[2].contains(" 50.0 ") && lines[2].ends_with("10 (2)"), "{text}");
        assert!(lines[6].contains(" 1.50 ") && lines[6].ends_with("2.25"), "{text}");
        assert!(lines[7].contains(" 0.500 ") && lines[7].ends_with("0.750"), "{text}");
        assert!(lines[5..8].iter().all(|line| line.len() == lines[5].len()), "columns line up:\n{text}");
    }
}
