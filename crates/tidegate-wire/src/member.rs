//! Records by which the members of a fabric know of each other, of their clients' filters, and of what else all are to know.
//!
//! ```text
//!  MemberDigest: whose records this node has, and of which version ─────▶ on a new link, and of now and then
//!         ◀───────────────────────────────── SharedPart: a record that the other lacks, whole or in parts
//!  Interests: filters that clients here have, since the last ───────────▶
//!         ◀───────────────────────────── InterestsHeld: messages for them come from now on
//! ```
//!
//! A [`SharedPart`] carries bytes that were sealed where they were made: a member that relays them cannot change them. [`MemberRecord`]
//! and [`MemberCameras`] are what such bytes say.

use bytes::{BufMut, Bytes, BytesMut};
use tidegate_message::{CameraName, GeoPoint};

use crate::{
    code::{DecodeError, Field, Input, choice, fields},
    hello::NodeId,
    limits::{
        ABSENCES_MAX, ADDRESSES_MAX, CAMERAS_MAX, DIGEST_ENTRIES_MAX, FILTERS_MAX, SEAL_BYTES_MAX,
    },
};

/// The subject of a record that all members share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedKind {
    /// A member, by itself: [`MemberRecord`].
    Member,
    /// The cameras that are at a member: [`MemberCameras`].
    Cameras,
    /// The revoked certificates of an authority, as it signed them (RFC 5280, DER).
    Revocations,
}

choice!(SharedKind { Member = 1, Cameras = 2, Revocations = 3 });

/// A record that all members share: of which node, or of which authority, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedKey {
    /// The member; of [`SharedKind::Revocations`] the hash of the authority's key.
    pub of: NodeId,
    /// The subject.
    pub kind: SharedKind,
}

/// A record that the sender has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestEntry {
    /// Which one.
    pub key: SharedKey,
    /// Its version; of two the higher is the newer.
    pub version: u64,
}

/// The records that the sender has, all of them or a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberDigest {
    /// A hash of all that the sender has, the same at any two nodes that have the same.
    pub hash: u64,
    /// Whether the sender lists its records, in this digest and those that follow it. Otherwise it gives the hash alone.
    pub lists: bool,
    /// Whether a further part of the list follows.
    pub more: bool,
    /// The records, at most [`DIGEST_ENTRIES_MAX`] in each part.
    pub entries: Vec<DigestEntry>,
}

/// A record that all members share, or a part of it: parts follow each other, each with where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPart {
    /// Which record.
    pub key: SharedKey,
    /// Its version.
    pub version: u64,
    /// Where the part begins.
    pub offset: u32,
    /// Whether a further part follows.
    pub more: bool,
    /// The part, at most [`CRITICAL_PART_BYTES_MAX`](crate::limits::CRITICAL_PART_BYTES_MAX) bytes.
    pub bytes: Bytes,
}

/// Bytes with the signature of the member that wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The certificate of the member (DER), at most [`SEAL_BYTES_MAX`] bytes: no other node need have met it.
    pub certificate: Bytes,
    /// The signature of `bytes` by the key of the certificate, at most [`SEAL_BYTES_MAX`] bytes.
    pub signature: Bytes,
    /// The bytes that were signed: the encoding of a [`MemberRecord`] or [`MemberCameras`].
    pub bytes: Bytes,
}

/// A member of the fabric, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// Which member; the hash of its key.
    pub node: NodeId,
    /// Its version: raised with each change.
    pub version: u64,
    /// Its name, as in its certificate.
    pub name: String,
    /// Drawn by chance whenever the member may have lost something of what it held.
    pub start: u64,
    /// Raised by the member whenever others have lost it, or it has a new start.
    pub number: u64,
    /// Whether it has left by its own word.
    pub has_left: bool,
    /// The minor version of the link that it speaks.
    pub minor: u8,
    /// The version of the algorithm by which it computes places.
    pub algorithm: u8,
    /// Where other members dial, host and port each, at most [`ADDRESSES_MAX`].
    pub addresses: Vec<String>,
    /// Where applications find its API, host and port each, at most [`ADDRESSES_MAX`].
    pub api_addresses: Vec<String>,
    /// Where it is.
    pub position: Option<GeoPoint>,
    /// Whether it moves: then it owns nothing by its place.
    pub is_mobile: bool,
    /// Nodes of one zone fail together.
    pub zone: String,
    /// Its share of what members own, in hundredths of that of a usual one.
    pub weight: u16,
    /// When it was written, by its own clock, in seconds since 1970: for people, and for which of the members that are gone is forgotten first.
    pub written: u64,
    /// The members that it misses, at most [`ABSENCES_MAX`].
    pub absences: Vec<Absence>,
    /// The name of the member that relays its messages; empty for one that exchanges them with each other member itself, and in records of
    /// the first form.
    pub via: String,
}

/// Word of a member that it misses another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Absence {
    /// Which one.
    pub node: NodeId,
    /// Its number: at a higher one it was there again.
    pub number: u64,
    /// How long, and on whose word.
    pub kind: AbsenceKind,
}

/// How a member is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AbsenceKind {
    /// Its link ended.
    Doubted,
    /// It did not come back in time. Two such words count.
    Lost,
    /// The same, by the only other member: its word alone counts.
    LostByOnly,
    /// A person has forgotten it: that word alone counts.
    Forgotten,
}

choice!(AbsenceKind { Doubted = 1, Lost = 2, LostByOnly = 3, Forgotten = 4 });

/// The cameras that are at a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberCameras {
    /// Which member.
    pub node: NodeId,
    /// The version of this list.
    pub version: u64,
    /// Their names, at most [`CAMERAS_MAX`].
    pub cameras: Vec<CameraName>,
}

/// The filters of the sender's clients: a change, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interests {
    /// Counts the changes on this link: [`InterestsHeld`] names it.
    pub generation: u64,
    /// Whether these are all: those of before are over.
    pub is_first: bool,
    /// Whether a further part of this change follows.
    pub more: bool,
    /// Filters that are new.
    pub added: Vec<String>,
    /// Filters that are over.
    pub removed: Vec<String>,
}

/// Says that messages are sent for all filters up to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterestsHeld {
    /// Which change.
    pub generation: u64,
}

fields!(SharedKey { of, kind });
fields!(DigestEntry { key, version });
fields!(SharedPart { key, version, offset, more, bytes });
fields!(Absence { node, number, kind });
fields!(InterestsHeld { generation });

/// A list of at most `limit` values, the number of them first.
pub(crate) fn put_list<T: Field>(values: &[T], limit: usize, out: &mut BytesMut) {
    let values = &values[..values.len().min(limit)];
    u16::try_from(values.len()).expect("limits of lists are below 65,536").put(out);
    values.iter().for_each(|value| value.put(out));
}

pub(crate) fn take_list<T: Field>(
    input: &mut Input<'_>,
    limit: usize,
) -> Result<Vec<T>, DecodeError> {
    let count = usize::from(u16::take(input)?);
    if count > limit {
        let (count, limit) = (count as u64, limit as u64);
        return Err(DecodeError::TooLong { field: input.field, count, limit });
    }
    // Not with room for all at once: a record that ends early has no claim to it.
    let mut values = Vec::new();
    for _ in 0..count {
        values.push(T::take(input)?);
    }
    Ok(values)
}

impl Field for MemberDigest {
    fn put(&self, out: &mut BytesMut) {
        self.hash.put(out);
        self.lists.put(out);
        self.more.put(out);
        put_list(&self.entries, DIGEST_ENTRIES_MAX, out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let (hash, lists) = (input.field("hash")?, input.field("lists")?);
        let more = input.field("more")?;
        input.field = "entries";
        Ok(Self { hash, lists, more, entries: take_list(input, DIGEST_ENTRIES_MAX)? })
    }
}

impl Field for Interests {
    fn put(&self, out: &mut BytesMut) {
        self.generation.put(out);
        self.is_first.put(out);
        self.more.put(out);
        put_list(&self.added, FILTERS_MAX, out);
        put_list(&self.removed, FILTERS_MAX, out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let (generation, is_first) = (input.field("generation")?, input.field("is_first")?);
        let more = input.field("more")?;
        input.field = "added";
        let added = take_list(input, FILTERS_MAX)?;
        input.field = "removed";
        Ok(Self { generation, is_first, more, added, removed: take_list(input, FILTERS_MAX)? })
    }
}

impl Interests {
    /// Whether there is room for a filter in addition to those that there are; one of more than
    /// [`TEXT_BYTES_MAX`](crate::limits::TEXT_BYTES_MAX) bytes never finds room.
    pub fn has_room(&self, filter: &str) -> bool {
        let bytes = |filters: &[String]| filters.iter().map(|one| one.len() + 2).sum::<usize>();
        let count = self.added.len() + self.removed.len();
        count < FILTERS_MAX
            && filter.len() <= crate::limits::TEXT_BYTES_MAX
            && bytes(&self.added) + bytes(&self.removed) + filter.len() + 2
                <= crate::limits::CRITICAL_PART_BYTES_MAX
    }
}

impl Field for GeoPoint {
    fn put(&self, out: &mut BytesMut) {
        out.put_i32_le(self.latitude_steps());
        out.put_i32_le(self.longitude_steps());
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let [latitude, longitude] =
            [i32::from_le_bytes(input.array()?), i32::from_le_bytes(input.array()?)];
        Self::from_steps(latitude, longitude)
            .filter(|point| {
                (point.latitude_steps(), point.longitude_steps()) == (latitude, longitude)
            })
            .ok_or_else(|| {
                DecodeError::invalid(input.field, format!("{latitude}, {longitude} is no position"))
            })
    }
}

/// The version of the encodings below: a later one may append fields.
const FORM: u8 = 1;
/// The version of [`MemberRecord`], which has `via` since.
const MEMBER_FORM: u8 = 2;

fn take_form(input: &mut Input<'_>) -> Result<u8, DecodeError> {
    match input.field::<u8>("form")? {
        0 => Err(DecodeError::invalid("form", 0)),
        form => Ok(form),
    }
}

impl MemberRecord {
    /// The encoding, which is sealed.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(256);
        MEMBER_FORM.put(&mut out);
        self.node.put(&mut out);
        self.version.put(&mut out);
        self.name.put(&mut out);
        self.start.put(&mut out);
        self.number.put(&mut out);
        self.has_left.put(&mut out);
        self.minor.put(&mut out);
        self.algorithm.put(&mut out);
        put_list(&self.addresses, ADDRESSES_MAX, &mut out);
        put_list(&self.api_addresses, ADDRESSES_MAX, &mut out);
        self.position.put(&mut out);
        self.is_mobile.put(&mut out);
        self.zone.put(&mut out);
        self.weight.put(&mut out);
        self.written.put(&mut out);
        put_list(&self.absences, ABSENCES_MAX, &mut out);
        self.via.put(&mut out);
        out.freeze()
    }

    /// The record that `bytes` are; fields that a later version appended are passed over.
    ///
    /// # Errors
    /// [`DecodeError`], which names the field.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let input = &mut Input::new(bytes);
        let form = take_form(input)?;
        let (node, version) = (input.field("node")?, input.field("version")?);
        let (name, start) = (input.field("name")?, input.field("start")?);
        let (number, has_left) = (input.field("number")?, input.field("has_left")?);
        let (minor, algorithm) = (input.field("minor")?, input.field("algorithm")?);
        input.field = "addresses";
        let addresses = take_list(input, ADDRESSES_MAX)?;
        input.field = "api_addresses";
        let api_addresses = take_list(input, ADDRESSES_MAX)?;
        let (position, is_mobile) = (input.field("position")?, input.field("is_mobile")?);
        let (zone, weight) = (input.field("zone")?, input.field("weight")?);
        let written = input.field("written")?;
        input.field = "absences";
        let absences = take_list(input, ABSENCES_MAX)?;
        let via = if form < MEMBER_FORM { String::new() } else { input.field("via")? };
        Ok(Self {
            node,
            version,
            name,
            start,
            number,
            has_left,
            minor,
            algorithm,
            addresses,
            api_addresses,
            position,
            is_mobile,
            zone,
            weight,
            written,
            absences,
            via,
        })
    }
}

impl MemberCameras {
    /// The encoding, which is sealed.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        FORM.put(&mut out);
        self.node.put(&mut out);
        self.version.put(&mut out);
        put_list(&self.cameras, CAMERAS_MAX, &mut out);
        out.freeze()
    }

    /// The list that `bytes` are.
    ///
    /// # Errors
    /// [`DecodeError`], which names the field.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let input = &mut Input::new(bytes);
        take_form(input)?;
        let (node, version) = (input.field("node")?, input.field("version")?);
        input.field = "cameras";
        Ok(Self { node, version, cameras: take_list(input, CAMERAS_MAX)? })
    }
}

impl Sealed {
    /// The encoding, which members share.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(
            self.certificate.len() + self.signature.len() + self.bytes.len() + 4,
        );
        for part in [&self.certificate, &self.signature] {
            out.put_u16_le(u16::try_from(part.len()).unwrap_or(0));
            out.put_slice(part);
        }
        out.put_slice(&self.bytes);
        out.freeze()
    }

    /// The sealed bytes that `bytes` are; whether the seal is right is not looked at.
    ///
    /// # Errors
    /// [`DecodeError`], which names the field.
    pub fn of_bytes(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut input = Input::new(bytes);
        let mut at = 0;
        let mut part = |name: &'static str| {
            let count = usize::from(input.field::<u16>(name)?);
            if count > SEAL_BYTES_MAX {
                let (count, limit) = (count as u64, SEAL_BYTES_MAX as u64);
                return Err(DecodeError::TooLong { field: name, count, limit });
            }
            input.bytes(count)?;
            at += 2 + count;
            Ok(bytes.slice(at - count..at))
        };
        let (certificate, signature) = (part("certificate")?, part("signature")?);
        Ok(Self { certificate, signature, bytes: bytes.slice(at..) })
    }
}
