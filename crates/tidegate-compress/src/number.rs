//! Decimal numbers as text, and back to the very same text.
//!
//! A text counts as a number only if printing its value gives the text again, byte for byte. `1.10` does so with two fixed
//! decimals, and not with decimals from which zeros are trimmed; `007`, `0x10`, `1e309`, `NaN`, `-0` and numbers of more
//! than [`DIGITS_MAX`] digits never do. What is no number is carried as it stands.

/// Most digits of a number, decimals among them: each such number, and the difference of two, fits 64 bits.
pub(crate) const DIGITS_MAX: usize = 18;

/// Most bytes of a number as [`Format::print`] writes it: a sign, 20 digits and a point.
pub(crate) const TEXT_MAX: usize = 32;

/// How the numbers of a field are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Format {
    /// Digits after the point; values are counted in units of the last. At most [`DIGITS_MAX`].
    pub(crate) decimals: u8,
    /// Whether zeros at the end of the decimals, and a point without decimals, are left out.
    pub(crate) trimmed: bool,
}

impl Format {
    /// The value of `text` in units of the last decimal; `None` if it is not a number of this format.
    #[inline]
    pub(crate) fn parse(self, text: &[u8]) -> Option<i64> {
        let Digits { negative, value, whole, given, has_point, leads, ends } =
            if text.len() <= 8 { short(text) } else { long(text) }?;
        let decimals = usize::from(self.decimals);
        // No branches in between: of the numbers of one field, which of these hold is hard to foresee.
        let fits = if self.trimmed {
            (given <= decimals) & ((given == 0) | !ends)
        } else {
            given == decimals
        };
        let is_canonical = fits
            & (whole > 0)
            & ((whole == 1) | !leads)
            & (whole + decimals <= DIGITS_MAX)
            & (has_point == (given > 0))
            & !(negative & (value == 0));
        let value = value.wrapping_mul(TENS[decimals.wrapping_sub(given) % TENS.len()]) as i64;
        is_canonical.then_some(if negative { value.wrapping_neg() } else { value })
    }

    /// Writes `value` at the beginning of `out`; returns how many bytes it takes. What is beyond them is of no meaning.
    #[inline]
    pub(crate) fn print(self, value: i64, out: &mut [u8; TEXT_MAX]) -> usize {
        let magnitude = value.unsigned_abs();
        if magnitude < 100_000_000 && self.decimals < 8 {
            return self.print_short(magnitude, value < 0, out);
        }
        let decimals = usize::from(self.decimals);
        let mut text = [b'0'; TEXT_MAX];
        let (mut rest, mut at) = (magnitude, TEXT_MAX);
        while rest > 0 {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let point = TEXT_MAX - decimals;
        at = at.min(point - 1);
        let mut end = TEXT_MAX;
        if self.trimmed {
            while end > point && text[end - 1] == b'0' {
                end -= 1;
            }
        }
        let mut len = 0;
        let mut put = |bytes: &[u8]| {
            out[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        put(if value < 0 { b"-" } else { b"" });
        put(&text[at..point]);
        if end > point {
            put(b".");
            put(&text[point..end]);
        }
        len
    }

    /// Of at most eight digits and seven decimals, without a branch.
    #[inline]
    fn print_short(self, magnitude: u64, negative: bool, out: &mut [u8; TEXT_MAX]) -> usize {
        let decimals = u32::from(self.decimals);
        let digits = eight_digits(magnitude);
        // Bytes before the first digit, and zeros after the last.
        let lead = (digits.trailing_zeros() / 8).min(7 - decimals);
        let zeros = if self.trimmed { (digits.leading_zeros() / 8).min(decimals) } else { 0 };
        let whole = 8 - decimals - lead;
        let part = decimals - zeros;
        let text = u128::from(digits | ZEROS);
        let before = (text >> (8 * lead)) & ((1 << (8 * whole)) - 1);
        let after = (text >> (8 * (8 - decimals))) << 8 | u128::from(b'.');
        let unsigned = before | after << (8 * whole);
        let sign = u32::from(negative);
        let signed = unsigned << (8 * sign) | u128::from(b'-' * sign as u8);
        out[..16].copy_from_slice(&signed.to_le_bytes());
        (sign + whole + part + u32::from(part > 0)) as usize
    }

    /// The format in which both texts are numbers, if there is one: fixed decimals where both have as many, trimmed ones where
    /// they differ.
    pub(crate) fn of_both(one: &[u8], other: &[u8]) -> Option<Self> {
        let (one, other) = (Shape::of(one)?, Shape::of(other)?);
        let decimals = one.decimals.max(other.decimals);
        let trimmed = one.decimals != other.decimals;
        if trimmed && (one.ends_in_zero || other.ends_in_zero) {
            return None;
        }
        (one.whole.max(other.whole) + decimals <= DIGITS_MAX)
            .then_some(Self { decimals: decimals as u8, trimmed })
    }

    /// This format, widened so that `text` is a number of it as well, if there is such a one.
    ///
    /// Decimals only become more, and fixed ones become trimmed only if `text` forces it: a field ends its search after a few steps.
    pub(crate) fn widened(self, text: &[u8]) -> Option<Self> {
        let shape = Shape::of(text)?;
        let decimals = shape.decimals.max(usize::from(self.decimals));
        let trimmed = self.trimmed || shape.decimals != usize::from(self.decimals);
        if (trimmed && shape.ends_in_zero) || shape.whole + decimals > DIGITS_MAX {
            return None;
        }
        Some(Self { decimals: decimals as u8, trimmed })
    }
}

/// What a text that is a decimal number in some format looks like.
struct Shape {
    whole: usize,
    decimals: usize,
    /// Whether there are decimals, the last of them a zero.
    ends_in_zero: bool,
}

impl Shape {
    fn of(text: &[u8]) -> Option<Self> {
        let Digits { whole, given, ends, .. } = long(text)?;
        let format = Format { decimals: u8::try_from(given).ok()?, trimmed: false };
        format.parse(text)?;
        Some(Self { whole, decimals: given, ends_in_zero: given > 0 && ends })
    }
}

/// What stands in a text of digits with at most one sign before them and one point among them.
struct Digits {
    negative: bool,
    /// All digits as one number.
    value: u64,
    /// Digits before the point.
    whole: usize,
    /// Digits after it.
    given: usize,
    has_point: bool,
    /// Whether the first digit is a zero.
    leads: bool,
    /// Whether the last is.
    ends: bool,
}

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;
const ZEROS: u64 = ONES * b'0' as u64;
const POINTS: u64 = ONES * b'.' as u64;

/// Of at most eight bytes, all at once and almost without a branch.
#[inline]
fn short(text: &[u8]) -> Option<Digits> {
    let len = text.len();
    // The two halves overlap where there are fewer bytes than they hold.
    let word = match (text.first_chunk(), text.last_chunk()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            u64::from(first) | u64::from(last) << (8 * (len - 4))
        }
        _ => match *text {
            [] => return None,
            [one] => u64::from(one),
            [one, two] => u64::from(u16::from_le_bytes([one, two])),
            [one, two, three, ..] => u64::from(u32::from_le_bytes([one, two, three, 0])),
        },
    };
    let negative = word as u8 == b'-';
    let sign = u32::from(negative);
    // A zero in the place of the sign, and before the number, so that its last byte is the highest.
    let unsigned = word ^ u64::from((b'-' ^ b'0') * sign as u8);
    let unused = 8 * (8 - len as u32);
    let word = unsigned << unused | ZEROS & !(u64::MAX << unused);
    let leads = (word >> ((unused + 8 * sign) & 63)) as u8 == b'0';
    let differs = word ^ POINTS;
    let found = differs.wrapping_sub(ONES) & !differs & HIGHS;
    let has_point = found != 0;
    // What stands before the point moves up into its place. The lowest bit that was found is that of a point: a borrow that would make a
    // false one comes from below.
    let before = ((found & found.wrapping_neg()) >> 7).wrapping_sub(1);
    let closed = (word & before) << 8 | word & !(before << 8 | 0xff) | u64::from(b'0');
    let given = if has_point { 7 - (found.trailing_zeros() / 8) as usize } else { 0 };
    let word = if has_point { closed } else { word };
    let digits = word.wrapping_sub(ZEROS);
    if (word.wrapping_add(0x4646_4646_4646_4646) | digits) & HIGHS != 0 {
        return None;
    }
    // Pairs, then fours, then all eight: each step multiplies the lower half by its power of ten and adds the upper.
    const MASK: u64 = 0x0000_00ff_0000_00ff;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let fours = (pairs & MASK).wrapping_mul(100 + (1_000_000 << 32));
    let value = fours.wrapping_add((pairs >> 16 & MASK).wrapping_mul(1 + (10_000 << 32))) >> 32;
    Some(Digits {
        negative,
        value,
        whole: len - given - usize::from(has_point) - usize::from(negative),
        given,
        has_point,
        leads,
        ends: digits >> 56 == 0,
    })
}

/// Of any length, digit by digit.
fn long(text: &[u8]) -> Option<Digits> {
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    if unsigned.len() > DIGITS_MAX + 1 {
        return None;
    }
    let (mut value, mut point) = (0, None);
    for (index, &byte) in unsigned.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            value = value * 10 + u64::from(digit);
        } else if byte == b'.' && point.is_none() {
            point = Some(index);
        } else {
            return None;
        }
    }
    let whole = point.unwrap_or(unsigned.len());
    Some(Digits {
        negative: unsigned.len() < text.len(),
        value,
        whole,
        given: point.map_or(0, |point| unsigned.len() - point - 1),
        has_point: point.is_some(),
        leads: unsigned.first() == Some(&b'0'),
        ends: unsigned.last() == Some(&b'0'),
    })
}

/// The digits of a number below 10⁸, the first in the lowest byte: halves, then pairs, then digits, all lanes at a time.
#[inline]
fn eight_digits(value: u64) -> u64 {
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (fours - hundreds * 100) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (pairs - tens * 10) << 8
}

/// Powers of ten; of no meaning beyond [`DIGITS_MAX`].
const TENS: [u64; 32] = {
    let mut tens = [1; 32];
    let mut index = 1;
    while index <= DIGITS_MAX {
        tens[index] = tens[index - 1] * 10;
        index += 1;
    }
    tens
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn format(decimals: u8, trimmed: bool) -> Format {
        Format { decimals, trimmed }
    }

    fn printed(format: Format, value: i64) -> String {
        let mut out = [0; TEXT_MAX];
        let len = format.print(value, &mut out);
        String::from_utf8(out[..len].to_vec()).unwrap()
    }

    #[test]
    fn only_what_prints_as_it_was_is_a_number() {
        for (text, format, expected, note) in [
            ("0", format(0, false), Some(0), ""),
            ("42", format(0, false), Some(42), ""),
            ("-42", format(0, false), Some(-42), ""),
            ("1.10", format(2, false), Some(110), "fixed decimals keep their zeros"),
            ("1.10", format(2, true), None, "trimmed ones have none"),
            ("1.1", format(2, true), Some(110), ""),
            ("1.1", format(2, false), None, "a decimal is missing"),
            ("1.123", format(2, true), None, "a decimal too many"),
            ("53", format(1, true), Some(530), ""),
            ("0.5", format(1, false), Some(5), ""),
            ("-0.5", format(1, false), Some(-5), ""),
            ("-0.0", format(1, false), None, "a zero has no sign"),
            ("-0", format(0, false), None, "a zero has no sign"),
            ("007", format(0, false), None, "zeros before the number"),
            ("00", format(0, false), None, "zeros before the number"),
            (".5", format(1, false), None, "nothing before the point"),
            ("5.", format(1, true), None, "nothing after the point"),
            ("5.", format(0, false), None, "nothing after the point"),
            ("", format(0, false), None, ""),
            ("-", format(0, false), None, ""),
            ("+1", format(0, false), None, ""),
            ("0x10", format(0, false), None, ""),
            ("1e309", format(0, false), None, ""),
            ("NaN", format(0, false), None, ""),
            ("1.2.3", format(2, true), None, ""),
            ("999999999999999999", format(0, false), Some(999_999_999_999_999_999), "18 digits"),
            ("1000000000000000000", format(0, false), None, "19 digits"),
            ("9".repeat(40).as_str(), format(0, false), None, "40 digits"),
            ("99999999999999999.5", format(1, false), Some(999_999_999_999_999_995), ""),
            ("99999999999999999", format(2, true), None, "19 digits with its decimals"),
        ] {
            assert_eq!(format.parse(text.as_bytes()), expected, "{text} {note}");
            if let Some(value) = expected {
                assert_eq!(printed(format, value), text, "{note}");
            }
        }
    }

    #[test]
    fn the_widest_value_of_every_format_fits_its_buffer() {
        for decimals in 0..=DIGITS_MAX as u8 {
            for trimmed in [false, true] {
                for value in [i64::MIN, i64::MAX, 0, -1, 1] {
                    printed(format(decimals, trimmed), value);
                }
            }
        }
    }

    #[test]
    fn two_texts_have_the_format_in_which_both_are_numbers() {
        for (one, other, expected) in [
            ("1.5", "2.5", Some(format(1, false))),
            ("1.50", "2.55", Some(format(2, false))),
            ("53", "53.7", Some(format(1, true))),
            ("53.0", "53.75", None),
            ("8", "9", Some(format(0, false))),
            ("x", "9", None),
            ("0.000000000000000001", "1", None),
        ] {
            assert_eq!(
                Format::of_both(one.as_bytes(), other.as_bytes()),
                expected,
                "{one} {other}"
            );
        }
    }

    #[test]
    fn a_format_widens_until_it_holds_what_comes() {
        for (from, text, expected) in [
            (format(1, true), "1.25", Some(format(2, true))),
            (format(0, false), "1.25", Some(format(2, true))),
            (format(2, false), "1.5", Some(format(2, true))),
            (format(2, false), "1.500", None),
            (format(2, true), "1.50", None),
            (format(2, true), "abc", None),
        ] {
            assert_eq!(from.widened(text.as_bytes()), expected, "{from:?} {text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_a_number_prints_as_it_was(text in "-?[0-9]{1,20}(\\.[0-9]{0,19})?", decimals in 0u8..=18, trimmed: bool) {
            let format = format(decimals, trimmed);
            if let Some(value) = format.parse(text.as_bytes()) {
                prop_assert_eq!(printed(format, value), text);
            }
        }

        #[test]
        fn what_is_printed_is_a_number(value in -999_999_999_999_999_999i64..=999_999_999_999_999_999, decimals in 0u8..=17, trimmed: bool) {
            let format = format(decimals, trimmed);
            let text = printed(format, value);
            prop_assert_eq!(format.parse(text.as_bytes()), Some(value), "{}", text);
        }

        /// Both ways to read a text, and both to write a number, come to the same.
        #[test]
        fn short_and_long_ways_agree(text in "-?[0-9][0-9.]{0,6}", value in -99_999_999i64..=99_999_999, decimals in 0u8..=7, trimmed: bool) {
            let of = |digits: Option<Digits>| {
                digits.map(|d| (d.negative, d.value, d.whole, d.given, d.has_point, d.leads, d.ends))
            };
            // A point at the end makes it no number either way.
            if !text.ends_with('.') {
                prop_assert_eq!(of(short(text.as_bytes())), of(long(text.as_bytes())), "{}", text);
            }
            let wider = Format { decimals: decimals + 1, trimmed: true };
            let format = Format { decimals, trimmed: true };
            prop_assert_eq!(printed(format, value), printed(wider, value * 10), "{:?}", trimmed);
        }

        #[test]
        fn any_bytes_are_a_number_or_none(text: Vec<u8>, decimals in 0u8..=18, trimmed: bool) {
            let _ = format(decimals, trimmed).parse(&text);
            let _ = Format::of_both(&text, b"1");
        }
    }
}
