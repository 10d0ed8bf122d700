//! The verdict on each frame, for clients that ask for feedback.
//!
//! Two look at a frame: the node, when it comes or is given up, for the feedback of a camera; and each session, when it
//! hands the frame over or tells that it is missed, for the feedback of a subscription.

use std::{sync::Arc, time::Duration};

use tidegate_api::{MissedWhy, Outcome, Stages, Verdict};
use tidegate_message::{DropReason, Instant};
use tidegate_wire::FrameHeader;
use tokio::sync::broadcast;

use super::{entry::shared, stream::Stream};

/// Verdicts kept for a slow reader; more are dropped, frames never.
pub(super) const VERDICTS_MAX: usize = 256;

/// Where verdicts go; a missing listener is no failure.
pub(super) struct Verdicts(broadcast::Sender<Arc<Verdict>>);

impl Default for Verdicts {
    fn default() -> Self {
        Self(broadcast::Sender::new(VERDICTS_MAX))
    }
}

impl Verdicts {
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<Verdict>> {
        self.0.subscribe()
    }

    /// Tells what `verdict` says, if anybody listens.
    pub(super) fn tell(&self, verdict: impl FnOnce() -> Verdict) {
        if self.0.receiver_count() > 0 {
            let _ = self.0.send(Arc::new(verdict()));
        }
    }
}

/// On a frame that came whole.
pub(super) fn sent(
    stream: &Stream,
    header: &FrameHeader,
    stages: Stages,
    outcome: Outcome,
    bound: Duration,
    reason: Option<Arc<str>>,
) -> Verdict {
    Verdict {
        sent_bytes: header.bytes,
        original_bytes: header.original_bytes,
        knobs: shared(&header.setting),
        row: (header.setting != "original").then_some(header.row),
        accuracy: header.accuracy,
        accuracy_kept: header.accuracy_kept,
        stages,
        reason,
        ..unsent(stream, header.at, outcome, bound)
    }
}

/// On a frame that did not come, or came as a marker.
pub(super) fn unsent(stream: &Stream, at: Instant, outcome: Outcome, bound: Duration) -> Verdict {
    Verdict {
        camera: stream.camera.clone(),
        transfer: stream.transfer.0,
        captured_at: at,
        outcome,
        sent_bytes: 0,
        original_bytes: 0,
        knobs: shared(""),
        row: None,
        accuracy: 0.0,
        accuracy_kept: false,
        stages: Stages::default(),
        bound,
        capacity_bytes_per_second: stream.capacity(),
        reason: None,
    }
}

/// Why a frame was missed, from the camera's reason; one that a newer camera names is taken as late.
pub(super) fn missed(reason: Option<DropReason>) -> (MissedWhy, Outcome) {
    match reason {
        // Those that wait, or are being changed, are too many.
        Some(DropReason::Overtaken | DropReason::QueueFull | DropReason::EncodeFailed) => {
            (MissedWhy::Overtaken, Outcome::Overtaken)
        }
        Some(DropReason::Infeasible | DropReason::Paused) => {
            (MissedWhy::Infeasible, Outcome::Withheld)
        }
        Some(DropReason::Damaged) => (MissedWhy::Damaged, Outcome::Damaged),
        Some(DropReason::LinkDown) => (MissedWhy::LinkDown, Outcome::Lost),
        Some(DropReason::LogWrapped) => (MissedWhy::LogWrapped, Outcome::Lost),
        Some(DropReason::Deadline) => (MissedWhy::Late, Outcome::Reset),
        Some(DropReason::Late) | None => (MissedWhy::Late, Outcome::Late),
    }
}

/// The outcome of that for a subscription.
pub(super) fn outcome(why: MissedWhy) -> Outcome {
    match why {
        MissedWhy::Overtaken => Outcome::Overtaken,
        MissedWhy::Late | MissedWhy::SlowSubscriber => Outcome::Late,
        MissedWhy::LogWrapped | MissedWhy::LinkDown => Outcome::Lost,
        MissedWhy::Infeasible => Outcome::Withheld,
        MissedWhy::Damaged => Outcome::Damaged,
    }
}
