//! A message of MQTT as an uplink carries it: topic, attributes, payload.
//!
//! ```text
//!  attributes: u8 flags (bits 0-1 QoS, 2 retain, 3 expires, 4 group) · [u32 seconds until it expires]
//!              · [u16 length, $share/GROUP/FILTER] · forwarded properties as encoded
//! ```
//!
//! Numbers are little endian. Between members of the fabric a message with a group is for one member of that shared subscription at the other
//! node alone; a message that is for other subscribers there as well is carried twice.
//!
//! Attributes seldom change from one message of a topic to the next, so they seldom travel.

use tidegate_message::{ID_PROPERTY, split_shared};
use tidegate_wire::mqtt::{
    Publish, PublishProperties, QoS,
    path::{Direction, PROPERTY, STAMPS_MAX, Stamps},
};

const QOS: u8 = 0b0011;
const RETAIN: u8 = 0b0100;
const EXPIRES: u8 = 0b1000;
const GROUP: u8 = 0b1_0000;

/// The properties of a message besides topic and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Seconds until it expires, when it was read or sent.
    pub expiry: Option<u32>,
    /// The shared subscription that it is for alone, as `$share/GROUP/FILTER`.
    pub group: Option<&'a str>,
    /// Properties that are forwarded unaltered, encoded.
    pub forwarded: &'a [u8],
}

/// Why attributes are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributesError {
    /// They end within a field.
    #[error("a message's attributes end too early")]
    Short,
    /// Flags of a version that this one does not know.
    #[error("a message has unknown attribute flags {0:#04x}")]
    Flags(u8),
    /// A group that is no shared subscription.
    #[error("a message is for a group that is no shared subscription")]
    Group,
    /// Properties that are none of MQTT, or not forwarded by a broker.
    #[error("a message has invalid properties")]
    Properties,
}

impl<'a> Attributes<'a> {
    /// Appends those of a message that was read, and is for that shared subscription alone if there is one.
    ///
    /// # Panics
    /// If the text of that is longer than that of any filter.
    pub fn put(publish: &Publish<'_>, group: Option<&str>, out: &mut Vec<u8>) {
        let retain = if publish.retain { RETAIN } else { 0 };
        let expiry = publish.properties.message_expiry;
        let expires = if expiry.is_some() { EXPIRES } else { 0 };
        let is_for_group = if group.is_some() { GROUP } else { 0 };
        out.push(publish.qos as u8 | retain | expires | is_for_group);
        if let Some(seconds) = expiry {
            out.extend_from_slice(&seconds.to_le_bytes());
        }
        if let Some(group) = group {
            let bytes = u16::try_from(group.len()).expect("filters have at most 65,535 bytes");
            out.extend_from_slice(&bytes.to_le_bytes());
            out.extend_from_slice(group.as_bytes());
        }
        publish.properties.forwarded(out);
    }

    /// Those that `bytes` are.
    ///
    /// # Errors
    /// [`AttributesError`].
    pub fn of(bytes: &'a [u8]) -> Result<Self, AttributesError> {
        let (&flags, mut rest) = bytes.split_first().ok_or(AttributesError::Short)?;
        let known = QOS | RETAIN | EXPIRES | GROUP;
        let qos = QoS::of_bits(flags & QOS).filter(|_| flags & !known == 0);
        let qos = qos.ok_or(AttributesError::Flags(flags))?;
        let mut expiry = None;
        if flags & EXPIRES != 0 {
            let (seconds, left) = rest.split_first_chunk().ok_or(AttributesError::Short)?;
            expiry = Some(u32::from_le_bytes(*seconds));
            rest = left;
        }
        let mut group = None;
        if flags & GROUP != 0 {
            let (bytes, left) = rest.split_first_chunk().ok_or(AttributesError::Short)?;
            let bytes = usize::from(u16::from_le_bytes(*bytes));
            let (text, left) = left.split_at_checked(bytes).ok_or(AttributesError::Short)?;
            let is_shared = |text: &&str| matches!(split_shared(text), Ok(Some(_)));
            let text = std::str::from_utf8(text).ok().filter(is_shared);
            group = Some(text.ok_or(AttributesError::Group)?);
            rest = left;
        }
        if !rest.is_empty() {
            let properties = PublishProperties::decode(rest);
            let properties = properties.map_err(|_| AttributesError::Properties)?;
            // Subscribers are sent them as they are.
            if !properties.all_forwarded {
                return Err(AttributesError::Properties);
            }
        }
        Ok(Self { qos, retain: flags & RETAIN != 0, expiry, group, forwarded: rest })
    }

    /// Whether it may come into the node of `stamps`: it was not there before. One for a shared subscription may have been, as often as there
    /// was no member left where it came; not for ever.
    pub fn may_enter(&self, stamps: &Stamps) -> bool {
        let is_few = |properties: &PublishProperties<'_>| {
            let nodes = properties.user_properties().filter(|(name, _)| *name == PROPERTY);
            nodes.count() < STAMPS_MAX
        };
        self.forwarded.is_empty()
            || PublishProperties::decode(self.forwarded).is_ok_and(|properties| match self.group {
                Some(_) => is_few(&properties),
                None => passes(stamps, Direction::In, &properties),
            })
    }

    /// Whether it was given a name by the node where it was published, or on its way.
    pub fn is_named(&self) -> bool {
        !self.forwarded.is_empty()
            && PublishProperties::decode(self.forwarded).is_ok_and(|properties| {
                properties.user_properties().any(|(name, _)| name == ID_PROPERTY)
            })
    }
}

/// Whether a message with these properties may pass the node of `stamps` that way.
pub(crate) fn passes(
    stamps: &Stamps,
    direction: Direction,
    properties: &PublishProperties<'_>,
) -> bool {
    stamps.passes(direction, properties.user_properties())
}

/// Seconds until the message of those attributes expires; none if it never does.
pub(crate) fn expiry(attributes: &[u8]) -> Option<u32> {
    let (flags, rest) = attributes.split_first()?;
    let (seconds, _) = rest.split_first_chunk().filter(|_| flags & EXPIRES != 0)?;
    Some(u32::from_le_bytes(*seconds))
}

/// The message of those attributes, which expires, does so in that many seconds.
pub(crate) fn set_expiry(attributes: &mut [u8], seconds: u32) {
    attributes[1..5].copy_from_slice(&seconds.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use tidegate_wire::mqtt::{PacketId, Version, put_user_property};

    use super::*;

    #[test]
    fn attributes_come_back() {
        let mut forwarded = Vec::new();
        put_user_property("unit", "°C", &mut forwarded).unwrap();
        let mut named = forwarded.clone();
        put_user_property(ID_PROPERTY, "edge/plant/1/2", &mut named).unwrap();
        for (qos, retain, expiry, group, forwarded) in [
            (QoS::AtMostOnce, false, None, None, &[][..]),
            (QoS::AtLeastOnce, true, Some(3600), None, &forwarded[..]),
            (QoS::ExactlyOnce, false, Some(0), Some("$share/g/t/#"), &named[..]),
            (QoS::AtLeastOnce, true, None, Some("$share/größe/+"), &[][..]),
        ] {
            let mut raw = Vec::new();
            if let Some(seconds) = expiry {
                raw.push(2); // Message Expiry Interval
                raw.extend_from_slice(&u32::to_be_bytes(seconds));
            }
            raw.extend_from_slice(forwarded);
            let publish = Publish {
                dup: false,
                qos,
                retain,
                topic: "t",
                packet_id: PacketId::new(1).filter(|_| qos != QoS::AtMostOnce),
                properties: PublishProperties::decode(&raw).expect("properties"),
                payload: b"",
            };
            let mut out = Vec::new();
            Attributes::put(&publish, group, &mut out);
            let found = Attributes::of(&out).expect("attributes");
            assert_eq!(found, Attributes { qos, retain, expiry, group, forwarded });
            assert_eq!(found.is_named(), forwarded == named);
            assert_eq!(super::expiry(&out), expiry);
            if expiry.is_some() {
                set_expiry(&mut out, 7);
                let aged = Attributes { qos, retain, expiry: Some(7), group, forwarded };
                assert_eq!(Attributes::of(&out), Ok(aged));
            }
        }
        assert_eq!(Version::V5.level(), 5, "properties are those of MQTT 5");
    }

    #[test]
    fn a_message_of_a_group_may_come_back_to_a_node_but_not_for_ever() {
        let (ours, theirs) = (Stamps::new("ours"), Stamps::new("theirs"));
        let may_enter = |nodes: &[&Stamps], group| {
            let mut raw = Vec::new();
            nodes.iter().for_each(|node| raw.extend_from_slice(node.property(Direction::Out)));
            Attributes {
                qos: QoS::AtLeastOnce,
                retain: false,
                expiry: None,
                group,
                forwarded: &raw,
            }
            .may_enter(&ours)
        };
        let group = Some("$share/g/t");
        for (nodes, group, expected) in [
            (&[&theirs][..], None, true),
            (&[&ours][..], None, false),
            (&[&ours, &theirs][..], group, true),
            (&[&ours; STAMPS_MAX - 1][..], group, true),
            (&[&ours; STAMPS_MAX][..], group, false),
        ] {
            assert_eq!(may_enter(nodes, group), expected, "{} nodes, {group:?}", nodes.len());
        }
    }

    #[test]
    fn invalid_texts_are_refused() {
        assert_eq!(Attributes::of(&[]), Err(AttributesError::Short));
        assert_eq!(Attributes::of(&[EXPIRES, 1, 2]), Err(AttributesError::Short));
        assert_eq!(Attributes::of(&[3]), Err(AttributesError::Flags(3)));
        assert_eq!(Attributes::of(&[32]), Err(AttributesError::Flags(32)));
        assert_eq!(Attributes::of(&[GROUP, 1]), Err(AttributesError::Short));
        assert_eq!(Attributes::of(&[GROUP, 2, 0, b'a']), Err(AttributesError::Short));
        for text in [&b""[..], b"t", b"$share/g", b"$share//t", b"$share/g/\xff"] {
            let bytes = [&[GROUP, text.len() as u8, 0][..], text].concat();
            assert_eq!(Attributes::of(&bytes), Err(AttributesError::Group), "{text:?}");
        }
        assert_eq!(Attributes::of(&[1, 0xff, 0xff]), Err(AttributesError::Properties));
    }
}
