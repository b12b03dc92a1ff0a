//! Engines with one cache.

use super::*;

fn pair(capacity: u32) -> (Engine, Engine) {
    let cache = Arc::new(Mutex::new(BlockCache::new(capacity)));
    let engine = || Engine::with_cache(parameters(1, 8), Arc::clone(&cache));
    (engine(), engine())
}

#[test]
fn one_finds_what_the_other_computed() {
    let (mut left, mut right) = pair(100);
    left.submit(request(1, 1, 64, 1), millis(0)).unwrap();
    drain(&mut left);
    let id = right.submit(request(1, 1, 64, 1), millis(900)).unwrap();
    assert_eq!(cached_of(&drain(&mut right), id), 48);
    assert_eq!(left.load().cached_blocks, right.load().cached_blocks);
}

#[test]
fn an_idle_engine_looks_again_until_another_gives_its_blocks_back() {
    let (mut left, mut right) = pair(8);
    assert_eq!(right.limit_tokens(), 8 * u64::from(BLOCK_TOKENS), "the size is that of the shared cache");
    left.submit(request(1, 1, 90, 6), millis(0)).unwrap(); // 6 of 8 blocks
    left.advance(millis(0));
    let id = right.submit(request(2, 1, 60, 4), millis(1)).unwrap(); // 4: must wait
    let (mut looks, mut events, mut freed_at) = (Vec::new(), Vec::new(), None);
    while events.is_empty() {
        let at = right.next_event_at().expect("it has not given up");
        while let Some(end) = left.next_event_at().filter(|&end| end <= at) {
            freed_at = left.advance(end).last().map(|event| event.at).or(freed_at);
        }
        looks.push(at);
        events = right.advance(at);
    }
    assert!(looks.windows(2).all(|pair| pair[0] < pair[1]), "time moves between two looks");
    let (freed_at, admitted_at) = (freed_at.expect("the other had events"), events[0].at);
    assert!(finished(&drain(&mut left)).is_empty() && admitted_at >= freed_at, "there was no room while the other ran");
    assert!(admitted_at.since(freed_at) < Duration::from_millis(20), "it looked again soon");
    assert_eq!(finished(&drain(&mut right)), [id]);
    assert_eq!((left.load().held_blocks, right.load().held_blocks), (0, 0));
}

#[test]
fn a_crash_gives_back_its_own_blocks_and_leaves_the_cache() {
    let (mut left, mut right) = pair(100);
    left.submit(request(1, 1, 64, 30), millis(0)).unwrap();
    right.submit(request(2, 2, 64, 30), millis(0)).unwrap();
    left.advance(millis(50));
    right.advance(millis(50));
    let before = right.load();
    left.crash();
    assert_eq!(left.load().held_blocks, 6, "what the other holds is still held");
    assert_eq!(right.load().cached_blocks, before.cached_blocks, "and what was computed can still be found");
    drain(&mut right);
    assert_eq!(right.load().held_blocks, 0);
}
