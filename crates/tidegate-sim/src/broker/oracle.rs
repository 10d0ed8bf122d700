//! Properties that must hold of a broker, from its clients' packets and its own.
//!
//! Every message has a number, which its payload carries. The oracle knows of each when it was first sent and when its
//! publisher knew that it was accepted; of each subscription when it was asked for, granted, asked to end and ended. A message
//! is *owed* if its subscription held for all of the time in which it may have been routed, and *possible* if for some of it.
//!
//! Always true: a step is one event; two things that happen at different steps happen in that order.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tidegate_broker::Overflow;
use tidegate_message::{split_shared, topic_matches};
use tidegate_wire::mqtt::{PacketId, Publish, QoS, ReasonCode, SubscribeFilter};

use super::plan::{ClientPlan, EMITTED, Plan, QUERIES, SHARED};

/// Bytes of a payload before what fills it: the number, and whether an operator replaced it.
pub(super) const HEAD_BYTES: usize = 9;

/// The operators' treatment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    Pass,
    Drop,
    /// Its payload becomes shorter.
    Replace,
    /// The message of the next number is published after it.
    Emit,
}

impl Treatment {
    pub(super) fn of(number: u64, operators: Option<bool>) -> Self {
        match number % 8 {
            0 if operators == Some(true) => Self::Drop,
            3 if operators == Some(true) => Self::Replace,
            5 if operators == Some(true) => Self::Emit,
            _ => Self::Pass,
        }
    }
}

/// The payload of a message.
pub(super) fn payload(number: u64, is_replaced: bool, bytes: usize) -> Vec<u8> {
    let mut payload = vec![number as u8; bytes.max(HEAD_BYTES)];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    payload[8] = u8::from(is_replaced);
    payload
}

/// The number in a payload.
pub(super) fn number(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().expect("every payload has a number"))
}

#[derive(Debug)]
struct Publication {
    publisher: usize,
    topic: Arc<str>,
    qos: QoS,
    retain: bool,
    bytes: usize,
    treatment: Treatment,
    /// By whom it is published: the broker answers for a client's alone.
    is_own: bool,
    /// Whether it comes of a will: the broker publishes that when a connection ends, which may be before the client has sent
    /// what it numbered earlier.
    is_of_will: bool,
    first: Option<u64>,
    done: Option<u64>,
    refused: u32,
    sends: u32,
}

#[derive(Debug)]
struct Subscription {
    options: SubscribeFilter,
    granted: Option<u64>,
    unasked: Option<u64>,
    ended: Option<u64>,
}

/// A message that the broker wrote and that was not acknowledged to the end, for all it can know.
#[derive(Clone, Copy, Debug)]
struct Flight {
    id: PacketId,
    number: u64,
    /// The client has answered, whether that arrived or not.
    is_answered: bool,
    /// Of QoS 2, whose identifier outlives a loss of power.
    is_exact: bool,
}

#[derive(Debug, Default)]
struct Subscriber {
    /// When its session began, and whether it surely continues.
    began: u64,
    is_alive: bool,
    is_kept: bool,
    /// A crash must not end its session.
    is_promised: bool,
    is_lossless: bool,
    /// Whether its policy lets QoS 1 and 2 messages be dropped that were accepted.
    may_lose: bool,
    subscriptions: Vec<Subscription>,
    subscribes: u32,
    /// By number, how often it came, copies of retained messages apart.
    live: BTreeMap<u64, u32>,
    copies: BTreeMap<u64, u32>,
    /// By publisher and topic, the newest that came, of this session.
    newest: BTreeMap<(usize, Arc<str>), u64>,
    flights: Vec<Flight>,
    /// Of them, those that this connection is owed again.
    again: VecDeque<Flight>,
    /// When a connection of its parted from its session last.
    parted: u64,
    /// From when and until when the broker surely knew of no connection of its.
    away: Vec<(u64, u64)>,
    /// When the broker took its last connection.
    came: u64,
    /// When it was seen that a session had ended that was a member of the group, for each.
    lapses: [Vec<u64>; SHARED.len()],
}

impl Subscriber {
    /// Whether its session asked to be in the group, whenever that was.
    fn has_been_in(&self, group: &str) -> bool {
        self.subscriptions.iter().any(|s| s.options.filter == group)
    }

    /// Whether its session has surely been in the group since that step.
    fn is_surely_in(&self, group: &str, since: u64) -> bool {
        let holds = |s: &Subscription| {
            s.options.filter == group
                && s.unasked.is_none()
                && s.granted.is_some_and(|granted| granted < since)
        };
        self.is_alive && self.began < since && self.subscriptions.iter().any(holds)
    }
}

/// A delivery to a client.
#[derive(Debug)]
pub(super) struct Delivery<'a> {
    pub(super) topic: &'a str,
    pub(super) payload: &'a [u8],
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) dup: bool,
}

#[derive(Debug)]
pub(super) struct Oracle {
    step: u64,
    operators: Option<bool>,
    /// Whether the budget has room for all that is ever published.
    is_roomy: bool,
    /// From when on nothing that was published before is owed to anybody.
    done: Option<u64>,
    publications: Vec<Publication>,
    subscribers: Vec<Subscriber>,
    /// PUBLISH packets that the broker wrote.
    pub(super) written: u64,
    /// Deliveries to clients.
    pub(super) delivered: u64,
    /// Messages that the broker said it did not accept.
    pub(super) refused: u64,
    /// Whether journals have no room at times: then what was delivered before a crash may come again after it.
    may_repeat: bool,
    /// Crashes, and those of them that took the power.
    crashes: u32,
    power_losses: u32,
    /// Of each group, when last a session was seen to have ended that was a member, while no other surely was one.
    orphaned: [u64; SHARED.len()],
}

impl Oracle {
    pub(super) fn new(plan: &Plan) -> Self {
        let is_roomy = plan.config.payload_bytes_max >= 64 << 20;
        let subscriber = |client: &ClientPlan| Subscriber {
            is_lossless: is_roomy && client.session.queue_messages_max >= 100_000,
            may_lose: matches!(
                client.session.overflow,
                Overflow::DropOldest | Overflow::DropNewest | Overflow::Latest | Overflow::Spill
            ),
            ..Subscriber::default()
        };
        Self {
            step: 1,
            operators: plan.operators,
            is_roomy,
            done: None,
            publications: Vec::new(),
            subscribers: plan.clients.iter().map(subscriber).collect(),
            written: 0,
            delivered: 0,
            refused: 0,
            may_repeat: plan.fills,
            crashes: 0,
            power_losses: 0,
            orphaned: [0; SHARED.len()],
        }
    }

    /// Something else happens now.
    pub(super) fn step(&mut self) {
        self.step += 1;
    }

    pub(super) fn published(&self) -> u64 {
        self.publications.len() as u64
    }

    // ---- what publishers do

    /// A new message of a client; its number.
    pub(super) fn publish(
        &mut self,
        publisher: usize,
        topic: &str,
        qos: QoS,
        retain: bool,
        bytes: usize,
    ) -> u64 {
        let number = self.publications.len() as u64;
        let treatment = Treatment::of(number, self.operators);
        let bytes = bytes.max(HEAD_BYTES);
        self.publications.push(Publication {
            publisher,
            topic: topic.into(),
            qos,
            retain,
            bytes,
            treatment,
            is_own: true,
            first: None,
            done: unanswered(qos),
            refused: 0,
            is_of_will: false,
            sends: 0,
        });
        self.emitted(number);
        number
    }

    /// A will, which passes the operators like any other message; its number.
    pub(super) fn will(&mut self, publisher: usize, topic: &str, qos: QoS) -> u64 {
        let number = self.internal(publisher, topic, qos);
        self.publications[number as usize].treatment = Treatment::of(number, self.operators);
        self.emitted(number);
        for publication in self.family(number) {
            publication.is_of_will = true;
        }
        number
    }

    /// Enters what an operator makes of that message, if one does.
    fn emitted(&mut self, number: u64) {
        let Publication { publisher, qos, treatment, .. } = self.publications[number as usize];
        if treatment == Treatment::Emit {
            let emitted = self.internal(publisher, EMITTED, qos);
            assert_eq!(emitted, number + 1);
        }
    }

    fn internal(&mut self, publisher: usize, topic: &str, qos: QoS) -> u64 {
        self.publications.push(Publication {
            publisher,
            topic: topic.into(),
            qos,
            retain: false,
            bytes: HEAD_BYTES,
            treatment: Treatment::Pass,
            is_own: false,
            first: None,
            done: unanswered(qos),
            refused: 0,
            is_of_will: false,
            sends: 0,
        });
        self.publications.len() as u64 - 1
    }

    /// The message and those that come of it.
    fn family(&mut self, number: u64) -> &mut [Publication] {
        let at = number as usize;
        let emits = self.publications[at].treatment == Treatment::Emit;
        &mut self.publications[at..=at + usize::from(emits)]
    }

    pub(super) fn sent(&mut self, number: u64) {
        let step = self.step;
        for publication in self.family(number) {
            publication.first.get_or_insert(step);
            publication.sends += 1;
        }
    }

    /// Its publisher knows that it was accepted.
    pub(super) fn accepted(&mut self, number: u64, reason: ReasonCode) {
        let step = self.step;
        for publication in self.family(number) {
            publication.done.get_or_insert(step);
        }
        if reason == ReasonCode::NO_MATCHING_SUBSCRIBERS {
            for client in 0..self.subscribers.len() {
                let is_owed =
                    self.subscribers[client].is_alive && self.owed(client, number).is_some();
                assert!(
                    !is_owed,
                    "message {number}: the broker says there is no subscriber; {client} is one"
                );
            }
        }
    }

    pub(super) fn refused(&mut self, number: u64) {
        self.refused += 1;
        // An operator's output for it was made before.
        self.publications[number as usize].refused += 1;
    }

    // ---- what the broker does with sessions

    pub(super) fn connected(
        &mut self,
        client: usize,
        is_present: bool,
        is_kept: bool,
        is_clean: bool,
    ) {
        let subscriber = &mut self.subscribers[client];
        let is_promised = std::mem::take(&mut subscriber.is_promised);
        assert!(is_present || is_clean || !is_promised, "a crash took the session of {client}");
        subscriber.is_alive = true;
        subscriber.is_kept = is_kept;
        if is_present {
            subscriber.again = subscriber.flights.iter().copied().collect();
            return;
        }
        subscriber.began = self.step;
        let parted = subscriber.parted;
        for (at, group) in SHARED.iter().enumerate() {
            if self.subscribers[client].has_been_in(group) {
                self.subscribers[client].lapses[at].push(self.step);
                // Its messages go to another that was there when it ended, whenever that was.
                let others = self.subscribers.iter().enumerate();
                let mut others = others.filter(|(other, _)| *other != client);
                if !others.any(|(_, other)| other.is_surely_in(group, parted)) {
                    self.orphaned[at] = self.step;
                }
            }
        }
        let subscriber = &mut self.subscribers[client];
        subscriber.subscriptions.clear();
        subscriber.newest.clear();
        subscriber.flights.clear();
        subscriber.again.clear();
    }

    /// The connection is gone; the session may be.
    pub(super) fn parted(&mut self, client: usize, is_lasting: bool) {
        let step = self.step;
        let subscriber = &mut self.subscribers[client];
        subscriber.is_alive = subscriber.is_kept && is_lasting;
        subscriber.parted = step;
        subscriber.again.clear();
    }

    /// The broker knows that its connection is gone.
    pub(super) fn gone(&mut self, client: usize) {
        self.subscribers[client].away.push((self.step, u64::MAX));
    }

    /// The broker has taken another connection of its.
    pub(super) fn comes(&mut self, client: usize) {
        let step = self.step;
        self.subscribers[client].came = step;
        let away = self.subscribers[client].away.last_mut();
        if let Some((_, until)) = away.filter(|(_, until)| *until == u64::MAX) {
            *until = step;
        }
    }

    /// The node has crashed, after its connections have parted.
    pub(super) fn crashed(&mut self, loses_power: bool) {
        self.crashes += 1;
        self.power_losses += u32::from(loses_power);
        for subscriber in &mut self.subscribers {
            let is_granted = |s: &Subscription| s.granted.is_some() && s.unasked.is_none();
            subscriber.is_promised |=
                subscriber.is_alive && subscriber.subscriptions.iter().any(is_granted);
            // Messages on their way between shards go to those who subscribe now (MQTT-3.10.4-2 allows it).
            for unasked in subscriber.subscriptions.iter_mut().filter(|s| s.unasked.is_some()) {
                unasked.granted = None;
            }
            // The power may take the record that one of QoS 1 was sent.
            subscriber
                .flights
                .retain(|flight| (flight.is_exact || !loses_power) && !self.may_repeat);
        }
    }

    /// A PUBLISH that the broker wrote whole, in the order in which it wrote them.
    /// `is_current` if the session has that connection still.
    pub(super) fn wrote(&mut self, client: usize, publish: &Publish<'_>, is_current: bool) {
        if publish.topic == QUERIES {
            return;
        }
        self.written += 1;
        let Some(id) = publish.packet_id else { return };
        let subscriber = &mut self.subscribers[client];
        if !subscriber.is_kept || !is_current {
            return;
        }
        let number = number(publish.payload);
        let is_exact = publish.qos == QoS::ExactlyOnce;
        let first = self.publications[number as usize].first;
        let is_first_back = |(from, until): &(u64, u64)| {
            *until == subscriber.came && first.is_some_and(|first| *from < first)
        };
        let was_away = subscriber.away.last().is_some_and(is_first_back);
        assert!(
            !(publish.dup && was_away),
            "message {number} came while {client} was away, and says that it was sent before (MQTT-3.3.1-3)"
        );
        let flight = Flight { id, number, is_answered: false, is_exact };
        let same = |other: &Flight| (other.id, other.number) == (id, number);
        let again = &mut subscriber.again;
        let skipped = match again.iter().position(same).filter(|_| publish.dup) {
            Some(at) => at + 1,
            // Of a former process, under an identifier of this one.
            None if publish.dup && self.crashes > 0 => 0,
            None => again.len(),
        };
        let reused = again.iter().skip(skipped).position(|flight| flight.id == id);
        let passed: Vec<Flight> = again.drain(..skipped).filter(|flight| !same(flight)).collect();
        // An identifier that is used again is free: its former message was answered to its end.
        for passed in passed.into_iter().chain(reused.and_then(|at| again.remove(at))) {
            assert!(
                passed.is_answered,
                "message {} was in flight to {client} and is not sent again, or out of order (MQTT-4.4.0-1, MQTT-4.6.0-1)",
                passed.number
            );
            subscriber.flights.retain(|flight| flight.id != passed.id);
        }
        subscriber.flights.retain(|flight| flight.id != id);
        subscriber.flights.push(flight);
        if publish.dup {
            // Those that are sent again stand in the order in which they are: the rest of them still comes.
            let rest = again.iter().map(|flight| flight.id).collect::<Vec<_>>();
            subscriber.flights.sort_by_key(|flight| rest.contains(&flight.id));
        }
    }

    // ---- what subscribers do

    pub(super) fn asked(&mut self, client: usize, options: &SubscribeFilter) {
        let subscriber = &mut self.subscribers[client];
        subscriber.subscribes += 1;
        let held =
            |s: &&mut Subscription| s.unasked.is_none() && s.options.filter == options.filter;
        if subscriber.subscriptions.iter_mut().find(held).is_some() {
            return;
        }
        subscriber.subscriptions.push(Subscription {
            options: options.clone(),
            granted: None,
            unasked: None,
            ended: None,
        });
    }

    pub(super) fn granted(&mut self, client: usize, filter: &str) {
        let step = self.step;
        for subscription in self.held(client, filter).filter(|s| s.unasked.is_none()) {
            subscription.granted.get_or_insert(step);
        }
    }

    pub(super) fn unasked(&mut self, client: usize, filter: &str) {
        let step = self.step;
        self.held(client, filter).for_each(|s| _ = s.unasked.get_or_insert(step));
    }

    pub(super) fn ended(&mut self, client: usize, filter: &str) {
        let step = self.step;
        let unasked = self.held(client, filter).filter(|s| s.unasked.is_some());
        unasked.for_each(|s| _ = s.ended.get_or_insert(step));
    }

    fn held(&mut self, client: usize, filter: &str) -> impl Iterator<Item = &mut Subscription> {
        let subscriptions = &mut self.subscribers[client].subscriptions;
        subscriptions.iter_mut().filter(move |s| s.options.filter == filter && s.ended.is_none())
    }

    /// The client has answered a message: that it has it, or that it lets go of the identifier.
    pub(super) fn answered(&mut self, client: usize, id: PacketId) {
        let subscriber = &mut self.subscribers[client];
        let flights = subscriber.flights.iter_mut().chain(&mut subscriber.again);
        flights.filter(|flight| flight.id == id).for_each(|flight| flight.is_answered = true);
    }

    /// A message that came and is not the repetition of a QoS 2 exchange.
    pub(super) fn deliver(&mut self, client: usize, delivery: &Delivery<'_>) {
        let Delivery { topic, payload, qos, retain, dup } = *delivery;
        let number = number(payload);
        let publication = &self.publications[number as usize];
        let about = format_args!(
            "message {number} at {client}, {qos:?}, retain {retain}, dup {dup}: {publication:?}"
        );
        assert!(publication.first.is_some(), "{about}: it was not published");
        assert!(publication.treatment != Treatment::Drop, "{about}: an operator dropped it");
        assert!(
            // Of a QoS 1 message that is refused by its acknowledgement, those who have room get theirs.
            publication.refused == 0
                || publication.sends > publication.refused
                || publication.qos == QoS::AtLeastOnce,
            "{about}: it was not accepted"
        );
        assert_eq!(topic, &*publication.topic, "{about}: another topic");
        let is_replaced = publication.treatment == Treatment::Replace;
        let bytes = if is_replaced { replaced_bytes(publication.bytes) } else { publication.bytes };
        assert_eq!(payload.len(), bytes, "{about}: another length");
        assert_eq!(payload[8] == 1, is_replaced, "{about}: replaced or not");
        assert!(payload[HEAD_BYTES..].iter().all(|byte| *byte == number as u8), "{about}: bytes");
        assert!(self.is_possible(client, number, qos), "{about}: it did not ask for it");
        self.delivered += 1;
        let handed_on = self.handed_on(client, number);
        let subscriber = &mut self.subscribers[client];
        if retain {
            assert!(publication.retain, "{about}: never retained");
            let copies = subscriber.copies.entry(number).or_default();
            // One that is sent again with DUP is no other copy.
            let is_first = *copies == 0;
            *copies += u32::from(!dup || is_first);
            let most = subscriber.subscribes + publication.sends;
            assert!(dup || *copies <= most, "{about}: a retained message too often");
            return;
        }
        let is_done = self.done.zip(publication.first).is_some_and(|(done, first)| first < done);
        assert!(
            !is_done || qos == QoS::AtMostOnce,
            "{about}: every subscriber had acknowledged it"
        );
        let live = subscriber.live.entry(number).or_default();
        let is_first = *live == 0;
        *live += u32::from(!dup || is_first);
        // Where a message is refused, what operators made of it is not: it comes again with the message.
        let is_exact = publication.qos == QoS::ExactlyOnce && publication.is_own;
        let most = if is_exact { 1 } else { publication.sends };
        // A message that was not accepted when the power went may have been handed out with less than QoS 2, and is
        // published again.
        let lost = if qos < QoS::ExactlyOnce { self.power_losses } else { 0 };
        let repeated = if self.may_repeat { self.crashes } else { 0 };
        // A message that a member of a shared subscription did not acknowledge goes to another, and may come back from there,
        // once for each that has left it since.
        let again = if qos == QoS::AtLeastOnce { handed_on } else { 0 };
        let is_handed_on = handed_on > 0;
        let most = most + lost + again + repeated;
        assert!(*live <= most, "{about}: {live} times, published {most} times");
        assert!(!(dup && qos == QoS::AtMostOnce), "{about}: DUP with QoS 0 (MQTT-3.3.1-2)");
        // One that its publisher sent twice may have come before the subscription did, or have been dropped or refused the first
        // time, without the publisher's having heard of it.
        // And where journals lack what they had no room for, a crash may put what comes again behind what came after it.
        let is_in_order = publication.sends == 1 && repeated == 0;
        if is_first && is_in_order && !publication.is_of_will && !is_handed_on {
            let from = (publication.publisher, publication.topic.clone());
            let newest = subscriber.newest.entry(from).or_insert(number);
            assert!(*newest <= number, "{about}: after {newest} (MQTT-4.6.0-5)");
            *newest = number;
        }
        if publication.qos == QoS::ExactlyOnce && lost + repeated == 0 && topic.starts_with("w/") {
            self.once_in_a_group(client, number);
        }
    }

    /// How often, at most, a message may have been handed on within the group of a client: by members whose session has ended since
    /// it was first sent, or may have, and by those that left the group, or were away with a subscription that keeps nothing.
    fn handed_on(&self, client: usize, number: u64) -> u32 {
        let Publication { topic, first, .. } = &self.publications[number as usize];
        let is_its = |group: &&&str| self.subscribers[client].has_been_in(group);
        let Some(at) = SHARED.iter().position(|group| is_its(&group)) else { return 0 };
        let first = first.expect("it was published");
        if !topic.starts_with("w/") {
            return 0;
        }
        let group = SHARED[at];
        let of = |member: &Subscriber| {
            let lapses = member.lapses[at].iter().filter(|seen| **seen > first).count();
            let may_have_ended = !member.is_alive && member.has_been_in(group);
            let held = member.subscriptions.iter().filter(|s| s.options.filter == group);
            let is_left =
                |s: &Subscription| s.unasked.is_some() && s.ended.is_none_or(|ended| ended > first);
            let keeps_nothing = held.clone().any(|s| s.options.maximum_qos == QoS::AtMostOnce);
            let went = member.away.last().is_some_and(|(from, _)| *from > first);
            lapses
                + usize::from(may_have_ended)
                + held.filter(|s| is_left(s)).count()
                + usize::from(keeps_nothing && went)
        };
        let count = self.subscribers.iter().map(of).sum::<usize>() as u32;
        // A member that is known to have ended may be back, with what others have of it.
        if count > 0 && self.power_losses > 0 { u32::MAX / 2 } else { count }
    }

    /// A message goes to one member of a shared subscription (MQTT-4.8.2-4), and to another only if that one had it with less than
    /// QoS 2, and ended or left before it was known to have it.
    fn once_in_a_group(&self, client: usize, number: u64) {
        let group = |client: usize| {
            let subscriptions = &self.subscribers[client].subscriptions;
            subscriptions.iter().find_map(|s| s.options.filter.get(..8).filter(|f| *f != "$share/"))
        };
        let mine = group(client);
        let is_exact = |other: usize| {
            let mut of = self.subscribers[other].subscriptions.iter();
            of.all(|s| {
                !s.options.filter.starts_with("$share/")
                    || s.options.maximum_qos == QoS::ExactlyOnce
            })
        };
        let is_handed_on = self.handed_on(client, number) > 0;
        for other in 0..self.subscribers.len() {
            let has = self.subscribers[other].live.contains_key(&number);
            assert!(
                other == client
                    || !has
                    || mine.is_none()
                    || group(other) != mine
                    || is_handed_on && !(is_exact(other) && is_exact(client)),
                "message {number} at {client} and {other} of the same group"
            );
        }
    }

    // ---- judgement

    /// No client is owed anything that was published up to now.
    pub(super) fn all_is_done(&mut self) {
        self.done = Some(self.step);
    }

    /// Whether neither the budget nor the client's queue is ever full.
    pub(super) fn loses_nothing(&self, client: usize) -> bool {
        self.subscribers[client].is_lossless
    }

    /// Whether a subscription that may have held may have brought the message with that QoS.
    fn is_possible(&self, client: usize, number: u64, qos: QoS) -> bool {
        let publication = &self.publications[number as usize];
        let first = publication.first.expect("it was published");
        self.subscribers[client].subscriptions.iter().any(|s| {
            s.ended.is_none_or(|ended| ended > first)
                && (publication.qos.min(s.options.maximum_qos) == qos)
                // Messages that an earlier session of its published and retained are not its own to the broker.
                && (matches(&s.options, publication, client)
                    || first < self.subscribers[client].began
                        && matches(&s.options, publication, usize::MAX))
        })
    }

    /// With which QoS, if any, the message is owed to the session that the client has now; and whether through a group.
    fn owed(&self, client: usize, number: u64) -> Option<(QoS, bool)> {
        let publication = &self.publications[number as usize];
        let subscriber = &self.subscribers[client];
        let (first, done) = (publication.first?, publication.done?);
        let is_certain = publication.is_own || self.is_roomy;
        if subscriber.began > first
            || publication.refused > 0
            || publication.treatment == Treatment::Drop
            || !is_certain
        {
            return None;
        }
        let holds = |s: &&Subscription| {
            s.granted.is_some_and(|granted| granted < first)
                && s.unasked.is_none_or(|unasked| unasked > done)
                && matches(&s.options, publication, client)
        };
        let subscriptions = subscriber.subscriptions.iter().filter(holds);
        let best = subscriptions.max_by_key(|s| s.options.maximum_qos)?;
        let is_shared = best.options.filter.starts_with("$share/");
        Some((publication.qos.min(best.options.maximum_qos), is_shared))
    }

    fn has(&self, client: usize, number: u64) -> bool {
        let subscriber = &self.subscribers[client];
        subscriber.live.contains_key(&number) || subscriber.copies.contains_key(&number)
    }

    /// All is quiet and every client is there: messages owed have come or their loss was counted. `dropped` is what each
    /// session
    /// counted, `everywhere` what the node did; `is_calm` if no connection ended.
    /// `session_ended` of them went with sessions that ended.
    pub(super) fn judge(
        &self,
        dropped: &[u64],
        everywhere: u64,
        session_ended: u64,
        refused: u64,
        is_calm: bool,
    ) {
        assert!(refused >= self.refused, "{} refusals, {refused} counted", self.refused);
        // Wills and messages of operators have no publisher to whom a refusal could be reported.
        let untold = refused - self.refused;
        let mut lost = 0;
        for (client, (subscriber, dropped)) in self.subscribers.iter().zip(dropped).enumerate() {
            let mut missing = Vec::new();
            let mut chances = u64::from(subscriber.subscribes + self.crashes) * 64;
            for number in 0..self.publications.len() as u64 {
                let publication = &self.publications[number as usize];
                if let Some((qos, false)) = self.owed(client, number)
                    && !self.has(client, number)
                {
                    lost += 1;
                    if qos > QoS::AtMostOnce {
                        missing.push(number);
                    }
                }
                if publication.first.is_some() {
                    let live = subscriber.live.get(&number).copied().unwrap_or(0);
                    chances += u64::from(publication.sends.saturating_sub(live));
                }
            }
            let is_own = |number: &&u64| self.publications[**number as usize].is_own;
            let own = missing.iter().filter(is_own).count() as u64;
            assert!(
                own == 0 || subscriber.may_lose,
                "{client} lacks {missing:?}, which were acknowledged, and its policy drops nothing"
            );
            assert!(
                own <= *dropped && missing.len() as u64 <= dropped + untold,
                "{client} lacks {missing:?}, of which {dropped} are counted as dropped, {untold} as refused"
            );
            assert!(
                *dropped <= chances,
                "{client}: {dropped} messages are counted as dropped, at most {chances} did not come"
            );
        }
        if is_calm {
            let counted = everywhere + refused * self.subscribers.len() as u64;
            assert!(lost <= counted, "{lost} messages are lost, {counted} are counted");
        }
        self.judge_groups(dropped, session_ended);
    }

    /// Messages owed to a group came to a member of it, whichever of them ended.
    fn judge_groups(&self, dropped: &[u64], session_ended: u64) {
        for (at, group) in SHARED.iter().enumerate() {
            let is_member = |client: &usize| {
                let subscriptions = &self.subscribers[*client].subscriptions;
                subscriptions.iter().any(|s| s.options.filter == *group)
            };
            let members: Vec<usize> = (0..self.subscribers.len()).filter(is_member).collect();
            let may_lose = |member: &&usize| self.subscribers[**member].may_lose;
            let counted: u64 = members.iter().filter(may_lose).map(|member| dropped[*member]).sum();
            // A session that ended took with it what it had begun with QoS 2, and where the process ended, what was never written.
            let lapses = || self.subscribers.iter().flat_map(|subscriber| &subscriber.lapses[at]);
            let since = lapses().max().copied();
            let is_missing = |number: &u64| {
                let Publication { first, done, qos, .. } = self.publications[*number as usize];
                let goes_on = qos == QoS::AtLeastOnce && self.crashes == 0;
                // The member that takes it may take it with QoS 0, and lose it, unless it is away when it is sent and none
                // hands it on.
                let is_left_later =
                    |s: &Subscription| s.options.filter == *group && s.ended > first;
                let all = self.subscribers.iter().flat_map(|of| &of.subscriptions);
                let is_settled = first > since && !all.clone().any(is_left_later);
                let is_reliable = |member: &usize| {
                    let member = &self.subscribers[*member];
                    let is_away = member.away.iter().any(|(from, until)| {
                        first > Some(*from) && done.is_some_and(|done| done < *until)
                    });
                    let mut of = member.subscriptions.iter();
                    of.all(|s| {
                        s.options.filter != *group || s.options.maximum_qos > QoS::AtMostOnce
                    }) || is_settled && is_away
                };
                members.iter().all(is_reliable)
                    && (goes_on || first > since)
                    && members.iter().any(|member| {
                        let owed = self.owed(*member, *number);
                        owed.is_some_and(|(qos, is_shared)| is_shared && qos > QoS::AtMostOnce)
                    })
                    && !members.iter().any(|member| self.has(*member, *number))
            };
            let missing: Vec<u64> =
                (0..self.publications.len() as u64).filter(is_missing).collect();
            // A session that may drop messages takes the counts along when it ends.
            let drops = |seen: &u64| {
                let may_lose = self.subscribers.iter().filter(|member| member.may_lose);
                may_lose.flat_map(|member| &member.lapses[at]).any(|lapse| lapse > seen)
            };
            let is_excused = |number: &&u64| {
                let first = self.publications[**number as usize].first.expect("it was sent");
                first <= self.orphaned[at] || drops(&first)
            };
            let excused = missing.iter().filter(is_excused).count();
            let lost = (missing.len() - excused) as u64;
            assert!(
                lost <= counted && missing.len() as u64 <= counted + session_ended,
                "{group} lacks {missing:?}, {excused} with the last member, {counted} and {session_ended} counted"
            );
        }
    }

    /// Whether the message may be the retained one of its topic at the end.
    pub(super) fn may_be_retained(&self, number: u64, topic: &str) -> bool {
        let publication = &self.publications[number as usize];
        let is_newer = |other: &Publication| {
            other.retain
                && *other.topic == *topic
                && other.treatment != Treatment::Drop
                && other.refused == 0
                && other.qos > QoS::AtMostOnce
                && other.done.is_some()
                && other.first > publication.done.or(Some(u64::MAX))
        };
        publication.retain
            && *publication.topic == *topic
            && (publication.done.is_some() || publication.sends > 0)
            && !self.publications.iter().any(is_newer)
    }

    /// Whether some message of the topic is surely retained.
    pub(super) fn must_be_retained(&self, topic: &str) -> bool {
        self.publications.iter().any(|p| {
            p.retain
                && *p.topic == *topic
                && p.qos > QoS::AtMostOnce
                && p.done.is_some()
                && p.refused == 0
                && p.treatment != Treatment::Drop
        })
    }
}

/// There is no answer to a message of QoS 0: it may be at any time.
fn unanswered(qos: QoS) -> Option<u64> {
    (qos == QoS::AtMostOnce).then_some(u64::MAX)
}

/// Length of a payload that an operator has replaced.
pub(super) fn replaced_bytes(bytes: usize) -> usize {
    (bytes / 2).max(HEAD_BYTES)
}

fn matches(options: &SubscribeFilter, publication: &Publication, client: usize) -> bool {
    let shared = split_shared(&options.filter).expect("a valid filter");
    let filter = shared.as_ref().map_or(&*options.filter, |shared| shared.filter);
    let is_own = publication.publisher == client && &*publication.topic != EMITTED;
    topic_matches(filter, &publication.topic) && !(options.no_local && is_own)
}
