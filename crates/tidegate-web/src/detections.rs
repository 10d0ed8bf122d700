//! Live detections over a WebSocket, each a message of JSON as it was published: `detections/CAMERA/DETECTOR` of this node's broker.
//!
//! Always true: the broker judges the caller by its own rights; a caller whose right or proof is gone is sent nothing more after a second;
//! a viewer that is slow misses the oldest.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::{
    Extension,
    extract::{
        Query, State,
        rejection::QueryRejection,
        ws::{Message, WebSocket, close_code},
    },
    response::Response,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, de::IgnoredAny};
use tidegate_api::ApiError;
use tidegate_bus::{Attached, Attachment, Bus, BusError, Overflow, SessionConfig, part_id};
use tidegate_identity::{access::Access, auth::limits::Lease};
use tidegate_message::{Action, CameraName, Code, Target};
use tidegate_rpc::{Failure, Identity};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{PING, Upgrade, Web, close, send, upgrade};

/// Detections that wait for one viewer: some seconds of all cameras.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: u64 = 1 << 20;
/// Longest detection that is passed on.
const DETECTION_BYTES_MAX: usize = 256 << 10;

static NEXT_VIEWER: AtomicU64 = AtomicU64::new(1);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Of {
    /// Of this camera; of all that the caller may see if none is named.
    camera: Option<String>,
}

pub(crate) async fn open(
    State(web): State<Web>,
    Extension(identity): Extension<Arc<Identity>>,
    query: Result<Query<Of>, QueryRejection>,
    asked: Upgrade,
) -> Result<Response, Failure> {
    let Query(Of { camera }) = query.map_err(|rejection| {
        Failure::invalid(format!("the query may have `camera`: {}", rejection.body_text()))
    })?;
    let camera: Option<CameraName> =
        camera.map(|name| name.parse().map_err(ApiError::from)).transpose()?;
    let upgrade = upgrade(asked)?;
    let lease = web.callers.enter(&identity)?;
    let detections =
        Detections::of(web.bus.as_ref(), &web.access, &identity, camera.as_ref()).await?;
    let viewer = Viewer { detections, stop: web.stop, _lease: lease };
    Ok(upgrade.on_upgrade(|socket| viewer.serve(socket)))
}

/// Detections that a caller sees from now on, by a session of its own.
pub(crate) struct Detections {
    attached: Attached,
    /// Ends once the caller may no longer see them. The broker knows the caller by name: it ends no session whose certificate is revoked.
    lost: BoxFuture<'static, ApiError>,
}

impl Detections {
    /// Those of one camera, or of all.
    ///
    /// # Errors
    /// [`Code::ACTION_DENIED`] if the caller may not read them, [`Code::CONFIG_INVALID`] if there is no broker.
    pub(crate) async fn of(
        bus: Option<&Bus>,
        access: &Access,
        identity: &Identity,
        camera: Option<&CameraName>,
    ) -> Result<Self, ApiError> {
        let bus = bus.ok_or_else(|| {
            let text = "this node serves no MQTT, by which detections are published; mqtt.enabled has it serve some";
            ApiError::new(Code::CONFIG_INVALID, text)
        })?;
        let number = NEXT_VIEWER.fetch_add(1, Ordering::Relaxed);
        let client = part_id("web", &format!("detections/{number}"));
        // Rules may name clients: the right is looked at again as the one whom the broker let in.
        let mut identity = identity.clone();
        identity.admitted.identity.client = client.as_str().into();
        let session = SessionConfig {
            queue_messages_max: WAITING_MAX,
            queue_bytes_max: WAITING_BYTES_MAX,
            overflow: Overflow::DropOldest,
            overflow_qos0: Overflow::DropOldest,
            is_local: true,
            ..SessionConfig::default()
        };
        let filter = format!("detections/{}/+", camera.map_or("+", CameraName::as_str));
        let attachment = Attachment { session, ..Attachment::new(identity.who().clone(), client) };
        let attached = bus.attach(attachment.subscribe(&*filter)).await.map_err(|error| {
            let code = match error {
                BusError::Subscription { .. } | BusError::Refused(_) => Code::ACTION_DENIED,
                _ => Code::INTERNAL,
            };
            ApiError::new(code, "detections cannot be read").caused_by(error)
        })?;
        let access = access.clone();
        let lost = Box::pin(async move {
            access.lost("api", &identity, Action::Subscribe, Target::Filter(&filter)).await
        });
        Ok(Self { attached, lost })
    }

    /// The next one; none for a message that is too long to be one. After an error nothing follows.
    ///
    /// # Errors
    /// As of [`Access::may`] once the caller may no longer see them; [`Code::INTERNAL`] if the broker ends the session.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let ended =
            |error: BusError| ApiError::new(Code::INTERNAL, "detections end").caused_by(error);
        loop {
            tokio::select! {
                // However many there are.
                biased;
                error = &mut self.lost => return Err(error),
                ready = self.attached.deliveries.ready() => ready.map_err(ended)?,
            }
            let deliveries = &mut self.attached.deliveries;
            if let Some(message) = deliveries.next_message().map_err(ended)? {
                let payload = message.payload();
                let is_short = payload.len() <= DETECTION_BYTES_MAX;
                let payload = is_short.then(|| Bytes::copy_from_slice(&payload));
                let id = message.packet_id();
                deliveries.acknowledge(id);
                return Ok(payload);
            }
        }
    }
}

struct Viewer {
    detections: Detections,
    stop: CancellationToken,
    _lease: Lease,
}

impl Viewer {
    async fn serve(mut self, mut socket: WebSocket) {
        let (code, reason) = self.run(&mut socket).await;
        close(socket, code, &reason).await;
    }

    async fn run(&mut self, socket: &mut WebSocket) -> (u16, String) {
        let gone = || (close_code::NORMAL, String::new());
        let mut pings = interval(PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset();
        let stop = self.stop.clone();
        loop {
            let is_there = tokio::select! {
                () = stop.cancelled() => return (close_code::AWAY, "the node stops".to_owned()),
                found = self.detections.next() => match found {
                    Ok(found) => match found.as_deref().and_then(json) {
                        Some(text) => send(socket, Message::Text(text.into())).await,
                        None => true,
                    },
                    Err(error) => return (close_code::POLICY, error.chain()),
                },
                message = socket.recv() => match message {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return gone(),
                    Some(Ok(_)) => true,
                },
                _ = pings.tick() => send(socket, Message::Ping(Bytes::new())).await,
            };
            if !is_there {
                return gone();
            }
        }
    }
}

/// A payload that is JSON; other programs may publish to the same topics.
fn json(payload: &[u8]) -> Option<String> {
    let text = str::from_utf8(payload).ok()?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    Some(text.to_owned())
}
