//! Where a node keeps its key: in a file that is the key, or one that makes it from a passphrase.
//!
//! ```text
//!  tidegate-node-key 1                              tidegate-node-key 1
//!  random KEY                                       argon2id KIBIBYTES PASSES LANES SALT KEY-ID
//! ```
//!
//! Key, salt and id are in hexadecimal digits. The file with a salt opens nothing by itself.
//!
//! Always true: a file is made whole, with mode 0600, and takes no other's place; one that others may read is refused.

use std::{fmt::Write as _, io, path::Path};

use argon2::{Algorithm, Argon2, Params, Version};
use tidegate_sys::secret::{self, SecretError};
use zeroize::Zeroizing;

use crate::seal::{KEY_BYTES, KeyId, NodeKey, random};

const FIRST_LINE: &str = "tidegate-node-key 1";
const SALT_BYTES: usize = 16;
/// A file that asks for more than these was not made by anyone who wants to start.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 100;
const LANES_MAX: u32 = 16;

/// The content of a key file.
#[derive(Debug)]
pub enum KeyFile {
    /// The key itself.
    Key(NodeKey),
    /// The parameters to derive it from a passphrase.
    Passphrase(PassphraseKey),
}

/// The parameters to derive a key from a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassphraseKey {
    cost: PassphraseCost,
    salt: [u8; SALT_BYTES],
    id: KeyId,
}

/// The cost of trying one passphrase, by argon2id (RFC 9106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassphraseCost {
    /// Memory, in KiB. Default 65536, as the RFC has it where memory is short.
    pub memory_kib: u32,
    /// How often the memory is gone through. Default 3.
    pub passes: u32,
    /// How many threads could share the work. Default 4.
    pub lanes: u32,
}

impl Default for PassphraseCost {
    fn default() -> Self {
        Self { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

impl KeyFile {
    /// Reads a key file.
    ///
    /// # Errors
    /// It is missing, others may read it, or it is none.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new(Vec::new());
        secret::read(path, &mut bytes)?;
        Self::parse(&bytes).ok_or(KeyError::Format)
    }

    /// Makes a key file with a new random key.
    ///
    /// # Errors
    /// There is a file of that name, or the disk failed.
    pub fn create(path: &Path) -> Result<NodeKey, KeyError> {
        let key = NodeKey::generate().map_err(|source| KeyError::Random { source })?;
        let mut text = Zeroizing::new(String::with_capacity(128));
        text.push_str(FIRST_LINE);
        text.push_str("\nrandom ");
        put_hex(&mut text, key.bytes());
        text.push('\n');
        secret::create(path, text.as_bytes())?;
        Ok(key)
    }

    /// Makes a key file for a key that a passphrase makes.
    ///
    /// # Errors
    /// There is a file of that name, the cost is out of range, or the disk failed.
    pub fn create_for_passphrase(
        path: &Path,
        passphrase: &[u8],
        cost: PassphraseCost,
    ) -> Result<NodeKey, KeyError> {
        let salt: [u8; SALT_BYTES] = *random().map_err(|source| KeyError::Random { source })?;
        let key = make(passphrase, &salt, cost)?;
        let PassphraseCost { memory_kib, passes, lanes } = cost;
        let mut text = format!("{FIRST_LINE}\nargon2id {memory_kib} {passes} {lanes} ");
        put_hex(&mut text, &salt);
        text.push(' ');
        put_hex(&mut text, &key.id().0);
        text.push('\n');
        secret::create(path, text.as_bytes())?;
        Ok(key)
    }

    /// Parses a key file; none if the content is not one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?.split_ascii_whitespace();
        let file = match words.next()? {
            "random" => Self::Key(NodeKey::new(Zeroizing::new(hex(words.next()?)?))),
            "argon2id" => {
                let mut number = || words.next()?.parse().ok();
                let cost =
                    PassphraseCost { memory_kib: number()?, passes: number()?, lanes: number()? };
                let salt = hex(words.next()?)?;
                let id = KeyId(hex(words.next()?)?);
                Self::Passphrase(PassphraseKey { cost, salt, id })
            }
            _ => return None,
        };
        words.next().is_none().then_some(file)
    }
}

impl PassphraseKey {
    /// The key. Takes as long as the cost says, about a tenth of a second by default.
    ///
    /// # Errors
    /// The passphrase is another one, or the cost is out of range.
    pub fn open(&self, passphrase: &[u8]) -> Result<NodeKey, KeyError> {
        let key = make(passphrase, &self.salt, self.cost)?;
        if key.id() == self.id { Ok(key) } else { Err(KeyError::Passphrase) }
    }
}

fn make(passphrase: &[u8], salt: &[u8], cost: PassphraseCost) -> Result<NodeKey, KeyError> {
    let PassphraseCost { memory_kib, passes, lanes } = cost;
    if memory_kib > MEMORY_KIB_MAX || passes > PASSES_MAX || lanes > LANES_MAX {
        return Err(KeyError::Cost { cost });
    }
    let params = Params::new(memory_kib, passes, lanes, Some(KEY_BYTES));
    let params = params.map_err(|_| KeyError::Cost { cost })?;
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase, salt, key.as_mut_slice())
        .map_err(|_| KeyError::Cost { cost })?;
    Ok(NodeKey::new(key))
}

fn put_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all that is written to it");
    }
}

fn hex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    if pairs.len() != N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(bytes)
}

/// Why there is no node key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read or made.
    #[error("the key file cannot be used")]
    File(#[from] SecretError),
    /// The file is no key file.
    #[error(
        "this is not a key file of version 1, or a damaged one; put the one back that was made"
    )]
    Format,
    /// The passphrase makes another key than the one that the file was made for.
    #[error("the passphrase is not the one that the key file was made with")]
    Passphrase,
    /// The cost is out of range.
    #[error("a passphrase cannot be tried at the cost of {cost:?}; make a new key file")]
    Cost {
        /// The requested cost.
        cost: PassphraseCost,
    },
    /// The system has no random numbers.
    #[error("there is nothing to make a key from")]
    Random {
        /// Why not.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: PassphraseCost = PassphraseCost { memory_kib: 64, passes: 1, lanes: 1 };

    #[test]
    fn only_key_files_are_read() {
        let key = "ab".repeat(32);
        let argon = format!("64 1 1 {} {}", "cd".repeat(16), "ef".repeat(8));
        for (text, expected) in [
            (format!("tidegate-node-key 1\nrandom {key}\n"), true),
            (format!("tidegate-node-key 1\nargon2id {argon}\n"), true),
            (format!("tidegate-node-key 2\nrandom {key}\n"), false),
            (format!("tidegate-node-key 1\nrandom {key} more\n"), false),
            (format!("tidegate-node-key 1\nrandom {}\n", &key[2..]), false),
            (format!("tidegate-node-key 1\nrandom {}\n", key.replace('a', "g")), false),
            (format!("tidegate-node-key 1\nargon2id 1 {argon}\n"), false),
            (format!("tidegate-node-key 1\nscrypt {argon}\n"), false),
            (String::new(), false),
        ] {
            assert_eq!(KeyFile::parse(text.as_bytes()).is_some(), expected, "{text}");
        }
    }

    #[test]
    fn a_passphrase_makes_the_same_key_again_and_another_one_is_told() {
        let salt = [1; SALT_BYTES];
        let key = make(b"correct horse", &salt, CHEAP).unwrap();
        let file = PassphraseKey { cost: CHEAP, salt, id: key.id() };
        assert_eq!(file.open(b"correct horse").unwrap().bytes(), key.bytes());
        assert!(matches!(file.open(b"wrong horse"), Err(KeyError::Passphrase)));
        let other = PassphraseKey { salt: [2; SALT_BYTES], ..file.clone() };
        assert!(matches!(other.open(b"correct horse"), Err(KeyError::Passphrase)));
        for cost in [
            PassphraseCost { memory_kib: u32::MAX, ..CHEAP },
            PassphraseCost { passes: u32::MAX, ..CHEAP },
            PassphraseCost { passes: 0, ..CHEAP },
            PassphraseCost { lanes: 1 << 20, ..CHEAP },
        ] {
            let asks = PassphraseKey { cost, ..file.clone() };
            assert!(matches!(asks.open(b"correct horse"), Err(KeyError::Cost { .. })), "{cost:?}");
        }
    }
}
