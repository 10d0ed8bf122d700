//! The medium that cameras and uplinks of other nodes share, such as a radio cell: whoever divides it, and whoever asks for a part.

use std::fmt;

use tidegate_message::Instant;
use tidegate_wire::Share;

/// Divides the medium between cameras and uplinks.
pub trait Medium: Send + Sync + fmt::Debug {
    /// An uplink has a link.
    fn uplink_came(&self);

    /// An uplink that came has none any more.
    fn uplink_left(&self);

    /// The part of each uplink at that time; none where nothing limits them.
    fn share_of_uplink(&self, now: Instant) -> Option<Share>;
}

/// A medium that nothing limits: each uplink has a link of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unshared;

impl Medium for Unshared {
    fn uplink_came(&self) {}

    fn uplink_left(&self) {}

    fn share_of_uplink(&self, _: Instant) -> Option<Share> {
        None
    }
}
