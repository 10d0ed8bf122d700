//! A folder that belongs to one process, and its files as mapped regions.
//!
//! ```text
//!  Folder::open ── exclusive lock ──▶ create, open ──▶ FolderFile ──map──▶ RegionWriter
//!                                     rename, remove    │ sync, resize        (stores)
//!                                     sync (names)      └─ fdatasync
//! ```
//!
//! Every name is looked up in the opened folder itself (`openat`), and no link is followed: a replacement of the folder by
//! another program, or a link left inside it, leads nowhere else.
//!
//! Bytes of a mapped file are memory of this program, and every other writer of the file writes to it. The folder is therefore
//! locked (`flock`), refused if others than its owner may write there, and its files are made with mode
//! 0600. A program of the same user that ignores the lock can still change what readers hold; that it cuts a file does not end
//! the process (see `sigbus`).
//!
//! Always true: one file is mapped at most once; a mapped file is not resized; a created file has all its blocks, so that writing
//! to its map never finds the disk full.

use std::{
    ffi::{CStr, CString, OsString},
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::FileExt,
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{lock::Lock, region::RegionWriter};

/// A locked folder. Clones share the lock, which ends with the last of them, its files and its maps.
#[derive(Clone)]
pub struct Folder {
    lock: Arc<Lock>,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name.
    pub name: OsString,
    /// Whether it is a plain file: no folder, link or device.
    pub is_file: bool,
    /// Whether the user of this process owns it and no other user may write to it.
    pub is_ours: bool,
    /// Size in bytes.
    pub len: u64,
}

impl Folder {
    /// Opens the folder at `path` and locks it. A folder that is missing is made, with mode 0700, in one that exists.
    ///
    /// # Errors
    /// [`FolderError`], by kind.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        Self::lock(path, enter(libc::AT_FDCWD, path.as_os_str().as_bytes(), path)?)
    }

    /// Opens the folder `names`, one in the other, below `root`, and locks the last. Those that are missing are made, with mode 0700;
    /// the others are refused like the last one if they are links, another user's, or open to others' writing. `root` may be
    /// a link; it has to be there.
    ///
    /// # Errors
    /// [`FolderError`], by kind.
    pub fn open_below(root: &Path, names: &[&str]) -> Result<Self, FolderError> {
        let failed = |source| FolderError::Io { path: root.to_owned(), source };
        let name = c_string(root.as_os_str().as_bytes()).map_err(failed)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: `name` ends with NUL and lives through the call.
        let mut fd = owned(unsafe { libc::open(name.as_ptr(), flags) }).map_err(failed)?;
        let (mut path, mut status) = (root.to_owned(), status(&fd).map_err(failed)?);
        for name in names {
            path.push(name);
            let plain =
                plain(name).map_err(|source| FolderError::Io { path: path.clone(), source })?;
            (fd, status) = enter(fd.as_raw_fd(), plain.as_bytes(), &path)?;
        }
        Self::lock(&path, (fd, status))
    }

    fn lock(path: &Path, (fd, status): (OwnedFd, libc::stat)) -> Result<Self, FolderError> {
        let failed = |source| FolderError::Io { path: path.to_owned(), source };
        let mode = status.st_mode & 0o777;
        // SAFETY: the descriptor is open for the length of the call.
        if unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return Err(match error.kind() {
                io::ErrorKind::WouldBlock => FolderError::Locked { path: path.to_owned() },
                _ => failed(error),
            });
        }
        let lock = Lock::new(fd, path.to_owned(), mode & 0o055 != 0);
        Ok(Self { lock: Arc::new(lock) })
    }

    /// Where it is, as it was opened.
    pub fn path(&self) -> &Path {
        &self.lock.path
    }

    /// Whether other users may look into the folder. Its files have mode 0600 nevertheless.
    pub fn is_readable_by_others(&self) -> bool {
        self.lock.readable_by_others
    }

    /// Everything in the folder, in no order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> io::Result<Vec<Found>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: the descriptor is open and the name ends with NUL.
        let fd = owned(unsafe { libc::openat(self.fd(), c".".as_ptr(), flags) })?;
        // SAFETY: the descriptor is one of a folder; on success the stream owns it and closes it.
        let stream = unsafe { libc::fdopendir(fd.as_raw_fd()) };
        if stream.is_null() {
            return Err(io::Error::last_os_error());
        }
        std::mem::forget(fd);
        let stream = Stream(stream);
        let mut found = Vec::new();
        loop {
            // SAFETY: errno is this thread's own; only setting it apart tells an error from the end.
            unsafe { *libc::__errno_location() = 0 };
            // SAFETY: the stream is open, and no other thread uses it.
            let entry = unsafe { libc::readdir(stream.0) };
            if entry.is_null() {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(0) | None => Ok(found),
                    Some(_) => Err(error),
                };
            }
            // SAFETY: readdir gave an entry, whose name ends with NUL and stays until the next call.
            let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match self.status_of(name) {
                Ok(status) => found.push(Found {
                    name: OsString::from_vec(name.to_bytes().to_vec()),
                    is_file: status.st_mode & libc::S_IFMT == libc::S_IFREG,
                    is_ours: is_ours(&status),
                    len: u64::try_from(status.st_size).unwrap_or(0),
                }),
                // It went between the two calls.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a new file of `len` bytes, all zero and all allocated, with mode 0600.
    ///
    /// # Errors
    /// The name is taken or no plain name, or the disk is full (`StorageFull`): then there is no file.
    pub fn create(&self, name: &str, len: u64) -> io::Result<FolderFile> {
        let file = self.open_file(name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        if let Err(error) = file.resize(len) {
            // An empty file may remain; the error to report is the first one.
            let _ = self.remove(name);
            return Err(error);
        }
        Ok(file)
    }

    /// Opens a file that is there, for reading and writing; on a disk that can only be read, for reading.
    ///
    /// # Errors
    /// There is none of that name, it is a link or no plain file, or others than its owner may write to it.
    pub fn open_existing(&self, name: &str) -> io::Result<FolderFile> {
        match self.open_file(name, libc::O_RDWR) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                self.open_file(name, libc::O_RDONLY)
            }
            opened => opened,
        }
    }

    fn open_file(&self, name: &str, flags: libc::c_int) -> io::Result<FolderFile> {
        let name = plain(name)?;
        let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let mode: libc::c_uint = 0o600;
        // SAFETY: the descriptor is open, and the name ends with NUL and lives through the call.
        let fd = owned(unsafe { libc::openat(self.fd(), name.as_ptr(), flags, mode) })?;
        let status = status(&fd)?;
        if status.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a plain file"));
        }
        if !is_ours(&status) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the file belongs to another user, or others may write to it",
            ));
        }
        Ok(FolderFile {
            file: File::from(fd),
            inode: status.st_ino,
            is_read_only,
            lock: Arc::clone(&self.lock),
        })
    }

    /// Gives a file another name, in place of what had that name before.
    ///
    /// # Errors
    /// There is no such file, or the disk failed.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (plain(from)?, plain(to)?);
        // SAFETY: the descriptor is open, and both names end with NUL and live through the call.
        check(unsafe { libc::renameat(self.fd(), from.as_ptr(), self.fd(), to.as_ptr()) })
    }

    /// Removes a file. Maps of it stay readable.
    ///
    /// # Errors
    /// There is no such file, or the disk failed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = plain(name)?;
        // SAFETY: the descriptor is open, and the name ends with NUL and lives through the call.
        check(unsafe { libc::unlinkat(self.fd(), name.as_ptr(), 0) })
    }

    /// Makes the names in this folder survive a loss of power.
    ///
    /// # Errors
    /// The disk failed: then nothing of what was to be made durable is.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        check(unsafe { libc::fsync(self.fd()) })
    }

    /// Bytes that the disk of the folder has left for this user, quotas aside.
    ///
    /// # Errors
    /// The disk failed.
    pub fn free(&self) -> io::Result<u64> {
        let mut status = std::mem::MaybeUninit::uninit();
        // SAFETY: the descriptor is open, and `status` has room for the answer.
        check(unsafe { libc::fstatvfs(self.fd(), status.as_mut_ptr()) })?;
        // SAFETY: the call succeeded, so it filled the structure.
        let status: libc::statvfs = unsafe { status.assume_init() };
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn fd(&self) -> libc::c_int {
        self.lock.fd.as_raw_fd()
    }

    fn status_of(&self, name: &CStr) -> io::Result<libc::stat> {
        let mut status = std::mem::MaybeUninit::uninit();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: the descriptor is open, the name ends with NUL, and `status` has room for the answer.
        check(unsafe { libc::fstatat(self.fd(), name.as_ptr(), status.as_mut_ptr(), flags) })?;
        // SAFETY: the call succeeded, so it filled the structure.
        Ok(unsafe { status.assume_init() })
    }
}

/// An open file of a locked folder.
pub struct FolderFile {
    file: File,
    inode: u64,
    is_read_only: bool,
    lock: Arc<Lock>,
}

impl FolderFile {
    /// Size in bytes.
    ///
    /// # Errors
    /// The disk failed.
    #[expect(clippy::len_without_is_empty, reason = "it can fail")]
    pub fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    /// Cuts the file to `len` bytes, or makes it that long, with blocks for all of it.
    ///
    /// # Errors
    /// The file is mapped (`ResourceBusy`), was opened for reading only (`ReadOnlyFilesystem`), or the disk is full (`StorageFull`)
    /// or failed.
    pub fn resize(&self, len: u64) -> io::Result<()> {
        if self.is_read_only {
            return Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        }
        let mapped = self.lock.mapped();
        if mapped.contains(&self.inode) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "a mapped file has its size"));
        }
        if len < self.len()? {
            self.file.set_len(len)?;
        }
        let Ok(len) = libc::off_t::try_from(len) else {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        };
        if len == 0 {
            return Ok(());
        }
        // It lengthens the file as it goes, so that no process that ends meanwhile leaves a hole.
        // SAFETY: the descriptor is open. The call returns its error, and does not set errno.
        match unsafe { libc::posix_fallocate(self.file.as_raw_fd(), 0, len) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// The file ends before (`UnexpectedEof`), or the disk failed.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Writes `bytes` from `offset` on.
    ///
    /// # Errors
    /// The disk is full (`StorageFull`) or failed: some of it may be written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Gives the blocks of a range back, which reads as zeros then. The file keeps its size.
    ///
    /// # Errors
    /// The range is empty or beyond what there can be, or the file system cannot (`Unsupported`).
    pub fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let start = libc::off_t::try_from(range.start).map_err(too_large)?;
        let len = range.end.saturating_sub(range.start);
        let len = libc::off_t::try_from(len).map_err(too_large)?;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open; the call only changes the file.
        check(unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start, len) })?;
        Ok(())
    }

    /// Has the kernel begin to read a range, without waiting for it. A hint.
    pub fn prefetch(&self, range: Range<u64>) {
        let (Ok(start), Ok(len)) =
            (range.start.try_into(), range.end.saturating_sub(range.start).try_into())
        else {
            return;
        };
        // SAFETY: the descriptor is open. Where the kernel cannot, the read waits.
        unsafe {
            libc::posix_fadvise(self.file.as_raw_fd(), start, len, libc::POSIX_FADV_WILLNEED)
        };
    }

    /// Makes the bytes and the size of the file survive a loss of power, what was written through its map included.
    ///
    /// # Errors
    /// The disk failed: data written since the last success may or may not be there, and a later success says nothing of it.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Maps the whole file. Nothing of it is published.
    ///
    /// # Errors
    /// The file is empty or mapped already, or the kernel refuses.
    pub fn map(&self) -> io::Result<RegionWriter> {
        let len = usize::try_from(self.len()?)
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let is_mapped =
            || io::Error::new(io::ErrorKind::ResourceBusy, "the file is mapped already");
        let hold = self.lock.hold(self.inode).ok_or_else(is_mapped)?;
        RegionWriter::of_file(&self.file, len, self.is_read_only, hold)
    }
}

struct Stream(*mut libc::DIR);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open and is not used again. An error of closing what was only read means nothing.
        unsafe { libc::closedir(self.0) };
    }
}

/// The user that this process runs as, whom files are to belong to.
pub fn user() -> u32 {
    // SAFETY: the call has no precondition.
    unsafe { libc::geteuid() }
}

/// Opens a folder in another one, after making it if it is missing.
fn enter(at: libc::c_int, name: &[u8], path: &Path) -> Result<(OwnedFd, libc::stat), FolderError> {
    let failed = |source| FolderError::Io { path: path.to_owned(), source };
    let name = c_string(name).map_err(failed)?;
    // SAFETY: `at` is an open folder or the current one, and `name` ends with NUL and lives through the call.
    if unsafe { libc::mkdirat(at, name.as_ptr(), 0o700) } != 0 {
        let error = io::Error::last_os_error();
        // A disk that takes nothing may have the folder nevertheless: opening it says.
        if !matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::ReadOnlyFilesystem)
        {
            return Err(failed(error));
        }
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: as above.
    let fd = owned(unsafe { libc::openat(at, name.as_ptr(), flags) }).map_err(failed)?;
    let status = status(&fd).map_err(failed)?;
    let user = user();
    let (owner, mode) = (status.st_uid, status.st_mode & 0o777);
    if owner != user {
        return Err(FolderError::Owner { path: path.to_owned(), owner, user });
    }
    if mode & 0o022 != 0 {
        return Err(FolderError::Mode { path: path.to_owned(), mode });
    }
    Ok((fd, status))
}

fn is_ours(status: &libc::stat) -> bool {
    status.st_uid == user() && status.st_mode & 0o022 == 0
}

pub(crate) fn status(fd: &OwnedFd) -> io::Result<libc::stat> {
    let mut status = std::mem::MaybeUninit::uninit();
    // SAFETY: the descriptor is open, and `status` has room for the answer.
    check(unsafe { libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it filled the structure.
    Ok(unsafe { status.assume_init() })
}

pub(crate) fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    check(fd.min(0))?;
    // SAFETY: the call that made it succeeded, and this is the descriptor's only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn check(rc: libc::c_int) -> io::Result<()> {
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A name that stays in its folder.
fn plain(name: &str) -> io::Result<CString> {
    if name.is_empty() || name.contains('/') || matches!(name, "." | "..") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a plain file name"));
    }
    c_string(name.as_bytes())
}

pub(crate) fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a path has no NUL"))
}

/// Why a folder was not opened.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process, or another part of this one, has it.
    #[error("the folder {path} is in use by another process")]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// It belongs to another user.
    #[error(
        "the folder {path} belongs to user {owner}, and this process runs as user {user}; \
         run it as that user, or give the folder to this one"
    )]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user that this process runs as.
        user: u32,
    },
    /// Others may write there.
    #[error("the folder {path} has mode {mode:03o}: others may write there; make it 0700")]
    Mode {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is missing in a folder that is missing too, is no folder, or is a link, or the disk failed.
    #[error("the folder {path} could not be opened")]
    Io {
        /// The folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests;
