//! Average, minimum, maximum and count: since the beginning, decaying, or over a window.
//!
//! A sliding window of n values is two runs: the rest of the last n-block, as aggregates from each place to its end, and the
//! block at hand from its beginning. A value is combined twice and never taken back out, so that no error of a sum outlives its
//! window; once in n values the block is turned into such aggregates. A sliding window of time is made of panes.

use super::{Context, Ending, float, states};
use crate::batch::between;

/// Aggregates the values of a key.
#[derive(Debug)]
pub(crate) struct Aggregate {
    pub(crate) operation: Operation,
    /// None counts messages.
    pub(crate) input: Option<usize>,
    pub(crate) into: usize,
    pub(crate) window: Window,
    pub(crate) at: usize,
}

/// The aggregate to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Average,
    Min,
    Max,
    Count,
}

/// Over what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Window {
    /// All since the beginning.
    Running,
    /// All, older ones counting ever less: the weight of the newest.
    Decay(f64),
    TumblingCount {
        count: u64,
        hold: bool,
    },
    SlidingCount {
        count: u64,
    },
    /// `time` is the column that messages are placed by, in seconds; when they arrive without one.
    TumblingTime {
        nanos: i64,
        time: Option<usize>,
        hold: bool,
    },
    SlidingTime {
        pane_nanos: i64,
        panes: u64,
        time: Option<usize>,
    },
}

/// No window has begun.
const NEVER: i64 = i64::MIN;
const PANE_WORDS: usize = 3;

impl Operation {
    /// The value that combines with any value to that value.
    const fn identity(self) -> f64 {
        match self {
            Self::Average | Self::Count => 0.0,
            Self::Min => f64::INFINITY,
            Self::Max => f64::NEG_INFINITY,
        }
    }

    #[inline]
    fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Average => a + b,
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::Count => 0.0,
        }
    }

    /// The result from `count` values that were combined; missing without any, but for a count.
    #[inline]
    fn result(self, count: u64, combined: f64) -> f64 {
        match self {
            Self::Count => count as f64,
            _ if count == 0 => f64::NAN,
            Self::Average => combined / count as f64,
            Self::Min | Self::Max => combined,
        }
    }
}

impl Aggregate {
    pub(super) fn initial(&self) -> Vec<u64> {
        let identity = self.operation.identity().to_bits();
        let missing = f64::NAN.to_bits();
        match self.window {
            Window::Running => match self.operation {
                Operation::Average => vec![0, 0],
                Operation::Min | Operation::Max => vec![missing],
                Operation::Count => vec![0],
            },
            Window::Decay(_) => vec![missing],
            Window::TumblingCount { .. } => vec![0, identity, missing],
            Window::SlidingCount { count } => {
                let ring = if self.operation == Operation::Count { 0 } else { count as usize };
                let mut words = vec![0, identity];
                words.resize(2 + ring, 0);
                words
            }
            Window::TumblingTime { .. } => vec![NEVER.cast_unsigned(), 0, identity, missing],
            Window::SlidingTime { panes, .. } => {
                let mut words = vec![NEVER.cast_unsigned()];
                for _ in 0..panes {
                    words.extend([NEVER.cast_unsigned(), 0, identity]);
                }
                words
            }
        }
    }

    /// Of a window that is done at a time, in state as [`tumble_by_time`] keeps it.
    pub(super) fn ending(&self) -> Option<Ending> {
        match self.window {
            Window::TumblingTime { nanos, time, .. } => {
                Some(Ending { at: self.at, nanos, by_field: time.is_some() })
            }
            _ => None,
        }
    }

    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        match self.window {
            Window::Running => self.running(context),
            Window::Decay(alpha) => {
                self.each(context, 1, |state, value, _, _| decay(state, value, alpha));
            }
            Window::TumblingCount { count, hold } => {
                self.each(context, 3, |state, value, _, _| {
                    tumble_by_count(self.operation, state, value, count, hold)
                });
            }
            Window::SlidingCount { count } => {
                let ring = if self.operation == Operation::Count { 0 } else { count as usize };
                self.each(context, 2 + ring, |state, value, _, _| {
                    slide_by_count(self.operation, state, value, count)
                });
            }
            Window::TumblingTime { nanos, time, hold } => {
                self.timed(context, time, 4, |state, value, at, late| {
                    let window = at.div_euclid(nanos);
                    tumble_by_time(self.operation, state, value, window, hold, late)
                });
            }
            Window::SlidingTime { pane_nanos, panes, time } => {
                let words = 1 + PANE_WORDS * panes as usize;
                self.timed(context, time, words, |state, value, at, late| {
                    let pane = at.div_euclid(pane_nanos);
                    slide_by_time(self.operation, state, value, pane, panes, late)
                });
            }
        }
    }

    /// The case that flows use most, with the operation asked for once.
    fn running(&self, context: &mut Context<'_, '_>) {
        match self.operation {
            Operation::Average => self.each(context, 2, |state, value, _, _| {
                let [count, mean] = state else { return f64::NAN };
                if !value.is_nan() {
                    // A float as well, since it is divided by; good to 2^53.
                    *count = (float(*count) + 1.0).to_bits();
                    // As shares of both, which cannot overflow; the difference of two large values might.
                    let share = 1.0 / float(*count);
                    let old = float(*mean);
                    *mean = (old + (value * share - old * share)).to_bits();
                }
                if float(*count) > 0.0 { float(*mean) } else { f64::NAN }
            }),
            Operation::Min => self.each(context, 1, |state, value, _, _| {
                // The minimum with what is missing is the other.
                state[0] = float(state[0]).min(value).to_bits();
                float(state[0])
            }),
            Operation::Max => self.each(context, 1, |state, value, _, _| {
                state[0] = float(state[0]).max(value).to_bits();
                float(state[0])
            }),
            Operation::Count => self.each(context, 1, |state, value, _, _| {
                state[0] = state[0].wrapping_add(u64::from(!value.is_nan()));
                state[0] as f64
            }),
        }
    }

    /// Calls `step` with each row's state and value, and writes what it says.
    #[inline]
    fn each(
        &self,
        context: &mut Context<'_, '_>,
        words: usize,
        mut step: impl FnMut(&mut [u64], f64, i64, &mut u64) -> f64,
    ) {
        let mut late = 0;
        // A message counts, time does not.
        let one = if context.silence.is_some() { f64::NAN } else { 1.0 };
        let batch = &mut *context.batch;
        let mut run = |row: u8, value: f64| {
            let start = batch.states[usize::from(row)];
            step(states(context.words, start, self.at, words), value, 0, &mut late)
        };
        match self.input {
            Some(input) => {
                let (from, into) = between(&mut batch.numbers, input, self.into);
                for row in batch.alive.iter() {
                    into[usize::from(row)] = run(row, from[usize::from(row)]);
                }
            }
            None => {
                let into = &mut batch.numbers[self.into];
                for row in batch.alive.iter() {
                    into[usize::from(row)] = run(row, one);
                }
            }
        }
    }

    /// As [`Aggregate::each`], with the time of each row in nanoseconds. A row without a time counts as one without a value.
    fn timed(
        &self,
        context: &mut Context<'_, '_>,
        time: Option<usize>,
        words: usize,
        mut step: impl FnMut(&mut [u64], f64, i64, &mut u64) -> f64,
    ) {
        let starts = context.batch.states;
        let one = if context.silence.is_some() { f64::NAN } else { 1.0 };
        let ending = self.ending();
        let mut late = 0;
        let alive = &context.batch.alive;
        let numbers = &mut context.batch.numbers;
        for row in alive.iter() {
            let row = usize::from(row);
            let mut value = self.input.map_or(one, |input| numbers[input][row]);
            let at = match time {
                None => context.now.as_nanos(),
                Some(column) => {
                    let seconds = numbers[column][row];
                    if seconds.is_nan() {
                        value = f64::NAN;
                        NEVER
                    } else {
                        (seconds * 1e9) as i64
                    }
                }
            };
            let state = states(context.words, starts[row], self.at, words);
            // By a field's time a window is over once nothing came for as long as it lasts.
            let at = match (context.silence, ending) {
                (Some(silence), Some(Ending { nanos, by_field: true, .. }))
                    if state[1] > 0 && silence[row] > nanos =>
                {
                    state[0].cast_signed().saturating_add(1).saturating_mul(nanos)
                }
                _ => at,
            };
            numbers[self.into][row] = step(state, value, at, &mut late);
        }
        context.stats.late += late;
    }
}

#[inline]
fn decay(state: &mut [u64], value: f64, alpha: f64) -> f64 {
    let mean = float(state[0]);
    let new = if mean.is_nan() { value } else { (1.0 - alpha) * mean + alpha * value };
    if !value.is_nan() {
        state[0] = new.to_bits();
    }
    float(state[0])
}

fn tumble_by_count(
    operation: Operation,
    state: &mut [u64],
    value: f64,
    size: u64,
    hold: bool,
) -> f64 {
    let [count, combined, held] = state else { return f64::NAN };
    let mut result = f64::NAN;
    if !value.is_nan() {
        *count = count.wrapping_add(1);
        *combined = operation.combine(float(*combined), value).to_bits();
        if *count >= size {
            result = operation.result(*count, float(*combined));
            *held = result.to_bits();
            (*count, *combined) = (0, operation.identity().to_bits());
        }
    }
    if hold { float(*held) } else { result }
}

fn slide_by_count(operation: Operation, state: &mut [u64], value: f64, size: u64) -> f64 {
    let [count, combined, ring @ ..] = state else { return f64::NAN };
    if operation == Operation::Count {
        *count = count.saturating_add(u64::from(!value.is_nan())).min(size);
        return *count as f64;
    }
    let result = |seen: u64, place: u64, combined: f64, ring: &[u64]| {
        // The contribution of the block before: none in the first block, and none once this one is full.
        let combined = match ring.get(place as usize) {
            Some(rest) if seen > size => operation.combine(float(*rest), combined),
            _ => combined,
        };
        operation.result(seen.min(size), combined)
    };
    if value.is_nan() {
        let place = if *count == 0 { 0 } else { (*count - 1) % size + 1 };
        return result(*count, place, float(*combined), ring);
    }
    let place = *count % size;
    if place == 0 {
        for index in (1..ring.len()).rev() {
            ring[index - 1] =
                operation.combine(float(ring[index - 1]), float(ring[index])).to_bits();
        }
        *combined = operation.identity().to_bits();
        // Only the place in the block and that there was one before count.
        if *count > size {
            *count = size;
        }
    }
    *combined = operation.combine(float(*combined), value).to_bits();
    ring[place as usize] = value.to_bits();
    *count = count.wrapping_add(1);
    result(*count, place + 1, float(*combined), ring)
}

fn tumble_by_time(
    operation: Operation,
    state: &mut [u64],
    value: f64,
    window: i64,
    hold: bool,
    late: &mut u64,
) -> f64 {
    let [current, count, combined, held] = state else { return f64::NAN };
    let mut result = f64::NAN;
    if window > current.cast_signed() {
        if *count > 0 {
            result = operation.result(*count, float(*combined));
            *held = result.to_bits();
        }
        *current = window.cast_unsigned();
        (*count, *combined) = (0, operation.identity().to_bits());
    }
    if !value.is_nan() {
        if window < current.cast_signed() {
            *late += 1;
        } else {
            *count = count.wrapping_add(1);
            *combined = operation.combine(float(*combined), value).to_bits();
        }
    }
    if hold { float(*held) } else { result }
}

fn slide_by_time(
    operation: Operation,
    state: &mut [u64],
    value: f64,
    pane: i64,
    pane_count: u64,
    late: &mut u64,
) -> f64 {
    let Some((latest, panes)) = state.split_first_mut() else { return f64::NAN };
    *latest = latest.cast_signed().max(pane).cast_unsigned();
    let oldest = latest.cast_signed().saturating_sub(pane_count.cast_signed() - 1);
    if !value.is_nan() {
        if pane < oldest {
            *late += 1;
        } else {
            let place = pane.rem_euclid(pane_count.cast_signed()) as usize * PANE_WORDS;
            let [number, count, combined] = &mut panes[place..place + PANE_WORDS] else {
                return f64::NAN;
            };
            if number.cast_signed() != pane {
                *number = pane.cast_unsigned();
                (*count, *combined) = (0, operation.identity().to_bits());
            }
            *count = count.wrapping_add(1);
            *combined = operation.combine(float(*combined), value).to_bits();
        }
    }
    let mut total = 0_u64;
    let mut result = operation.identity();
    for pane in panes.chunks_exact(PANE_WORDS) {
        if (oldest..=latest.cast_signed()).contains(&pane[0].cast_signed()) && pane[1] > 0 {
            total = total.wrapping_add(pane[1]);
            result = operation.combine(result, float(pane[2]));
        }
    }
    operation.result(total, result)
}
