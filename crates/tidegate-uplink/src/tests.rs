//! Both ends in virtual time, between them a link that delays, reorders, damages and breaks, and ends that restart: from one seed.

mod simulation;

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_compress::{Compression, DecodeError, DecoderConfig, Encoder, EncoderConfig, Message};
use tidegate_message::Instant;
use tidegate_wire::{CriticalPart, SensorBatch, Share, UplinkOpen, mqtt::PacketId};

use crate::{
    critical::Critical,
    incoming::{Incoming, IncomingError, LIMITS},
    message::Attributes,
    origin::Origin,
    outgoing::{Outgoing, OutgoingConfig, ProtocolError},
};

const TOPICS: u64 = 40;

fn config(compression: Compression, columns: bool) -> OutgoingConfig {
    OutgoingConfig {
        batch_age: Duration::from_millis(20),
        batch_idle: Duration::from_millis(5),
        window_bytes_max: 64 << 10,
        flight_bytes_max: 8 << 10,
        encoder: EncoderConfig {
            body_bytes: 1 << 10,
            columns,
            compression,
            topics_max: 30,
            ..EncoderConfig::default()
        },
        has_origins: false,
    }
}

fn origin(id: u16) -> Option<Origin> {
    PacketId::new(id).map(|id| Origin { received: Instant::EPOCH, id })
}

fn open() -> UplinkOpen {
    UplinkOpen {
        name: "u".to_owned(),
        life: 7,
        topics_max: 30,
        state_bytes_max: 256 << 20,
        names_messages: false,
        node: String::new(),
    }
}

/// The `number`-th message: its topic and payload follow from the number.
fn payload(number: u64) -> (String, String) {
    let topic = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % TOPICS;
    let text = match topic % 4 {
        0 => format!("{},{}.{:02},ok", 1_700_000_000 + number, number % 50, number % 97),
        1 => format!("{{\"n\":\"t\",\"v\":{},\"s\":{number}}}", number % 13),
        2 => format!("m,host=a v={number}i {}", number * 1000),
        _ => "x".repeat((number % 300) as usize),
    };
    (format!("site/{topic}/value"), text)
}

/// A link under way: records that were sent and have not come.
#[derive(Default)]
struct Pipe {
    bulk: VecDeque<(SensorBatch, Bytes)>,
    lane: VecDeque<CriticalPart>,
    /// Batches that came.
    came: u64,
}

struct World {
    random: StdRng,
    now: Instant,
    outgoing: Outgoing,
    critical: Critical,
    incoming: Incoming,
    /// None while there is no link.
    pipe: Option<Pipe>,
    taken: u64,
    taken_critical: u64,
    /// Numbers that came out, in order.
    out: Vec<u64>,
    out_critical: Vec<u64>,
    /// Below which numbers this receiver has all that it was sent.
    came: (u64, u64),
    /// The counts that the receiver has reported as published.
    told: (u64, u64),
    acknowledged: Vec<u16>,
    restarts: u32,
    breaks: u32,
    damaged: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let compression = match random.random_range(0..3) {
            0 => Compression::None,
            1 => Compression::Zstd(1),
            _ => Compression::ZstdStream(1),
        };
        let columns = random.random_bool(0.3);
        Self {
            outgoing: Outgoing::new(config(compression, columns), seed),
            critical: Critical::new(Instant::EPOCH, 1 << 20, false),
            incoming: Incoming::new(DecoderConfig::default()),
            random,
            now: Instant::EPOCH,
            pipe: None,
            taken: 0,
            taken_critical: 0,
            out: Vec::new(),
            out_critical: Vec::new(),
            came: (0, 0),
            told: (0, 0),
            acknowledged: Vec::new(),
            restarts: 0,
            breaks: 0,
            damaged: 0,
        }
    }

    fn step(&mut self, calm: bool) {
        self.now = self.now + Duration::from_millis(self.random.random_range(0..8));
        let chance = self.random.random_range(0..1000);
        match chance {
            // The link breaks; records under way are gone, the receiver has those that came.
            0..8 if !calm && self.pipe.is_some() => self.down(),
            // The receiver's process ends.
            8..11 if !calm => {
                self.incoming = Incoming::new(DecoderConfig::default());
                (self.came, self.told) = ((0, 0), (0, 0));
                self.restarts += 1;
                if self.pipe.is_some() {
                    self.down();
                }
            }
            11..200 if self.pipe.is_none() => self.up(),
            _ => {}
        }
        self.take();
        self.send();
        self.deliver(calm);
    }

    fn down(&mut self) {
        self.breaks += 1;
        self.pipe = None;
        self.outgoing.disconnected();
        self.critical.disconnected();
    }

    fn up(&mut self) {
        let ready = self.incoming.open(&open(), u64::MAX).expect("there is room");
        let seed = self.random.random();
        self.outgoing.connected(self.now, &ready, seed).expect("it is true");
        self.critical.connected(ready.critical_next).expect("it is true");
        self.pipe = Some(Pipe::default());
    }

    fn take(&mut self) {
        for _ in 0..self.random.random_range(0..20) {
            if self.outgoing.is_full() {
                break;
            }
            let (topic, payload) = payload(self.taken);
            let attributes: &[u8] = if self.taken.is_multiple_of(50) { b"\x05" } else { b"\x01" };
            let message =
                Message { topic: topic.as_bytes(), attributes, payload: payload.as_bytes() };
            let origin = origin((self.taken % 65_535) as u16 + 1);
            self.outgoing.take(self.now, message, origin).expect("it is short");
            self.taken += 1;
        }
        if self.random.random_bool(0.1) && !self.critical.is_full() {
            let long = if self.random.random_bool(0.05) { 30_000 } else { 20 };
            let payload = vec![self.taken_critical as u8; long];
            let message = Message { topic: b"alarm", attributes: b"\x01", payload: &payload };
            self.critical.take(self.now, message, None);
            self.taken_critical += 1;
        }
    }

    fn send(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        while let Some(part) = self.critical.poll_part(self.now) {
            pipe.lane.push_back(part);
        }
        while let Some(batch) = self.outgoing.poll_batch(self.now) {
            pipe.bulk.push_back(batch);
        }
    }

    fn deliver(&mut self, calm: bool) {
        for _ in 0..self.random.random_range(0..4) {
            let Some(pipe) = &mut self.pipe else { return };
            if let Some(part) = pipe.lane.pop_front() {
                let (out, next) = (&mut self.out_critical, &mut self.came.1);
                let came = self.incoming.critical(&part, |number, message, _| {
                    assert_eq!(message.topic, b"alarm");
                    assert!(message.payload.iter().all(|byte| *byte == number as u8));
                    out.push(number);
                    *next = number + 1;
                });
                came.expect("the lane is in order");
            }
            let ahead = self.random.random_range(0..4).min(pipe.bulk.len().saturating_sub(1));
            let Some((record, mut body)) = pipe.bulk.remove(ahead) else { continue };
            if !calm && self.random.random_bool(0.003) {
                let mut bytes = body.to_vec();
                let at = self.random.random_range(0..bytes.len());
                bytes[at] ^= 1 << self.random.random_range(0..8);
                body = bytes.into();
                self.damaged += 1;
            }
            pipe.came += 1;
            self.incoming.batch(record, body).expect("there is room");
            if let Err(error) = self.read() {
                assert!(matches!(error, IncomingError::Decode { .. }), "{error}");
                self.down();
                return;
            }
        }
        self.acknowledge();
    }

    fn read(&mut self) -> Result<(), IncomingError> {
        while let Some(fresh) = self.incoming.poll(self.random.random_range(1..200))? {
            for (number, message) in (fresh.first..).zip(fresh.iter()) {
                let (topic, payload) = payload(number);
                assert_eq!(message.topic, topic.as_bytes(), "message {number}");
                assert_eq!(message.payload, payload.as_bytes(), "message {number}");
                let attributes: &[u8] = if number.is_multiple_of(50) { b"\x05" } else { b"\x01" };
                assert_eq!(message.attributes, attributes);
                self.out.push(number);
                self.came.0 = number + 1;
            }
        }
        Ok(())
    }

    /// The receiver says what it has, or some of it, or nothing yet.
    fn acknowledge(&mut self) {
        if self.random.random_bool(0.5) {
            return;
        }
        let lags = self.random.random_range(0..10);
        self.told.0 = self.told.0.max(self.came.0.saturating_sub(lags));
        self.told.1 = self.came.1;
        let acknowledged = &mut self.acknowledged;
        let came = self.pipe.as_ref().map_or(0, |pipe| pipe.came);
        let arrived = self.outgoing.arrived(came).expect("they were sent");
        let told = self.outgoing.acknowledge(self.told.0, |id| acknowledged.push(id.get()));
        told.expect("it was sent");
        self.critical.acknowledge(self.told.1, |_| ()).expect("it was sent");
        self.critical.batches(arrived, self.outgoing.waits_for_link(self.now));
    }
}

#[test]
fn each_message_comes_out_in_order_whatever_breaks() {
    let (mut restarts, mut breaks, mut damaged) = (0, 0, 0);
    for seed in 0..200 {
        let mut world = World::new(seed);
        for _ in 0..1_500 {
            world.step(false);
            assert!(world.outgoing.held_bytes() < (64 << 10) + 1024, "seed {seed}");
        }
        for _ in 0..20_000 {
            world.step(true);
            if world.taken > 20_000 {
                break;
            }
        }
        // No more comes: all of it must arrive.
        for _ in 0..5_000 {
            world.now = world.now + Duration::from_millis(5);
            if world.pipe.is_none() {
                world.up();
            }
            world.send();
            world.deliver(true);
        }
        assert!(
            world.outgoing.held_bytes() == 0 && world.critical.held_bytes() == 0,
            "seed {seed}"
        );
        for (out, taken) in [(&world.out, world.taken), (&world.out_critical, world.taken_critical)]
        {
            // Without the receiver's restarts each once and in order; each restart may go back to what was not acknowledged.
            let goes_back = out.windows(2).filter(|pair| pair[1] <= pair[0]).count();
            assert!(goes_back <= world.restarts as usize, "seed {seed}: {goes_back}");
            assert!(
                out.windows(2).all(|pair| pair[1] <= pair[0] + 1),
                "seed {seed}: a message is missing"
            );
            assert_eq!(out.first().copied().unwrap_or(0), 0, "seed {seed}");
            assert_eq!(out.last().map_or(0, |last| last + 1), taken, "seed {seed}");
        }
        let each_once = (0..world.taken).map(|number| (number % 65_535) as u16 + 1);
        assert!(world.acknowledged.iter().copied().eq(each_once), "seed {seed}");
        restarts += world.restarts;
        breaks += world.breaks;
        damaged += world.damaged;
    }
    assert!(restarts > 100 && breaks > 500 && damaged > 20, "{restarts} {breaks} {damaged}");
}

#[test]
fn a_link_that_breaks_costs_no_definitions_of_what_had_come() {
    let mut world = World::new(1);
    for _ in 0..300 {
        world.step(true);
    }
    world.pipe.get_or_insert_default();
    let epochs = world.outgoing.sent().epochs;
    for _ in 0..20 {
        world.down();
        world.up();
        for _ in 0..30 {
            world.step(true);
        }
    }
    assert_eq!(world.outgoing.sent().epochs, epochs, "the state continued");
}

#[test]
fn impossible_claims_of_a_peer_are_refused() {
    let mut outgoing = Outgoing::new(config(Compression::None, false), 1);
    let ready =
        Incoming::new(DecoderConfig::default()).open(&open(), u64::MAX).expect("there is room");
    outgoing.connected(Instant::EPOCH, &ready, 1).expect("it knows nothing");
    let message = Message { topic: b"a", attributes: b"\x01", payload: b"1" };
    outgoing.take(Instant::EPOCH, message, None).expect("it is short");
    let error = outgoing.acknowledge(1, |_| ()).expect_err("nothing was sent");
    assert_eq!(error, ProtocolError::Acknowledged { asked: 1, sent: 0 });
    let later = Instant::EPOCH + Duration::from_secs(1);
    assert!(outgoing.poll_batch(later).is_some());
    let error = outgoing.arrived(2).expect_err("one was sent");
    assert_eq!(error, ProtocolError::Came { asked: 2, sent: 1 });
    outgoing.disconnected();
    let asked = tidegate_wire::UplinkReady { next: Some(2), ..ready };
    let error = outgoing.connected(later, &asked, 1).expect_err("it was not sent");
    assert_eq!(error, ProtocolError::Expected { asked: 2, first: 0, next: 1 });

    let greedy = UplinkOpen { topics_max: 1 << 40, ..open() };
    let mut incoming = Incoming::new(DecoderConfig::default());
    let error = incoming.open(&greedy, u64::MAX).expect_err("there is no room");
    assert!(matches!(error, IncomingError::Room { what: "topics", .. }));
    incoming.open(&open(), u64::MAX).expect("there is room");
    for sequence in 1..=64 {
        let record = SensorBatch { first: sequence, epoch: 1, sequence };
        incoming.batch(record, Bytes::new()).expect("they wait");
    }
    let record = SensorBatch { first: 65, epoch: 1, sequence: 65 };
    let error = incoming.batch(record, Bytes::new()).expect_err("too many wait");
    assert_eq!(error, IncomingError::TooFar { sequence: 65, expected: 0 });
    assert!(!incoming.is_full(), "the one that is expected may come");
}

#[test]
fn batches_that_wait_for_the_other_broker_hold_up_no_critical_message() {
    let mut outgoing = Outgoing::new(config(Compression::None, false), 1);
    let mut incoming = Incoming::new(DecoderConfig::default());
    let ready = incoming.open(&open(), u64::MAX).expect("there is room");
    let mut critical = Critical::new(Instant::EPOCH, 1 << 30, false);
    outgoing.connected(Instant::EPOCH, &ready, 1).expect("it knows nothing");
    critical.connected(None).expect("it knows nothing");
    let mut now = Instant::EPOCH;
    let (mut sent, mut alarms) = (0, 0);
    for number in 0..10_000_u64 {
        now = now + Duration::from_millis(30);
        let (topic, payload) = payload(number);
        let message =
            Message { topic: topic.as_bytes(), attributes: b"\x01", payload: payload.as_bytes() };
        if !outgoing.is_full() {
            outgoing.take(now, message, None).expect("it is short");
        }
        while let Some((record, body)) = outgoing.poll_batch(now + Duration::from_millis(25)) {
            assert!(!incoming.is_full());
            incoming.batch(record, body).expect("there is room for all that may be under way");
            sent += 1;
        }
        // The receiver's broker takes alarms alone.
        let came = outgoing.arrived(sent).expect("they were sent");
        critical.batches(came, outgoing.waits_for_link(now));
        let alarm = Message { topic: b"alarm", attributes: b"\x01", payload: &[7; 200] };
        critical.take(now, alarm, None);
        while let Some(part) = critical.poll_part(now) {
            let mut is_new = false;
            incoming.critical(&part, |_, _, _| is_new = true).expect("they are in order");
            assert!(is_new);
            alarms += 1;
            critical.acknowledge(part.number + 1, |_| ()).expect("it was sent");
        }
    }
    assert_eq!((alarms, outgoing.waits_for_link(now)), (10_000, false), "{sent} batches wait");
    // And then they come out whole.
    let mut next = 0;
    while let Some(fresh) = incoming.poll(7).expect("they are whole") {
        assert_eq!(fresh.first, next);
        next += fresh.iter().count() as u64;
    }
    assert_eq!((next, sent), (48, 48), "as many as may be under way, of a message each");
}

#[test]
fn messages_that_expire_before_they_are_sent_are_in_no_batch() {
    let mut outgoing = Outgoing::new(config(Compression::None, false), 1);
    let mut incoming = Incoming::new(DecoderConfig::default());
    let at = |seconds| Instant::EPOCH + Duration::from_secs(seconds);
    // QoS 1; some expire in 10 seconds, or in two hours.
    let (soon, late) = ([0b1001_u8, 10, 0, 0, 0], [0b1001_u8, 0x20, 0x1c, 0, 0]);
    let kinds = [&soon[..], &late[..], &b"\x01"[..]];
    for number in 0..30_u8 {
        let attributes = kinds[usize::from(number % 3)];
        let message = Message { topic: b"a", attributes, payload: &[number] };
        outgoing.take(at(0), message, origin(u16::from(number) + 1)).expect("it is short");
    }
    // The link comes after an hour.
    let ready = incoming.open(&open(), u64::MAX).expect("there is room");
    outgoing.connected(at(3600), &ready, 1).expect("it knows nothing");
    while let Some((record, body)) = outgoing.poll_batch(at(3601)) {
        incoming.batch(record, body).expect("it is the next");
    }
    let mut came = Vec::new();
    while let Some(fresh) = incoming.poll(100).expect("they are whole") {
        for message in fresh.iter() {
            let number = message.payload[0];
            let left = if number % 3 == 1 { Some(3599) } else { None };
            assert_eq!(Attributes::of(message.attributes).expect("attributes").expiry, left);
            came.push(number);
        }
    }
    assert_eq!(came, (0..30).filter(|number| number % 3 != 0).collect::<Vec<u8>>());
    let mut owed = Vec::new();
    outgoing.expired(|id| owed.push(id.get()));
    assert_eq!(owed, (1..=30).step_by(3).collect::<Vec<u16>>());
    outgoing.acknowledge(20, |id| owed.push(id.get())).expect("they were sent");
    assert_eq!((owed.len(), outgoing.held_bytes()), (30, 0));
    // Where all has expired, there is nothing to wake for.
    outgoing
        .take(at(3602), Message { topic: b"a", attributes: &soon, payload: b"x" }, None)
        .expect("it is short");
    assert!(outgoing.poll_batch(at(3620)).is_none());
    assert_eq!((outgoing.poll_timeout(), outgoing.held_bytes()), (None, 0));
}

#[test]
fn batches_close_by_age_by_size_and_when_no_more_comes() {
    let mut outgoing = Outgoing::new(config(Compression::None, false), 1);
    let at = |millis| Instant::EPOCH + Duration::from_millis(millis);
    let ready =
        Incoming::new(DecoderConfig::default()).open(&open(), u64::MAX).expect("there is room");
    outgoing.connected(at(0), &ready, 1).expect("it knows nothing");
    let message = Message { topic: b"a", attributes: b"\x01", payload: b"1" };
    let take = |outgoing: &mut Outgoing, millis| {
        outgoing.take(at(millis), message, None).expect("it is short");
    };
    // One alone waits for a quarter of the age.
    take(&mut outgoing, 0);
    assert_eq!(outgoing.poll_timeout(), Some(at(5)));
    assert!(outgoing.poll_batch(at(4)).is_none());
    assert!(outgoing.poll_batch(at(5)).is_some());
    assert_eq!(outgoing.poll_timeout(), None);
    // With others behind it for the whole.
    for millis in [10, 13, 17, 21, 25, 29] {
        take(&mut outgoing, millis);
        assert!(outgoing.poll_batch(at(millis)).is_none());
    }
    assert_eq!(outgoing.poll_timeout(), Some(at(30)));
    assert!(outgoing.poll_batch(at(30)).is_some());
    // With enough others not at all.
    let long = vec![b'y'; 2_000];
    let message = Message { topic: b"b", attributes: b"\x01", payload: &long };
    outgoing.take(at(40), message, None).expect("it is short");
    assert!(outgoing.poll_batch(at(40)).is_some());
    // No more than may be under way.
    for number in 0..40_u8 {
        let long = vec![number; 2_000];
        let message = Message { topic: &[b't', number], attributes: b"\x01", payload: &long };
        outgoing.take(at(50), message, None).expect("it is short");
    }
    let mut sent = 0;
    while outgoing.poll_batch(at(100)).is_some() {
        sent += 1;
    }
    assert!((3..=5).contains(&sent), "{sent}");
}

#[test]
fn batches_use_no_more_than_their_share_for_as_long_as_it_holds() {
    let mut outgoing = Outgoing::new(
        OutgoingConfig {
            window_bytes_max: 1 << 20,
            flight_bytes_max: 1 << 20,
            ..config(Compression::None, false)
        },
        1,
    );
    let mut incoming = Incoming::new(DecoderConfig::default());
    let ready = incoming.open(&open(), u64::MAX).expect("there is room");
    outgoing.connected(Instant::EPOCH, &ready, 1).expect("it knows nothing");
    let share = |bytes_per_second| Share {
        bytes_per_second,
        shift: Duration::ZERO,
        valid_for: Duration::from_secs(5),
    };
    let mut random = StdRng::seed_from_u64(1);
    let mut now = Instant::EPOCH;
    // Bytes that go within `time`, with as much waiting as may and all of it arriving at once.
    let mut run = |outgoing: &mut Outgoing, time: Duration| {
        let (until, mut bytes) = (now + time, 0);
        while now < until {
            while !outgoing.is_full() {
                let payload: [u8; 500] = std::array::from_fn(|_| random.random());
                let message = Message { topic: b"a", attributes: b"\x01", payload: &payload };
                outgoing.take(now, message, None).expect("it is short");
            }
            while let Some((record, body)) = outgoing.poll_batch(now) {
                bytes += body.len();
                incoming.batch(record, body).expect("it is the next");
            }
            let mut next = None;
            while let Some(fresh) = incoming.poll(usize::MAX).expect("it is whole") {
                next = Some(fresh.first + fresh.iter().count() as u64);
            }
            if let Some(next) = next {
                outgoing.acknowledge(next, |_| ()).expect("it was sent");
            }
            let wakes = outgoing.poll_timeout().expect("more waits");
            now = wakes.max(now + Duration::from_micros(100)).min(until);
        }
        bytes as f64
    };
    let free = run(&mut outgoing, Duration::from_secs(1));
    outgoing.share(Instant::EPOCH + Duration::from_secs(1), share(100_000));
    let limited = run(&mut outgoing, Duration::from_secs(4));
    assert!((395e3..405e3).contains(&limited), "{limited} of 400,000");
    assert!(free > 10.0 * limited, "{free} before");
    // Renewed, and lower.
    outgoing.share(Instant::EPOCH + Duration::from_secs(5), share(50_000));
    assert_eq!(outgoing.allowed(Instant::EPOCH + Duration::from_secs(5)), Some(50_000));
    let lower = run(&mut outgoing, Duration::from_secs(5));
    assert!((245e3..255e3).contains(&lower), "{lower} of 250,000");
    // As good as nothing for a moment: bytes sent then hold up nothing once there is more again.
    outgoing.share(Instant::EPOCH + Duration::from_secs(10), share(1));
    run(&mut outgoing, Duration::from_millis(500));
    outgoing.share(Instant::EPOCH + Duration::from_millis(10_500), share(50_000));
    let more = run(&mut outgoing, Duration::from_secs(5));
    assert!((240e3..255e3).contains(&more), "{more} of 250,000");
    // Not renewed.
    run(&mut outgoing, Duration::from_millis(500));
    let again = run(&mut outgoing, Duration::from_secs(1));
    assert!(again > free / 2.0, "{again}");
    assert_eq!(outgoing.allowed(Instant::EPOCH + Duration::from_secs(16)), None);
    // And renewed after all: bytes sent meanwhile are not held against it.
    outgoing.share(Instant::EPOCH + Duration::from_secs(17), share(50_000));
    let renewed = run(&mut outgoing, Duration::from_secs(4));
    assert!((195e3..205e3).contains(&renewed), "{renewed} of 200,000");
}

#[test]
fn a_batch_that_comes_again_ends_the_link_and_costs_nothing() {
    let mut outgoing = Outgoing::new(config(Compression::None, false), 1);
    let mut incoming = Incoming::new(DecoderConfig::default());
    let ready = incoming.open(&open(), u64::MAX).expect("there is room");
    outgoing.connected(Instant::EPOCH, &ready, 1).expect("it knows nothing");
    let mut batches = Vec::new();
    for number in 0..3_u64 {
        let at = Instant::EPOCH + Duration::from_secs(number);
        let text = number.to_string();
        let message = Message { topic: b"a", attributes: b"\x01", payload: text.as_bytes() };
        outgoing.take(at, message, None).expect("it is short");
        let later = at + Duration::from_millis(500);
        batches.push(outgoing.poll_batch(later).expect("it is due"));
    }
    let came = |incoming: &mut Incoming| {
        let mut came = 0;
        while let Some(fresh) = incoming.poll(usize::MAX).expect("it is whole") {
            came += fresh.iter().count();
        }
        came
    };
    for (record, body) in &batches[..2] {
        incoming.batch(*record, body.clone()).expect("it is the next");
        assert_eq!(came(&mut incoming), 1);
    }
    let (first, body) = &batches[0];
    let epoch = first.epoch;
    let error = incoming.batch(*first, body.clone()).expect_err("it came before");
    let expected = IncomingError::Replayed { epoch, sequence: 0, current: epoch, expected: 2 };
    assert_eq!(error, expected);
    let old = SensorBatch { epoch: epoch - 1, ..*first };
    let error = incoming.batch(old, body.clone()).expect_err("that epoch is over");
    assert!(matches!(error, IncomingError::Replayed { sequence: 0, expected: 0, .. }), "{error}");
    // So does one that waits for one before it.
    let ahead = SensorBatch { sequence: 3, ..batches[2].0 };
    incoming.batch(ahead, Bytes::new()).expect("it may come before the one that is expected");
    let error = incoming.batch(ahead, Bytes::new()).expect_err("it waits already");
    assert!(matches!(error, IncomingError::Replayed { sequence: 3, expected: 2, .. }), "{error}");
    assert_eq!(incoming.batches(), 1);
    // The next link continues where this one was.
    let ready = incoming.open(&open(), u64::MAX).expect("there is room");
    assert_eq!((ready.next, ready.resume.map(|resume| resume.sequence)), (Some(2), Some(2)));
    let (record, body) = &batches[2];
    incoming.batch(*record, body.clone()).expect("it is the next");
    assert_eq!(came(&mut incoming), 1);
}

/// The batch that is being filled, whose first message has that number.
fn finished(encoder: &mut Encoder, first: u64) -> (SensorBatch, Bytes) {
    let mut body = Vec::new();
    let header = encoder.finish(&mut body).expect("there are messages");
    let record = SensorBatch { first, epoch: header.epoch, sequence: header.sequence };
    (record, body.into())
}

#[test]
fn topics_are_known_as_far_as_the_state_that_is_granted_goes() {
    // More than were known at once where nothing is said of them.
    const COUNT: u64 = (1 << 20) + 50_000;
    let opened = |topics_max, state_bytes_max| {
        let mut incoming = Incoming::new(LIMITS);
        let open = UplinkOpen { topics_max, state_bytes_max, ..open() };
        incoming.open(&open, state_bytes_max).map(|ready| (incoming, ready))
    };
    let (mut incoming, ready) = opened(16 << 20, 1 << 30).expect("there is room");
    assert_eq!(ready.state_bytes_max, 1 << 30);
    let config = EncoderConfig {
        topics_max: 16 << 20,
        state_bytes_max: ready.state_bytes_max,
        ..EncoderConfig::default()
    };
    let mut encoder = Encoder::new(config, 1, 1);
    let push = |encoder: &mut Encoder, number: u64| {
        let topic = number.to_string();
        let message = Message { topic: topic.as_bytes(), attributes: b"\x01", payload: b"1" };
        encoder.push(message).expect("there is room");
    };
    let mut first = 0;
    for number in 0..COUNT {
        push(&mut encoder, number);
        if encoder.is_due() || number + 1 == COUNT {
            let (record, body) = finished(&mut encoder, first);
            incoming.batch(record, body).expect("it is expected");
            while incoming.poll(usize::MAX).expect("it can be read").is_some() {}
            first = number + 1;
        }
    }
    assert_eq!((incoming.state().0 as u64, encoder.counts().evictions), (COUNT, 0));

    // An uplink that is granted little has no long table made, not even with the first topic of all.
    let (mut incoming, _) = opened(16 << 20, 1 << 20).expect("there is room");
    encoder.resume(1, 0).expect("it is of this epoch");
    push(&mut encoder, 1_000_000);
    let (record, body) = finished(&mut encoder, 0);
    incoming.batch(record, body).expect("it is expected");
    let Err(IncomingError::Decode { source: DecodeError::Limit { what, max, .. }, .. }) =
        incoming.poll(1)
    else {
        panic!("a topic of a number beyond all was taken");
    };
    assert_eq!((what, max), ("topics", (1 << 20) / 64 + 65_536));

    let error = opened((16 << 20) + 1, 1 << 30).expect_err("too many");
    let expected = "16777217 topics asked for, a node keeps at most 16777216 of an uplink: lower its topics_max";
    assert_eq!(error.to_string(), expected);
}
