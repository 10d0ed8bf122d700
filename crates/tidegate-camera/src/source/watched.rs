//! A watched folder: pictures that cameras and programs put there, by FTP, say.
//!
//! ```text
//!  kernel ─▶ files closed or moved here ─┬─▶ waiting, oldest first, bounded ─▶ picture ─▶ deleted, if that is wished
//!  scan of what was missed ──────────────┘
//! ```
//!
//! Files are ordered by the time of their last change of state on this machine (`ctime`): that of the end of their upload, whatever time the
//! uploading camera gives them, and by name where that is one. Where the kernel tells nothing (a folder of another machine, too many events at
//! once), a scan finds what is later than all that was taken. Once names were lost, for want of room here or in the kernel, no file that is as
//! new as the oldest of them is taken until a scan has looked from there: it would have the scan begin behind the lost ones.
//!
//! A file is whole when no writer has it open, as far as that can be known, and it has all of its picture: that a writer has closed it is
//! not enough, for an upload that broke off is resumed.
//!
//! Always true: a file is taken once it is whole, and once; a file that was not whole is not deleted; no more than [`WAITING_MAX`] names are held, all of them older than those that
//! were lost, and of the others the oldest are found when there is room; a file that was written again since it was read is not deleted;
//! no file is read or deleted to which a link leads.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    ffi::OsStr,
    fs::{self, Metadata},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_frame::knob::{FrameLimits, JpegKnobs, KnobSetting, Scale, Transcoder, inspect};
use tidegate_message::Instant;
use tidegate_sys::{
    arrivals::{self, Arrival, Arrivals, WatchId, has_writer},
    beneath::Beneath,
};
use tokio::{
    net::unix::pipe,
    task::spawn_blocking,
    time::{Instant as Moment, sleep_until},
};

use super::{
    Picture, SourceClock, SourceError, SourceSpec, SplitError, Splitter, blocking::joined,
};

/// Names that wait; a scan finds the others later.
const WAITING_MAX: usize = 4_096;
/// Folders that are watched, the one that is named included; pictures in others are found by scans.
const FOLDERS_MAX: usize = 512;
/// Folders that came since the last scan and are remembered until the next.
const CAME_MAX: usize = 4_096;
/// How deep folders lie below the one that is named: cameras make one for the year, the month, the day, the hour.
const DEPTH_MAX: usize = 8;
/// How often it is scanned for what was missed, at most.
const SCAN_EVERY: Duration = Duration::from_secs(30);
/// A scan takes no more than one part of so many of the time.
const SCAN_PART: u32 = 100;
/// A file of which the kernel does not say that it was closed is looked at once it has not changed for so long.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// A file that has not all of its picture is said to be torn once it has not changed for so long: nothing resumes its upload, it seems.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);
/// A file that a scan finds was not taken before if it was written no longer than this before the last that was: its state may have changed
/// since, for example its permissions.
const WRITTEN_MAX: Duration = Duration::from_secs(600);
/// Files that were taken last, of which the kernel may tell again, and which a scan finds again that looks for what was lost.
const RECENT_MAX: usize = 4_096;
/// The clock of a file system, by which its files get their times, may be so much behind that of the system.
const TICK_MAX: Duration = Duration::from_secs(1);

/// A file: its `ctime` in nanoseconds, and where it is.
type Key = (i64, PathBuf);

/// The pictures that arrive in a folder and those below.
#[derive(Debug)]
pub(super) struct Watched {
    root: PathBuf,
    /// The same folder, by which its files are opened and deleted.
    beneath: Arc<Beneath>,
    /// Delete what was taken.
    delete: bool,
    clock: SourceClock,
    arrivals: Arrivals,
    /// Where its events are read.
    events: pipe::Receiver,
    buffer: Vec<u8>,
    folders: HashMap<WatchId, Folder>,
    /// Counts events, to know the folders that have had none for long.
    event: u64,
    /// The files to take, and whether the kernel said that they are whole.
    waiting: BTreeMap<Key, bool>,
    /// No scan finds what is not later. None takes all that is there.
    after: Option<Key>,
    /// Where it began, which no scan looks behind.
    begin: Option<Key>,
    recent: Recent,
    /// There are files that are neither taken nor waiting.
    missed: bool,
    /// The oldest of those that were not whole when they were looked at; the next scan begins with it.
    unfinished: Option<Key>,
    /// The names of files from this one on may have been lost.
    lost: Option<Key>,
    /// Folders that came since the last scan: their files are news, whatever times they have.
    came: Vec<PathBuf>,
    /// When the kernel had told all, by the clock of the system.
    told_at: i64,
    /// The capture time that was given last.
    captured: Instant,
    scan_at: Moment,
    /// The file that was given last, which is to be deleted.
    given: Option<Given>,
}

/// A file whose picture was given.
#[derive(Debug)]
struct Given {
    key: Key,
    identity: Identity,
    jpeg: Bytes,
}

/// By which a file is the same as before, whatever became of its permissions and its other names, which change its `ctime`: its
/// number, the time of its last write in nanoseconds, and its length.
type Identity = (u64, i64, u64);

/// The files that were taken last.
#[derive(Debug, Default)]
struct Recent {
    order: VecDeque<(Key, Option<Identity>)>,
    keys: HashSet<Key>,
    files: HashSet<(PathBuf, Identity)>,
}

impl Recent {
    fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether a file was taken as it is, under the same name.
    fn has(&self, path: &Path, identity: Identity) -> bool {
        self.files.contains(&(path.to_owned(), identity))
    }

    /// A file was taken, or left for what it is.
    fn push(&mut self, key: Key, identity: Option<Identity>) {
        if self.order.len() == RECENT_MAX
            && let Some((oldest, identity)) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
            if let Some(identity) = identity {
                self.files.remove(&(oldest.1, identity));
            }
        }
        self.order.push_back((key.clone(), identity));
        if let Some(identity) = identity {
            self.files.insert((key.1.clone(), identity));
        }
        self.keys.insert(key);
    }
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// The last event in it.
    event: u64,
}

/// The findings of a scan.
#[derive(Debug, Default)]
struct Found {
    /// The oldest files that are whole.
    files: BTreeSet<Key>,
    /// The oldest of those beyond them.
    more: Option<Key>,
    /// The oldest that is not whole yet, as far as is known.
    unsettled: Option<Key>,
    /// The folders that changed last, by that time.
    folders: BTreeSet<(i64, PathBuf)>,
}

/// The content of a file.
enum Content {
    Picture(Bytes, Identity),
    /// It is not there any more.
    Gone,
    /// It has changed since it was found.
    Changed(Key),
    /// It is not whole.
    Partial,
}

impl Watched {
    /// Watches a folder; of the pictures that are there, `old` ones are taken, too.
    ///
    /// # Errors
    /// [`SourceError::Read`].
    pub(super) async fn open(
        root: &Path,
        (delete, old): (bool, bool),
        clock: &SourceClock,
    ) -> Result<Self, SourceError> {
        let failed = |source| SourceError::Read { path: root.to_owned(), source };
        let arrivals = Arrivals::new().map_err(failed)?;
        // Read as a pipe is: what it gives is made of whole events.
        let events = arrivals.descriptor().and_then(pipe::Receiver::from_owned_fd_unchecked);
        let events = events.map_err(failed)?;
        let after = (!old).then(|| (SourceClock::wall().as_nanos(), PathBuf::new()));
        let beneath = Arc::new(Beneath::open(root).map_err(failed)?);
        let mut watched = Self {
            root: root.to_owned(),
            beneath,
            delete,
            clock: clock.clone(),
            arrivals,
            events,
            buffer: vec![0; arrivals::READ_BYTES],
            folders: HashMap::new(),
            event: 0,
            waiting: BTreeMap::new(),
            begin: after.clone(),
            after,
            recent: Recent::default(),
            missed: true,
            unfinished: None,
            lost: None,
            came: Vec::new(),
            told_at: SourceClock::wall().as_nanos(),
            captured: Instant::MIN,
            scan_at: Moment::now(),
            given: None,
        };
        watched.watch(root.to_owned()).map_err(failed)?;
        watched.scan(root.to_owned()).await.map_err(failed)?;
        Ok(watched)
    }

    /// Its name in messages.
    pub(super) fn place(&self) -> String {
        self.root.display().to_string()
    }

    /// The next picture, and when it came. The one before is done with.
    ///
    /// # Errors
    /// [`SourceError`]: of a file that is none or that cannot be deleted; it is left, and the next call has the next. Of the folder itself:
    /// then there is nothing more.
    pub(super) async fn next(&mut self) -> Result<(Picture, Instant), SourceError> {
        if let Some(given) = self.given.take().filter(|_| self.delete) {
            delete(self.beneath.clone(), given).await?;
        }
        loop {
            self.take_events().await.map_err(|source| self.failed(source))?;
            if let Some(key) = self.pop() {
                let (beneath, wanted) = (self.beneath.clone(), key.clone());
                let content = joined(spawn_blocking(move || read(&beneath, wanted)).await);
                match content {
                    Ok(Content::Changed(new)) => self.wait(new, false),
                    Ok(Content::Gone) => {}
                    Ok(Content::Partial) => self.unfinished(key),
                    // Its permissions have changed, or the number of its names.
                    Ok(Content::Picture(_, identity)) if self.recent.has(&key.1, identity) => {
                        self.taken(key, None);
                    }
                    Ok(Content::Picture(jpeg, identity)) => {
                        self.taken(key.clone(), Some(identity));
                        let captured = self.captured_at(key.0);
                        self.given = Some(Given { key, identity, jpeg: jpeg.clone() });
                        return Ok((Picture { jpeg, truth: None }, captured));
                    }
                    Err(error) => {
                        self.taken(key, None);
                        return Err(error);
                    }
                }
                continue;
            }
            let wait = if self.missed { SETTLED_AFTER } else { SCAN_EVERY };
            let scan_at = self.scan_at + wait;
            tokio::select! {
                ready = self.events.readable() => ready.map_err(|source| self.failed(source))?,
                () = sleep_until(scan_at) => {
                    let root = self.root.clone();
                    self.scan(root).await.map_err(|source| self.failed(source))?;
                }
            }
        }
    }

    fn failed(&self, source: io::Error) -> SourceError {
        SourceError::Read { path: self.root.clone(), source }
    }

    /// When a picture came, by our clock, and later than the one before: of files that came at once, each has a time of its own.
    fn captured_at(&mut self, nanos: i64) -> Instant {
        let age = SourceClock::wall().since(Instant::from_nanos(nanos));
        let next = self.captured + Duration::from_micros(1);
        self.captured = (self.clock.now() - age).max(next);
        self.captured
    }

    /// The oldest file that waits and that the kernel has said to be whole, or that has not changed for a while.
    fn pop(&mut self) -> Option<Key> {
        let now = SourceClock::wall();
        let mut waiting = self.waiting.iter();
        let key = waiting.find(|((at, _), is_told)| **is_told || is_settled(now, *at));
        let key = key.map(|(key, _)| key.clone());
        // The others are looked at again by the time of the next scan.
        self.missed |= key.is_none() && !self.waiting.is_empty();
        let key = key?;
        self.waiting.remove(&key);
        Some(key)
    }

    fn unfinished(&mut self, key: Key) {
        self.missed = true;
        self.unfinished = match self.unfinished.take() {
            Some(older) => Some(older.min(key)),
            None => Some(key),
        };
    }

    /// Takes up what the kernel tells.
    async fn take_events(&mut self) -> io::Result<()> {
        loop {
            let Some(arrival) = self.arrivals.told() else {
                let now = SourceClock::wall().as_nanos();
                match self.events.try_read(&mut self.buffer) {
                    Ok(0) => {
                        self.told_at = now;
                        return Ok(());
                    }
                    Ok(length) => self.arrivals.read(&self.buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.told_at = now;
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
                continue;
            };
            self.event += 1;
            match arrival {
                Arrival::File(watch, name) => {
                    let beneath = self.beneath.clone();
                    if let Some(path) = self.place_of(watch, &name)
                        && is_picture(&path)
                        && let Some((key, _)) =
                            joined(spawn_blocking(move || found(&beneath, path)).await)
                    {
                        self.wait(key, true);
                    }
                }
                Arrival::Name(watch, name) => {
                    let beneath = self.beneath.clone();
                    // One that is empty is about to be written, which will be told.
                    if let Some(path) = self.place_of(watch, &name)
                        && is_picture(&path)
                        && let Some((key, length)) =
                            joined(spawn_blocking(move || found(&beneath, path)).await)
                        && length > 0
                    {
                        self.wait(key, false);
                    }
                }
                Arrival::Folder(watch, name) => {
                    if let Some(path) = self.place_of(watch, &name) {
                        self.folder_came(path).await;
                    }
                }
                Arrival::Gone(watch) => {
                    self.arrivals.forget(watch);
                    if let Some(folder) = self.folders.remove(&watch)
                        && folder.path == self.root
                    {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                }
                Arrival::Lost => {
                    // The kernel had room for all until then.
                    let tick = i64::try_from(TICK_MAX.as_nanos()).unwrap_or(i64::MAX);
                    self.lose((self.told_at.saturating_sub(tick), PathBuf::new()));
                }
            }
        }
    }

    fn place_of(&mut self, watch: WatchId, name: &OsStr) -> Option<PathBuf> {
        let event = self.event;
        let folder = self.folders.get_mut(&watch)?;
        folder.event = event;
        Some(folder.path.join(name))
    }

    /// Watches a new folder and those in it, and takes up their files: the kernel tells nothing of those that came before it was asked to.
    async fn folder_came(&mut self, path: PathBuf) {
        if self.came.len() < CAME_MAX {
            self.came.push(path.clone());
        }
        let mut came = vec![path];
        while let Some(path) = came.pop() {
            let depth = path.strip_prefix(&self.root).map_or(0, |below| below.components().count());
            if depth > DEPTH_MAX || is_hidden(&path) || self.watch(path.clone()).is_err() {
                // One that is gone again has nothing, and of others scans find the files.
                self.missed = true;
                continue;
            }
            let beneath = self.beneath.clone();
            let listed = joined(spawn_blocking(move || list(&beneath, &path)).await);
            let Listed { files, more, folders } = listed;
            // They may be in the middle of being written: each is taken once it is told or settled.
            for key in files {
                self.wait(key, false);
            }
            if let Some(more) = more {
                self.lose(more);
            }
            came.extend(folders);
        }
    }

    /// Has the kernel tell what arrives in a folder, and no more in the one that was quiet for longest if they are too many.
    fn watch(&mut self, path: PathBuf) -> io::Result<()> {
        let watch = self.arrivals.watch(&path)?;
        self.event += 1;
        self.folders.insert(watch, Folder { path, event: self.event });
        if self.folders.len() > FOLDERS_MAX {
            let others = self.folders.iter().filter(|(_, folder)| folder.path != self.root);
            let quiet = others.min_by_key(|(_, folder)| folder.event).map(|(watch, _)| *watch);
            if let Some(watch) = quiet {
                self.folders.remove(&watch);
                self.arrivals.forget(watch);
            }
        }
        Ok(())
    }

    fn wait(&mut self, key: Key, is_told: bool) {
        if self.recent.contains(&key) {
            return;
        }
        if self.lost.as_ref().is_some_and(|lost| key >= *lost) {
            return;
        }
        *self.waiting.entry(key).or_default() |= is_told;
        if self.waiting.len() > WAITING_MAX
            && let Some((newest, _)) = self.waiting.pop_last()
        {
            self.lose(newest);
        }
    }

    /// Files from that one on are lost until the next scan finds them.
    fn lose(&mut self, from: Key) {
        self.missed = true;
        self.waiting.split_off(&from);
        self.lost = Some(match self.lost.take() {
            Some(older) => older.min(from),
            None => from,
        });
    }

    fn taken(&mut self, key: Key, identity: Option<Identity>) {
        self.recent.push(key.clone(), identity);
        self.after = self.after.take().max(Some(key));
    }

    /// Looks for files that were missed, and for folders to watch.
    async fn scan(&mut self, root: PathBuf) -> io::Result<()> {
        let began = Moment::now();
        let came = std::mem::take(&mut self.came);
        // Of those that came, the files before the first that was lost are taken or wait.
        let news = self
            .lost
            .as_ref()
            .map(|(at, _)| ((at.saturating_sub(1), PathBuf::new()), came.clone()));
        // A file that was lost may be old, and have been moved or linked here.
        let lost = self.lost.as_ref().map(|(at, _)| *at);
        let again = self.unfinished.take().into_iter().chain(self.lost.take()).min();
        let again = again.map(|(at, _)| (at.saturating_sub(1), PathBuf::new()));
        let after = match again {
            Some(again) => self.after.clone().map(|after| after.min(again)).max(self.begin.clone()),
            None => self.after.clone(),
        };
        let scan = move || scan(&root, after.as_ref(), lost, news.as_ref());
        let found = joined(spawn_blocking(scan).await)?;
        self.missed = false;
        if let Some(more) = found.more {
            self.lose(more);
        }
        if let Some(key) = found.unsettled {
            self.unfinished(key);
        }
        for (_, folder) in found.folders {
            let is_watched = self.folders.values().any(|known| known.path == folder);
            if !is_watched {
                // Its files were found; what it cannot be watched for, the next scan finds.
                let _ = self.watch(folder);
            }
        }
        for key in found.files {
            self.wait(key, false);
        }
        if self.lost.is_some() {
            self.came = came;
        }
        let took = began.elapsed();
        self.scan_at = Moment::now() + (SCAN_PART * took).saturating_sub(SCAN_EVERY);
        Ok(())
    }
}

/// Deletes a file that has the picture that was given.
async fn delete(beneath: Arc<Beneath>, given: Given) -> Result<(), SourceError> {
    let deleted = spawn_blocking(move || {
        if !is_as_given(&beneath, &given) {
            return Ok(());
        }
        let (_, path) = given.key;
        match beneath.remove(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(SourceError::Delete { path, source })
            }
            _ => Ok(()),
        }
    });
    joined(deleted.await)
}

/// Whether a file was not written since its picture was given.
fn is_as_given(beneath: &Beneath, given: &Given) -> bool {
    let (at, path) = &given.key;
    let Some(status) = status(beneath, path) else { return false };
    if changed_at(&status) == *at {
        return true;
    }
    // Its other name was taken away, or its permissions were changed: if the times were set back by a writer, the bytes say so.
    identity(&status) == given.identity
        && matches!(
            read(beneath, (changed_at(&status), path.clone())),
            Ok(Content::Picture(jpeg, _)) if jpeg == given.jpeg
        )
}

/// The oldest pictures in a folder and below that are later than `after`, or than the time of `news` in one of its folders, and the
/// newest folders. Those that came since `lost` are looked at whenever they were written.
fn scan(
    root: &Path,
    after: Option<&Key>,
    lost: Option<i64>,
    news: Option<&(Key, Vec<PathBuf>)>,
) -> io::Result<Found> {
    let now = SourceClock::wall();
    let mut found = Found::default();
    let mut open = vec![fs::read_dir(root)?];
    while let Some(folder) = open.last_mut() {
        let Some(entry) = folder.next() else {
            open.pop();
            continue;
        };
        // A file or a folder that has gone meanwhile is none.
        let Ok(entry) = entry else { continue };
        let (path, Ok(status)) = (entry.path(), entry.metadata()) else { continue };
        if status.is_dir() && !is_hidden(&path) && open.len() <= DEPTH_MAX {
            let Ok(below) = fs::read_dir(&path) else { continue };
            open.push(below);
            found.folders.insert((changed_at(&status), path));
            if found.folders.len() >= FOLDERS_MAX {
                found.folders.pop_first();
            }
        } else if status.is_file() && is_picture(&path) {
            let written = written_at(&status);
            let key = key(path, &status);
            let is_news = after.is_none_or(|after| {
                let written_max = i64::try_from(WRITTEN_MAX.as_nanos()).unwrap_or(i64::MAX);
                let is_lost = lost.is_some_and(|lost| key.0 >= lost);
                key > *after && (is_lost || written > after.0.saturating_sub(written_max))
            });
            let has_come = news.is_some_and(|(after, folders)| {
                key > *after && folders.iter().any(|folder| key.1.starts_with(folder))
            });
            if !is_news && !has_come {
                continue;
            }
            if !is_settled(now, key.0) {
                found.unsettled = Some(match found.unsettled {
                    Some(older) => key.min(older),
                    None => key,
                });
                continue;
            }
            found.files.insert(key);
            if found.files.len() > WAITING_MAX {
                found.more = found.files.pop_last();
            }
        }
    }
    Ok(found)
}

/// The content of a folder that has come.
#[derive(Debug, Default)]
struct Listed {
    /// The oldest of its pictures.
    files: BTreeSet<Key>,
    /// The oldest of those beyond them.
    more: Option<Key>,
    folders: Vec<PathBuf>,
}

/// The pictures and the folders in a folder, as many as can be watched; nothing of one that is gone.
fn list(beneath: &Beneath, folder: &Path) -> Listed {
    let mut listed = Listed::default();
    let Ok(entries) = fs::read_dir(folder) else { return listed };
    for entry in entries.flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && listed.folders.len() < FOLDERS_MAX => {
                listed.folders.push(path);
            }
            Ok(kind) if kind.is_file() && is_picture(&path) => {
                listed.files.extend(found(beneath, path).map(|(key, _)| key));
                if listed.files.len() > WAITING_MAX {
                    listed.more = listed.files.pop_last();
                }
            }
            _ => {}
        }
    }
    listed
}

/// A file that was read.
enum Read {
    Whole(Vec<u8>, Identity),
    /// It has changed since it was found, at that time.
    Changed(i64),
    /// It is or was written to meanwhile.
    Written,
    TooLarge,
}

fn read(beneath: &Beneath, (at, path): Key) -> Result<Content, SourceError> {
    let bytes_max = SourceSpec::FRAME_BYTES_MAX;
    let read = (|| {
        let mut file = beneath.file(&path)?;
        let status = file.metadata()?;
        if changed_at(&status) != at {
            return Ok(Read::Changed(changed_at(&status)));
        }
        let length = usize::try_from(status.len()).unwrap_or(usize::MAX);
        if length > bytes_max {
            return Ok(Read::TooLarge);
        }
        let mut bytes = Vec::with_capacity(length);
        file.by_ref().take(length as u64).read_to_end(&mut bytes)?;
        let is_same = bytes.len() == length && changed_at(&file.metadata()?) == at;
        let is_whole = is_same && has_writer(&file) != Some(true);
        io::Result::Ok(if is_whole { Read::Whole(bytes, identity(&status)) } else { Read::Written })
    })();
    let (bytes, identity) = match read {
        Ok(Read::Whole(bytes, identity)) => (bytes, identity),
        Ok(Read::TooLarge) => {
            return Err(SourceError::NotJpeg { path, reason: SplitError::TooLarge { bytes_max } });
        }
        Ok(Read::Changed(now)) => return Ok(Content::Changed((now, path))),
        Ok(Read::Written) => return Ok(Content::Partial),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Gone),
        Err(source) => return Err(SourceError::Picture { path, source }),
    };
    let has_begun = bytes.is_empty() || bytes.starts_with(&[0xff, 0xd8]) || bytes == [0xff];
    let has_all = has_whole_picture(&bytes);
    let is_young = SourceClock::wall().since(Instant::from_nanos(at)) < GIVEN_UP_AFTER;
    if has_begun && !has_all && is_young {
        return Ok(Content::Partial);
    }
    match Splitter::of(bytes, bytes_max).only_image() {
        Ok(jpeg) if has_all => Ok(Content::Picture(jpeg, identity)),
        Ok(_) => Err(SourceError::Torn { path, after: GIVEN_UP_AFTER }),
        Err(reason) => Err(SourceError::NotJpeg { path, reason }),
    }
}

/// Whether the bytes of a file have a picture to its end: it has an end marker, or no part of it is missing without one.
fn has_whole_picture(bytes: &[u8]) -> bool {
    let limits = FrameLimits { bytes_max: SourceSpec::FRAME_BYTES_MAX, ..FrameLimits::default() };
    let Ok(info) = inspect(bytes, &limits) else { return false };
    if info.ended || info.progressive {
        // A progressive picture that breaks off between two scans looks like one that has fewer.
        return info.ended;
    }
    let half = JpegKnobs { scale: Scale::Half, ..JpegKnobs::default() };
    let half = KnobSetting::jpeg(half).expect("half of a picture is a setting");
    let mut transcoder = Transcoder::new(limits);
    transcoder.apply(bytes, &half, &mut Vec::new()).is_ok() && transcoder.damaged() == 0
}

/// A file by its name alone: links are not followed.
fn status(beneath: &Beneath, path: &Path) -> Option<Metadata> {
    beneath.status(path).ok().filter(Metadata::is_file)
}

/// A file that is there, and its length.
fn found(beneath: &Beneath, path: PathBuf) -> Option<(Key, u64)> {
    let status = status(beneath, &path)?;
    Some((key(path, &status), status.len()))
}

/// Whether a file that changed at that time has not changed for a while since.
fn is_settled(now: Instant, at: i64) -> bool {
    now.since(Instant::from_nanos(at)) >= SETTLED_AFTER
}

fn key(path: PathBuf, status: &Metadata) -> Key {
    (changed_at(status), path)
}

fn changed_at(status: &Metadata) -> i64 {
    status.ctime().saturating_mul(1_000_000_000).saturating_add(status.ctime_nsec())
}

fn written_at(status: &Metadata) -> i64 {
    status.mtime().saturating_mul(1_000_000_000).saturating_add(status.mtime_nsec())
}

fn identity(status: &Metadata) -> Identity {
    (status.ino(), written_at(status), status.len())
}

/// Whether a file is one that cameras put there: named as JPEG images are, and not in the making under a hidden name.
fn is_picture(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or("");
    let is_jpeg = ["jpg", "jpeg", "jpe"].iter().any(|name| extension.eq_ignore_ascii_case(name));
    is_jpeg && !is_hidden(path)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

#[cfg(test)]
mod tests;
