//! Owners, modes and kinds of files.

use std::{
    fs::{self, DirEntry, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use tidegate_sys::folder::user;

use super::Examination;

/// Permissions of others than the owner.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_ANY: u32 = 0o077;

/// Looks at the folder of a node. By root it is looked at as the user whose folder it is, since the node of a service has a user of
/// its own; else it is to be this user's. Returns whether it can be gone into.
pub(super) fn home(found: &mut Examination, path: &Path) -> bool {
    let owner = fs::metadata(path).map(|metadata| metadata.uid());
    found.user = owner.ok().filter(|_| user() == 0).unwrap_or_else(user);
    folder(found, path)
}

/// Looks at a folder that is to be the node's. Returns whether it can be gone into.
pub(super) fn folder(found: &mut Examination, path: &Path) -> bool {
    // The data folder itself may be reached by a link; its content may not.
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => {
            found.problem(
                path,
                format!("it cannot be looked at: {error}; `tidegate init` makes it"),
            );
            return false;
        }
    };
    if !metadata.is_dir() {
        found.problem(path, "this is not a folder");
        return false;
    }
    owned(found, path, &metadata);
    true
}

/// The entries of a folder below the data folder by name, links and what cannot be looked at aside, which are problems.
pub(super) fn entries(found: &mut Examination, path: &Path) -> Vec<(String, DirEntry, Metadata)> {
    let listed = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => {
            found.problem(path, format!("it cannot be listed: {error}"));
            return Vec::new();
        }
    };
    let mut entries = Vec::with_capacity(listed.len());
    for entry in listed {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        match entry.metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                found.problem(
                    path,
                    "this is a link, which is not followed; put here what it leads to, or move it elsewhere",
                );
            }
            Ok(metadata) => entries.push((name, entry, metadata)),
            // A node that runs has let go of it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => found.problem(path, format!("it cannot be looked at: {error}")),
        }
    }
    entries.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    entries
}

/// Says so if a file or folder is another user's, or others may write to it. Returns whether a node would take it.
pub(super) fn owned(found: &mut Examination, path: &Path, metadata: &Metadata) -> bool {
    let (owner, user, mode) = (metadata.uid(), found.user, metadata.mode() & 0o777);
    if owner != user {
        let text = match user == self::user() {
            true => format!(
                "it belongs to user {owner}, and this is user {user}; look as the node's user, or give it to that one"
            ),
            false => format!(
                "it belongs to user {owner}, and the folder of the node to user {user}, who cannot use it; give it to that one"
            ),
        };
        found.problem(path, text);
    } else if mode & OTHERS_WRITE != 0 {
        found.problem(
            path,
            format!("it has mode {mode:03o}: others may write to it; take that away"),
        );
    }
    owner == user && mode & OTHERS_WRITE == 0
}

/// As [`owned`], of what others may not even read.
pub(super) fn secret(found: &mut Examination, path: &Path, metadata: &Metadata) {
    let mode = metadata.mode() & 0o777;
    if owned(found, path, metadata) && mode & OTHERS_ANY != 0 {
        found.problem(path, format!("it has mode {mode:03o}: others may read it; make it 0600"));
    }
}
