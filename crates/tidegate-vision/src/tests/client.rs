//! A client of HTTP and of WebSocket for these tests.

use std::net::SocketAddr;

use axum::http::{HeaderMap, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tidegate_wire::websocket::{
    CloseCode, Decoder, Flow, Masks, encode_binary, encode_close, encode_text,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(super) fn header(&self, name: impl header::AsHeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub(super) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    kind: &str,
    body: Bytes,
) -> Reply {
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, "node");
    if !kind.is_empty() {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    send(address, request.body(Full::new(body)).unwrap()).await
}

pub(super) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    try_send(address, request).await.expect("an answer")
}

/// The answer; none where the connection is turned away.
pub(super) async fn try_send(address: SocketAddr, request: Request<Full<Bytes>>) -> Option<Reply> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await.ok()?;
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    connection.abort();
    Some(Reply { status: parts.status, headers: parts.headers, body })
}

/// A WebSocket.
pub(super) struct Socket {
    stream: TcpStream,
    decoder: Decoder,
    messages: Vec<u8>,
    replies: Vec<u8>,
    closed: Option<Option<CloseCode>>,
}

/// An event of the socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    Text(String),
    Closed(Option<CloseCode>),
    Gone,
}

impl Came {
    pub(super) fn json(self) -> serde_json::Value {
        match self {
            Self::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

const MASK: Option<[u8; 4]> = Some([1, 2, 3, 4]);

impl Socket {
    pub(super) async fn open(stream: TcpStream, path: &str) -> Self {
        Self::shake(stream, path).await.expect("an answer")
    }

    /// None where the connection is turned away.
    pub(super) async fn try_open(address: SocketAddr, path: &str) -> Option<Self> {
        Self::shake(TcpStream::connect(address).await.ok()?, path).await
    }

    async fn shake(mut stream: TcpStream, path: &str) -> Option<Self> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: node\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        let decoder = Decoder::of_server(Masks::new([7; 32])).with_messages(1 << 20);
        Some(Self { stream, decoder, messages: Vec::new(), replies: Vec::new(), closed: None })
    }

    pub(super) async fn binary(&mut self, bytes: &[u8]) {
        let mut frame = Vec::new();
        encode_binary(bytes, MASK, &mut frame);
        self.raw(&frame).await;
    }

    pub(super) async fn text(&mut self, text: &str) {
        let mut frame = Vec::new();
        encode_text(text, MASK, &mut frame);
        self.raw(&frame).await;
    }

    pub(super) async fn close(&mut self) {
        let mut frame = Vec::new();
        encode_close(CloseCode::NORMAL, MASK, &mut frame);
        self.raw(&frame).await;
    }

    pub(super) async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Takes some of the bytes that came, unread.
    pub(super) async fn skip(&mut self, count: usize) {
        let mut rest = vec![0; count];
        self.stream.read_exact(&mut rest).await.unwrap();
    }

    pub(super) async fn next(&mut self) -> Came {
        let mut piece = vec![0; 4096];
        loop {
            if let Some(end) = self.decoder.poll_message() {
                assert!(end.is_text, "answers are texts");
                let text = self.messages.drain(..end.bytes).collect();
                return Came::Text(String::from_utf8(text).unwrap());
            }
            if let Some(code) = self.closed {
                return Came::Closed(code);
            }
            let count = match self.stream.read(&mut piece).await {
                Ok(0) | Err(_) => return Came::Gone,
                Ok(count) => count,
            };
            let flow = self.decoder.decode(&piece[..count], &mut self.messages, &mut self.replies);
            if let Flow::Closed(code) = flow.unwrap() {
                self.closed = Some(code);
            }
        }
    }
}
