//! `[frames]`.

use std::{path::PathBuf, time::Duration};

use tidegate_message::{CameraName, FrameSize};

use super::{name, seconds};
use crate::ByteCount;

/// Room for a frame in a message of the API, in addition to the other fields there. `run` checks it against the API's own limit.
pub const FRAME_BYTES_MOST: u64 = (64 << 20) - (1 << 20);

section! {
    /// `[frames]`: cameras and what is done to their frames.
    FramesSection: fixed {
        /// Folder of the characterization tables. Default none: `tables` in the data folder, if it is there. `NAME.table` is the table of the camera of that name; `tidegate
        /// characterize` writes there.
        tables_dir: Option<PathBuf> = None,
        /// Detector whose table is used where a subscription names none. Default `moving`.
        detector: CameraName = name("moving"),
        /// Size that the detector scales frames to before it looks; picks the table. Default none: the
        /// frame's own.
        detector_input: Option<FrameSize> = None,
        /// Scene class of the table where a subscription names none. Default none: any.
        scene: Option<CameraName> = None,
        /// Largest frame of a camera or publisher. Default `8MB`, which fits the segments of a log; larger ones make
        /// its segments larger; at most `63MiB`.
        frame_bytes_max: ByteCount = ByteCount(8_000_000)
            => "from 1KiB to 63MiB" if |it, _| (1 << 10..=FRAME_BYTES_MOST).contains(&it.frame_bytes_max.0),
        /// Most pixels of a frame: an image of few bytes can claim more than memory holds. Default
        /// 40000000, an 8K frame and some more.
        frame_pixels_max: u32 = 40_000_000
            => "at least 64" if |it, _| it.frame_pixels_max >= 64,
        /// How far a frame's timestamp may lie ahead of this node's clock. Default `1s`.
        future_tolerance: Duration = Duration::from_secs(1)
            => "at most 1h" if |it, _| it.future_tolerance <= seconds(3600),
    }
}
