//! Where our own worker is: its source is in this program, its Python in an environment that is made once.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

macro_rules! worker_files {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../workers/detector/tidegate_detector/", $name)))),+]
    };
}

/// The worker's package. It travels inside the program, so that the two are always of one version.
const FILES: &[(&str, &str)] = worker_files!(
    "__init__.py",
    "__main__.py",
    "external.py",
    "face.py",
    "image.py",
    "moving.py",
    "onnx.py",
    "person.py",
    "protocol.py",
    "recognize.py",
    "server.py"
);

/// Writes the worker's package below `folder`.
///
/// # Errors
/// The folder cannot be written.
pub(crate) fn unpack(folder: &Path) -> io::Result<()> {
    let package = folder.join("tidegate_detector");
    fs::create_dir(&package)?;
    FILES.iter().try_for_each(|(name, text)| fs::write(package.join(name), text))
}

/// The Python that has OpenCV: `given`, or where `workers/detector/setup.sh` makes one.
///
/// # Errors
/// [`PythonMissing`], with the places that were looked at.
pub fn python(given: Option<&Path>) -> Result<PathBuf, PythonMissing> {
    let looked_for = candidates(given, |name| env::var_os(name).map(PathBuf::from));
    match looked_for.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(PythonMissing { looked_for }),
    }
}

/// In order of preference. A Python that was named is the only one: another in its place would hide a typing error.
fn candidates(given: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(path) = given.map(Path::to_owned).or_else(|| variable("TIDEGATE_WORKER_PYTHON")) {
        return vec![path];
    }
    made(variable).map(|venv| venv.join("bin/python")).collect()
}

/// Folders in which `workers/detector/setup.sh` makes a Python environment, in order of preference.
fn made(variable: impl Fn(&str) -> Option<PathBuf>) -> impl Iterator<Item = PathBuf> {
    let cache =
        variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let venvs =
        [variable("TIDEGATE_WORKER_VENV"), cache.map(|cache| cache.join("tidegate/worker-venv"))];
    venvs.into_iter().flatten()
}

/// Folders that may be a Python environment of the worker, in order of preference. Each has libraries that a program beside it can use.
pub fn environments() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let python = variable("TIDEGATE_WORKER_PYTHON");
    let of_python = python.and_then(|python| Some(python.parent()?.parent()?.to_owned()));
    of_python.into_iter().chain(made(variable)).collect()
}

/// The worker's Python environment was not made.
#[derive(Debug, thiserror::Error)]
#[error(
    "the detector worker has no Python environment; run workers/detector/setup.sh, or set TIDEGATE_WORKER_PYTHON to a \
     Python with opencv-contrib-python-headless below 5 (looked for: {})",
    .looked_for.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
)]
pub struct PythonMissing {
    /// Where it was looked for.
    pub looked_for: Vec<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_worker_travels() {
        let source =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/detector/tidegate_detector");
        let files = fs::read_dir(source).expect("the worker's source is here");
        let names = files.map(|file| file.expect("a file").file_name().into_string());
        let mut names: Vec<_> = names.map(|name| name.expect("a plain name")).collect();
        names.retain(|name| name.ends_with(".py"));
        names.sort();
        assert_eq!(names, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn a_python_that_was_named_is_the_only_one() {
        let variable = |name: &str| {
            let value = match name {
                "TIDEGATE_WORKER_PYTHON" => "/opt/python",
                "HOME" => "/home/me",
                _ => return None,
            };
            Some(PathBuf::from(value))
        };
        assert_eq!(candidates(Some(Path::new("/p")), variable), [Path::new("/p")]);
        assert_eq!(candidates(None, variable), [Path::new("/opt/python")]);
        let without = |name: &str| (name == "HOME").then(|| PathBuf::from("/home/me"));
        let found = candidates(None, without);
        assert_eq!(
            found.last().unwrap(),
            Path::new("/home/me/.cache/tidegate/worker-venv/bin/python")
        );
    }

    #[test]
    fn a_missing_python_is_reported_with_the_way_out() {
        let error = python(Some(Path::new("/nonexistent/python"))).unwrap_err().to_string();
        assert!(
            error.contains("workers/detector/setup.sh") && error.contains("/nonexistent/python"),
            "{error}"
        );
    }
}
