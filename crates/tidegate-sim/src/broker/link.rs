//! A connection as TCP gives it: bytes in order, late, in pieces of any length, until it breaks.
//!
//! ```text
//!  write ─▶ unsent ──segment by segment, at the rate──▶ transit ──after the delay──▶ unread ─▶ reader
//!                └─ the window: in flight and unread ◀── acknowledged after the delay ──┘
//! ```
//!
//! Always true: the bytes that arrive are a prefix of those that were written; a reader that does not read fills the
//! window, then the sender's buffer.

use std::{collections::VecDeque, time::Duration};

use rand::{RngExt, rngs::SmallRng};
use tidegate_broker::WRITE_BYTES_MAX;
use tidegate_message::Instant;
use tidegate_schedule::LinkState;

/// The way between a client and its broker.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// Bytes a second, either way.
    pub(super) rate: u64,
    /// One way.
    pub(super) delay: Duration,
    /// Longest piece; each is from one byte to this.
    pub(super) segment_bytes_max: usize,
    /// Bytes that the receiver's kernel holds.
    pub(super) window_bytes: usize,
}

impl Path {
    /// As good as ways are.
    pub(super) fn heal(&mut self) {
        self.rate = 10_000_000;
        self.delay = self.delay.min(Duration::from_millis(1));
    }
}

/// One direction.
#[derive(Debug)]
pub(super) struct Pipe {
    unsent: VecDeque<u8>,
    transit: VecDeque<(Instant, Vec<u8>)>,
    acknowledgements: VecDeque<(Instant, usize)>,
    in_flight: usize,
    /// Arrived, and not read.
    pub(super) unread: Vec<u8>,
    busy_until: Instant,
    stalled_until: Instant,
    /// The writer has ended it; the reader learns no earlier than this.
    ends: Option<Instant>,
    /// Something was acknowledged, so that the kernel knows a rate.
    is_measured: bool,
}

impl Pipe {
    pub(super) fn new() -> Self {
        Self {
            unsent: VecDeque::new(),
            transit: VecDeque::new(),
            acknowledgements: VecDeque::new(),
            in_flight: 0,
            unread: Vec::new(),
            busy_until: Instant::MIN,
            stalled_until: Instant::MIN,
            ends: None,
            is_measured: false,
        }
    }

    /// Takes bytes without a bound: a client's own buffer. None after the end.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if self.ends.is_none() {
            self.unsent.extend(bytes);
        }
    }

    /// Takes as many bytes as a kernel does that holds few unsent (TCP_NOTSENT_LOWAT); how many.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let count = if self.ends.is_some() { 0 } else { bytes.len().min(self.room()) };
        self.unsent.extend(&bytes[..count]);
        count
    }

    pub(super) fn is_writable(&self) -> bool {
        self.ends.is_none() && self.room() > 0
    }

    fn room(&self) -> usize {
        WRITE_BYTES_MAX.saturating_sub(self.unsent.len())
    }

    /// Moves what time has moved.
    pub(super) fn step(&mut self, now: Instant, path: &Path, random: &mut SmallRng) {
        while let Some((_, count)) = self.acknowledgements.pop_front_if(|(at, _)| *at <= now) {
            self.in_flight -= count;
            self.is_measured = true;
        }
        while let Some((at, bytes)) = self.transit.pop_front_if(|(at, _)| *at <= now) {
            self.acknowledgements.push_back((at + path.delay, bytes.len()));
            self.unread.extend(bytes);
        }
        while self.may_send(path) && self.busy_until.max(self.stalled_until) <= now {
            let room = path.window_bytes - self.in_flight - self.unread.len();
            let count = random.random_range(1..=path.segment_bytes_max);
            let count = count.min(self.unsent.len()).min(room);
            let time = Duration::from_nanos(count as u64 * 1_000_000_000 / path.rate);
            self.busy_until = now + time;
            let arrives = self.busy_until + path.delay;
            let (first, second) = self.unsent.as_slices();
            let front = &first[..count.min(first.len())];
            let segment = [front, &second[..count - front.len()]].concat();
            self.transit.push_back((arrives, segment));
            self.unsent.drain(..count);
            self.in_flight += count;
        }
    }

    fn may_send(&self, path: &Path) -> bool {
        !self.unsent.is_empty() && self.in_flight + self.unread.len() < path.window_bytes
    }

    /// When to look again, if ever by itself.
    pub(super) fn next(&self, now: Instant, path: &Path) -> Option<Instant> {
        let sends = self.may_send(path).then(|| self.busy_until.max(self.stalled_until));
        let arrives = self.transit.front().map(|(at, _)| *at);
        let acknowledged = self.acknowledgements.front().map(|(at, _)| *at);
        let ends = self.ends.filter(|at| *at > now);
        [sends, arrives, acknowledged, ends].into_iter().flatten().min()
    }

    /// Nothing moves for a while, but what is on the way arrives.
    pub(super) fn stall(&mut self, until: Instant) {
        self.stalled_until = self.stalled_until.max(until);
    }

    pub(super) fn heal(&mut self) {
        self.stalled_until = Instant::MIN;
    }

    /// The writer ends it, after what it wrote.
    pub(super) fn finish(&mut self, now: Instant) {
        self.ends.get_or_insert(now);
    }

    /// It breaks: of what is on the way some bytes arrive, and at `at` or later its end.
    pub(super) fn cut(&mut self, at: Instant, random: &mut SmallRng) {
        self.unsent.clear();
        let mut left: usize = self.transit.iter().map(|(_, bytes)| bytes.len()).sum();
        left = random.random_range(0..=left);
        for (_, bytes) in &mut self.transit {
            bytes.truncate(left);
            left -= bytes.len();
        }
        self.transit.retain(|(_, bytes)| !bytes.is_empty());
        self.ends = Some(at);
    }

    /// Whether the reader has all that will ever come, once it has read what is there.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|at| at <= now) && self.unsent.is_empty() && self.transit.is_empty()
    }

    /// Whether it holds no byte.
    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.transit.is_empty() && self.unread.is_empty()
    }

    /// The writer's kernel's state, as `TCP_INFO` gives it.
    pub(super) fn state(&self, path: &Path) -> LinkState {
        let queued = Duration::from_nanos(self.in_flight as u64 * 1_000_000_000 / path.rate);
        LinkState {
            rtt: 2 * path.delay + queued,
            rtt_min: 2 * path.delay,
            delivery_rate: if self.is_measured { path.rate } else { 0 },
            unsent_bytes: self.unsent.len() as u64,
            in_flight_bytes: self.in_flight as u64,
            ..LinkState::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn path() -> Path {
        Path {
            rate: 10_000,
            delay: Duration::from_millis(10),
            segment_bytes_max: 700,
            window_bytes: 4_000,
        }
    }

    fn run(pipe: &mut Pipe, random: &mut SmallRng, mut now: Instant) -> Instant {
        pipe.step(now, &path(), random);
        while let Some(at) = pipe.next(now, &path()) {
            now = at;
            pipe.step(now, &path(), random);
        }
        now
    }

    #[test]
    fn all_bytes_arrive_in_order_at_the_rate_and_a_window_bounds_them() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut pipe = Pipe::new();
        let bytes: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
        assert_eq!(pipe.write(&bytes), 10_000);
        let at = run(&mut pipe, &mut random, Instant::EPOCH);
        assert_eq!(pipe.unread, bytes[..4_000], "as much as the window holds");
        assert_eq!(at.since(Instant::EPOCH), Duration::from_millis(420), "and its acknowledgement");
        let mut read = std::mem::take(&mut pipe.unread);
        let mut now = at;
        while read.len() < bytes.len() {
            now = run(&mut pipe, &mut random, now);
            read.append(&mut pipe.unread);
        }
        assert_eq!(read, bytes);
        assert!(now.since(Instant::EPOCH) >= Duration::from_secs(1));
        assert_eq!(pipe.state(&path()).in_flight_bytes, 0);
    }

    #[test]
    fn a_kernel_takes_no_more_than_it_may_hold_unsent() {
        let mut pipe = Pipe::new();
        assert_eq!(pipe.write(&vec![0; 100_000]), WRITE_BYTES_MAX);
        assert!(!pipe.is_writable());
        pipe.step(Instant::EPOCH, &path(), &mut SmallRng::seed_from_u64(1));
        assert!(pipe.is_writable());
        assert!(pipe.state(&path()).unsent_bytes < WRITE_BYTES_MAX as u64);
    }

    #[test]
    fn a_cut_leaves_a_prefix() {
        for seed in 0..50 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut pipe = Pipe::new();
            let bytes: Vec<u8> = (0..3_000).map(|at| (at % 251) as u8).collect();
            pipe.put(&bytes);
            let mut now = Instant::EPOCH;
            for _ in 0..3 {
                pipe.step(now, &path(), &mut random);
                now = pipe.next(now, &path()).unwrap();
            }
            pipe.cut(now, &mut random);
            let now = run(&mut pipe, &mut random, now);
            assert!(pipe.is_over(now));
            assert!(bytes.starts_with(&pipe.unread) && pipe.unread.len() < bytes.len());
        }
    }
}
