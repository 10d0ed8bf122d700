//! Logs of frames: in memory, or in the files of a folder of their own below the data folder.
//!
//! ```text
//!  DATA_DIR/log/camera/NAME          what a camera captured, at its node
//!  DATA_DIR/log/camera/NAME~1        the same before its clock was set back, to be fetched
//! ```
//!
//! A log that cannot be opened does not stop the node: its frames are kept in memory, and the operator is warned.
//!
//! Always true: appending to a log never fails for its disk; frames that the disk did not take are counted and reported; an
//! existing file is never overwritten by a log that does not know it.

mod folder;
mod keys;
mod taken_back;
mod writer;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tidegate_log::{Durability, LogConfig, LogError, NodeKeys, Store};
use tidegate_message::Instant;
use tidegate_process::clock;

pub use self::{
    folder::{LogName, finish, log_id},
    keys::{KeyFiles, KeysError, passphrase_in},
    taken_back::TakenBack,
    writer::{FrameWriter, Kept},
};

/// A log of frames as its readers share it.
pub type Log = tidegate_log::Log<Store>;
/// A reader of one.
pub type Reader = tidegate_log::Reader<Store>;

/// The size and the place of a log.
#[derive(Clone, Debug)]
pub struct FrameLogSettings {
    /// Its size and that of its segments.
    pub size: LogConfig,
    /// Frames older than this go, a segment at a time; none keeps what has room.
    pub age: Option<Duration>,
    /// Where it is.
    pub place: Place,
}

/// Where a log is.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// In memory: it goes with the process.
    #[default]
    Memory,
    /// In files.
    Files {
        /// The folder of the node's data, in which `log` is or will be.
        data_dir: PathBuf,
        /// The failures that a frame survives once it was appended: [`Durability::Page`] or [`Durability::Disk`].
        durability: Durability,
        /// Seals what is written; none writes clear text.
        keys: Option<Arc<NodeKeys>>,
    },
}

impl From<LogConfig> for FrameLogSettings {
    /// In memory, of any age.
    fn from(size: LogConfig) -> Self {
        Self { size, age: None, place: Place::Memory }
    }
}

/// An open log of frames.
pub struct FrameLog {
    /// Its one writer.
    pub writer: FrameWriter,
    /// Its readers' end.
    pub log: Log,
    /// Logs that it has followed because its camera's clock was set back, newest first.
    pub earlier: Vec<Log>,
}

impl FrameLog {
    /// Opens the log of that name, with what an earlier process has left of it; in memory if it cannot be opened.
    ///
    /// Frames in the future, because the clock was set back since, are set aside: the log then starts over.
    ///
    /// # Errors
    /// The sizes of `config` do not fit each other.
    pub fn open(config: &FrameLogSettings, name: &LogName) -> Result<Self, LogError> {
        Self::open_at(config, name, Some(clock::now()))
    }

    /// As [`FrameLog::open`], of frames whose times are those of another node's clock.
    ///
    /// # Errors
    /// As [`FrameLog::open`].
    pub fn open_remote(config: &FrameLogSettings, name: &LogName) -> Result<Self, LogError> {
        Self::open_at(config, name, None)
    }

    fn open_at(
        config: &FrameLogSettings,
        name: &LogName,
        now: Option<Instant>,
    ) -> Result<Self, LogError> {
        let Place::Files { data_dir, durability, keys } = &config.place else {
            return Self::in_memory(config, name);
        };
        match folder::open(config, name, data_dir, keys.as_deref(), now) {
            Ok(opened) => {
                let (writer, log) = (opened.writer, opened.log);
                let writer = FrameWriter::new(writer, opened.health, *durability, config.age, name);
                Ok(Self { writer, log, earlier: opened.earlier })
            }
            Err(folder::OpenFailed::Sizes(error)) => Err(error),
            Err(failed) => {
                let (code, error) = (failed.code(), tidegate_message::error_chain(&failed));
                tracing::error!(log = %name, %code, error, "frames are kept in memory only");
                Self::in_memory(config, name)
            }
        }
    }

    fn in_memory(config: &FrameLogSettings, name: &LogName) -> Result<Self, LogError> {
        let store = Store::memory();
        let health = store.health();
        let (writer, log) = Log::create(config.size.clone(), store)?;
        let writer = FrameWriter::new(writer, health, Durability::Memory, config.age, name);
        Ok(Self { writer, log, earlier: Vec::new() })
    }
}

#[cfg(test)]
mod tests;
