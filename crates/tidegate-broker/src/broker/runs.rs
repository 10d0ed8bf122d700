//! Messages of one bundle that go to one client as one: held, handed out and acknowledged together.
//!
//! That is the road where nothing asks for more: their only subscriber is handed messages [as they are](crate::SessionConfig::hands_out)
//! and has nothing that waits before them, nothing is written down, none of them is retained, expires, is large or is for a shared
//! subscription alone, and operators look
//! at none. All else goes message by message, with the same outcome.
//!
//! Always true: a run that is not acknowledged when its connection ends comes again to its session, message by message, under the same
//! identifiers.

use std::{array, sync::Arc};

use tidegate_message::Instant;
use tidegate_schedule::Class;
use tidegate_wire::mqtt::{Ack, AckKind, PacketId, QoS, ReasonCode};

use super::{
    Broker, ConnectionKey,
    conversation::Conversation,
    deliver::OUTBOX_BYTES,
    mark_dirty,
    outgoing::inflight_window,
    publish::{NEAR, allowed_route},
};
use crate::{
    budget::Budget,
    bundle::{BundleReader, Publication},
    inflight::Awaits,
    message::{Body, MessageRef},
    outbox::Handed,
    queue::{Held, Ids, Queued},
    reach::Reach,
    session::Session,
    session_state::SessionKey,
    slab::Key,
};

/// A bundle is held whole as long as any of it is: of its memory, a run has at least one in so many bytes.
const SHARE_MIN: usize = 8;

/// Deliveries that are needed no more, by consecutive identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The first identifier.
    pub first: PacketId,
    /// Identifiers, with the first.
    pub count: u16,
}

impl Acknowledged {
    /// Puts an identifier behind the others: to the last of them, if it follows that.
    pub fn push(all: &mut Vec<Self>, id: PacketId) {
        match all.last_mut() {
            Some(last) if last.first.checked_add(last.count) == Some(id) => last.count += 1,
            _ => all.push(Self { first: id, count: 1 }),
        }
    }
}

/// The connection that publishes a bundle.
#[derive(Clone, Copy)]
struct Publisher {
    key: Key,
    session: SessionKey,
    reach: Reach,
}

/// Where a message goes that may be of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Leads {
    to: SessionKey,
    qos: QoS,
}

/// So many messages were looked at that are not published as one.
struct InVain(usize);

/// Room that a subscriber has now.
struct Room {
    messages: usize,
    payload_bytes: u64,
}

impl Broker {
    /// Publishes the next messages of a bundle that a client of this process handed over, about `bytes_max` bytes of them, as if they
    /// had come in PUBLISH packets; how many bytes they had, none if the connection ends. They are acknowledged at
    /// [`Broker::end_publications`], all by one PUBACK, if its session
    /// [acknowledges through](crate::SessionConfig::acknowledges_through).
    pub fn receive_bundle(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        bundle: &mut BundleReader,
        bytes_max: usize,
    ) -> Option<usize> {
        let mut bytes = 0;
        while !bundle.is_empty() && bytes < bytes_max {
            let mut alone = match self.publish_run(now, key, bundle, bytes_max - bytes) {
                Ok(taken) => {
                    bytes += taken;
                    continue;
                }
                Err(InVain(count)) => count.max(1).div_ceil(NEAR),
            };
            while alone > 0 && !bundle.is_empty() {
                let mut rest = bundle.rest();
                let near: [_; NEAR] = array::from_fn(|_| rest.next().unwrap_or(Publication::NONE));
                let near = &near[..bundle.len().min(NEAR)];
                if self.receive_publications(now, key, near) < near.len() {
                    return None;
                }
                bytes += near.iter().map(Publication::bytes).sum::<usize>();
                let count = near.len();
                bundle.pass(count);
                alone -= 1;
            }
        }
        Some(bytes)
    }

    /// Publishes the next messages of a bundle as one, if they may be; how many bytes they had.
    ///
    /// # Errors
    /// They may not.
    fn publish_run(
        &mut self,
        now: Instant,
        key: Key,
        bundle: &mut BundleReader,
        bytes_max: usize,
    ) -> Result<usize, InVain> {
        let (publisher, leads, room) = self.begin_run(now, key, bundle).ok_or(InVain(0))?;
        // No short rest is left.
        let bytes_max = if bundle.bytes() / 2 <= bytes_max { usize::MAX } else { bytes_max };
        let (mut count, mut bytes, mut payload_bytes) = (0, 0, 0);
        let mut last_id = PacketId::MIN;
        let mut rest = bundle.rest();
        'run: while rest.len() > 0 && bytes < bytes_max {
            let near = rest.clone().take(NEAR).map(|publication| publication.topic);
            self.routes.fetch::<NEAR>(near, publisher.reach);
            for publication in rest.by_ref().take(NEAR) {
                let more = payload_bytes + publication.payload.len() as u64;
                let has_room = count < room.messages && more <= room.payload_bytes;
                if !has_room || self.leads(publisher, &publication) != Some(leads) {
                    break 'run;
                }
                count += 1;
                bytes += publication.bytes();
                payload_bytes = more;
                last_id = publication.id;
            }
        }
        if count == 0 || BundleReader::memory(count, bytes) * SHARE_MIN < bundle.capacity().0 {
            return Err(InVain(count));
        }
        let budget = self.shared.budget();
        let run = bundle.take_run(count, now, leads.qos, |bytes| budget.charge(bytes));
        let run = run.ok_or(InVain(count))?;

        let session = self.sessions.get_mut(leads.to.key()).expect("it has room");
        let at = session.connection.expect("it has room");
        let connection = self.connections.get_mut(at).expect("it has room");
        let mut rest = Some(run);
        while let Some(mut run) = rest.take() {
            if leads.qos > QoS::AtMostOnce {
                rest = session.inflight.begin_run(&mut run);
                connection.unacknowledged += run.len() as u16;
            }
            connection.outbox.hand(Handed::Run(run));
        }
        connection.schedule.started(now, Class::Small, payload_bytes);
        mark_dirty(at, connection, &mut self.dirty);
        let (messages, statistics) = (count as u64, &mut self.statistics);
        statistics.received += messages;
        statistics.received_bytes += payload_bytes;
        statistics.sent += messages;
        statistics.packets_sent += messages;
        statistics.sent_bytes += payload_bytes;
        self.acknowledge(key, AckKind::Puback, last_id, ReasonCode::SUCCESS);
        Ok(bytes)
    }

    /// The connection of a bundle, and where its next message leads to, if some may be published as one from there
    /// on.
    fn begin_run(
        &mut self,
        now: Instant,
        key: Key,
        bundle: &BundleReader,
    ) -> Option<(Publisher, Leads, Room)> {
        let publisher = self.connections.get_mut(key)?;
        let budget = self.shared.budget();
        let (capacity, is_charged) = bundle.capacity();
        if publisher.drains
            || publisher.is_closing
            || !publisher.acknowledges_through
            || !self.pending.is_empty()
            || self.shared.some_full()
            || !is_charged && budget.used().saturating_add(capacity as u64) > budget.limit()
        {
            return None;
        }
        publisher.last_heard = now;
        let session = SessionKey::new(self.shard as u8, publisher.session?);
        let publisher = Publisher { key, session, reach: publisher.reach };
        let leads = self.leads(publisher, &bundle.rest().next()?)?;
        let room = self.room(leads)?;
        Some((publisher, leads, room))
    }

    /// To whom a message may go as one of a run.
    #[inline]
    fn leads(&mut self, by: Publisher, publication: &Publication<'_>) -> Option<Leads> {
        let Publisher { key, session: own, reach } = by;
        if publication.retain
            || publication.message_expiry.is_some()
            || !publication.group.is_empty()
        {
            return None;
        }
        let looked_up;
        let route = match self.routes.decided(&self.shared, key, publication.topic, reach) {
            Some((route, true)) => route,
            Some((_, false)) => return None,
            None => {
                // Of this publisher for the first time; an invalid topic is reported where the message goes by
                // itself.
                let topic = std::str::from_utf8(publication.topic).ok()?;
                let from = Conversation::find(&mut self.connections, &mut self.sessions, key)?;
                let (routes, outputs) = (&mut self.routes, &mut self.outputs);
                looked_up = allowed_route(from, topic, routes, &self.shared, outputs).ok()??;
                &looked_up
            }
        };
        let target = route.sole(self.shard)?;
        let qos = publication.qos.min(QoS::AtLeastOnce).min(target.qos);
        let is_written = self.keeper.is_some() && qos > QoS::AtMostOnce;
        let is_allowed = self.shared.authorize().receives_all() || target.is_known_allowed();
        if is_written || !is_allowed || target.session == own || !target.ids(Some(own)).is_empty() {
            return None;
        }
        let session = self.sessions.get(target.session.key())?;
        let leads = Leads { to: target.session, qos };
        if publication.bytes() > self.shared.config().copy_bytes_max
            || session.is_large(publication.payload.len(), route.large_bytes)
        {
            return None;
        }
        if self.admission.is_some() {
            let topic = route.topic.clone();
            if self.admission.as_mut().is_some_and(|admission| admission.concerns(&topic)) {
                return None;
            }
        }
        Some(leads)
    }

    /// Room that a subscriber has now, if it may be handed runs.
    fn room(&self, leads: Leads) -> Option<Room> {
        let session = self.sessions.get(leads.to.key())?;
        let connection = self.connections.get(session.connection?)?;
        let outbox = &connection.outbox;
        let is_open = outbox.hands_out()
            && !outbox.is_held_up()
            && outbox.data_bytes() < OUTBOX_BYTES
            && !connection.is_closing
            && !connection.is_blocked
            && connection.resend.is_empty()
            && session.queue.is_empty();
        if !is_open {
            return None;
        }
        if leads.qos == QoS::AtMostOnce {
            return Some(Room { messages: usize::MAX, payload_bytes: u64::MAX });
        }
        let messages = connection.receive_maximum.saturating_sub(connection.unacknowledged);
        let payload_bytes = inflight_window(connection).saturating_sub(session.inflight.bytes());
        Some(Room { messages: messages.into(), payload_bytes })
    }

    /// The client that is [handed](crate::SessionConfig::hands_out) deliveries as they are needs these no more, as if a PUBACK had
    /// come for each.
    pub fn acknowledge_deliveries(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        acknowledged: &[Acknowledged],
    ) {
        for Acknowledged { first, count } in acknowledged {
            let (mut at, mut left) = (Some(*first), *count);
            while let Some(id) = at.filter(|_| left > 0) {
                let Some(ended) = self.acknowledge_delivery(now, key, id, left) else { return };
                at = id.checked_add(ended);
                left -= ended;
            }
        }
    }

    /// Ends the exchange of that identifier, and those of its run that follow it, at most `most`; how many they are, none if the
    /// connection is over.
    fn acknowledge_delivery(
        &mut self,
        now: Instant,
        key: Key,
        id: PacketId,
        most: u16,
    ) -> Option<u16> {
        let connection = self.connections.get_mut(key).filter(|c| !c.is_closing)?;
        let session = self.sessions.get_mut(connection.session?)?;
        connection.last_heard = now;
        let ended = session.inflight.end_run(id, most);
        if ended == 0 {
            self.ended(now, key, &Ack::new(id, ReasonCode::SUCCESS), Awaits::Puback);
            return Some(1);
        }
        connection.unacknowledged = connection.unacknowledged.saturating_sub(ended);
        if !session.queue.is_empty() {
            mark_dirty(key, connection, &mut self.dirty);
        }
        self.end_drained(key);
        Some(ended)
    }
}

/// Keeps the messages of runs that are not acknowledged one by one.
pub(super) fn part(session: &mut Session, budget: &Budget) {
    let config = session.config.clone();
    session.inflight.part_runs(|publication, run| {
        let topic = std::str::from_utf8(publication.topic).expect("it was routed, as text");
        let (topic, payload) = (&Arc::from(topic), Body::Read(publication.payload));
        let message = MessageRef {
            forwarded: publication.forwarded,
            qos: publication.qos.min(QoS::AtLeastOnce),
            ..MessageRef::new(topic, payload, run.received())
        };
        // The bundle's memory is given back once its last run is parted.
        let charge = budget.charge_beyond(message.charge_bytes());
        let held = Held::Memory(message.hold_charged(charge));
        let (since, overflow) = (run.received(), config.overflow_of(run.qos()));
        Queued::new(held, run.qos(), false, Ids::None, since, overflow)
    });
}
