//! Requests and answers over one connection, in each of the ways that a server takes images.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tidegate_client::proto::DetectResponse;
use tidegate_wire::websocket::{
    CloseCode, Decoder, Flow, FrameError, Masks, accept_of, encode_binary, encode_close,
};

use super::{
    answer,
    call::{Call, CallError},
    endpoint::{opcode, websocket_path},
    http::{Answer, Head, HttpError, Request},
    images::Image,
    link::{Link, LinkError},
    spec::{Connection, VisionSpec},
};

/// Most bytes of an answer by WebSocket or TCP.
const ANSWER_BYTES_MAX: u32 = 64 << 20;
/// A client of one server, connected while there is something to ask.
pub(super) struct Dialogue<'a> {
    spec: &'a VisionSpec,
    open: Option<Open>,
    /// The request, kept for its memory.
    out: Vec<u8>,
    /// Connections that were made again because the server had closed the one before.
    pub(super) reconnects: u64,
}

enum Open {
    Http(Link),
    WebSocket { link: Link, decoder: Box<Decoder>, masks: Masks },
    Tcp(Link),
    Grpc(Box<Call>),
}

/// An answer before it is looked at.
#[derive(Debug)]
pub(super) enum Reply {
    /// JSON, with the status of HTTP; 200 without it.
    Json { status: u16, text: Vec<u8> },
    /// That of a call.
    Call(Box<DetectResponse>),
}

impl Reply {
    /// Its meaning.
    pub(super) fn answer(&self) -> answer::Answer {
        match self {
            Self::Json { status, text } => answer::Answer::read(*status, text),
            Self::Call(answer) => answer::Answer::of_call(answer),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json { text, .. } => f.write_str(&String::from_utf8_lossy(text)),
            Self::Call(answer) => write!(f, "{answer:?}"),
        }
    }
}

impl<'a> Dialogue<'a> {
    pub(super) fn new(spec: &'a VisionSpec) -> Self {
        Self { spec, open: None, out: Vec::new(), reconnects: 0 }
    }

    /// Connects, if that is not done for each request and has not been done.
    pub(super) fn open(&mut self) -> Result<(), AskError> {
        if self.open.is_none() && !self.spec.connection_per_request {
            self.open = Some(Open::new(self.spec)?);
        }
        Ok(())
    }

    /// Sends an image and reads the answer. After an error the next call connects again.
    pub(super) fn ask(&mut self, image: &Image) -> Result<Reply, AskError> {
        let was_open = self.open.is_some();
        match self.ask_once(image) {
            // A server may close a connection that it has kept for long enough, just when a request is on its way.
            Err(error) if was_open && error.is_ended() => {
                self.reconnects += 1;
                self.ask_once(image)
            }
            asked => asked,
        }
    }

    fn ask_once(&mut self, image: &Image) -> Result<Reply, AskError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => Open::new(self.spec)?,
        };
        self.out.clear();
        let (reply, is_last) = match &mut open {
            Open::Http(link) => rest(self.spec, image, link)?,
            Open::WebSocket { link, decoder, masks } => {
                encode_binary(&image.bytes, Some(masks.next_mask()), &mut self.out);
                link.send(&self.out)?;
                (Reply::Json { status: 200, text: message(link, decoder)? }, false)
            }
            Open::Tcp(link) => {
                let length = u32::try_from(image.bytes.len()).map_err(|_| AskError::TooLarge)?;
                // An endpoint that stands for no operation was refused before any thread began.
                let opcode = opcode(&self.spec.endpoint).unwrap_or_default();
                self.out.extend_from_slice(&opcode.to_be_bytes());
                self.out.extend_from_slice(&length.to_be_bytes());
                self.out.extend_from_slice(&image.bytes);
                link.send(&self.out)?;
                (Reply::Json { status: 200, text: framed(link)? }, false)
            }
            Open::Grpc(call) => (Reply::Call(Box::new(call.ask(image)?)), false),
        };
        if self.spec.connection_per_request {
            open.close();
        } else if !is_last {
            self.open = Some(open);
        }
        Ok(reply)
    }

    /// Ends as the protocol has it.
    pub(super) fn close(mut self) {
        if let Some(open) = self.open.take() {
            open.close();
        }
    }
}

impl Open {
    fn new(spec: &VisionSpec) -> Result<Self, AskError> {
        if spec.connection.is_grpc() {
            return Ok(Self::Grpc(Box::new(Call::open(spec)?)));
        }
        let mut link = spec.target.connect()?;
        Ok(match spec.connection {
            Connection::Tcp => Self::Tcp(link),
            Connection::WebSocket => {
                upgrade(spec, &mut link)?;
                let decoder = Decoder::of_server(Masks::new(random()?));
                let decoder = Box::new(decoder.with_messages(u64::from(ANSWER_BYTES_MAX)));
                Self::WebSocket { link, decoder, masks: Masks::new(random()?) }
            }
            _ => Self::Http(link),
        })
    }

    /// A WebSocket is told; other connections end with the socket.
    fn close(self) {
        if let Self::WebSocket { mut link, mut masks, .. } = self {
            let mut close = Vec::new();
            encode_close(CloseCode::NORMAL, Some(masks.next_mask()), &mut close);
            let _ = link.send(&close); // the server may have gone first
        }
    }
}

fn random<const N: usize>() -> Result<[u8; N], AskError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|source| AskError::Random { source })?;
    Ok(bytes)
}

/// The opening handshake (RFC 6455, section 4.1).
fn upgrade(spec: &VisionSpec, link: &mut Link) -> Result<(), AskError> {
    let key = STANDARD.encode(random::<16>()?);
    let mut headers = format!(
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
    );
    headers += &authorization(spec);
    let request = Request {
        method: "GET",
        path: &websocket_path(&spec.endpoint),
        host: &spec.target.authority(),
        headers: &headers,
    };
    link.send(&request.with_body(&[]))?;
    let head = Head::read(link)?;
    if head.status != 101 {
        return Err(AskError::Refused { status: head.status });
    }
    if head.header("sec-websocket-accept") != accept_of(&key).as_deref() {
        return Err(AskError::NotWebSocket);
    }
    Ok(())
}

fn authorization(spec: &VisionSpec) -> String {
    let line = |value: &String| format!("Authorization: {value}\r\n");
    spec.authorization.as_ref().map(line).unwrap_or_default()
}

fn rest(spec: &VisionSpec, image: &Image, link: &mut Link) -> Result<(Reply, bool), AskError> {
    let mut headers = authorization(spec);
    if spec.connection_per_request {
        headers += "Connection: close\r\n";
    }
    let form;
    let body = if spec.connection == Connection::RestBase64 {
        headers += "Content-Type: application/x-www-form-urlencoded\r\n";
        form = form_of(&image.bytes);
        &form[..]
    } else {
        headers += &format!("Content-Type: {}\r\n", image.media_type);
        &image.bytes[..]
    };
    let host = spec.target.authority();
    let request = Request { method: "POST", path: &spec.endpoint, host: &host, headers: &headers };
    link.send(&request.with_body(body))?;
    let answer = Answer::read(link)?;
    Ok((Reply::Json { status: answer.head.status, text: answer.body }, answer.is_last))
}

/// `image=` and the bytes in base64, with the three characters of base64 escaped that mean something in a form.
fn form_of(bytes: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(bytes);
    let mut form = Vec::with_capacity(text.len() + text.len() / 16 + 6);
    form.extend_from_slice(b"image=");
    for byte in text.bytes() {
        match byte {
            b'+' => form.extend_from_slice(b"%2B"),
            b'/' => form.extend_from_slice(b"%2F"),
            b'=' => form.extend_from_slice(b"%3D"),
            _ => form.push(byte),
        }
    }
    form
}

/// The next message of a WebSocket; pings are answered meanwhile.
fn message(link: &mut Link, decoder: &mut Decoder) -> Result<Vec<u8>, AskError> {
    let (mut out, mut reply) = (Vec::new(), Vec::new());
    loop {
        if link.held().is_empty() {
            link.fill()?;
        }
        let flow = decoder.decode(link.held(), &mut out, &mut reply);
        let held = link.held().len();
        link.skip(held);
        if !reply.is_empty() {
            link.send(&reply)?;
            reply.clear();
        }
        if let Some(end) = decoder.poll_message() {
            // One answer belongs to one request, so nothing stands behind it.
            out.truncate(end.bytes);
            return Ok(out);
        }
        if let Flow::Closed(code) = flow? {
            return Err(AskError::Closed { code });
        }
    }
}

/// The next answer of the persistent TCP protocol.
fn framed(link: &mut Link) -> Result<Vec<u8>, AskError> {
    let length = link.take(4)?;
    let length = u32::from_be_bytes(length.try_into().expect("four bytes were asked for"));
    if length > ANSWER_BYTES_MAX {
        return Err(AskError::TooLarge);
    }
    Ok(link.take(length as usize)?)
}

/// The body of the answer to `GET path` on a connection of its own, such as the server's use of its machine.
pub(super) fn get(spec: &VisionSpec, port: u16, path: &str) -> Result<Vec<u8>, AskError> {
    let target = super::Target { port, ..spec.target.clone() };
    let mut link = target.connect()?;
    let headers = authorization(spec) + "Connection: close\r\n";
    let request = Request { method: "GET", path, host: &target.authority(), headers: &headers };
    link.send(&request.with_body(&[]))?;
    Ok(Answer::read(&mut link)?.body)
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Http(HttpError),
    #[error(transparent)]
    Call(CallError),
    #[error("the WebSocket was refused with {status}")]
    Refused { status: u16 },
    #[error("the server's answer is not that of a WebSocket")]
    NotWebSocket,
    #[error("the WebSocket broke")]
    Frame(#[from] FrameError),
    #[error("the server closed the WebSocket{}", code.map(|code| format!(" with {}", code.0)).unwrap_or_default())]
    Closed { code: Option<CloseCode> },
    #[error("an image or an answer is too large for this connection")]
    TooLarge,
    #[error("the system gives no random bytes")]
    Random { source: getrandom::Error },
}

impl From<HttpError> for AskError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Link(error) => Self::Link(error),
            error => Self::Http(error),
        }
    }
}

impl From<CallError> for AskError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Link(error) => Self::Link(error),
            error => Self::Call(error),
        }
    }
}

impl AskError {
    fn is_ended(&self) -> bool {
        match self {
            Self::Link(error) => error.is_ended(),
            Self::Call(error) => error.is_ended(),
            _ => false,
        }
    }

    /// Whether the server cannot be reached at all.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Link(LinkError::Host { .. } | LinkError::Connect { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_holds_base64_and_nothing_that_means_more() {
        // 0xfb 0xff is "+/8=" in base64.
        assert_eq!(form_of(&[0xfb, 0xff]), b"image=%2B%2F8%3D");
        assert_eq!(form_of(b"abc"), b"image=YWJj");
    }
}
