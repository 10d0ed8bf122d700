//! Frames of a camera over a WebSocket: a message of JSON for each event, and behind that of a frame one with its JPEG.
//!
//! The viewer may ask for other bounds at any time: `{"type": "update", "latency_ms": 200, "accuracy": 0.95, "fps": 5}`, each of which
//! may be left out, is answered with `updated`, or with `error`, and the bounds stay. `?verdicts=1` brings the verdicts on all captured
//! frames as well.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{
        Path, Query, State,
        rejection::QueryRejection,
        ws::{Message, WebSocket, close_code},
    },
    response::Response,
};
use serde::Deserialize;
use serde_json::Value;
use tidegate_api::{ApiError, Event, FeedbackOf, Started, Verdict, json};
use tidegate_identity::auth::limits::Lease;
use tidegate_message::Code;
use tidegate_ports::Subscription;
use tidegate_rpc::{Cameras, Failure, Frames, Identity};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    PING, Upgrade, Web, close, send, upgrade,
    wish::{Pairs, Wish},
};

pub(crate) async fn open(
    State(web): State<Web>,
    Extension(frames): Extension<Arc<dyn Frames>>,
    Extension(cameras): Extension<Arc<dyn Cameras>>,
    Extension(identity): Extension<Arc<Identity>>,
    Path(camera): Path<String>,
    query: Result<Query<Pairs>, QueryRejection>,
    asked: Upgrade,
) -> Result<Response, Failure> {
    let (wish, with_verdicts) = Wish::with(query, "verdicts")?;
    let request = wish.subscribe(&camera)?;
    let upgrade = upgrade(asked)?;
    let lease = web.callers.enter(&identity)?;
    let subscription = frames.subscribe(request).await?;
    let verdicts = match with_verdicts {
        true => {
            let of = FeedbackOf::Subscription(subscription.started().id);
            Some(cameras.feedback(&identity, of).await?)
        }
        false => None,
    };
    let viewer = Viewer {
        subscription,
        verdicts,
        events: json::Events::default(),
        stop: web.stop,
        _lease: lease,
    };
    Ok(upgrade.on_upgrade(|socket| viewer.serve(socket)))
}

/// A viewer that is connected.
struct Viewer {
    subscription: Box<dyn Subscription>,
    verdicts: Option<mpsc::Receiver<Verdict>>,
    events: json::Events,
    stop: CancellationToken,
    _lease: Lease,
}

impl Viewer {
    async fn serve(mut self, mut socket: WebSocket) {
        let Started { id, demand } = self.subscription.started();
        let started = json::bounds("started", id, &demand);
        let (code, reason) = match send(&mut socket, text(&started)).await {
            true => self.run(&mut socket).await,
            false => return,
        };
        close(socket, code, &reason).await;
    }

    /// Serves until one of both sides ends; with which code and reason the socket is to be closed.
    async fn run(&mut self, socket: &mut WebSocket) -> (u16, String) {
        let gone = || (close_code::NORMAL, String::new());
        let mut pings = interval(PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset();
        let stop = self.stop.clone();
        loop {
            let sent = tokio::select! {
                () = stop.cancelled() => return (close_code::AWAY, "the node stops".to_owned()),
                event = self.subscription.next_event() => match event {
                    None => return gone(),
                    Some(Err(error)) => {
                        let _ = send(socket, text(&json::failure(&error))).await;
                        return (close_code::POLICY, error.chain());
                    }
                    Some(Ok(event)) => {
                        let sent = self.pass(socket, &event).await;
                        if let Event::Ended(why) = event {
                            return (close_code::NORMAL, why.to_string());
                        }
                        sent
                    }
                },
                verdict = next_verdict(self.verdicts.as_mut()) => match verdict {
                    Some(verdict) => send(socket, text(&json::verdict(&verdict))).await,
                    None => {
                        self.verdicts = None;
                        true
                    }
                },
                message = socket.recv() => match message {
                    Some(Ok(Message::Text(asked))) => {
                        let answer = self.change(&asked).await;
                        send(socket, text(&answer)).await
                    }
                    Some(Ok(Message::Binary(_))) => {
                        let error = ApiError::new(Code::REQUEST_INVALID, "a message of bytes has no meaning here");
                        send(socket, text(&json::failure(&error))).await
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => true,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return gone(),
                },
                _ = pings.tick() => send(socket, Message::Ping(bytes::Bytes::new())).await,
            };
            if !sent {
                return gone();
            }
        }
    }

    /// Passes an event on; false if the viewer is gone.
    async fn pass(&mut self, socket: &mut WebSocket, event: &Event) -> bool {
        if !send(socket, text(&self.events.next(event))).await {
            return false;
        }
        match event {
            Event::Frame(frame) => send(socket, Message::Binary(frame.jpeg.clone())).await,
            _ => true,
        }
    }

    /// Does what a message asks for; the answer.
    async fn change(&mut self, asked: &str) -> Value {
        let changed = async {
            let Asked::Update(wish) = serde_json::from_str(asked).map_err(|error| {
                let text = "a message is {\"type\": \"update\"} with latency_ms, accuracy or fps";
                ApiError::new(Code::REQUEST_INVALID, text).caused_by(error.to_string())
            })?;
            self.subscription.update(wish.changes()?).await
        };
        match changed.await {
            Ok(demand) => json::bounds("updated", self.subscription.started().id, &demand),
            Err(error) => json::failure(&error),
        }
    }
}

/// A message of a viewer.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Asked {
    Update(Wish),
}

/// The next verdict; forever where none is asked for.
async fn next_verdict(verdicts: Option<&mut mpsc::Receiver<Verdict>>) -> Option<Verdict> {
    match verdicts {
        Some(verdicts) => verdicts.recv().await,
        None => std::future::pending().await,
    }
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}
