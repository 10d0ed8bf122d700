//! From a message to its subscribers.

use std::sync::Arc;

use tidegate_journal::{RetainedAs, Sent, Source, Waiting};
use tidegate_message::Instant;
use tidegate_schedule::Class;
use tidegate_wire::mqtt::{QoS, Version};

use super::{
    Broker, Peer, Promised, RouteHandle,
    accept::{Acceptance, Answer, may_have},
    journal_writer::record_bytes,
    mark_dirty,
    outgoing::{Outgoing, append, may_begin},
    overflow::overflow,
};
use crate::{
    budget::Charge,
    connection::Connection,
    message::{Message, MessageRef},
    outbox::{Delivery, FIRST_BYTES, Handed},
    queue::{Held, Ids, Queued},
    reach::Reach,
    retained::Kept,
    routes::{Route, Target},
    session::Session,
    session_state::may_receive,
    shared::{Arrival, Retention, Shared},
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
        message: MessageRef<'_>,
        charge: Option<Charge>,
        answer: Answer,
    ) -> Outcome {
        if message.retain && self.shared.is_member() {
            return self.publish_stamped(now, route, message, charge, answer);
        }
        self.publish_as_it_is(now, route, message, charge, answer, false)
    }

    /// A message that is to be retained, where nodes are one broker: with its stamp, unless it is known here.
    fn publish_stamped(
        &mut self,
        now: Instant,
        route: &Arc<Route>,
        message: MessageRef<'_>,
        charge: Option<Charge>,
        answer: Answer,
    ) -> Outcome {
        let (forwarded, is_quiet) = match self.shared.stamped(now, &message, route) {
            Some(Arrival::New(forwarded)) => (forwarded, false),
            Some(Arrival::Quiet(forwarded)) => (forwarded, true),
            Some(Arrival::Known) => {
                // The one before may still wait for the disk.
                self.depend_on_all();
                return Outcome::Matched;
            }
            None => return self.publish_as_it_is(now, route, message, charge, answer, false),
        };
        // One that clears must reach each member, whenever that is.
        let expires = message.expires.filter(|_| !message.payload.is_empty());
        let message = MessageRef { forwarded: &forwarded, expires, ..message };
        self.publish_as_it_is(now, route, message, charge, answer, is_quiet)
    }

    /// A quiet one is retained and goes to no session.
    #[inline]
    fn publish_as_it_is(
        &mut self,
        now: Instant,
        route: &Arc<Route>,
        mut message: MessageRef<'_>,
        charge: Option<Charge>,
        answer: Answer,
        is_quiet: bool,
    ) -> Outcome {
        self.begin_record(None);
        if self.must_write(route, &message) {
            if !self.can_write(route, &message) {
                return Outcome::Unkept;
            }
            message.received = self.numbers.received(message.received);
        }
        let mut held = charge.map(|charge| message.hold_charged(charge));
        let outcome = match is_quiet {
            true => match self.hold_and_retain(now, route, &message, &mut held) {
                Ok(()) => Outcome::Matched,
                Err(refused) => refused,
            },
            false => self.hand_out(now, route, &message, &mut held, answer),
        };
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
        message: &MessageRef<'_>,
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
            if route.is_of_group() && message.qos > QoS::AtMostOnce {
                // The last member went while it was on its way from the node that chose this one.
                self.statistics.dropped.session_ended += 1;
            }
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
        message: &MessageRef<'_>,
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
        // A node that is to retain it has another copy.
        if message.retain && !route.is_of_group() {
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
        let borrowed = message.borrowed();
        // A place that was reserved is given back once the message has it.
        let promised = self.promised;
        let arrived = |broker: &mut Self| {
            route.on(broker.shard).iter().for_each(|target| broker.note_arrival(&borrowed, target));
        };
        if !promised {
            arrived(self);
        }
        self.deliver_here(now, route, &borrowed, &mut held);
        if promised {
            arrived(self);
        }
        self.end_record(&borrowed, held.as_ref());
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
        let borrowed = message.borrowed();
        let promised = self.promised;
        let session = self.sessions.get(target.session.key());
        let is_served = session.is_some_and(|session| {
            borrowed.qos == QoS::AtMostOnce
                || target.is_reached(&borrowed)
                    && may_receive_by(&self.shared, route, target, session, borrowed.topic)
        });
        if !is_served {
            self.note_arrival(&borrowed, target);
            let name = route.group_name(group);
            self.deliver_to_another(now, name, &borrowed, &mut held);
        } else {
            if !promised {
                self.note_arrival(&borrowed, target);
            }
            self.deliver(now, route, target, &borrowed, &mut held, &mut Encoded::default());
            if promised {
                self.note_arrival(&borrowed, target);
            }
        }
        self.end_record(&borrowed, held.as_ref());
    }

    /// The member of a shared subscription whose turn it is, if there is one that may have the message and is reached.
    fn turn(&self, route: &Route, group: usize, message: &MessageRef<'_>) -> Option<usize> {
        let authorize = self.shared.authorize();
        let may_leave = || message.may_leave();
        route.turn(group, may_leave, |member| member.is_served(authorize, message))
    }

    /// Counts a message that no member of a shared subscription gets, unless none may have it and none was to.
    fn note_unserved(
        &mut self,
        route: &Route,
        group: usize,
        message: &MessageRef<'_>,
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
        message: &MessageRef<'_>,
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
        message: &MessageRef<'_>,
        held: &mut Option<Arc<Message>>,
    ) {
        let reach = match message.is_from_peer {
            true => self.shared.routes().reach_of_group(name),
            false => Some(Reach::All),
        };
        self.note_shared();
        let route = reach.map(|reach| self.routes.route(&self.shared, message.topic, reach));
        let Some((route, group)) = route.and_then(|it| it.group_named(name).map(|at| (it, at)))
        else {
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
        message: &MessageRef<'_>,
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
        message: &MessageRef<'_>,
        held: &mut Option<Arc<Message>>,
    ) -> Retained {
        if message.payload.is_empty() {
            self.clear(message, held);
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
        let stamp = self.shared.stamp_of(message.forwarded);
        let kept = Kept {
            client: client.clone(),
            source: source.clone(),
            // Rules that changed since may deny it.
            allowed_by: Some(route.made.rules.min(self.decided_by)),
            routed_by: route.made.routes,
            account: account.clone(),
            ..Kept::of(kept, stamp)
        };
        let sequence = match self.shared.retain(topic, stamp, Some(kept)) {
            Retention::Changed(sequence) => sequence,
            Retention::Older => return Retained::Done,
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

    /// Nothing is retained of the topic any more, and nothing that is older than the message, where nodes are one broker.
    fn clear(&mut self, message: &MessageRef<'_>, held: &mut Option<Arc<Message>>) {
        let stamp = self.shared.stamp_of(message.forwarded);
        let mark = self.shared.mark_of(message, message.received);
        let expires = mark.as_ref().and_then(|mark| mark.message.expires);
        let Retention::Changed(sequence) = self.shared.retain(message.topic, stamp, mark) else {
            return;
        };
        // The stamp is in the record, unless there is no mark or no memory.
        let mut kept = None;
        if let Some(at) = expires {
            self.watch_retained(at);
            kept = self.held(message, held);
        }
        let retained = RetainedAs { sequence, client: None, source: None };
        self.note_retained(message, kept.as_ref(), retained);
    }

    /// Whether the publisher's connection ends with what is not accepted, so that it comes again.
    fn is_sent_again(&self, message: &MessageRef<'_>) -> bool {
        let publisher = message.publisher.filter(|publisher| publisher.shard() == self.shard);
        let session = publisher.and_then(|publisher| self.sessions.get(publisher.key()));
        session.is_some_and(|session| session.config.ends_at_refusal)
    }

    /// There is no memory for it: whether that may change.
    #[cold]
    pub(super) fn refused(&mut self, now: Instant, message: &MessageRef<'_>) -> Outcome {
        let is_too_large = message.charge_bytes() > self.shared.budget().limit();
        let publisher = message.publisher.filter(|publisher| publisher.shard() == self.shard);
        let session = publisher.and_then(|publisher| self.sessions.get(publisher.key()));
        let sends_again = |session: &&Session| is_too_large && session.config.ends_at_refusal;
        let Some(session) = session.filter(sends_again) else { return Outcome::Refused };
        if let Some(count) = self.too_large.add(now, 1) {
            tracing::warn!(client = %session.client_id, topic = %message.topic, payload_bytes = message.payload.len(),
                bytes = message.charge_bytes(), bytes_max = self.shared.budget().limit(), count,
                "refused for good: the message is larger than mqtt.payload_bytes_max; `count` has such messages since the last such line");
        }
        if let Some(connection) = session.connection.and_then(|key| self.connections.get_mut(key)) {
            connection.note_denied(message.topic);
        }
        Outcome::TooLarge
    }

    /// It goes to current subscribers, and to no later ones.
    #[cold]
    fn note_unretained(&mut self, message: &MessageRef<'_>) {
        self.statistics.refused += 1;
        if !std::mem::replace(&mut self.told_unretained, true) {
            tracing::warn!(topic = %message.topic, retained = self.shared.retained_count(),
                "delivered but not retained: there are as many retained messages as may be, or its identity has its share of them; others like it are only counted");
        }
    }

    /// Whether a subscriber cannot be handed the message at once.
    fn somebody_must_wait(&self, route: &Route, message: &MessageRef<'_>) -> bool {
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
        message: &MessageRef<'_>,
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
            let (is_repeated, group) = (false, target.group.clone());
            let delivery = Delivery { message, qos, retain, packet_id, is_repeated, group };
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
                begun: packet_id,
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

/// Whether a message may be copied into the output now: it is small, and nothing waits that it must not overtake.
#[inline]
fn goes_at_once(
    connection: &Connection,
    session: &Session,
    route: &Route,
    message: &MessageRef<'_>,
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
        && !session.is_large(message.payload.len(), route.large_bytes)
}
