//! Checks of an encoded image, before a worker is asked about it: by its header, then whether its picture is whole.
//!
//! A decoder fills the part of a JPEG image that is missing with gray, and says so in a warning that most programs with OpenCV or Pillow
//! never see: boxes would be answered for a picture that was never taken. Such an image is refused here, for every kind of worker. Only its
//! entropy-coded data is read for that, not its pixels. The zlib stream of a PNG image has a length and a sum, so that every decoder
//! refuses one that lacks a part.
//!
//! Always true: nothing is read beyond the header of an image that says it is larger than [`PIXELS_MAX`]; at most `READS_MAX` pictures
//! are read at a time, and one alone if its coefficients may take more than some ten megabytes.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tidegate_jpeg::{Codec, CodecError, Header, HeaderError, Limits};
use tidegate_message::FrameSize;
use tokio::{sync::Semaphore, task::spawn_blocking};

/// Most pixels of an image; the workers that come with Tidegate decode no more.
pub const PIXELS_MAX: u32 = 40_000_000;
/// Pictures that are read to their end at the same time.
const READS_MAX: u32 = 4;
/// A picture of more pixels is read alone: in several scans, its coefficients would take six bytes a pixel.
const SHARED_PIXELS_MAX: u32 = 4 << 20;

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

/// Size of a JPEG or PNG image as it is seen, by its header.
///
/// # Errors
/// [`ImageError`]; damage within the picture is none that a header shows.
pub fn size(image: &[u8]) -> Result<FrameSize, ImageError> {
    look(image).map(|(size, _)| size)
}

/// Size of an image as it is seen, and the header of a JPEG image.
fn look(image: &[u8]) -> Result<(FrameSize, Option<Header>), ImageError> {
    match image {
        [] => Err(ImageError::Empty),
        [0xff, 0xd8, ..] => {
            let header = jpeg(image)?;
            let (width, height) = header.orientation.seen(header.width, header.height);
            Ok((FrameSize { width, height }, Some(header)))
        }
        _ if image.starts_with(PNG) => png(image).map(|size| (size, None)),
        _ => {
            let other = OTHERS.iter().find(|(start, _)| image.starts_with(start));
            let found = other.map_or("bytes of no known image format", |(_, name)| name);
            Err(ImageError::Kind { bytes: image.len(), found })
        }
    }
}

/// Says which images are whole.
pub(crate) struct Inspector {
    places: Arc<Semaphore>,
    /// Those that are not in use.
    codecs: Arc<Mutex<Vec<Codec>>>,
}

impl Inspector {
    /// The size of an image as it is seen, if the image is whole.
    ///
    /// # Errors
    /// [`ImageError`].
    ///
    /// # Cancel safety
    /// A call that is dropped wastes what it has begun to read.
    pub(crate) async fn look(&self, image: &Bytes) -> Result<FrameSize, ImageError> {
        let (size, header) = look(image)?;
        let Some(header) = header else { return Ok(size) };
        let is_shared = u32::from(size.width) * u32::from(size.height) <= SHARED_PIXELS_MAX;
        let places = if is_shared { 1 } else { READS_MAX };
        let places = Arc::clone(&self.places).acquire_many_owned(places).await;
        let places = places.expect("it is never closed");
        let (codecs, image) = (Arc::clone(&self.codecs), image.clone());
        let read = spawn_blocking(move || {
            let idle = || codecs.lock().unwrap_or_else(PoisonError::into_inner);
            let codec = idle().pop();
            let mut codec = codec.unwrap_or_else(Codec::new);
            let read = codec.read_eighth(&image, &header, &mut Vec::new());
            if is_shared {
                idle().push(codec);
            }
            drop(places);
            read
        });
        // Only a process that ends cuts it short.
        match read.await.map_err(|_| ImageError::Unread)? {
            Ok(read) if read.damages == 0 => Ok(size),
            Ok(read) => Err(ImageError::Damaged { places: read.damages }),
            Err(error) => Err(ImageError::Codec(error)),
        }
    }
}

impl Default for Inspector {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(READS_MAX as usize)), codecs: Arc::default() }
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspector").field("places", &self.places).finish_non_exhaustive()
    }
}

/// Whether bytes begin as an image does that is taken.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xd8, 0xff]) || bytes.starts_with(PNG)
}

fn jpeg(image: &[u8]) -> Result<Header, ImageError> {
    let limits = Limits { bytes_max: usize::MAX, pixels_max: PIXELS_MAX };
    match Header::read(image, &limits) {
        Ok(header) if !header.ended => Err(ImageError::Cut { bytes: image.len() }),
        Ok(header) => Ok(header),
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
    let header = image.get(8..24).ok_or(ImageError::Cut { bytes: image.len() })?;
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
    if has_last_chunk(image) {
        Ok(FrameSize { width: narrow, height: low })
    } else {
        Err(ImageError::Cut { bytes: image.len() })
    }
}

/// Whether a PNG image has its last chunk. Bytes may follow it, as libpng allows, and the four letters may stand within another.
fn has_last_chunk(image: &[u8]) -> bool {
    let mut at = PNG.len();
    while let Some((length, rest)) = image.get(at..).and_then(|rest| rest.split_first_chunk::<4>())
    {
        // Its length, its kind, its bytes and their sum.
        at += 12 + u32::from_be_bytes(*length) as usize;
        if rest.starts_with(b"IEND") {
            return at <= image.len();
        }
    }
    false
}

/// Why an image is not looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// A JPEG image whose picture is not whole.
    #[error(
        "the JPEG image is damaged or was cut within its picture: in {places} places data is wrong or missing; send it whole"
    )]
    Damaged {
        /// Where a decoder would show gray or noise.
        places: u32,
    },
    /// The process ended before the image was read.
    #[error("the image was not looked at: the node stops")]
    Unread,
    /// A JPEG image that no decoder reads.
    #[error("the JPEG image cannot be decoded")]
    Codec(#[source] CodecError),
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
            ([&png[..], b"a camera's own words"].concat(), Ok((64, 48))),
            ([&png[..], b"\0"].concat(), Ok((64, 48))),
            ([&jpeg[..], b"a camera's own words"].concat(), Ok((180, 240))),
            // The letters of the last chunk within another one.
            (
                [&png[..png.len() - 12], b"\0\0\0\x08tEXtIEND\xaeB`\x82"].concat(),
                Err("cut off after"),
            ),
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

    #[tokio::test]
    async fn a_picture_that_is_cut_or_damaged_is_refused() {
        let inspector = Inspector::default();
        let look = async |image: Vec<u8>| {
            inspector.look(&image.into()).await.map_err(|error| error.to_string())
        };
        let end: &[u8] = &[0xff, 0xd9];
        for (name, jpeg) in
            [("sequential", images::jpeg(180, 240)), ("progressive", images::progressive(180, 240))]
        {
            let size = Ok(FrameSize { width: 180, height: 240 });
            assert_eq!(look(jpeg.clone()).await, size, "{name}");
            let behind = [&jpeg[..], b"a camera's own words"].concat();
            assert_eq!(look(behind).await, size, "{name}");
            let scan = jpeg.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap() + 14;
            for kept in [scan, scan + (jpeg.len() - scan) / 2, jpeg.len() - 12] {
                // As a camera ends what it had no time to send, and as a program ends what another one cut.
                let closed = look([&jpeg[..kept], end].concat()).await.unwrap_err();
                assert!(closed.contains("cut within its picture"), "{name}, {kept}: {closed}");
                let open = look(jpeg[..kept].to_vec()).await.unwrap_err();
                assert!(open.contains("cut off after"), "{name}, {kept}: {open}");
            }
        }
        let mut refused = images::jpeg(20, 20);
        // A table of codes that no tree has.
        let table = refused.windows(2).position(|pair| pair == [0xff, 0xc4]).unwrap();
        refused[table + 5] = 9;
        let refused = look(refused).await.unwrap_err();
        assert!(refused.contains("cannot be decoded"), "{refused}");
        assert_eq!(inspector.places.available_permits(), READS_MAX as usize);
    }
}
