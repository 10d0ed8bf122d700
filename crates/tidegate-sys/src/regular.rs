//! Reading files that are files.
//!
//! Opening a named pipe waits for its other end, and reading a device may never end. Files that a node reads when it starts, or
//! while it runs, are therefore opened without waiting, and refused unless they are regular files. A link to one is followed.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// Opens a regular file for reading.
///
/// # Errors
/// The system's, or `InvalidInput` if it is no regular file; the text says what it is.
pub fn open(path: &Path) -> io::Result<File> {
    checked(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path))
}

/// A file that was opened without waiting, if it was and is regular.
pub(crate) fn checked(opened: io::Result<File>) -> io::Result<File> {
    let file = match opened {
        // The error of a socket, and of a pipe without a reader when it is opened to write.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            return Err(refused("a socket or a named pipe (FIFO)"));
        }
        opened => opened?,
    };
    only(file)
}

/// A file that was opened without waiting, if it is regular.
pub(crate) fn only(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    Err(refused(match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a named pipe (FIFO)",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "of another kind",
    }))
}

/// The bytes of a regular file.
///
/// # Errors
/// As [`open`], or the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of a regular file that has at most `bytes_max` of them.
///
/// # Errors
/// As [`read`], or `FileTooLarge`.
pub fn read_at_most(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

/// The text of a regular file.
///
/// # Errors
/// As [`read`], or `InvalidData` if it is no UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

fn refused(kind: &str) -> io::Error {
    let text = format!("it is {kind}, and only a regular file can be used here");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, fs, io::Write as _, os::unix::ffi::OsStrExt};

    use super::*;
    use crate::files::{PRIVATE, append};

    #[test]
    fn what_is_no_regular_file_is_refused_and_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("tidegate-regular-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        fs::write(path("plain"), "text").unwrap();
        std::os::unix::fs::symlink("plain", path("link")).unwrap();
        std::os::unix::fs::symlink("missing", path("dangling")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let name = CString::new(path("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends with NUL and lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(read_to_string(&path("plain")).unwrap(), "text");
        assert_eq!(read(&path("link")).unwrap(), b"text");
        assert_eq!(read_at_most(&path("link"), 4).unwrap(), b"text");
        let error = read_at_most(&path("plain"), 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        for (name, kind) in [
            ("folder", "a folder"),
            ("socket", "a socket"),
            ("pipe", "a named pipe"),
            ("/dev/zero", "a device"),
        ] {
            let error = read(&folder.join(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
            assert!(error.to_string().contains(kind), "{name}: {error}");
        }
        for name in ["folder", "socket", "pipe", "/dev/null"] {
            assert!(append(&folder.join(name), PRIVATE).is_err(), "{name}");
        }
        append(&path("link"), PRIVATE).unwrap().write_all(b", more").unwrap();
        append(&path("new"), PRIVATE).unwrap().write_all(b"first").unwrap();
        assert_eq!(read(&path("plain")).unwrap(), b"text, more");
        assert_eq!(read(&path("new")).unwrap(), b"first");
        for name in ["missing", "dangling"] {
            assert_eq!(open(&path(name)).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
