//! Originals in a folder, of which the oldest go when there are too many bytes.
//!
//! ```text
//!  FOLDER/CAMERA/CAPTURED_AT.jpg        nanoseconds since 1970
//! ```
//!
//! Always true: a file is there whole or not at all, a loss of power aside; the files of the folder that have such names take no more than the bound, and other
//! files are not touched; files and folders that are made here are for the user of the node alone.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use tidegate_message::{CameraName, Instant};

/// The end of a picture's name.
const PICTURE: &str = "jpg";
/// The end of the name of one that is being written.
const UNFINISHED: &str = "jpg.new";

/// A folder of originals.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    bytes_max: u64,
    /// Size of each picture, the oldest first.
    pictures: BTreeMap<(i64, CameraName), u64>,
    bytes: u64,
}

impl Folder {
    /// The folder, which is made if it is not there, with the pictures that it holds already.
    ///
    /// It reads and writes files, so it is for a thread that may wait.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub(crate) fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        make(path)?;
        let mut folder =
            Self { path: path.to_owned(), bytes_max, pictures: BTreeMap::new(), bytes: 0 };
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            let camera = name.to_str().and_then(|name| name.parse::<CameraName>().ok());
            let Some(camera) = camera.filter(|_| entry.path().is_dir()) else { continue };
            for picture in fs::read_dir(entry.path())? {
                folder.find(&camera, &picture?.path())?;
            }
        }
        folder.make_room(0)?;
        Ok(folder)
    }

    fn find(&mut self, camera: &CameraName, path: &Path) -> io::Result<()> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        let Some((at, end)) = name.split_once('.') else { return Ok(()) };
        let Ok(at) = at.parse::<i64>() else { return Ok(()) };
        match end {
            // A process that ended while it wrote has left it.
            UNFINISHED => fs::remove_file(path)?,
            PICTURE => {
                let bytes = fs::symlink_metadata(path)?.len();
                self.pictures.insert((at, camera.clone()), bytes);
                self.bytes += bytes;
            }
            _ => {}
        }
        Ok(())
    }

    /// Keeps a picture, and lets go of the oldest that leave no room for it. One that is larger than the bound is not kept.
    ///
    /// # Errors
    /// A file cannot be written or removed.
    pub(crate) fn keep(&mut self, camera: &CameraName, at: Instant, jpeg: &[u8]) -> io::Result<()> {
        let bytes = jpeg.len() as u64;
        if bytes > self.bytes_max {
            let text =
                format!("{bytes} bytes are more than the folder of {} may have", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.make_room(bytes)?;
        let key = (at.as_nanos(), camera.clone());
        let path = self.path_of(&key);
        make(path.parent().unwrap_or(&self.path))?;
        let unfinished = path.with_extension(UNFINISHED);
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&unfinished)?;
        file.write_all(jpeg)?;
        drop(file);
        fs::rename(&unfinished, &path)?;
        self.bytes += bytes;
        self.bytes -= self.pictures.insert(key, bytes).unwrap_or(0);
        Ok(())
    }

    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        while self.bytes + bytes > self.bytes_max {
            let Some((key, _)) = self.pictures.first_key_value() else { break };
            let path = self.path_of(key);
            match fs::remove_file(&path) {
                // Another has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
            let (_, gone) = self.pictures.pop_first().expect("it is the first");
            self.bytes -= gone;
        }
        Ok(())
    }

    fn path_of(&self, (at, camera): &(i64, CameraName)) -> PathBuf {
        self.path.join(camera.as_str()).join(format!("{at}.{PICTURE}"))
    }
}

fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for camera in fs::read_dir(folder).unwrap() {
            let camera = camera.unwrap().path();
            if camera.is_dir() {
                let pictures = fs::read_dir(&camera).unwrap();
                let name = camera.file_name().unwrap().to_str().unwrap().to_owned();
                found.extend(pictures.map(|picture| {
                    format!("{name}/{}", picture.unwrap().file_name().to_str().unwrap())
                }));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn pictures_are_for_the_user_of_the_node_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("originals");
        let mut kept = Folder::open(&path, 100).unwrap();
        kept.keep(&"a".parse().unwrap(), Instant::from_nanos(3), &[7; 30]).unwrap();
        for (path, expected) in
            [(path.clone(), 0o700), (path.join("a"), 0o700), (path.join("a/3.jpg"), 0o600)]
        {
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, expected, "{}: {mode:o}", path.display());
        }
    }

    #[test]
    fn the_oldest_pictures_go_and_the_bound_holds_over_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("originals");
        let camera = |name: &str| name.parse::<CameraName>().unwrap();
        let mut kept = Folder::open(&path, 100).unwrap();
        for (name, at) in [("a", 3), ("b", 1), ("a", 2), ("b", 4)] {
            kept.keep(&camera(name), Instant::from_nanos(at), &[7; 30]).unwrap();
        }
        assert_eq!(files(&path), ["a/2.jpg", "a/3.jpg", "b/4.jpg"], "the oldest of all went");
        fs::write(path.join("a/notes.txt"), [0; 500]).unwrap();
        fs::write(path.join("a/9.jpg.new"), [0; 50]).unwrap();
        fs::write(path.join("list.txt"), [0; 500]).unwrap();
        drop(kept);
        let mut kept = Folder::open(&path, 70).unwrap();
        assert_eq!(files(&path), ["a/3.jpg", "a/notes.txt", "b/4.jpg"]);
        kept.keep(&camera("c"), Instant::from_nanos(5), &[7; 70]).unwrap();
        assert_eq!(files(&path), ["a/notes.txt", "c/5.jpg"]);
        kept.keep(&camera("c"), Instant::from_nanos(5), &[7; 20]).unwrap();
        assert_eq!((kept.bytes, kept.pictures.len()), (20, 1), "the same picture again");
        let error = kept.keep(&camera("c"), Instant::from_nanos(6), &[7; 71]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(files(&path), ["a/notes.txt", "c/5.jpg"]);
    }
}
