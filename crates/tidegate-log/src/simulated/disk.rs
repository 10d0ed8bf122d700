//! The disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_sys::region::{Region, RegionError, RegionWriter};

use super::Dice;
use crate::disk::{Disk, DiskEntry, DiskFile, DiskMap};

/// The unit that a disk writes whole or tears.
const SECTOR_BYTES: usize = 512;

/// A disk in memory. Clones are the same disk.
#[derive(Clone)]
pub struct SimulatedDisk {
    world: Arc<Mutex<World>>,
}

struct World {
    dice: Dice,
    files: BTreeMap<u64, Content>,
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    /// Changes of names since they were synced.
    changes: Vec<Change>,
    created: u64,
    capacity: u64,
    fails_syncs: bool,
    /// How many more operations reach the disk, before the power goes.
    operations_left: Option<u64>,
}

#[derive(Clone)]
enum Change {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Default)]
struct Content {
    /// As the page cache has it.
    cached: Vec<u8>,
    /// As the disk has it.
    stored: Vec<u8>,
    /// Sectors that a failed sync has dropped: they count as written, and are not.
    dropped: BTreeSet<usize>,
    is_mapped: bool,
}

impl SimulatedDisk {
    /// An empty disk without limit.
    pub fn new(seed: u64) -> Self {
        let world = World {
            dice: Dice(seed),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            changes: Vec::new(),
            created: 0,
            capacity: u64::MAX,
            fails_syncs: false,
            operations_left: None,
        };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// Bytes that all files may have together.
    pub fn set_capacity(&self, bytes: u64) {
        self.world().capacity = bytes;
    }

    /// Whether syncs fail from now on. Data that a failed sync should have written is lost, although it counts as
    /// written.
    pub fn fail_syncs(&self, fails: bool) {
        self.world().fails_syncs = fails;
    }

    /// The power goes after so many more operations: those after it fail and change nothing.
    pub fn cut_power_after(&self, operations: u64) {
        self.world().operations_left = Some(operations);
    }

    /// Whether the power has gone.
    pub fn is_dark(&self) -> bool {
        self.world().operations_left == Some(0)
    }

    /// The process has ended; the page cache is as it was.
    pub fn end_process(&self) {
        let mut world = self.world();
        world.operations_left = None;
        for content in world.files.values_mut() {
            content.is_mapped = false;
        }
    }

    /// The power has gone and is back.
    pub fn lose_power(&self) {
        let mut world = self.world();
        world.operations_left = None;
        world.lose_power();
    }

    /// The bytes that a file has in the page cache.
    pub fn bytes_of(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.world();
        let id = world.names.get(name)?;
        world.files.get(id).map(|content| content.cached.clone())
    }

    /// Whether any file, named or not, has these bytes, on the disk or in the page cache.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let world = self.world();
        let has = |part: &[u8]| {
            let mut starts = (0..part.len()).filter(|&start| Some(&part[start]) == bytes.first());
            starts.any(|start| part[start..].starts_with(bytes))
        };
        world.files.values().any(|content| has(&content.cached) || has(&content.stored))
    }

    /// Puts a file there whole, or in place of one, cache and disk alike.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut world = self.world();
        let id = world.created;
        world.created += 1;
        let content = Content { stored: bytes.clone(), cached: bytes, ..Content::default() };
        world.files.insert(id, content);
        world.names.insert(name.to_owned(), id);
        world.synced_names.insert(name.to_owned(), id);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// Bytes that are left.
    fn free(&self) -> u64 {
        let used: usize = self.files.values().map(|content| content.cached.len()).sum();
        self.capacity.saturating_sub(used as u64)
    }

    /// One more operation, before which the kernel may write back what it likes.
    fn operate(&mut self) -> io::Result<()> {
        match &mut self.operations_left {
            Some(0) => return Err(io::Error::other("the power is gone")),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.dice.once_in(40) {
            self.write_back();
        }
        Ok(())
    }

    /// Writes some sectors of some file, as the kernel does at any time.
    fn write_back(&mut self) {
        let ids: Vec<u64> = self.files.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.dice.below(ids.len() as u64) as usize];
        let content = self.files.get_mut(&id).expect("it was listed");
        let sectors = content.cached.len().div_ceil(SECTOR_BYTES);
        content.stored.resize(content.cached.len(), 0);
        let odds = 1 + self.dice.below(4);
        for sector in 0..sectors {
            if self.dice.once_in(odds) {
                content.write(sector);
            }
        }
    }

    fn lose_power(&mut self) {
        let mut names = std::mem::take(&mut self.synced_names);
        for change in std::mem::take(&mut self.changes) {
            if self.dice.once_in(2) {
                change.apply(&mut names);
            }
        }
        for content in self.files.values_mut() {
            if content.stored.len() != content.cached.len() && self.dice.once_in(2) {
                content.stored.resize(content.cached.len(), 0);
            }
            for sector in 0..content.stored.len().div_ceil(SECTOR_BYTES) {
                let range = content.range(sector);
                if range.end > content.cached.len() || content.is_written(sector) {
                    continue;
                }
                match self.dice.below(4) {
                    0 => {}
                    1 | 2 => content.write(sector),
                    _ => {
                        let len = range.len() as u64;
                        let torn = range.start + self.dice.below(len) as usize;
                        let half =
                            if self.dice.once_in(2) { range.start..torn } else { torn..range.end };
                        content.stored[half.clone()].copy_from_slice(&content.cached[half]);
                    }
                }
            }
            content.cached = content.stored.clone();
            content.dropped.clear();
            content.is_mapped = false;
        }
        self.names = names.clone();
        self.synced_names = names;
        self.forget_nameless();
    }

    fn forget_nameless(&mut self) {
        let named: BTreeSet<u64> =
            self.names.values().chain(self.synced_names.values()).copied().collect();
        self.files.retain(|id, content| named.contains(id) || content.is_mapped);
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Create(name, id) => drop(names.insert(name.clone(), *id)),
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Self::Remove(name) => drop(names.remove(name)),
        }
    }
}

impl Content {
    fn range(&self, sector: usize) -> Range<usize> {
        let start = sector * SECTOR_BYTES;
        start..(start + SECTOR_BYTES).min(self.stored.len())
    }

    fn is_written(&self, sector: usize) -> bool {
        let range = self.range(sector);
        self.dropped.contains(&sector) || self.stored[range.clone()] == self.cached[range]
    }

    fn write(&mut self, sector: usize) {
        if !self.dropped.contains(&sector) {
            let range = self.range(sector);
            self.stored[range.clone()].copy_from_slice(&self.cached[range]);
        }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.cached[offset..offset + bytes.len()].copy_from_slice(bytes);
        for sector in offset / SECTOR_BYTES..(offset + bytes.len()).div_ceil(SECTOR_BYTES) {
            self.dropped.remove(&sector);
        }
    }
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;

    fn list(&self) -> io::Result<Vec<DiskEntry>> {
        let mut world = self.world();
        world.operate()?;
        let entry = |name: &String| DiskEntry { name: name.clone(), is_trusted: true };
        Ok(world.names.keys().map(entry).collect())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<SimulatedFile> {
        let mut world = self.world();
        world.operate()?;
        if world.names.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        if len > world.free() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let id = world.created;
        world.created += 1;
        let cached = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        world.files.insert(id, Content { cached, ..Content::default() });
        world.change(Change::Create(name.to_owned(), id));
        Ok(SimulatedFile { disk: self.clone(), id })
    }

    fn open(&self, name: &str) -> io::Result<SimulatedFile> {
        let mut world = self.world();
        world.operate()?;
        let id = *world.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(SimulatedFile { disk: self.clone(), id })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world();
        world.operate()?;
        if !world.names.contains_key(from) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        world.change(Change::Rename(from.to_owned(), to.to_owned()));
        world.forget_nameless();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world();
        world.operate()?;
        if !world.names.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        world.change(Change::Remove(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world();
        world.operate()?;
        if world.fails_syncs {
            return Err(io::Error::other("the disk failed on demand"));
        }
        world.synced_names = world.names.clone();
        world.changes.clear();
        world.forget_nameless();
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        Ok(self.world().free())
    }
}

/// A file of a simulated disk.
pub struct SimulatedFile {
    disk: SimulatedDisk,
    id: u64,
}

impl SimulatedFile {
    fn with<T>(
        &self,
        act: impl FnOnce(&mut Content, &mut Dice, bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut world = self.disk.world();
        world.operate()?;
        let World { files, dice, fails_syncs, .. } = &mut *world;
        let content = files.get_mut(&self.id).ok_or(io::ErrorKind::NotFound)?;
        act(content, dice, *fails_syncs)
    }
}

impl DiskFile for SimulatedFile {
    type Map = SimulatedMap;

    fn size(&self) -> io::Result<u64> {
        self.with(|content, _, _| Ok(content.cached.len() as u64))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.with(|content, _, _| {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let source = content.cached.get(start..start + bytes.len());
            bytes.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.with(|content, _, _| {
            if content.is_mapped {
                return Err(io::Error::from(io::ErrorKind::ResourceBusy));
            }
            content.cached.resize(usize::try_from(len).map_err(io::Error::other)?, 0);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|content, dice, fails| {
            content.stored.resize(content.cached.len(), 0);
            for sector in 0..content.stored.len().div_ceil(SECTOR_BYTES) {
                if !fails {
                    content.write(sector);
                } else if !content.is_written(sector) && dice.once_in(2) {
                    content.dropped.insert(sector);
                }
            }
            if fails { Err(io::Error::other("the disk failed on demand")) } else { Ok(()) }
        })
    }

    fn map(&self) -> io::Result<SimulatedMap> {
        self.with(|content, _, _| {
            if std::mem::replace(&mut content.is_mapped, true) {
                return Err(io::Error::from(io::ErrorKind::ResourceBusy));
            }
            let (mut writer, _) = Region::anonymous(content.cached.len())?;
            writer.write(0, &content.cached).map_err(io::Error::other)?;
            let file = Self { disk: self.disk.clone(), id: self.id };
            Ok(SimulatedMap { file, writer, filled: Vec::new() })
        })
    }
}

/// The map of such a file. Data filled in place reaches the page cache when it is published.
pub struct SimulatedMap {
    file: SimulatedFile,
    writer: RegionWriter,
    /// Handed out to be filled in place, and not published.
    filled: Vec<Range<usize>>,
}

impl SimulatedMap {
    fn store(&self, offset: usize, bytes: &[u8]) {
        // Without power it is lost; the process does not know yet.
        let _ = self.file.with(|content, _, _| {
            content.store(offset, bytes);
            Ok(())
        });
    }
}

impl DiskMap for SimulatedMap {
    fn region(&self) -> Region {
        self.writer.region()
    }

    fn published(&self) -> usize {
        self.writer.published()
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.writer.write(offset, bytes)?;
        self.store(offset, bytes);
        Ok(())
    }

    fn buffer(&mut self, range: Range<usize>) -> Result<&mut [u8], RegionError> {
        let buffer = self.writer.buffer(range.clone())?;
        self.filled.push(range);
        Ok(buffer)
    }

    fn publish(&mut self, end: usize) -> Result<(), RegionError> {
        self.writer.publish(end)?;
        for Range { start, end: until } in std::mem::take(&mut self.filled) {
            self.store(start, &self.writer.region().slice(start..until.min(end).max(start))?);
        }
        Ok(())
    }

    fn reset(&mut self) -> bool {
        self.filled.clear();
        self.writer.reset()
    }

    fn is_pinned_beyond(&self, handles: usize) -> bool {
        self.writer.is_pinned_beyond(handles)
    }

    fn is_damaged(&self) -> bool {
        false
    }

    fn is_private(&self) -> bool {
        false
    }
}

impl Drop for SimulatedMap {
    fn drop(&mut self) {
        let mut world = self.file.disk.world();
        if let Some(content) = world.files.get_mut(&self.file.id) {
            content.is_mapped = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_data_survives_and_the_rest_by_the_dice() {
        let (mut kept, mut lost, mut torn, mut nameless) = (0, 0, 0, 0);
        for seed in 0..200 {
            let disk = SimulatedDisk::new(seed);
            let file = disk.create("a", 4096).unwrap();
            let mut map = file.map().unwrap();
            map.write(0, &[1; 1000]).unwrap();
            file.sync().unwrap();
            disk.sync().unwrap();
            disk.create("b", 512).unwrap();
            map.write(2048, &[2; 512]).unwrap();
            drop(map);
            disk.lose_power();
            let bytes = disk.bytes_of("a").unwrap();
            assert!(bytes.len() == 4096 && bytes[..1000].iter().all(|&byte| byte == 1));
            match bytes[2048..2560].iter().filter(|&&byte| byte == 2).count() {
                0 => lost += 1,
                512 => kept += 1,
                _ => torn += 1,
            }
            nameless += u64::from(disk.bytes_of("b").is_none());
        }
        assert!(kept > 20 && lost > 20 && torn > 20 && nameless > 20, "{kept} {lost} {torn}");
    }

    #[test]
    fn a_sync_after_a_failed_one_does_not_bring_back_what_was_dropped() {
        let mut missing = 0;
        for seed in 0..100 {
            let disk = SimulatedDisk::new(seed);
            let file = disk.create("a", 512).unwrap();
            disk.sync().unwrap();
            file.sync().unwrap();
            let mut map = file.map().unwrap();
            map.write(0, &[1; 512]).unwrap();
            disk.fail_syncs(true);
            assert!(file.sync().is_err() && disk.sync().is_err());
            disk.fail_syncs(false);
            file.sync().unwrap();
            drop(map);
            disk.lose_power();
            missing += u64::from(disk.bytes_of("a").unwrap()[0] == 0);
        }
        assert!((20..80).contains(&missing), "{missing}");
    }

    #[test]
    fn without_power_nothing_happens() {
        let disk = SimulatedDisk::new(1);
        disk.cut_power_after(1);
        let file = disk.create("a", 512).unwrap();
        assert!(disk.is_dark());
        assert!(file.map().is_err() && disk.list().is_err() && disk.rename("a", "b").is_err());
        disk.end_process();
        assert_eq!(disk.list().unwrap().len(), 1);
    }
}
