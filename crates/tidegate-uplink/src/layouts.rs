//! How payloads are cut into fields, from the text of `layouts`: `FILTER = LAYOUT`, separated by commas.
//!
//! ```text
//!  plant/+/raw = u32be i16be f32be bytes6, plant/+/log = opaque, plant/+/row = csv;
//! ```

use tidegate_compress::{BinaryField, BinaryKind, FIELD_BYTES_MAX, FIELDS_MAX, Layout};
use tidegate_message::{BinaryNumber, NumberKind, check_topic_filter};

/// Problems of a text of layouts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutsError {
    /// A part of the text is no rule.
    #[error("`{0}` is not a FILTER = LAYOUT")]
    Rule(String),
    /// The left side of a rule is no filter.
    #[error("{filter} is not a topic filter: {why}")]
    Filter {
        /// The left side.
        filter: String,
        /// Why not.
        why: String,
    },
    /// A word of the right side is no field.
    #[error(
        "{0} is not a field: auto, opaque, json, line, csv with its separator, or fields such as u8, i16be, u32le, f64be, bytes6"
    )]
    Field(String),
    /// The right side is too long.
    #[error("{filter} has {found} fields, at most {FIELDS_MAX} can be")]
    Fields {
        /// The left side.
        filter: String,
        /// How many fields.
        found: usize,
    },
}

/// The layouts that a text names, in its order, with filters of at most `levels` levels.
///
/// # Errors
/// [`LayoutsError`], which names the part.
pub fn read(text: &str, levels: usize) -> Result<Vec<(String, Layout)>, LayoutsError> {
    let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
    let rule = |rule: &str| {
        // A filter may have an equals sign, a layout none.
        let (filter, layout) =
            rule.rsplit_once('=').ok_or_else(|| LayoutsError::Rule(rule.to_owned()))?;
        let filter = filter.trim();
        check_topic_filter(filter, levels).map_err(|error| LayoutsError::Filter {
            filter: filter.to_owned(),
            why: error.to_string(),
        })?;
        Ok((filter.to_owned(), layout_of(filter, layout.trim())?))
    };
    rules.map(rule).collect()
}

fn layout_of(filter: &str, text: &str) -> Result<Layout, LayoutsError> {
    let csv = text.strip_prefix("csv").map(str::trim);
    Ok(match (text, csv) {
        ("auto", _) => Layout::Auto,
        ("opaque", _) => Layout::Opaque,
        ("json", _) => Layout::Json,
        ("line", _) => Layout::Line,
        (_, Some("")) => Layout::Csv(b','),
        (_, Some("tab")) => Layout::Csv(b'\t'),
        (_, Some("space")) => Layout::Csv(b' '),
        (_, Some(separator)) => match separator.as_bytes() {
            [byte] if byte.is_ascii_punctuation() => Layout::Csv(*byte),
            _ => return Err(LayoutsError::Field(text.to_owned())),
        },
        _ => {
            let fields = text
                .split_whitespace()
                .map(|word| field(word).ok_or_else(|| LayoutsError::Field(word.to_owned())));
            let fields = fields.collect::<Result<Vec<_>, _>>()?;
            match fields.len() {
                0 => return Err(LayoutsError::Rule(filter.to_owned())),
                1..=FIELDS_MAX => Layout::Binary(fields),
                found => return Err(LayoutsError::Fields { filter: filter.to_owned(), found }),
            }
        }
    })
}

/// A type, its bits and the order of its bytes; or bytes that mean nothing, and how many.
fn field(word: &str) -> Option<BinaryField> {
    if let Some(width) = word.strip_prefix("bytes") {
        let width = width.parse().ok().filter(|width| (1..=FIELD_BYTES_MAX).contains(width))?;
        let width = u8::try_from(width).ok()?;
        return Some(BinaryField { kind: BinaryKind::Bytes, width, big_endian: false });
    }
    let number = BinaryNumber::read(word)?;
    let kind = match number.kind {
        NumberKind::Unsigned => BinaryKind::Unsigned,
        NumberKind::Signed => BinaryKind::Signed,
        NumberKind::Float => BinaryKind::Float,
    };
    Some(BinaryField { kind, width: number.bytes, big_endian: number.is_big_endian })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_in_their_order() {
        let text = "plant/+/raw = u32be i16le f32be u8 bytes6, a=b/# = opaque,\n c = csv, d = csv;, e = csv tab, f = json, \
                    g = line, h = auto,";
        let binary = |kind, width, big_endian| BinaryField { kind, width, big_endian };
        let expected = [
            (
                "plant/+/raw",
                Layout::Binary(vec![
                    binary(BinaryKind::Unsigned, 4, true),
                    binary(BinaryKind::Signed, 2, false),
                    binary(BinaryKind::Float, 4, true),
                    binary(BinaryKind::Unsigned, 1, false),
                    binary(BinaryKind::Bytes, 6, false),
                ]),
            ),
            ("a=b/#", Layout::Opaque),
            ("c", Layout::Csv(b',')),
            ("d", Layout::Csv(b';')),
            ("e", Layout::Csv(b'\t')),
            ("f", Layout::Json),
            ("g", Layout::Line),
            ("h", Layout::Auto),
        ];
        let expected = expected.map(|(filter, layout)| (filter.to_owned(), layout));
        assert_eq!(read(text, 8), Ok(expected.to_vec()));
        assert_eq!(read("", 8), Ok(Vec::new()));
    }

    #[test]
    fn problems_are_named() {
        for (text, expected) in [
            ("raw", "`raw` is not a FILTER = LAYOUT"),
            ("raw =", "`raw` is not a FILTER = LAYOUT"),
            ("a/#/b = opaque", "a/#/b is not a topic filter"),
            ("a = u16", "u16 is not a field"),
            ("a = u24le", "u24le is not a field"),
            ("a = f16be", "f16be is not a field"),
            ("a = u8be é", "é is not a field"),
            ("a = xé", "xé is not a field"),
            ("a = ué", "ué is not a field"),
            ("a = bytes0", "bytes0 is not a field"),
            ("a = bytes256", "bytes256 is not a field"),
            ("a = csv ab", "csv ab is not a field"),
        ] {
            let error = read(text, 8).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let many = format!("a = {}", "u8 ".repeat(256));
        let error = LayoutsError::Fields { filter: "a".to_owned(), found: 256 };
        assert_eq!(read(&many, 8), Err(error));
    }
}
