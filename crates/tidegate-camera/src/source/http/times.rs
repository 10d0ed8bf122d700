//! When a picture that came by HTTP was captured.
//!
//! Some cameras and programs write `X-Timestamp` before each picture: seconds, with a fraction, since 1970 or since they started
//! (mjpg-streamer, µStreamer, the server of ESP32-CAM). It is what a timestamp is by RTSP, and, where it counts from 1970, what a sender
//! report is as well. Without it, a picture is as old as its first byte, or its request. While pictures fill the line to the camera they
//! wait there, mostly in the camera's own buffer of the connection, of which nothing is seen from here: that is said.
//!
//! Always true: a picture is said to be no newer than it would be without a stamp.

use std::time::Duration;

use hyper::header::HeaderMap;
use tidegate_message::Instant;
use tokio::time::Instant as Moment;

use super::{
    super::{
        SourceClock,
        timeline::{CaptureClock, NoClock, Timeline},
    },
    lossy,
};

const NAME: &str = "X-Timestamp";
/// Stamps below this, which is in 2001 as a time of day, count from the start of the camera.
const DAY_MIN: Instant = Instant::from_millis(1_000_000_000_000);
/// Larger ones do not count seconds.
const SECONDS_MAX: u64 = 9_000_000_000;

/// A camera's own time of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Instant);

impl Stamp {
    /// The stamp in the bytes before a picture of a stream, the last if there are several.
    pub(super) fn of_part(lead: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(lead);
        text.lines().rev().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case(NAME).then(|| Self::parse(value))?
        })
    }

    /// The stamp in the head of an answer.
    pub(super) fn of_head(headers: &HeaderMap) -> Option<Self> {
        headers.get(NAME).and_then(|value| Self::parse(&lossy(value)))
    }

    fn parse(value: &str) -> Option<Self> {
        let (seconds, fraction) = value.trim().split_once('.').unwrap_or((value.trim(), "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(seconds) || !is_number(fraction) {
            return None;
        }
        let seconds: u64 = seconds.parse().ok().filter(|seconds| *seconds < SECONDS_MAX)?;
        let nanos: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
        i64::try_from(seconds * 1_000_000_000 + nanos)
            .ok()
            .map(|nanos| Self(Instant::from_nanos(nanos)))
    }

    const fn is_whole_seconds(self) -> bool {
        self.0.as_nanos() % 1_000_000_000 == 0
    }
}

/// The times of one camera.
#[derive(Debug)]
pub(super) struct Times {
    clock: SourceClock,
    /// Of stamps, once one had a fraction; of arrivals before.
    timeline: Timeline,
    has_stamps: bool,
}

impl Times {
    pub(super) fn new() -> Self {
        Self { clock: SourceClock::start(), timeline: Timeline::of_nanos(), has_stamps: false }
    }

    /// When a picture of a stream was captured whose first byte came at `begun` and the last at `whole`.
    pub(super) fn of_stream(
        &mut self,
        begun: Moment,
        whole: Moment,
        stamp: Option<Stamp>,
    ) -> Moment {
        let busy = whole.saturating_duration_since(begun);
        let age = self.age(self.clock.at(begun), wall_at(begun), busy, stamp);
        begun.checked_sub(age).unwrap_or(begun)
    }

    /// When a picture was captured that was asked for at `asked`, and the answer with which came at `came`.
    pub(super) fn of_answer(
        &mut self,
        asked: Moment,
        came: Moment,
        stamp: Option<Stamp>,
    ) -> Moment {
        // Asked for one by one, none waits behind another.
        let age = self.age(self.clock.at(came), wall_at(came), Duration::ZERO, stamp);
        came.checked_sub(age).map_or(asked, |captured| captured.min(asked))
    }

    /// By which clock pictures are timed.
    pub(super) fn clock(&self) -> CaptureClock {
        match self.timeline.clock() {
            CaptureClock::Full => CaptureClock::Full,
            clock if self.has_stamps => clock,
            _ => CaptureClock::Arrival(NoClock::None),
        }
    }

    /// The same stamp, unless the camera stamps whole seconds alone, as far as is known.
    fn believed(&mut self, stamp: Option<Stamp>) -> Option<Stamp> {
        if !self.has_stamps && stamp.is_some_and(|stamp| !stamp.is_whole_seconds()) {
            (self.has_stamps, self.timeline) = (true, Timeline::of_nanos());
        }
        stamp.filter(|_| self.has_stamps)
    }

    /// How old a picture was as it came, when our clock of the day showed `wall`, and was on its way in for another `busy`.
    fn age(
        &mut self,
        came: Instant,
        wall: Instant,
        busy: Duration,
        stamp: Option<Stamp>,
    ) -> Duration {
        let Some(Stamp(at)) = self.believed(stamp) else {
            if !self.has_stamps {
                self.timeline.arrived_at(came, came.as_nanos(), busy);
            }
            return Duration::ZERO;
        };
        let media = self.timeline.arrived_at(came, at.as_nanos(), busy);
        if at >= DAY_MIN {
            self.timeline.reported_at(came, wall, media, at);
        }
        came.since(self.timeline.captured(media))
    }
}

/// The time of day then, by our clock.
fn wall_at(moment: Moment) -> Instant {
    SourceClock::wall() - moment.elapsed()
}

#[cfg(test)]
mod tests;
