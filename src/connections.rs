//! How many client connections there may be, in all and from one address: who opens thousands and sends nothing must not
//! take up what others need.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Bits of an IPv6 address that say whose it is: a network of one customer has as many addresses as it likes.
const IPV6_PREFIX_BITS: u32 = 64;

/// The connections of clients. Shared by all listeners.
#[derive(Debug, Default)]
pub struct Connections {
    places: Mutex<Places>,
    refused: [AtomicU64; 2],
}

/// What there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In all.
    pub total: NonZeroU32,
    /// From one IPv4 address, or one IPv6 network of 64 bits.
    pub per_address: NonZeroU32,
}

/// A connection's place; dropping it gives the place back.
#[derive(Debug)]
pub struct Place {
    connections: Arc<Connections>,
    origin: IpAddr,
}

/// Why a connection has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There are too many in all.
    Total,
    /// There are too many from its address.
    Address,
}

#[derive(Debug, Default)]
struct Places {
    open: u32,
    by_origin: HashMap<IpAddr, u32>,
}

// === impl Connections ===

impl Connections {
    /// A place for a connection from `address`, if the limits leave one.
    ///
    /// # Errors
    /// [`Refusal`]: the connection is to be closed.
    pub fn admit(self: &Arc<Self>, address: IpAddr, limits: ConnectionLimits) -> Result<Place, Refusal> {
        let origin = origin(address);
        let admitted = self.places.lock().take(origin, limits);
        match admitted {
            Ok(()) => Ok(Place { connections: Arc::clone(self), origin }),
            Err(refusal) => {
                self.refused[refusal as usize].fetch_add(1, Relaxed);
                Err(refusal)
            }
        }
    }

    /// How many there are now.
    pub fn open(&self) -> u32 {
        self.places.lock().open
    }

    /// How many were refused for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].load(Relaxed)
    }
}

// === impl Refusal ===

impl Refusal {
    /// Both reasons.
    pub const ALL: [Self; 2] = [Self::Total, Self::Address];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Address => "address",
        }
    }

    /// What is in the way, and what to do about it.
    pub fn explained(self) -> &'static str {
        match self {
            Self::Total => "there are limits.max_connections already",
            Self::Address => "its address has limits.max_connections_per_address already",
        }
    }
}

// === impl Places ===

impl Places {
    fn take(&mut self, origin: IpAddr, limits: ConnectionLimits) -> Result<(), Refusal> {
        let of_origin = self.by_origin.get(&origin).copied().unwrap_or(0);
        if of_origin >= limits.per_address.get() {
            return Err(Refusal::Address);
        }
        if self.open >= limits.total.get() {
            return Err(Refusal::Total);
        }
        self.open += 1;
        self.by_origin.insert(origin, of_origin + 1);
        Ok(())
    }

    fn give_back(&mut self, origin: IpAddr) {
        self.open -= 1;
        if let Some(count) = self.by_origin.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.by_origin.remove(&origin);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.places.lock().give_back(self.origin);
    }
}

/// Whose connection it is.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> IPV6_PREFIX_BITS << IPV6_PREFIX_BITS))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::config;

    fn limits(total: u32, per_address: u32) -> ConnectionLimits {
        let at_least_one = |count| NonZeroU32::new(count).unwrap();
        ConnectionLimits { total: at_least_one(total), per_address: at_least_one(per_address) }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_of_one_network_share_its_places() {
        let connections = Arc::<Connections>::default();
        let admit = |text| connections.admit(ip(text), limits(10, 1));
        let _first = admit("2001:db8:1:2::1").unwrap();
        assert_eq!(admit("2001:db8:1:2:ffff::9").unwrap_err(), Refusal::Address);
        let _other = admit("2001:db8:1:3::1").unwrap();
        let _v4 = admit("10.0.0.1").unwrap();
        assert_eq!(admit("::ffff:10.0.0.1").unwrap_err(), Refusal::Address, "the same address in another spelling");
        assert_eq!(Refusal::ALL.map(|refusal| connections.refused(refusal)), [0, 2]);
    }

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn no_limit_is_passed_and_every_place_comes_back(
            steps in prop::collection::vec((0..6_u8, any::<bool>()), 0..80),
            (total, per_address) in (1..12_u32, 1..5_u32),
        ) {
            let connections = Arc::<Connections>::default();
            let mut held: Vec<(u8, Place)> = Vec::new();
            for (from, opens) in steps {
                let of_address = held.iter().filter(|(address, _)| *address == from).count() as u32;
                if opens {
                    let admitted = connections.admit(IpAddr::from([10, 0, 0, from]), limits(total, per_address));
                    prop_assert_eq!(admitted.is_ok(), of_address < per_address && (held.len() as u32) < total);
                    held.extend(admitted.ok().map(|place| (from, place)));
                } else if let Some(at) = held.iter().position(|(address, _)| *address == from) {
                    held.remove(at);
                }
                prop_assert_eq!(connections.open() as usize, held.len());
            }
            held.clear();
            prop_assert_eq!(connections.open(), 0);
            prop_assert!(connections.places.lock().by_origin.is_empty(), "an address is remembered for ever");
        }
    }
}
