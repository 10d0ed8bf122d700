//! Controllers: which knob setting the next frame gets.
//!
//! A controller is asked once a frame, with everything that is known at that moment, and notified how
//! frames fared. It holds no clock and does no I/O. The choice among them is [`ControllerKind`]:
//!
//! | kind | decides by |
//! |---|---|
//! | [`Budget`] | the bytes that the measured capacity carries in the time left; the default |
//! | [`MezPi`] | the paper's proportional-integral law on the latency (Mez, Algorithm 1) |
//! | [`Aimd`] | additive increase, multiplicative decrease of the frame's size; a baseline |
//! | [`Fixed`] | nothing: frames travel as they were captured |
//!
//! Always true: a controller never waits and never violates a bound in silence. If nothing keeps both
//! bounds it says [`Choice::Infeasible`], with what could be had, and the subscriber's policy decides.

mod aimd;
mod budget;
mod fixed;
mod mez_pi;

use std::time::Duration;

use tidegate_message::{Bounds, ControllerKind, FrameRate, Instant};

use crate::{capacity::Capacity, knob::KnobSetting};

pub use aimd::{Aimd, AimdConfig};
pub use budget::{Budget, BudgetConfig};
pub use fixed::Fixed;
pub use mez_pi::{LinkModel, LinkModelError, MezPi, MezPiConfig};

/// Settings of every controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControllerConfig {
    /// Of `budget`.
    pub budget: BudgetConfig,
    /// Of `mez-pi`.
    pub mez_pi: MezPiConfig,
    /// Of `aimd`.
    pub aimd: AimdConfig,
}

/// Decides the knobs of each frame.
pub trait Controller: Send {
    /// Which one it is.
    fn kind(&self) -> ControllerKind;

    /// A frame arrived or was lost.
    fn observe(&mut self, now: Instant, observation: &Observation);

    /// The choice for the frame of this situation.
    fn choose(&mut self, now: Instant, situation: &Situation<'_>) -> Choice;
}

/// The controller of that kind.
pub fn new(kind: ControllerKind, config: &ControllerConfig) -> Box<dyn Controller> {
    match kind {
        ControllerKind::Budget => Box::new(Budget::new(config.budget.clone())),
        ControllerKind::MezPi => Box::new(MezPi::new(config.mez_pi.clone())),
        ControllerKind::Aimd => Box::new(Aimd::new(config.aimd.clone())),
        ControllerKind::Fixed => Box::new(Fixed),
    }
}

/// One setting a frame can get, with its size predicted from the live stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// The row of the table.
    pub row: u32,
    /// The setting for the encoder.
    pub setting: KnobSetting,
    /// Bytes the frame is predicted to have.
    pub bytes: f64,
    /// Normalized F1 the table promises.
    pub accuracy: f64,
    /// Fraction of the frames that are sent.
    pub kept: f64,
}

/// How a frame fared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// It arrived whole.
    Delivered {
        /// From capture (or from sending, if replayed) to arrival.
        latency: Duration,
        /// Its size.
        bytes: u32,
        /// Whether the latency bound was kept.
        on_time: bool,
    },
    /// It was given up.
    Lost {
        /// From capture until then.
        waited: Duration,
        /// The latency it would have had at the pace so far, `waited` or more.
        expected: Duration,
    },
}

/// Everything that is known when a frame's knobs are chosen.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The settings there are, smallest table row first; never empty.
    pub rungs: &'a [Rung],
    /// The rung of the frame before.
    pub current: Option<usize>,
    /// The bounds to keep.
    pub bounds: Bounds,
    /// How long ago the frame was captured.
    pub elapsed: Duration,
    /// The capacity of the path, once something was measured.
    pub capacity: Option<Capacity>,
    /// Bytes per second that the path carries at least, by frames too small to measure it; 0 if there were none.
    pub at_least: f64,
    /// Bytes of earlier frames that are on the way.
    pub outstanding_bytes: u64,
    /// Lowest time a byte takes to the receiver.
    pub one_way: Duration,
    /// Time until the encoder is done with this frame.
    pub encode: Duration,
    /// Time from the receiver's last byte to the application's callback.
    pub delivery: Duration,
    /// Time between two frames.
    pub period: Duration,
    /// Bytes per second this camera may use, if the edge node said so.
    pub share: Option<f64>,
    /// How many times larger than this frame others of the stream usually are at most, 1 or more.
    pub larger: f64,
}

/// Bounds that can be kept where both wanted ones cannot: a subscription to them is served, as long as the path carries what it
/// carries now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Promise {
    /// Latency that can be kept at the accuracy and the frame rate that there are; nothing if no setting is that accurate, if frames
    /// of that accuracy follow each other faster than the path carries them, or if nothing was measured yet.
    pub latency: Option<Duration>,
    /// Accuracy that can be kept at the latency and the frame rate that there are; nothing if no frame is that fast.
    pub accuracy: Option<f64>,
    /// Frames a second at which the accuracy asked for can be kept, if it is the frame rate that is too high, and the latency of
    /// each.
    pub frame_rate: Option<(f64, Duration)>,
    /// How many times over the path carries frames of the accuracy asked for; below 1 where the frame rate is too high.
    pub spare: f64,
    /// Whether the path was measured, with frames not much shorter than those that are as accurate as asked for.
    pub is_measured: bool,
}

/// Part of the latency bound that a promise counts on.
const PROMISED_LATENCY: f64 = 0.95;
/// Part of the capacity that a promise counts on where frames follow each other closely: the duty of `budget`
/// ([`BudgetConfig::duty`], 0.8) less a tenth, which is the estimate's own error.
const PROMISED_CAPACITY: f64 = 0.72;
/// Part of its share of a medium that a promise counts on while a frame meets those of other cameras: the medium is even among them over
/// many frames, and not within one.
const PROMISED_SHARE: f64 = 0.75;
/// Part of the time between two frames that a promise counts on where they take more than that. They go one at a time then, and the
/// path is idle while each is encoded and acknowledged.
const PROMISED_PERIOD: f64 = 0.92;
/// How many times longer than the longest burst that was measured a frame may be to be counted on.
const LONGER: f64 = 4.0;
/// Time for which a frame waits for its turn in this process.
const TURN: Duration = Duration::from_millis(2);
/// Part by which a frame may be larger than it was predicted.
const LARGER: f64 = 0.02;
/// Most that is put aside for a path that fluctuates.
const FLUCTUATION_MAX: f64 = 0.4;

/// An accuracy as it is reported and asked for, in thousandths, and not above its value.
pub(crate) fn told(accuracy: f64) -> f64 {
    (accuracy * 1e3).floor() / 1e3
}

/// Whether frames of that rung are not much longer than the longest burst that the path was measured with.
pub(crate) fn is_measured(rung: &Rung, burst_bytes: f64) -> bool {
    rung.bytes <= LONGER * burst_bytes
}

/// A frame rate as it is reported and asked for, with two digits at least, and not above its value; nothing below the lowest that
/// can be asked for.
fn told_rate(frames_per_second: f64) -> Option<f64> {
    let digits = told_digits(frames_per_second);
    let unit = 10f64.powi(i32::try_from(digits).unwrap_or_default());
    Some((frames_per_second * unit).floor() / unit).filter(|frames| *frames >= FrameRate::MIN)
}

/// Digits after the point of a frame rate that is reported.
pub(crate) fn told_digits(frames_per_second: f64) -> usize {
    if frames_per_second >= 1.0 { 1 } else { 2 }
}

impl Situation<'_> {
    /// The bounds that can be kept now.
    pub fn promise(&self) -> Promise {
        let Some(capacity) = self.capacity else { return Promise::default() };
        let rate = capacity.long;
        let overhead = self.encode + self.one_way + self.delivery + TURN;
        let larger = self.larger * (1.0 + LARGER + capacity.deviation.min(FLUCTUATION_MAX));
        let takes_at = |rung: &Rung, rate: f64| {
            let seconds = (overhead.as_secs_f64() + rung.bytes * larger / rate) / PROMISED_LATENCY;
            Duration::from_secs_f64(seconds.min(3600.0))
        };
        let takes = |rung: &Rung| takes_at(rung, rate);
        // Captures are spread over the frame period so that frames of several cameras do not meet; those of which some are left out do.
        let pace = self.share.map_or(rate, |share| (PROMISED_SHARE * share).min(rate));
        // The others come at multiples of the camera's period, some of them closer than the rate says: a frame waits for the one before
        // it then.
        let takes_slower = |rung: &Rung, frames: f64| {
            let alone = takes_at(rung, pace);
            let gap = Duration::from_secs_f64(1.0 / frames);
            let closest = self.period * (gap.as_nanos() / self.period.as_nanos().max(1)) as u32;
            if alone > closest { alone + (alone + self.period).saturating_sub(gap) } else { alone }
        };
        let in_time = |rung: &Rung| takes(rung) <= self.bounds.latency();
        // Bytes a second that are this camera's.
        let own = PROMISED_CAPACITY * self.share.map_or(rate, |share| share.min(rate));
        let frames_per_second = |rung: &Rung| own / (rung.bytes * self.larger * rung.kept).max(1.0);
        let period = self.period.as_secs_f64();
        let one_by_one = |rung: &Rung| {
            let seconds = (overhead + self.one_way).as_secs_f64() + rung.bytes * larger / rate;
            if self.share.is_some() { 0.0 } else { PROMISED_PERIOD * period / seconds }
        };
        let spare = |rung: &Rung| (frames_per_second(rung) * period).max(one_by_one(rung));
        let carried = |rung: &Rung| spare(rung) >= 1.0;
        let all = || self.rungs.iter().enumerate();
        let least = smallest(all().filter(|(_, rung)| rung.accuracy >= self.bounds.accuracy()));
        let least = least.map(|rung| &self.rungs[rung]);
        let is_measured = least.is_none_or(|rung| is_measured(rung, capacity.burst_bytes));
        let least = least.filter(|_| is_measured);
        let known = |rung: &Rung| self::is_measured(rung, capacity.burst_bytes);
        let had = |(_, rung): &(usize, &Rung)| in_time(rung) && carried(rung) && known(rung);
        let had = most_accurate(all().filter(had));
        Promise {
            latency: least.filter(|rung| carried(rung)).map(takes),
            accuracy: had.map(|rung| told(self.rungs[rung].accuracy)),
            frame_rate: least.filter(|rung| !carried(rung)).and_then(|rung| {
                let frames = told_rate(frames_per_second(rung))?;
                Some((frames, takes_slower(rung, frames)))
            }),
            spare: least.map_or(0.0, spare),
            is_measured,
        }
    }

    /// Whether a frame that is as accurate as asked for is in time at the measured pace, however much it is behind others now.
    /// Nothing before the path was measured.
    pub(crate) fn can_be_kept(&self) -> Option<bool> {
        let capacity = self.capacity?;
        let least = smallest(
            self.rungs
                .iter()
                .enumerate()
                .filter(|(_, rung)| rung.accuracy >= self.bounds.accuracy()),
        );
        let overhead = self.encode + self.one_way + self.delivery;
        let seconds = self.bounds.latency().saturating_sub(overhead).as_secs_f64();
        Some(least.is_some_and(|rung| capacity.carries(self.rungs[rung].bytes, seconds)))
    }
}

/// The choice for a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// That rung; an encoding above `bytes_max` is to be done again one rung down.
    Rung {
        /// Index into [`Situation::rungs`].
        rung: usize,
        /// Most bytes the frame may have.
        bytes_max: f64,
    },
    /// Nothing fits while so much is on the way; ask again when some of it arrived.
    Wait,
    /// No rung keeps both bounds, even with nothing else on the way.
    Infeasible(Infeasible),
}

/// The bounds that can be kept instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Infeasible {
    /// The most accurate rung that keeps the latency bound, if one does.
    pub by_latency: Option<usize>,
    /// The smallest rung that keeps the accuracy bound, if one does, and the latency it would have.
    pub by_accuracy: Option<(usize, Duration)>,
    /// Bytes that keep the latency bound.
    pub bytes_max: f64,
}

/// The rung that is most accurate, the smaller one of equals.
fn most_accurate<'a>(rungs: impl Iterator<Item = (usize, &'a Rung)>) -> Option<usize> {
    rungs
        .max_by(|(_, a), (_, b)| {
            a.accuracy.total_cmp(&b.accuracy).then(b.bytes.total_cmp(&a.bytes))
        })
        .map(|(index, _)| index)
}

/// The rung of fewest bytes.
fn smallest<'a>(rungs: impl Iterator<Item = (usize, &'a Rung)>) -> Option<usize> {
    rungs.min_by(|(_, a), (_, b)| a.bytes.total_cmp(&b.bytes)).map(|(index, _)| index)
}

/// Nothing is under way or known, five frames a second are wanted within 100 ms and 0.95.
#[cfg(test)]
fn quiet(rungs: &[Rung]) -> Situation<'_> {
    Situation {
        rungs,
        current: None,
        bounds: Bounds::new(Duration::from_millis(100), 0.95).expect("bounds within their ranges"),
        elapsed: Duration::ZERO,
        capacity: None,
        at_least: 0.0,
        outstanding_bytes: 0,
        one_way: Duration::ZERO,
        encode: Duration::ZERO,
        delivery: Duration::ZERO,
        period: Duration::from_millis(200),
        share: None,
        larger: 1.0,
    }
}
