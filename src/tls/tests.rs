//! What is loaded of which files, what is refused, and which certificate a host gets.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use proptest::prelude::*;
use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};

use super::identity::identity;
use super::sni::ranked;
use super::*;
use crate::config::{self, Config};
use crate::testing;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("warmgate-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// `NAME.pem` and `NAME.key`, for `hosts`, valid until the end of `last_year`.
    fn certificate(&self, name: &str, hosts: &[&str], last_year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        self.write(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn pair(&self, name: &str) -> String {
        let path = |end| self.path(&format!("{name}.{end}")).display().to_string();
        format!("certificate: {}, key: {}", path("pem"), path("key"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(tls: &str, pool: &str) -> Config {
    let text = format!(
        "listeners: [{{address: '127.0.0.1:8080', tls: {{{tls}}}}}]\n\
         pools: [{{name: p, backends: [{{url: 'https://h:1'}}, {{url: 'https://h:2'{pool}}}]}}]\n"
    );
    config::parse(&text, "f").unwrap_or_else(|problems| panic!("{text}\n{problems}"))
}

fn faults(loaded: Result<Store, Faults>) -> Vec<(String, PathBuf, String)> {
    let faults = loaded.expect_err("it cannot be used").0;
    faults.into_iter().map(|fault| (fault.key, fault.file, fault.what)).collect()
}

fn expiry(store: &Store, file: &Path) -> i64 {
    let file = file.display().to_string();
    store.expiries().into_iter().find(|(of, ..)| *of == file).unwrap().2
}

#[test]
fn every_fault_is_found_at_once_and_says_where() {
    let folder = Folder::new();
    for name in ["one", "two"] {
        folder.certificate(name, &["localhost"], 2090);
    }
    folder.write("garbage", "no PEM\n");
    folder.write("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let path = |name: &str| folder.path(name).display().to_string();
    let tls = format!(
        "certificate: {}, key: {}, client_ca: {}, client_certificates: required, certificates: \
         [{{certificate: {}, key: {}}}, {{certificate: {}, key: {}}}]",
        path("one.pem"),
        path("two.key"),
        path("one.key"),
        path("garbage"),
        path("two.key"),
        path("one.pem"),
        path("locked"),
    );
    let found = faults(Store::start(&config(&tls, &format!(", tls: {{ca: {}}}", path("garbage")))));
    let expected = [
        ("listeners[0].tls.certificate", "one.pem", "is of another key than the one in"),
        ("listeners[0].tls.certificates[0].certificate", "garbage", "holds no certificate in PEM form"),
        ("listeners[0].tls.certificates[1].key", "locked", "is protected by a password"),
        ("listeners[0].tls.client_ca", "one.key", "holds no certificate in PEM form"),
        ("pools[0].backends[1].tls.ca", "garbage", "holds no certificate in PEM form"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((key, file, what), (right_key, right_file, part)) in found.iter().zip(expected) {
        assert!(key == right_key && *file == folder.path(right_file) && what.contains(part), "{key} {file:?}: {what}");
    }
}

#[test]
fn a_certificate_of_a_backend_is_named_as_the_file_names_it() {
    let folder = Folder::new();
    folder.certificate("one", &["localhost"], 2090);
    folder.certificate("two", &["localhost"], 2090);
    let client = format!(
        ", tls: {{client_certificate: {}, client_key: {}}}",
        folder.path("one.pem").display(),
        folder.path("two.key").display()
    );
    let found = faults(Store::start(&config(&folder.pair("one"), &client)));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "pools[0].backends[1].tls.client_certificate");
}

#[test]
fn a_bad_renewal_leaves_what_is_in_force() {
    let folder = Folder::new();
    folder.certificate("one", &["localhost"], 2090);
    let config = config(&folder.pair("one"), "");
    let store = Store::start(&config).unwrap();
    let before = expiry(&store, &folder.path("one.pem"));
    let bad: [(&str, &dyn Fn()); 4] = [
        ("expired on 2024-12-31", &|| folder.certificate("one", &["localhost"], 2024)),
        ("holds no certificate", &|| folder.write("one.pem", "")),
        ("cannot be read", &|| std::fs::remove_file(folder.path("one.pem")).unwrap()),
        ("holds no private key", &|| {
            folder.certificate("one", &["localhost"], 2091);
            folder.write("one.key", "");
        }),
    ];
    for (why, break_it) in bad {
        break_it();
        let refused = store.load(&config).expect_err(why).to_string();
        assert!(refused.contains(why) && refused.contains("one."), "{refused}");
        assert_eq!(expiry(&store, &folder.path("one.pem")), before);
        assert!(!store.is_current(), "newer files were refused");
    }
    folder.certificate("one", &["localhost"], 2092);
    assert!(store.publish(store.load(&config).unwrap()), "it is another one");
    assert!(expiry(&store, &folder.path("one.pem")) > before && store.is_current());
}

#[test]
fn an_expired_certificate_is_no_reason_not_to_start_or_to_refuse_other_changes() {
    let folder = Folder::new();
    folder.certificate("old", &["localhost"], 2024);
    folder.certificate("new", &["new.example"], 2090);
    let store = Store::start(&config(&folder.pair("old"), "")).unwrap();
    let more = config(&format!("{}, certificates: [{{{}}}]", folder.pair("old"), folder.pair("new")), "");
    assert!(store.publish(store.load(&more).unwrap()));
    let notes = Loaded::check(&more).unwrap();
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("listeners[0].tls.certificate: ") && notes[0].contains("expired on 2024"),
        "{notes:?}"
    );
}

#[test]
fn a_certificate_that_nobody_gets_is_noted() {
    let folder = Folder::new();
    folder.certificate("first", &["a.example", "b.example"], 2090);
    folder.certificate("more", &["b.example", "c.example"], 2090);
    folder.certificate("same", &["b.example", "a.example"], 2090);
    folder.certificate("none", &[], 2090);
    let others = ["more", "same", "none"].map(|name| format!("{{{}}}", folder.pair(name))).join(", ");
    let notes = Loaded::check(&config(&format!("{}, certificates: [{others}]", folder.pair("first")), "")).unwrap();
    assert_eq!(notes.len(), 2, "{notes:?}");
    for (note, (at, name, why)) in
        notes.iter().zip([(1, "same", "only DNS names that others"), (2, "none", "no DNS name")])
    {
        let start = format!("listeners[0].tls.certificates[{at}].certificate: {}", folder.path(name).display());
        assert!(note.starts_with(&start) && note.contains(why), "{note}");
    }
}

#[test]
fn what_has_not_changed_stays_what_it_was() {
    let folder = Folder::new();
    folder.certificate("one", &["localhost"], 2090);
    let config = config(&folder.pair("one"), &format!(", tls: {{ca: {}}}", folder.path("one.pem").display()));
    let store = Store::start(&config).unwrap();
    let upstream = || config.pools[0].backends.iter().map(|of| store.upstream(&of.tls).unwrap()).collect::<Vec<_>>();
    let before = upstream();
    // The same content in new files.
    for name in ["one.pem", "one.key"] {
        let content = std::fs::read_to_string(folder.path(name)).unwrap();
        std::fs::remove_file(folder.path(name)).unwrap();
        folder.write(name, &content);
    }
    assert!(!store.publish(store.load(&config).unwrap()), "nothing is news");
    assert!(before.iter().zip(upstream()).all(|(before, after)| Arc::ptr_eq(before, &after)));
    folder.certificate("one", &["localhost"], 2091);
    assert!(store.publish(store.load(&config).unwrap()));
    let kept: Vec<_> = before.iter().zip(upstream()).map(|(before, after)| Arc::ptr_eq(before, &after)).collect();
    assert_eq!(kept, [true, false], "one trusts the system, the other the new file");
}

#[test]
fn peers_of_different_trust_never_share_a_connection() {
    use pingora_core::upstreams::peer::{HttpPeer, Peer};
    let folder = Folder::new();
    folder.certificate("one", &["localhost"], 2090);
    folder.certificate("two", &["localhost"], 2090);
    let ca = |name: &str| format!(", tls: {{ca: {}}}", folder.path(name).display());
    let others = [ca("one.pem"), ca("two.pem"), ", tls: {verify: insecure_anything}".to_owned(), String::new()];
    let mut hashes: Vec<_> = others
        .iter()
        .map(|other| {
            let config = config(&folder.pair("one"), other);
            let store = Store::start(&config).unwrap();
            let mut peer = HttpPeer::new("127.0.0.1:1", true, "h".to_owned());
            store.upstream(&config.pools[0].backends[1].tls).unwrap().prepare(&mut peer);
            peer.reuse_hash()
        })
        .collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), others.len());
}

#[tokio::test]
async fn a_client_that_says_nothing_is_given_up_and_counted() {
    let folder = Folder::new();
    folder.certificate("one", &["localhost"], 2090);
    let store = Store::start(&config(&folder.pair("one"), "")).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let accepted = store.endpoint(0).unwrap().accept(stream.into(), Duration::from_millis(20)).await;
    assert_eq!(accepted.expect_err("nothing was said"), Outcome::TimedOut);
    assert_eq!(store.handshakes(Outcome::TimedOut), 1);
}

// === SNI ===

fn chosen(hosts: &[&[&str]], host: Option<&str>) -> Vec<usize> {
    let hosts: Vec<Vec<String>> = hosts.iter().map(|of| of.iter().map(ToString::to_string).collect()).collect();
    ranked(hosts.iter().map(Vec::as_slice), host)
}

#[test]
fn a_name_goes_before_a_wildcard_and_that_before_the_first() {
    let hosts: [&[&str]; 4] = [&["a.example"], &["*.example"], &["b.example", "c.example"], &["b.example"]];
    for (host, right) in [
        (Some("a.example"), vec![0, 1, 0]),
        (Some("b.example"), vec![2, 3, 1, 0]),
        (Some("B.Example."), vec![2, 3, 1, 0]),
        (Some("d.example"), vec![1, 0]),
        (Some("deep.d.example"), vec![0]),
        (Some("example"), vec![0]),
        (Some("other"), vec![0]),
        (Some(""), vec![0]),
        (None, vec![0]),
    ] {
        assert_eq!(chosen(&hosts, host), right, "{host:?}");
    }
}

// === identities ===

fn identity_of(names: Vec<SanType>, common_name: &str) -> Option<String> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    identity(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
}

#[test]
fn a_client_is_called_by_its_uri_or_its_host_or_its_common_name() {
    let host = || SanType::DnsName("client.example".try_into().unwrap());
    let uri = || SanType::URI("spiffe://example/client".try_into().unwrap());
    assert_eq!(identity_of(vec![host(), uri()], "cn").as_deref(), Some("spiffe://example/client"));
    assert_eq!(identity_of(vec![host()], "cn").as_deref(), Some("client.example"));
    assert_eq!(identity_of(vec![], "cn").as_deref(), Some("cn"));
    assert_eq!(identity_of(vec![], &"ä".repeat(200)).map(|name| name.len()), Some(256), "it is cut");
}

proptest! {
    #![proptest_config(testing::config(2000))]

    #[test]
    fn arbitrary_certificates_never_panic(der in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(identity(&der), None);
    }
}
