//! Sends a request's header and its body in one piece, where that is all there is to send.
//!
//! Pingora writes and flushes the header, then the body, both in one turn of the connection's task as the body is held
//! whole. Each would be a packet of its own and wake the engine. So the connection to the backend is corked as soon as an
//! attempt has it ([`TCP_CORK`](https://man7.org/linux/man-pages/man7/tcp.7.html)), and uncorked at the end of the turn.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;

use super::limits::{Cork, Grip};

thread_local! {
    /// What was corked in the turn that this thread is at.
    static CORKED: RefCell<Vec<Cork>> = const { RefCell::new(Vec::new()) };
}

/// Corks the connection to the end of the turn. Only within [`uncorking`].
pub(super) fn cork(grip: &Grip) {
    if let Some(cork) = grip.cork() {
        CORKED.with_borrow_mut(|corked| corked.push(cork));
    }
}

/// Does what `task` does, and uncorks at the end of each turn what was corked in it.
pub(crate) async fn uncorking<F: Future>(task: F) -> F::Output {
    let mut task = pin!(task);
    poll_fn(move |cx| {
        let polled = task.as_mut().poll(cx);
        CORKED.with_borrow_mut(Vec::clear);
        polled
    })
    .await
}
