//! Images, as they come, to pixels.
//!
//! The header is read first: an image that says it is larger than [`PIXELS_MAX`], or is none, costs no memory.

use std::{borrow::Cow, io::Cursor};

use png::{BitDepth, ColorType, Decoder, Limits, Transformations};
use tidegate_jpeg::{Codec, CodecError, Header, HeaderError, Orientation, Packed, Planes};

/// Most pixels of an image: 120 MB once decoded. 8K video has 33 million.
pub(crate) const PIXELS_MAX: usize = 40_000_000;
/// The longest side that an answer can name.
const SIDE_MAX: usize = 65_535;
/// Decoded images of more bytes than this leave their memory behind.
const KEPT_BYTES: usize = 16 << 20;
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The start of a segment of EXIF in a JPEG image; PNG has the same without it.
const EXIF: &[u8] = b"Exif\0\0";

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// Pixels, row-major: one channel is gray, three are B, G, R.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pixels {
    pub(crate) size: Size,
    pub(crate) channels: usize,
    pub(crate) data: Vec<u8>,
}

/// An image as it came: encoded, or the pixels of a shape (height, width, channels).
#[derive(Clone, Debug)]
pub(crate) struct Picture<'a> {
    pub(crate) data: Cow<'a, [u8]>,
    pub(crate) shape: Option<[usize; 3]>,
}

/// A decoder, which keeps its buffers from image to image.
#[derive(Default)]
pub(crate) struct ImageDecoder {
    codec: Option<Codec>,
    packed: Packed,
    planes: Planes,
}

impl ImageDecoder {
    /// The pixels of an image as it is seen, gray if that is wanted.
    pub(crate) fn decode(
        &mut self,
        picture: &Picture<'_>,
        gray: bool,
    ) -> Result<Pixels, ImageError> {
        let data = &*picture.data;
        match picture.shape {
            Some(shape) => shaped(data, shape, gray),
            None if data.starts_with(b"\xff\xd8") => self.jpeg(data, gray),
            None if data.starts_with(PNG) => png(data, gray),
            None => Err(ImageError::Unknown { start: start(data), bytes: data.len() }),
        }
    }

    fn jpeg(&mut self, data: &[u8], gray: bool) -> Result<Pixels, ImageError> {
        let limits = tidegate_jpeg::Limits { bytes_max: usize::MAX, pixels_max: PIXELS_MAX as u32 };
        let header = Header::read(data, &limits).map_err(|source| match source {
            HeaderError::Pixels { width, height, .. } | HeaderError::Empty { width, height } => {
                ImageError::Size { width: width.into(), height: height.into() }
            }
            source => ImageError::Header { bytes: data.len(), source },
        })?;
        if !header.ended {
            return Err(ImageError::Cut { kind: "JPEG", bytes: data.len() });
        }
        let codec = self.codec.get_or_insert_with(Codec::new);
        let failed = |source| ImageError::Jpeg { bytes: data.len(), source };
        // Damaged parts are seen as every program with libjpeg shows them.
        let (width, height) = (usize::from(header.width), usize::from(header.height));
        let pixels = if gray {
            let _ = codec
                .decode_planes(data, &header, 8, true, &mut self.planes, None)
                .map_err(failed)?;
            let (_, _, stride, plane) = self.planes.plane(0);
            let rows = plane.chunks(stride).take(height);
            let data = rows.flat_map(|row| &row[..width]).copied().collect();
            Pixels { size: Size { width, height }, channels: 1, data }
        } else {
            let _ = codec.decode_bgr(data, &header, 8, &mut self.packed, None).map_err(failed)?;
            let data = self.packed.data().to_vec();
            Pixels { size: Size { width, height }, channels: 3, data }
        };
        if pixels.data.len() > KEPT_BYTES {
            *self = Self::default();
        }
        Ok(turned(pixels, header.orientation))
    }
}

fn start(data: &[u8]) -> String {
    if data.starts_with(b"%PDF") {
        return "a PDF document".to_owned();
    }
    let digits: String = data.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("bytes that begin with {}", if digits.is_empty() { "nothing" } else { &digits })
}

fn check(size: Size) -> Result<(), ImageError> {
    let Size { width, height } = size;
    let side = |side| (1..=SIDE_MAX).contains(&side);
    if side(width) && side(height) && width * height <= PIXELS_MAX {
        Ok(())
    } else {
        Err(ImageError::Size { width, height })
    }
}

fn shaped(data: &[u8], shape: [usize; 3], gray: bool) -> Result<Pixels, ImageError> {
    let [height, width, channels] = shape;
    let values = height.checked_mul(width).and_then(|pixels| pixels.checked_mul(channels));
    if values != Some(data.len()) || data.is_empty() || !matches!(channels, 1 | 3) {
        return Err(ImageError::Shape { shape, bytes: data.len() });
    }
    let size = Size { width, height };
    check(size)?;
    Ok(coloured(Pixels { size, channels, data: data.to_vec() }, gray))
}

/// Pixels in gray, or in three channels.
fn coloured(pixels: Pixels, gray: bool) -> Pixels {
    let Pixels { size, channels, data } = pixels;
    let data = match (channels, gray) {
        (3, true) => {
            let luma = |bgr: &[u8]| luma([0, 1, 2].map(|at| u32::from(bgr[at])), 1 << 14) as u8;
            data.chunks_exact(3).map(luma).collect()
        }
        (1, false) => data.iter().flat_map(|value| [*value; 3]).collect(),
        _ => data,
    };
    Pixels { size, channels: if gray { 1 } else { 3 }, data }
}

/// The brightness of a colour (ITU-R BT.601), of samples of at most 16 bits; `more` is added to its last 15 bits.
fn luma([blue, green, red]: [u32; 3], more: u32) -> u32 {
    (3735 * blue + 19_235 * green + 9798 * red + more) >> 15
}

fn png(data: &[u8], gray: bool) -> Result<Pixels, ImageError> {
    let cut = || ImageError::Cut { kind: "PNG", bytes: data.len() };
    if data.get(12..16) != Some(b"IHDR") || data.len() < 24 {
        return Err(ImageError::NoHeader { bytes: data.len() });
    }
    let side = |at: usize| {
        let bytes = data[at..at + 4].try_into().expect("there are 24 bytes");
        u32::from_be_bytes(bytes) as usize
    };
    let size = Size { width: side(16), height: side(20) };
    check(size)?;
    if !is_whole(data) {
        return Err(cut());
    }
    let failed = |source| ImageError::Png { bytes: data.len(), source };
    // Rows of 64-bit pixels, and the text and profiles among them.
    let mut decoder = Decoder::new_with_limits(Cursor::new(data), Limits { bytes: 8 * PIXELS_MAX });
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(failed)?;
    let mut values = vec![0; reader.output_buffer_size().ok_or_else(cut)?];
    let frame = reader.next_frame(&mut values).map_err(failed)?;
    let values = &values[..frame.buffer_size()];
    // Of two bytes the first is what eight bits hold.
    let bytes = if frame.bit_depth == BitDepth::Sixteen { 2 } else { 1 };
    let pixel = values.chunks_exact(frame.color_type.samples() * bytes);
    let (channels, data) = match (frame.color_type, gray) {
        (ColorType::Grayscale | ColorType::GrayscaleAlpha, _) => {
            (1, pixel.map(|pixel| pixel[0]).collect())
        }
        (_, false) => (3, pixel.flat_map(|rgb| [2, 1, 0].map(|at| rgb[at * bytes])).collect()),
        // libpng makes one value of the three before it drops the second byte, and rounds down.
        (_, true) => {
            let sample = |rgb: &[u8], at: usize| {
                let bytes = &rgb[at * bytes..][..bytes];
                bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
            };
            let luma = |rgb| luma([2, 1, 0].map(|at| sample(rgb, at)), 0) >> (8 * (bytes - 1));
            (1, pixel.map(|rgb| luma(rgb) as u8).collect())
        }
    };
    let exif = reader.info().exif_metadata.as_ref();
    let orientation =
        exif.map_or(Orientation::UPRIGHT, |tiff| Orientation::of_exif(&[EXIF, tiff].concat()));
    Ok(turned(coloured(Pixels { size, channels, data }, gray), orientation))
}

/// Whether a PNG image has its last chunk. Bytes may follow it, as libpng allows, and the four letters may stand within another.
fn is_whole(data: &[u8]) -> bool {
    let mut at = PNG.len();
    while let Some((length, rest)) = data.get(at..).and_then(|rest| rest.split_first_chunk::<4>()) {
        // Its length, its kind, its bytes and their sum.
        at += 12 + u32::from_be_bytes(*length) as usize;
        if rest.starts_with(b"IEND") {
            return at <= data.len();
        }
    }
    false
}

/// Stored pixels as they are seen.
fn turned(pixels: Pixels, orientation: Orientation) -> Pixels {
    if orientation == Orientation::UPRIGHT {
        return pixels;
    }
    let Size { width, height } = pixels.size;
    let value = orientation.value();
    let (wide, high) = if value >= 5 { (height, width) } else { (width, height) };
    let mut data = Vec::with_capacity(pixels.data.len());
    for y in 0..high {
        for x in 0..wide {
            // Column and row of the stored picture (EXIF 2.32, 4.6.4 A, tag 274).
            let (column, row) = match value {
                2 => (width - 1 - x, y),
                3 => (width - 1 - x, height - 1 - y),
                4 => (x, height - 1 - y),
                5 => (y, x),
                6 => (y, height - 1 - x),
                7 => (width - 1 - y, height - 1 - x),
                8 => (width - 1 - y, x),
                _ => (x, y),
            };
            let at = (row * width + column) * pixels.channels;
            data.extend_from_slice(&pixels.data[at..at + pixels.channels]);
        }
    }
    Pixels { size: Size { width: wide, height: high }, data, ..pixels }
}

/// Why an image is not looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// Neither JPEG nor PNG.
    #[error("{start}: {bytes} bytes are not an image; send JPEG or PNG")]
    Unknown { start: String, bytes: usize },
    /// Too large, or without pixels.
    #[error(
        "an image of {width}x{height} pixels is not looked at: sides of 1 to {SIDE_MAX} pixels and at most {} million pixels are allowed; \
         send it smaller",
        PIXELS_MAX / 1_000_000
    )]
    Size { width: usize, height: usize },
    /// A JPEG image that is none, or of a kind that is not decoded.
    #[error("{bytes} bytes are not an image that can be decoded")]
    Header {
        bytes: usize,
        #[source]
        source: HeaderError,
    },
    /// A PNG image without its first chunk.
    #[error("{bytes} bytes are not an image: a PNG image without its header")]
    NoHeader { bytes: usize },
    /// An image without its end.
    #[error("the {kind} image is cut off after {bytes} bytes")]
    Cut { kind: &'static str, bytes: usize },
    /// A JPEG image that cannot be decoded.
    #[error("{bytes} bytes are not an image that can be decoded")]
    Jpeg {
        bytes: usize,
        #[source]
        source: CodecError,
    },
    /// A PNG image that cannot be decoded.
    #[error("{bytes} bytes are not an image that can be decoded")]
    Png {
        bytes: usize,
        #[source]
        source: png::DecodingError,
    },
    /// Pixels that are not of their shape.
    #[error("{bytes} bytes are not pixels of height, width, channels {shape:?}")]
    Shape { shape: [usize; 3], bytes: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_turned_to_how_it_is_seen() {
        // Two columns and three rows, numbered as they are stored.
        let stored =
            Pixels { size: Size { width: 2, height: 3 }, channels: 1, data: (0..6).collect() };
        for (value, width, seen) in [
            (1, 2, [0, 1, 2, 3, 4, 5]),
            (2, 2, [1, 0, 3, 2, 5, 4]),
            (3, 2, [5, 4, 3, 2, 1, 0]),
            (4, 2, [4, 5, 2, 3, 0, 1]),
            (5, 3, [0, 2, 4, 1, 3, 5]),
            (6, 3, [4, 2, 0, 5, 3, 1]),
            (7, 3, [5, 3, 1, 4, 2, 0]),
            (8, 3, [1, 3, 5, 0, 2, 4]),
        ] {
            let found = turned(stored.clone(), Orientation::new(value).unwrap());
            assert_eq!((found.size.width, &*found.data), (width, &seen[..]), "{value}");
        }
    }

    #[test]
    fn pixels_are_of_their_shape() {
        let decode = |data: &[u8], shape, gray| {
            ImageDecoder::default().decode(&Picture { data: data.into(), shape: Some(shape) }, gray)
        };
        for (bytes, shape) in
            [(5, [1, 2, 3]), (4, [1, 2, 2]), (0, [0, 1, 3]), (3, [1, usize::MAX, 3])]
        {
            let found = decode(&vec![0; bytes], shape, false);
            assert!(matches!(found, Err(ImageError::Shape { .. })), "{shape:?}");
        }
        assert!(matches!(decode(&[0; 70_000], [1, 70_000, 1], true), Err(ImageError::Size { .. })));
        assert_eq!(decode(&[1, 2, 3], [1, 3, 1], false).unwrap().data, [1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(decode(&[10, 20, 30], [1, 1, 3], true).unwrap().data, [22]);
    }

    #[test]
    fn a_bomb_is_refused_by_its_header() {
        let mut head = PNG.to_vec();
        head.extend(b"\0\0\0\x0dIHDR");
        for (width, height) in [(20_000_u32, 10_000_u32), (70_000, 1), (0, 5), (u32::MAX, u32::MAX)]
        {
            let data =
                [&*head, &width.to_be_bytes(), &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
            let error = ImageDecoder::default()
                .decode(&Picture { data: data.into(), shape: None }, false)
                .unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("{width}x{height} pixels")), "{text}");
        }
    }

    #[test]
    fn files_that_are_no_images_are_named() {
        for (data, part) in [
            (&b"%PDF-1.7 and more"[..], "a PDF document"),
            (b"", "begin with nothing"),
            (b"GIF89a", "begin with 47494638"),
            (b"\xff\xd8\xff\xd9", "not an image"),
            (PNG, "a PNG image without its header"),
        ] {
            let picture = Picture { data: data.into(), shape: None };
            let error = ImageDecoder::default().decode(&picture, false).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
