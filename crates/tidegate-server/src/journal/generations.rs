//! The generations of journals in a folder: which of them counts, and what becomes of the others.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tidegate_journal::Replay;

use super::{
    JournalStartError,
    contents::{Contents, report_foreign},
    failed,
    former::Former,
    mark::Mark,
    shard_name,
};

/// Folders that are set aside at most.
pub(super) const ASIDES_MAX: usize = 16;

/// The generations in a folder.
#[derive(Default)]
pub(super) struct Generations {
    /// The content of the one that counts.
    pub(super) replays: Vec<Replay>,
    /// The number of the next.
    pub(super) next: u64,
    /// Those that the next one says again, or that were followed by one that did.
    pub(super) superseded: Vec<PathBuf>,
    /// Those of which something could not be read, and those before one of them.
    aside: Vec<PathBuf>,
}

impl Generations {
    /// Reads the newest that is whole; if none is, the newest of which something can be read.
    ///
    /// One that was begun and never finished is removed where there is what it was made from.
    pub(super) fn read(folder: &Path) -> Result<Self, JournalStartError> {
        let mut numbered = Vec::new();
        let mut unfinished = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed(folder, "read"))? {
            let entry = entry.map_err(failed(folder, "read"))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(number) = number(name) {
                numbered.push((number, entry.path()));
            } else if let Some(number) = name.strip_suffix(".new").and_then(number) {
                unfinished.push((number, entry.path()));
            }
        }
        numbered.sort_unstable();
        let newest = numbered.iter().chain(&unfinished).map(|(number, _)| *number).max();
        let mut all = Self { next: newest.unwrap_or(0) + 1, ..Self::default() };
        let is_only = numbered.len() == 1;
        let mut partial: Option<Former> = None;
        let mut found: Option<Mark> = None;
        for (_, path) in numbered.into_iter().rev() {
            if let Some(mark) = &found {
                // The one that counts says what it says again, unless it was put here since.
                let holds_foreign = || {
                    let foreign = Contents::read(&path).map(|contents| contents.foreign);
                    foreign.is_ok_and(|foreign| {
                        report_foreign(&path, &foreign);
                        !foreign.is_empty()
                    })
                };
                match mark.is_made_from(&path) && !holds_foreign() {
                    true => all.superseded.push(path),
                    false => all.aside.push(path),
                }
                continue;
            }
            // Nor is an older one to be brought back in place of what is known of a newer one.
            if partial.is_some() {
                all.aside.push(path);
                continue;
            }
            let former = Former::read(&path);
            // An earlier version left no mark: then only what it says proves that nothing is missing, or that there is no other.
            if former.lacks == 0 && (former.mark.is_some() || former.records > 0 || is_only) {
                all.replays = former.replays;
                // Foreign files in it are not for this program to remove.
                match former.foreign {
                    0 => all.superseded.push(path),
                    _ => all.aside.push(path),
                }
                found = Some(former.mark.unwrap_or_default());
                continue;
            }
            if former.records > 0 {
                partial = Some(former);
            }
            all.aside.push(path);
        }
        if let Some(former) = partial {
            all.replays = former.replays;
        }
        for (_, path) in unfinished {
            let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
            // One that is damaged may lack what this one was made from.
            let has_source = !all.superseded.is_empty();
            let is_needless = || match Contents::read(&path) {
                Ok(contents) => {
                    contents.foreign.is_empty() && (has_source || !contents.holds_records(&path))
                }
                Err(_) => false,
            };
            if is_folder && is_needless() {
                report(fs::remove_dir_all(&path).map_err(failed(&path, "removed")));
            } else {
                tracing::error!(folder = %path.display(),
                    "a journal of the MQTT sessions is not a folder, holds foreign files, or was not finished and its source is missing or damaged");
                all.aside.push(path);
            }
        }
        Ok(all)
    }

    /// Removes what the journals that the next one is made from hold in reserve: it has no records, and the next one needs the room.
    pub(super) fn free_reserves(&self) {
        for path in &self.superseded {
            let Ok(Contents { shards, .. }) = Contents::read(path) else { continue };
            for shard in shards {
                let shard = path.join(shard_name(shard));
                let entries = fs::read_dir(&shard).into_iter().flatten().flatten();
                for entry in entries.filter(|entry| {
                    entry.file_name().to_str().is_some_and(tidegate_log::is_reserve)
                }) {
                    report(fs::remove_file(entry.path()).map_err(failed(&entry.path(), "removed")));
                }
            }
        }
    }

    /// Removes those that are said again elsewhere, and gives those that could not be read another name.
    pub(super) fn retire(&self, folder: &Path) {
        for path in &self.superseded {
            report(fs::remove_dir_all(path).map_err(failed(path, "removed")));
        }
        let mut asides = asides(folder);
        for path in &self.aside {
            if asides.len() >= ASIDES_MAX {
                tracing::error!(folder = %path.display(), most = ASIDES_MAX,
                    "unreadable MQTT journals stay where they are: as many folders as there may be were set aside already; look into those whose names have .aside in them, and move them away");
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.strip_suffix(".new").unwrap_or(&name);
            let is_free = |to: &PathBuf| to.symlink_metadata().is_err();
            let numbered = (2..).map(|number| folder.join(format!("{name}.aside-{number}")));
            let mut to = std::iter::once(folder.join(format!("{name}.aside"))).chain(numbered);
            let to = to.find(is_free).expect("there are names without end");
            match fs::rename(path, &to) {
                Ok(()) => {
                    tracing::error!(folder = %to.display(),
                        "unreadable MQTT journals were set aside; sessions, retained messages or messages that waited may be missing: bring the folder back from a copy, or look into it and then move it away");
                    asides.push(to);
                }
                Err(error) => tracing::error!(folder = %path.display(), %error,
                    "unreadable MQTT journals stay where they are"),
            }
        }
    }
}

/// Folders that were set aside.
pub(super) fn asides(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_aside = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.split_once(".aside").is_some_and(|(head, _)| number(head).is_some())
    };
    entries.map(|entry| entry.path()).filter(is_aside).collect()
}

fn number(name: &str) -> Option<u64> {
    // Below the greatest, so that there is a next.
    (name.len() >= 8 && name.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| name.parse().ok().filter(|number| *number < u64::MAX))?
}

fn report(result: Result<(), JournalStartError>) {
    if let Err(error) = result {
        tracing::warn!(error = %tidegate_message::error_chain(&error), "an old journal of the MQTT sessions could not be removed");
    }
}
