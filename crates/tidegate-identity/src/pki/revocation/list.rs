//! One certificate revocation list (RFC 5280 section 5) of an authority whose signature was checked.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tidegate_message::Instant;
use tidegate_wire::NodeId;
use webpki::{BorrowedCertRevocationList, CertRevocationList, EndEntityCert};

use crate::pki::{
    der::{
        BIT_STRING, CONTEXT_0, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, element, time,
    },
    fields::Fields,
    provider,
};

/// An authority's list of its certificates that are revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationList {
    /// The authority's name, in DER without its tag.
    pub(super) issuer: Vec<u8>,
    /// The hash of the key of the authority that signed it (SHA-256 of the SubjectPublicKeyInfo).
    pub authority: NodeId,
    /// The whole list, as it was signed.
    pub(super) der: Arc<[u8]>,
    /// Grows from list to list; zero if the authority does not count them.
    pub number: ListNumber,
    /// When it was signed.
    pub signed_at: Instant,
    /// By when the authority means to have signed the next.
    pub next_at: Instant,
    /// The certificates.
    pub entries: BTreeMap<Serial, Revoked>,
}

/// When and why a certificate was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// When the authority revoked it, to the second.
    pub at: Instant,
    /// Why.
    pub reason: Reason,
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// It is no list in DER, or of a sort that is not supported: version 1, delta or indirect.
    #[error("it is not a readable revocation list (RFC 5280)")]
    Malformed(#[source] webpki::Error),
    /// Its dates, number or signature cannot be found.
    #[error("its dates, number or signature cannot be read")]
    Outline,
    /// None of the authorities in question has signed it.
    #[error("it is not signed by a trusted authority")]
    Foreign,
}

impl RevocationList {
    /// Reads a list in DER that one of `authorities` has signed.
    ///
    /// # Errors
    /// [`ListError`].
    pub fn read(der: &[u8], authorities: &[CertificateDer<'_>]) -> Result<Self, ListError> {
        let borrowed = BorrowedCertRevocationList::from_der(der).map_err(ListError::Malformed)?;
        let mut entries = BTreeMap::new();
        for entry in &borrowed {
            let entry = entry.map_err(ListError::Malformed)?;
            let at = i64::try_from(entry.revocation_date.as_secs()).unwrap_or(i64::MAX);
            let at = Instant::from_nanos(at.saturating_mul(1_000_000_000));
            let reason = entry.reason_code.map_or(Reason::Unspecified, Reason::of);
            entries.insert(Serial(entry.serial_number.into()), Revoked { at, reason });
        }
        let issuer = CertRevocationList::from(borrowed).issuer().to_vec();
        let outline = Outline::of(der).ok_or(ListError::Outline)?;
        let mut authorities = authorities.iter();
        let signer = authorities.find(|authority| outline.is_signed_by(authority, &issuer));
        let signer = signer.and_then(Fields::of).ok_or(ListError::Foreign)?;
        let authority = NodeId(Sha256::digest(signer.key).into());
        let Outline { number, signed_at, next_at, .. } = outline;
        Ok(Self { issuer, authority, der: der.into(), number, signed_at, next_at, entries })
    }

    /// Orders the lists of an authority. One that does not count its lists dates them.
    pub(super) fn age(&self) -> (ListNumber, Instant) {
        (self.number, self.signed_at)
    }

    /// The version under which nodes share the list: of two lists of an authority, the newer has the higher one.
    ///
    /// It is the number times 2^32 plus the time of signing, in seconds since 1970, up to 2106: an authority that was restored from a
    /// copy gives a number twice. Where numbers reach 2^29, it is 2^61 plus the number, up to 2^62 - 1, so that there is room above the
    /// last; beyond that, versions no longer tell lists apart, and nodes do not spread them.
    pub fn version(&self) -> u64 {
        let seconds = self.signed_at.as_nanos() / 1_000_000_000;
        let seconds = u32::try_from(seconds.max(0)).unwrap_or(u32::MAX);
        match self.number.as_u64() {
            Some(number @ ..0x2000_0000) => number << 32 | u64::from(seconds),
            number => number.unwrap_or(u64::MAX).min((1 << 61) - 1) | 1 << 61,
        }
    }

    /// Whether the list is past the time by which the next was to be signed.
    pub fn is_overdue(&self, now: Instant) -> bool {
        now > self.next_at
    }
}

/// The fields that `webpki` reads and does not return.
struct Outline<'a> {
    /// The signed bytes, with tag and length.
    signed: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
    signed_at: Instant,
    next_at: Instant,
    number: ListNumber,
}

impl<'a> Outline<'a> {
    /// RFC 5280 section 5.1.
    fn of(der: &'a [u8]) -> Option<Self> {
        let (SEQUENCE, whole, []) = element(der)? else { return None };
        let (SEQUENCE, mut fields, after) = element(whole)? else { return None };
        let signed = &whole[..whole.len() - after.len()];
        let (SEQUENCE, algorithm, after) = element(after)? else { return None };
        let (BIT_STRING, signature, []) = element(after)? else { return None };
        let (0, signature) = signature.split_first()? else { return None };
        // Version, algorithm and issuer.
        for expected in [INTEGER, SEQUENCE, SEQUENCE] {
            let (tag, _, rest) = element(fields)?;
            fields = (tag == expected).then_some(rest)?;
        }
        let (tag, text, rest) = element(fields)?;
        let signed_at = time(tag, text)?;
        let (tag, text, mut rest) = element(rest)?;
        let next_at = time(tag, text)?;
        if rest.first() == Some(&SEQUENCE) {
            (_, _, rest) = element(rest)?;
        }
        let (CONTEXT_0, extensions, []) = element(rest)? else { return None };
        let (SEQUENCE, extensions, []) = element(extensions)? else { return None };
        let number = number_in(extensions)?;
        Some(Self { signed, algorithm, signature, signed_at, next_at, number })
    }

    fn is_signed_by(&self, authority: &CertificateDer<'_>, issuer: &[u8]) -> bool {
        // Only its name and key are looked at.
        let Ok(authority) = EndEntityCert::try_from(authority) else { return false };
        let algorithms = provider().signature_verification_algorithms.all;
        let mut fitting = algorithms
            .iter()
            .filter(|algorithm| algorithm.signature_alg_id().as_ref() == self.algorithm);
        authority.subject() == issuer
            && fitting.any(|algorithm| {
                authority.verify_signature(*algorithm, self.signed, self.signature).is_ok()
            })
    }
}

/// id-ce-cRLNumber, 2.5.29.20 (RFC 5280 section 5.2.3).
const LIST_NUMBER: [u8; 3] = [0x55, 0x1d, 0x14];

/// The list's number among its extensions; zero if it has none.
fn number_in(mut extensions: &[u8]) -> Option<ListNumber> {
    while !extensions.is_empty() {
        let (SEQUENCE, extension, rest) = element(extensions)? else { return None };
        extensions = rest;
        let (OBJECT_IDENTIFIER, identifier, value) = element(extension)? else { return None };
        if identifier == LIST_NUMBER {
            let (OCTET_STRING, value, []) = element(value)? else { return None };
            let (INTEGER, number, []) = element(value)? else { return None };
            return ListNumber::of(number);
        }
    }
    Some(ListNumber::default())
}

/// The number of a list: up to 20 bytes, big-endian (RFC 5280 section 5.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListNumber([u8; 20]);

impl ListNumber {
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut number = [0; 20];
        let start = number.len().checked_sub(bytes.len())?;
        number[start..].copy_from_slice(bytes);
        Some(Self(number))
    }

    /// The one after it; none after the last.
    pub(crate) fn next(mut self) -> Option<Self> {
        for byte in self.0.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                // The first bit is the sign's.
                return (self.0[0] < 0x80).then_some(self);
            }
        }
        None
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// None of a larger one.
    fn as_u64(self) -> Option<u64> {
        let (above, number) = self.0.split_last_chunk()?;
        above.iter().all(|byte| *byte == 0).then(|| u64::from_be_bytes(*number))
    }
}

/// In hexadecimal digits.
impl fmt::Display for ListNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

/// The serial number of a certificate (RFC 5280 section 4.1.2.2): unique among those of one authority.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(Box<[u8]>);

impl Serial {
    /// Of that certificate; none if it is none.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        Some(Self(Fields::of(certificate)?.serial.into()))
    }

    pub(crate) fn in_certificate(certificate: &EndEntityCert<'_>) -> Self {
        Self(certificate.serial().into())
    }

    /// As DER has it: big-endian, with a zero before a first bit that is set.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// In hexadecimal digits.
impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

/// Pairs of digits, without the zeros before the first; at least one pair.
fn hexadecimal(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let shown = &bytes[zeros.min(bytes.len().saturating_sub(1))..];
    shown.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Hexadecimal digits, in pairs that may stand apart by colons.
impl FromStr for Serial {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits: Vec<u8> = text
            .bytes()
            .filter(|byte| *byte != b':')
            .map(|byte| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()
            .ok_or(())?;
        let (pairs, []) = digits.as_chunks::<2>() else { return Err(()) };
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        let first = bytes.iter().position(|byte| *byte != 0).ok_or(())?;
        let sign: &[u8] = if bytes[first] < 0x80 { &[] } else { &[0] };
        Ok(Self([sign, &bytes[first..]].concat().into()))
    }
}

/// Why a certificate was revoked (RFC 5280 section 5.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// It is not said.
    #[default]
    Unspecified,
    /// Another party has its key, or may have it.
    KeyCompromise,
    /// Another party has its authority's key.
    AuthorityCompromise,
    /// Its owner is another's now.
    AffiliationChanged,
    /// There is a newer one.
    Superseded,
    /// Its service has ended.
    CessationOfOperation,
    /// It does not count for now.
    Hold,
    /// Its owner may no longer do what it was for.
    PrivilegeWithdrawn,
}

impl Reason {
    const ALL: [Self; 8] = [
        Self::Unspecified,
        Self::KeyCompromise,
        Self::AuthorityCompromise,
        Self::AffiliationChanged,
        Self::Superseded,
        Self::CessationOfOperation,
        Self::Hold,
        Self::PrivilegeWithdrawn,
    ];

    /// Those that `tidegate revoke` takes: of certificates that are not an authority's, and for good.
    pub const CHOICES: [Self; 6] = [
        Self::Unspecified,
        Self::KeyCompromise,
        Self::AffiliationChanged,
        Self::Superseded,
        Self::CessationOfOperation,
        Self::PrivilegeWithdrawn,
    ];

    /// The standard's word, in small letters.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::KeyCompromise => "key-compromise",
            Self::AuthorityCompromise => "ca-compromise",
            Self::AffiliationChanged => "affiliation-changed",
            Self::Superseded => "superseded",
            Self::CessationOfOperation => "cessation-of-operation",
            Self::Hold => "certificate-hold",
            Self::PrivilegeWithdrawn => "privilege-withdrawn",
        }
    }

    fn of(read: webpki::RevocationReason) -> Self {
        use webpki::RevocationReason as Read;
        match read {
            // Delta lists, which alone take entries out again, are not read.
            Read::Unspecified | Read::RemoveFromCrl => Self::Unspecified,
            Read::KeyCompromise => Self::KeyCompromise,
            Read::CaCompromise | Read::AaCompromise => Self::AuthorityCompromise,
            Read::AffiliationChanged => Self::AffiliationChanged,
            Read::Superseded => Self::Superseded,
            Read::CessationOfOperation => Self::CessationOfOperation,
            Read::CertificateHold => Self::Hold,
            Read::PrivilegeWithdrawn => Self::PrivilegeWithdrawn,
        }
    }
}

impl FromStr for Reason {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word).ok_or(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_the_order_of_lists() {
        let number = |bytes: &[u8]| ListNumber::of(bytes).unwrap();
        let list = |number: ListNumber, seconds: i64| RevocationList {
            issuer: Vec::new(),
            authority: NodeId([0; 32]),
            der: Arc::new([]),
            number,
            signed_at: Instant::from_nanos(seconds * 1_000_000_000),
            next_at: Instant::EPOCH,
            entries: BTreeMap::new(),
        };
        let least = [
            (number(&[]), 0),
            (number(&[]), 1_800_000_000),
            (number(&[]), u32::MAX.into()),
            (number(&[1]), 0),
            (number(&[1]), 1),
            (number(&[2]), 0),
            (number(&[0x1f, 0xff, 0xff, 0xff]), u32::MAX.into()),
            (number(&[0x20, 0, 0, 0]), 0),
            (number(&[0x20, 0, 0, 1]), 0),
            (number(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]), 0),
            (number(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), 0),
        ]
        .map(|(number, seconds)| list(number, seconds));
        for pair in least.windows(2) {
            assert!(pair[0].age() < pair[1].age() && pair[0].version() < pair[1].version());
        }
        // Beyond both ends they are equal, and none is out of order.
        assert_eq!(list(number(&[0x80; 20]), 0).version(), (1 << 62) - 1);
        assert_eq!(list(number(&[]), -1).version(), 0);
        assert_eq!(list(number(&[]), i64::MAX / 1_000_000_000).version(), u64::from(u32::MAX));
    }
}
