//! Certificate revocation: the lists that a node has, and the handshakes that they are checked at.
//!
//! ```text
//!  tidegate revoke ──▶ crl.pem ──refresh──▶ Revocations ◀── every TLS handshake (Checked)
//!                      (signed)                         ◀── every open link, call and connection
//! ```
//!
//! A list is checked once, when it is read, and looked up by serial number from then on: the lists of `webpki`'s own verifiers
//! have their signature checked with every handshake, and refuse the certificates of another site, whose authority has the same
//! name and another key.
//!
//! Always true: a file that is damaged, not signed by a trusted authority, older than the list that is in use, or gone
//! changes nothing: the list that was read last stays in use, also over a restart where a node keeps a copy of it
//! ([`Revocations::keep_in`]). A list that is past its `nextUpdate` stays in use as well: revoked certificates stay
//! revoked, and no other client is shut out because an authority was quiet.

mod list;

use std::{
    fmt, fs,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::{
    CertificateError, DistinguishedName,
    client::danger::{ServerCertVerified, ServerCertVerifier},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, UnixTime, pem::PemObject as _,
};
use sha2::{Digest as _, Sha256};
use tidegate_message::{Instant, LogLimiter};
use tidegate_process::{clock, signatures_by};
use tidegate_sys::{clock::realtime_nanos, files, regular};
use tokio::sync::watch;

pub use self::list::{ListError, ListNumber, Reason, RevocationList, Revoked, Serial};
use super::{PeerIdentity, fields::Fields, identity_of};

/// Revoked certificates in handshakes: their owner may show one as often as it likes.
static SHOWN: LogLimiter = LogLimiter::of_strangers();

/// The file of a site's list, next to its authority.
pub const LIST_FILE: &str = "crl.pem";
/// Largest file of lists, in bytes: some hundred thousand certificates.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// The revocation lists in one file, as they are now.
#[derive(Debug)]
pub struct Revocations {
    /// None where there are no lists and never will be.
    path: Option<PathBuf>,
    authorities: Vec<CertificateDer<'static>>,
    lists: RwLock<Arc<[RevocationList]>>,
    /// The file that was read last, whatever came of it. Held while it is read.
    seen: Mutex<Stamp>,
    /// The folder with copies of the newest lists, once there is one.
    kept: OnceLock<PathBuf>,
    changes: watch::Sender<u64>,
    told: OnceLock<Told>,
}

/// A revoked certificate that was shown in a handshake, and refused.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Owner of the certificate; none where another authority named its owner.
    pub peer: Option<PeerIdentity>,
    /// Its serial number.
    pub serial: String,
    /// Why it was revoked.
    pub reason: Reason,
}

/// Function that is called with each of them.
struct Told(Box<dyn Fn(&Shown) + Send + Sync>);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

/// Distinguishes a rewritten file from the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamp {
    /// It was not looked at.
    Unseen,
    /// Nothing has that name.
    Nothing,
    /// Something has, and cannot be looked at: a link that leads nowhere, or what is for others.
    Unreadable(io::ErrorKind),
    /// Inode, length and time of the last change.
    File(u64, u64, i64, i64),
}

/// Why a file of lists is not used.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// It cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is larger than a list can be.
    #[error("{path} is larger than {} MiB; is it the right file?", FILE_BYTES_MAX >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// There is no list in it.
    #[error(
        "{path} holds no revocation list in PEM; copy it again from where `tidegate revoke` wrote it"
    )]
    NotPem {
        /// The file.
        path: PathBuf,
    },
    /// A list in it cannot be used.
    #[error(
        "{path} is damaged or of another authority; copy it again from where `tidegate revoke` wrote it"
    )]
    List {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ListError,
    },
    /// A list in it is older than the one in use.
    #[error(
        "{path} holds list {found} of {found_at}, which is older than list {kept} of {kept_at} that is in use; copy the newest"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The number of its list.
        found: ListNumber,
        /// When that was signed.
        found_at: Instant,
        /// The number of the list in use.
        kept: ListNumber,
        /// When that was signed.
        kept_at: Instant,
    },
    /// A list that is in use is not there any more.
    #[error(
        "{path} has lost the list that is in use; copy the newest there from where `tidegate revoke` wrote it"
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
}

impl Revocations {
    /// No lists.
    pub fn none() -> Self {
        Self::unread(None, Vec::new())
    }

    /// The lists in the file `path`, if there is one, of authorities among `authorities`.
    ///
    /// # Errors
    /// [`RevocationError`] if there is one and it cannot be used.
    pub fn open(
        path: PathBuf,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Self, RevocationError> {
        let new = Self::unread(Some(path), authorities);
        new.refresh()?;
        Ok(new)
    }

    fn unread(path: Option<PathBuf>, authorities: Vec<CertificateDer<'static>>) -> Self {
        Self {
            path,
            authorities,
            lists: RwLock::new(Arc::new([])),
            seen: Mutex::new(Stamp::Unseen),
            kept: OnceLock::new(),
            changes: watch::Sender::new(0),
            told: OnceLock::new(),
        }
    }

    /// Calls `told` with each revoked certificate that is shown in a handshake, from now on.
    pub fn tell_to(&self, told: impl Fn(&Shown) + Send + Sync + 'static) {
        // The first callback stays: there is one audit log.
        let _ = self.told.set(Told(Box::new(told)));
    }

    /// Keeps a copy of each list in `folder`, so that the next start knows which was the newest, and goes by those that former
    /// starts left there where the file has an older one or none. Then reports the problem of the file: revoked clients stay
    /// out until that is corrected.
    ///
    /// # Errors
    /// [`RevocationError`] if a copy cannot be used, since it is not known then which certificates were revoked.
    pub fn keep_in(&self, folder: &Path) -> Result<Vec<RevocationError>, RevocationError> {
        if self.path.is_none() {
            return Ok(Vec::new());
        }
        // No other thread reads the file meanwhile.
        let seen = self.seen();
        let folder = self.kept.get_or_init(|| folder.to_owned());
        let (lists, wrong) = self.with_kept(folder)?;
        if !wrong.is_empty() {
            self.exchange(lists);
        }
        self.keep();
        drop(seen);
        Ok(wrong)
    }

    /// Says what [`Revocations::keep_in`] would; nothing is written or exchanged.
    ///
    /// # Errors
    /// As there.
    pub fn look_in(&self, folder: &Path) -> Result<Vec<RevocationError>, RevocationError> {
        self.with_kept(folder).map(|(_, wrong)| wrong)
    }

    /// The lists, with those of former starts that are in `folder` in place of older ones, and which were older.
    fn with_kept(
        &self,
        folder: &Path,
    ) -> Result<(Vec<RevocationList>, Vec<RevocationError>), RevocationError> {
        let mut lists = self.lists().to_vec();
        let mut wrong = Vec::new();
        let Some(path) = &self.path else { return Ok((lists, wrong)) };
        for authority in &self.authorities {
            let copy = copy_path(folder, authority);
            if stamp(&copy) == Stamp::Nothing {
                continue;
            }
            for kept in read(&copy, std::slice::from_ref(authority))? {
                let found = lists.iter().position(|list| list.issuer == kept.issuer);
                match found.map(|at| (at, older(path, &lists[at], &kept))) {
                    None => {
                        wrong.push(RevocationError::Gone { path: path.to_owned() });
                        lists.push(kept);
                    }
                    Some((at, Some(error))) => {
                        wrong.push(error);
                        lists[at] = kept;
                    }
                    Some((_, None)) => {}
                }
            }
        }
        Ok((lists, wrong))
    }

    /// Copies the lists in use, if there is a folder for that.
    fn keep(&self) {
        let Some(folder) = self.kept.get() else { return };
        for list in self.lists().iter() {
            let signed = |authority: &&CertificateDer<'_>| {
                RevocationList::read(&list.der, std::slice::from_ref(*authority)).is_ok()
            };
            let Some(authority) = self.authorities.iter().find(signed) else { continue };
            let path = copy_path(folder, authority);
            if let Err(error) = write_copy(&path, &list.der) {
                tracing::error!(%error, path = %path.display(), "the revocation list in use cannot be kept for the next start");
            }
        }
    }

    fn exchange(&self, new: Vec<RevocationList>) {
        *self.lists.write().unwrap_or_else(PoisonError::into_inner) = new.into();
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The authorities whose lists are read here.
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// The lists.
    pub fn lists(&self) -> Arc<[RevocationList]> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many certificates are on them.
    pub fn count(&self) -> usize {
        self.lists().iter().map(|list| list.entries.len()).sum()
    }

    /// When and why this certificate was revoked; none if it was not.
    pub fn find(&self, certificate: &CertificateDer<'_>) -> Option<Revoked> {
        let fields = Fields::of(certificate)?;
        let serial = Serial::of(certificate)?;
        let lists = self.lists();
        let mut of_it = lists.iter().filter(|list| *list.issuer == *fields.issuer);
        of_it.find_map(|list| list.entries.get(&serial).copied())
    }

    /// The same by serial number alone, where it is known that one of these authorities made the certificate.
    pub fn find_serial(&self, serial: &Serial) -> Option<Revoked> {
        self.lists().iter().find_map(|list| list.entries.get(serial).copied())
    }

    /// Waits until that certificate is revoked, which it may be already.
    ///
    /// # Cancel safety
    /// Cancel safe: it keeps nothing.
    pub async fn revoked(&self, serial: &Serial) -> Revoked {
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(revoked) = self.find_serial(serial) {
                return revoked;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reads the file if it is another than the last time; says whether other lists are in use now.
    ///
    /// # Errors
    /// [`RevocationError`], once for each time that the file is written: the lists in use stay.
    pub fn refresh(&self) -> Result<bool, RevocationError> {
        let Some(path) = &self.path else { return Ok(false) };
        let mut seen = self.seen();
        let stamp = stamp(path);
        if *seen == stamp {
            return Ok(false);
        }
        *seen = stamp;
        self.read(path, stamp)
    }

    /// As [`Revocations::refresh`], also if the file is the one that was read last.
    ///
    /// # Errors
    /// [`RevocationError`]: the lists in use stay.
    pub fn reread(&self) -> Result<bool, RevocationError> {
        let Some(path) = &self.path else { return Ok(false) };
        let mut seen = self.seen();
        *seen = stamp(path);
        self.read(path, *seen)
    }

    fn seen(&self) -> MutexGuard<'_, Stamp> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, path: &Path, stamp: Stamp) -> Result<bool, RevocationError> {
        let new = match stamp {
            Stamp::Nothing | Stamp::Unseen => Vec::new(),
            Stamp::File(..) => read(path, &self.authorities)?,
            Stamp::Unreadable(kind) => {
                // It was of that kind when it was looked at, even if it has changed since.
                let source = regular::open(path).err().unwrap_or_else(|| kind.into());
                return Err(RevocationError::Read { path: path.to_owned(), source });
            }
        };
        let kept = self.lists();
        for kept in kept.iter() {
            let path = path.to_owned();
            // A list that lost an entry would admit its certificate again.
            match new.iter().find(|new| new.issuer == kept.issuer) {
                None => return Err(RevocationError::Gone { path }),
                Some(new) => {
                    if let Some(error) = older(&path, new, kept) {
                        return Err(error);
                    }
                }
            }
        }
        if *kept == *new {
            return Ok(false);
        }
        for list in &new {
            let (number, revoked) = (list.number, list.entries.len());
            tracing::info!(path = %path.display(), %number, revoked, "revocation list in use");
            if list.is_overdue(Instant::from_nanos(realtime_nanos())) {
                tracing::warn!(path = %path.display(), "this revocation list is past the time of its next; it stays in use");
            }
        }
        self.exchange(new);
        self.keep();
        Ok(true)
    }

    /// Refuses a chain that TLS has verified if a certificate of it was revoked.
    fn check(&self, chain: &[&CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let found = chain.iter().find_map(|it| self.find(it).map(|revoked| (it, revoked)));
        let Some((certificate, Revoked { reason, .. })) = found else { return Ok(()) };
        let serial = Serial::of(certificate).map(|serial| serial.to_string()).unwrap_or_default();
        let peer = identity_of(certificate);
        let who = match &peer {
            Ok(peer) => peer.to_string(),
            Err(_) => "a peer of another authority's naming".to_owned(),
        };
        if let Some(times) = SHOWN.add(clock::now(), 1) {
            tracing::warn!(%who, %serial, %reason, times, "a revoked certificate was shown, and refused");
        }
        if let Some(Told(told)) = self.told.get() {
            told(&Shown { peer: peer.ok(), serial, reason });
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::Revoked))
    }
}

fn stamp(path: &Path) -> Stamp {
    match fs::metadata(path) {
        // To open a pipe or a device may take forever.
        Ok(metadata) if !metadata.is_file() => Stamp::Unreadable(io::ErrorKind::InvalidInput),
        Ok(metadata) => {
            Stamp::File(metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link that leads nowhere was meant to lead to a list.
            let is_link = fs::symlink_metadata(path).is_ok();
            if is_link { Stamp::Unreadable(error.kind()) } else { Stamp::Nothing }
        }
        Err(error) => Stamp::Unreadable(error.kind()),
    }
}

/// That `found`, in the file `path`, is older than `kept`, if it is. An authority that does not count its lists dates them.
fn older(path: &Path, found: &RevocationList, kept: &RevocationList) -> Option<RevocationError> {
    let age = |list: &RevocationList| (list.number, list.signed_at);
    (age(found) < age(kept)).then(|| RevocationError::Older {
        path: path.to_owned(),
        found: found.number,
        found_at: found.signed_at,
        kept: kept.number,
        kept_at: kept.signed_at,
    })
}

/// Where the newest list of an authority is kept.
fn copy_path(folder: &Path, authority: &CertificateDer<'_>) -> PathBuf {
    let digest = Sha256::digest(authority);
    let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("revoked-{name}.pem"))
}

/// Whole or not at all.
fn write_copy(path: &Path, der: &[u8]) -> io::Result<()> {
    let mut pem = "-----BEGIN X509 CRL-----\n".to_owned();
    let text = STANDARD.encode(der);
    for line in text.as_bytes().chunks(64) {
        pem.push_str(str::from_utf8(line).expect("base64 is ASCII"));
        pem.push('\n');
    }
    pem.push_str("-----END X509 CRL-----\n");
    if regular::read(path).is_ok_and(|kept| kept == pem.as_bytes()) {
        return Ok(());
    }
    files::folder(path.parent().unwrap_or(Path::new("")), files::PRIVATE_FOLDER)?;
    files::put(path, pem.as_bytes(), files::PRIVATE)
}

/// The lists in the file `path`, each signed by one of `authorities`.
///
/// # Errors
/// [`RevocationError`].
pub fn read(
    path: &Path,
    authorities: &[CertificateDer<'_>],
) -> Result<Vec<RevocationList>, RevocationError> {
    let unreadable = |source| RevocationError::Read { path: path.to_owned(), source };
    let file = regular::open(path).map_err(unreadable)?;
    let mut text = Vec::new();
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(RevocationError::TooLarge { path: path.to_owned() });
    }
    let lists = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let lists = lists.unwrap_or_default();
    if lists.is_empty() {
        return Err(RevocationError::NotPem { path: path.to_owned() });
    }
    let list = |der: &CertificateRevocationListDer<'_>| {
        RevocationList::read(der, authorities)
            .map_err(|source| RevocationError::List { path: path.to_owned(), source })
    };
    lists.iter().map(list).collect()
}

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

#[cfg(test)]
mod tests;
