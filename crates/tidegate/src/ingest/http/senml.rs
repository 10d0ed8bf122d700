//! SenML in JSON (RFC 8428), resolved: each record stands by itself, with its whole name and time.

use serde_json::{Map, Value};

/// The version of SenML that is read (section 4.4).
const VERSION: f64 = 10.0;
/// Times below it are relative to now (section 4.5.3): 2²⁸.
const RELATIVE_BELOW: f64 = 268_435_456.0;
/// Longest name of a record.
const NAME_BYTES_MAX: usize = 1024;

/// A record that stands by itself.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::ingest) struct Record {
    pub(in crate::ingest) name: String,
    /// A pack of this one record.
    pub(in crate::ingest) json: String,
}

/// Why a pack cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(in crate::ingest) enum SenmlError {
    #[error("the body is no SenML: a JSON array of objects")]
    Json(#[from] serde_json::Error),
    #[error("record {record}: {label} must be {what}")]
    Field { record: usize, label: &'static str, what: &'static str },
    #[error("record {record}: the version is not 10, which is the one that is known")]
    Version { record: usize },
    #[error("record {record}: {label:?} must be understood (its name ends with _), and is not")]
    MustUnderstand { record: usize, label: String },
    #[error(
        "record {record}: the name {name:?} is none: a letter or digit, then letters, digits and - : . / _, at most {NAME_BYTES_MAX}"
    )]
    Name { record: usize, name: String },
    #[error("record {record}: there is neither one of v, vs, vb and vd nor a sum")]
    NoValue { record: usize },
}

/// The records of a pack, resolved (section 4.6); `now` in seconds since 1970. Numbers are written as 64 bits of floating point have
/// them, as short as can be.
///
/// # Errors
/// [`SenmlError`], naming the record, from 1.
pub(in crate::ingest) fn resolve(pack: &[u8], now: f64) -> Result<Vec<Record>, SenmlError> {
    let pack: Vec<Map<String, Value>> = serde_json::from_slice(pack)?;
    let mut base = Base::default();
    let mut records = Vec::new();
    for (at, fields) in pack.into_iter().enumerate() {
        let record = at + 1;
        base.update(record, &fields)?;
        // A record of base values alone is none of its own.
        let has_own = fields.keys().any(|label| !label.starts_with('b'));
        if has_own {
            records.push(base.resolved(record, fields, now)?);
        }
    }
    Ok(records)
}

/// What holds for the records from here on.
#[derive(Debug, Default)]
struct Base {
    name: String,
    unit: Option<String>,
    time: f64,
    value: Option<f64>,
    sum: Option<f64>,
}

impl Base {
    fn update(&mut self, record: usize, fields: &Map<String, Value>) -> Result<(), SenmlError> {
        for (label, value) in fields {
            match label.as_str() {
                "bn" => self.name = text(record, "bn", value)?,
                "bu" => self.unit = Some(text(record, "bu", value)?),
                "bt" => self.time = number(record, "bt", value)?,
                "bv" => self.value = Some(number(record, "bv", value)?),
                "bs" => self.sum = Some(number(record, "bs", value)?),
                "bver" if number(record, "bver", value)? > VERSION => {
                    return Err(SenmlError::Version { record });
                }
                label if label.ends_with('_') => {
                    let label = label.to_owned();
                    return Err(SenmlError::MustUnderstand { record, label });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn resolved(
        &self,
        record: usize,
        mut fields: Map<String, Value>,
        now: f64,
    ) -> Result<Record, SenmlError> {
        let mut name = self.name.clone();
        if let Some(own) = fields.remove("n") {
            name.push_str(&text(record, "n", &own)?);
        }
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-:./_".contains(&byte);
        let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_known) {
            return Err(SenmlError::Name { record, name });
        }
        let mut out = Map::new();
        out.insert("n".to_owned(), name.clone().into());
        let unit = match fields.remove("u") {
            Some(own) => Some(text(record, "u", &own)?),
            None => self.unit.clone(),
        };
        if let Some(unit) = unit {
            out.insert("u".to_owned(), unit.into());
        }
        let own_value = fields.remove("v");
        let mut values = usize::from(own_value.is_some());
        if own_value.is_some() || (self.value.is_some() && !has_other(&fields)) {
            let own = own_value.map_or(Ok(0.0), |value| number(record, "v", &value))?;
            out.insert("v".to_owned(), finite(record, "v", own + self.value.unwrap_or(0.0))?);
            values = 1;
        }
        for label in ["vs", "vd"] {
            if let Some(value) = fields.remove(label) {
                out.insert(label.to_owned(), text(record, label, &value)?.into());
                values += 1;
            }
        }
        if let Some(value) = fields.remove("vb") {
            let what = "true or false";
            let value = value.as_bool().ok_or(SenmlError::Field { record, label: "vb", what })?;
            out.insert("vb".to_owned(), value.into());
            values += 1;
        }
        let own_sum = fields.remove("s").map(|sum| number(record, "s", &sum)).transpose()?;
        if own_sum.is_some() || self.sum.is_some() {
            let sum = own_sum.unwrap_or(0.0) + self.sum.unwrap_or(0.0);
            out.insert("s".to_owned(), finite(record, "s", sum)?);
        } else if values == 0 {
            return Err(SenmlError::NoValue { record });
        }
        if values > 1 {
            let what = "the only one of v, vs, vb and vd";
            return Err(SenmlError::Field { record, label: "the value", what });
        }
        let own_time = fields.remove("t").map(|time| number(record, "t", &time)).transpose()?;
        let time = own_time.unwrap_or(0.0) + self.time;
        let time = if time < RELATIVE_BELOW { now + time } else { time };
        out.insert("t".to_owned(), finite(record, "t", time)?);
        if let Some(update) = fields.remove("ut") {
            out.insert("ut".to_owned(), number(record, "ut", &update)?.into());
        }
        // What is not known is passed on; base values are in what stands above.
        fields.retain(|label, _| !matches!(&**label, "bn" | "bu" | "bt" | "bv" | "bs" | "bver"));
        out.extend(fields);
        Ok(Record { name, json: Value::from(vec![Value::Object(out)]).to_string() })
    }
}

fn has_other(fields: &Map<String, Value>) -> bool {
    ["vs", "vb", "vd"].iter().any(|label| fields.contains_key(*label))
}

fn text(record: usize, label: &'static str, value: &Value) -> Result<String, SenmlError> {
    let what = "a text";
    value.as_str().map(str::to_owned).ok_or(SenmlError::Field { record, label, what })
}

fn number(record: usize, label: &'static str, value: &Value) -> Result<f64, SenmlError> {
    let what = "a number";
    value.as_f64().ok_or(SenmlError::Field { record, label, what })
}

/// What was added up; two numbers that can be written may have a sum that cannot.
fn finite(record: usize, label: &'static str, sum: f64) -> Result<Value, SenmlError> {
    let what = "within 64 bits of floating point, with its base value";
    if sum.is_finite() { Ok(sum.into()) } else { Err(SenmlError::Field { record, label, what }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(pack: &str) -> Result<Vec<String>, String> {
        let records = resolve(pack.as_bytes(), 2e9).map_err(|error| error.to_string())?;
        Ok(records.into_iter().map(|record| record.json).collect())
    }

    #[test]
    fn the_example_of_the_standard_resolves_as_it_says() {
        // RFC 8428, section 5.1.3 and 5.1.4.
        let pack = r#"[{"bn":"urn:dev:ow:10e2073a01080063:","bt":1.320067464e+09,"bu":"%RH","v":20},
            {"u":"lon","v":24.30621},{"u":"lat","v":60.07965},{"t":60,"v":20.3}]"#;
        let name = "urn:dev:ow:10e2073a01080063:";
        let expected = [
            format!(r#"[{{"n":"{name}","t":1320067464.0,"u":"%RH","v":20.0}}]"#),
            format!(r#"[{{"n":"{name}","t":1320067464.0,"u":"lon","v":24.30621}}]"#),
            format!(r#"[{{"n":"{name}","t":1320067464.0,"u":"lat","v":60.07965}}]"#),
            format!(r#"[{{"n":"{name}","t":1320067524.0,"u":"%RH","v":20.3}}]"#),
        ];
        assert_eq!(resolved(pack).unwrap(), expected);
    }

    #[test]
    fn values_sums_and_relative_times_resolve() {
        for (pack, expected) in [
            (
                r#"[{"bn":"a/","bv":10},{"n":"b","v":1.5}]"#,
                vec![r#"[{"n":"a/b","t":2000000000.0,"v":11.5}]"#],
            ),
            (
                r#"[{"n":"a","vb":false,"t":-5}]"#,
                vec![r#"[{"n":"a","t":1999999995.0,"vb":false}]"#],
            ),
            (r#"[{"n":"a","bs":3,"s":4}]"#, vec![r#"[{"n":"a","s":7.0,"t":2000000000.0}]"#]),
            (
                r#"[{"n":"a","vs":"x","extra":[1]}]"#,
                vec![r#"[{"extra":[1],"n":"a","t":2000000000.0,"vs":"x"}]"#],
            ),
            (
                r#"[{"n":"a","bver":10,"ut":1,"v":1}]"#,
                vec![r#"[{"n":"a","t":2000000000.0,"ut":1.0,"v":1.0}]"#],
            ),
            ("[]", vec![]),
        ] {
            assert_eq!(resolved(pack).unwrap(), expected, "{pack}");
        }
    }

    #[test]
    fn what_is_no_senml_is_refused_by_record() {
        for (pack, part) in [
            ("{}", "no SenML"),
            (r#"[{"n":"a"}]"#, "record 1: there is neither"),
            (r#"[{"n":"a","v":1},{"n":"+","v":1}]"#, "record 2: the name"),
            (r#"[{"v":1}]"#, "record 1: the name"),
            (r#"[{"n":"a","v":"1"}]"#, "v must be a number"),
            (r#"[{"n":"a","v":1,"vs":"x"}]"#, "the only one"),
            (r#"[{"n":"a","bv":1e308,"v":1e308}]"#, "v must be within 64 bits"),
            (r#"[{"n":"a","v":1,"bver":11}]"#, "version"),
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
            if let Ok(once) = resolve(format!("[{}]", records.join(",")).as_bytes(), 2e9) {
                for record in once {
                    let again = resolve(record.json.as_bytes(), 3e9).unwrap();
                    assert_eq!(again, [record]);
                }
            }
        }
    }
}
