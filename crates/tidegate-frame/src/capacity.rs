//! How many bytes a second the path carries, from the frames that travel it anyway.
//!
//! A frame leaves as one burst, so its packets are a train: the bytes that arrived between two moments at
//! the receiver, over the time between them, are a sample of the capacity. Acknowledgements come every
//! 10 ms of a frame, so a stall shows before the frame ends. Shorter frames give one sample, over the
//! whole of them: a fixed bin would leave them without any.
//!
//! ```text
//!   first byte ───▶ progress ───▶ progress ──▶ last byte        receiver's clock
//!       └──── sample ───┘└─── sample ──┘└ too short: joined to the one before
//! ```
//!
//! Always true: only differences of receive times, and differences of delays, are used, so the clocks of
//! the two nodes may differ by any amount; the estimate is positive and finite.

use std::{collections::VecDeque, time::Duration};

use tidegate_message::Instant;

/// Settings of the estimator; the defaults are those of the simulations it was chosen by.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityConfig {
    /// Weight of a sample below the estimate. Default 0.7: a drop must be believed within a frame.
    pub weight_down: f64,
    /// Weight of a sample above the estimate. Default 0.15: a lucky sample must not be believed.
    pub weight_up: f64,
    /// Weight of a sample in the relative deviation. Default 0.25.
    pub weight_deviation: f64,
    /// Shortest time a sample spans while more of the frame is to come. Default 8 ms.
    pub span_min: Duration,
    /// Bytes of the first packet, which arrive at the start of the span and not within it. Default 1200.
    pub packet_bytes: u32,
    /// How long the lowest delay is remembered. Default 10 s, to follow clocks that drift apart.
    pub delay_window: Duration,
    /// Delay above the lowest at which a rising trend means that a queue builds. Default 8 ms.
    pub delay_overuse: Duration,
}

impl Default for CapacityConfig {
    fn default() -> Self {
        Self {
            weight_down: 0.7,
            weight_up: 0.15,
            weight_deviation: 0.25,
            span_min: Duration::from_millis(8),
            packet_bytes: 1200,
            delay_window: Duration::from_secs(10),
            delay_overuse: Duration::from_millis(8),
        }
    }
}

/// The estimated capacity of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Bytes per second of frame data.
    pub bytes_per_second: f64,
    /// Smoothed relative deviation of the samples from the estimate, 0 and up.
    pub deviation: f64,
}

/// The receiver's word about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that have arrived.
    pub received: u32,
    /// Receiver's time of the first byte.
    pub first_at: Instant,
    /// Receiver's time of the newest byte.
    pub last_at: Instant,
    /// Whether that was all.
    pub complete: bool,
}

/// Frames whose progress is followed at once; the oldest is forgotten beyond that.
const BURSTS_MAX: usize = 32;
/// Shortest span a sample is divided by: bytes read in one go have no rate of their own.
const SPAN_FLOOR: Duration = Duration::from_micros(100);
/// Lowest estimate, so that times computed from it stay finite.
const BYTES_PER_SECOND_MIN: f64 = 1_000.0;
/// Slots in which the windowed minimum is kept.
const WINDOW_SLOTS: usize = 10;

/// The estimator: tell it what was sent and what arrived, ask for [`Estimator::capacity`].
#[derive(Clone, Debug)]
pub struct Estimator {
    config: CapacityConfig,
    estimate: Option<Capacity>,
    bursts: VecDeque<Burst>,
    delay_lowest: WindowedMin,
    delay_last: Option<i64>,
    delay_trend: f64,
    overuse: bool,
}

#[derive(Clone, Debug)]
struct Burst {
    frame: Instant,
    started: Instant,
    /// Whether nothing else was on the way when it started, so that its delay is the path's.
    alone: bool,
    delay_seen: bool,
    /// Where the current span begins, and where the one before it began.
    span: Option<(Instant, u32)>,
    span_before: Option<(Instant, u32)>,
}

impl Estimator {
    /// An estimator that knows nothing yet.
    pub fn new(config: CapacityConfig) -> Self {
        let delay_lowest = WindowedMin::new(config.delay_window);
        Self {
            config,
            estimate: None,
            bursts: VecDeque::new(),
            delay_lowest,
            delay_last: None,
            delay_trend: 0.0,
            overuse: false,
        }
    }

    /// The present estimate; nothing before the first sample.
    pub fn capacity(&self) -> Option<Capacity> {
        self.estimate
    }

    /// Whether the delay trend says that a queue builds; samples then only lower the estimate.
    pub fn overuse(&self) -> bool {
        self.overuse
    }

    /// The first byte of a frame was handed to the link at `now`; `alone` if nothing else was on the way.
    pub fn started(&mut self, now: Instant, frame: Instant, alone: bool) {
        if self.bursts.len() == BURSTS_MAX {
            self.bursts.pop_front();
        }
        self.bursts.push_back(Burst {
            frame,
            started: now,
            alone,
            delay_seen: false,
            span: None,
            span_before: None,
        });
    }

    /// The receiver acknowledged part or all of a frame.
    ///
    /// Nonsense (time running backwards, fewer bytes than before) gives no sample.
    pub fn progress(&mut self, now: Instant, frame: Instant, progress: Progress) {
        let Some(index) = self.bursts.iter().position(|burst| burst.frame == frame) else { return };
        let config = &self.config;
        let burst = &mut self.bursts[index];

        let delay = (burst.alone && !burst.delay_seen)
            .then(|| progress.first_at.nanos_since(burst.started));
        burst.delay_seen = true;

        let (from, bytes_from) = *burst
            .span
            .get_or_insert((progress.first_at, config.packet_bytes.min(progress.received)));
        let span = progress.last_at.since(from);
        let bytes = progress.received.saturating_sub(bytes_from);
        // A few packets that arrive together say nothing about the path: on a slow one, or one that nothing is known of, the span grows
        // until there are more.
        let enough = 2 * config.packet_bytes;
        let is_slow = self.estimate.is_none_or(|estimate| {
            estimate.bytes_per_second * config.span_min.as_secs_f64() < f64::from(enough)
        });
        let sample = if span >= config.span_min && (bytes >= enough || !is_slow) {
            burst.span_before = burst.span.replace((progress.last_at, progress.received));
            Some((bytes, span))
        } else if progress.complete {
            // The rest of a long frame is too short to be trusted alone: take the span before it along.
            let (from, bytes_from) = burst.span_before.unwrap_or((from, bytes_from));
            let bytes = progress.received.saturating_sub(bytes_from);
            Some((bytes, progress.last_at.since(from).max(SPAN_FLOOR)))
        } else {
            None
        };
        if progress.complete {
            self.bursts.remove(index);
        }
        if let Some(delay) = delay {
            self.delayed(now, delay);
        }
        // A few packets that arrive together say nothing about the path.
        if let Some((bytes, span)) =
            sample.filter(|(bytes, _)| *bytes >= 2 * self.config.packet_bytes)
        {
            self.sample(f64::from(bytes) / span.as_secs_f64());
        }
    }

    /// A frame was given up at `now` with `received` of its bytes acknowledged: the path carried no more
    /// than a packet beyond them, for all the time since the frame started.
    ///
    /// It can only lower the estimate. This is what notices a path that stopped altogether.
    pub fn gave_up(&mut self, now: Instant, frame: Instant, received: u32, rtt: Duration) {
        let Some(index) = self.bursts.iter().position(|burst| burst.frame == frame) else { return };
        let Some(burst) = self.bursts.remove(index) else { return };
        let span = now.since(burst.started).saturating_sub(rtt);
        if !burst.alone || span < self.config.span_min {
            return;
        }
        let ceiling = f64::from(received + self.config.packet_bytes) / span.as_secs_f64();
        if self.estimate.is_some_and(|estimate| ceiling < estimate.bytes_per_second) {
            self.sample(ceiling);
        }
    }

    /// A frame was taken back: nothing more is to be learned from it.
    pub fn forget(&mut self, frame: Instant) {
        self.bursts.retain(|burst| burst.frame != frame);
    }

    /// The link broke: bytes on the way are no samples any more, and the next path may be another.
    pub fn interrupted(&mut self) {
        self.bursts.clear();
        self.delay_lowest = WindowedMin::new(self.config.delay_window);
        self.delay_last = None;
        self.delay_trend = 0.0;
        self.overuse = false;
    }

    fn sample(&mut self, bytes_per_second: f64) {
        let sample = bytes_per_second.max(BYTES_PER_SECOND_MIN);
        let Some(estimate) = &mut self.estimate else {
            self.estimate = Some(Capacity { bytes_per_second: sample, deviation: 0.0 });
            return;
        };
        let difference = sample - estimate.bytes_per_second;
        let relative = (difference.abs() / estimate.bytes_per_second).min(1.0);
        estimate.deviation += self.config.weight_deviation * (relative - estimate.deviation);
        let weight = if difference < 0.0 { self.config.weight_down } else { self.config.weight_up };
        if difference < 0.0 || !self.overuse {
            estimate.bytes_per_second += weight * difference;
        }
    }

    fn delayed(&mut self, now: Instant, delay: i64) {
        let lowest = self.delay_lowest.insert(now, delay);
        if let Some(last) = self.delay_last.replace(delay) {
            self.delay_trend += 0.3 * (delay.saturating_sub(last) as f64 - self.delay_trend);
        }
        let above = u64::try_from(delay.saturating_sub(lowest)).unwrap_or(0);
        let queued = Duration::from_nanos(above) > self.config.delay_overuse;
        self.overuse = queued && self.delay_trend > 0.0;
    }
}

/// The lowest of the values of the last while, in slots: each forgotten when the window passed it by.
#[derive(Clone, Debug)]
pub struct WindowedMin {
    slot: Duration,
    slots: VecDeque<(Instant, i64)>,
}

impl WindowedMin {
    /// A window of that length.
    pub fn new(window: Duration) -> Self {
        Self {
            slot: window / WINDOW_SLOTS as u32,
            slots: VecDeque::with_capacity(WINDOW_SLOTS + 1),
        }
    }

    /// Adds a value and gives the lowest in the window, this one included.
    pub fn insert(&mut self, now: Instant, value: i64) -> i64 {
        match self.slots.back_mut() {
            Some((begun, lowest)) if now.since(*begun) < self.slot => *lowest = value.min(*lowest),
            _ => self.slots.push_back((now, value)),
        }
        if self.slots.len() > WINDOW_SLOTS {
            self.slots.pop_front();
        }
        self.slots.iter().map(|(_, lowest)| *lowest).min().unwrap_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: f64 = 125_000.0;

    /// A path of constant rate, seen by a receiver whose clock is off.
    struct Path {
        estimator: Estimator,
        now: Instant,
        offset: Duration,
    }

    impl Path {
        fn new(offset: Duration) -> Self {
            let now = Instant::from_millis(1_000_000);
            Self { estimator: Estimator::new(CapacityConfig::default()), now, offset }
        }

        /// Sends one frame and acknowledges it every 10 ms, as the receiver does.
        fn frame(&mut self, bytes: u32, bytes_per_second: f64) {
            let frame = self.now;
            self.estimator.started(self.now, frame, true);
            let first_at = self.now + self.offset + Duration::from_millis(5);
            let after = |bytes: f64| Duration::from_secs_f64(bytes / bytes_per_second);
            let whole = after(f64::from(bytes - 1200));
            let mut elapsed = Duration::from_millis(10);
            while elapsed < whole {
                let received = 1200 + (elapsed.as_secs_f64() * bytes_per_second) as u32;
                self.acknowledge(frame, received, first_at, elapsed, false);
                elapsed += Duration::from_millis(10);
            }
            self.acknowledge(frame, bytes, first_at, whole, true);
            self.now = self.now + Duration::from_millis(200);
        }

        fn acknowledge(
            &mut self,
            frame: Instant,
            received: u32,
            at: Instant,
            late: Duration,
            complete: bool,
        ) {
            let progress = Progress { received, first_at: at, last_at: at + late, complete };
            self.estimator.progress(self.now + late, frame, progress);
        }

        fn megabits(&self) -> f64 {
            self.estimator.capacity().unwrap().bytes_per_second / MEGABIT
        }
    }

    #[test]
    fn every_frame_length_gives_a_sample_whatever_the_clock_offset() {
        for offset in [Duration::ZERO, Duration::from_secs(86_400)] {
            for bytes in [4_000, 20_000, 60_000, 400_000, 1_500_000] {
                for megabits in [0.3, 1.0, 1.8, 5.0, 20.0, 200.0] {
                    let mut path = Path::new(offset);
                    path.frame(bytes, megabits * MEGABIT);
                    let seen = path.megabits();
                    assert!((seen / megabits - 1.0).abs() < 0.02, "{bytes} B, {megabits}: {seen}");
                }
            }
        }
    }

    #[test]
    fn a_drop_is_believed_within_the_frame_and_a_rise_slowly() {
        let mut path = Path::new(Duration::ZERO);
        path.frame(400_000, 200.0 * MEGABIT);
        path.frame(100_000, 20.0 * MEGABIT);
        assert!((20.0..25.0).contains(&path.megabits()), "{}", path.megabits());
        assert!(path.estimator.capacity().unwrap().deviation > 0.2);
        path.frame(20_000, 200.0 * MEGABIT);
        assert!((40.0..60.0).contains(&path.megabits()), "{}", path.megabits());
        for _ in 0..30 {
            path.frame(20_000, 200.0 * MEGABIT);
        }
        assert!(path.megabits() > 190.0, "{}", path.megabits());
        assert!(path.estimator.capacity().unwrap().deviation < 0.05);
    }

    #[test]
    fn a_path_that_stops_lowers_the_estimate_without_any_acknowledgement() {
        let mut path = Path::new(Duration::ZERO);
        path.frame(400_000, 200.0 * MEGABIT);
        let frame = path.now;
        path.estimator.started(path.now, frame, true);
        path.estimator.gave_up(path.now + Duration::from_millis(100), frame, 0, Duration::ZERO);
        assert!(path.megabits() < 61.0, "{}", path.megabits());
    }

    #[test]
    fn a_building_queue_holds_the_estimate_down() {
        let mut path = Path::new(Duration::ZERO);
        for _ in 0..5 {
            path.frame(60_000, 20.0 * MEGABIT);
        }
        for _ in 0..4 {
            path.offset += Duration::from_millis(10); // what a queue elsewhere does to the delay
            path.frame(60_000, 20.0 * MEGABIT);
        }
        assert!(path.estimator.overuse());
        path.frame(60_000, 200.0 * MEGABIT);
        assert!(path.megabits() < 21.0, "{}", path.megabits());
        path.offset = Duration::ZERO;
        path.frame(60_000, 200.0 * MEGABIT);
        assert!(!path.estimator.overuse());
        assert!(path.megabits() > 21.0, "{}", path.megabits());
    }

    #[test]
    fn nonsense_from_a_peer_gives_no_sample() {
        let mut path = Path::new(Duration::ZERO);
        path.frame(100_000, 20.0 * MEGABIT);
        let (frame, before) = (path.now, path.estimator.capacity());
        path.estimator.started(path.now, frame, true);
        for (received, last_at) in [(0, Instant::MIN), (u32::MAX, Instant::MIN), (0, Instant::MAX)]
        {
            let progress = Progress { received, first_at: path.now, last_at, complete: false };
            path.estimator.progress(path.now, frame, progress);
            path.estimator.progress(path.now, Instant::MAX, progress);
        }
        assert_eq!(path.estimator.capacity(), before);
    }

    #[test]
    fn the_windowed_minimum_forgets() {
        let mut lowest = WindowedMin::new(Duration::from_secs(10));
        let at = |seconds: i64| Instant::from_millis(seconds * 1000);
        assert_eq!(lowest.insert(at(0), 3), 3);
        assert_eq!(lowest.insert(at(5), 7), 3);
        for second in 6..20 {
            lowest.insert(at(second), 7);
        }
        assert_eq!(lowest.insert(at(20), 9), 7);
    }
}
