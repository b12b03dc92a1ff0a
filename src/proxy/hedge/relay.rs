//! Between an exchange and one backend, or two: sends the request, waits for the first token, and passes on who has it.
//!
//! The relay reads no more of HTTP than it has to: the request's length, as [`super::super::forward`] has set it, and of an
//! answer its status, its type and its first event. Dropping the relay closes all its connections.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{MAX_BODY_BYTES, Second, Sent};
use crate::budget::Reservation;
use crate::metrics::HedgeOutcome;
use crate::request::ResponseReader;

/// The longest header of a request that is relayed; those of clients are bounded below (`server.max_header_bytes`).
const MAX_HEADER_BYTES: usize = 2 * 1024 * 1024;

/// The most of an answer that is held back for its first token; notices before it are much shorter.
const MAX_HELD_BYTES: usize = 64 * 1024;

/// Bytes that are passed on at a time.
const PIECE_BYTES: usize = 16 * 1024;

const END_OF_HEADER: &[u8] = b"\r\n\r\n";

/// What a backend has answered up to its first token, or as far as it went.
struct Answer {
    stream: TcpStream,
    held: Vec<u8>,
    has_token: bool,
}

/// A new connection.
pub(super) async fn connect(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = timeout(limit, TcpStream::connect(address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Relays one request of `near` and its answer, until either side ends. `reserved` is the room that the request takes here.
pub(super) async fn run(
    mut near: DuplexStream,
    first: TcpStream,
    after: Duration,
    second: Arc<Second>,
    reserved: Reservation,
) {
    let Some(request) = read_request(&mut near).await else { return };
    let winner = tokio::select! {
        winner = race(first, &request, after, &second) => winner,
        () = ended(&mut near) => return,
    };
    // Without an answer the exchange sees a broken connection, as it would without the relay.
    let Ok(answer) = winner else { return };
    drop((request, reserved));
    let (mut from_near, to_near) = tokio::io::split(near);
    tokio::select! {
        // How it ended shows in what the exchange has got.
        _ = pass_on(answer, to_near) => {}
        () = ended(&mut from_near) => {}
    }
}

async fn pass_on(answer: Answer, mut to_near: WriteHalf<DuplexStream>) -> io::Result<()> {
    let Answer { mut stream, held: mut bytes, .. } = answer;
    loop {
        to_near.write_all(&bytes).await?;
        bytes.clear();
        bytes.reserve(PIECE_BYTES);
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

/// The request, whole.
async fn read_request(near: &mut DuplexStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = memmem::find(&bytes, END_OF_HEADER) {
            let length = end + END_OF_HEADER.len() + content_length(&bytes[..end])?;
            if bytes.len() >= length {
                return Some(bytes);
            }
        }
        if bytes.len() > MAX_HEADER_BYTES + MAX_BODY_BYTES || near.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn content_length(header: &[u8]) -> Option<usize> {
    let lines = header.split(|&byte| byte == b'\n');
    let mut fields = lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once(':'));
    let (_, value) = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    value.trim().parse().ok()
}

/// Returns when the exchange has closed its end. It has nothing more to say.
async fn ended(near: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut byte = [0];
    let _ = near.read(&mut byte).await;
}

/// The answer that is to be passed on: the first one with a token, else the first attempt's.
async fn race(first: TcpStream, request: &[u8], after: Duration, second: &Second) -> io::Result<Answer> {
    let mut first = pin!(answer(first, request));
    tokio::select! {
        answer = &mut first => return answer,
        () = sleep(after) => {}
    }
    let Some(Sent { attempt, stream }) = (tokio::select! {
        answer = &mut first => return answer,
        sent = second.send() => sent,
    }) else {
        return first.await;
    };
    let mut other = pin!(answer(stream, request));
    tokio::select! {
        answer = &mut first => {
            if has_token(&answer) {
                second.count(HedgeOutcome::FirstWon);
                return answer;
            }
            // It failed; perhaps the other one does not.
            let other = other.await;
            if has_token(&other) {
                second.won(attempt);
                return other;
            }
            second.count(HedgeOutcome::Failed);
            answer
        }
        answer = &mut other => {
            if has_token(&answer) {
                second.won(attempt);
                return answer;
            }
            second.count(HedgeOutcome::Failed);
            drop((answer, attempt));
            first.await
        }
    }
}

fn has_token(answer: &io::Result<Answer>) -> bool {
    answer.as_ref().is_ok_and(|answer| answer.has_token)
}

/// Sends the request, and reads until there is a token or none will come.
async fn answer(mut stream: TcpStream, request: &[u8]) -> io::Result<Answer> {
    stream.write_all(request).await?;
    let mut held = Vec::new();
    let mut body: Option<(usize, ResponseReader)> = None;
    loop {
        if stream.read_buf(&mut held).await? == 0 {
            return Ok(Answer { stream, held, has_token: false });
        }
        if body.is_none() {
            let Some(start) = start_of_body(&held) else { continue };
            if !is_event_stream(&held[..start]) {
                return Ok(Answer { stream, held, has_token: false });
            }
            body = Some((start, ResponseReader::new(true, false)));
        }
        let Some((read, reader)) = &mut body else { continue };
        // The lines of chunked framing are none that an event has.
        let progress = reader.push(&held[*read..]);
        *read = held.len();
        if progress.error || reader.has_output() || held.len() > MAX_HELD_BYTES {
            let has_token = !reader.has_error();
            return Ok(Answer { stream, held, has_token });
        }
    }
}

/// Where the body of the final response begins, once its header is whole.
fn start_of_body(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    loop {
        let end = start + memmem::find(&bytes[start..], END_OF_HEADER)? + END_OF_HEADER.len();
        let is_informational = bytes[start..].get(9) == Some(&b'1');
        if !is_informational {
            return Some(end);
        }
        start = end;
    }
}

/// Whether the response with this header is a stream of events, and a success.
fn is_event_stream(header: &[u8]) -> bool {
    let text = String::from_utf8_lossy(header).to_ascii_lowercase();
    text.lines().any(|line| line.starts_with("content-type:") && line.contains("text/event-stream"))
        && text.lines().any(|line| line.starts_with("http/1.1 2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_request_is_found_whatever_its_spelling() {
        assert_eq!(content_length(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12"), Some(12));
        assert_eq!(content_length(b"POST / HTTP/1.1\r\ncontent-length:0\r\nx: y"), Some(0));
        assert_eq!(content_length(b"POST / HTTP/1.1\r\nx-content-length: 9"), None);
    }

    #[test]
    fn informational_responses_come_before_the_body() {
        let bytes = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n1";
        assert_eq!(start_of_body(bytes), Some(bytes.len() - 1));
        assert!(is_event_stream(bytes));
        assert_eq!(start_of_body(b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200"), None);
        assert!(!is_event_stream(b"HTTP/1.1 503 No\r\ncontent-type: text/event-stream\r\n\r\n"));
        assert!(!is_event_stream(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"));
    }
}
