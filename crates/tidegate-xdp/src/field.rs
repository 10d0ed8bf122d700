//! Fields at fixed places of a payload, and their values.
//!
//! ```text
//!  "station as u16be at 0; temperature at 2 length 6 decimals 1"
//!   00 07 20 2d 32 31 2e 35   ─▶   station 7, temperature -215
//! ```

use std::str::FromStr;

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
#[expect(missing_docs, reason = "the names say the type and the order of its bytes")]
pub enum Encoding {
    /// A decimal of so many characters: blanks, a sign or none, digits, and with decimals a point and all of them.
    Ascii {
        length: u8,
    },
    U8,
    I8,
    U16le,
    U16be,
    I16le,
    I16be,
    U32le,
    U32be,
    I32le,
    I32be,
    U64le,
    U64be,
    I64le,
    I64be,
}

/// How a binary number is made of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) bytes: u8,
    pub(crate) is_signed: bool,
    pub(crate) is_big_endian: bool,
}

impl Encoding {
    const WORDS: [(&str, Self); 14] = [
        ("u8", Self::U8),
        ("i8", Self::I8),
        ("u16le", Self::U16le),
        ("u16be", Self::U16be),
        ("i16le", Self::I16le),
        ("i16be", Self::I16be),
        ("u32le", Self::U32le),
        ("u32be", Self::U32be),
        ("i32le", Self::I32le),
        ("i32be", Self::I32be),
        ("u64le", Self::U64le),
        ("u64be", Self::U64be),
        ("i64le", Self::I64le),
        ("i64be", Self::I64be),
    ];

    /// How many bytes it has.
    pub fn bytes(self) -> u16 {
        match (self, self.binary()) {
            (Self::Ascii { length }, _) => length.into(),
            (_, binary) => binary.map_or(0, |binary| binary.bytes.into()),
        }
    }

    pub(crate) fn binary(self) -> Option<Binary> {
        let (bytes, is_signed, is_big_endian) = match self {
            Self::Ascii { .. } => return None,
            Self::U8 => (1, false, true),
            Self::I8 => (1, true, true),
            Self::U16le => (2, false, false),
            Self::U16be => (2, false, true),
            Self::I16le => (2, true, false),
            Self::I16be => (2, true, true),
            Self::U32le => (4, false, false),
            Self::U32be => (4, false, true),
            Self::I32le => (4, true, false),
            Self::I32be => (4, true, true),
            Self::U64le => (8, false, false),
            Self::U64be => (8, false, true),
            Self::I64le => (8, true, false),
            Self::I64be => (8, true, true),
        };
        Some(Binary { bytes, is_signed, is_big_endian })
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
        match (self.encoding, self.encoding.binary()) {
            (_, Some(Binary { bytes, is_signed: true, .. })) => {
                let half = 1_i128 << (8 * u32::from(bytes) - 1);
                (-half, half - 1)
            }
            (_, Some(Binary { bytes, .. })) => (0, (1_i128 << (8 * u32::from(bytes))) - 1),
            (Encoding::Ascii { length }, _) => {
                let digits = u32::from(length) - u32::from(self.decimals > 0);
                // A sign takes the place of a digit, where there are two before the point.
                let negative = match digits - u32::from(self.decimals) {
                    1 => 0,
                    _ => 10_i128.pow(digits - 1) - 1,
                };
                (-negative, 10_i128.pow(digits) - 1)
            }
            (_, None) => unreachable!("any other encoding than ASCII is binary"),
        }
    }

    /// Its value in units of its last decimal; none if its bytes are not as they should be. `payload` must have them all.
    pub(crate) fn read(&self, payload: &[u8]) -> Option<i128> {
        let bytes = &payload[usize::from(self.at)..][..usize::from(self.encoding.bytes())];
        let Some(binary) = self.encoding.binary() else {
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
        match binary.is_signed {
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
                    let found = Encoding::WORDS.iter().find(|(word, _)| *word == value);
                    let (_, encoding) = found.ok_or_else(|| {
                        wrong("as is u8 or i8, or u16, i16, u32, i32, u64 or i64 with le or be behind it; ASCII has a length instead")
                    })?;
                    binary.replace(*encoding).is_none()
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
            (Some(encoding), None) => encoding,
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
        let station =
            Field { name: "station".into(), at: 0, encoding: Encoding::U16be, decimals: 0 };
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
        for (encoding, at, expected) in [
            (Encoding::U8, 0, 255),
            (Encoding::I8, 0, -1),
            (Encoding::U16le, 0, 0x7fff),
            (Encoding::U16be, 0, 0xff7f),
            (Encoding::I16be, 0, -129),
            (Encoding::I16le, 2, 0x80),
            (Encoding::I16be, 2, -32768),
            (Encoding::U32le, 4, 0xfe03_0201),
            (Encoding::I32le, 4, -33_357_311),
            (Encoding::U32be, 4, 0x0102_03fe),
            (Encoding::I32be, 4, 0x0102_03fe),
            (Encoding::U64be, 0, 0xff7f_8000_0102_03fe),
            (Encoding::I64be, 0, -0x0080_7fff_fefd_fc02),
            (Encoding::U64le, 0, 0xfe03_0201_0080_7fff),
            (Encoding::I64le, 0, 0xfe03_0201_0080_7fff_i128 - (1 << 64)),
        ] {
            let field = Field { name: "x".into(), at, encoding, decimals: 0 };
            assert_eq!(field.read(&payload), Some(expected), "{encoding:?}");
            let (least, most) = field.domain();
            assert!((least..=most).contains(&expected), "{encoding:?}");
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
