//! Configuration: `tidegate.toml`, `conf.d/*.toml` beside it, variables and flags, in this order.
//!
//! ```text
//!  defaults ◀─ tidegate.toml ◀─ conf.d/*.toml ◀─ TIDEGATE__SECTION__KEY ◀─ --set section.key=value
//! ```
//!
//! Always true: what is loaded is checked, and code past [`Config::load`] cannot see a bad value; an unknown
//! section or key is an error that names the file and the line; what [`Config`] prints loads to the same.

mod error;
mod layers;
#[macro_use]
mod table;
mod sections;
pub mod units;
mod value;

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
};

use self::layers::Setting;
pub use self::{error::ConfigError, layers::Origin, sections::*, units::ByteCount};

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
        let named = path.map(Path::to_owned).or_else(|| env::var_os(FILE_VARIABLE).map(Into::into));
        let usual = || [FILE, FILE_SYSTEM].iter().map(PathBuf::from).find(|path| path.exists());
        let mut settings = match named.or_else(usual) {
            Some(path) => layers::files(&path)?,
            None => Vec::new(),
        };
        settings.extend(layers::variables(
            env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
        ));
        for text in flags {
            settings.push(layers::flag(text)?);
        }
        Self::of_settings(settings)
    }

    /// The configuration in one TOML text that stands in `path`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::of_settings(layers::file(path, text)?)
    }

    /// Folder of the certificates: `pki` in the data folder.
    pub fn pki_dir(&self) -> PathBuf {
        self.node.data_dir.join("pki")
    }

    /// Folder of what this node keeps for itself: `state` in the data folder.
    pub fn state_dir(&self) -> PathBuf {
        self.node.data_dir.join("state")
    }

    fn of_settings(settings: impl IntoIterator<Item = Setting>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let settings: Vec<Setting> = settings.into_iter().collect();
        // Who names listeners names all of them.
        if settings.iter().any(|setting| setting.section.starts_with("mqtt.listener.")) {
            config.mqtt_listeners.clear();
        }
        for setting in settings {
            config.set(setting)?;
        }
        config.check()?;
        Ok(config)
    }
}

/// Where settings were written, by `section.key`; those that are not here are defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Where `section.key` was written, none if it is the default.
    pub fn of(&self, name: &str) -> Option<&Origin> {
        self.0.get(name)
    }
}

#[cfg(test)]
mod tests;
