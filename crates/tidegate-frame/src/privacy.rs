//! Parts of a picture that nobody is to see: covered in the coefficients, before anything leaves the camera's node.
//!
//! ```text
//!  frame ──▶ 1/8 image ──▶ grays of the covered units ──▶ coefficients written anew: covered units hold one gray each
//! ```
//!
//! Always true: a unit (8x8 to 32x32 pixels, by the sampling) that a mask touches holds one gray and no colour, so what was
//! there cannot be computed from the frame; all other coefficients are as they were; regions are of the picture as it is seen,
//! however it is stored; of the metadata, with the thumbnail that it may hold, only what says how the picture is seen goes
//! along.

use std::str::FromStr;

use tidegate_jpeg::{Codec, Header, Orientation, Read, Recipe};

use crate::knob::{FrameError, FrameLimits};

/// Cells across and down in a blurred region, at most: a face of any size is then no longer that of one person.
const BLUR_CELLS: usize = 6;
/// The gray of what is filled.
const FILL_GRAY: u8 = 128;

/// A rectangle, in fractions of the picture's width and height as it is seen: 0 ≤ left < right ≤ 1, 0 ≤ top < bottom ≤ 1.
///
/// As text: `LEFT,TOP,RIGHT,BOTTOM`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Region {
    left: f32,
    top: f32,
    right: f32,
    bottom: f32,
}

/// Text or numbers that are no [`Region`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{given}\" is no region: it takes LEFT,TOP,RIGHT,BOTTOM as fractions of width and height, 0 to 1, with LEFT below RIGHT and \
     TOP below BOTTOM, as in 0.25,0,0.5,0.4"
)]
pub struct RegionError {
    given: String,
}

impl Region {
    /// The whole picture.
    pub const WHOLE: Self = Self { left: 0.0, top: 0.0, right: 1.0, bottom: 1.0 };

    /// The region between these fractions.
    ///
    /// # Errors
    /// [`RegionError`] if they are out of order or range.
    pub fn new(left: f32, top: f32, right: f32, bottom: f32) -> Result<Self, RegionError> {
        let region = Self { left, top, right, bottom };
        if region.is_valid() {
            Ok(region)
        } else {
            Err(RegionError { given: format!("{left},{top},{right},{bottom}") })
        }
    }

    fn is_valid(&self) -> bool {
        let inside = |low: f32, high: f32| 0.0 <= low && low < high && high <= 1.0;
        inside(self.left, self.right) && inside(self.top, self.bottom)
    }

    /// The region, larger by `part` of its size on each side, as far as the picture goes.
    #[must_use]
    pub fn grown(self, part: f32) -> Self {
        let (wide, high) = ((self.right - self.left) * part, (self.bottom - self.top) * part);
        Self {
            left: (self.left - wide).max(0.0),
            top: (self.top - high).max(0.0),
            right: (self.right + wide).min(1.0),
            bottom: (self.bottom + high).min(1.0),
        }
    }

    /// Where the region, which is of the seen picture, lies in the stored one.
    fn stored(self, orientation: Orientation) -> Self {
        let [left, top, right, bottom] =
            orientation.stored([self.left, self.top, self.right, self.bottom]);
        Self { left, top, right, bottom }
    }

    /// The units that it touches: first and one past the last, across and down, of `across` x `down` that cover
    /// `width` x `height` pixels in steps of `unit`.
    fn units(
        &self,
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
        [
            along(self.left, self.right, size.0, unit.0, units.0),
            along(self.top, self.bottom, size.1, unit.1, units.1),
        ]
    }
}

impl FromStr for Region {
    type Err = RegionError;

    fn from_str(text: &str) -> Result<Self, RegionError> {
        let numbers: Option<Vec<f32>> =
            text.split(',').map(|number| number.trim().parse().ok()).collect();
        let region = match numbers.as_deref() {
            Some(&[left, top, right, bottom]) => Self::new(left, top, right, bottom).ok(),
            _ => None,
        };
        region.ok_or_else(|| RegionError { given: text.to_owned() })
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{},{},{}", self.left, self.top, self.right, self.bottom)
    }
}

/// Several regions; as text, with `;` between.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regions(pub Vec<Region>);

impl FromStr for Regions {
    type Err = RegionError;

    fn from_str(text: &str) -> Result<Self, RegionError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(';').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl std::fmt::Display for Regions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}

/// How a region is covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// One gray: nothing is left, not even whether something moves there.
    Fill,
    /// At most 6 x 6 grays: that somebody is there can be seen, not who.
    Blur,
}

/// A region and how it is covered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// Where.
    pub region: Region,
    /// How.
    pub cover: Cover,
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
            // Behind a gap, what belongs under a mask may stand beside it.
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
        let region = mask.region.stored(header.orientation);
        let [columns, rows] = region.units((header.width, header.height), unit, units);
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
