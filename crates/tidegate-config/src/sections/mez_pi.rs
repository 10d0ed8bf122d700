//! `[mez_pi]`.

use std::time::Duration;

section! {
    /// `[mez_pi]`: the controller of the Mez paper, for all cameras of this node; `budget` needs none of it.
    MezPiSection: fixed {
        /// Latency over frame size, as `tidegate characterize --link` measures it, in milliseconds a megabyte.
        /// Default: the line through the paper's Table 1.
        slope_ms_per_megabyte: f64 = 430.26833537545946,
        /// The same line's latency of an empty frame, in milliseconds.
        intercept_ms: f64 = -148.03931909679682,
        /// K1: bytes of correction for each millisecond of error; negative. Default -6000.
        k1_bytes_per_ms: f64 = -6_000.0,
        /// K2: bytes of correction for each millisecond of error that lasts a second; negative. Default -250.
        k2_bytes_per_ms_second: f64 = -250.0,
        /// An error up to this is let be. Default `20ms`.
        threshold: Duration = Duration::from_millis(20),
        /// Time that latency is averaged over. Default `4s`.
        interval: Duration = Duration::from_secs(4),
    }
}
