//! A knob setting: the operations on one frame before it is sent.
//!
//! Written `original`, `q50 dz`, `1/2 q75`, `5/8 q50 gray`, `q50 roi3`, `1/2 q75 diff2%` or `mez 1623`;
//! [`Display`](fmt::Display) and [`FromStr`] round-trip.
//!
//! Always true: a [`KnobSetting`] that exists can be carried out on every frame that
//! [`inspect`](super::inspect) accepts; combinations that cannot are refused when the setting is made.

use std::{fmt, str::FromStr};

use tidegate_message::FrameSize;

use super::mez::MezKnobs;

/// One setting of all knobs: small, copied freely, a key of tables and maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KnobSetting(Knobs);

/// The knobs of a setting, by profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Knobs {
    /// Profile `jpeg`.
    Jpeg(JpegKnobs),
    /// Profile `mez`, the five knobs of the Mez paper.
    Mez(MezKnobs),
}

/// The knobs of profile `jpeg`. The default leaves a frame as it was captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JpegKnobs {
    /// Width and height against the source's.
    pub scale: Scale,
    /// JPEG quality 1 to 95 on libjpeg's scale; `None` keeps the source's quantization tables.
    ///
    /// A table entry never becomes finer than the source's when the scale is full: there is nothing to win.
    pub quality: Option<u8>,
    /// Round coefficients towards zero from 2/3 up instead of from 1/2: about a tenth fewer bytes at the
    /// same quality. Needs a quality and the full scale.
    pub dead_zone: bool,
    /// Drop the colour.
    pub gray: bool,
    /// Keep only the lowest `n` frequency diagonals, 1 to 7, where nothing moves (1: the mean of each
    /// 8x8 block). Needs the full scale.
    pub roi: Option<u8>,
    /// Send nothing when at most this many thousandths of the 1/8 image changed since the last frame
    /// that was sent, 0 to 1000.
    pub difference_permille: Option<u16>,
}

/// Width and height of the sent frame against the source's, in eighths: the scales of a JPEG decoder
/// without decoding every pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scale {
    /// As captured.
    #[default]
    Full,
    /// 5/8.
    FiveEighths,
    /// 1/2.
    Half,
    /// 3/8.
    ThreeEighths,
    /// 1/4.
    Quarter,
}

impl Scale {
    /// Every scale, largest first.
    pub const ALL: [Self; 5] =
        [Self::Full, Self::FiveEighths, Self::Half, Self::ThreeEighths, Self::Quarter];

    /// The scale in eighths: 8, 5, 4, 3 or 2.
    pub const fn eighths(self) -> u8 {
        match self {
            Self::Full => 8,
            Self::FiveEighths => 5,
            Self::Half => 4,
            Self::ThreeEighths => 3,
            Self::Quarter => 2,
        }
    }

    /// The size of a frame of `size` after scaling, rounded up.
    pub fn of(self, size: FrameSize) -> FrameSize {
        let side = |pixels: u16| {
            let scaled = (u32::from(pixels) * u32::from(self.eighths())).div_ceil(8);
            u16::try_from(scaled).expect("a scale is at most one")
        };
        FrameSize { width: side(size.width), height: side(size.height) }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "1",
            Self::FiveEighths => "5/8",
            Self::Half => "1/2",
            Self::ThreeEighths => "3/8",
            Self::Quarter => "1/4",
        }
    }
}

impl KnobSetting {
    /// The frame as it was captured.
    pub const ORIGINAL: Self = Self(Knobs::Jpeg(JpegKnobs {
        scale: Scale::Full,
        quality: None,
        dead_zone: false,
        gray: false,
        roi: None,
        difference_permille: None,
    }));
    /// Highest quality that can be asked for.
    pub const QUALITY_MAX: u8 = 95;
    /// Most frequency diagonals a background can keep.
    pub const ROI_DIAGONALS_MAX: u8 = 7;

    /// A setting of profile `jpeg`.
    ///
    /// # Errors
    /// Names the knob that is out of range or the pair that does not go together.
    pub fn jpeg(knobs: JpegKnobs) -> Result<Self, KnobError> {
        if let Some(quality) = knobs.quality.filter(|q| !(1..=Self::QUALITY_MAX).contains(q)) {
            return Err(KnobError::Quality { quality });
        }
        if let Some(diagonals) = knobs.roi.filter(|n| !(1..=Self::ROI_DIAGONALS_MAX).contains(n)) {
            return Err(KnobError::Roi { diagonals });
        }
        if let Some(permille) = knobs.difference_permille.filter(|&p| p > 1000) {
            return Err(KnobError::Difference { permille });
        }
        if knobs.scale != Scale::Full && (knobs.dead_zone || knobs.roi.is_some()) {
            return Err(KnobError::Scaled { knob: if knobs.dead_zone { "dz" } else { "roi" } });
        }
        if knobs.dead_zone && knobs.quality.is_none() {
            return Err(KnobError::DeadZone);
        }
        Ok(Self(Knobs::Jpeg(knobs)))
    }

    /// A setting of profile `mez`.
    pub const fn mez(knobs: MezKnobs) -> Self {
        Self(Knobs::Mez(knobs))
    }

    /// The knobs, by profile.
    pub const fn knobs(self) -> Knobs {
        self.0
    }

    /// Whether the bytes of a frame pass unchanged (they may still be held back by differencing).
    pub fn is_original(self) -> bool {
        matches!(self.0, Knobs::Jpeg(knobs)
            if JpegKnobs { difference_permille: None, ..knobs } == JpegKnobs::default())
    }

    /// The fraction of changed pixels up to which a frame counts as unchanged; `None` without differencing.
    pub fn difference(self) -> Option<f32> {
        match self.0 {
            Knobs::Jpeg(knobs) => knobs.difference_permille.map(|p| f32::from(p) / 1000.0),
            Knobs::Mez(knobs) => knobs.difference.threshold(),
        }
    }

    /// The same setting with differencing at `permille` thousandths, or without. Leaves profile `mez` as it is.
    ///
    /// # Errors
    /// [`KnobError::Difference`] above 1000.
    pub fn with_difference(self, permille: Option<u16>) -> Result<Self, KnobError> {
        match self.0 {
            Knobs::Jpeg(knobs) => Self::jpeg(JpegKnobs { difference_permille: permille, ..knobs }),
            Knobs::Mez(_) => Ok(self),
        }
    }

    /// The size that a frame of `source` has after this setting.
    pub fn size_of(self, source: FrameSize) -> FrameSize {
        match self.0 {
            Knobs::Jpeg(knobs) => knobs.scale.of(source),
            Knobs::Mez(knobs) => knobs.resolution.of(source),
        }
    }

    /// The settings worth characterizing by default: from the original down to about a thirtieth of its bytes.
    ///
    /// Scale with quality carries the far end, requantised coefficients the near end. Blur and the
    /// colour spaces of profile `mez` are beaten by these on every axis and left out; differencing
    /// changes which frames are sent, not what they are worth, and can be added to any row.
    pub fn ladder() -> Vec<Self> {
        const ROWS: [&str; 32] = [
            "original",
            "q90",
            "q75",
            "q60",
            "q50",
            "q50 dz",
            "q40 dz",
            "q50 gray dz",
            "q75 roi3",
            "q50 roi3",
            "q50 roi1",
            "5/8 q90",
            "5/8 q75",
            "5/8 q60",
            "5/8 q50",
            "5/8 q50 gray",
            "5/8 q30",
            "1/2 q90",
            "1/2 q75",
            "1/2 q60",
            "1/2 q60 gray",
            "1/2 q50",
            "1/2 q40",
            "1/2 q30",
            "3/8 q90",
            "3/8 q75",
            "3/8 q50",
            "3/8 q30",
            "1/4 q90",
            "1/4 q75",
            "1/4 q50",
            "1/4 q30",
        ];
        ROWS.iter().map(|row| row.parse().expect("the default ladder is spelled right")).collect()
    }

    /// The settings of profile `mez` worth characterizing: all resolutions, colour spaces and blurs, the
    /// differencing thresholds without blur, and both artifact removals on the plain frame.
    pub fn mez_ladder() -> Vec<Self> {
        MezKnobs::all()
            .filter(|k| {
                let plain = k.blur.number() == 1;
                match (k.artifact.number(), k.difference.number()) {
                    (1, 1) => true,
                    (1, _) => plain,
                    (_, 1) => plain && k.color.number() == 1,
                    _ => false,
                }
            })
            .map(Self::mez)
            .collect()
    }
}

impl Default for KnobSetting {
    fn default() -> Self {
        Self::ORIGINAL
    }
}

impl fmt::Display for KnobSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let knobs = match self.0 {
            Knobs::Jpeg(knobs) => knobs,
            Knobs::Mez(knobs) => return write!(f, "mez {}", knobs.id()),
        };
        let mut gap = "";
        let mut word = |f: &mut fmt::Formatter<'_>, word: fmt::Arguments<'_>| {
            let written = write!(f, "{gap}{word}");
            gap = " ";
            written
        };
        if self.is_original() {
            word(f, format_args!("original"))?;
        }
        if knobs.scale != Scale::Full {
            word(f, format_args!("{}", knobs.scale.as_str()))?;
        }
        if let Some(quality) = knobs.quality {
            word(f, format_args!("q{quality}"))?;
        }
        if knobs.gray {
            word(f, format_args!("gray"))?;
        }
        if knobs.dead_zone {
            word(f, format_args!("dz"))?;
        }
        if let Some(diagonals) = knobs.roi {
            word(f, format_args!("roi{diagonals}"))?;
        }
        match knobs.difference_permille {
            Some(p) if p % 10 == 0 => word(f, format_args!("diff{}%", p / 10)),
            Some(p) => word(f, format_args!("diff{}.{}%", p / 10, p % 10)),
            None => Ok(()),
        }
    }
}

impl FromStr for KnobSetting {
    type Err = KnobError;

    fn from_str(text: &str) -> Result<Self, KnobError> {
        let mut words = text.split_ascii_whitespace().peekable();
        match words.peek() {
            None => return Err(KnobError::Empty),
            Some(&"mez") => return parse_mez(text),
            Some(_) => {}
        }
        let mut knobs = JpegKnobs::default();
        let mut seen = Vec::new();
        for word in words {
            let kind = parse_word(word, &mut knobs)
                .ok_or_else(|| KnobError::Word { word: word.to_owned() })?;
            if seen.contains(&kind) {
                return Err(KnobError::Repeated { word: word.to_owned() });
            }
            seen.push(kind);
        }
        let setting = Self::jpeg(knobs)?;
        if seen.contains(&Word::Original) && !setting.is_original() {
            return Err(KnobError::Original);
        }
        Ok(setting)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Word {
    Original,
    Scale,
    Quality,
    Gray,
    DeadZone,
    Roi,
    Difference,
}

/// Reads one word into `knobs`; `None` if it is no knob.
fn parse_word(word: &str, knobs: &mut JpegKnobs) -> Option<Word> {
    // `u8::from_str` takes a leading plus sign, which would not round-trip.
    let number = |digits: &str| digits.starts_with(|c: char| c.is_ascii_digit()).then_some(());
    if let Some(scale) = Scale::ALL.into_iter().find(|scale| scale.as_str() == word) {
        knobs.scale = scale;
        return Some(Word::Scale);
    }
    match word {
        "original" => return Some(Word::Original),
        "gray" => {
            knobs.gray = true;
            return Some(Word::Gray);
        }
        "dz" => {
            knobs.dead_zone = true;
            return Some(Word::DeadZone);
        }
        _ => {}
    }
    if let Some(percent) = word.strip_prefix("diff").and_then(|rest| rest.strip_suffix('%')) {
        number(percent)?;
        let (whole, tenth) = percent.split_once('.').unwrap_or((percent, "0"));
        if tenth.len() != 1 {
            return None;
        }
        let tenth: u16 = tenth.parse().ok()?;
        knobs.difference_permille = Some(whole.parse::<u16>().ok()?.checked_mul(10)? + tenth);
        return Some(Word::Difference);
    }
    if let Some(diagonals) = word.strip_prefix("roi") {
        number(diagonals)?;
        knobs.roi = Some(diagonals.parse().ok()?);
        return Some(Word::Roi);
    }
    let quality = word.strip_prefix('q')?;
    number(quality)?;
    knobs.quality = Some(quality.parse().ok()?);
    Some(Word::Quality)
}

fn parse_mez(text: &str) -> Result<KnobSetting, KnobError> {
    let mut words = text.split_ascii_whitespace().skip(1);
    let word = words.next().unwrap_or_default();
    let id = word.parse().map_err(|_| KnobError::Word { word: word.to_owned() })?;
    if let Some(extra) = words.next() {
        return Err(KnobError::Word { word: extra.to_owned() });
    }
    MezKnobs::from_id(id).map(KnobSetting::mez).ok_or(KnobError::Mez { id })
}

/// Why a knob setting cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// An empty text.
    #[error("a knob setting is empty; write original to leave frames as they are")]
    Empty,
    /// A word that is no knob.
    #[error(
        "{word:?} is not a knob; there are original, 5/8, 1/2, 3/8, 1/4, q1 to q95, gray, dz, roi1 to roi7, diff0.5%, and mez with an id"
    )]
    Word {
        /// The word.
        word: String,
    },
    /// A knob named twice.
    #[error("{word:?} sets a knob that is already set; name each knob once")]
    Repeated {
        /// The second word.
        word: String,
    },
    /// `original` together with a knob that changes the frame.
    #[error("original goes with diff only; leave it out to use other knobs")]
    Original,
    /// Quality out of range.
    #[error("quality {quality} is outside 1 to 95; use original for more")]
    Quality {
        /// The value given.
        quality: u8,
    },
    /// Background diagonals out of range.
    #[error("roi{diagonals} is outside roi1 to roi7")]
    Roi {
        /// The value given.
        diagonals: u8,
    },
    /// Differencing threshold out of range.
    #[error("a difference of {permille} thousandths is above 100 %")]
    Difference {
        /// The value given.
        permille: u16,
    },
    /// A knob of coefficients on a scaled frame.
    #[error("{knob} needs the full scale; leave the scale out or drop {knob}")]
    Scaled {
        /// The knob.
        knob: &'static str,
    },
    /// Dead zone with the source's own tables.
    #[error("dz rounds requantised coefficients; name a quality with it")]
    DeadZone,
    /// No combination of that id.
    #[error("{id} is not a combination of the mez knobs; ids run from 500 to 2499 with D1 to D3")]
    Mez {
        /// The id.
        id: u16,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_round_trip_through_text() {
        for text in [
            "original",
            "original diff2%",
            "1/2 q75",
            "q50 dz",
            "5/8 q50 gray",
            "q50 roi3",
            "gray",
            "1/4 gray",
            "q50 gray dz roi1 diff0.5%",
            "3/8 diff100%",
            "mez 500",
            "mez 1623",
        ] {
            let setting: KnobSetting = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(setting.to_string(), text);
        }
        for setting in KnobSetting::ladder().into_iter().chain(KnobSetting::mez_ladder()) {
            assert_eq!(setting.to_string().parse(), Ok(setting));
        }
        assert_eq!("  q75   1/2 ".parse::<KnobSetting>().unwrap().to_string(), "1/2 q75");
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        for (text, message) in [
            ("", "a knob setting is empty"),
            ("q0", "quality 0 is outside"),
            ("q96", "quality 96 is outside"),
            ("q+5", "\"q+5\" is not a knob"),
            ("q300", "\"q300\" is not a knob"),
            ("roi0", "roi0 is outside"),
            ("roi8", "roi8 is outside"),
            ("1/2 q50 roi3", "roi needs the full scale"),
            ("1/2 q50 dz", "dz needs the full scale"),
            ("dz", "dz rounds"),
            ("q50 q60", "\"q60\" sets a knob that is already set"),
            ("original q50", "original goes with diff only"),
            ("diff101%", "above 100 %"),
            ("diff1.25%", "is not a knob"),
            ("3/4 q50", "\"3/4\" is not a knob"),
            ("mez 499", "499 is not a combination"),
            ("mez 515", "515 is not a combination"),
            ("mez 500 q5", "\"q5\" is not a knob"),
            ("mez", "is not a knob"),
        ] {
            let error = text.parse::<KnobSetting>().unwrap_err().to_string();
            assert!(error.contains(message), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn the_default_ladder_has_no_duplicate_and_starts_at_the_original() {
        let ladder = KnobSetting::ladder();
        assert!(ladder.len() >= 20);
        assert_eq!(ladder[0], KnobSetting::ORIGINAL);
        let distinct: std::collections::BTreeSet<_> = ladder.iter().collect();
        assert_eq!(distinct.len(), ladder.len());
    }

    #[test]
    fn sizes_round_up() {
        let odd = FrameSize { width: 767, height: 431 };
        for (text, width, height) in [
            ("original", 767, 431),
            ("5/8", 480, 270),
            ("1/2", 384, 216),
            ("3/8", 288, 162),
            ("1/4", 192, 108),
        ] {
            let setting: KnobSetting = text.parse().unwrap();
            assert_eq!(setting.size_of(odd), FrameSize { width, height }, "{text}");
        }
    }
}
