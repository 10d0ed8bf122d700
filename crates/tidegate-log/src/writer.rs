//! Appending to a log.

use std::sync::Arc;

use tidegate_message::{Code, Instant, Position};

use crate::{
    index::{IndexSegment, Slot},
    log::{LogConfig, Shared},
    memory::Memory,
    storage::{SegmentId, Storage, StorageError},
};

/// The one writer of a log.
pub struct LogWriter<S: Storage = Memory> {
    config: LogConfig,
    storage: S,
    shared: Arc<Shared<S::Segment>>,
    active: Option<Active>,
    /// Slots that the index of the next segment gets.
    slots: usize,
    /// Slots of a dropped segment, to be used again.
    spare_slots: Vec<Slot>,
    last: Option<Instant>,
    durable: Position,
}

/// The segment that is being filled.
#[derive(Clone, Copy)]
struct Active {
    id: SegmentId,
    used: usize,
    slots_used: usize,
    slots_max: usize,
}

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
}

impl<S: Storage> LogWriter<S> {
    pub(crate) fn new(config: LogConfig, storage: S, shared: Arc<Shared<S::Segment>>) -> Self {
        // One entry of 64 KiB on average fills bytes and slots alike; other sizes adapt the slots.
        let slots = usize::try_from(config.segment_bytes >> 16).unwrap_or(usize::MAX).max(4);
        Self {
            slots: slots.min(Self::slots_max(&config)),
            config,
            storage,
            shared,
            active: None,
            spare_slots: Vec::new(),
            last: None,
            durable: Position(0),
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
            self.storage.prepare(active.id, active.used..active.used + bytes);
        }
    }

    /// Asks the storage to make what was appended outlive the process. Entries before the returned
    /// position do; in memory that is never more than the oldest kept.
    ///
    /// # Errors
    /// The storage failed; what an earlier call returned stays true.
    pub fn flush(&mut self) -> Result<Position, StorageError> {
        loop {
            let index = self.shared.index();
            let from = self.durable.max(index.first());
            let unflushed = index
                .segment_of(from)
                .and_then(|segment| Some((segment.id, segment.slots.last()?.end())));
            drop(index);
            self.durable = from;
            let Some((id, end)) = unflushed else { return Ok(from) };
            let reached = self.storage.flush(id, 0..end)?;
            let index = self.shared.index();
            let durable =
                index.segment_of(from).map_or(from, |segment| segment.first_beyond(reached));
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
        self.storage.bytes_held() + self.shared.index().slot_bytes()
    }

    /// The largest entry, meta and body together, in bytes.
    pub fn entry_bytes_max(&self) -> usize {
        self.config.segment_bytes as usize
    }

    fn check_time(&self, at: Instant) -> Result<(), AppendError> {
        match self.last {
            Some(last) if at <= last => Err(AppendError::Timestamp { at, last }),
            _ => Ok(()),
        }
    }

    /// Finds room for an entry: in the segment that is being filled, else in a new one.
    fn place(&mut self, meta_bytes: usize, body_bytes: usize) -> Result<Place, AppendError> {
        let bytes = meta_bytes.saturating_add(body_bytes);
        let bytes_max = self.entry_bytes_max();
        if bytes > bytes_max {
            return Err(AppendError::TooLarge { bytes, bytes_max });
        }
        let active = match self.active {
            Some(active) if self.fits(&active, bytes) => active,
            _ => self.start_segment()?,
        };
        let checked = "an entry is no larger than a segment, which is below 4 GiB";
        Ok(Place {
            segment: active.id,
            start: active.used,
            meta_bytes: u32::try_from(meta_bytes).expect(checked),
            body_bytes: u32::try_from(body_bytes).expect(checked),
        })
    }

    /// Whether a segment that is being filled has room for one more entry of `bytes`.
    fn fits(&self, active: &Active, bytes: usize) -> bool {
        bytes <= self.entry_bytes_max() - active.used && active.slots_used < active.slots_max
    }

    /// Makes a written entry readable.
    fn commit(&mut self, at: Instant, place: Place) -> Result<Position, AppendError> {
        let Place { segment, start, meta_bytes, body_bytes } = place;
        self.storage.publish(segment, place.end())?;
        let active = self.active.as_mut().expect("the entry was placed in it");
        active.used = place.end();
        active.slots_used += 1;
        self.last = Some(at);
        let start = u32::try_from(start).expect("a segment is below 4 GiB");
        Ok(self.shared.index().push(Slot { at, start, meta_bytes, body_bytes }))
    }

    /// Starts a new segment, dropping the oldest as the limit demands.
    fn start_segment(&mut self) -> Result<Active, AppendError> {
        let slots = self.slots_needed();
        if let Some(full) = self.active {
            self.storage.seal(full.id)?;
            self.active = None;
            self.slots = slots;
        }
        self.make_room(self.config.segment_bytes + (slots * Slot::BYTES) as u64)?;
        let (id, segment) = self.storage.create(self.entry_bytes_max())?;
        let mut index_slots = std::mem::take(&mut self.spare_slots);
        if index_slots.capacity() != slots {
            index_slots = Vec::with_capacity(slots);
        }
        self.shared.index().push_segment(id, segment, index_slots);
        let active = Active { id, used: 0, slots_used: 0, slots_max: slots };
        self.active = Some(active);
        Ok(active)
    }

    /// Index slots for the next segment: twice as many if they ran out before the bytes did, half as many
    /// if three in four were never used.
    ///
    /// So no index ever grows under its lock, and small entries do not make it large beyond measure: the
    /// slots of a segment take at most as much memory as the segment.
    fn slots_needed(&self) -> usize {
        let slots = match self.active {
            Some(active) if active.slots_used == active.slots_max => self.slots.saturating_mul(2),
            Some(active) if active.slots_used < active.slots_max / 4 => (self.slots / 2).max(4),
            _ => self.slots,
        };
        slots.min(Self::slots_max(&self.config))
    }

    fn slots_max(config: &LogConfig) -> usize {
        (config.segment_bytes as usize / Slot::BYTES).max(1)
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
            freed += self.storage.bytes_removable(segment.id) + segment.slot_bytes();
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
        if let Some(IndexSegment { mut slots, .. }) = dropped {
            slots.clear();
            self.spare_slots = slots;
        }
        Ok(())
    }
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
        /// What the log holds.
        held: u64,
        /// What it may hold.
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
            Self::Storage(_) => Code::STORAGE_FAILED,
        }
    }
}
