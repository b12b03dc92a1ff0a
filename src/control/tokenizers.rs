//! The pools' tokenizers, loaded before a configuration is used: one that cannot be read refuses it.

use std::sync::Arc;

use crate::config::{self, Config};
use crate::tokens::{Limits, LoadError, Service, TokenizerFiles};

/// Bodies up to this long are tokenized by whoever took them in: some tens of microseconds' work.
const INLINE_BYTES: usize = 4 * 1024;

/// Tokenizers by their settings. Pools with the same settings share one.
#[derive(Debug, Default)]
pub(super) struct Tokenizers(Vec<(config::Tokenizer, Arc<Service>)>);

/// A tokenizer that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the tokenizer of pool {pool}: {source}")]
pub struct TokenizerError {
    /// The first pool that needs it.
    pub pool: String,
    /// Why.
    pub source: LoadError,
}

/// Loads what `config` names, and drops it: for `warmgate check`.
///
/// # Errors
/// [`TokenizerError`] for the first that cannot be used.
pub fn check_tokenizers(config: &Config) -> Result<(), TokenizerError> {
    Tokenizers::default().load(config).map(drop)
}

// === impl Tokenizers ===

impl Tokenizers {
    /// What `config` needs: what is here already as it is, the others from their files, which can take a second each.
    pub(super) fn load(&self, config: &Config) -> Result<Self, TokenizerError> {
        let mut loaded = Self::default();
        for pool in &config.pools {
            let Some(settings) = pool.tokenizer.as_ref().filter(|settings| loaded.of(settings).is_none()) else {
                continue;
            };
            let service = match self.of(settings) {
                Some(service) => service,
                None => load(settings).map_err(|source| TokenizerError { pool: pool.name.clone(), source })?,
            };
            loaded.0.push((settings.clone(), service));
        }
        Ok(loaded)
    }

    /// The one with these settings.
    pub(super) fn of(&self, settings: &config::Tokenizer) -> Option<Arc<Service>> {
        self.0.iter().find(|(of, _)| of == settings).map(|(_, service)| Arc::clone(service))
    }
}

fn load(settings: &config::Tokenizer) -> Result<Arc<Service>, LoadError> {
    let config::Tokenizer { path, config, chat_template, max_bytes, timeout, cache_bytes } = settings.clone();
    let files = TokenizerFiles { tokenizer: path, config, chat_template };
    let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let limits =
        Limits { max_bytes: bytes(max_bytes), timeout, cache_bytes: bytes(cache_bytes), inline_bytes: INLINE_BYTES };
    Service::load(&files, limits)
}
