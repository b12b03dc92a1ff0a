//! Four engines that answer at once, with the bytes that are asked for: what is left is what a proxy takes. One process
//! with a port for each.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use warmgate::tokens::{Tokenizer, TokenizerFiles};

use crate::canned::{self, ANSWER_HEADER, Canned, TELL_HEADER};
use crate::message::Message;
use crate::questions;
use crate::teller::Teller;

/// How many there are.
pub(crate) const ENGINES: usize = 4;

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 * 1024;

/// The events of a stream, by kind; all but the last of them are always the same.
type Streams = HashMap<u32, Vec<Bytes>>;

/// What all engines share.
struct Shared {
    streams: Streams,
    /// Requests so far, of all of them.
    requests: Cell<u64>,
}

/// The streams that are asked for.
const STREAMS: [u32; 2] = [16, 500];

/// Serves until the process ends. Prints a line of addresses, each with that of its KV events, once all of them listen.
pub(crate) fn run(model: &Path) -> io::Result<()> {
    let files = TokenizerFiles { tokenizer: model.to_owned(), config: None, chat_template: None };
    let tokenizer = Arc::new(Tokenizer::load(&files).map_err(io::Error::other)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let streams = STREAMS.into_iter().map(|events| (events, chunks(events))).collect();
        let shared = Rc::new(Shared { streams, requests: Cell::new(0) });
        let mut line = String::from("ready");
        for _ in 0..ENGINES {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let teller = Teller::start(Arc::clone(&tokenizer))?;
            line.push_str(&format!(" {} {}", listener.local_addr()?, teller.address()));
            tokio::task::spawn_local(listen(listener, teller, Rc::clone(&shared)));
        }
        writeln!(io::stdout(), "{line}")?;
        std::future::pending().await
    })
}

async fn listen(listener: TcpListener, teller: Teller, shared: Rc<Shared>) {
    loop {
        // It fails where there are no descriptors, and there the bench fails as well.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (teller, shared) = (teller.clone(), Rc::clone(&shared));
        tokio::task::spawn_local(async move {
            // Who leaves in the middle has measured enough.
            let _ = converse(stream, &teller, &shared).await;
        });
    }
}

async fn converse(mut stream: TcpStream, teller: &Teller, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut incoming = vec![0; READ_BYTES];
    while let Some(mut request) = read(&mut stream, &mut incoming).await? {
        if let Some(count) = questions::count(request.first_line(), shared.requests.get()) {
            stream.write_all(count.as_bytes()).await?;
            continue;
        }
        shared.requests.set(shared.requests.get() + 1);
        if let Some(answer) = questions::answer(request.first_line()) {
            stream.write_all(answer.as_bytes()).await?;
            continue;
        }
        // What a real tokenizer makes of it is of no matter here, but that it grows as the body does.
        let prompt_tokens = request.body_bytes / 4;
        if request.header(TELL_HEADER).is_some()
            && let Some(body) = request.body.take()
        {
            teller.tell(body).await;
        }
        answer(&mut stream, wanted(&request), prompt_tokens, &shared.streams).await?;
    }
    Ok(())
}

fn wanted(request: &Message) -> Canned {
    request.header(ANSWER_HEADER).map_or(Canned::Plain, Canned::named)
}

async fn read(stream: &mut TcpStream, incoming: &mut [u8]) -> io::Result<Option<Message>> {
    let mut request = Message::kept();
    while !request.is_complete() {
        let read = stream.read(incoming).await?;
        if read == 0 {
            return if request.has_begun() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
        }
        request.take(&incoming[..read])?;
    }
    Ok(Some(request))
}

async fn answer(stream: &mut TcpStream, canned: Canned, prompt_tokens: u64, streams: &Streams) -> io::Result<()> {
    const FIELDS: &str = "date: Mon, 30 Nov 2026 08:00:00 GMT\r\nserver: uvicorn\r\n";
    let start = format!(
        "HTTP/1.1 200 OK\r\n{FIELDS}content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    match canned {
        Canned::Plain => {
            let body = canned::plain(prompt_tokens);
            let head = format!(
                "HTTP/1.1 200 OK\r\n{FIELDS}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes()).await
        }
        Canned::Stream(events) => {
            let made;
            let chunks = match streams.get(&events) {
                Some(chunks) => chunks,
                None => {
                    made = chunks(events);
                    &made
                }
            };
            stream.write_all(start.as_bytes()).await?;
            for (at, chunk) in chunks.iter().enumerate() {
                // The event with the usage is made for the request.
                if at as u32 + 1 == events {
                    stream.write_all(&chunk_of(&canned::event(at as u32, events, prompt_tokens))).await?;
                } else {
                    stream.write_all(chunk).await?;
                }
            }
            stream.write_all(b"0\r\n\r\n").await
        }
        Canned::Held => {
            stream.write_all(start.as_bytes()).await?;
            stream.write_all(&chunk_of(&canned::first_token(prompt_tokens))).await?;
            // Until whoever asked has gone.
            stream.read(&mut [0]).await.map(drop)
        }
    }
}

/// The events of a stream, and what ends it, as they are written.
fn chunks(events: u32) -> Vec<Bytes> {
    (0..=events).map(|at| chunk_of(&canned::event(at, events, 0))).collect()
}

fn chunk_of(event: &str) -> Bytes {
    format!("{:x}\r\n{event}\r\n", event.len()).into()
}
