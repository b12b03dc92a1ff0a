//! Reads a whole request body before a backend is chosen, and holds it for every attempt.
//!
//! Over HTTP/1 it is read past Pingora, which has one byte in its place ([`downstream::body`]).

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http::header::{CONTENT_LENGTH, EXPECT};
use pingora_core::ErrorType;
use pingora_core::protocols::http::server::Session as HttpSession;
use tokio::time::timeout;

use crate::budget::{ByteBudget, NoRoom, Reservation};
use crate::config::Limits;
use crate::downstream;

/// What a body reserves first. It doubles as bytes arrive: a stated length is only a claim, and clients that claim much and
/// send a byte now and then must not keep others out, many as they may be.
const FIRST_STEP_BYTES: usize = 8 * 1024;

/// Unread bytes of a refused body that are read and dropped, so that the client sees the reply and not a reset.
const DRAIN_BYTES: usize = 256 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// What a body may cost.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Largest body accepted, bytes.
    pub max_body_bytes: usize,
    /// How long a request waits for room in the budget.
    pub buffer_wait: Duration,
    /// Total time for the body to arrive.
    pub body_timeout: Duration,
}

/// A body held whole. Dropping it gives its share of the budget back.
#[derive(Debug)]
pub struct Buffered {
    bytes: Bytes,
    _reserved: Reservation,
}

/// Why a body could not be held.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is larger than the limit.
    #[error("the request body is larger than {limit} bytes")]
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// No room in the budget for buffered bodies within the wait.
    #[error("too many request bytes are held at the moment")]
    NoRoom(#[from] NoRoom),
    /// The body did not arrive in time.
    #[error("the request body did not arrive within {0:?}")]
    TimedOut(Duration),
    /// The client's connection failed, or its framing was wrong.
    #[error("the request body could not be read")]
    Read(#[source] Box<pingora_core::Error>),
}

// === impl BodyLimits ===

impl BodyLimits {
    /// The configured ones.
    pub fn of(limits: &Limits) -> Self {
        Self {
            max_body_bytes: usize::try_from(limits.max_body_bytes).unwrap_or(usize::MAX),
            buffer_wait: limits.buffer_wait,
            body_timeout: limits.body_timeout,
        }
    }
}

// === impl Buffered ===

impl Buffered {
    /// A share of the bytes; no copy.
    pub fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the request had no body.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

// === reading ===

/// Reads the body of `session` to its end.
///
/// # Errors
/// See [`BodyError`]. After an error the body is not fully read: reply, then [`drain`].
pub async fn read(session: &mut HttpSession, limits: &BodyLimits, budget: &ByteBudget) -> Result<Buffered, BodyError> {
    let expected = stated_length(session);
    if expected.is_some_and(|length| length > limits.max_body_bytes as u64) {
        return Err(BodyError::TooLarge { limit: limits.max_body_bytes });
    }
    let stated = expected.and_then(|length| usize::try_from(length).ok());
    let mut reader =
        Reader { limits, budget, stated, reserved: Reservation::default(), room: 0, body: BytesMut::new() };
    let reading = async {
        continue_if_expected(session).await?;
        match session.is_http2() {
            true => reader.read_h2(session).await,
            false => reader.read_h1(session).await,
        }
    };
    match timeout(limits.body_timeout, reading).await {
        Ok(done) => done?,
        Err(_) => return Err(BodyError::TimedOut(limits.body_timeout)),
    }
    Ok(Buffered { bytes: reader.body.freeze(), _reserved: reader.reserved })
}

/// Reads and drops what is left of a body that nobody wants, within bounds; whether it was read to its end. Otherwise the
/// connection has to be closed. One that is closed with unread bytes is reset, and a reset can overtake the reply.
pub async fn drain(session: &mut HttpSession) -> bool {
    let draining = async {
        if let Some(body) = downstream::body(session)
            && !body.skip().await?
        {
            return Ok(false);
        }
        let mut drained = 0;
        while let Some(bytes) = session.read_request_body().await.map_err(io::Error::other)? {
            drained += bytes.len();
            if drained > DRAIN_BYTES {
                return Ok(false);
            }
        }
        io::Result::Ok(true)
    };
    matches!(timeout(DRAIN_TIME, draining).await, Ok(Ok(true)))
}

/// Passes over the body of a request whose answer has no use for it: before the answer, which says that the connection ends
/// where that cannot be done.
pub async fn pass_over(session: &mut HttpSession) {
    // Who waits for a word sends none of it.
    if expects_continue(session) || !drain(session).await {
        session.set_keepalive(None);
    }
}

struct Reader<'a> {
    limits: &'a BodyLimits,
    budget: &'a ByteBudget,
    /// The length, where the header says it.
    stated: Option<usize>,
    reserved: Reservation,
    /// Bytes that `reserved` covers.
    room: usize,
    body: BytesMut,
}

impl Reader<'_> {
    /// More than this cannot come of it.
    fn most_bytes(&self) -> usize {
        self.stated.unwrap_or(self.limits.max_body_bytes)
    }

    /// Covers what has come.
    async fn cover(&mut self) -> Result<(), BodyError> {
        let length = self.body.len();
        if length > self.limits.max_body_bytes {
            return Err(BodyError::TooLarge { limit: self.limits.max_body_bytes });
        }
        if length <= self.room {
            return Ok(());
        }
        // In whole steps, since the budget counts in units: rounded up each time, a body would have no room for itself.
        let missing = length - self.room;
        let step = self.room.max(missing.next_multiple_of(FIRST_STEP_BYTES));
        let more = step.min(self.most_bytes().saturating_sub(self.room)).max(missing);
        self.budget.reserve(&mut self.reserved, more, self.limits.buffer_wait).await?;
        self.room += more;
        Ok(())
    }

    async fn read_h1(&mut self, session: &mut HttpSession) -> Result<(), BodyError> {
        if let Some(body) = downstream::body(session) {
            let most = self.most_bytes();
            while body.read(&mut self.body, most).await.map_err(failed)? > 0 {
                self.cover().await?;
            }
        }
        // What stands in for it.
        while session.read_request_body().await.map_err(BodyError::Read)?.is_some() {}
        Ok(())
    }

    async fn read_h2(&mut self, session: &mut HttpSession) -> Result<(), BodyError> {
        while let Some(bytes) = session.read_request_body().await.map_err(BodyError::Read)? {
            self.push(&bytes).await?;
        }
        Ok(())
    }

    /// Takes a copy: a frame of a few bytes is a part of all that was read with it, and would hold on to that.
    async fn push(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        if let Some(length) = self.stated {
            let left = length.saturating_sub(self.body.len());
            downstream::grow(&mut self.body, left);
        }
        self.body.extend_from_slice(bytes);
        self.cover().await
    }
}

fn failed(error: io::Error) -> BodyError {
    let kind = match error.kind() {
        io::ErrorKind::UnexpectedEof => ErrorType::ConnectionClosed,
        _ => ErrorType::ReadError,
    };
    BodyError::Read(pingora_core::Error::because(kind, "while reading a request body", error))
}

/// Whether the client waits for a word before it sends the body. HTTP/1.0 has no such answers.
fn expects_continue(session: &HttpSession) -> bool {
    let expects = session.get_header_bytes(EXPECT).eq_ignore_ascii_case(b"100-continue");
    expects && session.req_header().version == Version::HTTP_11
}

async fn continue_if_expected(session: &mut HttpSession) -> Result<(), BodyError> {
    if expects_continue(session) {
        // Pingora takes the 100 for an early response, and would end the connection after this request.
        session.set_close_on_response_before_downstream_finish(false);
        session.write_continue_response().await.map_err(BodyError::Read)?;
        session.set_close_on_response_before_downstream_finish(true);
    }
    Ok(())
}

fn stated_length(session: &HttpSession) -> Option<u64> {
    match downstream::body(session) {
        Some(body) => body.left(),
        None => session.req_header().headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok(),
    }
}
