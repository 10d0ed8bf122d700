//! When a line of the log is written about something that happens again and again.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::Instant;

/// Limits the lines about one thing: one about the first, or about each of the first few, and later ones say how many there were since the
/// last.
///
/// Several threads may share it.
#[derive(Debug)]
pub struct LogLimiter {
    every_nanos: i64,
    /// As long as all lines that may follow one another at once.
    burst_nanos: i64,
    /// When all of those may be written again, if none is until then.
    full_at: AtomicI64,
    untold: AtomicU64,
}

/// A line every ten seconds.
impl Default for LogLimiter {
    fn default() -> Self {
        Self::every(Duration::from_secs(10))
    }
}

impl LogLimiter {
    /// At least `every` from one line to the next.
    pub const fn every(every: Duration) -> Self {
        Self::bursts(every, 1)
    }

    /// For lines that a stranger can cause: twenty at once, so that each of a few machines that are set up wrongly is named, and one a second
    /// from then on, however many connect.
    pub const fn of_strangers() -> Self {
        Self::bursts(Duration::from_secs(1), 20)
    }

    const fn bursts(every: Duration, most: i64) -> Self {
        let every_nanos = every.as_nanos() as i64;
        let (full_at, untold) = (AtomicI64::new(i64::MIN), AtomicU64::new(0));
        Self { every_nanos, burst_nanos: every_nanos * most, full_at, untold }
    }

    /// Counts `more`; if a line is due, how many it is about: these, and those since the last line.
    pub fn add(&self, now: Instant, more: u64) -> Option<u64> {
        self.untold.fetch_add(more, Relaxed);
        let now = now.as_nanos();
        let then = |full_at: i64| {
            let then = full_at.max(now).saturating_add(self.every_nanos);
            (then.saturating_sub(now) <= self.burst_nanos).then_some(then)
        };
        let is_mine = self.full_at.fetch_update(Relaxed, Relaxed, then).is_ok();
        // Another thread's line may have been about these already.
        if is_mine { Some(self.untold.swap(0, Relaxed)).filter(|untold| *untold > 0) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_span_is_told_with_those_since() {
        let limiter = LogLimiter::default();
        let at = |seconds| Instant::EPOCH + Duration::from_secs(seconds);
        for (seconds, expected) in
            [(0, Some(1)), (1, None), (9, None), (10, Some(3)), (19, None), (60, Some(2))]
        {
            assert_eq!(limiter.add(at(seconds), 1), expected, "{seconds}");
        }
        assert_eq!(limiter.add(at(61), 5), None);
        assert_eq!(limiter.add(at(70), 2), Some(7));
    }

    #[test]
    fn strangers_have_some_lines_at_once_and_then_a_sum_a_second() {
        let limiter = LogLimiter::of_strangers();
        let told = |millis: i64| limiter.add(Instant::from_millis(millis), 1);
        let lines = (0..1000).filter(|_| told(0) == Some(1)).count();
        assert_eq!(lines, 20);
        assert_eq!((told(999), told(1000)), (None, Some(982)));
        // 30,000 in ten more seconds are ten lines.
        let lines: Vec<u64> = (0..30_000).filter_map(|at| told(1000 + at / 3)).collect();
        assert!(lines.len() <= 10 && lines.iter().sum::<u64>() > 26_000, "{lines:?}");
        // After some quiet there are single lines again.
        assert!((0..20).all(|_| told(60_000).is_some()) && told(60_000).is_none());
    }

    #[test]
    fn threads_tell_each_of_them_once() {
        let limiter = LogLimiter::every(Duration::ZERO);
        let told: u64 = std::thread::scope(|scope| {
            let add = || (0..1000).filter_map(|_| limiter.add(Instant::EPOCH, 1)).sum::<u64>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it counts")).sum()
        });
        let left = limiter.add(Instant::EPOCH, 0);
        assert_eq!(told + left.unwrap_or(0), 4000);
    }
}
