//! PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7).

use super::{
    Ack, DecodeError, EncodeError, PacketId, ReasonCode, Version,
    field::{Input, put_u16, put_with_length},
    property::{Properties, Property, id, put_text_property, put_user_properties},
};

/// Which of the four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AckKind {
    /// QoS 1: accepted.
    Puback,
    /// QoS 2, first answer.
    Pubrec,
    /// QoS 2, second step.
    Pubrel,
    /// QoS 2, last answer.
    Pubcomp,
}

impl AckKind {
    /// The first byte of the packet, type and flags.
    pub const fn first(self) -> u8 {
        match self {
            Self::Puback => 0x40,
            Self::Pubrec => 0x50,
            Self::Pubrel => 0x62,
            Self::Pubcomp => 0x70,
        }
    }

    /// The kind of a packet that begins with that byte; none if it is none of the four, or has flags that they do not.
    #[inline]
    pub(super) const fn of_first(first: u8) -> Option<Self> {
        match first {
            0x40 => Some(Self::Puback),
            0x50 => Some(Self::Pubrec),
            0x62 => Some(Self::Pubrel),
            0x70 => Some(Self::Pubcomp),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Puback => "PUBACK",
            Self::Pubrec => "PUBREC",
            Self::Pubrel => "PUBREL",
            Self::Pubcomp => "PUBCOMP",
        }
    }

    fn check(self, reason: ReasonCode) -> Result<(), DecodeError> {
        let (known, clause) = match self {
            Self::Puback | Self::Pubrec => (
                matches!(reason.0, 0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99),
                if self == Self::Puback { "MQTT-3.4.2-1" } else { "MQTT-3.5.2-1" },
            ),
            Self::Pubrel => (matches!(reason.0, 0x00 | 0x92), "MQTT-3.6.2-1"),
            Self::Pubcomp => (matches!(reason.0, 0x00 | 0x92), "MQTT-3.7.2-1"),
        };
        let what = "reason code is not one of this packet";
        if known { Ok(()) } else { Err(DecodeError::Protocol { what, clause }) }
    }
}

/// Appends PUBACK, PUBREC, PUBREL or PUBCOMP without properties: 4 bytes, or 5 in MQTT 5 with a reason other than success. Before
/// MQTT 5 there is no reason in it.
#[inline]
pub fn encode_ack(
    version: Version,
    kind: AckKind,
    packet_id: PacketId,
    reason: ReasonCode,
    out: &mut Vec<u8>,
) {
    let [high, low] = packet_id.get().to_be_bytes();
    if version == Version::V5 && reason != ReasonCode::SUCCESS {
        out.extend_from_slice(&[kind.first(), 3, high, low, reason.0]);
    } else {
        out.extend_from_slice(&[kind.first(), 2, high, low]);
    }
}

impl Ack {
    pub(super) fn decode(
        version: Version,
        kind: AckKind,
        body: &[u8],
    ) -> Result<Self, DecodeError> {
        let mut input = Input::new(body);
        let mut ack = Self::new(input.packet_id()?, ReasonCode::SUCCESS);
        if version == Version::V5 && !input.is_empty() {
            ack.reason = ReasonCode(input.u8("reason code")?);
            kind.check(ack.reason)?;
            if !input.is_empty() {
                let mut properties = Properties::take(&mut input, kind.name())?;
                while let Some(property) = properties.next()? {
                    match property {
                        Property::ReasonString(text) => ack.reason_string = Some(text.to_owned()),
                        Property::User(name, value) => {
                            ack.user_properties.push((name.to_owned(), value.to_owned()));
                        }
                        _ => return Err(properties.misplaced()),
                    }
                }
            }
        }
        input.end(kind.name())?;
        Ok(ack)
    }

    pub(super) fn encode(
        &self,
        version: Version,
        kind: AckKind,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let bare = self.reason_string.is_none() && self.user_properties.is_empty();
        if version != Version::V5 || bare {
            encode_ack(version, kind, self.packet_id, self.reason, out);
            return Ok(());
        }
        out.push(kind.first());
        put_with_length(out, |out| {
            put_u16(self.packet_id.get(), out);
            out.push(self.reason.0);
            put_with_length(out, |out| {
                let text = self.reason_string.as_deref();
                put_text_property(id::REASON_STRING, text, "reason string", out)?;
                put_user_properties(&self.user_properties, out)
            })
        })
    }
}
