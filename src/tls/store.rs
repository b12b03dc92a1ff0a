//! What is in force: of every listener and of every way to speak to a backend.
//!
//! The control loop is the only one that loads and publishes. What is loaded again, and is as it was, stays what it was: the
//! tickets of clients go on to be good, and connections to backends to be kept.

use std::collections::HashMap;
use std::mem::Discriminant;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arc_swap::ArcSwap;
use rustls::ServerConfig;

use super::endpoint::Endpoint;
use super::fault::{Fault, Faults};
use super::files::Stamps;
use super::load::{Loader, Presented};
use super::outcome::{Counts, Outcome};
use super::upstream::Upstream;
use super::validity::{Standing, now_seconds};
use crate::config::{Config, Protocol, Tls, UpstreamTls};

/// Which socket a listener is.
type SocketPlace = (SocketAddr, Discriminant<Protocol>);

/// What is in force. Shared by listeners, requests' peers (through the snapshot), metrics and the control loop.
#[derive(Debug)]
pub struct Store {
    /// The listeners that the process has begun with, in the order of their configuration; none for those without TLS.
    endpoints: Vec<(SocketPlace, Option<Arc<Endpoint>>)>,
    loaded: ArcSwap<Loaded>,
    counts: Arc<Counts>,
    /// Whether no newer files were refused.
    is_current: AtomicBool,
}

/// What the files of a configuration give.
#[derive(Debug)]
pub struct Loaded {
    /// In the order of the configuration; none for those without TLS.
    pub(super) listeners: Vec<(SocketPlace, Option<Listening>)>,
    pub(super) upstreams: HashMap<UpstreamTls, (u128, Arc<Upstream>)>,
    /// The certificates that are shown to others.
    pub(super) presented: Vec<Presented>,
    /// What can be used, and may not be meant.
    pub(super) notes: Vec<Fault>,
    pub(super) stamps: Stamps,
}

/// A listener's side, with what it was made of.
#[derive(Debug, Clone)]
pub(super) struct Listening {
    pub(super) settings: Tls,
    /// Tells the content of the files from any other.
    pub(super) hash: u128,
    pub(super) config: Arc<ServerConfig>,
}

// === impl Store ===

impl Store {
    /// For a process that begins with `config`. A certificate that has expired is taken all the same: it is all there is.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn start(config: &Config) -> Result<Self, Faults> {
        let loaded = Loader::new(None).load(config)?;
        let counts = Arc::new(Counts::default());
        let endpoint =
            |listening: &Listening| Arc::new(Endpoint::new(Arc::clone(&listening.config), Arc::clone(&counts)));
        let endpoints =
            loaded.listeners.iter().map(|(place, listening)| (*place, listening.as_ref().map(endpoint))).collect();
        loaded.log_standings();
        Ok(Self { endpoints, loaded: ArcSwap::from_pointee(loaded), counts, is_current: AtomicBool::new(true) })
    }

    /// The side of the listener at `index` of the configuration that the process has begun with; none without TLS.
    pub fn endpoint(&self, index: usize) -> Option<Arc<Endpoint>> {
        self.endpoints.get(index).and_then(|(_, endpoint)| endpoint.clone())
    }

    /// Reads the files of `config`. A certificate that has expired, or is not valid yet, is no good now, unless it is in
    /// force already.
    ///
    /// # Errors
    /// Every file that cannot be used. What is in force stays, and counts as not current.
    pub fn load(&self, config: &Config) -> Result<Loaded, Faults> {
        let loaded = Loader::new(Some(&self.loaded.load())).load(config).and_then(|loaded| {
            let faults = loaded.newly_invalid(&self.loaded.load());
            if faults.is_empty() { Ok(loaded) } else { Err(Faults(faults)) }
        });
        if loaded.is_err() {
            self.is_current.store(false, Relaxed);
        }
        loaded
    }

    /// Puts `loaded`, of a configuration with the same sockets, in force; whether it differs from what was.
    pub fn publish(&self, loaded: Loaded) -> bool {
        let differs = !loaded.is_same_as(&self.loaded.load());
        let mut listeners: Vec<_> = loaded.listeners.iter().collect();
        for (place, endpoint) in &self.endpoints {
            // Which of two sockets with a port that the system chose is which does not matter.
            let Some(at) = listeners.iter().position(|(other, _)| other == place) else { continue };
            if let (Some(endpoint), (_, Some(listening))) = (endpoint, listeners.remove(at)) {
                endpoint.set(Arc::clone(&listening.config));
            }
        }
        if differs {
            loaded.log_standings();
        }
        self.loaded.store(Arc::new(loaded));
        self.is_current.store(true, Relaxed);
        differs
    }

    /// How backends with these settings are spoken to.
    pub fn upstream(&self, settings: &UpstreamTls) -> Option<Arc<Upstream>> {
        self.loaded.load().upstreams.get(settings).map(|(_, upstream)| Arc::clone(upstream))
    }

    /// The stamps of the files in force.
    pub(super) fn stamps(&self) -> Stamps {
        self.loaded.load().stamps.clone()
    }

    /// The certificates that are shown to others: the file, to whom, and when it ends, in seconds since 1970.
    pub fn expiries(&self) -> Vec<(String, &'static str, i64)> {
        let loaded = self.loaded.load();
        let shown = loaded.presented.iter();
        shown.map(|of| (of.file.display().to_string(), of.side, of.validity.not_after)).collect()
    }

    /// How many handshakes with clients ended so.
    pub fn handshakes(&self, outcome: Outcome) -> u64 {
        self.counts.get(outcome)
    }

    /// Whether what is in force is what the files hold, as far as they were read.
    pub fn is_current(&self) -> bool {
        self.is_current.load(Relaxed)
    }
}

// === impl Loaded ===

impl Loaded {
    /// What a check of `config` alone can tell: certificates that have expired, soon will, or are never shown.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn check(config: &Config) -> Result<Vec<String>, Faults> {
        let now = now_seconds();
        let loaded = Loader::new(None).load(config)?;
        let standings = loaded.presented.iter().filter_map(|of| match of.validity.standing(now) {
            Standing::Good => None,
            Standing::EndsSoon(what) | Standing::Invalid(what) => Some(Fault::new(&of.key, &of.file, what).to_string()),
        });
        Ok(standings.chain(loaded.notes.iter().map(Fault::to_string)).collect())
    }

    fn newly_invalid(&self, before: &Self) -> Vec<Fault> {
        let now = now_seconds();
        let new = self.presented.iter().filter(|of| before.presented.iter().all(|known| known.hash != of.hash));
        let fault = |of: &Presented| match of.validity.standing(now) {
            Standing::Invalid(what) => Some(Fault::new(&of.key, &of.file, what)),
            Standing::Good | Standing::EndsSoon(_) => None,
        };
        new.filter_map(fault).collect()
    }

    fn log_standings(&self) {
        let now = now_seconds();
        self.notes.iter().for_each(|note| log::warn!("{note}"));
        for of in &self.presented {
            match of.validity.standing(now) {
                Standing::Good => {}
                Standing::EndsSoon(what) => log::warn!("{}", Fault::new(&of.key, &of.file, what)),
                Standing::Invalid(what) => log::error!("{}", Fault::new(&of.key, &of.file, what)),
            }
        }
    }

    fn is_same_as(&self, other: &Self) -> bool {
        let config = |of: &(SocketPlace, Option<Listening>)| of.1.as_ref().map(|of| Arc::as_ptr(&of.config));
        self.listeners.iter().map(config).eq(other.listeners.iter().map(config))
            && self.upstreams.len() == other.upstreams.len()
            && self
                .upstreams
                .iter()
                .all(|(settings, (hash, _))| other.upstreams.get(settings).is_some_and(|(known, _)| known == hash))
    }
}
