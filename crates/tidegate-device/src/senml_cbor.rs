//! SenML in CBOR (RFC 8428, section 6; CBOR: RFC 8949), as the same pack in JSON.
//!
//! Always true: whole numbers and decimal fractions come out digit for digit, and floats as the shortest number that means the same.

use std::io::Write as _;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};

/// Values that lie within each other at most.
const DEPTH_MAX: u32 = 8;
/// The end of what says no length.
const BREAK: u8 = 0xff;
/// The tag that says no more than that it is CBOR (RFC 8949, 3.4.6).
const SELF_DESCRIBED: u64 = 55_799;
/// The tag of a number of two parts, an exponent of ten and a whole number (RFC 8949, 3.4.4).
const DECIMAL_FRACTION: u64 = 4;

/// Why bytes are no SenML in CBOR.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the body is not SenML in CBOR: at byte {at} {problem}")]
pub struct CborError {
    /// From 0.
    pub at: usize,
    /// The problem there.
    pub problem: &'static str,
}

/// Whether `body` begins as an array of CBOR does; no JSON and no other text does.
pub fn is_cbor(body: &[u8]) -> bool {
    matches!(body, [0x80..=0x9f, ..] | [0xd9, 0xd9, 0xf7, ..])
}

/// The pack `body` in JSON.
///
/// # Errors
/// [`CborError`].
pub fn to_json(body: &[u8]) -> Result<Vec<u8>, CborError> {
    let mut reader = Reader { bytes: body, at: 0 };
    let mut out = Vec::with_capacity(2 * body.len());
    reader.value(0, &mut out)?;
    match reader.at == body.len() {
        true => Ok(out),
        false => Err(reader.wrong("there is more behind the pack")),
    }
}

/// The label of a member in JSON (RFC 8428, table 4).
fn label(number: i128) -> Option<&'static str> {
    Some(match number {
        -6 => "bs",
        -5 => "bv",
        -4 => "bu",
        -3 => "bt",
        -2 => "bn",
        -1 => "bver",
        0 => "n",
        1 => "u",
        2 => "v",
        3 => "vs",
        4 => "vb",
        5 => "s",
        6 => "t",
        7 => "ut",
        8 => "vd",
        _ => return None,
    })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The first byte of an item in its two parts, and the number behind it; no number where the item says no length.
struct Head {
    major: u8,
    info: u8,
    number: Option<u64>,
}

impl<'a> Reader<'a> {
    fn wrong(&self, problem: &'static str) -> CborError {
        CborError { at: self.at, problem }
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], CborError> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let taken = taken.ok_or_else(|| self.wrong("it is cut off"))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn head(&mut self) -> Result<Head, CborError> {
        let first = self.take(1)?[0];
        let (major, info) = (first >> 5, first & 31);
        let number = match info {
            0..=23 => Some(u64::from(info)),
            24..=27 => {
                let bytes = self.take(1 << (info - 24))?;
                Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
            }
            31 if matches!(major, 2..=5) => None,
            _ => return Err(self.wrong("there is a byte that begins nothing")),
        };
        Ok(Head { major, info, number })
    }

    /// Whether what says no length ends here.
    fn ends(&mut self) -> bool {
        let ends = self.bytes.get(self.at) == Some(&BREAK);
        self.at += usize::from(ends);
        ends
    }

    /// The next item, as JSON.
    fn value(&mut self, depth: u32, out: &mut Vec<u8>) -> Result<(), CborError> {
        if depth > DEPTH_MAX {
            return Err(self.wrong("values lie too deep within each other"));
        }
        let head = self.head()?;
        match (head.major, head.number) {
            (0 | 1, Some(number)) => {
                let _ = write!(out, "{}", whole(head.major, number));
            }
            (2, number) => {
                let bytes = self.string(2, number)?;
                out.push(b'"');
                out.extend_from_slice(BASE64_URL_SAFE_NO_PAD.encode(bytes).as_bytes());
                out.push(b'"');
            }
            (3, number) => self.text(number, out)?,
            (4, number) => {
                let mut left = number;
                out.push(b'[');
                let mut is_first = true;
                while self.goes_on(&mut left) {
                    if !std::mem::replace(&mut is_first, false) {
                        out.push(b',');
                    }
                    self.value(depth + 1, out)?;
                }
                out.push(b']');
            }
            (5, number) => {
                let mut left = number;
                out.push(b'{');
                let mut is_first = true;
                while self.goes_on(&mut left) {
                    if !std::mem::replace(&mut is_first, false) {
                        out.push(b',');
                    }
                    self.label(out)?;
                    out.push(b':');
                    self.value(depth + 1, out)?;
                }
                out.push(b'}');
            }
            (6, Some(SELF_DESCRIBED)) => self.value(depth + 1, out)?,
            (6, Some(DECIMAL_FRACTION)) => {
                let parts = self.head()?;
                if (parts.major, parts.number) != (4, Some(2)) {
                    return Err(self.wrong("a decimal fraction is not of two parts"));
                }
                let (exponent, digits) = (self.whole()?, self.whole()?);
                let _ = write!(out, "{digits}e{exponent}");
            }
            (6, _) => return Err(self.wrong("there is a tag that SenML does not have")),
            (_, number) => self.simple(head.info, number.unwrap_or_default(), out)?,
        }
        Ok(())
    }

    fn goes_on(&mut self, left: &mut Option<u64>) -> bool {
        match left {
            None => !self.ends(),
            Some(0) => false,
            Some(count) => {
                *count -= 1;
                true
            }
        }
    }

    /// The name of a member: the number that SenML has for it, or a text.
    fn label(&mut self, out: &mut Vec<u8>) -> Result<(), CborError> {
        let head = self.head()?;
        match (head.major, head.number) {
            (3, number) => self.text(number, out),
            (0 | 1, Some(number)) => {
                let label = label(whole(head.major, number));
                let label = label.ok_or_else(|| self.wrong("a label is not known"))?;
                let _ = write!(out, "\"{label}\"");
                Ok(())
            }
            _ => Err(self.wrong("a label is neither a number nor a text")),
        }
    }

    fn whole(&mut self) -> Result<i128, CborError> {
        let head = self.head()?;
        match (head.major, head.number) {
            (0 | 1, Some(number)) => Ok(whole(head.major, number)),
            _ => Err(self.wrong("a part of a decimal fraction is not a whole number")),
        }
    }

    fn text(&mut self, length: Option<u64>, out: &mut Vec<u8>) -> Result<(), CborError> {
        let bytes = self.string(3, length)?;
        let text = String::from_utf8(bytes).map_err(|_| self.wrong("a text is not UTF-8"))?;
        let _ = write!(out, "{}", serde_json::Value::from(text));
        Ok(())
    }

    /// The bytes of a string, or of its pieces where it says no length.
    fn string(&mut self, major: u8, length: Option<u64>) -> Result<Vec<u8>, CborError> {
        let Some(length) = length else {
            let mut all = Vec::new();
            while !self.ends() {
                let head = self.head()?;
                match (head.major == major, head.number) {
                    (true, Some(length)) => all.extend_from_slice(self.take(length)?),
                    _ => return Err(self.wrong("a piece of a string is none")),
                }
            }
            return Ok(all);
        };
        Ok(self.take(length)?.to_vec())
    }

    /// A truth value, null or a float.
    fn simple(&self, info: u8, bits: u64, out: &mut Vec<u8>) -> Result<(), CborError> {
        let text = match info {
            20 => "false".to_owned(),
            21 => "true".to_owned(),
            22 => "null".to_owned(),
            25 => float(f64::from(half(bits as u16)), |wide| (wide as f32).to_string()),
            26 => {
                let number = f32::from_bits(bits as u32);
                float(f64::from(number), |_| number.to_string())
            }
            27 => float(f64::from_bits(bits), |number| number.to_string()),
            _ => return Err(self.wrong("there is a value that JSON does not have")),
        };
        if text.is_empty() {
            return Err(self.wrong("a number is not finite"));
        }
        out.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

fn whole(major: u8, number: u64) -> i128 {
    if major == 0 { i128::from(number) } else { -1 - i128::from(number) }
}

/// A number of half precision (RFC 8949, appendix D).
fn half(bits: u16) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => mantissa * 2f32.powi(-24),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (mantissa + 1024.0) * 2f32.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

/// A finite number as JSON has it, with an exponent where it is very large or small; empty if it is not finite.
fn float(number: f64, plain: impl Fn(f64) -> String) -> String {
    match number.abs() {
        size if !size.is_finite() => String::new(),
        size if size == 0.0 || (1e-6..1e17).contains(&size) => plain(number),
        _ => format!("{number:e}"),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::Instant;

    use super::*;
    use crate::senml;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn json(hex: &str) -> Result<String, &'static str> {
        let converted = to_json(&bytes(hex)).map(|json| String::from_utf8(json).unwrap());
        converted.map_err(|error| error.problem)
    }

    #[test]
    fn packs_come_out_as_json_has_them() {
        for (hex, expected) in [
            ("80", "[]"),
            // The first record of the example of RFC 8428, section 6.
            (
                "81 a7 21 78 1b 75726e3a6465763a6f773a3130653230373361303130383030363a 22 fb 41d303a15b001062 23 61 41 20 05 00 67 \
                 766f6c74616765 01 61 56 02 fb 405e066666666666",
                r#"[{"bn":"urn:dev:ow:10e2073a0108006:","bt":1276020076.001,"bu":"A","bver":5,"n":"voltage","u":"V","v":120.1}]"#,
            ),
            ("81 a2 00 61 74 02 f9 4d60", r#"[{"n":"t","v":21.5}]"#),
            ("81 a2 00 61 74 02 fa 3dcccccd", r#"[{"n":"t","v":0.1}]"#),
            ("81 a2 00 61 74 02 fb 3ff3333333333333", r#"[{"n":"t","v":1.2}]"#),
            ("81 a2 00 61 74 02 fb 7fe1ccf385ebc8a0", r#"[{"n":"t","v":1e308}]"#),
            ("81 a2 00 61 74 02 c4 82 21 19 0866", r#"[{"n":"t","v":2150e-2}]"#),
            ("81 a2 00 61 74 02 1b ffffffffffffffff", r#"[{"n":"t","v":18446744073709551615}]"#),
            ("81 a2 00 61 74 02 3b ffffffffffffffff", r#"[{"n":"t","v":-18446744073709551616}]"#),
            // Without lengths, with a label as text, data and a truth value.
            (
                "9f bf 00 7f 61 61 61 62 ff 04 f5 ff bf 62 6e6f f6 08 43 fbff00 ff ff",
                r#"[{"n":"ab","vb":true},{"no":null,"vd":"-_8A"}]"#,
            ),
            ("d9d9f7 81 a1 00 62 2261", r#"[{"n":"\"a"}]"#),
        ] {
            assert_eq!(json(hex).as_deref(), Ok(expected), "{hex}");
        }
    }

    #[test]
    fn other_bytes_are_refused_where_they_go_wrong() {
        for hex in [
            "",
            "81",
            "9f",
            "81a1",
            "81a100",
            "81a10063",
            "811c",
            "81a118ff00",
            "81a1f400",
            "81f97c00",
            "81fb7ff0000000000000",
            "81f7",
            "81c000",
            "81c400",
            "8000",
            "81a1006180",
            "81 81 81 81 81 81 81 81 81 81 81 80",
            "9b ffffffffffffffff 00",
            "7bffffffffffffffff",
        ] {
            let found = json(hex);
            assert!(found.is_err(), "{hex}: {found:?}");
        }
        assert!(is_cbor(&bytes("81a0")) && is_cbor(&bytes("d9d9f780")) && is_cbor(&bytes("9fff")));
        assert!(!is_cbor(b"[]") && !is_cbor(b" [") && !is_cbor("ä".as_bytes()) && !is_cbor(b""));
    }

    #[test]
    fn bases_are_added_exactly() {
        // A base name, a base time of 1.7e9 s and values of 0.1 and 2 hundredths, ten seconds apart.
        let pack = "82 a5 21 62 612f 22 1a 6553f100 00 61 62 02 c4 82 20 01 06 00 a3 00 61 62 02 c4 82 21 02 06 0a";
        let records = senml::resolve(&to_json(&bytes(pack)).unwrap(), Instant::EPOCH).unwrap();
        let found: Vec<(&str, &str)> =
            records.iter().map(|record| (&*record.name, &*record.json)).collect();
        assert_eq!(
            found,
            [
                ("a/b", r#"[{"n":"a/b","t":1700000000,"v":1e-1}]"#),
                ("a/b", r#"[{"n":"a/b","t":1700000010,"v":2e-2}]"#),
            ]
        );
    }
}
