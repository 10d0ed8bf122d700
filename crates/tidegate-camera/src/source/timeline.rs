//! When a picture was captured, by our clock, from what its camera says.
//!
//! A timestamp counts from a moment that only the camera knows. Two things place it:
//!
//! - **arrivals**: a picture came no earlier than it was captured, so the least of (arrival less timestamp) of late is the capture,
//!   but for the time that the fastest picture took;
//! - **sender reports**: the camera says which timestamp its own clock's time of day belongs to. Where that clock agrees with ours,
//!   so that what came fastest was captured between now and [`AGREE_MAX`] ago, it tells the whole delay, that of the camera's own
//!   encoder included. A clock that was never set is not believed.
//!
//! Always true: no capture lies after the arrival; nothing here reads a clock.

use std::time::Duration;

use tidegate_frame::capacity::WindowedMin;
use tidegate_message::Instant;

use super::rtsp::SenderReport;

/// How long the fastest arrival is remembered, so that clocks that drift apart are followed.
const WINDOW: Duration = Duration::from_secs(30);
/// Most that a camera and its encoder are believed to take: a clock by which it is more is not set as ours is.
const AGREE_MAX: Duration = Duration::from_secs(2);
/// How far ahead of ours a clock may be that is set as ours is.
const AHEAD_MAX: Duration = Duration::from_millis(100);
/// The difference in the steps of timestamps and arrivals from which it is a jump and no delay.
const JUMP: i64 = 30_000_000_000;

/// The times of one stream.
#[derive(Debug)]
pub(super) struct Timeline {
    clock_hertz: u32,
    /// The timestamp seen last, as it came and with its wraps counted.
    last: Option<(u32, i64)>,
    /// Nanoseconds since the first timestamp, and when the newest came.
    newest: Option<(i64, Instant)>,
    /// The sum of the jumps of the timestamps.
    shift_nanos: i64,
    window: WindowedMin,
    /// The least of (arrival less media time), in nanoseconds.
    fastest: Option<i64>,
    /// (our time less media time) by the newest sender report.
    reported: Option<i64>,
    /// A sender report that came before the first picture, when it came, and what our clock of the day showed.
    early: Option<(Instant, Instant, SenderReport)>,
    /// Time on the way that even the fastest picture takes.
    way: Duration,
}

impl Timeline {
    /// Timestamps that count `clock_hertz` steps a second; a packet takes `way` from there to here.
    pub(super) fn new(clock_hertz: u32, way: Duration) -> Self {
        Self {
            clock_hertz: clock_hertz.max(1),
            last: None,
            newest: None,
            shift_nanos: 0,
            window: WindowedMin::new(WINDOW),
            fastest: None,
            reported: None,
            early: None,
            way,
        }
    }

    /// Times that are nanoseconds already, of a camera of this machine.
    pub(super) fn of_nanos() -> Self {
        Self::new(1_000_000_000, Duration::ZERO)
    }

    /// A picture with that timestamp came. Returns its media time: nanoseconds since the first one.
    pub(super) fn arrived(&mut self, now: Instant, timestamp: u32) -> i64 {
        let media = self.extend(timestamp);
        if let Some((at, wall, report)) = self.early.take() {
            self.reported(at, wall, report);
        }
        self.arrived_at(now, media)
    }

    /// A picture with that media time came. Returns its media time, from which a jump is taken.
    pub(super) fn arrived_at(&mut self, now: Instant, media: i64) -> i64 {
        let mut media = media;
        if let Some((before, at)) = self.newest {
            let (step, passed) = (media.saturating_sub(before), now.nanos_since(at));
            if step - passed > JUMP || step < -JUMP {
                // A camera that has restarted its count: time continues as it passed.
                self.shift_nanos += passed - step;
                media += passed - step;
                self.window = WindowedMin::new(WINDOW);
                (self.fastest, self.reported) = (None, None);
            }
        }
        if self.newest.is_none_or(|(before, _)| media > before) {
            self.newest = Some((media, now));
        }
        self.fastest = Some(self.window.insert(now, now.as_nanos().saturating_sub(media)));
        media
    }

    /// A sender report came; `wall` is what our clock of the day shows at `now`.
    pub(super) fn reported(&mut self, now: Instant, wall: Instant, report: SenderReport) {
        // Before the first picture the count of the timestamps has not begun.
        if self.last.is_none() {
            self.early = Some((now, wall, report));
            return;
        }
        let media = self.extend(report.timestamp);
        let age = wall.nanos_since(report.wall);
        let captured = now.as_nanos().saturating_sub(age);
        self.reported = Some(captured.saturating_sub(media));
    }

    /// When the picture of that media time was captured.
    pub(super) fn captured(&self, media: i64) -> Instant {
        let fastest = self.fastest.unwrap_or_default();
        let by_arrival = fastest.saturating_sub(self.way.as_nanos() as i64);
        let offset = match self.reported {
            Some(reported) if self.agrees(reported) => reported.min(fastest),
            _ => by_arrival,
        };
        Instant::from_nanos(media.saturating_add(offset))
    }

    /// The media time of the newest picture.
    pub(super) fn newest(&self) -> i64 {
        self.newest.map_or(0, |(media, _)| media)
    }

    /// Whether the camera's clock is set as ours is, as far as one can see.
    fn agrees(&self, reported: i64) -> bool {
        let delay = self.fastest.unwrap_or_default().saturating_sub(reported);
        (-(AHEAD_MAX.as_nanos() as i64)..=AGREE_MAX.as_nanos() as i64).contains(&delay)
    }

    /// A timestamp in nanoseconds since the first, its wraps counted.
    fn extend(&mut self, timestamp: u32) -> i64 {
        let ticks = match self.last {
            None => 0,
            Some((last, ticks)) => ticks + i64::from(timestamp.wrapping_sub(last) as i32),
        };
        self.last = Some((timestamp, ticks));
        let nanos = i128::from(ticks) * 1_000_000_000 / i128::from(self.clock_hertz);
        i64::try_from(nanos).unwrap_or_default().saturating_add(self.shift_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_700_000_000_000;
    const WAY: Duration = Duration::from_millis(1);

    fn ms(millis: i64) -> Instant {
        Instant::from_millis(START + millis)
    }

    /// Frames at 10 fps, captured at 0, 100, …, that come after `delays`; returns by how much the capture of each is misjudged, in
    /// milliseconds.
    fn errors(timeline: &mut Timeline, from: i64, delays: &[i64]) -> Vec<i64> {
        let frames = (from..).zip(delays);
        frames
            .map(|(frame, delay)| {
                let timestamp = 4_294_960_000_u32.wrapping_add(frame as u32 * 9_000);
                let media = timeline.arrived(ms(frame * 100 + delay), timestamp);
                let error = timeline.captured(media).nanos_since(ms(frame * 100));
                (error as f64 / 1e6).round() as i64
            })
            .collect()
    }

    /// The delay of the fastest picture of late: the camera's own and that of the way.
    fn delay(timeline: &Timeline) -> Duration {
        let (media, fastest) = (timeline.newest(), timeline.fastest.unwrap());
        Instant::from_nanos(media + fastest).since(timeline.captured(media))
    }

    fn report(frame: i64, clock_ahead_ms: i64) -> SenderReport {
        let timestamp = 4_294_960_000_u32.wrapping_add(frame as u32 * 9_000);
        SenderReport { wall: ms(frame * 100 + clock_ahead_ms), timestamp }
    }

    #[test]
    fn a_picture_that_waited_is_as_old_as_it_is() {
        let mut timeline = Timeline::new(90_000, WAY);
        let errors = errors(&mut timeline, 0, &[5, 5, 80, 5, 40, 5, 205, 105, 5]);
        assert_eq!(
            errors, [4; 9],
            "but for what the fastest takes, over the wrap of the timestamps"
        );
        assert_eq!(delay(&timeline), WAY);
    }

    #[test]
    fn pictures_that_came_in_one_burst_are_known_to_be_old_once_the_last_has_come() {
        let mut timeline = Timeline::new(90_000, WAY);
        errors(&mut timeline, 0, &[2000, 1900, 1800, 1700]);
        let media = timeline.arrived(ms(2_003), 4_294_960_000_u32.wrapping_add(20 * 9_000));
        assert_eq!(timeline.captured(media), ms(2_002));
        assert_eq!(timeline.captured(0), ms(2), "the first of them");
    }

    #[test]
    fn a_camera_that_says_its_time_is_believed_if_its_clock_is_right() {
        for (clock_ahead_ms, expected) in [
            (0, 0),
            (20, 20),
            (-30, -30),
            (250, 250),
            (340, 299),
            (3_600_000, 299),
            (-5_000, 299),
            (500, 299),
        ] {
            let mut timeline = Timeline::new(90_000, WAY);
            errors(&mut timeline, 0, &[300; 5]);
            timeline.reported(ms(420), ms(420), report(4, clock_ahead_ms));
            let misjudged = errors(&mut timeline, 5, &[300, 450]);
            let expected = if clock_ahead_ms == 340 { 300 } else { expected };
            assert_eq!(misjudged, [expected; 2], "{clock_ahead_ms} ms ahead");
        }
    }

    #[test]
    fn data_before_the_first_picture_is_not_lost() {
        let mut timeline = Timeline::new(90_000, WAY);
        timeline.reported(ms(210), ms(210), report(2, 0));
        timeline.reported(ms(310), ms(310), report(3, 0));
        assert_eq!(errors(&mut timeline, 5, &[300, 450, 300]), [0; 3]);
    }

    #[test]
    fn our_clock_of_the_day_may_be_set_meanwhile() {
        let mut timeline = Timeline::new(90_000, WAY);
        errors(&mut timeline, 0, &[300; 5]);
        // Both clocks were set an hour ahead after we started: ours and the camera's.
        let hour = 3_600_000;
        timeline.reported(ms(420), ms(420 + hour), report(4, hour));
        assert_eq!(errors(&mut timeline, 5, &[300]), [0]);
        assert_eq!(delay(&timeline), Duration::from_millis(300));
    }

    #[test]
    fn clocks_that_drift_apart_are_followed() {
        let mut timeline = Timeline::new(90_000, WAY);
        // 200 parts in a million over an hour, which are 720 ms.
        let delays: Vec<i64> = (0..36_000).map(|frame| 5 + frame / 50).collect();
        let errors = errors(&mut timeline, 0, &delays);
        let worst = errors.iter().zip(&delays).map(|(error, delay)| (delay - error).abs()).max();
        assert!(worst <= Some(8), "{worst:?}");
    }

    #[test]
    fn a_count_that_begins_anew_is_followed() {
        let mut timeline = Timeline::new(90_000, WAY);
        errors(&mut timeline, 0, &[5; 5]);
        for (step, expected) in [(1_u32 << 30, 500), (9_000, 600), (3 << 30, 700), (9_000, 800)] {
            let (last, _) = timeline.last.unwrap();
            let media = timeline.arrived(ms(expected + 5), last.wrapping_add(step));
            let captured = timeline.captured(media).nanos_since(ms(expected));
            assert!((0..=6_000_000).contains(&captured), "{captured}");
        }
    }
}
