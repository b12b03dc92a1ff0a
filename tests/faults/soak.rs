//! Everything at random for as long as one likes: `make soak`, an hour unless SOAK_SECONDS says otherwise; SOAK_SEED repeats a
//! run's choices.
//!
//! In its first quarter other processes take over, one after the other; the last one's memory is held against what it was
//! a while later. It ends at the first wrong answer.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::chaos::Chaos;
use crate::fleet::Fleet;
use crate::load::{Habits, Tally};

/// Between two upgrades, and two looks at memory.
const ROUND: Duration = Duration::from_secs(10);

/// How much more memory there may be at the end, as a share.
const GROWTH: f64 = 0.1;

/// Memory of the process that serves, in looks a [`ROUND`] apart.
#[derive(Default)]
struct Memory(Vec<u64>);

// === impl Memory ===

impl Memory {
    /// The middle of six looks from this one on.
    fn around(&self, look: usize) -> f64 {
        let mut looks: Vec<u64> = self.0.iter().skip(look).take(6).copied().collect();
        looks.sort_unstable();
        looks[looks.len() / 2] as f64
    }

    /// The growth from five minutes after the last upgrade, or from a third of a shorter run, to the end.
    fn growth(&self) -> f64 {
        let begin = self.0.len().div_ceil(3).min(30);
        self.around(self.0.len().saturating_sub(6)) / self.around(begin) - 1.0
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is expected")))
}

fn report(started: Instant, fleet: &Fleet, chaos: &Chaos, tally: &Tally) {
    let (minutes, mebibytes) = (started.elapsed().as_secs() / 60, fleet.resident_bytes() >> 20);
    let (faults, reloads) = chaos.counts();
    println!("minute {minutes}: {faults} faults, {reloads} reloads, {mebibytes} MiB, {}", tally.endings().text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as SOAK_SECONDS says; `make soak` runs it"]
async fn soak() {
    let (time, seed) = (Duration::from_secs(setting("SOAK_SECONDS", 3600)), setting("SOAK_SEED", 1));
    println!("{time:?} with SOAK_SEED={seed}");
    let mut fleet = Fleet::start(8, |_| {}).await;
    let load = fleet.load(Habits { leaving: 0.05, ..Habits::new(seed) });
    let mut chaos = Chaos::new(seed, &fleet);
    let (started, mut said, mut upgrades, mut memory) = (Instant::now(), 0, 0, Memory::default());
    while started.elapsed() < time {
        chaos.reign(&fleet, ROUND).await;
        let endings = load.tally().endings();
        assert_eq!(endings.wrong_count, 0, "{:#?}", endings.wrong);
        if started.elapsed() < time / 4 {
            // A wrong file would end the new process at once, and rightly.
            chaos.restore(&fleet).await;
            fleet.proxy.upgrade().await;
            upgrades += 1;
        } else {
            memory.0.push(fleet.resident_bytes());
        }
        if started.elapsed().as_secs() / 60 > said {
            said += 1;
            report(started, &fleet, &chaos, load.tally());
        }
    }
    chaos.calm(&fleet).await;
    report(started, &fleet, &chaos, load.tally());
    let tally = load.stop().await;
    fleet.check_rest(&[&tally]).await;
    let calm = fleet.load(Habits::new(seed + 1));
    sleep(Duration::from_secs(5)).await;
    let after = calm.stop().await;
    fleet.check_rest(&[&tally, &after]).await;
    let endings = after.endings();
    assert_eq!(endings.whole, endings.count(), "all is as it was: {}", endings.text());
    let growth = memory.growth();
    println!(
        "{} requests, {upgrades} upgrades: each got one answer, counters are at 0, memory {:+.1} %",
        tally.sent(),
        100.0 * growth
    );
    assert!(growth < GROWTH, "memory grows");
}
