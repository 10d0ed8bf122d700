//! Helpers of several tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tidegate_log::{Log, LogConfig, LogWriter, Memory};
use tidegate_message::Instant;

/// A log of `segments` segments of `segment_bytes`, plus room for their index.
pub(crate) fn log_of(segments: u64, segment_bytes: u64) -> (LogWriter, Log) {
    let config = LogConfig { bytes_max: segments * segment_bytes, segment_bytes };
    Log::create(config, Memory::new()).expect("the sizes fit")
}

/// The time `nanos` after the epoch.
pub(crate) fn at(nanos: i64) -> Instant {
    Instant::from_nanos(nanos)
}

/// The capture time of frame `number` at exactly `fps` frames a second.
pub(crate) fn frame_time(number: u64, fps: u64) -> Instant {
    let nanos = u128::from(number) * 1_000_000_000 / u128::from(fps);
    at(i64::try_from(nanos).expect("tests end before the year 2262"))
}

/// Bytes that tell `number` and their place apart from all others.
pub(crate) fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (number * 31 + i * 7 + i / 251) as u8).collect()
}

/// A folder of its own for one test, removed with it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(test: &str) -> Self {
        // Next to the build, because the system's temporary folder may be in memory.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{test}"));
        // Remains of a killed run.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the build folder can be written to");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
