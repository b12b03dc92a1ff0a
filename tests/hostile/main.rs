//! What hostile clients find: every form of a request that could be read in two ways, headers and bodies without end or
//! measure, floods. Raw sockets, so that nothing is put right on the way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod floods;
mod forms;
mod large;
mod slow;

const CHAT: &str = "/v1/chat/completions";
