//! WebSockets: a binary message is an image, an answer is a text.
//!
//! ```text
//!  socket ─▶ Decoder ─▶ buffer of the message ─▶ under way, at most a window of them ─▶ answers as they come ─▶ socket
//!              └────────── while the window is full nothing is read: the other end's TCP waits
//! ```
//!
//! A socket that is silent holds no buffer: bytes are read into one of the thread's and unmasked into one that is taken when a message
//! begins.
//!
//! Always true: at most a window of images of one socket is under way; bytes of messages are charged to the caller, those of echoes until they
//! are written; a socket that is silent
//! for too long is closed, and one whose caller may no longer do it; one for which there is no room is closed with 1013 and the reason.

use std::{
    any::Any,
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use futures::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt as _},
};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tidegate_identity::{access::Identity, auth::limits::Lease};
use tidegate_message::Action;
use tidegate_ports::{DetectError, Image};
use tidegate_wire::{
    NodeId,
    websocket::{CloseCode, Decoder, Flow, MessageEnd, accept_of, encode_close_with, encode_text},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    Place, Vision,
    budget::{Budget, Charge, NoRoom},
    buffers::{Buffer, Buffers},
    paper::{self, Call},
    refused::{Refused, RequestError},
};

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes that are decoded at a time, so that few messages wait however small they are. The rest is decoded once those are under way.
const PIECE_BYTES: usize = 8 << 10;
/// Bytes that a message costs in addition to its own.
const MESSAGE_BYTES: usize = 256;
/// Bytes of an id before an image.
const ID_BYTES: usize = 8;
/// How long the last words, and the other end's close, may take.
const FAREWELL: Duration = Duration::from_secs(2);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// The language of a socket.
#[derive(Clone, Debug)]
pub(crate) enum Speech {
    /// Answers are those of `POST /v1/detect/NAME` with an id: that of the message, or its number, counted from 0.
    Detect { model: Arc<str>, has_ids: bool },
    /// Answers are those of the paper's server, in the order of the messages; texts are echoed.
    Classic(Call),
}

impl Speech {
    /// Images that may be under way of `window`.
    fn window(&self, window: usize) -> usize {
        match self {
            Self::Detect { .. } => window,
            Self::Classic(_) => 1,
        }
    }
}

/// The place of a connection at its listener, which counts it as long as a WebSocket over it is open; an extension of its requests.
#[derive(Clone)]
pub(crate) struct Connection {
    _place: Arc<dyn Any + Send + Sync>,
}

impl Connection {
    pub(crate) fn new(place: Arc<dyn Any + Send + Sync>) -> Self {
        Self { _place: place }
    }
}

/// The outcome of a message.
#[derive(Debug)]
enum Said {
    Text(String),
    Close(CloseCode, String),
}

/// Answers the request for a WebSocket, which a task of its own then serves.
///
/// # Errors
/// [`Refused`].
pub(crate) fn open(
    vision: &Vision,
    identity: Arc<Identity>,
    mut request: Request,
    speech: Speech,
) -> Result<Response<Body>, Refused> {
    let answer = accept(request.headers())?;
    let (lease, place) = (vision.enter(&identity)?, vision.place()?);
    let connection = request.extensions().get::<Connection>().cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    let vision = vision.clone();
    vision.clone().0.sockets.spawn(async move {
        let stop = vision.0.stop.clone();
        let upgraded = tokio::select! {
            () = stop.cancelled() => return,
            upgraded = upgrade => upgraded,
        };
        match upgraded {
            Ok(io) => {
                let socket = Socket::new(vision, identity, speech, TokioIo::new(io));
                socket.serve((lease, place)).await;
            }
            Err(error) => tracing::debug!(%error, "a WebSocket did not open"),
        }
        drop(connection);
    });
    Ok(answer)
}

/// The response that accepts a WebSocket. No extension is agreed on: of permessage-deflate each connection would hold a window, and a
/// message could be a bomb.
fn accept(headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let lists = |name: HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
    };
    let is_upgrade = lists(header::UPGRADE, "websocket") && lists(header::CONNECTION, "upgrade");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok());
    let accept = key.and_then(accept_of).filter(|_| is_upgrade);
    let accept = accept.filter(|_| lists(header::SEC_WEBSOCKET_VERSION, "13"));
    let accept = accept.ok_or(Refused::Upgrade)?;
    let accept: HeaderValue = accept.try_into().expect("base64 is what a header may hold");
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().extend([
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ]);
    Ok(answer)
}

/// A message that is there.
struct Message {
    bytes: Bytes,
    is_text: bool,
    charge: Charge,
    since: Instant,
}

/// The messages that come.
struct Incoming {
    decoder: Decoder,
    /// The message that is coming, and when it began.
    buffer: Option<(Buffer, Charge, Instant)>,
    /// Messages that are there and not under way yet: those that came in one piece with the last one of the window.
    waiting: VecDeque<Message>,
    /// Bytes behind that piece.
    undecoded: Option<(Bytes, Charge)>,
    /// Length of the last one: the next is likely as long.
    usual: usize,
    caller: NodeId,
    budget: Arc<Budget>,
    buffers: Arc<Buffers>,
}

/// Why nothing more is read.
enum Over {
    /// The connection is gone.
    Gone,
    /// The other end closed, or broke the protocol: the answer to it is the last frame.
    Closed,
    /// The messages find no room.
    NoRoom(NoRoom),
}

impl Incoming {
    /// Reads what is there, and appends the answers of the protocol to `out`.
    ///
    /// # Cancel safety
    /// Cancel safe: it waits for the socket and for nothing else.
    async fn read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        out: &mut Vec<u8>,
    ) -> Result<(), Over> {
        if let Some((mut bytes, charge)) = self.undecoded.take() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            if !bytes.is_empty() {
                self.undecoded = Some((bytes, charge));
            }
            return self.decode(&piece, out);
        }
        poll_fn(|context| {
            SCRATCH.with_borrow_mut(|scratch| {
                let mut read = ReadBuf::new(scratch);
                let polled = ready!(Pin::new(&mut *io).poll_read(context, &mut read));
                Poll::Ready(match polled {
                    Ok(()) if !read.filled().is_empty() => self.receive(read.filled(), out),
                    Ok(()) | Err(_) => Err(Over::Gone),
                })
            })
        })
        .await
    }

    /// Decodes up to the end of the first piece with which a message is there.
    fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Over> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(PIECE_BYTES));
            rest = after;
            self.decode(piece, out)?;
            if !self.waiting.is_empty() && !rest.is_empty() {
                let mut charge = self.budget.open(self.caller);
                charge.hold(rest.len()).map_err(Over::NoRoom)?;
                self.undecoded = Some((Bytes::copy_from_slice(rest), charge));
                return Ok(());
            }
        }
        Ok(())
    }

    fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Over> {
        let now = Instant::now();
        let fresh = || (self.buffers.take(self.usual), self.budget.open(self.caller), now);
        let (buffer, charge, _) = self.buffer.get_or_insert_with(fresh);
        let flow = self.decoder.decode(bytes, buffer, out);
        let mut ends = std::iter::from_fn(|| self.decoder.poll_message());
        match ends.next() {
            Some(first) => {
                let rest: Vec<MessageEnd> = ends.collect();
                let (mut buffer, mut charge, since) = self.buffer.take().expect("it was put there");
                // The bytes behind the message came with its last piece, so that they are few.
                let tail = buffer[first.bytes..].to_vec();
                buffer.truncate(first.bytes);
                charge.hold(first.bytes + MESSAGE_BYTES).map_err(Over::NoRoom)?;
                self.usual = first.bytes;
                let is_text = first.is_text;
                self.waiting.push_back(Message {
                    bytes: buffer.into_bytes(),
                    is_text,
                    charge,
                    since,
                });
                let mut tail = &tail[..];
                for MessageEnd { bytes, is_text } in rest {
                    let (message, after) = tail.split_at(bytes);
                    let mut charge = self.budget.open(self.caller);
                    charge.hold(bytes + MESSAGE_BYTES).map_err(Over::NoRoom)?;
                    let bytes = Bytes::copy_from_slice(message);
                    self.waiting.push_back(Message { bytes, is_text, charge, since: now });
                    tail = after;
                }
                if !tail.is_empty() {
                    let (mut buffer, mut charge) =
                        (self.buffers.take(self.usual), self.budget.open(self.caller));
                    charge.hold(tail.len()).map_err(Over::NoRoom)?;
                    buffer.extend_from_slice(tail);
                    self.buffer = Some((buffer, charge, now));
                }
            }
            None if buffer.is_empty() => self.buffer = None,
            None => charge.hold(buffer.len()).map_err(Over::NoRoom)?,
        }
        match flow {
            Ok(Flow::Open) => Ok(()),
            Ok(Flow::Closed(_)) => Err(Over::Closed),
            Err(error) => {
                tracing::debug!(%error, "a WebSocket broke the protocol");
                Err(Over::Closed)
            }
        }
    }
}

/// An open WebSocket.
struct Socket<S> {
    vision: Vision,
    identity: Arc<Identity>,
    speech: Speech,
    io: S,
    incoming: Incoming,
    under_way: FuturesUnordered<BoxFuture<'static, Said>>,
    out: Vec<u8>,
    /// Charges of echoes in `out`.
    unwritten: Vec<Charge>,
    messages: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    fn new(vision: Vision, identity: Arc<Identity>, speech: Speech, io: S) -> Self {
        let bytes_max = vision.0.settings.image_bytes_max + ID_BYTES;
        let incoming = Incoming {
            decoder: Decoder::of_client().with_messages(bytes_max as u64),
            buffer: None,
            waiting: VecDeque::new(),
            undecoded: None,
            usual: 0,
            caller: identity.key,
            budget: vision.0.receiver.budget.clone(),
            buffers: vision.0.receiver.buffers.clone(),
        };
        let (under_way, out, unwritten) = (FuturesUnordered::new(), Vec::new(), Vec::new());
        Self { vision, identity, speech, io, incoming, under_way, out, unwritten, messages: 0 }
    }

    /// Serves it until it ends. The lease of its caller and its place are `held` as long.
    async fn serve(mut self, held: (Lease, Place)) {
        let stop = self.vision.0.stop.clone();
        let silent_max = self.vision.0.settings.request_timeout;
        let idle_max = self.vision.0.settings.idle_timeout;
        let window = self.speech.window(self.vision.0.settings.window).max(1);
        let mut last = Instant::now();
        // Once it is set, nothing more is read, and what is under way is still answered.
        let mut closing: Option<(CloseCode, String)> = None;
        loop {
            while closing.is_none()
                && self.under_way.len() < window
                && let Some(message) = self.incoming.waiting.pop_front()
            {
                closing = self.begin(message).err();
            }
            if !self.out.is_empty() {
                // A client that does not read its answers is not waited for.
                let written = timeout(silent_max, self.io.write_all(&self.out)).await;
                if !matches!(written, Ok(Ok(()))) {
                    return;
                }
                self.out.clear();
                self.out.shrink_to(READ_BYTES);
                self.unwritten = Vec::new();
            }
            if let Some((code, reason)) = closing.take_if(|_| self.under_way.is_empty()) {
                encode_close_with(code, &reason, &mut self.out);
                break;
            }
            let may_read = closing.is_none() && self.under_way.len() < window;
            let allowed = if self.incoming.buffer.is_some() { silent_max } else { idle_max };
            tokio::select! {
                Some(said) = self.under_way.next(), if !self.under_way.is_empty() => {
                    last = Instant::now();
                    match said {
                        Said::Text(text) => encode_text(&text, None, &mut self.out),
                        Said::Close(code, reason) => {
                            closing.get_or_insert((code, reason));
                        }
                    }
                }
                read = self.incoming.read(&mut self.io, &mut self.out), if may_read => {
                    last = Instant::now();
                    match read {
                        Ok(()) => {}
                        Err(Over::Gone) => return,
                        Err(Over::Closed) => break,
                        Err(Over::NoRoom(error)) => {
                            closing = Some((CloseCode::TRY_AGAIN_LATER, error.to_string()));
                        }
                    }
                }
                () = sleep_until(last + allowed), if may_read && self.under_way.is_empty() => {
                    let text = format!("nothing came for {} s", allowed.as_secs());
                    closing = Some((CloseCode::NORMAL, text));
                }
                () = stop.cancelled(), if closing.is_none() => {
                    closing = Some((CloseCode::AWAY, "the node stops".to_owned()));
                }
            }
        }
        self.farewell().await;
        drop(held);
    }

    /// Begins to answer a message.
    ///
    /// # Errors
    /// The close that is the answer.
    fn begin(&mut self, message: Message) -> Result<(), (CloseCode, String)> {
        let number = self.messages;
        self.messages += 1;
        match self.speech.clone() {
            Speech::Detect { model, has_ids } => self.detect(message, &model, has_ids, number),
            Speech::Classic(call) => self.classic(message, call),
        }
    }

    fn detect(
        &mut self,
        message: Message,
        model: &Arc<str>,
        has_ids: bool,
        number: u64,
    ) -> Result<(), (CloseCode, String)> {
        let Message { bytes, is_text, charge, since } = message;
        let refused = |refused: Refused| (CloseCode::POLICY, refused.message());
        self.vision.may(&self.identity, Action::Detect, model).map_err(refused)?;
        let (id, image) = match (has_ids, bytes.first_chunk::<ID_BYTES>()) {
            _ if is_text => (number, Err(RequestError::Text)),
            (false, _) => (number, Ok(bytes)),
            (true, Some(id)) => (u64::from_be_bytes(*id), Ok(bytes.slice(ID_BYTES..))),
            (true, None) => (number, Err(RequestError::Id { found: bytes.len() })),
        };
        let image = match image {
            Ok(image) => image,
            Err(error) => {
                encode_text(&failure(&error.into(), id), None, &mut self.out);
                return Ok(());
            }
        };
        let (vision, identity, model) = (self.vision.clone(), self.identity.clone(), model.clone());
        self.under_way.push(Box::pin(async move {
            let image = Image::Encoded(image);
            let looked = vision.look(&identity, &model, image, since).await;
            drop(charge);
            match looked {
                Ok(detected) => Said::Text(detected.json(Some(id))),
                Err(refused) => said(&refused, || failure(&refused, id)),
            }
        }));
        Ok(())
    }

    fn classic(&mut self, message: Message, call: Call) -> Result<(), (CloseCode, String)> {
        let Message { bytes, is_text, charge, since } = message;
        if is_text {
            let text = paper::echo(&bytes)
                .ok_or_else(|| (CloseCode::NOT_UTF8, "the text is not UTF-8".to_owned()))?;
            encode_text(text, None, &mut self.out);
            self.unwritten.push(charge);
            return Ok(());
        }
        let refused = |refused: Refused| (CloseCode::POLICY, refused.message());
        self.vision
            .may(&self.identity, Action::Detect, call.model(&self.vision.0.settings))
            .map_err(refused)?;
        let (vision, identity) = (self.vision.clone(), self.identity.clone());
        self.under_way.push(Box::pin(async move {
            let answered = paper::streamed(&vision, &identity, call, bytes, since).await;
            drop(charge);
            match answered {
                Ok(text) => Said::Text(text),
                Err(refused) => said(&refused, || paper::refused_text(&refused)),
            }
        }));
        Ok(())
    }

    /// Sends the last words and waits for the other end's close: what is still unread would else take them away from it.
    async fn farewell(mut self) {
        let said = async {
            self.io.write_all(&self.out).await?;
            self.io.shutdown().await?;
            let mut unread = vec![0; 4096];
            while self.io.read(&mut unread).await? > 0 {}
            Ok::<_, io::Error>(())
        };
        // One that is gone, or takes too long, has heard enough.
        let _ = timeout(FAREWELL, said).await;
    }
}

/// A refusal as the answer to a message: where requests wait already, the socket is closed, so that its client comes again later.
fn said(refused: &Refused, text: impl FnOnce() -> String) -> Said {
    match refused {
        Refused::Detect(DetectError::Busy { .. }) => {
            Said::Close(CloseCode::TRY_AGAIN_LATER, refused.message())
        }
        _ => Said::Text(text()),
    }
}

/// `{"error": {"code", "message"}, "id"}`.
fn failure(refused: &Refused, id: u64) -> String {
    json!({ "error": refused.json(), "id": id }).to_string()
}

#[cfg(test)]
mod tests {
    use tidegate_wire::websocket::encode_binary;

    use super::*;

    #[test]
    fn however_small_messages_are_few_wait_and_each_is_charged() {
        let (budget, caller) = (Arc::new(Budget::new(1 << 20)), NodeId([1; 32]));
        let mut incoming = Incoming {
            decoder: Decoder::of_client().with_messages(1000),
            buffer: None,
            waiting: VecDeque::new(),
            undecoded: None,
            usual: 0,
            caller,
            budget: budget.clone(),
            buffers: Arc::default(),
        };
        let has_room_for = |bytes: usize| budget.open(NodeId([2; 32])).hold(bytes).is_ok();
        let all = (1 << 20) / 4 * 3;
        let (mut frames, mut out, mut count) = (Vec::new(), Vec::new(), 0);
        while frames.len() < READ_BYTES {
            encode_binary(b"", Some([0; 4]), &mut frames);
            count += 1;
        }
        assert!(incoming.receive(&frames, &mut out).is_ok());
        let mut came = 0;
        while !incoming.waiting.is_empty() {
            let waiting = incoming.waiting.len();
            assert!(waiting <= PIECE_BYTES / 6 + 1, "{waiting} wait");
            assert!(!has_room_for(all - waiting * MESSAGE_BYTES / 2), "they are charged");
            came += waiting;
            incoming.waiting.clear();
            if incoming.undecoded.is_some() {
                let mut silent = tokio::io::empty();
                let read = futures::FutureExt::now_or_never(incoming.read(&mut silent, &mut out));
                assert!(matches!(read, Some(Ok(()))), "the rest is there");
            }
        }
        assert_eq!(came, count);
        assert!(incoming.buffer.is_none() && has_room_for(all), "all of it is given back");
    }
}
