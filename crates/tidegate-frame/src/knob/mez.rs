//! The five knobs of the Mez paper (section 2.3.1) and the numbers its tables give them.
//!
//! A combination is called `R3 C2 K1 D1 F4` or by its id, `500(R-1) + 100(C-1) + 20(K-1) + 5(D-1) + (F-1)`.
//! The published tables were made with PNG at R2 to R5; these frames are JPEG at quality 95, so sizes
//! predicted from those tables do not hold for them, while the settings are the same.

use std::fmt;

use tidegate_message::FrameSize;

/// One combination of the five knobs. The default is R2 C1 K1 D1 F1, id 500, the paper's baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MezKnobs {
    /// R: the size of the frame.
    pub resolution: Resolution,
    /// C: the colour space of the sent frame's channels.
    pub color: ColorSpace,
    /// K: the box filter.
    pub blur: Blur,
    /// D: the parts that are kept of a still background.
    pub artifact: ArtifactRemoval,
    /// F: how different a frame must be to be sent.
    pub difference: Difference,
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident from $first:literal { $($(#[$vdoc:meta])* $variant:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every setting, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The number in the paper's tables.
            pub const fn number(self) -> u8 {
                self as u8 + $first
            }

            fn numbered(number: u16) -> Option<Self> {
                Self::ALL.get(usize::from(number.checked_sub($first)?)).copied()
            }
        }

        impl Default for $name {
            fn default() -> Self { Self::ALL[0] }
        }
    };
}

numbered! {
    /// The size of the frame. A frame is never enlarged and keeps its aspect: the size is the largest within
    /// both the named size and the source's.
    Resolution from 2 {
        /// R2: 1312x738, the baseline.
        R2,
        /// R3: 960x540.
        R3,
        /// R4: 640x360.
        R4,
        /// R5: 480x270.
        R5,
    }
}

numbered! {
    /// The colour space of the channels. Converted frames are sent as they are, three channels in place of B, G
    /// and R, as the paper's pipeline hands them to its detector.
    ColorSpace from 1 {
        /// C1: unchanged.
        Bgr,
        /// C2: luma only.
        Gray,
        /// C3: hue (0 to 179), saturation, value.
        Hsv,
        /// C4: CIE L*a*b*.
        Lab,
        /// C5: CIE L*u*v*.
        Luv,
    }
}

numbered! {
    /// A normalized box filter.
    Blur from 1 {
        /// K1: none.
        None,
        /// K2: 5x5.
        Box5,
        /// K3: 8x8.
        Box8,
        /// K4: 10x10.
        Box10,
        /// K5: 15x15.
        Box15,
    }
}

numbered! {
    /// The parts that are kept of a still background. Motion is what differs from a slowly following
    /// background in the 1/8 image, in steps of 8 source pixels.
    ArtifactRemoval from 1 {
        /// D1: everything.
        Off,
        /// D2: moving objects; the rest is black.
        Objects,
        /// D3: the outlines of moving objects, 8 source pixels wide; the rest is black.
        Contours,
    }
}

numbered! {
    /// How different from the last frame sent a frame must be.
    ///
    /// The paper says that five values run from 0 (pixelwise identical) to 0.72 and not which; here they are
    /// evenly spaced. Different is a pixel of the 1/8 image that differs at all.
    Difference from 1 {
        /// F1: every frame is sent.
        F1,
        /// F2: at most 18 % differ.
        F2,
        /// F3: at most 36 % differ.
        F3,
        /// F4: at most 54 % differ.
        F4,
        /// F5: at most 72 % differ.
        F5,
    }
}

impl Resolution {
    /// The named size.
    pub const fn size(self) -> FrameSize {
        let (width, height) = match self {
            Self::R2 => (1312, 738),
            Self::R3 => (960, 540),
            Self::R4 => (640, 360),
            Self::R5 => (480, 270),
        };
        FrameSize { width, height }
    }

    /// The size of a frame of `source` at this resolution.
    pub fn of(self, source: FrameSize) -> FrameSize {
        let (w, h) = (u32::from(source.width), u32::from(source.height));
        let box_ = self.size();
        let (bw, bh) = (u32::from(box_.width), u32::from(box_.height));
        if w <= bw && h <= bh {
            return source;
        }
        // Fit the tighter side exactly and round the other to the nearest pixel.
        let near = |a: u32, b: u32, c: u32| ((a * b + c / 2) / c).max(1);
        let (width, height) =
            if w * bh >= h * bw { (bw, near(h, bw, w)) } else { (near(w, bh, h), bh) };
        let side = |pixels: u32| u16::try_from(pixels).expect("fits in the named size");
        FrameSize { width: side(width), height: side(height) }
    }
}

impl Blur {
    /// Width and height of the filter in pixels of the sent frame, 1 for none.
    pub const fn pixels(self) -> u8 {
        match self {
            Self::None => 1,
            Self::Box5 => 5,
            Self::Box8 => 8,
            Self::Box10 => 10,
            Self::Box15 => 15,
        }
    }
}

impl Difference {
    /// The fraction of differing pixels up to which a frame is held back; `None` for F1.
    pub fn threshold(self) -> Option<f32> {
        (self != Self::F1).then(|| f32::from(self as u8) * 0.18)
    }
}

impl MezKnobs {
    /// The combination id of the paper's tables, 500 to 2499.
    pub fn id(self) -> u16 {
        let step = |number: u8, weight: u16| u16::from(number - 1) * weight;
        step(self.resolution.number(), 500)
            + step(self.color.number(), 100)
            + step(self.blur.number(), 20)
            + step(self.artifact.number(), 5)
            + step(self.difference.number(), 1)
    }

    /// The combination of that id; `None` if there is none (the id leaves room for a fourth artifact setting).
    pub fn from_id(id: u16) -> Option<Self> {
        Some(Self {
            resolution: Resolution::numbered(id / 500 + 1)?,
            color: ColorSpace::numbered(id % 500 / 100 + 1)?,
            blur: Blur::numbered(id % 100 / 20 + 1)?,
            artifact: ArtifactRemoval::numbered(id % 20 / 5 + 1)?,
            difference: Difference::numbered(id % 5 + 1)?,
        })
    }

    /// Every combination, in the order of their ids.
    pub fn all() -> impl Iterator<Item = Self> {
        (500..2500).filter_map(Self::from_id)
    }
}

impl fmt::Display for MezKnobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resolution: r, color: c, blur: k, artifact: d, difference: n } = self;
        write!(f, "R{} C{} K{} D{} F{}", r.number(), c.number(), k.number(), d.number(), n.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_paper_both_ways() {
        for (id, name) in [
            (500, "R2 C1 K1 D1 F1"),
            (1100, "R3 C2 K1 D1 F1"),
            (1102, "R3 C2 K1 D1 F3"),
            (1603, "R4 C2 K1 D1 F4"),
            (1623, "R4 C2 K2 D1 F4"),
            (2104, "R5 C2 K1 D1 F5"),
            (1061, "R3 C1 K4 D1 F2"),
            (510, "R2 C1 K1 D3 F1"),
        ] {
            let knobs = MezKnobs::from_id(id).unwrap();
            assert_eq!((knobs.to_string().as_str(), knobs.id()), (name, id));
        }
        assert_eq!(MezKnobs::all().count(), 4 * 5 * 5 * 3 * 5);
        assert!(MezKnobs::all().all(|k| MezKnobs::from_id(k.id()) == Some(k)));
        for none in [0, 499, 515, 2500, u16::MAX] {
            assert_eq!(MezKnobs::from_id(none), None, "{none}");
        }
        assert_eq!(MezKnobs::default().id(), 500);
    }

    #[test]
    fn resolutions_keep_the_aspect_and_never_enlarge() {
        let size = |width, height| FrameSize { width, height };
        for (resolution, source, expected) in [
            (Resolution::R2, size(1920, 1080), size(1312, 738)),
            (Resolution::R3, size(1920, 1080), size(960, 540)),
            (Resolution::R3, size(768, 432), size(768, 432)),
            (Resolution::R4, size(768, 576), size(480, 360)),
            (Resolution::R5, size(100, 4000), size(7, 270)),
            (Resolution::R5, size(65_500, 1), size(480, 1)),
        ] {
            assert_eq!(resolution.of(source), expected, "{resolution:?} of {source}");
        }
    }
}
