//! Signatures of handshakes, by the keys of certificates of whatever version: `webpki` reads keys from version 3 alone.

use rustls::{
    CertificateError, DigitallySignedStruct, PeerMisbehaved, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use tidegate_process::tls::provider;
use webpki::RawPublicKeyEntity;

use super::fields::Fields;

/// Verifies signatures by the algorithms of the [`provider`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Signatures(WebPkiSupportedAlgorithms);

impl Default for Signatures {
    fn default() -> Self {
        Self(provider().signature_verification_algorithms)
    }
}

impl Signatures {
    /// As [`ServerCertVerifier`](rustls::client::danger::ServerCertVerifier) has it.
    ///
    /// # Errors
    /// The signature is not by that key.
    pub(super) fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = key_of(certificate)?;
        let bad = || rustls::Error::from(CertificateError::BadEncoding);
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| bad())?;
        let algorithms = (self.0.mapping.iter())
            .filter(|(scheme, _)| *scheme == signature.scheme)
            .flat_map(|(_, algorithms)| algorithms.iter());
        let mut error =
            rustls::Error::from(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme);
        // A scheme of TLS 1.2 does not say of which curve its key is.
        for algorithm in algorithms {
            match key.verify_signature(*algorithm, message, signature.signature()) {
                Ok(()) => return Ok(HandshakeSignatureValid::assertion()),
                Err(_) => error = CertificateError::BadSignature.into(),
            }
        }
        Err(error)
    }

    /// As [`ServerCertVerifier`](rustls::client::danger::ServerCertVerifier) has it.
    ///
    /// # Errors
    /// The signature is not by that key.
    pub(super) fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(message, &key_of(certificate)?, signature, &self.0)
    }

    /// The schemes of these algorithms.
    pub(super) fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

fn key_of<'a>(
    certificate: &'a CertificateDer<'_>,
) -> Result<SubjectPublicKeyInfoDer<'a>, rustls::Error> {
    let fields =
        Fields::of(certificate).ok_or(rustls::Error::from(CertificateError::BadEncoding))?;
    Ok(SubjectPublicKeyInfoDer::from(fields.key))
}
