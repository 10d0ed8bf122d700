//! `cargo xtask house` and `sizes`: checks of the tracked files themselves.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, ensure};

use crate::writers;

/// Half of our files should be far below this, and nine in ten below it.
const LINES_MAX: usize = 700;

/// Files that tools write and that may hold anything.
const GENERATED: &[&str] = &["Cargo.lock", "go.sum"];

/// Checks all tracked files.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let files = tracked()?;
    let mut violations = Vec::new();
    let mut sources = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if GENERATED.contains(&&*name) {
            continue;
        }
        let Some(text) = text_of(file)? else { continue };
        for (line, path) in own_paths(&text) {
            violations.push(format!(
                "{}:{line} names {path}, a path of one machine: make it relative or configurable",
                file.display()
            ));
        }
        violations.extend(script(file, &text)?);
        if file.extension().is_some_and(|extension| extension == "rs") {
            violations.extend(debug_in_log(&text).map(|line| {
                format!(
                    "{}:{line} logs a value in its Debug form: write it for people, with % or as text or number",
                    file.display()
                )
            }));
            violations.extend(writers::violations(file, &text));
            sources.push((file, text));
        }
    }
    let sources = sources.iter().map(|(file, text)| (file.as_path(), text.as_str()));
    violations.extend(writers::unused(sources));
    violations.extend(promises(&files)?);
    let well = format!("{} tracked files name no machine, and all scripts parse", files.len());
    Ok(crate::verdict("house", &well, &violations))
}

/// Lists tracked source files that are too long to be one story.
pub(crate) fn sizes() -> anyhow::Result<ExitCode> {
    let mut lengths = Vec::new();
    for file in tracked()? {
        let is_source = file.extension().is_some_and(|extension| {
            ["rs", "py", "go", "c", "sh"].iter().any(|known| extension == *known)
        });
        if is_source && let Some(text) = text_of(&file)? {
            lengths.push((text.lines().count(), file));
        }
    }
    lengths.sort_by(|a, b| b.cmp(a));
    let long = lengths.iter().take_while(|(lines, _)| *lines > LINES_MAX);
    for (lines, file) in long.clone() {
        println!("{lines:6} {}", file.display());
    }
    println!("sizes: {} of {} source files over {LINES_MAX} lines", long.count(), lengths.len());
    Ok(ExitCode::SUCCESS)
}

/// Tracked files that are there, relative to the root, which becomes the working directory.
pub(crate) fn tracked() -> anyhow::Result<Vec<PathBuf>> {
    let git = |arguments: &[&str]| {
        // A checkout that belongs to another user, as in many CI containers, is still only read here.
        let output = Command::new("git")
            .args(["-c", "safe.directory=*"])
            .args(arguments)
            .output()
            .context("running git")?;
        ensure!(
            output.status.success(),
            "git {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        String::from_utf8(output.stdout).context("a file name is not UTF-8")
    };
    let root = git(&["rev-parse", "--show-toplevel"])?;
    std::env::set_current_dir(root.trim_end()).context("entering the root of the checkout")?;
    let names = git(&["ls-files", "-z"])?;
    let files = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(files.filter(|file| file.is_file()).collect())
}

/// The file's text, or nothing if it is not text.
pub(crate) fn text_of(file: &Path) -> anyhow::Result<Option<String>> {
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(String::from_utf8(bytes).ok())
}

/// Lines that name a folder of a person or of one machine.
fn own_paths(text: &str) -> Vec<(usize, &'static str)> {
    // Written apart, so that this file does not find itself.
    const OWN: &[&str] = &[
        concat!("/wo", "rk"),
        concat!("/ro", "ot"),
        concat!("/Us", "ers"),
        concat!("/tmp/", "tg"),
    ];
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for own in OWN {
            let whole = line.match_indices(own).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                let after = line[at + own.len()..].chars().next();
                // `frame/…` and `https://host/…` are other things than a path that begins here.
                before.is_none_or(|c| !c.is_alphanumeric() && !"._-~/}$*".contains(c))
                    && after.is_none_or(|c| !c.is_alphanumeric() && !"_-.".contains(c))
            });
            if whole {
                found.push((index + 1, *own));
            }
        }
    }
    found
}

/// Lines of what `tracing` logs that have a value in its Debug form: `?value` as a field. Quotes around
/// a text, `{text:?}`, are another thing.
fn debug_in_log(text: &str) -> impl Iterator<Item = usize> {
    const LEVELS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];
    let begins = text.match_indices("tracing::").filter_map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let level = LEVELS.iter().find(|level| rest.starts_with(**level))?;
        Some(at + word.len() + level.len())
    });
    begins.filter_map(|begin| {
        let (mut depth, mut in_text, mut before) = (1, false, ' ');
        for (at, letter) in text[begin..].char_indices() {
            match letter {
                '"' if before != '\\' => in_text = !in_text,
                '(' if !in_text => depth += 1,
                ')' if !in_text => depth -= 1,
                // `?` behind a value hands on its error.
                '?' if !in_text && " (,=".contains(before) => {
                    return Some(text[..begin + at].matches('\n').count() + 1);
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
            before = letter;
        }
        None
    })
}

/// Lines of the promises that name no test, or one that there is not.
fn promises(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    const FILE: &str = "docs/src/promises.md";
    let mut tests = HashSet::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|found| found == "rs")) {
        let Some(text) = text_of(file)? else { continue };
        tests.extend(test_names(&text).map(str::to_owned));
    }
    let promised = fs::read_to_string(FILE).with_context(|| format!("reading {FILE}"))?;
    Ok(without_test(&promised, &tests).map(|why| format!("{FILE}:{why}")).collect())
}

/// The names of the functions behind `#[test]` and the like.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let attributes = ["#[test]", "#[tokio::test"];
    let parts = attributes.into_iter().flat_map(|attribute| text.split(attribute).skip(1));
    parts.filter_map(|part| part.split_once("fn ")?.1.split('(').next())
}

/// Rows of tables, by their line, whose last cell names no test or one that is not among `tests`.
fn without_test(text: &str, tests: &HashSet<String>) -> impl Iterator<Item = String> {
    let rows = text.lines().enumerate().filter(|(_, line)| {
        line.starts_with("| ") && !line.starts_with("| what |") && !line.starts_with("|---")
    });
    rows.flat_map(|(index, row)| {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        let line = index + 1;
        let none = names.is_empty().then(|| format!("{line} names no test"));
        let missing = names.into_iter().filter(|name| !tests.contains(*name));
        let missing =
            missing.map(move |name| format!("{line} names the test {name}, which there is not"));
        none.into_iter().chain(missing).collect::<Vec<_>>()
    })
}

/// The interpreter's objection to a script, if the file is one.
fn script(file: &Path, text: &str) -> anyhow::Result<Option<String>> {
    let first = text.lines().next().unwrap_or_default();
    let is_called = |extension: &str| file.extension().is_some_and(|found| found == extension);
    let mut command = if first.starts_with("#!") && first.ends_with("bash") {
        let mut command = Command::new("bash");
        command.arg("-n").arg(file);
        command
    } else if is_called("sh") || (first.starts_with("#!") && first.ends_with("/sh")) {
        let mut command = Command::new("sh");
        command.arg("-n").arg(file);
        command
    } else if is_called("py") || (first.starts_with("#!") && first.ends_with("python3")) {
        let mut command = Command::new("python3");
        // `compile` writes no bytecode, which `py_compile` would.
        command.args([
            "-c",
            "import sys; compile(open(sys.argv[1], encoding='utf-8').read(), sys.argv[1], 'exec')",
        ]);
        command.arg(file);
        command
    } else {
        return Ok(None);
    };
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok((!output.status.success())
        .then(|| format!("{} does not parse: {}", file.display(), said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_its_debug_form_is_found_in_what_is_logged_and_nowhere_else() {
        // Written apart, so that this file does not find itself.
        let log = concat!("tracing", "::info!(");
        for (text, found) in [
            (format!("{log}?report, \"ended\");"), vec![1]),
            (format!("\n{log}a = 1,\n    b = ?c, \"ended\");"), vec![3]),
            (format!("{log}%report, count = read()?, \"ended? (who knows)\");"), vec![]),
            ("let a = b?;\nformat!(\"{a:?}\")".to_owned(), vec![]),
        ] {
            assert_eq!(debug_in_log(&text).collect::<Vec<_>>(), found, "{text}");
        }
    }

    #[test]
    fn a_path_of_one_machine_is_found_and_its_likes_are_not() {
        let work = concat!("/wo", "rk");
        let root = concat!("/ro", "ot");
        for (line, found) in [
            (format!("cd {work}/shared"), true),
            (format!("clip = \"{root}/clip.mp4\""), true),
            (format!("ls {work}"), true),
            (format!("frame{work}/flow"), false),
            (format!("https://example.org{work}/x"), false),
            (format!("{work}space/a"), false),
            (format!("$HOME{work}/"), false),
            (format!("target{root}_dir"), false),
        ] {
            assert_eq!(!own_paths(&line).is_empty(), found, "{line}");
        }
        assert_eq!(own_paths(&format!("a\nb {root}/x\n")), [(2, root)]);
    }

    #[test]
    fn a_promise_without_its_test_is_named() {
        let source = "#[test]\nfn one() {}\nfn helper() {}\n#[tokio::test(start_paused = true)]\nasync fn two() {}\n";
        let tests: HashSet<String> = test_names(source).map(str::to_owned).collect();
        let text = "| what | shown by |\n|---|---|\n| a | `one`, `two` |\n| b | |\n| c `x` | `one`, `helper` |\n";
        let found: Vec<String> = without_test(text, &tests).collect();
        assert_eq!(found, ["4 names no test", "5 names the test helper, which there is not"]);
    }

    #[test]
    fn a_script_that_does_not_parse_is_named() {
        let folder = std::env::temp_dir().join(format!("tidegate-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, text, sound) in [
            ("a.sh", "if true; then echo; fi\n", true),
            ("b.sh", "if true; then echo\n", false),
            ("c", "#!/usr/bin/env bash\n[[ a == b ]] || (( 1 + 1 ))\n", true),
            ("d.py", "print(1)\n", true),
            ("e.py", "print(\n", false),
            ("f.txt", "if (\n", true), // not a script
        ] {
            let file = folder.join(name);
            fs::write(&file, text).unwrap();
            let said = script(&file, text).unwrap();
            assert_eq!(said.is_none(), sound, "{name}: {said:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
