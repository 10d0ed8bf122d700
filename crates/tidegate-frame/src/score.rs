//! Detection scores: exclusive best-IoU matching, F1, and how sure it is.
//!
//! ```text
//!  truth ─────┐
//!  original ──┼─▶ match per frame ─▶ counts per frame ─▶ pooled F1 ─▶ adapted F1 / original F1 ─▶ verdict
//!  adapted ───┘                            └─▶ resampled in blocks ─▶ confidence interval
//! ```
//!
//! Accuracy is that of the Mez paper (section 4): boxes match one to one at an intersection over union of
//! 0.5 or more, the best pair first; true and false positives are added up over all frames before F1 is
//! taken; and the F1 on adapted frames is divided by the F1 on the originals. Without ground truth the
//! originals' detections stand in for it, which makes the originals' F1 one.
//!
//! Always true: every F1 lies in 0 to 1; a box is matched at most once; the same frames and seed give the
//! same report, bit for bit.

use std::{
    iter::Sum,
    ops::{Add, AddAssign},
};

use tidegate_message::Detection;

mod pool;

pub use pool::{Interval, Pool, Report, Verdict};

/// Two boxes show the same thing if their intersection over union is at least this.
pub const IOU_MIN: f64 = 0.5;

/// Fewer boxes than this carry no verdict on accuracy.
pub const BOXES_MIN: u64 = 50;

/// Two accuracies closer than this are a tie, and a tie with the bound keeps it.
pub const TIE: f64 = 0.005;

/// Whether boxes of different labels may match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// Only boxes of the same label match: one detector against itself.
    #[default]
    Same,
    /// Labels are not looked at: a detector against truth that uses other words.
    Any,
}

/// Outcomes of matching, to be added up over frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Boxes found that are true.
    pub true_positives: u64,
    /// Boxes found that are not.
    pub false_positives: u64,
    /// True boxes that were not found.
    pub false_negatives: u64,
}

impl Counts {
    /// The score of `found` in one frame whose true boxes are `truth`. Both are in pixels of the same frame size.
    pub fn of(truth: &[Detection], found: &[Detection], labels: Labels) -> Self {
        let matched = matches(truth, found, labels).len();
        Self {
            true_positives: matched as u64,
            false_positives: (found.len() - matched) as u64,
            false_negatives: (truth.len() - matched) as u64,
        }
    }

    /// True boxes in all.
    pub const fn truth(self) -> u64 {
        self.true_positives + self.false_negatives
    }

    /// Share of what was found that is true, 1 if nothing was found.
    pub fn precision(self) -> f64 {
        share(self.true_positives, self.true_positives + self.false_positives)
    }

    /// Share of what is true that was found, 1 if nothing is true.
    pub fn recall(self) -> f64 {
        share(self.true_positives, self.truth())
    }

    /// Harmonic mean of precision and recall, 1 if there was nothing to find and nothing was found.
    pub fn f1(self) -> f64 {
        let right = 2 * self.true_positives;
        share(right, right + self.false_positives + self.false_negatives)
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            true_positives: self.true_positives + other.true_positives,
            false_positives: self.false_positives + other.false_positives,
            false_negatives: self.false_negatives + other.false_negatives,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

/// Pairs `(index in truth, index in found)` that match: exclusive, the highest intersection over union first.
///
/// Of pairs that overlap equally, the one earlier in `truth`, then earlier in `found`, wins, so that the result
/// depends on the order of the boxes only where boxes are equal.
pub fn matches(truth: &[Detection], found: &[Detection], labels: Labels) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for (t, known) in truth.iter().enumerate() {
        for (f, seen) in found.iter().enumerate() {
            let iou = known.rect.iou(seen.rect);
            if iou >= IOU_MIN && (labels == Labels::Any || known.label == seen.label) {
                pairs.push((iou, t, f));
            }
        }
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (mut truth_free, mut found_free) = (vec![true; truth.len()], vec![true; found.len()]);
    pairs.retain(|&(_, t, f)| {
        let both_free = truth_free[t] && found_free[f];
        if both_free {
            (truth_free[t], found_free[f]) = (false, false);
        }
        both_free
    });
    pairs.into_iter().map(|(_, t, f)| (t, f)).collect()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests;
