//! Runs of a log that end without warning, and what has to be there afterwards.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::{Instant, Position};

use super::{Dice, SimulatedDisk};
use crate::{
    AppendError, CommitConfig, Commits, Durability, Entry, Files, FilesConfig, Flusher, Log,
    LogConfig, LogWriter, NodeKey, NodeKeys, Opened, ReadError, StorageError,
};

/// The result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Entries that were appended.
    pub appended: u64,
    /// Entries that were said to be durable, once for each process that said so.
    pub durable: u64,
    /// Entries that were found after a start, over all starts.
    pub found: u64,
    /// Entries that were appended and not found, none of which was said to be kept.
    pub lost: u64,
    /// How often the power went.
    pub power_losses: u64,
    /// How often the process ended.
    pub kills: u64,
    /// Runs in which the disk failed to sync.
    pub sync_failures: u64,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An entry that was said to be kept is not there.
    #[error("the entry at {position} was kept for {durability:?}, and is gone")]
    Lost {
        /// Its position.
        position: Position,
        /// The promised durability.
        durability: Durability,
    },
    /// An entry was found that was never appended.
    #[error("the entry at {position} was never appended")]
    Invented {
        /// Its position.
        position: Position,
    },
    /// Positions or times do not increase.
    #[error("the entry at {position} is out of order")]
    OutOfOrder {
        /// Its position.
        position: Position,
    },
    /// A position was given a second time.
    #[error("position {position} was given again, below {expected}")]
    Reused {
        /// The position.
        position: Position,
        /// The least that it may be.
        expected: Position,
    },
    /// Sealed content is on the disk in clear text.
    #[error("the disk has clear text of a sealed log")]
    ClearText,
    /// The log did not open.
    #[error("the log did not open: {reason}")]
    Closed {
        /// The error.
        reason: String,
    },
    /// A call failed for another reason than a disk without power.
    #[error("a call failed: {reason}")]
    Failed {
        /// The error.
        reason: String,
    },
}

type Content = (Instant, Bytes, Bytes);

/// Facts about the log that the test keeps outside of it.
#[derive(Default)]
struct Known {
    /// Everything that was ever appended, by position.
    appended: BTreeMap<Position, Vec<Content>>,
    /// The entries that the last process has appended.
    cached: BTreeMap<Position, Content>,
    /// The entries reported as durable.
    durable: BTreeMap<Position, Content>,
    /// The oldest position that was kept last.
    first: Position,
    outcome: Outcome,
}

/// Runs a log from `seed` through several starts, most of which end with the loss of power, and checks after each what is there.
///
/// # Errors
/// The first promise that was broken.
pub fn lose_power(seed: u64) -> Result<Outcome, Violation> {
    run(seed, false)
}

/// As [`lose_power`], of a sealed log whose node key is another one now and then. Each entry holds [`MARKER`] in clear text, which
/// neither the disk nor the page cache ever does.
///
/// # Errors
/// The first promise that was broken.
pub fn lose_power_sealed(seed: u64) -> Result<Outcome, Violation> {
    run(seed, true)
}

/// The content of entries of a sealed log.
pub const MARKER: &[u8] = b"this is clear text";

fn run(seed: u64, is_sealed: bool) -> Result<Outcome, Violation> {
    let mut dice = Dice(seed);
    let mut node_keys: Vec<NodeKey> = Vec::new();
    let mut keys = |dice: &mut Dice| {
        if !is_sealed {
            return None;
        }
        if node_keys.is_empty() || dice.once_in(3) {
            let bytes = std::array::from_fn(|_| dice.roll() as u8);
            node_keys.insert(0, NodeKey::from_bytes(bytes));
        }
        let (current, older) = node_keys.split_first().expect("there is one");
        Some(NodeKeys { current: current.clone(), older: older.to_vec() })
    };
    let disk = SimulatedDisk::new(dice.roll());
    let segment_bytes = 8192 << dice.below(3);
    let segments = 4 + dice.below(5);
    let config = LogConfig { bytes_max: segments * segment_bytes, segment_bytes };
    let mut known = Known::default();
    let mut now = Instant::from_millis(1_000_000);
    for _ in 0..2 + dice.below(4) {
        let keys = keys(&mut dice);
        let mut process = Process::start(&disk, &config, &mut known, now, keys)?;
        let is_cut = dice.once_in(2);
        if is_cut {
            disk.cut_power_after(dice.below(900));
        }
        for _ in 0..dice.below(160) {
            now = now + Duration::from_micros(1 + dice.below(4000));
            process.step(&disk, &mut dice, &mut known, now)?;
            if disk.is_dark() {
                break;
            }
        }
        // Reports before the end count; those that the end itself causes do not.
        process.note_durable(&mut known);
        let is_power_lost = is_cut || dice.once_in(2);
        disk.fail_syncs(false);
        if is_sealed && disk.holds(MARKER) {
            return Err(Violation::ClearText);
        }
        process.end(&disk, &mut known, is_power_lost);
    }
    let keys = keys(&mut dice);
    Process::start(&disk, &config, &mut known, now, keys)?;
    Ok(known.outcome)
}

struct Process {
    writer: LogWriter<Files<SimulatedDisk>>,
    log: Log<Files<SimulatedDisk>>,
    flusher: Flusher<SimulatedDisk>,
    commits: Commits,
    pinned: VecDeque<Entry>,
    /// Up to where [`Process::note_durable`] has looked.
    noted: Position,
    /// Appended when the power was gone already.
    in_the_dark: BTreeSet<Position>,
}

impl Process {
    fn start(
        disk: &SimulatedDisk,
        config: &LogConfig,
        known: &mut Known,
        now: Instant,
        keys: Option<NodeKeys>,
    ) -> Result<Self, Violation> {
        let closed = |reason: String| Violation::Closed { reason };
        let commit = CommitConfig {
            delay_max: Duration::from_millis(2),
            bytes_max: 4096,
            settle_after: Duration::from_millis(20),
        };
        let files = FilesConfig { log_id: 7, opened: now, commit, keys };
        let Opened { files, flusher, commits, .. } =
            Files::open(disk.clone(), files).map_err(|error| closed(error.to_string()))?;
        let (writer, log) =
            Log::open(config.clone(), files).map_err(|error| closed(error.to_string()))?;
        known.check(&log)?;
        let (pinned, noted) = (VecDeque::new(), Position(0));
        let in_the_dark = BTreeSet::new();
        Ok(Self { writer, log, flusher, commits, pinned, noted, in_the_dark })
    }

    fn step(
        &mut self,
        disk: &SimulatedDisk,
        dice: &mut Dice,
        known: &mut Known,
        now: Instant,
    ) -> Result<(), Violation> {
        match dice.below(40) {
            0..26 => self.append(disk, dice, known, now)?,
            26..33 => {
                self.flusher.turn(&|| now);
                self.note_durable(known);
            }
            33 => {
                let flushed = self.writer.flush();
                if !disk.is_dark() && flushed.is_ok() {
                    self.note_durable(known);
                }
            }
            34 => {
                let oldest = self.log.end().0 - self.log.entries();
                let position = Position(oldest + dice.below(self.log.entries() + 1));
                self.pinned.extend(self.log.entry(position).unwrap_or_default());
            }
            35 => drop(self.pinned.pop_front()),
            36 if dice.once_in(3) => {
                let back = dice.below(60);
                let released = self.writer.release(Position(self.log.end().0.saturating_sub(back)));
                self.allow_dark(disk, released.map(drop))?;
            }
            37 if dice.once_in(3) => {
                let at = now - Duration::from_millis(20 + dice.below(200));
                let expired = self.writer.expire(at).map(drop);
                self.allow_dark(disk, expired)?;
            }
            38 if dice.once_in(30) => {
                known.outcome.sync_failures += 1;
                disk.fail_syncs(true);
            }
            39 if dice.once_in(2) => disk.fail_syncs(false),
            _ => {}
        }
        known.first = known.first.max(self.first());
        Ok(())
    }

    fn append(
        &mut self,
        disk: &SimulatedDisk,
        dice: &mut Dice,
        known: &mut Known,
        now: Instant,
    ) -> Result<(), Violation> {
        let at = self.writer.last_at().map_or(now, |last| now.max(last + Duration::from_nanos(1)));
        let len = match dice.below(20) {
            0 => 0,
            1 => 1 + dice.below(self.writer.entry_bytes_max() as u64 - 20),
            _ => 1 + dice.below(700),
        };
        let mut body: Vec<u8> = (0..len).map(|_| dice.roll() as u8).collect();
        if let Some(room) = body.first_chunk_mut::<{ MARKER.len() }>() {
            room.copy_from_slice(MARKER);
        }
        let body = Bytes::from(body);
        let meta: Bytes = (0..dice.below(20)).map(|_| dice.roll() as u8).collect();
        let durability = if dice.once_in(2) { Durability::Disk } else { Durability::Page };
        // Either way to append: as journals do, and as frames are.
        let appended = if dice.once_in(2) {
            self.writer.append_durably(durability, at, &meta, &body)
        } else {
            self.writer.append_shared(durability, at, &meta, &body)
        };
        match appended {
            Ok(position) => {
                let content = (at, meta, body);
                known.outcome.appended += 1;
                known.appended.entry(position).or_default().push(content.clone());
                if disk.is_dark() {
                    self.in_the_dark.insert(position);
                }
                known.cached.insert(position, content);
                Ok(())
            }
            Err(AppendError::Pinned { .. }) => {
                self.pinned.clear();
                Ok(())
            }
            // Refused because the disk has failed before.
            Err(AppendError::Storage(StorageError::NotDurable { .. })) => Ok(()),
            Err(error) => self.allow_dark(disk, Err(error)),
        }
    }

    /// A call may fail if the power is gone.
    fn allow_dark<E: std::error::Error>(
        &self,
        disk: &SimulatedDisk,
        result: Result<(), E>,
    ) -> Result<(), Violation> {
        match result {
            Err(error) if !disk.is_dark() => {
                let source = error.source().map(|source| format!(": {source}"));
                Err(Violation::Failed { reason: format!("{error}{}", source.unwrap_or_default()) })
            }
            _ => Ok(()),
        }
    }

    /// Notes what is said to be durable by now: of this process's entries, and of those that it has found.
    fn note_durable(&mut self, known: &mut Known) {
        let from = self.noted.max(known.first);
        let durable = self.commits.durable();
        let said = known.cached.range(from..durable.max(from));
        let said: Vec<_> = said.map(|(&position, content)| (position, content.clone())).collect();
        known.outcome.durable += said.len() as u64;
        known.durable.extend(said);
        self.noted = durable;
    }

    fn first(&self) -> Position {
        self.log.first().ok().flatten().map_or(self.log.end(), |entry| entry.position)
    }

    /// The process is killed: nothing of it runs any more.
    fn end(self, disk: &SimulatedDisk, known: &mut Known, is_power_lost: bool) {
        let was_dark = disk.is_dark();
        // Writes by its own end do not happen.
        disk.cut_power_after(0);
        let in_the_dark = self.in_the_dark;
        drop((self.writer, self.log, self.flusher, self.pinned));
        known.cached.retain(|position, _| !in_the_dark.contains(position));
        if is_power_lost || was_dark {
            known.outcome.power_losses += 1;
            known.cached.clear();
            disk.lose_power();
        } else {
            known.outcome.kills += 1;
            disk.end_process();
        }
    }
}

impl Known {
    /// Holds what a log that was just opened has against what was promised.
    fn check(&mut self, log: &Log<Files<SimulatedDisk>>) -> Result<(), Violation> {
        let mut found: BTreeMap<Position, Content> = BTreeMap::new();
        let mut last: Option<(Position, Instant)> = None;
        let mut reader = log.reader_at(Position(0));
        loop {
            match reader.next() {
                Ok(None) => break,
                Ok(Some(Entry { position, at, meta, body })) => {
                    let is_later = last.is_none_or(|last| (position, at) > last && at > last.1);
                    if !is_later {
                        return Err(Violation::OutOfOrder { position });
                    }
                    last = Some((position, at));
                    found.insert(position, (at, meta, body));
                }
                Err(ReadError::Overtaken(_)) => {}
                Err(ReadError::Storage { source: StorageError::Damaged { .. }, .. }) => {}
                Err(error) => return Err(Violation::Failed { reason: error.to_string() }),
            }
        }
        for (&position, content) in &found {
            let written = self.appended.get(&position);
            if !written.is_some_and(|written| written.contains(content)) {
                return Err(Violation::Invented { position });
            }
            let by_time = log.entry_at(content.0).ok().flatten();
            if by_time.is_none_or(|entry| entry.position != position) {
                return Err(Violation::OutOfOrder { position });
            }
        }
        for (promised, durability) in
            [(&self.durable, Durability::Disk), (&self.cached, Durability::Page)]
        {
            for (&position, content) in promised.range(self.first..) {
                if found.get(&position) != Some(content) {
                    return Err(Violation::Lost { position, durability });
                }
            }
            let expected = promised.keys().next_back().map_or(Position(0), |last| last.next());
            if log.end() < expected {
                return Err(Violation::Reused { position: log.end(), expected });
            }
        }
        self.outcome.found += found.len() as u64;
        let missing =
            self.appended.range(self.first..).filter(|(position, _)| !found.contains_key(position));
        self.outcome.lost += missing.count() as u64;
        // From here on the next process continues from the state that was found.
        self.cached = found;
        Ok(())
    }
}
