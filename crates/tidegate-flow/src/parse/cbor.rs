//! CBOR (RFC 8949) as a stream of items, and the flat map.
//!
//! Text and bytes come in one piece; those of indefinite length are no sensor's and are refused. Arrays and maps may be of
//! indefinite length. Tags are passed over.

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

    /// The next item, its tags passed over.
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
                _ => continue, // a tag
            });
        }
    }

    /// A value that is no array and no map; those are skipped, and are none.
    pub(super) fn value(&mut self) -> Result<Option<Value<'a>>, Reason> {
        Ok(Some(match self.item()? {
            Item::Integer(value) => Value::Integer(value),
            Item::Float(value) => Value::Number(value),
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
