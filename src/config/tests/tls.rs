//! What may be said of TLS.

use std::path::PathBuf;

use super::super::*;
use super::problems;

/// A file that is there, whatever it holds.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("warmgate-{name}-{}", std::process::id()));
        std::fs::write(&path, "x").unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn with_listener(tls: &str) -> String {
    format!("listeners: [{{address: '127.0.0.1:8443', tls: {{{tls}}}}}]\npools: [{{name: p, backends: []}}]\n")
}

fn with_pool(tls: &str, backends: &str) -> String {
    format!(
        "listeners: [{{address: '127.0.0.1:8080'}}]\npools: [{{name: p, tls: {{{tls}}}, backends: [{backends}]}}]\n"
    )
}

fn tls(text: &str) -> Tls {
    let config = parse(&with_listener(text), "f").unwrap_or_else(|problems| panic!("{problems}"));
    let Protocol::Tls(tls) = &config.listeners[0].protocol else { panic!("the listener speaks TLS") };
    tls.clone()
}

#[test]
fn a_listener_has_its_certificates_in_the_order_of_the_file() {
    let file = File::new("order");
    let pair = format!("certificate: {0}, key: {0}", file.0.display());
    let files = CertificateFiles { certificate: file.0.clone(), key: file.0.clone() };
    let usual = Tls { certificates: vec![files.clone()], min_version: TlsVersion::V1_2, clients: None };
    assert_eq!(tls(&pair), usual);
    let two = tls(&format!("{pair}, certificates: [{{{pair}}}], min_version: 1.3"));
    assert_eq!(two, Tls { certificates: vec![files.clone(), files], min_version: TlsVersion::V1_3, clients: None });
}

#[test]
fn clients_are_asked_for_certificates_only_with_both_keys() {
    let file = File::new("clients");
    let path = file.0.display();
    let pair = format!("certificate: {path}, key: {path}");
    for (show, is_required) in [("optional", false), ("required", true)] {
        let asked = tls(&format!("{pair}, client_ca: {path}, client_certificates: {show}"));
        assert_eq!(asked.clients, Some(ClientCertificates { ca: file.0.clone(), is_required }));
    }
    assert_eq!(tls(&format!("{pair}, client_ca: none, client_certificates: off")).clients, None);
    for (text, why) in [
        (format!("client_ca: {path}"), "client_ca: found"),
        ("client_certificates: required".to_owned(), "client_certificates: found `required`; expected `client_ca`"),
        ("client_certificates: always".to_owned(), "expected one of off, optional, required"),
        ("min_version: 1.1".to_owned(), "found `1.1`; expected one of 1.2, 1.3"),
        (format!("certificates: [{{certificate: {path}}}]"), "tls.certificates[0].key: missing"),
        ("client_ca: /nowhere/ca.pem".to_owned(), "cannot read it"),
    ] {
        let wrong = problems(&with_listener(&format!("{pair}, {text}")));
        assert!(wrong.contains(why), "{text}: {wrong}");
    }
}

#[test]
fn a_backend_takes_from_its_pool_what_it_does_not_say() {
    let file = File::new("backend");
    let path = file.0.display();
    let own = "tls: {server_name: own.example, verify: insecure_any_name}";
    let none = "tls: {client_certificate: none, client_key: none, ca: none}";
    let backends = format!(
        "{{url: 'https://a:1'}}, {{url: 'https://b:1', {own}}}, {{url: 'https://c:1', {none}}}, {{url: 'http://d:1'}}"
    );
    let pool = format!("ca: {path}, client_certificate: {path}, client_key: {path}, server_name: '::1'");
    let config = parse(&with_pool(&pool, &backends), "f").unwrap_or_else(|problems| panic!("{problems}"));
    let client = Some(CertificateFiles { certificate: file.0.clone(), key: file.0.clone() });
    let usual = UpstreamTls { ca: Some(file.0.clone()), server_name: Some("::1".into()), client, verify: Verify::Full };
    let of = |at: usize| config.pools[0].backends[at].tls.clone();
    assert_eq!(of(0), usual);
    let (server_name, verify) = (Some("own.example".into()), Verify::InsecureAnyName);
    assert_eq!(of(1), UpstreamTls { server_name, verify, ..usual.clone() });
    assert_eq!(of(2), UpstreamTls { ca: None, client: None, ..usual });
    let notes = check::notes(&config).join("\n");
    assert!(notes.contains("b:1: tls.verify: any backend with a certificate of its CA can stand in for it"), "{notes}");
}

#[test]
fn what_makes_no_sense_for_backends_is_refused() {
    let file = File::new("sense");
    let path = file.0.display();
    let backend = "{url: 'https://a:1'}";
    for (pool, backend, why) in [
        (format!("client_certificate: {path}"), backend, "client_certificate: found"),
        (format!("client_key: {path}"), backend, "client_key: found"),
        ("server_name: 'a b'".to_owned(), backend, "expected none, or a host name or IP address"),
        ("verify: false".to_owned(), backend, "expected one of full, insecure_any_name, insecure_anything"),
        (String::new(), "{url: 'http://a:1', tls: {verify: full}}", "expected https:// in `url` beside it"),
    ] {
        let wrong = problems(&with_pool(&pool, backend));
        assert!(wrong.contains(why), "{pool}: {wrong}");
    }
}

#[test]
fn tls_can_change_in_a_running_process_but_not_come_or_go() {
    let file = File::new("change");
    let pair = format!("certificate: {0}, key: {0}", file.0.display());
    let config = |text: &str| parse(text, "f").unwrap_or_else(|problems| panic!("{problems}"));
    let old = config(&with_listener(&pair));
    let more = config(&with_listener(&format!("{pair}, min_version: 1.3, certificates: [{{{pair}}}]")));
    assert_eq!(needs_restart(&old, &more), [""; 0]);
    let plain = config("listeners: [{address: '127.0.0.1:8443'}]\npools: [{name: p, backends: []}]\n");
    assert_eq!(needs_restart(&old, &plain), ["listeners"]);
}
