//! Names and values of a line, as they are written and as what they mean.

use std::borrow::Cow;

use super::{LineProblem, scan};

/// A name, or a text between quotes, as it is written in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Text<'a> {
    pub(super) raw: &'a str,
    /// Which characters a backslash before them is taken away from.
    pub(super) escaped: &'static [u8],
}

/// Characters that a backslash in a text between quotes may stand before.
pub(super) const OF_TEXT: &[u8] = b"\\\"";

impl<'a> Text<'a> {
    /// As it is written, without quotes.
    pub fn raw(self) -> &'a str {
        self.raw
    }

    /// Its meaning; a copy only where a backslash has to go.
    pub fn unescaped(self) -> Cow<'a, str> {
        let bytes = self.raw.as_bytes();
        let is_escape = |at: usize| {
            bytes[at] == b'\\' && bytes.get(at + 1).is_some_and(|next| self.escaped.contains(next))
        };
        let Some(first) = (0..bytes.len()).find(|at| is_escape(*at)) else {
            return Cow::Borrowed(self.raw);
        };
        let mut out = String::with_capacity(self.raw.len());
        out.push_str(&self.raw[..first]);
        let (mut at, mut from) = (first, first);
        while at < bytes.len() {
            if is_escape(at) {
                out.push_str(&self.raw[from..at]);
                // The character after the backslash stays, whatever comes after it.
                from = at + 1;
                at += 2;
            } else {
                at += 1;
            }
        }
        out.push_str(&self.raw[from..]);
        Cow::Owned(out)
    }
}

/// It means the other text.
impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        self.unescaped() == other
    }
}

/// A field's value. Numbers are valid and finite, and kept as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value<'a> {
    /// A number without a letter behind it.
    Float(&'a str),
    /// A number that `i` is behind, which is left out here.
    Integer(&'a str),
    /// A number that `u` is behind, which is left out here.
    Unsigned(&'a str),
    /// The text between quotes.
    Text(Text<'a>),
    /// One of `t`, `T`, `true`, `True`, `TRUE` and those of false.
    Boolean(&'a str),
}

impl<'a> Value<'a> {
    /// The value that a word without quotes is.
    pub(super) fn of_word(word: &'a str) -> Result<Self, LineProblem> {
        if is_true(word) || is_false(word) {
            return Ok(Self::Boolean(word));
        }
        let unsigned = word.strip_prefix(['-', '+']).unwrap_or(word);
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if let Some(number) = word.strip_suffix('i') {
            return match (is_digits(&unsigned[..unsigned.len() - 1]), number.parse::<i64>()) {
                (true, Ok(_)) => Ok(Self::Integer(number)),
                (true, Err(_)) => Err(LineProblem::IntegerRange),
                (false, _) => Err(LineProblem::Value),
            };
        }
        if let Some(number) = word.strip_suffix('u') {
            return match (is_digits(number), number.parse::<u64>()) {
                (true, Ok(_)) => Ok(Self::Unsigned(number)),
                (true, Err(_)) => Err(LineProblem::UnsignedRange),
                (false, _) => Err(LineProblem::Value),
            };
        }
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (unsigned, None),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
        let is_number = (!whole.is_empty() || !fraction.is_empty())
            && digits(whole)
            && digits(fraction)
            && exponent.is_none_or(|it| is_digits(it.strip_prefix(['-', '+']).unwrap_or(it)));
        if !is_number {
            return Err(LineProblem::Value);
        }
        // Without an exponent, fewer than 300 digits are finite.
        let may_be_infinite = exponent.is_some() || whole.len() >= 300;
        if may_be_infinite && !word.parse::<f64>().is_ok_and(f64::is_finite) {
            return Err(LineProblem::FloatRange);
        }
        Ok(Self::Float(word))
    }

    /// The value alone, without quotes and without the letter of its type: numbers and booleans to the byte as they are written, a text
    /// as what it means.
    pub fn payload(self) -> Cow<'a, str> {
        match self {
            Self::Float(text)
            | Self::Integer(text)
            | Self::Unsigned(text)
            | Self::Boolean(text) => Cow::Borrowed(text),
            Self::Text(text) => text.unescaped(),
        }
    }

    /// A number of any type, as near as 64 bits of floating point come to it.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Self::Float(text) | Self::Integer(text) | Self::Unsigned(text) => text.parse().ok(),
            Self::Text(_) | Self::Boolean(_) => None,
        }
    }

    /// An integer.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Self::Integer(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// An unsigned integer.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::Unsigned(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(self) -> Option<bool> {
        match self {
            Self::Boolean(text) => Some(is_true(text)),
            _ => None,
        }
    }

    /// The value at `at` of a line that has been checked, and where it ends.
    pub(super) fn at(line: &'a str, at: usize) -> (Self, usize) {
        let bytes = line.as_bytes();
        if bytes[at] == b'"' {
            let end = scan::text_end(bytes, at + 1).expect("the line was checked");
            let text = Text { raw: &line[at + 1..end], escaped: OF_TEXT };
            return (Self::Text(text), end + 1);
        }
        let end = scan::word_end(bytes, at);
        (Self::of_word(&line[at..end]).expect("the line was checked"), end)
    }
}

fn is_true(word: &str) -> bool {
    matches!(word, "t" | "T" | "true" | "True" | "TRUE")
}

fn is_false(word: &str) -> bool {
    matches!(word, "f" | "F" | "false" | "False" | "FALSE")
}
