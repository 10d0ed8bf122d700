//! Normative statements that the bytes of one packet show, by their numbers: of MQTT 3.1.1 for `V4`, of MQTT 5.0 for `V5`.

use super::*;

use Version::{V3, V4, V5};

const MALFORMED: u8 = 0x81;
const PROTOCOL: u8 = 0x82;
const VERSION: u8 = 0x84;
const ALIAS: u8 = 0x94;
/// In place of a reason: it decodes.
const FINE: u8 = 0;

fn check(rows: &[(&str, Version, u8, &[u8], u8)]) {
    for (clause, version, first, body, expected) in rows {
        let decoded = Packet::decode(*version, *first, body);
        let reason = decoded.as_ref().map_or_else(|error| error.reason().0, |_| FINE);
        assert_eq!(
            reason, *expected,
            "{clause} in {version:?}: {first:02x} {body:02x?}: {decoded:?}"
        );
    }
}

#[test]
fn fixed_headers() {
    check(&[
        ("table 2.1, type 0 is forbidden", V4, 0x00, b"", MALFORMED),
        ("type 0 is reserved", V5, 0x00, b"", MALFORMED),
        ("3.1.1, 2.2.1: type 15 is reserved", V4, 0xf0, b"", MALFORMED),
        ("3.1.1, 2.2.1: type 15 is reserved", V3, 0xf0, b"", MALFORMED),
        ("AUTH", V5, 0xf0, b"", FINE),
        ("MQTT-2.1.3-1 CONNACK", V5, 0x21, b"\0\0\0", MALFORMED),
        ("MQTT-2.2.2-2 PUBACK", V4, 0x42, b"\0\x01", MALFORMED),
        ("MQTT-3.6.1-1", V4, 0x60, b"\0\x01", MALFORMED),
        ("MQTT-3.6.1-1", V5, 0x62, b"\0\x01", FINE),
        ("MQTT-3.8.1-1", V4, 0x80, b"\0\x01\0\x01a\0", MALFORMED),
        ("MQTT-3.8.1-1", V5, 0x83, b"\0\x01\0\0\x01a\0", MALFORMED),
        ("MQTT-3.10.1-1", V4, 0xa0, b"\0\x01\0\x01a", MALFORMED),
        ("MQTT-3.14.1-1", V4, 0xe1, b"", MALFORMED),
        ("MQTT-3.15.1-1", V5, 0xf1, b"", MALFORMED),
        ("MQTT-2.2.2-2 PINGREQ", V4, 0xc8, b"", MALFORMED),
        ("3.1, 3.8: SUBSCRIBE again with DUP", V3, 0x8a, b"\0\x01\0\x01a\0", FINE),
        ("3.1.1 has no DUP on SUBSCRIBE", V4, 0x8a, b"\0\x01\0\x01a\0", MALFORMED),
        ("PINGREQ is empty", V4, 0xc0, b"x", MALFORMED),
        ("PINGRESP is empty", V5, 0xd0, b"x", MALFORMED),
        ("DISCONNECT is empty", V4, 0xe0, b"\0", MALFORMED),
    ]);
    for bytes in [
        &b"\x30\xff\xff\xff\xff"[..], // five bytes
        b"\x30\x80\x80\x80\x80\x01",
        b"\x30\x80\0", // MQTT-1.5.5-1: not the fewest
        b"\x30\xff\x80\0",
    ] {
        let error = FixedHeader::decode(bytes, usize::MAX).unwrap_err();
        assert_eq!(error.reason(), ReasonCode::MALFORMED_PACKET, "{bytes:02x?}");
    }
}

#[test]
fn connects() {
    check(&[
        ("MQTT-3.1.2-1", V4, 0x10, b"\0\x04MQTX\x04\x02\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-1, case matters", V4, 0x10, b"\0\x04mqtt\x04\x02\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-2", V4, 0x10, b"\0\x04MQTT\x06", VERSION),
        ("MQTT-3.1.2-2", V4, 0x10, b"\0\x04MQTT\x03\x02\0\0\0\0", VERSION),
        ("MQTT-3.1.2-2", V4, 0x10, b"\0\x06MQIsdp\x04\x02\0\0\0\0", VERSION),
        ("no bridges in MQTT 5", V5, 0x10, b"\0\x04MQTT\x85\x02\0\0\0\0\0", VERSION),
        ("a bridge", V4, 0x10, b"\0\x04MQTT\x84\x02\0\0\0\0", FINE),
        ("a bridge", V3, 0x10, b"\0\x06MQIsdp\x83\x02\0\0\0\x01a", FINE),
        ("the connection's version is ignored", V3, 0x10, b"\0\x04MQTT\x05\x02\0\0\0\0\0", FINE),
        ("MQTT-3.1.2-3", V4, 0x10, b"\0\x04MQTT\x04\x03\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-3", V5, 0x10, b"\0\x04MQTT\x05\x03\0\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-13, 5: -11", V4, 0x10, b"\0\x04MQTT\x04\x0a\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-11", V5, 0x10, b"\0\x04MQTT\x05\x0a\0\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-14", V4, 0x10, b"\0\x04MQTT\x04\x1e\0\0\0\0\0\x01w\0\0", MALFORMED),
        ("MQTT-3.1.2-12", V5, 0x10, b"\0\x04MQTT\x05\x1e\0\0\0\0\0\0\0\x01w\0\0", MALFORMED),
        ("MQTT-3.1.2-15", V4, 0x10, b"\0\x04MQTT\x04\x22\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-13", V5, 0x10, b"\0\x04MQTT\x05\x22\0\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-22", V4, 0x10, b"\0\x04MQTT\x04\x42\0\0\0\0\0\x01p", MALFORMED),
        ("5, 3.1.2.9: allowed", V5, 0x10, b"\0\x04MQTT\x05\x42\0\0\0\0\0\0\x01p", FINE),
        ("MQTT-3.1.3-8 is the broker's", V4, 0x10, b"\0\x04MQTT\x04\x00\0\0\0\0", FINE),
        ("MQTT-3.1.3-3, client id absent", V4, 0x10, b"\0\x04MQTT\x04\x02\0\0", MALFORMED),
        ("MQTT-3.1.3-4", V5, 0x10, b"\0\x04MQTT\x05\x02\0\0\0\0\x01\xff", MALFORMED),
        ("MQTT-3.1.2-9, no will", V4, 0x10, b"\0\x04MQTT\x04\x06\0\0\0\0", MALFORMED),
        ("MQTT-3.1.3-11", V5, 0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\0\0\0\x01\xff\0\0", MALFORMED),
        ("MQTT-4.7.0-1 will", V5, 0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\0\0\0\x01+\0\0", MALFORMED),
        ("MQTT-4.7.3-1 will", V4, 0x10, b"\0\x04MQTT\x04\x06\0\0\0\0\0\0\0\0", MALFORMED),
        ("MQTT-3.1.2-19", V4, 0x10, b"\0\x04MQTT\x04\x82\0\0\0\0", MALFORMED),
        ("3.1: flag, and no user name", V3, 0x10, b"\0\x06MQIsdp\x03\xc2\0\0\0\x01a", FINE),
        ("MQTT-3.1.2-19", V5, 0x10, b"\0\x04MQTT\x05\xc2\0\0\0\0\0\0\x01u", MALFORMED),
        ("MQTT-3.1.2-18, bytes after", V4, 0x10, b"\0\x04MQTT\x04\x02\0\0\0\0\0\x01u", MALFORMED),
        ("3.1.2.11.3", V5, 0x10, b"\0\x04MQTT\x05\x02\0\0\x03\x21\0\0\0\0", PROTOCOL),
        ("3.1.2.11.4", V5, 0x10, b"\0\x04MQTT\x05\x02\0\0\x05\x27\0\0\0\0\0\0", PROTOCOL),
        ("3.1.2.11.6", V5, 0x10, b"\0\x04MQTT\x05\x02\0\0\x02\x19\x02\0\0", PROTOCOL),
        ("3.1.2.11.7", V5, 0x10, b"\0\x04MQTT\x05\x02\0\0\x02\x17\x02\0\0", PROTOCOL),
        ("3.1.2.11.10", V5, 0x10, b"\0\x04MQTT\x05\x02\0\0\x03\x16\0\0\0\0", PROTOCOL),
        (
            "3.1.2.11.2 twice",
            V5,
            0x10,
            b"\0\x04MQTT\x05\x02\0\0\x06\x22\0\x01\x22\0\x01\0\0",
            PROTOCOL,
        ),
        ("not of CONNECT", V5, 0x10, b"\0\x04MQTT\x05\x02\0\0\x03\x23\0\x01\0\0", MALFORMED),
        (
            "not of a will",
            V5,
            0x10,
            b"\0\x04MQTT\x05\x06\0\0\0\0\0\x03\x23\0\x01\0\x01w\0\0",
            MALFORMED,
        ),
        ("3.1.3.2.3", V5, 0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\0\x02\x01\x02\0\x01w\0\0", PROTOCOL),
    ]);
}

#[test]
fn connacks() {
    check(&[
        ("MQTT-3.2.2-1", V5, 0x20, b"\x02\0\0", MALFORMED),
        ("3.1.1, 3.2.2.1", V4, 0x20, b"\x02\0", MALFORMED),
        ("MQTT-3.2.2-4", V4, 0x20, b"\x01\x05", PROTOCOL),
        ("MQTT-3.2.2-6", V5, 0x20, b"\x01\x87\0", PROTOCOL),
        ("3.1.1, 3.2.2.3: reserved", V4, 0x20, b"\0\x06", PROTOCOL),
        ("MQTT-3.2.2-8", V5, 0x20, b"\0\x92\0", PROTOCOL),
        ("3.2.2.3.4", V5, 0x20, b"\0\0\x02\x24\x02", PROTOCOL),
        ("3.2.2.3.5", V5, 0x20, b"\0\0\x02\x25\x02", PROTOCOL),
        ("3.2.2.3.11", V5, 0x20, b"\0\0\x02\x28\x02", PROTOCOL),
        ("3.2.2.3.12", V5, 0x20, b"\0\0\x02\x29\x02", PROTOCOL),
        ("3.2.2.3.13", V5, 0x20, b"\0\0\x02\x2a\x02", PROTOCOL),
        ("3.2.2.2 lacks its length", V5, 0x20, b"\0\0", MALFORMED),
        ("goes on", V4, 0x20, b"\0\0\0", MALFORMED),
    ]);
}

#[test]
fn publishes() {
    check(&[
        ("MQTT-3.3.1-4", V4, 0x36, b"\0\x01a\0\x01", MALFORMED),
        ("MQTT-3.3.1-4", V5, 0x36, b"\0\x01a\0\x01\0", MALFORMED),
        ("MQTT-3.3.1-2", V4, 0x38, b"\0\x01a", MALFORMED),
        ("MQTT-3.3.1-2", V5, 0x38, b"\0\x01a\0", MALFORMED),
        ("3.1 has no such rule", V3, 0x38, b"\0\x01a", FINE),
        ("MQTT-1.5.3-1", V4, 0x30, b"\0\x01\xff", MALFORMED),
        ("MQTT-1.5.4-1, a surrogate", V5, 0x30, b"\0\x03\xed\xa0\x80\0", MALFORMED),
        ("MQTT-1.5.3-2", V4, 0x30, b"\0\x01\0", MALFORMED),
        ("MQTT-1.5.4-2", V5, 0x30, b"\0\x01\0\0", MALFORMED),
        ("MQTT-1.5.4-3, a mark is a character", V5, 0x30, b"\0\x03\xef\xbb\xbf\0", FINE),
        ("1.5.4: controls should not be, and may", V5, 0x30, b"\0\x01\x01\0", FINE),
        ("MQTT-3.3.2-2", V4, 0x30, b"\0\x01+", MALFORMED),
        ("MQTT-3.3.2-2", V5, 0x30, b"\0\x03a/#\0", MALFORMED),
        ("MQTT-4.7.3-1", V4, 0x30, b"\0\0", MALFORMED),
        ("3.3.2.1: empty, without an alias", V5, 0x30, b"\0\0\0", PROTOCOL),
        ("3.3.2.1: empty, with an alias", V5, 0x30, b"\0\0\x03\x23\0\x01", FINE),
        ("MQTT-3.3.2-8", V5, 0x30, b"\0\x01a\x03\x23\0\0", ALIAS),
        ("MQTT-2.3.1-1", V4, 0x32, b"\0\x01a\0\0", PROTOCOL),
        ("MQTT-2.2.1-3", V5, 0x32, b"\0\x01a\0\0\0", PROTOCOL),
        ("MQTT-2.2.1-2, it is payload", V4, 0x30, b"\0\x01a\0\0", FINE),
        ("cut in its identifier", V4, 0x32, b"\0\x01a\0", MALFORMED),
        ("cut in its topic", V4, 0x30, b"\0\x05a", MALFORMED),
        ("3.3.2.3.2", V5, 0x30, b"\0\x01a\x02\x01\x02", PROTOCOL),
        ("3.3.2.3.2 twice", V5, 0x30, b"\0\x01a\x04\x01\x01\x01\x01", PROTOCOL),
        ("3.3.2.3.4 twice", V5, 0x30, b"\0\x01a\x06\x23\0\x01\x23\0\x01", PROTOCOL),
        ("MQTT-3.3.2-13", V5, 0x30, b"\0\x01a\x04\x08\0\x01\xff", MALFORMED),
        ("MQTT-3.3.2-14", V5, 0x30, b"\0\x01a\x04\x08\0\x01#", PROTOCOL),
        ("MQTT-3.3.2-19", V5, 0x30, b"\0\x01a\x04\x03\0\x01\xff", MALFORMED),
        ("MQTT-1.5.7-1", V5, 0x30, b"\0\x01a\x06\x26\0\x01\xff\0\0", MALFORMED),
        ("3.3.2.3.8", V5, 0x30, b"\0\x01a\x02\x0b\0", PROTOCOL),
        ("3.3.2.3.8, may repeat", V5, 0x30, b"\0\x01a\x04\x0b\x01\x0b\x02", FINE),
        ("MQTT-1.5.5-1", V5, 0x30, b"\0\x01a\x03\x0b\x81\0", MALFORMED),
        ("MQTT-1.5.5-1, its length", V5, 0x30, b"\0\x01a\x80\0", MALFORMED),
        ("2.2.2.2, unknown", V5, 0x30, b"\0\x01a\x02\x7f\0", MALFORMED),
        ("2.2.2.2, of CONNECT", V5, 0x30, b"\0\x01a\x03\x21\0\x01", MALFORMED),
        ("a property over the end", V5, 0x30, b"\0\x01a\x03\x02\0\0payload", MALFORMED),
        ("properties over the end", V5, 0x30, b"\0\x01a\x09\x01\x01", MALFORMED),
    ]);
}

#[test]
fn acks() {
    check(&[
        ("MQTT-2.3.1-6", V4, 0x40, b"\0\0", PROTOCOL),
        ("2.2.1", V5, 0x50, b"\0\0", PROTOCOL),
        ("too short", V4, 0x40, b"\0", MALFORMED),
        ("too long", V4, 0x40, b"\0\x01\0", MALFORMED),
        ("3.4.2.1, reason", V5, 0x40, b"\0\x01\x10", FINE),
        ("3.4.2.2.1, no property length", V5, 0x40, b"\0\x01\0\0", FINE),
        ("MQTT-3.4.2-1", V5, 0x40, b"\0\x01\x92", PROTOCOL),
        ("MQTT-3.5.2-1", V5, 0x50, b"\0\x01\x01", PROTOCOL),
        ("MQTT-3.6.2-1", V5, 0x62, b"\0\x01\x10", PROTOCOL),
        ("MQTT-3.6.2-1", V5, 0x62, b"\0\x01\x92", FINE),
        ("MQTT-3.7.2-1", V5, 0x70, b"\0\x01\x80", PROTOCOL),
        ("3.4.2.2.2 twice", V5, 0x40, b"\0\x01\0\x06\x1f\0\0\x1f\0\0", PROTOCOL),
        ("3.4.2.2.3 may repeat", V5, 0x40, b"\0\x01\0\x0a\x26\0\0\0\0\x26\0\0\0\0", FINE),
        ("not of PUBACK", V5, 0x40, b"\0\x01\0\x02\x01\x01", MALFORMED),
        ("goes on", V5, 0x40, b"\0\x01\0\0\0", MALFORMED),
    ]);
}

#[test]
fn subscriptions() {
    check(&[
        ("MQTT-3.8.3-3", V4, 0x82, b"\0\x01", PROTOCOL),
        ("MQTT-3.8.3-2", V5, 0x82, b"\0\x01\0", PROTOCOL),
        ("MQTT-3.8.3-1", V4, 0x82, b"\0\x01\0\x01\xff\0", MALFORMED),
        ("MQTT-2.3.1-1", V4, 0x82, b"\0\0\0\x01a\0", PROTOCOL),
        ("MQTT-3-8.3-4, reserved bits", V4, 0x82, b"\0\x01\0\x01a\x04", MALFORMED),
        ("MQTT-3-8.3-4, QoS 3", V4, 0x82, b"\0\x01\0\x01a\x03", PROTOCOL),
        ("MQTT-3.8.3-5", V5, 0x82, b"\0\x01\0\0\x01a\x40", MALFORMED),
        ("3.8.3.1, QoS 3", V5, 0x82, b"\0\x01\0\0\x01a\x03", PROTOCOL),
        ("3.8.3.1, retain handling 3", V5, 0x82, b"\0\x01\0\0\x01a\x30", PROTOCOL),
        ("MQTT-3.8.3-4", V5, 0x82, b"\0\x01\0\0\x0a$share/g/t\x04", PROTOCOL),
        ("no local, not shared", V5, 0x82, b"\0\x01\0\0\x01a\x04", FINE),
        ("no options", V4, 0x82, b"\0\x01\0\x01a", MALFORMED),
        ("3.8.2.1.2, 0", V5, 0x82, b"\0\x01\x02\x0b\0\0\x01a\0", PROTOCOL),
        ("3.8.2.1.2, twice", V5, 0x82, b"\0\x01\x04\x0b\x01\x0b\x01\0\x01a\0", PROTOCOL),
        ("bad filters are the broker's", V4, 0x82, b"\0\x01\0\x02#a\0", FINE),
        ("MQTT-3.10.3-2", V4, 0xa2, b"\0\x01", PROTOCOL),
        ("MQTT-3.10.3-2", V5, 0xa2, b"\0\x01\0", PROTOCOL),
        ("MQTT-3.10.3-1", V4, 0xa2, b"\0\x01\0\x01\xff", MALFORMED),
        ("not of UNSUBSCRIBE", V5, 0xa2, b"\0\x01\x02\x0b\x01\0\x01a", MALFORMED),
        ("MQTT-3.9.3-2", V4, 0x90, b"\0\x01\x03", PROTOCOL),
        ("MQTT-3.9.3-2", V5, 0x90, b"\0\x01\0\x03", PROTOCOL),
        ("MQTT-3.9.3-1, no code", V4, 0x90, b"\0\x01", PROTOCOL),
        ("MQTT-3.11.3-2", V5, 0xb0, b"\0\x01\0\x01", PROTOCOL),
        ("3.1.1 has no codes", V4, 0xb0, b"\0\x01\0", MALFORMED),
    ]);
}

#[test]
fn disconnects_and_authentications() {
    check(&[
        ("3.14.2.1, no reason", V5, 0xe0, b"", FINE),
        ("3.14.2.2.1, no properties", V5, 0xe0, b"\x04", FINE),
        ("MQTT-3.14.2-1", V5, 0xe0, b"\x01", PROTOCOL),
        ("MQTT-3.14.2-1", V5, 0xe0, b"\x91", PROTOCOL),
        ("3.14.2.2.2 twice", V5, 0xe0, b"\0\x0a\x11\0\0\0\0\x11\0\0\0\0", PROTOCOL),
        ("goes on", V5, 0xe0, b"\0\0\0", MALFORMED),
        ("MQTT-3.15.2-1", V5, 0xf0, b"\x01\0", PROTOCOL),
        ("3.15.2.1, half omitted", V5, 0xf0, b"\x18", MALFORMED),
        ("3.15.2.2.2", V5, 0xf0, b"\x18\0", PROTOCOL),
        ("3.15.2.2.2", V5, 0xf0, b"\x18\x04\x15\0\x01m", FINE),
    ]);
}

#[test]
fn versions_that_are_not_known_are_answered_as_they_speak() {
    for (body, expected) in [
        (&b"\0\x04MQTT\x06\x02\0\x3c\0\x01a"[..], V4),
        (b"\0\x04MQTT\x06\x02\0\x3c\0\0\x01a", V5),
        (b"\0\x04MQTT\x63\x02\0\x3c\x05\x11\0\0\0\x01\0\x01a", V5),
        (b"\0\x06MQIsdp\x04\x02\0\x3c\0\x01a", V4),
        (b"\0\x04MQTT\0\x02\0\x3c\0\x01a", V4),
        (b"\0\x04MQTT\x07", V4),
    ] {
        let error = Connect::decode(body).unwrap_err();
        let DecodeError::UnsupportedVersion { layout, .. } = error else { panic!("{error}") };
        assert_eq!(layout, expected, "{body:02x?}");
    }
}

#[test]
fn errors_name_what_where_and_why() {
    for (version, first, body, expected) in [
        (V4, 0x36, &b"\0\x01a"[..], "quality of service 3 is malformed (MQTT-3.3.1-4)"),
        (V4, 0x82, b"\0\x01", "SUBSCRIBE has no topic filter (MQTT-3.8.3-2)"),
        (V4, 0x42, b"\0\x01", "PUBACK has flags 0b0010 (MQTT-2.1.3-1)"),
        (V4, 0x30, b"\0\x05a", "packet ends within topic name"),
        (V4, 0x10, b"\0\x04MQTT\x07", "protocol level 7 is not supported (MQTT-3.1.2-2)"),
    ] {
        let error = Packet::decode(version, first, body).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}
