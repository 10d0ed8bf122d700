//! Messages that wait for subscribers on disk, in files.
//!
//! ```text
//!  data_dir/spill/00000000, 00000001, …   segments: each written from its start, removed when nothing of it is needed
//! ```
//!
//! A shard writes as it goes: a copy into the kernel's memory, into blocks that the segment has already, so that a full disk shows when
//! a segment is begun and not in the middle of a message. Reads happen on a thread of their own, and so does the release of places: of
//! blocks, if a message is large, else of its segment.
//!
//! Always true: the segments take at most what they may; no file of them outlives the process, or else the next one's start.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
};

use bytes::Bytes;
use tidegate_broker::spill::{Place, Spill, SpillError, Wanted};
use tidegate_message::{Code, Payload};
use tidegate_sys::{
    files,
    folder::{Folder, FolderFile},
};

use super::{inbox::Inbox, shard::ShardCommand};

/// Bytes of a segment, unless all of them may take little, or one message takes more.
const SEGMENT_BYTES: u64 = 16 << 20;
/// The least.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Segments that there may be at least.
const SEGMENTS: u64 = 16;
/// A message of so many bytes gives its blocks back before its segment goes.
const PUNCHED_BYTES: u64 = 64 << 10;
/// Files have blocks of this many bytes, or of a part of it.
const BLOCK_BYTES: u64 = 4 << 10;

/// Where messages wait on disk.
#[derive(Clone, Debug)]
pub struct SpillSettings {
    /// The folder; made when it is needed.
    pub folder: PathBuf,
    /// Bytes of its files at most.
    pub bytes_max: u64,
}

/// The files, as shards see them.
pub(super) struct DiskSpill {
    settings: SpillSettings,
    state: Mutex<State>,
    jobs: Sender<Job>,
}

#[derive(Default)]
struct State {
    folder: Option<Folder>,
    segments: BTreeMap<u32, Segment>,
    /// The segment that is being filled.
    filling: Option<u32>,
    next: u32,
    /// Of all segments, without what they have given back.
    bytes: u64,
}

struct Segment {
    file: Arc<FolderFile>,
    /// Its size, and how far it is filled.
    len: u64,
    end: u64,
    /// Messages that are needed.
    needed: u64,
    /// Bytes that it has given back.
    punched: u64,
}

enum Job {
    Read(usize, Wanted),
    Forget(Place),
    Stop,
}

/// The end of it that has a thread.
pub(super) struct Reader {
    disk: Arc<DiskSpill>,
    jobs: Receiver<Job>,
}

impl std::fmt::Debug for DiskSpill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskSpill").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl DiskSpill {
    /// Begins with nothing: files of an earlier process are removed.
    pub(super) fn open(settings: SpillSettings) -> (Arc<Self>, Reader) {
        let (jobs, asked) = mpsc::channel();
        let disk = Arc::new(Self { settings, state: Mutex::default(), jobs });
        if disk.settings.folder.exists()
            && let Err(error) = disk.folder(&mut disk.state())
        {
            tracing::warn!(folder = %disk.settings.folder.display(), %error,
                "messages that waited on disk in the former process could not be removed");
        }
        (disk.clone(), Reader { disk, jobs: asked })
    }

    /// Has the thread end.
    pub(super) fn stop(&self) {
        self.tell(Job::Stop);
    }

    /// Removes all files.
    pub(super) fn clear(&self) {
        let mut state = self.state();
        state.segments.clear();
        let Some(folder) = &state.folder else { return };
        if let Err(error) = remove_all(folder) {
            tracing::warn!(folder = %self.settings.folder.display(), %error, "files of messages that waited on disk could not be removed");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, job: Job) {
        // The reader has ended once the server stops; then all of it goes.
        let _ = self.jobs.send(job);
    }

    fn folder(&self, state: &mut State) -> io::Result<Folder> {
        if let Some(folder) = &state.folder {
            return Ok(folder.clone());
        }
        files::folder(&self.settings.folder, files::PRIVATE_FOLDER)?;
        let folder = Folder::open(&self.settings.folder).map_err(io::Error::other)?;
        remove_all(&folder)?;
        state.folder = Some(folder.clone());
        Ok(folder)
    }

    /// Room for a message, in the segment that is being filled, in a new one, or in one of its own.
    fn reserve(&self, bytes: u32) -> Result<(Arc<FolderFile>, Place), SpillError> {
        let mut state = self.state();
        let state = &mut *state;
        let usual = (self.settings.bytes_max / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES);
        let filling = state.filling.filter(|number| {
            let segment = state.segments.get(number);
            segment.is_some_and(|segment| segment.len - segment.end >= u64::from(bytes))
        });
        let number = match filling {
            Some(number) => number,
            None if u64::from(bytes) > usual / 2 => self.begin(state, u64::from(bytes))?,
            None => {
                let number = self.begin_usual(state, usual, u64::from(bytes))?;
                // The one before goes with its last message; if that has gone already, now.
                if let Some(before) = state.filling.replace(number) {
                    state.remove_unneeded(before);
                }
                number
            }
        };
        let segment = state.segments.get_mut(&number).expect("found, or just begun");
        let position = u64::from(number) << 32 | segment.end;
        segment.end += u64::from(bytes);
        segment.needed += 1;
        Ok((segment.file.clone(), Place { position, bytes }))
    }

    /// A new segment of the usual size, or a smaller one where there is no room for that.
    fn begin_usual(&self, state: &mut State, usual: u64, bytes: u64) -> Result<u32, SpillError> {
        let mut len = usual;
        loop {
            match self.begin(state, len) {
                Err(error) if error.code() == Code::STORAGE_FULL => {
                    len /= 2;
                    if len < bytes.max(SEGMENT_BYTES_MIN) {
                        return Err(error);
                    }
                }
                begun => return begun,
            }
        }
    }

    /// A new segment for so many bytes.
    fn begin(&self, state: &mut State, bytes: u64) -> Result<u32, SpillError> {
        let len = bytes.next_multiple_of(BLOCK_BYTES);
        let limit = self.settings.bytes_max;
        if state.bytes + len > limit {
            return Err(SpillError::Bound { limit });
        }
        let folder = self.folder(state).map_err(SpillError::of)?;
        // An entry that has such a name and is no file was left alone.
        let (number, file) = loop {
            let number = state.next;
            state.next = number.wrapping_add(1);
            match folder.create(&name(number), len) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => break (number, created.map_err(SpillError::of)?),
            }
        };
        let segment = Segment { file: Arc::new(file), len, end: 0, needed: 0, punched: 0 };
        state.bytes += len;
        state.segments.insert(number, segment);
        Ok(number)
    }

    fn read_place(&self, place: Place) -> Result<Bytes, SpillError> {
        let (number, offset) = parts(place);
        let file = self.state().segments.get(&number).map(|segment| segment.file.clone());
        let Some(file) = file else {
            return Err(SpillError::of(io::ErrorKind::NotFound.into()));
        };
        let mut bytes = vec![0; place.bytes as usize];
        file.read_at(offset, &mut bytes).map_err(SpillError::of)?;
        Ok(bytes.into())
    }

    /// Gives back what a message took, on the thread that may wait for that.
    fn give_back(&self, place: Place) {
        let (number, offset) = parts(place);
        let mut state = self.state();
        let is_filling = state.filling == Some(number);
        let Some(segment) = state.segments.get_mut(&number) else { return };
        segment.needed -= 1;
        if is_filling {
            if segment.needed == 0 {
                segment.end = 0;
            }
            return;
        }
        if segment.needed == 0 {
            return state.remove_unneeded(number);
        }
        if u64::from(place.bytes) < PUNCHED_BYTES {
            return;
        }
        let file = segment.file.clone();
        drop(state);
        let end = offset + u64::from(place.bytes);
        let blocks = offset.next_multiple_of(BLOCK_BYTES)..end / BLOCK_BYTES * BLOCK_BYTES;
        let bytes = blocks.end - blocks.start;
        // Where the file system cannot, they go with the segment.
        if file.punch(blocks).is_ok() {
            let mut state = self.state();
            // Only this removes segments.
            if let Some(segment) = state.segments.get_mut(&number) {
                segment.punched += bytes;
                state.bytes -= bytes;
            }
        }
    }
}

impl State {
    fn remove_unneeded(&mut self, number: u32) {
        let is_needed = |segment: &Segment| segment.needed > 0;
        if self.segments.get(&number).is_none_or(is_needed) {
            return;
        }
        if let (Some(segment), Some(folder)) = (self.segments.remove(&number), &self.folder) {
            self.bytes -= segment.len - segment.punched;
            if let Err(error) = folder.remove(&name(number)) {
                tracing::warn!(%error, file = name(number), "a file of messages that waited on disk could not be removed");
            }
        }
    }
}

impl Spill for DiskSpill {
    fn write(&self, head: &[u8], payload: &Payload) -> Result<Place, SpillError> {
        let bytes = u32::try_from(head.len() + payload.len())
            .map_err(|_| SpillError::of(io::ErrorKind::FileTooLarge.into()))?;
        let (file, place) = self.reserve(bytes)?;
        let (_, mut offset) = parts(place);
        let segments = payload.segments().iter().map(|segment| &segment[..]);
        for part in std::iter::once(head).chain(segments) {
            if let Err(error) = file.write_at(offset, part) {
                self.tell(Job::Forget(place));
                return Err(SpillError::of(error));
            }
            offset += part.len() as u64;
        }
        Ok(place)
    }

    fn forget(&self, place: Place) {
        self.tell(Job::Forget(place));
    }

    fn read(&self, shard: usize, wanted: Wanted) {
        self.tell(Job::Read(shard, wanted));
    }

    fn read_now(&self, place: Place) -> Result<Bytes, SpillError> {
        self.read_place(place)
    }

    fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn bytes_max(&self) -> u64 {
        self.settings.bytes_max
    }
}

impl Reader {
    /// Answers until it is stopped.
    pub(super) fn run(self, inboxes: &[Arc<Inbox<ShardCommand>>]) {
        while let Ok(job) = self.jobs.recv() {
            match job {
                Job::Read(shard, wanted) => {
                    let answers = wanted.places().map(|place| self.disk.read_place(place));
                    let answers = answers.collect();
                    inboxes[shard].put([ShardCommand::Fetched(wanted, answers)]);
                }
                Job::Forget(place) => self.disk.give_back(place),
                Job::Stop => return,
            }
        }
    }
}

fn name(number: u32) -> String {
    format!("{number:08}")
}

fn parts(place: Place) -> (u32, u64) {
    ((place.position >> 32) as u32, u64::from(place.position as u32))
}

/// Removes the segments in a folder, and nothing else.
fn remove_all(folder: &Folder) -> io::Result<()> {
    for found in folder.list()? {
        let name = found.name.to_string_lossy();
        if found.is_file && name.len() >= 8 && name.bytes().all(|byte| byte.is_ascii_digit()) {
            folder.remove(&name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &tempfile::TempDir, bytes_max: u64) -> (Arc<DiskSpill>, Reader) {
        let folder = folder.path().join("spill");
        DiskSpill::open(SpillSettings { folder, bytes_max })
    }

    fn write(disk: &DiskSpill, number: u8, bytes: usize) -> Result<Place, SpillError> {
        let payload = Bytes::from(vec![number; bytes]);
        disk.write(&[number, 0], &Payload::from(payload))
    }

    /// Does what was asked for so far.
    fn turn(reader: &Reader) {
        for job in reader.jobs.try_iter() {
            match job {
                Job::Forget(place) => reader.disk.give_back(place),
                _ => panic!("nothing else is asked"),
            }
        }
    }

    fn files(folder: &tempfile::TempDir) -> usize {
        std::fs::read_dir(folder.path().join("spill")).map_or(0, Iterator::count)
    }

    #[test]
    fn messages_come_back_and_their_files_go_with_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let (disk, reader) = open(&folder, 4 << 20);
        assert_eq!(files(&folder), 0, "made when it is needed");
        let places: Vec<(u8, usize, Place)> = (0..40)
            .map(|number| {
                let bytes = [10, 70_000, 0, 300_000][usize::from(number % 4)];
                (number, bytes, write(&disk, number, bytes).expect("there is room"))
            })
            .collect();
        let full = disk.bytes();
        assert!(full > 40 / 4 * 370_000 && full <= 4 << 20, "{full}");
        for (number, bytes, place) in &places {
            let read = disk.read_now(*place).expect("it is there");
            assert_eq!(read.len(), bytes + 2);
            assert!(read[0] == *number && read[2..].iter().all(|byte| byte == number));
        }
        // All but one go, and with them most of the room, though it is in the middle.
        for (_, _, place) in places.iter().filter(|(number, ..)| *number != 20) {
            disk.forget(*place);
        }
        turn(&reader);
        assert!(disk.bytes() <= 3 * (4 << 20) / SEGMENTS, "{}", disk.bytes());
        assert_eq!(disk.read_now(places[20].2).expect("it is there")[0], 20);
        disk.forget(places[20].2);
        turn(&reader);
        assert!(files(&folder) <= 1, "one to fill next");
        disk.clear();
        assert_eq!(files(&folder), 0);
    }

    #[test]
    fn it_takes_no_more_than_it_may_and_takes_again_what_was_given_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let (disk, reader) = open(&folder, 1 << 20);
        let mut places = Vec::new();
        let error = loop {
            match write(&disk, 1, 20_000) {
                Ok(place) => places.push(place),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, SpillError::Bound { limit } if limit == 1 << 20), "{error}");
        assert_eq!(error.code().as_str(), "storage.full");
        assert!(places.len() >= 40 && disk.bytes() <= 1 << 20);
        places.drain(..20).for_each(|place| disk.forget(place));
        turn(&reader);
        assert!(write(&disk, 2, 20_000).is_ok());
        assert!(write(&disk, 2, 2 << 20).is_err(), "larger than all of it");
    }

    #[test]
    fn a_last_small_part_of_the_room_is_used_and_what_is_no_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("spill/00000000")).expect("a folder");
        // Room for two segments of the usual size and a half.
        let (disk, _reader) = open(&folder, 160 << 10);
        let mut count = 0;
        while write(&disk, 1, 20_000).is_ok() {
            count += 1;
        }
        assert!(count >= 6 && disk.bytes() <= 160 << 10, "{count}");
        assert!(folder.path().join("spill/00000000").is_dir());
    }

    #[test]
    fn files_of_a_former_process_are_removed_by_the_next_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let (disk, reader) = open(&folder, 1 << 20);
        write(&disk, 1, 20_000).expect("there is room");
        std::fs::write(folder.path().join("spill/notes"), "mine").expect("a file");
        // As if it had been killed.
        drop((disk, reader));
        assert_eq!(files(&folder), 2);
        let (disk, _reader) = open(&folder, 1 << 20);
        assert_eq!((files(&folder), disk.bytes()), (1, 0));
    }

    #[test]
    fn a_folder_that_cannot_be_had_is_said_and_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("spill"), "in the way").expect("a file");
        let (disk, _reader) = open(&folder, 1 << 20);
        let error = write(&disk, 1, 100).expect_err("there is no folder");
        assert_eq!(error.code().as_str(), "storage.failed");
        std::fs::remove_file(folder.path().join("spill")).expect("it was there");
        assert!(write(&disk, 1, 100).is_ok());
    }
}
