//! What a process has learned, as it goes to the one that takes over: pure, with no tie to sockets or to the index.
//!
//! A text that names it and its [`FORMAT`], then MessagePack. The format's number changes with everything that an older
//! reader would misread, such as how blocks are hashed; it is told beforehand, and a reader of another one starts cold. Nothing
//! in it is needed to serve.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pool::{EjectionRecord, Health, RateSums, TrustRecord};
use crate::prefix::ScaleRecord;

/// The number of this form.
pub(crate) const FORMAT: u32 = 2;

/// What every state begins with; its format follows, four bytes, little endian.
const MARK: [u8; 4] = *b"WGST";

/// What was learned.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Learned {
    pub(crate) pools: Vec<LearnedPool>,
    /// Runs that backends hold some blocks of.
    pub(crate) runs: Vec<LearnedRun>,
    /// Who made stored responses, the least recently used first.
    pub(crate) responses: Vec<LearnedResponse>,
}

/// What is known of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LearnedPool {
    pub(crate) name: String,
    pub(crate) scale: ScaleRecord,
    pub(crate) backends: Vec<LearnedBackend>,
}

/// What is known of a backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LearnedBackend {
    pub(crate) name: String,
    /// `HOST:PORT`: under one name another engine may be meant.
    pub(crate) authority: String,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) health: Health,
    /// How long its conversations may still go on, if the operator drains it.
    pub(crate) drains_for: Option<Duration>,
    pub(crate) rate: RateSums,
    /// Requests that it got lately.
    pub(crate) recent: f64,
    pub(crate) ejection: EjectionRecord,
    pub(crate) trust: TrustRecord,
    pub(crate) block_tokens: Option<NonZeroU32>,
    pub(crate) capacity_tokens: Option<NonZeroU64>,
    pub(crate) max_running: Option<NonZeroU32>,
    /// The models that it lists, each as it wrote it.
    pub(crate) models: Vec<String>,
    /// What it is assumed to hold, the most recently used first.
    pub(crate) holds: Vec<LearnedHold>,
}

/// Leading blocks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LearnedHold {
    /// Its place among [`Learned::runs`].
    pub(crate) run: u32,
    pub(crate) blocks: u32,
}

/// Consecutive blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LearnedRun {
    /// Hashes of blocks.
    pub(crate) blocks: Vec<u64>,
    pub(crate) is_followed: bool,
}

/// A stored response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LearnedResponse {
    /// The hash of its id.
    pub(crate) id: u64,
    /// The places of its maker among [`Learned::pools`] and their backends.
    pub(crate) pool: u32,
    pub(crate) backend: u32,
}

/// Why a state cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// It is no state.
    #[error("it does not begin as one does")]
    NoState,
    /// It is one of another version.
    #[error("it is in format {0}, and this version reads {FORMAT}")]
    Format(u32),
    /// It breaks off, or holds something else.
    #[error(transparent)]
    Content(#[from] rmp_serde::decode::Error),
}

impl Learned {
    /// The state as bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, rmp_serde::encode::Error> {
        let mut bytes = [MARK, FORMAT.to_le_bytes()].concat();
        rmp_serde::encode::write(&mut bytes, self)?;
        Ok(bytes)
    }

    /// The state in these bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (mark, rest) = bytes.split_first_chunk().ok_or(StateError::NoState)?;
        let (format, content) = rest.split_first_chunk().ok_or(StateError::NoState)?;
        match (*mark, u32::from_le_bytes(*format)) {
            (MARK, FORMAT) => Ok(rmp_serde::from_slice(content)?),
            (MARK, other) => Err(StateError::Format(other)),
            _ => Err(StateError::NoState),
        }
    }

    /// Blocks that are held, summed over backends.
    pub(crate) fn held_blocks(&self) -> u64 {
        let holds = self.pools.iter().flat_map(|pool| &pool.backends).flat_map(|backend| &backend.holds);
        holds.map(|hold| u64::from(hold.blocks)).sum()
    }
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;
    use crate::pool::{Ejection, EjectionSettings, FailureKind, Prediction, TrustMeter};
    use crate::prefix::{Sample, Scale};
    use crate::testing::config;
    use crate::time::Moment;

    fn ejection(failures: usize) -> EjectionRecord {
        let (ejection, settings) = (Ejection::default(), EjectionSettings::default());
        for _ in 0..failures {
            let _ = ejection.record_failure(None, FailureKind::Reset, &settings, Moment::ORIGIN);
        }
        ejection.record(Moment::at(Duration::from_millis(1_234)))
    }

    fn trust(wrong: usize) -> TrustRecord {
        let trust = TrustMeter::default();
        for _ in 0..wrong {
            trust.judge(Prediction { assumed: 1_000, exact: None }, 0);
        }
        trust.record()
    }

    fn scale(samples: usize) -> ScaleRecord {
        let scale = Scale::new(NonZeroU32::MIN);
        for _ in 0..samples {
            scale.observe(Sample { prompt_bytes: 2_500, prompt_tokens: 1_000, has_media: false });
        }
        scale.record()
    }

    fn backends() -> impl Strategy<Value = LearnedBackend> {
        let health = prop_oneof![Just(Health::Starting), Just(Health::Healthy), Just(Health::Unhealthy)];
        let known = (".{0,20}", any::<Option<Duration>>(), health, 0.0..1e9_f32, 0.0..1e6_f64, 0..8_usize);
        let sizes = (any::<Option<NonZeroU32>>(), any::<Option<NonZeroU64>>(), any::<Option<[u8; 16]>>());
        let lists = (prop::collection::vec(".{0,40}", 0..3), prop::collection::vec(any::<(u32, u32)>(), 0..20));
        (known, sizes, lists).prop_map(|((name, drains_for, health, work, recent, count), sizes, (models, holds))| {
            let (block_tokens, capacity_tokens, ip) = sizes;
            let address = ip.map(|ip| SocketAddr::from((ip, 8000)));
            let holds = holds.into_iter().map(|(run, blocks)| LearnedHold { run, blocks }).collect();
            let rate = RateSums { work, seconds: 2.5 };
            let (authority, max_running) = (format!("{name}:1"), block_tokens);
            let (ejection, trust) = (ejection(count), trust(count * 5));
            LearnedBackend {
                name,
                authority,
                address,
                health,
                drains_for,
                rate,
                recent,
                ejection,
                trust,
                block_tokens,
                capacity_tokens,
                max_running,
                models,
                holds,
            }
        })
    }

    fn states() -> impl Strategy<Value = Learned> {
        let pool = (".{0,20}", 0..50_usize, prop::collection::vec(backends(), 0..4))
            .prop_map(|(name, samples, backends)| LearnedPool { name, scale: scale(samples), backends });
        let run = (prop::collection::vec(any::<u64>(), 0..300), any::<bool>())
            .prop_map(|(blocks, is_followed)| LearnedRun { blocks, is_followed });
        let response = any::<(u64, u32, u32)>().prop_map(|(id, pool, backend)| LearnedResponse { id, pool, backend });
        (prop::collection::vec(pool, 0..3), prop::collection::vec(run, 0..5), prop::collection::vec(response, 0..5))
            .prop_map(|(pools, runs, responses)| Learned { pools, runs, responses })
    }

    proptest! {
        #![proptest_config(config(128))]

        #[test]
        fn what_is_written_is_read(state in states()) {
            prop_assert_eq!(Learned::decode(&state.encode().unwrap()).unwrap(), state);
        }

        #[test]
        fn a_state_that_breaks_off_is_refused(state in states(), at in any::<prop::sample::Index>()) {
            let bytes = state.encode().unwrap();
            prop_assert!(Learned::decode(&bytes[..at.index(bytes.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Learned::decode(&bytes);
            let _ = Learned::decode(&[&MARK[..], &FORMAT.to_le_bytes(), &bytes].concat());
        }
    }

    #[test]
    fn another_version_is_told_from_no_state() {
        let mut bytes = Learned::default().encode().unwrap();
        bytes[4] += 1;
        assert!(matches!(Learned::decode(&bytes), Err(StateError::Format(other)) if other == FORMAT + 1));
        bytes[0] = b'x';
        assert!(matches!(Learned::decode(&bytes), Err(StateError::NoState)));
        assert!(matches!(Learned::decode(b"WGST"), Err(StateError::NoState)));
    }

    #[test]
    fn a_count_that_the_bytes_do_not_hold_takes_no_memory() {
        // An array of 2^32 - 1 pools, and nothing behind it.
        let bytes = [&MARK[..], &FORMAT.to_le_bytes(), &[0x93, 0xdd, 0xff, 0xff, 0xff, 0xff]].concat();
        assert!(matches!(Learned::decode(&bytes), Err(StateError::Content(_))));
    }
}
