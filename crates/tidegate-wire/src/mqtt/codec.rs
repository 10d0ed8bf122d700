//! Packets by their type: the fixed header's first byte leads to the module of each.

use super::{
    Ack, AckKind, Auth, Connack, Connect, DecodeError, Disconnect, EncodeError, Packet, Publish,
    Suback, Subscribe, Unsubscribe, Version, field::Input, subscribe::AnswerKind,
};

impl<'a> Packet<'a> {
    /// The packet whose fixed header begins with `first` and whose body is `body`, whole. `version` is that of the connection,
    /// and ignored for CONNECT.
    ///
    /// # Errors
    ///
    /// `PacketType` and `Flags` for the first byte, all else as for [`Connect::decode`] and [`Publish::decode`].
    #[inline]
    pub fn decode(version: Version, first: u8, body: &'a [u8]) -> Result<Packet<'a>, DecodeError> {
        if first >> 4 == 3 {
            return Publish::decode(version, first, body).map(Packet::Publish);
        }
        Self::decode_other(version, first, body)
    }

    fn decode_other(version: Version, first: u8, body: &[u8]) -> Result<Self, DecodeError> {
        check_flags(version, first)?;
        let empty = |packet, name| Input::new(body).end(name).map(|()| packet);
        let ack = |kind| Ack::decode(version, kind, body);
        match first >> 4 {
            1 => Connect::decode(body).map(|connect| Packet::Connect(Box::new(connect))),
            2 => Connack::decode(version, body).map(|connack| Packet::Connack(Box::new(connack))),
            4 => ack(AckKind::Puback).map(Packet::Puback),
            5 => ack(AckKind::Pubrec).map(Packet::Pubrec),
            6 => ack(AckKind::Pubrel).map(Packet::Pubrel),
            7 => ack(AckKind::Pubcomp).map(Packet::Pubcomp),
            8 => Subscribe::decode(version, body).map(Packet::Subscribe),
            9 => Suback::decode(version, AnswerKind::Suback, body).map(Packet::Suback),
            10 => Unsubscribe::decode(version, body).map(Packet::Unsubscribe),
            11 => Suback::decode(version, AnswerKind::Unsuback, body).map(Packet::Unsuback),
            12 => empty(Packet::Pingreq, "PINGREQ"),
            13 => empty(Packet::Pingresp, "PINGRESP"),
            14 => Disconnect::decode(version, body).map(Packet::Disconnect),
            15 if version == Version::V5 => Auth::decode(body).map(Packet::Auth),
            packet_type => Err(DecodeError::PacketType { packet_type, version }),
        }
    }

    /// Appends the whole packet. Values that `version` cannot express are left out: properties before MQTT 5, reasons of most
    /// answers.
    ///
    /// CONNECT is encoded in its own version. A PUBLISH has the properties of [`raw`](super::PublishProperties::raw), not of the
    /// decoded fields.
    ///
    /// # Errors
    ///
    /// - `TooLong`, `NullCharacter`, `OutOfRange` and `Missing` for a field.
    /// - `PacketTooLarge`.
    /// - `NoSuchPacket` for AUTH before MQTT 5.
    ///
    /// `out` is then as it was.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let encoded = match self {
            Packet::Connect(connect) => connect.encode(out),
            Packet::Connack(connack) => connack.encode(version, out),
            Packet::Publish(publish) => publish.encode(version, out),
            Packet::Puback(ack) => ack.encode(version, AckKind::Puback, out),
            Packet::Pubrec(ack) => ack.encode(version, AckKind::Pubrec, out),
            Packet::Pubrel(ack) => ack.encode(version, AckKind::Pubrel, out),
            Packet::Pubcomp(ack) => ack.encode(version, AckKind::Pubcomp, out),
            Packet::Subscribe(subscribe) => subscribe.encode(version, out),
            Packet::Suback(suback) => suback.encode(version, AnswerKind::Suback, out),
            Packet::Unsubscribe(unsubscribe) => unsubscribe.encode(version, out),
            Packet::Unsuback(unsuback) => unsuback.encode(version, AnswerKind::Unsuback, out),
            Packet::Pingreq => put_empty(0xc0, out),
            Packet::Pingresp => put_empty(0xd0, out),
            Packet::Disconnect(disconnect) => disconnect.encode(version, out),
            Packet::Auth(auth) => auth.encode(version, out),
        };
        if encoded.is_err() {
            out.truncate(start);
        }
        encoded
    }
}

fn put_empty(first: u8, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.extend_from_slice(&[first, 0]);
    Ok(())
}

/// The packets by their type (section 2.1.2).
pub(super) const NAMES: [&str; 16] = [
    "type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
];

/// The flags of every packet but PUBLISH (section 2.1.3).
fn check_flags(version: Version, first: u8) -> Result<(), DecodeError> {
    let (packet_type, flags) = (first >> 4, first & 0b1111);
    let answered = matches!(packet_type, 6 | 8 | 10);
    // MQTT 3.1 sends these three again with DUP set.
    let ignored = if answered && version == Version::V3 { 0b1000 } else { 0 };
    let expected = if answered { 0b0010 } else { 0 };
    if matches!(packet_type, 0) || (packet_type == 15 && version != Version::V5) {
        return Err(DecodeError::PacketType { packet_type, version });
    }
    if flags & !ignored != expected {
        return Err(DecodeError::Flags { packet: NAMES[usize::from(packet_type)], flags });
    }
    Ok(())
}
