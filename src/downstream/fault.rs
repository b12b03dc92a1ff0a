//! Why a message of a client is refused before anything of it is looked at as a request.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::time::{self, Moment};

/// Between two lines of the log about refused messages.
const LOG_PAUSE_SECONDS: u64 = 60;

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection brought nothing in time, and is closed without a word.
    Silent,
    /// The header was not whole in time.
    SlowHeader,
    /// What came first is no request line of HTTP/1.
    NotHttp,
    /// The request target names nothing here: it is no path, and no URL of the host that is asked.
    Target,
    /// The request target is longer than can be handled.
    LongTarget,
    /// The header is larger than its limit.
    LargeHeader,
    /// The header has more fields than can be handled.
    ManyFields,
    /// A field of the header is not as it has to be, or a line is not ended by CR and LF.
    Field,
    /// `Host` is missing, names a user, or there is more than one.
    Host,
    /// The length of the body is not clear: what is before this proxy and what is behind it could see different requests.
    Framing,
    /// A chunk of the body is not as it has to be.
    Chunk,
    /// There is no room for a header of this size at the moment.
    NoRoom,
    /// An HTTP/2 connection with many more frames than its requests need.
    Flood,
}

/// How often each was met. Written by connections, read by the metrics.
#[derive(Debug, Default)]
pub struct Faults {
    counts: [AtomicU64; Fault::ALL.len()],
    /// When one was last logged, in seconds since the process began; 0 is never.
    logged: AtomicU64,
}

// === impl Fault ===

impl Fault {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 13] = [
        Self::Silent,
        Self::SlowHeader,
        Self::NotHttp,
        Self::Target,
        Self::LongTarget,
        Self::LargeHeader,
        Self::ManyFields,
        Self::Field,
        Self::Host,
        Self::Framing,
        Self::Chunk,
        Self::NoRoom,
        Self::Flood,
    ];

    /// What is wrong, as a part of a sentence.
    pub fn explained(self) -> &'static str {
        match self {
            Self::Silent => "nothing came in time",
            Self::SlowHeader => "its header was not whole in time",
            Self::NotHttp => "it does not begin with a request line of HTTP/1.1 or HTTP/1.0",
            Self::Target => {
                "its target is neither a path that begins with `/` nor a URL of the host in its Host field, or is not encoded"
            }
            Self::LongTarget => "its target is too long",
            Self::LargeHeader => "its header is too large",
            Self::ManyFields => "its header has more than 256 fields",
            Self::Field => {
                "a header field is not `name: value` on one line that ends with CR and LF, or has bytes that may not be there"
            }
            Self::Host => "it needs one Host field, with a host and nothing else",
            Self::Framing => {
                "the length of its body is not clear; one Content-Length in digits is expected, or Transfer-Encoding: chunked, \
                 and not both"
            }
            Self::Chunk => "a chunk of its body is not valid",
            Self::NoRoom => "there is no room for its header",
            Self::Flood => "there are too many frames besides those of requests",
        }
    }

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::SlowHeader => "slow_header",
            Self::NotHttp => "not_http",
            Self::Target => "target",
            Self::LongTarget => "long_target",
            Self::LargeHeader => "large_header",
            Self::ManyFields => "many_fields",
            Self::Field => "field",
            Self::Host => "host",
            Self::Framing => "framing",
            Self::Chunk => "chunk",
            Self::NoRoom => "no_room",
            Self::Flood => "flood",
        }
    }
}

// === impl Faults ===

impl Faults {
    /// Counts one, and logs it if none was logged for a while.
    pub fn met(&self, fault: Fault, peer: SocketAddr) {
        self.counts[fault as usize].fetch_add(1, Relaxed);
        // Connections that somebody opened ahead and did not need are nothing to tell.
        if fault == Fault::Silent {
            return;
        }
        let now = time::now().since(Moment::ORIGIN).as_secs() + 1;
        let logged = self.logged.load(Relaxed);
        if logged == 0 || now >= logged + LOG_PAUSE_SECONDS {
            self.logged.store(now, Relaxed);
            log::warn!(
                "a message from {peer} is refused before it is a request: {}; malformed_messages_total counts them, and \
                 none is logged for the next {LOG_PAUSE_SECONDS} s",
                fault.explained(),
            );
        }
    }

    /// How often.
    pub fn count(&self, fault: Fault) -> u64 {
        self.counts[fault as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_a_place_and_a_name_of_its_own() {
        let faults = Faults::default();
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        for (at, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, at);
            assert!(Fault::ALL[..at].iter().all(|other| other.name() != fault.name()), "{fault:?}");
            faults.met(fault, peer);
            assert_eq!(faults.count(fault), 1);
        }
    }
}
