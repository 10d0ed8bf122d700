//! Accounts of the memory that each identity holds, and its limit.
//!
//! An identity may hold a share of what all others leave. So one of them alone can never take the last of it, and neither can
//! several: each leaves a part of what it finds. That is the dynamic threshold of shared switch buffers (Choudhury and Hahne, 1998): it
//! costs one comparison, and nothing has to be known of who else may come.
//!
//! Counted are: messages that are retained for it, messages that wait for its sessions or for their acknowledgements (each once, however
//! many of those sessions it waits for), packets of it that have not come whole, wills, and filters and aliases beyond the allowance of
//! each client. Memory that is released on demand is not counted: messages that may be dropped or go to disk, and those of sessions that
//! end with their connection.
//!
//! Messages that wait on disk have a share of their own, of the bytes that the disk may have: of each message once for each identity, too.
//!
//! There are two shares of memory: one of what is left behind and retained, and a larger one of what waits for clients that are connected. So
//! what an identity left behind does not hold up those of its clients that read.
//!
//! Always true: a charge to an account is returned with the memory that it was for; parts of this program have no account.
//! One that counts a message which others hold as well never counts for more than the memory that is in use.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use tidegate_message::{Identity, IdentityKind};

/// Accounts that are kept without a check whether they are still in use.
const ACCOUNTS_SWEPT: usize = 1024;

/// The accounts of a node.
#[derive(Debug)]
pub(crate) struct Accounts {
    /// In 1/256: the part of the bytes, retained messages and sessions not used by others that one identity may have;
    /// 256 for all.
    share: u64,
    /// The same of bytes, for clients that are connected: half of the rest is theirs as well.
    share_connected: u64,
    /// Bytes that all accounts count.
    total: Arc<AtomicU64>,
    /// The same on disk.
    total_spilled: Arc<AtomicU64>,
    all: Mutex<All>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct All {
    by_owner: HashMap<Owner, Weak<Account>>,
    /// Forgotten accounts are looked for when there are so many.
    sweep_at: usize,
}

/// The owner of an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Named(IdentityKind, Arc<str>),
    /// Anonymous clients are distinguished by address: an IPv4 address, or the network of 64 bits of an IPv6 host.
    Anonymous(Option<IpAddr>),
}

/// The memory and sessions of one identity.
#[derive(Debug)]
pub(crate) struct Account {
    owner: Owner,
    bytes: AtomicU64,
    total: Arc<AtomicU64>,
    /// Of those, bytes of packets that have not come whole.
    partial: AtomicU64,
    retained: AtomicU64,
    /// Sessions without a connection.
    sessions: AtomicU64,
    /// Bytes that wait on disk for its sessions.
    spilled: AtomicU64,
    total_spilled: Arc<AtomicU64>,
    refused: AtomicU64,
}

impl Accounts {
    /// Accounts of which each may have `share` of what others leave, above 0 and at most 1.
    pub(crate) fn new(share: f64) -> Self {
        let share = ((share.clamp(0.0, 1.0) * 256.0).round() as u64).max(1);
        Self {
            share,
            share_connected: share + (256 - share) / 2,
            total: Arc::default(),
            total_spilled: Arc::default(),
            all: Mutex::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// The account of an identity; none of parts of this program, or where each may have all.
    pub(crate) fn of(&self, identity: &Identity) -> Option<Arc<Account>> {
        if identity.kind == IdentityKind::Internal || self.share >= 256 {
            return None;
        }
        let owner = Owner::of(identity);
        let mut all = self.all();
        if let Some(account) = all.by_owner.get(&owner).and_then(Weak::upgrade) {
            return Some(account);
        }
        if all.by_owner.len() >= all.sweep_at {
            all.by_owner.retain(|_, account| account.strong_count() > 0);
            all.sweep_at = 2 * all.by_owner.len() + ACCOUNTS_SWEPT;
        }
        let account = Arc::new(Account {
            owner: owner.clone(),
            bytes: AtomicU64::new(0),
            total: self.total.clone(),
            partial: AtomicU64::new(0),
            retained: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
            total_spilled: self.total_spilled.clone(),
            refused: AtomicU64::new(0),
        });
        all.by_owner.insert(owner, Arc::downgrade(&account));
        Some(account)
    }

    /// Whether `own` of what `used` are of `limit` may grow by `more`.
    pub(crate) fn allow(&self, own: u64, more: u64, used: u64, limit: u64) -> bool {
        is_within(self.share, own, more, used.saturating_sub(own), limit)
    }

    /// Whether an identity could have its share of `limit` bytes if it held `more`: nearly always false, at the cost of one load.
    #[inline]
    pub(crate) fn may_be_over(&self, more: u64, limit: u64) -> bool {
        let total = self.total.load(Ordering::Relaxed).saturating_add(more);
        self.share < 256 && total > limit.saturating_mul(self.share) / 256
    }

    /// Whether `account` may hold `more` bytes, where `used` of `limit` are in use.
    pub(crate) fn allow_bytes(
        &self,
        account: &Account,
        is_connected: bool,
        more: u64,
        used: u64,
        limit: u64,
    ) -> bool {
        let share = if is_connected { self.share_connected } else { self.share };
        let (held, total) = (account.bytes(), self.total.load(Ordering::Relaxed));
        let own = held.min(used);
        let others = total.saturating_sub(held).min(used - own);
        is_within(share, own, more, others, limit)
    }

    /// Whether `more` may wait on disk for `account`, of `limit` bytes that all may have there. By the messages that wait, since files give
    /// their room back later than messages go.
    pub(crate) fn allow_spilled(&self, account: &Account, more: u64, limit: u64) -> bool {
        let own = account.spilled();
        let others = self.total_spilled.load(Ordering::Relaxed).saturating_sub(own);
        is_within(self.share, own, more, others, limit)
    }

    /// Something was refused to that identity because it has its share; whether that is worth a word in the log, as the first
    /// and every power of two is.
    pub(crate) fn note_refused(&self, account: &Account) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed);
        (account.refused.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two()
    }

    /// How often something was refused to an identity that had its share.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Identities by what they hold, most first, at most `limit`: bytes, retained messages and sessions of each.
    pub(crate) fn heaviest(&self, limit: usize) -> Vec<(String, [u64; 3])> {
        let live: Vec<_> = self.all().by_owner.values().filter_map(Weak::upgrade).collect();
        let mut live: Vec<_> =
            live.iter().map(|account| (account.name(), account.counts())).collect();
        live.retain(|(_, counts)| *counts != [0; 3]);
        live.sort_by(|(one, a), (other, b)| b.cmp(a).then_with(|| one.cmp(other)));
        live.truncate(limit);
        live
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().expect("no panic while it is held")
    }
}

impl Owner {
    fn of(identity: &Identity) -> Self {
        match identity.kind {
            IdentityKind::Anonymous => Self::Anonymous(identity.address.map(network)),
            kind => Self::Named(kind, identity.name.as_ref().into()),
        }
    }
}

/// Whether `own` and `more` are within that share, in 1/256, of what `others` leave of `limit`.
fn is_within(share: u64, own: u64, more: u64, others: u64, limit: u64) -> bool {
    let may = limit.saturating_sub(others).saturating_mul(share) / 256;
    own.saturating_add(more) <= may
}

/// The network that is counted as one host.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Account {
    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of its packets that have not come whole.
    pub(crate) fn partial(&self) -> u64 {
        self.partial.load(Ordering::Relaxed)
    }

    pub(crate) fn add_partial(&self, bytes: u64) {
        self.partial.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract_partial(&self, bytes: u64) {
        self.partial.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Messages that are retained for it.
    pub(crate) fn retained(&self) -> u64 {
        self.retained.load(Ordering::Relaxed)
    }

    /// Its sessions without a connection.
    pub(crate) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Bytes that wait on disk for its sessions, of each message once.
    pub(crate) fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    pub(crate) fn add_spilled(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Ordering::Relaxed);
        self.total_spilled.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract_spilled(&self, bytes: u64) {
        self.spilled.fetch_sub(bytes, Ordering::Relaxed);
        self.total_spilled.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_retained(&self) {
        self.retained.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn subtract_retained(&self) {
        self.retained.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn add_session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn subtract_session(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// The owner, for logs and counters.
    pub(crate) fn name(&self) -> String {
        match &self.owner {
            Owner::Named(kind, name) => format!("{} {name}", kind.word()),
            Owner::Anonymous(Some(address)) => format!("anonymous clients of {address}"),
            Owner::Anonymous(None) => "anonymous clients".to_owned(),
        }
    }

    fn counts(&self) -> [u64; 3] {
        [self.bytes(), self.retained(), self.sessions()]
    }
}

/// Accounts that a message counts in, each with how often it was said to.
#[derive(Debug, Default)]
pub(crate) enum Holders {
    #[default]
    None,
    /// So that most need no memory of their own.
    One(Arc<Account>, u32),
    Many(Vec<(Arc<Account>, u32)>),
}

impl Holders {
    /// Accounts beyond which a message counts in no more: so many hold it that no one of them is to blame, and each look takes
    /// time.
    const MOST: usize = 16;

    /// It is held for that account once more; whether it counts there from now on.
    pub(crate) fn add(&mut self, account: &Arc<Account>) -> bool {
        match self {
            Self::None => *self = Self::One(account.clone(), 1),
            Self::One(one, count) if Arc::ptr_eq(one, account) => {
                *count += 1;
                return false;
            }
            Self::One(one, count) => {
                *self = Self::Many(vec![(one.clone(), *count), (account.clone(), 1)]);
            }
            Self::Many(all) => match all.iter().position(|(one, _)| Arc::ptr_eq(one, account)) {
                Some(at) => {
                    all[at].1 += 1;
                    return false;
                }
                None if all.len() < Self::MOST => all.push((account.clone(), 1)),
                None => return false,
            },
        }
        true
    }

    /// It is held for that account once less; whether it counts there no longer.
    pub(crate) fn remove(&mut self, account: &Arc<Account>) -> bool {
        match self {
            Self::One(one, count) if Arc::ptr_eq(one, account) => {
                *count -= 1;
                let is_over = *count == 0;
                if is_over {
                    *self = Self::None;
                }
                is_over
            }
            Self::Many(all) => {
                let at = all.iter().position(|(one, _)| Arc::ptr_eq(one, account));
                let Some(at) = at else { return false };
                all[at].1 -= 1;
                let is_over = all[at].1 == 0;
                if is_over {
                    all.swap_remove(at);
                }
                is_over
            }
            // One of more than it counts in.
            Self::None | Self::One(..) => false,
        }
    }

    /// Whether it is held for that account.
    pub(crate) fn has(&self, account: &Arc<Account>) -> bool {
        match self {
            Self::None => false,
            Self::One(one, _) => Arc::ptr_eq(one, account),
            Self::Many(all) => all.iter().any(|(one, _)| Arc::ptr_eq(one, account)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Identity {
        Identity::new(IdentityKind::User, name, "")
    }

    #[test]
    fn each_may_have_a_share_of_what_the_others_leave() {
        let accounts = Accounts::new(0.75);
        for (own, more, used, allowed) in [
            (0, 750, 0, true),
            (0, 751, 0, false),
            (700, 50, 700, true),
            (700, 51, 700, false),
            // 400 are others': 600 are left, and 450 may be had.
            (100, 350, 500, true),
            (100, 351, 500, false),
            (0, 1, 1_000, false),
            (0, u64::MAX, 0, false),
        ] {
            assert_eq!(accounts.allow(own, more, used, 1_000), allowed, "{own} {more} {used}");
        }
    }

    #[test]
    fn bytes_that_give_way_or_are_held_by_many_keep_no_one_out() {
        let accounts = Accounts::new(0.75);
        let [ada, bob] = ["ada", "bob"].map(|name| accounts.of(&user(name)).unwrap());
        // All memory is in use by what may be dropped.
        assert!(accounts.allow_bytes(&bob, false, 750, 1_000, 1_000));
        assert!(!accounts.allow_bytes(&bob, false, 751, 1_000, 1_000));
        // Clients that are connected may have more.
        assert!(accounts.allow_bytes(&bob, true, 875, 1_000, 1_000));
        assert!(!accounts.allow_bytes(&bob, true, 876, 1_000, 1_000));
        // One message for many counts often, and takes little.
        ada.add(100_000);
        assert!(accounts.may_be_over(1, 1_000));
        assert!(accounts.allow_bytes(&ada, false, 740, 10, 1_000));
        assert!(accounts.allow_bytes(&bob, false, 740, 10, 1_000));
        ada.subtract(99_400);
        // 600 are hers, and 300 may be his.
        assert!(accounts.allow_bytes(&bob, false, 300, 600, 1_000));
        assert!(!accounts.allow_bytes(&bob, false, 301, 600, 1_000));
        assert!(accounts.allow_bytes(&ada, false, 150, 600, 1_000));
        assert!(!accounts.allow_bytes(&ada, false, 151, 600, 1_000));
        assert!(!accounts.may_be_over(100, 1_000));
        ada.subtract(600);
    }

    #[test]
    fn several_who_take_all_they_may_leave_room_for_one_more() {
        let (accounts, limit) = (Accounts::new(0.75), 256 << 20);
        let mut own = [0_u64; 10];
        for _ in 0..10_000 {
            for at in 0..own.len() {
                let used = own.iter().sum();
                if accounts.allow(own[at], 100_000, used, limit) {
                    own[at] += 100_000;
                }
            }
        }
        let used = own.iter().sum();
        assert!(accounts.allow(0, 1_000_000, used, limit), "{used} of {limit} are used");
    }

    #[test]
    fn an_account_is_one_for_all_connections_and_is_forgotten_with_the_last() {
        let accounts = Accounts::new(0.5);
        let ada = accounts.of(&user("ada")).unwrap();
        let again = Identity { client: "other".into(), ..user("ada") };
        assert!(Arc::ptr_eq(&ada, &accounts.of(&again).unwrap()));
        assert!(!Arc::ptr_eq(&ada, &accounts.of(&user("bob")).unwrap()));
        let by_certificate = Identity::new(IdentityKind::Certificate, "ada", "");
        assert!(!Arc::ptr_eq(&ada, &accounts.of(&by_certificate).unwrap()));
        assert!(accounts.of(&Identity::new(IdentityKind::Internal, "uplink", "")).is_none());
        for number in 0..10 * ACCOUNTS_SWEPT {
            accounts.of(&user(&number.to_string())).unwrap();
        }
        assert!(accounts.all().by_owner.len() <= 2 * ACCOUNTS_SWEPT);
        ada.add(7);
        assert_eq!(accounts.heaviest(3), [("user ada".to_owned(), [7, 0, 0])]);
        drop(ada);
        assert!(accounts.heaviest(3).is_empty());
        assert!(Accounts::new(1.0).of(&user("ada")).is_none(), "all may be had");
    }

    #[test]
    fn anonymous_clients_are_distinguished_by_address() {
        let accounts = Accounts::new(0.5);
        let at = |address: &str| {
            let address = Some(address.parse().unwrap());
            accounts.of(&Identity { address, ..Identity::anonymous("") }).unwrap()
        };
        let first = at("192.0.2.1");
        assert!(Arc::ptr_eq(&first, &at("::ffff:192.0.2.1")));
        assert!(!Arc::ptr_eq(&first, &at("192.0.2.2")));
        let sixth = at("2001:db8::1");
        assert!(Arc::ptr_eq(&sixth, &at("2001:db8::2:1")));
    }

    #[test]
    fn a_message_counts_once_for_each_account_until_the_last_lets_go() {
        let accounts = Accounts::new(0.5);
        let [ada, bob, cleo] = ["ada", "bob", "cleo"].map(|name| accounts.of(&user(name)).unwrap());
        let mut holders = Holders::default();
        for (account, counts) in
            [(&ada, true), (&ada, false), (&bob, true), (&cleo, true), (&bob, false)]
        {
            assert_eq!(holders.add(account), counts);
            assert!(holders.has(account));
        }
        for (account, is_over) in [(&ada, false), (&bob, false), (&ada, true), (&bob, true)] {
            assert_eq!((holders.remove(account), holders.has(account)), (is_over, !is_over));
        }
        assert!(!holders.remove(&ada) && holders.remove(&cleo) && !holders.has(&cleo));
    }
}
