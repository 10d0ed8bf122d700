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
    /// The line of names that `columns` was made from, its end included, where there is one; empty before the first.
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
            start = self.learn(payload, cells)?;
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
        let length = self.plain_length(rest);
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
        let (next, ended) = self.unquote(payload, at, &mut cells.batch.scratch)?;
        if field != NONE {
            let bytes = cells.batch.scratch.len() - start;
            cells.put(usize::from(field), Value::Scratch(start, bytes));
        }
        Ok((next, ended))
    }

    /// Bytes up to the end of a column that is not in quotes.
    fn plain_length(&self, rest: &[u8]) -> usize {
        let is_end = |byte: &u8| *byte == self.delimiter || *byte == b'\n';
        rest.iter().position(is_end).unwrap_or(rest.len())
    }

    /// Puts a column in quotes, which begins at `at`, into the scratch without them; returns as [`Csv::column`].
    fn unquote(
        &self,
        payload: &[u8],
        at: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<(usize, bool), Reason> {
        let mut position = at + 1;
        loop {
            let end = position + find(&payload[position..], b'"').ok_or(Reason::Format)?;
            scratch.extend_from_slice(&payload[position..end]);
            position = end + 1;
            if payload.get(position) != Some(&b'"') {
                break;
            }
            scratch.push(b'"');
            position += 1;
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

    /// Takes the order of columns from the line of names, unless it is the same as before; returns where it ends. A name in quotes is as
    /// it stands between them, another without the blanks around it.
    fn learn(&mut self, payload: &[u8], cells: &mut Cells<'_, '_>) -> Result<usize, Reason> {
        if let Some(known) = self.header.as_ref().filter(|known| !known.is_empty())
            && payload.starts_with(known)
        {
            return Ok(known.len());
        }
        // Half a line is dropped, should it turn out not to be one.
        self.header.iter_mut().for_each(Vec::clear);
        self.columns.clear();
        // Lent, since names are looked for while they stand in it.
        let mut scratch = std::mem::take(&mut cells.batch.scratch);
        let end = self.learn_names(payload, cells, &mut scratch);
        cells.batch.scratch = scratch;
        let end = end?;
        if let Some(known) = &mut self.header {
            known.extend_from_slice(&payload[..end]);
        }
        Ok(end)
    }

    fn learn_names(
        &mut self,
        payload: &[u8],
        cells: &mut Cells<'_, '_>,
        scratch: &mut Vec<u8>,
    ) -> Result<usize, Reason> {
        let mut at = 0;
        loop {
            let rest = &payload[at..];
            let (name, next, ended) = if rest.first() == Some(&b'"') {
                let start = scratch.len();
                let (next, ended) = self.unquote(payload, at, scratch)?;
                (&scratch[start..], next, ended)
            } else {
                let length = self.plain_length(rest);
                let ended = rest.get(length) != Some(&self.delimiter);
                (rest[..length].trim_ascii(), at + (length + 1).min(rest.len()), ended)
            };
            self.columns.push(cells.find(b"", name).map_or(NONE, |index| index as u16));
            if ended {
                // A line of names alone is no row.
                let is_line = payload[..next].ends_with(b"\n");
                return if is_line { Ok(next) } else { Err(Reason::Format) };
            }
            at = next;
        }
    }
}

/// Checks the bytes after the row: only ends of lines.
fn after_row(rest: &[u8]) -> Result<(), Reason> {
    if rest.iter().all(|byte| matches!(byte, b'\r' | b'\n')) { Ok(()) } else { Err(Reason::Rows) }
}

fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    bytes.iter().position(|byte| *byte == wanted)
}
