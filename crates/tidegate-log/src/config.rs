//! The bounds of a log.

/// How much a log keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The most bytes that the log holds of storage and index together, entries that readers pin
    /// included. At least all but the last two segments' worth is entries. Default 1 GiB: 7 minutes and
    /// more at 5 frames of 500 KB a second.
    pub bytes_max: u64,
    /// Size of a segment in bytes: the largest entry, the granule in which old entries are dropped, and
    /// what one pinned entry keeps in memory. Default 8 MiB; at most a quarter of `bytes_max`, and less
    /// than 4 GiB.
    pub segment_bytes: u64,
}

impl LogConfig {
    /// A log of at most `bytes_max` bytes, in segments of a sixteenth of that, 8 MiB at most.
    pub fn bounded(bytes_max: u64) -> Self {
        Self { bytes_max, segment_bytes: (bytes_max / 16).min(8 << 20) }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self::bounded(1 << 30)
    }
}
