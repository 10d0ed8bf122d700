//! Knobs: operations that make a JPEG frame smaller.
//!
//! ```text
//!  JPEG ──▶ inspect ──▶ entropy decode ─┬─▶ coefficients: requantise, drop, coarsen ─────┬─▶ JPEG
//!                            │          └─▶ planes: scale (mez: resize, colour, blur) ───┘
//!                            └─▶ 1/8 image ─▶ motion, difference ─▶ mask, or `Unchanged`
//! ```
//!
//! A [`KnobSetting`] says what to do, a [`Transcoder`] does it. One transcoder serves one camera and keeps its
//! buffers; a [`TransferState`] keeps what one transfer has seen and sent.
//!
//! Always true: the result of [`Transcoder::apply`] is a complete JPEG image or an error, for any input; it is seen as the input
//! is: turned as its EXIF says, its colours by its profile. A frame of which a part is damaged or missing is read as far as it
//! goes and [counted](Transcoder::damaged).

mod mez;
mod mez_frame;
mod motion;
mod pixels;
mod setting;
#[cfg(test)]
mod tests;
mod transcoder;

use tidegate_jpeg::{CodecError, Coding, Header, HeaderError, Limits, Orientation, Sampling};
use tidegate_message::FrameSize;

pub use mez::{ArtifactRemoval, Blur, ColorSpace, Difference, MezKnobs, Resolution};
pub use motion::TransferState;
pub use setting::{JpegKnobs, KnobError, KnobSetting, Knobs, Scale};
pub use transcoder::{Applied, Transcoder};

/// Bounds on the frames that are looked at, so that a decompression bomb is refused before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Largest frame in bytes; default 16 MiB.
    pub bytes_max: usize,
    /// Largest frame in pixels; default 4096 x 4096.
    pub pixels_max: u32,
}

impl Default for FrameLimits {
    fn default() -> Self {
        let Limits { bytes_max, pixels_max } = Limits::default();
        Self { bytes_max, pixels_max }
    }
}

impl FrameLimits {
    pub(crate) fn of_jpeg(&self) -> Limits {
        Limits { bytes_max: self.bytes_max, pixels_max: self.pixels_max }
    }
}

/// A frame as its header alone describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// Width and height in pixels, each 1 to 65500.
    pub size: FrameSize,
    /// 1 (gray) or 3 (Y, Cb, Cr).
    pub components: u8,
    /// Chroma against luma.
    pub subsampling: Subsampling,
    /// Whether the frame is coded progressively. Every knob works on it, at about twice the time.
    pub progressive: bool,
    /// How it is turned to be seen.
    pub orientation: Orientation,
    /// Whether it has an end marker; one that was cut short has none.
    pub ended: bool,
}

impl FrameInfo {
    /// Width and height of the picture as it is seen.
    pub fn seen_size(&self) -> FrameSize {
        let (width, height) = self.orientation.seen(self.size.width, self.size.height);
        FrameSize { width, height }
    }
}

/// How chroma is sampled against luma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsampling {
    /// No chroma.
    Gray,
    /// Full chroma.
    S444,
    /// Half across.
    S422,
    /// Half across and down; sent by most cameras.
    S420,
    /// Half down.
    S440,
    /// A quarter across.
    S411,
    /// Anything else.
    Other,
}

/// Reads what a frame is without decoding it, in microseconds.
///
/// # Errors
/// [`FrameError`] for everything that [`Transcoder::apply`] would refuse by its header.
pub fn inspect(jpeg: &[u8], limits: &FrameLimits) -> Result<FrameInfo, FrameError> {
    Ok(info(&Header::read(jpeg, &limits.of_jpeg())?))
}

fn info(header: &Header) -> FrameInfo {
    let [first, second, third] = header.sampling;
    let ratio = |s: Sampling| (first.horizontal / s.horizontal, first.vertical / s.vertical);
    let subsampling = match header.components {
        1 => Subsampling::Gray,
        _ if second != third => Subsampling::Other,
        _ => match ratio(second) {
            (1, 1) => Subsampling::S444,
            (2, 1) => Subsampling::S422,
            (2, 2) => Subsampling::S420,
            (1, 2) => Subsampling::S440,
            (4, 1) => Subsampling::S411,
            _ => Subsampling::Other,
        },
    };
    FrameInfo {
        size: FrameSize { width: header.width, height: header.height },
        components: header.components,
        subsampling,
        progressive: header.coding == Coding::Progressive,
        orientation: header.orientation,
        ended: header.ended,
    }
}

/// Why a frame cannot be carried.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// The bytes are no JPEG image.
    #[error("the frame is not a JPEG image; it does not start with ff d8")]
    NotJpeg,
    /// The bytes end before the picture begins.
    #[error("the frame is cut short before its picture begins")]
    Truncated,
    /// The image has no end marker, where one is asked for.
    #[error("the frame is cut short: its JPEG image has no end marker, ff d9")]
    NoEnd,
    /// Over a limit.
    #[error("the frame has {value} {what}, over the limit of {limit}")]
    TooLarge {
        /// `bytes` or `pixels`.
        what: &'static str,
        /// How many it has.
        value: u64,
        /// How many it may have.
        limit: u64,
    },
    /// A side of zero pixels.
    #[error("the frame is {width}x{height} pixels")]
    Empty {
        /// Width in pixels.
        width: u16,
        /// Height in pixels.
        height: u16,
    },
    /// A kind of JPEG that is not carried.
    #[error("the frame is JPEG with {what}; cameras must send 8-bit gray or YCbCr, Huffman coded")]
    Unsupported {
        /// The feature found.
        what: &'static str,
    },
    /// Markers that contradict the standard.
    #[error("the frame is a malformed JPEG image: {what}")]
    Malformed {
        /// Where.
        what: &'static str,
    },
    /// Picture data that is wrong or missing in part, where all of it is needed.
    #[error(
        "the frame's picture data is wrong or missing in {places} places; regions are covered only where all of the picture is there"
    )]
    Damaged {
        /// How many.
        places: u32,
    },
    /// Picture data that cannot be decoded.
    #[error("the frame cannot be decoded")]
    Undecodable(#[from] CodecError),
}

impl From<HeaderError> for FrameError {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::NotJpeg => Self::NotJpeg,
            HeaderError::Truncated => Self::Truncated,
            HeaderError::Bytes { bytes, limit } => {
                Self::TooLarge { what: "bytes", value: bytes as u64, limit: limit as u64 }
            }
            HeaderError::Pixels { width, height, limit } => Self::TooLarge {
                what: "pixels",
                value: u64::from(width) * u64::from(height),
                limit: u64::from(limit),
            },
            HeaderError::Empty { width, height } => Self::Empty { width, height },
            HeaderError::Unsupported { what } => Self::Unsupported { what },
            HeaderError::Malformed { what } => Self::Malformed { what },
        }
    }
}
