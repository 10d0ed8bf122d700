//! Seeded random numbers whose sequence never changes with a library's version.

use std::time::Duration;

/// SplitMix64. A scenario with a seed must meet the same fates years from now, so the generator is
/// written out here; the statistical needs of coin tosses and backoffs are small.
#[derive(Clone, Debug)]
pub struct Random(u64);

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

impl Random {
    /// The generator of one stream: streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream.wrapping_add(GAMMA))))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        to_unit(self.bits())
    }

    /// Uniform in `0..=last`.
    pub fn up_to(&mut self, last: u32) -> u32 {
        self.below(u64::from(last) + 1) as u32
    }

    /// Uniform in `0..end`; 0 if that is empty.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// True in `times` of `of` cases.
    pub fn ratio(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// Uniform from zero to `most`, in nanoseconds.
    pub fn time(&mut self, most: Duration) -> Duration {
        let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos(self.below(nanos + 1))
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Exponential with the given mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Uniform in `[0, 1)`, the same for the same `index` whatever was drawn before.
    pub fn unit_at(&self, index: u64) -> f64 {
        to_unit(mix(self.0 ^ mix(index.wrapping_mul(GAMMA))))
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn to_unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let first = |stream| Random::new(7, stream).bits();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        assert_ne!(first(1), Random::new(8, 1).bits());
    }

    #[test]
    fn draws_are_uniform() {
        // The chi-square statistics of 16 seeds sum to 16 * 15 degrees of freedom, whose standard
        // deviation is the root of twice that.
        let (mut chi_square, mut sum) = (0.0, 0.0);
        for seed in 0..16 {
            let mut random = Random::new(seed, 0);
            let mut counts = [0_u32; 16];
            for index in 0..16_000 {
                counts[random.up_to(15) as usize] += 1;
                sum += random.unit_at(index);
            }
            chi_square += counts.iter().map(|&n| (f64::from(n) - 1e3).powi(2) / 1e3).sum::<f64>();
        }
        assert!((chi_square - 240.0).abs() < 4.0 * 480_f64.sqrt(), "{chi_square}");
        assert!((sum / 256_000.0 - 0.5).abs() < 4.0 * 0.289 / 506.0, "{sum}");
    }
}
