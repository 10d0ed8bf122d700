//! `[log.camera.NAME]`.

use std::time::Duration;

use super::log::{LOG_BOUND, log_bytes_min};
use crate::{ByteCount, words::Durability};

section! {
    /// `[log.camera.NAME]`: settings for one camera in place of those of `[log]`.
    LogCameraSection: fixed {
        /// As in `[log]`. Default none.
        durability: Option<Durability> = None,
        /// Bytes of originals kept. Default none.
        bytes: Option<ByteCount> = None
            => LOG_BOUND if |it, all| it.bytes.is_none_or(|bytes| bytes.0 >= log_bytes_min(all)),
        /// Longest time that they are kept. Default none.
        age: Option<Duration> = None,
    }
}
