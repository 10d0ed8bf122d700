//! CBOR (RFC 8949) as a stream of items, and the flat map.
//!
//! Text and bytes come in one piece; those of indefinite length are no sensor's and are refused. Arrays and maps may be of
//! indefinite length. Tags are passed over but for those of numbers: bignums (2 and 3), decimal fractions (4) and bigfloats (5) are
//! the numbers that they stand for (section 3.4.3 and 3.4.4).

use std::io::Write as _;

use super::{Cells, Value};
use crate::bad::Reason;

/// Deepest nesting that is skipped over.
const DEPTH_MAX: usize = 64;

/// A flat map with names of text: members that are fields are read, the others are skipped.
pub(super) fn read_map(payload: &[u8], cells: &mut Cells<'_, '_>) -> Result<(), Reason> {
    let mut reader = Reader::new(payload);
    let Item::Map(mut members) = reader.item()? else { return Err(Reason::Format) };
    while reader.more(&mut members)? {
        let field = match reader.item()? {
            Item::Text(name) => cells.find(b"", name),
            Item::Integer(_) | Item::Bytes(_) => None,
            _ => return Err(Reason::Format),
        };
        match field {
            Some(index) => match reader.value()? {
                Some(value) => cells.put(index, value),
                None => cells.fail(Reason::NotANumber, index),
            },
            None => reader.skip()?,
        }
    }
    reader.end()
}

/// Where in the payload reading stands.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// One item; of an array or map its head alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item<'a> {
    /// From -2^64 to 2^64 - 1 (RFC 8949, section 3.1).
    Integer(i128),
    Float(f64),
    /// A decimal fraction, and what it is exactly, times 10^9.
    Decimal(f64, i128),
    Bytes(&'a [u8]),
    Text(&'a [u8]),
    Array(Count),
    Map(Count),
    Bool(bool),
    /// Null, undefined, or a simple value without a meaning here.
    Null,
    /// The end of what has an indefinite length.
    Break,
}

/// Elements or pairs that are still to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Count {
    Definite(u64),
    Indefinite,
}

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    pub(super) fn end(&self) -> Result<(), Reason> {
        if self.rest.is_empty() { Ok(()) } else { Err(Reason::Format) }
    }

    /// Whether another element or pair comes; counts it, or goes past the end.
    pub(super) fn more(&mut self, count: &mut Count) -> Result<bool, Reason> {
        match count {
            Count::Definite(0) => Ok(false),
            Count::Definite(left) => {
                *left -= 1;
                Ok(true)
            }
            Count::Indefinite => match self.rest.split_first() {
                Some((0xff, rest)) => {
                    self.rest = rest;
                    Ok(false)
                }
                Some(_) => Ok(true),
                None => Err(Reason::Format),
            },
        }
    }

    /// The next item, its tags passed over or, where they make a number of it, understood.
    pub(super) fn item(&mut self) -> Result<Item<'a>, Reason> {
        loop {
            let head = self.take(1)?[0];
            let (major, info) = (head >> 5, head & 31);
            if major == 7 {
                return self.simple(info);
            }
            if info == 31 {
                return match major {
                    4 => Ok(Item::Array(Count::Indefinite)),
                    5 => Ok(Item::Map(Count::Indefinite)),
                    _ => Err(Reason::Format),
                };
            }
            let argument = self.argument(info)?;
            return Ok(match major {
                0 => Item::Integer(i128::from(argument)),
                1 => Item::Integer(-1 - i128::from(argument)),
                2 => Item::Bytes(self.take(argument)?),
                3 => Item::Text(self.take(argument)?),
                4 => Item::Array(Count::Definite(argument)),
                5 => Item::Map(Count::Definite(argument)),
                _ => match argument {
                    2 | 3 => Item::of_number(self.bignum(argument == 3)?),
                    4 | 5 => self.fraction(argument == 4)?,
                    _ => continue, // a tag that changes nothing here
                },
            });
        }
    }

    /// The bytes of a bignum, the highest first.
    fn bignum(&mut self, is_negative: bool) -> Result<Number, Reason> {
        let head = self.take(1)?[0];
        if head >> 5 != 2 {
            return Err(Reason::Format);
        }
        let count = self.argument(head & 31)?;
        let bytes = self.take(count)?;
        let leading = bytes.iter().take_while(|byte| **byte == 0).count();
        let bytes = &bytes[leading..];
        // One bit is the sign's.
        let fits = bytes.len() < 16 || bytes.len() == 16 && bytes[0] < 0x80;
        Ok(if fits {
            let value = bytes.iter().fold(0, |value, byte| value << 8 | i128::from(*byte));
            Number::Integer(if is_negative { -1 - value } else { value })
        } else {
            // Of one so long the first bytes are all that a float shows of it, and the others whether they are nothing.
            let (high, low) = bytes.split_at(15);
            let high = high.iter().fold(0, |value, byte| value << 8 | i128::from(*byte));
            let sticky = i128::from(low.iter().any(|byte| *byte != 0));
            let value = scaled((high << 1 | sticky) as f64, 8 * low.len() as i64 - 1);
            Number::Float(if is_negative { -value } else { value })
        })
    }

    /// An exponent and a mantissa, each a whole number: nothing in it can go deeper.
    fn fraction(&mut self, is_decimal: bool) -> Result<Item<'a>, Reason> {
        let head = self.take(1)?[0];
        let is_indefinite = head == 0x9f;
        if !is_indefinite && (head >> 5 != 4 || self.argument(head & 31)? != 2) {
            return Err(Reason::Format);
        }
        let Number::Integer(exponent) = self.whole()? else { return Err(Reason::Format) };
        let mantissa = self.whole()?;
        if is_indefinite && self.take(1)? != [0xff] {
            return Err(Reason::Format);
        }
        // Beyond these all is nothing, or too large.
        let exponent = exponent.clamp(-100_000, 100_000) as i64;
        Ok(Item::of_number(match (mantissa, is_decimal) {
            (Number::Integer(mantissa), true) => decimal(mantissa, exponent),
            (Number::Float(mantissa) | Number::Decimal(mantissa, _), true) => {
                Number::Float(mantissa * 10_f64.powi(exponent as i32))
            }
            (mantissa, false) => Number::Float(scaled(mantissa.float(), exponent)),
        }))
    }

    /// A whole number, whether a bignum or not.
    fn whole(&mut self) -> Result<Number, Reason> {
        let head = self.take(1)?[0];
        let argument = self.argument(head & 31)?;
        match (head >> 5, argument) {
            (0, value) => Ok(Number::Integer(i128::from(value))),
            (1, value) => Ok(Number::Integer(-1 - i128::from(value))),
            (6, 2 | 3) => self.bignum(argument == 3),
            _ => Err(Reason::Format),
        }
    }

    /// A value that is no array and no map; those are skipped, and are none.
    pub(super) fn value(&mut self) -> Result<Option<Value<'a>>, Reason> {
        Ok(Some(match self.item()? {
            Item::Integer(value) => Value::Integer(value),
            Item::Float(value) => Value::Number(value),
            Item::Decimal(value, billionths) => Value::Exact(value, billionths),
            Item::Bytes(bytes) | Item::Text(bytes) => Value::Bytes(bytes),
            Item::Bool(value) => Value::Number(f64::from(u8::from(value))),
            Item::Null => Value::Missing,
            Item::Array(count) => {
                self.skip_inside(count, 1)?;
                return Ok(None);
            }
            Item::Map(count) => {
                self.skip_inside(count, 2)?;
                return Ok(None);
            }
            Item::Break => return Err(Reason::Format),
        }))
    }

    /// Goes past one value of any kind.
    pub(super) fn skip(&mut self) -> Result<(), Reason> {
        self.value().map(|_| ())
    }

    /// Goes past `count` elements of `items` items each.
    fn skip_inside(&mut self, count: Count, items: u64) -> Result<(), Reason> {
        let multiplied = |count: Count, items: u64| match count {
            Count::Definite(count) => Count::Definite(count.saturating_mul(items)),
            Count::Indefinite => Count::Indefinite,
        };
        let mut open = [Count::Definite(0); DEPTH_MAX];
        open[0] = multiplied(count, items);
        let mut depth = 1;
        while depth > 0 {
            if !self.more(&mut open[depth - 1])? {
                depth -= 1;
                continue;
            }
            let inner = match self.item()? {
                Item::Array(count) => multiplied(count, 1),
                Item::Map(count) => multiplied(count, 2),
                Item::Break => return Err(Reason::Format),
                _ => continue,
            };
            *open.get_mut(depth).ok_or(Reason::Format)? = inner;
            depth += 1;
        }
        Ok(())
    }

    fn simple(&mut self, info: u8) -> Result<Item<'a>, Reason> {
        Ok(match info {
            20 => Item::Bool(false),
            21 => Item::Bool(true),
            24 => {
                self.take(1)?;
                Item::Null
            }
            25 => Item::Float(half(u16::from_be_bytes(self.array()?))),
            26 => Item::Float(f64::from(f32::from_be_bytes(self.array()?))),
            27 => Item::Float(f64::from_be_bytes(self.array()?)),
            28..=30 => return Err(Reason::Format),
            31 => Item::Break,
            _ => Item::Null,
        })
    }

    fn argument(&mut self, info: u8) -> Result<u64, Reason> {
        Ok(match info {
            0..=23 => u64::from(info),
            24 => u64::from(self.take(1)?[0]),
            25 => u64::from(u16::from_be_bytes(self.array()?)),
            26 => u64::from(u32::from_be_bytes(self.array()?)),
            27 => u64::from_be_bytes(self.array()?),
            _ => return Err(Reason::Format),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Reason::Format)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Reason> {
        let count = usize::try_from(count).map_err(|_| Reason::Format)?;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Reason::Format)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// A number that was put together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Integer(i128),
    Float(f64),
    /// As of [`Item`].
    Decimal(f64, i128),
}

impl Number {
    fn float(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) | Self::Decimal(value, _) => value,
        }
    }
}

impl Item<'_> {
    fn of_number(number: Number) -> Self {
        match number {
            Number::Integer(value) => Self::Integer(value),
            Number::Float(value) => Self::Float(value),
            Number::Decimal(value, billionths) => Self::Decimal(value, billionths),
        }
    }
}

/// A mantissa and a power of ten: the nearest float, and what it is exactly where nine digits behind the point say it, or the whole
/// number if it is one.
fn decimal(mantissa: i128, exponent: i64) -> Number {
    if let Ok(exponent) = u32::try_from(exponent)
        && let Some(whole) = 10_i128.checked_pow(exponent).and_then(|ten| ten.checked_mul(mantissa))
    {
        return Number::Integer(whole);
    }
    // As text it is rounded once. The digits of 128 bits are 39.
    let mut text = [0; 64];
    let mut rest = &mut text[..];
    write!(rest, "{mantissa}e{exponent}").expect("a sign, 39 digits and an exponent fit");
    let left = rest.len();
    let written = std::str::from_utf8(&text[..text.len() - left]).expect("digits are ASCII");
    let float = written.parse().expect("the written text is a number");
    let finer = u32::try_from(exponent + 9).ok().and_then(|finer| 10_i128.checked_pow(finer));
    match finer.and_then(|finer| mantissa.checked_mul(finer)) {
        Some(billionths) => Number::Decimal(float, billionths),
        None => Number::Float(float),
    }
}

/// A float and a power of two; in steps, since a float's own powers end before the product does.
fn scaled(mut value: f64, mut exponent: i64) -> f64 {
    while exponent.abs() > 1000 && value != 0.0 && value.is_finite() {
        let step = exponent.signum() * 1000;
        value *= 2_f64.powi(step as i32);
        exponent -= step;
    }
    value * 2_f64.powi(exponent.clamp(-1000, 1000) as i32)
}

/// A float of 16 bits (IEEE 754 binary16).
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 31);
    let mantissa = f64::from(bits & 0x3ff);
    sign * match exponent {
        0 => mantissa * 2_f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + mantissa / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_tags_make_are_read() {
        fn item(bytes: &[u8]) -> Result<Item<'_>, Reason> {
            let mut reader = Reader::new(bytes);
            let item = reader.item()?;
            reader.end().map(|()| item)
        }
        for (bytes, expected) in [
            // RFC 8949, section 3.4.3 and 3.4.4, and appendix A.
            (&b"\xc4\x82\x21\x19\x6a\xb3"[..], Ok(Item::Decimal(273.15, 273_150_000_000))),
            (b"\xc5\x82\x20\x03", Ok(Item::Float(1.5))),
            (b"\xc2\x49\x01\0\0\0\0\0\0\0\0", Ok(Item::Integer(1 << 64))),
            (b"\xc3\x49\x01\0\0\0\0\0\0\0\0", Ok(Item::Integer(-1 - (1 << 64)))),
            (b"\xc4\x82\x02\x05", Ok(Item::Integer(500))),
            (b"\xc4\x82\x20\x20", Ok(Item::Decimal(-0.1, -100_000_000))),
            (b"\xc4\x9f\x20\x0f\xff", Ok(Item::Decimal(1.5, 1_500_000_000))), // of indefinite length
            (b"\xd9\xd9\xf7\xc4\x82\x20\x0f", Ok(Item::Decimal(1.5, 1_500_000_000))), // tagged as CBOR before
            (b"\xc4\x82\x21\xc2\x42\x6a\xb3", Ok(Item::Decimal(273.15, 273_150_000_000))),
            (b"\xc4\x82\x3a\xff\xff\xff\xff\x01", Ok(Item::Float(0.0))),
            (b"\xc4\x82\x1a\xff\xff\xff\xff\x01", Ok(Item::Float(f64::INFINITY))),
            (b"\xc5\x82\x39\x04\x31\x01", Ok(Item::Float(5e-324))), // 2^-1074
            (b"\xc5\x82\x39\x04\x41\x1a\0\x01\0\0", Ok(Item::Float(5e-324))), // 2^16 of 2^-1090
            (b"\xc5\x82\x19\x03\xff\x01", Ok(Item::Float(2_f64.powi(1023)))),
            (b"\xc5\x82\x19\x04\0\x01", Ok(Item::Float(f64::INFINITY))),
            (b"\xc2\x40", Ok(Item::Integer(0))),
            (b"\xc4\x83\x01\x01\x01", Err(Reason::Format)),
            (b"\xc4\x82\x01\xfa\0\0\0\0", Err(Reason::Format)),
            (b"\xc4\x82\x01\xc4\x82\x01\x01", Err(Reason::Format)),
            (b"\xc4\x01", Err(Reason::Format)),
            (b"\xc2\x01", Err(Reason::Format)),
            (b"\xc4\x82\x01", Err(Reason::Format)),
        ] {
            assert_eq!(item(bytes), expected, "{bytes:02x?}");
        }
        let long = [&b"\xc2\x58\x20\x80"[..], &[0; 31]].concat();
        assert_eq!(item(&long), Ok(Item::Float(2_f64.powi(255))));
        let longer = [&b"\xc3\x59\x01\x00\x80"[..], &[0; 255]].concat();
        assert_eq!(item(&longer), Ok(Item::Float(f64::NEG_INFINITY)));
    }

    #[test]
    fn halves_are_read() {
        // RFC 8949, appendix A.
        for (bits, expected) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0x3e00, 1.5),
            (0x7bff, 65_504.0),
            (0x0001, 5.960_464_477_539_063e-8),
            (0x0400, 6.103_515_625e-5),
            (0xc400, -4.0),
            (0x7c00, f64::INFINITY),
        ] {
            assert_eq!(half(bits), expected, "{bits:#06x}");
        }
        assert!(half(0x7e00).is_nan());
    }
}
