//! The file of keys: what it may say, and what is said of one that is wrong.

use crate::config::{Config, KeyLimits, Priority, parse};

const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/keys.yaml");

/// A configuration with this file of keys.
fn with_keys_file(path: &str) -> String {
    let pools = "pools: [{name: p, backends: []}]";
    format!("listeners: [{{address: 127.0.0.1:8080}}]\nauth: {{keys_file: {path}}}\n{pools}\n")
}

fn problems(text: &str) -> String {
    parse(text, "f").expect_err("the text is wrong").to_string()
}

/// The configuration with these lines in its file of keys, or what is wrong with them, the file called KEYS.
fn keys_of(name: &str, lines: &str) -> Result<Config, String> {
    let file = std::env::temp_dir().join(format!("warmgate-keys-{name}-{}", std::process::id()));
    std::fs::write(&file, lines).unwrap();
    let path = file.display().to_string();
    let read = parse(&with_keys_file(&path), "f").map_err(|problems| problems.to_string().replace(&path, "KEYS"));
    std::fs::remove_file(&file).unwrap();
    read
}

#[test]
fn the_file_of_keys_in_conf_has_every_key_of_its_form() {
    let pools = "pools: [{name: llama, backends: []}]\n";
    let text = format!("listeners: [{{address: 127.0.0.1:8080}}]\nauth: {{keys_file: {KEYS}}}\n{pools}");
    let auth = parse(&text, "f").unwrap().auth;
    let limits = auth.keys[1].limits;
    assert_eq!((auth.keys[0].limits, &auth.keys[0].models), (KeyLimits::default(), &None));
    assert_eq!((auth.keys[0].digests.len(), auth.keys[1].digests.len()), (1, 2));
    let given = [
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.uncached_tokens_per_minute,
        limits.concurrent_requests,
    ];
    assert_eq!(given.map(|limit| limit.unwrap().get()), [600, 2_000_000, 500_000, 64]);
    assert_eq!(
        (auth.keys[1].models.as_ref().unwrap().len(), &auth.keys[1].pools),
        (2, &Some(vec!["llama".to_owned()]))
    );
    let paths = ["/v1/chat/completions", "/v1/models", "/v1/audio/*"].map(str::to_owned).to_vec();
    assert_eq!((&auth.keys[0].paths, &auth.keys[1].paths), (&None, &Some(paths)));
    assert_eq!((auth.keys[0].priority, auth.keys[1].priority), (Priority::Normal, Priority::Low));
}

#[test]
fn every_line_of_the_file_of_keys_that_is_wrong_is_named() {
    let hash = format!("sha256:{}", "0".repeat(64));
    let lines = format!(
        "keys:\n  - {{label: a, hash: '{hash}', tokens_per_minutes: 1}}\n  - {{label: a, hash: '{hash}'}}\n  \
         - {{label: b, hash: my-very-S3CRET-key}}\n  - {{hash: '{hash}', models: [], pools: [q]}}\n  \
         - {{label: c d, hash: [], requests_per_minute: 0, priority: hihg}}\n"
    );
    let problems = keys_of("wrong", &lines).unwrap_err();
    for expected in [
        "KEYS:2:97: keys[0]: unknown key; did you mean `tokens_per_minute`?",
        "KEYS:3:13: keys[1].label: already at keys[0].label on line 2; expected another",
        "KEYS:3:22: keys[1].hash: already at keys[0].hash on line 2; expected another",
        "KEYS:4:22: keys[2].hash: expected sha256: and 64 hexadecimal digits, as `warmgate key` prints it",
        "keys[3].label: missing; expected 1 to 64 of the characters",
        "keys[3].models: expected at least one, or no such key to allow all",
        "keys[3].pools: not all of these are names of pools",
        "KEYS:6:13: keys[4].label: expected 1 to 64 of the characters",
        "keys[4].hash: expected sha256: and 64 hexadecimal digits",
        "keys[4].requests_per_minute: expected a whole number from 1 to 1000000000",
        "keys[4].priority: did you mean `high`?",
    ] {
        assert!(problems.contains(expected), "{expected}\nis not in\n{problems}");
    }
    assert!(!problems.contains("S3CRET"), "a key in the wrong place is shown: {problems}");
}

#[test]
fn paths_are_told_from_what_names_none() {
    let hash = format!("sha256:{}", "0".repeat(64));
    let with = |path: &str| keys_of("paths", &format!("keys:\n  - {{label: a, hash: '{hash}', paths: ['{path}']}}\n"));
    for path in ["/v1/models", "/v1/*", "/*", "/", "/v1/models/a/b"] {
        assert_eq!(with(path).unwrap().auth.keys[0].paths, Some(vec![path.to_owned()]), "{path}");
    }
    for path in ["", "v1/models", "/v1/", "/v1/%63hat", "/v1/x?y", "/v1/../x", "/v1*", "/*/x", "*", "/v1/**"] {
        let problems = with(path).unwrap_err();
        assert!(problems.contains("keys[0].paths[0]: expected a path such as /v1/models"), "{path}: {problems}");
    }
    let hash = format!("keys:\n  - {{label: a, hash: '{hash}', paths: []}}\n");
    assert!(keys_of("no-paths", &hash).unwrap_err().contains("keys[0].paths: expected at least one"));
}

#[test]
fn the_problems_of_both_files_are_told_at_once() {
    let file = std::env::temp_dir().join(format!("warmgate-keys-both-{}", std::process::id()));
    std::fs::write(&file, "keys: 3\n").unwrap();
    let text = format!("{}server: {{threads: x}}\n", with_keys_file(&file.display().to_string()));
    let problems = problems(&text);
    std::fs::remove_file(&file).unwrap();
    assert!(problems.contains("server.threads: found `x`"), "{problems}");
    assert!(problems.contains("keys: expected a list"), "{problems}");
    for (lines, why) in [("a: [", "KEYS"), ("- a\n", "expected a section"), ("", "expected a section")] {
        let problems = keys_of("form", lines).unwrap_err();
        assert!(problems.contains(why), "{lines}: {problems}");
    }
    for lines in [
        "S3CRET\n",
        "- S3CRET\n",
        "S3CRET: a\n",
        "keys: S3CRET\n",
        "keys: [S3CRET]\n",
        "keys: [{S3CRET: 1}]\n",
        "a: 'S3CRET\n",
        "keys: {S3CRET\n",
        "? [S3CRET]\n: *S3CRET\n",
    ] {
        let problems = keys_of("hidden", lines).unwrap_err();
        assert!(problems.contains("KEYS") && !problems.contains("S3CRET"), "{lines}: {problems}");
    }
    assert!(keys_of("empty", "keys: []\n").is_ok(), "nobody may call, which is said by a note");
}

#[test]
fn credentials_are_those_of_systemd() {
    let problem = problems(&with_keys_file("credential:keys"));
    assert!(problem.contains("only a service that systemd gives credentials has them"), "{problem}");
    for wrong in ["credential:", "credential:a/b", "credential:.."] {
        let problem = problems(&with_keys_file(&format!("'{wrong}'")));
        assert!(problem.contains("not what systemd can call a credential"), "{wrong}: {problem}");
    }
}
