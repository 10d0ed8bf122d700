//! Lines as they are written.

use std::io::Write as _;

use tidegate_message::Instant;

use super::{
    FIELDS_MAX, LINE_BYTES_MAX, Precision, TAGS_MAX, Value,
    scan::{BYTE_ORDER_MARK, OF_MEASUREMENT, OF_NAME},
    value::OF_TEXT,
};

/// Writes lines: escaped, tags in the order of their names, as databases like them best.
#[derive(Debug, Default)]
pub struct LineWriter {
    precision: Precision,
    order: Vec<usize>,
}

/// A field's value to write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'a> {
    /// Finite.
    Float(f64),
    /// With `i` behind it.
    Integer(i64),
    /// With `u` behind it.
    Unsigned(u64),
    /// Between quotes.
    Text(&'a str),
    /// `true` or `false`.
    Boolean(bool),
    /// As it was read.
    Read(Value<'a>),
}

impl LineWriter {
    /// A writer of timestamps in `precision`, rounded down.
    pub fn new(precision: Precision) -> Self {
        Self { precision, order: Vec::new() }
    }

    /// Appends a line and its end.
    ///
    /// # Errors
    ///
    /// [`WriteError`] for what the protocol cannot say, or [`Batch`](super::Batch) does not read; nothing is appended then.
    pub fn write(
        &mut self,
        out: &mut Vec<u8>,
        measurement: &str,
        tags: &[(&str, &str)],
        fields: &[(&str, FieldValue<'_>)],
        timestamp: Option<Instant>,
    ) -> Result<(), WriteError> {
        let start = out.len();
        let written = self.append(out, measurement, tags, fields, timestamp);
        let bytes = out.len() - start;
        let result = match written {
            Ok(()) if bytes > LINE_BYTES_MAX => {
                Err(WriteError::TooLong { bytes, bytes_max: LINE_BYTES_MAX })
            }
            result => result,
        };
        match result {
            Ok(()) => out.push(b'\n'),
            Err(_) => out.truncate(start),
        }
        result
    }

    fn append(
        &mut self,
        out: &mut Vec<u8>,
        measurement: &str,
        tags: &[(&str, &str)],
        fields: &[(&str, FieldValue<'_>)],
        timestamp: Option<Instant>,
    ) -> Result<(), WriteError> {
        if measurement.starts_with('#') {
            return Err(WriteError::Comment);
        }
        if measurement.starts_with(BYTE_ORDER_MARK) {
            return Err(WriteError::Mark);
        }
        put_name("measurement", measurement, OF_MEASUREMENT, out)?;
        if fields.is_empty() {
            return Err(WriteError::NoFields);
        }
        self.sort("fields", FIELDS_MAX, fields.len(), |at| fields[at].0)?;
        self.sort("tags", TAGS_MAX, tags.len(), |at| tags[at].0)?;
        for &at in &self.order {
            let (name, value) = tags[at];
            out.push(b',');
            put_name("tag's name", name, OF_NAME, out)?;
            out.push(b'=');
            put_name("tag's value", value, OF_NAME, out)?;
        }
        let mut separator = b' ';
        for (name, value) in fields {
            out.push(std::mem::replace(&mut separator, b','));
            put_name("field's name", name, OF_NAME, out)?;
            out.push(b'=');
            put_value(*value, out)?;
        }
        if let Some(timestamp) = timestamp {
            let count = timestamp.as_nanos().div_euclid(self.precision.nanos());
            write(out, format_args!(" {count}"));
        }
        Ok(())
    }

    /// Orders by name, and refuses names that stand twice.
    fn sort<'n>(
        &mut self,
        part: &'static str,
        count_max: usize,
        count: usize,
        name: impl Fn(usize) -> &'n str,
    ) -> Result<(), WriteError> {
        if count > count_max {
            return Err(WriteError::TooMany { part, count, count_max });
        }
        self.order.clear();
        self.order.extend(0..count);
        self.order.sort_unstable_by_key(|at| name(*at));
        match self.order.windows(2).any(|pair| name(pair[0]) == name(pair[1])) {
            true => Err(WriteError::Repeated { part }),
            false => Ok(()),
        }
    }
}

fn put_name(
    part: &'static str,
    name: &str,
    escaped: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    if name.is_empty() {
        return Err(WriteError::Empty { part });
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(WriteError::Control { part });
    }
    if name.ends_with('\\') {
        return Err(WriteError::Backslash { part });
    }
    put_escaped(name, escaped, out);
    Ok(())
}

fn put_escaped(text: &str, escaped: &[u8], out: &mut Vec<u8>) {
    for byte in text.bytes() {
        if escaped.contains(&byte) {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

fn put_value(value: FieldValue<'_>, out: &mut Vec<u8>) -> Result<(), WriteError> {
    let put_text = |text: &str, out: &mut Vec<u8>| {
        out.push(b'"');
        put_escaped(text, OF_TEXT, out);
        out.push(b'"');
    };
    match value {
        FieldValue::Float(number) if !number.is_finite() => {
            return Err(WriteError::NotFinite);
        }
        FieldValue::Float(number) => write(out, format_args!("{number:?}")),
        FieldValue::Integer(number) => write(out, format_args!("{number}i")),
        FieldValue::Unsigned(number) => write(out, format_args!("{number}u")),
        FieldValue::Text(text) => put_text(text, out),
        FieldValue::Boolean(value) => write(out, format_args!("{value}")),
        FieldValue::Read(Value::Float(text) | Value::Boolean(text)) => {
            out.extend_from_slice(text.as_bytes());
        }
        FieldValue::Read(Value::Integer(text)) => write(out, format_args!("{text}i")),
        FieldValue::Read(Value::Unsigned(text)) => write(out, format_args!("{text}u")),
        FieldValue::Read(Value::Text(text)) => {
            out.push(b'"');
            out.extend_from_slice(text.raw().as_bytes());
            out.push(b'"');
        }
    }
    Ok(())
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("memory takes all that is written");
}

/// Values that the protocol cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A name or a tag's value is empty.
    #[error("the {part} is empty; leave an empty tag out")]
    Empty {
        /// Which.
        part: &'static str,
    },
    /// A name or a tag's value has an end of line or the like.
    #[error("the {part} has a control character, which has no escape; a field's text may have it")]
    Control {
        /// Which.
        part: &'static str,
    },
    /// A name or a tag's value ends with a backslash.
    #[error("the {part} ends with a backslash, which would escape the character after it")]
    Backslash {
        /// Which.
        part: &'static str,
    },
    /// The measurement begins with `#`.
    #[error("the measurement begins with #, as comments do")]
    Comment,
    /// The measurement begins with U+FEFF.
    #[error("the measurement begins with a byte order mark (U+FEFF), which readers leave out")]
    Mark,
    /// There are no fields.
    #[error("a line has one field at least")]
    NoFields,
    /// Two tags or two fields have one name.
    #[error("two {part} have one name")]
    Repeated {
        /// Which.
        part: &'static str,
    },
    /// Too many tags or fields.
    #[error("{count} {part} exceed the limit of {count_max}")]
    TooMany {
        /// Which.
        part: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        count_max: usize,
    },
    /// The line is too long.
    #[error("line of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// A float is infinite or no number.
    #[error("a float is infinite or NaN, which the protocol does not have")]
    NotFinite,
}
