//! The configuration of a node, as an administrator sees it.

use crate::proto;

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadedConfiguration {
    /// All that is wrong, a line each; if there is anything, nothing was taken.
    pub problems: Vec<String>,
    /// Settings that were exchanged, as `section.key`.
    pub exchanged: Vec<String>,
    /// Settings that are other than those in use until the next start.
    pub need_restart: Vec<String>,
}

impl From<ReloadedConfiguration> for proto::ReloadConfigurationResponse {
    fn from(reloaded: ReloadedConfiguration) -> Self {
        let ReloadedConfiguration { problems, exchanged, need_restart } = reloaded;
        Self { problems, exchanged, need_restart }
    }
}

impl From<proto::ReloadConfigurationResponse> for ReloadedConfiguration {
    fn from(answer: proto::ReloadConfigurationResponse) -> Self {
        let proto::ReloadConfigurationResponse { problems, exchanged, need_restart } = answer;
        Self { problems, exchanged, need_restart }
    }
}
