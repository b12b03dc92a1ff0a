//! One backend of four is out of reach, in every way there is, under load: nobody without a first byte may notice.

use std::time::Duration;

use crate::fleet::Fleet;
use crate::load::{Endings, Habits};
use crate::tap::Weather;

/// How long a fault lasts: longer than every limit of time in force.
const LONG: Duration = Duration::from_secs(4);

/// Loads a fleet of four, hurts the first as `hurt` says, heals it, and gives what came of the requests.
async fn suffer(seed: u64, hurt: impl AsyncFn(&Fleet)) -> Endings {
    let fleet = Fleet::start(4, |_| {}).await;
    let load = fleet.load(Habits::new(seed));
    tokio::time::sleep(Duration::from_millis(500)).await;
    hurt(&fleet).await;
    tokio::time::sleep(LONG).await;
    fleet.units[0].heal();
    fleet.until_all_serve().await;
    let tally = load.stop().await;
    fleet.check_rest(&[&tally]).await;
    let endings = tally.endings();
    println!("{}", endings.text());
    assert_eq!(tally.dropped(), 0, "every connection went on as its last answer had said");
    assert!(endings.whole > 50, "there was a load: {}", endings.text());
    endings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_notices_a_backend_that_refuses_unless_it_was_answering_them() {
    let endings = suffer(1, async |fleet| fleet.units[0].kill().await).await;
    assert_eq!(endings.refused_count(), 0, "{}", endings.text());
    assert!(endings.events.keys().all(|code| code == "upstream_broke_off"), "{}", endings.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_notices_a_backend_that_resets_unless_it_was_answering_them() {
    let endings = suffer(2, async |fleet| fleet.units[0].tap.weather(Weather::Resetting)).await;
    assert_eq!(endings.refused_count(), 0, "{}", endings.text());
    assert!(endings.events.keys().all(|code| code == "upstream_broke_off"), "{}", endings.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_far_away_is_only_slow() {
    let slow = Weather::Slow(Duration::from_millis(40));
    let endings = suffer(3, async |fleet| fleet.units[0].tap.weather(slow)).await;
    assert_eq!(endings.whole, endings.count(), "{}", endings.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_backend_costs_a_limit_of_time_and_no_answer() {
    let endings = suffer(4, async |fleet| fleet.units[0].tap.weather(Weather::Silent)).await;
    assert_eq!(endings.refused_count(), 0, "{}", endings.text());
    assert!(endings.events.keys().all(|code| code == "between_tokens_timeout"), "{}", endings.text());
}
