//! Files that arrive in folders, as the kernel tells of them (inotify).
//!
//! Always true: a file is told of once a writer has closed it, or it was moved here; of a name that is new, nothing more is known; a folder
//! that is not there any more is told of once, and then forgotten; what the kernel could not tell for want of room is told of as such.

use std::{
    collections::VecDeque,
    ffi::{CString, OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

/// Watches folders, nonblocking. An event loop that waits for events itself has a descriptor of its own ([`Arrivals::descriptor`]), and hands
/// on the bytes that it reads there ([`Arrivals::read`]).
#[derive(Debug)]
pub struct Arrivals {
    events: File,
    told: VecDeque<Arrival>,
}

/// Names a folder that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(i32);

/// An event in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A file was written and closed, or moved here.
    File(WatchId, OsString),
    /// A file has a name here: it is about to be written, or it is whole and was linked here (`link`, `O_TMPFILE`), of which no other
    /// event tells.
    Name(WatchId, OsString),
    /// A folder was made or moved here.
    Folder(WatchId, OsString),
    /// The watched folder itself is gone, or is not watched any more.
    Gone(WatchId),
    /// Events were lost: anything may have arrived.
    Lost,
}

/// Bytes of the fixed part of an event (inotify(7)).
const HEAD: usize = 16;
/// Room for some hundred events; one takes at most 272 bytes.
pub const READ_BYTES: usize = 16 << 10;

impl Arrivals {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The system's: `EMFILE` where a user has too many of these (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call has no precondition.
        let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { events: File::from(fd), told: VecDeque::new() })
    }

    /// Watches a folder, which is no link; one that is watched already has the same name as before.
    ///
    /// # Errors
    /// The system's: `ENOSPC` where a user watches too many (`fs.inotify.max_user_watches`).
    pub fn watch(&self, folder: &Path) -> io::Result<WatchId> {
        let path = CString::new(folder.as_os_str().as_bytes())?;
        let mask = libc::IN_CLOSE_WRITE
            | libc::IN_MOVED_TO
            | libc::IN_CREATE
            | libc::IN_DELETE_SELF
            | libc::IN_MOVE_SELF
            | libc::IN_ONLYDIR
            | libc::IN_DONT_FOLLOW;
        // SAFETY: the path is a C string that outlives the call, which keeps no reference to it.
        let watch =
            unsafe { libc::inotify_add_watch(self.events.as_raw_fd(), path.as_ptr(), mask) };
        if watch < 0 { Err(io::Error::last_os_error()) } else { Ok(WatchId(watch)) }
    }

    /// Watches a folder no more; one that is gone is not watched anyway.
    pub fn forget(&self, watch: WatchId) {
        // SAFETY: the call has no precondition; a number that is not known is an error, which changes nothing.
        let _ = unsafe { libc::inotify_rm_watch(self.events.as_raw_fd(), watch.0) };
    }

    /// A descriptor by which the same events are read, each by one of the two.
    ///
    /// # Errors
    /// The system's.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.events.as_fd().try_clone_to_owned()
    }

    /// Takes events that were read by [`Arrivals::descriptor`], each whole.
    pub fn read(&mut self, bytes: &[u8]) {
        self.told.extend(arrivals(bytes));
    }

    /// The next event that was read; `None` if there is none.
    pub fn told(&mut self) -> Option<Arrival> {
        self.told.pop_front()
    }

    /// The next event; `None` if there is none now.
    ///
    /// # Errors
    /// The system's.
    pub fn receive(&mut self) -> io::Result<Option<Arrival>> {
        loop {
            if let Some(arrival) = self.told.pop_front() {
                return Ok(Some(arrival));
            }
            let mut bytes = [0; READ_BYTES];
            match self.events.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(read) => self.told.extend(arrivals(&bytes[..read])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a writer has a file open that was opened for reading; `None` where that cannot be known: the file is another user's, or its file
/// system has no leases.
///
/// A lease for reading is given only while there is no writer (`F_SETLEASE` of fcntl(2)). It is given back at once: a writer that comes
/// in between waits for that moment.
pub fn has_writer(file: &File) -> Option<bool> {
    /// `F_SETSIG` of fcntl(2), which the libc crate does not name for every target.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // SAFETY: the descriptor is open, and the three calls take a number. The signal to the holder of a lease that a writer wants would
    // be SIGIO, which ends a process; SIGURG is ignored.
    let lease = unsafe {
        if libc::fcntl(fd, F_SETSIG, libc::SIGURG) != 0 {
            return None;
        }
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if lease != 0 {
        let is_busy = io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        return is_busy.then_some(true);
    }
    // SAFETY: as above. It fails where the lease is gone already.
    unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
    Some(false)
}

/// The events in bytes that the kernel wrote, each whole.
fn arrivals(mut bytes: &[u8]) -> Vec<Arrival> {
    let mut found = Vec::new();
    while let Some((head, behind)) = bytes.split_first_chunk::<HEAD>() {
        let number = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        let watch = WatchId(i32::from_ne_bytes(number(0)));
        let mask = u32::from_ne_bytes(number(4));
        let length = usize::try_from(u32::from_ne_bytes(number(12))).unwrap_or(usize::MAX);
        let name = behind.get(..length).unwrap_or_default();
        bytes = behind.get(length..).unwrap_or_default();
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = OsStr::from_bytes(&name[..end]).to_owned();
        let is_folder = mask & libc::IN_ISDIR != 0;
        let is_gone = libc::IN_DELETE_SELF | libc::IN_MOVE_SELF | libc::IN_IGNORED;
        found.extend(if mask & libc::IN_Q_OVERFLOW != 0 {
            Some(Arrival::Lost)
        } else if mask & is_gone != 0 {
            Some(Arrival::Gone(watch))
        } else if name.is_empty() {
            None
        } else if is_folder && mask & (libc::IN_CREATE | libc::IN_MOVED_TO) != 0 {
            Some(Arrival::Folder(watch, name))
        } else if !is_folder && mask & (libc::IN_CLOSE_WRITE | libc::IN_MOVED_TO) != 0 {
            Some(Arrival::File(watch, name))
        } else if !is_folder && mask & libc::IN_CREATE != 0 {
            Some(Arrival::Name(watch, name))
        } else {
            None
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn all(arrivals: &mut Arrivals) -> Vec<Arrival> {
        std::iter::from_fn(|| arrivals.receive().expect("it is read")).collect()
    }

    #[test]
    fn a_file_is_told_once_it_is_whole_and_a_folder_once_it_is_there() {
        let folder = std::env::temp_dir().join(format!("tidegate-arrivals-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("in")).expect("a folder");
        let mut arrivals = Arrivals::new().expect("it can be had");
        let watch = arrivals.watch(&folder.join("in")).expect("it is watched");
        assert_eq!(arrivals.watch(&folder.join("in")).expect("it is watched"), watch, "the same");
        assert_eq!(all(&mut arrivals), []);

        use std::io::Write as _;
        let mut file = File::create(folder.join("in/a.jpg")).expect("a file");
        file.write_all(b"part").expect("it is written");
        let named = |name: &str| Arrival::Name(watch, name.into());
        assert_eq!(all(&mut arrivals), [named("a.jpg")], "it is being written");
        drop(file);
        let whole = |name: &str| Arrival::File(watch, name.into());
        assert_eq!(all(&mut arrivals), [whole("a.jpg")]);
        fs::write(folder.join("b.part"), b"whole").expect("a file");
        fs::rename(folder.join("b.part"), folder.join("in/b.jpg")).expect("it is moved");
        fs::create_dir(folder.join("in/day")).expect("a folder");
        let _ = File::open(folder.join("in/a.jpg")).expect("it is there");
        assert_eq!(all(&mut arrivals), [whole("b.jpg"), Arrival::Folder(watch, "day".into())]);

        fs::hard_link(folder.join("in/a.jpg"), folder.join("in/c.jpg")).expect("a link");
        assert_eq!(all(&mut arrivals), [named("c.jpg")]);

        let inner = arrivals.watch(&folder.join("in/day")).expect("it is watched");
        arrivals.forget(inner);
        assert_eq!(all(&mut arrivals), [Arrival::Gone(inner)]);
        std::os::unix::fs::symlink(folder.join("in"), folder.join("link")).expect("a link");
        for wrong in ["none", "link", "in/a.jpg"] {
            assert!(arrivals.watch(&folder.join(wrong)).is_err(), "{wrong}");
        }
        fs::remove_dir_all(&folder).expect("it is removed");
        assert!(all(&mut arrivals).contains(&Arrival::Gone(watch)));
    }

    #[test]
    fn events_of_any_bytes_are_read_or_left() {
        let event = |mask: u32, name: &[u8]| {
            let mut bytes = 7_i32.to_ne_bytes().to_vec();
            bytes.extend(mask.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend((name.len() as u32).to_ne_bytes());
            bytes.extend(name);
            bytes
        };
        let lost = event(libc::IN_Q_OVERFLOW, b"");
        assert_eq!(arrivals(&lost), [Arrival::Lost]);
        let two = [event(libc::IN_CLOSE_WRITE, b"a\0\0\0"), event(libc::IN_IGNORED, b"")].concat();
        let watch = WatchId(7);
        assert_eq!(arrivals(&two), [Arrival::File(watch, "a".into()), Arrival::Gone(watch)]);
        for cut in 0..two.len() {
            arrivals(&two[..cut]);
        }
        assert_eq!(arrivals(&event(libc::IN_CREATE, b"a\0")), [Arrival::Name(watch, "a".into())]);
        assert_eq!(arrivals(&event(libc::IN_CLOSE_WRITE, b"")), []);
    }

    #[test]
    fn a_writer_is_seen_while_it_has_the_file_open() {
        let path = std::env::temp_dir().join(format!("tidegate-writer-{}", std::process::id()));
        let writer = File::create(&path).expect("a file");
        let reader = File::open(&path).expect("it is there");
        let (held, again) = (has_writer(&reader), has_writer(&reader));
        drop(writer);
        let free = has_writer(&reader);
        // A writer that comes later is not kept out.
        let later = File::options().append(true).open(&path).expect("it is ours");
        let held_later = has_writer(&reader);
        drop(later);
        fs::remove_file(&path).expect("it is removed");
        if free.is_none() {
            println!("skipped: the folder for temporary files has no leases");
            return;
        }
        assert_eq!(
            (held, again, free, held_later),
            (Some(true), Some(true), Some(false), Some(true))
        );
    }
}
