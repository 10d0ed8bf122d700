//! The state of this member on the disk: what it promised, and the records that it has.

use std::{
    io,
    path::{Path, PathBuf},
};

use tidegate_fabric::members::{Save, Saved, SavedError};
use tidegate_sys::{files, regular};

/// The member's own state, which is written before more is promised, and the records of all, which can be had of others again.
const OWN: &str = "own";
const RECORDS: &str = "records";
/// The state of as many members as there may be has less.
const BYTES_MAX: u64 = 64 << 20;

/// The folder of the fabric in a node's.
#[derive(Clone, Debug)]
pub(crate) struct Kept(PathBuf);

/// Why the state was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeptError {
    #[error("{path} cannot be read")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Saved(#[from] SavedError),
}

impl Kept {
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// The state of the process before, if there is one.
    ///
    /// # Errors
    /// [`KeptError`]: the member begins as one that has lost its folder.
    pub(crate) fn read(&self) -> Result<Option<Saved>, KeptError> {
        let of = |name: &str| {
            let path = self.0.join(name);
            match regular::read_at_most(&path, BYTES_MAX) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(KeptError::Read { path, source }),
            }
        };
        let Some(own) = of(OWN)? else { return Ok(None) };
        Ok(Some(Saved::of_bytes(&own, of(RECORDS)?.as_deref())?))
    }

    /// Writes a state: what the member promised is on the disk then, whole or as it was.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn save(&self, save: &Save) -> io::Result<()> {
        self.write(OWN, &save.own)?;
        save.records.as_ref().map_or(Ok(()), |records| self.write(RECORDS, records))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        files::folder(&self.0, files::PRIVATE_FOLDER)?;
        files::put(&self.0.join(name), bytes, files::PRIVATE)
    }
}
