//! DISCONNECT and AUTH (sections 3.14 and 3.15).

use super::{
    Auth, DecodeError, Disconnect, EncodeError, ReasonCode, Version,
    field::{Input, put_with_length},
    property::{
        Properties, Property, id, put_data_property, put_four, put_text_property,
        put_user_properties,
    },
};

impl Disconnect {
    /// A reason alone.
    pub fn new(reason: ReasonCode) -> Self {
        Self { reason, ..Self::default() }
    }

    pub(super) fn decode(version: Version, body: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input::new(body);
        let mut disconnect = Self::default();
        if version == Version::V5 && !input.is_empty() {
            disconnect.reason = ReasonCode(input.u8("reason code")?);
            check(disconnect.reason)?;
            if !input.is_empty() {
                disconnect.take_properties(&mut input)?;
            }
        }
        input.end("DISCONNECT")?;
        Ok(disconnect)
    }

    fn take_properties(&mut self, input: &mut Input<'_>) -> Result<(), DecodeError> {
        let mut properties = Properties::take(input, "DISCONNECT")?;
        while let Some(property) = properties.next()? {
            match property {
                Property::SessionExpiry(seconds) => self.session_expiry = Some(seconds),
                Property::ReasonString(text) => self.reason_string = Some(text.to_owned()),
                Property::User(name, value) => {
                    self.user_properties.push((name.to_owned(), value.to_owned()));
                }
                Property::ServerReference(text) => self.server_reference = Some(text.to_owned()),
                _ => return Err(properties.misplaced()),
            }
        }
        Ok(())
    }

    pub(super) fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let bare = self.session_expiry.is_none()
            && self.reason_string.is_none()
            && self.user_properties.is_empty()
            && self.server_reference.is_none();
        out.push(0xe0);
        if version != Version::V5 || (bare && self.reason == ReasonCode::SUCCESS) {
            out.push(0);
            return Ok(());
        }
        if bare {
            out.extend_from_slice(&[1, self.reason.0]);
            return Ok(());
        }
        put_with_length(out, |out| {
            out.push(self.reason.0);
            put_with_length(out, |out| {
                put_four(id::SESSION_EXPIRY, self.session_expiry, out);
                let text = self.reason_string.as_deref();
                put_text_property(id::REASON_STRING, text, "reason string", out)?;
                put_user_properties(&self.user_properties, out)?;
                let text = self.server_reference.as_deref();
                put_text_property(id::SERVER_REFERENCE, text, "server reference", out)
            })
        })
    }
}

/// A reason of DISCONNECT. Section 3.14.2.1 does not list Bad authentication method, section 2.4 does.
fn check(reason: ReasonCode) -> Result<(), DecodeError> {
    match reason.0 {
        0x00 | 0x04 | 0x80..=0x83 | 0x87 | 0x89 | 0x8b..=0x90 | 0x93..=0xa2 => Ok(()),
        _ => {
            let what = "reason code is not one of DISCONNECT";
            Err(DecodeError::Protocol { what, clause: "MQTT-3.14.2-1" })
        }
    }
}

impl Auth {
    pub(super) fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Input::new(body);
        let mut auth = Self::default();
        if input.is_empty() {
            return Ok(auth);
        }
        auth.reason = ReasonCode(input.u8("reason code")?);
        if !matches!(auth.reason.0, 0x00 | 0x18 | 0x19) {
            let what = "reason code is not one of AUTH";
            return Err(DecodeError::Protocol { what, clause: "MQTT-3.15.2-1" });
        }
        let mut properties = Properties::take(&mut input, "AUTH")?;
        while let Some(property) = properties.next()? {
            match property {
                Property::AuthenticationMethod(text) => auth.method = Some(text.to_owned()),
                Property::AuthenticationData(data) => auth.data = Some(data.to_owned()),
                Property::ReasonString(text) => auth.reason_string = Some(text.to_owned()),
                Property::User(name, value) => {
                    auth.user_properties.push((name.to_owned(), value.to_owned()));
                }
                _ => return Err(properties.misplaced()),
            }
        }
        input.end("AUTH")?;
        if auth.method.is_none() && !auth.is_default() {
            let what = "AUTH has no authentication method";
            return Err(DecodeError::Protocol { what, clause: "MQTT 5.0, 3.15.2.2.2" });
        }
        Ok(auth)
    }

    pub(super) fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if version != Version::V5 {
            return Err(EncodeError::NoSuchPacket { packet: "AUTH", version });
        }
        out.push(0xf0);
        if self.is_default() {
            out.push(0);
            return Ok(());
        }
        if self.method.is_none() {
            return Err(EncodeError::Missing { packet: "AUTH", field: "authentication method" });
        }
        put_with_length(out, |out| {
            out.push(self.reason.0);
            put_with_length(out, |out| {
                let text = self.method.as_deref();
                put_text_property(id::AUTHENTICATION_METHOD, text, "authentication method", out)?;
                let data = self.data.as_deref();
                put_data_property(id::AUTHENTICATION_DATA, data, "authentication data", out)?;
                let text = self.reason_string.as_deref();
                put_text_property(id::REASON_STRING, text, "reason string", out)?;
                put_user_properties(&self.user_properties, out)
            })
        })
    }

    /// Whether it is success without properties, which is encoded as an empty body.
    fn is_default(&self) -> bool {
        self.reason == ReasonCode::SUCCESS
            && self.method.is_none()
            && self.data.is_none()
            && self.reason_string.is_none()
            && self.user_properties.is_empty()
    }
}
