//! Users that are no longer in the password file, and the sessions that they leave.
//!
//! ```text
//!  in the file ──▶ gone: refused, connections end; the sessions wait ──▶ over: the sessions end
//!       ▲                                             │
//!       └──────────── in the file again ◀─────────────┘
//! ```
//!
//! A file that was cut while it was written looks like one from which users were taken out. The sessions of a user, with the messages that
//! were acknowledged for them, therefore wait for [`GRACE`]; for [`GRACE_OF_MANY`] where more than half of the users are gone at once, which
//! hardly anybody means. The names are kept in the folder of the node, so that a file that is cut while the node is down is noticed as well. A
//! restart begins the wait again: no clock of the machine is trusted over it.
//!
//! Always true: the sessions of a user in the file are never due.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_sys::{files, regular};

/// How long the sessions of a user wait that is no longer in the file.
pub const GRACE: Duration = Duration::from_secs(3600);
/// How long they wait where more than half of the users are gone at once. A mistake of Friday evening is found on Monday.
pub const GRACE_OF_MANY: Duration = Duration::from_secs(72 * 3600);
/// Of fewer users, more than half may well be meant.
const MANY_OF: usize = 4;

/// Names of users, one a line.
const FILE: &str = "users.known";
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The users that a node knew last, and those of them that are gone.
#[derive(Debug, Default)]
pub struct Departed {
    known: BTreeSet<String>,
    /// When the sessions of each are due.
    leaving: BTreeMap<String, Instant>,
    /// When those of users are due that no start of this version knew.
    strangers: Option<Instant>,
}

/// The users whose sessions end now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Their names, in order.
    pub users: BTreeSet<String>,
    /// Whether those of users end as well that were never known.
    pub strangers: bool,
}

/// Users that are gone since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Their names, in order.
    pub users: Vec<String>,
    /// How many there were before.
    pub of: usize,
    /// How long their sessions wait.
    pub grace: Duration,
}

impl Gone {
    /// Whether a mistake is likely.
    pub fn is_many(&self) -> bool {
        self.grace == GRACE_OF_MANY
    }
}

impl Departed {
    /// The users that the last start or reload knew, by the folder of the node's state; none before the first one. Sessions of others may be
    /// there as well, from `now` on for [`GRACE`].
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(folder: &Path, now: Instant) -> io::Result<Self> {
        let known = match regular::read_at_most(&path(folder), FILE_BYTES_MAX) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { known, leaving: BTreeMap::new(), strangers: Some(now + GRACE) })
    }

    /// Keeps the names for the next start.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let text: String = self.known.iter().map(|user| format!("{user}\n")).collect();
        if regular::read(&path(folder)).is_ok_and(|kept| kept == text.as_bytes()) {
            return Ok(());
        }
        files::folder(folder, files::PRIVATE_FOLDER)?;
        files::put(&path(folder), text.as_bytes(), files::PRIVATE)
    }

    /// Goes by the users that are in the file now. Those of them that were gone have their sessions again; returned are those that are gone
    /// since the last time, if there are any.
    pub fn look(&mut self, now: Instant, users: impl IntoIterator<Item = String>) -> Option<Gone> {
        let users: BTreeSet<String> = users.into_iter().collect();
        let before = self.known.iter().filter(|user| !self.leaving.contains_key(*user)).count();
        self.leaving.retain(|user, _| !users.contains(user));
        let is_new = |user: &&String| !users.contains(*user) && !self.leaving.contains_key(*user);
        let gone: Vec<String> = self.known.iter().filter(is_new).cloned().collect();
        let is_many = before >= MANY_OF && gone.len() * 2 > before;
        let grace = if is_many { GRACE_OF_MANY } else { GRACE };
        self.leaving.extend(gone.iter().map(|user| (user.clone(), now + grace)));
        self.known = users;
        self.known.extend(self.leaving.keys().cloned());
        (!gone.is_empty()).then_some(Gone { users: gone, of: before, grace })
    }

    /// Takes the users out whose sessions are due; none if none are.
    pub fn due(&mut self, now: Instant) -> Option<Due> {
        let users: BTreeSet<String> =
            self.leaving.extract_if(.., |_, at| *at <= now).map(|(user, _)| user).collect();
        self.known.retain(|user| !users.contains(user));
        let strangers = self.strangers.take_if(|at| *at <= now).is_some();
        (strangers || !users.is_empty()).then_some(Due { users, strangers })
    }

    /// Whether sessions wait that may be of users that no start of this version knew.
    pub fn has_strangers(&self) -> bool {
        self.strangers.is_some()
    }

    /// The users whose sessions wait, in order.
    pub fn leaving(&self) -> BTreeSet<String> {
        self.leaving.keys().cloned().collect()
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::EPOCH + Duration::from_secs(seconds)
    }

    fn users(names: &str) -> Vec<String> {
        names.split(' ').map(str::to_owned).collect()
    }

    fn due(names: &str) -> Due {
        Due { users: users(names).into_iter().collect(), strangers: false }
    }

    fn gone(names: &str, of: usize, grace: Duration) -> Option<Gone> {
        Some(Gone { users: users(names), of, grace })
    }

    #[test]
    fn sessions_of_a_gone_user_wait_for_the_grace() {
        let mut departed = Departed::default();
        assert_eq!(departed.look(at(0), users("ada bob eve")), None);
        assert_eq!(departed.look(at(0), users("ada bob")), gone("eve", 3, GRACE));
        assert_eq!(departed.look(at(9), users("ada bob")), None, "once");
        assert!(departed.due(at(3599)).is_none() && departed.leaving() == due("eve").users);
        // One that is back has its sessions, however often it comes and goes.
        assert_eq!(departed.look(at(3599), users("ada bob eve")), None);
        assert_eq!(departed.due(at(9999)), None);
        assert_eq!(departed.look(at(9999), users("ada bob")), gone("eve", 3, GRACE));
        assert_eq!(departed.due(at(9999 + 3600)), Some(due("eve")));
        assert!(departed.due(at(99_999)).is_none() && departed.leaving().is_empty());
    }

    #[test]
    fn more_than_half_of_four_users_wait_longer() {
        for (before, now, expected) in [
            ("a b c d", "a b", gone("c d", 4, GRACE)),
            ("a b c d", "a", gone("b c d", 4, GRACE_OF_MANY)),
            ("a b c d", "e", gone("a b c d", 4, GRACE_OF_MANY)),
            ("a b c d e", "a b", gone("c d e", 5, GRACE_OF_MANY)),
            ("a b c", "d", gone("a b c", 3, GRACE)),
        ] {
            let mut departed = Departed::default();
            departed.look(at(0), users(before));
            let found = departed.look(at(0), users(now));
            assert_eq!(found, expected, "{before} to {now}");
            let grace = expected.expect("some are gone").grace.as_secs();
            assert!(departed.due(at(grace - 1)).is_none(), "{before} to {now}");
            assert!(departed.due(at(grace)).is_some(), "{before} to {now}");
        }
        // One after the other is no accident of a moment.
        let mut departed = Departed::default();
        departed.look(at(0), users("a b c d e"));
        assert_eq!(departed.look(at(1), users("a b c d")), gone("e", 5, GRACE));
        assert_eq!(departed.look(at(2), users("a b c")), gone("d", 4, GRACE));
    }

    #[test]
    fn users_that_are_gone_after_a_restart_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let mut departed = Departed::read(&state, at(0)).unwrap();
        departed.look(at(0), users("a b c d"));
        departed.write(&state).unwrap();
        let mut departed = Departed::read(&state, at(7)).unwrap();
        assert_eq!(departed.look(at(7), users("a")), gone("b c d", 4, GRACE_OF_MANY));
        departed.write(&state).unwrap();
        // The wait begins again with each start, and ends with a user that is back.
        let mut departed = Departed::read(&state, at(0)).unwrap();
        assert_eq!(departed.look(at(0), users("a c")), gone("b d", 4, GRACE));
        // With them, those of users that no start knew.
        assert_eq!(departed.due(at(3600)), Some(Due { strangers: true, ..due("b d") }));
        departed.write(&state).unwrap();
        let mut departed = Departed::read(&state, at(0)).unwrap();
        assert_eq!(departed.look(at(0), users("a c")), None);
    }
}
