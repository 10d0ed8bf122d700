//! Certificate revocation: the lists that a node has, and the handshakes that they are checked at.
//!
//! ```text
//!  tidegate revoke ──▶ crl.pem ──refresh──▶ Revocations ◀── every TLS handshake (Checked)
//!                      (signed)     adopt──▶             ◀── every open link, call and connection
//!                               another node             ──shared──▶ other nodes
//! ```
//!
//! A list is checked once, when it is read, and looked up by serial number from then on: the lists of `webpki`'s own verifiers
//! have their signature checked with every handshake, and refuse the certificates of another site, whose authority has the same
//! name and another key.
//!
//! Always true: a file that is damaged, not signed by a trusted authority, older than the list that was read from it, or gone
//! changes nothing: the list that was read last stays in use, also over a restart where a node keeps a copy of it
//! ([`Revocations::keep_in`]). A list that is past its `nextUpdate` stays in use as well: revoked certificates stay
//! revoked, and no other client is shut out because an authority was quiet.
//!
//! Lists also come from other nodes ([`Revocations::adopt`]), and of one authority the newest is in use, whatever its source. A file
//! that is older than such a list is no error: an operator need not copy a list to every node. Both sources are kept apart, in memory
//! and on the disk, so that it can be said which of them is behind.

mod checked;
mod list;
mod shown;
mod stored;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use rustls::CertificateError;
use rustls_pki_types::CertificateDer;
use tidegate_message::{Instant, LogLimiter};
use tidegate_process::clock;
use tidegate_sys::{clock::realtime_nanos, regular};
use tidegate_wire::{NodeId, limits::SHARED_BYTES_MAX};
use tokio::sync::watch;

use self::stored::{Source, Stamp, copy_path, stamp, write_copy};
pub use self::{
    checked::Checked,
    list::{ListError, ListNumber, Reason, RevocationList, Revoked, Serial},
    stored::read,
};
use super::{PeerIdentity, fields::Fields, identity_of};

/// Revoked certificates in handshakes: there may be many, besides that the owner of one may show it as often as it likes.
static SHOWN: LogLimiter = LogLimiter::of_strangers();

/// The file of a site's list, next to its authority.
pub const LIST_FILE: &str = "crl.pem";
/// Largest file of lists, in bytes: some hundred thousand certificates.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// How far ahead of this machine's clock a list of another node may be dated: clocks of a site may be hours apart, and a list that no
/// later one could replace must not come in.
pub const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);

/// The revocation lists of some authorities, as they are now.
#[derive(Debug)]
pub struct Revocations {
    /// The file of operators; none where there are no lists and never will be.
    path: Option<PathBuf>,
    authorities: Vec<CertificateDer<'static>>,
    /// The newest of each authority.
    lists: RwLock<Lists>,
    /// Held while files are read or written, and taken before `sources`: that of operators as it was read last, whatever came of it.
    disk: Mutex<Stamp>,
    /// Held while `lists` are exchanged, and never while a disk is waited for.
    sources: Mutex<Sources>,
    /// The folder with copies of the newest lists, once there is one.
    kept: OnceLock<PathBuf>,
    changes: watch::Sender<u64>,
    told: OnceLock<Told>,
    shown: Mutex<shown::Lines>,
}

/// At most one of each authority.
type Lists = Arc<[Arc<RevocationList>]>;

/// The lists by where they came from.
#[derive(Debug)]
struct Sources {
    /// The lists of the file of operators, or of a former one whose lists were newer.
    of_file: Lists,
    /// The lists that other nodes sent.
    of_peers: Lists,
    /// The changes that callers of [`Revocations::refresh`] know of.
    changes_told: u64,
}

/// A list as nodes send it to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedList {
    /// The hash of the key of its authority (SHA-256 of the SubjectPublicKeyInfo), as [`PeerIdentity::node`] is of a node's.
    pub authority: NodeId,
    /// Its version ([`RevocationList::version`]).
    pub version: u64,
    /// The list as it was signed, in DER: at most [`SHARED_BYTES_MAX`] bytes where another node is to adopt it.
    pub der: Arc<[u8]>,
}

/// A list that [`Revocations::adopt`] was given, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The hash of the key of its authority, as in [`SharedList`].
    pub authority: NodeId,
    /// Its version ([`RevocationList::version`]).
    pub version: u64,
    /// Whether it is in use now.
    pub outcome: Adopted,
}

/// The outcome of [`Revocations::adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It is newer than the list that was in use, and is in use now.
    Newer,
    /// It is the list in use.
    Known,
    /// The list in use is newer, or of the same number and second.
    Older,
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
    /// A list in it was signed after the one in use, and counted before it.
    #[error(
        "{path} holds list {found}, which was signed after list {kept} that is in use and counted before it: their authority was \
         restored from a copy; run `tidegate revoke` there until its list has a number above {kept}"
    )]
    CountedBack {
        /// The file.
        path: PathBuf,
        /// The number of its list.
        found: ListNumber,
        /// The number of the list in use.
        kept: ListNumber,
    },
    /// A list that is in use is not there any more.
    #[error(
        "{path} has lost the list that is in use; copy the newest there from where `tidegate revoke` wrote it"
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// A list that another node sent cannot be used.
    #[error("the revocation list that another node sent is damaged or of another authority")]
    Shared(#[source] ListError),
    /// A list that another node sent is too long.
    #[error(
        "the revocation list that another node sent has {bytes} bytes, and nodes share at most {SHARED_BYTES_MAX}; copy it to the \
         nodes by hand"
    )]
    SharedTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A list that another node sent is dated too far ahead.
    #[error(
        "revocation list {number}, which another node sent, is dated {} h after this machine's clock, and at most {} h are allowed; \
         set this clock, or that of the machine on which `tidegate revoke` ran",
        .ahead.as_secs() / 3600,
        AHEAD_MAX.as_secs() / 3600
    )]
    Ahead {
        /// Its number.
        number: ListNumber,
        /// How far ahead it is.
        ahead: Duration,
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
            disk: Mutex::new(Stamp::Unseen),
            sources: Mutex::new(Sources {
                of_file: Arc::new([]),
                of_peers: Arc::new([]),
                changes_told: 0,
            }),
            kept: OnceLock::new(),
            changes: watch::Sender::new(0),
            told: OnceLock::new(),
            shown: Mutex::default(),
        }
    }

    /// Calls `told` with each revoked certificate that is shown in a handshake, from now on.
    pub fn tell_to(&self, told: impl Fn(&Shown) + Send + Sync + 'static) {
        // The first callback stays: there is one audit log.
        let _ = self.told.set(Told(Box::new(told)));
    }

    /// Keeps a copy of each list in `folder`, so that the next start knows which was the newest, and goes by those that former
    /// starts left there where the file has an older one or none. Then reports the problem of the file: revoked clients stay
    /// out until that is corrected. That the file is older than a list of another node is no problem of it.
    ///
    /// # Errors
    /// [`RevocationError`] if a copy cannot be used, since it is not known then which certificates were revoked.
    pub fn keep_in(&self, folder: &Path) -> Result<Vec<RevocationError>, RevocationError> {
        let Some(path) = &self.path else { return Ok(Vec::new()) };
        // No other thread reads the file meanwhile.
        let _disk = self.disk();
        let folder = self.kept.get_or_init(|| folder.to_owned());
        let copies = [self.copies(Source::File, folder)?, self.copies(Source::Peer, folder)?];
        let [copies_of_file, copies_of_peers] = copies;
        let mut sources = self.sources();
        let (of_file, mut wrong) = with_kept(path, &sources.of_file, copies_of_file);
        let of_peers = newest(sources.of_peers.iter().cloned().chain(copies_of_peers));
        wrong.extend(counted_back(path, &of_file, &of_peers));
        (sources.of_file, sources.of_peers) = (of_file.clone(), of_peers.clone());
        self.exchange(&sources);
        sources.changes_told = *self.changes.borrow();
        drop(sources);
        self.keep(Source::File, &of_file);
        self.keep(Source::Peer, &of_peers);
        Ok(wrong)
    }

    /// Says what [`Revocations::keep_in`] would; nothing is written or exchanged.
    ///
    /// # Errors
    /// As there.
    pub fn look_in(&self, folder: &Path) -> Result<Vec<RevocationError>, RevocationError> {
        let Some(path) = &self.path else { return Ok(Vec::new()) };
        let of_file = self.sources().of_file.clone();
        let (of_file, mut wrong) = with_kept(path, &of_file, self.copies(Source::File, folder)?);
        wrong.extend(counted_back(
            path,
            &of_file,
            &newest(self.copies(Source::Peer, folder)?.into_iter()),
        ));
        Ok(wrong)
    }

    /// The copies of lists from that source that former starts left in `folder`.
    fn copies(
        &self,
        source: Source,
        folder: &Path,
    ) -> Result<Vec<Arc<RevocationList>>, RevocationError> {
        let mut copies = Vec::new();
        for authority in &self.authorities {
            let copy = copy_path(folder, source, authority);
            if stamp(&copy) != Stamp::Nothing {
                copies.extend(read(&copy, std::slice::from_ref(authority))?);
            }
        }
        Ok(copies.into_iter().map(Arc::new).collect())
    }

    /// Copies lists, if there is a folder for that.
    fn keep(&self, source: Source, lists: &Lists) {
        let Some(folder) = self.kept.get() else { return };
        for list in lists.iter() {
            let signed = |authority: &&CertificateDer<'_>| {
                RevocationList::read(&list.der, std::slice::from_ref(*authority)).is_ok()
            };
            let Some(authority) = self.authorities.iter().find(signed) else { continue };
            let path = copy_path(folder, source, authority);
            if let Err(error) = write_copy(&path, &list.der) {
                tracing::error!(%error, path = %path.display(), "the revocation list in use cannot be kept for the next start");
            }
        }
    }

    /// Goes by the newest list of each authority; of equally new ones by the file's.
    fn exchange(&self, sources: &Sources) {
        let new = newest(sources.of_file.iter().chain(sources.of_peers.iter()).cloned());
        let former = self.lists();
        if former == new {
            return;
        }
        for list in new.iter().filter(|list| !former.contains(list)) {
            let (number, revoked) = (list.number, list.entries.len());
            let source = if sources.of_file.contains(list) { "file" } else { "another node" };
            tracing::info!(%number, revoked, source, "revocation list in use");
            if list.is_overdue(Instant::from_nanos(realtime_nanos())) {
                tracing::warn!(%number, "this revocation list is past the time of its next; it stays in use");
            }
        }
        *self.lists.write().unwrap_or_else(PoisonError::into_inner) = new;
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The lists in use, as other nodes may adopt them. One that is longer than [`SHARED_BYTES_MAX`] is here as well, and none adopts it.
    pub fn shared(&self) -> Vec<SharedList> {
        let shared = |list: &Arc<RevocationList>| SharedList {
            authority: list.authority,
            version: list.version(),
            der: list.der.clone(),
        };
        self.lists().iter().map(shared).collect()
    }

    /// Takes a list that another node sent, in DER. If it is newer than the one in use, it is in use when this returns: handshakes go by
    /// it, and waiters of [`Revocations::revoked`] and [`Revocations::changed`] wake. No disk is waited for: the caller has a copy written
    /// for the next start by [`Revocations::keep_adopted`], elsewhere.
    ///
    /// # Errors
    /// [`RevocationError::SharedTooLong`], [`RevocationError::Shared`] unless one of the authorities here has signed it, and
    /// [`RevocationError::Ahead`] if it is dated more than [`AHEAD_MAX`] after this machine's clock. The lists in use stay.
    pub fn adopt(&self, der: &[u8]) -> Result<Adoption, RevocationError> {
        self.adopt_at(der, Instant::from_nanos(realtime_nanos()))
    }

    fn adopt_at(&self, der: &[u8], now: Instant) -> Result<Adoption, RevocationError> {
        if der.len() > SHARED_BYTES_MAX {
            return Err(RevocationError::SharedTooLong { bytes: der.len() });
        }
        // Most lists that nodes send are the one in use, whose signature was checked.
        let lists = self.lists();
        if let Some(known) = lists.iter().find(|list| *list.der == *der) {
            return Ok(known.adoption(Adopted::Known));
        }
        let list = RevocationList::read(der, &self.authorities).map_err(RevocationError::Shared)?;
        let ahead = list.signed_at.as_nanos().saturating_sub(now.as_nanos());
        let ahead = Duration::from_nanos(u64::try_from(ahead).unwrap_or_default());
        if ahead > AHEAD_MAX {
            return Err(RevocationError::Ahead { number: list.number, ahead });
        }
        let mut sources = self.sources();
        // Another thread may have taken a newer one meanwhile.
        let lists = self.lists();
        if let Some(kept) = lists.iter().find(|kept| kept.issuer == list.issuer)
            && list.age() <= kept.age()
        {
            let outcome = if list == **kept { Adopted::Known } else { Adopted::Older };
            return Ok(list.adoption(outcome));
        }
        let adoption = list.adoption(Adopted::Newer);
        sources.of_peers = newest(sources.of_peers.iter().cloned().chain([Arc::new(list)]));
        self.exchange(&sources);
        Ok(adoption)
    }

    /// Writes a copy of the lists that were adopted, where [`Revocations::keep_in`] said. The newest are on the disk once the last of several
    /// calls returns.
    ///
    /// Blocks for as long as files are written.
    pub fn keep_adopted(&self) {
        let _disk = self.disk();
        let of_peers = self.sources().of_peers.clone();
        self.keep(Source::Peer, &of_peers);
    }

    /// The authorities whose lists are read here.
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// The lists in use.
    pub fn lists(&self) -> Lists {
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

    /// Waits until other lists are in use than when the future was made.
    ///
    /// # Cancel safety
    /// Cancel safe, but changes before it is made again are not seen.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.changes.subscribe();
        async move {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Reads the file if it is another than the last time; says whether other lists are in use now than when this function, or
    /// [`Revocations::reread`], last said so: by the file, or by [`Revocations::adopt`].
    ///
    /// # Errors
    /// [`RevocationError`], once for each time that the file is written: the lists in use stay.
    pub fn refresh(&self) -> Result<bool, RevocationError> {
        let Some(path) = &self.path else { return Ok(false) };
        let mut disk = self.disk();
        let stamp = stamp(path);
        if std::mem::replace(&mut *disk, stamp) != stamp {
            self.read(path, stamp)?;
        }
        Ok(self.is_news())
    }

    /// As [`Revocations::refresh`], also if the file is the one that was read last.
    ///
    /// # Errors
    /// [`RevocationError`]: the lists in use stay.
    pub fn reread(&self) -> Result<bool, RevocationError> {
        let Some(path) = &self.path else { return Ok(false) };
        let mut disk = self.disk();
        *disk = stamp(path);
        self.read(path, *disk)?;
        Ok(self.is_news())
    }

    fn is_news(&self) -> bool {
        let mut sources = self.sources();
        let changes = *self.changes.borrow();
        std::mem::replace(&mut sources.changes_told, changes) != changes
    }

    fn disk(&self) -> MutexGuard<'_, Stamp> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file, which looks so; the caller has the lock of the disk.
    fn read(&self, path: &Path, stamp: Stamp) -> Result<(), RevocationError> {
        let new = match stamp {
            Stamp::Nothing | Stamp::Unseen => Vec::new(),
            Stamp::File(..) => read(path, &self.authorities)?,
            Stamp::Unreadable(kind) => {
                // It was of that kind when it was looked at, even if it has changed since.
                let source = regular::open(path).err().unwrap_or_else(|| kind.into());
                return Err(RevocationError::Read { path: path.to_owned(), source });
            }
        };
        let mut sources = self.sources();
        for former in sources.of_file.iter() {
            // A list that lost an entry would admit its certificate again.
            match new.iter().find(|new| new.issuer == former.issuer) {
                None => return Err(RevocationError::Gone { path: path.to_owned() }),
                Some(new) => {
                    if let Some(error) = older(path, new, former) {
                        return Err(error);
                    }
                }
            }
        }
        let of_file: Lists = new.into_iter().map(Arc::new).collect();
        sources.of_file = of_file.clone();
        self.exchange(&sources);
        let wrong = counted_back(path, &of_file, &sources.of_peers);
        drop(sources);
        self.keep(Source::File, &of_file);
        wrong.map_or(Ok(()), Err)
    }

    /// Refuses a chain that TLS has verified if a certificate of it was revoked.
    fn check(&self, chain: &[&CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let found = chain.iter().find_map(|it| self.find(it).map(|revoked| (it, revoked)));
        let Some((certificate, Revoked { reason, .. })) = found else { return Ok(()) };
        let now = clock::now();
        let lines = || self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let serial = Serial::of(certificate);
        let due = serial.as_ref().and_then(|serial| lines().add(now, serial.bytes()));
        let serial = serial.map(|serial| serial.to_string()).unwrap_or_default();
        let peer = identity_of(certificate);
        let who = match &peer {
            Ok(peer) => peer.to_string(),
            Err(_) => "a peer of another authority's naming".to_owned(),
        };
        if let Some(times) = due.and_then(|times| SHOWN.add(now, times)) {
            tracing::warn!(%who, %serial, %reason, times, "a revoked certificate was shown, and refused");
        }
        if let Some(Told(told)) = self.told.get() {
            told(&Shown { peer: peer.ok(), serial, reason });
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::Revoked))
    }
}

impl RevocationList {
    fn adoption(&self, outcome: Adopted) -> Adoption {
        Adoption { authority: self.authority, version: self.version(), outcome }
    }
}

/// Of the lists of each authority the newest; of equally new ones the first.
fn newest(lists: impl Iterator<Item = Arc<RevocationList>>) -> Lists {
    let mut newest: Vec<Arc<RevocationList>> = Vec::new();
    for list in lists {
        match newest.iter_mut().find(|other| other.issuer == list.issuer) {
            None => newest.push(list),
            Some(other) if list.age() > other.age() => *other = list,
            Some(_) => {}
        }
    }
    newest.into()
}

/// The lists of the file `path`, with those of its copies that are newer in place of older ones, and which were older.
fn with_kept(
    path: &Path,
    of_file: &Lists,
    copies: Vec<Arc<RevocationList>>,
) -> (Lists, Vec<RevocationError>) {
    let (mut lists, mut wrong) = (of_file.to_vec(), Vec::new());
    for kept in copies {
        match lists.iter_mut().find(|list| list.issuer == kept.issuer) {
            None => {
                wrong.push(RevocationError::Gone { path: path.to_owned() });
                lists.push(kept);
            }
            Some(list) => {
                if let Some(error) = older(path, list, &kept) {
                    wrong.push(error);
                    *list = kept;
                }
            }
        }
    }
    (lists.into(), wrong)
}

/// That a list of another node counts in place of one in the file `path` that was signed later, which its operator must know.
fn counted_back(path: &Path, of_file: &Lists, of_peers: &Lists) -> Option<RevocationError> {
    of_file.iter().find_map(|found| {
        let kept = of_peers.iter().find(|kept| kept.issuer == found.issuer)?;
        (found.age() < kept.age() && found.signed_at > kept.signed_at).then(|| {
            let (path, found, kept) = (path.to_owned(), found.number, kept.number);
            RevocationError::CountedBack { path, found, kept }
        })
    })
}

/// That `found`, in the file `path`, is older than `kept`, if it is.
fn older(path: &Path, found: &RevocationList, kept: &RevocationList) -> Option<RevocationError> {
    (found.age() < kept.age()).then(|| RevocationError::Older {
        path: path.to_owned(),
        found: found.number,
        found_at: found.signed_at,
        kept: kept.number,
        kept_at: kept.signed_at,
    })
}

#[cfg(test)]
mod tests;
