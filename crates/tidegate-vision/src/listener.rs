//! Plain listeners: the paths over HTTP, with TLS if that is wanted, or the persistent protocol over TCP, for programs that know no login.
//!
//! Every caller has the rights of one configured user. Callers at different addresses have turns and memory of their own, as different
//! callers of the API have.
//!
//! Always true: at most so many connections are open, half of them at most from one address; a connection that is silent, or does not read
//! its answers, is ended; a page of another site changes nothing and opens no WebSocket.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode, Uri},
    response::IntoResponse as _,
    routing::get,
};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tidegate_api::ApiError;
use tidegate_identity::access::Identity;
use tidegate_identity::auth::Admitted;
use tidegate_message::{
    Code, IdentityKind,
    origins::{Foreign, Origins},
};
use tidegate_process::{
    arrivals::{TurnedAway, network},
    clock,
    descriptors::Front,
    http1::{self, HeadBounds, RequestBody},
    newcomers::{Newcomer, Newcomers},
    pages::{self, Pages},
    places::{Place, Places},
};
use tidegate_rpc::{openapi, unread};
use tidegate_wire::NodeId;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    Refused, Vision, classic, inference, refused::json_answer, router, socket::Connection,
};

/// Lines of a request's head, and its bytes.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 64 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests may take to end after a stop.
const GRACE: Duration = Duration::from_secs(2);

/// The language of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and WebSocket: all paths of [`router`].
    Http,
    /// The persistent protocol of the paper's server.
    Tcp,
}

/// Where and for whom to listen.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The language.
    pub protocol: Protocol,
    /// TLS, if it is spoken; no certificate is asked for.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The user whose rights every caller has.
    pub user: String,
    /// The pages of other sites that may ask.
    pub origins: Origins,
    /// Connections at a time, at least 2; half of them at most from one address.
    pub connections_max: usize,
}

/// A listener that does not serve yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    settings: ListenerSettings,
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// [`ListenError`] if the address is taken or is none of this machine.
    pub async fn bind(settings: ListenerSettings) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, settings })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, and then until the requests under way have ended, or two seconds.
    #[boxed]
    pub async fn serve(self, vision: Vision, stop: CancellationToken) {
        let Self { listener, settings, .. } = self;
        let pages = Pages::new("vision", settings.origins.clone(), settings.tls.is_some());
        let http = router(vision.clone())
            .route("/v1/openapi.json", get(openapi::serve))
            .fallback(not_found);
        let http = TowerToHyperService::new(http);
        let served = Arc::new(Served { vision, http, pages, settings, stop: stop.clone() });
        let (mut connections, turned_away) = (JoinSet::new(), TurnedAway::default());
        let (mut places, most) = (Places::default(), served.settings.connections_max);
        let newcomers = Newcomers::of_places(most);
        loop {
            let may_accept = places.taken() < most;
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => report(ended),
                // A WebSocket has left its task, and gives its place back unseen.
                () = sleep(ACCEPT_PAUSE), if !may_accept => {}
                accepted = listener.accept(), if may_accept => match accepted {
                    Ok((socket, peer)) => {
                        let Some(place) = places.take(peer.ip(), most, Front::Vision) else {
                            turned_away.one(clock::now(), peer, Front::Vision);
                            continue;
                        };
                        let newcomer = newcomers.begin(peer.ip());
                        connections.spawn(served.clone().greet(socket, peer, place, newcomer));
                    }
                    Err(error) => {
                        // Most likely out of file descriptors: wait for some to come free.
                        tracing::warn!(%error, "connections for detection cannot be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        let drain = async {
            while let Some(ended) = connections.join_next().await {
                report(ended);
            }
        };
        // The remaining connections are aborted.
        let _ = timeout(GRACE, drain).await;
    }
}

async fn not_found(uri: Uri) -> Response<Body> {
    let message = "there is no such path; see /v1/openapi.json";
    if inference::is_path(uri.path()) {
        return inference::error(StatusCode::NOT_FOUND, message);
    }
    let error = json!({ "code": Code::DETECT_INVALID.as_str(), "message": message });
    json_answer(StatusCode::NOT_FOUND, &json!({ "error": error }))
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection for detection broke; this is a bug");
    }
}

/// A listener that serves.
struct Served {
    vision: Vision,
    http: TowerToHyperService<Router>,
    pages: Pages,
    settings: ListenerSettings,
    stop: CancellationToken,
}

impl Served {
    async fn greet(
        self: Arc<Self>,
        socket: TcpStream,
        peer: SocketAddr,
        place: Place,
        newcomer: Newcomer,
    ) {
        let unread_max = self.vision.0.settings.request_timeout;
        let set_up = socket.set_nodelay(true).and_then(|()| unread::limit(&socket, unread_max));
        if let Err(error) = set_up {
            tracing::debug!(%error, %peer, "a connection for detection was not set up");
            return;
        }
        let identity = Arc::new(identity(&self.settings.user, peer.ip()));
        let Some(tls) = &self.settings.tls else {
            return match self.settings.protocol {
                // Its clients may wait for their first image, and have `idle_timeout` for that.
                Protocol::Tcp => {
                    drop(newcomer);
                    self.converse(socket, peer, identity, place).await;
                }
                Protocol::Http => {
                    self.converse(newcomer.over(socket), peer, identity, place).await;
                }
            };
        };
        let silent_max = self.vision.0.settings.request_timeout;
        let acceptor = TlsAcceptor::from(tls.clone());
        let shaken = tokio::select! {
            () = self.stop.cancelled() => return,
            () = newcomer.gives_way() => return,
            shaken = timeout(silent_max, acceptor.accept(socket)) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => self.converse(newcomer.over(stream), peer, identity, place).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "a TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
        }
    }

    async fn converse(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        identity: Arc<Identity>,
        place: Place,
    ) {
        let place = Arc::new(place);
        let served = match self.settings.protocol {
            Protocol::Tcp => {
                let stop = self.stop.clone();
                classic::converse(&self.vision, &identity, stream, stop).await.map_err(Ended::Tcp)
            }
            Protocol::Http => self.http(stream, peer, identity, &place).await.map_err(Ended::Http),
        };
        if let Err(error) = served {
            tracing::debug!(%error, %peer, "a connection for detection broke off");
        }
    }

    async fn http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        identity: Arc<Identity>,
        place: &Arc<Place>,
    ) -> hyper::Result<()> {
        let answer = async |mut request: Request<RequestBody>| {
            if let Err(foreign) = self.pages.check(&request, peer) {
                return refusal(&foreign, request.uri().path());
            }
            if let Some(answer) = self.pages.allowed(&request) {
                return answer;
            }
            let reader = self.pages.reader(request.headers());
            request.extensions_mut().insert(identity.clone());
            // A WebSocket keeps it, which lives longer than the connection's task.
            request.extensions_mut().insert(Connection::new(place.clone()));
            let Ok(mut answer) = self.http.call(request.map(Body::new)).await;
            if let Some(reader) = reader {
                pages::readable(answer.headers_mut(), reader);
            }
            answer
        };
        let head = HeadBounds {
            bytes_max: HEAD_BYTES_MAX,
            lines_max: HEADERS_MAX,
            time_max: self.vision.0.settings.request_timeout,
        };
        http1::converse(stream, head, answer, &self.stop).await
    }
}

/// The answer to a request that does not count: here is no login, and a browser is no proof that its user wants it.
fn refusal(foreign: &Foreign, path: &str) -> Response<Body> {
    let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
    if inference::is_path(path) {
        return inference::error(status, &foreign.to_string());
    }
    let error = ApiError::new(Code::ACTION_DENIED, foreign.to_string());
    let mut answer = Refused::Denied(error).into_response();
    *answer.status_mut() = status;
    answer
}

/// How a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the persistent protocol ended: {0}")]
    Tcp(io::Error),
    #[error("HTTP ended: {0}")]
    Http(hyper::Error),
}

/// The caller at that address, with the rights of `user`.
fn identity(user: &str, address: IpAddr) -> Identity {
    // Nothing proves that a program of this machine is its administrator, who may do more from here.
    let shown = Some(address).filter(|address| !address.to_canonical().is_loopback());
    let who = tidegate_message::Identity {
        address: shown,
        ..tidegate_message::Identity::new(IdentityKind::User, user, "vision")
    };
    let key = NodeId(Sha256::digest(format!("user {user} at {}", network(address))).into());
    // The configuration vouches for it, as an authority does for a certificate: no password can change under it.
    Identity { key, ..Identity::of_user(Admitted::by_certificate(who)) }
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for detection; free it or set another one in [vision]")]
pub struct ListenError {
    /// The configured address.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}
