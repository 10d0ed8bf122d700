//! The journals of the former process, read.

use std::{
    num::NonZero,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tidegate_journal::Replay;
use tidegate_log::{Finding, Journal as RecordLog, OpenedJournal, Report};
use tidegate_message::{Instant, Position};
use tidegate_process::clock;
use tidegate_sys::folder::Folder;

use super::{
    JournalSettings,
    clock_note::read_clock,
    config,
    contents::{Contents, report_foreign},
    joined,
    mark::Mark,
    shard_name,
};

/// Records that are later than now by less are of a clock that was corrected.
const LATER_THAN_NOW: Duration = Duration::from_secs(1);

/// The journals of the former process.
#[derive(Default)]
pub(super) struct Former {
    pub(super) replays: Vec<Replay>,
    /// Records that were read.
    pub(super) records: u64,
    /// Things that could not be read.
    pub(super) lacks: u64,
    /// Things that no version of this program puts there.
    pub(super) foreign: usize,
    /// When the newest of those records was written, by the clock of now.
    newest: Option<Instant>,
    /// Its mark.
    pub(super) mark: Option<Mark>,
}

impl Former {
    /// Reads the journals of a generation.
    ///
    /// Where they were written later than now, the clock is wrong that was right then, or the other way round: times are as far from now as
    /// they were from the newest record.
    pub(super) fn read(path: &Path) -> Self {
        let former = Self::read_by(path, 0);
        let now = clock::now();
        let Some(newest) = former.newest.filter(|newest| *newest > now + LATER_THAN_NOW) else {
            return former;
        };
        tracing::warn!(folder = %path.display(), by_seconds = newest.since(now).as_secs(),
            "the journals of the MQTT sessions are later than the system clock, which may not be set yet; their times are moved");
        // The records that were read hold the folders.
        drop(former);
        Self::read_by(path, now.nanos_since(newest))
    }

    /// Reads them, as many at once as there are processors, and moves their times by so many nanoseconds.
    fn read_by(path: &Path, moved: i64) -> Self {
        let mut all = Self::default();
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            // A link may lead to what another node has.
            all.lack(path, &*Box::<dyn std::error::Error>::from("it is not a folder"));
            return all;
        }
        all.mark = Mark::read(path).unwrap_or_else(|error| {
            all.lack(path, &error);
            None
        });
        let ends = all.mark.as_ref().map(|mark| mark.ends.clone());
        let behind = read_clock(path).unwrap_or_else(|error| {
            all.lack(path, &error);
            0
        });
        let behind = behind.saturating_add(moved);
        let shards = match Contents::read(path) {
            Ok(Contents { shards: found, foreign }) => {
                all.foreign = foreign.len();
                report_foreign(path, &foreign);
                let count = found.last().map_or(0, |last| last + 1);
                let count = ends.as_ref().map_or(count, |ends| count.max(ends.len()));
                for missing in (0..count).filter(|shard| !found.contains(shard)) {
                    let error = format!("the folder {} of a shard is missing", shard_name(missing));
                    all.lack(path, &*Box::<dyn std::error::Error>::from(error));
                }
                found
            }
            Err(error) => {
                all.lack(path, &error);
                Vec::new()
            }
        };
        if shards.is_empty() && all.lacks == 0 {
            all.lack(path, &*Box::<dyn std::error::Error>::from("there is no journal in it"));
        }
        let at_once = thread::available_parallelism().map_or(1, NonZero::get);
        for shards in shards.chunks(at_once) {
            let read = |shard: usize| {
                let path = path.join(shard_name(shard));
                let (mut former, mut replay) = (Self::default(), Replay::of_clock_behind(behind));
                let end = ends.as_ref().and_then(|ends| ends.get(shard)).copied();
                match former.read_shard(&path, (shard, end), &mut replay) {
                    Ok(newest) => {
                        former.newest = newest.map(|at| clock::shifted(at, behind));
                    }
                    Err(error) => former.lack(&path, &*error),
                }
                former.replays.push(replay);
                former
            };
            let read: Vec<Self> = thread::scope(|scope| {
                let reading: Vec<_> =
                    shards.iter().map(|shard| scope.spawn(|| read(*shard))).collect();
                reading.into_iter().map(joined).collect()
            });
            for former in read {
                all.replays.extend(former.replays);
                all.newest = all.newest.max(former.newest);
                all.records += former.records;
                all.lacks += former.lacks;
            }
        }
        all
    }

    /// Something cannot be read.
    fn lack(&mut self, path: &Path, error: &dyn std::error::Error) {
        self.lacks += 1;
        tracing::error!(folder = %path.display(), error = %tidegate_message::error_chain(error),
            "a journal of the MQTT sessions cannot be read");
    }

    fn read_shard(
        &mut self,
        path: &Path,
        (shard, end): (usize, Option<Position>),
        replay: &mut Replay,
    ) -> Result<Option<Instant>, Box<dyn std::error::Error + Send + Sync>> {
        let settings = JournalSettings {
            folder: PathBuf::new(),
            is_on_disk: false,
            // As it was: a log takes segments of any size that it finds.
            bytes_max: u64::MAX / 2,
            commit_delay: Duration::ZERO,
        };
        let config = config(&settings, 1, shard);
        let OpenedJournal { journal, report, .. } = RecordLog::open(Folder::open(path)?, config)?;
        self.note(path, &report);
        if end.is_some_and(|end| journal.end() < end) || report.ends_finished {
            self.lack(path, &*Box::<dyn std::error::Error>::from("its newest records are missing"));
        }
        let (mut wrong, mut records) = (0, 0);
        let lost = journal.read_all(|record| {
            records += 1;
            if let Err(error) = replay.read(&record) {
                wrong += 1;
                tracing::warn!(folder = %path.display(), %error, "a record of the MQTT sessions is not taken");
            }
        });
        if lost > 0 {
            tracing::warn!(folder = %path.display(), lost, "records of the MQTT sessions are damaged");
        }
        self.records += records;
        self.lacks += lost + wrong;
        Ok(journal.last_at())
    }

    fn note(&mut self, path: &Path, report: &Report) {
        for finding in &report.findings {
            // The last segment of a process that was killed has no end; nothing of it is missing.
            if let Finding::Repaired { .. } = finding {
                tracing::info!(folder = %path.display(), %finding, "found in a journal of the MQTT sessions");
            } else {
                self.lacks += 1;
                tracing::warn!(folder = %path.display(), %finding, "found in a journal of the MQTT sessions");
            }
        }
    }
}
