//! The cameras of the node, and untouched frames.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Query, rejection::QueryRejection},
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_api::{ApiError, CameraInfo, Original};
use tidegate_message::{CameraName, Code, Instant};
use tidegate_rpc::{Failure, Frames};

/// The capture time of a picture, in nanoseconds since 1970 by the camera's clock.
pub(crate) static CAPTURED_AT: HeaderName = HeaderName::from_static("tidegate-captured-at");

/// Tries to have the newest frame: one that was just overwritten in a small log is followed by others.
const TRIES: usize = 3;

/// Those that the caller may read.
type Seen = Extension<Arc<dyn Frames>>;

pub(crate) async fn list(Extension(frames): Seen) -> Result<Json<Value>, Failure> {
    let cameras = frames.cameras().await?;
    Ok(Json(json!({ "cameras": cameras.iter().map(camera).collect::<Vec<_>>() })))
}

fn camera(info: &CameraInfo) -> Value {
    json!({
        "name": info.name.as_str(),
        "online": info.online,
        "size": info.size.map(|size| [size.width, size.height]),
        "fps": info.frames_per_second,
        "frame_bytes": info.frame_bytes,
        "oldest_at": info.oldest_at.map(Instant::as_nanos),
        "newest_at": info.newest_at.map(Instant::as_nanos),
        "log_bytes": info.log_bytes,
        "log_bytes_max": info.log_bytes_max,
        "transfers": info.transfers,
        "subscriptions": info.subscriptions,
        "transport": info.transport,
        "no_frames": info.no_frames,
        "capture_clock": info.capture_clock,
        "substream_of": info.substream_of.as_ref().map(CameraName::as_str),
        "node": info.node,
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct At {
    /// A capture time in nanoseconds; the newest frame's if none is named.
    at: Option<i64>,
}

pub(crate) async fn snapshot(
    Extension(frames): Seen,
    Path(name): Path<String>,
    at: Result<Query<At>, QueryRejection>,
) -> Result<Response, Failure> {
    let name: CameraName = name.parse().map_err(ApiError::from)?;
    let Query(At { at }) = at.map_err(|rejection| {
        let text = "the query may have `at`, a capture time in nanoseconds";
        Failure::invalid(format!("{text}: {}", rejection.body_text()))
    })?;
    let original = match at {
        Some(at) => frames.fetch_original(&name, Instant::from_nanos(at)).await?,
        None => newest(&*frames, &name).await?,
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("image/jpeg")),
        (CAPTURED_AT.clone(), HeaderValue::from(original.captured_at.as_nanos())),
    ];
    Ok((headers, original.jpeg).into_response())
}

async fn newest(frames: &dyn Frames, name: &CameraName) -> Result<Original, ApiError> {
    let mut tries = 1;
    loop {
        let newest = frames.camera(name).await?.newest_at.ok_or_else(|| {
            ApiError::new(Code::FRAME_MISSING, format!("camera {name} has no frame yet"))
        })?;
        match frames.fetch_original(name, newest).await {
            Err(error) if error.code() == Code::FRAME_MISSING && tries < TRIES => tries += 1,
            fetched => return fetched,
        }
    }
}
