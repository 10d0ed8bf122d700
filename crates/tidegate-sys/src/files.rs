//! Files and folders that this program makes: the one place that writes a file that is to last.
//!
//! ```text
//!  put ──▶ .NAME.new, locked ── owner, bytes, sync ──▶ renamed to NAME ──▶ folder synced
//! ```
//!
//! Commands of an administrator write in the folder of a service, which has a user of its own. A file that root makes in the folder of another
//! user is therefore given to that user; else the service could not read its own files. Each name is looked up in the opened folder whose
//! owner was asked (`openat`): a folder or a link that is put there meanwhile leads nowhere else.
//!
//! Always true: a file is the former one or the new one, whole, also after a loss of power; a new one is open to no more users than its mode
//! says, since the umask only takes away; a file that is replaced keeps its owner, its group and its mode.

use std::{
    borrow::Cow,
    ffi::{CStr, CString},
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, PermissionsExt as _, fchown},
        },
    },
    path::Path,
};

use crate::{
    folder::{c_string, check, owned, status, user},
    regular,
};

/// Mode of a file that its owner alone reads.
pub const PRIVATE: u32 = 0o600;
/// Mode of a file that others may read.
pub const READABLE: u32 = 0o644;
/// Mode of a folder that others may look into.
pub const READABLE_FOLDER: u32 = 0o755;
/// Mode of a folder that its owner alone looks into.
pub const PRIVATE_FOLDER: u32 = 0o700;

/// Puts a file in place of the one at `path`, which keeps its owner, group and mode; a new one has `mode`. A link is followed; by root only if
/// root has made it.
///
/// # Errors
/// The system's, among them that the file belongs to a user to whom this one cannot give files. The former file is as it was, unless the
/// last step failed, the sync of the folder.
pub fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    put_with(path, mode, |file| file.write_all(bytes))
}

/// As [`put`], with the bytes that `write` writes.
///
/// # Errors
/// As [`put`], and those of `write`.
pub fn put_with(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let place = Place::of(&followed(path)?)?;
    place.write(mode, |file, beside| {
        let former = place.find(&place.name)?;
        if former.as_ref().is_some_and(|former| former.st_mode & libc::S_IFMT != libc::S_IFREG) {
            let text = "it is no regular file, and is not replaced by one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        place.give(file, former.as_ref())?;
        write(file)?;
        if let Some(former) = former {
            file.set_permissions(Permissions::from_mode(former.st_mode & 0o777))?;
        }
        file.sync_all()?;
        place.rename(beside)
    })
}

/// Makes a file that is not there yet, with `mode`.
///
/// # Errors
/// `AlreadyExists` if something has that name, and the system's. Then there is no file, unless the last step failed, the sync of the folder.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let place = Place::of(path)?;
    place.write(mode, |file, beside| {
        place.give(file, None)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        place.link(beside)?;
        place.remove(beside)
    })
}

/// Opens a file to write at its end; one that is missing is made with `mode`, and its name is on the disk then. A link is followed; by root
/// only if root has made it.
///
/// # Errors
/// The system's, or `InvalidInput` if it is no regular file; the text says what it is.
pub fn append(path: &Path, mode: u32) -> io::Result<File> {
    let place = Place::of(&followed(path)?)?;
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NONBLOCK;
    loop {
        match place.open(&place.name, flags, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return regular::checked(opened),
        }
        match place.open(&place.name, flags | libc::O_CREAT | libc::O_EXCL, mode) {
            // Another process has made it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                let file = made?;
                place.give(&file, None)?;
                place.sync()?;
                return Ok(file);
            }
        }
    }
}

/// Makes a folder with `mode`, and those before it that are missing; those that are there stay as they are.
///
/// # Errors
/// The system's, or `NotADirectory`.
pub fn folder(path: &Path, mode: u32) -> io::Result<()> {
    // The current folder is there.
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    folder(path.parent().unwrap_or(Path::new("")), mode)?;
    let place = Place::of(path)?;
    match place.make_folder(mode) {
        // Another process has made it meanwhile; what else has the name is no folder that opens.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let made = place.open(&place.name, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    place.give(&made, None)?;
    place.sync()
}

/// The path of the file to which a link leads, or `path` itself.
fn followed(path: &Path) -> io::Result<Cow<'_, Path>> {
    let Some(link) = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_symlink) else {
        return Ok(path.into());
    };
    // It could lead root to files that the other user may not write.
    if user() == 0 && link.uid() != 0 {
        let text = format!(
            "it is a link of user {}, which root does not follow; name the file itself",
            link.uid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    fs::canonicalize(path).map(Cow::from)
}

/// A name in an opened folder.
struct Place {
    folder: OwnedFd,
    status: libc::stat,
    name: CString,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = c_string(folder.unwrap_or(Path::new(".")).as_os_str().as_bytes())?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: the path ends with NUL and lives through the call.
        let folder = owned(unsafe { libc::open(folder.as_ptr(), flags) })?;
        Ok(Self { status: status(&folder)?, folder, name: c_string(name.as_bytes())? })
    }

    /// Has `write` fill a file beside this name and put it there, and syncs the folder. The file goes if that fails.
    ///
    /// Its name is the same each time, so that kills leave one such file at most, and it is locked while its writer lives, so that
    /// the next one knows.
    fn write(
        &self,
        mode: u32,
        write: impl FnOnce(&mut File, &CStr) -> io::Result<()>,
    ) -> io::Result<()> {
        let beside = c_string(&[b".", self.name.as_bytes(), b".new"].concat())?;
        let mut file = loop {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
            match self.open(&beside, flags, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.clear(&beside)?;
                }
                made => {
                    let file = made?;
                    file.lock()?;
                    if self.is_of(&beside, &file)? {
                        break file;
                    }
                }
            }
        };
        if let Err(error) = write(&mut file, &beside) {
            // It is ours, and of no use; the error to report is the first.
            let _ = self.remove(&beside);
            return Err(error);
        }
        self.sync()
    }

    /// Removes the file of a writer that was killed; one that still writes is waited for.
    fn clear(&self, beside: &CStr) -> io::Result<()> {
        let file = match self.open(beside, libc::O_RDONLY | libc::O_NONBLOCK, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        file.lock()?;
        match self.is_of(beside, &file)? {
            true => self.remove(beside),
            false => Ok(()),
        }
    }

    /// Whether that is still the file's name.
    fn is_of(&self, name: &CStr, file: &File) -> io::Result<bool> {
        let (found, file) = (self.find(name)?, file.metadata()?);
        Ok(found.is_some_and(|found| (found.st_dev, found.st_ino) == (file.dev(), file.ino())))
    }

    /// Gives a new file or folder the owner and the group that it is to have.
    fn give(&self, new: &File, former: Option<&libc::stat>) -> io::Result<()> {
        let made = new.metadata()?;
        // In a folder where everybody makes files, such as /tmp, each is its maker's.
        let is_anothers = self.status.st_uid != 0 && self.status.st_mode & libc::S_ISVTX == 0;
        let wanted = match former {
            // A file of root in the folder of another user is one that this function was not asked for.
            Some(former) if former.st_uid != 0 || !is_anothers => (former.st_uid, former.st_gid),
            _ if made.uid() == 0 && self.status.st_mode & libc::S_ISVTX == 0 => {
                (self.status.st_uid, self.status.st_gid)
            }
            _ => (made.uid(), made.gid()),
        };
        if wanted == (made.uid(), made.gid()) {
            return Ok(());
        }
        fchown(new, Some(wanted.0), Some(wanted.1)).map_err(|error| {
            let text = format!(
                "it belongs to user {} and group {}, to whom this user cannot give files; do it as that user or as root: {error}",
                wanted.0, wanted.1,
            );
            io::Error::new(error.kind(), text)
        })
    }

    fn open(&self, name: &CStr, flags: libc::c_int, mode: u32) -> io::Result<File> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the folder is open, and the name ends with NUL and lives through the call.
        owned(unsafe { libc::openat(self.fd(), name.as_ptr(), flags, mode) }).map(File::from)
    }

    /// The status of what has a name in the folder, a link itself; nothing if nothing has.
    fn find(&self, name: &CStr) -> io::Result<Option<libc::stat>> {
        let mut status = std::mem::MaybeUninit::uninit();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: the folder is open, the name ends with NUL, and `status` has room for the answer.
        let found =
            check(unsafe { libc::fstatat(self.fd(), name.as_ptr(), status.as_mut_ptr(), flags) });
        match found {
            // SAFETY: the call succeeded, so it filled the structure.
            Ok(()) => Ok(Some(unsafe { status.assume_init() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn make_folder(&self, mode: u32) -> io::Result<()> {
        // SAFETY: the folder is open, and the name ends with NUL and lives through the call.
        check(unsafe { libc::mkdirat(self.fd(), self.name.as_ptr(), mode) })
    }

    fn rename(&self, from: &CStr) -> io::Result<()> {
        // SAFETY: the folder is open, and both names end with NUL and live through the call.
        check(unsafe { libc::renameat(self.fd(), from.as_ptr(), self.fd(), self.name.as_ptr()) })
    }

    fn link(&self, from: &CStr) -> io::Result<()> {
        let (fd, to) = (self.fd(), self.name.as_ptr());
        // SAFETY: the folder is open, and both names end with NUL and live through the call.
        check(unsafe { libc::linkat(fd, from.as_ptr(), fd, to, 0) })
    }

    fn remove(&self, name: &CStr) -> io::Result<()> {
        // SAFETY: the folder is open, and the name ends with NUL and lives through the call.
        check(unsafe { libc::unlinkat(self.fd(), name.as_ptr(), 0) })
    }

    /// Makes the names in the folder survive a loss of power.
    fn sync(&self) -> io::Result<()> {
        // SAFETY: the folder is open.
        check(unsafe { libc::fsync(self.fd()) })
    }

    fn fd(&self) -> libc::c_int {
        self.folder.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        folder_of(&folder);
        folder
    }

    fn folder_of(path: &Path) {
        folder(path, PRIVATE_FOLDER).unwrap();
    }

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    fn owner_and_mode(path: &Path) -> (u32, u32, u32) {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o777)
    }

    #[test]
    fn file_is_replaced_whole_or_stays() {
        let folder = scratch("put");
        let path = folder.join("list.txt");
        put(&path, b"first", PRIVATE).unwrap();
        put(&path, b"2", READABLE).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert_eq!(owner_and_mode(&path).2, PRIVATE, "it keeps its mode");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let failed = put_with(&path, PRIVATE, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"2".to_vec(), 1));
        // The remains of a writer that was killed, and a link in the place of the file.
        fs::write(folder.join(".list.txt.new"), "half").unwrap();
        symlink("list.txt", folder.join("link")).unwrap();
        put(&folder.join("link"), b"third", PRIVATE).unwrap();
        assert!(fs::symlink_metadata(folder.join("link")).unwrap().is_symlink());
        assert_eq!((fs::read(&path).unwrap(), owner_and_mode(&path).2), (b"third".to_vec(), 0o640));
        assert_eq!(names(&folder), 2, "nothing else is left");
        fs::create_dir(folder.join(".list.txt.new")).unwrap();
        put(&path, b"fourth", PRIVATE).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn writers_of_one_file_follow_each_other() {
        let folder = scratch("writers");
        let path = folder.join("list");
        std::thread::scope(|scope| {
            for writer in b'a'..b'i' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        put(path, &[writer; 5000], PRIVATE).unwrap();
                        let found = fs::read(path).unwrap();
                        assert_eq!(found.len(), 5000);
                        assert!(found.iter().all(|byte| *byte == found[0]), "of one writer");
                    }
                });
            }
        });
        assert_eq!(names(&folder), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn created_file_takes_no_place() {
        let folder = scratch("create");
        let path = folder.join("key");
        create(&path, b"first", PRIVATE).unwrap();
        let error = create(&path, b"second", PRIVATE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        symlink("nowhere", folder.join("link")).unwrap();
        let error = create(&folder.join("link"), b"second", PRIVATE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((fs::read(&path).unwrap(), names(&folder)), (b"first".to_vec(), 2));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// In a process of its own: the umask is the whole process's, and other tests make files as well.
    #[test]
    fn umask_opens_nothing_to_others() {
        const UMASK: &str = "TIDEGATE_TEST_UMASK";
        if std::env::var_os(UMASK).is_none() {
            for umask in ["002", "000", "077"] {
                let run = format!(
                    "umask {umask} && exec \"$0\" --exact files::tests::umask_opens_nothing_to_others"
                );
                let mut child = std::process::Command::new("sh");
                child.arg("-c").arg(run).arg(std::env::current_exe().unwrap());
                let output = child.env(UMASK, umask).output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success() && said.contains("1 passed"), "{umask}: {said}");
            }
            return;
        }
        let base = scratch("umask");
        folder(&base.join("a/b"), PRIVATE_FOLDER).unwrap();
        put(&base.join("a/b/put"), b"", PRIVATE).unwrap();
        create(&base.join("a/b/create"), b"", PRIVATE).unwrap();
        drop(append(&base.join("a/b/append"), PRIVATE).unwrap());
        for (name, mode) in [
            ("a", 0o700),
            ("a/b", 0o700),
            ("a/b/put", 0o600),
            ("a/b/create", 0o600),
            ("a/b/append", 0o600),
        ] {
            assert_eq!(owner_and_mode(&base.join(name)).2, mode, "{name}");
        }
        put(&base.join("open"), b"", READABLE).unwrap();
        assert_eq!(owner_and_mode(&base.join("open")).2 & 0o022, 0);
        let error = folder(&base.join("a/b/put"), PRIVATE_FOLDER).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn root_leaves_files_to_the_owner_of_the_folder() {
        if user() != 0 {
            println!("skipped: only root gives files to others");
            return;
        }
        let base = scratch("owner");
        let (service, other) = ((4_711, 4_712), (4_713, 4_714));
        let home = base.join("home");
        folder_of(&home);
        chown(&home, Some(service.0), Some(service.1)).unwrap();
        let of = |name: &str| {
            let (user, group, mode) = owner_and_mode(&home.join(name));
            ((user, group), mode)
        };
        put(&home.join("put"), b"", PRIVATE).unwrap();
        create(&home.join("create"), b"", PRIVATE).unwrap();
        drop(append(&home.join("append"), PRIVATE).unwrap());
        folder(&home.join("a/b"), PRIVATE_FOLDER).unwrap();
        put(&home.join("a/b/put"), b"", PRIVATE).unwrap();
        for (name, mode) in [
            ("put", PRIVATE),
            ("create", PRIVATE),
            ("append", PRIVATE),
            ("a", PRIVATE_FOLDER),
            ("a/b", PRIVATE_FOLDER),
            ("a/b/put", PRIVATE),
        ] {
            assert_eq!(of(name), (service, mode), "{name}");
        }
        // One that root has left there before, and one of a third user.
        for (owner, expected) in [((0, 0), service), (other, other)] {
            let path = home.join("put");
            chown(&path, Some(owner.0), Some(owner.1)).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            put(&path, b"new", PRIVATE).unwrap();
            assert_eq!(of("put"), (expected, 0o640), "{owner:?}");
        }
        // A link of the service leads root nowhere.
        let elsewhere = base.join("elsewhere");
        put(&elsewhere, b"safe", PRIVATE).unwrap();
        symlink(&elsewhere, home.join("link")).unwrap();
        std::os::unix::fs::lchown(home.join("link"), Some(service.0), Some(service.1)).unwrap();
        let error = put(&home.join("link"), b"lost", PRIVATE).unwrap_err();
        assert!(error.to_string().contains("root does not follow"), "{error}");
        append(&home.join("link"), PRIVATE).unwrap_err();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"safe");
        fs::remove_dir_all(&base).unwrap();
    }
}
