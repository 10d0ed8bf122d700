//! Reports of a node on its cameras and on itself.

use std::time::Duration;

use bytes::Bytes;
use tidegate_message::{CameraName, FrameSize, Instant};

/// A camera as its node knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct CameraInfo {
    /// The camera.
    pub name: CameraName,
    /// Whether it is reached now.
    pub online: bool,
    /// Size of the newest frame; none before the first.
    pub size: Option<FrameSize>,
    /// Measured over the last seconds; 0 before the second frame.
    pub frames_per_second: f64,
    /// Mean size of recent originals, in bytes.
    pub frame_bytes: u64,
    /// Capture time of the oldest frame that can be fetched; none while the log is empty.
    pub oldest_at: Option<Instant>,
    /// Capture time of the newest frame; none while the log is empty.
    pub newest_at: Option<Instant>,
    /// Bytes in the camera's log.
    pub log_bytes: u64,
    /// Bound of the camera's log, in bytes.
    pub log_bytes_max: u64,
    /// Transfers that the camera sends now.
    pub transfers: u32,
    /// Subscriptions that these serve.
    pub subscriptions: u32,
    /// How its frames come: `quic`, `tcp`, `api` or `local`; empty while offline.
    pub transport: String,
    /// The camera's clock against the node's; none where both are one.
    pub clock_offset: Option<ClockOffset>,
    /// Why it gives no frames although it is online, in one sentence; none while it gives some or is offline. Of a camera of another node
    /// also why that node says nothing of it.
    pub no_frames: Option<String>,
    /// By which clock its frames are timed, in one sentence, where something is wrong with that; none where nothing is.
    pub capture_clock: Option<String>,
    /// The camera of the node's configuration whose substream it is; none if it is no substream.
    pub substream_of: Option<CameraName>,
    /// The node that has it, where that is another one than the node that answers.
    pub node: Option<String>,
}

/// An estimate of the offset between two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Nanoseconds to add to the camera's time to get the node's; may be negative.
    pub offset_nanos: i64,
    /// The true offset lies within this of the estimate.
    pub uncertainty: Duration,
}

/// An untouched frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Original {
    /// When it was captured.
    pub captured_at: Instant,
    /// The JPEG as the camera made it.
    pub jpeg: Bytes,
}

/// The server's description of itself, for a client that connects.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerInfo {
    /// Names the client, unique among all clients of the server.
    pub client_id: String,
    /// Name of the node.
    pub node: String,
    /// Version of the server program.
    pub version: String,
    /// The server's clock while it answered.
    pub server_at: Instant,
    /// Largest frame that is accepted and delivered, in bytes.
    pub frame_bytes_max: u64,
}
