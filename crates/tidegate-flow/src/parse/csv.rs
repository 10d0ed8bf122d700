//! Rows of values with a delimiter between them (RFC 4180), one row to a payload, a line of names before it or not.

use super::{Cells, Value, place_of};
use crate::{
    bad::Reason,
    batch::Column,
    number,
    spec::{FieldKind, FieldSpec},
};

/// Where each field stands.
#[derive(Debug)]
pub(super) struct Csv {
    delimiter: u8,
    /// For each column the field that it is, or `NONE`.
    columns: Vec<u16>,
    /// The line of names that `columns` was made from, where there is one.
    header: Option<Vec<u8>>,
}

const NONE: u16 = u16::MAX;

impl Csv {
    pub(super) fn new(specs: &[FieldSpec], delimiter: u8, header: bool) -> Self {
        let mut columns = Vec::new();
        if !header {
            for (index, spec) in specs.iter().enumerate() {
                let column = spec.column.map_or(index, |column| column as usize);
                if columns.len() <= column {
                    columns.resize(column + 1, NONE);
                }
                columns[column] = index as u16;
            }
        }
        Self { delimiter, columns, header: header.then(Vec::new) }
    }

    pub(super) fn read(&mut self, payload: &[u8], cells: &mut Cells<'_, '_>) -> Result<(), Reason> {
        let mut start = 0;
        if self.header.is_some() {
            let end = find(payload, b'\n').ok_or(Reason::Format)?;
            self.learn(&payload[..end], cells);
            start = end + 1;
        }
        let mut at = start;
        for &field in &self.columns {
            let (next, ended) = self.column(payload, at, field, cells)?;
            at = next;
            if ended {
                return after_row(&payload[at..]);
            }
        }
        // Columns beyond those that are read may be anything, in one row.
        loop {
            let (next, ended) = self.column(payload, at, NONE, cells)?;
            at = next;
            if ended {
                return after_row(&payload[at..]);
            }
        }
    }

    /// Reads one column from `at` on, and returns where the next one begins, and whether the row ended before it.
    #[inline]
    fn column(
        &self,
        payload: &[u8],
        at: usize,
        field: u16,
        cells: &mut Cells<'_, '_>,
    ) -> Result<(usize, bool), Reason> {
        let rest = &payload[at..];
        let index = usize::from(field);
        if field != NONE {
            // A plain number ends with its last digit, and need not be looked for twice.
            let known = &cells.fields[index];
            if let Column::Number(column) = known.column
                && matches!(known.kind, FieldKind::Number)
                && let Some((value, bytes)) = number::prefix(rest)
                && matches!(rest.get(bytes), Some(byte) if *byte == self.delimiter)
            {
                let value = value * known.scale;
                if value.is_finite() {
                    cells.batch.numbers[column][cells.row] = value;
                    cells.set[index / 64] |= 1 << (index % 64);
                    return Ok((at + bytes + 1, false));
                }
            }
        }
        if rest.first() == Some(&b'"') {
            return self.quoted(payload, at, field, cells);
        }
        let length = rest
            .iter()
            .position(|byte| *byte == self.delimiter || *byte == b'\n')
            .unwrap_or(rest.len());
        let ended = rest.get(length) != Some(&self.delimiter);
        if field != NONE {
            let range = at..at + rest[..length].trim_ascii_end().len();
            let value = if range.is_empty() { Value::Missing } else { place_of(payload, range) };
            cells.put(index, value);
        }
        Ok((at + (length + 1).min(rest.len()), ended))
    }

    /// A column in quotes, in which a quote is written twice.
    fn quoted(
        &self,
        payload: &[u8],
        at: usize,
        field: u16,
        cells: &mut Cells<'_, '_>,
    ) -> Result<(usize, bool), Reason> {
        let start = cells.batch.scratch.len();
        let mut position = at + 1;
        loop {
            let end = position + find(&payload[position..], b'"').ok_or(Reason::Format)?;
            cells.batch.scratch.extend_from_slice(&payload[position..end]);
            position = end + 1;
            if payload.get(position) != Some(&b'"') {
                break;
            }
            cells.batch.scratch.push(b'"');
            position += 1;
        }
        if field != NONE {
            let bytes = cells.batch.scratch.len() - start;
            cells.put(usize::from(field), Value::Scratch(start, bytes));
        }
        match &payload[position..] {
            [] => Ok((position, true)),
            [byte, ..] if *byte == self.delimiter => Ok((position + 1, false)),
            [b'\n', ..] => Ok((position + 1, true)),
            [b'\r', b'\n', ..] => Ok((position + 2, true)),
            [b'\r'] => Ok((position + 1, true)),
            _ => Err(Reason::Format),
        }
    }

    /// Takes the order of columns from a line of names, unless it is the same as before.
    fn learn(&mut self, line: &[u8], cells: &mut Cells<'_, '_>) {
        let Some(known) = &mut self.header else { return };
        if *known == line && !self.columns.is_empty() {
            return;
        }
        known.clear();
        known.extend_from_slice(line);
        self.columns.clear();
        for name in line.split(|byte| *byte == self.delimiter) {
            let name = name.trim_ascii();
            let name = name.strip_prefix(b"\"").and_then(|n| n.strip_suffix(b"\"")).unwrap_or(name);
            self.columns.push(cells.find(b"", name).map_or(NONE, |index| index as u16));
        }
    }
}

/// What may stand behind the row: ends of lines.
fn after_row(rest: &[u8]) -> Result<(), Reason> {
    if rest.iter().all(|byte| matches!(byte, b'\r' | b'\n')) { Ok(()) } else { Err(Reason::Rows) }
}

fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    bytes.iter().position(|byte| *byte == wanted)
}
