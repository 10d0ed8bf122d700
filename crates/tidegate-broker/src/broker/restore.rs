//! Restores the state of an earlier process, before the shards begin.
//!
//! A session goes to the shard that its client's name names now. A message is held once, however many wait for it. Nothing is
//! written here: [`Broker::keep`] then writes all of it to a journal that begins with it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use tidegate_journal::{
    Journal, JournalError, Order, Recovered, RecoveredQueued, RecoveredSession, Source,
    StoredMessage, StoredWill,
};
use tidegate_message::{Identity, IdentityKind, Instant};
use tidegate_wire::mqtt::{PacketId, QoS};

use super::{Broker, journal_writer::Keeper, parts};
use crate::{
    accounts::Account,
    budget::Budget,
    config::{Overflow, SessionConfig, TopicConfig},
    connection::WillMessage,
    message::{Body, Message, MessageRef},
    queue::{Held, Ids, Queued},
    session::Began,
    session_state::may_receive,
    slab::Key,
    spill::Spilled,
    subscription::{FILTERS_OWN_BYTES, SubscriptionOptions, filter_bytes},
    timers::Timer,
};

/// The state that is being restored, over all shards. A backlog may be of millions of short messages: only those that several sessions
/// wait for are remembered, and a topic is held once.
#[derive(Debug, Default)]
struct Restoring {
    /// By where each is in memory, which its record keeps alive: those that several sessions wait for.
    messages: HashMap<usize, Restored>,
    topics: HashSet<Arc<str>>,
    /// The settings of the session before.
    config: Option<Arc<SessionConfig>>,
    /// Shard, former journal and place in that of each message, in order.
    places: Vec<(usize, usize, Order)>,
}

/// A message that may wait for several sessions.
#[derive(Debug)]
struct Restored {
    _stored: Arc<StoredMessage>,
    in_memory: Weak<Message>,
    on_disk: Option<Weak<Spilled>>,
}

/// The policy of a session for messages whose topic has none of its own.
#[derive(Clone, Copy)]
struct Policy {
    usual: Overflow,
    /// Whether it is a part's.
    is_part: bool,
}

impl Restoring {
    /// The same settings, in the memory of those of the session before that has them, too.
    fn config(&mut self, config: SessionConfig) -> Arc<SessionConfig> {
        if self.config.as_deref() != Some(&config) {
            self.config = Some(Arc::new(config));
        }
        self.config.clone().expect("just set")
    }

    /// Its number in the next journal of its shard: its place among those of that shard, from 1.
    fn number(&self, shard: usize, queued: &RecoveredQueued) -> u64 {
        let place = (shard, queued.journal, queued.order);
        let at = self.places.binary_search(&place).expect("all places were noted");
        (at + 1 - self.places.partition_point(|(of, ..)| *of < shard)) as u64
    }

    /// The same text, in the memory of one that was seen before.
    fn topic(&mut self, topic: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.topics.get(topic) {
            return known.clone();
        }
        self.topics.insert(topic.clone());
        topic.clone()
    }

    fn message(
        &mut self,
        budget: &Budget,
        stored: &Arc<StoredMessage>,
        may_be_on_disk: bool,
    ) -> Held {
        let key = Arc::as_ptr(stored) as usize;
        let known = self.messages.get(&key);
        if let Some(message) = known.and_then(|known| known.in_memory.upgrade()) {
            return Held::Memory(message);
        }
        let on_disk = known.and_then(|known| known.on_disk.as_ref()).filter(|_| may_be_on_disk);
        if let Some(spilled) = on_disk.and_then(Weak::upgrade) {
            return Held::Disk(spilled);
        }
        let topic = self.topic(&stored.topic);
        let message = hold(budget, stored, &topic);
        // Others wait for it, too.
        if Arc::strong_count(stored) > 1 {
            let in_memory = Arc::downgrade(&message);
            let restored = Restored { _stored: stored.clone(), in_memory, on_disk: None };
            self.messages.insert(key, restored);
        }
        Held::Memory(message)
    }

    /// It went to disk.
    fn note(&mut self, stored: &Arc<StoredMessage>, spilled: &Arc<Spilled>) {
        if let Some(known) = self.messages.get_mut(&(Arc::as_ptr(stored) as usize)) {
            known.on_disk = Some(Arc::downgrade(spilled));
        }
    }
}

impl Broker {
    /// Brings all shards of a node back to what `recovered` says. Before they begin; `shards` are all of them, in order.
    ///
    /// # Panics
    /// If they are not.
    pub fn restore_all(shards: &mut [Self], now: Instant, recovered: Recovered) {
        let mut restoring = Restoring::default();
        let Recovered { mut sessions, retained, found } = recovered;
        parts::adopt(&mut sessions);
        let first = shards.first_mut().expect("a node has a shard");
        first.statistics.dropped.session_ended += found.unclaimed as u64;
        let config = first.shared.config().session.clone();
        let mut barred = 0;
        // A retained message's owner is known from its publisher's session, if that is still there.
        let owners: HashMap<Arc<str>, Arc<Account>> = sessions
            .iter()
            .filter(|session| !session.is_of_somebody())
            .filter_map(|session| {
                let account = first.shared.account_of(&session.identity())?;
                Some((session.opened.client_id.clone(), account))
            })
            .collect();
        // Many messages are of few.
        let mut sources: HashMap<(Arc<str>, Source), Arc<Identity>> = HashMap::new();
        for retained in retained {
            if config.check_topic_characters(&retained.message.topic).is_err() {
                barred += 1;
                continue;
            }
            let topic = &retained.message.topic;
            let message = hold(first.shared.budget(), &retained.message, topic);
            let owner = retained.client.as_ref().and_then(|client| owners.get(client).cloned());
            let source = retained.client.clone().zip(retained.source).map(|(client, source)| {
                let entry = sources.entry((client, source));
                entry.or_insert_with_key(|(client, source)| source.identity(client).into()).clone()
            });
            let shared = &first.shared;
            let expires = shared.restore_retained(now, message, retained.client, source, owner);
            if let Some(at) = expires {
                first.watch_retained(at);
            }
        }
        // Clients of libmosquitto would end each connection on which one is sent to them, and never get past it.
        let is_barred = |queued: &RecoveredQueued| {
            config.check_topic_characters(&queued.message.topic).is_err()
        };
        let mut unsent = 0;
        for session in &mut sessions {
            let before = session.queue.len() + session.inflight.len();
            session.queue.retain(|queued| !is_barred(queued));
            session.inflight.retain(|(_, queued)| !queued.as_ref().is_some_and(is_barred));
            unsent += before - session.queue.len() - session.inflight.len();
        }
        first.statistics.dropped.not_allowed += unsent as u64;
        if barred + unsent > 0 {
            tracing::warn!(
                retained = barred,
                waiting = unsent,
                "messages are forgotten whose topics have control characters (mqtt.topic_control_characters)"
            );
        }
        let shared = first.shared.clone();
        let home = |session: &RecoveredSession| shared.shard_of(&session.opened.client_id);
        // In their order, so that this start may be followed by another.
        let mut places: Vec<(usize, usize, Order)> = Vec::new();
        for session in &sessions {
            let inflight = session.inflight.iter().filter_map(|(_, queued)| queued.as_ref());
            let home = home(session);
            places.extend(inflight.chain(&session.queue).map(|q| (home, q.journal, q.order)));
        }
        places.sort_unstable();
        places.dedup();
        for (shard, broker) in shards.iter_mut().enumerate() {
            let is_its = |place: &&(usize, usize, Order)| place.0 == shard;
            broker.numbers.message = places.iter().filter(is_its).count() as u64;
        }
        restoring.places = places;
        for session in sessions {
            shards[home(&session)].restore(now, session, &mut restoring);
        }
    }

    /// Writes what is so to `journal`, and what comes to be so from now on.
    ///
    /// The journal is empty. It may take the place of one that could not be written at all. A failed write is as if there were no record:
    /// [`Broker::journal_counts`] counts failures.
    pub fn keep(&mut self, journal: Box<dyn Journal>) {
        let mut keeper = Box::new(Keeper::new(journal, self.shared.clone()));
        self.end_waits();
        if let Some(former) = self.keeper.take() {
            keeper.succeed(*former);
        }
        if let Some(error) = keeper.journal.failure() {
            keeper.fail(&error);
        }
        self.keeper = Some(keeper);
        self.begin_checkpoint(true);
        while self.checkpoint_step(usize::MAX) {}
        if let Some(keeper) = &mut self.keeper
            && keeper.checkpoint.is_none()
        {
            // Here nothing is written that it would repeat.
            keeper.lack_all();
        }
        self.end_checkpoint();
    }

    /// Makes all that is written survive a loss of power, and waits for that: to begin and to end with.
    ///
    /// # Errors
    /// It may not, or not all of what is so could be written.
    pub fn flush_journal(&mut self) -> Result<(), JournalError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        if let Some(error) = &keeper.error {
            return Err(error.clone());
        }
        // The live state, then what came from other shards, then that it is complete.
        for _ in 0..3 {
            let Some(keeper) = &mut self.keeper else { return Ok(()) };
            keeper.journal.flush()?;
            self.durable();
            if self.keeper.as_ref().is_none_or(|keeper| keeper.checkpoint.is_none()) {
                break;
            }
        }
        Ok(())
    }

    /// The messages of a session that has ended or must not have them any more, for other members.
    fn restore_remainder(
        &mut self,
        now: Instant,
        queue: Vec<RecoveredQueued>,
        restoring: &mut Restoring,
    ) {
        self.numbers.session += 1;
        let key = self.insert_remainder(now, self.numbers.session);
        // It waits for another session: this one may not drop it.
        let policy = Policy { usual: Overflow::SpillDisconnect, is_part: true };
        for recovered in queue {
            self.restore_queued(now, key, recovered, restoring, policy);
        }
        self.note_remainder(key);
    }

    /// Puts a message at the end of a session's queue, in memory or on disk.
    fn restore_queued(
        &mut self,
        now: Instant,
        key: Key,
        recovered: RecoveredQueued,
        restoring: &mut Restoring,
        policy: Policy,
    ) {
        let stored = Arc::downgrade(&recovered.message);
        let mut queued = self.restored(now, recovered, restoring, policy, true);
        let session = self.sessions.get_mut(key).expect("just begun");
        self.spilling.place_restored(session, &mut queued);
        if let (Some(stored), Held::Disk(spilled)) = (stored.upgrade(), &queued.message) {
            restoring.note(&stored, spilled);
        }
        // In one class: they keep their order, whatever the policy of the next connection is.
        session.queue.push(queued, false);
    }

    fn restore(&mut self, now: Instant, recovered: RecoveredSession, restoring: &mut Restoring) {
        if recovered.is_remainder() {
            return self.restore_remainder(now, recovered.queue, restoring);
        }
        let identity = recovered.identity();
        let is_of_somebody = recovered.is_of_somebody();
        let RecoveredSession {
            opened,
            expiry,
            ends_at,
            was_connected,
            will,
            subscriptions,
            inflight,
            queue,
            received,
        } = recovered;
        if expiry == Some(Duration::ZERO) || self.by_client.contains_key(&opened.client_id) {
            return;
        }
        self.shared.restore_session();
        // Its other settings are known once its client is back. Its policy is known now, or what it is to keep might go before that.
        let mut config = self.shared.config().session.clone();
        let known = opened.overflow.and_then(Overflow::of_number);
        config.overflow = known.unwrap_or(config.overflow);
        config.is_peer = opened.is_peer;
        let is_part = identity.kind == IdentityKind::Internal;
        let policy = Policy { usual: config.overflow, is_part };
        let config = restoring.config(config);
        let key = self.begin_session(&opened.client_id, identity.clone(), config, opened.version);
        if is_of_somebody {
            // All of those in one account would be held to the share of one. It has its own when its client is back.
            self.sessions.get_mut(key).expect("just begun").account = None;
        }
        // It is not known when its client connected: any that connects at another node from now on is newer.
        let is_clients = !is_part && !opened.is_peer && !parts::is_part_id(&opened.client_id);
        self.sessions.get_mut(key).expect("just begun").began =
            is_clients.then_some(Began { at: now, is_clean: false });
        self.numbers.session += 1;
        let number = self.numbers.session;
        let inflight: Vec<_> = inflight
            .into_iter()
            .map(|(id, queued)| {
                (id, queued.map(|queued| self.restored(now, queued, restoring, policy, false)))
            })
            .collect();
        let authorize = self.shared.authorize();
        let is_allowed = |queued: &RecoveredQueued| {
            authorize.receives_all() || may_receive(authorize, &identity, &queued.message.topic)
        };
        let (queue, gone): (Vec<_>, Vec<_>) = queue.into_iter().partition(is_allowed);
        // A message that it must not have any more may be for another member of a shared subscription.
        let (others, gone): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|queued| queued.group.is_some());
        self.statistics.dropped.not_allowed += gone.len() as u64;
        if !others.is_empty() {
            self.restore_remainder(now, others, restoring);
        }
        let used: HashSet<PacketId> = inflight.iter().map(|(id, _)| *id).collect();
        let number_of = |queued: &RecoveredQueued| restoring.number(self.shard, queued);
        let (mut sent, waits) = split_sent(queue, &inflight, number_of);
        let mut exchanges = Vec::new();
        for (id, queued) in inflight {
            let mut before = Vec::new();
            if let Some(begun) = &queued
                && let Some(sent) = sent.get_mut(begun.message.topic())
            {
                while let Some((_, first)) = sent.pop_front_if(|(number, _)| *number < begun.number)
                {
                    before.push(self.restored(now, first, restoring, policy, false));
                }
            }
            exchanges.push((before, id, queued));
        }
        // A connection that the process took with it ended then, at the latest now.
        let (ends_at, will) = if was_connected {
            let will = opened.will.as_ref().map(|will| (will.clone(), now + will.delay));
            (expiry.map(|expiry| now + expiry), will)
        } else {
            (ends_at, will)
        };
        let budget = self.shared.budget().clone();
        let session = self.sessions.get_mut(key).expect("just begun");
        session.number = number;
        session.expiry = expiry;
        session.received = received;
        for (before, id, queued) in exchanges {
            for first in before {
                session.inflight.restore_repeated(Box::new(first), &used);
            }
            session.inflight.restore(id, queued.map(Box::new));
        }
        for recovered in waits {
            self.restore_queued(now, key, recovered, restoring, policy);
        }
        let session = self.sessions.get_mut(key).expect("just begun");
        session.ends_at = ends_at;
        let since = ends_at.zip(expiry).map(|(at, expiry)| at - expiry);
        session.away_since = Some(since.map_or(now, |since| since.min(now)));
        if let Some(at) = ends_at {
            self.timers.set(at, Timer::SessionEnd(key));
        }
        if let Some((will, at)) = will {
            session.will = Some((Box::new(restored_will(&budget, now, &will)), at));
            self.timers.set(at, Timer::Will(key));
        }
        self.restore_subscriptions(key, &subscriptions);
        let session = self.sessions.get_mut(key).expect("just begun");
        session.set_left_behind(true);
        session.count_in_share();
        session.note_behind(&self.shared);
        if session.queue.len() > session.config.queue_messages_max
            || session.queue.bytes() > session.config.queue_bytes_max
        {
            session.is_full = true;
            self.shared.note_full(&session.state);
        }
        if let Some(gives) = self.reclaim_heap.note(key, session) {
            self.shared.note_gives(self.shard, gives);
        }
        // Messages that expired meanwhile are not brought back.
        self.lapse(now, key);
        self.watch_lapse(key);
        self.watch_idle(key);
    }

    fn restore_subscriptions(
        &mut self,
        key: Key,
        subscriptions: &[(Box<str>, tidegate_journal::Options)],
    ) {
        let own = self.session_key(key);
        let session = self.sessions.get_mut(key).expect("just begun");
        let mut routes = self.shared.routes_mut();
        for (filter, options) in subscriptions {
            let options = SubscriptionOptions {
                qos: options.qos,
                no_local: options.no_local,
                retain_as_published: options.retain_as_published,
                is_written: true,
                id: options.id,
            };
            // A name may come from a disk that is not what it was.
            if session.config.check_topic_filter(filter).is_ok() {
                session.filter_bytes += filter_bytes(filter);
                let filter: Arc<str> = Arc::from(&**filter);
                session.subscriptions.insert(filter.clone(), options);
                routes.insert(&filter, own, options, &session.state);
            }
        }
        drop(routes);
        let beyond = session.filter_bytes.saturating_sub(FILTERS_OWN_BYTES);
        if beyond > 0 {
            session.filter_charge =
                Some(self.shared.budget().charge_beyond(beyond).of(session.account.as_ref()));
        }
    }

    fn restored(
        &self,
        now: Instant,
        recovered: RecoveredQueued,
        restoring: &mut Restoring,
        policy: Policy,
        may_be_on_disk: bool,
    ) -> Queued {
        let number = restoring.number(self.shard, &recovered);
        let RecoveredQueued { message: stored, qos, retain, ids, group, .. } = recovered;
        let message = restoring.message(self.shared.budget(), &stored, may_be_on_disk);
        let exception = TopicConfig::of(&self.shared.topics(), message.topic())
            .and_then(|exception| exception.overflow);
        // Those of QoS 0 are not written down.
        let overflow = exception.unwrap_or(policy.usual).for_part(policy.is_part);
        let mut queued = Queued::new(message, qos, retain, Ids::of(&ids), now, overflow);
        queued.number = number;
        queued.group = group;
        queued
    }
}

/// The messages sent of each topic, with their numbers, in order.
type SentByTopic = HashMap<Arc<str>, VecDeque<(u64, RecoveredQueued)>>;

/// A session's messages that had been sent, by topic and with their numbers, and those that wait; all in order.
///
/// A message of QoS 1 that came before an exchange of its topic which began was sent before it, and is to be sent again before it,
/// unless it waited behind another of its topic: that it was sent found no room in the journal, or an earlier version wrote it.
fn split_sent(
    queue: Vec<RecoveredQueued>,
    inflight: &[(PacketId, Option<Queued>)],
    number_of: impl Fn(&RecoveredQueued) -> u64,
) -> (SentByTopic, Vec<RecoveredQueued>) {
    let mut begun: HashMap<&str, u64> = HashMap::new();
    for queued in inflight.iter().filter_map(|(_, queued)| queued.as_ref()) {
        let last = begun.entry(queued.message.topic()).or_default();
        *last = queued.number.max(*last);
    }
    let mut sent = SentByTopic::new();
    let mut waited = HashSet::new();
    let mut waits = Vec::new();
    for queued in queue {
        let (topic, number) = (queued.message.topic.clone(), number_of(&queued));
        let is_before = begun.get(&*topic).is_some_and(|last| number < *last);
        if is_before && queued.qos == QoS::AtLeastOnce && !waited.contains(&topic) {
            sent.entry(topic).or_default().push_back((number, queued));
        } else {
            waited.insert(topic);
            waits.push(queued);
        }
    }
    (sent, waits)
}

fn hold(budget: &Budget, stored: &StoredMessage, topic: &Arc<str>) -> Arc<Message> {
    // Into memory of its own, so that the journal's can go.
    let payload = stored.payload.to_contiguous();
    let message = MessageRef::stored(topic, Body::Read(&payload), stored);
    message.hold_charged(budget.charge_beyond(message.charge_bytes()))
}

fn restored_will(budget: &Budget, now: Instant, will: &StoredWill) -> WillMessage {
    let message = MessageRef {
        forwarded: &will.forwarded,
        qos: will.qos,
        retain: will.retain,
        ..MessageRef::new(&will.topic, Body::Read(&will.payload), now)
    };
    let message = message.hold_charged(budget.charge_beyond(message.charge_bytes()));
    WillMessage { message, delay: will.delay, expiry: will.expiry }
}
