//! An application's bounds on the frames of a camera.

use std::{fmt, str::FromStr, time::Duration};

/// Latency and accuracy that every delivered frame must keep.
///
/// Latency runs from capture to the application's callback; accuracy is the detector's F1 on the
/// delivered frame, normalized by its F1 on the original (Mez, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    latency: Duration,
    accuracy: f64,
}

impl Bounds {
    /// The shortest latency that can be asked for.
    pub const LATENCY_MIN: Duration = Duration::from_millis(1);
    /// The longest latency that can be asked for.
    pub const LATENCY_MAX: Duration = Duration::from_secs(60);

    /// Checked bounds.
    ///
    /// # Errors
    /// [`BoundsError::Latency`] outside 1 ms to 60 s, [`BoundsError::Accuracy`] outside 0 to 1.
    pub fn new(latency: Duration, accuracy: f64) -> Result<Self, BoundsError> {
        if !(Self::LATENCY_MIN..=Self::LATENCY_MAX).contains(&latency) {
            return Err(BoundsError::Latency { millis: latency.as_secs_f64() * 1e3 });
        }
        if !(0.0..=1.0).contains(&accuracy) {
            return Err(BoundsError::Accuracy { accuracy });
        }
        Ok(Self { latency, accuracy })
    }

    /// Longest time from capture to the application.
    pub const fn latency(self) -> Duration {
        self.latency
    }

    /// Lowest normalized F1, 0 to 1.
    pub const fn accuracy(self) -> f64 {
        self.accuracy
    }

    /// Whether frames that keep `self` also keep `other`.
    pub fn imply(self, other: Self) -> bool {
        self.latency <= other.latency && self.accuracy >= other.accuracy
    }
}

/// Frames a second, 0.01 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct FrameRate(f64);

impl FrameRate {
    /// The lowest rate that can be asked for, in frames a second.
    pub const MIN: f64 = 0.01;
    /// The highest rate that can be asked for, in frames a second.
    pub const MAX: f64 = 1000.0;

    /// A checked rate.
    ///
    /// # Errors
    /// [`BoundsError::FrameRate`] outside 0.01 to 1000.
    pub fn new(frames_per_second: f64) -> Result<Self, BoundsError> {
        if (Self::MIN..=Self::MAX).contains(&frames_per_second) {
            return Ok(Self(frames_per_second));
        }
        Err(BoundsError::FrameRate { frames_per_second })
    }

    /// Frames a second.
    pub const fn frames_per_second(self) -> f64 {
        self.0
    }

    /// From one frame to the next.
    pub fn interval(self) -> Duration {
        Duration::from_secs_f64(1.0 / self.0)
    }
}

impl fmt::Display for FrameRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FrameRate {
    type Err = BoundsError;

    fn from_str(text: &str) -> Result<Self, BoundsError> {
        Self::new(text.trim().parse().unwrap_or(f64::NAN))
    }
}

/// Why bounds were refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BoundsError {
    /// The latency is zero, negative, not a number or too long.
    #[error("latency bound {millis} ms is outside 1 ms to 60000 ms")]
    Latency {
        /// The value given, in milliseconds.
        millis: f64,
    },
    /// The accuracy is no fraction.
    #[error("accuracy bound {accuracy} is outside 0 to 1; write 95 % as 0.95")]
    Accuracy {
        /// The value given.
        accuracy: f64,
    },
    /// The frame rate is zero, negative, not a number or too high.
    #[error("frame rate {frames_per_second} is outside 0.01 to 1000 frames a second")]
    FrameRate {
        /// The value given, in frames a second.
        frames_per_second: f64,
    },
}

/// Everything a subscription asks of the transfer that serves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The bounds that every delivered frame must keep.
    pub bounds: Bounds,
    /// The controller that chooses the knobs.
    pub controller: ControllerKind,
    /// Newest frame or every frame.
    pub delivery: Delivery,
    /// The bound to give up when both cannot be kept.
    pub when_infeasible: WhenInfeasible,
    /// Which family of knobs may be used.
    pub profile: AdaptationProfile,
    /// Most frames a second that are wanted, the others being left out; none: as many as the camera makes.
    pub frame_rate: Option<FrameRate>,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word used in configuration, flags and reports.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.as_str()) }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| UnknownWord {
                    what: $what,
                    word: text.to_owned(),
                    allowed: concat!($($word, " "),+).trim_end(),
                })
            }
        }
    };
}

words! {
    /// The controller that chooses the knobs of each frame.
    ControllerKind, "controller" {
        /// Per-frame byte budget from the measured capacity and the time left; the default.
        #[default]
        Budget = "budget",
        /// The paper's proportional-integral controller (Mez, Algorithm 1).
        MezPi = "mez-pi",
        /// Additive increase, multiplicative decrease; a baseline.
        Aimd = "aimd",
        /// Frames travel as they were captured.
        Fixed = "fixed",
    }
}

words! {
    /// Which frames are delivered when not all can be.
    Delivery, "delivery" {
        /// The newest frame wins; a late or overtaken frame is dropped and counted.
        #[default]
        Latest = "latest",
        /// Every frame, in order, late if need be.
        Every = "every",
    }
}

words! {
    /// The bound to give up when no knob setting keeps both.
    WhenInfeasible, "infeasible policy" {
        /// Keep the latency bound; frames below the accuracy bound are flagged.
        #[default]
        KeepLatency = "keep-latency",
        /// Keep the accuracy bound; fewer frames are sent.
        KeepAccuracy = "keep-accuracy",
        /// Send nothing until both can be kept again.
        Pause = "pause",
    }
}

words! {
    /// A family of knobs with the characterization tables made for it.
    AdaptationProfile, "profile" {
        /// Scale, quality, dead zone, gray, region of interest and differencing on JPEG frames.
        #[default]
        Jpeg = "jpeg",
        /// The five knobs and settings of the Mez paper, table 4.
        Mez = "mez",
    }
}

/// A word that names no choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {word:?}; choose one of: {allowed}")]
pub struct UnknownWord {
    /// The kind of name.
    pub what: &'static str,
    /// The word that was given.
    pub word: String,
    /// The words there are, separated by spaces.
    pub allowed: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_outside_their_range_are_refused_by_name() {
        let ms = Duration::from_millis;
        assert_eq!(
            Bounds::new(ms(0), 0.9).unwrap_err().to_string(),
            "latency bound 0 ms is outside 1 ms to 60000 ms"
        );
        assert!(matches!(Bounds::new(ms(60_001), 0.9), Err(BoundsError::Latency { .. })));
        for accuracy in [-0.1, 1.01, 95.0, f64::NAN] {
            assert!(matches!(Bounds::new(ms(100), accuracy), Err(BoundsError::Accuracy { .. })));
        }
        assert!(Bounds::new(ms(100), 1.0).is_ok());
    }

    #[test]
    fn stricter_bounds_imply_looser_ones() {
        let bounds =
            |millis, accuracy| Bounds::new(Duration::from_millis(millis), accuracy).unwrap();
        assert!(bounds(50, 0.95).imply(bounds(100, 0.9)));
        assert!(!bounds(50, 0.95).imply(bounds(40, 0.9)));
        assert!(!bounds(50, 0.95).imply(bounds(100, 0.96)));
    }

    #[test]
    fn words_round_trip_and_unknown_ones_name_the_choices() {
        for kind in ControllerKind::ALL {
            assert_eq!(kind.as_str().parse::<ControllerKind>().as_ref(), Ok(kind));
        }
        assert_eq!(
            "slow".parse::<Delivery>().unwrap_err().to_string(),
            "unknown delivery \"slow\"; choose one of: latest every"
        );
    }
}
