//! TLS as every listener and client of a node begins it: rustls with ring, and verifiers that look at a chain in their own way and
//! leave the signatures of a handshake to others.

use std::sync::Arc;

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, SupportedProtocolVersion,
    WantsVerifier,
    client::WebPkiServerVerifier,
    crypto::{CryptoProvider, ring},
    server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};

/// The versions of listeners and of clients of other systems, since devices and brokers live long.
pub const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// The cryptography of all TLS.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A server's configuration without its certificates yet.
///
/// # Errors
/// The provider has none of the versions.
pub fn server(
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, rustls::Error> {
    ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions)
}

/// A client's configuration without the servers that it trusts yet.
///
/// # Errors
/// The provider has none of the versions.
pub fn client(
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions)
}

/// TLS towards a server that an authority in `roots` has certified.
///
/// # Errors
/// The provider has none of the versions.
pub fn client_of(roots: RootCertStore) -> Result<Arc<ClientConfig>, rustls::Error> {
    Ok(Arc::new(client(VERSIONS)?.with_root_certificates(roots).with_no_client_auth()))
}

/// Verifies servers that an authority in `roots` has certified.
///
/// # Errors
/// There is no authority.
pub fn servers_of(roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()
}

/// Verifies clients that an authority in `roots` has certified; unless `is_mandatory`, others may come without a certificate.
///
/// # Errors
/// There is no authority.
pub fn clients_of(
    roots: RootCertStore,
    is_mandatory: bool,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    if is_mandatory { builder } else { builder.allow_unauthenticated() }.build()
}

/// The methods of a verifier that are about signatures and not about certificates: as `verifier` has them.
#[macro_export]
macro_rules! signatures_by {
    ($self:ident => $verifier:expr) => {
        fn verify_tls12_signature(
            &$self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            $verifier.verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &$self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            $verifier.verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&$self) -> Vec<rustls::SignatureScheme> {
            $verifier.supported_verify_schemes()
        }
    };
}
