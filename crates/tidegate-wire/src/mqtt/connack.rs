//! CONNACK (section 3.2).

use super::{
    Connack, ConnackProperties, DecodeError, EncodeError, QoS, ReasonCode, Version,
    field::{Input, put_with_length},
    property::{
        Properties, Property, id, put_byte, put_data_property, put_flag, put_four,
        put_maximum_packet_size, put_text_property, put_two, put_user_properties,
    },
};

const PACKET: &str = "CONNACK";

impl Connack {
    pub(super) fn decode(version: Version, body: &[u8]) -> Result<Self, DecodeError> {
        // A server without MQTT 5 says so in the older form (MQTT 3.1.1, MQTT-3.1.2-2).
        if version == Version::V5 && body == [0, 1] {
            return Ok(Self {
                reason: ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
                ..Self::default()
            });
        }
        let mut input = Input::new(body);
        let flags = input.u8("connect acknowledge flags")?;
        let code = input.u8("reason code")?;
        // MQTT 3.1 does not use the byte of flags.
        if flags > 1 && version != Version::V3 {
            let field = "connect acknowledge flags: a reserved bit is set";
            return Err(DecodeError::Malformed { field, clause: "MQTT-3.2.2-1" });
        }
        let session_present = flags == 1 && version != Version::V3;
        let (reason, properties) = match version {
            Version::V3 | Version::V4 => (of_return_code(code)?, ConnackProperties::default()),
            Version::V5 => (checked(code)?, ConnackProperties::take(&mut input)?),
        };
        input.end(PACKET)?;
        if session_present && reason.is_failure() {
            let what = "a session is present and the connection refused";
            return Err(DecodeError::Protocol { what, clause: "MQTT-3.2.2-6" });
        }
        Ok(Self { session_present, reason, properties })
    }

    /// Session Present is set only with success (MQTT-3.2.2-6), and never in MQTT 3.1.
    pub(super) fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let present = self.session_present && !self.reason.is_failure() && version != Version::V3;
        out.push(0x20);
        put_with_length(out, |out| {
            out.push(u8::from(present));
            if version != Version::V5 {
                out.push(return_code(self.reason));
                return Ok(());
            }
            out.push(self.reason.0);
            put_with_length(out, |out| self.properties.put(out))
        })
    }
}

fn checked(code: u8) -> Result<ReasonCode, DecodeError> {
    match code {
        0x00 | 0x80..=0x8a | 0x8c | 0x90 | 0x95 | 0x97 | 0x99..=0x9d | 0x9f => Ok(ReasonCode(code)),
        _ => {
            let what = "reason code is not one of CONNACK";
            Err(DecodeError::Protocol { what, clause: "MQTT-3.2.2-8" })
        }
    }
}

/// The reason that a return code of MQTT 3.1.1 (section 3.2.2.3) stands for.
fn of_return_code(code: u8) -> Result<ReasonCode, DecodeError> {
    Ok(match code {
        0 => ReasonCode::SUCCESS,
        1 => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
        2 => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
        3 => ReasonCode::SERVER_UNAVAILABLE,
        4 => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        5 => ReasonCode::NOT_AUTHORIZED,
        _ => {
            let what = "return code is reserved";
            return Err(DecodeError::Protocol { what, clause: "MQTT 3.1.1, 3.2.2.3" });
        }
    })
}

/// The return code of MQTT 3.1.1 that fits best; server unavailable for a failure that it has no word for.
fn return_code(reason: ReasonCode) -> u8 {
    match reason {
        reason if !reason.is_failure() => 0,
        ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => 1,
        ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => 2,
        ReasonCode::BAD_USER_NAME_OR_PASSWORD | ReasonCode::BAD_AUTHENTICATION_METHOD => 4,
        ReasonCode::NOT_AUTHORIZED | ReasonCode::BANNED => 5,
        _ => 3,
    }
}

impl ConnackProperties {
    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let mut found = Self::default();
        let mut properties = Properties::take(input, PACKET)?;
        while let Some(property) = properties.next()? {
            match property {
                Property::SessionExpiry(seconds) => found.session_expiry = Some(seconds),
                Property::ReceiveMaximum(count) => found.receive_maximum = Some(count),
                Property::MaximumQoS(qos) => found.maximum_qos = Some(qos),
                Property::RetainAvailable(is) => found.retain_available = Some(is),
                Property::MaximumPacketSize(bytes) => found.maximum_packet_size = Some(bytes),
                Property::AssignedClientId(text) => {
                    found.assigned_client_id = Some(text.to_owned());
                }
                Property::TopicAliasMaximum(count) => found.topic_alias_maximum = count,
                Property::ReasonString(text) => found.reason_string = Some(text.to_owned()),
                Property::User(name, value) => {
                    found.user_properties.push((name.to_owned(), value.to_owned()));
                }
                Property::WildcardAvailable(is) => found.wildcard_available = Some(is),
                Property::SubscriptionIdsAvailable(is) => {
                    found.subscription_ids_available = Some(is);
                }
                Property::SharedAvailable(is) => found.shared_available = Some(is),
                Property::ServerKeepAlive(seconds) => found.server_keep_alive = Some(seconds),
                Property::ResponseInformation(text) => {
                    found.response_information = Some(text.to_owned());
                }
                Property::ServerReference(text) => found.server_reference = Some(text.to_owned()),
                Property::AuthenticationMethod(text) => {
                    found.authentication_method = Some(text.to_owned());
                }
                Property::AuthenticationData(data) => {
                    found.authentication_data = Some(data.to_owned());
                }
                _ => return Err(properties.misplaced()),
            }
        }
        Ok(found)
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_four(id::SESSION_EXPIRY, self.session_expiry, out);
        put_two(id::RECEIVE_MAXIMUM, self.receive_maximum.map(u16::from), out);
        // QoS 2 is said by silence: the property is 0 or 1 (section 3.2.2.3.4).
        if let Some(qos @ (QoS::AtMostOnce | QoS::AtLeastOnce)) = self.maximum_qos {
            put_byte(id::MAXIMUM_QOS, qos as u8, out);
        }
        put_flag(id::RETAIN_AVAILABLE, self.retain_available, out);
        put_maximum_packet_size(self.maximum_packet_size, out)?;
        let text = self.assigned_client_id.as_deref();
        put_text_property(id::ASSIGNED_CLIENT_ID, text, "assigned client identifier", out)?;
        let aliases = self.topic_alias_maximum;
        put_two(id::TOPIC_ALIAS_MAXIMUM, (aliases != 0).then_some(aliases), out);
        let text = self.reason_string.as_deref();
        put_text_property(id::REASON_STRING, text, "reason string", out)?;
        put_user_properties(&self.user_properties, out)?;
        put_flag(id::WILDCARD_AVAILABLE, self.wildcard_available, out);
        put_flag(id::SUBSCRIPTION_IDS_AVAILABLE, self.subscription_ids_available, out);
        put_flag(id::SHARED_AVAILABLE, self.shared_available, out);
        put_two(id::SERVER_KEEP_ALIVE, self.server_keep_alive, out);
        let text = self.response_information.as_deref();
        put_text_property(id::RESPONSE_INFORMATION, text, "response information", out)?;
        let text = self.server_reference.as_deref();
        put_text_property(id::SERVER_REFERENCE, text, "server reference", out)?;
        let text = self.authentication_method.as_deref();
        put_text_property(id::AUTHENTICATION_METHOD, text, "authentication method", out)?;
        let data = self.authentication_data.as_deref();
        put_data_property(id::AUTHENTICATION_DATA, data, "authentication data", out)
    }
}
