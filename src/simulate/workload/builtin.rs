//! The workloads that need no recording, by name.

use super::{Agentic, Burst, Conversation, NoSharing, Rag, SharedPrefix, Workload};

/// A built-in workload with its default sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// [`SharedPrefix`]
    SharedPrefix,
    /// [`Conversation`]
    Conversation,
    /// [`Agentic`]
    Agentic,
    /// [`Rag`]
    Rag,
    /// [`NoSharing`]
    NoSharing,
    /// [`Burst`]
    Burst,
}

/// A name that no built-in workload has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no workload {given:?}; there are {}", names())]
pub struct UnknownWorkload {
    given: String,
}

// === impl Builtin ===

impl Builtin {
    /// All of them, in the order they are shown.
    pub const ALL: [Self; 6] =
        [Self::SharedPrefix, Self::Conversation, Self::Agentic, Self::Rag, Self::NoSharing, Self::Burst];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::SharedPrefix => "shared-prefix",
            Self::Conversation => "conversation",
            Self::Agentic => "agentic",
            Self::Rag => "rag",
            Self::NoSharing => "no-sharing",
            Self::Burst => "burst",
        }
    }

    /// The workload of this name.
    ///
    /// # Errors
    ///
    /// If there is none; the error names those that there are.
    pub fn parse(name: &str) -> Result<Self, UnknownWorkload> {
        let found = Self::ALL.into_iter().find(|builtin| builtin.name() == name);
        found.ok_or_else(|| UnknownWorkload { given: name.to_owned() })
    }

    /// Whether a request comes only when one before it is done, so that no speed can overload the fleet.
    pub fn is_closed(self) -> bool {
        self == Self::SharedPrefix
    }

    /// One sentence with the default sizes.
    pub fn describe(self) -> String {
        match self {
            Self::SharedPrefix => SharedPrefix::default().to_string(),
            Self::Conversation => Conversation::default().to_string(),
            Self::Agentic => Agentic::default().to_string(),
            Self::Rag => Rag::default().to_string(),
            Self::NoSharing => NoSharing::default().to_string(),
            Self::Burst => Burst::default().to_string(),
        }
    }

    /// The workload that `seed` stands for, of `requests` requests and, in a closed loop, `clients` clients; or as many
    /// as it has by default.
    pub fn generate(self, requests: Option<usize>, clients: Option<usize>, seed: u64) -> Workload {
        macro_rules! sized {
            ($parameters:ty) => {{
                let mut parameters = <$parameters>::default();
                parameters.requests = requests.unwrap_or(parameters.requests);
                parameters
            }};
        }
        match self {
            Self::SharedPrefix => {
                let parameters = sized!(SharedPrefix);
                SharedPrefix { clients: clients.unwrap_or(parameters.clients), ..parameters }.generate(seed)
            }
            Self::Conversation => sized!(Conversation).generate(seed),
            Self::Agentic => sized!(Agentic).generate(seed),
            Self::Rag => sized!(Rag).generate(seed),
            Self::NoSharing => sized!(NoSharing).generate(seed),
            Self::Burst => sized!(Burst).generate(seed),
        }
    }
}

fn names() -> String {
    Builtin::ALL.map(Builtin::name).join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::config;

    fn any_builtin() -> impl Strategy<Value = Builtin> {
        prop::sample::select(&Builtin::ALL[..])
    }

    proptest! {
        #![proptest_config(config(16))]

        #[test]
        fn a_seed_gives_the_same_work_again_and_another_seed_other_work(
            builtin in any_builtin(), requests in 20..60_usize, seed in any::<u64>(),
        ) {
            let workload = builtin.generate(Some(requests), None, seed);
            prop_assert_eq!(&workload, &builtin.generate(Some(requests), None, seed));
            prop_assert_ne!(&workload, &builtin.generate(Some(requests), None, seed ^ 1));
        }

        #[test]
        fn a_workload_has_its_requests_in_order_and_no_empty_session(
            builtin in any_builtin(), requests in 0..60_usize, seed in any::<u64>(),
        ) {
            let workload = builtin.generate(Some(requests), None, seed);
            prop_assert_eq!(workload.requests(), requests);
            prop_assert!(workload.sessions.is_sorted_by_key(|session| session.start));
            for session in &workload.sessions {
                prop_assert!(!session.turns.is_empty() && session.turns[0].pause.is_zero());
            }
        }

        #[test]
        fn lengths_are_at_least_one_and_chains_cover_all_that_can_be_found(
            builtin in any_builtin(), seed in any::<u64>(),
        ) {
            let workload = builtin.generate(Some(40), None, seed);
            for turn in workload.sessions.iter().flat_map(|session| &session.turns) {
                prop_assert!(turn.prompt_tokens > 0 && turn.output_tokens > 0);
                // Nobody asks for an answer of the small workload again.
                let answer = if builtin == Builtin::SharedPrefix { 0 } else { turn.output_tokens };
                let whole = (turn.prompt_tokens + answer) / workload.block_tokens;
                prop_assert!(turn.chain.len() >= whole as usize, "{} blocks of {whole}", turn.chain.len());
            }
        }

        #[test]
        fn a_prompt_begins_with_the_one_before_it(
            builtin in prop::sample::select(&[Builtin::Conversation, Builtin::Agentic][..]), seed in any::<u64>(),
        ) {
            let workload = builtin.generate(Some(60), None, seed);
            for pair in workload.sessions.iter().flat_map(|session| session.turns.windows(2)) {
                let [before, after] = [0, 1].map(|at: usize| pair[at].prompt_blocks(workload.block_tokens));
                prop_assert!(after.starts_with(before));
                prop_assert!(pair[1].prompt_tokens > pair[0].prompt_tokens + pair[0].output_tokens);
            }
        }
    }

    #[test]
    fn each_is_found_by_its_name_and_no_other_is() {
        for builtin in Builtin::ALL {
            assert_eq!(Builtin::parse(builtin.name()), Ok(builtin));
        }
        let error = Builtin::parse("chat").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no workload \"chat\"; there are shared-prefix, conversation, agentic, rag, no-sharing, burst"
        );
    }

    #[test]
    fn it_has_the_requests_of_its_description_unless_told_otherwise() {
        let requests = |builtin: Builtin| builtin.describe().split_once(" requests").map(|(count, _)| count.to_owned());
        assert_eq!(
            Builtin::ALL.map(|builtin| requests(builtin).unwrap()),
            ["2000", "4000", "12000", "4000", "4000", "4000"]
        );
        assert_eq!(Builtin::SharedPrefix.generate(None, None, 1).requests(), 2_000);
        assert_eq!(Builtin::Agentic.generate(None, None, 1).requests(), 12_000);
    }

    #[test]
    fn only_the_closed_loop_has_turns_without_a_pause() {
        for builtin in Builtin::ALL {
            let workload = builtin.generate(Some(300), None, 1);
            let mut later = workload.sessions.iter().flat_map(|session| &session.turns[1..]);
            assert_eq!(later.any(|turn| turn.pause.is_zero()), builtin.is_closed(), "{}", builtin.name());
        }
    }
}
