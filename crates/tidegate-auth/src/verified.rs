//! Passwords that were verified in this process, so that a fleet that comes back is not hashed again.
//!
//! The cache keeps a digest under a key that this process drew at its start and that never leaves it: HMAC-SHA-256 of the user, of
//! the password and of the line that it was verified against. So the password is not there, a digest is of no use without the key,
//! and a line that changes ends by itself the entries that were made for it.
//!
//! Always true: at most [`USERS_MAX`] are remembered; a remembered password was verified, in this process, against the current line;
//! nothing is remembered of a password that was wrong.

use std::{collections::HashMap, fmt};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::password::{DecoyKey, Secret};

/// Users that are remembered at most: some ten megabytes.
pub(crate) const USERS_MAX: usize = 65_536;

type Digest = [u8; 32];

/// The users whose password was verified of late.
pub(crate) struct Verified {
    /// None if the system gave none: then nothing is remembered.
    key: Option<DecoyKey>,
    /// Two generations: each lookup puts its user into the younger; when that is full it becomes the older, and the users in
    /// it that were not looked up in the meantime are forgotten.
    young: HashMap<Box<str>, Digest>,
    old: HashMap<Box<str>, Digest>,
}

/// The digest that is remembered of a user and a password.
pub(crate) struct Remembered(Option<Digest>);

impl Verified {
    /// With a key of its own.
    pub(crate) fn new() -> Self {
        Self { key: DecoyKey::random().ok(), young: HashMap::new(), old: HashMap::new() }
    }

    /// The digest to remember if `password` is verified as that of `user`, whose line is `secret`.
    pub(crate) fn digest(&self, user: &str, password: &[u8], secret: &Secret) -> Remembered {
        Remembered(self.key.as_ref().map(|key| {
            let mut mac =
                Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
            for part in [user.as_bytes(), password] {
                mac.update(&(part.len() as u64).to_le_bytes());
                mac.update(part);
            }
            secret.fingerprint(|part| mac.update(part));
            mac.finalize().into_bytes().into()
        }))
    }

    /// Whether it was verified.
    pub(crate) fn holds(&mut self, user: &str, Remembered(digest): &Remembered) -> bool {
        let Some(digest) = digest else { return false };
        if let Some(known) = self.young.get(user) {
            return known.ct_eq(digest).into();
        }
        let Some(known) = self.old.get(user) else { return false };
        let holds = known.ct_eq(digest).into();
        if holds {
            self.remember(user, &Remembered(Some(*digest)));
        }
        holds
    }

    /// It was verified.
    pub(crate) fn remember(&mut self, user: &str, Remembered(digest): &Remembered) {
        let Some(digest) = digest else { return };
        self.old.remove(user);
        if self.young.len() >= USERS_MAX / 2 && !self.young.contains_key(user) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(user.into(), *digest);
    }

    /// Their lines are others, or gone.
    pub(crate) fn forget(&mut self, users: &[String]) {
        for user in users {
            self.young.remove(&**user);
            self.old.remove(&**user);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// Says how many users there are, and nothing of them.
impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.young.len() + self.old.len();
        f.debug_struct("Verified").field("users", &users).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::Salted { salt: vec![byte; 12], hash: [7; 64] }
    }

    #[test]
    fn what_was_verified_holds_for_its_user_password_and_line_alone() {
        let mut verified = Verified::new();
        let right = verified.digest("ada", b"tide", &secret(1));
        assert!(!verified.holds("ada", &right));
        verified.remember("ada", &right);
        for (user, password, line, expected) in [
            ("ada", &b"tide"[..], 1, true),
            ("ada", b"ebb", 1, false),
            ("ada", b"tide", 2, false), // another line
            ("bob", b"tide", 1, false),
        ] {
            let shown = verified.digest(user, password, &secret(line));
            assert_eq!(verified.holds(user, &shown), expected, "{user} {line}");
        }
        // The parts cannot be shifted into each other.
        let shifted = verified.digest("adat", b"ide", &secret(1));
        verified.remember("adat", &right);
        assert!(!verified.holds("adat", &shifted));
        verified.forget(&["ada".to_owned()]);
        assert!(!verified.holds("ada", &right));
        let other = Verified::new().digest("ada", b"tide", &secret(1));
        assert_ne!(other.0, right.0, "each process has a key of its own");
    }

    #[test]
    fn as_many_are_remembered_as_may_be_and_those_who_come_stay() {
        let mut verified = Verified::new();
        let stays = verified.digest("stays", b"x", &secret(1));
        verified.remember("stays", &stays);
        for number in 0..3 * USERS_MAX {
            let user = number.to_string();
            let digest = Remembered(Some([number as u8; 32]));
            verified.remember(&user, &digest);
            if number % 10_000 == 0 {
                assert!(verified.holds("stays", &stays), "{number}");
            }
        }
        assert!(verified.len() <= USERS_MAX);
    }

    #[test]
    fn nothing_of_it_is_in_its_debug_text() {
        let mut verified = Verified::new();
        let right = verified.digest("ada", b"tide", &secret(1));
        verified.remember("ada", &right);
        assert_eq!(format!("{verified:?}"), "Verified { users: 1, .. }");
    }
}
