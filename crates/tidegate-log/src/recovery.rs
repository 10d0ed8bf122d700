//! Finding what an earlier process has left in the folder of a log.
//!
//! ```text
//!  name of ours? ──no──▶ foreign: left, named
//!      │ header proves itself, of this log ──other log──▶ foreign: left, named
//!      │ sealed as the log is, and its key opens ──no──▶ refused: left or renamed, named
//!      │ trailer proves itself ──yes──▶ sealed: served as it is, records prove themselves when read
//!      └ no ──▶ scan ──▶ records: the file is cut behind them, to be flushed and sealed
//!                   └──▶ none: begun and never used: its room is used again; or damaged: renamed, named
//! ```
//!
//! A file of zeros is the one that was made ready for the next segment, or one whose entries are lost. It is the former if no entry is
//! missing where it stands: then its room is used again, else it is renamed and named. A segment whose slots are in its file was
//! followed by another, sealed or not: the process may have been killed before it was.
//!
//! A segment is what its name and its log's id say; its header repeats that. So a header that is damaged loses nothing as long as
//! records behind it prove themselves, unless they are sealed: their key is in the header.
//!
//! Always true: no file is removed or overwritten that is not empty or wholly unused and of our own name; nothing that disk or
//! folder hold leads to a panic; of what fails, the report has a line.

mod report;

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::Arc,
};

use tidegate_message::Position;

pub use self::report::{Damage, Finding, Report};

use crate::{
    disk::{Disk, DiskFile, DiskMap, whole},
    entry::{SegmentId, Slot},
    format::{
        DATA_START, HEADER_BYTES, Header, HeaderError, Proof, SEALED_TAIL_BYTES, SLOT_BYTES,
        Trailer, Unproven, WRAPS, encode_slot, head_bytes, seed, slots_start,
    },
    scan::{Scan, scan},
    seal::{KeyId, Locked, NodeKeys, RawKey, WRAP_BYTES},
    segment::FileSegment,
    segment_files::{Full, Kept, Map, Slots, file_name, is_reserve},
    storage::{Recovered, RecoveredSegment},
};

/// All that recovery hands to [`Files`](crate::Files).
pub(crate) struct Found<D: Disk> {
    pub(crate) recovered: Recovered<FileSegment>,
    pub(crate) sealed: BTreeMap<SegmentId, Kept<D>>,
    pub(crate) full: Vec<Full<D>>,
    /// Files whose room can be used again.
    pub(crate) unused: Vec<Kept<D>>,
    /// The id that the next segment gets.
    pub(crate) next_id: u64,
    /// The newest segment, which tells the next position.
    pub(crate) newest: Option<SegmentId>,
    pub(crate) report: Report,
}

/// A segment that was found whole or in part.
enum Segment<D: Disk> {
    Sealed(Kept<D>, FileSegment, Trailer),
    Scanned(Full<D>, RecoveredSegment<FileSegment>, WasFollowed),
    /// Begun, and without entries.
    Empty(Kept<D>),
    Foreign,
    Damaged,
    Tampered,
    /// Left alone. It has no position from this one on.
    Refused(Position),
    /// Nothing was ever written to it, or all of it is lost.
    Blank(Option<Kept<D>>),
}

/// Whether another segment was surely begun after it.
type WasFollowed = bool;

/// A segment, and its header if that proved itself.
type Examined<D> = (Segment<D>, Option<Header>);

impl<D: Disk> Segment<D> {
    /// Position of its first entry, if it has any that is served.
    fn first(&self) -> Option<Position> {
        match self {
            Self::Sealed(_, _, trailer) => Some(trailer.base),
            Self::Scanned(_, segment, _) => Some(segment.first),
            _ => None,
        }
    }

    /// Its id, if it tells which position comes next.
    fn proves(&self, header: Option<Header>) -> Option<SegmentId> {
        match self {
            Self::Sealed(kept, ..) => Some(kept.id),
            Self::Scanned(full, ..) => Some(full.kept.id),
            Self::Empty(kept) => header.map(|_| kept.id),
            Self::Foreign | Self::Damaged | Self::Tampered | Self::Refused(_) | Self::Blank(_) => {
                None
            }
        }
    }
}

/// Meaning of files of zeros that no entry follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeros {
    /// One at a time is made ready, behind a segment that was begun.
    OneIsReady,
    /// As many as the log has secured before it needed them.
    AreSecured,
}

/// Looks at every file of the folder.
pub(crate) fn recover<D: Disk>(
    disk: &D,
    log_id: u64,
    keys: Option<&NodeKeys>,
    zeros: Zeros,
) -> Result<Found<D>, OpenError> {
    let entries = disk.list().map_err(|source| OpenError::List { source })?;
    let names: HashSet<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let mut ours: Vec<(SegmentId, String, bool)> = Vec::new();
    let mut found = Found {
        recovered: Recovered { segments: Vec::new(), next: Position(0), last: None },
        sealed: BTreeMap::new(),
        full: Vec::new(),
        unused: Vec::new(),
        next_id: 0,
        newest: None,
        report: Report::default(),
    };
    for entry in entries {
        match segment_of(&entry.name) {
            Some(id) => ours.push((id, entry.name, entry.is_trusted)),
            // It held room for the process that made it, and nothing else. Where it cannot be removed, it is passed over.
            None if is_reserve(&entry.name) && entry.is_trusted => {
                let _ = disk.remove(&entry.name);
            }
            None => found.report.findings.push(Finding::Foreign { name: entry.name }),
        }
    }
    ours.sort();
    // All at once, so that a disk that has to seek can do so for many.
    for (_, name, _) in ours.iter().filter(|(_, _, is_trusted)| *is_trusted) {
        if let Ok(file) = disk.open(name)
            && let Ok(len) = file.size()
        {
            file.prefetch(0..DATA_START as u64);
            file.prefetch(len.saturating_sub(SEALED_TAIL_BYTES as u64)..len);
        }
    }
    let mut segments: Vec<(Segment<D>, Option<Header>, String)> = Vec::with_capacity(ours.len());
    for (id, name, is_trusted) in ours {
        found.next_id = id.0 + 1;
        if !is_trusted {
            found.report.findings.push(Finding::Untrusted { name });
            continue;
        }
        let examined = Examine { log_id, keys, id, name: &name };
        match examined.file(disk, &mut found.report)? {
            Ok((segment, header)) => segments.push((segment, header, name)),
            Err(error) => found.report.findings.push(Finding::Unreadable { name, error }),
        }
    }
    found.refuse_other_keys(&segments)?;
    // The newest header knows what had been dropped by then, and whose files may be there still.
    let newest = segments.iter().rev().find_map(|(_, header, _)| *header);
    let kept = newest.map_or(Position(0), |header| header.kept.min(header.base));
    let mut refused = Position(0);
    let mut blank = Vec::new();
    let mut was_cut = false;
    for (segment, header, name) in segments {
        if let Segment::Blank(kept) = segment {
            was_cut |= kept.is_none();
            blank.extend(kept.map(|kept| (kept, name)));
            continue;
        }
        if let Some(first) = segment.first() {
            let is_gap = match found.recovered.segments.is_empty() {
                true => kept < first,
                false => found.recovered.next < first,
            };
            found.settle(disk, &mut blank, is_gap, &names);
            // Between others, that they are missing is found below.
            if is_gap && was_cut && found.recovered.segments.is_empty() {
                found.report.findings.push(Finding::Lost { from: kept, to: first });
            }
        }
        if let Segment::Refused(next) = &segment
            && *next <= REFUSED_MAX
        {
            refused = refused.max(*next);
        }
        if let Some(id) = segment.proves(header) {
            found.newest = Some(id);
        }
        found.take(disk, (segment, header), kept, name, &names);
    }
    let is_ready = blank.len() == 1 && found.newest.is_some();
    found.settle(disk, &mut blank, zeros == Zeros::OneIsReady && !is_ready, &names);
    found.recovered.next = found.recovered.next.max(refused);
    found.report.segments = found.recovered.segments.len();
    found.report.last_at = found.recovered.last;
    Ok(found)
}

/// Unauthenticated headers use up no more than half of all positions.
const REFUSED_MAX: Position = Position(u64::MAX / 4);

impl<D: Disk> Found<D> {
    /// Keys that open none of the sealed segments that there are, are the wrong ones. An unauthenticated header counts as none here.
    fn refuse_other_keys(
        &self,
        segments: &[(Segment<D>, Option<Header>, String)],
    ) -> Result<(), OpenError> {
        let is_sealed = |header: &Option<Header>| header.is_some_and(|header| header.is_sealed);
        let opens = segments.iter().any(|(_, header, _)| is_sealed(header));
        let other = self.report.findings.iter().rev().find_map(|finding| match finding {
            Finding::OtherKey { name, key } => Some((name.clone(), *key)),
            _ => None,
        });
        match other {
            Some((name, key)) if !opens => Err(OpenError::OtherKey { name, key }),
            _ => Ok(()),
        }
    }

    fn take(
        &mut self,
        disk: &D,
        (segment, header): Examined<D>,
        oldest: Position,
        name: String,
        names: &HashSet<String>,
    ) {
        match segment {
            Segment::Sealed(kept, _, trailer)
                if trailer.base.0 + u64::from(trailer.count) <= oldest.0 =>
            {
                self.unused.push(kept);
            }
            Segment::Scanned(full, ..) if full.next <= oldest => self.unused.push(full.kept),
            Segment::Sealed(kept, segment, trailer) => {
                let recovered = RecoveredSegment {
                    id: kept.id,
                    segment,
                    first: trailer.base,
                    count: u64::from(trailer.count),
                    bytes: trailer.bytes,
                    end: trailer.end as usize,
                    times: (trailer.first_at, trailer.last_at),
                    slots: None,
                };
                if self.push(recovered, names) {
                    self.report.ends_finished = true;
                    self.sealed.insert(kept.id, kept);
                } else {
                    self.set_aside(disk, name, names, Damage::OutOfOrder);
                }
            }
            Segment::Scanned(full, recovered, was_followed) => {
                self.report.scanned += 1;
                if self.push(recovered, names) {
                    self.report.ends_finished = was_followed;
                    self.full.push(full);
                } else {
                    self.set_aside(disk, name, names, Damage::OutOfOrder);
                }
            }
            Segment::Empty(kept) => {
                if let Some(header) = header {
                    self.report.ends_finished = false;
                    self.recovered.next = self.recovered.next.max(header.base);
                    self.recovered.last = self.recovered.last.max(header.before);
                }
                self.unused.push(kept);
            }
            Segment::Refused(_) => {}
            Segment::Blank(_) => unreachable!("whether it was used shows by what is behind it"),
            Segment::Tampered => self.set_aside(disk, name, names, Damage::Tampered),
            Segment::Foreign => self.report.findings.push(Finding::Foreign { name }),
            Segment::Damaged => self.set_aside(disk, name, names, Damage::Unreadable),
        }
    }

    /// Files of zeros are used again, or set aside if entries are missing where they stand.
    fn settle(
        &mut self,
        disk: &D,
        blank: &mut Vec<(Kept<D>, String)>,
        is_loss: bool,
        names: &HashSet<String>,
    ) {
        for (kept, name) in blank.drain(..) {
            match is_loss {
                true => self.set_aside(disk, name, names, Damage::Zeros),
                false => self.unused.push(kept),
            }
        }
    }

    /// Adds a segment, if it is later than those before.
    fn push(&mut self, segment: RecoveredSegment<FileSegment>, names: &HashSet<String>) -> bool {
        let expected = self.recovered.next;
        let (first_at, last_at) = segment.times;
        let next = segment.first.0.checked_add(segment.count);
        let is_later = self.recovered.last.is_none_or(|last| last < first_at);
        let Some(next) = next.filter(|_| segment.first >= expected && is_later) else {
            return false;
        };
        if segment.first > expected && !self.recovered.segments.is_empty() {
            self.report.findings.push(Finding::Lost { from: expected, to: segment.first });
            let last = self.recovered.segments.last().map_or(segment.id, |last| last.id);
            let has_file = |id| {
                let own = file_name(SegmentId(id));
                names.iter().any(|name| name.starts_with(&own))
            };
            let mut between = last.0 + 1..segment.id.0;
            if !between.is_empty() && !between.any(has_file) {
                self.report.behind_missing = Some(segment.first);
            }
        }
        self.report.entries += segment.count;
        self.recovered.next = Position(next);
        self.recovered.last = Some(last_at);
        self.recovered.segments.push(segment);
        true
    }

    fn set_aside(&mut self, disk: &D, name: String, names: &HashSet<String>, why: Damage) {
        let stem = name.strip_suffix(SUFFIX).unwrap_or(&name);
        let mut to = format!("{stem}.damaged");
        for number in 2.. {
            if !names.contains(&to) {
                break;
            }
            to = format!("{stem}.damaged-{number}");
        }
        let to = disk.rename(&name, &to).map(|()| to);
        self.report.findings.push(Finding::SetAside { name, to, why });
    }
}

/// One file to be looked at.
struct Examine<'a> {
    log_id: u64,
    keys: Option<&'a NodeKeys>,
    id: SegmentId,
    name: &'a str,
}

/// The key that opens the records of a segment.
enum Opens {
    With(Proof, Page),
    /// None of them is to be served.
    Refused,
    Tampered,
}

/// The page of a header.
type Page = Box<[u8; DATA_START]>;

impl Examine<'_> {
    /// Finds out what the file is. The inner error is the disk's.
    fn file<D: Disk>(
        &self,
        disk: &D,
        report: &mut Report,
    ) -> Result<io::Result<Examined<D>>, OpenError> {
        let &Self { log_id, id, name, .. } = self;
        let opened = disk.open(name).and_then(|file| Ok((file.size()?, file)));
        let (len, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        if len == 0 {
            // The process ended while it made it, or it was cut.
            return Ok(disk.remove(name).map(|()| (Segment::Blank(None), None)));
        }
        if len < DATA_START as u64 || u32::try_from(len).is_err() {
            return Ok(Ok((Segment::Damaged, None)));
        }
        let mut page: Page = Box::new([0; DATA_START]);
        let mut tail = [0; SEALED_TAIL_BYTES];
        let ends = file
            .read_at(0, page.as_mut_slice())
            .and_then(|()| file.read_at(len - SEALED_TAIL_BYTES as u64, &mut tail));
        let mut map = match ends.and_then(|()| file.map()) {
            Ok(map) => map,
            Err(error) => return Ok(Err(error)),
        };
        let header = match Header::decode(page.as_slice()) {
            Ok(header) if header.log_id != log_id => return Ok(Ok((Segment::Foreign, None))),
            Ok(header) => Some(header),
            Err(HeaderError::Damaged) => None,
            Err(HeaderError::Major(major)) => {
                return Err(OpenError::Major { name: name.to_owned(), major });
            }
            Err(HeaderError::Features(features)) => {
                return Err(OpenError::Features { name: name.to_owned(), features });
            }
        };
        // A header of an earlier life: the file was taken for this segment, and its header did not reach the disk.
        let is_stale = header.is_some_and(|header| header.segment < id);
        let header = header.filter(|header| header.segment == id);
        let opens = self.opens(header, page, (&file, &mut map), report)?;
        publish_whole(&mut map, len);
        let is_unwritten = |map: &Map<D>| whole(map)[..DATA_START].iter().all(|&byte| byte == 0);
        let (proof, page) = match opens {
            Opens::With(proof, page) => (proof, page),
            // Such a header is not authenticated: its claims about other segments are ignored.
            Opens::Tampered => return Ok(Ok((Segment::Tampered, None))),
            Opens::Refused => {
                let segment = match header {
                    Some(header) => {
                        let most = len / head_bytes(header.is_sealed) as u64;
                        Segment::Refused(Position(header.base.0 + most))
                    }
                    None if is_stale => Segment::Empty(Kept { id, map, file: None, len }),
                    None if is_unwritten(&map) => {
                        Segment::Blank(Some(Kept { id, map, file: None, len }))
                    }
                    None => Segment::Damaged,
                };
                return Ok(Ok((segment, None)));
            }
        };
        let kept = |map, file| Kept { id, map, file, len };
        let file_bytes = map.published();
        let trailer = proof.trailer(&tail, file_bytes);
        let mut is_tampered = trailer == Err(Unproven::Tampered);
        if let Ok(trailer) = trailer
            && trailer.segment == id
            && header.is_none_or(|header| header.base <= trailer.base)
        {
            if header.is_none() {
                report.findings.push(Finding::Repaired { name: name.to_owned() });
            }
            let start = slots_start(file_bytes, trailer.count, proof.tail_bytes());
            let segment = FileSegment::filling(id, map.region(), proof);
            segment.store(trailer, start.expect("it was checked"));
            return Ok(Ok((Segment::Sealed(kept(map, None), segment, trailer), header)));
        }
        let bytes = whole(&map);
        let found = scan(&bytes, &proof, header.map(|header| header.base));
        is_tampered |= found.tampered > 0;
        if found.slots.is_empty() {
            drop(bytes);
            if is_tampered {
                return Ok(Ok((Segment::Tampered, None)));
            }
            let segment = match header.is_some() || is_stale {
                true => Segment::Empty(kept(map, None)),
                false if is_unwritten(&map) => Segment::Blank(Some(kept(map, None))),
                false => Segment::Damaged,
            };
            return Ok(Ok((segment, header)));
        }
        if header.is_none() {
            report.findings.push(Finding::Repaired { name: name.to_owned() });
        }
        if is_tampered {
            let entries = found.tampered;
            report.findings.push(Finding::Tampered { name: name.to_owned(), entries });
        }
        if let Some((from, to)) = found.lost_range() {
            report.findings.push(Finding::Lost { from, to });
        }
        let was_followed = has_slots(&bytes, &found.slots, &proof);
        // The file may have been cut in the padding of the last one.
        let records = bytes[DATA_START..found.end.min(bytes.len())].to_vec();
        drop((bytes, map));
        let anew = Header { log_id, segment: id, ..header_of(header, &found) };
        let reopened = reopen(file, len, (anew, page), &records, found, proof);
        Ok(reopened.map(|(full, segment)| (Segment::Scanned(full, segment, was_followed), header)))
    }

    /// The key that opens the records of the segment with that header. Has the current key take it over from an older
    /// one.
    fn opens<F: DiskFile>(
        &self,
        header: Option<Header>,
        mut page: Page,
        (file, map): (&F, &mut F::Map),
        report: &mut Report,
    ) -> Result<Opens, OpenError> {
        let &Self { log_id, id, .. } = self;
        let name = || self.name.to_owned();
        let seed = seed(log_id, id);
        let (keys, header) = match (self.keys, header) {
            (None, Some(header)) if header.is_sealed => {
                return Err(OpenError::Sealed { name: name() });
            }
            (None, _) => return Ok(Opens::With(Proof::clear(seed), page)),
            (Some(_), None) => return Ok(Opens::Refused),
            (Some(_), Some(header)) if !header.is_sealed => {
                report.findings.push(Finding::Clear { name: name() });
                return Ok(Opens::Refused);
            }
            (Some(keys), Some(_)) => (keys, page[..HEADER_BYTES].to_vec()),
        };
        let unwrapped =
            WRAPS.map(|offset| keys.unwrap(wrap_in(page.as_slice(), offset), &header, seed));
        let is_current = |number: usize| matches!(unwrapped[number], Ok((_, true)));
        let stale: Vec<usize> = (0..WRAPS.len()).filter(|&number| !is_current(number)).collect();
        // A damaged one tells nothing where the other one does.
        let found = match &unwrapped {
            [Ok((key, _)), _] | [_, Ok((key, _))] => Ok(key),
            [Err(Locked::Damaged), Err(why)] | [Err(why), _] => Err(*why),
        };
        let key = match found {
            Ok(key) => key,
            Err(Locked::OtherKey(key)) => {
                report.findings.push(Finding::OtherKey { name: name(), key });
                return Ok(Opens::Refused);
            }
            Err(Locked::Damaged | Locked::Tampered) => return Ok(Opens::Tampered),
        };
        let proof = Proof::sealed(seed, key.derive());
        if !stale.is_empty() {
            match rewrap(keys, key, (&header, seed), (file, map), &mut page, stale) {
                Ok(()) => report.rewrapped += 1,
                Err(error) => report.findings.push(Finding::NotRewrapped { name: name(), error }),
            }
        }
        Ok(Opens::With(proof, page))
    }
}

pub(crate) fn wrap_in(page: &[u8], offset: usize) -> &[u8; WRAP_BYTES] {
    page[offset..].first_chunk().expect("it lies within the page")
}

/// Has the current node key seal a segment's key where it has not yet. One wrap is on the disk before the other one is touched, so that
/// one of them opens, whenever the power goes.
fn rewrap<F: DiskFile>(
    keys: &NodeKeys,
    key: &RawKey,
    (header, seed): (&[u8], u32),
    (file, map): (&F, &mut F::Map),
    page: &mut Page,
    mut stale: Vec<usize>,
) -> io::Result<()> {
    // The last one to go is one that opens.
    let opens = |number: &usize| {
        keys.unwrap(wrap_in(page.as_slice(), WRAPS[*number]), header, seed).is_ok()
    };
    stale.sort_by_key(opens);
    for number in stale {
        let wrap = keys.rewrap(key, header, seed)?;
        let offset = WRAPS[number];
        map.write(offset, &wrap).map_err(io::Error::other)?;
        page[offset..offset + WRAP_BYTES].copy_from_slice(&wrap);
        file.sync()?;
    }
    Ok(())
}

/// The header of a segment, or one that says of it what its records do.
fn header_of(header: Option<Header>, found: &Scan) -> Header {
    header.unwrap_or(Header {
        len: 0,
        log_id: 0,
        segment: SegmentId(0),
        base: found.base,
        before: None,
        created: found.times().0,
        kept: Position(0),
        is_sealed: false,
    })
}

/// Whether the slots of a segment stand at the end of its file, where they are put once it is full and the next one is begun.
fn has_slots(bytes: &[u8], slots: &[Slot], proof: &Proof) -> bool {
    let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    let start = slots_start(bytes.len(), count, proof.tail_bytes());
    start.is_some_and(|start| {
        let stored = bytes[start..].chunks_exact(SLOT_BYTES);
        stored.zip(slots).all(|(stored, slot)| *stored == encode_slot(slot))
    })
}

/// Readies a file of `len` bytes, whose records a scan has found, for being sealed: with the header that belongs to it, and cut
/// behind the records if they take less than half of it.
fn reopen<D: Disk>(
    file: D::File,
    len: u64,
    (header, page): (Header, Page),
    records: &[u8],
    found: Scan,
    proof: Proof,
) -> io::Result<(Full<D>, RecoveredSegment<FileSegment>)> {
    let needed = found.sealed_bytes(&proof) as u64;
    let fit = if needed <= len && len <= 2 * needed { len } else { needed };
    let len = match file.resize(fit) {
        // It is read as it is, and what is written from here on stays in memory.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => len,
        resized => resized.map(|()| fit)?,
    };
    let mut map = file.map()?;
    let room = "the file has room for a header and its records";
    if header.is_sealed {
        // Its key was sealed together with the header, so that stays as it is.
        map.write(0, page.as_slice()).expect(room);
    } else {
        let len_told = u32::try_from(len).unwrap_or(u32::MAX);
        let header = Header { len: len_told, base: found.base, ..header };
        map.write(0, &header.encode()).expect(room);
    }
    // A sync that failed may have left pages in the cache that count as written and are not: only writing them again has the
    // next sync write them.
    map.write(DATA_START, records).expect(room);
    map.publish(found.end).expect(room);
    let id = header.segment;
    let segment = FileSegment::filling(id, map.region(), proof.clone());
    let count = found.slots.len() as u64;
    let recovered = RecoveredSegment {
        id,
        segment: segment.clone(),
        first: found.base,
        count,
        bytes: found.bytes,
        end: found.end,
        times: found.times(),
        slots: Some(found.slots.clone()),
    };
    let full = Full {
        kept: Kept { id, map, file: Some(Arc::new(file)), len },
        segment,
        proof,
        base: found.base,
        next: Position(found.base.0 + count),
        end: found.end,
        slots: Slots::Found(found.slots),
        since: None,
    };
    Ok((full, recovered))
}

fn publish_whole(map: &mut impl DiskMap, len: u64) {
    let len = usize::try_from(len).expect("a segment is below 4 GiB");
    map.publish(len).expect("nothing was published before");
}

const SUFFIX: &str = ".segment";

/// The segment that a file of that name holds, if the name is one of ours.
pub(crate) fn segment_of(name: &str) -> Option<SegmentId> {
    let id = u64::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok()?;
    // The upper half is never reached, so that a stray file cannot leave us without a next id.
    (id <= u64::MAX / 2 && file_name(SegmentId(id)) == name).then_some(SegmentId(id))
}

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder could not be read.
    #[error("the folder of the log could not be read")]
    List {
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A later version of this program has written to the log.
    #[error(
        "{name} is of format {major}, which this version does not know; use the version that wrote \
         it, or move the folder away"
    )]
    Major {
        /// The file.
        name: String,
        /// Its major version.
        major: u16,
    },
    /// The log is sealed, and was opened without a key.
    #[error("{name} is sealed; name the key file of the node that has sealed it")]
    Sealed {
        /// The file.
        name: String,
    },
    /// None of the keys opens any segment.
    #[error(
        "{name} is sealed with the node key {key}, which is not among those given; name the file of \
         that one, as an older key if there is a newer one, or move the folder away"
    )]
    OtherKey {
        /// The newest file.
        name: String,
        /// Its key.
        key: KeyId,
    },
    /// A later version of this program has written to the log.
    #[error(
        "{name} has features that this version does not know (bits {features:#x}); use the version \
         that wrote it, or move the folder away"
    )]
    Features {
        /// The file.
        name: String,
        /// The unknown bits.
        features: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_ours() {
        for (name, expected) in [
            ("000000000000002a.segment", Some(42)),
            ("7fffffffffffffff.segment", Some(u64::MAX / 2)),
            ("ffffffffffffffff.segment", None),
            ("2a.segment", None),
            ("000000000000002A.segment", None),
            ("+00000000000002a.segment", None),
            ("000000000000002a.segment~", None),
            ("000000000000002a.damaged", None),
            (".segment", None),
            ("", None),
        ] {
            assert_eq!(segment_of(name), expected.map(SegmentId), "{name}");
        }
    }
}
