//! Settings of a transfer.

use std::time::Duration;

use crate::{
    capacity::CapacityConfig,
    controller::ControllerConfig,
    table::{Cut, Wanted},
};

/// Settings of a transfer; the defaults are right for most.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferConfig {
    /// Settings of the controllers.
    pub controllers: ControllerConfig,
    /// Settings of the capacity estimator.
    pub capacity: CapacityConfig,
    /// Which table is looked for: detector, its input size, scene class.
    pub wanted: Wanted,
    /// Which rows are left out; `mez-pi` on profile `mez` sees the paper's tables whole.
    pub cut: Cut,
    /// Time from the receiver's last byte to the application's callback. Default 5 ms.
    pub delivery: Duration,
    /// How often one frame is encoded at most. Default 2.
    pub encodes_max: u8,
    /// Whether a frame that will miss its deadline is taken back and sent again smaller. Default true.
    pub rescue: bool,
    /// Encode time assumed before one was measured. Default 10 ms.
    pub encode_first: Duration,
    /// Frame period assumed before one was measured. Default 200 ms.
    pub period_first: Duration,
    /// Longest silence on a path that seems to carry nothing: then one frame is tried. Default 500 ms.
    pub trial: Duration,
    /// Frames that may wait, of [`Delivery::Every`](tidegate_message::Delivery::Every) and from the past;
    /// one more is dropped as `queue full`. Default 16,384.
    pub waiting_max: usize,
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            controllers: ControllerConfig::default(),
            capacity: CapacityConfig::default(),
            wanted: Wanted::default(),
            cut: Cut::default(),
            delivery: Duration::from_millis(5),
            encodes_max: 2,
            rescue: true,
            encode_first: Duration::from_millis(10),
            period_first: Duration::from_millis(200),
            trial: Duration::from_millis(500),
            waiting_max: 16_384,
        }
    }
}
