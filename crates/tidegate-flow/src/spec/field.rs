//! How a payload becomes fields.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// The format of payloads, and the fields that are read from them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParseSpec {
    /// The format.
    pub format: Format,
    /// The fields. In configuration each is a table, or in short `"NAME"` or `"NAME:TYPE"`.
    pub fields: Vec<FieldSpec>,
    /// For `csv`: the delimiter of columns, one ASCII character; a comma unless another is given.
    #[serde(default)]
    pub delimiter: Option<char>,
    /// For `csv`: whether each payload begins with a line of names, by which columns are found then.
    #[serde(default)]
    pub header: bool,
}

/// The format of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// One row of values with a delimiter between them (RFC 4180), with or without a line of names before it.
    Csv,
    /// One flat JSON object.
    Json,
    /// SenML in JSON (RFC 8428), or `{"e":[…],"bt":…}` with values as text.
    SenmlJson,
    /// One flat CBOR map with text as keys.
    Cbor,
    /// SenML in CBOR (RFC 8428).
    SenmlCbor,
    /// Values at fixed places: ASCII columns and binary numbers.
    Fixed,
}

/// One field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSpec {
    /// Its name in operators and templates.
    pub name: String,
    /// Its name in payloads; the same name unless another is given. `@time` is the time of a SenML record.
    pub from: Option<String>,
    /// Other names in payloads.
    pub aliases: Vec<String>,
    /// The kind of its values.
    pub kind: FieldKind,
    /// For `time`: the unit of numbers. Text in the form of RFC 3339 needs none.
    pub unit: TimeUnit,
    /// Whether it may be missing; a message that lacks another field is bad.
    pub optional: bool,
    /// For `csv` without header: its column, counted from 0; its place in the list unless it is said otherwise.
    pub column: Option<u32>,
    /// For `fixed`: the byte that it begins at.
    pub at: Option<u32>,
    /// For `fixed`: its bytes, for ASCII.
    pub length: Option<u32>,
    /// For `fixed`: the encoding of the bytes; ASCII unless another is given.
    pub encoding: Option<Encoding>,
    /// The factor of a number.
    pub scale: Option<f64>,
}

/// The kind of a field's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FieldKind {
    /// A finite number, as a 64-bit float.
    #[default]
    Number,
    /// A whole number of at most 2^53 either way.
    Integer,
    /// UTF-8.
    Text,
    /// A point in time, in seconds since the Unix epoch.
    Time,
}

/// The unit of a time that is written as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum TimeUnit {
    /// Seconds.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanos,
}

/// The encoding of a field at a fixed place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say the type and the order of its bytes")]
pub enum Encoding {
    Ascii,
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
    F32le,
    F32be,
    F64le,
    F64be,
}

impl TimeUnit {
    /// How many of it a second has.
    pub(crate) const fn per_second(self) -> f64 {
        match self {
            Self::Seconds => 1.0,
            Self::Millis => 1e3,
            Self::Micros => 1e6,
            Self::Nanos => 1e9,
        }
    }
}

impl Encoding {
    /// Its bytes; none for ASCII, which says so itself.
    pub(crate) const fn bytes(self) -> Option<u32> {
        match self {
            Self::Ascii => None,
            Self::U8 | Self::I8 => Some(1),
            Self::U16le | Self::U16be | Self::I16le | Self::I16be => Some(2),
            Self::U32le | Self::U32be | Self::I32le | Self::I32be | Self::F32le | Self::F32be => {
                Some(4)
            }
            Self::U64le | Self::U64be | Self::I64le | Self::I64be | Self::F64le | Self::F64be => {
                Some(8)
            }
        }
    }
}

impl<'de> Deserialize<'de> for FieldSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = FieldSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field: \"NAME\", \"NAME:TYPE\" or a table with its name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<FieldSpec, E> {
        let (name, kind) = match text.rsplit_once(':') {
            None => (text, FieldKind::Number),
            Some((name, word)) => match word {
                "number" => (name, FieldKind::Number),
                "integer" => (name, FieldKind::Integer),
                "text" => (name, FieldKind::Text),
                "time" => (name, FieldKind::Time),
                _ => {
                    return Err(E::custom(format!(
                        "{word:?} is not a type of a field; there are number, integer, text and time"
                    )));
                }
            },
        };
        Ok(FieldSpec { name: name.to_owned(), kind, ..FieldSpec::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldSpec, A::Error> {
        let table = FieldTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(FieldSpec {
            name: table.name,
            from: table.from,
            aliases: table.aliases,
            kind: table.kind,
            unit: table.unit,
            optional: table.optional,
            column: table.column,
            at: table.at,
            length: table.length,
            encoding: table.encoding,
            scale: table.scale,
        })
    }
}

/// A field as a table, so that an unknown key is named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldTable {
    name: String,
    from: Option<String>,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default, rename = "type")]
    kind: FieldKind,
    #[serde(default)]
    unit: TimeUnit,
    #[serde(default)]
    optional: bool,
    column: Option<u32>,
    at: Option<u32>,
    length: Option<u32>,
    #[serde(rename = "as")]
    encoding: Option<Encoding>,
    scale: Option<f64>,
}

impl Encoding {
    /// Whether each of its values is a float of its own.
    pub(crate) const fn is_exact(self) -> bool {
        matches!(
            self,
            Self::U8
                | Self::I8
                | Self::U16le
                | Self::U16be
                | Self::I16le
                | Self::I16be
                | Self::U32le
                | Self::U32be
                | Self::I32le
                | Self::I32be
        )
    }
}
