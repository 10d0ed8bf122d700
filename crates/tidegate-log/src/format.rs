//! The bytes of a segment file, to and from numbers.
//!
//! Always true: decoding takes any bytes without a panic; every decoded value is verified, [`RecordHead::decode`] aside.
#![doc = include_str!("../../../docs/src/log-format.md")]

use bytes::{Buf, BufMut, Bytes};
use tidegate_message::{Instant, Position};

use crate::{
    entry::{SegmentId, Slot},
    seal::{MAC_BYTES, SEAL_BYTES, SegmentKey, WRAP_BYTES},
};

pub(crate) const HEADER_BYTES: usize = 80;
/// Where the checksum of a header is, in all versions.
const HEADER_CRC: usize = 76;
pub(crate) const DATA_START: usize = 4096;
pub(crate) const RECORD_HEAD_BYTES: usize = 32;
pub(crate) const RECORD_ALIGN: usize = 8;
pub(crate) const SLOT_BYTES: usize = 24;
pub(crate) const TRAILER_BYTES: usize = 64;
/// The trailer of a sealed segment, with the MACs before it.
pub(crate) const SEALED_TAIL_BYTES: usize = 2 * MAC_BYTES + TRAILER_BYTES;
/// Where a sealed segment has its key, twice, each in a sector of its own.
pub(crate) const WRAPS: [usize; 2] = [512, 2048];
const _: () = assert!(WRAPS[1] + WRAP_BYTES <= DATA_START);

/// Nothing appends that often; no sum of positions overflows.
const POSITION_MAX: Position = Position(u64::MAX / 2);

const MAJOR: u16 = 1;
const MINOR: u16 = 0;
const FEATURE_SEALED: u32 = 1;
const FEATURES_KNOWN: u32 = FEATURE_SEALED;
const FLAGS_REQUIRED: u32 = 0xffff_0000;
const FLAG_SEALED: u32 = 0x0001_0000;
const MAGIC: &[u8; 8] = b"TGLOGSEG";
const TRAILER_MAGIC: &[u8; 8] = b"TGLOGEND";

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) log_id: u64,
    pub(crate) segment: SegmentId,
    pub(crate) base: Position,
    /// Time of the newest record before the base.
    pub(crate) before: Option<Instant>,
    pub(crate) created: Instant,
    /// The oldest position that the log kept then.
    pub(crate) kept: Position,
    pub(crate) is_sealed: bool,
}

/// Why a header was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// The bytes are no header, or a damaged one.
    Damaged,
    /// It is whole, and of a major version that this program does not know.
    Major(u16),
    /// It is whole, and has features that this program does not know.
    Features(u32),
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = &mut bytes[..];
        put.put_slice(MAGIC);
        put.put_u16_le(MAJOR);
        put.put_u16_le(MINOR);
        put.put_u32_le(if self.is_sealed { FEATURE_SEALED } else { 0 });
        put.put_u32_le(0);
        put.put_u32_le(self.len);
        put.put_u64_le(self.log_id);
        put.put_u64_le(self.segment.0);
        put.put_u64_le(self.base.0);
        put.put_i64_le(self.before.unwrap_or(Instant::MIN).as_nanos());
        put.put_i64_le(self.created.as_nanos());
        put.put_u64_le(self.kept.0);
        put.put_u32_le(DATA_START as u32);
        let crc = crc32c::crc32c(&bytes[..HEADER_CRC]);
        bytes[HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>().ok_or(HeaderError::Damaged)?;
        let mut take = &bytes[MAGIC.len()..];
        let crc = crc32c::crc32c(&bytes[..HEADER_CRC]);
        if !bytes.starts_with(MAGIC) || crc != (&bytes[HEADER_CRC..]).get_u32_le() {
            return Err(HeaderError::Damaged);
        }
        let major = take.get_u16_le();
        if major != MAJOR {
            return Err(HeaderError::Major(major));
        }
        let _minor = take.get_u16_le();
        let features = take.get_u32_le();
        let unknown = features & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(HeaderError::Features(unknown));
        }
        let _optional = take.get_u32_le();
        let len = take.get_u32_le();
        let (log_id, segment, base) =
            (take.get_u64_le(), SegmentId(take.get_u64_le()), Position(take.get_u64_le()));
        let before = Some(take_time(&mut take)).filter(|&before| before != Instant::MIN);
        let (created, kept) = (take_time(&mut take), Position(take.get_u64_le()));
        match take.get_u32_le() {
            start if start == DATA_START as u32 && base <= POSITION_MAX => {
                let is_sealed = features & FEATURE_SEALED != 0;
                Ok(Self { len, log_id, segment, base, before, created, kept, is_sealed })
            }
            _ => Err(HeaderError::Damaged),
        }
    }
}

/// The initial value of the CRC of every record of a segment.
pub(crate) fn seed(log_id: u64, segment: SegmentId) -> u32 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&log_id.to_le_bytes());
    bytes[8..].copy_from_slice(&segment.0.to_le_bytes());
    crc32c::crc32c(&bytes)
}

/// The head of a record, before its meta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) meta_bytes: u32,
    pub(crate) body_bytes: u32,
    pub(crate) position: Position,
    pub(crate) at: Instant,
}

impl RecordHead {
    /// The head of a record with this content, which is meta and body, before a seal if there is one.
    pub(crate) fn encode(
        &self,
        seed: u32,
        seal: Option<&[u8; SEAL_BYTES]>,
        content: &[u8],
    ) -> [u8; RECORD_HEAD_BYTES] {
        let mut bytes = [0; RECORD_HEAD_BYTES];
        bytes[4..].copy_from_slice(&self.authenticated(seal.is_some()));
        let seal = seal.map_or(&[][..], |seal| seal);
        let crc = [&bytes[4..], seal, content]
            .iter()
            .fold(seed, |crc, part| crc32c::crc32c_append(crc, part));
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The head without its checksum.
    pub(crate) fn authenticated(&self, is_sealed: bool) -> [u8; RECORD_HEAD_BYTES - 4] {
        let mut bytes = [0; RECORD_HEAD_BYTES - 4];
        let mut put = &mut bytes[..];
        put.put_u32_le(self.meta_bytes);
        put.put_u32_le(self.body_bytes);
        put.put_u32_le(if is_sealed { FLAG_SEALED } else { 0 });
        put.put_u64_le(self.position.0);
        put.put_i64_le(self.at.as_nanos());
        bytes
    }

    /// Decodes a head, unverified. `None` if it is sealed and should not be or the other way round, a flag is set that has to be
    /// known, or no position is as great.
    pub(crate) fn decode(bytes: &[u8], is_sealed: bool) -> Option<Self> {
        let mut take = &bytes.first_chunk::<RECORD_HEAD_BYTES>()?[..];
        let _crc = take.get_u32_le();
        let (meta_bytes, body_bytes) = (take.get_u32_le(), take.get_u32_le());
        if take.get_u32_le() & FLAGS_REQUIRED != if is_sealed { FLAG_SEALED } else { 0 } {
            return None;
        }
        let (position, at) = (Position(take.get_u64_le()), take_time(&mut take));
        (position <= POSITION_MAX).then_some(Self { meta_bytes, body_bytes, position, at })
    }

    /// Bytes of meta and body.
    pub(crate) fn content_bytes(&self) -> u64 {
        u64::from(self.meta_bytes) + u64::from(self.body_bytes)
    }
}

/// How the records of one segment prove themselves, and its end.
#[derive(Clone)]
pub(crate) struct Proof {
    pub(crate) seed: u32,
    pub(crate) is_sealed: bool,
    /// `None` for a segment in clear text, and for a sealed one of which checksums are all that can be proven.
    pub(crate) key: Option<SegmentKey>,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unproven {
    /// They are none, or a damaged one.
    Damaged,
    /// They were changed on purpose: the checksum holds, and the seal does not.
    Tampered,
}

impl Proof {
    /// Of a segment in clear text.
    pub(crate) fn clear(seed: u32) -> Self {
        Self { seed, is_sealed: false, key: None }
    }

    /// Of a segment that this key has sealed.
    pub(crate) fn sealed(seed: u32, key: SegmentKey) -> Self {
        Self { seed, is_sealed: true, key: Some(key) }
    }

    /// Of a sealed segment whose key is not here: checksums are all that is proven, and nothing can be opened.
    pub(crate) fn unopened(seed: u32) -> Self {
        Self { seed, is_sealed: true, key: None }
    }

    /// Bytes before the meta of a record.
    pub(crate) fn head_bytes(&self) -> usize {
        head_bytes(self.is_sealed)
    }

    /// Bytes after the slots.
    pub(crate) fn tail_bytes(&self) -> usize {
        tail_bytes(self.is_sealed)
    }

    /// The head of a record, unverified.
    pub(crate) fn head(&self, bytes: &[u8]) -> Option<RecordHead> {
        RecordHead::decode(bytes, self.is_sealed)
    }

    /// The record that `bytes` begin with, if it is whole and of this segment.
    pub(crate) fn verify(&self, bytes: &[u8]) -> Result<RecordHead, Unproven> {
        let (head, end) = self.checked(bytes)?;
        self.unsealed(&bytes[..end])?;
        Ok(head)
    }

    /// As [`Proof::verify`], and its meta and body.
    pub(crate) fn open(&self, mut record: Bytes) -> Result<(RecordHead, Bytes), Unproven> {
        let (head, end) = self.checked(&record)?;
        let content = match self.unsealed(&record[..end])? {
            Some(content) => content.into(),
            None => {
                record.truncate(end);
                record.split_off(RECORD_HEAD_BYTES)
            }
        };
        Ok((head, content))
    }

    /// The head of a record whose checksum holds, and where the record ends.
    fn checked(&self, bytes: &[u8]) -> Result<(RecordHead, usize), Unproven> {
        let head = self.head(bytes).ok_or(Unproven::Damaged)?;
        let content = usize::try_from(head.content_bytes()).map_err(|_| Unproven::Damaged)?;
        let end = self.head_bytes().checked_add(content).ok_or(Unproven::Damaged)?;
        let record = bytes.get(..end).ok_or(Unproven::Damaged)?;
        let crc = crc32c::crc32c_append(self.seed, &record[4..]);
        if crc == (&record[..]).get_u32_le() { Ok((head, end)) } else { Err(Unproven::Damaged) }
    }

    /// The clear text of a sealed record.
    fn unsealed(&self, record: &[u8]) -> Result<Option<Vec<u8>>, Unproven> {
        let Some(key) = &self.key else { return Ok(None) };
        let (head, rest) = record.split_at(RECORD_HEAD_BYTES);
        let (seal, content) = rest.split_first_chunk().expect("its length was checked");
        let mut content = content.to_vec();
        if key.open(seal, &head[4..], &mut content) {
            Ok(Some(content))
        } else {
            Err(Unproven::Tampered)
        }
    }

    /// The MAC of slots; none where nothing is sealed.
    pub(crate) fn slots_mac(&self, slots: &[u8]) -> Option<[u8; MAC_BYTES]> {
        self.key.as_ref().map(|key| key.mac(SLOTS, slots))
    }

    /// Whether the MAC behind the slots is theirs.
    pub(crate) fn are_slots(&self, slots: &[u8], mac: &[u8]) -> bool {
        self.key.as_ref().is_none_or(|key| key.is_mac(SLOTS, slots, mac))
    }

    /// The trailer as it is written behind slots and their MAC.
    pub(crate) fn end(&self, trailer: &Trailer) -> Vec<u8> {
        let trailer = trailer.encode(self.seed);
        let mac = self.key.as_ref().map(|key| key.mac(TRAILER, &trailer));
        [mac.as_ref().map_or(&[][..], |mac| mac), &trailer].concat()
    }

    /// The trailer that a file of `len` bytes ends with. `tail` is the end of the file.
    pub(crate) fn trailer(&self, tail: &[u8], len: usize) -> Result<Trailer, Unproven> {
        let damaged = Unproven::Damaged;
        let (rest, bytes) = tail.split_last_chunk::<TRAILER_BYTES>().ok_or(damaged)?;
        let trailer = Trailer::decode(bytes, self.seed, len, self.tail_bytes()).ok_or(damaged)?;
        let Some(key) = &self.key else { return Ok(trailer) };
        let (_, mac) = rest.split_last_chunk::<MAC_BYTES>().ok_or(damaged)?;
        if key.is_mac(TRAILER, bytes, mac) { Ok(trailer) } else { Err(Unproven::Tampered) }
    }
}

const SLOTS: &[u8] = b"slots";
const TRAILER: &[u8] = b"trailer";

/// Bytes before the meta of a record.
pub(crate) fn head_bytes(is_sealed: bool) -> usize {
    RECORD_HEAD_BYTES + if is_sealed { SEAL_BYTES } else { 0 }
}

/// Bytes after the slots.
pub(crate) fn tail_bytes(is_sealed: bool) -> usize {
    if is_sealed { SEALED_TAIL_BYTES } else { TRAILER_BYTES }
}

/// Where the record after one that ends at `end` begins.
pub(crate) fn align(end: usize) -> usize {
    end.next_multiple_of(RECORD_ALIGN)
}

pub(crate) fn encode_slot(slot: &Slot) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let mut put = &mut bytes[..];
    put.put_i64_le(slot.at.as_nanos());
    put.put_u32_le(slot.start);
    put.put_u32_le(slot.meta_bytes);
    put.put_u32_le(slot.body_bytes);
    bytes
}

pub(crate) fn decode_slot(bytes: &[u8; SLOT_BYTES]) -> Slot {
    let mut take = &bytes[..];
    let at = take_time(&mut take);
    Slot {
        at,
        start: take.get_u32_le(),
        meta_bytes: take.get_u32_le(),
        body_bytes: take.get_u32_le(),
    }
}

/// The trailer of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) segment: SegmentId,
    pub(crate) base: Position,
    pub(crate) count: u32,
    /// Offset after the last record.
    pub(crate) end: u32,
    pub(crate) first_at: Instant,
    pub(crate) last_at: Instant,
    /// Of all metas and bodies.
    pub(crate) bytes: u64,
    /// Of the slots.
    pub(crate) slots_crc: u32,
}

impl Trailer {
    pub(crate) fn encode(&self, seed: u32) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        let mut put = &mut bytes[..];
        put.put_slice(TRAILER_MAGIC);
        put.put_u64_le(self.segment.0);
        put.put_u64_le(self.base.0);
        put.put_u32_le(self.count);
        put.put_u32_le(self.end);
        put.put_i64_le(self.first_at.as_nanos());
        put.put_i64_le(self.last_at.as_nanos());
        put.put_u64_le(self.bytes);
        put.put_u32_le(self.slots_crc);
        let crc = crc32c::crc32c_append(seed, &bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The trailer of a file of `len` bytes, if it is whole and of the segment with that seed, and fits the file.
    fn decode(bytes: &[u8], seed: u32, len: usize, tail: usize) -> Option<Self> {
        let bytes = bytes.first_chunk::<TRAILER_BYTES>()?;
        let mut take = &bytes[TRAILER_MAGIC.len()..];
        if !bytes.starts_with(TRAILER_MAGIC)
            || crc32c::crc32c_append(seed, &bytes[..60]) != (&bytes[60..]).get_u32_le()
        {
            return None;
        }
        let trailer = Self {
            segment: SegmentId(take.get_u64_le()),
            base: Position(take.get_u64_le()),
            count: take.get_u32_le(),
            end: take.get_u32_le(),
            first_at: take_time(&mut take),
            last_at: take_time(&mut take),
            bytes: take.get_u64_le(),
            slots_crc: take.get_u32_le(),
        };
        let end = trailer.end as usize;
        let fits = (DATA_START..=slots_start(len, trailer.count, tail)?).contains(&end);
        (fits && trailer.count > 0 && trailer.base <= POSITION_MAX).then_some(trailer)
    }
}

fn take_time(take: &mut &[u8]) -> Instant {
    Instant::from_nanos(take.get_i64_le())
}

/// Where the slots of a file of `len` bytes begin that has `tail` bytes after them, if it has room for them.
pub(crate) fn slots_start(len: usize, count: u32, tail: usize) -> Option<usize> {
    len.checked_sub(tail)?.checked_sub((count as usize).checked_mul(SLOT_BYTES)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::seal::{NodeKey, RawKey, Sealer};

    const HEADER: Header = Header {
        len: 0x0001_0000,
        log_id: 0x1122_3344_5566_7788,
        segment: SegmentId(9),
        base: Position(0x2a),
        before: Some(Instant::from_nanos(0x0102_0304)),
        created: Instant::from_nanos(0x0a0b_0c0d),
        kept: Position(0x07),
        is_sealed: false,
    };

    const HEAD: RecordHead = RecordHead {
        meta_bytes: 2,
        body_bytes: 5,
        position: Position(0x2a),
        at: Instant::from_nanos(0x0102_0305),
    };

    fn trailer() -> Trailer {
        Trailer {
            segment: HEADER.segment,
            base: HEADER.base,
            count: 1,
            end: 4136,
            first_at: HEAD.at,
            last_at: HEAD.at,
            bytes: 7,
            slots_crc: 0xdead_beef,
        }
    }

    fn verify_record(bytes: &[u8], seed: u32) -> Option<RecordHead> {
        Proof::clear(seed).verify(bytes).ok()
    }

    fn hex(bytes: &[u8]) -> String {
        let lines = bytes.chunks(16).map(|line| {
            line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    #[test]
    fn version_1_0_is_these_bytes() {
        let seed = seed(HEADER.log_id, HEADER.segment);
        let slot = Slot { at: HEAD.at, start: 4128, meta_bytes: 2, body_bytes: 5 };
        let parts = [
            ("header", hex(&HEADER.encode())),
            ("record", hex(&[&HEAD.encode(seed, None, b"mmframe")[..], b"mmframe"].concat())),
            ("slot", hex(&encode_slot(&slot))),
            ("trailer", hex(&trailer().encode(seed))),
        ];
        let text: String = parts.iter().map(|(name, hex)| format!("{name}\n{hex}")).collect();
        assert_eq!(text, include_str!("../testdata/segment-1.0.txt"), "\n{text}");
    }

    #[test]
    fn a_sealed_segment_is_these_bytes() {
        let node = NodeKey::from_bytes([0x11; 32]);
        let raw = RawKey::from_bytes([0x22; 32]);
        let mut sealer = Sealer::of(&raw);
        let seed = seed(HEADER.log_id, HEADER.segment);
        let header = Header { is_sealed: true, ..HEADER }.encode();
        assert!(Header::decode(&header).unwrap().is_sealed);
        let mut content = *b"mmframe";
        let seal = sealer.seal(&HEAD.authenticated(true), &mut content);
        let head = HEAD.encode(seed, Some(&seal), &content);
        let record = [&head[..], &seal, &content].concat();
        let proof = Proof::sealed(seed, raw.derive());
        let slot = encode_slot(&Slot { at: HEAD.at, start: 4152, meta_bytes: 2, body_bytes: 5 });
        let slots_mac = proof.slots_mac(&slot).unwrap();
        let end = proof.end(&Trailer { end: 4160, ..trailer() });
        let parts = [
            ("header", hex(&header)),
            ("key", hex(&node.wrap(&raw, &[0x33; 32], &header, seed))),
            ("record", hex(&record)),
            ("slot", hex(&slot)),
            ("slots mac", hex(&slots_mac)),
            ("end", hex(&end)),
        ];
        let text: String = parts.iter().map(|(name, hex)| format!("{name}\n{hex}")).collect();
        assert_eq!(text, include_str!("../testdata/sealed-1.0.txt"), "\n{text}");

        let (opened, content) = proof.open(record.clone().into()).unwrap();
        assert_eq!((opened, &content[..]), (HEAD, &b"mmframe"[..]));
        assert_eq!(Proof::clear(seed).verify(&record), Err(Unproven::Damaged), "in clear text");
        assert!(proof.are_slots(&slot, &slots_mac) && !proof.are_slots(&slot[1..], &slots_mac));
        let tail = [&slots_mac[..], &end].concat();
        assert_eq!(proof.trailer(&tail, 1 << 16).unwrap().end, 4160);
        let mut forged = tail.clone();
        forged[MAC_BYTES] ^= 1;
        assert_eq!(proof.trailer(&forged, 1 << 16), Err(Unproven::Tampered));
    }

    #[test]
    fn a_record_that_was_changed_on_purpose_is_told_from_a_damaged_one() {
        let raw = RawKey::from_bytes([0x22; 32]);
        let (seed, mut content) = (7, *b"mmframe");
        let seal = Sealer::of(&raw).seal(&HEAD.authenticated(true), &mut content);
        let record = [&HEAD.encode(seed, Some(&seal), &content)[..], &seal, &content].concat();
        let proof = Proof::sealed(seed, raw.derive());
        for offset in 0..record.len() {
            let mut changed = record.clone();
            changed[offset] ^= 1;
            assert_eq!(proof.verify(&changed), Err(Unproven::Damaged), "byte {offset}");
            // The lengths say where it ends, so they cannot be mended.
            if (16..).contains(&offset) {
                let crc = crc32c::crc32c_append(seed, &changed[4..]);
                changed[..4].copy_from_slice(&crc.to_le_bytes());
                assert_eq!(proof.verify(&changed), Err(Unproven::Tampered), "byte {offset}");
            }
        }
    }

    #[test]
    fn a_changed_header_is_damaged_newer_or_read() {
        assert_eq!(Header::decode(&HEADER.encode()), Ok(HEADER));
        let first = Header { before: None, ..HEADER };
        assert_eq!(Header::decode(&first.encode()), Ok(first));
        let changed = |offset: usize, value: u8| {
            let mut bytes = HEADER.encode();
            bytes[offset] = value;
            let crc = crc32c::crc32c(&bytes[..HEADER_CRC]);
            bytes[HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
            Header::decode(&bytes)
        };
        for (offset, value, expected, note) in [
            (8, 2, Err(HeaderError::Major(2)), "a later major"),
            (8, 0, Err(HeaderError::Major(0)), "no version of ours"),
            (10, 7, Ok(HEADER), "a later minor is read"),
            (12, 4, Err(HeaderError::Features(4)), "a feature to be known"),
            (16, 0xff, Ok(HEADER), "features to be ignored"),
            (0, b'X', Err(HeaderError::Damaged), "another magic"),
            (72, 8, Err(HeaderError::Damaged), "records elsewhere"),
        ] {
            assert_eq!(changed(offset, value), expected, "{note}");
        }
        for offset in 0..HEADER_BYTES {
            let mut bytes = HEADER.encode();
            bytes[offset] ^= 0x10;
            assert_eq!(Header::decode(&bytes), Err(HeaderError::Damaged), "byte {offset}");
            assert_eq!(Header::decode(&bytes[..offset]), Err(HeaderError::Damaged));
        }
    }

    #[test]
    fn a_record_of_another_segment_is_none_of_this_one() {
        let record = |segment| {
            let seed = seed(HEADER.log_id, SegmentId(segment));
            ([&HEAD.encode(seed, None, b"mmframe")[..], b"mmframe"].concat(), seed)
        };
        let (bytes, seed) = record(9);
        assert_eq!(verify_record(&bytes, seed), Some(HEAD));
        for other in (0..9).chain(10..2000).chain([u64::from(u32::MAX)]) {
            assert_eq!(verify_record(&record(other).0, seed), None, "segment {other}");
        }
        for offset in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[offset] ^= 1;
            assert_eq!(verify_record(&flipped, seed), None, "byte {offset}");
            assert_eq!(verify_record(&bytes[..offset], seed), None);
        }
    }

    #[test]
    fn flags_that_have_to_be_known_hide_a_record() {
        let seed = 7;
        let with_flags = |flags: u32| {
            let mut bytes = HEAD.encode(seed, None, b"mmframe").to_vec();
            bytes[12..16].copy_from_slice(&flags.to_le_bytes());
            bytes.extend_from_slice(b"mmframe");
            let crc = crc32c::crc32c_append(seed, &bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            verify_record(&bytes, seed)
        };
        assert_eq!(with_flags(0x0000_8001), Some(HEAD));
        assert_eq!(with_flags(0x0001_0000), None);
    }

    #[test]
    fn a_trailer_that_does_not_fit_its_file_is_none() {
        let seed = seed(HEADER.log_id, HEADER.segment);
        let fits = trailer();
        assert_eq!(Trailer::decode(&fits.encode(seed), seed, 1 << 16, TRAILER_BYTES), Some(fits));
        for (wrong, note) in [
            (Trailer { count: 0, ..fits }, "empty"),
            (Trailer { count: u32::MAX, ..fits }, "more slots than bytes"),
            (Trailer { end: 4095, ..fits }, "ends in the header"),
            (Trailer { end: (1 << 16) - 64 - 23, ..fits }, "runs into the slots"),
        ] {
            assert_eq!(
                Trailer::decode(&wrong.encode(seed), seed, 1 << 16, TRAILER_BYTES),
                None,
                "{note}"
            );
        }
        assert_eq!(
            Trailer::decode(&fits.encode(seed), seed, 60, TRAILER_BYTES),
            None,
            "no room at all"
        );
        assert_eq!(Trailer::decode(&fits.encode(seed), seed + 1, 1 << 16, TRAILER_BYTES), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            seed in any::<u32>(),
            len in 0..1_usize << 32,
        ) {
            let _ = (Header::decode(&bytes), verify_record(&bytes, seed));
            prop_assert_eq!(Trailer::decode(&bytes, seed, len, TRAILER_BYTES), None);
        }
    }
}
