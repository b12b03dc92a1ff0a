use super::*;

#[test]
fn the_oldest_go_when_there_is_no_room() {
    let cache = TextCache::new(3 * (ENTRY_BYTES + 40));
    let ids: Ids = Arc::from([7_u32; 10].as_slice());
    let keys: Vec<Key> = [b"a", b"b", b"c", b"d"].map(|text| cache.key(text)).to_vec();
    for key in &keys[..3] {
        cache.put_ids(*key, ids.clone());
    }
    assert!(cache.ids(keys[0]).is_some(), "looking it up makes it the newest");
    cache.put_ids(keys[3], ids.clone());
    assert_eq!(cache.ids(keys[1]), None, "the oldest is gone");
    assert!([0, 2, 3].iter().all(|at| cache.ids(keys[*at]).is_some()), "the others are there");
    assert_eq!(cache.bytes(), 3 * (ENTRY_BYTES + 40));
}

#[test]
fn what_can_never_fit_is_not_kept() {
    let cache = TextCache::new(ENTRY_BYTES);
    let key = cache.key(b"a");
    cache.put_ids(key, Arc::from([1_u32].as_slice()));
    assert_eq!((cache.ids(key), cache.bytes()), (None, 0));
}

#[test]
fn an_entry_that_comes_again_counts_once() {
    let cache = TextCache::new(1 << 20);
    for _ in 0..3 {
        cache.put_ids(cache.key(b"a"), Arc::from([1_u32, 2].as_slice()));
    }
    assert_eq!(cache.bytes(), ENTRY_BYTES + 8);
}

fn message(text: &str) -> (String, Value) {
    let json = serde_json::json!({"role": "user", "content": text}).to_string();
    let value = json::parse(json.as_bytes()).unwrap();
    (json, value)
}

#[test]
fn a_message_is_found_wherever_its_text_begins() {
    let cache = TextCache::new(1 << 20);
    let (json, value) = message(&"thing ".repeat(100));
    cache.put_message(json.as_bytes(), &value);
    for behind in ["", "]", ",{}", "}", "\"", "\u{fffd}"] {
        let text = format!("{json}{behind}");
        assert_eq!(cache.message(text.as_bytes()), Some((value.clone(), json.len())), "before {behind:?}");
    }
}

#[test]
fn one_that_only_begins_alike_is_not_taken_for_it() {
    let cache = TextCache::new(1 << 20);
    let (json, value) = message(&"thing ".repeat(100));
    let (longer, other) = message(&"thing ".repeat(101));
    cache.put_message(json.as_bytes(), &value);
    assert_eq!(cache.message(longer.as_bytes()), None);
    assert_eq!(cache.message(&json.as_bytes()[..json.len() - 1]), None, "the last byte is missing");
    cache.put_message(longer.as_bytes(), &other);
    assert_eq!(cache.message(longer.as_bytes()), Some((other, longer.len())), "the last one put counts");
    assert_eq!(cache.message(json.as_bytes()), None);
}

#[test]
fn a_segment_is_known_if_all_that_decided_its_end_is_there_again() {
    let cache = TextCache::new(1 << 20);
    let segment = Segment { key: cache.key(b"begin and"), ids: Arc::from([7_u32; 10].as_slice()) };
    cache.put_segment(b"begin and <end>", 5, 9, 3, segment.clone());
    assert_eq!(cache.bytes(), ENTRY_BYTES + 40);
    assert_eq!(cache.cut(b"begin and <e?", 5, 3), Some((9, segment.clone())));
    assert_eq!(cache.cut(b"begin and <?", 5, 3), None, "another text behind it");
    assert_eq!(cache.cut(b"begin and <", 5, 3), None, "too little behind it");
    assert_eq!(cache.cut(b"begin or <end>", 5, 3), None, "another segment");
    assert_eq!(cache.ids(segment.key), None, "it is kept once");
    cache.put_segment(b"other and <e", 5, 9, 4, segment.clone());
    assert_eq!(cache.cut(b"other and <e", 5, 4), None, "it was at the text's end");
    assert_eq!(cache.ids(segment.key), Some(segment.ids), "so it is known by its text only");
}

#[test]
fn messages_and_ids_share_the_room() {
    let cache = TextCache::new(2000);
    let (json, value) = message(&"x".repeat(800));
    cache.put_message(json.as_bytes(), &value);
    assert!(cache.bytes() > ENTRY_BYTES + 800, "its text and more: {}", cache.bytes());
    let key = cache.key(b"a");
    cache.put_ids(key, Arc::from([7_u32; 200].as_slice()));
    assert_eq!(cache.message(json.as_bytes()), None, "it had to go");
    assert_eq!((cache.ids(key).map(|ids| ids.len()), cache.bytes()), (Some(200), ENTRY_BYTES + 800));
}

#[test]
fn small_values_count_more_than_their_text() {
    let json = format!("[{}0]", "0,".repeat(999));
    let value = json::parse(json.as_bytes()).unwrap();
    assert!(value_bytes(&value) >= 1000 * size_of::<Value>() * 2, "a list may have as many free places");
}
