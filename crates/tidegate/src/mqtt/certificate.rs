//! Names in clients' certificates.

use rustls_pki_types::CertificateDer;

/// The common name of a certificate's subject; none if it has none that can be read.
pub(super) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut subject = certificate.subject();
    // A sequence of sets of (object identifier, text) pairs; DER, short and long lengths.
    while let Some((_, set, rest)) = element(subject) {
        subject = rest;
        let (_, pair, _) = element(set)?;
        let (_, identifier, value) = element(pair)?;
        if identifier == [0x55, 0x04, 0x03] {
            let (_, text, _) = element(value)?;
            return String::from_utf8(text.to_vec()).ok();
        }
    }
    None
}

/// Tag, content and what follows of the first DER element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x82 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}
