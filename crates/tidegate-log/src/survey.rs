//! A survey of the files of a log, without opening the log or changing anything: for administrators.

use tidegate_message::{Instant, Position};

use crate::{
    entry::SegmentId,
    format::{
        DATA_START, HEADER_BYTES, Header, HeaderError, Proof, SEALED_TAIL_BYTES, SLOT_BYTES,
        Trailer, WRAPS, seed, slots_start,
    },
    recovery::{segment_of, wrap_in},
    scan::scan,
    seal::{KeyId, Locked, NodeKeys, key_of},
};

/// The content of one segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Its kind.
    pub state: SegmentState,
    /// Which log it says it belongs to, if its header is whole.
    pub log_id: Option<u64>,
    /// When the log was opened that began it, if its header is whole.
    pub created: Option<Instant>,
    /// Whether its header says that it is sealed.
    pub is_sealed: bool,
    /// The node key that seals it, if that is whole.
    pub key: Option<KeyId>,
    /// Records that prove themselves.
    pub records: u64,
    /// Their bytes, meta and body.
    pub bytes: u64,
    /// Positions of the first record and after the last one, if there is any.
    pub positions: Option<(Position, Position)>,
    /// Times of the first and the last record.
    pub times: Option<(Instant, Instant)>,
    /// Records that are damaged or missing between others.
    pub lost: u64,
    /// Records that were changed on purpose: their checksums hold, their seals do not.
    pub tampered: u64,
    /// Whether the index at its end is damaged, which costs a scan when it is read.
    pub is_index_damaged: bool,
}

impl Survey {
    /// Whether there are only zeros where a segment has its header, and nothing else in it is valid: it was made ready and not begun, or all
    /// that was in it is lost.
    pub fn is_zero(&self) -> bool {
        self.state == SegmentState::Empty && self.log_id.is_none()
    }
}

/// Kinds of segment files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Full, and on the disk; its end proves itself.
    Finished,
    /// It was being filled, or its end did not reach the disk.
    Unfinished,
    /// Begun, and without records.
    Empty,
    /// No header and no record proves itself.
    Damaged,
    /// Its header or its key is damaged and it is sealed, so that nothing of it can be opened.
    KeyDamaged,
    /// None of the given keys has sealed it. Its checksums were looked at.
    OtherKey,
    /// Its header or its key was changed on purpose.
    Tampered,
    /// It belongs to another log.
    Foreign,
    /// A later version of this program has written it.
    Newer,
}

/// The segment that a file of that name holds, if the name is one of a segment.
pub fn segment_named(name: &str) -> Option<SegmentId> {
    segment_of(name)
}

/// Looks at the bytes of the file of segment `id` of the log `log_id`. With `keys`, seals are proven, too.
pub fn survey(log_id: u64, id: SegmentId, bytes: &[u8], keys: Option<&NodeKeys>) -> Survey {
    let mut found = Survey {
        state: SegmentState::Damaged,
        log_id: None,
        created: None,
        is_sealed: false,
        key: None,
        records: 0,
        bytes: 0,
        positions: None,
        times: None,
        lost: 0,
        tampered: 0,
        is_index_damaged: false,
    };
    let header = match Header::decode(bytes) {
        Ok(header) => Some(header),
        Err(HeaderError::Damaged) => None,
        Err(HeaderError::Major(_) | HeaderError::Features(_)) => {
            return Survey { state: SegmentState::Newer, ..found };
        }
    };
    if let Some(header) = header {
        found.log_id = Some(header.log_id);
        found.created = Some(header.created);
        found.is_sealed = header.is_sealed;
        if header.log_id != log_id {
            return Survey { state: SegmentState::Foreign, ..found };
        }
    }
    if bytes.len() < DATA_START {
        let state = if bytes.is_empty() { SegmentState::Empty } else { SegmentState::Damaged };
        return Survey { state, ..found };
    }
    // A header of an earlier life: the file was taken for this segment, and its header was not written yet.
    let is_stale = header.is_some_and(|header| header.segment != id);
    let own = header.filter(|_| !is_stale);
    let seed = seed(log_id, id);
    let (proof, state) = match own.filter(|header| header.is_sealed) {
        Some(_) => found.opens(bytes, seed, keys),
        // If its header is lost, its records show what it is.
        None if !is_stale && own.is_none() && is_sealed(bytes, seed) => {
            found.is_sealed = true;
            (Proof::unopened(seed), Some(SegmentState::KeyDamaged))
        }
        None => (Proof::clear(seed), None),
    };
    let is_finished = found.count(bytes, &proof, own.map(|header| header.base));
    let is_begun = own.is_some() || is_stale || bytes[..DATA_START].iter().all(|&byte| byte == 0);
    found.state = match state {
        Some(state) => state,
        None if is_finished => SegmentState::Finished,
        None if found.records > 0 => SegmentState::Unfinished,
        None if is_begun && found.tampered == 0 => SegmentState::Empty,
        None => SegmentState::Damaged,
    };
    found
}

/// Whether the records, as far as checksums prove them, are sealed ones.
fn is_sealed(bytes: &[u8], seed: u32) -> bool {
    let proof = Proof::unopened(seed);
    proof.verify(&bytes[DATA_START..]).is_ok()
        || WRAPS.iter().any(|&offset| key_of(wrap_in(bytes, offset), seed).is_some())
}

impl Survey {
    /// The key that verifies the records of a sealed segment with a whole header, and the problem with its key.
    fn opens(
        &mut self,
        bytes: &[u8],
        seed: u32,
        keys: Option<&NodeKeys>,
    ) -> (Proof, Option<SegmentState>) {
        let wraps = WRAPS.map(|offset| wrap_in(bytes, offset));
        self.key = wraps.iter().find_map(|wrap| key_of(wrap, seed));
        let unopened = Proof::unopened(seed);
        let Some(keys) = keys else {
            let damaged = self.key.is_none().then_some(SegmentState::KeyDamaged);
            return (unopened, damaged);
        };
        let opened = wraps.map(|wrap| keys.unwrap(wrap, &bytes[..HEADER_BYTES], seed));
        match &opened {
            [Ok((key, _)), _] | [_, Ok((key, _))] => (Proof::sealed(seed, key.derive()), None),
            [Err(Locked::Damaged), Err(why)] | [Err(why), _] => {
                let state = match why {
                    Locked::Damaged => SegmentState::KeyDamaged,
                    Locked::OtherKey(_) => SegmentState::OtherKey,
                    Locked::Tampered => SegmentState::Tampered,
                };
                (unopened, Some(state))
            }
        }
    }

    /// Goes through the records. Returns whether the end of the file proves itself.
    fn count(&mut self, bytes: &[u8], proof: &Proof, base: Option<Position>) -> bool {
        let tail = &bytes[bytes.len() - SEALED_TAIL_BYTES..];
        let trailer: Option<Trailer> = proof.trailer(tail, bytes.len()).ok();
        let base = trailer.map(|trailer| trailer.base).or(base);
        let records_end = trailer.map_or(bytes.len(), |trailer| trailer.end as usize);
        let scanned = scan(&bytes[..records_end], proof, base);
        let whole = scanned.slots.iter().filter(|slot| slot.start > 0).count() as u64;
        self.records = whole;
        self.bytes = scanned.bytes;
        self.tampered = scanned.tampered;
        let slots = scanned.slots.len() as u64;
        // An end that proves itself says how many there were; those before the first found have no slot.
        let all = trailer.map_or(slots, |trailer| u64::from(trailer.count).max(slots));
        let before = base.map_or(0, |base| scanned.base.0.saturating_sub(base.0));
        self.is_index_damaged = trailer.is_some_and(|trailer| {
            let start = slots_start(bytes.len(), trailer.count, proof.tail_bytes());
            let slots = start
                .and_then(|start| bytes.get(start..start + trailer.count as usize * SLOT_BYTES));
            slots.is_none_or(|slots| crc32c::crc32c_append(proof.seed, slots) != trailer.slots_crc)
        });
        let lost = if trailer.is_some() { all - whole } else { all + before - whole };
        self.lost = lost.saturating_sub(self.tampered);
        if whole > 0 {
            let end = Position(scanned.base.0 + slots);
            self.positions = Some((scanned.base, end));
            self.times = Some(scanned.times());
        }
        trailer.is_some()
    }
}
