//! HTTP beside gRPC on the port of the API: the page, pictures, and programs that speak no gRPC.
//!
//! ```text
//!  request ─▶ same origin? ─▶ credentials, session or certificate ─▶ body, bounded ─▶ router of the node
//!                 (403)            (401)                              (408, 413, 429)
//! ```
//!
//! Always true: no byte of a body is read whose caller is not known, and none at all of requests to the public paths; a browser's request
//! from another site changes nothing and opens no WebSocket; an answer that does not say otherwise is not kept by caches.

mod body;
mod sessions;

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, Extension, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tidegate_api::{ApiError, MESSAGE_BYTES_MAX, RELAY_METADATA};
use tidegate_identity::{access::Access, callers::Callers};
use tidegate_message::{
    Action, Code, Target,
    origins::{Foreign, Origins},
};
use tidegate_process::{clock, http1, pages::Pages};
use tonic::Status;

pub use self::body::BodyBound;
use self::{body::Bounded, sessions::Sessions};
use super::{
    connection::Caller,
    room::{PARTIAL_BYTES_OF_PEER, Rooms},
};
use crate::{Admin, Cameras, Failure, Identity, failure::Sentence, openapi};

/// Bytes of a body in addition to those of a frame: the other fields of a form, and base64, which takes four bytes for three.
const BESIDE_FRAME_BYTES: usize = 1 << 20;

/// Scripts, styles and connections of this node alone; pictures also from memory, where the page puts those that came by a WebSocket.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; \
     manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Headers of every answer that has no others of these names.
static HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// State that requests of HTTP share.
#[derive(Clone)]
pub(super) struct Web {
    pub(super) node: String,
    pub(super) access: Access,
    pub(super) callers: Arc<Callers>,
    pub(super) cameras: Arc<dyn Cameras>,
    pub(super) admin: Arc<dyn Admin>,
    pub(super) partial: Arc<Rooms>,
    pub(super) frame_bytes_max: u64,
    /// Largest image to look at, where detection is served.
    pub(super) image_bytes_max: Option<usize>,
}

impl Web {
    /// Gives a request its caller, and what that caller may use.
    fn extend(&self, parts: &mut Parts, identity: Arc<Identity>) {
        // A page cannot go to another node, which is another origin; nor do players.
        let goes_itself = parts.headers.get(RELAY_METADATA).is_some_and(|value| value == "0");
        let cameras = self.cameras.clone();
        parts.extensions.insert(match goes_itself {
            true => cameras.frames(identity.clone()),
            false => cameras.frames_of_all(identity.clone()),
        });
        parts.extensions.insert(self.cameras.clone());
        parts.extensions.insert(self.admin.clone());
        parts.extensions.insert(identity);
    }

    /// Most bytes of a body that is kept.
    fn body_bytes_max(&self) -> usize {
        let frame = usize::try_from(self.frame_bytes_max).unwrap_or(MESSAGE_BYTES_MAX);
        let frame =
            (frame.saturating_add(2) / 3).saturating_mul(4).saturating_add(BESIDE_FRAME_BYTES);
        // One that is longer than all that a connection may hold would never come whole.
        frame.max(self.image_bytes_max.map_or(0, body_bytes_max)).min(PARTIAL_BYTES_OF_PEER)
    }
}

/// Most bytes of a body with an image of at most `image_bytes_max`: in base64, which takes four bytes for three, with line ends or, in a
/// form, percent signs.
fn body_bytes_max(image_bytes_max: usize) -> usize {
    (image_bytes_max / 2).saturating_mul(3).saturating_add(BESIDE_FRAME_BYTES)
}

/// The requests that are no calls of gRPC: those of `known` for callers that are known, those of `public` for everybody.
pub(super) fn router(web: Web, known: Router, public: Router) -> Router {
    let pages = Pages::new("api", Origins::default(), true);
    let front = Arc::new(Front { web, pages, sessions: Sessions::default() });
    let own = Router::new()
        .route("/v1/me", get(me))
        .route("/v1/logout", post(logout))
        .route("/v1/openapi.json", get(openapi::serve));
    let known = known
        .merge(own.with_state(front.clone()))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(front.clone(), admit));
    let own = Router::new().route("/v1/login", post(login));
    let public = public
        .merge(own.with_state(front.clone()))
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn(show));
    let all = public.merge(known).layer(middleware::from_fn_with_state(front, sift));
    all.layer(middleware::from_fn(word)).layer(middleware::map_response(shield))
}

/// The requests to a listener without TLS and without a login: those of `known` are of the caller of their connection. `hosts` are names
/// under which browsers may ask.
pub(super) fn plain(web: Web, hosts: Vec<String>, known: Router, public: Router) -> Router {
    let pages = Pages::new("web.plain", Origins::of_names(hosts, "web.plain_hosts"), false);
    let front = Arc::new(PlainFront { web, pages });
    let own = Router::new().route("/v1/me", get(me_without_login)).with_state(front.clone());
    let known = known
        .merge(own)
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(front.clone(), vouch));
    public
        .method_not_allowed_fallback(not_allowed)
        .merge(known)
        .layer(middleware::from_fn_with_state(front, show_plain))
        .layer(middleware::map_response(shield))
}

struct PlainFront {
    web: Web,
    pages: Pages,
}

/// Lets a request pass that means this node, and is of no other site's page, without its body.
async fn show_plain(
    State(front): State<Arc<PlainFront>>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, _) = request.into_parts();
    if let Some(refused) = foreign(&front.pages, &parts) {
        return refused;
    }
    next.run(Request::from_parts(parts, Body::empty())).await
}

/// Lets a request pass that no page has made which may not.
async fn sift(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if let Some(refused) = foreign(&front.pages, &parts) {
        return refused;
    }
    next.run(Request::from_parts(parts, body)).await
}

/// The answer to a request of a page that may not ask; none to one that may.
fn foreign(pages: &Pages, parts: &Parts) -> Option<Response> {
    let caller = match caller(parts) {
        Ok(caller) => caller,
        Err(error) => return Some(Failure::new(error).into_response()),
    };
    let foreign = pages.check_parts(parts, caller.peer.address()).err()?;
    let text = foreign.to_string();
    let failure = match foreign {
        Foreign::Page { .. } => Failure::new(ApiError::new(Code::ACTION_DENIED, text)),
        Foreign::Host | Foreign::Name { .. } => Failure::invalid(text),
    };
    let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
    Some(failure.with_status(status).into_response())
}

/// Gives a request the caller of its connection, whatever else it shows.
async fn vouch(State(front): State<Arc<PlainFront>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let known = async {
        let caller = caller(&parts)?;
        front.web.callers.known(&caller.peer, None).await
    };
    match known.await {
        Ok(identity) => {
            front.web.extend(&mut parts, identity);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => Failure::new(error).into_response(),
    }
}

async fn me_without_login(
    State(front): State<Arc<PlainFront>>,
    Extension(identity): Extension<Arc<Identity>>,
) -> Json<Value> {
    Json(front.web.described(&identity, false))
}

struct Front {
    web: Web,
    pages: Pages,
    sessions: Sessions,
}

/// Lets a request to a public path pass, without its body.
async fn show(request: Request, next: Next) -> Response {
    let (parts, _) = request.into_parts();
    next.run(Request::from_parts(parts, Body::empty())).await
}

/// Lets the request of a known caller pass.
async fn admit(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let (caller, identity) = match front.admitted(&parts).await {
        Ok(admitted) => admitted,
        Err(error) => return refusal(error, &parts.headers),
    };
    let web = &front.web;
    let of_caller = web.partial.of(identity.key);
    let rooms = [caller.partial.clone(), of_caller, web.partial.all.clone()];
    web.extend(&mut parts, identity);
    let bound = Arc::new(BodyBound::new(web.body_bytes_max() as u64));
    parts.extensions.insert(bound.clone());
    let body = Body::new(Bounded::new(body, rooms, bound));
    next.run(Request::from_parts(parts, body)).await
}

impl Front {
    /// The connection and the caller of a request.
    async fn admitted(&self, parts: &Parts) -> Result<(Arc<Caller>, Arc<Identity>), ApiError> {
        let caller = caller(parts)?;
        let callers = &self.web.callers;
        let shown = authorization(&parts.headers);
        if shown.is_none()
            && let Some(id) = sessions::id_of(&parts.headers)
        {
            match self.sessions.find(id, clock::now()) {
                Some(identity) => match callers.by_session(&caller.peer, &identity) {
                    Ok(()) => return Ok((caller, identity)),
                    Err(error) => {
                        self.sessions.end(id);
                        return Err(error);
                    }
                },
                // The connection may have a certificate.
                None if caller.peer.has_certificate() => {}
                None => {
                    let text = "the session is over; sign in again";
                    return Err(ApiError::new(Code::IDENTITY_REFUSED, text));
                }
            }
        }
        let identity = callers.known(&caller.peer, shown).await?;
        Ok((caller, identity))
    }
}

fn caller(parts: &Parts) -> Result<Arc<Caller>, ApiError> {
    let caller = parts.extensions.get::<Arc<Caller>>().cloned();
    caller.ok_or_else(|| ApiError::new(Code::INTERNAL, "the connection has no peer"))
}

fn authorization(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)
}

/// The answer to a caller that is not let in.
fn refusal(error: ApiError, headers: &HeaderMap) -> Response {
    let mut answer = Failure::new(error).into_response();
    if answer.status() == StatusCode::UNAUTHORIZED {
        let challenges = answer.headers_mut();
        // A browser that reads `Basic` in the answer to a script or a picture asks its user in a window of its own. It says by
        // `Sec-Fetch-Mode` that it is a browser, and what for.
        let is_script = headers.get("sec-fetch-mode").is_some_and(|mode| mode != "navigate");
        if !is_script {
            let basic = HeaderValue::from_static("Basic realm=\"tidegate\", charset=\"UTF-8\"");
            challenges.append(header::WWW_AUTHENTICATE, basic);
        }
        let bearer = HeaderValue::from_static("Bearer realm=\"tidegate\"");
        challenges.append(header::WWW_AUTHENTICATE, bearer);
    }
    answer
}

/// Begins a session for a caller with a password or a token: a cookie, which scripts cannot read, stands for them from then on.
async fn login(State(front): State<Arc<Front>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let begun = async {
        let caller = caller(&parts)?;
        let shown = authorization(&parts.headers);
        let shown = shown.ok_or_else(|| {
            let text = "no credentials were sent: POST /v1/login takes a user name with its password (Basic) or a token (Bearer)";
            ApiError::new(Code::IDENTITY_REFUSED, text)
        })?;
        let identity = front.web.callers.known(&caller.peer, Some(shown)).await?;
        let id = front.sessions.begin(identity.clone(), clock::now())?;
        Ok((identity, id))
    };
    match begun.await {
        Ok((identity, id)) => {
            let cookie = [(header::SET_COOKIE, sessions::cookie(&id))];
            (cookie, Json(front.web.described(&identity, true))).into_response()
        }
        Err(error) => refusal(error, &parts.headers),
    }
}

/// Ends the session of the caller, if it has one.
async fn logout(State(front): State<Arc<Front>>, headers: HeaderMap) -> Response {
    if let Some(id) = sessions::id_of(&headers) {
        front.sessions.end(id);
    }
    let cookie = [(header::SET_COOKIE, sessions::no_cookie())];
    (StatusCode::NO_CONTENT, cookie).into_response()
}

async fn me(
    State(front): State<Arc<Front>>,
    Extension(identity): Extension<Arc<Identity>>,
) -> Json<Value> {
    Json(front.web.described(&identity, true))
}

impl Web {
    /// A caller, for itself: its name and kind, until when its credentials are good, whether it may administer the node, and whether there is
    /// a login where it asks.
    fn described(&self, identity: &Identity, login: bool) -> Value {
        let who = identity.who();
        json!({
            "name": &*who.name,
            "kind": who.kind.word(),
            "until": who.until.map(|until| until.as_nanos()),
            "admin": self.access.allows(identity, Action::Admin, Target::Node),
            "login": login,
            "node": self.node,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

async fn unknown(request: Request) -> Response {
    let content = request.headers().get(header::CONTENT_TYPE);
    if content.is_some_and(|content| content.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("").into_http::<Body>();
    }
    let path = request.uri().path().escape_debug().to_string();
    let text = format!("there is nothing at {path}; GET /v1/openapi.json lists the paths");
    Failure::new(ApiError::new(Code::PATH_UNKNOWN, text)).into_response()
}

async fn not_allowed(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path().escape_debug());
    let text = format!("{path} does not take {method}; `Allow` names the methods that it takes");
    Failure::invalid(text).with_status(StatusCode::METHOD_NOT_ALLOWED).into_response()
}

/// Words a failure of a path of the Open Inference Protocol as its clients read it, whichever part of the node refuses: `{"error": "…"}`.
async fn word(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_inference = path == "/v2" || path.starts_with("/v2/");
    let mut answer = next.run(request).await;
    if is_inference && let Some(Sentence(text)) = answer.extensions_mut().remove() {
        answer.headers_mut().remove(header::CONTENT_LENGTH);
        *answer.body_mut() = Body::from(json!({ "error": text }).to_string());
    }
    answer
}

async fn shield(mut answer: Response) -> Response {
    // Over HTTP/2 none below says it.
    http1::date(answer.headers_mut());
    for (name, value) in &HEADERS {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer
}
