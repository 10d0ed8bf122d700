//! The disk of a node: files that grow or are replaced whole, and what is left of them.
//!
//! ```text
//!  append, replace, remove ─▶ page cache ──sync──▶ disk          reads see the page cache
//!                             │ power loss: of each file the first so many changes are on the disk, the next is torn
//! ```
//!
//! Always true: a kill loses nothing; a loss of power loses of each file a suffix of the changes that were not synced, and no others.

use std::collections::{BTreeMap, VecDeque};

use crate::random::Random;

/// Files by their names.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    cached: BTreeMap<String, Vec<u8>>,
    stored: BTreeMap<String, Vec<u8>>,
    /// Changes that the disk does not have yet, in order, and how many it has.
    changes: VecDeque<Change>,
    synced: u64,
    /// Bytes that can be appended, if they are bounded.
    room: Option<u64>,
}

/// All changes up to some point in time, as [`Node::sync`](super::Node::sync) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(u64);

/// The disk has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk has room for {free} bytes, and {wanted} are to be written")]
pub struct DiskFull {
    /// Bytes that were to be written.
    pub wanted: u64,
    /// Bytes that can be written.
    pub free: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Append(String, Vec<u8>),
    Replace(String, Vec<u8>),
    Remove(String),
}

impl Disk {
    /// The bytes of a file; none if there is no such file.
    pub fn read(&self, name: &str) -> Option<&[u8]> {
        self.cached.get(name).map(Vec::as_slice)
    }

    /// The names of all files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.cached.keys().map(String::as_str)
    }

    /// Writes behind the end of a file, which is made if there is none.
    ///
    /// # Errors
    /// The disk has no room for it; nothing was written.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), DiskFull> {
        self.take_room(bytes)?;
        self.change(Change::Append(name.to_owned(), bytes.to_vec()));
        Ok(())
    }

    /// Puts these bytes in the place of a file, as one does by another file that is synced and renamed: after a loss of power there is
    /// the old one or the new.
    ///
    /// # Errors
    /// The disk has no room for it; nothing was written.
    pub fn replace(&mut self, name: &str, bytes: &[u8]) -> Result<(), DiskFull> {
        self.take_room(bytes)?;
        self.change(Change::Replace(name.to_owned(), bytes.to_vec()));
        Ok(())
    }

    /// Removes a file.
    pub fn remove(&mut self, name: &str) {
        self.change(Change::Remove(name.to_owned()));
    }

    fn take_room(&mut self, bytes: &[u8]) -> Result<(), DiskFull> {
        let Some(free) = &mut self.room else { return Ok(()) };
        let (free_now, wanted) = (*free, bytes.len() as u64);
        *free = free_now.checked_sub(wanted).ok_or(DiskFull { wanted, free: free_now })?;
        Ok(())
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.cached);
        self.changes.push_back(change);
    }

    /// All changes so far.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.synced + self.changes.len() as u64)
    }

    /// Those changes are on the disk, unless a loss of power took them.
    pub(super) fn synced(&mut self, mark: Mark) {
        while self.synced < mark.0
            && let Some(change) = self.changes.pop_front()
        {
            change.apply(&mut self.stored);
            self.synced += 1;
        }
    }

    /// Has room for so many bytes more, or for all that comes.
    pub(super) fn limit(&mut self, room: Option<u64>) {
        self.room = room;
    }

    pub(super) fn lose_power(&mut self, random: &mut Random) {
        let end = self.mark();
        let changes = std::mem::take(&mut self.changes);
        let mut left: BTreeMap<&str, u64> = BTreeMap::new();
        for change in &changes {
            *left.entry(change.name()).or_default() += 1;
        }
        left.values_mut().for_each(|count| *count = random.below(*count + 1));
        for change in &changes {
            match left.get_mut(change.name()) {
                Some(0) => {
                    // The first that is not there whole.
                    left.remove(change.name());
                    if let Change::Append(name, bytes) = change {
                        let torn = random.below(bytes.len() as u64) as usize;
                        let torn = Change::Append(name.clone(), bytes[..torn].to_vec());
                        torn.apply(&mut self.stored);
                    }
                }
                Some(count) => {
                    *count -= 1;
                    change.apply(&mut self.stored);
                }
                None => {}
            }
        }
        self.synced = end.0;
        self.cached = self.stored.clone();
    }

    /// Flips a bit of a byte that is on the disk. Returns its file and where it is there; nothing if there is no byte.
    pub(super) fn damage(&mut self, random: &mut Random) -> Option<(String, usize)> {
        let names: Vec<&String> = self
            .stored
            .iter()
            .filter(|(_, bytes)| !bytes.is_empty())
            .map(|(name, _)| name)
            .collect();
        let name = (!names.is_empty()).then(|| (*random.choose(&names)).clone())?;
        let stored = self.stored.get_mut(&name)?;
        let at = random.below(stored.len() as u64) as usize;
        let bit = 1 << random.below(8);
        stored[at] ^= bit;
        // The page cache has the same byte, unless the file has been replaced there.
        let is_replaced =
            |change: &Change| !matches!(change, Change::Append(..)) && change.name() == name;
        if !self.changes.iter().any(is_replaced)
            && let Some(cached) = self.cached.get_mut(&name)
        {
            cached[at] ^= bit;
        }
        Some((name, at))
    }

    /// Has what the backup has on the disk.
    pub(super) fn restore(&mut self, backup: &Self) {
        self.synced = self.mark().0;
        self.changes.clear();
        self.stored = backup.stored.clone();
        self.cached = backup.stored.clone();
    }
}

impl Change {
    fn name(&self) -> &str {
        let (Self::Append(name, _) | Self::Replace(name, _) | Self::Remove(name)) = self;
        name
    }

    fn apply(&self, files: &mut BTreeMap<String, Vec<u8>>) {
        match self {
            Self::Append(name, bytes) => files.entry(name.clone()).or_default().extend(bytes),
            Self::Replace(name, bytes) => drop(files.insert(name.clone(), bytes.clone())),
            Self::Remove(name) => drop(files.remove(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        let mut disk = Disk::default();
        disk.append("log", b"kept,").unwrap();
        disk.synced(disk.mark());
        for _ in 0..4 {
            disk.append("log", b"12345678,").unwrap();
        }
        disk
    }

    #[test]
    fn power_loss_takes_a_suffix_of_what_was_not_synced() {
        let whole = disk().read("log").unwrap().to_vec();
        let (mut lengths, mut torn) = (std::collections::BTreeSet::new(), 0);
        for seed in 0..200 {
            let mut disk = disk();
            disk.lose_power(&mut Random::new(seed, 0));
            let left = disk.read("log").unwrap();
            assert!(left.starts_with(b"kept,") && whole.starts_with(left), "seed {seed}: {left:?}");
            lengths.insert(left.len());
            torn += u64::from(!(left.len() - 5).is_multiple_of(9));
        }
        assert!(lengths.contains(&whole.len()), "at times all is there");
        assert!(lengths.contains(&5), "at times nothing is");
        assert!(torn > 50, "{torn} of 200 are torn within a record");
    }

    #[test]
    fn a_replaced_file_is_the_old_or_the_new() {
        let (mut old, mut new) = (0, 0);
        for seed in 0..100 {
            let mut disk = Disk::default();
            disk.replace("state", b"old").unwrap();
            disk.synced(disk.mark());
            disk.replace("state", b"newer").unwrap();
            disk.lose_power(&mut Random::new(seed, 0));
            match disk.read("state") {
                Some(b"old") => old += 1,
                Some(b"newer") => new += 1,
                left => panic!("seed {seed}: {left:?}"),
            }
        }
        assert!(old > 20 && new > 20, "{old} old, {new} new");
    }

    #[test]
    fn a_sync_covers_what_was_written_before_it_was_asked_for() {
        let mut disk = Disk::default();
        disk.append("log", b"a").unwrap();
        let mark = disk.mark();
        disk.append("log", b"b").unwrap();
        disk.synced(mark);
        let backup = disk.clone();
        disk.restore(&backup);
        assert_eq!(disk.read("log"), Some(&b"a"[..]));
        disk.synced(backup.mark());
        assert_eq!(disk.read("log"), Some(&b"a"[..]), "a sync of the former life brings nothing");
    }

    #[test]
    fn a_full_disk_refuses_and_keeps_what_it_has() {
        let mut disk = disk();
        disk.limit(Some(4));
        let full = DiskFull { wanted: 5, free: 4 };
        assert_eq!(disk.append("log", b"12345"), Err(full));
        assert_eq!(disk.replace("other", b"12345"), Err(full));
        assert_eq!(disk.append("log", b"1234"), Ok(()));
        assert_eq!(disk.read("log").unwrap().len(), 5 + 36 + 4);
        disk.remove("log");
        assert_eq!((disk.read("log"), disk.names().count()), (None, 0));
    }

    #[test]
    fn damage_changes_one_bit_of_a_stored_byte() {
        for seed in 0..50 {
            let mut disk = disk();
            let before = disk.read("log").unwrap().to_vec();
            let (name, at) = disk.damage(&mut Random::new(seed, 0)).unwrap();
            assert!(name == "log" && at < 5, "only what is on the disk: {at}");
            let after = disk.read("log").unwrap();
            let bits = before.iter().zip(after).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
            assert_eq!((bits, before.len()), (1, after.len()));
        }
        assert_eq!(Disk::default().damage(&mut Random::new(1, 0)), None);
    }
}
