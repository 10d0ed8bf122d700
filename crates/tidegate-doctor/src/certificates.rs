//! Certificates and keys.

use std::{path::Path, time::Duration};

use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde::Serialize;
use tidegate_identity::pki::{
    self, ISSUED_FILE, PkiError,
    revocation::{self, LIST_FILE, RevocationList},
};
use tidegate_message::Instant;
use tidegate_sys::regular;

use super::{Examination, files};

/// One that ends within that time is a problem.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
const AUTHORITY: &str = "ca";

/// One certificate.
#[derive(Debug, Serialize)]
pub struct CertificateSummary {
    /// The name of its file.
    pub name: String,
    /// Its owner as it says, such as `camera cam1`; none for the authority.
    pub of: Option<String>,
    /// First second of its validity, since the Unix epoch.
    pub valid_from: i64,
    /// Last second of its validity, since the Unix epoch.
    pub valid_until: i64,
    /// Whole days left from now; negative if it has ended.
    pub days_left: i64,
}

pub(super) fn examine(found: &mut Examination, folder: &Path, now: Instant) {
    if !files::folder(found, folder) {
        return;
    }
    for (name, entry, metadata) in files::entries(found, folder) {
        let path = entry.path();
        match name.rsplit_once('.') {
            _ if name == LIST_FILE && metadata.is_file() => {
                files::owned(found, &path, &metadata);
                revocation_list(found, folder, now);
            }
            _ if [ISSUED_FILE, "crl.lock"].contains(&&*name) && metadata.is_file() => {
                files::owned(found, &path, &metadata);
            }
            Some((stem, "pem")) if metadata.is_file() => {
                files::owned(found, &path, &metadata);
                certificate(found, folder, stem, now);
            }
            Some((stem, "key")) if metadata.is_file() => {
                files::secret(found, &path, &metadata);
                if stem == AUTHORITY {
                    found.note(&path, "its owner can be anyone: keep it where certificates are made, and off nodes");
                } else if !folder.join(format!("{stem}.pem")).exists() {
                    found.note(&path, "there is no certificate for this key");
                }
            }
            _ => found.note(&path, "this is neither a certificate nor a key"),
        }
    }
}

fn revocation_list(found: &mut Examination, folder: &Path, now: Instant) {
    let path = folder.join(LIST_FILE);
    let authority = regular::read(&folder.join("ca.pem")).ok();
    let authority = authority.and_then(|pem| CertificateDer::from_pem_slice(&pem).ok());
    match revocation::read(&path, authority.as_slice()) {
        Err(error) => found.problem(&path, tidegate_message::error_chain(&error)),
        Ok(lists) => {
            for list in lists {
                let RevocationList { number, entries, .. } = &list;
                found.note(&path, format!("list {number}: {} certificates revoked", entries.len()));
                if list.is_overdue(now) {
                    found.problem(
                        &path,
                        "the authority meant to have made a newer list by now; copy that",
                    );
                }
            }
        }
    }
}

fn certificate(found: &mut Examination, folder: &Path, name: &str, now: Instant) {
    let path = folder.join(format!("{name}.pem"));
    let dates = regular::read(&path).ok().and_then(|pem| {
        let certificate = CertificateDer::from_pem_slice(&pem).ok()?;
        pki::validity(&certificate)
    });
    let Some((from, until)) = dates else {
        found.problem(&path, "its dates cannot be read: it is damaged, or no certificate");
        return;
    };
    let mut of = None;
    if name != AUTHORITY {
        match pki::load(folder, name) {
            Ok(credentials) => of = Some(credentials.identity().to_string()),
            Err(PkiError::Missing { path: missing }) => {
                found.note(&path, format!("it is of no use here without {}", missing.display()));
            }
            Err(error) => found.problem(&path, tidegate_message::error_chain(&error)),
        }
    }
    let seconds = |at: Instant| at.as_nanos().div_euclid(1_000_000_000);
    let left = seconds(until) - seconds(now);
    if name == AUTHORITY && left < 0 {
        found.problem(&path, "the authority has expired, and with it all its certificates; make new ones with `tidegate init`");
    } else if (0..RENEW_BEFORE.as_secs() as i64).contains(&left) {
        let days = left / 86_400;
        found
            .problem(&path, format!("it ends in {days} days; make a new one with `tidegate init`"));
    }
    found.certificates.push(CertificateSummary {
        name: name.to_owned(),
        of,
        valid_from: seconds(from),
        valid_until: seconds(until),
        days_left: left.div_euclid(86_400),
    });
}
