//! The content of the archive: the rows of all Parquet files, in the order in which they were received.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::Field,
};
use tidegate_api::ApiError;
use tidegate_message::Code;

use super::{failed, storage};

/// Topics and payloads, and in how many files they lay.
#[derive(Debug, Default)]
pub(super) struct Archive {
    pub(super) rows: Vec<(String, Vec<u8>)>,
    pub(super) files: usize,
}

/// Reads all files below a folder.
///
/// # Errors
/// One cannot be read, or is another than the sink writes.
pub(super) fn read(folder: &Path) -> Result<Archive, ApiError> {
    let mut paths = Vec::new();
    files(folder, &mut paths).map_err(|error| storage("the archive cannot be read", error))?;
    // Partitions and names begin with the time.
    paths.sort();
    let mut archive = Archive { files: paths.len(), ..Archive::default() };
    for path in paths {
        let file =
            File::open(&path).map_err(|error| storage("the archive cannot be read", error))?;
        let broken = |error| failed("a file of the archive is broken", error);
        let reader = SerializedFileReader::new(file).map_err(broken)?;
        for row in reader.get_row_iter(None).map_err(broken)? {
            let mut columns = row.map_err(broken)?.into_columns().into_iter().map(|(_, it)| it);
            let (Some(Field::Str(topic)), Some(Field::Bytes(payload))) =
                (columns.nth(1), columns.next())
            else {
                let text = format!("{} is not a file of the sink", path.display());
                return Err(ApiError::new(Code::INTERNAL, text));
            };
            archive.rows.push((topic, payload.data().to_vec()));
        }
    }
    Ok(archive)
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            found.push(path);
        }
    }
    Ok(())
}
