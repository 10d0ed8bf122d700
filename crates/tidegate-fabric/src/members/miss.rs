//! How this node misses a member that it has no link to.
//!
//! ```text
//!             link ends                      it answers, by way of others
//!  linked ───────────────▶ Away: time counts ────────────────────────────▶ Quiet
//!                            ▲ 3 s to 8 s: doubted, unless others say so       │
//!                            │ 60 s to 65 s: lost, unless others say so        │ 10 min
//!                            └─────────────────────────────────────────────────┘
//! ```
//!
//! A doubt asks a question: the member that is reached by any way of others answers it, so that two nodes that cannot reach each other do
//! not lose each other, and a member that nothing is heard of is lost even if this node never had a link to it.

use std::time::Duration;

use super::limits::*;

/// The state of one member that has no link. Times are those of [`Watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// It is missed.
    Away {
        since: Duration,
        /// Since when there is a doubt that the member can see.
        asked: Option<Duration>,
    },
    /// It is asked again at that time.
    Quiet { until: Duration },
}

/// A word that this node has of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Nothing,
    Doubts,
    Loses,
}

impl Miss {
    pub(super) fn away(counted: Duration) -> Self {
        Self::Away { since: counted, asked: None }
    }

    pub(super) fn quiet(counted: Duration, spread: Duration) -> Self {
        Self::Quiet { until: counted + ASKED_AGAIN_AFTER + spread }
    }

    /// The word about a member that so many others miss. `spread` is below [`SPREAD`], by the member and the observer.
    pub(super) fn judge(
        &mut self,
        counted: Duration,
        spread: Duration,
        others: usize,
        doubts: bool,
    ) -> Word {
        match self {
            Self::Quiet { until } if *until <= counted => {
                *self = Self::away(counted);
                Word::Nothing
            }
            Self::Quiet { .. } => Word::Nothing,
            Self::Away { since, asked } => {
                let time = counted.saturating_sub(*since);
                let is_said = doubts || others >= WORDS_MIN;
                if !is_said {
                    *asked = None;
                } else if asked.is_none() {
                    *asked = Some(counted);
                }
                let was_asked = asked.is_some_and(|asked| counted >= asked + ASKED_FOR);
                if time >= LOST_AFTER + spread && was_asked {
                    Word::Loses
                } else if time >= DOUBTED_AFTER + spread && (doubts || others < WORDS_MIN) {
                    Word::Doubts
                } else {
                    Word::Nothing
                }
            }
        }
    }
}

/// Time as this node was there to see it: a step counts for [`STEP_MAX`] at the most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    last: tidegate_message::Instant,
    counted: Duration,
}

impl Watch {
    pub(super) fn new(now: tidegate_message::Instant) -> Self {
        Self { last: now, counted: Duration::ZERO }
    }

    pub(super) fn advance(&mut self, now: tidegate_message::Instant) {
        self.counted += now.since(self.last).min(STEP_MAX);
        self.last = self.last.max(now);
    }

    pub(super) fn counted(&self) -> Duration {
        self.counted
    }
}
