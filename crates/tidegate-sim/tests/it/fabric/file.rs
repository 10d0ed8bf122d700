//! The files of a member: words with checksums, so that what is damaged is known to be.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_fabric::{Clock, Contents, Dot, MemberId, Standing, State, View};

/// The number of a write of this member, by which it sees that it has the newest of each file.
pub(super) type Sequence = u64;

/// A bucket's file: a part with all but the records, and each record as a part of its own.
pub(super) struct BucketFile {
    pub(super) sequence: Sequence,
    pub(super) in_sync: Option<View>,
    pub(super) history: BTreeSet<View>,
    pub(super) clock: Clock,
    pub(super) records: BTreeMap<Dot, u64>,
    /// Whether there is a part that could not be read.
    pub(super) is_damaged: bool,
}

pub(super) fn write_member(sequence: Sequence, starts: u64, start: u64, view: &View) -> Vec<u8> {
    let mut words = vec![sequence, starts, start];
    write_view(&mut words, view);
    let mut bytes = Vec::new();
    write_part(&mut bytes, &words);
    bytes
}

/// The sequence, the count of starts, the start and the view.
pub(super) fn read_member(mut bytes: &[u8]) -> Option<(Sequence, u64, u64, View)> {
    let words = &mut read_part(&mut bytes)?.into_iter();
    Some((words.next()?, words.next()?, words.next()?, read_view(words)?))
}

pub(super) fn write_bucket(sequence: Sequence, state: &State<u64>) -> Vec<u8> {
    let mut words = vec![sequence, u64::from(state.in_sync.is_some())];
    state.in_sync.iter().for_each(|view| write_view(&mut words, view));
    words.push(state.history.len() as u64);
    state.history.iter().for_each(|view| write_view(&mut words, view));
    words.push(state.contents.clock().intervals().count() as u64);
    for (origin, start, (first, last)) in state.contents.clock().intervals() {
        words.extend([origin.0, start, first, last]);
    }
    words.push(state.contents.records().len() as u64);
    let mut bytes = Vec::new();
    write_part(&mut bytes, &words);
    for (dot, value) in state.contents.records() {
        write_part(&mut bytes, &[dot.origin.0, dot.start, dot.number, *value]);
    }
    bytes
}

/// Nothing if the first part could not be read.
pub(super) fn read_bucket(mut bytes: &[u8]) -> Option<BucketFile> {
    let words = &mut read_part(&mut bytes)?.into_iter();
    let sequence = words.next()?;
    let in_sync = if words.next()? == 1 { Some(read_view(words)?) } else { None };
    let history = (0..words.next()?).map(|_| read_view(words)).collect::<Option<_>>()?;
    let mut clock = Clock::default();
    for _ in 0..words.next()? {
        let (origin, start) = (MemberId(words.next()?), words.next()?);
        clock.add_all(origin, start, (words.next()?, words.next()?));
    }
    let count = words.next()?;
    let mut records = BTreeMap::new();
    while !bytes.is_empty() {
        if let Some([origin, start, number, value]) = read_part(&mut bytes).as_deref() {
            let dot = Dot { origin: MemberId(*origin), start: *start, number: *number };
            records.insert(dot, *value);
        }
    }
    let is_damaged = records.len() as u64 != count;
    Some(BucketFile { sequence, in_sync, history, clock, records, is_damaged })
}

impl BucketFile {
    pub(super) fn state(self, keeps_clock: bool) -> State<u64> {
        let contents = if self.is_damaged && !keeps_clock {
            Contents::damaged(self.records)
        } else {
            Contents::new(self.records, self.clock)
        };
        State { contents, in_sync: self.in_sync, history: self.history }
    }
}

fn write_view(words: &mut Vec<u64>, view: &View) {
    words.push(view.standings().count() as u64);
    for (member, Standing { number, is_lost, start }) in view.standings() {
        words.extend([member.0, number, u64::from(is_lost), start]);
    }
}

fn read_view(words: &mut impl Iterator<Item = u64>) -> Option<View> {
    let count = words.next()?;
    let mut standing = || {
        let (member, number) = (MemberId(words.next()?), words.next()?);
        Some((member, Standing { number, is_lost: words.next()? == 1, start: words.next()? }))
    };
    (0..count).map(|_| standing()).collect()
}

/// Length, checksum, words.
fn write_part(bytes: &mut Vec<u8>, words: &[u64]) {
    let all = [words.len() as u64, checksum(words)];
    bytes.extend(all.iter().chain(words).flat_map(|word| word.to_le_bytes()));
}

/// Nothing, and all behind it gone where its length is not to be trusted, if it is damaged.
fn read_part(bytes: &mut &[u8]) -> Option<Vec<u64>> {
    let rest = std::mem::take(bytes);
    let word = |at: usize| Some(u64::from_le_bytes(*rest.get(at * 8..)?.first_chunk()?));
    let count = usize::try_from(word(0)?).ok().filter(|count| *count <= rest.len() / 8)?;
    let words = (2..count + 2).map(word).collect::<Option<Vec<u64>>>()?;
    *bytes = &rest[(count + 2) * 8..];
    (word(1)? == checksum(&words)).then_some(words)
}

fn checksum(words: &[u64]) -> u64 {
    // FNV-1a by words, with their count.
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    words
        .iter()
        .fold(step(0xcbf2_9ce4_8422_2325, words.len() as u64), |hash, word| step(hash, *word))
}
