//! Checks of an encoded image by its header, before a worker is asked about it.
//!
//! Always true: nothing is decoded and nothing is allocated here.

use tidegate_jpeg::{Header, HeaderError, Limits};
use tidegate_message::FrameSize;

/// Most pixels of an image; the workers that come with Tidegate decode no more.
pub const PIXELS_MAX: u32 = 40_000_000;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The first bytes of files that are sent by mistake, and their names for people.
const OTHERS: [(&[u8], &str); 7] = [
    (b"%PDF", "a PDF document"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a WebP image, or another RIFF file"),
    (b"BM", "a BMP image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"<", "a text with markup"),
];

/// Size of a JPEG or PNG image as it is seen.
///
/// # Errors
/// [`ImageError`].
pub fn size(image: &[u8]) -> Result<FrameSize, ImageError> {
    match image {
        [] => Err(ImageError::Empty),
        [0xff, 0xd8, ..] => jpeg(image),
        _ if image.starts_with(PNG) => png(image),
        _ => {
            let other = OTHERS.iter().find(|(start, _)| image.starts_with(start));
            let found = other.map_or("bytes of no known image format", |(_, name)| name);
            Err(ImageError::Kind { bytes: image.len(), found })
        }
    }
}

/// Whether bytes begin as an image does that is taken.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xd8, 0xff]) || bytes.starts_with(PNG)
}

fn jpeg(image: &[u8]) -> Result<FrameSize, ImageError> {
    let limits = Limits { bytes_max: usize::MAX, pixels_max: PIXELS_MAX };
    match Header::read(image, &limits) {
        Ok(header) if !header.ended => Err(ImageError::Cut { bytes: image.len() }),
        Ok(header) => {
            let (width, height) = header.orientation.seen(header.width, header.height);
            Ok(FrameSize { width, height })
        }
        Err(HeaderError::Truncated) => Err(ImageError::Cut { bytes: image.len() }),
        Err(HeaderError::Pixels { width, height, .. }) => {
            Err(ImageError::Pixels { width: width.into(), height: height.into() })
        }
        Err(HeaderError::Empty { width, height }) => {
            Err(ImageError::NoPixels { width: width.into(), height: height.into() })
        }
        Err(error) => Err(ImageError::Jpeg(error)),
    }
}

fn png(image: &[u8]) -> Result<FrameSize, ImageError> {
    let cut = ImageError::Cut { bytes: image.len() };
    let header = image.get(8..24).ok_or(cut)?;
    if header[4..8] != *b"IHDR" {
        return Err(ImageError::NoHeader);
    }
    let side = |at: usize| {
        u32::from_be_bytes(header[at..at + 4].try_into().expect("a header has both sides"))
    };
    let (width, height) = (side(8), side(12));
    if width == 0 || height == 0 {
        return Err(ImageError::NoPixels { width, height });
    }
    let sides = (u16::try_from(width), u16::try_from(height));
    let (Ok(narrow), Ok(low)) = sides else { return Err(ImageError::Pixels { width, height }) };
    if u64::from(width) * u64::from(height) > u64::from(PIXELS_MAX) {
        return Err(ImageError::Pixels { width, height });
    }
    // The last chunk is IEND and its checksum.
    if image[..image.len() - 4].ends_with(b"IEND") {
        Ok(FrameSize { width: narrow, height: low })
    } else {
        Err(ImageError::Cut { bytes: image.len() })
    }
}

/// Why an image is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// There are no bytes.
    #[error("the request has no image: it is empty; send JPEG or PNG")]
    Empty,
    /// The bytes are of another kind.
    #[error("{bytes} bytes are {found} and not an image that is taken; send JPEG or PNG")]
    Kind {
        /// How many bytes there are.
        bytes: usize,
        /// Their kind, as it seems.
        found: &'static str,
    },
    /// The image ends too early.
    #[error("the image is cut off after {bytes} bytes; send it whole")]
    Cut {
        /// How many bytes there are.
        bytes: usize,
    },
    /// There are too many pixels.
    #[error(
        "an image of {width}x{height} pixels is not looked at: sides of at most 65535 pixels and at most 40 million pixels are allowed; \
         send it smaller"
    )]
    Pixels {
        /// Pixels from left to right.
        width: u32,
        /// Pixels from top to bottom.
        height: u32,
    },
    /// A side of zero pixels.
    #[error("an image of {width}x{height} has no pixels")]
    NoPixels {
        /// Pixels from left to right.
        width: u32,
        /// Pixels from top to bottom.
        height: u32,
    },
    /// A PNG image that does not begin with its header.
    #[error("the PNG image does not begin with its header")]
    NoHeader,
    /// A JPEG image that cannot be used.
    #[error("the JPEG image cannot be used")]
    Jpeg(#[source] HeaderError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::images;

    #[test]
    fn images_are_judged_by_their_headers() {
        let (jpeg, png) = (images::jpeg(180, 240), images::png(64, 48));
        for (image, expected) in [
            (jpeg.clone(), Ok((180, 240))),
            (png.clone(), Ok((64, 48))),
            (images::png(1, 1), Ok((1, 1))),
            (images::jpeg(1, 1), Ok((1, 1))),
            (Vec::new(), Err("it is empty")),
            (b"%PDF-1.7 ...".to_vec(), Err("12 bytes are a PDF document")),
            (b"GIF89a".to_vec(), Err("a GIF image")),
            (b"\0\0\0".to_vec(), Err("bytes of no known image format")),
            // 200 megapixels in some bytes.
            (images::png(20_000, 10_000), Err("20000x10000 pixels is not looked at")),
            (images::png(1 << 20, 1), Err("1048576x1 pixels is not looked at")),
            (images::jpeg(20_000, 10_000), Err("20000x10000 pixels is not looked at")),
            (images::png(0, 7), Err("0x7 has no pixels")),
            (jpeg[..jpeg.len() - 2].to_vec(), Err("cut off after")),
            (jpeg[..4].to_vec(), Err("cut off after 4 bytes")),
            (png[..png.len() - 1].to_vec(), Err("cut off after")),
            (png[..20].to_vec(), Err("cut off after 20 bytes")),
            ([PNG, &[0; 16]].concat(), Err("does not begin with its header")),
        ] {
            let found = size(&image).map(|size| (size.width, size.height));
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
                (Err(error), Err(expected)) => {
                    let text = error.to_string();
                    assert!(text.contains(expected), "{text}");
                }
                _ => panic!("{found:?}, not {expected:?}"),
            }
        }
    }
}
