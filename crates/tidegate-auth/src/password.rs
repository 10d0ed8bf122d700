//! The password file: users that may log in by name, and the secrets that prove them.
//!
//! ```text
//! # comment
//! alice:$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH              written by `tidegate passwd`
//! bob:$7$ITERATIONS$SALT$HASH                                 mosquitto_passwd: PBKDF2-HMAC-SHA512
//! carol:$6$SALT$HASH                                          mosquitto_passwd -H sha512: one SHA-512, weak
//! dave:$scram-sha-256$ITERATIONS$SALT$STOREDKEY$SERVERKEY     for SCRAM and for passwords
//! ```
//!
//! Always true: a file is taken as a whole or refused with its line; no error, log or `Debug` text holds a
//! password or a hash; a user that is not there costs as much time as one that is, because the secret of a user
//! that is there, picked by a keyed hash of the name, is checked in its place.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::{self, Write as _},
    path::{Path, PathBuf},
};

use argon2::{Algorithm, Argon2, Block, Params, Version, password_hash::phc::PasswordHash};
use base64::{Engine as _, engine::general_purpose};
use ring::pbkdf2::PBKDF2_HMAC_SHA512;
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroize as _;

use crate::{
    scram::{Credentials, Lookup, derive},
    secret::BASE64,
};

pub use crate::secret::{DecoyKey, ITERATIONS_MAX, RandomError, random};

/// Most memory that an Argon2 line may ask for, in KiB: each check takes it while it runs.
pub const ARGON2_KIB_MAX: u32 = 1 << 20;
/// Most passes over its memory that an Argon2 line may ask for.
pub const ARGON2_PASSES_MAX: u32 = 64;
/// Most lanes that an Argon2 line may ask for.
pub const ARGON2_LANES_MAX: u32 = 64;

/// The users of a password file.
pub struct Passwords {
    secrets: BTreeMap<Box<str>, Secret>,
    key: DecoyKey,
}

impl Passwords {
    /// The users of `text`, which stands in `path`. `key` makes up what unknown users are shown.
    ///
    /// # Errors
    /// [`PasswordError`], which names the line and the way out; nothing of the file is used then.
    pub fn parse(path: &Path, text: &str, key: DecoyKey) -> Result<Self, PasswordError> {
        let mut wrong = Vec::new();
        let secrets = Self::parse_lines(path, text, &mut wrong);
        wrong.into_iter().next().map_or(Ok(Self { secrets, key }), Err)
    }

    /// Each line of the file that is wrong.
    pub fn problems(path: &Path, text: &str) -> Vec<PasswordError> {
        let mut wrong = Vec::new();
        Self::parse_lines(path, text, &mut wrong);
        wrong
    }

    fn parse_lines(
        path: &Path,
        text: &str,
        wrong: &mut Vec<PasswordError>,
    ) -> BTreeMap<Box<str>, Secret> {
        let mut secrets = BTreeMap::new();
        // A file that was cut while it was written ends within a line.
        let (lines, is_open) = (text.lines().count(), !text.ends_with('\n'));
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = line.split_once(':').ok_or(PasswordProblem::NoColon);
            let is_last = number + 1 == lines;
            let entry = entry.and_then(|(user, secret)| {
                check_user(user)?;
                match Secret::parse(secret)? {
                    secret if is_last && is_open && secret.may_be_cut() => {
                        Err(PasswordProblem::Damaged)
                    }
                    secret => Ok((user, secret)),
                }
            });
            let entered =
                entry.and_then(|(user, secret)| match secrets.insert(user.into(), secret) {
                    Some(_) => Err(PasswordProblem::Duplicate { user: user.to_owned() }),
                    None => Ok(()),
                });
            if let Err(problem) = entered {
                wrong.push(PasswordError { path: path.to_owned(), line: number + 1, problem });
            }
        }
        if secrets.is_empty() && wrong.is_empty() {
            let (path, line) = (path.to_owned(), lines.max(1));
            wrong.push(PasswordError { path, line, problem: PasswordProblem::Empty });
        }
        secrets
    }

    /// Whether `password` is the password of `user`. Takes tens of milliseconds by design, and megabytes with
    /// Argon2: call it off the data path. An unknown user takes as long as a known one.
    pub fn verify(&self, user: &str, password: &[u8]) -> bool {
        let known = self.secrets.get(user);
        let decoy = pick(&self.key, user, self.secrets.values());
        let right = match known.or(decoy) {
            Some(secret) => secret.verify(password),
            None => Secret::nobody().verify(password),
        };
        right & known.is_some()
    }

    /// The SCRAM lookup of `user`. A user that is unknown, or whose line is not for SCRAM, gets a salt that stays
    /// the same as long as the [`DecoyKey`] does, and can prove nothing.
    pub fn scram(&self, user: &str) -> Lookup {
        let scram = self.secrets.values().filter_map(Secret::credentials);
        let alike = pick(&self.key, user, scram);
        let decoy = Credentials::decoy(&self.key, user, alike);
        match self.secrets.get(user).and_then(Secret::credentials) {
            Some(credentials) => Lookup { credentials: credentials.clone(), known: true },
            None => Lookup { credentials: decoy, known: false },
        }
    }

    /// The secret of `user`, if there is such a user.
    pub(crate) fn secret(&self, user: &str) -> Option<&Secret> {
        self.secrets.get(user)
    }

    /// Number of users.
    pub fn len(&self) -> usize {
        self.secrets.len()
    }

    /// Whether the file has no user, so that no client can log in by name.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The users, in order of their names.
    pub fn users(&self) -> Vec<String> {
        self.secrets.keys().map(ToString::to_string).collect()
    }

    /// Users that are in only one of `self` and `new`, or whose secret differs, in order of their names.
    pub fn changed(&self, new: &Self) -> Vec<String> {
        let kept = |user: &str, secret| new.secrets.get(user) == Some(secret);
        let added = new.secrets.keys().filter(|user| !self.secrets.contains_key(*user));
        let gone = self.secrets.iter().filter(|(user, secret)| !kept(user, secret));
        let mut users: Vec<String> = gone.map(|(user, _)| user.to_string()).collect();
        users.extend(added.map(ToString::to_string));
        users.sort();
        users
    }
}

/// Says how many users there are, and nothing of them.
impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passwords").field("users", &self.secrets.len()).finish_non_exhaustive()
    }
}

/// The secret to write for a user with `password`: Argon2id with the memory and passes that OWASP advises, about
/// 20 ms and 19 MiB for each check.
///
/// # Errors
/// [`RandomError`] if the system gives no salt.
pub fn hash(password: &[u8]) -> Result<String, RandomError> {
    let salt: [u8; 16] = random()?;
    let params = Params::DEFAULT;
    let mut output = [0; Params::DEFAULT_OUTPUT_LEN];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone())
        .hash_password_into(password, &salt, &mut output)
        .expect("the default parameters fit, and no password is longer than 4 GiB");
    let bare = general_purpose::STANDARD_NO_PAD;
    Ok(format!(
        "$argon2id$v=19$m={},t={},p={}${}${}",
        params.m_cost(),
        params.t_cost(),
        params.p_cost(),
        bare.encode(salt),
        bare.encode(output),
    ))
}

/// The password file `text` with `secret` for `user`, in place of the line that was there or at the end. Other
/// lines and comments stay as they are. `secret` is what [`hash`] or
/// [`Credentials::encode`](crate::scram::Credentials::encode) gives.
///
/// # Errors
/// [`PasswordProblem`] if `user` or `secret` cannot stand in a password file.
pub fn set_user(text: &str, user: &str, secret: &str) -> Result<String, PasswordProblem> {
    check_user(user)?;
    Secret::parse(secret)?;
    let mut written = false;
    let mut result = String::with_capacity(text.len() + user.len() + secret.len() + 2);
    for line in text.lines() {
        if user_of(line) != Some(user) {
            result.push_str(line);
            result.push('\n');
        } else if !written {
            written = true;
            let _ = writeln!(result, "{user}:{secret}");
        }
    }
    if !written {
        let _ = writeln!(result, "{user}:{secret}");
    }
    Ok(result)
}

/// The password file `text` without `user`; none if the user is not there.
pub fn remove_user(text: &str, user: &str) -> Option<String> {
    text.lines().any(|line| user_of(line) == Some(user)).then(|| {
        let kept = text.lines().filter(|line| user_of(line) != Some(user));
        kept.flat_map(|line| [line, "\n"]).collect()
    })
}

/// Whether the password file `text` has any user.
pub fn has_user(text: &str) -> bool {
    text.lines().any(|line| user_of(line).is_some())
}

/// The secret that proves a user.
#[derive(Clone)]
pub(crate) enum Secret {
    Salted { salt: Vec<u8>, hash: [u8; 64] },
    Pbkdf2 { iterations: u32, salt: Vec<u8>, hash: [u8; 64] },
    Argon2 { params: Params, salt: Vec<u8>, hash: Vec<u8> },
    Scram(Credentials),
}

impl Secret {
    fn parse(text: &str) -> Result<Self, PasswordProblem> {
        let Some((kind, rest)) = text.strip_prefix('$').and_then(|text| text.split_once('$'))
        else {
            return Err(PasswordProblem::PlainText);
        };
        let parts: Vec<&str> = rest.split('$').collect();
        match (kind, parts.as_slice()) {
            ("6", [salt, hash]) => {
                Ok(Self::Salted { salt: decode(salt)?, hash: decode_hash(hash)? })
            }
            ("7", [iterations, salt, hash]) => Ok(Self::Pbkdf2 {
                iterations: decode_iterations(iterations, 1)?,
                salt: decode(salt)?,
                hash: decode_hash(hash)?,
            }),
            ("argon2id", _) => Self::parse_argon2(text),
            ("scram-sha-256", [iterations, salt, stored_key, server_key]) => {
                Ok(Self::Scram(Credentials {
                    // RFC 7677 section 4 asks for this many at least.
                    iterations: decode_iterations(iterations, 4096)?,
                    salt: decode(salt)?,
                    stored_key: decode_hash(stored_key)?,
                    server_key: decode_hash(server_key)?,
                }))
            }
            ("6" | "7" | "scram-sha-256", _) => Err(PasswordProblem::Damaged),
            _ => Err(PasswordProblem::UnknownKind),
        }
    }

    fn parse_argon2(text: &str) -> Result<Self, PasswordProblem> {
        let damaged = |_: argon2::password_hash::phc::Error| PasswordProblem::Damaged;
        let phc = PasswordHash::new(text).map_err(damaged)?;
        // Before `Params`, which multiplies the lanes before it looks at them and so can overflow.
        for (name, value) in phc.params.iter() {
            let (what, max) = match name.as_str() {
                "m" => ("KiB of memory", ARGON2_KIB_MAX),
                "t" => ("passes", ARGON2_PASSES_MAX),
                "p" => ("lanes", ARGON2_LANES_MAX),
                _ => continue,
            };
            let value = value.decimal().map_err(damaged)?;
            if value > max {
                return Err(PasswordProblem::TooCostly { what, value, max });
            }
        }
        let params = Params::try_from(&phc).map_err(|_| PasswordProblem::Damaged)?;
        let (Some(salt), Some(hash)) = (phc.salt, phc.hash) else {
            return Err(PasswordProblem::Damaged);
        };
        if phc.version != Some(Version::V0x13.into()) || hash.len() < 16 {
            return Err(PasswordProblem::Damaged);
        }
        if salt.len() < argon2::MIN_SALT_LEN {
            return Err(PasswordProblem::Damaged);
        }
        Ok(Self::Argon2 { params, salt: salt.to_vec(), hash: hash.as_bytes().to_vec() })
    }

    /// Costs what a user of [`hash`] costs, and fits no password.
    fn nobody() -> Self {
        let hash = vec![0; Params::DEFAULT_OUTPUT_LEN];
        Self::Argon2 { params: Params::DEFAULT, salt: vec![0; 16], hash }
    }

    /// Whether it may be the beginning of a longer one: the others have one length each.
    fn may_be_cut(&self) -> bool {
        matches!(self, Self::Argon2 { hash, .. } if hash.len() < Params::DEFAULT_OUTPUT_LEN)
    }

    fn verify(&self, password: &[u8]) -> bool {
        match self {
            Self::Salted { salt, hash } => {
                let computed = Sha512::new().chain_update(password).chain_update(salt).finalize();
                computed.as_slice().ct_eq(hash).into()
            }
            Self::Pbkdf2 { iterations, salt, hash } => {
                let mut computed = [0; 64];
                derive(PBKDF2_HMAC_SHA512, password, salt, *iterations, &mut computed);
                computed.ct_eq(hash).into()
            }
            Self::Argon2 { params, salt, hash } => {
                let mut computed = vec![0; hash.len()];
                let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone());
                let done = with_blocks(params.block_count(), |blocks| {
                    argon2.hash_password_into_with_memory(password, salt, &mut computed, blocks)
                });
                done.is_ok() && computed.ct_eq(hash).into()
            }
            Self::Scram(credentials) => credentials.verify(password),
        }
    }

    /// Gives `each` all that makes it another one than others.
    pub(crate) fn fingerprint(&self, mut each: impl FnMut(&[u8])) {
        let mut part = |bytes: &[u8]| {
            each(&(bytes.len() as u64).to_le_bytes());
            each(bytes);
        };
        match self {
            Self::Salted { salt, hash } => {
                for bytes in [&b"6"[..], salt, hash] {
                    part(bytes);
                }
            }
            Self::Pbkdf2 { iterations, salt, hash } => {
                for bytes in [&b"7"[..], &iterations.to_le_bytes(), salt, hash] {
                    part(bytes);
                }
            }
            Self::Argon2 { params, salt, hash } => {
                let costs = [params.m_cost(), params.t_cost(), params.p_cost()];
                part(b"argon2id");
                costs.iter().for_each(|cost| part(&cost.to_le_bytes()));
                part(salt);
                part(hash);
            }
            Self::Scram(Credentials { iterations, salt, stored_key, server_key }) => {
                for bytes in
                    [&b"scram"[..], &iterations.to_le_bytes(), salt, stored_key, server_key]
                {
                    part(bytes);
                }
            }
        }
    }

    fn credentials(&self) -> Option<&Credentials> {
        match self {
            Self::Scram(credentials) => Some(credentials),
            Self::Salted { .. } | Self::Pbkdf2 { .. } | Self::Argon2 { .. } => None,
        }
    }
}

/// Blocks that a thread keeps for its next check. More, for a line that asks for more than others, are given back.
const BLOCKS_KEPT: usize = 64 << 10;

thread_local! {
    /// Memory for Argon2: megabytes for each check, which allocators keep for each thread that ever asked.
    static BLOCKS: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Calls `hash` with so many blocks, which hold whatever the last check left: it writes each before it reads it.
fn with_blocks<T>(count: usize, hash: impl FnOnce(&mut [Block]) -> T) -> T {
    BLOCKS.with_borrow_mut(|blocks| {
        if blocks.len() < count {
            blocks.resize(count, Block::new());
        }
        let hashed = hash(&mut blocks[..count]);
        if blocks.len() > BLOCKS_KEPT {
            *blocks = Vec::new();
        }
        hashed
    })
}

/// Says nothing of it.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        match self {
            Self::Salted { salt, hash } => {
                salt.zeroize();
                hash.zeroize();
            }
            Self::Pbkdf2 { salt, hash, .. } => {
                salt.zeroize();
                hash.zeroize();
            }
            Self::Argon2 { salt, hash, .. } => {
                salt.zeroize();
                hash.zeroize();
            }
            // They do so themselves.
            Self::Scram(_) => {}
        }
    }
}

/// Finds users whose secret changed by a reload; both sides are our own files.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Salted { salt, hash }, Self::Salted { salt: other_salt, hash: other_hash }) => {
                (salt, hash) == (other_salt, other_hash)
            }
            (
                Self::Pbkdf2 { iterations, salt, hash },
                Self::Pbkdf2 { iterations: other_iterations, salt: other_salt, hash: other_hash },
            ) => (iterations, salt, hash) == (other_iterations, other_salt, other_hash),
            (
                Self::Argon2 { params, salt, hash },
                Self::Argon2 { params: other_params, salt: other_salt, hash: other_hash },
            ) => {
                let cost = |params: &Params| (params.m_cost(), params.t_cost(), params.p_cost());
                (cost(params), salt, hash) == (cost(other_params), other_salt, other_hash)
            }
            (Self::Scram(credentials), Self::Scram(other)) => credentials == other,
            _ => false,
        }
    }
}

/// One of `choices`, always the same for the same `user`.
fn pick<T>(key: &DecoyKey, user: &str, choices: impl Iterator<Item = T> + Clone) -> Option<T> {
    let digest = key.digest("pick", user);
    let number = u64::from_be_bytes(digest[..8].try_into().expect("eight bytes"));
    let count = choices.clone().count() as u64;
    let mut choices = choices;
    choices.nth(number.checked_rem(count)? as usize)
}

fn user_of(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with('#') { None } else { line.split_once(':').map(|(user, _)| user) }
}

fn check_user(user: &str) -> Result<(), PasswordProblem> {
    let bad = user.is_empty()
        || user.starts_with('#')
        || user.trim() != user
        || user.chars().any(|letter| letter == ':' || letter.is_control());
    if bad { Err(PasswordProblem::UserName) } else { Ok(()) }
}

fn decode(text: &str) -> Result<Vec<u8>, PasswordProblem> {
    match BASE64.decode(text) {
        Ok(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => Err(PasswordProblem::Damaged),
    }
}

fn decode_hash<const N: usize>(text: &str) -> Result<[u8; N], PasswordProblem> {
    decode(text)?.try_into().map_err(|_| PasswordProblem::Damaged)
}

fn decode_iterations(text: &str, min: u32) -> Result<u32, PasswordProblem> {
    let value = text.parse().map_err(|_| PasswordProblem::Damaged)?;
    if value < min {
        return Err(PasswordProblem::TooCheap { value, min });
    }
    if value > ITERATIONS_MAX {
        let max = ITERATIONS_MAX;
        return Err(PasswordProblem::TooCostly { what: "iterations", value, max });
    }
    Ok(value)
}

/// Why a password file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {problem}", .path.display())]
pub struct PasswordError {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The problem.
    pub problem: PasswordProblem,
}

/// Problems in a line of a password file; holds nothing secret of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordProblem {
    /// There is no user in the file. To take it at its word would end the sessions of all.
    #[error(
        "the file has no user: it was emptied, or cut short while it was written; bring it back from a copy, or run `tidegate passwd` for \
         each user; to have none, take the file away and out of the configuration"
    )]
    Empty,
    /// There is no `:`.
    #[error(
        "a line is USER:SECRET, and this one has no `:`; write one with `tidegate passwd`, or put # before it"
    )]
    NoColon,
    /// The name cannot stand in a line.
    #[error(
        "a user name has at least one letter, no `:`, no control characters, no blanks around it and no # before it"
    )]
    UserName,
    /// The user stands in an earlier line.
    #[error("user {user:?} stands in an earlier line as well; keep one of them")]
    Duplicate {
        /// The user.
        user: String,
    },
    /// The password is not hashed.
    #[error(
        "the password stands here in plain text; run `tidegate passwd` for this user, which stores only a hash"
    )]
    PlainText,
    /// The hash is of a kind that is not known here.
    #[error(
        "the secret is neither $6$, $7$, $argon2id$ nor $scram-sha-256$; run `tidegate passwd` for this user"
    )]
    UnknownKind,
    /// The hash is cut short or mistyped.
    #[error(
        "the secret is damaged; copy the whole line again, or run `tidegate passwd` for this user"
    )]
    Damaged,
    /// Checking it takes more than this node gives.
    #[error(
        "the secret asks for {value} {what}, and {max} is the most; run `tidegate passwd` for this user"
    )]
    TooCostly {
        /// Of what.
        what: &'static str,
        /// How much.
        value: u32,
        /// The most.
        max: u32,
    },
    /// It is too easy to guess.
    #[error(
        "the secret has {value} iterations, and {min} is the least; run `tidegate passwd` for this user"
    )]
    TooCheap {
        /// How many.
        value: u32,
        /// The least.
        min: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    // Python: base64.b64encode(hashlib.sha512(b"swordfish" + bytes(range(12))).digest())
    const SALTED: &str = "$6$AAECAwQFBgcICQoL$Y4WPO0ICbkFB25Sxdu2LoRRrxHn+5vSWhC2EUmSYoLLtUV8GIc4CVeWWuvFv5IE5M6bpTbvMD7qDxLQrWa4e8Q==";
    // Python: base64.b64encode(hashlib.pbkdf2_hmac("sha512", b"swordfish", bytes(range(12)), 101, 64))
    const PBKDF2: &str = "$7$101$AAECAwQFBgcICQoL$dZm7JfRzazmqMF3mNAf8Z9rc8zhve5iD3D24qUV+vJ2EMTaOdI9t/bQGRsGRcCuLypk27O7e+I8KbVDnbAsa9Q==";
    // The test vector of Argon2id in RFC 9106 has a key; this is `argon2 somesalt -id -t 2 -m 16 -p 1` of the reference
    // implementation with the password "password".
    const ARGON2: &str =
        "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
    // RFC 7677 section 3: the keys of "pencil", made with Python's hashlib.pbkdf2_hmac and hmac.
    const SCRAM: &str = "$scram-sha-256$4096$W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    fn parse(text: &str) -> Result<Passwords, PasswordError> {
        Passwords::parse(Path::new("passwords"), text, DecoyKey([7; 32]))
    }

    #[test]
    fn every_kind_takes_its_password_and_no_other() {
        for (secret, password) in
            [(SALTED, "swordfish"), (PBKDF2, "swordfish"), (ARGON2, "password"), (SCRAM, "pencil")]
        {
            let passwords = parse(&format!("# people\n\nalice:{secret}\r\n")).unwrap();
            assert!(passwords.verify("alice", password.as_bytes()), "{secret}");
            for (user, wrong) in
                [("alice", "Password"), ("alice", ""), ("bob", password), ("", password)]
            {
                assert!(!passwords.verify(user, wrong.as_bytes()), "{user} {wrong} {secret}");
            }
        }
    }

    #[test]
    fn file_without_users_is_refused() {
        for (text, line) in [("", 1), ("\n", 1), ("# people\n\n", 2), (" \n#\n# alice\n", 3)] {
            let text = parse(text).unwrap_err().to_string();
            assert!(text.starts_with(&format!("passwords:{line}: the file has no user")), "{text}");
        }
    }

    #[test]
    fn file_that_is_cut_within_a_line_is_refused() {
        let first = format!("alice:{SALTED}\n");
        for secret in [SALTED, PBKDF2, ARGON2, SCRAM] {
            let whole = format!("{first}bob:{secret}\n");
            assert_eq!(parse(&whole).unwrap().len(), 2);
            // Without its padding a secret is the same.
            let whole_len = whole.trim_end_matches(['=', '\n']).len();
            for len in first.len() + 1..whole_len {
                let error = parse(&whole[..len]).map(|users| users.len()).unwrap_err();
                assert_eq!(error.line, 2, "{}", &whole[..len]);
            }
            // One that was written by hand may lack the end of its last line.
            assert_eq!(parse(whole.trim_end()).unwrap().len(), 2);
        }
    }

    #[test]
    fn hashes_that_were_written_verify() {
        let secret = hash(b"tide").unwrap();
        assert_ne!(secret, hash(b"tide").unwrap(), "salts differ");
        let passwords = parse(&format!("alice:{secret}")).unwrap();
        assert!(passwords.verify("alice", b"tide"));
        assert!(!passwords.verify("alice", b"ebb"));
    }

    #[test]
    fn errors_name_line_and_way_out_and_keep_secrets() {
        let short = SALTED.replace("==", "").replace("4e8Q", "");
        let weak = SCRAM.replace("4096", "1000");
        for (line, expected) in [
            ("alice".to_owned(), "has no `:`"),
            ("alice:hunter2".to_owned(), "plain text; run `tidegate passwd`"),
            ("alice:".to_owned(), "plain text"),
            ("alice:$6hunter2".to_owned(), "plain text"),
            ("alice:$5$c2FsdA==$hunter2".to_owned(), "neither $6$, $7$"),
            (format!(":{SALTED}"), "a user name has"),
            (format!("alice:{short}"), "damaged"),
            ("alice:$6$hunter2".to_owned(), "damaged"),
            ("alice:$7$0$AAEC$hunter2".to_owned(), "0 iterations, and 1 is the least"),
            (format!("alice:{}", PBKDF2.replace("$101$", "$10000001$")), "10000001 iterations"),
            (format!("alice:{weak}"), "1000 iterations, and 4096 is the least"),
            (format!("alice:{}", ARGON2.replace("65536", "1048577")), "1048577 KiB of memory"),
            (format!("alice:{}", ARGON2.replace("t=2", "t=65")), "65 passes"),
            // Eight times as many do not fit into 32 bits.
            (format!("alice:{}", ARGON2.replace("p=1", "p=1199999994")), "1199999994 lanes"),
            (format!("alice:{}", ARGON2.replace("v=19", "v=16")), "damaged"),
            ("alice:$argon2id$hunter2".to_owned(), "damaged"),
            (format!("bob:{SALTED}"), "\"bob\" stands in an earlier line"),
        ] {
            let error = parse(&format!("bob:{SALTED}\n# comment\n{line}\n")).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("passwords:3: ") && text.contains(expected), "{text}");
            assert!(!format!("{error:?} {text}").contains("hunter2"), "{text}");
        }
        let passwords = parse(&format!("alice:{SALTED}")).unwrap();
        assert_eq!(format!("{passwords:?}"), "Passwords { users: 1, .. }");
    }

    #[test]
    fn setting_and_removing_a_user_keeps_the_rest() {
        let text = format!("# people\nalice:{SALTED}\n\nbob:{PBKDF2}");
        let changed = set_user(&text, "alice", SCRAM).unwrap();
        assert_eq!(changed, format!("# people\nalice:{SCRAM}\n\nbob:{PBKDF2}\n"));
        let added = set_user(&changed, "carol", ARGON2).unwrap();
        assert_eq!(added, format!("{changed}carol:{ARGON2}\n"));
        assert_eq!(remove_user(&added, "carol").unwrap(), changed);
        assert_eq!(remove_user(&added, "people"), None);
        assert_eq!(set_user(&text, "a:b", SALTED), Err(PasswordProblem::UserName));
        assert_eq!(set_user(&text, "a\nb", SALTED), Err(PasswordProblem::UserName));
        assert_eq!(set_user(&text, "dave", "plain"), Err(PasswordProblem::PlainText));
        assert_eq!(parse(&text).unwrap().changed(&parse(&added).unwrap()), ["alice", "carol"]);
    }

    #[test]
    fn unknown_user_of_scram_looks_like_a_known_one() {
        let passwords = parse(&format!("alice:{SCRAM}\nbob:{PBKDF2}")).unwrap();
        let known = passwords.scram("alice");
        assert!(known.known);
        for user in ["mallory", "bob"] {
            let unknown = passwords.scram(user);
            assert!(!unknown.known);
            assert_eq!(unknown.credentials.iterations, known.credentials.iterations);
            assert_eq!(unknown.credentials.salt.len(), known.credentials.salt.len());
            assert_eq!(unknown.credentials.salt, passwords.scram(user).credentials.salt);
        }
        assert_ne!(
            passwords.scram("mallory").credentials.salt,
            passwords.scram("bob").credentials.salt
        );
    }
}
