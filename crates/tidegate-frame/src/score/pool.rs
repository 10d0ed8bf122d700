//! Counts of many frames, pooled into one report.

use super::{BOXES_MIN, Counts, Detection, Labels, TIE};

/// Scores of adapted frames and of their originals, collected frame by frame in the order of capture.
#[derive(Clone, Debug)]
pub struct Pool {
    labels: Labels,
    frames: Vec<FrameCounts>,
}

#[derive(Clone, Copy, Debug)]
struct FrameCounts {
    original: Counts,
    adapted: Counts,
}

impl Pool {
    /// Resamplings behind a confidence interval.
    pub const RESAMPLES: usize = 1000;

    /// An empty pool.
    pub const fn new(labels: Labels) -> Self {
        Self { labels, frames: Vec::new() }
    }

    /// Adds a frame with known boxes, and what the detector found on its original and on its adapted form.
    pub fn push(&mut self, truth: &[Detection], original: &[Detection], adapted: &[Detection]) {
        let against = |found| Counts::of(truth, found, self.labels);
        self.frames.push(FrameCounts { original: against(original), adapted: against(adapted) });
    }

    /// Adds a frame without known boxes: detections on the original stand in for the truth.
    pub fn push_stand_in(&mut self, original: &[Detection], adapted: &[Detection]) {
        self.push(original, original, adapted);
    }

    /// How many frames were added.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The result over all frames. `seed` chooses the resamplings of the interval.
    pub fn report(&self, seed: u64) -> Report {
        let original: Counts = self.frames.iter().map(|f| f.original).sum();
        let adapted: Counts = self.frames.iter().map(|f| f.adapted).sum();
        Report {
            frames: self.frames.len(),
            original,
            adapted,
            normalized: normalized(original, adapted),
            interval: self.interval(seed),
        }
    }

    /// Resamples blocks of consecutive frames, since what one frame shows its neighbours show too: drawing single
    /// frames would take their repetition for evidence. Blocks of the cube root of the length, wrapping at the end, are the
    /// usual choice for a statistic of this kind (circular block bootstrap).
    fn interval(&self, seed: u64) -> Option<Interval> {
        let count = self.frames.len();
        if count < 2 {
            return None;
        }
        let block = (count as f64).cbrt().ceil() as usize;
        let mut draws = Draws(seed);
        let mut values: Vec<f64> = (0..Self::RESAMPLES)
            .filter_map(|_| {
                let (mut original, mut adapted) = (Counts::default(), Counts::default());
                let mut taken = 0;
                while taken < count {
                    let start = draws.below(count);
                    for offset in 0..block.min(count - taken) {
                        let frame = self.frames[(start + offset) % count];
                        original += frame.original;
                        adapted += frame.adapted;
                    }
                    taken += block;
                }
                normalized(original, adapted)
            })
            .collect();
        // A detector that is right on almost no original has draws without a defined value.
        if values.len() < Self::RESAMPLES / 2 {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let at = |quantile: f64| values[((values.len() - 1) as f64 * quantile).round() as usize];
        Some(Interval { low: at(0.025), high: at(0.975) })
    }
}

/// The result over a pool of frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// How many frames were compared.
    pub frames: usize,
    /// The detector on the originals.
    pub original: Counts,
    /// The detector on the adapted frames.
    pub adapted: Counts,
    /// F1 on the adapted frames over F1 on the originals; above 1 where adaptation helped. `None` if the detector
    /// is right nowhere on the originals.
    pub normalized: Option<f64>,
    /// Where the normalized F1 lies with 95 % confidence; `None` for fewer than two frames.
    pub interval: Option<Interval>,
}

impl Report {
    /// Whether the frames keep `bound`, a normalized F1. A tie within [`TIE`] keeps it.
    pub fn verdict(&self, bound: f64) -> Verdict {
        let boxes = self.original.truth();
        match self.normalized {
            _ if boxes < BOXES_MIN => Verdict::TooFewBoxes { boxes, needed: BOXES_MIN },
            None => Verdict::DetectorFindsNothing,
            Some(normalized) if normalized + TIE >= bound => Verdict::Met { normalized },
            Some(normalized) => Verdict::Missed { normalized, bound },
        }
    }
}

/// A range of normalized F1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// 2.5 % of the resamplings lie below.
    pub low: f64,
    /// 2.5 % of the resamplings lie above.
    pub high: f64,
}

/// A conclusion about an accuracy bound.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Verdict {
    /// The bound is kept.
    #[error("met: normalized F1 {normalized:.3}")]
    Met {
        /// The normalized F1.
        normalized: f64,
    },
    /// The bound is not kept.
    #[error("missed: normalized F1 {normalized:.3} is below the bound {bound:.3}")]
    Missed {
        /// The normalized F1.
        normalized: f64,
        /// The bound that was asked for.
        bound: f64,
    },
    /// There is too little to see for a verdict.
    #[error(
        "no verdict: {boxes} boxes, {needed} are needed; compare more frames or a busier scene"
    )]
    TooFewBoxes {
        /// Boxes in the truth.
        boxes: u64,
        /// Fewest for a verdict.
        needed: u64,
    },
    /// The detector is right nowhere even on the originals.
    #[error(
        "no verdict: the detector finds no true box on the originals; choose one that fits the scene"
    )]
    DetectorFindsNothing,
}

fn normalized(original: Counts, adapted: Counts) -> Option<f64> {
    let base = original.f1();
    (base > 0.0).then(|| adapted.f1() / base)
}

/// SplitMix64: a small generator whose every seed gives a full sequence.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * bound as u128) >> 64) as usize
    }
}
