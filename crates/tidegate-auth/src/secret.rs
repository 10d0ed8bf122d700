//! The parts that all stored secrets share: randomness, their alphabet, and made-up secrets of users that there are not.

use std::fmt;

use base64::{
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroize as _;

/// Most iterations of PBKDF2 that a line may ask for: some seconds of one core.
pub const ITERATIONS_MAX: u32 = 10_000_000;

/// Standard alphabet; padding is as the writer liked it.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Makes up what unknown users are shown and cost. Keep it across restarts: a salt that changes with a restart
/// tells that its user is unknown.
#[derive(Clone)]
pub struct DecoyKey(pub [u8; 32]);

impl DecoyKey {
    /// A new key from the system's randomness.
    ///
    /// # Errors
    /// [`RandomError`] if the system has none to give.
    pub fn random() -> Result<Self, RandomError> {
        random().map(Self)
    }

    /// A number for `user`, different for each `purpose`.
    pub(crate) fn digest(&self, purpose: &str, user: &str) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(user.as_bytes());
        mac.finalize().into_bytes().into()
    }
}

impl Drop for DecoyKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Says nothing of the key.
impl fmt::Debug for DecoyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecoyKey")
    }
}

/// Bytes of the system's randomness.
///
/// # Errors
/// [`RandomError`] if the system has none to give.
pub fn random<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| RandomError { code: error.raw_os_error() })?;
    Ok(bytes)
}

/// The system gives no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system's random number generator failed")]
pub struct RandomError {
    /// The system's error number, if it gave one.
    pub code: Option<i32>,
}
