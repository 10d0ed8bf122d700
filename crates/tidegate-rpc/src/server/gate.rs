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
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tidegate_api::{ApiError, MESSAGE_BYTES_MAX};
use tidegate_identity::callers::Callers;
use tidegate_message::Code;
use tokio::time::Sleep;
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service as TowerService, http},
    server::NamedService,
};

use super::{
    behalf::{self, IsMember},
    connection::Caller,
    detection::DetectService,
    room::{Holding, Room, Rooms},
    service::Service,
    status::{OrStatus as _, status},
    stubs::{
        configuration_server::ConfigurationServer, detect_server::DetectServer,
        fabric_server::FabricServer, frames_server::FramesServer, sessions_server::SessionsServer,
    },
};

/// Longest message of a call that carries no frame.
const SMALL_BYTES_MAX: usize = 1 << 20;
/// Bytes of a message with a frame in addition to the frame.
const BESIDE_FRAME_BYTES: usize = 1 << 20;
/// A message of which nothing came for this long ends once others lacked the room that it has.
const STALLED: Duration = Duration::from_secs(10);
/// A gRPC message begins with a flag and its length.
const PREFIX_BYTES: usize = 5;

/// The services whose callers are asked who they are.
#[derive(Clone)]
pub(super) struct Gates {
    pub(super) frames: Gate<FramesServer<Service>>,
    pub(super) sessions: Gate<SessionsServer<Service>>,
    pub(super) configuration: Gate<ConfigurationServer<Service>>,
    pub(super) fabric: Gate<FabricServer<Service>>,
    pub(super) detect: Option<Gate<DetectServer<DetectService>>>,
}

impl Gates {
    /// Before `service`, of whose frames none is longer than `frame_bytes_max`, and before `detection` with its largest image.
    pub(super) fn new(
        service: Service,
        detection: Option<(DetectService, usize)>,
        (callers, members): (Arc<Callers>, Option<Arc<IsMember>>),
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
        let fabric = FabricServer::from_arc(service.clone())
            .max_decoding_message_size(SMALL_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let detect = detection.map(|(detection, image_bytes_max)| Gate {
            publish: None,
            others: DetectServer::new(detection)
                .max_decoding_message_size(image_bytes_max.saturating_add(BESIDE_FRAME_BYTES))
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
            callers: callers.clone(),
            members: members.clone(),
            partial: partial.clone(),
        });
        Self {
            frames: Gate {
                publish: Some(frames(publish_max)),
                others: frames(SMALL_BYTES_MAX),
                callers: callers.clone(),
                members: members.clone(),
                partial: partial.clone(),
            },
            sessions: Gate {
                publish: None,
                others: sessions,
                callers: callers.clone(),
                members: members.clone(),
                partial: partial.clone(),
            },
            configuration: Gate {
                publish: None,
                others: configuration,
                callers: callers.clone(),
                members: members.clone(),
                partial: partial.clone(),
            },
            fabric: Gate { publish: None, others: fabric, callers, members, partial },
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
    /// Those that may ask for others; none where this node is a member of no fabric.
    members: Option<Arc<IsMember>>,
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
            let known = gate.callers.known(&caller.peer, authorization).await;
            let known = known
                .and_then(|known| behalf::caller(known, &parts.headers, gate.members.as_deref()));
            let identity = match known.or_status() {
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
}
