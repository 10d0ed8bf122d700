//! Revoking certificates: the authority's side of [`revocation`](super::revocation).

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tidegate_message::Instant;
use tidegate_sys::{files, regular};

use super::{
    PkiError, VALID_FOR_DEFAULT, checked_name,
    issue::signer,
    issued::{Issued, issued},
    read_certificate,
    revocation::{self, LIST_FILE, ListNumber, Reason, RevocationList, Revoked, Serial},
    validity,
};

/// A serial number of ours has 20 bytes; anything much shorter is a name that happens to consist of such letters.
const SERIAL_BYTES_MIN: usize = 16;

/// The result of [`revoke`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The file of the list.
    pub path: PathBuf,
    /// The serial numbers that are new in it, with whose certificates they are where that is known.
    pub revoked: Vec<(Serial, Option<String>)>,
    /// Certificates in it by now.
    pub count: usize,
}

/// Revokes certificates of the authority in `dir`: each of `wanted` is a name, all of whose certificates are meant, a serial
/// number, or the file of a certificate. The list next to the authority is replaced by one that has them all.
///
/// # Errors
/// [`PkiError::NothingToRevoke`] or [`PkiError::RevokedBefore`] if one of `wanted` names nothing that could be; then nothing
/// changes, and if a file cannot be read or written.
pub fn revoke(dir: &Path, wanted: &[String], reason: Reason) -> Result<Revocation, PkiError> {
    let signer = signer(dir)?;
    let (_, authority) = read_certificate(&dir.join("ca.pem"))?;
    // One at a time: a list that is written over another would lose what that had.
    let lock = dir.join("crl.lock");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| PkiError::Write { path, source }
    };
    let lock_file = files::append(&lock, files::PRIVATE).map_err(failed(&lock))?;
    lock_file.lock().map_err(failed(&lock))?;

    let path = dir.join(LIST_FILE);
    let before = if path.exists() {
        revocation::read(&path, std::slice::from_ref(&authority))?
    } else {
        Vec::new()
    };
    let number = before.iter().map(|list| list.number).max().unwrap_or_default();
    let number = number.next().ok_or(PkiError::ListsCounted { path: path.clone() })?;
    let mut entries: Vec<(Serial, Revoked)> =
        before.into_iter().flat_map(|list| list.entries).collect();

    let known = issued(dir)?;
    let now = since_epoch();
    let at = Instant::from_nanos(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX));
    let mut revoked = Vec::new();
    for wanted in wanted {
        let found = named(dir, wanted, &known, now)?;
        let new: Vec<_> = found
            .into_iter()
            .filter(|(serial, _)| !entries.iter().any(|(listed, _)| listed == serial))
            .collect();
        if new.is_empty() {
            return Err(PkiError::RevokedBefore { wanted: wanted.clone() });
        }
        entries.extend(new.iter().map(|(serial, _)| (serial.clone(), Revoked { at, reason })));
        revoked.extend(new);
    }
    let count = entries.len();
    let text = signed(&signer, &authority, number, &entries, now)?;
    files::put(&path, text.as_bytes(), files::PRIVATE).map_err(failed(&path))?;
    Ok(Revocation { path, revoked, count })
}

/// The certificates that `wanted` names, with whose they are.
fn named(
    dir: &Path,
    wanted: &str,
    known: &[Issued],
    now: Duration,
) -> Result<Vec<(Serial, Option<String>)>, PkiError> {
    let described =
        |issued: &Issued| (issued.serial.clone(), Some(format!("{} {}", issued.kind, issued.name)));
    if wanted.contains('/') || wanted.ends_with(".pem") {
        let (_, certificate) = read_certificate(Path::new(wanted))?;
        let (_, authority) = read_certificate(&dir.join("ca.pem"))?;
        super::verify_signature(&certificate, &authority, Path::new(wanted))?;
        return Ok(vec![described(&Issued::of(&certificate)?)]);
    }
    let mut found: Vec<Issued> = Vec::new();
    if checked_name(wanted).is_ok() {
        // A certificate that has expired needs no list.
        let lives =
            |issued: &&Issued| issued.until_s >= 0 && issued.until_s as u64 >= now.as_secs();
        found.extend(known.iter().filter(|it| it.name == wanted).filter(lives).cloned());
        // Of a site that is older than the record.
        let beside = regular::read(&dir.join(format!("{wanted}.pem"))).ok();
        let beside = beside.and_then(|pem| CertificateDer::from_pem_slice(&pem).ok());
        if let Some(issued) = beside.and_then(|certificate| Issued::of(&certificate).ok())
            && !found.iter().any(|it| it.serial == issued.serial)
        {
            found.push(issued);
        }
    }
    if !found.is_empty() {
        return Ok(found.iter().map(described).collect());
    }
    let serial: Option<Serial> = wanted.parse().ok();
    let nothing = || PkiError::NothingToRevoke { wanted: wanted.to_owned() };
    let serial = serial.filter(|it| it.bytes().len() >= SERIAL_BYTES_MIN).ok_or_else(nothing)?;
    let owner = known.iter().find(|it| it.serial == serial);
    Ok(vec![owner.map_or((serial, None), described)])
}

/// A list in PEM.
fn signed(
    signer: &super::issue::Signer,
    authority: &CertificateDer<'_>,
    number: ListNumber,
    entries: &[(Serial, Revoked)],
    now: Duration,
) -> Result<String, PkiError> {
    let epoch = date_time_ymd(1970, 1, 1);
    // There is no next one until another certificate is revoked; the authority's own end is the end of both.
    let until = validity(authority).map(|(_, until)| until.as_nanos() / 1_000_000_000);
    let until = until.and_then(|until| u64::try_from(until).ok()).map(Duration::from_secs);
    let until = until.filter(|until| *until > now).unwrap_or(now + VALID_FOR_DEFAULT);
    let revoked_certs = entries.iter().map(|(serial, revoked)| {
        let at = u64::try_from(revoked.at.as_nanos()).unwrap_or_default();
        RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial.bytes()),
            revocation_time: epoch + Duration::from_nanos(at),
            reason_code: code_of(revoked.reason),
            invalidity_date: None,
        }
    });
    let list = CertificateRevocationListParams {
        this_update: epoch + now,
        next_update: epoch + until,
        crl_number: SerialNumber::from_slice(number.bytes()),
        issuing_distribution_point: None,
        revoked_certs: revoked_certs.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let failed = |source| PkiError::Issue { name: "the revocation list".to_owned(), source };
    let signed = list.signed_by(signer).map_err(failed)?;
    // A list that nodes would refuse must not be published.
    RevocationList::read(signed.der(), std::slice::from_ref(authority)).map_err(|source| {
        revocation::RevocationError::List { path: PathBuf::from(LIST_FILE), source }
    })?;
    signed.pem().map_err(failed)
}

/// RFC 5280 section 5.3.1: nothing stands for what is not said.
fn code_of(reason: Reason) -> Option<RevocationReason> {
    match reason {
        Reason::Unspecified => None,
        Reason::KeyCompromise => Some(RevocationReason::KeyCompromise),
        Reason::AuthorityCompromise => Some(RevocationReason::CaCompromise),
        Reason::AffiliationChanged => Some(RevocationReason::AffiliationChanged),
        Reason::Superseded => Some(RevocationReason::Superseded),
        Reason::CessationOfOperation => Some(RevocationReason::CessationOfOperation),
        Reason::Hold => Some(RevocationReason::CertificateHold),
        Reason::PrivilegeWithdrawn => Some(RevocationReason::PrivilegeWithdrawn),
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
