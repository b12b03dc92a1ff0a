//! The engines, as the other parts of the bench see them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::engine::ENGINES;
use crate::process::Process;

/// Where an engine is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    /// Where it publishes its KV events.
    pub(crate) events: SocketAddr,
}

/// All of them, in a process of their own that ends with this.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) engines: Vec<Engine>,
    _process: Process,
}

// === impl Fleet ===

impl Fleet {
    /// Starts them with the tokenizer in this folder.
    pub(crate) fn start(model: &Path) -> io::Result<Self> {
        let (process, line) = Process::start_part(&["engines", &model.display().to_string()])?;
        let addresses: Vec<SocketAddr> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let engines: Vec<Engine> =
            addresses.chunks_exact(2).map(|pair| Engine { address: pair[0], events: pair[1] }).collect();
        match engines.len() {
            ENGINES => Ok(Self { engines, _process: process }),
            _ => Err(io::Error::other(format!("the engines did not start: {line:?}"))),
        }
    }
}
