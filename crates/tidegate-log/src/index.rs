//! Which entry lies where.

use std::collections::VecDeque;

use tidegate_message::{Instant, Position};

use crate::storage::{Segment, SegmentId};

/// Place and time of every kept entry; the part of a log that is behind its lock.
///
/// Always true: positions run without gap over the segments, times strictly increase along them; only
/// the newest segment can be without entries; no method copies bytes or calls the system, and none
/// allocates but `push_segment`, while the list of segments still grows.
pub(crate) struct Index<G> {
    segments: VecDeque<IndexSegment<G>>,
    next: Position,
    /// Time of the newest entry ever appended, kept or not.
    last: Option<Instant>,
    /// Time of the newest entry that was dropped.
    dropped: Option<Instant>,
    bytes: u64,
}

/// The entries of one segment.
pub(crate) struct IndexSegment<G> {
    pub(crate) id: SegmentId,
    pub(crate) segment: G,
    first: Position,
    bytes: u64,
    pub(crate) slots: Vec<Slot>,
}

/// Time and place of one entry within its segment: meta first, then the body.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) at: Instant,
    pub(crate) start: u32,
    pub(crate) meta_bytes: u32,
    pub(crate) body_bytes: u32,
}

impl Slot {
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// Offset after the entry.
    pub(crate) fn end(&self) -> usize {
        self.start as usize + self.bytes()
    }

    fn bytes(&self) -> usize {
        self.meta_bytes as usize + self.body_bytes as usize
    }
}

/// An entry that was found, with a handle that pins its segment.
pub(crate) struct Located<G> {
    pub(crate) position: Position,
    pub(crate) slot: Slot,
    pub(crate) segment: G,
}

impl<G: Segment> Index<G> {
    pub(crate) fn new() -> Self {
        Self { segments: VecDeque::new(), next: Position(0), last: None, dropped: None, bytes: 0 }
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
        let (segment, slot) = self.slot(position)?;
        Some(Located { position, slot: *slot, segment: segment.segment.clone() })
    }

    /// Time of the entry at `position`, if it is kept.
    pub(crate) fn at(&self, position: Position) -> Option<Instant> {
        self.slot(position).map(|(_, slot)| slot.at)
    }

    /// The segment that holds `position`, if it is kept.
    pub(crate) fn segment_of(&self, position: Position) -> Option<&IndexSegment<G>> {
        self.slot(position).map(|(segment, _)| segment)
    }

    /// Position of the first kept entry at or after `at`; that of the next entry if there is none.
    pub(crate) fn at_or_after(&self, at: Instant) -> Position {
        let ends_before =
            |segment: &IndexSegment<G>| segment.slots.last().is_some_and(|newest| newest.at < at);
        let found = self.segments.partition_point(ends_before);
        self.segments.get(found).map_or(self.next, |segment| {
            let before = segment.slots.partition_point(|slot| slot.at < at);
            Position(segment.first.0 + before as u64)
        })
    }

    /// Adds a segment, which becomes the newest.
    pub(crate) fn push_segment(&mut self, id: SegmentId, segment: G, slots: Vec<Slot>) {
        self.segments.push_back(IndexSegment { id, segment, first: self.next, bytes: 0, slots });
    }

    /// Adds an entry to the newest segment.
    pub(crate) fn push(&mut self, slot: Slot) -> Position {
        let newest = self.segments.back_mut().expect("an entry is written to a segment first");
        debug_assert!(newest.slots.len() < newest.slots.capacity(), "a slot was reserved");
        newest.slots.push(slot);
        newest.bytes += slot.bytes() as u64;
        self.bytes += slot.bytes() as u64;
        self.last = Some(slot.at);
        let position = self.next;
        self.next = position.next();
        position
    }

    /// Drops the oldest segment from the index and returns it.
    pub(crate) fn pop_segment(&mut self) -> Option<IndexSegment<G>> {
        let oldest = self.segments.pop_front()?;
        self.bytes -= oldest.bytes;
        self.dropped = oldest.slots.last().map(|slot| slot.at).or(self.dropped);
        Some(oldest)
    }

    fn slot(&self, position: Position) -> Option<(&IndexSegment<G>, &Slot)> {
        let later = self.segments.partition_point(|segment| segment.first <= position);
        let segment = self.segments.get(later.checked_sub(1)?)?;
        let offset = usize::try_from(position.0 - segment.first.0).ok()?;
        Some((segment, segment.slots.get(offset)?))
    }
}

impl<G> IndexSegment<G> {
    /// Memory of this segment's slots.
    pub(crate) fn slot_bytes(&self) -> u64 {
        (self.slots.capacity() * Slot::BYTES) as u64
    }

    /// Position of the first entry that does not end at or below `offset`.
    pub(crate) fn first_beyond(&self, offset: usize) -> Position {
        let within = self.slots.partition_point(|slot| slot.end() <= offset);
        Position(self.first.0 + within as u64)
    }
}
