//! An HTTP/2 client without TLS, as a client library has it: with `h2` itself, so that streams can be reset.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response as HttpResponse};
use tokio::net::TcpStream;

use super::client::Response;
use super::wire::Head;
use super::within;

/// A connection.
pub struct H2 {
    sender: SendRequest<Bytes>,
}

/// A stream whose request is being sent.
pub struct Stream {
    response: ResponseFuture,
    body: SendStream<Bytes>,
}

/// Whether a request states its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    Stated,
    Unstated,
}

/// A POST on its own connection.
pub async fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8], length: Length) -> Response {
    let h2 = H2::connect(address).await;
    let mut stream = h2.post(path, headers, body.len(), length).await;
    // If the proxy stops reading, its answer says why.
    let _ = stream.send(body, true).await;
    stream.response().await.expect("the POST is answered")
}

// === impl H2 ===

impl H2 {
    pub async fn connect(address: SocketAddr) -> Self {
        let tcp = TcpStream::connect(address).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        let (sender, connection) = within("the HTTP/2 handshake", h2::client::handshake(tcp)).await.unwrap();
        tokio::spawn(async move {
            // Its end is seen by the streams.
            let _ = connection.await;
        });
        Self { sender }
    }

    /// Begins a POST of `body_bytes`.
    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body_bytes: usize, length: Length) -> Stream {
        let mut request = Request::post(format!("http://test{path}"));
        if length == Length::Stated {
            request = request.header("content-length", body_bytes);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut sender = within("a free stream", self.sender.clone().ready()).await.unwrap();
        let (response, body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        Stream { response, body }
    }
}

// === impl Stream ===

impl Stream {
    /// Sends a part of the body as the window allows.
    pub async fn send(&mut self, mut body: &[u8], is_end: bool) -> Result<(), h2::Error> {
        while !body.is_empty() {
            self.body.reserve_capacity(body.len());
            let granted = within("a window", std::future::poll_fn(|cx| self.body.poll_capacity(cx))).await;
            let room = granted.ok_or(Reason::CANCEL)??.min(body.len());
            let (part, rest) = body.split_at(room);
            body = rest;
            self.body.send_data(Bytes::copy_from_slice(part), is_end && body.is_empty())?;
            if body.is_empty() {
                return Ok(());
            }
        }
        if is_end { self.body.send_data(Bytes::new(), true) } else { Ok(()) }
    }

    /// The head of the response, and its body to be read.
    pub async fn head(self) -> Result<(Head, RecvStream, SendStream<Bytes>), h2::Error> {
        let (head, body) = within("a response", self.response).await?.into_parts();
        Ok((as_head(&HttpResponse::from_parts(head, ())), body, self.body))
    }

    pub async fn response(self) -> Result<Response, h2::Error> {
        let (head, mut receive, _send) = self.head().await?;
        let mut body = Vec::new();
        while let Some(data) = within("a part of the response", receive.data()).await {
            let data = data?;
            receive.flow_control().release_capacity(data.len())?;
            body.extend_from_slice(&data);
        }
        Ok(Response { status: head.second_word().parse().unwrap(), head, body })
    }

    /// Cancels the stream.
    pub fn reset(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }
}

fn as_head(response: &HttpResponse<()>) -> Head {
    let headers = response.headers().iter();
    let headers =
        headers.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    Head { start_line: format!("HTTP/2 {}", response.status().as_u16()), headers: headers.collect(), raw: Vec::new() }
}
