//! Up to 256 messages as columns.
//!
//! Always true: a missing number is NaN, and no number that was read is; a text is valid UTF-8.

use std::ops::Range;

use crate::{bad::Bad, message::Message};

/// Messages that are taken together. A row's number is a byte, so that no access to a column needs a check of its bounds.
pub(crate) const BATCH_MAX: usize = 256;

/// Messages that are read in one go. While one tile is read, the state of the one before it is on its way from memory.
pub(crate) const TILE: usize = 64;
const _: () = assert!(BATCH_MAX.is_multiple_of(TILE));

/// One number of each message.
pub(crate) type Numbers = [f64; BATCH_MAX];

/// Columns of the messages at hand, and what the run needs to know of each.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) numbers: Vec<Numbers>,
    /// The exact times of columns of times.
    times: Vec<Times>,
    pub(crate) texts: Vec<[Text; BATCH_MAX]>,
    /// Text that stands in no payload: without its escapes, or put together.
    pub(crate) scratch: Vec<u8>,
    /// Messages that are still looked at.
    pub(crate) alive: Rows,
    /// Where each message's state begins, in words.
    pub(crate) states: [u32; BATCH_MAX],
    /// The problem of each message, if any.
    pub(crate) bad: [Option<Bad>; BATCH_MAX],
    /// Whether something is wrong with any.
    pub(crate) any_bad: bool,
}

/// A column of times as they were read, in nanoseconds since the Unix epoch: a float of seconds has steps of 238 ns today. Operators
/// calculate with the float; what is written out is exact.
#[derive(Debug)]
struct Times {
    column: usize,
    /// [`NOT_EXACT`] where a time was missing, or read as a float.
    nanos: [i64; BATCH_MAX],
}

const NOT_EXACT: i64 = i64::MIN;

/// Farther from its float, in seconds, is no time of 64 bits that was rounded to it.
const STEP_MAX: f64 = 4e-6;

/// Where a text stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Text {
    pub(crate) start: u32,
    pub(crate) bytes: u32,
    pub(crate) place: Place,
}

/// The place of a text.
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
    /// A batch of so many columns; those of numbers at `times` are of times.
    pub(crate) fn new(numbers: usize, texts: usize, times: impl Iterator<Item = usize>) -> Self {
        Self {
            numbers: vec![[f64::NAN; BATCH_MAX]; numbers],
            times: times.map(|column| Times { column, nanos: [NOT_EXACT; BATCH_MAX] }).collect(),
            texts: vec![[Text::default(); BATCH_MAX]; texts],
            scratch: Vec::new(),
            alive: Rows::none(),
            states: [0; BATCH_MAX],
            bad: [None; BATCH_MAX],
            any_bad: false,
        }
    }

    /// Forgets the earlier messages.
    pub(crate) fn begin(&mut self) {
        self.scratch.clear();
        if self.any_bad {
            self.bad.fill(None);
            self.any_bad = false;
        }
        self.alive = Rows::none();
    }

    /// Says what is wrong with a message.
    pub(crate) fn spoil(&mut self, row: usize, bad: Bad) {
        self.bad[row] = Some(bad);
        self.any_bad = true;
    }

    /// Sets a time exactly, if it is known so.
    pub(crate) fn set_nanos(&mut self, column: usize, row: usize, nanos: Option<i64>) {
        if let Some(times) = self.times.iter_mut().find(|times| times.column == column) {
            times.nanos[row] = nanos.unwrap_or(NOT_EXACT);
        }
    }

    /// A time exactly; none where it is not known so, or its number is no longer the one that was read.
    pub(crate) fn nanos(&self, column: usize, row: usize) -> Option<i64> {
        let times = self.times.iter().find(|times| times.column == column)?;
        let nanos = Some(times.nanos[row]).filter(|nanos| *nanos != NOT_EXACT)?;
        let is_near = (nanos as f64 / 1e9 - self.numbers[column][row]).abs() < STEP_MAX;
        is_near.then_some(nanos)
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
        self.count = 0;
        self.extend_all(0..count.min(BATCH_MAX));
    }

    /// Adds some more rows.
    pub(crate) fn extend_all(&mut self, rows: Range<usize>) {
        const ALL: [u8; BATCH_MAX] = {
            let mut rows = [0; BATCH_MAX];
            let mut row = 0;
            while row < BATCH_MAX {
                rows[row] = row as u8;
                row += 1;
            }
            rows
        };
        let end = self.count + rows.len();
        self.rows[self.count..end].copy_from_slice(&ALL[rows]);
        self.count = end;
    }

    /// The first `count` rows that `keep` says yes to.
    pub(crate) fn fill(&mut self, count: usize, mut keep: impl FnMut(u8) -> bool) {
        self.count = 0;
        for row in 0..count.min(BATCH_MAX) {
            self.put(row as u8, keep(row as u8));
        }
    }

    /// Adds those of some more rows that `keep` says yes to.
    pub(crate) fn extend(&mut self, rows: Range<usize>, mut keep: impl FnMut(u8) -> bool) {
        for row in rows {
            self.put(row as u8, keep(row as u8));
        }
    }

    /// Keeps the rows that `keep` says yes to.
    #[inline]
    pub(crate) fn retain(&mut self, keep: impl FnMut(u8) -> bool) {
        self.retain_from(0, keep);
    }

    /// Keeps the rows that `keep` says yes to, and the first `start` as they are.
    #[inline]
    pub(crate) fn retain_from(&mut self, start: usize, mut keep: impl FnMut(u8) -> bool) {
        let count = std::mem::replace(&mut self.count, start);
        for index in start..count {
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

    /// The row behind the last one. An operation on each row by itself may as well work on all before it: values written to a row
    /// that is not among these are not read, and loops over all are loops for vectors.
    pub(crate) fn end(&self) -> usize {
        self.as_slice().last().map_or(0, |row| usize::from(*row) + 1)
    }

    /// Whether no row is left out before the last one.
    pub(crate) fn is_whole(&self) -> bool {
        self.end() == self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn iter(&self) -> std::iter::Copied<std::slice::Iter<'_, u8>> {
        self.as_slice().iter().copied()
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.rows[..self.count]
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
        assert!(!rows.is_whole());
        rows.retain(|_| false);
        assert!(rows.is_empty() && rows.is_whole());
        rows.extend_all(0..3);
        rows.extend(3..6, |row| row != 4);
        assert_eq!((rows.as_slice(), rows.end()), (&[0, 1, 2, 3, 5][..], 6));
        rows.retain_from(3, |row| row == 3);
        assert_eq!(rows.as_slice(), [0, 1, 2, 3]);
        assert!(rows.is_whole());
        rows.fill_all(256);
        assert_eq!((rows.len(), rows.end()), (256, 256));
    }
}
