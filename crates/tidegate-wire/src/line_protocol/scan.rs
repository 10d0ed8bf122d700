//! Where the parts of a line end.
//!
//! A backslash takes its meaning from the character after it: before one that would end the part it says that it does not; before any
//! other it stands for itself.

/// Characters that end a measurement unless a backslash is before them.
pub(super) const OF_MEASUREMENT: &[u8] = b", ";
/// Characters that end the name or the value of a tag, or the name of a field.
pub(super) const OF_NAME: &[u8] = b",= ";

/// A byte order mark, as some editors write it at the beginning of a file.
pub(super) const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Where blanks, tabs and byte order marks before a line end.
pub(super) fn lead_end(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match bytes[at..] {
            [b' ' | b'\t', ..] => at += 1,
            [0xef, 0xbb, 0xbf, ..] => at += BYTE_ORDER_MARK.len(),
            _ => return at,
        }
    }
}

/// Where the name that begins at `at` ends: at one of `ends`, at the end of the line or at the end of all.
pub(super) fn name_end(bytes: &[u8], mut at: usize, ends: &[u8]) -> usize {
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\\' && bytes.get(at + 1).is_some_and(|next| ends.contains(next)) {
            at += 2;
        } else if ends.contains(&byte) || is_line_end(bytes, at) {
            return at;
        } else {
            at += 1;
        }
    }
    at
}

/// Where the text that begins at `at`, behind its quote, is closed; none if it is not.
pub(super) fn text_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)) {
            (b'\\', Some(b'\\' | b'"')) => at += 2,
            (b'"', _) => return Some(at),
            _ => at += 1,
        }
    }
}

/// Where a number, a word or a timestamp ends.
pub(super) fn word_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && !matches!(bytes[at], b',' | b' ') && !is_line_end(bytes, at) {
        at += 1;
    }
    at
}

/// Where the blanks that begin at `at` end.
pub(super) fn blanks_end(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at) == Some(&b' ') {
        at += 1;
    }
    at
}

/// Whether the line ends at `at`.
pub(super) fn is_line_end(bytes: &[u8], at: usize) -> bool {
    matches!(&bytes[at..], [] | [b'\n', ..] | [b'\r'] | [b'\r', b'\n', ..])
}
