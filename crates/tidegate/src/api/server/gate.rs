//! What stands before the calls: who makes one is found out by its headers, before a byte of its body is read.
//!
//! ```text
//!  HTTP/2 stream ─▶ headers ─▶ Callers ─▶ body, metered ─▶ decoding ─▶ Service
//!                              (401 here)
//! ```
//!
//! Always true: no message of a call is decoded whose caller is not known; a message is no longer than its method may have; what all
//! streams hold of messages that have not come whole is bounded, of each connection and of all.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tidegate_client::{
    MESSAGE_BYTES_MAX,
    proto::{frames_server::FramesServer, sessions_server::SessionsServer},
};
use tidegate_message::Code;
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service as TowerService, http},
    server::NamedService,
};

use super::{
    caller::{Callers, Peer},
    service::Service,
};
use crate::api::ApiError;

/// Longest message of a call that carries no frame.
const SMALL_BYTES_MAX: usize = 1 << 20;
/// What a message that carries a frame has beside it.
const BESIDE_FRAME_BYTES: usize = 1 << 20;
/// Bytes of messages that have not come whole: of one connection, and of all.
const PARTIAL_BYTES_OF_PEER: usize = 64 << 20;
const PARTIAL_BYTES: usize = 256 << 20;
/// A gRPC message begins with a flag and its length.
const PREFIX_BYTES: usize = 5;

/// The services whose callers are asked who they are.
#[derive(Clone)]
pub(super) struct Gates {
    pub(super) frames: Gate<FramesServer<Service>>,
    pub(super) sessions: Gate<SessionsServer<Service>>,
}

impl Gates {
    /// Before `service`, of whose frames none is longer than `frame_bytes_max`.
    pub(super) fn new(service: Service, callers: Arc<Callers>, frame_bytes_max: u64) -> Self {
        let service = Arc::new(service);
        let frame = usize::try_from(frame_bytes_max).unwrap_or(MESSAGE_BYTES_MAX);
        let publish_max = frame.saturating_add(BESIDE_FRAME_BYTES).min(MESSAGE_BYTES_MAX);
        let frames = |bytes_max| {
            FramesServer::from_arc(service.clone())
                .max_decoding_message_size(bytes_max)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
        let sessions = SessionsServer::from_arc(service.clone())
            .max_decoding_message_size(SMALL_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let partial = Arc::new(Room::new(PARTIAL_BYTES));
        Self {
            frames: Gate {
                publish: Some(frames(publish_max)),
                others: frames(SMALL_BYTES_MAX),
                callers: callers.clone(),
                partial: partial.clone(),
            },
            sessions: Gate { publish: None, others: sessions, callers, partial },
        }
    }
}

/// A service behind its gate.
#[derive(Clone)]
pub(super) struct Gate<S> {
    /// Takes the calls whose messages carry frames, if it has such.
    publish: Option<S>,
    others: S,
    callers: Arc<Callers>,
    partial: Arc<Room>,
}

impl<S: NamedService> NamedService for Gate<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> TowerService<http::Request<Body>> for Gate<S>
where
    S: NamedService + Clone + Send + 'static,
    S: TowerService<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send,
    Self: Sync,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let gate = self.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let Some(peer) = parts.extensions.get::<Arc<Peer>>().cloned() else {
                let error = ApiError::new(Code::INTERNAL, "the connection has no peer");
                return Ok(Status::from(error).into_http());
            };
            let authorization = parts.headers.get(http::header::AUTHORIZATION);
            let authorization = authorization.map(|value| value.as_bytes());
            match gate.callers.known(&peer, authorization).await {
                Ok(identity) => parts.extensions.insert(identity),
                Err(status) => return Ok(status.into_http()),
            };
            let rooms = [peer.partial.clone(), gate.partial];
            let body = Body::new(Metered { body, message: Message::default(), held: 0, rooms });
            let is_publish = parts.uri.path().strip_prefix('/').is_some_and(|path| {
                path.strip_prefix(S::NAME).is_some_and(|method| method == "/Publish")
            });
            let mut server = match gate.publish {
                Some(publish) if is_publish => publish,
                _ => gate.others,
            };
            server.call(http::Request::from_parts(parts, body)).await
        })
    }
}

/// Bytes that may be held.
#[derive(Debug)]
pub(crate) struct Room {
    limit: usize,
    used: AtomicUsize,
}

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Of one connection.
    pub(super) fn of_peer() -> Self {
        Self::new(PARTIAL_BYTES_OF_PEER)
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// How much of the message that is coming is there.
#[derive(Debug, Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of it, the prefix among them.
    came: usize,
}

impl Message {
    /// So much came; bytes of a message that is not whole after that.
    fn came(&mut self, mut data: &[u8]) -> usize {
        while !data.is_empty() {
            if self.came < PREFIX_BYTES {
                let count = data.len().min(PREFIX_BYTES - self.came);
                self.prefix[self.came..self.came + count].copy_from_slice(&data[..count]);
                self.came += count;
                data = &data[count..];
            } else {
                let count = data.len().min(self.length() - self.came);
                self.came += count;
                data = &data[count..];
            }
            if self.came >= PREFIX_BYTES && self.came == self.length() {
                self.came = 0;
            }
        }
        self.came
    }

    /// Its length, with its prefix, once that is there.
    fn length(&self) -> usize {
        let [_, length @ ..] = self.prefix;
        PREFIX_BYTES.saturating_add(u32::from_be_bytes(length) as usize)
    }
}

/// A body whose messages that are not whole are charged.
struct Metered {
    body: Body,
    message: Message,
    held: usize,
    rooms: [Arc<Room>; 2],
}

impl Metered {
    /// Holds `bytes` from now on; false if there is no room.
    fn hold(&mut self, bytes: usize) -> bool {
        let [own, all] = &self.rooms;
        if bytes <= self.held {
            own.give(self.held - bytes);
            all.give(self.held - bytes);
        } else {
            let more = bytes - self.held;
            if !own.take(more) {
                return false;
            }
            if !all.take(more) {
                own.give(more);
                return false;
            }
        }
        self.held = bytes;
        true
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let partial = self.message.came(data);
            if !self.hold(partial) {
                let text = "too much is being received in messages that are not whole; try again";
                return Poll::Ready(Some(Err(ApiError::new(Code::LIMIT_REACHED, text).into())));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.hold(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_come_whole_is_counted_whatever_the_pieces_are() {
        let mut bytes = Vec::new();
        for length in [0_usize, 3, 70_000, 1] {
            bytes.push(0);
            bytes.extend((length as u32).to_be_bytes());
            bytes.extend(vec![7; length]);
        }
        for piece in [1, 4, 5, 9, 16_384, bytes.len()] {
            let mut message = Message::default();
            let mut most = 0;
            for data in bytes.chunks(piece) {
                most = most.max(message.came(data));
            }
            assert_eq!(message.came, 0, "all are whole, in pieces of {piece}");
            assert!(piece > 9 || most > 69_000, "{most}");
        }
        let mut message = Message::default();
        assert_eq!(message.came(&[0, 255, 255, 255, 255, 1, 2]), 7, "announced is not come");
    }

    #[test]
    fn a_room_gives_no_more_than_it_has() {
        let rooms = [Arc::new(Room::new(10)), Arc::new(Room::new(15))];
        let body = || Metered {
            body: Body::empty(),
            message: Message::default(),
            held: 0,
            rooms: rooms.clone(),
        };
        let (mut one, mut two) = (body(), body());
        assert!(one.hold(8) && !two.hold(3) && two.hold(2));
        assert!(one.hold(3) && two.hold(7) && !two.hold(8));
        drop((one, two));
        assert_eq!(rooms.map(|room| room.used.load(Ordering::Relaxed)), [0, 0]);
    }
}
