//! The sizes of the frames as they were captured.

/// Weight of a frame in their mean, and in their mean deviation.
const WEIGHT: f64 = 1.0 / 8.0;

/// Mean and mean deviation of the sizes, smoothed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    mean: f64,
    deviation: f64,
    last: f64,
}

impl Sizes {
    /// Takes in a frame of that size.
    pub(super) fn learn(&mut self, bytes: u32) {
        self.last = f64::from(bytes.max(1));
        if self.mean == 0.0 {
            self.mean = self.last;
        }
        self.deviation += WEIGHT * ((self.last - self.mean).abs() - self.deviation);
        self.mean += WEIGHT * (self.last - self.mean);
    }

    /// A size that frames seldom exceed over that of the last frame, 1 or more.
    pub(super) fn larger_than_last(self) -> f64 {
        if self.last == 0.0 {
            1.0
        } else {
            ((self.mean + 2.0 * self.deviation) / self.last).max(1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_vary_leave_room_for_the_large_ones() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.larger_than_last(), 1.0);
        (0..40).for_each(|_| sizes.learn(100_000));
        assert_eq!(sizes.larger_than_last(), 1.0);
        (0..40).for_each(|n| sizes.learn(if n % 2 == 0 { 110_000 } else { 90_000 }));
        // The last is of 90 KB, others are of 110.
        assert!((1.2..1.4).contains(&sizes.larger_than_last()), "{sizes:?}");
    }
}
