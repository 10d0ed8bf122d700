//! Boxes as clients read them: in answers about an image, in live detections, and in messages of gRPC.

use serde::Serialize;
use tidegate_message::Detection;

use crate::proto;

/// How exactly the sides of a box are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// As the detector said them.
    Exact,
    /// To a hundredth of a pixel.
    Hundredths,
}

impl Sides {
    fn write(self, side: f64) -> f64 {
        match self {
            Self::Exact => side,
            Self::Hundredths => (side * 100.0).round() / 100.0,
        }
    }
}

/// Left, top, right, bottom, score, label: a list in JSON.
pub type Listed<'a> = (f64, f64, f64, f64, f64, &'a str);

/// A box as a list.
pub fn listed(found: &Detection, sides: Sides) -> Listed<'_> {
    let [left, top, right, bottom] = found.rect.corners().map(|side| sides.write(side));
    (left, top, right, bottom, found.score, &*found.label)
}

/// A box as a message of `tidegate.v1.Detect`.
pub fn message(found: &Detection) -> proto::DetectedBox {
    let (left, top, right, bottom, score, label) = listed(found, Sides::Exact);
    proto::DetectedBox { left, top, right, bottom, score, label: label.to_owned() }
}

/// A box by its middle and its size, as the clients of Roboflow and `supervision` read it.
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

impl<'a> Prediction<'a> {
    /// The prediction that a box is.
    pub fn new(found: &'a Detection, sides: Sides) -> Self {
        let [left, top, right, bottom] = found.rect.corners();
        Self {
            x: sides.write(f64::midpoint(left, right)),
            y: sides.write(f64::midpoint(top, bottom)),
            width: sides.write(right - left),
            height: sides.write(bottom - top),
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

#[cfg(test)]
mod tests {
    use tidegate_message::Rect;

    use super::*;

    #[test]
    fn box_is_written_as_exactly_as_asked() {
        let rect = Rect::new(10.0, 20.006, 30.125, 60.0).expect("a rectangle");
        let found = Detection { rect, score: 0.123_456, label: "face".into() };
        let listed = |sides| super::listed(&found, sides);
        assert_eq!(listed(Sides::Exact), (10.0, 20.006, 30.125, 60.0, 0.123_456, "face"));
        assert_eq!(listed(Sides::Hundredths), (10.0, 20.01, 30.13, 60.0, 0.123_456, "face"));
        let Prediction { x, y, width, height, class_id, .. } =
            Prediction::new(&found, Sides::Hundredths);
        assert_eq!((x, y, width, height, class_id), (20.06, 40.0, 20.13, 39.99, 292_255_708));
        let proto::DetectedBox { top, right, score, label, .. } = message(&found);
        assert_eq!((top, right, score, &*label), (20.006, 30.125, 0.123_456, "face"));
    }
}
