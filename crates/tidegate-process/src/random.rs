//! Random bytes of the system.

use std::io;

/// Random bytes, from the system.
///
/// # Errors
/// The system has none.
pub fn random_bytes() -> io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system's random number generator failed"))?;
    Ok(bytes)
}
