//! Codes of fields that are kept: the length of a text, or how a number is printed.

use crate::number::{DIGITS_MAX, Format};

/// From this code on it is a number, before it a text of so many bytes.
pub(crate) const NUMBER: u8 = u8::MAX - 2 * DIGITS_MAX as u8 - 1;

/// The code of numbers that are printed so.
pub(crate) fn code_of(format: Format) -> u8 {
    NUMBER + 2 * format.decimals + u8::from(format.trimmed)
}

/// How numbers of a code are printed.
#[inline]
pub(crate) fn format_of(code: u8) -> Format {
    let format = code.wrapping_sub(NUMBER);
    Format { decimals: format / 2, trimmed: format % 2 == 1 }
}
