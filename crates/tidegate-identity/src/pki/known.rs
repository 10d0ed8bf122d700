//! Clients' certificates that are known one by one: those in a file of authorities that are of no authority, and those of which a
//! fingerprint is named. They may be of X.509 version 1, or signed by themselves, as `openssl x509 -req` and `openssl req -x509` make them.
//!
//! Always true: a known certificate is accepted as it is, within its time; a certificate signed with its key is not, whatever
//! stands in it; all others are judged as before.

use std::{fmt, sync::Arc, time::Duration};

use rustls::{
    CertificateError, DistinguishedName, OtherError,
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest as _, Sha256};
use tidegate_process::signatures_by;

use super::{fields::Fields, signatures::Signatures, validity};

/// The SHA-256 digest of a certificate, as `openssl x509 -noout -fingerprint -sha256` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// That of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    /// From 64 hexadecimal digits, with or without colons between the bytes; none if it is anything else.
    pub fn read(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// As OpenSSL prints it.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02X}", if at == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

/// Takes certificates that are known, and asks another verifier about the rest, if there is one.
#[derive(Debug)]
pub struct Known {
    /// Authorities among them.
    certificates: Vec<CertificateDer<'static>>,
    pins: Vec<Fingerprint>,
    others: Option<Arc<dyn ClientCertVerifier>>,
    is_mandatory: bool,
    /// Names of authorities that are sent to clients, to choose a certificate by; none where any may be right.
    hints: Vec<DistinguishedName>,
    signatures: Signatures,
}

impl Known {
    /// Takes those certificates, those with such a fingerprint, and what `others` takes.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        pins: Vec<Fingerprint>,
        others: Option<Arc<dyn ClientCertVerifier>>,
        is_mandatory: bool,
    ) -> Self {
        let mut hints =
            others.as_ref().map_or(Vec::new(), |others| others.root_hint_subjects().to_vec());
        for certificate in &certificates {
            if let Some(fields) = Fields::of(certificate) {
                hints.push(DistinguishedName::in_sequence(fields.issuer));
            }
        }
        if !pins.is_empty() {
            hints.clear();
        }
        let signatures = Signatures::default();
        Self { certificates, pins, others, is_mandatory, hints, signatures }
    }

    /// Whether each certificate that `former` accepted is accepted here as well, as far as that shows without looking at certificates one by one: all is known
    /// that was known there, and none must show one who needed not.
    pub fn takes_all_of(&self, former: &Self) -> bool {
        (former.is_mandatory || !self.is_mandatory)
            && former.certificates.iter().all(|known| self.certificates.contains(known))
            && former.pins.iter().all(|pin| self.pins.contains(pin))
    }

    /// Whether a client that showed `chain` when it came, nothing if it is empty, would be taken `now`. That the time of its certificate is
    /// over does not count: it was not when the client came.
    pub fn still_takes(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((end_entity, intermediates)) = chain.split_first() else {
            return !self.is_mandatory;
        };
        // A time that is over would be found wrong before anything else is looked at.
        let until =
            validity(end_entity).and_then(|(_, until)| u64::try_from(until.as_nanos()).ok());
        let now = now.as_secs();
        let then = Duration::from_secs(until.map_or(now, |until| now.min(until / 1_000_000_000)));
        let then = UnixTime::since_unix_epoch(then);
        self.verify_client_cert(end_entity, intermediates, then).is_ok()
    }

    fn knows(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|known| known == certificate)
            || (!self.pins.is_empty() && self.pins.contains(&Fingerprint::of(certificate)))
    }
}

/// Why a certificate is not taken that might be if it were known.
#[derive(Debug, thiserror::Error)]
pub enum UnknownCertificate {
    /// It is of a version that no authority's word counts for.
    #[error(
        "the certificate is of X.509 version 1, which is only taken where client_ca holds that very certificate, or client_pins its SHA-256 \
         fingerprint {0}; make it again with extensions (openssl x509 -req -extfile ...), or name it there"
    )]
    Old(Fingerprint),
    /// It says that it is of an authority.
    #[error(
        "the certificate is of an authority (CA:TRUE, as openssl req -x509 makes it), which is only taken for a client's where client_ca holds that very \
         certificate, or client_pins its SHA-256 fingerprint {0}"
    )]
    Authority(Fingerprint),
    /// It is signed by itself.
    #[error(
        "the certificate is signed by itself, and is only taken where client_ca holds that very certificate, or client_pins its SHA-256 \
         fingerprint {0}"
    )]
    SelfSigned(Fingerprint),
}

impl ClientCertVerifier for Known {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if self.knows(end_entity) {
            check_time(end_entity, now)?;
            return Ok(ClientCertVerified::assertion());
        }
        let verified = match &self.others {
            Some(others) => others.verify_client_cert(end_entity, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        let Err(error) = verified else { return verified };
        let Some(fields) = Fields::of(end_entity) else { return Err(error) };
        let fingerprint = Fingerprint::of(end_entity);
        let why = if fields.is_old {
            UnknownCertificate::Old(fingerprint)
        } else if fields.is_authority() {
            UnknownCertificate::Authority(fingerprint)
        } else if fields.is_self_issued() {
            UnknownCertificate::SelfSigned(fingerprint)
        } else {
            return Err(error);
        };
        Err(CertificateError::Other(OtherError(Arc::new(why))).into())
    }

    signatures_by!(self => self.signatures);
}

/// Whether a certificate is within its time, the first and the last second included.
///
/// # Errors
/// It is not.
pub(super) fn check_time(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<(), rustls::Error> {
    let (from, until) =
        validity(certificate).ok_or(rustls::Error::from(CertificateError::BadEncoding))?;
    let now = i128::from(now.as_secs()) * 1_000_000_000;
    if now < i128::from(from.as_nanos()) {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > i128::from(until.as_nanos()) {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustls::RootCertStore;
    use tidegate_process::tls::clients_of;

    use super::*;
    use crate::pki::{self, InitRequest, files::certificates};

    #[test]
    fn fingerprints_are_as_openssl_prints_them() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tls/ca.pem");
        let fingerprint = Fingerprint::of(&certificates("", &path).unwrap()[0]);
        let text = fingerprint.to_string();
        assert_eq!(text.len(), 95);
        for text in [text.clone(), text.to_lowercase(), text.replace(':', "")] {
            assert_eq!(Fingerprint::read(&text), Some(fingerprint));
        }
        for wrong in ["", "12:34", &text[..94], &format!("{text}0"), &text.replace(':', "g")] {
            assert_eq!(Fingerprint::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn who_came_is_taken_as_long_as_the_authority_or_pin_is_there() {
        let site = tempfile::tempdir().unwrap();
        pki::init(site.path(), &InitRequest::default()).unwrap();
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tls");
        let read = |folder: &Path, name: &str| {
            certificates("", &folder.join(format!("{name}.pem"))).unwrap()
        };
        let known = |authorities: &[CertificateDer<'static>], pins: &[Fingerprint], must: bool| {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority.clone()).unwrap();
            }
            let others = (!roots.is_empty()).then(|| clients_of(roots, false).unwrap());
            Known::new(authorities.to_vec(), pins.to_vec(), others, must)
        };
        let (signed, old) = (read(site.path(), "application"), read(&clients, "old"));
        let (ca, pin) = (read(site.path(), "ca"), Fingerprint::of(&old[0]));
        let both = known(&ca, &[pin], false);
        let (of_ca, of_pin) = (known(&ca, &[], false), known(&[], &[pin], false));
        let must = known(&ca, &[pin], true);
        for (now, former, takes_all) in [
            (&both, &both, true),
            (&both, &of_ca, true),
            (&both, &of_pin, true),
            (&of_ca, &both, false),
            (&of_pin, &both, false),
            (&must, &both, false),
            (&both, &must, true),
        ] {
            assert_eq!(now.takes_all_of(former), takes_all);
        }
        // When the time of all of them is over, who came before is still taken.
        let over = UnixTime::since_unix_epoch(Duration::from_secs(300 * 365 * 24 * 3600));
        assert!(of_ca.verify_client_cert(&signed[0], &signed[1..], over).is_err());
        assert!(of_pin.verify_client_cert(&old[0], &[], over).is_err());
        for now in [UnixTime::now(), over] {
            for (chain, by_ca, by_pin) in
                [(&signed, true, false), (&old, false, true), (&vec![], true, true)]
            {
                assert_eq!(of_ca.still_takes(chain, now), by_ca, "{chain:?}");
                assert_eq!(of_pin.still_takes(chain, now), by_pin, "{chain:?}");
            }
            assert!(!must.still_takes(&[], now));
        }
    }
}
