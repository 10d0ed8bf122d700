//! `cargo xtask licences`: the part of deny.toml that needs no further tool and no network.
//!
//! `cargo deny` reads the same file and knows more (advisories, duplicates); building it takes longer than the rest of
//! `make check`, so it runs only where it is installed.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, ExitCode, Stdio},
};

use anyhow::Context as _;
use serde::Deserialize;

use crate::metadata::Metadata;

/// The fields of deny.toml that are read here.
#[derive(Debug, Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    #[serde(default)]
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// Checks every dependency of the workspace, those of its tests included.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let metadata = Metadata::read()?;
    let path = metadata.workspace_root.join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let deny: Deny =
        toml::from_str(&text).with_context(|| format!("parsing {}", path.display()))?;
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let name = format!("{} {}", package.name, package.version);
        violations.extend(
            licence(&deny.licenses, &package.name, package.license.as_deref())
                .map(|why| format!("{name} {why}")),
        );
        if let Some(ban) = deny.bans.deny.iter().find(|ban| ban.name == package.name) {
            violations.push(format!("{name} is banned: {}", ban.reason));
        }
        if let Some(source) = &package.source {
            let registry = source.strip_prefix("registry+").unwrap_or(source);
            if !deny.sources.allow_registry.iter().any(|allowed| allowed == registry) {
                violations
                    .push(format!("{name} comes from {source}, which deny.toml does not allow"));
            }
        }
    }
    violations.extend(cargo_deny()?);
    let well = format!("{} crates, all licensed, sourced and allowed", metadata.packages.len());
    Ok(crate::verdict("licences", &well, &violations))
}

/// The violations that `cargo deny` finds, where it is installed.
fn cargo_deny() -> anyhow::Result<Option<String>> {
    let is_installed = Command::new("cargo-deny")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !is_installed {
        return Ok(None);
    }
    // Advisories need the network and change from day to day: they are checked by `cargo deny check`.
    let status = Command::new("cargo-deny")
        .args(["--log-level", "error", "check", "licenses", "bans", "sources"])
        .status()
        .context("running cargo deny")?;
    Ok((!status.success()).then(|| "cargo deny has objections, see above".to_owned()))
}

fn licence(licenses: &Licenses, name: &str, expression: Option<&str>) -> Option<String> {
    let Some(expression) = expression else {
        return Some(
            "names no licence: add it to [[licenses.exceptions]] after reading its text".to_owned(),
        );
    };
    let exception = licenses.exceptions.iter().find(|exception| exception.name == name);
    let is_allowed = |licence: &str| {
        licenses.allow.contains(licence)
            || exception.is_some_and(|exception| exception.allow.contains(licence))
    };
    match satisfies(expression, &is_allowed) {
        Some(true) => None,
        Some(false) => Some(format!("is under {expression}, which deny.toml does not allow")),
        None => Some(format!("has a licence that does not parse: {expression:?}")),
    }
}

/// Whether an SPDX expression can be met with allowed licences; `None` when it is not one. `AND` binds tighter than `OR`, and
/// the old `MIT/Apache-2.0` means `OR`.
fn satisfies(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let met = any(&mut rest, is_allowed)?;
    rest.is_empty().then_some(met)
}

fn any(words: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut met = all(words, is_allowed)?;
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        met |= all(words, is_allowed)?;
    }
    Some(met)
}

fn all(words: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut met = one(words, is_allowed)?;
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        met &= one(words, is_allowed)?;
    }
    Some(met)
}

fn one(words: &mut &[&str], is_allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let (&first, rest) = words.split_first()?;
    *words = rest;
    if first == "(" {
        let met = any(words, is_allowed)?;
        let (&closing, rest) = words.split_first()?;
        *words = rest;
        return (closing == ")").then_some(met);
    }
    if matches!(first, ")" | "AND" | "OR" | "WITH") {
        return None;
    }
    if let Some((&"WITH", rest)) = words.split_first() {
        let (&exception, rest) = rest.split_first()?;
        *words = rest;
        return Some(is_allowed(&format!("{first} WITH {exception}")));
    }
    Some(is_allowed(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_does() {
        let is_allowed = |licence: &str| {
            matches!(licence, "MIT" | "Apache-2.0" | "ISC" | "Apache-2.0 WITH LLVM-exception")
        };
        for (expression, expected) in [
            ("MIT", Some(true)),
            ("GPL-3.0-only", Some(false)),
            ("MIT OR GPL-3.0-only", Some(true)),
            ("MIT AND GPL-3.0-only", Some(false)),
            ("MIT/Apache-2.0", Some(true)),
            ("GPL-2.0-only AND MIT OR ISC", Some(true)), // AND binds tighter
            ("GPL-2.0-only AND (MIT OR ISC)", Some(false)),
            ("(MIT OR GPL-2.0-only) AND ISC", Some(true)),
            ("Apache-2.0 WITH LLVM-exception", Some(true)),
            ("MIT WITH LLVM-exception", Some(false)),
            ("", None),
            ("MIT OR", None),
            ("MIT ISC", None),
            ("(MIT", None),
            ("MIT)", None),
        ] {
            assert_eq!(satisfies(expression, &is_allowed), expected, "{expression:?}");
        }
    }

    #[test]
    fn an_exception_holds_for_its_crate_alone() {
        let licenses = Licenses {
            allow: BTreeSet::from(["MIT".to_owned()]),
            exceptions: vec![Exception {
                name: "jpeg".to_owned(),
                allow: BTreeSet::from(["IJG".to_owned()]),
            }],
        };
        assert_eq!(licence(&licenses, "jpeg", Some("MIT AND IJG")), None);
        assert!(licence(&licenses, "other", Some("MIT AND IJG")).unwrap().contains("MIT AND IJG"));
        assert!(licence(&licenses, "silent", None).unwrap().contains("names no licence"));
    }
}
