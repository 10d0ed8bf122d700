//! The fields of a certificate, of whatever version: `webpki` reads version 3 alone, and OpenSSL makes version 1 unless extensions
//! are asked for.

use rustls_pki_types::CertificateDer;

use super::der::{
    BIT_STRING, CONTEXT_0, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, element,
};

/// Explicitly tagged, the extensions of a certificate.
const CONTEXT_3: u8 = 0xa3;
const BOOLEAN: u8 = 0x01;
/// Of extensions (RFC 5280, section 4.2.1).
const SUBJECT_KEY_ID: [u8; 3] = [0x55, 0x1d, 0x0e];
const KEY_USAGE: [u8; 3] = [0x55, 0x1d, 0x0f];
const BASIC_CONSTRAINTS: [u8; 3] = [0x55, 0x1d, 0x13];
const AUTHORITY_KEY_ID: [u8; 3] = [0x55, 0x1d, 0x23];
/// Of [`AUTHORITY_KEY_ID`], the identifier of the key.
const KEY_ID: u8 = 0x80;
/// Of the first byte of [`KEY_USAGE`], that certificates are signed.
const KEY_CERT_SIGN: u8 = 0b100;

/// The fields of a certificate, unverified.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// As DER has it.
    pub(crate) serial: &'a [u8],
    /// The names in it, without the head of their sequence.
    pub(crate) issuer: &'a [u8],
    /// The same of its owner.
    pub subject: &'a [u8],
    /// Its public key, with all that says what key it is (SubjectPublicKeyInfo).
    pub(crate) key: &'a [u8],
    /// Whether it is of version 1 or 2, in which there are no extensions.
    pub(crate) is_old: bool,
    extensions: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    /// Those of a certificate; none if it cannot be read.
    pub fn of(certificate: &'a CertificateDer<'_>) -> Option<Self> {
        let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
        let (SEQUENCE, mut rest, _) = element(certificate)? else { return None };
        let mut is_old = true;
        if rest.first() == Some(&CONTEXT_0) {
            let (_, version, after) = element(rest)?;
            let (INTEGER, version, _) = element(version)? else { return None };
            (is_old, rest) = (version != [2], after);
        }
        let (INTEGER, serial, rest) = element(rest)? else { return None };
        let (SEQUENCE, _, rest) = element(rest)? else { return None };
        let (SEQUENCE, issuer, rest) = element(rest)? else { return None };
        let (SEQUENCE, _, rest) = element(rest)? else { return None };
        let (SEQUENCE, subject, rest) = element(rest)? else { return None };
        let (SEQUENCE, _, mut after) = element(rest)? else { return None };
        let key = rest.get(..rest.len() - after.len())?;
        let mut extensions = None;
        while let Some((tag, content, rest)) = element(after) {
            if tag == CONTEXT_3
                && let Some((SEQUENCE, all, _)) = element(content)
            {
                extensions = Some(all);
            }
            after = rest;
        }
        Some(Self { serial, issuer, subject, key, is_old, extensions })
    }

    /// Whether it names itself as its issuer.
    pub fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Whether it is of an authority: it says so, or, where it does not say, that its key signs certificates. One without
    /// extensions says neither.
    pub fn is_authority(&self) -> bool {
        if let Some(constraints) = self.extension(BASIC_CONSTRAINTS) {
            let Some((SEQUENCE, constraints, _)) = element(constraints) else { return false };
            return matches!(element(constraints), Some((BOOLEAN, [0xff], _)));
        }
        let Some(usage) = self.extension(KEY_USAGE) else { return false };
        // The first byte counts the unused bits of the last.
        matches!(element(usage), Some((BIT_STRING, [_, bits, ..], _)) if bits & KEY_CERT_SIGN != 0)
    }

    /// Whether an authority with these fields may have made it: their names, and the identifiers of the key where both have one.
    pub(crate) fn may_be_made_by(&self, authority: &Fields<'_>) -> bool {
        let asked = self.extension(AUTHORITY_KEY_ID).and_then(|all| {
            let (SEQUENCE, all, _) = element(all)? else { return None };
            element(all).filter(|(tag, ..)| *tag == KEY_ID).map(|(_, id, _)| id)
        });
        let found = authority.extension(SUBJECT_KEY_ID).and_then(|id| {
            element(id).filter(|(tag, ..)| *tag == OCTET_STRING).map(|(_, id, _)| id)
        });
        self.issuer == authority.subject
            && asked.zip(found).is_none_or(|(asked, found)| asked == found)
    }

    fn extension(&self, identifier: [u8; 3]) -> Option<&'a [u8]> {
        let mut rest = self.extensions?;
        while let Some((SEQUENCE, extension, after)) = element(rest) {
            let (OBJECT_IDENTIFIER, found, mut value) = element(extension)? else { return None };
            if found == identifier {
                if value.first() == Some(&BOOLEAN) {
                    (_, _, value) = element(value)?;
                }
                let (OCTET_STRING, value, _) = element(value)? else { return None };
                return Some(value);
            }
            rest = after;
        }
        None
    }
}

/// `chain`, with the certificates of `pool` between its end and the authority behind it, which clients have themselves.
pub fn completed(
    mut chain: Vec<CertificateDer<'static>>,
    pool: &[CertificateDer<'static>],
) -> Vec<CertificateDer<'static>> {
    for _ in 0..pool.len() {
        let Some(last) = chain.last().and_then(|last| Fields::of(last)) else { break };
        if last.is_self_issued() {
            break;
        }
        let is_next = |candidate: &&CertificateDer<'static>| {
            let fields = Fields::of(candidate);
            fields.is_some_and(|fields| {
                fields.is_authority() && !fields.is_self_issued() && last.may_be_made_by(&fields)
            }) && !chain.contains(candidate)
        };
        let Some(next) = pool.iter().find(is_next).cloned() else { break };
        chain.push(next);
    }
    chain
}
