//! Certificates and keys that a configuration names, in PEM.

use std::{ffi::OsStr, fs, path::Path};

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tidegate_api::ApiError;
use tidegate_message::Code;
use tidegate_sys::regular;

/// The private key of a file.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key of the configuration and the file.
pub fn private_key(key: &str, path: &Path) -> Result<PrivateKeyDer<'static>, ApiError> {
    let pem = regular::read(path).map_err(|error| unreadable(key, path, &error))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unreadable(key, path, &error))
}

/// The certificates of a file, at least one.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
pub fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ApiError> {
    let pem = regular::read(path).map_err(|error| unreadable(key, path, &error))?;
    let read = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = read.map_err(|error| unreadable(key, path, &error))?;
    if certificates.is_empty() {
        let text = format!("{key}: {} holds no certificate in PEM", path.display());
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    Ok(certificates)
}

/// Authorities: the certificates of a file, or those in a folder as OpenSSL keeps them (`capath`), in files named by the hash of
/// their subject such as `5ad8a5d6.0`, which `openssl rehash` makes. At least one.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
pub fn authorities(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ApiError> {
    if !path.is_dir() {
        return certificates(key, path);
    }
    let failed = |error: std::io::Error| unreadable(key, path, &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_hashed(&entry.file_name()) {
            found.push(entry.path());
        }
    }
    found.sort();
    if found.is_empty() {
        let text = format!(
            "{key}: the folder {} holds no certificate under the hash of its subject, such as 5ad8a5d6.0; `openssl rehash` makes those \
             names",
            path.display()
        );
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    let read = found.iter().map(|path| certificates(key, path)).collect::<Result<Vec<_>, _>>()?;
    Ok(read.concat())
}

/// Where Linux systems keep the authorities that they trust.
pub const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Whether a file is named by a hash, as OpenSSL looks for it.
fn is_hashed(name: &OsStr) -> bool {
    let Some((hash, number)) = name.to_str().and_then(|name| name.split_once('.')) else {
        return false;
    };
    hash.len() == 8
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The file that a key of the configuration names is no good.
pub fn unreadable(key: &str, path: &Path, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{key}: {} cannot be used", path.display());
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(error))
}
