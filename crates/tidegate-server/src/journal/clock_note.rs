//! How far the wall clock was set, noted beside the journals.

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use tidegate_process::clock;
use tidegate_sys::{files, regular};

use super::mark::{MARK_BYTES_MAX, MarkError};

/// How far the wall clock was set since the start, and how often that is looked at.
pub(super) const CLOCK_FILE: &str = "clock";
/// Names of it while it is written, the second by earlier versions of this program.
pub(super) const CLOCK_PARTS: [&str; 2] = [".clock.new", "clock.part"];
const CLOCK: Duration = Duration::from_secs(1);

/// Notes in the folder of the generation how far the wall clock was set since the process started: its journals have times by a clock
/// that never jumps, and the next process begins with another one.
pub(in super::super) struct ClockKeeper {
    pub(super) folder: PathBuf,
}

impl ClockKeeper {
    /// Looks now and then until `stop` receives a message or is closed.
    pub(in super::super) fn run(self, stop: &mpsc::Receiver<()>) {
        let mut noted = 0;
        loop {
            let stops = !matches!(stop.recv_timeout(CLOCK), Err(mpsc::RecvTimeoutError::Timeout));
            let ahead = clock::wall_ahead();
            if ahead != noted {
                match note_clock(&self.folder, ahead) {
                    Ok(()) => noted = ahead,
                    Err(error) => {
                        tracing::debug!(%error, "that the clock was set is not noted yet");
                    }
                }
            }
            if stops {
                return;
            }
        }
    }
}

pub(super) fn note_clock(folder: &Path, ahead: i64) -> io::Result<()> {
    let text = format!("wall clock ahead by {ahead} ns\n");
    files::put(&folder.join(CLOCK_FILE), text.as_bytes(), files::PRIVATE)
}

/// The note that [`note_clock`] has written; 0 if the clock was never set.
pub(super) fn read_clock(folder: &Path) -> Result<i64, MarkError> {
    let path = folder.join(CLOCK_FILE);
    match regular::read_at_most(&path, MARK_BYTES_MAX) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let ahead = text.strip_prefix("wall clock ahead by ");
            let ahead = ahead.and_then(|rest| rest.strip_suffix(" ns\n")?.parse().ok());
            ahead.ok_or(MarkError::Unknown { path })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(MarkError::Io { path, source }),
    }
}
