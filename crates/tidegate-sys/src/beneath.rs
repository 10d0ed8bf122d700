//! Files of a folder and of those in it, to which no link leads.
//!
//! Each folder on the way to a file is looked up in the one before (`openat`), by a name that is followed nowhere else. A link that is put
//! in the place of a file or of a folder, at whatever moment, is thus a name without a file.
//!
//! Always true: a file that is opened, looked at or removed lies in the folder or in those below it.

use std::{
    ffi::{CString, OsStr},
    fs::{File, Metadata},
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

use crate::regular;

/// A folder whose files are reached by their paths, which begin with its own.
#[derive(Debug)]
pub struct Beneath {
    fd: OwnedFd,
    path: PathBuf,
}

/// Flags of a folder on the way to a file.
const FOLDER: libc::c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;

impl Beneath {
    /// Opens the folder at `path`, which is no link itself.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = open_at(libc::AT_FDCWD, path.as_os_str(), FOLDER)?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// `NotFound` where a link or no folder is on the way, or the file is a link; `InvalidInput` if it is no regular file or does not lie
    /// below; else the system's.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        self.opened(path, libc::O_RDONLY | libc::O_NONBLOCK).and_then(regular::only)
    }

    /// The state of a file, folder or whatever else has that path; of a link, its own.
    ///
    /// # Errors
    /// As [`Beneath::file`], of whatever kind it is.
    pub fn status(&self, path: &Path) -> io::Result<Metadata> {
        self.opened(path, libc::O_PATH)?.metadata()
    }

    /// Removes a file; a link is removed itself.
    ///
    /// # Errors
    /// As [`Beneath::file`]; `IsADirectory` for a folder.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        self.at(path, |folder, name| {
            let name = CString::new(name.as_bytes())?;
            // SAFETY: the name is a C string that outlives the call, and the descriptor is open.
            match unsafe { libc::unlinkat(folder, name.as_ptr(), 0) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    }

    fn opened(&self, path: &Path, flags: libc::c_int) -> io::Result<File> {
        self.at(path, |folder, name| {
            open_at(folder, name, flags | libc::O_NOFOLLOW).map(File::from)
        })
    }

    /// Does something in the folder of a file, with the file's name there.
    fn at<T>(
        &self,
        path: &Path,
        act: impl FnOnce(libc::c_int, &OsStr) -> io::Result<T>,
    ) -> io::Result<T> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let below = path.strip_prefix(&self.path).map_err(|_| outside())?;
        let names: Option<Vec<&OsStr>> = below
            .components()
            .map(|component| match component {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        let names = names.ok_or_else(outside)?;
        let (name, folders) = names.split_last().ok_or_else(outside)?;
        let mut folder = None::<OwnedFd>;
        for name in folders {
            let at = folder.as_ref().unwrap_or(&self.fd).as_raw_fd();
            folder = Some(open_at(at, name, FOLDER).map_err(missing)?);
        }
        act(folder.as_ref().unwrap_or(&self.fd).as_raw_fd(), name).map_err(missing)
    }
}

/// The error of a link where none is followed, and of a file where a folder has to be, as that of a file that is not there.
fn missing(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => {
            let text =
                "a link is there, or a file in the place of a folder, and neither is followed";
            io::Error::new(io::ErrorKind::NotFound, text)
        }
        _ => error,
    }
}

fn open_at(folder: libc::c_int, name: &OsStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    let name = CString::new(name.as_bytes())?;
    // SAFETY: the name is a C string that outlives the call; a folder that is not open is an error.
    let fd = unsafe { libc::openat(folder, name.as_ptr(), flags | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read as _, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn no_link_leads_out_of_the_folder() {
        let base = std::env::temp_dir().join(format!("tidegate-beneath-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let root = base.join("in");
        fs::create_dir_all(root.join("a/b")).expect("folders");
        fs::create_dir(base.join("out")).expect("a folder");
        for name in ["in/1", "in/a/b/2", "out/3"] {
            fs::write(base.join(name), name).expect("a file");
        }
        symlink("../out", root.join("folder")).expect("a link");
        symlink("../out/3", root.join("file")).expect("a link");
        symlink("1", root.join("inner")).expect("a link");
        symlink("in", base.join("root")).expect("a link");
        assert!(Beneath::open(&base.join("root")).is_err(), "it is a link itself");
        assert!(Beneath::open(&root.join("1")).is_err(), "it is no folder");
        let beneath = Beneath::open(&root).expect("a folder");
        for name in ["1", "a/b/2"] {
            let mut text = String::new();
            let mut file = beneath.file(&root.join(name)).expect("a file");
            file.read_to_string(&mut text).expect("it is read");
            assert_eq!(text, format!("in/{name}"));
            assert!(beneath.status(&root.join(name)).expect("it is there").is_file());
        }
        for (name, kind) in [
            ("file", io::ErrorKind::NotFound),
            ("inner", io::ErrorKind::NotFound),
            ("folder/3", io::ErrorKind::NotFound),
            ("1/2", io::ErrorKind::NotFound),
            ("none", io::ErrorKind::NotFound),
            ("a", io::ErrorKind::InvalidInput),
            ("../out/3", io::ErrorKind::InvalidInput),
            ("", io::ErrorKind::InvalidInput),
        ] {
            let error = beneath.file(&root.join(name)).expect_err(name);
            assert_eq!(error.kind(), kind, "{name}: {error}");
        }
        assert!(beneath.file(&base.join("out/3")).is_err(), "it lies elsewhere");
        assert!(beneath.status(&root.join("file")).expect("it is there").is_symlink());
        assert!(beneath.remove(&root.join("folder/3")).is_err());
        beneath.remove(&root.join("file")).expect("the link is removed");
        assert!(base.join("out/3").exists());
        beneath.remove(&root.join("a/b/2")).expect("it is removed");
        assert!(!root.join("a/b/2").exists());
        fs::remove_dir_all(&base).expect("it is removed");
    }
}
