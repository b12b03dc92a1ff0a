//! From a configuration to all that its files give, or all that is wrong with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::certificate::{self, Certificate};
use super::fault::{Fault, Faults};
use super::files::Files;
use super::listener;
use super::store::{Listening, Loaded};
use super::upstream::{self, Upstream};
use super::validity::Validity;
use crate::config::{CertificateFiles, Config, Pool, Protocol, Scheme, Tls, UpstreamTls};

/// A certificate that is shown to others.
#[derive(Debug)]
pub(super) struct Presented {
    /// The key of the configuration that names it first.
    pub(super) key: String,
    pub(super) file: PathBuf,
    /// To whom: `downstream` or `upstream`.
    pub(super) side: &'static str,
    pub(super) validity: Validity,
    /// Tells it from others.
    pub(super) hash: u128,
}

/// What is being loaded.
pub(super) struct Loader<'a> {
    files: Files,
    before: Option<&'a Loaded>,
    faults: Vec<Fault>,
    notes: Vec<Fault>,
    presented: Vec<Presented>,
}

// === impl Loader ===

impl<'a> Loader<'a> {
    /// What `before` has already, and is the same, is taken from there.
    pub(super) fn new(before: Option<&'a Loaded>) -> Self {
        Self { files: Files::default(), before, faults: Vec::new(), notes: Vec::new(), presented: Vec::new() }
    }

    pub(super) fn load(mut self, config: &Config) -> Result<Loaded, Faults> {
        let mut listeners = Vec::with_capacity(config.listeners.len());
        for (at, listener) in config.listeners.iter().enumerate() {
            let listening = match &listener.protocol {
                Protocol::Tls(tls) => self.listening(tls, &format!("listeners[{at}].tls")),
                Protocol::Http | Protocol::H2c => None,
            };
            listeners.push((listener.place(), listening));
        }
        let mut upstreams = std::collections::HashMap::new();
        for (at, pool) in config.pools.iter().enumerate() {
            let mut place = None::<usize>;
            for backend in &pool.backends {
                // Ranks of one engine stand in the file once.
                if backend.rank.is_none_or(|rank| rank == 0) {
                    place = Some(place.map_or(0, |place| place + 1));
                }
                if backend.url.scheme == Scheme::Http || upstreams.contains_key(&backend.tls) {
                    continue;
                }
                let of = Keys { pool, at, backend: place.unwrap_or(0), tls: &backend.tls };
                if let Some(upstream) = self.upstream(&of) {
                    upstreams.insert(backend.tls.clone(), upstream);
                }
            }
        }
        if !self.faults.is_empty() {
            // Several backends can name one file.
            self.faults.dedup();
            return Err(Faults(self.faults));
        }
        let (presented, notes, stamps) = (self.presented, self.notes, self.files.stamps().clone());
        Ok(Loaded { listeners, upstreams, presented, notes, stamps })
    }

    /// What the files at `paths` hold, in one number; unreadable ones count as empty.
    fn hash<'p>(&mut self, paths: impl Iterator<Item = &'p Path>) -> u128 {
        paths.fold(0, |hash: u128, path| {
            hash.rotate_left(9) ^ self.files.content(path).map_or(0, |content| content.hash)
        })
    }

    fn listening(&mut self, tls: &Tls, key: &str) -> Option<Listening> {
        let mut certificates = Vec::with_capacity(tls.certificates.len());
        for (at, files) in tls.certificates.iter().enumerate() {
            let key = match at.checked_sub(1) {
                None => key.to_owned(),
                Some(other) => format!("{key}.certificates[{other}]"),
            };
            certificates.extend(self.certificate(
                files,
                "downstream",
                (&format!("{key}.certificate"), &format!("{key}.key")),
            ));
        }
        let verifier = tls.clients.as_ref().and_then(|clients| {
            let made = listener::verifier(&mut self.files, clients, &format!("{key}.client_ca"));
            self.noted(made)
        });
        let is_whole = certificates.len() == tls.certificates.len() && verifier.is_some() == tls.clients.is_some();
        if !is_whole {
            return None;
        }
        self.note_idle(tls, &certificates, key);
        let files = tls.certificates.iter().flat_map(|files| [&*files.certificate, &*files.key]);
        let hash = self.hash(files.chain(tls.clients.iter().map(|clients| &*clients.ca)));
        if let Some(known) = self.known_listening(tls, hash) {
            return Some(known);
        }
        let config = listener::server_config(tls, certificates, verifier);
        let config = config.map_err(|error| Fault::new(key, &tls.certificates[0].certificate, error));
        self.noted(config).map(|config| Listening { settings: tls.clone(), hash, config: Arc::new(config) })
    }

    /// Notes the certificates that no client ever gets: those before them have all their hosts, or they have none.
    fn note_idle(&mut self, tls: &Tls, certificates: &[Certificate], key: &str) {
        for (at, certificate) in certificates.iter().enumerate().skip(1) {
            let kind = certificate.signer.key.algorithm();
            let before = certificates[..at].iter().filter(|other| other.signer.key.algorithm() == kind);
            let is_shown = |host| before.clone().all(|other| !other.hosts.contains(host));
            if !certificate.hosts.iter().any(is_shown) {
                let what = if certificate.hosts.is_empty() {
                    "has no DNS name, so no client gets it"
                } else {
                    "has only DNS names that others before it have, so no client gets it"
                };
                let key = format!("{key}.certificates[{}].certificate", at - 1);
                self.notes.push(Fault::new(&key, &tls.certificates[at].certificate, what));
            }
        }
    }

    fn known_listening(&self, tls: &Tls, hash: u128) -> Option<Listening> {
        let mut known = self.before?.listeners.iter().filter_map(|(_, listening)| listening.as_ref());
        known.find(|known| known.settings == *tls && known.hash == hash).cloned()
    }

    fn upstream(&mut self, of: &Keys<'_>) -> Option<(u128, Arc<Upstream>)> {
        let tls = of.tls;
        let ca = upstream::ca(&mut self.files, tls, &of.ca());
        let ca = self.noted(ca)?;
        let client = match &tls.client {
            None => None,
            Some(files) => {
                let keys = (of.client("client_certificate"), of.client("client_key"));
                let certificate = self.certificate(files, "upstream", (&keys.0, &keys.1))?;
                let client = upstream::client(&certificate).map_err(|error| Fault::new(&keys.1, &files.key, error));
                Some(self.noted(client)?)
            }
        };
        let client_files = tls.client.iter().flat_map(|files| [&*files.certificate, &*files.key]);
        let hash = self.hash(tls.ca.iter().map(|ca| &**ca).chain(client_files));
        let known = self.before.and_then(|before| before.upstreams.get(tls)).filter(|(known, _)| *known == hash);
        Some(known.cloned().unwrap_or_else(|| (hash, Arc::new(Upstream::new(tls, ca, client, hash)))))
    }

    fn certificate(&mut self, files: &CertificateFiles, side: &'static str, keys: (&str, &str)) -> Option<Certificate> {
        let certificate = match certificate::read(&mut self.files, files, keys) {
            Ok(certificate) => certificate,
            Err(faults) => {
                self.faults.extend(faults);
                return None;
            }
        };
        if self.presented.iter().all(|known| known.file != files.certificate || known.side != side) {
            let (key, file) = (keys.0.to_owned(), files.certificate.clone());
            self.presented.push(Presented { key, file, side, validity: certificate.validity, hash: certificate.hash });
        }
        Some(certificate)
    }

    fn noted<T>(&mut self, made: Result<T, Fault>) -> Option<T> {
        made.map_err(|fault| self.faults.push(fault)).ok()
    }
}

/// The keys of a backend's settings, which can be its pool's.
struct Keys<'a> {
    pool: &'a Pool,
    at: usize,
    backend: usize,
    tls: &'a UpstreamTls,
}

// === impl Keys ===

impl Keys<'_> {
    fn ca(&self) -> String {
        self.key("ca", self.tls.ca == self.pool.tls.ca)
    }

    fn client(&self, name: &str) -> String {
        self.key(name, self.tls.client == self.pool.tls.client)
    }

    fn key(&self, name: &str, is_pools: bool) -> String {
        let (at, backend) = (self.at, self.backend);
        if is_pools { format!("pools[{at}].tls.{name}") } else { format!("pools[{at}].backends[{backend}].tls.{name}") }
    }
}
