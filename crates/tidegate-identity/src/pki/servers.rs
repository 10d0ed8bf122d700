//! Servers' certificates: which of others are trusted, and how our own are shown.
//!
//! Always true: a server is trusted by an authority that is named, or because its very certificate is; a key that a certificate of X.509
//! version 1 was made for by another authority signs no further ones.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, OtherError, RootCertStore,
    client::{
        WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    server::ParsedCertificate,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tidegate_api::ApiError;
use tidegate_message::Code;
use tidegate_process::{
    signatures_by,
    tls::{self, provider},
};

use super::{
    fields::Fields,
    files::{SYSTEM_AUTHORITIES, authorities, unreadable},
    known::{Fingerprint, check_time},
    signatures::Signatures,
};

/// Trusts servers that an authority has certified for their name, and those whose very certificate is named: of X.509 version 1, as
/// mosquitto-tls(7) makes them, or signed by themselves. One of version 3 that is named must be for the server's name as well; one
/// of version 1 has no place for it.
#[derive(Debug)]
pub struct TrustedServers {
    /// Authorities among them.
    named: Vec<CertificateDer<'static>>,
    others: Option<Arc<WebPkiServerVerifier>>,
    signatures: Signatures,
}

impl TrustedServers {
    /// Trusts those certificates, and what the authorities among them certify.
    ///
    /// # Errors
    /// One of them can be neither.
    pub fn new(named: Vec<CertificateDer<'static>>) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for certificate in named.iter().filter(|certificate| !is_server_alone(certificate)) {
            roots.add(certificate.clone())?;
        }
        Self::of(named, roots)
    }

    /// Trusts what the system's authorities certify.
    fn of_system(key: &str) -> Result<Self, ApiError> {
        let path = Path::new(SYSTEM_AUTHORITIES);
        let mut roots = RootCertStore::empty();
        for certificate in authorities(key, path)? {
            // One of many of the system's may be odd.
            if let Err(error) = roots.add(certificate) {
                tracing::debug!(%error, path = %path.display(), "an authority is not used");
            }
        }
        Self::of(Vec::new(), roots).map_err(|error| unreadable(key, path, &error))
    }

    fn of(
        named: Vec<CertificateDer<'static>>,
        roots: RootCertStore,
    ) -> Result<Self, rustls::Error> {
        let others = (!roots.is_empty()).then(|| tls::servers_of(roots)).transpose();
        let others = others.map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Self { named, others, signatures: Signatures::default() })
    }
}

/// Trusts the servers of the certificates in the file that `key` names, else those of the system's authorities.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
pub fn trusted(key: &str, named: Option<&Path>) -> Result<Arc<dyn ServerCertVerifier>, ApiError> {
    let Some(path) = named else { return Ok(Arc::new(TrustedServers::of_system(key)?)) };
    let trusted = TrustedServers::new(authorities(key, path)?);
    Ok(Arc::new(trusted.map_err(|error| unreadable(key, path, &error))?))
}

/// TLS towards the servers that [`trusted`] trusts.
///
/// # Errors
/// As there.
pub fn client_tls(key: &str, named: Option<&Path>) -> Result<Arc<ClientConfig>, ApiError> {
    let builder = tls::client(tls::VERSIONS).map_err(|error| {
        ApiError::new(Code::INTERNAL, "TLS cannot be configured").caused_by(error)
    })?;
    let builder = builder.dangerous().with_custom_certificate_verifier(trusted(key, named)?);
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// Whether it is of a server and of no authority although webpki would make it one: another authority made it, and version 1 cannot say that it
/// made one more. OpenSSL takes it for none as well.
fn is_server_alone(certificate: &CertificateDer<'_>) -> bool {
    Fields::of(certificate).is_some_and(|fields| fields.is_old && !fields.is_self_issued())
}

impl ServerCertVerifier for TrustedServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let fields = Fields::of(end_entity);
        if self.named.contains(end_entity) {
            check_time(end_entity, now)?;
            if !fields.is_some_and(|fields| fields.is_old) {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        let verified = match &self.others {
            Some(others) => others.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            ),
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        let (Err(_), Some(fields)) = (&verified, fields) else { return verified };
        let fingerprint = Fingerprint::of(end_entity);
        let why = if fields.is_old {
            UntrustedServer::Old(fingerprint)
        } else if fields.is_authority() {
            UntrustedServer::Authority(fingerprint)
        } else {
            return verified;
        };
        // Not as an error of a certificate: rustls prints those with the names of its types.
        Err(rustls::Error::Other(OtherError(Arc::new(why))))
    }

    signatures_by!(self => self.signatures);
}

/// Why a server's certificate is not trusted that might be if it were named.
#[derive(Debug, thiserror::Error)]
pub enum UntrustedServer {
    /// It is of a version that no authority's word counts for.
    #[error(
        "the server's certificate is of X.509 version 1, which says of no host that it is for it: make it again with extensions (openssl x509 -req \
         -extfile FILE, where FILE has subjectAltName=DNS:HOST), or add that very certificate to the file of those that are trusted (ca, \
         token_keys_ca, --cafile); its SHA-256 fingerprint is {0}"
    )]
    Old(Fingerprint),
    /// It says that it is of an authority.
    #[error(
        "the server shows the certificate of an authority (CA:TRUE, as openssl req -x509 makes it), which is only trusted where that very \
         certificate is in the file of those that are trusted (ca, token_keys_ca, --cafile); its SHA-256 fingerprint is {0}"
    )]
    Authority(Fingerprint),
}

/// Trusts any server, as cameras need it, whose certificates are made by themselves. The content is hidden from listeners; the peer is
/// not authenticated, but has the key of the certificate that it shows.
#[derive(Debug, Default)]
pub struct AnyServer(Signatures);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures_by!(self => self.0);
}

/// A verifier of servers that takes a certificate for whatever name it is, once all else about it is right.
#[derive(Debug)]
pub struct AnyName(Arc<dyn ServerCertVerifier>);

impl AnyName {
    /// The verdict of `verifier`, names aside.
    pub fn new(verifier: Arc<dyn ServerCertVerifier>) -> Self {
        Self(verifier)
    }
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    signatures_by!(self => self.0);
}

/// A chain of certificates with the key of its first, to be shown by a listener or a client. Of whatever version that one is: peers judge it,
/// and those that use OpenSSL take version 1, which rustls does not read.
///
/// # Errors
/// [`NotCertified`].
pub fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<SingleCertAndKey>, NotCertified> {
    let key = provider().key_provider.load_private_key(key).map_err(NotCertified::Key)?;
    let first = chain.first().ok_or(NotCertified::Unreadable)?;
    let fields = Fields::of(first).ok_or(NotCertified::Unreadable)?;
    match key.public_key() {
        Some(of_key) if *of_key != *fields.key => Err(NotCertified::OtherKey),
        _ => Ok(Arc::new(CertifiedKey::new(chain, key).into())),
    }
}

/// Why a certificate cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum NotCertified {
    /// TLS cannot use the key.
    #[error("the key cannot be used")]
    Key(#[source] rustls::Error),
    /// There is none that can be read.
    #[error("the first certificate cannot be read")]
    Unreadable,
    /// The key is another's.
    #[error("the first certificate is not of that key; name the key that it was requested with")]
    OtherKey,
    /// TLS cannot be configured.
    #[error("TLS cannot be configured")]
    Tls(#[from] rustls::Error),
}

#[cfg(test)]
mod tests;
