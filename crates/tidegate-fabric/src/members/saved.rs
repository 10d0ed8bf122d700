//! The state of a member that outlives its process, as two files.
//!
//! ```text
//!  own      form u8 · start u64 · number u64 · counter u64 · has_left u8 · words u16 · (node [32] · number u64 · kind u8)*
//!  records  form u8 · (kind u8 · of [32] · version u64 · bytes u32 · …)*            numbers are little endian
//! ```
//!
//! The records are as they were sealed, so that they are checked like any that a peer sends. Files have no checksum of their own: their
//! writer adds one, as it does for its other files.

use bytes::{BufMut, Bytes, BytesMut};
use tidegate_message::{Reader, Unreadable};
use tidegate_wire::{Absence, AbsenceKind, NodeId, SharedKey, SharedKind, limits::ABSENCES_MAX};

const FORM: u8 = 1;

/// The state of a former process of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    pub(super) own: SavedOwn,
    pub(super) records: Vec<SavedRecord>,
}

/// All that a member must not lose of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedOwn {
    pub(super) start: u64,
    pub(super) number: u64,
    /// The version of the last record that it wrote, of any kind.
    pub(super) version: u64,
    pub(super) has_left: bool,
    /// Its words about members that are lost or forgotten, oldest first.
    pub(super) words: Vec<Absence>,
}

/// A record of any member, or a list of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedRecord {
    pub(super) key: SharedKey,
    pub(super) version: u64,
    pub(super) bytes: Bytes,
}

/// A state that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// Names it to [`Members::handle_saved`](super::Members::handle_saved).
    pub ticket: u64,
    /// The file of the member itself: fewer than 11 kB.
    pub own: Bytes,
    /// The file of all records, if it is to be written too: some 900 bytes a member. Its loss costs nothing but the addresses of members
    /// that no seed knows of.
    pub records: Option<Bytes>,
}

impl Saved {
    /// The state that the files are, the one of the records if there is one.
    ///
    /// # Errors
    /// [`SavedError`]: the node is to begin without that file, and then with a new start if it is its own one.
    pub fn of_bytes(own: &[u8], records: Option<&[u8]>) -> Result<Self, SavedError> {
        let own = own_of(own).map_err(|cause| cause.of("the file of the member itself"))?;
        let records = match records {
            Some(records) => {
                records_of(records).map_err(|cause| cause.of("the file of the records"))?
            }
            None => Vec::new(),
        };
        Ok(Self { own, records })
    }

    /// Members whose records it has, the node itself not among them.
    pub fn members(&self) -> usize {
        self.records.iter().filter(|record| record.key.kind == SharedKind::Member).count()
    }

    /// Whether the node has left its fabric.
    pub fn has_left(&self) -> bool {
        self.own.has_left
    }
}

impl SavedOwn {
    pub(super) fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(32 + self.words.len() * 41);
        out.put_u8(FORM);
        out.put_u64_le(self.start);
        out.put_u64_le(self.number);
        out.put_u64_le(self.version);
        out.put_u8(u8::from(self.has_left));
        let words = &self.words[..self.words.len().min(ABSENCES_MAX)];
        out.put_u16_le(u16::try_from(words.len()).expect("they are at most ABSENCES_MAX"));
        for Absence { node, number, kind } in words {
            out.put_slice(&node.0);
            out.put_u64_le(*number);
            out.put_u8(match kind {
                // A doubt ends with the process.
                AbsenceKind::Doubted | AbsenceKind::Lost => 2,
                AbsenceKind::LostByOnly => 3,
                AbsenceKind::Forgotten => 4,
            });
        }
        out.freeze()
    }
}

/// The file of those records.
pub(super) fn records_to_bytes<'a>(
    records: impl Iterator<Item = (SharedKey, u64, &'a Bytes)>,
) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(FORM);
    for (key, version, bytes) in records {
        out.put_u8(kind_byte(key.kind));
        out.put_slice(&key.of.0);
        out.put_u64_le(version);
        out.put_u32_le(u32::try_from(bytes.len()).expect("records are at most SHARED_BYTES_MAX"));
        out.put_slice(bytes);
    }
    out.freeze()
}

fn own_of(bytes: &[u8]) -> Result<SavedOwn, Damage> {
    let input = &mut Reader::new(bytes);
    form(input)?;
    let (start, number) = (input.u64_le("start")?, input.u64_le("number")?);
    let (version, has_left) = (input.u64_le("version")?, input.u8("has_left")? != 0);
    let count = usize::from(input.u16_le("words")?);
    let mut words = Vec::new();
    for _ in 0..count {
        let (node, number) = (NodeId(input.array("node")?), input.u64_le("number")?);
        let kind = match input.u8("kind")? {
            2 => AbsenceKind::Lost,
            3 => AbsenceKind::LostByOnly,
            4 => AbsenceKind::Forgotten,
            found => return Err(Damage::Value { field: "kind", found }),
        };
        words.push(Absence { node, number, kind });
    }
    Ok(SavedOwn { start, number, version, has_left, words })
}

fn records_of(bytes: &[u8]) -> Result<Vec<SavedRecord>, Damage> {
    let input = &mut Reader::new(bytes);
    form(input)?;
    let mut records = Vec::new();
    while !input.is_empty() {
        let kind = match input.u8("kind")? {
            1 => SharedKind::Member,
            2 => SharedKind::Cameras,
            3 => SharedKind::Revocations,
            found => return Err(Damage::Value { field: "kind", found }),
        };
        let of = NodeId(input.array("of")?);
        let (version, count) = (input.u64_le("version")?, input.u32_le("bytes")?);
        let bytes = Bytes::copy_from_slice(input.bytes(count as usize, "record")?);
        records.push(SavedRecord { key: SharedKey { of, kind }, version, bytes });
    }
    Ok(records)
}

fn form(input: &mut Reader<'_>) -> Result<(), Damage> {
    match input.u8("form")? {
        FORM => Ok(()),
        found => Err(Damage::Value { field: "form", found }),
    }
}

fn kind_byte(kind: SharedKind) -> u8 {
    match kind {
        SharedKind::Member => 1,
        SharedKind::Cameras => 2,
        SharedKind::Revocations => 3,
    }
}

/// Why a file is not the state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// It ends too early.
    #[error("{file} ends within {field}: the node begins without it")]
    Short {
        /// Which file.
        file: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field has a value that it cannot have.
    #[error(
        "{file} has {field} {found}, which this version does not know: the node begins without it"
    )]
    Value {
        /// Which file.
        file: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        found: u8,
    },
}

/// The same, before it is known of which file.
enum Damage {
    Short(&'static str),
    Value { field: &'static str, found: u8 },
}

impl Damage {
    fn of(self, file: &'static str) -> SavedError {
        match self {
            Self::Short(field) => SavedError::Short { file, field },
            Self::Value { field, found } => SavedError::Value { file, field, found },
        }
    }
}

impl From<Unreadable> for Damage {
    fn from(Unreadable { field }: Unreadable) -> Self {
        Self::Short(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_comes_back_and_each_cut_of_it_is_an_error() {
        let word = |byte, kind| Absence { node: NodeId([byte; 32]), number: 7, kind };
        let words = vec![word(1, AbsenceKind::Lost), word(2, AbsenceKind::Forgotten)];
        let own = SavedOwn { start: 3, number: 4, version: 5 << 16, has_left: true, words };
        let key = |of, kind| SharedKey { of: NodeId([of; 32]), kind };
        let record = |key, version| SavedRecord { key, version, bytes: Bytes::from_static(b"abc") };
        let records = vec![
            record(key(1, SharedKind::Member), 1 << 16),
            record(key(1, SharedKind::Cameras), 2),
            record(key(9, SharedKind::Revocations), 3),
        ];
        let own_bytes = own.to_bytes();
        let records_bytes =
            records_to_bytes(records.iter().map(|one| (one.key, one.version, &one.bytes)));
        let saved = Saved { own, records };
        assert_eq!(Saved::of_bytes(&own_bytes, Some(&records_bytes)), Ok(saved));
        for cut in 0..own_bytes.len() {
            assert!(Saved::of_bytes(&own_bytes[..cut], None).is_err(), "{cut} bytes");
        }
        // A cut between two records looks whole.
        for cut in (2..records_bytes.len()).filter(|cut| (cut - 1) % 48 != 0) {
            assert!(
                Saved::of_bytes(&own_bytes, Some(&records_bytes[..cut])).is_err(),
                "{cut} bytes"
            );
        }
    }

    #[test]
    fn unknown_values_are_named() {
        let error = Saved::of_bytes(&[9; 64], None).expect_err("form 9 is not known");
        assert!(error.to_string().contains("has form 9"), "{error}");
    }
}
