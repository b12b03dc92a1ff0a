use serde_json::json;

use super::super::testing::with_template;
use super::*;

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

fn limits() -> Limits {
    Limits { max_bytes: 1 << 20, timeout: Duration::from_secs(60), inline_bytes: 64, ..Limits::default() }
}

fn service(template: &str, limits: Limits, jobs: usize) -> Arc<Service> {
    Arc::new(Service::new(with_template(template), limits, jobs))
}

fn chat(text: &str) -> Bytes {
    json!({"messages": [{"role": "user", "content": text}]}).to_string().into()
}

/// Runs until its fuel is out, which takes far longer than any of these tests waits.
const ENDLESS: &str = "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}";

#[tokio::test]
async fn short_and_long_bodies_give_the_same_ids_as_the_tokenizer() {
    let service = service("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}", limits(), 1);
    for text in ["a", &"the thing ".repeat(1_000)] {
        let body = chat(text);
        let expected = service.tokenizer.prompts(Endpoint::ChatCompletions, &body, NOW).unwrap();
        assert!(!expected.prompts[0].is_empty());
        assert_eq!(service.prompts(Endpoint::ChatCompletions, body, NOW).await, Ok(expected));
    }
}

#[tokio::test]
async fn a_body_beyond_the_bound_is_refused() {
    let service = service("", Limits { max_bytes: 100, ..limits() }, 1);
    let refused = service.prompts(Endpoint::ChatCompletions, chat(&"a".repeat(100)), NOW).await;
    assert_eq!(refused, Err(NotTokenized::TooLarge));
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_for_a_place_goes_without() {
    let service = service("", limits(), 1);
    let taken = Arc::clone(&service.permits).acquire_owned().await.unwrap();
    let body = chat(&"a".repeat(100));
    let late = service.prompts(Endpoint::ChatCompletions, body.clone(), NOW).await;
    assert_eq!(late, Err(NotTokenized::TimedOut));
    drop(taken);
    assert!(service.permits.try_acquire().is_ok(), "nothing is left of the one that went");
}

#[tokio::test]
async fn a_template_without_an_end_gives_its_place_back() {
    let service = service(ENDLESS, limits(), 1);
    let body = chat(&"a".repeat(100));
    for _ in 0..2 {
        let cut = service.prompts(Endpoint::ChatCompletions, body.clone(), NOW).await;
        assert_eq!(cut, Err(NotTokenized::OutOfFuel));
    }
}

#[tokio::test]
async fn a_job_ends_when_its_waiter_is_gone() {
    let service = service("{% for m in messages %}{{ m.content }}{% endfor %}", limits(), 1);
    let stop = Stop::default();
    drop(StopOnDrop(stop.clone()));
    let body = chat("a");
    let ended = service.tokenizer.prompts_unless(Endpoint::ChatCompletions, &body, NOW, &stop);
    assert_eq!(ended, Err(NotTokenized::TimedOut));
}
