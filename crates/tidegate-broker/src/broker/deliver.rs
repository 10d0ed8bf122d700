//! From a message to its subscribers.

use std::sync::Arc;

use tidegate_journal::{RetainedAs, Sent, Source, Waiting};
use tidegate_message::Instant;
use tidegate_schedule::{Class, Policy};
use tidegate_wire::mqtt::{PublishHead, QoS, ReasonCode, Version};

use super::{
    Broker, Peer, Promised, RouteHandle,
    accept::{Acceptance, Answer, may_have},
    journal_writer::{done, record_bytes},
    mark_dirty,
    spill::fallback,
};
use crate::{
    budget::Charge,
    config::Overflow,
    connection::Connection,
    message::{Body, Incoming, Message, seconds_left},
    outbox::{Delivery, FIRST_BYTES, Handed},
    queue::{Held, Ids, Queued},
    retained::Kept,
    routes::{Route, Target},
    session::{Dropped, Session, may_receive},
    shared::{Retention, Shared},
    slab::Key,
};

/// The outcome of publishing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Handed to those who subscribe, each under the policy of its queue.
    Matched,
    /// No session subscribes.
    Unmatched,
    /// No session got it, since there is no memory to hold it for those that must wait, or since one that would get it is full.
    Refused,
    /// A session that would get it is full. Others got it, and the publisher gets a reason code.
    RefusedBySome,
    /// No session got it, since it is larger than all memory that there may be, and its publisher would send it again forever.
    TooLarge,
    /// No session got it, since it was to be retained and its publisher has used up its share of retained messages.
    OverShare,
    /// No session got it, since it is to outlive the process and the journal refuses writes.
    Unkept,
}

impl Outcome {
    /// Whether some session that was to get it did not.
    pub(super) fn is_refused(self) -> bool {
        matches!(
            self,
            Self::Refused | Self::RefusedBySome | Self::TooLarge | Self::OverShare | Self::Unkept
        )
    }
}

/// The outcome of retaining a message.
enum Retained {
    Done,
    /// No memory is left for it.
    NoRoom,
    /// There are as many retained messages as may be.
    Full,
    /// Its publisher has used up its share.
    OverShare,
}

/// Small packets that wait in an output at most, while the kernel takes bytes.
pub(super) const OUTBOX_BYTES: usize = 64 << 10;
/// Sessions that are asked to give memory back for one message.
const RECLAIMS_MAX: usize = 8;

/// A packet that is the same for many subscribers, in `Broker::scratch`.
#[derive(Default)]
struct Encoded {
    /// For whom it is: MQTT 5 or before, and with which retain flag.
    of: Option<(bool, bool)>,
    count: usize,
}

impl Broker {
    /// Hands a message to all who subscribe to it, and writes down what must not be lost.
    #[inline]
    pub(super) fn publish(
        &mut self,
        now: Instant,
        route: &Arc<Route>,
        message: Incoming<'_>,
        charge: Option<Charge>,
        answer: Answer,
    ) -> Outcome {
        self.begin_record(None);
        if self.must_write(route, &message) && !self.can_write(route, &message) {
            return Outcome::Unkept;
        }
        let mut held = charge.map(|charge| message.hold_charged(charge));
        let outcome = self.hand_out(now, route, &message, &mut held, answer);
        if matches!(outcome, Outcome::Refused | Outcome::TooLarge | Outcome::OverShare) {
            self.forget_received();
        }
        if !self.end_record(&message, held.as_ref()) && !outcome.is_refused() {
            // There was to be room. A subscriber that has it already may get it again, which is better than none having it after a restart.
            return Outcome::Unkept;
        }
        outcome
    }

    #[inline]
    fn hand_out(
        &mut self,
        now: Instant,
        route: &Arc<Route>,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
        answer: Answer,
    ) -> Outcome {
        let mut acceptance = Acceptance::Some;
        if message.qos > QoS::AtMostOnce && answer != Answer::None {
            if self.shared.some_full() {
                self.lapse_full(now, route);
            }
            acceptance = self.accept(route, message, answer);
            if acceptance == Acceptance::None {
                return Outcome::Refused;
            }
        }
        self.promised = acceptance == Acceptance::All;
        if let Err(refused) = self.hold_and_retain(now, route, message, held) {
            if self.promised {
                self.give_up(route, message, usize::MAX);
            }
            return refused;
        }
        if route.is_empty() {
            return Outcome::Unmatched;
        }
        self.deliver_here(now, route, message, held);
        if route.group_count() > 0 {
            self.note_shared();
        }
        for group in 0..route.group_count() {
            let is_reserved = self.promised;
            let member =
                if is_reserved { self.turns[group] } else { self.turn(route, group, message) };
            match member {
                Some(at) => {
                    self.deliver_in_turn(now, route, (group, at), message, held, is_reserved);
                }
                None => self.note_unserved(route, group, message, false),
            }
        }
        for shard in 0..self.shared.shards() {
            if shard == self.shard || route.on(shard).is_empty() {
                continue;
            }
            let authorize = self.shared.authorize();
            if !route.on(shard).iter().any(|target| target.is_served(authorize, message)) {
                if self.promised {
                    route.on(shard).iter().for_each(|target| self.give_back_place(message, target));
                }
                continue;
            }
            if let Some(held) = self.held(message, held) {
                if !self.promised {
                    route.on(shard).iter().for_each(|target| self.expect(message, target));
                }
                let is_written = message.qos > QoS::AtMostOnce && route.is_written_on(shard);
                let sent = || Sent::Plain;
                let origin = self.note_sent(shard, message.topic, Some(&held), is_written, sent);
                let (route, promised) = (RouteHandle(route.clone()), Promised(self.promised));
                self.send(shard, Peer::Message(held, route, promised, origin));
            } else {
                if self.promised {
                    route.on(shard).iter().for_each(|target| self.give_back_place(message, target));
                }
                self.statistics.dropped.budget_full += route.on(shard).len() as u64;
            }
        }
        match answer {
            Answer::Reason if !self.promised && message.qos > QoS::AtMostOnce => {
                Outcome::RefusedBySome
            }
            _ => Outcome::Matched,
        }
    }

    /// Takes what has expired out of the queues of those sessions of this shard that are full; those of others do so on time.
    #[cold]
    fn lapse_full(&mut self, now: Instant, route: &Route) {
        let members = (0..route.group_count()).flat_map(|group| route.members_of(group));
        for target in route.on(self.shard).iter().chain(members) {
            if target.session.shard() == self.shard && target.state.is_full() {
                self.lapse(now, target.session.key());
            }
        }
    }

    /// Holds a message for those that must wait, and retains it if it asks for that; why neither can be.
    #[inline]
    fn hold_and_retain(
        &mut self,
        now: Instant,
        route: &Route,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
    ) -> Result<(), Outcome> {
        let is_kept = message.qos > QoS::AtMostOnce && !route.is_empty();
        if is_kept && held.is_none() && (route.leaves(self.shard) || !self.has_room(message)) {
            // Room may have been made.
            *held = self.hold(message);
            if held.is_none() && self.somebody_must_wait(route, message) {
                return Err(self.refused(now, message));
            }
        }
        if message.retain {
            match self.retain(route, message, held) {
                Retained::Done => {}
                // A publisher that sends it again until it is accepted would do so forever, and hold up all that is
                // behind it.
                Retained::Full | Retained::OverShare if self.is_sent_again(message) => {
                    self.note_unretained(message);
                }
                Retained::Full => return Err(Outcome::Refused),
                Retained::NoRoom => return Err(self.refused(now, message)),
                Retained::OverShare => return Err(Outcome::OverShare),
            }
        }
        Ok(())
    }

    /// A message from another shard.
    pub(super) fn deliver_held(&mut self, now: Instant, route: &Route, message: Arc<Message>) {
        let mut held = Some(message.clone());
        let incoming = message.as_incoming();
        // A place that was reserved is given back once the message has it.
        let promised = self.promised;
        let arrived = |broker: &mut Self| {
            route.on(broker.shard).iter().for_each(|target| broker.note_arrival(&incoming, target));
        };
        if !promised {
            arrived(self);
        }
        self.deliver_here(now, route, &incoming, &mut held);
        if promised {
            arrived(self);
        }
        self.end_record(&incoming, held.as_ref());
    }

    /// A message from another shard for one member of a shared subscription, or for another of them if it has ended meanwhile, has
    /// lost its right to it, or has left and would keep none of QoS 0.
    pub(super) fn deliver_member(
        &mut self,
        now: Instant,
        route: &Route,
        group: usize,
        member: usize,
        message: &Arc<Message>,
    ) {
        let target = route.member(group, member);
        let mut held = Some(message.clone());
        let incoming = message.as_incoming();
        let promised = self.promised;
        let session = self.sessions.get(target.session.key());
        let is_served = session.is_some_and(|session| {
            incoming.qos == QoS::AtMostOnce
                || target.is_reached(&incoming)
                    && may_receive_by(&self.shared, route, target, session, incoming.topic)
        });
        if !is_served {
            self.note_arrival(&incoming, target);
            let name = route.group_name(group);
            self.deliver_to_another(now, name, &incoming, &mut held);
        } else {
            if !promised {
                self.note_arrival(&incoming, target);
            }
            self.deliver(now, route, target, &incoming, &mut held, &mut Encoded::default());
            if promised {
                self.note_arrival(&incoming, target);
            }
        }
        self.end_record(&incoming, held.as_ref());
    }

    /// The member of a shared subscription whose turn it is, if there is one that may have the message and is reached.
    fn turn(&self, route: &Route, group: usize, message: &Incoming<'_>) -> Option<usize> {
        let authorize = self.shared.authorize();
        route.turn(group, |member| member.is_served(authorize, message))
    }

    /// Counts a message that no member of a shared subscription gets, unless none may have it and none was to.
    fn note_unserved(
        &mut self,
        route: &Route,
        group: usize,
        message: &Incoming<'_>,
        was_accepted: bool,
    ) {
        let authorize = self.shared.authorize();
        let may_have = |member: &Target| {
            member.qos_of(message.publisher, message.qos).is_some()
                && may_have(authorize, member, message.topic)
        };
        let dropped = &mut self.statistics.dropped;
        if message.qos == QoS::AtMostOnce {
            // No subscription keeps it.
        } else if route.members_of(group).iter().any(may_have) {
            dropped.members_away += 1;
        } else if was_accepted {
            dropped.not_allowed += 1;
        }
    }

    /// Hands a message to a member of a shared subscription, on whatever shard.
    fn deliver_in_turn(
        &mut self,
        now: Instant,
        route: &Arc<Route>,
        (group, at): (usize, usize),
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
        is_reserved: bool,
    ) {
        let member = route.member(group, at);
        let shard = member.session.shard();
        if shard == self.shard {
            self.deliver(now, route, member, message, held, &mut Encoded::default());
        } else if let Some(held) = self.held_to_wait(message, held) {
            if !is_reserved {
                self.expect(message, member);
            }
            let is_written = message.qos > QoS::AtMostOnce && member.is_written;
            let sent = || Sent::Group(route.group_name(group).into());
            let origin = self.note_sent(shard, message.topic, Some(&held), is_written, sent);
            let (route, promised) = (RouteHandle(route.clone()), Promised(self.promised));
            self.send(shard, Peer::Member(held, route, group, at, promised, origin));
        } else {
            self.statistics.dropped.budget_full += 1;
        }
    }

    /// Hands a message to a member that the shared subscription of that name has now; counts it as dropped if there is none.
    pub(super) fn deliver_to_another(
        &mut self,
        now: Instant,
        name: &str,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
    ) {
        let route = self.route(message.topic);
        self.note_shared();
        let Some(group) = route.group_named(name) else {
            self.statistics.dropped.session_ended += 1;
            return;
        };
        match self.turn(&route, group, message) {
            Some(at) => self.deliver_in_turn(now, &route, (group, at), message, held, false),
            None => self.note_unserved(&route, group, message, true),
        }
    }

    #[inline]
    fn deliver_here(
        &mut self,
        now: Instant,
        route: &Route,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
    ) {
        let targets = route.on(self.shard);
        let mut encoded = Encoded { of: None, count: targets.len() };
        for target in targets {
            self.deliver(now, route, target, message, held, &mut encoded);
        }
    }

    fn retain(
        &mut self,
        route: &Route,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
    ) -> Retained {
        if message.payload.is_empty() {
            if let Retention::Changed(sequence) = self.shared.retain(message.topic, None) {
                self.note_retained(
                    message,
                    None,
                    RetainedAs { sequence, client: None, source: None },
                );
            }
            return Retained::Done;
        }
        let kept = self.held(message, held);
        let publisher = message.publisher.filter(|publisher| publisher.shard() == self.shard);
        let session = publisher.and_then(|publisher| self.sessions.get(publisher.key()));
        let client = session.map(|session| session.client_id.clone());
        let account = session.and_then(|session| session.account.clone());
        let source = session.map(|session| session.identity.clone());
        let Some(kept) = kept else { return Retained::NoRoom };
        let (held, topic) = (kept.clone(), message.topic);
        let kept = Kept {
            message: kept,
            sequence: 0,
            client: client.clone(),
            source: source.clone(),
            // Rules that changed since may deny it.
            allowed_by: Some(route.made.rules),
            routed_by: route.made.routes,
            owner: None,
            account: account.clone(),
        };
        let sequence = match self.shared.retain(topic, Some(kept)) {
            Retention::Changed(sequence) => sequence,
            Retention::OverShare => {
                account.iter().for_each(|account| self.shared.note_over_share(account));
                return Retained::OverShare;
            }
            Retention::Unchanged | Retention::Refused => return Retained::Full,
        };
        let source = source.as_deref().map(Source::from);
        self.note_retained(message, Some(&held), RetainedAs { sequence, client, source });
        if let Some(at) = message.expires {
            self.watch_retained(at);
        }
        Retained::Done
    }

    /// Whether the publisher's connection ends with what is not accepted, so that it comes again.
    fn is_sent_again(&self, message: &Incoming<'_>) -> bool {
        let publisher = message.publisher.filter(|publisher| publisher.shard() == self.shard);
        let session = publisher.and_then(|publisher| self.sessions.get(publisher.key()));
        session.is_some_and(|session| session.config.ends_at_refusal)
    }

    /// There is no memory for it: whether that may change.
    #[cold]
    pub(super) fn refused(&mut self, now: Instant, message: &Incoming<'_>) -> Outcome {
        let is_too_large = message.charge_bytes() > self.shared.budget().limit();
        if !is_too_large || !self.is_sent_again(message) {
            return Outcome::Refused;
        }
        let publisher = message.publisher.expect("it is one that sends again");
        let session = self.sessions.get(publisher.key()).expect("it was found before");
        let (client, connection) = (session.client_id.clone(), session.connection);
        if let Some(count) = self.too_large.add(now, 1) {
            tracing::warn!(%client, topic = %message.topic, payload_bytes = message.payload.len(),
                bytes = message.charge_bytes(), bytes_max = self.shared.budget().limit(), count,
                "refused for good: the message is larger than mqtt.payload_bytes_max; `count` has such messages since the last such line");
        }
        if let Some(connection) = connection {
            self.note_denied(connection, message.topic);
        }
        Outcome::TooLarge
    }

    /// It goes to current subscribers, and to no later ones.
    #[cold]
    fn note_unretained(&mut self, message: &Incoming<'_>) {
        self.statistics.refused += 1;
        if !std::mem::replace(&mut self.told_unretained, true) {
            tracing::warn!(topic = %message.topic, retained = self.shared.retained_count(),
                "delivered but not retained: there are as many retained messages as may be, or its identity has its share of them; others like it are only counted");
        }
    }

    /// The message, held; none and counted if there is no room for it.
    fn held(
        &mut self,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
    ) -> Option<Arc<Message>> {
        if held.is_none() {
            *held = self.hold(message);
        }
        held.clone()
    }

    /// The message, held for a subscriber that must wait; none and counted if there is no room for it and it may be lost.
    fn held_to_wait(
        &mut self,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
    ) -> Option<Arc<Message>> {
        if self.held(message, held).is_none() && self.promised && message.qos > QoS::AtMostOnce {
            // Other shards took what was there when it was accepted.
            let charge = self.shared.budget().charge_beyond(message.charge_bytes());
            *held = Some(self.message_pool.hold(message, charge));
        }
        held.clone()
    }

    pub(super) fn hold(&mut self, message: &Incoming<'_>) -> Option<Arc<Message>> {
        self.charge(message.charge_bytes()).map(|charge| self.message_pool.hold(message, charge))
    }

    fn has_room(&self, message: &Incoming<'_>) -> bool {
        let budget = self.shared.budget();
        budget.used().saturating_add(message.charge_bytes()) <= budget.limit()
    }

    /// Takes bytes from the node's budget; if there are none, those sessions that hold most give some back, as their policies
    /// allow: at once if they are of this shard, else for those who come next.
    pub(super) fn charge(&mut self, bytes: u64) -> Option<Charge> {
        let budget = self.shared.budget().clone();
        for _ in 0..RECLAIMS_MAX {
            if let Some(charge) = budget.charge(bytes) {
                return Some(charge);
            }
            if bytes > budget.limit() || !self.make_room(bytes) {
                return None;
            }
        }
        budget.charge(bytes)
    }

    /// Makes room, unless that is for another shard to do, which is asked to.
    fn make_room(&mut self, bytes: u64) -> bool {
        let others = (0..self.shared.shards()).filter(|shard| *shard != self.shard);
        let most = others.max_by_key(|shard| self.shared.gives(*shard));
        // Both are known to within a half.
        if let Some(shard) = most
            && self.shared.gives(shard) / 2 > self.shared.gives(self.shard)
        {
            if !self.shared.ask(shard, true) {
                self.peers[shard].push(Peer::Reclaim(bytes));
            }
            return false;
        }
        self.reclaim(bytes) > 0
    }

    /// Gives memory back for another shard: more than that asked for, or it would have to ask for every message.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.shared.ask(self.shard, false);
        let mut wanted = bytes.max(self.shared.budget().limit() / 16);
        for _ in 0..RECLAIMS_MAX {
            let freed = self.reclaim(wanted);
            wanted = wanted.saturating_sub(freed);
            if freed == 0 || wanted == 0 {
                break;
            }
        }
    }

    /// Makes the session that could give most give `bytes` back, or end; how many it gave.
    fn reclaim(&mut self, bytes: u64) -> u64 {
        let freed = self
            .reclaim_heap
            .first(&mut self.sessions)
            .map_or(0, |(_, key)| self.reclaim_from(key, bytes));
        let first = self.reclaim_heap.first(&mut self.sessions);
        self.shared.set_gives(self.shard, first.map_or(0, |(gives, _)| gives));
        freed
    }

    fn reclaim_from(&mut self, key: Key, bytes: u64) -> u64 {
        let own = self.session_key(key);
        let session = self.sessions.get_mut(key).expect("just found");
        let mut freed = 0;
        if session.queue.spillable_bytes() > 0 {
            freed = self.spilling.give(session, bytes);
        }
        while freed < bytes {
            let Some(dropped) = session.queue.drop_oldest(session.is_idle) else { break };
            done(&mut self.keeper, session, dropped.number);
            freed += dropped.message.charged();
            session.dropped.budget_full += 1;
            self.statistics.dropped.budget_full += 1;
        }
        let ends = freed == 0 && !session.is_kept();
        let connection = session.connection.filter(|_| ends);
        if ends {
            freed = session.queue.bytes();
            let count = session.queue.len() as u64;
            session.dropped.budget_full += count;
            self.statistics.dropped.budget_full += count;
            session.queue = Default::default();
            self.statistics.overflow_disconnects += 1;
            tracing::warn!(client = %session.client_id, "client disconnected: it holds most of the node's memory");
        }
        let behind = session.note_behind(&self.shared);
        let blocks = if behind { Vec::new() } else { std::mem::take(&mut session.blocks) };
        if let Some(connection) = connection {
            let text = "the node's memory is full, and most of it waits for this client";
            self.disconnect(connection, ReasonCode::QUOTA_EXCEEDED, Some(text));
        }
        self.release(blocks, own);
        freed
    }

    /// Whether a subscriber cannot be handed the message at once.
    fn somebody_must_wait(&self, route: &Route, message: &Incoming<'_>) -> bool {
        let authorize = self.shared.authorize();
        let is_served = |target: &Target| target.is_served(authorize, message);
        if (0..route.group_count()).any(|group| route.members_of(group).iter().any(is_served))
            || self.plain_elsewhere(route).any(is_served)
        {
            return true;
        }
        route.on(self.shard).iter().filter(|target| is_served(target)).any(|target| {
            let Some(session) = self.sessions.get(target.session.key()) else { return false };
            let connection = session.connection.and_then(|key| self.connections.get(key));
            let Some(connection) = connection else { return true };
            let copy_max = self.shared.config().copy_bytes_max;
            session.is_kept()
                || connection.outbox.hands_out()
                || !goes_at_once(connection, session, route, message, copy_max)
        })
    }

    /// Hands a message to one subscriber: into its output, or into its queue.
    #[inline]
    fn deliver(
        &mut self,
        now: Instant,
        route: &Route,
        target: &Target,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
        encoded: &mut Encoded,
    ) {
        let key = target.session.key();
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(qos) = target.qos_of(message.publisher, message.qos) else { return };
        let authorize = self.shared.authorize();
        // Looked at before the rules are, so that what is decided by them is never older.
        let generation = authorize.generation();
        if !may_receive_by(&self.shared, route, target, session, message.topic) {
            return;
        }
        session.note_allowed(generation);
        let retain = message.retain && target.retain_as_published;
        let config = self.shared.config();
        let connection = session.connection.and_then(|key| self.connections.get_mut(key));
        let Some(connection) = connection else {
            if qos > QoS::AtMostOnce {
                self.queue(now, key, route, target, message, held, qos, retain);
            }
            return;
        };
        let is_written = qos > QoS::AtMostOnce && session.number > 0;
        let waits_for_disk = is_written
            && qos == QoS::ExactlyOnce
            && self.keeper.as_ref().is_some_and(|keeper| keeper.is_gated);
        let mut is_open = qos == QoS::AtMostOnce
            || !waits_for_disk && may_begin(connection, session, message.payload.len(), false);
        if is_open && is_written && qos == QoS::ExactlyOnce {
            // Its identifier is written with it, or it waits until that can be: see `write_begun`.
            let bytes = record_bytes(message, route.on(self.shard).len(), self.shared.shards());
            is_open = self.keeper.as_mut().is_none_or(|keeper| keeper.ensure(bytes));
        }
        if !is_open || !goes_at_once(connection, session, route, message, config.copy_bytes_max) {
            self.queue(now, key, route, target, message, held, qos, retain);
            return;
        }
        let mut number = 0;
        let hands_out = connection.outbox.hands_out();
        // A member of a shared subscription may end and leave it to another.
        let is_kept = qos > QoS::AtMostOnce && (session.is_kept() || target.group.is_some());
        if (is_kept || hands_out) && held.is_none() {
            let (budget, bytes) = (self.shared.budget(), message.charge_bytes());
            // Other shards may have taken what was there when it was accepted.
            let charge =
                budget.charge(bytes).or_else(|| self.promised.then(|| budget.charge_beyond(bytes)));
            *held = charge.map(|charge| self.message_pool.hold(message, charge));
            if held.is_none() {
                session.dropped.budget_full += 1;
                self.statistics.dropped.budget_full += 1;
                return;
            }
        }
        let kept = if let Some(held) = held
            && is_kept
        {
            let ids = Ids::of(target.ids(message.publisher));
            let overflow = overflow(session, qos, route);
            let mut queued =
                Queued::new(Held::Memory(held.clone()), qos, retain, ids, now, overflow);
            queued.group = target.group.clone();
            if is_written {
                queued.number =
                    Self::message_number(&mut self.keeper, &mut self.numbers, session.number);
                number = queued.number;
            }
            Some(Box::new(queued))
        } else {
            None
        };
        let version = connection.version;
        let ids = target.ids(message.publisher);
        let is_same = encoded.count > 1
            && qos == QoS::AtMostOnce
            && ids.is_empty()
            && connection.aliases_out.max == 0;
        let of = (version == Version::V5, retain);
        let mut packet_id = None;
        if let Some(held) = held
            && hands_out
        {
            if qos > QoS::AtMostOnce {
                connection.unacknowledged += 1;
                packet_id = Some(session.inflight.begin(qos, message.payload.len(), false, kept));
            }
            let message = held.clone();
            let delivery = Delivery { message, qos, retain, packet_id, is_repeated: false };
            connection.outbox.hand(Handed::One(delivery));
        } else if is_same
            && encoded.of == Some(of)
            && self.scratch.len() <= connection.packet_bytes_max as usize
        {
            connection.outbox.data(&mut self.buffers).extend_from_slice(&self.scratch);
        } else {
            let outgoing = Outgoing { message, qos, retain, dup: false, ids };
            if !outgoing.fits(connection, now) {
                session.dropped.too_large += 1; // MQTT-3.1.2-25
                self.statistics.dropped.too_large += 1;
                return;
            }
            packet_id = (qos > QoS::AtMostOnce).then(|| {
                connection.unacknowledged += 1;
                session.inflight.begin(qos, message.payload.len(), false, kept)
            });
            if is_same {
                self.scratch.clear();
                outgoing.encode_head(connection, now, packet_id, &mut self.scratch);
                append(&message.payload, &mut self.scratch);
                encoded.of = Some(of);
                connection.outbox.data(&mut self.buffers).extend_from_slice(&self.scratch);
            } else {
                let mut out = std::mem::take(connection.outbox.data(&mut self.buffers));
                outgoing.encode_head(connection, now, packet_id, &mut out);
                append(&message.payload, &mut out);
                *connection.outbox.data(&mut self.buffers) = out;
            }
        }
        if packet_id.is_some() {
            connection.time(now, qos, packet_id, message.payload.len());
        }
        if is_written {
            let waiting = Waiting {
                session: session.number,
                again: 0,
                qos,
                retain,
                ids: ids.to_vec(),
                begun: packet_id.filter(|_| qos == QoS::ExactlyOnce),
                group: target.group.clone(),
            };
            Self::note_waiting(&mut self.keeper, number, waiting);
        }
        self.statistics.sent += 1;
        self.statistics.packets_sent += 1;
        self.statistics.sent_bytes += message.payload.len() as u64;
        connection.schedule.started(now, Class::Small, message.payload.len() as u64);
        let at = session.connection.expect("looked up above");
        mark_dirty(at, connection, &mut self.dirty);
    }

    /// Lets a message wait for one subscriber, under the policy of its queue.
    #[expect(clippy::too_many_arguments, reason = "all of one delivery, known where it is called")]
    #[cold]
    fn queue(
        &mut self,
        now: Instant,
        key: Key,
        route: &Route,
        target: &Target,
        message: &Incoming<'_>,
        held: &mut Option<Arc<Message>>,
        qos: QoS,
        retain: bool,
    ) {
        let Some(held) = self.held_to_wait(message, held) else {
            if let Some(session) = self.sessions.get_mut(key) {
                session.dropped.budget_full += 1;
            }
            self.statistics.dropped.budget_full += 1;
            return;
        };
        let Some(session) = self.sessions.get(key) else { return };
        let ids = target.ids(message.publisher);
        let overflow = overflow(session, qos, route);
        let mut queued = Queued::new(Held::Memory(held), qos, retain, Ids::of(ids), now, overflow);
        queued.group = target.group.clone();
        let session = if qos > QoS::AtMostOnce { session.number } else { 0 };
        if session > 0 {
            queued.number = Self::message_number(&mut self.keeper, &mut self.numbers, session);
        }
        let number = queued.number;
        self.lapse(now, key);
        if self.enqueue(key, queued, route) && session > 0 {
            let (ids, group) = (ids.to_vec(), target.group.clone());
            let waiting = Waiting { session, again: 0, qos, retain, ids, begun: None, group };
            Self::note_waiting(&mut self.keeper, number, waiting);
        }
    }

    /// Puts a message into a session's queue, under the policy that holds there; false if that drops it.
    fn enqueue(&mut self, key: Key, mut queued: Queued, route: &Route) -> bool {
        let own = self.session_key(key);
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let config = session.config.clone();
        let publisher = queued.message.memory().and_then(|message| message.publisher);
        let is_large = is_large(queued.payload_bytes(), route.large_bytes, session);
        if queued.overflow == Overflow::Latest {
            match session.queue.replace(queued) {
                Err(new) => queued = new,
                Ok(former) => {
                    done(&mut self.keeper, session, former.number);
                    session.dropped.conflated += 1;
                    self.statistics.dropped.conflated += 1;
                    session.note_behind(&self.shared);
                    self.watch_lapse(key);
                    return true;
                }
            }
        }
        let bytes = queued.message.charged();
        // An acknowledged message is kept: its publisher's shard checked the share before.
        let is_over_share = !self.promised && session.is_over_share(&self.shared, &queued, bytes);
        if is_over_share {
            session.account.iter().for_each(|account| self.shared.note_over_share(account));
        }
        if is_over_share
            || !self.promised
                && !session.is_idle
                && queued.qos > QoS::AtMostOnce
                && session.is_reserved(&queued, bytes)
        {
            session.dropped.queue_full += 1;
            self.statistics.dropped.queue_full += 1;
            return false;
        }
        let mut is_left = false;
        if queued.overflow == Overflow::Spill
            && !self.spilling.place(session, &mut queued, is_large)
        {
            (queued.overflow, is_left) = (fallback(queued.qos), true);
        }
        // One may always wait, or what is larger than all that may could never be sent.
        while queued.message.memory().is_some()
            && !session.queue.is_empty()
            && (session.queue.bytes() + bytes > config.queue_bytes_max
                || session.queue.len() >= config.queue_messages_max)
        {
            let goes_on = session.is_idle && !queued.overflow.drops();
            let gone = match queued.overflow {
                _ if goes_on => {
                    let gone = session.queue.drop_oldest(true);
                    if let Some(gone) = &gone {
                        done(&mut self.keeper, session, gone.number);
                    }
                    gone.is_some()
                }
                Overflow::DropOldest | Overflow::Latest => {
                    let gone = session.queue.drop_oldest(false);
                    if let Some(gone) = &gone {
                        done(&mut self.keeper, session, gone.number);
                    }
                    gone.is_some()
                }
                Overflow::DropNewest | Overflow::Spill => false,
                // It had a place when it was accepted.
                Overflow::Disconnect if session.is_full && self.promised => break,
                Overflow::Disconnect if session.is_full => false,
                Overflow::Disconnect => {
                    // A message without a place is kept all the same: it is acknowledged.
                    session.is_full = true;
                    self.shared.note_full(&session.state);
                    let connection = session.connection.filter(|key| {
                        self.connections.get(*key).is_some_and(|connection| !connection.is_closing)
                    });
                    if let Some(connection) = connection {
                        tracing::warn!(client = %session.client_id, bytes = session.queue.bytes(), messages = session.queue.len(),
                            "client disconnected: its queue is full");
                        self.statistics.overflow_disconnects += 1;
                        let text = "too many messages wait for this client";
                        self.disconnect(connection, ReasonCode::QUOTA_EXCEEDED, Some(text));
                    }
                    break;
                }
                Overflow::BlockPublisher => {
                    let blocks = publisher.filter(|publisher| !session.blocks.contains(publisher));
                    if let Some(publisher) = blocks {
                        if !self.shared.blocked_publishers().insert(publisher, own) {
                            // A client that is not read from cannot acknowledge: the whole circle would wait forever.
                            queued.overflow = Overflow::Disconnect;
                            continue;
                        }
                        session.blocks.push(publisher);
                        self.tell_publisher(publisher, true);
                    }
                    break;
                }
            };
            let count = |dropped: &mut Dropped| {
                *(if is_left { &mut dropped.spill_full } else { &mut dropped.queue_full }) += 1;
            };
            count(&mut session.dropped);
            count(&mut self.statistics.dropped);
            if !gone {
                return false;
            }
        }
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let expires = queued.message.expires().is_some();
        session.queue.push(queued, is_large);
        let is_behind = session.note_behind(&self.shared);
        // Its identity may come to have its share.
        let is_away = session.connection.is_none() && session.idles_at.is_none();
        if let Some(gives) = self.reclaim_heap.note(key, session) {
            self.shared.note_gives(self.shard, gives);
            self.reclaim_heap.tidy(&self.sessions);
        }
        if expires {
            self.watch_lapse(key);
        }
        if is_behind || is_away {
            self.watch_idle(key);
        }
        let session = self.sessions.get(key).expect("looked up above");
        if let Some(at) = session.connection {
            self.mark_dirty(at);
        }
        true
    }
}

/// Whether rules let a session of this shard be sent a message of a route. One that came from another shard may remember what
/// former rules decided.
#[inline]
fn may_receive_by(
    shared: &Shared,
    route: &Route,
    target: &Target,
    session: &Session,
    topic: &str,
) -> bool {
    let authorize = shared.authorize();
    if authorize.receives_all() {
        return true;
    }
    let decide = || may_receive(authorize, &session.identity, topic);
    if route.generation == shared.generation() { target.is_allowed(decide) } else { decide() }
}

/// The policy for a message to a session that is full.
fn overflow(session: &Session, qos: QoS, route: &Route) -> Overflow {
    route.overflow.unwrap_or_else(|| session.config.overflow_of(qos))
}

/// Whether a payload is in the large class; its topic may say from how many bytes on.
pub(super) fn is_large(bytes: usize, large_bytes: Option<u32>, session: &Session) -> bool {
    let usual = session.config.large_bytes;
    session.config.policy != Policy::None && bytes > large_bytes.unwrap_or(usual) as usize
}

/// Whether a message may be copied into the output now: it is small, and nothing waits that it must not overtake.
#[inline]
fn goes_at_once(
    connection: &Connection,
    session: &Session,
    route: &Route,
    message: &Incoming<'_>,
    copy_bytes_max: usize,
) -> bool {
    let bytes = message.payload.len() + message.topic.len() + message.forwarded.len();
    let room = if connection.is_blocked { FIRST_BYTES } else { OUTBOX_BYTES };
    bytes <= copy_bytes_max
        && !connection.is_closing
        && !connection.outbox.is_held_up()
        && connection.outbox.data_bytes() + bytes <= room
        && session.queue.may_pass(message.topic)
        && connection.resend.is_empty()
        && !is_large(message.payload.len(), route.large_bytes, session)
}

/// Whether another QoS 1 or 2 message may be in flight (section 4.9, and our own window of bytes). Large ones leave half of
/// the places to small ones.
pub(super) fn may_begin(
    connection: &Connection,
    session: &Session,
    bytes: usize,
    is_large: bool,
) -> bool {
    let places = connection.receive_maximum;
    let inflight = &session.inflight;
    connection.unacknowledged < places
        && (!is_large || inflight.large() < usize::from(places / 2).max(1))
        && (inflight.bytes() == 0 || inflight.bytes() + bytes as u64 <= inflight_window(connection))
}

/// Bytes of QoS 1 and 2 messages that may be in flight: those of its own window, or what its path holds.
pub(super) fn inflight_window(connection: &Connection) -> u64 {
    let link = &connection.link;
    let path = link.delivery_rate.saturating_mul(link.rtt.as_micros() as u64) / 500_000;
    connection.inflight_bytes_max.max(path)
}

/// A message as one subscriber is sent it.
pub(super) struct Outgoing<'a> {
    pub(super) message: &'a Incoming<'a>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) dup: bool,
    pub(super) ids: &'a [u32],
}

impl Outgoing<'_> {
    fn head(&self, now: Instant) -> PublishHead<'_> {
        PublishHead {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: self.message.topic,
            packet_id: None,
            topic_alias: None,
            message_expiry: seconds_left(self.message.expires, now),
            subscription_ids: self.ids,
            forwarded: self.message.forwarded,
            payload_bytes: self.message.payload.len(),
        }
    }

    /// Whether the client takes it (MQTT-3.1.2-24).
    pub(super) fn fits(&self, connection: &Connection, now: Instant) -> bool {
        connection.outbox.hands_out()
            || self.packet_bytes(connection, now) <= connection.packet_bytes_max as usize
    }

    /// Length of the whole packet, without an alias.
    fn packet_bytes(&self, connection: &Connection, now: Instant) -> usize {
        let packet_id = (self.qos > QoS::AtMostOnce).then_some(std::num::NonZeroU16::MIN);
        PublishHead { packet_id, ..self.head(now) }.packet_bytes(connection.version)
    }

    /// Appends the packet up to its payload.
    #[inline]
    pub(super) fn encode_head(
        &self,
        connection: &mut Connection,
        now: Instant,
        packet_id: Option<std::num::NonZeroU16>,
        out: &mut Vec<u8>,
    ) {
        let mut head = PublishHead { packet_id, ..self.head(now) };
        let aliased = PublishHead { topic_alias: Some(std::num::NonZeroU16::MIN), ..head };
        if connection.aliases_out.max > 0
            && aliased.packet_bytes(connection.version) <= connection.packet_bytes_max as usize
            && let Some((alias, known)) = connection.aliases_out.of(self.message.topic)
        {
            head.topic_alias = Some(alias);
            if known {
                head.topic = "";
            }
        }
        head.encode(connection.version, out);
    }
}

/// Appends a payload.
#[inline]
pub(super) fn append(body: &Body<'_>, out: &mut Vec<u8>) {
    match body {
        Body::Read(bytes) => out.extend_from_slice(bytes),
        Body::Held(payload) => {
            for segment in payload.segments() {
                out.extend_from_slice(segment);
            }
        }
    }
}
