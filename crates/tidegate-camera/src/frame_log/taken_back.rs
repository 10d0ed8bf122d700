//! Logs of cameras that the application which registered them has unregistered: together they have as much room as one camera's log, the one that was
//! taken back first goes first.
//!
//! ```text
//!  DATA_DIR/state/unregistered-cameras      their names, a line each, in that order
//! ```
//!
//! Always true: a log is removed only if its camera stands in that list and no process has the log open.

use std::{fs, io, path::PathBuf, sync::Mutex};

use tidegate_message::CameraName;
use tidegate_sys::{files, folder::Folder, regular};

use super::{
    FrameLogSettings, LogName, Place,
    folder::{bytes_in, folders_of},
};

const LIST: &str = "unregistered-cameras";

/// The logs of cameras that were taken back.
#[derive(Debug)]
pub struct TakenBack {
    data_dir: PathBuf,
    bytes_max: u64,
    /// Those that are not in the list yet, in order.
    added: Mutex<Vec<CameraName>>,
    /// One change of the list at a time.
    working: Mutex<()>,
}

impl TakenBack {
    /// Those of a node whose cameras have such logs; none if they are in memory.
    pub fn of(config: &FrameLogSettings) -> Option<Self> {
        let Place::Files { data_dir, .. } = &config.place else { return None };
        let (data_dir, bytes_max) = (data_dir.clone(), config.size.bytes_max);
        let (added, working) = (Mutex::default(), Mutex::default());
        Some(Self { data_dir, bytes_max, added, working })
    }

    /// A camera is there whose log is not to be removed.
    pub fn forget(&self, name: &CameraName) {
        let _working = self.working.lock().expect("no panic while it is held");
        self.added.lock().expect("no panic while it is held").retain(|one| one != name);
        let mut names = self.names();
        if names.contains(name) {
            names.retain(|one| one != name);
            self.write(&names);
        }
    }

    /// A camera was taken back; its log counts from the next time that [room is made](Self::make_room).
    pub fn add(&self, name: &CameraName) {
        self.added.lock().expect("no panic while it is held").push(name.clone());
    }

    /// Removes logs of cameras that were taken back, as long as all of them take too much; waits for the disk.
    pub fn make_room(&self) {
        let _working = self.working.lock().expect("no panic while it is held");
        let added = std::mem::take(&mut *self.added.lock().expect("no panic while it is held"));
        let Some(last) = added.last() else { return };
        let mut names = self.names();
        names.retain(|name| !added.contains(name));
        names.extend_from_slice(&added);
        let bytes = |name: &CameraName| -> u64 {
            self.folders(name).iter().map(|folder| bytes_in(folder)).sum()
        };
        let mut left: u64 = names.iter().map(bytes).sum();
        names.retain(|name| {
            // The last one stays, however large it is.
            if left <= self.bytes_max || name == last {
                return true;
            }
            let own = bytes(name);
            match self.remove(name) {
                Ok(true) => {
                    tracing::info!(
                        camera = %name, bytes = own,
                        "the log of a camera that was unregistered is removed to make room for later ones"
                    );
                    left -= own;
                    false
                }
                Ok(false) => true,
                Err(error) => {
                    tracing::warn!(camera = %name, %error, "the log of a camera that was unregistered cannot be removed");
                    true
                }
            }
        });
        self.write(&names);
    }

    /// Whether the logs of a camera were removed; no if one of them is open.
    fn remove(&self, name: &CameraName) -> io::Result<bool> {
        for folder in self.folders(name) {
            if !folder.exists() {
                continue;
            }
            // Another process that opens it meanwhile finds it locked.
            let Ok(_lock) = Folder::open(&folder) else { return Ok(false) };
            fs::remove_dir_all(&folder)?;
        }
        Ok(true)
    }

    fn folders(&self, name: &CameraName) -> Vec<PathBuf> {
        folders_of(&self.data_dir, &LogName::Camera(name.clone()))
    }

    fn path(&self) -> PathBuf {
        self.data_dir.join("state").join(LIST)
    }

    fn names(&self) -> Vec<CameraName> {
        let text = regular::read(&self.path()).unwrap_or_default();
        let text = String::from_utf8(text).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// A list that cannot be written costs room, and no frame.
    fn write(&self, names: &[CameraName]) {
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        let path = self.path();
        let written = files::folder(&self.data_dir.join("state"), files::PRIVATE_FOLDER)
            .and_then(|()| files::put(&path, text.as_bytes(), files::PRIVATE));
        if let Err(error) = written {
            tracing::warn!(%error, path = %path.display(), "the list of cameras that were unregistered cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tidegate_log::{Durability, LogConfig};
    use tidegate_process::clock;

    use super::{
        super::{FrameLog, finish},
        *,
    };

    #[test]
    fn logs_of_cameras_that_were_taken_back_have_the_room_of_one() {
        let data_dir = tempfile::tempdir().unwrap();
        let config = FrameLogSettings {
            size: LogConfig { bytes_max: 1 << 20, segment_bytes: 64 << 10 },
            age: None,
            place: Place::Files {
                data_dir: data_dir.path().to_owned(),
                durability: Durability::Page,
                keys: None,
            },
        };
        let camera = |number: usize| -> CameraName { format!("c{number}").parse().unwrap() };
        let open = |number: usize| {
            let opened = FrameLog::open(&config, &LogName::Camera(camera(number))).unwrap();
            for _ in 0..400 {
                let frame = Bytes::from(vec![7; 1000]);
                opened.writer.append(clock::now(), b"meta", &frame).unwrap();
            }
            opened
        };
        let is_there =
            |number: usize| data_dir.path().join(format!("log/camera/c{number}")).exists();
        let taken_back = Arc::new(TakenBack::of(&config).unwrap());
        // One that was not unregistered, one that is open, and one that was registered again.
        drop(open(100));
        let held = open(101);
        taken_back.add(&camera(101));
        drop(open(102));
        taken_back.add(&camera(102));
        taken_back.forget(&camera(102));
        for number in 0..10 {
            drop(open(number));
            finish();
            taken_back.add(&camera(number));
            taken_back.make_room();
        }
        let left: Vec<usize> = (0..10).filter(|number| is_there(*number)).collect();
        assert!(!left.is_empty() && left.len() <= 2 && left.ends_with(&[9]), "{left:?}");
        assert!(is_there(100) && is_there(101) && is_there(102));
        let list = fs::read_to_string(data_dir.path().join("state/unregistered-cameras")).unwrap();
        let expected = ["c101".to_owned()].into_iter();
        let expected: Vec<String> = expected.chain(left.iter().map(|n| format!("c{n}"))).collect();
        assert_eq!(list.lines().collect::<Vec<_>>(), expected);
        drop(held);
    }
}
