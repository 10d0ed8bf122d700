//! Decimal numbers as text, and back to the very same text.
//!
//! A text counts as a number only if printing its value gives the text again, byte for byte. `1.10` does so with two fixed
//! decimals, and not with decimals from which zeros are trimmed; `007`, `0x10`, `1e309`, `NaN`, `-0` and numbers of more
//! than [`DIGITS_MAX`] digits never do. A text that is not such a number is sent as it stands.

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
        if text.len() <= WORD {
            self.parse_word(word(text, 0), text.len())
        } else {
            self.parse_long(text)
        }
    }

    /// The value of `text[begin..end]`: as [`Format::parse`], and faster where more than a word of `text` follows.
    #[inline(always)]
    pub(crate) fn parse_at(self, text: &[u8], begin: usize, end: usize) -> Option<i64> {
        if end - begin <= WORD {
            self.parse_word(word(text, begin), end - begin)
        } else {
            self.parse_long(&text[begin..end])
        }
    }

    /// The value of the lowest `len` bytes of `text`, at most [`WORD`]. Bytes above them have no meaning.
    ///
    /// All digits at once and without a branch: of the numbers of one field, how many digits each has is hard to foresee.
    #[inline(always)] // In a row of numbers, what is the same for all is then found once.
    pub(crate) fn parse_word(self, text: u64, len: usize) -> Option<i64> {
        let negative = u64::from((text as u8 == b'-') & (len > 0));
        let unsigned = (len as u64).wrapping_sub(negative);
        // The value of each digit; zeros above the text, so that digits that it lacks there are zeros as well.
        let used = LOWEST[unsigned as usize % LOWEST.len()];
        let values = (text.wrapping_shr(8 * negative as u32) ^ ZEROS) & used;
        // The lowest bit that is found is that of the first point: a borrow that would make a false one comes from below.
        let differs = values ^ (POINTS ^ ZEROS);
        let found = differs.wrapping_sub(ONES) & !differs & HIGHS;
        let before = ((found & found.wrapping_neg()) >> 7).wrapping_sub(1);
        let has_point = u64::from(found != 0);
        let whole = u64::from(found.trailing_zeros() / 8).min(unsigned);
        let given = unsigned.wrapping_sub(whole).wrapping_sub(has_point);
        // Digits after the point move up into its place.
        let digits = values & before | values >> 8 & !before;
        let decimals = u64::from(self.decimals);
        if whole.wrapping_add(decimals) > WORD as u64 {
            return self.parse_long(&text.to_le_bytes()[..len]);
        }
        let fits = if self.trimmed {
            let last = values.wrapping_shr((unsigned as u32).wrapping_sub(1).wrapping_mul(8));
            (given <= decimals) & ((has_point == 0) | ((given > 0) & (last != 0)))
        } else {
            (given == decimals) & (has_point == u64::from(decimals > 0))
        };
        let are_digits = (digits.wrapping_add(ONES * 0x76) | digits) & HIGHS == 0;
        // As many zeros before them that there are eight; those after them are there already.
        let eight =
            digits.wrapping_shl(64u32.wrapping_sub(8 * (whole.wrapping_add(decimals)) as u32));
        let value = value_of(eight) as i64;
        let is_canonical = fits
            & are_digits
            & (whole > 0)
            & ((whole == 1) | (digits as u8 != 0))
            & ((negative == 0) | (value != 0));
        is_canonical.then_some((value ^ -(negative as i64)).wrapping_add(negative as i64))
    }

    /// Of fixed decimals and at most eight digits, of whose text `last` are the last bytes: where the point must be is known.
    #[inline]
    fn parse_fixed(self, last: &[u8; 9], whole: usize, negative: bool) -> Option<i64> {
        let [_, after @ ..] = last;
        let [before @ .., _] = last;
        let (after, before) = (u64::from_le_bytes(*after), u64::from_le_bytes(*before));
        let decimals = usize::from(self.decimals);
        let is_point = (after >> (8 * (7 - decimals))) as u8 == b'.';
        // Digits before the point move up into its place; bytes before the number are no part of it.
        let lower = LOWEST[8 - decimals];
        let unused = WORD - whole - decimals;
        let digits = ((after & !lower | before & lower) ^ ZEROS) & !LOWEST[unused];
        let are_digits = (digits.wrapping_add(ONES * 0x76) | digits) & HIGHS == 0;
        let leads = digits & LOWEST[unused + 1] == 0;
        let value = value_of(digits) as i64;
        let is_canonical =
            is_point & are_digits & ((whole == 1) | !leads) & !(negative & (value == 0));
        is_canonical.then_some(if negative { -value } else { value })
    }

    #[inline(never)]
    fn parse_long(self, text: &[u8]) -> Option<i64> {
        if !self.trimmed
            && (1..WORD).contains(&usize::from(self.decimals))
            && let Some(last) = text.last_chunk::<9>()
        {
            let negative = text[0] == b'-';
            let digits = text.len() - usize::from(negative) - 1;
            if digits <= WORD && digits > usize::from(self.decimals) {
                let whole = digits - usize::from(self.decimals);
                return self.parse_fixed(last, whole, negative);
            }
        }
        self.parse_any(text)
    }

    /// Digit by digit.
    fn parse_any(self, text: &[u8]) -> Option<i64> {
        let Digits { negative, value, whole, given, has_point, leads, ends } = long(text)?;
        let decimals = usize::from(self.decimals);
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

    /// Writes `value` at the beginning of `out`; returns how many bytes it takes. Bytes beyond them have no meaning.
    #[inline]
    pub(crate) fn print(self, value: i64, out: &mut [u8; TEXT_MAX]) -> usize {
        let magnitude = value.unsigned_abs();
        if magnitude < 100_000_000 && self.decimals < 8 {
            return self.print_short(magnitude, value < 0, out);
        }
        self.print_long(magnitude, value, out)
    }

    #[inline(never)]
    fn print_long(self, magnitude: u64, value: i64, out: &mut [u8; TEXT_MAX]) -> usize {
        let upper = magnitude / 100_000_000;
        if self.decimals == 0 && (1..100_000_000).contains(&upper) {
            let len = self.print_short(upper, value < 0, out);
            let lower = eight_digits(magnitude % 100_000_000) | ZEROS;
            out[len..][..WORD].copy_from_slice(&lower.to_le_bytes());
            return len + WORD;
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

    /// Of at most eight digits and seven decimals, without a branch: each part is written as a word, of which the next overwrites what
    /// is too much.
    #[inline]
    fn print_short(self, magnitude: u64, negative: bool, out: &mut [u8; TEXT_MAX]) -> usize {
        let decimals = u32::from(self.decimals);
        let digits = eight_digits(magnitude);
        // The digit before the point is written even if it is a zero: this bit keeps it from being counted as one of those that are not.
        let counted = digits | 0x80 << (8 * 7u32.wrapping_sub(decimals) % 64);
        // Bytes before the first digit, and zeros after the last.
        let lead = counted.trailing_zeros() / 8;
        let zeros = counted.leading_zeros() / 8 * u32::from(self.trimmed);
        let part = decimals.wrapping_sub(zeros);
        let text = digits | ZEROS;
        let sign = usize::from(negative);
        let point = sign.wrapping_add(8u32.wrapping_sub(decimals).wrapping_sub(lead) as usize);
        // The lengths are below 16; stating that avoids their comparison with the end.
        let mut put =
            |at: usize, word: u64| out[at % 16..][..8].copy_from_slice(&word.to_le_bytes());
        put(0, u64::from(b'-'));
        put(sign, text.wrapping_shr(8 * lead));
        put(point, u64::from(b'.'));
        put(point.wrapping_add(1), text.wrapping_shr(8 * 7u32.wrapping_sub(decimals)) >> 8);
        point.wrapping_add(part.wrapping_add(u32::from(part > 0)) as usize)
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

/// The format of a text that is a decimal number.
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

/// The parts of a text of digits with at most one sign before them and one point among them.
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

/// Bytes of a text that are looked at all at once.
pub(crate) const WORD: usize = 8;

/// A mask of as many of a word's lowest bytes; of no meaning beyond [`WORD`].
pub(crate) const LOWEST: [u64; 16] = {
    let mut masks = [u64::MAX; 16];
    let mut len = 0;
    while len < WORD {
        masks[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    masks
};

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;
const ZEROS: u64 = ONES * b'0' as u64;
const POINTS: u64 = ONES * b'.' as u64;

/// The value of eight digits, the first in the lowest byte: pairs, then fours, then all. Each step multiplies the lower half by its
/// power of ten and adds the upper.
#[inline]
fn value_of(digits: u64) -> u64 {
    const MASK: u64 = 0x0000_00ff_0000_00ff;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let fours = (pairs & MASK).wrapping_mul(100 + (1_000_000 << 32));
    fours.wrapping_add((pairs >> 16 & MASK).wrapping_mul(1 + (10_000 << 32))) >> 32
}

/// The bytes of `text` from `begin` on, the first in the lowest byte. Above those that there are stand zeros.
#[inline]
pub(crate) fn word(text: &[u8], begin: usize) -> u64 {
    match text.get(begin..).and_then(|rest| rest.first_chunk()) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => last_word(text, begin),
    }
}

/// The same where there are less than eight.
#[inline]
fn last_word(text: &[u8], begin: usize) -> u64 {
    let len = text.len() - begin;
    match (text.last_chunk::<WORD>(), len) {
        (_, 0) => 0,
        (Some(chunk), _) => u64::from_le_bytes(*chunk) >> (8 * (WORD - len)),
        _ => {
            let mut bytes = [0; WORD];
            bytes[..len].copy_from_slice(&text[begin..]);
            u64::from_le_bytes(bytes)
        }
    }
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
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = fours.wrapping_mul(10_486) >> 20 & 0x0000_007f_0000_007f;
    let pairs = hundreds | fours.wrapping_sub(hundreds.wrapping_mul(100)) << 16;
    let tens = pairs.wrapping_mul(103) >> 10 & 0x000f_000f_000f_000f;
    tens | pairs.wrapping_sub(tens.wrapping_mul(10)) << 8
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
        fn numbers_print_as_they_were(text in "-?[0-9]{1,20}(\\.[0-9]{0,19})?", decimals in 0u8..=18, trimmed: bool) {
            let format = format(decimals, trimmed);
            if let Some(value) = format.parse(text.as_bytes()) {
                prop_assert_eq!(printed(format, value), text);
            }
        }

        #[test]
        fn printed_values_are_numbers(value in -999_999_999_999_999_999i64..=999_999_999_999_999_999, decimals in 0u8..=17, trimmed: bool) {
            let format = format(decimals, trimmed);
            let text = printed(format, value);
            prop_assert_eq!(format.parse(text.as_bytes()), Some(value), "{}", text);
        }

        /// Both ways to read a text, and both to write a number, come to the same.
        #[test]
        fn short_and_long_ways_agree(text in "-?[0-9.]{0,7}|[-0-9./:]{0,8}", high in proptest::option::of((0usize..8, 0x80u8..)), value in -99_999_999i64..=99_999_999, decimals in 0u8..=7, trimmed: bool) {
            let narrow = Format { decimals, trimmed };
            let mut text = text.into_bytes();
            if let Some((at, byte)) = high && let Some(place) = text.get_mut(at) {
                *place = byte;
            }
            prop_assert_eq!(narrow.parse(&text), narrow.parse_any(&text), "{:?} {:?}", text, narrow);
            let wider = Format { decimals: decimals + 1, trimmed: true };
            let format = Format { decimals, trimmed: true };
            prop_assert_eq!(printed(format, value), printed(wider, value * 10), "{:?}", trimmed);
        }

        #[test]
        fn fixed_decimals_and_any_agree(text in "-?[0-9]{1,4}\\.[0-9]{4,8}|-?[0-9.]{8,11}", high in proptest::option::of((0usize..12, 0x80u8..)), decimals in 0u8..=8) {
            let format = format(decimals, false);
            let mut text = text.into_bytes();
            if let Some((at, byte)) = high && let Some(place) = text.get_mut(at) {
                *place = byte;
            }
            prop_assert_eq!(format.parse(&text), format.parse_any(&text), "{:?} {}", text, decimals);
        }

        #[test]
        fn bytes_after_a_text_do_not_matter(text in "-?[0-9]{1,3}\\.?[0-9]{0,3}", after: [u8; 8], decimals in 0u8..=4, trimmed: bool) {
            let format = format(decimals, trimmed);
            let mut both = text.clone().into_bytes();
            both.extend_from_slice(&after);
            prop_assert_eq!(format.parse_word(word(&both, 0), text.len()), format.parse(text.as_bytes()), "{}", text);
            for begin in 0..=text.len() {
                let found = word(text.as_bytes(), begin).to_le_bytes();
                prop_assert_eq!(&found[..text.len() - begin], &text.as_bytes()[begin..]);
            }
        }

        #[test]
        fn any_bytes_are_a_number_or_none(text: Vec<u8>, decimals in 0u8..=18, trimmed: bool) {
            let _ = format(decimals, trimmed).parse(&text);
            let _ = Format::of_both(&text, b"1");
        }
    }
}
