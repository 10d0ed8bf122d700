//! Small files that only their owner may read, such as keys.
//!
//! Always true: a file that is made here is whole or not there, also after a loss of power, and never takes the place of another;
//! a file that others may read or write is refused.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The most bytes that such a file may have.
pub const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Reads a file into `secret`, which is as long as the file afterwards.
///
/// # Errors
/// [`SecretError`], by kind; `secret` may hold part of the file.
pub fn read(path: &Path, secret: &mut Vec<u8>) -> Result<(), SecretError> {
    let failed = |source| SecretError::Io { path: path.to_owned(), source };
    // A pipe in its place is opened without waiting for who writes to it.
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let status = file.metadata().map_err(failed)?;
    if !status.is_file() || status.len() > SECRET_BYTES_MAX {
        let reason = "this is not a plain file, or a large one";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, reason)));
    }
    // SAFETY: the call has no precondition.
    let user = unsafe { libc::geteuid() };
    let (owner, mode) = (status.uid(), status.mode() & 0o7777);
    if owner != user || mode & 0o077 != 0 {
        return Err(SecretError::Exposed { path: path.to_owned(), mode, owner, user });
    }
    // Once, so that no half of it is left where the vector was before it grew.
    secret.clear();
    secret.reserve_exact(usize::try_from(status.len()).unwrap_or(0) + 1);
    file.take(SECRET_BYTES_MAX).read_to_end(secret).map_err(failed)?;
    Ok(())
}

/// Makes a file with mode 0600 that has these bytes.
///
/// # Errors
/// There is one already, or the disk failed: then there is none, or the one that was there.
pub fn create(path: &Path, secret: &[u8]) -> Result<(), SecretError> {
    let failed = |source| SecretError::Io { path: path.to_owned(), source };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name() else {
        return Err(failed(io::Error::from(io::ErrorKind::InvalidInput)));
    };
    let mut part = name.to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let part = folder.join(part);
    let written = write(&part, secret).and_then(|()| fs::hard_link(&part, path));
    // Whether or not it could be linked to its name, the temporary file goes; the error that matters was returned
    // before.
    let _ = fs::remove_file(&part);
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => SecretError::Exists { path: path.to_owned() },
        _ => failed(source),
    })?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

fn write(part: &Path, secret: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part)?;
    file.write_all(secret)?;
    file.sync_all()
}

/// Why a secret was not read or not kept.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Others may read or write it, or have it.
    #[error(
        "{path} has mode {mode:03o} and belongs to user {owner}, and this process runs as user {user}; \
         give it to that user and make it 0600"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// The user that this process runs as.
        user: u32,
    },
    /// There is one already.
    #[error("{path} is there already, and is not replaced")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It is missing, a link or no plain file, or the disk failed.
    #[error("{path} could not be read or written")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_secret_is_its_owners_and_never_replaced() {
        let folder = std::env::temp_dir().join(format!("tidegate-secret-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        create(&path, b"first").unwrap();
        assert!(matches!(create(&path, b"second"), Err(SecretError::Exists { .. })));
        let mut secret = Vec::new();
        read(&path, &mut secret).unwrap();
        assert_eq!(secret, b"first");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        for (mode, is_read) in [(0o600, true), (0o400, true), (0o640, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let result = read(&path, &mut secret);
            assert_eq!(result.is_ok(), is_read, "mode {mode:o}");
            if let Err(error) = result {
                assert!(error.to_string().ends_with("make it 0600"), "{error}");
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&path, folder.join("link")).unwrap();
        for name in ["link", "missing", "."] {
            let refused = read(&folder.join(name), &mut secret);
            assert!(matches!(refused, Err(SecretError::Io { .. })), "{name}");
        }
        assert!(create(&folder.join("none/key"), b"x").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
