//! `cargo xtask test`: every test there is, and one line that counts them.
//!
//! ```text
//!  cargo test --workspace ─┬─ lines shown as they come, counted ─▶ `N passed, N failed, N skipped`
//!  workers' unittest ──────┤
//!  each SDK's tests ───────┤
//!  the API's description ──┤
//!  the page in a browser ──┘
//! ```
//!
//! The tests of the SDKs, of the API's description and of the page run where all of the workspace is tested: with arguments that choose
//! tests, the program that they need may not have been built.
//!
//! A test that cannot run on this machine prints a line that begins with `skipped:` and says why, then returns. It is counted
//! as skipped, not as passed.
//!
//! Always true: the exit status is 0 only if every program that was started ended well, no test failed, and there was one.

use std::{
    fmt,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus, Stdio},
};

use anyhow::Context as _;

use crate::cargo::cargo;

/// Features that are off by default are tested all the same.
const FEATURES: &[&str] = &["--features", "tidegate/xdp"];

/// Tests in another language, which run against the program that was built for the others.
struct Suite {
    folder: &'static str,
    /// Runs its tests by `SCRIPT test ARGUMENT…`.
    script: &'static str,
    arguments: &'static [&'static str],
    /// The program that its tests need, for a line that says that it is missing.
    needs: &'static str,
    count: fn(&[String]) -> Totals,
}

const SUITES: [Suite; 5] = [
    Suite {
        folder: "sdk/python",
        script: "scripts/sdk-python",
        arguments: &["-rs", "--color=no"],
        needs: "Python 3.11",
        count: pytest,
    },
    Suite {
        folder: "sdk/typescript",
        script: "scripts/sdk-typescript",
        arguments: &[],
        needs: "Node.js 20",
        count: node,
    },
    Suite {
        folder: "sdk/android",
        script: "scripts/sdk-android",
        arguments: &[],
        needs: "a JDK and Maven",
        count: surefire,
    },
    Suite {
        folder: "crates/tidegate-rpc/openapi",
        script: "scripts/openapi",
        arguments: &["-rs", "--color=no"],
        needs: "Python 3.11",
        count: pytest,
    },
    Suite {
        folder: "crates/tidegate-web/page",
        script: "scripts/page",
        arguments: &["--test-reporter=spec"],
        needs: "Chromium and Node.js 20",
        count: node,
    },
];
/// The exit status of such a script where its program is missing, or a network to have its packages from.
const UNAVAILABLE: i32 = 69;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Totals {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Runs all tests; `arguments` go to `cargo test` before its `--`.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let mut totals = Totals::default();
    let mut broken = Vec::new();
    let mut tests = cargo();
    tests.args(["test", "--workspace", "--no-fail-fast"]);
    tests.args(FEATURES).args(arguments).args(["--", "--show-output"]);
    let mut counter = RustCounter::default();
    let ended_well = watch(tests.stdout(Stdio::piped()), |line| {
        if counter.show(line) {
            println!("{line}");
        }
    })?;
    totals.add(counter.totals);
    for reason in &counter.reasons {
        println!("{reason}");
    }
    if !ended_well && counter.totals.failed == 0 {
        broken.push("cargo test ended badly without a failed test".to_owned());
    }
    for suite in python_suites(Path::new("workers"))? {
        println!("\npython tests of {}", suite.folder.display());
        let counted = suite.run()?;
        totals.add(counted.totals);
        if !counted.ended_well && counted.totals.failed == 0 {
            broken.push(format!("the tests of {} ended badly", suite.folder.display()));
        }
    }
    match program(&target_folder()?, arguments) {
        Ok(program) => {
            for suite in &SUITES {
                println!("\ntests of {}", suite.folder);
                let counted = suite.run(&program)?;
                totals.add(counted.totals);
                if !counted.ended_well && counted.totals.failed == 0 {
                    broken.push(format!("the tests of {} ended badly", suite.folder));
                }
            }
        }
        Err(chosen) => println!(
            "\nleft out: the tests of the SDKs, of the API's description and of the page, since {chosen} chooses tests"
        ),
    }
    if totals.passed + totals.failed == 0 {
        broken.push("no test ran".to_owned());
    }
    for line in &broken {
        println!("{line}");
    }
    // A program that broke is at least one failure, so that the last line alone cannot mislead.
    totals.failed += broken.len() as u64;
    println!("\n{totals}");
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Totals {
    fn add(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

/// Runs `command` and hands over its lines as they come. Returns whether it ended well.
fn watch(command: &mut Command, each: impl FnMut(&str)) -> anyhow::Result<bool> {
    Ok(follow(command, each)?.success())
}

/// Runs `command` and hands over its lines as they come.
fn follow(command: &mut Command, mut each: impl FnMut(&str)) -> anyhow::Result<ExitStatus> {
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let out = child.stdout.take().context("the command's output is piped")?;
    let mut out = BufReader::new(out);
    let mut line = Vec::new();
    while out.read_until(b'\n', &mut line).context("reading the tests' output")? > 0 {
        each(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
        line.clear();
    }
    child.wait().context("waiting for the tests")
}

/// Reads what Rust's test programs print.
#[derive(Debug, Default)]
struct RustCounter {
    totals: Totals,
    /// Within the output of tests that passed, which is read for reasons and not shown.
    in_successes: bool,
    skipped_here: u64,
    reasons: Vec<String>,
}

impl RustCounter {
    /// Counts a line and says whether to show it.
    fn show(&mut self, line: &str) -> bool {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            let counted = result_line(result);
            let skipped = std::mem::take(&mut self.skipped_here).min(counted.passed);
            self.totals.add(Totals {
                passed: counted.passed - skipped,
                failed: counted.failed,
                skipped: counted.skipped + skipped,
            });
            return true;
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if self.in_successes && line.starts_with("skipped:") {
            self.skipped_here += 1;
            self.reasons.push(line.to_owned());
        }
        !self.in_successes
    }
}

/// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn result_line(result: &str) -> Totals {
    let count_of = |word: &str| {
        result
            .split(['.', ';'])
            .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
            .unwrap_or(0)
    };
    Totals { passed: count_of("passed"), failed: count_of("failed"), skipped: count_of("ignored") }
}

/// A folder of Python tests.
struct PythonSuite {
    folder: PathBuf,
}

struct Counted {
    totals: Totals,
    ended_well: bool,
}

/// Folders below `workers` that hold a `test_*.py`, themselves or in `tests`.
fn python_suites(workers: &Path) -> anyhow::Result<Vec<PythonSuite>> {
    let Ok(entries) = workers.read_dir() else { return Ok(Vec::new()) };
    let mut suites = Vec::new();
    for entry in entries {
        let folder = entry.context("listing the workers")?.path();
        if has_tests(&folder) || has_tests(&folder.join("tests")) {
            suites.push(PythonSuite { folder });
        }
    }
    suites.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(suites)
}

fn has_tests(folder: &Path) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("test_")
            && Path::new(&*name).extension().is_some_and(|extension| extension == "py")
    })
}

impl PythonSuite {
    fn run(&self) -> anyhow::Result<Counted> {
        let start = if has_tests(&self.folder) { "." } else { "tests" };
        // unittest reports on stderr; the shell joins it to stdout, so that its lines can be read as they come.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(Self::python());
        shell.args(["-m", "unittest", "discover", "-v", "-s", start, "-t", "."]);
        shell.current_dir(&self.folder).env("PYTHONDONTWRITEBYTECODE", "1");
        shell.stdout(Stdio::piped());
        let mut lines = Vec::new();
        let ended_well = watch(&mut shell, |line| {
            println!("{line}");
            lines.push(line.to_owned());
        })?;
        Ok(Counted { totals: unittest(&lines), ended_well })
    }

    /// The interpreter of the workers' environment, where their setup looks for it too; else the system's, whose tests then
    /// say themselves what they miss.
    fn python() -> PathBuf {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let cache = || {
            Some(
                folder("XDG_CACHE_HOME")
                    .or(folder("HOME").map(|home| home.join(".cache")))?
                    .join("tidegate/worker-venv"),
            )
        };
        let environment = folder("TIDEGATE_WORKER_VENV").or_else(cache);
        environment
            .map(|environment| environment.join("bin/python"))
            .filter(|python| python.is_file())
            .unwrap_or_else(|| "python3".into())
    }
}

/// The folder that cargo builds to, which this program lies in.
fn target_folder() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("looking where this program is")?;
    let target = own.parent().and_then(Path::parent);
    Ok(target.context("this program is in no target folder")?.to_owned())
}

/// Arguments of `cargo test` that leave it all tests.
const OF_ALL: [&str; 16] = [
    "-q",
    "--quiet",
    "-v",
    "-vv",
    "--verbose",
    "--locked",
    "--offline",
    "--frozen",
    "--no-fail-fast",
    "--keep-going",
    "--workspace",
    "--all",
    "--all-features",
    "--ignore-rust-version",
    "--future-incompat-report",
    "--timings",
];
/// Such arguments that have a value.
const OF_ALL_VALUED: [&str; 8] =
    ["-j", "--jobs", "-F", "--features", "--color", "--message-format", "--config", "-Z"];

/// The program that `cargo test` with these arguments has built, by default below `target`.
///
/// # Errors
/// The argument that chooses tests, or may.
fn program(target: &Path, arguments: &[String]) -> Result<PathBuf, String> {
    let (mut target, mut triple, mut profile) = (target.to_owned(), None, "debug".to_owned());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, given) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let mut value = || given.clone().or_else(|| rest.next().cloned()).unwrap_or_default();
        match name {
            "-r" | "--release" => "release".clone_into(&mut profile),
            "--profile" => profile = value(),
            "--target" => triple = Some(value()),
            "--target-dir" => target = value().into(),
            _ if OF_ALL_VALUED.contains(&name) => drop(value()),
            _ if OF_ALL.contains(&name) => {}
            _ => return Err(argument.clone()),
        }
    }
    // Two profiles build to the folders of others.
    let folder = match profile.as_str() {
        "dev" | "test" => "debug",
        "bench" => "release",
        other => other,
    };
    Ok(target.join(triple.unwrap_or_default()).join(folder).join("tidegate"))
}

impl Suite {
    /// Runs its tests against `program`.
    fn run(&self, program: &Path) -> anyhow::Result<Counted> {
        let mut tests = Command::new("sh");
        tests.args(["-c", "exec \"$@\" 2>&1", "sh", self.script, "test"]).args(self.arguments);
        tests.env("TIDEGATE_PROGRAM", program).stdout(Stdio::piped());
        let mut lines = Vec::new();
        let status = follow(&mut tests, |line| {
            println!("{line}");
            lines.push(line.to_owned());
        })?;
        if status.code() == Some(UNAVAILABLE) {
            let Self { folder, needs, .. } = self;
            println!(
                "skipped: the tests of {folder}, without {needs} or a network to have its packages from"
            );
            let totals = Totals { skipped: 1, ..Totals::default() };
            return Ok(Counted { totals, ended_well: true });
        }
        Ok(Counted { totals: (self.count)(&lines), ended_well: status.success() })
    }
}

/// `2 failed, 7 passed, 1 skipped, 1 error in 8.21s`; all zero if pytest did not come so far.
fn pytest(lines: &[String]) -> Totals {
    let last =
        lines.iter().rev().find(|line| line.contains(" in ") && line.ends_with(['s', ')', '=']));
    let count_of = |words: &[&str]| {
        let parts =
            last.map(|line| line.trim_matches(['=', ' ']).split([',', ' '])).into_iter().flatten();
        let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
        let pairs = parts.windows(2).filter(|pair| words.contains(&pair[1]));
        pairs.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
    };
    Totals {
        passed: count_of(&["passed"]),
        failed: count_of(&["failed", "error", "errors"]),
        skipped: count_of(&["skipped"]),
    }
}

/// Reads the lines that node's test runner prints at its end: `ℹ pass 7`, `ℹ fail 0`, `ℹ skipped 1`.
fn node(lines: &[String]) -> Totals {
    let count_of = |word: &str| -> u64 {
        let number =
            |line: &String| line.strip_prefix("ℹ ")?.strip_prefix(word)?.trim().parse().ok();
        lines.iter().rev().find_map(number).unwrap_or(0)
    };
    Totals {
        passed: count_of("pass "),
        failed: count_of("fail ") + count_of("cancelled "),
        skipped: count_of("skipped ") + count_of("todo "),
    }
}

/// Reads the last line of all tests that Maven's Surefire prints: `Tests run: 15, Failures: 0, Errors: 0, Skipped: 1`, without a class at its end.
fn surefire(lines: &[String]) -> Totals {
    let of_all = |line: &&String| line.contains("Tests run: ") && !line.contains("Time elapsed");
    let last = lines.iter().rev().find(of_all).map_or("", String::as_str);
    let count_of = |word: &str| -> u64 {
        let number = |part: &str| part.split_once(word)?.1.trim().parse().ok();
        last.split(',').find_map(number).unwrap_or(0)
    };
    let (failed, skipped) = (count_of("Failures: ") + count_of("Errors: "), count_of("Skipped: "));
    Totals { passed: count_of("Tests run: ").saturating_sub(failed + skipped), failed, skipped }
}

/// Reads what Python's unittest prints at its end: `Ran 7 tests in 0.1s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=2)`.
fn unittest(lines: &[String]) -> Totals {
    let ran: u64 = lines
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())
        .unwrap_or(0);
    let verdict = lines
        .iter()
        .rev()
        .find(|line| line.starts_with("OK") || line.starts_with("FAILED"))
        .map_or("", String::as_str);
    let inside = verdict.split_once('(').map_or("", |(_, rest)| rest.trim_end_matches(')'));
    let count_of = |key: &str| -> u64 {
        inside
            .split(", ")
            .find_map(|part| part.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
            .unwrap_or(0)
    };
    let failed = count_of("failures") + count_of("errors") + count_of("unexpected successes");
    let skipped = count_of("skipped");
    Totals { passed: ran.saturating_sub(failed + skipped), failed, skipped }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(output: &str) -> (Totals, Vec<&str>, Vec<String>) {
        let mut counter = RustCounter::default();
        let shown = output.lines().filter(|line| counter.show(line)).collect();
        (counter.totals, shown, counter.reasons)
    }

    #[test]
    fn results_of_several_programs_add_up() {
        let (totals, shown, _) = count(
            "running 3 tests\ntest a ... ok\n\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n",
        );
        assert_eq!(totals, Totals { passed: 5, failed: 4, skipped: 1 });
        assert_eq!(totals.to_string(), "5 passed, 4 failed, 1 skipped");
        assert_eq!(shown.len(), 5);
    }

    #[test]
    fn a_test_that_says_it_was_skipped_did_not_pass() {
        let (totals, shown, reasons) = count(
            "successes:\n\n---- netns stdout ----\nskipped: no network namespaces here\n\n\
             ---- chatty stdout ----\nhello\n\nsuccesses:\n    netns\n    chatty\n\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!(totals, Totals { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(shown.len(), 1, "the output of what passed is not shown: {shown:?}");
        assert_eq!(reasons, ["skipped: no network namespaces here"]);
    }

    #[test]
    fn the_output_of_a_failed_test_is_shown_and_claims_no_skip() {
        let (totals, shown, _) = count(
            "successes:\n    a\n\nfailures:\n\n---- b stdout ----\nskipped: not really\nboom\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!(totals, Totals { passed: 1, failed: 1, skipped: 0 });
        assert!(shown.contains(&"boom"));
    }

    #[test]
    fn unittest_is_counted_from_its_last_lines() {
        for (output, expected) in [
            ("Ran 7 tests in 0.1s\n\nOK", Totals { passed: 7, failed: 0, skipped: 0 }),
            ("Ran 7 tests in 0.1s\n\nOK (skipped=2)", Totals { passed: 5, failed: 0, skipped: 2 }),
            (
                "Ran 7 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=1)",
                Totals { passed: 3, failed: 3, skipped: 1 },
            ),
            ("ModuleNotFoundError: no module named x", Totals::default()),
        ] {
            let lines: Vec<String> = output.lines().map(str::to_owned).collect();
            assert_eq!(unittest(&lines), expected, "{output}");
        }
    }

    #[test]
    fn pytest_is_counted_from_its_last_line() {
        for (output, expected) in [
            ("....\n4 passed in 0.31s", Totals { passed: 4, failed: 0, skipped: 0 }),
            (
                "FAILED tests/a.py::b in c\n2 failed, 97 passed, 3 skipped, 1 error in 186.57s (0:03:06)",
                Totals { passed: 97, failed: 3, skipped: 3 },
            ),
            ("==== 1 passed, 2 errors in 1.00s ====", Totals { passed: 1, failed: 2, skipped: 0 }),
            ("ERROR: no such file", Totals::default()),
        ] {
            let lines: Vec<String> = output.lines().map(str::to_owned).collect();
            assert_eq!(pytest(&lines), expected, "{output}");
        }
    }

    #[test]
    fn nodes_runner_is_counted_from_its_last_lines() {
        for (output, expected) in [
            (
                "✔ a b (1.2ms)\nℹ tests 9\nℹ suites 0\nℹ pass 5\nℹ fail 1\nℹ cancelled 1\nℹ skipped 2\nℹ todo 0\nℹ duration_ms 8",
                Totals { passed: 5, failed: 2, skipped: 2 },
            ),
            ("error TS2322: Type 'pass 7' is not assignable", Totals::default()),
        ] {
            let lines: Vec<String> = output.lines().map(str::to_owned).collect();
            assert_eq!(node(&lines), expected, "{output}");
        }
    }

    #[test]
    fn surefire_is_counted_from_its_last_line() {
        for (output, expected) in [
            (
                "[WARNING] Tests run: 1, Failures: 0, Errors: 0, Skipped: 1, Time elapsed: 0.1 s -- in a.B\n\
                 [INFO] Tests run: 9, Failures: 1, Errors: 2, Skipped: 0, Time elapsed: 5 s -- in a.C\n\
                 [ERROR] Tests run: 10, Failures: 1, Errors: 2, Skipped: 1\n[INFO] BUILD FAILURE",
                Totals { passed: 6, failed: 3, skipped: 1 },
            ),
            ("[ERROR] COMPILATION ERROR", Totals::default()),
        ] {
            let lines: Vec<String> = output.lines().map(str::to_owned).collect();
            assert_eq!(surefire(&lines), expected, "{output}");
        }
    }

    #[test]
    fn the_sdks_are_tested_with_the_program_that_was_built_or_not_at_all() {
        let found = |arguments: &str| {
            let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
            program(Path::new("/t"), &arguments).map(|path| path.display().to_string())
        };
        for (arguments, expected) in [
            ("", "/t/debug/tidegate"),
            ("--release --locked -j 2", "/t/release/tidegate"),
            ("--profile dist", "/t/dist/tidegate"),
            ("--profile=test", "/t/debug/tidegate"),
            ("--profile bench --target=arm", "/t/arm/release/tidegate"),
            ("--target-dir /other --target arm --features a,b", "/other/arm/debug/tidegate"),
        ] {
            assert_eq!(found(arguments), Ok(expected.to_owned()), "{arguments}");
        }
        for (arguments, chosen) in [
            ("overflow", "overflow"),
            ("--release -p tidegate-broker", "-p"),
            ("--package=tidegate-broker", "--package=tidegate-broker"),
            ("--lib", "--lib"),
            ("--test mqtt", "--test"),
            ("--exclude tidegate", "--exclude"),
            ("--no-run", "--no-run"),
            ("-- name", "--"),
        ] {
            assert_eq!(found(arguments), Err(chosen.to_owned()), "{arguments}");
        }
    }

    #[test]
    fn a_command_that_fails_is_seen() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two; exit 3"]).stdout(Stdio::piped());
        assert!(!watch(&mut command, |line| lines.push(line.to_owned())).unwrap());
        assert_eq!(lines, ["one", "two"]);
    }
}
