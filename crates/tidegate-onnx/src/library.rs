//! ONNX Runtime: where its library is, and that it is loaded once.

use std::{
    env,
    error::Error as _,
    fmt, fs,
    path::{Path, PathBuf},
};

use ort::{LoadDynamicError, environment::Environment};

/// The variable that names the library, as other programs with `ort` have it.
const VARIABLE: &str = "ORT_DYLIB_PATH";
/// Names that the system's loader looks for.
const NAMES: [&str; 2] = ["libonnxruntime.so.1", "libonnxruntime.so"];
/// Where the package of Python has the library, from one of its environments.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];
const IN_PACKAGE: &str = "onnxruntime/capi";

/// ONNX Runtime, loaded. There is one in a process; a clone is the same.
#[derive(Clone, Debug)]
pub struct Runtime {
    environment: Environment,
    library: PathBuf,
}

impl Runtime {
    /// Loads the library: `given`, or that of the variable `ORT_DYLIB_PATH`, which are the only one that is tried where they name one; else one
    /// that the system's loader finds, or one in the `onnxruntime` package of `environments`, folders that hold a Python environment, of the
    /// user, or of the system.
    ///
    /// # Errors
    /// [`LibraryError`], with every place that was looked at.
    pub fn load(given: Option<&Path>, environments: &[PathBuf]) -> Result<Self, LibraryError> {
        let mut tried = Vec::new();
        for library in candidates(given, |name| env::var_os(name).map(PathBuf::from), environments)
        {
            match ort::init_from(&library) {
                Ok(builder) => {
                    let environment = builder.with_telemetry(false).build().map_err(|source| {
                        LibraryError::Start { library: library.clone(), source }
                    })?;
                    // Its words are in the errors that it returns.
                    environment.set_log_level(ort::logging::LogLevel::Fatal);
                    return Ok(Self { environment, library });
                }
                Err(source) => tried.push(NoLibrary { library, source }),
            }
        }
        Err(LibraryError::None { tried })
    }

    /// The file that was loaded, or the name by which the system's loader found it.
    pub fn library(&self) -> &Path {
        &self.library
    }

    pub(crate) const fn environment(&self) -> &Environment {
        &self.environment
    }
}

/// In order of preference. A library that was named is the only one: another in its place would hide a typing error.
fn candidates(
    given: Option<&Path>,
    variable: impl Fn(&str) -> Option<PathBuf>,
    environments: &[PathBuf],
) -> Vec<PathBuf> {
    let named = || variable(VARIABLE).filter(|path| !path.as_os_str().is_empty());
    if let Some(path) = given.map(Path::to_owned).or_else(named) {
        return vec![path];
    }
    let mut found: Vec<PathBuf> = NAMES.map(PathBuf::from).into();
    let of_user = variable("HOME").map(|home| home.join(".local"));
    let of_system = ["/usr/local", "/usr"].map(PathBuf::from);
    let environments = environments.iter().cloned().chain(variable("VIRTUAL_ENV"));
    for environment in environments.chain(of_user).chain(of_system) {
        found.extend(of_package(&environment));
    }
    found
}

/// The libraries of the package in a Python environment, the newest Python first.
fn of_package(environment: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for python in entries(&environment.join("lib"), "python3") {
        for packages in PACKAGES {
            let folder = python.join(packages).join(IN_PACKAGE);
            found.extend(entries(&folder, "libonnxruntime.so"));
        }
    }
    found
}

/// The entries of a folder that begin with `name`, the last one first; none where there is no such folder.
fn entries(folder: &Path, name: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = listed.filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    found.sort();
    found.reverse();
    found
}

/// Why ONNX Runtime is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// No library that can be used.
    #[error(
        "no library of ONNX Runtime 1.{} or later can be loaded; install it (workers/detector/setup.sh, `pip install onnxruntime`, or a package of \
         your system), or name its file by workers.library or {VARIABLE}; tried: {}",
        ort::MINOR_VERSION,
        listed(tried)
    )]
    None {
        /// Each place, with the reason.
        tried: Vec<NoLibrary>,
    },
    /// It is loaded, and does not start.
    #[error("ONNX Runtime of {} does not start", .library.display())]
    Start {
        /// The library.
        library: PathBuf,
        /// Why.
        #[source]
        source: ort::Error,
    },
}

/// A place without a library that can be used.
#[derive(Debug)]
pub struct NoLibrary {
    library: PathBuf,
    source: LoadDynamicError,
}

impl fmt::Display for NoLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            // The loader's own words, which name the file.
            LoadDynamicError::Dlopen { error, .. } => match error.source() {
                Some(words) => write!(f, "{words}"),
                None => write!(f, "{}: {error}", self.library.display()),
            },
            LoadDynamicError::BadVersion { version_str, .. } => {
                write!(f, "{} is version {version_str}", self.library.display())
            }
            LoadDynamicError::MissingApi { .. } | LoadDynamicError::InvalidVersionString => {
                write!(f, "{} is no library of ONNX Runtime", self.library.display())
            }
        }
    }
}

fn listed(tried: &[NoLibrary]) -> String {
    tried.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_library_that_was_named_is_the_only_one() {
        let named =
            |name: &str| (name == VARIABLE).then(|| PathBuf::from("/opt/libonnxruntime.so"));
        assert_eq!(candidates(Some(Path::new("/a.so")), named, &[]), [Path::new("/a.so")]);
        assert_eq!(candidates(None, named, &[]), [Path::new("/opt/libonnxruntime.so")]);
        let empty = |name: &str| (name == VARIABLE).then(PathBuf::new);
        assert_eq!(candidates(None, empty, &[])[..2], NAMES.map(PathBuf::from));
    }

    #[test]
    fn the_library_of_a_python_package_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let capi = folder.path().join("lib/python3.11/site-packages/onnxruntime/capi");
        fs::create_dir_all(&capi).unwrap();
        for name in ["libonnxruntime.so.1.32.0", "libonnxruntime_providers_shared.so"] {
            fs::write(capi.join(name), "").unwrap();
        }
        let found = candidates(None, |_| None, &[folder.path().to_owned()]);
        assert!(found.contains(&capi.join("libonnxruntime.so.1.32.0")), "{found:?}");
        assert!(!found.iter().any(|path| path.ends_with("libonnxruntime_providers_shared.so")));
    }

    #[test]
    fn a_library_that_is_none_is_named_with_the_ways_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libonnxruntime.so");
        for present in [false, true] {
            if present {
                fs::write(&path, "no library").unwrap();
            }
            let error = Runtime::load(Some(&path), &[]).unwrap_err().to_string();
            for part in [path.to_str().unwrap(), "workers.library", VARIABLE, "1.17 or later"] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
    }

    #[test]
    fn a_library_of_another_version_is_named_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let [source, path] = ["old.c", "libonnxruntime.so"].map(|name| folder.path().join(name));
        let text = "static const char *version(void) { return \"1.10.2\"; }\n\
                    static const void *api(unsigned wanted) { (void)wanted; return 0; }\n\
                    static const struct { const void *(*a)(unsigned); const char *(*v)(void); } base = { api, version };\n\
                    const void *OrtGetApiBase(void) { return &base; }\n";
        fs::write(&source, text).unwrap();
        let compile = |path: &Path| {
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-o"]).args([path, &*source]).status()
        };
        match compile(&path) {
            Ok(status) => assert!(status.success()),
            Err(error) => return eprintln!("skipped: no C compiler: {error}"),
        }
        let error = Runtime::load(Some(&path), &[]).unwrap_err().to_string();
        assert!(error.contains("libonnxruntime.so is version 1.10.2"), "{error}");
        fs::write(&source, "int nothing(void) { return 0; }\n").unwrap();
        let other = folder.path().join("other.so");
        assert!(compile(&other).unwrap().success());
        let error = Runtime::load(Some(&other), &[]).unwrap_err().to_string();
        assert!(error.contains("other.so is no library of ONNX Runtime"), "{error}");
    }
}
