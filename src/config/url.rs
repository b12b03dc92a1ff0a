//! The URL of a backend: scheme, host and port, and nothing else, since the client's path and query are sent on.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;
use thiserror::Error;

/// How a backend is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP/1.1.
    Http,
    /// HTTP over TLS.
    Https,
}

/// Where a backend's machine is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A name to be resolved, in lower case.
    Name(String),
}

/// Where a backend is reached. Two spellings of the same place are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BackendUrl {
    /// Plain or TLS.
    pub scheme: Scheme,
    /// The machine.
    pub host: Host,
    /// The port; always written in the file, as the usual ones of http are no engine's.
    pub port: NonZeroU16,
}

/// Why a text is not a backend's URL.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Neither http nor https.
    #[error("the scheme is not http:// or https://")]
    Scheme,
    /// A user or password in front of the host.
    #[error("drop the user information before the `@`: it would not be sent")]
    UserInfo,
    /// More than `/` behind the port.
    #[error("drop everything after the port: the path of each request is sent on as it is")]
    Path,
    /// No port.
    #[error("the port is missing")]
    NoPort,
    /// Not a port.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// Neither a name nor an address.
    #[error("the host is neither a name nor an IP address (IPv6 goes in brackets)")]
    Host,
}

// === impl BackendUrl ===

impl BackendUrl {
    /// `HOST:PORT`, as in a `Host` header; the default name of a backend.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl FromStr for BackendUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(UrlError::Scheme),
        };
        if rest.contains('@') {
            return Err(UrlError::UserInfo);
        }
        let authority_end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(authority_end);
        if !matches!(path, "" | "/") {
            return Err(UrlError::Path);
        }
        let (host, port) = split_port(authority)?;
        Ok(Self { scheme, host: host.parse()?, port: parse_port(port)? })
    }
}

fn split_port(authority: &str) -> Result<(&str, &str), UrlError> {
    // The colons inside the brackets of an IPv6 address do not begin a port.
    let host_end = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[host_end..].rfind(':') {
        Some(at) => Ok((&authority[..host_end + at], &authority[host_end + at + 1..])),
        None => Err(UrlError::NoPort),
    }
}

fn parse_port(text: &str) -> Result<NonZeroU16, UrlError> {
    if text.is_empty() {
        return Err(UrlError::NoPort);
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(UrlError::Port);
    }
    text.parse().map_err(|_| UrlError::Port)
}

// === impl Host ===

impl Host {
    /// Whether it is this machine itself.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(address) => address.is_loopback(),
            Self::Name(name) => name == "localhost",
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Ip(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl FromStr for Host {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            return inner.parse::<Ipv6Addr>().map(|address| Self::Ip(address.into())).map_err(|_| UrlError::Host);
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        if name.len() > 253 || !name.split('.').all(label) {
            return Err(UrlError::Host);
        }
        if let Ok(address) = name.parse() {
            return Ok(Self::Ip(address));
        }
        // A last label of digits only is an address that went wrong (RFC 3696), such as 10.0.0.256.
        let last = name.rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(UrlError::Host);
        }
        Ok(Self::Name(name.to_ascii_lowercase()))
    }
}
