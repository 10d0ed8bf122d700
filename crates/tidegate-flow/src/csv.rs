//! Rows of CSV (RFC 4180).

/// A value of a row whose quotes do not end with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenQuote {
    /// From 1, the line of names included.
    pub(crate) row: usize,
    /// Its place in the row, from 1.
    pub(crate) value: usize,
}

/// The rows of a CSV text (RFC 4180), empty lines aside. Rows after an error have no meaning.
pub(crate) fn rows(csv: &str) -> impl Iterator<Item = Result<Vec<String>, OpenQuote>> {
    let mut rest = csv;
    let mut number = 0;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(['\r', '\n']);
        if rest.is_empty() {
            return None;
        }
        number += 1;
        let mut row = Vec::new();
        loop {
            let Some((value, after)) = value(rest) else {
                return Some(Err(OpenQuote { row: number, value: row.len() + 1 }));
            };
            row.push(value);
            match after.strip_prefix(',') {
                Some(after) => rest = after,
                None => {
                    rest = after;
                    return Some(Ok(row));
                }
            }
        }
    })
}

/// One value, and what stands behind it: a comma, the end of a line, or nothing. None where its quotes do not end with it.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find([',', '\r', '\n']).unwrap_or(text.len());
        return Some((text[..end].trim().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    while let Some((part, after)) = rest.split_once('"') {
        value.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                value.push('"');
                rest = after;
            }
            None => {
                let is_end = after.is_empty() || after.starts_with([',', '\r', '\n']);
                return is_end.then_some((value, after));
            }
        }
    }
    None
}
