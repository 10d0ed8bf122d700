//! Why there is no configuration.

use std::{io, path::PathBuf};

use tidegate_api::ApiError;
use tidegate_message::{Code, suggest::nearest};

use super::{
    Origin,
    problems::{Problem, Problems},
};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file or folder cannot be read.
    #[error("{} cannot be read", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file holds nothing.
    #[error(
        "{} is empty, as a file is that was cut while it was written, and would set every key to its default; write it again, or, if that is meant, \
         begin it with a comment (# defaults)",
        .path.display()
    )]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// A file is no TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where it stops being TOML.
        origin: Origin,
        /// The parser's message.
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
    #[error("{origin}: there is no section [{section}]; {}choose one of: {known}", section_meant(.section, .known))]
    UnknownSection {
        /// Where.
        origin: Origin,
        /// The section as written.
        section: String,
        /// The known sections.
        known: &'static str,
    },
    /// There is no such key in the section.
    #[error("{origin}: [{section}] has no {key:?}; {}choose one of: {known}", key_meant(.key, .known))]
    UnknownKey {
        /// Where.
        origin: Origin,
        /// The section.
        section: String,
        /// The key as written.
        key: String,
        /// The known keys.
        known: &'static str,
    },
    /// The value is not of the kind.
    #[error("{origin}: {key}: {problem}")]
    Value {
        /// Where.
        origin: Origin,
        /// `section.key`.
        key: String,
        /// The requirement.
        problem: String,
    },
    /// The value is out of its range.
    #[error("{}{key} must be {bound}", .origin.as_ref().map(|at| format!("{at}: ")).unwrap_or_default())]
    Bound {
        /// Where, none if another setting made the default wrong.
        origin: Option<Origin>,
        /// `section.key`.
        key: String,
        /// The range.
        bound: &'static str,
    },
    /// Several of these.
    #[error("{}", .all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several {
        /// Each, in the order in which they were found.
        all: Vec<ConfigError>,
    },
    /// A flag that is no setting.
    #[error("--set {name} is not of the form section.key=value")]
    Flag {
        /// The text as written, up to its value.
        name: String,
    },
}

impl ConfigError {
    /// All of them as one; none if there is none.
    pub(super) fn of_all(mut all: Vec<Self>) -> Option<Self> {
        match all.len() {
            0 | 1 => all.pop(),
            _ => Some(Self::Several { all }),
        }
    }

    /// Whether some settings are unknown because of it.
    pub fn hides_settings(&self) -> bool {
        match self {
            Self::Read { .. } | Self::Empty { .. } | Self::Syntax { .. } => true,
            Self::Several { all } => all.iter().any(Self::hides_settings),
            _ => false,
        }
    }

    /// Each mistake, with its place.
    pub fn problems(&self) -> Problems {
        let one = |error: &Self| {
            Problem::new(Code::CONFIG_INVALID, &tidegate_message::error_chain(error))
        };
        let problems: Vec<Problem> = match self {
            Self::Several { all } => all.iter().map(one).collect(),
            error => vec![one(error)],
        };
        problems.into()
    }
}

/// The section that was probably meant, as the beginning of what follows.
fn section_meant(section: &str, known: &str) -> String {
    let (prefix, name) = section.rsplit_once('.').unwrap_or((section, ""));
    let plain = known.split(' ').filter(|section| !section.ends_with(".NAME"));
    let named = known.split(' ').filter_map(|section| section.strip_suffix(".NAME"));
    let meant = match nearest(section, plain) {
        Some(section) => Some(section.to_owned()),
        None if name.is_empty() => nearest(prefix, named).map(|prefix| format!("{prefix}.NAME")),
        None => nearest(prefix, named).map(|prefix| format!("{prefix}.{name}")),
    };
    meant.map(|section| format!("did you mean [{section}]? ")).unwrap_or_default()
}

/// The key that was probably meant, in the same way.
fn key_meant(key: &str, known: &str) -> String {
    nearest(key, known.split(' ')).map(|key| format!("did you mean {key:?}? ")).unwrap_or_default()
}

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> Self {
        let wrong = error.problems().refuse();
        wrong.expect_err("an error is at least one mistake")
    }
}
