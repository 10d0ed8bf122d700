//! Rows of a trace, cut out of bytes as they come.
//!
//! ```text
//!  push bytes … ─▶ next: a row | a bad one | starved, push more | end
//! ```
//!
//! A row is a line, without its end (LF or CRLF); in CSV, a line break between quotes belongs to it (RFC 4180), and in JSON one
//! between brackets. Empty lines are passed over.
//!
//! Always true: however the bytes are cut, the rows are the same; no more than [`ROW_BYTES_MAX`] and what was pushed last is held; a
//! row that is too long, or whose quote or bracket is not closed, costs its first line and nothing behind it.

use super::{ROW_BYTES_MAX, RowFault};

/// Cuts rows.
#[derive(Debug)]
pub(crate) struct Rows {
    buffer: Vec<u8>,
    /// Where the next row begins.
    at: usize,
    /// How far it has been looked through.
    scanned: usize,
    quote: Quote,
    /// The byte behind the first end of a line within the row, which is between quotes.
    second_line: Option<usize>,
    /// Lines before the row, and ends of lines within it.
    line: u64,
    inner_lines: u64,
    /// The rest of a line that is too long is passed over.
    discards: bool,
    has_ended: bool,
    /// The delimiter where quotes count: in CSV.
    delimiter: Option<u8>,
    /// Whether rows are of JSON, and brackets that are open.
    is_json: bool,
    depth: usize,
}

/// Where in CSV the scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    /// At the beginning of a field, where alone a quote opens.
    Start,
    Outside,
    Inside,
    /// Behind a quote inside quotes: the end of the field, or the first half of a quote.
    Behind,
}

/// The next row, or why there is none.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Row {
        line: u64,
        bytes: &'a [u8],
    },
    Bad {
        line: u64,
        fault: RowFault,
    },
    /// Nothing until more is pushed.
    Starved,
    End,
}

impl Rows {
    /// Rows that are lines.
    pub(crate) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            at: 0,
            scanned: 0,
            quote: Quote::Start,
            second_line: None,
            line: 0,
            inner_lines: 0,
            discards: false,
            has_ended: false,
            delimiter: None,
            is_json: false,
            depth: 0,
        }
    }

    /// From here on, rows are of CSV with that delimiter. Before the first row alone.
    pub(crate) fn read_csv(&mut self, delimiter: u8) {
        self.delimiter = Some(delimiter);
    }

    /// From here on, rows are of JSON: a pack may be written in several lines. Before the first row alone.
    pub(crate) fn read_json(&mut self) {
        self.is_json = true;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.scanned -= self.at;
        self.second_line = self.second_line.map(|place| place - self.at);
        self.at = 0;
        if self.line == 0 && self.buffer.is_empty() {
            // A mark of the order of bytes is no part of the first row.
            self.buffer.extend_from_slice(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Nothing more is pushed.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Bytes that have been pushed and not been cut yet.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The next row.
    pub(crate) fn next(&mut self) -> Step<'_> {
        loop {
            if self.discards {
                let Some(end) = self.buffer[self.at..].iter().position(|&byte| byte == b'\n')
                else {
                    self.at = self.buffer.len();
                    self.scanned = self.at;
                    return if self.has_ended { Step::End } else { Step::Starved };
                };
                self.begin_at(self.at + end + 1);
                self.discards = false;
            }
            let line = self.line + 1;
            let start = self.at;
            match self.scan() {
                Some(end) if end - start > ROW_BYTES_MAX => {
                    return self.give_up(line, end, end + 1);
                }
                Some(end) => {
                    self.line = line + self.inner_lines;
                    self.begin_at((end + 1).min(self.buffer.len()));
                    if let Some(range) = text(&self.buffer, start, end) {
                        return Step::Row { line, bytes: &self.buffer[range] };
                    }
                }
                None if self.buffer.len() - start > ROW_BYTES_MAX => {
                    self.discards = self.second_line.is_none();
                    let end = self.buffer.len();
                    return self.give_up(line, end, end);
                }
                None if !self.has_ended => return Step::Starved,
                None if start == self.buffer.len() => return Step::End,
                None if self.quote == Quote::Inside || self.depth > 0 => {
                    let end = self.buffer.len();
                    return self.give_up(line, end, end);
                }
                None => {
                    // The last line has no end.
                    let end = self.buffer.len();
                    self.line = line + self.inner_lines;
                    self.begin_at(end);
                    if let Some(range) = text(&self.buffer, start, end) {
                        return Step::Row { line, bytes: &self.buffer[range] };
                    }
                }
            }
        }
    }

    fn begin_at(&mut self, place: usize) {
        self.at = place;
        self.scanned = place;
        self.quote = Quote::Start;
        self.depth = 0;
        self.second_line = None;
        self.inner_lines = 0;
    }

    /// A row that does not end within its bound, or not at all: its first line, which ends there, is bad, and what stands behind
    /// is read again.
    fn give_up(&mut self, line: u64, end: usize, behind: usize) -> Step<'_> {
        let (end, behind) = self.second_line.map_or((end, behind), |place| (place - 1, place));
        let fault = match end - self.at > ROW_BYTES_MAX {
            true => RowFault::TooLong,
            false if self.is_json => RowFault::OpenBracket,
            false => RowFault::OpenQuote,
        };
        self.line = line;
        self.begin_at(behind);
        Step::Bad { line, fault }
    }

    /// Where the line end of the row stands, if it is there.
    fn scan(&mut self) -> Option<usize> {
        if self.is_json {
            return self.scan_json();
        }
        let Some(delimiter) = self.delimiter else {
            let rest = &self.buffer[self.scanned..];
            let found = rest.iter().position(|&byte| byte == b'\n');
            let end = found.map(|end| self.scanned + end);
            self.scanned = end.unwrap_or(self.buffer.len());
            return end;
        };
        while let Some(&byte) = self.buffer.get(self.scanned) {
            self.scanned += 1;
            self.quote = match (self.quote, byte) {
                (Quote::Inside, b'"') => Quote::Behind,
                (Quote::Inside, b'\n') => {
                    self.inner_lines += 1;
                    self.second_line.get_or_insert(self.scanned);
                    Quote::Inside
                }
                (Quote::Inside, _) | (Quote::Start | Quote::Behind, b'"') => Quote::Inside,
                (_, b'\n') => return Some(self.scanned - 1),
                (_, byte) if byte == delimiter => Quote::Start,
                _ => Quote::Outside,
            };
        }
        None
    }
}

impl Rows {
    /// The same in JSON.
    fn scan_json(&mut self) -> Option<usize> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            self.scanned += 1;
            self.quote = match (self.quote, byte) {
                // No text of JSON has the end of a line in it.
                (Quote::Start | Quote::Outside, b'"') => Quote::Inside,
                (Quote::Inside, b'\\') => Quote::Behind,
                (Quote::Behind, byte) if byte != b'\n' => Quote::Inside,
                (Quote::Inside, byte) if byte != b'"' && byte != b'\n' => Quote::Inside,
                _ => Quote::Outside,
            };
            if self.quote != Quote::Outside {
                continue;
            }
            match byte {
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b'\n' if self.depth == 0 => return Some(self.scanned - 1),
                b'\n' => {
                    self.inner_lines += 1;
                    self.second_line.get_or_insert(self.scanned);
                }
                _ => {}
            }
        }
        None
    }
}

/// The row without its end; none if it is empty.
fn text(buffer: &[u8], start: usize, end: usize) -> Option<std::ops::Range<usize>> {
    let row = &buffer[start..end];
    let bytes = row.strip_suffix(b"\r").unwrap_or(row).len();
    (bytes > 0).then_some(start..start + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `text` by line, pushed in pieces of so many bytes; bad ones as their fault.
    fn cut(text: &[u8], piece: usize, delimiter: Option<u8>) -> Vec<(u64, String)> {
        let mut rows = Rows::new();
        if let Some(delimiter) = delimiter {
            rows.read_csv(delimiter);
        }
        cut_by(rows, text, piece)
    }

    fn cut_by(mut rows: Rows, text: &[u8], piece: usize) -> Vec<(u64, String)> {
        let mut pieces = text.chunks(piece);
        let mut found = Vec::new();
        loop {
            match rows.next() {
                Step::Row { line, bytes } => {
                    found.push((line, String::from_utf8_lossy(bytes).into_owned()));
                }
                Step::Bad { line, fault } => found.push((line, format!("! {fault}"))),
                Step::Starved => match pieces.next() {
                    Some(piece) => rows.push(piece),
                    None => rows.end(),
                },
                Step::End => return found,
            }
        }
    }

    fn expected(rows: &[(u64, &str)]) -> Vec<(u64, String)> {
        rows.iter().map(|&(line, text)| (line, text.to_owned())).collect()
    }

    #[test]
    fn rows_are_the_same_however_the_bytes_are_cut() {
        for (text, delimiter, rows) in [
            ("", None, &[][..]),
            ("\n\r\n\n", None, &[]),
            ("a\nb", None, &[(1, "a"), (2, "b")]),
            ("a\r\n\r\nb\r\n", None, &[(1, "a"), (3, "b")]),
            ("\u{feff}a,b\n", None, &[(1, "a,b")]), // a mark of the order of bytes
            ("é\u{1f321}\n", None, &[(1, "é\u{1f321}")]),
            ("\"a\nb\"\n", None, &[(1, "\"a"), (2, "b\"")]), // quotes mean nothing here
            ("\"a\nb\",1\nc\n", Some(b','), &[(1, "\"a\nb\",1"), (3, "c")]),
            ("1,\"a\r\n\r\nb\"\r\nc", Some(b','), &[(1, "1,\"a\r\n\r\nb\""), (4, "c")]),
            ("a\"b\nc\n", Some(b','), &[(1, "a\"b"), (2, "c")]), // within a field a quote is one
            ("\"a\"\"\n\"\nc\n", Some(b','), &[(1, "\"a\"\"\n\""), (3, "c")]),
            ("1;\"a\nb\"\n", Some(b';'), &[(1, "1;\"a\nb\"")]),
            (
                "1,\"a\nb,2\nc,3",
                Some(b','),
                &[(1, "! a quote is not closed"), (2, "b,2"), (3, "c,3")],
            ),
            ("x\n1,\"a", Some(b','), &[(1, "x"), (2, "! a quote is not closed")]),
        ] {
            for piece in [1, 2, 3, 7, 1000] {
                if piece < 3 && text.starts_with('\u{feff}') {
                    continue; // it is looked for in the first piece, which is longer outside of tests
                }
                assert_eq!(cut(text.as_bytes(), piece, delimiter), expected(rows), "{text:?}");
            }
        }
    }

    #[test]
    fn a_pack_is_one_row_in_however_many_lines_it_is_written() {
        let open = "! a bracket is not closed";
        for (text, rows) in [
            ("[1]\n{\"a\":2}\r\n[3]", &[(1, "[1]"), (2, "{\"a\":2}"), (3, "[3]")][..]),
            (
                "[\n  {\"n\": 1},\n\n  {}\n]\n[2]\n",
                &[(1, "[\n  {\"n\": 1},\n\n  {}\n]"), (6, "[2]")],
            ),
            ("\u{feff}[\r\n1\r\n]\r\n", &[(1, "[\r\n1\r\n]")]),
            // Brackets and quotes within texts are none.
            ("{\"]}\\\"[\":\n\"}\\\\\"}\n1\n", &[(1, "{\"]}\\\"[\":\n\"}\\\\\"}"), (3, "1")]),
            // An open bracket costs its line alone; a text ends with its line.
            ("[{\"v\":1\n[2]\n[3]", &[(1, open), (2, "[2]"), (3, "[3]")]),
            ("{\"v\n[2]\n", &[(1, open), (2, "[2]")]),
            ("]\n[2]\n", &[(1, "]"), (2, "[2]")]),
        ] {
            for piece in [1, 2, 3, 7, 1000] {
                if piece < 3 && text.starts_with('\u{feff}') {
                    continue; // it is looked for in the first piece, which is longer outside of tests
                }
                let mut json = Rows::new();
                json.read_json();
                assert_eq!(cut_by(json, text.as_bytes(), piece), expected(rows), "{text:?}");
            }
        }
    }

    #[test]
    fn a_row_that_is_too_long_costs_its_line_alone() {
        let long = "x".repeat(ROW_BYTES_MAX + 1);
        let at_bound = "x".repeat(ROW_BYTES_MAX);
        let fault = format!("! {}", RowFault::TooLong);
        for delimiter in [None, Some(b',')] {
            for piece in [1000, 100_000, usize::MAX] {
                let text = format!("a\n{long}\nb\n{long}");
                let found = cut(text.as_bytes(), piece, delimiter);
                assert_eq!(found, expected(&[(1, "a"), (2, &fault), (3, "b"), (4, &fault)]));
                let found = cut(at_bound.as_bytes(), piece, delimiter);
                assert_eq!(found, expected(&[(1, &at_bound)]));
            }
        }
        // A quote that is not closed does not take the rest of the trace with it.
        let lines = "1,2\n".repeat(ROW_BYTES_MAX / 4 + 1);
        let found = cut(format!("\"a\n{lines}").as_bytes(), 100_000, Some(b','));
        assert_eq!(found.len(), ROW_BYTES_MAX / 4 + 2);
        assert_eq!(found[0], (1, "! a quote is not closed".to_owned()));
        assert_eq!(found[1], (2, "1,2".to_owned()));
        assert_eq!(found.last(), Some(&(ROW_BYTES_MAX as u64 / 4 + 2, "1,2".to_owned())));
    }
}
