//! How large a crate may be, a part of `cargo xtask layers`: a crate that grows beyond its limit holds more than one story, and each change
//! in one of them builds all of them.
//!
//! Lines of code, comments and empty ones count; tests, benches and examples do not.

use std::{collections::BTreeMap, path::Path};

/// Lines of a crate of the product, for those that are not in [`LIMITS`].
const LINES_MAX: usize = 16_000;

/// Crates with another limit, and why.
const LIMITS: &[(&str, usize, &str)] = &[
    // Every part says all of itself there: its check, its start, its exchange and its end.
    ("tidegate", 9_000, "it joins services and holds none of them"),
    // A part that was moved for the number's sake would be cut through that story.
    (
        "tidegate-broker",
        17_900,
        "one story, of a session and its connection, is in many of its files",
    ),
];

/// Crates of the workspace that have grown beyond their limit.
pub(crate) fn violations() -> anyhow::Result<Vec<String>> {
    let mut lines = BTreeMap::new();
    for file in crate::house::tracked()? {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let ["crates", name, ..] = parts[..] else { continue };
        let is_rust = file.extension().is_some_and(|extension| extension == "rs");
        if is_rust
            && is_of_the_product(&file)
            && let Some(text) = crate::house::text_of(&file)?
        {
            *lines.entry(name.to_owned()).or_default() += lines_of(&text);
        }
    }
    Ok(judge(&lines, LIMITS))
}

fn is_of_the_product(file: &Path) -> bool {
    let folder = file.parent().into_iter().flat_map(Path::iter);
    let mut folder = folder.filter_map(|part| part.to_str());
    !file.ends_with("tests.rs")
        && !folder.any(|part| ["benches", "examples", "tests"].contains(&part))
}

/// Lines up to the module of tests, which stands last in a file.
fn lines_of(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with("mod tests {");
    lines.windows(2).position(tests).unwrap_or(lines.len())
}

fn judge(lines: &BTreeMap<String, usize>, limits: &[(&str, usize, &str)]) -> Vec<String> {
    let limit = |name: &str| {
        let own = limits.iter().find(|(limited, ..)| *limited == name);
        own.map_or(LINES_MAX, |(_, most, _)| *most)
    };
    let over = lines.iter().filter(|(name, count)| **count > limit(name));
    over.map(|(name, count)| {
        let most = limit(name);
        format!(
            "{name} has {count} lines without its tests, and {most} are allowed: cut it by its nouns, and give the part a row in RULES of xtask/src/layers.rs"
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_beyond_its_limit_is_named() {
        let lines = |small: usize, other: usize| {
            BTreeMap::from([("small".to_owned(), small), ("other".to_owned(), other)])
        };
        let limits = [("small", 10, "it is small")];
        assert_eq!(judge(&lines(10, LINES_MAX), &limits), [""; 0]);
        let found = judge(&lines(11, LINES_MAX + 1), &limits);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("other has 16001 lines without its tests, and 16000 are"));
        assert!(found[1].starts_with("small has 11 lines without its tests, and 10 are"));
    }

    #[test]
    fn tests_do_not_count() {
        assert_eq!(lines_of("//! A\n\nfn a() {}\n"), 3);
        assert_eq!(lines_of("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"), 1);
        assert_eq!(lines_of("#[cfg(test)]\nmod tests;\nfn a() {}\n"), 3);
        for (file, counts) in [
            ("crates/a/src/b.rs", true),
            ("crates/a/build.rs", true),
            ("crates/a/src/b/tests.rs", false),
            ("crates/a/src/tests/b.rs", false),
            ("crates/a/tests/it/main.rs", false),
            ("crates/a/benches/b.rs", false),
            ("crates/a/src/contests.rs", true),
        ] {
            assert_eq!(is_of_the_product(Path::new(file)), counts, "{file}");
        }
    }
}
