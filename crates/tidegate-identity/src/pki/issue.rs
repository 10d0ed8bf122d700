//! Making certificates.

use std::{
    collections::BTreeSet,
    fs, io,
    net::IpAddr,
    path::Path,
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SanType, date_time_ymd,
};
use rustls_pki_types::pem::PemObject;
use tidegate_sys::files;

use super::{
    Kind, NODE_SERVER_NAME, PkiError, VALID_FOR_DEFAULT, checked_name,
    issued::{Issued, record},
    read, uri,
};

/// The request to [`init`].
#[derive(Clone, Debug)]
pub struct InitRequest {
    /// Names of nodes; default `edge`.
    pub nodes: Vec<String>,
    /// Names of cameras; default none.
    pub cameras: Vec<String>,
    /// Names of applications; default `application`.
    pub applications: Vec<String>,
    /// Host names and addresses under which nodes are reached, in addition to localhost, 127.0.0.1 and ::1.
    pub hosts: Vec<String>,
    /// How long the certificates last; default ten years.
    pub valid_for: Duration,
}

impl Default for InitRequest {
    fn default() -> Self {
        Self {
            nodes: vec!["edge".to_owned()],
            cameras: Vec::new(),
            applications: vec!["application".to_owned()],
            hosts: Vec::new(),
            valid_for: VALID_FOR_DEFAULT,
        }
    }
}

/// Makes an authority and the requested certificates in `dir`, which is created if need be.
///
/// # Errors
/// [`PkiError::Exists`] if any file is already there; then nothing is written. [`PkiError::Name`],
/// [`PkiError::Host`] or [`PkiError::Duplicate`] for names that cannot be; [`PkiError::Write`].
pub fn init(dir: &Path, request: &InitRequest) -> Result<(), PkiError> {
    let owners: Vec<(Kind, &str)> = [
        (Kind::Node, &request.nodes),
        (Kind::Camera, &request.cameras),
        (Kind::Application, &request.applications),
    ]
    .into_iter()
    .flat_map(|(kind, names)| names.iter().map(move |name| (kind, name.as_str())))
    .collect();
    let mut seen = BTreeSet::new();
    for &(_, name) in &owners {
        if !seen.insert(checked_name(name)?) {
            return Err(PkiError::Duplicate { name: name.to_owned() });
        }
    }

    let failed = |source| PkiError::Issue { name: "ca".to_owned(), source };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let params = authority_params(request.valid_for);
    let authority = params.self_signed(&key).map_err(failed)?;
    let mut files =
        vec![("ca.pem".to_owned(), authority.pem()), ("ca.key".to_owned(), key.serialize_pem())];
    let issuer = Issuer::new(params, key);
    let mut made = Vec::new();
    for (kind, name) in owners {
        let new = issue(&issuer, kind, name, &request.hosts, request.valid_for)?;
        files.extend(new.files);
        made.push(new.issued);
    }
    write_all(dir, &files)?;
    record(dir, &made)
}

/// Makes one more certificate with the authority in `dir`.
///
/// # Errors
/// As [`init`], and [`PkiError::Missing`] if the authority's key is not in `dir`.
pub fn add(
    dir: &Path,
    kind: Kind,
    name: &str,
    hosts: &[String],
    valid_for: Duration,
) -> Result<(), PkiError> {
    checked_name(name)?;
    let new = issue(&signer(dir)?, kind, name, hosts, valid_for)?;
    write_all(dir, &new.files)?;
    record(dir, &[new.issued])
}

/// The authority's key, and what it signs with.
pub(super) type Signer = Issuer<'static, KeyPair>;

/// The authority in `dir`.
pub(super) fn signer(dir: &Path) -> Result<Signer, PkiError> {
    let path = dir.join("ca.key");
    let malformed = |source| PkiError::Malformed { path: path.clone(), source };
    let pem = read(&path)?;
    let der = rustls_pki_types::PrivateKeyDer::from_pem_slice(&pem).map_err(malformed)?;
    let key = KeyPair::try_from(&der)
        .map_err(|source| PkiError::Issue { name: "ca".to_owned(), source })?;
    // Of its parameters, only the name goes into what it signs.
    Ok(Issuer::new(authority_params(VALID_FOR_DEFAULT), key))
}

/// The authority's name is always the same, so that its key alone is enough to make more certificates.
fn authority_params(valid_for: Duration) -> CertificateParams {
    let mut params = params("Tidegate authority", "authority", valid_for);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn params(common_name: &str, unit: &str, valid_for: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Tidegate");
    name.push(DnType::OrganizationalUnitName, unit);
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    // Valid from a day ago: a camera's clock may be behind until the network sets it.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(Duration::from_secs(24 * 3600));
    params.not_after = epoch + now + valid_for;
    params
}

/// A certificate that is not written yet.
struct New {
    /// The certificate and its key.
    files: [(String, String); 2],
    issued: Issued,
}

/// The certificate and key files of one owner.
fn issue(
    issuer: &Issuer<'_, KeyPair>,
    kind: Kind,
    name: &str,
    hosts: &[String],
    valid_for: Duration,
) -> Result<New, PkiError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|source| PkiError::Issue { name: name.to_owned(), source })?;
    let certificate = certify(issuer, kind, name, hosts, valid_for, &key)?;
    let files =
        [(format!("{name}.pem"), certificate.pem()), (format!("{name}.key"), key.serialize_pem())];
    Ok(New { files, issued: Issued::of(certificate.der())? })
}

/// A certificate for one owner's public key.
pub(super) fn certify(
    issuer: &Issuer<'_, KeyPair>,
    kind: Kind,
    name: &str,
    hosts: &[String],
    valid_for: Duration,
    key: &impl PublicKeyData,
) -> Result<Certificate, PkiError> {
    let failed = |source| PkiError::Issue { name: name.to_owned(), source };
    let text = |text: &str| {
        text.try_into().map(SanType::DnsName).map_err(|_| PkiError::Host { host: text.to_owned() })
    };
    let mut params = params(name, kind.as_str(), valid_for);
    let identity = uri(kind, name).as_str().try_into().map_err(failed)?;
    params.subject_alt_names.push(SanType::URI(identity));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    if kind == Kind::Node {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        params.subject_alt_names.push(text(NODE_SERVER_NAME)?);
        let always = ["localhost", "127.0.0.1", "::1"];
        for host in always.into_iter().chain(hosts.iter().map(String::as_str)) {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) if is_host_name(host) => text(host)?,
                Err(_) => return Err(PkiError::Host { host: host.to_owned() }),
            });
        }
    }
    params.signed_by(key, issuer).map_err(failed)
}

/// Fails if a certificate could not name one of `hosts`.
///
/// # Errors
/// [`PkiError::Host`].
pub fn check_hosts(hosts: &[String]) -> Result<(), PkiError> {
    let bad = hosts.iter().find(|host| host.parse::<IpAddr>().is_err() && !is_host_name(host));
    bad.map_or(Ok(()), |host| Err(PkiError::Host { host: host.clone() }))
}

fn is_host_name(text: &str) -> bool {
    rustls_pki_types::DnsName::try_from(text).is_ok()
}

fn cannot(path: &Path) -> impl FnOnce(io::Error) -> PkiError + use<> {
    let path = path.to_owned();
    move |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => PkiError::Exists { path },
        _ => PkiError::Write { path, source },
    }
}

/// Makes `dir` if need be; fails if any of the files is there.
pub(super) fn writable(dir: &Path, names: &[&str]) -> Result<(), PkiError> {
    files::folder(dir, files::PRIVATE_FOLDER).map_err(cannot(dir))?;
    let taken =
        names.iter().map(|name| dir.join(name)).find(|path| fs::symlink_metadata(path).is_ok());
    taken.map_or(Ok(()), |path| Err(PkiError::Exists { path }))
}

pub(super) fn write_all(dir: &Path, files: &[(String, String)]) -> Result<(), PkiError> {
    let names: Vec<&str> = files.iter().map(|(name, _)| &**name).collect();
    writable(dir, &names)?;
    for (name, content) in files {
        let path = dir.join(name);
        files::create(&path, content.as_bytes(), files::PRIVATE).map_err(cannot(&path))?;
    }
    Ok(())
}
