//! Where events are published, as an operator or an engine writes it: `tcp://HOST:PORT`.
//!
//! What an engine says of itself is from its own point of view: `*` and the unspecified addresses are all of its host's
//! addresses, so the backend's host stands for them; and its loopback is not ours.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// A ZeroMQ endpoint over TCP.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Host name or IP address, without brackets.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
}

/// Why there is no endpoint in a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Another transport.
    #[error("only tcp://HOST:PORT can be reached")]
    NotTcp,
    /// No port, or one that is not known before it is bound.
    #[error("it has no port; tcp://HOST:PORT is wanted")]
    NoPort,
    /// No host.
    #[error("it has no host; tcp://HOST:PORT is wanted")]
    NoHost,
    /// The engine publishes for its own host only.
    #[error("the engine publishes at its own loopback address only; let it publish at tcp://*:PORT")]
    Loopback,
    /// The port of a data-parallel rank would be beyond the last one.
    #[error("the port of rank {0} would be above 65535")]
    Rank(u32),
}

// === impl Endpoint ===

impl Endpoint {
    /// Reads what an operator has configured for a backend at `backend_host`.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn configured(text: &str, backend_host: &str) -> Result<Self, EndpointError> {
        let address = text.trim().strip_prefix("tcp://").ok_or(EndpointError::NotTcp)?;
        let (host, port) = address.rsplit_once(':').ok_or(EndpointError::NoPort)?;
        let port = port.parse().ok().filter(|&port| port > 0).ok_or(EndpointError::NoPort)?;
        Self::new(host, port, backend_host)
    }

    /// Reads what the engine of a backend at `backend_host` says of itself.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn reported(text: &str, backend_host: &str) -> Result<Self, EndpointError> {
        Self::configured(text, backend_host)?.of_another(backend_host)
    }

    /// The same of a host and a port apart.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn reported_parts(host: &str, port: u16, backend_host: &str) -> Result<Self, EndpointError> {
        Self::new(host, port, backend_host)?.of_another(backend_host)
    }

    /// That of a data-parallel rank, if this is that of rank 0.
    ///
    /// # Errors
    /// [`EndpointError::Rank`].
    pub fn of_rank(&self, rank: u32) -> Result<Self, EndpointError> {
        let port = u16::try_from(rank).ok().and_then(|rank| self.port.checked_add(rank));
        Ok(Self { host: Arc::clone(&self.host), port: port.ok_or(EndpointError::Rank(rank))? })
    }

    fn new(host: &str, port: u16, backend_host: &str) -> Result<Self, EndpointError> {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Ok(ip) if ip.is_unspecified() => backend_host.into(),
            Ok(ip) => ip.to_string().into(),
            Err(_) if host == "*" => backend_host.into(),
            Err(_) if host.is_empty() => return Err(EndpointError::NoHost),
            Err(_) => host.into(),
        };
        Ok(Self { host, port })
    }

    /// On another host, a loopback address would lead to whatever publishes on ours.
    fn of_another(self, backend_host: &str) -> Result<Self, EndpointError> {
        if is_loopback(&self.host) && !is_loopback(backend_host) { Err(EndpointError::Loopback) } else { Ok(self) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "tcp://[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "tcp://{}:{}", self.host, self.port)
        }
    }
}

fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(text: &str, backend_host: &str) -> Result<String, EndpointError> {
        Endpoint::reported(text, backend_host).map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn an_address_is_as_it_stands() {
        for text in ["tcp://10.0.0.1:5557", "tcp://engine-3:5557", "tcp://[2001:db8::1]:5557"] {
            assert_eq!(reported(text, "10.0.0.9").as_deref(), Ok(text));
        }
        assert_eq!(reported("tcp://[::ffff:10.0.0.1]:5557", "h").as_deref(), Ok("tcp://10.0.0.1:5557"));
    }

    #[test]
    fn all_addresses_of_the_engine_are_the_backends_host() {
        for any in ["*", "0.0.0.0", "[::]", "::", "[::ffff:0.0.0.0]"] {
            let text = format!("tcp://{any}:5557");
            assert_eq!(reported(&text, "10.0.0.9").as_deref(), Ok("tcp://10.0.0.9:5557"), "{any}");
            assert_eq!(reported(&text, "2001:db8::9").as_deref(), Ok("tcp://[2001:db8::9]:5557"), "{any}");
            assert_eq!(Endpoint::configured(&text, "h").unwrap().to_string(), "tcp://h:5557", "{any}");
        }
    }

    #[test]
    fn the_loopback_of_another_host_is_not_ours() {
        for loopback in ["127.0.0.1", "[::ffff:127.0.0.1]", "[::1]", "localhost"] {
            let text = format!("tcp://{loopback}:5557");
            assert_eq!(reported(&text, "10.0.0.9"), Err(EndpointError::Loopback), "{loopback}");
            assert!(reported(&text, "localhost").is_ok() && reported(&text, "::1").is_ok(), "{loopback}");
            assert!(Endpoint::configured(&text, "10.0.0.9").is_ok(), "an operator may have a tunnel: {loopback}");
        }
    }

    #[test]
    fn what_is_no_endpoint_says_what_would_be() {
        let cases = [
            ("ipc:///tmp/kv", EndpointError::NotTcp),
            ("10.0.0.1:5557", EndpointError::NotTcp),
            ("", EndpointError::NotTcp),
            ("tcp://host", EndpointError::NoPort),
            ("tcp://host:0", EndpointError::NoPort),
            ("tcp://host:*", EndpointError::NoPort),
            ("tcp://host:65536", EndpointError::NoPort),
            ("tcp://:5557", EndpointError::NoHost),
        ];
        for (text, error) in cases {
            assert_eq!(Endpoint::configured(text, "h"), Err(error), "{text}");
        }
    }

    #[test]
    fn each_rank_has_the_next_port() {
        let first = Endpoint::configured("tcp://h:65530", "h").unwrap();
        assert_eq!(first.of_rank(5).map(|endpoint| endpoint.port), Ok(65535));
        assert_eq!(first.of_rank(6), Err(EndpointError::Rank(6)));
        assert_eq!(first.of_rank(70_000), Err(EndpointError::Rank(70_000)));
    }
}
