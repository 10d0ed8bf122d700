//! Certificates, by which the parts of a site authenticate each other.
//!
//! ```text
//!  init ──▶ DIR/ca.pem ca.key          one certificate authority for each site (ECDSA P-256)
//!           DIR/NAME.pem NAME.key      one certificate for each node, camera and application
//!           DIR/issued.txt            which certificates were made
//!  revoke ▶ DIR/crl.pem               which of them no longer count
//!  load(DIR, NAME) ──▶ Credentials ──▶ rustls configurations that accept only that authority, and no revoked certificate
//! ```
//!
//! Kind and name of a peer stand in its certificate as a URI subject alternative name,
//! `tidegate://node/edge1`, `tidegate://camera/cam1` or `tidegate://application/counter`. Certificates of
//! nodes also carry the DNS name [`NODE_SERVER_NAME`], and only they may be used by a server: a dialling
//! peer checks for that name, so that a camera's certificate cannot stand in for a node's, and a node keeps
//! its certificate when its address changes. Certificates for the API carry the node's host names as well.
//!
//! Always true: TLS 1.3 only, both sides authenticated (at the API a client may prove itself by a password or token instead),
//! no resumption and no early data; private keys are
//! created readable by their owner alone and no file is ever overwritten.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig, client::danger::ServerCertVerifier,
    server::danger::ClientCertVerifier, sign::CertifiedKey, version::TLS13,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, UnixTime,
    pem::{self, PemObject},
};
use sha2::{Digest, Sha256};
use tidegate_message::CameraName;
use tidegate_process::tls::{self, provider};
use tidegate_sys::regular;
use tidegate_wire::NodeId;

pub mod der;
pub mod fields;
pub mod files;
mod issue;
mod issued;
mod join;
pub mod known;
pub mod revocation;
mod revoke;
mod seal;
pub mod servers;
mod signatures;
mod validity;

pub use self::{
    issue::{InitRequest, add, check_hosts, init},
    issued::{ISSUED_FILE, Issued, issued},
    join::{Authority, NewKey, fingerprint, is_writable, pinned_client_tls, signed, write_joined},
    revocation::{Revocations, Serial},
    revoke::{Revocation, revoke},
    seal::SealError,
    validity::validity,
};

use self::revocation::{Checked, LIST_FILE, Reason, RevocationError, Revoked};

/// The DNS name in every node's certificate, which those who dial the node link ask for.
pub const NODE_SERVER_NAME: &str = "node.tidegate.internal";

/// The owner of a certificate, as a peer sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// Its kind.
    pub kind: Kind,
    /// Its name, in the alphabet of [`CameraName`].
    pub name: String,
    /// The hash of its public key.
    pub node: NodeId,
    /// The serial number of the certificate.
    pub serial: Serial,
}

/// The kinds of owners of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Serves cameras and applications.
    Node,
    /// Offers one camera.
    Camera,
    /// Uses the API.
    Application,
}

/// A certificate with its private key and the authority to check others by.
#[derive(Clone)]
pub struct Credentials {
    identity: PeerIdentity,
    authority: CertificateDer<'static>,
    revocations: Arc<Revocations>,
    sealers: Arc<seal::VerifiedCertificates>,
    certified: Arc<CertifiedKey>,
    key: Arc<PrivateKeyDer<'static>>,
    authority_pem: Arc<[u8]>,
    certificate_pem: Arc<[u8]>,
    key_pem: Arc<[u8]>,
}

/// Reads the certificate called `name` from `dir` and checks it against the authority there.
///
/// # Errors
/// [`PkiError`], which names the file and the way out.
pub fn load(dir: &Path, name: &str) -> Result<Credentials, PkiError> {
    load_at(dir, name, UnixTime::now())
}

fn load_at(dir: &Path, name: &str, now: UnixTime) -> Result<Credentials, PkiError> {
    let name = checked_name(name)?;
    let (authority_pem, authority) = read_certificate(&dir.join("ca.pem"))?;
    let certificate_path = dir.join(format!("{name}.pem"));
    let (certificate_pem, certificate) = read_certificate(&certificate_path)?;
    let key_path = dir.join(format!("{name}.key"));
    let key_pem = read(&key_path)?;
    let malformed = |source| PkiError::Malformed { path: key_path.clone(), source };
    let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(malformed)?;

    verify(&certificate, &authority, &certificate_path, now)?;
    let identity = identity_of(&certificate)?;
    let revocations = Revocations::open(dir.join(LIST_FILE), vec![authority.clone()])?;
    if let Some(Revoked { reason, .. }) = revocations.find(&certificate) {
        return Err(PkiError::Revoked { path: certificate_path, reason });
    }
    let chain = vec![certificate.clone()];
    let certified = CertifiedKey::from_der(chain, key.clone_key(), &provider())
        .map_err(|source| PkiError::KeyMismatch { path: key_path, source })?;
    Ok(Credentials {
        identity,
        authority,
        revocations: Arc::new(revocations),
        sealers: Arc::default(),
        certified: Arc::new(certified),
        key: Arc::new(key),
        authority_pem: authority_pem.into(),
        certificate_pem: certificate_pem.into(),
        key_pem: key_pem.into(),
    })
}

impl Credentials {
    /// The owner of these credentials.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// The revoked certificates of the authority, which every handshake with these credentials is checked against.
    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    /// The authority's certificate in PEM.
    pub fn authority_pem(&self) -> &[u8] {
        &self.authority_pem
    }

    /// The certificate in PEM.
    pub fn certificate_pem(&self) -> &[u8] {
        &self.certificate_pem
    }

    /// The private key in PEM.
    pub fn key_pem(&self) -> &[u8] {
        &self.key_pem
    }

    /// Configuration of a server that accepts only peers of our authority that are not revoked and speaks `protocols` (ALPN), the
    /// preferred one first.
    ///
    /// # Errors
    /// [`PkiError::Kind`] unless the credentials are a node's.
    pub fn server_tls(&self, protocols: &[&[u8]]) -> Result<ServerConfig, PkiError> {
        self.server(protocols, true)
    }

    /// The same for peers that may also come without a certificate, and prove in another way who they are.
    ///
    /// # Errors
    /// As for [`Credentials::server_tls`].
    pub fn server_tls_open(&self, protocols: &[&[u8]]) -> Result<ServerConfig, PkiError> {
        self.server(protocols, false)
    }

    fn server(
        &self,
        protocols: &[&[u8]],
        needs_certificate: bool,
    ) -> Result<ServerConfig, PkiError> {
        let verifier = tls::clients_of(self.roots()?, needs_certificate)
            .map_err(|error| PkiError::Tls(rustls::Error::General(error.to_string())))?;
        let verifier = Checked::new(verifier, vec![self.revocations.clone()]);
        self.server_by(protocols, Arc::new(verifier), self.certified.cert.clone())
    }

    /// Configuration of a server that shows `chain` and asks `verifier` about its clients.
    fn server_by(
        &self,
        protocols: &[&[u8]],
        verifier: Arc<dyn ClientCertVerifier>,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<ServerConfig, PkiError> {
        if self.identity.kind != Kind::Node {
            let PeerIdentity { kind, name, .. } = self.identity.clone();
            return Err(PkiError::Kind { name, kind, needed: Kind::Node });
        }
        let mut config = tls::server(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, self.key.clone_key())?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Configuration of a client that accepts only servers of our authority that are not revoked and speaks `protocol` (ALPN).
    ///
    /// # Errors
    /// [`PkiError::Tls`] if the TLS library refuses the certificate.
    pub fn client_tls(&self, protocol: &[u8]) -> Result<ClientConfig, PkiError> {
        let verifier: Arc<dyn ServerCertVerifier> = tls::servers_of(self.roots()?)
            .map_err(|error| PkiError::Tls(rustls::Error::General(error.to_string())))?;
        let verifier = Checked::new(verifier, vec![self.revocations.clone()]);
        let mut config = tls::client(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.certified.cert.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, PkiError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        Ok(roots)
    }
}

/// Private keys do not belong in logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl PeerIdentity {
    /// The identity in the first of `chain`, which TLS has verified.
    ///
    /// # Errors
    /// [`PkiError::NoCertificate`] if the chain is empty, [`PkiError::Identity`] if the certificate names no
    /// identity of ours.
    pub fn of_chain(chain: &[CertificateDer<'_>]) -> Result<Self, PkiError> {
        identity_of(chain.first().ok_or(PkiError::NoCertificate)?)
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl Kind {
    const ALL: [Self; 3] = [Self::Node, Self::Camera, Self::Application];

    /// The word used in certificates and flags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Camera => "camera",
            Self::Application => "application",
        }
    }
}

impl FromStr for Kind {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word).ok_or(())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub(crate) fn checked_name(name: &str) -> Result<&str, PkiError> {
    let refuse = |reason: String| PkiError::Name { name: name.to_owned(), reason };
    CameraName::from_str(name).map_err(|error| refuse(error.to_string()))?;
    match name {
        "ca" => Err(refuse("the certificate authority's files are called that".to_owned())),
        _ => Ok(name),
    }
}

fn uri(kind: Kind, name: &str) -> String {
    format!("tidegate://{kind}/{name}")
}

fn identity_of(certificate: &CertificateDer<'_>) -> Result<PeerIdentity, PkiError> {
    let unreadable = |error: webpki::Error| PkiError::Identity { found: error.to_string() };
    let parsed = webpki::EndEntityCert::try_from(certificate).map_err(unreadable)?;
    let (kind, name) = parsed.valid_uri_names().find_map(parse_uri).ok_or_else(|| {
        let found: Vec<_> = parsed.valid_uri_names().chain(parsed.valid_dns_names()).collect();
        PkiError::Identity { found: format!("it names {found:?}") }
    })?;
    let public_key = parsed.subject_public_key_info();
    let node = NodeId(Sha256::digest(public_key.as_ref()).into());
    Ok(PeerIdentity { kind, name, node, serial: Serial::in_certificate(&parsed) })
}

fn parse_uri(text: &str) -> Option<(Kind, String)> {
    let (kind, name) = text.strip_prefix("tidegate://")?.split_once('/')?;
    let kind = kind.parse().ok()?;
    checked_name(name).ok()?;
    Some((kind, name.to_owned()))
}

fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    regular::read(path).map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            std::io::ErrorKind::NotFound => PkiError::Missing { path },
            _ => PkiError::Read { path, source },
        }
    })
}

fn read_certificate(path: &Path) -> Result<(Vec<u8>, CertificateDer<'static>), PkiError> {
    let pem = read(path)?;
    let certificate = CertificateDer::from_pem_slice(&pem)
        .map_err(|source| PkiError::Malformed { path: path.to_owned(), source })?;
    Ok((pem, certificate))
}

/// Checks our own certificate now, so that a wrong file is named here and not by a peer's alert.
fn verify(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
    path: &Path,
    now: UnixTime,
) -> Result<(), PkiError> {
    let refuse = |source| match source {
        webpki::Error::CertExpired { .. } => PkiError::Expired { path: path.to_owned() },
        webpki::Error::CertNotValidYet { .. } => PkiError::NotYetValid { path: path.to_owned() },
        source => PkiError::Untrusted { path: path.to_owned(), source },
    };
    verify_chain(certificate, authority, now).map_err(refuse)
}

/// Fails unless that authority has made the certificate, and it is valid at `now`.
fn verify_chain(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<(), webpki::Error> {
    let anchor = webpki::anchor_from_trusted_cert(authority)?;
    let parsed = webpki::EndEntityCert::try_from(certificate)?;
    let algorithms = provider().signature_verification_algorithms.all;
    let usage = webpki::KeyUsage::client_auth();
    parsed.verify_for_usage(algorithms, &[anchor], &[], now, usage, None, None)?;
    Ok(())
}

/// Fails unless that authority has made the certificate, whether or not it is valid now.
fn verify_signature(
    certificate: &CertificateDer<'_>,
    authority: &CertificateDer<'_>,
    path: &Path,
) -> Result<(), PkiError> {
    verify(certificate, authority, path, first_second(certificate))
}

/// When the certificate began to be valid; at that time it can be verified whether or not it is valid now.
fn first_second(certificate: &CertificateDer<'_>) -> UnixTime {
    let (from, _) = validity(certificate).unwrap_or_default();
    let then = u64::try_from(from.as_nanos() / 1_000_000_000).unwrap_or_default();
    UnixTime::since_unix_epoch(Duration::from_secs(then))
}

/// Whether that authority has made the certificate, which was valid when it was shown.
pub fn is_made_by(certificate: &CertificateDer<'_>, authority: &CertificateDer<'_>) -> bool {
    verify_signature(certificate, authority, Path::new("")).is_ok()
}

/// Why certificates could not be made, read or accepted.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A name that cannot be a certificate's.
    #[error("{name:?} cannot be the name of a certificate: {reason}")]
    Name {
        /// The name.
        name: String,
        /// The problem.
        reason: String,
    },
    /// A host is neither a DNS name nor an address.
    #[error("{host:?} is neither a host name nor an IP address")]
    Host {
        /// The host given.
        host: String,
    },
    /// Two certificates would have the same name.
    #[error("the name {name:?} is given twice; each certificate needs its own")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A file that would be overwritten.
    #[error("{path} exists and is not overwritten; choose another folder, or move it away first")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file is not there.
    #[error("{path} is missing; `tidegate init` makes it, or copy it from where that ran")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file holds no PEM of the right sort.
    #[error(
        "{path} is not the PEM file that it should be; restore it or run `tidegate init` again"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: pem::Error,
    },
    /// The private key is not the certificate's.
    #[error("{path} does not belong to the certificate of that name; restore the pair")]
    KeyMismatch {
        /// The key file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// A certificate has expired.
    #[error("{path} has expired; make a new one with `tidegate init`")]
    Expired {
        /// The file.
        path: PathBuf,
    },
    /// A certificate is not valid yet.
    #[error("{path} is not valid yet; set this machine's clock")]
    NotYetValid {
        /// The file.
        path: PathBuf,
    },
    /// A certificate was not made by the authority next to it.
    #[error("{path} was not made by the authority in ca.pem next to it; copy both from one place")]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: webpki::Error,
    },
    /// The peer showed no certificate.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// The peer's certificate names no identity of ours.
    #[error("the certificate names no tidegate identity: {found}")]
    Identity {
        /// The identity found instead.
        found: String,
    },
    /// The certificate is for another purpose.
    #[error("{name} is a certificate for a {kind}, this needs one for a {needed}")]
    Kind {
        /// The certificate's name.
        name: String,
        /// Its kind.
        kind: Kind,
        /// The required kind.
        needed: Kind,
    },
    /// A certificate could not be made.
    #[error("cannot make the certificate of {name}")]
    Issue {
        /// The owner.
        name: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// The certificate was revoked.
    #[error(
        "{path} was revoked ({reason}); have a new one made: `tidegate invite`, or `tidegate init --add`"
    )]
    Revoked {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Reason,
    },
    /// The revocation lists cannot be used, and without them no client is accepted.
    #[error("the revocation lists cannot be used")]
    Revocations(#[from] RevocationError),
    /// There is nothing to revoke.
    #[error(
        "{wanted:?} is neither the name of a certificate that this authority has made and that has not ended, \
         nor the serial number or the file of one"
    )]
    NothingToRevoke {
        /// The name or number given.
        wanted: String,
    },
    /// It is revoked already.
    #[error("{wanted:?} is revoked already")]
    RevokedBefore {
        /// The name or number given.
        wanted: String,
    },
    /// There is no number for one more list.
    #[error(
        "the number of the list in {path} is the last that there is; nothing can be revoked with this authority any more"
    )]
    ListsCounted {
        /// The file.
        path: PathBuf,
    },
    /// The TLS library refused the configuration.
    #[error("TLS cannot be configured")]
    Tls(#[from] rustls::Error),
}

/// How long certificates last unless asked otherwise: ten years, since cameras on masts are not visited
/// to renew a file.
pub const VALID_FOR_DEFAULT: Duration = Duration::from_secs(3650 * 24 * 3600);

#[cfg(test)]
mod tests;
