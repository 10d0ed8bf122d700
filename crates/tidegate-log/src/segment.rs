//! A segment file as its readers hold it.

use std::{
    io,
    ops::Range,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use tidegate_message::Position;
use tidegate_sys::region::Region;

use crate::{
    entry::{SegmentId, Slot},
    format::{Proof, SLOT_BYTES, Trailer, Unproven, encode_slot},
    scan::scan,
    seal::MAC_BYTES,
    storage::{Segment, StorageError, StoredSlots},
};

/// The readers' end of a segment file. Sealed content is opened for each reader, into memory of its own.
///
/// An entry is verified each time that it is read: the disk may have changed it, and a file that another program truncates
/// reads as zeros from then on.
#[derive(Clone)]
pub struct FileSegment {
    shared: Arc<Shared>,
}

struct Shared {
    id: SegmentId,
    region: Region,
    proof: Proof,
    /// Once its file keeps its slots: the trailer that it has or will have, and where the slots begin.
    stored: OnceLock<(Trailer, usize)>,
    /// Slots that were found by a scan because those in the file are damaged; `None` if they are whole.
    rebuilt: OnceLock<Option<Bytes>>,
}

impl FileSegment {
    /// A segment that is being filled, or was found without its end.
    pub(crate) fn filling(id: SegmentId, region: Region, proof: Proof) -> Self {
        let shared =
            Shared { id, region, proof, stored: OnceLock::new(), rebuilt: OnceLock::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Says that the file has the slots that the trailer tells of, from `slots_start` on, and that they are readable.
    pub(crate) fn store(&self, trailer: Trailer, slots_start: usize) {
        let _ = self.shared.stored.set((trailer, slots_start));
    }

    pub(crate) fn trailer(&self) -> Option<&Trailer> {
        self.shared.stored.get().map(|(trailer, _)| trailer)
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> StorageError {
        StorageError::Segment { segment: self.shared.id, operation, source }
    }

    /// The slots in the file, if they are whole.
    fn whole_slots(&self) -> Option<Bytes> {
        let region = &self.shared.region;
        let &(trailer, start) = self.shared.stored.get()?;
        let slots = region.slice(start..start + trailer.count as usize * SLOT_BYTES).ok()?;
        // The first reader proves them for all.
        let rebuilt = self.shared.rebuilt.get_or_init(|| {
            let proof = &self.shared.proof;
            let mac = start + slots.len()..start + slots.len() + MAC_BYTES;
            let mac = || region.slice(mac).unwrap_or_default();
            if crc32c::crc32c_append(proof.seed, &slots) == trailer.slots_crc
                && (proof.key.is_none() || proof.are_slots(&slots, &mac()))
            {
                return None;
            }
            let bytes = region.slice(0..trailer.end as usize).unwrap_or_default();
            let found = scan(&bytes, proof, Some(trailer.base));
            let mut slots: Vec<u8> = found.slots.iter().flat_map(encode_slot).collect();
            // Entries lost at the end still have their positions.
            let lost = Slot { at: trailer.last_at, start: 0, meta_bytes: 0, body_bytes: 0 };
            for _ in found.slots.len()..trailer.count as usize {
                slots.extend(encode_slot(&lost));
            }
            Some(Bytes::from(slots))
        });
        Some(rebuilt.clone().unwrap_or(slots))
    }
}

impl Segment for FileSegment {
    fn slice(&self, range: Range<usize>) -> Result<Bytes, StorageError> {
        let refused = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        self.shared.region.slice(range).map_err(|error| self.failed("read", refused(error)))
    }

    fn read(&self, position: Position, slot: &Slot) -> Result<Bytes, StorageError> {
        let damaged = || StorageError::Damaged { segment: self.shared.id, position };
        let start = slot.start as usize;
        let proof = &self.shared.proof;
        let head = start.checked_sub(proof.head_bytes()).ok_or_else(damaged)?;
        let record = self.slice(head..slot.end()).map_err(|_| damaged())?;
        let (head, content) = proof.open(record).map_err(|why| match why {
            Unproven::Damaged => damaged(),
            Unproven::Tampered => StorageError::Tampered { segment: self.shared.id, position },
        })?;
        let is_this = (head.position, head.at, head.meta_bytes, head.body_bytes)
            == (position, slot.at, slot.meta_bytes, slot.body_bytes);
        if is_this { Ok(content) } else { Err(damaged()) }
    }

    fn slots(&self) -> StoredSlots {
        StoredSlots(self.whole_slots().unwrap_or_default())
    }
}
