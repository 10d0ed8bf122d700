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

use tidegate_message::{Bounds, ControllerKind, Instant};

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
    /// Whether the path was measured.
    pub is_measured: bool,
}

/// Part of the latency bound, and of the capacity, that a promise counts on.
const PROMISED_LATENCY: f64 = 0.95;
const PROMISED_CAPACITY: f64 = 0.9;
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

impl Situation<'_> {
    /// The bounds that can be kept now.
    pub fn promise(&self) -> Promise {
        let Some(capacity) = self.capacity else { return Promise::default() };
        let rate = capacity.bytes_per_second;
        let overhead = self.encode + self.one_way + self.delivery + TURN;
        let larger = 1.0 + LARGER + capacity.deviation.min(FLUCTUATION_MAX);
        let takes = |rung: &Rung| {
            let seconds = (overhead.as_secs_f64() + rung.bytes * larger / rate) / PROMISED_LATENCY;
            Duration::from_secs_f64(seconds.min(3600.0))
        };
        let in_time = |rung: &Rung| takes(rung) <= self.bounds.latency();
        // Bytes a second that are this camera's.
        let own = PROMISED_CAPACITY * self.share.map_or(rate, |share| share.min(rate));
        let frames_per_second = |rung: &Rung| own / (rung.bytes * rung.kept).max(1.0);
        let carried = |rung: &Rung| frames_per_second(rung) * self.period.as_secs_f64() >= 1.0;
        let all = || self.rungs.iter().enumerate();
        let least = smallest(all().filter(|(_, rung)| rung.accuracy >= self.bounds.accuracy()));
        let least = least.map(|rung| &self.rungs[rung]);
        let had = most_accurate(all().filter(|(_, rung)| in_time(rung) && carried(rung)));
        Promise {
            latency: least.filter(|rung| carried(rung)).map(takes),
            accuracy: had.map(|rung| told(self.rungs[rung].accuracy)),
            frame_rate: least
                .filter(|rung| !carried(rung))
                .map(|rung| (frames_per_second(rung), takes(rung))),
            is_measured: true,
        }
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
        outstanding_bytes: 0,
        one_way: Duration::ZERO,
        encode: Duration::ZERO,
        delivery: Duration::ZERO,
        period: Duration::from_millis(200),
        share: None,
    }
}
