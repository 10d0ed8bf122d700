//! The name of the node among those that a message passed.

use tidegate_api::ApiError;
use tidegate_config::{Config, Purpose};
use tidegate_message::Code;
use tidegate_process::random::random_bytes;

use super::kept::kept_random;

/// The name of the node among those that a message passed: two nodes may have one name, as those that keep the default do.
///
/// # Errors
/// [`Code::STORAGE_FAILED`].
pub(super) fn numbered_node(config: &Config, purpose: Purpose) -> Result<String, ApiError> {
    let number = kept_random(&config.state_dir(), "node.id", purpose).map_err(|error| {
        let text = "node.data_dir cannot keep the number of the node";
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    })?;
    let number: String = number[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{number}", config.node.name.as_str()))
}

/// The name of the node among those that a message passed. Where nothing is sent on it need not outlive the process.
///
/// # Errors
/// [`Code::STORAGE_FAILED`].
pub(super) fn node_of_paths(config: &Config, only_receives: bool) -> Result<String, ApiError> {
    match numbered_node(config, Purpose::Run) {
        Err(error) if only_receives => {
            let error = tidegate_message::error_chain(&error);
            tracing::warn!(%error, "after a restart, messages that return by a loop are not recognised");
            let number = u64::from_ne_bytes(random_bytes().map_err(|error| {
                ApiError::new(Code::INTERNAL, "the system gives no random bytes").caused_by(error)
            })?);
            Ok(format!("{}-{number:016x}", config.node.name.as_str()))
        }
        named => named,
    }
}
