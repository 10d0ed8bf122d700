//! Filters without state: by range, by text, by what is there.

use super::Context;
use crate::batch::Column;

/// Keeps values within bounds.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) input: usize,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) keep_missing: bool,
}

impl Range {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let values = &context.batch.numbers[self.input];
        let before = context.batch.alive.len();
        context.batch.alive.retain(|row| {
            let value = values[usize::from(row)];
            (value >= self.min && value <= self.max) || (self.keep_missing && value.is_nan())
        });
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }
}

/// Keeps texts that match.
#[derive(Debug)]
pub(crate) struct StringMatch {
    pub(crate) input: Column,
    pub(crate) equals: Vec<Box<[u8]>>,
    pub(crate) starts_with: Vec<Box<[u8]>>,
    pub(crate) ends_with: Vec<Box<[u8]>>,
    pub(crate) contains: Vec<Box<[u8]>>,
    pub(crate) invert: bool,
}

impl StringMatch {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let before = context.batch.alive.len();
        let mut alive = context.batch.alive.clone();
        alive.retain(|row| {
            let message = &context.messages[usize::from(row)];
            let text = context.batch.text_of(self.input, row, message, context.fixed);
            text.is_some_and(|text| self.matches(text) != self.invert)
        });
        context.batch.alive = alive;
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }

    fn matches(&self, text: &[u8]) -> bool {
        let has = |part: &[u8]| part.is_empty() || text.windows(part.len()).any(|w| w == part);
        self.equals.iter().any(|whole| **whole == *text)
            || self.starts_with.iter().any(|part| text.starts_with(part))
            || self.ends_with.iter().any(|part| text.ends_with(part))
            || self.contains.iter().any(|part| has(part))
    }
}

/// Keeps rows whose fields are there.
#[derive(Debug)]
pub(crate) struct Keep {
    pub(crate) present: Vec<Column>,
    pub(crate) when: Option<usize>,
}

impl Keep {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let before = context.batch.alive.len();
        let mut alive = context.batch.alive.clone();
        let batch = &context.batch;
        alive.retain(|row| {
            let index = usize::from(row);
            let is_present = |column: &Column| match column {
                Column::Number(column) => !batch.numbers[*column][index].is_nan(),
                Column::Text(column) => !batch.texts[*column][index].is_missing(),
                Column::Topic => true,
            };
            self.present.iter().all(is_present)
                && self.when.is_none_or(|when| is_set(batch.numbers[when][index]))
        });
        context.batch.alive = alive;
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }
}

/// Whether a number says yes: it is there and not 0.
#[inline]
pub(super) fn is_set(value: f64) -> bool {
    value != 0.0 && !value.is_nan()
}
