//! Handshakes that revocation lists are checked at.

use std::sync::Arc;

use rustls::{
    DistinguishedName,
    client::danger::{ServerCertVerified, ServerCertVerifier},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tidegate_process::signatures_by;

use super::Revocations;

/// A verifier that also refuses revoked certificates, by the lists as they are at the time of the handshake.
#[derive(Debug)]
pub struct Checked<V: ?Sized> {
    lists: Vec<Arc<Revocations>>,
    verifier: Arc<V>,
}

impl<V: ?Sized> Checked<V> {
    /// Certificates that `verifier` accepts and none of `lists` names.
    pub fn new(verifier: Arc<V>, lists: Vec<Arc<Revocations>>) -> Self {
        Self { lists, verifier }
    }

    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let chain: Vec<_> = std::iter::once(end_entity).chain(intermediates).collect();
        self.lists.iter().try_for_each(|lists| lists.check(&chain))
    }
}

impl ClientCertVerifier for Checked<dyn ClientCertVerifier> {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        self.check(end_entity, intermediates)?;
        Ok(verified)
    }

    signatures_by!(self => self.verifier);
}

impl ServerCertVerifier for Checked<dyn ServerCertVerifier> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        self.check(end_entity, intermediates)?;
        Ok(verified)
    }

    signatures_by!(self => self.verifier);
}
