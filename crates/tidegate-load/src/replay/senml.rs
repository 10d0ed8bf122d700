//! Rows that are packs of SenML in JSON (RFC 8428), or RIoTBench's form `{"e":[{"n":…,"v" or "sv":…}],"bt":…}` with values as text.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::{
    RowFault,
    time::{self, TimeFault, TimeUnit},
};

/// Contents of a pack, as far as topics and times need them.
#[derive(Debug)]
pub(crate) struct Pack {
    entries: Vec<Entry>,
    /// Base time and time of the record that is the latest, as they are written.
    times: Vec<(Option<String>, Option<String>)>,
}

#[derive(Debug)]
struct Entry {
    /// Base name and name in one.
    name: String,
    /// Where the name begins behind the base name.
    name_at: usize,
    value: Option<Value>,
}

/// One record. Members that say nothing here are left out.
#[derive(Deserialize)]
struct Record<'a> {
    #[serde(borrow, default)]
    n: Cow<'a, str>,
    bn: Option<String>,
    bt: Option<Value>,
    t: Option<Value>,
    v: Option<Value>,
    vs: Option<Value>,
    vb: Option<Value>,
    vd: Option<Value>,
    sv: Option<Value>,
    #[serde(borrow)]
    e: Option<Vec<Record<'a>>>,
}

impl Pack {
    /// Reads one.
    ///
    /// # Errors
    /// `Json` of [`RowFault`].
    pub(crate) fn parse(row: &[u8]) -> Result<Self, RowFault> {
        let wrong = |source| RowFault::Json { source };
        let records: Vec<Record<'_>> = match row.trim_ascii_start().first() {
            Some(b'[') => serde_json::from_slice(row).map_err(wrong)?,
            _ => vec![serde_json::from_slice(row).map_err(wrong)?],
        };
        let mut pack = Self { entries: Vec::new(), times: Vec::new() };
        let (mut base_name, mut base_time) = (String::new(), None);
        for mut record in records {
            base_name = record.bn.take().unwrap_or(base_name);
            base_time = text(record.bt.take()).or(base_time);
            for inner in record.e.take().unwrap_or_default() {
                pack.add(&base_name, base_time.as_deref(), inner);
            }
            pack.add(&base_name, base_time.as_deref(), record);
        }
        Ok(pack)
    }

    fn add(&mut self, base_name: &str, base_time: Option<&str>, record: Record<'_>) {
        let Record { n, t, v, vs, vb, vd, sv, .. } = record;
        self.times.push((base_time.map(str::to_owned), text(t)));
        let value = v.or(vs).or(sv).or(vb).or(vd);
        if value.is_some() || !n.is_empty() {
            let name = format!("{base_name}{n}");
            self.entries.push(Entry { name, name_at: base_name.len(), value });
        }
    }

    /// How many records have a name or a value.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The value of the record of that name, with or without its base name.
    pub(crate) fn by_name(&self, name: &str) -> Option<Cow<'_, str>> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        let found = found
            .or_else(|| self.entries.iter().find(|entry| entry.name[entry.name_at..] == *name))?;
        shown(found.value.as_ref()?)
    }

    /// The value of a record by its place, from 1.
    pub(crate) fn by_number(&self, number: usize) -> Option<Cow<'_, str>> {
        shown(self.entries.get(number.checked_sub(1)?)?.value.as_ref()?)
    }

    /// How its times are written, by the first that is there.
    pub(crate) fn recognise(&self) -> Option<TimeUnit> {
        let written = self.times.iter().find_map(|(base, time)| base.as_ref().or(time.as_ref()))?;
        time::recognise(written.as_bytes())
    }

    /// The time of the latest record: base time and time together.
    ///
    /// # Errors
    /// `NoRecordTime`, `NotTime` and `TimeRange` of [`RowFault`].
    pub(crate) fn time(&self, unit: TimeUnit) -> Result<i64, RowFault> {
        let one = |text: &Option<String>| match text {
            None => Ok(0),
            Some(text) => time::parse(text.as_bytes(), unit)
                .map_err(|fault| RowFault::of_time("bt or t", text.as_bytes(), unit, fault)),
        };
        let mut latest = None;
        for (base, time) in &self.times {
            if base.is_none() && time.is_none() {
                continue;
            }
            let nanos = one(base)?.checked_add(one(time)?).ok_or_else(|| {
                let text = time.as_deref().unwrap_or_default();
                RowFault::of_time("bt and t", text.as_bytes(), unit, TimeFault::Range)
            })?;
            latest = latest.max(Some(nanos));
        }
        latest.ok_or(RowFault::NoRecordTime)
    }
}

fn text(value: Option<Value>) -> Option<String> {
    value.and_then(|value| shown(&value).map(Cow::into_owned))
}

fn shown(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_read_with_their_bases() {
        let pack = r#"[{"bn":"urn:dev:7:","bt":1320067464,"n":"temp","v":21.5,"u":"Cel"},
            {"n":"on","vb":true,"t":2.5},{"bn":"urn:dev:8:","n":"name","vs":"a/b"},{"n":"none"}]"#;
        let pack = Pack::parse(pack.as_bytes()).unwrap();
        for (name, expected) in [
            ("urn:dev:7:temp", Some("21.5")),
            ("temp", Some("21.5")),
            ("urn:dev:7:on", Some("true")),
            ("urn:dev:8:name", Some("a/b")),
            ("urn:dev:8:none", None),
            ("urn:dev:8:temp", None),
        ] {
            assert_eq!(pack.by_name(name).as_deref(), expected, "{name}");
        }
        assert_eq!((pack.len(), pack.by_number(3).as_deref()), (4, Some("a/b")));
        assert_eq!((pack.by_number(0), pack.by_number(5)), (None, None));
        assert_eq!(pack.recognise(), Some(TimeUnit::S));
        assert_eq!(pack.time(TimeUnit::S).unwrap(), 1_320_067_466_500_000_000);
    }

    #[test]
    fn the_form_of_riotbench_has_values_as_text() {
        let row = r#"{"e":[{"u":"string","n":"source","sv":"ci4"},{"v":"6.16","u":"lon","n":"longitude"}],"bt":"1417890600020"}"#;
        let pack = Pack::parse(row.as_bytes()).unwrap();
        assert_eq!(pack.by_name("source").as_deref(), Some("ci4"));
        assert_eq!(pack.by_number(2).as_deref(), Some("6.16"));
        assert_eq!(pack.recognise(), Some(TimeUnit::Ms));
        assert_eq!(pack.time(TimeUnit::Ms).unwrap(), 1_417_890_600_020_000_000);
    }

    #[test]
    fn what_is_no_pack_is_refused() {
        for row in ["", "[", "{\"e\":1}", "[1]", "{\"bt\":1e309}", "{} x", "{\"bt\":NaN}"] {
            assert!(matches!(Pack::parse(row.as_bytes()), Err(RowFault::Json { .. })), "{row}");
        }
        for (row, expected) in [
            ("{}", "no record has a time (bt or t)"),
            ("{\"n\":\"x\",\"v\":1}", "no record has a time (bt or t)"),
            ("{\"bt\":\"soon\"}", "bt or t: \"soon\" is not a time in seconds"),
            ("{\"bt\":9e9,\"t\":9e9}", "beyond the years 1678 to 2261"),
        ] {
            let error = Pack::parse(row.as_bytes()).unwrap().time(TimeUnit::S).unwrap_err();
            assert!(error.to_string().contains(expected), "{row}: {error}");
        }
    }
}
