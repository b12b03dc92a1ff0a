//! Against an engine of real PUB and ROUTER sockets.

use std::sync::mpsc;

use super::engine::{Engine, Form};
use super::*;

/// The marks of `process` from `first` up to `end`.
fn marks(process: u64, first: u64, end: u64) -> Vec<u64> {
    (first..end).map(|seq| 1000 * process + seq).collect()
}

#[tokio::test]
async fn what_was_published_before_is_replayed_and_what_comes_follows() {
    for form in [Form::Short, Form::WithTopic] {
        let mut engine = Engine::start(1, form).await;
        engine.publish(5).await;
        let mut test = Test::follow(engine.source());
        test.holds(&marks(1, 0, 5)).await;
        test.is("live", |status| status.state == SourceState::Live).await;
        engine.publish(5).await;
        // Whether the subscription was in force already or not: what was missed shows by the next message.
        while test.following.status().counts.messages == 0 {
            engine.publish(1).await;
            sleep(Duration::from_millis(5)).await;
        }
        let end = engine.published();
        test.holds(&marks(1, 0, end)).await;
        let status = test.following.status();
        assert_eq!(
            (status.counts.clears, status.counts.last_seq, status.connections),
            (0, Some(end - 1), 1),
            "{form:?}"
        );
        assert!(status.last_message.is_some() && status.reason.is_none());
    }
}

/// A test whose engine is followed live, with all it has published so far.
async fn live() -> (Engine, Test) {
    let mut engine = Engine::start(1, Form::WithTopic).await;
    let test = Test::follow(engine.source());
    until_live(&mut engine, &test, 0).await;
    (engine, test)
}

/// Publishes until a live message has come in the connection after `messages` ones.
async fn until_live(engine: &mut Engine, test: &Test, messages: u64) {
    let publishing = async {
        while test.following.status().counts.messages <= messages {
            engine.publish(1).await;
            sleep(Duration::from_millis(5)).await;
        }
    };
    within(publishing).await.unwrap_or_else(|()| panic!("no live message: {:?}", test.following.status()));
}

#[tokio::test]
async fn a_gap_is_closed_by_a_replay() {
    let (mut engine, mut test) = live().await;
    engine.publish_in_vain(3);
    engine.publish(1).await;
    test.holds(&marks(1, 0, engine.published())).await;
    let counts = test.following.status().counts;
    assert!(counts.gaps >= 1 && counts.clears == 0, "{counts:?}");
}

#[tokio::test]
async fn a_gap_that_cannot_be_closed_begins_anew() {
    let (mut engine, mut test) = live().await;
    engine.publish_in_vain(3);
    engine.empty_buffer();
    engine.publish(1).await;
    let end = engine.published();
    test.holds(&marks(1, end - 1, end)).await;
    assert_eq!(test.following.status().counts.clears, 1);
}

#[tokio::test]
async fn a_process_that_starts_anew_is_followed_from_its_beginning() {
    let (engine, mut test) = live().await;
    let had = engine.published();
    let ports = engine.end().await;
    test.is("failed", |status| status.state == SourceState::Failed && status.reason.is_some()).await;
    let mut engine = Engine::start_at(ports, 2, Form::WithTopic).await;
    // As many as the old one had, so that the numbers alone say nothing.
    engine.publish(had).await;
    test.holds(&marks(2, 0, had)).await;
    let messages = test.following.status().counts.messages;
    until_live(&mut engine, &test, messages).await;
    test.holds(&marks(2, 0, engine.published())).await;
    let status = test.following.status();
    assert_eq!((status.counts.restarts, status.counts.clears, status.connections), (1, 1, 2));
    assert_eq!(status.reason, None, "all is well again");
}

#[tokio::test]
async fn without_an_answer_to_the_replay_what_comes_live_is_followed() {
    let mut engine = Engine::start(1, Form::Short).await;
    engine.publish(2).await;
    // Nobody listens there.
    let mut source = engine.source();
    source.replay_endpoint = Some(at(1));
    let test = Test::follow(source);
    until_live(&mut engine, &test, 0).await;
    let status = test.is("told why", |status| status.replay_reason.is_some()).await;
    assert!(status.counts.failed_replays >= 1);
    let mut marks = test.marks.clone();
    let last = 1000 + engine.published() - 1;
    within(marks.wait_for(|marks| marks.last() == Some(&last))).await.unwrap().unwrap();
}

/// A sink that takes nothing until it may.
struct Gate {
    may: mpsc::Receiver<()>,
    recorder: Recorder,
}

impl Sink for Gate {
    fn apply(&mut self, batch: &Batch) {
        // An error means that the gate is open for good.
        let _ = self.may.recv();
        self.recorder.apply(batch);
    }

    fn clear(&mut self) {
        self.recorder.clear();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_slow_sink_makes_no_engine_wait_and_misses_nothing() {
    let mut engine = Engine::start(1, Form::WithTopic).await;
    engine.publish(1).await;
    let (open, may) = mpsc::channel();
    let (sender, marks) = watch::channel(Vec::new());
    let gate = Gate { may, recorder: Recorder(sender) };
    let following = engine.source().follow_within(LIMITS, "backend a".into(), gate);
    let mut test = Test { following, marks };
    within(engine.publish(5_000)).await.expect("publishing does not wait for those who read");
    assert!(test.marks.borrow().is_empty());
    drop(open);
    let messages = test.following.status().counts.messages;
    until_live(&mut engine, &test, messages).await;
    test.holds(&marks_of_all(&engine)).await;
}

fn marks_of_all(engine: &Engine) -> Vec<u64> {
    marks(1, 0, engine.published())
}
