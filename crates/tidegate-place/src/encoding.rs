//! Texts and numbers as fractions of 2⁶⁴ that keep their order: of two values the code of the larger one is never smaller.
//!
//! A place in a space has few bits for each value, so that the codes give room to what is usual: small letters more than control
//! characters, numbers from 10⁻⁵ to 10⁹ more than others. Codes are in whole numbers, and the same on every machine.

use tidegate_message::{attribute::Item, interest::ValueCondition};

use crate::intervals::Intervals;

/// The code of a text; texts of more than some ten characters may have one with others that begin alike.
///
/// It is the lower end of its interval by arithmetic coding with fixed weights: each byte takes a part of the interval of those before it, in
/// the order of bytes, and the end of a text the first part.
pub(crate) fn text(text: &str) -> u64 {
    narrowed(text).0
}

/// The codes of all texts that begin so: one interval.
pub(crate) fn texts_that_begin_with(prefix: &str) -> (u64, u64) {
    let (low, width) = narrowed(prefix);
    (low, low + (width - 1) as u64)
}

/// The interval of the texts that begin so: its lower end and its width. Eleven steps at the most.
fn narrowed(text: &str) -> (u64, u128) {
    let (mut low, mut width) = (0, 1_u128 << u64::BITS);
    for byte in text.bytes().map(usize::from) {
        if width >> WEIGHT_BITS == 0 {
            break;
        }
        let part = |weight: u16| (width * u128::from(weight)) >> WEIGHT_BITS;
        let (begin, end) = (part(WEIGHTS[byte]), part(WEIGHTS[byte + 1]));
        low += begin as u64;
        width = end - begin;
    }
    (low, width)
}

/// All weights together.
const WEIGHT_BITS: u32 = 10;
/// The weights of all smaller bytes and of the end of a text.
static WEIGHTS: [u16; 257] = weights();

const fn weights() -> [u16; 257] {
    let mut table = [0; 257];
    let mut byte = 0;
    while byte < 256 {
        let weight = match byte as u8 {
            b'a'..=b'z' => 20,
            b'A'..=b'Z' => 6,
            b'0'..=b'9' => 8,
            b' ' | b'-' | b'.' | b'/' | b':' | b'_' => 4,
            _ => 1,
        };
        table[byte + 1] = table[byte] + weight;
        byte += 1;
    }
    // The end of a text has the rest.
    let end = (1 << WEIGHT_BITS) - table[256];
    let mut byte = 0;
    while byte <= 256 {
        table[byte] += end;
        byte += 1;
    }
    table
}

/// The code of a finite number: a quarter is for negative ones. Of the others, numbers below 2⁻¹⁷ and from 2³⁰ on have a sixteenth each.
///
/// Within a part the code follows the bits of the float, so that each power of two has as much as the next.
pub(crate) fn number(number: f64) -> u64 {
    const fn bits_of_power(exponent: u64) -> u64 {
        (exponent + 1023) << 52
    }
    const SMALL: u64 = (1023 - 17) << 52;
    const LARGE: u64 = bits_of_power(30);
    const END: u64 = bits_of_power(1024);
    const ZERO: u64 = 1 << 62;
    const PARTS: u64 = (1 << 62) / 16;
    let bits = number.abs().to_bits();
    let (from, to, low, parts) = match bits {
        ..SMALL => (0, SMALL, 0, 1),
        SMALL..LARGE => (SMALL, LARGE, 1, 14),
        _ => (LARGE, END, 15, 1),
    };
    let within = u128::from(bits - from) * u128::from(parts * PARTS) / u128::from(to - from);
    let code = low * PARTS + (within as u64).min(parts * PARTS - 1);
    if number < 0.0 { ZERO - 1 - code } else { ZERO + 3 * code }
}

/// The code of a value: all numbers come before all texts, and have half of the codes. Units do not count.
pub(crate) fn value(item: &Item) -> u64 {
    match item {
        Item::Number(it) => number_value(it.value()),
        Item::Text(it) => text_value(text(it)),
    }
}

fn number_value(it: f64) -> u64 {
    number(it) >> 1
}

fn text_value(code: u64) -> u64 {
    1 << 63 | code >> 1
}

/// Codes of all values that satisfy a wanted one, and maybe of others.
pub(crate) fn values(wanted: &ValueCondition) -> Intervals {
    let exactly = |item: &Item| (value(item), value(item));
    let numbers = wanted.numbers().into_iter();
    let numbers = numbers.map(|range| (number_value(*range.start()), number_value(*range.end())));
    match wanted {
        ValueCondition::Any => Intervals::up_to(u64::MAX),
        ValueCondition::Exactly(item) => Intervals::of([exactly(item)]),
        ValueCondition::OneOf(items) => Intervals::of(items.iter().map(exactly)),
        ValueCondition::Prefix(prefix) => {
            let (low, high) = texts_that_begin_with(prefix);
            Intervals::of(numbers.chain([(text_value(low), text_value(high))]))
        }
        ValueCondition::Between(..)
        | ValueCondition::AtLeast(_)
        | ValueCondition::MoreThan(_)
        | ValueCondition::AtMost(_)
        | ValueCondition::LessThan(_) => Intervals::of(numbers),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_message::attribute::Number;

    use super::*;

    #[test]
    fn usual_values_have_room() {
        // Parts of 16: the first letters of usual words differ there.
        let parts = ["Drone", "a", "camera", "light", "room", "temperature", "videocamera"];
        assert_eq!(parts.map(|word| text(word) >> 60), [3, 5, 6, 9, 11, 11, 12]);
        let numbers = [f64::MIN, -20.0, 0.0, 0.5, 1.0, 20.0, 720.0, 1e6, 1e9, f64::MAX];
        let codes = numbers.map(|it| number(it) >> 58);
        assert!(codes.is_sorted() && codes[9] == 63, "{codes:?}");
    }

    /// Numbers that were computed a second time by another program.
    #[test]
    fn codes_stay_what_they_are() {
        for (code, expected) in [
            (text(""), 0),
            (text("Drone"), 0x390F_7C0E_34A0_0000),
            (text("post_processing_func"), 0xAAFF_F54D_C5AC_D754),
            (number(0.0), 1 << 62),
            (number(40.0583), 0x9B89_D65C_3893_BC35),
            (number(-74.4056), 0x2066_EB01_7D80_D090),
        ] {
            assert_eq!(code, expected, "{code:#x}");
        }
    }

    proptest! {
        #[test]
        fn texts_keep_their_order_and_prefixes_are_one_interval(one: String, other: String, end: usize) {
            let (lower, upper) = if one <= other { (&one, &other) } else { (&other, &one) };
            prop_assert!(text(lower) <= text(upper));
            let end = (0..=end % (one.len() + 1)).rev().find(|end| one.is_char_boundary(*end));
            let prefix = &one[..end.unwrap_or(0)];
            let (low, high) = texts_that_begin_with(prefix);
            prop_assert!((low..=high).contains(&text(&one)));
            // Up to six bytes no other text has a code there.
            let is_in = (low..=high).contains(&text(&other));
            prop_assert!(prefix.len() > 6 || is_in == other.starts_with(prefix));
        }

        #[test]
        fn short_texts_have_codes_of_their_own(one in "[ -~]{0,6}", other in "[ -~]{0,6}") {
            prop_assert_eq!(one.cmp(&other), text(&one).cmp(&text(&other)));
        }

        #[test]
        fn numbers_keep_their_order(one: f64, other: f64, near in -1e4..1e4_f64) {
            for (one, other) in [(one, other), (near, near * 1.001), (one, near)] {
                prop_assert!(number(one.min(other)) <= number(one.max(other)));
                prop_assert!((one < 0.0) == (number(one) < 1 << 62));
            }
        }

        #[test]
        fn values_that_satisfy_are_among_the_codes(tenths in -1000_i32..1000, text in "[a-c:_]{1,4}", end in 1_usize..4) {
            let number = Number::new(f64::from(tenths) / 10.0, "p").expect("a number");
            let texts = [number.to_string(), text.clone()];
            for (item, text) in [Item::Number(number), Item::text(&text)].iter().zip(&texts) {
                let prefix = &text[..end.min(text.len())];
                for wanted in [ValueCondition::Any, ValueCondition::Exactly(item.clone()), ValueCondition::Prefix(prefix.into())] {
                    prop_assert!(values(&wanted).has(value(item)), "{:?} {}", wanted, item);
                }
            }
        }
    }
}
