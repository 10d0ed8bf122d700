//! The rules of a node, a line each, to be compared with those of another node.
//!
//! ```text
//!  password file ─▶ user ada          │ may log in by password
//!  ACL file      ─▶ acl user ada      │ topic readwrite home/#; topic deny home/safe/#
//!  roles file    ─▶ role viewer       │ subscribe = ["home/#"], deny.subscribe = ["home/safe/#"]
//! ```
//!
//! Always true: no secret is among them; order, comments and blank space of a file do not count.

use std::{collections::BTreeMap, fmt::Write as _};

use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

/// Characters of a text at most. Of a longer one the begin is listed, and the hash of the whole.
const TEXT_CHARS_MAX: usize = 4_096;

/// A text that is listed, in its bounds.
fn bounded(text: String) -> String {
    let Some((at, _)) = text.char_indices().nth(TEXT_CHARS_MAX - 80) else { return text };
    let mut short = text[..at].to_owned();
    short.push_str("… SHA-256 ");
    for byte in Sha256::digest(text.as_bytes()) {
        // A text takes what it is given.
        let _ = write!(short, "{byte:02x}");
    }
    short
}

/// The users of a password file.
pub(crate) fn users(users: Vec<String>, listed: &mut BTreeMap<String, String>) {
    let all =
        users.into_iter().map(|user| (format!("user {user}"), "may log in by password".to_owned()));
    listed.extend(all);
}

/// The lines of an ACL file, which was read before.
pub(crate) fn acl(text: &str, listed: &mut BTreeMap<String, String>) {
    let mut subject = "acl without a proof".to_owned();
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once(' ') {
            Some(("user", name)) => subject = format!("acl user {name}"),
            Some(("pattern", rule)) => {
                lines.entry("acl pattern".to_owned()).or_default().push(rule.to_owned());
            }
            _ => lines.entry(subject.clone()).or_default().push(line),
        }
    }
    for (subject, mut lines) in lines {
        // A deny wins wherever it stands, so that order says nothing.
        lines.sort_unstable();
        listed.insert(subject, bounded(lines.join("; ")));
    }
}

/// The tables of a roles file, which was read before: one without a name of its own by itself, of others each name.
pub(crate) fn roles(text: &str, listed: &mut BTreeMap<String, String>) {
    let Ok(file) = text.parse::<Table>() else { return };
    for (kind, value) in file {
        match value {
            Value::Table(named) if matches!(&*kind, "authenticated" | "anonymous") => {
                listed.insert(kind, bounded(line(&named)));
            }
            Value::Table(named) => {
                for (name, value) in named {
                    let text = match &value {
                        Value::Table(table) => line(table),
                        value => said(value),
                    };
                    listed.insert(format!("{kind} {name}"), bounded(text));
                }
            }
            value => {
                listed.insert(kind, bounded(said(&value)));
            }
        }
    }
}

/// The keys of a table on one line.
fn line(table: &Table) -> String {
    let mut parts = Vec::new();
    gather("", table, &mut parts);
    parts.sort_unstable();
    parts.join(", ")
}

fn gather(before: &str, table: &Table, parts: &mut Vec<String>) {
    for (key, value) in table {
        match value {
            Value::Table(inner) => gather(&format!("{before}{key}."), inner, parts),
            value => parts.push(format!("{before}{key} = {}", said(value))),
        }
    }
}

/// A value as text. The order of a list says nothing in a roles file.
fn said(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", text.escape_debug()),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is_so) => is_so.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(values) => {
            let mut all: Vec<String> = values.iter().map(said).collect();
            all.sort_unstable();
            format!("[{}]", all.join(", "))
        }
        Value::Table(table) => format!("{{ {} }}", line(table)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl_of(text: &str) -> BTreeMap<String, String> {
        let mut listed = BTreeMap::new();
        acl(text, &mut listed);
        listed
    }

    fn roles_of(text: &str) -> BTreeMap<String, String> {
        let mut listed = BTreeMap::new();
        roles(text, &mut listed);
        listed
    }

    #[test]
    fn order_and_blank_space_do_not_count_and_words_do() {
        let one = "topic read news/#\n\nuser ada\ntopic home/#\n topic  deny home/safe/#\npattern write dev/%c\n";
        let other = "# rules\npattern write dev/%c\ntopic read news/#\nuser ada\ntopic deny home/safe/#\ntopic home/#";
        assert_eq!(acl_of(one), acl_of(other));
        assert_eq!(acl_of(one)["acl user ada"], "topic deny home/safe/#; topic home/#");
        assert_eq!(acl_of(one).len(), 3);
        assert_ne!(acl_of(one), acl_of(&one.replace("deny home", "deny hom")));

        let one = "[role.viewer]\nsubscribe = [\"a\", \"b\"]\n[role.viewer.deny]\nsubscribe = [\"c\"]\n[anonymous]\nroles = [\"viewer\"]\n";
        let other = "[anonymous]\nroles=[\"viewer\"]\n[role.viewer]\ndeny.subscribe = [\"c\"]\nsubscribe = [\"b\",\"a\"]\n";
        assert_eq!(roles_of(one), roles_of(other));
        assert_eq!(
            roles_of(one)["role viewer"],
            "deny.subscribe = [\"c\"], subscribe = [\"a\", \"b\"]"
        );
        assert_eq!(roles_of(one)["anonymous"], "roles = [\"viewer\"]");
    }

    #[test]
    fn long_text_is_cut_and_still_another_one() {
        let long = |end: &str| bounded(format!("{}{end}", "a".repeat(10_000)));
        assert!(long("x").chars().count() <= TEXT_CHARS_MAX);
        assert_ne!(long("x"), long("y"));
        assert_eq!(bounded("short".to_owned()), "short");
    }
}
