//! One figure of a bench: the measurement, the target, and whether it was met.

use serde::Serialize;

use crate::statistics::median;

/// The target of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Our value is at most this, in the figure's unit.
    AtMost(f64),
    /// Our value is at least this, in the figure's unit.
    AtLeast(f64),
    /// Our value is this one.
    Exactly(f64),
    /// Our value divided by the peer's is at most this.
    RatioAtMost(f64),
    /// Our value divided by the peer's is at least this.
    RatioAtLeast(f64),
    /// Shown for what it says; it can be neither met nor short.
    Shown,
}

/// How far past its target a value may be and still tie with it. A tie is met.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tolerance {
    /// Nothing past the target.
    None,
    /// In the unit of what the target compares: the figure's own, or the ratio's.
    Absolute(f64),
    /// As a fraction of the target: 0.01 is one per cent.
    Relative(f64),
}

impl Tolerance {
    fn of(self, target: f64) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Absolute(slack) => slack.abs(),
            Self::Relative(fraction) => (fraction * target).abs(),
        }
    }
}

/// The verdict at the end of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The target is reached, or tied with.
    Met,
    /// The target is not reached, or its figure could not be measured.
    Short,
    /// There was no target.
    Shown,
}

impl Verdict {
    /// The word of the row's last column.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Short => "short",
            Self::Shown => "-",
        }
    }
}

/// One row: the value of every run for us and for a peer, a target and a tolerance.
///
/// ```
/// use bench_harness::{Figure, Target, Tolerance, Verdict};
///
/// let row = Figure::new("knob q60, 1080p", "ms")
///     .ours([4.0, 4.2, 3.9, 4.1, 4.0])
///     .peer([6.1, 6.0, 6.2, 6.0, 5.9])
///     .target(Target::RatioAtMost(0.7))
///     .tolerance(Tolerance::Absolute(0.01));
/// assert_eq!(row.verdict(), Verdict::Met);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    name: String,
    unit: String,
    ours: Vec<f64>,
    peer: Vec<f64>,
    peer_name: Option<String>,
    target: Target,
    tolerance: Tolerance,
    note: Option<String>,
}

impl Figure {
    /// A figure without values: say what it measures ("p95 latency, 5 cameras, 15 fps") and in what unit.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            unit: unit.into(),
            ours: Vec::new(),
            peer: Vec::new(),
            peer_name: None,
            target: Target::Shown,
            tolerance: Tolerance::None,
            note: None,
        }
    }

    /// Our values, one per run.
    #[must_use]
    pub fn ours(mut self, values: impl IntoIterator<Item = f64>) -> Self {
        self.ours = values.into_iter().collect();
        self
    }

    /// The peer's values, one per run, in the order of ours.
    #[must_use]
    pub fn peer(mut self, values: impl IntoIterator<Item = f64>) -> Self {
        self.peer = values.into_iter().collect();
        self
    }

    /// The name of the peer, where a report has more than one.
    #[must_use]
    pub fn peer_name(mut self, name: impl Into<String>) -> Self {
        self.peer_name = Some(name.into());
        self
    }

    /// The target of the figure. [`Target::Shown`] without this call.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// The tolerance within which it ties with the target. [`Tolerance::None`] without this call.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Tolerance) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// A remark below the table: why a figure is missing, what it leaves out.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The figure's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The remark on this figure, if there is one.
    #[must_use]
    pub fn remark(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The median of our runs; not a number when there is none.
    #[must_use]
    pub fn ours_median(&self) -> f64 {
        median(&self.ours)
    }

    /// The median of the peer's runs; not a number when there is none.
    #[must_use]
    pub fn peer_median(&self) -> f64 {
        median(&self.peer)
    }

    /// Ours over the peer's: the median of the runs' own ratios where both ran as often, else the ratio of the medians.
    /// Not a number without a peer.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if !self.ours.is_empty() && self.ours.len() == self.peer.len() {
            let ratios: Vec<f64> =
                self.ours.iter().zip(&self.peer).map(|(ours, peer)| ours / peer).collect();
            return median(&ratios);
        }
        self.ours_median() / self.peer_median()
    }

    /// Whether the target is reached.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let (value, target) = match self.target {
            Target::Shown => return Verdict::Shown,
            Target::AtMost(target) | Target::AtLeast(target) | Target::Exactly(target) => {
                (self.ours_median(), target)
            }
            Target::RatioAtMost(target) | Target::RatioAtLeast(target) => (self.ratio(), target),
        };
        let slack = self.tolerance.of(target);
        // Every comparison is false for what is not a number, so a figure without a value is short.
        let met = match self.target {
            Target::AtMost(_) | Target::RatioAtMost(_) => value <= target + slack,
            Target::AtLeast(_) | Target::RatioAtLeast(_) => value >= target - slack,
            Target::Exactly(_) | Target::Shown => (value - target).abs() <= slack,
        };
        if met { Verdict::Met } else { Verdict::Short }
    }

    /// The row's six cells: figure, ours, peer, ratio, target, verdict.
    #[must_use]
    pub fn cells(&self) -> [String; 6] {
        let peer = match (&self.peer_name, self.peer_median()) {
            (_, value) if value.is_nan() => "-".to_owned(),
            (Some(name), value) => format!("{} ({name})", self.with_unit(value)),
            (None, value) => self.with_unit(value),
        };
        [
            self.name.clone(),
            self.with_unit(self.ours_median()),
            peer,
            number(self.ratio()),
            self.target_words(),
            self.verdict().word().to_owned(),
        ]
    }

    fn target_words(&self) -> String {
        match self.target {
            Target::AtMost(target) => format!("≤ {}", self.with_unit(target)),
            Target::AtLeast(target) => format!("≥ {}", self.with_unit(target)),
            Target::Exactly(target) => format!("= {}", self.with_unit(target)),
            Target::RatioAtMost(target) => format!("ratio ≤ {}", number(target)),
            Target::RatioAtLeast(target) => format!("ratio ≥ {}", number(target)),
            Target::Shown => "-".to_owned(),
        }
    }

    fn with_unit(&self, value: f64) -> String {
        match (number(value).as_str(), self.unit.as_str()) {
            ("-", _) => "-".to_owned(),
            (digits, "") => digits.to_owned(),
            (digits, unit) => format!("{digits} {unit}"),
        }
    }
}

/// Four significant digits, which is more than a noisy machine can promise; whole numbers in full; `-` for no number.
fn number(value: f64) -> String {
    if value.is_nan() {
        return "-".to_owned();
    }
    if value == 0.0 || !value.is_finite() || (value.fract() == 0.0 && value.abs() < 1e15) {
        return format!("{value}");
    }
    let before_point = value.abs().log10().floor() as i32 + 1;
    let decimals = (4 - before_point).clamp(0, 9) as usize;
    let digits = format!("{value:.decimals$}");
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_NUMBER: f64 = f64::NAN;

    #[test]
    fn a_tie_is_met_and_a_hair_past_it_is_short() {
        use Target::{AtLeast, AtMost, Exactly, RatioAtLeast, RatioAtMost};
        use Tolerance::{Absolute, Relative};
        for (ours, peer, target, tolerance, expected) in [
            (100.0, NO_NUMBER, AtMost(100.0), Tolerance::None, Verdict::Met),
            (100.1, NO_NUMBER, AtMost(100.0), Tolerance::None, Verdict::Short),
            (96.5, NO_NUMBER, AtLeast(97.0), Absolute(0.5), Verdict::Met),
            (96.4, NO_NUMBER, AtLeast(97.0), Absolute(0.5), Verdict::Short),
            (0.96, NO_NUMBER, AtLeast(0.965), Absolute(0.006), Verdict::Met),
            (1623.0, NO_NUMBER, Exactly(1623.0), Tolerance::None, Verdict::Met),
            (1624.0, NO_NUMBER, Exactly(1623.0), Tolerance::None, Verdict::Short),
            (7.0, 10.0, RatioAtMost(0.7), Tolerance::None, Verdict::Met),
            (7.2, 10.0, RatioAtMost(0.7), Relative(0.02), Verdict::Short),
            (7.1, 10.0, RatioAtMost(0.7), Relative(0.02), Verdict::Met),
            (19.0, 10.0, RatioAtLeast(2.0), Tolerance::None, Verdict::Short),
            (7.0, NO_NUMBER, RatioAtMost(0.7), Tolerance::None, Verdict::Short), // the peer did not run
            (NO_NUMBER, NO_NUMBER, AtMost(100.0), Absolute(1e9), Verdict::Short),
            (7.0, NO_NUMBER, Target::Shown, Tolerance::None, Verdict::Shown),
        ] {
            let row = Figure::new("f", "ms")
                .ours([ours])
                .peer([peer])
                .target(target)
                .tolerance(tolerance);
            assert_eq!(row.verdict(), expected, "{ours} against {peer}, {target:?}, {tolerance:?}");
        }
    }

    #[test]
    fn a_figure_that_was_not_measured_is_short() {
        let row = Figure::new("latency", "ms").target(Target::AtMost(100.0)).note("needs root");
        assert_eq!(row.verdict(), Verdict::Short);
        assert_eq!(row.cells()[1], "-");
    }

    #[test]
    fn the_ratio_is_taken_run_by_run() {
        // The machine was twice as slow in the second run, for both: the ratio does not move.
        let row = Figure::new("f", "ms").ours([1.0, 2.0, 1.0]).peer([2.0, 4.0, 2.0]);
        assert_eq!(row.ratio(), 0.5);
        // The medians alone (2 and 3) would have said 0.667.
        let row = Figure::new("f", "ms").ours([1.0, 2.0, 9.0]).peer([2.0, 4.0, 3.0]);
        assert_eq!(row.ratio(), 0.5);
        // A peer that ran less often is compared by medians.
        let row = Figure::new("f", "ms").ours([1.0, 2.0, 3.0]).peer([4.0]);
        assert_eq!(row.ratio(), 0.5);
    }

    #[test]
    fn cells_read_as_the_convention_says() {
        let row = Figure::new("knob q60", "ms")
            .ours([4.1234567])
            .peer([6.0])
            .peer_name("OpenCV")
            .target(Target::RatioAtMost(0.7));
        assert_eq!(
            row.cells(),
            ["knob q60", "4.123 ms", "6 ms (OpenCV)", "0.6872", "ratio ≤ 0.7", "met"]
        );
    }

    #[test]
    fn numbers_keep_four_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (1_623.0, "1623"),
            (12_345.678, "12346"),
            (99.9951, "100"),
            (1.5, "1.5"),
            (0.000_123_456, "0.0001235"),
            (-2.618_281, "-2.618"),
            (f64::NAN, "-"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
