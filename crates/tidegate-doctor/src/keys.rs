//! The keys that seal logs, by the configuration.

use tidegate_camera::frame_log::{KeyFiles, KeysError};
use tidegate_config::{LogSection, words::AtRest};
use tidegate_log::NodeKeys;

/// The keys that `[log]` names; none if logs are in clear text.
///
/// # Errors
/// [`KeysError`], which names the setting.
pub fn node_keys(section: &LogSection) -> Result<Option<NodeKeys>, KeysError> {
    let (AtRest::Sealed, Some(current)) = (section.at_rest, &section.key_file) else {
        return Ok(None);
    };
    let (older, passphrase) = (&section.older_key_file, &section.passphrase_file);
    let files = KeyFiles { current, older: older.as_deref(), passphrase: passphrase.as_deref() };
    files.read().map(Some)
}
