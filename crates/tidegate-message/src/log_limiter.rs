//! When a line of the log is written about something that happens again and again.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::Instant;

/// Limits the lines about one thing: one about the first, and later ones say how many there were since the last.
///
/// Several threads may share it.
#[derive(Debug)]
pub struct LogLimiter {
    every_nanos: i64,
    next_at: AtomicI64,
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
        let (next_at, untold) = (AtomicI64::new(i64::MIN), AtomicU64::new(0));
        Self { every_nanos: every.as_nanos() as i64, next_at, untold }
    }

    /// Counts `more`; if a line is due, how many it is about: these, and those since the last line.
    pub fn add(&self, now: Instant, more: u64) -> Option<u64> {
        self.untold.fetch_add(more, Relaxed);
        let (now, next_at) = (now.as_nanos(), self.next_at.load(Relaxed));
        let then = now.saturating_add(self.every_nanos);
        let is_mine = now >= next_at
            && self.next_at.compare_exchange(next_at, then, Relaxed, Relaxed).is_ok();
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
