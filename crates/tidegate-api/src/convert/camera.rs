//! Cameras and the node itself.

use tidegate_message::{FrameSize, FrameSizeError, Instant};

use super::{duration, lacks, nanos};
use crate::{ApiError, CameraInfo, ClockOffset, ServerInfo, proto};

impl From<FrameSize> for proto::FrameSize {
    fn from(size: FrameSize) -> Self {
        Self { width: size.width.into(), height: size.height.into() }
    }
}

impl TryFrom<proto::FrameSize> for FrameSize {
    type Error = ApiError;

    fn try_from(size: proto::FrameSize) -> Result<Self, ApiError> {
        let side = |pixels: u32| u16::try_from(pixels).ok().filter(|&pixels| pixels > 0);
        match (side(size.width), side(size.height)) {
            (Some(width), Some(height)) => Ok(Self { width, height }),
            _ => Err(FrameSizeError.into()),
        }
    }
}

impl From<CameraInfo> for proto::Camera {
    fn from(camera: CameraInfo) -> Self {
        Self {
            name: camera.name.to_string(),
            online: camera.online,
            size: camera.size.map(Into::into),
            frames_per_second: camera.frames_per_second,
            frame_bytes: camera.frame_bytes,
            oldest_at: camera.oldest_at.map(Instant::as_nanos),
            newest_at: camera.newest_at.map(Instant::as_nanos),
            log_bytes: camera.log_bytes,
            log_bytes_max: camera.log_bytes_max,
            transfers: camera.transfers,
            subscriptions: camera.subscriptions,
            transport: camera.transport,
            clock_offset: camera.clock_offset.map(|clock| proto::ClockOffset {
                offset_nanos: clock.offset_nanos,
                uncertainty_nanos: nanos(clock.uncertainty),
            }),
            no_frames: camera.no_frames.unwrap_or_default(),
            capture_clock: camera.capture_clock.unwrap_or_default(),
            substream_of: camera.substream_of.map(|name| name.to_string()).unwrap_or_default(),
            node: camera.node.unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::Camera> for CameraInfo {
    type Error = ApiError;

    fn try_from(camera: proto::Camera) -> Result<Self, ApiError> {
        Ok(Self {
            name: camera.name.parse().map_err(|_| lacks("Camera", "name"))?,
            online: camera.online,
            size: camera.size.map(TryInto::try_into).transpose()?,
            frames_per_second: camera.frames_per_second,
            frame_bytes: camera.frame_bytes,
            oldest_at: camera.oldest_at.map(Instant::from_nanos),
            newest_at: camera.newest_at.map(Instant::from_nanos),
            log_bytes: camera.log_bytes,
            log_bytes_max: camera.log_bytes_max,
            transfers: camera.transfers,
            subscriptions: camera.subscriptions,
            transport: camera.transport,
            clock_offset: camera.clock_offset.map(|clock| ClockOffset {
                offset_nanos: clock.offset_nanos,
                uncertainty: duration(clock.uncertainty_nanos),
            }),
            no_frames: Some(camera.no_frames).filter(|sentence| !sentence.is_empty()),
            capture_clock: Some(camera.capture_clock).filter(|sentence| !sentence.is_empty()),
            substream_of: Some(camera.substream_of)
                .filter(|name| !name.is_empty())
                .map(|name| name.parse().map_err(|_| lacks("Camera", "substream_of")))
                .transpose()?,
            node: Some(camera.node).filter(|node| !node.is_empty()),
        })
    }
}

impl From<ServerInfo> for proto::ConnectResponse {
    fn from(server: ServerInfo) -> Self {
        Self {
            client_id: server.client_id,
            node: server.node,
            version: server.version,
            server_at: server.server_at.as_nanos(),
            frame_bytes_max: server.frame_bytes_max,
        }
    }
}

impl From<proto::ConnectResponse> for ServerInfo {
    fn from(answer: proto::ConnectResponse) -> Self {
        Self {
            client_id: answer.client_id,
            node: answer.node,
            version: answer.version,
            server_at: Instant::from_nanos(answer.server_at),
            frame_bytes_max: answer.frame_bytes_max,
        }
    }
}
