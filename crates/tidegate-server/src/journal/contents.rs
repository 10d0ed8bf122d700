//! The content of the folder of a generation.

use std::{ffi::OsString, fs, io, path::Path};

use super::{
    SHARDS_MAX,
    clock_note::{CLOCK_FILE, CLOCK_PARTS},
    mark::MARK_FILE,
    shard_name,
};

/// The content of the folder of a generation, its mark aside.
pub(super) struct Contents {
    /// The shards whose folders are in it, in order.
    pub(super) shards: Vec<usize>,
    /// Names of what is none of it.
    pub(super) foreign: Vec<OsString>,
}

impl Contents {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let mut all = Self { shards: Vec::new(), foreign: Vec::new() };
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            match name.to_str().and_then(shard_of) {
                Some(shard) => all.shards.push(shard),
                None if name == MARK_FILE || name == CLOCK_FILE => {}
                None if CLOCK_PARTS.iter().any(|part| name == *part) => {}
                None => all.foreign.push(name),
            }
        }
        all.shards.sort_unstable();
        Ok(all)
    }

    /// Whether any of the shards' folders has a file.
    pub(super) fn holds_records(&self, path: &Path) -> bool {
        self.shards.iter().any(|shard| {
            let entries = fs::read_dir(path.join(shard_name(*shard)));
            entries.is_ok_and(|mut entries| entries.next().is_some())
        })
    }
}

/// The shard whose folder in that of a generation has that name.
fn shard_of(name: &str) -> Option<usize> {
    let shard = name.parse::<usize>().ok().filter(|shard| *shard < SHARDS_MAX)?;
    (shard_name(shard) == name).then_some(shard)
}

/// Names what is in the folder of a generation and is none of it.
pub(super) fn report_foreign(path: &Path, foreign: &[OsString]) {
    for name in foreign {
        tracing::error!(path = %path.join(name).display().to_string().escape_debug(),
            "this is no part of the journal of the MQTT sessions in whose folder it is: its parts are `{MARK_FILE}`, `{CLOCK_FILE}` and the folders 000 to {:03}; the journal is read without it, and its folder is set aside and not removed", SHARDS_MAX - 1);
    }
}
