//! Sets of public keys that tokens are checked with: JWKS (RFC 7517), keys for RS256, ES256 and EdDSA.
//!
//! Always true: a key is used with the one algorithm that goes with its type; a set that holds a private or a shared key
//! is refused as a whole, since its readers could make tokens.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    digest,
    signature::{
        self, ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    },
};
use serde_json::{Map, Value};

/// Largest set, in bytes.
pub const KEY_SET_BYTES_MAX: usize = 256 << 10;
/// Most keys of a set.
pub const KEYS_MAX: usize = 128;
/// Longest name of a key, in bytes.
pub const KEY_ID_BYTES_MAX: usize = 256;

/// Keys that tokens are checked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<Key>,
}

/// A public key and how it is used.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key {
    id: Option<Box<str>>,
    material: Material,
    digest: KeyDigest,
}

/// Of a key's name and of what it is: equal for the same key, and different for another one of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    fn of(id: Option<&str>, material: &Material) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        // Each part with its length, so that none can be taken for a part of another.
        let mut add = |part: &[u8]| {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        };
        add(&[u8::from(id.is_some())]);
        add(id.unwrap_or_default().as_bytes());
        add(material.algorithm().word().as_bytes());
        match material {
            Material::Rsa { modulus, exponent } => {
                add(modulus);
                add(exponent);
            }
            Material::P256(point) => add(point),
            Material::Ed25519(key) => add(key),
        }
        let digest = context.finish();
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// How a token is signed (RFC 7518 section 3.1, RFC 8037 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256, keys of 2048 to 8192 bits.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

#[derive(Clone, PartialEq, Eq)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A point of P-256, uncompressed.
    P256([u8; 65]),
    Ed25519([u8; 32]),
}

impl Material {
    const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }
}

impl Algorithm {
    const WORDS: [(&str, Self); 3] =
        [("RS256", Self::Rs256), ("ES256", Self::Es256), ("EdDSA", Self::EdDsa)];

    /// Its name in headers and keys.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, algorithm)| *algorithm == self).expect("each has its word").0
    }

    /// The algorithm of that name, if it is one of ours.
    pub fn named(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, algorithm)| *algorithm)
    }
}

impl KeySet {
    /// The keys of a JWKS. Those of other types, for other algorithms or not for signatures are passed over.
    ///
    /// # Errors
    /// [`KeySetError`]; nothing of the set is used then.
    pub fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        if json.len() > KEY_SET_BYTES_MAX {
            return Err(KeySetError::TooLarge { bytes: json.len() });
        }
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| KeySetError::Json { line: error.line(), column: error.column() })?;
        let members = value.get("keys").and_then(Value::as_array).ok_or(KeySetError::NoKeys)?;
        if members.len() > KEYS_MAX {
            return Err(KeySetError::TooMany { count: members.len() });
        }
        let mut keys: Vec<Key> = Vec::new();
        for (index, member) in members.iter().enumerate() {
            let Some(member) = member.as_object() else { return Err(KeySetError::NoKeys) };
            let Some(key) = Key::parse(index, member)? else { continue };
            let is_double = |other: &Key| {
                key.id.is_some() && (&other.id, other.algorithm()) == (&key.id, key.algorithm())
            };
            if keys.iter().any(is_double) {
                let id = key.id.unwrap_or_default().into();
                return Err(KeySetError::Double { id });
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(KeySetError::NoneFits { count: members.len() });
        }
        Ok(Self { keys })
    }

    /// Number of keys that can be used.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Never: a set without a key is refused.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether each key of `other` is among these.
    pub(crate) fn has_all_of(&self, other: &Self) -> bool {
        other.keys.iter().all(|key| self.keys.contains(key))
    }

    /// Whether that very key is among these.
    pub(crate) fn has(&self, digest: &KeyDigest) -> bool {
        self.keys.iter().any(|key| key.digest == *digest)
    }

    /// Whether there is a key of that name.
    pub(crate) fn holds(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }

    /// The key of that name, or without a name the only one for that algorithm; none if there is none.
    pub(crate) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&Key> {
        let mut found = self.keys.iter().filter(|key| {
            key.algorithm() == algorithm && id.is_none_or(|id| key.id.as_deref() == Some(id))
        });
        let first = found.next()?;
        // It is ambiguous which of several was meant.
        if found.next().is_none() { Some(first) } else { None }
    }
}

impl Key {
    /// None for a key that is not used here.
    fn parse(index: usize, members: &Map<String, Value>) -> Result<Option<Self>, KeySetError> {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        // Private members of RSA, EC and OKP keys, and the secret of shared ones.
        let private = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];
        if private.iter().any(|name| members.contains_key(*name)) {
            return Err(KeySetError::Private { index });
        }
        let id = match members.get("kid") {
            None => None,
            Some(Value::String(id)) if id.len() <= KEY_ID_BYTES_MAX => Some(id.as_str().into()),
            Some(_) => return Err(KeySetError::Damaged { index, member: "kid" }),
        };
        let is_for_signatures = text("use").is_none_or(|purpose| purpose == "sig")
            && members.get("key_ops").and_then(Value::as_array).is_none_or(|operations| {
                operations.iter().any(|operation| operation.as_str() == Some("verify"))
            });
        let bytes = |member: &'static str| {
            let bytes = text(member).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
            bytes.ok_or(KeySetError::Damaged { index, member })
        };
        let material = match (text("kty"), text("crv")) {
            _ if !is_for_signatures => return Ok(None),
            (Some("RSA"), _) => {
                let (modulus, exponent) = (bytes("n")?, bytes("e")?);
                // Shorter and longer keys are refused at each use as well.
                if !(256..=1024).contains(&modulus.len()) || modulus[0] == 0 {
                    return Err(KeySetError::Damaged { index, member: "n" });
                }
                Material::Rsa { modulus, exponent }
            }
            (Some("EC"), Some("P-256")) => {
                let mut point = [4; 65];
                for (member, place) in [("x", 1), ("y", 33)] {
                    let coordinate: [u8; 32] = bytes(member)?
                        .try_into()
                        .map_err(|_| KeySetError::Damaged { index, member })?;
                    point[place..place + 32].copy_from_slice(&coordinate);
                }
                Material::P256(point)
            }
            (Some("OKP"), Some("Ed25519")) => {
                let key = bytes("x")?.try_into();
                Material::Ed25519(key.map_err(|_| KeySetError::Damaged { index, member: "x" })?)
            }
            _ => return Ok(None),
        };
        let digest = KeyDigest::of(id.as_deref(), &material);
        let key = Self { id, material, digest };
        Ok(text("alg").is_none_or(|word| word == key.algorithm().word()).then_some(key))
    }

    pub(crate) const fn digest(&self) -> KeyDigest {
        self.digest
    }

    fn algorithm(&self) -> Algorithm {
        self.material.algorithm()
    }

    /// Whether `signature` is this key's, over `message`.
    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.material {
            Material::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Material::P256(point) => {
                signature::UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
            }
            Material::Ed25519(key) => {
                signature::UnparsedPublicKey::new(&ED25519, key).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("algorithm", &self.algorithm()).finish()
    }
}

/// Why a set of keys is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// It is too large to be meant.
    #[error(
        "the key set has {bytes} bytes, and {KEY_SET_BYTES_MAX} is the most; is it the right file?"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It is no JSON.
    #[error("the key set is not JSON at line {line}, column {column}")]
    Json {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
    },
    /// It has no list of keys.
    #[error("the key set has no list \"keys\" of objects (RFC 7517 section 5)")]
    NoKeys,
    /// It has more keys than anybody needs.
    #[error("the key set has {count} keys, and {KEYS_MAX} is the most")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// A key is private or shared.
    #[error(
        "key {index} of the set (from 0) is private or shared; put in the public key of a pair, and take this one for lost"
    )]
    Private {
        /// Its place, from 0.
        index: usize,
    },
    /// A member of a key is missing or wrong.
    #[error("key {index} of the set (from 0) has no usable member {member:?}")]
    Damaged {
        /// Its place, from 0.
        index: usize,
        /// The member.
        member: &'static str,
    },
    /// Two keys for one algorithm have one name.
    #[error("two keys of the set are called {id:?}; name each one differently")]
    Double {
        /// The name.
        id: String,
    },
    /// No key can be used.
    #[error(
        "none of the set's {count} keys is for RS256, ES256 (P-256) or EdDSA (Ed25519) signatures"
    )]
    NoneFits {
        /// How many there are.
        count: usize,
    },
}
