//! Authentication and authorization for one node: identities, their rights and their limits.
//!
//! Other texts, or the same ones again, are read by [`Authenticator::prepare`] and put in force by [`Authenticator::exchange`] while the
//! authenticator is in use.
//!
//! The rights of an identity come from two files that count together: Mosquitto's ACL file ([`acl`](crate::acl)), which
//! covers topics alone, and the roles file ([`roles`](crate::roles)). A rule that denies wins, whichever file it stands
//! in; a request that neither file allows is denied. Where no file speaks:
//!
//! | asked of | without a file that speaks of it |
//! |---|---|
//! | topics | allowed to every client |
//! | `frames` | allowed to every client |
//! | `fetch-original`, `detect`, `publish` of frames | allowed to every authenticated client |
//! | `functions`, `admin` | allowed to every authenticated client, from this machine, and to nodes of the site |
//!
//! So beyond loopback all is denied by default: no client is accepted there without a proof unless a listener says
//! so, and none may administer a node from there unless a role says so.
//!
//! Always true: rules are replaced all at once or not at all, and a text that is broken leaves the former ones in force; a
//! client without a proof is refused unless anonymous clients are accepted; a name without proof is ignored; the memory
//! for failed attempts is bounded.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_message::{
    Action, Authorize, Decision, Identity, IdentityKind, Instant, Proof, Refusal, Target,
};
use zeroize::Zeroizing;

use crate::{
    acl::{Acl, AclError},
    attempts::Attempts,
    keys::{KeyDigest, KeySet, KeySetError},
    limits::{Limits, Meter, Meters},
    listed,
    password::{DecoyKey, PasswordError, Passwords, RandomError, Secret, random},
    poison::whole,
    roles::{Roles, RolesError, makes_sense},
    scram::Scram,
    token::{self, Claims, TokenConfig, TokenError, looks_like_token},
    verdict::Verdict,
    verified::Verified,
};

/// Least time between two requests for newer keys: made-up key names cannot make the node ask more often.
pub const KEYS_WISHED_MIN: Duration = Duration::from_secs(30);

/// The files and texts that an authenticator is made from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The password file: users and what proves them. Default none: no client is accepted by user name and password.
    pub passwords: Option<Source>,
    /// The ACL file. Default none.
    pub acl: Option<Source>,
    /// The roles file. Default none.
    pub roles: Option<Source>,
    /// The claims that tokens must have, and the keys that they are checked with. Default none: no token is accepted.
    pub tokens: Option<TokenSource>,
    /// Whether those come in who prove nothing. Default false.
    pub allow_anonymous: bool,
    /// The user who may do everything as long as there is no roles file. Default none.
    pub administrator: Option<Box<str>>,
    /// Makes unknown users look like known ones; keep it across restarts.
    pub decoy_key: DecoyKey,
}

/// A text and where it stands.
#[derive(Clone)]
pub struct Source {
    /// The file, for messages.
    pub path: PathBuf,
    /// The content.
    pub text: Zeroizing<String>,
}

/// Says nothing of the text.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Which tokens are accepted.
#[derive(Clone, Debug)]
pub struct TokenSource {
    /// The claims that they must have.
    pub config: TokenConfig,
    /// Their keys; none if they are still to be fetched.
    pub keys: Option<KeySet>,
    /// Where newer keys can be had, so that it is worth to wish for them; none where there are no others.
    pub renewed_from: Option<String>,
}

/// The two clocks: one that never jumps, for waits, and the wall clock, for what tokens say.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Never goes backwards; what the wall clock would say, had it not been set since the program started.
    pub steady: Instant,
    /// The time of day.
    pub wall: Instant,
}

impl Now {
    /// The time that the ends of tokens are held against: the later of the two, so that a wall clock that is set back, by whomever, lengthens
    /// the life of no token. A clock that was ahead when the program started and is then put right ends tokens early until the next start.
    fn of_tokens(self) -> Instant {
        self.wall.max(self.steady)
    }
}

/// An accepted client.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Its identity.
    pub identity: Identity,
    shown: Shown,
}

/// The proof that a client was accepted by.
#[derive(Clone, Debug)]
enum Shown {
    Nothing,
    Certificate,
    Password(Secret),
    Token { key: KeyDigest },
}

/// A rejected client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{refusal}")]
pub struct Rejected {
    /// The answer to the client.
    pub refusal: Refusal,
    /// The problem with its token; holds nothing secret.
    #[source]
    pub token: Option<TokenError>,
}

impl From<Refusal> for Rejected {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, token: None }
    }
}

/// Authenticates the clients of a node and decides their rights. Shared by its listeners.
#[derive(Debug)]
pub struct Authenticator {
    rules: RwLock<Arc<Rules>>,
    /// Of `rules`: asked for each message, and by every thread of the data path.
    generation: AtomicU64,
    receives_all: AtomicBool,
    attempts: Mutex<Attempts>,
    verified: Mutex<Verified>,
    meters: Mutex<Meters>,
    /// Whether a token named a key that is not there.
    wishes_keys: AtomicBool,
    /// When that was last requested.
    wished_at: AtomicI64,
}

/// The rules of one moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rules {
    passwords: Option<Arc<Passwords>>,
    /// Where these stand.
    passwords_path: Option<PathBuf>,
    acl: Option<Arc<Acl>>,
    roles: Option<Arc<Roles>>,
    tokens: Option<TokenSource>,
    allow_anonymous: bool,
    /// Of the ACL file and the roles file, to tell whether they are others.
    texts: Arc<[Option<Source>; 2]>,
    generation: u64,
    built_in: Arc<BuiltIn>,
}

/// The decision where no file is configured.
#[derive(Debug)]
struct BuiltIn {
    administrator: Option<Box<str>>,
    administers: Arc<str>,
    usual: Arc<str>,
    proved: Arc<str>,
    stranger: Arc<str>,
    remote: Arc<str>,
    local: Arc<str>,
    own_camera: Arc<str>,
    internal: Arc<str>,
    no_sense: Arc<str>,
}

/// Rules that are read and not in force.
#[derive(Debug)]
pub struct Prepared(Rules);

/// The effects of an exchange of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Users that were added or removed, or have another secret, in order: their sessions may be ended.
    pub users_changed: Vec<String>,
    /// Users of the password file that there are now.
    pub users: usize,
    /// Whether the ACL file is another one.
    pub acl_changed: bool,
    /// Rules of it that there are now.
    pub acl_rules: usize,
    /// Whether the roles file is another one.
    pub roles_changed: bool,
    /// Rules of it that there are now.
    pub roles_rules: usize,
    /// Whether other tokens are accepted, or by other keys.
    pub tokens_changed: bool,
}

/// The effects of an exchange of the token keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysChanged {
    /// Nothing.
    Same,
    /// Each token that was accepted still is.
    Added,
    /// Tokens that were accepted are no longer valid: their clients have to authenticate again.
    Withdrawn,
}

impl Authenticator {
    /// An authenticator that goes by `sources`.
    ///
    /// # Errors
    /// [`AuthenticatorError`] if a text is wrong.
    pub fn new(sources: Sources) -> Result<Self, AuthenticatorError> {
        let rules = Rules::new(sources)?;
        Ok(Self {
            generation: AtomicU64::new(rules.generation),
            receives_all: AtomicBool::new(rules.receives_all()),
            rules: RwLock::new(Arc::new(rules)),
            attempts: Mutex::new(Attempts::new()),
            verified: Mutex::new(Verified::new()),
            meters: Mutex::default(),
            wishes_keys: AtomicBool::new(false),
            wished_at: AtomicI64::new(i64::MIN),
        })
    }

    /// The identity that `proof` proves. Takes tens of milliseconds by design where a password is shown: call it off
    /// the data path.
    ///
    /// A token counts first; a password that looks like one is one, if tokens are accepted, and then its user name is
    /// empty or the token's. Then a user name counts with its password, whatever else is shown. Without a user name, or
    /// without a password file that could prove one, the name in a verified certificate counts. A client that shows none
    /// of them is anonymous, if that is allowed.
    ///
    /// # Errors
    /// [`Rejected`] with [`Refusal::BadCredentials`], [`Refusal::BadToken`], [`Refusal::KeysAwaited`],
    /// [`Refusal::ProofRequired`] if nothing was shown, or [`Refusal::TooMany`] after wrong proofs for this user from this
    /// address.
    pub fn authenticate(&self, proof: &Proof, now: Now) -> Result<Admitted, Rejected> {
        let rules = self.rules();
        let password = proof.password.as_deref();
        let as_password = password.filter(|word| rules.tokens.is_some() && looks_like_token(word));
        if let Some(token) = proof.token.as_deref().or(as_password) {
            return self.token(&rules, token, proof, now);
        }
        match (&rules.passwords, &proof.username) {
            (Some(passwords), Some(user)) => {
                let Some(password) = password else {
                    return self
                        .attempt(proof.address, user, now.steady, || Err(Refusal::BadCredentials));
                };
                if let Some(answer) = self.recall_password(passwords, user, password, proof, now) {
                    return answer;
                }
                self.attempt(proof.address, user, now.steady, || {
                    if !passwords.verify(user, password) {
                        return Err(Refusal::BadCredentials);
                    }
                    let admitted = passwords.admit(user, proof)?;
                    if let Some(secret) = passwords.secret(user) {
                        let mut verified = whole(self.verified.lock());
                        let digest = verified.digest(user, password, secret);
                        verified.remember(user, &digest);
                    }
                    Ok(admitted)
                })
            }
            (_, username) => match &proof.certificate {
                Some((kind, name)) if !name.is_empty() => {
                    let identity = Identity::new(*kind, name, &proof.client);
                    Ok(Admitted::by_certificate(Identity { address: proof.address, ..identity }))
                }
                _ if rules.allow_anonymous => Ok(Admitted {
                    identity: Identity {
                        address: proof.address,
                        ..Identity::anonymous(&proof.client)
                    },
                    shown: Shown::Nothing,
                }),
                _ if username.is_some() || password.is_some() => {
                    Err(Refusal::BadCredentials.into())
                }
                _ => Err(Refusal::ProofRequired.into()),
            },
        }
    }

    /// The answer to `proof`, if it can be had without hashing a password: because this process verified the very same one
    /// before, against the line of now, or because of too many wrong ones; none if it must be hashed, or is none. Takes
    /// microseconds.
    pub fn recall(&self, proof: &Proof, now: Now) -> Option<Result<Admitted, Rejected>> {
        let rules = self.rules();
        let (passwords, user) = (rules.passwords.as_ref()?, proof.username.as_ref()?);
        let password = proof.password.as_deref()?;
        let is_token =
            proof.token.is_some() || rules.tokens.is_some() && looks_like_token(password);
        if is_token {
            return None;
        }
        self.recall_password(passwords, user, password, proof, now)
    }

    fn recall_password(
        &self,
        passwords: &Passwords,
        user: &str,
        password: &[u8],
        proof: &Proof,
        now: Now,
    ) -> Option<Result<Admitted, Rejected>> {
        let attempts = whole(self.attempts.lock());
        let key = attempts.key(proof.address, user);
        if attempts.is_blocked(key, now.steady) {
            return Some(Err(Refusal::TooMany.into()));
        }
        drop(attempts);
        let secret = passwords.secret(user)?;
        let mut verified = whole(self.verified.lock());
        let digest = verified.digest(user, password, secret);
        let holds = verified.holds(user, &digest);
        drop(verified);
        if !holds {
            return None;
        }
        whole(self.attempts.lock()).end(key, false, true, now.steady);
        Some(passwords.admit(user, proof).map_err(Rejected::from))
    }

    /// Guessing a signature is hopeless, so that wrong tokens are not counted as attempts.
    fn token(
        &self,
        rules: &Rules,
        token: &[u8],
        proof: &Proof,
        now: Now,
    ) -> Result<Admitted, Rejected> {
        let bad = |error| Rejected { refusal: Refusal::BadToken, token: Some(error) };
        let Some(source) = &rules.tokens else { return Err(bad(TokenError::NoKeys)) };
        let checked = match &source.keys {
            Some(keys) => token::verify(token, keys, &source.config, now.of_tokens()),
            None => Err(TokenError::NoKeys),
        };
        let claims = checked.map_err(|error| {
            let lacks_key = matches!(error, TokenError::UnknownKey { .. } | TokenError::NoKeys);
            if lacks_key && source.renewed_from.is_some() && self.wish_keys(now.steady) {
                return Rejected { refusal: Refusal::KeysAwaited, token: Some(error) };
            }
            bad(error)
        })?;
        let is_other = |user: &String| !user.is_empty() && **user != *claims.name;
        if proof.username.as_ref().is_some_and(is_other) {
            return Err(bad(TokenError::OtherUser));
        }
        let Claims { name, groups, until, key } = claims;
        let kind = IdentityKind::User;
        let (client, address) = (proof.client.as_str().into(), proof.address);
        Ok(Admitted {
            identity: Identity { kind, name, groups, client, address, until: Some(until) },
            shown: Shown::Token { key },
        })
    }

    /// Notes that newer keys are wanted; whether they may be asked for, or were a moment ago.
    fn wish_keys(&self, now: Instant) -> bool {
        let last = Instant::from_nanos(self.wished_at.load(Ordering::Acquire));
        if now < last + KEYS_WISHED_MIN {
            // Asked for already: soon there, if at all.
            return now < last + KEYS_WISHED_MIN / 6;
        }
        self.wished_at.store(now.as_nanos(), Ordering::Release);
        self.wishes_keys.store(true, Ordering::Release);
        true
    }

    /// Whether newer keys should be fetched; says so once for each wish, and not more often than [`KEYS_WISHED_MIN`].
    pub fn takes_wish_for_keys(&self) -> bool {
        self.wishes_keys.swap(false, Ordering::AcqRel)
    }

    /// Checks tokens with other keys from now on, or with none as long as the issuer has none that can be used; says what that
    /// changes. Nothing happens if no tokens are accepted.
    pub fn set_keys(&self, keys: Option<KeySet>) -> KeysChanged {
        let mut rules = whole(self.rules.write());
        let mut new = Rules::clone(&rules);
        let Some(tokens) = &mut new.tokens else { return KeysChanged::Same };
        if tokens.keys == keys {
            return KeysChanged::Same;
        }
        let is_left = |old: &KeySet| keys.as_ref().is_some_and(|new| new.has_all_of(old));
        let changed = match tokens.keys.as_ref().is_none_or(is_left) {
            true => KeysChanged::Added,
            false => KeysChanged::Withdrawn,
        };
        tokens.keys = keys;
        new.generation += 1;
        let generation = new.generation;
        *rules = Arc::new(new);
        self.generation.store(generation, Ordering::Release);
        changed
    }

    /// Whether the proof that a client showed is still valid: its password is the current one, its token has not expired
    /// and is signed with a current key. A certificate stays valid.
    pub fn is_current(&self, admitted: &Admitted, now: Now) -> bool {
        let rules = self.rules();
        match &admitted.shown {
            Shown::Nothing => rules.allow_anonymous,
            Shown::Certificate => true,
            Shown::Password(secret) => rules
                .passwords
                .as_ref()
                .is_some_and(|all| all.secret(&admitted.identity.name) == Some(secret)),
            Shown::Token { key } => {
                let keys = rules.tokens.as_ref().and_then(|tokens| tokens.keys.as_ref());
                admitted.identity.until.is_some_and(|until| now.of_tokens() < until)
                    && keys.is_some_and(|keys| keys.has(key))
            }
        }
    }

    /// Whether the users are those of the file `path`.
    pub fn has_own_users(&self, path: &Path) -> bool {
        self.rules().passwords_path.as_deref() == Some(path)
    }

    /// Whether users come in by passwords and in no other way.
    pub fn has_users_alone(&self) -> bool {
        let rules = self.rules();
        rules.passwords.is_some() && rules.tokens.is_none()
    }

    /// The users of the password file, in order of their names; none if there is no password file.
    pub fn users(&self) -> Option<Vec<String>> {
        self.rules().passwords.as_ref().map(|all| all.users())
    }

    /// Whether the password file has a user of that name.
    pub fn has_user(&self, name: &str) -> bool {
        self.rules().passwords.as_ref().is_some_and(|all| all.secret(name).is_some())
    }

    /// Whether there are passwords or tokens, so that a client without a certificate may authenticate.
    pub fn takes_proofs(&self) -> bool {
        let rules = self.rules();
        rules.passwords.is_some() || rules.tokens.is_some()
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
        now: Now,
    ) -> Result<(Admitted, Vec<u8>), Rejected> {
        let user = scram.claimed_user().to_owned();
        self.attempt(proof.address, &user, now.steady, || {
            let (user, server_final) = scram.finish(client_final)?;
            let rules = self.rules();
            let passwords = rules.passwords.as_ref().ok_or(Refusal::BadCredentials)?;
            Ok((passwords.admit(&user, proof)?, server_final))
        })
    }

    /// Reads `sources`, and changes nothing.
    ///
    /// # Errors
    /// [`AuthenticatorError`] if a text is wrong.
    pub fn prepare(&self, sources: Sources) -> Result<Prepared, AuthenticatorError> {
        Rules::new(sources).map(Prepared)
    }

    /// Goes by `new` from now on.
    pub fn exchange(&self, Prepared(mut new): Prepared) -> Reloaded {
        let mut rules = whole(self.rules.write());
        let users_changed = match (&rules.passwords, &new.passwords) {
            (Some(old), Some(new)) => old.changed(new),
            (Some(all), None) | (None, Some(all)) => all.users(),
            (None, None) => Vec::new(),
        };
        // Fetched keys stay until newer ones arrive: the configured ones may be as old as the last start.
        if let (Some(old), Some(tokens)) = (&rules.tokens, &mut new.tokens)
            && tokens.renewed_from.is_some()
            && tokens.renewed_from == old.renewed_from
            && tokens.config == old.config
            && old.keys.is_some()
        {
            tokens.keys.clone_from(&old.keys);
        }
        let tokens_changed = match (&rules.tokens, &new.tokens) {
            (Some(old), Some(new)) => old.keys != new.keys || old.config != new.config,
            (old, new) => old.is_some() != new.is_some(),
        };
        let text = |source: &Option<Source>| source.as_ref().map(|source| source.text.clone());
        let [acl_changed, roles_changed] =
            [0, 1].map(|file| text(&rules.texts[file]) != text(&new.texts[file]));
        let is_other = acl_changed || roles_changed || tokens_changed || !users_changed.is_empty();
        new.generation = rules.generation + u64::from(is_other);
        let reloaded = Reloaded {
            users_changed,
            users: new.passwords.as_deref().map_or(0, Passwords::len),
            acl_changed,
            acl_rules: new.acl.as_deref().map_or(0, Acl::len),
            roles_changed,
            roles_rules: new.roles.as_deref().map_or(0, Roles::len),
            tokens_changed,
        };
        let (generation, receives_all) = (new.generation, new.receives_all());
        *rules = Arc::new(new);
        // Their digests hold no more by themselves; they are no longer needed.
        whole(self.verified.lock()).forget(&reloaded.users_changed);
        // After the rules, so that decisions by the former ones are taken again by these.
        self.receives_all.store(receives_all, Ordering::Release);
        self.generation.store(generation, Ordering::Release);
        drop(rules);
        // A meter is made under this lock, after a look at the rules: it finds these, or is found here.
        let meters = whole(self.meters.lock());
        let rules = self.rules();
        meters.exchange(|identity| rules.limits(identity));
        reloaded
    }

    /// The rules of this moment, for many decisions in a row.
    pub fn rules(&self) -> Arc<Rules> {
        let rules = whole(self.rules.read());
        Arc::clone(&rules)
    }

    /// The usage meter of `identity`, one for all its connections.
    pub fn meter(&self, identity: &Identity) -> Arc<Meter> {
        whole(self.meters.lock()).meter(identity, || self.rules().limits(identity))
    }

    fn attempt<T>(
        &self,
        address: Option<IpAddr>,
        user: &str,
        now: Instant,
        check: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Rejected> {
        let (key, counted) = {
            let mut attempts = whole(self.attempts.lock());
            let key = attempts.key(address, user);
            (key, attempts.begin(key, now)?)
        };
        let result = check();
        whole(self.attempts.lock()).end(key, counted, result.is_ok(), now);
        Ok(result?)
    }
}

impl Authorize for Authenticator {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        whole(self.rules.read()).decide(identity, action, target)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn receives_all(&self) -> bool {
        self.receives_all.load(Ordering::Acquire)
    }
}

impl Admitted {
    /// A client whose certificate TLS has verified.
    pub fn by_certificate(identity: Identity) -> Self {
        Self { identity, shown: Shown::Certificate }
    }
}

impl Passwords {
    /// `user`, who was proved by what `proof` came with.
    fn admit(&self, user: &str, proof: &Proof) -> Result<Admitted, Refusal> {
        let secret = self.secret(user).ok_or(Refusal::BadCredentials)?;
        let identity = Identity::new(IdentityKind::User, user, &proof.client);
        Ok(Admitted {
            identity: Identity { address: proof.address, ..identity },
            shown: Shown::Password(secret.clone()),
        })
    }
}

impl Rules {
    /// The rules of `sources`, for many decisions in a row without an authenticator.
    ///
    /// # Errors
    /// [`AuthenticatorError`] if a text is wrong.
    pub fn new(sources: Sources) -> Result<Self, AuthenticatorError> {
        let Sources { passwords, acl, roles, tokens, allow_anonymous, administrator, decoy_key } =
            sources;
        let read_passwords =
            |source: Source| Passwords::parse(&source.path, &source.text, decoy_key);
        let read_acl = |source: &Source| Acl::parse(&source.path, &source.text);
        let read_roles = |source: &Source| Roles::parse(&source.path, &source.text);
        let passwords_path = passwords.as_ref().map(|source| source.path.clone());
        let passwords =
            passwords.map(read_passwords).transpose().map_err(AuthenticatorError::Password)?;
        let read = acl.as_ref().map(read_acl).transpose().map_err(AuthenticatorError::Acl)?;
        let read_roles =
            roles.as_ref().map(read_roles).transpose().map_err(AuthenticatorError::Roles)?;
        Ok(Self {
            passwords: passwords.map(Arc::new),
            passwords_path,
            acl: read.map(Arc::new),
            roles: read_roles.map(Arc::new),
            tokens,
            allow_anonymous,
            texts: Arc::new([acl, roles]),
            generation: 0,
            built_in: Arc::new(BuiltIn { administrator, ..BuiltIn::default() }),
        })
    }

    /// All of them by subject, a line each, to be compared with those of another node. No secret is among them.
    pub fn listed(&self) -> BTreeMap<String, String> {
        let mut listed = BTreeMap::new();
        let allowed = if self.allow_anonymous { "are let in" } else { "are not let in" };
        listed.insert("anonymous clients".to_owned(), allowed.to_owned());
        if let Some(passwords) = &self.passwords {
            listed::users(passwords.users(), &mut listed);
        }
        let [acl, roles] = &*self.texts;
        if let Some(acl) = acl {
            listed::acl(&acl.text, &mut listed);
        }
        if let Some(roles) = roles {
            listed::roles(&roles.text, &mut listed);
        }
        listed
    }

    /// The limits of `identity`.
    pub fn limits(&self, identity: &Identity) -> Limits {
        self.roles.as_ref().map_or(Limits::NONE, |roles| roles.limits(identity))
    }

    fn judge(&self, identity: &Identity, action: Action, target: Target<'_>) -> Verdict<'_> {
        let built_in = &self.built_in;
        if identity.kind == IdentityKind::Internal {
            return Verdict::Allow(&built_in.internal);
        }
        if !makes_sense(action, target) {
            return Verdict::Deny(&built_in.no_sense);
        }
        let is_of_acl =
            matches!(target, Target::Topic(_) | Target::Filter(_)) && action != Action::Functions;
        let acl = self.acl.as_ref().filter(|_| is_of_acl);
        let acl = acl.map(|acl| acl.judge(identity, action, target));
        let roles = self.roles.as_ref().map(|roles| roles.judge(identity, action, target));
        let said = match (acl, roles) {
            (Some(acl), Some(roles)) => acl.and(roles),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => built_in.judge(identity, action, target),
        };
        match (said, target) {
            // A camera's certificate is made for nothing else.
            (Verdict::Silent(_), Target::Camera(name))
                if action == Action::Publish
                    && identity.kind == IdentityKind::Node
                    && *identity.name == *name =>
            {
                Verdict::Allow(&built_in.own_camera)
            }
            _ => said,
        }
    }
}

impl Authorize for Rules {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        self.judge(identity, action, target).or_deny()
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn receives_all(&self) -> bool {
        self.acl.is_none() && self.roles.is_none()
    }
}

impl BuiltIn {
    fn judge(&self, identity: &Identity, action: Action, target: Target<'_>) -> Verdict<'_> {
        let is_stranger = identity.kind == IdentityKind::Anonymous;
        match (action, target) {
            (
                Action::Publish | Action::Subscribe | Action::Receive,
                Target::Topic(_) | Target::Filter(_),
            )
            | (Action::Frames, _) => Verdict::Allow(&self.usual),
            _ if is_stranger => Verdict::Deny(&self.stranger),
            (Action::Functions | Action::Admin, _) if self.is_administrator(identity) => {
                Verdict::Allow(&self.administers)
            }
            (Action::Functions | Action::Admin, _) => {
                match identity.is_local() || identity.kind == IdentityKind::Node {
                    true => Verdict::Allow(&self.local),
                    false => Verdict::Deny(&self.remote),
                }
            }
            _ => Verdict::Allow(&self.proved),
        }
    }

    fn is_administrator(&self, identity: &Identity) -> bool {
        identity.kind == IdentityKind::User
            && self.administrator.as_deref().is_some_and(|name| *name == *identity.name)
    }
}

impl Default for BuiltIn {
    fn default() -> Self {
        Self {
            administrator: None,
            administers: "no roles file is configured: the administrator that the node was made with may".into(),
            usual: "neither an ACL file nor a roles file has a rule for it".into(),
            proved: "no roles file is configured: every authenticated identity may".into(),
            stranger: "no roles file is configured: anonymous clients may use topics and see frames, and no more".into(),
            remote: "no roles file is configured: functions and admin are for this machine and nodes of the site".into(),
            local: "no roles file is configured: this machine and nodes of the site may".into(),
            own_camera: "the certificate of a camera lets it publish as itself".into(),
            internal: "this node itself".into(),
            no_sense: "no rule can be asked for it".into(),
        }
    }
}

/// Why an authenticator could not be made from its sources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticatorError {
    /// A line of the password file is wrong.
    #[error(transparent)]
    Password(PasswordError),
    /// A line of the ACL file is wrong.
    #[error(transparent)]
    Acl(AclError),
    /// A line of the roles file is wrong.
    #[error(transparent)]
    Roles(RolesError),
    /// The key set is wrong.
    #[error("{}: {error}", .path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// The problem.
        error: KeySetError,
    },
}

#[cfg(test)]
mod tests;
