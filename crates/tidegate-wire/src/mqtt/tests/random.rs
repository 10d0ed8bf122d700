//! Round trips of every packet in every version, and bytes that are no packets.

use std::num::NonZeroU16;

use proptest::{collection::vec, option, prelude::*};

use super::*;

pub(super) fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V3), Just(Version::V4), Just(Version::V5)]
}

/// A topic name, which also serves as any text that must not be empty.
pub(super) fn topic() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z0-9/ ]{1,20}", 1 => "[^\0+#]{1,8}"]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z]{0,8}", 1 => "[^\0]{0,8}"]
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..20)
}

fn users() -> impl Strategy<Value = UserProperties> {
    vec((text(), text()), 0..3)
}

fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

fn packet_id() -> impl Strategy<Value = PacketId> {
    (1..=u16::MAX).prop_map(id)
}

fn nonzero() -> impl Strategy<Value = Option<NonZeroU16>> {
    any::<u16>().prop_map(NonZeroU16::new)
}

fn reason(codes: &'static [u8]) -> impl Strategy<Value = ReasonCode> {
    prop::sample::select(codes).prop_map(ReasonCode)
}

fn forwarded() -> impl Strategy<Value = Vec<u8>> {
    (any::<bool>(), option::of(text()), option::of(topic()), option::of(data()), users()).prop_map(
        |(is_utf8, content_type, response_topic, correlation_data, users)| {
            let mut out = Vec::new();
            ForwardedProperties {
                is_utf8,
                content_type: content_type.as_deref(),
                response_topic: response_topic.as_deref(),
                correlation_data: correlation_data.as_deref(),
                user_properties: users.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect(),
            }
            .encode(&mut out)
            .unwrap();
            out
        },
    )
}

fn will(version: Version) -> impl Strategy<Value = Will> {
    let fields =
        (topic(), data(), qos(), any::<bool>(), any::<u32>(), any::<Option<u32>>(), forwarded());
    fields.prop_map(move |(topic, payload, qos, retain, delay, message_expiry, forwarded)| {
        let will = Will { topic, payload, qos, retain, delay, message_expiry, forwarded };
        match version {
            Version::V5 => will,
            _ => Will { delay: 0, message_expiry: None, forwarded: Vec::new(), ..will },
        }
    })
}

fn connect_properties() -> impl Strategy<Value = ConnectProperties> {
    (
        any::<Option<u32>>(),
        nonzero(),
        option::of(1..=u32::MAX),
        any::<u16>(),
        any::<bool>(),
        any::<Option<bool>>(),
        users(),
        option::of((text(), option::of(data()))),
    )
        .prop_map(
            |(session_expiry, receive_maximum, size, aliases, response, problem, users, auth)| {
                let (authentication_method, authentication_data) =
                    auth.map_or((None, None), |(method, data)| (Some(method), data));
                ConnectProperties {
                    session_expiry,
                    receive_maximum,
                    maximum_packet_size: size,
                    topic_alias_maximum: aliases,
                    request_response_information: response,
                    request_problem_information: problem,
                    user_properties: users,
                    authentication_method,
                    authentication_data,
                }
            },
        )
}

pub(super) fn any_connect(version: Version) -> impl Strategy<Value = Connect> {
    (
        any::<[bool; 2]>(),
        any::<u16>(),
        text(),
        option::of(will(version)),
        option::of(text()),
        option::of(data()),
        connect_properties(),
    )
        .prop_map(
            move |(flags, keep_alive, client_id, will, username, password, properties)| {
                let is_5 = version == Version::V5;
                Connect {
                    version,
                    bridge: flags[0] && !is_5,
                    clean_start: flags[1],
                    keep_alive,
                    client_id,
                    will,
                    password: password.filter(|_| is_5 || username.is_some()),
                    username,
                    properties: if is_5 { properties } else { ConnectProperties::default() },
                }
            },
        )
}

fn connack_properties() -> impl Strategy<Value = ConnackProperties> {
    let maximum_qos = option::of(prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce)]);
    (
        connect_properties(),
        maximum_qos,
        any::<[Option<bool>; 4]>(),
        [option::of(text()), option::of(text()), option::of(text()), option::of(text())],
        any::<Option<u16>>(),
    )
        .prop_map(|(of_connect, maximum_qos, available, texts, server_keep_alive)| {
            let [assigned_client_id, reason_string, response_information, server_reference] = texts;
            ConnackProperties {
                session_expiry: of_connect.session_expiry,
                receive_maximum: of_connect.receive_maximum,
                maximum_qos,
                retain_available: available[0],
                maximum_packet_size: of_connect.maximum_packet_size,
                assigned_client_id,
                topic_alias_maximum: of_connect.topic_alias_maximum,
                reason_string,
                user_properties: of_connect.user_properties,
                wildcard_available: available[1],
                subscription_ids_available: available[2],
                shared_available: available[3],
                server_keep_alive,
                response_information,
                server_reference,
                authentication_method: of_connect.authentication_method,
                authentication_data: of_connect.authentication_data,
            }
        })
}

fn connack(version: Version) -> BoxedStrategy<Packet<'static>> {
    let codes: &[u8] = match version {
        Version::V5 => &[0, 0x80, 0x84, 0x87, 0x8c, 0x95, 0x9d, 0x9f],
        _ => &[0, 0x84, 0x85, 0x86, 0x87, 0x88],
    };
    (any::<bool>(), reason(codes), connack_properties())
        .prop_map(move |(present, reason, properties)| {
            Packet::Connack(Box::new(Connack {
                session_present: present && !reason.is_failure() && version != Version::V3,
                reason,
                properties: if version == Version::V5 { properties } else { Default::default() },
            }))
        })
        .boxed()
}

fn ack(version: Version, codes: &'static [u8]) -> BoxedStrategy<Ack> {
    if version != Version::V5 {
        return packet_id().prop_map(|id| Ack::new(id, ReasonCode::SUCCESS)).boxed();
    }
    (packet_id(), reason(codes), option::of(text()), users())
        .prop_map(|(packet_id, reason, reason_string, user_properties)| Ack {
            packet_id,
            reason,
            reason_string,
            user_properties,
        })
        .boxed()
}

fn filter(version: Version) -> BoxedStrategy<SubscribeFilter> {
    let handling = prop_oneof![
        Just(RetainHandling::Send),
        Just(RetainHandling::SendIfNew),
        Just(RetainHandling::DoNotSend)
    ];
    (prop_oneof!["[a-z/+#]{1,9}", "\\$share/g/[a-z]{1,3}"], qos(), any::<[bool; 2]>(), handling)
        .prop_map(move |(filter, maximum_qos, flags, retain_handling)| {
            let is_5 = version == Version::V5;
            SubscribeFilter {
                maximum_qos,
                no_local: is_5 && flags[0] && !filter.starts_with('$'),
                filter,
                retain_as_published: is_5 && flags[1],
                retain_handling: if is_5 { retain_handling } else { RetainHandling::Send },
            }
        })
        .boxed()
}

fn suback(version: Version, codes: &'static [u8]) -> BoxedStrategy<Suback> {
    (packet_id(), option::of(text()), users(), vec(reason(codes), 1..5))
        .prop_map(move |(packet_id, reason_string, user_properties, reasons)| {
            let is_5 = version == Version::V5;
            Suback {
                packet_id,
                reason_string: reason_string.filter(|_| is_5),
                user_properties: if is_5 { user_properties } else { Vec::new() },
                reasons,
            }
        })
        .boxed()
}

fn disconnect(version: Version) -> BoxedStrategy<Packet<'static>> {
    if version != Version::V5 {
        return Just(Packet::Disconnect(Disconnect::default())).boxed();
    }
    let codes = reason(&[0, 0x04, 0x81, 0x82, 0x8d, 0x8e, 0x93, 0x9d, 0xa2]);
    (codes, any::<Option<u32>>(), option::of(text()), users(), option::of(text()))
        .prop_map(|(reason, session_expiry, reason_string, user_properties, server_reference)| {
            Packet::Disconnect(Disconnect {
                reason,
                session_expiry,
                reason_string,
                user_properties,
                server_reference,
            })
        })
        .boxed()
}

fn auth() -> impl Strategy<Value = Packet<'static>> {
    let codes = reason(&[0, 0x18, 0x19]);
    (codes, text(), option::of(data()), option::of(text()), users()).prop_map(
        |(reason, method, data, reason_string, user_properties)| {
            let method = Some(method);
            Packet::Auth(Auth { reason, method, data, reason_string, user_properties })
        },
    )
}

/// Any packet of that version but PUBLISH.
pub(super) fn owned_packet(version: Version) -> BoxedStrategy<Packet<'static>> {
    let is_5 = version == Version::V5;
    let pub_codes = &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
    let rel_codes = &[0, 0x92];
    let sub_codes: &[u8] =
        if is_5 { &[0, 1, 2, 0x80, 0x87, 0x8f, 0x97, 0x9e, 0xa1, 0xa2] } else { &[0, 1, 2, 0x80] };
    let subscribe =
        (packet_id(), option::of(1..=268_435_455_u32), users(), vec(filter(version), 1..4));
    let unsubscribe = (packet_id(), users(), vec(text(), 1..4));
    let others = prop_oneof![
        any_connect(version).prop_map(|connect| Packet::Connect(Box::new(connect))),
        connack(version),
        ack(version, pub_codes).prop_map(Packet::Puback),
        ack(version, pub_codes).prop_map(Packet::Pubrec),
        ack(version, rel_codes).prop_map(Packet::Pubrel),
        ack(version, rel_codes).prop_map(Packet::Pubcomp),
        subscribe.prop_map(move |(packet_id, subscription_id, users, filters)| {
            Packet::Subscribe(Subscribe {
                packet_id,
                subscription_id: subscription_id.filter(|_| is_5),
                user_properties: if is_5 { users } else { Vec::new() },
                filters,
            })
        }),
        suback(version, sub_codes).prop_map(Packet::Suback),
        unsubscribe.prop_map(move |(packet_id, users, filters)| {
            let user_properties = if is_5 { users } else { Vec::new() };
            Packet::Unsubscribe(Unsubscribe { packet_id, user_properties, filters })
        }),
        suback(version, &[0, 0x11, 0x80, 0x83, 0x87, 0x8f, 0x91]).prop_map(move |mut unsuback| {
            if !is_5 {
                unsuback.reasons.clear();
            }
            Packet::Unsuback(unsuback)
        }),
        Just(Packet::Pingreq),
        Just(Packet::Pingresp),
        disconnect(version),
    ];
    if is_5 { prop_oneof![12 => others, 1 => auth()].boxed() } else { others.boxed() }
}

/// The parts of a PUBLISH.
#[derive(Clone, Debug)]
pub(super) struct Message {
    flags: [bool; 2],
    qos: QoS,
    topic: String,
    packet_id: PacketId,
    alias: Option<NonZeroU16>,
    expiry: Option<u32>,
    ids: Vec<u32>,
    forwarded: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl Message {
    pub(super) fn head(&self) -> PublishHead<'_> {
        PublishHead {
            dup: self.flags[0] && self.qos != QoS::AtMostOnce,
            qos: self.qos,
            retain: self.flags[1],
            topic: &self.topic,
            packet_id: Some(self.packet_id),
            topic_alias: self.alias,
            message_expiry: self.expiry,
            subscription_ids: &self.ids,
            forwarded: &self.forwarded,
            payload_bytes: self.payload.len(),
        }
    }

    pub(super) fn encode(&self, version: Version) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.head().encode(version, &mut bytes);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

pub(super) fn message() -> impl Strategy<Value = Message> {
    let ids = vec(1..=268_435_455_u32, 0..3);
    let alias = nonzero();
    let payload = vec(any::<u8>(), 0..300);
    (
        any::<[bool; 2]>(),
        qos(),
        topic(),
        packet_id(),
        alias,
        any::<Option<u32>>(),
        ids,
        forwarded(),
        payload,
    )
        .prop_map(|(flags, qos, topic, packet_id, alias, expiry, ids, forwarded, payload)| {
            Message { flags, qos, topic, packet_id, alias, expiry, ids, forwarded, payload }
        })
}

/// A valid packet of that version.
pub(super) fn packet_bytes(version: Version) -> BoxedStrategy<Vec<u8>> {
    prop_oneof![
        3 => owned_packet(version).prop_map(move |packet| encode(version, &packet)),
        1 => message().prop_map(move |message| message.encode(version)),
    ]
    .boxed()
}

/// A valid packet with one byte changed, put in or cut, seldom more, so that what is left often is a packet, or nearly one. The
/// remaining length is mended.
pub(super) fn damaged(version: Version) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(&b"\0\x01\x02\x03\x80\xff+#"[..])];
    let kind = prop_oneof![4 => Just(0_u8), 4 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4)];
    let accident = (any::<prop::sample::Index>(), byte, kind);
    let damage = prop_oneof![3 => vec(accident.clone(), 1), 1 => vec(accident, 2..5)];
    (packet_bytes(version), damage).prop_map(|(bytes, damage)| {
        let header = FixedHeader::decode(&bytes, usize::MAX).unwrap().unwrap();
        let mut first = header.first;
        let mut body = bytes[header.header_bytes..].to_vec();
        for (at, byte, kind) in damage {
            let end = body.len();
            match kind {
                0 if end > 0 => body[at.index(end)] = byte,
                1 if end > 0 => body[at.index(end)] ^= 1 << (byte % 8),
                2 => body.insert(at.index(end + 1), byte),
                3 => body.truncate(at.index(end + 1).max(end.saturating_sub(3))),
                _ => first ^= 1 << (byte % 8),
            }
        }
        let mut bytes = vec![first];
        encode_variable(u32::try_from(body.len()).unwrap(), &mut bytes);
        bytes.extend_from_slice(&body);
        bytes
    })
}

/// A decoded packet is encoded to one that decodes to the same.
fn settles(version: Version, bytes: &[u8]) {
    let Ok(Some(header)) = FixedHeader::decode(bytes, usize::MAX) else { return };
    let end = header.packet_bytes().min(bytes.len());
    let Ok(packet) = Packet::decode(version, header.first, &bytes[header.header_bytes..end]) else {
        return;
    };
    let version = match &packet {
        Packet::Connect(connect) => connect.version,
        _ => version,
    };
    assert_eq!(decode(version, &encode(version, &packet)).as_ref(), Ok(&packet));
}

proptest! {
    #[test]
    fn packets_survive(
        (version, packet) in version().prop_flat_map(|v| (Just(v), owned_packet(v))),
    ) {
        let bytes = encode(version, &packet);
        prop_assert_eq!(decode(version, &bytes), Ok(packet));
    }

    #[test]
    fn messages_survive(version in version(), message in message()) {
        let bytes = message.encode(version);
        let head = message.head();
        prop_assert_eq!(bytes.len(), head.packet_bytes(version));
        let packet = decode(version, &bytes).unwrap();
        prop_assert_eq!(&encode(version, &packet), &bytes);
        let Packet::Publish(publish) = packet else { panic!("{packet:?}") };
        prop_assert_eq!(publish.topic, head.topic);
        prop_assert_eq!(publish.payload, &message.payload);
        prop_assert_eq!((publish.dup, publish.qos, publish.retain), (head.dup, head.qos, head.retain));
        prop_assert_eq!(publish.packet_id, head.packet_id.filter(|_| head.qos != QoS::AtMostOnce));
        if version == Version::V5 {
            prop_assert_eq!(publish.properties.topic_alias, head.topic_alias);
            prop_assert_eq!(publish.properties.message_expiry, head.message_expiry);
            let ids: Vec<_> = publish.properties.subscription_ids().collect();
            prop_assert_eq!(&ids, head.subscription_ids);
            let mut forwarded = Vec::new();
            publish.properties.forwarded(&mut forwarded);
            prop_assert_eq!(&forwarded, head.forwarded);
        }
    }

    /// At every cut, the head alone agrees with the whole packet.
    #[test]
    fn heads_agree_with_packets(
        (version, bytes) in version().prop_flat_map(|v| {
            let message = message().prop_map(move |message| message.encode(v));
            (Just(v), prop_oneof![message, damaged(v)])
        }),
    ) {
        let header = FixedHeader::decode(&bytes, usize::MAX).unwrap().unwrap();
        let body = &bytes[header.header_bytes..];
        let whole = Publish::decode(version, header.first, body);
        for cut in 0..=body.len() {
            match Publish::decode_head(version, header.first, &body[..cut], body.len()) {
                Ok(None) => prop_assert!(cut < body.len(), "the whole body holds the head"),
                Ok(Some((publish, head_bytes))) => {
                    let whole = whole.unwrap();
                    prop_assert_eq!(head_bytes + whole.payload.len(), body.len());
                    prop_assert_eq!(publish.payload, &body[head_bytes..cut]);
                    prop_assert_eq!(Publish { payload: whole.payload, ..publish }, whole);
                }
                Err(_) => prop_assert!(whole.is_err(), "{whole:?} is refused at {cut}"),
            }
        }
    }

    #[test]
    fn decoding_never_panics(version in version(), bytes in vec(any::<u8>(), 0..400)) {
        settles(version, &bytes);
        if let [first, body @ ..] = &bytes[..] {
            let _ = Packet::decode(version, *first, body);
            let _ = Publish::decode_head(version, *first, body, usize::MAX);
        }
    }

    #[test]
    fn damaged_packets_decode_to_sound_ones(
        (version, bytes) in version().prop_flat_map(|v| (Just(v), damaged(v))),
    ) {
        settles(version, &bytes);
    }
}
