//! A node's data folder, looked at without a running node and without changing anything.
//!
//! ```text
//!  configuration ─┐
//!  DATA_DIR/pki ──┼─▶ Examination: certificates, logs, findings ─▶ text or JSON
//!  DATA_DIR/log ──┤
//!  …/state/fabric ┘
//! ```
//!
//! Always true: nothing is written, renamed, removed or locked for longer than a look; no link is followed.

mod certificates;
mod fabric;
mod files;
mod keys;
mod logs;
mod text;

use std::path::{Path, PathBuf};

use serde::Serialize;
use tidegate_api::ApiError;
use tidegate_config::Config;
use tidegate_process::clock;

pub use self::{certificates::CertificateSummary, keys::node_keys, logs::LogSummary};

/// All that was found.
#[derive(Debug, Default, Serialize)]
pub struct Examination {
    /// The folder that was looked at.
    pub data_dir: PathBuf,
    /// The certificates in it.
    pub certificates: Vec<CertificateSummary>,
    /// The logs in it.
    pub logs: Vec<LogSummary>,
    /// The findings for an operator, problems first.
    pub findings: Vec<Finding>,
    /// To whom files are to belong.
    #[serde(skip)]
    user: u32,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The file or folder, or the configuration.
    pub path: PathBuf,
    /// The finding, and the way out.
    pub text: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something is lost, exposed, or will not work.
    Problem,
    /// Worth knowing.
    Note,
}

/// Looks at the data folder of the configuration; at that of the defaults if there is no configuration, which is then a finding.
pub fn examine(config: Result<Config, ApiError>) -> Examination {
    let mut found = Examination::default();
    let config = config.unwrap_or_else(|error| {
        found.problem("configuration", tidegate_message::error_chain(&error));
        Config::default()
    });
    found.data_dir.clone_from(&config.node.data_dir);
    let data_dir = config.node.data_dir.clone();
    if files::home(&mut found, &data_dir) {
        certificates::examine(&mut found, &config.pki_dir(), clock::now());
        let keys = match node_keys(&config.log) {
            Ok(keys) => keys,
            Err(error) => {
                let text = format!(
                    "{}; frames are kept in memory only",
                    tidegate_message::error_chain(&error)
                );
                found.problem("configuration", text);
                None
            }
        };
        logs::examine(&mut found, &data_dir.join("log"), config.log.at_rest, keys.as_ref());
        let is_member = config.fabric.enabled;
        fabric::examine(&mut found, &config.state_dir().join("fabric"), is_member);
    }
    found.findings.sort_by_key(|finding| finding.severity);
    found
}

impl Examination {
    /// Whether anything is wrong.
    pub fn has_problems(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Problem)
    }

    fn problem(&mut self, path: impl AsRef<Path>, text: impl Into<String>) {
        self.find(Severity::Problem, path.as_ref(), text.into());
    }

    fn note(&mut self, path: impl AsRef<Path>, text: impl Into<String>) {
        self.find(Severity::Note, path.as_ref(), text.into());
    }

    fn find(&mut self, severity: Severity, path: &Path, text: String) {
        self.findings.push(Finding { severity, path: path.to_owned(), text });
    }
}

#[cfg(test)]
mod tests;
