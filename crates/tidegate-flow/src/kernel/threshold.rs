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
        let alive = context.batch.alive.clone();
        let states = context.batch.states;
        let has_state = self.has_state();
        for row in alive.iter() {
            let row = usize::from(row);
            let value = context.batch.numbers[self.input][row];
            let reference = self.reference.map_or(0.0, |index| context.batch.numbers[index][row]);
            // Relative to the reference, so that both limits are constants.
            let value = value - reference;
            if value.is_nan() {
                context.batch.numbers[self.into][row] = f64::NAN;
                continue;
            }
            let mut was_on = false;
            if has_state {
                let [on] = state::<1>(context.words, states[row], self.at);
                was_on = *on != 0;
                *on = u64::from(self.is_on(value, was_on));
            }
            let is_on = self.is_on(value, was_on);
            let fires = match self.fires {
                Fires::Every => is_on,
                Fires::Rise => is_on && !was_on,
                Fires::Fall => was_on && !is_on,
                Fires::Change => is_on != was_on,
            };
            context.batch.numbers[self.into][row] = f64::from(u8::from(fires));
        }
    }

    #[inline]
    fn is_on(&self, value: f64, was_on: bool) -> bool {
        let slack = if was_on { self.hysteresis } else { 0.0 };
        self.above.is_some_and(|above| value > above - slack)
            || self.below.is_some_and(|below| value < below + slack)
    }
}
