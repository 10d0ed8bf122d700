//! What a transfer tells its subscriber, and the sentences it tells it with.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_message::{AdaptationProfile, ControllerKind, Demand, FrameSize, WhenInfeasible};

use super::ladder::Ladder;
use crate::{
    capacity::Capacity,
    controller::{Infeasible, Rung},
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
    /// No setting keeps both bounds.
    Infeasible {
        /// Latency that could be kept at the accuracy asked for; nothing if no setting is that accurate.
        latency_at_accuracy: Option<Duration>,
        /// Accuracy that could be kept at the latency asked for; nothing if no frame is that fast.
        accuracy_at_latency: Option<f64>,
        /// What gives way.
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

/// Why a frame was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropReason {
    /// A newer frame came before it could be sent.
    Overtaken,
    /// It could not have arrived in time.
    Late,
    /// Its deadline came while it was on the way.
    Deadline,
    /// No setting keeps the bounds.
    Infeasible,
    /// No setting keeps the bounds and the subscriber wants nothing then.
    Paused,
    /// The encoder could not change it.
    EncodeFailed,
    /// The link is down.
    LinkDown,
    /// Too many frames wait, or are under way.
    QueueFull,
    /// The camera's log wrapped before it was read.
    LogWrapped,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::Overtaken,
        Self::Late,
        Self::Deadline,
        Self::Infeasible,
        Self::Paused,
        Self::EncodeFailed,
        Self::LinkDown,
        Self::QueueFull,
        Self::LogWrapped,
    ];

    /// The word used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overtaken => "overtaken",
            Self::Late => "late",
            Self::Deadline => "deadline",
            Self::Infeasible => "infeasible",
            Self::Paused => "paused",
            Self::EncodeFailed => "encode failed",
            Self::LinkDown => "link down",
            Self::QueueFull => "queue full",
            Self::LogWrapped => "log wrapped",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Remembers what was last reported, so that each change is reported once.
#[derive(Debug)]
pub(super) struct Reasons {
    sentence: Arc<str>,
    capacity: Option<f64>,
    infeasible: Option<WhenInfeasible>,
    feasible: u8,
    demand_changed: bool,
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

    /// Nothing keeps both bounds; gives the report when that is new or another policy rules.
    pub(super) fn infeasible(
        &mut self,
        demand: &Demand,
        rungs: &[Rung],
        infeasible: &Infeasible,
    ) -> Option<Report> {
        self.feasible = 0;
        let policy = demand.when_infeasible;
        if self.infeasible.replace(policy) == Some(policy) {
            return None;
        }
        let latency_at_accuracy = infeasible.by_accuracy.map(|(_, latency)| latency);
        let accuracy_at_latency = infeasible.by_latency.map(|rung| rungs[rung].accuracy);
        let (latency, accuracy) = (demand.bounds.latency(), demand.bounds.accuracy());
        let could = match (latency_at_accuracy, accuracy_at_latency) {
            (Some(latency), Some(accuracy)) => {
                format!(
                    "{:.0} ms at this accuracy, or {accuracy:.3} at this latency",
                    millis(latency)
                )
            }
            (Some(latency), None) => {
                format!("{:.0} ms at this accuracy, nothing at this latency", millis(latency))
            }
            (None, Some(accuracy)) => {
                format!("{accuracy:.3} at this latency, no row is that accurate")
            }
            (None, None) => "nothing at this latency, and no row is that accurate".to_owned(),
        };
        let reason = format!(
            "accuracy {accuracy} within {:.0} ms cannot be kept; could be had: {could}; {policy}",
            millis(latency)
        );
        Some(Report::Infeasible {
            latency_at_accuracy,
            accuracy_at_latency,
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
