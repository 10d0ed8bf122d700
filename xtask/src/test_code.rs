//! `cargo xtask tests`: where tests live, and how they wait.
//!
//! ```text
//!  src/queue.rs           `mod tests { … }`, last in its file
//!  src/queue/tests.rs     once they are longer than the code, with src/queue/tests/TOPIC.rs
//!  tests/it/main.rs       through the public API: one binary a crate, a module a topic
//! ```
//!
//! A test waits for a process, a thread or a file with `shared/poll`, which has a bound. A sleep that stays is itself what the test is
//! about, and stands in [`SLEEPS`] with its reason; on tokio's paused clock a sleep costs no time, and needs none.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::modules::{code_of, test_items};

/// Files of tests that sleep, how often, and why. The numbers only ever fall.
const SLEEPS: &[(&str, usize, &str)] = &[
    ("crates/tidegate-camera/src/source/tests.rs", 1, "tokio's clock, paused by its helper"),
    ("crates/tidegate-detect/src/watch/tests.rs", 3, "tokio's clock, paused in each test"),
    ("crates/tidegate-sinks/tests/it/runtime.rs", 1, "the pace of a slow destination"),
    ("crates/tidegate/tests/bridge/recover.rs", 1, "how long a path lasts between two cuts"),
    ("crates/tidegate/tests/bridge/world.rs", 1, "the pace of a slow path"),
    ("crates/tidegate/tests/frames/recover.rs", 1, "how long a node is away"),
    ("crates/tidegate/tests/link/ends.rs", 1, "how long idle links are measured"),
    ("crates/tidegate/tests/link/relay.rs", 1, "the pace of a modelled bottleneck"),
    ("crates/tidegate/tests/namespaces/faults.rs", 2, "how long a node is away and a link is cut"),
    ("crates/tidegate/tests/namespaces/mqtt.rs", 6, "the pace of senders, how long links are cut"),
    ("crates/tidegate/tests/namespaces/share.rs", 1, "the pace of a flood"),
    ("crates/tidegate/tests/shared/poll.rs", 1, "the wait itself"),
    ("crates/tidegate/tests/shared/poll_async.rs", 1, "the wait itself, on tokio"),
];

/// Calls that let wall time pass.
const CALLS: &[&str] = &["park_timeout(", "sleep(", "sleep_ms(", "sleep_until("];

/// Folders of Rust sources that have tests.
const ROOTS: &[&str] = &["bench", "crates", "fuzz", "xtask"];

/// The crate that has an integration binary for each of its surroundings; others have `it`.
const SURROUNDINGS: (&str, &[&str]) =
    ("tidegate", &["bridge", "frames", "link", "mqtt", "namespaces", "sinks"]);

/// Files that those binaries share.
const SHARED: &str = "shared";

/// Tests beside the code may have as many lines, also where they are longer than the code.
const BESIDE_LINES_MAX: usize = 150;

/// Checks all tracked Rust files.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let (mut violations, mut sleeps) = (Vec::new(), BTreeMap::new());
    let (mut folders, mut codes) = (BTreeMap::new(), BTreeMap::new());
    for file in crate::house::tracked()? {
        let is_rust = file.extension().is_some_and(|extension| extension == "rs");
        if !is_rust || !ROOTS.iter().any(|root| file.starts_with(root)) {
            continue;
        }
        let Some(text) = crate::house::text_of(&file)? else { continue };
        let code = code_of(&text);
        violations.extend(place(&file, &code));
        violations.extend(integration(&file, &mut folders));
        let lines = sleeping_lines(&file, &code);
        if !lines.is_empty() {
            sleeps.insert(file.display().to_string(), lines);
        }
        codes.insert(file, code);
    }
    violations.extend(without_main(&folders));
    violations.extend(orphans(&codes));
    violations.extend(judge(&sleeps, SLEEPS));
    let stay: usize = SLEEPS.iter().map(|(_, count, _)| count).sum();
    let well = format!("each lives in its place, and none sleeps but for {stay} with a reason");
    Ok(crate::verdict("tests", &well, &violations))
}

/// Violations of sources that no module declares: they are not built, and their tests not run, without a word of anything.
fn orphans(codes: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let is_orphan = |file: &&PathBuf| {
        let (Some(folder), Some(stem)) = (file.parent(), file.file_stem()) else { return false };
        let is_root = folder.ends_with("src") && (stem == "lib" || stem == "main");
        let is_source = file.iter().any(|part| part == "src") && !folder.ends_with("src/bin");
        let declared = format!("mod {};", stem.display());
        let parents = match folder.ends_with("src") {
            true => vec![folder.join("lib.rs"), folder.join("main.rs")],
            false => vec![folder.with_extension("rs")],
        };
        let parents = parents.iter().filter_map(|parent| codes.get(parent));
        is_source && !is_root && !parents.into_iter().any(|code| code.contains(&declared))
    };
    let found = codes.keys().filter(is_orphan);
    found.map(|file| format!("{} is declared by no module", file.display())).collect()
}

/// Whether a file holds nothing but tests.
fn is_all_tests(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "tests.rs")
        || file.parent().is_some_and(|folder| folder.iter().any(|part| part == "tests"))
}

/// Violations of where the tests of a source file stand.
fn place(file: &Path, code: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let shown = file.display();
    if file.file_name().is_some_and(|name| name == "mod.rs") {
        violations.push(format!("{shown}: a module is NAME.rs beside its folder, not NAME/mod.rs"));
    }
    if is_all_tests(file) {
        return violations;
    }
    let items = test_items(code);
    for at in test_functions(code) {
        let item = items.iter().find(|item| item.contains(&at));
        if item.is_none_or(|item| module_of(&code[item.clone()]) != Some("tests")) {
            let line = line_of(code, at);
            violations.push(format!(
                "{shown}:{line} is a test outside of `mod tests`: move it there, or to tests.rs in the folder of its module"
            ));
        }
    }
    let inline = items.iter().filter(|item| code[(*item).clone()].ends_with('}'));
    for item in inline.filter(|item| module_of(&code[(*item).clone()]) == Some("tests")) {
        let behind = &code[item.end..];
        if !behind.trim().is_empty() {
            let line = line_of(code, item.start);
            violations.push(format!("{shown}:{line}: `mod tests` stands last in its file"));
        }
        let lines = code[item.clone()].lines().count();
        let before = code[..item.start].lines().count();
        if lines > before.max(BESIDE_LINES_MAX) {
            let folder = file.with_extension("");
            violations.push(format!(
                "{shown} has {lines} lines of tests for {before} of code: move them to {}/tests.rs",
                folder.display()
            ));
        }
    }
    violations
}

/// Where functions with `#[test]` and the like begin.
fn test_functions(code: &str) -> impl Iterator<Item = usize> {
    let attributes = ["#[test]", "#[tokio::test"];
    attributes.into_iter().flat_map(|attribute| code.match_indices(attribute)).map(|(at, _)| at)
}

/// The name of the module that an item of tests is, if it is one.
fn module_of(item: &str) -> Option<&str> {
    let declared = item.split_once("mod ")?;
    let is_visibility = |word: &str| word.starts_with("pub");
    let before = declared.0.strip_prefix("#[cfg(test)]")?.trim();
    (before.is_empty() || is_visibility(before))
        .then(|| declared.1.split([' ', ';', '{']).next().unwrap_or_default())
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The violation of an integration test that is not a module of a binary of its crate; notes in `folders` which folders there are, and
/// whether they have a `main.rs`.
fn integration(file: &Path, folders: &mut BTreeMap<String, bool>) -> Option<String> {
    let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
    let ["crates", crate_name, "tests", ref rest @ ..] = parts[..] else { return None };
    let (known, names): (bool, &[&str]) = match SURROUNDINGS {
        (name, names) if name == crate_name => (rest[0] == SHARED, names),
        _ => (false, &["it"]),
    };
    if rest.len() < 2 || !(known || names.contains(&rest[0])) {
        return Some(format!(
            "{} is no module of an integration binary: those of {crate_name} are {}, each with a main.rs",
            file.display(),
            names.join(", ")
        ));
    }
    if !known {
        let folder = format!("crates/{crate_name}/tests/{}", rest[0]);
        *folders.entry(folder).or_default() |= rest[1..] == ["main.rs"];
    }
    None
}

fn without_main(folders: &BTreeMap<String, bool>) -> impl Iterator<Item = String> {
    let without = folders.iter().filter(|(_, has_main)| !**has_main);
    without.map(|(folder, _)| format!("{folder} has no main.rs, so cargo does not run its tests"))
}

/// Lines of tests that let wall time pass.
fn sleeping_lines(file: &Path, code: &str) -> BTreeSet<usize> {
    let whole = is_all_tests(file);
    let items = test_items(code);
    let paused = paused(code);
    let mut lines = BTreeSet::new();
    for call in CALLS {
        for (at, _) in code.match_indices(call) {
            let before = &code[..at];
            let is_name = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                && !before.ends_with("fn ");
            let is_test = whole || items.iter().any(|item| item.contains(&at));
            if is_name && is_test && !paused.iter().any(|function| function.contains(&at)) {
                lines.insert(line_of(code, at));
            }
        }
    }
    lines
}

/// Functions that run on tokio's paused clock, on which time passes at once.
fn paused(code: &str) -> Vec<std::ops::Range<usize>> {
    let begins = code.match_indices("#[tokio::test(").filter(|(at, _)| {
        let attribute = code[*at..].split(']').next().unwrap_or_default();
        attribute.contains("start_paused = true")
    });
    let function = |at: usize| {
        let mut depth = 0_i32;
        let end = code[at..].char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0 && c == '}').then_some(at + 1)
        });
        at..end.map_or(code.len(), |end| at + end)
    };
    begins.map(|(at, _)| function(at)).collect()
}

/// Sleeps that have no reason, and reasons that have no sleep.
fn judge(
    found: &BTreeMap<String, BTreeSet<usize>>,
    allowed: &[(&str, usize, &str)],
) -> Vec<String> {
    let mut violations = Vec::new();
    for (file, lines) in found {
        let most = allowed.iter().find(|(name, ..)| name == file).map_or(0, |(_, count, _)| *count);
        if lines.len() > most {
            let lines = lines.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            violations.push(format!(
                "{file} sleeps in line {lines}, and {most} are allowed: ask with `shared/poll` for what is awaited, or pause tokio's clock"
            ));
        }
    }
    for (file, most, _) in allowed {
        let count = found.get(*file).map_or(0, BTreeSet::len);
        if count < *most {
            violations.push(format!(
                "{file} sleeps {count} times and {most} are allowed: lower its number in xtask/src/test_code.rs, or take its row out"
            ));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_in_a_test_is_found_and_one_in_virtual_time_or_in_the_program_is_not() {
        let source = "fn run() { thread::sleep(A); }\n\
             #[cfg(test)]\nmod tests {\n    // sleep(A)\n    #[test]\n    fn one() {\n        thread::sleep(A);\n    }\n\
             #[tokio::test(start_paused = true)]\n    async fn two() { tokio::time::sleep(A).await; }\n\
             #[tokio::test]\n    async fn three() {\n        let text = \"sleep(\n\"; time::sleep_until(B).await;\n    }\n\
             fn sleep(a: u8) {}\n    fn four() { asleep(A); thread::park_timeout(A) }\n}\n";
        let code = code_of(source);
        let lines = |file: &str| -> Vec<usize> {
            sleeping_lines(Path::new(file), &code).into_iter().collect()
        };
        assert_eq!(lines("crates/x/src/a.rs"), [7, 14, 17]);
        assert_eq!(lines("crates/x/src/a/tests.rs"), [1, 7, 14, 17]);
        assert_eq!(lines("crates/x/tests/it/a.rs"), [1, 7, 14, 17]);
    }

    #[test]
    fn source_that_no_module_declares_is_found() {
        let file = |path: &str, code: &str| (PathBuf::from(path), code.to_owned());
        let codes = BTreeMap::from([
            file("crates/a/src/lib.rs", "mod pool;"),
            file("crates/a/src/pool.rs", "mod manager;"),
            file("crates/a/src/pool/manager.rs", ""),
            file("crates/a/src/pool/tests.rs", "#[test] fn one() {}"),
            file("crates/a/src/tests.rs", ""),
            file("crates/a/tests/it/main.rs", ""),
        ]);
        let expected = ["crates/a/src/pool/tests.rs", "crates/a/src/tests.rs"];
        assert_eq!(
            orphans(&codes),
            expected.map(|file| format!("{file} is declared by no module"))
        );
    }

    #[test]
    fn a_sleep_needs_a_reason_and_a_reason_a_sleep() {
        let found = BTreeMap::from([("a.rs".to_owned(), BTreeSet::from([3, 9]))]);
        assert_eq!(judge(&found, &[("a.rs", 2, "its pace")]), [""; 0]);
        let violations = judge(&found, &[("a.rs", 1, "its pace"), ("b.rs", 1, "a fault")]);
        assert_eq!(violations.len(), 2, "{violations:?}");
        assert!(violations[0].starts_with("a.rs sleeps in line 3, 9, and 1 are allowed"));
        assert!(violations[1].starts_with("b.rs sleeps 0 times and 1 are allowed"));
    }

    #[test]
    fn each_test_has_its_place() {
        let inline = "fn f() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n}\n";
        let longer = inline.replace("fn a() {}", &"\n".repeat(BESIDE_LINES_MAX));
        for (file, source, expected) in [
            ("crates/x/src/a.rs", inline, None),
            ("crates/x/src/a.rs", &*inline.replace("mod", "pub(super) mod"), None),
            ("crates/x/src/a.rs", "#[cfg(test)]\nmod tests;\nmod b;\n", None),
            ("crates/x/src/a.rs", "#[cfg(test)]\nfn helper() {}\nfn f() {}\n", None),
            ("crates/x/src/a/tests.rs", "#[test]\nfn a() {}\n", None),
            ("crates/x/src/a/tests/b.rs", "#[test]\nfn a() {}\n", None),
            ("crates/x/src/a.rs", "fn f() {}\n#[test]\nfn a() {}\n", Some("a.rs:2 is a test")),
            (
                "crates/x/src/a.rs",
                &*inline.replace("mod tests", "mod checks"),
                Some("a.rs:4 is a test"),
            ),
            ("crates/x/src/a.rs", &*format!("{inline}fn g() {{}}\n"), Some("a.rs:2: `mod tests`")),
            ("crates/x/src/a.rs", &*longer, Some("move them to crates/x/src/a/tests.rs")),
            ("crates/x/src/a/mod.rs", "fn f() {}\n", Some("not NAME/mod.rs")),
        ] {
            let found = place(Path::new(file), &code_of(source));
            assert_eq!(found.len(), usize::from(expected.is_some()), "{file}: {found:?}");
            let expected = expected.unwrap_or_default();
            assert!(found.iter().all(|found| found.contains(expected)), "{file}: {found:?}");
        }
    }

    #[test]
    fn an_integration_test_is_a_module_of_a_binary_of_its_crate() {
        let mut folders = BTreeMap::new();
        for (file, is_right) in [
            ("crates/x/tests/it/main.rs", true),
            ("crates/x/tests/it/a.rs", true),
            ("crates/y/tests/it/a.rs", true), // without a main.rs, see below
            ("crates/x/tests/a.rs", false),
            ("crates/x/tests/mqtt/main.rs", false),
            ("crates/tidegate/tests/mqtt/main.rs", true),
            ("crates/tidegate/tests/shared/poll.rs", true),
            ("crates/tidegate/tests/it/main.rs", false),
            ("crates/x/src/tests/a.rs", true),
        ] {
            let found = integration(Path::new(file), &mut folders);
            assert_eq!(found.is_none(), is_right, "{file}: {found:?}");
        }
        let found: Vec<String> = without_main(&folders).collect();
        assert_eq!(found, ["crates/y/tests/it has no main.rs, so cargo does not run its tests"]);
    }
}
