//! `tidegate.v1.Frames` over gRPC with TLS, in front of [`Cameras`], and other requests of HTTP beside it.
//!
//! ```text
//!  accept ─▶ handshake (a task each, 5 s) ─▶ HTTP/2 connection ─▶ gate (caller) ─▶ Service ─▶ dyn Cameras
//!                          │                        └──────┐
//!                          └─▶ HTTP/1.1 connection ────────┴─▶ gate (caller) ─▶ routers of the node (page, pictures, …)
//! ```
//!
//! [`Plain`] is a listener of its own, without TLS, whose callers are one configured user.
//!
//! Always true: elsewhere no byte of a request is read before the peer's certificate is verified, and none comes without one unless passwords or
//! tokens are accepted; then no byte of a call's body is read whose caller has shown neither, and a connection without either ends after some
//! seconds; every message is checked before it reaches the implementation; a stopped server ends its streams with `ended: shutdown` and is
//! gone after [`GRACE`] at the latest.

mod behalf;
mod connection;
mod detection;
mod gate;
mod health;
mod http1;
mod plain;
mod room;
mod service;
mod status;
mod stream;
mod web;

use std::{io, mem, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use tidegate_api::{ApiError, proto};
use tidegate_identity::{access::Access, callers::Callers};
use tidegate_message::Code;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Status,
    service::{Routes, interceptor::InterceptedService},
    transport::server::Server as Http,
};

pub use self::{
    behalf::IsMember,
    plain::{Plain, PlainSettings},
    web::BodyBound,
};
use self::{
    connection::{Caller, Connected, Entrance, accept},
    detection::DetectService,
    gate::Gates,
    health::HealthService,
    health_stubs::health_server::HealthServer,
    room::Rooms,
    service::Service,
    status::OrStatus as _,
    web::Web,
};
use super::{Admin, Cameras, Detection, unread::KEEP_ALIVE};

/// The generated services of package `tidegate.v1`; their messages are those of `tidegate-api`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod stubs {
    tonic::include_proto!("tidegate.v1");
}

/// The service of `grpc.health.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod health_stubs {
    tonic::include_proto!("grpc.health.v1");
}

/// Protocol names to hand to [`Credentials::server_tls`](tidegate_identity::pki::Credentials::server_tls).
pub const ALPN: &[&[u8]] = &[HTTP2, b"http/1.1"];
const HTTP2: &[u8] = b"h2";

/// How long streams may take to end after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// Bytes of one Publish stream under way: the largest usual frame in one round trip.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
/// Bytes under way on one connection, all its streams together.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
const _: () = assert!(CONNECTION_WINDOW_BYTES >= 2 * STREAM_WINDOW_BYTES);

/// Calls under way on one connection.
const STREAMS_MAX: u32 = 1024;

/// The same of a connection without a certificate: data before its calls authenticate waits within this.
const OPEN_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const OPEN_CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
const OPEN_STREAMS_MAX: u32 = 128;

/// Longest message of a call for descriptions of the API.
const REFLECTION_BYTES_MAX: usize = 64 << 10;

/// Where and as what to serve.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Name of the node, reported to clients.
    pub node: String,
    /// Largest frame accepted in Publish, in bytes.
    pub frame_bytes_max: u64,
    /// Mutual TLS, speaking [`ALPN`].
    pub tls: Arc<rustls::ServerConfig>,
    /// The same for clients that may come without a certificate: while passwords or tokens are taken.
    pub tls_open: Arc<rustls::ServerConfig>,
    /// Authentication and access control.
    pub access: Access,
    /// The paths of HTTP for callers that are known. Each request has the extensions `Arc<Identity>`, its caller, `Arc<dyn Frames>`, those
    /// that it may read, `Arc<dyn Cameras>` and `Arc<dyn Admin>`.
    pub web: Router,
    /// The paths for everybody, such as files of the page. Their requests come without a body.
    pub web_public: Router,
}

/// A server that listens and does not serve yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    config: ServerConfig,
    /// The detection for clients, and the largest image in bytes.
    detection: Option<(Arc<dyn Detection>, usize)>,
    plain: Option<Plain>,
    members: Option<Arc<IsMember>>,
}

impl Server {
    /// Listens on the configured address.
    ///
    /// # Errors
    /// [`ServerError::Bind`] if the address is taken or is none of this machine.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Bind { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, config, detection: None, plain: None, members: None })
    }

    /// Serves `Detect`, too, whose images have at most `image_bytes_max` bytes.
    pub fn add_detection(&mut self, detection: Arc<dyn Detection>, image_bytes_max: usize) {
        self.detection = Some((detection, image_bytes_max));
    }

    /// Lets nodes for which `is_member` is true ask for frames on behalf of their own callers.
    pub fn let_members_ask(&mut self, is_member: Arc<IsMember>) {
        self.members = Some(is_member);
    }

    /// Serves more paths of HTTP beside gRPC: `web` for callers that are known, `web_public` for everybody.
    pub fn add_web(&mut self, web: Router, web_public: Router) {
        let config = &mut self.config;
        config.web = mem::take(&mut config.web).merge(web);
        config.web_public = mem::take(&mut config.web_public).merge(web_public);
    }

    /// Has a listener without TLS beside it.
    pub fn add_plain(&mut self, plain: Plain) {
        self.plain = Some(plain);
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then ends every stream and returns.
    ///
    /// # Errors
    /// [`ServerError::Serve`] if the HTTP/2 server fails as a whole.
    pub async fn serve(
        self,
        cameras: Arc<dyn Cameras>,
        admin: Arc<dyn Admin>,
        stop: CancellationToken,
    ) -> Result<(), ServerError> {
        let callers = Arc::new(Callers::new(self.config.access.clone(), "api"));
        let service = Service::new(
            cameras.clone(),
            admin.clone(),
            &self.config,
            callers.clone(),
            stop.clone(),
        );
        let partial = Arc::new(Rooms::default());
        let bytes_max = self.config.frame_bytes_max;
        let has_detection = self.detection.is_some();
        let image_bytes_max = self.detection.as_ref().map(|(_, bytes_max)| *bytes_max);
        let detection = self.detection.map(|(detection, bytes_max)| {
            (DetectService::new(detection, callers.clone(), stop.clone()), bytes_max)
        });
        let front = (callers.clone(), self.members);
        let gates = Gates::new(service, detection, front, bytes_max, partial.clone());
        let health = health(has_detection, callers.clone(), stop.clone());
        let web = Web {
            node: self.config.node,
            access: self.config.access.clone(),
            callers: callers.clone(),
            cameras,
            admin,
            partial,
            frame_bytes_max: bytes_max,
            image_bytes_max,
        };
        let plain = self.plain.map(|plain| plain.serve(web.clone(), stop.clone()));
        let plain = async {
            if let Some(plain) = plain {
                plain.await;
            }
        };
        let web = web::router(web, self.config.web, self.config.web_public);
        // One connection of each kind waits to be taken up; more wait in the kernel's backlog.
        let (certified, incoming) = mpsc::channel(1);
        let (open, incoming_open) = mpsc::channel(1);
        let (http1, incoming_http1) = mpsc::channel(1);
        let windows = (STREAM_WINDOW_BYTES, CONNECTION_WINDOW_BYTES, STREAMS_MAX);
        let windows_open =
            (OPEN_STREAM_WINDOW_BYTES, OPEN_CONNECTION_WINDOW_BYTES, OPEN_STREAMS_MAX);
        let http = router(&gates, &callers, &web, &health, windows)?.serve_with_incoming_shutdown(
            ReceiverStream::new(incoming),
            stop.clone().cancelled_owned(),
        );
        let http_open = router(&gates, &callers, &web, &health, windows_open)?
            .serve_with_incoming_shutdown(
                ReceiverStream::new(incoming_open),
                stop.clone().cancelled_owned(),
            );
        let http1_served = http1::serve(incoming_http1, web, stop.clone());
        let connected = Connected { certified, open, http1 };
        let entrance = Entrance {
            tls: self.config.tls,
            tls_open: self.config.tls_open,
            access: self.config.access,
        };
        let accepting = accept(self.listener, entrance, connected, stop.clone());
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        let serve = async {
            let (certified, open, (), (), ()) =
                tokio::join!(http, http_open, http1_served, accepting, plain);
            certified.and(open)
        };
        tokio::select! {
            served = serve => served.map_err(ServerError::Serve),
            () = late => {
                tracing::warn!(grace_s = GRACE.as_secs(), "some clients did not end their calls in time");
                Ok(())
            }
        }
    }
}

/// The services and the paths of HTTP over HTTP/2, with so large a window for each stream and each connection, and so many streams of one.
fn router(
    gates: &Gates,
    callers: &Arc<Callers>,
    web: &Router,
    health: &HealthServer<HealthService>,
    (stream, connection, streams): (u32, u32, u32),
) -> Result<tonic::transport::server::Router, ServerError> {
    let v1 = reflection().build_v1().map_err(ServerError::Reflection)?;
    let v1alpha = reflection().build_v1alpha().map_err(ServerError::Reflection)?;
    let callers = callers.clone();
    let may_reflect = move |request| may_reflect(&callers, request);
    let routes = Routes::from(web.clone())
        .add_service(gates.frames.clone())
        .add_service(gates.sessions.clone())
        .add_service(gates.configuration.clone())
        .add_service(gates.fabric.clone())
        .add_service(InterceptedService::new(health.clone(), may_reflect.clone()))
        .add_service(InterceptedService::new(
            v1.max_decoding_message_size(REFLECTION_BYTES_MAX),
            may_reflect.clone(),
        ))
        .add_service(InterceptedService::new(
            v1alpha.max_decoding_message_size(REFLECTION_BYTES_MAX),
            may_reflect,
        ));
    let routes = match &gates.detect {
        Some(detect) => routes.add_service(detect.clone()),
        None => routes,
    };
    Ok(Http::builder()
        .initial_stream_window_size(stream)
        .initial_connection_window_size(connection)
        .max_concurrent_streams(streams)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_routes(routes))
}

/// `grpc.health.v1`, for those who may look: the node serves until `stop`.
fn health(
    has_detection: bool,
    callers: Arc<Callers>,
    stop: CancellationToken,
) -> HealthServer<HealthService> {
    HealthServer::new(HealthService { has_detection, callers, stop })
        .max_decoding_message_size(REFLECTION_BYTES_MAX)
}

/// Lets a call of the reflection service pass, with its caller among its extensions: it says nothing to strangers.
fn may_reflect(callers: &Callers, mut request: Request<()>) -> Result<Request<()>, Status> {
    let caller = request.extensions().get::<Arc<Caller>>().cloned();
    let caller = caller
        .ok_or_else(|| ApiError::new(Code::INTERNAL, "the connection has no peer"))
        .or_status()?;
    let authorization = request.metadata().get("authorization");
    let authorization = authorization.map(|value| value.as_encoded_bytes());
    let identity = callers.may_look(&caller.peer, authorization).or_status()?;
    request.extensions_mut().insert(identity);
    Ok(request)
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
}

/// Why the server could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken or is none of this machine.
    #[error("cannot listen on {address}; free it or set `api_listen` in [node]")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The address for HTTP without TLS is taken or is none of this machine.
    #[error("cannot listen on {address} without TLS; free it or set another `plain` in [web]")]
    Plain {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The HTTP/2 server failed as a whole.
    #[error("the API server failed")]
    Serve(#[source] tonic::transport::Error),
    /// The compiled-in descriptors are damaged.
    #[error("the descriptors of the API cannot be read")]
    Reflection(#[source] tonic_reflection::server::Error),
}

impl From<ServerError> for ApiError {
    fn from(error: ServerError) -> Self {
        let code = match error {
            ServerError::Bind { .. } | ServerError::Plain { .. } => Code::CONFIG_INVALID,
            ServerError::Serve(_) | ServerError::Reflection(_) => Code::INTERNAL,
        };
        Self::new(code, "the API is not served").caused_by(error)
    }
}

#[cfg(test)]
mod tests;
