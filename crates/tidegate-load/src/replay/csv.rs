//! The fields of one row of CSV (RFC 4180).

use std::borrow::Cow;

use super::RowFault;

/// Where the value of a field stands in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    start: usize,
    end: usize,
    /// Quotes within it are written twice.
    has_quotes: bool,
}

/// Puts the fields of `row` into `fields`; a quote within a field that does not begin with one is a quote.
///
/// # Errors
/// `BehindQuote` and `OpenQuote` of [`RowFault`].
pub(crate) fn split(row: &[u8], delimiter: u8, fields: &mut Vec<Field>) -> Result<(), RowFault> {
    fields.clear();
    let mut at = 0;
    loop {
        if row.get(at) == Some(&b'"') {
            let start = at + 1;
            let mut has_quotes = false;
            at = start;
            loop {
                let quote = row[at..].iter().position(|&byte| byte == b'"');
                at += quote.ok_or(RowFault::OpenQuote)?;
                if row.get(at + 1) != Some(&b'"') {
                    break;
                }
                has_quotes = true;
                at += 2;
            }
            fields.push(Field { start, end: at, has_quotes });
            at += 1;
            if row.get(at).is_some_and(|&byte| byte != delimiter) {
                return Err(RowFault::BehindQuote { column: fields.len() });
            }
        } else {
            let start = at;
            let rest = row[at..].iter().position(|&byte| byte == delimiter);
            at = rest.map_or(row.len(), |bytes| start + bytes);
            fields.push(Field { start, end: at, has_quotes: false });
        }
        if at >= row.len() {
            return Ok(());
        }
        at += 1;
    }
}

impl Field {
    /// The value.
    pub(crate) fn value<'a>(&self, row: &'a [u8]) -> Cow<'a, [u8]> {
        let bytes = &row[self.start..self.end];
        if !self.has_quotes {
            return Cow::Borrowed(bytes);
        }
        let mut value = Vec::with_capacity(bytes.len());
        let mut is_second = false;
        for &byte in bytes {
            is_second = byte == b'"' && !is_second;
            if !is_second {
                value.push(byte);
            }
        }
        Cow::Owned(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(row: &str) -> Result<Vec<String>, String> {
        let mut fields = Vec::new();
        split(row.as_bytes(), b',', &mut fields).map_err(|fault| fault.to_string())?;
        let text = |field: &Field| String::from_utf8_lossy(&field.value(row.as_bytes())).into();
        Ok(fields.iter().map(text).collect())
    }

    #[test]
    fn fields_are_those_of_rfc_4180() {
        for (row, expected) in [
            ("", &[""][..]),
            ("a", &["a"]),
            ("a,b", &["a", "b"]),
            (",", &["", ""]),
            ("a,,b,", &["a", "", "b", ""]),
            ("\"a,b\",c", &["a,b", "c"]),
            ("\"\",\"x\"", &["", "x"]),
            ("\"say \"\"no\"\"\"", &["say \"no\""]),
            ("\"\"\"\"", &["\""]),
            ("\"\"\"\"\"\"", &["\"\""]),
            ("\"a\r\nb\",2", &["a\r\nb", "2"]),
            ("5\" pipe,1", &["5\" pipe", "1"]),
            (" a , \"b\"", &[" a ", " \"b\""]), // blanks belong to a field
            ("Zürich,\u{1f321}", &["Zürich", "\u{1f321}"]),
        ] {
            assert_eq!(values(row).expect(row), expected);
        }
        for (row, expected) in [
            ("a,\"b\"c", "column 2: text stands behind its closing quote"),
            ("\"b\" ,c", "column 1: text stands behind its closing quote"),
            ("\"b", "a quote is not closed"),
            ("\"b\"\"", "a quote is not closed"),
        ] {
            assert_eq!(values(row), Err(expected.to_owned()), "{row}");
        }
    }
}
