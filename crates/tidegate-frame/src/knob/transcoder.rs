//! Applies knob settings to the frames of one camera.

use tidegate_jpeg::{Codec, CodecError, Colours, Header, Packed, Planes, Quality, Read, Recipe};
use tidegate_message::FrameSize;

use super::{
    FrameError, FrameLimits, JpegKnobs, KnobSetting, Knobs, Scale,
    motion::{CHANGED_ABOVE, Eighth, Mask, TransferState},
    pixels::Scratch,
};

/// Applies knob settings to the frames of one camera; keeps its buffers from frame to frame.
///
/// One transcoder serves all transfers of a camera. Metadata that a reader heeds to show the picture (how it is turned, its
/// colour profile, the shape of its pixels) goes along with every setting, and counts in its bytes; other metadata (places,
/// comments, thumbnails) is carried by the original only. After a few frames of one size, applying a setting allocates nothing
/// on the Rust side.
#[derive(Default)]
pub struct Transcoder {
    limits: FrameLimits,
    own: TransferState,
    buffers: Buffers,
    warnings: u64,
    damaged: u64,
}

#[derive(Default)]
pub(super) struct Buffers {
    pub(super) codec: Codec,
    pub(super) eighth: Eighth,
    pub(super) mask: Mask,
    pub(super) mez: MezBuffers,
}

/// Pixels between the steps of profile `mez`.
#[derive(Default)]
pub(super) struct MezBuffers {
    pub(super) planes: Planes,
    pub(super) other_planes: Planes,
    pub(super) packed: Packed,
    pub(super) other_packed: Packed,
    pub(super) scratch: Scratch,
}

/// The result for a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Applied {
    /// The output holds a JPEG image.
    Encoded {
        /// Its width and height.
        size: FrameSize,
    },
    /// Differencing holds the frame back; the output is empty.
    Unchanged {
        /// The fraction of the 1/8 image that changed since the last frame sent, 0 to 1.
        changed: f32,
    },
}

impl Transcoder {
    /// A transcoder that refuses frames over `limits`.
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Applies `setting` to `jpeg` and puts the result in `out`, whose content is replaced.
    ///
    /// `original` copies the bytes. A frame at full scale and in colour that a setting would not make smaller
    /// is copied too. Call [`sent`](Self::sent) once the result has left, so that differencing knows.
    ///
    /// # Errors
    /// [`FrameError`] if the frame cannot be carried; `out` is empty then.
    pub fn apply(
        &mut self,
        jpeg: &[u8],
        setting: &KnobSetting,
        out: &mut Vec<u8>,
    ) -> Result<Applied, FrameError> {
        let mut own = std::mem::take(&mut self.own);
        let applied = self.apply_for(&mut own, jpeg, setting, out);
        self.own = own;
        applied
    }

    /// As [`apply`](Self::apply), for one of several transfers of the camera: `transfer` holds what that one
    /// has sent and its background.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_for(
        &mut self,
        transfer: &mut TransferState,
        jpeg: &[u8],
        setting: &KnobSetting,
        out: &mut Vec<u8>,
    ) -> Result<Applied, FrameError> {
        out.clear();
        transfer.nothing_encoded();
        let header = Header::read(jpeg, &self.limits.of_jpeg())?;
        let (eighth_width, eighth_height) = header.eighth();
        (self.buffers.eighth.width, self.buffers.eighth.height) = (eighth_width, eighth_height);
        self.buffers.eighth.orientation = header.orientation;
        let frame = Frame { jpeg, header: &header, transfer, out };
        let done = match setting.knobs() {
            Knobs::Jpeg(knobs) => frame.jpeg(&knobs, setting, &mut self.buffers),
            Knobs::Mez(knobs) => frame.mez(&knobs, setting, &mut self.buffers),
        };
        match done {
            Ok(Done { changed: Some(changed), .. }) => {
                out.clear();
                Ok(Applied::Unchanged { changed })
            }
            Ok(Done { read, seen, changed: None }) => {
                self.warnings += u64::from(read.warnings);
                self.damaged += u64::from(read.damages > 0);
                transfer.encoded(seen.then_some(&self.buffers.eighth));
                let source = FrameSize { width: header.width, height: header.height };
                Ok(Applied::Encoded { size: setting.size_of(source) })
            }
            Err(error) => {
                out.clear();
                Err(error.into())
            }
        }
    }

    /// Says that the frame last encoded by [`apply`](Self::apply) was sent: differencing compares with it
    /// from now on. A frame that was dropped on the way is not said to be sent.
    pub fn sent(&mut self) {
        self.own.sent();
    }

    /// How many oddities that do not touch the picture the frames have had so far, such as stray bytes between
    /// segments, or no end marker.
    pub fn warnings(&self) -> u64 {
        self.warnings
    }

    /// How many frames were read in part so far, as the rest of their picture data is wrong or missing.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }
}

/// A frame on its way through a setting.
pub(super) struct Frame<'a> {
    pub(super) jpeg: &'a [u8],
    pub(super) header: &'a Header,
    pub(super) transfer: &'a mut TransferState,
    pub(super) out: &'a mut Vec<u8>,
}

/// The effects of a setting.
#[derive(Default)]
pub(super) struct Done {
    pub(super) read: Read,
    /// The frame's 1/8 image was read.
    pub(super) seen: bool,
    /// The frame is held back, with so much of it changed.
    pub(super) changed: Option<f32>,
}

impl Done {
    pub(super) fn unchanged(changed: f32) -> Self {
        Self { changed: Some(changed), ..Self::default() }
    }
}

impl Frame<'_> {
    fn jpeg(
        self,
        knobs: &JpegKnobs,
        setting: &KnobSetting,
        buffers: &mut Buffers,
    ) -> Result<Done, CodecError> {
        if setting.is_original() {
            self.original(setting, buffers)
        } else if knobs.scale == Scale::Full {
            self.coefficients(knobs, setting, buffers)
        } else {
            self.planes(knobs, setting, buffers)
        }
    }

    /// Passes the bytes, unless differencing holds them back.
    pub(super) fn original(
        self,
        setting: &KnobSetting,
        buffers: &mut Buffers,
    ) -> Result<Done, CodecError> {
        let Buffers { codec, eighth, .. } = buffers;
        let mut done = Done::default();
        if setting.difference().is_some() {
            done.read = codec.read_eighth(self.jpeg, self.header, &mut eighth.pixels)?;
            done.seen = true;
            if let Some(changed) = self.held_back(setting, eighth) {
                return Ok(Done::unchanged(changed));
            }
        }
        self.out.extend_from_slice(self.jpeg);
        Ok(done)
    }

    /// Full scale: the coefficients are changed in place, nothing becomes pixels.
    fn coefficients(
        self,
        knobs: &JpegKnobs,
        setting: &KnobSetting,
        buffers: &mut Buffers,
    ) -> Result<Done, CodecError> {
        let Buffers { codec, eighth, mask, .. } = buffers;
        let mut recipe = Recipe {
            quality: knobs.quality.map_or(Quality::Kept, Quality::Scaled),
            dead_zone: knobs.dead_zone,
            gray: knobs.gray,
            ..Recipe::default()
        };
        let look = knobs.roi.is_some() || setting.difference().is_some();
        let read = if look {
            // Both need the whole picture before the first byte is written.
            let coefficients = codec.load(self.jpeg, self.header, &mut eighth.pixels)?;
            if let Some(changed) = self.held_back(setting, eighth) {
                return Ok(Done::unchanged(changed));
            }
            if let Some(diagonals) = knobs.roi {
                self.transfer.moving(eighth, self.header.unit(), self.header.units(), mask);
                recipe.background = Some((diagonals, &mask.cells));
            }
            coefficients.write(&recipe, self.out)?
        } else {
            codec.transcode(self.jpeg, self.header, &recipe, self.out)?
        };
        // A source with tables of its own, or coarser than asked for, may be smaller than what came out.
        if !knobs.gray && self.out.len() >= self.jpeg.len() {
            self.out.clear();
            self.out.extend_from_slice(self.jpeg);
        }
        Ok(Done { read, seen: look, changed: None })
    }

    /// Scaled: planes come out of the decoder at their size and go back in.
    fn planes(
        self,
        knobs: &JpegKnobs,
        setting: &KnobSetting,
        buffers: &mut Buffers,
    ) -> Result<Done, CodecError> {
        let Buffers { codec, eighth, mez: MezBuffers { planes, .. }, .. } = buffers;
        let look = setting.difference().is_some();
        let read = codec.decode_planes(
            self.jpeg,
            self.header,
            knobs.scale.eighths(),
            knobs.gray,
            planes,
            look.then_some(&mut eighth.pixels),
        )?;
        if let Some(changed) = self.held_back(setting, eighth) {
            return Ok(Done::unchanged(changed));
        }
        let quality = knobs.quality.map_or(Quality::Kept, Quality::Scaled);
        codec.encode_planes(planes, quality, self.out)?;
        codec.carry(self.jpeg, self.colours(knobs.gray), self.out);
        Ok(Done { read, seen: look, changed: None })
    }

    /// The colours of the result, dropped or not. A picture that was gray before keeps all that it has.
    pub(super) fn colours(&self, dropped: bool) -> Colours {
        if dropped && self.header.components > 1 { Colours::Gone } else { Colours::Kept }
    }

    /// How much changed, if differencing holds the frame back for it.
    pub(super) fn held_back(&self, setting: &KnobSetting, eighth: &Eighth) -> Option<f32> {
        let threshold = setting.difference()?;
        let tolerance = match setting.knobs() {
            Knobs::Jpeg(_) => CHANGED_ABOVE,
            Knobs::Mez(_) => 0,
        };
        self.transfer.changed(eighth, tolerance).filter(|&changed| changed <= threshold)
    }
}
