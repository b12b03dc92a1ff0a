//! What a value of the file may be, each kind with the words that say so.
//!
//! A kind's words are its documentation in problems, and a test holds `conf/example.yaml` to them.

mod files;

use super::tree::Node;
use super::{AccessLog, Choice, Host, KeyDigest, MaxInFlight, Secret, TlsVersion, url::BackendUrl};
use crate::request::is_plain;
use http::HeaderName;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

pub(super) use files::{file_path, readable_file, readable_file_or_none, readable_path, secret_file_or_none};

/// Longest header name that is taken: longer than any in use.
const MAX_HEADER_NAME_BYTES: usize = 128;

/// Most keys of one caller: the one in use, the next one, and a few in reserve.
const MAX_DIGESTS: usize = 8;

/// How to read a value, and what it has to be.
pub(super) struct Kind<T> {
    /// Completes "expected ...".
    pub(super) right: String,
    read: Box<Read<T>>,
}

/// Reads a value; the error says what is worth knowing besides the kind's words, and may be empty.
type Read<T> = dyn Fn(&Node) -> Result<T, String>;

// === impl Kind ===

impl<T: 'static> Kind<T> {
    /// A kind read by `read`; its error says what else is worth knowing, and may be empty.
    fn new(right: impl Into<String>, read: impl Fn(&Node) -> Result<T, String> + 'static) -> Self {
        Self { right: right.into(), read: Box::new(read) }
    }

    /// A kind of text.
    fn text(right: impl Into<String>, read: impl Fn(&str) -> Result<T, String> + 'static) -> Self {
        Self::new(right, move |node| match node {
            Node::Text(text) => read(text),
            _ => Err(String::new()),
        })
    }

    /// A kind of text that people choose freely, so that it may look like a number: YAML would change its spelling.
    fn free_text(right: impl Into<String>, accepts: impl Fn(&str) -> bool + 'static) -> Kind<String> {
        Kind::new(right, move |node| match node {
            Node::Text(text) if accepts(text) => Ok(text.clone()),
            Node::Whole(_) | Node::Real(_) | Node::Flag(_) => Err("not text unless in quotes".to_owned()),
            _ => Err(String::new()),
        })
    }

    /// The same, made into something else.
    pub(super) fn map<U: 'static>(self, into: impl Fn(T) -> U + 'static) -> Kind<U> {
        Kind { right: self.right, read: Box::new(move |node| (self.read)(node).map(&into)) }
    }

    /// The value, or what is worth knowing besides `right`.
    pub(super) fn read(&self, node: &Node) -> Result<T, String> {
        (self.read)(node)
    }
}

/// `true` or `false`.
pub(super) fn flag() -> Kind<bool> {
    Kind::new("true or false", |node| match node {
        Node::Flag(flag) => Ok(*flag),
        _ => Err(String::new()),
    })
}

/// A whole number from `least` to `most`.
pub(super) fn whole(least: u32, most: u32) -> Kind<u32> {
    Kind::new(format!("a whole number from {least} to {most}"), move |node| match node {
        Node::Whole(number) => {
            u32::try_from(*number).ok().filter(|number| (least..=most).contains(number)).ok_or_else(String::new)
        }
        _ => Err(String::new()),
    })
}

/// A whole number from 1 to `most`.
pub(super) fn count(most: u32) -> Kind<NonZeroU32> {
    whole(1, most).map(|number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN))
}

/// A number from `least` to `most`, decimals allowed.
pub(super) fn number(least: f64, most: f64) -> Kind<f64> {
    Kind::new(format!("a number from {least} to {most}"), move |node| {
        let number = match node {
            // Whole numbers beyond 2^53 are out of every range anyway.
            Node::Whole(number) => i32::try_from(*number).ok().map(f64::from),
            Node::Real(number) => Some(*number),
            _ => None,
        };
        number.filter(|number| (least..=most).contains(number)).ok_or_else(String::new)
    })
}

/// A duration with its unit from `least` to `most`.
pub(super) fn duration(least: Duration, most: Duration) -> Kind<Duration> {
    let example = Duration::from_secs(1).clamp(least, most);
    let right = format!(
        "a duration with its unit (ms, s, m, h) from {} to {}, e.g. {}",
        shown(least),
        shown(most),
        shown(example)
    );
    Kind::new(right, move |node| {
        match node {
            Node::Text(text) => parse_duration(text).filter(|duration| (least..=most).contains(duration)),
            _ => None,
        }
        .ok_or_else(String::new)
    })
}

/// A duration with its unit from `least` to `most`; `none` is `None`.
pub(super) fn duration_or_none(least: Duration, most: Duration) -> Kind<Option<Duration>> {
    let duration = duration(least, most);
    Kind::new(format!("none, or {}", duration.right), move |node| match node {
        Node::Text(text) if text == "none" => Ok(None),
        _ => duration.read(node).map(Some),
    })
}

/// A limit of requests in flight.
pub(super) fn in_flight_limit() -> Kind<MaxInFlight> {
    let number = count(1_000_000);
    Kind::new(format!("auto, none, or {}", number.right), move |node| match node {
        Node::Text(text) if text == "auto" => Ok(MaxInFlight::Auto),
        Node::Text(text) if text == "none" => Ok(MaxInFlight::Unlimited),
        _ => number.read(node).map(MaxInFlight::Requests),
    })
}

/// A size in bytes with its unit from `least` to `most`.
pub(super) fn size(least: u64, most: u64) -> Kind<u64> {
    let right = format!(
        "a size with its unit (KiB, MiB, GiB; a bare number is bytes) from {} to {}",
        shown_size(least),
        shown_size(most)
    );
    Kind::new(right, move |node| {
        let bytes = match node {
            Node::Whole(bytes) => u64::try_from(*bytes).ok(),
            Node::Text(text) => parse_size(text)?,
            _ => None,
        };
        bytes.filter(|bytes| (least..=most).contains(bytes)).ok_or_else(String::new)
    })
}

/// One of the names of `T`.
pub(super) fn choice<T: Choice>() -> Kind<T> {
    let names: Vec<&'static str> = T::NAMES.iter().map(|(name, _)| *name).collect();
    Kind::new(format!("one of {}", names.join(", ")), move |node| {
        let Node::Text(text) = node else { return Err(String::new()) };
        let named = T::NAMES.iter().find(|(name, _)| name == text);
        named.map(|(_, value)| *value).ok_or_else(|| meant(text, &names))
    })
}

/// Text of 1 to `most` characters of which each is a letter, a digit or one of `others`.
pub(super) fn word(most: usize, others: &'static str) -> Kind<String> {
    let right = format!("1 to {most} of the characters A-Z a-z 0-9 {others}");
    let fits = move |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    Kind::<String>::free_text(right, move |text| (1..=most).contains(&text.len()) && text.chars().all(fits))
}

/// A model's name as requests spell it.
pub(super) fn model() -> Kind<String> {
    Kind::<String>::free_text("a model name of 1 to 256 characters", |text| {
        (1..=256).contains(&text.chars().count()) && !text.chars().any(char::is_control)
    })
}

/// The address of a listening socket.
pub(super) fn address() -> Kind<SocketAddr> {
    Kind::text("IP:PORT, e.g. 127.0.0.1:8080, or 0.0.0.0:8080 for every interface", |text| {
        text.parse().map_err(|_| String::new())
    })
}

/// The path of a URL on a backend.
pub(super) fn http_path() -> Kind<String> {
    Kind::text("a path starting with / and without spaces, e.g. /health", |text| {
        let good = text.starts_with('/') && text.len() <= 1024 && text.bytes().all(|byte| byte.is_ascii_graphic());
        if good { Ok(text.to_owned()) } else { Err(String::new()) }
    })
}

/// The path of a request as it is decoded, or `/*` behind the one that it is to be under.
pub(super) fn path_or_under() -> Kind<String> {
    Kind::text("a path such as /v1/models, decoded, or with /* at its end for all that are under it", |text| {
        let path = text.strip_suffix("/*").unwrap_or(text);
        let is_good = is_plain(path) || text == "/*" || text == "/";
        if is_good && text.len() <= 1024 && !path.contains('*') { Ok(text.to_owned()) } else { Err(String::new()) }
    })
}

/// The same, or `auto` as `None`.
pub(super) fn http_path_or_auto() -> Kind<Option<String>> {
    let path = http_path();
    Kind::new(format!("auto, or {}", path.right), move |node| match node {
        Node::Text(text) if text == "auto" => Ok(None),
        _ => path.read(node).map(Some),
    })
}

/// The name of a request header; `none` is `None`.
pub(super) fn header_or_none() -> Kind<Option<HeaderName>> {
    Kind::text("none, or the name of a request header, e.g. x-session-id", |text| match text {
        "none" => Ok(None),
        name if name.len() > MAX_HEADER_NAME_BYTES => Err(format!("longer than {MAX_HEADER_NAME_BYTES} characters")),
        name => name.parse().map(Some).map_err(|_| "not what HTTP can call a header".to_owned()),
    })
}

/// A response status that may be retried.
pub(super) fn retried_status() -> Kind<u16> {
    Kind::new("one of 502, 503, 504", |node| match node {
        Node::Whole(502) => Ok(502),
        Node::Whole(503) => Ok(503),
        Node::Whole(504) => Ok(504),
        _ => Err(String::new()),
    })
}

/// Where access-log lines go.
pub(super) fn access_log() -> Kind<AccessLog> {
    let path = file_path();
    let words = ["stdout", "stderr", "off"];
    Kind::new(format!("one of {}, or {}", words.join(", "), path.right), move |node| match node {
        Node::Text(text) if text == "stdout" => Ok(AccessLog::Stdout),
        Node::Text(text) if text == "stderr" => Ok(AccessLog::Stderr),
        Node::Text(text) if text == "off" => Ok(AccessLog::Off),
        Node::Text(text) if !text.contains('/') => Err(meant(text, &words)),
        _ => path.read(node).map(AccessLog::File),
    })
}

/// Whether to do something; `auto` is `None`.
pub(super) fn flag_or_auto() -> Kind<Option<bool>> {
    Kind::new("auto, true or false", |node| match node {
        Node::Flag(flag) => Ok(Some(*flag)),
        Node::Text(text) if text == "auto" => Ok(None),
        _ => Err(String::new()),
    })
}

/// The URL of a backend.
pub(super) fn url() -> Kind<BackendUrl> {
    Kind::text("http://HOST:PORT or https://HOST:PORT, e.g. http://10.0.0.7:8000", |text| {
        text.parse::<BackendUrl>().map_err(|error| error.to_string())
    })
}

/// The name of a machine, or its address; `none` is `None`.
pub(super) fn host_or_none() -> Kind<Option<String>> {
    Kind::text("none, or a host name or IP address", |text| match text {
        "none" => Ok(None),
        // As in a url, where an IPv6 address has brackets.
        text if text.contains(':') => {
            text.parse::<std::net::Ipv6Addr>().map(|ip| Some(ip.to_string())).map_err(|_| String::new())
        }
        text => text.parse::<Host>().map(|host| Some(host.to_string())).map_err(|_| String::new()),
    })
}

/// A version of TLS, in quotes or not.
pub(super) fn tls_version() -> Kind<TlsVersion> {
    Kind::new("one of 1.2, 1.3", |node| {
        let text = match node {
            Node::Text(text) => text.clone(),
            Node::Real(number) => number.to_string(),
            _ => String::new(),
        };
        match text.as_str() {
            "1.2" => Ok(TlsVersion::V1_2),
            "1.3" => Ok(TlsVersion::V1_3),
            _ => Err(String::new()),
        }
    })
}

/// The digests of a caller's keys.
pub(super) fn key_digests() -> Kind<Vec<KeyDigest>> {
    let right =
        format!("sha256: and 64 hexadecimal digits, as `warmgate key` prints it, or a list of 1 to {MAX_DIGESTS}");
    let digest = |node: &Node| match node {
        Node::Text(text) => text.parse::<KeyDigest>().map_err(|_| String::new()),
        _ => Err(String::new()),
    };
    Kind::new(right, move |node| match node {
        Node::List(items) if (1..=MAX_DIGESTS).contains(&items.len()) => {
            items.iter().map(|item| digest(&item.node)).collect()
        }
        node => digest(node).map(|digest| vec![digest]),
    })
}

/// Where a socket of an engine is reached.
pub(super) fn tcp_endpoint() -> Kind<String> {
    Kind::text("tcp://HOST:PORT, e.g. tcp://10.0.0.7:5557", |text| {
        let address = text.strip_prefix("tcp://").ok_or_else(String::new)?;
        let url = format!("http://{address}").parse::<BackendUrl>().map_err(|_| String::new())?;
        Ok(format!("tcp://{}", url.authority()))
    })
}

/// What messages are published under.
pub(super) fn topic() -> Kind<String> {
    Kind::<String>::free_text("a text of at most 256 bytes", |text| text.len() <= 256)
}

const UNITS_OF_TIME: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const UNITS_OF_SIZE: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// `250ms`, `5s`, `1m30s`: whole numbers with units that get smaller.
fn parse_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut millis, mut next_unit) = (text, 0_u64, 0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_length = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = UNITS_OF_TIME.iter().position(|(unit, _)| *unit == &rest[..unit_length])?;
        if unit < next_unit {
            return None;
        }
        next_unit = unit + 1;
        millis = millis.checked_add(number.checked_mul(UNITS_OF_TIME[unit].1)?)?;
        rest = &rest[unit_length..];
    }
    (!text.is_empty()).then(|| Duration::from_millis(millis))
}

/// The duration as the file would spell it.
pub(super) fn shown(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, worth) in UNITS_OF_TIME {
        if millis >= worth {
            text.push_str(&format!("{}{unit}", millis / worth));
            millis %= worth;
        }
    }
    text
}

/// `64MiB`, `512B`. An error where the unit is a decimal one, whose meaning people disagree on.
fn parse_size(text: &str) -> Result<Option<u64>, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    if let Some((binary, _)) = UNITS_OF_SIZE.iter().find(|(binary, _)| is_decimal_spelling(unit, binary)) {
        return Err(format!("did you mean `{number}{binary}`?"));
    }
    let Some((_, worth)) = UNITS_OF_SIZE.iter().find(|(name, _)| *name == unit) else { return Ok(None) };
    Ok(number.parse::<u64>().ok().and_then(|number| number.checked_mul(*worth)))
}

fn is_decimal_spelling(unit: &str, binary: &str) -> bool {
    let first = &binary[..1];
    unit != binary
        && binary.len() == 3
        && [first, &format!("{first}B"), binary].iter().any(|spelling| spelling.eq_ignore_ascii_case(unit))
}

fn shown_size(bytes: u64) -> String {
    let fits = UNITS_OF_SIZE.iter().find(|(_, worth)| bytes >= *worth && bytes.is_multiple_of(*worth));
    fits.map_or_else(|| bytes.to_string(), |(unit, worth)| format!("{}{unit}", bytes / worth))
}

/// The hint for a word that is none of `names`; empty if it is like none.
fn meant(word: &str, names: &[&'static str]) -> String {
    nearest(word, names).map(|near| format!("did you mean `{near}`?")).unwrap_or_default()
}

/// The name most like `word`, if one is: spelled differently, or with about one letter in three wrong.
pub(super) fn nearest(word: &str, names: &[&'static str]) -> Option<&'static str> {
    let folded = |text: &str| -> Vec<char> {
        text.chars().take(64).filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
    };
    let word = folded(word);
    let scored = names.iter().map(|name| (distance(&word, &folded(name)), *name));
    let (distance, name) = scored.min_by_key(|(distance, _)| *distance)?;
    (distance <= word.len().max(3) / 3 && distance < word.len()).then_some(name)
}

/// Letters to add, drop, change or swap with the next to make `left` into `right` (optimal string alignment).
fn distance(left: &[char], right: &[char]) -> usize {
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            if i == 0 || j == 0 {
                rows[i][j] = i + j;
                continue;
            }
            let changed = usize::from(left[i - 1] != right[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + changed);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[left.len()][right.len()]
}
