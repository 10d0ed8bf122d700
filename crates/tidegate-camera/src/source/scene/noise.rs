//! Repeatable randomness for drawing: draws from a seed, and smooth noise over the plane.

/// SplitMix64: a number from a number, well mixed.
pub(super) const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequence of draws.
#[derive(Clone, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    /// The sequence of that seed; `stream` tells sequences of one seed apart.
    pub(super) const fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream)))
    }

    /// 0 to 1, 1 excluded.
    pub(super) fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) >> 40) as f32 / (1u64 << 24) as f32
    }

    pub(super) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// One of 0 to `count` - 1.
    pub(super) fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f32) as usize).min(count - 1)
    }

    pub(super) fn chance(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// About normal, mean 0, deviation 1, within ±3.5.
    pub(super) fn normal(&mut self) -> f32 {
        (0..4).map(|_| self.unit() - 0.5).sum::<f32>() * 1.732
    }
}

/// A draw for a cell of the plane, 0 to 1.
pub(super) fn cell(x: i32, y: i32, seed: u32) -> f32 {
    let both = (u64::from(x as u32) << 32) | u64::from(y as u32);
    (mix(both ^ (u64::from(seed) << 17)) >> 40) as f32 / (1u64 << 24) as f32
}

/// Smooth noise with features one unit apart, 0 to 1.
pub(super) fn smooth(x: f32, y: f32, seed: u32) -> f32 {
    let (x0, y0) = (x.floor(), y.floor());
    let ease = |t: f32| t * t * (3.0 - 2.0 * t);
    let (u, v) = (ease(x - x0), ease(y - y0));
    let at = |dx: i32, dy: i32| cell(x0 as i32 + dx, y0 as i32 + dy, seed);
    let across = |dy: i32| at(0, dy) + (at(1, dy) - at(0, dy)) * u;
    across(0) + (across(1) - across(0)) * v
}

/// Smooth noise with finer and fainter features added `octaves` times, 0 to 1.
pub(super) fn cloudy(x: f32, y: f32, octaves: u32, seed: u32) -> f32 {
    let (mut sum, mut weight, mut scale) = (0.0, 0.0, 1.0);
    for octave in 0..octaves {
        let share = 1.0 / scale;
        sum += share * smooth(x * scale, y * scale, seed.wrapping_add(octave * 7919));
        weight += share;
        scale *= 2.0;
    }
    sum / weight
}
