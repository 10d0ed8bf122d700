//! Uplinks: the receiving end against a peer that says anything.

use std::sync::LazyLock;

use bytes::Bytes;
use tidegate_compress::{DecoderConfig, Encoder, EncoderConfig, Message};
use tidegate_message::Instant;
use tidegate_uplink::{
    AHEAD_BYTES_MAX, AHEAD_MAX, Attributes, CRITICAL_BYTES_MAX, Critical, Incoming,
    critical_message,
};
use tidegate_wire::{
    CriticalPart, Resume, SensorBatch, UplinkOpen,
    limits::CRITICAL_PART_BYTES_MAX,
    mqtt::{FixedHeader, PacketId, Publish, PublishHead, PublishProperties, QoS, Version},
};

/// The property Message Expiry Interval.
const MESSAGE_EXPIRY: u8 = 2;

/// Attributes as a peer may send them, and a message as a client may publish it: a byte for QoS, retain and group, then properties.
/// Attributes that are read are those that would be written, a subscriber is sent these properties and no others, and all
/// forwarded properties of a published message come out unchanged.
pub fn uplink_attributes(data: &[u8]) {
    if let Ok(found) = Attributes::of(data) {
        let mut raw = Vec::new();
        if let Some(seconds) = found.expiry {
            raw.push(MESSAGE_EXPIRY);
            raw.extend_from_slice(&seconds.to_be_bytes());
        }
        raw.extend_from_slice(found.forwarded);
        let properties = PublishProperties::decode(&raw).expect("a message may have them");
        let mut again = Vec::new();
        Attributes::put(&publish(found.qos, found.retain, properties), found.group, &mut again);
        assert_eq!(again, data);
        leaves(&found);
    }
    let Some((&flags, raw)) = data.split_first() else { return };
    let Some(qos) = QoS::of_bits(flags & 3) else { return };
    let Ok(properties) = PublishProperties::decode(raw) else { return };
    let retain = flags & 4 != 0;
    let (mut written, mut forwarded) = (Vec::new(), Vec::new());
    let group = (flags & 8 != 0).then_some("$share/g/t/#");
    Attributes::put(&publish(qos, retain, properties), group, &mut written);
    properties.forwarded(&mut forwarded);
    let expiry = properties.message_expiry;
    let expected = Attributes { qos, retain, expiry, group, forwarded: &forwarded };
    let is_named =
        properties.user_properties().any(|(name, _)| name == tidegate_message::ID_PROPERTY);
    let found = Attributes::of(&written).expect("written attributes are read");
    assert_eq!((found, found.is_named()), (expected, is_named));
    leaves(&found);
}

fn publish(qos: QoS, retain: bool, properties: PublishProperties<'_>) -> Publish<'_> {
    let packet_id = (qos != QoS::AtMostOnce).then_some(PacketId::MIN);
    Publish { dup: false, qos, retain, topic: "t", packet_id, properties, payload: b"" }
}

/// Subscribers are sent what the attributes say.
fn leaves(attributes: &Attributes<'_>) {
    let head = PublishHead {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: attributes.retain,
        topic: "t",
        packet_id: None,
        topic_alias: None,
        message_expiry: attributes.expiry,
        subscription_ids: &[],
        forwarded: attributes.forwarded,
        payload_bytes: 0,
    };
    let mut packet = Vec::new();
    head.encode(Version::V5, &mut packet);
    let header = FixedHeader::decode(&packet, usize::MAX).expect("a header").expect("all of it");
    let sent = Publish::decode(Version::V5, header.first, &packet[header.header_bytes..]);
    let properties = sent.expect("a subscriber can read it").properties;
    let mut forwarded = Vec::new();
    properties.forwarded(&mut forwarded);
    assert_eq!((properties.topic_alias, properties.message_expiry), (None, attributes.expiry));
    assert_eq!(properties.subscription_ids().next(), None);
    assert_eq!(forwarded, attributes.forwarded);
}

/// The receiver's limits on the codec's state.
const LIMITS: DecoderConfig =
    DecoderConfig { topics_max: 64, state_bytes_max: 1 << 16, body_bytes_max: 1 << 20 };
/// Longest batch, most of which is no message.
const LARGEST: usize = 256 << 16;
/// Bytes of critical messages of nothing: more than one may have.
const NOTHING_BYTES_MAX: usize = 20 << 20;
static NOTHING: LazyLock<Bytes> = LazyLock::new(|| vec![0_u8; LARGEST].into());

/// Records of a peer, some of which a true sender made, and times at which messages are taken, each with a byte for what and one for
/// how much. The state keeps its bounds; of one life each number comes out once and in order, whatever connections come and go; a
/// critical message that comes alone comes out unchanged; and after all that, so do messages of a correct sender.
pub fn uplink_records(data: &[u8]) {
    // Bytes that may be one are one or none.
    if let Some(message) = critical_message(data) {
        let parts = [message.topic, message.attributes, message.payload].concat();
        assert_eq!(parts, data[4..]);
    }
    let mut world = World::new();
    let mut rest = data;
    while let [what, amount, after @ ..] = rest {
        rest = after;
        let (high, amount) = (what >> 3, *amount);
        match what % 8 {
            0 => {
                let Some((&[sequence], after)) = rest.split_first_chunk() else { break };
                let body = next(&mut rest, after);
                let sequence = number(sequence);
                let record = SensorBatch { first: number(amount), epoch: high.into(), sequence };
                world.batch(record, body);
            }
            1 => world.send_batch(high, amount),
            2 => world.send_ahead(high, amount),
            3 => world.poll(usize::from(amount) + 1),
            4 => {
                let after = rest;
                let bytes = next(&mut rest, after);
                world.critical(CriticalPart { number: number(amount), more: high & 1 == 1, bytes });
            }
            5 => world.send_critical(usize::from(amount) << (high & 7)),
            6 => world.send_nothing(usize::from(amount) + 1),
            _ => {
                if high & 1 == 1 {
                    world.begin_life();
                }
                world.open();
            }
        }
        world.check();
    }
    world.end();
}

/// Takes a length of one byte, then as many bytes as there are of it.
fn next<'a>(rest: &mut &'a [u8], after: &'a [u8]) -> Bytes {
    let (count, after) = after.split_first().map_or((0, after), |(count, after)| (*count, after));
    let (bytes, after) = after.split_at(usize::from(count).min(after.len()));
    *rest = after;
    Bytes::copy_from_slice(bytes)
}

/// Numbers from 0 on, and the last ones that there are.
fn number(byte: u8) -> u64 {
    if byte < 0xe0 { byte.into() } else { u64::MAX - u64::from(0xff - byte) }
}

/// The parts in which a critical message is sent, which is the first of its sender.
fn critical_parts(message: Message<'_>) -> Vec<CriticalPart> {
    let mut critical = Critical::new(Instant::EPOCH, 1 << 40, false);
    critical.connected(None).expect("it expects nothing");
    critical.take(Instant::EPOCH, message, None);
    std::iter::from_fn(|| critical.poll_part(Instant::EPOCH)).collect()
}

struct World {
    receiver: Incoming,
    /// A true sender's.
    encoder: Encoder,
    life: u64,
    /// The number that it sends next.
    next: u64,
    critical_next: u64,
    /// The number that comes out next in this life, if one has.
    came: Option<u64>,
    critical_came: Option<u64>,
    /// Whether no part of a critical message waits for another one.
    is_alone: bool,
    nothing_bytes: usize,
}

impl World {
    fn new() -> Self {
        let config =
            EncoderConfig { topics_max: 8, state_bytes_max: 1 << 16, ..EncoderConfig::default() };
        let mut world = Self {
            receiver: Incoming::new(LIMITS),
            encoder: Encoder::new(config, 1, 99),
            life: 1,
            next: 0,
            critical_next: 0,
            came: None,
            critical_came: None,
            is_alone: true,
            nothing_bytes: 0,
        };
        world.open();
        world
    }

    fn begin_life(&mut self) {
        self.life += 1;
        (self.came, self.critical_came) = (None, None);
    }

    /// A connection begins, and a correct sender continues where the receiver is.
    fn open(&mut self) {
        let open = UplinkOpen {
            name: "u".to_owned(),
            life: self.life,
            topics_max: LIMITS.topics_max as u64,
            state_bytes_max: LIMITS.state_bytes_max,
            names_messages: false,
            node: String::new(),
        };
        let ready = self.receiver.open(&open, u64::MAX).expect("there is room");
        assert!(ready.state_bytes_max <= LIMITS.state_bytes_max);
        // Messages read and not taken still come.
        assert!(self.came.is_none_or(|came| ready.next.is_some_and(|next| came <= next)));
        assert_eq!(ready.critical_next, self.critical_came);
        let encoder = &mut self.encoder;
        let goes_on = ready
            .resume
            .is_some_and(|Resume { epoch, sequence }| encoder.resume(epoch, sequence).is_ok());
        if !goes_on {
            let epoch = ready.resume.map_or(0, |resume| resume.epoch).max(encoder.epoch());
            encoder.restart(epoch + 1, 99);
        }
        self.next = ready.next.unwrap_or(0);
        self.critical_next = ready.critical_next.unwrap_or(0);
        self.is_alone = true;
    }

    fn batch(&mut self, record: SensorBatch, body: Bytes) {
        if self.receiver.batch(record, body).is_err() {
            self.open();
        }
    }

    /// The next batch of a true sender, or one whose messages came before, are not the next, or the last that there can be.
    fn send_batch(&mut self, what: u8, amount: u8) {
        let first = match what {
            0..24 => self.next,
            24..28 => self.next.saturating_sub(u64::from(amount & 7)),
            28..30 => self.next.saturating_add(u64::from(amount & 7)),
            _ => number(amount),
        };
        let payloads: Vec<_> = (0..=amount & 15).map(|at| vec![what, amount, at]).collect();
        self.send(first, &payloads);
    }

    fn send(&mut self, first: u64, payloads: &[Vec<u8>]) {
        for (at, payload) in payloads.iter().enumerate() {
            let topic = [b't', at as u8 & 7];
            let message = Message { topic: &topic, attributes: b"\x01", payload };
            self.encoder.push(message).expect("it is short");
        }
        let mut body = Vec::new();
        let header = self.encoder.finish(&mut body).expect("it holds messages");
        let record = SensorBatch { first, epoch: header.epoch, sequence: header.sequence };
        self.next = self.next.max(first.saturating_add(payloads.len() as u64));
        self.batch(record, body.into());
    }

    /// A long batch that is to come later.
    fn send_ahead(&mut self, what: u8, amount: u8) {
        let sequence = self.encoder.sequence() + 1 + u64::from(what);
        let record = SensorBatch { first: self.next, epoch: self.encoder.epoch(), sequence };
        self.batch(record, NOTHING.slice(..(usize::from(amount) + 1) << 16));
    }

    fn poll(&mut self, about: usize) {
        let came = &mut self.came;
        let Ok(fresh) = self.receiver.poll(about) else { return self.open() };
        let Some(fresh) = fresh else { return };
        let mut count = 0;
        for _ in fresh.iter() {
            let number = fresh.first.wrapping_add(count);
            assert!(came.is_none_or(|next| next == number), "{number} instead of {came:?}");
            *came = number.checked_add(1);
            count += 1;
        }
        assert!(count < 2 * about as u64);
    }

    /// A part came; the message that came out.
    fn critical(&mut self, part: CriticalPart) -> Option<Vec<u8>> {
        let came = &mut self.critical_came;
        let mut published = None;
        let taken = self.receiver.critical(&part, |number, message, _| {
            assert_eq!(number, part.number);
            assert!(came.is_none_or(|next| next == number), "{number} instead of {came:?}");
            *came = number.checked_add(1);
            published = Some(message.payload.to_vec());
        });
        let goes_on = taken.is_ok();
        assert!(published.is_none() || goes_on && !part.more);
        self.is_alone = !part.more;
        if goes_on {
            self.critical_next = self.critical_came.unwrap_or(0);
        } else {
            self.open();
        }
        published
    }

    /// The next critical message of a true sender.
    fn send_critical(&mut self, bytes: usize) {
        let (payload, number) = (vec![bytes as u8; bytes], self.critical_next);
        let message = Message { topic: b"alarm", attributes: b"\x01", payload: &payload };
        let is_alone = self.is_alone;
        let mut published = None;
        for part in critical_parts(message) {
            assert_eq!(part.number, 0);
            published = self.critical(CriticalPart { number, ..part });
        }
        // No true sender comes near the last number that there is.
        assert!(!is_alone || number > u64::MAX / 2 || published == Some(payload));
    }

    /// Parts of a critical message that does not end.
    fn send_nothing(&mut self, count: usize) {
        for _ in 0..count {
            self.nothing_bytes += CRITICAL_PART_BYTES_MAX;
            if self.nothing_bytes > NOTHING_BYTES_MAX {
                return;
            }
            let bytes = NOTHING.slice(..CRITICAL_PART_BYTES_MAX);
            self.critical(CriticalPart { number: self.critical_next, more: true, bytes });
        }
    }

    fn check(&self) {
        let (batches, (_, batch_bytes)) = (self.receiver.batches(), self.receiver.waiting());
        // One that is expected may come though as many wait as may, in the epoch at hand and in the next.
        assert!(batches <= AHEAD_MAX + 2, "{batches}");
        assert!(batch_bytes <= (AHEAD_BYTES_MAX + 3 * LARGEST) as u64, "{batch_bytes}");
        let (part_bytes, (topics, _)) = (self.receiver.part_bytes(), self.receiver.state());
        assert!(part_bytes <= CRITICAL_BYTES_MAX, "{part_bytes}");
        assert!(topics <= LIMITS.topics_max, "{topics}");
    }

    /// Another life of a true sender.
    fn end(&mut self) {
        self.begin_life();
        self.open();
        let payloads = ["1", "2", "3"].map(|payload| payload.as_bytes().to_vec());
        self.send(0, &payloads);
        let mut came: Vec<(u64, Vec<u8>)> = Vec::new();
        while let Some(fresh) = self.receiver.poll(2).expect("it is whole") {
            let payloads = fresh.iter().map(|message| message.payload.to_vec());
            came.extend((fresh.first..).zip(payloads));
        }
        assert_eq!(came, (0_u64..).zip(payloads).collect::<Vec<_>>());
        self.send_critical(CRITICAL_PART_BYTES_MAX);
        assert_eq!(self.critical_came, Some(1));
    }
}
