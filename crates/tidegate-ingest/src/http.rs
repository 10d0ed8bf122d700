//! HTTP/1.1: lines as InfluxDB's clients send them, and payloads under the name of their topic.
//!
//! | request | is |
//! |---|---|
//! | `POST /write`, `POST /api/v2/write` | lines of InfluxDB's protocol |
//! | `POST /ingest/TOPIC` | a payload, or several |
//! | `GET /ingest` | the opening of a WebSocket |
//! | `GET /ping`, `GET /health` | whether someone listens |
//!
//! Always true: 204 is said after the broker has taken all of it; a body is not read beyond the listener's bound, and all bodies
//! together hold at most [`HELD_BYTES`].

mod body;
mod lines;
mod post;

use std::{io, net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{self, HeaderValue},
};
use tidegate_api::ApiError;
use tidegate_identity::callers::Peer;
use tidegate_message::{Code, origins::Foreign};
use tidegate_process::{
    arrivals::TurnedAway,
    clock,
    descriptors::Front,
    http1::{self, HeadBounds, RequestBody},
    newcomers::{Newcomer, Newcomers},
    pages,
    places::{Place, Places},
};
use tidegate_wire::mqtt::path::NODE_HEADER;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Context, IngestError, IngestKind, Live, Parts,
    counters::add,
    message::Message,
    publisher::{Publisher, PublisherTask},
    refused::Refused,
    senders::{Caller, Senders},
    spawn,
};

/// Bytes of all bodies that are held at a time.
const HELD_BYTES: usize = 64 << 20;
/// Messages of one request: each takes some hundred bytes in addition to those of the body.
const MESSAGES_MAX: usize = 20_000;
/// Lines of a request's head, and its bytes.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests may take to end after a stop.
const GRACE: Duration = Duration::from_secs(2);

type Answer = Response<Full<Bytes>>;

pub(super) fn start(
    (context, stop, pulse): Parts,
    listener: std::net::TcpListener,
) -> Result<JoinHandle<()>, IngestError> {
    let name = context.live().settings.name.clone();
    let failed = |source| IngestError::Start { name: name.clone(), source };
    listener.set_nonblocking(true).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    spawn(&name, move || {
        let served = runtime.block_on(async {
            let beating = tokio::spawn(pulse.keep());
            let served = serve(context.clone(), listener, stop).await;
            beating.abort();
            served
        });
        if let Err(error) = served {
            tracing::error!(ingest = %context.live().settings.name, %error, "the listener ended");
        }
    })
}

/// State that requests share.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) context: Arc<Context>,
    pub(super) senders: Senders,
    pub(super) publisher: Publisher,
    /// Of bodies, in KiB.
    held: Semaphore,
    /// WebSockets, which outlive the request that opened them.
    pub(super) upgraded: TaskTracker,
    pub(super) stop: CancellationToken,
}

async fn serve(
    context: Arc<Context>,
    listener: std::net::TcpListener,
    stop: CancellationToken,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let live = context.live();
    let (name, session) = (live.settings.name.clone(), live.settings.session.clone());
    drop(live);
    let (task, publisher, _) = PublisherTask::new(context.bus.clone(), name, None, session);
    // It answers those who are still here after the stop.
    let last = CancellationToken::new();
    let publishing = tokio::spawn(task.run(last.clone()));
    let http = Arc::new(Http {
        senders: Senders::new(context.clone()),
        context: context.clone(),
        publisher,
        held: Semaphore::new(HELD_BYTES >> 10),
        upgraded: TaskTracker::new(),
        stop: stop.clone(),
    });
    let mut connections = JoinSet::new();
    let mut places = Places::default();
    let newcomers = Newcomers::of_places(context.live().settings.connections_max);
    let turned_away = TurnedAway::default();
    loop {
        let may_accept = places.taken() < context.live().settings.connections_max;
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next() => report(ended),
            () = sleep(ACCEPT_PAUSE), if !may_accept => {}
            accepted = listener.accept(), if may_accept => match accepted {
                Ok((socket, peer)) => {
                    add(&context.counters.connections, 1);
                    let most = context.live().settings.connections_max;
                    let Some(place) = places.take(peer.ip(), most, Front::Ingest) else {
                        turned_away.one(clock::now(), peer, Front::Ingest);
                        continue;
                    };
                    let from = (peer, Arc::new(place), newcomers.begin(peer.ip()));
                    connections.spawn(greet(http.clone(), socket, from, stop.clone()));
                }
                Err(error) => {
                    // Most likely out of file descriptors: wait for some to come free.
                    tracing::warn!(%error, "connections to ingest cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    let drain = async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
        http.upgraded.close();
        http.upgraded.wait().await;
    };
    // The remaining connections are aborted.
    let _ = timeout(GRACE, drain).await;
    drop(connections);
    last.cancel();
    publishing.await.map_err(io::Error::other)
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection to ingest broke; this is a bug");
    }
}

/// Where a connection comes from, its place, which it keeps as a WebSocket, and that it has had no answer yet.
type Origin = (SocketAddr, Arc<Place>, Newcomer);

/// Serves a connection, by TLS where it is spoken.
async fn greet(http: Arc<Http>, socket: TcpStream, from: Origin, stop: CancellationToken) {
    let live = http.context.live();
    let Some(tls) = &live.settings.tls else {
        return converse(http, socket, from, stop).await;
    };
    let address = from.0;
    let (acceptor, most) = (TlsAcceptor::from(tls.config.clone()), live.settings.request_timeout);
    drop(live);
    let shaken = tokio::select! {
        () = stop.cancelled() => return,
        () = from.2.gives_way() => return,
        shaken = timeout(most, acceptor.accept(socket)) => shaken,
    };
    match shaken {
        Ok(Ok(stream)) => converse(http, stream, from, stop).await,
        Ok(Err(error)) => {
            add(&http.context.counters.denied, 1);
            tracing::debug!(%error, %address, "a TLS handshake with ingest failed");
        }
        Err(_) => add(&http.context.counters.timed_out, 1),
    }
}

/// Answers one connection's requests, until it is silent for too long.
async fn converse<S>(
    http: Arc<Http>,
    stream: S,
    (address, place, newcomer): Origin,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let silent_max = http.context.live().settings.request_timeout;
    let peer = Arc::new(Peer::new(address, None));
    let answer = |mut request: Request<RequestBody>| {
        let (http, peer) = (http.clone(), peer.clone());
        request.extensions_mut().insert(place.clone());
        async move { http.answer(request, &peer, address).await }
    };
    let head =
        HeadBounds { bytes_max: HEAD_BYTES_MAX, lines_max: HEADERS_MAX, time_max: silent_max };
    if let Err(error) = http1::converse(newcomer.over(stream), head, answer, &stop).await {
        if error.is_timeout() {
            add(&http.context.counters.timed_out, 1);
        }
        tracing::debug!(%error, %address, "a connection to ingest broke off");
    }
}

impl Http {
    async fn answer(
        self: &Arc<Self>,
        request: Request<RequestBody>,
        peer: &Peer,
        address: SocketAddr,
    ) -> Answer {
        let live = self.context.live();
        if let Err(foreign) = live.pages.check(&request, address) {
            return self.foreign(&foreign);
        }
        if let Some(answer) = live.pages.allowed(&request) {
            return answer;
        }
        let reader = live.pages.reader(request.headers());
        drop(live);
        let mut answer = self.answer_own(request, peer, address).await;
        if let Some(reader) = reader {
            pages::readable(answer.headers_mut(), reader);
        }
        answer
    }

    /// Answers a request that no page has made which may not.
    async fn answer_own(
        self: &Arc<Self>,
        request: Request<RequestBody>,
        peer: &Peer,
        address: SocketAddr,
    ) -> Answer {
        let path = request.uri().path().to_owned();
        let is = |method: Method| *request.method() == method;
        let is_read = is(Method::GET) || is(Method::HEAD);
        let answered = match &*path {
            "/ping" if is_read => return plain(StatusCode::NO_CONTENT),
            "/health" if is_read => {
                let body = r#"{"name":"tidegate","status":"pass"}"#;
                return json(StatusCode::OK, body.to_owned());
            }
            "/ingest" if is(Method::GET) => self.open(request, peer, address).await,
            _ if self.context.live().settings.kind == IngestKind::WebSocket => {
                return self.not_here(StatusCode::NOT_FOUND, "");
            }
            "/write" | "/api/v2/write" if is(Method::POST) => {
                let answered = self.lines(request, peer, address).await;
                return self.with_node(self.answered(answered));
            }
            _ if path.starts_with("/ingest/") && is(Method::POST) => {
                self.post(request, peer, address).await
            }
            "/ping" | "/health" => return self.not_here(StatusCode::METHOD_NOT_ALLOWED, "GET"),
            "/write" | "/api/v2/write" => {
                return self.not_here(StatusCode::METHOD_NOT_ALLOWED, "POST");
            }
            _ if path.starts_with("/ingest/") => {
                return self.not_here(StatusCode::METHOD_NOT_ALLOWED, "POST");
            }
            _ => return self.not_here(StatusCode::NOT_FOUND, ""),
        };
        self.answered(answered)
    }

    fn answered(&self, answered: Result<Answer, Refused>) -> Answer {
        answered.unwrap_or_else(|refused| {
            add(refused.counter(&self.context.counters), 1);
            self.refuse(&refused, String::new())
        })
    }

    /// Adds the name of this node: a sender of messages from elsewhere says in turn which nodes they passed.
    fn with_node(&self, mut answer: Answer) -> Answer {
        if let Ok(node) = HeaderValue::from_str(&self.context.node) {
            answer.headers_mut().insert(NODE_HEADER, node);
        }
        answer
    }

    async fn open(
        self: &Arc<Self>,
        request: Request<RequestBody>,
        peer: &Peer,
        address: SocketAddr,
    ) -> Result<Answer, Refused> {
        let caller = self.caller(&self.context.live(), &request, peer, address).await?;
        self.websocket(request, caller, address).await
    }

    /// The caller of this request, if more is taken now.
    async fn caller(
        &self,
        live: &Live,
        request: &Request<RequestBody>,
        peer: &Peer,
        address: SocketAddr,
    ) -> Result<Caller, Refused> {
        let authorization = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let caller = self.senders.enter(live, peer, address.ip(), authorization).await?;
        self.senders.may_send(live, &caller, clock::now())?;
        Ok(caller)
    }

    /// Publishes messages that the caller may publish, and waits for the broker.
    async fn publish(
        &self,
        live: &Live,
        caller: &Caller,
        messages: Vec<Message>,
    ) -> Result<(), Refused> {
        let (count, counters) = (messages.len() as u64, &self.context.counters);
        let bytes = messages.iter().map(|message| message.payload.len() as u64).sum();
        let travelling = messages.iter().map(|message| message.bytes() as u64).sum();
        self.senders.spend(live, caller, clock::now(), count, travelling);
        let reasons = self.publisher.publish(messages).await?;
        let refused: Vec<_> =
            reasons.into_iter().filter_map(|reason| Refused::of_reason(reason).err()).collect();
        add(&counters.published, count - refused.len() as u64);
        add(&counters.published_bytes, bytes);
        for one in &refused {
            add(one.counter(counters), 1);
        }
        refused.into_iter().next().map_or(Ok(()), Err)
    }

    /// Says why not. `more` are further members of the answer's object, each with a comma before it.
    fn refuse(&self, refused: &Refused, more: String) -> Answer {
        let text = tidegate_message::error_chain(refused);
        let text = serde_json::Value::from(text).to_string();
        let code = refused.code();
        // `error` is where InfluxDB's first clients look, `message` where its second ones do.
        let body = format!(r#"{{"code":"{code}","message":{text},"error":{text}{more}}}"#);
        let mut answer = json(refused.status(), body);
        if let Some(after) = refused.retry_after() {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if matches!(refused, Refused::Form(_)) {
            // RFC 9110, 15.5.16.
            let known = HeaderValue::from_static("gzip, deflate");
            answer.headers_mut().insert(header::ACCEPT_ENCODING, known);
        }
        if answer.status() == StatusCode::UNAUTHORIZED {
            let ask = HeaderValue::from_static("Basic realm=\"tidegate\", Bearer");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
        }
        // The rest of a body that was not read would be taken for the next request.
        if matches!(refused, Refused::TooLarge { .. } | Refused::Slow | Refused::Broken) {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    /// The answer to a request that does not count.
    fn foreign(&self, foreign: &Foreign) -> Answer {
        let code = match foreign {
            Foreign::Host => Code::INGEST_INVALID,
            Foreign::Page { .. } | Foreign::Name { .. } => Code::ACTION_DENIED,
        };
        let refused = Refused::Access(ApiError::new(code, foreign.to_string()));
        add(refused.counter(&self.context.counters), 1);
        let mut answer = self.refuse(&refused, String::new());
        if let Ok(status) = StatusCode::from_u16(foreign.status()) {
            *answer.status_mut() = status;
        }
        answer
    }

    fn not_here(&self, status: StatusCode, allow: &'static str) -> Answer {
        add(&self.context.counters.invalid, 1);
        let text = match self.context.live().settings.kind {
            IngestKind::WebSocket => {
                "there are GET /ingest, which opens a WebSocket, GET /ping and GET /health"
            }
            _ => {
                "there are POST /write, POST /api/v2/write, POST /ingest/TOPIC, GET /ingest, which opens a WebSocket, \
                  GET /ping and GET /health"
            }
        };
        let refused = Refused::Access(ApiError::new(Code::INGEST_INVALID, text));
        let mut answer = self.refuse(&refused, String::new());
        *answer.status_mut() = status;
        if !allow.is_empty() {
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        answer
    }
}

fn plain(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn json(status: StatusCode, body: String) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}
