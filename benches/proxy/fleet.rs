//! The engines, as the other parts of the bench see them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::client::Client;
use crate::engine::ENGINES;
use crate::process::Process;
use crate::questions::COUNT_PATH;

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

    /// How many requests they have had, questions of proxies among them.
    pub(crate) async fn requests(&self) -> io::Result<u64> {
        let mut client = Client::connect(self.engines[0].address).await?;
        let request = format!("GET {COUNT_PATH} HTTP/1.1\r\nhost: bench\r\n\r\n");
        let answer = client.exchange_whole(request.as_bytes()).await?;
        let said = String::from_utf8(answer.body.unwrap_or_default()).map_err(io::Error::other)?;
        said.parse().map_err(io::Error::other)
    }
}
