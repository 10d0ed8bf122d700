//! The keys that logs are sealed with, from the files that the configuration names.

use std::path::Path;

use tidegate_log::{KeyError, KeyFile, NodeKey, NodeKeys};
use tidegate_message::Code;
use tidegate_sys::secret::{self, SecretError};

/// Files with keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyFiles<'a> {
    /// With the key of now.
    pub current: &'a Path,
    /// With the key before that one, if there is one.
    pub older: Option<&'a Path>,
    /// With the passphrase of keys that are made from one, if there is one.
    pub passphrase: Option<&'a Path>,
}

impl KeyFiles<'_> {
    /// The keys in them.
    ///
    /// # Errors
    /// [`KeysError`], which names the setting.
    pub fn read(&self) -> Result<NodeKeys, KeysError> {
        let current = read("log.key_file", self.current, self.passphrase)?;
        let older = self.older.iter();
        let older = older.map(|path| read("log.older_key_file", path, self.passphrase));
        Ok(NodeKeys { current, older: older.collect::<Result<_, _>>()? })
    }
}

fn read(
    setting: &'static str,
    path: &Path,
    passphrase: Option<&Path>,
) -> Result<NodeKey, KeysError> {
    let failed = |source| KeysError::File { setting, source };
    match KeyFile::read(path).map_err(failed)? {
        KeyFile::Key(key) => Ok(key),
        KeyFile::Passphrase(key) => {
            let path = passphrase.ok_or(KeysError::NoPassphrase { setting })?;
            key.open(&passphrase_in(path)?).map_err(failed)
        }
    }
}

/// The passphrase in a file: its first line.
///
/// # Errors
/// The file is missing, or others may read it.
pub fn passphrase_in(path: &Path) -> Result<Vec<u8>, KeysError> {
    let mut bytes = Vec::new();
    secret::read(path, &mut bytes).map_err(|source| KeysError::Passphrase { source })?;
    let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    bytes.truncate(end.unwrap_or(bytes.len()));
    Ok(bytes)
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A key file cannot be used.
    #[error("the file that {setting} names gives no key")]
    File {
        /// The setting.
        setting: &'static str,
        /// Why not.
        #[source]
        source: KeyError,
    },
    /// A key is made from a passphrase, and none is given.
    #[error(
        "the file that {setting} names needs a passphrase; name its file in log.passphrase_file"
    )]
    NoPassphrase {
        /// The setting.
        setting: &'static str,
    },
    /// The passphrase cannot be read.
    #[error("the file that log.passphrase_file names cannot be used")]
    Passphrase {
        /// Why not.
        #[source]
        source: SecretError,
    },
}

impl KeysError {
    /// The stable code.
    pub fn code(&self) -> Code {
        Code::CONFIG_INVALID
    }
}
