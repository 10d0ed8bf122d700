//! Ordinary least squares by Householder reflections.
//!
//! Features are centred and scaled to unit length first, so that neither their units nor their distance from 0 costs digits, and so
//! that a feature that follows from the others shows as a small pivot. With ridge λ the examples are joined by one row √λ for each
//! feature, which the intercept is not in.

use std::sync::Arc;

use super::{Examples, TrainError};
use crate::{
    model::{LinearModel, Model},
    number,
};

/// The prediction that a linear model is trained for, and its inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinearTraining {
    /// The column that is predicted.
    pub target: String,
    /// The columns that it is predicted from.
    pub features: Vec<String>,
    /// How much large coefficients are held back, at least 0; relative to features of unit length. 0, the default, is ordinary least
    /// squares.
    pub ridge: f64,
}

/// A linear model and how well it fits its examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The model.
    pub model: Model,
    /// Examples.
    pub rows: usize,
    /// The share of the target's variance that the model explains; at most 1.
    pub r_squared: f64,
    /// Root of the mean square of what is left.
    pub error: f64,
}

/// A pivot below this, of features of unit length, is no more than rounding.
const PIVOT_MIN: f64 = 1e-10;

/// Learns a linear model from rows of `csv`.
///
/// # Errors
/// [`TrainError`].
pub fn linear(csv: &str, training: &LinearTraining) -> Result<Fit, TrainError> {
    if !(training.ridge >= 0.0 && training.ridge.is_finite()) {
        let found = training.ridge;
        return Err(TrainError::Setting { key: "ridge", found, bounds: "0 or more" });
    }
    let read = |text: &str| number::parse(text.as_bytes()).ok();
    let examples = Examples::parse(csv, &training.features, &training.target, read)?;
    let rows = examples.targets.len();
    let count = training.features.len();
    if rows < count + 1 && training.ridge == 0.0 {
        return Err(TrainError::TooFew { rows, coefficients: count + 1 });
    }
    let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / rows as f64;
    let mean_y = mean_of(&mut examples.targets.iter().copied());
    let mut means = Vec::new();
    let mut scales = Vec::new();
    // Column after column, ridge rows behind the examples.
    let mut columns = Vec::new();
    for feature in 0..count {
        let values = || examples.features.iter().map(|row| row[feature]);
        let mean = mean_of(&mut values());
        let length = values().map(|x| (x - mean).powi(2)).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(TrainError::Overflow);
        }
        // Rounding of a constant column is no variation.
        let is_constant = length <= PIVOT_MIN * mean.abs() * (rows as f64).sqrt();
        if is_constant && training.ridge == 0.0 {
            return Err(TrainError::Singular { column: training.features[feature].clone() });
        }
        let scale = if is_constant { 0.0 } else { 1.0 / length };
        let mut column: Vec<f64> = values().map(|x| (x - mean) * scale).collect();
        if training.ridge > 0.0 {
            column.extend(
                (0..count).map(|other| if other == feature { training.ridge.sqrt() } else { 0.0 }),
            );
        }
        means.push(mean);
        scales.push(scale);
        columns.push(column);
    }
    let mut y: Vec<f64> = examples.targets.iter().map(|y| y - mean_y).collect();
    y.resize(columns.first().map_or(rows, Vec::len), 0.0);
    let solved = solve(&mut columns, &mut y)
        .map_err(|feature| TrainError::Singular { column: training.features[feature].clone() })?;
    let coefficients: Vec<f64> = solved.iter().zip(&scales).map(|(c, scale)| c * scale).collect();
    let shift: f64 = coefficients.iter().zip(&means).map(|(c, mean)| c * mean).sum();
    let intercept = mean_y - shift;
    if !intercept.is_finite() || coefficients.iter().any(|c| !c.is_finite()) {
        return Err(TrainError::Overflow);
    }
    let mut named: Vec<_> = training.features.iter().cloned().zip(coefficients.clone()).collect();
    // As a file has them.
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let predict =
        |row: &[f64]| intercept + row.iter().zip(&coefficients).map(|(x, c)| x * c).sum::<f64>();
    let pairs = || examples.features.iter().zip(&examples.targets);
    let left: f64 = pairs().map(|(row, y)| (y - predict(row)).powi(2)).sum();
    let total: f64 = examples.targets.iter().map(|y| (y - mean_y).powi(2)).sum();
    let model = LinearModel { target: training.target.clone(), intercept, coefficients: named };
    Ok(Fit {
        model: Model::Linear(Arc::new(model)),
        rows,
        r_squared: if total > 0.0 { 1.0 - left / total } else { 1.0 },
        error: (left / rows as f64).sqrt(),
    })
}

/// Solves least squares for columns of unit length; both arguments are used up. The error is the place of a column that follows from
/// those before it.
fn solve(columns: &mut [Vec<f64>], y: &mut [f64]) -> Result<Vec<f64>, usize> {
    let count = columns.len();
    let mut diagonal = vec![0.0; count];
    for pivot in 0..count {
        let (reflected, others) = columns[pivot..].split_first_mut().expect("the pivot's column");
        let reflected = &mut reflected[pivot..];
        let length = reflected.iter().map(|x| x * x).sum::<f64>().sqrt();
        // Not comparable as well.
        if length.is_nan() || length < PIVOT_MIN {
            return Err(pivot);
        }
        // Away from the value that is there, so that nothing cancels.
        let alpha = if reflected[0] > 0.0 { -length } else { length };
        reflected[0] -= alpha;
        let square: f64 = reflected.iter().map(|x| x * x).sum();
        let reflect = |values: &mut [f64]| {
            let product: f64 = reflected.iter().zip(values.iter()).map(|(v, x)| v * x).sum();
            let factor = 2.0 * product / square;
            for (value, v) in values.iter_mut().zip(reflected.iter()) {
                *value -= factor * v;
            }
        };
        for other in others {
            reflect(&mut other[pivot..]);
        }
        reflect(&mut y[pivot..]);
        diagonal[pivot] = alpha;
    }
    let mut solution = vec![0.0; count];
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|other| columns[other][row] * solution[other]).sum();
        solution[row] = (y[row] - known) / diagonal[row];
    }
    Ok(solution)
}
