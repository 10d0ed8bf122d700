//! Pages of memory, and hints on memory that a program has already: none changes what it holds, and none must be followed.

/// The granule in which the kernel hands out memory.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: the call has no precondition, and this name is always known.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the kernel has pages")
}

/// Has the allocator give memory that nothing holds any more back to the system: after much was let go of at once. It takes
/// milliseconds for each hundred megabytes, in which other threads may wait for memory.
///
/// A hint: allocators other than that of glibc do so by themselves.
pub fn give_back() {
    // SAFETY: it takes no memory of the program's, and may be called on any thread.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Asks for pages of 2 MiB behind `words`, as far as they lie in whole ones, so that random access to many of them misses the
/// translation of addresses less often.
///
/// A hint: nothing is said where the kernel has no such pages, or too little memory in one piece. The content does not change. Memory
/// that is not touched yet is then taken in such pieces.
pub fn prefer_large_pages<T>(words: &[T]) {
    const PAGE: usize = 2 << 20;
    let range = words.as_ptr_range();
    let start = range.start.addr().next_multiple_of(PAGE);
    let end = range.end.addr() / PAGE * PAGE;
    if start < end {
        let first = range.start.wrapping_byte_add(start - range.start.addr());
        // SAFETY: the pages lie within memory that the caller has borrowed, and this advice leaves their contents as they are.
        unsafe { libc::madvise(first.cast_mut().cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Asks for the cache line that holds `words[index]` to be brought as near as it goes, and does not wait for it. Nothing happens where
/// there is no such word.
///
/// A hint, and a fast one: a load that misses holds up all that comes behind it sooner or later, this does not. For lines that are
/// needed a few loads later: some processors drop a prefetch while a dozen or two are under way; see [`prefetch_many`].
#[inline]
pub fn prefetch<T>(words: &[T], index: usize) {
    if let Some(word) = words.get(index) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program sees, whatever the address; this one is that of a borrowed word.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(word);
    }
}

/// As [`prefetch`], for a hundred lines in a row that are needed much later: they come into the second cache, which waits for more
/// of them at a time than the first, and does not lose what it holds to them. [`prefetch`] brings them near when their turn comes.
#[inline]
pub fn prefetch_many<T>(words: &[T], index: usize) {
    if let Some(word) = words.get(index) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program sees, whatever the address; this one is that of a borrowed word.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(word).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetch_takes_any_index() {
        for index in [0, 2, 3, usize::MAX] {
            prefetch(&[1, 2, 3], index);
            prefetch::<u8>(&[], index);
            prefetch_many(&[1, 2, 3], index);
            prefetch_many::<u8>(&[], index);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no madvise")]
    fn advice_changes_nothing_that_is_read() {
        prefer_large_pages::<u8>(&[]);
        prefer_large_pages(&[1, 2, 3]);
        let mut words = vec![0_u64; 1 << 20];
        words[12_345] = 7;
        prefer_large_pages(&words);
        assert_eq!(words.iter().sum::<u64>(), 7);
    }
}
