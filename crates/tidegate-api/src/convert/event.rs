//! Events and verdicts.

use tidegate_message::Instant;

use super::{duration, lacks, nanos, text};
use crate::{
    ApiError, EndReason, Event, Frame, Infeasible, KnobsChanged, Missed, MissedWhy, Outcome,
    Stages, Unchanged, Verdict,
    proto::{self, ended::Reason, missed::Why, subscribe_response as wire},
};

impl From<Event> for wire::Event {
    fn from(event: Event) -> Self {
        match event {
            Event::Frame(frame) => Self::Frame(frame.into()),
            Event::Unchanged(unchanged) => Self::Unchanged(proto::Unchanged {
                captured_at: unchanged.captured_at.as_nanos(),
                epoch: unchanged.epoch,
                same_as: unchanged.same_as.as_nanos(),
                replayed: unchanged.replayed,
                stages: Some(unchanged.stages.into()),
                handed_at: unchanged.handed_at.as_nanos(),
            }),
            Event::Missed(missed) => Self::Missed(proto::Missed {
                from: missed.from.as_nanos(),
                to: missed.to.as_nanos(),
                count: missed.count,
                why: Why::from(missed.why).into(),
            }),
            Event::Infeasible(infeasible) => Self::Infeasible(proto::Infeasible {
                latency_at_accuracy_nanos: infeasible.latency_at_accuracy.map(nanos),
                accuracy_at_latency: infeasible.accuracy_at_latency,
                frames_per_second: infeasible.frames_per_second,
                sentence: text(&infeasible.sentence),
            }),
            Event::Feasible => Self::Feasible(proto::Feasible {}),
            Event::CameraOffline(sentence) => {
                Self::CameraOffline(proto::CameraOffline { sentence: text(&sentence) })
            }
            Event::CameraOnline => Self::CameraOnline(proto::CameraOnline {}),
            Event::NoFrames(sentence) => {
                Self::NoFrames(proto::NoFrames { sentence: text(&sentence) })
            }
            Event::KnobsChanged(change) => Self::KnobsChanged(proto::KnobsChanged {
                captured_at: change.captured_at.as_nanos(),
                from: text(&change.from),
                to: text(&change.to),
                reason: text(&change.reason),
            }),
            Event::ControllerFailed(sentence) => {
                Self::ControllerFailed(proto::ControllerFailed { sentence: text(&sentence) })
            }
            Event::AccuracyAssumed(sentence) => {
                Self::AccuracyAssumed(proto::AccuracyAssumed { sentence: text(&sentence) })
            }
            Event::Ended(reason) => {
                Self::Ended(proto::Ended { reason: Reason::from(reason).into() })
            }
        }
    }
}

/// Every event but `started`, which opens the stream and is no event of the application.
impl TryFrom<wire::Event> for Event {
    type Error = ApiError;

    fn try_from(event: wire::Event) -> Result<Self, ApiError> {
        Ok(match event {
            wire::Event::Started(_) => return Err(lacks("stream", "an event after `started`")),
            wire::Event::Frame(frame) => Self::Frame(frame.try_into()?),
            wire::Event::Unchanged(unchanged) => Self::Unchanged(Unchanged {
                captured_at: Instant::from_nanos(unchanged.captured_at),
                epoch: unchanged.epoch,
                same_as: Instant::from_nanos(unchanged.same_as),
                replayed: unchanged.replayed,
                stages: unchanged.stages.unwrap_or_default().into(),
                handed_at: Instant::from_nanos(unchanged.handed_at),
            }),
            wire::Event::Missed(missed) => Self::Missed(Missed {
                why: missed.why().try_into()?,
                from: Instant::from_nanos(missed.from),
                to: Instant::from_nanos(missed.to),
                count: missed.count,
            }),
            wire::Event::Infeasible(infeasible) => Self::Infeasible(Infeasible {
                latency_at_accuracy: infeasible.latency_at_accuracy_nanos.map(duration),
                accuracy_at_latency: infeasible.accuracy_at_latency,
                frames_per_second: infeasible.frames_per_second,
                sentence: infeasible.sentence.into(),
            }),
            wire::Event::Feasible(_) => Self::Feasible,
            wire::Event::CameraOffline(offline) => Self::CameraOffline(offline.sentence.into()),
            wire::Event::CameraOnline(_) => Self::CameraOnline,
            wire::Event::NoFrames(none) => Self::NoFrames(none.sentence.into()),
            wire::Event::KnobsChanged(change) => Self::KnobsChanged(KnobsChanged {
                captured_at: Instant::from_nanos(change.captured_at),
                from: change.from.into(),
                to: change.to.into(),
                reason: change.reason.into(),
            }),
            wire::Event::ControllerFailed(failed) => Self::ControllerFailed(failed.sentence.into()),
            wire::Event::AccuracyAssumed(assumed) => Self::AccuracyAssumed(assumed.sentence.into()),
            wire::Event::Ended(ended) => Self::Ended(ended.reason().try_into()?),
        })
    }
}

impl From<Frame> for proto::Frame {
    fn from(frame: Frame) -> Self {
        Self {
            captured_at: frame.captured_at.as_nanos(),
            epoch: frame.epoch,
            size: Some(frame.size.into()),
            source_size: frame.source_size.map(Into::into),
            original_bytes: frame.original_bytes,
            knobs: text(&frame.knobs),
            accuracy: frame.accuracy,
            accuracy_kept: frame.accuracy_kept,
            replayed: frame.replayed,
            stages: Some(frame.stages.into()),
            handed_at: frame.handed_at.as_nanos(),
            jpeg: frame.jpeg,
        }
    }
}

impl TryFrom<proto::Frame> for Frame {
    type Error = ApiError;

    fn try_from(frame: proto::Frame) -> Result<Self, ApiError> {
        Ok(Self {
            captured_at: Instant::from_nanos(frame.captured_at),
            epoch: frame.epoch,
            size: frame.size.ok_or_else(|| lacks("Frame", "size"))?.try_into()?,
            source_size: frame.source_size.map(TryInto::try_into).transpose()?,
            original_bytes: frame.original_bytes,
            knobs: frame.knobs.into(),
            accuracy: frame.accuracy,
            accuracy_kept: frame.accuracy_kept,
            replayed: frame.replayed,
            stages: frame.stages.unwrap_or_default().into(),
            handed_at: Instant::from_nanos(frame.handed_at),
            jpeg: frame.jpeg,
        })
    }
}

impl From<Stages> for proto::Stages {
    fn from(stages: Stages) -> Self {
        Self {
            capture_nanos: nanos(stages.capture),
            encode_nanos: nanos(stages.encode),
            queue_nanos: nanos(stages.queue),
            network_nanos: nanos(stages.network),
            delivery_nanos: nanos(stages.delivery),
        }
    }
}

impl From<proto::Stages> for Stages {
    fn from(stages: proto::Stages) -> Self {
        Self {
            capture: duration(stages.capture_nanos),
            encode: duration(stages.encode_nanos),
            queue: duration(stages.queue_nanos),
            network: duration(stages.network_nanos),
            delivery: duration(stages.delivery_nanos),
        }
    }
}

impl From<Verdict> for proto::Verdict {
    fn from(verdict: Verdict) -> Self {
        Self {
            camera: verdict.camera.to_string(),
            transfer: verdict.transfer,
            captured_at: verdict.captured_at.as_nanos(),
            outcome: proto::verdict::Outcome::from(verdict.outcome).into(),
            sent_bytes: verdict.sent_bytes,
            original_bytes: verdict.original_bytes,
            knobs: text(&verdict.knobs),
            row: verdict.row,
            accuracy: verdict.accuracy,
            accuracy_kept: verdict.accuracy_kept,
            stages: Some(verdict.stages.into()),
            bound_nanos: nanos(verdict.bound),
            capacity_bytes_per_second: verdict.capacity_bytes_per_second,
            reason: verdict.reason.as_ref().map(text).unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::Verdict> for Verdict {
    type Error = ApiError;

    fn try_from(verdict: proto::Verdict) -> Result<Self, ApiError> {
        Ok(Self {
            outcome: verdict.outcome().try_into()?,
            camera: verdict.camera.parse().map_err(|_| lacks("Verdict", "camera"))?,
            transfer: verdict.transfer,
            captured_at: Instant::from_nanos(verdict.captured_at),
            sent_bytes: verdict.sent_bytes,
            original_bytes: verdict.original_bytes,
            knobs: verdict.knobs.into(),
            row: verdict.row,
            accuracy: verdict.accuracy,
            accuracy_kept: verdict.accuracy_kept,
            stages: verdict.stages.unwrap_or_default().into(),
            bound: duration(verdict.bound_nanos),
            capacity_bytes_per_second: verdict.capacity_bytes_per_second,
            reason: Some(verdict.reason).filter(|text| !text.is_empty()).map(Into::into),
        })
    }
}

/// Both ways between an enum of ours and one of the protocol, which has an "unspecified" besides.
macro_rules! same {
    ($native:ident, $wire:ty, ($message:literal, $field:literal) { $($variant:ident),+ }) => {
        impl From<$native> for $wire {
            fn from(value: $native) -> Self {
                match value { $($native::$variant => Self::$variant,)+ }
            }
        }

        impl TryFrom<$wire> for $native {
            type Error = ApiError;

            fn try_from(value: $wire) -> Result<Self, ApiError> {
                match value {
                    $(<$wire>::$variant => Ok(Self::$variant),)+
                    <$wire>::Unspecified => Err(lacks($message, $field)),
                }
            }
        }
    };
}

same!(MissedWhy, Why, ("Missed", "why") {
    Overtaken, Late, LogWrapped, SlowSubscriber, LinkDown, Infeasible, Damaged
});
same!(EndReason, Reason, ("Ended", "reason") {
    Complete, Unsubscribed, CameraUnregistered, Shutdown
});
same!(Outcome, proto::verdict::Outcome, ("Verdict", "outcome") {
    Kept, Late, Unchanged, Overtaken, Reset, Withheld, Lost, Damaged
});
