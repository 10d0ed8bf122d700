//! Hints on memory that a program has already.

/// Asks for pages of 2 MiB behind `words`, as far as they lie in whole ones, so that random access to many of them misses the
/// translation of addresses less often.
///
/// A hint: nothing is said where the kernel has no such pages, or too little memory in one piece. What the words hold does not change.
/// Memory that is not touched yet is then taken in such pieces.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_changes_nothing_that_is_read() {
        prefer_large_pages::<u8>(&[]);
        prefer_large_pages(&[1, 2, 3]);
        let mut words = vec![0_u64; 1 << 20];
        words[12_345] = 7;
        prefer_large_pages(&words);
        assert_eq!(words.iter().sum::<u64>(), 7);
    }
}
