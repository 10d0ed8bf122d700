use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use super::*;

/// A folder of its own for one test, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let name = format!("tidegate-folder-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Remains of a killed run.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn folder(&self) -> (PathBuf, Folder) {
        let path = self.0.join("log");
        let folder = Folder::open(&path).unwrap();
        (path, folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn stores_to_a_map_are_in_the_file() {
    let scratch = Scratch::new("map");
    let (path, folder) = scratch.folder();
    let file = folder.create("a", 10_000).unwrap();
    assert_eq!(file.len().unwrap(), 10_000);
    let mut writer = file.map().unwrap();
    let region = writer.region();
    region.populate(0..10_000).unwrap();
    writer.write(9_000, b"stored").unwrap();
    writer.publish(9_006).unwrap();
    assert_eq!(&region.slice(9_000..9_006).unwrap()[..], b"stored");
    file.sync().unwrap();
    folder.sync().unwrap();
    let mut read = [0; 6];
    file.prefetch(8192..10_000);
    file.read_at(9_000, &mut read).unwrap();
    assert_eq!(&read, b"stored");
    assert_eq!(file.read_at(9_995, &mut read).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    let bytes = fs::read(path.join("a")).unwrap();
    assert_eq!(&bytes[9_000..9_006], b"stored");
    assert!(bytes[..9_000].iter().all(|&byte| byte == 0));
    assert_eq!(fs::metadata(path.join("a")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!writer.is_damaged());
}

#[test]
fn a_file_is_mapped_once_and_keeps_its_size_meanwhile() {
    let scratch = Scratch::new("once");
    let (_, folder) = scratch.folder();
    let file = folder.create("a", 4096).unwrap();
    let map = file.map().unwrap();
    let again = folder.open_existing("a").unwrap();
    assert_eq!(again.map().err().unwrap().kind(), io::ErrorKind::ResourceBusy);
    assert_eq!(again.resize(10).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    let region = map.region();
    drop(map);
    assert!(file.map().is_err(), "a reader still has the map");
    drop(region);
    again.resize(8192).unwrap();
    assert_eq!(file.map().unwrap().len(), 8192);
    assert!(folder.create("empty", 0).unwrap().map().is_err());
}

#[test]
fn one_at_a_time_has_the_folder() {
    let scratch = Scratch::new("lock");
    let (path, folder) = scratch.folder();
    let error = Folder::open(&path).err().unwrap();
    assert!(matches!(error, FolderError::Locked { .. }), "{error:?}");
    let map = folder.create("a", 4096).unwrap().map().unwrap();
    drop(folder);
    assert!(Folder::open(&path).is_err(), "a map keeps it locked");
    drop(map);
    Folder::open(&path).unwrap();
}

#[test]
fn links_are_not_followed_and_names_stay_inside() {
    let scratch = Scratch::new("links");
    let (path, folder) = scratch.folder();
    fs::write(scratch.0.join("outside"), b"theirs").unwrap();
    symlink(scratch.0.join("outside"), path.join("link")).unwrap();
    assert!(folder.open_existing("link").is_err());
    for name in ["../outside", "/etc/passwd", "", ".", "..", "a\0b", "x/y"] {
        assert!(folder.open_existing(name).is_err(), "{name:?}");
        assert!(folder.create(name, 1).is_err(), "{name:?}");
        assert!(folder.remove(name).is_err(), "{name:?}");
    }
    folder.remove("link").unwrap();
    assert_eq!(fs::read(scratch.0.join("outside")).unwrap(), b"theirs");
    symlink(&scratch.0, scratch.0.join("folder-link")).unwrap();
    let error = Folder::open(&scratch.0.join("folder-link")).err().unwrap();
    assert!(matches!(error, FolderError::Io { .. }), "{error:?}");
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let scratch = Scratch::new("mode");
    let path = scratch.0.join("open");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    let error = Folder::open(&path).err().unwrap();
    assert!(matches!(error, FolderError::Mode { mode: 0o770, .. }), "{error:?}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = Folder::open(&path).unwrap();
    assert!(folder.is_readable_by_others());
    fs::write(path.join("shared"), b"x").unwrap();
    fs::set_permissions(path.join("shared"), fs::Permissions::from_mode(0o666)).unwrap();
    let error = folder.open_existing("shared").err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    fs::create_dir(path.join("folder")).unwrap();
    assert!(folder.open_existing("folder").is_err());
    let mut found: Vec<_> = folder
        .list()
        .unwrap()
        .into_iter()
        .map(|found| (found.name.into_string().unwrap(), found.is_file, found.is_ours))
        .collect();
    found.sort();
    assert_eq!(found, [("folder".to_owned(), false, true), ("shared".to_owned(), true, false)]);
}

#[test]
fn a_file_that_is_cut_under_its_map_reads_as_zeros_and_is_told() {
    let scratch = Scratch::new("cut");
    let (path, folder) = scratch.folder();
    let file = folder.create("a", 16 << 10).unwrap();
    let mut writer = file.map().unwrap();
    writer.write(0, &[7; 16 << 10]).unwrap();
    writer.publish(12 << 10).unwrap();
    let bytes = writer.region().slice(0..12 << 10).unwrap();
    fs::OpenOptions::new().write(true).open(path.join("a")).unwrap().set_len(4096).unwrap();
    assert!(!writer.is_damaged(), "it is not touched yet");
    assert!(bytes[..4096].iter().all(|&byte| byte == 7));
    assert!(bytes[4096..8192].iter().all(|&byte| byte == 0));
    assert!(writer.is_damaged() && writer.region().is_damaged());
    writer.write(12 << 10, b"lost").unwrap();
    let other = folder.create("b", 4096).unwrap().map().unwrap();
    assert!(!other.is_damaged());
}

#[test]
fn a_name_that_is_taken_is_not_created_and_a_failed_one_is_not_left() {
    let scratch = Scratch::new("names");
    let (_, folder) = scratch.folder();
    drop(folder.create("a", 1).unwrap());
    assert_eq!(folder.create("a", 1).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    assert!(folder.create("huge", u64::MAX >> 1).is_err());
    folder.rename("a", "b").unwrap();
    let names: Vec<_> = folder.list().unwrap().into_iter().map(|found| found.name).collect();
    assert_eq!(names, ["b"]);
    // As much as a file may be made of; others use the same disk.
    assert!(folder.free().unwrap() > 0);
    assert_eq!(folder.remove("a").unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_folder_below_another_is_reached_by_no_link_and_through_no_open_door() {
    let scratch = Scratch::new("below");
    let root = &scratch.0;
    let folder = Folder::open_below(root, &["log", "camera", "cam1"]).unwrap();
    assert_eq!(folder.path(), root.join("log/camera/cam1"));
    for path in ["log", "log/camera", "log/camera/cam1"] {
        let mode = fs::metadata(root.join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{path}");
    }
    let again = Folder::open_below(root, &["log", "camera", "cam1"]);
    assert!(matches!(again, Err(FolderError::Locked { .. })));
    Folder::open_below(root, &["log", "camera", "cam2"]).unwrap();
    drop(folder);

    fs::set_permissions(root.join("log/camera"), fs::Permissions::from_mode(0o720)).unwrap();
    let open = Folder::open_below(root, &["log", "camera", "cam1"]);
    assert!(
        matches!(&open, Err(FolderError::Mode { path, mode: 0o720 }) if path.ends_with("camera"))
    );
    fs::create_dir(root.join("elsewhere")).unwrap();
    symlink(root.join("elsewhere"), root.join("linked")).unwrap();
    for names in
        [&["linked", "cam1"][..], &["linked"], &["log", "..", "elsewhere"], &["log/camera"]]
    {
        let refused = Folder::open_below(root, names);
        assert!(matches!(refused, Err(FolderError::Io { .. })), "{names:?}");
    }
    assert_eq!(fs::read_dir(root.join("elsewhere")).unwrap().count(), 0);
    // Where the root is, is its owner's business.
    Folder::open_below(&root.join("linked"), &["log"]).unwrap();
}
