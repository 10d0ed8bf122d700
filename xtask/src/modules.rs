//! Which module of a crate of the program may import which, read from the sources: the second half of `cargo xtask layers`.
//!
//! ```text
//!  cli ─▶ commands ─▶ run ─▶ ground            (of `tidegate`; other crates of several modules have floors of their own)
//! ```
//!
//! Always true of a tree that passes: no two modules that are siblings import each other, at any depth; in a crate with floors an import
//! goes to a lower one. Which crate may use which is the first half's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// A floor: its name, and its modules.
type Floor = (&'static str, &'static [&'static str]);

/// Crates that are more than one story, each with its floors from the ground up. Modules of one floor do not import each other.
const FLOORS: &[(&str, &[Floor])] = &[
    ("tidegate", &[("composition", &["run"]), ("program", &["cli"])]),
    (
        "tidegate-camera",
        &[
            ("ground", &["discovery", "frame_log", "source"]),
            ("detectors", &["detector"]),
            ("camera", &["camera"]),
            ("tables", &["characterize"]),
        ],
    ),
    (
        "tidegate-workers",
        &[
            ("ground", &["locate", "protocol", "schedule"]),
            ("work", &["models", "work"]),
            ("worker", &["worker"]),
            ("pool", &["pool"]),
            ("sharing", &["shared"]),
        ],
    ),
    (
        "tidegate-cli",
        &[
            ("ground", &["arguments", "logging", "stop", "time"]),
            ("programs", &["program"]),
            ("nodes", &["remote"]),
            ("commands", &["cameras", "fabric", "fetch", "sessions", "sources"]),
            ("subscriptions", &["subscribe"]),
        ],
    ),
    (
        "tidegate-identity",
        &[
            ("ground", &["auth", "pki"]),
            ("rights", &["access", "enrol"]),
            ("callers", &["callers"]),
        ],
    ),
    (
        "tidegate-link",
        &[
            ("ground", &["link", "medium"]),
            ("carriers", &["carrier"]),
            ("roles", &["introduce", "roles"]),
        ],
    ),
    (
        "tidegate-process",
        &[
            (
                "ground",
                &[
                    "clock",
                    "descriptors",
                    "http",
                    "http1",
                    "random",
                    "reach",
                    "step",
                    "tasks",
                    "threads",
                    "tls",
                ],
            ),
            ("peers", &["arrivals", "pages"]),
            ("listeners", &["health", "newcomers", "places"]),
        ],
    ),
    (
        "tidegate-vision",
        &[
            ("ground", &["answer", "budget", "buffers", "detector", "image", "settings"]),
            ("refusals", &["refused"]),
            ("words", &["body", "paper"]),
            ("requests", &["inference", "models", "socket"]),
            ("paths", &["classic"]),
            ("listeners", &["listener"]),
        ],
    ),
];

/// A module by the names that lead to it from the root of its crate, which has none.
type ModulePath = Vec<String>;

/// The sources of a crate by their modules.
type Sources = BTreeMap<ModulePath, String>;

/// Files by the module that they belong to and the module that they import.
type Imports = BTreeMap<(String, String), BTreeSet<String>>;

/// Faults of the modules below `root`, and of what ARCHITECTURE.md says of them.
pub(crate) fn violations(root: &Path) -> anyhow::Result<Vec<String>> {
    let architecture = read(&root.join("ARCHITECTURE.md"))?;
    let mut violations = Vec::new();
    for (name, floors) in FLOORS {
        let sources = root.join("crates").join(name).join("src");
        let modules = modules_of(&read(&sources.join("lib.rs"))?);
        violations.extend(places(name, floors, &modules));
        violations.extend(check(floors, &imports_below(&sources, &modules)?));
        violations.extend(map(name, floors, &architecture));
    }
    for (name, sources) in crates(root)? {
        let pairs = mutual(&sources_below(&sources)?).into_iter();
        violations.extend(pairs.map(|(a, b, how)| {
            format!(
                "{a} and {b} of {name} import each other: {how}; what both need goes to the lower one, or to a module of its own"
            )
        }));
    }
    Ok(violations)
}

/// The crates of the workspace: their folders below `root`, and where their sources are.
fn crates(root: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut names = vec!["fuzz/bodies".to_owned(), "xtask".to_owned()];
    for group in ["bench", "crates"] {
        let folder = root.join(group);
        let entries = fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("listing {}", folder.display()))? {
            names.push(format!("{group}/{}", entry?.file_name().display()));
        }
    }
    names.sort();
    let crates = names.into_iter().map(|name| (name.clone(), root.join(name).join("src")));
    Ok(crates.filter(|(_, sources)| sources.is_dir()).collect())
}

/// The sources in that folder, those of tests left out.
fn sources_below(folder: &Path) -> anyhow::Result<Sources> {
    let mut sources = Sources::new();
    for path in rust_files(folder)? {
        let relative = path.strip_prefix(folder).unwrap_or(&path).with_extension("");
        let mut module: ModulePath =
            relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        match module.last().map(String::as_str) {
            Some("tests") => continue,
            Some("mod") => drop(module.pop()),
            Some("lib" | "main") if module.len() == 1 => continue, // the root joins all
            _ => {}
        }
        sources.insert(module, read(&path)?);
    }
    Ok(sources)
}

/// Siblings that import each other, what lies below them included, each pair with an import in either direction.
fn mutual(sources: &Sources) -> Vec<(String, String, String)> {
    let mut named: Vec<(&ModulePath, ModulePath)> = Vec::new();
    for (own, source) in sources {
        named.extend(paths_of(source, own, sources).into_iter().map(|path| (own, path)));
    }
    // By the siblings below which they lie: the first import from one to the other.
    let mut imports: BTreeMap<(&[String], &[String]), String> = BTreeMap::new();
    for (own, path) in &named {
        let shared = own.iter().zip(path).take_while(|(own, other)| own == other).count();
        if shared < own.len() && shared < path.len() {
            let how = || format!("{} imports {}", own.join("::"), path.join("::"));
            imports.entry((&own[..=shared], &path[..=shared])).or_insert_with(how);
        }
    }
    let pairs = imports.iter().filter(|((a, b), _)| a < b).filter_map(|((a, b), one)| {
        let other = imports.get(&(*b, *a))?;
        Some((a.join("::"), b.join("::"), format!("{one}, and {other}")))
    });
    pairs.collect()
}

/// The modules of the crate that the source of the module `own` names, its tests left out.
fn paths_of(source: &str, own: &[String], known: &Sources) -> BTreeSet<ModulePath> {
    const UP: &str = "super::";
    let code = without_tests(&code_of(source));
    let mut found = BTreeSet::new();
    for root in ["crate::", "self::", UP] {
        for (at, _) in code.match_indices(root) {
            if !is_whole(&code[..at]) {
                continue;
            }
            let mut base = if root == "crate::" { &[] } else { own };
            let mut rest = &code[at..];
            if root == UP {
                while let Some(after) = rest.strip_prefix(UP) {
                    rest = after;
                    base = base.split_last().map_or(&[], |(_, above)| above);
                }
            } else {
                rest = &rest[root.len()..];
            }
            add_paths(base, rest, known, &mut found);
        }
    }
    found
}

/// Adds the modules that `a::b`, or `{a::b, c::{d, e}}`, leads to from `base`.
fn add_paths(base: &[String], rest: &str, known: &Sources, found: &mut BTreeSet<ModulePath>) {
    for part in parts(rest) {
        let head = word(part);
        let path: ModulePath = base.iter().cloned().chain([head.to_owned()]).collect();
        if known.contains_key(&path) {
            if let Some(below) = part[head.len()..].strip_prefix("::") {
                add_paths(&path, below, known, found);
            }
            found.insert(path);
        }
    }
}

/// The imports of the modules whose sources lie in that folder.
fn imports_below(sources: &Path, modules: &BTreeSet<String>) -> anyhow::Result<Imports> {
    let mut imports = Imports::new();
    for path in rust_files(sources)? {
        let relative = path.strip_prefix(sources).unwrap_or(&path);
        let parts: Vec<&str> = relative.iter().filter_map(|part| part.to_str()).collect();
        let (&[first, ..], false) = (&parts[..], relative.ends_with("tests.rs")) else { continue };
        let module = first.trim_end_matches(".rs");
        if !modules.contains(module) {
            continue; // the root and `main` join all
        }
        for found in imports_of(&read(&path)?, parts.len(), modules) {
            if found != module {
                let file = relative.display().to_string();
                imports.entry((module.to_owned(), found)).or_default().insert(file);
            }
        }
    }
    Ok(imports)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// The modules that the root of a crate declares, its tests aside.
fn modules_of(lib: &str) -> BTreeSet<String> {
    let code = without_tests(&code_of(lib));
    let declared = code.lines().filter_map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.map(str::to_owned).collect()
}

/// Every module has one place, and every place a module.
fn places(name: &str, floors: &[Floor], modules: &BTreeSet<String>) -> Vec<String> {
    let mut violations = Vec::new();
    let placed: Vec<&str> =
        floors.iter().flat_map(|(_, modules)| modules.iter().copied()).collect();
    for module in modules {
        if placed.iter().filter(|placed| *placed == module).count() != 1 {
            violations.push(format!(
                "crates/{name}/src/{module} needs one place in FLOORS of xtask/src/modules.rs and in ARCHITECTURE.md"
            ));
        }
    }
    for module in placed.iter().filter(|module| !modules.contains(**module)) {
        violations.push(format!(
            "{module} is in FLOORS of xtask/src/modules.rs, but is no module of crates/{name}: remove it"
        ));
    }
    violations
}

/// Whether `from` may import `to`, by their floors.
fn may_import(floors: &[Floor], from: &str, to: &str) -> bool {
    let floor = |module: &str| floors.iter().position(|(_, modules)| modules.contains(&module));
    match (floor(from), floor(to)) {
        (Some(upper), Some(lower)) => upper > lower,
        // It was said that they have no place.
        _ => true,
    }
}

fn check(floors: &[Floor], imports: &Imports) -> Vec<String> {
    let mut violations = Vec::new();
    for ((from, to), files) in imports {
        let names = || files.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        if from < to && imports.contains_key(&(to.clone(), from.clone())) {
            violations.push(format!("{from} and {to} import each other: {}", names()));
        }
        if !may_import(floors, from, to) {
            violations.push(format!(
                "{from} imports {to}: an import goes to a lower floor; see {}",
                names()
            ));
        }
    }
    violations
}

/// The rows of ARCHITECTURE.md say the same: `| crate | floor | modules |`, from the top down.
fn map(name: &str, floors: &[Floor], architecture: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for (floor, modules) in floors {
        let told = architecture.lines().find_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let is_it = cells.len() > 4 && cells[1] == format!("`{name}`") && cells[2] == *floor;
            is_it.then(|| cells[3].to_owned())
        });
        // Words in parentheses explain, and name no module.
        let mut depth = 0;
        let plain: String = told
            .unwrap_or_default()
            .chars()
            .filter(|c| {
                depth += i32::from(*c == '(');
                let is_plain = depth == 0;
                depth -= i32::from(*c == ')');
                is_plain
            })
            .collect();
        let mut named: Vec<&str> = plain.split('`').skip(1).step_by(2).collect();
        named.sort_unstable();
        if named != *modules {
            violations.push(format!(
                "ARCHITECTURE.md has {} on the floor {floor:?} of {name}, and FLOORS of xtask/src/modules.rs has {}",
                named.join(", "),
                modules.join(", ")
            ));
        }
    }
    violations
}

/// The modules of the crate that a file names, its tests left out; the file lies `depth` modules deep.
fn imports_of(source: &str, depth: usize, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let code = without_tests(&code_of(source));
    let mut found = BTreeSet::new();
    let up = "super::".repeat(depth);
    for root in ["crate::", &up] {
        for (at, _) in code.match_indices(root) {
            if is_whole(&code[..at]) {
                let rest = &code[at + root.len()..];
                found.extend(
                    heads(rest)
                        .into_iter()
                        .filter(|head| modules.contains(*head))
                        .map(str::to_owned),
                );
            }
        }
    }
    found
}

/// Whether a path begins behind that text.
fn is_whole(before: &str) -> bool {
    !before.ends_with(|c: char| c.is_alphanumeric() || "_$:".contains(c))
}

/// The first names of `a::b`, or of `{a::b, c::{d, e}}`.
fn heads(rest: &str) -> Vec<&str> {
    parts(rest).into_iter().map(word).collect()
}

/// The items of a list `{a::b, c::{d, e}}`; the text itself if it is none.
fn parts(rest: &str) -> Vec<&str> {
    let Some(list) = rest.strip_prefix('{') else { return vec![rest] };
    let (mut depth, mut begin, mut found) = (1, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            found.push(list[begin..at].trim_start());
            begin = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The sources in a folder, those in folders of tests left out.
pub(crate) fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                files.extend(rust_files(&path)?);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The source with comments and what stands in strings blanked; its lines keep their numbers.
pub(crate) fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let raw =
            rest.strip_prefix('r').map(|after| after.len() - after.trim_start_matches('#').len());
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if let Some(hashes) = raw.filter(|hashes| rest[1 + hashes..].starts_with('"'))
            && !code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
        {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = hashes + 2;
            rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len())
        } else if first == '"' {
            quoted(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else if let Some(escaped) = rest.strip_prefix("'\\") {
            escaped.char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(2, |(at, _)| at + 3)
        } else {
            0
        };
        if skipped > 0 {
            code.push(' ');
            code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
            rest = &rest[skipped..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// Bytes of the string that `text` begins with, quotes included.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The code without the items that only tests have; the other lines keep their numbers.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut from = 0;
    for item in test_items(code) {
        kept.push_str(&code[from..item.start]);
        kept.extend(code[item.clone()].chars().filter(|c| *c == '\n'));
        from = item.end;
    }
    kept.push_str(&code[from..]);
    kept
}

/// Where the items stand that only tests have.
pub(crate) fn test_items(code: &str) -> Vec<Range<usize>> {
    const MARK: &str = "#[cfg(test)]";
    let (mut items, mut from) = (Vec::new(), 0);
    while let Some(at) = code[from..].find(MARK) {
        let start = from + at;
        let item = &code[start + MARK.len()..];
        let mut depth = 0_i32;
        let end = item.char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (depth == 0 && matches!(c, ';' | '}')).then_some(at + 1)
        });
        from = start + MARK.len() + end.unwrap_or(item.len());
        items.push(start..from);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUSE: &[Floor] = &[
        ("ground", &["clock", "config"]),
        ("server", &["mqtt"]),
        ("services", &["sink", "uplink"]),
        ("composition", &["run"]),
    ];

    fn imports(pairs: &[(&str, &str, &[&str])]) -> Imports {
        let pairs = pairs.iter().map(|(from, to, files)| {
            let files = files.iter().map(|file| (*file).to_owned()).collect();
            (((*from).to_owned(), (*to).to_owned()), files)
        });
        pairs.collect()
    }

    #[test]
    fn an_import_against_a_rule_is_a_violation() {
        for (from, to, is_allowed) in [
            ("run", "sink", true),
            ("run", "config", true),
            ("sink", "mqtt", true),
            ("mqtt", "run", false),
            ("clock", "config", false),
            ("config", "clock", false),
            ("sink", "uplink", false),
        ] {
            let found = check(HOUSE, &imports(&[(from, to, &["a.rs"])]));
            let wrong = format!("{from} imports {to}: an import goes to a lower floor; see a.rs");
            assert_eq!(found, if is_allowed { vec![] } else { vec![wrong] });
        }
    }

    #[test]
    fn two_modules_that_import_each_other_are_named() {
        let found = check(
            HOUSE,
            &imports(&[("sink", "mqtt", &["sink.rs"]), ("mqtt", "sink", &["mqtt/a.rs"])]),
        );
        let first = "mqtt and sink import each other: mqtt/a.rs";
        let second = "mqtt imports sink: an import goes to a lower floor; see mqtt/a.rs";
        assert_eq!(found, [first, second]);
    }

    #[test]
    fn imports_are_read_from_code_and_not_from_tests_texts_and_comments() {
        let source = "//! [`crate::api`]\nuse tidegate_wire::mqtt;\nuse crate::{\n    auth::{self, audit::{Audit, Entry}},\n    config,\n};\n\
                      #[cfg(test)]\nmod tests;\n/* crate::demo */\nfn f() -> &'static str {\n    crate::link::dial('\"', '\\'');\n    \
                      let text = \"crate::node \\\" crate::node\";\n    let raw = r#\"crate::cli \"#;\n    super::pki::load(super::super::sink::x)\n}\n\
                      #[cfg(test)]\nmod inline {\n    use crate::flow::Flows;\n    fn f() {}\n}\nuse crate::clock;\nuse my_crate::report;\n";
        let all = "api auth cli clock config demo flow link mqtt node pki report sink";
        let modules: BTreeSet<String> = all.split(' ').map(str::to_owned).collect();
        let found = |depth| imports_of(source, depth, &modules).into_iter().collect::<Vec<_>>();
        assert_eq!(found(1), ["auth", "clock", "config", "link", "pki"]);
        assert_eq!(found(2), ["auth", "clock", "config", "link", "sink"]);
    }

    fn sources(files: &[(&str, &str)]) -> Sources {
        let module = |path: &str| path.split("::").map(str::to_owned).collect();
        files.iter().map(|(path, source)| (module(path), (*source).to_owned())).collect()
    }

    #[test]
    fn siblings_that_import_each_other_are_found_at_every_depth() {
        let found = mutual(&sources(&[
            ("clock", "use crate::{\n    disk,\n    net::{Peer, tcp::{self, Socket}},\n};\n"),
            ("disk", "fn f() {}\n"),
            ("net", "pub use self::{quic::Quic, tcp::Tcp};\n"),
            ("net::quic", "use super::{Path, tcp::Tcp};\n"),
            ("net::tcp", "use crate::net::{quic, Path};\n"),
            ("net::tcp::header", "use super::super::super::clock::now;\n"),
        ]));
        let pairs: Vec<_> = found.iter().map(|(a, b, _)| (a.as_str(), b.as_str())).collect();
        assert_eq!(pairs, [("clock", "net"), ("net::quic", "net::tcp")]);
        assert!(found[0].2.contains("net::tcp::header imports clock"), "{found:?}");
    }

    #[test]
    fn tests_comments_and_one_direction_make_no_pair() {
        let found = mutual(&sources(&[
            ("a", "use super::b::B;\n"),
            ("b", "//! [`crate::a`]\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("b::c", "use super::B;\n"),
        ]));
        assert_eq!(found, []);
    }

    #[test]
    fn each_module_has_one_place_and_the_map_says_the_same() {
        let modules = modules_of(
            "pub mod clock;\nmod config;\npub(crate) mod mqtt;\nmod sink;\nmod uplink;\nmod run;\n#[cfg(test)]\nmod tests;\n",
        );
        assert_eq!(places("x", HOUSE, &modules), Vec::<String>::new());
        let more =
            modules_of("mod clock;\nmod config;\nmod mqtt;\nmod sink;\nmod run;\nmod page;\n");
        let found = places("x", HOUSE, &more);
        assert!(found[0].contains("crates/x/src/page needs one place"), "{found:?}");
        assert!(found[1].starts_with("uplink is in FLOORS"), "{found:?}");
        let rows = "| `x` | composition | `run` |\n| `x` | services | `sink` (`x`), `uplink` |\n| `x` | server | `mqtt` |\n| `x` | ground | `clock`, `config` |\n";
        assert_eq!(map("x", HOUSE, rows), Vec::<String>::new());
        let found = map("x", HOUSE, &rows.replace(", `uplink`", ""));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("\"services\""), "{found:?}");
    }
}
