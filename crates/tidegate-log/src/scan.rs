//! Finding the records of a segment that was not sealed, or whose slots are damaged.
//!
//! Records follow each other, so the scan goes from one to the next. Where the next one does not prove itself, it looks at every
//! eighth byte for one that does: a bad byte in the middle costs the record that it hit, not those after it. At the end of what was
//! written it finds nothing more, because what lies there was written in another life of the file, or not whole.
//!
//! Always true: each record found was appended to this very segment, whole and in this order; positions that lie between found ones have a slot
//! that says they are lost, with the time of the one before; the work is bounded by the size of the segment, whatever bytes it has.

use tidegate_message::{Instant, Position};

use crate::{
    entry::Slot,
    format::{DATA_START, Proof, RECORD_ALIGN, RecordHead, SLOT_BYTES, Unproven, align},
};

/// How much is checked, in lengths of the segment, before bytes that only look like records end the scan.
const CHECKED_MAX: usize = 8;

/// The result of a scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Position of the first slot.
    pub(crate) base: Position,
    pub(crate) slots: Vec<Slot>,
    /// Offset after the last record, aligned.
    pub(crate) end: usize,
    /// Of all metas and bodies.
    pub(crate) bytes: u64,
    /// Records that were changed on purpose.
    pub(crate) tampered: u64,
}

/// Finds the records of the segment with that proof. `base` is the position of its first record, if that is known.
pub(crate) fn scan(bytes: &[u8], proof: &Proof, base: Option<Position>) -> Scan {
    let mut found = Scan { base: base.unwrap_or_default(), end: DATA_START, ..Scan::default() };
    let mut next = base;
    let mut budget = bytes.len().saturating_mul(CHECKED_MAX);
    let mut offset = DATA_START;
    while let Some(record) = bytes.get(offset..)
        && record.len() >= proof.head_bytes()
    {
        let Some((head, lost)) = found.accept(record, proof, next, offset, &mut budget) else {
            if budget == 0 {
                break;
            }
            offset += RECORD_ALIGN;
            continue;
        };
        // Entries lost before the first record have no time that they could be found by.
        match found.slots.last().copied() {
            None => found.base = head.position,
            Some(Slot { at, .. }) => {
                let slot = Slot { at, start: 0, meta_bytes: 0, body_bytes: 0 };
                found.slots.extend(std::iter::repeat_n(slot, lost as usize));
            }
        }
        let start = offset + proof.head_bytes();
        let checked = "a segment is below 4 GiB";
        found.slots.push(Slot {
            at: head.at,
            start: u32::try_from(start).expect(checked),
            meta_bytes: head.meta_bytes,
            body_bytes: head.body_bytes,
        });
        found.bytes += head.content_bytes();
        offset = align(start + usize::try_from(head.content_bytes()).expect(checked));
        found.end = offset;
        next = Some(head.position.next());
    }
    found
}

impl Scan {
    /// The record at `offset`, if it proves itself and can follow what was found, and how many were lost before it.
    fn accept(
        &mut self,
        record: &[u8],
        proof: &Proof,
        next: Option<Position>,
        offset: usize,
        budget: &mut usize,
    ) -> Option<(RecordHead, u64)> {
        let head = proof.head(record)?;
        // Each lost record took its head at least, of what was skipped.
        let lost = head.position.0.checked_sub(next.unwrap_or(head.position).0)?;
        let fits = head.content_bytes() <= (record.len() - proof.head_bytes()) as u64;
        let skipped = (offset - self.end) as u64;
        let is_later = self.slots.last().is_none_or(|last| head.at > last.at);
        if !fits || !is_later || lost > skipped / proof.head_bytes() as u64 {
            return None;
        }
        let checked = proof.head_bytes() + usize::try_from(head.content_bytes()).ok()?;
        *budget = budget.checked_sub(checked).unwrap_or_default();
        if *budget == 0 {
            return None;
        }
        let verified = proof.verify(record);
        self.tampered += u64::from(verified == Err(Unproven::Tampered));
        verified.ok().map(|head| (head, lost))
    }

    /// Size of a file that has room for the records found, their slots and a trailer, in whole pages.
    pub(crate) fn sealed_bytes(&self, proof: &Proof) -> usize {
        let least = self.end + proof.tail_bytes() + self.slots.len() * SLOT_BYTES;
        least.next_multiple_of(4096)
    }

    /// Times of the first and the last slot, if there is one.
    pub(crate) fn times(&self) -> (Instant, Instant) {
        let at = |slot: Option<&Slot>| slot.map_or(Instant::MIN, |slot| slot.at);
        (at(self.slots.first()), at(self.slots.last()))
    }

    /// From the first lost position to the one after the last, if any is.
    pub(crate) fn lost_range(&self) -> Option<(Position, Position)> {
        let is_lost = |slot: &Slot| slot.start == 0;
        let first = self.slots.iter().position(is_lost)? as u64;
        let last = self.slots.iter().rposition(is_lost)? as u64;
        Some((Position(self.base.0 + first), Position(self.base.0 + last + 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RECORD_HEAD_BYTES;

    const SEED: u32 = 0x1234_5678;

    /// A segment with records at positions 10, 11, …, whose bodies have these lengths, and where each begins.
    fn segment(bodies: &[usize], len: usize) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = vec![0; len];
        let mut offset = DATA_START;
        let mut starts = Vec::new();
        for (number, &body) in bodies.iter().enumerate() {
            starts.push(offset);
            offset = put(&mut bytes, offset, 10 + number as u64, body, SEED);
        }
        (bytes, starts)
    }

    fn put(bytes: &mut [u8], offset: usize, position: u64, body: usize, seed: u32) -> usize {
        let content = vec![position as u8; body];
        let head = RecordHead {
            meta_bytes: 0,
            body_bytes: body as u32,
            position: Position(position),
            at: Instant::from_nanos(position as i64 * 100),
        };
        let start = offset + RECORD_HEAD_BYTES;
        bytes[offset..start].copy_from_slice(&head.encode(seed, None, &content));
        bytes[start..start + body].copy_from_slice(&content);
        align(start + body)
    }

    fn kept(scan: &Scan) -> Vec<u64> {
        let numbered = scan.slots.iter().enumerate();
        let kept = numbered.filter(|(_, slot)| slot.start > 0);
        kept.map(|(number, _)| scan.base.0 + number as u64).collect()
    }

    #[test]
    fn written_records_are_found_up_to_their_end() {
        let (bytes, _) = segment(&[5, 0, 100, 8], 8192);
        let found = scan(&bytes, &Proof::clear(SEED), Some(Position(10)));
        assert_eq!(kept(&found), [10, 11, 12, 13]);
        assert_eq!((found.lost_range(), found.bytes), (None, 113));
        assert_eq!(kept(&scan(&bytes, &Proof::clear(SEED), None)), [10, 11, 12, 13]);
        assert!(kept(&scan(&bytes, &Proof::clear(SEED + 1), Some(Position(10)))).is_empty());
        assert!(
            kept(&scan(&bytes, &Proof::clear(SEED), Some(Position(11)))).starts_with(&[11]),
            "10 is none of it"
        );
        for len in [0, 10, DATA_START, DATA_START + 31] {
            assert!(kept(&scan(&bytes[..len], &Proof::clear(SEED), None)).is_empty());
        }
    }

    #[test]
    fn a_bad_byte_costs_its_record_only() {
        let bodies = [5, 40, 100, 8];
        let (bytes, starts) = segment(&bodies, 8192);
        for (number, &start) in starts.iter().enumerate() {
            for offset in start..start + RECORD_HEAD_BYTES + bodies[number] {
                let mut flipped = bytes.clone();
                flipped[offset] ^= 0xff;
                let found = scan(&flipped, &Proof::clear(SEED), Some(Position(10)));
                let expected: Vec<u64> = (10..14).filter(|&p| p != 10 + number as u64).collect();
                assert_eq!(kept(&found), expected, "byte {offset}");
                let base = if number == 0 { 11 } else { 10 };
                assert_eq!(found.base, Position(base));
                let hit = Position(10 + number as u64);
                let lost = (0 < number && number < 3).then_some((hit, hit.next()));
                assert_eq!(found.lost_range(), lost);
                let times = found.slots.iter().map(|slot| slot.at);
                assert!(times.is_sorted());
            }
        }
    }

    #[test]
    fn a_torn_tail_is_cut_at_every_length() {
        let bodies = [5, 40, 100];
        let (bytes, starts) = segment(&bodies, 8192);
        let ends: Vec<usize> = starts
            .iter()
            .zip(bodies)
            .map(|(start, body)| start + RECORD_HEAD_BYTES + body)
            .collect();
        for len in 0..bytes.len() {
            let whole = ends.iter().filter(|&&end| end <= len).count() as u64;
            let found = scan(&bytes[..len], &Proof::clear(SEED), Some(Position(10)));
            assert_eq!(kept(&found), (10..10 + whole).collect::<Vec<_>>(), "{len} bytes");
        }
    }

    #[test]
    fn remains_of_an_earlier_use_are_not_found() {
        let (mut bytes, _) = segment(&[8; 40], 8192);
        let mut offset = DATA_START;
        for position in 50..53 {
            offset = put(&mut bytes, offset, position, 8, SEED ^ 1);
        }
        let found = scan(&bytes, &Proof::clear(SEED ^ 1), Some(Position(50)));
        assert_eq!((kept(&found), found.end), (vec![50, 51, 52], offset));
    }

    #[test]
    fn bytes_that_look_like_records_do_not_stall_the_scan() {
        // Each of these heads asks for a check of nearly all that follows.
        let len = 1 << 20;
        let mut bytes = vec![0; len];
        for offset in (DATA_START..len - RECORD_HEAD_BYTES).step_by(RECORD_HEAD_BYTES) {
            let head = RecordHead {
                meta_bytes: 0,
                body_bytes: (len - offset - RECORD_HEAD_BYTES) as u32,
                position: Position(10),
                at: Instant::from_nanos(1),
            };
            bytes[offset..offset + RECORD_HEAD_BYTES].copy_from_slice(&head.encode(
                SEED ^ 1,
                None,
                b"",
            ));
        }
        let mut budget = len * CHECKED_MAX;
        let mut none = Scan { end: DATA_START, ..Scan::default() };
        let mut checks = 0;
        for offset in (DATA_START..len - RECORD_HEAD_BYTES).step_by(RECORD_ALIGN) {
            let before = budget;
            let next = Some(Position(10));
            assert!(
                none.accept(&bytes[offset..], &Proof::clear(SEED), next, offset, &mut budget)
                    .is_none()
            );
            checks += u64::from(budget < before);
        }
        assert_eq!(budget, 0);
        assert!(checks < 20, "{checks}");
        assert!(kept(&scan(&bytes, &Proof::clear(SEED), Some(Position(10)))).is_empty());
    }
}
