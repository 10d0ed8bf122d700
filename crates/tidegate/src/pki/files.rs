//! Certificates and keys that a configuration names, in PEM.

use std::{ffi::OsStr, fs, path::Path};

use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tidegate_client::ApiError;
use tidegate_message::Code;
use tidegate_sys::regular;

use super::Kind;
use crate::{assemble::how_to_make, config::Config};

/// What a listener shows: the two files that are named, or the node's own.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
pub(crate) fn certificate(
    config: &Config,
    key_of: &dyn Fn(&str) -> String,
    files: (Option<&Path>, Option<&Path>),
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ApiError> {
    let own = |extension: &str| {
        config.pki_dir().join(format!("{}.{extension}", config.node.name.as_str()))
    };
    let (certificate, key) = match files {
        (Some(certificate), Some(key)) => (certificate.to_owned(), key.to_owned()),
        (None, None) => (own("pem"), own("key")),
        _ => {
            let text = format!("{} and key go together; name both", key_of("certificate"));
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
    };
    let chain = certificates(&key_of("certificate"), &certificate).map_err(|error| {
        let is_own = files.0.is_none() && fs::symlink_metadata(&certificate).is_err();
        match is_own {
            true => {
                let way_out = how_to_make(config, Kind::Node, config.node.name.as_str());
                let text = format!(
                    "{}: the node has no certificate of its own; {way_out}",
                    key_of("certificate")
                );
                ApiError::new(Code::CONFIG_INVALID, text).caused_by(error.chain())
            }
            false => error,
        }
    })?;
    let key = private_key(&key_of("key"), &key)?;
    Ok((chain, key))
}

/// The private key of a file.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key of the configuration and the file.
pub(crate) fn private_key(key: &str, path: &Path) -> Result<PrivateKeyDer<'static>, ApiError> {
    let pem = regular::read(path).map_err(|error| unreadable(key, path, &error))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unreadable(key, path, &error))
}

/// The certificates of a file, at least one.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
pub(crate) fn certificates(
    key: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ApiError> {
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
pub(crate) fn authorities(
    key: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ApiError> {
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
pub(crate) fn unreadable(key: &str, path: &Path, error: &dyn std::error::Error) -> ApiError {
    let text = format!("{key}: {} cannot be used", path.display());
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(crate::error_chain(error))
}
