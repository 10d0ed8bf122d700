//! The form of an invitation on paper.

use std::{fmt, str::FromStr};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};

/// Before every token, with the version of its form.
const PREFIX: &str = "tidegate1";
/// Bytes of an invitation's name, and of its secret.
pub(super) const ID_BYTES: usize = 8;
pub(super) const SECRET_BYTES: usize = 16;

/// An invitation with all that is needed to redeem it: `tidegate1.ADDRESS.AUTHORITY.ID.SECRET`, the last four in base64url.
///
/// Its owner can redeem it: it has no [`fmt::Debug`] of its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Where it is redeemed, as host and port.
    pub address: String,
    /// SHA-256 of the authority's certificate.
    pub authority: [u8; 32],
    pub(super) id: [u8; ID_BYTES],
    pub(super) secret: [u8; SECRET_BYTES],
}

/// Text that is no token. It does not say which, for that is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not an invitation: {reason}; copy the whole line that `tidegate invite` printed")]
pub struct TokenError {
    reason: &'static str,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, authority, id, secret } = self;
        let parts = [address.as_bytes(), authority, id, secret].map(|part| BASE64.encode(part));
        write!(f, "{PREFIX}.{}", parts.join("."))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("address", &self.address).finish_non_exhaustive()
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let error = |reason| TokenError { reason };
        let parts: Vec<&str> = text.trim().split('.').collect();
        let &[prefix, address, authority, id, secret] = parts.as_slice() else {
            return Err(error("it does not have five parts with dots between"));
        };
        if prefix != PREFIX {
            return Err(error(
                "it does not begin with tidegate1, so it is of another version or of something else",
            ));
        }
        fn bytes<const N: usize>(part: &str) -> Option<[u8; N]> {
            BASE64.decode(part).ok()?.try_into().ok()
        }
        let address = BASE64.decode(address).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let address = address.filter(|address| address.len() <= 300 && address.contains(':'));
        Ok(Self {
            address: address.ok_or(error("its second part is not an address"))?,
            authority: bytes(authority).ok_or(error("its third part is not a hash"))?,
            id: bytes(id).ok_or(error("its fourth part is not the name of an invitation"))?,
            secret: bytes(secret).ok_or(error("its last part is not a secret"))?,
        })
    }
}
