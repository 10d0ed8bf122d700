//! SUBSCRIBE, UNSUBSCRIBE and their answers (sections 3.8 to 3.11).

use super::{
    DecodeError, EncodeError, QoS, ReasonCode, RetainHandling, Suback, Subscribe, SubscribeFilter,
    Unsubscribe, Version,
    field::{Input, put_text, put_u16, put_with_length},
    property::{
        Properties, Property, id, put_subscription_id, put_text_property, put_user_properties,
    },
};

impl Subscribe {
    pub(super) fn decode(version: Version, body: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input::new(body);
        let packet_id = input.packet_id()?;
        let (mut subscription_id, mut user_properties) = (None, Vec::new());
        if version == Version::V5 {
            let mut properties = Properties::take(&mut input, "SUBSCRIBE")?;
            while let Some(property) = properties.next()? {
                match property {
                    Property::SubscriptionId(id) => subscription_id = Some(id),
                    Property::User(name, value) => {
                        user_properties.push((name.to_owned(), value.to_owned()));
                    }
                    _ => return Err(properties.misplaced()),
                }
            }
        }
        let mut filters = Vec::new();
        while !input.is_empty() {
            filters.push(SubscribeFilter::decode(version, &mut input)?);
        }
        if filters.is_empty() {
            let what = "SUBSCRIBE has no topic filter";
            return Err(DecodeError::Protocol { what, clause: "MQTT-3.8.3-2" });
        }
        Ok(Self { packet_id, subscription_id, user_properties, filters })
    }

    pub(super) fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.filters.is_empty() {
            return Err(EncodeError::Missing { packet: "SUBSCRIBE", field: "a topic filter" });
        }
        out.push(0x82);
        put_with_length(out, |out| {
            put_u16(self.packet_id.get(), out);
            if version == Version::V5 {
                put_with_length(out, |out| {
                    put_subscription_id(self.subscription_id, out)?;
                    put_user_properties(&self.user_properties, out)
                })?;
            }
            for filter in &self.filters {
                put_text(&filter.filter, "topic filter", out)?;
                out.push(filter.options(version));
            }
            Ok(())
        })
    }
}

impl SubscribeFilter {
    fn decode(version: Version, input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let filter = input.text("topic filter")?.to_owned();
        let options = input.u8("subscription options")?;
        let reserved = if version == Version::V5 { 0b1100_0000 } else { 0b1111_1100 };
        if options & reserved != 0 {
            let field = "subscription options: a reserved bit is set";
            return Err(DecodeError::Malformed { field, clause: "MQTT-3.8.3-5" });
        }
        let maximum_qos = QoS::of_bits(options & 0b11).ok_or(DecodeError::Protocol {
            what: "maximum quality of service is 3",
            clause: "MQTT 5.0, 3.8.3.1",
        })?;
        let no_local = options & 0b100 != 0;
        if no_local && filter.starts_with("$share/") {
            let what = "No Local is set on a shared subscription";
            return Err(DecodeError::Protocol { what, clause: "MQTT-3.8.3-4" });
        }
        let retain_handling = match options >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => {
                let what = "retain handling is 3";
                return Err(DecodeError::Protocol { what, clause: "MQTT 5.0, 3.8.3.1" });
            }
        };
        let retain_as_published = options & 0b1000 != 0;
        Ok(Self { filter, maximum_qos, no_local, retain_as_published, retain_handling })
    }

    fn options(&self, version: Version) -> u8 {
        let maximum_qos = self.maximum_qos as u8;
        if version != Version::V5 {
            return maximum_qos;
        }
        maximum_qos
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling as u8) << 4
    }
}

impl Unsubscribe {
    pub(super) fn decode(version: Version, body: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input::new(body);
        let packet_id = input.packet_id()?;
        let mut user_properties = Vec::new();
        if version == Version::V5 {
            let mut properties = Properties::take(&mut input, "UNSUBSCRIBE")?;
            while let Some(property) = properties.next()? {
                match property {
                    Property::User(name, value) => {
                        user_properties.push((name.to_owned(), value.to_owned()));
                    }
                    _ => return Err(properties.misplaced()),
                }
            }
        }
        let mut filters = Vec::new();
        while !input.is_empty() {
            filters.push(input.text("topic filter")?.to_owned());
        }
        if filters.is_empty() {
            let what = "UNSUBSCRIBE has no topic filter";
            return Err(DecodeError::Protocol { what, clause: "MQTT-3.10.3-2" });
        }
        Ok(Self { packet_id, user_properties, filters })
    }

    pub(super) fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.filters.is_empty() {
            return Err(EncodeError::Missing { packet: "UNSUBSCRIBE", field: "a topic filter" });
        }
        out.push(0xa2);
        put_with_length(out, |out| {
            put_u16(self.packet_id.get(), out);
            if version == Version::V5 {
                put_with_length(out, |out| put_user_properties(&self.user_properties, out))?;
            }
            self.filters.iter().try_for_each(|filter| put_text(filter, "topic filter", out))
        })
    }
}

/// The two answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
    Suback,
    Unsuback,
}

impl AnswerKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Suback => "SUBACK",
            Self::Unsuback => "UNSUBACK",
        }
    }

    fn check(self, version: Version, reason: ReasonCode) -> Result<(), DecodeError> {
        let (known, clause) = match (self, version) {
            (Self::Suback, Version::V3 | Version::V4) => {
                (matches!(reason.0, 0x00..=0x02 | 0x80), "MQTT-3.9.3-2")
            }
            (Self::Suback, Version::V5) => (
                matches!(
                    reason.0,
                    0x00..=0x02 | 0x80 | 0x83 | 0x87 | 0x8f | 0x91 | 0x97 | 0x9e | 0xa1 | 0xa2
                ),
                "MQTT-3.9.3-2",
            ),
            (Self::Unsuback, _) => (
                matches!(reason.0, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8f | 0x91),
                "MQTT-3.11.3-2",
            ),
        };
        let what = "reason code is not one of this packet";
        if known { Ok(()) } else { Err(DecodeError::Protocol { what, clause }) }
    }
}

impl Suback {
    pub(super) fn decode(
        version: Version,
        kind: AnswerKind,
        body: &[u8],
    ) -> Result<Self, DecodeError> {
        let mut input = Input::new(body);
        let packet_id = input.packet_id()?;
        let (mut reason_string, mut user_properties) = (None, Vec::new());
        if version == Version::V5 {
            let mut properties = Properties::take(&mut input, kind.name())?;
            while let Some(property) = properties.next()? {
                match property {
                    Property::ReasonString(text) => reason_string = Some(text.to_owned()),
                    Property::User(name, value) => {
                        user_properties.push((name.to_owned(), value.to_owned()));
                    }
                    _ => return Err(properties.misplaced()),
                }
            }
        } else if kind == AnswerKind::Unsuback {
            input.end(kind.name())?;
            return Ok(Self { packet_id, reason_string, user_properties, reasons: Vec::new() });
        }
        let reasons: Vec<_> = input.rest().iter().map(|code| ReasonCode(*code)).collect();
        if reasons.is_empty() {
            let what = "answer has no reason code";
            return Err(DecodeError::Protocol { what, clause: "MQTT-3.9.3-1, 3.11.3-1" });
        }
        reasons.iter().try_for_each(|reason| kind.check(version, *reason))?;
        Ok(Self { packet_id, reason_string, user_properties, reasons })
    }

    pub(super) fn encode(
        &self,
        version: Version,
        kind: AnswerKind,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let bare = version != Version::V5 && kind == AnswerKind::Unsuback;
        if self.reasons.is_empty() && !bare {
            return Err(EncodeError::Missing { packet: kind.name(), field: "a reason code" });
        }
        out.push(if kind == AnswerKind::Suback { 0x90 } else { 0xb0 });
        put_with_length(out, |out| {
            put_u16(self.packet_id.get(), out);
            if version == Version::V5 {
                put_with_length(out, |out| {
                    let text = self.reason_string.as_deref();
                    put_text_property(id::REASON_STRING, text, "reason string", out)?;
                    put_user_properties(&self.user_properties, out)
                })?;
                out.extend(self.reasons.iter().map(|reason| reason.0));
            } else if kind == AnswerKind::Suback {
                let code = |reason: &ReasonCode| if reason.is_failure() { 0x80 } else { reason.0 };
                out.extend(self.reasons.iter().map(code));
            }
            Ok(())
        })
    }
}
