//! The folder of models: which there are, and that no path leads out of it.
//!
//! Always true: a path that comes from here is that of a regular file below the folder, with every link followed, and so is its
//! description.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::protocol;

/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 4096;
/// The end of the name of a model's file.
const MODEL: &str = "onnx";
/// The end of the name of its description.
const DESCRIPTION: &str = "json";

/// The models of a folder.
#[derive(Debug, Default)]
pub struct Listing {
    /// The file of each, by its name.
    pub models: BTreeMap<String, PathBuf>,
    /// Files that look like models and cannot be used.
    pub refused: Vec<ModelsError>,
}

/// The models in `folder`: each file `NAME.onnx` that has `NAME.json` beside it.
///
/// It reads the folder, so it is for a thread that may wait.
///
/// # Errors
/// [`ModelsError::Folder`] if there is no such folder, [`ModelsError::Entries`] if it holds too much. Single files are no failure: they
/// are in [`Listing::refused`].
pub fn list(folder: &Path) -> Result<Listing, ModelsError> {
    let failed = |source| ModelsError::Folder { folder: folder.to_owned(), source };
    let mut listing = Listing::default();
    for (count, entry) in fs::read_dir(folder).map_err(failed)?.enumerate() {
        if count == ENTRIES_MAX {
            return Err(ModelsError::Entries { folder: folder.to_owned() });
        }
        let path = PathBuf::from(entry.map_err(failed)?.file_name());
        if path.extension().is_none_or(|end| end != MODEL) {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        match path_of(folder, &name) {
            Ok(path) => _ = listing.models.insert(name.into_owned(), path),
            Err(error) => listing.refused.push(error),
        }
    }
    Ok(listing)
}

/// The file of the model called `name` in `folder`, for [`Pool::load`](crate::Pool::load).
///
/// It reads the folder, so it is for a thread that may wait.
///
/// # Errors
/// [`ModelsError`]: the name is none, there is no such model, or a link leads out of the folder.
pub fn path_of(folder: &Path, name: &str) -> Result<PathBuf, ModelsError> {
    if !protocol::is_name(name) {
        return Err(ModelsError::Name { name: name.escape_debug().to_string() });
    }
    let root = folder
        .canonicalize()
        .map_err(|source| ModelsError::Folder { folder: folder.to_owned(), source })?;
    let path = below(&root, name, folder.join(format!("{name}.{MODEL}")))?;
    // The program looks for the description beside the file, wherever a link has led.
    below(&root, name, path.with_extension(DESCRIPTION)).map(|_| path)
}

/// The file of a model of that name, if it is one and lies below `root`.
fn below(root: &Path, name: &str, path: PathBuf) -> Result<PathBuf, ModelsError> {
    let name = || name.to_owned();
    let missing = |source| ModelsError::Missing { name: name(), path: path.clone(), source };
    let real = path.canonicalize().map_err(missing)?;
    if !real.starts_with(root) {
        return Err(ModelsError::Outside { name: name(), path });
    }
    match fs::metadata(&real).map_err(missing)?.is_file() {
        true => Ok(real),
        false => Err(ModelsError::NoFile { name: name(), path }),
    }
}

/// Why there is no model of that name in the folder.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The name is none.
    #[error("{name:?} is no name of a model; one is 1 to 64 letters, digits, '.', '_' or '-'")]
    Name {
        /// The name given.
        name: String,
    },
    /// The folder cannot be read.
    #[error("the folder of models {} cannot be read", .folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The folder holds too much.
    #[error(
        "the folder of models {} has more than {ENTRIES_MAX} entries; keep other files elsewhere", .folder.display()
    )]
    Entries {
        /// Which.
        folder: PathBuf,
    },
    /// The model or its description is not there.
    #[error(
        "the model {name} cannot be read from {}; it is a file NAME.onnx with its description NAME.json beside it", .path.display()
    )]
    Missing {
        /// The model.
        name: String,
        /// The file that is missing.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is a folder or a device.
    #[error("{} of the model {name} is no regular file", .path.display())]
    NoFile {
        /// The model.
        name: String,
        /// The path.
        path: PathBuf,
    },
    /// A link leads out of the folder.
    #[error("{} of the model {name} is a link that leads out of the folder of models; copy the file into it", .path.display())]
    Outside {
        /// The model.
        name: String,
        /// The path.
        path: PathBuf,
    },
}

impl ModelsError {
    /// The model that it is about; the folder where it is about none.
    pub(crate) fn model(&self) -> &str {
        match self {
            Self::Name { name }
            | Self::Missing { name, .. }
            | Self::NoFile { name, .. }
            | Self::Outside { name, .. } => name,
            Self::Folder { folder, .. } | Self::Entries { folder } => {
                folder.to_str().unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn models_are_listed_and_none_leads_out_of_the_folder() {
        let (outer, inner) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = inner.path();
        let write = |name: &str| fs::write(folder.join(name), name).unwrap();
        for name in ["street.onnx", "street.json", "bare.onnx", "notes.txt", "two words.onnx"] {
            write(name);
        }
        for end in ["onnx", "json"] {
            fs::write(outer.path().join(format!("far.{end}")), end).unwrap();
        }
        symlink(outer.path().join("far.onnx"), folder.join("far.onnx")).unwrap();
        symlink(outer.path().join("far.json"), folder.join("far.json")).unwrap();
        symlink(folder.join("street.onnx"), folder.join("again.onnx")).unwrap();
        write("half.onnx");
        symlink(outer.path().join("far.json"), folder.join("half.json")).unwrap();
        fs::create_dir(folder.join("deep.onnx")).unwrap();

        let listing = list(folder).unwrap();
        let names: Vec<_> = listing.models.keys().map(String::as_str).collect();
        assert_eq!(names, ["again", "street"]);
        let street = folder.canonicalize().unwrap().join("street.onnx");
        assert!(listing.models.values().all(|path| *path == street), "{listing:?}");
        let mut refused: Vec<_> = listing.refused.iter().map(ToString::to_string).collect();
        refused.sort();
        for part in ["bare.json", "far.onnx", "half.json", "deep.onnx", "two words"] {
            assert!(refused.iter().any(|text| text.contains(part)), "{part}: {refused:?}");
        }
        assert_eq!(refused.len(), 5, "{refused:?}");

        for (name, part) in [
            ("../street", "no name of a model"),
            ("", "no name of a model"),
            ("none", "cannot be read"),
            ("far", "leads out of the folder"),
            ("half", "leads out of the folder"),
            ("deep", "no regular file"),
        ] {
            let error = path_of(folder, name).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
        let gone = list(&folder.join("gone")).unwrap_err().to_string();
        assert!(gone.contains("gone cannot be read"), "{gone}");
    }
}
