//! The connection against recorded bytes, against the sockets of the `zeromq` crate, and against everything else.

use proptest::prelude::*;
use tokio::net::TcpListener;

use super::codec::{put_frame, take_frame};
use super::*;
use crate::kv_events::fixtures;
use crate::testing::config;

const LIMIT: Duration = Duration::from_secs(20);
