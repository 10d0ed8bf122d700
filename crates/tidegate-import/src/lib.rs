//! `tidegate config import-mosquitto`: the settings of a `mosquitto.conf` (2.0, 2.1) as sections of `tidegate.toml`.
//!
//! Always true: a value is read as Mosquitto reads it; every line with a setting is translated or listed with the reason why not;
//! a listener or a bridge whose protection cannot be translated, or has a line with which Mosquitto would not start, is left out;
//! a setting that allows more than Mosquitto did, or works otherwise without an error, is a warning; values that may be secret
//! are not repeated.

mod bridges;
mod general;
mod keys;
mod lines;
mod listeners;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    fs, io,
    path::{Path, PathBuf},
};

use tidegate_config::{ID_PREFIX_BOUND, is_id_prefix};
use tidegate_sys::regular;

use self::{bridges::Bridge, listeners::Section};

/// The result of importing a `mosquitto.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Sections `[mqtt]`, `[mqtt.listener.NAME]` and `[mqtt.bridge.NAME]` for `tidegate.toml`.
    pub toml: String,
    /// Passwords of bridges, each for a file of its own that only its owner may read.
    pub secrets: Vec<Secret>,
    /// Lines that are not translated, in order.
    pub untranslated: Vec<Untranslated>,
    /// Differences to before, and points to look at.
    pub warnings: Vec<String>,
}

/// A password, and the file that the translation looks for it in.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// The file.
    pub path: PathBuf,
    /// The password.
    pub text: String,
}

/// A line that is not translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslated {
    /// The file: the one that was named, or one of its `include_dir`.
    pub file: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// As written; a value that may be secret is left out.
    pub text: String,
    /// Why there is none, and what to do.
    pub why: String,
    /// Whether something is lost without it; false where it means nothing here, or where the same holds anyway.
    pub is_lost: bool,
}

/// Without the password.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Imported {
    /// Whether something of the file is neither translated nor needless.
    pub fn is_less(&self) -> bool {
        self.untranslated.iter().any(|line| line.is_lost)
    }
}

/// Translates a `mosquitto.conf` and what its `include_dir` holds. Passwords are to be put into `secrets`, a folder.
///
/// # Errors
/// The file, or one of that folder, cannot be read.
pub fn import_file(path: &Path, secrets: &Path) -> Result<Imported, ReadError> {
    let text = read_file(path)?;
    let mut import = Import::new(path, secrets);
    import.read(&text, Some(&files_of))?;
    Ok(import.write())
}

/// Translates the text of a `mosquitto.conf` that includes no others.
pub fn import(text: &str) -> Imported {
    let mut import = Import::new(Path::new("mosquitto.conf"), Path::new("/etc/tidegate"));
    import.read(text, None).expect("no file is read");
    import.write()
}

/// A file or folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}{} cannot be read", named(.named_at.as_ref()), .path.display())]
pub struct ReadError {
    /// Which.
    pub path: PathBuf,
    /// The file and the line, counted from 1, of the `include_dir` that leads to it; none of the first file.
    pub named_at: Option<(PathBuf, usize)>,
    /// The system's error.
    pub source: io::Error,
}

fn named(at: Option<&(PathBuf, usize)>) -> String {
    at.map(|(file, line)| format!("{}:{line}: ", file.display())).unwrap_or_default()
}

/// Comments may be in any encoding; a value that is no UTF-8 is seen by the character that stands in for it.
fn read_file(path: &Path) -> Result<String, ReadError> {
    let bytes = regular::read(path).map_err(|source| ReadError {
        path: path.to_owned(),
        named_at: None,
        source,
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The files of an `include_dir` that Mosquitto reads: `*.conf`, in its order.
fn files_of(folder: &Path) -> Result<Vec<(PathBuf, String)>, ReadError> {
    let failed = |source| ReadError { path: folder.to_owned(), named_at: None, source };
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    names.retain(|name| name.len() > ".conf".len() && name.ends_with(".conf"));
    // Letter by letter: without regard to case first, then with it.
    names.sort_by_cached_key(|name| {
        name.bytes().map(|byte| (byte.to_ascii_uppercase(), byte)).collect::<Vec<_>>()
    });
    names
        .into_iter()
        .map(|name| folder.join(name))
        .map(|path| Ok((path.clone(), read_file(&path)?)))
        .collect()
}

/// A file that does not exist: the node does not start before it is replaced by hand.
const BY_HAND: [(&str, &str); 2] =
    [("acl_file", "set-acl_file-by-hand"), ("password_file", "set-password_file-by-hand")];

#[derive(Debug, Default)]
struct Import {
    /// Where passwords are to be.
    secrets: PathBuf,
    kept: Vec<Secret>,
    per_listener: bool,
    /// The first is the default listener: the lines before any `listener` line.
    listeners: Vec<Section>,
    bridges: Vec<Bridge>,
    general: BTreeMap<&'static str, Setting>,
    /// Why no listener is opened.
    shut: Option<String>,
    /// Whether plugins decide who may do what.
    has_plugin: bool,
    untranslated: Vec<Untranslated>,
    warnings: Vec<String>,
    /// In the order in which they are read.
    files: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// Which of the files.
    file: usize,
    line: usize,
    text: String,
    value: String,
}

impl Import {
    fn new(path: &Path, secrets: &Path) -> Self {
        Self {
            secrets: secrets.to_owned(),
            listeners: vec![Section::default()],
            files: vec![path.to_owned()],
            ..Self::default()
        }
    }

    fn leave(&mut self, setting: &Setting, why: &str) {
        self.push(setting, why, true);
    }

    fn push(&mut self, setting: &Setting, why: &str, is_lost: bool) {
        let Setting { file, line, text, .. } = setting;
        self.untranslated.push(Untranslated {
            file: self.files[*file].clone(),
            line: *line,
            text: text.clone(),
            why: why.to_owned(),
            is_lost,
        });
    }

    fn write(mut self) -> Imported {
        let mut sections = std::mem::take(&mut self.listeners);
        let open: Vec<bool> = sections.iter().map(Section::is_open).collect();
        let local_only = !open.contains(&true);
        let mut body = String::new();
        let default = self.write_authentication(&sections, &open, local_only, &mut body);
        self.write_limits(&mut body);
        let mut listeners = String::new();
        if local_only && self.shut.is_none() {
            self.warnings.push(
                "no listener is set up: Mosquitto is then at 127.0.0.1:1883 only, and so is this one"
                    .to_owned(),
            );
            let _ = write!(
                listeners,
                "\n[mqtt.listener.tcp-1883]\nlisten = \"127.0.0.1:1883\"\nprotocol = \"tcp\"\n"
            );
        }
        let mut names = BTreeSet::new();
        for (section, open) in sections.iter_mut().zip(open) {
            if open {
                let shut = self.shut.clone().or_else(|| section.shut.clone());
                let written = match shut {
                    Some(why) => Err(why),
                    None => self.listener(section, default, &mut names),
                };
                match written {
                    Ok(text) => listeners.push_str(&text),
                    Err(why) => self.leave_out(section, &why),
                }
            }
        }
        let mut toml = String::from("[mqtt]\n");
        if listeners.is_empty() {
            // A configuration without listeners has one on loopback.
            toml.push_str("enabled = false\n");
            self.warnings.push(
                "no listener could be translated, so MQTT is not served: add one and take `enabled = false` out".to_owned(),
            );
        }
        toml.push_str(&body);
        toml.push_str(&listeners);
        let mut names = BTreeSet::new();
        for bridge in std::mem::take(&mut self.bridges) {
            toml.push_str(&self.bridge(&bridge, &mut names));
        }
        let order: BTreeMap<PathBuf, usize> = self.files.iter().cloned().zip(0..).collect();
        self.untranslated.sort_by_key(|line| (order.get(&line.file).copied(), line.line));
        Imported {
            toml,
            secrets: self.kept,
            untranslated: self.untranslated,
            warnings: self.warnings,
        }
    }

    /// Which identifiers clients are given that come without one.
    fn write_identifiers(
        &mut self,
        section: &Section,
        prefix: Option<&Setting>,
        toml: &mut String,
    ) {
        if section.value("allow_zero_length_clientid") == Some("false") {
            toml.push_str("allow_zero_length_clientid = false\n");
        }
        match prefix {
            Some(setting) if is_id_prefix(&setting.value) => {
                let _ = writeln!(toml, "auto_id_prefix = {}", quoted(&setting.value));
            }
            Some(setting) => self.leave(setting, &format!("here it is {ID_PREFIX_BOUND}")),
            None => {}
        }
    }
}

/// The words of a value up to a comment.
fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(' ').filter(|word| !word.is_empty()).take_while(|word| !word.starts_with('#'))
}

fn by_hand_note(key: &str, why: &str) -> String {
    format!(
        "{key} {why}: set mqtt.{key} by hand before the node is started, which does not start before"
    )
}

/// As a string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(letter));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;
