//! Threshold control: on above or below a limit, off again once the value has come back by the hysteresis.

use super::{Context, state};
use crate::spec::Fires;

/// Says when a value is too high or too low.
#[derive(Debug)]
pub(crate) struct Threshold {
    pub(crate) input: usize,
    pub(crate) into: usize,
    pub(crate) above: Option<f64>,
    pub(crate) below: Option<f64>,
    pub(crate) reference: Option<usize>,
    pub(crate) hysteresis: f64,
    pub(crate) fires: Fires,
    pub(crate) at: usize,
}

impl Threshold {
    /// Whether it is on; nothing where that follows from the value alone.
    pub(super) fn initial(&self) -> Vec<u64> {
        vec![0; usize::from(self.has_state())]
    }

    fn has_state(&self) -> bool {
        self.hysteresis > 0.0 || self.fires != Fires::Every
    }

    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let end = context.batch.alive.end();
        let (input, into) = context.batch.between(self.input, self.into);
        into[..end].copy_from_slice(&input[..end]);
        // Relative to the reference, so that both limits are constants.
        if let Some(reference) = self.reference {
            let (reference, into) = context.batch.between(reference, self.into);
            for (into, reference) in into[..end].iter_mut().zip(reference) {
                *into -= reference;
            }
        }
        if !self.has_state() {
            for value in &mut context.batch.numbers[self.into][..end] {
                let fires = f64::from(u8::from(self.is_on(*value, false)));
                *value = if value.is_nan() { *value } else { fires };
            }
            return;
        }
        self.run_with_state(context);
    }

    /// On values that are relative already.
    fn run_with_state(&self, context: &mut Context<'_, '_>) {
        let batch = &mut *context.batch;
        let into = &mut batch.numbers[self.into];
        for row in batch.alive.iter() {
            let row = usize::from(row);
            let value = into[row];
            if value.is_nan() {
                continue;
            }
            let [on] = state::<1>(context.words, batch.states[row], self.at);
            let was_on = *on != 0;
            let is_on = self.is_on(value, was_on);
            *on = u64::from(is_on);
            let fires = match self.fires {
                Fires::Every => is_on,
                Fires::Rise => is_on && !was_on,
                Fires::Fall => was_on && !is_on,
                Fires::Change => is_on != was_on,
            };
            into[row] = f64::from(u8::from(fires));
        }
    }

    #[inline]
    fn is_on(&self, value: f64, was_on: bool) -> bool {
        let slack = if was_on { self.hysteresis } else { 0.0 };
        self.above.is_some_and(|above| value > above - slack)
            | self.below.is_some_and(|below| value < below + slack)
    }
}
