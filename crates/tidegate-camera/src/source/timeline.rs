//! When a picture was captured, by our clock, from what its camera says.
//!
//! A timestamp counts from a moment that only the camera knows, at a rate that only the camera believes in. Three things place it:
//!
//! - **arrivals**: a picture came no earlier than it was captured, so the least of (arrival less timestamp) of late is the capture,
//!   but for the time that the fastest picture took. Where that least rises or falls as a line does, and no line to the camera is full,
//!   which is how a queue would grow, the timestamps run at a wrong rate, by which they are corrected;
//! - **the least round trip**: half of it is what the fastest picture took;
//! - **sender reports**: the camera says which timestamp its own clock's time of day belongs to. Where that clock agrees with ours,
//!   so that what came fastest was captured between now and [`AGREE_MAX`] ago, and its reports agree with each other, it tells the whole
//!   delay, that of the camera's own encoder included. A clock that was never set, or that knows whole seconds alone, is not believed.
//!
//! A line that is full has a queue before it, in which the fastest pictures wait as well. A clock of the day that agreed with ours before
//! tells how long; without one, the ages of pictures are lower bounds once the pictures before the queue are forgotten, which is said.
//!
//! Where the timestamps are no clock, because they leap about, stand still, or say for seconds that pictures are old which nothing held
//! back, a picture is captured when it arrives, until they have been a clock for [`CALM`] again. [`Timeline::clock`] says which it is.
//!
//! Always true: one timestamp that is wrong moves no other picture than its own, and that by no more than the jitter of arrivals; a report
//! moves no timestamp; nothing here reads a clock.

use std::{collections::VecDeque, fmt, time::Duration};

use tidegate_message::Instant;

/// How long arrivals are remembered, so that clocks that drift apart are followed.
const WINDOW: i64 = 30 * SECOND;
/// Of pictures that came within so long, the fastest is remembered.
const BUCKET: i64 = SECOND / 2;
/// Over how long a rate is sought, and by how much the timestamps have to be wrong in that time: the sooner, the more. The least of them
/// bounds the error of what is not found: 150 ms.
const RATES: [(i64, i64); 4] = [
    (3 * SECOND, 400 * MILLI),
    (6 * SECOND, 150 * MILLI),
    (15 * SECOND, 150 * MILLI),
    (WINDOW, 150 * MILLI),
];
/// Buckets without which no rate is sought.
const RATE_BUCKETS: usize = 4;
/// A rate that is wrong by more is none that a clock has.
const RATE_MAX: f64 = 0.25;
/// A line to the camera that is busy for such a part of the time is full: a queue grows there.
const FULL: f64 = 0.8;
/// So long a queue before a full line is believed to be, by a clock of the day that agreed with ours.
const QUEUE_MAX: i64 = 10 * SECOND;
/// No line that is free holds pictures back for so long,
const HELD_MAX: i64 = SECOND;
/// if all do that came within this time.
const HELD_FOR: i64 = 5 * SECOND;
/// A picture that is so much earlier than the fastest, after a step of so many times the usual one, has a wrong timestamp, or those before
/// it had: they were late, for example, when pictures between were left out.
const LEAP: i64 = 100 * MILLI;
const LEAP_STEPS: i64 = 3;
/// So has one whose time goes back by so many times the usual step: by less it does where pictures refer to later ones.
const BACK_STEPS: i64 = 6;
const BACK_MIN: i64 = 200 * MILLI;
const BACK_MAX: i64 = 700 * MILLI;
/// Two timestamps in a row that are wrong in the same way, up to this, are a count that was changed.
const SAME_WRONG: i64 = 100 * MILLI;
/// So many wrong ones in a row, or changes of the count within [`WINDOW`], are no clock.
const WRONG_MAX: u32 = 8;
const CHANGES_MAX: usize = 4;
/// How long timestamps have to be a clock before they are believed again.
const CALM: i64 = 10 * SECOND;
/// Most that a camera and its encoder are believed to take: a clock by which it is more is not set as ours is.
const AGREE_MAX: i64 = 500 * MILLI;
/// How far ahead of ours a clock may be that is set as ours is.
const AHEAD_MAX: i64 = 100 * MILLI;
/// By how much two sender reports may differ.
const WANDER_MAX: i64 = 50 * MILLI;
/// So many reports in a row have to agree once they did not.
const AGREEING: u32 = 3;
/// The difference in the steps of timestamps and arrivals from which it is a change of the count, whatever follows.
const JUMP: i64 = 30 * SECOND;
const SECOND: i64 = 1_000_000_000;
const MILLI: i64 = 1_000_000;

/// By which clock pictures are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureClock {
    /// By the camera's timestamps, as they arrive at the soonest.
    Timestamps,
    /// By the camera's timestamps and its own clock of the day.
    Camera,
    /// By the camera's timestamps, of which so many thousands are so many more or fewer: they run at a wrong rate.
    Rated {
        /// By how much the timestamps run too fast, in thousandths; too slow where negative.
        permille: i32,
    },
    /// By the camera's timestamps, or by arrival, while the line to it is full: how long pictures wait there is not known.
    Full,
    /// By arrival: the camera's timestamps are no clock.
    Arrival(NoClock),
    /// By the camera's timestamps; its clock of the day is not believed.
    Unset(NotSet),
}

/// Why timestamps are no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoClock {
    /// There are none.
    None,
    /// They leap about.
    Leaps,
    /// Their rate is none of a clock.
    Rate,
    /// They say that pictures are old which nothing held back.
    Behind,
}

/// Why a clock of the day is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSet {
    /// It differs from ours by more than a camera takes.
    Off {
        /// By how much it is behind ours, the time that the camera takes included, in milliseconds; ahead where negative.
        behind_millis: i64,
    },
    /// It knows whole seconds alone.
    WholeSeconds,
    /// Its reports do not agree with each other.
    Wanders,
}

impl CaptureClock {
    /// Whether it is as it should be: nothing has to be said about it.
    pub const fn is_sound(self) -> bool {
        matches!(self, Self::Timestamps | Self::Camera | Self::Arrival(NoClock::None))
    }
}

impl fmt::Display for CaptureClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timestamps => {
                f.write_str("capture times are those of its timestamps, less half a round trip")
            }
            Self::Camera => f.write_str(
                "capture times are those of its own clock, which is set as this machine's is",
            ),
            Self::Rated { permille } => {
                let (percent, word) =
                    (f64::from(permille.abs()) / 10.0, if *permille < 0 { "slow" } else { "fast" });
                write!(
                    f,
                    "its timestamps run {percent:.1} % too {word}, by which capture times are corrected"
                )
            }
            Self::Full => f.write_str(
                "its pictures fill the line to it and may wait there for longer than is said; lower their rate, size or quality",
            ),
            Self::Arrival(why) => {
                let why = match why {
                    NoClock::None => "it gives no timestamps",
                    NoClock::Leaps => "its timestamps leap about",
                    NoClock::Rate => "its timestamps do not run at the rate of a clock",
                    NoClock::Behind => {
                        "its timestamps fall behind though nothing holds its pictures back"
                    }
                };
                write!(f, "{why}, so that capture times are those of arrival")
            }
            Self::Unset(why) => {
                match why {
                    NotSet::Off { behind_millis } => {
                        let word = if *behind_millis < 0 { "ahead of" } else { "behind" };
                        let seconds = behind_millis.unsigned_abs() as f64 / 1e3;
                        write!(f, "its clock is {seconds:.1} s {word} this machine's")?;
                    }
                    NotSet::WholeSeconds => f.write_str("its clock tells whole seconds alone")?,
                    NotSet::Wanders => f.write_str("its clock wanders")?,
                }
                f.write_str(", so that the time of its encoder is not known; set it by NTP")
            }
        }
    }
}

/// A sender's report on its clock: at `wall`, its own time of day, its timestamps stood at `timestamp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SenderReport {
    pub(super) wall: Instant,
    pub(super) timestamp: u32,
}

/// The times of one stream.
#[derive(Debug)]
pub(super) struct Timeline {
    clock_hertz: u32,
    /// The timestamp seen last, as it came and with its wraps counted.
    last: Option<(u32, i64)>,
    /// Media time of the newest picture, and when it came.
    newest: Option<(i64, Instant)>,
    /// The sum of the changes of the timestamps' count.
    shift: i64,
    /// The usual step of the media times; none before the second picture.
    step: Option<i64>,
    arrivals: Arrivals,
    /// The timestamps before this one were wrong: how many in a row, and (arrival less media time) of the last.
    wrong: Option<(u32, i64)>,
    /// When the count was changed, of late.
    changes: VecDeque<i64>,
    /// Set while pictures are timed by arrival: why, since when the timestamps are a clock, and (arrival less media time) of what was
    /// handed out.
    by_arrival: Option<(NoClock, Instant, i64)>,
    reports: Reports,
    /// A sender report that came before the first picture, when it came, and what our clock of the day showed.
    early: Option<(Instant, Instant, SenderReport)>,
    /// Time on the way that even the fastest picture takes.
    way: i64,
}

/// The fastest arrivals of late.
#[derive(Debug, Default)]
struct Arrivals {
    buckets: VecDeque<Bucket>,
    /// How fast (arrival less media time) grows where timestamps run at a wrong rate, and over how long it was found.
    rate: Option<(f64, i64)>,
    /// When the line to the camera was full, and had been for [`HELD_FOR`].
    full_at: Option<i64>,
}

/// The fastest picture of those that came within [`BUCKET`].
#[derive(Clone, Copy, Debug)]
struct Bucket {
    from: i64,
    /// When it came, and (arrival less media time) of it.
    at: i64,
    least: i64,
    /// How long pictures were on their way in, in all.
    busy: i64,
}

/// The reports of a camera on its clock of the day.
#[derive(Debug, Default)]
struct Reports {
    /// (our time less media time) by the newest report, and when it came.
    newest: Option<(i64, Instant)>,
    /// So many more have to agree.
    doubts: u32,
    /// The newest told whole seconds.
    is_whole_seconds: bool,
    /// They agreed with our clock while the line to the camera was free, and with each other since.
    have_agreed: bool,
}

impl Arrivals {
    /// A picture came at `now` and was whole `busy` later, with that (arrival less media time).
    fn insert(&mut self, now: i64, lag: i64, busy: i64) {
        match self.buckets.back_mut() {
            Some(last) if now < last.from + BUCKET => {
                if lag <= last.least {
                    (last.at, last.least) = (now, lag);
                }
                last.busy += busy;
            }
            _ => {
                self.buckets.push_back(Bucket { from: now, at: now, least: lag, busy });
                while self.buckets.front().is_some_and(|first| first.from < now - WINDOW) {
                    self.buckets.pop_front();
                }
                self.rate = RATES.iter().find_map(|&(span, least)| {
                    self.rate_over(now, span, least).map(|rate| (rate, span))
                });
                if self.covers(now, HELD_FOR) && self.is_full(now, HELD_FOR) {
                    self.full_at = Some(now);
                }
            }
        }
    }

    /// The buckets of the last `span`.
    fn of_late(&self, now: i64, span: i64) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().skip_while(move |bucket| bucket.from < now - span)
    }

    /// How fast lags grow over `span` if they do so evenly, by `least` in all, and not because a line is full.
    fn rate_over(&self, now: i64, span: i64, least: i64) -> Option<f64> {
        // The last has just begun.
        let count = self.of_late(now, span).count().saturating_sub(1);
        let points: Vec<(f64, f64)> = self
            .of_late(now, span)
            .take(count)
            .map(|bucket| ((bucket.at - now) as f64, bucket.least as f64))
            .collect();
        let covered = points.last()?.0 - points.first()?.0;
        if points.len() < RATE_BUCKETS || covered < span as f64 * 0.6 {
            return None;
        }
        // A queue that grows, grows now.
        let is_full = self.is_full(now, span / 2);
        // The median of the slopes of all pairs (Theil and Sen): what is late for a moment does not move it.
        let mut slopes: Vec<f64> = points
            .iter()
            .enumerate()
            .flat_map(|(index, (at, lag))| {
                points[index + 1..].iter().map(move |(later, more)| (more - lag) / (later - at))
            })
            .collect();
        let middle = slopes.len() / 2;
        let (_, &mut slope, _) = slopes.select_nth_unstable_by(middle, f64::total_cmp);
        let rise = slope.abs() * covered;
        if rise < least as f64 || (slope > 0.0 && is_full) {
            return None;
        }
        // A line it is if three in four lie on it, and none is earlier.
        let mut off: Vec<f64> = points.iter().map(|(at, lag)| lag - slope * at).collect();
        off.sort_by(f64::total_cmp);
        let near = (rise / 5.0).max(15.0 * MILLI as f64);
        (off[off.len() * 3 / 4] - off[0] <= near).then_some(slope)
    }

    /// Whether pictures have come for nearly so long.
    fn covers(&self, now: i64, span: i64) -> bool {
        self.of_late(now, span).next().is_some_and(|first| first.from < now - span / 4 * 3)
    }

    /// Whether the line to the camera is full, or was of late.
    fn is_queued(&self, now: i64) -> bool {
        self.full_at.is_some_and(|at| now - at <= CALM)
    }

    /// Whether pictures are on their way in nearly all the time.
    fn is_full(&self, now: i64, span: i64) -> bool {
        let busy: i64 = self.of_late(now, span).map(|bucket| bucket.busy).sum();
        let from = self.of_late(now, span).next().map_or(now, |bucket| bucket.from);
        busy as f64 > FULL * (now - from).max(1) as f64
    }

    /// The lag of the fastest picture, as it is at `now`.
    fn fastest(&self, now: i64) -> Option<i64> {
        let (rate, span) = self.rate.unwrap_or((0.0, WINDOW));
        let lags = self.of_late(now, span);
        lags.map(|bucket| bucket.least + (rate * (now - bucket.at) as f64) as i64).min()
    }
}

impl Reports {
    /// A report places media times at `offset`.
    fn take(&mut self, now: Instant, offset: i64, is_whole_seconds: bool) {
        self.is_whole_seconds = is_whole_seconds;
        if let Some((before, at)) = self.newest {
            // Clocks drift apart by less than one thousandth.
            let drift = now.nanos_since(at).max(0) / 1_000;
            let agrees = offset.saturating_sub(before).abs() <= WANDER_MAX + drift;
            self.doubts = if agrees { self.doubts.saturating_sub(1) } else { AGREEING };
            self.have_agreed &= agrees;
        }
        self.newest = Some((offset, now));
    }

    /// Notes whether they agree with our clock. `fastest` is the lag of the fastest picture, which a queue holds back, or does not.
    fn compare(&mut self, fastest: i64, is_queued: bool) {
        match self.judged(fastest, is_queued) {
            Some(Ok(_)) => self.have_agreed = true,
            Some(Err(_)) => self.have_agreed &= is_queued,
            None => {}
        }
    }

    /// The time of capture of media time 0 by the reports, or why they are not believed; `None` where nothing was said. `fastest` is the lag
    /// of the fastest picture, which a queue holds back, or does not.
    fn judged(&self, fastest: i64, is_queued: bool) -> Option<Result<i64, NotSet>> {
        let (offset, _) = self.newest?;
        let delay = fastest.saturating_sub(offset);
        let delay_max = if is_queued && self.have_agreed { QUEUE_MAX } else { AGREE_MAX };
        Some(if self.is_whole_seconds {
            Err(NotSet::WholeSeconds)
        } else if self.doubts > 0 {
            Err(NotSet::Wanders)
        } else if !(-AHEAD_MAX..=delay_max).contains(&delay) {
            Err(NotSet::Off { behind_millis: delay / MILLI })
        } else {
            Ok(offset.min(fastest))
        })
    }
}

impl Timeline {
    /// Timestamps that count `clock_hertz` steps a second; a packet takes `way` from there to here.
    pub(super) fn new(clock_hertz: u32, way: Duration) -> Self {
        Self {
            clock_hertz: clock_hertz.max(1),
            last: None,
            newest: None,
            shift: 0,
            step: None,
            arrivals: Arrivals::default(),
            wrong: None,
            changes: VecDeque::new(),
            by_arrival: None,
            reports: Reports::default(),
            early: None,
            way: nanos(way),
        }
    }

    /// Times that are nanoseconds already, of a camera of this machine.
    pub(super) fn of_nanos() -> Self {
        Self::new(SECOND as u32, Duration::ZERO)
    }

    /// A packet takes no more than `way`, it was found.
    pub(super) fn way_is_at_most(&mut self, way: Duration) {
        self.way = self.way.min(nanos(way));
    }

    /// A picture with that timestamp began to come at `now`, and was whole `busy` later. Returns its media time: nanoseconds since the
    /// first one, as its camera counts them.
    pub(super) fn arrived(&mut self, now: Instant, timestamp: u32, busy: Duration) -> i64 {
        let media = self.extend(timestamp);
        if let Some((at, wall, report)) = self.early.take() {
            self.reported(at, wall, report);
        }
        self.arrived_at(now, media, busy)
    }

    /// A picture with that media time came. Returns the media time that it has among the others.
    pub(super) fn arrived_at(&mut self, now: Instant, media: i64, busy: Duration) -> i64 {
        let Some((before, at)) = self.newest else {
            return self.take(now, media, busy);
        };
        let passed = now.nanos_since(at).max(0);
        // Where the timestamp is wrong, time continues as it passed.
        let instead = before.saturating_add(passed);
        let (lag, at) = (now.as_nanos().saturating_sub(media), now.as_nanos());
        let fastest = self.arrivals.fastest(at).unwrap_or(lag);
        let step = media.saturating_sub(before);
        let back_max = (BACK_STEPS * self.step.unwrap_or(0)).clamp(BACK_MIN, BACK_MAX);
        let is_back = step < -back_max;
        let is_leap = lag < fastest - LEAP
            && self.step.is_some_and(|usual| step > LEAP.max(LEAP_STEPS * usual));
        if !is_back && !is_leap {
            self.wrong = None;
            if step > 0 {
                let usual = self.step.unwrap_or(step);
                self.step = Some(usual + (step.min(SECOND) - usual) / 8);
            }
            return self.take(now, media, busy);
        }
        let (count, is_same) = match self.wrong {
            Some((count, other)) => (count + 1, (lag - other).abs() <= SAME_WRONG),
            None => (1, false),
        };
        self.wrong = Some((count, lag));
        if is_same && !is_back && lag > fastest - JUMP {
            // Those before were late, for example all of a burst.
            self.wrong = None;
            return self.take(now, media, busy);
        }
        if is_same || count >= WRONG_MAX {
            self.wrong = None;
            self.changes.push_back(at);
            while self.changes.front().is_some_and(|change| *change < at - WINDOW) {
                self.changes.pop_front();
            }
            if !is_same || self.changes.len() >= CHANGES_MAX {
                self.give_up(now, NoClock::Leaps, instead);
            }
            // It is another count now.
            self.shift = self.shift.saturating_add(instead.saturating_sub(media));
            self.arrivals = Arrivals::default();
            self.reports = Reports::default();
            return self.take(now, instead, busy);
        }
        self.newest = Some((instead, now));
        self.handed_out(now, instead)
    }

    /// A picture came whose timestamp is one of a clock. Returns the media time that is handed out for it.
    fn take(&mut self, now: Instant, media: i64, busy: Duration) -> i64 {
        let at = now.as_nanos();
        if self.newest.is_none_or(|(before, _)| media > before) {
            self.newest = Some((media, now));
        } else if let Some((_, newest)) = &mut self.newest {
            *newest = now;
        }
        self.arrivals.insert(at, at.saturating_sub(media), nanos(busy));
        let rate = self.arrivals.rate.map_or(0.0, |(rate, _)| rate);
        let fastest = self.arrivals.fastest(at).expect("one was just put there");
        let is_late = |bucket: &Bucket| bucket.least > fastest + HELD_MAX;
        let of_late = || self.arrivals.of_late(at, HELD_FOR);
        // Pictures that came all at once, behind a pause, were held back by what paused.
        let is_held = self.arrivals.covers(at, HELD_FOR) && of_late().all(is_late);
        self.reports.compare(fastest, self.arrivals.is_queued(at));
        if rate.abs() > RATE_MAX {
            self.give_up(now, NoClock::Rate, media);
        } else if rate == 0.0 && is_held && !self.arrivals.is_full(at, HELD_FOR) {
            self.give_up(now, NoClock::Behind, media);
        } else if let Some((_, since, _)) = self.by_arrival
            && now.nanos_since(since) >= CALM
        {
            let handed_out = self.handed_out(now, media);
            self.rebase(handed_out.saturating_sub(media));
            self.by_arrival = None;
            return handed_out;
        }
        self.handed_out(now, media)
    }

    /// Moves all media times by so much: those that come are to follow those that were handed out.
    fn rebase(&mut self, by: i64) {
        self.shift = self.shift.saturating_add(by);
        if let Some((media, _)) = &mut self.newest {
            *media = media.saturating_add(by);
        }
        for bucket in &mut self.arrivals.buckets {
            bucket.least = bucket.least.saturating_sub(by);
        }
        if let Some((offset, _)) = &mut self.reports.newest {
            *offset = offset.saturating_sub(by);
        }
    }

    /// Pictures are timed by arrival from now on, if they are not.
    fn give_up(&mut self, now: Instant, why: NoClock, media: i64) {
        let lag = self.by_arrival.map_or(now.as_nanos().saturating_sub(media), |(_, _, lag)| lag);
        self.by_arrival = Some((why, now, lag));
        if why != NoClock::Rate {
            self.arrivals = Arrivals::default();
        }
    }

    /// The media time that a picture has for those who ask when it was captured.
    fn handed_out(&self, now: Instant, media: i64) -> i64 {
        self.by_arrival.map_or(media, |(_, _, lag)| now.as_nanos().saturating_sub(lag))
    }

    /// A sender report came; `wall` is what our clock of the day shows at `now`.
    pub(super) fn reported(&mut self, now: Instant, wall: Instant, report: SenderReport) {
        // Before the first picture the count of the timestamps has not begun.
        if self.last.is_none() {
            self.early = Some((now, wall, report));
            return;
        }
        let media = self.media(self.ticks(report.timestamp));
        self.reported_at(now, wall, media, report.wall);
    }

    /// The camera's clock of the day showed `theirs` at that media time; `wall` is what ours shows at `now`.
    pub(super) fn reported_at(&mut self, now: Instant, wall: Instant, media: i64, theirs: Instant) {
        let age = wall.nanos_since(theirs);
        let captured = now.as_nanos().saturating_sub(age);
        let is_whole_seconds = theirs.as_nanos() % SECOND == 0;
        self.reports.take(now, captured.saturating_sub(media), is_whole_seconds);
    }

    /// When the picture of that media time was captured: not after the newest picture came.
    pub(super) fn captured(&self, media: i64) -> Instant {
        let estimated = self.estimated(media);
        // A rate that is known since one picture carries that one's error.
        self.newest.map_or(estimated, |(_, came)| estimated.min(came))
    }

    fn estimated(&self, media: i64) -> Instant {
        if let Some((_, _, lag)) = self.by_arrival {
            return Instant::from_nanos(media.saturating_add(lag).saturating_sub(self.way));
        }
        let at = self.newest.map_or(0, |(_, at)| at.as_nanos());
        let fastest = self.arrivals.fastest(at).unwrap_or_default();
        if let Some((rate, _)) = self.arrivals.rate {
            // The fastest picture with that media time came when (arrival less media time) was that of the line.
            let since = at.saturating_sub(media).saturating_sub(fastest) as f64 / (1.0 - rate);
            return Instant::from_nanos(at.saturating_sub(since as i64).saturating_sub(self.way));
        }
        let offset = match self.reports.judged(fastest, self.arrivals.is_queued(at)) {
            Some(Ok(reported)) => reported,
            _ => fastest.saturating_sub(self.way),
        };
        Instant::from_nanos(media.saturating_add(offset))
    }

    /// By which clock pictures are timed now.
    pub(super) fn clock(&self) -> CaptureClock {
        if let Some((why, ..)) = self.by_arrival {
            return CaptureClock::Arrival(why);
        }
        let at = self.newest.map_or(0, |(_, at)| at.as_nanos());
        if let Some((rate, _)) = self.arrivals.rate {
            // Of a second of ours, they count 1 - rate.
            return CaptureClock::Rated { permille: (-rate * 1e3).round() as i32 };
        }
        let is_queued = self.arrivals.is_queued(at);
        let fastest = self.arrivals.fastest(at);
        match fastest.and_then(|fastest| self.reports.judged(fastest, is_queued)) {
            Some(Ok(_)) => CaptureClock::Camera,
            _ if is_queued => CaptureClock::Full,
            Some(Err(why)) => CaptureClock::Unset(why),
            None => CaptureClock::Timestamps,
        }
    }

    /// The media time of the newest picture.
    pub(super) fn newest(&self) -> i64 {
        self.newest.map_or(0, |(media, at)| self.handed_out(at, media))
    }

    /// A picture's timestamp in nanoseconds since the first, its wraps counted.
    fn extend(&mut self, timestamp: u32) -> i64 {
        let ticks = self.ticks(timestamp);
        self.last = Some((timestamp, ticks));
        self.media(ticks)
    }

    fn ticks(&self, timestamp: u32) -> i64 {
        let (last, ticks) = self.last.unwrap_or((timestamp, 0));
        ticks + i64::from(timestamp.wrapping_sub(last) as i32)
    }

    fn media(&self, ticks: i64) -> i64 {
        let nanos = i128::from(ticks) * i128::from(SECOND) / i128::from(self.clock_hertz);
        i64::try_from(nanos).unwrap_or_default().saturating_add(self.shift)
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
