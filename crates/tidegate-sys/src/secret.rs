//! Small files that only their owner may read, such as keys.
//!
//! Always true: a file that is made here is whole or not there, also after a loss of power, and never takes the place of another;
//! a file that others may read or write is refused.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::{files, folder::user};

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
    let (owner, mode, user) = (status.uid(), status.mode() & 0o7777, user());
    if (owner != user && !is_read_for(path, owner)) || mode & 0o077 != 0 {
        return Err(SecretError::Exposed { path: path.to_owned(), mode, owner, user });
    }
    // Once, so that no half of it is left where the vector was before it grew.
    secret.clear();
    secret.reserve_exact(usize::try_from(status.len()).unwrap_or(0) + 1);
    file.take(SECRET_BYTES_MAX).read_to_end(secret).map_err(failed)?;
    Ok(())
}

/// Whether that is root, who looks at what a user keeps in a folder of its own, or has from root.
fn is_read_for(path: &Path, owner: u32) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let of_folder = fs::metadata(folder.unwrap_or(Path::new("."))).map(|folder| folder.uid());
    user() == 0 && of_folder.is_ok_and(|of_folder| [owner, 0].contains(&of_folder))
}

/// Makes a file with mode 0600 that has these bytes.
///
/// # Errors
/// There is one already, or the disk failed: then there is none, or the one that was there.
pub fn create(path: &Path, secret: &[u8]) -> Result<(), SecretError> {
    files::create(path, secret, files::PRIVATE).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => SecretError::Exists { path: path.to_owned() },
        _ => SecretError::Io { path: path.to_owned(), source },
    })
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
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

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
        if user() == 0 {
            // Root reads what a service keeps in its own folder, and not what another user has put there.
            for (owner, is_read) in [(4_711, true), (4_713, false), (0, true)] {
                chown(&folder, Some(4_711), None).unwrap();
                chown(&path, Some(owner), None).unwrap();
                assert_eq!(read(&path, &mut secret).is_ok(), is_read, "user {owner}");
            }
        } else {
            println!("skipped: only root reads the secrets of others");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
