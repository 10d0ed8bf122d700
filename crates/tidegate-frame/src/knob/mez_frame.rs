//! Carries out the knobs of profile `mez` on a frame: artifact removal, resolution, colour space, blur, in that
//! order, then JPEG at quality 95, OpenCV's default.
//!
//! Colour spaces that keep luma apart (BGR, gray) stay in planes; the others become packed pixels.

use tidegate_jpeg::{CodecError, Colours, Packed, Planes, Quality};
use tidegate_message::FrameSize;

use super::{
    ArtifactRemoval, ColorSpace, KnobSetting, MezKnobs,
    motion::Mask,
    pixels::{self, View},
    transcoder::{Buffers, Done, Frame, MezBuffers},
};

const QUALITY: u8 = 95;

impl Frame<'_> {
    pub(super) fn mez(
        self,
        knobs: &MezKnobs,
        setting: &KnobSetting,
        buffers: &mut Buffers,
    ) -> Result<Done, CodecError> {
        let source = FrameSize { width: self.header.width, height: self.header.height };
        let size = knobs.resolution.of(source);
        let plain = MezKnobs { resolution: knobs.resolution, ..MezKnobs::default() };
        let no_difference = MezKnobs { difference: super::Difference::F1, ..*knobs };
        if size == source && no_difference == plain {
            return self.original(setting, buffers);
        }
        // The smallest scale with fast kernels that is not below the size.
        let eighths = [1u8, 2, 4].into_iter().find(|&eighths| {
            let side = |pixels: u16| (u32::from(pixels) * u32::from(eighths)).div_ceil(8);
            side(source.width) >= u32::from(size.width)
                && side(source.height) >= u32::from(size.height)
        });
        let step = Step { knobs, size, eighths: eighths.unwrap_or(8) };
        match knobs.color {
            ColorSpace::Bgr | ColorSpace::Gray => self.mez_planes(&step, setting, buffers),
            ColorSpace::Hsv | ColorSpace::Lab | ColorSpace::Luv => {
                self.mez_packed(&step, setting, buffers)
            }
        }
    }

    fn mez_planes(
        self,
        step: &Step<'_>,
        setting: &KnobSetting,
        buffers: &mut Buffers,
    ) -> Result<Done, CodecError> {
        let Buffers { codec, eighth, mask, mez } = buffers;
        let MezBuffers { planes, other_planes, scratch, .. } = mez;
        let gray = step.knobs.color == ColorSpace::Gray;
        let look = step.looks(setting).then_some(&mut eighth.pixels);
        let seen = look.is_some();
        let read = codec.decode_planes(self.jpeg, self.header, step.eighths, gray, planes, look)?;
        if let Some(changed) = self.held_back(setting, eighth) {
            return Ok(Done::unchanged(changed));
        }
        if step.knobs.artifact != ArtifactRemoval::Off {
            self.transfer.moving(eighth, (1, 1), self.header.eighth(), mask);
            step.cut_mask(mask);
            let first = planes.sampling()[0];
            for i in 0..planes.components() {
                let own = planes.sampling()[i];
                let (width, _, stride, data) = planes.plane_mut(i);
                let across = usize::from(first.horizontal / own.horizontal);
                let down = usize::from(first.vertical / own.vertical);
                let black = if i == 0 { 0 } else { 128 };
                let cell = (usize::from(step.eighths), across, down);
                blacken(data, (width, stride, 1), cell, mask, black);
            }
        }
        if (planes.width(), planes.height()) != (step.size.width, step.size.height) {
            let (components, sampling) = (planes.components(), planes.sampling());
            other_planes.reset(step.size.width, step.size.height, components, sampling);
            for i in 0..components {
                let from = view_of(planes, i);
                let (width, height, stride, to) = other_planes.plane_mut(i);
                pixels::resize::<1>(from, to, (width, height, stride), scratch);
            }
            std::mem::swap(planes, other_planes);
        }
        let blur = usize::from(step.knobs.blur.pixels());
        if blur > 1 {
            let (components, sampling) = (planes.components(), planes.sampling());
            other_planes.reset(planes.width(), planes.height(), components, sampling);
            for i in 0..components {
                // The same stretch of the picture on a plane with fewer samples.
                let side = |first: u8, own: u8| blur.div_ceil(usize::from(first / own));
                let sides = (
                    side(sampling[0].horizontal, sampling[i].horizontal),
                    side(sampling[0].vertical, sampling[i].vertical),
                );
                let from = view_of(planes, i);
                let (_, _, stride, to) = other_planes.plane_mut(i);
                pixels::box_blur::<1>(from, to, stride, sides, scratch);
            }
            std::mem::swap(planes, other_planes);
        }
        codec.encode_planes(planes, Quality::Scaled(QUALITY), self.out)?;
        codec.carry(self.jpeg, self.colours(gray), self.out);
        Ok(Done { read, seen, changed: None })
    }

    fn mez_packed(
        self,
        step: &Step<'_>,
        setting: &KnobSetting,
        buffers: &mut Buffers,
    ) -> Result<Done, CodecError> {
        let Buffers { codec, eighth, mask, mez } = buffers;
        let MezBuffers { packed, other_packed, scratch, .. } = mez;
        let look = step.looks(setting).then_some(&mut eighth.pixels);
        let seen = look.is_some();
        let read = codec.decode_bgr(self.jpeg, self.header, step.eighths, packed, look)?;
        if let Some(changed) = self.held_back(setting, eighth) {
            return Ok(Done::unchanged(changed));
        }
        if step.knobs.artifact != ArtifactRemoval::Off {
            self.transfer.moving(eighth, (1, 1), self.header.eighth(), mask);
            step.cut_mask(mask);
            let width = usize::from(packed.width());
            let cell = (usize::from(step.eighths), 1, 1);
            blacken(packed.data_mut(), (width, 3 * width, 3), cell, mask, 0);
        }
        if (packed.width(), packed.height()) != (step.size.width, step.size.height) {
            other_packed.reset(step.size.width, step.size.height);
            let width = usize::from(step.size.width);
            let to = (width, usize::from(step.size.height), 3 * width);
            pixels::resize::<3>(packed_view(packed), other_packed.data_mut(), to, scratch);
            std::mem::swap(packed, other_packed);
        }
        match step.knobs.color {
            ColorSpace::Bgr | ColorSpace::Gray => {}
            ColorSpace::Hsv => pixels::to_hsv(packed.data_mut()),
            ColorSpace::Lab => pixels::to_lab(packed.data_mut()),
            ColorSpace::Luv => pixels::to_luv(packed.data_mut()),
        }
        let blur = usize::from(step.knobs.blur.pixels());
        if blur > 1 {
            other_packed.reset(packed.width(), packed.height());
            let stride = 3 * usize::from(packed.width());
            let to = other_packed.data_mut();
            pixels::box_blur::<3>(packed_view(packed), to, stride, (blur, blur), scratch);
            std::mem::swap(packed, other_packed);
        }
        codec.encode_bgr(packed, QUALITY, self.out)?;
        // The planes written as colours are hue, lightness and the like.
        codec.carry(self.jpeg, Colours::Gone, self.out);
        Ok(Done { read, seen, changed: None })
    }
}

/// The operations to carry out, and the scale to decode at.
struct Step<'a> {
    knobs: &'a MezKnobs,
    size: FrameSize,
    eighths: u8,
}

impl Step<'_> {
    /// Whether the 1/8 image is needed.
    fn looks(&self, setting: &KnobSetting) -> bool {
        setting.difference().is_some() || self.knobs.artifact != ArtifactRemoval::Off
    }

    fn cut_mask(&self, mask: &mut Mask) {
        if self.knobs.artifact == ArtifactRemoval::Contours {
            mask.outline();
        }
    }
}

fn view_of(planes: &Planes, index: usize) -> View<'_> {
    let (width, height, stride, data) = planes.plane(index);
    View { data, width, height, stride }
}

fn packed_view(packed: &Packed) -> View<'_> {
    let width = usize::from(packed.width());
    let height = usize::from(packed.height());
    View { data: packed.data(), width, height, stride: 3 * width }
}

/// Sets what the mask leaves out to `black`. A cell of the mask is `cell` luma samples a side; a plane has one sample
/// for `across` x `down` of those.
fn blacken(
    data: &mut [u8],
    (width, stride, channels): (usize, usize, usize),
    (cell, across, down): (usize, usize, usize),
    mask: &Mask,
    black: u8,
) {
    for (y, row) in data.chunks_mut(stride).enumerate() {
        let from = (y * down / cell * mask.width).min(mask.cells.len() - mask.width);
        let cells = &mask.cells[from..][..mask.width];
        for (x, pixel) in row.chunks_mut(channels).take(width).enumerate() {
            if cells[(x * across / cell).min(mask.width - 1)] == 0 {
                pixel.fill(black);
            }
        }
    }
}
