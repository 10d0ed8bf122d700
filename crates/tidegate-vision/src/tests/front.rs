//! The paths of detection behind the node's API, which bounds, times and charges the bodies before they come here.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use axum::{
    body::Body,
    http::{Request, header},
};
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tidegate_api::{
    ApiError, Changes, EndSessions, FeedbackOf, Registration, ReloadedConfiguration, SessionInfo,
    SessionsPage, SubscriptionId, UnsubscribeStatus, Verdict,
};
use tidegate_identity::{
    access::{Access, Identity},
    pki::{self, InitRequest, NODE_SERVER_NAME},
};
use tidegate_message::{CameraName, Code, Demand, Instant};
use tidegate_ports::{Frames, memory};
use tidegate_rpc::{
    Admin, BodyError, Cameras, FabricDesk, Router, Server, ServerConfig, server::ALPN,
};
use tidegate_wire::NodeId;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Echo, client::Reply, images};
use crate::{Refused, Vision, VisionSettings, router};

const IMAGE_BYTES_MAX: usize = 4 << 20;

/// A node without cameras.
struct Bare;

fn nothing<T>() -> Result<T, ApiError> {
    Err(ApiError::new(Code::INTERNAL, "this node has images alone"))
}

#[async_trait]
impl Admin for Bare {
    async fn sessions(&self, _: &Identity, _: SessionsPage) -> Result<Vec<SessionInfo>, ApiError> {
        nothing()
    }

    async fn end_sessions(&self, _: &Identity, _: EndSessions) -> Result<u64, ApiError> {
        nothing()
    }

    async fn reload_configuration(&self, _: &Identity) -> Result<ReloadedConfiguration, ApiError> {
        nothing()
    }

    fn fabric(&self, _: &Arc<Identity>) -> Result<FabricDesk, ApiError> {
        nothing()
    }
}

#[async_trait]
impl Cameras for Bare {
    fn frames(self: Arc<Self>, _: Arc<Identity>) -> Arc<dyn Frames> {
        Arc::new(memory::Cameras::default())
    }

    async fn register(&self, _: &Identity, _: Registration) -> Result<(), ApiError> {
        nothing()
    }

    async fn unregister(&self, _: &Identity, _: &CameraName) -> Result<(), ApiError> {
        nothing()
    }

    async fn publish(
        &self,
        _: &Identity,
        _: &CameraName,
        _: Option<Instant>,
        _: Bytes,
    ) -> Result<Instant, ApiError> {
        nothing()
    }

    async fn update(
        &self,
        _: &Identity,
        _: SubscriptionId,
        _: Changes,
    ) -> Result<Demand, ApiError> {
        nothing()
    }

    async fn unsubscribe(
        &self,
        _: &Identity,
        _: SubscriptionId,
    ) -> Result<UnsubscribeStatus, ApiError> {
        nothing()
    }

    async fn feedback(
        &self,
        _: &Identity,
        _: FeedbackOf,
    ) -> Result<mpsc::Receiver<Verdict>, ApiError> {
        nothing()
    }
}

/// An API that serves the paths of detection, and whose frames are much smaller than its images.
struct Front {
    folder: tempfile::TempDir,
    address: SocketAddr,
    _serves: DropGuard,
}

impl Front {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        pki::init(folder.path(), &InitRequest::default()).unwrap();
        let credentials = pki::load(folder.path(), "edge").unwrap();
        let stop = CancellationToken::new();
        let settings =
            VisionSettings { image_bytes_max: IMAGE_BYTES_MAX, ..VisionSettings::default() };
        let vision = Vision::with(settings, Echo::usual(), Access::default(), stop.clone());
        let config = ServerConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            node: "edge".to_owned(),
            frame_bytes_max: 1 << 10,
            tls: Arc::new(credentials.server_tls(ALPN).unwrap()),
            tls_open: Arc::new(credentials.server_tls_open(ALPN).unwrap()),
            access: Access::default(),
            web: router(vision.clone()),
            web_public: Router::new(),
        };
        let mut server = Server::bind(config).await.unwrap();
        server.add_detection(Arc::new(vision), IMAGE_BYTES_MAX);
        let address = server.address();
        tokio::spawn(server.serve(Arc::new(Bare), Arc::new(Bare), stop.clone()));
        Self { folder, address, _serves: stop.drop_guard() }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let client = pki::load(self.folder.path(), "application").unwrap();
        let client = client.client_tls(b"http/1.1").unwrap();
        let socket = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        connector.connect(NODE_SERVER_NAME.try_into().unwrap(), socket).await.unwrap()
    }

    /// Posts a body of that length over a connection of its own.
    async fn post(&self, path: &str, announced: usize, body: Body) -> Reply {
        let stream = TokioIo::new(self.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::post(path)
            .header(header::HOST, "node")
            .header(header::CONTENT_TYPE, "image/jpeg")
            .header(header::CONTENT_LENGTH, announced);
        let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        connection.abort();
        Reply { status: parts.status, headers: parts.headers, body }
    }
}

/// An image of so many bytes.
fn image(bytes: usize) -> Vec<u8> {
    let mut image = images::jpeg(180, 240);
    image.resize(bytes, 7);
    image
}

/// The begin of a body, of which no more comes.
fn stalled() -> Body {
    let begin = futures::stream::iter([Ok::<_, BodyError>(Bytes::from(images::jpeg(9, 9)))]);
    Body::from_stream(begin.chain(futures::stream::pending()))
}

#[tokio::test]
async fn images_over_the_api_are_as_large_as_the_settings_say_and_speed_tests_larger() {
    let front = Front::start().await;
    let large = image(IMAGE_BYTES_MAX);
    let reply = front.post("/v1/detect/face", large.len(), large.into()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let longer = front.post("/v1/detect/face", IMAGE_BYTES_MAX + 1, stalled()).await;
    assert_eq!(longer.status, 413, "{longer:?}");
    assert_eq!(longer.json()["error"]["code"], "vision.image.too_large");
    let much = vec![7; 10 << 20];
    let reply = front.post("/uploaddata/", much.len(), much.into()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["bytes_read"], 10 << 20);
    let too_much = front.post("/uploaddata/", (1 << 30) + 1, stalled()).await;
    assert_eq!(too_much.status, 413, "{too_much:?}");
}

#[tokio::test]
async fn a_body_that_the_api_finds_too_slow_is_answered_so() {
    for path in ["/v1/detect/face", "/uploaddata/"] {
        let front = Front::start().await;
        let mut stream = front.connect().await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: node\r\nContent-Type: image/jpeg\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut text, asked) = (String::new(), "HTTP/1.1 100 Continue\r\n\r\n");
        while text.len() < asked.len() {
            text.push(stream.read_u8().await.unwrap().into());
        }
        assert_eq!(text, asked, "the body is waited for");
        // Time passes as fast as nothing else happens.
        tokio::time::pause();
        text.clear();
        while !text.contains("too slowly") {
            text.push(stream.read_u8().await.expect(&text).into());
        }
        tokio::time::resume();
        assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    }
}

#[tokio::test]
async fn bodies_that_the_api_refuses_are_answered_by_their_reason() {
    let full = BodyError::Full;
    let too_long = BodyError::TooLong { bytes_max: 9 };
    for (error, status, code, retries) in [
        (BodyError::Slow, 408, "vision.request.invalid", ""),
        (full, 429, "limit.reached", "1"),
        (too_long, 413, "vision.image.too_large", ""),
        (BodyError::Broken, 400, "vision.request.invalid", ""),
    ] {
        let vision = Vision::with(
            VisionSettings::default(),
            Echo::usual(),
            Access::default(),
            CancellationToken::new(),
        );
        let pieces = [Ok(Bytes::from_static(b"x")), Err(error)];
        let body = Body::from_stream(futures::stream::iter(pieces));
        let refused = vision.0.receiver.collect(NodeId([1; 32]), body, 1000).await.unwrap_err();
        assert!(matches!(refused, Refused::Body(found) if found == error), "{refused}");
        let answer = axum::response::IntoResponse::into_response(refused);
        let retry_after = answer.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.map_or("", |value| value.to_str().unwrap());
        assert_eq!((answer.status().as_u16(), retry_after), (status, retries), "{error}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(json["error"]["code"], code);
    }
}
