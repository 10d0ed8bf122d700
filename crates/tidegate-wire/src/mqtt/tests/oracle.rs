//! The codec of another broker, RMQTT, compared with ours.
//!
//! ```text
//!  ours ──encode──▶ bytes ──decode──▶ theirs ──encode──▶ bytes ──decode──▶ ours, the same
//! ```
//!
//! Their codec leaves most rules of the protocol to their broker, so with damaged bytes it refuses less than ours; packets that it
//! accepts and ours does not, and the reverse, are listed below, and nothing else may differ.

use std::num::NonZeroU32;

use bytes::BytesMut;
use proptest::prelude::*;
use rmqtt_codec::{MqttCodec, MqttPacket, v3, v5};
use tokio_util::codec::{Decoder as _, Encoder as _};

use super::{
    random::{any_connect, damaged, message, owned_packet, version},
    *,
};

fn theirs(version: Version) -> MqttCodec {
    match version {
        Version::V5 => MqttCodec::V5(v5::Codec::new(0, 0)),
        Version::V3 | Version::V4 => MqttCodec::V3(v3::Codec::new(0)),
    }
}

fn their_decode(version: Version, bytes: &[u8]) -> Option<MqttPacket> {
    let decoded = theirs(version).decode(&mut BytesMut::from(bytes)).ok()?;
    Some(decoded.expect("the packet is whole").0)
}

fn their_encode(version: Version, packet: MqttPacket) -> Vec<u8> {
    let mut out = BytesMut::new();
    theirs(version).encode(packet, &mut out).expect("they encode what they decoded");
    // After the name of MQTT 3.1, their encoder writes the level of 3.1.1.
    if version == Version::V3 && out[0] == 0x10 {
        let header = FixedHeader::decode(&out, usize::MAX).unwrap().unwrap();
        let level = header.header_bytes + 2 + "MQIsdp".len();
        assert_eq!(out[level], 4);
        out[level] = 3;
    }
    out.to_vec()
}

/// The meaning of a packet, whatever the order of its properties and whether a default is written out.
fn meaning(packet: &Packet<'_>) -> String {
    match packet {
        Packet::Publish(publish) => {
            let properties = &publish.properties;
            let ids: Vec<_> = properties.subscription_ids().collect();
            let users: Vec<_> = properties.user_properties().collect();
            let (alias, expiry) = (properties.topic_alias, properties.message_expiry);
            let (response, data) = (properties.response_topic(), properties.correlation_data());
            let (is_utf8, content) = (properties.is_utf8, properties.content_type());
            let plain = Publish { properties: PublishProperties::NONE, ..*publish };
            format!(
                "{plain:?} {alias:?} {expiry:?} {is_utf8} {response:?} {data:?} {content:?} {ids:?} {users:?}"
            )
        }
        Packet::Connect(connect) => {
            let mut connect = connect.clone();
            let properties = &mut connect.properties;
            properties.session_expiry = properties.session_expiry.filter(|seconds| *seconds != 0);
            properties.request_problem_information =
                properties.request_problem_information.filter(|asked| !asked);
            let forwarded = connect.will.as_mut().map(|will| std::mem::take(&mut will.forwarded));
            let forwarded = forwarded.unwrap_or_default();
            let forwarded = ForwardedProperties::decode(&forwarded).unwrap();
            format!("{connect:?} {:?} {forwarded:?}", connect.password)
        }
        Packet::Connack(connack) => {
            let mut connack = connack.clone();
            let properties = &mut connack.properties;
            properties.receive_maximum = properties.receive_maximum.filter(|m| m.get() != u16::MAX);
            for available in [
                &mut properties.retain_available,
                &mut properties.wildcard_available,
                &mut properties.subscription_ids_available,
                &mut properties.shared_available,
            ] {
                *available = available.filter(|is| !is);
            }
            format!("{connack:?}")
        }
        other => format!("{other:?}"),
    }
}

/// Packets that ours accepts and theirs refuses.
fn refused_by_them(version: Version, first: u8, packet: &Packet<'_>) -> Option<&'static str> {
    match packet {
        Packet::Connect(connect) if connect.bridge => Some("they know no bridges"),
        Packet::Connect(connect) if connect.client_id.is_empty() && !connect.clean_start => {
            Some("an empty client identifier is refused by their decoder, by our broker")
        }
        Packet::Connect(connect)
            if connect.will.as_ref().is_some_and(|will| will.message_expiry == Some(0)) =>
        {
            Some("a message may expire at once")
        }
        Packet::Connect(connect) if connect.version == Version::V3 => {
            Some("MQTT 3.1 lets the user name be absent in spite of its flag")
        }
        Packet::Publish(publish) if publish.properties.message_expiry == Some(0) => {
            Some("a message may expire at once")
        }
        Packet::Subscribe(subscribe)
            if subscribe.filters.iter().any(|filter| filter.filter.is_empty()) =>
        {
            Some("an empty filter is refused by their decoder, by our broker")
        }
        Packet::Unsubscribe(unsubscribe) if unsubscribe.filters.iter().any(String::is_empty) => {
            Some("an empty filter is refused by their decoder, by our broker")
        }
        Packet::Connack(_) if version == Version::V3 => Some("MQTT 3.1 does not use the flags"),
        Packet::Connack(connack) if connack.reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => {
            Some("the older form of an older server's refusal")
        }
        _ if version == Version::V3 && first & 0b1000 != 0 => Some("MQTT 3.1 repeats with DUP"),
        _ => None,
    }
}

/// Packets that theirs accepts and ours refuses: rules that their codec does not check.
fn refused_by_us(error: DecodeError) -> bool {
    match error {
        // They stop at the last field, and use the wrong name's level.
        DecodeError::Trailing { .. } | DecodeError::UnsupportedVersion { .. } => true,
        // They let topics be anything in MQTT 5, and have wildcards in all versions.
        DecodeError::TopicName { .. } => true,
        DecodeError::Malformed { clause, .. } => matches!(
            clause,
            "MQTT-1.5.4-2" // U+0000
                | "MQTT-1.5.5-1" // more bytes than a number needs
                | "MQTT-3.3.1-2" // DUP with QoS 0
                | "MQTT-3.8.3-5" // reserved bits before MQTT 5
                | "MQTT-3.1.2-11" | "MQTT-3.1.2-12" | "MQTT-3.1.2-13" // flags of a will
                | "MQTT 3.1.1, MQTT-3.1.2-22" // a password alone
        ),
        DecodeError::Protocol { clause, .. } => matches!(
            clause,
            "MQTT-3.3.2-14" // wildcards of a response topic
                | "MQTT-3.8.3-4" // No Local of a shared subscription
                | "MQTT-3.2.2-6" // a session of a refused connection
                | "MQTT 3.1.1, 3.2.2.3" // return code 6
                | "MQTT-3.9.3-1, 3.11.3-1" // no reason code at all
                | "MQTT 5.0, 3.3.2.1" // no topic, no alias
                | "MQTT 5.0, 3.1.2.11.10" | "MQTT 5.0, 3.15.2.2.2" // no method
                | "MQTT 5.0, 3.1.2.11.4" // CONNACK with a Maximum Packet Size of 0
                | "MQTT 5.0, 4.13" // CONNACK with a Maximum QoS of 2
        ),
        // Half of an AUTH's fields omitted.
        DecodeError::Short { field } => field == "property length",
        _ => false,
    }
}

/// The version in which a packet's bytes are read.
fn version_of(version: Version, packet: &Packet<'_>) -> Version {
    match packet {
        Packet::Connect(connect) => connect.version,
        _ => version,
    }
}

proptest! {
    #[test]
    fn their_codec_reads_and_writes_what_ours_does(
        (version, packet) in version().prop_flat_map(|v| (Just(v), owned_packet(v))),
    ) {
        let ours = encode(version, &packet);
        let Some(read) = their_decode(version, &ours) else {
            let why = refused_by_them(version, ours[0], &packet);
            prop_assert!(why.is_some(), "they refuse {packet:?}: {ours:02x?}");
            return Ok(());
        };
        let theirs = their_encode(version, read);
        let back = decode(version, &theirs);
        prop_assert_eq!(back.as_ref().map(meaning), Ok(meaning(&packet)));
    }

    #[test]
    fn their_fields_of_a_message_are_ours(version in version(), message in message()) {
        let bytes = message.encode(version);
        let head = message.head();
        let publish = match their_decode(version, &bytes) {
            Some(MqttPacket::V3(v3::Packet::Publish(publish))) => publish,
            Some(MqttPacket::V5(v5::Packet::Publish(publish))) => publish,
            None if version == Version::V5 && head.message_expiry == Some(0) => return Ok(()),
            other => panic!("{other:?} of {bytes:02x?}"),
        };
        prop_assert_eq!(&*publish.topic, head.topic);
        prop_assert_eq!(publish.qos.value(), head.qos as u8);
        prop_assert_eq!((publish.dup, publish.retain), (head.dup, head.retain));
        prop_assert_eq!(publish.packet_id, head.packet_id.filter(|_| head.qos != QoS::AtMostOnce));
        prop_assert_eq!(&publish.payload[..], &message.payload[..]);
        if let Some(properties) = &publish.properties {
            let forwarded = ForwardedProperties::decode(head.forwarded).unwrap();
            prop_assert_eq!(properties.topic_alias, head.topic_alias);
            prop_assert_eq!(properties.message_expiry_interval.map(NonZeroU32::get), head.message_expiry);
            let ids: Vec<_> = properties.subscription_ids.iter().map(|id| id.get()).collect();
            prop_assert_eq!(&ids, head.subscription_ids);
            prop_assert_eq!(properties.is_utf8_payload, forwarded.is_utf8);
            prop_assert_eq!(properties.content_type.as_deref(), forwarded.content_type);
            prop_assert_eq!(properties.response_topic.as_deref(), forwarded.response_topic);
            prop_assert_eq!(properties.correlation_data.as_deref(), forwarded.correlation_data);
            let users: Vec<_> =
                properties.user_properties.iter().map(|(name, value)| (&**name, &**value)).collect();
            prop_assert_eq!(users, forwarded.user_properties);
        }
    }

    #[test]
    fn their_fields_of_a_connect_are_ours(ours in any_connect(Version::V5)) {
        let bytes = encode(Version::V5, &Packet::Connect(Box::new(ours.clone())));
        let Some(MqttPacket::V5(v5::Packet::Connect(theirs))) = their_decode(Version::V5, &bytes)
        else {
            let packet = Packet::Connect(Box::new(ours));
            prop_assert!(refused_by_them(Version::V5, 0x10, &packet).is_some());
            return Ok(());
        };
        let properties = ours.properties;
        prop_assert_eq!(&*theirs.client_id, ours.client_id);
        prop_assert_eq!((theirs.clean_start, theirs.keep_alive), (ours.clean_start, ours.keep_alive));
        prop_assert_eq!(theirs.username.as_deref(), ours.username.as_deref());
        prop_assert_eq!(theirs.password.as_deref(), ours.password.as_deref());
        prop_assert_eq!(theirs.session_expiry_interval_secs, properties.session_expiry.unwrap_or(0));
        prop_assert_eq!(theirs.receive_max, properties.receive_maximum);
        prop_assert_eq!(theirs.max_packet_size.map(NonZeroU32::get), properties.maximum_packet_size);
        prop_assert_eq!(theirs.topic_alias_max, properties.topic_alias_maximum);
        prop_assert_eq!(theirs.request_response_info, properties.request_response_information);
        prop_assert_eq!(
            theirs.request_problem_info,
            properties.request_problem_information.unwrap_or(true)
        );
        prop_assert_eq!(theirs.auth_method.as_deref(), properties.authentication_method.as_deref());
        prop_assert_eq!(theirs.auth_data.as_deref(), properties.authentication_data.as_deref());
        prop_assert_eq!(theirs.last_will.is_some(), ours.will.is_some());
        if let (Some(theirs), Some(ours)) = (theirs.last_will, ours.will) {
            prop_assert_eq!(&*theirs.topic, ours.topic);
            prop_assert_eq!(&theirs.message[..], &ours.payload[..]);
            prop_assert_eq!((theirs.qos.value(), theirs.retain), (ours.qos as u8, ours.retain));
            prop_assert_eq!(theirs.will_delay_interval_sec.unwrap_or(0), ours.delay);
        }
    }

    #[test]
    fn damaged_packets_differ_only_as_listed(
        (version, bytes) in version().prop_flat_map(|v| (Just(v), damaged(v))),
    ) {
        let ours = decode(version, &bytes);
        let version = ours.as_ref().map_or(version, |packet| version_of(version, packet));
        match (ours, their_decode(version, &bytes)) {
            (Ok(ours), Some(read)) => {
                let theirs = their_encode(version, read);
                let theirs = decode(version, &theirs).map(|packet| meaning(&packet));
                prop_assert_eq!(theirs, Ok(meaning(&ours)));
            }
            (Ok(ours), None) => {
                let why = refused_by_them(version, bytes[0], &ours);
                prop_assert!(why.is_some(), "they refuse {ours:?}: {bytes:02x?}");
            }
            (Err(error), Some(read)) => {
                prop_assert!(refused_by_us(error), "we refuse, {error}, {read:?}: {bytes:02x?}");
            }
            (Err(_), None) => {}
        }
    }
}
