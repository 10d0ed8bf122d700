//! A client and a server of a few lines, over a connection that ends at every byte in turn and then at random ones.
//!
//! The server keeps to sections 4.3 and 4.4 by a list each of what it was sent and what it sends, and by nothing of the client's code.

use std::collections::{BTreeSet, VecDeque};

use super::*;

/// Messages in each direction.
const MESSAGES: u64 = 12;

/// A server's half of a session.
#[derive(Default)]
struct Server {
    has_session: bool,
    /// Messages that it accepted, in order.
    accepted: Vec<u64>,
    /// Identifiers of QoS 2 that were accepted and not released.
    held: BTreeSet<u16>,
    owed: VecDeque<Owed>,
    next: u64,
    // Of the connection.
    sent: BTreeSet<u16>,
    is_open: bool,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// A message that the client has not acknowledged to the end.
#[derive(Clone, Copy)]
struct Owed {
    id: u16,
    number: u64,
    qos: QoS,
    /// PUBREC came.
    is_received: bool,
}

impl Server {
    fn put(&mut self, packet: &Packet<'_>) {
        packet.encode(Version::V5, &mut self.output).expect("it is short");
    }

    fn lose_connection(&mut self) {
        self.is_open = false;
        self.sent.clear();
        self.input.clear();
        self.output.clear();
    }

    fn send(&mut self, owed: Owed, dup: bool) {
        self.sent.insert(owed.id);
        if owed.is_received {
            return self.put(&Packet::Pubrel(ack(owed.id)));
        }
        let payload = owed.number.to_be_bytes();
        self.put(&Packet::Publish(Publish {
            dup,
            qos: owed.qos,
            retain: false,
            topic: "down",
            packet_id: PacketId::new(owed.id),
            properties: PublishProperties::NONE,
            payload: &payload,
        }));
    }

    /// Sends new messages, three under way at a time.
    fn send_new(&mut self) {
        while self.is_open && self.owed.len() < 3 && self.next < MESSAGES {
            // Identifiers come again soon.
            let id = (1..).find(|id| self.owed.iter().all(|owed| owed.id != *id)).expect("of four");
            let qos = if self.next.is_multiple_of(2) { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            let owed = Owed { id, number: self.next, qos, is_received: false };
            self.next += 1;
            self.owed.push_back(owed);
            self.send(owed, false);
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header")
            && let Some((packet, after)) = rest.split_at_checked(header.packet_bytes())
        {
            rest = after;
            let body = &packet[header.header_bytes..];
            self.handle(Packet::decode(Version::V5, packet[0], body).expect("it decodes"));
        }
        self.input = rest.to_vec();
        self.send_new();
    }

    fn handle(&mut self, packet: Packet<'_>) {
        match packet {
            Packet::Connect(_) => {
                self.is_open = true;
                let receive_maximum = NonZeroU16::new(3);
                let limits = ConnackProperties { receive_maximum, ..Default::default() };
                let session_present = std::mem::replace(&mut self.has_session, true);
                let connack = Connack { session_present, ..limited(limits) };
                self.put(&Packet::Connack(Box::new(connack)));
                for owed in self.owed.clone() {
                    self.send(owed, true);
                }
            }
            Packet::Publish(publish) => {
                let number = u64::from_be_bytes(publish.payload.try_into().expect("eight bytes"));
                let id = publish.packet_id.expect("QoS 1 and 2").get();
                if publish.qos == QoS::AtLeastOnce {
                    self.accepted.push(number);
                    return self.put(&Packet::Puback(ack(id)));
                }
                if self.held.insert(id) {
                    self.accepted.push(number);
                } else {
                    assert!(publish.dup, "MQTT-3.3.1-1");
                }
                assert!(self.held.len() <= 3, "MQTT-3.3.4-9");
                self.put(&Packet::Pubrec(ack(id)));
            }
            Packet::Pubrel(release) => {
                self.held.remove(&release.packet_id.get());
                self.put(&Packet::Pubcomp(ack(release.packet_id.get())));
            }
            Packet::Puback(ack) | Packet::Pubcomp(ack) => {
                let id = ack.packet_id.get();
                assert!(self.sent.contains(&id), "it was sent on this connection");
                let at = self.owed.iter().position(|owed| owed.id == id).expect("it is owed");
                let done = self.owed.remove(at).expect("it is there");
                assert!(done.qos == QoS::AtLeastOnce || done.is_received, "it answers PUBREL");
            }
            Packet::Pubrec(received) => {
                let id = received.packet_id.get();
                let owed = self.owed.iter_mut().find(|owed| owed.id == id).expect("it is owed");
                owed.is_received = true;
                self.put(&Packet::Pubrel(ack(id)));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Messages that the caller of the client saw.
#[derive(Default)]
struct Caller {
    published: u64,
    acknowledged: BTreeSet<u64>,
    delivered: Vec<u64>,
    /// Identifiers that it has not acknowledged.
    waiting: VecDeque<PacketId>,
}

impl Caller {
    fn publish(&mut self, client: &mut Client<u64>) {
        while self.published < MESSAGES && client.room() > 0 {
            let qos =
                if self.published.is_multiple_of(3) { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
            let payload = self.published.to_be_bytes();
            let message =
                Publication { topic: "up", payload: &payload, qos, ..Publication::default() };
            client.publish(&message, self.published).expect("there is room");
            self.published += 1;
        }
    }

    fn receive(&mut self, client: &mut Client<u64>, input: &mut &[u8], manual: bool) {
        while let Some(event) = client.receive(input).expect("it is in place") {
            match event {
                Event::Message(message) => {
                    let number = message.payload.try_into().expect("eight bytes");
                    self.delivered.push(u64::from_be_bytes(number));
                    self.waiting.extend(message.packet_id.filter(|_| manual));
                }
                Event::Acknowledged { token, reason, .. } => {
                    assert_eq!(reason, ReasonCode::SUCCESS);
                    assert!(self.acknowledged.insert(token), "once");
                }
                Event::Connected { .. } | Event::Received { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Runs until both have all, over connections that carry so many bytes, both directions counted, and then a whole one. Returns what
/// was carried.
fn run(manual: bool, lives: &[usize]) -> usize {
    let config = Config { acknowledges: !manual, ..Config::default() };
    let mut client = Client::<u64>::new(config);
    let (mut server, mut caller) = (Server::default(), Caller::default());
    let connect = lasting(Version::V5);
    let mut carried = 0;
    for life in lives.iter().copied().chain([usize::MAX]) {
        server.lose_connection();
        client.connect(at(0), &connect).expect("it is short");
        let (mut left, mut buffer) = (life, ReceiveBuffer::default());
        loop {
            caller.publish(&mut client);
            if let Some(id) = caller.waiting.pop_front() {
                // A message of an earlier connection may not have come again.
                client.acknowledge(id, ReasonCode::SUCCESS);
            }
            let mut up = Vec::new();
            client.transmit(at(0), &mut up);
            let up = &up[..up.len().min(left)];
            left -= up.len();
            server.receive(up);
            let down = std::mem::take(&mut server.output);
            let down = &down[..down.len().min(left)];
            left -= down.len();
            carried += up.len() + down.len();
            buffer.extend(down);
            let mut input = buffer.bytes();
            caller.receive(&mut client, &mut input, manual);
            let unused = input.len();
            buffer.keep(unused);
            let is_quiet = up.is_empty() && down.is_empty() && caller.waiting.is_empty();
            if left == 0 || is_quiet {
                break;
            }
        }
    }
    assert_eq!(caller.acknowledged, (0..MESSAGES).collect(), "{lives:?}");
    for number in 0..MESSAGES {
        let count = |all: &[u64]| all.iter().filter(|one| **one == number).count();
        for (times, is_once) in [
            (count(&server.accepted), !number.is_multiple_of(3)),
            (count(&caller.delivered), number.is_multiple_of(2)),
        ] {
            assert!(times == 1 || (times > 1 && !is_once), "{number}: {times} times, {lives:?}");
        }
    }
    // First arrivals keep their order (MQTT-4.6.0-1, MQTT-4.6.0-6).
    for all in [&server.accepted, &caller.delivered] {
        let mut seen = BTreeSet::new();
        let firsts: Vec<_> = all.iter().filter(|number| seen.insert(**number)).collect();
        assert!(firsts.is_sorted(), "{firsts:?}, {lives:?}");
    }
    carried
}

#[test]
fn a_connection_lost_at_any_byte_loses_and_repeats_nothing() {
    for manual in [false, true] {
        let whole = run(manual, &[]);
        assert!(whole > 500, "{whole}");
        for life in 0..whole {
            run(manual, &[life]);
        }
    }
}

#[test]
fn connections_lost_again_and_again_lose_and_repeat_nothing() {
    for seed in 0..2_000_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        // `run` says the lives that failed.
        let lives: Vec<usize> = (0..random(12)).map(|_| random(300) as usize).collect();
        run(seed.is_multiple_of(2), &lives);
    }
}
