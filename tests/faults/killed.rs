//! Half of eight backends are killed within a second, under load, and come back.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::common_control::eventually;
use crate::fleet::{Fleet, PROBE_INTERVAL};
use crate::load::Habits;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_backends_may_die_within_a_second() {
    let fleet = Fleet::start(8, |settings| settings.retry = "{}".into()).await;
    let load = fleet.load(Habits { clients: 24, ..Habits::new(8) });
    let tally = std::sync::Arc::clone(load.tally());
    sleep(Duration::from_secs(2)).await;

    for unit in &fleet.units[..4] {
        unit.kill().await;
        sleep(Duration::from_millis(250)).await;
    }
    eventually("the dead are known", async || fleet.up().await == 4).await;
    sleep(Duration::from_secs(1)).await;
    let died = tally.endings();

    let back = Instant::now();
    fleet.units[..4].iter().for_each(crate::fleet::Unit::heal);
    fleet.until_all_serve().await;
    let took = back.elapsed();
    let since = Instant::now();
    let before: Vec<u64> = fleet.units.iter().map(|unit| unit.engine.state().requests.served).collect();
    let served = || -> Vec<u64> {
        fleet.units.iter().zip(&before).map(|(unit, before)| unit.engine.state().requests.served - before).collect()
    };
    eventually("many more requests are served", async || served().iter().sum::<u64>() >= 400).await;
    let served = served();
    let tally = load.stop().await;
    fleet.check_rest(&[&tally]).await;
    let endings = tally.endings();
    let share = served[..4].iter().sum::<u64>() as f64 / served.iter().sum::<u64>() as f64;
    println!("{}; back after {took:?}, with {share:.2} of the requests from then on: {served:?}", endings.text());

    assert_eq!(endings.refused_count(), 0, "who had no first byte got an answer from another: {}", endings.text());
    assert!(endings.events.keys().all(|code| code == "upstream_broke_off"), "{}", endings.text());
    let broken = |endings: &crate::load::Endings| endings.count() - endings.whole;
    assert_eq!(broken(&died), broken(&endings), "nothing failed after the deaths");
    assert_eq!(tally.dropped(), 0, "every connection went on as its last answer had said");
    assert!(tally.whole_since(since) > 0);
    // A probe that has just begun when they come back fails; the one after it does not.
    assert!(took < 2 * PROBE_INTERVAL + Duration::from_millis(500), "back after {took:?}");
    assert!(
        share > 0.4 && served.iter().all(|count| *count > 0),
        "half of the fleet does half of the work: {served:?}"
    );
}
