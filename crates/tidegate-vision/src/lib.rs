//! An image in and boxes back: detection for clients of a node.
//!
//! ```text
//!  POST /v1/detect/NAME ─┐
//!  WS   /v1/detect/NAME ─┤ rights ─▶ body, bounded and charged ─▶ image, if whole ─▶ Detector ─▶ JSON
//!  /v2/… ────────────────┤                                                              (a pool of workers)
//!  the paper's server ───┘
//! ```
//!
//! [`router`] has all of it; the node serves it on its API, where callers have authenticated and their [`Identity`] is an extension of the
//! request. A [`Listener`] serves the shapes of the paper's server without a login, with the rights of one configured user.
//!
//! Copies of an image, for the common case: the socket's bytes are gathered once into a buffer that is used again, and from there written
//! once into the memory that the worker reads. A body that came in one piece is not gathered.
//!
//! Always true: no body is decoded before it is whole and within its bound; no worker is asked about bytes that are not an image of an allowed
//! size, or about a JPEG image that is not whole; a caller that goes away, or whose right is taken away, takes its request out of the queue; a request ends with an answer or an error that names its
//! reason.

mod answer;
mod body;
mod budget;
mod buffers;
mod classic;
mod detector;
pub mod image;
mod inference;
mod listener;
mod models;
mod paper;
mod refused;
mod settings;
mod socket;

#[cfg(test)]
mod tests;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{Response, StatusCode},
    routing::{delete, get, post},
};
use bytes::Bytes;
use tidegate_api::{ApiError, proto};
use tidegate_identity::{
    access::{Access, Identity},
    auth::limits::Lease,
};
use tidegate_message::{Action, Code, FrameSize, Target};
use tidegate_ports::{DetectError, Image, Request as Ask, Times};
use tidegate_workers::SharedPool;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    answer::Detected,
    budget::NoRoom,
    detector::{Detector, ModelInfo, Models},
    listener::{ListenError, Listener, ListenerSettings, Protocol},
    refused::{Refused, RequestError},
    settings::VisionSettings,
};
use self::{
    body::{Form, Receiver},
    budget::Budget,
    classic::Classic,
    detector::Pooled,
    image::Inspector,
    refused::bytes_answer,
    socket::Speech,
};

/// The name of this front in the audit log.
const FRONT: &str = "api";
/// How often the right of a caller whose answer is not there yet is looked at again.
const RIGHTS_CHECKED: Duration = Duration::from_secs(1);

/// Detection for the callers of a node; a clone is the same.
#[derive(Clone, Debug)]
pub struct Vision(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: VisionSettings,
    detector: Arc<dyn Detector>,
    access: Access,
    receiver: Receiver,
    inspector: Inspector,
    /// WebSockets that are open: they outlive the request that opened them.
    sockets: TaskTracker,
    sockets_open: AtomicUsize,
    classic: Classic,
    stop: CancellationToken,
}

impl Vision {
    /// By the workers of `pool`, which begin with the first request, for those whom `access` allows it; WebSockets end with `stop`.
    pub fn new(
        settings: VisionSettings,
        pool: SharedPool,
        access: Access,
        stop: CancellationToken,
    ) -> Self {
        Self::with(settings, Arc::new(Pooled::new(pool)), access, stop)
    }

    /// The same with a detector of any kind.
    pub fn with(
        settings: VisionSettings,
        detector: Arc<dyn Detector>,
        access: Access,
        stop: CancellationToken,
    ) -> Self {
        let receiver = Receiver {
            budget: Arc::new(Budget::new(settings.held_bytes_max)),
            buffers: Arc::default(),
            image_bytes_max: settings.image_bytes_max,
            silent_max: settings.request_timeout,
        };
        let inspector = Inspector::default();
        let sockets = TaskTracker::new();
        let sockets_open = AtomicUsize::new(0);
        let classic = Classic::default();
        Self(Arc::new(Shared {
            settings,
            detector,
            access,
            receiver,
            inspector,
            sockets,
            sockets_open,
            classic,
            stop,
        }))
    }

    /// Looks at an image that is there, for a caller that has not been asked for its right yet.
    ///
    /// # Errors
    /// [`Refused`].
    ///
    /// # Cancel safety
    /// A call that is dropped leaves the queue, or wastes its worker's answer.
    pub async fn detect(
        &self,
        identity: &Identity,
        model: &str,
        image: Bytes,
    ) -> Result<Detected, Refused> {
        let since = Instant::now();
        self.may(identity, Action::Detect, model)?;
        // Held until the answer is there.
        let mut charge = self.0.receiver.budget.open(identity.key);
        charge.hold(image.len())?;
        self.look(identity, model, Image::Encoded(image), since).await
    }

    /// Waits until all WebSockets have ended, which they do soon after the stop.
    pub async fn ended(&self) {
        self.0.sockets.close();
        self.0.sockets.wait().await;
    }

    /// Lets a caller do that to a model.
    fn may(&self, identity: &Identity, action: Action, model: &str) -> Result<(), Refused> {
        self.0.access.may(FRONT, identity, action, Target::Model(model)).map_err(Refused::Denied)
    }

    fn allows(&self, identity: &Identity, action: Action, model: &str) -> bool {
        self.0.access.allows(identity, action, Target::Model(model))
    }

    /// A stream more of a caller, which ends with the lease.
    fn enter(&self, identity: &Identity) -> Result<Lease, Refused> {
        self.0.access.authenticator.meter(identity.who()).enter().map_err(|refusal| {
            let text = format!("{identity} is refused: {refusal}");
            Refused::Denied(ApiError::new(Code::LIMIT_REACHED, text))
        })
    }

    /// Looks at an image for a caller that may, and may until the answer is there; `since` is when its request began.
    async fn look(
        &self,
        identity: &Identity,
        model: &str,
        image: Image,
        since: Instant,
    ) -> Result<Detected, Refused> {
        let found = self.find(identity, model, image, since);
        self.while_allowed(identity, Action::Detect, model, found).await?
    }

    /// The answer of `work`, unless the caller loses its right, or its credentials end, before it is there.
    async fn while_allowed<T>(
        &self,
        identity: &Identity,
        action: Action,
        model: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, Refused> {
        let mut work = pin!(work);
        loop {
            match timeout(RIGHTS_CHECKED, work.as_mut()).await {
                Ok(answer) => return Ok(answer),
                Err(_) => self.may(identity, action, model)?,
            }
        }
    }

    /// The same as [`Self::look`], for a caller whose right is another one.
    async fn find(
        &self,
        identity: &Identity,
        model: &str,
        image: Image,
        since: Instant,
    ) -> Result<Detected, Refused> {
        let size = match &image {
            Image::Encoded(bytes) => self.0.inspector.look(bytes).await?,
            Image::Pixels { shape: [height, width, _], bytes } => {
                let side = |side: u32| {
                    let wrong =
                        DetectError::Pixels { shape: [*height, *width, 0], bytes: bytes.len() };
                    u16::try_from(side).map_err(|_| wrong)
                };
                FrameSize { width: side(*width)?, height: side(*height)? }
            }
        };
        let (model_name, size_known) = (Some(model.to_owned()), Some(size));
        let ask = Ask { model: model_name, size: size_known, ..Ask::of(image) };
        let looker = self.0.detector.clone().looker(identity.key);
        let mut outcome = looker.look(ask).await?;
        let Times { decode, infer, .. } = outcome.times;
        outcome.times = Times::new(since.elapsed(), decode, infer);
        let size = outcome.size.unwrap_or(size);
        // A program need not say the size; the image does.
        outcome.clip(size);
        Ok(Detected { model: model.to_owned(), size, outcome })
    }

    /// Whether one more WebSocket may be open, which it is until what is returned is dropped.
    fn place(&self) -> Result<Place, Refused> {
        let sockets_max = self.0.settings.sockets_max;
        let more = |open: usize| (open < sockets_max).then_some(open + 1);
        let open = &self.0.sockets_open;
        match open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Place(self.clone())),
            Err(_) => Err(Refused::Sockets { sockets_max }),
        }
    }
}

/// The calls of gRPC.
#[async_trait]
impl tidegate_rpc::Detection for Vision {
    async fn detect(
        &self,
        identity: &Identity,
        model: &str,
        image: Bytes,
    ) -> Result<proto::Detected, ApiError> {
        let found = Self::detect(self, identity, model, image).await;
        let found = found.map_err(|refused| ApiError::new(refused.code(), refused.message()))?;
        Ok(found.message())
    }
}

/// The place of an open WebSocket.
#[derive(Debug)]
struct Place(Vision);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.sockets_open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All paths of detection. Each request has its caller, an `Arc<Identity>`, among its extensions.
pub fn router(vision: Vision) -> Router {
    Router::new()
        .route("/v1/detect/{model}", post(detect).get(open))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{model}", delete(models::unload).put(models::load))
        .route("/v1/models/{model}/subjects/{subject}", post(models::teach))
        .merge(inference::routes())
        .merge(classic::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(vision)
}

async fn method_not_allowed() -> Response<Body> {
    let error = serde_json::json!({
        "code": Code::DETECT_INVALID.as_str(),
        "message": "this path does not take that method; see /v1/openapi.json",
    });
    let body = serde_json::json!({ "error": error });
    refused::json_answer(StatusCode::METHOD_NOT_ALLOWED, &body)
}

/// The caller of a request, as the gate before this router has found out.
fn caller(request: &Request) -> Result<Arc<Identity>, Refused> {
    request.extensions().get::<Arc<Identity>>().cloned().ok_or_else(|| {
        let text = "no credentials were sent: a certificate of the site, a token or a user name with its password is needed";
        Refused::Denied(ApiError::new(Code::IDENTITY_REFUSED, text))
    })
}

/// `POST /v1/detect/NAME`.
async fn detect(
    State(vision): State<Vision>,
    Path(model): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refused> {
    let since = Instant::now();
    let identity = caller(&request)?;
    vision.may(&identity, Action::Detect, &model)?;
    let form = Form::of(request.headers())?;
    let receiver = &vision.0.receiver;
    let received = receiver.receive(identity.key, form, request.into_body()).await?;
    // Held until the answer is there.
    let (image, _charge) = received.image()?;
    let detected = vision.look(&identity, &model, Image::Encoded(image), since).await?;
    Ok(bytes_answer(StatusCode::OK, "application/json", detected.json(None)))
}

/// `GET /v1/detect/NAME`, which opens a WebSocket.
async fn open(
    State(vision): State<Vision>,
    Path(model): Path<String>,
    request: Request,
) -> Result<Response<Body>, Refused> {
    let identity = caller(&request)?;
    vision.may(&identity, Action::Detect, &model)?;
    let ids = tidegate_device::query::parameter(request.uri().query(), "ids");
    let has_ids = match ids.as_deref() {
        None | Some("0") => false,
        Some("1") => true,
        Some(_) => {
            return Err(RequestError::Parameter { name: "ids", bound: "0 or 1" }.into());
        }
    };
    let speech = Speech::Detect { model: model.into(), has_ids };
    socket::open(&vision, identity, request, speech)
}
