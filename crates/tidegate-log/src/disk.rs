//! The base of [`Files`](crate::Files): one flat folder of files that are mapped.
//!
//! The real one is [`Folder`]; [`simulated`](crate::simulated) has one that loses power. Every call can fail.

use std::{io, ops::Range};

use bytes::Bytes;
use tidegate_sys::{
    folder::{Folder, FolderFile},
    region::{Region, RegionError, RegionWriter},
};

/// A folder that belongs to one log.
///
/// Names survive a loss of power once [`Disk::sync`] has returned, bytes once [`DiskFile::sync`] of their file has. Before, any of
/// them may or may not, in any order and in parts.
pub trait Disk: Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// Everything in the folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    fn list(&self) -> io::Result<Vec<DiskEntry>>;

    /// Makes a file of `len` zero bytes that the disk has room for.
    ///
    /// # Errors
    /// The name is taken, or the disk is full (`StorageFull`) or failed.
    fn create(&self, name: &str, len: u64) -> io::Result<Self::File>;

    /// Opens a file.
    ///
    /// # Errors
    /// There is none, it is not to be trusted, or the disk failed.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name, in place of what had it.
    ///
    /// # Errors
    /// There is no such file, or the disk failed.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Its maps stay.
    ///
    /// # Errors
    /// There is no such file, or the disk failed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable.
    ///
    /// # Errors
    /// The disk failed; a later success says nothing of what was asked before.
    fn sync(&self) -> io::Result<()>;

    /// Bytes that it has left for files, about: others may take them meanwhile.
    ///
    /// # Errors
    /// The disk failed.
    fn free(&self) -> io::Result<u64>;
}

/// An entry of a [`Disk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskEntry {
    /// The name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Whether it is a plain file that no other user may write to.
    pub is_trusted: bool,
}

/// A file of a [`Disk`].
pub trait DiskFile: Send + Sync + 'static {
    /// Its bytes as memory.
    type Map: DiskMap;

    /// Its size in bytes.
    ///
    /// # Errors
    /// The disk failed.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// The file ends before, or the disk failed.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Begins to read a range, without waiting for it. A hint.
    fn prefetch(&self, _range: Range<u64>) {}

    /// Cuts or lengthens it. Not while it is mapped.
    ///
    /// # Errors
    /// It is mapped, or the disk is full or failed.
    fn resize(&self, len: u64) -> io::Result<()>;

    /// Makes its bytes durable, those written through its map included.
    ///
    /// # Errors
    /// The disk failed; a later success says nothing of what was asked before.
    fn sync(&self) -> io::Result<()>;

    /// Maps all of it, with nothing published.
    ///
    /// # Errors
    /// It is empty or mapped already, or the system refuses.
    fn map(&self) -> io::Result<Self::Map>;
}

/// The writer's end of a mapped file; see [`RegionWriter`].
pub trait DiskMap: Send + 'static {
    /// Another handle for readers.
    fn region(&self) -> Region;

    /// Bytes from the start that are readable.
    fn published(&self) -> usize;

    /// Copies bytes to above what is published.
    ///
    /// # Errors
    /// They would not lie there.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), RegionError>;

    /// Bytes above what is published, to be written in place.
    ///
    /// # Errors
    /// They would not lie there.
    fn buffer(&mut self, range: Range<usize>) -> Result<&mut [u8], RegionError>;

    /// Makes the bytes below `end` readable and final.
    ///
    /// # Errors
    /// `end` lies below what is published, or beyond the file.
    fn publish(&mut self, end: usize) -> Result<(), RegionError>;

    /// Starts over with nothing published, if the map has no other holder. Returns whether it did.
    fn reset(&mut self) -> bool;

    /// Whether anyone apart from `handles` known regions holds the map.
    fn is_pinned_beyond(&self, handles: usize) -> bool;

    /// Whether part of the file cannot be reached, so that what is written there is lost.
    fn is_damaged(&self) -> bool;

    /// Whether what is written stays in this process: the disk could only be read when the file was opened.
    fn is_private(&self) -> bool;
}

impl Disk for Folder {
    type File = FolderFile;

    fn list(&self) -> io::Result<Vec<DiskEntry>> {
        let entry = |found: tidegate_sys::folder::Found| DiskEntry {
            name: found.name.to_string_lossy().into_owned(),
            is_trusted: found.is_file && found.is_ours,
        };
        Ok(Folder::list(self)?.into_iter().map(entry).collect())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<FolderFile> {
        Folder::create(self, name, len)
    }

    fn open(&self, name: &str) -> io::Result<FolderFile> {
        self.open_existing(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Folder::rename(self, from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Folder::remove(self, name)
    }

    fn sync(&self) -> io::Result<()> {
        Folder::sync(self)
    }

    fn free(&self) -> io::Result<u64> {
        Folder::free(self)
    }
}

impl DiskFile for FolderFile {
    type Map = RegionWriter;

    fn size(&self) -> io::Result<u64> {
        self.len()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        FolderFile::read_at(self, offset, bytes)
    }

    fn prefetch(&self, range: Range<u64>) {
        FolderFile::prefetch(self, range);
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        FolderFile::resize(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        FolderFile::sync(self)
    }

    fn map(&self) -> io::Result<RegionWriter> {
        FolderFile::map(self)
    }
}

impl DiskMap for RegionWriter {
    fn region(&self) -> Region {
        RegionWriter::region(self)
    }

    fn published(&self) -> usize {
        RegionWriter::published(self)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        // Not past the cache: the checksum reads these bytes next.
        self.buffer(offset..offset.saturating_add(bytes.len()))?.copy_from_slice(bytes);
        Ok(())
    }

    fn buffer(&mut self, range: Range<usize>) -> Result<&mut [u8], RegionError> {
        RegionWriter::buffer(self, range)
    }

    fn publish(&mut self, end: usize) -> Result<(), RegionError> {
        RegionWriter::publish(self, end)
    }

    fn reset(&mut self) -> bool {
        RegionWriter::reset(self)
    }

    fn is_pinned_beyond(&self, handles: usize) -> bool {
        RegionWriter::is_pinned_beyond(self, handles)
    }

    fn is_damaged(&self) -> bool {
        RegionWriter::is_damaged(self)
    }

    fn is_private(&self) -> bool {
        RegionWriter::is_private(self)
    }
}

/// All bytes of a map that was published whole.
pub(crate) fn whole(map: &impl DiskMap) -> Bytes {
    map.region().slice(0..map.published()).expect("this is what is published")
}
