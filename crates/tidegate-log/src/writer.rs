//! Appending to a log.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_message::{Code, Instant, Position};

use crate::{
    config::LogConfig,
    entry::{Durability, Entry, SegmentId, Slot},
    index::{IndexSegment, Next, Shared},
    memory::Memory,
    storage::{Begin, Framing, Storage, StorageError, Written},
};

/// The one writer of a log.
pub struct LogWriter<S: Storage = Memory> {
    config: LogConfig,
    framing: Framing,
    storage: S,
    shared: Arc<Shared<S::Segment>>,
    active: Option<Active>,
    /// Slots that the index of the next segment gets.
    slots: usize,
    /// Slots of a dropped segment, to be used again.
    spare_slots: Vec<Slot>,
    last: Option<Instant>,
    /// The position that the next entry gets.
    next: Position,
    durable: Position,
    /// Whether only [`LogWriter::release`] and [`LogWriter::expire`] drop segments.
    keeps_all: bool,
    /// Whether a new segment may come out of the storage's reserve.
    may_use_reserve: bool,
    offered: Option<Offered>,
}

/// An entry that readers have and the storage has not.
struct Offered {
    durability: Durability,
    place: Place,
    entry: Entry,
    /// Time of the entry before.
    before: Option<Instant>,
}

/// The segment that is being filled.
#[derive(Clone, Copy)]
struct Active {
    id: SegmentId,
    /// Its bytes.
    len: usize,
    used: usize,
    slots_used: usize,
    slots_max: usize,
}

/// Where the next segment comes from.
enum Secured {
    /// Wherever there is room for one of the usual size.
    Usual,
    /// The storage has room for one of that length.
    Of(usize),
    /// The storage has room in reserve only.
    InReserve(AppendError),
}

/// Where the medium has no room, segments get smaller down to this.
const SEGMENT_BYTES_MIN: usize = 64 << 10;

/// Where an entry that is being written goes.
#[derive(Clone, Copy)]
struct Place {
    segment: SegmentId,
    start: usize,
    meta_bytes: u32,
    body_bytes: u32,
}

impl Place {
    fn body_start(&self) -> usize {
        self.start + self.meta_bytes as usize
    }

    fn end(&self) -> usize {
        self.body_start() + self.body_bytes as usize
    }

    fn slot(&self, at: Instant) -> Slot {
        let start = u32::try_from(self.start).expect("a segment is below 4 GiB");
        Slot { at, start, meta_bytes: self.meta_bytes, body_bytes: self.body_bytes }
    }
}

impl<S: Storage> LogWriter<S> {
    pub(crate) fn new(config: LogConfig, storage: S, shared: Arc<Shared<S::Segment>>) -> Self {
        let index = shared.index();
        let (next, last) = (index.next(), index.last_at());
        drop(index);
        // One entry of 64 KiB on average fills bytes and slots alike; other sizes adapt the slots.
        let slots = usize::try_from(config.segment_bytes >> 16).unwrap_or(usize::MAX).max(4);
        let framing = storage.framing();
        let slots_max = slots_max(&config, framing);
        Self {
            slots: if framing.log_keeps_slots() { slots.min(slots_max) } else { slots_max },
            framing,
            config,
            storage,
            shared,
            active: None,
            spare_slots: Vec::new(),
            last,
            next,
            durable: Position(0),
            keeps_all: false,
            may_use_reserve: false,
            offered: None,
        }
    }

    /// Appends one entry, copying meta and body once. Never waits for a reader.
    ///
    /// # Errors
    /// The time is not later than that of the entry before, the entry is larger than a segment, readers
    /// pin all memory that the log may use, or the storage failed. Nothing was appended then, and the same
    /// call may succeed later; entries may have been dropped to make room.
    pub fn append(
        &mut self,
        at: Instant,
        meta: &[u8],
        body: &[u8],
    ) -> Result<Position, AppendError> {
        self.check_time(at)?;
        let place = self.place(meta.len(), body.len())?;
        self.storage.write_at(place.segment, place.start, meta)?;
        self.storage.write_at(place.segment, place.body_start(), body)?;
        self.commit(at, place)
    }

    /// Appends one entry of which `durability` is asked. `Memory` and `Page` hold when this returns; `Disk` holds when
    /// [`Commits::wait`](crate::Commits::wait) for the returned position has.
    ///
    /// # Errors
    /// As [`LogWriter::append`], or the storage cannot give that: nothing was appended then.
    pub fn append_durably(
        &mut self,
        durability: Durability,
        at: Instant,
        meta: &[u8],
        body: &[u8],
    ) -> Result<Position, AppendError> {
        self.check_time(at)?;
        let place = self.place(meta.len(), body.len())?;
        // Not before there is a place: a new segment may be where less can be had.
        self.storage.admit(durability)?;
        self.storage.write_at(place.segment, place.start, meta)?;
        self.storage.write_at(place.segment, place.body_start(), body)?;
        let position = self.commit(at, place)?;
        if durability == Durability::Disk {
            self.storage.request(position.next(), (meta.len() + body.len()) as u64);
        }
        Ok(position)
    }

    /// As [`LogWriter::append_durably`], and while it is the newest, readers get the body as it is here: nothing is read back, checked
    /// and opened to be passed on at once. Storages that readers slice hold no second handle to it.
    ///
    /// # Errors
    /// As [`LogWriter::append_durably`]. A reader may have had the entry then; others learn that one is missing.
    pub fn append_shared(
        &mut self,
        durability: Durability,
        at: Instant,
        meta: &[u8],
        body: &Bytes,
    ) -> Result<Position, AppendError> {
        let position = self.offer(durability, at, meta, body)?;
        if let Err(error) = self.store() {
            self.skip()?;
            return Err(error.into());
        }
        Ok(position)
    }

    /// Lets readers have an entry whose room is found and which is not written there yet: that is left to [`LogWriter::store`], the
    /// next call of all. It survives nothing before.
    ///
    /// # Errors
    /// As [`LogWriter::append_durably`].
    ///
    /// # Panics
    /// An entry was offered before, and not stored.
    pub fn offer(
        &mut self,
        durability: Durability,
        at: Instant,
        meta: &[u8],
        body: &Bytes,
    ) -> Result<Position, AppendError> {
        self.check_time(at)?;
        let place = self.place(meta.len(), body.len())?;
        // Not before there is a place: a new segment may be where less can be had.
        self.storage.admit(durability)?;
        let position = self.next;
        let entry = Entry { position, at, meta: Bytes::copy_from_slice(meta), body: body.clone() };
        self.shared.index().offer(place.slot(at), entry.clone());
        let before = self.last.replace(at);
        self.next = position.next();
        self.offered = Some(Offered { durability, place, entry, before });
        Ok(position)
    }

    /// Writes the entry that was offered, if one was.
    ///
    /// # Errors
    /// The storage failed. The entry is taken back: its time and its position are free. A caller that offers it again, with less
    /// durability, gives it to those readers that have not had it; one that does not calls [`LogWriter::skip`].
    pub fn store(&mut self) -> Result<(), StorageError> {
        let Some(offered) = self.offered.take() else { return Ok(()) };
        let Offered { durability, place, entry, before } = &offered;
        let written = self
            .storage
            .write_at(place.segment, place.start, &entry.meta)
            .and_then(|()| self.storage.write_at(place.segment, place.body_start(), &entry.body))
            .and_then(|()| self.publish(entry.position, entry.at, place));
        if let Err(error) = written {
            self.shared.index().withdraw(*before);
            self.last = *before;
            self.next = entry.position;
            return Err(error);
        }
        if !self.storage.hands_newest() {
            self.shared.index().release_newest();
        }
        if *durability == Durability::Disk {
            let bytes = entry.meta.len() + entry.body.len();
            self.storage.request(entry.position.next(), bytes as u64);
        }
        Ok(())
    }

    /// Gives up the position of an entry that was taken back: readers that come to it learn that one is missing.
    ///
    /// # Errors
    /// The storage failed.
    pub fn skip(&mut self) -> Result<(), StorageError> {
        // Positions within a segment run without gap: nothing is added to this one any more, even if it cannot be ended now.
        let ended = self.end_segment();
        if let Some(active) = &mut self.active {
            active.slots_max = active.slots_used;
        }
        self.shared.index().skip();
        self.next = self.next.next();
        ended
    }

    /// Drops nothing from now on to make room: an append that finds none is refused with [`AppendError::Full`].
    pub(crate) fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    /// Whether segments may come out of what the storage holds in reserve, where there is no other room. Returns whether they might
    /// before.
    pub(crate) fn use_reserve(&mut self, may: bool) -> bool {
        std::mem::replace(&mut self.may_use_reserve, may)
    }

    /// Bytes that the segment that is being filled has left.
    pub(crate) fn room(&self) -> usize {
        self.active.map_or(0, |active| {
            let used = active.used + self.framing.entry_slot * active.slots_used;
            active.len.saturating_sub(used + self.framing.segment_tail)
        })
    }

    pub(crate) fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Sees to it that an entry of so many bytes, meta and body together, can be appended.
    ///
    /// # Errors
    /// As [`LogWriter::append`], the time aside.
    pub(crate) fn ensure(&mut self, bytes: usize) -> Result<(), AppendError> {
        self.place(0, bytes).map(drop)
    }

    /// Asks that the entries before `end` survive a loss of power soon.
    pub(crate) fn request(&mut self, end: Position, bytes: u64) -> Result<(), AppendError> {
        self.storage.admit(Durability::Disk)?;
        self.storage.request(end, bytes);
        Ok(())
    }

    /// Reserves room for one entry whose body of `body_bytes` is then assembled in place: no copy at all.
    ///
    /// # Errors
    /// As [`LogWriter::append`], the time aside.
    pub fn reserve(
        &mut self,
        meta: &[u8],
        body_bytes: usize,
    ) -> Result<Reservation<'_, S>, AppendError> {
        let place = self.place(meta.len(), body_bytes)?;
        self.storage.write_at(place.segment, place.start, meta)?;
        Ok(Reservation { writer: self, place })
    }

    /// Appends one entry whose body `fill` writes in place. The bytes it gets hold what an earlier lap of
    /// this log left there, so it must write all of them.
    ///
    /// # Errors
    /// As [`LogWriter::append`].
    pub fn append_with(
        &mut self,
        at: Instant,
        meta: &[u8],
        body_bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Position, AppendError> {
        self.check_time(at)?;
        let mut reservation = self.reserve(meta, body_bytes)?;
        fill(reservation.body()?);
        reservation.commit(at)
    }

    /// Gets ready for an entry of up to `bytes`, meta and body together, which is then appended sooner.
    ///
    /// Its memory is taken now; to be called when there is time for that. It does nothing where such an entry
    /// will begin a segment.
    pub fn prepare(&mut self, bytes: usize) {
        if let Some(active) = self.active
            && self.fits(&active, bytes)
        {
            let end = active.used + self.framing.entry_head + bytes;
            self.storage.prepare(active.id, active.used..end);
        }
    }

    /// Asks the storage to make what was appended outlive the process. Entries before the returned
    /// position do; in memory that is never more than the oldest kept.
    ///
    /// # Errors
    /// The storage failed; results of earlier calls stay true.
    pub fn flush(&mut self) -> Result<Position, StorageError> {
        loop {
            let index = self.shared.index();
            let from = match index.next_from(self.durable) {
                Next::Gone(kept, _) => kept,
                Next::Kept(_) | Next::Ahead => self.durable,
            };
            let unflushed = index
                .segment_of(from)
                .map(|segment| (segment.id, segment.first, segment.end, segment.next()));
            drop(index);
            self.durable = from;
            let Some((id, first, end, next)) = unflushed else { return Ok(from) };
            let reached = self.storage.flush(id, 0..end)?;
            let index = self.shared.index();
            let durable = match index.segment_of(from) {
                Some(segment) if segment.first == first => segment.first_beyond(reached),
                // It is kept no longer.
                _ => next,
            };
            if durable <= from {
                return Ok(from);
            }
            self.durable = durable;
        }
    }

    /// Time of the newest entry ever appended.
    pub fn last_at(&self) -> Option<Instant> {
        self.last
    }

    /// Bytes that storage and index hold now, pinned segments included.
    pub fn bytes_held(&mut self) -> u64 {
        let index_bytes =
            if self.framing.log_keeps_slots() { self.shared.index().slot_bytes() } else { 0 };
        self.storage.bytes_held() + index_bytes
    }

    /// The largest entry, meta and body together, in bytes.
    pub fn entry_bytes_max(&self) -> usize {
        self.framing.entry_bytes_max(self.config.segment_bytes as usize)
    }

    /// Drops the oldest segments whose newest entry is before `at`, the one being filled aside: retention by age. Returns how many.
    ///
    /// # Errors
    /// The storage failed; entries dropped before stay dropped.
    pub fn expire(&mut self, at: Instant) -> Result<usize, StorageError> {
        self.drop_while(|segment| segment.last_at().is_some_and(|last| last < at))
    }

    /// Drops the oldest segments that have only entries before `position`, the one being filled aside: they were all consumed.
    /// Returns how many.
    ///
    /// # Errors
    /// As [`LogWriter::expire`].
    pub fn release(&mut self, position: Position) -> Result<usize, StorageError> {
        self.drop_while(|segment| segment.next() <= position)
    }

    fn drop_while(
        &mut self,
        is_done: impl Fn(&IndexSegment<S::Segment>) -> bool,
    ) -> Result<usize, StorageError> {
        let mut dropped = 0;
        loop {
            let index = self.shared.index();
            let mut segments = index.segments();
            let is_done = segments.next().is_some_and(&is_done) && segments.next().is_some();
            drop(segments);
            drop(index);
            if !is_done {
                return Ok(dropped);
            }
            self.drop_oldest()?;
            dropped += 1;
        }
    }

    fn check_time(&self, at: Instant) -> Result<(), AppendError> {
        match self.last {
            Some(last) if at <= last => Err(AppendError::Timestamp { at, last }),
            _ => Ok(()),
        }
    }

    /// Finds room for an entry: in the segment that is being filled, else in a new one.
    fn place(&mut self, meta_bytes: usize, body_bytes: usize) -> Result<Place, AppendError> {
        assert!(self.offered.is_none(), "an offered entry is stored before another is appended");
        let bytes = meta_bytes.saturating_add(body_bytes);
        let bytes_max = self.entry_bytes_max();
        if bytes > bytes_max {
            return Err(AppendError::TooLarge { bytes, bytes_max });
        }
        let active = match self.active {
            Some(active) if self.fits(&active, bytes) && !self.storage.is_broken(active.id) => {
                active
            }
            _ => self.start_segment(bytes)?,
        };
        let checked = "an entry is no larger than a segment, which is below 4 GiB";
        Ok(Place {
            segment: active.id,
            start: active.used + self.framing.entry_head,
            meta_bytes: u32::try_from(meta_bytes).expect(checked),
            body_bytes: u32::try_from(body_bytes).expect(checked),
        })
    }

    /// Whether a segment that is being filled has room for one more entry of `bytes`.
    fn fits(&self, active: &Active, bytes: usize) -> bool {
        let framing = self.framing;
        let used = active.used + framing.entry_slot * active.slots_used;
        let needed = framing.entry_head + bytes + framing.entry_slot + framing.segment_tail;
        let room = active.len.saturating_sub(used);
        needed + framing.entry_align - 1 <= room && active.slots_used < active.slots_max
    }

    /// Makes a written entry readable.
    fn commit(&mut self, at: Instant, place: Place) -> Result<Position, AppendError> {
        self.publish(self.next, at, &place)?;
        self.last = Some(at);
        self.next = self.next.next();
        Ok(self.shared.index().push(place.slot(at)))
    }

    /// Has the storage keep a written entry.
    fn publish(
        &mut self,
        position: Position,
        at: Instant,
        place: &Place,
    ) -> Result<(), StorageError> {
        self.storage.publish(place.segment, &Written { position, slot: place.slot(at) })?;
        let active = self.active.as_mut().expect("the entry was placed in it");
        active.used = place.end().next_multiple_of(self.framing.entry_align);
        active.slots_used += 1;
        Ok(())
    }

    /// Ends the segment that is being filled.
    fn end_segment(&mut self) -> Result<(), StorageError> {
        let slots = self.slots_needed();
        let Some(full) = self.active else { return Ok(()) };
        if full.slots_used > 0 {
            self.storage.seal(full.id)?;
        } else {
            // It broke before it was used.
            self.storage.remove(full.id)?;
            self.shared.index().pop_newest();
        }
        self.active = None;
        self.slots = slots;
        Ok(())
    }

    /// Starts a new segment for an entry of so many bytes, dropping the oldest as the limit demands.
    fn start_segment(&mut self, bytes: usize) -> Result<Active, AppendError> {
        // Where nothing is dropped, what is left of a segment is given up only if there is another one.
        let secured = if self.keeps_all { self.secure(bytes)? } else { Secured::Usual };
        self.end_segment()?;
        let slots = self.slots;
        self.store_slots();
        let (id, segment, len) = self.begin_segment(secured, slots)?;
        let mut index_slots = std::mem::take(&mut self.spare_slots);
        if index_slots.capacity() != slots {
            index_slots = Vec::with_capacity(slots);
        }
        self.shared.index().push_segment(id, segment, index_slots);
        let used = self.framing.segment_head;
        let active = Active { id, len, used, slots_used: 0, slots_max: slots };
        self.active = Some(active);
        while let Some(surplus) = self.storage.surplus().filter(|&surplus| surplus != id) {
            self.storage.remove(surplus)?;
            let dropped = self.shared.index().remove_segment(surplus);
            self.reuse_slots(dropped.and_then(IndexSegment::into_slots));
        }
        Ok(active)
    }

    /// Finds room for a segment in which an entry of so many bytes fits, a smaller one where the medium has no room for one of the
    /// usual size. The first one of all is as small as may be: where logs begin together on a medium that is nearly full, the first must
    /// not take what the next ones need to begin.
    fn secure(&mut self, bytes: usize) -> Result<Secured, AppendError> {
        let mut len = self.config.segment_bytes as usize;
        if self.shared.index().first() == self.next {
            let fits = |len: &usize| self.framing.entry_bytes_max(*len) >= bytes;
            let sizes = std::iter::successors(Some(SEGMENT_BYTES_MIN), |len| len.checked_mul(2));
            len = sizes.take_while(|size| *size < len).find(fits).unwrap_or(len);
        }
        let refused = loop {
            let secured = self.make_room(len as u64);
            let secured = secured.and_then(|()| Ok(self.storage.secure(len)?));
            match secured {
                Ok(()) => return Ok(Secured::Of(len)),
                Err(error @ AppendError::Storage(StorageError::Full { .. })) => {
                    len /= 2;
                    if len < SEGMENT_BYTES_MIN || self.framing.entry_bytes_max(len) < bytes {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        if self.may_use_reserve && refused.code() == Code::STORAGE_FULL {
            return Ok(Secured::InReserve(refused));
        }
        Err(refused)
    }

    /// A new segment from the storage, and its length. Where the medium has no room for it, the oldest may have to go.
    fn begin_segment(
        &mut self,
        secured: Secured,
        slots: usize,
    ) -> Result<(SegmentId, S::Segment, usize), AppendError> {
        let usual = self.config.segment_bytes as usize;
        let len = match secured {
            Secured::Of(len) => len,
            Secured::Usual => {
                let index_bytes =
                    if self.framing.log_keeps_slots() { slots * Slot::BYTES } else { 0 };
                self.make_room((usual + index_bytes) as u64)?;
                usual
            }
            Secured::InReserve(refused) => {
                let created = self.storage.create_reserved(self.begin())?;
                return created.ok_or(refused);
            }
        };
        loop {
            match self.storage.create(len, self.begin()) {
                Err(StorageError::Full { .. }) if self.storage.gives_way() => self.drop_oldest()?,
                created => {
                    let (id, segment) = created?;
                    return Ok((id, segment, len));
                }
            }
        }
    }

    fn begin(&self) -> Begin {
        Begin { position: self.next, last: self.last, kept: self.shared.index().first() }
    }

    /// Lets go of slots that the storage keeps by now.
    fn store_slots(&mut self) {
        loop {
            let oldest = self.shared.index().oldest_held();
            let Some(id) = oldest.filter(|&id| self.storage.is_stored(id)) else { return };
            let slots = self.shared.index().release_slots(id);
            self.reuse_slots(slots);
        }
    }

    fn reuse_slots(&mut self, slots: Option<Vec<Slot>>) {
        if let Some(mut slots) = slots {
            slots.clear();
            self.spare_slots = slots;
        }
    }

    /// Index slots for the next segment: twice as many if they ran out before the bytes did, half as many
    /// if three in four were never used.
    ///
    /// So no index ever grows under its lock, and small entries do not make it large beyond measure: the
    /// slots of a segment take at most as much memory as the segment.
    fn slots_needed(&self) -> usize {
        if !self.framing.log_keeps_slots() {
            return self.slots;
        }
        let slots = match self.active {
            Some(active) if active.slots_used == active.slots_max => self.slots.saturating_mul(2),
            Some(active) if active.slots_used < active.slots_max / 4 => (self.slots / 2).max(4),
            _ => self.slots,
        };
        slots.min(slots_max(&self.config, self.framing))
    }

    /// Drops oldest segments until `needed` bytes fit under the limit.
    fn make_room(&mut self, needed: u64) -> Result<(), AppendError> {
        let bytes_max = self.config.bytes_max;
        loop {
            let held = self.bytes_held();
            let excess = (held + needed).saturating_sub(bytes_max);
            if excess == 0 {
                return Ok(());
            }
            if self.keeps_all {
                return Err(AppendError::Full { held, bytes_max });
            }
            // A reader may pin the oldest segments, and dropping those frees nothing. If dropping all
            // would not free enough, keep what can still be read.
            let victims = self.victims(excess).ok_or(AppendError::Pinned { held, bytes_max })?;
            for _ in 0..victims {
                self.drop_oldest()?;
            }
        }
    }

    /// How many of the oldest segments to drop to free `excess` bytes, if that frees as much.
    fn victims(&self, excess: u64) -> Option<usize> {
        let index = self.shared.index();
        let mut freed = 0;
        let frees_enough = |segment: &IndexSegment<S::Segment>| {
            let index_bytes = if self.framing.log_keeps_slots() { segment.slot_bytes() } else { 0 };
            freed += self.storage.bytes_removable(segment.id) + index_bytes;
            freed >= excess
        };
        index.segments().position(frees_enough).map(|last| last + 1)
    }

    fn drop_oldest(&mut self) -> Result<(), StorageError> {
        let Some(id) = self.shared.index().segments().next().map(|segment| segment.id) else {
            return Ok(());
        };
        self.storage.remove(id)?;
        let dropped = self.shared.index().pop_segment();
        self.reuse_slots(dropped.and_then(IndexSegment::into_slots));
        Ok(())
    }
}

fn slots_max(config: &LogConfig, framing: Framing) -> usize {
    let segment_bytes = config.segment_bytes as usize;
    let most = segment_bytes / if framing.log_keeps_slots() { Slot::BYTES } else { 1 };
    most.min(framing.entries_max(segment_bytes)).max(1)
}

/// Room in the log for one entry, to be filled and then committed. Dropping it appends nothing.
///
/// A receiver assembles a frame here as its pieces arrive, in any order.
pub struct Reservation<'log, S: Storage = Memory> {
    writer: &'log mut LogWriter<S>,
    place: Place,
}

impl<S: Storage> Reservation<'_, S> {
    /// The bytes of the body. They hold what an earlier lap of this log left there: write all of them.
    ///
    /// # Errors
    /// The storage failed.
    pub fn body(&mut self) -> Result<&mut [u8], AppendError> {
        let range = self.place.body_start()..self.place.end();
        Ok(self.writer.storage.buffer(self.place.segment, range)?)
    }

    /// Appends the entry.
    ///
    /// # Errors
    /// The time is not later than that of the entry before, or the storage failed.
    pub fn commit(self, at: Instant) -> Result<Position, AppendError> {
        self.writer.check_time(at)?;
        self.writer.commit(at, self.place)
    }
}

/// Why an entry was not appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The time is not later than that of the entry before.
    #[error("the time {at} is not later than {last}, that of the entry before")]
    Timestamp {
        /// The time given.
        at: Instant,
        /// The time of the newest entry.
        last: Instant,
    },
    /// The entry is larger than a segment.
    #[error(
        "an entry has at most {bytes_max} bytes, this one has {bytes}; make the segments larger"
    )]
    TooLarge {
        /// Meta and body of the entry.
        bytes: usize,
        /// Size of a segment.
        bytes_max: usize,
    },
    /// Readers hold entries in so many segments that none can be used again.
    #[error(
        "readers pin the {held} bytes that the log holds of at most {bytes_max}; wait until they let \
         entries go, or allow the log more"
    )]
    Pinned {
        /// Bytes that the log holds.
        held: u64,
        /// Its limit.
        bytes_max: u64,
    },
    /// Nothing is dropped to make room, and there is none.
    #[error(
        "the {held} bytes that are kept leave no room for more of at most {bytes_max}; release some, \
         or allow more"
    )]
    Full {
        /// Bytes held.
        held: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The storage failed.
    #[error("the storage of the log failed")]
    Storage(#[from] StorageError),
}

impl AppendError {
    /// The stable code of this error.
    pub fn code(&self) -> Code {
        match self {
            Self::Timestamp { .. } => Code::FRAME_TIMESTAMP,
            Self::TooLarge { .. } => Code::FRAME_TOO_LARGE,
            Self::Pinned { .. } => Code::LIMIT_REACHED,
            Self::Full { .. } => Code::STORAGE_FULL,
            Self::Storage(error) => error.code(),
        }
    }
}
