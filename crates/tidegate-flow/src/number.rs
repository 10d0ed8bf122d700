//! Decimal numbers in text, read exactly: the float nearest to what is written, or an error.
//!
//! Up to 15 digits fit a float's 53 bits, and so does the power of ten that they are divided by, so that one division rounds
//! once and right. A longer number or one with an exponent goes to the standard library, which is exact as well and slower.

use tidegate_sys::vector::{Work, wide};

/// Powers of ten that a float holds exactly, as far as [`DIGITS_MAX`] needs them.
const TENS: [f64; DIGITS_MAX + 1] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// Digits of a number that is read in one go.
const DIGITS_MAX: usize = 15;

/// Whole numbers up to here are all floats.
pub(crate) const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// Why a text is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberError {
    /// It is written in no way that a decimal number is: `NaN`, `0x10`, `1,5`.
    Form,
    /// It is too large for a float, such as 1e309.
    Range,
}

/// The number that `text` is, blanks around it aside. Leading zeros and a sign `+` are allowed.
pub(crate) fn parse(text: &[u8]) -> Result<f64, NumberError> {
    let text = text.trim_ascii();
    match prefix(text) {
        Some((value, bytes)) if bytes == text.len() => Ok(value),
        _ => parse_slowly(text),
    }
}

/// Whether `value`, which [`parse`] made of `text`, is what is written there and not the whole number next to it. True also of what
/// is no whole number as a float.
///
/// Two texts of the same digits, zeros at their ends aside, differ by a power of ten, and do not have the same nearest float.
#[inline]
pub(crate) fn is_exact_integer(text: &[u8], value: f64) -> bool {
    // Up to 15 digits all differ as floats.
    text.len() <= DIGITS_MAX || value as i64 as f64 != value || has_digits(text, value as i64)
}

/// Whether the digits of `text` are those of `number`, zeros at their ends aside.
#[cold]
fn has_digits(text: &[u8], number: i64) -> bool {
    let mut wanted = number.unsigned_abs();
    while wanted != 0 && wanted.is_multiple_of(10) {
        wanted /= 10;
    }
    let mantissa = text.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    let mut digits =
        mantissa.filter(|byte| byte.is_ascii_digit()).map(|byte| u64::from(byte - b'0'));
    let mut found = 0;
    while found < wanted {
        match digits.next() {
            Some(digit) => found = found * 10 + digit,
            None => return false,
        }
    }
    found == wanted && digits.all(|digit| digit == 0)
}

/// The number that `text` begins with and its bytes, if it is a plain decimal of at most 15 digits.
#[inline(always)]
pub(crate) fn prefix(text: &[u8]) -> Option<(f64, usize)> {
    let negative = text.first() == Some(&b'-');
    let start = usize::from(negative);
    let (mantissa, whole) = digits(text, start, 0);
    let mut end = start + whole;
    let (mut mantissa, mut fraction) = (mantissa, 0);
    if text.get(end) == Some(&b'.') {
        (mantissa, fraction) = digits(text, end + 1, mantissa);
        end += 1 + fraction;
    }
    if whole + fraction == 0 || whole + fraction > DIGITS_MAX {
        return None;
    }
    let value = mantissa as f64 / TENS[fraction];
    Some((if negative { -value } else { value }, end))
}

/// A plain decimal of at most 8 characters: its digits and sign as a whole number, and what that is to be divided by.
///
/// Division is the caller's, in a loop of its own, which then is one for vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decimal {
    pub(crate) digits: i32,
    pub(crate) divisor: f64,
}

/// The number that the first `length` of 8 bytes are, 1 to 8 of them, if it is a plain decimal that blanks may stand before. None
/// also for a zero with a sign, which a whole number does not have.
///
/// The bytes are taken as one word, the last character highest, and what stands before the number as zeros: digits that are 0 where they
/// are left out. Pairs, fours and eights of digits are then added up in three multiplications.
#[inline]
pub(crate) fn word(bytes: [u8; 8], length: usize) -> Option<Decimal> {
    const ZEROS: u64 = 0x3030_3030_3030_3030;
    const BLANKS: u64 = 0x2020_2020_2020_2020;
    let unused = 8 * (8 - length as u32);
    // Blanks where the text is shorter than a word.
    let text = (u64::from_le_bytes(bytes) << unused) | (BLANKS & !(u64::MAX << unused));
    let leading = ((text ^ BLANKS).trailing_zeros() / 8).min(8);
    if leading == 8 {
        return None;
    }
    let blank = !(u64::MAX << (8 * leading));
    let negative = (text >> (8 * leading)) as u8 == b'-';
    let sign = if negative { u64::from(b'-' ^ b'0') << (8 * leading) } else { 0 };
    let mut digits = (text ^ sign ^ ZEROS) & !blank;
    // The high bit of each byte that is no digit.
    let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let mut count = 8 - leading - u32::from(negative);
    let mut fraction = 0;
    if others != 0 {
        let point = others.trailing_zeros() / 8;
        let is_one = others & (others - 1) == 0;
        if !is_one || (text >> (8 * point)) as u8 != b'.' {
            return None;
        }
        fraction = 7 - point;
        count -= 1;
        let before = digits & !(u64::MAX << (8 * point));
        // Digits before the point move up, over it.
        digits = (before << 8) | (digits & (u64::MAX << (8 * point) << 8));
    }
    if count == 0 {
        return None;
    }
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(100 + (1_000_000 << 32));
    let high = (pairs >> 16 & 0x0000_00ff_0000_00ff).wrapping_mul(1 + (10_000 << 32));
    let value = (low.wrapping_add(high) >> 32) as i32;
    if negative && value == 0 {
        return None;
    }
    let digits = if negative { -value } else { value };
    Some(Decimal { digits, divisor: TENS[fraction as usize & 7] })
}

/// Reads the first `length` of 8 bytes of each of `words`, little-endian, as [`word`] does, into `out`: all of them, if they are plain
/// decimals without a sign whose point stands where that of the first does. False if one is not; `out` holds nothing then.
///
/// A column's numbers are mostly written alike. All are then handled alike, without a branch, in a loop for vectors.
pub(crate) fn words(words: &[u64], length: usize, out: &mut [f64]) -> bool {
    wide(Words { words, length, out })
}

struct Words<'a> {
    words: &'a [u64],
    length: usize,
    out: &'a mut [f64],
}

impl Work for Words<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { words, length, out } = self;
        const ONES: u64 = 0x0101_0101_0101_0101;
        let Some(first) = words.first() else { return true };
        let unused = 8 * (8 - length as u32);
        // Blanks where the text is shorter than a word; all of it by how it differs from zeros, which makes digits of digits.
        let filling = ((0x20 * ONES) & !(u64::MAX << unused)) ^ (0x30 * ONES);
        let places = first << unused;
        let place = places.to_le_bytes().iter().position(|byte| *byte == b'.');
        let (point, point_mask, before, behind, fraction) = match place.map(|place| place as u32) {
            None => (0, 0, 0, u64::MAX, 0),
            // No digit behind it: there may be none at all.
            Some(7) => return false,
            Some(place) => {
                let at = 8 * place;
                let point = u64::from(b'.' ^ b'0') << at;
                (point, 0xff << at, !(u64::MAX << at), u64::MAX << at << 8, 7 - place)
            }
        };
        let divisor = TENS[fraction as usize & 7];
        let mut wrong = 0;
        for (word, out) in words.iter().zip(out) {
            let text = (word << unused) ^ filling;
            let others = text ^ (0x10 * ONES);
            // The bits below the first that no blank has: blanks, and of the character behind them bits that are 0, unless it is no digit
            // and keeps others. The last character stays: it must be a digit.
            let blanks = (others.wrapping_sub(1) & !others) & (u64::MAX >> 8);
            let text = (text & !blanks) ^ point;
            wrong |= text & point_mask;
            // Digits before the point move up, over it.
            let digits = ((text & before) << 8) | (text & behind);
            wrong |= (digits.wrapping_add(0x76 * ONES) | digits) & (0x80 * ONES);
            let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
            let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
            let value = (fours & 0xffff).wrapping_mul(10_000).wrapping_add(fours >> 32);
            *out = f64::from(value as i32) / divisor;
        }
        wrong == 0
    }
}

/// The digits of `text` from `start` on, put behind those of `mantissa`, and how many they are. Wraps where there are too many.
#[inline(always)]
fn digits(text: &[u8], start: usize, mut mantissa: u64) -> (u64, usize) {
    let mut count = 0;
    for byte in text.get(start..).unwrap_or_default() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
        count += 1;
    }
    (mantissa, count)
}

#[cold]
fn parse_slowly(text: &[u8]) -> Result<f64, NumberError> {
    if !is_decimal(text) {
        return Err(NumberError::Form);
    }
    let text = std::str::from_utf8(text).map_err(|_| NumberError::Form)?;
    let value = text.parse::<f64>().map_err(|_| NumberError::Form)?;
    if value.is_finite() { Ok(value) } else { Err(NumberError::Range) }
}

/// Whether it is a sign, digits with a point among them, and an exponent, each but a digit optional. The standard library takes
/// `inf` and `NaN` as well.
fn is_decimal(text: &[u8]) -> bool {
    let mut rest = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    let mut count = 0;
    let skip_digits = |rest: &mut &[u8]| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        *rest = &rest[digits..];
        digits
    };
    count += skip_digits(&mut rest);
    if let Some(after) = rest.strip_prefix(b".") {
        rest = after;
        count += skip_digits(&mut rest);
    }
    if count == 0 {
        return false;
    }
    if let Some(after) = rest.strip_prefix(b"e").or(rest.strip_prefix(b"E")) {
        rest = after.strip_prefix(b"-").or(after.strip_prefix(b"+")).unwrap_or(after);
        if skip_digits(&mut rest) == 0 {
            return false;
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_or_refused() {
        use NumberError::{Form, Range};
        for (text, expected) in [
            ("0", Ok(0.0)),
            ("007", Ok(7.0)),
            ("1.10", Ok(1.1)),
            (" 98.6 ", Ok(98.6)), // fixed columns are padded
            ("-0", Ok(0.0)),      // equal to it, with its sign
            ("+5", Ok(5.0)),
            (".5", Ok(0.5)),
            ("5.", Ok(5.0)),
            ("999999999999999", Ok(999_999_999_999_999.0)), // 15 digits
            ("9007199254740993", Ok(9_007_199_254_740_992.0)), // ties to even
            ("0.1000000000000000055511151231257827", Ok(0.1)),
            ("1234567890123456789012345678901234567890", Ok(1.234_567_890_123_456_8e39)),
            ("1e308", Ok(1e308)),
            ("1E-3", Ok(0.001)),
            ("1e-400", Ok(0.0)), // nearer to 0 than to any other float
            ("1e309", Err(Range)),
            ("-1e309", Err(Range)),
            ("NaN", Err(Form)),
            ("inf", Err(Form)),
            ("-Infinity", Err(Form)),
            ("0x10", Err(Form)),
            ("1_000", Err(Form)),
            ("1,5", Err(Form)),
            ("1.2.3", Err(Form)),
            ("1e", Err(Form)),
            ("--1", Err(Form)),
            (".", Err(Form)),
            ("-", Err(Form)),
            ("", Err(Form)),
            ("5 5", Err(Form)),
            ("\u{664}", Err(Form)), // a digit, but no ASCII one
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
        assert!(parse(b"-0").unwrap().is_sign_negative());
    }

    #[test]
    fn a_rounded_integer_is_told_from_an_exact_one() {
        for (text, expected) in [
            ("9007199254740992", true),
            ("9007199254740993", false),
            ("9007199254740991.5", false),
            ("-9007199254740993", false),
            ("-00009007199254740992.000", true),
            ("9007199254740.992e3", true),
            ("9007199254740.993e3", false),
            ("100000000000000000e-2", true),
            ("0.99999999999999999999", false),
            ("1.00000000000000000001", false),
            ("0.0000000000000000000", true),
            ("0.00000000000000000001", true), // no whole number as a float either
            ("1e-400000000000000000", false), // nearer to 0 than to any other float
            ("0.10000000000000000000", true),
        ] {
            let value = parse(text.as_bytes()).unwrap();
            assert_eq!(is_exact_integer(text.as_bytes(), value), expected, "{text}");
        }
    }

    #[test]
    fn a_prefix_ends_where_the_number_does() {
        for (text, expected) in [
            ("12,3", Some((12.0, 2))),
            ("-1.5,", Some((-1.5, 4))),
            ("1.5e3", Some((1.5, 3))), // the caller sees that it is not over
            ("x", None),
            ("1234567890123456", None), // 16 digits
        ] {
            assert_eq!(prefix(text.as_bytes()), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_by_the_standard_library(text in "-?[0-9]{0,18}\\.?[0-9]{0,18}") {
            let expected = text.parse::<f64>().ok().map(f64::to_bits);
            prop_assert_eq!(parse(text.as_bytes()).ok().map(f64::to_bits), expected);
        }

        #[test]
        fn an_integer_is_exact_or_it_is_not(number in any::<i64>(), digits in 14..19_u32) {
            let number = number % 10_i64.pow(digits);
            let text = number.to_string();
            let value = parse(text.as_bytes()).unwrap();
            prop_assert_eq!(is_exact_integer(text.as_bytes(), value), value as i64 == number);
        }

        #[test]
        fn a_word_is_read_as_its_text(text in "[ ]{0,3}-?[0-9]{0,6}[.]?[0-9]{0,6}[ x.-]{0,1}", rest in any::<[u8; 8]>()) {
            let length = text.len().clamp(1, 8);
            let mut bytes = rest;
            for (place, byte) in bytes.iter_mut().zip(text.bytes().take(length)) {
                *place = byte;
            }
            if let Some(decimal) = word(bytes, length) {
                let value = f64::from(decimal.digits) / decimal.divisor;
                let found = parse(&bytes[..length]).map(f64::to_bits);
                prop_assert_eq!(Ok(value.to_bits()), found);
            }
            let mut one = [0.0];
            if words(&[u64::from_le_bytes(bytes)], length, &mut one) {
                let found = parse(&bytes[..length]).map(f64::to_bits);
                prop_assert_eq!(Ok(one[0].to_bits()), found);
            }
            // And none is passed over that is plain.
            let plain = bytes[..length].trim_ascii_start();
            if prefix(plain).is_some_and(|(value, end)| end == plain.len() && value != 0.0) && !bytes[..length].starts_with(b"\t") {
                prop_assert!(word(bytes, length).is_some(), "{:?}", &bytes[..length]);
            }
        }

        #[test]
        fn words_are_read_together_if_each_is_read_alone(texts in proptest::collection::vec("[ ]{0,3}[0-9]{1,3}[.][0-9]{2}|[ 0-9.x-]{3,6}|[ -~]{0,8}", 1..4), length in 1..=8_usize) {
            let of = |text: &String| format!("{text:>length$}        ").as_bytes()[..8].try_into().unwrap();
            let all: Vec<[u8; 8]> = texts.iter().map(of).collect();
            let mut out = [0.0; 4];
            if words(&all.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect::<Vec<_>>(), length, &mut out) {
                for (bytes, value) in all.iter().zip(out) {
                    let alone = word(*bytes, length).map(|decimal| f64::from(decimal.digits) / decimal.divisor);
                    prop_assert_eq!(alone.map(f64::to_bits), Some(value.to_bits()), "{:?}", bytes);
                }
            }
        }

        #[test]
        fn numbers_that_are_written_alike_are_read_together(values in proptest::collection::vec(0..100_000_u32, 1..70), places in 0..4_usize) {
            let values: Vec<f64> = values.iter().map(|value| f64::from(*value) / 10_f64.powi(places as i32)).collect();
            let of = |value: &f64| u64::from_le_bytes(format!("{value:7.places$}\n").as_bytes().try_into().unwrap());
            let mut out = vec![0.0; values.len()];
            prop_assert!(words(&values.iter().map(of).collect::<Vec<_>>(), 7, &mut out));
            prop_assert_eq!(out, values);
        }

        #[test]
        fn any_float_is_read_as_it_was_written(value in proptest::num::f64::NORMAL) {
            prop_assert_eq!(parse(format!("{value}").as_bytes()), Ok(value));
            prop_assert_eq!(parse(format!("{value:e}").as_bytes()), Ok(value));
        }
    }
}
