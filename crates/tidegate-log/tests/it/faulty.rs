//! A storage that fails on demand.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidegate_log::{
    Begin, Memory, MemorySegment, Segment, SegmentId, SegmentInfo, Storage, StorageError, Written,
};

/// The calls of a storage that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    Write,
    Buffer,
    Publish,
    Seal,
    Flush,
    List,
    Remove,
    Slice,
}

/// Says which calls fail from now on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<AtomicU64>);

impl Faults {
    pub(crate) fn fail(&self, call: Call) {
        self.0.fetch_or(1 << call as u64, Ordering::SeqCst);
    }

    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn check(&self, call: Call) -> io::Result<()> {
        match self.0.load(Ordering::SeqCst) & (1 << call as u64) {
            0 => Ok(()),
            _ => Err(io::Error::other("the medium failed on demand")),
        }
    }
}

/// Memory that fails on demand, and that a flush makes durable up to a bound.
#[derive(Default)]
pub(crate) struct Faulty {
    pub(crate) faults: Faults,
    /// How much of each segment a flush reaches.
    pub(crate) durable_max: usize,
    memory: Memory,
}

impl Faulty {
    fn check(&self, segment: SegmentId, call: Call) -> Result<(), StorageError> {
        self.faults.check(call).map_err(|source| StorageError::Segment {
            segment,
            operation: "this call",
            source,
        })
    }
}

impl Storage for Faulty {
    type Segment = FaultySegment;

    fn create(
        &mut self,
        len: usize,
        begin: Begin,
    ) -> Result<(SegmentId, FaultySegment), StorageError> {
        let failed = |source| StorageError::Create { bytes: len, source };
        self.faults.check(Call::Create).map_err(failed)?;
        let (id, segment) = self.memory.create(len, begin)?;
        Ok((id, FaultySegment { id, segment, faults: self.faults.clone() }))
    }

    fn write_at(
        &mut self,
        segment: SegmentId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), StorageError> {
        if let Err(error) = self.check(segment, Call::Write) {
            // A medium fails in the middle of things.
            self.memory.write_at(segment, offset, &bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.memory.write_at(segment, offset, bytes)
    }

    fn buffer(
        &mut self,
        segment: SegmentId,
        range: Range<usize>,
    ) -> Result<&mut [u8], StorageError> {
        self.check(segment, Call::Buffer)?;
        self.memory.buffer(segment, range)
    }

    fn prepare(&mut self, segment: SegmentId, range: Range<usize>) {
        self.memory.prepare(segment, range);
    }

    fn publish(&mut self, segment: SegmentId, entry: &Written) -> Result<(), StorageError> {
        self.check(segment, Call::Publish)?;
        self.memory.publish(segment, entry)
    }

    fn seal(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        self.check(segment, Call::Seal)?;
        self.memory.seal(segment)
    }

    fn flush(&mut self, segment: SegmentId, range: Range<usize>) -> Result<usize, StorageError> {
        self.check(segment, Call::Flush)?;
        self.memory.flush(segment, range.clone())?;
        Ok(range.end.min(self.durable_max))
    }

    fn list(&self) -> Result<Vec<SegmentInfo>, StorageError> {
        self.faults.check(Call::List).map_err(|source| StorageError::List { source })?;
        self.memory.list()
    }

    fn remove(&mut self, segment: SegmentId) -> Result<(), StorageError> {
        self.check(segment, Call::Remove)?;
        self.memory.remove(segment)
    }

    fn bytes_held(&mut self) -> u64 {
        self.memory.bytes_held()
    }

    fn bytes_removable(&self, segment: SegmentId) -> u64 {
        self.memory.bytes_removable(segment)
    }
}

#[derive(Clone)]
pub(crate) struct FaultySegment {
    id: SegmentId,
    segment: MemorySegment,
    faults: Faults,
}

impl Segment for FaultySegment {
    fn slice(&self, range: Range<usize>) -> Result<Bytes, StorageError> {
        let failed = |source| StorageError::Segment { segment: self.id, operation: "read", source };
        self.faults.check(Call::Slice).map_err(failed)?;
        self.segment.slice(range)
    }
}
