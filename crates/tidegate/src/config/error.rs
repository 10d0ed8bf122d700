//! Why there is no configuration.

use std::{io, path::PathBuf};

use tidegate_client::ApiError;
use tidegate_message::Code;

use super::Origin;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file or folder cannot be read.
    #[error("{} cannot be read", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is no TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where it stops being TOML.
        origin: Origin,
        /// What the parser misses.
        message: String,
    },
    /// A key outside every section.
    #[error("{origin}: {key} stands in no section; begin with one such as [node]")]
    NoSection {
        /// Where.
        origin: Origin,
        /// The key.
        key: String,
    },
    /// There is no such section.
    #[error("{origin}: there is no section [{section}]; choose one of: {known}")]
    UnknownSection {
        /// Where.
        origin: Origin,
        /// What was written.
        section: String,
        /// What there is.
        known: &'static str,
    },
    /// There is no such key in the section.
    #[error("{origin}: [{section}] has no {key:?}; choose one of: {known}")]
    UnknownKey {
        /// Where.
        origin: Origin,
        /// The section.
        section: String,
        /// What was written.
        key: String,
        /// What there is.
        known: &'static str,
    },
    /// The value is not of the kind.
    #[error("{origin}: {key}: {problem}")]
    Value {
        /// Where.
        origin: Origin,
        /// `section.key`.
        key: String,
        /// What is needed.
        problem: String,
    },
    /// The value is out of its range.
    #[error("{}{key} must be {bound}", .origin.as_ref().map(|at| format!("{at}: ")).unwrap_or_default())]
    Bound {
        /// Where, none if another setting made the default wrong.
        origin: Option<Origin>,
        /// `section.key`.
        key: &'static str,
        /// The range.
        bound: &'static str,
    },
    /// A flag that is no setting.
    #[error("--set {text:?} is not of the form section.key=value")]
    Flag {
        /// What was written.
        text: String,
    },
}

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> Self {
        Self::new(Code::CONFIG_INVALID, "the configuration is wrong").caused_by(error)
    }
}
