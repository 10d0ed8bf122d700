//! Buffers for images on their way, which are used again: fresh megabytes cost page faults for each request.
//!
//! Always true: at most [`KEPT_BYTES`] wait to be used again.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex},
};

use bytes::Bytes;

/// Bytes of buffers that are kept.
const KEPT_BYTES: usize = 16 << 20;

/// The buffers that wait to be used again.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    free: Vec<Vec<u8>>,
    bytes: usize,
}

/// A buffer, which returns to the others when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    of: Arc<Buffers>,
}

impl Buffers {
    /// An empty buffer with room for `capacity` bytes.
    pub(crate) fn take(self: &Arc<Self>, capacity: usize) -> Buffer {
        let mut kept = self.0.lock().expect("no panic while it is held");
        // The smallest that has the room, else the largest, which grows.
        let fits = kept.free.partition_point(|buffer| buffer.capacity() < capacity);
        let bytes = match kept.free.len() {
            0 => Vec::new(),
            count => kept.free.remove(fits.min(count - 1)),
        };
        kept.bytes -= bytes.capacity();
        drop(kept);
        let mut buffer = Buffer { bytes, of: self.clone() };
        buffer.bytes.reserve(capacity);
        buffer
    }
}

impl Buffer {
    /// The bytes without a copy; the buffer returns once the last reference to them is dropped.
    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut kept = self.of.0.lock().expect("no panic while it is held");
        if bytes.capacity() > 0 && kept.bytes + bytes.capacity() <= KEPT_BYTES {
            kept.bytes += bytes.capacity();
            let at = kept.free.partition_point(|buffer| buffer.capacity() < bytes.capacity());
            kept.free.insert(at, bytes);
        }
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let buffers = Arc::new(Buffers::default());
        let mut first = buffers.take(1 << 20);
        first.extend_from_slice(b"image");
        let at = first.as_ptr();
        let bytes = first.into_bytes();
        let part = bytes.slice(1..);
        drop(bytes);
        assert_eq!(&*part, b"mage");
        drop(part);
        let again = buffers.take(100);
        assert!(again.is_empty() && again.as_ptr() == at, "the same memory");
        let many: Vec<Buffer> = (0..20).map(|_| buffers.take(1 << 20)).collect();
        drop((again, many));
        assert!(buffers.0.lock().unwrap().bytes <= KEPT_BYTES);
        assert_eq!(buffers.take(17 << 20).capacity(), 17 << 20);
    }
}
