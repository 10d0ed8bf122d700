//! A scalar Kalman filter for a value that wanders.
//!
//! ```text
//!  p' = p + q      k = p' / (p' + r)      x = (1 - k) x + k z      p = (1 - k) p'
//! ```
//!
//! The estimate is written as a weighted mean, so that it lies between the old one and the measurement and cannot overflow.

use super::{Context, float, state};
use crate::batch::between;

/// Estimates a value from measurements.
#[derive(Debug)]
pub(crate) struct Kalman {
    pub(crate) input: usize,
    pub(crate) into: usize,
    pub(crate) q: f64,
    pub(crate) r: f64,
    pub(crate) p0: f64,
    pub(crate) x0: Option<f64>,
    pub(crate) at: usize,
}

impl Kalman {
    /// Estimate, which is missing before the first measurement unless it is given, and its variance.
    pub(super) fn initial(&self) -> Vec<u64> {
        vec![self.x0.unwrap_or(f64::NAN).to_bits(), self.p0.to_bits()]
    }

    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let batch = &mut *context.batch;
        let (input, into) = between(&mut batch.numbers, self.input, self.into);
        for row in batch.alive.iter() {
            let row = usize::from(row);
            let [estimate, variance] = state::<2>(context.words, batch.states[row], self.at);
            let (z, x) = (input[row], float(*estimate));
            if z.is_nan() {
                into[row] = x;
                continue;
            }
            if x.is_nan() {
                (*estimate, *variance) = (z.to_bits(), self.p0.to_bits());
                into[row] = z;
                continue;
            }
            let p = float(*variance) + self.q;
            let k = p / (p + self.r);
            let x = (1.0 - k) * x + k * z;
            *estimate = x.to_bits();
            *variance = ((1.0 - k) * p).to_bits();
            into[row] = x;
        }
    }
}
