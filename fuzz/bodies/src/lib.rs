//! Properties that hold for any bytes of a peer, a camera or a file. Each function is the body of one fuzz target and of one
//! test that replays its seeds.
//!
//! Always true: a function here panics only where the code under test breaks a promise.

mod authentication;
mod broker;
mod client;
mod coap;
mod flow;
mod ingest;
mod jpeg;
mod kept;
mod line_protocol;
mod member;
mod proxy;
mod sensors;
mod uplink;
mod websocket;

use std::path::Path;

use tidegate_config::Config;
use tidegate_frame::{
    knob::{Applied, FrameLimits, KnobSetting, Transcoder, inspect},
    table::Table,
};
use tidegate_import::import;
use tidegate_message::Instant;
use tidegate_sim::medium::{Medium, PacketRef, PortId, Scenario};
use tidegate_wire::{
    Record,
    mqtt::{FixedHeader, Packet, Publish, Version},
};

pub use self::{
    authentication::{
        acl_file, certificate_name, password_file, revocation_list, roles_file, scram, token,
    },
    broker::mqtt_broker,
    client::mqtt_client,
    coap::{coap_message, coap_server},
    flow::{flow_model, flow_parse, flow_snapshot},
    ingest::{ingest_body, ingest_datagram},
    jpeg::{jpeg, mjpeg},
    kept::{detector_reply, invitation, journal_records, key_file, log_segments, node_config},
    line_protocol::line_protocol,
    member::member_records,
    proxy::proxy_header,
    sensors::{comprex, sensor_batch, sensor_messages},
    uplink::{uplink_attributes, uplink_records},
    websocket::{websocket_frames, websocket_handshake},
};

/// A record that decodes is encoded and decoded again to itself.
pub fn wire_record(data: &[u8]) {
    let Ok(Some(record)) = Record::decode(data) else { return };
    let encoded = record.to_bytes();
    let again = Record::decode(&encoded).expect("an encoded record decodes");
    assert_eq!(again, Some(record));
}

/// Packets of MQTT, after a byte for the version: each that decodes is encoded and decoded again to itself, and the head of each
/// message is the same where only a part of it has arrived.
pub fn mqtt_packet(data: &[u8]) {
    let Some((&version, mut input)) = data.split_first() else { return };
    let version = match version % 3 {
        0 => Version::V3,
        1 => Version::V4,
        _ => Version::V5,
    };
    while let Ok(Some(header)) = FixedHeader::decode(input, 1 << 20) {
        let Some((packet, left)) = input.split_at_checked(header.packet_bytes()) else { return };
        let body = &packet[header.header_bytes..];
        mqtt_body(version, header.first, body);
        input = left;
    }
}

fn mqtt_body(version: Version, first: u8, body: &[u8]) {
    if first >> 4 == 3 {
        let whole = Publish::decode(version, first, body);
        for cut in [0, body.len() / 3, body.len() / 2, body.len()] {
            match Publish::decode_head(version, first, &body[..cut], body.len()) {
                Ok(None) => assert!(cut < body.len()),
                Ok(Some((head, head_bytes))) => {
                    let whole =
                        whole.expect("a head that decodes is that of a packet that decodes");
                    assert_eq!(head.payload, &body[head_bytes..cut]);
                    assert_eq!(Publish { payload: whole.payload, ..head }, whole);
                }
                Err(_) => assert!(whole.is_err()),
            }
        }
    }
    let Ok(packet) = Packet::decode(version, first, body) else { return };
    let version = match &packet {
        Packet::Connect(connect) => connect.version,
        _ => version,
    };
    let mut encoded = Vec::new();
    packet.encode(version, &mut encoded).expect("a decoded packet can be encoded");
    let header = FixedHeader::decode(&encoded, usize::MAX)
        .expect("an encoded packet has a header")
        .expect("and all of it");
    assert_eq!(header.packet_bytes(), encoded.len());
    let again = Packet::decode(version, header.first, &encoded[header.header_bytes..]);
    assert_eq!(again.expect("an encoded packet decodes"), packet);
}

/// A table that parses is written and parsed again to itself.
pub fn table(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(table) = Table::parse("fuzz", text) else { return };
    let written = table.to_text();
    let again = Table::parse("fuzz", &written).expect("a written table parses");
    assert_eq!(again.to_text(), written);
}

/// A knob setting that parses prints to what parses to the same setting.
pub fn knob_setting(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(setting) = text.parse::<KnobSetting>() else { return };
    let again = setting.to_string().parse::<KnobSetting>().expect("a printed setting parses");
    assert_eq!(again, setting);
}

/// Any bytes, as a camera's frame, through any knobs: refused with an error, or a frame that the same limits take again.
///
/// The first line is the knob setting, the rest the frame.
pub fn knobs(data: &[u8]) {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (line, frame) = (&data[..end], &data[end + 1..]);
    let Ok(Ok(setting)) = std::str::from_utf8(line).map(str::parse::<KnobSetting>) else { return };
    // Small enough that a forged header does not turn the run into an allocation benchmark.
    let limits = FrameLimits { bytes_max: 1 << 20, pixels_max: 1 << 20 };
    let mut transcoder = Transcoder::new(limits);
    let mut out = Vec::new();
    match transcoder.apply(frame, &setting, &mut out) {
        Ok(Applied::Encoded { size }) => {
            let limits = FrameLimits { bytes_max: usize::MAX, ..limits };
            let info = inspect(&out, &limits).expect("the knobs' output is a frame");
            assert_eq!(info.size, size);
        }
        Ok(Applied::Unchanged { .. }) | Err(_) => assert!(out.is_empty()),
    }
}

/// A scenario that is read keeps what its type promises, and its media carry packets.
pub fn scenario(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A trace would be read from the disk, which is no part of what is asked here.
    if text.contains("trace") {
        return;
    }
    let Ok(scenario) = Scenario::parse(text, Path::new(".")) else { return };
    assert!(!scenario.media.is_empty());
    let mut medium = Medium::new(&scenario, 1);
    let mut first = 0;
    for config in &scenario.media {
        assert!(config.ports.len() >= 2, "a medium joins two ports or more");
        for data in 0..4 {
            let (from, to) = (PortId(first), PortId(first + 1));
            let _ = medium.ingress(Instant::EPOCH, from, to, PacketRef { len: 1500, data });
        }
        first += config.ports.len();
    }
    // A scenario may put its next event far away, or give every packet hundreds: neither is worth an hour here.
    for _ in 0..1_000 {
        let Some(now) = medium.poll_timeout() else { break };
        while medium.poll_deliver(now).is_some() {}
    }
}

/// A `mosquitto.conf`: the output is a configuration of ours, each setting left out has its line and a reason, and no
/// password is repeated.
pub fn mosquitto_conf(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let imported = import(text);
    if let Err(error) = Config::parse(Path::new("imported.toml"), &imported.toml) {
        panic!("{error:?}\n{}", imported.toml);
    }
    let lines = text.lines().count();
    let mut last = 0;
    for left in &imported.untranslated {
        assert!((last.max(1)..=lines).contains(&left.line) && !left.why.is_empty(), "{left:?}");
        last = left.line;
    }
    for line in text.lines() {
        let Some((key, secret)) = line.trim().split_once(char::is_whitespace) else { continue };
        let secret = secret.trim();
        // A text that stands elsewhere as well is no secret, and there may be words of ours.
        let is_secret = secret.starts_with("hunter2") && text.matches(secret).count() == 1;
        if key == "remote_password" && is_secret {
            assert!(!format!("{imported:?}").contains(secret), "{line}");
        }
    }
}
