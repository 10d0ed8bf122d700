//! A box as the clients of Roboflow and `supervision` read it.

use serde::Serialize;
use tidegate_frame::score::Detection;

/// A box by its middle and its size, in the pixels of the box that it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction<'a> {
    /// Middle, from the left.
    pub x: f64,
    /// Middle, from the top.
    pub y: f64,
    /// From its left to its right.
    pub width: f64,
    /// From its top to its bottom.
    pub height: f64,
    /// Score, on the model's own scale.
    pub confidence: f64,
    /// Label.
    pub class: &'a str,
    /// A number for the label, see [`class_id`].
    pub class_id: u32,
}

impl<'a> From<&'a Detection> for Prediction<'a> {
    fn from(found: &'a Detection) -> Self {
        let [left, top, right, bottom] = found.rect.corners();
        Self {
            x: f64::midpoint(left, right),
            y: f64::midpoint(top, bottom),
            width: right - left,
            height: bottom - top,
            confidence: found.score,
            class: &found.label,
            class_id: class_id(&found.label),
        }
    }
}

/// A number for a class, which clients of `supervision` ask for: the same for the same label at every node and after every start, which
/// an index would not be, for a detector does not say which labels it has. FNV-1a of the label, without its highest bit.
pub fn class_id(label: &str) -> u32 {
    let hash = label
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash & 0x7fff_ffff
}
