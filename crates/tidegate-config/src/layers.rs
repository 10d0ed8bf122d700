//! Where settings come from: files, variables and flags, each with a name to blame.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use tidegate_sys::regular;
use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// One setting as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) section: String,
    /// Empty for a section without a key, which is checked all the same.
    pub(super) key: String,
    pub(super) text: String,
    pub(super) origin: Origin,
}

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file, counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// `--set` and the setting that it sets; the value may be a secret.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// The settings of one TOML text; its problems are added to `wrong`. Of a text that is no TOML there are none.
pub(super) fn file(path: &Path, text: &str, wrong: &mut Vec<ConfigError>) -> Vec<Setting> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let origin = |at: usize| Origin::File { path: path.to_owned(), line: line(at) };
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let place = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        let mut errors: Vec<_> = errors.iter().map(|error| (place(error), error)).collect();
        errors.sort_by_key(|(at, _)| *at);
        // Later mistakes on one line follow from its first, and those of a section that is there twice from its head.
        let head = |at: usize| text[..at].rfind("\n[").map_or(1, |end| line(end + 1));
        errors.dedup_by(|(later, _), (earlier, error)| {
            let is_head_twice = error.message() == TWICE && head(*earlier) == line(*earlier);
            line(*later) == line(*earlier) || (is_head_twice && head(*later) == head(*earlier))
        });
        let errors = errors.into_iter().map(|(at, error)| (at, mistake(text, error)));
        wrong.extend(
            errors.map(|(at, message)| ConfigError::Syntax { origin: origin(at), message }),
        );
        return Vec::new();
    }
    let mut settings = Vec::new();
    for (section, value) in root.get_ref() {
        let at = origin(section.span().start);
        let DeValue::Table(table) = value.get_ref() else {
            wrong.push(ConfigError::NoSection { origin: at, key: section.get_ref().to_string() });
            continue;
        };
        section_settings(section.get_ref().to_string(), at, table, &origin, &mut settings, wrong);
    }
    // The parser sorts by name; a later setting in the file is to be blamed later.
    settings.sort_by_key(|setting| match setting.origin {
        Origin::File { line, .. } => line,
        _ => 0,
    });
    settings
}

/// The parser's message of a key that is there already.
const TWICE: &str = "duplicate key";

/// The parser's message, with the key where one is there twice.
fn mistake(text: &str, error: &toml::de::Error) -> String {
    match (error.message(), error.span().and_then(|span| text.get(span))) {
        (TWICE, Some(key)) => {
            format!("{key} is there a second time; take one of the two out")
        }
        (message, _) => message.to_owned(),
    }
}

/// The settings of one section, then of those below it, such as `[mqtt.listener.main]` below `[mqtt]`.
fn section_settings(
    section: String,
    at: Origin,
    table: &DeTable<'_>,
    origin: &impl Fn(usize) -> Origin,
    settings: &mut Vec<Setting>,
    wrong: &mut Vec<ConfigError>,
) {
    settings.push(Setting {
        section: section.clone(),
        key: String::new(),
        text: String::new(),
        origin: at,
    });
    for (key, value) in table {
        let at = origin(key.span().start);
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(choice) => choice.to_string(),
            DeValue::Table(below) => {
                let section = format!("{section}.{}", key.get_ref());
                section_settings(section, at, below, origin, settings, wrong);
                continue;
            }
            DeValue::Datetime(_) | DeValue::Array(_) => {
                wrong.push(ConfigError::Value {
                    origin: at,
                    key: format!("{section}.{}", key.get_ref()),
                    problem: "a text or a number is needed".to_owned(),
                });
                continue;
            }
        };
        let (section, key) = (section.clone(), key.get_ref().to_string());
        settings.push(Setting { section, key, text, origin: at });
    }
}

/// The settings of `path` and of every `*.toml` in `conf.d` next to it, in order of their names.
pub(super) fn files(path: &Path, wrong: &mut Vec<ConfigError>) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut read = |path: &Path, wrong: &mut Vec<ConfigError>| match regular::read_to_string(path) {
        Ok(text) if is_blank(&text) => wrong.push(ConfigError::Empty { path: path.to_owned() }),
        Ok(text) => settings.extend(file(path, &text, wrong)),
        Err(source) => wrong.push(ConfigError::Read { path: path.to_owned(), source }),
    };
    read(path, wrong);
    let folder = path.with_file_name("conf.d");
    let entries = fs::read_dir(&folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<PathBuf>>>()
    });
    match entries {
        Ok(mut paths) => {
            paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
            paths.sort();
            for path in paths {
                read(&path, wrong);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => wrong.push(ConfigError::Read { path: folder, source }),
    }
    settings
}

/// Whether a file holds nothing that a hand wrote: some file systems leave zeros where a write was cut. A start refuses it as a reload does,
/// since the power that cut the write ended the node as well. A comment says that defaults are meant.
fn is_blank(text: &str) -> bool {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\0' | '\u{feff}')).is_empty()
}

/// The settings among the variables: `TIDEGATE__SECTION__KEY`, with sections below sections parted in the same way.
pub(super) fn variables(all: impl IntoIterator<Item = (String, String)>) -> Vec<Setting> {
    let mut settings: Vec<Setting> = all
        .into_iter()
        .filter_map(|(name, text)| {
            let (section, key) = name.strip_prefix("TIDEGATE__")?.rsplit_once("__")?;
            let (section, key) = (section.to_lowercase().replace("__", "."), key.to_lowercase());
            Some(Setting { section, key, text, origin: Origin::Variable(name) })
        })
        .collect();
    settings.sort_by(|a, b| (&a.section, &a.key).cmp(&(&b.section, &b.key)));
    settings
}

/// The setting of `--set section.key=value`.
pub(super) fn flag(text: &str) -> Result<Setting, ConfigError> {
    let parts =
        text.split_once('=').and_then(|(name, value)| Some((name.rsplit_once('.')?, value)));
    let ((section, key), value) = parts.ok_or_else(|| {
        // Its value may be a secret.
        ConfigError::Flag { name: text.split('=').next().unwrap_or_default().to_owned() }
    })?;
    Ok(Setting {
        section: section.trim().to_owned(),
        key: key.trim().to_owned(),
        text: value.trim().to_owned(),
        origin: Origin::Flag(format!("--set {}.{}", section.trim(), key.trim())),
    })
}
