//! The settings of detection.

use std::time::Duration;

/// The limits and times of detection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisionSettings {
    /// Largest encoded image, in bytes; default 16 MiB.
    pub image_bytes_max: usize,
    /// Bytes of requests that may be held at a time, of all callers together; default 256 MiB. One caller has at most three quarters
    /// of what the others leave.
    pub held_bytes_max: usize,
    /// Images of one WebSocket that may be under way before its answers are there; default 8. Beyond it nothing more is read from it.
    pub window: usize,
    /// WebSockets that may be open; default 4096.
    pub sockets_max: usize,
    /// Longest silence in the middle of a request; default 30 s.
    pub request_timeout: Duration,
    /// Longest silence of a WebSocket, or of a connection of the persistent protocol, between two requests; default 5 min.
    pub idle_timeout: Duration,
    /// The model of the paper's `/detector/detect/`; default `face`.
    pub face_model: String,
}

impl Default for VisionSettings {
    fn default() -> Self {
        Self {
            image_bytes_max: 16 << 20,
            held_bytes_max: 256 << 20,
            window: 8,
            sockets_max: 4096,
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            face_model: "face".to_owned(),
        }
    }
}
