//! The operators at work: each is a loop over the rows that are still alive.
//!
//! Which operator it is, is asked once for a batch. State is words of the row's key: floats by their bits, counts as they are.
//!
//! Always true: an operator writes to no column but its own (interpolation fills in its input); any words that a snapshot may bring
//! are state that it can continue from.

mod aggregate;
mod annotate;
mod bloom;
mod emit;
mod filter;
mod interpolate;
mod kalman;
mod predict;
mod sketch;
mod threshold;
mod trend;

use tidegate_message::Instant;

pub(crate) use self::{
    aggregate::{Aggregate, Operation, Window},
    annotate::{Annotate, Input as AnnotateInput},
    bloom::{BITS_MAX, Bloom},
    emit::{Notify, Replace},
    filter::{Keep, Part, Range, StringMatch},
    interpolate::Interpolate,
    kalman::Kalman,
    predict::{ErrorEstimate, Linear, Tree},
    sketch::{Distinct, GROUPS_MAX, Moment},
    threshold::Threshold,
    trend::Trend,
};
use crate::{
    batch::{BATCH_MAX, Batch, Column},
    hash,
    message::{Message, Output},
    stats::Stats,
    template::Template,
};

/// An operator, ready to run.
#[derive(Debug)]
pub(crate) enum Kernel {
    Range(Range),
    Bloom(Bloom),
    StringMatch(StringMatch),
    Keep(Keep),
    Annotate(Annotate),
    Interpolate(Interpolate),
    Kalman(Kalman),
    Aggregate(Aggregate),
    Distinct(Distinct),
    Moment(Moment),
    Trend(Trend),
    Linear(Linear),
    Tree(Tree),
    ErrorEstimate(ErrorEstimate),
    Threshold(Threshold),
    Notify(Notify),
    Replace(Replace),
}

/// A window that ends by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) at: usize,
    pub(crate) nanos: i64,
    pub(crate) by_field: bool,
}

impl Ending {
    /// Whether the window of a key that was silent for so long is over, with values in it.
    pub(crate) fn is_over(self, state: &[u64], now: i64, silence: i64) -> bool {
        let [window, count, ..] = state[self.at..] else { return false };
        let passed = if self.by_field {
            silence > self.nanos
        } else {
            now.div_euclid(self.nanos) > window.cast_signed()
        };
        count > 0 && passed
    }
}

/// The data that an operator works on.
pub(crate) struct Context<'a, 'm> {
    pub(crate) now: Instant,
    /// The same by the wall clock.
    pub(crate) wall: Instant,
    pub(crate) messages: &'a [Message<'m>],
    pub(crate) batch: &'a mut Batch,
    /// The words of all keys; a row's begin at its place in `batch.states`.
    pub(crate) words: &'a mut [u64],
    pub(crate) fixed: &'a [u8],
    /// Of the hashes of values.
    pub(crate) sketch_seed: u64,
    /// The topic of dead letters, where what cannot be done is published there.
    pub(crate) dead_letter: Option<&'a Template>,
    /// Of rows that stand for no message, but for time that has passed: how long their keys were silent, in nanoseconds.
    pub(crate) silence: Option<&'a [i64; BATCH_MAX]>,
    pub(crate) output: &'a mut Output,
    /// The place of the batch's first message in the output.
    pub(crate) first: usize,
    pub(crate) stats: &'a mut Stats,
}

impl Kernel {
    /// Runs over the rows that are alive.
    pub(crate) fn run(&mut self, context: &mut Context<'_, '_>) {
        match self {
            Self::Range(kernel) => kernel.run(context),
            Self::Bloom(kernel) => kernel.run(context),
            Self::StringMatch(kernel) => kernel.run(context),
            Self::Keep(kernel) => kernel.run(context),
            Self::Annotate(kernel) => kernel.run(context),
            Self::Interpolate(kernel) => kernel.run(context),
            Self::Kalman(kernel) => kernel.run(context),
            Self::Aggregate(kernel) => kernel.run(context),
            Self::Distinct(kernel) => kernel.run(context),
            Self::Moment(kernel) => kernel.run(context),
            Self::Trend(kernel) => kernel.run(context),
            Self::Linear(kernel) => kernel.run(context),
            Self::Tree(kernel) => kernel.run(context),
            Self::ErrorEstimate(kernel) => kernel.run(context),
            Self::Threshold(kernel) => kernel.run(context),
            Self::Notify(kernel) => kernel.run(context),
            Self::Replace(kernel) => kernel.run(context),
        }
    }

    /// The state of a new key: as many words as it needs of each. Empty for operators without.
    pub(crate) fn initial(&self) -> Vec<u64> {
        match self {
            Self::Interpolate(kernel) => kernel.initial(),
            Self::Kalman(kernel) => kernel.initial(),
            Self::Aggregate(kernel) => kernel.initial(),
            Self::Distinct(kernel) => kernel.initial(),
            Self::Moment(kernel) => kernel.initial(),
            Self::Trend(kernel) => kernel.initial(),
            Self::Threshold(kernel) => kernel.initial(),
            _ => Vec::new(),
        }
    }

    /// Says where in a key's state its words begin.
    pub(crate) fn place(&mut self, at: usize) {
        match self {
            Self::Interpolate(kernel) => kernel.at = at,
            Self::Kalman(kernel) => kernel.at = at,
            Self::Aggregate(kernel) => kernel.at = at,
            Self::Distinct(kernel) => kernel.at = at,
            Self::Moment(kernel) => kernel.at = at,
            Self::Trend(kernel) => kernel.at = at,
            Self::Threshold(kernel) => kernel.at = at,
            _ => {}
        }
    }

    /// Whether a window of it ends because time passes: where in a key's state it stands, its length in nanoseconds, and whether a
    /// field says which time it is.
    pub(crate) fn ending(&self) -> Option<Ending> {
        match self {
            Self::Aggregate(kernel) => kernel.ending(),
            _ => None,
        }
    }

    /// Runs over rows that stand for time alone: operators that would take one for a message, or make up values, are left out.
    /// `is_behind`: whether it stands behind the first window.
    pub(crate) fn run_silence(&mut self, is_behind: bool, context: &mut Context<'_, '_>) {
        match self {
            Self::Interpolate(_) | Self::Replace(_) => {}
            // They say what they know, and learn nothing from a value that is missing.
            Self::Kalman(_)
            | Self::Aggregate(_)
            | Self::Distinct(_)
            | Self::Moment(_)
            | Self::Trend(_) => {
                self.run(context);
            }
            _ if is_behind => self.run(context),
            _ => {}
        }
    }

    /// Bytes of state that belong to the flow and to no key.
    pub(crate) fn shared_bytes(&self) -> u64 {
        match self {
            Self::Bloom(kernel) => kernel.bytes(),
            _ => 0,
        }
    }

    /// The state that belongs to the flow and to no key.
    pub(crate) fn shared_words(&self) -> &[u64] {
        match self {
            Self::Bloom(kernel) => kernel.learned(),
            _ => &[],
        }
    }

    /// Adds the [`Kernel::shared_words`] of an operator with the same description, as many words as there are.
    pub(crate) fn take_up_shared(&mut self, words: &[u64]) {
        if let Self::Bloom(kernel) = self {
            kernel.take_up(words);
        }
    }
}

/// `N` words of a key's state, from `at` on.
#[inline]
fn state<const N: usize>(words: &mut [u64], start: u32, at: usize) -> &mut [u64; N] {
    let start = start as usize + at;
    (&mut words[start..start + N]).try_into().expect("as many words as were asked for")
}

/// `count` words of a key's state, from `at` on.
#[inline]
fn states(words: &mut [u64], start: u32, at: usize, count: usize) -> &mut [u64] {
    let start = start as usize + at;
    &mut words[start..start + count]
}

#[inline]
fn float(word: u64) -> f64 {
    f64::from_bits(word)
}

/// The hash of a row's value; none where it is missing.
#[inline]
fn hash_of(context: &Context<'_, '_>, column: Column, row: u8) -> Option<u64> {
    match column {
        Column::Number(index) => {
            let value = context.batch.numbers[index][usize::from(row)];
            // Both zeros are one value.
            (!value.is_nan()).then(|| hash::word(context.sketch_seed, (value + 0.0).to_bits()))
        }
        _ => {
            // Time that passes says no topic.
            if column == Column::Topic && context.silence.is_some() {
                return None;
            }
            let message = &context.messages[usize::from(row)];
            let text = context.batch.text_of(column, row, message, context.fixed)?;
            Some(hash::value(context.sketch_seed, text))
        }
    }
}
