//! Messages from publishers (MQTT 5, section 3.3 and 4.3).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tidegate_journal::Record;
use tidegate_message::{
    Action, Identity, IdentityKind, Instant, Payload, Target, TopicError, topic_matches,
};
use tidegate_wire::mqtt::{
    Ack, AckKind, Packet, PacketId, Publish, PublishProperties, QoS, ReasonCode, Version,
};

use super::{
    Broker, ConnectionKey, Denied, Output,
    accept::Answer,
    conversation::{Conversation, ConversationRef},
    deliver::Outcome,
    known_routes::KnownRoutes,
};
use crate::{
    admission::{Batch, Draft, HOPS_MAX, Verdict},
    budget::Charge,
    bundle::Publication,
    config::SessionConfig,
    connection::{Connection, PassedOver, RECENT_MAX, Receiving, Recent},
    message::{Body, MessageRef},
    reach::Reach,
    routes::Route,
    session_state::SessionKey,
    shared::Shared,
    slab::Key,
};

/// Why a message is refused that is to outlive the process.
const UNKEPT: &str =
    "the server cannot write down what must not be lost: its disk is full or failed";
/// Why a message is refused of whose publisher the server holds too much.
const OVER_SHARE: &str = "this identity has its share of the server's memory for messages (mqtt.identity_share): \
     retained messages, messages for sessions that it left behind, and packets that have not come whole";

/// Messages whose routes are brought near together.
pub(super) const NEAR: usize = 16;

/// Why a connection must end.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) reason: ReasonCode,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn new(reason: ReasonCode, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// A PUBLISH of a client, by which it is answered.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    key: Key,
    /// The client's session, and the number of that in the journal.
    session: SessionKey,
    number: u64,
    qos: QoS,
    packet_id: Option<PacketId>,
}

/// A message of a client that operators look at, and what it is owed for it.
#[derive(Debug)]
pub(super) struct Pending {
    exchange: Exchange,
    charge: Option<Charge>,
    /// The generation of the rules by which its client may publish it.
    rules: u64,
    reach: Reach,
}

/// The session that publishes a draft, and whom its messages are for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Publisher {
    pub(super) session: SessionKey,
    pub(super) reach: Reach,
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug)]
enum Refusal<'a> {
    /// Its publisher may not send to that topic.
    Denied(&'a str),
    /// There is no room for it now.
    NoRoom,
    /// There never will be.
    TooLarge,
    /// For that reason, which a publisher is told where its version can.
    Because(&'static str),
}

impl<'a> Refusal<'a> {
    /// That of a large PUBLISH to `topic`.
    fn of(passed_over: PassedOver, topic: &'a str) -> Self {
        match passed_over {
            PassedOver::Denied => Self::Denied(topic),
            PassedOver::NoRoom => Self::NoRoom,
            PassedOver::OverShare => Self::Because(OVER_SHARE),
        }
    }
}

impl Broker {
    /// A PUBLISH that was read whole.
    #[inline]
    pub(super) fn received_publish(
        &mut self,
        now: Instant,
        key: Key,
        publish: &Publish<'_>,
        last: Option<&Arc<Route>>,
    ) -> Result<(), Fault> {
        let (topic, aliased);
        let publish = if publish.properties.topic_alias.is_some() {
            topic = self.topic_of(key, publish)?;
            aliased = Publish { topic: &topic, ..*publish };
            &aliased
        } else {
            publish
        };
        self.arrived(now, key, publish, last, Ok(None), "")
    }

    /// A large PUBLISH whose last byte has come.
    pub(super) fn received_whole(
        &mut self,
        now: Instant,
        key: Key,
        mut received: Receiving,
    ) -> Result<(), Fault> {
        let payload = received.payload();
        let Receiving {
            topic, qos, retain, packet_id, forwarded: raw, message_expiry, charge, ..
        } = received;
        let properties = PublishProperties { raw: &raw, message_expiry, ..PublishProperties::NONE };
        let (topic, dup) = (&*topic, false);
        let publish = Publish { dup, qos, retain, topic, packet_id, properties, payload: &[] };
        let held = charge.map(|charge| Some((payload, charge.whole())));
        self.arrived(now, key, &publish, None, held, "")
    }

    /// The topic of a PUBLISH, with aliases resolved and noted (section 3.3.2.3.4).
    pub(super) fn topic_of(&mut self, key: Key, publish: &Publish<'_>) -> Result<Arc<str>, Fault> {
        let max = self.shared.config().topic_alias_max;
        let Some(alias) = publish.properties.topic_alias else { return Ok(publish.topic.into()) };
        let alias = alias.get();
        if alias > max {
            let text = format!("topic alias {alias} exceeds the maximum of {max}");
            return Err(Fault::new(ReasonCode::TOPIC_ALIAS_INVALID, text));
        }
        let at = usize::from(alias) - 1;
        let ConversationRef { connection, session, .. } = self.met(key);
        let known = connection.aliases_in.get(at).cloned();
        if publish.topic.is_empty() {
            return known.ok_or_else(|| {
                let text = format!("topic alias {alias} was not defined on this connection");
                Fault::new(ReasonCode::PROTOCOL_ERROR, text)
            });
        }
        if let Some(known) = known.filter(|known| **known == *publish.topic) {
            return Ok(known);
        }
        check_topic(&session.config, publish.topic)?;
        let mut charge = None;
        if connection.aliases_in.are_many(publish.topic.len()) {
            let account = session.account.clone();
            charge = self.charge_in(account.as_ref(), publish.topic.len() as u64);
            if charge.is_none() {
                let text = "no memory is left for the topic of an alias";
                return Err(Fault::new(ReasonCode::QUOTA_EXCEEDED, text));
            }
        }
        let topic: Arc<str> = publish.topic.into();
        self.met_mut(key).connection.aliases_in.set(at, topic.clone(), charge);
        Ok(topic)
    }

    /// Whether the client may publish with that QoS, and to be retained.
    #[inline]
    pub(super) fn check_features(
        connection: &Connection,
        qos: QoS,
        retain: bool,
    ) -> Result<(), Fault> {
        if qos > connection.max_qos {
            // MQTT-3.2.2-11
            let text = format!("QoS {} is not supported here", qos as u8);
            return Err(Fault::new(ReasonCode::QOS_NOT_SUPPORTED, text));
        }
        if retain && !connection.retains {
            // MQTT-3.2.2-14
            let text = "messages cannot be retained here";
            return Err(Fault::new(ReasonCode::RETAIN_NOT_SUPPORTED, text));
        }
        Ok(())
    }

    /// Messages that a client of this process hands over without packets around them, as if they had come in PUBLISH packets; how
    /// many were taken, fewer only if the connection ends. They are acknowledged at [`Broker::end_publications`], all by one
    /// PUBACK, if its session [acknowledges through](crate::SessionConfig::acknowledges_through).
    pub(crate) fn receive_publications(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        publications: &[Publication<'_>],
    ) -> usize {
        let mut taken = 0;
        let Some(reach) = self.connections.get(key).map(|connection| connection.reach) else {
            return taken;
        };
        for some in publications.chunks(NEAR) {
            self.routes.fetch::<NEAR>(some.iter().map(|publication| publication.topic), reach);
            for publication in some {
                if !self.receive_publication(now, key, publication) {
                    return taken;
                }
                taken += 1;
            }
        }
        taken
    }

    fn receive_publication(
        &mut self,
        now: Instant,
        key: Key,
        publication: &Publication<'_>,
    ) -> bool {
        if !publication.group.is_empty() {
            // Operators do not look at it, and nothing goes past what they still look at.
            self.admit(now, key);
        }
        // For each message of a service: its session is not needed here.
        let Some(connection) = self.connections.get_mut(key) else { return false };
        if connection.is_closing || connection.session.is_none() {
            return false;
        }
        connection.last_heard = now;
        let reach = connection.reach;
        if connection.drains {
            // Nothing may be accepted before what was not, of whatever QoS: it is all handed over again.
            self.statistics.received += 1;
            self.statistics.refused += 1;
            return true;
        }
        let arrived = self.arrived_bare(now, key, reach, publication);
        if let Err(fault) = &arrived {
            if self.admission.is_some() {
                // Earlier publications are answered first.
                self.admit(now, key);
            }
            self.end_by(key, fault);
        }
        arrived.is_ok()
    }

    fn arrived_bare(
        &mut self,
        now: Instant,
        key: Key,
        reach: Reach,
        publication: &Publication<'_>,
    ) -> Result<(), Fault> {
        let Publication { topic, payload, forwarded: raw, qos, retain, message_expiry, id, group } =
            *publication;
        let text = |bytes| {
            std::str::from_utf8(bytes)
                .map_err(|error| Fault::new(ReasonCode::MALFORMED_PACKET, error.to_string()))
        };
        let known = self.routes.decided(&self.shared, key, topic, reach);
        let known = known.filter(|(_, allowed)| *allowed).map(|(route, _)| route.clone());
        let topic = match &known {
            Some(route) => &*route.topic,
            None => text(topic)?,
        };
        let properties = PublishProperties { raw, message_expiry, ..PublishProperties::NONE };
        let (dup, qos, packet_id) = (false, qos.min(QoS::AtLeastOnce), Some(id));
        let publish = Publish { dup, qos, retain, topic, packet_id, properties, payload };
        self.arrived(now, key, &publish, known.as_ref(), Ok(None), text(group)?)
    }

    /// Acknowledges the messages handed over since the last call, or as soon as that may be promised.
    pub fn end_publications(&mut self, now: Instant, key: ConnectionKey) {
        self.end_received(now, key);
    }

    /// A message of a client: its payload is in `publish`, or held and charged, or was passed over. `group` is the shared subscription
    /// that it is for alone, empty for none.
    #[inline]
    fn arrived(
        &mut self,
        now: Instant,
        key: Key,
        publish: &Publish<'_>,
        last: Option<&Arc<Route>>,
        held: Result<Option<(Payload, Charge)>, PassedOver>,
        group: &str,
    ) -> Result<(), Fault> {
        let Publish { qos, packet_id, topic, payload, .. } = *publish;
        let bytes = if let Ok(Some((held, _))) = &held { held.len() } else { payload.len() };
        self.statistics.received += 1;
        self.statistics.received_bytes += bytes as u64;
        let from = Conversation::of(&mut self.connections, &mut self.sessions, key);
        let session = SessionKey::new(self.shard as u8, from.session_key);
        let exchange = Exchange { key, session, number: from.session.number, qos, packet_id };
        if let (QoS::ExactlyOnce, Some(id)) = (qos, packet_id) {
            if from.session.is_received(id) {
                // It was received and not released: it is answered again and no more (MQTT-4.3.3-10), and the answer to the first
                // one may still wait for the disk.
                self.depend_on_all();
                self.acknowledge(key, AckKind::Pubrec, id, ReasonCode::SUCCESS);
                return Ok(());
            }
            let mut pending = self.pending.iter().map(|owed| &owed.exchange);
            if pending.any(|other| other.qos == qos && other.packet_id == packet_id) {
                // The one that the operators still look at is answered after that.
                return Ok(());
            }
        }
        let held = match held {
            Ok(held) => held,
            Err(passed_over) => return self.refuse(exchange, Refusal::of(passed_over, topic)),
        };
        if qos == QoS::ExactlyOnce {
            let received = from.session.received.len();
            let max = self.shared.config().receive_maximum;
            let pending = self.pending.iter().filter(|owed| owed.exchange.qos == qos).count();
            if received + pending >= usize::from(max) {
                let text = format!("more than {max} messages of QoS 2 wait for their release");
                return Err(Fault::new(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED, text));
            }
        }
        let answer = Answer::of(from.session, qos);
        // A publisher mostly repeats its topic; the decoder then gives back the very text that the route holds.
        let last = last.filter(|last| {
            std::ptr::eq(&raw const *last.topic, topic)
                && last.generation == self.shared.generation()
        });
        let looked_up;
        let route = match last {
            Some(last) => Some(last),
            None => {
                let (routes, outputs) = (&mut self.routes, &mut self.outputs);
                looked_up = allowed_route(from, topic, routes, &self.shared, outputs)?;
                looked_up.as_ref()
            }
        };
        let chosen = route.filter(|_| !group.is_empty());
        let of_group = chosen.map(|route| route.reach);
        let of_group = of_group.map(|by| self.group_route(topic, group, by));
        match of_group.as_ref().or(route) {
            Some(route) => self.publish_received(now, exchange, answer, route, publish, held),
            None => self.refuse(exchange, Refusal::Denied(topic)),
        }
    }

    /// Where messages of `topic` go that another node has chosen this one for: to members of that shared subscription.
    fn group_route(&mut self, topic: &str, group: &str, by: Reach) -> Arc<Route> {
        let reach = self.shared.routes().reach_of_group(group);
        // No shared subscription has that number, so that there is no subscriber.
        let reach = match (reach.unwrap_or(Reach::Group(0)), by.leaf()) {
            (Reach::Group(number), Some(leaf)) => Reach::LeafGroup(number, leaf),
            (reach, _) => reach,
        };
        self.routes.route(&self.shared, topic, reach)
    }

    /// A message of a client that may send it where `route` leads: it is published, or operators look at it first.
    #[inline]
    fn publish_received(
        &mut self,
        now: Instant,
        exchange: Exchange,
        answer: Answer,
        route: &Arc<Route>,
        publish: &Publish<'_>,
        held: Option<(Payload, Charge)>,
    ) -> Result<(), Fault> {
        let properties = &publish.properties;
        let mut forwarded = Vec::new();
        let forwarded: &[u8] = if properties.all_forwarded {
            properties.raw
        } else {
            properties.forwarded(&mut forwarded);
            &forwarded
        };
        let (payload, charge) = held.unzip();
        let seconds = |seconds: u32| now + Duration::from_secs(u64::from(seconds));
        let message = MessageRef {
            topic: &route.topic,
            payload: payload.as_ref().map_or(Body::Read(publish.payload), Body::Held),
            forwarded,
            qos: publish.qos,
            retain: publish.retain,
            is_from_peer: route.is_of_peers(),
            expires: properties.message_expiry.map(seconds),
            received: now,
            publisher: Some(exchange.session),
        };
        let is_looked_at = match &mut self.admission {
            // Acknowledgements keep the order of messages (MQTT-4.6.0-2), so that nothing goes past what waits.
            Some(admission) if !route.is_of_group() => {
                !self.pending.is_empty() || admission.concerns(&route.topic)
            }
            _ => false,
        };
        if is_looked_at {
            self.batch.drafts.push(message.into());
            let (rules, reach) = (route.made.rules, route.reach);
            self.pending.push(Pending { exchange, charge, rules, reach });
            return Ok(());
        }
        self.note_exchange(exchange);
        let outcome = self.publish(now, route, message, charge, answer);
        self.acknowledge_publish(exchange, outcome)
    }

    /// Passes what was read at once through the operators, then on.
    pub(super) fn admit(&mut self, now: Instant, key: Key) {
        if self.batch.drafts.is_empty() {
            return;
        }
        let Some(mut admission) = self.admission.take() else { return };
        let mut batch = std::mem::take(&mut self.batch);
        if let Some(from) = self.conversation_ref(key) {
            admission.admit(now, &from.session.identity, &mut batch);
        }
        self.admission = Some(admission);
        let Batch { drafts, emitted, mut letters } = batch;
        letters.retain(|(_, letter)| self.is_published(letter));
        letters.sort_by_key(|(index, _)| *index);
        let mut letters = letters.as_slice();
        let pending = std::mem::take(&mut self.pending);
        for (index, (draft, owed)) in drafts.iter().zip(pending).enumerate() {
            let (own, rest) = letters.split_at(letters.partition_point(|(of, _)| *of <= index));
            letters = rest;
            let (exchange, from) = (owed.exchange, self.conversation_ref(key));
            let is_over = from.is_none_or(|it| it.connection.drains || it.connection.is_closing);
            if is_over && exchange.packet_id.is_some() {
                // No message may be accepted before one that was refused (MQTT-4.6.0-5 of 3.1.1); those handed over come
                // again.
                self.statistics.refused += 1;
                continue;
            }
            let answer = from.map_or(Answer::None, |from| Answer::of(from.session, draft.qos));
            let outcome = self.publish_admitted(now, draft, own, owed, answer);
            if let Err(fault) = self.acknowledge_publish(exchange, outcome) {
                self.disconnect(key, fault.reason, Some(&fault.text));
            }
        }
        self.publish_emitted(now, &emitted);
    }

    /// Publishes the dead letters that stand for a draft, then itself if it passes; refused with the first of them that is.
    fn publish_admitted(
        &mut self,
        now: Instant,
        draft: &Draft,
        letters: &[(usize, Draft)],
        owed: Pending,
        answer: Answer,
    ) -> Outcome {
        let Pending { exchange, charge, rules, reach } = owed;
        let publisher = exchange.session;
        let passes = draft.verdict == Verdict::Pass;
        // The charge for a draft that goes no further covers its letters.
        let charge = charge.filter(|_| passes);
        let (before, last) = match (draft.verdict, letters) {
            (Verdict::Pass, _) => (letters, Some(draft)),
            (Verdict::Drop, [before @ .., (_, last)]) => (before, Some(last)),
            (Verdict::Drop, []) => (letters, None),
        };
        for (_, letter) in before {
            let outcome = self.publish_letter(now, publisher, letter);
            if outcome.is_refused() {
                return outcome;
            }
        }
        // An exchange of QoS 2 is noted with the last of them: before it all may come again.
        self.note_exchange(exchange);
        let outcome = match last {
            Some(last) if passes => {
                let publisher = Some(Publisher { session: publisher, reach });
                self.publish_draft(now, last, publisher, charge, answer, rules)
            }
            Some(letter) => self.publish_letter(now, publisher, letter),
            None => Outcome::Matched,
        };
        if !letters.is_empty() {
            // The answer promises all of them.
            self.depend_on_all();
        }
        if passes || outcome.is_refused() { outcome } else { Outcome::Matched }
    }

    /// Publishes a dead letter of what a client published. One that can never be held is refused for good, as that would be.
    fn publish_letter(&mut self, now: Instant, publisher: SessionKey, letter: &Draft) -> Outcome {
        // It stands for a message that comes again if the letter is refused.
        let outcome = self.publish_draft(now, letter, None, None, Answer::Again, u64::MAX);
        if outcome != Outcome::Refused {
            return outcome;
        }
        self.refused(now, &letter.borrowed(now, Some(publisher)))
    }

    /// Passes a will through the operators as what its owner publishes, then on; false if there was no room for it, or for a dead
    /// letter that stands for it. `rules` is the generation of those by which its owner may publish it.
    pub(super) fn admit_will(
        &mut self,
        now: Instant,
        identity: &Identity,
        publisher: Publisher,
        will: Draft,
        rules: u64,
    ) -> bool {
        let mut batch = Batch { drafts: vec![will], ..Batch::default() };
        if let Some(admission) = &mut self.admission {
            admission.admit(now, identity, &mut batch);
        }
        let mut is_taken = true;
        for (_, letter) in &batch.letters {
            if self.is_published(letter)
                && self.publish_draft(now, letter, None, None, Answer::None, u64::MAX).is_refused()
            {
                is_taken = false;
            }
        }
        for draft in &batch.drafts {
            is_taken &= draft.verdict == Verdict::Drop
                || !self
                    .publish_draft(now, draft, Some(publisher), None, Answer::None, rules)
                    .is_refused();
        }
        self.publish_emitted(now, &batch.emitted);
        is_taken
    }

    /// Has the operators publish what is due.
    pub(super) fn tick_admission(&mut self, now: Instant) {
        let Some(admission) = &mut self.admission else { return };
        if admission.poll_timeout().is_none_or(|at| now < at) {
            return;
        }
        let mut batch = Batch::default();
        admission.handle_timeout(now, &mut batch);
        self.publish_emitted(now, &batch.emitted);
    }

    fn publish_emitted(&mut self, now: Instant, emitted: &[Draft]) {
        for draft in emitted {
            if self.is_published(draft)
                && self.publish_draft(now, draft, None, None, Answer::None, u64::MAX).is_refused()
            {
                self.statistics.refused += 1; // There is no one to answer.
            }
        }
    }

    /// Whether the output of operators continues. Output beyond the limit is counted.
    fn is_published(&mut self, made: &Draft) -> bool {
        if made.hops == 0 || made.hops > HOPS_MAX {
            self.statistics.hops_exceeded += 1;
            return false;
        }
        made.verdict == Verdict::Pass
    }

    /// Publishes a draft that rules of that generation allowed, or later ones.
    fn publish_draft(
        &mut self,
        now: Instant,
        draft: &Draft,
        publisher: Option<Publisher>,
        charge: Option<Charge>,
        answer: Answer,
        rules: u64,
    ) -> Outcome {
        if self.shared.config().session.check_topic_characters(&draft.topic).is_err() {
            // The output of an operator is derived: its input came from others.
            self.statistics.refused += 1;
            return Outcome::Unmatched;
        }
        let reach = publisher.map_or(Reach::All, |publisher| publisher.reach);
        let route = self.routes.route(&self.shared, &draft.topic, reach);
        let message = MessageRef {
            topic: &route.topic,
            is_from_peer: route.is_of_peers(),
            ..draft.borrowed(now, publisher.map(|publisher| publisher.session))
        };
        self.decided_by = rules;
        let outcome = self.publish(now, &route, message, charge, answer);
        self.decided_by = u64::MAX;
        outcome
    }

    /// A message of the node's own: `$SYS`, what a bridge brought.
    pub fn publish_internal(&mut self, now: Instant, message: MessageRef<'_>) -> bool {
        let route = self.routes.route(&self.shared, message.topic, Reach::All);
        !self.publish(now, &route, message, None, Answer::Again).is_refused()
    }

    /// The message that is published next came under that identifier, which is written down with it.
    #[inline]
    fn note_exchange(&mut self, exchange: Exchange) {
        if let (QoS::ExactlyOnce, Some(id)) = (exchange.qos, exchange.packet_id) {
            self.note_received(exchange.number, id);
        }
    }

    fn acknowledge_publish(&mut self, exchange: Exchange, outcome: Outcome) -> Result<(), Fault> {
        let reason = match outcome {
            Outcome::Matched => ReasonCode::SUCCESS,
            Outcome::Unmatched => ReasonCode::NO_MATCHING_SUBSCRIBERS,
            Outcome::Refused | Outcome::RefusedBySome => {
                return self.refuse(exchange, Refusal::NoRoom);
            }
            Outcome::TooLarge => return self.refuse(exchange, Refusal::TooLarge),
            Outcome::OverShare => return self.refuse(exchange, Refusal::Because(OVER_SHARE)),
            Outcome::Unkept => {
                self.forget_received();
                return self.refuse(exchange, Refusal::Because(UNKEPT));
            }
        };
        let Exchange { key, qos, packet_id: Some(id), .. } = exchange else { return Ok(()) };
        match qos {
            // A message of QoS 0 has an identifier only where it is handed over without a packet.
            QoS::AtMostOnce | QoS::AtLeastOnce => {
                self.acknowledge(key, AckKind::Puback, id, reason);
            }
            QoS::ExactlyOnce => {
                if let Some(Conversation { session, .. }) = self.conversation(key) {
                    session.received.push(id);
                }
                self.write_received();
                self.acknowledge(key, AckKind::Pubrec, id, reason);
            }
        }
        Ok(())
    }

    /// Tells a publisher that its message is not taken, as its version can.
    #[cold]
    fn refuse(&mut self, exchange: Exchange, refusal: Refusal<'_>) -> Result<(), Fault> {
        self.statistics.refused += 1;
        let Exchange { key, qos, packet_id, .. } = exchange;
        // One that has parted from its session hears no answer.
        let Some(Conversation { connection, session, .. }) = self.conversation(key) else {
            return Ok(());
        };
        let reason = if let Refusal::Denied(topic) = refusal {
            connection.note_denied(topic);
            ReasonCode::NOT_AUTHORIZED
        } else {
            ReasonCode::QUOTA_EXCEEDED
        };
        let Some(id) = packet_id else { return Ok(()) };
        let is_v5 = connection.version == Version::V5;
        let ends_at_refusal = !is_v5 || session.config.ends_at_refusal;
        if let Refusal::Because(text) = refusal
            && connection.problem_information
            && !ends_at_refusal
        {
            let ack = Ack { reason_string: Some(text.to_owned()), ..Ack::new(id, reason) };
            let packet = match qos {
                QoS::ExactlyOnce => Packet::Pubrec(ack),
                _ => Packet::Puback(ack),
            };
            let mut encoded = Vec::new();
            packet.encode(Version::V5, &mut encoded).expect("our reasons are short texts");
            // MQTT-3.4.2-2
            if encoded.len() <= connection.packet_bytes_max as usize {
                self.promise(key, |_, out| out.extend_from_slice(&encoded));
                return Ok(());
            }
        }
        // Before MQTT 5 an acknowledgement cannot say no. A message that is not allowed is acknowledged (MQTT-3.3.5-2 of 3.1.1); one
        // that was not accepted must not be, so the connection ends and the publisher may try again. For one of QoS 1 that never can
        // be, a publisher of MQTT 5 continues.
        let ends = ends_at_refusal
            && match (refusal, qos) {
                (Refusal::Denied(_), _) | (_, QoS::AtMostOnce) => false,
                (Refusal::TooLarge, QoS::AtLeastOnce) => !is_v5,
                _ => true,
            };
        if ends && session.has_backlog() {
            // It would come again, and publish again, before it takes what fills the memory.
            connection.drains = true;
            return Ok(());
        }
        if ends {
            return Err(Fault::new(reason, "the message was not accepted"));
        }
        let kind = if qos == QoS::ExactlyOnce { AckKind::Pubrec } else { AckKind::Puback };
        if !is_v5 && qos == QoS::ExactlyOnce {
            session.received.push(id);
            let session = session.number;
            self.write(session, || Record::Noted { session, id });
        }
        self.acknowledge(key, kind, id, reason);
        Ok(())
    }
}

impl Shared {
    /// Whether only the server publishes to that topic: `$SYS`, apart from the state of bridges that end here, which those publish
    /// themselves and have as their will, as Mosquitto's do. The state of its own bridges is the server's.
    pub(super) fn is_servers(&self, topic: &str) -> bool {
        topic.starts_with("$SYS/")
            && (!topic_matches(STATE_OF_A_BRIDGE, topic)
                || self.is_own_state(topic)
                || self.retained().get(topic).is_some_and(|kept| kept.client.is_none()))
    }

    /// A part of this program publishes to a topic, or will: the state of a bridge is the server's then.
    pub(super) fn note_own(&self, topic: &Arc<str>) {
        if topic_matches(STATE_OF_A_BRIDGE, topic) {
            self.note_own_state(topic);
        }
    }
}

/// Where messages of `topic` go that come from that client; none if it may not send there.
pub(super) fn allowed_route(
    from: Conversation<'_>,
    topic: &str,
    routes: &mut KnownRoutes,
    shared: &Shared,
    outputs: &mut VecDeque<Output>,
) -> Result<Option<Arc<Route>>, Fault> {
    let reach = from.connection.reach;
    if let Some((route, allowed)) = routes.decided(shared, from.key, topic.as_bytes(), reach) {
        return Ok(allowed.then(|| route.clone()));
    }
    let generation = shared.generation();
    let recent = &mut from.connection.recent;
    let is_it = |it: &Recent| it.route.generation == generation && *it.route.topic == *topic;
    if let Some(at) = recent.iter().position(is_it) {
        recent.swap(0, at);
        let Recent { route, allowed } = &recent[0];
        // Another publisher may have been the last to be asked about.
        routes.note_decision(from.key, route, *allowed);
        return Ok(allowed.then(|| route.clone()));
    }
    look_up(from, topic, routes, shared, outputs)
}

#[cold]
fn look_up(
    from: Conversation<'_>,
    topic: &str,
    routes: &mut KnownRoutes,
    shared: &Shared,
    outputs: &mut VecDeque<Output>,
) -> Result<Option<Arc<Route>>, Fault> {
    let Conversation { key, connection, session, .. } = from;
    check_topic(&session.config, topic)?;
    let route = routes.route(shared, topic, connection.reach);
    // `$SYS` is the server's own (section 4.7.2), and so are its bridges.
    let is_own = session.identity.kind == IdentityKind::Internal;
    if is_own {
        shared.note_own(&route.topic);
    }
    let allowed = (is_own || !shared.is_servers(topic))
        && session.config.check_topic_characters(topic).is_ok()
        && {
            let target = Target::Topic(topic);
            let decision = shared.authorize().decide(&session.identity, Action::Publish, target);
            if !decision.allow {
                let (action, target) = (Action::Publish, topic.to_owned());
                let denied = Denied { action, target, rule: decision.rule.to_string() };
                outputs.push_back(Output::Denied(key, Box::new(denied)));
            }
            decision.allow
        };
    let recent = &mut connection.recent;
    recent.retain(|recent| *recent.route.topic != *topic);
    recent.truncate(RECENT_MAX - 1);
    recent.insert(0, Recent { route: route.clone(), allowed });
    routes.note_decision(key, &route, allowed);
    Ok(allowed.then_some(route))
}

/// Where a bridge tells whether it is connected.
const STATE_OF_A_BRIDGE: &str = "$SYS/broker/connection/+/state";

/// Whether a client with these settings may publish to `topic`, by its form.
pub(super) fn check_topic(config: &SessionConfig, topic: &str) -> Result<(), Fault> {
    let checked = config.check_topic_name(topic).and_then(|()| {
        // A message that a part of this process carries is refused by itself, so that the rest is accepted
        // (`look_up`).
        if config.is_local { Ok(()) } else { config.check_topic_characters(topic) }
    });
    checked.map_err(|error| Fault::new(topic_reason(&error), error.to_string()))
}

/// The reason for a bad topic in MQTT 5: 0x90 is for one that is well formed and not accepted (3.14.2.1), an invalid one makes the
/// packet malformed (MQTT-3.3.2-2, 4.7.3), as Mosquitto answers too.
pub(super) fn topic_reason(error: &TopicError) -> ReasonCode {
    if error.is_limit() { ReasonCode::TOPIC_NAME_INVALID } else { ReasonCode::MALFORMED_PACKET }
}
