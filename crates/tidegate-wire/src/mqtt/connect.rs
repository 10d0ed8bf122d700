//! CONNECT (section 3.1).

use super::{
    Connect, ConnectProperties, DecodeError, EncodeError, QoS, Version, Will,
    field::{Input, put_binary, put_text, put_u16, put_with_length},
    property::{
        Properties, Property, id, put_byte, put_data_property, put_flag, put_four,
        put_maximum_packet_size, put_text_property, put_two, put_user_properties,
    },
};

const PACKET: &str = "CONNECT";

/// Bit 7 of the level, set by bridges before MQTT 5.
const BRIDGE: u8 = 0x80;

/// The connect flags (section 3.1.2.3).
mod flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const CLEAN_START: u8 = 0x02;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USERNAME: u8 = 0x80;
}

impl Connect {
    /// A client of that name with a session of one connection: Clean Start, no keep alive, no will, no user name.
    pub fn new(version: Version, client_id: impl Into<String>) -> Self {
        Self {
            version,
            bridge: false,
            clean_start: true,
            keep_alive: 0,
            client_id: client_id.into(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties::default(),
        }
    }

    /// The packet whose body is `body`, whole. The client's name is not judged: whether an empty one is served is the broker's
    /// to say.
    ///
    /// # Errors
    ///
    /// - `UnsupportedVersion` for a level that is not of that protocol name, whatever comes after it.
    /// - `Malformed` for another protocol name, flags that contradict each other, text that is not UTF-8.
    /// - `Protocol` for authentication data without a method, and a property outside its range.
    /// - `TopicName` for the will's topic; `Short`, `Trailing`, `PropertyUnknown`, `PropertyRepeated`.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input::new(body);
        let (level, known) = take_version(&mut input)?;
        let Some((version, bridge)) = known else {
            let is_v5 = Self::take(Version::V5, false, input).is_ok();
            let layout = if is_v5 { Version::V5 } else { Version::V4 };
            return Err(DecodeError::UnsupportedVersion { level, layout });
        };
        Self::take(version, bridge, input)
    }

    /// The fields after the level.
    fn take(version: Version, bridge: bool, mut input: Input<'_>) -> Result<Self, DecodeError> {
        let flags = input.u8("connect flags")?;
        check_flags(version, flags)?;
        let keep_alive = input.u16_be("keep alive")?;
        let properties = match version {
            Version::V5 => ConnectProperties::take(&mut input)?,
            Version::V3 | Version::V4 => ConnectProperties::default(),
        };
        let client_id = input.text("client identifier")?.to_owned();
        let will = match flags & flag::WILL {
            0 => None,
            _ => Some(Will::take(version, flags, &mut input)?),
        };
        // MQTT 3.1, section 3.1: the remaining length takes precedence over these two flags.
        let has = |flag, input: &Input<'_>| {
            flags & flag != 0 && !(version == Version::V3 && input.is_empty())
        };
        let username = match has(flag::USERNAME, &input) {
            true => Some(input.text("user name")?.to_owned()),
            false => None,
        };
        let password = match has(flag::PASSWORD, &input) {
            true => Some(input.binary("password")?.to_owned()),
            false => None,
        };
        input.end(PACKET)?;
        let clean_start = flags & flag::CLEAN_START != 0;
        Ok(Self {
            version,
            bridge,
            clean_start,
            keep_alive,
            client_id,
            will,
            username,
            password,
            properties,
        })
    }

    /// Appends the packet, in its own version. A bridge bit of MQTT 5 is left out, as are properties before it.
    ///
    /// # Errors
    ///
    /// `TooLong`, `NullCharacter`, `OutOfRange`, `PacketTooLarge`, and `Missing` for a password without a user name before MQTT 5
    /// or authentication data without a method. `out` is then as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let encoded = self.put(out);
        if encoded.is_err() {
            out.truncate(start);
        }
        encoded
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let version = self.version;
        if version != Version::V5 && self.password.is_some() && self.username.is_none() {
            return Err(EncodeError::Missing { packet: PACKET, field: "a user name" });
        }
        out.push(0x10);
        put_with_length(out, |out| {
            let name = if version == Version::V3 { "MQIsdp" } else { "MQTT" };
            put_text(name, "protocol name", out)?;
            let bridge = if self.bridge && version != Version::V5 { BRIDGE } else { 0 };
            out.extend_from_slice(&[version.level() | bridge, self.flags()]);
            put_u16(self.keep_alive, out);
            if version == Version::V5 {
                put_with_length(out, |out| self.properties.put(out))?;
            }
            put_text(&self.client_id, "client identifier", out)?;
            if let Some(will) = &self.will {
                will.put(version, out)?;
            }
            if let Some(username) = &self.username {
                put_text(username, "user name", out)?;
            }
            if let Some(password) = &self.password {
                put_binary(password, "password", out)?;
            }
            Ok(())
        })
    }

    fn flags(&self) -> u8 {
        let bit = |set, bit| if set { bit } else { 0 };
        let mut flags = bit(self.clean_start, flag::CLEAN_START)
            | bit(self.username.is_some(), flag::USERNAME)
            | bit(self.password.is_some(), flag::PASSWORD);
        if let Some(will) = &self.will {
            flags |= flag::WILL | (will.qos as u8) << 3 | bit(will.retain, flag::WILL_RETAIN);
        }
        flags
    }
}

/// The level asked for and, if that is known, the version and whether the client is a bridge.
fn take_version(input: &mut Input<'_>) -> Result<(u8, Option<(Version, bool)>), DecodeError> {
    let name = input.binary("protocol name")?;
    if name != b"MQTT" && name != b"MQIsdp" {
        return Err(DecodeError::Malformed { field: "protocol name", clause: "MQTT-3.1.2-1" });
    }
    let level = input.u8("protocol level")?;
    let bridge = level & BRIDGE != 0;
    let known = match (name, level & !BRIDGE) {
        (b"MQTT", 5) if !bridge => Some((Version::V5, false)),
        (b"MQTT", 4) => Some((Version::V4, bridge)),
        (b"MQIsdp", 3) => Some((Version::V3, bridge)),
        _ => None,
    };
    Ok((level, known))
}

fn check_flags(version: Version, flags: u8) -> Result<(), DecodeError> {
    let malformed = |field, clause| Err(DecodeError::Malformed { field, clause });
    if flags & flag::RESERVED != 0 {
        return malformed("connect flags: the reserved bit is set", "MQTT-3.1.2-3");
    }
    if flags & flag::WILL == 0 {
        if flags & flag::WILL_QOS != 0 {
            return malformed("connect flags: a quality of service and no will", "MQTT-3.1.2-11");
        }
        if flags & flag::WILL_RETAIN != 0 {
            return malformed("connect flags: a will to retain and no will", "MQTT-3.1.2-13");
        }
    }
    if flags & flag::WILL_QOS == flag::WILL_QOS {
        return malformed("connect flags: the will's quality of service is 3", "MQTT-3.1.2-12");
    }
    if version != Version::V5 && flags & (flag::USERNAME | flag::PASSWORD) == flag::PASSWORD {
        let field = "connect flags: a password and no user name";
        return malformed(field, "MQTT 3.1.1, MQTT-3.1.2-22");
    }
    Ok(())
}

impl ConnectProperties {
    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let mut found = Self::default();
        let mut properties = Properties::take(input, PACKET)?;
        while let Some(property) = properties.next()? {
            match property {
                Property::SessionExpiry(seconds) => found.session_expiry = Some(seconds),
                Property::ReceiveMaximum(count) => found.receive_maximum = Some(count),
                Property::MaximumPacketSize(bytes) => found.maximum_packet_size = Some(bytes),
                Property::TopicAliasMaximum(count) => found.topic_alias_maximum = count,
                Property::RequestResponseInformation(asked) => {
                    found.request_response_information = asked;
                }
                Property::RequestProblemInformation(asked) => {
                    found.request_problem_information = Some(asked);
                }
                Property::User(name, value) => {
                    found.user_properties.push((name.to_owned(), value.to_owned()));
                }
                Property::AuthenticationMethod(text) => {
                    found.authentication_method = Some(text.to_owned());
                }
                Property::AuthenticationData(data) => {
                    found.authentication_data = Some(data.to_owned());
                }
                _ => return Err(properties.misplaced()),
            }
        }
        if found.authentication_data.is_some() && found.authentication_method.is_none() {
            let what = "authentication data without an authentication method";
            return Err(DecodeError::Protocol { what, clause: "MQTT 5.0, 3.1.2.11.10" });
        }
        Ok(found)
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.authentication_data.is_some() && self.authentication_method.is_none() {
            return Err(EncodeError::Missing { packet: PACKET, field: "authentication method" });
        }
        let non_zero = |value: u16| (value != 0).then_some(value);
        put_four(id::SESSION_EXPIRY, self.session_expiry, out);
        put_two(id::RECEIVE_MAXIMUM, self.receive_maximum.map(u16::from), out);
        put_maximum_packet_size(self.maximum_packet_size, out)?;
        put_two(id::TOPIC_ALIAS_MAXIMUM, non_zero(self.topic_alias_maximum), out);
        if self.request_response_information {
            put_byte(id::REQUEST_RESPONSE_INFORMATION, 1, out);
        }
        put_flag(id::REQUEST_PROBLEM_INFORMATION, self.request_problem_information, out);
        put_user_properties(&self.user_properties, out)?;
        let text = self.authentication_method.as_deref();
        put_text_property(id::AUTHENTICATION_METHOD, text, "authentication method", out)?;
        let data = self.authentication_data.as_deref();
        put_data_property(id::AUTHENTICATION_DATA, data, "authentication data", out)
    }
}

impl Will {
    fn take(version: Version, flags: u8, input: &mut Input<'_>) -> Result<Self, DecodeError> {
        let (mut delay, mut message_expiry, mut forwarded) = (0, None, Vec::new());
        if version == Version::V5 {
            let mut properties = Properties::take(input, "the will of CONNECT")?;
            while let Some(property) = properties.next()? {
                match property {
                    Property::WillDelay(seconds) => delay = seconds,
                    Property::MessageExpiry(seconds) => message_expiry = Some(seconds),
                    Property::PayloadFormat(_)
                    | Property::ContentType(_)
                    | Property::ResponseTopic(_)
                    | Property::CorrelationData(_)
                    | Property::User(..) => forwarded.extend_from_slice(properties.span()),
                    _ => return Err(properties.misplaced()),
                }
            }
        }
        let topic = input.text("will topic")?;
        if topic.is_empty() || topic.contains(['+', '#']) {
            return Err(DecodeError::TopicName { field: "will topic", clause: "MQTT-4.7.0-1" });
        }
        let payload = input.binary("will payload")?.to_owned();
        let qos = QoS::of_bits((flags & flag::WILL_QOS) >> 3).expect("checked with the flags");
        let retain = flags & flag::WILL_RETAIN != 0;
        Ok(Self { topic: topic.to_owned(), payload, qos, retain, delay, message_expiry, forwarded })
    }

    fn put(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if version == Version::V5 {
            put_with_length(out, |out| {
                put_four(id::WILL_DELAY, (self.delay != 0).then_some(self.delay), out);
                put_four(id::MESSAGE_EXPIRY, self.message_expiry, out);
                out.extend_from_slice(&self.forwarded);
                Ok(())
            })?;
        }
        put_text(&self.topic, "will topic", out)?;
        put_binary(&self.payload, "will payload", out)
    }
}
