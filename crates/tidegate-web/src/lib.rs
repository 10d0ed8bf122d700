//! A node by HTTP: its cameras, their pictures, live detections and its state, as JSON and JPEG, and a page for people.
//!
//! ```text
//!  tidegate-rpc (caller known) ─┬─▶ /cameras, snapshot.jpg, mjpeg, frames (WebSocket) ─▶ dyn Frames ─▶ transfers
//!                               ├─▶ /v1/detections (WebSocket) ─▶ bus
//!                               ├─▶ /v1/clients, fabric ─▶ dyn Admin
//!                               └─▶ /v1/sinks, uplinks, flows ─▶ Tables
//!  everybody ─────────────────────▶ /, page.js, page.css
//! ```
//!
//! | path | answer |
//! |---|---|
//! | `GET /cameras` | the cameras that the caller may see |
//! | `GET /cameras/NAME/snapshot.jpg` | an untouched frame: the newest, or that of `?at=NANOSECONDS` |
//! | `GET /cameras/NAME/mjpeg` | frames within bounds, one JPEG after another |
//! | `WS /cameras/NAME/frames` | the same, with all that is known of each |
//! | `WS /v1/detections` | detections as they are published |
//! | `GET /v1/fabric`, `/v1/fabric/members`, `/v1/fabric/where` | the fabric of many nodes, for its administrators; `POST …/forget`, `…/leave` |
//! | `GET /v1/clients`, `/v1/sinks`, `/v1/uplinks`, `/v1/flows` | the state of the node, for its administrators |
//!
//! Always true: a viewer is a subscription like any other, so viewers with the same bounds share one encoding; a viewer that is slow
//! misses frames and delays none of another's; a viewer holds one frame beyond those in its socket.

mod boxes;
mod cameras;
mod detections;
mod fabric;
mod frames;
mod mjpeg;
mod page;
mod tables;
mod wish;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    http::StatusCode,
    routing::{any, get, post},
};
use futures::SinkExt as _;
use tidegate_bus::Bus;
use tidegate_identity::{access::Access, callers::Callers};
use tidegate_rpc::Failure;
use tokio_util::sync::CancellationToken;

pub use self::{
    page::page,
    tables::{FlowRow, SinkRow, Table, Tables, UplinkRow},
};

/// Longest message of a viewer: it asks for other bounds.
const ASKED_BYTES_MAX: usize = 16 << 10;
/// A viewer that takes up nothing for this long is cut off.
const UNREAD_MAX: Duration = Duration::from_secs(60);
/// How often a silent viewer is asked whether it is there, which also keeps the way through proxies and routers open.
const PING: Duration = Duration::from_secs(20);

/// The parts of a node that are shown.
#[derive(Clone)]
pub struct WebSettings {
    /// Access control; viewers count among the streams of their identity.
    pub access: Access,
    /// This node's broker, for detections; none where it serves no MQTT.
    pub bus: Option<Bus>,
    /// The state of its services.
    pub tables: Arc<Tables>,
    /// Ends all viewers.
    pub stop: CancellationToken,
}

/// The paths for callers that are known: each request has the extensions `Arc<Identity>`, `Arc<dyn Frames>`, `Arc<dyn Cameras>` and `Arc<dyn Admin>`.
pub fn router(settings: WebSettings) -> Router {
    let WebSettings { access, bus, tables, stop } = settings;
    let callers = Arc::new(Callers::new(access.clone(), "api"));
    let web = Web { access, callers, bus, tables, drawer: Arc::default(), stop };
    Router::new()
        .route("/cameras", get(cameras::list))
        .route("/cameras/{camera}/snapshot.jpg", get(cameras::snapshot))
        .route("/cameras/{camera}/mjpeg", get(mjpeg::show))
        .route("/cameras/{camera}/frames", any(frames::open))
        .route("/v1/detections", any(detections::open))
        .route("/v1/clients", get(tables::clients))
        .route("/v1/sinks", get(tables::sinks))
        .route("/v1/uplinks", get(tables::uplinks))
        .route("/v1/flows", get(tables::flows))
        .route("/v1/fabric", get(fabric::status))
        .route("/v1/fabric/members", get(fabric::members))
        .route("/v1/fabric/members/{member}/forget", post(fabric::forget))
        .route("/v1/fabric/where", get(fabric::locate))
        .route("/v1/fabric/leave", post(fabric::leave))
        .with_state(web)
}

/// State that requests share.
#[derive(Clone)]
struct Web {
    access: Access,
    callers: Arc<Callers>,
    bus: Option<Bus>,
    tables: Arc<Tables>,
    drawer: Arc<boxes::Drawer>,
    stop: CancellationToken,
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// The WebSocket that a request asks for.
fn upgrade(asked: Upgrade) -> Result<WebSocketUpgrade, Failure> {
    let upgrade = asked.map_err(|rejection| {
        let text = format!("this path opens a WebSocket over HTTP/1.1: {}", rejection.body_text());
        Failure::invalid(text).with_status(StatusCode::UPGRADE_REQUIRED)
    })?;
    Ok(upgrade.max_message_size(ASKED_BYTES_MAX).max_frame_size(ASKED_BYTES_MAX))
}

/// Sends a message in time; false if the viewer is gone, or takes up nothing.
async fn send(socket: &mut WebSocket, message: Message) -> bool {
    matches!(tokio::time::timeout(UNREAD_MAX, socket.send(message)).await, Ok(Ok(())))
}

/// Ends a WebSocket with a code of RFC 6455, section 7.4, and a reason of at most 123 bytes.
async fn close(mut socket: WebSocket, code: u16, reason: &str) {
    let end = reason.floor_char_boundary(123);
    let frame = axum::extract::ws::CloseFrame { code, reason: reason[..end].into() };
    if send(&mut socket, Message::Close(Some(frame))).await {
        // A peer that does not answer is cut off all the same.
        let _ = tokio::time::timeout(Duration::from_secs(1), socket.close()).await;
    }
}
