//! Private parts of a picture: covered in the coefficients, before anything leaves the camera's node.
//!
//! ```text
//!  frame ──▶ 1/8 image ──▶ grays of the covered units ──▶ coefficients written again: covered units hold one gray each
//! ```
//!
//! Always true: a unit (8x8 to 32x32 pixels, by the sampling) that a mask touches holds one gray and no colour, so what was
//! there cannot be computed from the frame; all other coefficients are as they were; regions are of the picture as it is seen,
//! however it is stored; of the metadata, with the thumbnail that it may hold, only what says how the picture is seen goes
//! along.

use tidegate_jpeg::{Codec, Header, Read, Recipe};
pub use tidegate_message::{Region, RegionError, Regions, words::Cover};

use crate::knob::{FrameError, FrameLimits};

/// Cells across and down in a blurred region, at most: a face of any size is then no longer that of one person.
const BLUR_CELLS: usize = 6;
/// The gray of what is filled.
const FILL_GRAY: u8 = 128;

/// A region and how it is covered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// Where.
    pub region: Region,
    /// How.
    pub cover: Cover,
}

/// The units that `edges` of the stored picture touch: first and one past the last, across and down, of `across` x `down` that cover
/// `width` x `height` pixels in steps of `unit`.
fn units_of(
    edges: [f32; 4],
    size: (u16, u16),
    unit: (usize, usize),
    units: (usize, usize),
) -> [(usize, usize); 2] {
    let along = |low: f32, high: f32, pixels: u16, step: usize, count: usize| {
        let pixels = f32::from(pixels);
        let first = (low * pixels / step as f32).floor() as usize;
        let end = (high * pixels / step as f32).ceil() as usize;
        (first.min(count - 1), end.clamp(1, count))
    };
    let [left, top, right, bottom] = edges;
    [along(left, right, size.0, unit.0, units.0), along(top, bottom, size.1, unit.1, units.1)]
}

/// Covers regions of the frames of one camera; keeps its buffers from frame to frame.
#[derive(Default)]
pub struct Masker {
    limits: FrameLimits,
    codec: Codec,
    eighth: Vec<u8>,
    grays: Vec<u8>,
}

impl Masker {
    /// A masker that refuses frames over `limits`.
    pub fn new(limits: FrameLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Writes `jpeg` with `masks` covered into `out`, whose content is replaced. Filled wins where masks overlap.
    ///
    /// # Errors
    /// [`FrameError`] if the frame cannot be read whole; `out` is empty then.
    pub fn apply(
        &mut self,
        jpeg: &[u8],
        masks: &[Mask],
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        out.clear();
        let header = Header::read(jpeg, &self.limits.of_jpeg())?;
        let coefficients = self.codec.load(jpeg, &header, &mut self.eighth)?;
        plan(&header, &self.eighth, masks, &mut self.grays);
        let recipe = Recipe { cover: Some(&self.grays), ..Recipe::default() };
        let read = match coefficients.write(&recipe, out) {
            // Behind a gap, content that belongs under a mask may stand outside it.
            Ok(Read { damages: places @ 1.., .. }) => Err(FrameError::Damaged { places }),
            written => written.map_err(FrameError::from),
        };
        if read.is_err() {
            out.clear();
        }
        read.map(|_| ())
    }
}

/// The gray of each covered unit, 0 where nothing is covered.
fn plan(header: &Header, eighth: &[u8], masks: &[Mask], grays: &mut Vec<u8>) {
    let (blocks_across, blocks_down) = header.unit();
    let units = header.units();
    grays.clear();
    grays.resize(units.0 * units.1, 0);
    let eighth_size = header.eighth();
    let mean = |columns: (usize, usize), rows: (usize, usize)| {
        let across = columns.0 * blocks_across..(columns.1 * blocks_across).min(eighth_size.0);
        let down = rows.0 * blocks_down..(rows.1 * blocks_down).min(eighth_size.1);
        let count = across.len() * down.len();
        let sum: usize = down
            .flat_map(|y| &eighth[y * eighth_size.0..][across.clone()])
            .map(|pixel| usize::from(*pixel))
            .sum();
        // 0 would keep the unit.
        sum.checked_div(count).map_or(FILL_GRAY, |mean| mean.clamp(1, 255) as u8)
    };
    let blurred = masks.iter().filter(|mask| mask.cover == Cover::Blur);
    for mask in blurred.chain(masks.iter().filter(|mask| mask.cover == Cover::Fill)) {
        let unit = (8 * blocks_across, 8 * blocks_down);
        let region = header.orientation.stored(mask.region.edges());
        let [columns, rows] = units_of(region, (header.width, header.height), unit, units);
        for rows in cells(rows) {
            for columns in cells(columns) {
                let gray = match mask.cover {
                    Cover::Fill => FILL_GRAY,
                    Cover::Blur => mean(columns, rows),
                };
                for y in rows.0..rows.1 {
                    grays[y * units.0..][columns.0..columns.1].fill(gray);
                }
            }
        }
    }
}

/// `first..end` in at most [`BLUR_CELLS`] parts of about one length.
fn cells((first, end): (usize, usize)) -> impl Iterator<Item = (usize, usize)> {
    let length = end.saturating_sub(first);
    let count = length.min(BLUR_CELLS);
    (0..count).map(move |cell| (first + length * cell / count, first + length * (cell + 1) / count))
}

#[cfg(test)]
mod tests;
