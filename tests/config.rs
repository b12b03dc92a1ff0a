//! What people see of a configuration: what is right in short, and what is wrong all at once, each problem with its
//! line, key, value and correction.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use warmgate::config::{self, Config, Protocol, check, needs_restart};

/// A directory that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("warmgate-config-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary directory can be written");
        Self(path)
    }

    /// Writes a file and gives its path.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).expect("the scratch directory can be written");
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn good(text: &str) -> Config {
    config::parse(text, "f").unwrap_or_else(|problems| panic!("{problems}"))
}

fn rendered(text: &str) -> String {
    config::parse(text, "f").expect_err("the text is wrong").to_string()
}

const SMALL: &str = "\
listeners: [{address: 127.0.0.1:8080}]
pools: [{name: p, backends: [{url: 'http://127.0.0.1:8001'}]}]
";

// === problems ===

#[test]
fn everything_wrong_is_said_at_once() {
    let text = "\
listeners:
  - address: 8080
    h2c: maybe
admin:
  address: 0.0.0.0:9090
  adress: 127.0.0.1:9090
server:
  threads: -1
  drain_delay: 5
  interval: 3s
limits:
  max_body_bytes: 64MB
  max_body_bytes: 1MiB
pools:
  - name: a b
    policy: least_requests
    backends:
      - url: http://user:secret@10.0.0.7:1
      - url: http://10.0.0.7:8000/v1
      - http://10.0.0.7:8000
  - models: [m, 7]
    metrics: {stale_after: 1s}
    health: fast
";
    let expected = "\
f:2:14: listeners[0].address: found `8080`; expected IP:PORT, e.g. 127.0.0.1:8080, or 0.0.0.0:8080 for every interface
f:3:10: listeners[0].h2c: found `maybe`; expected true or false
f:5:12: admin.address: found `0.0.0.0:9090`; reachable from other machines; expected 127.0.0.1:PORT, or a `token_file` beside it
f:6:3: admin.adress: unknown key; did you mean `address`?
f:8:12: server.threads: found `-1`; expected a whole number from 0 to 1024
f:9:16: server.drain_delay: found `5`; expected a duration with its unit (ms, s, m, h) from 0s to 5m, e.g. 1s
f:10:3: server.interval: unknown key here; it belongs at pools[].health.interval or pools[].metrics.interval
f:12:19: limits.max_body_bytes: found `64MB`; did you mean `64MiB`? expected a size with its unit (KiB, MiB, GiB; a bare number is bytes) from 1KiB to 4GiB
f:13:3: limits.max_body_bytes: given twice, first on line 12; keep one
f:15:11: pools[0].name: found `a b`; expected 1 to 64 of the characters A-Z a-z 0-9 _.-
f:16:13: pools[0].policy: found `least_requests`; did you mean `least_request`? expected one of cost, locality_first, prefix_affinity, consistent_hash, least_request, power_of_two, round_robin, random
f:18:14: pools[0].backends[0].url: found `http://***@10.0.0.7:1`; drop the user information before the `@`: it would not be sent; expected http://HOST:PORT or https://HOST:PORT, e.g. http://10.0.0.7:8000
f:19:14: pools[0].backends[1].url: found `http://10.0.0.7:8000/v1`; drop everything after the port: the path of each request is sent on as it is; expected http://HOST:PORT or https://HOST:PORT, e.g. http://10.0.0.7:8000
f:20:9: pools[0].backends[2]: found `http://10.0.0.7:8000`; expected `- url: http://10.0.0.7:8000`
f:21:5: pools[1].name: missing; expected 1 to 64 of the characters A-Z a-z 0-9 _.-
f:21:5: pools[1].backends: missing; expected a list of 0 to 1024 lines like `- url: http://10.0.0.7:8000`
f:21:17: pools[1].models[1]: found `7`; not text unless in quotes; expected a model name of 1 to 256 characters
f:22:28: pools[1].metrics.stale_after: found `1s`; expected longer than interval, or every value is stale before the next
f:23:13: pools[1].health: found `fast`; expected a section: lines of `key: value`
f: 19 problems";
    assert_eq!(rendered(text), expected);
}

#[test]
fn each_kind_of_mistake_is_placed_and_put_right() {
    let pools = "pools: [{name: p, backends: []}]\n";
    let listener = "listeners: [{address: 127.0.0.1:8080}]\n";
    for (text, problem) in [
        (String::new(), "f:1:1: found nothing; expected a section: lines of `key: value`".to_owned()),
        ("listeners: [\n".into(), "f:1:12: not readable as YAML: unclosed bracket '['".into()),
        ("a: 1\n b: 2\n".into(), "f:2:3: not readable as YAML: mapping values are not allowed in this context".into()),
        ("a: 1\n---\nb: 2\n".into(), "f:3:1: not readable as YAML: only single YAML document expected but multiple found".into()),
        ("a: *b\n".into(), "f:1:4: not readable as YAML: reference to unknown value".into()),
        (pools.into(), "f:1:1: listeners: missing; expected a list of 1 to 32 lines like `- address: 127.0.0.1:8080`".into()),
        (listener.into(), "f:1:1: pools: missing; expected a list of 1 to 256 lines like `- name: llama`".into()),
        (
            format!("{listener}pools: []\n"),
            "f:2:8: pools: found a list of 0; expected a list of 1 to 256 lines like `- name: llama`".into(),
        ),
        (
            format!("{listener}pools: [{{name: p, backends: }}]\n"),
            "f:2:27: pools[0].backends: found nothing; expected a list of 0 to 1024 lines like `- url: http://10.0.0.7:8000`".into(),
        ),
        (
            format!("{listener}pools:\n  - {{name: p, backends: []}}\n  - {{name: q, models: [], backends: []}}\n"),
            "f:4:23: pools[1].models: found a list of 0; pools[0] takes every other model already; expected models, e.g. [llama-3-8b]".into(),
        ),
        (
            format!("{listener}pools:\n  - {{name: p, models: [m], backends: []}}\n  - {{name: q, models: [m], backends: []}}\n"),
            "f:4:24: pools[1].models[0]: found `m`; already at pools[0].models[0] on line 3; expected another".into(),
        ),
        (
            format!("{listener}pools:\n  - {{name: p, backends: []}}\n  - {{name: p, models: [m], backends: []}}\n"),
            "f:4:12: pools[1].name: found `p`; already at pools[0].name on line 3; expected another".into(),
        ),
        (
            format!("{listener}pools:\n- name: p\n  backends:\n  - url: http://H:1\n  - url: HTTP://h.:01/\n"),
            "f:6:10: pools[0].backends[1].url: found `http://h:1`; already at pools[0].backends[0].url on line 5; expected another".into(),
        ),
        (
            format!("{listener}pools:\n- name: p\n  backends:\n  - url: http://h:1\n  - {{url: 'http://h:2', name: h:1}}\n"),
            "f:6:31: pools[0].backends[1].name: found `h:1`; already at pools[0].backends[0].name on line 5; expected another".into(),
        ),
        (
            format!("listeners:\n- address: 0.0.0.0:80\n- address: 10.0.0.1:80\n{pools}"),
            "f:3:12: listeners[1].address: found `10.0.0.1:80`; overlaps listeners[0].address on line 2; expected another port".into(),
        ),
        (
            format!("listeners:\n- address: \"[::]:9090\"\n{pools}"),
            "f:1:1: admin.address: found `127.0.0.1:9090`; overlaps listeners[0].address on line 2; expected another port".into(),
        ),
        (
            format!("{SMALL}limits: {{max_body_bytes: 2MiB, max_buffered_bytes: 1MiB}}\n"),
            "f:3:52: limits.max_buffered_bytes: found `1MiB`; expected at least max_body_bytes, or the largest body never fits".into(),
        ),
        (
            format!("{SMALL}limits: {{max_body_bytes: 2GiB}}\n"),
            "f:3:9: limits.max_buffered_bytes: found its default; expected at least max_body_bytes, or the largest body never fits".into(),
        ),
        (format!("{SMALL}retry: {{statuses: [500]}}\n"), "f:3:20: retry.statuses[0]: found `500`; expected one of 502, 503, 504".into()),
        (
            format!("{SMALL}retry: {{statuses: [503, 503]}}\n"),
            "f:3:25: retry.statuses[1]: found `503`; already at retry.statuses[0] on line 3; expected another".into(),
        ),
        (format!("{SMALL}retry: {{budget: .nan}}\n"), "f:3:17: retry.budget: found `NaN`; expected a number from 0 to 1".into()),
        (
            format!("{SMALL}logging: {{access_log: stdot}}\n"),
            "f:3:23: logging.access_log: found `stdot`; did you mean `stdout`? expected one of stdout, stderr, off, or an absolute path".into(),
        ),
        (
            format!("{SMALL}colour: red\n"),
            "f:3:1: colour: unknown key; expected one of listeners, admin, auth, server, limits, locality, retry, logging, pools".into(),
        ),
        (format!("{SMALL}7: red\n"), "f:3:1: found `7`; expected a word as the key".into()),
    ] {
        let said = rendered(&text);
        assert_eq!(said, format!("{problem}\nf: 1 problem"), "for:\n{text}");
    }
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let scratch = Scratch::new();
    let directory = scratch.0.display().to_string();
    let missing = format!("{directory}/missing.yaml");
    let latin = scratch.file("latin.yaml", b"# Konfiguration\n# f\xfcr alle\n");
    let huge = scratch.file("huge.yaml", "#".repeat((1 << 20) + 1));
    let full = scratch.file("full.yaml", format!("{SMALL}#{}", "x".repeat((1 << 20) - SMALL.len() - 1)));
    for (path, why) in [
        (&missing, "cannot be read: No such file or directory (os error 2)"),
        (&directory, "cannot be read: it is a directory"),
        (&latin, "not UTF-8 text from line 2 on"),
        (&huge, "cannot be read: it is longer than 1048576 bytes, the most that is read"),
    ] {
        let problems = config::load(path).expect_err("it cannot be read");
        assert_eq!(problems.to_string(), format!("{path}: {why}\n{path}: 1 problem"));
        assert_eq!(problems.iter().len(), 1);
    }
    assert_eq!(config::load(full), Ok(good(SMALL)), "a file of exactly the limit is read");
    assert!(config::parse(&"#".repeat((1 << 20) + 1), "f").is_err(), "text given directly has the same limit");
}

// === TLS files ===

#[test]
fn tls_files_are_looked_at() {
    let scratch = Scratch::new();
    let (certificate, key) = (scratch.file("certificate.pem", "c"), scratch.file("key.pem", "k"));
    let listener = |certificate: &str, key: &str, more: &str| {
        format!(
            "listeners: [{{address: 127.0.0.1:0, tls: {{certificate: '{certificate}', key: '{key}'}}{more}}}]\n\
             pools: [{{name: p, backends: [{{url: 'http://h:1'}}]}}]\n"
        )
    };
    let config = good(&listener(&certificate, &key, ""));
    let Protocol::Tls(tls) = &config.listeners[0].protocol else { panic!("the listener speaks TLS") };
    let files = &tls.certificates[0];
    assert_eq!((files.certificate.to_str(), files.key.to_str()), (Some(certificate.as_str()), Some(key.as_str())));

    let directory = scratch.0.display().to_string();
    let said = rendered(&listener("cert.pem", &directory, ", h2c: true"));
    assert!(said.contains("tls.certificate: found `cert.pem`; expected the absolute path of a file"), "{said}");
    assert!(said.contains("cannot read it: not a regular file"), "{said}");
    assert!(said.contains("listeners[0].h2c: found `true`; expected false beside `tls`"), "{said}");
    assert!(said.ends_with("f: 3 problems"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_key_that_everyone_can_read_is_noted() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let key = scratch.file("key.pem", "k");
    let text = format!(
        "listeners: [{{address: 127.0.0.1:8443, tls: {{certificate: '{key}', key: '{key}'}}}}]\n\
         pools: [{{name: p, backends: [{{url: 'http://h:1'}}]}}]\n"
    );
    let config = good(&text);
    for (mode, noted) in [(0o644, true), (0o640, false)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let note = format!("listeners[0].tls: every user can read {key}; chmod 640 or 600 it");
        assert_eq!(check::notes(&config).contains(&note), noted, "mode {mode:o}");
    }
}

// === check and reload ===

#[test]
fn what_is_of_no_use_in_overload_is_noted() {
    let text = SMALL.replace("name: p,", "name: p, queue: {max_wait: 10s, keep_alive: 10s}, hedging: {after: 1s},");
    let expected = "\
f: ok: 1 listener, 1 pool, 1 backend
f: note: pool p: queue.keep_alive is not shorter than queue.max_wait, so nothing waits for long enough
f: note: pool p: hedging needs a second backend";
    assert_eq!(check::render("f", &good(&text)), expected);
}

#[test]
fn a_good_file_is_summed_up() {
    let scratch = Scratch::new();
    let (token, keys) = (scratch.file("token", "t"), scratch.file("keys", "keys: []"));
    for (file, mode) in [(&token, 0o600), (&keys, 0o644)] {
        fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    assert_eq!(check::render("f", &good(SMALL)), "f: ok: 1 listener, 1 pool, 1 backend");
    let text = format!(
        "\
listeners: [{{address: 127.0.0.1:0}}, {{address: 0.0.0.0:8000, h2c: true}}]
admin: {{address: 0.0.0.0:9090, token_file: {token}}}
auth: {{keys_file: {keys}}}
pools:
  - {{name: a, models: [a], backends: []}}
  - {{name: b, models: [b], kv_events: {{enabled: true}}, backends: [{{url: 'http://localhost:8000'}}, {{url: 'http://h:8000'}}]}}
"
    );
    let expected = format!(
        "\
f: ok: 2 listeners, 2 pools, 2 backends
f: note: listeners[0].address: port 0: the system chooses another one at each start
f: note: admin.address: the token goes to 0.0.0.0:9090 in the clear: keep that network to operators
f: note: auth.keys_file: it has no keys, so nobody can call
f: note: auth.keys_file: every user can read {keys}; chmod 640 or 600 it
f: note: pool a: no backends: its requests get 503 until a reload adds one
f: note: pool b: kv_events without a tokenizer: only prompts of token ids can be looked up in them
f: note: pool b: http://localhost:8000 is a listener of warmgate itself: a loop
f: note: pools: a request for a model that no pool lists gets 404, as every pool lists its models"
    );
    assert_eq!(check::render("f", &good(&text)), expected);
}

#[test]
fn only_what_is_bound_at_the_start_needs_a_restart() {
    let old = good(&SMALL.replace("listeners: [", "listeners: [{address: 127.0.0.1:8081}, "));
    let reordered = good(&SMALL.replace("}]\npools", "}, {address: 127.0.0.1:8081}]\npools"));
    assert_eq!(needs_restart(&old, &reordered), [""; 0], "the order of listeners means nothing");

    let live = old.clone();
    let live = Config { limits: config::Limits { max_body_bytes: 1, ..live.limits }, pools: Vec::new(), ..live };
    assert_ne!(old, live);
    assert_eq!(needs_restart(&old, &live), [""; 0], "limits and pools change while running");

    let other = good(
        "listeners: [{address: 127.0.0.1:8080, h2c: true}, {address: 127.0.0.1:8081}]\n\
         admin: {address: 127.0.0.1:9091}\nserver: {threads: 2}\n\
         pools: [{name: p, backends: [{url: 'http://127.0.0.1:8001'}]}]\n",
    );
    assert_eq!(needs_restart(&old, &other), ["listeners", "admin.address", "server.threads"]);
    let open = good(&SMALL.replace("127.0.0.1:8080", "127.0.0.1:8080, requires_key: false"));
    assert_eq!(needs_restart(&good(SMALL), &open), ["listeners[].requires_key"]);
}

#[test]
fn check_tries_the_certificates_that_run_would_use() {
    let scratch = Scratch::new();
    let (certificate, key) = (scratch.file("c.pem", "no certificate"), scratch.file("k.pem", "no key"));
    let file = scratch.file(
        "w.yaml",
        format!("listeners: [{{address: 127.0.0.1:8443, tls: {{certificate: {certificate}, key: {key}}}}}]\npools: [{{name: p, backends: []}}]\n"),
    );
    let output =
        Command::new(env!("CARGO_BIN_EXE_warmgate")).args(["check", "--config", &file]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for (key, file) in [("certificate", &certificate), ("key", &key)] {
        assert!(text.contains(&format!("listeners[0].tls.{key}: {file}: holds no ")), "{text}");
    }
}

#[test]
fn check_notes_what_expires_and_refuses_what_backends_could_not_be_trusted_by() {
    let scratch = Scratch::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2024, 12, 31);
    let certificate = scratch.file("c.pem", params.self_signed(&key).unwrap().pem());
    let (key, ca) = (scratch.file("k.pem", key.serialize_pem()), scratch.file("ca.pem", "no certificate"));
    let check = |ca: &str| {
        let tls = format!("{{certificate: {certificate}, key: {key}}}");
        let pool = format!("{{name: p, tls: {{ca: {ca}}}, backends: [{{url: 'https://h:1'}}]}}");
        let listener = format!("listeners: [{{address: 127.0.0.1:8443, tls: {tls}}}]");
        let file = scratch.file("w.yaml", format!("{listener}\npools: [{pool}]\n"));
        let output = Command::new(env!("CARGO_BIN_EXE_warmgate")).args(["check", "--config", &file]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = check("none");
    assert_eq!(code, Some(0), "{text}");
    let note = format!("note: listeners[0].tls.certificate: {certificate}: expired on 2024-12-31T00:00:00Z");
    assert!(text.contains(&note), "{text}");
    let (code, text) = check(&ca);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("pools[0].tls.ca: {ca}: holds no certificate in PEM form")), "{text}");
}
