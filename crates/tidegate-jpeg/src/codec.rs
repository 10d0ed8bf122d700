//! One decoder and one encoder with their buffers.

use std::{ffi::CStr, fmt, ptr::NonNull};

use crate::{
    ffi,
    header::{Header, segments},
    image::{Packed, Planes},
    metadata::{Colours, Metadata},
};

/// A decoder and an encoder that keep their buffers from frame to frame.
///
/// Any bytes lead to a picture or an error, and the codec can be used again. Its memory is what the largest frame so far
/// needed: its bytes and about 0.4 MB at 1080p, 6 MB more once coefficients were [loaded](Self::load).
pub struct Codec {
    raw: NonNull<ffi::Codec>,
    metadata: Metadata,
}

// SAFETY: the C half holds no thread-local state and is only reached through `&mut self`, or through `&self` for
// reads of plain fields.
unsafe impl Send for Codec {}

/// The quality to encode with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quality {
    /// The standard tables scaled to 1 to 100.
    Scaled(u8),
    /// The tables of the source.
    Kept,
}

impl Quality {
    fn code(self) -> i32 {
        match self {
            Self::Scaled(quality) => i32::from(quality.clamp(1, 100)),
            Self::Kept => 0,
        }
    }
}

/// Operations on coefficients on their way from one JPEG image to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe<'a> {
    /// The new tables. No entry becomes finer than the source's.
    pub quality: Quality,
    /// Round AC coefficients that are requantised up from 2/3, not from 1/2.
    pub dead_zone: bool,
    /// Drop chroma.
    pub gray: bool,
    /// Keep only the lowest `n` frequency diagonals of every block (1 keeps the mean); `None` keeps all.
    pub keep: Option<u8>,
    /// Keep only so many where the mask is 0, row-major, one byte for each of [`Header::units`].
    pub background: Option<(u8, &'a [u8])>,
    /// Units to replace by one gray, without colour and without detail: nothing of the picture is left there. 0 keeps the
    /// unit, any other value is the gray; row-major, one byte for each of [`Header::units`].
    pub cover: Option<&'a [u8]>,
}

impl Default for Recipe<'_> {
    fn default() -> Self {
        Self {
            quality: Quality::Kept,
            dead_zone: false,
            gray: false,
            keep: None,
            background: None,
            cover: None,
        }
    }
}

/// The coefficients of one frame, decoded and waiting to be written.
pub struct Coefficients<'a> {
    codec: &'a mut Codec,
    header: Header,
    jpeg: &'a [u8],
}

/// How well a frame was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Read {
    /// Oddities that do not touch the picture, such as stray bytes between segments, or no end marker.
    pub warnings: u32,
    /// Places where picture data is wrong or missing, filled with gray or noise.
    pub damages: u32,
}

impl Codec {
    /// A codec without buffers.
    ///
    /// # Panics
    /// When there is no memory for a few hundred kilobytes.
    pub fn new() -> Self {
        // SAFETY: takes nothing; null means that there is no memory.
        let raw = unsafe { ffi::tgj_new() };
        let raw = NonNull::new(raw).expect("there is memory for a codec");
        Self { raw, metadata: Metadata::default() }
    }

    /// Decodes `jpeg` scaled to `eighths` (1 to 8) into planes, luma alone if `gray`.
    ///
    /// The planes keep the source's sampling. `eighth`, if given, becomes the 1/8 image of [`Header::eighth`].
    ///
    /// # Errors
    /// [`CodecError`]; the planes' content is unspecified then.
    pub fn decode_planes(
        &mut self,
        jpeg: &[u8],
        header: &Header,
        eighths: u8,
        gray: bool,
        planes: &mut Planes,
        eighth: Option<&mut Vec<u8>>,
    ) -> Result<Read, CodecError> {
        assert!((1..=8).contains(&eighths), "a scale is 1 to 8 eighths");
        self.open(jpeg, header)?;
        planes.reset_for(header, eighths, gray);
        let eighth = eighth_of(header, eighth);
        let view = view(planes);
        // SAFETY: `view` points into `planes`, which outlives the call; C checks that the decoder's blocks fit
        // stride and rows. `tables` has room for three tables. `eighth` is null or has width x height bytes.
        // The bytes behind `open` are still borrowed.
        let code = unsafe {
            ffi::tgj_decode_planes(
                self.raw.as_ptr(),
                i32::from(eighths),
                &view,
                planes.tables.as_mut_ptr(),
                eighth,
            )
        };
        self.read(code)
    }

    /// Decodes `jpeg` scaled to `eighths` (1 to 8) into packed B, G, R, with interpolated chroma.
    ///
    /// # Errors
    /// [`CodecError`]; the image's content is unspecified then.
    pub fn decode_bgr(
        &mut self,
        jpeg: &[u8],
        header: &Header,
        eighths: u8,
        image: &mut Packed,
        eighth: Option<&mut Vec<u8>>,
    ) -> Result<Read, CodecError> {
        assert!((1..=8).contains(&eighths), "a scale is 1 to 8 eighths");
        self.open(jpeg, header)?;
        let side = |pixels: u16| (usize::from(pixels) * usize::from(eighths)).div_ceil(8) as u16;
        image.reset(side(header.width), side(header.height));
        let (width, height) = (usize::from(image.width), usize::from(image.height));
        let eighth = eighth_of(header, eighth);
        // SAFETY: `data` has width * height * 3 bytes, and C checks that the decoder agrees on both sides.
        // `eighth` is null or has width x height bytes. The bytes behind `open` are still borrowed.
        let code = unsafe {
            ffi::tgj_decode_bgr(
                self.raw.as_ptr(),
                i32::from(eighths),
                image.data.as_mut_ptr(),
                width,
                height,
                eighth,
            )
        };
        self.read(code)
    }

    /// Decodes the 1/8 image of `jpeg` alone: the mean of each 8x8 block of luma, row-major, of the size
    /// [`Header::eighth`]. Costs the entropy decoding and nothing else.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn read_eighth(
        &mut self,
        jpeg: &[u8],
        header: &Header,
        eighth: &mut Vec<u8>,
    ) -> Result<Read, CodecError> {
        self.open(jpeg, header)?;
        let eighth = eighth_of(header, Some(eighth));
        // SAFETY: `eighth` has width x height bytes; the bytes behind `open` are still borrowed.
        let code = unsafe { ffi::tgj_read_eighth(self.raw.as_ptr(), eighth) };
        self.read(code)
    }

    /// Rewrites `jpeg` by `recipe`, coefficients to coefficients, into `out`, whose content is replaced. Metadata that a
    /// reader heeds goes along, as with [`Codec::carry`].
    ///
    /// A frame of one scan is read and written a row of blocks at a time.
    ///
    /// # Errors
    /// [`CodecError`]; `out` is empty then.
    ///
    /// # Panics
    /// When a mask or cover has not one byte for each unit.
    pub fn transcode(
        &mut self,
        jpeg: &[u8],
        header: &Header,
        recipe: &Recipe<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Read, CodecError> {
        out.clear();
        self.open(jpeg, header)?;
        self.write_coefficients(jpeg, header, recipe, out)
    }

    /// Decodes the coefficients and the 1/8 image of `jpeg`, for a recipe that depends on the picture.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn load<'a>(
        &'a mut self,
        jpeg: &'a [u8],
        header: &Header,
        eighth: &mut Vec<u8>,
    ) -> Result<Coefficients<'a>, CodecError> {
        self.open(jpeg, header)?;
        let eighth = eighth_of(header, Some(eighth));
        // SAFETY: `eighth` has width x height bytes; the bytes behind `open` stay borrowed by the result.
        let code = unsafe { ffi::tgj_load(self.raw.as_ptr(), eighth) };
        let _ = self.read(code)?;
        Ok(Coefficients { codec: self, header: *header, jpeg })
    }

    /// Encodes planes into `out`, whose content is replaced. The codec may write the bytes between the width and
    /// the stride of the planes.
    ///
    /// # Errors
    /// [`CodecError`]; `out` is empty then.
    pub fn encode_planes(
        &mut self,
        planes: &mut Planes,
        quality: Quality,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        out.clear();
        let header = ffi::Header {
            width: planes.width,
            height: planes.height,
            components: planes.components as u8,
            horizontal: planes.sampling.map(|s| s.horizontal),
            vertical: planes.sampling.map(|s| s.vertical),
        };
        let view = view(planes);
        // SAFETY: `view` points into `planes`, which outlives the call; C checks that the encoder's blocks fit
        // the stride and repeats the last row below the picture.
        let code = unsafe {
            ffi::tgj_encode_planes(
                self.raw.as_ptr(),
                &header,
                &view,
                quality.code(),
                planes.tables.as_ptr(),
            )
        };
        let _ = self.read(code)?;
        self.take_output(out);
        Ok(())
    }

    /// Encodes packed B, G, R with chroma at half across and down into `out`, whose content is replaced.
    ///
    /// # Errors
    /// [`CodecError`]; `out` is empty then.
    pub fn encode_bgr(
        &mut self,
        image: &Packed,
        quality: u8,
        out: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        out.clear();
        let data = image.data();
        let (width, height) = (usize::from(image.width), usize::from(image.height));
        let quality = Quality::Scaled(quality).code();
        // SAFETY: `data` has width * height * 3 bytes and is only read.
        let code = unsafe {
            ffi::tgj_encode_bgr(self.raw.as_ptr(), data.as_ptr(), width, height, quality)
        };
        let _ = self.read(code)?;
        self.take_output(out);
        Ok(())
    }

    /// Copies into `out`, an image that this codec encoded from pixels of `jpeg`, the metadata that a reader of `jpeg` heeds:
    /// how it is turned, its colour profile if its colours are kept, the shape of its pixels. Nothing else goes along.
    pub fn carry(&mut self, jpeg: &[u8], colours: Colours, out: &mut Vec<u8>) {
        self.metadata.read(segments(jpeg), colours);
        self.metadata.put_into(out);
    }

    /// Shows the frame to the C half, which keeps pointing into it until the call that follows is done.
    fn open(&mut self, jpeg: &[u8], header: &Header) -> Result<(), CodecError> {
        let expected = ffi::Header {
            width: header.width,
            height: header.height,
            components: header.components,
            horizontal: header.sampling.map(|s| s.horizontal),
            vertical: header.sampling.map(|s| s.vertical),
        };
        let image = jpeg.get(header.start..).unwrap_or_default();
        // SAFETY: the bytes are valid for the length; every caller keeps them borrowed until it is done.
        let code =
            unsafe { ffi::tgj_open(self.raw.as_ptr(), image.as_ptr(), image.len(), &expected) };
        self.read(code).map(|_| ())
    }

    /// Lets libjpeg alone read the frames from now on, or not.
    #[cfg(test)]
    pub(crate) fn prefer_libjpeg(&mut self, alone: bool) {
        // SAFETY: sets a field.
        unsafe { ffi::tgj_prefer_libjpeg(self.raw.as_ptr(), alone.into()) }
    }

    /// Whether libjpeg read the coefficients of the last frame.
    #[cfg(test)]
    pub(crate) fn was_libjpeg(&self) -> bool {
        // SAFETY: reads a field.
        unsafe { ffi::tgj_was_libjpeg(self.raw.as_ptr()) != 0 }
    }

    fn write_coefficients(
        &mut self,
        jpeg: &[u8],
        header: &Header,
        recipe: &Recipe<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Read, CodecError> {
        let (mask_width, mask_height) = header.units();
        let (keep_background, mask) = match recipe.background {
            Some((keep, mask)) => {
                assert_eq!(mask.len(), mask_width * mask_height, "a mask has a byte for each unit");
                (i32::from(keep), mask.as_ptr())
            }
            None => (0, std::ptr::null()),
        };
        let cover = recipe.cover.map_or(std::ptr::null(), |cover| {
            assert_eq!(cover.len(), mask_width * mask_height, "a cover has a byte for each unit");
            cover.as_ptr()
        });
        let (unit_h, unit_v) = header.unit();
        // The profile of a picture that was gray before is of grays.
        let gray = recipe.gray && header.components > 1;
        let colours = if gray { Colours::Gone } else { Colours::Kept };
        let recipe = ffi::Recipe {
            quality: recipe.quality.code(),
            dead_zone: i32::from(recipe.dead_zone),
            gray: i32::from(recipe.gray),
            keep: recipe.keep.map_or(0, i32::from),
            keep_background,
            mask,
            cover,
            mask_width,
            mask_height,
            unit_h,
            unit_v,
        };
        // SAFETY: mask and cover are null or have mask_width x mask_height bytes, and C clamps to them; the frame that
        // was opened is still borrowed by the caller.
        let code = unsafe { ffi::tgj_transcode(self.raw.as_ptr(), &recipe) };
        let read = self.read(code)?;
        self.take_output(out);
        self.carry(jpeg, colours, out);
        Ok(read)
    }

    fn take_output(&mut self, out: &mut Vec<u8>) {
        let mut bytes = 0;
        // SAFETY: C names its output buffer and how much of it is filled; it is not touched until the copy is done.
        let encoded = unsafe {
            let data = ffi::tgj_output(self.raw.as_ptr(), &mut bytes);
            std::slice::from_raw_parts(data, bytes)
        };
        out.extend_from_slice(encoded);
    }

    /// Turns what a call came to into a result.
    fn read(&self, code: i32) -> Result<Read, CodecError> {
        let mut report = ffi::Report { warnings: 0, damages: 0, message: [0; _] };
        // SAFETY: the report has the layout of codec.h and outlives the call.
        unsafe { ffi::tgj_report(self.raw.as_ptr(), &mut report) };
        match code {
            ffi::OK => Ok(Read { warnings: report.warnings, damages: report.damages }),
            ffi::FAILED => Err(CodecError::Refused { reason: Message::from_c(&report.message) }),
            ffi::MEMORY => Err(CodecError::Memory),
            _ => Err(CodecError::Disagreement { reason: Message::from_c(&report.message) }),
        }
    }
}

impl Coefficients<'_> {
    /// Writes the coefficients by `recipe` into `out`, whose content is replaced.
    ///
    /// # Errors
    /// [`CodecError`]; `out` is empty then.
    ///
    /// # Panics
    /// When a mask or cover has not one byte for each unit.
    pub fn write(self, recipe: &Recipe<'_>, out: &mut Vec<u8>) -> Result<Read, CodecError> {
        out.clear();
        self.codec.write_coefficients(self.jpeg, &self.header, recipe, out)
    }
}

impl Default for Codec {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Codec {
    fn drop(&mut self) {
        // SAFETY: made by `tgj_new`, freed once.
        unsafe { ffi::tgj_free(self.raw.as_ptr()) }
    }
}

fn eighth_of(header: &Header, eighth: Option<&mut Vec<u8>>) -> ffi::Eighth {
    let (width, height) = header.eighth();
    let data = eighth.map_or(std::ptr::null_mut(), |eighth| {
        eighth.resize(width * height, 0);
        eighth.as_mut_ptr()
    });
    ffi::Eighth { data, width, height }
}

fn view(planes: &mut Planes) -> ffi::Planes {
    let mut view = ffi::Planes {
        components: planes.components as u8,
        data: [std::ptr::null_mut(); 3],
        stride: [0; 3],
        rows: [0; 3],
    };
    let data = &mut planes.data[..];
    let base = data.as_mut_ptr();
    for (i, plane) in planes.planes[..planes.components].iter().enumerate() {
        assert!(
            plane.offset + plane.stride * plane.rows <= data.len(),
            "planes lie in their buffer"
        );
        // SAFETY: the offset lies within the buffer, as was just checked.
        view.data[i] = unsafe { base.add(plane.offset) };
        view.stride[i] = plane.stride;
        view.rows[i] = plane.rows;
    }
    view
}

/// A message of libjpeg.
#[derive(Clone, PartialEq, Eq)]
pub struct Message(Box<str>);

impl Message {
    fn from_c(text: &[std::ffi::c_char]) -> Self {
        let bytes: Vec<u8> = text.iter().map(|&c| c.to_ne_bytes()[0]).collect();
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Self(text.to_string_lossy().into())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a frame was not decoded or encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// libjpeg cannot read the frame.
    #[error("libjpeg refuses the frame: {reason}")]
    Refused {
        /// The message of libjpeg.
        reason: Message,
    },
    /// libjpeg understands the header differently than [`Header::read`] did.
    #[error("the frame's header is ambiguous: {reason}")]
    Disagreement {
        /// Where.
        reason: Message,
    },
    /// No memory.
    #[error("no memory for the frame")]
    Memory,
}
