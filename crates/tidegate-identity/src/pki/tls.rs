//! Verifiers of certificates that look at a chain in their own way, and leave the signatures of a handshake to another.

use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::CertificateDer;

/// The methods of a verifier that are about signatures and not about certificates: as `verifier` has them.
macro_rules! signatures_by {
    ($self:ident => $verifier:expr) => {
        fn verify_tls12_signature(
            &$self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            $verifier.verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &$self,
            message: &[u8],
            certificate: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            $verifier.verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&$self) -> Vec<rustls::SignatureScheme> {
            $verifier.supported_verify_schemes()
        }
    };
}
pub(super) use signatures_by;

/// Verifies signatures with the keys of certificates of X.509 version 3, by these algorithms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signatures(pub(super) WebPkiSupportedAlgorithms);

impl Signatures {
    pub(super) fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    pub(super) fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    pub(super) fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
