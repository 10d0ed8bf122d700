//! From when to when a certificate is valid.

use rustls_pki_types::CertificateDer;
use tidegate_message::Instant;

use super::der::{CONTEXT_0, SEQUENCE, element, time};

/// The first and the last second that a certificate is valid; none if that cannot be read (RFC 5280 section 4.1.2.5).
pub fn validity(certificate: &CertificateDer<'_>) -> Option<(Instant, Instant)> {
    let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut fields, _) = element(certificate)? else { return None };
    // Version, if it is there; serial number, algorithm and issuer.
    if fields.first() == Some(&CONTEXT_0) {
        (_, _, fields) = element(fields)?;
    }
    for _ in 0..3 {
        (_, _, fields) = element(fields)?;
    }
    let (SEQUENCE, times, _) = element(fields)? else { return None };
    let (tag, from, times) = element(times)?;
    let from = time(tag, from)?;
    let (tag, until, _) = element(times)?;
    Some((from, time(tag, until)?))
}
