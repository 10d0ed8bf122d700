//! Decision trees by recursive splitting (CART) on Gini's impurity.
//!
//! A split goes between two neighbouring values of a feature, at their middle, where the impurity of both sides, each weighed by its
//! examples, is least. Of equal splits the first feature's counts, and of its own the lowest. Impurities are compared as whole
//! numbers, so that no rounding chooses.

use std::sync::Arc;

use super::{Examples, TrainError};
use crate::model::{Model, Node, TreeModel};

/// The prediction that a tree is trained for, and its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeTraining {
    /// The column that is predicted: a class, as text.
    pub target: String,
    /// The columns that it is predicted from.
    pub features: Vec<String>,
    /// Most questions on the way to a leaf, 1 to 32; 5 by default.
    pub depth_max: u32,
    /// Fewest examples of a leaf, at least 1; 5 by default.
    pub leaf_rows_min: usize,
}

impl Default for TreeTraining {
    fn default() -> Self {
        Self { target: String::new(), features: Vec::new(), depth_max: 5, leaf_rows_min: 5 }
    }
}

/// A tree and how well it fits its examples.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeFit {
    /// The model.
    pub model: Model,
    /// Examples.
    pub rows: usize,
    /// The share of examples that it gives their own class.
    pub accuracy: f64,
}

/// Learns a tree from rows of `csv`.
///
/// # Errors
/// [`TrainError`].
pub fn tree(csv: &str, training: &TreeTraining) -> Result<TreeFit, TrainError> {
    if !(1..=32).contains(&training.depth_max) {
        let found = f64::from(training.depth_max);
        return Err(TrainError::Setting { key: "depth_max", found, bounds: "1 to 32" });
    }
    if training.leaf_rows_min == 0 {
        return Err(TrainError::Setting { key: "leaf_rows_min", found: 0.0, bounds: "1 or more" });
    }
    let read = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let examples = Examples::parse(csv, &training.features, &training.target, read)?;
    let mut classes = examples.targets.clone();
    classes.sort();
    classes.dedup();
    let class_of = |name: &String| classes.binary_search(name).expect("each class is there");
    let labels: Vec<usize> = examples.targets.iter().map(class_of).collect();
    let mut grower = Grower {
        features: &examples.features,
        labels: &labels,
        class_count: classes.len(),
        training,
        nodes: Vec::new(),
    };
    let mut rows: Vec<usize> = (0..labels.len()).collect();
    grower.grow(&mut rows, 0);
    let nodes = grower.nodes;
    let model = TreeModel {
        target: training.target.clone(),
        features: training.features.clone(),
        classes,
        nodes,
    };
    let right = examples
        .features
        .iter()
        .zip(&examples.targets)
        .filter(|(features, class)| model.predict(features) == Some(class.as_str()));
    let accuracy = right.count() as f64 / labels.len() as f64;
    Ok(TreeFit { model: Model::Tree(Arc::new(model)), rows: labels.len(), accuracy })
}

struct Grower<'a> {
    features: &'a [Vec<f64>],
    labels: &'a [usize],
    class_count: usize,
    training: &'a TreeTraining,
    nodes: Vec<Node>,
}

/// The best split so far.
struct Split {
    feature: usize,
    threshold: f64,
    /// Σ over both sides of (Σ over classes of count²) / examples, as a fraction: the larger the purer.
    purity: (u128, u128),
}

impl Grower<'_> {
    /// Grows the tree of `rows`, and returns the place of its root. Goes as deep as `depth_max` at most.
    fn grow(&mut self, rows: &mut [usize], depth: u32) -> u32 {
        let at = self.nodes.len();
        let counts = self.counts(rows);
        let class = (0..self.class_count).rev().max_by_key(|class| counts[*class]).unwrap_or(0);
        self.nodes.push(Node::Leaf { class: class as u32 });
        let is_pure = counts[class] as usize == rows.len();
        if is_pure || depth == self.training.depth_max {
            return at as u32;
        }
        let Some(split) = self.best_split(rows, &counts) else { return at as u32 };
        let is_left = |row: &usize| self.features[*row][split.feature] <= split.threshold;
        // Stable, so that the order of rows does not hang on how they were sorted.
        rows.sort_by_key(|row| (!is_left(row), *row));
        let middle = rows.partition_point(is_left);
        let (left_rows, right_rows) = rows.split_at_mut(middle);
        let left = self.grow(left_rows, depth + 1);
        let right = self.grow(right_rows, depth + 1);
        let feature = split.feature as u32;
        self.nodes[at] = Node::Split { feature, threshold: split.threshold, left, right };
        at as u32
    }

    fn counts(&self, rows: &[usize]) -> Vec<u64> {
        let mut counts = vec![0; self.class_count];
        for row in rows {
            counts[self.labels[*row]] += 1;
        }
        counts
    }

    /// The purest split, if one is purer than none.
    fn best_split(&self, rows: &[usize], counts: &[u64]) -> Option<Split> {
        let count = rows.len() as u64;
        let squares = |counts: &[u64]| counts.iter().map(|count| count * count).sum::<u64>();
        let mut best = Split {
            feature: usize::MAX,
            threshold: 0.0,
            purity: (squares(counts).into(), count.into()),
        };
        let mut order = rows.to_vec();
        for feature in 0..self.training.features.len() {
            let value = |row: &usize| self.features[*row][feature];
            order.sort_by(|a, b| value(a).total_cmp(&value(b)).then(a.cmp(b)));
            let mut left = vec![0_u64; self.class_count];
            let mut right = counts.to_vec();
            let (mut left_squares, mut right_squares) = (0_u64, squares(counts));
            for place in 1..order.len() {
                let class = self.labels[order[place - 1]];
                // The square of n + 1 is that of n and 2n + 1.
                left_squares += 2 * left[class] + 1;
                left[class] += 1;
                right_squares -= 2 * right[class] - 1;
                right[class] -= 1;
                let (low, high) = (value(&order[place - 1]), value(&order[place]));
                let smallest = place.min(order.len() - place);
                if low >= high || smallest < self.training.leaf_rows_min {
                    continue;
                }
                let (lefts, rights) = (place as u64, count - place as u64);
                let purity = (
                    u128::from(left_squares) * u128::from(rights)
                        + u128::from(right_squares) * u128::from(lefts),
                    u128::from(lefts) * u128::from(rights),
                );
                if is_more(purity, best.purity) {
                    // Halves first, so that two large values do not overflow.
                    let middle = low / 2.0 + high / 2.0;
                    // Between neighbouring floats there is no middle: the lower one parts them as well.
                    let threshold = if middle > low && middle < high { middle } else { low };
                    best = Split { feature, threshold, purity };
                }
            }
        }
        (best.feature != usize::MAX).then_some(best)
    }
}

/// Whether fraction `a` is more than `b`. Products grow with the fifth power of the examples: with 2^25 they just fit.
fn is_more(a: (u128, u128), b: (u128, u128)) -> bool {
    a.0 * b.1 > b.0 * a.1
}
