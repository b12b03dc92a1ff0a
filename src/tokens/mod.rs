//! Token ids of prompts, equal to those that the engine makes.
//!
//! A [`Tokenizer`] is made of the model's own files and takes a request's body to token ids by the same steps as vLLM: the
//! messages of every endpoint become those of a chat (`request`), the chat template makes them a text (`template`), and
//! Hugging Face's `tokenizers` makes that ids (`encode`). What cannot be known to be exact is [`NotTokenized`], with the
//! reason, and is routed by its bytes; ids that are merely likely would be worse than none.
//!
//! All of this is pure. [`Service`] runs it beside the async threads, within bounds.

mod cache;
mod config;
mod encode;
mod files;
mod ids;
mod json;
mod prompts;
mod request;
mod service;
mod stop;
mod template;

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod testing;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::SystemTime;

pub use files::{LoadError, TokenizerFiles};
pub use ids::TokenIds;
pub use prompts::{NotTokenized, Prompts};
pub use service::{Limits, Service};

use cache::TextCache;
use encode::Encoder;
use request::{Plan, PlannedPrompt};
use stop::Stop;
use template::ChatTemplates;

use crate::prefix::BlockHash;
use crate::request::Endpoint;

/// A model's tokenizer and chat template, as loaded once. Shared by all requests of a pool.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    templates: Option<ChatTemplates>,
    /// The engine renders this model's chats by code of its own.
    is_harmony: bool,
    cache: TextCache,
}

/// Bytes that the cache may take unless set otherwise: some 7 million tokens of conversations, with what was said.
pub const CACHE_BYTES: usize = 64 << 20;

// === impl Tokenizer ===

impl Tokenizer {
    /// Reads the files, with a cache of [`CACHE_BYTES`].
    ///
    /// # Errors
    /// [`LoadError`] says which file, what is wrong, and what would be right.
    pub fn load(files: &TokenizerFiles) -> Result<Self, LoadError> {
        Self::load_with_cache(files, CACHE_BYTES)
    }

    /// Reads the files; token ids of texts that were seen before, hashes of their blocks, and the messages of conversations
    /// as they were read, are kept in up to `cache_bytes`. Nothing else keeps what requests say.
    ///
    /// # Errors
    /// [`LoadError`] says which file, what is wrong, and what would be right.
    pub fn load_with_cache(files: &TokenizerFiles, cache_bytes: usize) -> Result<Self, LoadError> {
        let loaded = files::load(files)?;
        let templates = loaded.templates.map(|sources| ChatTemplates::new(&sources, &loaded.special_tokens));
        let templates = templates.transpose().map_err(|(source, path)| LoadError::Template { path, source })?;
        let is_harmony = ["<|start|>", "<|channel|>", "<|constrain|>", "<|call|>"]
            .iter()
            .all(|token| loaded.encoder.has_added_token(token));
        Ok(Self { encoder: loaded.encoder, templates, is_harmony, cache: TextCache::new(cache_bytes) })
    }

    /// The token ids of each prompt in the body of a request to `endpoint`, as the engine will make them. `now` is what
    /// templates that print the date get, in UTC.
    ///
    /// # Errors
    /// [`NotTokenized`], if they cannot be known to be those.
    pub fn prompts(&self, endpoint: Endpoint, body: &[u8], now: SystemTime) -> Result<Prompts, NotTokenized> {
        self.prompts_unless(endpoint, body, now, &Stop::default())
    }

    /// The hashes of all whole blocks of a prompt of this tokenizer, as [`token_chain`](crate::prefix::token_chain) gives
    /// them. Those of a conversation's earlier turns are kept with their ids.
    pub fn chain(&self, ids: &TokenIds, root: BlockHash, block_tokens: NonZeroU32) -> Arc<[BlockHash]> {
        ids.chain(root, block_tokens, &self.cache)
    }

    /// The same, given up soon after `stop` is set.
    fn prompts_unless(
        &self,
        endpoint: Endpoint,
        body: &[u8],
        now: SystemTime,
        stop: &Stop,
    ) -> Result<Prompts, NotTokenized> {
        let plan = request::read(endpoint, body, &self.cache)?;
        let Plan { prompts, more_prompts } = plan;
        let prompts = prompts.into_iter().map(|prompt| self.ids(prompt, now, stop)).collect::<Result<_, _>>()?;
        Ok(Prompts { prompts, more_prompts })
    }

    fn ids(&self, prompt: PlannedPrompt, now: SystemTime, stop: &Stop) -> Result<TokenIds, NotTokenized> {
        let encode = |text: &[u8], special| self.encoder.encode(text, special, &self.cache, stop);
        match prompt {
            PlannedPrompt::Ids(ids) => Ok(ids.into()),
            PlannedPrompt::Text { text, add_special_tokens } => encode(text.as_bytes(), add_special_tokens),
            PlannedPrompt::Chat(chat) => {
                if self.is_harmony {
                    return Err(NotTokenized::Form("chat for a model with a renderer of its own"));
                }
                let templates = self.templates.as_ref().ok_or(NotTokenized::NoTemplate)?;
                encode(&templates.render(&chat, now, stop)?, chat.add_special_tokens)
            }
        }
    }
}
