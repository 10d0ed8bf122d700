//! Certifying a key that another machine has made.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey as _};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::danger::{ServerCertVerified, ServerCertVerifier},
    server::NoClientAuth,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use tidegate_process::{signatures_by, tls};

use super::{
    Credentials, Kind, PeerIdentity, PkiError, checked_name,
    issue::{Signer, certify, signer, writable, write_all},
    issued::{Issued, record},
    read_certificate,
    signatures::Signatures,
};

/// The authority of a site, with its key.
pub struct Authority {
    dir: PathBuf,
    signer: Signer,
    pem: String,
}

impl Authority {
    /// The one in `dir`.
    ///
    /// # Errors
    /// [`PkiError::Missing`] if its key is not here, and if its files are not what they should be.
    pub fn load(dir: &Path) -> Result<Self, PkiError> {
        let (pem, _) = read_certificate(&dir.join("ca.pem"))?;
        let pem = String::from_utf8_lossy(&pem).into_owned();
        Ok(Self { dir: dir.to_owned(), signer: signer(dir)?, pem })
    }

    /// Its certificate in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate in PEM for a key that is elsewhere: `public_key` is a point of P-256, uncompressed.
    ///
    /// # Errors
    /// [`PkiError`] for names and hosts that cannot be, and if it cannot be written down.
    pub fn issue(
        &self,
        kind: Kind,
        name: &str,
        hosts: &[String],
        valid_for: Duration,
        public_key: &[u8],
    ) -> Result<String, PkiError> {
        let key = PublicKey(public_key);
        let made = certify(&self.signer, kind, checked_name(name)?, hosts, valid_for, &key)?;
        // There is no certificate that could not be revoked by name.
        record(&self.dir, &[Issued::of(made.der())?])?;
        Ok(made.pem())
    }
}

struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// A private key that has no certificate yet.
pub struct NewKey(KeyPair);

impl NewKey {
    /// A new one, on P-256.
    ///
    /// # Errors
    /// [`PkiError::Issue`] if the system's random number generator failed.
    pub fn generate() -> Result<Self, PkiError> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Self).map_err(failed)
    }

    /// Its public half: a point, uncompressed (SEC 1, section 2.3.3).
    pub fn public(&self) -> &[u8] {
        self.0.public_key_raw()
    }

    /// ECDSA with SHA-256 over `message`, as ASN.1.
    ///
    /// # Errors
    /// [`PkiError::Issue`] if the system's random number generator failed.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        self.0.sign(message).map_err(failed)
    }
}

fn failed(source: rcgen::Error) -> PkiError {
    PkiError::Issue { name: "a new key".to_owned(), source }
}

/// Whether `signature` is one of `message` by the owner of `public_key`, which is then a point of the curve.
pub fn signed(public_key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    webpki::ring::ECDSA_P256_SHA256.verify_signature(public_key, message, signature).is_ok()
}

/// SHA-256 of the certificate in `pem`; none if there is none.
pub fn fingerprint(pem: &[u8]) -> Option<[u8; 32]> {
    CertificateDer::from_pem_slice(pem).ok().map(|certificate| hash(&certificate))
}

fn hash(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// Fails if certificates could not be written to `dir`, without writing any.
///
/// # Errors
/// [`PkiError::Exists`] if there is an authority already, [`PkiError::Write`].
pub fn is_writable(dir: &Path) -> Result<(), PkiError> {
    writable(dir, &["ca.pem"])
}

/// Writes what came of an invitation: the certificate, its key, and the authority.
///
/// # Errors
/// [`PkiError`] if the certificate is not for that name and key, or if a file cannot be written.
pub fn write_joined(
    dir: &Path,
    name: &str,
    certificate: &str,
    key: &NewKey,
    authority: &str,
) -> Result<PathBuf, PkiError> {
    let name = checked_name(name)?;
    let path = dir.join(format!("{name}.pem"));
    let der = CertificateDer::from_pem_slice(certificate.as_bytes())
        .map_err(|source| PkiError::Malformed { path: path.clone(), source })?;
    let identity = PeerIdentity::of_chain(std::slice::from_ref(&der))?;
    if identity.name != name
        || identity.node.0 != <[u8; 32]>::from(Sha256::digest(key.0.subject_public_key_info()))
    {
        return Err(PkiError::KeyMismatch {
            path,
            source: rustls::Error::General("the certificate is for another name or key".to_owned()),
        });
    }
    let files = [
        (format!("{name}.key"), key.0.serialize_pem()),
        (format!("{name}.pem"), certificate.to_owned()),
        ("ca.pem".to_owned(), authority.to_owned()),
    ];
    write_all(dir, &files)?;
    Ok(path)
}

impl Credentials {
    /// Configuration of a server that asks no certificate of its clients, and shows the authority's in addition to
    /// its own.
    ///
    /// # Errors
    /// [`PkiError::Kind`] unless the credentials are a node's.
    pub fn open_server_tls(&self, protocol: &[u8]) -> Result<ServerConfig, PkiError> {
        let mut chain = self.certified.cert.clone();
        chain.push(self.authority.clone());
        self.server_by(&[protocol], Arc::new(NoClientAuth), chain)
    }
}

/// Configuration of a client that accepts only nodes of the authority whose certificate has this hash.
///
/// # Errors
/// [`PkiError::Tls`].
pub fn pinned_client_tls(authority: [u8; 32], protocol: &[u8]) -> Result<ClientConfig, PkiError> {
    let verifier = Arc::new(Pinned { authority, signatures: Signatures::default() });
    let mut config = tls::client(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Trusts the authority that has the right hash, whatever else is shown.
#[derive(Debug)]
struct Pinned {
    authority: [u8; 32],
    signatures: Signatures,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_it = |shown: &&CertificateDer<'_>| hash(shown) == self.authority;
        let authority = intermediates.iter().find(is_it).ok_or_else(|| {
            rustls::Error::General(
                "the node is of another authority than the invitation".to_owned(),
            )
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            tls::servers_of(roots).map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    signatures_by!(self => self.signatures);
}
