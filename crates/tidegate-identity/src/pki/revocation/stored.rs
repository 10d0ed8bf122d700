//! Revocation lists in files: those of operators, and the copies that a node keeps.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use tidegate_sys::{files, regular};

use super::{FILE_BYTES_MAX, RevocationError, RevocationList};

/// Distinguishes a rewritten file from the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    /// It was not looked at.
    Unseen,
    /// Nothing has that name.
    Nothing,
    /// Something has, and cannot be looked at: a link that leads nowhere, or what is for others.
    Unreadable(io::ErrorKind),
    /// Inode, length and time of the last change.
    File(u64, u64, i64, i64),
}

pub(super) fn stamp(path: &Path) -> Stamp {
    match fs::metadata(path) {
        // To open a pipe or a device may take forever.
        Ok(metadata) if !metadata.is_file() => Stamp::Unreadable(io::ErrorKind::InvalidInput),
        Ok(metadata) => {
            Stamp::File(metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link that leads nowhere was meant to lead to a list.
            let is_link = fs::symlink_metadata(path).is_ok();
            if is_link { Stamp::Unreadable(error.kind()) } else { Stamp::Nothing }
        }
        Err(error) => Stamp::Unreadable(error.kind()),
    }
}

/// The source of a list that a node keeps: the names of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An operator's file.
    File,
    /// Another node.
    Peer,
}

/// Where the newest list of an authority from that source is kept.
pub(super) fn copy_path(folder: &Path, source: Source, authority: &CertificateDer<'_>) -> PathBuf {
    let digest = Sha256::digest(authority);
    let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let word = match source {
        Source::File => "revoked",
        Source::Peer => "adopted",
    };
    folder.join(format!("{word}-{name}.pem"))
}

/// Whole or not at all.
pub(super) fn write_copy(path: &Path, der: &[u8]) -> io::Result<()> {
    let mut pem = "-----BEGIN X509 CRL-----\n".to_owned();
    let text = STANDARD.encode(der);
    for line in text.as_bytes().chunks(64) {
        pem.push_str(str::from_utf8(line).expect("base64 is ASCII"));
        pem.push('\n');
    }
    pem.push_str("-----END X509 CRL-----\n");
    if regular::read(path).is_ok_and(|kept| kept == pem.as_bytes()) {
        return Ok(());
    }
    files::folder(path.parent().unwrap_or(Path::new("")), files::PRIVATE_FOLDER)?;
    files::put(path, pem.as_bytes(), files::PRIVATE)
}

/// The lists in the file `path`, each signed by one of `authorities`.
///
/// # Errors
/// [`RevocationError`].
pub fn read(
    path: &Path,
    authorities: &[CertificateDer<'_>],
) -> Result<Vec<RevocationList>, RevocationError> {
    let unreadable = |source| RevocationError::Read { path: path.to_owned(), source };
    let file = regular::open(path).map_err(unreadable)?;
    let mut text = Vec::new();
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(RevocationError::TooLarge { path: path.to_owned() });
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let lists = lists.unwrap_or_default();
    if lists.is_empty() {
        return Err(RevocationError::NotPem { path: path.to_owned() });
    }
    let list = |der: &CertificateRevocationListDer<'_>| {
        RevocationList::read(der, authorities)
            .map_err(|source| RevocationError::List { path: path.to_owned(), source })
    };
    lists.iter().map(list).collect()
}
