//! Faults at random, from a seed: engines die, hang, lie and return, networks fail, configurations change, operators drain.
//!
//! At most half of the fleet suffers at a time, so that somebody can serve. What was done is undone after a while, or at the
//! end by [`Chaos::calm`].

use std::time::{Duration, Instant};

use tokio::time::sleep;
use warmgate::sim::Fault;

use crate::common_control::client::ask;
use crate::common_control::settings::Settings;
use crate::fleet::{Fleet, Unit};
use crate::load::Habits;
use crate::tap::Weather;

/// The longest that one fault lasts: beyond every limit of time in force, so that each is met.
const MOST: Duration = Duration::from_secs(5);

/// Does it.
pub(crate) struct Chaos {
    rng: fastrand::Rng,
    /// Until when each backend suffers.
    suffering: Vec<Option<Instant>>,
    /// Whether each is drained or taken out, which an undrain and a reload end.
    is_out: bool,
    faults: u64,
    reloads: u64,
}

// === impl Chaos ===

impl Chaos {
    pub(crate) fn new(seed: u64, fleet: &Fleet) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, suffering: vec![None; fleet.units.len()], is_out: false, faults: 0, reloads: 0 }
    }

    /// Faults and reloads so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.faults, self.reloads)
    }

    /// Goes on for `time`, one fault after the other.
    pub(crate) async fn reign(&mut self, fleet: &Fleet, time: Duration) {
        let started = Instant::now();
        while started.elapsed() < time {
            self.step(fleet).await;
            sleep(Duration::from_millis(self.rng.u64(50..400))).await;
        }
    }

    /// Ends all of it, and waits until every backend serves.
    pub(crate) async fn calm(&mut self, fleet: &Fleet) {
        for (unit, suffering) in fleet.units.iter().zip(&mut self.suffering) {
            *suffering = None;
            unit.renew().await;
        }
        self.restore(fleet).await;
        fleet.until_all_serve().await;
    }

    async fn step(&mut self, fleet: &Fleet) {
        let now = Instant::now();
        for (unit, suffering) in fleet.units.iter().zip(&mut self.suffering) {
            if suffering.is_some_and(|until| until <= now) {
                unit.heal();
                *suffering = None;
            }
        }
        if self.rng.u8(..8) == 0 {
            return self.operate(fleet).await;
        }
        let is_full = self.suffering.iter().flatten().count() >= fleet.units.len() / 2;
        let number = self.rng.usize(..fleet.units.len());
        if is_full || self.suffering[number].is_some() {
            return;
        }
        self.suffering[number] = Some(now + MOST.mul_f64(self.rng.f64().powi(2)));
        self.faults += 1;
        self.hurt(&fleet.units[number]).await;
    }

    async fn hurt(&mut self, unit: &Unit) {
        let tokens = self.rng.u32(1..6);
        let inject = |fault, count| unit.engine.inject(fault, count).expect("few faults wait");
        match self.rng.u8(..16) {
            0 | 1 => unit.kill().await,
            2 => unit.tap.stop().await,
            3 => unit.tap.weather(Weather::Resetting),
            4 => unit.tap.weather(Weather::Silent),
            5 => unit.tap.weather(Weather::Slow(Duration::from_millis(self.rng.u64(5..100)))),
            6 => inject(Fault::ResetBeforeBody, Some(3)),
            7 => inject(Fault::ResetMidUpload, Some(3)),
            8 => inject(Fault::ResetMidStream { after_tokens: tokens }, Some(3)),
            9 => inject(Fault::ErrorMidStream { after_tokens: tokens }, Some(3)),
            10 => inject(Fault::Status { status: 503, before_body: tokens % 2 == 0 }, Some(5)),
            11 => inject(Fault::Stall, Some(2)),
            12 => inject(Fault::StallStream, Some(2)),
            13 => inject(Fault::Freeze, None),
            14 => {
                inject(Fault::HealthFail { status: 500 }, Some(4));
                inject(Fault::MetricsHang, Some(2));
            }
            _ => inject(Fault::Sigterm, None),
        }
    }

    /// What people do: reloads, right and wrong ones, and drains.
    async fn operate(&mut self, fleet: &Fleet) {
        if self.is_out {
            return self.restore(fleet).await;
        }
        self.reloads += 1;
        let number = self.rng.usize(..fleet.units.len());
        match self.rng.u8(..3) {
            0 => {
                self.is_out = true;
                assert_eq!(fleet.reload(|at| at != number).await.status, 200);
            }
            1 => {
                self.is_out = true;
                drain(fleet, &fleet.units[number], "drain").await;
            }
            _ => {
                // What is refused stays in the file until the next reload.
                self.is_out = true;
                let wrong = Settings { retry: "{max_attempts: 0}".into(), ..fleet.settings.clone() };
                assert_eq!(fleet.apply(&wrong).await.status, 422);
            }
        }
    }

    /// Puts the right configuration in force, and ends all drains.
    pub(crate) async fn restore(&mut self, fleet: &Fleet) {
        self.is_out = false;
        self.reloads += 1;
        assert_eq!(fleet.reload(|_| true).await.status, 200);
        for unit in &fleet.units {
            drain(fleet, unit, "undrain").await;
        }
    }
}

async fn drain(fleet: &Fleet, unit: &Unit, what: &str) {
    let reply = ask(fleet.proxy.admin(), "POST", &format!("/backends/{}/{what}", unit.name), "").await;
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_every_request_gets_one_answer_and_nothing_is_left_over() {
    let fleet = Fleet::start(6, |_| {}).await;
    let load = fleet.load(Habits { leaving: 0.05, ..Habits::new(6) });
    let mut chaos = Chaos::new(6, &fleet);
    chaos.reign(&fleet, Duration::from_secs(12)).await;
    chaos.calm(&fleet).await;
    let tally = load.stop().await;
    println!("{:?} {}", chaos.counts(), tally.endings().text());
    fleet.check_rest(&[&tally]).await;

    let calm = fleet.load(Habits::new(7));
    sleep(Duration::from_secs(2)).await;
    let after = calm.stop().await;
    let endings = after.endings();
    assert_eq!(endings.whole, endings.count(), "all is as it was: {}", endings.text());
    fleet.check_rest(&[&tally, &after]).await;
}
