//! Buffers that an io_uring hands out itself: a request without a buffer of its own takes one when bytes are there (kernel 5.19).

use std::{
    io,
    mem::size_of,
    sync::atomic::{AtomicU16, Ordering},
};

use io_uring::{IoUring, types};
use memmap2::MmapMut;

/// Buffers of one size, and the ring of those that the kernel may use.
pub(crate) struct Pool {
    /// Of [`types::BufRingEntry`].
    entries: MmapMut,
    buffers: MmapMut,
    buffer_bytes: usize,
    count: u16,
    tail: u16,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} buffers of {} bytes", self.count, self.buffer_bytes)
    }
}

impl Pool {
    /// `count` is a power of two.
    pub(crate) fn new(count: u16, buffer_bytes: usize) -> io::Result<Self> {
        debug_assert!(count.is_power_of_two());
        Ok(Self {
            entries: MmapMut::map_anon(usize::from(count) * size_of::<types::BufRingEntry>())?,
            buffers: MmapMut::map_anon(usize::from(count) * buffer_bytes)?,
            buffer_bytes,
            count,
            tail: 0,
        })
    }

    /// Gives every buffer to the kernel, as `group` of the ring.
    ///
    /// # Safety
    /// The pool must outlive every request of the ring that selects a buffer of the group.
    pub(crate) unsafe fn register(&mut self, ring: &IoUring, group: u16) -> io::Result<()> {
        let entries = self.entries.as_ptr() as u64;
        // SAFETY: `entries` is page-aligned memory of `count` entries; the caller keeps it mapped as long as the kernel uses it.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries, self.count, group, 0)? };
        for buffer in 0..self.count {
            self.provide(buffer);
        }
        self.publish();
        Ok(())
    }

    /// The first bytes of a buffer that is not the kernel's now.
    pub(crate) fn held(&self, buffer: u16, bytes: usize) -> &[u8] {
        let at = usize::from(buffer) * self.buffer_bytes;
        &self.buffers[at..at + bytes.min(self.buffer_bytes)]
    }

    /// Puts a buffer into the ring; the kernel sees it with [`publish`](Self::publish).
    pub(crate) fn provide(&mut self, buffer: u16) {
        let at = usize::from(self.tail & (self.count - 1));
        let start = self.buffers.as_mut_ptr() as u64 + u64::from(buffer) * self.buffer_bytes as u64;
        let base: *mut types::BufRingEntry = self.entries.as_mut_ptr().cast();
        // SAFETY: `at` is less than `count`, of which `entries` has as many, aligned to a page; the kernel reads entries only
        // before the tail that was published, and this one is not. Of the first one the last two bytes are the tail, which
        // setting address, length and number leaves alone.
        unsafe {
            let entry = &mut *base.add(at);
            entry.set_addr(start);
            entry.set_len(self.buffer_bytes as u32);
            entry.set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    pub(crate) fn publish(&mut self) {
        let base: *mut types::BufRingEntry = self.entries.as_mut_ptr().cast();
        // SAFETY: `base` is the first entry of the ring, and the tail in it is two aligned bytes that only this thread writes.
        let tail = unsafe { AtomicU16::from_ptr(types::BufRingEntry::tail(base).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
