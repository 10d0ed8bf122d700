//! Up to 256 messages as columns.
//!
//! Always true: a missing number is NaN, and no number that was read is; a text is valid UTF-8.

use crate::{bad::Bad, message::Message};

/// Messages that are taken together. A row's number is a byte, so that no access to a column needs a check of its bounds.
pub(crate) const BATCH_MAX: usize = 256;

/// One number of each message.
pub(crate) type Numbers = [f64; BATCH_MAX];

/// Columns of the messages at hand, and what the run needs to know of each.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) numbers: Vec<Numbers>,
    pub(crate) texts: Vec<[Text; BATCH_MAX]>,
    /// Text that stands in no payload: without its escapes, or put together.
    pub(crate) scratch: Vec<u8>,
    /// Messages that are still looked at.
    pub(crate) alive: Rows,
    /// Where each message's state begins, in words.
    pub(crate) states: [u32; BATCH_MAX],
    /// What is wrong with each message.
    pub(crate) bad: [Option<Bad>; BATCH_MAX],
    /// Whether something is wrong with any.
    pub(crate) any_bad: bool,
}

/// Where a text stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Text {
    pub(crate) start: u32,
    pub(crate) bytes: u32,
    pub(crate) place: Place,
}

/// What a text is a part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    #[default]
    Missing,
    Payload,
    Topic,
    Scratch,
    /// The texts that the flow itself brings: of tables and classes.
    Fixed,
}

/// Numbers of rows, in order.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    rows: [u8; BATCH_MAX],
    count: usize,
}

/// A field of the batch: a number or a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Number(usize),
    Text(usize),
    /// The topic.
    Topic,
}

impl Batch {
    pub(crate) fn new(numbers: usize, texts: usize) -> Self {
        Self {
            numbers: vec![[f64::NAN; BATCH_MAX]; numbers],
            texts: vec![[Text::default(); BATCH_MAX]; texts],
            scratch: Vec::new(),
            alive: Rows::none(),
            states: [0; BATCH_MAX],
            bad: [None; BATCH_MAX],
            any_bad: false,
        }
    }

    /// Says what is wrong with a message.
    pub(crate) fn spoil(&mut self, row: usize, bad: Bad) {
        self.bad[row] = Some(bad);
        self.any_bad = true;
    }

    /// The column `from`, and `into` to write to.
    pub(crate) fn between(&mut self, from: usize, into: usize) -> (&Numbers, &mut Numbers) {
        between(&mut self.numbers, from, into)
    }

    /// The bytes of `text` of `row`; none where it is missing.
    pub(crate) fn bytes<'a>(
        &'a self,
        text: Text,
        message: &Message<'a>,
        fixed: &'a [u8],
    ) -> Option<&'a [u8]> {
        bytes(text, message, &self.scratch, fixed)
    }

    /// The bytes of a text column or the topic.
    pub(crate) fn text_of<'a>(
        &'a self,
        column: Column,
        row: u8,
        message: &Message<'a>,
        fixed: &'a [u8],
    ) -> Option<&'a [u8]> {
        match column {
            Column::Topic => Some(message.topic.as_bytes()),
            Column::Text(index) => self.bytes(self.texts[index][usize::from(row)], message, fixed),
            Column::Number(_) => None,
        }
    }
}

/// The column `from`, and `into` to write to.
pub(crate) fn between(
    numbers: &mut [Numbers],
    from: usize,
    into: usize,
) -> (&Numbers, &mut Numbers) {
    let [from, into] =
        numbers.get_disjoint_mut([from, into]).expect("a step writes to columns of its own");
    (from, into)
}

pub(crate) fn bytes<'a>(
    text: Text,
    message: &Message<'a>,
    scratch: &'a [u8],
    fixed: &'a [u8],
) -> Option<&'a [u8]> {
    let whole = match text.place {
        Place::Missing => return None,
        Place::Payload => message.payload,
        Place::Topic => message.topic.as_bytes(),
        Place::Scratch => scratch,
        Place::Fixed => fixed,
    };
    let start = text.start as usize;
    whole.get(start..start + text.bytes as usize)
}

impl Text {
    pub(crate) fn new(place: Place, start: usize, bytes: usize) -> Self {
        Self { start: start as u32, bytes: bytes as u32, place }
    }

    pub(crate) fn is_missing(self) -> bool {
        self.place == Place::Missing
    }
}

impl Rows {
    pub(crate) const fn none() -> Self {
        Self { rows: [0; BATCH_MAX], count: 0 }
    }

    /// The first `count` rows.
    pub(crate) fn fill_all(&mut self, count: usize) {
        const ALL: [u8; BATCH_MAX] = {
            let mut rows = [0; BATCH_MAX];
            let mut row = 0;
            while row < BATCH_MAX {
                rows[row] = row as u8;
                row += 1;
            }
            rows
        };
        self.rows = ALL;
        self.count = count.min(BATCH_MAX);
    }

    /// The first `count` rows that `keep` says yes to.
    pub(crate) fn fill(&mut self, count: usize, mut keep: impl FnMut(u8) -> bool) {
        self.count = 0;
        for row in 0..count.min(BATCH_MAX) {
            self.put(row as u8, keep(row as u8));
        }
    }

    /// Keeps the rows that `keep` says yes to.
    #[inline]
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u8) -> bool) {
        let count = std::mem::take(&mut self.count);
        for index in 0..count {
            let row = self.rows[index];
            self.put(row, keep(row));
        }
    }

    /// Written without a branch: which rows stay, no processor can guess.
    #[inline]
    fn put(&mut self, row: u8, keep: bool) {
        self.rows[self.count] = row;
        self.count += usize::from(keep);
    }

    #[inline]
    pub(crate) fn push(&mut self, row: u8) {
        self.rows[self.count] = row;
        self.count += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn iter(&self) -> std::iter::Copied<std::slice::Iter<'_, u8>> {
        self.rows[..self.count].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_order() {
        let mut rows = Rows::none();
        rows.fill(256, |row| row % 2 == 1);
        rows.retain(|row| row > 250);
        assert_eq!(rows.iter().collect::<Vec<_>>(), [251, 253, 255]);
        rows.retain(|_| false);
        assert!(rows.is_empty());
    }
}
