//! Memory regions that one writer fills while readers hold slices of what is filled.
//!
//! ```text
//!  0                published                               len
//!  ├── final bytes ────┼──── the writer's bytes ─────────────┤
//!  │  Region::slice    │  RegionWriter::buffer, write        │
//!  └─ shared, no copy  └─ exclusive, until publish ──────────┘
//! ```
//!
//! The boundary `published` only moves up. Readers reach what lies below it, the writer what lies above,
//! so no byte is ever read and written at once. To be filled a second time the region is
//! [reset](RegionWriter::reset), which succeeds only if the writer is its sole owner.
//!
//! A region is memory of its own, or the bytes of a [file](crate::folder) whose folder this process has locked.
//!
//! Always true: a byte below `published` does not change while a slice or a [`Region`] of it exists (of a file: by this process);
//! a slice keeps the whole region mapped; memory is taken from the kernel page by page, as it is touched.

use std::{
    fs::File,
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use crate::{
    lock::MapHold,
    memory::page_bytes,
    sigbus::{self, Guard},
};

/// Copies of at least this many bytes go past the cache.
///
/// A plain copy first fetches every line it is about to overwrite, and pushes others out of the cache:
/// for 1.74 MB into a warm ring of 1 GiB that took 183 µs, and 105 µs with stores past the cache.
/// Smaller writes stay in the second-level cache, where the next reader finds them.
const STREAMED_BYTES_MIN: usize = 256 << 10;

/// The readers' end of a region: gives out slices of what is published.
///
/// Cloning is cheap; each clone and each slice pins the region.
#[derive(Clone)]
pub struct Region {
    shared: Arc<Shared>,
}

/// The one writer of a region.
pub struct RegionWriter {
    shared: Arc<Shared>,
    published: usize,
    touched: usize,
}

struct Shared {
    // Fields go in this order: the guard ends before its map does, and the file is held longest.
    guard: Option<Guard>,
    map: MmapRaw,
    published: AtomicUsize,
    /// Whether what is written does not reach the file.
    is_private: bool,
    _hold: Option<MapHold>,
}

impl Region {
    /// Maps a new region of `len` zero bytes; no memory is taken before it is touched.
    ///
    /// # Errors
    /// `len` is 0 (`InvalidInput`), or the kernel refuses to map that much.
    pub fn anonymous(len: usize) -> io::Result<(RegionWriter, Self)> {
        if len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a region has at least 1 byte",
            ));
        }
        let map = MmapRaw::from(MmapOptions::new().len(len).map_anon()?);
        let writer = RegionWriter::new(map, None, false, None);
        let region = writer.region();
        Ok((writer, region))
    }

    /// Bytes from the start that are final and readable.
    pub fn published(&self) -> usize {
        // Pairs with the store in `RegionWriter::publish`: a thread that sees the boundary sees the bytes.
        self.shared.published.load(Ordering::Acquire)
    }

    /// Takes the memory of `range` now, and readies it for being written, so that the writer meets no page fault there.
    ///
    /// Changes no byte, so it may be called while the writer writes and others read.
    ///
    /// # Errors
    /// The range lies beyond the region, or the kernel refuses (Linux before 5.14 knows no such request).
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        if range.start > range.end || range.end > self.shared.map.len() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        self.shared.map.advise_range(Advice::PopulateWrite, range.start, range.len())
    }

    /// Whether a page of the region's file could not be reached and was replaced by zeros.
    pub fn is_damaged(&self) -> bool {
        self.shared.is_damaged()
    }

    /// The published bytes in `range`, shared and not copied; they pin the region until dropped.
    ///
    /// Takes one small allocation, for the count of the slice's own clones. An empty slice pins nothing.
    ///
    /// # Errors
    /// Part of the range is not published, or the range is reversed.
    pub fn slice(&self, range: Range<usize>) -> Result<Bytes, RegionError> {
        let published = self.published();
        if range.start > range.end || range.end > published {
            let Range { start, end } = range;
            return Err(RegionError::Unpublished { start, end, published });
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        Ok(Bytes::from_owner(Slice { shared: Arc::clone(&self.shared), range }))
    }
}

impl RegionWriter {
    fn new(map: MmapRaw, guard: Option<Guard>, is_private: bool, hold: Option<MapHold>) -> Self {
        let published = AtomicUsize::new(0);
        let shared = Shared { guard, map, published, is_private, _hold: hold };
        Self { shared: Arc::new(shared), published: 0, touched: 0 }
    }

    /// Maps `len` bytes of a file that `hold` keeps others of this process from mapping. Of one that was opened for reading only,
    /// this process has changes to itself.
    pub(crate) fn of_file(
        file: &File,
        len: usize,
        is_read_only: bool,
        hold: MapHold,
    ) -> io::Result<Self> {
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is empty"));
        }
        let mut options = MmapOptions::new();
        options.len(len);
        let map = if is_read_only {
            // SAFETY: others may change the file under the map, as they may one that is shared; it is reached through raw pointers
            // in either case, and what is read is checked.
            MmapRaw::from(unsafe { options.map_copy(file) }?)
        } else {
            options.map_raw(file)?
        };
        let guard = sigbus::guard(map.as_ptr(), len)?;
        Ok(Self::new(map, Some(guard), is_read_only, Some(hold)))
    }

    /// Whether what is written does not reach the file, which was opened for reading only.
    pub fn is_private(&self) -> bool {
        self.shared.is_private
    }

    /// Whether a page of the region's file could not be reached and was replaced by zeros: writes to it are lost.
    pub fn is_damaged(&self) -> bool {
        self.shared.is_damaged()
    }

    /// Another handle for readers.
    pub fn region(&self) -> Region {
        Region { shared: Arc::clone(&self.shared) }
    }

    /// Size of the region in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never of size 0")]
    pub fn len(&self) -> usize {
        self.shared.map.len()
    }

    /// Bytes from the start that are final and readable.
    pub fn published(&self) -> usize {
        self.published
    }

    /// Memory that the region has taken from the kernel, in bytes: pages that were ever written or
    /// prefaulted.
    pub fn taken_bytes(&self) -> usize {
        self.touched.next_multiple_of(page_bytes()).min(self.len())
    }

    /// Whether anyone else holds the region or a slice of it apart from `handles` known [`Region`]s.
    ///
    /// By the time the caller acts on the answer it may have changed; only [`RegionWriter::reset`] proves.
    pub fn is_pinned_beyond(&self, handles: usize) -> bool {
        Arc::strong_count(&self.shared) > 1 + handles
    }

    /// The unpublished bytes in `range`, to be written in place.
    ///
    /// They hold zeros, or what an earlier filling of the region left there.
    ///
    /// # Errors
    /// Part of the range is published, or lies beyond the region.
    pub fn buffer(&mut self, range: Range<usize>) -> Result<&mut [u8], RegionError> {
        let start = self.check(&range)?;
        self.touched = self.touched.max(range.end);
        // SAFETY: `check` has shown that the range lies within the map, which lives as long as `self`, and
        // not below `published`. Slices end at or below `published`, so none overlaps, and `&mut self`
        // excludes a second buffer and every `publish` while this one lives. A mapped page is initialized.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, range.len()) })
    }

    /// Copies `bytes` to `offset`, above what is published. They become readable by
    /// [`RegionWriter::publish`].
    ///
    /// # Errors
    /// The bytes would touch what is published, or reach beyond the region.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        let end = offset.saturating_add(bytes.len());
        if end > self.touched && bytes.len() >= STREAMED_BYTES_MIN {
            // Taking the pages of a large copy at once costs two thirds of taking them fault by fault.
            // Where the kernel refuses, the copy below faults, and what is wrong with the range it says.
            let _ = self.prefault(self.touched.max(offset)..end);
        }
        copy(bytes, self.buffer(offset..offset.saturating_add(bytes.len()))?);
        Ok(())
    }

    /// Makes all bytes below `end` final and readable.
    ///
    /// # Errors
    /// `end` lies below what is published already, or beyond the region.
    pub fn publish(&mut self, end: usize) -> Result<(), RegionError> {
        self.check(&(end..end))?;
        self.published = end;
        self.touched = self.touched.max(end);
        self.shared.published.store(end, Ordering::Release);
        Ok(())
    }

    /// Starts over with nothing published, if the region has no other holder. Returns whether it did.
    pub fn reset(&mut self) -> bool {
        // Sole ownership is the proof that no slice exists and that none can be taken. `get_mut` also
        // waits, in the memory model's sense, for the last reads through the handles that were dropped.
        let Some(shared) = Arc::get_mut(&mut self.shared) else { return false };
        *shared.published.get_mut() = 0;
        self.published = 0;
        true
    }

    /// Takes the memory of `range` now, so that writing there meets no page fault.
    ///
    /// # Errors
    /// Part of the range is published or lies beyond the region, or the kernel has no memory left
    /// (Linux before 5.14 knows no such request, and refuses it too).
    pub fn prefault(&mut self, range: Range<usize>) -> io::Result<()> {
        self.check(&range).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.shared.map.advise_range(Advice::PopulateWrite, range.start, range.len())?;
        self.touched = self.touched.max(range.end);
        Ok(())
    }

    /// Gives back the memory above what is published, such as an earlier filling left behind.
    ///
    /// A later write there takes it again, as zeros.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn trim(&mut self) -> io::Result<()> {
        let start = self.published.next_multiple_of(page_bytes());
        if start < self.touched {
            let len = self.touched - start;
            // SAFETY: discarding pages is unsafe because it changes bytes that a reader may hold. These
            // lie above `published`, rounded up to a page, so no slice covers them, and `&mut self`
            // excludes a buffer.
            unsafe {
                self.shared.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, len)?
            };
        }
        self.touched = self.published;
        Ok(())
    }

    /// Address of the start of a range, if the writer owns all of it.
    fn check(&self, range: &Range<usize>) -> Result<*mut u8, RegionError> {
        let Range { start, end } = *range;
        if start < self.published {
            return Err(RegionError::Published { start, end, published: self.published });
        }
        if end < start || end > self.len() {
            return Err(RegionError::Beyond { start, end, len: self.len() });
        }
        // SAFETY: `start` lies within the map or one past its end, which `end` has just bounded.
        Ok(unsafe { self.shared.map.as_mut_ptr().add(start) })
    }
}

impl Shared {
    fn is_damaged(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_damaged)
    }
}

/// Owner of one slice; constructed only over published bytes.
struct Slice {
    shared: Arc<Shared>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range was published when the slice was made. Published bytes lie within the map,
        // are initialized, and are not written again before `reset`, which the `Arc` held here prevents.
        unsafe {
            let start = self.shared.map.as_ptr().add(self.range.start);
            std::slice::from_raw_parts(start, self.range.len())
        }
    }
}

/// Copies `source` to `target`, which are of one length.
fn copy(source: &[u8], target: &mut [u8]) {
    // Miri knows no streamed stores.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if source.len() >= STREAMED_BYTES_MIN {
        return copy_past_cache(source, target);
    }
    target.copy_from_slice(source);
}

/// Copies with stores that go around the cache, one line of 64 bytes at a time.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn copy_past_cache(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };

    const LINE_BYTES: usize = 64;
    // The processor's own read-ahead stops at the end of a page. Asking for the next page saves a quarter
    // of the time if the source is in no cache, and costs nothing if it is.
    const AHEAD_BYTES: usize = 4096;
    let head = target.as_ptr().align_offset(LINE_BYTES).min(target.len());
    let (source_head, source) = source.split_at(head);
    let (target_head, target) = target.split_at_mut(head);
    target_head.copy_from_slice(source_head);

    let mut sources = source.chunks_exact(LINE_BYTES);
    let mut targets = target.chunks_exact_mut(LINE_BYTES);
    for (source, target) in (&mut sources).zip(&mut targets) {
        let (from, to) = (source.as_ptr().cast::<__m128i>(), target.as_mut_ptr().cast::<__m128i>());
        // SAFETY: both chunks are 64 bytes, so four vectors of 16 lie within each; loads may be unaligned,
        // and `to` is aligned to 64 because the head was cut off there. A prefetch reads nothing that the
        // program could see, wherever it points. All of it is part of x86-64.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(source.as_ptr().wrapping_add(AHEAD_BYTES).cast());
            let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, vector) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), vector);
            }
        }
    }
    targets.into_remainder().copy_from_slice(sources.remainder());
    // SAFETY: a fence has no precondition. It orders the streamed stores before all later ones, which
    // the publishing store relies on and the memory model demands before anyone reads the bytes.
    unsafe { _mm_sfence() };
}

/// Why a region was not sliced or written as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The range to read is not published as a whole, or is reversed.
    #[error("bytes {start} to {end} are not published; {published} are")]
    Unpublished {
        /// First byte asked for.
        start: usize,
        /// End of what was asked for.
        end: usize,
        /// How many bytes are published.
        published: usize,
    },
    /// The range to write starts in what is published and final.
    #[error("bytes {start} to {end} cannot be written; the first {published} are final")]
    Published {
        /// First byte to be written.
        start: usize,
        /// End of what was to be written.
        end: usize,
        /// How many bytes are published.
        published: usize,
    },
    /// The range to write reaches beyond the region, or is reversed.
    #[error("bytes {start} to {end} lie outside a region of {len}")]
    Beyond {
        /// First byte to be written.
        start: usize,
        /// End of what was to be written.
        end: usize,
        /// Size of the region.
        len: usize,
    },
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn slices_share_the_regions_bytes() {
        let (mut writer, region) = Region::anonymous(100).unwrap();
        writer.write(0, b"frame").unwrap();
        writer.publish(5).unwrap();
        let whole = region.slice(0..5).unwrap();
        let part = region.slice(1..4).unwrap();
        assert_eq!((&whole[..], &part[..]), (&b"frame"[..], &b"ram"[..]));
        assert_eq!(part.as_ptr(), whole[1..].as_ptr());
    }

    #[test]
    fn only_published_bytes_are_read_and_only_others_written() {
        let (mut writer, region) = Region::anonymous(8).unwrap();
        writer.write(0, b"abcd").unwrap();
        assert_eq!(
            region.slice(0..1),
            Err(RegionError::Unpublished { start: 0, end: 1, published: 0 })
        );
        writer.publish(4).unwrap();
        assert_eq!(writer.publish(3).unwrap_err().to_string().split(';').count(), 2);
        assert_eq!(
            writer.write(3, b"x"),
            Err(RegionError::Published { start: 3, end: 4, published: 4 })
        );
        assert_eq!(writer.write(8, b"x"), Err(RegionError::Beyond { start: 8, end: 9, len: 8 }));
        assert_eq!(
            writer.write(usize::MAX, b"xy"),
            Err(RegionError::Beyond { start: usize::MAX, end: usize::MAX, len: 8 })
        );
        #[expect(clippy::reversed_empty_ranges, reason = "a caller may pass one")]
        let reversed = 7..5;
        assert!(writer.buffer(reversed.clone()).is_err());
        assert!(region.slice(reversed).is_err());
        assert!(region.slice(4..4).unwrap().is_empty());
        assert!(Region::anonymous(0).is_err());
        assert!(Region::anonymous(usize::MAX).is_err());
    }

    #[test]
    fn reset_waits_for_every_handle_and_slice() {
        let (mut writer, region) = Region::anonymous(8).unwrap();
        writer.write(0, b"old").unwrap();
        writer.publish(3).unwrap();
        let slice = region.slice(0..3).unwrap();
        assert!(writer.is_pinned_beyond(1));
        drop(region);
        assert!(writer.is_pinned_beyond(0));
        assert!(!writer.reset(), "a slice still pins it");
        assert_eq!(&slice[..], b"old");
        drop(slice);
        assert!(writer.reset());
        assert_eq!((writer.published(), writer.taken_bytes()), (0, 8));
        assert_eq!(writer.buffer(0..3).unwrap(), b"old", "the memory is the same");
    }

    #[test]
    fn slices_outlive_their_region() {
        let (mut writer, region) = Region::anonymous(4).unwrap();
        writer.write(0, b"kept").unwrap();
        writer.publish(4).unwrap();
        let slice = region.slice(0..4).unwrap();
        drop((writer, region));
        assert_eq!(&slice[..], b"kept");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no madvise")]
    fn touched_pages_are_taken_and_trimmed_ones_given_back() {
        let page = page_bytes();
        let (mut writer, region) = Region::anonymous(16 * page).unwrap();
        assert_eq!(writer.taken_bytes(), 0);
        writer.prefault(0..2 * page).unwrap();
        assert_eq!(writer.taken_bytes(), 2 * page);
        writer.write(0, &vec![7; 5 * page]).unwrap();
        assert_eq!(writer.taken_bytes(), 5 * page);
        writer.publish(page + 1).unwrap();
        let slice = region.slice(0..page + 1).unwrap();
        writer.trim().unwrap();
        assert_eq!(writer.taken_bytes(), 2 * page);
        assert!(slice.iter().all(|&byte| byte == 7), "published bytes stay");
        let given_back = writer.buffer(2 * page..5 * page).unwrap();
        assert!(given_back.iter().all(|&byte| byte == 0));
        assert!(writer.prefault(2 * page..17 * page).is_err());
        assert!(writer.prefault(0..page).is_err());
    }

    /// The copy past the cache against the plain one, at every alignment and around its threshold.
    #[test]
    #[cfg_attr(miri, ignore = "copies gigabytes")]
    fn every_copy_is_exact() {
        let source: Vec<u8> = (0..STREAMED_BYTES_MIN + 300).map(|i| (i % 251) as u8).collect();
        let mut target = vec![0_u8; source.len() + 100];
        for (skew, len) in (0..64).flat_map(|skew| {
            [0, 1, 63, 64, 65, 200, STREAMED_BYTES_MIN - 1, STREAMED_BYTES_MIN + 129]
                .map(|len| (skew, len))
        }) {
            let source = &source[skew / 2..][..len];
            for copy in [copy, copy_exactly] {
                target.fill(0xff);
                copy(source, &mut target[skew..skew + len]);
                assert!(target[skew..].starts_with(source), "skew {skew}, {len} bytes");
                assert!(target[..skew].iter().all(|&byte| byte == 0xff));
                assert!(target[skew + len..].iter().all(|&byte| byte == 0xff));
            }
        }

        fn copy_exactly(source: &[u8], target: &mut [u8]) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            copy_past_cache(source, target);
            #[cfg(any(not(target_arch = "x86_64"), miri))]
            copy(source, target);
        }
    }

    #[test]
    fn readers_in_other_threads_see_whole_records_while_the_writer_goes_on() {
        const RECORD_BYTES: usize = 1 << 10;
        const RECORDS: usize = if cfg!(miri) { 16 } else { 1 << 10 };
        let (mut writer, region) = Region::anonymous(RECORDS * RECORD_BYTES).unwrap();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let region = region.clone();
                thread::spawn(move || {
                    let mut seen = 0;
                    while seen < RECORDS {
                        let published = region.published() / RECORD_BYTES;
                        for record in seen..published {
                            let start = record * RECORD_BYTES;
                            let slice = region.slice(start..start + RECORD_BYTES).unwrap();
                            assert!(slice.iter().all(|&byte| byte == record as u8));
                        }
                        if published == seen {
                            thread::yield_now();
                        }
                        seen = published;
                    }
                })
            })
            .collect();
        for record in 0..RECORDS {
            let start = record * RECORD_BYTES;
            writer.write(start, &[record as u8; RECORD_BYTES]).unwrap();
            writer.publish(start + RECORD_BYTES).unwrap();
        }
        for reader in readers {
            reader.join().unwrap();
        }
        drop(region);
        assert!(writer.reset());
    }
}
