//! The state that all shards of a node see.

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasher, DefaultHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_message::{Authorize, Identity, Instant};
use tidegate_wire::mqtt::stamp::{Stamp, Stamped};

use crate::{
    accounts::{Account, Accounts},
    blocked_publishers::BlockedPublishers,
    budget::Budget,
    config::{BrokerConfig, TopicConfig},
    message::{Body, Message, MessageRef},
    retained::{Expiring, Kept, is_written},
    routes::{Generations, Route, Routes},
    segments::Segments,
    session_state::SessionState,
    stamp::Clock,
    statistics::{SessionReport, Statistics},
};

/// Retained messages that have expired and make room for one at once.
const EXPIRED_AT_ONCE: usize = 64;

/// How long the mark of a value that was cleared stays. A member without a matching subscription that has an older value still learns of it
/// when it subscribes again within that time; one with a subscription is sent the message that clears, however long it is away.
pub(crate) const MARK_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Of the places of retained messages, one in so many may be taken by marks in addition.
const MARKS_PART: usize = 4;
/// Of the memory for messages, one byte in so many may be taken by marks.
const MARK_BYTES_PART: u64 = 16;

/// The state of a node that its shards share.
#[derive(Debug)]
pub struct Shared {
    config: BrokerConfig,
    shards: usize,
    authorize: Arc<dyn Authorize>,
    budget: Budget,
    accounts: Accounts,
    routes: RwLock<Routes>,
    /// Counts changes of `routes`.
    changes: AtomicU64,
    /// Exceptions by topic.
    topics: RwLock<Arc<[TopicConfig]>>,
    retained: Mutex<Expiring>,
    retained_count: AtomicUsize,
    retained_sequence: AtomicU64,
    /// None where the node is by itself.
    clock: Option<Clock>,
    mark_count: AtomicUsize,
    /// Marks that went before their time.
    marks_dropped: AtomicU64,
    /// Topics at which parts of this program have published the state of its own bridges.
    own_states: RwLock<HashSet<Arc<str>>>,
    /// Shards whose journal takes nothing more.
    failing_journals: AtomicUsize,
    lacking_journals: AtomicUsize,
    sessions: AtomicUsize,
    connections: AtomicU64,
    connections_peak: AtomicU64,
    blocked_publishers: Mutex<BlockedPublishers>,
    /// Sessions that are full.
    full: AtomicUsize,
    /// By shard, the most that one of its sessions could give back of the budget, about, and whether it was asked to.
    gives: Box<[(AtomicU64, AtomicBool)]>,
    hasher: RandomState,
    /// The part of the budget for packets that have not arrived whole: a client may announce much and send nothing.
    receiving: Budget,
    segments: Segments,
    statistics: Mutex<Vec<Statistics>>,
    /// By shard, the sessions that hold most.
    heaviest: Mutex<Vec<Vec<SessionReport>>>,
    told: Mutex<Vec<Told>>,
    began: Instant,
}

/// Counts of another part of the node.
pub(crate) struct Told {
    /// Stands before its names in `$SYS/broker/`, with a slash.
    pub(crate) prefix: String,
    counts: Box<Counts>,
    /// Its names when it was last asked.
    pub(crate) names: Vec<&'static str>,
}

/// Each count with its name; none once the counting part is gone.
type Counts = dyn Fn() -> Option<Vec<(&'static str, u64)>> + Send + Sync;

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Told {
    /// Asks for the counts; none if the counting part is gone.
    pub(crate) fn ask(&mut self) -> Option<Vec<(&'static str, u64)>> {
        let counts = (self.counts)()?;
        self.names = counts.iter().map(|(name, _)| *name).collect();
        Some(counts)
    }
}

/// A message that is to be retained, where nodes are one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It has these properties.
    New(Vec<u8>),
    /// The same, and it changes nothing for subscribers: it says again that there is no value.
    Quiet(Vec<u8>),
    /// It was published here before, or repeats a value in whose place a newer one is.
    Known,
}

/// The outcome of retaining a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// It is retained now, or what was is forgotten.
    Changed(u64),
    /// A newer one is retained, or the same.
    Older,
    /// There was nothing to forget.
    Unchanged,
    /// There are as many as may be.
    Refused,
    /// Its publisher has used up its share of them, or of memory.
    OverShare,
}

impl Shared {
    /// The state of a node of `shards` shards, of which there is at least one and at most 255.
    ///
    /// # Panics
    /// If there are more or none.
    pub fn new(
        config: BrokerConfig,
        shards: usize,
        authorize: Arc<dyn Authorize>,
        now: Instant,
    ) -> Arc<Self> {
        Self::placed(config, shards, authorize, now, RandomState::new())
    }

    /// The same, where `placement` says which client lives on which shard. Placement by chance is best: clients then
    /// cannot choose names that are all of one shard.
    ///
    /// # Panics
    /// As [`Shared::new`].
    pub fn placed(
        config: BrokerConfig,
        shards: usize,
        authorize: Arc<dyn Authorize>,
        now: Instant,
        placement: RandomState,
    ) -> Arc<Self> {
        assert!((1..=255).contains(&shards), "a node has 1 to 255 shards");
        let budget = Budget::new(config.payload_bytes_max);
        let receiving = Budget::new(config.payload_bytes_max / 2);
        let accounts = Accounts::new(config.identity_share);
        let topics = RwLock::new(config.topics.clone().into());
        let clock = config.member.map(Clock::new);
        Arc::new(Self {
            config,
            shards,
            authorize,
            budget,
            accounts,
            routes: RwLock::default(),
            changes: AtomicU64::new(1),
            topics,
            retained: Mutex::default(),
            retained_count: AtomicUsize::new(0),
            retained_sequence: AtomicU64::new(0),
            clock,
            mark_count: AtomicUsize::new(0),
            marks_dropped: AtomicU64::new(0),
            own_states: RwLock::default(),
            failing_journals: AtomicUsize::new(0),
            lacking_journals: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            connections_peak: AtomicU64::new(0),
            blocked_publishers: Mutex::default(),
            full: AtomicUsize::new(0),
            gives: (0..shards).map(|_| Default::default()).collect(),
            hasher: placement,
            receiving,
            segments: Segments::default(),
            statistics: Mutex::new(vec![Statistics::default(); shards]),
            heaviest: Mutex::new(vec![Vec::new(); shards]),
            told: Mutex::default(),
            began: now,
        })
    }

    /// The settings.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// How many shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The budget for payloads.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether that topic carries the state of one of this program's own bridges.
    pub(crate) fn is_own_state(&self, topic: &str) -> bool {
        self.own_states.read().expect("no panic while a topic is noted").contains(topic)
    }

    /// Records that the topic carries the state of one of this program's own bridges from now on, whatever publishers were
    /// allowed before.
    pub(crate) fn note_own_state(&self, topic: &Arc<str>) {
        let mut states = self.own_states.write().expect("no panic while a topic is noted");
        if states.insert(topic.clone()) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// In whose share counts what an identity holds; none for parts of this program.
    pub(crate) fn account_of(&self, identity: &Identity) -> Option<Arc<Account>> {
        self.accounts.of(identity)
    }

    /// Whether an identity could have its share of the memory if it held `bytes` more.
    #[inline]
    pub(crate) fn may_be_over_share(&self, bytes: u64) -> bool {
        self.accounts.may_be_over(bytes, self.budget.limit())
    }

    /// Whether `account` may hold `bytes` more, which are not charged yet, for a client that is connected or not.
    pub(crate) fn share_allows(&self, account: &Account, is_connected: bool, bytes: u64) -> bool {
        let (used, limit) = (self.budget.used(), self.budget.limit());
        self.accounts.allow_bytes(account, is_connected, bytes, used, limit)
    }

    /// Whether `account` may hold `bytes` more, which are charged already, but to no account.
    pub(crate) fn share_holds(&self, account: &Account, is_connected: bool, bytes: u64) -> bool {
        let (used, limit) = (self.budget.used(), self.budget.limit());
        let used = used.saturating_sub(bytes);
        self.accounts.allow_bytes(account, is_connected, bytes, used, limit)
    }

    /// Whether `bytes` more may wait on disk for `account`, of `limit` that all may have there.
    pub(crate) fn disk_share_allows(&self, account: &Account, bytes: u64, limit: u64) -> bool {
        self.accounts.allow_spilled(account, bytes, limit)
    }

    /// Whether `account` may hold `bytes` more of packets that have not come whole, of one that has `own` bytes already.
    pub(crate) fn partial_share_allows(&self, account: &Account, own: u64, bytes: u64) -> bool {
        let (half, all) = (&self.receiving, account.partial());
        self.share_allows(account, true, bytes)
            && (all <= own || self.accounts.allow(all, bytes, half.used(), half.limit()))
    }

    /// Whether `account` may leave one session more behind.
    pub(crate) fn may_leave_session(&self, account: &Account) -> bool {
        let (all, most) = (self.sessions.load(Ordering::Acquire), self.config.sessions_max);
        self.accounts.allow(account.sessions(), 1, all as u64, most as u64)
    }

    /// Something was refused to `account` because it has its share.
    #[cold]
    pub(crate) fn note_over_share(&self, account: &Account) {
        if self.accounts.note_refused(account) {
            tracing::warn!(identity = %account.name(), bytes = account.bytes(), retained = account.retained(),
                left_sessions = account.sessions(), payload_bytes_max = self.budget.limit(),
                "refused: it has its share of the memory for messages (mqtt.identity_share); others like it are only counted");
        }
    }

    /// How often something was refused to an identity that had its share.
    pub(crate) fn share_refusals(&self) -> u64 {
        self.accounts.refused()
    }

    /// Identities that hold most, at most `limit`: bytes, retained messages and left sessions of each.
    pub fn heaviest_identities(&self, limit: usize) -> Vec<(String, [u64; 3])> {
        self.accounts.heaviest(limit)
    }

    /// The rules.
    pub fn authorize(&self) -> &dyn Authorize {
        &*self.authorize
    }

    /// The shard on which the session of a client lives.
    pub fn shard_of(&self, client_id: &str) -> usize {
        if self.shards == 1 {
            return 0;
        }
        let mut hasher = self.hasher.build_hasher();
        hasher.write(client_id.as_bytes());
        (hasher.finish() % self.shards as u64) as usize
    }

    /// Subscriptions of the node.
    pub fn subscriptions(&self) -> usize {
        self.routes().len()
    }

    /// Counts changes of subscriptions, and at times others: while it stays, all filters are the same.
    pub fn subscription_changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Members of shared subscriptions among them.
    pub fn shared_subscriptions(&self) -> usize {
        self.routes().members()
    }

    /// Retained messages of the node.
    pub fn retained_count(&self) -> usize {
        self.retained_count.load(Ordering::Relaxed)
    }

    /// Marks of topics whose retained message was cleared, where nodes are one broker.
    pub(crate) fn mark_count(&self) -> usize {
        self.mark_count.load(Ordering::Relaxed)
    }

    /// Whether there is a retained message or a mark.
    pub(crate) fn retains_any(&self) -> bool {
        self.retained_count() + self.mark_count() > 0
    }

    /// Marks that went before their time, for want of room.
    pub(crate) fn marks_dropped(&self) -> u64 {
        self.marks_dropped.load(Ordering::Relaxed)
    }

    /// Whether nodes are one broker, so that retained messages have stamps.
    #[inline]
    pub(crate) fn is_member(&self) -> bool {
        self.clock.is_some()
    }

    /// When the node began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The counts of all shards, as of their last report.
    pub fn statistics(&self) -> Statistics {
        let all = self.statistics.lock().expect("no panic while it is held");
        all.iter().fold(Statistics::default(), |sum, one| sum.plus(one))
    }

    /// The sessions that hold most, as of the shards' last reports, at most `limit`.
    pub fn heaviest(&self, limit: usize) -> Vec<SessionReport> {
        let by_shard = self.heaviest.lock().expect("no panic while it is held");
        let mut all: Vec<SessionReport> = by_shard.iter().flatten().cloned().collect();
        all.sort_by_key(|report| std::cmp::Reverse(report.held_bytes()));
        all.truncate(limit);
        all
    }

    /// Counts another session; false if there are as many as the node may have.
    pub(crate) fn begin_session(&self) -> bool {
        let max = self.config.sessions_max;
        let next = |count: usize| (count < max).then_some(count + 1);
        self.sessions.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
    }

    pub(crate) fn end_session(&self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn begin_connection(&self) {
        let count = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        self.connections_peak.fetch_max(count, Ordering::Relaxed);
    }

    pub(crate) fn end_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Most connections of the node at a time.
    pub(crate) fn connections_peak(&self) -> u64 {
        self.connections_peak.load(Ordering::Relaxed)
    }

    /// Publishers that are not read from, and why.
    pub(crate) fn blocked_publishers(&self) -> MutexGuard<'_, BlockedPublishers> {
        self.blocked_publishers.lock().expect("no panic while it is held")
    }

    /// Whether some session is full: asked for most messages, at the cost of one load.
    #[inline]
    pub(crate) fn some_full(&self) -> bool {
        self.full.load(Ordering::Acquire) > 0
    }

    pub(crate) fn note_full(&self, session: &SessionState) {
        if !session.set_full(true) {
            self.full.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn forget_full(&self, session: &SessionState) {
        if session.is_full() && session.set_full(false) {
            self.full.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// A message that was to be its last did not come: it is full no longer, if that was all.
    pub(crate) fn forget_not_full(&self, session: &SessionState) {
        if session.is_full() && session.has_room() {
            self.forget_full(session);
        }
    }

    /// Counts a session that is full from now on.
    pub(crate) fn count_full(&self) {
        self.full.fetch_add(1, Ordering::AcqRel);
    }

    /// The most that one session of that shard could release, about.
    pub(crate) fn gives(&self, shard: usize) -> u64 {
        self.gives[shard].0.load(Ordering::Relaxed)
    }

    /// A session of that shard could give so much back.
    pub(crate) fn note_gives(&self, shard: usize, bytes: u64) {
        self.gives[shard].0.fetch_max(bytes, Ordering::Relaxed);
    }

    /// No session of that shard could give back more.
    pub(crate) fn set_gives(&self, shard: usize, bytes: u64) {
        self.gives[shard].0.store(bytes, Ordering::Relaxed);
    }

    /// Notes whether that shard is asked to give memory back; whether it was before.
    pub(crate) fn ask(&self, shard: usize, asks: bool) -> bool {
        self.gives[shard].1.swap(asks, Ordering::AcqRel)
    }

    pub(crate) fn receiving(&self) -> &Budget {
        &self.receiving
    }

    /// How often memory was refused.
    pub(crate) fn refusals(&self) -> u64 {
        self.budget.refused() + self.receiving.refused()
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(crate) fn report(
        &self,
        shard: usize,
        statistics: Statistics,
        heaviest: Vec<SessionReport>,
    ) {
        self.statistics.lock().expect("no panic while it is held")[shard] = statistics;
        self.heaviest.lock().expect("no panic while it is held")[shard] = heaviest;
    }

    /// Changes of subscriptions, exceptions and rules until now.
    #[inline]
    pub(crate) fn generations(&self) -> Generations {
        let routes = self.changes.load(Ordering::Acquire);
        Generations { routes, rules: self.authorize.generation() }
    }

    /// Changes whenever a route may no longer hold.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generations().number()
    }

    /// Publishes what `counts` gives in `$SYS/broker/PREFIX/`, each with its name, until it gives nothing.
    pub fn tell_in_sys(
        &self,
        prefix: impl Into<String>,
        counts: impl Fn() -> Option<Vec<(&'static str, u64)>> + Send + Sync + 'static,
    ) {
        let prefix = prefix.into();
        self.told().push(Told { prefix, counts: Box::new(counts), names: Vec::new() });
    }

    pub(crate) fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().expect("no panic while it is held")
    }

    /// The retained message of a topic that has not expired, or `None`. The caller checks whether the client may see it.
    pub fn retained_message(&self, now: Instant, topic: &str) -> Option<Arc<Message>> {
        let retained = self.retained();
        let kept = retained.get(topic).filter(|kept| !kept.is_mark());
        let message = kept.map(|kept| kept.message.clone());
        drop(retained);
        message.filter(|message| !message.is_expired(now))
    }

    /// Exchanges the exceptions by topic.
    pub fn set_topics(&self, topics: Vec<TopicConfig>) {
        *self.topics.write().expect("no panic while they are exchanged") = topics.into();
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn topics(&self) -> Arc<[TopicConfig]> {
        self.topics.read().expect("no panic while they are exchanged").clone()
    }

    pub(crate) fn routes(&self) -> RwLockReadGuard<'_, Routes> {
        self.routes.read().expect("no panic while routes change")
    }

    /// Makes every route be looked up again.
    pub(crate) fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The routes, to be changed; counts as a change.
    pub(crate) fn routes_mut(&self) -> RwLockWriteGuard<'_, Routes> {
        let routes = self.routes.write().expect("no panic while routes change");
        self.count_change();
        routes
    }

    pub(crate) fn retained(&self) -> MutexGuard<'_, Expiring> {
        self.retained.lock().expect("no panic while retained messages change")
    }

    /// Forgets a retained message that has expired, unless another took its place.
    pub(crate) fn forget_retained(&self, message: &Arc<Message>) {
        let mut retained = self.retained();
        let kept = retained.get(&message.topic);
        if let Some(kept) = kept.filter(|kept| Arc::ptr_eq(&kept.message, message)) {
            let mark = self.mark_of_expired(kept.stamp, message);
            retained.remove(&message.topic);
            self.put_mark(&mut retained, mark);
        }
        self.count_retained(&retained);
    }

    /// Forgets retained messages that have expired, at most `limit`; when there are more to forget.
    pub(crate) fn forget_expired(&self, now: Instant, limit: usize) -> Option<Instant> {
        let mut retained = self.retained();
        let taken = self.take_expired(&mut retained, now, limit);
        self.count_retained(&retained);
        let next = retained.next_expiry();
        // Their memory is given back after the lock.
        drop(retained);
        drop(taken);
        next
    }

    fn take_expired(
        &self,
        retained: &mut Expiring,
        now: Instant,
        limit: usize,
    ) -> Vec<Arc<Message>> {
        let taken = retained.take_expired(now, limit);
        let marks = taken.iter().map(|(stamp, message)| self.mark_of_expired(*stamp, message));
        marks.for_each(|mark| self.put_mark(retained, mark));
        taken.into_iter().map(|(_, message)| message).collect()
    }

    /// Retains a message that has that stamp, or puts a mark; without either, forgets the topic's. Says what came of it, with the number that
    /// puts changes of one topic in order.
    pub(crate) fn retain(
        &self,
        topic: &str,
        stamp: Option<Stamp>,
        kept: Option<Kept>,
    ) -> Retention {
        let owner = kept.as_ref().and_then(|_| self.owner_of_retained(topic));
        let mut retained = self.retained();
        // One without a stamp is of a time before nodes were one broker.
        if retained
            .get(topic)
            .is_some_and(|former| former.stamp.is_some_and(|it| Some(it) >= stamp))
        {
            return Retention::Older;
        }
        let is_mark = kept.as_ref().is_some_and(Kept::is_mark);
        let is_known = retained.get(topic).is_some_and(|former| !former.is_mark());
        // An expired message has no place, whenever its timer comes. Its memory is given back after the lock.
        let mut expired = Vec::new();
        if let Some(kept) = kept.as_ref().filter(|_| !is_known && !is_mark)
            && retained.values() >= self.config.retained_max
        {
            expired = self.take_expired(&mut retained, kept.message.received, EXPIRED_AT_ONCE);
        }
        let former = retained.get(topic);
        let retention = match kept {
            Some(_) if !is_mark && !is_known && retained.values() >= self.config.retained_max => {
                return Retention::Refused;
            }
            Some(kept) if !is_mark && !self.share_retains(&kept, former, retained.values()) => {
                return Retention::OverShare;
            }
            Some(kept) => {
                let sequence = self.next_sequence();
                let kept = Kept { sequence, owner, ..kept };
                match is_mark {
                    true => self.put_mark(&mut retained, Some(kept)),
                    false => retained.insert(kept),
                }
                Retention::Changed(sequence)
            }
            None if retained.remove(topic) => Retention::Changed(self.next_sequence()),
            None => Retention::Unchanged,
        };
        self.count_retained(&retained);
        drop(retained);
        drop(expired);
        retention
    }

    fn count_retained(&self, retained: &Expiring) {
        self.retained_count.store(retained.values(), Ordering::Relaxed);
        self.mark_count.store(retained.marks(), Ordering::Relaxed);
    }

    /// The properties with which a message to be retained is published, where nodes are one broker. Where this node was chosen for a shared
    /// subscription, another copy is retained.
    pub(crate) fn stamped(
        &self,
        now: Instant,
        message: &MessageRef<'_>,
        route: &Route,
    ) -> Option<Arrival> {
        let clock = self.clock.as_ref().filter(|_| is_written(message.topic))?;
        let retained = self.retained();
        let held = retained.get(message.topic);
        let (held, has_value) =
            (held.and_then(|kept| kept.stamp), held.is_some_and(|kept| !kept.is_mark()));
        drop(retained);
        let stamped = if route.is_of_node() {
            let stamped = Stamped::of(message.forwarded)?;
            clock.see(now, stamped.stamp);
            if route.is_of_group() {
                return Some(Arrival::New(stamped.put(message.forwarded)));
            }
            if held == Some(stamped.stamp) || stamped.is_repeated && held > Some(stamped.stamp) {
                return Some(Arrival::Known);
            }
            stamped
        } else {
            Stamped { stamp: clock.give(now, held), is_repeated: false }
        };
        let forwarded = Stamped { is_repeated: false, ..stamped }.put(message.forwarded);
        Some(match stamped.is_repeated && message.payload.is_empty() && !has_value {
            true => Arrival::Quiet(forwarded),
            false => Arrival::New(forwarded),
        })
    }

    /// The stamp of a message as it is held.
    pub(crate) fn stamp_of(&self, forwarded: &[u8]) -> Option<Stamp> {
        self.clock.as_ref().and_then(|_| Stamped::of(forwarded)).map(|stamped| stamped.stamp)
    }

    /// The mark of a message that clears, from `since` on; none where it has no stamp, or there is no memory.
    pub(crate) fn mark_of(&self, message: &MessageRef<'_>, since: Instant) -> Option<Kept> {
        let stamp = self.stamp_of(message.forwarded)?;
        // Of the properties of the message no other is needed.
        let forwarded = &*Stamped { stamp, is_repeated: false }.put(&[]);
        let (payload, expires) = (Body::Read(&[]), Some(since + MARK_AGE));
        let mark = MessageRef { payload, forwarded, expires, ..*message };
        let Some(message) = mark.hold(&self.budget) else {
            self.marks_dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // It counts in the share of no identity: a client that clears has no more of the memory for it.
        Some(Kept::of(message, Some(stamp)))
    }

    /// An older value must not come back in the place of one that has expired.
    fn mark_of_expired(&self, stamp: Option<Stamp>, message: &Message) -> Option<Kept> {
        let expired = message.expires.filter(|_| stamp.is_some() && !message.payload.is_empty())?;
        let mark = self.mark_of(&message.borrowed(), expired)?;
        let owner = self.owner_of_retained(&message.topic);
        Some(Kept { sequence: self.next_sequence(), owner, ..mark })
    }

    /// Puts a mark in the place of a value, and takes out the oldest ones where they are too many.
    fn put_mark(&self, retained: &mut Expiring, mark: Option<Kept>) {
        let Some(mark) = mark else { return };
        retained.insert(mark);
        let count_max = self.config.retained_max.div_ceil(MARKS_PART);
        let bytes_max = self.budget.limit() / MARK_BYTES_PART;
        while retained.take_mark_beyond(count_max, bytes_max).is_some() {
            self.marks_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the publisher of `kept` may have it retained in the place of `former`; `count` are retained now.
    fn share_retains(&self, kept: &Kept, former: Option<&Kept>, count: usize) -> bool {
        let Some(account) = &kept.account else { return true };
        let is_own =
            |former: &&Kept| former.account.as_ref().is_some_and(|a| Arc::ptr_eq(a, account));
        let bytes = kept.message.charged();
        // The message that it replaces goes.
        let more = match former.filter(is_own) {
            Some(former) => bytes.saturating_sub(former.message.charged()),
            None => {
                let most = self.config.retained_max as u64;
                if !self.accounts.allow(account.retained(), 1, count as u64, most) {
                    return false;
                }
                bytes
            }
        };
        more == 0 || self.share_holds(account, false, more)
    }

    /// Only under the lock of the retained messages.
    fn next_sequence(&self) -> u64 {
        self.retained_sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The shard whose journal has what is retained of a topic: the same in every process.
    pub(crate) fn owner_of(&self, topic: &str) -> usize {
        let mut hasher = DefaultHasher::new();
        hasher.write(topic.as_bytes());
        (hasher.finish() % self.shards as u64) as usize
    }

    /// The same; none where no journal is to have it.
    fn owner_of_retained(&self, topic: &str) -> Option<usize> {
        is_written(topic).then(|| self.owner_of(topic))
    }

    /// Brings a retained message of an earlier process back, however many there are; a mark, or one that has expired, as a mark. When it is
    /// to be forgotten.
    pub(crate) fn restore_retained(
        &self,
        now: Instant,
        message: Arc<Message>,
        client: Option<Arc<str>>,
        source: Option<Arc<Identity>>,
        account: Option<Arc<Account>>,
    ) -> Option<Instant> {
        let message = self.stamped_late(message);
        let stamp = self.stamp_of(&message.forwarded);
        if let Some((clock, stamp)) = self.clock.as_ref().zip(stamp) {
            clock.see(now, stamp);
        }
        let owner = self.owner_of_retained(&message.topic);
        let sequence = self.next_sequence();
        let cleared = match message.payload.is_empty() {
            true => Some(message.expires.map_or(message.received, |at| at - MARK_AGE)),
            false => message.expires.filter(|_| message.is_expired(now)),
        };
        let mut retained = self.retained();
        let expires = if let Some(since) = cleared {
            let mark = self.mark_of(&message.borrowed(), since);
            let mark = mark.filter(|mark| !mark.message.is_expired(now))?;
            let expires = mark.message.expires;
            self.put_mark(&mut retained, Some(Kept { sequence, owner, ..mark }));
            expires
        } else {
            let expires = message.expires;
            let kept = Kept::of(message, stamp);
            retained.insert(Kept { sequence, client, source, owner, account, ..kept });
            expires
        };
        self.count_retained(&retained);
        expires
    }

    /// A value of a time before there were other nodes, with a stamp that is older than all that are given, so that they know it again.
    fn stamped_late(&self, message: Arc<Message>) -> Arc<Message> {
        let is_own = is_written(&message.topic) && !message.is_from_peer;
        let clock = self.clock.as_ref().filter(|_| is_own && !message.payload.is_empty());
        let Some(clock) = clock.filter(|_| self.stamp_of(&message.forwarded).is_none()) else {
            return message;
        };
        let stamp = clock.before_all(message.received);
        let forwarded = Stamped { stamp, is_repeated: false }.put(&message.forwarded);
        let stamped = MessageRef { forwarded: &forwarded, ..message.borrowed() };
        stamped.hold_charged(self.budget.charge_beyond(stamped.charge_bytes()))
    }

    /// Whether some shard's journal takes nothing more, so that what is to be kept is refused.
    #[inline]
    pub fn has_failing_journal(&self) -> bool {
        self.failing_journals.load(Ordering::Relaxed) > 0
    }

    /// A shard's journal takes nothing more, or takes records again.
    pub(crate) fn note_journal(&self, is_failing: bool) {
        if is_failing {
            self.failing_journals.fetch_add(1, Ordering::Relaxed);
        } else {
            self.failing_journals.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the journal of a shard lacks records, so that what is promised now may be lost at a restart.
    pub(crate) fn has_lacking_journal(&self) -> bool {
        self.lacking_journals.load(Ordering::Relaxed) > 0
    }

    /// A shard's journal lacks such records, or no longer.
    pub(crate) fn note_lacking(&self, is_lacking: bool) {
        if is_lacking {
            self.lacking_journals.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lacking_journals.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts a session that an earlier process had, however many there are.
    pub(crate) fn restore_session(&self) {
        self.sessions.fetch_add(1, Ordering::AcqRel);
    }
}
