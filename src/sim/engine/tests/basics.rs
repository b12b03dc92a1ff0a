//! One engine with the default manners.

use super::*;

#[test]
fn a_request_gets_its_first_token_after_its_prefill_and_then_one_a_step() {
    let mut engine = Engine::new(parameters(100, 8));
    let id = engine.submit(request(1, 1, 100, 3), millis(5)).unwrap();
    let events = drain(&mut engine);
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    let token = |index| EventKind::Token { index };
    assert_eq!(
        kinds,
        [EventKind::Admitted { cached_tokens: 0 }, token(0), token(1), token(2), EventKind::Finished],
        "a request is admitted, gives its tokens, finishes"
    );
    let step = |prefill, kv| Timing::REFERENCE.step(prefill, 1, kv);
    // 100 tokens with a budget of 64: two chunks.
    let first = millis(5)
        + step(Timing::REFERENCE.prefill_seconds(0, 64), 0)
        + step(Timing::REFERENCE.prefill_seconds(64, 100), 64);
    assert_eq!(events[1].at, first);
    assert_eq!(events[2].at, first + step(0.0, 100));
    assert!(events.iter().all(|event| event.id == id));
    assert_eq!(engine.totals().generated_tokens, 3);
}

#[test]
fn the_next_turn_finds_the_prompt_and_the_answer_of_the_last() {
    let mut engine = Engine::new(parameters(100, 8));
    let first = Request { chain: chain(1, 1, 99, 6), prompt_tokens: 70, output_tokens: 27, ..Request::default() };
    engine.submit(first, millis(0)).unwrap();
    drain(&mut engine);
    let second = Request { chain: chain(1, 1, 99, 8), prompt_tokens: 130, output_tokens: 1, ..Request::default() };
    let id = engine.submit(second, millis(9000)).unwrap();
    let events = drain(&mut engine);
    assert_eq!(
        cached_of(&events, id),
        96,
        "70 + 27 tokens fill six blocks, of which all are computed but the last token"
    );
}

#[test]
fn a_prompt_that_is_cached_whole_still_computes_its_last_token() {
    let mut engine = Engine::new(parameters(100, 8));
    for _ in 0..2 {
        engine.submit(request(1, 1, 64, 1), millis(0)).unwrap();
        drain(&mut engine);
    }
    let id = engine.submit(request(1, 1, 64, 1), millis(9000)).unwrap();
    assert_eq!(cached_of(&drain(&mut engine), id), 48, "three of four blocks");
}

#[test]
fn the_cache_forgets_the_least_recently_used_first_and_tails_before_heads() {
    let mut engine = Engine::new(parameters(12, 8));
    let prompt =
        |family| Request { chain: chain(family, 0, 99, 4), prompt_tokens: 64, output_tokens: 0, ..Request::default() };
    for (turn, family) in [1, 2, 3, 1].into_iter().enumerate() {
        engine.submit(prompt(family), millis(turn as u64 * 1000)).unwrap();
        drain(&mut engine);
    }
    // 12 blocks: families 1, 2 and 3 filled the cache, and 1 was used again. Six more blocks push out 2 and half of 3.
    let other = Request { chain: chain(7, 0, 99, 6), prompt_tokens: 96, output_tokens: 0, ..Request::default() };
    engine.submit(other, millis(9000)).unwrap();
    drain(&mut engine);
    let matched: Vec<usize> = [1, 2, 3, 7].iter().map(|&f| engine.matched_blocks(&prompt(f).chain)).collect();
    assert_eq!(matched, [4, 0, 2, 4], "what was used again stays, the oldest goes whole, the next from its tail");
}

#[test]
fn a_request_waits_for_blocks_and_for_a_sequence_slot_in_order() {
    let mut engine = Engine::new(parameters(8, 2));
    let large = engine.submit(request(1, 1, 90, 6), millis(0)).unwrap(); // 6 of 8 blocks
    let next = engine.submit(request(2, 1, 60, 4), millis(0)).unwrap(); // 4: must wait
    let small = engine.submit(request(3, 1, 10, 4), millis(0)).unwrap(); // 1: fits, but it is not its turn
    engine.advance(millis(0));
    assert_eq!((engine.load().running, engine.load().waiting), (1, 2), "first come, first served, without overtaking");
    let finished = finished(&drain(&mut engine));
    assert_eq!(finished[0], large);
    assert!(finished.contains(&next) && finished.contains(&small));
}

#[test]
fn an_abort_frees_the_queue_at_once_and_the_batch_at_the_end_of_the_step() {
    let mut engine = Engine::new(parameters(8, 1));
    let running = engine.submit(request(1, 1, 90, 6), millis(0)).unwrap();
    let waiting = engine.submit(request(2, 1, 60, 4), millis(0)).unwrap();
    engine.advance(millis(1));
    assert!(engine.abort(waiting) && engine.abort(running));
    assert!(!engine.abort(waiting) && !engine.abort(running), "a second abort has nothing to do");
    assert_eq!((engine.load().waiting, engine.load().running), (0, 1), "the chunk in progress is finished");
    assert_eq!(engine.load().held_blocks, 6);
    assert_eq!(drain(&mut engine), [], "an aborted request says nothing more");
    assert_eq!((engine.load().running, engine.load().held_blocks), (0, 0));
    assert_eq!((engine.totals().aborted, engine.totals().finished), (2, 0));
}

#[test]
fn what_cannot_fit_is_refused_and_the_queue_is_bounded() {
    let mut engine = Engine::new(Parameters { max_waiting: 2, ..parameters(8, 1) });
    assert_eq!(engine.submit(request(1, 1, 100, 29), millis(0)), Err(Rejected::TooLong { limit_tokens: 128 }));
    assert!(engine.submit(request(1, 1, 100, 28), millis(0)).is_ok());
    assert!(engine.submit(request(1, 2, 1, 1), millis(0)).is_ok());
    assert_eq!(engine.submit(request(1, 3, 1, 1), millis(0)), Err(Rejected::QueueFull));
    assert_eq!(engine.totals().rejected, 1);
}

#[test]
fn a_slowdown_stretches_the_steps_that_follow() {
    let time_of = |factor| {
        let mut engine = Engine::new(parameters(100, 8));
        engine.set_slowdown(factor);
        engine.submit(request(1, 1, 60, 5), Moment::ORIGIN).unwrap();
        drain(&mut engine).last().unwrap().at.since(Moment::ORIGIN).as_secs_f64()
    };
    assert!((time_of(3.0) / time_of(1.0) - 3.0).abs() < 1e-6);
}

#[test]
fn an_absurd_slowdown_neither_stops_nor_panics() {
    for factor in [f64::MAX, f64::INFINITY, f64::NAN, -1.0, 0.0] {
        let mut engine = Engine::new(parameters(100, 8));
        engine.set_slowdown(factor);
        let id = engine.submit(request(1, 1, 60, 5), Moment::ORIGIN).unwrap();
        assert_eq!(finished(&drain(&mut engine)), [id], "at {factor} times the length");
    }
}

#[test]
fn requests_in_a_batch_decode_together() {
    let mut engine = Engine::new(Parameters { step_tokens: 2048, ..parameters(1000, 64) });
    for member in 0..32 {
        engine.submit(request(member, member, 30, 50), Moment::ORIGIN).unwrap();
    }
    let last = drain(&mut engine).last().unwrap().at.since(Moment::ORIGIN);
    assert!(last < Duration::from_millis(1100), "32 requests of 50 tokens took {last:?}, 50 steps of about 16 ms");
}

#[test]
fn without_detail_only_the_first_token_is_told_and_all_else_is_the_same() {
    let events = |detail| {
        let mut engine = Engine::new(parameters(100, 8));
        engine.set_detail(detail);
        for member in 0..6 {
            engine
                .submit(request(member % 2, member, 60 + member as u32 * 7, member as u32 * 5), millis(member))
                .unwrap();
        }
        (drain(&mut engine), engine.totals())
    };
    let (mut all, totals) = events(EventDetail::Tokens);
    all.retain(|event| !matches!(event.kind, EventKind::Token { index: 1.. }));
    assert_eq!(events(EventDetail::Milestones), (all, totals));
}

#[test]
fn prefill_is_counted_by_its_tokens_and_by_the_length_of_its_steps() {
    let mut engine = Engine::new(parameters(100, 8));
    engine.submit(request(1, 1, 100, 5), millis(0)).unwrap();
    let events = drain(&mut engine);
    assert_eq!(engine.totals().computed_tokens, 100);
    assert_eq!(engine.totals().prefill_busy, events[1].at.since(millis(0)), "two chunks, up to the first token");
    engine.submit(request(1, 1, 100, 5), millis(900)).unwrap();
    drain(&mut engine);
    assert_eq!(engine.totals().computed_tokens, 104, "the second time only what is behind the last whole block");
}

#[test]
fn a_crash_loses_the_requests_the_step_and_the_cache() {
    let mut engine = Engine::new(parameters(100, 2));
    let ids: Vec<RequestId> =
        (0..4).map(|member| engine.submit(request(member, member, 60, 30), millis(0)).unwrap()).collect();
    engine.advance(millis(200));
    assert!(engine.abort(ids[0]));
    assert!(engine.load().held_blocks > 0 && engine.load().cached_blocks > 0);
    assert_eq!(engine.crash(), ids[1..], "an aborted request is not lost a second time");
    assert_eq!(engine.load(), Load::default());
    assert_eq!(engine.next_event_at(), None);
    assert_eq!(engine.totals().aborted, 4);
    assert!(ids.iter().all(|&id| !engine.abort(id)), "what was lost cannot be given up");

    let again = engine.submit(request(1, 1, 60, 1), millis(201)).unwrap();
    let events = drain(&mut engine);
    assert_eq!((cached_of(&events, again), finished(&events)), (0, vec![again]), "nothing was left to be found");
    assert_eq!(events[0].at, millis(201), "it does not wait for the end of the step that was lost");
}
