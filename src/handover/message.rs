//! What the two processes say to each other.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Role;

/// The number of this protocol. It changes when an older reader would misunderstand; a field that is added does not
/// change it, as unknown ones are passed over.
pub(crate) const PROTOCOL: u32 = 1;

/// What the old process hands over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// [`PROTOCOL`] of the old process.
    pub(crate) protocol: u32,
    /// Its version, for the log.
    pub(crate) version: String,
    /// The listeners, in the order of the descriptors that come with this.
    pub(crate) listeners: Vec<Listening>,
    /// The form of its state ([`super::state`]).
    pub(crate) state_format: u32,
}

/// A listener that is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// Who connects there.
    pub(crate) role: Role,
    /// The address as configured; port 0 stays 0.
    pub(crate) address: SocketAddr,
}

/// What the new process answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// Everything is in place but what the old process has learned.
    Ready {
        /// The form of state that it reads; another one than offered starts cold.
        state_format: u32,
        /// The most of it that it takes, bytes.
        max_state_bytes: u64,
    },
    /// It accepts connections: the old process can stop.
    Serving {
        /// Its process id, by which a service manager will know it: what was started may be a script around it.
        process: u32,
    },
    /// It will not serve.
    Failed {
        /// Why, in a sentence.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::frame;

    #[test]
    fn fields_that_a_later_version_adds_are_passed_over() {
        let text = r#"{"protocol":1,"version":"9.0.0","listeners":[{"role":"clients","address":"[::]:80","x":1}],
            "state_format":7,"more":{}}"#;
        let offer: Offer = frame::decode(text.as_bytes()).unwrap();
        assert_eq!((offer.protocol, offer.state_format, offer.listeners.len()), (1, 7, 1));
    }
}
