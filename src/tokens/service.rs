//! Tokenizing beside the async threads: short bodies at once, long ones on threads that may block, a few at a time, with a
//! limit on size and on time. Past a limit a request is routed by its bytes.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time;

use super::stop::{Stop, StopOnDrop};
use super::{CACHE_BYTES, LoadError, NotTokenized, Prompts, TokenIds, Tokenizer, TokenizerFiles};
use crate::prefix::BlockHash;
use crate::request::Endpoint;

/// What tokenizing may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longer bodies are not tokenized.
    pub max_bytes: usize,
    /// For one request, from when it comes to when its ids are there.
    pub timeout: Duration,
    /// What cached token ids and messages may take, as for [`Tokenizer::load_with_cache`].
    pub cache_bytes: usize,
    /// Bodies up to this long are done on the thread that asks: handing them over would take longer.
    pub inline_bytes: usize,
}

/// A pool's tokenizer for its requests.
#[derive(Debug)]
pub struct Service {
    tokenizer: Tokenizer,
    limits: Limits,
    /// One permit for each job that may run at a time.
    permits: Arc<Semaphore>,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 8 << 20,
            timeout: Duration::from_millis(500),
            cache_bytes: CACHE_BYTES,
            inline_bytes: 4 << 10,
        }
    }
}

// === impl Service ===

impl Service {
    /// Loads a tokenizer; as many jobs run at a time as there are cores.
    ///
    /// # Errors
    /// [`LoadError`] says which file, what is wrong, and what would be right.
    pub fn load(files: &TokenizerFiles, limits: Limits) -> Result<Arc<Self>, LoadError> {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let tokenizer = Tokenizer::load_with_cache(files, limits.cache_bytes)?;
        Ok(Arc::new(Self::new(tokenizer, limits, jobs)))
    }

    fn new(tokenizer: Tokenizer, limits: Limits, jobs: usize) -> Self {
        Self { tokenizer, limits, permits: Arc::new(Semaphore::new(jobs)) }
    }

    /// The token ids of each prompt in the body of a request to `endpoint`, as [`Tokenizer::prompts`] gives them.
    ///
    /// A job whose waiter is gone ends at its next step, and so does one that is late.
    ///
    /// # Errors
    /// [`NotTokenized`], also past a limit.
    pub async fn prompts(
        self: &Arc<Self>,
        endpoint: Endpoint,
        body: Bytes,
        now: SystemTime,
    ) -> Result<Prompts, NotTokenized> {
        if body.len() > self.limits.max_bytes {
            return Err(NotTokenized::TooLarge);
        }
        if body.len() <= self.limits.inline_bytes {
            return self.tokenizer.prompts(endpoint, &body, now);
        }
        let late = time::timeout(self.limits.timeout, self.prompts_elsewhere(endpoint, body, now)).await;
        late.unwrap_or(Err(NotTokenized::TimedOut))
    }

    /// The hashes of the blocks of a prompt of this tokenizer, as [`Tokenizer::chain`] gives them.
    pub fn chain(&self, ids: &TokenIds, root: BlockHash, block_tokens: NonZeroU32) -> Arc<[BlockHash]> {
        self.tokenizer.chain(ids, root, block_tokens)
    }

    async fn prompts_elsewhere(
        self: &Arc<Self>,
        endpoint: Endpoint,
        body: Bytes,
        now: SystemTime,
    ) -> Result<Prompts, NotTokenized> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| NotTokenized::Failed)?;
        let stop = Stop::default();
        let _stops_when_gone = StopOnDrop(stop.clone());
        let service = Arc::clone(self);
        let job = tokio::task::spawn_blocking(move || {
            let prompts = service.tokenizer.prompts_unless(endpoint, &body, now, &stop);
            drop(permit);
            prompts
        });
        job.await.unwrap_or(Err(NotTokenized::Failed))
    }
}

#[cfg(test)]
mod tests;
