//! The schema against its documentation, and the parsers against arbitrary text.

use super::file::{keys, keys_named};
use super::problem::{masked, printable};
use super::tree::{self, Entry, Item, Node};
use super::values::{nearest, shown};
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

mod tls;

const EXAMPLE: &str = include_str!("../../conf/example.yaml");
const MINIMAL: &str = include_str!("../../conf/minimal.yaml");

/// A configuration of one listener and one pool, `pool` being further lines of the pool.
fn with_pool_lines(pool: &str) -> String {
    format!(
        "listeners: [{{address: 127.0.0.1:8080}}]\npools:\n  - name: p\n    backends: [{{url: http://h:1}}]\n{pool}"
    )
}

/// The same with one backend, `backend` being its further keys in braces' form.
fn with_backend(backend: &str) -> String {
    let pools = format!("pools: [{{name: p, backends: [{{url: 'http://10.0.0.7:8000', {backend}}}]}}]\n");
    format!("listeners: [{{address: 127.0.0.1:8080}}]\n{pools}")
}

fn problems(text: &str) -> String {
    parse(text, "f").expect_err("the text is wrong").to_string()
}

// === conf/ ===

#[test]
fn the_example_shows_every_default() {
    let minimal = "\
        listeners: [{address: 127.0.0.1:8080}]\n\
        pools: [{name: llama, backends: [{url: 'http://127.0.0.1:8001'}, {url: 'http://127.0.0.1:8002'}]}]\n";
    assert_eq!(parse(EXAMPLE, "example").unwrap(), parse(minimal, "minimal").unwrap(), "the example changes a default");
}

#[test]
fn the_minimal_file_is_right_and_nearly_all_defaults() {
    let config = parse(MINIMAL, "minimal").unwrap();
    assert_eq!(config.pools[0].engine, Engine::Vllm);
    assert!(config.pools[0].metrics.enabled, "a known engine is scraped by default");
    assert_eq!((&config.server, &config.limits), (&Server::default(), &Limits::default()));
    assert_eq!(config.admin, Admin::default());
}

/// The keys of sections that are off by default.
const COMMENTED_KEYS: &str = "\
    certificate key certificates min_version client_ca client_certificates ca server_name \
    client_certificate client_key verify file max_bytes files path config chat_template timeout \
    cache_bytes endpoint replay topic";

/// The example's keys with what its comments say of them: those above the key, and on its line.
fn documented() -> HashMap<String, String> {
    // Sections that are off by default are shown in comments; read them as if they were not.
    let text: String = EXAMPLE
        .lines()
        .map(|line| match line.trim_start() {
            head @ ("# tls:" | "# block_trace:" | "# tokenizer:" | "# kv_events:") => {
                line.replace(head, &head[2..]) + "\n"
            }
            key if key
                .strip_prefix("#   ")
                .and_then(|key| key.split_once(':'))
                .is_some_and(|(name, _)| COMMENTED_KEYS.split(' ').any(|key| key == name)) =>
            {
                line.replacen("# ", "  ", 1) + "\n"
            }
            _ => format!("{line}\n"),
        })
        .collect();
    let mut found = HashMap::new();
    walk("", &tree::read(&text).expect("the example is YAML"), &text, &mut found);
    found
}

fn walk(path: &str, item: &Item, text: &str, found: &mut HashMap<String, String>) {
    match &item.node {
        Node::Map(entries) => {
            for Entry { key, value } in entries {
                let Node::Text(name) = &key.node else { panic!("a key of the example is not text") };
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                found.entry(path.clone()).or_insert_with(|| comment(text, key.position.line));
                walk(&path, value, text, found);
            }
        }
        Node::List(items) => items.iter().for_each(|item| walk(&format!("{path}[]"), item, text, found)),
        _ => {}
    }
}

fn comment(text: &str, line: u32) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let line = line as usize - 1;
    let first = lines[..line].iter().rposition(|line| !line.trim_start().starts_with('#')).map_or(0, |at| at + 1);
    lines[first..line].iter().map(|line| line.trim_start().trim_start_matches("# ")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_example_has_every_key_of_the_schema_and_no_other() {
    let documented = documented();
    let mut schema: Vec<&str> = keys().iter().map(|key| key.path.as_str()).collect();
    let mut shown: Vec<&str> = documented.keys().map(String::as_str).collect();
    schema.sort_unstable();
    shown.sort_unstable();
    assert_eq!(schema, shown, "the schema and conf/example.yaml name different keys");
    assert!(schema.contains(&"pools[].backends[].url") && schema.contains(&"listeners[].tls.key"), "deep keys count");
}

#[test]
fn the_example_says_the_range_of_every_key() {
    let documented = documented();
    for key in keys() {
        let says = &documented[&key.path];
        let wants: Vec<String> = if let Some((_, names)) = key.right.split_once("one of ") {
            names.split(", ").filter(|name| !name.starts_with("or ")).map(str::to_owned).collect()
        } else if let Some((_, range)) = key.right.split_once(" from ") {
            vec![range.split(", e.g.").next().unwrap().to_owned()]
        } else if key.right == "true or false" {
            vec![key.right.clone()]
        } else {
            continue;
        };
        for want in wants {
            assert!(says.contains(&want), "{}: its comment does not say `{want}`: {says}", key.path);
        }
    }
}

#[test]
fn the_files_of_conf_fit_the_page() {
    for (name, text) in [("example", EXAMPLE), ("minimal", MINIMAL), ("keys", include_str!("../../conf/keys.yaml"))] {
        for (at, line) in text.lines().enumerate() {
            assert!(line.chars().count() <= 120, "{name} line {} is longer than 120 columns", at + 1);
            assert!(line.trim_end() == line && !line.contains('\t'), "{name} line {} has stray white space", at + 1);
        }
    }
}

// === exact locality ===

#[test]
fn ranks_are_backends_of_their_own_with_their_own_sockets() {
    let events = "kv_events: {endpoint: 'tcp://10.0.0.7:5557', replay: 'tcp://10.0.0.7:6000'}";
    let config = parse(&with_backend(&format!("data_parallel_ranks: 2, {events}")), "f").unwrap();
    let ranks: Vec<_> = config.pools[0].backends.iter().map(|backend| (&*backend.name, backend.rank)).collect();
    assert_eq!(ranks, [("10.0.0.7:8000-r0", Some(0)), ("10.0.0.7:8000-r1", Some(1))]);
    let events = config.pools[0].backends[1].kv_events.clone().unwrap();
    assert_eq!((&*events.endpoint, events.replay.as_deref()), ("tcp://10.0.0.7:5558", Some("tcp://10.0.0.7:6001")));
}

#[test]
fn the_sockets_of_ranks_and_of_backends_do_not_meet() {
    let events = |endpoint: u32, replay: u32| {
        format!("kv_events: {{endpoint: 'tcp://h:{endpoint}', replay: 'tcp://h:{replay}'}}")
    };
    for (backend, why) in [
        (events(5557, 5557), "kv_events.replay: found `tcp://h:5557`; expected a port 1 or more away"),
        (format!("data_parallel_ranks: 4, {}", events(5557, 5560)), "expected a port 4 or more away from endpoint's"),
        (format!("data_parallel_ranks: 4, {}", events(65_533, 5560)), "expected a port that leaves room for 4 ranks"),
    ] {
        let wrong = problems(&with_backend(&backend));
        assert!(wrong.contains(why), "{backend}: {wrong}");
    }
    parse(&with_backend(&format!("data_parallel_ranks: 4, {}", events(5557, 5561))), "f").unwrap();
    let backend = |port| format!("{{url: 'http://h:{port}', kv_events: {{endpoint: 'tcp://h:5557'}}}}");
    let pool = format!("pools: [{{name: p, backends: [{}, {}]}}]\n", backend(1), backend(2));
    let wrong = problems(&format!("listeners: [{{address: 127.0.0.1:8080}}]\n{pool}"));
    assert!(
        wrong.contains("backends[1].kv_events: found `tcp://h:5557`; already at pools[0].backends[0].kv_events"),
        "{wrong}"
    );
}

#[test]
fn an_api_key_is_read_from_its_file_and_never_shown() {
    let file = std::env::temp_dir().join(format!("warmgate-key-{}", std::process::id()));
    std::fs::write(&file, "S3CRET-key\n").unwrap();
    let lines = format!("    api_key_file: {}\n", file.display());
    let config = parse(&with_pool_lines(&lines), "f").unwrap();
    assert_eq!(config.pools[0].api_key.as_ref().map(Secret::reveal), Some("S3CRET-key"));
    assert!(!format!("{config:?}").contains("S3CRET"), "a debug print shows the key");
    std::fs::write(&file, "S3CRET two\nlines").unwrap();
    let wrong = problems(&with_pool_lines(&lines));
    std::fs::remove_file(&file).unwrap();
    assert!(wrong.contains("its content is not 1 to 4096 visible characters on one line"), "{wrong}");
    assert!(!wrong.contains("S3CRET"), "a problem shows the key: {wrong}");
}

#[test]
fn what_exact_locality_needs_has_to_be_there() {
    for (lines, why) in [
        ("    tokenizer: {path: /nowhere/at/all}\n", "found `/nowhere/at/all`; cannot read it:"),
        ("    tokenizer: {max_bytes: 1MiB}\n", "path"),
        ("    kv_events: {enabled: yes please}\n", "expected true or false"),
        ("    kv_events: {cpu_credit: 1.5}\n", "expected a number from 0 to 1"),
        ("    api_key_file: relative/path\n", "expected none, or the absolute path of a file"),
    ] {
        let wrong = problems(&with_pool_lines(lines));
        assert!(wrong.contains(why), "{lines}: {wrong}");
    }
    for endpoint in ["10.0.0.7:5557", "tcp://10.0.0.7", "ipc:///tmp/x", "tcp://*:5557"] {
        let wrong = problems(&with_backend(&format!("kv_events: {{endpoint: '{endpoint}'}}")));
        assert!(wrong.contains("expected tcp://HOST:PORT, e.g. tcp://10.0.0.7:5557"), "{endpoint}: {wrong}");
    }
}

// === headers ===

#[test]
fn a_session_header_is_what_http_can_call_a_header_or_none() {
    let header = |text: &str| parse(&with_pool_lines(text), "f").unwrap().pools[0].session_header.clone();
    assert_eq!((header(""), header("    session_header: none\n")), (None, None));
    assert_eq!(header("    session_header: X-Session-Id\n"), Some(http::HeaderName::from_static("x-session-id")));
    for (wrong, why) in [
        (
            "'x session'",
            "found `x session`; not what HTTP can call a header; expected none, or the name of a request header",
        ),
        ("''", "not what HTTP can call a header"),
        ("7", "found `7`; expected none, or the name"),
        (&"x".repeat(129), "longer than 128 characters"),
    ] {
        let problems = problems(&with_pool_lines(&format!("    session_header: {wrong}\n")));
        assert!(problems.contains(why), "{wrong}: {problems}");
    }
}

// === YAML ===

#[test]
fn words_keep_their_meaning() {
    let config = parse(&(with_pool_lines("") + "logging: {access_log: off, level: off}\n"), "f").unwrap();
    assert_eq!(config.logging, Logging { level: log::LevelFilter::Off, access_log: AccessLog::Off, block_trace: None });
    assert!(problems(&(with_pool_lines("") + "server: {response_headers: yes}\n")).contains("found `yes`"));
    assert!(
        problems(&with_pool_lines("    models: [1.50]\n")).contains("not text unless in quotes"),
        "a model that looks like a number would lose its spelling"
    );
}

#[test]
fn anchors_and_merges_share_settings_between_pools() {
    let text = "\
listeners: [{address: 127.0.0.1:8080}]
pools:
  - &first
    name: a
    models: [a]
    health: &health {interval: 7s, fall: 5}
    timeouts: {connect: 3s}
    backends: []
  - <<: *first
    name: b
    models: [b]
  - {name: c, models: [c], health: *health, backends: []}
";
    let config = parse(text, "f").unwrap();
    assert_eq!(config.pools[0].health.interval, Duration::from_secs(7));
    assert_eq!(config.pools[0].health, config.pools[2].health, "an alias is what its anchor is");
    let mut merged = config.pools[1].clone();
    (merged.name, merged.models) = ("a".into(), vec!["a".into()]);
    assert_eq!(merged, config.pools[0], "a merge takes over all but what is given");
    let wrong = text.replace("7s", "7");
    let said = problems(&wrong);
    assert!(said.contains("f:6:32: pools[0].health.interval: found `7`"), "the anchor's line is named: {said}");
}

#[test]
fn what_a_text_may_cost_is_bounded() {
    let laughs = (1..9).fold("a: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, level| {
        let alias = format!("*a{}", level - 1);
        text + &format!("b{level}: &a{level} [{}]\n", vec![alias; 9].join(", "))
    });
    let long = format!("a: &a \"{}\\n\"\nb: [{}]\n", "x".repeat(500_000), vec!["*a"; 2_000].join(","));
    let plain = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), vec!["*a"; 900].join(","));
    let deep = "[".repeat(100_000);
    let deep_blocks: String = (0..700).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    let compact = "- ".repeat(50_000);
    let wide = "- a\n".repeat(200_000);
    let quoted = format!("\"{}", "\\x41".repeat(200_000));
    for (name, text) in [
        ("nested aliases", laughs),
        ("aliases of a long text", long),
        ("aliases of a long word", plain),
        ("flow lists", deep),
        ("blocks", deep_blocks),
        ("compact lists", compact),
        ("items", wide),
        ("an open quote", quoted),
    ] {
        let refused = tree::read(&text).map(|_| ()).expect_err(name);
        assert!(refused.to_string().starts_with("not readable as YAML: "), "{name}: {refused}");
    }
}

#[test]
fn problems_beyond_the_first_500_are_counted_only() {
    let keys: String = (0..9_000).map(|n| format!("k{n}: 1\n")).collect();
    let said = problems(&(with_pool_lines("") + &keys));
    assert_eq!(said.lines().count(), 501);
    assert!(said.ends_with("f: 9000 problems, the first 500 listed"), "{}", said.lines().last().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = parse(&text, "f");
    }

    #[test]
    fn arbitrary_yaml_never_panics(text in "([a-z&*!<>|?#:,\"'{}\\[\\]\n -]|(listeners|pools|admin|url|address): ?){0,60}") {
        let _ = parse(&text, "f");
    }

    /// Any line of the example lost, doubled or cut: right, or problems that each name a place in it.
    #[test]
    fn a_damaged_example_gives_placed_problems(line in 0..EXAMPLE.lines().count(), how in 0..4, cut in 0..40_usize) {
        let mut lines: Vec<String> = EXAMPLE.lines().map(str::to_owned).collect();
        let cut = |text: &str| text.chars().take(cut).collect::<String>();
        match how {
            0 => drop(lines.remove(line)),
            1 => lines.insert(line, lines[line].clone()),
            2 => lines[line] = cut(&lines[line]),
            _ => lines[line].push_str(" @"),
        }
        if let Err(problems) = parse(&lines.join("\n"), "f") {
            prop_assert!(problems.iter().len() > 0);
            for problem in problems.iter() {
                let position = problem.position.expect("every problem has a position");
                prop_assert!((1..=lines.len() as u32 + 1).contains(&position.line), "{} is not in the file", position.line);
            }
        }
    }

    #[test]
    fn durations_read_as_they_are_shown(millis in 100_u64..86_400_000) {
        let text = with_pool_lines(&format!("    timeouts: {{read: {}}}\n", shown(Duration::from_millis(millis))));
        prop_assert_eq!(parse(&text, "f").unwrap().pools[0].timeouts.read, Duration::from_millis(millis));
    }

    #[test]
    fn a_url_survives_being_printed(text in "https?://([a-zA-Z0-9.-]{1,20}|\\[[0-9a-f:]{2,20}\\]):[0-9]{1,5}/?") {
        if let Ok(url) = text.parse::<BackendUrl>() {
            prop_assert_eq!(url.to_string().parse::<BackendUrl>(), Ok(url));
        }
    }

    #[test]
    fn secrets_of_a_url_are_never_shown(user in "[a-z]{1,8}", secret in "[^\\s]{0,3}S3CRET[^\\s]{0,3}") {
        for url in [format!("http://{user}:{secret}@h:1"), format!("{user}:{secret}@h:1"), format!("http://h:1?{secret}")] {
            let quoted = format!("\"{}\"", url.replace('\\', "\\\\").replace('"', "\\\""));
            let said = problems(&with_pool_lines(&format!("      # \n    kv_tokens: {quoted}\n")));
            prop_assert!(!said.contains("S3CRET"), "{}", said);
        }
    }
}

// === values ===

#[test]
fn urls_are_scheme_host_and_port() {
    for (text, shown) in [
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("HTTP://Engine.Example.:08000/", "http://engine.example:8000"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("http://vllm_0:1", "http://vllm_0:1"),
    ] {
        assert_eq!(text.parse::<BackendUrl>().unwrap().to_string(), shown);
    }
    for (text, error) in [
        ("10.0.0.7:8000", UrlError::Scheme),
        ("ftp://h:1", UrlError::Scheme),
        ("http://u:p@h:1", UrlError::UserInfo),
        ("http://h:1/v1", UrlError::Path),
        ("http://h:1?a", UrlError::Path),
        ("http://h:1#a", UrlError::Path),
        ("http://h", UrlError::NoPort),
        ("http://h:", UrlError::NoPort),
        ("http://[::1]", UrlError::NoPort),
        ("http://h:0", UrlError::Port),
        ("http://h:65536", UrlError::Port),
        ("http://h:+80", UrlError::Port),
        ("http://:1", UrlError::Host),
        ("http://::1:1", UrlError::Host),
        ("http://10.0.0.256:1", UrlError::Host),
        ("http://a..b:1", UrlError::Host),
        ("http://a b:1", UrlError::Host),
        ("http://[::g]:1", UrlError::Host),
    ] {
        assert_eq!(text.parse::<BackendUrl>(), Err(error), "{text}");
    }
}

#[test]
fn durations_and_sizes_need_a_unit_they_know() {
    for (text, good) in [
        ("1m30s", true),
        ("100ms", true),
        ("30s1m", false),
        ("5", false),
        ("5 s", false),
        ("1.5s", false),
        ("1d", false),
        ("99999999999999999999s", false),
        ("99999999999999999h", false),
        ("s", false),
    ] {
        let text = with_pool_lines(&format!("    timeouts: {{read: {text}}}\n"));
        assert_eq!(parse(&text, "f").is_ok(), good, "{text}");
    }
    for (size, bytes) in [("2048", Some(2048)), ("2KiB", Some(2048)), ("2 KiB", Some(2048)), ("5GiB", None)] {
        let limits = parse(&(with_pool_lines("") + &format!("limits: {{max_body_bytes: {size}}}\n")), "f");
        assert_eq!(limits.ok().map(|config| config.limits.max_body_bytes), bytes, "{size}");
    }
    let said = problems(&(with_pool_lines("") + "limits: {max_body_bytes: 64MB}\n"));
    assert!(said.contains("did you mean `64MiB`? expected a size"), "{said}");
}

#[test]
fn a_block_trace_is_off_unless_it_has_a_file_of_its_own() {
    let logging = |text: &str| with_pool_lines("") + "logging: {" + text + "}\n";
    assert_eq!(parse(&logging(""), "f").unwrap().logging.block_trace, None);
    let given = parse(&logging("block_trace: {file: /a/b}"), "f").unwrap().logging.block_trace.unwrap();
    assert_eq!((given.file.to_str(), given.max_bytes, given.files.get()), (Some("/a/b"), 64 << 20, 4));
    for (text, expected) in [
        ("block_trace: {}", "logging.block_trace.file: missing; expected an absolute path"),
        ("block_trace: {file: b}", "logging.block_trace.file: found `b`; expected an absolute path"),
        ("block_trace: true", "logging.block_trace: found `true`; expected a section"),
        ("block_trace: {file: /a, files: 0}", "logging.block_trace.files: found `0`; expected a whole number from 1"),
        ("block_trace: {file: /a, max_bytes: 1KiB}", "logging.block_trace.max_bytes: found `1KiB`; expected a size"),
        ("access_log: /a, block_trace: {file: /a}", "logging.block_trace.file: found `/a`; expected another file"),
        ("access_log: /a.1, block_trace: {file: /a}", "logging.block_trace.file: found `/a`; expected another file"),
        ("access_log: /a, block_trace: {file: /b/../a}", "logging.block_trace.file: found `/b/../a`; expected another"),
    ] {
        let said = problems(&logging(text));
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn every_policy_and_engine_has_the_name_the_file_gives_it() {
    for (name, policy) in Policy::NAMES {
        let config = parse(&with_pool_lines(&format!("    policy: {name}\n")), "f").unwrap();
        assert_eq!((config.pools[0].policy, policy.name()), (*policy, *name));
    }
    for (engine, path, is_scraped) in
        [("vllm", "/health", true), ("sglang", "/ready", true), ("generic", "/health", false)]
    {
        let pool = parse(&with_pool_lines(&format!("    engine: {engine}\n")), "f").unwrap().pools.remove(0);
        assert_eq!((pool.engine.name(), pool.health.path.as_str(), pool.metrics.enabled), (engine, path, is_scraped));
    }
}

#[test]
fn a_misspelt_word_finds_its_neighbour() {
    let names = ["interval", "timeout", "h2c", "rise"];
    for (word, near) in [
        ("intervall", Some("interval")),
        ("Time-Out", Some("timeout")),
        ("tiemout", Some("timeout")),
        ("h2", Some("h2c")),
        ("rsie", Some("rise")),
        ("colour", None),
        ("", None),
        ("x", None),
    ] {
        assert_eq!(nearest(word, &names), near, "{word}");
    }
    assert_eq!(keys_named("rise"), ["pools[].health.rise"]);
}

#[test]
fn quoted_values_fit_a_line_and_hide_secrets() {
    assert_eq!(printable("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
    assert_eq!(printable(&"x".repeat(500)).len(), 83, "80 characters and three dots");
    assert_eq!(masked("http://u:p@ss@h:1/x?key=1"), "http://***@h:1/x?***");
    assert_eq!(masked("u:p@h:1"), "***@h:1");
    assert_eq!(masked("http://h:1?u@key"), "http://***", "an @ that may be the query's");
    assert_eq!(masked("model@v1"), "model@v1", "not everything with an @ is a secret");
}
