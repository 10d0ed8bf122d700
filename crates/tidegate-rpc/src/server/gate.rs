//! The gate before the calls: a caller is authenticated by its headers, before a byte of its body is read.
//!
//! ```text
//!  HTTP/2 stream ─▶ headers ─▶ Callers ─▶ body, metered ─▶ decoding ─▶ Service
//!                              (401 here)
//! ```
//!
//! Always true: no message of a call is decoded whose caller is not known; a message is no longer than its method may have; the
//! bytes of incomplete messages in all streams are bounded, of each connection, of each caller and of all.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tidegate_api::{ApiError, MESSAGE_BYTES_MAX};
use tidegate_identity::callers::Callers;
use tidegate_message::Code;
use tidegate_wire::NodeId;
use tokio::time::Sleep;
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service as TowerService, http},
    server::NamedService,
};

use super::{
    connection::Caller,
    detection::DetectService,
    service::Service,
    status::{OrStatus as _, status},
    stubs::{
        configuration_server::ConfigurationServer, detect_server::DetectServer,
        frames_server::FramesServer, sessions_server::SessionsServer,
    },
};

/// Longest message of a call that carries no frame.
const SMALL_BYTES_MAX: usize = 1 << 20;
/// Bytes of a message with a frame in addition to the frame.
const BESIDE_FRAME_BYTES: usize = 1 << 20;
/// Bytes of messages that have not come whole: of one connection, of one caller over all of them, and of all.
pub(super) const PARTIAL_BYTES_OF_PEER: usize = 64 << 20;
const PARTIAL_BYTES_OF_CALLER: usize = 128 << 20;
const PARTIAL_BYTES: usize = 256 << 20;
/// A message of which nothing came for this long ends once others lacked the room that it has.
const STALLED: Duration = Duration::from_secs(10);
/// Callers that are remembered without a look whether they still call.
const CALLERS_SWEPT: usize = 256;
/// A gRPC message begins with a flag and its length.
const PREFIX_BYTES: usize = 5;

/// The services whose callers are asked who they are.
#[derive(Clone)]
pub(super) struct Gates {
    pub(super) frames: Gate<FramesServer<Service>>,
    pub(super) sessions: Gate<SessionsServer<Service>>,
    pub(super) configuration: Gate<ConfigurationServer<Service>>,
    pub(super) detect: Option<Gate<DetectServer<DetectService>>>,
}

impl Gates {
    /// Before `service`, of whose frames none is longer than `frame_bytes_max`, and before `detection` with its largest image.
    pub(super) fn new(
        service: Service,
        detection: Option<(DetectService, usize)>,
        callers: Arc<Callers>,
        frame_bytes_max: u64,
        partial: Arc<Rooms>,
    ) -> Self {
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
        let configuration = ConfigurationServer::from_arc(service.clone())
            .max_decoding_message_size(SMALL_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let detect = detection.map(|(detection, image_bytes_max)| Gate {
            publish: None,
            others: DetectServer::new(detection)
                .max_decoding_message_size(image_bytes_max.saturating_add(BESIDE_FRAME_BYTES))
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
            callers: callers.clone(),
            partial: partial.clone(),
        });
        Self {
            frames: Gate {
                publish: Some(frames(publish_max)),
                others: frames(SMALL_BYTES_MAX),
                callers: callers.clone(),
                partial: partial.clone(),
            },
            sessions: Gate {
                publish: None,
                others: sessions,
                callers: callers.clone(),
                partial: partial.clone(),
            },
            configuration: Gate { publish: None, others: configuration, callers, partial },
            detect,
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
    partial: Arc<Rooms>,
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
            let Some(caller) = parts.extensions.get::<Arc<Caller>>().cloned() else {
                let error = ApiError::new(Code::INTERNAL, "the connection has no peer");
                return Ok(status(error).into_http());
            };
            let authorization = parts.headers.get(http::header::AUTHORIZATION);
            let authorization = authorization.map(|value| value.as_bytes());
            let identity = match gate.callers.known(&caller.peer, authorization).await.or_status() {
                Ok(identity) => identity,
                Err(status) => return Ok(status.into_http()),
            };
            let of_caller = gate.partial.of(identity.key);
            parts.extensions.insert(identity);
            let rooms = [caller.partial.clone(), of_caller, gate.partial.all.clone()];
            let body = Body::new(Metered::new(body, rooms));
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

/// Where bytes may be held.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) all: Arc<Room>,
    by_caller: Mutex<HashMap<NodeId, Weak<Room>>>,
}

impl Default for Rooms {
    fn default() -> Self {
        Self { all: Arc::new(Room::new(PARTIAL_BYTES)), by_caller: Mutex::default() }
    }
}

impl Rooms {
    /// The room of a caller, over whatever connections it calls.
    pub(super) fn of(&self, caller: NodeId) -> Arc<Room> {
        let mut rooms = self.by_caller.lock().expect("no panic while it is held");
        if let Some(room) = rooms.get(&caller).and_then(Weak::upgrade) {
            return room;
        }
        if rooms.len() >= CALLERS_SWEPT {
            rooms.retain(|_, room| room.strong_count() > 0);
        }
        let room = Arc::new(Room::new(PARTIAL_BYTES_OF_CALLER));
        rooms.insert(caller, Arc::downgrade(&room));
        room
    }
}

/// Bytes that may be held.
#[derive(Debug)]
pub(super) struct Room {
    limit: usize,
    used: AtomicUsize,
    /// How often there was too little for a call.
    refused: AtomicU64,
}

impl Room {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0), refused: AtomicU64::new(0) }
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

/// Bytes that a body holds of what all may hold together.
#[derive(Debug)]
pub(super) struct Holding {
    held: usize,
    /// Of its connection, of its caller, and of all.
    rooms: [Arc<Room>; 3],
}

impl Holding {
    pub(super) fn new(rooms: [Arc<Room>; 3]) -> Self {
        Self { held: 0, rooms }
    }

    /// Holds `bytes` from now on; false if there is no room.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        if bytes <= self.held {
            self.rooms.iter().for_each(|room| room.give(self.held - bytes));
        } else {
            let more = bytes - self.held;
            if let Some(full) = self.rooms.iter().position(|room| !room.take(more)) {
                self.rooms[..full].iter().for_each(|room| room.give(more));
                self.note_refused();
                return false;
            }
            if !self.is_within_share() {
                self.rooms.iter().for_each(|room| room.give(more));
                self.note_refused();
                return false;
            }
        }
        self.held = bytes;
        true
    }

    /// Holds so many more; false if there is no room.
    pub(super) fn hold_more(&mut self, bytes: usize) -> bool {
        self.hold(self.held.saturating_add(bytes))
    }

    /// Whether its caller has at most three quarters of what all others leave: there is something for the next, however many call.
    fn is_within_share(&self) -> bool {
        let [_, caller, all] = &self.rooms;
        let own = caller.used.load(Ordering::Acquire);
        let others = all.used.load(Ordering::Acquire).saturating_sub(own);
        own <= all.limit.saturating_sub(others) / 4 * 3
    }

    fn note_refused(&self) {
        self.rooms[2].refused.fetch_add(1, Ordering::AcqRel);
    }

    /// How often there was no room for others.
    fn refused(&self) -> u64 {
        self.rooms[2].refused.load(Ordering::Acquire)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// A body whose messages that are not whole are charged.
struct Metered {
    body: Body,
    message: Message,
    holding: Holding,
    /// When it is to be looked at whether it has stalled, and how often others had lacked room when something came last.
    stall: Option<(Pin<Box<Sleep>>, u64)>,
}

impl Metered {
    fn new(body: Body, rooms: [Arc<Room>; 3]) -> Self {
        Self { body, message: Message::default(), holding: Holding::new(rooms), stall: None }
    }

    /// Whether a message that has begun brings nothing, while others lack the room that it has.
    fn has_stalled(&mut self, context: &mut Context<'_>) -> bool {
        if self.holding.held == 0 {
            self.stall = None;
            return false;
        }
        let refused = self.holding.refused();
        let (sleep, seen) =
            self.stall.get_or_insert_with(|| (Box::pin(tokio::time::sleep(STALLED)), refused));
        while sleep.as_mut().poll(context).is_ready() {
            if *seen < refused {
                return true;
            }
            *seen = refused;
            sleep.as_mut().reset(tokio::time::Instant::now() + STALLED);
        }
        false
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            if self.has_stalled(context) {
                let text =
                    "nothing more came of a message, and others need the memory; send it again";
                return Poll::Ready(Some(Err(status(ApiError::new(Code::LIMIT_REACHED, text)))));
            }
            return Poll::Pending;
        };
        self.stall = None;
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let partial = self.message.came(data);
            if !self.holding.hold(partial) {
                let text = "too much is being received in messages that are not whole; try again";
                return Poll::Ready(Some(Err(status(ApiError::new(Code::LIMIT_REACHED, text)))));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_messages_are_counted_in_pieces_of_any_size() {
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
        let rooms = [10, 12, 16].map(|limit| Arc::new(Room::new(limit)));
        let body = Holding::new;
        let (mut one, mut two) = (body(rooms.clone()), body(rooms.clone()));
        assert!(one.hold(8) && !two.hold(3) && two.hold(2));
        assert!(one.hold(3) && two.hold(7) && !two.hold(8));
        // Over another connection, and of another caller.
        let peer = || Arc::new(Room::new(10));
        let mut other = body([peer(), rooms[1].clone(), rooms[2].clone()]);
        assert!(other.hold(2) && !other.hold(3));
        let mut another = body([peer(), Arc::new(Room::new(12)), rooms[2].clone()]);
        assert!(another.hold(3) && !another.hold(4));
        drop((one, two, other, another));
        assert_eq!(rooms.map(|room| room.used.load(Ordering::Relaxed)), [0, 0, 0]);
    }

    #[test]
    fn however_many_callers_there_are_the_next_finds_room() {
        let rooms = Rooms::default();
        let body = |caller: u8| {
            let rooms =
                [Arc::new(Room::of_peer()), rooms.of(NodeId([caller; 32])), rooms.all.clone()];
            Holding::new(rooms)
        };
        let mut greedy = Vec::new();
        for caller in 0..6 {
            for _ in 0..200 {
                let mut body = body(caller);
                if body.hold(1 << 20) {
                    greedy.push(body);
                }
            }
        }
        assert!(greedy.len() > 200 && rooms.all.refused.load(Ordering::Relaxed) > 0);
        let frame = 256 << 10;
        assert!(body(6).hold(frame), "{} MiB are taken", greedy.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_stalls_ends_once_others_lack_its_room() {
        use futures::StreamExt as _;
        use http_body_util::BodyExt as _;

        let rooms = || [15, 15, 15].map(|limit| Arc::new(Room::new(limit)));
        for others_lack in [false, true] {
            let rooms = rooms();
            let part = Ok::<_, Status>(Frame::data(Bytes::from_static(&[0, 0, 0, 0, 9, 1, 2, 3])));
            let parts = futures::stream::iter([part]).chain(futures::stream::pending());
            let body = Body::new(http_body_util::StreamBody::new(parts));
            let mut stalls = Metered::new(body, rooms.clone());
            assert!(stalls.frame().await.unwrap().is_ok());
            if others_lack {
                tokio::spawn(async move {
                    tokio::time::sleep(STALLED / 2).await;
                    let peer = Arc::new(Room::new(15));
                    let other = [peer, Arc::new(Room::new(15)), rooms[2].clone()];
                    assert!(!Holding::new(other).hold(10));
                });
            }
            let ended = tokio::time::timeout(10 * STALLED, stalls.frame()).await;
            match ended {
                Ok(Some(Err(status))) => {
                    assert!(others_lack && status.message().contains("nothing more came"));
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => assert!(!others_lack, "it goes on holding what others need"),
            }
        }
    }

    #[test]
    fn a_caller_has_one_room_over_all_its_connections() {
        let rooms = Rooms::default();
        let caller = |number: u8| NodeId([number; 32]);
        let first = rooms.of(caller(1));
        assert!(Arc::ptr_eq(&first, &rooms.of(caller(1))));
        assert!(!Arc::ptr_eq(&first, &rooms.of(caller(2))));
        for number in 0..10 * CALLERS_SWEPT {
            let [high, low] = (number as u16).to_be_bytes();
            let mut id = [3; 32];
            id[..2].copy_from_slice(&[high, low]);
            rooms.of(NodeId(id));
        }
        assert!(rooms.by_caller.lock().unwrap().len() <= CALLERS_SWEPT + 1);
        assert!(Arc::ptr_eq(&first, &rooms.of(caller(1))), "it is still there");
    }
}
