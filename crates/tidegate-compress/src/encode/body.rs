//! The body of a batch that is being filled: records, and in columns their masks and tokens.

use crate::varint;

/// Kinds of records that are not ordinary messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Special {
    /// Gives the number a topic: `varint` bytes in common with the topic defined before in this batch, `varint` length and the rest of
    /// the topic; then as [`Special::Redefine`].
    Define = 0,
    /// `varint` length and attributes, then the whole payload: see [`Encoder`]'s `put_payload`.
    Redefine = 1,
    /// The number has no topic any more.
    Undefine = 2,
    /// `varint` length and a payload that is not kept.
    Verbatim = 3,
    /// A schema: `varint` number, kind, `varint` fields, what the kind needs. It starts over.
    Schema = 4,
    /// The slot of a field: `varint` number of the schema, field, predictor, kind of number, decimals.
    Slot = 5,
}

#[derive(Debug, Default)]
pub(super) struct Body {
    /// Records; in rows, their masks and tokens as well.
    pub(super) records: Vec<u8>,
    pub(super) masks: Vec<u8>,
    pub(super) columns: Vec<Vec<u8>>,
    /// Bytes in `masks` and `columns`.
    pub(super) column_bytes: usize,
    pub(super) whole: Vec<u8>,
}

impl Body {
    #[inline]
    pub(super) fn put_row(
        &mut self,
        mask: &[u8],
        tokens: &[u8],
        ends: &[(u8, u32)],
        columns: bool,
    ) {
        if !columns {
            self.records.extend_from_slice(mask);
            self.records.extend_from_slice(tokens);
            return;
        }
        self.masks.extend_from_slice(mask);
        let mut start = 0;
        for &(slot, end) in ends {
            let slot = usize::from(slot);
            if self.columns.len() <= slot {
                self.columns.resize_with(slot + 1, Vec::new);
            }
            self.columns[slot].extend_from_slice(&tokens[start..end as usize]);
            start = end as usize;
        }
        self.column_bytes += mask.len() + tokens.len();
    }

    /// All of it, in columns.
    pub(super) fn columns(&mut self) -> &[u8] {
        self.whole.clear();
        let used =
            self.columns.iter().rposition(|column| !column.is_empty()).map_or(0, |last| last + 1);
        varint::put(&mut self.whole, used as u64);
        for column in [&self.records, &self.masks].into_iter().chain(&self.columns[..used]) {
            varint::put(&mut self.whole, column.len() as u64);
        }
        for column in [&self.records, &self.masks].into_iter().chain(&self.columns[..used]) {
            self.whole.extend_from_slice(column);
        }
        &self.whole
    }

    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.masks.clear();
        for column in &mut self.columns {
            column.clear();
        }
        self.column_bytes = 0;
    }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
