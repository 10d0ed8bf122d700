//! Seals: bytes with the certificate of the node that wrote them, and its signature, which nodes that relay them cannot change.
//!
//! Always true: a seal says who wrote the bytes, not when; an older one of the same node opens as well, and is told apart by a number in
//! the bytes.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustls::{SignatureScheme, pki_types::CertificateDer};
use rustls_pki_types::UnixTime;
use sha2::{Digest as _, Sha256};
use tidegate_message::Instant;
use webpki::{EndEntityCert, ring::ECDSA_P256_SHA256};

use super::{
    Credentials, Kind, PeerIdentity, PkiError, first_second, identity_of,
    revocation::{Reason, Revoked},
    validity, verify_chain,
};

/// Stands before the bytes where they are signed, so that no signature for another purpose, such as that of a handshake, opens a seal.
const DOMAIN: &[u8] = b"tidegate member 1\0";

/// Most certificates of others that are remembered as verified, each with some 200 bytes: more than a site has nodes.
const VERIFIED_MAX: usize = 4096;

/// Why a seal is not made, or does not open.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The key of this node makes no such signatures.
    #[error(
        "the key of {name} signs no records for other nodes, which takes ECDSA on P-256; have a new certificate made: `tidegate invite`, \
         or `tidegate init --add`"
    )]
    Key {
        /// The name of the own certificate.
        name: String,
    },
    /// The system's random number generator failed.
    #[error("the bytes cannot be signed")]
    Sign(#[source] rustls::Error),
    /// The certificate is none, or not by the authority of this site.
    #[error("the certificate of the seal was not made by the authority of this site")]
    Untrusted(#[source] webpki::Error),
    /// It names no identity of ours.
    #[error("the certificate of the seal is not a node's of tidegate")]
    Identity(#[source] PkiError),
    /// It is not a node's.
    #[error("the seal is by {0}, and only nodes seal")]
    NotNode(PeerIdentity),
    /// It has expired.
    #[error(
        "the certificate of {0}, by which the bytes are sealed, has expired; have a new one made for it: `tidegate invite`"
    )]
    Expired(PeerIdentity),
    /// It is not valid yet.
    #[error(
        "the certificate of {0}, by which the bytes are sealed, is not valid yet; set this machine's clock"
    )]
    NotYetValid(PeerIdentity),
    /// It was revoked.
    #[error("the certificate of {peer}, by which the bytes are sealed, was revoked ({reason})")]
    Revoked {
        /// Its owner.
        peer: PeerIdentity,
        /// Why it was revoked.
        reason: Reason,
    },
    /// The key of the certificate has not signed these bytes.
    #[error("the bytes are not as {0} signed them")]
    Forged(PeerIdentity),
}

/// Certificates that were verified, by their SHA-256.
#[derive(Debug, Default)]
pub(super) struct VerifiedCertificates(Mutex<HashMap<[u8; 32], Verified>>);

/// A node's certificate by the authority of the site.
#[derive(Clone, Debug)]
struct Verified {
    peer: PeerIdentity,
    /// The first and the last second that it is valid.
    valid: (Instant, Instant),
}

impl Credentials {
    /// The certificate of this node and its signature of `bytes`: ECDSA on P-256 with SHA-256, as ASN.1.
    ///
    /// # Errors
    /// [`SealError::Key`] if the node's key is of another sort, [`SealError::Sign`].
    pub fn seal(&self, bytes: &[u8]) -> Result<(CertificateDer<'static>, Vec<u8>), SealError> {
        let unfit = || SealError::Key { name: self.identity.name.clone() };
        let schemes = [SignatureScheme::ECDSA_NISTP256_SHA256];
        let signer = self.certified.key.choose_scheme(&schemes).ok_or_else(unfit)?;
        let signature = signer.sign(&signed_bytes(bytes)).map_err(SealError::Sign)?;
        let certificate = self.certified.cert.first().ok_or_else(unfit)?;
        Ok((certificate.clone(), signature))
    }

    /// The node that sealed `bytes`: its certificate (DER) is by the authority of this site, valid now and not revoked, and its key
    /// has signed the bytes. A certificate is verified once, and looked for among the revoked ones each time.
    ///
    /// # Errors
    /// [`SealError`], which says what is wrong with the seal.
    pub fn open_sealed(
        &self,
        certificate: &[u8],
        signature: &[u8],
        bytes: &[u8],
    ) -> Result<PeerIdentity, SealError> {
        self.open_sealed_at(certificate, signature, bytes, UnixTime::now())
    }

    fn open_sealed_at(
        &self,
        certificate: &[u8],
        signature: &[u8],
        bytes: &[u8],
        now: UnixTime,
    ) -> Result<PeerIdentity, SealError> {
        let certificate = CertificateDer::from(certificate);
        let Verified { peer, valid: (from, until) } = self.verified(&certificate)?;
        let now = Instant::from_nanos(
            i64::try_from(Duration::from_secs(now.as_secs()).as_nanos()).unwrap_or(i64::MAX),
        );
        if now < from {
            return Err(SealError::NotYetValid(peer));
        }
        if now > until {
            return Err(SealError::Expired(peer));
        }
        if let Some(Revoked { reason, .. }) = self.revocations.find(&certificate) {
            return Err(SealError::Revoked { peer, reason });
        }
        let parsed = EndEntityCert::try_from(&certificate).map_err(SealError::Untrusted)?;
        match parsed.verify_signature(ECDSA_P256_SHA256, &signed_bytes(bytes), signature) {
            Ok(()) => Ok(peer),
            Err(_) => Err(SealError::Forged(peer)),
        }
    }

    /// A node's certificate by the authority of this site, whether or not it is valid now.
    fn verified(&self, certificate: &CertificateDer<'_>) -> Result<Verified, SealError> {
        let digest: [u8; 32] = Sha256::digest(certificate).into();
        let known = || self.sealers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verified) = known().get(&digest) {
            return Ok(verified.clone());
        }
        // At a time of its own, so that one that is over is told apart from one of a stranger.
        let then = first_second(certificate);
        verify_chain(certificate, &self.authority, then).map_err(SealError::Untrusted)?;
        let valid = validity(certificate).ok_or(SealError::Untrusted(webpki::Error::BadDer))?;
        let peer = identity_of(certificate).map_err(SealError::Identity)?;
        if peer.kind != Kind::Node {
            return Err(SealError::NotNode(peer));
        }
        let verified = Verified { peer, valid };
        let mut known = known();
        if known.len() >= VERIFIED_MAX
            && let Some(any) = known.keys().next().copied()
        {
            // Any of them makes room: it is verified once more when it comes again.
            known.remove(&any);
        }
        known.insert(digest, verified.clone());
        Ok(verified)
    }
}

fn signed_bytes(bytes: &[u8]) -> Vec<u8> {
    [DOMAIN, bytes].concat()
}

#[cfg(test)]
mod tests;
