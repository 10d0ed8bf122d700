//! `[log]`.

use std::{path::PathBuf, time::Duration};

use super::seconds;
use crate::{
    ByteCount, Config,
    words::{AtRest, Durability, LogFormat},
};

/// Most bytes of a log's entry in addition to its frame: the header of a stream log's entry is the longest.
pub const ENTRY_META_BYTES_MAX: u64 = 64 << 10;
/// Least bytes of the journals of MQTT, which `run` checks against their own limit.
pub const MQTT_BYTES_MIN: u64 = 256 << 20;
/// A log has at least four segments, each with room for the largest frame.
pub(super) const LOG_BOUND: &str = "at least 4 times frames.frame_bytes_max and 64KiB each";

/// Bytes that a log has at least, for the frames of this configuration.
pub(super) fn log_bytes_min(all: &Config) -> u64 {
    4 * (all.frames.frame_bytes_max.0 + ENTRY_META_BYTES_MAX)
}

section! {
    /// `[log]`: frames that are kept, in `data_dir/log`, and what MQTT keeps; and how the program's own log is written.
    LogSection: fixed {
        /// How the program's own log is written, on the standard error: `text`, or `json`, an object a line. Default `text`.
        format: LogFormat = LogFormat::Text,
        /// The failures that a frame survives once it was captured or has arrived: `memory` (none), `page` (the end of the
        /// process, kill -9 included) or `disk` (a loss of power, some ten milliseconds later). Default `page`.
        durability: Durability = Durability::Page,
        /// Bytes of originals kept for each camera, at the camera's node. Default `1GiB`: 7 minutes of 500
        /// kB frames at 5 a second.
        camera_bytes: ByteCount = ByteCount(1 << 30)
            => "at least 16 times frames.frame_bytes_max, or 128MiB if that is less"
                if |it, all| it.camera_bytes.0 >= 16 * all.frames.frame_bytes_max.0.min(8 << 20)
            => LOG_BOUND if |it, all| it.camera_bytes.0 >= log_bytes_min(all),
        /// Longest time that originals are kept; some longer, because they go by segments. Default `0s`: as long as there is room.
        camera_age: Duration = Duration::ZERO,
        /// Bytes kept of each transferred stream, in the edge node's memory. Default `128MiB`.
        stream_bytes: ByteCount = ByteCount(128 << 20)
            => LOG_BOUND if |it, all| it.stream_bytes.0 >= log_bytes_min(all),
        /// Bytes of the files in `data_dir/log/mqtt` at most: several times what sessions and retained messages hold. Default
        /// `2GiB`.
        mqtt_bytes: ByteCount = ByteCount(2 << 30)
            => "at least 256MiB" if |it, _| it.mqtt_bytes.0 >= MQTT_BYTES_MIN,
        /// With `mqtt.durability = "disk"`, how long an acknowledgement may wait for others, to share a write to the disk.
        /// Default `10ms`.
        mqtt_commit_delay: Duration = Duration::from_millis(10)
            => "at most 10s" if |it, _| it.mqtt_commit_delay <= seconds(10),
        /// How frames are on the disk: `clear`, or `sealed` with a key. Default `clear`.
        at_rest: AtRest = AtRest::Clear
            => "clear as long as log.key_file names no key; `tidegate key` makes one"
                if |it, _| it.at_rest == AtRest::Clear || it.key_file.is_some(),
        /// The node's key, which `tidegate key` makes. Default none.
        key_file: Option<PathBuf> = None,
        /// The key before that one, while logs are taken over. Default none.
        older_key_file: Option<PathBuf> = None,
        /// File with the passphrase of a key that is made from one. Default none.
        passphrase_file: Option<PathBuf> = None,
    }
}
