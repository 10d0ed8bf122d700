//! The state of a flow as bytes, so that it survives a restart.
//!
//! ```text
//!  magic 8 │ major 2 │ minor 2 │ features 4 │ key 8 │ steps: count 4, { fingerprint 8, words 4, shared 4, words of the flow }
//!  keys: count 4, { length 2, bytes, second of last use 4, words } │ CRC-32C of all before 4          (all little-endian)
//! ```
//!
//! A key's words stand in the order of the steps. A step is known by a fingerprint of its description: state goes to the steps of a
//! changed flow that are as they were, and the others start over. Where the key has changed, all do.

use tidegate_message::{Reader, Unreadable};

use crate::{flow::Flow, hash, keys::Entry};

const MAGIC: [u8; 8] = *b"TGFLOWST";
const MAJOR: u16 = 1;
const MINOR: u16 = 0;
/// Feature bits that must be known to be passed over; the others are optional.
const FEATURES_REQUIRED: u32 = 0xffff_0000;

/// The result of restoring a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Keys that have state again.
    pub keys: u64,
    /// Keys of the snapshot that have none: there are more than the flow keeps, or their key is another now.
    pub keys_left_out: u64,
    /// Steps of this flow whose state starts over, such as `step 3 (kalman)`, since the snapshot holds none that fits.
    pub began_anew: Vec<String>,
    /// Steps of the snapshot that are not in this flow: their state is dropped.
    pub dropped: usize,
}

/// A step of a snapshot.
struct Past {
    fingerprint: u64,
    words: usize,
    /// Where in a key's words its own begin.
    at: usize,
    shared: Vec<u64>,
    is_used: bool,
}

/// A snapshot that is being taken, a few keys at a time: each key is as it was when it was looked at.
#[derive(Debug)]
pub struct Snapshot {
    out: Vec<u8>,
    /// Where the number of keys stands.
    count_at: usize,
    keys: u32,
    /// The block that is next.
    next: u32,
}

impl Snapshot {
    /// Its bytes, for [`Flow::restore`].
    pub fn finish(mut self) -> Vec<u8> {
        self.out[self.count_at..self.count_at + 4].copy_from_slice(&self.keys.to_le_bytes());
        let sum = crc32c::crc32c(&self.out);
        self.out.extend(sum.to_le_bytes());
        self.out
    }
}

/// Where an entry stands in one of several snapshots.
struct Found<'a> {
    seen: u32,
    snapshot: usize,
    key: &'a [u8],
    state: &'a [u8],
}

/// A snapshot that was looked at in whole.
struct Checked<'a> {
    same_key: bool,
    steps: Vec<Past>,
    words: usize,
    keys: u32,
    entries: &'a [u8],
}

impl Flow {
    /// All state, for [`Flow::restore`].
    pub fn snapshot(&self) -> Vec<u8> {
        let mut snapshot = self.begin_snapshot();
        while self.extend_snapshot(&mut snapshot, u32::MAX) {}
        snapshot.finish()
    }

    /// Begins a snapshot with all that is not kept by key.
    pub fn begin_snapshot(&self) -> Snapshot {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(MAJOR.to_le_bytes());
        out.extend(MINOR.to_le_bytes());
        out.extend(0_u32.to_le_bytes());
        out.extend(self.key_fingerprint.to_le_bytes());
        out.extend((1 + self.steps.len() as u32).to_le_bytes());
        let (fingerprint, words) = self.mended_state();
        out.extend(fingerprint.to_le_bytes());
        out.extend((words as u32).to_le_bytes());
        out.extend(0_u32.to_le_bytes());
        for step in &self.steps {
            out.extend(step.fingerprint.to_le_bytes());
            out.extend((step.words as u32).to_le_bytes());
            let shared = step.kernel.shared_words();
            out.extend((shared.len() as u32).to_le_bytes());
            put_words(&mut out, shared);
        }
        let count_at = out.len();
        out.extend(0_u32.to_le_bytes());
        Snapshot { out, count_at, keys: 0, next: 0 }
    }

    /// Adds the keys of the next `blocks` places of the table; false once there are no more. Messages may be run in between.
    pub fn extend_snapshot(&self, snapshot: &mut Snapshot, blocks: u32) -> bool {
        let Some(keys) = &self.keys else { return false };
        let end = snapshot.next.saturating_add(blocks).min(keys.used());
        for Entry { key, seen, state } in keys.entries(snapshot.next..end) {
            snapshot.out.extend((key.len() as u16).to_le_bytes());
            snapshot.out.extend(key);
            snapshot.out.extend(seen.to_le_bytes());
            put_words(&mut snapshot.out, state);
            snapshot.keys += 1;
        }
        snapshot.next = end;
        end < keys.used()
    }

    /// Restores state that a flow of this name had: that of keys replaces the present one, and the contents of Bloom filters are
    /// added, so that additions since then stay.
    ///
    /// # Errors
    /// [`SnapshotError`]: the snapshot is damaged or of a later version; the state is as it was then.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<Restored, SnapshotError> {
        self.restore_all(&[snapshot], |_| true)
    }

    /// As [`Flow::restore`], from the snapshots of instances that shared the keys out among them, and for the keys alone whose hash
    /// `is_own`.
    ///
    /// # Errors
    /// As [`Flow::restore`].
    pub fn restore_all(
        &mut self,
        snapshots: &[&[u8]],
        is_own: impl Fn(u64) -> bool,
    ) -> Result<Restored, SnapshotError> {
        // Looked at in whole before anything is changed.
        let checked = snapshots.iter().map(|snapshot| self.check(snapshot));
        let mut checked = checked.collect::<Result<Vec<_>, _>>()?;
        let mut restored = Restored::default();
        let mut moves = Vec::new();
        for (place, past) in checked.iter_mut().enumerate() {
            let mut of_this = Restored::default();
            moves.push(self.take_steps(&mut past.steps, past.same_key, &mut of_this));
            let is_dropped = |step: &&Past| step.words > 0 && !step.is_used;
            of_this.dropped = past.steps.iter().filter(is_dropped).count();
            if place == 0 {
                restored = of_this;
            }
        }
        let mut found = Vec::new();
        for (snapshot, past) in checked.iter().enumerate() {
            if self.keys.is_none() || !past.same_key {
                restored.keys_left_out += u64::from(past.keys);
                continue;
            }
            let mut reader = Reader::new(past.entries);
            for _ in 0..past.keys {
                let (key, seen, state) = take_entry(&mut reader, past.words)?;
                let hash = self.keys.as_ref().and_then(|keys| keys.hash_of_key(key));
                match hash {
                    Some(hash) if is_own(hash) => {
                        found.push(Found { seen, snapshot, key, state });
                    }
                    Some(_) => {}
                    None => restored.keys_left_out += 1,
                }
            }
        }
        let Some(table) = &mut self.keys else { return Ok(restored) };
        table.clear();
        // Where there is no room for all, those that were used last stay.
        found.sort_by_key(|entry| entry.seen);
        let evicted = table.evicted;
        for entry in &found {
            let Some(new) = table.restore(entry.key, entry.seen) else { continue };
            for (from, to, count) in &moves[entry.snapshot] {
                let old = &entry.state[from * 8..(from + count) * 8];
                for (word, bytes) in new[*to..to + count].iter_mut().zip(old.as_chunks::<8>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
            }
        }
        table.evicted = evicted;
        restored.keys = u64::from(table.live());
        restored.keys_left_out += (found.len() as u64).saturating_sub(restored.keys);
        Ok(restored)
    }

    fn check<'a>(&self, snapshot: &'a [u8]) -> Result<Checked<'a>, SnapshotError> {
        let (body, sum) = snapshot.split_last_chunk::<4>().ok_or(SnapshotError::Cut)?;
        let mut reader = Reader::new(body);
        if reader.array("magic")? != MAGIC {
            return Err(SnapshotError::Magic);
        }
        let major = reader.u16_le("version")?;
        let _minor = reader.u16_le("version")?;
        let features = reader.u32_le("features")?;
        if major != MAJOR || features & FEATURES_REQUIRED != 0 {
            return Err(SnapshotError::Version { major, features });
        }
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(SnapshotError::Checksum);
        }
        let same_key = reader.u64_le("key")? == self.key_fingerprint;
        let steps = take_steps(&mut reader)?;
        let words: usize = steps.iter().map(|step| step.words).sum();
        let keys = reader.u32_le("number of keys")?;
        let entries = reader.rest();
        for _ in 0..keys {
            take_entry(&mut reader, words)?;
        }
        if !reader.is_empty() {
            return Err(SnapshotError::Cut);
        }
        Ok(Checked { same_key, steps, words, keys, entries })
    }

    /// Finds the steps of the snapshot that are those of this flow: where their words come from, go to, and how many they are.
    fn take_steps(
        &mut self,
        past: &mut [Past],
        same_key: bool,
        restored: &mut Restored,
    ) -> Vec<(usize, usize, usize)> {
        let mut moves = Vec::new();
        let (fingerprint, words) = self.mended_state();
        if words > 0 {
            match take(past, fingerprint, words, 0).filter(|_| same_key) {
                Some(old) => moves.push((old.at, 0, words)),
                None => restored.began_anew.push("last good numbers".to_owned()),
            }
        }
        for step in &mut self.steps {
            let shared = step.kernel.shared_words().len();
            if step.words == 0 && shared == 0 {
                continue;
            }
            // State of the flow itself does not hang on its key.
            match take(past, step.fingerprint, step.words, shared)
                .filter(|_| same_key || step.words == 0)
            {
                Some(old) => {
                    moves.push((old.at, step.at, step.words));
                    step.kernel.take_up_shared(&old.shared);
                }
                None => restored.began_anew.push(step.name.clone()),
            }
        }
        moves
    }

    /// The fingerprint and words of last good numbers, which stand first.
    fn mended_state(&self) -> (u64, usize) {
        let mut names = String::new();
        for (column, _) in &self.mended {
            let is_it = |column_of: crate::batch::Column| {
                column_of == crate::batch::Column::Number(*column)
            };
            if let Some(field) = self.parser.fields.iter().find(|field| is_it(field.column)) {
                names.push_str(&field.name);
                names.push('\n');
            }
        }
        (hash::bytes(0, names.as_bytes()), self.mended.len())
    }
}

/// The first step of the snapshot that fits and is not taken yet.
fn take(past: &mut [Past], fingerprint: u64, words: usize, shared: usize) -> Option<&Past> {
    let found = past.iter_mut().find(|step| {
        !step.is_used
            && step.fingerprint == fingerprint
            && step.words == words
            && step.shared.len() == shared
    })?;
    found.is_used = true;
    Some(found)
}

fn put_words(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend(word.to_le_bytes());
    }
}

fn take_steps(reader: &mut Reader<'_>) -> Result<Vec<Past>, Unreadable> {
    let count = reader.u32_le("number of steps")?;
    let mut steps = Vec::new();
    let mut at = 0_usize;
    for _ in 0..count {
        let fingerprint = reader.u64_le("fingerprint")?;
        let words = reader.u32_le("words of a step")? as usize;
        let shared_count = reader.u32_le("words of the flow")? as usize;
        let shared = reader.bytes(shared_count.saturating_mul(8), "words of the flow")?;
        let shared =
            shared.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        steps.push(Past { fingerprint, words, at, shared, is_used: false });
        at = at.saturating_add(words);
    }
    Ok(steps)
}

/// A key, the second of its last use, and the bytes of its words.
fn take_entry<'a>(
    reader: &mut Reader<'a>,
    words: usize,
) -> Result<(&'a [u8], u32, &'a [u8]), Unreadable> {
    let length = reader.u16_le("length of a key")?;
    let key = reader.bytes(usize::from(length), "key")?;
    let seen = reader.u32_le("last use")?;
    Ok((key, seen, reader.bytes(words.saturating_mul(8), "words of a key")?))
}

impl From<Unreadable> for SnapshotError {
    fn from(_: Unreadable) -> Self {
        Self::Cut
    }
}

/// Why a snapshot was not taken up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It is no snapshot.
    #[error("these bytes are not a snapshot of a flow")]
    Magic,
    /// It is of a later version.
    #[error(
        "the snapshot is of version {major} with features {features:#x}, which this program does not know; use the one that wrote it"
    )]
    Version {
        /// Its version.
        major: u16,
        /// Its features.
        features: u32,
    },
    /// It is damaged.
    #[error(
        "the snapshot's checksum is wrong: it is damaged, and the state starts over without it"
    )]
    Checksum,
    /// It ends too early, or too late.
    #[error("the snapshot's length is wrong: it is damaged, and the state starts over without it")]
    Cut,
}
