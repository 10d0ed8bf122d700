//! Frames one after another, as `multipart/x-mixed-replace`: an `<img>` shows them, and so do players and home automation.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Extension,
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::header,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use tidegate_api::{Event, Frame};
use tidegate_identity::auth::limits::Lease;
use tidegate_message::CameraName;
use tidegate_ports::Subscription;
use tidegate_rpc::{Failure, Frames, Identity};

use crate::{
    Web,
    boxes::{Drawer, Found},
    cameras::CAPTURED_AT,
    wish::{Pairs, Wish},
};

const CONTENT_TYPE: &str = "multipart/x-mixed-replace; boundary=tidegate-frame";
const FIRST: &[u8] = b"--tidegate-frame\r\n";
/// Directly behind a picture and not before the next one: browsers show a part once they know that it is whole.
const NEXT: &[u8] = b"\r\n--tidegate-frame\r\n";

pub(crate) async fn show(
    State(web): State<Web>,
    Extension(frames): Extension<Arc<dyn Frames>>,
    Extension(identity): Extension<Arc<Identity>>,
    Path(camera): Path<String>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Response, Failure> {
    let (wish, with_boxes) = Wish::with(query, "boxes")?;
    let request = wish.subscribe(&camera)?;
    let lease = web.callers.enter(&identity)?;
    let camera = request.camera.clone();
    let subscription = frames.subscribe(request).await?;
    let found = match with_boxes {
        true => Some(Found::of(web.bus.as_ref(), &web.access, &identity, &camera).await?),
        false => None,
    };
    let viewer = Viewer { camera, subscription, found, drawer: web.drawer, _lease: lease };
    // One that reads slowly is asked for no frame meanwhile, so that the subscription skips those that are too old.
    let parts = stream::unfold(viewer, |mut viewer| async move {
        let part = viewer.part().await?;
        Some((part, viewer))
    });
    let chunks = parts.flat_map(stream::iter);
    let first = stream::once(async { Bytes::from_static(FIRST) });
    let chunks = first.chain(chunks).map(Ok::<_, Infallible>);
    let body = Body::from_stream(chunks.take_until(web.stop.cancelled_owned()));
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response())
}

struct Viewer {
    camera: CameraName,
    subscription: Box<dyn Subscription>,
    /// The newest detections, if boxes are asked for.
    found: Option<Found>,
    drawer: Arc<Drawer>,
    _lease: Lease,
}

impl Viewer {
    /// The next part: its head, its picture, and the beginning of the part behind it. None at the end.
    async fn part(&mut self) -> Option<[Bytes; 3]> {
        let frame = self.frame().await?;
        let boxes = self.found.as_ref().map(|found| found.near(frame.captured_at.as_nanos()));
        let jpeg = match boxes {
            Some(boxes) => self.drawer.draw(&self.camera, &frame, boxes).await,
            None => frame.jpeg,
        };
        let head = format!(
            "Content-Type: image/jpeg\r\nContent-Length: {}\r\n{}: {}\r\n\r\n",
            jpeg.len(),
            CAPTURED_AT.as_str(),
            frame.captured_at.as_nanos(),
        );
        Some([head.into(), jpeg, Bytes::from_static(NEXT)])
    }

    /// The next frame; none at the end, or once the viewer may see no more.
    async fn frame(&mut self) -> Option<Frame> {
        loop {
            let more = async {
                match &mut self.found {
                    Some(found) => found.more().await,
                    None => std::future::pending().await,
                }
            };
            let ended = tokio::select! {
                event = self.subscription.next_event() => match event? {
                    Ok(Event::Frame(frame)) => return Some(frame),
                    Ok(Event::Ended(_)) => return None,
                    Ok(_) => continue,
                    Err(error) => error,
                },
                more = more => match more {
                    Ok(()) => continue,
                    Err(error) => error,
                },
            };
            tracing::debug!(camera = %self.camera, error = %ended, "a view of a camera ended");
            return None;
        }
    }
}
