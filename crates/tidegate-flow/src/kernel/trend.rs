//! The straight line through the last values of a key, by least squares.
//!
//! Sums are taken from the whole window for each message, around their means: running sums lose digits that a small slope on a
//! large value needs. The cost is the window's length.

use super::{Context, float, states};

/// Fits a line, and says its slope and where it leads.
#[derive(Debug)]
pub(crate) struct Trend {
    pub(crate) input: usize,
    /// The column of times, in seconds; the number of the message without one.
    pub(crate) time: Option<usize>,
    pub(crate) window: usize,
    pub(crate) ahead: f64,
    pub(crate) slope: usize,
    pub(crate) prediction: usize,
    pub(crate) at: usize,
}

impl Trend {
    /// How many values there were, and the last ones in a ring, with their times in another.
    pub(super) fn initial(&self) -> Vec<u64> {
        vec![0; self.words()]
    }

    fn words(&self) -> usize {
        1 + self.window * if self.time.is_some() { 2 } else { 1 }
    }

    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let alive = context.batch.alive.clone();
        for row in alive.iter() {
            let row = usize::from(row);
            let numbers = &mut context.batch.numbers;
            let value = numbers[self.input][row];
            let time = self.time.map_or(0.0, |column| numbers[column][row]);
            let start = context.batch.states[row];
            let state = states(context.words, start, self.at, self.words());
            let Some((count, rings)) = state.split_first_mut() else { continue };
            let (values, times) = rings.split_at_mut(self.window);
            if !value.is_nan() && !time.is_nan() {
                let place = (*count % self.window as u64) as usize;
                values[place] = value.to_bits();
                if let Some(place) = times.get_mut(place) {
                    *place = time.to_bits();
                }
                let next = count.wrapping_add(1);
                let window = self.window as u64;
                *count = if next == 2 * window { window } else { next };
            }
            let (slope, prediction) = self.fit(*count, values, times);
            numbers[self.slope][row] = slope;
            numbers[self.prediction][row] = prediction;
        }
    }

    fn fit(&self, count: u64, values: &[u64], times: &[u64]) -> (f64, f64) {
        let held = count.min(self.window as u64) as usize;
        if held < 2 {
            return (f64::NAN, f64::NAN);
        }
        // In order of arrival, from the oldest on.
        let oldest = if held < self.window { 0 } else { count as usize % self.window };
        let newest = (oldest + held - 1) % self.window;
        let x = |index: usize| match times.get(index) {
            // From the newest on, so that seconds since 1970 do not swallow the differences.
            Some(time) => float(*time) - float(times[newest]),
            None => ((index + self.window - oldest) % self.window) as f64 - (held - 1) as f64,
        };
        let y = |index: usize| float(values[index]);
        let places = || (0..held).map(|step| (oldest + step) % self.window);
        let mean_x = places().map(x).sum::<f64>() / held as f64;
        let mean_y = places().map(y).sum::<f64>() / held as f64;
        let (mut product, mut square) = (0.0, 0.0);
        for place in places() {
            let dx = x(place) - mean_x;
            product += dx * (y(place) - mean_y);
            square += dx * dx;
        }
        // All at one time: no line.
        if square == 0.0 {
            return (f64::NAN, f64::NAN);
        }
        let slope = product / square;
        (slope, mean_y + slope * (self.ahead - mean_x))
    }
}
