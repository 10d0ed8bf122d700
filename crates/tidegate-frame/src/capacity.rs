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
//! The start of a burst is faster than the path: a shaper with a token bucket lets it through at once, Wi-Fi gathers it in
//! one aggregate, and a busy receiver reads packets that came one after the other in one go. How many bytes that is, is
//! measured with each frame that is long enough, by the pace of its rest. They may have come at once in any other frame, or not, so the
//! start of a frame tells two bounds of the pace after them: an estimate of that pace between these stays as it is. Small frames, of
//! which those bytes are a large part, else show a path that large ones do not find. There are two estimates: one of the pace that
//! frames like the last ones find, for their sizes, and one of the pace of long ones, for what is promised.
//!
//! A frame of a few packets is no train, and small cameras send nothing else. The time from its start to its acknowledgement, less the
//! round trip, says how many bytes a second the path carries *at least*. That never lowers an estimate, and raises one that is below it:
//! else a path that was slow once would seem slow for as long as its frames are small.
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
    /// Weight of a frame in the bytes that come at once at the start of a burst. Default 0.25.
    pub weight_head: f64,
    /// Bytes of the first packet, which arrive at the start of the span and not within it: the least that comes at once.
    /// Default 1200.
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
            weight_head: 0.25,
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
    /// Bytes per second of frame data, of frames like those that were sent of late.
    pub bytes_per_second: f64,
    /// The same of frames that may be much longer, and follow each other closely: without the bytes that come at once at the start
    /// of each. Not above `bytes_per_second`.
    pub long: f64,
    /// Smoothed relative deviation of the samples from the estimate, 0 and up.
    pub deviation: f64,
    /// Bytes that come at once at the start of a frame, before that pace.
    pub head_bytes: f64,
    /// Bytes of the frame that was last measured.
    pub recent_bytes: f64,
    /// Bytes of the longest burst that was measured: how the path carries much longer ones is not known. Infinite once one lasted
    /// long enough to tell.
    pub burst_bytes: f64,
    /// Samples in a row of bursts so short that most of their bytes may have come at once: a path that carries more now would look
    /// the same.
    pub short: u32,
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
/// Shortest time that a frame of a few packets is taken to need: half of the shortest span of a sample. Less is the time of one turn on the
/// air, or of one read of the receiver, and says nothing of the path.
const AT_ONCE: Duration = Duration::from_millis(4);
/// Most times faster than by its time with the whole round trip that a frame of a few packets is taken to have been: the round trip is
/// measured with other packets, some time ago.
const ROUND_TRIP_PART: u32 = 4;
/// Lowest estimate, so that times computed from it stay finite.
const BYTES_PER_SECOND_MIN: f64 = 1_000.0;
/// Most that is believed to come at once at the start of a burst.
const HEAD_BYTES_MAX: f64 = 1e6;
/// Packets that the rest of a frame must have to tell what came at once at its start.
const REST_PACKETS_MIN: u32 = 8;
/// Part of the estimate that a sample must reach at least to have shown a faster path.
const TELLING: f64 = 0.5;
/// How many times longer than it was held up a frame must have come without, for that to be an accident again.
const SELDOM: u32 = 10;
/// How many times longer than the last a frame may be to find the pace that the last found.
const LIKE: f64 = 2.0;
/// Part of the estimate below which the pace of a frame that was given up shows that the path carries less.
const STOPPED: f64 = 0.5;
/// A burst that lasts this long shows how the path carries longer ones, too.
const LASTING: Duration = Duration::from_millis(150);
/// Slots in which the windowed minimum is kept.
const WINDOW_SLOTS: usize = 10;

/// The estimator: tell it what was sent and what arrived, ask for [`Estimator::capacity`].
#[derive(Clone, Debug)]
pub struct Estimator {
    config: CapacityConfig,
    estimate: Option<Capacity>,
    /// Bytes per second after those that come at once.
    long: Option<f64>,
    /// Bytes per second that the last frames of a few packets show at least; 0 before there was one.
    at_least: f64,
    /// The same before the path stopped, until a frame tells which of the two is right.
    stopped: Option<f64>,
    /// Bytes that come at once at the start of a burst, smoothed, once a frame was long enough to tell.
    head_bytes: Option<f64>,
    /// Of the last burst that gave a sample, and of the longest.
    recent_bytes: f64,
    burst_bytes: f64,
    /// Samples in a row that could not have shown a faster path.
    short: u32,
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
    /// Bytes a second over the last span, and over the one before it.
    pace: Option<f64>,
    pace_before: Option<f64>,
    /// Where the span begins in which it was last held up by an accident.
    held_up: Option<Instant>,
    /// Estimates when it started.
    at_start: (Option<f64>, Option<f64>),
    /// Two moments of its course with the bytes until then, the later first: one of them is about half of its time ago.
    marks: [Option<(Instant, u32)>; 2],
    /// Receive times of the first byte, of the end of the first span and of the newest byte, with the bytes until then.
    first_at: Option<Instant>,
    begun: Option<(Instant, u32)>,
    newest: Option<(Instant, u32)>,
}

impl Capacity {
    /// Whether the path carries a frame of `bytes` within `seconds`. One that is much longer than the last, whatever that found, as far
    /// as the pace of long ones does.
    pub fn carries(&self, bytes: f64, seconds: f64) -> bool {
        let likens = bytes <= LIKE * self.recent_bytes;
        bytes <= self.bytes_per_second * seconds
            && (likens || bytes <= self.head_bytes + self.long * seconds)
    }
}

impl Estimator {
    /// An estimator that knows nothing yet.
    pub fn new(config: CapacityConfig) -> Self {
        let delay_lowest = WindowedMin::new(config.delay_window);
        Self {
            config,
            estimate: None,
            long: None,
            at_least: 0.0,
            stopped: None,
            head_bytes: None,
            recent_bytes: 0.0,
            burst_bytes: 0.0,
            short: 0,
            bursts: VecDeque::new(),
            delay_lowest,
            delay_last: None,
            delay_trend: 0.0,
            overuse: false,
        }
    }

    /// The present estimate; nothing before the first sample.
    pub fn capacity(&self) -> Option<Capacity> {
        let Self { burst_bytes, short, .. } = *self;
        let long = |estimate: &Capacity| self.long.unwrap_or(estimate.bytes_per_second);
        self.estimate.map(|estimate| Capacity {
            long: long(&estimate).clamp(BYTES_PER_SECOND_MIN, estimate.bytes_per_second),
            head_bytes: f64::from(self.head_bytes()),
            recent_bytes: self.recent_bytes,
            burst_bytes,
            short,
            ..estimate
        })
    }

    /// Bytes per second that the path carries at least, by frames too small for a sample; 0 where there were none. It says more than
    /// [`Estimator::capacity`] only where that is nothing yet.
    pub fn at_least(&self) -> f64 {
        self.at_least
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
            pace: None,
            pace_before: None,
            held_up: None,
            at_start: (self.estimate.map(|estimate| estimate.bytes_per_second), self.long),
            marks: [None; 2],
            first_at: None,
            begun: None,
            newest: None,
        });
    }

    /// The receiver acknowledged part or all of a frame; `rtt_min` is the lowest round trip of the path, zero if it is unknown.
    ///
    /// Nonsense (time running backwards, fewer bytes than before) gives no sample.
    pub fn progress(
        &mut self,
        now: Instant,
        frame: Instant,
        progress: Progress,
        rtt_min: Duration,
    ) {
        let Some(index) = self.bursts.iter().position(|burst| burst.frame == frame) else { return };
        let head_bytes = self.head_bytes();
        let config = &self.config;
        let burst = &mut self.bursts[index];
        // Behind other bytes, nothing comes at once.
        let at_once = if burst.alone { head_bytes } else { config.packet_bytes };

        let delay = (burst.alone && !burst.delay_seen)
            .then(|| progress.first_at.nanos_since(burst.started));
        burst.delay_seen = true;

        let (from, bytes_from) = *burst
            .span
            .get_or_insert((progress.first_at, config.packet_bytes.min(progress.received)));
        burst.first_at.get_or_insert(progress.first_at);
        burst.newest = Some((progress.last_at, progress.received));
        let span = progress.last_at.since(from);
        let bytes = progress.received.saturating_sub(bytes_from);
        // A few packets that arrive together say nothing about the path: the span grows until there are more. That is so on a slow path,
        // and where the receiver was held up and has read the first of what came meanwhile.
        let enough = 2 * config.packet_bytes;
        let sample = if span >= config.span_min && bytes >= enough {
            burst.span_before = burst.span.replace((progress.last_at, progress.received));
            burst.begun.get_or_insert((progress.last_at, progress.received));
            // The start tells nothing of that while it is not known how much of it came at once.
            let sure = match (from == progress.first_at, self.head_bytes) {
                (true, None) => 0,
                (true, Some(_)) => bytes.saturating_sub(at_once - config.packet_bytes),
                (false, _) => bytes,
            };
            burst.pace_before = burst.pace.replace(f64::from(sure) / span.as_secs_f64());
            Some((from, bytes, span))
        } else if progress.complete {
            // The rest of a long frame is too short to be trusted alone: take the span before it along.
            let (from, bytes_from) = burst.span_before.unwrap_or((from, bytes_from));
            let bytes = progress.received.saturating_sub(bytes_from);
            Some((from, bytes, progress.last_at.since(from).max(SPAN_FLOOR)))
        } else {
            None
        };
        // Nothing arrives while the path, or one of the nodes, is held up for a moment, however long that is: all of it is in one span.
        // A path that carries less now shows that in the next one, too, and one that stops again and again is held up for much of the time.
        let before = burst.pace_before.filter(|before| {
            let is_accident = |(from, bytes, span): (Instant, u32, Duration)| {
                let is_held_up = f64::from(bytes) < TELLING * before * span.as_secs_f64();
                let is_seldom =
                    burst.held_up.is_none_or(|at| at == from || at + span * SELDOM <= from);
                if is_held_up && is_seldom {
                    burst.held_up = Some(from);
                }
                is_held_up && is_seldom
            };
            sample.is_some_and(is_accident)
        });
        let elapsed = progress.last_at.since(progress.first_at);
        if burst.begun.is_some()
            && burst.marks[0].is_none_or(|(at, _)| elapsed >= at.since(progress.first_at) * 3 / 2)
        {
            burst.marks = [Some((progress.last_at, progress.received)), burst.marks[0]];
        }
        let ended = if progress.complete { self.bursts.remove(index) } else { None };
        if let Some(burst) = &ended {
            self.learn(burst);
        } else if sample.is_some() && self.head_bytes.is_none() {
            let burst = self.bursts[index].clone();
            self.learn(&burst);
        }
        if let Some(delay) = delay {
            self.delayed(now, delay);
        }
        // A few packets that arrive together say nothing about the path.
        let packet_bytes = self.config.packet_bytes;
        if let Some((from, bytes, span)) = sample.filter(|(_, bytes, _)| *bytes >= 2 * packet_bytes)
        {
            let is_start = from == progress.first_at;
            let unsure = if is_start { at_once - packet_bytes } else { 0 };
            let per_second = |bytes: u32| {
                (f64::from(bytes) / span.as_secs_f64()).max(before.unwrap_or_default())
            };
            self.sample(per_second(bytes));
            self.sample_within(per_second(bytes.saturating_sub(unsure)), per_second(bytes));
            let lasts = progress.last_at.since(progress.first_at) >= LASTING;
            self.recent_bytes = f64::from(progress.received);
            // Part of it may have come at once.
            let sure = if self.head_bytes.is_some() { 1.0 } else { 0.5 };
            let burst = if lasts { f64::INFINITY } else { self.recent_bytes * sure };
            self.burst_bytes = self.burst_bytes.max(burst);
        } else if let Some(burst) = &ended {
            self.short = self.short.saturating_add(1);
            if burst.alone {
                let took = now.since(burst.started);
                let took = took.saturating_sub(rtt_min).max(took / ROUND_TRIP_PART).max(AT_ONCE);
                self.sample_at_least(f64::from(progress.received) / took.as_secs_f64());
            }
        }
        if let Some(burst) = ended {
            self.restore(&burst, progress);
        }
    }

    /// Samples are short, so that a drop is believed within a frame, and the slow ones among them count most. A frame that has come is
    /// better known: no estimate is below the pace of about the later half of its time, up to what it was before the frame.
    fn restore(&mut self, burst: &Burst, progress: Progress) {
        let is_long = |(at, _): &(Instant, u32)| {
            progress.last_at.since(*at) * 4 >= progress.last_at.since(progress.first_at)
                && progress.last_at.since(*at) >= self.config.span_min
        };
        let Some((at, bytes)) = burst.marks.into_iter().flatten().find(is_long) else { return };
        let pace = f64::from(progress.received.saturating_sub(bytes))
            / progress.last_at.since(at).as_secs_f64();
        let (before, long_before) = burst.at_start;
        if let (Some(estimate), Some(before)) = (&mut self.estimate, before) {
            estimate.bytes_per_second = estimate.bytes_per_second.max(pace.min(before));
        }
        if let (Some(long), Some(before)) = (&mut self.long, long_before) {
            *long = long.max(pace.min(before));
        }
    }

    /// A frame was given up at `now` with `received` of its bytes acknowledged: the path carried no more
    /// than a packet beyond them, for all the time since the frame started.
    ///
    /// It can only lower the estimate. This is what notices a path that stopped altogether.
    pub fn gave_up(&mut self, now: Instant, frame: Instant, received: u32, rtt: Duration) {
        let Some(index) = self.bursts.iter().position(|burst| burst.frame == frame) else { return };
        let Some(burst) = self.bursts.remove(index) else { return };
        self.learn(&burst);
        let span = now.since(burst.started).saturating_sub(rtt);
        if !burst.alone || span < self.config.span_min {
            return;
        }
        let ceiling = f64::from(received + self.config.packet_bytes) / span.as_secs_f64();
        self.at_least = self.at_least.min(ceiling);
        if self.estimate.is_some_and(|estimate| ceiling < estimate.bytes_per_second) {
            self.sample(ceiling);
        }
        // The last acknowledgement does not know of all that has come: of a frame that was short, that is much.
        if self.long.is_some_and(|long| ceiling < STOPPED * long) {
            self.stopped = self.stopped.or(self.long);
            self.sample_within(0.0, ceiling);
        }
    }

    /// A frame was taken back: nothing more is to be learned from it.
    pub fn forget(&mut self, frame: Instant) {
        if let Some(index) = self.bursts.iter().position(|burst| burst.frame == frame)
            && let Some(burst) = self.bursts.remove(index)
        {
            self.learn(&burst);
        }
    }

    /// The link broke: bytes on the way are no samples any more, and the next path may be another.
    pub fn interrupted(&mut self) {
        self.bursts.clear();
        self.at_least = 0.0;
        self.stopped = None;
        self.head_bytes = None;
        self.burst_bytes = 0.0;
        self.short = 0;
        self.delay_lowest = WindowedMin::new(self.config.delay_window);
        self.delay_last = None;
        self.delay_trend = 0.0;
        self.overuse = false;
    }

    /// Bytes that come at once at the start of a burst that is alone.
    fn head_bytes(&self) -> u32 {
        let least = f64::from(self.config.packet_bytes);
        self.head_bytes.unwrap_or(least).clamp(least, HEAD_BYTES_MAX.max(least)) as u32
    }

    /// Takes from a frame, of which no more will be heard, how much came at once at its start.
    fn learn(&mut self, burst: &Burst) {
        let Some((newest_at, received)) = burst.newest else { return };
        let (Some(first_at), Some((begun_at, begun)), true) =
            (burst.first_at, burst.begun, burst.alone)
        else {
            return;
        };
        let (span, rest) = (newest_at.since(begun_at), received.saturating_sub(begun));
        if span < self.config.span_min || rest < REST_PACKETS_MIN * self.config.packet_bytes {
            return;
        }
        let pace = f64::from(rest) / span.as_secs_f64();
        let head = f64::from(begun) - pace * begun_at.since(first_at).as_secs_f64();
        let head = head.clamp(-HEAD_BYTES_MAX, HEAD_BYTES_MAX);
        let Some(smooth) = &mut self.head_bytes else {
            // The samples until now are of its start as well.
            self.head_bytes = Some(head);
            self.long = Some(pace);
            return;
        };
        *smooth += self.config.weight_head * (head - *smooth);
    }

    /// The path carries between `least` and `most` bytes a second: as many as came at once at the start came before, or none.
    /// An estimate between them may be right.
    fn sample_within(&mut self, least: f64, most: f64) {
        let long = self.long.get_or_insert(most);
        self.short = if least < *long * TELLING { self.short.saturating_add(1) } else { 0 };
        if most < *long {
            *long += self.config.weight_down * (most - *long);
        } else if least > *long && !self.overuse {
            *long += self.config.weight_up * (least - *long);
        }
        // Frames that are short because the path stopped cannot show that it goes on as before: it is believed to, as far as they
        // show nothing else.
        let Some(stopped) = self.stopped.filter(|_| !self.overuse) else { return };
        if most >= stopped {
            *long = long.max(stopped);
            self.stopped = None;
        } else if least >= *long * TELLING {
            *long = long.max(most);
            self.stopped = None;
        }
    }

    /// The path carries that many bytes a second or more: no estimate stays below it.
    fn sample_at_least(&mut self, bytes_per_second: f64) {
        let CapacityConfig { weight_up, weight_down, .. } = self.config;
        let difference = bytes_per_second - self.at_least;
        let weight = if difference < 0.0 { weight_down } else { 1.0 };
        self.at_least += weight * difference;
        if self.overuse {
            return;
        }
        let estimate = self.estimate.as_mut().map(|estimate| &mut estimate.bytes_per_second);
        for estimate in estimate.into_iter().chain(&mut self.long) {
            *estimate += weight_up * (bytes_per_second - *estimate).max(0.0);
        }
    }

    fn sample(&mut self, bytes_per_second: f64) {
        let sample = bytes_per_second.max(BYTES_PER_SECOND_MIN);
        let Some(estimate) = &mut self.estimate else {
            self.estimate = Some(Capacity {
                bytes_per_second: sample,
                long: sample,
                deviation: 0.0,
                head_bytes: 0.0,
                recent_bytes: 0.0,
                burst_bytes: 0.0,
                short: 0,
            });
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

        /// Sends one frame over a path that lets the first `bucket` bytes through at once.
        fn shaped(&mut self, bytes: u32, bytes_per_second: f64, bucket: u32) {
            let frame = self.now;
            self.estimator.started(self.now, frame, true);
            let first_at = self.now + self.offset + Duration::from_millis(5);
            self.acknowledge(frame, 1200, first_at, Duration::ZERO, false);
            let rest = f64::from(bytes.saturating_sub(bucket)) / bytes_per_second;
            let whole = Duration::from_secs_f64(rest).max(Duration::from_micros(200));
            let mut elapsed = Duration::from_millis(10);
            while elapsed < whole {
                let received = bucket + (elapsed.as_secs_f64() * bytes_per_second) as u32;
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
            self.estimator.progress(self.now + late, frame, progress, Duration::ZERO);
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
    fn small_frames_that_come_at_once_say_nothing_of_long_ones() {
        for (bucket, megabits) in [(16_000, 12.0), (40_000, 12.0), (100_000, 80.0)] {
            let mut path = Path::new(Duration::ZERO);
            path.shaped(6 * bucket, megabits * MEGABIT, bucket);
            let long = |path: &Path| path.estimator.capacity().unwrap().long / MEGABIT;
            assert!((long(&path) / megabits - 1.0).abs() < 0.05, "{}", long(&path));
            for part in [10, 20, 12, 30, 15].repeat(10) {
                path.shaped(bucket * part / 20, megabits * MEGABIT, bucket);
            }
            let seen = long(&path);
            assert!((seen / megabits - 1.0).abs() < 0.1, "bucket of {bucket}, {megabits}: {seen}");
            let capacity = path.estimator.capacity().unwrap();
            assert!(
                capacity.bytes_per_second > 1.3 * capacity.long,
                "frames like those are faster"
            );
            // As many bytes as that pace and the bucket give, and no more.
            let seconds = 6.0 * f64::from(bucket) / (megabits * MEGABIT);
            assert!(!capacity.carries(8.0 * f64::from(bucket), seconds), "{capacity:?}");
            assert!(capacity.carries(5.0 * f64::from(bucket), seconds), "{capacity:?}");
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
    fn a_path_that_stopped_and_goes_on_carries_long_frames_again() {
        let mut path = Path::new(Duration::ZERO);
        let (bucket, pace) = (60_000, 40.0 * MEGABIT);
        let seconds = 0.065;
        for _ in 0..10 {
            path.shaped(250_000, pace, bucket);
        }
        let carries = |path: &Path| path.estimator.capacity().unwrap().carries(250_000.0, seconds);
        assert!(carries(&path), "{:?}", path.estimator.capacity());
        let stop = |path: &mut Path| {
            for _ in 0..5 {
                let (frame, over) = (path.now, path.now + Duration::from_millis(100));
                path.estimator.started(frame, frame, true);
                path.estimator.gave_up(over, frame, 0, Duration::ZERO);
                path.now = path.now + Duration::from_millis(200);
            }
        };
        stop(&mut path);
        assert!(!carries(&path), "{:?}", path.estimator.capacity());
        // Frames so short that all of their bytes come at once.
        for _ in 0..40 {
            path.shaped(30_000, pace, bucket);
        }
        assert!(carries(&path), "{:?}", path.estimator.capacity());
        // A path that is slower afterwards is found to be, once a frame is long enough to tell.
        stop(&mut path);
        path.shaped(250_000, pace / 8.0, bucket);
        for _ in 0..40 {
            path.shaped(30_000, pace / 8.0, bucket);
        }
        assert!(!carries(&path), "{:?}", path.estimator.capacity());
    }

    #[test]
    fn frames_of_one_packet_show_no_faster_path() {
        let mut path = Path::new(Duration::ZERO);
        path.frame(100_000, 20.0 * MEGABIT);
        assert_eq!(path.estimator.capacity().unwrap().short, 0);
        for _ in 0..60 {
            path.shaped(1_000, 20.0 * MEGABIT, 1_000);
        }
        assert_eq!(path.estimator.capacity().unwrap().short, 60);
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
            path.estimator.progress(path.now, frame, progress, Duration::ZERO);
            path.estimator.progress(path.now, Instant::MAX, progress, Duration::ZERO);
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
