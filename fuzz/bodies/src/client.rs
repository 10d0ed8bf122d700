//! An MQTT client beside a server that sends anything.

use std::{collections::VecDeque, num::NonZeroU16, time::Duration};

use tidegate_message::Instant;
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, FixedHeader, Packet, QoS, ReasonCode, SubscribeFilter, Version,
    client::{Client, Config, Event, Publication, ReceiveBuffer},
};

/// A byte for the version and what is configured, then steps: a byte below 0x80 is followed by so many bytes and one of the server's, the
/// others are the caller's commands. The client sends whole packets, whatever comes; it keeps to its window; and a packet that was
/// cut off makes no difference to what follows on the next connection.
pub fn mqtt_client(data: &[u8]) {
    let Some((&options, mut steps)) = data.split_first() else { return };
    let version = [Version::V3, Version::V4, Version::V5][usize::from(options % 3)];
    let inflight_max = NonZeroU16::new(3).expect("not zero");
    let acknowledges = options & 0x10 == 0;
    let config = Config {
        inflight_max,
        packet_bytes_max: 1 << 16,
        acknowledges,
        ids_from_the_end: options & 0x40 != 0,
        ..Config::default()
    };
    let lasts = options & 0x20 != 0;
    let connect = Connect {
        clean_start: !lasts,
        keep_alive: 10,
        properties: ConnectProperties {
            session_expiry: lasts.then_some(60),
            receive_maximum: NonZeroU16::new(4),
            topic_alias_maximum: 3,
            ..ConnectProperties::default()
        },
        ..Connect::new(version, "fuzz")
    };
    let mut client: Client<u32> = Client::new(config);
    let (mut input, mut now) = (ReceiveBuffer::default(), Instant::EPOCH);
    let (mut next, mut waiting) = (0, VecDeque::new());
    client.connect(now, &connect).expect("it is short");
    while let Some((&step, rest)) = steps.split_first() {
        steps = rest;
        now = now + Duration::from_millis(700);
        let room = client.room();
        match step {
            0..0x80 => {
                let (bytes, rest) = steps.split_at(steps.len().min(usize::from(step) + 1));
                steps = rest;
                input.extend(bytes);
                if !receive(&mut client, &mut input, &mut waiting) {
                    assert!(!client.is_connected());
                    client.closed();
                    input.clear();
                }
            }
            0x80..0x90 => {
                let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
                let message = Publication {
                    topic: "a/b",
                    payload: &[step; 9],
                    qos: qos[usize::from(step % 3)],
                    topic_alias: NonZeroU16::new(u16::from(step & 4 != 0)),
                    ..Publication::default()
                };
                let published = client.publish(&message, next);
                if let Ok(Some(_)) = published {
                    next += 1;
                    assert!(room > 0);
                }
            }
            0x90..0xa0 => {
                let filter = SubscribeFilter {
                    filter: "a/+".to_owned(),
                    maximum_qos: QoS::ExactlyOnce,
                    no_local: false,
                    retain_as_published: false,
                    retain_handling: Default::default(),
                };
                // Refused where the server said so, and without connection.
                let _ = client.subscribe(vec![filter], None, next);
            }
            0xa0..0xb0 => {
                if let Some(id) = waiting.pop_front() {
                    client.acknowledge(id, ReasonCode(step & 1));
                }
            }
            0xb0..0xc0 => {
                client.closed();
                input.clear();
                client.connect(now, &connect).expect("it is short");
            }
            _ => {
                if client.handle_timeout(now).is_err() {
                    client.closed();
                }
            }
        }
        // A session that was kept may bring more than the window of this connection.
        assert!(client.room() + client.unacknowledged() <= 3 || client.room() == 0);
        let mut output = Vec::new();
        if step & 1 == 0 && client.transmit(now, &mut output) {
            check(version, &output);
        }
    }
}

/// False if the connection is of no more use.
fn receive(
    client: &mut Client<u32>,
    input: &mut ReceiveBuffer,
    waiting: &mut VecDeque<tidegate_wire::mqtt::PacketId>,
) -> bool {
    let mut bytes = input.bytes();
    loop {
        match client.receive(&mut bytes) {
            Ok(Some(Event::Message(message))) => waiting.extend(message.packet_id),
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => return false,
        }
    }
    let left = bytes.len();
    input.keep(left);
    true
}

/// Whole packets, each of which decodes.
fn check(version: Version, mut output: &[u8]) {
    while let Some(header) = FixedHeader::decode(output, usize::MAX).expect("a header") {
        let (packet, rest) = output.split_at(header.packet_bytes());
        output = rest;
        let body = &packet[header.header_bytes..];
        Packet::decode(version, header.first, body).expect("the packets of a client decode");
    }
    assert!(output.is_empty());
}
