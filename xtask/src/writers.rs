//! Which sources write files, and how: a part of `cargo xtask house`.
//!
//! A file that is to last is written by `tidegate_sys::files` alone: whole, synced, with its owner and mode. Sources that call the system for that
//! are in [`ALLOWED`], with the reason.

use std::path::Path;

use crate::modules::{code_of, without_tests};

/// Calls that write, make, rename or open a file to be written, or make a folder.
const CALLS: &[&str] = &[
    "DirBuilder",
    "File::create",
    "File::options",
    "OpenOptions",
    "create_dir",
    "fs::copy(",
    "fs::rename(",
    "fs::write(",
    "hard_link(",
    "persist(",
];

/// Sources that call them, or folders of such sources, and why.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/tidegate-camera/src/detector/fake.rs", "a program for tests"),
    ("crates/tidegate-camera/src/frame_log/folder.rs", "gives folders of logs other names"),
    ("crates/tidegate-camera/src/source/ffmpeg.rs", "opens a pipe"),
    ("crates/tidegate-cli/src/arguments.rs", "blots a password out of its own memory"),
    ("crates/tidegate-cli/src/fetch.rs", "pictures for the person who asks, many a second"),
    ("crates/tidegate-cli/src/subscribe/sinks.rs", "rows for the person who asks, many a second"),
    (
        "crates/tidegate-detect/src/store.rs",
        "pictures, many a second, of which a power cut may take the last",
    ),
    ("crates/tidegate-flows/src/state_file.rs", "sets a file aside that cannot be read"),
    ("crates/tidegate-identity/src/auth/audit.rs", "moves a full log aside"),
    ("crates/tidegate-lab/", "demonstrations: reports, and folders that go with them"),
    ("crates/tidegate-load/src/process.rs", "asks the kernel of another process"),
    ("crates/tidegate-netlab/src/lab.rs", "sets the kernel of a namespace"),
    (
        "crates/tidegate-server/src/journal.rs",
        "gives the folder of a journal its name, and syncs that",
    ),
    ("crates/tidegate-server/src/journal/generations.rs", "sets folders of journals aside"),
    ("crates/tidegate-server/src/listen.rs", "gives a socket its name"),
    (
        "crates/tidegate-sinks/src/parquet/store.rs",
        "a folder for other programs: the umask says who reads there",
    ),
    (
        "crates/tidegate/src/cli/sinks.rs",
        "gives a file of refused messages the name that has a sink replay it",
    ),
    ("crates/tidegate-sys/src/memfile.rs", "files in memory"),
    ("crates/tidegate-sys/src/regular.rs", "opens files to read"),
    ("crates/tidegate-sys/src/secret.rs", "opens files to read"),
    (
        "crates/tidegate-workers/src/locate.rs",
        "a copy in a temporary folder, for the length of a process",
    ),
];

/// The calls of a source that is not among [`ALLOWED`], tests aside.
pub(crate) fn violations(file: &Path, text: &str) -> Vec<String> {
    let is_source =
        file.starts_with("crates") && file.components().any(|it| it.as_os_str() == "src");
    let is_test =
        file.ends_with("tests.rs") || file.components().any(|it| it.as_os_str() == "tests");
    if !is_source || is_test || allowed(file).is_some() {
        return Vec::new();
    }
    let violation = |(line, call): (usize, &str)| {
        format!(
            "{}:{line} calls {call}: write the file by tidegate_sys::files, or say in xtask/src/writers.rs why not",
            file.display()
        )
    };
    calls(text).into_iter().map(violation).collect()
}

/// Entries of [`ALLOWED`] that none of these files needs.
pub(crate) fn unused<'a>(files: impl Iterator<Item = (&'a Path, &'a str)>) -> Vec<String> {
    let mut needed = [false; ALLOWED.len()];
    for (file, text) in files {
        if let Some(index) = allowed(file) {
            needed[index] |= !calls(text).is_empty();
        }
    }
    let idle = ALLOWED.iter().zip(needed).filter(|(_, needed)| !needed);
    idle.map(|((path, _), _)| {
        format!("xtask/src/writers.rs allows {path}, which writes nothing: take it out")
    })
    .collect()
}

/// The entry for a file.
fn allowed(file: &Path) -> Option<usize> {
    ALLOWED.iter().position(|(path, _)| file.starts_with(path))
}

/// The calls in a source, by line, its tests and its texts aside.
fn calls(text: &str) -> Vec<(usize, &'static str)> {
    let code = without_tests(&code_of(text));
    let lines = code.lines().enumerate();
    // An import alone writes nothing.
    let lines = lines.filter(|(_, line)| !line.trim_start().starts_with("use "));
    lines
        .filter_map(|(index, line)| {
            CALLS.iter().find(|call| has_call(line, call)).map(|call| (index + 1, *call))
        })
        .collect()
}

/// Whether that call stands in a line, and not as the end of another name.
fn has_call(line: &str, call: &str) -> bool {
    line.match_indices(call).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_without_a_reason_is_named() {
        let source = "use std::fs::{self, OpenOptions};\n// fs::write(\nfn keep() {\n    KeyFile::create(fs::write(path, \"File::create\"));\n}\n\
                      #[cfg(test)]\nmod tests {\n    fn f() { fs::write(path, text); }\n}\n";
        let of = |file: &str| violations(Path::new(file), source);
        let [violation] = &of("crates/a/src/keep.rs")[..] else {
            panic!("one call is not a test's")
        };
        assert!(violation.starts_with("crates/a/src/keep.rs:4 calls fs::write("), "{violation}");
        for file in [
            "crates/a/src/keep/tests.rs",
            "crates/a/tests/it/main.rs",
            "xtask/src/main.rs",
            ALLOWED[0].0,
        ] {
            assert_eq!(of(file), [""; 0], "{file}");
        }
        let unused = unused([(Path::new(ALLOWED[0].0), source)].into_iter());
        assert_eq!(unused.len(), ALLOWED.len() - 1);
    }
}
