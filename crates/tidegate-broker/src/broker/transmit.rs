//! The bytes to send next on one connection.

use std::{io::IoSlice, sync::Arc, time::Duration};

use tidegate_message::Instant;
use tidegate_schedule::{Backlog, Class, LinkState, Next, Policy, Waiting};
use tidegate_wire::mqtt::{AckKind, PacketId, PublishHead, QoS, ReasonCode, stamp::Stamped};

use super::{
    Broker, ConnectionKey,
    conversation::{Conversation, ConversationRef},
    durable_acks::NoRoom,
    journal_writer::checkpoint::RETRY,
    journal_writer::done,
    mark_dirty,
    outgoing::{Outgoing, append, may_begin},
};
use crate::{
    accounts::Account,
    budget::{Budget, Charge},
    config::TopicConfig,
    connection::{Connection, Query, Resend, Stall},
    inflight::Awaits,
    message::{Body, Message, MessageRef},
    outbox::{Delivery, Handed, Leaving, SLICES_MAX},
    queue::{Held, Ids, Queued},
    scans::{FoundRetained, Reached},
    slab::Key,
    timers::Timer,
};

/// Most bytes of one write, and the kernel's limit on unsent bytes (TCP_NOTSENT_LOWAT). A longer write would put more
/// there than the schedule can take back.
pub const WRITE_BYTES_MAX: usize = 16 << 10;

/// Bytes of output that each connection may have outside the node's budget: [`WRITE_BYTES_MAX`] and a message copied
/// behind that, in a buffer that grew to its next power of two.
const OUTPUT_OWN_BYTES: u64 = 2 * WRITE_BYTES_MAX as u64;

/// Retained messages that are looked at in one go.
const RETAINED_STEP: usize = 512;
/// Messages that wait before more retained ones are looked up.
const RETAINED_QUEUE: usize = 64;

enum Step {
    More,
    Enough,
}

impl Broker {
    /// Whether the shell should read the kernel's view of the connection before it asks what leaves: where a large message
    /// waits, and at times for a policy that judges by it.
    pub fn wants_link(&self, now: Instant, key: ConnectionKey) -> bool {
        self.connections.get(key).is_some_and(|connection| {
            let session = connection.session.and_then(|key| self.sessions.get(key));
            !connection.outbox.is_sending()
                && (session.is_some_and(|session| session.queue.has_large())
                    || connection.schedule.look_due(now))
        })
    }

    /// The kernel's state of the connection.
    pub fn set_link(&mut self, now: Instant, key: ConnectionKey, link: LinkState) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.link = link;
            connection.schedule.looked(now, link);
        }
    }

    /// The next bytes to send, at most [`WRITE_BYTES_MAX`]; the caller writes them and reports by
    /// [`Broker::transmitted`].
    pub fn transmit<'a>(
        &'a mut self,
        now: Instant,
        key: ConnectionKey,
        slices: &mut [IoSlice<'a>; SLICES_MAX],
    ) -> usize {
        let Some(connection) = self.connections.get(key) else { return 0 };
        if connection.opens_after.is_some() {
            return 0;
        }
        if !connection.outbox.hands_out() {
            self.prepare_all(now, key);
        }
        let Some(connection) = self.connections.get(key) else { return 0 };
        connection.outbox.slices(WRITE_BYTES_MAX, slices)
    }

    /// Moves messages into the output, up to [`WRITE_BYTES_MAX`] bytes.
    fn prepare_all(&mut self, now: Instant, key: Key) {
        self.fetch(now, key);
        loop {
            self.fetch_retained(now, key);
            while let Step::More = self.prepare(now, key) {}
            // All that was fetched may have been too large or too old.
            if !self.must_fetch(key) {
                break;
            }
        }
    }

    /// Puts the next messages for a client that is [handed](crate::SessionConfig::hands_out) them as they are behind `out`; those of
    /// QoS 1 and 2 come again until their acknowledgement was received.
    pub fn take_deliveries(&mut self, now: Instant, key: ConnectionKey, out: &mut Vec<Handed>) {
        let takes = |connection: &Connection| {
            connection.outbox.hands_out() && connection.opens_after.is_none()
        };
        if !self.connections.get(key).is_some_and(takes) {
            return;
        }
        self.prepare_all(now, key);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.outbox.take_handed(out);
        }
    }

    /// Messages of QoS 0 that were handed out are needed no more: their memory is used again for new ones, unless others hold them.
    pub fn reuse(&mut self, messages: &mut Vec<Arc<Message>>) {
        messages.drain(..).for_each(|message| self.message_pool.put(message));
    }

    /// The client accepts no more deliveries for now, or accepts them again; other packets are not affected.
    pub fn hold_up_deliveries(&mut self, key: ConnectionKey, is_held_up: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.outbox.hold_up(is_held_up);
        if !is_held_up {
            mark_dirty(key, connection, &mut self.dirty);
        }
    }

    /// The client reaches nobody to hand messages to, or does again: shared subscriptions choose others then, where there are.
    pub fn set_away(&mut self, key: ConnectionKey, is_away: bool) {
        if let Some(Conversation { session, .. }) = self.conversation(key) {
            session.state.is_away.store(is_away, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The other node of a peer session may have lost what it had: it is sent all retained messages of its subscriptions once more.
    pub fn repeat_retained(&mut self, now: Instant, key: ConnectionKey) {
        let met = Conversation::find(&mut self.connections, &mut self.sessions, key);
        let Some(Conversation { connection, session, .. }) = met else { return };
        if session.config.is_of_node() {
            session.owe_retained(now);
            mark_dirty(key, connection, &mut self.dirty);
        }
    }

    /// `bytes` of what was handed out were written; `blocked` if the kernel takes no more for now.
    pub fn transmitted(&mut self, now: Instant, key: ConnectionKey, bytes: usize, blocked: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.outbox.advance(bytes, &mut self.buffers);
        self.statistics.stream_bytes_sent += bytes as u64;
        connection.is_blocked = blocked;
        let written = connection.outbox.written();
        if connection.query.as_mut().is_some_and(|query| query.leaves(now, written)) {
            connection.schedule.query_sent(now);
        }
        if let Some(timed) = &mut connection.timed {
            timed.leaves(now, written);
        }
        if blocked {
            self.charge_output(key);
            self.watch_stall(now, key);
        } else {
            connection.output_charge = None;
            connection.stall = None;
        }
    }

    /// Looks at a connection that the kernel takes nothing from when that has lasted, if it holds memory that others may need.
    fn watch_stall(&mut self, now: Instant, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let holds = connection.outbox.is_sending() || connection.output_charge.is_some();
        let written = connection.outbox.written();
        if !holds || connection.stall.is_some_and(|stall| stall.written == written) {
            return;
        }
        let refusals = self.shared.refusals();
        connection.stall = Some(Stall { written, looked_at: now, refusals });
        self.watch_silence(key);
    }

    /// Holds what waits in the output of a connection that the kernel takes nothing from within the node's budget, or ends the
    /// connection. Output from one pass over the queue is each connection's own: a client that drains a queue that fills the
    /// budget must be able to.
    pub(super) fn charge_output(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let bytes = connection.outbox.capacity() as u64;
        let charged = connection.output_charge.as_ref().map_or(0, Charge::bytes);
        if bytes == charged {
            return;
        }
        connection.output_charge = None;
        if bytes <= OUTPUT_OWN_BYTES {
            return;
        }
        let session = connection.session.and_then(|key| self.sessions.get(key));
        let account = session.and_then(|session| session.account.as_ref());
        let may = account.is_none_or(|account| self.shared.share_allows(account, true, bytes));
        // No other client gives anything for one that does not read.
        connection.output_charge = may
            .then(|| self.shared.budget().charge(bytes))
            .flatten()
            .map(|charge| charge.of(account));
        if connection.output_charge.is_none() {
            let text = "the node's memory is full, and this client does not read";
            self.disconnect(key, ReasonCode::QUOTA_EXCEEDED, Some(text));
        }
    }

    /// The kernel takes bytes again.
    pub fn writable(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.is_blocked = false;
        let session = connection.session.and_then(|key| self.sessions.get(key));
        let waits = session.is_some_and(|s| !s.queue.is_empty() || !s.retained.is_empty());
        if waits || !connection.outbox.is_empty() || !connection.resend.is_empty() {
            mark_dirty(key, connection, &mut self.dirty);
        }
    }

    /// Whether anything is left to be written on a connection.
    pub fn is_flushed(&self, key: ConnectionKey) -> bool {
        self.connections.get(key).is_none_or(|connection| connection.outbox.is_empty())
    }

    /// Moves one message from the queue into the output, if there is room and it may leave.
    fn prepare(&mut self, now: Instant, key: Key) -> Step {
        let Some(connection) = self.connections.get_mut(key) else { return Step::Enough };
        if connection.outbox.is_sending()
            || connection.outbox.is_held_up()
            || connection.outbox.data_bytes() >= WRITE_BYTES_MAX
            || connection.is_closing
        {
            return Step::Enough;
        }
        let Some(session_key) = connection.session else { return Step::Enough };
        if let Some(&resend) = connection.resend.front() {
            return if Self::may_send(self.keeper.as_deref(), &resend) {
                self.send_again(now, key, session_key, resend)
            } else {
                self.begin_ahead(now, key, session_key)
            };
        }
        let session = self.sessions.get_mut(session_key).expect("a connection's session is there");
        if session.queue.is_empty() {
            connection.schedule.no_large();
            return Step::Enough;
        }
        let may_leave = |queued: &Queued, class: Class| {
            queued.qos == QoS::AtMostOnce
                || may_begin(connection, session, queued.payload_bytes(), class == Class::Large)
        };
        let small = session.queue.small().filter(|queued| may_leave(queued, Class::Small));
        let large = session.queue.large().filter(|queued| may_leave(queued, Class::Large));
        // Without a policy all are in the small class.
        let next = if large.is_none() {
            connection.schedule.no_large();
            if small.is_some() { Next::Small } else { Next::Wait(None) }
        } else {
            let bytes = |queued: &Queued| queued.payload_bytes() as u64;
            let backlog = Backlog {
                small_bytes: small.map_or(0, |queued| bytes(queued).max(1)),
                large: large.map(|queued| Waiting { bytes: bytes(queued), since: queued.since }),
            };
            connection.schedule.next(now, backlog, connection.link)
        };
        match next {
            Next::Small => self.begin(now, key, session_key, Class::Small),
            // Small packets that wait in the output go first.
            Next::Large if connection.outbox.data_bytes() > 0 => Step::Enough,
            Next::Large => self.begin(now, key, session_key, Class::Large),
            Next::Wait(at) => {
                // While small packets wait in the output, that they leave brings it back here.
                if let Some(at) = at.filter(|_| connection.outbox.data_bytes() == 0) {
                    self.wake_at(key, at);
                }
                Step::Enough
            }
        }
    }

    /// Looks at a connection again at that time.
    pub(super) fn wake_at(&mut self, key: Key, at: Instant) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.wakes_at.is_none_or(|set| at < set) {
            self.timers.cancel(connection.wakes_at.replace(at), Timer::Wake(key));
            self.timers.set(at, Timer::Wake(key));
        }
    }

    /// Begins the first message of a class.
    fn begin(&mut self, now: Instant, key: Key, session_key: Key, class: Class) -> Step {
        let copy_bytes_max = self.shared.config().copy_bytes_max;
        let own = self.session_key(session_key);
        let Conversation { connection, session, .. } =
            Conversation::of(&mut self.connections, &mut self.sessions, key);
        let first = match class {
            Class::Small => session.queue.small(),
            Class::Large => session.queue.large(),
        };
        let copied = connection.outbox.hands_out()
            || first.is_some_and(|queued| queued.payload_bytes() <= copy_bytes_max);
        if !copied && connection.outbox.data_bytes() > 0 {
            return Step::Enough;
        }
        let mut begun = None;
        if let Some(queued) = first.filter(|queued| queued.qos == QoS::ExactlyOnce) {
            let (number, id) = (queued.number, session.inflight.next_id());
            match Self::write_begun(&mut self.keeper, session, key, number, id) {
                Ok(waits) => begun = Some((id, waits)),
                Err(NoRoom) => {
                    self.wake_at(key, now + RETRY);
                    return Step::Enough;
                }
            }
        }
        let queued = match class {
            Class::Small => session.queue.pop_small(),
            Class::Large => session.queue.pop_large(),
        };
        let queued = queued.expect("the caller saw it");
        let behind = session.note_behind(&self.shared);
        let released = if behind { Vec::new() } else { std::mem::take(&mut session.blocks) };
        let bytes = queued.payload_bytes();
        if queued.begun().is_expired(now) {
            session.dropped.expired += 1;
            self.statistics.dropped.expired += 1;
            done(&mut self.keeper, session, queued.number);
        } else if !session.may_still_have(self.shared.authorize(), queued.message.topic()) {
            if queued.group.is_some() {
                self.pass_on(now, session_key, queued);
            } else {
                session.dropped.not_allowed += 1;
                self.statistics.dropped.not_allowed += 1;
                done(&mut self.keeper, session, queued.number);
            }
        } else {
            let is_kept =
                queued.qos > QoS::AtMostOnce && (session.is_kept() || queued.group.is_some());
            let is_by_reference = !copied && !is_kept;
            let account = session.account.clone().filter(|_| is_by_reference);
            let message = queued.begun().borrowed();
            let outgoing = Outgoing {
                message: &message,
                qos: queued.qos,
                retain: queued.retain,
                dup: false,
                ids: queued.ids.as_slice(),
            };
            if !outgoing.fits(connection, now) {
                session.dropped.too_large += 1; // MQTT-3.1.2-25
                self.statistics.dropped.too_large += 1;
                done(&mut self.keeper, session, queued.number);
            } else if is_by_reference && session.is_over_share_as_it_leaves(&self.shared, &queued) {
                session.dropped.budget_full += 1;
                self.statistics.dropped.budget_full += 1;
                if queued.qos > QoS::AtMostOnce {
                    let text = "its user has its share of the node's memory, and this client does not read";
                    self.disconnect(key, ReasonCode::QUOTA_EXCEEDED, Some(text));
                }
            } else {
                let packet_id = (queued.qos > QoS::AtMostOnce).then(|| {
                    let kept = is_kept.then(|| Box::new(queued.clone()));
                    let id = begun.map_or_else(|| session.inflight.next_id(), |(id, _)| id);
                    let is_large = class == Class::Large;
                    session.inflight.begin_as(id, queued.qos, bytes, is_large, kept);
                    id
                });
                if let Some(id) = packet_id
                    && queued.qos == QoS::AtLeastOnce
                {
                    Self::write_first_sent(&mut self.keeper, session, queued.number, id);
                }
                if let Some((_, Some(resend))) = begun {
                    // Sent once that is durable.
                    connection.resend.push_back(resend);
                    self.release(released, own);
                    return Step::More;
                }
                if let Some(id) = packet_id {
                    connection.unacknowledged += 1;
                    session.inflight.note_sent(id);
                }
                write_message(
                    connection,
                    &mut self.buffers,
                    &outgoing,
                    &queued,
                    now,
                    packet_id,
                    (copied, account.as_ref()),
                );
                connection.time(now, queued.qos, packet_id, bytes);
                if session.config.policy != Policy::None {
                    let before = connection.schedule.withheld().messages;
                    connection.schedule.started(now, class, bytes as u64);
                    self.statistics.withheld += connection.schedule.withheld().messages - before;
                }
                self.statistics.sent += 1;
                self.statistics.packets_sent += 1;
                self.statistics.sent_bytes += bytes as u64;
            }
        }
        self.release(released, own);
        self.end_drained(key);
        Step::More
    }

    /// Begins another QoS 2 message while those before it wait for the disk, so that they wait together.
    #[cold]
    fn begin_ahead(&mut self, now: Instant, key: Key, session_key: Key) -> Step {
        let ConversationRef { connection, session, .. } = self.met(key);
        let places = usize::from(connection.receive_maximum);
        let open = usize::from(connection.unacknowledged) + connection.resend.len();
        let waits = |queued: &&Queued| queued.qos == QoS::ExactlyOnce && queued.number > 0;
        let next = session.queue.small().filter(waits).filter(|queued| {
            open < places && may_begin(connection, session, queued.payload_bytes(), false)
        });
        if next.is_some() { self.begin(now, key, session_key, Class::Small) } else { Step::Enough }
    }

    /// Sends what waited for the disk, or repeats an exchange that a former connection did not end (MQTT-4.4.0-1).
    fn send_again(&mut self, now: Instant, key: Key, session_key: Key, resend: Resend) -> Step {
        let Resend { id, is_repeated, .. } = resend;
        let copy_bytes_max = self.shared.config().copy_bytes_max;
        let Conversation { connection, session, .. } =
            Conversation::of(&mut self.connections, &mut self.sessions, key);
        let Some(entry) = session.inflight.entries().find(|entry| entry.id == id) else {
            connection.resend.pop_front();
            return Step::More;
        };
        if connection.unacknowledged >= connection.receive_maximum {
            return Step::Enough;
        }
        if entry.awaits == Awaits::Pubcomp {
            connection.unacknowledged += 1;
            connection.resend.pop_front();
            self.acknowledge(key, AckKind::Pubrel, id, ReasonCode::SUCCESS);
            return Step::More;
        }
        if let Some(queued) = &entry.kept {
            let copied = connection.outbox.hands_out() || queued.payload_bytes() <= copy_bytes_max;
            if !copied && connection.outbox.data_bytes() > 0 {
                return Step::Enough;
            }
            let message = queued.begun().borrowed();
            let outgoing = Outgoing {
                message: &message,
                qos: queued.qos,
                retain: queued.retain,
                dup: entry.is_sent,
                ids: queued.ids.as_slice(),
            };
            // An exchange that an earlier connection began may have been allowed by rules of its time.
            let authorize = self.shared.authorize();
            let topic = queued.message.topic();
            let is_allowed = match is_repeated {
                true => session.may_have(authorize, topic),
                false => session.may_still_have(authorize, topic),
            };
            // This connection may take less than the one before (MQTT-3.1.2-25).
            let fits = outgoing.fits(connection, now);
            if !is_allowed || !fits {
                let awaits = entry.awaits;
                let mut kept = session.inflight.end(id, awaits).flatten();
                connection.resend.pop_front();
                if !is_allowed
                    && awaits == Awaits::Puback
                    && let Some(queued) = kept.take_if(|queued| queued.group.is_some())
                {
                    self.pass_on(now, session_key, *queued);
                    return Step::More;
                }
                let number = kept.map_or(0, |queued| queued.number);
                done(&mut self.keeper, session, number);
                let count = u64::from(is_allowed);
                for dropped in [&mut session.dropped, &mut self.statistics.dropped] {
                    dropped.too_large += count;
                    dropped.not_allowed += 1 - count;
                }
                return Step::More;
            }
            write_message(
                connection,
                &mut self.buffers,
                &outgoing,
                queued,
                now,
                Some(id),
                (copied, None),
            );
            self.statistics.sent += 1;
            self.statistics.packets_sent += 1;
            self.statistics.sent_bytes += queued.payload_bytes() as u64;
            session.inflight.note_sent(id);
        }
        connection.unacknowledged += 1;
        connection.resend.pop_front();
        Step::More
    }

    /// Whether retained messages are owed and nothing is there that would call for them.
    fn must_fetch(&self, key: Key) -> bool {
        self.conversation_ref(key).is_some_and(|it| {
            it.connection.outbox.is_empty()
                && it.connection.resend.is_empty()
                && !it.connection.is_closing
                && it.session.queue.is_empty()
                && !it.session.retained.is_empty()
        })
    }

    /// Looks up more of the retained messages that new subscriptions are owed, once those before have left.
    fn fetch_retained(&mut self, now: Instant, key: Key) {
        let Some(session_key) = self.session_of(key) else { return };
        self.queue_retained(now, session_key);
        self.watch_lapse(session_key);
    }

    fn queue_retained(&mut self, now: Instant, session_key: Key) {
        let Some(session) = self.sessions.get_mut(session_key) else { return };
        if session.config.is_of_node()
            && session.retained.is_empty()
            && session.retained.made_up != session.missed_of_peer()
        {
            // A message that was dropped may have been the last value of its topic.
            session.retained.made_up = session.missed_of_peer();
            session.owe_retained(now);
        }
        let mut topics = None;
        while let Some(mut scan) = session.retained.pop() {
            // By the rules of now, which are looked at before the messages are.
            let reached = Reached {
                rules: self.shared.authorize().generation(),
                missed: session.missed(),
                connected_from: session.retained.connected_from,
                is_peer: session.config.is_peer,
                is_leaf: session.config.leaf.is_some(),
            };
            while let Some(found) = scan.found.pop_front() {
                // It may be retained no more, or another in its place: an old one must not follow one that went to all subscribers.
                let store = self.shared.retained();
                let found = match store.get(&found.message.topic) {
                    Some(kept) if Arc::ptr_eq(&kept.message, &found.message) => found,
                    Some(kept)
                        if !kept.message.is_expired(now)
                            && scan.owes(kept, &session.client_id, reached) =>
                    {
                        FoundRetained::of(kept)
                    }
                    _ => continue,
                };
                drop(store);
                let message = &found.message;
                // They wait here rather than in the queue, whose overflow is for those who do not keep up.
                let config = &session.config;
                let has_room = session.queue.is_empty()
                    || (session.queue.len() < RETAINED_QUEUE.min(config.queue_messages_max)
                        && session.queue.bytes() + message.charged() <= config.queue_bytes_max);
                if !has_room {
                    scan.found.push_front(found);
                    session.retained.put_back(scan);
                    return;
                }
                // By the rules of now: those of when it was found may be gone.
                let authorize = self.shared.authorize();
                let generation = authorize.generation();
                if !session.may_have(authorize, &message.topic)
                    || self.shared.config().check_retain_source
                        && !found.is_still_allowed(authorize)
                {
                    continue;
                }
                let message = match session.config.is_of_node() {
                    true => repeated(&found.message, self.shared.budget()),
                    false => found.message,
                };
                session.note_allowed(generation);
                let topics = topics.get_or_insert_with(|| self.shared.topics());
                let exception = TopicConfig::of(topics, &message.topic);
                let large_bytes = exception.and_then(|exception| exception.large_bytes);
                let is_large = session.is_large(message.payload.len(), large_bytes);
                let qos = message.qos.min(scan.options.qos);
                let ids = Ids::of(if scan.options.id == 0 {
                    &[]
                } else {
                    std::slice::from_ref(&scan.options.id)
                });
                let overflow = exception.and_then(|exception| exception.overflow);
                let overflow = overflow.unwrap_or_else(|| session.config.overflow_of(qos));
                let mut queued =
                    Queued::new(Held::Memory(message), qos, true, ids, scan.since, overflow);
                if session.number > 0
                    && qos > QoS::AtMostOnce
                    && let Some(keeper) = &mut self.keeper
                {
                    self.numbers.message += 1;
                    queued.number = self.numbers.message;
                    keeper.write_queued(session.number, &queued);
                }
                session.queue.push(queued, is_large);
                session.note_behind(&self.shared);
                if let Some(gives) = self.reclaim_heap.note(session_key, session) {
                    self.shared.note_gives(self.shard, gives);
                }
            }
            if scan.is_done {
                continue;
            }
            let mut expired = Vec::new();
            let mut found = std::mem::take(&mut scan.found);
            let cursor = scan.cursor.take();
            scan.cursor = self.shared.retained().matches_from(
                &scan.filter,
                cursor,
                RETAINED_STEP,
                |_, kept| {
                    if kept.message.is_expired(now) {
                        expired.push(kept.message.clone());
                    } else if scan.owes(kept, &session.client_id, reached) {
                        found.push_back(FoundRetained::of(kept));
                    }
                },
            );
            scan.found = found;
            scan.is_done = scan.cursor.is_none();
            for message in expired {
                self.shared.forget_retained(&message);
            }
            session.retained.put_back(scan);
        }
    }

    /// Sets the first latency query of a connection whose policy wants them, if its session answers them.
    pub(super) fn begin_queries(&mut self, now: Instant, key: Key) {
        let Some(ConversationRef { connection, session, .. }) = self.conversation_ref(key) else {
            return;
        };
        if connection.schedule.policy().paper().is_some() && self.answers_queries(session) {
            let at = connection.schedule.query_at().unwrap_or(now);
            self.wake_at(key, at.max(now));
        }
    }

    /// A timer for this connection.
    pub(super) fn woken(&mut self, now: Instant, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.wakes_at = None;
        mark_dirty(key, connection, &mut self.dirty);
        if connection.schedule.query_at().is_none() {
            return;
        }
        let met = self.conversation_ref(key);
        if !met.is_some_and(|it| self.answers_queries(it.session)) {
            return;
        }
        let Conversation { connection, session, .. } =
            Conversation::of(&mut self.connections, &mut self.sessions, key);
        if connection.schedule.query_due(now)
            && connection.query.is_none()
            && connection.unacknowledged < connection.receive_maximum
            && connection.resend.is_empty()
            && !connection.is_closing
        {
            let bytes = connection.schedule.policy().paper().map_or(0, |paper| paper.query_bytes);
            let mut head = PublishHead {
                dup: false,
                qos: QoS::AtLeastOnce,
                retain: false,
                topic: &self.shared.config().query_topic,
                packet_id: Some(PacketId::MIN),
                topic_alias: None,
                message_expiry: None,
                subscription_ids: &[],
                forwarded: &[],
                payload_bytes: bytes as usize,
            };
            if head.packet_bytes(connection.version) > connection.packet_bytes_max as usize {
                return; // MQTT-3.1.2-24
            }
            let id = session.inflight.begin(QoS::AtLeastOnce, bytes as usize, false, None);
            connection.unacknowledged += 1;
            head.packet_id = Some(id);
            let out = connection.outbox.data(&mut self.buffers);
            head.encode(connection.version, out);
            out.resize(out.len() + bytes as usize, 0);
            connection.query = Some(Query::new(id, bytes as usize, &connection.outbox));
            self.statistics.packets_sent += 1;
        }
        // One that found no place is tried again.
        let period = connection.schedule.policy().paper().map(|paper| paper.query_period);
        let at = connection.schedule.query_at().filter(|_| connection.query.is_none());
        if let (Some(at), Some(period)) = (at, period) {
            self.wake_at(
                key,
                if at > now { at } else { now + period.max(Duration::from_millis(1)) },
            );
        }
    }
}

/// A retained message as another node is sent it: it says that it is no new one.
fn repeated(message: &Arc<Message>, budget: &Budget) -> Arc<Message> {
    let Some(Stamped { stamp, .. }) = Stamped::of(&message.forwarded) else {
        return message.clone();
    };
    let forwarded = Stamped { stamp, is_repeated: true }.put(&message.forwarded);
    let repeated = MessageRef { forwarded: &forwarded, ..message.borrowed() };
    // Few wait at a time: see `RETAINED_QUEUE`.
    repeated.hold_charged(budget.charge_beyond(repeated.charge_bytes()))
}

/// Puts a message into the output: as it is, copied, or by reference where nothing small waits.
fn write_message(
    connection: &mut Connection,
    buffers: &mut crate::outbox::Buffers,
    outgoing: &Outgoing<'_>,
    queued: &Queued,
    now: Instant,
    packet_id: Option<PacketId>,
    (copied, account): (bool, Option<&Arc<Account>>),
) {
    if connection.outbox.hands_out() {
        let message = queued.begun().clone();
        let Outgoing { qos, retain, dup: is_repeated, .. } = *outgoing;
        let group = queued.group.clone();
        let delivery = Delivery { message, qos, retain, packet_id, is_repeated, group };
        connection.outbox.hand(Handed::One(delivery));
    } else if copied {
        let mut out = std::mem::take(connection.outbox.data(buffers));
        outgoing.encode_head(connection, now, packet_id, &mut out);
        append(&Body::Held(&queued.begun().payload), &mut out);
        *connection.outbox.data(buffers) = out;
    } else {
        let mut head = Vec::new();
        outgoing.encode_head(connection, now, packet_id, &mut head);
        let leaving = Leaving::new(queued.begun().clone(), account.cloned());
        connection.outbox.send(head, leaving);
    }
}
