//! Frames that cannot be used: lines of the log about them, and whether a camera gives any others.
//!
//! Always true: a state that lasts for every frame is reported once, and then summed up.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_message::{Code, Instant};
use tokio::sync::watch;

/// How often what happens again is summed up; and how long it must not have happened to be over.
const SUM_EVERY: Duration = Duration::from_secs(30);
/// A camera whose frames cannot be used gives none if it is so long ago that one could.
const NONE_AFTER: Duration = Duration::from_secs(1);

/// Frames that failed for one reason after another.
#[derive(Debug)]
pub(super) struct Refusals {
    /// The message for a frame that fails, and the one when frames succeed again.
    failed: &'static str,
    over: &'static str,
    /// Each recent reason, and when it was logged: one for each code at most.
    told: Vec<(Option<Code>, Instant)>,
    failed_at: Instant,
    has_failed: bool,
    /// Since a reason was last logged.
    untold: u64,
}

impl Refusals {
    pub(super) const fn new(failed: &'static str, over: &'static str) -> Self {
        Self {
            failed,
            over,
            told: Vec::new(),
            failed_at: Instant::MIN,
            has_failed: false,
            untold: 0,
        }
    }

    /// A frame failed for a reason, which has a code or not. Says whether a line was written.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        code: Option<Code>,
        error: &dyn fmt::Display,
    ) -> bool {
        self.failed_at = now;
        self.has_failed = true;
        self.told.retain(|(_, at)| now < *at + SUM_EVERY);
        // The sentences differ by the numbers in them.
        if self.told.iter().any(|(told, _)| *told == code) {
            self.untold += 1;
            return false;
        }
        let more = std::mem::take(&mut self.untold);
        let shown = code.map(tracing::field::display);
        tracing::warn!(%error, code = shown, more, "{}", self.failed);
        self.told.push((code, now));
        true
    }

    /// A frame did not fail. Says whether a line was written.
    pub(super) fn worked(&mut self, now: Instant) -> bool {
        let is_over = self.has_failed && now >= self.failed_at + SUM_EVERY;
        if is_over {
            self.has_failed = false;
            self.told.clear();
            tracing::info!(more = std::mem::take(&mut self.untold), "{}", self.over);
        }
        is_over
    }
}

/// Why a camera gives no frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoFrames {
    kind: Kind,
    /// For people, whole: the camera without frames, and why.
    pub(super) sentence: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// They come, and are refused for that.
    Refused(Code),
    /// They are the same again and again.
    Frozen,
    /// The source fails.
    Fault,
    /// None comes.
    Silent,
    /// There are no more.
    Ended,
}

/// Whether a camera gives frames, for its observers.
#[derive(Debug)]
pub(super) struct Supply {
    taken_at: Option<Instant>,
    /// Kinds that were shown of late, each once.
    shown: Vec<(Kind, Instant)>,
    state: watch::Sender<Option<NoFrames>>,
}

impl Supply {
    pub(super) fn new() -> (Self, watch::Receiver<Option<NoFrames>>) {
        let (state, receiver) = watch::channel(None);
        (Self { taken_at: None, shown: Vec::new(), state }, receiver)
    }

    /// Why it gives none, if so.
    pub(super) fn none(&self) -> Option<Arc<str>> {
        self.state.borrow().as_ref().map(|none| none.sentence.clone())
    }

    /// A frame was taken.
    pub(super) fn took(&mut self, now: Instant) {
        self.taken_at = Some(now);
        self.state.send_if_modified(|state| state.take().is_some());
    }

    /// A frame was refused.
    pub(super) fn refused(&mut self, now: Instant, code: Code, error: &dyn fmt::Display) {
        self.lack(now, Kind::Refused(code), || format!("its frames are refused: {error}"));
    }

    /// Its picture has been the same for so long.
    pub(super) fn frozen(&mut self, now: Instant, since: Duration) {
        let seconds = since.as_secs();
        self.lack(now, Kind::Frozen, || {
            format!("its picture has been the same for {seconds} s, to the last pixel: the camera is frozen")
        });
    }

    /// The source has a fault.
    pub(super) fn fault(&mut self, now: Instant, error: &dyn fmt::Display) {
        self.lack(now, Kind::Fault, || format!("its source has a fault: {error}"));
    }

    /// The source has given nothing for so long.
    pub(super) fn silent(&mut self, now: Instant, since: Duration) {
        let seconds = since.as_secs();
        self.lack(now, Kind::Silent, || format!("its source has given nothing for {seconds} s"));
    }

    /// The source has come to its end.
    pub(super) fn ended(&mut self, frames: u64) {
        let sentence = format!("its source has ended after {frames} frames").into();
        self.state.send_replace(Some(NoFrames { kind: Kind::Ended, sentence }));
    }

    fn lack(&mut self, now: Instant, kind: Kind, sentence: impl FnOnce() -> String) {
        if self.taken_at.is_some_and(|at| now < at + NONE_AFTER) {
            return;
        }
        self.shown.retain(|(_, at)| now < *at + SUM_EVERY);
        let was_shown = self.shown.iter().any(|(shown, _)| *shown == kind);
        let is_news = self.state.send_if_modified(|state| {
            // The sentences differ by the numbers in them. Reasons that take turns are each shown once.
            let is_news = state.as_ref().is_none_or(|known| known.kind != kind && !was_shown);
            if is_news {
                *state = Some(NoFrames { kind, sentence: sentence().into() });
            }
            is_news
        });
        if is_news && !was_shown {
            self.shown.push((kind, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn frames_that_are_refused_are_told_once_and_then_summed_up() {
        let mut refusals = Refusals::new("frame refused", "frames are taken again");
        let mut said = |second: i64| {
            refusals.failed(
                at(second * 1_000),
                Some(Code::FRAME_TOO_LARGE),
                &format!("{second} bytes"),
            )
        };
        let lines: Vec<i64> = (0..70).filter(|&second| said(second)).collect();
        assert_eq!(lines, [0, 30, 60]);
        assert!(
            refusals.failed(at(70_000), Some(Code::FRAME_INVALID), &"no JPEG"),
            "another reason"
        );
        let over: Vec<i64> =
            (71..140).filter(|&second| refusals.worked(at(second * 1_000))).collect();
        assert_eq!(over, [100]);
        assert!(refusals.failed(at(140_000), Some(Code::FRAME_INVALID), &"no JPEG"), "it is news");
    }

    #[test]
    fn frames_that_are_refused_now_and_then_write_no_line_each() {
        let mut refusals = Refusals::new("frame refused", "frames are taken again");
        let mut lines = 0;
        for frame in 0..600 {
            let now = at(frame * 100);
            lines += u32::from(match frame % 2 {
                0 => refusals.failed(now, Some(Code::FRAME_INVALID), &"no JPEG"),
                _ => refusals.worked(now),
            });
        }
        assert_eq!(lines, 2, "in a minute");
    }

    #[test]
    fn reasons_that_take_turns_are_each_told_once_and_then_summed_up() {
        let codes = [Code::FRAME_INVALID, Code::FRAME_TOO_LARGE];
        let mut refusals = Refusals::new("frame refused", "frames are taken again");
        let (mut supply, mut shown) = Supply::new();
        let (mut lines, mut states) = (0, 0);
        for frame in 0..600 {
            let (now, code) = (at(frame * 100), codes[frame as usize % 2]);
            lines += u32::from(refusals.failed(now, Some(code), &"no use"));
            supply.refused(now, code, &"no use");
            states += u32::from(shown.has_changed().unwrap());
            shown.borrow_and_update();
        }
        assert_eq!(lines, 4, "in a minute: two reasons, twice");
        assert!((2..=4).contains(&states), "{states} states in a minute");
    }

    #[test]
    fn a_camera_gives_no_frames_once_none_was_taken_for_a_second() {
        let (mut supply, mut told) = Supply::new();
        let refused = |supply: &mut Supply, millis, code| supply.refused(at(millis), code, &millis);
        refused(&mut supply, 0, Code::FRAME_INVALID);
        assert_eq!(supply.none().as_deref(), Some("its frames are refused: 0"));
        refused(&mut supply, 100, Code::FRAME_INVALID);
        assert_eq!(supply.none().as_deref(), Some("its frames are refused: 0"), "it is the same");
        refused(&mut supply, 200, Code::FRAME_TOO_LARGE);
        assert_eq!(supply.none().as_deref(), Some("its frames are refused: 200"));
        supply.took(at(300));
        assert!(supply.none().is_none() && told.has_changed().unwrap());
        told.borrow_and_update();
        for millis in 301..1_300 {
            refused(&mut supply, millis, Code::FRAME_INVALID);
        }
        assert!(!told.has_changed().unwrap(), "one was taken less than a second ago");
        refused(&mut supply, 1_300, Code::FRAME_INVALID);
        assert!(told.has_changed().unwrap());
        supply.silent(at(40_000), Duration::from_secs(30));
        assert_eq!(supply.none().as_deref(), Some("its source has given nothing for 30 s"));
    }
}
