//! Reading a log from one entry to the next.

use std::ops::{Bound, RangeBounds};

use tidegate_message::{Instant, Position};

use crate::{
    entry::Entry,
    index::{Next, is_lost},
    log::{Log, Overtaken, ReadError, just_after},
    memory::Memory,
    storage::Storage,
};

/// Goes through a log entry by entry, from where it was placed on into the future.
///
/// A reader holds a position and no bytes: however far it is behind, it costs the log nothing, and the
/// wrap may overtake it. Then the next read says which range was missed, and the one after it continues
/// with the oldest kept entry. Past and future are one sequence, so there is no seam to lose an entry at.
pub struct Reader<S: Storage = Memory> {
    log: Log<S>,
    /// The entry to be read next.
    cursor: Position,
    /// That entry is not earlier than this.
    from: Instant,
    missing_at_start: Option<(Instant, Instant)>,
}

impl<S: Storage> Log<S> {
    /// The entries whose times lie in `times`, oldest first, of those appended before this call.
    ///
    /// Each is sliced when its turn comes, so that a long range pins no more than the entries that are
    /// held; entries that the wrap overtakes meanwhile are reported. An empty or reversed range has no
    /// entries.
    pub fn range(&self, times: impl RangeBounds<Instant>) -> Entries<S> {
        let start = match times.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => just_after(at),
            Bound::Unbounded => Instant::MIN,
        };
        // Times are whole nanoseconds, so every end is the exclusive end of some range; only what lies
        // at `Instant::MAX` itself needs the unbounded case.
        let end = match times.end_bound() {
            Bound::Included(&Instant::MAX) | Bound::Unbounded => None,
            Bound::Included(&at) => Some(just_after(at)),
            Bound::Excluded(&at) => Some(at),
        };
        let until = match end {
            Some(at) => self.position_from(at),
            None => self.end(),
        };
        Entries::new(self.reader_from(start), until, end)
    }

    /// A reader that starts with the first entry at or after `at` and continues into the future.
    ///
    /// If entries of that time were dropped already, [`Reader::missing_at_start`] says so.
    pub fn reader_from(&self, at: Instant) -> Reader<S> {
        let index = self.index();
        let found = index.at_or_after(at);
        let is_dropped = index.dropped_at().is_some_and(|dropped| dropped >= at);
        drop(index);
        let cursor = found.finish();
        // Lost between others, of which the reader would meet the later ones only.
        let is_missing = is_dropped || self.index().is_gap_before(cursor, at);
        let missing = is_missing.then(|| (at, self.start_of(cursor)));
        Reader::new(self.clone(), cursor, at, missing)
    }

    /// A reader that starts at `position`, which may lie in the future; if it was dropped already, the
    /// first read says so.
    pub fn reader_at(&self, position: Position) -> Reader<S> {
        let is_dropped = position < self.index().first();
        let from = if is_dropped { Instant::MIN } else { self.start_of(position) };
        Reader::new(self.clone(), position, from, None)
    }

    /// A reader that starts with the newest kept entry, or with the next to come if there is none.
    pub fn reader_newest(&self) -> Reader<S> {
        let index = self.index();
        let newest = index.locate_before(index.next()).map_or(index.next(), |entry| entry.position);
        drop(index);
        Reader::new(self.clone(), newest, self.start_of(newest), None)
    }

    /// A reader of what is appended from now on.
    pub fn reader_next(&self) -> Reader<S> {
        let next = self.end();
        Reader::new(self.clone(), next, self.start_of(next), None)
    }
}

impl<S: Storage> Reader<S> {
    fn new(
        log: Log<S>,
        cursor: Position,
        from: Instant,
        missing_at_start: Option<(Instant, Instant)>,
    ) -> Self {
        Self { log, cursor, from, missing_at_start }
    }

    /// The next entry; `None` if this reader has caught up with the writer.
    ///
    /// # Errors
    /// [`ReadError::Overtaken`]: the wrap dropped entries that were not read; the next call continues after them.
    /// [`ReadError::Storage`]: the entry is kept but could not be read; the next call tries again, or continues after it if it is
    /// [damaged](crate::StorageError::Damaged).
    #[expect(clippy::should_implement_trait, reason = "`None` is not the end, only the present")]
    pub fn next(&mut self) -> Result<Option<Entry>, ReadError> {
        let index = self.log.index();
        let (found, last) = (index.next_from(self.cursor), index.last_at());
        drop(index);
        match found {
            Next::Ahead => Ok(None),
            Next::Gone(to, at) => {
                let until = at.or(last.map(just_after)).unwrap_or(Instant::MIN);
                let missed_from = std::mem::replace(&mut self.cursor, to);
                let missed_time = (std::mem::replace(&mut self.from, until), until);
                Err(Overtaken { missed_from, missed_to: to, missed_time }.into())
            }
            Next::Kept(located) => {
                let position = located.position;
                let read = located.read();
                match &read {
                    Ok(entry) => self.from = just_after(entry.at),
                    // It is damaged for good.
                    Err(ReadError::Storage { source, .. }) if is_lost(source) => {}
                    Err(_) => return read.map(Some),
                }
                self.cursor = position.next();
                read.map(Some)
            }
        }
    }

    /// The position of the entry to be read next.
    pub fn position(&self) -> Position {
        self.cursor
    }

    /// How many kept entries are still unread.
    pub fn behind(&self) -> u64 {
        let index = self.log.index();
        index.next().0.saturating_sub(self.cursor.max(index.first()).0)
    }

    /// Continues with the newest kept entry, unless that was read already. Returns how many entries were
    /// skipped, kept or dropped.
    pub fn skip_to_newest(&mut self) -> u64 {
        let index = self.log.index();
        let newest = index.locate_before(index.next()).map(|located| located.position);
        drop(index);
        let Some(newest) = newest.filter(|&newest| newest > self.cursor) else { return 0 };
        let skipped = newest.0 - self.cursor.0;
        self.from = self.log.start_of(newest);
        self.cursor = newest;
        skipped
    }

    /// The span of time that this reader was asked to start in and whose entries, in part or all, had
    /// been dropped before: from its start (included) to its first kept entry (excluded).
    pub fn missing_at_start(&self) -> Option<(Instant, Instant)> {
        self.missing_at_start
    }
}

/// The entries of a span of time; see [`Log::range`].
pub struct Entries<S: Storage = Memory> {
    reader: Reader<S>,
    until: Position,
    until_at: Option<Instant>,
    failed: bool,
}

impl<S: Storage> Entries<S> {
    fn new(reader: Reader<S>, until: Position, until_at: Option<Instant>) -> Self {
        Self { reader, until, until_at, failed: false }
    }

    /// As [`Reader::missing_at_start`].
    pub fn missing_at_start(&self) -> Option<(Instant, Instant)> {
        let (from, to) = self.reader.missing_at_start?;
        let to = self.until_at.map_or(to, |until| until.min(to));
        (from < to).then_some((from, to))
    }
}

impl<S: Storage> Iterator for Entries<S> {
    type Item = Result<Entry, ReadError>;

    /// Ends after a failure of the storage, and continues after an entry that is damaged.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.cursor >= self.until {
            return None;
        }
        match self.reader.next() {
            Ok(entry) => entry.map(Ok),
            Err(ReadError::Overtaken(mut missed)) => {
                missed.missed_to = missed.missed_to.min(self.until);
                if let Some(until) = self.until_at {
                    missed.missed_time.1 = missed.missed_time.1.min(until);
                }
                Some(Err(missed.into()))
            }
            Err(error) => {
                self.failed =
                    !matches!(&error, ReadError::Storage { source, .. } if is_lost(source));
                Some(Err(error))
            }
        }
    }
}
