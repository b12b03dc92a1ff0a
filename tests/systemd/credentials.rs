//! Keys and tokens that only root can read, handed over by `LoadCredential=` as `systemd/README.md` says.

use sha2::{Digest, Sha256};

use super::fleet::{get, get_with};
use super::{CONFIG, Service};

const DROP_IN: &str = "\
[Service]
LoadCredential=keys:/etc/warmgate/keys.yaml
LoadCredential=admin-token:/etc/warmgate/admin-token
ExecReload=
ExecReload=/bin/kill -HUP $MAINPID
";

const KEY: &str = "wg-a-key-of-the-tests-under-systemd";
const TOKEN: &str = "a-token-of-the-tests-under-systemd";

#[test]
fn keys_and_tokens_come_as_credentials() {
    let Some(service) = Service::install("keys_and_tokens_come_as_credentials") else { return };
    let Service { machine, listener, admin, backend } = &service;
    let digest: String = Sha256::digest(KEY).iter().map(|byte| format!("{byte:02x}")).collect();
    let keys = format!("keys:\n  - {{label: a, hash: 'sha256:{digest}'}}\n");
    for (file, content) in [("/etc/warmgate/keys.yaml", &*keys), ("/etc/warmgate/admin-token", TOKEN)] {
        machine.write(file, content);
        assert!(machine.run(&["chmod", "600", file]).status.success(), "only root can read {file}");
    }
    machine.write("/etc/systemd/system/warmgate.service.d/keys.conf", DROP_IN);
    machine.write(
        CONFIG,
        &format!(
            "listeners:\n  - address: {listener}\nadmin: {{address: '{admin}', token_file: 'credential:admin-token'}}\n\
             auth: {{keys_file: 'credential:keys'}}\n\
             pools:\n  - name: test\n    engine: generic\n    backends: [{{url: 'http://{}'}}]\n",
            backend.address()
        ),
    );
    assert!(machine.systemctl(&["start"]), "the unit starts, its check included: {}", machine.journal());
    service.await_ready();
    let status = |headers: &str| get_with(*listener, "/v1/anything", headers).map(|(status, _)| status);
    assert_eq!((status(""), status(&format!("authorization: Bearer {KEY}\r\n"))), (Some(401), Some(200)));
    let backends = |headers: &str| get_with(*admin, "/backends", headers).map(|(status, _)| status);
    assert_eq!((backends(""), backends(&format!("authorization: Bearer {TOKEN}\r\n"))), (Some(401), Some(200)));
    assert_eq!(get(*admin, "/healthz").map(|(status, _)| status), Some(200), "probes need no token");
    assert!(machine.systemctl(&["reload"]), "{}", machine.journal());
    super::eventually("the reload is over", || machine.journal().contains("reload: Unchanged").then_some(()));
}
