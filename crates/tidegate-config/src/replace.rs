//! A file of configuration that is replaced whole.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown},
    path::Path,
};

/// Replaces a file, whole or not at all, with the owner, the group and the permissions that it had; where a link leads to it, that stays.
/// Nothing else can read the new text before that, nor have put a file or a link in its place.
///
/// # Errors
/// The system's, and that the file belongs to a user or a group that this user cannot give files to.
pub fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = &fs::canonicalize(file)?;
    let old = fs::metadata(file)?;
    // Its name is kept by the folder, which is opened before anything is changed.
    let folder = fs::File::open(file.parent().unwrap_or(Path::new("/")))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let beside = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = (|| {
        new.write_all(text.as_bytes())?;
        keep_owner(&new, &old)?;
        new.set_permissions(old.permissions())?;
        new.sync_all()?;
        fs::rename(&beside, file)
    })();
    if written.is_err() {
        // It is ours, and of no use.
        let _ = fs::remove_file(&beside);
    }
    written?;
    folder.sync_all()
}

/// Gives a new file to the user and the group of the old one.
fn keep_owner(new: &fs::File, old: &fs::Metadata) -> io::Result<()> {
    let ours = new.metadata()?;
    if (ours.uid(), ours.gid()) == (old.uid(), old.gid()) {
        return Ok(());
    }
    fchown(new, Some(old.uid()), Some(old.gid())).map_err(|error| {
        let text = format!(
            "it belongs to user {} and group {}, which this user cannot give files to; do it as that user or as root: {error}",
            old.uid(),
            old.gid(),
        );
        io::Error::new(error.kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_file_that_is_replaced_keeps_its_owner_its_permissions_and_the_link_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (kept, link) = (folder.path().join("kept/site.toml"), folder.path().join("site.toml"));
        fs::create_dir(folder.path().join("kept")).expect("a folder");
        fs::write(&kept, "old").expect("a file");
        symlink("kept/site.toml", &link).expect("a link");
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o640)).expect("it is ours");
        let owner = (tidegate_sys::folder::user() == 0).then_some((4_711, 4_712));
        match owner {
            Some((user, group)) => chown(&kept, Some(user), Some(group)).expect("root may"),
            None => {
                println!("skipped: only root gives files to others, so owners are not compared");
            }
        }
        let before = fs::metadata(&kept).expect("a file");
        replace(&link, "new").expect("it is replaced");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::read_to_string(&kept).expect("a file"), "new");
        let after = fs::metadata(&kept).expect("a file");
        assert_ne!(after.ino(), before.ino(), "it is another file");
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert_eq!(after.permissions().mode() & 0o777, 0o640);
        let files = fs::read_dir(folder.path().join("kept")).expect("a folder").count();
        assert_eq!(files, 1, "nothing is left beside it");
    }
}
