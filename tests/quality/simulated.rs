//! `warmgate simulate` and the figures that it prints.

use std::ffi::OsStr;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a policy came to; the mean over the seeds.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Figures {
    pub(crate) policy: String,
    pub(crate) hit_ratio: f64,
    pub(crate) prefill_tokens: f64,
    pub(crate) ttft_p50: f64,
    pub(crate) ttft_p90: f64,
    pub(crate) e2e_mean: f64,
    pub(crate) skew_tokens: f64,
    pub(crate) skew_requests: f64,
    pub(crate) failed: f64,
    pub(crate) utilization: f64,
    pub(crate) speed: f64,
    pub(crate) ttft_p90_before: Option<f64>,
    #[serde(default)]
    pub(crate) ttft_p90_after: Vec<f64>,
}

/// What one command printed.
pub(crate) struct Compared {
    words: String,
    took: Duration,
    figures: Vec<Figures>,
}

/// Runs `warmgate simulate` with `words`, which blanks separate, and `more`, and shows what came of it.
pub(crate) fn simulate(words: &str, more: &[&OsStr]) -> Compared {
    let started = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmgate"));
    let ended = command.args(["simulate", "--json"]).args(words.split(' ')).args(more).output().unwrap();
    assert!(ended.status.success(), "simulate {words}: {}", String::from_utf8_lossy(&ended.stderr));
    let figures = serde_json::from_slice(&ended.stdout).unwrap();
    let compared = Compared { words: words.to_owned(), took: started.elapsed(), figures };
    println!("{compared}");
    compared
}

// === impl Compared ===

impl Compared {
    pub(crate) fn of(&self, policy: &str) -> &Figures {
        self.figures.iter().find(|figures| figures.policy == policy).unwrap()
    }

    /// The figures of the one policy that was asked for.
    pub(crate) fn into_only(self) -> Figures {
        let [figures] = <[Figures; 1]>::try_from(self.figures).unwrap();
        figures
    }

    /// The policy whose answers end first, on average.
    pub(crate) fn least_e2e(&self) -> &Figures {
        self.figures.iter().min_by(|left, right| left.e2e_mean.total_cmp(&right.e2e_mean)).unwrap()
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.took.as_secs_f64() / self.figures.len().max(1) as f64;
        writeln!(f, "simulate {} ({each:.1} s a policy)", self.words)?;
        self.figures.iter().try_for_each(|figures| writeln!(f, "  {figures}"))
    }
}

// === impl Figures ===

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:15} hits {:.1} %, {:.0} tokens of prefill, TTFT p50 {:.4} p90 {:.3} s, e2e {:.3} s, skew of tokens {:.2}, of \
             requests {:.2}, {:.0} failed, utilization {:.2}, speed {:.3}",
            self.policy,
            self.hit_ratio * 100.0,
            self.prefill_tokens,
            self.ttft_p50,
            self.ttft_p90,
            self.e2e_mean,
            self.skew_tokens,
            self.skew_requests,
            self.failed,
            self.utilization,
            self.speed,
        )
    }
}
