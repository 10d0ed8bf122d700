//! The header of a JPEG frame, read from its markers before anything is decoded.
//!
//! The walk ends at the first start of scan, so its cost does not grow with the picture. It decides what the
//! rest of the crate accepts: the C library is only shown frames that passed here, and checks that it read the
//! same header. It is as tolerant as that library: bytes between segments are skipped, markers without a segment as well, and
//! what lies behind the first scan header is not asked for. A start of image that is there twice is tolerated, too.
//!
//! Always true of a [`Header`]: width and height are at least 1 and within the limits; there is one component,
//! or three of which none is sampled more densely than the first and each divides it evenly.

use crate::metadata::{self, Orientation};

/// Bounds on what is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest frame in bytes; default 16 MiB.
    pub bytes_max: usize,
    /// Largest picture in pixels; default 4096 x 4096, which holds 4K video. Coefficients of that many pixels
    /// take up to 100 MB while a region-of-interest or progressive frame is worked on.
    pub pixels_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_max: 16 << 20, pixels_max: 4096 * 4096 }
    }
}

/// How the coefficients are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// One sequence of complete blocks, Huffman coded (SOF0 and SOF1).
    Sequential,
    /// Several scans that refine each other, Huffman coded (SOF2).
    Progressive,
}

/// How many samples of a component stand in the unit that repeats, across and down, each 1 to 4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// Across.
    pub horizontal: u8,
    /// Down.
    pub vertical: u8,
}

/// The properties of a frame, from its markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pixels from left to right, 1 to 65500.
    pub width: u16,
    /// Pixels from top to bottom, 1 to 65500.
    pub height: u16,
    /// 1 (gray) or 3 (Y, Cb, Cr).
    pub components: u8,
    /// How the coefficients are coded.
    pub coding: Coding,
    /// Sampling by component; the third and second are zero for gray.
    pub sampling: [Sampling; 3],
    /// Units between restart markers, 0 without.
    pub restart_interval: u16,
    /// How the picture is turned to be seen.
    pub orientation: Orientation,
    /// Whether there is an end marker behind the first scan header. Where the bytes were cut there is none, for coded data never
    /// holds one; some writers leave it out.
    pub ended: bool,
    /// Where the image begins: at its last start marker, if it has more than one.
    pub(crate) start: usize,
}

/// Largest side that the C library takes, in pixels.
pub const SIDE_MAX: u16 = 65_500;

impl Header {
    /// Reads the header of `jpeg`.
    ///
    /// # Errors
    /// [`HeaderError`] names what is wrong; nothing has been decoded or allocated then.
    pub fn read(jpeg: &[u8], limits: &Limits) -> Result<Self, HeaderError> {
        if jpeg.len() > limits.bytes_max {
            return Err(HeaderError::Bytes { bytes: jpeg.len(), limit: limits.bytes_max });
        }
        match jpeg {
            [0xff, 0xd8, ..] => {}
            [] | [0xff] => return Err(HeaderError::Truncated),
            _ => return Err(HeaderError::NotJpeg),
        }
        let start = image_start(jpeg);
        let mut walk = Walk { jpeg, at: start + 2 };
        let header = Found::default().find_scan(&mut walk, limits)?;
        let ended = jpeg[walk.at..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
        Ok(Self { ended, start, ..header })
    }

    /// Luma blocks across and down in the unit that repeats.
    pub const fn unit(&self) -> (usize, usize) {
        // A gray frame's only component is coded block by block, whatever its sampling says.
        match self.components {
            1 => (1, 1),
            _ => (self.sampling[0].horizontal as usize, self.sampling[0].vertical as usize),
        }
    }

    /// Repeating units across and down: the grid of macroblock masks.
    pub const fn units(&self) -> (usize, usize) {
        let (h, v) = self.unit();
        ((self.width as usize).div_ceil(8 * h), (self.height as usize).div_ceil(8 * v))
    }

    /// Size of the 1/8 image: one pixel for each 8x8 block of luma.
    pub const fn eighth(&self) -> (usize, usize) {
        ((self.width as usize).div_ceil(8), (self.height as usize).div_ceil(8))
    }
}

/// Where the image begins: start markers that follow each other are one.
fn image_start(jpeg: &[u8]) -> usize {
    let mut walk = Walk { jpeg, at: 2 };
    let mut start = 0;
    while jpeg.get(walk.at) == Some(&0xff) && walk.marker() == Ok(0xd8) {
        start = walk.at - 2;
    }
    start
}

/// The segments of an image before its first scan, each with its marker.
pub(crate) fn segments(jpeg: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut walk = Walk { jpeg, at: image_start(jpeg) + 2 };
    std::iter::from_fn(move || walk.next().ok().filter(|(marker, _)| *marker != 0xda))
}

/// The values read from the segments so far.
#[derive(Default)]
struct Found {
    frame: Option<(Header, [u8; 3])>,
    jfif: bool,
    adobe: Option<u8>,
    restart: u16,
    orientation: Option<Orientation>,
}

impl Found {
    fn find_scan(&mut self, walk: &mut Walk<'_>, limits: &Limits) -> Result<Header, HeaderError> {
        loop {
            let (marker, segment) = walk.next()?;
            match marker {
                0xc0..=0xc2 => {
                    if self.frame.is_some() {
                        return Err(HeaderError::Malformed { what: "two frame headers" });
                    }
                    self.frame = Some(frame_header(marker, segment, limits)?);
                }
                0xc3 | 0xc7 | 0xcb | 0xcf => return unsupported("lossless coding"),
                0xc5 | 0xc6 | 0xcd | 0xce => return unsupported("hierarchical coding"),
                0xc9 | 0xca | 0xcc => return unsupported("arithmetic coding"),
                0xdd => match segment {
                    [high, low] => self.restart = u16::from_be_bytes([*high, *low]),
                    _ => return Err(HeaderError::Malformed { what: "restart interval" }),
                },
                0xe0 if segment.starts_with(b"JFIF\0") => self.jfif = true,
                0xe1 if self.orientation.is_none() && metadata::is_exif(segment) => {
                    self.orientation = Some(metadata::orientation(segment));
                }
                0xee if segment.starts_with(b"Adobe") && segment.len() >= 12 => {
                    self.adobe = Some(segment[11]);
                }
                0xda => return self.finish(),
                _ => {}
            }
        }
    }

    fn finish(&self) -> Result<Header, HeaderError> {
        let (header, ids) =
            self.frame.ok_or(HeaderError::Malformed { what: "a scan before the frame header" })?;
        // The same rules as the C library: JFIF means Y Cb Cr, then Adobe's word, then the component names.
        let rgb = header.components == 3
            && !self.jfif
            && self.adobe.map_or(ids == *b"RGB", |transform| transform == 0);
        if rgb {
            return unsupported("RGB components");
        }
        let orientation = self.orientation.unwrap_or_default();
        Ok(Header { restart_interval: self.restart, orientation, ..header })
    }
}

struct Walk<'a> {
    jpeg: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    /// The next segment with its marker, up to the end of the image.
    fn next(&mut self) -> Result<(u8, &'a [u8]), HeaderError> {
        loop {
            return match self.marker()? {
                // Restart and TEM stand alone and say nothing here.
                0x01 | 0xd0..=0xd7 => continue,
                0xd8 => Err(HeaderError::Malformed { what: "marker order" }),
                0xd9 => Err(HeaderError::Malformed { what: "no scan" }),
                0x02..=0xbf | 0xc8 | 0xde | 0xdf | 0xf0..=0xfd => {
                    Err(HeaderError::Malformed { what: "a marker that the standard reserves" })
                }
                marker => Ok((marker, self.segment()?)),
            };
        }
    }

    /// The next marker. Fill bytes before it belong to it (T.81, B.1.1.2); other bytes are skipped.
    fn marker(&mut self) -> Result<u8, HeaderError> {
        loop {
            let rest = self.jpeg.get(self.at..).unwrap_or_default();
            let skipped = rest.iter().position(|byte| *byte == 0xff);
            self.at += skipped.ok_or(HeaderError::Truncated)?;
            let rest = &self.jpeg[self.at..];
            let fill = rest.iter().position(|byte| *byte != 0xff).ok_or(HeaderError::Truncated)?;
            self.at += fill + 1;
            if rest[fill] != 0 {
                return Ok(rest[fill]);
            }
        }
    }

    /// The content of the segment that starts here, without its length.
    fn segment(&mut self) -> Result<&'a [u8], HeaderError> {
        let rest = &self.jpeg[self.at..];
        let [high, low, ..] = rest else { return Err(HeaderError::Truncated) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length < 2 {
            return Err(HeaderError::Malformed { what: "segment length" });
        }
        let segment = rest.get(2..length).ok_or(HeaderError::Truncated)?;
        self.at += length;
        Ok(segment)
    }
}

fn frame_header(
    marker: u8,
    segment: &[u8],
    limits: &Limits,
) -> Result<(Header, [u8; 3]), HeaderError> {
    let [precision, h1, h0, w1, w0, components, rest @ ..] = segment else {
        return Err(HeaderError::Malformed { what: "frame header" });
    };
    let (width, height) = (u16::from_be_bytes([*w1, *w0]), u16::from_be_bytes([*h1, *h0]));
    match precision {
        8 => {}
        12 => return unsupported("12-bit samples"),
        16 => return unsupported("16-bit samples"),
        _ => return unsupported("sample precision other than 8 bits"),
    }
    if width == 0 || height == 0 {
        return Err(HeaderError::Empty { width, height });
    }
    let pixels = u64::from(width) * u64::from(height);
    if pixels > u64::from(limits.pixels_max) {
        return Err(HeaderError::Pixels { width, height, limit: limits.pixels_max });
    }
    if width > SIDE_MAX || height > SIDE_MAX {
        return unsupported("a side over 65500 pixels");
    }
    match components {
        1 | 3 => {}
        4 => return unsupported("four components (CMYK or YCCK)"),
        _ => return unsupported("a number of components other than 1 or 3"),
    }
    if rest.len() != 3 * usize::from(*components) {
        return Err(HeaderError::Malformed { what: "frame header" });
    }
    let (mut sampling, mut ids) = ([Sampling::default(); 3], [0; 3]);
    for (component, (sampling, id)) in rest.chunks(3).zip(sampling.iter_mut().zip(&mut ids)) {
        *id = component[0];
        *sampling = Sampling { horizontal: component[1] >> 4, vertical: component[1] & 15 };
        if !(1..=4).contains(&sampling.horizontal) || !(1..=4).contains(&sampling.vertical) {
            return Err(HeaderError::Malformed { what: "sampling factors" });
        }
    }
    let first = sampling[0];
    let used = &sampling[..usize::from(*components)];
    let even = used
        .iter()
        .all(|s| first.horizontal % s.horizontal == 0 && first.vertical % s.vertical == 0);
    // The standard allows at most ten blocks in an interleaved unit (T.81, B.2.3).
    let blocks: u8 = used.iter().map(|s| s.horizontal * s.vertical).sum();
    if !even || (*components == 3 && blocks > 10) {
        return unsupported("these sampling factors");
    }
    let coding = if marker == 0xc2 { Coding::Progressive } else { Coding::Sequential };
    let header = Header {
        width,
        height,
        components: *components,
        coding,
        sampling,
        restart_interval: 0,
        orientation: Orientation::UPRIGHT,
        ended: false,
        start: 0,
    };
    Ok((header, ids))
}

fn unsupported<T>(what: &'static str) -> Result<T, HeaderError> {
    Err(HeaderError::Unsupported { what })
}

/// Why a frame is not looked at further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The bytes do not start as a JPEG image does.
    #[error("not a JPEG image: it does not start with ff d8")]
    NotJpeg,
    /// The bytes end before the picture begins.
    #[error("the JPEG image is cut short before its picture begins")]
    Truncated,
    /// Too many bytes.
    #[error("a JPEG image of {bytes} bytes is over the limit of {limit}")]
    Bytes {
        /// How many there are.
        bytes: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Too many pixels.
    #[error("a JPEG image of {width}x{height} is over the limit of {limit} pixels")]
    Pixels {
        /// Width in pixels.
        width: u16,
        /// Height in pixels.
        height: u16,
        /// How many pixels there may be.
        limit: u32,
    },
    /// A side of zero pixels.
    #[error("a JPEG image of {width}x{height} has no pixels")]
    Empty {
        /// Width in pixels.
        width: u16,
        /// Height in pixels.
        height: u16,
    },
    /// A kind of JPEG that is not carried.
    #[error("JPEG with {what} is not supported; send 8-bit gray or YCbCr, Huffman coded")]
    Unsupported {
        /// The unsupported feature.
        what: &'static str,
    },
    /// The markers contradict the standard.
    #[error("malformed JPEG image: {what}")]
    Malformed {
        /// Where.
        what: &'static str,
    },
}
