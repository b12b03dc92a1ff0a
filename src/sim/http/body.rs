//! Reads request bodies, within limits.

use std::sync::Arc;

use pingora_core::protocols::http::v1::server::HttpSession;
use tokio::sync::OwnedSemaphorePermit;
use xxhash_rust::xxh3::Xxh3;

use crate::sim::shared::{PAGE_BYTES, Shared};

/// A body that was read to its end.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    pub(super) xxh3: u64,
    /// What it takes of the memory for bodies.
    _pages: Option<OwnedSemaphorePermit>,
}

/// Why it was not.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It is larger than a body may be.
    TooLarge,
    /// All bodies together would be larger than they may be.
    NoRoom,
    /// Half of it came, as was asked for.
    Halfway,
    /// The client went away.
    Gone(Box<pingora_core::Error>),
}

/// Reads the body; with `halfway` only about half of it.
pub(super) async fn read(session: &mut HttpSession, shared: &Arc<Shared>, halfway: bool) -> Result<Body, Stopped> {
    let announced = announced_bytes(session);
    if announced.is_some_and(|bytes| bytes > shared.options.max_body_bytes) {
        return Err(Stopped::TooLarge);
    }
    let expects_continue = session.get_header_bytes("expect").eq_ignore_ascii_case(b"100-continue");
    if expects_continue {
        // Pingora takes the 100 for an early response, and would end the connection after this request.
        session.set_close_on_response_before_downstream_finish(false);
        session.write_continue_response().await.map_err(Stopped::Gone)?;
        session.set_close_on_response_before_downstream_finish(true);
    }
    let (mut bytes, mut hash, mut pages) = (Vec::new(), Xxh3::new(), Pages::new(shared));
    while let Some(piece) = session.read_body_bytes().await.map_err(Stopped::Gone)? {
        if bytes.len() + piece.len() > shared.options.max_body_bytes {
            return Err(Stopped::TooLarge);
        }
        if !pages.hold(bytes.len() + piece.len()) {
            return Err(Stopped::NoRoom);
        }
        hash.update(&piece);
        bytes.extend_from_slice(&piece);
        if halfway && bytes.len() * 2 >= announced.unwrap_or(0) {
            return Err(Stopped::Halfway);
        }
    }
    if halfway {
        return Err(Stopped::Halfway);
    }
    Ok(Body { bytes, xxh3: hash.digest(), _pages: pages.held })
}

fn announced_bytes(session: &HttpSession) -> Option<usize> {
    std::str::from_utf8(session.get_header_bytes("content-length")).ok()?.trim().parse().ok()
}

/// The part of the memory for bodies that one body has.
struct Pages<'a> {
    shared: &'a Arc<Shared>,
    held: Option<OwnedSemaphorePermit>,
}

// === impl Pages ===

impl<'a> Pages<'a> {
    fn new(shared: &'a Arc<Shared>) -> Self {
        Self { shared, held: None }
    }

    /// Takes what is missing for `bytes`; false if that cannot be had.
    fn hold(&mut self, bytes: usize) -> bool {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.div_ceil(PAGE_BYTES).saturating_sub(held);
        let Ok(missing) = u32::try_from(missing) else { return false };
        let Ok(more) = Arc::clone(&self.shared.pages).try_acquire_many_owned(missing) else { return false };
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        true
    }
}
