//! The inputs of a transfer and its commands.

use std::{sync::Arc, time::Duration};

use tidegate_message::{Demand, DropReason, FrameSize, Instant};

use super::Report;
use crate::knob::KnobSetting;

/// Events that a transfer is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A frame was appended to the camera's log.
    Captured {
        /// Its capture time, which names it.
        at: Instant,
        /// Size of the unmodified frame.
        bytes: u32,
        /// Its width and height.
        size: FrameSize,
        /// Whether it comes from the past: its latency then counts from sending.
        replayed: bool,
    },
    /// The encoder is done with a frame.
    Encoded {
        /// The frame.
        frame: Instant,
        /// Size of the result.
        bytes: u32,
        /// Time it took.
        took: Duration,
    },
    /// Differencing found nothing new in a frame.
    Unchanged {
        /// The frame.
        frame: Instant,
        /// Part of the image that changed, 0 to 1.
        changed: f32,
        /// Time it took to see that.
        took: Duration,
    },
    /// The encoder could not change a frame.
    EncodeFailed {
        /// The frame.
        frame: Instant,
        /// Whether its picture is why: it is damaged. Else the encoder has no room, or has ended.
        is_damaged: bool,
    },
    /// The link did not take a frame: too many are under way.
    NotSent {
        /// The frame.
        frame: Instant,
    },
    /// The first byte of a frame was handed to the link.
    Started {
        /// The frame.
        frame: Instant,
    },
    /// The receiver's word about a frame: its first byte, every 10 ms of progress, its last byte.
    Ack {
        /// The frame.
        frame: Instant,
        /// Bytes that have arrived.
        received: u32,
        /// Bytes it has.
        total: u32,
        /// Arrival of the first byte, by the receiver's clock.
        first_at: Instant,
        /// Arrival of the newest byte, by the receiver's clock.
        last_at: Instant,
        /// Whether that was all.
        complete: bool,
    },
    /// The link's measurements of its path.
    Path {
        /// Smoothed round trip.
        rtt: Duration,
        /// Shortest round trip of late.
        rtt_min: Duration,
        /// Bytes on the way, of whatever transfer.
        in_flight: u64,
    },
    /// This camera's part of the link, from the edge node; forgotten after `valid_for`.
    Share {
        /// Bytes per second; nothing lifts the limit.
        bytes_per_second: Option<f64>,
        /// How long it holds.
        valid_for: Duration,
    },
    /// The subscription was changed.
    Demand(Demand),
    /// The link broke: frames on the way are lost.
    LinkDown,
    /// The link is back.
    LinkUp,
}

/// Commands of a transfer.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Change a frame; answer with `Encoded`, `Unchanged` or `EncodeFailed`.
    Encode {
        /// The frame.
        frame: Instant,
        /// The knob setting.
        setting: KnobSetting,
        /// Bytes that would fit; a result above may be sent back for another try.
        bytes_max: u32,
    },
    /// Send the frame that was just encoded.
    Send {
        /// The frame.
        frame: Instant,
        /// When its bytes stop being worth sending; [`Instant::MAX`] for never.
        deadline: Instant,
        /// The header to send with it.
        header: SendHeader,
    },
    /// Tell the receiver that nothing changed in this frame.
    SendUnchanged {
        /// The frame.
        frame: Instant,
    },
    /// Stop sending a frame: its deadline has come, or it will miss it and a smaller encoding of the
    /// same frame follows.
    Reset {
        /// The frame.
        frame: Instant,
    },
    /// A frame will not be delivered; the camera's log still has the original.
    Drop {
        /// The frame.
        frame: Instant,
        /// Why.
        why: DropReason,
    },
    /// Something the subscriber should know.
    Report(Report),
}

/// The header that travels with a frame.
#[derive(Clone, Debug, PartialEq)]
pub struct SendHeader {
    /// Row of the table.
    pub row: u32,
    /// The knob setting of the frame.
    pub setting: KnobSetting,
    /// Size of the encoded frame.
    pub bytes: u32,
    /// Normalized F1 that the table promises.
    pub accuracy: f64,
    /// Whether that keeps the accuracy bound.
    pub accuracy_kept: bool,
    /// Whether the frame comes from the past.
    pub replayed: bool,
    /// Time spent encoding, all tries together.
    pub encode: Duration,
    /// How often it was encoded.
    pub encodes: u8,
    /// Estimated capacity in bytes per second, if known.
    pub bytes_per_second: Option<f64>,
    /// Why the knobs stand where they stand, in one sentence.
    pub reason: Arc<str>,
}
