//! A sender and a receiver in virtual time, between a broker below and one above: from one seed, links break and bring things twice,
//! acknowledgements are slow, either node restarts.
//!
//! ```text
//!  Below (two feeds) ─▶ UplinkSession ─▶ Link ─▶ Above (Incoming, Progress ─▶ its broker)
//!         ▲                  ▲            │
//!         └─ acknowledged ───┴── acks ◀───┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_compress::{EncoderConfig, Message as Encoded};
use tidegate_message::Instant;
use tidegate_wire::{
    CriticalPart, SensorBatch, UplinkAck, UplinkOpen,
    mqtt::{PacketId, Publish, PublishProperties, QoS, ReasonCode},
};

use crate::*;

/// Bytes under way to the broker above, beyond which no more are handed to it.
const UNDER_WAY_BYTES_MAX: usize = 4 << 10;
/// Places in the link's queues.
const BULK_WAITING_MAX: usize = 2;
const LANE_WAITING_MAX: usize = 4;
const CRITICAL_TOPICS: u64 = 3;
const BATCHED_TOPICS: u64 = 7;

/// A message by its number among all of its feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    feed: Feed,
    number: u64,
    qos: QoS,
}

impl Message {
    fn topic(self) -> String {
        match self.feed {
            Feed::Batched => format!("site/{}", self.number % BATCHED_TOPICS),
            Feed::Critical => format!("alarm/{}", self.number % CRITICAL_TOPICS),
        }
    }

    fn payload(self) -> Vec<u8> {
        // Some critical ones are longer than a record.
        let long = if self.feed == Feed::Critical && self.number % 20 == 7 { 40_000 } else { 0 };
        let mut payload = self.number.to_string().into_bytes();
        payload.resize(payload.len() + (self.number % 50) as usize + long, b' ');
        payload
    }

    /// The message that came as `message` of `feed`.
    fn of(feed: Feed, message: &Encoded<'_>) -> Self {
        let text = std::str::from_utf8(message.payload).expect("it was sent as text");
        let number = text.trim_end().parse().expect("it was sent as a number");
        let qos = Attributes::of(message.attributes).expect("they were sent").qos;
        let found = Self { feed, number, qos };
        assert_eq!(message.topic, found.topic().as_bytes());
        assert!(message.payload == found.payload(), "message {number} is damaged");
        found
    }
}

/// A session of the broker below.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Message>,
    /// Read and not acknowledged.
    read: BTreeMap<u64, (PacketId, Message)>,
    reads: u64,
}

impl Queue {
    /// Its connection is gone: messages of QoS 1 come again.
    fn disconnected(&mut self) {
        for (_, (_, message)) in std::mem::take(&mut self.read).into_iter().rev() {
            self.waiting.push_front(message);
        }
    }

    fn read(&mut self) -> Option<(Message, Option<PacketId>)> {
        let message = self.waiting.pop_front()?;
        if message.qos == QoS::AtMostOnce {
            return Some((message, None));
        }
        self.reads += 1;
        let id = PacketId::new((self.reads % 65_535) as u16 + 1).expect("it is not 0");
        self.read.insert(self.reads, (id, message));
        Some((message, Some(id)))
    }

    fn acknowledged(&mut self, id: PacketId) -> Message {
        let (at, (expected, message)) =
            self.read.pop_first().expect("something is acknowledged that was not read");
        assert_eq!(expected, id, "read {at} is next to be acknowledged");
        message
    }
}

/// Records under way between the nodes, with the time at which each comes.
#[derive(Default)]
struct Link {
    bulk: Vec<(Instant, SensorBatch, Bytes)>,
    lane: VecDeque<(Instant, CriticalPart)>,
    acks: VecDeque<(Instant, UplinkAck)>,
    /// The report that was sent last.
    last_ack: Option<UplinkAck>,
}

/// A broker above that takes messages of one feed, late.
#[derive(Default)]
struct Taker {
    progress: Progress,
    pending: VecDeque<Message>,
    handed: u64,
    accepted: u64,
    /// When it takes some.
    at: Option<Instant>,
}

impl Taker {
    fn has_room(&self) -> bool {
        let bytes: usize = self.pending.iter().map(|message| message.payload().len()).sum();
        bytes < UNDER_WAY_BYTES_MAX
    }

    fn hand_over(&mut self, messages: &[Message]) {
        messages.iter().for_each(|_| _ = self.progress.count());
        self.pending.extend(messages);
        self.handed += messages.len() as u64;
        self.progress.hand_over(self.handed, messages.len() as u64);
    }
}

/// The node above, as far as it is lost when it restarts.
struct Above {
    incoming: Incoming,
    takers: [Taker; 2],
    batches: u64,
}

impl Above {
    fn new() -> Self {
        Self { incoming: Incoming::new(LIMITS), takers: Default::default(), batches: 0 }
    }

    fn published(&self) -> UplinkAck {
        UplinkAck {
            next: self.takers[0].progress.published(),
            critical_next: self.takers[1].progress.published(),
            batches: self.batches,
        }
    }
}

#[derive(Debug, Default)]
struct Faults {
    breaks: u32,
    refused: u32,
    twice: u32,
    restarts_above: u32,
    restarts_below: u32,
}

struct World {
    random: StdRng,
    now: Instant,
    below: [Queue; 2],
    made: [u64; 2],
    made_at_least_once: [BTreeSet<u64>; 2],
    sender: UplinkSession,
    sessions: u64,
    /// When the node above answers, if it was dialled.
    dialled: Option<(Instant, UplinkOpen)>,
    link: Option<Link>,
    above: Above,
    /// All that the broker above ever took, in order; it survives restarts.
    out: Vec<Message>,
    taken: [BTreeSet<u64>; 2],
    faults: Faults,
    is_calm: bool,
}

fn config() -> SenderConfig {
    SenderConfig {
        name: "u".to_owned(),
        node: "edge".into(),
        topics: Topics::fixed(["#"]),
        critical: vec!["alarm/#".to_owned()],
        critical_bytes_per_second: 1 << 20,
        outgoing: OutgoingConfig {
            batch_age: Duration::from_millis(20),
            batch_idle: Duration::from_millis(5),
            window_bytes_max: 16 << 10,
            flight_bytes_max: 2 << 10,
            encoder: EncoderConfig { body_bytes: 512, topics_max: 5, ..EncoderConfig::default() },
            has_origins: false,
        },
        names_messages: true,
        retry_max: Duration::from_millis(400),
        member: None,
    }
}

/// A sender whose sessions at the broker are or are not of an earlier one.
fn sender(now: Instant, was_there: bool, number: u64, seed: u64) -> UplinkSession {
    let config = config();
    let critical = config.critical.iter().map(|filter| (**filter).into()).collect();
    let had = match was_there {
        true => [config.topics.filters.to_vec(), critical],
        false => Default::default(),
    };
    let subscriptions = Subscriptions::new(&config, &had);
    UplinkSession::new(now, config, subscriptions, [was_there; 2], number, seed)
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            now: Instant::EPOCH,
            below: Default::default(),
            made: [0; 2],
            made_at_least_once: Default::default(),
            sender: sender(Instant::EPOCH, false, 1, seed),
            sessions: 1,
            dialled: None,
            link: None,
            above: Above::new(),
            out: Vec::new(),
            taken: Default::default(),
            faults: Faults::default(),
            is_calm: false,
        }
    }

    fn later(&mut self, most_millis: u64) -> Instant {
        self.now + Duration::from_micros(self.random.random_range(0..=most_millis * 1_000))
    }

    fn blocked(&self) -> Blocked {
        self.link.as_ref().map_or_else(Blocked::default, |link| Blocked {
            lane: link.lane.len() >= LANE_WAITING_MAX,
            bulk: link.bulk.len() >= BULK_WAITING_MAX,
        })
    }

    /// When something happens next, if nothing else does.
    fn next_event(&self) -> Option<Instant> {
        let link = self.link.iter().flat_map(|link| {
            let bulk = link.bulk.iter().map(|(at, ..)| *at);
            let lane = link.lane.front().map(|(at, _)| *at);
            let acks = link.acks.front().map(|(at, _)| *at);
            bulk.chain(lane).chain(acks).collect::<Vec<_>>()
        });
        let takers = self.above.takers.iter().filter_map(|taker| taker.at);
        let dialled = self.dialled.as_ref().map(|(at, _)| *at);
        let sender = self.sender.poll_timeout(self.blocked());
        link.chain(takers).chain(dialled).chain(sender).min()
    }

    fn step(&mut self) {
        let next = self.next_event();
        self.now = match self.is_calm {
            true => next.expect("nothing is left to happen, and not all has come").max(self.now),
            false => {
                let soon = self.later(10);
                next.map_or(soon, |next| next.clamp(self.now, soon))
            }
        };
        if !self.is_calm {
            self.make();
            self.fail();
        }
        self.arrive();
        self.accept();
        self.drive();
    }

    /// Clients of the broker below publish.
    fn make(&mut self) {
        for (feed, chance) in [(Feed::Batched, 0.7), (Feed::Critical, 0.1)] {
            if self.random.random_bool(chance) {
                let qos = match self.random.random_bool(0.8) {
                    true => QoS::AtLeastOnce,
                    false => QoS::AtMostOnce,
                };
                let number = self.made[feed as usize];
                self.made[feed as usize] += 1;
                self.below[feed as usize].waiting.push_back(Message { feed, number, qos });
                if qos == QoS::AtLeastOnce {
                    self.made_at_least_once[feed as usize].insert(number);
                }
            }
        }
    }

    fn fail(&mut self) {
        match self.random.random_range(0..1000) {
            0..6 if self.link.is_some() => {
                self.faults.breaks += 1;
                self.down();
            }
            6..10 => {
                self.faults.restarts_above += 1;
                // Of what waits in its broker's hands, some is taken and the rest gone with the process.
                for feed in 0..2 {
                    let some = self.random.random_range(0..=self.above.takers[feed].pending.len());
                    self.take(feed, some);
                }
                self.above = Above::new();
                if self.link.is_some() {
                    self.down();
                }
            }
            10..13 => {
                self.faults.restarts_below += 1;
                self.below.iter_mut().for_each(Queue::disconnected);
                self.sessions += 1;
                self.sender = sender(self.now, true, self.sessions, self.random.random());
                (self.link, self.dialled) = (None, None);
            }
            _ => {}
        }
    }

    /// The link is gone, with all that is under way.
    fn down(&mut self) {
        self.link = None;
        self.sender.handle_down(self.now);
    }

    /// Things come that are due.
    fn arrive(&mut self) {
        if let Some((_, open)) = self.dialled.take_if(|(at, _)| *at <= self.now) {
            self.open(&open);
        }
        while let Some(link) = &mut self.link
            && let Some((_, ack)) = link.acks.pop_front_if(|(at, _)| *at <= self.now)
        {
            let told = self.sender.handle_acknowledged(self.now, &ack);
            told.expect("the receiver reports what was sent");
        }
        while let Some(link) = &mut self.link
            && let Some((_, part)) = link.lane.pop_front_if(|(at, _)| *at <= self.now)
        {
            let taker = &mut self.above.takers[1];
            let came = self.above.incoming.critical(&part, |number, message, _| {
                taker.progress.expect(number);
                taker.hand_over(&[Message::of(Feed::Critical, &message)]);
            });
            if let Err(error) = came {
                assert!(matches!(error, IncomingError::Critical { .. }), "{error}");
                self.faults.refused += 1;
                self.down();
            }
        }
        while let Some(link) = &mut self.link
            && let Some(place) = link.bulk.iter().position(|(at, ..)| *at <= self.now)
        {
            let (_, record, body) = link.bulk.remove(place);
            match self.above.incoming.batch(record, body) {
                Ok(()) => self.above.batches += 1,
                Err(error) => {
                    assert!(matches!(error, IncomingError::Replayed { .. }), "{error}");
                    self.faults.refused += 1;
                    self.down();
                }
            }
        }
    }

    fn open(&mut self, open: &UplinkOpen) {
        if !self.is_calm && self.random.random_bool(0.2) {
            return self.sender.handle_down(self.now);
        }
        let ready = self.above.incoming.open(open, u64::MAX).expect("there is room");
        if ready.next.is_none() && ready.critical_next.is_none() {
            self.above.takers.iter_mut().for_each(|taker| taker.progress.begin());
        }
        self.above.batches = 0;
        let seed = self.random.random();
        self.sender.handle_connected(self.now, &ready, seed).expect("the receiver knows its place");
        self.link = Some(Link::default());
    }

    /// The broker above takes messages, and the receiver reports that.
    fn accept(&mut self) {
        for feed in 0..2 {
            if self.above.takers[feed].at.take_if(|at| *at <= self.now).is_some() {
                let some = self.random.random_range(1..=self.above.takers[feed].pending.len());
                self.take(feed, some);
            }
        }
        while self.above.takers[0].has_room()
            && let Some(fresh) =
                self.above.incoming.poll(self.random.random_range(1..50)).expect("whole")
        {
            let messages: Vec<_> =
                fresh.iter().map(|message| Message::of(Feed::Batched, &message)).collect();
            let taker = &mut self.above.takers[0];
            taker.progress.expect(fresh.first);
            taker.hand_over(&messages);
        }
        for feed in 0..2 {
            let at = self.later(40);
            let taker = &mut self.above.takers[feed];
            if !taker.pending.is_empty() {
                taker.at.get_or_insert(at);
            }
        }
        let (ack, at) = (self.above.published(), self.later(100));
        if let Some(link) = &mut self.link
            && link.last_ack.replace(ack) != Some(ack)
        {
            let at = link.acks.back().map_or(at, |(before, _)| at.max(*before));
            link.acks.push_back((at, ack));
        }
    }

    fn take(&mut self, feed: usize, count: usize) {
        let taker = &mut self.above.takers[feed];
        for message in taker.pending.drain(..count) {
            self.taken[feed].insert(message.number);
            self.out.push(message);
        }
        taker.accepted += count as u64;
        taker.progress.acknowledged(taker.accepted);
    }

    /// The shell of the sender.
    fn drive(&mut self) {
        for feed in Feed::ALL {
            let queue = &mut self.below[feed as usize];
            while self.sender.wants(feed)
                && let Some((message, packet_id)) = queue.read()
            {
                let (topic, payload) = (message.topic(), message.payload());
                let publish = Publish {
                    dup: false,
                    qos: message.qos,
                    retain: false,
                    topic: &topic,
                    packet_id,
                    properties: PublishProperties::default(),
                    payload: &payload,
                };
                assert_eq!(
                    self.sender.take(self.now, feed, &publish, self.now, None),
                    Taken::Carried
                );
            }
        }
        while let Some(command) = self.sender.poll_command(self.now) {
            match command {
                Command::Dial(open) => {
                    assert!(self.link.is_none() && self.dialled.is_none(), "it has a link");
                    self.dialled = Some((self.later(50), open));
                }
                // Of marks, which a first session has no use for.
                Command::Unsubscribe { feed, .. } if self.sessions == 1 => {
                    self.sender.handle_answered(self.now, feed, &[ReasonCode::SUCCESS]);
                }
                Command::Subscribe { feed, filters } if self.sessions == 1 => {
                    let reasons = vec![ReasonCode::SUCCESS; filters.len()];
                    self.sender.handle_answered(self.now, feed, &reasons);
                }
                other => panic!("its filters are those of before: {other:?}"),
            }
        }
        self.send();
        for feed in Feed::ALL {
            let (queue, taken) = (&mut self.below[feed as usize], &self.taken[feed as usize]);
            self.sender.take_acknowledged(feed, |id| {
                let message = queue.acknowledged(id);
                assert!(taken.contains(&message.number), "{message:?} is not published above");
            });
        }
    }

    fn send(&mut self) {
        loop {
            let (bulk_at, lane_at) = (self.later(60), self.later(20));
            let is_twice = !self.is_calm && self.random.random_bool(0.005);
            let blocked = self.blocked();
            let Some(link) = &mut self.link else { return };
            if !blocked.lane
                && let Some(part) = self.sender.poll_part(self.now)
            {
                let at = link.lane.back().map_or(lane_at, |(before, _)| lane_at.max(*before));
                // A repeated part of a message could not be distinguished from a part of a longer message.
                if is_twice && !part.more {
                    link.lane.push_back((at, part.clone()));
                }
                link.lane.push_back((at, part));
            } else if !blocked.bulk
                && let Some((record, body)) = self.sender.poll_batch(self.now)
            {
                if is_twice {
                    link.bulk.push((bulk_at, record, body.clone()));
                }
                link.bulk.push((bulk_at, record, body));
            } else {
                return;
            }
            self.faults.twice += u32::from(is_twice);
        }
    }

    fn is_drained(&self) -> bool {
        self.below.iter().all(|queue| queue.waiting.is_empty() && queue.read.is_empty())
            && self.sender.counts(self.now).held_bytes == 0
    }

    /// At least once, and in the order of their topics: a message may come again, but none before one that it follows.
    fn check(&self, seed: u64) {
        for feed in Feed::ALL {
            let mut newest: BTreeMap<String, u64> = BTreeMap::new();
            let mut seen = BTreeSet::new();
            for message in self.out.iter().filter(|message| message.feed == feed) {
                if seen.insert(message.number) && message.qos == QoS::AtLeastOnce {
                    let before = newest.insert(message.topic(), message.number);
                    assert!(
                        before.is_none_or(|before| before < message.number),
                        "seed {seed}: {message:?} comes after {before:?} of its topic"
                    );
                }
            }
        }
    }
}

#[test]
fn messages_come_at_least_once_in_order_and_are_acknowledged_no_earlier_whatever_fails() {
    let mut faults = Faults::default();
    for seed in 0..150 {
        let mut world = World::new(seed);
        for _ in 0..1_200 {
            world.step();
        }
        world.is_calm = true;
        let mut steps = 0;
        while !world.is_drained() {
            world.step();
            steps += 1;
            assert!(steps < 20_000, "seed {seed}: messages are left after {steps} steps");
        }
        for (made, taken) in world.made_at_least_once.iter().zip(&world.taken) {
            let lost: Vec<_> = made.difference(taken).collect();
            assert!(lost.is_empty(), "seed {seed}: {lost:?} of QoS 1 are lost");
        }
        world.check(seed);
        faults.breaks += world.faults.breaks;
        faults.refused += world.faults.refused;
        faults.twice += world.faults.twice;
        faults.restarts_above += world.faults.restarts_above;
        faults.restarts_below += world.faults.restarts_below;
    }
    let Faults { breaks, refused, twice, restarts_above, restarts_below } = faults;
    assert!(breaks > 300 && refused > 50 && twice > 100, "{faults:?}");
    assert!(restarts_above > 200 && restarts_below > 200, "{faults:?}");
}
