//! Where a backend's host name points to now.
//!
//! Backends are named in the configuration; what changes by itself is the address behind a name. It is resolved before
//! every probe, by Pingora's `ServiceDiscovery` interface, and the first address is used: a backend is one engine. A
//! name with several addresses is several engines, which have to be listed, since each has a cache of its own.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use async_trait::async_trait;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_load_balancing::Backend as Target;
use pingora_load_balancing::discovery::ServiceDiscovery;
use tokio::net::lookup_host;

use crate::pool::Origin;

/// Resolves one host name by the system's resolver.
struct HostName<'a>(&'a Origin);

#[async_trait]
impl ServiceDiscovery for HostName<'_> {
    async fn discover(&self) -> Result<(BTreeSet<Target>, HashMap<u64, bool>)> {
        let found = lookup_host((&*self.0.host, self.0.port))
            .await
            .map_err(|error| Error::because(ErrorType::SocketError, "resolving a backend's name", error))?;
        let targets = found.map(|addr| Target { addr: PeerAddr::Inet(addr), weight: 1, ext: http::Extensions::new() });
        Ok((targets.collect(), HashMap::new()))
    }
}

/// The address of `origin`; none if its name has none at the moment.
pub(super) async fn resolve(origin: &Origin) -> Option<SocketAddr> {
    if let Ok(ip) = origin.host.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, origin.port));
    }
    let (targets, _) = HostName(origin).discover().await.ok()?;
    // The set is sorted, so the choice is the same each time while the name's addresses are.
    targets.first().and_then(|target| target.addr.as_inet().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(host: &str) -> Origin {
        Origin { is_tls: false, host: host.into(), port: 8001 }
    }

    #[tokio::test]
    async fn an_address_needs_no_resolver() {
        assert_eq!(resolve(&origin("10.1.2.3")).await, Some("10.1.2.3:8001".parse().unwrap()));
        assert_eq!(resolve(&origin("::1")).await, Some("[::1]:8001".parse().unwrap()));
    }

    #[tokio::test]
    async fn the_name_of_this_machine_resolves_and_a_reserved_one_does_not() {
        assert!(resolve(&origin("localhost")).await.is_some_and(|address| address.ip().is_loopback()));
        assert_eq!(resolve(&origin("no-such-host.invalid")).await, None);
    }
}
