//! A generation's description of itself.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tidegate_message::Position;
use tidegate_sys::files;

use super::SHARDS_MAX;

/// The file that identifies each generation, and its first line.
pub(super) const MARK_FILE: &str = "generation";
pub(super) const MARK: &str = "tidegate MQTT journals 1";
pub(super) const MARK_BYTES_MAX: u64 = 64 << 10;

/// A generation's description of itself, in a file of its folder.
#[derive(Debug, Default)]
pub(super) struct Mark {
    /// By shard, which position its journal had reached when it was begun.
    pub(super) ends: Vec<Position>,
    /// The folders that it says again.
    pub(super) made_from: Vec<String>,
}

impl Mark {
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let ends = self.ends.iter().map(|end| format!("shard ends at {}\n", end.0));
        let made_from = self.made_from.iter().map(|name| format!("made from {name}\n"));
        let text = std::iter::once(format!("{MARK}\n")).chain(ends).chain(made_from);
        files::put(&path.join(MARK_FILE), text.collect::<String>().as_bytes(), files::PRIVATE)
    }

    /// That of a generation; nothing if an earlier version of this program wrote it.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, MarkError> {
        let path = path.join(MARK_FILE);
        let is_mark = |metadata: fs::Metadata| {
            // A pipe in its place would be waited for.
            metadata.is_file() && metadata.len() <= MARK_BYTES_MAX
        };
        let text = match path.symlink_metadata().map(is_mark) {
            Ok(true) => {
                fs::read(&path).map_err(|source| MarkError::Io { path: path.clone(), source })?
            }
            Ok(false) => return Err(MarkError::Unknown { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MarkError::Io { path, source }),
        };
        let mark = Self::parse(&String::from_utf8_lossy(&text));
        mark.map(Some).ok_or(MarkError::Unknown { path })
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let lines = text.strip_suffix('\n')?.strip_prefix(MARK)?;
        let mut mark = Self::default();
        for line in lines.lines().skip(1) {
            match (line.strip_prefix("shard ends at "), line.strip_prefix("made from ")) {
                (Some(end), _) => mark.ends.push(Position(end.parse().ok()?)),
                (_, Some(name)) => mark.made_from.push(name.to_owned()),
                _ => return None,
            }
        }
        let is_known = (1..=SHARDS_MAX).contains(&mark.ends.len());
        (lines.starts_with('\n') && is_known).then_some(mark)
    }

    pub(super) fn is_made_from(&self, path: &Path) -> bool {
        self.made_from.iter().any(|name| path.file_name().is_some_and(|of| of == name.as_str()))
    }
}

/// Why it is not known what a generation is to have.
#[derive(Debug, thiserror::Error)]
pub(super) enum MarkError {
    #[error("{path} cannot be read")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is damaged, or a later version of this program has written it")]
    Unknown { path: PathBuf },
}
