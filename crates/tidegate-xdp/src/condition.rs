//! Conditions under which a datagram is kept.
//!
//! ```text
//!  "temperature > 75.25 or temperature < -5"   ─▶   at one decimal: 753 and more, -51 and less
//! ```
//!
//! Always true: a bound is a decimal, and is brought to a field's decimals without rounding what it means: of whole tenths, those above
//! 75.25 are those from 75.3 on.

use std::{fmt, str::FromStr};

use crate::field::DECIMALS_MAX;

/// A decimal number: `digits` over ten to the power of `decimals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: i64,
    decimals: u8,
}

/// A bound of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Greater.
    Above(Decimal),
    /// Greater or equal.
    AtLeast(Decimal),
    /// Less.
    Below(Decimal),
    /// Less or equal.
    AtMost(Decimal),
    /// From the first to the second, both included.
    Within(Decimal, Decimal),
}

/// A condition on a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The name of the field.
    pub field: String,
    /// The bound on its value.
    pub bound: Bound,
}

/// How conditions go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// All must be met.
    #[default]
    All,
    /// One is enough.
    Any,
}

impl Decimal {
    /// `digits` over ten to the power of `decimals`.
    ///
    /// # Errors
    /// [`DecimalError`] beyond 18 decimals.
    pub fn new(digits: i64, decimals: u8) -> Result<Self, DecimalError> {
        if decimals > DECIMALS_MAX {
            return Err(DecimalError { text: format!("{digits}e-{decimals}") });
        }
        Ok(Self { digits, decimals })
    }

    /// The greatest whole number of units of the last of `decimals` that is not above it, and the least that is not below it.
    fn between(self, decimals: u8) -> (i128, i128) {
        // 19 digits and 18 decimals are 37 digits, which 128 bits hold.
        let digits = i128::from(self.digits) * 10_i128.pow(decimals.into());
        let unit = 10_i128.pow(self.decimals.into());
        let below = digits.div_euclid(unit);
        (below, below + i128::from(digits.rem_euclid(unit) != 0))
    }
}

impl Bound {
    /// The least and the most that it lets through, in units of the last of `decimals`.
    pub(crate) fn interval(self, decimals: u8) -> (i128, i128) {
        match self {
            Self::Above(bound) => (bound.between(decimals).0 + 1, i128::MAX),
            Self::AtLeast(bound) => (bound.between(decimals).1, i128::MAX),
            Self::Below(bound) => (i128::MIN, bound.between(decimals).1 - 1),
            Self::AtMost(bound) => (i128::MIN, bound.between(decimals).0),
            Self::Within(min, max) => (min.between(decimals).1, max.between(decimals).0),
        }
    }
}

/// Conditions in words: `NAME > NUMBER` (or `>=`, `<`, `<=`) and `NAME in NUMBER..NUMBER`, all with `and` between them or all with `or`.
///
/// # Errors
/// [`ConditionError`].
pub fn parse_conditions(text: &str) -> Result<(Combine, Vec<Condition>), ConditionError> {
    let mut combine = None;
    let mut conditions = Vec::new();
    let mut words: Vec<&str> = Vec::new();
    for word in text.split_whitespace() {
        let next = match word {
            "and" => Combine::All,
            "or" => Combine::Any,
            _ => {
                words.push(word);
                continue;
            }
        };
        if *combine.get_or_insert(next) != next {
            return Err(ConditionError::Mixed);
        }
        conditions.push(condition(&words)?);
        words.clear();
    }
    if combine.is_some() || !words.is_empty() {
        conditions.push(condition(&words)?);
    }
    Ok((combine.unwrap_or_default(), conditions))
}

fn condition(words: &[&str]) -> Result<Condition, ConditionError> {
    let text = || words.join(" ");
    let &[field, operator, value] = words else {
        return Err(ConditionError::Form { text: text() });
    };
    let bound = match operator {
        ">" => Bound::Above(value.parse()?),
        ">=" => Bound::AtLeast(value.parse()?),
        "<" => Bound::Below(value.parse()?),
        "<=" => Bound::AtMost(value.parse()?),
        "in" => {
            let (min, max) =
                value.split_once("..").ok_or_else(|| ConditionError::Form { text: text() })?;
            Bound::Within(min.parse()?, max.parse()?)
        }
        _ => return Err(ConditionError::Form { text: text() }),
    };
    Ok(Condition { field: field.to_owned(), bound })
}

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let wrong = || DecimalError { text: text.to_owned() };
        let (whole, fraction) = match text.split_once('.') {
            Some((_, "")) => return Err(wrong()),
            Some(parts) => parts,
            None => (text, ""),
        };
        let digits = whole.strip_prefix(['-', '+']).unwrap_or(whole);
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if digits.is_empty() || !are_digits(digits) || !are_digits(fraction) {
            return Err(wrong());
        }
        let digits = format!("{whole}{fraction}").parse().map_err(|_| wrong())?;
        let decimals = u8::try_from(fraction.len()).map_err(|_| wrong())?;
        Self::new(digits, decimals).map_err(|_| wrong())
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.digits < 0 { "-" } else { "" };
        let (digits, unit) = (self.digits.unsigned_abs(), 10_u64.pow(self.decimals.into()));
        write!(f, "{sign}{}", digits / unit)?;
        match usize::from(self.decimals) {
            0 => Ok(()),
            decimals => write!(f, ".{:0decimals$}", digits % unit),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = &self.field;
        match self.bound {
            Bound::Above(bound) => write!(f, "{field} > {bound}"),
            Bound::AtLeast(bound) => write!(f, "{field} >= {bound}"),
            Bound::Below(bound) => write!(f, "{field} < {bound}"),
            Bound::AtMost(bound) => write!(f, "{field} <= {bound}"),
            Bound::Within(min, max) => write!(f, "{field} in {min}..{max}"),
        }
    }
}

/// A number that is no decimal that a bound can be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a bound; a decimal such as -21.5 is, with at most 18 digits behind its point, and 9223372036854775807 without it"
)]
pub struct DecimalError {
    /// The text as written.
    pub text: String,
}

/// Why a text holds no conditions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It is made otherwise.
    #[error(
        "{text:?} is not a condition; NAME > NUMBER is, with blanks between, and so are >=, <, <= and NAME in NUMBER..NUMBER"
    )]
    Form {
        /// The part of it.
        text: String,
    },
    /// Both words stand in it.
    #[error("conditions have either and or or between them, not both")]
    Mixed,
    /// A bound is none.
    #[error(transparent)]
    Number(#[from] DecimalError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn conditions_are_written_in_words() {
        for (text, combine, count) in [
            ("t > 75.25", Combine::All, 1),
            ("t >= 1 and u < -0.5 and u <= +7", Combine::All, 3),
            ("t in -10..10.5 or u > 3", Combine::Any, 2),
            ("", Combine::All, 0),
        ] {
            let (found, conditions) = parse_conditions(text).unwrap();
            assert_eq!((found, conditions.len()), (combine, count), "{text}");
            let between = if combine == Combine::All { " and " } else { " or " };
            let shown: Vec<String> = conditions.iter().map(ToString::to_string).collect();
            assert_eq!(
                parse_conditions(&shown.join(between)).unwrap(),
                (combine, conditions),
                "{text}"
            );
        }
    }

    #[test]
    fn wrong_conditions_are_refused_with_the_way_out() {
        for (text, part) in [
            ("t > 1 and u > 2 or v > 3", "not both"),
            ("t > 1 and", "is not a condition"),
            ("and t > 1", "is not a condition"),
            ("t>1", "with blanks between"),
            ("t = 1", "is not a condition"),
            ("t in 1", "is not a condition"),
            ("t in 1..", "is not a bound"),
            ("t > 1e3", "is not a bound"),
            ("t > NaN", "is not a bound"),
            ("t > 1.", "is not a bound"),
            ("t > .5", "is not a bound"),
            ("t > --5", "is not a bound"),
            ("t > 0.0000000000000000001", "is not a bound"),
            ("t > 9223372036854775808", "is not a bound"),
        ] {
            let error = parse_conditions(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn bounds_mean_the_same_at_any_number_of_decimals() {
        const ENDS: (i128, i128) = (i128::MIN, i128::MAX);
        for (bound, decimals, expected) in [
            (Bound::Above(decimal("75.25")), 1, (753, ENDS.1)),
            (Bound::AtLeast(decimal("75.25")), 1, (753, ENDS.1)),
            (Bound::AtLeast(decimal("75.2")), 1, (752, ENDS.1)),
            (Bound::Above(decimal("75.2")), 1, (753, ENDS.1)),
            (Bound::Below(decimal("-0.25")), 1, (ENDS.0, -3)),
            (Bound::AtMost(decimal("-0.25")), 1, (ENDS.0, -3)),
            (Bound::AtMost(decimal("-0.25")), 3, (ENDS.0, -250)),
            (Bound::Below(decimal("5")), 2, (ENDS.0, 499)),
            (Bound::Within(decimal("-10"), decimal("10.5")), 0, (-10, 10)),
            (Bound::Within(decimal("0.1"), decimal("0.9")), 0, (1, 0)), // none
            (
                Bound::Above(decimal("9223372036854775807")),
                18,
                ((i128::from(i64::MAX) * 10_i128.pow(18)) + 1, ENDS.1),
            ),
        ] {
            assert_eq!(bound.interval(decimals), expected, "{bound:?} at {decimals}");
        }
    }
}
