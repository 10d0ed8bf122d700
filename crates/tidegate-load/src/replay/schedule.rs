//! When messages are due: the time of the trace, that of devices which begin at different places of it, and the clock's.
//!
//! Times of the trace are nanoseconds since its first row. A device begins at its *phase*, a time of the trace, continues to the end and
//! from the beginning up to its phase again, each row in its distance to the one before. Between the last row and the first lies the
//! mean distance of two rows, so that a trace that begins again keeps its pace.
//!
//! ```text
//!  trace     0────a──b───────c───d (gap)
//!  device 1       ▲ phase: b, c, d, a
//! ```
//!
//! Always true: times of the trace never go back; the phases of n devices lie one in each nth of the trace, where in it says the seed.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{HELD_BYTES_MAX, Pace};
use crate::sensors::mix;

const SECOND: i64 = 1_000_000_000;

/// Rows along the time of the trace.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// Between two rows, where times do not matter.
    every_nanos: Option<f64>,
    first: Option<i64>,
    /// Latest time of a row so far, since the first.
    latest: i64,
    rows: u64,
    reordered: u64,
    /// Rows that are out of order are counted in the first lap alone.
    has_begun_again: bool,
}

impl Timeline {
    /// A trace of times if there are any, and else of rows that are even: `devices` play them at that pace together.
    pub(crate) fn new(pace: Pace, devices: u32, has_times: bool) -> Self {
        let every_nanos = match pace {
            _ if has_times && !matches!(pace, Pace::Rate(_)) => None,
            Pace::Rate(per_second) => Some(SECOND as f64 * f64::from(devices) / per_second),
            Pace::Own(_) | Pace::Unpaced => Some(SECOND as f64),
        };
        Self { every_nanos, first: None, latest: 0, rows: 0, reordered: 0, has_begun_again: false }
    }

    /// The next row is put in its place: nanoseconds since the first.
    pub(crate) fn place(&mut self, time: Option<i64>) -> i64 {
        let row = self.rows;
        self.rows += 1;
        let (Some(time), None) = (time, self.every_nanos) else {
            self.latest = (row as f64 * self.every_nanos.unwrap_or(0.0)) as i64;
            return self.latest;
        };
        let first = *self.first.get_or_insert(time);
        let since = time.saturating_sub(first);
        if since < self.latest && !self.has_begun_again {
            self.reordered += 1;
        }
        self.latest = self.latest.max(since);
        self.latest
    }

    /// From the beginning of the trace to its beginning again.
    pub(crate) fn period(&self) -> i64 {
        let gap = match (self.every_nanos, self.rows) {
            (Some(nanos), _) => nanos as i64,
            (None, 2..) if self.latest > 0 => (self.latest as u64 / (self.rows - 1)) as i64,
            _ => SECOND,
        };
        self.latest.saturating_add(gap.max(1))
    }

    /// The trace begins again; returns how many rows it had.
    pub(crate) fn again(&mut self) -> u64 {
        self.latest = 0;
        self.has_begun_again = true;
        std::mem::take(&mut self.rows)
    }

    /// Rows with a time before that of an earlier one.
    pub(crate) fn reordered(&self) -> u64 {
        self.reordered
    }
}

/// The time of the trace on the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When it began, in nanoseconds.
    pub(crate) start: i64,
    pub(crate) pace: Pace,
}

impl Clock {
    /// When what is due at `played` is due; nothing waits without a pace.
    pub(crate) fn due(&self, played: i128) -> i64 {
        let nanos = match self.pace {
            Pace::Unpaced => 0,
            Pace::Own(speed) if speed != 1.0 => (played as f64 / speed) as i64,
            Pace::Own(_) | Pace::Rate(_) => i64::try_from(played).unwrap_or(i64::MAX),
        };
        self.start.saturating_add(nanos)
    }
}

/// A whole trace in memory.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    rows: Vec<HeldRow>,
}

#[derive(Clone, Copy, Debug)]
struct HeldRow {
    /// Since the first row.
    time: i64,
    /// Where it ends in the bytes.
    end: usize,
}

impl Held {
    /// Keeps a row; false if there is no room.
    #[must_use]
    pub(crate) fn push(&mut self, time: i64, row: &[u8]) -> bool {
        let rows_bytes = (self.rows.len() + 1) * size_of::<HeldRow>();
        if self.bytes.len() + row.len() + rows_bytes > HELD_BYTES_MAX {
            return false;
        }
        self.bytes.extend_from_slice(row);
        self.rows.push(HeldRow { time, end: self.bytes.len() });
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// A row by its place.
    pub(crate) fn row(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.rows[before].end);
        &self.bytes[start..self.rows[index].end]
    }

    fn time(&self, index: usize) -> i64 {
        self.rows[index].time
    }

    /// The first row that is not before a time of the trace.
    fn from(&self, time: i64) -> usize {
        self.rows.partition_point(|row| row.time < time)
    }
}

/// Devices that play one trace, each from its phase.
#[derive(Debug)]
pub(crate) struct Devices {
    cursors: Vec<Cursor>,
    /// When each device is due, in nanoseconds of the trace.
    timetable: BinaryHeap<Reverse<(i128, u32)>>,
    period: i64,
    repeat: bool,
}

#[derive(Clone, Copy, Debug)]
struct Cursor {
    phase: i64,
    next: usize,
    /// How often it has gone over the end of the trace.
    laps: u64,
    /// Rows left without a repetition.
    left: usize,
}

impl Devices {
    /// One device begins at the beginning, several where `seed` says.
    pub(crate) fn new(held: &Held, devices: u32, seed: u64, period: i64, repeat: bool) -> Self {
        let mut all = Self {
            cursors: Vec::with_capacity(devices as usize),
            timetable: BinaryHeap::with_capacity(devices as usize),
            period,
            repeat,
        };
        for device in 0..devices {
            let part = (mix(seed ^ mix(u64::from(device) + 1)) >> 11) as f64 / (1_u64 << 53) as f64;
            let share = (f64::from(device) + part) / f64::from(devices);
            let phase = if devices == 1 { 0 } else { (share * period as f64) as i64 };
            let next = held.from(phase);
            let (next, laps) = if next == held.len() { (0, 1) } else { (next, 0) };
            all.cursors.push(Cursor { phase, next, laps, left: held.len() });
            all.enqueue(held, device);
        }
        all
    }

    /// Which device is due next, when in nanoseconds of the trace, and with which row.
    pub(crate) fn next(&self) -> Option<(i128, u32, usize)> {
        let Reverse((due, device)) = *self.timetable.peek()?;
        Some((due, device, self.cursors[device as usize].next))
    }

    /// The row that [`Devices::next`] returned has been sent.
    pub(crate) fn advance(&mut self, held: &Held) {
        let Some(Reverse((_, device))) = self.timetable.pop() else { return };
        let cursor = &mut self.cursors[device as usize];
        cursor.left -= 1;
        cursor.next += 1;
        if cursor.next == held.len() {
            cursor.next = 0;
            cursor.laps += 1;
        }
        if cursor.left == 0 && self.repeat {
            cursor.left = held.len();
        }
        self.enqueue(held, device);
    }

    fn enqueue(&mut self, held: &Held, device: u32) {
        let Cursor { phase, next, laps, left } = self.cursors[device as usize];
        if left > 0 {
            let time = i128::from(held.time(next)) - i128::from(phase);
            let due = time + i128::from(laps) * i128::from(self.period);
            self.timetable.push(Reverse((due, device)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: i64 = 1_000_000;

    fn timeline() -> Timeline {
        Timeline::new(Pace::Own(1.0), 1, true)
    }

    #[test]
    fn times_that_go_back_are_counted_and_wait_for_nothing() {
        let mut timeline = timeline();
        let places: Vec<_> =
            [500, 700, 600, 700, 400, 900].map(|time| timeline.place(Some(time))).into();
        assert_eq!(places, [0, 200, 200, 200, 200, 400]);
        assert_eq!((timeline.reordered(), timeline.period()), (2, 480));
        let (low, high) = (i64::MIN, i64::MAX);
        let mut extreme = self::timeline();
        assert_eq!([low, high, low].map(|time| extreme.place(Some(time))), [0, high, high]);
        assert_eq!(extreme.period(), high);
    }

    #[test]
    fn a_trace_without_times_is_even() {
        for (pace, devices, expected) in [
            (Pace::Rate(1000.0), 1, [0, MILLI, 2 * MILLI]),
            (Pace::Rate(1000.0), 4, [0, 4 * MILLI, 8 * MILLI]), // the rate is that of all together
            (Pace::Unpaced, 1, [0, SECOND, 2 * SECOND]),
        ] {
            let mut timeline = Timeline::new(pace, devices, false);
            assert_eq!([(); 3].map(|()| timeline.place(None)), expected, "{pace:?}");
            assert_eq!(timeline.period(), expected[2] + expected[1]);
            // Nothing accumulates.
            for _ in 3..100_000 {
                timeline.place(None);
            }
            assert_eq!(timeline.place(None), expected[1] * 100_000);
        }
        let mut timeline = Timeline::new(Pace::Rate(2.0), 1, true);
        assert_eq!(timeline.place(Some(77)), 0);
        assert_eq!(timeline.place(Some(78)), SECOND / 2);
    }

    #[test]
    fn a_trace_of_one_moment_still_takes_time_to_repeat() {
        let mut timeline = timeline();
        for _ in 0..3 {
            timeline.place(Some(5));
        }
        assert_eq!(timeline.period(), SECOND);
        assert_eq!(timeline.again(), 3);
    }

    #[test]
    fn the_clock_runs_as_fast_as_told() {
        let hour = 3600 * i128::from(SECOND);
        for (pace, expected) in [
            (Pace::Own(1.0), 3600 * SECOND),
            (Pace::Own(60.0), 60 * SECOND),
            (Pace::Own(0.5), 7200 * SECOND),
            (Pace::Rate(9.0), 3600 * SECOND),
            (Pace::Unpaced, 0),
        ] {
            let clock = Clock { start: 7, pace };
            assert_eq!(clock.due(hour), 7 + expected, "{pace:?}");
        }
        let clock = Clock { start: 7, pace: Pace::Own(1e-300) };
        assert_eq!(clock.due(hour), i64::MAX); // never
    }

    fn held(times: &[i64]) -> (Held, i64) {
        let (mut held, mut timeline) = (Held::default(), timeline());
        for time in times {
            let place = timeline.place(Some(*time));
            assert!(held.push(place, time.to_string().as_bytes()));
        }
        (held, timeline.period())
    }

    /// The moments at which devices send rows: moment, device, row.
    fn played(devices: u32, seed: u64, repeat: bool, most: usize) -> Vec<(i128, u32, String)> {
        let (held, period) = held(&[100, 110, 130, 160]);
        let mut all = Devices::new(&held, devices, seed, period, repeat);
        let mut sent = Vec::new();
        while let Some((due, device, row)) = all.next()
            && sent.len() < most
        {
            sent.push((due, device, String::from_utf8_lossy(held.row(row)).into_owned()));
            all.advance(&held);
        }
        sent
    }

    #[test]
    fn one_device_plays_from_the_beginning() {
        let row = |due, text: &str| (due, 0, text.to_owned());
        let once = [row(0, "100"), row(10, "110"), row(30, "130"), row(60, "160")];
        assert_eq!(played(1, 1, false, 100), once);
        let again = [row(80, "100"), row(90, "110")]; // the mean distance later
        assert_eq!(played(1, 1, true, 6), [&once[..], &again].concat());
    }

    #[test]
    fn devices_begin_at_phases_that_the_seed_says_and_play_all() {
        for seed in 0..20 {
            let all = played(40, seed, false, usize::MAX);
            assert_eq!(all.len(), 160, "each device plays each row once");
            assert!(all.is_sorted_by_key(|(due, ..)| *due));
            let mut firsts = Vec::new();
            for device in 0..40 {
                let mine: Vec<_> = all.iter().filter(|one| one.1 == device).collect();
                firsts.push(mine[0].2.clone());
                assert!((0..80).contains(&mine[0].0) && mine[3].0 < 80, "seed {seed}: {mine:?}");
                // From its first row on, in the distances of the trace.
                for pair in mine.windows(2) {
                    let at = |text: &str| {
                        ["100", "110", "130", "160"].iter().position(|&one| one == text)
                    };
                    let expected = [10, 20, 30, 20][at(&pair[0].2).unwrap()];
                    assert_eq!(pair[1].0 - pair[0].0, expected, "seed {seed}: {pair:?}");
                }
            }
            for row in ["100", "110", "130", "160"] {
                assert!(firsts.iter().any(|first| first == row), "seed {seed}: {firsts:?}");
            }
            // Not in lock step: many moments, although there are four rows alone.
            let mut moments: Vec<_> = all.iter().map(|one| one.0).collect();
            moments.dedup();
            assert!(moments.len() > 50, "seed {seed}: {} moments", moments.len());
        }
        assert_eq!(played(40, 7, true, 1000), played(40, 7, true, 1000));
        assert_ne!(played(40, 7, false, 1000), played(40, 8, false, 1000));
    }
}
