//! Fields at fixed places of a payload, and their values.
//!
//! ```text
//!  "station as u16be at 0; temperature at 2 length 6 decimals 1"
//!   00 07 20 2d 32 31 2e 35   ─▶   station 7, temperature -215
//! ```

use std::str::FromStr;

use tidegate_message::{BinaryNumber, NumberKind};

/// Most decimals of a field: more do not fit 64 bits.
pub(crate) const DECIMALS_MAX: u8 = 18;
/// Most digits of a field in ASCII: as many always fit 64 bits.
const DIGITS_MAX: u8 = 18;

/// A number at a fixed place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in conditions.
    pub name: String,
    /// Its first byte, counted from 0.
    pub at: u16,
    /// The encoding of its bytes.
    pub encoding: Encoding,
    /// How many decimals it has. In ASCII they stand behind a point; a binary number 215 of one decimal is 21.5.
    pub decimals: u8,
}

/// How the bytes of a field encode its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A decimal of so many characters: blanks, a sign or none, digits, and with decimals a point and all of them.
    Ascii {
        /// How many.
        length: u8,
    },
    /// An integer.
    Binary(BinaryNumber),
}

impl Encoding {
    /// How many bytes it has.
    pub fn bytes(self) -> u16 {
        match self {
            Self::Ascii { length } => length.into(),
            Self::Binary(number) => number.bytes.into(),
        }
    }
}

impl Field {
    /// Whether its encoding and decimals go together.
    pub(crate) fn check(&self) -> Result<(), FieldError> {
        let wrong = |problem| Err(FieldError { field: self.name.clone(), problem });
        let is_named = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let starts = self.name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if self.name.len() > 64 || !starts || !self.name.chars().all(is_named) {
            return wrong(
                "a name is made of up to 64 letters, digits, _ and -, and begins with a letter",
            );
        }
        if ["and", "or", "in"].contains(&&*self.name) {
            return wrong("and, or and in are not names: conditions are made with them");
        }
        if self.decimals > DECIMALS_MAX {
            return wrong("a field has at most 18 decimals");
        }
        if matches!(self.encoding, Encoding::Binary(number) if !is_integer(&number)) {
            return wrong("a binary field is an integer of 1, 2, 4 or 8 bytes");
        }
        if let Encoding::Ascii { length } = self.encoding {
            let point = u8::from(self.decimals > 0);
            if length > DIGITS_MAX + point {
                return wrong("at most 18 digits are read, and a point: make length smaller");
            }
            if length < self.decimals + point + 1 {
                return wrong(
                    "length must have room for a digit, and for a point and the decimals behind it",
                );
            }
        }
        Ok(())
    }

    /// The least and the most that it can be, in units of its last decimal.
    pub(crate) fn domain(&self) -> (i128, i128) {
        match self.encoding {
            Encoding::Binary(BinaryNumber { bytes, kind: NumberKind::Signed, .. }) => {
                let half = 1_i128 << (8 * u32::from(bytes) - 1);
                (-half, half - 1)
            }
            Encoding::Binary(BinaryNumber { bytes, .. }) => {
                (0, (1_i128 << (8 * u32::from(bytes))) - 1)
            }
            Encoding::Ascii { length } => {
                let digits = u32::from(length) - u32::from(self.decimals > 0);
                // A sign takes the place of a digit, where there are two before the point.
                let negative = match digits - u32::from(self.decimals) {
                    1 => 0,
                    _ => 10_i128.pow(digits - 1) - 1,
                };
                (-negative, 10_i128.pow(digits) - 1)
            }
        }
    }

    /// Its value in units of its last decimal; none if its bytes are not as they should be. `payload` must have them all.
    pub(crate) fn read(&self, payload: &[u8]) -> Option<i128> {
        let bytes = &payload[usize::from(self.at)..][..usize::from(self.encoding.bytes())];
        let Encoding::Binary(binary) = self.encoding else {
            return ascii(bytes, self.decimals.into()).map(i128::from);
        };
        let mut word = [0; 8];
        let low = &mut word[..bytes.len()];
        low.copy_from_slice(bytes);
        if binary.is_big_endian {
            low.reverse();
        }
        let value = u64::from_le_bytes(word);
        let unused = 64 - 8 * u32::from(binary.bytes);
        match binary.kind == NumberKind::Signed {
            true => Some(((value << unused).cast_signed() >> unused).into()),
            false => Some(value.into()),
        }
    }
}

/// `  -21.5` with one decimal is -215. Nothing is lost, nothing is guessed: all decimals are there, and a digit before the point.
fn ascii(text: &[u8], decimals: usize) -> Option<i64> {
    let (whole, fraction) = match decimals {
        0 => (text, &[][..]),
        _ => {
            let (whole, fraction) = text.split_at(text.len() - decimals - 1);
            (whole, fraction.strip_prefix(b".")?)
        }
    };
    let start = whole.iter().position(|byte| *byte != b' ')?;
    let whole = &whole[start..];
    let is_negative = whole[0] == b'-';
    let whole = if is_negative || whole[0] == b'+' { &whole[1..] } else { whole };
    if whole.is_empty() {
        return None;
    }
    let mut digits = whole.iter().chain(fraction);
    let value = digits.try_fold(0, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
    })?;
    Some(if is_negative { -value } else { value })
}

fn is_integer(number: &BinaryNumber) -> bool {
    number.kind != NumberKind::Float && matches!(number.bytes, 1 | 2 | 4 | 8)
}

/// Fields in words, separated by semicolons: `NAME at BYTE`, and in any order `as u16be` for what is binary or `length N` for ASCII, and
/// `decimals N`.
///
/// # Errors
/// [`FieldError`].
pub fn parse_fields(text: &str) -> Result<Vec<Field>, FieldError> {
    text.split(';').filter(|part| !part.trim().is_empty()).map(str::parse).collect()
}

impl FromStr for Field {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        let wrong = |problem| FieldError { field: name.clone(), problem };
        let (mut at, mut length, mut decimals, mut binary) = (None, None, None, None);
        while let Some(key) = words.next() {
            let value = words.next().unwrap_or_default();
            let is_new = match key {
                "at" => {
                    let number =
                        value.parse().map_err(|_| wrong("at needs a byte, counted from 0"))?;
                    at.replace(number).is_none()
                }
                "length" => {
                    let number =
                        value.parse().map_err(|_| wrong("length needs a number of characters"))?;
                    length.replace(number).is_none()
                }
                "decimals" => {
                    let number =
                        value.parse().map_err(|_| wrong("decimals needs a number up to 18"))?;
                    decimals.replace(number).is_none()
                }
                "as" => {
                    let number = BinaryNumber::read(value).filter(is_integer);
                    let number = number.ok_or_else(|| {
                        wrong("as is u8 or i8, or u16, i16, u32, i32, u64 or i64 with le or be behind it; ASCII has a length instead")
                    })?;
                    binary.replace(number).is_none()
                }
                _ => {
                    return Err(wrong(
                        "a field is NAME at BYTE, with: as TYPE or length N, decimals N",
                    ));
                }
            };
            if !is_new {
                return Err(wrong("each word is said once"));
            }
        }
        let encoding = match (binary, length) {
            (Some(number), None) => Encoding::Binary(number),
            (None, Some(length)) => Encoding::Ascii { length },
            (None, None) => return Err(wrong("as TYPE is missing, or length N for ASCII")),
            (Some(_), Some(_)) => return Err(wrong("length is for ASCII; a type has its own")),
        };
        let at = at.ok_or_else(|| wrong("at BYTE is missing"))?;
        let field = Self { name, at, encoding, decimals: decimals.unwrap_or(0) };
        field.check()?;
        Ok(field)
    }
}

/// Why a field cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field:?}: {problem}")]
pub struct FieldError {
    /// Its name.
    pub field: String,
    /// The problem, and the valid forms.
    pub problem: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_in_words() {
        let fields = parse_fields("station as u16be at 0; t at 2 length 6 decimals 1;").unwrap();
        let encoding = Encoding::Binary(BinaryNumber::read("u16be").unwrap());
        let station = Field { name: "station".into(), at: 0, encoding, decimals: 0 };
        let t =
            Field { name: "t".into(), at: 2, encoding: Encoding::Ascii { length: 6 }, decimals: 1 };
        assert_eq!(fields, [station, t]);
        assert_eq!(parse_fields(" ").unwrap(), []);
    }

    #[test]
    fn wrong_fields_are_refused_with_the_way_out() {
        for (text, part) in [
            ("t", "as TYPE is missing"),
            ("t at 2", "as TYPE is missing"),
            ("t length 3", "at BYTE is missing"),
            ("t at 2 as u16", "with le or be"),
            ("t at 2 as f32le", "with le or be"),
            ("t at 2 as u16be length 2", "a type has its own"),
            ("t at -1 as u8", "counted from 0"),
            ("t at 1 at 2 as u8", "said once"),
            ("t at 1 as u8 wide", "a field is NAME at BYTE"),
            ("t at 1 length 300", "number of characters"),
            ("t at 1 as u8 decimals 19", "at most 18 decimals"),
            ("t at 1 as u8 decimals x", "up to 18"),
            ("t at 1 length 0", "room for a digit"),
            ("t at 1 length 3 decimals 2", "room for a digit"),
            ("t at 1 length 19", "at most 18 digits"),
            ("t at 1 length 20 decimals 2", "at most 18 digits"),
            ("and at 1 as u8", "are not names"),
            ("7 at 1 as u8", "begins with a letter"),
            ("a.b at 1 as u8", "made of"),
        ] {
            let error = parse_fields(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn values_are_read_exactly_or_not_at_all() {
        for (text, decimals, expected) in [
            ("21.5", 1, Some(215)),
            ("  -21.50", 2, Some(-2150)),
            ("+7", 0, Some(7)),
            ("007", 0, Some(7)),
            ("-0.0", 1, Some(0)),
            ("  0", 0, Some(0)),
            ("999999999999999999", 0, Some(999_999_999_999_999_999)),
            ("-0.00000000000000001", 17, Some(-1)),
            (" 21.5", 2, None), // a decimal is missing
            ("21.55", 1, None),
            ("2155", 1, None),
            (" .5", 1, None), // no digit before the point
            ("-.5", 1, None),
            ("5. ", 1, None),
            ("21 ", 0, None),
            ("- 1", 0, None),
            ("--1", 0, None),
            ("1-1", 0, None),
            ("1 1", 0, None),
            ("-", 0, None),
            ("   ", 0, None),
            ("NaN", 0, None),
            ("1e3", 0, None),
            ("0x1", 0, None),
            ("1,5", 1, None),
            ("\t1", 0, None),
            ("1\0", 0, None),
            ("\u{661}", 0, None),
        ] {
            assert_eq!(ascii(text.as_bytes(), decimals), expected, "{text:?}");
        }
    }

    #[test]
    fn binary_values_keep_their_sign_and_order() {
        let payload = [0xff, 0x7f, 0x80, 0, 1, 2, 3, 0xfe];
        for (word, at, expected) in [
            ("u8", 0, 255),
            ("i8", 0, -1),
            ("u16le", 0, 0x7fff),
            ("u16be", 0, 0xff7f),
            ("i16be", 0, -129),
            ("i16le", 2, 0x80),
            ("i16be", 2, -32768),
            ("u32le", 4, 0xfe03_0201),
            ("i32le", 4, -33_357_311),
            ("u32be", 4, 0x0102_03fe),
            ("i32be", 4, 0x0102_03fe),
            ("u64be", 0, 0xff7f_8000_0102_03fe),
            ("i64be", 0, -0x0080_7fff_fefd_fc02),
            ("u64le", 0, 0xfe03_0201_0080_7fff),
            ("i64le", 0, 0xfe03_0201_0080_7fff_i128 - (1 << 64)),
        ] {
            let encoding = Encoding::Binary(BinaryNumber::read(word).unwrap());
            let field = Field { name: "x".into(), at, encoding, decimals: 0 };
            assert_eq!(field.read(&payload), Some(expected), "{word}");
            let (least, most) = field.domain();
            assert!((least..=most).contains(&expected), "{word}");
        }
    }

    #[test]
    fn a_domain_is_what_can_be_written() {
        for (length, decimals, expected) in [
            (1, 0, (0, 9)),
            (2, 0, (-9, 99)),
            (3, 1, (0, 99)),
            (4, 1, (-99, 999)),
            (19, 17, (0, 10_i128.pow(18) - 1)),
        ] {
            let encoding = Encoding::Ascii { length };
            let field = Field { name: "x".into(), at: 0, encoding, decimals };
            field.check().unwrap();
            assert_eq!(field.domain(), expected, "{length} {decimals}");
        }
    }
}
