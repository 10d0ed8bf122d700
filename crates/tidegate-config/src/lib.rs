//! Configuration: `tidegate.toml`, `conf.d/*.toml` next to it, variables and flags, in this order.
//!
//! ```text
//!  defaults ◀─ tidegate.toml ◀─ conf.d/*.toml ◀─ TIDEGATE__SECTION__KEY ◀─ --set section.key=value
//! ```
//!
//! Always true: a loaded configuration is checked, and code past [`Config::load`] cannot see a bad value; an
//! unknown section or key is an error that names the file and the line; a printed [`Config`] loads to the
//! same, or is refused where a secret was hidden; no error and no origin shows a value that may hold one.

mod error;
mod layers;
pub mod problems;
#[macro_use]
mod table;
mod sections;
mod value;
pub mod words;
pub mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
};

use self::layers::Setting;
pub use self::{
    error::ConfigError, layers::Origin, problems::Purpose, sections::*, table::Difference,
    table::Misplaced,
};
pub use tidegate_message::quantity::ByteCount;

/// The file that is read when none is named.
pub const FILE: &str = "tidegate.toml";
/// The file that is read when [`FILE`] is not in the current folder.
pub const FILE_SYSTEM: &str = "/etc/tidegate/tidegate.toml";
/// The variable that names another file.
pub const FILE_VARIABLE: &str = "TIDEGATE_CONFIG";

impl Config {
    /// The configuration of this process: `path`, or the file that [`FILE_VARIABLE`] names, or [`FILE`], or
    /// [`FILE_SYSTEM`], or no file; then the variables; then `flags`, each `section.key=value`.
    ///
    /// # Errors
    /// [`ConfigError`], which names the place and the way out. A named file must exist.
    pub fn load(path: Option<&Path>, flags: &[String]) -> Result<Self, ConfigError> {
        let (config, wrong) = Self::load_all(path, flags);
        wrong.map_or(Ok(config), Err)
    }

    /// The same with the settings that are right, whether or not others are wrong.
    pub fn load_all(path: Option<&Path>, flags: &[String]) -> (Self, Option<ConfigError>) {
        Self::load_file(named(path).or_else(usual), flags)
    }

    /// The same for a site that is to begin: a file that is named need not exist, and stands nevertheless for its folder. Also which file
    /// that is.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn load_or_begin(
        path: Option<&Path>,
        flags: &[String],
    ) -> Result<(Self, PathBuf), ConfigError> {
        let named = named(path);
        let file = named.or_else(usual).unwrap_or_else(|| FILE.into());
        let is_there = fs::symlink_metadata(&file).is_ok();
        let (mut config, wrong) = Self::load_file(is_there.then(|| file.clone()), flags);
        if !is_there {
            config.begin_at(&file);
        }
        wrong.map_or(Ok((config, file)), Err)
    }

    fn load_file(file: Option<PathBuf>, flags: &[String]) -> (Self, Option<ConfigError>) {
        let mut wrong = Vec::new();
        let mut settings = match &file {
            Some(path) => layers::files(path, &mut wrong),
            None => Vec::new(),
        };
        settings.extend(layers::variables(
            env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
        ));
        for text in flags {
            match layers::flag(text) {
                Ok(setting) => settings.push(setting),
                Err(error) => wrong.push(error),
            }
        }
        let (mut config, wrong) = Self::of_settings(settings, wrong);
        if let Some(file) = file {
            config.begin_at(&file);
        }
        (config, wrong)
    }

    /// Sets the defaults that depend on the file at `path`: the data folder is next to it unless it is named.
    fn begin_at(&mut self, path: &Path) {
        if self.origins.of("node.data_dir").is_none() {
            let folder = path.parent().unwrap_or(Path::new(""));
            self.node.data_dir = folder.join(NodeSection::default().data_dir);
        }
        self.origins.file = Some(path.to_owned());
    }

    /// Whether nothing but MQTT and what belongs to it is asked for: there is no file, no certificate was ever made, and no variable or
    /// flag sets what needs one.
    pub fn is_mqtt_alone(&self) -> bool {
        // Sections of what others reach by the node's certificate.
        const OF_SITE: [&str; 11] = [
            "camera", "detect", "fabric", "frames", "link", "mez_pi", "privacy", "uplink",
            "vision", "web", "workers",
        ];
        let is_of_site = |name: &String| match name.split('.').next().unwrap_or_default() {
            "node" => !["node.data_dir", "node.health_listen"].contains(&&**name),
            section => OF_SITE.contains(&section),
        };
        !self.has_file()
            && self.mqtt.enabled
            && fs::symlink_metadata(self.pki_dir()).is_err()
            && !self.origins.settings.keys().any(is_of_site)
    }

    /// A command of this program that goes by the same configuration, for people to type.
    pub fn command(&self, rest: &str) -> String {
        let mut text = "tidegate ".to_owned();
        let file = self.origins.file.as_deref();
        if let Some(file) = file.filter(|file| ![FILE, FILE_SYSTEM].map(Path::new).contains(file)) {
            text.push_str(&format!("--config {} ", file.display()));
        }
        if let Some(Origin::Flag(flag)) = self.origins.of("node.data_dir") {
            text.push_str(&format!("{flag}={} ", self.node.data_dir.display()));
        }
        text + rest
    }

    /// The commands that make a certificate of that kind and name, for people to type.
    pub fn how_to_certify(&self, kind: &str, name: &str) -> String {
        let init = self.command(&format!("init --{kind} {name}"));
        let kinds = if kind == "camera" { String::new() } else { format!(" --kind {kind}") };
        format!(
            "`{init}` makes it on the machine of the site's authority; on another one `tidegate invite {name}{kinds}` there and `tidegate join` here"
        )
    }

    /// The file that was read first, if any was.
    pub fn file(&self) -> Option<&Path> {
        self.origins.file.as_deref()
    }

    /// Whether settings come from files, the first of which is there.
    pub fn has_file(&self) -> bool {
        self.origins.file.as_deref().is_some_and(|file| fs::symlink_metadata(file).is_ok())
    }

    /// The configuration in one TOML text that stands in `path`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut wrong = Vec::new();
        let settings = layers::file(path, text, &mut wrong);
        let (config, wrong) = Self::of_settings(settings, wrong);
        wrong.map_or(Ok(config), Err)
    }

    /// Folder of the certificates: `pki` in the data folder.
    pub fn pki_dir(&self) -> PathBuf {
        self.node.data_dir.join("pki")
    }

    /// Folder of the characterization tables that this node has: `frames.tables_dir`, or `tables` in the data folder if that is there.
    pub fn tables_dir(&self) -> Option<PathBuf> {
        let usual = || Some(self.usual_tables_dir()).filter(|folder| folder.is_dir());
        self.frames.tables_dir.clone().or_else(usual)
    }

    /// Where those are if `frames.tables_dir` says nothing.
    pub fn usual_tables_dir(&self) -> PathBuf {
        self.node.data_dir.join("tables")
    }

    /// Folder of what this node keeps for itself: `state` in the data folder.
    pub fn state_dir(&self) -> PathBuf {
        self.node.data_dir.join("state")
    }

    /// The configuration of `settings` over the defaults; `wrong` has their earlier problems.
    fn of_settings(
        settings: Vec<Setting>,
        mut wrong: Vec<ConfigError>,
    ) -> (Self, Option<ConfigError>) {
        let mut config = Self::default();
        // The settings of a file that cannot be read are unknown, and bounds between settings would be of other ones.
        let are_known = !wrong.iter().any(ConfigError::hides_settings);
        // A configuration that names a listener names all of them.
        if settings.iter().any(|setting| setting.section.starts_with("mqtt.listener.")) {
            config.mqtt_listeners.clear();
        }
        let mut unknown = BTreeSet::new();
        let sections: BTreeSet<String> =
            settings.iter().map(|setting| setting.section.clone()).collect();
        for setting in settings {
            let holds_others = setting.key.is_empty()
                && sections.iter().any(|section| {
                    section.strip_prefix(&setting.section).is_some_and(|rest| rest.starts_with('.'))
                });
            match config.set(setting) {
                Ok(()) => {}
                // All of a section that is unknown is, and where it only holds others they are named.
                Err(ConfigError::UnknownSection { section, .. })
                    if holds_others || unknown.contains(&section) => {}
                Err(error) => {
                    if let ConfigError::UnknownSection { section, .. } = &error {
                        unknown.insert(section.clone());
                    }
                    wrong.push(error);
                }
            }
        }
        if are_known {
            wrong.extend(config.check());
        }
        (config, ConfigError::of_all(wrong))
    }
}

/// Where settings were written, by `section.key`; those that are not here are defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origins {
    settings: BTreeMap<String, Origin>,
    /// Where each section begins.
    sections: BTreeMap<String, Origin>,
    /// The file that was read first, none if none was.
    file: Option<PathBuf>,
}

/// The file that is named by a flag or the variable.
fn named(path: Option<&Path>) -> Option<PathBuf> {
    path.map(Path::to_owned).or_else(|| env::var_os(FILE_VARIABLE).map(Into::into))
}

/// The file that is read where none is named.
fn usual() -> Option<PathBuf> {
    [FILE, FILE_SYSTEM].iter().map(PathBuf::from).find(|path| path.exists())
}

impl Origins {
    /// Where `section.key` was written, none if it is the default.
    pub fn of(&self, name: &str) -> Option<&Origin> {
        self.settings.get(name)
    }

    /// Notes where a section begins; a file that comes later only adds to it.
    fn begin(&mut self, section: &str, origin: &Origin) {
        self.sections.entry(section.to_owned()).or_insert_with(|| origin.clone());
    }

    /// Where `section` begins, none if nothing was written in it.
    pub fn section(&self, section: &str) -> Option<Origin> {
        self.sections.get(section).cloned()
    }

    /// Where the setting was written that `text` names; the section that it names, if none of its settings is.
    pub fn named_in(&self, text: &str) -> Option<&Origin> {
        let setting = earliest(text, &self.settings, false);
        let section = earliest(text, &self.sections, true);
        match (setting, section) {
            (Some((at, _, origin)), Some((begin, ..))) if at <= begin => Some(origin),
            (_, Some((begin, section, origin))) => {
                // `sink.x cannot be: url is …` names a key without its section.
                let words = text[begin + section.len()..]
                    .split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let mut keys = words.map(|word| format!("{section}.{word}"));
                keys.find_map(|key| self.settings.get(&key)).or(Some(origin))
            }
            (Some((.., origin)), None) => Some(origin),
            (None, None) => None,
        }
    }
}

/// Which of `names` comes first in `text`, and where; the longest of several. It stands there as a whole, with a key behind it if it
/// is that of a section.
fn earliest<'n>(
    text: &str,
    names: &'n BTreeMap<String, Origin>,
    are_sections: bool,
) -> Option<(usize, &'n str, &'n Origin)> {
    let is_part = |c: char| c.is_alphanumeric() || "_-".contains(c);
    let is_whole = |at: usize, name: &str| {
        let mut after = text[at + name.len()..].chars();
        let ends = match after.next() {
            Some('.') => are_sections || !after.next().is_some_and(is_part),
            next => !next.is_some_and(is_part),
        };
        ends && !text[..at].ends_with(|c| is_part(c) || "./".contains(c))
    };
    let found = names.iter().filter(|(name, _)| name.contains('.')).filter_map(|(name, origin)| {
        let mut places = text.match_indices(&**name).map(|(at, _)| at);
        Some((places.find(|at| is_whole(*at, name))?, &**name, origin))
    });
    found.min_by_key(|(at, name, _)| (*at, usize::MAX - name.len()))
}

#[cfg(test)]
mod tests;
