//! Live detections over a WebSocket, each a message of JSON as it was published: `detections/CAMERA/DETECTOR` of this node's broker.
//!
//! Always true: the broker judges the caller by its own rights; a viewer that is slow misses the oldest.

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
use serde::{Deserialize, de::IgnoredAny};
use tidegate_api::ApiError;
use tidegate_broker::{Overflow, SessionConfig};
use tidegate_identity::auth::limits::Lease;
use tidegate_message::{CameraName, Code};
use tidegate_rpc::{Failure, Identity};
use tidegate_server::bus::{Attached, Attachment, Bus, BusError};
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
    let attached = attach(web.bus.as_ref(), &identity, camera.as_ref()).await?;
    let viewer = Viewer { attached, stop: web.stop, _lease: lease };
    Ok(upgrade.on_upgrade(|socket| viewer.serve(socket)))
}

/// A session of the caller's own for what is published from now on.
///
/// # Errors
/// [`Code::ACTION_DENIED`] if the caller may not read it, [`Code::CONFIG_INVALID`] if there is no broker.
pub(crate) async fn attach(
    bus: Option<&Bus>,
    identity: &Identity,
    camera: Option<&CameraName>,
) -> Result<Attached, ApiError> {
    let bus = bus.ok_or_else(|| {
        let text = "this node serves no MQTT, by which detections are published; mqtt.enabled has it serve some";
        ApiError::new(Code::CONFIG_INVALID, text)
    })?;
    let number = NEXT_VIEWER.fetch_add(1, Ordering::Relaxed);
    let client = format!("web-detections-{number}");
    let who =
        tidegate_message::Identity { client: client.as_str().into(), ..identity.who().clone() };
    let session = SessionConfig {
        queue_messages_max: WAITING_MAX,
        queue_bytes_max: WAITING_BYTES_MAX,
        overflow: Overflow::DropOldest,
        overflow_qos0: Overflow::DropOldest,
        is_local: true,
        ..SessionConfig::default()
    };
    let filter = format!("detections/{}/+", camera.map_or("+", CameraName::as_str));
    let attachment = Attachment { session, ..Attachment::new(who, client) }.subscribe(filter);
    bus.attach(attachment).await.map_err(|error| {
        let code = match error {
            BusError::Subscription { .. } | BusError::Refused(_) => Code::ACTION_DENIED,
            _ => Code::INTERNAL,
        };
        ApiError::new(code, "detections cannot be read").caused_by(error)
    })
}

struct Viewer {
    attached: Attached,
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
                ready = self.attached.deliveries.ready() => match ready {
                    Ok(()) => match self.pass(socket).await {
                        Ok(is_there) => is_there,
                        Err(error) => return (close_code::POLICY, error.to_string()),
                    },
                    Err(error) => return (close_code::POLICY, error.to_string()),
                },
                message = socket.recv() => match message {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return gone(),
                    Some(Ok(_)) => true,
                },
                _ = pings.tick() => send(socket, Message::Ping(bytes::Bytes::new())).await,
            };
            if !is_there {
                return gone();
            }
        }
    }

    /// Passes on what is there; false if the viewer is gone.
    async fn pass(&mut self, socket: &mut WebSocket) -> Result<bool, BusError> {
        let deliveries = &mut self.attached.deliveries;
        while let Some(message) = deliveries.next_message()? {
            let (id, text) = (message.packet_id(), json(&message.payload()));
            deliveries.acknowledge(id);
            if let Some(text) = text
                && !send(socket, Message::Text(text.into())).await
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A payload that is JSON of a sensible length; other programs may publish to the same topics.
fn json(payload: &[u8]) -> Option<String> {
    let text = str::from_utf8(payload).ok().filter(|text| text.len() <= DETECTION_BYTES_MAX)?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    Some(text.to_owned())
}
