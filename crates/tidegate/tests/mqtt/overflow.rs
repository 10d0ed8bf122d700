//! Queues that fill on another shard than their publisher's, on the real program.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use tidegate_load::client::{Client, Options, Outgoing};
use tidegate_wire::mqtt::{
    Ack, Connect, ConnectProperties, FixedHeader, Packet, PacketId, Publish, PublishProperties,
    QoS, ReasonCode, RetainHandling, SubscribeFilter, Version,
};

use super::program::{LONGEST, Program, options_of};

/// Messages of a publisher that it has no answer for.
const IN_FLIGHT: usize = 500;

fn settings(queue: &str) -> String {
    format!(
        "[mqtt]\nshards = 2\n{queue}\n\
         [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    )
}

fn lasting(program: &Program, name: &str) -> Client {
    let options = Options {
        client_id: name.to_owned(),
        clean_start: false,
        session_expiry: Some(3600),
        ..options_of(program.address("main"))
    };
    Client::connect(options).expect("it is let in")
}

/// A publisher that keeps many messages in flight.
struct Publisher {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Publisher {
    fn connect(program: &Program, name: &str) -> Self {
        let stream = TcpStream::connect(program.address("main")).expect("a stream");
        stream.set_read_timeout(Some(LONGEST)).expect("it takes it");
        let mut publisher = Self { stream, input: Vec::new() };
        publisher.send(&Packet::Connect(Box::new(Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive: 0,
            client_id: name.to_owned(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties::default(),
        })));
        let connack = publisher.next(|packet| matches!(packet, Packet::Connack(_)));
        assert!(connack, "it is let in");
        publisher
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).expect("a short packet");
        self.stream.write_all(&bytes).expect("it takes it");
    }

    /// The next packet, as `of` sees it.
    fn next<T>(&mut self, of: impl FnOnce(&Packet<'_>) -> T) -> T {
        loop {
            if let Some(header) =
                FixedHeader::decode(&self.input, u32::MAX as usize).expect("it is one")
                && self.input.len() >= header.packet_bytes()
            {
                let bytes: Vec<u8> = self.input.drain(..header.packet_bytes()).collect();
                let body = &bytes[header.header_bytes..];
                let packet = Packet::decode(Version::V5, header.first, body).expect("it is one");
                return of(&packet);
            }
            let mut buffer = [0; 16 << 10];
            let count = self.stream.read(&mut buffer).expect("an answer");
            assert!(count > 0, "it is connected");
            self.input.extend_from_slice(&buffer[..count]);
        }
    }

    /// Publishes until the queues of its subscribers refuse; the numbers of the messages that were acknowledged as accepted.
    fn publish_until_refused(&mut self, first: u32, qos: QoS, bytes: usize) -> BTreeSet<u32> {
        let (mut accepted, mut open, mut next) = (BTreeSet::new(), BTreeSet::new(), 0);
        let mut is_refused = false;
        loop {
            let in_flight = if bytes > 10_000 { 20 } else { IN_FLIGHT };
            while !is_refused && open.len() < in_flight {
                assert!(next < 20_000, "no queue is that long");
                let mut payload = format!("{:08}", first + next).into_bytes();
                payload.resize(bytes, b'x');
                let id = PacketId::new((next % 60_000) as u16 + 1).expect("not 0");
                self.send(&Packet::Publish(Publish {
                    dup: false,
                    qos,
                    retain: false,
                    topic: "t",
                    packet_id: Some(id),
                    properties: PublishProperties::default(),
                    payload: &payload,
                }));
                open.insert(next);
                next += 1;
            }
            if open.is_empty() {
                return accepted;
            }
            let answer = self.next(|packet| match packet {
                Packet::Puback(ack) | Packet::Pubrec(ack) => Some((ack.packet_id, ack.reason)),
                Packet::Pubcomp(_) => None,
                other => panic!("{other:?}"),
            });
            let Some((id, reason)) = answer else { continue };
            let number = u32::from(id.get()) - 1;
            assert!(open.remove(&number), "{number} was answered before");
            if reason.is_failure() {
                assert_eq!(reason, ReasonCode::QUOTA_EXCEEDED);
                is_refused = true;
                continue;
            }
            accepted.insert(first + number);
            if qos == QoS::ExactlyOnce {
                self.send(&Packet::Pubrel(Ack::new(id, ReasonCode::SUCCESS)));
            }
        }
    }
}

/// The numbers of the messages that reach a session, until `all` have come and nothing more does.
fn fetched(program: &Program, name: &str, all: usize) -> BTreeSet<u32> {
    let mut client = lasting(program, name);
    let mut numbers = BTreeSet::new();
    loop {
        let patience = if numbers.len() < all { LONGEST } else { LONGEST / 50 };
        let Some(message) = client.receive(patience).expect("it is connected") else {
            return numbers;
        };
        let text = std::str::from_utf8(&message.payload[..8]).expect("a number");
        numbers.insert(text.parse().expect("a number"));
    }
}

#[test]
fn what_a_node_of_two_shards_acknowledges_is_delivered() {
    // One session on each shard, whichever the names are placed on: four of them are on both, but for one run in eight.
    let names = ["one", "two", "three", "four"];
    for (queue, qos, bytes, is_killed) in [
        ("overflow = \"disconnect\"\nqueue_messages_max = 5000", QoS::AtLeastOnce, 100, false),
        ("overflow = \"disconnect\"\nqueue_messages_max = 300", QoS::ExactlyOnce, 100, true),
        ("overflow = \"disconnect\"\nqueue_bytes_max = \"8MiB\"", QoS::AtLeastOnce, 500_000, true),
        (
            "overflow = \"spill-disconnect\"\nqueue_bytes_max = \"64KiB\"\nspill_bytes = \"1MiB\"",
            QoS::AtLeastOnce,
            5_000,
            false,
        ),
    ] {
        let settings = settings(queue);
        let mut program = Program::start(&settings);
        for name in names {
            let mut client = lasting(&program, name);
            let filter = SubscribeFilter {
                filter: "t".to_owned(),
                maximum_qos: QoS::ExactlyOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            };
            client.subscribe(&[filter]).expect("it is granted");
            client.disconnect().expect("it leaves");
        }
        let mut accepted = BTreeSet::new();
        for (number, name) in ["p", "q"].into_iter().enumerate() {
            let mut publisher = Publisher::connect(&program, name);
            let first = number as u32 * 100_000;
            accepted.extend(publisher.publish_until_refused(first, qos, bytes));
        }
        assert!(accepted.len() > 10, "{queue}: {} accepted", accepted.len());
        if is_killed {
            program = Program::start_in(program.kill(), &settings);
        }
        for name in names {
            let came = fetched(&program, name, accepted.len());
            let lost: Vec<_> = accepted.difference(&came).collect();
            assert!(lost.is_empty(), "{queue}: {name} lacks {} of {}", lost.len(), accepted.len());
        }
        program.stop();
    }
}

#[test]
fn one_stalled_subscriber_cuts_no_publisher() {
    const COUNT: u32 = 100;
    const BYTES: usize = 1 << 20;
    // Memory for all messages that is less than theirs, and then a disk that is, too.
    for (bounds, loses) in [("", false), ("spill_bytes = \"16MiB\"", true)] {
        let program = Program::start(&settings(&format!(
            "payload_bytes_max = \"64MiB\"\npacket_bytes_max = \"2MiB\"\n{bounds}"
        )));
        let [mut stalled, mut reads] = ["stalled", "reads"].map(|name| {
            let mut client = lasting(&program, name);
            let filter = SubscribeFilter {
                filter: "t".to_owned(),
                maximum_qos: QoS::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            };
            client.subscribe(&[filter]).expect("it is granted");
            client
        });
        // Before MQTT 5 a refusal would end the connection.
        let options = Options { version: Version::V4, ..options_of(program.address("main")) };
        let mut publisher = Client::connect(options).expect("it is let in");
        let mut payload = vec![b'x'; BYTES];
        for number in 0..COUNT {
            payload[..8].copy_from_slice(format!("{number:08}").as_bytes());
            let message = Outgoing {
                topic: "t",
                payload: &payload,
                qos: QoS::AtLeastOnce,
                ..Outgoing::default()
            };
            let reason = publisher.publish(&message).expect("it is answered");
            assert!(!reason.is_failure(), "{number}: {reason:?}");
            let message = reads.receive(LONGEST).expect("it is connected").expect("it comes");
            assert_eq!(message.payload, payload, "{number}");
        }
        let mut came = Vec::new();
        while came.last() != Some(&(COUNT - 1)) {
            let message = stalled.receive(LONGEST).expect("it is connected").expect("it comes");
            let text = std::str::from_utf8(&message.payload[..8]).expect("a number");
            came.push(text.parse::<u32>().expect("a number"));
        }
        assert!(came.is_sorted());
        assert_eq!(came.len() < COUNT as usize, loses, "{} came", came.len());
        program.stop();
    }
}
