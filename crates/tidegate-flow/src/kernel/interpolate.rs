//! Fills in a missing value from the last ones of its key.

use super::{Context, float, states};
use crate::spec::InterpolationMethod;

/// Fills in missing values where they stand.
#[derive(Debug)]
pub(crate) struct Interpolate {
    pub(crate) input: usize,
    pub(crate) method: InterpolationMethod,
    pub(crate) window: usize,
    pub(crate) at: usize,
}

/// Words of the line: number of the message, and numbers and values of the last two that had one.
const LINE_WORDS: usize = 5;

impl Interpolate {
    /// For the mean: how many values there were, and the last ones in a ring.
    pub(super) fn initial(&self) -> Vec<u64> {
        match self.method {
            InterpolationMethod::Mean => vec![0; 1 + self.window],
            InterpolationMethod::Linear => {
                let missing = f64::NAN.to_bits();
                vec![0, 0, missing, 0, missing]
            }
        }
    }

    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let alive = context.batch.alive.clone();
        let starts = context.batch.states;
        let values = &mut context.batch.numbers[self.input];
        for row in alive.iter() {
            let row = usize::from(row);
            let value = &mut values[row];
            match self.method {
                InterpolationMethod::Mean => {
                    let state = states(context.words, starts[row], self.at, 1 + self.window);
                    mean(state, value);
                }
                InterpolationMethod::Linear => {
                    line(states(context.words, starts[row], self.at, LINE_WORDS), value);
                }
            }
        }
    }
}

fn mean(state: &mut [u64], value: &mut f64) {
    let Some((count, ring)) = state.split_first_mut() else { return };
    let held = (*count).min(ring.len() as u64) as usize;
    if value.is_nan() {
        let sum: f64 = ring[..held].iter().map(|word| float(*word)).sum();
        *value = sum / held as f64; // without any value 0 / 0: still missing
    } else {
        let place = (*count % ring.len() as u64) as usize;
        ring[place] = value.to_bits();
        // From twice the window on only the place in the ring counts.
        let next = count.wrapping_add(1);
        *count = if next == 2 * ring.len() as u64 { ring.len() as u64 } else { next };
    }
}

fn line(state: &mut [u64], value: &mut f64) {
    let [number, first_at, first, second_at, second] = state else { return };
    *number = number.wrapping_add(1);
    if value.is_nan() {
        let (y1, y2) = (float(*first), float(*second));
        *value = if y1.is_nan() {
            y2
        } else {
            let step = second_at.wrapping_sub(*first_at) as f64;
            y2 + (y2 - y1) * (number.wrapping_sub(*second_at) as f64 / step)
        };
        if !value.is_finite() {
            *value = f64::NAN;
        }
    } else {
        (*first_at, *first) = (*second_at, *second);
        (*second_at, *second) = (*number, value.to_bits());
    }
}
