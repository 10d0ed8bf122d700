//! When a camera's frames are overdue: by the rhythm in which they come, the way that they take, and how long a loss takes to be
//! mended (Mez, section 4.4).
//!
//! Always true: nothing is overdue of a stream of which fewer than [`GAPS`] gaps are known, nor before the link itself would tell a
//! dead peer.

use std::time::Duration;

use tidegate_frame::engine::HEARTBEAT;
use tidegate_message::Instant;

/// Gaps between captures that are remembered; the longest of them counts.
const GAPS: usize = 8;
/// Shortest time that a loss is given to be mended.
const MENDING_MIN: Duration = Duration::from_millis(200);

/// The rhythm of one stream.
#[derive(Debug, Default)]
pub(super) struct Rhythm {
    /// The last gaps, oldest first.
    gaps: Vec<Duration>,
    captured_at: Option<Instant>,
    heard_at: Instant,
    /// From capture to arrival: the longest of late, forgotten by an eighth with each frame.
    latency: Duration,
    /// The source gives nothing, and the camera says so.
    is_idle: bool,
    is_overdue: bool,
}

/// The times after which a stream is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeOut {
    /// Between two frames, or two heartbeats, twice.
    pub(super) gaps: Duration,
    /// From capture to arrival.
    pub(super) latency: Duration,
    /// For what was lost to be sent again.
    pub(super) mending: Duration,
}

impl TimeOut {
    pub(super) fn total(&self) -> Duration {
        self.gaps + self.latency + self.mending
    }
}

impl Rhythm {
    /// A frame came, or word of one, captured at `captured_at` of this node's clock. Whether it was overdue.
    pub(super) fn frame(&mut self, now: Instant, captured_at: Instant) -> bool {
        if let Some(last) = self.captured_at
            && !self.is_idle
            && captured_at > last
        {
            if self.gaps.len() == GAPS {
                self.gaps.remove(0);
            }
            self.gaps.push(captured_at.since(last));
        }
        self.captured_at = self.captured_at.max(Some(captured_at));
        self.latency = now.since(captured_at).max(self.latency - self.latency / 8);
        self.is_idle = false;
        self.heard(now)
    }

    /// The camera says that its source gives nothing. Whether it was overdue.
    pub(super) fn beat(&mut self, now: Instant) -> bool {
        self.is_idle = true;
        self.heard(now)
    }

    fn heard(&mut self, now: Instant) -> bool {
        self.heard_at = now;
        std::mem::take(&mut self.is_overdue)
    }

    /// How long it may take until something is heard, where frames were asked for every `demanded` (zero for all there are), a round
    /// trip takes `rtt` and the link tells a dead peer after `link`. The gaps that are known may be of a higher rate, asked for before.
    pub(super) fn time_out(
        &self,
        demanded: Duration,
        rtt: Duration,
        link: Duration,
    ) -> Option<TimeOut> {
        if self.is_overdue || self.gaps.len() < GAPS {
            return None;
        }
        let longest = self.gaps.iter().copied().max().unwrap_or_default().max(demanded);
        let gaps = 2 * if self.is_idle { HEARTBEAT } else { longest };
        let time_out = TimeOut { gaps, latency: self.latency, mending: (3 * rtt).max(MENDING_MIN) };
        Some(time_out).filter(|time_out| time_out.total() < link)
    }

    /// When it is overdue by that, where bytes of a frame that is under way came at `bytes_at`: a large frame takes its time on a
    /// narrow way.
    pub(super) fn due(&self, time_out: TimeOut, bytes_at: Option<Instant>) -> Instant {
        bytes_at.map_or(self.heard_at, |at| at.max(self.heard_at)) + time_out.total()
    }

    /// It was reported as overdue.
    pub(super) fn told(&mut self) {
        self.is_overdue = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Duration = Duration::from_secs(3);
    const RTT: Duration = Duration::from_millis(10);

    fn ms(millis: i64) -> Instant {
        Instant::from_millis(millis)
    }

    /// After nine frames at 10 fps that took 30 ms each, the last captured at 800 ms.
    fn steady() -> Rhythm {
        let mut stream = Rhythm::default();
        for frame in 0..9 {
            assert!(stream.time_out(Duration::ZERO, RTT, LINK).is_none());
            assert!(!stream.frame(ms(frame * 100 + 30), ms(frame * 100)));
        }
        stream
    }

    fn due(stream: &Rhythm) -> Instant {
        stream.due(stream.time_out(Duration::ZERO, RTT, LINK).unwrap(), None)
    }

    #[test]
    fn it_is_rhythm_latency_and_mending() {
        let stream = steady();
        let time_out = stream.time_out(Duration::ZERO, RTT, LINK).unwrap();
        let millis = Duration::from_millis;
        let parts = (time_out.gaps, time_out.latency, time_out.mending);
        assert_eq!(parts, (millis(200), millis(30), millis(200)));
        assert_eq!(due(&stream), ms(830 + 430));
        assert_eq!(
            stream.time_out(Duration::ZERO, millis(100), LINK).unwrap().mending,
            millis(300)
        );
    }

    #[test]
    fn frames_that_are_left_out_are_part_of_the_rhythm() {
        let mut stream = steady();
        stream.frame(ms(1_230), ms(1_200));
        assert_eq!(due(&stream), ms(1_230 + 2 * 400 + 30 + 200));
        for frame in 13..21 {
            stream.frame(ms(frame * 100 + 30), ms(frame * 100));
        }
        assert_eq!(due(&stream), ms(2_030 + 430), "which is forgotten");
    }

    #[test]
    fn a_lower_rate_that_was_asked_for_is_waited_for() {
        let stream = steady();
        let demanded = Duration::from_millis(900);
        let time_out = stream.time_out(demanded, RTT, LINK).unwrap();
        assert_eq!(time_out.gaps, 2 * demanded, "though the gaps before were of 100 ms");
        let time_out = stream.time_out(Duration::from_millis(20), RTT, LINK).unwrap();
        assert_eq!(
            time_out.gaps,
            Duration::from_millis(200),
            "the source gives no more than it has"
        );
        assert_eq!(
            stream.time_out(Duration::from_secs(5), RTT, LINK),
            None,
            "the link tells first"
        );
    }

    #[test]
    fn what_is_overdue_is_told_once() {
        let mut stream = steady();
        stream.told();
        assert_eq!(stream.time_out(Duration::ZERO, RTT, LINK), None);
        assert!(stream.frame(ms(5_000), ms(900)), "it was");
        assert!(!stream.frame(ms(5_010), ms(1_000)));
        // A wait of that length shows the present delay of the path.
        assert!(stream.time_out(Duration::ZERO, RTT, LINK).is_none(), "longer than the link takes");
    }

    #[test]
    fn a_camera_whose_source_pauses_is_held_to_its_heartbeats() {
        let mut stream = steady();
        assert!(!stream.beat(ms(980)));
        assert_eq!(due(&stream), ms(980) + 2 * HEARTBEAT + Duration::from_millis(230));
        stream.beat(ms(1_480));
        // A pause is no part of the rhythm.
        stream.frame(ms(60_030), ms(60_000));
        assert_eq!(due(&stream), ms(60_030 + 430));
    }

    #[test]
    fn a_frame_whose_bytes_come_is_not_overdue() {
        let stream = steady();
        let due =
            |bytes_at| stream.due(stream.time_out(Duration::ZERO, RTT, LINK).unwrap(), bytes_at);
        assert_eq!(due(Some(ms(700))), due(None), "that was of a frame before");
        assert_eq!(due(Some(ms(1_500))), ms(1_500 + 430));
    }

    #[test]
    fn a_slow_camera_is_the_links_to_tell() {
        let mut stream = Rhythm::default();
        for frame in 0..20 {
            stream.frame(ms(frame * 2_000), ms(frame * 2_000));
        }
        assert_eq!(stream.time_out(Duration::ZERO, RTT, LINK), None);
    }
}
