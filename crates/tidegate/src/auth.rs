//! The doors: who comes in, and what they may do, by a password file and an ACL file.
//!
//! ```text
//!  Proof ──▶ attempts ──▶ password file, certificate ──▶ Identity ──▶ ACL file ──▶ Decision
//!            (too many?)                                              (for each topic)
//! ```
//!
//! Other files, or the same ones again, are read by [`Doors::prepare`] and taken by [`Doors::exchange`] while the doors are in
//! use.
//!
//! Always true: rules are replaced all at once or not at all, and a file that is missing or broken leaves
//! those in force that were; nobody comes in who proved nothing unless anonymous clients are let in; a name that
//! nobody proved is no one's name; the memory for failed attempts is bounded.

pub mod acl;
mod attempts;
pub mod password;
pub mod scram;

use std::{
    fs, io,
    io::Read as _,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use tidegate_message::{
    Action, Authorize, Decision, Identity, IdentityKind, Proof, Refusal, Target,
};

use self::{
    acl::{Acl, AclError},
    attempts::Attempts,
    password::{DecoyKey, PasswordError, Passwords, RandomError, random},
    scram::Scram,
};

/// Largest password file or ACL file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// What the doors go by.
#[derive(Clone, Debug)]
pub struct DoorsConfig {
    /// Users and what proves them. Default none: nobody comes in by user name.
    pub password_file: Option<PathBuf>,
    /// Rules for topics. Default none: whoever is in may do everything with topics.
    pub acl_file: Option<PathBuf>,
    /// Whether those come in who prove nothing. Default false.
    pub allow_anonymous: bool,
    /// Makes unknown users look like known ones; keep it across restarts.
    pub decoy_key: DecoyKey,
}

/// The doors of a node. Shared by its listeners.
#[derive(Debug)]
pub struct Doors {
    rules: RwLock<Arc<Rules>>,
    /// Of `rules`: asked for each message, and by every thread of the data path.
    generation: AtomicU64,
    receives_all: AtomicBool,
    attempts: Mutex<Attempts>,
}

/// The rules of one moment.
#[derive(Debug)]
pub struct Rules {
    config: DoorsConfig,
    passwords: Option<Passwords>,
    acl: Option<Acl>,
    acl_text: Option<String>,
    generation: u64,
}

/// Rules that are read and not in force.
#[derive(Debug)]
pub struct Prepared(Rules);

/// What an exchange of the rules changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Users that were added or removed, or have another secret, in order: their sessions may be ended.
    pub users_changed: Vec<String>,
    /// Users that there are now.
    pub users: usize,
    /// Whether the ACL file is another one.
    pub acl_changed: bool,
    /// Rules that there are now.
    pub acl_rules: usize,
    /// What an operator should look at.
    pub warnings: Vec<String>,
}

impl Doors {
    /// Doors that go by the files of `config`.
    ///
    /// # Errors
    /// [`DoorsError`] if a file cannot be read or a line of it is wrong.
    pub fn open(config: DoorsConfig) -> Result<Self, DoorsError> {
        let rules = Rules::read(config, 0)?;
        Ok(Self {
            generation: AtomicU64::new(rules.generation),
            receives_all: AtomicBool::new(rules.receives_all()),
            rules: RwLock::new(Arc::new(rules)),
            attempts: Mutex::new(Attempts::new()),
        })
    }

    /// Who shows `proof`. Takes tens of milliseconds by design: call it off the data path.
    ///
    /// A user name counts with its password, whatever else is shown. Without a user name, or without a password
    /// file that could prove one, the name in a verified certificate counts. Who shows neither is anonymous, if
    /// that is allowed.
    ///
    /// # Errors
    /// [`Refusal::BadCredentials`], [`Refusal::ProofRequired`] if nothing was shown, [`Refusal::TooMany`]
    /// after wrong proofs for this user from this address.
    pub fn authenticate(&self, proof: &Proof, now: Instant) -> Result<Identity, Refusal> {
        let rules = self.rules();
        match (&rules.passwords, &proof.username, &proof.password) {
            (Some(passwords), Some(user), password) => {
                self.attempt(proof.address, user, now, || {
                    let password = password.as_deref().ok_or(Refusal::BadCredentials)?;
                    if !passwords.verify(user, password) {
                        return Err(Refusal::BadCredentials);
                    }
                    Ok(Identity::new(IdentityKind::User, user, &proof.client))
                })
            }
            (_, username, password) => match proof.certificate.as_deref() {
                Some(name) if !name.is_empty() => {
                    Ok(Identity::new(IdentityKind::Certificate, name, &proof.client))
                }
                _ if rules.config.allow_anonymous => Ok(Identity::anonymous(&proof.client)),
                _ if username.is_some() || password.is_some() => Err(Refusal::BadCredentials),
                _ => Err(Refusal::ProofRequired),
            },
        }
    }

    /// Begins SCRAM; returns the exchange and the server's first message.
    ///
    /// # Errors
    /// [`Refusal::BadCredentials`] if the message is not one of SCRAM or there is no password file.
    pub fn begin_scram(&self, client_first: &[u8]) -> Result<(Scram, Vec<u8>), Refusal> {
        let rules = self.rules();
        let passwords = rules.passwords.as_ref().ok_or(Refusal::BadCredentials)?;
        let nonce = random().map_err(|_: RandomError| Refusal::BadCredentials)?;
        Scram::begin(client_first, nonce, |user| passwords.scram(user))
    }

    /// Ends SCRAM with the client's last message; returns who it is and the server's last message. Of `proof` the
    /// client and the address count.
    ///
    /// # Errors
    /// [`Refusal::BadCredentials`], [`Refusal::TooMany`] after wrong proofs for this user from this address.
    pub fn finish_scram(
        &self,
        scram: Scram,
        client_final: &[u8],
        proof: &Proof,
        now: Instant,
    ) -> Result<(Identity, Vec<u8>), Refusal> {
        let user = scram.claimed_user().to_owned();
        self.attempt(proof.address, &user, now, || {
            let (user, server_final) = scram.finish(client_final)?;
            Ok((Identity::new(IdentityKind::User, &user, &proof.client), server_final))
        })
    }

    /// Reads the files of `config`, and changes nothing.
    ///
    /// # Errors
    /// [`DoorsError`] if a file cannot be read or a line of it is wrong.
    pub fn prepare(&self, config: DoorsConfig) -> Result<Prepared, DoorsError> {
        Rules::read(config, 0).map(Prepared)
    }

    /// Goes by `new` from now on.
    pub fn exchange(&self, Prepared(mut new): Prepared) -> Reloaded {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let users_changed = match (&rules.passwords, &new.passwords) {
            (Some(old), Some(new)) => old.changed(new),
            (Some(all), None) | (None, Some(all)) => all.users(),
            (None, None) => Vec::new(),
        };
        let acl_changed = rules.acl_text != new.acl_text;
        let is_other = acl_changed || !users_changed.is_empty();
        new.renumber(rules.generation + u64::from(is_other));
        let reloaded = Reloaded {
            users_changed,
            users: new.passwords.as_ref().map_or(0, Passwords::len),
            acl_changed,
            acl_rules: new.acl.as_ref().map_or(0, Acl::len),
            warnings: new.warnings(),
        };
        let (generation, receives_all) = (new.generation, new.receives_all());
        *rules = Arc::new(new);
        // Last, so that what was decided by the former rules is decided anew by these.
        self.receives_all.store(receives_all, Ordering::Release);
        self.generation.store(generation, Ordering::Release);
        reloaded
    }

    /// What an operator should look at: a password file that every user of the machine can read.
    pub fn warnings(&self) -> Vec<String> {
        self.rules().warnings()
    }

    /// The rules of this moment, for many decisions in a row.
    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn attempt<T>(
        &self,
        address: Option<IpAddr>,
        user: &str,
        now: Instant,
        check: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (key, counted) = {
            let mut attempts = lock(&self.attempts);
            let key = attempts.key(address, user);
            (key, attempts.begin(key, now)?)
        };
        let result = check();
        lock(&self.attempts).end(key, counted, result.is_ok(), now);
        result
    }
}

impl Authorize for Doors {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).decide(identity, action, target)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn receives_all(&self) -> bool {
        self.receives_all.load(Ordering::Acquire)
    }
}

impl Rules {
    fn warnings(&self) -> Vec<String> {
        self.config.password_file.iter().filter_map(|path| open_to_all(path)).collect()
    }

    fn read(config: DoorsConfig, generation: u64) -> Result<Self, DoorsError> {
        let passwords = match &config.password_file {
            Some(path) => {
                let key = config.decoy_key.clone();
                Some(Passwords::parse(path, &read(path)?, key).map_err(DoorsError::Password)?)
            }
            None => None,
        };
        let acl_text = config.acl_file.as_deref().map(read).transpose()?;
        let acl = match (&config.acl_file, &acl_text) {
            (Some(path), Some(text)) => Some(Acl::parse(path, text).map_err(DoorsError::Acl)?),
            _ => None,
        };
        let mut rules = Self { config, passwords, acl, acl_text, generation };
        rules.renumber(generation);
        Ok(rules)
    }

    fn renumber(&mut self, generation: u64) {
        self.generation = generation;
        self.acl = self.acl.take().map(|acl| acl.with_generation(generation));
    }
}

/// Without an ACL file everything is allowed to those who proved who they are, and topics and frames to others.
impl Authorize for Rules {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        match (&self.acl, action) {
            (Some(acl), _) => acl.decide(identity, action, target),
            (None, Action::FetchOriginal | Action::Functions | Action::Admin)
                if identity.kind == IdentityKind::Anonymous =>
            {
                Decision::deny("nobody in particular may use topics and see frames, and no more")
            }
            (None, _) => Decision::allow("no ACL file is configured"),
        }
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn receives_all(&self) -> bool {
        self.acl.as_ref().is_none_or(Acl::receives_all)
    }
}

fn read(path: &Path) -> Result<String, DoorsError> {
    let unreadable = |source| DoorsError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(DoorsError::TooLarge { path: path.to_owned() });
    }
    Ok(text)
}

#[cfg(unix)]
fn open_to_all(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let mode = fs::metadata(path).ok()?.mode();
    (mode & 0o007 != 0).then(|| {
        format!("{0} can be read by every user of this machine; run: chmod o= {0}", path.display())
    })
}

#[cfg(not(unix))]
fn open_to_all(_: &Path) -> Option<String> {
    None
}

/// A panic in another thread leaves what the lock guards whole: every change to it is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why the doors do not go by their files.
#[derive(Debug, thiserror::Error)]
pub enum DoorsError {
    /// A file cannot be read.
    #[error("{} cannot be read", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is too large to be meant.
    #[error("{} is larger than {} MiB; is it the right file?", .path.display(), FILE_BYTES_MAX >> 20)]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// A line of the password file is wrong.
    #[error(transparent)]
    Password(PasswordError),
    /// A line of the ACL file is wrong.
    #[error(transparent)]
    Acl(AclError),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{password::hash, scram::Credentials, *};

    struct Site {
        folder: tempfile::TempDir,
        config: DoorsConfig,
    }

    /// A site where alice's password is `tide`, and bob's `ebb` by SCRAM; weak ones, to be fast.
    fn site(passwords: bool, acl: Option<&str>, allow_anonymous: bool) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let bob = Credentials::derive(b"ebb", b"salt of bob", 4096).encode();
        let alice = Credentials::derive(b"tide", b"salt of ali", 4096).encode();
        fs::write(path("passwords"), format!("alice:{alice}\nbob:{bob}\n")).unwrap();
        fs::write(path("acl"), acl.unwrap_or_default()).unwrap();
        let config = DoorsConfig {
            password_file: passwords.then(|| path("passwords")),
            acl_file: acl.map(|_| path("acl")),
            allow_anonymous,
            decoy_key: DecoyKey([1; 32]),
        };
        Site { folder, config }
    }

    fn reload(doors: &Doors, config: &DoorsConfig) -> Result<Reloaded, DoorsError> {
        Ok(doors.exchange(doors.prepare(config.clone())?))
    }

    fn proof(user: Option<&str>, password: Option<&str>, certificate: Option<&str>) -> Proof {
        Proof {
            username: user.map(Into::into),
            password: password.map(Into::into),
            certificate: certificate.map(Into::into),
            client: "c".into(),
            address: Some([192, 0, 2, 1].into()),
        }
    }

    #[test]
    fn proofs_make_identities() {
        use IdentityKind::{Anonymous, Certificate, User};
        let bad = Err(Refusal::BadCredentials);
        for (passwords, anonymous, user, password, certificate, expected) in [
            (true, false, Some("alice"), Some("tide"), None, Ok((User, "alice"))),
            (true, false, Some("alice"), Some("ebb"), None, bad),
            (true, false, Some("alice"), None, None, bad),
            (true, false, Some("eve"), Some("tide"), None, bad),
            (true, false, None, Some("tide"), None, bad),
            (true, false, None, None, None, Err(Refusal::ProofRequired)),
            (true, true, None, None, None, Ok((Anonymous, ""))),
            (true, true, Some("alice"), Some("ebb"), None, bad), // a wrong proof is not none
            (true, false, None, None, Some("dev-1"), Ok((Certificate, "dev-1"))),
            (true, false, Some("alice"), Some("tide"), Some("dev-1"), Ok((User, "alice"))),
            (true, false, Some("alice"), Some("ebb"), Some("dev-1"), bad),
            (true, false, None, None, Some(""), Err(Refusal::ProofRequired)),
            // Without a password file nobody can prove a name, so it is nobody's.
            (false, true, Some("alice"), Some("tide"), None, Ok((Anonymous, ""))),
            (false, false, Some("alice"), Some("tide"), None, bad),
            (false, false, Some("alice"), None, Some("dev-1"), Ok((Certificate, "dev-1"))),
        ] {
            let doors = Doors::open(site(passwords, None, anonymous).config).unwrap();
            let proof = proof(user, password, certificate);
            let result = doors.authenticate(&proof, Instant::now());
            let got = result.as_ref().map(|who| (who.kind, &*who.name)).map_err(|refusal| *refusal);
            assert_eq!(got, expected, "{proof:?}");
        }
    }

    #[test]
    fn scram_proves_a_user_without_the_password() {
        let doors = Doors::open(site(true, None, false).config).unwrap();
        let log_in = |user: &str, password: &str| {
            let (mut client, first) = scram::ScramClient::begin(user, password.as_bytes(), [3; 18]);
            let (server, answer) = doors.begin_scram(&first)?;
            let last = client.answer(&answer).unwrap();
            let proof = proof(None, None, None);
            let (identity, last) = doors.finish_scram(server, &last, &proof, Instant::now())?;
            assert_eq!(client.verify(&last), Ok(()));
            Ok::<_, Refusal>(identity)
        };
        assert_eq!(log_in("bob", "ebb"), Ok(Identity::new(IdentityKind::User, "bob", "c")));
        assert_eq!(log_in("bob", "tide"), Err(Refusal::BadCredentials));
        assert_eq!(log_in("eve", "tide"), Err(Refusal::BadCredentials));
    }

    #[test]
    fn wrong_guesses_are_slowed_and_forgotten() {
        let doors = Doors::open(site(true, None, false).config).unwrap();
        let start = Instant::now();
        let (wrong, right) =
            (proof(Some("bob"), Some("x"), None), proof(Some("bob"), Some("ebb"), None));
        for _ in 0..5 {
            assert_eq!(doors.authenticate(&wrong, start), Err(Refusal::BadCredentials));
        }
        assert_eq!(doors.authenticate(&right, start), Err(Refusal::TooMany));
        let other = Proof { address: Some([192, 0, 2, 2].into()), ..right.clone() };
        assert!(doors.authenticate(&other, start).is_ok(), "another address is not slowed");
        assert!(doors.authenticate(&right, start + Duration::from_secs(1)).is_ok());
        assert_eq!(
            doors.authenticate(&wrong, start),
            Err(Refusal::BadCredentials),
            "it was forgotten"
        );
    }

    #[test]
    fn reload_takes_all_or_nothing() {
        let site = site(true, Some("user alice\ntopic read a\n"), false);
        let file = |name: &str| site.folder.path().join(name);
        let doors = Doors::open(site.config.clone()).unwrap();
        let alice = Identity::new(IdentityKind::User, "alice", "c");
        let may = |topic: &str| doors.decide(&alice, Action::Receive, Target::Topic(topic)).allow;
        let now = Instant::now();
        let comes_in = |user, password| {
            doors.authenticate(&proof(Some(user), Some(password), None), now).is_ok()
        };
        assert!(may("a") && !may("b"));
        assert_eq!(reload(&doors, &site.config).unwrap().users_changed, Vec::<String>::new());
        assert_eq!(doors.generation(), 0, "nothing changed");

        // A good password file beside a broken ACL file: neither is taken.
        let users = fs::read_to_string(file("passwords")).unwrap();
        fs::write(file("passwords"), users.lines().next().unwrap()).unwrap();
        fs::write(file("acl"), "user alice\ntopic raed b\n").unwrap();
        let error = reload(&doors, &site.config).unwrap_err().to_string();
        assert!(error.contains("acl:2: \"raed\" is no access"), "{error}");
        assert!(may("a") && !may("b") && comes_in("bob", "ebb") && doors.generation() == 0);
        fs::remove_file(file("acl")).unwrap();
        assert!(reload(&doors, &site.config).unwrap_err().to_string().contains("cannot be read"));
        assert!(may("a") && !may("b") && comes_in("bob", "ebb"));

        fs::write(file("acl"), "user alice\ntopic read b\ntopic read c\n").unwrap();
        let reloaded = reload(&doors, &site.config).unwrap();
        assert_eq!(reloaded.users_changed, ["bob"]);
        assert_eq!((reloaded.users, reloaded.acl_changed, reloaded.acl_rules), (1, true, 2));
        assert!(!may("a") && may("b") && !comes_in("bob", "ebb") && doors.generation() == 1);

        // Other files, or none: whoever had a name has it no longer.
        fs::write(file("others"), &users).unwrap();
        let others = DoorsConfig { password_file: Some(file("others")), ..site.config.clone() };
        assert_eq!(reload(&doors, &others).unwrap().users_changed, ["bob"]);
        assert!(comes_in("bob", "ebb"));
        let none = DoorsConfig { password_file: None, ..site.config.clone() };
        assert_eq!(reload(&doors, &none).unwrap().users_changed, ["alice", "bob"]);
        assert!(!comes_in("bob", "ebb") && doors.generation() == 3);
    }

    #[test]
    fn broken_or_missing_files_open_no_door() {
        let site = site(true, Some("nonsense"), true);
        assert!(matches!(Doors::open(site.config.clone()), Err(DoorsError::Acl(_))));
        fs::remove_file(site.folder.path().join("passwords")).unwrap();
        assert!(matches!(Doors::open(site.config), Err(DoorsError::Read { .. })));
    }

    #[test]
    fn without_rules_only_strangers_are_kept_from_the_node() {
        let doors = Doors::open(site(false, None, true).config).unwrap();
        assert!(doors.receives_all());
        let stranger = Identity::anonymous("c");
        assert!(doors.decide(&stranger, Action::Publish, Target::Topic("a")).allow);
        assert!(!doors.decide(&stranger, Action::Admin, Target::Node).allow);
        let device = Identity::new(IdentityKind::Certificate, "dev", "c");
        assert!(doors.decide(&device, Action::Admin, Target::Node).allow);
    }

    #[cfg(unix)]
    #[test]
    fn password_file_that_all_can_read_is_told() {
        use std::os::unix::fs::PermissionsExt as _;
        let site = site(true, None, false);
        let path = site.folder.path().join("passwords");
        let doors = Doors::open(site.config.clone()).unwrap();
        for (mode, warnings) in [(0o644, 1), (0o640, 0)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(reload(&doors, &site.config).unwrap().warnings.len(), warnings, "{mode:o}");
        }
    }

    #[test]
    fn hashed_by_us_is_a_user_after_reload() {
        let site = site(true, None, false);
        let path = site.folder.path().join("passwords");
        let doors = Doors::open(site.config.clone()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let text = password::set_user(&text, "carol", &hash(b"spring").unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        assert_eq!(reload(&doors, &site.config).unwrap().users_changed, ["carol"]);
        let carol = proof(Some("carol"), Some("spring"), None);
        assert!(doors.authenticate(&carol, Instant::now()).is_ok());
    }
}
