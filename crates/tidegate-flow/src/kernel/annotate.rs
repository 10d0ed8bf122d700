//! Fields from a table of metadata.

use std::sync::Arc;

use super::Context;
use crate::{
    batch::{Column, Text},
    model::Table,
};

/// Appends fields that a table has for a key.
#[derive(Debug)]
pub(crate) struct Annotate {
    pub(crate) table: Arc<Table>,
    pub(crate) input: Input,
    /// For each number its column here, and its values by the table's row.
    pub(crate) numbers: Vec<(usize, Vec<f64>)>,
    /// For each text its column here, and where it stands in the fixed text by the table's row.
    pub(crate) texts: Vec<(usize, Vec<Text>)>,
    pub(crate) keep_missing: bool,
}

/// The value to look up.
#[derive(Debug)]
pub(crate) enum Input {
    Column(Column),
    /// A level of the topic.
    Level(usize),
}

impl Annotate {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let before = context.batch.alive.len();
        let mut alive = context.batch.alive.clone();
        alive.retain(|row| {
            let found = self.find(context, row);
            let index = usize::from(row);
            for (column, values) in &self.numbers {
                context.batch.numbers[*column][index] = found.map_or(f64::NAN, |at| values[at]);
            }
            for (column, texts) in &self.texts {
                let text = found.map_or_else(Text::default, |at| texts[at]);
                context.batch.texts[*column][index] = text;
            }
            found.is_some() || self.keep_missing
        });
        context.batch.alive = alive;
        context.stats.filtered += (before - context.batch.alive.len()) as u64;
    }

    fn find(&self, context: &Context<'_, '_>, row: u8) -> Option<usize> {
        let message = &context.messages[usize::from(row)];
        let key = match self.input {
            Input::Column(column) => context.batch.text_of(column, row, message, context.fixed)?,
            Input::Level(level) => message.topic.split('/').nth(level)?.as_bytes(),
        };
        self.table.find(key)
    }
}
