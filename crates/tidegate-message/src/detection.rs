//! A thing that a detector found in a picture, and where.

use std::sync::Arc;

use crate::FrameSize;

/// A rectangle in pixels of some frame, from its left upper corner to its right lower one.
///
/// Corners may lie outside the frame; the area is always finite and positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    x1: f64,
    y1: f64,
    x2: f64,
    y2: f64,
}

impl Rect {
    /// Coordinates beyond this are refused.
    pub const COORDINATE_MAX: f64 = 1e6;

    /// The rectangle with these corners.
    ///
    /// # Errors
    /// [`RectError`] if a coordinate is not finite, is beyond [`Self::COORDINATE_MAX`], or if the right lower corner is not
    /// right of and below the left upper one.
    pub fn new(x1: f64, y1: f64, x2: f64, y2: f64) -> Result<Self, RectError> {
        let near = |v: f64| v.abs() <= Self::COORDINATE_MAX; // false for NaN
        if [x1, y1, x2, y2].into_iter().all(near) && x1 < x2 && y1 < y2 {
            Ok(Self { x1, y1, x2, y2 })
        } else {
            Err(RectError { x1, y1, x2, y2 })
        }
    }

    /// Left, top, right, bottom in pixels.
    pub const fn corners(self) -> [f64; 4] {
        [self.x1, self.y1, self.x2, self.y2]
    }

    /// Square pixels.
    pub fn area(self) -> f64 {
        (self.x2 - self.x1) * (self.y2 - self.y1)
    }

    /// Intersection over union with `other`, 0 to 1.
    pub fn iou(self, other: Self) -> f64 {
        let width = self.x2.min(other.x2) - self.x1.max(other.x1);
        let height = self.y2.min(other.y2) - self.y1.max(other.y1);
        if width <= 0.0 || height <= 0.0 {
            return 0.0;
        }
        let shared = width * height;
        shared / (self.area() + other.area() - shared)
    }

    /// The same place in a frame of another size.
    ///
    /// Width and height scale independently, as they do when a knob rounds one of them. A rectangle too thin to be
    /// distinguished at the new size keeps its place and shrinks no further than a millionth of a pixel.
    pub fn scaled(self, from: FrameSize, to: FrameSize) -> Self {
        let x = f64::from(to.width) / f64::from(from.width.max(1));
        let y = f64::from(to.height) / f64::from(from.height.max(1));
        let thick = |low: f64, high: f64| (low, high.max(low + 1e-6));
        let (x1, x2) = thick(self.x1 * x, self.x2 * x);
        let (y1, y2) = thick(self.y1 * y, self.y2 * y);
        Self { x1, y1, x2, y2 }
    }
}

/// One thing that a detector found, or that is known to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// Where.
    pub rect: Rect,
    /// How sure, on the detector's own scale. Known boxes have 1.
    pub score: f64,
    /// Its class, in the detector's own words: `person`.
    pub label: Arc<str>,
}

impl Detection {
    /// A detection in a frame of another size.
    pub fn scaled(&self, from: FrameSize, to: FrameSize) -> Self {
        Self { rect: self.rect.scaled(from, to), ..self.clone() }
    }
}

/// Corners that span no rectangle.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "corners ({x1}, {y1}) and ({x2}, {y2}) span no rectangle: all must be within ±1e6 and the second right of and below the first"
)]
pub struct RectError {
    /// Left.
    pub x1: f64,
    /// Top.
    pub y1: f64,
    /// Right.
    pub x2: f64,
    /// Bottom.
    pub y2: f64,
}
