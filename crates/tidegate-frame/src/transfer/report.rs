//! A transfer's reports to its subscriber, and their sentences.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_message::{
    AdaptationProfile, Bounds, ControllerKind, Demand, FrameSize, Instant, WhenInfeasible,
};

use super::ladder::Ladder;
use crate::{
    capacity::Capacity,
    controller::{Promise, told_digits},
    knob::KnobSetting,
};

/// Choices that must keep both bounds before an infeasible state is over.
const FEASIBLE_AFTER: u8 = 3;
/// Relative change from which something counts as the cause of another choice.
const NOTABLE: f64 = 0.1;

/// Something the subscriber should know.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Other knobs from now on.
    Knobs {
        /// The setting before, if there was one.
        from: Option<KnobSetting>,
        /// The setting now.
        to: KnobSetting,
        /// Why, in one sentence.
        reason: Arc<str>,
    },
    /// No setting keeps both bounds at the camera's frame rate. Reported again when the bounds that can be kept
    /// change.
    Infeasible {
        /// Latency that could be kept at the accuracy asked for, as in [`Promise::latency`]; where there is a frame rate, too, at that
        /// one.
        latency_at_accuracy: Option<Duration>,
        /// Accuracy that could be kept at the latency asked for; nothing if no frame is that fast.
        accuracy_at_latency: Option<f64>,
        /// Frames a second at which the accuracy could be kept, within the latency of this report, or, where that has none, within the
        /// latency asked for; nothing if it is not the frame rate that is too high.
        frames_per_second: Option<f64>,
        /// The bound to give up.
        policy: WhenInfeasible,
        /// The same in one sentence.
        reason: Arc<str>,
    },
    /// Both bounds are kept again.
    Feasible,
    /// The controller failed; frames travel as captured from now on.
    ControllerFailed {
        /// Which one.
        controller: ControllerKind,
    },
    /// Sizes and accuracies are a default's: run `characterize` for this camera.
    TableAssumed {
        /// The source size of the table that is used.
        made_for: FrameSize,
    },
    /// No table suits: frames travel as captured.
    TableMissing {
        /// The profile that was asked for.
        profile: AdaptationProfile,
        /// The size of the camera's frames.
        source: FrameSize,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Knobs { reason, .. } | Self::Infeasible { reason, .. } => f.write_str(reason),
            Self::Feasible => f.write_str("both bounds are kept again"),
            Self::ControllerFailed { controller } => {
                write!(f, "controller {controller} failed: frames travel as captured")
            }
            Self::TableAssumed { made_for } => write!(
                f,
                "accuracy is assumed from a default table for {made_for}: run `tidegate characterize`"
            ),
            Self::TableMissing { profile, source } => {
                write!(f, "no table of profile {profile} suits {source}: frames travel as captured")
            }
        }
    }
}

/// Remembers what was last reported, so that each change is reported once.
#[derive(Debug)]
pub(super) struct Reasons {
    sentence: Arc<str>,
    capacity: Option<f64>,
    infeasible: Option<Told>,
    feasible: u8,
    demand_changed: bool,
}

/// The last report that bounds cannot be kept.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: Instant,
    policy: WhenInfeasible,
    bounds: Bounds,
    promise: Promise,
}

/// Least time between two corrections.
const CORRECT_EVERY: Duration = Duration::from_secs(1);
/// Part by which a latency or a frame rate must be better to be reported again. One that is worse than reported is reported: a
/// promise holds.
const BETTER: f64 = 0.2;
/// The same of an accuracy.
const BETTER_ACCURACY: f64 = 0.01;
/// Part by which a latency or a frame rate may be worse: promises have that much in reserve.
const WORSE: f64 = 0.05;

/// How many times over the path carries frames that were reported to come too fast before they are reported not to.
const CARRIED: f64 = 1.1;

impl Told {
    /// Whether the frame rate that was reported as too high is hardly less so now: at the limit, the two would take turns.
    fn holds_the_rate(&self, demand: &Demand, promise: &Promise) -> bool {
        let was_too_high = self.promise.latency.is_none() && self.promise.frame_rate.is_some();
        self.bounds == demand.bounds
            && was_too_high
            && promise.latency.is_some()
            && promise.spare < CARRIED
    }

    /// Whether the bounds that can be kept differ so much now that they are to be reported again.
    fn is_corrected(&self, now: Instant, demand: &Demand, promise: &Promise) -> bool {
        let before = &self.promise;
        if self.policy != demand.when_infeasible
            || self.bounds != demand.bounds
            || before.is_measured != promise.is_measured
        {
            return true;
        }
        // Of values of which more is better.
        let differs =
            |before: Option<f64>, now: Option<f64>, worse: f64, better: f64| match (before, now) {
                (Some(before), Some(now)) => now < before - worse || now > before + better,
                (before, now) => before.is_some() != now.is_some(),
            };
        let part = |before: Option<f64>, now: Option<f64>| {
            let of = before.unwrap_or_default();
            differs(before, now, WORSE * of, BETTER * of)
        };
        let speed = |latency: Option<Duration>| {
            latency.map(|latency| 1.0 / latency.as_secs_f64().max(1e-6))
        };
        let frames = |promise: &Promise| promise.frame_rate.map(|(frames, _)| frames);
        let latency = |promise: &Promise| {
            let slower = promise.frame_rate.map(|(_, each)| each);
            promise.latency.or(slower.filter(|each| *each > demand.bounds.latency()))
        };
        now >= self.at + CORRECT_EVERY
            && (differs(before.accuracy, promise.accuracy, 0.0, BETTER_ACCURACY)
                || part(speed(latency(before)), speed(latency(promise)))
                || part(frames(before), frames(promise)))
    }
}

impl Default for Reasons {
    fn default() -> Self {
        Self {
            sentence: "first frame".into(),
            capacity: None,
            infeasible: None,
            feasible: 0,
            demand_changed: false,
        }
    }
}

fn megabits(bytes_per_second: f64) -> f64 {
    bytes_per_second * 8.0 / 1e6
}

impl Reasons {
    /// Why the knobs stand where they stand.
    pub(super) fn sentence(&self) -> Arc<str> {
        self.sentence.clone()
    }

    pub(super) fn demand_changed(&mut self) {
        self.demand_changed = true;
    }

    /// A rung was chosen; gives the report if it is another than before.
    pub(super) fn chosen(
        &mut self,
        demand: &Demand,
        ladder: &Ladder,
        before: Option<usize>,
        rung: usize,
        capacity: Option<Capacity>,
        on_the_way_bytes: u64,
    ) -> Option<Report> {
        if before == Some(rung) {
            return None;
        }
        let rungs = ladder.rungs();
        let to = &rungs[rung];
        let from = before.and_then(|before| rungs.get(before)).map(|rung| rung.setting);
        let now = capacity.map(|capacity| capacity.bytes_per_second);
        let cause = match (self.capacity, now) {
            _ if std::mem::take(&mut self.demand_changed) => "the demand changed".to_owned(),
            (None, None) => "nothing measured yet".to_owned(),
            (None, Some(now)) => format!("capacity {:.1} Mbit/s", megabits(now)),
            (Some(then), Some(now)) if (now - then).abs() > NOTABLE * then => {
                format!("capacity {:.1} → {:.1} Mbit/s", megabits(then), megabits(now))
            }
            _ if on_the_way_bytes > 0 => format!("{} KB still on the way", on_the_way_bytes / 1000),
            _ => format!("frames of about {:.0} KB", to.bytes / 1e3),
        };
        self.capacity = now.or(self.capacity);
        let bound = demand.bounds.accuracy();
        let sign = if to.accuracy >= bound { "≥" } else { "<" };
        let change = match from {
            Some(from) => format!("{from} → {}", to.setting),
            None => to.setting.to_string(),
        };
        let assumed = if ladder.assumed { " (assumed)" } else { "" };
        self.sentence =
            format!("{cause}: {change}; accuracy {:.3}{assumed} {sign} {bound}", to.accuracy)
                .into();
        Some(Report::Knobs { from, to: to.setting, reason: self.sentence() })
    }

    /// Nothing keeps both bounds; gives the report when that is new, when another policy rules, or when what could be had has
    /// changed. Frames come `period` apart; `in_time` says whether any is delivered where the latency is kept.
    pub(super) fn infeasible(
        &mut self,
        now: Instant,
        demand: &Demand,
        promise: Promise,
        period: Duration,
        in_time: bool,
    ) -> Option<Report> {
        self.feasible = 0;
        let policy = demand.when_infeasible;
        let promise = match &self.infeasible {
            Some(told) if told.holds_the_rate(demand, &promise) => {
                Promise { latency: None, frame_rate: told.promise.frame_rate, ..promise }
            }
            _ => promise,
        };
        if self.infeasible.is_some_and(|told| !told.is_corrected(now, demand, &promise)) {
            return None;
        }
        self.infeasible = Some(Told { at: now, policy, bounds: demand.bounds, promise });
        let (latency, accuracy) = (demand.bounds.latency(), demand.bounds.accuracy());
        let is_in_time = |(_, each): &(f64, Duration)| *each <= latency;
        let mut could = Vec::new();
        if let Some((frames, each)) = promise.frame_rate {
            let digits = told_digits(frames);
            could.push(if each <= latency {
                format!("both at {frames:.digits$} frames a second")
            } else {
                format!(
                    "this accuracy within {:.0} ms at {frames:.digits$} frames a second",
                    millis(each).ceil()
                )
            });
        }
        could.extend(
            promise
                .latency
                .map(|latency| format!("this accuracy within {:.0} ms", millis(latency).ceil())),
        );
        could.extend(
            promise.accuracy.map(|accuracy| format!("accuracy {accuracy:.3} at this latency")),
        );
        let could = match could.is_empty() {
            false => format!("could be had: {}", could.join(", or ")),
            true if promise.is_measured => "no setting is that accurate, or that fast".to_owned(),
            true => "the bounds that can be kept are being measured".to_owned(),
        };
        let rate = match promise.frame_rate {
            Some(_) => format!(" at {:.1} frames a second", 1.0 / period.as_secs_f64().max(1e-3)),
            None => String::new(),
        };
        let gives_way = match (policy, promise.accuracy, promise.frame_rate) {
            (WhenInfeasible::KeepLatency, None, _) if promise.is_measured && !in_time => {
                "no frame is delivered"
            }
            (WhenInfeasible::KeepLatency, None, _) if promise.is_measured => {
                "accuracy and frame rate give way"
            }
            (WhenInfeasible::KeepLatency, ..) => "the accuracy gives way",
            (WhenInfeasible::KeepAccuracy, _, Some((_, each))) if each <= latency => {
                "the frame rate gives way"
            }
            (WhenInfeasible::KeepAccuracy, ..) => "latency and frame rate give way",
            (WhenInfeasible::Pause, ..) => "nothing is sent until then",
        };
        let reason = format!(
            "accuracy {accuracy} within {:.0} ms cannot be kept{rate}: {could}; {gives_way} ({policy})",
            millis(latency)
        );
        let slower = promise.frame_rate.filter(|rate| !is_in_time(rate)).map(|(_, each)| each);
        Some(Report::Infeasible {
            latency_at_accuracy: promise.latency.or(slower),
            accuracy_at_latency: promise.accuracy,
            frames_per_second: promise.frame_rate.map(|(frames, _)| frames),
            policy,
            reason: reason.into(),
        })
    }

    /// A rung that keeps both bounds was chosen; gives the report when that has been so for a while.
    pub(super) fn feasible(&mut self) -> Option<Report> {
        self.infeasible?;
        self.feasible += 1;
        if self.feasible < FEASIBLE_AFTER {
            return None;
        }
        self.infeasible = None;
        Some(Report::Feasible)
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
