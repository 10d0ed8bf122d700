//! How long to wait before something that failed is tried again.

use std::time::Duration;

/// Waits that double from a first to a longest one.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    random: Option<u64>,
}

impl Backoff {
    /// Waits of exactly `first`, twice that, and so on up to `longest`, which is `first` at least.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first, random: None }
    }

    /// As [`Backoff::new`], with each wait between half of that and all of it, so that many who failed together do not come back
    /// together. `seed` is another for each of them.
    pub const fn with_jitter(first: Duration, longest: Duration, seed: u64) -> Self {
        Self { first, longest, next: first, random: Some(seed) }
    }

    /// The wait before the next try.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.longest.max(self.first));
        let Some(random) = &mut self.random else { return wait };
        // Knuth's generator (MMIX); its upper bits are the better ones.
        *random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        wait.mul_f64(0.5 + (*random >> 33) as f64 / (1_u64 << 32) as f64)
    }

    /// It worked: the next wait is the first again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    #[test]
    fn waits_double_up_to_the_longest_and_begin_again() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        let waits: Vec<_> = (0..8).map(|_| backoff.next_wait().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        backoff.reset();
        assert_eq!(backoff.next_wait(), FIRST);
        let mut longer = Backoff::new(LONGEST, FIRST);
        assert_eq!([longer.next_wait(), longer.next_wait()], [LONGEST; 2], "the first is longer");
        let mut longest = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!([longest.next_wait(), longest.next_wait()], [Duration::MAX; 2]);
    }

    #[test]
    fn jitter_keeps_between_half_and_all_and_differs_by_seed() {
        let waits = |seed| {
            let mut backoff = Backoff::with_jitter(FIRST, LONGEST, seed);
            std::array::from_fn::<_, 100, _>(|_| backoff.next_wait())
        };
        for seed in [0, 1, 2, u64::MAX] {
            let mut exact = Backoff::new(FIRST, LONGEST);
            for wait in waits(seed) {
                let all = exact.next_wait();
                assert!((all / 2..=all).contains(&wait), "{wait:?} of {all:?}");
            }
        }
        assert_ne!(waits(1), waits(2));
        let late = &waits(7)[10..];
        assert!(late.iter().any(|wait| *wait < LONGEST * 6 / 10));
        assert!(late.iter().any(|wait| *wait > LONGEST * 9 / 10));
    }
}
