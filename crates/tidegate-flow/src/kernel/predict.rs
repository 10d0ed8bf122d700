//! Predictions by models: linear, tree; and how far they were off.

use std::sync::Arc;

use super::Context;
use crate::{
    batch::{Place, Text},
    model::{LinearModel, Node, TreeModel},
};

/// Predicts a number: intercept plus coefficients times features.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) model: Arc<LinearModel>,
    /// The columns of the features, in the model's order.
    pub(crate) inputs: Vec<usize>,
    pub(crate) into: usize,
}

impl Linear {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let alive = context.batch.alive.clone();
        for row in alive.iter() {
            context.batch.numbers[self.into][usize::from(row)] = self.model.intercept;
        }
        // Feature after feature; one that is missing makes the prediction missing.
        for (input, (_, coefficient)) in self.inputs.iter().zip(&self.model.coefficients) {
            let (feature, into) = context.batch.between(*input, self.into);
            for row in alive.iter() {
                let row = usize::from(row);
                into[row] += coefficient * feature[row];
            }
        }
    }
}

/// Predicts a class by going down a tree.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) model: Arc<TreeModel>,
    /// The columns of the features, in the model's order.
    pub(crate) inputs: Vec<usize>,
    pub(crate) into: usize,
    /// Where the name of each class stands in the fixed text.
    pub(crate) classes: Vec<Text>,
}

impl Tree {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let alive = context.batch.alive.clone();
        for row in alive.iter() {
            let row = usize::from(row);
            let class = self.class(context, row);
            context.batch.texts[self.into][row] = class.unwrap_or_default();
        }
    }

    /// None where a feature that is asked for is missing.
    fn class(&self, context: &Context<'_, '_>, row: usize) -> Option<Text> {
        let mut at = 0;
        loop {
            match self.model.nodes[at] {
                Node::Leaf { class } => {
                    debug_assert_eq!(self.classes[class as usize].place, Place::Fixed);
                    return Some(self.classes[class as usize]);
                }
                // Each child stands behind its parent, so that this ends.
                Node::Split { feature, threshold, left, right } => {
                    let value = context.batch.numbers[self.inputs[feature as usize]][row];
                    if value.is_nan() {
                        return None;
                    }
                    at = if value <= threshold { left } else { right } as usize;
                }
            }
        }
    }
}

/// How far a prediction was off, relative to an average: (observed - predicted) / average.
#[derive(Debug)]
pub(crate) struct ErrorEstimate {
    pub(crate) observed: usize,
    pub(crate) predicted: usize,
    pub(crate) average: usize,
    pub(crate) into: usize,
}

impl ErrorEstimate {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let batch = &mut *context.batch;
        for row in batch.alive.iter() {
            let row = usize::from(row);
            let observed = batch.numbers[self.observed][row];
            let predicted = batch.numbers[self.predicted][row];
            let error = (observed - predicted) / batch.numbers[self.average][row];
            batch.numbers[self.into][row] = if error.is_finite() { error } else { f64::NAN };
        }
    }
}
