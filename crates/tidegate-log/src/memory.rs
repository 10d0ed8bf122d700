//! Segments in memory regions.

use std::{collections::VecDeque, io, ops::Range};

use bytes::Bytes;
use tidegate_sys::region::{Region, RegionError, RegionWriter};

use crate::{
    entry::SegmentId,
    storage::{Begin, Segment, SegmentInfo, Storage, StorageError, Written},
};

/// A storage in memory, which outlives nothing and is recycled.
///
/// A segment takes memory as it is filled, and what an earlier filling left above its end is given back
/// when it is sealed; one that is never filled costs nothing. A removed segment is given to the next [`Storage::create`] of its size, pages and all, as soon
/// as no reader pins it: once a log has wrapped it asks the kernel for nothing more.
///
/// Always true: every region is in exactly one of the three lists; a region is recycled only after
/// [`RegionWriter::reset`] has proven that nothing pins it.
#[derive(Default)]
pub struct Memory {
    live: VecDeque<(SegmentId, RegionWriter)>,
    removed: Vec<(SegmentId, RegionWriter)>,
    spare: Vec<RegionWriter>,
    created: u64,
}

impl Memory {
    /// A storage without segments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves segments that are no longer pinned from `removed` to `spare`.
    fn reclaim(&mut self) {
        for i in (0..self.removed.len()).rev() {
            if self.removed[i].1.reset() {
                self.spare.push(self.removed.swap_remove(i).1);
            }
        }
    }

    fn find(&self, segment: SegmentId, operation: &'static str) -> Result<usize, StorageError> {
        self.live
            .binary_search_by_key(&segment, |(id, _)| *id)
            .map_err(|_| StorageError::Missing { segment, operation })
    }

    fn writer(
        &mut self,
        segment: SegmentId,
        operation: &'static str,
    ) -> Result<&mut RegionWriter, StorageError> {
        let found = self.find(segment, operation)?;
        Ok(&mut self.live[found].1)
    }
}

impl Storage for Memory {
    type Segment = MemorySegment;

    fn create(
        &mut self,
        len: usize,
        _begin: Begin,
    ) -> Result<(SegmentId, MemorySegment), StorageError> {
        self.reclaim();
        // One region is used again; the others go, so that what is held stays what `bytes_held` says.
        let recycled = self.spare.iter().position(|region| region.len() == len);
        let recycled = recycled.map(|i| self.spare.swap_remove(i));
        self.spare.clear();
        let writer = match recycled {
            Some(writer) => writer,
            None => {
                Region::anonymous(len)
                    .map_err(|source| StorageError::Create { bytes: len, source })?
                    .0
            }
        };
        let id = SegmentId(self.created);
        self.created += 1;
        let segment = MemorySegment { id, region: writer.region() };
        self.live.push_back((id, writer));
        Ok((id, segment))
    }

    fn write_at(
        &mut self,
        segment: SegmentId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), StorageError> {
        let writer = self.writer(segment, "write")?;
        writer.write(offset, bytes).map_err(|error| refused(segment, "write", error))
    }

    fn buffer(
        &mut self,
        segment: SegmentId,
        range: Range<usize>,
    ) -> Result<&mut [u8], StorageError> {
        let writer = self.writer(segment, "write")?;
        writer.buffer(range).map_err(|error| refused(segment, "write", error))
    }

    fn prepare(&mut self, segment: SegmentId, range: Range<usize>) {
        let Ok(writer) = self.writer(segment, "prepare") else { return };
        let untouched = range.start.max(writer.taken_bytes())..range.end;
        if !untouched.is_empty() {
            // Where the kernel refuses, the write faults.
            let _ = writer.prefault(untouched);
        }
    }

    fn publish(&mut self, segment: SegmentId, entry: &Written) -> Result<(), StorageError> {
        let writer = self.writer(segment, "publish")?;
        writer.publish(entry.slot.end()).map_err(|error| refused(segment, "publish", error))
    }

    fn seal(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        let writer = self.writer(segment, "seal")?;
        writer.trim().map_err(|source| StorageError::Segment { segment, operation: "seal", source })
    }

    fn flush(&mut self, segment: SegmentId, _range: Range<usize>) -> Result<usize, StorageError> {
        self.find(segment, "flush").map(|_| 0)
    }

    fn list(&self) -> Result<Vec<SegmentInfo>, StorageError> {
        let info = |(id, writer): &(SegmentId, RegionWriter)| SegmentInfo {
            id: *id,
            len: writer.len(),
            published: writer.published(),
        };
        Ok(self.live.iter().map(info).collect())
    }

    fn remove(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        let found = self.find(segment, "remove")?;
        self.removed.extend(self.live.remove(found));
        Ok(())
    }

    fn bytes_held(&mut self) -> u64 {
        self.reclaim();
        let held = |(_, writer): &(SegmentId, RegionWriter)| writer.taken_bytes() as u64;
        self.live.iter().map(held).sum::<u64>() + self.removed.iter().map(held).sum::<u64>()
    }

    fn bytes_removable(&self, segment: SegmentId) -> u64 {
        match self.find(segment, "remove") {
            // The log's index holds one handle of its own and drops it with the segment.
            Ok(found) if !self.live[found].1.is_pinned_beyond(1) => {
                self.live[found].1.taken_bytes() as u64
            }
            _ => 0,
        }
    }
}

fn refused(segment: SegmentId, operation: &'static str, error: RegionError) -> StorageError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, error);
    StorageError::Segment { segment, operation, source }
}

/// The readers' end of a segment in memory.
#[derive(Clone)]
pub struct MemorySegment {
    id: SegmentId,
    region: Region,
}

impl Segment for MemorySegment {
    fn slice(&self, range: Range<usize>) -> Result<Bytes, StorageError> {
        self.region.slice(range).map_err(|error| refused(self.id, "read", error))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::{Instant, Position};

    use super::*;
    use crate::entry::Slot;

    const BEGIN: Begin = Begin { position: Position(0), last: None, kept: Position(0) };

    fn entry(body_bytes: u32) -> Written {
        let slot = Slot { at: Instant::EPOCH, start: 0, meta_bytes: 0, body_bytes };
        Written { position: Position(0), slot }
    }

    #[test]
    fn a_pinned_segment_is_held_until_its_last_slice_goes() {
        let mut memory = Memory::new();
        let (id, segment) = memory.create(64, BEGIN).unwrap();
        assert_eq!(memory.bytes_held(), 0, "a segment without bytes costs nothing");
        memory.write_at(id, 0, b"frame").unwrap();
        memory.publish(id, &entry(5)).unwrap();
        assert_eq!((memory.bytes_held(), memory.bytes_removable(id)), (64, 64));
        let slice = segment.slice(0..5).unwrap();
        assert_eq!(memory.bytes_removable(id), 0, "pinned by the slice");
        drop(segment);
        let clone = slice.clone();
        memory.remove(id).unwrap();
        drop(slice);
        assert_eq!(memory.bytes_held(), 64, "pinned by {clone:?}");
        drop(clone);
        assert_eq!(memory.bytes_held(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no madvise")]
    fn prepared_memory_is_taken_before_it_is_written() {
        let mut memory = Memory::new();
        let (id, _segment) = memory.create(1 << 20, BEGIN).unwrap();
        memory.prepare(id, 0..10_000);
        let taken = memory.bytes_held();
        assert!(taken >= 10_000, "{taken}");
        memory.write_at(id, 0, &[7; 10_000]).unwrap();
        memory.prepare(id, 0..2 << 20);
        assert_eq!(memory.bytes_held(), taken, "bytes beyond the segment are no part of it");
    }

    #[test]
    fn an_unpinned_segment_is_used_again() {
        let mut memory = Memory::new();
        let (first, segment) = memory.create(64, BEGIN).unwrap();
        memory.write_at(first, 0, b"old").unwrap();
        memory.publish(first, &entry(3)).unwrap();
        let address = segment.slice(0..3).unwrap().as_ptr();
        drop(segment);
        memory.remove(first).unwrap();
        let (second, segment) = memory.create(64, BEGIN).unwrap();
        assert!(second > first);
        assert!(segment.slice(0..1).is_err(), "nothing of it is published");
        memory.publish(second, &entry(3)).unwrap();
        assert_eq!(segment.slice(0..3).unwrap().as_ptr(), address);
    }

    #[test]
    fn missing_segments_are_named() {
        let mut memory = Memory::new();
        let missing = SegmentId(7);
        assert_eq!(
            memory.write_at(missing, 0, b"x").unwrap_err().to_string(),
            "there is no segment 7 to write"
        );
        assert!(memory.remove(missing).is_err());
        assert!(memory.flush(missing, 0..1).is_err());
        assert_eq!(memory.bytes_removable(missing), 0);
        let (id, _segment) = memory.create(4, BEGIN).unwrap();
        let error = memory.write_at(id, 2, b"abc").unwrap_err();
        assert_eq!(error.to_string(), "write of segment 0 failed");
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "bytes 2 to 5 lie outside a region of 4");
    }
}
