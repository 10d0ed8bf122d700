//! SenML in JSON (RFC 8428), resolved: each record stands by itself, with its whole name and time.
//!
//! Always true: values that need not be added up come out as they were written, a number digit for digit.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;
use tidegate_message::Instant;

use crate::array::{self, ArrayError};

/// The version of SenML that is read (section 4.4), and that of a pack which says none.
const VERSION: f64 = 10.0;
/// Times below it are relative to now (section 4.5.3): 2²⁸.
const RELATIVE_BELOW: f64 = 268_435_456.0;
/// Longest name of a record.
const NAME_BYTES_MAX: usize = 1024;
/// Zeros that are written behind a number before it is written with an exponent.
const ZEROS_MAX: i32 = 20;
/// The smallest exponent that is written as places behind the point.
const PLACES_MIN: i32 = -40;

/// A record that stands by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its whole name.
    pub name: String,
    /// A pack of this one record.
    pub json: String,
}

/// Why a pack cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum SenmlError {
    /// It is no pack.
    #[error("the body is not SenML: a JSON array of objects")]
    Pack(#[from] ArrayError),
    /// A member has a value that it cannot have.
    #[error("record {record}: {label} must be {what}")]
    Field {
        /// The number of the record, from 1.
        record: usize,
        /// The member's name.
        label: &'static str,
        /// The values that it can have.
        what: &'static str,
    },
    /// It is of a later version.
    #[error("record {record}: the version is not 10, which is the one that is known")]
    Version {
        /// The number of the record, from 1.
        record: usize,
    },
    /// Its records are of several versions.
    #[error("record {record}: the version differs from that of the records before it")]
    OtherVersion {
        /// The number of the record, from 1.
        record: usize,
    },
    /// A member that must be understood is not known.
    #[error("record {record}: {label:?} must be understood (its name ends with _), and is not")]
    MustUnderstand {
        /// The number of the record, from 1.
        record: usize,
        /// The member's name.
        label: String,
    },
    /// A record has no name, or one that cannot be.
    #[error(
        "record {record}: the name {name:?} is not valid: a letter or digit, then letters, digits and - : . / _, at most {NAME_BYTES_MAX}"
    )]
    Name {
        /// The number of the record, from 1.
        record: usize,
        /// The name with its base.
        name: String,
    },
    /// A record says nothing.
    #[error("record {record}: there is neither one of v, vs, vb and vd nor a sum")]
    NoValue {
        /// The number of the record, from 1.
        record: usize,
    },
}

/// The members of a record, as they are written.
type Fields<'a> = BTreeMap<String, &'a str>;

/// The records of a pack, resolved (section 4.6).
///
/// # Errors
/// [`SenmlError`], naming the record, from 1.
pub fn resolve(pack: &[u8], now: Instant) -> Result<Vec<Record>, SenmlError> {
    let mut base = Base::default();
    let mut records = Vec::new();
    for (at, text) in array::elements(pack, usize::MAX)?.into_iter().enumerate() {
        let record = at + 1;
        let members = array::members(text, usize::MAX)?;
        let as_text = |bytes| str::from_utf8(bytes).expect("JSON that was read is UTF-8");
        let fields: Fields<'_> =
            members.into_iter().map(|(label, value)| (label, as_text(value))).collect();
        base.update(record, &fields)?;
        // A record of base values alone is none of its own.
        let has_own = fields.keys().any(|label| !label.starts_with('b'));
        if has_own {
            records.push(base.resolved(record, fields, now)?);
        }
    }
    Ok(records)
}

/// The base values for the records from here on.
#[derive(Debug, Default)]
struct Base<'a> {
    name: String,
    unit: Option<&'a str>,
    time: Option<&'a str>,
    value: Option<&'a str>,
    sum: Option<&'a str>,
    /// Of the whole pack, as its first record says or means it (section 4.4).
    version: Option<f64>,
}

impl<'a> Base<'a> {
    fn update(&mut self, record: usize, fields: &Fields<'a>) -> Result<(), SenmlError> {
        for (label, value) in fields {
            match label.as_str() {
                "bn" => self.name = text(record, "bn", value)?,
                "bu" => self.unit = text(record, "bu", value).map(|_| Some(*value))?,
                "bt" => self.time = Some(number(record, "bt", value)?),
                "bv" => self.value = Some(number(record, "bv", value)?),
                "bs" => self.sum = Some(number(record, "bs", value)?),
                "bver" => self.set_version(record, float(number(record, "bver", value)?))?,
                label if label.ends_with('_') => {
                    let label = label.to_owned();
                    return Err(SenmlError::MustUnderstand { record, label });
                }
                _ => {}
            }
        }
        self.version.get_or_insert(VERSION);
        Ok(())
    }

    fn set_version(&mut self, record: usize, version: f64) -> Result<(), SenmlError> {
        if version > VERSION {
            return Err(SenmlError::Version { record });
        }
        if version < 1.0 || version.fract() != 0.0 {
            let what = "a whole number above 0";
            return Err(SenmlError::Field { record, label: "bver", what });
        }
        match self.version.replace(version) {
            Some(other) if other != version => Err(SenmlError::OtherVersion { record }),
            _ => Ok(()),
        }
    }

    fn resolved(
        &self,
        record: usize,
        mut fields: Fields<'a>,
        now: Instant,
    ) -> Result<Record, SenmlError> {
        let mut name = self.name.clone();
        if let Some(own) = fields.remove("n") {
            name.push_str(&text(record, "n", own)?);
        }
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-:./_".contains(&byte);
        let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_known) {
            return Err(SenmlError::Name { record, name });
        }
        let mut out: BTreeMap<String, Cow<'_, str>> = BTreeMap::new();
        let mut put = |label: &str, value: Cow<'a, str>| _ = out.insert(label.to_owned(), value);
        put("n", Value::from(&*name).to_string().into());
        if let Some(version) = self.version.filter(|version| *version != VERSION) {
            put("bver", version.to_string().into());
        }
        if let Some(own) = fields.remove("u") {
            text(record, "u", own)?;
            put("u", own.into());
        } else if let Some(unit) = self.unit {
            put("u", unit.into());
        }
        let own_value = fields.remove("v").map(|value| number(record, "v", value)).transpose()?;
        let mut values = usize::from(own_value.is_some());
        if own_value.is_some() || (self.value.is_some() && !has_other(&fields)) {
            put("v", sum(record, "v", own_value, self.value)?);
            values = 1;
        }
        for label in ["vs", "vd"] {
            if let Some(value) = fields.remove(label) {
                text(record, label, value)?;
                put(label, value.into());
                values += 1;
            }
        }
        if let Some(value) = fields.remove("vb") {
            if !matches!(value, "true" | "false") {
                let what = "true or false";
                return Err(SenmlError::Field { record, label: "vb", what });
            }
            put("vb", value.into());
            values += 1;
        }
        let own_sum = fields.remove("s").map(|sum| number(record, "s", sum)).transpose()?;
        if own_sum.is_some() || self.sum.is_some() {
            put("s", sum(record, "s", own_sum, self.sum)?);
        } else if values == 0 {
            return Err(SenmlError::NoValue { record });
        }
        if values > 1 {
            let what = "the only one of v, vs, vb and vd";
            return Err(SenmlError::Field { record, label: "the value", what });
        }
        let own_time = fields.remove("t").map(|time| number(record, "t", time)).transpose()?;
        let time = sum(record, "t", own_time, self.time)?;
        let now = Decimal { digits: i128::from(now.as_nanos()), exponent: -9 }.text();
        put(
            "t",
            match float(&time) < RELATIVE_BELOW {
                true => sum(record, "t", Some(&time), Some(&now))?.into_owned().into(),
                false => time,
            },
        );
        if let Some(update) = fields.remove("ut") {
            put("ut", number(record, "ut", update)?.into());
        }
        // Unknown fields are passed on; base values are in those above.
        fields.retain(|label, _| !matches!(&**label, "bn" | "bu" | "bt" | "bv" | "bs" | "bver"));
        for (label, value) in &fields {
            put(label, (*value).into());
        }
        let members: Vec<String> =
            out.iter().map(|(label, value)| format!("{}:{value}", Value::from(&**label))).collect();
        Ok(Record { name, json: format!("[{{{}}}]", members.join(",")) })
    }
}

fn has_other(fields: &Fields<'_>) -> bool {
    ["vs", "vb", "vd"].iter().any(|label| fields.contains_key(*label))
}

fn text(record: usize, label: &'static str, value: &str) -> Result<String, SenmlError> {
    let what = "a text";
    serde_json::from_str(value).map_err(|_| SenmlError::Field { record, label, what })
}

/// A number that a float has a place for, as it is written.
fn number<'a>(record: usize, label: &'static str, value: &'a str) -> Result<&'a str, SenmlError> {
    let is_number = value.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    match is_number {
        true if float(value).is_finite() => Ok(value),
        true => Err(SenmlError::Field { record, label, what: FINITE }),
        false => Err(SenmlError::Field { record, label, what: "a number" }),
    }
}

const FINITE: &str = "within 64 bits of floating point, with its base value";

/// The nearest float.
fn float(number: &str) -> f64 {
    number.parse().unwrap_or(f64::NAN)
}

/// A value and its base value, each 0 where it is left out: as it is written where there is one, and exact as long as 38 digits are enough.
fn sum<'a>(
    record: usize,
    label: &'static str,
    own: Option<&'a str>,
    base: Option<&'a str>,
) -> Result<Cow<'a, str>, SenmlError> {
    let (own, base) = match (own, base) {
        (None, None) => return Ok("0".into()),
        (Some(one), None) | (None, Some(one)) => return Ok(one.into()),
        (Some(own), Some(base)) => (own, base),
    };
    let exact = Decimal::read(own).zip(Decimal::read(base)).and_then(|(own, base)| own.plus(base));
    let sum = float(own) + float(base);
    match exact {
        _ if !sum.is_finite() => Err(SenmlError::Field { record, label, what: FINITE }),
        Some(exact) => Ok(exact.text().into()),
        None => Ok(Value::from(sum).to_string().into()),
    }
}

/// Digits and a power of ten.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decimal {
    digits: i128,
    exponent: i32,
}

impl Decimal {
    /// A number of JSON; none if it has more digits than fit.
    fn read(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}").parse().ok()?;
        let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        Some(Self { digits, exponent })
    }

    fn plus(self, other: Self) -> Option<Self> {
        let exponent = self.exponent.min(other.exponent);
        let aligned = |it: Self| {
            let steps = u32::try_from(i64::from(it.exponent) - i64::from(exponent)).ok()?;
            10_i128.checked_pow(steps)?.checked_mul(it.digits)
        };
        Some(Self { digits: aligned(self)?.checked_add(aligned(other)?)?, exponent })
    }

    /// Without zeros at its end.
    fn text(mut self) -> String {
        // Zero has zeros at its end forever, whatever exponent was written behind it.
        if self.digits == 0 {
            return "0".to_owned();
        }
        while self.exponent < 0 && self.digits % 10 == 0 {
            self.digits /= 10;
            self.exponent += 1;
        }
        let Self { digits, exponent } = self;
        match exponent {
            0 => digits.to_string(),
            1..=ZEROS_MAX => format!("{digits}{:0<1$}", "", exponent as usize),
            PLACES_MIN..0 => {
                let places = exponent.unsigned_abs() as usize;
                let sign = if digits < 0 { "-" } else { "" };
                let all = format!("{:0>1$}", digits.unsigned_abs(), places + 1);
                let (whole, fraction) = all.split_at(all.len() - places);
                format!("{sign}{whole}.{fraction}")
            }
            _ => format!("{digits}e{exponent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(2_000_000_000_000_000_000);
    const LATER: Instant = Instant::from_nanos(3_000_000_000_000_000_007);

    fn resolved(pack: &str) -> Result<Vec<String>, String> {
        let records = resolve(pack.as_bytes(), NOW).map_err(|error| error.to_string())?;
        Ok(records.into_iter().map(|record| record.json).collect())
    }

    #[test]
    fn the_example_of_the_standard_resolves_as_it_says() {
        // RFC 8428, section 5.1.3 and 5.1.4.
        let pack = r#"[{"bn":"urn:dev:ow:10e2073a01080063:","bt":1.320067464e+09,"bu":"%RH","v":20},
            {"u":"lon","v":24.30621},{"u":"lat","v":60.07965},{"t":60,"v":20.3}]"#;
        let name = "urn:dev:ow:10e2073a01080063:";
        let expected = [
            format!(r#"[{{"n":"{name}","t":1.320067464e+09,"u":"%RH","v":20}}]"#),
            format!(r#"[{{"n":"{name}","t":1.320067464e+09,"u":"lon","v":24.30621}}]"#),
            format!(r#"[{{"n":"{name}","t":1.320067464e+09,"u":"lat","v":60.07965}}]"#),
            format!(r#"[{{"n":"{name}","t":1320067524,"u":"%RH","v":20.3}}]"#),
        ];
        assert_eq!(resolved(pack).unwrap(), expected);
    }

    #[test]
    fn values_sums_and_relative_times_resolve() {
        for (pack, expected) in [
            (
                r#"[{"bn":"a/","bv":10},{"n":"b","v":1.5}]"#,
                vec![r#"[{"n":"a/b","t":2000000000,"v":11.5}]"#],
            ),
            (r#"[{"n":"a","vb":false,"t":-5}]"#, vec![r#"[{"n":"a","t":1999999995,"vb":false}]"#]),
            (r#"[{"n":"a","bs":3,"s":4}]"#, vec![r#"[{"n":"a","s":7,"t":2000000000}]"#]),
            (
                r#"[{"n":"a","vs":"x","extra":[1]}]"#,
                vec![r#"[{"extra":[1],"n":"a","t":2000000000,"vs":"x"}]"#],
            ),
            (
                r#"[{"n":"a","bver":10,"ut":1,"v":1}]"#,
                vec![r#"[{"n":"a","t":2000000000,"ut":1,"v":1}]"#],
            ),
            ("[]", vec![]),
            // A value that is not added up is as it was written.
            (
                r#"[{"n":"a","v":327267367867168100000,"t":1700000000.123456789,"x": {"y": 1.10}}]"#,
                vec![
                    r#"[{"n":"a","t":1700000000.123456789,"v":327267367867168100000,"x":{"y": 1.10}}]"#,
                ],
            ),
            (r#"[{"n":"a","v":1.10,"bt":1.7e9}]"#, vec![r#"[{"n":"a","t":1.7e9,"v":1.10}]"#]),
            (
                r#"[{"n":"a","vs":"\u00e4\/","bu":"Cel"}]"#,
                vec![r#"[{"n":"a","t":2000000000,"u":"Cel","vs":"\u00e4\/"}]"#],
            ),
            // A sum is exact.
            (
                r#"[{"n":"a","bv":0.1,"v":0.2,"bt":1700000000.000000001,"t":0.5}]"#,
                vec![r#"[{"n":"a","t":1700000000.500000001,"v":0.3}]"#],
            ),
            (
                r#"[{"n":"a","bv":1e-3,"v":-1,"t":-0.25}]"#,
                vec![r#"[{"n":"a","t":1999999999.75,"v":-0.999}]"#],
            ),
            (r#"[{"n":"a","bv":3e30,"v":1e30}]"#, vec![r#"[{"n":"a","t":2000000000,"v":4e30}]"#]),
            (
                r#"[{"n":"a","bv":9007199254740993,"v":0}]"#,
                vec![r#"[{"n":"a","t":2000000000,"v":9007199254740993}]"#],
            ),
            // An exponent of any size costs nothing.
            (
                r#"[{"n":"a","bv":0e-2000000000,"v":0e-2000000000}]"#,
                vec![r#"[{"n":"a","t":2000000000,"v":0}]"#],
            ),
            (
                r#"[{"n":"a","bv":-0.00e2147483647,"v":0e2147483647}]"#,
                vec![r#"[{"n":"a","t":2000000000,"v":0}]"#],
            ),
            (
                r#"[{"n":"a","bv":1e-2147483648,"v":1e-2147483648}]"#,
                vec![r#"[{"n":"a","t":2000000000,"v":2e-2147483648}]"#],
            ),
            (
                r#"[{"n":"a","bs":1e-2147483648,"s":2}]"#,
                vec![r#"[{"n":"a","s":2.0,"t":2000000000}]"#],
            ),
            // Without a time it is now; a base time alone may be relative, too.
            (r#"[{"n":"a","v":1,"bt":-1}]"#, vec![r#"[{"n":"a","t":1999999999,"v":1}]"#]),
            // The version is the same in all records.
            (
                r#"[{"n":"a","v":1,"bver":5},{"n":"b","v":2,"bver":5}]"#,
                vec![
                    r#"[{"bver":5,"n":"a","t":2000000000,"v":1}]"#,
                    r#"[{"bver":5,"n":"b","t":2000000000,"v":2}]"#,
                ],
            ),
            ("\u{feff}[]", vec![]),
        ] {
            assert_eq!(resolved(pack).unwrap(), expected, "{pack}");
        }
    }

    #[test]
    fn invalid_senml_is_refused_by_record() {
        for (pack, part) in [
            ("{}", "not SenML"),
            (r#"[{"n":"a"}]"#, "record 1: there is neither"),
            (r#"[{"n":"a","v":1},{"n":"+","v":1}]"#, "record 2: the name"),
            (r#"[{"v":1}]"#, "record 1: the name"),
            (r#"[{"n":"a","v":"1"}]"#, "v must be a number"),
            (r#"[{"n":"a","v":1,"vs":"x"}]"#, "the only one"),
            (r#"[{"n":"a","bv":1e308,"v":1e308}]"#, "v must be within 64 bits"),
            (r#"[{"n":"a","v":1,"bver":11}]"#, "version"),
            (r#"[{"n":"a","v":1},{"n":"a","v":1,"bver":5}]"#, "record 2: the version differs"),
            (r#"[{"n":"a","v":1,"bver":5},{"bver":10}]"#, "record 2: the version differs"),
            (r#"[{"n":"a","v":1,"bver":0}]"#, "bver must be a whole number"),
            (r#"[{"n":"a","v":1,"bver":9.5}]"#, "bver must be a whole number"),
            (r#"[{"n":"a","v":1e999}]"#, "v must be within 64 bits"),
            (r#"[{"n":"a","v":{}}]"#, "v must be a number"),
            (r#"[{"n":"a","vb":1}]"#, "vb must be true or false"),
            ("[1]", "not SenML"),
            (r#"[{"n":"a","v":1,"x_":1}]"#, "must be understood"),
        ] {
            let error = resolved(pack).unwrap_err();
            assert!(error.contains(part), "{pack}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_was_resolved_resolves_to_itself(
            records in proptest::collection::vec(
                (r#"(bn|n)"#, r#"[a-z/.]{0,3}"#, r#"(v|bv|s|t|bt|vs|vb)"#, r#"(1|2.5|-3e2|5e8|true|"x")"#), 0..5),
        ) {
            let records: Vec<String> = records
                .iter()
                .map(|(label, name, field, value)| format!(r#"{{"{label}":"{name}","{field}":{value}}}"#))
                .collect();
            if let Ok(once) = resolve(format!("[{}]", records.join(",")).as_bytes(), NOW) {
                for record in once {
                    let again = resolve(record.json.as_bytes(), LATER).unwrap();
                    assert_eq!(again, [record]);
                }
            }
        }
    }
}
