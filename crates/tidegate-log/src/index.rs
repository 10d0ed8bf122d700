//! Which entry lies where.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidegate_message::{Instant, Position};

use crate::{
    entry::{Entry, SegmentId, Slot},
    storage::{RecoveredSegment, Segment, StorageError},
};

/// State that the writer and all readers of one log share.
pub(crate) struct Shared<G> {
    index: Mutex<Index<G>>,
}

impl<G> Shared<G> {
    pub(crate) fn new(index: Index<G>) -> Self {
        Self { index: Mutex::new(index) }
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index<G>> {
        // Every change of the index is complete before anything in it can panic, so the index is
        // sound after a thread panicked.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Place and time of every kept entry; the part of a log that is behind its lock.
///
/// The slots of a segment are held here, or in the segment itself if its storage keeps them. Those are looked up outside of the
/// lock, because they may have to come from a disk first: the methods then return where to look, as [`Located`] or [`Search`].
///
/// Always true: positions and times increase along the segments and within them; positions run without gap, unless the storage
/// has lost a segment or an entry; only the newest segment can be without entries; only the newest entry can be one that is not
/// stored, and then it is at hand; no method copies bytes or calls the system, and none allocates but `push_segment`, while the list
/// of segments still grows.
pub(crate) struct Index<G> {
    segments: VecDeque<IndexSegment<G>>,
    next: Position,
    /// Time of the newest entry ever appended, kept or not.
    last: Option<Instant>,
    /// Time of the newest entry that was dropped.
    dropped: Option<Instant>,
    bytes: u64,
    entries: u64,
    /// The newest entry as it was given, where that is quicker to hand on than what is stored of it.
    newest: Option<Entry>,
}

/// The entries of one segment.
pub(crate) struct IndexSegment<G> {
    pub(crate) id: SegmentId,
    pub(crate) segment: G,
    pub(crate) first: Position,
    count: u64,
    bytes: u64,
    /// Times of the first and the last entry.
    times: Option<(Instant, Instant)>,
    /// Offset after the last entry.
    pub(crate) end: usize,
    /// `None` if the segment keeps them itself.
    slots: Option<Vec<Slot>>,
}

/// An entry that was found, with a handle that pins its segment.
pub(crate) struct Located<G> {
    pub(crate) position: Position,
    pub(crate) segment: G,
    /// Its number within the segment.
    number: usize,
    slot: Option<Slot>,
    /// Itself, if it is at hand.
    pub(crate) entry: Option<Entry>,
}

impl<G: Segment> Located<G> {
    /// Its slot, which may have to be looked up in the segment.
    pub(crate) fn slot(&self) -> Slot {
        // A segment has as many slots as it says; one that lost them has lost this entry.
        let lost = Slot { at: Instant::MIN, start: 0, meta_bytes: 0, body_bytes: 0 };
        self.slot.or_else(|| self.segment.slots().get(self.number)).unwrap_or(lost)
    }
}

/// Where the first entry at or after some time is.
pub(crate) enum Search<G> {
    At(Position),
    Within { first: Position, segment: G, at: Instant },
}

impl<G: Segment> Search<G> {
    /// Its position.
    pub(crate) fn finish(self) -> Position {
        match self {
            Self::At(position) => position,
            Self::Within { first, segment, at } => {
                Position(first.0 + segment.slots().before(at) as u64)
            }
        }
    }
}

/// The entry, or its absence, at a reader's position.
pub(crate) enum Next<G> {
    Kept(Located<G>),
    /// It is not kept: the next that is has this position and this time.
    Gone(Position, Option<Instant>),
    /// It was not appended yet.
    Ahead,
}

impl<G: Segment> Index<G> {
    pub(crate) fn new(next: Position, last: Option<Instant>) -> Self {
        Self {
            segments: VecDeque::new(),
            next,
            last,
            dropped: None,
            bytes: 0,
            entries: 0,
            newest: None,
        }
    }

    /// The oldest kept position; that of the next entry if none is kept.
    pub(crate) fn first(&self) -> Position {
        self.segments.front().map_or(self.next, |segment| segment.first)
    }

    /// The position that the next entry gets.
    pub(crate) fn next(&self) -> Position {
        self.next
    }

    /// Time of the newest entry ever appended.
    pub(crate) fn last_at(&self) -> Option<Instant> {
        self.last
    }

    /// Time of the newest entry that was dropped.
    pub(crate) fn dropped_at(&self) -> Option<Instant> {
        self.dropped
    }

    /// Bytes of all kept entries, meta and body.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many entries are kept.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Memory of the slots of all segments.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.segments.iter().map(IndexSegment::slot_bytes).sum()
    }

    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &IndexSegment<G>> {
        self.segments.iter()
    }

    /// The entry at `position`, if it is kept.
    pub(crate) fn locate(&self, position: Position) -> Option<Located<G>> {
        let segment = self.segment_of(position)?;
        let located = segment.locate(usize::try_from(position.0 - segment.first.0).ok()?)?;
        let newest = self.newest.as_ref().filter(|newest| newest.position == position);
        Some(Located { entry: newest.cloned(), ..located })
    }

    /// The newest kept entry before `position`.
    pub(crate) fn locate_before(&self, position: Position) -> Option<Located<G>> {
        let later = self.segments.partition_point(|segment| segment.first < position);
        let segment = self.segments.get(later.checked_sub(1)?)?;
        let before = segment.count.min(position.0 - segment.first.0);
        self.locate(Position(segment.first.0 + before.checked_sub(1)?))
    }

    /// Whether entries right before `position` are lost whose times may lie at or after `at`, and of none that is kept.
    pub(crate) fn is_gap_before(&self, position: Position, at: Instant) -> bool {
        let later = self.segments.partition_point(|segment| segment.first < position);
        let before = later.checked_sub(1).and_then(|before| self.segments.get(before));
        let after = self.segments.get(later).filter(|after| after.first == position);
        match (before, after.and_then(|after| after.times)) {
            (Some(before), Some((first, _))) => before.next() < position && at < first,
            _ => false,
        }
    }

    /// The next entry for a reader at `position`.
    pub(crate) fn next_from(&self, position: Position) -> Next<G> {
        if let Some(located) = self.locate(position) {
            return Next::Kept(located);
        }
        if position >= self.next {
            return Next::Ahead;
        }
        let later = self.segments.partition_point(|segment| segment.first <= position);
        match self.segments.get(later) {
            Some(segment) => Next::Gone(segment.first, segment.times.map(|(first, _)| first)),
            None => Next::Gone(self.next, None),
        }
    }

    /// The segment that holds `position`, if it is kept.
    pub(crate) fn segment_of(&self, position: Position) -> Option<&IndexSegment<G>> {
        let later = self.segments.partition_point(|segment| segment.first <= position);
        let segment = self.segments.get(later.checked_sub(1)?)?;
        (position.0 - segment.first.0 < segment.count).then_some(segment)
    }

    /// The first kept entry at or after `at`; the next to come if there is none.
    pub(crate) fn at_or_after(&self, at: Instant) -> Search<G> {
        let ends_before =
            |segment: &IndexSegment<G>| segment.times.is_some_and(|(_, last)| last < at);
        let Some(found) = self.segments.get(self.segments.partition_point(ends_before)) else {
            return Search::At(self.next);
        };
        match (&found.slots, found.times) {
            (_, Some((first, _))) if at <= first => Search::At(found.first),
            (Some(slots), _) => {
                let before = slots.partition_point(|slot| slot.at < at);
                Search::At(Position(found.first.0 + before as u64))
            }
            (None, _) => Search::Within { first: found.first, segment: found.segment.clone(), at },
        }
    }

    /// Adds a segment, which becomes the newest.
    pub(crate) fn push_segment(&mut self, id: SegmentId, segment: G, slots: Vec<Slot>) {
        self.segments.push_back(IndexSegment {
            id,
            segment,
            first: self.next,
            count: 0,
            bytes: 0,
            times: None,
            end: 0,
            slots: Some(slots),
        });
    }

    /// Adds a segment that an earlier process has filled, above all others.
    pub(crate) fn push_recovered(&mut self, recovered: RecoveredSegment<G>) {
        let RecoveredSegment { id, segment, first, count, bytes, end, times, slots } = recovered;
        self.bytes += bytes;
        self.entries += count;
        let times = Some(times);
        let segment = IndexSegment { id, segment, first, count, bytes, times, end, slots };
        self.segments.push_back(segment);
    }

    /// Adds an entry to the newest segment.
    pub(crate) fn push(&mut self, slot: Slot) -> Position {
        let newest = self.segments.back_mut().expect("an entry is written to a segment first");
        let slots = newest.slots.as_mut().expect("the newest segment is not stored yet");
        debug_assert!(slots.len() < slots.capacity(), "a slot was reserved");
        slots.push(slot);
        newest.count += 1;
        newest.bytes += slot.bytes() as u64;
        newest.times = Some((newest.times.map_or(slot.at, |(first, _)| first), slot.at));
        newest.end = slot.end();
        self.bytes += slot.bytes() as u64;
        self.entries += 1;
        self.last = Some(slot.at);
        self.newest = None;
        let position = self.next;
        self.next = position.next();
        position
    }

    /// Adds an entry that is not stored yet: it is at hand until the next is added, or [`Index::release_newest`].
    pub(crate) fn offer(&mut self, slot: Slot, entry: Entry) {
        let position = self.push(slot);
        debug_assert_eq!(entry.position, position, "it is the newest");
        self.newest = Some(entry);
    }

    /// The entry that was added last is to be read from its segment.
    pub(crate) fn release_newest(&mut self) {
        self.newest = None;
    }

    /// Takes back the entry that was added last. The one before has the time `last`.
    pub(crate) fn withdraw(&mut self, last: Option<Instant>) {
        let newest = self.segments.back_mut().expect("an entry was added to it");
        let slots = newest.slots.as_mut().expect("the newest segment is not stored yet");
        let slot = slots.pop().expect("an entry was added to it");
        newest.count -= 1;
        newest.bytes -= slot.bytes() as u64;
        newest.times = newest.times.zip(slots.last()).map(|((first, _), last)| (first, last.at));
        newest.end = slots.last().map_or(0, Slot::end);
        self.bytes -= slot.bytes() as u64;
        self.entries -= 1;
        self.last = last;
        self.newest = None;
        self.next = Position(self.next.0 - 1);
    }

    /// Leaves a position out: no entry will ever have it.
    pub(crate) fn skip(&mut self) {
        self.next = self.next.next();
    }

    /// The oldest segment whose slots are held here, the newest of all aside.
    pub(crate) fn oldest_held(&self) -> Option<SegmentId> {
        let full = self.segments.iter().rev().skip(1);
        full.take_while(|segment| segment.slots.is_some()).last().map(|segment| segment.id)
    }

    /// Lets go of the slots of a segment, which keeps them itself from now on.
    pub(crate) fn release_slots(&mut self, id: SegmentId) -> Option<Vec<Slot>> {
        let segment = self.segments.iter_mut().rev().find(|segment| segment.id == id)?;
        segment.slots.take()
    }

    /// Drops the newest segment, which has no entries.
    pub(crate) fn pop_newest(&mut self) {
        let newest = self.segments.pop_back();
        debug_assert!(newest.is_none_or(|segment| segment.count == 0), "entries would be lost");
    }

    /// Drops the oldest segment from the index and returns it.
    pub(crate) fn pop_segment(&mut self) -> Option<IndexSegment<G>> {
        let oldest = self.segments.pop_front()?;
        self.dropped = oldest.times.map(|(_, last)| last).or(self.dropped);
        Some(self.forgotten(oldest))
    }

    /// Drops a segment, which may lie between others, and returns it.
    pub(crate) fn remove_segment(&mut self, id: SegmentId) -> Option<IndexSegment<G>> {
        let number = self.segments.iter().position(|segment| segment.id == id)?;
        if number == 0 {
            return self.pop_segment();
        }
        let segment = self.segments.remove(number)?;
        Some(self.forgotten(segment))
    }

    fn forgotten(&mut self, segment: IndexSegment<G>) -> IndexSegment<G> {
        self.bytes -= segment.bytes;
        self.entries -= segment.count;
        segment
    }
}

impl<G: Clone> IndexSegment<G> {
    fn locate(&self, number: usize) -> Option<Located<G>> {
        if number as u64 >= self.count {
            return None;
        }
        let slot = self.slots.as_ref().and_then(|slots| slots.get(number)).copied();
        let position = Position(self.first.0 + number as u64);
        Some(Located { position, segment: self.segment.clone(), number, slot, entry: None })
    }
}

impl<G> IndexSegment<G> {
    /// Memory of this segment's slots.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slots.as_ref().map_or(0, |slots| (slots.capacity() * Slot::BYTES) as u64)
    }

    /// Position after its last entry.
    pub(crate) fn next(&self) -> Position {
        Position(self.first.0 + self.count)
    }

    /// Time of its last entry.
    pub(crate) fn last_at(&self) -> Option<Instant> {
        self.times.map(|(_, last)| last)
    }

    /// Position of the first entry that does not end at or below `offset`.
    pub(crate) fn first_beyond(&self, offset: usize) -> Position {
        let within = match &self.slots {
            Some(slots) => slots.partition_point(|slot| slot.end() <= offset) as u64,
            // Whole or not at all, so as not to ask the segment.
            None if offset >= self.end => self.count,
            None => 0,
        };
        Position(self.first.0 + within)
    }

    /// Its slots, if they are held here.
    pub(crate) fn into_slots(self) -> Option<Vec<Slot>> {
        self.slots
    }
}

/// Whether an entry can never be read, so that a reader is to skip it.
pub(crate) fn is_lost(error: &StorageError) -> bool {
    matches!(error, StorageError::Damaged { .. } | StorageError::Tampered { .. })
}
