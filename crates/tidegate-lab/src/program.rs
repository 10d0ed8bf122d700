//! The `tidegate` program that the nodes of a demonstration run.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use tidegate_api::ApiError;
use tidegate_message::Code;

/// Its file name.
const NAME: &str = "tidegate";

/// The program: the file that was named, else the one in the folder of this program, else the first one in `$PATH`.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] if there is none.
pub fn find(named: Option<&Path>) -> Result<PathBuf, ApiError> {
    let own = env::current_exe().map_err(|error| {
        ApiError::new(Code::STORAGE_FAILED, "this program cannot find its own file")
            .caused_by(error)
    })?;
    found(named, &own, env::var_os("PATH").as_deref())
}

fn found(named: Option<&Path>, own: &Path, path: Option<&OsStr>) -> Result<PathBuf, ApiError> {
    if let Some(named) = named {
        return match named.is_file() {
            true => Ok(named.to_owned()),
            false => {
                let text = format!("{} is not a program; --program names a file", named.display());
                Err(ApiError::new(Code::CONFIG_INVALID, text))
            }
        };
    }
    let own = own.with_file_name(NAME);
    let folders = path.map(|path| env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let in_path = folders.into_iter().map(|folder| folder.join(NAME));
    let shown = own.display().to_string();
    [own].into_iter().chain(in_path).find(|file| file.is_file()).ok_or_else(|| {
        let text = format!(
            "the nodes of a demonstration run `{NAME}`, and there is neither {shown} nor one in $PATH; \
             build it (cargo build --release --package tidegate) or name it with --program FILE"
        );
        ApiError::new(Code::CONFIG_INVALID, text)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_named_program_comes_first_then_the_neighbour_then_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let own = file("here/tidegate-lab");
        let elsewhere = file("elsewhere/tidegate");
        let path = env::join_paths([folder.path().join("none"), folder.path().join("elsewhere")]);
        let path = path.unwrap();
        let error = found(None, &own, None).unwrap_err();
        assert_eq!(error.code(), Code::CONFIG_INVALID);
        assert!(error.message().contains("here/tidegate") && error.message().contains("--program"));
        assert_eq!(found(None, &own, Some(&path)).unwrap(), elsewhere);
        let neighbour = file("here/tidegate");
        assert_eq!(found(None, &own, Some(&path)).unwrap(), neighbour);
        let named = file("other");
        assert_eq!(found(Some(&named), &own, Some(&path)).unwrap(), named);
        let missing = folder.path().join("missing");
        let error = found(Some(&missing), &own, Some(&path)).unwrap_err();
        assert!(error.message().contains("missing is not a program"), "{error}");
    }
}
